"""What a slave takes of its master's bytes: a true log however it is cut, and nothing of a false one."""

from __future__ import annotations

import struct
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, MESSAGE_MAGIC_V2
from commitlog.kernel.records import NewMessage, encode, stamp
from haservice.errors import ProtocolError
from haservice.replication.slave.record_check import BadRecord, RecordCheck, first_bytes
from haservice.replication.wire.protocol import TransferReader
from tests.support.messages import batch_body, message, open_log, whole_log
from tests.support.replication import frame_bytes

pytestmark = pytest.mark.usefixtures("build")

STOCK = Path(__file__).parents[1] / "compat" / "data"
SEGMENT = 4096
BEGIN = 3 * SEGMENT
HOST, HOST_V6 = bytes(8), bytes(20)
INT, LONG = struct.Struct(">i"), struct.Struct(">q")


@dataclass
class Recipe:
    """Of one record."""

    body: bytes = b"." * 100
    topic: str = "Stories"
    properties: bytes = b"TAGS\x01a"
    born_v6: bool = False
    store_v6: bool = False
    v2: bool = False

    def record(self, offset: int) -> bytes:
        made = NewMessage(
            self.topic, 1, self.body, self.properties, born_host=HOST_V6 if self.born_v6 else HOST, flag=3
        )
        record = encode(made, HOST_V6 if self.store_v6 else HOST)
        stamp(record, 7, offset, 1_700_000_000_000)
        if self.v2:
            record[self.body_at + len(self.body) : self.body_at + len(self.body)] = b"\0"
            BLANK.pack_into(record, 0, len(record), MESSAGE_MAGIC_V2)
        return bytes(record)

    @property
    def body_at(self) -> int:
        return 88 + 12 * self.born_v6 + 12 * self.store_v6

    def summed(self) -> set[tuple[int, int]]:
        """(byte, bit) of all that cannot be another without being noticed."""
        topic_at = self.body_at + len(self.body)
        lengths_at = topic_at + 1 + self.v2 + len(self.topic)
        places = [*range(12), *range(28, 36), *range(self.body_at - 4, topic_at + 1 + self.v2)]
        places += [lengths_at, lengths_at + 1]
        return {(at, bit) for at in places for bit in range(8)} | {(39, 4), (39, 5), (12, 7), (20, 7)}


@dataclass
class Piece:
    """A record or a blank of the log that is made, and what is summed in it."""

    start: int
    end: int
    summed: set[tuple[int, int]]


@dataclass
class Log:
    """Bytes of a log from BEGIN on, and its pieces."""

    data: bytearray = field(default_factory=bytearray)
    pieces: list[Piece] = field(default_factory=list)

    @property
    def end(self) -> int:
        return BEGIN + len(self.data)

    def append(self, recipe: Recipe) -> None:
        record = recipe.record(self.end)
        room = SEGMENT - self.end % SEGMENT
        if len(record) + BLANK_BYTES > room:
            blank = BLANK.pack(room, BLANK_MAGIC) + b"\xee" * (room - BLANK_BYTES)
            summed = {(at, bit) for at in range(BLANK_BYTES) for bit in range(8)}
            self._add(blank, summed)
            record = recipe.record(self.end)
        self._add(record, recipe.summed())

    def _add(self, data: bytes, summed: set[tuple[int, int]]) -> None:
        self.pieces.append(Piece(self.end, self.end + len(data), summed))
        self.data += data

    def whole(self, end: int) -> int:
        """The end of the last piece that ends up to `end`."""
        ends = [piece.end for piece in self.pieces]
        before = bisect_right(ends, end)
        return ends[before - 1] if before else BEGIN

    def piece_at(self, offset: int) -> Piece:
        return next(piece for piece in self.pieces if piece.start <= offset < piece.end)


TOPICS = st.sampled_from(["Stories", "T", "%RETRY%group-1", "a" * 127])
RECIPES = st.builds(
    Recipe,
    body=st.one_of(st.binary(max_size=3), st.binary(max_size=40), st.just(b"body" * 300)),
    topic=TOPICS,
    properties=st.sampled_from([b"", b"TAGS\x01a", b"KEYS\x01" + b"k" * 500]),
    born_v6=st.booleans(),
    store_v6=st.booleans(),
    v2=st.booleans(),
)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log()
    for recipe in draw(st.lists(RECIPES, min_size=1, max_size=12)):
        log.append(recipe)
    return log


