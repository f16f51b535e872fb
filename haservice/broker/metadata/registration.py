"""Registration: telling every nameserver that this broker is here, and learning who its master is.

One follower per nameserver, all on the loop of the broker's client, each at its own pace:

    at start                  at once
    answered                  again after the period (30 s)
    a topic changed           again, at once; what changes until the answer is told together
    slave without its master  again within a second: a master that returns is found at once
    refused for a newer epoch  again after 5 s: the newer master may have been a stranger, gone by then
    no answer                 again after 0.5 s, 1 s, 2 s, then every 5 s

Before the broker registers where it is unknown, or may be forgotten, it awaits `on_reachable`.

The connection stays open in between, for a nameserver takes its end as the broker's end.  The answers of
several nameservers may differ; the broker believes the first one, in the configuration's order, that names
a master.  If that one stops answering, the broker believes it until another one names a master, for silence
says nothing about the master.  `stop` unregisters, so that no route names a broker that is gone.

What it tells of the topics, and how, is in topics/told.py: a created topic costs the same with ten topics and with
fifty thousand.

A registration carries the number of this broker's last epoch, which a stock nameserver ignores.  Ours gives
an old master no route, and tells it who the newer one is.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from haservice.broker.topics.table import TopicTable
from haservice.broker.topics.told import Telling, ToldTopics
from haservice.deadline import Deadline
from haservice.errors import AnswerError, RemotingError, RequestError
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import KVTable
from haservice.remoting.bodies.registration import body_crc32
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import Body, RemotingCommand
from haservice.remoting.headers.clients import (
    BrokerHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
)
from haservice.remoting.headers.lineage import KnownTopicsHeader, NewerMasterHeader, ToldTopicsHeader

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.5
RETRY_MAX_S = 5.0
# A slave that knows no master, or has lost it, asks this often.
MASTER_WANTED_S = 1.0
# A master that a nameserver refuses a route asks this often.
REFUSED_S = 5.0
UNREGISTER_TIMEOUT_S = 1.0


class Identity(NamedTuple):
    """Who registers: the fields of requests 103 and 104."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str


class MasterAddresses(NamedTuple):
    """What a nameserver knows of a slave's master; None if there is none."""

    broker_addr: str | None
    ha_addr: str | None


NO_MASTER = MasterAddresses(None, None)


