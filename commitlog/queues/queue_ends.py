"""A start checks here, before it dispatches anything, whether queues end where the log says.

A queue's last entry says where its numbers go on; the last entries of all queues say where dispatch goes on.
A flipped bit there would lose messages and give numbers twice.  So would a size or place that is no longer
valid, because it ends the queue early.  So the start checks the last entry against the log, at one read a
queue.  If it does not fit, and the log is not damaged there, the queue is cut to its last entry that fits,
and what follows comes again from the log.
"""

from __future__ import annotations

import logging

from commitlog.errors import CommitLogError
from commitlog.log.readable_log import ReadableLog
from commitlog.log.salvage import Held
from commitlog.queues.consume_queue import ConsumeQueue, ConsumeQueues
from commitlog.queues.readable_queue import Entry
from commitlog.upkeep.mender import is_named

logger = logging.getLogger(__name__)


def check(log: ReadableLog, queues: ConsumeQueues, position: int) -> int:
    """Where to begin dispatch: at `position` if all queues end well, else earlier.  May raise OSError."""
    for _, queue in queues.items():
        number = queue.max_offset - 1
        early = queue.doubtful or _dropped_another(log, queue, number + 1)
        last = queue.take_last_entry()
        if not early and (number < queue.min_offset or not _is_wrong(log, queue, number, last)):
            continue
        kept, end = _last_fitting(log, queue, number)
        logger.error(
            "queue's end does not fit the log, it is built again from it queue=%s next=%d kept_to=%d from=%d",
            *(queue, number + 1, kept, end),
        )
        queue.end_at(kept)
        position = max(min(position, end), log.start)
    return position


def _dropped_another(log: ReadableLog, queue: ConsumeQueue, number: int) -> bool:
    """Whether a start dropped an entry whose message was to come again, but the entry is of another message.
    That one may not come again."""
    entry = queue.first_distrusted
    return entry is not None and not entry.blank and not _names(log, queue, number, entry)


def _last_fitting(log: ReadableLog, queue: ConsumeQueue, number: int) -> tuple[int, int]:
    """Up to which entry the queue is right, and where in the log it goes on."""
    step = 1
    while number >= queue.min_offset:
        if _fits(log, queue, number):
            (entry,) = queue.read(number, 1)
            return number + 1, entry.physical_offset + entry.size
        number, step = number - step, 2 * step
    return queue.min_offset, log.start


def _fits(log: ReadableLog, queue: ConsumeQueue, number: int) -> bool:
    return any(_names(log, queue, number, entry) for entry in queue.read(number, 1))


def _names(log: ReadableLog, queue: ConsumeQueue, number: int, entry: Entry) -> bool:
    try:
        return is_named(log.read_record(entry.physical_offset), queue.topic, queue.queue_id, number, entry)
    except CommitLogError:
        return False


def _is_wrong(log: ReadableLog, queue: ConsumeQueue, number: int, entry: Entry | None) -> bool:
    """Whether the queue is wrong.  What the log has lost or dropped there does not prove that."""
    if entry is None or entry.blank or _names(log, queue, number, entry):
        return False
    offset = entry.physical_offset
    if offset < log.start:
        before = queue.read(number - 1, 1) if number > queue.first_offset else ()
        return offset < 0 or any(one.physical_offset > offset and not one.blank for one in before)
    segment = log.segments.find(offset) if offset < log.end else None
    if segment is None:
        return True
    with Held(segment):
        edge = log.form_at(offset).walk_towards(segment, offset, log.fence_at)
    return edge > offset or _is_whole(log, offset, entry.size)


def _is_whole(log: ReadableLog, offset: int, size: int) -> bool:
    """Whether a record of another size begins there: then it is not the entry's record, damaged."""
    try:
        return len(log.read_record(offset)) != size
    except CommitLogError:
        return False
