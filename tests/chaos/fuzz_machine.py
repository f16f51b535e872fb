"""Log and acks against a model: append, flush, connect, send, ack, lie, cut, crash, in any order.

The master's log, its ack table and its waits are the real ones, and so are the slaves' logs, on disks in
memory.  The model knows which bytes each slave has truly held when it said so.  What must always hold:

    a wait that was answered OK, and an end that is proven      held by as many slaves as it takes
    a slave that is connected                                  its log is the master's, byte for byte
    a slave that broke no rule                                 is never refused, whoever else lied
    after a crash                                              every flushed byte is there
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from commitlog.store import Store
from haservice.replication.master.group_transfer import GroupTransferService
from haservice.replication.master.progress import AckTable, LogRange, ReportRefused, SlaveProgress
from haservice.replication.wire.protocol import REPORT_NOT_YET, MasterState
from tests.chaos.crash_stories import open_store
from tests.chaos.disk import MemoryDisk, in_memory
from tests.chaos.disk_states import Loss
from tests.support.messages import Clock, message

SEGMENT_BYTES = 4096
SLAVES = 3
NEVER_S = 1e12


@dataclass(eq=False)
class Slave:
    """A slave's store; `tainted` once it holds bytes that its master has lost."""

    name: str
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    store: Store | None = None
    tainted: bool = False
    greeted: bool = False
    """In this life of the master: it goes on greeting then."""
    flushed: int = 0
    held: list[tuple[int, int]] = field(default_factory=list)
    """(low, high] of what it has held, in this life of the master, when it said so."""

    @property
    def log(self):  # type: ignore[no-untyped-def]
        assert self.store is not None
        return self.store.log

    def open(self) -> None:
        self.store = open_store(self.disk, Clock(), segment_bytes=SEGMENT_BYTES, replica=True)

    def wipe(self) -> None:
        self.disk, self.tainted, self.flushed = MemoryDisk(), False, 0
        self.open()


@dataclass(eq=False)
class Link:
    """One connection: bytes under way to the slave, reports under way to the master."""

    slave: Slave
    progress: SlaveProgress
    live: bool = True
    """The slave still has its end; else only what is under way may arrive."""
    frames: deque[tuple[int, bytes]] = field(default_factory=deque)
    reports: deque[int] = field(default_factory=deque)


