"""Reading messages by the entries of a queue: returns what was stored there, or raises an error.

commitlog.kernel.entries checks each record; this module handles one that is not sound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from commitlog.errors import BadEntry, CorruptRecord, OffsetNotFound
from commitlog.kernel.entries import Places, first_fault
from commitlog.queues.consume_queue import Entry


class Log(Protocol):
    """What is read of a CommitLog."""

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...

    @property
    def suspect(self) -> Callable[[int], None]: ...


# Queues of light messages, which stock brokers may have filled: their entries name other queues' messages.
LIGHT = "%LMQ%"


def places_of(topic: str, queue_id: int, offsets: Sequence[int]) -> Places | None:
    return None if topic.startswith(LIGHT) else Places(topic, queue_id, offsets)


def read_sound(
    log: Log, start: int, size_bytes: int, run: Sequence[Entry], places: Places | None = None
) -> bytes:
    """The bytes from `start` on; each record of `run` in them is what was stored there.

    Tells the log of the first one that is not, and raises CorruptRecord for it; BadEntry with `places`.
    """
    try:
        data = log.read(start, size_bytes)
    except OffsetNotFound as error:
        if places is None or start < log.start:
            raise
        raise BadEntry(start, str(error), places.topic, places.queue_id, places.offsets[0]) from error
    except CorruptRecord as error:
        if places is None:
            raise
        raise BadEntry(start, error.reason, places.topic, places.queue_id, places.offsets[0]) from error
    fault = first_fault(data, start, run, places)
    if fault is None:
        return data
    offset = run[fault.number].physical_offset
    if places is None:
        log.suspect(offset)
        raise CorruptRecord(offset, fault.reason)
    raise BadEntry(offset, fault.reason, places.topic, places.queue_id, places.offsets[fault.number])
