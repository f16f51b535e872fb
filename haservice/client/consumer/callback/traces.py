"""ConsumeTraces: what consuming leaves in the trace topic, for `mqadmin queryMsgTraceById`.

    SubBefore   who got the message, when, for the how-many-th time
    SubAfter    how long it took, and what came of it

As Java's consumers write them, 5 s late at most.  Both are written when the outcome is known.  Traces are no
messages of the application: what cannot be sent, or comes faster than it can be sent, is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress

from haservice.client.consumer.callback.handler import ConsumeTimeout, Outcome, RetryLater
from haservice.client.consumer.subscription import now_ms
from haservice.client.message import Message, Received
from haservice.client.producer import AsyncProducer
from haservice.client.session import Session
from haservice.errors import HAServiceError
from haservice.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
FLUSH_OUTCOMES = 100
WAITING_MAX = 2048
BODY_CHARS_MAX = 100_000
CLOSE_S = 3.0

_PRODUCERS = "_INNER_TRACE_PRODUCER"
_BETWEEN, _END = "\x01", "\x02"
# The ordinals of Java's ConsumeReturnType.
_SUCCESS, _TIME_OUT, _EXCEPTION, _FAILED = 0, 1, 2, 4


def encode(group: str, request_id: str, ended_ms: int, outcome: Outcome[Received]) -> str:
    """The lines of both kinds; empty when no message of the call is to be traced.  Pure."""
    traced = [one for one in outcome.messages if one.properties.get("TRACE_ON") != "false"]
    took_ms = int(outcome.seconds * 1000)
    region = traced[0].properties.get("MSG_REGION", "DefaultRegion") if traced else ""
    before = [
        _BETWEEN.join(
            (
                *("SubBefore", str(ended_ms - took_ms), region, group, request_id),
                *(one.msg_id, str(one.reconsume_times), " ".join(one.keys)),
            )
        )
        for one in traced
    ]
    success = "true" if not outcome.failed else "false"
    after = [
        _BETWEEN.join(
            (
                *("SubAfter", request_id, one.msg_id, str(took_ms // len(outcome.messages)), success),
                *(" ".join(one.keys), str(_code(outcome.error)), str(ended_ms), group),
            )
        )
        for one in traced
    ]
    return "".join(line + _END for line in (*before, *after))


def _code(error: Exception | None) -> int:
    if error is None:
        return _SUCCESS
    if isinstance(error, ConsumeTimeout):
        return _TIME_OUT
    return _FAILED if isinstance(error, RetryLater) else _EXCEPTION


class ConsumeTraces:
    """One consumer's.  On one loop, from `start` to `close`."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._topic = session.options.trace_topic
        self._producer = AsyncProducer(_PRODUCERS, session=session)
        self._waiting: deque[tuple[str, list[str]]] = deque()  # lines, and the ids by which they are found
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = LogThrottle()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._flush()
        await self._producer.close()

    def note(self, outcome: Outcome[Received]) -> None:
        ended_ms = now_ms()
        lines = encode(self._group, self._session.keys.make(ended_ms), ended_ms, outcome)
        if not lines:
            return
        if len(self._waiting) >= WAITING_MAX:
            if self._log.ready("full"):
                logger.warning("traces are dropped, they come faster than they go group=%s", self._group)
            return
        self._waiting.append((lines, [one.msg_id for one in outcome.messages]))
        if len(self._waiting) >= FLUSH_OUTCOMES:
            self._due.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._due.wait()
            self._due.clear()
            await self._flush()

    async def _flush(self) -> None:
        while self._waiting:
            lines: list[str] = []
            keys: list[str] = []
            size = 0
            while self._waiting and len(lines) < FLUSH_OUTCOMES and size < BODY_CHARS_MAX:
                some, ids = self._waiting.popleft()
                lines.append(some)
                keys += ids
                size += len(some)
            try:
                await self._producer.send(Message(self._topic, "".join(lines).encode(), keys=keys))
            except HAServiceError as error:
                if self._log.ready("send"):
                    logger.warning("traces not sent group=%s reason=%s", self._group, error)
