"""Bodies against what stock peers send and read."""

from __future__ import annotations

import json
import struct
import typing
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice.dledger.messages import LedgerEntry
from haservice.remoting.bodies.clients import (
    BrokerData,
    CheckClientRequestBody,
    ClusterInfo,
    ConsumerOffsetWrapper,
    DataVersion,
    DelayOffsetWrapper,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
    HeartbeatData,
    KVTable,
    MessageQueue,
    QueueData,
    SubscriptionData,
    TopicConfig,
    TopicConfigWrapper,
    TopicList,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
)
from haservice.remoting.bodies.locks import LockBatchRequest
from haservice.remoting.bodies.registration import INFLATED_BYTES_MAX, RegisterBrokerBody, body_crc32
from haservice.remoting.fastjson import BodyUnreadable
from haservice.remoting.json_body import JSONBody

ROUTE = TopicRouteData(
    (QueueData("broker-a", 4, 4, 6),), (BrokerData("broker-a", "c", {0: "h:1", 1: "h:2"}),)
)
TOPICS = TopicConfigWrapper(
    DataVersion(3, 1700000000000),
    {"T1": TopicConfig("T1", 4, 8, 6), "%RETRY%g": TopicConfig("%RETRY%g", 1, 1)},
)


def test_a_route_in_the_dialect_and_in_the_standard_form() -> None:
    head = b'{"brokerDatas":[{"brokerAddrs":'
    tail = (
        b',"brokerName":"broker-a","cluster":"c"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a",'
        b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert ROUTE.encode() == head + b'{0:"h:1",1:"h:2"}' + tail
    assert ROUTE.encode(standard=True) == head + b'{"0":"h:1","1":"h:2"}' + tail
    for standard in (False, True):
        assert TopicRouteData.decode(ROUTE.encode(standard=standard)) == ROUTE


def test_a_route_of_an_older_name_server() -> None:
    text = (
        '{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSynFlag":2,"writeQueueNums":4}]}'
    )
    assert TopicRouteData.decode(text).queue_datas[0].topic_sys_flag == 2


def test_cluster_info() -> None:
    info = ClusterInfo({"broker-a": BrokerData("broker-a", "c", {0: "h:1"})}, {"c": ("broker-a",)})
    assert info.encode() == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"h:1"},"brokerName":"broker-a","cluster":"c"}},'
        b'"clusterAddrTable":{"c":["broker-a"]}}'
    )
    assert ClusterInfo.decode(info.encode()) == info


def test_tables_keyed_by_message_queues_in_all_their_forms() -> None:
    table = TopicStatsTable({MessageQueue("T", "b", 0): TopicOffset(1, 9, 5)})
    dialect = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":5,"maxOffset":9,"minOffset":1}}}'
    )
    assert table.encode() == dialect
    assert TopicStatsTable.decode(dialect) == table
    assert TopicStatsTable.decode(table.encode(standard=True)) == table


def test_consumer_offsets_and_their_file() -> None:
    offsets = ConsumerOffsetWrapper({"T@g": {0: 10, 1: 20}})
    assert offsets.encode() == b'{"offsetTable":{"T@g":{0:10,1:20}}}'
    assert ConsumerOffsetWrapper.decode(offsets.encode()) == offsets
    assert ConsumerOffsetWrapper.decode(offsets.encode(pretty=True)) == offsets
    assert ConsumerOffsetWrapper.decode('{"offsetTable":{"T@g":{"0":"10","1":20}}}') == offsets
    assert DelayOffsetWrapper.decode('{"offsetTable":{1:5,3:2}}') == DelayOffsetWrapper({1: 5, 3: 2})
    assert DelayOffsetWrapper().encode() == b'{"offsetTable":{}}'


