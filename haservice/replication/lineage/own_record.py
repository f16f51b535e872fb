"""What a broker's own small files say of the log that they lie beside: whether it may be whole.  Pure.

    lineage/durable       where the log ended at its last flush, or at its clean stop
    lineage/state.json    where epochs of ours began; what slaves in sync had of our last one; from where on it is whole

haservice.mastership.whole judges by it.  A disk that is not mounted, segments that were moved away and a log that was
put back from an older copy all look alike: the log ends before what these files remember.
"""

from __future__ import annotations

from haservice.bounds import OFFSET_MAX
from haservice.mastership.whole import Evidence, Place
from haservice.replication.lineage.epochs import LogSpan
from haservice.replication.lineage.file import LineageState

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
