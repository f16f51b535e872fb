"""Clients of a cluster that write down what they ask and are told: producers, and a consumer of each queue.

A producer does as RocketMQ's does with a synchronous send: three tries in all within the time that one may
take, another route after a failure, no second try after a status such as FLUSH_SLAVE_TIMEOUT.  It asks
for the route after each failure, where RocketMQ's asks every 30 s.

Times are seconds since the History began; offsets of log and queues count from where the round began.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import Callable, Iterable

from commitlog.kernel.records import decode, decode_properties, parse_message_id
from haservice.client.admin import PULL_WITH_SUBSCRIPTION
from haservice.client.raw_sends import STATUS_BY_CODE, RawMessage, send_command
from haservice.errors import ProtocolError, RemotingError
from haservice.remoting.bodies.clients import MASTER_ID, ClusterInfo
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import (
    PullMessageHeader,
    PullMessageResponseHeader,
    SendMessageResponseHeader,
)
from tests.chaos.history import OK, REFUSED, UNKNOWN, Answered, Consumed, Event, Invoked, Served, Voided
from tests.chaos.proc_cluster import BROKER, QUEUES, TOPIC, Cluster

SEND_TRIES = 3
SEND_S = 3.0
PULL_S = 2.0
# After another status than OK; a master without a slave would fill the log with such messages.
REFUSED_S = 0.02
# Between two sends, so that a round is about faults and not about load.
PACE_S = 0.01
BODY_BYTES = (40, 700)
GROUP = "CHAOS_CONSUMER"
READER = "reader"
READ_S = 20.0
# A client that has just come, or whose nameserver is another one, may know of another master.
RESTLESS_S = 0.3
_RETRIED = {
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.NO_PERMISSION,
}


class Base:
    """Where a round begins: in the log, and in each queue."""

    def __init__(self, offset: int = 0, queues: tuple[int, ...] = (0,) * QUEUES) -> None:
        self.offset = offset
        self.queues = queues


class History:
    """The events of one round, on one clock."""

    def __init__(self, cluster: Cluster, base: Base) -> None:
        self.events: list[Event] = []
        self.base = base
        self.acknowledged = 0
        self.answered = asyncio.Event()
        """Set anew at each OK."""
        self.last_ok_s = -1.0
        self.pulls: set[asyncio.Future[None]] = set()
        """Those on their way."""
        self.refusals: set[str] = set()
        """What brokers said of sends that they refused."""
        self.unflushed: dict[str, int] = {}
        """By broker: from which offset of its log on no flush succeeds."""
        self._cluster = cluster
        self._began_s = time.monotonic()
        # A send that was made again may leave two copies, of which one is proven: so by place, too.
        self._proven: dict[str, tuple[int, int]] = {}
        self._exposed: dict[tuple[int, int, str], Consumed] = {}
        self._shown_at: dict[tuple[int, int], str] = {}
        self._replaced: str | None = None

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def add(self, event: Event) -> None:
        self.events.append(event)

    def held_by(self, name: str, offset: int) -> tuple[str, ...] | None:
        """Who has the record at `offset` of the log, as far as its master can know; None: nobody watched."""
        proxy = self._cluster.proxies.get(name)
        if proxy is None:
            return None
        return (name, "a slave") if proxy.acknowledged > offset else (name,)

    def flushed_by(self, offset: int) -> tuple[str, ...] | None:
        """Who can have it on disk, while a test makes flushes fail; else None: nobody watched."""
        failing = [name for name, end in self.unflushed.items() if offset >= end]
        return tuple(one.name for one in self._cluster.nodes if one.name not in failing) if failing else None

    def ok(self, key: str, queue: int, queue_offset: int) -> None:
        self.acknowledged += 1
        self.last_ok_s = self.now_s
        self._proven[key] = (queue, queue_offset)
        self._exposed.pop((queue, queue_offset, key), None)
        self.answered.set()

    def consumed(self, event: Consumed, offset: int) -> None:
        """What a consumer was shown while no slave had it, may go with the master that showed it."""
        self.placed(event.queue, event.queue_offset, event.key)
        self.add(event)
        place = (event.queue, event.queue_offset)
        if self._proven.get(event.key) == place or len(self.held_by(event.node, offset) or ("",)) > 1:
            return
        self._exposed[*place, event.key] = event
        self._shown_at[place] = event.key
        if self._replaced is not None and event.node != self._replaced:
            self.void("served by a master that was replaced")

    def placed(self, queue: int, queue_offset: int, key: str) -> None:
        """After a failover another record may stand where one was that only the loser had."""
        other = self._shown_at.get((queue, queue_offset), key)
        if other == key or self._replaced is None:
            return
        shown = self._exposed.pop((queue, queue_offset, other), None)
        if shown is not None:
            where = ((shown.topic, queue, queue_offset),)
            self.add(Voided(self.now_s, self._unproven([other]), "had by the loser of two masters", where))

    async def pulls_over(self) -> None:
        """Returns when each pull of this moment has its answer, or was given up."""
        if self.pulls:
            await asyncio.wait(set(self.pulls), timeout=2 * PULL_S)

    def replaced_by(self, name: str) -> str | None:
        """A failover: what only the old master had, was never acknowledged, and may be gone.

        Gives the master that replaced another one before, for goes_on_with() if this one does not.
        """
        before, self._replaced = self._replaced, name
        self.void("failover")
        return before

    def goes_on_with(self, name: str | None) -> None:
        self._replaced = name

    def void(self, why: str) -> None:
        if self._exposed:
            places = tuple((one.topic, one.queue, one.queue_offset) for one in self._exposed.values())
            keys = self._unproven(key for _, _, key in self._exposed)
            self.add(Voided(self.now_s, keys, why, places))
            self._exposed.clear()

    def _unproven(self, keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(key for key in keys if key not in self._proven)


class Route:
    """Where the brokers are, as one nameserver has it; another one is asked when it does not answer."""

    def __init__(self, cluster: Cluster, first: int = 0) -> None:
        self.addrs: dict[int, str] = {}
        self._asked = first
        self._cluster = cluster
        self._asking: asyncio.Task[None] | None = None

    @property
    def master(self) -> str | None:
        return self.addrs.get(MASTER_ID)

    @property
    def any(self) -> str | None:
        return self.addrs[min(self.addrs)] if self.addrs else None

    async def refresh(self) -> None:
        """All who ask at once share one question."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        namesrvs = self._cluster.namesrvs
        try:
            info = await self._cluster.ask(
                namesrvs[self._asked % len(namesrvs)].addr,
                RequestCode.GET_BROKER_CLUSTER_INFO,
                ClusterInfo,
                timeout_s=1.0,
            )
            table = info.broker_addr_table.get(BROKER)
            self.addrs = {} if table is None else dict(table.broker_addrs)
        except (RemotingError, ProtocolError):
            self._asked += 1
        await asyncio.sleep(0.02)


