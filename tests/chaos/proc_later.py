"""Clients whose messages come later, or never: delayed ones, and those of transactions.

    delayed        OK ── its delay ──▶ comes, once or more, and not before
    transaction    half, OK ─┬─ commit told, or answered when asked ──▶ comes
                             └─ rollback told, or answered when asked ──▶ never comes

What a message's transaction decides is settled before it is sent; whether its producer says so at once,
later, or has to be asked (39), is not.  A producer that is asked says "unknown" the first time, at times.  A
send that was not answered OK may come if its decision is commit, and must not if it is rollback.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import NamedTuple

from commitlog.kernel.records import decode, decode_properties, parse_message_id
from haservice.client.admin import PULL_WITH_SUBSCRIPTION
from haservice.client.raw_sends import STATUS_BY_CODE, RawMessage, send_command
from haservice.errors import ProtocolError, RemotingError
from haservice.remoting.bodies.clients import HeartbeatData, ProducerData
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.dispatch import Dispatch
from haservice.remoting.headers.clients import (
    PullMessageHeader,
    PullMessageResponseHeader,
    SendMessageResponseHeader,
)
from haservice.remoting.headers.transactions import CheckTransactionStateHeader, EndTransactionHeader
from tests.chaos.history import Delivered, Owed
from tests.chaos.proc_clients import History, Route
from tests.chaos.proc_cluster import QUEUES, Cluster

DELAYED, TRANSACTIONS = "ChaosDelayed", "ChaosTransactions"
DELAYS_S = (1.0, 2.0, 3.0)
SETTINGS = {
    "messageDelayLevel": " ".join(f"{seconds:.0f}s" for seconds in DELAYS_S),
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "1000",
}
GROUP = "TOOLS_PRODUCER"  # who send_command says that it is
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
_HALF = 4  # sysFlag: TRANSACTION_PREPARED_TYPE
SEND_S, PULL_S, ASK_S = 3.0, 2.0, 1.0
PAUSE_S = 0.02
HEARTBEAT_S = 0.5
# Store times are whole ms.
GRAIN_S = 0.005
# Nothing is appended for so long once the last transaction has ended: more than a round of questions.
QUIET_S = 1.6
PRODUCERS = 3


class _Later:
    """What both have: producers, and a consumer of the topic."""

    def __init__(self, cluster: Cluster, history: History, rng: random.Random, topic: str) -> None:
        self._cluster = cluster
        self._history = history
        self._rng = rng
        self._topic = topic
        self._route = Route(cluster)
        self._client = RemotingClient(connect_timeout_s=1.0)
        self._prefix = f"{topic}-{rng.randrange(1 << 40):x}"
        self._count = 0
        self._sending = True
        self._tasks: list[asyncio.Task[None]] = []
        self._producing: list[asyncio.Task[None]] = []
        self._owed: set[str] = set()
        self._delivered: set[str] = set()
        self._quiet: tuple[int, float] = (-1, 0.0)

    async def start(self) -> None:
        await self._route.refresh()
        self._producing = [asyncio.create_task(self._produce()) for _ in range(PRODUCERS)]
        self._tasks = [asyncio.create_task(self._consume(queue)) for queue in range(QUEUES)]

    async def stop_producing(self) -> None:
        self._sending = False
        await asyncio.gather(*self._producing)

    async def settled(self) -> bool:
        """All that is owed has come, and no broker writes any more."""
        said = await self._cluster.lineages()
        end = max((body.log_end for body in said.values() if body is not None), default=-1)
        if end != self._quiet[0]:
            self._quiet = (end, time.monotonic())
        return self._owed <= self._delivered and time.monotonic() - self._quiet[1] >= QUIET_S

    async def stop(self) -> None:
        await self.stop_producing()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    def _next(self) -> tuple[str, int]:
        """A key, and its queue."""
        self._count += 1
        return f"{self._prefix}-{self._count}", self._count % QUEUES

    def _owe(self, key: str, deliver: bool | None, why: str, due_s: float = 0.0) -> None:
        self._history.add(Owed(self._history.now_s, key, self._topic, deliver, due_s, why))
        if deliver:
            self._owed.add(key)

    async def _send(self, queue: int, message: RawMessage) -> tuple[str, RemotingCommand, bool] | None:
        """Where it was stored, the answer, and whether that is OK; None where nobody says so."""
        addr = self._route.master
        if addr is None:
            await self._route.refresh()
            return None
        try:
            answer = await self._client.invoke(addr, send_command(self._topic, queue, message), SEND_S)
        except RemotingError:
            answer = None
        if answer is None or answer.code not in STATUS_BY_CODE:
            await self._route.refresh()
            return None
        return addr, answer, answer.code == 0

    async def _produce(self) -> None:
        while self._sending:
            await self._one()
            await asyncio.sleep(PAUSE_S)

    async def _one(self) -> None:
        raise NotImplementedError

    # -- consuming -----------------------------------------------------------------------------------

    async def _consume(self, queue: int) -> None:
        """From the first offset of every master anew: what an earlier one showed may stand elsewhere now."""
        position, master = 0, ""
        while True:
            addr = self._route.master
            if addr is None or addr != master:
                position, master = 0, addr or ""
            moved = position
            with contextlib.suppress(RemotingError, ProtocolError):
                moved = await self._pull(addr, queue, position) if addr is not None else position
            if moved == position:
                await asyncio.sleep(PAUSE_S)
                await self._route.refresh()
            position = moved

    async def _pull(self, addr: str, queue: int, position: int) -> int:
        header = PullMessageHeader(
            consumer_group="CHAOS_LATER",
            topic=self._topic,
            queue_id=queue,
            queue_offset=position,
            max_msg_nums=256,
            sys_flag=PULL_WITH_SUBSCRIPTION,
            subscription="*",
            expression_type="TAG",
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())
        answer = await self._client.invoke(addr, command, PULL_S)
        if answer.code == 0:
            self._take(addr, bytes(answer.body))
        if answer.code not in (0, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY):
            return position
        return PullMessageResponseHeader.decode(answer.ext).next_begin_offset

    def _take(self, addr: str, data: bytes) -> None:
        node = self._cluster.node_at(addr)
        position, now_s = 0, self._history.now_s
        while position < len(data):
            message = decode(data, position)
            position += message.size
            key = decode_properties(message.properties).get("KEYS", "")
            if key.startswith(self._prefix) and key not in self._delivered:
                self._delivered.add(key)
                name = addr if node is None else node.name
                self._history.add(Delivered(now_s, key, self._topic, name))


class DelayedClients(_Later):
    """Of all levels that SETTINGS has."""

    def __init__(self, cluster: Cluster, history: History, rng: random.Random) -> None:
        super().__init__(cluster, history, rng, DELAYED)

    async def _one(self) -> None:
        key, queue = self._next()
        level = self._rng.randint(1, len(DELAYS_S))
        due_s = self._history.now_s + DELAYS_S[level - 1] - GRAIN_S
        sent = await self._send(queue, RawMessage(key.encode(), {"KEYS": key, "DELAY": str(level)}))
        ok = sent is not None and sent[2]
        self._owe(key, True if ok else None, f"delayed by level {level}, {'OK' if ok else 'no OK'}", due_s)


class Half(NamedTuple):
    """Where a half message is, and how its transaction ends."""

    decision: int
    evasive: bool
    """Whether the first question is answered with "unknown"."""


class TransactionClients(_Later):
    """Producers of one group; whoever of them is asked, knows."""

    def __init__(self, cluster: Cluster, history: History, rng: random.Random) -> None:
        super().__init__(cluster, history, rng, TRANSACTIONS)
        self._halves: dict[str, Half] = {}
        self._asked: set[str] = set()
        self._answers: set[asyncio.Task[None]] = set()
        self._client = _AskedClient(self._heed)

    async def start(self) -> None:
        await super().start()
        self._tasks.append(asyncio.create_task(self._beat()))

    async def stop(self) -> None:
        await super().stop()
        await asyncio.gather(*self._answers, return_exceptions=True)

    async def _one(self) -> None:
        key, queue = self._next()
        rng = self._rng
        half = Half(rng.choice([COMMIT, COMMIT, ROLLBACK]), rng.random() < 0.5)
        tells = rng.random() < 0.6
        self._halves[key] = half
        word = "commit" if half.decision == COMMIT else "rollback"
        why = f"{word}, {'told' if tells else 'to be asked'}"
        self._owe(key, None if half.decision == COMMIT else False, f"{why}, not answered")
        properties = {"KEYS": key, "TRAN_MSG": "true", "PGROUP": GROUP}
        sent = await self._send(queue, RawMessage(key.encode(), properties, sys_flag=_HALF))
        if sent is None:
            return
        addr, answer, ok = sent
        if ok:
            self._owe(key, half.decision == COMMIT, f"{why}, OK")
        if tells:
            await asyncio.sleep(rng.choice([0, 0, 0.3]))
            stored = SendMessageResponseHeader.decode(answer.ext)
            offset = parse_message_id(stored.msg_id)[2]
            await self._tell(addr, stored.queue_offset, offset, half.decision)

    async def _tell(
        self, addr: str, queue_offset: int, offset: int, decision: int, asked: bool = False
    ) -> None:
        """As a stock producer, which waits for no answer."""
        header = EndTransactionHeader(GROUP, queue_offset, offset, decision, asked)
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, header.encode(), oneway=True)
        with contextlib.suppress(RemotingError):
            await self._client.oneway(addr, command)

    def _heed(self, connection: Connection, command: RemotingCommand) -> None:
        """A broker's question."""
        header, message = CheckTransactionStateHeader.decode(command.ext), decode(command.body)
        key = decode_properties(message.properties).get("KEYS", "")
        half = self._halves.get(key)
        if half is None:  # of an earlier round, whose producers are gone
            decision = ROLLBACK
        elif half.evasive and key not in self._asked:
            self._asked.add(key)
            decision = UNKNOWN
        else:
            decision = half.decision
        telling = asyncio.create_task(
            self._tell(
                connection.peer, header.tran_state_table_offset, header.commit_log_offset, decision, True
            )
        )
        self._answers.add(telling)
        telling.add_done_callback(self._answers.discard)

    async def _beat(self) -> None:
        """Every broker knows the group, so that whoever becomes the master can ask it."""
        body = HeartbeatData(f"chaos@{self._prefix}", [ProducerData(GROUP)]).encode()
        while True:
            for addr in list(self._route.addrs.values()):
                with contextlib.suppress(RemotingError):
                    command = RemotingCommand.request(RequestCode.HEART_BEAT, {}, body)
                    await self._client.invoke(addr, command, ASK_S)
            await asyncio.sleep(HEARTBEAT_S)


class _AskedClient(RemotingClient):
    """One that heeds a broker's questions."""

    def __init__(self, heed: object) -> None:
        super().__init__(connect_timeout_s=1.0)
        self._dispatch = Dispatch({RequestCode.CHECK_TRANSACTION_STATE: heed})  # type: ignore[dict-item]
