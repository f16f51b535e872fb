"""Events about consumers that were moved to another offset, as messages of topic OFFSET_MOVED_EVENT.

A master writes one when it corrects a consumer's offset, as RocketMQ's PullMessageProcessor does: tag and key are
the group, the body names the queue and both offsets.  For a client that keeps asking for the same
wrong offset, it writes one event every few seconds; RocketMQ writes one per request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from commitlog.errors import CommitLogError
from commitlog.kernel.records import NewMessage, encode_properties
from commitlog.log.log import wall_clock_ms
from haservice.broker.topics.table import OFFSET_MOVED_TOPIC
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.fastjson import dumps

logger = logging.getLogger(__name__)

REPEAT_AFTER_S = 10.0
# So many queues and groups are remembered as told; one more, and all are forgotten.
TOLD_MAX = 10_000


class OffsetMoved(NamedTuple):
    """A consumer was moved from an offset that its queue does not have to one that it has."""

    group: str
    topic: str
    queue_id: int
    requested: int
    corrected: int


class OffsetMovedEvents:
    """Appends an event to the log through `append`; on the loop's thread, without waiting."""

    def __init__(
        self,
        append: Callable[[NewMessage], object],
        broker_name: str,
        host: bytes,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._append = append
        self._broker_name = broker_name
        self._host = host
        self._clock_ms = clock_ms
        self._throttle = LogThrottle(REPEAT_AFTER_S, causes_max=TOLD_MAX, clock_s=clock_s)

    def __call__(self, moved: OffsetMoved) -> None:
        if not self._throttle.ready(moved[:3]):
            return
        try:
            self._append(self._message(moved))
        except CommitLogError as error:
            logger.warning("event not written group=%s topic=%s reason=%s", moved.group, moved.topic, error)

    def _message(self, moved: OffsetMoved) -> NewMessage:
        queue = MessageQueue(topic=moved.topic, broker_name=self._broker_name, queue_id=moved.queue_id)
        body = {
            "consumerGroup": moved.group,
            "messageQueue": queue.tree(),
            "offsetNew": moved.corrected,
            "offsetRequest": moved.requested,
        }
        return NewMessage(
            OFFSET_MOVED_TOPIC,
            0,
            dumps(body),
            encode_properties({"KEYS": moved.group, "TAGS": moved.group}),
            born_timestamp_ms=self._clock_ms(),
            born_host=self._host,
        )
