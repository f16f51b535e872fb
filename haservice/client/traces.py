"""TraceWriter: what happened to a message, written for `mqadmin queryMsgTraceById` and RocketMQ's dashboard.

A trace message goes to `trace_topic`.  Its keys are the ids of the messages it tells of.  Its body is entries
that end with U+0002, of fields separated by U+0001, as RocketMQ's TraceDataEncoder makes them:

    Pub    time region group topic msgId tags keys storeHost bodyLength cost msgType offsetMsgId success clientHost

Traces never hold an application up: they go out a little later, many in one message.  Traces that cannot be
sent, or come faster than they can be sent, are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from haservice.client.message import Message
from haservice.client.sends import Delivery, ProducerLimits, Turns, prepared
from haservice.client.session import Session
from haservice.errors import HAServiceError
from haservice.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

GROUP = "_INNER_TRACE_PRODUCER"
REGION = "DefaultRegion"
ENTRY_END = "\x02"
FIELD_END = "\x01"
NORMAL_MESSAGE, HALF_MESSAGE, DELAYED_MESSAGE = "0", "1", "3"

FLUSH_S = 0.5
ENTRIES_MAX = 100
BODY_CHARS_MAX = 100_000
WAITING_MAX = 2048
SEND_TIMEOUT_S = 3.0


class Pub(NamedTuple):
    """A finished send; `started_ms` is since 1970."""

    started_ms: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    kind: str
    offset_msg_id: str
    success: bool
    client_host: str

    def encode(self) -> str:
        texts = [str(field).lower() if isinstance(field, bool) else str(field) for field in self]
        return FIELD_END.join(["Pub", *texts]) + ENTRY_END


class TraceWriter:
    """Gathers entries and sends them.  On the session's loop; close it before the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._topic = session.options.trace_topic
        self._turns = Turns(session)
        self._limits = ProducerLimits(retries=0)
        self._waiting: deque[tuple[str, Sequence[str]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()

    def note(self, entry: str, keys: Sequence[str]) -> None:
        """Adds an entry; it is found by `keys`."""
        if len(self._waiting) >= WAITING_MAX:
            if self._throttle.ready("full"):
                logger.warning("traces are dropped: more than %d wait", WAITING_MAX)
            return
        self._waiting.append((entry, keys))
        if self._task is None or self._task.done():
            self._task = self._session.spawn(self._later())

    async def close(self) -> None:
        """Sends waiting entries, for a while."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._flush()

    async def _later(self) -> None:
        await asyncio.sleep(FLUSH_S)
        await self._flush()

    async def _flush(self) -> None:
        while self._waiting:
            entries: list[str] = []
            keys: list[str] = []
            size = 0
            while self._waiting and len(entries) < ENTRIES_MAX and size < BODY_CHARS_MAX:
                entry, its_keys = self._waiting.popleft()
                entries.append(entry)
                keys += its_keys
                size += len(entry)
            try:
                message = Message(self._topic, "".join(entries).encode(), keys=list(dict.fromkeys(keys)))
                sent = prepared(message, self._session.new_key(), self._limits)
                delivery = Delivery(self._session, self._turns, GROUP, sent, self._limits, SEND_TIMEOUT_S)
                await delivery.run(None, None)
            except HAServiceError as error:
                if self._throttle.ready("send"):
                    logger.warning("traces not sent: %s", error)
