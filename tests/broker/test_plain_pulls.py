"""The short way of a pull: it gives what the reader gives without it, for whatever queue and log there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.disk.files import OSFiles
from commitlog.errors import CommitLogError
from commitlog.kernel import native
from commitlog.kernel.records import NewMessage, encode, stamp
from commitlog.queues.chosen import Chosen
from commitlog.queues.consume_queue import PRE_BLANK_SIZE, Entry
from commitlog.queues.queue_files import UNIT
from haservice.broker.pull.read_result import PullStatus, ReadLimits, Scan
from haservice.broker.pull.reader import PullReader
from haservice.broker.pull.tag_filter import TagCodes
from tests.broker.test_reader import MemoryLog, MemoryQueue

pytestmark = pytest.mark.skipif(
    native.core is None, reason="holds the native build against the reference, once"
)

TOPIC = "T"
FIRST = 40
LIMITS = ReadLimits(memory_bytes=1 << 50)


class GatheringLog(MemoryLog):
    """Its bytes are in a file, too, once they are gathered."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self.fd = os.memfd_create("log")
        self.gathered = 0

    def gather(self, chosen: Chosen, waits: bool = True) -> bytes | None:
        if chosen.end > self.end or any(
            begin < chosen.end and end > chosen.first for begin, end in self.damaged
        ):
            return None
        os.pwrite(self.fd, self.data, 0)
        self.gathered += 1
        return OSFiles().gather(self.fd, 0, chosen.units, waits)


class Shelf:
    """A queue whose messages begin at number FIRST, and other messages between them."""

    def __init__(self, sizes: list[tuple[int, int]], limits: ReadLimits = LIMITS, topic: str = TOPIC) -> None:
        """`sizes`: of each body, and of what lies behind it."""
        self.log = GatheringLog()
        self.queue = MemoryQueue(FIRST)
        self.topic = topic
        for number, (body_bytes, between) in enumerate(sizes, FIRST):
            record = encode(NewMessage(topic, 0, bytes([number % 251]) * body_bytes), bytes(8))
            stamp(record, number, self.log.end, 0)
            self.queue.entries.append(Entry(self.log.end, len(record), number % 3))
            self.log.data += record + bytes(between)
        self.mark = self.log.end
        self.reader = PullReader(
            self.log, lambda topic, queue_id: self.queue, limits, readable_end=lambda: self.mark
        )

    def close(self) -> None:
        os.close(self.log.fd)

    def scan(self, offset: int = FIRST, count: int = 32, codes: TagCodes = None) -> Scan:
        return self.reader.scan(self.topic, 0, offset, count, codes)

    def answers(self, offset: int, count: int, codes: TagCodes) -> tuple[Any, ...]:
        """All that a pull gets to see."""
        scan = self.scan(offset, count, codes)
        places = scan.places and (scan.places.topic, scan.places.queue_id, list(scan.places.offsets))
        found = scan._replace(entries=list(scan.entries), places=None), bool(scan.entries) and places
        self.log.suspects.clear()
        try:
            return *found, self.reader.load(scan.entries, scan.places), None, []
        except CommitLogError as error:
            return *found, b"", (type(error), str(error)), list(self.log.suspects)


