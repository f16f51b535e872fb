"""Both ends of a replication connection, on virtual time.

    MasterEnd    what HAConnection's threads do: greeting, reports → acks, log → frames, heartbeats; an append
                 pushes by itself, as in the product
    SlaveEnd     what ha-client does: carries out what the SlaveSession wants, and tells it what came

The session, the connection's own methods, the greetings, the readers, the ack table, the record check and the
rejoining are the product's; here is only what a socket and a thread would do between them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from commitlog.disk.files import Buffer
from commitlog.errors import CommitLogError
from commitlog.log.log import wall_clock_ms
from haservice.broker.metadata.registration import MASTER_WANTED_S
from haservice.broker.roles.state import Hint, SlaveAhead, Tick
from haservice.configuration.settings import ReplicationConfig
from haservice.errors import ProtocolError
from haservice.replication.lineage.file import Replica
from haservice.replication.master.connection import HAConnection
from haservice.replication.master.progress import LogRange
from haservice.replication.rates_and_backoff import Backoff, Growth
from haservice.replication.slave.actions import (
    Action,
    Break,
    Close,
    Cut,
    Dial,
    EndAt,
    FlushLog,
    ForgetEpochs,
    LogLine,
    Send,
    StoreRuns,
)
from haservice.replication.slave.actions import RejoinMaster as DoRejoin
from haservice.replication.slave.record_check import BadRecord, RecordCheck, first_bytes
from haservice.replication.slave.rejoin import Rejoin
from haservice.replication.slave.session import REFUSED, SlaveSession
from haservice.replication.slave.states import State
from haservice.replication.wire.greeting import GreetingAnswer, GreetingOutcome, MasterGreeting, SlaveGreeting
from haservice.replication.wire.protocol import (
    TRANSFER_HEADER,
    MasterState,
    ReportReader,
    Run,
    TransferReader,
)
from haservice.replication.wire.transport import send_each_frame
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
CONFIG = ReplicationConfig(
    heartbeat_interval_ms=int(HEARTBEAT_S * 1000),
    housekeeping_interval_ms=int(HOUSEKEEPING_S * 1000),
    transfer_batch_bytes=BATCH_BYTES,
)


class MasterTransport:
    """A connection as HAConnection's Transport; what would block does not happen here.

    `ended` is whether somebody has shut it down, a push that met a broken link for one.
    """

    def __init__(self, node: Node, connection: Connection) -> None:
        self._node = node
        self._connection = connection
        self.last_write_s = node.world.clock.now_s
        self.ended = False

    @property
    def prompt(self) -> MasterTransport:
        return self

    @property
    def peer_name(self) -> str:
        return self._connection.other(self._node.name)

    def send(self, data: bytes, flags: int = 0) -> int:
        self.last_write_s = self._node.world.clock.now_s
        self._connection.send(self._node.name, bytes(data))
        return len(data)

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """A push: mostly all of it, now and then as much as a full socket takes, or nothing; or the link is
        found broken."""
        node, source, data = self._node, self._node.world.source, b"".join(buffers)
        if not node.awake or not self._connection.has_room(node.name):
            return 0
        chance = source.random()
        if chance < 0.002:
            raise ConnectionResetError(errno.ECONNRESET, "a push meets a broken link")
        return self.send(data[: source.randrange(len(data))] if chance < 0.1 else data)

    def send_frame_now(self, offset: int, body: Buffer) -> int:
        return self.send_now((TRANSFER_HEADER.pack(offset, len(body)), body))

    def send_file(self, fd: int, position: int, count: int) -> int:
        data = self._node.files.pread(fd, count, position)
        self._connection.send(self._node.name, data)
        return len(data)

    def send_frames(self, fd: int, position: int, offset: int, count: int, most: int) -> None:
        send_each_frame(self, fd, position, offset, count, most)

    def shut_down(self) -> None:
        self.ended = True

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
        self._told = 0  # up to where the simulation knows what is under way
        self._last_read_s = node.world.clock.now_s
        self._ended = False
        greeting = MasterGreeting(
            node.facts,
            node.lineage.state.replica_id,
            node.role.value,
            node.store.log,
            lambda: node.lineage.state.lineage,
            members=node.list_with,
            acked=node.acked_by,
            older=node.why_older,
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
            self._told = progress.sent
            self.link.outgoing.open()
            if self.replica_id:
                node.members.known_to(self.replica_id, self.link.listed.version)
                node.call_back()
        self.pump()

    def _greeted(self, _: HAConnection, answer: GreetingAnswer) -> None:
        node, slave = self.node, answer.slave
        node.world.note(
            "{} greets {} at {}: {} {}",
            *(node, self.peer, slave.position, answer.outcome.value, answer.verdict.reason),
        )
        if answer.outcome is GreetingOutcome.ACCEPTED:
            self.replica_id = slave.replica_id
            level = node.store.log.end - slave.position < node.fallbehind_bytes_max
            replica = Replica(slave.broker_addr, slave.position, wall_clock_ms(), level)
            node.recorder.greeted(slave.replica_id, replica)
        elif answer.outcome in (GreetingOutcome.AHEAD, GreetingOutcome.OLDER_COPY):
            node.roles.put(SlaveAhead(slave.replica_id, slave.broker_addr))
        elif answer.outcome is GreetingOutcome.OLD_MASTER:
            node.roles.put(Hint(slave.broker_addr))
            node.roles.put(Tick())

    # -- what goes ----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what appends have not pushed, as far as there is room."""
        if self._ended or not self.node.awake or not self.transfers:
            return
        try:
            if self.link.outgoing.failed is not None:
                raise self.link.outgoing.failed
            self._write()
        except (CommitLogError, OSError) as error:
            self.node.world.note("{} cannot send to {}: {}", self.node, self.peer, error)
            self._end(cut=True)
        self._connection.coming += self.node.records_between(self._told, self.progress.sent)
        self._told = self.progress.sent

    def _write(self) -> None:
        """As ha-write does, with frames of other sizes."""
        log, outgoing, source = self.node.store.log, self.link.outgoing, self.node.world.source
        with outgoing._turn:
            if outgoing._rest is not None and self._connection.has_room(self.node.name):
                outgoing._send_rest(outgoing._rest)
            if outgoing._rest is not None:
                return
            while self.progress.sent < log.end and self._connection.has_room(self.node.name):
                size = source.choice((BATCH_BYTES, BATCH_BYTES, BATCH_BYTES, 700))
                window = log.transfer_window(self.progress.sent, size)
                if window is None:
                    break
                with window:
                    outgoing.send_window(window)

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
        due = now_s - self._transport.last_write_s >= HEARTBEAT_S
        if self.transfers and due and self.link.outgoing.position() == self.progress.sent:
            self.link.outgoing.send_heartbeat()
        self.node.after(LOOK_S, self._look)

    # -- its end ------------------------------------------------------------------------------------

    def closed(self) -> None:
        if not self._ended:
            self._end(cut=True)

    def send_away(self) -> None:
        """A slave that is to greet anew."""
        self._end(cut=False)

    def _end(self, *, cut: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self.link.outgoing.close()
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
        self.link.outgoing.close()
        if not silent:
            self._connection.close(self.node.name)
        else:
            self._connection.forget(self.node.name)


class SlaveEnd:
    """The slave's client, over all its connections of one life: carries out what its SlaveSession wants."""

    def __init__(self, node: Node) -> None:
        self.node = node
        store = node.store
        self._connection: Connection | None = None
        self._rejoin = Rejoin(node.facts, node.lineage, store.log, store, flushes=node.flushes)
        self.session = SlaveSession(
            CONFIG,
            store.log,
            RecordCheck(store.log.segment_bytes, store.log.end),
            boundary=lambda: store.dispatcher.position,
            greet=self._rejoin.greeting,
            flushes=node.flushes,
            damage=lambda: store.dispatcher.failed,
            objection=self._rejoin.objection,
            backoff=Backoff(RETRY_FIRST_S, RETRY_MAX_S, node.world.source),
            reader=TransferReader(store.log.segment_bytes, RECEIVE_BYTES),
        )
        self._looks_s = float("inf")  # when it looks at the time next
        self._looks_up = False
        self._ended = False

    def whole_end(self) -> int:
        """Where its last whole record ends."""
        return self.session.whole

    @property
    def transfers(self) -> bool:
        return self.session.state is State.TRANSFER

    @property
    def master_end(self) -> int:
        return self.session.master_end

    @property
    def refused(self) -> str:
        """Why the master and we do not come together; empty when they do."""
        lineage = self.session.lineage
        return lineage.removeprefix(REFUSED) if lineage.startswith(REFUSED) else ""

    # -- what happens -------------------------------------------------------------------------------

    def look_up_master(self) -> None:
        """The nameserver's word has come: another master is followed from now on, unless one is there."""
        if self.session.greeted_by:
            return
        master = self.node.world.master_of(self.node)
        if master is not None and master.name != self.session.address:
            self._event(lambda: self.session.told(master.name))

    def _look_up_soon(self) -> None:
        """As a broker registers that misses its master, every second until it has one."""
        if not self._looks_up:
            self._looks_up = True
            self.node.after(MASTER_WANTED_S, self._look_up_again)

    def _look_up_again(self) -> None:
        self._looks_up = False
        if not self._ended and not self.transfers:
            self.look_up_master()
            self._look_up_soon()

    def greet_again(self) -> None:
        """Leaves its link and dials again, to the master that it knows of now."""
        master = self.node.world.master_of(self.node)
        address = master.name if master is not None else self.session.address
        if address is not None:
            self._event(lambda: self.session.told(address))

    def received(self, data: bytes) -> None:
        self._on_connection(lambda: self._receive(memoryview(data)))

    def closed(self) -> None:
        self._on_connection(lambda: self._event(lambda: self.session.closed(self._now_s)))

    def drained(self) -> None:
        pass

    def _on_connection(self, call: Callable[[], None]) -> None:
        """Now, or, of a node that is frozen, when it thaws; nothing of a connection that has ended."""
        connection = self._connection

        def there() -> None:
            if connection is not None and connection is self._connection:
                call()

        if self.node.awake:
            there()
        else:
            self.node.after(0.0, there)

    def _receive(self, view: memoryview) -> None:
        connection = self._connection
        while view and self._connection is connection:
            space = self.session.space()
            size = min(len(space), len(view))
            space[:size] = view[:size]
            view = view[size:]
            self._event(lambda size=size: self.session.received(size, self._now_s))  # type: ignore[misc]

    def _look(self) -> None:
        """Time has passed."""
        self._looks_s = float("inf")
        self._event(lambda: self.session.tick(self._now_s))

    def _event(self, event: Callable[[], Sequence[Action]]) -> None:
        if self._ended:
            return
        try:
            self._do_all(event())
        except (ProtocolError, CommitLogError, OSError) as error:
            self._lost(error)
        wake_s = self.session.wake_s
        if wake_s is not None and wake_s < self._looks_s:
            self._looks_s = wake_s
            self.node.after(max(0.0, wake_s - self._now_s), self._look)

    @property
    def _now_s(self) -> float:
        return self.node.world.clock.now_s

    def _lost(self, error: Exception) -> None:
        node = self.node
        if isinstance(error, BadRecord):
            node.world.bad_record(node, str(error))
        self._do_all(self.session.lost(error, self._now_s))
        self._look_up_soon()
        if node.store.log.fenced:
            self._ended = True
            node.world.fenced(node)

    # -- what is to be done -------------------------------------------------------------------------

    def _do_all(self, actions: Sequence[Action]) -> None:
        while actions:
            following: Sequence[Action] = ()
            for action in actions:
                following = self._do(action)
            actions = following

    def _do(self, action: Action) -> Sequence[Action]:
        node, session = self.node, self.session
        match action:
            case Dial(address):
                return self._dial(node.world.nodes[address])
            case Close():
                self._close()
            case Send(data):
                assert self._connection is not None
                self._connection.send(node.name, data)
            case Cut(offset):
                self._cut(offset)
            case StoreRuns(runs):
                for run in runs:
                    self._append(run.offset, run.bodies)
                return session.stored(self._now_s)
            case EndAt(offset, run):
                self._end_at(offset, run)
            case ForgetEpochs():
                self._rejoin.follow_stock()
            case FlushLog():
                node.store.log.flush()
                node.world.flushed(node)
                return session.flushed(self._now_s)
            case DoRejoin(greeting):
                return self._do_rejoin(greeting)
            case Break(error):
                raise error
            case LogLine(_, text, values):
                node.world.note("{}: {}", node, text % values)
        return ()

    def _dial(self, master: Node) -> Sequence[Action]:
        node, world, session = self.node, self.node.world, self.session
        if not world.network.talk(node.name, master.name):
            node.after(CONNECT_S, self._not_reached, master.name)
            return ()
        self._connection = world.network.connect(node.name, master.name, self, master.accept)
        if self._connection is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{master} does not listen")
        session.reached()
        return session.connected(self._now_s)

    def _not_reached(self, address: str) -> None:
        if self.session.state is State.DIALLING and self.session.address == address:
            silent = TimeoutError(errno.ETIMEDOUT, f"{address} is not reached")
            self._event(lambda: (Break(silent),))

    def _append(self, offset: int, bodies: Sequence[memoryview]) -> None:
        node, connection = self.node, self._connection
        assert connection is not None
        node.store.log.append_replica(offset, bodies)
        node.world.replicated(node, connection.coming)
        node.appended_replica()

    def _cut(self, offset: int) -> None:
        self.node.store.log.truncate(offset)
        self.node.world.cut(self.node, offset)

    def _end_at(self, offset: int, run: Run) -> None:
        with suppress(CommitLogError):
            if offset < self.node.store.log.end:
                self._cut(offset)
            elif offset > run.offset:
                self._append(run.offset, first_bytes(run.bodies, offset - run.offset))

    def _do_rejoin(self, greeting: SlaveGreeting) -> Sequence[Action]:
        world, node, plan = self.node.world, self.node, greeting.plan
        assert plan is not None
        world.note("{} rejoins at {}: {} {}", node, plan.position, plan.step.value, plan.reason)
        try:
            self._rejoin.carry_out(greeting)
        finally:
            world.rejoined(node)
        node.is_witness = True
        return self.session.rejoined(self._now_s)

    # -- its end ------------------------------------------------------------------------------------

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(self.node.name)

    def abandon(self, *, silent: bool = False) -> None:
        """The slave is gone, or is none any more."""
        self._ended = True
        if silent and self._connection is not None:
            self._connection.forget(self.node.name)
            self._connection = None
        self._close()
