"""What a broker's own small files say of the log that they lie beside: whether it may be whole.  Pure.

    lineage/durable       where the log ended at its last flush, or at its clean stop
    lineage/state.json    where epochs of ours began; what slaves in sync had of our last one; from where on it is whole

haservice.mastership.whole judges by it.  A disk that is not mounted, segments that were moved away and a log that was
put back from an older copy all look alike: the log ends before what these files remember.  Where the files were put
back with it, only a replica can tell: see why_older_copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from haservice.bounds import OFFSET_MAX
from haservice.mastership.whole import Evidence, Place, why_not_whole
from haservice.replication.lineage.epochs import PROMOTION_STEP, Lineage, LogSpan, Mark, common_point
from haservice.replication.lineage.file import LineageState
from haservice.replication.lineage.membership import REPLICAS_MAX, ReplicaList

DURABLE = "lineage/durable"
OWN_EPOCHS = "its list of epochs"
ITS_SLAVES = "its list of slaves"
STATE = "lineage/state.json"


def acked_by_slaves(state: LineageState) -> int:
    """Up to where slaves in sync had the log of our epoch, if the last one is ours; else 0."""
    last = state.lineage.last
    if last is None or last.master != state.replica_id:
        return 0
    return max((one.offset for one in state.replicas.values() if one.in_sync), default=0)


def own_evidence(
    state: LineageState, log: LogSpan, had_end: int = 0, *, lost_power: bool = False
) -> Evidence:
    """`had_end` is RecoveryReport.had_end.  `lost_power`: what was not flushed may be gone; then an ack of a slave,
    which may have had it before the flush here, says nothing.
    """
    lineage = state.lineage
    ends = {
        DURABLE: had_end,
        OWN_EPOCHS: max((one.start for one in lineage.epochs if one.master == state.replica_id), default=0),
    }
    if state.whole_from < OFFSET_MAX:
        ends[STATE] = state.whole_from
    if not lost_power:
        ends[ITS_SLAVES] = acked_by_slaves(state)
    told: dict[str, Place] = {who: lineage.mark(end) for who, end in ends.items() if end > log.end}
    return Evidence(lineage.mark(log.end), told, lost_power=state.whole_from == OFFSET_MAX)


def why_older_copy(
    state: LineageState, replica_id: str, addr: str, listed: ReplicaList, theirs: Lineage, their_end: int
) -> str:
    """Why our log is an older copy of itself, by what that replica at `addr` has of it: more of an epoch of ours than
    we had at a restart.  "" if nothing says so.  `listed` is the newest list of replicas that it knows.

    A SYNC_MASTER whose machine went down begins an epoch only once it has heard every replica that its file calls in
    sync, and it has written that down of a replica before it takes an ack of it.  So whoever has more here was not
    in sync by our file, which is older than the acks then.  Once an operator has promoted us, what is lost is lost.
    """
    own, me = state.lineage, state.replica_id
    common = common_point(own, OFFSET_MAX, theirs, their_end)
    wrote = theirs.epoch_at(their_end - 1)
    if common is None or wrote is None or common.point >= their_end or wrote.master != me:
        return ""
    before = own.epoch_at(common.point - 1)
    after = next((one for one in own.epochs if one.start == common.point), None)
    if before is None or after is None or after.master != me or after.number % PROMOTION_STEP == 0:
        return ""
    numbers = {one.number // PROMOTION_STEP for one in (wrote, after, own.epochs[-1])}
    if len(numbers) > 1 or _is_given_up(state, replica_id, addr, listed):
        return ""
    reach, told = Mark(before.number, common.point), Mark(wrote.number, their_end)
    return why_not_whole(Evidence(reach, {addr: told})) or ""


def _is_given_up(state: LineageState, replica_id: str, addr: str, listed: ReplicaList) -> bool:
    """Whether an operator forgot that replica here, and with it what it has; not if it was let back since: then it is
    on our list, or it knows a later one of ours.
    """
    listed_here = state.members.replicas
    if replica_id in listed_here or addr in listed_here.values():
        return False
    without = state.forgotten.get(replica_id)
    return without is not None and (listed.master != state.replica_id or listed.version <= without)


def with_forgotten(
    state: LineageState, replica_id: str, without: tuple[int, int]
) -> Mapping[str, tuple[int, int]]:
    """LineageState.forgotten, once an operator has forgotten that replica by the list of that version."""
    others = {one: version for one, version in state.forgotten.items() if one != replica_id}
    return dict([*others.items(), (replica_id, without)][-REPLICAS_MAX:])
