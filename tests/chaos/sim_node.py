"""Node: one broker of a simulation.  Its store, its lineage and its decisions are the product's own.

    boot       Store.open over the simulated disk, then the role: roles/rules.py says which epoch, and what is held
    master     append → Durability → answers; MasterEnd per slave; looks at its role every second or five
    slave      SlaveEnd to the master that it knows of

What threads do in the product, events do here, one after the other.  What a node knows of the world it has
from its disk and from the wire; `records` is what the simulation knows of it.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog.errors import CommitLogError
from commitlog.kernel.records import NewMessage, encode_host, encode_properties
from commitlog.log.log import wall_clock_ms
from commitlog.options import FlushDiskType, LogOptions
from commitlog.store import Store
from haservice.broker.roles.describe import epoch_bodies, members_body
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import (
    RoleInForce,
    StartOfMaster,
    command_that_counts,
    may_have_lost_what_it_acknowledged,
    original_of,
)
from haservice.broker.roles.state import Begin, RoleState, Tick, Who
from haservice.broker.send.durability import Durability, PutStatus
from haservice.configuration.settings import BrokerRole, ReadMark
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import LineageBody, ReplicaBody
from haservice.replication.lineage.epochs import LogSpan
from haservice.replication.lineage.file import Replica, lacks_its_log, without_its_log, without_power
from haservice.replication.lineage.member_list import MemberList
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.lineage.own_record import why_older_copy
from haservice.replication.master.group_transfer import GroupTransferService
from haservice.replication.master.progress import AckTable, slaves_needed
from haservice.replication.master.read_mark import HighWaterMark
from haservice.replication.master.recorder import ReplicaRecorder
from haservice.replication.wire.greeting import Facts
from haservice.replication.wire.hello import SlaveHello
from tests.chaos.sim_disk import ProcessEnded, SimDisk, SimFiles
from tests.chaos.sim_ends import MasterEnd, SlaveEnd
from tests.chaos.sim_link import Connection
from tests.chaos.sim_roles import NAME, Answered, RoleDriver, SimLineageFile
from tests.chaos.sim_timed import Timed
from tests.support.proofs import Told

if TYPE_CHECKING:
    from tests.chaos.sim_world import Record, World

STORE_HOST = encode_host("10.0.0.1", 10911)
FLUSH_INTERVAL_S = 0.5
QUEUE_FLUSH_S = 1.0
FLUSH_TIMEOUT_S = 1.5
SLAVE_TIMEOUT_S = 1.5
KEEPER_S = 5.0
KEEPER_HELD_S = 1.0
RECORD_S = 1.0
FALLBEHIND_BYTES_MAX = 256 * 1024 * 1024


class Snapshot(NamedTuple):
    """A copy of a node's volume, and the records in its log."""

    root: Path
    content: dict[str, bytes]
    records: list[Record]


