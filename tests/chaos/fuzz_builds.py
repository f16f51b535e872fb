"""Fuzz targets that run a function with both builds: results and errors are the same, to the byte.

    both(run)      run(data) gives (end, result): `end` tells one way through from another, `result` is all
                   that came of it; of an error its type and text are held against each other

To add a function: write its run() and its seeds, and put a line into TARGETS.  Where the native kernel is not
in force there is nothing to compare, and TARGETS is empty.

What takes any buffer gets some that end at a page that nobody may touch.
"""

from __future__ import annotations

import functools
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.dispatching import AnyLanes, lanes
from commitlog.kernel.layout import AT, MAGICS_BYTES
from commitlog.kernel.records import encode, parse_head, stamp
from commitlog.kernel.scan import NOWHERE, scan_records
from haservice.broker.pull import native as pull_native
from haservice.broker.send import native as broker_native
from tests.chaos.fuzz import Target
from tests.chaos.fuzz_arrivals import arrival_seeds, arrivals
from tests.chaos.fuzz_logs import mended, odd_log
from tests.chaos.fuzz_wire import log_bytes
from tests.support.edge import Edge
from tests.support.messages import STORE_HOST, STORE_MS, message
from tests.support.send_frames import odd, plain
from tests.support.send_ways import HOSTS, Judge, Native, agree
from tests.support.sql_texts import Maker
from tests.support.sql_texts import agree as agree_about

Run = Callable[[bytes], tuple[object, object]]


@contextmanager
def reference() -> Iterator[None]:
    """Inside, the kernel is the Python reference alone."""
    was = native.core, native.crc32
    native.core, native.crc32 = None, zlib.crc32
    try:
        yield
    finally:
        native.core, native.crc32 = was


def both(run: Run) -> Callable[[bytes], object]:
    """Runs it with each build and compares; the end it came to."""

    def compared(data: bytes) -> object:
        found = _came(run, data)
        with reference():
            wanted = _came(run, data)
        assert found == wanted, f"native: {found[1]}\npython: {wanted[1]}"
        return found[0]

    return compared


def _came(run: Run, data: bytes) -> tuple[object, object]:
    try:
        return run(data)
    except Exception as error:
        return type(error), (type(error), str(error))


# -- scan ------------------------------------------------------------------------------------------

_OPTION_BYTES = 6
_OFFSETS = (0, 1, 4096, 1 << 40, NOWHERE - 3000, NOWHERE, 1 << 63, 10**20 - 4096)
_EDGE = Edge()
_SHAPES: tuple[Callable[[bytearray], bytes | bytearray | memoryview], ...] = (
    bytes,
    bytearray,
    memoryview,
    _EDGE.put,
)


def _scan(data: bytes) -> tuple[object, object]:
    """Bytes: what is asked for, two of torn records, where to begin, the room, whether the log is mended first."""
    if len(data) < _OPTION_BYTES:
        return None, None
    what, torn_ms, torn_from, begin, room, mend = data[:_OPTION_BYTES]
    log = bytearray(data[_OPTION_BYTES:])
    offset = _OFFSETS[what >> 1 & 7]
    position = begin % (len(log) + 1) if begin & 1 else 0
    if mend & 3:
        mended(log, position, offset, crc=bool(mend & 1))
    left = len(log) - position
    walked = scan_records(
        _SHAPES[(what >> 4) % 4](log),
        position,
        offset,
        {0: left, 1: left + room, 2: room * 16}.get(room & 3, 4096),
        segment_start=offset - begin if torn_from & 4 else 0,
        crc=bool(what & 1),
        torn_from_ms=(None, 0, STORE_MS + 3, NOWHERE)[torn_ms & 3],
        torn_from=(0, offset, offset + torn_from * 8, NOWHERE)[torn_from & 3],
    )
    why = walked.reason and walked.reason.split()[0]
    return (min(walked.records, 9), why, walked.blank > 0, walked.needed > 8, what & 1, torn_ms & 3), walked