class Traffic:
    """Producers and consumers, from start() to stop()."""

    send_s = SEND_S
    """What one send may take, with all its tries."""
    pace_s = PACE_S

    def __init__(
        self, cluster: Cluster, history: History, rng: random.Random, *, producers: int = 4, each: int = 6
    ) -> None:
        """So many producers with a connection of their own, `each` with so many sends at once."""
        self._cluster = cluster
        self._history = history
        self._route = Route(cluster)
        # Where brokers or nameservers may not hear each other, two kinds of clients ask different ones, and
        # the second kind asks again and again while all is well.
        apart = cluster.shape.offices or cluster.shape.nameservers > 1
        self._restless = Route(cluster, 1) if apart else self._route
        self._asking: asyncio.Task[None] | None = None
        self._rng = rng
        self._prefix = f"{rng.randrange(1 << 48):x}"
        self._read: dict[tuple[str, int], list[tuple[int, str]]] = {}
        self._count = 0
        self._sends = 0
        self._sending = True
        self._over = False
        self._clients: list[RemotingClient] = []
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self._shape = (producers, each)

    async def start(self) -> None:
        await self._route.refresh()
        if self._restless is not self._route:
            await self._restless.refresh()
            self._asking = asyncio.create_task(self._ask_again())
        producers, each = self._shape
        for number in range(producers):
            client = RemotingClient(connect_timeout_s=1.0)
            self._clients.append(client)
            route = self._restless if number % 2 else self._route
            for _ in range(each):
                self._producing.append(asyncio.create_task(self._produce(client, f"p{number}", route)))
        for queue in range(QUEUES):
            self._consuming.append(asyncio.create_task(self._consume(queue)))

    async def stop_producing(self) -> None:
        """Returns when every send has its answer, or was given up."""
        self._sending = False
        await asyncio.gather(*self._producing)
        for client in self._clients:
            await client.close()

    async def stop(self) -> None:
        """May be called twice, and after stop_producing()."""
        self._over = True
        if self._asking is not None:
            self._asking.cancel()
        await self.stop_producing()
        await asyncio.gather(*self._consuming)

    async def _ask_again(self) -> None:
        while True:
            await asyncio.sleep(RESTLESS_S)
            await self._restless.refresh()

    # -- producing -----------------------------------------------------------------------------------

    async def _produce(self, client: RemotingClient, name: str, route: Route) -> None:
        while self._sending:
            self._count += 1
            number = self._count
            key = f"{self._prefix}-{number}"
            body = key.encode() + b" " + b"x" * self._rng.randint(*BODY_BYTES)
            await self._send(client, name, route, key, number % QUEUES, body)
            await asyncio.sleep(self.pace_s)

    async def _send(
        self, client: RemotingClient, name: str, route: Route, key: str, queue: int, body: bytes
    ) -> None:
        history, until_s = self._history, time.monotonic() + self.send_s
        crc, message = zlib.crc32(body) & 0x7FFFFFFF, RawMessage(body, {"KEYS": key})
        for _ in range(SEND_TRIES):
            while route.master is None and time.monotonic() < until_s:
                await route.refresh()
            addr, left_s = route.master, until_s - time.monotonic()
            if addr is None or left_s <= 0:
                return
            self._sends += 1
            send = f"{key}/{self._sends}"
            now_s = history.now_s
            history.add(Invoked(now_s, send, key, TOPIC, queue, crc, len(body), name, now_s + left_s))
            if await self._try(client, addr, send, key, send_command(TOPIC, queue, message), left_s):
                return
            await route.refresh()

    async def _try(
        self, client: RemotingClient, addr: str, send: str, key: str, command: RemotingCommand, left_s: float
    ) -> bool:
        """Whether that is the end of it."""
        history = self._history
        node = self._cluster.node_at(addr)
        name = addr if node is None else node.name
        try:
            answer = await client.invoke(addr, command, left_s)
        except RemotingError:
            history.add(Answered(history.now_s, send, UNKNOWN, name))
            return False
        status = STATUS_BY_CODE.get(answer.code)
        if status is None:
            history.add(Answered(history.now_s, send, REFUSED, name))
            history.refusals.add(answer.remark or "")
            return answer.code not in _RETRIED
        stored = SendMessageResponseHeader.decode(answer.ext)
        offset = parse_message_id(stored.msg_id)[2]
        is_ok = answer.code == 0
        if is_ok:
            queue_offset = stored.queue_offset - history.base.queues[stored.queue_id]
            history.placed(stored.queue_id, queue_offset, key)
        history.add(
            Answered(
                history.now_s,
                send,
                OK if is_ok else status,
                name,
                stored.queue_offset - history.base.queues[stored.queue_id],
                offset - history.base.offset,
                history.held_by(name, offset) if is_ok else None,
                history.flushed_by(offset) if is_ok else None,
            )
        )
        if is_ok:
            history.ok(key, stored.queue_id, queue_offset)
        else:
            await asyncio.sleep(REFUSED_S)
        return True

    # -- consuming -----------------------------------------------------------------------------------

    async def _consume(self, queue: int) -> None:
        position = self._history.base.queues[queue]
        while not self._over:
            addr = self._route.master or self._route.any
            try:
                moved = addr is not None and await self.pull(addr, queue, position, "consumer")
            except (RemotingError, ProtocolError):
                await self._route.refresh()
                continue
            if moved is False or moved == position:
                await asyncio.sleep(0.02)
                if addr is None or addr != self._route.master:
                    await self._route.refresh()
            else:
                position = max(int(moved), self._history.base.queues[queue])

    async def pull(self, addr: str, queue: int, position: int, client: str, timeout_s: float = PULL_S) -> int:
        """One pull; where to go on.  Raises RemotingError."""
        header = PullMessageHeader(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=queue,
            queue_offset=position,
            max_msg_nums=256,
            sys_flag=PULL_WITH_SUBSCRIPTION,
            subscription="*",
            expression_type="TAG",
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())
        over = asyncio.get_running_loop().create_future()
        self._history.pulls.add(over)
        try:
            answer = await self._cluster.client.invoke(addr, command, timeout_s)
            if answer.code == 0:
                self._take(addr, queue, bytes(answer.body), client)
        finally:
            self._history.pulls.discard(over)
            over.set_result(None)
        if answer.code not in (0, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY):
            return position
        return PullMessageResponseHeader.decode(answer.ext).next_begin_offset

    def _take(self, addr: str, queue: int, data: bytes, client: str) -> None:
        history, base, position = self._history, self._history.base, 0
        read = self._read.setdefault((addr, queue), []) if client == READER else None
        node = self._cluster.node_at(addr)
        name = addr if node is None else node.name
        while position < len(data):
            message = decode(data, position)
            position += message.size
            key = decode_properties(message.properties).get("KEYS", "")
            at = message.queue_offset - base.queues[queue]
            crc = zlib.crc32(message.body) & 0x7FFFFFFF
            event = Consumed(history.now_s, key, message.topic, queue, at, crc, name, client)
            if read is not None:
                read.append((at, key))
            history.consumed(event, message.physical_offset)

    async def read_all(self, addr: str, ends: Callable[[int], int]) -> None:
        """Everything that a broker serves, from where the round began to `ends(queue)`.

        A broker that mends a queue gets READ_S to serve it.
        """
        history, node = self._history, self._cluster.node_at(addr)
        for queue in range(QUEUES):
            position, until_s = history.base.queues[queue], time.monotonic() + READ_S
            while position < ends(queue) and time.monotonic() < until_s:
                try:
                    moved = await self.pull(addr, queue, position, READER, 5.0)
                except (RemotingError, ProtocolError):
                    moved = position
                if moved <= position:
                    await asyncio.sleep(0.05)
                position = max(moved, position)
            records = tuple(self._read.pop((addr, queue), ()))
            name = addr if node is None else node.name
            history.add(Served(history.now_s, name, TOPIC, queue, records))