class LogAndAcks(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._seams = in_memory()
        self._seams.__enter__()
        self.chance = random.Random(4)
        self.disk = MemoryDisk()
        self.slaves = [Slave(f"10.0.0.{number}") for number in range(SLAVES)]
        for slave in self.slaves:
            slave.open()
        self.links: list[Link] = []
        self.flushed = 0
        self.number = 0
        self.needed = 1
        self.waits: dict[int, int] = {}
        self.ends: list[int] = []
        self._open_master()

    def teardown(self) -> None:
        self._seams.__exit__(None, None, None)

    @initialize(needed=st.integers(1, 2))
    def begin(self, needed: int) -> None:
        self.needed = needed
        self._live_anew()

    # -- the master --------------------------------------------------------------------------------

    def _open_master(self) -> None:
        self.store = open_store(self.disk, Clock(), segment_bytes=SEGMENT_BYTES)
        self._live_anew()

    def _live_anew(self) -> None:
        log = self.store.log
        self.flushed = log.flushed  # what a start finds is flushed like all else
        self.waits.clear()
        self.ends = [end for end in self.ends if end <= log.end]
        self.links.clear()
        self.table = AckTable(log.segment_bytes, log.end, self.needed)
        self.group: GroupTransferService[int] = GroupTransferService(self.table, self._answered)
        for slave in self.slaves:
            slave.held.clear()
            slave.greeted = False

    @property
    def _range(self) -> LogRange:
        return LogRange(self.store.log.start, self.store.log.end)

    def _bytes(self, begin: int, end: int) -> bytes:
        data = bytearray()
        while begin < end:
            piece = self.store.log.read(begin, end - begin)
            data += piece
            begin += len(piece)
        return bytes(data)

    @rule(size=st.integers(1, 1500))
    def append(self, size: int) -> None:
        self.number += 1
        body = b"%d." % self.number * (size // 4 + 1)
        end = self.store.log.append(message(body[:size])).end
        self.ends.append(end)
        self.waits[self.number] = end
        if self.group.submit(end, NEVER_S, self.number):
            self._answered([self.number], True)

    def _answered(self, waiters: list[int], ok: bool) -> None:
        for waiter in waiters:
            end = self.waits.pop(waiter)
            assert ok, "no deadline has come"
            self._check_held(end)

    def _check_held(self, end: int) -> None:
        holders = [slave for slave in self.slaves if any(low < end <= high for low, high in slave.held)]
        assert len(holders) >= self.needed, f"{end} is told to be on {self.needed}, and is on {len(holders)}"

    @rule()
    def flush(self) -> None:
        self.flushed = self.store.log.flush()

    @rule(loss=st.sampled_from(Loss), choice=st.integers(0, 1 << 30))
    def crash_master(self, loss: Loss, choice: int) -> None:
        before = self._bytes(0, self.store.log.end)
        flushed = self.flushed if loss is not Loss.NOTHING else self.store.log.end
        self.disk = self.disk.after_crash(loss, random.Random(choice))
        self._open_master()
        log = self.store.log
        assert log.end >= flushed, f"flushed up to {flushed}, found up to {log.end}"
        assert self._bytes(0, log.end) == before[: log.end]
        for slave in self.slaves:
            slave.tainted |= slave.log.end > log.end

    # -- slaves ------------------------------------------------------------------------------------

    @rule(number=st.integers(0, SLAVES - 1), greets=st.booleans())
    def connect(self, number: int, greets: bool) -> None:
        slave = self.slaves[number]
        for link in self.links:
            if link.slave is slave:
                link.live = False
        greets = greets or slave.greeted
        if slave.tainted:
            if not greets:
                self._refused(slave)
                return
            slave.wipe()
        link = Link(slave, SlaveProgress(slave.name, slave.name))
        self.group.connected(link.progress)
        self.links.append(link)
        end = slave.log.end
        if greets:
            held_from = slave.log.start if end else self._range.start
            slave.greeted = True
            link.progress.verify(f"replica {slave.name}", held_from)
        self._hold(slave)
        link.reports.append(REPORT_NOT_YET)
        link.reports.append(end)
        self._take(link, 2, may_refuse=False)

    def _refused(self, slave: Slave) -> None:
        """A slave that is ahead, and says no more than an offset."""
        if slave.log.end <= self.store.log.end:
            return  # only its client, or the handshake, can tell
        progress = SlaveProgress(slave.name, slave.name)
        self.group.connected(progress)
        try:
            self.group.reported(progress, [slave.log.end], self._range)
        except ReportRefused:
            pass
        else:
            raise AssertionError("a slave that is ahead was taken")
        finally:
            self.group.disconnected(progress)

    def _hold(self, slave: Slave) -> None:
        """What it holds at this moment, it may say from now on."""
        log = slave.log
        if log.end > log.start:
            slave.held.append((log.start, log.end))

    def _take(self, link: Link, count: int, *, may_refuse: bool) -> None:
        """The master reads so many reports of it at once."""
        reports = [link.reports.popleft() for _ in range(min(count, len(link.reports)))]
        if not reports or link.progress not in self.table.connections:
            return
        try:
            self.group.reported(link.progress, reports, self._range)
        except ReportRefused as error:
            if not may_refuse:
                raise AssertionError(f"{link.slave.name} broke no rule") from error
            self._drop(link, cut=False)

    def _drop(self, link: Link, *, cut: bool) -> None:
        self.group.disconnected(link.progress, cut=cut)
        if link in self.links:
            self.links.remove(link)

    @precondition(lambda self: self.links)
    @rule(choice=st.integers(0, 1 << 30), size=st.integers(1, 3000))
    def send(self, choice: int, size: int) -> None:
        link = self.links[choice % len(self.links)]
        progress = link.progress
        if progress.state is not MasterState.TRANSFER:
            return
        end = self.store.log.end
        room = SEGMENT_BYTES - progress.sent % SEGMENT_BYTES
        size = min(size, room, end - progress.sent)
        if size > 0:
            link.frames.append((progress.sent, self._bytes(progress.sent, progress.sent + size)))
            progress.sent += size

    @precondition(lambda self: self.links)
    @rule(choice=st.integers(0, 1 << 30), count=st.integers(1, 5))
    def deliver(self, choice: int, count: int) -> None:
        link = self.links[choice % len(self.links)]
        log = link.slave.log
        for _ in range(count):
            if not link.live or not link.frames:
                return
            offset, data = link.frames.popleft()
            assert log.end in (offset, log.start), "frames continue the slave's log"
            log.append_replica(offset, [data])
        self._check_same(link.slave)

    @precondition(lambda self: self.links)
    @rule(choice=st.integers(0, 1 << 30), flushes=st.booleans())
    def report(self, choice: int, flushes: bool) -> None:
        link = self.links[choice % len(self.links)]
        if link.live:
            if flushes:
                link.slave.flushed = link.slave.log.flush()
            self._hold(link.slave)
            link.reports.append(link.slave.log.end)

    @precondition(lambda self: self.links)
    @rule(choice=st.integers(0, 1 << 30), count=st.integers(1, 3))
    def read_reports(self, choice: int, count: int) -> None:
        link = self.links[choice % len(self.links)]
        self._take(link, count, may_refuse=not link.live)

    @precondition(lambda self: self.links)
    @rule(choice=st.integers(0, 1 << 30), rounds=st.integers(1, 4), flushes=st.booleans())
    def follow(self, choice: int, rounds: int, flushes: bool) -> None:
        """A slave that nothing disturbs for a while."""
        for _ in range(rounds):
            for act in (
                lambda: self.send(choice, 3000),
                lambda: self.deliver(choice, 5),
                lambda: self.report(choice, flushes),
                lambda: self.read_reports(choice, 5),
            ):
                if self.links:
                    act()

    @rule(numbers=st.lists(st.integers(0, SLAVES - 1), min_size=1, max_size=2), greets=st.booleans())
    def work(self, numbers: list[int], greets: bool) -> None:
        """Sends while slaves follow that were not connected before."""
        for number in numbers:
            self.connect(number, greets)
        self.append(700)
        for link in self.links[-len(numbers) :]:
            if link in self.links:
                self.follow(self.links.index(link), 2, True)

    @precondition(lambda self: self.links)
    @rule(choice=st.integers(0, 1 << 30), cut=st.booleans())
    def disconnect(self, choice: int, cut: bool) -> None:
        link = self.links[choice % len(self.links)]
        link.live = False
        self._drop(link, cut=cut)

    @rule(number=st.integers(0, SLAVES - 1), loss=st.sampled_from(Loss), choice=st.integers(0, 1 << 30))
    def crash_slave(self, number: int, loss: Loss, choice: int) -> None:
        slave = self.slaves[number]
        for link in self.links:
            if link.slave is slave:
                link.live = False
        flushed = slave.log.end if loss is Loss.NOTHING else slave.flushed
        slave.disk = slave.disk.after_crash(loss, random.Random(choice))
        slave.open()
        if not slave.tainted:
            whole = max((end for end in self.ends if end <= flushed), default=0)
            assert slave.log.end >= whole, f"flushed up to {flushed}, found up to {slave.log.end}"
            self._check_same(slave)
        slave.flushed = slave.log.flushed

    # -- liars -------------------------------------------------------------------------------------

    @rule(
        number=st.integers(0, 2 * SLAVES),
        lies=st.lists(st.sampled_from(("none", "nothing", "all", "some", "more", "negative")), max_size=4),
        choice=st.integers(0, 1 << 30),
        together=st.booleans(),
    )
    def lie(self, number: int, lies: list[str], choice: int, together: bool) -> None:
        """A stranger reports what he likes; somebody at a slave's address, what that slave was never sent.

        Of an offset that it was sent, nothing tells him from the slave itself; a handshake would.
        """
        end = self.store.log.end
        meant = {
            "none": REPORT_NOT_YET,
            "nothing": 0,
            "all": end,
            "some": choice % (end + 1),
            "more": end + 1 + choice,
            "negative": -2 - choice,
        }
        reports = [meant[one] for one in lies]
        name = "10.9.9.9"
        if number < SLAVES:
            name = self.slaves[number].name
            reports = [one for one in reports if not 0 < one <= end]
        progress = SlaveProgress(name, f"{name}:666")
        self.group.connected(progress)
        try:
            for some in [reports] if together else [[one] for one in reports]:
                if some:
                    self.group.reported(progress, some, self._range)
                    self.table.check_invariants(end)
        except ReportRefused:
            pass
        finally:
            self.group.disconnected(progress)

    # -- always ------------------------------------------------------------------------------------

    def _check_same(self, slave: Slave) -> None:
        log = slave.log
        begin, end = max(log.start, self.store.log.start), log.end
        if slave.tainted or begin >= end:
            return
        if end > self.store.log.end:
            slave.tainted = True
            return
        begin = max(begin, end - 2 * SEGMENT_BYTES)
        held = bytearray()
        at = begin
        while at < end:
            piece = log.read(at, end - at)
            held += piece
            at += len(piece)
        assert bytes(held) == self._bytes(begin, end), f"{slave.name} differs from its master below {end}"

    @invariant()
    def table_is_sound(self) -> None:
        self.table.check_invariants(self.store.log.end)
        following = [link.progress for link in self.links if link.progress.state is MasterState.TRANSFER]
        assert self.table.in_transfer == len({progress.identity for progress in following})

    @invariant()
    def what_is_proven_is_held(self) -> None:
        for end in self.ends[-40:]:
            if self.table.is_proven(end):
                self._check_held(end)


def explore(examples: int, number: int, steps: int = 50) -> None:
    """Runs so many stories of so many steps at most; the same number, the same stories."""
    machine = seed(number)(LogAndAcks)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
