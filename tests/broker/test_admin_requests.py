"""What tools ask of a broker and, through it, of its consumers; consumers are sockets that speak by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import orjson
import pytest

from haservice.broker.groups import client_calls
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole
from haservice.remoting.bodies.admin import (
    BrokerStatsData,
    ConsumeQueueBody,
    ConsumerStatusBody,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    QueueProgress,
    ResetOffsetBody,
)
from haservice.remoting.bodies.clients import MessageQueue, TopicList, TopicStatsTable
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import LanguageCode, RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.fastjson import loads
from tests.support.brokers import addr_of, send
from tests.support.remoting import Peer
from tests.support.waiting import wait_until

Start = Callable[..., BrokerNode]
Q = "broker-a"
# A tool's, which no consumer gets to see.
CREDENTIALS = {"AccessKey": "administrator", "Signature": "c2lnbmVk", "SecurityToken": "token"}


@pytest.fixture
def peers() -> Iterator[Callable[[BrokerNode], Peer]]:
    with ExitStack() as stack:
        yield lambda node: stack.enter_context(Peer(node.config.remoting.listen_port))


def ask(client: BlockingClient, node: BrokerNode, code: RequestCode, **ext: object) -> RemotingCommand:
    fields = {name: str(value) for name, value in ext.items()}
    return client.call(addr_of(node), RemotingCommand.request(code, fields))


def join(peer: Peer, client_id: str, group: str = "G", topic: str = "T", **command: Any) -> None:
    """A consumer's heartbeat; what the broker notifies of is read and dropped."""
    body = {
        "clientID": client_id,
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": topic, "subString": "A", "subVersion": 1}],
            }
        ],
    }
    peer.send(RemotingCommand(RequestCode.HEART_BEAT, {}, orjson.dumps(body), opaque=1, **command))
    while not (answer := peer.receive()).flag & 1:
        pass
    assert answer.code == 0


def relayed(peer: Peer, code: int) -> RemotingCommand:
    """The next request of that code which the broker sends."""
    while (command := peer.receive()).code != code:
        pass
    return command


def commit(node: BrokerNode, *offsets: int, group: str = "G", topic: str = "T") -> None:
    for queue_id, offset in enumerate(offsets):
        node.offsets.commit(group, topic, queue_id, offset)


def fill(client: BlockingClient, node: BrokerNode, *counts: int, topic: str = "T") -> None:
    """So many messages into each queue, tag A."""
    for queue_id, count in enumerate(counts):
        for _ in range(count):
            answer = send(
                client, addr_of(node), topic, queue_id=queue_id, properties="TAGS\x01A\x02KEYS\x01k"
            )
            assert answer.code == 0
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")


# Progress


def test_progress_is_told_of_each_queue_to_read(start: Start, client: BlockingClient) -> None:
    node = start()
    fill(client, node, 3, 1)
    commit(node, 2)
    answer = ask(client, node, RequestCode.GET_CONSUME_STATS, consumerGroup="G")
    table = ConsumeStats.decode(answer.body).offset_table
    assert len(table) == 4
    first = table[MessageQueue("T", Q, 0)]
    assert (first.broker_offset, first.consumer_offset) == (3, 2)
    assert first.last_timestamp > 0
    assert table[MessageQueue("T", Q, 1)] == QueueProgress(1, 0, 0)
    nobody = ask(client, node, RequestCode.GET_CONSUME_STATS, consumerGroup="H")
    assert ConsumeStats.decode(nobody.body).offset_table == {}


