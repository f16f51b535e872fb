"""What a pair holds for the pages that show it: orders of all kinds, dead letters, delayed messages, a transaction."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from haservice.admin.calls import MQAdmin
from haservice.client import (
    ConsumeFrom,
    ConsumerOptions,
    Message,
    Producer,
    PushConsumer,
    Received,
    RetryLater,
    SendResult,
    TransactionState,
)
from haservice.client.options import ClientOptions
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.support.waiting import wait_until

TOPIC, GROUP, PRODUCERS = "Orders", "billing", "shop"
QUEUES = 2
JSON = b'{"order": 7, "items": [1.50, {}], "note": "<b>&amp;</b>"}'
BINARY = bytes(range(256))
LONG = b"a line of text, again and again\n" * 4000
DEAD = (b"dead one", b"dead two", b"dead three")
WAITING = 3
TAGS = re.compile(r"<[^>]+>")


@dataclass(slots=True)
class Filled:
    namesrv: str
    sent: dict[str, SendResult] = field(default_factory=dict)

    @property
    def options(self) -> ClientOptions:
        return ClientOptions(self.namesrv)


def fill(namesrv: str, master: str) -> Filled:
    """Sends, consumes some of it, and refuses the dead ones."""
    filled = Filled(namesrv)
    with MQAdmin([namesrv]) as admin:
        admin.update_topic(master, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
        wait_until(lambda: TOPIC in admin.topics(), "the topic is known")
    with Producer(PRODUCERS, filled.options) as producer:
        for name, body in {"json": JSON, "binary": BINARY, "long": LONG}.items():
            filled.sent[name] = producer.send(
                Message(TOPIC, body, keys=[f"order-{name}", "every"], tags="paid")
            )
        for number, body in enumerate(DEAD):
            filled.sent[f"dead-{number}"] = producer.send(Message(TOPIC, body, keys=f"dead-{number}"))
        consume(filled, len(filled.sent), gives_up=True)
        for number in range(WAITING):
            producer.send(Message(TOPIC, b"not consumed yet", keys=f"late-{number}"))
        producer.send(Message(TOPIC, b"in two hours", delay_level=18, keys="delayed"))
    with Producer("payments", filled.options, listener=Undecided()) as producer:
        half = Message(TOPIC, b"paid, perhaps", keys="undecided")
        # Without SEND_OK, as on a busy machine, the producer rolls it back.
        wait_until(
            lambda: producer.send_in_transaction(half, "").state is TransactionState.UNKNOWN, "it is open"
        )
    return filled


class Undecided:
    def execute(self, message: Message, argument: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: Received) -> TransactionState:
        return TransactionState.UNKNOWN


def consume(filled: Filled, count: int, group: str = GROUP, *, gives_up: bool = False) -> list[Received]:
    """The group takes so many messages; if it gives up, the dead ones become dead letters at once."""
    seen: list[Received] = []

    def handle(message: Received) -> None:
        seen.append(message)
        if gives_up and message.body in DEAD:
            raise RetryLater(-1)

    consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
    with PushConsumer(group, handle, filled.options, consuming=consuming) as consumer:
        consumer.subscribe(TOPIC)
        wait_until(lambda: len(seen) >= count, f"{group} has {count} messages", 30)
    return seen


def text_of(page: str) -> str:
    """The words of a page, one blank between any two."""
    return " ".join(html.unescape(TAGS.sub(" ", page)).split())


def rows_of(page: str, table: str) -> list[list[str]]:
    """The cells of the body of the table with that id."""
    found = re.search(rf'<table[^>]*id="{table}".*?</table>', page, re.S)
    assert found is not None, f"no table {table} in {text_of(page)}"
    body = found[0].partition("<tbody>")[2] or found[0]
    rows = re.findall(r"<tr.*?</tr>", body, re.S)
    return [[text_of(cell) for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.S)] for row in rows]


def path(page: str, query: Mapping[str, object] | None = None) -> str:
    return f"{page}?{urlencode(dict(query))}" if query else page
