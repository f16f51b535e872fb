"""Ext fields ⇄ headers: the wire's spelling, what may be absent, and what is refused by name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

from haservice.bounds import BY_NAME, TextBytes
from haservice.errors import RequestError
from haservice.remoting import headers as package
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
    wire_name,
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
    samples |= {name: "text" for name, bound in BY_NAME.items() if isinstance(bound, TextBytes)}
    values = [samples[str(field.type).removesuffix(" | None")] for field in dataclasses.fields(kind)]
    header = kind(*values)
    ext = header.encode()
    assert all(type(value) is str for value in ext.values())
    assert kind.decode(ext) == header
    assert kind.decode({**ext, "AccessKey": "", "bname": "b"}) == header


NAMES = re.compile(
    "(default_|origin_)?topic|((producer|consumer|compare|src|dest)_)?group(_name)?|client_(id|addr)"
    "|(broker|cluster)_name|cluster|(broker|ha_server|ha|master)_addr|subscription|expression_type"
)


MODULES = [
    importlib.import_module(f"{package.__name__}.{one.name}")
    for one in pkgutil.iter_modules(package.__path__)
]
REQUESTS = {
    kind
    for module in MODULES
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, ExtHeader) and "Response" not in kind.__name__ and kind.__name__ != "AclVersionHeader"
}


@pytest.mark.parametrize("kind", sorted(REQUESTS - {ExtHeader}, key=lambda one: one.__name__))
def test_each_name_in_a_request_has_a_length(kind: type[Any]) -> None:
    for field in dataclasses.fields(kind):
        if NAMES.fullmatch(field.name):
            bound = BY_NAME[str(field.type).removesuffix(" | None")]
            assert isinstance(bound, TextBytes), field.name
            most = bound.most + 7 * bound.of_groups
            ext = {**sample(kind), wire_of(kind, field.name): "x" * most * 2}
            with pytest.raises(
                RequestError, match=f"{wire_of(kind, field.name)} .* has {2 * most} bytes, more than"
            ):
                kind.decode(ext)


def wire_of(kind: type[Any], name: str) -> str:
    return str(kind.WIRE_NAMES.get(name) or wire_name(name))


def sample(kind: type[Any]) -> dict[str, str]:
    return {wire_of(kind, field.name): "1" for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    ("topic", "is_taken"),
    [
        ("T" * 127, True),
        ("T" * 128, False),
        ("é" * 63, True),
        ("é" * 64, False),
        ("%RETRY%" + "g" * 255, True),
        ("%RETRY%" + "g" * 256, False),
        ("%DLQ%" + "g" * 255, True),
        ("%DLQ%" + "g" * 256, False),
    ],
)
def test_a_topic_has_127_bytes_or_the_name_of_a_group_behind_its_prefix(topic: str, is_taken: bool) -> None:
    ext = {"topic": topic, "queueId": "0"}
    if is_taken:
        assert QueueHeader.decode(ext).topic == topic
    else:
        with pytest.raises(RequestError, match="more than 127"):
            QueueHeader.decode(ext)


def test_a_send_has_a_group_and_a_default_topic_of_some_length() -> None:
    for changed in ({"a": "g" * 256}, {"c": "T" * 128}):
        with pytest.raises(RequestError, match="bytes, more than"):
            SendMessageHeader.decode(RequestCode.SEND_MESSAGE_V2, {**V2_NAMES, **changed})


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
