"""Whether the properties files of a pair ask for what is in force, and for the same.  Pure: a part of a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from haservice.admin.commands.ha.findings import Finding, Severity
from haservice.admin.commands.ha.ha_questions import Seen, where
from haservice.admin.commands.ha.topology import ASYNC_MASTER, SYNC_MASTER, promise_parts
from haservice.terminal.output import and_text

# In a broker's runtime table: brokerRole as its properties file has it by now.
IN_FILE = "brokerRoleInFile"


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
