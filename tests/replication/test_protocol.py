"""The wire as bytes: whole, in slices, cut, with leftovers, and with lies in every length field."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haservice.errors import ProtocolError
from haservice.replication.wire.hello import HELLO_BYTES_MAX
from haservice.replication.wire.protocol import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    REPORT,
    TRANSFER_HEADER,
    LateHello,
    NotAReport,
    ReportReader,
    TransferReader,
    greeting_bytes,
    shown,
    slave_hello_block,
)
from tests.support.replication import frame_bytes, pattern

pytestmark = pytest.mark.usefixtures("build")

SEGMENT_BYTES = 1000


class Slave:
    """A log that is a bytearray, fed through a reader."""

    def __init__(self, start: int = 0, segment_bytes: int = SEGMENT_BYTES, receive_bytes: int = 4096) -> None:
        self.reader = TransferReader(segment_bytes, receive_bytes)
        self.segment_bytes = segment_bytes
        self.start = self.end = start
        self.data = bytearray()
        self.runs: list[tuple[int, int]] = []

    def feed(self, data: bytes) -> None:
        space = self.reader.space()
        assert len(data) <= len(space)
        space[: len(data)] = data
        self.reader.received(len(data))
        for run in self.reader.runs(self.end):
            assert self.end in (run.offset, 0)
            size = sum(map(len, run.bodies))
            assert run.end == run.offset + size
            assert run.offset // self.segment_bytes == max(run.offset, run.end - 1) // self.segment_bytes
            if not self.data:
                self.start = run.offset
            self.data += b"".join(run.bodies)
            self.end = run.end
            self.runs.append((run.offset, size))


def frames(*ends: int, start: int = 0) -> bytes:
    """Frames of the pattern's bytes, one up to each of `ends`."""
    data, position = b"", start
    for end in ends:
        data += frame_bytes(position, pattern(position, end))
        position = end
    return data


def test_whole_frames_become_one_run_per_segment() -> None:
    slave = Slave()
    slave.feed(frames(10, 400, 1000, 1001, 1999, 2000, 2500))
    assert slave.runs == [(0, 1000), (1000, 1000), (2000, 500)]
    assert slave.data == pattern(0, 2500)


@pytest.mark.parametrize("slice_bytes", [1, 2, 7, 11, 12, 13, 100, 4096])
def test_slices_of_any_size_give_the_same_log(slice_bytes: int) -> None:
    stream = frames(1, 10, 400, 400, 1000, 1000, 1001, 2000, 2500)
    slave = Slave()
    for start in range(0, len(stream), slice_bytes):
        slave.feed(stream[start : start + slice_bytes])
    assert slave.data == pattern(0, 2500)


@given(cuts=st.lists(st.integers(1, 400), max_size=40), ends=st.lists(st.integers(0, 999), max_size=20))
@settings(max_examples=60)
def test_any_slicing_of_any_frames_gives_the_same_log(cuts: list[int], ends: list[int]) -> None:
    stream = frames(*sorted(ends))
    slave, position = Slave(), 0
    for cut in [*cuts, len(stream)]:
        for start in range(position, min(position + cut, len(stream)), 4096):
            slave.feed(stream[start : min(start + 4096, position + cut, len(stream))])
        position = min(position + cut, len(stream))
    assert slave.data == pattern(0, max(ends, default=0))


def test_a_frame_that_is_cut_anywhere_leaves_the_log_at_the_frame_before() -> None:
    first, second = frames(300), frames(700, start=300)
    for cut in range(len(second)):
        slave = Slave()
        slave.feed(first + second[:cut])
        assert slave.data == pattern(0, 300)
        slave.reader.reset()
        slave.feed(second)
        assert slave.data == pattern(0, 700)


def test_heartbeats_between_frames_move_nothing() -> None:
    slave = Slave()
    slave.feed(frame_bytes(0, b"") + frames(5) + frame_bytes(5, b"") * 3 + frames(9, start=5))
    assert (slave.data, slave.end) == (pattern(0, 9), 9)


