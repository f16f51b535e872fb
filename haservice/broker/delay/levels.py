"""Delay levels: which delayed messages are due, and how long the others have to wait.  Pure.

Level n, counted from 1, has queue n - 1 of SCHEDULE_TOPIC_XXXX, in the order in which its messages were
stored.  All of them wait equally long, so the first one that is not due ends the look.  When each is to be
delivered stands in its queue entry, in the tags code (broker-flows §11).
"""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.queues.consume_queue import Entry

# What one pass over a level takes, so that the other levels, and senders, come in between.
BATCH_MESSAGES = 256
BATCH_BYTES = 1 << 20


def queue_of(level: int) -> int:
    return level - 1


def due(entries: Sequence[Entry], now_ms: int, delay_ms: int) -> tuple[int, int | None]:
    """How many entries from the first on are due, and how many ms the next one has to wait.

    The second is None when there is no next one, or when it is due but one batch has enough.  A message that
    is to wait longer than its level says was stored before the clock was set back: it is due, as in RocketMQ.
    A blank, which stands for no message, goes with those around it.
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
