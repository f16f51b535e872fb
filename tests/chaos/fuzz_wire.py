"""Fuzz targets of the replication wire and of records: what a peer, or a disk, may send us."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

from commitlog.errors import CorruptRecord, IncompleteRecord, MessageBeyondLimits
from commitlog.kernel.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, MESSAGE_MAGIC_V2
from commitlog.kernel.records import (
    NewMessage,
    check,
    decode,
    decode_host,
    decode_properties,
    encode,
    encode_batch,
    encode_host,
    is_topic,
    parse_head,
    parse_message_id,
    stamp,
)
from commitlog.kernel.scan import scan_records
from haservice.errors import ProtocolError
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan, Step, plan
from haservice.replication.slave.record_check import RecordCheck
from haservice.replication.wire.hello import MasterHello, SlaveHello, Verdict, decode_epochs, encode_epochs
from haservice.replication.wire.protocol import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    REPORT,
    REPORT_BYTES,
    TRANSFER_HEADER,
    NotAReport,
    ReportReader,
    TransferReader,
)
from tests.chaos.fuzz import Target
from tests.support.messages import BORN_HOST, STORE_HOST, STORE_MS, batch_body, message

SEGMENT_BYTES = 4096
# Longer streams come in larger pieces than single bytes.
_SINGLE_BYTES_MAX = 700
# Where a log may end when the frames come.
ENDS = (0, 0, SEGMENT_BYTES, 3 * SEGMENT_BYTES - 100, 5 * SEGMENT_BYTES + 17, 7)


def sliced(data: bytes, kind: int) -> list[bytes]:
    """The bytes as a network may bring them: whole, one by one, or in pieces of any size."""
    if kind % 4 == 0:
        return [data]
    if kind % 4 == 1 and len(data) <= _SINGLE_BYTES_MAX:
        return [data[at : at + 1] for at in range(len(data))]
    sizes = random.Random(kind)
    pieces, at = [], 0
    while at < len(data):
        size = 1 + int(sizes.random() * max(40, len(data) // 20))
        pieces.append(data[at : at + size])
        at += size
    return pieces


def log_bytes(records: int = 6, segment_bytes: int = SEGMENT_BYTES, start: int = 0) -> bytes:
    """A log's bytes from `start`, with a blank and what follows it if it is long enough."""
    out = bytearray()
    offsets: dict[int, int] = {}
    for number in range(records):
        body = b"%d" % number * (number * 67 % 900 + 1)
        properties = {"KEYS": f"k{number}", "TAGS": "t"} if number % 3 else {}
        host = encode_host("::1", 9) if number % 4 == 3 else BORN_HOST
        record = encode(message(body, properties=properties, born_host=host), STORE_HOST)
        offset = start + len(out)
        room = segment_bytes - offset % segment_bytes
        if len(record) + BLANK_BYTES > room:
            out += BLANK.pack(room, BLANK_MAGIC).ljust(room, b"\0")
            offset = start + len(out)
        stamp(record, offsets.get(3, 0), offset, STORE_MS + number)
        offsets[3] = offsets.get(3, 0) + 1
        out += record
    return bytes(out)


# -- transfers -------------------------------------------------------------------------------------

_READER = TransferReader(SEGMENT_BYTES, 4096)


