"""The ext fields of each request and answer.  Only the headers know the wire's spelling of them.

Each header is a class with `decode(ext)` and `encode()`.  Its fields have the wire's names in Python's
spelling (`queueId` is `queue_id`).  On the wire every value is text; the annotation says how it is read:

    I32, I64   a whole decimal number that fits        bool   true in any case is true, all else false
    str        any text                                 … | None, or a default: may be absent
    Epoch, …    a number within its bounds, TopicName, …    a text within its bytes: see haservice.bounds

A missing, unreadable or too long field raises RequestError with SYSTEM_ERROR, which names the field.  Unknown fields
are ignored.  The header of a send is read for every message, so it has a decoder of its own, written out.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from haservice.bounds import (
    BY_NAME,
    BrokerId,
    BrokerName,
    ClientId,
    EpochOrNone,
    Expression,
    GroupName,
    ShortText,
    TextTooLong,
    TopicName,
)
from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode

I32 = int
I64 = int

_I32_MAX = 2**31 - 1
_I64_MAX = 2**63 - 1

_Parser = Callable[[str], Any]
# (attribute, wire name, parser or None for text, default) of each field.
_Plan = list[tuple[str, str, _Parser | None, object]]


def _whole(text: str, largest: int) -> int:
    number = int(text)
    if not -largest - 1 <= number <= largest:
        raise ValueError(f"{text[:32]} does not fit")
    return number


_PARSERS: dict[str, _Parser | None] = {
    "str": None,
    "I32": lambda text: _whole(text, _I32_MAX),
    "I64": lambda text: _whole(text, _I64_MAX),
    "bool": lambda text: text.lower() == "true",
    **{name: bounds.read for name, bounds in BY_NAME.items()},
}


def wire_name(name: str) -> str:
    """`queue_id` → `queueId`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class ExtHeader:
    """The base of all headers: reads and writes them by a plan, made once per class from its annotations."""

    __slots__ = ()

    # Wire names other than the field's name in camel case.
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        values = []
        for _, name, parse, default in _plan(cls):
            text = ext.get(name)
            if text is None:
                if default is dataclasses.MISSING:
                    raise _missing(name)
                values.append(default)
            elif parse is None:
                values.append(text)
            else:
                try:
                    values.append(parse(text))
                except ValueError as error:
                    raise _unreadable(name, text, error) from None
        return cls(*values)

    def encode(self) -> dict[str, str]:
        """The ext fields, without those that are None."""
        ext: dict[str, str] = {}
        for attribute, name, _, _ in _plan(type(self)):
            value = getattr(self, attribute)
            if value is True or value is False:
                ext[name] = "true" if value else "false"
            elif value is not None:
                ext[name] = str(value)
        return ext


_plans: dict[type, _Plan] = {}


def _plan(cls: type[ExtHeader]) -> _Plan:
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = []
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            name = cls.WIRE_NAMES.get(field.name) or wire_name(field.name)
            kind = str(field.type).removesuffix(" | None")
            plan.append((field.name, name, _PARSERS[kind], field.default))
    return plan


def _missing(name: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, f"field {name} of the request header is missing")


def _unreadable(name: str, text: str, error: ValueError | None = None) -> RequestError:
    if isinstance(error, TextTooLong):
        return RequestError(ResponseCode.SYSTEM_ERROR, f"field {name} of the request header {error}")
    bound = str(error).partition(" within ")[2]
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"field {name} of the request header is {text[:32]!r}, not a whole number in range"
        + (f": {bound}" if bound else ""),
    )


# Sending: 10, 310, 320


