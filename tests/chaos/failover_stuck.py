"""Whether nobody may become the master by himself, for copies are gone for good: proved from the world.

It looks at the logs that there are and at the coordinator's keys, and asks no broker what it thinks.  All faults are
over, so whatever a broker only has to wait for, or to do first, such as to seal its log, keeps nobody from being
promoted here.  The rules are those of docs/failover.md, stated once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from haservice.coordination.cluster import Cluster, decode

if TYPE_CHECKING:
    from tests.chaos.failover_node import Node
    from tests.chaos.failover_sim import World


def why_stuck(world: World) -> str:
    """Why an operator has to help; "" if a broker has to become the master by itself, or is it."""
    now = decode(world.server.read())
    return why_nobody(world, now) if now.master is None else ""


def why_nobody(world: World, now: Cluster, lost: Node | None = None) -> str:
    """Why nobody could follow the last master; "" if somebody could.  The log of `lost` counts as gone."""
    status, needed = now.status, now.voters.needed
    if status is None:
        return ""
    all_there = {node.id: node for node in world.nodes if node is not lost}
    # Who had heard of more than a store has that was put back remembers it, whatever a restored coordinator says.
    there = {
        one: node
        for one, node in all_there.items()
        if not _lacks_its_log(node) and node.name not in world.emptied
    }
    whole = [there[one] for one in now.voters.ids & there.keys()]
    last = there.get(status.replica_id) if status.replica_id in now.voters.ids else None
    if last is not None and not (status.goes_on and any(one.place > last.place for one in there.values())):
        return ""  # nobody was master after it
    gone = f"of the voters {sorted(now.voters.ids)} only {sorted(node.id for node in whole)} have their logs"
    if status.goes_on:
        return f"{gone}, and {status.replica_id} was the master of a pause"
    hurt = [node for node in all_there.values() if node.id in now.voters.ids and node not in whole]
    is_last_resort = now.voters.ids <= all_there.keys() and all(node.lost_power for node in hurt)
    if needed == 0:
        may = [node for node in there.values() if node in whole or whole]
        most = max((len(node.log) for node in may if node.newest == status.epoch), default=0)
        if any(_is_near_enough(node, now, most) for node in may) or (is_last_resort and not whole):
            return ""
        return f"{gone}, and lack too much"
    least = len(now.voters.ids) - needed if len(now.voters.ids) > needed else len(now.voters.ids)
    return "" if len(whole) >= least or is_last_resort else f"{gone}, and {least} have to be heard"


def _lacks_its_log(node: Node) -> bool:
    """It was emptied or put back, or lost power, and has not had all of a master's log since; it may also have lost
    power once it had all again.
    """
    return len(node.log) < node.whole_from


def _is_near_enough(node: Node, now: Cluster, end_there: int) -> bool:
    """Whether it may follow an ASYNC_MASTER: it was that master's slave, and lacks no more than is allowed."""
    status, end = now.status, len(node.log)
    assert status is not None
    if node.newest != status.epoch or end < now.voters.floor:
        return False
    most = now.settings.max_loss_bytes
    return (most > 0 or status.is_final) and max(status.end, node.master_end, end_there) - end <= most
