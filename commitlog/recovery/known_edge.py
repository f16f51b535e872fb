"""Where a start begins to scan the log: at the last known edge of a record in the durable part.

The mark in lineage/durable is no edge by itself: a replica flushes amid records.  And it may be wrong, if
files were put back, or another broker had the store meanwhile.  So a queue has to name a record that ends at
or before the mark, and the log must have just that record, whole and sound.  The scan begins behind it.  That
is near the mark, because the start asks the queues that were written last.
"""

from __future__ import annotations

import heapq

from commitlog.errors import CommitLogError
from commitlog.log.readable_log import ReadableLog
from commitlog.log.segments import Segments
from commitlog.queues.consume_queue import ConsumeQueue, ConsumeQueues
from commitlog.queues.readable_queue import Entry
from commitlog.upkeep.mender import is_named

# If 1,024 queues take messages by turns, one of this many has one of the last few dozen messages.
_QUEUES_ASKED = 16


def edge_below(segments: Segments, queues: ConsumeQueues, mark: int) -> int | None:
    """Where the last known record at or before `mark` ends; None if nothing proves such a place."""
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
