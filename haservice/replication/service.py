"""HAService: builds the parts of replication that a role has, starts and stops them, and tells how they are.

    master    ha-accept → ha-read, ha-write per slave     ha-group-transfer for the waits of SYNC_MASTER
                                                          ha-recorder writes down who follows
    slave     ha-client                             ha-recorder writes down how far the master was

Unlike RocketMQ, a slave opens no HA port and a master runs no idle client.  Without a lineage file neither
greets, and all is as between stock brokers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from commitlog.errors import CommitLogError
from commitlog.kernel.layout import STORED_BYTES
from commitlog.kernel.records import stored_at
from commitlog.log.log import wall_clock_ms
from haservice.configuration.settings import BrokerRole, ReadMark, ReplicationConfig
from haservice.deadline import Deadline
from haservice.log_throttle import LogThrottle
from haservice.replication.lineage.file import LineageFile, Replica
from haservice.replication.lineage.member_list import MemberList
from haservice.replication.lineage.membership import Members
from haservice.replication.master.absent import AbsentSlaves
from haservice.replication.master.accept import AcceptSocketService, Identify, address_of, doors_of
from haservice.replication.master.connection import HAConnection
from haservice.replication.master.group_transfer import GroupTransferService
from haservice.replication.master.incoming import Loop
from haservice.replication.master.outgoing import SourceLog
from haservice.replication.master.progress import AckTable, slaves_needed
from haservice.replication.master.read_mark import HighWaterMark
from haservice.replication.master.recorder import MasterRecorder, ReplicaRecorder
from haservice.replication.pace import Growth
from haservice.replication.slave.client import HAClient
from haservice.replication.slave.rejoin import Check, Rejoin, ReplicaLog, ReplicaStore
from haservice.replication.status import HAStatus, SlaveStatus
from haservice.replication.wire.greeting import Answer, Facts, MasterGreeting, Outcome
from haservice.replication.wire.hello import SlaveHello
from haservice.replication.wire.protocol import MasterState
from haservice.replication.wire.secure import SecureDoors
from haservice.replication.wire.transport import Transport
from haservice.service import Service, Task

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A greeting that ends the same way is told again after so long.
REFUSED_AGAIN_S = 600.0
# Nobody waits for an ASYNC_MASTER's acks: what comes within this time after something was sent goes to a
# slave together, instead of a wake-up of four threads on two machines for each message.
ASYNC_LINGER_S = 0.005


class Log(SourceLog, ReplicaLog, Protocol):
    """The log as either role uses it."""

    segment_bytes: int
    end: int
    flushed: int


def _stored_ms(log: Log, position: int) -> int | None:
    """When the record at `position` was stored, by the wall clock; None if none begins there."""
    try:
        return stored_at(log.read(position, STORED_BYTES), position)
    except CommitLogError:
        return None


class HAService(Generic[T]):
    """Replication of one broker.  `on_acked(waiters, ok)` gets the waits of submit() back, in batches.

    `flush`, with SYNC_FLUSH: a slave calls it before each report, so that acks speak of flushed bytes, and
    consumers are shown flushed ones only.  `boundary`, on a slave: up to where its log is known to be whole
    records (where dispatch is).  `identify` turns a slave's address into what it is known by.
    `on_failure(thread, error)` is told of a thread that died.

    With `lineage` and `facts` brokers of ours are greeted.  A slave cuts or renews its `store` then.  On a
    master, `on_ahead(hello)` is told of a slave that holds what this master lost, up to hello.position, and
    `on_heard(hello, outcome)` of every greeting; both by the slave's thread, before the slave is answered.
    `doors` says which ports there are beside the plain one, `check` stands for the one of records.  `loop` is
    where a SYNC_MASTER's sends are answered: acks are read there, and on_acked is called there, too.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        log: Log,
        *,
        role: BrokerRole,
        bind_address: str,
        on_acked: Callable[[list[T], bool], None],
        on_mark: Callable[[], None] = lambda: None,
        damage: Callable[[], str | None] = lambda: None,
        flush: Callable[[], object] | None = None,
        boundary: Callable[[], int] | None = None,
        identify: Identify = address_of,
        on_failure: Callable[[str, BaseException], None] | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        lineage: LineageFile | None = None,
        facts: Facts | None = None,
        store: ReplicaStore | None = None,
        on_ahead: Callable[[SlaveHello], None] = lambda _: None,
        on_heard: Callable[[SlaveHello, Outcome], None] = lambda _, __: None,
        doors: SecureDoors | None = None,
        check: Check | None = None,
        loop: Loop | None = None,
    ) -> None:
        self._config = config
        self._log = log
        self._role = role
        self._bind_address = bind_address
        self._identify = identify
        self._on_failure = on_failure
        self._clock_ms = clock_ms
        self._lineage = lineage
        if facts is not None:
            facts = replace(facts, heartbeat_ms=config.heartbeat_interval_ms)
        self._facts = facts if lineage is not None else None
        self._on_ahead = on_ahead
        self._on_heard = on_heard
        self._doors = doors
        self._loop = loop
        self._refusals = LogThrottle(REFUSED_AGAIN_S)
        self._table = AckTable(log.segment_bytes, log.end, slaves_needed(config.in_sync_replicas))
        self._group: GroupTransferService[T] = GroupTransferService(self._table, on_acked, on_mark)
        self._mark = HighWaterMark(config.read_mark, config.fallbehind_max_bytes)
        self._shows_flushed = flush is not None and config.read_mark is not ReadMark.OFF
        self._growth = Growth()
        self._fallbehind_max_bytes = config.fallbehind_max_bytes
        self._accept: AcceptSocketService | None = None
        self._client: HAClient | None = None
        self._services: list[Service] = []
        self._absent = AbsentSlaves(clock_ms)
        self._list: MemberList | None = None
        self._recorder: ReplicaRecorder | None = None
        self._master_recorder: MasterRecorder | None = None
        if lineage is not None and facts is not None and not role.is_slave:
            self._recorder = ReplicaRecorder(lineage, self._replicas)
            self._list = MemberList(lineage, self._group, lambda: log.end)
        if role.is_slave:
            rejoin = None
            if lineage is not None and facts is not None:
                rejoin = Rejoin(facts, lineage, log, store, flushes=flush is not None)
            client = self._client = HAClient(
                config,
                log,
                damage=damage,
                flush=flush,
                boundary=boundary,
                clock_ms=clock_ms,
                rejoin=rejoin,
                doors=doors,
                check=check,
                objection=rejoin.objection if rejoin is not None else lambda _: "",
            )
            if lineage is not None and facts is not None:
                self._master_recorder = MasterRecorder(lineage, lambda: client.heard)
            self._client.set_master_address(config.master_address)

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises OSError naming the address if the HA port is taken."""
        if self._client is not None:
            if self._master_recorder is not None:
                self._run("ha-recorder", self._master_recorder)
            self._run("ha-client", self._client)
            return
        config = self._config
        housekeeping_s = config.housekeeping_interval_ms / 1000
        heartbeat_s = config.heartbeat_interval_ms / 1000
        self._accept = AcceptSocketService(
            self._bind_address,
            doors_of(config.listen_port, heartbeat_s, housekeeping_s, self._doors),
            connect=self._connection,
            refused=self._absent.note,
            allowed=config.allowed_slaves,
            max_connections=config.max_connections,
            max_per_address=config.max_connections_per_address,
            housekeeping_s=housekeeping_s,
            identify=self._identify,
        )
        if self._recorder is not None:
            self.take_list()
            self._run("ha-recorder", self._recorder)
        self._run("ha-group-transfer", self._group)
        self._run("ha-accept", self._accept)
        logger.info("ha port open addr=%s:%d role=%s", self._bind_address, self.port, self._role.value)

    def stop(self, deadline: Deadline) -> bool:
        """Ends every thread; waits that are left fail.  May be called twice.  False if something is left."""
        ended = True
        while self._services:
            service = self._services.pop()
            if service.name == "ha-accept" and self._accept is not None:
                ended &= service.stop(deadline)
                ended &= self._accept.close(deadline)
            else:
                ended &= service.stop(deadline)
        return ended

    def _run(self, name: str, task: Task) -> None:
        service = Service(name, task, self._on_failure)
        self._services.append(service)
        service.start()

    # -- what brokers ask ---------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The HA port: the one that is open, or would be."""
        return self._accept.port if self._accept is not None else self._config.listen_port

    @property
    def push2slave_max_offset(self) -> int:  # the furthest true ack of any slave in this life of the master
        return self._table.proven

    @property
    def connected(self) -> bool:  # on a slave: whether the link to the master is up
        return self._client is not None and self._client.connected

    @property
    def greeted_by(self) -> str:  # on a slave: the master of ours to which the link is up, "" if it is not
        return self._client.greeted_by if self._client is not None else ""

    def is_slave_ok(self, end: int) -> bool:
        """Whether a slave that has reported lags less than haSlaveFallbehindMax behind `end`.

        It is connected, or was cut off less than a moment ago.
        """
        furthest = self._group.furthest()
        return furthest >= 0 and end - furthest < self._fallbehind_max_bytes

    def readable_end(self) -> int:
        """Up to where consumers may read: what is stored, with SYNC_FLUSH what is flushed, and of it what
        lies below the high-water mark of a SYNC_MASTER.

        `on_mark` is called whenever a slave's report may have moved it; of a flush the flusher tells.
        """
        end = self._log.flushed if self._shows_flushed else self._log.end
        if self._role is not BrokerRole.SYNC_MASTER:
            return end
        return self._mark.readable_end(self._group.furthest(), end)

    def submit(self, end: int, deadline_s: float, waiter: T) -> bool:
        """True if a slave is known to hold `end`; else `waiter` comes back through on_acked, by `deadline_s`
        (time.monotonic()) at the latest."""
        return self._group.submit(end, deadline_s, waiter)

    def await_ack(self) -> None:
        """Takes an ack that comes within some 50 µs; for the loop, after a lone send was pushed to one slave."""
        if len(links := self._connections) == 1 and (incoming := links[0].incoming) is not None:
            incoming.await_ack()

    def set_master_address(self, address: str | None) -> None:
        """On a slave: whom to follow.  None, or an address that is none, changes nothing."""
        if self._client is None:
            return
        try:
            self._client.set_master_address(address)
        except ValueError as error:
            logger.warning("master address ignored reason=%s", error)

    def leave_master(self) -> None:
        """On a slave: leaves its link and dials again, for it may have promised something meanwhile."""
        if self._client is not None:
            self._client.regreet()

    def take_list(self) -> None:
        """On a master: another list of replicas is in the file; an epoch began, or one was forgotten."""
        assert self._list is not None
        self._list.take(
            (one.slave.replica_id, one.listed.version)
            for one in self._connections
            if one.slave is not None and one.progress.state is MasterState.TRANSFER
        )
        self._call_back()

    @property
    def _connections(self) -> Sequence[HAConnection]:
        return self._accept.connections if self._accept is not None else ()

    def regreet(self) -> None:
        """After a new epoch began on a running master: its slaves come back, and take the epoch over."""
        for connection in self._connections:
            if connection.called:
                connection.shut_down()

    # -- connections --------------------------------------------------------------------------------

    def _connection(self, transport: Transport, peer: str, identity: str) -> HAConnection:
        return HAConnection(
            transport,
            peer,
            identity,
            config=self._config,
            log=self._log,
            group=self._group,
            growth=self._growth,
            on_closed=self._closed,
            linger_s=0.0 if self._role is BrokerRole.SYNC_MASTER else ASYNC_LINGER_S,
            loop=self._loop,
            greeting=self._greeting(transport, peer),
            on_greeted=self._greeted,
            on_joined=self._joined,
        )

    def _greeting(self, transport: Transport, peer: str) -> MasterGreeting | None:
        lineage, facts = self._lineage, self._facts
        if lineage is None or facts is None:
            return None
        return MasterGreeting(
            facts,
            lineage.state.replica_id,
            self._role.value,
            self._log,
            lambda: lineage.state.lineage,
            objection=lambda slave: self._why_taken(slave, peer),
            members=lambda slave: self._list_with(self._believed(transport.secured, slave)),
        )

    def _believed(self, secured: bool, slave: SlaveHello) -> SlaveHello:
        """What is acted upon: the address that a stranger names is not one to go to, or to write down."""
        if self._doors is None or self._doors.believes(secured):
            return slave
        return replace(slave, broker_addr="")

    # -- who may hold an OK -------------------------------------------------------------------------

    def _list_with(self, slave: SlaveHello) -> Members:
        """The list of replicas that the slave is given."""
        assert self._list is not None
        listed = self._list.with_slave(slave)
        self._call_back()
        return listed

    def _call_back(self) -> None:
        """Slaves that have to be given the present list dial again within a moment."""
        assert self._list is not None
        for one in self._connections:
            if one.slave is not None and self._list.has_to_hear(one.slave.replica_id, one.listed.version):
                one.shut_down()

    def _joined(self, connection: HAConnection) -> None:
        """A slave has written down the list that it was given."""
        if self._list is not None and connection.slave is not None:
            self._list.known_to(connection.slave.replica_id, connection.listed.version)
            self._call_back()

    def _why_taken(self, slave: SlaveHello, peer: str) -> str:
        """A replica id is no secret: at work from one address, it is nobody else's at another."""
        host = peer.rpartition(":")[0]
        for other in self._connections:
            taken = other.slave is not None and other.slave.replica_id == slave.replica_id
            if (
                taken
                and other.progress.state is MasterState.TRANSFER
                and other.peer.rpartition(":")[0] != host
            ):
                return f"replica {slave.replica_id} is connected from {other.peer}"
        return ""

    def _greeted(self, connection: HAConnection, answer: Answer) -> None:
        slave = self._believed(connection.secured, answer.slave)
        if answer.outcome is Outcome.ACCEPTED and self._recorder is not None:
            self._recorder.greeted(
                slave.replica_id, self._replica(slave, slave.position, self._heard_ms(connection))
            )
            for outcome in Outcome:
                self._refusals.ended((slave.replica_id, outcome))
        elif self._refusals.ready((slave.replica_id, answer.outcome)):
            # A master that lost its end in a power cut takes it back by itself.
            logger.log(
                logging.WARNING if answer.outcome is Outcome.AHEAD else logging.ERROR,
                "a slave's log and ours do not go together peer=%s broker=%s outcome=%s reason=%s",
                connection.peer,
                slave.broker_addr,
                answer.outcome.name,
                answer.verdict.reason,
            )
        if answer.outcome is Outcome.AHEAD:
            self._on_ahead(slave)
        self._on_heard(slave, answer.outcome)

    def _replica(self, slave: SlaveHello, offset: int, heard_ms: int) -> Replica:
        in_sync = self._log.end - offset < self._fallbehind_max_bytes
        return Replica(slave.broker_addr, offset, heard_ms, in_sync)

    def _heard_ms(self, connection: HAConnection) -> int:
        return self._clock_ms() - int((time.monotonic() - connection.heard_s) * 1000)

    def _replicas(self) -> dict[str, Replica]:
        """Of ours, which follow now."""
        now_s, end = time.monotonic(), self._log.end
        replicas = {}
        for connection in self._connections:
            slave, progress = connection.slave, connection.progress
            if slave is None:
                continue
            slave, heard_ms = self._believed(connection.secured, slave), self._heard_ms(connection)
            if progress.state is MasterState.TRANSFER:
                lack = self._lack(connection, end, now_s)
                one = replace(self._replica(slave, progress.reported, heard_ms), in_sync=not lack)
            else:
                one = self._replica(slave, slave.position, heard_ms)
            replicas[slave.replica_id] = one
        return replicas

    def _closed(self, connection: HAConnection, error: Exception | None) -> None:
        assert self._accept is not None
        self._accept.ended(connection)
        if connection.slave is not None and self._recorder is not None:
            reported = connection.progress.reported
            offset = reported if reported >= 0 else connection.slave.position
            self._recorder.left(connection.slave.replica_id, offset, self._heard_ms(connection))
        self._absent.ended(connection, error)

    # -- status -------------------------------------------------------------------------------------

    def status(self) -> HAStatus:
        now_s, end = time.monotonic(), self._log.end
        last = self._lineage.state.lineage.up_to(end).last if self._lineage is not None else None
        connections = self._connections
        back_s: dict[str, float] = {}
        for connection in connections:
            if connection.progress.state is MasterState.TRANSFER:
                host = connection.peer.rpartition(":")[0]
                back_s[host] = max(back_s.get(host, 0.0), connection.connected_s)
        lacks = {connection: self._lack(connection, end, now_s) for connection in connections}
        return HAStatus(
            role=self._role.value,
            log_start=self._log.start,
            log_end=end,
            push2slave_max_offset=self.push2slave_max_offset,
            in_sync_slaves=len({one.progress.identity for one, lack in lacks.items() if not lack}),
            waiting_sends=len(self._group),
            slaves=tuple(self._slave_status(one, end, now_s, lack) for one, lack in lacks.items()),
            absent=self._absent.since(back_s),
            master=self._client.status() if self._client is not None else None,
            epoch=last.number if last is not None else -1,
        )

    def _slave_status(self, connection: HAConnection, end: int, now_s: float, lack: str) -> SlaveStatus:
        progress = connection.progress
        known = progress.state is MasterState.TRANSFER
        return SlaveStatus(
            addr=connection.peer,
            state=progress.state.value,
            position=progress.sent if known else -1,
            ack=progress.reported,
            proven=progress.acked if progress.acked is not None else -1,
            sent_from=progress.sent_from if known else -1,
            lag_bytes=max(0, end - max(progress.reported, 0)),
            lag_seconds=self._lag_s(progress.reported, end, now_s) if known else 0.0,
            bytes_per_second=connection.rate.rate(now_s),
            in_sync=not lack,
            reason=lack,
            replica_id=connection.slave.replica_id if connection.slave is not None else "",
            broker_addr=connection.slave.broker_addr if connection.slave is not None else "",
            heard_ms=self._heard_ms(connection),
        )

    def _lag_s(self, position: int, end: int, now_s: float) -> float:
        """Since when the slave lacks something: as it was watched, else by the record that it lacks first."""
        if position < end and not self._growth.covers(position):
            stored_ms = _stored_ms(self._log, max(position, self._log.start))
            if stored_ms is not None:
                return max(0.0, (self._clock_ms() - stored_ms) / 1000)
        return self._growth.behind_s(position, end, now_s)

    def _lack(self, connection: HAConnection, end: int, now_s: float) -> str:
        """Why the slave is not in sync; empty when it is."""
        progress = connection.progress
        if progress.state is not MasterState.TRANSFER:
            return "has not reported yet"
        lag_bytes = end - progress.reported
        if lag_bytes >= self._fallbehind_max_bytes:
            return f"{lag_bytes} bytes behind, haSlaveFallbehindMax is {self._fallbehind_max_bytes}"
        if not self._table.counts(progress):
            return f"does not count yet: {self._waited_for()}"
        behind_s = self._lag_s(progress.reported, end, now_s)
        if behind_s * 1000 > self._config.slave_timeout_ms:
            return f"{behind_s:.1f} s behind, slaveTimeout is {self._config.slave_timeout_ms} ms"
        return ""

    def _waited_for(self) -> str:
        """Who has to know the present list of replicas before those that it adds count."""
        if self._list is None or not self._list.missing:
            return "the list of replicas is just being written"
        named = ", ".join(map(self._list.name_of, self._list.missing))
        return f"{named} may have acknowledged messages and does not know this slave: start {named}, or forget it"
