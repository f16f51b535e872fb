"""The native kernel and the Python reference come to the same, whatever the bytes.

By the million: scripts/chaos fuzz.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.layout import BLANK, BLANK_MAGIC
from commitlog.kernel.records import check, encode, encode_host, stamp
from commitlog.kernel.scan import NOWHERE, RecordScan, scan_records
from tests.chaos.fuzz_builds import both, odd_log, reference
from tests.support.messages import STORE_MS, message

pytestmark = pytest.mark.skipif(native.core is None, reason=native.build)

HOSTS = (encode_host("10.0.0.1", 1), encode_host("::1", 2))


def log_of(bodies: Sequence[bytes], hosts: Sequence[int], start: int) -> bytearray:
    out = bytearray()
    for number, body in enumerate(bodies):
        kind = hosts[number % len(hosts)]
        record = encode(message(body, born_host=HOSTS[kind & 1]), HOSTS[kind >> 1])
        stamp(record, number, start + len(out), STORE_MS + number)
        out += record
    return out


def by_both(*words: object, **how: object) -> RecordScan:
    found = scan_records(*words, **how)  # type: ignore[arg-type]
    with reference():
        assert scan_records(*words, **how) == found  # type: ignore[arg-type]
    return found


@settings(max_examples=300)
@given(
    bodies=st.lists(st.binary(max_size=400), max_size=8),
    hosts=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    start=st.sampled_from((0, 4096, 1 << 40)),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), max_size=3),
    lead=st.integers(0, 9),
    cut=st.integers(0, 200),
    blank=st.booleans(),
    crc=st.booleans(),
    torn=st.sampled_from((None, 0, STORE_MS + 2)),
)
def test_a_log_is_scanned_alike(
    bodies: list[bytes],
    hosts: list[int],
    start: int,
    flips: list[tuple[int, int]],
    lead: int,
    cut: int,
    blank: bool,
    crc: bool,
    torn: int | None,
) -> None:
    log = bytearray(lead) + log_of(bodies, hosts, start)
    if blank:
        log += BLANK.pack(20, BLANK_MAGIC) + bytes(12)
    room = len(log) - lead
    for at, bit in flips:
        if log:
            log[at % len(log)] ^= 1 << bit
    view = memoryview(log)[: len(log) - cut if cut < len(log) else lead]
    by_both(view, min(lead, len(view)), start, room, crc=crc, torn_from_ms=torn)


def test_all_of_a_whole_log_is_passed() -> None:
    log = log_of([b"x" * size for size in range(300)], range(4), 4096)
    done = by_both(log, 0, 4096, len(log))
    assert (done.position, done.records, done.reason) == (len(log), 300, None)
    assert native.core.scan(log, 0, 4096, len(log), True, NOWHERE)[:2] == (len(log), 300)


@pytest.mark.parametrize("start", [NOWHERE - 100, NOWHERE, 1 << 63, 9999999999999995904])
def test_a_file_named_beyond_the_last_offset_there_can_be_is_judged_alike(start: int) -> None:
    log = log_of([b"body", b"body"], [0], min(start, NOWHERE - 4096))
    assert by_both(log, 0, start, 4096).reason


def test_a_topic_longer_than_java_reads_ends_the_scan_as_it_ends_a_check() -> None:
    log = odd_log()
    done = by_both(log, 0, 0, len(log))
    with pytest.raises(CorruptRecord, match="topic of -128 bytes") as refused:
        check(log, done.position)
    assert done.reason == refused.value.reason


@settings(max_examples=300)
@given(st.binary(max_size=5000), st.integers(0, (1 << 32) - 1), st.integers(0, 40))
def test_sums_are_zlibs(data: bytes, value: int, begin: int) -> None:
    """At any alignment; by every way that the machine has: tests/native."""
    for view in (data, bytearray(data), memoryview(data)[begin:]):
        assert native.core.crc32(view, value) == zlib.crc32(view, value)


def test_a_difference_between_the_builds_is_seen() -> None:
    def gives(_: bytes) -> tuple[object, object]:
        return None, native.build if native.core is None else "other"

    def raises(_: bytes) -> tuple[object, object]:
        return None, 1 // (native.core is None)

    for run in (gives, raises):
        with pytest.raises(AssertionError, match="native: "):
            both(run)(b"x")
    assert both(lambda data: ("end", data))(b"x") == "end"
