"""What is claimed to be durable is, whatever the clock did; and a start over records that no queue takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from commitlog.errors import CorruptRecord
from commitlog.index.index_file import file_bytes
from commitlog.kernel.records import check, decode, parse_head
from commitlog.kernel.scan import scan_records
from commitlog.log.segment import segment_name
from commitlog.recovery.durable_marks import SLOT_BYTES, Durable, DurableMarks
from commitlog.store import Store
from tests.commitlog.kernel.recipes import stored
from tests.commitlog.power import PowerFiles
from tests.commitlog.test_store import open_store, placed, queued
from tests.commitlog.test_truncation import dispatched, feed
from tests.support.messages import SEGMENT_BYTES, STORE_MS, Clock, message, records_of, whole_log

LATER = Clock(2 * 10**12)


# -- clocks that fall ------------------------------------------------------------------------------


def flush_all(store: Store) -> None:
    dispatched(store)
    store.flusher.step()
    store.log.flush()
    store.flusher.step()
    store.queue_flusher.flush(0, thorough=True)


def append_some(store: Store, count: int, clock: Clock, body_bytes: int = 600) -> None:
    for number in range(count):
        store.log.append(message(bytes([number]) * body_bytes, queue_id=number % 3))
        clock.now_ms += 100


@pytest.mark.parametrize("replica", [False, True])
@pytest.mark.parametrize("fall_ms", [0, 1, 4000, 3_600_000])
def test_a_power_cut_after_the_clock_fell_leaves_no_hole_in_a_queue(
    tmp_path: Path, replica: bool, fall_ms: int
) -> None:
    clock = Clock(STORE_MS + 10_000)
    root = tmp_path / "store"
    root.mkdir()
    source = open_store(tmp_path / "source", clock_ms=clock)
    store = open_store(root, files := PowerFiles(root), clock_ms=clock, replica=replica)

    def go_on(count: int) -> None:
        if replica:
            append_some(source, count, clock)
            feed(store, source)
        else:
            append_some(store, count, clock)

    go_on(60)
    flush_all(store)
    clock.now_ms -= fall_ms
    go_on(60)
    dispatched(store)
    # The system writes pages back as it likes: all of the log, and of one queue.
    store.log.flush()
    (last,) = [queue for key, queue in store.queues.items() if key == ("TopicTest", 2)]
    last.flush(0, set())
    end, wanted = store.log.end, placed(store)
    store.close(clean=False)
    files.power_cut()
    again = open_store(root, clock_ms=LATER, replica=replica)
    assert again.log.end == end
    assert queued(again) == placed(again) == wanted
    assert again.recovery.scanned_from > 0, "what was proven to be durable is not looked at"
    again.close()
    source.close()


def test_a_start_with_a_clock_that_is_behind_looks_at_no_more_for_it(tmp_path: Path) -> None:
    clock = Clock(STORE_MS + 10_000)
    store = open_store(tmp_path, clock_ms=clock)
    append_some(store, 60, clock)
    flush_all(store)
    content = whole_log(store.log)
    store.close(clean=False)
    again = open_store(tmp_path, clock_ms=Clock(STORE_MS - 10**9))
    assert again.recovery.scanned_from > SEGMENT_BYTES
    assert whole_log(again.log) == content
    again.close()


def test_a_torn_tail_stays_one_though_its_records_say_that_they_are_old(tmp_path: Path) -> None:
    clock = Clock(STORE_MS + 10_000)
    store = open_store(tmp_path, clock_ms=clock)
    append_some(store, 2, clock, 100)
    flush_all(store)
    clock.now_ms -= 8000
    append_some(store, 1, clock, 100)
    end = store.log.end
    append_some(store, 3, clock, 100)
    store.close(clean=False)
    tear(tmp_path, end, 60)
    again = open_store(tmp_path, clock_ms=LATER)
    assert (again.log.end, again.log.damaged) == (end, ())
    assert again.recovery.cut_bytes
    again.close()


@pytest.mark.usefixtures("no_known_edge")
@pytest.mark.parametrize("clean", [False, True])
def test_what_was_flushed_is_damage_and_no_torn_tail_though_what_follows_says_that_it_is_older(
    tmp_path: Path, clean: bool
) -> None:
    clock = Clock(STORE_MS + 10_000)
    store = open_store(tmp_path, clock_ms=clock)
    append_some(store, 1, clock, 100)
    end = store.log.end
    append_some(store, 1, clock, 100)
    clock.now_ms -= 8000
    append_some(store, 2, clock, 100)
    flush_all(store)
    log_end = store.log.end
    store.close(clean=clean)
    tear(tmp_path, end, 60)
    again = open_store(tmp_path, clock_ms=LATER)
    assert again.log.end == log_end
    ((begin, fence_end),) = again.log.damaged
    assert begin == end
    assert again.log.begins_record(fence_end), "what is sound behind it is served"
    again.close(clean=False)


def tear(root: Path, offset: int, size: int) -> None:
    with (root / "commitlog" / segment_name(offset - offset % SEGMENT_BYTES)).open("r+b") as file:
        file.seek(offset % SEGMENT_BYTES)
        file.write(bytes(size))


def test_a_log_that_is_cut_claims_no_more_than_is_left(tmp_path: Path) -> None:
    store = open_store(tmp_path, clock_ms=(clock := Clock(STORE_MS)))
    append_some(store, 10, clock)
    edge = store.log.end
    append_some(store, 10, clock)
    flush_all(store)
    store.rewind(edge)
    with opened_positions(tmp_path) as positions:
        assert positions.known == Durable(edge, edge, edge)
    store.close()


# -- the file ----------------------------------------------------------------------------------------


@contextmanager
def opened_positions(root: Path) -> Iterator[DurableMarks]:
    positions = DurableMarks(root / "lineage" / "durable", OSFiles())
    try:
        yield positions
    finally:
        positions.close()


def saved(root: Path, *claims: tuple[Durable, bool]) -> Path:
    with opened_positions(root) as positions:
        for claim, sync in claims:
            positions.take(claim)
            positions.save(sync=sync)
        return positions.path


ONE, TWO, THREE = Durable(100, 90, 80), Durable(200, 190, 180), Durable(300, 290, 280)


def test_positions_are_found_again_and_the_last_one_counts(tmp_path: Path) -> None:
    with opened_positions(tmp_path) as positions:
        assert positions.known is None
    for claims in ([ONE, TWO, THREE], [THREE, TWO, ONE], [ONE]):
        saved(tmp_path, *((claim, True) for claim in claims))
        with opened_positions(tmp_path) as positions:
            assert positions.known == positions.now == claims[-1]
    saved(tmp_path, (TWO, False))
    with opened_positions(tmp_path) as positions:
        assert positions.known == TWO


@pytest.mark.parametrize("last_synced", [True, False])
def test_a_slot_that_is_torn_leaves_the_one_before(tmp_path: Path, last_synced: bool) -> None:
    path = saved(tmp_path, (ONE, True), (TWO, True), (THREE, last_synced))
    whole = path.read_bytes()
    place = 0 if last_synced else 2 * SLOT_BYTES
    for torn in (b"\xff", bytes(40)):
        path.write_bytes(whole[: place + 8] + torn + whole[place + 8 + len(torn) :])
        with opened_positions(tmp_path) as positions:
            assert positions.known == TWO
            positions.take(THREE)
            positions.save(sync=True)
        broken = path.read_bytes()
        # That went into the other one's place: TWO is whole whatever a power cut does meanwhile.
        assert broken[SLOT_BYTES : SLOT_BYTES + 36] == whole[SLOT_BYTES : SLOT_BYTES + 36]


@pytest.mark.parametrize("content", [b"", b"short", bytes(3 * SLOT_BYTES), b"\xff" * 3 * SLOT_BYTES])
def test_a_file_without_a_sound_slot_says_nothing(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path, (ONE, True)).write_bytes(content)
    with opened_positions(tmp_path) as positions:
        assert positions.known is None
        positions.take(TWO)
        positions.save(sync=True)
    with opened_positions(tmp_path) as positions:
        assert positions.known == TWO


# -- the index ---------------------------------------------------------------------------------------


def keyed(store: Store, first: int, count: int, clock: Clock) -> None:
    for number in range(first, first + count):
        store.log.append(message(b"x" * 100, properties={"KEYS": f"k{number}"}))
        clock.now_ms += 10
    dispatched(store)


def missing(store: Store, begin: int) -> list[str]:
    """Keys of records from `begin` on that the index does not find."""
    lost = []
    for record in records_of(store.log):
        key = decode_key(record.properties)
        if record.physical_offset >= begin and record.physical_offset not in store.index.query(
            "TopicTest", key, 32, 0, 2**62
        ):
            lost.append(key)
    return lost


def decode_key(properties: bytes) -> str:
    return properties.partition(b"KEYS\x01")[2].partition(b"\x02")[0].decode()


def test_an_index_file_keeps_what_was_flushed_and_the_rest_is_entered_again(tmp_path: Path) -> None:
    clock = Clock(STORE_MS)
    store = open_store(tmp_path, clock_ms=clock)
    keyed(store, 0, 10, clock)
    flush_all(store)
    keyed(store, 10, 5, clock)
    (path,) = store.index.paths
    flushed = store.checkpoint.positions.index
    store.close(clean=False)
    for _ in range(2):
        again = open_store(tmp_path, clock_ms=clock)
        assert again.index.paths == [path]
        assert again.index.durable_position == flushed
        assert missing(again, 0) == []
        # Another crash, after which the disk has all of the slots, of the entries those that were flushed.
        again.close(clean=False)
        with path.open("r+b") as file:
            whole = file.seek(0, 2)
            file.truncate(file_bytes(100, 11))
            file.truncate(whole)


def test_a_start_looks_at_all_that_the_index_lacks(tmp_path: Path) -> None:
    clock = Clock(STORE_MS)
    store = open_store(tmp_path, clock_ms=clock)
    keyed(store, 0, 5, clock)
    flush_all(store)
    flushed = store.checkpoint.positions.index
    keyed(store, 5, 200, clock)
    store.flusher.step()
    store.log.flush()
    store.flusher.step()
    store.queue_flusher.flush(0, thorough=False)
    assert store.checkpoint.positions.now.queues > flushed + 3 * SEGMENT_BYTES
    store.close(clean=False)
    again = open_store(tmp_path, clock_ms=clock)
    assert again.recovery.scanned_from <= flushed
    assert missing(again, 0) == []
    again.close()


def test_an_index_that_was_flushed_survives_a_crash_of_an_idle_broker(tmp_path: Path) -> None:
    clock = Clock(STORE_MS)
    store = open_store(tmp_path, clock_ms=clock)
    keyed(store, 0, 60, clock)
    flush_all(store)
    store.close(clean=False)
    again = open_store(tmp_path, clock_ms=Clock(STORE_MS - 10**6))
    assert again.recovery.scanned_from > 0
    assert missing(again, 0) == []
    again.close()


# -- records that no queue takes ---------------------------------------------------------------------

QUEUE_OFFSET_AT, QUEUE_ID_AT = 20, 12


def flipped(root: Path, offset: int, byte: int, bits: int = 0x80) -> None:
    with (root / "commitlog" / segment_name(offset - offset % SEGMENT_BYTES)).open("r+b") as file:
        file.seek(offset % SEGMENT_BYTES + byte)
        (value,) = file.read(1)
        file.seek(offset % SEGMENT_BYTES + byte)
        file.write(bytes([value ^ bits]))


def topic_at(record: bytes) -> int:
    return bytes(record).index(b"TopicTest")


@pytest.mark.parametrize("field", ["queue offset", "queue id", "topic"])
def test_no_walk_passes_a_record_that_no_queue_takes(field: str) -> None:
    record = stored()
    at = {"queue offset": QUEUE_OFFSET_AT, "queue id": QUEUE_ID_AT, "topic": topic_at(record)}[field]
    record[at] ^= 0x80
    done = scan_records(record, 0, 0, 4096)
    assert (done.records, done.position) == (0, 0)
    assert done.reason is not None
    with pytest.raises(CorruptRecord):
        check(record)


@pytest.mark.parametrize("kind", [0x10, 0x20, 0x30])
def test_a_record_too_short_for_the_hosts_it_announces_is_damaged(kind: int) -> None:
    for body in range(8):
        record = stored(b"b" * body, topic="T", properties={})
        record[39] ^= kind
        for view in (record, record + bytes(50)):
            for judge in (parse_head, check, decode):
                with pytest.raises(CorruptRecord):
                    judge(view)
            done = scan_records(view, 0, 0, 4096)
            assert (done.records, done.position, done.reason is None) == (0, 0, False)


@pytest.mark.usefixtures("no_known_edge")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("field", ["queue offset", "queue id", "topic"])
def test_a_start_gets_over_a_record_that_no_queue_takes(tmp_path: Path, field: str, last: bool) -> None:
    store = open_store(tmp_path)
    for number in range(6):
        store.log.append(message(bytes([number]) * 50))
    offset = records_of(store.log)[-1 if last else 2].physical_offset
    places = {
        "queue offset": QUEUE_OFFSET_AT,
        "queue id": QUEUE_ID_AT,
        "topic": topic_at(store.log.read_record(offset)),
    }
    assert store.close()
    flipped(tmp_path, offset, places[field])
    again = open_store(tmp_path)
    assert [begin for begin, _ in again.log.damaged] == [offset]
    (queue,) = [queue for _, queue in again.queues.items()]
    assert queue.max_offset == 6
    again.close()
    assert sorted(path.name for path in (tmp_path / "consumequeue").iterdir()) == ["TopicTest"]


def test_queues_that_are_built_again_stop_before_a_record_that_none_takes(tmp_path: Path) -> None:
    """It lies below what a start looks at: dispatch is the first to meet it."""
    store = open_store(tmp_path)
    for number in range(60):
        store.log.append(message(bytes([number]) * 400, queue_id=0))
    offset = records_of(store.log)[3].physical_offset
    assert store.close()
    flipped(tmp_path, offset, QUEUE_OFFSET_AT)
    for path in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = open_store(tmp_path)
    assert again.recovery.scanned_from > offset
    assert [begin for begin, _ in again.log.damaged] == [offset]
    assert again.queues.find_or_create("TopicTest", 0).max_offset == 3
    assert again.log.writable is not None
    again.scrub.run_pass(threading.Event())
    again.close(clean=False)


@pytest.mark.parametrize("queue_offset", [-1, -(2**63), 5 - 2**63])
def test_a_dispatcher_refuses_a_negative_queue_offset_and_drops_nothing(
    tmp_path: Path, queue_offset: int
) -> None:
    source = open_store(tmp_path / "source")
    for number in range(4):
        source.log.append(message(bytes([number]) * 50))
    replica = open_store(tmp_path / "replica", replica=True)
    data = bytearray(whole_log(source.log))
    offset = records_of(source.log)[2].physical_offset
    data[offset + QUEUE_OFFSET_AT : offset + QUEUE_OFFSET_AT + 8] = queue_offset.to_bytes(
        8, "big", signed=True
    )
    replica.log.append_replica(0, [data])
    replica.dispatcher.step()
    with pytest.raises(CorruptRecord, match="queue offset -"):
        replica.dispatcher.step()
    (queue,) = [queue for _, queue in replica.queues.items()]
    assert (queue.min_offset, queue.max_offset) == (0, 2)
    for store in (source, replica):
        store.close(clean=False)


# -- a replica that ends at a blank --------------------------------------------------------------------


def test_a_replica_whose_next_segment_begins_torn_ends_before_the_blank_at_every_start(
    tmp_path: Path,
) -> None:
    source = open_store(tmp_path / "source")
    while source.log.end < SEGMENT_BYTES + 200:
        source.log.append(message(b"x" * 700))
    root = tmp_path / "replica"
    store = open_store(root, replica=True)
    feed(store, source)
    store.close(clean=False)
    with (root / "commitlog" / segment_name(SEGMENT_BYTES)).open("r+b") as file:
        file.seek(4)
        file.write(b"torn")
    ends = []
    for _ in range(3):
        store = open_store(root, replica=True)
        ends.append(store.log.end)
        store.close(clean=False)
    assert ends[0] == ends[1] == ends[2] < SEGMENT_BYTES
    store = open_store(root, replica=True)
    feed(store, source)
    assert whole_log(store.log) == whole_log(source.log)
    for one in (store, source):
        one.close()
