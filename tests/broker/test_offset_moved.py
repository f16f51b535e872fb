"""Events about moved consumers: what they say, and that nobody can flood the log with them."""

from __future__ import annotations

import orjson

from commitlog.errors import LogNotWritable
from commitlog.kernel.records import NewMessage, decode_properties, encode_host
from haservice.broker.pull.offset_moved import OffsetMoved, OffsetMovedEvents

MOVED = OffsetMoved("G", "T", 3, 99, 7)


class Written:
    def __init__(self) -> None:
        self.messages: list[NewMessage] = []
        self.now_s = 0.0
        self.events = OffsetMovedEvents(
            self.messages.append,
            "broker-a",
            encode_host("127.0.0.1", 10911),
            clock_s=lambda: self.now_s,
            clock_ms=lambda: 5,
        )


def test_an_event_says_who_was_moved_from_where_to_where() -> None:
    written = Written()
    written.events(MOVED)
    (message,) = written.messages
    assert (message.topic, message.queue_id) == ("OFFSET_MOVED_EVENT", 0)
    assert decode_properties(message.properties) == {"TAGS": "G", "KEYS": "G"}
    assert orjson.loads(bytes(message.body)) == {
        "consumerGroup": "G",
        "messageQueue": {"brokerName": "broker-a", "queueId": 3, "topic": "T"},
        "offsetNew": 7,
        "offsetRequest": 99,
    }


def test_the_same_consumer_is_reported_once_in_ten_seconds() -> None:
    written = Written()
    for now_s in (0.0, 1.0, 9.9, 10.0, 11.0):
        written.now_s = now_s
        written.events(MOVED)
    written.events(MOVED._replace(group="other"))
    assert len(written.messages) == 3


def test_a_log_that_takes_nothing_is_no_harm() -> None:
    def refuse(message: NewMessage) -> None:
        raise LogNotWritable("disk is full")

    OffsetMovedEvents(refuse, "broker-a", encode_host("127.0.0.1", 1))(MOVED)
