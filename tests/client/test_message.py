"""Messages before they are sent, and as they come back."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from commitlog.kernel import records
from haservice.client import Message, MessageIllegal
from haservice.client import message as messages
from haservice.client.identity import UniqueKeys, client_id, local_ip
from haservice.client.message import Received, compressed, decode_all, encode_properties, uncompressed
from haservice.client.sends import ProducerLimits, prepared, prepared_batch
from haservice.log_throttle import LogThrottle

HOST = records.encode_host("127.0.0.1", 10911)
LIMITS = ProducerLimits()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("", b"x"), "1 to 127"),
        (Message("no blanks", b"x"), "a-z A-Z 0-9"),
        (Message("T" * 128, b"x"), "1 to 127"),
        (Message("T", b""), "no body"),
        (Message("T", b"x" * (4 * 1024 * 1024 + 1)), "4194305 bytes to topic T is above 4194304"),
        (Message("T", b"x", delay_level=-1), "delay_level -1"),
        (Message("T", b"x", properties={"UNIQ_KEY": "1"}), "UNIQ_KEY is RocketMQ's own"),
        (Message("T", b"x", properties={"a": ""}), "may be empty"),
        (Message("T", b"x", properties={"a": "1\x02"}), "U\\+0001 and U\\+0002"),
        (Message("T", b"x", tags="a\x01b"), "TAGS"),
        (Message("T", b"x", tags=" a"), "no subscription by tags matches"),
        (Message("T", b"x", tags="a\n"), r"tags 'a\\n' of a message to topic T"),
        (Message("T", b"x", tags="a || b"), "Give one tag, without `||`"),
        (Message("T", b"x", properties={"a": "x" * 40000}), "above 32767"),
        (Message("T", b"x", flag=2**31), "flag 2147483648: it does not fit the 32 bits"),
        (Message("T", b"x", flag=-(2**31) - 1), "flag -2147483649: it does not fit"),
        (Message("T", b"x", delay_level=2**31), "delay_level 2147483648: it does not fit"),
        (Message("T", b"x", keys="k\udc80"), r"KEYS'='k\\udc80': no UTF-8"),
        (Message("T", b"x", tags="\ud800"), "no UTF-8"),
        (Message("T", b"x", properties={"a\ud800": "b"}), "no UTF-8"),
        (Message("T\udc80", b"x"), "1 to 127"),
    ],
)
def test_what_no_broker_takes_is_not_sent(message: Message, says: str) -> None:
    with pytest.raises(MessageIllegal, match=says):
        prepared(message, "KEY", LIMITS)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"body": "text"}, r"Message\.body: 'text' is of type str; it must be bytes"),
        ({"body": ["a"]}, "body: .* of type list"),
        ({"body": {"a": 1}}, "body: .* of type dict"),
        ({"body": 7}, "body: 7 is of type int"),
        ({"topic": 7}, "topic: 7 is of type int; it must be a str"),
        ({"tags": ["q"]}, "tags: .* of type list; it must be a str"),
        ({"keys": 7}, "keys: 7 is of type int; it must be a str, or a list"),
        ({"keys": ["a", 7]}, "keys: 7 is of type int"),
        ({"properties": {"a": 7}}, "the value of 'a'"),
        ({"delay_level": "1"}, "delay_level: '1' is of type str; it must be an int"),
        ({"flag": "1"}, "flag: '1' is of type str"),
        ({"order_key": 1.5}, "order_key: 1.5 is of type float"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(wrong: dict[str, Any], says: str) -> None:
    message = Message(**{"topic": "T", "body": b"x", **wrong})
    with pytest.raises(MessageIllegal, match=says):
        prepared(message, "KEY", LIMITS)
    with pytest.raises(MessageIllegal, match=says):
        prepared_batch([message], ["KEY"], LIMITS)


def test_a_body_may_be_anything_like_bytes() -> None:
    bodies: list[Any] = [bytearray(b"xy"), memoryview(b"xy")]
    for body in bodies:
        assert prepared(Message("T", body), "KEY", LIMITS).body == b"xy"


def test_fields_become_the_properties_of_java() -> None:
    message = Message("T", b"x", "TagA", ["k1", "k2"], {"price": "7"}, delay_level=3, wait_store_msg_ok=False)
    found = records.decode_properties(prepared(message, "KEY", LIMITS).properties.encode())
    assert found == {
        "price": "7",
        "KEYS": "k1 k2",
        "TAGS": "TagA",
        "DELAY": "3",
        "WAIT": "false",
        "UNIQ_KEY": "KEY",
    }


def test_long_bodies_are_compressed_as_by_java_and_come_back() -> None:
    assert compressed(b"x" * 4095) == (b"x" * 4095, 0)
    body, sys_flag = compressed(b"x" * 4096)
    assert sys_flag == 0x301  # what a 4.9.8 client sends
    assert zlib.decompress(body) == b"x" * 4096
    assert uncompressed(body, sys_flag) == uncompressed(body, 0x1) == b"x" * 4096
    assert uncompressed(b"no zlib", 0x301) == b"no zlib"
    assert uncompressed(b"LZ4", 0x101) == b"LZ4"


def test_a_compressed_body_is_whole_or_comes_as_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bytes(range(256)) * 50
    packed = zlib.compress(whole)
    assert uncompressed(packed, 0x301) == whole
    for size in range(len(packed)):
        assert uncompressed(packed[:size], 0x301) == packed[:size]
    monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", len(whole))
    assert uncompressed(packed, 0x301) == whole
    monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", len(whole) - 1)
    assert uncompressed(packed, 0x301) == packed
    for reason, body in (("its end is missing", packed[:9]), ("more than 64 bytes", packed)):
        monkeypatch.setattr(messages, "_throttle", LogThrottle())
        monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", 64)
        uncompressed(body, 0x301, "7F0001")
        assert reason in caplog.text
    assert "message=7F0001" in caplog.text


def test_what_does_not_shrink_is_sent_as_it_is() -> None:
    noise = random.Random(1).randbytes(8000)
    assert compressed(noise) == (noise, 0)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "without messages"),
        ([Message("A", b"x"), Message("B", b"x")], "to A and B"),
        ([Message("A", b"x", delay_level=1)], "no delay_level"),
        ([Message("A", b"x"), Message("A", b"x", wait_store_msg_ok=False)], "one wait_store_msg_ok"),
        ([Message("A", b"x", order_key=1), Message("A", b"x", order_key=2)], "one order_key"),
        ([Message("A", b"x" * 3_000_000)] * 2, "send it as several"),
    ],
)
def test_messages_that_do_not_go_together(messages: list[Message], says: str) -> None:
    with pytest.raises(MessageIllegal, match=says):
        prepared_batch(messages, ["K"] * len(messages), LIMITS)


def test_a_batch_is_what_brokers_take_apart() -> None:
    batch = prepared_batch([Message("T", b"one", "A"), Message("T", b"two", flag=5)], ["K1", "K2"], LIMITS)
    encoded = records.encode_batch(
        records.NewMessage("T", 0, batch.body, properties=batch.properties.encode()), HOST
    )
    first, second = (records.decode(encoded.records, start) for start in encoded.starts)
    assert (first.body, second.body, second.flag) == (b"one", b"two", 5)
    assert records.decode_properties(first.properties) == {"TAGS": "A", "WAIT": "true", "UNIQ_KEY": "K1"}
    assert batch.unique_key == "K1,K2"


def test_a_record_becomes_what_a_consumer_gets() -> None:
    body, sys_flag = compressed(b"y" * 5000)
    properties = encode_properties({"UNIQ_KEY": "KEY", "TAGS": "A", "KEYS": "k1 k2", "RETRY_TOPIC": "Orders"})
    record = records.encode(
        records.NewMessage(
            "%RETRY%g", 0, body, properties.encode(), flag=4, sys_flag=sys_flag, reconsume_times=2
        ),
        HOST,
    )
    (stored,) = decode_all(bytes(record))
    found = Received.of(stored, "broker-a")
    assert (found.body, found.msg_id, found.tags, found.keys) == (b"y" * 5000, "KEY", "A", ("k1", "k2"))
    assert (found.topic, found.queue.topic, found.queue.broker_name) == ("Orders", "%RETRY%g", "broker-a")
    assert (found.store_host, found.flag, found.reconsume_times) == ("127.0.0.1:10911", 4, 2)
    assert found.offset_msg_id == records.offset_message_id(HOST, stored.physical_offset)


@pytest.mark.parametrize(("ip", "length"), [("127.0.0.1", 32), ("::1", 56)])
def test_message_ids_are_javas_in_form_and_never_the_same(ip: str, length: int) -> None:
    keys = UniqueKeys(ip)
    made = [keys.make(1_700_000_000_000 + number // 1000) for number in range(5000)]
    assert len(set(made)) == 5000
    assert {len(key) for key in made} == {length}
    assert all(key == key.upper() and bytes.fromhex(key) for key in made)


def test_client_ids_are_unique_or_as_they_are_named() -> None:
    assert local_ip(("127.0.0.1:9876",)) == local_ip(("no address",)) == "127.0.0.1"
    assert client_id("1.2.3.4", "app") == "1.2.3.4@app"
    assert len({client_id("1.2.3.4") for _ in range(100)}) == 100
