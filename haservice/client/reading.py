"""Reads queues as they are: for tools and jobs.  Consumers are in haservice.client.consumer."""

from __future__ import annotations

from collections.abc import Iterator

from commitlog.kernel import records
from haservice.client.admin import Admin
from haservice.client.message import decode_all, uncompressed
from haservice.client.raw_sends import SendQueue
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import QueueHeader, SearchOffsetHeader

PULL_COUNT = 32


def from_queue(
    admin: Admin,
    topic: str,
    queue: SendQueue,
    group: str,
    offset: int | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    expression: str = "*",
) -> Iterator[records.StoredMessage]:
    """The messages of one queue, from `offset` (or a time, or the first) to its current end, or a time.

    For a tag expression the broker sends messages that may match; this yields those that do.  For a time a stock 4.9
    broker finds the message nearest to it, and any of one millisecond: this reads from and to one more.
    """
    where = QueueHeader(topic, queue.queue_id)
    end = admin.offset(queue.addr, RequestCode.GET_MAX_OFFSET, where)
    tags = wanted_tags(expression)
    if end_ms is not None:
        search = SearchOffsetHeader(topic, queue.queue_id, end_ms, SearchOffsetHeader.LOWER)
        end = min(end, admin.offset(queue.addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search) + 1)
    low_ms = begin_ms if offset is None else None
    if low_ms is not None:
        search = SearchOffsetHeader(topic, queue.queue_id, max(0, low_ms - 1), SearchOffsetHeader.LOWER)
        offset = admin.offset(queue.addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    if offset is None:
        offset = admin.offset(queue.addr, RequestCode.GET_MIN_OFFSET, where)
    while offset < end:
        count = min(PULL_COUNT, end - offset)
        pulled = admin.pull(queue.addr, topic, queue.queue_id, offset, count, group, expression)
        if pulled.code == ResponseCode.SUCCESS:
            for message in decode_all(pulled.records):
                stored_ms = message.store_timestamp_ms
                if (
                    message.queue_offset < end
                    and (low_ms is None or stored_ms >= low_ms)
                    and (end_ms is None or stored_ms < end_ms)
                    and (not tags or tag_of(message) in tags)
                ):
                    yield message
        if pulled.next_offset <= offset:
            return  # no more messages: retention took them, or the broker holds fewer now
        offset = pulled.next_offset


def wanted_tags(expression: str) -> frozenset[str]:
    """`TagA || TagB` → both tags; empty for `*`, which wants all."""
    if expression.strip() in ("", "*"):
        return frozenset()
    return frozenset(tag.strip() for tag in expression.split("||") if tag.strip())


def tag_of(message: records.StoredMessage) -> str | None:
    return records.decode_properties(message.properties).get("TAGS")


def body_of(message: records.StoredMessage) -> bytes:
    """The body as its producer had it, if possible."""
    return uncompressed(message.body, message.sys_flag, message.message_id)
