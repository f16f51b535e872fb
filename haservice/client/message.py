"""Messages as applications see them: Message before it is sent, Received after it was read.  Pure.

Message   → checked and encoded for the wire: properties, a compressed body
Received  ← a record from a pull: its body as the producer had it, its properties as values
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from commitlog.kernel import layout, records
from haservice.bounds import INT_MAX
from haservice.client.errors import MessageIllegal
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import MessageQueue

logger = logging.getLogger(__name__)
_throttle = LogThrottle()

TAGS = "TAGS"
KEYS = "KEYS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQUE_KEY = "UNIQ_KEY"
RETRY_TOPIC = "RETRY_TOPIC"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"

# What brokers accept by default.
BODY_BYTES_MAX = 4 * 1024 * 1024
TOPIC_CHARS_MAX = 127
# Bodies from this size on are compressed as in Java's clients, and marked as 4.9.4 and later do.
COMPRESS_ABOVE_BYTES = 4096
ZLIB_LEVEL = 5
SYS_COMPRESSION_MASK = 0x700
SYS_ZLIB = 0x300
_ZLIB_KINDS = (0x000, SYS_ZLIB)
# No client may send a larger body, compressed or not (many times maxMessageSize's default).
INFLATED_BYTES_MAX = 64 * 1024 * 1024

# Only the library sets these.
RESERVED = frozenset(
    {TAGS, KEYS, WAIT, DELAY, UNIQUE_KEY, RETRY_TOPIC, "TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID"}
)
_BYTES_LIKE = (bytes, bytearray, memoryview)
_STR_OR_INT = (str, int)
_COLLECTIONS = (list, tuple, set, frozenset)


@dataclass(frozen=True, slots=True)
class Message:
    """What an application sends.

    `tags`              one tag, by which consumers choose (RocketMQ's name for it)
    `keys`              keys to find the message by; a text, or several
    `properties`        the application's own, for SQL92 expressions
    `delay_level`       1 to 18: delivered after messageDelayLevel's time (1s 5s 10s 30s 1m … 2h); 0 at once
    `order_key`         messages with one order key go to one queue, in the order in which they are sent
    `wait_store_msg_ok` False: a SYNC_MASTER answers without waiting for flush and slave
    `flag`              a number of the application's own
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int = 0
    order_key: str | int | None = None
    wait_store_msg_ok: bool = True
    flag: int = 0

    def check(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        """Raises MessageIllegal for what a broker would refuse, or a reader could not read."""
        self._check_types()
        check_topic(self.topic)
        if not self.body:
            raise MessageIllegal(f"a message to topic {self.topic} has no body: brokers take none without")
        if len(self.body) > body_bytes_max:
            raise MessageIllegal(
                f"a body of {len(self.body)} bytes to topic {self.topic} is above {body_bytes_max}: split it, "
                "or raise the broker's maxMessageSize and the producer's max_message_bytes"
            )
        if self.tags != self.tags.strip() or "||" in self.tags:
            raise MessageIllegal(
                f"tags {self.tags!r} of a message to topic {self.topic}: no subscription by tags matches that."
                "  Give one tag, without `||` and without blanks around it"
            )
        if self.delay_level < 0:
            raise MessageIllegal(
                f"delay_level {self.delay_level}: 0 is none, 1 the first of messageDelayLevel"
            )
        if not -INT_MAX - 1 <= self.flag <= INT_MAX or self.delay_level > INT_MAX:
            name = "flag" if self.delay_level <= INT_MAX else "delay_level"
            raise MessageIllegal(
                f"{name} {getattr(self, name)}: it does not fit the 32 bits that a message has for it"
            )
        for name, value in self.properties.items():
            if name in RESERVED:
                raise MessageIllegal(
                    f"property {name} is RocketMQ's own: a field of Message sets it, or none"
                )
            if not name or not value:
                raise MessageIllegal(f"property {name!r}={value!r}: neither name nor value may be empty")

    def _check_types(self) -> None:
        _check_type("topic", self.topic, str, "a str")
        _check_type("body", self.body, _BYTES_LIKE, "bytes: encode a text, for example with .encode()")
        _check_type("tags", self.tags, str, "a str, one tag")
        _check_type("delay_level", self.delay_level, int, "an int")
        _check_type("flag", self.flag, int, "an int")
        if self.order_key is not None:
            _check_type("order_key", self.order_key, _STR_OR_INT, "a str, an int or None")
        if self.keys != () and not isinstance(self.keys, str):
            _check_type("keys", self.keys, _COLLECTIONS, "a str, or a list of them")
            for key in self.keys:
                _check_type("keys", key, str, "a str, or a list of them: this is one of its elements")
        for name, value in self.properties.items():
            _check_type("properties", name, str, "a mapping of str to str: this is one of its names")
            _check_type("properties", value, str, f"a mapping of str to str: this is the value of {name!r}")

    @property
    def key_list(self) -> list[str]:
        """The single keys; a text may hold several, separated by blanks."""
        return (self.keys if isinstance(self.keys, str) else " ".join(self.keys)).split()

    def wire_properties(self) -> dict[str, str]:
        """All properties but UNIQ_KEY.  Raises MessageIllegal for text that would end a property early."""
        found = dict(self.properties)
        keys = self.key_list
        if keys:
            found[KEYS] = " ".join(keys)
        if self.tags:
            found[TAGS] = self.tags
        if self.delay_level:
            found[DELAY] = str(self.delay_level)
        found[WAIT] = "true" if self.wait_store_msg_ok else "false"
        return found


def _check_type(field_name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    if not isinstance(value, kind):
        text = repr(value)
        raise MessageIllegal(
            f"Message.{field_name}: {text[:60]} is of type {type(value).__name__}; it must be {wanted}"
        )


def check_topic(topic: str) -> None:
    """Raises MessageIllegal for a name that no broker takes."""
    name = topic.encode(errors="replace")
    if not records.is_topic(name) or len(name) > TOPIC_CHARS_MAX:
        raise MessageIllegal(
            f"topic {topic[:140]!r}: a name has 1 to {TOPIC_CHARS_MAX} of the letters a-z A-Z 0-9 _ - % |"
        )


def encode_properties(properties: Mapping[str, str]) -> str:
    """Raises MessageIllegal if properties could not be told apart again, or are too long for a record."""
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") > len(properties) - 1:
        bad = [name for name, value in properties.items() if not {"\x01", "\x02"}.isdisjoint(name + value)]
        raise MessageIllegal(
            f"properties {bad}: the characters U+0001 and U+0002 part them on the wire and cannot be in them"
        )
    if not text.isascii():
        _check_encodes(properties)
    if len(text) > layout.PROPERTIES_BYTES_MAX // 4:
        size = len(text.encode())
        if size > layout.PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"properties of {size} bytes are above {layout.PROPERTIES_BYTES_MAX}: move some into the body"
            )
    return text


def _check_encodes(properties: Mapping[str, str]) -> None:
    """Raises MessageIllegal for text with a lone surrogate, which has no bytes on the wire."""
    for name, value in properties.items():
        try:
            (name + value).encode()
        except UnicodeEncodeError as error:
            raise MessageIllegal(
                f"property {name!a}={ascii(value)[:60]}: no UTF-8 ({error.reason}); was it read with surrogateescape?"
            ) from None


def compressed(body: bytes, above_bytes: int = COMPRESS_ABOVE_BYTES) -> tuple[bytes, int]:
    """The body to send, and its sysFlag bits; a body that would not shrink stays as it is."""
    if len(body) < above_bytes:
        return body, 0
    packed = zlib.compress(body, ZLIB_LEVEL)
    return (packed, layout.SYS_COMPRESSED | SYS_ZLIB) if len(packed) < len(body) else (body, 0)


def uncompressed(body: bytes, sys_flag: int, whose: str = "") -> bytes:
    """The body as its producer had it, if possible: opens zlib, leaves other kinds.

    A body that is cut, damaged or too large comes as it is, and an error is logged, now and then.
    """
    if not sys_flag & layout.SYS_COMPRESSED or sys_flag & SYS_COMPRESSION_MASK not in _ZLIB_KINDS:
        return body
    stream = zlib.decompressobj()
    try:
        opened = stream.decompress(body, INFLATED_BYTES_MAX + 1)
    except zlib.error as error:
        reason = str(error)
    else:
        if stream.eof and len(opened) <= INFLATED_BYTES_MAX:
            return opened
        is_cut = len(opened) <= INFLATED_BYTES_MAX
        reason = "its end is missing" if is_cut else f"it unfolds to more than {INFLATED_BYTES_MAX} bytes"
    if _throttle.ready("body"):
        logger.error(
            "compressed body cannot be opened, it comes as it is message=%s bytes=%d reason=%s",
            *(whose, len(body), reason),
        )
    return body


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a consumer gets it; times in milliseconds since 1970, hosts as `ip:port`.

    `msg_id` is the id that producers and Java's clients use (UNIQ_KEY), `offset_msg_id` says where it is
    stored.  `topic` is the one it was sent to, even if it comes from a group's retry topic; `queue` then
    names that.
    """

    topic: str
    body: bytes
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    store_bytes: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    properties: Mapping[str, str]
    sys_flag: int = 0
    flag: int = 0

    @property
    def tags(self) -> str:
        return self.properties.get(TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(KEYS, "").split())

    @property
    def ledger_entry(self) -> tuple[str, str, tuple[int, int] | None]:
        """Topic, id and place as haservice.ledger has them."""
        place = None if self.queue.topic != self.topic else (self.queue.queue_id, self.queue_offset)
        return self.topic, self.msg_id, place

    @classmethod
    def of(cls, record: records.StoredMessage, broker_name: str) -> Self:
        """Makes the message from a record."""
        properties = records.decode_properties(record.properties)
        offset_msg_id = record.message_id
        msg_id = properties.get(UNIQUE_KEY, offset_msg_id)
        topic = record.topic
        if topic.startswith(RETRY_PREFIX):
            topic = properties.get(RETRY_TOPIC, topic)
        return cls(
            topic=topic,
            body=uncompressed(record.body, record.sys_flag, msg_id),
            msg_id=msg_id,
            offset_msg_id=offset_msg_id,
            queue=MessageQueue(record.topic, broker_name, record.queue_id),
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            store_bytes=record.size,
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=host_text(record.born_host),
            store_timestamp_ms=record.store_timestamp_ms,
            store_host=host_text(record.store_host),
            reconsume_times=record.reconsume_times,
            properties=properties,
            sys_flag=record.sys_flag,
            flag=record.flag,
        )


class PulledRecords(NamedTuple):
    """What one pull brought: encoded records, and where to go on."""

    code: int
    records: bytes | memoryview
    next_offset: int
    max_offset: int


def decode_all(body: bytes | memoryview) -> Iterator[records.StoredMessage]:
    """The messages in a pull's body, one behind the other.  Raises CorruptRecord."""
    position = 0
    while position < len(body):
        message = records.decode(body, position)
        yield message
        position += message.size


def host_text(host: bytes) -> str:
    ip, port = records.decode_host(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
