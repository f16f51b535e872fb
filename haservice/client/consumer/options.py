"""The options of a consumer; the defaults are those of RocketMQ's consumers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from haservice.client.consumer.queues.allocation import Allocate, averagely
from haservice.client.consumer.queues.in_flight import QueueLimits
from haservice.client.consumer.queues.offsets import ConsumeFrom

DEFAULT_LIMITS = QueueLimits()


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """`broadcasting`         every member gets every message; offsets are in a file, nothing comes again
    `consume_from`         where a group begins in a queue for which it has no offset
    `allocate`             how members share queues; the group's Java members have to do the same
    `pull_batch`           the most messages of one pull; brokers have limits of their own (32)
    `suspend_s`            how long a broker may hold a pull without messages
    `limits`               how much may wait of one queue
    `offsets_directory`    for broadcasting consumers; None: ~/.rocketmq_offsets

    Push consumers:

    `orderly`              the messages of a queue one after the other, in order
    `consume_threads`      calls of the callback at a time, of plain and of coroutine functions alike
    `batch_max`            messages of one call of `on_messages`
    `max_reconsume_times`  tries before a message is a dead letter; None, and Java's -1: 16, no limit if orderly
    `consume_timeout_s`    a call that takes longer counts as failed
    `suspend_queue_s`      orderly: how long a queue waits after a message was not consumed
    `close_timeout_s`      how long `close` waits for running calls

    Pull consumers:

    `auto_commit`          `poll` now and then stores how far the application has come, and so does `close`
    """

    broadcasting: bool = False
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    allocate: Allocate = averagely
    pull_batch: int = 32
    suspend_s: float = 15.0
    limits: QueueLimits = DEFAULT_LIMITS
    offsets_directory: Path | None = None
    orderly: bool = False
    consume_threads: int = 20
    batch_max: int = 1
    max_reconsume_times: int | None = None
    consume_timeout_s: float = 15 * 60.0
    suspend_queue_s: float = 1.0
    close_timeout_s: float = 10.0
    auto_commit: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError, and TypeError."""
        if not isinstance(self.consume_from, ConsumeFrom):
            raise TypeError(
                f"consume_from={self.consume_from!r} is no ConsumeFrom: give one such as ConsumeFrom.FIRST"
            )
        for name in ("pull_batch", "consume_threads", "batch_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")
        for name in ("consume_timeout_s", "suspend_queue_s", "suspend_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: more than 0")
        times = self.max_reconsume_times
        if times is not None and times < -1:
            raise ValueError(f"max_reconsume_times={times}: at least 0, or -1 for RocketMQ's default")

    @property
    def reconsume_times_bound(self) -> int | None:
        """`max_reconsume_times`; None: RocketMQ's default."""
        return None if self.max_reconsume_times == -1 else self.max_reconsume_times


DEFAULT_OPTIONS = ConsumerOptions()
