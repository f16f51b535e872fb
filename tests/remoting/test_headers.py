"""Ext fields ⇄ headers: the wire's spelling, what may be absent, and what is refused by name."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers import clients as headers
from haservice.remoting.headers.clients import (
    CreateTopicHeader,
    ExtHeader,
    PullMessageHeader,
    QueueHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    RouteHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
    UnregisterClientHeader,
)

CLASSES = [
    kind
    for _, kind in inspect.getmembers(headers, inspect.isclass)
    if issubclass(kind, ExtHeader) and kind is not ExtHeader
]

LONG_NAMES = {
    "producerGroup": "g",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "-1",
    "sysFlag": "769",
    "bornTimestamp": "1700000000000",
    "flag": "5",
    "properties": "WAIT\x01true",
    "reconsumeTimes": "2",
    "unitMode": "true",
    "maxReconsumeTimes": "16",
    "batch": "false",
}
V2_NAMES = dict(zip("abcdefghijklm", LONG_NAMES.values(), strict=True))
SENT = SendMessageHeader("g", "T", "TBW102", 4, -1, 769, 1700000000000, 5, "WAIT\x01true", 2, True, 16, False)


@pytest.mark.parametrize("kind", CLASSES)
def test_what_is_written_is_read(kind: type[Any]) -> None:
    samples = {"str": "text", "I32": -7, "I64": 2**40, "bool": True, "EpochOrNone": 10**12, "BrokerId": 3}
    values = [samples[str(field.type).removesuffix(" | None")] for field in dataclasses.fields(kind)]
    header = kind(*values)
    ext = header.encode()
    assert all(type(value) is str for value in ext.values())
    assert kind.decode(ext) == header
    assert kind.decode({**ext, "AccessKey": "", "bname": "b"}) == header


@pytest.mark.parametrize("kind", CLASSES)
def test_a_missing_field_is_named(kind: type[Any]) -> None:
    required = [field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    if not required:
        assert kind.decode({}).encode() == {}
        return
    with pytest.raises(RequestError, match="missing") as caught:
        kind.decode({})
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_wire_spelling() -> None:
    assert UnregisterClientHeader("c", producer_group="p").encode() == {"clientID": "c", "producerGroup": "p"}
    assert RegisterBrokerHeader("b", "a", "c", "h", 0, True, 7).encode() == {
        "brokerName": "b",
        "brokerAddr": "a",
        "clusterName": "c",
        "haServerAddr": "h",
        "brokerId": "0",
        "compressed": "true",
        "bodyCrc32": "7",
    }
    assert CreateTopicHeader("T", "TBW102", 8, 8, 6).encode()["topicSysFlag"] == "0"
    assert RouteHeader.decode({"topic": "T", "acceptStandardJsonOnly": "TRUE"}).accept_standard_json_only
    assert RegisterBrokerResponseHeader.decode({}) == RegisterBrokerResponseHeader(None, None)
    assert SendMessageResponseHeader("id", 1, 2).encode() == {
        "msgId": "id",
        "queueId": "1",
        "queueOffset": "2",
    }


def test_optional_fields_of_a_pull() -> None:
    ext = dict.fromkeys(("queueId", "queueOffset", "maxMsgNums", "sysFlag"), "1")
    header = PullMessageHeader.decode({**ext, "consumerGroup": "g", "topic": "T"})
    assert (header.subscription, header.expression_type, header.sub_version) == (None, None, 0)


@pytest.mark.parametrize("text", ["", "x", "1.5", "2147483648", "-2147483649", "9" * 5000, "1e3", "0x1"])
def test_a_number_that_is_none_is_named(text: str) -> None:
    with pytest.raises(RequestError, match="queueId") as caught:
        QueueHeader.decode({"topic": "T", "queueId": text})
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert len(caught.value.remark) < 200


def test_a_send_in_both_spellings() -> None:
    assert SendMessageHeader.decode(RequestCode.SEND_MESSAGE, LONG_NAMES) == SENT
    assert SendMessageHeader.decode(RequestCode.SEND_MESSAGE_V2, V2_NAMES) == SENT
    assert SendMessageHeader.decode(RequestCode.SEND_BATCH_MESSAGE, {**V2_NAMES, "m": "true"}).batch
    assert SENT.encode(RequestCode.SEND_MESSAGE) == LONG_NAMES
    assert SENT.encode(RequestCode.SEND_MESSAGE_V2) == V2_NAMES


def test_a_send_of_the_least_fields() -> None:
    least = {name: V2_NAMES[name] for name in "abcdefgh"}
    header = SendMessageHeader.decode(310, least)
    assert header == SENT._replace(
        properties="", reconsume_times=0, unit_mode=False, max_reconsume_times=None, batch=False
    )
    assert "l" not in header.encode(310)


@pytest.mark.parametrize("name", "abcdefgh")
def test_a_missing_field_of_a_send_is_named_in_both_spellings(name: str) -> None:
    ext = {key: value for key, value in V2_NAMES.items() if key != name}
    long_name = list(LONG_NAMES)["abcdefghijklm".index(name)]
    with pytest.raises(RequestError, match=rf"field {name} \({long_name}\) .* missing"):
        SendMessageHeader.decode(310, ext)
    with pytest.raises(RequestError, match=f"field {long_name} of the request header is missing"):
        SendMessageHeader.decode(10, {key: value for key, value in LONG_NAMES.items() if key != long_name})


@pytest.mark.parametrize("text", ["x", "1.5", "9" * 20, "9" * 5000])
@pytest.mark.parametrize("name", "defghjl")
def test_a_bad_number_of_a_send_is_named(name: str, text: str) -> None:
    with pytest.raises(RequestError, match=rf"field {name} \(.*not a whole number") as caught:
        SendMessageHeader.decode(310, {**V2_NAMES, name: text})
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
