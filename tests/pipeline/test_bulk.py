"""Many records at once, against one by one; edges; damage: without Spark."""

from __future__ import annotations

import random
import subprocess
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from commitlog.errors import CorruptRecord
from commitlog.kernel.layout import SYS_COMPRESSED
from commitlog.kernel.records import (
    NewMessage,
    StoredMessage,
    decode,
    decode_host,
    decode_properties,
    parse_head,
)
from haservice.pipeline.decode import columns, counting, scan
from haservice.pipeline.decode.bulk import LogWindow, Records, sound_run
from haservice.pipeline.decode.columns import record_batch
from haservice.pipeline.decode.counting import TopicTally, counted, counted_columns, tallied
from haservice.pipeline.decode.scan import Damage, edge, judge, pieces, runs, whole_end
from haservice.pipeline.decode.schema import ARROW_SCHEMA, CORRUPT
from haservice.pipeline.decode.texts import coded
from haservice.pipeline.sources.log_segments import OpenSegment
from haservice.pipeline.sources.store_view import StoreView
from tests.pipeline.logs import Make, any_message, any_record, damaged, forgery, record, wide, write_log
from tests.support.messages import message

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


def row(found: StoredMessage) -> dict[str, object]:
    """The row of a record that was decoded alone."""
    properties = decode_properties(found.properties)
    return {
        "topic": found.topic,
        "queueId": found.queue_id,
        "queueOffset": found.queue_offset,
        "physicalOffset": found.physical_offset,
        "storeSize": found.size,
        "msgId": found.message_id,
        "uniqKey": properties.get("UNIQ_KEY"),
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": found.body,
        "properties": list(properties.items()),
        "flag": found.flag,
        "sysFlag": found.sys_flag,
        "bornTimestamp": microseconds(found.born_timestamp_ms),
        "storeTimestamp": microseconds(found.store_timestamp_ms),
        "bornHost": "{}:{}".format(*decode_host(found.born_host)),
        "storeHost": "{}:{}".format(*decode_host(found.store_host)),
        "reconsumeTimes": found.reconsume_times,
        "preparedTransactionOffset": found.prepared_transaction_offset,
        "bodyCrcOk": found.crc_ok,
        "brokerName": "broker-a",
        CORRUPT: None,
    }


def microseconds(ms: int) -> int | None:
    """None for what no calendar has."""
    try:
        datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return None
    return ms * 1000


