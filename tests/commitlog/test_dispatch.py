"""The dispatcher: what it enters where, what it waits for, what stops it, and disks that fail."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.disk.files import OSFiles
from commitlog.dispatch.dispatcher import Dispatcher, parse_delay_levels
from commitlog.errors import CorruptRecord
from commitlog.index.files import IndexFiles
from commitlog.kernel.layout import BLANK_MAGIC
from commitlog.kernel.records import NewMessage, encode, stamp
from commitlog.log.log import CommitLog
from commitlog.options import DELAY_LEVELS
from commitlog.queues.consume_queue import ConsumeQueues, Entry
from tests.support.failing_files import FailingFiles
from tests.support.messages import STORE_HOST, STORE_MS, Clock, batch_body, message, open_log
from tests.support.waiting import wait_until

FOREVER = 1 << 62
BLANK_BYTES = 8


class Bench:
    """A log with its followers, in a directory."""

    def __init__(
        self, root: Path, files: OSFiles | None = None, *, index_files: OSFiles | None = None, **fields: Any
    ) -> None:
        self.root = root
        self.files = files or OSFiles()
        self.log: CommitLog = open_log(root, **fields)
        self.queues = ConsumeQueues(root / "consumequeue", 2000, self.files)
        self.queues.load()
        self.index = IndexFiles(root / "index", 100, 400, index_files or self.files, Clock())
        self.index.load(crashed=False, checkpoint_ms=0)
        self.dispatcher = Dispatcher(self.log, self.queues, self.index, delay_levels=DELAY_LEVELS)
        self.arrivals: list[list[tuple[str, int, int, int]]] = []
        self.dispatcher.on_arrival = self.arrivals.append

    def dispatch(self) -> None:
        while self.dispatcher.step():
            pass

    def entries(self, topic: str = "TopicTest", queue_id: int = 3) -> list[Entry]:
        queue = self.queues.get(topic, queue_id)
        return [] if queue is None else queue.read(0, 9999)

    def find(self, key: str, topic: str = "TopicTest") -> list[int]:
        return self.index.query(topic, key, 99, 0, FOREVER)


def record_of(
    what: NewMessage,
    offset: int,
    queue_offset: int = 0,
    stored_ms: int = STORE_MS,
    store_host: bytes = STORE_HOST,
) -> bytearray:
    record = encode(what, store_host)
    stamp(record, queue_offset, offset, stored_ms)
    return record


def replica(root: Path, *buffers: bytes | bytearray, **fields: Any) -> Bench:
    bench = Bench(root, replica=True, **fields)
    bench.log.append_replica(bench.log.end, list(buffers))
    return bench


def test_a_message_goes_to_its_queue_and_its_keys_to_the_index(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    unique = "0A010203000018B4AAC20000000A0000"
    done = bench.log.append(
        message(properties={"KEYS": "k1 k2", "UNIQ_KEY": unique, "TAGS": "TagA"}, topic="TopicTest")
    )
    assert done.end == 176
    assert bench.dispatcher.behind == 176
    bench.dispatch()
    assert bench.entries() == [Entry(0, 0xB0, 2598919)]
    assert [bench.find(key) for key in (unique, "k1", "k2", "k3")] == [[0], [0], [0], []]
    assert (bench.dispatcher.position, bench.dispatcher.behind) == (176, 0)
    assert bench.queues.written_ms == STORE_MS
    assert bench.arrivals == [[("TopicTest", 3, 1, 2598919)]]


def test_ipv6_hosts_a_message_without_properties_and_an_empty_body(tmp_path: Path) -> None:
    host = bytes.fromhex("20010db800000000000000000000000100002a9f")
    first = record_of(message(b"v6", born_host=host), 0, 0, store_host=host)
    second = record_of(message(b"", properties=b""), len(first), 1)
    bench = replica(tmp_path, first, second)
    bench.dispatch()
    assert bench.entries() == [Entry(0, len(first), 2598919), Entry(len(first), 100, 0)]


def test_a_batch_gives_an_entry_for_each_of_its_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    body = batch_body([b"body0", b"body1", b"body2"], b"KEYS\x01kb\x02TAGS\x01tb")
    done = bench.log.append_batch(message(body, "TopicBatch", 0, properties={"CLUSTER": "DefaultCluster"}))
    bench.dispatch()
    assert [entry.physical_offset for entry in bench.entries("TopicBatch", 0)] == done.offsets
    assert {entry.tags_code for entry in bench.entries("TopicBatch", 0)} == {3694}
    assert bench.find("kb", "TopicBatch") == done.offsets[::-1]
    assert bench.arrivals == [[("TopicBatch", 0, 3, 3694)]]


@pytest.mark.parametrize(
    ("level", "tags_code"),
    [
        ("3", 0x1A1FBA6DD2C),
        ("1", 1795223369244 + 1000),
        ("18", 1795223369244 + 7_200_000),
        ("99", 1795223369244 + 7_200_000),
        ("0", 2598919),
        ("-1", 2598919),
        ("x", 2598919),
        ("9" * 5000, 2598919),
        (None, 2598919),
    ],
)
def test_the_tags_code_of_a_delayed_message_is_its_deliver_time(
    tmp_path: Path, level: str | None, tags_code: int
) -> None:
    properties = {"TAGS": "TagA", "REAL_TOPIC": "TopicTest", "REAL_QID": "1"}
    if level is not None:
        properties["DELAY"] = level
    bench = replica(
        tmp_path,
        record_of(message(b"delay", "SCHEDULE_TOPIC_XXXX", 2, properties=properties), 0, 0, 1795223369244),
        segment_bytes=8192,
    )
    bench.dispatch()
    assert [entry.tags_code for entry in bench.entries("SCHEDULE_TOPIC_XXXX", 2)] == [tags_code]


def test_delay_levels_are_parsed() -> None:
    assert parse_delay_levels("1s 5m 2h 1d") == (1000, 300_000, 7_200_000, 86_400_000)
    assert len(parse_delay_levels(DELAY_LEVELS)) == 18
    for text in ("1s 5", "s", "1s x5s", "-1s", "1s 5w"):
        with pytest.raises(ValueError, match="is no delay"):
            parse_delay_levels(text)


@pytest.mark.parametrize(
    ("transaction", "queued", "indexed"), [(0x0, 1, True), (0x4, 0, True), (0x8, 1, True), (0xC, 0, False)]
)
def test_transactions(tmp_path: Path, transaction: int, queued: int, indexed: bool) -> None:
    bench = Bench(tmp_path)
    bench.log.append(message(sys_flag=transaction, properties={"KEYS": "k"}))
    bench.log.append(message(properties={"KEYS": "other"}))
    bench.dispatch()
    assert len(bench.entries()) == queued + 1
    assert bool(bench.find("k")) == indexed
    assert bench.find("other") == [bench.entries()[-1].physical_offset]


def test_the_dispatch_goes_on_over_blanks_and_segments(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    done = [bench.log.append(message(b"x" * (200 + 37 * (n % 11)), queue_id=n % 3)) for n in range(100)]
    assert bench.log.end > 5 * 4096
    bench.dispatch()
    for queue_id in range(3):
        assert [entry.physical_offset for entry in bench.entries(queue_id=queue_id)] == [
            appended.physical_offset for appended in done[queue_id::3]
        ]
    assert bench.dispatcher.position == bench.log.end


def test_a_message_larger_than_a_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=4 << 20)
    done = [bench.log.append(message(b"x" * size)) for size in (10, 2_000_000, 700_000, 700_000, 10)]
    bench.dispatch()
    assert [entry.physical_offset for entry in bench.entries()] == [a.physical_offset for a in done]


def test_dispatch_starts_where_the_queues_end_and_enters_nothing_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for _ in range(10):
        bench.log.append(message(properties={"KEYS": "k"}))
    bench.dispatch()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = Bench(tmp_path)
    assert again.dispatcher.position == bench.log.end
    # After a crash recovery goes back; what is there stays as it is but for the index's last message.
    rescan = Dispatcher(again.log, again.queues, again.index, delay_levels=DELAY_LEVELS, position=0)
    while rescan.step():
        pass
    assert again.arrivals == []
    assert {path: path.read_bytes() for path in before if "index" not in path.parts} == {
        path: content for path, content in before.items() if "index" not in path.parts
    }
    assert sorted(set(again.find("k"))) == sorted(bench.find("k"))


def test_a_log_that_begins_later_is_followed_from_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    done = [bench.log.append(message(b"x" * 300)) for _ in range(30)]
    bench.log.segments.drop_oldest()
    bench.dispatch()
    kept = [a for a in done if a.physical_offset >= bench.log.start]
    queue = bench.queues.get("TopicTest", 3)
    assert queue is not None
    assert queue.min_offset == kept[0].queue_offset > 0
    assert [e.physical_offset for e in queue.read(queue.min_offset, 99)] == [a.physical_offset for a in kept]


@pytest.mark.parametrize("cut", [1, 7, 8, 40, 88, 110, -1])
def test_an_unfinished_record_is_waited_for(tmp_path: Path, cut: int) -> None:
    first = record_of(message(), 0, 0)
    second = record_of(message(), len(first), 1)
    bench = replica(tmp_path, first, second[:cut])
    bench.dispatch()
    assert len(bench.entries()) == 1
    assert bench.dispatcher.position == len(first)
    assert bench.dispatcher.step() == 0
    bench.log.append_replica(bench.log.end, [second[cut:]])
    bench.dispatch()
    assert len(bench.entries()) == 2
    assert bench.dispatcher.failed is None


def test_a_large_record_that_comes_in_pieces_is_not_read_again_for_each(tmp_path: Path) -> None:
    record = bytes(record_of(message(b"x" * 1_000_000), 0))
    bench = replica(tmp_path, record[:100_000], segment_bytes=4 << 20)
    reads: list[int] = []
    read = bench.log.read
    bench.log.read = lambda offset, size: reads.append(size) or read(offset, size)  # type: ignore[method-assign,func-returns-value]
    for start in range(100_000, len(record), 100_000):
        bench.dispatch()
        assert bench.entries() == []
        bench.log.append_replica(bench.log.end, [record[start : start + 100_000]])
    bench.dispatch()
    assert bench.entries() == [Entry(0, len(record), 2598919)]
    assert sum(reads) < 2 * len(record)


def test_a_blank_is_passed_when_all_of_it_is_there(tmp_path: Path) -> None:
    first = record_of(message(), 0)
    room = 4096 - len(first)
    blank = (
        room.to_bytes(4, "big") + (BLANK_MAGIC & 0xFFFFFFFF).to_bytes(4, "big") + bytes(room - BLANK_BYTES)
    )
    bench = replica(tmp_path, first, blank[:20])
    bench.dispatch()
    assert bench.dispatcher.position == len(first)
    bench.log.append_replica(bench.log.end, [blank[20:]])
    bench.dispatch()
    assert bench.dispatcher.position == 4096
    bench.log.append_replica(4096, [record_of(message(), 4096, 1)])
    bench.dispatch()
    assert len(bench.entries()) == 2


def broken(what: str) -> bytes:
    record = record_of(message(), 0)
    if what == "topic":
        return bytes(record_of(message(topic="../../etc/x"), 0))
    if what == "queue":
        return bytes(record_of(message(queue_id=-1), 0))
    if what == "place":
        return bytes(record_of(message(), 4096))
    if what == "blank":
        return (200).to_bytes(4, "big") + (BLANK_MAGIC & 0xFFFFFFFF).to_bytes(4, "big") + bytes(200)
    if what == "zeros":
        return bytes(500)
    at, value = {
        "magic": (4, b"GET "),
        "size 0": (0, bytes(4)),
        "size negative": (0, b"\xff\xff\xff\xff"),
        "size small": (0, (50).to_bytes(4, "big")),
        "size giant": (0, b"\x7f\xff\xff\xff"),
        "body": (84, b"\x00\x00\xff\xff"),
    }[what]
    record[at : at + 4] = value
    return bytes(record)


DAMAGE = ["topic", "queue", "place", "blank", "zeros", "magic", "size 0", "size negative", "size small"]
DAMAGE += ["size giant", "body"]


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("before", [0, 2])
def test_damage_stops_the_dispatch_behind_what_is_whole(tmp_path: Path, what: str, before: int) -> None:
    good, offset = b"", 0
    for number in range(before):
        good += record_of(message(properties={"KEYS": "k"}), offset, number)
        offset = len(good)
    bad = bytearray(broken(what))
    if what != "place":
        bad[28:36] = offset.to_bytes(8, "big")
    bench = replica(tmp_path, good + bad)
    with pytest.raises(CorruptRecord) as caught:
        bench.dispatch()
    assert caught.value.offset == bench.dispatcher.position == offset
    assert len(bench.entries()) == len(bench.find("k")) == before
    assert not list(tmp_path.rglob("x"))
    with pytest.raises(CorruptRecord):
        bench.dispatcher.step()


@pytest.mark.parametrize("operation", ["create", "pwrite"])
def test_a_full_disk_delays_the_dispatch_and_loses_nothing(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    bench = Bench(tmp_path, files)
    done = [bench.log.append(message(properties={"KEYS": f"k{n}"}, queue_id=n % 2)) for n in range(20)]
    files.fail(operation, errno.ENOSPC, after=1)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            bench.dispatcher.step()
        assert bench.dispatcher.position == 0
    assert bench.arrivals == []
    files.heal()
    bench.dispatch()
    for queue_id in range(2):
        assert [entry.physical_offset for entry in bench.entries(queue_id=queue_id)] == [
            appended.physical_offset for appended in done[queue_id::2]
        ]
    assert [bench.find(f"k{n}") for n in range(20)] == [[a.physical_offset] for a in done]
    assert bench.arrivals == [[("TopicTest", 0, 10, 0), ("TopicTest", 1, 10, 0)]]


def test_a_start_that_is_far_behind_writes_each_queue_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many queues, passes of 8 MiB gave each of them a few entries in a write, thousands of times."""
    monkeypatch.setattr("commitlog.dispatch.dispatcher._PIECE_BYTES", 1000)
    monkeypatch.setattr("commitlog.dispatch.dispatcher._PASS_BYTES", 2000)
    bench = Bench(tmp_path, files := FailingFiles(), index_files=OSFiles())
    for number in range(90):
        bench.log.append(message(b"x" * number, "T", number % 3, properties={"KEYS": f"k{number}"}))
    assert bench.dispatcher.behind > 9000
    queues = [bench.queues.find_or_create("T", number) for number in range(3)]
    bench.dispatcher.catch_up()
    assert bench.dispatcher.behind == 0
    assert [queue.max_offset for queue in queues] == [30, 30, 30]
    assert all(len(bench.find(f"k{number}", "T")) == 1 for number in range(90))
    # One pass, and one for the last piece, which is not full; of 2,000 bytes each it would be 6.
    assert files.calls["pwrite"] == 2 * len(queues)


