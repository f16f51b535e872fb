"""What brokers with a coordinator say of the lease, for `mqadmin haStatus`.  Pure.

mqadmin haList asks the coordinator instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from haservice.admin.commands.ha.ha_questions import Seen
from haservice.terminal.output import shown_addr

# A master that goes on in a pause has no end of its lease.
SECONDS_MAX = 24 * 3600.0


def seconds_left(one: Seen) -> float | None:
    """For how long it may take messages yet; None if it is a slave, or has no coordinator."""
    left = one.info.get("leaseSecondsLeft", "")
    with suppress(ValueError):
        return float(left) if left and not one.is_slave else None
    return None


def lease_of(one: Seen) -> str | None:
    """A broker's part in the lease, for the table; None without haCoordinator."""
    if not one.info.get("leaseCoordinator"):
        return None
    left = seconds_left(one)
    if left is None:
        return "-"
    return "shut" if left <= 0 else "paused" if left > SECONDS_MAX else f"{left:.1f} s left"


def lease_notes(seen: Sequence[Seen]) -> list[str]:
    """Who holds the lease of each broker name; who does not take messages, or the lease that nobody has, and why."""
    notes = []
    for name in dict.fromkeys(one.broker.name for one in seen):
        told = [one for one in seen if one.broker.name == name and one.info.get("leaseCoordinator")]
        if not told:
            continue
        holder = next((at for one in told if (at := one.info.get("leaseMaster"))), "")
        itself = next((one for one in told if holder and holder.split()[0] == one.broker.addr), None)
        by = told[0].info["leaseCoordinator"]
        if itself is not None and (why := itself.info.get("leaseWhyNot", "")):
            notes.append(f"{name}: {_not_as_read(holder, itself)}, by {by}: {why}")
        else:
            notes.append(f"{name}: {holder or 'nobody'} holds the lease, by {by}.")
        for one in told:
            why = one.info.get("leaseWhyNot", "")
            if why and one is not itself and (not holder or not one.is_slave):
                notes.append(f"{name} at {shown_addr(one.broker.addr)} {_is_no_holder(one)}: {why}")
    return notes


def _not_as_read(holder: str, one: Seen) -> str:
    """Of a master that cannot say that it holds the lease, which was its own when the coordinator was read last."""
    left_s = seconds_left(one)
    if left_s is None or left_s <= 0:
        return f"{holder} held the lease when that was last read, and takes no messages now"
    return f"{holder} held the lease when that was last read, and takes messages for {left_s:.1f} s yet"


def _is_no_holder(one: Seen) -> str:
    left_s = seconds_left(one)
    return "serves without a lease" if left_s is not None and left_s > 0 else "is not the master"