class Node(Timed):
    """One broker.  `up`: its process runs.  All else of a life is made by boot() and gone with it."""

    store: Store
    files: SimFiles
    lineage: SimLineageFile
    role: BrokerRole
    roles: RoleDriver
    members: MemberList
    fallbehind_bytes_max = FALLBEHIND_BYTES_MAX

    def __init__(
        self, world: World, name: str, root: Path, file_role: BrokerRole, flush: FlushDiskType
    ) -> None:
        super().__init__(world)
        self.name = name
        self.root = root
        self.file_role = file_role
        self.flush_type = flush
        self.disk = SimDisk(now_s=lambda: world.clock.now_s)
        self.boots = 1
        self.machines = 1
        self.skew_ms = 0
        self.broken = ""
        """Why it does not start; empty when it does."""
        self.records: list[Record] = []
        """Those that lie whole in its log, in order; of a node that is down, as it was when it went."""
        self.is_witness = True
        """Whether its volume is the one that acknowledged, or a master has told it since what it had acknowledged."""
        self.link: SlaveEnd | None = None
        self.ends: list[MasterEnd] = []

    def __repr__(self) -> str:
        return self.name

    @property
    def machine(self) -> str:
        """Which machine stands in its place: copies on one that was replaced were copies, too."""
        return self.name if self.machines == 1 else f"{self.name}{self.machines}"

    # -- time ---------------------------------------------------------------------------------------

    def clock_ms(self) -> int:
        return wall_clock_ms() + self.skew_ms

    @property
    def flushes(self) -> bool:
        """Whether its reports speak of flushed bytes."""
        return self.flush_type is FlushDiskType.SYNC_FLUSH

    @property
    def last_epoch(self) -> int:
        """The number of the newest epoch in its file."""
        last = self.lineage.state.lineage.last
        return last.number if last is not None else -1

    # -- life ---------------------------------------------------------------------------------------

    def options(self, role: BrokerRole) -> LogOptions:
        return LogOptions(
            root=self.root,
            segment_bytes=self.world.mode.segment_bytes,
            queue_file_bytes=20 * 64,
            index_enabled=False,
            flush_disk_type=self.flush_type,
            flush_least_pages=0,
            queue_flush_thorough_interval_ms=5000,
            replica=role.is_slave,
        )

    def boot(self) -> None:
        """Starts the process; what keeps it from starting is in `broken`."""
        assert not self.up
        self.life += 1
        self.files = SimFiles(self.disk)
        self.frozen_until_s = 0.0
        try:
            self._open()
        except (CommitLogError, OSError) as error:
            self.broken = f"{type(error).__name__}: {error}"
            self.world.note("{} does not start: {}", self.name, self.broken)
            self.files.end()
            return
        self.broken = ""
        if self.roles.state.turning:
            self.turn(self.roles.state.turning)

    def _open(self) -> None:
        self.files.make_directory(self.root)
        self.lineage = SimLineageFile(self.root, self.files, f"boot-{self.name}-{self.boots}")
        in_force = self._role_in_force()
        self.role = in_force.role
        if self.role.is_slave and (pledge := self.lineage.state.pledge) is not None:
            self.world.gave_way(self, pledge.broker_addr)
        heard = self.ask_peers()
        state = self.lineage.state
        if original := original_of(state.replica_id, self.name, heard.peers, is_slave=self.role.is_slave):
            self.world.note("{} is a copy of {}, and gets an id of its own", self.name, original)
            self.lineage.update(replica_id=uuid.uuid4().hex, replicas={}, command=None, handing_over=None)
        self.store = Store.open(
            self.options(self.role), store_host=STORE_HOST, clock_ms=self.clock_ms, files=self.files
        )
        self.up = True
        try:
            self.world.recovered(self)
            who = Who(in_force, self.name, self.name, slaves_needed(self.world.mode.in_sync_replicas))
            self.roles = RoleDriver(self, RoleState(who))
            if not self.role.is_slave:
                self._begin_as_master(heard)
            if not self.roles.state.turning:
                (self._start_slave if self.role.is_slave else self._start_master)()
                self.after(QUEUE_FLUSH_S, self._flush_queues)
                self.after(FLUSH_INTERVAL_S, self._flush_seldom)
                self.after(0.0, self._look)
        except BaseException:
            self.up = False
            self.store.close(clean=False)
            raise

    def _begin_as_master(self, heard: Heard) -> None:
        """It gives way, or begins its epoch, or waits.  Raises OSError when it cannot begin."""
        log = self.store.log
        self.group = self._make_group()  # an epoch that begins now counts by its list
        start = StartOfMaster(
            log=LogSpan(log.start, log.end),
            stopped_cleanly=self.store.recovery.clean,
            booted_anew=self.lineage.booted_anew,
            flushes_at_once=self.flush_type is FlushDiskType.SYNC_FLUSH,
            sync_master=self.role is BrokerRole.SYNC_MASTER,
            had_end=self.store.recovery.had_end,
            has_own_marks=self.store.checkpoint.positions.known is not None,
        )
        self.roles.begin(Begin(heard, start))
        if self.roles.state.broken:
            raise OSError(self.roles.state.broken)

    def _make_group(self) -> GroupTransferService[Any]:
        log = self.store.log
        self.table = AckTable(log.segment_bytes, log.end, slaves_needed(self.world.mode.in_sync_replicas))
        group: GroupTransferService[Any] = GroupTransferService(self.table, self._acked, lambda: None)
        self.members = MemberList(self.lineage, group, lambda: self.store.log.end)
        return group

    def _role_in_force(self) -> RoleInForce:
        state = self.lineage.state
        command = command_that_counts(self.file_role, state, wall_clock_ms())
        if command != state.command:
            self.world.note("{} is no master by its command, which is over", self.name)
            self.lineage.update(command=command)
        file_id = 1 if self.file_role.is_slave else 0
        return RoleInForce(self.file_role, file_id, self.file_role, file_id).by(command)

    # -- its role -----------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        return Facts("cluster", NAME, self.name)

    def requested(self, header: ExtHeader, answered: Answered) -> None:
        """A request about roles, over the network."""
        self.roles.ask(header, answered)

    def describe(self, role: RoleInForce | None = None) -> LineageBody:
        log, state = self.store.log, self.lineage.state
        in_role = role.role if role is not None else self.role
        master_end = self.link.master_end if self.link is not None else -1
        is_kept = self.role.is_slave and master_end < 0 <= state.master_end
        return LineageBody(
            cluster_name="cluster",
            broker_name=NAME,
            broker_addr=self.name,
            ha_addr=self.name,
            broker_id=1 if in_role.is_slave else 0,
            file_broker_id=0,
            role=in_role.value,
            replica_id=state.replica_id,
            segment_bytes=log.segment_bytes,
            log_start=log.start,
            log_end=log.end,
            flushed=log.flushed,
            epochs=epoch_bodies(state.lineage.epochs),
            held="" if in_role.is_slave else self.roles.state.held or log.writable or "",
            master_end=state.master_end if is_kept else master_end,
            master_end_kept=is_kept,
            master_addr=self.world.registered if in_role.is_slave else "",
            master_role=state.master_role,
            replicas=[
                ReplicaBody(name, one.broker_addr, one.offset, one.seen_ms, one.in_sync)
                for name, one in state.replicas.items()
            ],
            changing=self.roles.changing,
            handing_over=self.roles.state.token,
            members=members_body(state.members),
            whole_from=state.whole_from,
            pledged=state.pledge.epoch if state.pledge is not None else -1,
            pledged_to=state.pledge.broker_addr if state.pledge is not None else "",
            past=epoch_bodies(state.past),
        )

    def ask_peers(self) -> Heard:
        return Heard([node.describe() for node in self.world.peers_of(self)], {})

    def following(self) -> list[MasterEnd]:
        """Slaves of ours that follow now."""
        return [end for end in self.ends if end.replica_id and end.transfers]

    def followers(self) -> list[str]:
        return [end.replica_id for end in self.following()]

    def list_with(self, slave: SlaveHello) -> ReplicaList:
        listed = self.members.with_slave(slave)
        self.call_back()
        return listed

    def acked_by(self, slave: SlaveHello) -> int:
        known = self.lineage.state.replicas.get(slave.replica_id)
        return known.offset if known is not None else -1

    def why_older(self, slave: SlaveHello) -> str:
        if self.role is not BrokerRole.SYNC_MASTER:
            return ""
        kept = self.lineage.state
        who, listed = (slave.replica_id, slave.broker_addr), slave.members
        return why_older_copy(kept, *who, listed, slave.lineage, slave.log.end)

    def call_back(self) -> None:
        """Slaves that have to be given the present list dial again."""
        for end in self.following():
            if self.members.has_to_hear(end.replica_id, end.link.listed.version):
                end.send_away()

    def take_list(self, *, regreet: bool) -> None:
        if self.role.is_slave:
            return
        self.members.take((end.replica_id, end.link.listed.version) for end in self.following())
        self.call_back()
        for end in list(self.ends):
            if regreet and end.link.called:
                end.send_away()

    def pulled_back(self, peer: Node) -> None:
        self.world.pulled(self, peer)
        self._after_append()

    def _look(self) -> None:
        self.roles.put(Tick())
        state = self.roles.state
        pause_s = 0.001 if state.again else KEEPER_HELD_S if state.is_urgent else KEEPER_S
        self.after(pause_s, self._look)

    def _end_life(self) -> None:
        """The process is gone, and with it all that it had in memory."""
        self.up = False
        self.life += 1
        self.link = None
        self.ends = []

    def crash(self, *, silent: bool = False) -> None:
        """F1: the page cache stays.  `silent`: with the whole machine, so that no peer is told."""
        if not self.up:
            return
        for end in (*self.ends, *([self.link] if self.link is not None else [])):
            end.abandon(silent=silent)
        self._end_life()
        self.files.end()
        with suppress(ProcessEnded):
            self.store.close(clean=False)
        self.world.went_down(self, "crash")

    def power_cut(self) -> None:
        """F2: what was not synced is lost, any subset of it."""
        self.crash(silent=True)
        self.disk.power_cut(self.world.source)
        self.boots += 1
        self.skew_ms += self.world.source.choice((0, 0, 0, -2000, 5000))

    def wipe(self) -> None:
        """F3: another machine takes its place, with an empty disk, and as a slave."""
        self.crash(silent=True)
        self.world.wiped(self)
        self.disk = SimDisk(now_s=lambda: self.world.clock.now_s)
        self.boots += 1
        self.machines += 1
        self.file_role = BrokerRole.SLAVE

    def snapshot(self) -> Snapshot:
        """A copy of its volume as it is now, lineage and all."""
        return Snapshot(self.root, self.disk.copy(), list(self.records))

    def put_back(self, copy: Snapshot) -> None:
        """Its volume is replaced by an older copy of itself, and mounted; its process is down."""
        assert not self.up
        self.disk.put_back(copy.content)
        self.boots += 1
        self._has_another_log(copy.records)

    def become_copy(self, copy: Snapshot) -> None:
        """Another machine takes its place, as a slave, with a copy of another node's store."""
        self.wipe()
        was, now = str(copy.root), str(self.root)
        self.disk.put_back({path.replace(was, now, 1): data for path, data in copy.content.items()})
        self.disk.directories.update(str(one) for path in self.disk.files for one in Path(path).parents)
        self._has_another_log(copy.records)

    def unmount_log(self) -> None:
        """The disk of its log is not there at the next start."""
        assert not self.up
        self.disk.remove_below(str(self.options(self.file_role).log_path))
        self._has_another_log([])

    def _has_another_log(self, records: list[Record]) -> None:
        self.is_witness = False
        self.world.has_another_log(self, records)

    def stop_cleanly(self) -> None:
        if not self.up:
            return
        if self.link is not None:
            self.link.abandon()
        for end in list(self.ends):
            end.abandon()
        if not self.role.is_slave and not self.roles.state.broken and hasattr(self, "durability"):
            self.durability.settle_all()
        clean = not self.roles.state.must_begin_anew
        self._end_life()
        try:
            self.store.close(clean=clean)
        except (CommitLogError, OSError) as error:
            self.world.note("{} not stopped cleanly: {}", self.name, error)
        self.files.end()
        self.world.went_down(self, "stop")

    def turn(self, why: str) -> None:
        """Stops and starts again in the same process, in what role is written by now."""
        self.world.note("{} turns: {}", self.name, why)
        self.stop_cleanly()
        self.boot()
        if not self.up:
            self.world.clock.after(1.0, self.world.start_again, self)

    # -- the master ---------------------------------------------------------------------------------

    def _start_master(self) -> None:
        sync = self.role is BrokerRole.SYNC_MASTER
        self.durability = Durability(
            flush=self.store.flusher if self.flush_type is FlushDiskType.SYNC_FLUSH else None,
            replica=self if sync else None,
            flush_timeout_s=FLUSH_TIMEOUT_S,
            replica_timeout_s=SLAVE_TIMEOUT_S,
            call_soon=lambda call: self.after(0.0, call),
        )
        self.store.flusher.on_done = self.durability.flushed
        self.recorder = ReplicaRecorder(self.lineage, self._replicas)
        self.mark = HighWaterMark(self.world.mode.read_mark, FALLBEHIND_BYTES_MAX)
        self._flush_due = self._dispatch_due = False
        self.alone_end = 0
        """Up to where all is shown, on a slave or not: IN_SYNC while none is there."""
        self.take_list(regreet=False)
        self.world.master_started(self)
        self.after(RECORD_S, self._record)

    def _record(self) -> None:
        self.recorder._record()
        self.after(RECORD_S, self._record)

    def _replicas(self) -> dict[str, Replica]:
        """Who follows now, as HAService gives it to the recorder."""
        log_end = self.store.log.end
        return {
            end.replica_id: Replica(
                end.peer,
                end.progress.reported,
                wall_clock_ms(),
                log_end - end.progress.reported < FALLBEHIND_BYTES_MAX,
            )
            for end in self.ends
            if end.replica_id and end.transfers
        }

    def _acked(self, waits: list[Any], ok: bool) -> None:
        self.durability.replicated(waits, ok)

    def is_slave_ok(self, end: int) -> bool:
        furthest = self.group.furthest()
        return furthest >= 0 and end - furthest < FALLBEHIND_BYTES_MAX

    def await_ack(self) -> None:
        """No time passes within a step."""

    def submit(self, end: int, deadline_s: float, waiter: Any) -> bool:
        proven = self.group.submit(end, deadline_s, waiter)
        if not proven:
            self.after(deadline_s - self.world.clock.now_s + 0.001, self._expire)
        return proven

    def _expire(self) -> None:
        stop = threading.Event()
        stop.set()
        expired = self.group._next_expired(stop)
        if expired:
            self.durability.replicated(expired, False)

    def readable_end(self) -> int:
        """As HAService says it."""
        end = self.store.log.flushed if self.flushes else self.store.log.end
        if self.role is not BrokerRole.SYNC_MASTER:
            return end
        if not self.is_slave_ok(end) and self.world.mode.read_mark is not ReadMark.STRICT:
            self.alone_end = end
        return self.mark.readable_end(self.group.furthest(), end)

    def send(
        self, topic: str, queue: int, body: bytes, key: str, answer: Callable[[str, Record | None], None]
    ) -> None:
        """A producer's message; `answer(status, record)` comes once."""
        if self.role.is_slave:
            answer("REFUSED", None)
            return
        message = NewMessage(topic, queue, body, encode_properties({"KEYS": key}))
        try:
            appended = self.store.log.append(message)
        except CommitLogError as error:
            self.world.note("{} refuses {}: {}", self.name, key, error)
            answer("REFUSED", None)
            return
        place = (topic, queue, appended.queue_offset)
        record = self.world.appended(self, key, place, appended.physical_offset, appended.end)
        self._after_append()

        def settled(status: PutStatus) -> None:
            text = "OK" if status is PutStatus.PUT_OK else status.name
            self.world.answering(self, record, text)
            answer(text, record)

        status = self.durability.put_status(appended.end, Told(settled))
        if status is not None:
            settled(status)

    def _after_append(self) -> None:
        if self.flush_type is FlushDiskType.SYNC_FLUSH and not self._flush_due:
            self._flush_due = True
            self.after(self.world.source.uniform(0.0005, 0.006), self._flush_now)
        if not self._dispatch_due:
            self._dispatch_due = True
            self.after(self.world.source.uniform(0.0005, 0.005), self._dispatch)
        for end in list(self.ends):
            end.pump()

    def _flush_now(self) -> None:
        self._flush_due = False
        self._flush()
        if (
            not self.role.is_slave
            and self.store.log.flushed < self.store.log.end
            and not self.store.log.fenced
        ):
            self._flush_due = True
            self.after(0.01, self._flush_now)

    def _flush_seldom(self) -> None:
        self._flush()
        self.after(FLUSH_INTERVAL_S, self._flush_seldom)

    def _flush(self) -> None:
        self.store.flusher.step()
        self.world.flushed(self)
        if self.store.log.fenced:
            self.world.fenced(self)

    def _dispatch(self) -> None:
        self._dispatch_due = False
        try:
            while self.store.dispatcher.step():
                pass
        except OSError:
            if not self._dispatch_due:
                self._dispatch_due = True
                self.after(0.2, self._dispatch)

    def _flush_queues(self) -> None:
        self.store.queue_flusher.step()
        self.after(QUEUE_FLUSH_S, self._flush_queues)

    def accept(self, connection: Connection) -> MasterEnd | None:
        """A slave connects; None if nobody listens."""
        if not self.awake or self.role.is_slave:
            return None
        end = MasterEnd(self, connection)
        self.ends.append(end)
        return end

    # -- the slave ----------------------------------------------------------------------------------

    def _start_slave(self) -> None:
        self._flush_due = self._dispatch_due = False
        lost = may_have_lost_what_it_acknowledged(
            stopped_cleanly=self.store.recovery.clean,
            booted_anew=self.lineage.booted_anew,
            flushes_at_once=self.flushes,
        )
        log, state = self.store.log, self.lineage.state
        changes = without_power(state, log.end) if lost else {}
        if lacks_its_log(state, LogSpan(log.start, log.end)) or self.store.recovery.had_end > log.end:
            changes = without_its_log(state)
            self.world.note("{} lacks its log from {} on", self, log.end)
        self.lineage.update(boot_id=self.lineage.boot, **changes)
        self.link = SlaveEnd(self)
        self.after(self.world.source.uniform(0.0, 0.05), self.link.look_up_master)

    def appended_replica(self) -> None:
        """Bytes came from the master."""
        if not self._dispatch_due:
            self._dispatch_due = True
            self.after(self.world.source.uniform(0.0005, 0.01), self._dispatch)

    # -- what the simulation knows --------------------------------------------------------------------

    def holds(self, record: Record) -> bool:
        index = bisect_right(self.records, record.offset, key=lambda one: one.offset) - 1
        return index >= 0 and self.records[index] is record

    def records_between(self, begin: int, end: int) -> Sequence[Record]:
        """Those that end behind `begin`, and no later than `end`."""
        first = bisect_right(self.records, begin, key=lambda one: one.end)
        last = bisect_right(self.records, end, key=lambda one: one.end)
        return self.records[first:last]

    def log_bytes(self) -> bytes:
        """Every byte of its log."""
        log, parts = self.store.log, []
        offset = log.start
        while data := log.read(offset, log.segment_bytes):
            parts.append(data)
            offset += len(data)
        return b"".join(parts)
