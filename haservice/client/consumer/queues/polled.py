"""PolledMessages: what was pulled for an application that polls, and what its last poll gave.  On one loop.

delivered by readers ─▶ buffer of each queue ─▶ take ─▶ polled ─▶ finish: consumed
                                 ▲                        │
                                 └─────── put_back ───────┘
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence

from haservice.client.consumer.queues.in_flight import InFlight
from haservice.client.consumer.queues.reader import QueueReader
from haservice.client.message import Received
from haservice.remoting.bodies.clients import MessageQueue


class _Buffer:
    """Messages of one queue that were pulled and not polled yet."""

    def __init__(self, in_flight: InFlight[Received]) -> None:
        self.in_flight = in_flight
        self.messages: deque[Received] = deque()


class PolledMessages:
    """The buffers of one consumer.  `arrived` is set when a poll may find something."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._buffers: dict[QueueReader, _Buffer] = {}
        self._turn: deque[QueueReader] = deque()  # readers with messages, in the order of polls
        self._polled: list[tuple[QueueReader, InFlight[Received], list[Received]]] = []

    def deliver(self, reader: QueueReader, messages: Sequence[Received]) -> None:
        assert reader.in_flight is not None
        buffer = self._buffers.get(reader)
        if buffer is None or buffer.in_flight is not reader.in_flight:
            if buffer is None:
                self._turn.append(reader)
            buffer = self._buffers[reader] = _Buffer(reader.in_flight)
        buffer.messages.extend(messages)
        self.arrived.set()

    def take(self, count: int, paused: Collection[MessageQueue]) -> list[Received]:
        """At most so many, of queues that are not paused."""
        found: list[Received] = []
        for _ in range(len(self._turn)):
            reader = self._turn.popleft()
            buffer = self._buffers.get(reader)
            if buffer is None or not reader.is_current(buffer.in_flight):
                self._buffers.pop(reader, None)
                continue
            self._turn.append(reader)
            if reader.queue in paused or not buffer.messages:
                continue
            some = [buffer.messages.popleft() for _ in range(min(count - len(found), len(buffer.messages)))]
            self._polled.append((reader, buffer.in_flight, some))
            found += some
            if len(found) == count:
                break
        return found

    def put_back(self, count: int) -> None:
        """The last `count` messages of the last poll are not consumed: the next poll gives them again."""
        while count > 0 and self._polled:
            reader, in_flight, messages = self._polled[-1]
            buffer = self._buffers.get(reader)
            while count > 0 and messages:
                message = messages.pop()
                count -= 1
                if buffer is not None and buffer.in_flight is in_flight:
                    buffer.messages.appendleft(message)
            if not messages:
                self._polled.pop()
        self.arrived.set()

    def finish(self) -> list[Received]:
        """The messages of the last poll are consumed; returns them."""
        polled, self._polled = self._polled, []
        for reader, in_flight, messages in polled:
            reader.consumed(in_flight, messages)
        return [message for _, _, messages in polled for message in messages]

    def first_waiting(self, reader: QueueReader) -> int | None:
        """The offset of the queue's first message that was pulled and not polled."""
        buffer = self._buffers.get(reader)
        if buffer is None or not buffer.messages or not reader.is_current(buffer.in_flight):
            return None
        return buffer.messages[0].queue_offset
