"""Which messages answer a pull: statuses, corrected offsets, batch ends, filters, the mark; their bytes."""

from __future__ import annotations

import pytest

from commitlog.errors import CorruptRecord
from commitlog.kernel.records import NewMessage, encode, encode_host, java_hash, stamp
from commitlog.queues.chosen import Chosen
from commitlog.queues.consume_queue import PRE_BLANK_SIZE, Entry
from commitlog.queues.queue_files import UNIT
from haservice.broker.pull.read_result import PullStatus, ReadLimits, Scan
from haservice.broker.pull.reader import PullReader
from haservice.broker.pull.tag_filter import TagCodes

KIB = 1024
FOREVER = 1 << 50
# With the topic T and an empty body.
RECORD_BYTES = 92
LIMITS = ReadLimits(memory_bytes=FOREVER)


class MemoryLog:
    """Records whose bodies are filled with their number."""

    segment_bytes = 64 * KIB

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.data = bytearray(start)
        self.reads: list[tuple[int, int]] = []
        self.damaged: tuple[tuple[int, int], ...] = ()
        self.suspects: list[int] = []
        self.suspect = self.suspects.append

    @property
    def end(self) -> int:
        return len(self.data)

    def append(self, size: int) -> int:
        offset = len(self.data)
        if size < RECORD_BYTES:
            self.data += bytes(size)
            return offset
        record = encode(NewMessage("T", 0, bytes([offset % 251]) * (size - RECORD_BYTES)), bytes(8))
        stamp(record, 0, offset, 0)
        self.data += record
        return offset

    def read(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        if any(begin <= offset < end for begin, end in self.damaged):
            raise CorruptRecord(offset, "fenced")
        return bytes(self.data[offset : offset + size])

    def gather(self, chosen: Chosen, waits: bool = True) -> bytes | None:
        return None


class MemoryQueue:
    def __init__(self, first: int = 0) -> None:
        self.min_offset = first
        self.first = first
        self.entries: list[Entry] = []

    @property
    def max_offset(self) -> int:
        return self.first + len(self.entries) if self.entries else 0

    def read(self, queue_offset: int, count: int) -> list[Entry]:
        at = queue_offset - self.first
        return self.entries[at : at + count] if at >= 0 else []

    def read_units(self, queue_offset: int, count: int) -> bytes:
        return b"".join(UNIT.pack(*entry) for entry in self.read(queue_offset, count))


class Shelf:
    """One log with one queue, and a reader."""

    def __init__(
        self,
        sizes: list[int] | None = None,
        *,
        tags: list[str] | None = None,
        first: int = 0,
        between: int = 0,
        limits: ReadLimits = LIMITS,
        keeps_offset: bool = False,
    ) -> None:
        self.log = MemoryLog()
        self.queue = MemoryQueue(first)
        for number, size in enumerate(sizes or []):
            code = java_hash(tags[number]) if tags and tags[number] else 0
            self.queue.entries.append(Entry(self.log.append(size), size, code))
            if between:
                self.log.append(between)
        self.mark: int | None = None
        self.reader = PullReader(
            self.log,
            lambda topic, queue_id: self.queue if (topic, queue_id) == ("T", 0) else None,
            limits,
            keeps_offset=keeps_offset,
            file_entries=100,
            readable_end=lambda: self.log.end if self.mark is None else self.mark,
        )

    def scan(self, offset: int, count: int = 32, codes: TagCodes = None) -> Scan:
        return self.reader.scan("T", 0, offset, count, codes)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-(1 << 63), PullStatus.OFFSET_TOO_SMALL, 10),
        (-1, PullStatus.OFFSET_TOO_SMALL, 10),
        (9, PullStatus.OFFSET_TOO_SMALL, 10),
        (10, PullStatus.FOUND, 15),
        (14, PullStatus.FOUND, 15),
        (15, PullStatus.OFFSET_OVERFLOW_ONE, 15),
        (16, PullStatus.OFFSET_OVERFLOW_BADLY, 15),
        ((1 << 63) - 1, PullStatus.OFFSET_OVERFLOW_BADLY, 15),
    ],
)
def test_where_an_offset_lies_decides_status_and_correction(
    offset: int, status: PullStatus, next_offset: int
) -> None:
    shelf = Shelf([100] * 5, first=10)
    scan = shelf.scan(offset)
    assert (scan.status, scan.next_offset, scan.min_offset, scan.max_offset) == (status, next_offset, 10, 15)
    kept = Shelf([100] * 5, first=10, keeps_offset=True).scan(offset)
    assert kept.status == status
    assert kept.next_offset == (next_offset if status is PullStatus.FOUND else offset)


