"""Peers: the other brokers of this broker's name, and what they say of their logs.

    106 GET_BROKER_CLUSTER_INFO   at each nameserver: who is there
    40001 GET_LINEAGE             at each of them, and at the replicas that this broker remembers

All at once, and no longer than `PATIENCE_S` together: who does not answer by then counts as unreachable.  A
stock broker does not know the question, and is passed over.

Each time over new connections, on the loop of the broker's client: after lost packets an old connection may
wait seconds for its next try, and a new one does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from haservice.broker.roles.rules import lineage_of
from haservice.deadline import Deadline
from haservice.errors import AnswerError, RemotingError, RemotingTimeout
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import ClusterInfo
from haservice.remoting.client import BlockingClient, RemotingClient, expect
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import LineageBody, ReadLogHeader

logger = logging.getLogger(__name__)

T = TypeVar("T")

ReadLog = Callable[[str, int, int], bytes]
"""(broker address, offset, size) → at most `size` bytes of its log from there.  Raises RemotingError."""

PATIENCE_S = 1.0
# How much of that nameservers may take: meanwhile the remembered brokers are asked.
NAMESRV_PATIENCE_S = 0.5
READ_TIMEOUT_S = 5.0
# More than any broker name has.
PEERS_MAX = 16
# So often it is told that one cannot be reached; each look finds it again.
UNREACHED_AGAIN_S = 600.0


class Heard(NamedTuple):
    """Who answered, and which broker ids of this name belong to others, as the nameservers say.

    `silent` are addresses that took the question and gave no answer in time: brokers that stand still, no dead ones.
    """

    peers: Sequence[LineageBody] = ()
    taken_ids: dict[int, str] = {}  # noqa: RUF012 - never changed
    silent: Sequence[str] = ()


class Peers:
    """Any thread may ask, one at a time or several."""

    def __init__(
        self,
        broker_name: str,
        own_addr: str,
        namesrv_addrs: Sequence[str],
        client: BlockingClient,
        remembered: Callable[[], Iterable[str]],
    ) -> None:
        """`remembered` gives addresses to ask, whatever the nameservers say."""
        self._broker_name = broker_name
        self._own_addr = own_addr
        self._namesrv_addrs = tuple(namesrv_addrs)
        self._client = client
        self._remembered = remembered
        self._throttle = LogThrottle()
        self._unreached = LogThrottle(UNREACHED_AGAIN_S)

    def ask(self, also: Iterable[str] = (), patience_s: float = PATIENCE_S) -> Heard:
        """The answers of all that can be found, and of those at `also`; raises nothing that they cause."""
        return self.use(lambda client: self._ask_all(client, also, Deadline(patience_s)))

    def sources(self) -> list[str]:
        """Addresses of brokers that may have what is damaged here, masters first."""
        peers = self.ask().peers
        return [one.broker_addr for one in sorted(peers, key=lambda one: one.is_master, reverse=True)]

    def ask_one(self, addr: str, timeout_s: float = PATIENCE_S) -> LineageBody:
        """The answer of the broker at `addr`.  Raises RemotingError; ValueError if it is not an answer."""
        return self.use(lambda client: get_lineage(client, addr, timeout_s))

    def call(self, addr: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Sends one request; returns its answer if that is a success.  Raises RemotingError."""
        with self._client.apart() as client:
            return expect(addr, client.call(addr, request, timeout_s))

    def use(self, work: Callable[[RemotingClient], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` on the loop, and returns its result."""
        with self._client.apart() as client:
            return client.use(work)

    def read_log(self, addr: str, offset: int, size: int) -> bytes:
        """At most `size` bytes of the log of the broker at `addr`.  Raises RemotingError."""
        with self.reading() as read:
            return read(addr, offset, size)

    @contextlib.contextmanager
    def reading(self) -> Iterator[ReadLog]:
        """read_log() for many bytes: its connections stay open until the end."""
        with self._client.apart() as client:

            def read(addr: str, offset: int, size: int) -> bytes:
                request = RemotingCommand.request(RequestCode.READ_LOG, ReadLogHeader(offset, size).encode())
                return bytes(expect(addr, client.call(addr, request, READ_TIMEOUT_S)).body)

            yield read

    async def _ask_all(self, client: RemotingClient, also: Iterable[str], patience: Deadline) -> Heard:
        asked: dict[str, asyncio.Task[LineageBody | None]] = {}
        taken: dict[int, str] = {}
        silent: list[str] = []

        def ask(addrs: Iterable[str]) -> None:
            for addr in addrs:
                if addr and addr != self._own_addr and addr not in asked and len(asked) < PEERS_MAX:
                    asked[addr] = asyncio.ensure_future(self._asked(client, addr, patience, silent))

        async def ask_at(namesrv: str) -> None:
            try:
                answer = await client.invoke(
                    namesrv, RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO), NAMESRV_PATIENCE_S
                )
                brokers = ClusterInfo.decode(expect(namesrv, answer).body).broker_addr_table
            except (RemotingError, ValueError) as error:
                self._say("peers not known namesrv=%s reason=%s", namesrv, error)
                return
            self._unreached.ended(namesrv)
            if (broker := brokers.get(self._broker_name)) is not None:
                taken.update(
                    (number, addr) for number, addr in broker.broker_addrs.items() if addr != self._own_addr
                )
                ask(broker.broker_addrs.values())

        ask([*also, *self._remembered()])
        await asyncio.gather(*(ask_at(namesrv) for namesrv in self._namesrv_addrs))
        found = await asyncio.gather(*asked.values())
        return Heard(
            [one for one in found if one is not None and one.broker_name == self._broker_name], taken, silent
        )

    async def _asked(
        self, client: RemotingClient, addr: str, patience: Deadline, silent: list[str]
    ) -> LineageBody | None:
        try:
            body = await get_lineage(client, addr, patience.remaining)
        except AnswerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self._throttle.ready(addr):
                logger.warning("peer does not say what its log is addr=%s reason=%s", addr, error)
            return None
        except (RemotingError, ValueError) as error:
            self._say("peer unreachable addr=%s reason=%s", addr, error)
            if isinstance(error, RemotingTimeout) and client.connection(addr) is not None:
                silent.append(addr)
            return None
        self._throttle.ended(addr)
        self._unreached.ended(addr)
        return body

    def _say(self, text: str, addr: str, error: Exception) -> None:
        """At INFO once it is so, and now and then while it stays so."""
        logger.log(logging.INFO if self._unreached.ready(addr) else logging.DEBUG, text, addr, error)


async def get_lineage(client: RemotingClient, addr: str, timeout_s: float) -> LineageBody:
    """40001.  Raises RemotingError, or ValueError for epochs that do not rise."""
    answer = await client.invoke(addr, RemotingCommand.request(RequestCode.GET_LINEAGE), timeout_s)
    return lineage_at(addr, expect(addr, answer).body)


def lineage_at(addr: str, answer: bytes | memoryview) -> LineageBody:
    """What a broker says of itself; its address is where it was asked, whatever it says that its address is.

    Raises ValueError for epochs that do not rise.
    """
    body = LineageBody.decode(answer)
    lineage_of(body)
    return replace(body, broker_addr=addr)
