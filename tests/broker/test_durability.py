from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from haservice.broker.send.durability import Durability, PutStatus, Wait
from haservice.replication.master.group_transfer import GroupTransferService
from haservice.replication.master.progress import AckTable, LogRange, SlaveProgress
from tests.support.proofs import Told

OK, DISK, NO_SLAVE, SLAVE = (
    PutStatus.PUT_OK,
    PutStatus.FLUSH_DISK_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE,
    PutStatus.FLUSH_SLAVE_TIMEOUT,
)


class Proof:
    """A flusher or an HA service whose proofs come when the test says so."""

    def __init__(self) -> None:
        self.reached = 0
        self.slave_ok = True
        self.waits: list[tuple[int, Wait]] = []

    def is_slave_ok(self, end: int) -> bool:
        return self.slave_ok

    def submit(self, end: int, deadline_s: float, waiter: Wait) -> bool:
        if end <= self.reached:
            return True
        self.waits.append((end, waiter))
        return False

    def take(self) -> Sequence[Wait]:
        waits = [wait for _, wait in self.waits]
        self.waits = []
        return waits


class Loop:
    """Collects what is to run on the loop."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.here = False
        """Whether the test's thread is the loop's."""

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Bench:
    def __init__(self, *, sync_flush: bool, sync_master: bool, timeout_s: float = 100.0) -> None:
        self.flush = Proof()
        self.replica = Proof()
        self.loop = Loop()
        self.durability = Durability(
            flush=self.flush if sync_flush else None,
            replica=self.replica if sync_master else None,
            flush_timeout_s=timeout_s,
            replica_timeout_s=timeout_s,
            call_soon=self.loop.call_soon,
            on_loop=lambda: self.loop.here,
        )
        self.settled: list[PutStatus] = []

    def put(self, end: int = 100) -> PutStatus | None:
        return self.durability.put_status(end, Told(self.settled.append))


def test_asynchronous_modes_are_ok_at_once() -> None:
    assert Bench(sync_flush=False, sync_master=False).put() is OK


def test_a_proof_that_is_there_already_needs_no_wait() -> None:
    bench = Bench(sync_flush=True, sync_master=True)
    bench.flush.reached = bench.replica.reached = 100
    assert bench.put(100) is OK


def test_no_slave_is_said_at_once_when_nothing_else_is_awaited() -> None:
    bench = Bench(sync_flush=False, sync_master=True)
    bench.replica.slave_ok = False
    assert bench.put() is NO_SLAVE


@pytest.mark.parametrize("flush_ok", [True, False])
@pytest.mark.parametrize("replica_ok", [True, False])
@pytest.mark.parametrize("order", [("flush", "replica"), ("replica", "flush")])
def test_both_proofs_are_awaited_in_any_order_and_the_replicas_status_wins(
    flush_ok: bool, replica_ok: bool, order: tuple[str, str]
) -> None:
    bench = Bench(sync_flush=True, sync_master=True)
    assert bench.put() is None
    for step in order:
        assert bench.settled == []
        if step == "flush":
            bench.durability.flushed(bench.flush.take(), flush_ok)
        else:
            bench.durability.replicated(bench.replica.take(), replica_ok)
        bench.loop.run()
    expected = SLAVE if not replica_ok else OK if flush_ok else DISK
    assert bench.settled == [expected]


@pytest.mark.parametrize("flush_ok", [True, False])
def test_a_missing_slave_overrides_the_flush_that_is_awaited_all_the_same(flush_ok: bool) -> None:
    bench = Bench(sync_flush=True, sync_master=True)
    bench.replica.slave_ok = False
    assert bench.put() is None
    bench.durability.flushed(bench.flush.take(), flush_ok)
    bench.loop.run()
    assert bench.settled == [NO_SLAVE]


def test_who_awaits_a_proof_gets_its_status_and_may_give_up() -> None:
    bench = Bench(sync_flush=True, sync_master=False)

    async def wait() -> None:
        patient, hasty = (asyncio.ensure_future(bench.durability.proof(end)) for end in (1, 2))
        await asyncio.sleep(0)
        hasty.cancel()
        await asyncio.sleep(0)
        bench.durability.flushed(bench.flush.take(), False)
        bench.loop.run()
        assert (await patient, hasty.cancelled()) == (DISK, True)
        bench.flush.reached = 3
        assert await bench.durability.proof(3) is OK

    asyncio.run(wait())


def test_many_proofs_wake_the_loop_once() -> None:
    bench = Bench(sync_flush=True, sync_master=False)
    for end in range(1, 11):
        assert bench.put(end) is None
    for wait in bench.flush.take():
        bench.durability.flushed([wait], True)
    assert len(bench.loop.calls) == 1
    bench.loop.run()
    assert bench.settled == [OK] * 10
    assert bench.put(11) is None
    bench.durability.flushed(bench.flush.take(), True)
    assert len(bench.loop.calls) == 1


@pytest.mark.parametrize(
    ("sync_flush", "sync_master", "status"), [(True, False, DISK), (False, True, SLAVE), (True, True, SLAVE)]
)
def test_a_stop_answers_what_waits_with_what_is_not_proven(
    sync_flush: bool, sync_master: bool, status: PutStatus
) -> None:
    bench = Bench(sync_flush=sync_flush, sync_master=sync_master)
    bench.put()
    bench.put(200)
    bench.durability.settle_all()
    assert bench.settled == [status] * 2
    # Proofs that come too late settle nothing twice.
    bench.durability.flushed(bench.flush.take(), True)
    bench.durability.replicated(bench.replica.take(), True)
    bench.loop.run()
    assert bench.settled == [status] * 2


def test_a_stop_uses_proofs_that_have_arrived() -> None:
    bench = Bench(sync_flush=True, sync_master=False)
    bench.put()
    bench.durability.flushed(bench.flush.take(), True)
    bench.durability.settle_all()
    assert bench.settled == [OK]


def test_a_wait_that_its_service_forgot_is_swept_up(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(sync_flush=False, sync_master=True, timeout_s=-1)
    bench.put()
    bench.durability.sweep()
    assert bench.settled == []
    bench.durability.sweep()
    assert bench.settled == [SLAVE]
    assert "waits long past their deadline count=1" in caplog.text
    fresh = Bench(sync_flush=False, sync_master=True)
    fresh.put()
    fresh.durability.sweep()
    assert fresh.settled == []


def test_a_process_that_stood_still_beyond_a_deadline_forgot_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(sync_flush=False, sync_master=True, timeout_s=-60)
    bench.put()
    bench.durability.sweep()
    bench.durability.replicated(bench.replica.take(), True)
    bench.loop.run()
    bench.durability.sweep()
    assert bench.settled == [OK]
    assert not caplog.records


class Slaves:
    """The waits and acks of a SYNC_MASTER, without its sockets; a slave is fit when it is not behind."""

    LOG = LogRange(0, 1000)

    def __init__(self, needed: int) -> None:
        self.group: GroupTransferService[Wait] = GroupTransferService(
            AckTable(10_000, self.LOG.end, needed), self._acked
        )
        self.submit = self.group.submit
        self.replicated: Callable[[Sequence[Wait], bool], None]

    def _acked(self, waits: list[Wait], ok: bool) -> None:
        self.replicated(waits, ok)

    def is_slave_ok(self, end: int) -> bool:
        return self.group.furthest() >= 0

    def connect(self, name: str) -> SlaveProgress:
        progress = SlaveProgress(name, name)
        self.group.connected(progress)
        self.group.reported(progress, [1], self.LOG)
        progress.sent = self.LOG.end
        return progress


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_a_put_is_ok_when_as_many_slaves_have_it_as_are_needed(needed: int) -> None:
    loop, settled = Loop(), list[PutStatus]()
    slaves = Slaves(needed)
    durability = Durability(
        flush=None, replica=slaves, flush_timeout_s=100, replica_timeout_s=100, call_soon=loop.call_soon
    )
    slaves.replicated = durability.replicated
    connected = []
    for number in range(needed):
        assert durability.put_status(500, Told(settled.append)) is NO_SLAVE, "one more is needed"
        connected.append(slaves.connect(f"slave-{number}"))
    assert durability.put_status(500, Told(settled.append)) is None
    for slave in connected:
        assert settled == []
        slaves.group.reported(slave, [1000], Slaves.LOG)
        loop.run()
    assert settled == [OK]
    assert durability.put_status(1000, Told(settled.append)) is OK


def test_a_proof_that_the_loop_saw_is_settled_there_and_then() -> None:
    bench = Bench(sync_flush=True, sync_master=True)
    assert bench.put() is None
    bench.durability.flushed(bench.flush.take(), True)  # by another thread, not settled yet
    bench.loop.here = True
    bench.durability.replicated(bench.replica.take(), True)
    assert bench.settled == [OK]
    bench.loop.run()
    assert bench.settled == [OK]


def test_a_service_that_fails_a_wait_while_it_is_asked_for_it_is_heard_after() -> None:
    """A group transfer that has stopped answers at once: there is no wait yet that could be settled."""
    bench = Bench(sync_flush=False, sync_master=True)
    group: GroupTransferService[Wait] = GroupTransferService(AckTable(4096, 0), bench.durability.replicated)
    stop = threading.Event()
    stop.set()
    group.run(stop)
    bench.replica.submit = group.submit  # type: ignore[method-assign]
    bench.loop.here = True
    assert bench.put() is None
    assert bench.settled == []
    bench.loop.run()
    assert bench.settled == [SLAVE]
