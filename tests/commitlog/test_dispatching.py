"""Dispatch by runs and natively: the same files, byte for byte, as record by record in Python; disks that fail."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.files import OSFiles
from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.errors import CorruptRecord
from commitlog.index.files import IndexFiles
from commitlog.kernel import dispatching, native
from commitlog.kernel.layout import BLANK, BLANK_MAGIC, INDEX_PUT, MESSAGE_MAGIC_V2, QUEUE_ENTRY
from commitlog.kernel.records import encode, stamp
from commitlog.log.log import CommitLog
from commitlog.options import DELAY_LEVELS
from commitlog.queues.consume_queue import ConsumeQueues
from tests.support.builds import native_core
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

    def __init__(
        self, root: Path, log: CommitLog, files: OSFiles | None = None, position: int | None = None
    ) -> None:
        self.queues = ConsumeQueues(root / "consumequeue", 2000, files or OSFiles())
        self.queues.load()
        self.index = IndexFiles(root / "index", 50, 400, files or OSFiles(), Clock())
        self.index.load(crashed=False, checkpoint_ms=0)
        self.arrivals: list[Any] = []
        self.dispatcher = Dispatcher(
            log, self.queues, self.index, delay_levels=DELAY_LEVELS, position=position
        )
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
            # As after a clean stop, or going again over what the queues have.
            followers = Followers(root, log, position=chance.choice((None, 0)))
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
        monkeypatch.setattr(f"commitlog.dispatch.dispatcher.{name}", value)
    found = dispatched(tmp_path / build, seed)
    monkeypatch.setattr(native, "core", None)
    monkeypatch.setattr("commitlog.dispatch.gathering.lanes", OneByOne)
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


@pytest.mark.parametrize("seed", range(40))
def test_both_builds_meet_the_same_queues(seed: int) -> None:
    made, chance = RandomLog(seed), random.Random(seed)
    for _ in range(150):
        made.add()
    data = damaged(made.bytes, chance)
    reference, compiled = dispatching.Lanes(meets=True), native_core().Lanes(True)
    at = 0
    while (head := _head(data, at)) is not None:
        end = chance.choice((len(data), at + chance.randrange(4000)))
        one = reference.gather(data, at, at, end, 0)
        assert one[:2] == compiled.gather(data, at, at, end, 0)[:2]
        if chance.random() < 0.5:
            assert reference.take() == compiled.take()
        if chance.random() < 0.1:
            for lanes in (reference, compiled):
                lanes.learn(head[1], head[2], head[3], at, "owner")
        at += one[0] or head[0]
    assert reference.take() == compiled.take()


def test_a_queue_that_is_met_goes_on_from_its_first_message(build: str) -> None:
    lanes = dispatching.lanes(meets=True)
    first = one_record(57)
    second = one_record(58, len(first))
    third = one_record(60, len(first) + len(second))
    data = first + second + third
    assert lanes.gather(data, 0, 0, len(data), 0)[0] == len(first + second), "number 59 is not there"
    assert lanes.count == 1
    ((owner, entries, next_offset, known_to, code),) = lanes.take()[0]
    assert (owner, next_offset, known_to, code) == (("T", 0), 59, len(first + second), 2598919)
    assert [entry[:2] for entry in QUEUE_ENTRY.iter_unpack(entries)] == [
        (0, len(first)),
        (len(first), len(second)),
    ]


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


def test_nothing_is_gathered_from_data_that_ends_where_no_log_can(each: dispatching.AnyLanes) -> None:
    known(each)
    last = (1 << 63) - 1 - len(one_record())
    assert each.gather(one_record(0, last) + b"\0", 0, last, 1 << 20, 0)[:2] == (0, False)
    assert each.gather(one_record(0, last), 0, last, 1 << 20, 0)[0] == len(one_record())


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