def _scan_seeds() -> list[bytes]:
    log = log_bytes(8, 1 << 16)
    torn = log[:-20] + bytes(20)
    options = (
        bytes(6),
        b"\1\0\0\0\0\0",
        b"\1\2\1\0\0\1",
        b"\5\1\2\0\0\1",
        b"\0\3\3\0\3\2",
        b"\x0b\0\0\0\0\1",
    )
    logs = (log, log_bytes(14), torn, log[:700], odd_log())
    return [option + some for option in options for some in logs]


# -- CRC -------------------------------------------------------------------------------------------


def _crc32(data: bytes) -> object:
    """Two bytes: where the sum is cut in two.  Held against zlib, whichever build."""
    cut = int.from_bytes(data[:2], "big") % (len(data) + 1)
    whole = zlib.crc32(data)
    assert native.core.crc32(data) == whole
    view = _EDGE.put(data)
    assert native.core.crc32(view) == whole
    assert native.core.crc32(view[cut:], native.core.crc32(view[:cut])) == whole
    return len(data).bit_length()


def _crc_seeds() -> list[bytes]:
    return [bytes(size) for size in (0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 1000)] + [log_bytes(14)]


# -- dispatch --------------------------------------------------------------------------------------

_DISPATCH_OPTION_BYTES = 5
# A log of nothing but what stops it ends after so many.
_STOPS_MAX = 40


