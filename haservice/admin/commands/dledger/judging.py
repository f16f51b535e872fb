"""What is wrong with a DLedger group, for the verdict on its name.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from haservice.admin.commands.ha.findings import Finding, Severity
from haservice.admin.commands.ha.ha_questions import Seen
from haservice.configuration.dledger_settings import broker_id_of, is_self_id, parts_of
from haservice.remoting.bodies.clients import HAConnectionRuntimeInfo
from haservice.terminal.output import and_text, shown_addr


def members_of_group(one: Seen) -> int:
    """How many there are, as one of them says."""
    return len(one.info.get("dLegerMembers", "").split())


def no_leader(group: Sequence[Seen], gone: str) -> Finding:
    """`group` are the members that answer; `gone` says why others do not, or is empty."""
    members, runs = members_of_group(group[0]), len(group)
    needed = members // 2 + 1
    why = f"{runs} of {members} members answer: they elect one, or do not reach each other, see their logs"
    followed = {one.info.get("dLegerLeaderId", "") for one in group}
    if runs < needed:
        why = f"{runs} of {members} members answer, and {needed} of them elect one"
    elif len(followed) == 1 and "" not in followed:
        text = (
            f"sends fail; {followed.pop()} leads by the word of {runs} of {members} members, and its broker "
        )
        return Finding(
            Severity.CRITICAL,
            "LEADER IS NOT THERE",
            f"{text}{f'does not answer: {gone}' if gone else 'is not registered as the master: see its log'}",
        )
    waits = [f"{_name(one)} {said}" for one in group if (said := one.info.get("dLegerNotWhole"))]
    if waits:
        why = "; ".join([f"{runs} of {members} members answer", *waits])
    help = [start_text(group)]
    if waits and runs >= needed:
        name = group[0].broker.name
        help = [
            help[0] or "start those that are waited for",
            f"if they are lost for good, mqadmin failover -b {name} --to ADDR says what is lost with them",
        ]
    text = "; ".join(filter(None, (f"sends fail; {why}", gone, *help)))
    return Finding(Severity.CRITICAL, "NOBODY LEADS", text)


def troubles_of(one: Seen) -> Iterator[Finding]:
    """What is wrong with a member whatever its role."""
    grave = Severity.WARNING if one.is_slave else Severity.CRITICAL
    if trouble := one.info.get("dLegerTrouble"):
        yield Finding(grave, "MEMBER TAKES NO PART", f"{shown_addr(one.broker.addr)}: {trouble}")
    if refused := one.info.get("dLegerRefusesCut"):
        text = (
            f"{shown_addr(one.broker.addr)}: {refused}; what was acknowledged is on that member, and not on its leader:"
            " copy both stores before all else"
        )
        yield Finding(Severity.CRITICAL, "ACKNOWLEDGED ENTRIES ARE LOST", text)
    if waits := one.info.get("dLegerNotWhole"):
        yield Finding(Severity.WARNING, "MEMBER NOT WHOLE", f"{shown_addr(one.broker.addr)} {waits}")
    if alone := one.info.get("dLegerLedAlone"):
        text = f"{shown_addr(one.broker.addr)}: {alone}; mqadmin switchover ends this warning"
        yield Finding(Severity.WARNING, "LED WITHOUT A MAJORITY", text)


def _name(one: Seen) -> str:
    return f"{one.info.get('dLegerSelfId') or one.replica_id} ({shown_addr(one.broker.addr)})"


def start_text(group: Sequence[Seen]) -> str:
    """Says to start those that do not answer, by the addresses at which members reach each other; "" if all do, or if
    somebody leads.
    """
    there = {_key(one, "dLegerSelfId") or one.replica_id for one in group}
    peers = (one.partition("-") for one in sorted(parts_of(_key(group[0], "dLegerPeers"))))
    away = [f"{addr} ({name})" for name, _, addr in peers if addr and name not in there]
    return "" if not away or any(_key(one, "dLegerLeaderId") for one in group) else f"start {and_text(away)}"


def _key(one: Seen, key: str) -> str:
    return one.info.get(key) or one.settings.get(key, "")


def followers(leader: Seen, seen: Sequence[Seen] | None) -> Iterator[Finding]:
    """What is wrong with those that have to follow.  Without a majority of them the leader leaves office by itself.

    A member's port is its leader's to judge; `seen` are the brokers, None if the others were not asked.
    """
    for link in leader.status.ha_connection_info if leader.status is not None else ():
        broker = None if seen is None else _broker_of(link.replica_id or "", seen)
        said = f"; its broker{_answer(broker)}" if seen is not None else ""
        if not link.in_sync:
            gone = broker is None or not broker.is_alive
            help = f"; start {shown_addr(link.addr)}" if seen is not None and gone else ""
            text = f"{member_name(link)}: {link.reason or 'is not level'}{said}{help}"
            yield Finding(Severity.WARNING, "MEMBER NOT LEVEL", text)
        elif seen is not None and (broker is None or not broker.is_alive):
            text = f"{member_name(link)} is level, and no client reaches it{said}"
            yield Finding(Severity.WARNING, "BROKER DOES NOT ANSWER", text)


def _broker_of(name: str, seen: Sequence[Seen]) -> Seen | None:
    """One that tells its id before one that does not."""
    found = [one for one in seen if has_id(name, one.replica_id, one.broker.broker_id)]
    return min(found, key=lambda one: one.replica_id is None, default=None)


def has_id(name: str, told: str | None, broker_id: int | None) -> bool:
    """Whether a broker is that member: by the id that it tells, else by its number as a slave."""
    return told == name if told is not None else is_self_id(name) and broker_id == broker_id_of(name)


def _answer(broker: Seen | None) -> str:
    if broker is None:
        return " is not registered"
    at = f" at {shown_addr(broker.broker.addr)}"
    return f"{at} answers" if broker.is_alive else f"{at} does not: {broker.why_silent}"


def differing(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Keys that have to be the same at all members, and are not, by what each runs with; stock members say it, too."""
    members = [one for one in seen if one.settings.get("enableDLegerCommitLog") == "true"]
    for key in ("dLegerGroup", "dLegerPeers", "preferredLeaderId", "flushDiskType"):
        at: dict[str, list[str]] = {}
        for one in members:
            value = ";".join(sorted(parts_of(one.info.get(key) or one.settings.get(key, ""))))
            at.setdefault(value, []).append(
                f"{one.settings.get('dLegerSelfId')} ({shown_addr(one.broker.addr)})"
            )
        if len(at) < 2:
            continue
        said = ", ".join(
            f"{value or 'not set'} at {and_text(sorted(who))}" for value, who in sorted(at.items())
        )
        if key == "dLegerPeers" and len({_ids(value) for value in at}) > 1:
            yield Finding(
                Severity.CRITICAL,
                "MEMBERS DIFFER",
                f"{key} is {said}: they name other members, and majorities of two such files need have none in common."
                " Write back the value that the group was started with, and start the members with another one"
                " again; members are added or taken out only while all of them are stopped, and were level",
            )
        else:
            text = (
                f"{key} is {said}: write one value into all files, and start these members again one by one"
            )
            yield Finding(Severity.WARNING, "MEMBERS DIFFER", text)


def _ids(peers: str) -> frozenset[str]:
    return frozenset(part.partition("-")[0] for part in parts_of(peers))


def member_name(link: HAConnectionRuntimeInfo) -> str:
    """A leader knows where members reach each other, and not where clients reach them."""
    return f"{link.replica_id} at {shown_addr(link.addr)}"


def good_leader(leader: Seen, level: int, behind: str) -> str:
    """`level` of the others are; `behind` says how far the last one is."""
    who = f"{shown_addr(leader.broker.addr)} leads and accepts writes"
    return f"{who}, {level + 1} of {members_of_group(leader)} members are level{behind}"
