"""Whether the properties files of a pair ask for what is in force, and for the same.  Pure: a part of a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from haservice.admin.commands.ha.findings import Finding, Severity
from haservice.admin.commands.ha.ha_questions import Seen, where
from haservice.admin.commands.ha.topology import ASYNC_MASTER, SYNC_MASTER, promise_parts
from haservice.terminal.output import and_text

# In a broker's runtime table: brokerRole as its properties file has it by now.
IN_FILE = "brokerRoleInFile"
# And: changed files that are not in force, and why; "key=seconds since 1970" of each certificate's first and last
# second; what the accounts of access control come to; "key=digest" of each file with roots.
NOT_IN_FORCE, CERTIFICATE_BEGINS, CERTIFICATE_ENDS = "filesNotInForce", "certificateBegins", "certificateEnds"
RULES_DIGEST, ROOT_DIGESTS = "accountsDigest", "rootDigests"

DAY_MS = 86_400_000
# A certificate that ends within so many days is told of, and is grave within so many; or within such a part of its
# lifetime, if that is less: who renews short-lived ones each day is not told of them each day.
DAYS_WARNING, DAYS_CRITICAL = 30, 1
PART_WARNING, PART_CRITICAL = 1 / 4, 1 / 10


def differing_promises(master: Seen, everybody: Sequence[Seen]) -> Iterator[Finding]:
    """Keys with another value at a SYNC_MASTER than at a broker that may take over: roles move, they do not."""
    if master.lineage is None or master.lineage.role != SYNC_MASTER:
        return
    for key in ("inSyncReplicas", "haReadMark"):
        at: dict[str, list[str]] = {}
        for one in everybody:
            told = promise_parts(one.lineage.promise) if one.lineage is not None else {}
            if key in told:
                at.setdefault(told[key], []).append(where(one))
        if len(at) > 1:
            said = ", ".join(f"{value} at {and_text(sorted(who))}" for value, who in sorted(at.items()))
            text = (
                f"{key} is {said}: a failover changes what producers and consumers can rely on;"
                f" write one {key} into all files, and start these brokers again"
            )
            yield Finding(Severity.WARNING, "BROKERS DIFFER", text)


def unlike_file(master: Seen, slaves: Sequence[Seen]) -> Iterator[Finding]:
    """A properties file that asks for another kind of master than the one that serves.

    The master's own file counts, unless it makes that broker a slave: then those of the others.
    """
    own, role = master.info.get(IN_FILE, ""), master.role
    kinds = {ASYNC_MASTER, SYNC_MASTER}
    asking = [master] if own in kinds else slaves
    for one in asking:
        wanted = one.info.get(IN_FILE, "")
        if wanted in kinds and role in kinds and wanted != role:
            text = (
                f"{where(master)} is {'an' if role.startswith('A') else 'a'} {role}, and the file of {where(one)}"
                f" says brokerRole={wanted}: mqadmin switchover -b {master.broker.name} --role {wanted} makes it"
                f" one at once, or write {role} into that file"
            )
            yield Finding(Severity.WARNING, "ROLE UNLIKE FILE", text)


def unfit_files(one: Seen, now_ms: int) -> Iterator[Finding]:
    """Files of accounts, keys and certificates that are not in force as they are, or not for long."""
    if why := one.info.get(NOT_IN_FORCE):
        yield Finding(
            Severity.WARNING, "FILE NOT IN FORCE", f"{where(one)} goes on with the one before: {why}"
        )
    begins = dict(_pairs(one.info.get(CERTIFICATE_BEGINS, "")))
    for key, until in sorted(_pairs(one.info.get(CERTIFICATE_ENDS, ""))):
        if not until.isdigit():
            continue
        since = begins.get(key, "")
        warning, critical = _days(since, int(until))
        left = (int(until) * 1000 - now_ms) / DAY_MS
        early = (int(since) * 1000 - now_ms) / DAY_MS if since.isdigit() else 0.0
        if early > 0:
            title, said = "CERTIFICATE IS NOT VALID YET", f"valid in {_span(early)}"
        elif left < 0:
            title, said = "CERTIFICATE HAS EXPIRED", f"{_span(-left)} ago"
        elif left <= warning:
            title, said = "CERTIFICATE ENDS", f"{_span(left)} left"
        else:
            continue
        state = Severity.CRITICAL if early > 0 or left <= critical else Severity.WARNING
        text = f"{where(one)}: {key}, {said}: replace the file, which counts without a restart"
        yield Finding(state, title, text)


def _span(days: float) -> str:
    return f"{days:.0f} days" if days >= 2 else f"{days * 24:.0f} hours"


def differing_security(everybody: Sequence[Seen]) -> Iterator[Finding]:
    """Accounts, rules and roots that are not the same at all brokers of a name: a failover changes who gets in."""
    for text in security_differences({where(one): one.info for one in everybody}):
        yield Finding(Severity.WARNING, "BROKERS DIFFER", text)


def security_differences(infos: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """By the runtime tables of brokers, named by their addresses.  One that says nothing of it differs from nobody."""
    found: dict[str, dict[str, list[str]]] = {}
    for addr, info in sorted(infos.items()):
        told = dict(_pairs(info.get(ROOT_DIGESTS, "")))
        if rules := info.get(RULES_DIGEST):
            told["accounts and rules of access control"] = rules
        for what, digest in told.items():
            found.setdefault(what, {}).setdefault(digest, []).append(addr)
    for what, at in found.items():
        if len(at) > 1:
            sides = " and ".join(and_text(addrs) for addrs in at.values())
            yield (
                f"{what} are not the same at {sides}: who gets in at one may be refused at the other;"
                " give them the same files"
            )


def _days(since: str, until: int) -> tuple[float, float]:
    """With how many days left a certificate is told of, and is grave.  A broker may not say since when it counts."""
    if not since.isdigit():
        return DAYS_WARNING, DAYS_CRITICAL
    lifetime = max(0, until - int(since)) * 1000 / DAY_MS
    return min(DAYS_WARNING, lifetime * PART_WARNING), min(DAYS_CRITICAL, lifetime * PART_CRITICAL)


def _pairs(text: str) -> list[tuple[str, str]]:
    return [
        (key, value) for key, equals, value in (part.partition("=") for part in text.split(",")) if equals
    ]
