"""What pages make of bodies, lists, times and counts.  Pure."""

from __future__ import annotations

import json
import zlib
from datetime import datetime
from typing import Any

import click
import pytest

from commitlog.kernel.layout import SYS_COMPRESSED
from commitlog.kernel.records import StoredMessage, decode, encode
from haservice.broker.delay.redirect import CHECK_TIMES, ORIGINAL, REAL_TOPIC
from haservice.client.message import SYS_ZLIB
from haservice.console.doors.once import Once
from haservice.console.questions.bodies import HEX_BYTES_MAX, SHOWN_BYTES_MAX, shown
from haservice.console.questions.paging import cut, matching, whole
from haservice.console.questions.waiting import levels_of, open_ones
from haservice.console.times import given_ms
from haservice.remoting.bodies.clients import TopicOffset
from tests.support.messages import STORE_HOST, message

ZLIB = SYS_COMPRESSED | SYS_ZLIB


def stored(queue_offset: int = 0, **fields: Any) -> StoredMessage:
    return decode(encode(message(**fields), STORE_HOST))._replace(queue_offset=queue_offset)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"a":[1.50,-0,1e400,12345678901234567890123,{ }],"a":"{\\"[,:\\\\"}',
        ' [ [ ] , {"x" : null} ] ',
    ],
)
def test_json_is_laid_out_and_says_the_same(text: str) -> None:
    view = shown(text.encode(), 0)
    assert view.kind == "JSON"
    assert "".join(tokens(view.text)) == "".join(tokens(text))
    assert json.loads(view.text) == json.loads(text)


def tokens(text: str) -> list[str]:
    """All characters but blanks outside of strings."""
    found, inside, escaped = [], False, False
    for one in text:
        if inside or not one.isspace():
            found.append(one)
        if inside and escaped:
            escaped = False
        elif inside and one == "\\":
            escaped = True
        elif one == '"':
            inside = not inside
    return found


@pytest.mark.parametrize(
    "body", [b"[" * 60_000 + b"]" * 5, b"[" * 30_000 + b"]" * 30_000, b'{"a": }', b"12", b'"x"']
)
def test_what_is_no_json_to_lay_out_stays_text(body: bytes) -> None:
    view = shown(body, 0)
    assert (view.kind, view.text) == ("text", body.decode())


def test_a_body_is_shown_up_to_a_bound_however_it_is_stored() -> None:
    long = "é".encode() * SHOWN_BYTES_MAX
    for body, flags in ((long, 0), (zlib.compress(long), ZLIB)):
        view = shown(body, flags)
        assert view.text == "é" * (SHOWN_BYTES_MAX // 2)
        assert view.note == "The first 64.0 KiB of it."
    odd = shown(b"x" + long, 0)
    assert odd.kind == "text", "the cut has parted a character"
    assert shown(b"\xff" * 100_000, 0).text.count("\n") == HEX_BYTES_MAX // 16 - 1


def test_what_cannot_be_decompressed_is_shown_as_stored() -> None:
    for flags, name in ((SYS_COMPRESSED | 0x100, "LZ4"), (ZLIB, "wrongly zlib")):
        view = shown(b"abc", flags)
        assert view.kind == "binary"
        assert view.text.startswith("00000000  61 62 63")
        assert name in view.note
    assert shown(b"", 0).kind == "empty"
    assert shown(b"a\0b", 0).kind == "binary"


def test_a_list_is_cut_into_pages_of_which_there_is_always_one() -> None:
    rows = list(range(450))
    assert [(one.first, one.last) for one in (cut(rows, number) for number in (1, 2, 3))] == [
        (1, 200),
        (201, 400),
        (401, 450),
    ]
    assert cut(rows, 99).rows == rows[400:]
    assert cut([], 7).rows == []
    assert matching(["b", "Ab", "c"], "B") == ["Ab", "b"]
    assert [whole(text, 7, 100) for text in ("12", "-1", "", "x", "101", "²", "9" * 30)] == [12, *[7] * 6]


def test_times_are_taken_as_pages_show_them_and_as_tools_do() -> None:
    when = datetime(2026, 11, 25, 13, 46, 55, 123000)
    ms = int(when.timestamp() * 1000)
    for text in ("2026-11-25 13:46:55,123", "2026-11-25T13:46:55.123", "2026-11-25#13:46:55:123", str(ms)):
        assert given_ms(text) == ms, text
    assert given_ms(" ") is None
    for text in ("yesterday", "9" * 25, "2026-13-01"):
        with pytest.raises(click.BadParameter):
            given_ms(text)


def test_a_level_counts_what_is_not_delivered_and_still_there() -> None:
    queues = {0: TopicOffset(0, 10, 5), 1: TopicOffset(6, 10, 5)}
    first, second, third = levels_of(["1s", "5s"], {**queues, 2: TopicOffset(0, 1, 5)}, {1: 7, 2: 3})
    assert (first.waiting, second.waiting) == (3, 4), "retention has taken what was not delivered"
    assert (third.delay, third.waiting) == ("", 1)
    assert [one.waiting for one in levels_of(["1s"], queues, None)] == [None, None]


def test_a_transaction_is_open_until_an_op_record_names_it_or_its_original() -> None:
    def half(offset: int, **properties: str) -> StoredMessage:
        return stored(queue_offset=offset, properties={REAL_TOPIC: "T", **properties})

    halves = [
        half(4),
        half(5),
        half(6),
        half(7, **{ORIGINAL: "4", CHECK_TIMES: "2"}),
        half(8, **{ORIGINAL: "5"}),
    ]
    ops = [stored(body=b"5"), stored(body=b"6,99"), stored(body=b"nonsense")]
    (still,) = open_ones(halves, ops, "broker-a")
    assert (still.row.place.offset, still.checks, still.topic) == (7, 2, "T")


def test_a_form_counts_once() -> None:
    once = Once()
    assert [once.first(secret) for secret in ("secret-1", "secret-1", "secret-2", "", "short")] == [
        True,
        False,
        True,
        False,
        False,
    ]
