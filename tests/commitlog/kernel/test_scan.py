"""Going over many records: where it ends and why, in either build."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.disk.files import Buffer
from commitlog.errors import CorruptRecord
from commitlog.kernel import native, scan
from commitlog.kernel.layout import BLANK, BLANK_MAGIC, RECORD_BYTES_MIN
from commitlog.kernel.records import check
from commitlog.kernel.scan import NOWHERE, ordinary, pass_ordinary, scan_records
from tests.commitlog.kernel.recipes import V6_HOST, odd_records, of_version_2, sound_records, stored

pytestmark = pytest.mark.usefixtures("build")

TORN = "its properties are torn"


@pytest.mark.parametrize(("first", "end"), [(-12, -11), (-20, -11), (-13, -12), (-20, -19)])
def test_zeros_in_a_topic_tell_a_torn_record(first: int, end: int) -> None:
    record = stored()
    record[first:end] = bytes(end - first)
    done = scan_records(record, 0, 0, 4096)
    assert (done.records, done.position) == (0, 0)
    assert "cannot be a place in a queue" in str(done.reason)


@pytest.mark.parametrize("first", [-1, -5, -9])
def test_zeros_that_end_properties_tell_a_torn_record(first: int) -> None:
    record = stored()
    record[first:] = bytes(-first)
    assert scan_records(record, 0, 0, 4096).records == 1
    assert scan_records(record, 0, 0, 4096, torn_from_ms=2).records == 1
    assert scan_records(record, 0, 0, 4096, torn_from_ms=1).reason == TORN
    assert scan_records(record, 0, 0, 4096, torn_from_ms=1, torn_from=len(record) - 1).reason == TORN
    assert scan_records(record, 0, 0, 4096, torn_from_ms=1, torn_from=len(record)).records == 1
    assert scan_records(stored(), 0, 0, 4096, torn_from_ms=0).records == 1


@pytest.mark.parametrize("segment_start", [0, 300])
def test_a_lost_page_amid_properties_tells_a_torn_record(segment_start: int) -> None:
    record = stored(properties={"K": "v" * 2000})
    sector = 1024 + segment_start
    record[sector : sector + 512] = bytes(512)
    assert scan_records(record, 0, 0, 4096, segment_start=segment_start, torn_from_ms=1).reason == TORN
    record[sector : sector + 200] = b"v" * 200  # of which the first part was flushed before
    assert scan_records(record, 0, 0, 4096, segment_start=segment_start, torn_from_ms=1).reason == TORN
    record[sector : sector + 512 : 511] = b"vv"
    assert scan_records(record, 0, 0, 4096, segment_start=segment_start, torn_from_ms=1).records == 1


def test_a_nul_among_other_bytes_is_what_a_client_sent() -> None:
    for place in (-2, -9):
        record = stored()
        assert record[place]
        record[place] = 0
        following = stored(offset=len(record))
        assert scan_records(record + following, 0, 0, 4096, torn_from_ms=0).records == 2


def test_a_walk_ends_at_a_record_that_belongs_elsewhere() -> None:
    records = stored(offset=0) + stored(offset=1000)
    done = scan_records(records, 0, 0, 4096)
    assert (done.position, done.records, done.last) == (len(records) // 2, 1, 0)
    assert done.reason is not None
    assert "1000" in done.reason


def a_log(count: int, odd: Callable[[int], bytearray] | None = None) -> bytearray:
    """`count` records, of which the middle one is `odd`."""
    log = bytearray()
    for number in range(count):
        log += odd(len(log)) if odd is not None and number == count // 2 else stored(b"x" * number, len(log))
    return log


def a_nul(offset: int) -> bytearray:
    return stored(offset=offset, properties={"K": "v"}).replace(b"\x01v", b"\0v")


@pytest.mark.parametrize("odd", [lambda offset: of_version_2(b"t" * 200, offset), a_nul])
def test_behind_an_odd_record_the_fast_way_goes_on(
    odd: Callable[[int], bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def checked(view: Buffer, position: int = 0, crc: bool = True) -> int:
        judged.append(position)
        return check(view, position, crc)

    monkeypatch.setattr(scan, "check", checked)
    log = a_log(101, odd)
    done = scan_records(log, 0, 0, 1 << 20, torn_from_ms=0)
    assert (done.position, done.records, done.reason) == (len(log), 101, None)
    assert len(judged) == 1


def test_a_log_of_odd_records_alone_is_walked() -> None:
    log = bytearray()
    for _ in range(50):
        log += of_version_2(b"t" * 200, len(log))
    assert scan_records(log, 0, 0, 1 << 20)[:3] == (len(log), len(log) - len(of_version_2(b"t" * 200)), 50)


def test_a_walk_cut_anywhere_ends_before_the_record_that_is_cut() -> None:
    log = a_log(3)
    for cut in range(len(log)):
        done = scan_records(log[:cut], 0, 0, 1 << 20)
        assert done.reason is None
        assert 0 <= done.position <= cut < done.position + done.needed


def test_a_record_that_its_segment_has_no_room_for_ends_the_walk() -> None:
    log = a_log(3)
    done = scan_records(log, 0, 0, len(log) - 1)
    assert done.records == 2
    assert "the segment has" in str(done.reason)


def test_a_blank_ends_a_walk() -> None:
    log = a_log(3)
    done = scan_records(log + BLANK.pack(100, BLANK_MAGIC), 0, 0, len(log) + 100)
    assert (done.position, done.blank, done.reason) == (len(log), 100, None)
    assert "left are 101" in str(
        scan_records(log + BLANK.pack(100, BLANK_MAGIC), 0, 0, len(log) + 101).reason
    )


@pytest.mark.parametrize("place", [0, 7])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_walk_begins_anywhere_in_any_buffer(kind: Callable[[bytes], Buffer], place: int) -> None:
    log = b"".join((bytes(place), stored(offset=1000), stored(offset=1000 + len(stored()))))
    done = scan_records(kind(log), place, 1000, 4096)
    assert (done.position, done.records, done.last) == (len(log), 2, place + len(stored()))


ODD = {**sound_records(0), **odd_records(0)}


@pytest.mark.parametrize("name", ODD)
def test_ordinary_is_what_check_takes_of_the_first_version(name: str) -> None:
    record = bytes(ODD[name])
    try:
        sound = check(record, crc=False) == len(record)
    except CorruptRecord:
        sound = False
    found = ordinary(memoryview(record), 0, len(record))
    assert (found is not None) == (sound and not name.startswith("version 2"))
    if found is not None:
        assert found[0] == len(record)


RECORDS = st.builds(
    lambda body, topic, properties, born, store: (body, {
        "topic": topic, "properties": properties,
        **({"born_host": V6_HOST} if born else {}), **({"store_host": V6_HOST} if store else {}),
    }),
    st.binary(max_size=300),
    st.sampled_from(["T", "Topic", "%RETRY%g", "a" * 127]),
    st.sampled_from([b"", b"TAGS\x01a", b"K\x01" + b"v" * 700]),
    st.booleans(),
    st.booleans(),
)  # fmt: skip


@given(
    st.lists(RECORDS, max_size=6),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
    st.integers(0, 300),
    st.booleans(),
    st.sampled_from([0, 200, NOWHERE]),
)
def test_both_builds_stop_at_the_same_place(
    recipes: list[tuple[bytes, dict[str, object]]],
    flips: list[tuple[int, int]],
    cut: int,
    crc: bool,
    nul_from: int,
) -> None:
    if native.core is None:
        pytest.skip("holds the native build against the reference, once")
    log = bytearray()
    for body, fields in recipes:
        log += stored(body, 5000 + len(log), **fields)
    for at, value in flips:
        if at < len(log):
            log[at] = value
    data = bytes(log[: max(0, len(log) - cut)])
    expected = scan._pass_ordinary(memoryview(data), 0, 5000, len(data), crc, nul_from)
    assert pass_ordinary(data, 0, 5000, len(data), crc=crc, nul_from=nul_from) == expected


def test_a_place_beyond_the_view_has_no_record() -> None:
    assert pass_ordinary(bytes(RECORD_BYTES_MIN), RECORD_BYTES_MIN, 0, 1 << 40) == (RECORD_BYTES_MIN, 0, -1)
    assert pass_ordinary(b"", 0, 0, 0) == (0, 0, -1)