def test_topics_and_their_register_body() -> None:
    assert TOPICS.encode().startswith(
        b'{"dataVersion":{"counter":3,"timestamp":1700000000000},"topicConfigTable":{"T1":{"order":false,"perm":6,'
        b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T1","topicSysFlag":0,"writeQueueNums":8}'
    )
    assert TopicConfigWrapper.decode(TOPICS.encode(pretty=True)) == TOPICS
    body = RegisterBrokerBody(TOPICS)
    assert body.encode().startswith(b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":')
    assert RegisterBrokerBody.decode(body.encode()) == body
    assert {topic.perm for topic in TOPICS.with_perm(4).topic_config_table.values()} == {4}
    assert {topic.perm for topic in TOPICS.with_perm(4).with_perm(2).topic_config_table.values()} == {0}


def test_the_compressed_register_body() -> None:
    body = RegisterBrokerBody(TOPICS, ("10.0.0.1:30000",))
    data = body.encode_compressed()
    plain = zlib.decompress(data)
    version = b'{"counter":3,"timestamp":1700000000000}'
    assert plain.startswith(struct.pack(">i", len(version)) + version + struct.pack(">i", 2))
    assert struct.pack(">i", 21) + b"T1 4 8 6 SINGLE_TAG" not in plain
    assert struct.pack(">i", 19) + b"T1 4 8 6 SINGLE_TAG" in plain
    assert plain.endswith(b'["10.0.0.1:30000"]')
    assert RegisterBrokerBody.decode_compressed(memoryview(data)) == body
    assert body_crc32(data) == zlib.crc32(data) & 0x7FFFFFFF


PLAIN = zlib.decompress(RegisterBrokerBody(TOPICS).encode_compressed())


def test_a_compressed_register_body_cut_anywhere() -> None:
    data = RegisterBrokerBody(TOPICS).encode_compressed()
    for cut in range(len(data)):
        with pytest.raises(BodyUnreadable):
            RegisterBrokerBody.decode_compressed(data[:cut])
    for cut in range(len(PLAIN)):
        with pytest.raises(BodyUnreadable):
            RegisterBrokerBody.decode_compressed(zlib.compress(PLAIN[:cut]))


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 10**6])
@pytest.mark.parametrize("place", [0, 43, 47])
def test_every_length_of_a_compressed_register_body_may_lie(place: int, size: int) -> None:
    data = bytearray(PLAIN)
    struct.pack_into(">i", data, place, size)
    with pytest.raises(BodyUnreadable):
        RegisterBrokerBody.decode_compressed(zlib.compress(bytes(data)))


def test_a_compressed_body_that_unfolds_to_too_much() -> None:
    with pytest.raises(BodyUnreadable, match="unfold"):
        RegisterBrokerBody.decode_compressed(zlib.compress(PLAIN + bytes(INFLATED_BYTES_MAX)))


def test_a_heartbeat_of_more_than_any_client_has() -> None:
    producers = ",".join(['{"groupName":"g"}'] * 100_000)
    with pytest.raises(BodyUnreadable, match="bytes of memory"):
        HeartbeatData.decode(f'{{"clientID":"c","producerDataSet":[{producers}]}}')


def test_a_heartbeat_of_a_java_client() -> None:
    data = HeartbeatData.decode(
        b'{"clientID":"10.0.0.1@1#2","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":['
        b'{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":17,'
        b'"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],"producerDataSet":[{"groupName":"p"}]}'
    )
    assert (data.client_id, data.producer_data_set[0].group_name) == ("10.0.0.1@1#2", "p")
    consumer = data.consumer_data_set[0]
    assert (consumer.group_name, consumer.consume_from_where) == ("g", "CONSUME_FROM_FIRST_OFFSET")
    assert consumer.subscription_data_set == (
        SubscriptionData("T", "TagA", "TAG", 17, ("TagA",), (2598919,), False),
    )


def test_a_heartbeat_of_a_go_client_has_numbers_as_strings() -> None:
    data = HeartbeatData.decode(
        '{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"codeSet":["2598919"],'
        '"subVersion":"1700000000000000000","tagsSet":null,"topic":"T"}]}],"producerDataSet":null,"more":{}}'
    )
    wanted = data.consumer_data_set[0].subscription_data_set[0]
    assert (wanted.code_set, wanted.sub_version, wanted.tags_set) == ((2598919,), 1700000000000000000, ())


def test_null_members_are_left_out() -> None:
    assert TopicList(("T",)).encode() == b'{"topicList":["T"]}'
    assert TopicList.decode('{"brokerAddr":null,"topicList":["T"]}') == TopicList(("T",))
    assert KVTable({"k": "v"}).encode() == b'{"table":{"k":"v"}}'


def test_ha_status_as_a_5x_tool_reads_it() -> None:
    info = HARuntimeInfo(
        True, 100, 1, (HAConnectionRuntimeInfo("10.0.0.7:51234", 90, 10, True, 5, 80),), HAClientRuntimeInfo()
    )
    assert info.encode() == (
        b'{"absentSlaves":[],"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,'
        b'"masterAddr":"","masterFlushOffset":0,'
        b'"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":[{"addr":"10.0.0.7:51234","diff":10,'
        b'"inSync":true,"slaveAckOffset":90,"transferFromWhere":80,"transferredByteInSecond":5}],'
        b'"inSyncSlaveNums":1,"master":true,"masterCommitLogMaxOffset":100}'
    )
    assert HARuntimeInfo.decode(info.encode()) == info


