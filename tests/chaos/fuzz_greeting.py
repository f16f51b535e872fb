"""Fuzz targets of greetings: hellos in the stream, and what either side makes of the other's words."""

from __future__ import annotations

import random
from collections.abc import Sequence

from commitlog.errors import StoreUnreadable
from commitlog.recovery.intent_log import DIRECTORY, IntentLog
from commitlog.upkeep.damage import decode_fences, encode_fences
from haservice.errors import ProtocolError
from haservice.replication.lineage.epochs import Epoch, Lineage, Step
from haservice.replication.wire.greeting import Facts, GreetingOutcome, MasterGreeting, SlaveGreeting
from haservice.replication.wire.hello import HELLO_BYTES_MAX, HELLO_OFFSET, VERDICT_OFFSET
from haservice.replication.wire.protocol import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    REPORT,
    TRANSFER_HEADER,
    ReportReader,
    TransferReader,
    greeting_bytes,
    slave_hello_block,
)
from tests.chaos.crash_stories import ROOT
from tests.chaos.disk import MemoryDisk
from tests.chaos.fuzz import Target
from tests.chaos.fuzz_wire import SEGMENT_BYTES, log_bytes, sliced

_LOG = log_bytes(12)
_LINEAGE = Lineage((Epoch(1, 0, "a" * 32), Epoch(2, 1500, "b" * 32)))
_FACTS = Facts("C", "broker-a", "10.0.0.1:10911")
_READER = TransferReader(SEGMENT_BYTES, 4096)
_JSON = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"null",
    b"-1",
    b"9223372036854775807",
    b'"epochs":[]',
    b"true",
)


class FixedLog:
    """A log that holds the same bytes for ever."""

    segment_bytes = SEGMENT_BYTES

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def read(self, offset: int, size: int) -> bytes:
        assert self.start <= offset <= self.end
        return _LOG[offset : min(offset + min(size, 1000), self.end)]


def _master() -> MasterGreeting:
    greeting = MasterGreeting(_FACTS, "a" * 32, "SYNC_MASTER", FixedLog(0, 3000), lambda: _LINEAGE)
    greeting.hello()
    return greeting


def _slave(end: int = 2000) -> SlaveGreeting:
    return SlaveGreeting(_FACTS, "c" * 32, FixedLog(0, end), _LINEAGE.up_to(end))


def _bodies_of(end: int) -> tuple[bytes, bytes, bytes]:
    """Hello, the slave's, verdict, of a greeting that succeeds."""
    master = MasterGreeting(_FACTS, "a" * 32, "SYNC_MASTER", FixedLog(0, 3000), lambda: _LINEAGE)
    hello = master.hello()[HEADER_BYTES:]
    said = _slave(end).on_hello(hello)[2 * REPORT.size :]
    return hello, said, master.answer(said).encoded[HEADER_BYTES:]


def _answers(data: bytes) -> object:
    """The master judges what a slave says: accepted are only bytes that it has as well."""
    answer = _master().answer(data)
    said = answer.slave
    assert answer.encoded == greeting_bytes(VERDICT_OFFSET, answer.verdict.encode())
    assert answer.verdict.accepted == (answer.outcome is GreetingOutcome.ACCEPTED)
    if answer.outcome is GreetingOutcome.ACCEPTED:
        assert 0 <= said.position <= 3000
        assert said.segment_bytes == SEGMENT_BYTES
        assert said.replica_id != "a" * 32
        # Of what both hold below its position, the end was compared.
        assert said.digest_bytes or not max(0, min(said.position, said.log.end) - max(0, said.log.start))
    return answer.outcome, said.digest_bytes > 0, len(said.lineage.epochs)


def _heeds(data: bytes) -> object:
    """First byte: how much the slave has; the rest is the master's hello, then `settle` is asked."""
    if not data:
        return None
    greeting = _slave((0, 1000, 2000, 3000)[data[0] % 4])
    block = greeting.on_hello(data[1:])
    assert block.startswith(REPORT.pack(-2))
    decided = greeting.on_verdict(b'{"accepted":true}')
    assert decided.step in (Step.CONTINUE, Step.TRUNCATE, Step.FROM_START)
    return decided.step, data[0] % 4


def _slave_streams(data: bytes) -> object:
    """First byte: how the rest, a slave's words after its call, comes in pieces."""
    if not data:
        return None
    reader = ReportReader()
    reader.expect_hello()
    reports: list[int] = []
    greeted = False
    for piece in sliced(data[1:], data[0]):
        got = reader.feed(piece)
        assert not (reader.hello is not None and got), "nothing is read behind a hello before it is taken"
        reports += got
        if reader.hello is not None:
            assert 0 < len(reader.hello) <= HELLO_BYTES_MAX
            assert not greeted, "a second hello"
            greeted, reader.hello = True, None
    assert REPORT.size * len(reports) <= len(data)
    return greeted, min(len(reports), 4)