def test_a_queue_that_is_not_there_or_empty() -> None:
    shelf = Shelf()
    assert shelf.scan(7) == Scan(PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    assert shelf.reader.scan("T", 1, 7, 32, None) == Scan(PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    kept = Shelf(keeps_offset=True)
    assert kept.scan(7).next_offset == 7
    assert kept.reader.scan("U", 0, 7, 32, None).next_offset == 7


@pytest.mark.parametrize(
    ("count", "taken"), [(1, 1), (5, 5), (32, 32), (33, 32), (10**9, 32), (0, 1), (-5, 1), (-(2**31), 1)]
)
def test_a_batch_ends_at_the_asked_count_or_the_limit_but_has_at_least_one(count: int, taken: int) -> None:
    scan = Shelf([100] * 50).scan(3, count)
    assert (len(scan.entries), scan.next_offset) == (taken, 3 + taken)


def test_a_batch_ends_at_the_limit_of_bytes() -> None:
    scan = Shelf([100 * KIB] * 5).scan(0)
    assert (len(scan.entries), scan.size_bytes, scan.next_offset) == (2, 200 * KIB, 2)


def test_one_message_larger_than_the_limit_is_served_alone() -> None:
    scan = Shelf([4096 * KIB, 100]).scan(0)
    assert (len(scan.entries), scan.next_offset) == (1, 1)


def test_cold_messages_come_in_smaller_batches() -> None:
    near = ReadLimits(memory_bytes=20 * KIB)
    scan = Shelf([KIB] * 100, limits=near).scan(0)
    assert (len(scan.entries), scan.cold, scan.slow) == (8, True, True)
    scan = Shelf([KIB] * 100, limits=near).scan(81)
    assert (len(scan.entries), scan.cold, scan.slow) == (19, False, False)
    scan = Shelf([9 * KIB] * 100, limits=near).scan(0)
    assert (len(scan.entries), scan.size_bytes) == (7, 63 * KIB)


def test_a_filter_takes_what_matches_and_goes_on_behind_what_it_saw() -> None:
    tags = ["red", "", "blue", "red", "green", ""]
    shelf = Shelf([100] * 6, tags=tags)
    scan = shelf.scan(0, 32, frozenset({java_hash("red")}))
    assert [entry.physical_offset for entry in scan.entries] == [0, 300]
    assert scan.next_offset == 6
    scan = shelf.scan(0, 1, frozenset({java_hash("red")}))
    assert (len(scan.entries), scan.next_offset) == (1, 1)
    scan = shelf.scan(4, 32, frozenset({java_hash("red")}))
    assert (scan.status, scan.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 6)


def test_a_filter_gives_up_after_so_many_entries_and_says_how_far_it_came() -> None:
    shelf = Shelf([100] * 2000, keeps_offset=True)
    scan = shelf.scan(5, 32, frozenset({1}))
    assert (scan.status, scan.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 805)
    assert shelf.scan(5, 1500, frozenset({1})).next_offset == 1505


def test_nothing_above_the_mark_is_served() -> None:
    shelf = Shelf([100] * 10)
    shelf.mark = 350
    scan = shelf.scan(0)
    assert (len(scan.entries), scan.next_offset, scan.max_offset) == (3, 3, 10)
    for offset in (3, 9):
        scan = shelf.scan(offset)
        assert (scan.status, scan.next_offset) == (PullStatus.OFFSET_OVERFLOW_ONE, offset)
        assert scan.below_mark
    shelf.mark = 400
    assert len(shelf.scan(3).entries) == 1


def test_a_filter_stops_at_the_mark_too() -> None:
    shelf = Shelf([100] * 10)
    shelf.mark = 350
    scan = shelf.scan(0, 32, frozenset({1}))
    assert (scan.status, scan.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 3)


def test_messages_that_the_log_has_dropped_are_passed_over() -> None:
    shelf = Shelf([100] * 5)
    shelf.log.start = 250
    scan = shelf.scan(0)
    assert [entry.physical_offset for entry in scan.entries] == [300, 400]
    shelf.log.start = 1000
    scan = shelf.scan(1)
    assert (scan.status, scan.next_offset) == (PullStatus.MESSAGE_WAS_REMOVING, 5)


def test_blanks_of_the_index_are_no_messages() -> None:
    shelf = Shelf([100] * 4)
    shelf.queue.entries[1] = Entry(0, PRE_BLANK_SIZE, 0)
    assert [entry.physical_offset for entry in shelf.scan(0).entries] == [0, 200, 300]
    assert shelf.scan(1).next_offset == 4


def test_a_hole_in_the_index_is_left_by_its_next_file() -> None:
    shelf = Shelf([100] * 5)
    shelf.queue.read = lambda queue_offset, count: []  # type: ignore[method-assign]
    scan = shelf.scan(2)
    assert (scan.status, scan.next_offset) == (PullStatus.OFFSET_FOUND_NULL, 100)


def test_neighbours_are_read_at_once() -> None:
    shelf = Shelf([KIB] * 30)
    scan = shelf.scan(0)
    assert shelf.reader.load(scan.entries) == bytes(shelf.log.data)
    assert shelf.log.reads == [(0, 30 * KIB)]


@pytest.mark.parametrize("between", [8, 300, 4096, 4097, 10_000])
def test_what_lies_between_is_not_served(between: int) -> None:
    sizes = [100, 5000, 92, 1, 700]
    sizes[3] = 93
    shelf = Shelf(sizes, between=between)
    entries = shelf.scan(0).entries
    wanted = b"".join(shelf.log.data[at : at + size] for at, size, _ in entries)
    assert shelf.reader.load(entries) == wanted
    assert (len(shelf.log.reads) == 1) == (between <= 4096)


def test_a_read_never_spans_two_segments() -> None:
    shelf = Shelf()
    for size in (60 * KIB, 4 * KIB - 8):
        shelf.queue.entries.append(Entry(shelf.log.append(size), size, 0))
    shelf.log.append(8)
    shelf.queue.entries.append(Entry(shelf.log.append(100), 100, 0))
    scan = shelf.scan(0)
    shelf.reader.load(scan.entries)
    assert shelf.log.reads == [(0, 64 * KIB - 8), (64 * KIB, 100)]


def test_an_index_that_disagrees_with_the_log_serves_nothing() -> None:
    shelf = Shelf([100] * 3)
    entries = list(shelf.scan(0).entries)
    for wrong in (Entry(100, 99, 0), Entry(101, 100, 0), Entry(250, 100, 0)):
        with pytest.raises(CorruptRecord):
            shelf.reader.load([entries[0], wrong])


@pytest.mark.parametrize("hosts", ["127.0.0.1", "::1"])
def test_a_body_is_held_against_its_crc_whatever_its_hosts_are(hosts: str) -> None:
    host = encode_host(hosts, 10911)
    shelf = Shelf()
    for number in range(3):
        record = encode(NewMessage("T", 0, bytes([number]) * 300, born_host=host), host)
        stamp(record, number, shelf.log.end, 1)
        shelf.queue.entries.append(Entry(shelf.log.end, len(record), 0))
        shelf.log.data += record
    entries = shelf.scan(0).entries
    assert shelf.reader.load(entries) == shelf.log.data
    shelf.log.data[entries[1].physical_offset + 200] ^= 1
    with pytest.raises(CorruptRecord) as caught:
        shelf.reader.load(entries)
    assert caught.value.offset == entries[1].physical_offset
    assert shelf.log.suspects == [entries[1].physical_offset]


def test_what_comes_before_damage_is_served_and_the_pull_that_begins_at_it_is_told() -> None:
    shelf = Shelf([100] * 6)
    shelf.log.damaged = ((300, 400),)
    scan = shelf.scan(0)
    assert (scan.status, scan.next_offset, len(scan.entries)) == (PullStatus.FOUND, 3, 3)
    assert len(shelf.reader.load(scan.entries)) == 300
    with pytest.raises(CorruptRecord):
        shelf.reader.load(shelf.scan(3).entries)
    behind = shelf.scan(4)
    assert len(shelf.reader.load(behind.entries)) == 200
    shelf.log.damaged = ()
    assert len(shelf.scan(0).entries) == 6
