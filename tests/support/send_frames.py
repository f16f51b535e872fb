"""Frames of sends, plain and odd, as many kinds of clients write them, or nobody does."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping

from haservice.remoting.command import encode
from haservice.remoting.headers.clients import SendMessageHeader
from tests.support.messages import batch_body
from tests.support.remoting import frame

PLAIN_TOPICS = ("T", "Other-Topic", "%app%T")
ODD_TOPICS = ("New1", "New2", "../x", "", "Ordered", "Tagged", "%RETRY%known", "%RETRY%strange", "%DLQ%known")
ODD_TOPICS += ("SCHEDULE_TOPIC_XXXX", "x" * 128, "ü")
PLAIN_PROPERTIES = (
    "",
    "UNIQ_KEY\x017F0000010A5B18B4AAC2\x02WAIT\x01true\x02",
    "WAIT\x01false",
    "WAIT\x01FALSE\x02A\x011",
    "A\x011\x02WAIT\x01",
    "WAIT\x01true",
    "A\x011\x02WAIT\x01false",
    "WAIT\x01true\x02WAIT\x01false",
    "XWAIT\x01no\x02WAIT\x01false\x02",
    "KEYS\x01a b\x02TAGS\x01ü€😀\x02",
    'Q\x01"\\/\b\f\n\r\t\x7f<>&\u2028',
    "\x02\x02",
    "DELAY\x02WAITED\x011",
)
ODD_PROPERTIES = (
    "DELAY\x012",
    "A\x01b\x02XDELAY\x013\x02c",
    "TRAN_MSG\x01true\x02PGROUP\x01g",
    "TRAN_MSG\x01false",
    "CLUSTER\x01other\x02A\x011",
    "DELAY\x01x",
    "A\x01nul\0",
    "A\x01" + "x" * 32755,
    "A\x01" + "x" * 32758,
    "A\x01" + "x" * 33000,
    "A\x01" + "ü" * 16384,
)

Write = Callable[[Mapping[str, str], int, int, random.Random], tuple[bytes, int]]


def _java(ext: Mapping[str, str], opaque: int, flag: int, _: random.Random) -> tuple[bytes, int]:
    header = {
        "code": 310,
        "extFields": dict(sorted(ext.items())),
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode(), 0


def _go(ext: Mapping[str, str], opaque: int, flag: int, rng: random.Random) -> tuple[bytes, int]:
    fields = list(ext.items())
    rng.shuffle(fields)
    header = {
        "code": 310,
        "language": "GO",
        "version": 317,
        "opaque": opaque,
        "flag": flag,
        "remark": "",
        "extFields": dict(fields),
    }
    return json.dumps(header, separators=(",", ":")).encode(), 0


def _spaced(ext: Mapping[str, str], opaque: int, flag: int, _: random.Random) -> tuple[bytes, int]:
    return json.dumps({"code": 310, "flag": flag, "opaque": opaque, "extFields": dict(ext)}).encode(), 0


def _binary(ext: Mapping[str, str], opaque: int, flag: int, _: random.Random) -> tuple[bytes, int]:
    entries = b"".join(
        struct.pack(">h", len(name.encode()))
        + name.encode()
        + struct.pack(">i", len(value.encode()))
        + value.encode()
        for name, value in ext.items()
    )
    return struct.pack(">hBhiiii", 310, 0, 409, opaque, flag, 0, len(entries)) + entries, 1


def _ext(rng: random.Random, topic: str, properties: str) -> dict[str, str]:
    """A plain send's fields, as a client of some age writes them."""
    ext = {
        "a": "group",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(rng.randrange(4)),
        "f": str(rng.choice((0, 1, 0x31, -16))),
        "g": str(rng.choice((0, 1_700_000_000_123, -1, 2**63 - 1))),
        "h": str(rng.choice((0, 7, -(2**31), 2**31 - 1))),
        "i": properties,
        "j": str(rng.choice((0, 3, -1))),
        "k": "false",
    }
    if rng.random() < 0.3:
        ext["l"] = "16"
    if rng.random() < 0.7:
        ext["m"] = "false"
    if rng.random() < 0.2:
        ext["n"] = "broker-a"
    if rng.random() < 0.1:
        del ext["j"], ext["k"]
    return ext