def test_arrivals_tell_each_tag_of_a_queue_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for tag in ("TagA", "tb", "TagA", "tb", "TagA"):
        bench.log.append(message(properties={"TAGS": tag}))
    bench.dispatch()
    assert bench.arrivals == [[("TopicTest", 3, 5, 2598919), ("TopicTest", 3, 4, 3694)]]
    bench.dispatch()
    assert len(bench.arrivals) == 1


def test_a_deleted_topic_comes_again_with_its_next_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.log.append(message())
    bench.dispatch()
    bench.queues.delete_topic("TopicTest")
    done = bench.log.append(message())
    bench.dispatch()
    queue = bench.queues.get("TopicTest", 3)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (1, 2)
    assert queue.read(1, 1)[0].physical_offset == done.physical_offset


def test_without_an_index_only_queues_are_fed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.log.append(message(properties={"KEYS": "k"}))
    plain = Dispatcher(bench.log, bench.queues, None, delay_levels=DELAY_LEVELS)
    assert plain.step() == bench.log.end
    assert len(bench.entries()) == 1
    assert bench.find("k") == []


# -- as a thread -----------------------------------------------------------------------------------


class Running:
    """The dispatcher's task in a thread, until the `with` ends."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.stop = threading.Event()
        self.thread = threading.Thread(target=dispatcher.run, args=(self.stop,))

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.dispatcher.wake()
        self.thread.join(20)
        assert not self.thread.is_alive()


def test_the_thread_follows_the_log_and_ends_when_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with Running(bench.dispatcher):
        for number in range(1, 50):
            bench.log.append(message())
            wait_until(lambda number=number: len(bench.entries()) == number)
    assert bench.dispatcher.failed is None
    assert bench.dispatcher.trouble is None


def test_an_idle_thread_waits_and_does_not_look_again_and_again(tmp_path: Path) -> None:
    bench = replica(tmp_path, record_of(message(), 0)[:50])
    steps: list[float] = []
    step = bench.dispatcher.step
    bench.dispatcher.step = lambda: steps.append(time.monotonic()) or step()  # type: ignore[method-assign,func-returns-value]
    with Running(bench.dispatcher):
        wait_until(lambda: steps)
        wait_until(lambda: bench.log._followers.waiting, "dispatcher waits")
        assert len(steps) <= 2
        bench.log.append_replica(50, [bytes(record_of(message(), 0))[50:]])
        wait_until(lambda: len(bench.entries()) == 1)


def test_after_damage_the_thread_waits_for_its_end_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = replica(tmp_path, record_of(message(), 0), b"GET / HTTP/1.1\r\n" * 5)
    with Running(bench.dispatcher) as running:
        wait_until(lambda: bench.dispatcher.failed is not None)
        assert running.thread.is_alive()
    assert bench.dispatcher.failed == "record at 123: magic 0x2f204854 is none of a record"
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    assert len(bench.entries()) == 1


def test_the_thread_resumes_when_the_disk_has_space_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    bench = Bench(tmp_path, files)
    files.fail("pwrite", errno.ENOSPC)
    with Running(bench.dispatcher):
        bench.log.append(message())
        wait_until(lambda: bench.dispatcher.trouble is not None)
        wait_until(lambda: files.calls["pwrite"] >= 2)
        assert bench.entries() == []
        files.heal()
        wait_until(lambda: len(bench.entries()) == 1)
        wait_until(lambda: bench.dispatcher.trouble is None)
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1


def test_a_flood_of_replicated_bytes_goes_first_and_is_dispatched_when_it_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path, replica=True, segment_bytes=64 << 20)
    dispatcher = Dispatcher(bench.log, bench.queues, None, delay_levels=DELAY_LEVELS, yields=True)
    sent = 0

    def arrive(messages: int) -> None:
        nonlocal sent
        for number in range(sent, sent + messages):
            body = message(body=bytes(1 << 20))
            bench.log.append_replica(bench.log.end, [record_of(body, bench.log.end, number)])
        sent += messages

    class Stop(threading.Event):
        """Ends the run when all is dispatched; five MiB more arrive at each of the first three looks."""

        positions: list[int] = []  # noqa: RUF012 - one Stop, one list

        def is_set(self) -> bool:
            return dispatcher.behind == 0

        def wait(self, timeout: float | None = None) -> bool:
            self.positions.append(dispatcher.position)
            if len(self.positions) <= 3:
                arrive(5)
            return False

    arrive(10)
    stop = Stop()
    dispatcher.run(stop)
    first = stop.positions[0]
    assert stop.positions[:4] == [first] * 4, "nothing is dispatched while the flood lasts"
    assert len(bench.entries()) == sent == 25


def test_a_flood_that_does_not_end_is_yielded_to_for_half_a_minute_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = 0.0
    monkeypatch.setattr("commitlog.dispatch.dispatcher.time", SimpleNamespace(monotonic=lambda: clock_s))
    for name, value in {
        "_FLOOD_BYTES": 4096,
        "_PIECE_BYTES": 4096,
        "_PASS_BYTES": 0,
        "_LEVEL_BYTES": 0,
    }.items():
        monkeypatch.setattr(f"commitlog.dispatch.dispatcher.{name}", value)
    bench = Bench(tmp_path, replica=True, segment_bytes=64 << 20)
    dispatcher = Dispatcher(bench.log, bench.queues, None, delay_levels=DELAY_LEVELS, yields=True)
    sent = 0

    def arrive() -> None:
        nonlocal sent
        for _ in range(3):
            record = record_of(message(body=bytes(2000)), bench.log.end, sent)
            bench.log.append_replica(bench.log.end, [record])
            sent += 1

    class Stop(threading.Event):
        """Ends the run when all is dispatched; at each look more have arrived than could be dispatched."""

        positions: list[int] = []  # noqa: RUF012 - one Stop, one list

        def is_set(self) -> bool:
            return dispatcher.behind == 0

        def wait(self, timeout: float | None = None) -> bool:
            nonlocal clock_s
            assert timeout is not None
            clock_s += timeout
            self.positions.append(dispatcher.position)
            arrive()
            return False

    arrive()
    arrive()
    stop = Stop()
    dispatcher.run(stop)
    assert 29.9 < clock_s < 30.1
    assert len(set(stop.positions)) == 1, "afterwards it dispatches until it is level"
    assert len(bench.entries()) == sent
    arrive()
    arrive()
    dispatcher.run(stop)
    assert clock_s > 59, "and then the next flood goes first"


class RoomForQueues(OSFiles):
    """A disk with no room for a file as large as an index file."""

    full = False

    def create(self, path: Path, size: int, mode: int = 0o644, allocated: int | None = None) -> int:
        if self.full and path.parent.name == "index":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return super().create(path, size, mode, allocated)


def test_queues_go_on_while_there_is_no_room_for_an_index_file(tmp_path: Path) -> None:
    files = RoomForQueues()
    bench = Bench(tmp_path, files)
    for number in range(500):  # more than an index file of 400 entries takes
        bench.log.append(message(properties={"KEYS": f"k{number}"}))
    files.full = True
    with Running(bench.dispatcher):
        wait_until(lambda: bench.dispatcher.trouble is not None)
        bench.log.append(message(properties={"KEYS": "late"}))
        wait_until(lambda: len(bench.entries()) == 501)
        assert len(bench.find("late")) == 1
        files.full = False
        wait_until(lambda: bench.dispatcher.trouble is None)
    assert len(bench.index.pending) == 0
    assert [len(bench.find(key)) for key in ("k499", "late")] == [1, 1]


class Gathering(threading.Event):
    """In place of what ends a wait for arrivals: does what is left to do, one thing at each wait, then stops."""

    def __init__(self, dispatcher: Dispatcher, *doings: Callable[[], None]) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.waits: list[tuple[float | None, bool]] = []
        self._dispatcher = dispatcher
        self._doings = list(doings)

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append((timeout, self._dispatcher.behind == 0))
        if self._doings:
            self._doings.pop(0)()
        else:
            self.stop.set()
        return True


def test_arrivals_gather_longer_where_they_go_to_many_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.dispatch.dispatcher._MANY_QUEUES", 3)
    bench = Bench(tmp_path)
    dispatcher = Dispatcher(bench.log, bench.queues, None, delay_levels=DELAY_LEVELS)
    dispatcher.awaited = lambda: False

    def arrive(queues: int) -> None:
        for queue_id in range(queues):
            bench.log.append(message(queue_id=queue_id))

    arrive(2)
    dispatcher._hurry = gathering = Gathering(dispatcher, lambda: arrive(3), lambda: arrive(2))
    dispatcher.run(gathering.stop)
    assert gathering.waits == [(0.05, True), (0.5, True), (0.05, True)]


def test_little_that_came_during_a_pass_gathers_and_much_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.dispatch.dispatcher._UNAWAITED_LEVEL_BYTES", 2000)
    bench = Bench(tmp_path)
    dispatcher = Dispatcher(bench.log, bench.queues, None, delay_levels=DELAY_LEVELS)
    dispatcher.awaited = lambda: False
    during = [10, 3000]

    def arrive(size: int = 10) -> None:
        bench.log.append(message(bytes(size)))

    dispatcher.on_arrival = lambda _: arrive(during.pop(0)) if during else None
    arrive()
    dispatcher._hurry = gathering = Gathering(dispatcher, arrive)
    dispatcher.run(gathering.stop)
    # The second pass takes what came during the first, and during it comes so much that a third follows at once.
    assert gathering.waits == [(0.05, False), (0.05, True)]


def test_arrivals_gather_until_somebody_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.dispatch.dispatcher._UNAWAITED_LINGER_S", 600.0)
    bench = Bench(tmp_path)
    dispatcher = Dispatcher(bench.log, bench.queues, None, delay_levels=DELAY_LEVELS)
    dispatcher.awaited = lambda: False
    stop = threading.Event()
    thread = threading.Thread(target=dispatcher.run, args=(stop,))
    thread.start()
    bench.log.append(message())
    wait_until(lambda: dispatcher.behind == 0, "the first comes at once")
    bench.log.append(message())
    dispatcher.hurry()
    wait_until(lambda: dispatcher.behind == 0, "the second when somebody waits")
    bench.log.append(message())
    stop.set()
    dispatcher.wake()
    thread.join(10.0)
    assert not thread.is_alive(), "a stop does not wait for more"
