"""Our side of the clients' wire, as a producer and a consumer over haservice.remoting.client.

The project has no push consumer of its own, so this is one: heartbeats to every broker of its topic, pulls
with long polling that commit what was taken before, stored offsets (14, 15), the broker that a pull answer
suggests, and the slave of a master that is gone.  It has its queues for itself: it is alone in its group.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from haservice.client.admin import PULL_WITH_SUBSCRIPTION
from haservice.client.message import decode_all
from haservice.client.raw_sends import RawMessage, SendQueue, send_all
from haservice.errors import HAServiceError
from haservice.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData, TopicRouteData
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import (
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetHeader,
    RouteHeader,
    UpdateConsumerOffsetHeader,
)

COMMIT, SUSPEND = 0x1, 0x2
SUSPEND_MS = 2000
PULL_TIMEOUT_S = 6.0
CALL_TIMEOUT_S = 3.0
HEARTBEAT_S = 1.0
RETRY_S = 0.2
END_S = 10.0


def send(addr: str, topic: str, queues: int, bodies: Iterable[bytes]) -> Counter[str]:
    """Sends to the master at `addr`, over its queues in turn, 32 in flight; how many had which status."""

    async def outgoing() -> AsyncIterator[RawMessage]:
        for body in bodies:
            yield RawMessage(body, {"KEYS": body[:20].decode(), "TAGS": "ours"})

    targets = [SendQueue("", addr, number) for number in range(queues)]
    return asyncio.run(send_all(topic, targets, outgoing(), lambda sent: None, 32)).statuses


class Taken(NamedTuple):
    """One delivery, and the address that served it."""

    queue_id: int
    queue_offset: int
    body: bytes
    addr: str


class OurConsumer:
    """Consumes `topic` from where `group` was, or the first offset, until it is closed."""

    def __init__(self, namesrv: str, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.taken: list[Taken] = []
        self.failures: Counter[str] = Counter()
        self._namesrv = namesrv
        self._addrs: dict[int, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._over = asyncio.Event()
        self._thread.start()

    def __enter__(self) -> OurConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Offsets are stored already; the connections end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(END_S)
            assert not self._thread.is_alive()
        self._loop.close()

    def bodies(self) -> list[bytes]:
        return [one.body for one in list(self.taken)]

    async def _run(self) -> None:
        self._client = RemotingClient()
        beats = asyncio.create_task(self._keep_known())
        consuming: list[asyncio.Task[None]] = []
        try:
            route = await self._route()
            while route is None and not self._over.is_set():
                await asyncio.sleep(RETRY_S)
                route = await self._route()
            if route is not None:
                (data,) = route.queue_datas
                consuming = [asyncio.create_task(self._consume(n)) for n in range(data.read_queue_nums)]
            await self._over.wait()
        finally:
            for task in (beats, *consuming):
                task.cancel()
            await asyncio.gather(beats, *consuming, return_exceptions=True)
            await self._client.close()

    async def _route(self) -> TopicRouteData | None:
        request = RemotingCommand.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(self.topic).encode()
        )
        try:
            answer = await self._call(self._namesrv, request)
        except HAServiceError:
            return None
        route = TopicRouteData.decode(answer.body)
        self._addrs = dict(route.broker_datas[0].broker_addrs)
        return route

    async def _keep_known(self) -> None:
        """Route and heartbeats, once a second."""
        subscription = SubscriptionData(self.topic, "*", "TAG", time.time_ns() // 1_000_000)
        retry = SubscriptionData(f"%RETRY%{self.group}", "*", "TAG", subscription.sub_version)
        consumer = ConsumerData(
            self.group,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[subscription, retry],
        )
        beat = HeartbeatData(f"127.0.0.1@{self.group}", consumer_data_set=[consumer]).encode()
        while True:
            await self._route()
            for addr in list(self._addrs.values()):
                with contextlib.suppress(HAServiceError):
                    await self._call(addr, RemotingCommand.request(RequestCode.HEART_BEAT, {}, beat))
            await asyncio.sleep(HEARTBEAT_S)

    async def _consume(self, queue_id: int) -> None:
        offset: int | None = None
        wanted_id = 0
        while True:
            addr = self._addrs.get(wanted_id) or next(iter(self._addrs.values()), None)
            try:
                if addr is None:
                    raise HAServiceError("no broker")
                if offset is None:
                    offset = await self._stored_offset(addr, queue_id)
                wanted_id, offset = await self._pull(addr, queue_id, offset)
            except HAServiceError as error:
                self.failures[type(error).__name__] += 1
                wanted_id = 0
                await asyncio.sleep(RETRY_S)

    async def _stored_offset(self, addr: str, queue_id: int) -> int:
        header = QueryConsumerOffsetHeader(self.group, self.topic, queue_id)
        request = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
        answer = await self._call(addr, request, ResponseCode.QUERY_NOT_FOUND)
        return OffsetResponseHeader.decode(answer.ext).offset if answer.code == 0 else 0

    async def _pull(self, addr: str, queue_id: int, offset: int) -> tuple[int, int]:
        """Takes what is there, or comes; returns whom to ask next, and for what."""
        header = PullMessageHeader(
            consumer_group=self.group, topic=self.topic, queue_id=queue_id, queue_offset=offset,
            max_msg_nums=32, sys_flag=COMMIT | SUSPEND | PULL_WITH_SUBSCRIPTION, commit_offset=offset,
            suspend_timeout_millis=SUSPEND_MS, subscription="*", expression_type="TAG",
        )  # fmt: skip
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())
        answer = await self._client.invoke(addr, request, PULL_TIMEOUT_S)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return 0, offset
        expect(addr, answer, ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY,
               ResponseCode.PULL_OFFSET_MOVED)  # fmt: skip
        found = PullMessageResponseHeader.decode(answer.ext)
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_all(answer.body):
                self.taken.append(Taken(queue_id, message.queue_offset, bytes(message.body), addr))
            update = UpdateConsumerOffsetHeader(self.group, self.topic, queue_id, found.next_begin_offset)
            await self._call(
                addr, RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, update.encode())
            )
        return found.suggest_which_broker_id, found.next_begin_offset

    async def _call(self, addr: str, request: RemotingCommand, *codes: int) -> RemotingCommand:
        answer = await self._client.invoke(addr, request, CALL_TIMEOUT_S)
        return expect(addr, answer, ResponseCode.SUCCESS, *codes)
