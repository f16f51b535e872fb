"""Dispatch by runs and natively: the same files, byte for byte, as record by record in Python; disks that fail."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from commitlog.consume_queue import ConsumeQueues
from commitlog.dispatch import Dispatcher
from commitlog.errors import CorruptRecord
from commitlog.files import NotAllWritten, OSFiles, Write
from commitlog.index import IndexFiles
from commitlog.kernel import dispatching, native
from commitlog.kernel.layout import BLANK, BLANK_MAGIC, INDEX_PUT, MESSAGE_MAGIC_V2, QUEUE_ENTRY
from commitlog.kernel.records import encode, stamp
from commitlog.log import CommitLog
from commitlog.options import DELAY_LEVELS
from tests.support.failing_files import FailingFiles
from tests.support.messages import STORE_HOST, STORE_MS, Clock, message, open_log

SEGMENT_BYTES = 32 << 10
V6_HOST = bytes(range(20))
SYS_FLAGS = (0, 0, 0, 0, 0x4, 0x8, 0xC)
TAGS = ("TagA", "TagB", "", "t" * 70, "标签", "a\x01b")
KEYS = ("k1", "k1 k2", " k3  k4 ", "", "schlüssel", "0A010203000018B4AAC20000000A0000", "x" * 300)


class OneByOne(dispatching.Lanes):
    """Knows no lane, so every record is dealt with by itself, in Python."""

    def learn(self, *_: object) -> None:
        pass


def native_core() -> ModuleType:
    return pytest.importorskip("commitlog.kernel._native", reason="the native kernel is not built")


@pytest.fixture(params=["python", "native"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(native, "core", native_core() if request.param == "native" else None)
    return str(request.param)


# -- random logs -----------------------------------------------------------------------------------


class RandomLog:
    """Records, blanks between segments, and what is odd, in a replica's log."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bytes = bytearray()
        self.numbers: dict[tuple[str, int], int] = {}
        self.stored_ms = STORE_MS

    def add(self) -> None:
        chance = self.chance
        topic = chance.choice(("T", "Topic-with_%RETRY%name", "SCHEDULE_TOPIC_XXXX", "T2", "T2", "T2"))
        what = message(
            chance.randbytes(chance.choice((0, 5, 100, 1500))),
            topic,
            chance.choice((0, 0, 1, 7)),
            properties=self._properties(),
            sys_flag=chance.choice(SYS_FLAGS),
            born_host=chance.choice((STORE_HOST, V6_HOST)),
        )
        record = encode(what, chance.choice((STORE_HOST, STORE_HOST, V6_HOST)))
        room = SEGMENT_BYTES - len(self.bytes) % SEGMENT_BYTES
        if len(record) + BLANK.size > room:
            self.bytes += BLANK.pack(room, BLANK_MAGIC) + bytes(room - BLANK.size)
        self.stored_ms += chance.choice((0, 1, 700, -5))
        stamp(record, self._number(topic, what.queue_id), len(self.bytes), self.stored_ms)
        self.bytes += record

    def _properties(self) -> dict[str, str]:
        chance = self.chance
        names = chance.sample(("TAGS", "KEYS", "UNIQ_KEY", "MYKEYS", "DELAY", "WAIT"), chance.randint(0, 6))
        values = {"TAGS": TAGS, "KEYS": KEYS, "UNIQ_KEY": KEYS, "DELAY": ("3", "x", "99")}
        return {name: chance.choice(values.get(name, ("v", "日本"))) for name in names}

    def _number(self, topic: str, queue_id: int) -> int:
        """The queue's next; at times with a gap before it, or as a queue that begins anew."""
        number = self.numbers.get((topic, queue_id), self.chance.choice((0, 0, 3, 250)))
        fate = self.chance.random()
        if fate < 0.02:
            number += self.chance.randint(1, 40)
        elif fate < 0.03:
            number = self.chance.randint(0, number)
        self.numbers[topic, queue_id] = number + 1
        return number