Feed = tuple[int, list[memoryview]]


def feeds(data: bytes | bytearray, begin: int, cuts: list[int], joins: list[bool]) -> Iterator[Feed]:
    """The bytes as appends take them: cut at `cuts` and at segments' ends, some frames in one append."""
    end = begin + len(data)
    borders = {begin, end, *(begin + cut % (len(data) + 1) for cut in cuts)}
    borders.update(range(begin + SEGMENT - begin % SEGMENT, end, SEGMENT))
    offset, frames = begin, list[memoryview]()
    for number, (low, high) in enumerate(pairwise(sorted(borders))):
        frames.append(memoryview(data)[low - begin : high - begin])
        if high % SEGMENT and high != end and joins and joins[number % len(joins)]:
            continue
        yield offset, frames
        offset, frames = high, []


def refused(
    check: RecordCheck, appends: Iterable[Feed], before: Callable[[int], None] = lambda offset: None
) -> BadRecord | None:
    """Feeds until something is refused; `before` sees the offset of each append."""
    for offset, frames in appends:
        before(offset)
        try:
            check.feed(offset, frames)
        except BadRecord as bad:
            return bad
    before(check.end)
    return None


def pieces_of(data: bytes | bytearray, begin: int, size: int) -> Iterator[Feed]:
    """One frame of `size` bytes in each append."""
    return ((begin + at, [memoryview(data)[at : at + size]]) for at in range(0, len(data), size))


CUTS = st.lists(st.integers(0, 60_000), max_size=40)
JOINS = st.lists(st.booleans(), max_size=5)
LOGS = logs()


@given(LOGS, CUTS, JOINS)
@settings(max_examples=150)
def test_a_true_log_is_taken_however_it_is_cut_and_acknowledged_by_whole_records(
    log: Log, cuts: list[int], joins: list[bool]
) -> None:
    check = RecordCheck(SEGMENT)
    for offset, frames in feeds(log.data, BEGIN, cuts, joins):
        check.feed(offset, frames)
        assert check.end == offset + sum(map(len, frames))
        assert check.whole == log.whole(check.end)
    assert check.whole == log.end


def test_a_log_that_comes_byte_by_byte_is_taken() -> None:
    log = Log()
    for v2 in (False, True):
        for size in (0, 1, 2000):
            log.append(Recipe(b"b" * size, v2=v2, born_v6=v2))
    check = RecordCheck(SEGMENT)
    for offset, frame in pieces_of(log.data, BEGIN, 1):
        check.feed(offset, frame)
        assert check.whole == log.whole(offset + 1)


@given(LOGS, CUTS, JOINS, st.data())
@settings(max_examples=300)
def test_one_bit_that_is_another_is_found_by_the_end_of_its_record(
    log: Log, cuts: list[int], joins: list[bool], data: st.DataObject
) -> None:
    piece = data.draw(st.sampled_from(log.pieces))
    at, bit = data.draw(st.sampled_from(sorted(piece.summed)))
    log.data[piece.start - BEGIN + at] ^= 1 << bit
    check = RecordCheck(SEGMENT)

    def before(offset: int) -> None:
        assert offset < piece.end, "the whole record was taken"
        assert check.whole <= piece.start

    bad = refused(check, feeds(log.data, BEGIN, cuts, joins), before)
    assert bad is not None
    assert bad.offset == piece.start == check.whole == check.end


@given(LOGS, CUTS, JOINS, st.data())
@settings(max_examples=150)
def test_a_bit_that_nothing_sums_moves_no_record(
    log: Log, cuts: list[int], joins: list[bool], data: st.DataObject
) -> None:
    piece = data.draw(st.sampled_from(log.pieces))
    at = data.draw(st.integers(0, piece.end - piece.start - 1))
    unsummed = [bit for bit in range(8) if (at, bit) not in piece.summed]
    if not unsummed:
        return
    bit = data.draw(st.sampled_from(unsummed))
    log.data[piece.start - BEGIN + at] ^= 1 << bit
    check = RecordCheck(SEGMENT)

    def before(offset: int) -> None:
        assert check.whole == (log.whole(offset) if check.end else 0)

    bad = refused(check, feeds(log.data, BEGIN, cuts, joins), before)
    if bad is not None:
        assert bad.offset == piece.start
        assert "cannot be a queue's name" in bad.reason