def _dispatch(data: bytes) -> tuple[object, object]:
    """Bytes: from where on keys are put, how much is given at once, whether it is taken between calls, what is told
    of a lane, and whether the log is mended first.  What stops it is told as the dispatcher tells it, or passed
    over.
    """
    if len(data) < _DISPATCH_OPTION_BYTES:
        return None, None
    indexed, step, takes, told, mend = data[:_DISPATCH_OPTION_BYTES]
    log = bytearray(data[_DISPATCH_OPTION_BYTES:])
    offset = _DISPATCH_OFFSETS[indexed >> 2 & 3]
    if mend & 1:
        mended(log, 0, offset, crc=False)
    indexed_to = (0, offset, offset + len(log) // 2, NOWHERE)[indexed & 3]
    known, at, came = lanes(), 0, list[object]()
    for stop in range(_STOPS_MAX):
        end = len(log) if step & 1 else min(len(log), at + 16 * step)
        moved, full, stored_ms = known.gather(_SHAPES[step % 4](log), at, offset + at, end, indexed_to)
        came.append((moved, full, stored_ms))
        at += moved
        if full or takes >> stop % 8 & 1:
            came.append(known.take())
        if not full and not (step and moved and end < len(log)):
            passed = _tell_lane(known, log, at, told + stop)
            if passed is None:
                break
            at += passed
    came.append(known.take())
    return (len(came), at == len(log), indexed & 3, told & 3), came


def _tell_lane(known: AnyLanes, log: bytearray, at: int, told: int) -> int | None:
    """Of the record that stopped it; how many bytes of it are passed over, None at the end of what can be read."""
    try:
        head = parse_head(log, at, len(log) - at)
    except CorruptRecord:
        return None
    if head is None:
        return None
    if told % 7 == 6:
        known.forget()
    edge = (0, 0, head.physical_offset, NOWHERE)[told & 3]
    known.learn(head.topic.encode(), head.queue_id, head.queue_offset, edge, (head.topic, head.queue_id))
    return head.size if told % 5 == 4 else 0


def _dispatch_seeds() -> list[bytes]:
    rng = random.Random(7)
    out = bytearray()
    for number in range(24):
        properties = rng.choice((b"", b"TAGS\1a\2", b"KEYS\1k1 k2\2UNIQ_KEY\1u\2", b"TAGS\1\xe6\xa0\x87\2"))
        record = encode(message(b"body", topic=f"T{number % 3}", queue_id=number % 2), STORE_HOST)
        properties_at = AT["body"] + len(b"body") + 1 + 2
        record[properties_at:] = len(properties).to_bytes(2, "big") + properties
        record[:4] = len(record).to_bytes(4, "big")
        stamp(record, number // 6, len(out), STORE_MS + number)
        out += record
    options = (b"\0\1\xff\0\1", b"\2\1\0\0\1", b"\4\x10\x55\2\1", b"\0\x21\xff\3\0")
    return [option + bytes(log) for option in options for log in (out, log_bytes(8, 1 << 16), odd_log())]


_DISPATCH_OFFSETS = (0, 4096, 1 << 40, NOWHERE - 3000)


# -- sends -----------------------------------------------------------------------------------------


@functools.cache
def _ways() -> tuple[Judge, list[Native]]:
    with tempfile.TemporaryDirectory() as directory:
        judge = Judge(Path(directory))
    return judge, [Native(judge, store) for store in HOSTS]


def _send(data: bytes) -> object:
    """A byte that picks the hosts, one for the form of the header, two for its size, the header, the body."""
    if len(data) < _SEND_OPTION_BYTES:
        return None
    judge, ways = _ways()
    header_bytes = int.from_bytes(data[2:4], "big") % (len(data) - _SEND_OPTION_BYTES + 1)
    rest = data[_SEND_OPTION_BYTES:]
    frame = (len(rest) + 4).to_bytes(4, "big") + data[1:2] + header_bytes.to_bytes(3, "big") + rest
    number = data[0] & 1
    born = HOSTS[data[0] >> 1 & 1]
    return agree(ways[number].says(frame, born), judge.says(frame, born, HOSTS[number])), data[1] & 3


def _send_seeds() -> list[bytes]:
    rng = random.Random(3)
    frames = [kind(rng, number) for number in range(40) for kind in (plain, odd)]
    return [bytes((number & 3,)) + frame[4:5] + frame[6:8] + frame[8:] for number, frame in enumerate(frames)]


_SEND_OPTION_BYTES = 4
_SEND_TOKENS = (
    b"WAIT\x01",
    b"DELAY\x01",
    b"TRAN_MSG\x01",
    b"CLUSTER\x01",
    b"\\u0001",
    b"\x02",
    b'"i":"',
    b"false",
)


# -- expressions -----------------------------------------------------------------------------------


def _expression(data: bytes) -> object:
    """Two bytes: how much of the rest is the message's properties."""
    cut = int.from_bytes(data[:2], "big") % (len(data) + 1)
    return agree_about(data[2 + cut :].decode("utf-8", "replace"), data[2 : 2 + cut])


def _expression_seeds() -> list[bytes]:
    maker = Maker(random.Random(11))
    pairs = [(maker.properties(), maker.expression()) for _ in range(60)]
    return [
        len(properties).to_bytes(2, "big") + properties + text.encode("utf-8", "replace")
        for properties, text in pairs
    ]


_EXPRESSION_TOKENS = (
    b"'",
    b"''",
    b"--",
    b"/*",
    b"*/",
    b" AND ",
    b" NOT ",
    b" IN (",
    b"BETWEEN",
    b" IS NULL",
    b"\1",
    b"\2",
)
_TOKENS = (*MAGICS_BYTES, b"\xcb\xd4\x31\x94", b"\0\0\0\x58", b"\0\0\0\x5b")
_DISPATCH_TOKENS = (*_TOKENS, b"TAGS\1", b"KEYS\1", b"UNIQ_KEY\1", b"\2", b" ")
_PAIRS = [
    Target("builds_scan", both(_scan), _scan_seeds, tokens=_TOKENS, weight=1.0),
    Target("builds_dispatch", both(_dispatch), _dispatch_seeds, tokens=_DISPATCH_TOKENS, weight=1.0),
    Target("builds_arrivals", both(arrivals), arrival_seeds, tokens=_TOKENS, weight=1.0),
    Target("builds_crc32", _crc32, _crc_seeds, weight=0.3),
]
_SENDS = Target("builds_send", _send, _send_seeds, tokens=_SEND_TOKENS, weight=1.0)
_EXPRESSIONS = Target("builds_sql", _expression, _expression_seeds, tokens=_EXPRESSION_TOKENS, weight=1.0)
TARGETS = [
    *(_PAIRS if native.core is not None else []),
    *([_SENDS] if broker_native.sends is not None else []),
    *([_EXPRESSIONS] if pull_native.sql is not None else []),
]