def _transfers(data: bytes) -> object:
    """First two bytes: where our log ends, how the rest is cut."""
    if len(data) < 2:
        return None
    end, pieces, stream = ENDS[data[0] % len(ENDS)], sliced(data[2:], data[1]), data[2:]
    expected, expected_end, lies = plain_transfers(stream, end)
    reader = _READER
    reader.reset()
    got = bytearray()
    refused = False
    for piece in pieces:
        at = 0
        while at < len(piece) and not refused:
            space = reader.space()
            count = min(len(space), len(piece) - at)
            assert count, "a reader always has room"
            space[:count] = piece[at : at + count]
            reader.received(count)
            at += count
            try:
                runs = reader.runs(end)
            except ProtocolError:
                refused = True
                break
            for run in runs:
                assert run.offset == end or (end == 0 and run.offset % SEGMENT_BYTES == 0)
                size = sum(map(len, run.bodies))
                assert run.end == run.offset + size
                assert not size or run.offset // SEGMENT_BYTES == (run.end - 1) // SEGMENT_BYTES
                got += b"".join(run.bodies)
                end = run.end
    assert refused == lies
    assert bytes(got) == expected[: len(got)]
    if not refused:
        assert len(got) == len(expected)
        assert end == expected_end
    return refused, len(got) > 0, min(end // SEGMENT_BYTES, 9), min(len(stream) // HEADER_BYTES, 5)


def plain_transfers(stream: bytes, end: int) -> tuple[bytes, int, bool]:
    """What an honest reader takes: the bytes, where the log ends then, and whether a frame is refused."""
    taken = bytearray()
    at = 0
    while len(stream) - at >= HEADER_BYTES:
        offset, size = TRANSFER_HEADER.unpack_from(stream, at)
        if not 0 <= size <= BODY_BYTES_MAX:
            return bytes(taken), end, True
        if offset != end and (end or offset < 0 or offset % SEGMENT_BYTES):
            return bytes(taken), end, True
        if size > SEGMENT_BYTES - offset % SEGMENT_BYTES:
            return bytes(taken), end, True
        at += HEADER_BYTES
        if len(stream) - at < size:
            break
        taken += stream[at : at + size]
        at += size
        end = offset + size
    return bytes(taken), end, False


def _transfer_seeds() -> list[bytes]:
    log = log_bytes(12)
    seeds = []
    for which, end in enumerate(ENDS):
        frames = bytearray()
        position = end
        for wanted in (300, 1, 0, 1500, 700, 90):
            size = min(wanted, SEGMENT_BYTES - position % SEGMENT_BYTES)
            frames += TRANSFER_HEADER.pack(position, size) + log[:size]
            position += size
        seeds += [bytes((which, cut)) + frames for cut in range(3)]
    seeds.append(
        b"\0\0" + TRANSFER_HEADER.pack(3 * SEGMENT_BYTES, 0) + TRANSFER_HEADER.pack(3 * SEGMENT_BYTES, 9)
    )
    return seeds


# -- reports ---------------------------------------------------------------------------------------


def _reports(data: bytes) -> object:
    if not data:
        return None
    stream = data[1:]
    reader = ReportReader()
    got: list[int] = []
    refused = False
    for piece in sliced(stream, data[0]):
        try:
            got += reader.feed(piece)
        except NotAReport:
            refused = True
            break
    bad = next((at for at in range(0, len(stream), REPORT_BYTES) if stream[at] not in (0, 255)), None)
    assert refused == (bad is not None)
    whole = len(stream) // REPORT_BYTES if bad is None else bad // REPORT_BYTES
    expected = [one for (one,) in REPORT.iter_unpack(stream[: whole * REPORT_BYTES])]
    assert got == expected[: len(got)]
    assert refused or got == expected
    return refused, min(len(got), 8), bool(got) and got[-1] < 0


def _report_seeds() -> list[bytes]:
    reports = [0, 1, 4096, -1, 1 << 40, (1 << 56) - 1]
    stream = b"".join(REPORT.pack(one) for one in reports)
    return [
        b"\0" + stream,
        b"\1" + stream,
        b"\2" + stream + b"\0\0\0",
        b"\0GET / HTTP/1.1\r\n",
        b"\1" + b"\xff" * 24,
    ]


# -- hellos and lineages ---------------------------------------------------------------------------

_LINEAGE = Lineage((Epoch(0, 0, ""), Epoch(3, 4096, "a" * 32, 5, "why"), Epoch(4, 9000, "b" * 32)))
_MASTER = MasterHello(
    "id", "C", "broker-a", "10.0.0.1:10911", "SYNC_MASTER", 1 << 30, LogSpan(0, 12345), _LINEAGE, "", 5000
)
_SLAVE = SlaveHello(
    "id2", "broker-a", "10.0.0.2:10911", 1 << 30, LogSpan(0, 99), 99, 64, "ab" * 32, True, _LINEAGE
)
_HELLOS: tuple[Any, ...] = (MasterHello, SlaveHello, Verdict)


def _hello(data: bytes) -> object:
    if not data:
        return None
    kind = _HELLOS[data[0] % 3]
    said = kind.decode(data[1:])
    assert kind.decode(said.encode()) == said
    return kind, getattr(said, "accepted", None), min(len(getattr(said, "lineage", Lineage()).epochs), 4)


def _hello_seeds() -> list[bytes]:
    said = (_MASTER, _SLAVE, Verdict(True), Verdict(False, "digest differs", True))
    return [bytes((number % 3,)) + one.encode() for number, one in enumerate(said)]


_FOUR = struct.Struct(">BBBB")


def _plans(data: bytes) -> object:
    """Two lineages with ends, four bytes for each epoch: whose, number, start, master."""
    if len(data) < 4:
        return None
    ends = data[0] * 8 + data[1] % 8, data[2] * 8 + data[3] % 8
    starts = data[1] // 8 * 8, data[3] // 8 * 8
    lists: tuple[list[Epoch], list[Epoch]] = ([], [])
    for whose, number, start, master in _FOUR.iter_unpack(data[4 : len(data) - len(data) % 4]):
        mine = lists[whose % 2]
        least = mine[-1].number + 1 if mine else 0
        lowest = mine[-1].start + 1 if mine else 0
        mine.append(Epoch(least + number % 3, lowest + start % 64, "abc"[master % 3]))
    own_log = LogSpan(min(starts[0], ends[0]), ends[0])
    their_log = LogSpan(min(starts[1], ends[1]), ends[1])
    own, theirs = (Lineage(tuple(epochs)) for epochs in lists)
    decided = plan(own, own_log, theirs, their_log)
    position = decided.position
    if decided.step is Step.CONTINUE:
        assert position == own_log.end <= their_log.end
        assert position >= their_log.start
    elif decided.step is Step.TRUNCATE:
        assert own_log.start <= position < own_log.end
        assert their_log.start <= position <= their_log.end
    elif decided.step is Step.FROM_START:
        assert position == their_log.start
    elif decided.step is Step.AHEAD:
        assert their_log.end < position <= own_log.end
    else:
        assert decided.reason
    assert decode_epochs(encode_epochs(own)) == own
    return decided.step, min(len(own.epochs), 8), min(len(theirs.epochs), 8)


def _plan_seeds() -> list[bytes]:
    return [
        bytes((100, 0, 120, 0, 0, 0, 0, 0, 1, 0, 0, 0)),
        bytes((100, 0, 90, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 40, 1, 1, 0, 40, 1)),
        bytes((100, 0, 120, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 40, 1, 1, 0, 50, 2)),
        bytes((0, 0, 120, 0, 1, 0, 0, 0, 1, 0, 9, 2)),
        bytes((20, 80, 120, 160, 0, 0, 0, 0, 1, 0, 0, 0)),
    ]


# -- records ---------------------------------------------------------------------------------------


def _record(data: bytes) -> object:
    """One record, by every reader that there is."""
    view = memoryview(data)
    head = parse_head(view)
    if head is None:
        assert len(data) < max(BLANK_BYTES, int.from_bytes(data[:4], "big", signed=True))
        return "short"
    if head.magic == BLANK_MAGIC:
        assert check(view) == -head.size
        return "blank"
    assert 0 < head.size <= len(data)
    stored = decode(view)
    assert stored.size == head.size
    assert (stored.topic, stored.properties, stored.queue_offset) == (
        head.topic,
        head.properties,
        head.queue_offset,
    )
    decode_properties(stored.properties)
    decode_host(stored.born_host)
    decode_host(stored.store_host)
    # A host's port is an int of 32 bits, so its message id reads back.
    ip, port, offset = parse_message_id(stored.message_id)
    assert (ip, port) == decode_host(stored.store_host)
    assert offset == stored.physical_offset
    sound = stored.crc_ok and min(stored.queue_id, stored.queue_offset) >= 0
    sound = sound and is_topic(stored.topic.encode())
    try:
        assert check(view) == head.size
        assert sound
    except CorruptRecord:
        assert not sound
    return sound, stored.magic == MESSAGE_MAGIC_V2, bool(stored.properties), stored.sys_flag & 0x30


def _record_seeds() -> list[bytes]:
    log = log_bytes(8)
    seeds = []
    at = 0
    while at < len(log):
        size = int.from_bytes(log[at : at + 4], "big")
        seeds.append(log[at : at + size])
        at += size
    one = bytearray(seeds[1])
    topic_at = 88 + int.from_bytes(one[84:88], "big")
    one[4:8] = MESSAGE_MAGIC_V2.to_bytes(4, "big", signed=True)
    one[topic_at:topic_at] = b"\0"
    one[:4] = len(one).to_bytes(4, "big")
    return [*seeds, bytes(one)]


def _walks(data: bytes) -> object:
    """First two bytes: whether CRCs are summed, what is taken for torn; against check() in a loop."""
    if len(data) < 2:
        return None
    crc, torn = bool(data[0] & 1), STORE_MS + data[1] % 8 if data[0] & 2 else None
    view = memoryview(data)[2 : 2 + SEGMENT_BYTES]
    done = scan_records(view, 0, 0, SEGMENT_BYTES, crc=crc, torn_from_ms=torn)
    assert 0 <= done.position <= len(view)
    assert done.last < done.position or not done.records
    position, records, reason, blank = 0, 0, False, False
    while True:
        try:
            head = parse_head(view, position, SEGMENT_BYTES - position)
            if head is None:
                break
            if head.magic == BLANK_MAGIC:
                blank = head.size == SEGMENT_BYTES - position
                reason = not blank
                break
            if head.physical_offset != position:
                reason = True
                break
            position += check(view, position, crc)
            records += 1
        except CorruptRecord:
            reason = True
            break
    if torn is None:
        assert (done.position, done.records) == (position, records)
        assert (done.reason is not None) == reason
        assert (done.blank > 0) == blank
    else:
        assert done.position <= position
    return records, done.reason is None, done.blank > 0, torn is None


def _walk_seeds() -> list[bytes]:
    log = log_bytes(12)
    flags = (b"\1\0", b"\0\0", b"\3\4", b"\2\0")
    return [*(flag + log[:SEGMENT_BYTES] for flag in flags), b"\1\0" + log[:1500], b"\3\2" + log_bytes(3)]


def _checks(data: bytes) -> object:
    """What a slave asks of its master's bytes: the same answer, however they are cut."""
    if len(data) < 2:
        return None
    stream = data[2:]
    outcomes = []
    for pieces in (at_segments([stream]), at_segments(sliced(stream, data[1]))):
        checker = RecordCheck(SEGMENT_BYTES)
        refused = None
        at = 0
        for piece in pieces:
            try:
                checker.feed(at, [memoryview(piece)])
            except ProtocolError as error:
                refused = str(error)
                break
            at += len(piece)
            assert checker.end == at
            assert checker.whole <= checker.end
        outcomes.append((refused, checker.whole, refused is None and checker.end))
    assert outcomes[0] == outcomes[1], outcomes
    refused, whole, _ = outcomes[0]
    _whole_records(stream, whole)
    return refused is None, min(whole, 9000) // 500, None if refused is None else refused[-24:]


def at_segments(pieces: Sequence[bytes]) -> list[bytes]:
    """No piece crosses a segment's end, as no frame does."""
    out = []
    at = 0
    for piece in pieces:
        taken = 0
        while taken < len(piece):
            size = min(len(piece) - taken, SEGMENT_BYTES - at % SEGMENT_BYTES)
            out.append(piece[taken : taken + size])
            taken += size
            at += size
    return out


def _whole_records(stream: bytes, whole: int) -> None:
    """What a check calls whole are records that every other reader takes, and blanks."""
    view = memoryview(stream)
    at = 0
    while at < whole:
        room = SEGMENT_BYTES - at % SEGMENT_BYTES
        size, magic = BLANK.unpack_from(stream, at)
        if magic == BLANK_MAGIC:
            assert size == room
        else:
            size = check(view, at)
            head = parse_head(view, at, room)
            assert head is not None
            assert head.physical_offset == at
        at += size
    assert at == whole


def _check_seeds() -> list[bytes]:
    log = log_bytes(14)
    return [b"\0\0" + log[:5500], b"\0\1" + log_bytes(3), b"\0\2" + log[:2500], b"\0\3" + log_bytes(5)[:-7]]


def _batches(data: bytes) -> object:
    batch = encode_batch(NewMessage("TopicTest", 1, data, b"TAGS\x01b"), STORE_HOST)
    sizes = 0
    for start in batch.starts:
        assert start == sizes
        stored = decode(batch.records, start)
        assert stored.crc_ok
        sizes += stored.size
    assert sizes == len(batch.records)
    assert len(batch.records) <= 200 * len(data)
    return min(len(batch.starts), 6)


def _batch_seeds() -> list[bytes]:
    return [
        batch_body([b"a"]),
        batch_body([b"a", b"bb" * 50, b""], b"KEYS\x01k\x02TAGS\x01t"),
        batch_body([b"x"] * 5, b"DELAY\x013"),
        batch_body([b"x"], b"TRAN_MSG\x01true"),
    ]


def _message_ids(data: bytes) -> object:
    ip, port, offset = parse_message_id(data.decode("latin-1"))
    return ":" in ip, port < 0, offset < 0


_JSON = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"null",
    b"true",
    b"-1",
    b"1e400",
    b"18446744073709551616",
    b"\\u0000",
)
_IDS = (b"C0A8010900002A9F00000000000003E8", b"00" * 15 + b"0100002A9F" + b"00" * 8)
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94")

TARGETS = [
    Target("transfers", _transfers, _transfer_seeds, weight=2.0),
    Target("reports", _reports, _report_seeds, weight=2.0),
    Target("hello", _hello, _hello_seeds, allowed=(ProtocolError,), tokens=(*_JSON, b'"epochs"', b'"start"')),
    Target("plan", _plans, _plan_seeds),
    Target(
        "record",
        _record,
        _record_seeds,
        allowed=(CorruptRecord, IncompleteRecord),
        tokens=_MAGICS,
        weight=2.0,
    ),
    Target("walk", _walks, _walk_seeds, tokens=_MAGICS),
    Target("record_check", _checks, _check_seeds, tokens=_MAGICS),
    Target("batch", _batches, _batch_seeds, allowed=(MessageBeyondLimits,), weight=1.0),
    Target("message_id", _message_ids, lambda: _IDS, allowed=(ValueError,), weight=0.3),
]