@given(LOGS, CUTS, JOINS, st.data())
@settings(max_examples=300)
def test_a_byte_too_many_or_too_few_is_found_before_another_record_counts(
    log: Log, cuts: list[int], joins: list[bool], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(log.data) - 1))
    extra = data.draw(st.one_of(st.none(), st.binary(min_size=1, max_size=1)))
    true = bytes(log.data)
    false = true[:at] + (true[at + 1 :] if extra is None else extra + true[at:])
    differs = next((i for i, (one, other) in enumerate(zip(true, false, strict=False)) if one != other), None)
    if differs is None:
        return
    piece = log.piece_at(BEGIN + differs)
    check = RecordCheck(SEGMENT)

    def before(offset: int) -> None:
        assert offset < piece.end + BLANK_BYTES, "the next record's head was taken"
        assert check.whole <= piece.end

    bad = refused(check, feeds(false, BEGIN, cuts, joins), before)
    assert bad is None or bad.offset <= piece.end


class Slave:
    """A client as it is to use the check; `stored` is its log from BEGIN on."""

    def __init__(self) -> None:
        self.stored = bytearray()
        self.check = RecordCheck(SEGMENT, BEGIN)
        self.acked = BEGIN

    @property
    def end(self) -> int:
        return BEGIN + len(self.stored)

    def connect(self) -> None:
        whole = self.check.connect(self.end, BEGIN, self._nothing_to_read)
        if whole < self.end:
            del self.stored[whole - BEGIN :]
            self.check.stand_at(whole)
        assert self.acked <= self.end, "an end that was acknowledged is gone"

    def take(self, offset: int, frames: list[memoryview]) -> None:
        assert offset == self.end
        try:
            self.check.feed(offset, frames)
        except BadRecord as bad:
            if bad.offset < self.end:
                del self.stored[bad.offset - BEGIN :]
            else:
                self.stored += b"".join(first_bytes(frames, bad.offset - offset))
            assert self.end == self.check.end
            raise
        self.stored += b"".join(frames)
        self.acked = self.check.whole

    def _nothing_to_read(self, offset: int, size: int) -> bytes:
        raise AssertionError("the log ends where the check does")


@given(LOGS, CUTS, JOINS, st.data())
@settings(max_examples=150)
def test_a_link_that_flips_and_cuts_costs_time_and_nothing_else(
    log: Log, cuts: list[int], joins: list[bool], data: st.DataObject
) -> None:
    slave, true = Slave(), bytes(log.data)
    for trouble in data.draw(st.lists(st.sampled_from(["flip", "cut"]), max_size=6)):
        slave.connect()
        coming = bytearray(true[slave.end - BEGIN :])
        if not coming:
            break
        begin, stop = slave.end, len(coming)
        if trouble == "cut":
            stop = data.draw(st.integers(0, len(coming)))
        else:
            piece = data.draw(st.sampled_from([one for one in log.pieces if one.start >= begin]))
            at, bit = data.draw(st.sampled_from(sorted(piece.summed)))
            coming[piece.start - begin + at] ^= 1 << bit
        try:
            for offset, frames in feeds(coming[:stop], begin, cuts, joins):
                slave.take(offset, frames)
        except BadRecord:
            assert trouble == "flip"
        assert slave.stored[: slave.acked - BEGIN] == true[: slave.acked - BEGIN]
        assert slave.acked == log.whole(slave.acked)
    slave.connect()
    for offset, frames in feeds(true[slave.end - BEGIN :], slave.end, cuts, joins):
        slave.take(offset, frames)
    assert slave.stored == true
    assert slave.acked == log.end


def changed(recipe: Recipe, change: Callable[[bytearray], None]) -> bytearray:
    record = bytearray(recipe.record(BEGIN))
    change(record)
    return record


def packed(layout: struct.Struct, at: int, value: int) -> Callable[[bytearray], None]:
    return lambda record: layout.pack_into(record, at, value)


def named(topic: bytes) -> Callable[[bytearray], None]:
    def rename(record: bytearray) -> None:
        assert len(topic) == len("Stories")
        record[88 + 100 + 1 : 88 + 100 + 8] = topic

    return rename


