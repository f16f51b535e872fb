"""RemotingCommand: one request or response, and its two header forms.

    JSON      {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,
               "serializeTypeCurrentRPC":"JSON","version":409}
    ROCKETMQ  | code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark length 4, remark
              | ext length 4, ext: any number of | key length 2, key | value length 4, value |

Reading is tolerant: any order, unknown keys, missing keys, ext values that are JSON numbers or booleans (old
C++ and JavaScript clients send them).  Writing is strict: ext values are strings, for Go clients fail on
anything else.  Nothing here touches a socket; frame.py reads the frame around the header.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol

import orjson

from haservice.errors import ProtocolError
from haservice.remoting.codes import LanguageCode
from haservice.remoting.frame import LENGTHS, SERIALIZE_JSON, SERIALIZE_ROCKETMQ

# MQVersion's ordinal of 4.9.8.  Java consumers remember a broker's version and refuse SQL92 below 232.
VERSION = 409

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

_BINARY_FIXED = struct.Struct(">hBhii")
_INT32 = struct.Struct(">i")
_NONE = 1 << 31  # no 32-bit number
_ENTRY_KEY = struct.Struct(">h")
assert _BINARY_FIXED.size == 13

_LANGUAGE_BY_NAME = {language.name: language.value for language in LanguageCode}
_LANGUAGE_NAMES = tuple(language.name for language in LanguageCode)
_LANGUAGES = range(len(_LANGUAGE_NAMES))
_PYTHON = LanguageCode.PYTHON.value
_OTHER = LanguageCode.OTHER.value

Body = bytes | memoryview


class RemotingCommand:
    """One command.  Mutable and cheap: each request and each answer makes one.

    `ext` values are text.  `body` is a view into the bytes read; see FrameReader for how long to keep it.
    `code` is a RequestCode in a request, a ResponseCode in a response; unknown numbers pass through.
    """

    __slots__ = (
        "body",
        "code",
        "ext",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: Body = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: int = _PYTHON,
        version: int = VERSION,
        serialize_type: int = SERIALIZE_JSON,
    ) -> None:
        self.code = code
        self.ext: dict[str, str] = {} if ext is None else ext
        self.body = body
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.language = language
        self.version = version
        self.serialize_type = serialize_type

    @classmethod
    def request(
        cls, code: int, ext: dict[str, str] | None = None, body: Body = b"", oneway: bool = False
    ) -> RemotingCommand:
        """A request of ours.  The connection that sends it sets its opaque."""
        return cls(code, ext, body, flag=FLAG_ONEWAY if oneway else 0)

    def answer(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: Body = b"",
    ) -> RemotingCommand:
        """The response to this request, in the header form that the request came in."""
        made = _new(RemotingCommand)
        made.code = code
        made.ext = {} if ext is None else ext
        made.body = body
        made.opaque = self.opaque
        made.flag = FLAG_RESPONSE
        made.remark = remark
        made.language = _PYTHON
        made.version = VERSION
        made.serialize_type = self.serialize_type
        return made

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"<{kind} code={int(self.code)} opaque={self.opaque} ext={len(self.ext)} body={len(self.body)}"
            + (f" remark={self.remark[:80]!r}>" if self.remark else ">")
        )


_new = RemotingCommand.__new__


def encode(command: RemotingCommand) -> bytes:
    """The whole frame, length field included."""
    return b"".join((encode_head(command), command.body))


def encode_head(command: RemotingCommand) -> bytes:
    """The frame up to its body, so that a body is copied once, into the write.

    This does not check the frame limit: whoever builds a body bounds it.
    """
    if command.serialize_type == SERIALIZE_ROCKETMQ:
        header = _encode_binary(command)
    else:
        header = _encode_json(command)
    header_bytes = len(header)
    if header_bytes > 0xFFFFFF:
        raise ValueError(f"a header of {header_bytes} bytes does not fit its 24-bit length")
    return (
        LENGTHS.pack(4 + header_bytes + len(command.body), command.serialize_type << 24 | header_bytes)
        + header
    )


def decode(serialize_type: int, header: bytes, body: Body) -> RemotingCommand:
    """A frame's command; raises ProtocolError if its header cannot be read."""
    if serialize_type == SERIALIZE_JSON:
        return _decode_json(header, body)
    if serialize_type == SERIALIZE_ROCKETMQ:
        return _decode_binary(header, body)
    raise ProtocolError(f"frame has serialize type {serialize_type}; known are 0 (JSON) and 1 (ROCKETMQ)")


def ext_strings(ext: Mapping[str, object]) -> dict[str, str]:
    """`ext` with every value as text: true, false, decimal numbers; leaves out None, as Java does.
    Raises TypeError for other types."""
    texts: dict[str, str] = {}
    for name, value in ext.items():
        if value is None:
            continue
        if isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, str):
            texts[name] = value
        elif isinstance(value, int):
            texts[name] = str(int(value))
        elif isinstance(value, float):
            texts[name] = str(value)
        else:
            raise TypeError(f"ext field {name[:64]!r} is a {type(value).__name__}, not text")
    return texts


