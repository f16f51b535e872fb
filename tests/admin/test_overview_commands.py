"""statsAll, topicList -c and consumerProgress: a few questions to our brokers, many at a time to stock ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from haservice.admin import many
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.groups.consumers import overview_of
from haservice.admin.many import FAILURES_MAX, IN_FLIGHT, Call
from haservice.devtools.pair import free_port_block
from haservice.errors import AnswerError, RemotingUnreachable
from haservice.remoting.bodies.admin import (
    BrokerStatsData,
    ClientConnection,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    QueueProgress,
    StatsItem,
)
from haservice.remoting.bodies.clients import (
    BrokerData,
    ClusterInfo,
    MessageQueue,
    QueueData,
    TopicList,
    TopicRouteData,
)
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import BrokerStatsHeader, ConsumeStatsHeader
from haservice.remoting.headers.clients import RouteHeader, TopicHeader
from haservice.remoting.headers.overview import (
    GroupInTopic,
    GroupOverview,
    GroupsOverview,
    PageHeader,
    TopicOverview,
    TopicsOverview,
    TrafficBody,
)
from tests.admin.asking import Serve, run

Answer = Callable[[RemotingCommand], RemotingCommand]
TOPICS = [f"T{number}" for number in range(5)]
GROUP_GETS = TrafficBody(0.5, 30)


class Stage:
    """A nameserver and brokers by name; `asked` counts the requests."""

    def __init__(self, serve: Serve, topics: list[str]) -> None:
        self.serve = serve
        self.topics = topics
        self.asked: Counter[int] = Counter()
        self.brokers: dict[str, str] = {}

    def broker(self, name: str, answers: dict[RequestCode, Answer]) -> None:
        self.brokers[name] = self.counting(answers)

    def counting(self, answers: dict[RequestCode, Answer]) -> str:
        def counted(code: RequestCode) -> Answer:
            def answer(request: RemotingCommand) -> RemotingCommand:
                self.asked[code] += 1
                return answers[code](request)

            return answer

        return self.serve({code: counted(code) for code in answers})

    def namesrv(self) -> str:
        datas = {name: BrokerData(name, "C", {0: addr}) for name, addr in self.brokers.items()}

        def route(request: RemotingCommand) -> RemotingCommand:
            if RouteHeader.decode(request.ext).topic not in self.topics:
                return request.answer(ResponseCode.TOPIC_NOT_EXIST, "no route")
            queues = tuple(QueueData(name, 2, 2, 6) for name in datas)
            return request.answer(body=TopicRouteData(queues, tuple(datas.values())).encode())

        info = ClusterInfo(datas, {"C": tuple(datas)})
        return self.counting(
            {
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda request: request.answer(
                    body=TopicList(tuple(self.topics)).encode()
                ),
                RequestCode.GET_BROKER_CLUSTER_INFO: lambda request: request.answer(body=info.encode()),
                RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
            }
        )


def ours(topics: list[TopicOverview], left_out: str = "", page: int = 2) -> dict[RequestCode, Answer]:
    def answer(request: RemotingCommand) -> RemotingCommand:
        header = PageHeader.decode(request.ext)
        rest = [one for one in topics if one.topic > header.after and header.only in (None, one.topic)]
        body = TopicsOverview(rest[:page], len(rest) > page, left_out)
        return request.answer(body=body.encode())

    return {RequestCode.GET_TOPICS_OVERVIEW: answer}


def stock(groups: dict[str, list[str]]) -> dict[RequestCode, Answer]:
    """Two messages went into each topic, one came out to each group, one is left."""

    def figures(request: RemotingCommand) -> RemotingCommand:
        header = BrokerStatsHeader.decode(request.ext)
        count = 2 if header.stats_name == "TOPIC_PUT_NUMS" else 1
        item = StatsItem(count, count / 10, 1.0)
        # Stock has no figures of a day in its first hour.
        return request.answer(body=BrokerStatsData(item, StatsItem(), StatsItem()).encode())

    def progress(request: RemotingCommand) -> RemotingCommand:
        header = ConsumeStatsHeader.decode(request.ext)
        topics = (
            [header.topic]
            if header.topic
            else [t for t, who in groups.items() if header.consumer_group in who]
        )
        table = {MessageQueue(topic or "", "b", 0): QueueProgress(2, 1, 1) for topic in topics}
        return request.answer(body=ConsumeStats(0.1 * len(table), table).encode())

    def by_whom(request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=GroupList(groups.get(TopicHeader.decode(request.ext).topic, [])).encode())

    def members(request: RemotingCommand) -> RemotingCommand:
        connections = (ClientConnection("c1", "10.0.0.1:1", "JAVA", 401),)
        return request.answer(
            body=ConsumerConnection(connections, {}, "CONSUME_PASSIVELY", "CLUSTERING").encode()
        )

    return {
        RequestCode.VIEW_BROKER_STATS_DATA: figures,
        RequestCode.GET_CONSUME_STATS: progress,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: by_whom,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: members,
    }


def overview(topic: str, **more: int) -> TopicOverview:
    groups = [GroupInTopic(group, behind, GROUP_GETS) for group, behind in more.items()]
    return TopicOverview(topic, TrafficBody(1.5, 100), groups)


def rows(*arguments: str, code: int = 0) -> list[tuple[object, ...]]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == code, result.output
    return [tuple(row.values()) for row in json.loads(result.stdout)]


def test_our_brokers_are_asked_for_pages_and_put_together(serve: Serve) -> None:
    stage = Stage(serve, [*TOPICS, "%RETRY%g", "gone"])
    stage.broker("a", ours([overview(topic, g=3) for topic in [*TOPICS, "not-registered"]]))
    stage.broker("b", ours([overview("T0", g=4, h=1)]))
    found = rows("statsAll", "-n", stage.namesrv())
    assert found[:3] == [
        ("T0", "g", 7, 3.0, 1.0, 200, 60),
        ("T0", "h", 1, 3.0, 0.5, 200, 30),
        ("T1", "g", 3, 1.5, 0.5, 100, 30),
    ]
    # In the nameserver's list, and at no broker that answered.
    assert found[-1] == ("gone", None, 0, 0.0, None, 0, None)
    assert [row[0] for row in found] == ["T0", *TOPICS, "gone"]
    assert stage.asked[RequestCode.GET_TOPICS_OVERVIEW] == 3 + 1
    assert stage.asked[RequestCode.GET_ROUTEINFO_BY_TOPIC] == 1


def test_the_requests_to_our_brokers_do_not_grow_with_the_topics(serve: Serve) -> None:
    topics = [f"T{number:04d}" for number in range(3000)]
    stage = Stage(serve, topics)
    stage.broker("a", ours([overview(topic, g=1) for topic in topics], page=1000))
    namesrv = stage.namesrv()
    assert len(rows("statsAll", "-n", namesrv)) == 3000
    assert len(rows("topicList", "-n", namesrv, "-c")) == 3000
    assert stage.asked.total() <= 2 * (3 + 3)


def test_one_topic_is_asked_for_alone(serve: Serve) -> None:
    stage = Stage(serve, TOPICS)
    stage.broker("a", ours([overview(topic, g=1) for topic in TOPICS]))
    assert [row[0] for row in rows("statsAll", "-n", stage.namesrv(), "-t", "T3")] == ["T3"]
    assert stage.asked[RequestCode.GET_TOPICS_OVERVIEW] == 1


def test_a_stock_broker_is_asked_rocketmqs_way(serve: Serve) -> None:
    """With one of ours beside it: both count, and none twice."""
    stage = Stage(serve, [*TOPICS, "%RETRY%g"])
    who = {"T0": ["g", "h"], "T1": ["g"]}
    stage.broker("b", stock(who))
    stage.broker("c", {**stock({}), **ours([overview("T0", g=3)])})
    namesrv = stage.namesrv()
    found = rows("statsAll", "-n", namesrv)
    assert found[:3] == [
        ("T0", "g", 2, 0.4, 0.2, 4, 2),
        ("T0", "h", 2, 0.4, 0.2, 4, 2),
        ("T1", "g", 2, 0.4, 0.2, 4, 2),
    ]
    assert found[3] == ("T2", None, 0, 0.4, None, 4, None)
    assert rows("topicList", "-n", namesrv, "-c")[:3] == [
        ("C", "T0", "g"),
        ("C", "T0", "h"),
        ("C", "T1", "g"),
    ]
    (group,) = rows("consumerProgress", "-n", namesrv)
    assert group == ("g", 1, 401, "PUSH", "CLUSTERING", 0.2, 2)


def test_all_groups_of_our_brokers_are_a_few_answers(serve: Serve) -> None:
    stage = Stage(serve, ["%RETRY%g", "%RETRY%h", "%RETRY%idle"])

    def answer(*groups: GroupOverview) -> dict[RequestCode, Answer]:
        return {
            RequestCode.GET_GROUPS_OVERVIEW: lambda request: request.answer(
                body=GroupsOverview(groups).encode()
            )
        }

    push = ("CONSUME_PASSIVELY", "CLUSTERING")
    stage.broker("a", answer(GroupOverview("g", 2, 401, *push, 1.0, 5), GroupOverview("no-retry", 1)))
    stage.broker("b", answer(GroupOverview("g", 1, 399, *push, 0.5, 2), GroupOverview("h", 0, behind=9)))
    assert rows("consumerProgress", "-n", stage.namesrv()) == [
        ("g", 2, 399, "PUSH", "CLUSTERING", 1.5, 7),
        ("h", 0, None, None, None, 0.0, 9),
        ("idle", 0, None, None, None, 0.0, 0),
    ]
    assert stage.asked.total() == 4


def test_some_groups_are_asked_for_from_the_first_to_the_last_of_them(serve: Serve) -> None:
    names = [f"g{number:02}" for number in range(12)]
    stage = Stage(serve, [f"%RETRY%{name}" for name in names])
    asked: list[str] = []

    def page(request: RemotingCommand) -> RemotingCommand:
        after = PageHeader.decode(request.ext).after
        asked.append(after)
        found = [name for name in names if name > after]
        body = GroupsOverview([GroupOverview(name, behind=1) for name in found[:3]], len(found) > 3)
        return request.answer(body=body.encode())

    stage.broker("a", {RequestCode.GET_GROUPS_OVERVIEW: page})
    with MQAdmin([stage.namesrv()]) as admin:
        found = overview_of(admin, ["g04", "g06"])
    assert [(name, group.behind) for name, group in found.groups.items()] == [("g04", 1), ("g06", 1)]
    assert asked == ["g0", "g02", "g05"], "neither all from the first, nor behind the last"


def test_what_is_not_counted_is_not_shown_as_nothing(serve: Serve) -> None:
    stage = Stage(serve, ["T0", "T1"])
    left_out = "7 messages of 1 or more topics and groups were not counted"
    topics = [
        TopicOverview("T0", None, [GroupInTopic("g", 3, None)]),
        TopicOverview("T1", TrafficBody(1.0, 5), [GroupInTopic("g", 0, TrafficBody(1.0, 4))]),
    ]
    stage.broker("a", ours(topics, left_out))
    namesrv = stage.namesrv()
    result = run("statsAll", "-n", namesrv, "-a")
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["T0", "g", "3", "-", "-", "-", "-"],
        ["T1", "g", "0", "1.00", "1.00", "5", "4"],
    ]
    assert f"Not all is counted at {stage.brokers['a']}: {left_out}" in result.stderr
    assert rows("statsAll", "-n", namesrv)[0] == ("T0", "g", 3, None, None, None, None)


@pytest.mark.parametrize("command", [("statsAll",), ("topicList", "-c"), ("consumerProgress",)])
def test_a_broker_that_does_not_answer_is_named(serve: Serve, command: tuple[str, ...]) -> None:
    stage = Stage(serve, ["T0", "%RETRY%g"])
    groups = GroupsOverview([GroupOverview("g", behind=3)]).encode()
    known = {RequestCode.GET_GROUPS_OVERVIEW: lambda request: request.answer(body=groups)}
    stage.broker("a", {**ours([overview("T0", g=3)]), **known})
    stage.brokers["b"] = f"127.0.0.1:{free_port_block(1)}"
    result = run(*command, "-n", stage.namesrv())
    assert result.exit_code == 1
    assert "g" in result.stdout.split()
    assert f"Not shown: {stage.brokers['b']}" in result.stderr


def test_a_broker_that_refuses_is_named(serve: Serve) -> None:
    stage = Stage(serve, ["T0"])
    stage.broker("a", ours([overview("T0", g=3)]))
    refuse: Answer = lambda request: request.answer(ResponseCode.NO_PERMISSION, "no admin")  # noqa: E731
    stage.broker("b", {RequestCode.GET_TOPICS_OVERVIEW: refuse})
    result = run("statsAll", "-n", stage.namesrv())
    assert result.exit_code == 1
    assert f"Not shown: {stage.brokers['b']}: answered code 16: no admin" in result.stderr


def test_an_address_that_does_not_answer_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand calls would wait ten thousand times."""
    asked: list[str] = []

    async def silent(client: object, call: Call, timeout_s: float) -> None:
        asked.append(call.addr)
        raise RemotingUnreachable(call.addr, "nobody there")

    monkeypatch.setattr(many, "_answer", silent)
    with MQAdmin(("127.0.0.1:1",)) as admin:
        results = admin.call_many([Call("a:1", RequestCode.GET_ROUTEINFO_BY_TOPIC)] * 1000)
    assert {type(one) for one in results} == {RemotingUnreachable}
    assert len(results) == 1000
    assert len(asked) <= IN_FLIGHT + FAILURES_MAX


def test_many_calls_have_their_own_results(serve: Serve) -> None:
    def route(request: RemotingCommand) -> RemotingCommand:
        topic = RouteHeader.decode(request.ext).topic
        if topic == "none":
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, "no route")
        return request.answer(body=TopicRouteData((QueueData(topic, 1, 1, 6),)).encode())

    addr = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: route})
    down = f"127.0.0.1:{free_port_block(1)}"
    names = [f"T{number}" for number in range(500)]
    names[7] = "none"
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    with MQAdmin((down, addr)) as admin:
        calls = [Call(addr, code, RouteHeader(name), TopicRouteData) for name in names]
        results = admin.call_many(calls)
        assert isinstance(results[7], AnswerError)
        del results[7], names[7]
        assert [one.queue_datas[0].broker_name for one in results] == names
        assert list(admin.routes(["T1", "none", "T2"])) == ["T1", "T2"]  # from the nameserver that answers
        assert admin.call_many([]) == []