def _spoil(rng: random.Random, ext: dict[str, str]) -> None:
    """Makes a send an odd one, most of the time."""
    name, values = rng.choice(
        (
            ("b", ODD_TOPICS),
            ("i", ODD_PROPERTIES),
            ("e", ("-1", "4", "7", "1000", "2147483648", " 1", "+1", "01", "1_0", "", "x", "9" * 30)),
            ("f", ("4", "8", "12", "x")),
            ("g", ("9223372036854775808", "-9223372036854775808", "")),
            ("j", ("", "99999999999", "5")),
            ("m", ("true", "TRUE", "True", "tRUE", "yes")),
            ("l", ("", "x", "4294967296")),
            ("o", ("1",)),
            ("AccessKey", ("k",)),
            ("a", ("grüße", 'g"', "g\\", "\x01")),
        )
    )
    ext[name] = rng.choice(values)
    if rng.random() < 0.1:
        ext.pop(rng.choice("abcdefgh"), None)


def plain(rng: random.Random, opaque: int) -> bytes:
    """A send that is plain."""
    ext = _ext(rng, rng.choice(PLAIN_TOPICS), rng.choice(PLAIN_PROPERTIES))
    write: Write = rng.choice((_java, _java, _java, _go, _binary))
    header, kind = write(ext, opaque, 2 if rng.random() < 0.1 else 0, rng)
    return frame(header, rng.randbytes(rng.choice((0, 1, 100, 700))), kind)


def odd(rng: random.Random, opaque: int) -> bytes:
    """A send that is none of the plain ones, or looks as if it were not; now and then no send at all."""
    kind = rng.randrange(8)
    if kind == 0:
        return frame(*_reordered(plain(rng, opaque), rng))
    ext = _ext(rng, rng.choice(PLAIN_TOPICS), rng.choice(PLAIN_PROPERTIES))
    if kind == 1:
        return _other(rng, opaque, ext)
    if kind == 2:
        header, _ = _spaced(ext, opaque, 0, rng)
        return frame(header, b"spaced")
    body = b"x" * 1200 if kind == 3 else rng.randbytes(20)
    if kind >= 4:
        _spoil(rng, ext)
    write: Write = rng.choice((_java, _go, _binary))
    header, serialize_type = write(ext, opaque, rng.choice((0, 0, 2, 4, 16)), rng)
    return frame(header, body, serialize_type)


def _other(rng: random.Random, opaque: int, ext: dict[str, str]) -> bytes:
    header = SendMessageHeader.decode(310, ext)
    batch = rng.random() < 0.5
    request = _command(rng.choice((10, 320, 310, 999)), header._replace(batch=batch), opaque)
    request.body = batch_body([b"one", b"two"]) if batch else b"single"
    return encode(request)


def _command(code: int, header: SendMessageHeader, opaque: int):  # type: ignore[no-untyped-def]
    from haservice.remoting.command import RemotingCommand

    request = RemotingCommand.request(code, header.encode(10 if code == 10 else 310))
    request.opaque = opaque
    return request


def _reordered(whole: bytes, rng: random.Random) -> tuple[bytes, bytes, int]:
    """The same with a byte of its header changed; it may be a send still, or nothing that can be read."""
    size = int.from_bytes(whole[5:8], "big")
    header = bytearray(whole[8 : 8 + size])
    header[rng.randrange(size)] = rng.choice(
        (0, 1, 0x20, 0x22, 0x2C, 0x30, 0x39, 0x5C, 0x65, 0x7D, 0x80, 0xC3, 0xFF)
    )
    return bytes(header), whole[8 + size :], whole[4]
