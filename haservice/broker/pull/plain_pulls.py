"""The short way of a pull: native code chooses, reads and checks messages if all of them are ordinary.

    plain_scan    entries of the queue, as bytes ─▶ choose ─▶ those that are taken, as bytes
    plain_load    those ─▶ their records in one buffer ─▶ each checked against its entry and its CRC

Both return what reader.py would return.  They return None, and the reader begins again, if they meet a blank,
an entry that no message of the log can have, one that the log has dropped, damage, or an unsound record.
"""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.kernel import native
from commitlog.kernel.entries import Places
from commitlog.queues.chosen import Chosen, are_sound
from commitlog.queues.consume_queue import Entry
from commitlog.queues.queue_files import UNIT, UNIT_BYTES
from haservice.broker.pull.read_result import CHUNK_ENTRIES, Log, PullStatus, Queue, ReadLimits, Scan
from haservice.broker.pull.sound_read import LIGHT
from haservice.broker.pull.tag_filter import TagCodes

_FAR = (1 << 63) - 1
# How many were taken, their bytes, the places of the first taken and the last looked at, and the last's end.
_NOTHING = (0, 0, 0, 0, 0)


def plain_scan(
    log: Log,
    queue: Queue,
    limits: ReadLimits,
    readable_end: int,
    topic: str,
    queue_id: int,
    offset: int,
    count: int,
    codes: TagCodes,
    budget: int,
) -> Scan | None:
    """As PullReader.scan(), for an offset that the queue has."""
    core = native.core
    if core is None:
        return None
    low, high = queue.min_offset, queue.max_offset
    log_end = log.end
    near_from = log_end - limits.memory_bytes
    most = count if count < limits.count_in_memory else limits.count_in_memory
    most = max(most, 1)
    chunk = most if codes is None else CHUNK_ENTRIES
    entries = queue.read_units(offset, min(chunk, budget))
    damaged = log.damaged
    rules = (
        most,
        log.start,
        readable_end if readable_end < log_end else log_end,
        _behind(entries, damaged) if damaged else _FAR,
        near_from,
        limits.bytes_in_memory,
        limits.count_on_disk,
        limits.bytes_on_disk,
        codes,
    )
    state, position, units, numbers = _NOTHING, offset, b"", b""
    while entries:
        try:
            step = core.choose(entries, position, *rules, state)
        except OverflowError:  # a limit, or a client's tag code, does not fit a machine's number
            return None
        if step is None:
            return None
        state, passed, more_units, more_numbers, full = step
        units = units + more_units if units else more_units
        numbers = numbers + more_numbers if numbers else more_numbers
        position += passed
        budget -= len(entries) // UNIT_BYTES
        if full or budget <= 0:
            break
        entries = queue.read_units(position, min(chunk, budget))
    taken, size_bytes, first, last_seen, end = state
    if taken:
        chosen = Chosen(units, numbers, first, end)
        return Scan(
            PullStatus.FOUND,
            position,
            low,
            high,
            chosen,
            size_bytes,
            last_seen < near_from,
            first < near_from,
            False,
            None if topic.startswith(LIGHT) else chosen.places(topic, queue_id),
        )
    if position > offset:
        return Scan(PullStatus.NO_MATCHED_MESSAGE, position, low, high, slow=last_seen < near_from)
    return None


def plain_load(log: Log, entries: Sequence[Entry], places: Places | None, waits: bool = True) -> bytes | None:
    """As PullReader.load(), for what plain_scan() chose.

    If it does not wait, raises BlockingIOError as the log's gather() does.
    """
    if type(entries) is not Chosen or native.core is None:
        return None
    data = log.gather(entries, waits)
    return data if data is not None and are_sound(data, entries, places) else None


def _behind(entries: bytes, damaged: Sequence[tuple[int, int]]) -> int:
    """Where the first damaged range begins, without those that end before the first of these entries."""
    if not entries:
        return _FAR
    first, _, _ = UNIT.unpack_from(entries)
    return next((begin for begin, end in damaged if end > first), _FAR)