@pytest.mark.parametrize(
    ("kind", "text", "where"),
    [
        (HeartbeatData, "{}", "no member clientID"),
        (HeartbeatData, "[]", "not an object"),
        (HeartbeatData, "null", "not an object"),
        (HeartbeatData, '{"clientID":{}}', r"HeartbeatData\.clientID"),
        (HeartbeatData, '{"clientID":"c","consumerDataSet":{}}', "consumerDataSet.*not an array"),
        (HeartbeatData, '{"clientID":"c","consumerDataSet":[7]}', "ConsumerData is a JSON int"),
        (HeartbeatData, '{0:1,"clientID":"c"}', "not JSON"),
        (TopicConfigWrapper, '{"topicConfigTable":{"T":{"topicName":"T","perm":"x"}}}', r"TopicConfig\.perm"),
        (TopicConfigWrapper, '{"topicConfigTable":{"T":{"topicName":"T","perm":1.5}}}', r"TopicConfig\.perm"),
        (
            TopicConfigWrapper,
            '{"topicConfigTable":{"T":{"topicName":"T","order":[]}}}',
            r"TopicConfig\.order",
        ),
        (TopicConfigWrapper, '{"dataVersion":7}', "DataVersion is a JSON int"),
        (ConsumerOffsetWrapper, '{"offsetTable":{"T@g":{"x":1}}}', "whole number"),
        (ConsumerOffsetWrapper, '{"offsetTable":{"T@g":{0:9223372036854775808}}}', "64 bits"),
        (ConsumerOffsetWrapper, '{"offsetTable":{"T@g":{0:1e30}}}', "64 bits"),
        (ConsumerOffsetWrapper, '{"offsetTable":[]}', "not an object"),
        (TopicStatsTable, '{"offsetTable":{"x":{}}}', "not JSON"),
        (TopicStatsTable, '{"offsetTable":{{"topic":"T"}:{}}}', "no member brokerName"),
        (LedgerEntry, '{"body":7}', r"LedgerEntry\.body.*not Base64"),
        (LedgerEntry, '{"body":"QQ="}', r"LedgerEntry\.body.*not Base64"),
        (LedgerEntry, '{"body":"QQ=ü"}', r"LedgerEntry\.body.*not Base64"),
    ],
)
def test_a_body_that_is_not_what_it_should_be_says_where(kind: Any, text: str, where: str) -> None:
    with pytest.raises(BodyUnreadable, match=where):
        kind.decode(text)


NAMES = st.text(st.characters(codec="utf-8"), max_size=10)


@given(
    st.dictionaries(NAMES, st.dictionaries(st.integers(0, 99), st.integers(0, 2**62), max_size=4), max_size=4)
)
def test_any_offsets_survive(table: dict[str, dict[int, int]]) -> None:
    body = ConsumerOffsetWrapper(table)
    assert ConsumerOffsetWrapper.decode(body.encode()) == body
    assert ConsumerOffsetWrapper.decode(body.encode(pretty=True)) == body


@given(st.lists(st.builds(MessageQueue, NAMES, NAMES, st.integers(0, 9)), max_size=4))
def test_any_queues_survive_as_keys(queues: list[MessageQueue]) -> None:
    body = TopicStatsTable({queue: TopicOffset(0, 5, 7) for queue in queues})
    assert TopicStatsTable.decode(body.encode()) == body


def kinds_within(hint: Any) -> Iterator[Any]:
    """Each type that a field has somewhere inside; what is annotated with a bound is none of them."""
    if typing.get_origin(hint) is typing.Annotated:
        return
    if isinstance(hint, type) and issubclass(hint, JSONBody):
        for inner in typing.get_type_hints(hint, include_extras=True).values():
            yield from kinds_within(inner)
    elif typing.get_args(hint):
        for inner in typing.get_args(hint):
            yield from kinds_within(inner)
    else:
        yield hint


@pytest.mark.parametrize("kind", [HeartbeatData, LockBatchRequest, CheckClientRequestBody])
def test_what_a_broker_keeps_of_a_body_has_no_text_without_a_length(kind: type[JSONBody]) -> None:
    assert str not in set(kinds_within(kind))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"clientID": "c" * 256}, r"HeartbeatData.clientID: has 256 bytes, more than 255"),
        (
            {"clientID": "c", "producerDataSet": [{"groupName": "é" * 128}]},
            "ProducerData.groupName: has 256 bytes",
        ),
        (
            {
                "clientID": "c",
                "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T" * 128}]}],
            },
            "SubscriptionData.topic: has 128 bytes, more than 127",
        ),
        (
            {
                "clientID": "c",
                "consumerDataSet": [
                    {"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "x" * 65537}]}
                ],
            },
            "SubscriptionData.subString: has 65537 bytes, more than 65536",
        ),
    ],
)
def test_a_heartbeat_with_a_name_that_is_too_long_is_refused(body: dict[str, Any], said: str) -> None:
    with pytest.raises(BodyUnreadable, match=said):
        HeartbeatData.decode(json.dumps(body))


def test_a_lock_with_a_name_that_is_too_long_is_refused() -> None:
    queue = {"topic": "T", "brokerName": "b" * 256, "queueId": 0}
    with pytest.raises(BodyUnreadable, match=r"MessageQueue.brokerName: has 256 bytes, more than 255"):
        LockBatchRequest.decode(json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": [queue]}))