@pytest.mark.parametrize(
    ("recipe", "change", "reason"),
    [
        (Recipe(), packed(INT, 0, 2**31 - 1), "announces 2147483647 bytes"),
        (Recipe(), packed(INT, 0, -1), "announces -1 bytes"),
        (Recipe(), packed(INT, 0, 90), "announces 90 bytes"),
        (Recipe(), packed(INT, 0, SEGMENT + 1), "the segment has 4096"),
        (Recipe(), packed(INT, 4, 0), "magic 0x00000000"),
        (Recipe(), packed(INT, 4, BLANK_MAGIC), "left in the segment are 4096"),
        (Recipe(), packed(LONG, 28, BEGIN + 1), f"belongs at {BEGIN + 1}"),
        (Recipe(), packed(LONG, 28, 0), "belongs at 0"),
        (Recipe(), packed(INT, 12, -1), "queue -1"),
        (Recipe(), packed(INT, 84, -1), "body of -1 bytes"),
        (Recipe(), packed(INT, 84, 2**31 - 1), "body of 2147483647 bytes"),
        (Recipe(), packed(INT, 8, 1), "does not match its CRC"),
        (Recipe(b""), packed(INT, 8, 1), "does not match its CRC"),
        (Recipe(b"", "T", b""), packed(INT, 36, 0x10), "head of 100 bytes in a record of 92"),
        (Recipe(b"", "T", b""), packed(INT, 36, 0x30), "head of 112 bytes in a record of 92"),
        (Recipe(), named(b"../../x"), "cannot be a queue's name"),
        (Recipe(), named(b"a\0bcdef"), "cannot be a queue's name"),
        (Recipe(), named(b"a/bcdef"), "cannot be a queue's name"),
        (Recipe(), named(b"caf\xc3\xa9es"), "cannot be a queue's name"),
        (Recipe(), packed(struct.Struct(">B"), 188, 0), "topic of 0 bytes"),
        (Recipe(), packed(struct.Struct(">B"), 188, 255), "topic of 255 bytes"),
        (Recipe(), packed(struct.Struct(">h"), 196, -1), "do not add up"),
        (Recipe(), packed(struct.Struct(">h"), 196, 7), "do not add up"),
    ],
)
@pytest.mark.parametrize("frame_bytes", [1, 33, SEGMENT])
@pytest.mark.parametrize("topic_known", [True, False])
def test_what_a_false_record_is_refused_for(
    recipe: Recipe, change: Callable[[bytearray], None], reason: str, frame_bytes: int, topic_known: bool
) -> None:
    check = RecordCheck(SEGMENT, BEGIN)
    if topic_known:
        check.feed(BEGIN, [memoryview(recipe.record(BEGIN))])
        check.stand_at(BEGIN)
    record = changed(recipe, change)
    data = record + recipe.record(BEGIN + len(record))

    def before(offset: int) -> None:
        assert offset < BEGIN + len(record), "the whole record was taken"

    bad = refused(check, pieces_of(data, BEGIN, frame_bytes), before)
    assert bad is not None
    assert reason in str(bad)
    assert "two logs differ" in str(bad), "it is the first after the end that was known"
    assert (bad.offset, bad.at_seam) == (BEGIN, True)


def test_a_bad_record_amid_the_stream_is_told_from_logs_that_have_parted() -> None:
    log = Log()
    log.append(Recipe())
    log.append(Recipe())
    log.data[-1 - len(b"TAGS\x01a") - 20] ^= 1
    check = RecordCheck(SEGMENT, BEGIN)
    with pytest.raises(BadRecord) as raised:
        check.feed(BEGIN, [memoryview(log.data)])
    assert not raised.value.at_seam
    assert "differ" not in str(raised.value)
    assert raised.value.offset == check.whole == log.pieces[1].start


@pytest.mark.parametrize("more", [bytes(8), BLANK.pack(7, BLANK_MAGIC)])
def test_an_end_that_was_not_reached_in_one_segment_does_not_go_on_in_the_next(more: bytes) -> None:
    """A blank, or a record with a blank's room behind it, ends each segment; seven bytes are neither."""
    body = SEGMENT - 91 - len("Stories") - len(b"TAGS\x01a") - 7
    record = Recipe(b"." * body).record(BEGIN)
    assert len(record) == SEGMENT - 7
    check = RecordCheck(SEGMENT, BEGIN)
    check.feed(BEGIN, [memoryview(record)])
    check.feed(check.end, [memoryview(more)[:7]])
    with pytest.raises(BadRecord) as raised:
        check.feed(BEGIN + SEGMENT, [memoryview(more)[7:]])
    assert raised.value.offset == BEGIN + SEGMENT - 7


