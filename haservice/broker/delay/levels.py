"""Delay levels: which delayed messages are due, and how long the others have to wait.  Pure.

Level n, counted from 1, has queue n - 1 of SCHEDULE_TOPIC_XXXX, with its messages in the order in which they
were stored.  All wait equally long, so the search ends at the first one that is not due.  The tags code of
a message's queue entry says when to deliver it (RocketMQ's ScheduleMessageService).
"""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.queues.consume_queue import Entry

# The most that one pass over a level takes, so that other levels, and senders, get their turn.
BATCH_MESSAGES = 256
BATCH_BYTES = 1 << 20


def queue_of(level: int) -> int:
    return level - 1


def due(entries: Sequence[Entry], now_ms: int, delay_ms: int) -> tuple[int, int | None]:
    """(how many entries from the first on are due, how many ms the next one has to wait).

    The wait is None if there is no next entry, or if it is due but the batch is full.  A message that would
    wait longer than its level was stored before the clock was set back: it is due, as in RocketMQ.  A blank,
    which has no message, is due with its neighbours.
    """
    taken_bytes = 0
    for number, entry in enumerate(entries):
        if entry.blank:
            continue
        wait_ms = entry.tags_code - now_ms
        if 0 < wait_ms <= delay_ms:
            return number, wait_ms
        taken_bytes += entry.size
        if number and taken_bytes > BATCH_BYTES:
            return number, None
    return len(entries), None
