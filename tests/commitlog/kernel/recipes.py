"""Records to judge: sound ones of every kind, and odd ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from commitlog.kernel.layout import AT, MESSAGE_MAGIC_V2, SYS_HOSTS_V6
from commitlog.kernel.records import body_crc, encode, encode_host, stamp
from tests.support.messages import STORE_HOST, message

V6_HOST = encode_host("2001:db8::1", 10911)
TOPIC, QUEUE, QUEUE_OFFSET = "TopicTest", 3, 5


def stored(body: bytes = b"body", offset: int = 0, queue_offset: int = 0, **fields: object) -> bytearray:
    """The record of a message that is stored at `offset`."""
    store_host = fields.pop("store_host", STORE_HOST)
    assert isinstance(store_host, bytes)
    record = encode(message(body, **fields), store_host)
    stamp(record, queue_offset, offset, 1)
    return record


def of_version_2(topic: bytes, offset: int = 0, body: bytes = b"body", queue_offset: int = 0) -> bytearray:
    """What RocketMQ 5.1 writes for a topic that is longer than 127 bytes."""
    head = stored(body, offset, queue_offset, properties=b"")[: AT["body"] + len(body)]
    record = head + struct.pack(">h", len(topic)) + topic + struct.pack(">h", 0)
    struct.pack_into(">ii", record, 0, len(record), MESSAGE_MAGIC_V2)
    return record


@dataclass(frozen=True)
class Lie:
    """Packs `values` at `at`, which counts from the end if it is negative."""

    at: int
    code: str
    value: int

    def tell(self, record: bytearray) -> bytearray:
        struct.pack_into(">" + self.code, record, self.at % len(record), self.value)
        return record


def sound_records(offset: int) -> dict[str, bytearray]:
    """What stock brokers write, of TOPIC where its length allows."""

    def one(body: bytes = b"body", **fields: object) -> bytearray:
        return stored(body, offset, QUEUE_OFFSET, **fields)

    return {
        "ordinary": one(),
        "no body": one(b""),
        "no properties": one(properties=b""),
        "no body, no properties": one(b"", properties=b""),
        "long": one(b"x" * 5000, properties=b"K\x01" + b"v" * 32765),
        "born on IPv6": one(born_host=V6_HOST),
        "stored on IPv6": one(store_host=V6_HOST),
        "both on IPv6": one(born_host=V6_HOST, store_host=V6_HOST),
        "no body, on IPv6": one(b"", properties=b"", born_host=V6_HOST, store_host=V6_HOST),
        "version 2": of_version_2(TOPIC.encode(), offset, queue_offset=QUEUE_OFFSET),
        "a NUL in properties": bytearray(one().replace(b"TAGS", b"TA\0S")),
    }


def odd_records(offset: int) -> dict[str, bytearray]:
    """What no broker writes there; each as long as it says, but for those that lie about that."""
    plain = stored(b"body", offset, QUEUE_OFFSET)
    empty = stored(b"", offset, QUEUE_OFFSET)
    tiny = stored(b"", offset, QUEUE_OFFSET, topic="T", properties=b"")
    topic_at = AT["body"] + len(b"body") + 1
    properties_at = topic_at + len(TOPIC) + 2

    def lying(at: int, code: str, value: int, record: bytearray = plain) -> bytearray:
        return Lie(at, code, value).tell(bytearray(record))

    crc = body_crc(b"body")
    return {
        "body of another CRC": lying(AT["body_crc"], "I", crc ^ 1),
        "CRC with its top bit": lying(AT["body_crc"], "I", crc | 1 << 31),
        "no body, but a CRC": lying(AT["body_crc"], "I", 1, empty),
        "no body, but a CRC's top bit": lying(AT["body_crc"], "I", 1 << 31, empty),
        "queue below 0": lying(AT["queue_id"], "i", -1),
        "number below 0": lying(AT["queue_offset"], "q", -1),
        "belongs elsewhere": lying(AT["physical_offset"], "q", offset + 1),
        "magic of nothing": lying(AT["magic"], "i", 0),
        "magic of version 2": lying(AT["magic"], "i", MESSAGE_MAGIC_V2),
        "size of nothing": lying(0, "i", 0),
        "size below 0": lying(0, "i", -1),
        "a byte too short": lying(0, "i", len(plain) - 1),
        "a byte too long": lying(0, "i", len(plain) + 1),
        "body below 0": lying(AT["body_size"], "i", -1),
        "body a byte too long": lying(AT["body_size"], "i", 5),
        "body beyond all": lying(AT["body_size"], "i", (1 << 31) - 1),
        "head beyond its end": lying(AT["sys_flag"], "i", SYS_HOSTS_V6, tiny),
        "topic of nothing": lying(topic_at - 1, "B", 0),
        "topic of 128 bytes": lying(topic_at - 1, "B", 128),
        "topic beyond its end": lying(topic_at - 1, "B", 127),
        "topic that climbs": plain.replace(TOPIC.encode(), b"../opicTe"),
        "topic with a NUL": plain.replace(TOPIC.encode(), b"Topic\0est"),
        "topic that is not UTF-8": plain.replace(TOPIC.encode(), b"Topic\xffest"),
        "topic of other letters": plain.replace(TOPIC.encode(), "Topi\xe9st".encode() + b"t"),
        "properties below 0": lying(properties_at - 2, "h", -1),
        "properties too short": lying(properties_at - 2, "h", 1),
        "properties too long": lying(properties_at - 2, "h", 300),
        "version 2, topic of nothing": of_version_2(b"", offset),
        "version 2, topic of 256 bytes": of_version_2(b"t" * 256, offset),
        "version 2, topic that climbs": of_version_2(b"../x", offset),
    }
