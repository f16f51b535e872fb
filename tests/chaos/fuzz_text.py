"""Fuzz targets of the clients' wire and of texts: frames, headers, bodies, properties, expressions, YAML."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import types
import typing
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import haservice.dledger
import haservice.remoting
from haservice.access.accounts import parse_file
from haservice.bounds import BY_NAME, TextBytes
from haservice.broker.pull.sql_filter import SqlFault, compile_filter
from haservice.broker.pull.sql_values import EvaluationFault
from haservice.configuration.properties import parse, rewritten
from haservice.configuration.yaml_document import YamlDocument
from haservice.errors import ConfigError, ProtocolError, RequestError
from haservice.remoting.bodies.clients import (
    ConsumerData,
    ConsumerOffsetWrapper,
    DataVersion,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    TopicConfig,
    TopicConfigWrapper,
)
from haservice.remoting.bodies.registration import RegisterBrokerBody
from haservice.remoting.command import RemotingCommand, decode, encode
from haservice.remoting.fastjson import BodyUnreadable, ObjectKey, dumps, loads
from haservice.remoting.frame import FRAME_BYTES_MAX, REQUEST_HEADER_BYTES_MAX, FrameReader
from haservice.remoting.headers.clients import ExtHeader, SendMessageHeader, wire_name
from haservice.remoting.json_body import JSONBody
from tests.chaos.fuzz import Target
from tests.chaos.fuzz_wire import sliced

_JSON = (b'"', b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"1e400", b"-0", b"18446744073709551616")
_DIALECT = (
    *_JSON,
    b"{0:",
    b"{{",
    b'{"$ref":"$"}',
    b'{"$ref":"$.a[0]"}',
    b"\\u0000",
    b"\\ud800",
    b"\xed\xa0\x80",
    '"ü"'.encode(),
)


def _subclasses(cls: Any) -> list[Any]:
    found = []
    for one in cls.__subclasses__():
        found += [one, *_subclasses(one)]
    # A dataclass with slots is made twice; the first one has no fields of its own yet.
    named = {one.__qualname__: one for one in found if dataclasses.is_dataclass(one)}
    return [named[name] for name in sorted(named)]


for package in (haservice.remoting, haservice.dledger):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

BODIES = _subclasses(JSONBody)
HEADERS = _subclasses(ExtHeader)


# -- frames and commands ---------------------------------------------------------------------------


def _frames(data: bytes) -> object:
    if not data:
        return None
    outcomes = []
    for pieces in ([data[1:]], sliced(data[1:], data[0])):
        reader = FrameReader()
        frames = []
        refused = False
        for piece in pieces:
            try:
                frames += [(kind, header, bytes(body)) for kind, header, body in reader.feed(piece)]
            except ProtocolError:
                refused = True
            assert reader.pending_bytes <= FRAME_BYTES_MAX
            if reader.error is not None:
                refused = True
                break
        outcomes.append((frames, refused))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] == _plain_frames(data[1:])
    frames, refused = outcomes[0]
    return min(len(frames), 4), refused


def _plain_frames(stream: bytes) -> tuple[list[tuple[int, bytes, bytes]], bool]:
    """The frames that the stream begins with, and whether what follows announces something impossible."""
    frames = []
    at = 0
    while len(stream) - at >= 4:
        length = int.from_bytes(stream[at : at + 4], "big")
        if not 4 <= length <= FRAME_BYTES_MAX - 4:
            return frames, True
        if len(stream) - at < 8:
            break
        header_bytes = int.from_bytes(stream[at + 5 : at + 8], "big")
        if header_bytes > min(length - 4, REQUEST_HEADER_BYTES_MAX):
            return frames, True
        end = at + 4 + length
        if end > len(stream):
            break
        body_at = at + 8 + header_bytes
        frames.append((stream[at + 4], stream[at + 8 : body_at], stream[body_at:end]))
        at = end
    return frames, False


def _commands() -> list[RemotingCommand]:
    send = {"a": "group", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000"}
    made = [
        RemotingCommand.request(310, {**send, "h": "0", "i": "TAGS\x01t", "j": "0", "k": "false"}, b"body"),
        RemotingCommand.request(105, {"topic": "TopicTest"}),
        RemotingCommand(0, {}, b"x" * 50, flag=1, remark="fine", opaque=7),
        RemotingCommand.request(34, {}, b'{"clientID":"c"}', oneway=True),
    ]
    binary = [RemotingCommand(11, {"queueId": "3", "leer": ""}, opaque=-1, serialize_type=1, remark="r")]
    return made + binary


def _frame_seeds() -> list[bytes]:
    frames = [encode(command) for command in _commands()]
    return [*(b"\0" + frame for frame in frames), b"\1" + frames[0] + frames[1], b"\2" + b"".join(frames)]


def _command(data: bytes) -> object:
    """First byte: the serialize type; the rest is the header."""
    if not data:
        return None
    command = decode(data[0] % 3, data[1:], b"")
    assert all(type(name) is type(value) is str for name, value in command.ext.items())
    answer = command.answer(0, "remark")
    again = FrameReader().feed(encode(answer))
    kind, header, body = again[0]
    read = decode(kind, header, body)
    assert (read.opaque, read.flag, read.remark) == (command.opaque, 1, "remark")
    repr(command)
    return command.serialize_type, bool(command.ext), command.remark is None, command.language


def _command_seeds() -> list[bytes]:
    seeds = []
    for command in _commands():
        ((kind, header, _),) = FrameReader().feed(encode(command))
        seeds.append(bytes((kind,)) + header)
    return seeds


def _headers(data: bytes) -> object:
    """First byte: which header; then values for its fields, with NULs between."""
    if not data:
        return None
    values = data[1:].decode("utf-8", "replace").split("\0")
    which = data[0] % (len(HEADERS) + 1)
    if which == len(HEADERS):
        code = 310 if len(values) % 2 else 10
        names: Sequence[str] = (
            "abcdefghijklm" if code == 310 else [*map(_send_name, SendMessageHeader._fields)]
        )
        sent = SendMessageHeader.decode(code, dict(zip(names, values, strict=False)))
        assert SendMessageHeader.decode(code, sent.encode(code)) == sent
        return "send", code
    header = HEADERS[which]
    names = [header.WIRE_NAMES.get(one.name) or wire_name(one.name) for one in dataclasses.fields(header)]
    read = header.decode(dict(zip(names, values, strict=False)))
    assert header.decode(read.encode()) == read
    for field in dataclasses.fields(header):
        bounds, value = BY_NAME.get(str(field.type).removesuffix(" | None")), getattr(read, field.name)
        if isinstance(bounds, TextBytes):
            assert value is None or bounds.read(value) == value, (field.name, value)
        else:
            assert bounds is None or value is None or bounds.low <= value <= bounds.high, (field.name, value)
    return which


def _send_name(field: str) -> str:
    return wire_name(field.removesuffix("_ms"))


def _header_seeds() -> list[bytes]:
    by_kind = {"str": b"TopicTest", "I32": b"3", "I64": b"1700000000000", "bool": b"true"}
    by_kind |= {
        kind: b"n" * one.most if isinstance(one, TextBytes) else b"%d" % one.high
        for kind, one in BY_NAME.items()
    }
    seeds = []
    for number, header in enumerate(HEADERS):
        kinds = [str(one.type).removesuffix(" | None") for one in dataclasses.fields(header)]
        seeds.append(bytes((number,)) + b"\0".join(by_kind[kind] for kind in kinds))
    send = (
        b"group",
        b"Topic",
        b"TBW102",
        b"4",
        b"0",
        b"0",
        b"1700",
        b"0",
        b"TAGS\x01t",
        b"0",
        b"false",
        b"3",
    )
    return [
        *seeds,
        bytes((len(HEADERS),)) + b"\0".join((*send, b"false")),
        bytes((len(HEADERS),)) + b"\0".join(send),
    ]


# -- JSON ------------------------------------------------------------------------------------------


def _fastjson(data: bytes) -> object:
    tree = loads(data)
    if _is_plain(tree):
        text = dumps(tree)
        assert loads(text) == tree
        assert loads(dumps(tree, ascii_only=True)) == tree
        assert loads(dumps(tree, pretty=True)) == tree
    return type(tree), len(data) > 100, b"$ref" in data


def _is_plain(tree: Any) -> bool:
    """Whether it reads back as it is: no number that JSON does not have, no text that is a reference."""
    waiting, seen = [tree], 0
    while waiting:
        node = waiting.pop()
        seen += 1
        if seen > 5000:
            return False
        if isinstance(node, float) and not math.isfinite(node):
            return False
        if isinstance(node, dict):
            if "$ref" in node:
                return False
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return True


def _json_seeds() -> list[bytes]:
    return [
        b'{"a":[1,2.5,null,true,"x\\u00e4"],"b":{}}',
        b'{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}',
        b'{"t":{{"brokerName":"b","queueId":0,"topic":"T"}:9}}',
        b'{"a":[{"b":1}],"c":{"$ref":"$.a[0]"}}',
        b'[{"x":{"$ref":"$"}}]',
        b"[" * 30 + b"]" * 30,
    ]


def _bodies(data: bytes) -> object:
    """First byte: which body."""
    if not data:
        return None
    kind = BODIES[data[0] % len(BODIES)]
    body = kind.decode(data[1:])
    if _has_odd_number(body):
        return kind.__name__, "odd"
    again = kind.decode(body.encode())
    assert again == body, (body, again)
    assert kind.decode(body.encode(pretty=True)) == body
    return kind.__name__


def _has_odd_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if dataclasses.is_dataclass(value):
        return any(_has_odd_number(getattr(value, one.name)) for one in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return any(map(_has_odd_number, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_odd_number, value))


def _body_seeds() -> list[bytes]:
    subscription = SubscriptionData("TopicTest", "a || b", "TAG", 17, ("a", "b"), (97, 98))
    consumer = ConsumerData("group", subscription_data_set=(subscription,))
    special = [
        HeartbeatData("10.0.0.1@7", (ProducerData("p"),), (consumer,)),
        RegisterBrokerBody(TopicConfigWrapper(DataVersion(1, 2), {"T": TopicConfig("T")}), ("f",)),
        ConsumerOffsetWrapper({"T@g": {0: 5, 1: 2**63 - 1}}),
    ]
    seeds = [bytes((BODIES.index(type(body)),)) + body.encode() for body in special]
    for number, kind in enumerate(BODIES):
        seeds.append(bytes((number,)) + dumps(_sample(kind)))
    return seeds


def _sample(kind: Any) -> Any:
    """A tree with something in every member."""
    hints = typing.get_type_hints(kind)
    tree = {}
    for one in dataclasses.fields(kind):
        name = (one.metadata.get("names") or (wire_name(one.name),))[0]
        tree[name] = _sample_value(hints[one.name])
    return tree


def _sample_value(hint: Any) -> Any:
    scalar = {int: 7, float: 0.5, bool: True, str: "text", bytes: "dGV4dA=="}.get(hint)
    if scalar is not None:
        return scalar
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return _sample(hint)
    if origin in (types.UnionType, typing.Union):
        return _sample_value(next(one for one in arguments if one is not type(None)))
    if issubclass(origin, Sequence):
        return [_sample_value(arguments[0])]
    assert issubclass(origin, Mapping), hint
    key = arguments[0]
    plain = {int: 3, str: "key"}.get(key)
    value = _sample_value(arguments[1])
    if plain is None:
        encoded = key.from_tree(_sample(key)).encode().decode()
        return {ObjectKey(encoded): value}
    return {plain: value}


def _registrations(data: bytes) -> object:
    """First bit: the bytes as they are, or compressed on the way in."""
    if not data:
        return None
    compressed = zlib.compress(data[1:], 1) if data[0] & 1 else data[1:]
    body = RegisterBrokerBody.decode_compressed(compressed)
    again = RegisterBrokerBody.decode_compressed(body.encode_compressed())
    assert again == body
    return data[0] & 1, min(len(body.topics.topic_config_table), 3), bool(body.filter_servers)


def _registration_seeds() -> list[bytes]:
    table = {name: TopicConfig(name, 4, 4) for name in ("A", "%RETRY%g", "SCHEDULE_TOPIC_XXXX")}
    body = RegisterBrokerBody(TopicConfigWrapper(DataVersion(1, 2), table), ("f",)).encode_compressed()
    return [b"\0" + body, b"\1" + zlib.decompress(body)]


# -- texts -----------------------------------------------------------------------------------------


def _properties(data: bytes) -> object:
    """What is read, and that a rewriting changes what it is to change and nothing else."""
    text = data.decode("utf-8", "replace")
    read = parse(text, "file")
    changes = {"brokerRole": "SLAVE", "x": " a\\b\nc\u00e4\U0001f600=:"}
    again = parse(rewritten(text, changes), "file")
    for key, value in changes.items():
        assert again[key].value == value, f"{key} is {again[key].value!r} after it was set to {value!r}"
    others = {key: entry.value for key, entry in read.items() if key not in changes}
    assert {key: entry.value for key, entry in again.items() if key not in changes} == others
    return min(len(read), 5), bool(read.warnings), "\\" in text


def _property_seeds() -> list[bytes]:
    return [
        b"brokerName=broker-a\nbrokerId = 0\n# comment\n! other\nbrokerRole: ASYNC_MASTER\r\n",
        b"key\\ with\\ blanks=value\\u00e4\\\n   continued \\\\\nx=1\nx=2\n",
        b"a=b\\",
        b"  spaced   value here  \n\n\tnext\tone\\\r\n\t more\r",
        b"\\u0041=\\ud83d\\ude00\n",
    ]


_VALUES = {
    "a": "5",
    "b": "x",
    "yes": "true",
    "big": "3000000000",
    "half": "0.5",
    "long": "9" * 400,
    "e": "1e400",
}


def _sql(data: bytes) -> object:
    compiled = compile_filter(data.decode("utf-8", "replace"))
    matches = compiled.matches(_VALUES.get)
    assert type(matches) is bool
    try:
        value = compiled.evaluate(_VALUES.get)
    except EvaluationFault:
        return "fault"
    return type(value), matches, bool(compiled.unread)


def _sql_seeds() -> list[bytes]:
    return [
        b"a > 4 AND b = 'x' OR NOT (half < .6)",
        b"a BETWEEN 1 AND 5.5e0 AND b IN ('x', 'y''z') -- comment\n",
        b"no IS NULL AND yes = TRUE AND big > 2147483648L",
        b"((((a = - -5))))",
        b"b NOT IN ('y') /* comment */ AND a <> +3",
    ]


def _yaml(data: bytes) -> object:
    document = YamlDocument("acl.yml", data.decode("utf-8", "replace"))
    found = parse_file(document)
    return min(len(found.accounts), 3), bool(found.white), found.blank, bool(found.warnings)


def _yaml_seeds() -> list[bytes]:
    return [
        b"globalWhiteRemoteAddresses:\n- 10.10.103.*\naccounts:\n"
        b"- accessKey: RocketMQ\n  secretKey: 12345678\n  whiteRemoteAddress: '*'\n  admin: false\n"
        b"  defaultTopicPerm: DENY\n  topicPerms:\n  - topicA=DENY\n"
        b"dataVersion:\n- counter: 3\n  timestamp: 1597245645000\n",
        b"accounts: []\n",
        b"{accounts: [{accessKey: aaaaaaa, secretKey: bbbbbbb, admin: true}]}",
    ]


_WORDS = (b"=", b":", b"\\", b"\\\n", b"\n", b"\r", b"#", b"!", b"\\u0041", b"brokerRole", b"x=")
_SQL_WORDS = (
    b" AND ",
    b" OR ",
    b"NOT ",
    b"(",
    b")",
    b"'",
    b" IN ",
    b" BETWEEN ",
    b" IS NULL",
    b"1e9",
    b"--",
    b"/*",
    b"-",
)
_YAML_WORDS = (
    b"- ",
    b": ",
    b"{",
    b"[",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!int ",
    b"!!python/object:os.system ",
    b"? ",
    b"|\n",
)

TARGETS = [
    Target("frames", _frames, _frame_seeds, weight=2.0),
    Target("command", _command, _command_seeds, allowed=(ProtocolError,), tokens=_JSON, weight=2.0),
    Target(
        "headers",
        _headers,
        _header_seeds,
        allowed=(RequestError,),
        tokens=(b"\0", b"-", b"2147483648"),
        weight=2.0,
    ),
    Target("fastjson", _fastjson, _json_seeds, allowed=(BodyUnreadable,), tokens=_DIALECT, weight=2.0),
    Target("bodies", _bodies, _body_seeds, allowed=(BodyUnreadable,), tokens=_DIALECT, weight=2.0),
    Target("registrations", _registrations, _registration_seeds, allowed=(BodyUnreadable,), weight=0.6),
    Target("properties", _properties, _property_seeds, allowed=(ConfigError,), tokens=_WORDS, weight=1.0),
    Target("sql", _sql, _sql_seeds, allowed=(SqlFault,), tokens=_SQL_WORDS, weight=1.0),
    Target("acl_yaml", _yaml, _yaml_seeds, allowed=(ConfigError,), tokens=_YAML_WORDS, weight=0.03),
]
