"""Reading messages back: which queues there are, what is in them, and a message as plain values."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import Any

import click

from commitlog import record
from haservice.admin.calls import Admin
from haservice.admin.options import address
from haservice.admin.sending import Queue
from haservice.errors import RemotingTimeout, RemotingUnreachable
from haservice.remoting.bodies import BrokerData
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers import QueueHeader, SearchOffsetHeader

PULL_COUNT = 32

# No client may send a larger body, compressed or not (maxMessageSize's default).
INFLATED_BYTES_MAX = 64 * 1024 * 1024
SYS_COMPRESSION_MASK = 0x700
ZLIB_KINDS = (0x000, 0x300)


def readable_queues(admin: Admin, topic: str, broker: str | None, queue_id: int | None) -> list[Queue]:
    """The topic's queues, each with whom to read it from: masters, or the slaves of those that are down."""
    if broker is not None and ":" in broker:
        addr = address(broker)
        found = [Queue(q.broker_name, addr, q.queue_id) for q in admin.topic_stats(addr, topic).offset_table]
    else:
        route = admin.route(topic)
        addrs = {
            data.broker_name: _reachable_addr(admin, topic, data)
            for data in route.broker_datas
            if data.broker_addrs and broker in (None, data.broker_name)
        }
        found = [
            Queue(data.broker_name, addrs[data.broker_name], number)
            for data in route.queue_datas
            if data.broker_name in addrs
            for number in range(data.read_queue_nums)
        ]
    found = sorted(queue for queue in found if queue_id in (None, queue.queue_id))
    if not found:
        wanted = f"queue {queue_id}" if queue_id is not None else "queues"
        where = f" on {broker}" if broker else ""
        raise click.ClickException(
            f"topic {topic} has no {wanted}{where}\n  mqadmin topicRoute -t {topic} shows where it is"
        )
    return found


def _reachable_addr(admin: Admin, topic: str, data: BrokerData) -> str:
    """The master if it answers, else the first slave that does, and says so.

    Raises RemotingUnreachable or RemotingTimeout, of the first that was asked, when nobody answers.
    """
    failures: list[RemotingUnreachable | RemotingTimeout] = []
    for broker_id, addr in sorted(data.broker_addrs.items()):
        try:
            admin.offset(addr, RequestCode.GET_MIN_OFFSET, QueueHeader(topic, 0))
        except (RemotingUnreachable, RemotingTimeout) as error:
            failures.append(error)
            continue
        if failures:
            click.echo(f"{failures[0]}: reading {data.broker_name} {broker_id} at {addr} instead", err=True)
        return addr
    raise failures[0]


def from_queue(
    admin: Admin,
    topic: str,
    queue: Queue,
    group: str,
    offset: int | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    expression: str = "*",
) -> Iterator[record.StoredMessage]:
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


def wanted_tags(expression: str) -> frozenset[str]:
    """`TagA || TagB` → both; empty for `*`, which wants all."""
    if expression.strip() in ("", "*"):
        return frozenset()
    return frozenset(tag.strip() for tag in expression.split("||") if tag.strip())


def tag_of(message: record.StoredMessage) -> str | None:
    return record.decode_properties(message.properties).get("TAGS")


def decode_all(records: bytes | memoryview) -> Iterator[record.StoredMessage]:
    """The messages of a pull's body, one behind the other.  Raises CorruptRecord."""
    position = 0
    while position < len(records):
        message = record.decode(records, position)
        yield message
        position += message.size


def body_of(message: record.StoredMessage) -> bytes:
    """The body as its producer had it, where it can be told: zlib is opened, other kinds are left."""
    if (
        not message.sys_flag & record.SYS_COMPRESSED
        or message.sys_flag & SYS_COMPRESSION_MASK not in ZLIB_KINDS
    ):
        return message.body
    try:
        return zlib.decompressobj().decompress(message.body, INFLATED_BYTES_MAX)
    except zlib.error:
        return message.body


def host_text(host: bytes) -> str:
    ip, port = record.decode_host(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def message_fields(message: record.StoredMessage) -> dict[str, Any]:
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
        "properties": record.decode_properties(message.properties),
        **shown,
    }
