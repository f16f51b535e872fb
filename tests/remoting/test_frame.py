"""Frames: whole, byte by byte, in odd chunks, with leftovers, and with a lie in every length field."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice.errors import ProtocolError
from haservice.remoting.frame import (
    ANSWER_HEADER_BYTES_MAX,
    FRAME_BYTES_MAX,
    JOINED_BYTES_MAX,
    REQUEST_HEADER_BYTES_MAX,
    Frame,
    FrameReader,
)
from tests.support.remoting import frame

FRAMES = [
    frame(b"header", b"body"),
    frame(b"no body"),
    frame(b"binary", b"b" * 300, serialize_type=1),
    frame(b"", b"no header"),
    frame(b"h" * 1000, b"b" * 5000),
]
EXPECTED = [
    (0, b"header", b"body"),
    (0, b"no body", b""),
    (1, b"binary", b"b" * 300),
    (0, b"", b"no header"),
    (0, b"h" * 1000, b"b" * 5000),
]
STREAM = b"".join(FRAMES)


def plain(frames: list[Frame]) -> list[tuple[int, bytes, bytes]]:
    return [(kind, header, bytes(body)) for kind, header, body in frames]


def feed_in(stream: bytes, size: int) -> list[Frame]:
    reader = FrameReader()
    return [one for start in range(0, len(stream), size) for one in reader.feed(stream[start : start + size])]


def test_whole() -> None:
    assert plain(FrameReader().feed(STREAM)) == EXPECTED


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9, 16, 100, 1023, 4096])
def test_in_chunks(size: int) -> None:
    assert plain(feed_in(STREAM, size)) == EXPECTED


def test_cut_in_two_at_every_byte() -> None:
    stream = b"".join(FRAMES[:4])
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        assert plain(reader.feed(stream[:cut]) + reader.feed(stream[cut:])) == EXPECTED[:4], cut
        assert reader.pending_bytes == 0


def test_a_leftover_waits_for_its_end() -> None:
    reader = FrameReader()
    assert plain(reader.feed(FRAMES[0] + FRAMES[2][:20])) == EXPECTED[:1]
    assert reader.pending_bytes == 20
    assert reader.feed(b"") == []
    assert plain(reader.feed(FRAMES[2][20:] + FRAMES[1])) == [EXPECTED[2], EXPECTED[1]]


def test_bodies_of_one_read_are_views_without_a_copy() -> None:
    (_, _, body), *_ = FrameReader().feed(data := FRAMES[0] + FRAMES[4])
    assert isinstance(body, memoryview)
    assert body.obj is data


def test_a_body_outlives_what_is_read_later() -> None:
    reader = FrameReader()
    reader.feed(FRAMES[4][:50])
    (_, _, body), *_ = reader.feed(FRAMES[4][50:] + FRAMES[0][:9])
    reader.feed(FRAMES[0][9:] * 50)
    assert bytes(body) == b"b" * 5000


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=6), st.data())
def test_any_frames_in_any_chunks(parts: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frame(header, body) for header, body in parts)
    reader = FrameReader()
    frames: list[Frame] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        frames += reader.feed(stream[:size])
        stream = stream[size:]
    assert plain(frames) == [(0, header, body) for header, body in parts]


@given(st.binary(max_size=200))
def test_random_bytes_are_frames_or_a_protocol_error(data: bytes) -> None:
    reader = FrameReader()
    try:
        reader.feed(data)
    except ProtocolError:
        assert reader.error is not None


LIES = {
    "length 0": struct.pack(">I", 0),
    "length 3": struct.pack(">I", 3),
    "length -1": struct.pack(">i", -1),
    "length one over the limit": struct.pack(">I", FRAME_BYTES_MAX - 3),
    "length 2^31-1": struct.pack(">I", 2**31 - 1),
    "header longer than the frame": struct.pack(">II", 4, 1),
    "header one longer than the frame": struct.pack(">II", 104, 101),
    "header of 16 MiB": struct.pack(">II", FRAME_BYTES_MAX - 4, FRAME_BYTES_MAX - 8),
    "header above its limit": struct.pack(">II", FRAME_BYTES_MAX - 4, REQUEST_HEADER_BYTES_MAX + 1),
    "HTTP": b"GET / HTTP/1.1\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_length_that_lies_is_refused_with_its_number(lie: bytes, size: int) -> None:
    with pytest.raises(ProtocolError, match=r"announces \d+"):
        feed_in(lie, size)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_frames_before_a_lie_are_given_and_nothing_after_it(lie: bytes) -> None:
    reader = FrameReader()
    assert plain(reader.feed(FRAMES[0] + lie + FRAMES[0] * 3)) == EXPECTED[:1]
    assert reader.error is not None
    with pytest.raises(ProtocolError):
        reader.feed(FRAMES[0])
    assert reader.pending_bytes == 0


def test_the_largest_frame_passes_and_is_not_allocated_before_it_comes() -> None:
    body = FRAME_BYTES_MAX - 8 - 10
    prefix = struct.pack(">II", 4 + 10 + body, 10)
    reader = FrameReader()
    assert reader.feed(prefix) == []
    assert reader.pending_bytes == 8
    reader.feed(b"h" * 10 + b"b" * 100)
    ((_, header, taken),) = reader.feed(b"b" * (body - 100))
    assert (len(header), len(taken)) == (10, body)


def test_who_speaks_another_protocol_is_named() -> None:
    with pytest.raises(ProtocolError, match="HTTP"):
        FrameReader().feed(LIES["HTTP"])
    with pytest.raises(ProtocolError, match="TLS"):
        FrameReader().feed(LIES["TLS"])


def test_escaped_properties_fit_a_requests_header_and_batch_ids_an_answers() -> None:
    assert REQUEST_HEADER_BYTES_MAX > 32767 * 6 + 32768
    assert ANSWER_HEADER_BYTES_MAX > 33 * (4 * 1024 * 1024 // 23)


# From a frame's edge


def test_at_an_edge_what_comes_can_be_looked_at_before_it_is_fed() -> None:
    reader = FrameReader()
    sent = frame(b"{}", b"one") + frame(b"{}", b"two")
    assert reader.from_edge(sent) is sent
    assert [bytes(body) for _, _, body in reader.feed(sent)] == [b"one", b"two"]


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_frame_that_came_in_pieces_can_be_looked_at_once_it_is_whole(cut: int) -> None:
    reader = FrameReader()
    whole = frame(b"{}", b"one")
    assert not reader.feed(whole[:cut])
    if cut >= 8:  # what is missing is known
        assert reader.from_edge(b"") is None
    joined = reader.from_edge(whole[cut:] + b"behind")
    assert joined == whole + b"behind"
    assert reader.pending_bytes == 0
    assert len(reader.feed(joined[:-6])) == 1


def test_a_large_frame_is_not_copied_for_a_look() -> None:
    reader = FrameReader()
    whole = frame(b"{}", bytes(JOINED_BYTES_MAX))
    reader.feed(whole[:-1])
    assert reader.from_edge(whole[-1:]) is None
    assert len(reader.feed(whole[-1:])) == 1


def test_behind_a_lie_nothing_is_looked_at() -> None:
    reader = FrameReader()
    with pytest.raises(ProtocolError):
        reader.feed(b"\xff" * 8)
    assert reader.from_edge(frame(b"{}")) is None