def without_native(shelf: Shelf, offset: int, count: int, codes: TagCodes) -> tuple[Any, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", None)
        return shelf.answers(offset, count, codes)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf([(100, 0), (0, 3), (1000, 2000), (50, 0), (900, 20_000), (10, 0)])
    yield made
    made.close()


def test_an_ordinary_pull_goes_the_short_way(shelf: Shelf) -> None:
    scan = shelf.scan()
    assert type(scan.entries) is Chosen
    assert list(scan.entries) == shelf.queue.entries
    assert scan.entries[-1] == shelf.queue.entries[-1]
    assert (scan.status, scan.next_offset, len(scan.entries)) == (PullStatus.FOUND, FIRST + 6, 6)
    records = b"".join(shelf.log.data[at : at + size] for at, size, _ in shelf.queue.entries)
    assert shelf.reader.load(scan.entries, scan.places) == records
    assert (shelf.log.gathered, shelf.log.reads) == (1, []), "it was read once, and not one by one"


def test_a_filter_by_tags_goes_the_short_way(shelf: Shelf) -> None:
    scan = shelf.scan(codes=frozenset({1}))
    assert type(scan.entries) is Chosen
    assert scan.places is not None
    assert list(scan.places.offsets) == [40, 43]
    shelf.reader.load(scan.entries, scan.places)
    assert shelf.log.reads == []


def test_who_reads_the_disk_brings_the_next_messages_of_the_queue(shelf: Shelf) -> None:
    scan = shelf.scan(count=2)
    assert type(scan.entries) is Chosen
    assert shelf.reader.load_from_disk(scan) == shelf.reader.load(scan.entries, scan.places)
    assert scan.entries.next_units == b"".join(UNIT.pack(*entry) for entry in shelf.queue.entries[2:])
    filtered = shelf.scan(codes=frozenset({1}))
    assert type(filtered.entries) is Chosen
    assert len(shelf.reader.load_from_disk(filtered)) == filtered.size_bytes
    assert filtered.entries.next_units == b"", "a filter would leave out some of them"


class Odd(NamedTuple):
    """What is made of one entry."""

    at: int
    what: str
    by: int


def spoil(shelf: Shelf, odd: Odd) -> None:
    entries = shelf.queue.entries
    at = odd.at % len(entries)
    offset, size, code = entries[at]
    if odd.what == "blank":
        entries[at] = Entry(0, PRE_BLANK_SIZE, 0)
    elif odd.what == "moved":
        entries[at] = Entry(min(offset + odd.by, (1 << 63) - 1), size, code)
    elif odd.what == "resized":
        entries[at] = Entry(offset, min(size + odd.by, (1 << 31) - 1), code)
    elif odd.what == "far":
        entries[at] = Entry((1 << 63) - 1 - odd.by % 3, size, code)
    elif odd.what == "negative":
        entries[at] = Entry(-1 - abs(odd.by), size, code)
    elif odd.what == "sized":
        entries[at] = Entry(offset, (-1, 0, 90, 1 << 30, PRE_BLANK_SIZE, -(1 << 31))[odd.by % 6], code)
    elif odd.what == "another":
        entries[at] = entries[odd.by % len(entries)]
    elif odd.what == "flip" and size > 0 and 0 <= offset < shelf.log.end:
        shelf.log.data[min(offset + abs(odd.by) % size, shelf.log.end - 1)] ^= 1
    elif odd.what == "fence":
        shelf.log.damaged = ((offset, offset + max(1, abs(odd.by))),)
    elif odd.what == "begin":
        shelf.log.start = max(0, offset + odd.by)
    elif odd.what == "mark":
        shelf.mark = offset + odd.by
    elif odd.what == "cut":
        del shelf.log.data[max(0, shelf.log.end - abs(odd.by)) :]


KINDS = [
    "blank",
    "moved",
    "resized",
    "far",
    "negative",
    "sized",
    "another",
    "flip",
    "fence",
    "begin",
    "mark",
    "cut",
]
odds = st.builds(Odd, st.integers(0, 11), st.sampled_from(KINDS), st.integers(-300, 300))
limits = st.builds(
    ReadLimits,
    memory_bytes=st.sampled_from([0, 1000, 5000, 1 << 50, 1 << 80]),
    count_in_memory=st.sampled_from([1, 3, 32, 1 << 70]),
    bytes_in_memory=st.sampled_from([0, 500, 4000, 1 << 18, 1 << 70]),
    count_on_disk=st.sampled_from([1, 2, 8]),
    bytes_on_disk=st.sampled_from([500, 1 << 16]),
    passes_damage=st.booleans(),
)
numbers = st.integers(-1, 4) | st.sampled_from([1 << 31, -(1 << 40)])


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 60, 700]), st.sampled_from([0, 0, 8, 1024, 1025, 5000])),
        min_size=1,
        max_size=12,
    ),
    st.lists(odds, max_size=3),
    limits,
    st.integers(-1, 13),
    st.sampled_from([-1, 1, 2, 5, 32, 900]),
    st.none() | st.frozensets(numbers, max_size=4) | st.just(frozenset(range(100))),
    st.sampled_from([TOPIC, TOPIC, "%LMQ%T"]),
)
def test_it_gives_what_the_reader_gives_without_it(
    sizes: list[tuple[int, int]],
    odd: list[Odd],
    limits: ReadLimits,
    offset: int,
    count: int,
    codes: TagCodes,
    topic: str,
) -> None:
    shelf = Shelf(sizes, limits, topic)
    try:
        for one in odd:
            spoil(shelf, one)
        wanted = without_native(shelf, FIRST + offset, count, codes)
        assert shelf.answers(FIRST + offset, count, codes) == wanted
    finally:
        shelf.close()


@pytest.mark.parametrize("matching", [0, 5, 200, 900])
def test_a_filter_that_looks_at_many_entries_agrees(matching: int) -> None:
    shelf = Shelf([(0, 0)] * 1000)
    try:
        for at in range(1000):
            offset, size, _ = shelf.queue.entries[at]
            shelf.queue.entries[at] = Entry(offset, size, 7 if at % 997 < matching else 8)
        for offset in (0, 1, 127, 128, 199, 250, 950, 999):
            for codes in (frozenset({7}), frozenset({8}), frozenset({9}), frozenset({7, 8})):
                wanted = without_native(shelf, FIRST + offset, 32, codes)
                assert shelf.answers(FIRST + offset, 32, codes) == wanted
    finally:
        shelf.close()
