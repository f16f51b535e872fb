"""All topics and all groups in a few answers: the same figures as RocketMQ's requests for one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from haservice.broker.node import BrokerNode
from haservice.broker.stats.budget import CounterBudget
from haservice.remoting.bodies.admin import BrokerStatsData, ConsumerConnection, ConsumeStats
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.overview import GroupsOverview, TopicOverview, TopicsOverview
from tests.broker.test_admin_requests import Start, ask, commit, fill, join, peers
from tests.support.remoting import Peer
from tests.support.waiting import wait_until

__all__ = ["peers"]

PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 2, "sysFlag": 4,
    "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
}  # fmt: skip


def topics_of(client: BlockingClient, node: BrokerNode, **ext: object) -> dict[str, TopicOverview]:
    answer = ask(client, node, RequestCode.GET_TOPICS_OVERVIEW, **ext)
    assert answer.code == 0, answer.remark
    return {one.topic: one for one in TopicsOverview.decode(answer.body).topics}


def test_topics_have_the_figures_of_the_requests_for_one_topic(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 5, 1)
    fill(client, node, 2, topic="U")
    commit(node, 2, group="G")
    commit(node, 1, 1, group="H")
    commit(node, 1, group="G", topic="U")
    join(peers(node), "c1")  # G subscribes T and no longer U
    assert ask(client, node, RequestCode.PULL_MESSAGE, **PULL).code == 0
    found = topics_of(client, node)
    for topic in ("T", "U"):
        puts = ask(
            client, node, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey=topic
        )
        alone = BrokerStatsData.decode(puts.body)
        body = found[topic].puts
        assert body is not None
        assert (body.sum, round(body.tps, 3)) == (alone.stats_day.sum, round(alone.stats_minute.tps, 3))
        for group in found[topic].groups:
            stats = ask(client, node, RequestCode.GET_CONSUME_STATS, consumerGroup=group.group, topic=topic)
            table = ConsumeStats.decode(stats.body).offset_table
            assert group.behind == sum(one.lag for one in table.values()), group
    behind = {name: {one.group: one.behind for one in found[name].groups} for name in ("T", "U")}
    assert behind == {"T": {"G": 4, "H": 4}, "U": {"G": 0}}
    gets = {one.group: one.gets for one in found["T"].groups}
    assert gets["G"] is not None
    assert gets["G"].sum == 2
    assert gets["H"] is None
    assert found["TBW102"].puts is None
    assert found["TBW102"].groups == ()


def test_groups_have_the_figures_of_the_requests_for_one_group(
    start: Start, client: BlockingClient, peers: Callable[[BrokerNode], Peer]
) -> None:
    node = start()
    fill(client, node, 5, 1)
    fill(client, node, 2, topic="U")
    commit(node, 2, group="G")
    commit(node, 1, group="G", topic="U")
    commit(node, 1, group="H", topic="U")
    join(peers(node), "c1", version=401)
    join(peers(node), "c2", version=399)
    answer = ask(client, node, RequestCode.GET_GROUPS_OVERVIEW)
    body = GroupsOverview.decode(answer.body)
    assert not body.more
    groups = {one.group: one for one in body.groups}
    online, offline = groups["G"], groups["H"]
    assert (online.members, online.version, online.message_model) == (2, 399, "CLUSTERING")
    assert (offline.members, offline.consume_type, offline.behind) == (0, None, 1)
    stats = ConsumeStats.decode(ask(client, node, RequestCode.GET_CONSUME_STATS, consumerGroup="G").body)
    assert online.behind == sum(one.lag for one in stats.offset_table.values()) == 4
    listed = ask(client, node, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")
    assert online.consume_type == ConsumerConnection.decode(listed.body).consume_type


def test_names_come_in_pages_and_one_can_be_asked_for(start: Start, client: BlockingClient) -> None:
    node = start()
    for number in range(7):
        fill(client, node, 1, topic=f"T{number}")
    every = sorted(topic.topic_name for topic in node.topics)
    seen: list[str] = []
    after, pages = "", 0
    while True:
        answer = ask(client, node, RequestCode.GET_TOPICS_OVERVIEW, after=after, count=3)
        body = TopicsOverview.decode(answer.body)
        names = [one.topic for one in body.topics]
        assert len(names) <= 3
        seen += names
        pages += 1
        if not body.more:
            break
        after = names[-1]
    assert seen == every
    assert pages == -(-len(every) // 3)
    assert list(topics_of(client, node, only="T3")) == ["T3"]
    assert topics_of(client, node, only="nothing") == {}


def test_what_has_no_counter_is_told_where_it_is_missing(
    start: Start, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    fill(client, node, 1)
    monkeypatch.setattr(CounterBudget, "counter", lambda budget, key, messages: None)
    node.stats.traffic._budget.left_out = 3
    body = TopicsOverview.decode(ask(client, node, RequestCode.GET_TOPICS_OVERVIEW).body)
    assert "3 messages of 0 or more topics and groups were not counted" in body.left_out
    answer = ask(
        client, node, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="elsewhere"
    )
    assert answer.remark == f"The stats <TOPIC_PUT_NUMS> <elsewhere> not exist; {body.left_out}"
    wait_until(lambda: node.stats.table()["statisticsLeftOut"] == body.left_out, "request 28 has it, too")


def test_the_reading_of_pages_is_off_the_loop(
    start: Start, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    fill(client, node, 1)
    commit(node, 1)
    threads: set[str] = set()
    ends = type(node.store.queues).get

    def seen(*arguments: object) -> object:
        threads.add(threading.current_thread().name)
        return ends(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(node.store.queues), "get", seen)
    topics_of(client, node)
    ask(client, node, RequestCode.GET_GROUPS_OVERVIEW)
    assert threads
    assert all(name.startswith("remoting-work_") for name in threads), threads
