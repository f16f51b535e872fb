"""Reading messages back: what is in a queue, and a message as plain values."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commitlog.kernel import layout, records
from haservice.admin.calls import Admin
from haservice.admin.commands.messages.sending import Queue
from haservice.admin.explain import ACL_REFUSAL
from haservice.admin.output import echo
from haservice.errors import AnswerError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import QueueHeader, SearchOffsetHeader

PULL_COUNT = 32

# No client may send a larger body, compressed or not (maxMessageSize's default).
INFLATED_BYTES_MAX = 64 * 1024 * 1024
SYS_COMPRESSION_MASK = 0x700
ZLIB_KINDS = (0x000, 0x300)


def from_queue(
    admin: Admin,
    topic: str,
    queue: Queue,
    group: str,
    offset: int | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    expression: str = "*",
) -> Iterator[records.StoredMessage]:
    """The messages of one queue, from `offset` (or a time, or the first) to its end as it is now, or a time.

    Of a tag expression the broker sends what may match; what comes from here does.
    """
    where = QueueHeader(topic, queue.queue_id)
    end = admin.offset(queue.addr, RequestCode.GET_MAX_OFFSET, where)
    tags = wanted_tags(expression)
    if end_ms is not None:
        search = SearchOffsetHeader(topic, queue.queue_id, end_ms)
        end = min(end, admin.offset(queue.addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search))
    if offset is None and begin_ms is not None:
        search = SearchOffsetHeader(topic, queue.queue_id, begin_ms)
        offset = admin.offset(queue.addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    if offset is None:
        offset = admin.offset(queue.addr, RequestCode.GET_MIN_OFFSET, where)
    while offset < end:
        count = min(PULL_COUNT, end - offset)
        pulled = admin.pull(queue.addr, topic, queue.queue_id, offset, count, group, expression)
        if pulled.code == ResponseCode.SUCCESS:
            for message in decode_all(pulled.records):
                if message.queue_offset < end and (not tags or tag_of(message) in tags):
                    yield message
        if pulled.next_offset <= offset:
            return  # nothing further is to be had: retention took it, or the broker holds less now
        offset = pulled.next_offset


@contextmanager
def as_far_as_sound(queue: Queue, damaged: list[Queue]) -> Iterator[None]:
    """Damage at which the broker cannot read on in `queue` ends the block; it is told, and `queue` noted."""
    try:
        yield
    except AnswerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR or ACL_REFUSAL in (error.remark or ""):
            raise
        damaged.append(queue)
        echo(f"queue {queue.queue_id} of {queue.broker_name}: {error}", err=True)


def wanted_tags(expression: str) -> frozenset[str]:
    """`TagA || TagB` → both; empty for `*`, which wants all."""
    if expression.strip() in ("", "*"):
        return frozenset()
    return frozenset(tag.strip() for tag in expression.split("||") if tag.strip())


def tag_of(message: records.StoredMessage) -> str | None:
    return records.decode_properties(message.properties).get("TAGS")


def decode_all(body: bytes | memoryview) -> Iterator[records.StoredMessage]:
    """The messages of a pull's body, one behind the other.  Raises CorruptRecord."""
    position = 0
    while position < len(body):
        message = records.decode(body, position)
        yield message
        position += message.size


def body_of(message: records.StoredMessage) -> bytes:
    """The body as its producer had it, where it can be told: zlib is opened, other kinds are left."""
    if (
        not message.sys_flag & layout.SYS_COMPRESSED
        or message.sys_flag & SYS_COMPRESSION_MASK not in ZLIB_KINDS
    ):
        return message.body
    try:
        return zlib.decompressobj().decompress(message.body, INFLATED_BYTES_MAX)
    except zlib.error:
        return message.body


def host_text(host: bytes) -> str:
    ip, port = records.decode_host(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def message_fields(message: records.StoredMessage) -> dict[str, Any]:
    """A message for a program, under the names of stock tools; a body that is no text goes as base64."""
    body = body_of(message)
    try:
        shown = {"body": body.decode()}
    except UnicodeDecodeError:
        shown = {"bodyBase64": base64.b64encode(body).decode()}
    return {
        "msgId": message.message_id,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": host_text(message.born_host),
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "properties": records.decode_properties(message.properties),
        **shown,
    }