class SendMessageHeader(NamedTuple):
    """The header of a send, in either of its two spellings."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int  # < 0: the broker chooses
    sys_flag: int
    born_timestamp_ms: int
    flag: int
    properties: str
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False

    @staticmethod
    def decode(code: int, ext: Mapping[str, str]) -> SendMessageHeader:
        """310 and 320 name their fields a to m, 10 in full."""
        names = _SEND_NAMES if code == _SEND_MESSAGE else _SEND_V2_NAMES
        group, topic, default, queues, queue, sys_flag, born, flag, properties, times, unit, limit, batch = (
            names
        )
        try:
            get = ext.get
            numbers = (
                int(ext[queues]),
                int(ext[queue]),
                int(ext[sys_flag]),
                int(ext[flag]),
                int(get(times) or 0),
                int(ext[born]),
            )
            _CHECK_RANGES(*numbers)
            text = get(limit)
            return _new_send(
                SendMessageHeader,
                (
                    _group_name(ext[group]),
                    ext[topic],  # what sends says of a name that is no topic's is RocketMQ's own text
                    _topic_name(ext[default]),
                    numbers[0],
                    numbers[1],
                    numbers[2],
                    numbers[5],
                    numbers[3],
                    get(properties) or "",
                    numbers[4],
                    get(unit) in _TRUE,
                    _whole(text, _I32_MAX) if text else None,
                    get(batch) in _TRUE,
                ),
            )
        except TextTooLong as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"producer group or default topic {error}"
            ) from None
        except (KeyError, ValueError, struct.error):
            raise _send_fault(names, ext) from None

    def encode(self, code: int) -> dict[str, str]:
        names = _SEND_NAMES if code == _SEND_MESSAGE else _SEND_V2_NAMES
        return {
            name: value if type(value) is str else str(value).lower()
            for name, value in zip(names, self, strict=True)
            if value is not None
        }


_group_name, _topic_name = BY_NAME["GroupName"].read, BY_NAME["TopicName"].read
_SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)
_new_send = tuple.__new__
_CHECK_RANGES = struct.Struct(">iiiiiq").pack  # one call says whether all of them fit
_TRUE = frozenset({"true", "True", "TRUE"})
_SEND_NAMES = tuple(wire_name(name.removesuffix("_ms")) for name in SendMessageHeader._fields)
_SEND_V2_NAMES = tuple("abcdefghijklm")
assert len(_SEND_NAMES) == len(_SEND_V2_NAMES)
_SEND_OPTIONAL = {"properties", "reconsume_times", "unit_mode", "max_reconsume_times", "batch"}
_SEND_TEXTS = {"producer_group", "topic", "default_topic", "properties", "unit_mode", "batch"}


def _send_fault(names: tuple[str, ...], ext: Mapping[str, str]) -> RequestError:
    """The error for the field that cannot be read; it names both spellings."""
    for field, name in zip(SendMessageHeader._fields, names, strict=True):
        text = ext.get(name)
        said = name if len(name) > 1 else f"{name} ({_SEND_NAMES[names.index(name)]})"
        if text is None:
            if field not in _SEND_OPTIONAL:
                return _missing(said)
        elif field not in _SEND_TEXTS and text:
            try:
                _whole(text, _I64_MAX if field == "born_timestamp_ms" else _I32_MAX)
            except ValueError:
                return _unreadable(said, text)
    return RequestError(ResponseCode.SYSTEM_ERROR, "the request header cannot be read")


@dataclass(frozen=True, slots=True)
class SendMessageResponseHeader(ExtHeader):
    """The answer to every stored message; `msg_id` lists the ids of a batch, separated by commas."""

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None


# Pulling and offsets


@dataclass(slots=True)
class PullMessageHeader(ExtHeader):
    """11.  Not frozen: every pull makes one, and freezing would take half of that time."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64 = 0
    suspend_timeout_millis: I64 = 0
    sub_version: I64 = 0
    subscription: Expression | None = None
    expression_type: ShortText | None = None


@dataclass(frozen=True, slots=True)
class PullMessageResponseHeader(ExtHeader):
    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64


@dataclass(frozen=True, slots=True)
class QueryConsumerOffsetHeader(ExtHeader):
    """14."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32


@dataclass(frozen=True, slots=True)
class UpdateConsumerOffsetHeader(ExtHeader):
    """15."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32
    commit_offset: I64


