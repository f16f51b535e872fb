"""RemotingCommand in both header forms: sample vectors, tolerance, strictness, hostility."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice.errors import ProtocolError
from haservice.remoting.codes import LanguageCode, RequestCode, ResponseCode
from haservice.remoting.command import VERSION, RemotingCommand, decode, encode, encode_head
from haservice.remoting.frame import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, FrameReader
from tests.support.remoting import ROUTE_JSON, frame

# The specification's sample, seen on the wire of a 4.9.8 broker.
SAMPLE_BINARY = bytes.fromhex(
    "0000002801000024006900019900000007000000000000000268690000000d0005746f706963000000025431"
)


def one(data: bytes) -> RemotingCommand:
    (found,) = FrameReader().feed(data)
    return decode(*found)


def header(**fields: Any) -> bytes:
    return frame(json.dumps(fields).encode())


def test_the_json_sample_reads_and_writes_the_same() -> None:
    command = one(frame(ROUTE_JSON))
    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 0, 409)
    assert (command.language, command.remark, command.ext) == (LanguageCode.JAVA, None, {"topic": "T1"})
    assert not command.is_response
    assert not command.is_oneway
    assert encode(command) == frame(ROUTE_JSON)


def test_the_binary_sample_reads_and_writes_the_same() -> None:
    command = one(SAMPLE_BINARY)
    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 0, 409)
    assert (command.language, command.remark, command.ext) == (LanguageCode.JAVA, "hi", {"topic": "T1"})
    assert command.serialize_type == SERIALIZE_ROCKETMQ
    assert encode(command) == SAMPLE_BINARY


@pytest.mark.parametrize("serialize_type", [SERIALIZE_JSON, SERIALIZE_ROCKETMQ])
def test_an_answer_has_the_form_of_its_request(serialize_type: int) -> None:
    request = RemotingCommand(RequestCode.HEART_BEAT, opaque=-5, serialize_type=serialize_type)
    answer = request.answer(ResponseCode.SYSTEM_ERROR, "no\u00e9", {"a": "1"}, b"body")
    back = one(encode(answer))
    assert (back.code, back.opaque, back.flag, back.remark) == (1, -5, 1, "no\u00e9")
    assert (back.ext, bytes(back.body), back.version) == ({"a": "1"}, b"body", VERSION)
    assert back.serialize_type == serialize_type
    assert back.is_response


def test_numbers_and_booleans_in_ext_fields_become_text() -> None:
    command = one(
        header(
            code=10, extFields={"queueId": 0, "k": False, "m": True, "g": 1700000000000, "x": None, "s": "t"}
        )
    )
    assert command.ext == {"queueId": "0", "k": "false", "m": "true", "g": "1700000000000", "s": "t"}


def test_any_order_unknown_and_missing_keys() -> None:
    command = one(frame(b' { "version" : 63 , "who":[1,{}], "flag": 2,\n"code" :34 } '))
    assert (command.code, command.opaque, command.flag, command.version) == (34, 0, 2, 63)
    assert (command.ext, command.remark, command.is_oneway) == ({}, None, True)
    assert one(frame(b"{}")).code == 0


@pytest.mark.parametrize(
    ("language", "known"),
    [
        ("GO", LanguageCode.GO),
        (1, LanguageCode.CPP),
        ("KLINGON", LanguageCode.OTHER),
        (99, LanguageCode.OTHER),
        (-1, LanguageCode.OTHER),
        (None, LanguageCode.OTHER),
        ([], LanguageCode.OTHER),
    ],
)
def test_languages_by_name_by_number_and_unknown(language: object, known: LanguageCode) -> None:
    assert one(header(code=1, language=language)).language == known


def test_an_unknown_language_number_in_a_binary_header() -> None:
    data = bytearray(SAMPLE_BINARY)
    data[10] = 200
    assert one(bytes(data)).language == LanguageCode.OTHER


def test_digits_in_a_string_count_as_a_number() -> None:
    assert one(header(code="105", opaque="-3")).code == 105


def test_only_strings_are_written() -> None:
    ext: Any = {"a": 1, "b": True, "c": "x", "d": None}
    for serialize_type in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ):
        command = RemotingCommand(10, ext, serialize_type=serialize_type)
        assert one(encode(command)).ext == {"a": "1", "b": "true", "c": "x"}
    assert b'"extFields":{"a":"1","b":"true","c":"x"}' in encode(RemotingCommand(10, ext))


def test_control_characters_and_other_scripts_survive() -> None:
    properties = "UNIQ_KEY\x01ABC\x02TAGS\x01\u4e2d\U0001f600"
    for serialize_type in (SERIALIZE_JSON, SERIALIZE_ROCKETMQ):
        command = RemotingCommand(310, {"i": properties}, serialize_type=serialize_type)
        assert one(encode(command)).ext["i"] == properties


def test_a_head_counts_the_body_it_comes_without() -> None:
    command = RemotingCommand(10, body=memoryview(b"abc"))
    assert encode_head(command) + b"abc" == encode(command)


HOSTILE_HEADERS = {
    "an opaque that no answer can repeat": b'{"code":28,"opaque":"' + b"9" * 30 + b'"}',
    "empty": b"",
    "not JSON": b"x",
    "an array": b"[1,2]",
    "a number": b"7",
    "null": b"null",
    "torn": ROUTE_JSON[:-1],
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 40_000,
    "deep and closed": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "NaN": b'{"code":NaN}',
    "infinity": b'{"code":1e999}',
    "bad UTF-8": b'{"remark":"\xff\xfe"}',
    "lone surrogate": b'{"remark":"\\ud800"}',
    "NUL": b'{"code":1,\x00}',
    "huge code": b'{"code":' + b"9" * 50_000 + b"}",
    "huge code in a string": b'{"code":"' + b"9" * 50_000 + b'"}',
    "code is a fraction": b'{"code":1.5}',
    "code is an object": b'{"code":{}}',
    "opaque is text": b'{"opaque":"x"}',
    "flag is true": b'{"flag":true}',
    "ext is an array": b'{"extFields":["a"]}',
    "ext is text": b'{"extFields":"a"}',
    "ext is a number": b'{"extFields":1}',
    "ext holds an object": b'{"extFields":{"a":{}}}',
    "ext holds an array": b'{"extFields":{"a":[1]}}',
    "many empty objects": b'{"extFields":[' + b"{}," * 80_000 + b"{}]}",
}


@pytest.mark.parametrize("data", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
def test_a_hostile_json_header_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(SERIALIZE_JSON, data, b"")


def test_every_cut_of_a_json_header_is_a_protocol_error() -> None:
    for cut in range(len(ROUTE_JSON)):
        with pytest.raises(ProtocolError):
            decode(SERIALIZE_JSON, ROUTE_JSON[:cut], b"")


def test_every_cut_of_a_binary_header_is_a_protocol_error() -> None:
    data = SAMPLE_BINARY[8:]
    for cut in range(len(data)):
        with pytest.raises(ProtocolError):
            decode(SERIALIZE_ROCKETMQ, data[:cut], b"")


@pytest.mark.parametrize("size", [-1, -(2**31), 1, 3, 2**31 - 1, 14, 100])
@pytest.mark.parametrize("place", [13, 19, 30], ids=["remark", "ext", "value"])
def test_every_length_of_a_binary_header_may_lie(place: int, size: int) -> None:
    data = bytearray(SAMPLE_BINARY[8:])
    struct.pack_into(">i", data, place, size)
    if place == 13 and size == 1:
        return  # "h" is a remark, and what follows it is then the lie
    with pytest.raises(ProtocolError):
        decode(SERIALIZE_ROCKETMQ, bytes(data), b"")


@pytest.mark.parametrize("size", [-1, -32768, 6, 32767])
def test_a_key_length_of_a_binary_header_may_lie(size: int) -> None:
    data = bytearray(SAMPLE_BINARY[8:])
    struct.pack_into(">h", data, 23, size)
    with pytest.raises(ProtocolError):
        decode(SERIALIZE_ROCKETMQ, bytes(data), b"")


def test_bad_utf8_in_a_binary_header() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode(SERIALIZE_ROCKETMQ, SAMPLE_BINARY[8:].replace(b"hi", b"\xff\xff"), b"")


def test_an_unknown_serialize_type() -> None:
    with pytest.raises(ProtocolError, match="serialize type 2"):
        decode(2, b"{}", b"")


TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
I32 = st.integers(-(2**31), 2**31 - 1)


@given(
    st.sampled_from([SERIALIZE_JSON, SERIALIZE_ROCKETMQ]),
    st.integers(-(2**15), 2**15 - 1),
    I32,
    st.integers(0, 3),
    st.one_of(st.none(), TEXT.filter(bool)),
    st.dictionaries(TEXT, TEXT, max_size=5),
    st.binary(max_size=50),
)
def test_what_is_written_is_read(
    serialize_type: int,
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: dict[str, str],
    body: bytes,
) -> None:
    command = RemotingCommand(
        code, ext, body, opaque=opaque, flag=flag, remark=remark, serialize_type=serialize_type
    )
    back = one(encode(command))
    assert (back.code, back.opaque, back.flag, back.remark) == (code, opaque, flag, remark)
    assert (back.ext, bytes(back.body), back.language) == (ext, body, LanguageCode.PYTHON)


@given(st.integers(0, 2), st.binary(max_size=120))
def test_random_headers_are_commands_or_protocol_errors(serialize_type: int, data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(serialize_type, data, b"")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["code", "opaque", "flag", "version", "language", "remark", "extFields"]), JSON_VALUES
    )
)
def test_json_headers_of_any_shape_are_commands_or_protocol_errors(fields: dict[str, Any]) -> None:
    try:
        command = decode(SERIALIZE_JSON, json.dumps(fields).encode(), b"")
    except ProtocolError:
        return
    assert all(type(value) is str for value in command.ext.values())
    assert type(command.code) is type(command.opaque) is type(command.flag) is int
    LanguageCode(command.language)
