"""A hundred thousand messages of every kind, the same in every run, and what became of each."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from commitlog.kernel.records import body_crc, encode_properties
from haservice.client.raw_sends import GROUP, STATUS_BY_CODE, unique_key
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader

BODY_BYTES_MAX = 4 * 1024 * 1024  # maxMessageSize
TOPICS = ("Orders", "Payments", "audit-log", "T_1", "50%25%done")
QUEUES = 4
TAGS = ("", "TagA", "TagB", "new-york", "日本語")
BATCH_MAX = 40
# One message in so many: of up to 64 KiB, of up to 4 MiB.
MEDIUM_EVERY, LARGE_EVERY = 40, 2000
# Of each thousand requests.
BATCHES_OF_1000 = 30
IN_FLIGHT = 64
TIMEOUT_S = 30.0

_ELEMENT_HEAD = struct.Struct(">iiiii")


class Mark(NamedTuple):
    """A message as it can be known again in a log."""

    topic: str
    queue_id: int
    body_bytes: int
    body_crc: int


class Request(NamedTuple):
    """One frame to send, and the messages in it."""

    command: RemotingCommand
    marks: list[Mark]
    body_bytes: int


class Mixture:
    """An endless source of requests; whoever takes them says when it is enough."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pool = memoryview(self._random.randbytes(2 * BODY_BYTES_MAX))
        self._number = 0

    def take(self, messages: int) -> Iterator[Request]:
        """Requests with just so many messages in all."""
        while messages:
            some = self._random
            topic, queue_id = some.choice(TOPICS), some.randrange(QUEUES)
            if messages > 1 and some.randrange(1000) < BATCHES_OF_1000:
                request = self._batch(topic, queue_id, some.randint(2, min(BATCH_MAX, messages)))
            else:
                request = self._single(topic, queue_id)
            messages -= len(request.marks)
            yield request

    def _single(self, topic: str, queue_id: int) -> Request:
        body = self._body(self._size())
        command = _command(RequestCode.SEND_MESSAGE_V2, topic, queue_id, self._properties(), body)
        return Request(command, [_mark(topic, queue_id, body)], len(body))

    def _batch(self, topic: str, queue_id: int, count: int) -> Request:
        elements, marks = [], []
        for _ in range(count):
            body = self._body(self._random.randint(1, 800))
            properties = encode_properties(self._properties())
            size = _ELEMENT_HEAD.size + len(body) + 2 + len(properties)
            head = _ELEMENT_HEAD.pack(size, 0, 0, self._random.randrange(100), len(body))
            elements += [head, body, len(properties).to_bytes(2, "big"), properties]
            marks.append(_mark(topic, queue_id, body))
        joined = b"".join(elements)
        command = _command(RequestCode.SEND_BATCH_MESSAGE, topic, queue_id, {"WAIT": "true"}, joined)
        return Request(command, marks, len(joined))

    def _size(self) -> int:
        self._number += 1
        if self._number % LARGE_EVERY == 1:
            # The first is as large as one may be.
            return BODY_BYTES_MAX if self._number == 1 else self._random.randint(65536, BODY_BYTES_MAX)
        if self._number % MEDIUM_EVERY == 0:
            return self._random.randint(4096, 65536)
        return self._random.choice((1, self._random.randint(2, 128), self._random.randint(129, 4096)))

    def _body(self, size: int) -> memoryview:
        start = self._random.randrange(len(self._pool) - size)
        return self._pool[start : start + size]

    def _properties(self) -> dict[str, str]:
        """Some have tags, up to three keys, a name of their own."""
        some = self._random
        properties = {"UNIQ_KEY": unique_key(0)}
        if tag := some.choice(TAGS):
            properties["TAGS"] = tag
        if keys := some.randrange(4):
            properties["KEYS"] = " ".join(f"key-{some.randrange(5000)}" for _ in range(keys))
        if some.random() < 0.2:
            properties["colour"] = "größer " * some.randrange(1, 20)
        return properties


def _mark(topic: str, queue_id: int, body: memoryview) -> Mark:
    return Mark(topic, queue_id, len(body), body_crc(body))


def _command(
    code: RequestCode, topic: str, queue_id: int, properties: dict[str, str], body: bytes | memoryview
) -> RemotingCommand:
    header = SendMessageHeader(
        producer_group=GROUP,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        flag=0,
        properties=encode_properties(properties).decode(),
        batch=code == RequestCode.SEND_BATCH_MESSAGE,
    )
    return RemotingCommand.request(code, header.encode(code), body)


class Outcome:
    """What was stored, by all answers so far, and with which status."""

    def __init__(self) -> None:
        self.stored: Counter[Mark] = Counter()
        self.statuses: Counter[str] = Counter()
        self.body_bytes = 0

    def add(self, request: Request, code: int) -> None:
        status = STATUS_BY_CODE.get(code, f"CODE_{code}")
        self.statuses[status] += len(request.marks)
        if code in STATUS_BY_CODE:
            self.stored.update(request.marks)
            self.body_bytes += request.body_bytes


def send(addr: str, requests: Iterator[Request], outcome: Outcome) -> None:
    """Sends all, many in flight; each exactly once."""
    asyncio.run(_send(addr, requests, outcome))


async def _send(addr: str, requests: Iterator[Request], outcome: Outcome) -> None:
    client = RemotingClient()

    async def worker() -> None:
        for request in requests:
            answer = await client.invoke(addr, request.command, TIMEOUT_S)
            outcome.add(request, answer.code)

    try:
        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    finally:
        await client.close()