@dataclass(frozen=True, slots=True)
class SearchOffsetHeader(ExtHeader):
    """29; milliseconds.  RocketMQ 4.9 sends no boundary; 5.x UPPER, the last at or before then (else 0), or LOWER."""

    LOWER: ClassVar[str] = "LOWER"  # the first at or after that time; else the queue's end
    topic: TopicName
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


@dataclass(frozen=True, slots=True)
class QueueHeader(ExtHeader):
    """30, 31, 32."""

    topic: TopicName
    queue_id: I32


@dataclass(frozen=True, slots=True)
class OffsetResponseHeader(ExtHeader):
    """14, 29, 30, 31."""

    offset: I64


@dataclass(frozen=True, slots=True)
class TimestampResponseHeader(ExtHeader):
    """32."""

    timestamp: I64


# Single messages


@dataclass(frozen=True, slots=True)
class ViewMessageHeader(ExtHeader):
    """33; the offset is a physical one."""

    offset: I64


@dataclass(frozen=True, slots=True)
class QueryMessageHeader(ExtHeader):
    """12; the times are in milliseconds."""

    topic: TopicName
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64


@dataclass(frozen=True, slots=True)
class QueryMessageResponseHeader(ExtHeader):
    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64
    index_mending: bool | None = None  # ours: messages may be missing


# Membership


@dataclass(frozen=True, slots=True)
class UnregisterClientHeader(ExtHeader):
    """35; one of the groups, or both."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}

    client_id: ClientId
    producer_group: GroupName | None = None
    consumer_group: GroupName | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeader(ExtHeader):
    """38 and, from us to a client, 40."""

    consumer_group: GroupName


# Topics


@dataclass(frozen=True, slots=True)
class CreateTopicHeader(ExtHeader):
    """17."""

    topic: TopicName
    default_topic: TopicName
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False


@dataclass(frozen=True, slots=True)
class TopicHeader(ExtHeader):
    """202, 215, 300: a topic and nothing else."""

    topic: TopicName


# The nameserver


@dataclass(frozen=True, slots=True)
class RegisterBrokerHeader(ExtHeader):
    """103.  `body_crc32` is of the body as sent, without the sign bit; 0 is not checked.

    `epoch` is ours: the last epoch in the broker's log, -1 while it has none.
    """

    broker_name: BrokerName
    broker_addr: ShortText
    cluster_name: BrokerName
    ha_server_addr: ShortText
    broker_id: BrokerId
    compressed: bool = False
    body_crc32: I32 = 0
    epoch: EpochOrNone | None = None


@dataclass(frozen=True, slots=True)
class RegisterBrokerResponseHeader(ExtHeader):
    """Only a slave whose master is registered gets these fields."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerHeader(ExtHeader):
    """104 and 322."""

    broker_name: BrokerName
    broker_addr: ShortText
    cluster_name: BrokerName
    broker_id: I64


@dataclass(frozen=True, slots=True)
class QueryDataVersionResponseHeader(ExtHeader):
    changed: bool


@dataclass(frozen=True, slots=True)
class RouteHeader(ExtHeader):
    """105."""

    topic: TopicName
    accept_standard_json_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopicInNamesrvHeader(ExtHeader):
    """216; with a cluster only that cluster's brokers."""

    topic: TopicName
    cluster_name: BrokerName | None = None


@dataclass(frozen=True, slots=True)
class ClusterHeader(ExtHeader):
    """224."""

    cluster: BrokerName


@dataclass(frozen=True, slots=True)
class BrokerNameHeader(ExtHeader):
    """205 and 327."""

    broker_name: BrokerName


@dataclass(frozen=True, slots=True)
class WipeWritePermResponseHeader(ExtHeader):
    """205: how many topics lost the permission."""

    wipe_topic_count: I32


@dataclass(frozen=True, slots=True)
class AddWritePermResponseHeader(ExtHeader):
    """327: how many topics got it back."""

    add_topic_count: I32