@pytest.mark.parametrize("size", [-12, -1, BODY_BYTES_MAX + 1, 2**31 - 1, -(2**31)])
def test_a_lying_size_is_refused_with_its_number(size: int) -> None:
    slave = Slave(segment_bytes=1 << 30)
    with pytest.raises(ProtocolError, match=f"announces {size} bytes"):
        slave.feed(frame_bytes(0, b"abc", size))
    assert slave.end == 0


def test_a_lying_header_is_refused_before_its_body_arrives() -> None:
    slave = Slave(start=100)
    with pytest.raises(ProtocolError, match="transfer at 7, but our log ends at 100"):
        slave.feed(frame_bytes(7, b"", 500))


def test_the_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    slave = Slave(segment_bytes=8 << 20, receive_bytes=1 << 20)
    body = pattern(0, BODY_BYTES_MAX)
    stream = frame_bytes(0, body)
    for start in range(0, len(stream), 1 << 20):
        slave.feed(stream[start : start + (1 << 20)])
    assert slave.data == body


@pytest.mark.parametrize("offset", [-1, 1, 299, 301, 1000, 2**62, -(2**63)])
def test_a_gap_or_an_overlap_is_refused(offset: int) -> None:
    slave = Slave(start=300)
    with pytest.raises(ProtocolError, match=f"transfer at {offset}, but our log ends at 300"):
        slave.feed(frame_bytes(offset, b"x"))


def test_an_empty_log_begins_where_a_segment_does() -> None:
    slave = Slave()
    slave.feed(frames(3500, start=3000))
    assert (slave.start, slave.runs) == (3000, [(3000, 500)])


def test_a_heartbeat_tells_an_empty_log_where_to_begin() -> None:
    slave = Slave()
    slave.feed(frame_bytes(3000, b"") + frames(3500, start=3000))
    assert (slave.start, slave.runs) == (3000, [(3000, 0), (3000, 500)])


@pytest.mark.parametrize("offset", [1, 999, 3001, -1000])
def test_an_empty_log_begins_nowhere_else(offset: int) -> None:
    slave = Slave()
    with pytest.raises(ProtocolError, match="mappedFileSizeCommitLog"):
        slave.feed(frame_bytes(offset, b"x"))


def test_an_unfinished_first_frame_does_not_begin_the_log() -> None:
    slave = Slave()
    slave.feed(frames(3500, start=3000)[:-1])
    assert (slave.end, slave.runs) == (0, [])


@pytest.mark.parametrize(("end", "size"), [(900, 101), (1000, 1001), (0, 1001)])
def test_a_body_across_our_segments_end_is_refused(end: int, size: int) -> None:
    slave = Slave(start=end)
    with pytest.raises(ProtocolError, match="crosses the end of our segment"):
        slave.feed(frame_bytes(end, b"", size))


# -- reports ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slice_bytes", [1, 3, 8, 9, 64])
def test_reports_arrive_in_any_slices(slice_bytes: int) -> None:
    offsets = [-1, 0, 1, 65536, 2**40]
    stream = b"".join(map(REPORT.pack, offsets))
    reader, got = ReportReader(), []
    for start in range(0, len(stream), slice_bytes):
        got += reader.feed(stream[start : start + slice_bytes])
    assert got == offsets


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"GET / HTTP/1.1\r\nHost: broker-a\r\n\r\n", "'GET / HTTP/1.1"),
        (b"2024-10-", "'2024-10-'"),
        (b"PING\r\n", "'PING"),
        (bytes.fromhex("16030102000100"), "16 03 01 02"),
        (b"\x7f" + b"\xff" * 7, "7f ff"),
    ],
)
def test_a_stranger_is_named_by_his_bytes(data: bytes, named: str) -> None:
    with pytest.raises(NotAReport, match="no report") as raised:
        ReportReader().feed(data)
    assert named in str(raised.value)


