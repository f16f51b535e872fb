"""What brokers with a coordinator say of the lease, for `mqadmin haStatus`.  Pure.

mqadmin haList asks the coordinator instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from haservice.admin.commands.coordinator.lease_verdict import FAILSAFE, is_read
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
    """Who holds the lease of each broker name; who does not take messages, or the lease that nobody has, and why.

    Who holds it is told by a broker that reads the coordinator now.  What another one read last may be over.
    """
    notes = []
    for name in dict.fromkeys(one.broker.name for one in seen):
        told = [one for one in seen if one.broker.name == name and one.info.get("leaseCoordinator")]
        if not told:
            continue
        reading = [one for one in told if is_read(one)]
        holder = next((at for one in reading if (at := one.info.get("leaseMaster"))), "")
        itself = next((one for one in told if holder and holder.split()[0] == one.broker.addr), None)
        by = (reading or told)[0].info["leaseCoordinator"]
        if not reading:
            notes.append(f"{name}: no broker that answers can read {by}, so nobody can take the lease now.")
        elif itself is not None and (why := itself.info.get("leaseWhyNot", "")):
            notes.append(f"{name}: {_not_as_read(holder, itself)}, by {by}: {why}")
        else:
            itself = None
            notes.append(f"{name}: {holder or 'nobody'} holds the lease, by {by}.")
        notes += [note for one in told if one is not itself and (note := _note(one, holder))]
    return notes


def _not_as_read(holder: str, one: Seen) -> str:
    """Of a master that cannot say that it holds the lease, which was its own when the coordinator was read last."""
    left_s = seconds_left(one)
    if left_s is None or left_s <= 0:
        return f"{holder} held the lease when that was last read, and takes no messages now"
    return f"{holder} held the lease when that was last read, and takes messages for {left_s:.1f} s yet"


def _note(one: Seen, holder: str) -> str:
    """What is to be told of one broker; "" if nothing is."""
    who, why = f"{one.broker.name} at {shown_addr(one.broker.addr)}", one.info.get("leaseWhyNot", "")
    trouble = one.info.get("leaseTrouble", "")
    if one.is_slave:
        return f"{who} is not the master: {why}" if why and not holder else ""
    if one.info.get("leaseServesBy") == FAILSAFE:
        return f"{who} serves by failsafe, for its slaves promise to take no lease: {trouble or why}"
    if why:
        serves = (seconds_left(one) or 0.0) > 0
        return f"{who} {'serves without a lease' if serves else 'is not the master'}: {why}"
    return f"{who} cannot use the coordinator: {trouble}" if trouble else ""