def _peer_frames(data: bytes) -> object:
    """First byte: how the rest, a master's words after a call, comes in pieces."""
    if not data:
        return None
    reader = _READER
    reader.reset()
    stream = data[1:]
    bodies = []
    for piece in sliced(stream, data[0]):
        at = 0
        while at < len(piece):
            space = reader.space()
            count = min(len(space), len(piece) - at)
            space[:count] = piece[at : at + count]
            reader.received(count)
            at += count
            while (frame := reader.greeting()) is not None:
                bodies.append(frame)
    taken = sum(HEADER_BYTES + len(body) for _, body in bodies)
    assert b"".join(greeting_bytes(*frame) for frame in bodies) == stream[:taken]
    assert all(mark in (HELLO_OFFSET, VERDICT_OFFSET) for mark, _ in bodies)
    return min(len(bodies), 3), reader.is_transfer


def _seeds_of_slaves() -> Sequence[bytes]:
    _, said, _ = _bodies_of(2000)
    block = slave_hello_block(said)
    call = REPORT.pack(-1)
    return [
        b"\0" + block,
        b"\1" + call + block,
        b"\2" + REPORT.pack(4096) * 3,
        b"\3" + block + REPORT.pack(7),
    ]


def _seeds_of_masters() -> Sequence[bytes]:
    hello, _, verdict = _bodies_of(2000)
    frames = greeting_bytes(HELLO_OFFSET, hello) + greeting_bytes(VERDICT_OFFSET, verdict)
    transfer = TRANSFER_HEADER.pack(0, 5) + b"bytes"
    return [
        b"\0" + frames,
        b"\1" + frames + transfer,
        b"\2" + transfer,
        b"\0" + TRANSFER_HEADER.pack(-1, BODY_BYTES_MAX),
    ]


def _fences(data: bytes) -> object:
    fences = decode_fences(data)
    again = decode_fences(encode_fences(fences))
    assert [fence[:2] for fence in again.items] == [fence[:2] for fence in fences.items]
    assert encode_fences(again) == encode_fences(fences)
    ends = [bound for fence in fences.items for bound in fence[:2]]
    assert ends == sorted(ends)
    for offset in random.Random(len(data)).sample(range(3000), 5):
        fence = fences.at(offset)
        assert fence is None or fence.begin <= offset < fence.end
    return min(len(fences.items), 5)


def _unfinished(data: bytes) -> object:
    """First byte: which of the two files has the rest as its content."""
    if not data:
        return None
    disk = MemoryDisk()
    disk.put(ROOT / DIRECTORY / ("rewinding" if data[0] & 1 else "emptying"), data[1:])
    begun = IntentLog(ROOT, disk)
    what = begun.rewinding if data[0] & 1 else begun.emptying
    assert what is not None
    assert what.offset >= 0
    begun.begin(what)
    assert (begun.rewinding if data[0] & 1 else begun.emptying) == what
    begun.done(what)
    assert begun.rewinding is begun.emptying is None
    return data[0] & 1, getattr(what, "keep", 1) is None


TARGETS = [
    Target(
        "greeting_answer",
        _answers,
        lambda: [_bodies_of(end)[1] for end in (0, 1000, 3000)],
        (ProtocolError,),
        _JSON,
    ),
    Target(
        "greeting_heed",
        _heeds,
        lambda: [bytes((number,)) + _bodies_of(2000)[0] for number in range(4)],
        (ProtocolError,),
        (*_JSON, b"1500", b"2000", b"c" * 32),
    ),
    Target("slave_stream", _slave_streams, _seeds_of_slaves, (ProtocolError,)),
    Target("master_stream", _peer_frames, _seeds_of_masters, (ProtocolError,)),
    Target(
        "fences",
        _fences,
        lambda: [b"0 100 its body\n400 500 x\n", b"7 9 \n"],
        (ValueError,),
        (b" ", b"\n", b"0"),
        0.5,
    ),
    Target(
        "unfinished",
        _unfinished,
        lambda: [b"\x014096\n8192\n", b"\x008192\n\n", b"\x000\n/disk/store/cut/x\n"],
        (StoreUnreadable,),
        (b"\n", b"-", b"/", b"_"),
        0.3,
    ),
]