def test_one_stray_byte_ends_the_stream_instead_of_shifting_it() -> None:
    reader = ReportReader()
    assert reader.feed(REPORT.pack(5)) == [5]
    with pytest.raises(NotAReport):
        reader.feed(b"\x00\x00\x01" + REPORT.pack(500 << 8) + REPORT.pack((1 << 61) + 7))


def test_a_long_text_is_shown_by_its_beginning() -> None:
    assert shown(b"A" * 100) == f"'{'A' * 32}' and 68 bytes more"
    assert HEADER_BYTES == 12


# -- greetings --------------------------------------------------------------------------------------


def greeted(data: bytes) -> ReportReader:
    reader = ReportReader()
    assert list(reader.feed(REPORT.pack(-1))) == [-1]
    reader.expect_hello()
    reader.feed(data)
    return reader


def test_a_hello_that_nobody_expects_is_a_report_like_others() -> None:
    assert list(ReportReader().feed(slave_hello_block(bytes(8)))) == [-2, 8, 0]


@pytest.mark.parametrize("slice_bytes", [1, 8, 11])
def test_reports_in_the_place_of_a_hello_are_reports(slice_bytes: int) -> None:
    reader, got = greeted(REPORT.pack(-1)), []
    stream = b"".join(map(REPORT.pack, [-1, 5, 9]))
    for start in range(0, len(stream), slice_bytes):
        got += reader.feed(stream[start : start + slice_bytes])
    assert (got, reader.hello) == ([5, 9], None)
    assert list(reader.feed(slave_hello_block(bytes(8)))) == [-2, 8, 0]


@pytest.mark.parametrize("size", [0, -1, HELLO_BYTES_MAX + 1, 2**62])
def test_a_hello_of_a_size_that_none_has_is_refused_before_it_comes(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"hello of {size} bytes"):
        greeted(REPORT.pack(-2) + REPORT.pack(size))
    reader = TransferReader(SEGMENT_BYTES, 4096)
    if size < 2**31:
        with pytest.raises(ProtocolError, match=f"greeting of {size} bytes"):
            _peer_frame(reader, TRANSFER_HEADER.pack(-1, size))


def test_the_largest_hello_is_taken() -> None:
    body = bytes(HELLO_BYTES_MAX)
    assert greeted(slave_hello_block(body)).hello == body
    reader = TransferReader(SEGMENT_BYTES, 2 * HELLO_BYTES_MAX)
    assert _peer_frame(reader, greeting_bytes(-2, body)) == (-2, body)


def test_nothing_follows_a_hello_before_the_verdict() -> None:
    with pytest.raises(NotAReport):
        greeted(slave_hello_block(b"body") + REPORT.pack(5))


def test_a_stranger_that_follows_a_call_is_named() -> None:
    with pytest.raises(NotAReport, match="GET /"):
        greeted(b"GET / HTTP/1.1\r\n\r\n")


def test_a_transfer_in_the_place_of_a_greeting_is_left_to_the_classic_rules() -> None:
    reader = TransferReader(SEGMENT_BYTES, 4096)
    assert not reader.is_transfer
    assert _peer_frame(reader, frames(10)) is None
    assert reader.is_transfer
    assert [run.end for run in reader.runs(0)] == [10]


@pytest.mark.parametrize("end", [0, 10])
@pytest.mark.parametrize("mark", [-1, -2])
def test_a_greeting_amid_transfers_ends_the_connection_by_its_name(mark: int, end: int) -> None:
    slave = Slave(start=end)
    with pytest.raises(LateHello, match="greets us late"):
        slave.feed(greeting_bytes(mark, b"body"))


def _peer_frame(reader: TransferReader, data: bytes) -> tuple[int, bytes] | None:
    space = reader.space()
    space[: len(data)] = data
    reader.received(len(data))
    return reader.greeting()
