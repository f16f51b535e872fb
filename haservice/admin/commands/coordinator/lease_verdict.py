"""Whether somebody would take over if the master died now, as brokers with a coordinator tell it.  Pure.

A broker tells what keeps it from its coordinator.  Two brokers that each read one tell whether it is the same: it
names the same master.  One of an older version tells neither, and is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from haservice.admin.commands.ha.findings import Finding, Severity
from haservice.admin.commands.ha.ha_questions import Seen
from haservice.terminal.output import shown_addr

FAILSAFE = "failsafe"


def is_read(one: Seen) -> bool:
    """Whether it reads its coordinator now; one of an older version does not say so."""
    return one.info.get("leaseIsRead", "true") == "true"


def of_master(master: Seen, slaves: Sequence[Seen]) -> Iterator[Finding]:
    """`slaves` are those that answer."""
    if trouble := master.info.get("leaseTrouble"):
        by_failsafe = master.info.get("leaseServesBy") == FAILSAFE
        head = "MASTER SERVES BY FAILSAFE" if by_failsafe else "COORDINATOR NOT USABLE"
        yield Finding(Severity.WARNING, head, f"{_where(master)}: {trouble}")
    reasons = {_where(one): _why_no_successor(one, master) for one in slaves}
    missing = [f"{who}: {why}" for who, why in reasons.items() if why]
    if not missing:
        return
    head = "NOBODY COULD TAKE OVER" if len(missing) == len(reasons) else "SLAVE COULD NOT TAKE OVER"
    yield Finding(Severity.WARNING, head, "; ".join(missing))


def of_slave(slave: Seen) -> Iterator[Finding]:
    """Of one that was asked alone."""
    if why := slave.info.get("leaseCouldNot"):
        yield Finding(Severity.WARNING, "SLAVE COULD NOT TAKE OVER", f"{_where(slave)}: {why}")


def _why_no_successor(slave: Seen, master: Seen) -> str:
    """Why it would not take over, and what helps; "" if it would, or if nothing is known."""
    ours, masters = slave.info.get("leaseCoordinator"), master.info.get("leaseCoordinator")
    if masters and not ours and slave.lineage is not None:
        return f"it runs without haCoordinator, and its master has {masters}: give both the same, and start it again"
    if ours and not masters and master.lineage is not None:
        return f"it has haCoordinator={ours}, and its master has none: give both the same, and start the master again"
    return _why_apart(slave, master) or slave.info.get("leaseCouldNot", "")


def _why_apart(slave: Seen, master: Seen) -> str:
    """Whether it reads another coordinator than its master, or other keys there."""
    mine, theirs = slave.info, master.info
    if "leaseKeys" not in mine or "leaseKeys" not in theirs or not (is_read(slave) and is_read(master)):
        return ""
    if mine.get("leaseMaster") == theirs.get("leaseMaster"):
        return ""
    if mine["leaseKeys"] != theirs["leaseKeys"]:
        return (
            f"its keys in the coordinator are below {mine['leaseKeys']}, its master's below {theirs['leaseKeys']}:"
            " give both files the same brokerClusterName and path, and start it again"
        )
    if mine["leaseCoordinator"] == theirs["leaseCoordinator"]:
        return ""  # a role is changing just now
    return (
        f"its coordinator, {mine['leaseCoordinator']}, names {mine.get('leaseMaster') or 'nobody'} as the master; that"
        f" of its master, {theirs['leaseCoordinator']}, {theirs.get('leaseMaster') or 'nobody'}:"
        " give both files the same haCoordinator, and start it again"
    )


def _where(one: Seen) -> str:
    return shown_addr(one.broker.addr)