def test_a_gap_is_refused_and_a_log_without_a_byte_begins_anywhere() -> None:
    record = Recipe().record(BEGIN)
    check = RecordCheck(SEGMENT)
    check.feed(BEGIN, [memoryview(record)])
    with pytest.raises(ProtocolError, match=f"our log ends at {BEGIN + len(record)}"):
        check.feed(BEGIN + len(record) + 1, [memoryview(record)])
    assert check.whole == BEGIN + len(record)


def test_what_is_kept_of_an_unfinished_record_is_its_head_and_not_its_body() -> None:
    segment, begin = 1 << 26, 0
    record = Recipe(b"b" * (8 << 20), properties=b"p" * 32767).record(begin)
    check = RecordCheck(segment)
    for offset, frame in pieces_of(record, begin, 32768):
        check.feed(offset, frame)
        assert len(check._unfinished._held) < 300
    assert check.whole == len(record)


class TestConnect:
    """A check and a log that may have moved without it."""

    def log(self) -> Log:
        log = Log()
        for _ in range(30):
            log.append(Recipe(b"b" * 300))
        return log

    def reader(self, log: Log) -> tuple[Callable[[int, int], bytes], list[int]]:
        asked: list[int] = []

        def read(offset: int, size: int) -> bytes:
            asked.append(offset)
            return bytes(log.data[offset - BEGIN : offset - BEGIN + min(size, 1000)])

        return read, asked

    def test_a_log_that_ends_where_the_check_does_is_not_read(self) -> None:
        log = self.log()
        read, asked = self.reader(log)
        check = RecordCheck(SEGMENT, BEGIN)
        check.feed(BEGIN, [memoryview(log.data)[:1000]])
        whole = check.connect(BEGIN + 1000, BEGIN, read)
        assert (whole, check.end, asked) == (log.whole(BEGIN + 1000), BEGIN + 1000, [])

    @pytest.mark.parametrize("extra", [0, 1, 100])
    def test_a_log_that_has_moved_is_read_from_the_boundary(self, extra: int) -> None:
        log = self.log()
        read, asked = self.reader(log)
        boundary, end = log.pieces[3].end, log.pieces[20].end + extra
        check = RecordCheck(SEGMENT, BEGIN)
        assert check.connect(end, boundary, read) == log.whole(end)
        assert (asked[0], check.end) == (boundary, end)
        check.feed(end, [memoryview(log.data)[end - BEGIN : SEGMENT * (1 + (end - BEGIN) // SEGMENT)]])

    def test_damage_in_what_is_read_is_ours_and_not_the_masters(self) -> None:
        log = self.log()
        log.data[log.pieces[5].start - BEGIN + 150] ^= 1
        read, _ = self.reader(log)
        with pytest.raises(CorruptRecord) as raised:
            RecordCheck(SEGMENT, BEGIN).connect(log.end, BEGIN, read)
        assert raised.value.offset == log.pieces[5].start

    def test_a_log_that_has_less_than_it_says_is_damaged(self) -> None:
        log = self.log()
        read, _ = self.reader(log)
        with pytest.raises(CorruptRecord, match="nothing here"):
            RecordCheck(SEGMENT, BEGIN).connect(log.end + 1, BEGIN, read)

    def test_the_seam_is_where_each_connection_began(self) -> None:
        log = self.log()
        read, _ = self.reader(log)
        check = RecordCheck(SEGMENT, BEGIN)
        end = log.pieces[4].end
        check.feed(BEGIN, [memoryview(log.data)[: end - BEGIN]])
        check.connect(end, BEGIN, read)
        with pytest.raises(BadRecord) as raised:
            check.feed(end, [memoryview(bytes(100))])
        assert raised.value.at_seam


def test_what_our_own_log_writes_is_taken(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=SEGMENT)
    try:
        for number in range(60):
            log.append(message(b"x" * (number * 13), queue_id=number % 4))
            log.append(message(b"", properties={}))
            log.append_batch(message(batch_body([b"one", b"", b"three" * number])))
        data = whole_log(log)
    finally:
        log.close()
    check = RecordCheck(SEGMENT)
    assert refused(check, pieces_of(data, 0, 512)) is None
    assert check.whole == len(data)


@pytest.mark.compat
@pytest.mark.parametrize("kind", ["killed", "clean"])
@pytest.mark.parametrize("frame_bytes", [64, 32768])
def test_what_a_stock_broker_wrote_is_taken(tmp_path: Path, kind: str, frame_bytes: int) -> None:
    with tarfile.open(STOCK / f"stock-4.9.8-{kind}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    files = sorted(path for path in tmp_path.rglob("*") if path.parent.name == "commitlog")
    data = b"".join(path.read_bytes() for path in files)
    check = RecordCheck(65536)
    bad = refused(check, pieces_of(data, 0, frame_bytes))
    assert bad is None or bad.reason.startswith("magic 0x00000000")
    assert check.whole > 65536
    assert not any(data[check.whole :]), "it stopped before the last record"


def test_the_first_bytes_of_a_run() -> None:
    frames = [memoryview(b"abc"), memoryview(b"def"), memoryview(b"g")]
    for size in range(9):
        assert b"".join(first_bytes(frames, size)) == b"abcdefg"[:size]


def _outcome(data: bytes, cuts: list[int], joins: list[bool]) -> tuple[object, ...]:
    check = RecordCheck(SEGMENT, BEGIN)
    try:
        for offset, buffers in feeds(data, BEGIN, cuts, joins):
            check.feed(offset, buffers)
    except BadRecord as bad:
        return bad.offset, bad.reason, bad.at_seam, check.whole, check.end
    return check.whole, check.end


@pytest.mark.skipif(native.core is None, reason="there is no native build to compare with")
@given(
    logs(),
    st.lists(st.integers(1, 3 * SEGMENT), max_size=30),
    st.lists(st.booleans(), min_size=31, max_size=31),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=2),
)
@settings(max_examples=300)
def test_both_builds_say_the_same_of_what_several_frames_bring(
    log: Log, cuts: list[int], joins: list[bool], changes: list[tuple[int, int]]
) -> None:
    data = bytearray(log.data)
    for at, value in changes:
        if data:
            data[at % len(data)] = value
    # Joined as often as not, as one read brings several frames.
    by_native = _outcome(bytes(data), sorted(set(cuts)), joins)
    core, native.core = native.core, None
    try:
        assert _outcome(bytes(data), sorted(set(cuts)), joins) == by_native
    finally:
        native.core = core


# -- a look at transfers, before they are fed --------------------------------------------------------


@given(LOGS, CUTS, st.none() | st.integers(0, 1 << 20), st.integers(1, 5000))
@settings(max_examples=150, deadline=None)
def test_what_a_look_has_passed_is_what_feeding_passes(
    log: Log, cuts: list[int], flip: int | None, slice_bytes: int
) -> None:
    data = bytearray(log.data)
    if flip is not None:
        data[flip // 8 % len(data)] ^= 1 << flip % 8
    wire = b"".join(frame_bytes(at, b"".join(frames)) for at, frames in feeds(data, BEGIN, cuts, []))
    looked, fed, end = RecordCheck(SEGMENT, BEGIN), RecordCheck(SEGMENT, BEGIN), BEGIN
    reader = TransferReader(SEGMENT, slice_bytes)
    for start in range(0, len(wire), slice_bytes):
        some = wire[start : start + slice_bytes]
        reader.space()[: len(some)] = some
        for offset, bodies, run_end, whole in reader.runs(end, len(some), looked.whole == end):
            assert whole == -1 or offset <= whole <= run_end
            known = refused(fed, [(offset, bodies)])
            if whole != run_end or not looked.passed(offset, run_end):
                bad = refused(looked, [(offset, bodies)])
                assert str(bad) == str(known)
            assert (looked.whole, looked.end) == (fed.whole, fed.end)
            if known is not None:
                return
            end = run_end
    assert end == log.end


def test_a_look_counts_only_where_the_check_stands_at_a_whole_record() -> None:
    log = Log()
    for _ in range(3):
        log.append(Recipe())
    first, second, _ = (piece.end for piece in log.pieces)
    check = RecordCheck(SEGMENT, BEGIN)
    assert not check.passed(first, second), "it has not come to there"
    assert check.passed(BEGIN, first)
    assert (check.whole, check.end) == (first, first)
    check.feed(first, [memoryview(log.data)[first - BEGIN : second - BEGIN - 1]])
    assert not check.passed(second - 1, log.end), "it is amid a record"
    assert (check.whole, check.end) == (first, second - 1)