def _encode_json(command: RemotingCommand) -> bytes:
    ext: dict[str, str] = command.ext
    try:
        "".join(ext.values())  # the quickest proof that all are strings
    except TypeError:
        ext = ext_strings(ext)
    language = command.language
    # Keys in alphabetical order, as Java writes them.
    header: dict[str, object] = {"code": command.code}
    if ext:
        header["extFields"] = ext
    header["flag"] = command.flag
    header["language"] = _LANGUAGE_NAMES[language] if language in _LANGUAGES else "OTHER"
    header["opaque"] = command.opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    return orjson.dumps(header)


def _decode_json(header: bytes, body: Body) -> RemotingCommand:
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"header of {len(header)} bytes is not JSON: {error}") from None
    if type(fields) is not dict:
        raise ProtocolError(f"header of {len(header)} bytes is a JSON {type(fields).__name__}, not an object")
    get = fields.get
    ext = get("extFields")
    if ext is None:
        ext = {}
    else:
        try:
            "".join(ext.values())
        except (TypeError, AttributeError):
            if type(ext) is not dict:
                raise ProtocolError(f"extFields is a JSON {type(ext).__name__}, not an object") from None
            try:
                ext = ext_strings(ext)
            except TypeError as error:
                raise ProtocolError(str(error)) from None
    command = _new(RemotingCommand)
    command.code = code = get("code", 0)
    command.opaque = opaque = get("opaque", 0)
    command.flag = flag = get("flag", 0)
    command.version = version = get("version", 0)
    if not (type(code) is type(opaque) is type(flag) is type(version) is int):
        for name in ("code", "opaque", "flag", "version"):
            setattr(command, name, _whole(fields, name))
    language = get("language")
    if type(language) is str:
        command.language = _LANGUAGE_BY_NAME.get(language, _OTHER)
    else:
        command.language = language if type(language) is int and language in _LANGUAGES else _OTHER
    remark = get("remark")
    command.remark = remark if remark is None or type(remark) is str else str(remark)
    command.ext = ext
    command.body = body
    command.serialize_type = SERIALIZE_JSON
    return command


def _whole(fields: dict[str, object], name: str) -> int:
    """A number of the header as fastjson reads it: absent and null are 0, a string of digits is a number."""
    value = fields.get(name)
    if value is None:
        return 0
    if type(value) is int:
        return value
    if type(value) is str:
        try:
            number = int(value)
        except ValueError:
            number = _NONE
        # In this form it could be longer than what an answer can repeat.
        if -_NONE <= number < _NONE:
            return number
    raise ProtocolError(f"header field {name} is {str(value)[:40]!r}, not a whole number")


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = command.remark.encode() if command.remark else b""
    entries = []
    for name, value in ext_strings(command.ext).items():
        key, text = name.encode(), value.encode()
        entries.append(_ENTRY_KEY.pack(len(key)) + key + _INT32.pack(len(text)) + text)
    ext = b"".join(entries)
    return b"".join(
        (
            _BINARY_FIXED.pack(command.code, command.language, command.version, command.opaque, command.flag),
            _INT32.pack(len(remark)),
            remark,
            _INT32.pack(len(ext)),
            ext,
        )
    )


def _decode_binary(header: bytes, body: Body) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(header)
        remark, position = _binary_text(header, _BINARY_FIXED.size, _INT32, "remark")
        (ext_bytes,) = _INT32.unpack_from(header, position)
        position += 4
        if ext_bytes != len(header) - position:
            raise ProtocolError(
                f"ext announces {ext_bytes} bytes, {len(header) - position} are left in the header"
            )
        ext: dict[str, str] = {}
        while position < len(header):
            name, position = _binary_text(header, position, _ENTRY_KEY, "ext key")
            value, position = _binary_text(header, position, _INT32, "ext value")
            ext[name] = value
    except struct.error:
        raise ProtocolError(f"binary header of {len(header)} bytes ends inside a field") from None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"binary header is not UTF-8: {error.reason} at byte {error.start}") from None
    return RemotingCommand(
        code,
        ext,
        body,
        opaque=opaque,
        flag=flag,
        remark=remark or None,
        language=language if language in _LANGUAGES else _OTHER,
        version=version,
        serialize_type=SERIALIZE_ROCKETMQ,
    )


def _binary_text(header: bytes, position: int, length_field: struct.Struct, what: str) -> tuple[str, int]:
    (size,) = length_field.unpack_from(header, position)
    start = position + length_field.size
    if not 0 <= size <= len(header) - start:
        raise ProtocolError(f"{what} announces {size} bytes, {len(header) - start} are left in the header")
    return header[start : start + size].decode(), start + size


class PendingCall(Protocol):
    """A request of ours that waits for its answer: a future, or whatever ends like one."""

    def done(self) -> bool: ...

    def set_result(self, result: RemotingCommand, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...