def test_a_group_that_is_online_is_told_by_what_it_subscribes(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 1)
    fill(client, node, 1, topic="Old")
    commit(node, 1)
    commit(node, 1, topic="Old")
    join(peers(node), "c1")
    answer = ask(client, node, RequestCode.GET_CONSUME_STATS, consumerGroup="G")
    assert {queue.topic for queue in ConsumeStats.decode(answer.body).offset_table} == {"T"}
    groups = ask(client, node, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")
    assert GroupList.decode(groups.body).group_list == ("G",)
    commit(node, 1, group="H@1")
    groups = ask(client, node, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")
    assert GroupList.decode(groups.body).group_list == ("G", "H@1")


def test_messages_per_second_are_those_pulled(start: Start, client: BlockingClient) -> None:
    node = start()
    fill(client, node, 30)
    pull = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    assert ask(client, node, RequestCode.PULL_MESSAGE, **pull).code == 0
    commit(node, 30)
    answer = ask(client, node, RequestCode.GET_CONSUME_STATS, consumerGroup="G", topic="T")
    assert 0 < ConsumeStats.decode(answer.body).consume_tps <= 3.0
    for name, key, wanted in (
        ("TOPIC_PUT_NUMS", "T", 30),
        ("GROUP_GET_NUMS", "T@G", 30),
        ("QUEUE_GET_NUMS", "T@0@G", 30),
        ("BROKER_PUT_NUMS", "C", 30),
    ):
        answer = ask(client, node, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
        data = BrokerStatsData.decode(answer.body)
        assert (data.stats_minute.sum, data.stats_hour.sum, data.stats_day.sum) == (wanted,) * 3, name
    missing = ask(client, node, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="U")
    assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <U> not exist")


def test_statistics_go_with_their_topic_and_group(start: Start, client: BlockingClient) -> None:
    node = start()
    fill(client, node, 1)
    node.stats.traffic.sent_back("U", "G")

    def known(name: str, key: str) -> bool:
        fields = {"statsName": name, "statsKey": key}
        return ask(client, node, RequestCode.VIEW_BROKER_STATS_DATA, **fields).code == 0

    assert known("TOPIC_PUT_NUMS", "T")
    assert known("SNDBCK_PUT_NUMS", "U@G")
    assert ask(client, node, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code == 0
    assert not known("TOPIC_PUT_NUMS", "T")
    assert ask(client, node, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G").code == 0
    assert not known("SNDBCK_PUT_NUMS", "U@G")


def test_every_group_is_told_at_once(start: Start, client: BlockingClient) -> None:
    node = start()
    fill(client, node, 3)
    commit(node, 1)
    commit(node, 3, group="H")
    answer = ask(client, node, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    told = ConsumeStatsList.decode(answer.body)
    assert told.broker_addr == addr_of(node)
    assert told.total_diff == 2
    assert [list(one) for one in told.consume_stats_list] == [["G"], ["H"]]
    ordered = ask(client, node, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")
    assert ConsumeStatsList.decode(ordered.body).total_diff == 0


def test_time_spans_tell_how_late_a_group_is(start: Start, client: BlockingClient) -> None:
    node = start()
    fill(client, node, 2)
    commit(node, 1)
    answer = ask(client, node, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")
    first, second, *_ = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    assert first.min_time_stamp <= first.consume_time_stamp <= first.max_time_stamp
    assert first.min_time_stamp > 0
    assert first.delay_time >= 0
    assert (second.max_time_stamp, second.delay_time) == (-1, 0)
    unknown = ask(client, node, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="U", group="G")
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


# Asking consumers


def test_a_consumer_tells_of_itself_through_its_broker(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    peer, other = peers(node), peers(node)
    join(peer, "c1")
    join(other, "c2")
    tool = peers(node)
    fields = {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "true"}
    tool.send(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, {**fields, **CREDENTIALS}, opaque=77))
    asked = relayed(peer, RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert asked.ext == fields
    answer = asked.answer(body=b'{"properties":{}}')
    peer.send(answer)
    told = tool.receive()
    assert (told.opaque, told.code, bytes(told.body)) == (77, 0, b'{"properties":{}}')
    gone = ask(client, node, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="c3")
    assert (gone.code, gone.remark) == (1, "The Consumer <G> <c3> not online")


def test_a_consumer_that_leaves_or_is_too_old_is_said_so(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    old, leaving, tool = peers(node), peers(node), peers(node)
    join(old, "old", version=61)
    answer = ask(client, node, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="old")
    assert answer.code == 1
    assert "too low" in (answer.remark or "")
    join(leaving, "leaving", group="L")
    fields = {"consumerGroup": "L", "clientId": "leaving"}
    tool.send(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields))
    relayed(leaving, RequestCode.GET_CONSUMER_RUNNING_INFO)
    leaving.close()
    assert "invoke consumer <L>" in (tool.receive().remark or "")


def test_a_silent_consumer_is_waited_for_no_longer_than_promised(
    start: Start, peers: Callable[[BrokerNode], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_calls, "CALL_SECONDS", 0.2)
    node = start()
    peer, tool = peers(node), peers(node)
    join(peer, "c1")
    fields = {"consumerGroup": "G", "clientId": "c1"}
    answer = tool.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    late = relayed(peer, RequestCode.GET_CONSUMER_RUNNING_INFO)
    peer.send(late.answer(body=b"late"))
    join(peer, "c1")  # the connection lives on, and the late answer went nowhere


def test_a_message_is_consumed_by_one_consumer_on_request(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    answer = send(client, addr_of(node), "T", b"now")
    peer, tool = peers(node), peers(node)
    join(peer, "c1")
    fields = {"consumerGroup": "G", "msgId": answer.ext["msgId"]}
    tool.send(RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**fields, **CREDENTIALS}, opaque=5))
    asked = relayed(peer, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert asked.ext == {**fields, "clientId": "c1", "brokerName": Q}
    assert bytes(asked.body) == node.store.log.read_record(0)
    peer.send(asked.answer(body=b'{"consumeResult":"CR_SUCCESS"}'))
    assert b"CR_SUCCESS" in bytes(tool.receive().body)
    for message_id, said in (("XYZ", "no offset message id"), (fields["msgId"][:-1] + "7", "no message at")):
        refused = tool.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**fields, "msgId": message_id})
        assert refused.code == 1
        assert said in (refused.remark or "")


# Moving groups


def reset(tool: Peer, timestamp: int = 0, force: bool = True, **fields: str) -> RemotingCommand:
    ext = {"topic": "T", "group": "G", "timestamp": str(timestamp), "isForce": str(force).lower(), **fields}
    return tool.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)


def test_members_are_told_where_to_go_on(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 5, 3)
    commit(node, 4, 1)
    peer, cpp, tool = peers(node), peers(node), peers(node)
    join(peer, "c1")
    join(cpp, "c2", language=LanguageCode.CPP)
    answer = reset(tool)
    wanted = {MessageQueue("T", Q, queue_id): 0 for queue_id in range(4)}
    assert ResetOffsetBody.decode(answer.body).offset_table == wanted
    told = relayed(peer, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert told.is_oneway
    assert (told.ext["topic"], told.ext["group"], told.ext["timestamp"]) == ("T", "G", "0")
    assert ResetOffsetBody.decode(told.body).offset_table == wanted
    listed = loads(relayed(cpp, RequestCode.RESET_CONSUMER_CLIENT_OFFSET).body)["offsetTable"]
    assert {"brokerName": Q, "offset": 0, "queueId": 1, "topic": "T"} in listed
    # The broker's own offsets change when the members commit.
    assert node.offsets.query("G", "T", 0) == 4


def test_members_that_have_not_committed_are_told_where_to_go_on(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 5, 3)
    tool = peers(node)
    assert reset(tool).remark == "THe consumer group <G> not exist"
    join(peers(node), "c1")
    assert [_table(reset(tool, -1))[MessageQueue("T", Q, queue_id)] for queue_id in range(2)] == [5, 3]


def test_queues_that_are_only_read_count_too(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 1, 2, 3, 4)
    fewer = {"readQueueNums": 4, "writeQueueNums": 1, "defaultTopic": "TBW102", "perm": 6, "order": "false"}
    fewer |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    assert ask(client, node, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", **fewer).code == 0
    commit(node, 1, 1, 1, 1)
    tool = peers(node)
    join(peers(node), "c1")
    queues = [MessageQueue("T", Q, queue_id) for queue_id in range(4)]
    stats = TopicStatsTable.decode(ask(client, node, RequestCode.GET_TOPIC_STATS_INFO, topic="T").body)
    assert [stats.offset_table[queue].max_offset for queue in queues] == [1, 2, 3, 4]
    listed = ask(client, node, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert ConsumeStatsList.decode(listed.body).total_diff == 6
    assert [_table(reset(tool, -1))[queue] for queue in queues] == [1, 2, 3, 4]
    spans = ask(client, node, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")
    assert len(ConsumeTimeSpans.decode(spans.body).consume_time_span_set) == 4


def test_without_force_nobody_is_moved_forward(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 5, 3)
    commit(node, 4, 1)
    tool = peers(node)
    join(peers(node), "c1")
    ends = {queue.queue_id: n for queue, n in _table(reset(tool, -1, force=True)).items()}
    assert ends == {0: 5, 1: 3, 2: 0, 3: 0}
    kept = {queue.queue_id: n for queue, n in _table(reset(tool, -1, force=False)).items()}
    assert kept == {0: 4, 1: 1, 2: 0, 3: 0}


def _table(answer: RemotingCommand) -> dict[MessageQueue, int]:
    assert answer.code == 0
    return dict(ResetOffsetBody.decode(answer.body).offset_table)


def test_what_cannot_be_reset_is_said_so(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 1)
    tool = peers(node)
    unknown = reset(tool, topic="U")
    assert (unknown.code, "no topic in this broker" in (unknown.remark or "")) == (1, True)
    strange = reset(tool)
    assert (strange.code, strange.remark) == (1, "THe consumer group <G> not exist")
    commit(node, 1)
    assert reset(tool).code == ResponseCode.CONSUMER_NOT_ONLINE


def test_members_tell_where_they_are(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    first, second, tool = peers(node), peers(node), peers(node)
    ext = {"topic": "T", "group": "G", "clientAddr": ""}
    offline = tool.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
    assert (offline.code, "No Any Consumer online" in (offline.remark or "")) == (1, True)
    join(first, "c1")
    join(second, "c2")
    tool.send(RemotingCommand(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext))
    body = ConsumerStatusBody(message_queue_table={MessageQueue("T", Q, 0): 7}).encode()
    first.send(relayed(first, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT).answer(body=body))
    second.send(relayed(second, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT).answer(1, "unknown group"))
    told = ConsumerStatusBody.decode(tool.receive().body).consumer_table
    assert told == {"c1": {MessageQueue("T", Q, 0): 7}}


# Queues and groups


def test_entries_of_a_queue_are_shown_and_judged(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 3)
    join(peers(node), "c1")
    fields: dict[str, object] = {"topic": "T", "queueId": 0, "index": 1, "count": 10}
    body = ConsumeQueueBody.decode(ask(client, node, RequestCode.QUERY_CONSUME_QUEUE, **fields).body)
    assert (body.min_queue_index, body.max_queue_index, len(body.queue_data)) == (0, 3, 2)
    assert {entry.tags_code for entry in body.queue_data} == {ord("A")}
    answer = ask(client, node, RequestCode.QUERY_CONSUME_QUEUE, **fields, consumerGroup="G")
    judged = ConsumeQueueBody.decode(answer.body)
    assert all(entry.eval for entry in judged.queue_data)
    assert judged.subscription_data is not None
    assert judged.subscription_data.sub_string == "A"
    answer = ask(client, node, RequestCode.QUERY_CONSUME_QUEUE, **fields, consumerGroup="H")
    assert ConsumeQueueBody.decode(answer.body).filter_data == "H@T is not online!"
    beyond = ask(client, node, RequestCode.QUERY_CONSUME_QUEUE, **{**fields, "index": 3})
    assert (beyond.code, bytes(beyond.body)) == (0, b"")
    assert beyond.remark == "Index 3 of 0@T is not exist!"
    absent = ask(client, node, RequestCode.QUERY_CONSUME_QUEUE, **{**fields, "queueId": 9})
    assert (absent.code, absent.remark) == (1, "9@T is not exist!")


def test_a_group_begins_where_another_one_is(start: Start, client: BlockingClient) -> None:
    node = start()
    fill(client, node, 3, 3)
    fill(client, node, 1, topic="V")
    commit(node, 2, 1)
    commit(node, 1, topic="V")
    fields = {"srcGroup": "G", "destGroup": "H", "offline": "true"}
    assert ask(client, node, RequestCode.CLONE_GROUP_OFFSET, **fields, topic="T").code == 0
    assert [node.offsets.query("H", "T", queue_id) for queue_id in range(3)] == [2, 1, None]
    assert node.offsets.query("H", "V", 0) is None
    assert ask(client, node, RequestCode.CLONE_GROUP_OFFSET, **fields).code == 0
    assert node.offsets.query("H", "V", 0) == 1


def test_the_least_progress_of_all_other_groups(start: Start, client: BlockingClient) -> None:
    node = start()
    fill(client, node, 9, 9)
    commit(node, 5, 5)
    commit(node, 3, 8, group="H")
    commit(node, 1, 1, group="X")
    commit(node, 4, 4, group="Me")
    fields = {"topic": "T", "compareGroup": "Me", "filterGroups": "X,Me"}
    answer = ask(client, node, RequestCode.QUERY_CORRECTION_OFFSET, **fields)
    # Behind nobody else: RocketMQ says Long.MAX_VALUE.
    assert CorrectionOffsets.decode(answer.body).correction_offsets == {0: 3, 1: 2**63 - 1}
    assert node.offsets.query("X", "T", 0) == 1


# Clearing up


def test_queues_of_deleted_topics_go(start: Start, client: BlockingClient) -> None:
    node = start()
    fill(client, node, 2)
    fill(client, node, 2, topic="Gone")
    commit(node, 2, topic="Gone")
    node.topics.delete("Gone")
    before = node.topics.data_version
    answer = ask(client, node, RequestCode.CLEAN_UNUSED_TOPIC)
    assert (answer.code, answer.remark) == (0, "topics=1: Gone")
    assert node.topics.data_version != before  # slaves ask again
    assert node.offsets.groups_of("Gone") == []
    assert node.store.queues.get("Gone", 0) is None
    assert node.store.queues.get("T", 0) is not None


def test_queues_of_a_deleted_topic_go_though_the_log_has_none_of_its_messages(
    start: Start, client: BlockingClient
) -> None:
    node = start()
    body = bytes(8 * 1024)
    send(client, addr_of(node), "Gone", body, queue_id=0)
    for _ in range(8):  # a segment has 64 KiB
        send(client, addr_of(node), "T", body, queue_id=0)
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
    assert node.store.log.segments.drop_oldest() is not None
    node.topics.delete("Gone")
    assert ask(client, node, RequestCode.CLEAN_UNUSED_TOPIC).remark == "topics=1: Gone"
    assert node.store.queues.get("Gone", 0) is None
    assert not list((node.config.log.root / "consumequeue" / "Gone").glob("0/*"))


def test_queues_that_nobody_needs_go_with_their_messages(start: Start, client: BlockingClient) -> None:
    node = start()
    body = bytes(8 * 1024)
    for topic in ("Read", "Unread"):
        send(client, addr_of(node), topic, body, queue_id=0)
    for _ in range(8):  # a segment has 64 KiB
        send(client, addr_of(node), "T", body, queue_id=0)
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
    commit(node, 1, topic="Read")
    assert node.store.log.segments.drop_oldest() is not None
    answer = ask(client, node, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert answer.code == 0
    assert (answer.remark or "").startswith("queues=1 ")
    assert not list((node.config.log.root / "consumequeue" / "Unread" / "0").iterdir())
    # Its group is at 1: the next message must not be number 0 again.
    assert send(client, addr_of(node), "Read", queue_id=0).ext["queueOffset"] == "1"
    assert send(client, addr_of(node), "Unread", b"x", queue_id=0).code == 0
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
    unread = node.store.queues.get("Unread", 0)
    assert unread is not None
    assert (unread.min_offset, unread.max_offset) == (1, 2)


def test_expired_log_files_go_when_a_person_says_so(start: Start, client: BlockingClient) -> None:
    node = start(log={"file_reserved_hours": 0, "delete_when": "", "clean_interval_ms": 3_600_000})
    for _ in range(10):
        send(client, addr_of(node), "T", bytes(8 * 1024))
    assert node.store.log.start == 0
    assert ask(client, node, RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    wait_until(lambda: node.store.log.start > 0, "the first segment has gone")


# The rest


def test_system_topics_are_listed(start: Start, client: BlockingClient) -> None:
    answer = ask(client, start(), RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "C", "broker-a"} <= set(TopicList.decode(answer.body).topic_list)


def test_a_slave_answers_questions_and_refuses_changes(start: Start, client: BlockingClient) -> None:
    slave = start(role=BrokerRole.SLAVE)
    assert ask(client, slave, RequestCode.GET_CONSUME_STATS, consumerGroup="G").code == 0
    assert ask(client, slave, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false").code == 0
    refused = ask(client, slave, RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="H")
    assert (refused.code, "slave" in (refused.remark or "")) == (1, True)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_CONSUME_STATS,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.VIEW_BROKER_STATS_DATA,
    ],
)
def test_a_missing_field_is_named(start: Start, client: BlockingClient, code: RequestCode) -> None:
    answer = ask(client, start(), code)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is missing" in (answer.remark or "")