class Followers:
    """Queues and index of a log, as a process has them; another one may follow it."""

    def __init__(self, root: Path, log: CommitLog, files: OSFiles | None = None) -> None:
        self.queues = ConsumeQueues(root / "consumequeue", 2000, files or OSFiles())
        self.queues.load()
        self.index = IndexFiles(root / "index", 50, 400, files or OSFiles(), Clock())
        self.index.load(crashed=False, checkpoint_ms=0)
        self.arrivals: list[Any] = []
        self.dispatcher = Dispatcher(log, self.queues, self.index, delay_levels=DELAY_LEVELS)
        self.dispatcher.on_arrival = self.arrivals.append

    def close(self) -> None:
        self.index.close()
        self.queues.close()


def files_of(root: Path) -> dict[str, bytes]:
    paths = [
        path for name in ("consumequeue", "index") for path in (root / name).rglob("*") if path.is_file()
    ]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def take_in(log: CommitLog, whole: bytearray) -> None:
    while log.end < len(whole):
        end = min(len(whole), log.end - log.end % SEGMENT_BYTES + SEGMENT_BYTES)
        log.append_replica(log.end, [bytes(whole[log.end : end])])


def dispatched(root: Path, seed: int) -> tuple[dict[str, bytes], list[Any]]:
    """The files of queues and index, and the arrivals, of a log that grows, with restarts and a deleted topic."""
    made = RandomLog(seed)
    chance = random.Random(-seed)
    log = open_log(root, segment_bytes=SEGMENT_BYTES, replica=True)
    followers, arrivals = Followers(root, log), []
    for _ in range(12):
        for _ in range(chance.randint(1, 60)):
            made.add()
        # At times a record is not all there yet.
        end = len(made.bytes) - chance.choice((0, 0, 1, 50))
        take_in(log, made.bytes[:end])
        for _ in range(chance.randint(0, 6)):
            followers.dispatcher.step()
        fate = chance.random()
        if fate < 0.3:
            followers.close()
            arrivals += followers.arrivals
            followers = Followers(root, log)
        elif fate < 0.4:
            followers.queues.delete_topic("T2")
    take_in(log, made.bytes)
    while followers.dispatcher.step():
        pass
    assert followers.dispatcher.position == log.end == len(made.bytes)
    followers.close()
    log.close()
    return files_of(root), arrivals + followers.arrivals


@pytest.mark.parametrize("seed", range(1, 13))
def test_any_log_gives_the_same_files_as_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, seed: int
) -> None:
    for name, value in {"_PIECE_BYTES": 9000, "_PASS_BYTES": 30_000}.items():
        monkeypatch.setattr(f"commitlog.dispatch.{name}", value)
    found = dispatched(tmp_path / build, seed)
    monkeypatch.setattr(native, "core", None)
    monkeypatch.setattr("commitlog.dispatch.lanes", OneByOne)
    expected = dispatched(tmp_path / "one by one", seed)
    assert found[0].keys() == expected[0].keys()
    assert [name for name, content in found[0].items() if content != expected[0][name]] == []
    assert found[1] == expected[1]
    assert len(found[0]) > 6


# -- the kernel's own part -------------------------------------------------------------------------


def both() -> tuple[dispatching.AnyLanes, dispatching.AnyLanes]:
    return dispatching.Lanes(), native_core().Lanes()