class Registration:
    """Task on the loop of the broker's client."""

    def __init__(
        self,
        identity: Identity,
        namesrv_addrs: Sequence[str],
        topics: TopicTable,
        *,
        permission: int,
        period_s: float,
        timeout_s: float,
        on_master: Callable[[MasterAddresses], None] = lambda _: None,
        master_wanted: Callable[[], bool] = lambda: False,
        on_reachable: Callable[[RemotingClient, str], Awaitable[None]] | None = None,
        epoch: Callable[[], int | None] = lambda: None,
        on_newer: Callable[[int, str], None] = lambda epoch, addr: None,
    ) -> None:
        """`on_master` gets a slave's master after each answer, and when a nameserver falls silent and
        another one's word counts; `master_wanted` says that the slave has lost its master.  `on_reachable`
        is awaited with a nameserver's address before the first registration there, and before the next one
        after a failure; it bounds itself.  `epoch` is the number of the last epoch in our log; `on_newer`
        gets a newer one that a nameserver knows, and its master's address.
        """
        self._identity = identity
        self._addrs = tuple(namesrv_addrs)
        self._topics = topics
        self._told_topics = {
            addr: ToldTopics(addr, topics, lambda: self._permission, is_slave=identity.broker_id != 0)
            for addr in self._addrs
        }
        self._permission = permission
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._on_master = on_master
        self._master_wanted = master_wanted
        self._on_reachable = on_reachable
        self._epoch = epoch
        self._on_newer = on_newer
        # The last answer of each nameserver, without those that did not answer last time.
        self._masters: dict[str, MasterAddresses] = {}
        self._believed = NO_MASTER
        # Nameservers that may still know this broker: it unregisters there when it stops.
        self._known_at: set[str] = set()
        # Why the last try at a nameserver failed; a success removes it.
        self._failures: dict[str, str] = {}
        self._throttle = LogThrottle()
        self._attempted: set[str] = set()
        # Set when every nameserver was tried once, with whatever result.
        self.first_round = threading.Event()
        # Set when the task starts, for calls from other threads.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._announced: dict[str, asyncio.Event] = {}
        # Who waits until nameservers know the present topics, with the nameservers still to be told.
        self._untold: list[tuple[set[str], Future[None]]] = []

    # For other threads

    def configure(self, *, permission: int, period_s: float, timeout_s: float) -> None:
        """Sets other settings from the next registration on."""
        self._permission = permission
        self._period_s = period_s
        self._timeout_s = timeout_s

    def announce(self) -> None:
        """Registers again soon, because topics have changed."""
        self._post(self._mark_announced)

    def told(self) -> Future[None]:
        """Done when each nameserver was told of the present topics, or could not be."""
        done: Future[None] = Future()
        if self._addrs:
            self._untold.append((set(self._addrs), done))
            self._post(self._mark_announced)
        else:
            done.set_result(None)
        return done

    @property
    def trouble(self) -> str:
        """Which nameservers do not have this broker's present registration, and why; "" if all do."""
        return "; ".join(dict(self._failures).values())

    # On the loop

    async def run(self, client: RemotingClient) -> None:
        """Runs until it is cancelled; leave() is for the end.  Needs one nameserver at least.

        One that breaks off stays registered, for it runs again.
        """
        self._announced = {addr: asyncio.Event() for addr in self._addrs}
        self._loop = asyncio.get_running_loop()
        followers = [asyncio.ensure_future(self._follow(client, addr)) for addr in self._addrs]
        try:
            await asyncio.gather(*followers)  # ends only through a bug of ours
        finally:
            await self._end(followers)

    async def leave(self, client: RemotingClient) -> None:
        """Unregisters wherever this broker may be known.  Not if the task was cancelled late: whoever came after us is
        registered by then.
        """
        await asyncio.gather(*(self._unregister(client, addr) for addr in self._addrs))

    async def _end(self, followers: Sequence[asyncio.Future[None]]) -> None:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    async def _follow(self, client: RemotingClient, addr: str) -> None:
        """Keeps this broker registered at one nameserver while the task runs."""
        retrying = AsyncRetrying(
            # RequestError is an answer that cannot be read.
            retry=retry_if_exception_type((RemotingError, RequestError)),
            wait=wait_exponential(multiplier=RETRY_FIRST_S, max=RETRY_MAX_S),
            before_sleep=lambda state: self._failed(addr, state),
        )
        while True:
            await retrying(self._register, client, addr)
            self._attempt_ended(addr)
            self._throttle.ended(addr)
            await self._pause(addr)

    async def _pause(self, addr: str) -> None:
        """Waits until it is time to register again."""
        announced = self._announced[addr]
        pause = Deadline(min(REFUSED_S, self._period_s) if addr in self._failures else self._period_s)
        while not pause.expired:
            # Short waits, to notice soon that the master is missed.
            try:
                async with asyncio.timeout(min(MASTER_WANTED_S, pause.remaining)):
                    await announced.wait()
            except TimeoutError:
                if self._master_wanted():
                    return
                continue
            return

    async def _register(self, client: RemotingClient, addr: str) -> None:
        # Cleared before the table is read, and before it is seen who waits: what comes later sets it again.
        self._announced[addr].clear()
        expecting = list(self._untold)
        try:
            await self._register_now(client, addr)
        finally:
            for one in expecting:
                addrs, done = one
                addrs.discard(addr)
                if not addrs and one in self._untold:
                    self._untold.remove(one)
                    done.set_result(None)

    async def _register_now(self, client: RemotingClient, addr: str) -> None:
        if self._on_reachable is not None and addr not in self._masters:
            await self._on_reachable(client, addr)
        topics, more = self._told_topics[addr], True
        connection = await client.reach(addr, self._timeout_s)
        while more:
            telling = await topics.next(connection)
            request = self._request(telling)
            answer = expect(addr, await client.invoke_on(connection, addr, request, self._timeout_s))
            told, newer = _told(addr, answer)
            refused = newer.newer_epoch is not None and self._identity.broker_id == 0
            known = KnownTopicsHeader.decode(answer.ext).topics_version
            more = topics.heard(telling, known, refused=refused)
        self._registered(addr, told, newer, answer.body)

    def _request(self, telling: Telling) -> RemotingCommand:
        identity = self._identity
        header = RegisterBrokerHeader(
            identity.broker_name,
            identity.broker_addr,
            identity.cluster_name,
            identity.ha_server_addr,
            identity.broker_id,
            telling.compressed,
            body_crc32(telling.body),
            self._epoch(),
        )
        ext = {**header.encode(), **ToldTopicsHeader(telling.base, telling.whole or None).encode()}
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, ext, telling.body)

    def _registered(
        self, addr: str, told: RegisterBrokerResponseHeader, newer: NewerMasterHeader, order_topics: Body
    ) -> None:
        if addr not in self._masters:
            identity = self._identity
            logger.info(
                "registered namesrv=%s broker=%s addr=%s", addr, identity.broker_name, identity.broker_addr
            )
        self._masters[addr] = MasterAddresses(told.master_addr, told.ha_server_addr)
        self._failures.pop(addr, None)
        self._heed_order_topics(addr, order_topics)
        self._heed_newer(addr, newer)
        self._known_at.add(addr)
        self._believe(self._named_master())

    def _believe(self, master: MasterAddresses) -> None:
        self._believed = master
        if self._identity.broker_id != 0:
            self._on_master(master)

    def _heed_order_topics(self, addr: str, body: Body) -> None:
        """Takes the order topics from the answer's key-value table; without one, changes nothing.

        If several nameservers answer, the first in the configuration counts.  A slave takes its master's
        topics as they are.
        """
        first = next(known for known in self._addrs if known in self._masters)
        if addr != first or self._identity.broker_id != 0 or not body:
            return
        try:
            ordered = KVTable.decode(bytes(body)).table
        except ValueError as error:
            logger.warning("order topics cannot be read namesrv=%s reason=%s", addr, error)
            return
        self._topics.set_order_topics(ordered.keys())

    def _heed_newer(self, addr: str, newer: NewerMasterHeader) -> None:
        if newer.newer_epoch is None:
            return
        if self._identity.broker_id == 0 and self._throttle.ready((addr, newer.newer_epoch)):
            logger.warning(
                "a newer master is known namesrv=%s epoch=%d master=%s",
                addr,
                newer.newer_epoch,
                newer.newer_master,
            )
        who = self._identity
        if who.broker_id == 0:
            self._failures[addr] = (
                f"{addr} gives clients no route to this broker: it knows the newer epoch {newer.newer_epoch} of master"
                f" {newer.newer_master or 'unknown'}; if that is a stranger that stays, or lost for good: mqadmin"
                f" failover -b {who.broker_name} --to {who.broker_addr} --force begins a newer epoch"
            )
        self._on_newer(newer.newer_epoch, newer.newer_master or "")

    def _named_master(self) -> MasterAddresses:
        for addr in self._addrs:
            master = self._masters.get(addr, NO_MASTER)
            if master.broker_addr is not None:
                return master
        return NO_MASTER

    async def _unregister(self, client: RemotingClient, addr: str) -> None:
        if addr not in self._known_at:
            return
        identity = self._identity
        header = BrokerHeader(
            identity.broker_name, identity.broker_addr, identity.cluster_name, identity.broker_id
        )
        request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header.encode())
        try:
            await client.invoke(addr, request, UNREGISTER_TIMEOUT_S)
        except RemotingError as error:
            logger.warning("not unregistered namesrv=%s reason=%s", addr, error)

    def _failed(self, addr: str, state: RetryCallState) -> None:
        outcome = state.outcome
        reason = str(outcome.exception()) if outcome is not None else f"{addr}: unknown"
        self._failures[addr] = reason
        self._told_topics[addr].forget()
        self._attempt_ended(addr)
        self._disbelieve(addr)
        if self._throttle.ready(addr):
            logger.warning("not registered namesrv=%s reason=%s; trying on", addr, reason)

    def _disbelieve(self, addr: str) -> None:
        """Drops a silent nameserver's word; the believed master stays unless another one names a master."""
        self._masters.pop(addr, None)
        master = self._named_master()
        if master.broker_addr is not None and master != self._believed:
            self._believe(master)

    def _attempt_ended(self, addr: str) -> None:
        self._attempted.add(addr)
        if len(self._attempted) == len(set(self._addrs)):
            self.first_round.set()

    def _mark_announced(self) -> None:
        for event in self._announced.values():
            event.set()

    def _post(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            return  # not running yet: `run` registers anyway
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.debug("registration has ended already")


def _told(addr: str, answer: RemotingCommand) -> tuple[RegisterBrokerResponseHeader, NewerMasterHeader]:
    """Decodes a nameserver's answer.  Raises AnswerError if it is malformed or implausible."""
    try:
        return RegisterBrokerResponseHeader.decode(answer.ext), NewerMasterHeader.decode(answer.ext)
    except RequestError as error:
        raise AnswerError(addr, answer.code, error.remark) from None
