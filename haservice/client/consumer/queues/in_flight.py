"""Which messages of one queue are pulled and not consumed yet, and so which offset may be committed.  Pure.

        consumed     in flight: m a message, . consumed or filtered
    ───────────────┬─────────────────────┬────────────────▶ queue offset
                   m . m m . . m . m . . │
                   ▲                     ▲
             committable              pulled_to

The lowest message that is not consumed holds the offset back: after a crash everything from there on comes
again.  The limits are those of RocketMQ's push consumer; while one is reached, nothing more is pulled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class PulledMessage(Protocol):
    """What InFlight needs of a message."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def store_bytes(self) -> int: ...


M = TypeVar("M", bound=PulledMessage)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of one queue: pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan.

    Memory may hold one pull more than the limits say: nobody knows beforehand what it brings.
    """

    messages_max: int = 1000
    bytes_max: int = 100 * 1024 * 1024
    span_max: int | None = 2000  # None: orderly, where no message overtakes another


class InFlight(Generic[M]):
    """The messages of one queue in flight.  Owned by one thread, or one loop."""

    def __init__(self, start: int, limits: QueueLimits) -> None:
        """`start` is the offset of the first pull."""
        self.pulled_to = start
        self.bytes = 0
        self._limits = limits
        # By queue offset, which grows; unlike a dict's, its first item is found at once after many removals.
        self._messages: OrderedDict[int, M] = OrderedDict()

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message: M) -> bool:
        return message.queue_offset in self._messages

    def add(self, messages: Iterable[M], next_offset: int) -> list[M]:
        """Adds the answer to a pull, which goes on at `next_offset`; returns the messages that are new.

        A broker may give an offset again (a slave asked instead of the master): each message is taken once,
        in the order of offsets.
        """
        new = []
        for message in messages:
            if message.queue_offset < self.pulled_to:
                continue
            self._messages[message.queue_offset] = message
            self.bytes += message.store_bytes
            self.pulled_to = message.queue_offset + 1
            new.append(message)
        self.pulled_to = max(self.pulled_to, next_offset)
        return new

    def remove(self, messages: Iterable[M]) -> None:
        """These messages are consumed, or sent back.  Ignores those that are not in flight (any more)."""
        for message in messages:
            if self._messages.pop(message.queue_offset, None) is not None:
                self.bytes -= message.store_bytes

    @property
    def committable(self) -> int:
        """Everything before this offset is consumed."""
        return self.lowest if self._messages else self.pulled_to

    @property
    def lowest(self) -> int:
        """The offset of the first message in flight; -1 if there is none."""
        return next(iter(self._messages), -1)

    @property
    def highest(self) -> int:
        return next(reversed(self._messages), -1)

    @property
    def full(self) -> str:
        """Which limit keeps the next pull back, in words; empty if none does."""
        limits = self._limits
        count = len(self._messages)
        if count >= limits.messages_max:
            return f"{count} messages wait, at most {limits.messages_max} may"
        if self.bytes >= limits.bytes_max:
            return f"{self.bytes} bytes wait, at most {limits.bytes_max} may"
        if limits.span_max is not None and count and self.highest - self.lowest > limits.span_max:
            return f"offset {self.lowest} is not consumed and {self.highest} is pulled: {limits.span_max} apart at most"
        return ""