def damaged(data: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.choice((0, 0, 1, 3))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("seed", range(40))
def test_both_builds_gather_the_same_and_stop_at_the_same_record(seed: int) -> None:
    made, chance = RandomLog(seed), random.Random(seed)
    for _ in range(150):
        made.add()
    data = damaged(made.bytes, chance)
    for _ in range(20):
        reference, compiled = both()
        at, indexed_to = 0, chance.choice((0, 0, len(data) // 2, dispatching._NEXT_MAX))
        stops = 0
        while at < len(data) and stops < 300:
            end = chance.choice((len(data), len(data), at + chance.randrange(4000)))
            one = reference.gather(data, at, at, end, indexed_to)
            other = compiled.gather(memoryview(data), at, at, end, indexed_to)
            assert one[:2] == other[:2]
            at += one[0]
            if one[1] or chance.random() < 0.8:
                assert reference.take() == compiled.take()
            # Whatever stopped them is told to both, or passed over.
            head = _head(data, at)
            if head is None:
                break
            size, topic, queue_id, queue_offset = head
            if chance.random() < 0.3:
                at += size
            for lanes in (reference, compiled):
                lanes.learn(topic, queue_id, queue_offset, chance.choice((0, at)) if size == 1 else 0, topic)
            stops += 1
        assert reference.take() == compiled.take()


def _head(data: bytes, at: int) -> tuple[int, bytes, int, int] | None:
    """Size, topic, queue id and offset of the record or blank at `at`, if it is one."""
    try:
        head = dispatching.parse_head(data, at)
    except CorruptRecord:
        return None
    if head is None:
        return None
    return head.size, head.topic.encode(), head.queue_id, head.queue_offset


def one_record(number: int = 0, offset: int = 0, **fields: Any) -> bytes:
    record = encode(message(b"body", "T", 0, **fields), STORE_HOST)
    stamp(record, number, offset, STORE_MS)
    return bytes(record)


def known(lanes: dispatching.AnyLanes, next_offset: int = 0, known_physical_offset: int = 0) -> None:
    lanes.learn(b"T", 0, next_offset, known_physical_offset, "owner")


@pytest.fixture
def each(build: str) -> dispatching.AnyLanes:
    return dispatching.lanes()


def test_a_run_has_the_entries_of_a_queue_and_its_keys(each: dispatching.AnyLanes) -> None:
    known(each, 5)
    first = one_record(5, 0, properties={"TAGS": "TagA", "KEYS": "a b"})
    second = one_record(6, len(first), properties={"TAGS": "TagA", "UNIQ_KEY": "u"})
    assert each.gather(first + second, 0, 0, 1 << 20, 0) == (len(first + second), False, STORE_MS)
    runs, puts = each.take()
    entries = QUEUE_ENTRY.pack(0, len(first), 2598919) + QUEUE_ENTRY.pack(len(first), len(second), 2598919)
    assert runs == [("owner", entries, 7, len(first + second), 2598919)]
    assert [put[1:] for put in INDEX_PUT.iter_unpack(puts)] == [
        (0, STORE_MS),
        (0, STORE_MS),
        (len(first), STORE_MS),
    ]
    assert each.gather(first, 0, 0, 1 << 20, 1)[0] == len(first)
    assert each.take() == ([], b""), "the lane has it"


def test_what_is_gathered_in_several_calls_is_taken_at_once(each: dispatching.AnyLanes) -> None:
    known(each)
    records, at = [], 0
    for number in range(4):
        records.append(one_record(number, at, properties={"TAGS": "ab"[number // 3]}))
        at += len(records[-1])
        assert each.gather(records[-1], 0, at - len(records[-1]), 1 << 20, 0)[0] == len(records[-1])
    ((owner, entries, next_offset, known_to, code),) = each.take()[0]
    assert (owner, len(entries), next_offset, known_to, code) == ("owner", 4 * 20, 4, at, None)
    assert each.take() == ([], b"")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (one_record(0, 8), "it belongs elsewhere"),
        (one_record(1), "not the lane's next"),
        (one_record(properties={"TAGS": "é"}), "a tag is not ASCII"),
        (one_record(properties={"KEYS": "a é"}), "a key is not ASCII"),
        (one_record()[:-1], "not all there"),
        (one_record()[:4] + MESSAGE_MAGIC_V2.to_bytes(4, "big", signed=True) + one_record()[8:], "odd"),
    ],
)
def test_what_is_not_ordinary_stops_it_and_changes_nothing(
    each: dispatching.AnyLanes, record: bytes, reason: str
) -> None:
    known(each)
    assert each.gather(record, 0, 0, 1 << 20, 0)[:2] == (0, False), reason
    assert each.take() == ([], b"")
    good = one_record(0)
    assert each.gather(good, 0, 0, len(good), 0)[0] == len(good)


def test_no_lane_is_known_that_no_queue_can_be(each: dispatching.AnyLanes) -> None:
    for topic, queue_id, next_offset in ((b"", 0, 0), (b"a/b", 0, 0), (b"T" * 128, 0, 0), (b"T", -1, 0)):
        each.learn(topic, queue_id, next_offset, 0, None)
    each.learn(b"T", 0, 1 << 70, 0, None)
    assert each.gather(one_record(), 0, 0, 1 << 20, 0)[0] == 0
    known(each)
    each.forget()
    assert each.gather(one_record(), 0, 0, 1 << 20, 0)[0] == 0


def test_a_call_gathers_no_more_than_its_bound_and_says_so(each: dispatching.AnyLanes) -> None:
    known(each)
    records, at = [], 0
    for number in range(12):  # each with more than 16,000 keys
        records.append(one_record(number, at, properties={"KEYS": "k " * 16_300}))
        at += len(records[-1])
    data, position, puts, calls = b"".join(records), 0, 0, 0
    full = True
    while full:
        moved, full, _ = each.gather(data, position, position, len(data), 0)
        _, some = each.take()
        assert len(some) <= dispatching.PUTS_MAX * INDEX_PUT.size
        position, puts, calls = position + moved, puts + len(some) // INDEX_PUT.size, calls + 1
    assert (position, puts) == (len(data), 12 * 16_300)
    assert calls == 3


def test_many_lanes_are_known_at_once(each: dispatching.AnyLanes) -> None:
    for number in range(5000):
        each.learn(b"T%d" % (number % 50), number // 50, number, 0, number)
    at, records = 0, []
    for number in range(0, 5000, 7):
        record = encode(message(b"", f"T{number % 50}", number // 50), STORE_HOST)
        stamp(record, number, at, STORE_MS)
        records.append(record)
        at += len(record)
    assert each.gather(b"".join(records), 0, 0, at, 0)[0] == at
    assert [(run[0], run[2]) for run in each.take()[0]] == [
        (number, number + 1) for number in range(0, 5000, 7)
    ]


# -- disks that fail -------------------------------------------------------------------------------


@pytest.fixture
def full() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("failing", range(3))
def test_of_many_writes_those_before_the_one_that_fails_are_whole(
    tmp_path: Path, build: str, full: int, failing: int
) -> None:
    fds = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(3)]
    writes: list[Write] = [(fd, b"%d" % fd * 1000, 7) for fd in fds]
    whole = [b"%d" % fd * 1000 for fd in fds]
    OSFiles().pwrite_all(writes[:1])
    writes[failing] = (full, b"x", 0)
    with pytest.raises(NotAllWritten) as caught:
        OSFiles().pwrite_all(writes)
    assert (caught.value.written, caught.value.errno) == (failing, errno.ENOSPC)
    found = [os.pread(fd, 9999, 7) for fd in fds]
    assert found[:failing] == whole[:failing]
    assert not any(found[max(1, failing) :])
    for fd in fds:
        os.close(fd)


class FullAt(OSFiles):
    """The n-th write of each call finds the disk full."""

    def __init__(self, full: int) -> None:
        self.full = full
        self.at: int | None = None

    def pwrite_all(self, writes: list[Write]) -> None:
        if self.at is not None and self.at < len(writes):
            writes = writes.copy()
            writes[self.at] = (self.full, *writes[self.at][1:])
        super().pwrite_all(writes)


def eight_queues(root: Path, log: CommitLog, files: OSFiles) -> Followers:
    """Each with one message, and its file."""
    followers = Followers(root, log, files)
    for queue_id in range(8):
        log.append(message(queue_id=queue_id))
    assert followers.dispatcher.step()
    return followers


@pytest.mark.parametrize("failing", range(8))
def test_a_disk_that_is_full_at_one_queue_holds_up_the_pass_and_nothing_is_lost(
    tmp_path: Path, build: str, full: int, failing: int
) -> None:
    log, files = open_log(tmp_path), FullAt(full)
    followers = eight_queues(tmp_path, log, files)
    position = followers.dispatcher.position
    for queue_id in range(8):
        log.append(message(queue_id=queue_id))
    files.at = failing
    with pytest.raises(OSError, match="No space left") as caught:
        followers.dispatcher.step()
    assert caught.value.filename == str(tmp_path / f"consumequeue/TopicTest/{failing}/00000000000000000000")
    assert followers.dispatcher.position == position
    assert ends(followers) == [2] * failing + [1] * (8 - failing)
    files.at = 0
    with pytest.raises(OSError, match="No space left"):
        followers.dispatcher.step()
    files.at = None
    assert followers.dispatcher.step()
    assert ends(followers) == [2] * 8
    assert [arrival[2] for arrival in followers.arrivals[-1]] == [2] * 8
    followers.queues.flush()
    assert followers.queues.durable_position == log.end


def ends(followers: Followers) -> list[int]:
    return [queue.max_offset for _, queue in sorted(followers.queues.items())]


class Amid(FailingFiles):
    """Something happens amid the writes of a pass."""

    happens: Callable[[], object] | None = None

    def pwrite_all(self, writes: list[Write]) -> None:
        super().pwrite_all(writes)
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()


def test_a_queue_emptied_or_deleted_while_it_is_written_is_as_if_that_came_first(
    tmp_path: Path, build: str
) -> None:
    log, files = open_log(tmp_path), Amid()
    followers = eight_queues(tmp_path, log, files)
    queues = followers.queues
    for happens in (
        lambda: queues.empty_expired(log.end, lambda _topic, _queue_id: False),
        lambda: queues.delete_topic("TopicTest"),
    ):
        done = [log.append(message(queue_id=queue_id)) for queue_id in range(8)]
        files.happens = happens
        old = [queue for _, queue in sorted(queues.items())]
        assert followers.dispatcher.step()
        if queues.items():
            assert [queue.min_offset for queue in old] == [a.queue_offset for a in done]
            assert [queue.read(queue.min_offset, 9)[0].physical_offset for queue in old] == [
                appended.physical_offset for appended in done
            ]
        else:
            assert [queue.max_offset for queue in old] == [0] * 8
    log.append(message(queue_id=3))
    assert followers.dispatcher.step()
    assert [(queue.min_offset, queue.max_offset) for _, queue in queues.items()] == [(3, 4)]


def test_more_queues_are_touched_than_descriptors_are_kept(
    tmp_path: Path, build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.descriptors.descriptors_max", lambda: 4)
    log, files = open_log(tmp_path, segment_bytes=1 << 20), OSFiles()
    followers = Followers(tmp_path, log, files)
    for number in range(3):
        for queue_id in range(50):
            log.append(message(queue_id=queue_id))
        assert followers.dispatcher.step()
        assert ends(followers) == [number + 1] * 50
        assert len(followers.queues._descriptors._open) <= 4


# -- a disk that fails under a mapping -------------------------------------------------------------

TRUNCATED = """
import faulthandler, mmap, os, sys
from pathlib import Path
from commitlog.descriptors import Descriptors
from commitlog.files import OSFiles
from commitlog.index_file import IndexFile, Puts

def made(name):
    files = OSFiles()
    file = IndexFile(Path(name), 100, 400, files, Descriptors(files))
    file.create(None)
    return file

puts = [(number * 7919 % 1000, 100 + number, 10_000 * number) for number in range(390)]
file, sound = made("file"), made("sound")
sound.put(Puts(puts))
file.put(Puts(puts[:10]))
size = os.path.getsize("file")
os.truncate("file", 4096)
for handler in (lambda: None, faulthandler.enable, faulthandler.disable):
    handler()
    try:
        file.put(Puts(puts[file.next_entry - 1 :]))
    except OSError as error:
        assert error.filename == "file", error
        print(error.errno, file.next_entry)
os.truncate("file", size)
file.put(Puts(puts[file.next_entry - 1 :]))
print(Path("file").read_bytes() == Path("sound").read_bytes())
"""


def run(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    native_core()
    environment = {name: value for name, value in os.environ.items() if name != native.PURE}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_a_disk_that_fails_under_the_index_is_an_error_and_costs_no_key(tmp_path: Path) -> None:
    done = run(TRUNCATED, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    # Entries begin at 440: number 182 ends behind the page.
    assert done.stdout.splitlines() == [f"{errno.EIO} 182"] * 3 + ["True"]


@pytest.mark.parametrize("handler", ["", "faulthandler.enable()"])
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("how", ["mapped[8000]", "os.kill(os.getpid(), signal.SIGBUS)"])
def test_any_other_sigbus_goes_where_it_went_before(
    tmp_path: Path, handler: str, order: str, how: str
) -> None:
    guarded = TRUNCATED[: TRUNCATED.index("for handler")] + "file.next_entry\n"
    script = "\n".join(
        (
            "import faulthandler, os, signal",
            handler if order == "before" else "",
            guarded,
            handler if order == "after" else "",
            "mapped = mmap.mmap(os.open('sound', os.O_RDWR), 0)",
            "os.truncate('sound', 100)",
            how,
        )
    )
    done = run(script, tmp_path)
    assert done.returncode == -signal.SIGBUS, done.stderr
    assert ("Fatal Python error: Bus error" in done.stderr) == bool(handler)
