"""MasterHAService: replication of a master.

    ha-accept             → ha-read, ha-write for each slave
    ha-group-transfer     deadlines of a SYNC_MASTER's waits
    ha-recorder           writes down who follows; only with a lineage file

Without a lineage file it greets nobody, and all is as between stock brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from commitlog.log.log import wall_clock_ms
from haservice.configuration.settings import BrokerRole, ReadMark, ReplicationConfig
from haservice.deadline import Deadline
from haservice.replication.lineage.member_list import MemberList
from haservice.replication.master.absent import AbsentSlaves
from haservice.replication.master.accept import AcceptSocketService, doors_of
from haservice.replication.master.connection import HAConnection
from haservice.replication.master.greeter import Greeter, Greets
from haservice.replication.master.group_transfer import GroupTransferService
from haservice.replication.master.in_sync import InSync, Log
from haservice.replication.master.incoming import Loop
from haservice.replication.master.progress import AckTable, slaves_needed
from haservice.replication.master.read_mark import HighWaterMark
from haservice.replication.rates_and_backoff import Growth
from haservice.replication.service import HAThreads
from haservice.replication.status import HAStatus
from haservice.replication.wire.protocol import MasterState
from haservice.replication.wire.secure import SecureDoors
from haservice.replication.wire.transport import Transport
from haservice.service import Service
from haservice.supervisor import Supervisor

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Nobody waits for an ASYNC_MASTER's acks.  So what comes within this time after a send goes to a caught-up
# slave together, and four threads on two machines need not wake up for each message.
ASYNC_LINGER_S = 0.005


class MasterHAService(Generic[T]):
    """`on_acked(waiters, ok)` gets the waits of submit() back, in batches; `on_mark()` is called whenever a slave's
    report may have moved readable_end().

    With SYNC_FLUSH, `flushes` limits consumers to flushed bytes.  With `greets`, slaves of ours are greeted.
    `doors` lists the ports beside the plain one.  `loop` answers a SYNC_MASTER's sends: it reads the acks,
    and calls on_acked, too.  `supervisor` starts a thread that died again.  `by_voters`: whose acks
    count is what count_by() says, not the list of replicas.  `on_lost` is called when the link of a slave of ours has
    ended.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        log: Log,
        *,
        role: BrokerRole,
        bind_address: str,
        on_acked: Callable[[list[T], bool], None] = lambda waiters, ok: None,
        on_mark: Callable[[], None] = lambda: None,
        flushes: bool = False,
        supervisor: Supervisor | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        greets: Greets | None = None,
        doors: SecureDoors | None = None,
        loop: Loop | None = None,
        by_voters: bool = False,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._log = log
        self._role = role
        self._bind_address = bind_address
        self._loop = loop
        self._table = AckTable(log.segment_bytes, log.end, slaves_needed(config.in_sync_replicas))
        self._group: GroupTransferService[T] = GroupTransferService(
            self._table, on_acked, on_mark, by_voters=by_voters
        )
        self.submit = self._group.submit
        self._mark = HighWaterMark(config.read_mark, config.fallbehind_max_bytes)
        self._shows_flushed = flushes and config.read_mark is not ReadMark.OFF
        self._growth = Growth()
        self._fallbehind_max_bytes = config.fallbehind_max_bytes
        self._absent = AbsentSlaves(clock_ms)
        self._accept = self._acceptor(doors)
        self._lineage = greets.lineage if greets is not None else None
        listed = MemberList(greets.lineage, self._group, lambda: log.end) if greets is not None else None
        self._in_sync = InSync(config, log, self._table, self._growth, listed, clock_ms)
        self._greeter: Greeter | None = None
        if greets is not None and listed is not None:
            self._greeter = Greeter(
                greets,
                role.value,
                log,
                listed,
                self._in_sync,
                lambda: self._accept.connections,
                doors,
                acknowledged=self.shown_by_slaves,
            )
        self._threads, self._accepting = HAThreads(), HAThreads()
        self._supervisor = supervisor or Supervisor()
        self._on_lost = on_lost

    def _acceptor(self, doors: SecureDoors | None) -> AcceptSocketService:
        config = self._config
        housekeeping_s, heartbeat_s = (
            config.housekeeping_interval_ms / 1000,
            config.heartbeat_interval_ms / 1000,
        )
        return AcceptSocketService(
            self._bind_address,
            doors_of(config.listen_port, heartbeat_s, housekeeping_s, doors),
            connect=self._connection,
            refused=self._absent.note,
            allowed=config.allowed_slaves,
            max_connections=config.max_connections,
            max_per_address=config.max_connections_per_address,
            housekeeping_s=housekeeping_s,
        )

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises OSError naming the address if the HA port is taken."""
        self._accept.open()
        again = self._supervisor.again
        if self._greeter is not None:
            self._greeter.take_list()
            self._greeter.forget_lost_acks()
            self._threads.start(Service("ha-recorder", self._greeter.recorder, again))
        self._threads.start(Service("ha-group-transfer", self._group, again))
        self._accepting.start(Service("ha-accept", self._accept, again))
        logger.info("ha port open addr=%s:%d role=%s", self._bind_address, self.port, self._role.value)

    def stop(self, deadline: Deadline) -> bool:
        """Ends every thread: the door first, then the connections, then what counts and writes down their
        acks.

        The waits that are left fail.  May be called twice.  False if something is left.
        """
        ended = self._accepting.stop(deadline)
        ended &= self._accept.close(deadline)
        return self._threads.stop(deadline) and ended

    # -- what brokers ask ---------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The HA port: the one that is open, or would be."""
        return self._accept.port

    @property
    def push2slave_max_offset(self) -> int:  # the furthest true ack of any slave in this life of the master
        return self._table.proven

    def is_slave_ok(self, end: int) -> bool:
        """Whether a slave that has reported is less than haSlaveFallbehindMax behind `end`.

        The slave is connected, or was cut off a moment ago.
        """
        furthest = self._table.furthest
        if furthest < 0:
            furthest = self._group.furthest()
        return furthest >= 0 and end - furthest < self._fallbehind_max_bytes

    def readable_end(self) -> int:
        """Up to where consumers may read: what is stored (SYNC_FLUSH: flushed), of a SYNC_MASTER's log only
        what lies below the high-water mark.  The flusher announces a flush."""
        end = self._log.flushed if self._shows_flushed else self._log.end
        if self._role is not BrokerRole.SYNC_MASTER:
            return end
        return self._mark.readable_end(self._group.furthest(), end)

    def shown_by_slaves(self) -> int:
        """Up to where slaves with haReadMark=STRICT may show the log: what has the acks that an OK takes."""
        end = self._log.flushed if self._shows_flushed else self._log.end
        return end if self._role is not BrokerRole.SYNC_MASTER else min(self.acknowledged, end)

    def return_waits_to(self, on_acked: Callable[[list[T], bool], None]) -> None:
        """Sets on_acked, before the first wait; for one that is built after this service, and uses it."""
        self._group.on_acked = on_acked

    def await_ack(self) -> None:
        """Takes an ack that comes within some 50 µs; for the loop, after a lone send was pushed to one slave."""
        if len(links := self._accept.connections) == 1 and (incoming := links[0].incoming) is not None:
            incoming.await_ack()

    def take_list(self) -> None:
        """Another list of replicas is in the file: an epoch began, or a replica was forgotten."""
        assert self._greeter is not None, "without a lineage file there is no list"
        self._greeter.take_list()

    def regreet(self) -> None:
        """A new epoch began on the running master: makes its slaves come back, and take the epoch over."""
        for connection in self._accept.connections:
            if connection.called:
                connection.shut_down()

    def count_by(self, voters: frozenset[str], needed: int) -> None:
        """Whose acks count from now on, by the coordinator's word; and how many an OK takes."""
        self._group.count_by(voters, needed)

    @property
    def acknowledged(self) -> int:  # nothing beyond it has had the acks that an OK takes
        return self._table.held.furthest

    def status(self) -> HAStatus:
        end = self._log.end
        last = self._lineage.state.lineage.up_to(end).last if self._lineage is not None else None
        connections = self._accept.connections
        back_s: dict[str, float] = {}
        for connection in connections:
            if connection.progress.state is MasterState.TRANSFER:
                host = connection.peer.rpartition(":")[0]
                back_s[host] = max(back_s.get(host, 0.0), connection.connected_s)
        in_sync, slaves = self._in_sync.status(connections, end)
        return HAStatus(
            role=self._role.value,
            log_start=self._log.start,
            log_end=end,
            push2slave_max_offset=self.push2slave_max_offset,
            in_sync_slaves=in_sync,
            waiting_sends=len(self._group),
            slaves=slaves,
            absent=self._absent.since(back_s),
            epoch=last.number if last is not None else -1,
        )

    # -- connections --------------------------------------------------------------------------------

    def _connection(self, transport: Transport, peer: str, identity: str) -> HAConnection:
        greeter = self._greeter
        connection = partial(
            HAConnection,
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
        )
        if greeter is None:
            return connection()
        return connection(
            greeting=greeter.greeting(transport, peer),
            on_greeted=greeter.greeted,
            on_joined=greeter.joined,
            acknowledged=self.shown_by_slaves,
        )

    def _closed(self, connection: HAConnection, error: Exception | None) -> None:
        self._accept.ended(connection)
        if self._greeter is not None:
            self._greeter.left(connection)
        self._absent.ended(connection, error)
        if connection.slave is not None:
            self._on_lost()
