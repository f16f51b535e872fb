"""From where a start need look at the log: the last edge of a record below what is known to be durable.

The mark of lineage/durable is no edge by itself: a replica flushes amid records.  And it may be wrong, where
files were put back, or another broker had the store meanwhile.  So a queue has to name a record that ends at
the mark or before it, and the log to have just that record, whole and sound.  Then the scan begins behind it,
which is near the mark, for the queues asked are those that were written last.
"""

from __future__ import annotations

import heapq

from commitlog.errors import CommitLogError
from commitlog.log.readable_log import ReadableLog
from commitlog.log.segments import Segments
from commitlog.queues.consume_queue import ConsumeQueue, ConsumeQueues
from commitlog.queues.readable_queue import Entry
from commitlog.upkeep.mender import is_named

# Of 1,024 queues that take messages by turns, one of so many has one of the last few dozen.
_QUEUES_ASKED = 16


def edge_below(segments: Segments, queues: ConsumeQueues, mark: int) -> int | None:
    """Where the last record that is known ends at `mark` or before it; None if nothing proves such a place."""
    listed = [queue for _, queue in queues.items()]
    ended = max((one for one in listed if one.max_physical_offset <= mark), key=_last, default=None)
    behind = (one for one in listed if one.max_physical_offset > mark)
    asked = heapq.nlargest(_QUEUES_ASKED, behind, key=_last)
    best: tuple[int, int, ConsumeQueue, Entry] | None = None
    for queue in (*asked, *([ended] if ended is not None else [])):
        found = queue.last_ending(mark)
        if found is not None and (best is None or found[1].physical_offset > best[0]):
            best = (found[1].physical_offset, found[0], queue, found[1])
    return None if best is None else _proven_end(ReadableLog(segments, mark), *best[1:])


def _proven_end(log: ReadableLog, number: int, queue: ConsumeQueue, entry: Entry) -> int | None:
    try:
        record = log.read_sound_record(entry.physical_offset)
    except (CommitLogError, OSError):
        return None
    named = is_named(record, queue.topic, queue.queue_id, number, entry)
    return entry.physical_offset + entry.size if named else None


def _last(queue: ConsumeQueue) -> int:
    return queue.max_physical_offset
