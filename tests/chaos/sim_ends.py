"""Both ends of a replication connection, on virtual time.

    MasterEnd    what HAConnection's two threads do: greeting, reports → acks, log → frames, heartbeats
    SlaveEnd     what ha-client does: connect, greet, rejoin, check, append, report

The connection's own methods, the greeting, the readers, the ack table, the record check and the rejoining are
the product's; here is only what a socket and a thread would do between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog.errors import CommitLogError
from commitlog.log import wall_clock_ms
from haservice.errors import ProtocolError
from haservice.replication.connection import HAConnection
from haservice.replication.frame_check import BadRecord, RecordCheck, first_bytes
from haservice.replication.greeting import Answer, GreetingRefused, MasterGreeting, Outcome, SlaveGreeting
from haservice.replication.hello import HELLO_OFFSET
from haservice.replication.lineage_file import Replica
from haservice.replication.pace import Backoff, Growth
from haservice.replication.progress import LogRange
from haservice.replication.protocol import REPORT, MasterState, ReportReader, Run, TransferReader
from haservice.replication.rejoin import Rejoin
from haservice.settings import ReplicationConfig
from tests.chaos.sim_link import CONNECT_S, Connection

if TYPE_CHECKING:
    from tests.chaos.sim_node import Node

HEARTBEAT_S = 1.0
HOUSEKEEPING_S = 4.0
LOOK_S = 0.5
BATCH_BYTES = 4096
RECEIVE_BYTES = 64 * 1024
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
# What cannot be reconciled is tried again no sooner.
REFUSED_S = 5.0
CONFIG = ReplicationConfig(
    heartbeat_interval_ms=int(HEARTBEAT_S * 1000),
    housekeeping_interval_ms=int(HOUSEKEEPING_S * 1000),
    transfer_batch_bytes=BATCH_BYTES,
)


class MasterTransport:
    """A connection as HAConnection's Transport; what would block does not happen here."""

    def __init__(self, node: Node, connection: Connection) -> None:
        self._node = node
        self._connection = connection
        self.last_write_s = node.world.clock.now_s

    @property
    def peer_name(self) -> str:
        return self._connection.other(self._node.name)

    def send(self, data: bytes, more: bool = False) -> int:
        self.last_write_s = self._node.world.clock.now_s
        self._connection.send(self._node.name, bytes(data))
        return len(data)

    def send_file(self, fd: int, position: int, count: int) -> int:
        data = self._node.files.pread(fd, count, position)
        self._connection.send(self._node.name, data)
        return len(data)

    def shut_down(self) -> None:
        pass

    def close(self) -> None:
        self._connection.close(self._node.name)


