"""Greetings that change a whole store: log, queues and index go back or begin anew together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.broker.topics.deleted import DeletedTopics
from haservice.replication.lineage.epochs import PROMOTION_STEP, Epoch, Lineage
from haservice.replication.lineage.file import LineageFile
from haservice.replication.master.greeter import Greets
from haservice.replication.slave import session as slave_session
from haservice.replication.slave.rejoin import Rejoin
from haservice.replication.wire.greeting import Facts
from tests.support.replication import SEGMENT_BYTES, STORE_HOST, Acked, master, message, slave
from tests.support.waiting import wait_until

FACTS = Facts("Cluster", "broker-a", "a:10911")
TOPIC = "Stories"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_session, "STRANGER_S", 60.0)


@contextmanager
def opened(root: Path, *, replica: bool = False) -> Iterator[Store]:
    store = Store.open(
        LogOptions(
            root=root, segment_bytes=SEGMENT_BYTES, replica=replica, index_slots=100, index_entries=400
        ),
        store_host=STORE_HOST,
    )
    try:
        yield store
    finally:
        dispatched(store)
        assert store.close()


def dispatched(store: Store) -> None:
    while store.dispatcher.step():
        pass


def write(store: Store, *sizes: int) -> int:
    for size in sizes:
        store.log.append(message(size))
    dispatched(store)
    return store.log.end


def begin(lineage: LineageFile, store: Store) -> None:
    state = lineage.state
    lineage.begin(Epoch(state.lineage.next_number, store.log.end, state.replica_id))


def replicate(source: Store, source_lineage: LineageFile, copy: Store, copy_lineage: LineageFile) -> None:
    """Until both are level; the slave's queues are then what a dispatch makes of its log."""
    with (
        master(source.log, Acked(), options={"greets": Greets(source_lineage, FACTS)}) as ha,
        slave(
            copy.log,
            ha.port,
            rejoin=Rejoin(FACTS, copy_lineage, copy.log, copy, lower_floors=DeletedTopics(copy).lower_floors),
            boundary=lambda: copy.dispatcher.position,
        ),
    ):
        wait_until(lambda: ha.push2slave_max_offset == source.log.end)
    dispatched(copy)
    assert all_of(copy) == all_of(source, copy.log.start)
    assert copy_lineage.state.lineage == source_lineage.state.lineage


def all_of(store: Store, start: int = 0) -> bytes:
    data, position = b"", max(start, store.log.start)
    while position < store.log.end:
        piece = store.log.read(position, store.log.end - position)
        data, position = data + piece, position + len(piece)
    return data


def queue_of(store: Store) -> Any:
    queue = store.queues.get(TOPIC, 0)
    assert queue is not None
    return queue


def test_an_old_masters_store_goes_back_as_a_whole(tmp_path: Path) -> None:
    a_lineage, b_lineage = LineageFile(tmp_path / "a"), LineageFile(tmp_path / "b")
    with opened(tmp_path / "a") as a, opened(tmp_path / "b", replica=True) as b:
        begin(a_lineage, a)
        common = write(a, *[900] * 30)
        replicate(a, a_lineage, b, b_lineage)
        write(a, *[700] * 200)
        lost = all_of(a, common)
    with opened(tmp_path / "b") as b, opened(tmp_path / "a", replica=True) as a:
        begin(b_lineage, b)
        write(b, *[300] * 10)
        replicate(b, b_lineage, a, a_lineage)
        assert queue_of(a).max_offset == queue_of(b).max_offset == 40
        kept = [path.read_bytes() for path in (tmp_path / "a" / "cut").rglob("*") if path.is_file()]
        assert [data.rstrip(b"\0") for data in kept] == [lost.rstrip(b"\0")]
    with opened(tmp_path / "a", replica=True) as a:
        assert queue_of(a).max_offset == 40


@pytest.mark.parametrize("parted", [False, True])
def test_a_store_behind_retention_begins_anew_as_a_whole(tmp_path: Path, parted: bool) -> None:
    a_lineage, b_lineage = LineageFile(tmp_path / "a"), LineageFile(tmp_path / "b")
    with opened(tmp_path / "a") as a, opened(tmp_path / "b", replica=True) as b:
        begin(a_lineage, a)
        common = write(a, *[900] * 30)
        replicate(a, a_lineage, b, b_lineage)
        write(a, *[5000] * 40)
        while a.log.start < 2 * SEGMENT_BYTES:
            a.log.segments.drop_oldest()
        if parted:
            first = a_lineage.state.lineage.epochs[0]
            second = Epoch(PROMOTION_STEP, common - 100, first.master)
            a_lineage.update(lineage=Lineage((first, second)))
        replicate(a, a_lineage, b, b_lineage)
        assert b.log.start == a.log.start
        assert queue_of(b).max_offset == queue_of(a).max_offset
        assert bool(list((tmp_path / "b" / "cut").glob("parted-*"))) == parted
    with opened(tmp_path / "b", replica=True) as b:
        assert b.log.start == 2 * SEGMENT_BYTES


def test_an_empty_store_that_begins_with_the_masters_first_byte(tmp_path: Path) -> None:
    a_lineage, b_lineage = LineageFile(tmp_path / "a"), LineageFile(tmp_path / "b")
    with opened(tmp_path / "a") as a, opened(tmp_path / "b", replica=True) as b:
        begin(a_lineage, a)
        write(a, *[5000] * 40)
        a.log.segments.drop_oldest()
        replicate(a, a_lineage, b, b_lineage)
        assert b.log.start == SEGMENT_BYTES
    with opened(tmp_path / "b", replica=True) as b:
        assert b.log.start == SEGMENT_BYTES


def test_what_a_new_master_stores_is_not_what_was_deleted_behind_its_log(tmp_path: Path) -> None:
    """Both slaves had heard where the dead master's topic ended, and had less of its log."""
    lineages = {name: LineageFile(tmp_path / name) for name in "abc"}
    with (
        opened(tmp_path / "a") as a,
        opened(tmp_path / "b", replica=True) as b,
        opened(tmp_path / "c", replica=True) as c,
    ):
        begin(lineages["a"], a)
        write(a, *[900] * 30)
        replicate(a, lineages["a"], c, lineages["c"])
        write(a, *[900] * 5)
        replicate(a, lineages["a"], b, lineages["b"])
        write(a, *[900] * 40)
        for store in (a, b, c):
            DeletedTopics(store).delete({TOPIC: a.log.end})
    with opened(tmp_path / "b") as b, opened(tmp_path / "c", replica=True) as c:
        begin(lineages["b"], b)
        write(b, *[300] * 10)
        assert served(b) == 10
        # As it was while it ran: a start would lower it.
        c.queues.floors.merge({TOPIC: 1 << 40}, 0)
        late = DeletedTopics(c).from_now()
        replicate(b, lineages["b"], c, lineages["c"])
        late({TOPIC: 1 << 40})  # the dead master had answered before the greeting
        DeletedTopics(c).from_now()(b.queues.floors.table())
        assert served(c) == 10


def served(store: Store) -> int:
    queue = queue_of(store)
    return int(queue.max_offset - queue.min_offset)
