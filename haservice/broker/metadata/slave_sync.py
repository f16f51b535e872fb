"""SlaveSync: a slave's copies of what its master keeps beside the log.

All are fetched as soon as a master is known and every 10 s from then on, each step on its own, and at
once when messages of a topic arrive that is not known here: should the master die now, they are to be read.

    21  GET_ALL_TOPIC_CONFIG                taken whole, with its version, when the version differs from ours
    43  GET_ALL_CONSUMER_OFFSET             merged, the newest wins: see `offset_merge`
    45  GET_ALL_DELAY_OFFSET                taken whole: delayed messages are delivered by masters only
    201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG    as topics

RocketMQ overwrites in the second step, so that after an outage the master's older offsets win and
messages are consumed twice.  RocketMQ asks for 21 at the master's VIP port (listenPort - 2); the main port
serves it as well, on stock masters too, so we ask there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from commitlog.dispatch.dispatcher import Arrival
from haservice.broker.groups.subscription_groups import Groups
from haservice.broker.metadata.topics import TopicTable
from haservice.errors import AnswerError, RemotingError
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import (
    ConsumerOffsetWrapper,
    DelayOffsetWrapper,
    SubscriptionGroupWrapper,
    TopicConfigWrapper,
)
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import Body, RemotingCommand
from haservice.remoting.connection import Connection

logger = logging.getLogger(__name__)

PERIOD_S = 10.0
# After a failure the master may be back any moment; a refused connection costs nothing.
RETRY_S = 2.0
# What a master with access control leaves to be done.
ACL_HINT = " (set aclCredentialsFile here, or white-list this broker's address in the master's plain_acl.yml)"
TIMEOUT_S = 3.0
# A master with half a million of them takes a second to write them down.
OFFSETS_TIMEOUT_S = 15.0
# Topics whose arrival has woken us; what a master itself does not know does so once.
STRANGERS_MAX = 1000


class OffsetTable(Protocol):
    """The consumer offsets, as far as they are copied."""

    def merge(self, body: ConsumerOffsetWrapper, /, *, continued: bool) -> object: ...


class DelayTable(Protocol):
    """How far each delay level has been delivered, as far as it is copied."""

    def replace(self, body: DelayOffsetWrapper, /) -> object: ...


class SlaveSync:
    """Task on the loop of the broker's client."""

    def __init__(
        self,
        own_addr: str,
        topics: TopicTable,
        offsets: OffsetTable,
        groups: Groups,
        *,
        delays: DelayTable,
        on_synced: Callable[[], None] = lambda: None,
        retry_s: float = RETRY_S,
    ) -> None:
        """`on_synced` is called after a pass that copied something, so that files get written."""
        self._own_addr = own_addr
        self._topics = topics
        self._offsets = offsets
        self._delays = delays
        self._groups = groups
        self._on_synced = on_synced
        self._retry_s = retry_s
        self._master_addr: str | None = None
        self._asking: str | None = None  # of the task: the address of its present or last pass
        # Of the task: the connection that the offsets came over last.  The same one leads to the same
        # run of the master; one that returns is on another.
        self._looked_over: Connection | None = None
        self._throttle = LogThrottle()
        # What the master or its answers have against it; "" since all was copied.
        self.refused = ""
        self._strangers: set[str] = set()  # of the dispatcher's thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._client: RemotingClient | None = None  # from the start of the task on

    # For other threads

    @property
    def master_addr(self) -> str | None:
        """Where it copies from."""
        return self._master_addr

    def copy_now(self, seconds: float) -> bool:
        """One more pass, for a slave that is to be the master; False if not all was copied in time."""
        loop, client, addr = self._loop, self._client, self._master_addr
        if loop is None or client is None or addr is None:
            return False
        try:
            copying = asyncio.run_coroutine_threadsafe(self.sync_once(client, addr), loop)
        except RuntimeError:  # the loop has ended
            return False
        try:
            return copying.result(seconds)
        except (TimeoutError, concurrent.futures.CancelledError):
            copying.cancel()
            return False

    def set_master_addr(self, addr: str | None) -> None:
        """Where to copy from; None, which a name server says while there is no master, pauses."""
        if addr == self._own_addr:
            addr = None
        if addr == self._master_addr:
            return
        self._master_addr = addr
        logger.info("metadata source changed master=%s", addr)
        self._post(self._notice_addr)

    def wake(self) -> None:
        self._post(self._notice)

    def _post(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.debug("metadata sync has ended already")

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """The dispatcher tells what has come; a topic that is new here is fetched now, not in 10 s."""
        strangers = {topic for topic, *_ in arrivals if self._topics.get(topic) is None} - self._strangers
        if strangers:
            if len(self._strangers) > STRANGERS_MAX:
                self._strangers.clear()
            self._strangers |= strangers
            self.wake()

    # On the loop

    def _notice(self) -> None:
        assert self._woken is not None
        self._woken.set()

    def _notice_addr(self) -> None:
        """The task may have seen the new address by itself, and one pass for it is enough."""
        if self._asking != self._master_addr:
            self._notice()

    async def run(self, client: RemotingClient) -> None:
        """Until it is cancelled."""
        self._woken = asyncio.Event()
        self._client, self._loop = client, asyncio.get_running_loop()
        while True:
            self._woken.clear()
            addr = self._asking = self._master_addr
            copied = addr is None or await self._interruptible(client, addr)
            if addr != self._master_addr:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S if copied else self._retry_s):
                    await self._woken.wait()

    async def _interruptible(self, client: RemotingClient, addr: str) -> bool:
        """One pass, given up when the task is told to look elsewhere.

        Woken for another reason, it ends this pass first, and then begins the next one at once.
        """
        assert self._woken is not None
        once_more = False
        work = asyncio.ensure_future(self.sync_once(client, addr))
        try:
            while not work.done():
                woken = asyncio.ensure_future(self._woken.wait())
                try:
                    await asyncio.wait([work, woken], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    woken.cancel()
                if not work.done() and addr != self._master_addr:
                    return False
                once_more = once_more or self._woken.is_set()
                self._woken.clear()
            return work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if once_more:
                self._woken.set()

    async def sync_once(self, client: RemotingClient, addr: str) -> bool:
        """All steps; a failed one does not keep the others from being tried.  True if all succeeded."""
        good = True
        for step in (self._sync_topics, self._sync_offsets, self._sync_delays, self._sync_groups):
            try:
                await step(client, addr)
            except (RemotingError, ValueError) as error:
                good = False
                self._warn(addr, error)
        self._on_synced()
        if good:
            self.refused = ""
            self._throttle.ended()
        return good

    async def _sync_topics(self, client: RemotingClient, addr: str) -> None:
        body = await _fetch(client, addr, RequestCode.GET_ALL_TOPIC_CONFIG)
        self._topics.replace_all(TopicConfigWrapper.decode(body))

    async def _sync_offsets(self, client: RemotingClient, addr: str) -> None:
        before, self._looked_over = self._looked_over, None
        body = await _fetch(client, addr, RequestCode.GET_ALL_CONSUMER_OFFSET, OFFSETS_TIMEOUT_S)
        now = client.connection(addr)
        # Half a million offsets take half a second, and others use the loop.
        await asyncio.to_thread(
            lambda: self._offsets.merge(
                ConsumerOffsetWrapper.decode(body), continued=before is not None and now is before
            )
        )
        self._looked_over = now

    async def _sync_delays(self, client: RemotingClient, addr: str) -> None:
        body = await _fetch(client, addr, RequestCode.GET_ALL_DELAY_OFFSET)
        self._delays.replace(DelayOffsetWrapper.decode(body))

    async def _sync_groups(self, client: RemotingClient, addr: str) -> None:
        body = await _fetch(client, addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        self._groups.replace_all(SubscriptionGroupWrapper.decode(body))

    def _warn(self, addr: str, error: Exception) -> None:
        hint = ACL_HINT if isinstance(error, AnswerError) and "AclException" in str(error) else ""
        if isinstance(error, AnswerError | ValueError):
            self.refused = f"{error}{hint}"
        if self._throttle.ready():
            logger.warning("metadata not copied master=%s reason=%s%s; trying on", addr, error, hint)


async def _fetch(client: RemotingClient, addr: str, code: RequestCode, timeout_s: float = TIMEOUT_S) -> Body:
    return expect(addr, await client.invoke(addr, RemotingCommand.request(code), timeout_s)).body