class MasterEnd:
    """The master's side of one slave."""

    def __init__(self, node: Node, connection: Connection) -> None:
        self.node = node
        self.peer = connection.other(node.name)
        self.machine = node.world.nodes[self.peer].machine
        self.replica_id = ""
        self._connection = connection
        self._transport = MasterTransport(node, connection)
        self._reader = ReportReader()
        self._last_read_s = node.world.clock.now_s
        self._ended = False
        greeting = MasterGreeting(
            node.facts,
            node.lineage.state.replica_id,
            node.role.value,
            node.store.log,
            lambda: node.lineage.state.lineage,
        )
        self.link = HAConnection(
            self._transport,  # type: ignore[arg-type]  # as much of it as is used
            self.peer,
            f"address of {self.peer}",
            config=CONFIG,
            log=node.store.log,
            group=node.group,
            growth=Growth(),
            on_closed=lambda _, __: None,
            greeting=greeting,
            on_greeted=self._greeted,
        )
        self.progress = self.link.progress
        node.group.connected(self.progress)
        node.after(LOOK_S, self._look)

    @property
    def transfers(self) -> bool:
        return self.progress.state is MasterState.TRANSFER

    # -- what comes ---------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        if self._ended:
            return
        if not self.node.awake:
            self.node.after(0.0, self.received, data)
            return
        self._last_read_s = self.node.world.clock.now_s
        try:
            self._take(data)
        except (ProtocolError, CommitLogError, OSError) as error:
            self.node.world.note("{} ends the connection of {}: {}", self.node, self.peer, error)
            self._end(cut=not isinstance(error, ProtocolError))
        self.node.world.check_acks(self.node)

    def _take(self, data: bytes) -> None:
        node, log, reader, progress = self.node, self.node.store.log, self._reader, self.progress
        reports = reader.feed(data)
        waiting = progress.state is MasterState.WAIT_REPORT
        if waiting:
            self.link._greet(reader, reports)
        if not reports:
            return
        node.group.reported(progress, reports, LogRange(log.start, log.end))
        node.world.acked(node, self.node.world.nodes[self.peer], self.machine, progress)
        if waiting and self.transfers:
            node.world.note("{} sends to {} from {}", node, self.peer, progress.sent)
        self.pump()

    def _greeted(self, _: HAConnection, answer: Answer) -> None:
        node, slave = self.node, answer.slave
        node.world.note(
            "{} greets {} at {}: {} {}",
            *(node, self.peer, slave.position, answer.outcome.value, answer.verdict.reason),
        )
        if answer.outcome is Outcome.ACCEPTED:
            self.replica_id = slave.replica_id
            level = node.store.log.end - slave.position < node.fallbehind_bytes_max
            replica = Replica(slave.broker_addr, slave.position, wall_clock_ms(), level)
            node.recorder.greeted(slave.replica_id, replica)
        elif answer.outcome is Outcome.AHEAD:
            node.on_ahead(slave)

    # -- what goes ----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what there is, as far as there is room."""
        if self._ended or not self.node.awake:
            return
        log, progress = self.node.store.log, self.progress
        if not self.transfers:
            return
        try:
            while progress.sent < log.end and self._connection.has_room(self.node.name):
                size = self.node.world.source.choice((BATCH_BYTES, BATCH_BYTES, BATCH_BYTES, 700))
                window = log.transfer_window(progress.sent, size)
                if window is None:
                    break
                begin = progress.sent
                with window:
                    self.link._send_window(window)
                self._connection.coming += self.node.records_between(begin, progress.sent)
        except (CommitLogError, OSError) as error:
            self.node.world.note("{} cannot send to {}: {}", self.node, self.peer, error)
            self._end(cut=True)

    def drained(self) -> None:
        self.pump()

    def _look(self) -> None:
        if self._ended:
            return
        now_s = self.node.world.clock.now_s
        if now_s - self._last_read_s > HOUSEKEEPING_S:
            self.node.world.note("{}: {} is silent", self.node, self.peer)
            self._end(cut=False)
            return
        if self.transfers and now_s - self._transport.last_write_s >= HEARTBEAT_S:
            self.link._send_header(self.progress.sent, 0)
        self.node.after(LOOK_S, self._look)

    # -- its end ------------------------------------------------------------------------------------

    def closed(self) -> None:
        if not self._ended:
            self._end(cut=True)

    def _end(self, *, cut: bool) -> None:
        if self._ended:
            return
        self._ended = True
        node = self.node
        if self in node.ends:
            node.ends.remove(self)
        acked = self.progress.reported
        self._connection.close(node.name)
        if node.up:
            node.group.disconnected(self.progress, cut=cut)
            if self.replica_id:
                node.recorder.left(self.replica_id, max(acked, 0), wall_clock_ms())
            node.world.check_acks(node)

    def abandon(self, *, silent: bool = False) -> None:
        """The master is gone.  `silent`: without a word on the wire."""
        self._ended = True
        if not silent:
            self._connection.close(self.node.name)
        else:
            self._connection.forget(self.node.name)