def rows(records: Records) -> list[dict[str, object]]:
    batch = record_batch(records, ARROW_SCHEMA, "broker-a")
    batch.validate(full=True)
    values_of = {
        name: (column.cast("int64") if name.endswith("Timestamp") else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    return [dict(zip(values_of, values, strict=True)) for values in zip(*values_of.values(), strict=True)]


def laid_out(records: list[Make], offset: int = 0) -> bytes:
    data = b""
    for make in records:
        data += make(offset + len(data))
    return data


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_the_records_decoded_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    start = rng.choice((0, 1 << 33))
    data = laid_out([any_record(rng, number) for number in range(rng.randrange(1, 200))], start)
    window = LogWindow(data, start, len(data) + 100)
    records = sound_run(window)
    assert int(records.sizes.sum()) == len(data)
    alone = [decode(data, place) for place in records.places.tolist()]
    assert rows(records) == [row(one) for one in alone]


def test_a_clock_beyond_the_calendar_gives_no_time() -> None:
    data = laid_out(
        [record(message(born_timestamp_ms=1 << 62)), record(message(born_timestamp_ms=-(1 << 62)))]
    )
    window = LogWindow(data, 0, len(data))
    assert [one["bornTimestamp"] for one in rows(sound_run(window))] == [None, None]


def test_only_the_columns_that_are_asked_for_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above all, nobody pays for sums or properties who does not want them."""

    def never(_: object) -> None:
        raise AssertionError

    for name in set(columns.BUILDERS) - {"topic", "queueId"}:
        monkeypatch.setitem(columns.BUILDERS, name, never)
    data = laid_out([record(message())] * 3)
    window = LogWindow(data, 0, len(data))
    names = ["queueId", "topic"]
    asked = record_batch(sound_run(window), pa.schema([ARROW_SCHEMA.field(n) for n in names]))
    assert asked.to_pydict() == {"queueId": [3, 3, 3], "topic": ["TopicTest"] * 3}


@pytest.mark.parametrize("seed", range(4))
def test_what_decode_refuses_is_not_sound_and_nothing_else(seed: int) -> None:
    """One record with each of its bytes changed, one after the other, before a sound one."""
    rng = random.Random(seed)
    sent, store_host = any_message(rng, seed)
    plain = wide(sent) if seed == 0 else record(sent, store_host=store_host)
    size = len(plain(0))
    for place in range(size):
        data = laid_out([damaged(plain, place, 1 << rng.randrange(8)), record(message())])
        try:
            head = parse_head(data, 0, len(data))
            expected = head is not None and head.physical_offset == 0
        except CorruptRecord:
            expected = False
        window = LogWindow(data, 0, len(data))
        found = sound_run(window)
        assert (len(found) > 0) == expected, place
        if expected:
            assert rows(found.first(1)) == [row(decode(data))]


@pytest.mark.parametrize("flags", [0x10, 0x20, 0x30])
def test_a_short_last_record_whose_flags_turned_to_ipv6_is_damaged(flags: int) -> None:
    """Its head would be longer than the record, and than the window."""
    short = record(NewMessage("t", 0, b"", b""))
    data = laid_out([record(message()), damaged(short, 39, flags)])
    assert len(sound_run(LogWindow(data, 0, len(data)))) == 1


def test_compressed_bodies_are_unpacked_on_demand_and_those_that_cannot_be_are_told() -> None:
    packed = zlib.compress(b"x" * 5000)
    sent = [
        message(packed, sys_flag=SYS_COMPRESSED),
        message(b"plain"),
        message(packed[:-9], sys_flag=SYS_COMPRESSED),
        message(b"no zlib", sys_flag=SYS_COMPRESSED),
    ]
    data = laid_out([record(one) for one in sent])
    window = LogWindow(data, 0, len(data))
    records = sound_run(window)
    stored = record_batch(records, ARROW_SCHEMA).to_pydict()
    assert stored["body"] == [bytes(one.body) for one in sent]
    assert stored[CORRUPT] == [None] * 4
    unpacked = record_batch(records, ARROW_SCHEMA, decompress=True).to_pydict()
    assert unpacked["body"] == [b"x" * 5000, b"plain", packed[:-9], b"no zlib"]
    assert [bool(one) for one in unpacked[CORRUPT]] == [False, False, True, True]
    place = int(records.places[2])
    assert f"record at {place}, {len(packed) - 9} bytes" in unpacked[CORRUPT][2]


def test_a_body_that_unpacks_to_more_than_the_bound_stays_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "UNPACKED_BYTES_MAX", 1000)
    packed = zlib.compress(bytes(5000))
    data = laid_out([record(message(packed, sys_flag=SYS_COMPRESSED))])
    window = LogWindow(data, 0, len(data))
    found = record_batch(sound_run(window), ARROW_SCHEMA, decompress=True).to_pydict()
    assert found["body"] == [packed]
    assert "1000 bytes" in found[CORRUPT][0]


@settings(max_examples=100)
@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from((b"", b"a", b"topic-11", b"a" * 40)))))
def test_equal_texts_have_one_number_and_others_none_of_theirs(texts: list[bytes]) -> None:
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    begins = ends - [len(text) for text in texts] if texts else ends
    found = coded(np.frombuffer(b"".join(texts), np.uint8), begins, ends)
    assert [found.texts[number] for number in found.numbers] == texts
    assert found.texts == list(dict.fromkeys(texts))


ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
from commitlog.kernel import loops, native
from haservice.pipeline.decode import bulk
assert native.core is None and loops.__file__.startswith(sys.argv[1])
data = bytes.fromhex(sys.argv[2])
print(len(bulk.sound_run(bulk.LogWindow(data, 0, len(data)))))
"""


def test_a_log_is_read_where_the_package_is_an_archive(tmp_path: Path) -> None:
    """As in a container of YARN: nothing compiled is loaded from there."""
    place = tmp_path / "haservice.zip"
    with zipfile.ZipFile(place, "w") as archive:
        for package in ("commitlog", "haservice"):
            for path in sorted((ROOT / package).rglob("*.py")):
                archive.write(path, path.relative_to(ROOT))
    data = laid_out([record(message())] * 3)
    done = subprocess.run(
        [sys.executable, "-P", "-c", ALONE, str(place), data.hex()],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
    )
    assert (done.stdout.strip(), done.returncode) == ("3", 0), done.stderr


@pytest.mark.parametrize("table_max", [1 << 17, 4])
def test_counts_by_many_values_of_many_keys(monkeypatch: pytest.MonkeyPatch, table_max: int) -> None:
    """Those that a table has no room for, and keys that some have not, too."""
    monkeypatch.setattr(counting, "_TABLE_MAX", table_max)
    rng = random.Random(table_max)
    data = laid_out([any_record(rng, number) for number in range(300)])
    keys = ["queueId", "tags", "topic", "keys"]
    window = LogWindow(data, 0, len(data))
    records = sound_run(window)
    halves = np.arange(len(records)) < 150
    batches = [record_batch(records.where(one), counted_columns(keys)) for one in (halves, ~halves)]
    (found,) = counted(batches, keys)
    expected: dict[tuple[object, ...], list[int]] = {}
    for one in rows(records):
        add(expected, tuple(one[name] for name in keys), (1, len(one["body"]), one["storeSize"]))  # type: ignore[arg-type]
    assert {tuple(row.values())[:4]: [*row.values()][4:] for row in found.to_pylist()} == expected


@pytest.mark.parametrize("topics_max", [1 << 12, 2])
def test_a_tally_is_what_the_records_are_by_topic(monkeypatch: pytest.MonkeyPatch, topics_max: int) -> None:
    """Those of more topics than it has room for are another tally's."""
    monkeypatch.setattr(counting, "_TOPICS_MAX", topics_max)
    rng = random.Random(topics_max)
    data = laid_out([any_record(rng, number) for number in range(200)], 1 << 33)
    until = len(data) // 2
    expected: dict[tuple[object, ...], list[int]] = {}
    for one in rows(sound_run(LogWindow(data, 1 << 33, len(data)), until)):
        add(expected, (one["topic"],), (1, len(one["body"]), one["storeSize"]))  # type: ignore[arg-type]
    found: dict[tuple[object, ...], list[int]] = {}
    place = tallies = 0
    while place < until:
        tally = tallied(LogWindow(data[place:], (1 << 33) + place, len(data) - place), until - place)
        assert isinstance(tally, TopicTally)
        assert 0 < len(tally.topics) <= topics_max
        for topic, sums in tally.groups():
            add(found, topic, sums)
        place, tallies = tally.end_offset - (1 << 33), tallies + 1
    assert found == expected
    assert (tallies > 1) == (len(expected) > topics_max)


def add(known: dict[tuple[object, ...], list[int]], key: tuple[object, ...], more: Sequence[int]) -> None:
    known[key] = [one + other for one, other in zip(known.get(key, (0, 0, 0)), more, strict=True)]


# -- going over a log --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a small log passes, too."""
    monkeypatch.setattr(scan, "RECORD_BYTES_MAX", 3000)
    monkeypatch.setattr(scan, "_NEAR_BYTES", 300)
    monkeypatch.setattr(scan, "_SEARCH_BYTES", 700)


def plain(body_bytes: int, **fields: int) -> Make:
    return record(NewMessage("plain", 1, bytes(body_bytes)), **fields)


@st.composite
def logs(draw: st.DrawFn) -> list[Make]:
    """Records of which some hold forgeries, forgeries of forgeries, or are damaged."""
    sizes = st.integers(0, 400)
    simple = st.builds(plain, sizes)
    forged = st.recursive(
        simple, lambda inner: st.builds(forgery, st.integers(0, 60), inner, st.integers(0, 60)), max_leaves=3
    )
    hurt = st.builds(
        damaged, forged, st.one_of(st.integers(0, 90), st.integers(0, 1000)), st.integers(1, 255)
    )
    long = st.builds(forgery, st.integers(0, 2400), simple, st.integers(0, 100))
    overlapping = st.builds(cut_off, simple, st.integers(1, 90))
    return draw(st.lists(st.one_of(simple, forged, long, hurt, overlapping), min_size=1, max_size=40))


def cut_off(inner: Make, cut: int) -> Make:
    """A record whose body ends with the begin of another, which would reach into what follows."""

    def make(offset: int) -> bytes:
        return record(NewMessage("cut", 0, inner(offset + 88)[:-cut]))(offset)

    return make


def found_by(log: OpenSegment, begin: int, end: int, limit: int, window_bytes: int) -> Iterator[object]:
    for piece in pieces(log, begin, end, limit, window_bytes=window_bytes):
        if isinstance(piece, Damage):
            yield piece
        else:
            yield from piece.physical_offsets.tolist()


def counted_by(log: OpenSegment, begin: int, end: int, limit: int, window_bytes: int) -> Iterator[object]:
    """Its damage, and each topic as often as it was counted."""
    for piece in runs(log, begin, end, limit, window_bytes, tallied):
        if isinstance(piece, Damage):
            yield piece
        elif isinstance(piece, TopicTally):
            yield from (topic for (topic,), (count, *_) in piece.groups() for _ in range(count))
        else:
            yield from piece.topics.strings().to_pylist()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=logs(),
    cuts=st.lists(st.floats(0, 1), max_size=8),
    window_bytes=st.sampled_from((200, 1000, 1 << 20)),
)
def test_however_a_log_is_cut_each_record_and_damage_is_found_once(
    tmp_path_factory: pytest.TempPathFactory, made: list[Make], cuts: list[float], window_bytes: int
) -> None:
    """At places inside of bodies, forgeries and damage, too."""
    root = tmp_path_factory.mktemp("log")
    placed = write_log(root, made, 1 << 20)
    (segment,) = StoreView(root).segments()
    end = max(offset + len(data) for offset, data in placed.items())
    with segment.open() as log:
        whole = list(found_by(log, 0, end, end, 1 << 20))
        places = sorted({0, end, *(int(cut * end) for cut in cuts)})
        parts = [
            found
            for begin, until in pairwise(places)
            for found in found_by(log, edge(log, begin, end), until, end, window_bytes)
        ]
        topics = Counter(
            found
            for begin, until in pairwise(places)
            for found in counted_by(log, edge(log, begin, end), until, end, window_bytes)
        )
        assert topics == Counter(
            one
            for piece in pieces(log, 0, end)
            for one in ([piece] if isinstance(piece, Damage) else piece.topics.strings().to_pylist())
        )
    assert parts == whole
    sound = [offset for offset, data in placed.items() if is_sound(data, offset)]
    if len(sound) == len(placed):
        assert whole == sound


def is_sound(data: bytes, offset: int) -> bool:
    try:
        head = parse_head(data)
    except CorruptRecord:
        return False
    return head is not None and head.size == len(data) and head.physical_offset == offset


def test_a_forgery_that_ends_with_its_record_misleads_nobody(tmp_path: Path) -> None:
    """Its magic, its own place and the chain behind it are all as they should be."""
    placed = write_log(tmp_path, [plain(100), forgery(50, plain(200)), plain(100), plain(100)], 1 << 16)
    offsets = sorted(placed)
    (segment,) = StoreView(tmp_path).segments()
    end = offsets[-1] + len(placed[offsets[-1]])
    inner = offsets[1] + 88 + 50
    with segment.open() as log:
        assert judge(log, inner, end)[0] > 0
        for place in range(offsets[1] + 1, offsets[2]):
            assert edge(log, place, end) == offsets[2]


def test_damage_says_where_it_is_how_much_and_why(tmp_path: Path) -> None:
    hurt = damaged(plain(100), 4)
    placed = write_log(tmp_path, [plain(10), hurt, hurt, plain(10)], 1 << 16)
    _, first, _, behind = sorted(placed)
    (segment,) = StoreView(tmp_path).segments()
    with segment.open() as log:
        found = [piece for piece in pieces(log, 0, behind + len(placed[behind])) if isinstance(piece, Damage)]
    assert [(one.begin, one.end) for one in found] == [(first, behind)]
    assert str(found[0]).startswith(
        f"record at {first}: magic 0x25a320a7 is none of a record; {behind - first} b"
    )


def test_a_record_larger_than_a_window_is_read_whole(tmp_path: Path) -> None:
    placed = write_log(tmp_path, [plain(10), plain(9000), plain(10)], 1 << 16)
    (segment,) = StoreView(tmp_path).segments()
    end = max(offset + len(data) for offset, data in placed.items())
    with segment.open() as log:
        assert list(found_by(log, 0, end, end, 500)) == sorted(placed)


def test_a_size_that_was_altered_makes_nobody_read_that_much(tmp_path: Path) -> None:
    """The record does not add up, and that is seen by its head and tail alone."""
    placed = write_log(tmp_path, [damaged(plain(100), 1), *[plain(100)] * 50], 1 << 25)
    (segment,) = StoreView(tmp_path).segments()
    sizes = []
    with segment.open() as log:

        class Counted(OpenSegment):
            def read(self, offset: int, size: int) -> bytes:
                sizes.append(size)
                return log.read(offset, size)

        counted = Counted(log.path, log.start, log.end - log.start, log._fd)
        found = list(found_by(counted, 0, log.end, log.end, 1000))
    assert found[1:51] == sorted(placed)[1:]
    assert max(sizes) <= 1 << 20


@pytest.mark.parametrize("cut", [8, 30, 100, 140])
def test_the_end_is_behind_the_last_whole_record(tmp_path: Path, cut: int) -> None:
    placed = write_log(tmp_path, [plain(50)] * 5, 1 << 16)
    last = max(placed)
    (segment,) = StoreView(tmp_path).segments()
    with open(segment.path, "r+b") as file:
        file.seek(last + len(placed[last]) - cut)
        file.write(bytes(cut))
    with segment.open() as log:
        assert whole_end(log, 0, segment.end) == last
        assert whole_end(log, sorted(placed)[2], segment.end) == last


def test_a_record_whose_last_bytes_are_still_to_come_is_not_read_from_a_log_that_grows(
    tmp_path: Path,
) -> None:
    """Its sizes add up already, its properties are zeros yet."""
    sent = message(b"body", properties={"KEYS": "abc"})
    placed = write_log(tmp_path, [plain(50), record(sent)], 1 << 16)
    last = max(placed)
    (segment,) = StoreView(tmp_path).segments()
    with open(segment.path, "r+b") as file:
        file.seek(last + len(placed[last]) - 2)
        file.write(bytes(2))
    with segment.open() as log:
        assert whole_end(log, 0, segment.end, growing=True) == last
        assert whole_end(log, 0, segment.end) == last + len(placed[last])


def test_what_a_stock_broker_cut_off_and_left_behind_the_end_is_no_part_of_the_log(tmp_path: Path) -> None:
    """It is older than what was written over it; damage in the middle has younger records behind."""
    old = [plain(100, stored_ms=1000 + number) for number in range(6)]
    new = [plain(30, stored_ms=5000), plain(30, stored_ms=5001)]
    stale = write_log(tmp_path / "old", old, 1 << 16)
    placed = write_log(tmp_path / "new", [*old[:2], *new], 1 << 16)
    end = max(offset + len(data) for offset, data in placed.items())
    new_path, old_path = ((tmp_path / name / "commitlog" / f"{0:020d}") for name in ("new", "old"))
    content = new_path.read_bytes()[:end] + old_path.read_bytes()[end:]
    new_path.write_bytes(content)
    assert judge_any(new_path, [offset for offset in stale if offset > end])
    assert StoreView(tmp_path / "new").end() == end


def judge_any(path: Path, offsets: list[int]) -> bool:
    (segment,) = StoreView(path.parent).segments()
    with segment.open() as log:
        return any(judge(log, offset, segment.end)[0] for offset in offsets)