class SlaveEnd:
    """The slave's client, over all its connections of one life."""

    def __init__(self, node: Node) -> None:
        self.node = node
        store = node.store
        self.master_end = -1
        self.level_s = 0.0
        self._connection: Connection | None = None
        self._reader = TransferReader(store.log.segment_bytes, RECEIVE_BYTES)
        self._check = RecordCheck(store.log.segment_bytes, store.log.end)
        self._rejoin = Rejoin(node.facts, node.lineage, store.log, store, flushes=node.flushes)
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, node.world.source)
        self._greeting: SlaveGreeting | None = None
        self._reported = -1
        self._last_read_s = self._last_write_s = 0.0
        self._started_end = 0
        self.refused = ""
        """Why the master and we do not come together; empty when they do."""
        self._ended = False

    def whole_end(self) -> int:
        """Where its last whole record ends."""
        return self._check.whole

    @property
    def transfers(self) -> bool:
        return self._connection is not None and self._greeting is None

    # -- connecting ---------------------------------------------------------------------------------

    def connect(self) -> None:
        node, world = self.node, self.node.world
        if self._ended or self._connection is not None:
            return
        master = world.master_of(node)
        if master is None:
            node.after(self._backoff.next_s(), self.connect)
            return
        self._reader.reset()
        self._started_end = node.store.log.end
        connection = world.network.connect(node.name, master.name, self, master.accept)
        if connection is None:
            node.after(CONNECT_S + self._backoff.next_s(), self.connect)
            return
        self._connection = connection
        now_s = world.clock.now_s
        self._last_read_s = self._last_write_s = now_s
        self._reported = -1
        try:
            self._cut_unfinished()
            self._greeting = self._rejoin.greeting()
        except (CommitLogError, OSError, ProtocolError) as error:
            self._lost(error)
            return
        connection.send(node.name, self._greeting.call())
        node.after(LOOK_S, self._look, connection)

    def _cut_unfinished(self) -> None:
        """A record that was not sent to its end is sent again."""
        store, check = self.node.store, self._check
        whole = check.connect(store.log.end, store.dispatcher.position, store.log.read)
        if whole < store.log.end:
            store.rewind(whole)
            self.node.world.cut(self.node, whole)
            check.stand_at(whole)

    # -- what comes ---------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        node = self.node
        connection = self._connection
        if self._ended or connection is None:
            return
        if not node.awake:
            node.after(0.0, self._received_later, connection, data)
            return
        self._last_read_s = node.world.clock.now_s
        try:
            view = memoryview(data)
            while view and self._connection is connection:
                space = self._reader.space()
                size = min(len(space), len(view))
                space[:size] = view[:size]
                self._reader.received(size)
                view = view[size:]
                self._take(connection)
        except (ProtocolError, CommitLogError, OSError) as error:
            self._lost(error)

    def _received_later(self, connection: Connection, data: bytes) -> None:
        if connection is self._connection:
            self.received(data)

    def _take(self, connection: Connection) -> None:
        while self._greeting is not None:
            frame = self._reader.peer_frame()
            if frame is None:
                return
            mark, body = frame
            if mark == HELLO_OFFSET:
                connection.send(self.node.name, self._greeting.heed(body))
            else:
                self._settle(self._greeting, body)
        self._transfer()

    def _settle(self, greeting: SlaveGreeting, body: bytes) -> None:
        node, store = self.node, self.node.store
        plan = greeting.settle(body)
        node.world.note("{} rejoins at {}: {} {}", node, plan.position, plan.step.value, plan.reason)
        try:
            self._rejoin.carry_out(greeting)
        finally:
            node.world.rejoined(node)
        self._check.stand_at(store.log.end)
        assert greeting.master is not None
        self.master_end = greeting.master.log.end
        self._greeting = None
        self.refused = ""
        self._report()

    def _transfer(self) -> None:
        log = self.node.store.log
        for run in self._reader.runs(log.end):
            self.master_end = max(self.master_end, run.end)
            self._append(run)
        if self._check.whole > self._reported:
            self._report()

    def _append(self, run: Run) -> None:
        log, world, node = self.node.store.log, self.node.world, self.node
        connection = self._connection
        assert connection is not None
        try:
            self._check.feed(run.offset, run.bodies)
        except BadRecord as bad:
            world.bad_record(node, str(bad))
            if bad.offset < log.end:
                node.store.rewind(bad.offset)
                world.cut(node, bad.offset)
            elif run.bodies:
                log.append_replica(run.offset, first_bytes(run.bodies, bad.offset - run.offset))
                world.replicated(node, connection.coming)
            raise
        log.append_replica(run.offset, run.bodies)
        world.replicated(node, connection.coming)
        node.appended_replica()

    def _report(self) -> None:
        node, connection = self.node, self._connection
        assert connection is not None
        if node.flushes:
            node.store.log.flush()
            node.world.flushed(node)
        whole = self._check.whole
        connection.send(node.name, REPORT.pack(whole))
        self._reported = whole
        self._last_write_s = node.world.clock.now_s

    def drained(self) -> None:
        pass

    def _look(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        now_s = self.node.world.clock.now_s
        if now_s - self._last_read_s > HOUSEKEEPING_S:
            self._lost(TimeoutError("the master says nothing"))
            return
        if self._greeting is None and now_s - self._last_write_s >= HEARTBEAT_S:
            try:
                self._report()
            except (CommitLogError, OSError) as error:
                self._lost(error)
                return
        self.node.after(LOOK_S, self._look, connection)

    # -- its end ------------------------------------------------------------------------------------

    def closed(self) -> None:
        if self._connection is not None and not self._ended:
            self._lost(ConnectionError("closed by the master"))

    def _lost(self, error: Exception) -> None:
        node, connection = self.node, self._connection
        assert connection is not None
        self._connection = None
        self._greeting = None
        connection.close(node.name)
        node.world.note("{} has lost its master: {}", node, error)
        pause_s = 0.0
        if isinstance(error, GreetingRefused):
            self.refused = str(error)
            pause_s = 0.2 if error.again else REFUSED_S
        if node.store.log.end > self._started_end:
            self._backoff.succeeded()
        if node.store.log.fenced:
            node.world.fenced(node)
            return
        node.after(max(pause_s, self._backoff.next_s()), self.connect)

    def change_master(self) -> None:
        """The name server names another one."""
        if self._connection is not None:
            self._lost(ConnectionError("there is a new master"))

    def abandon(self, *, silent: bool = False) -> None:
        """The slave is gone, or is none any more."""
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if silent:
            connection.forget(self.node.name)
        else:
            connection.close(self.node.name)
