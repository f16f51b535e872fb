"""consumerProgress, consumerStatus, connections and offsets: brokers put together, and members judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from haservice.admin.commands.groups.consumer_status import wrong_queues, wrong_subscriptions
from haservice.devtools.pair import free_port_block
from haservice.remoting.bodies.admin import (
    ClientConnection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    ProcessQueueInfo,
    QueueProgress,
    ResetOffsetBody,
)
from haservice.remoting.bodies.clients import (
    BrokerData,
    ClusterInfo,
    MessageQueue,
    QueueData,
    SubscriptionData,
    TopicRouteData,
)
from haservice.remoting.codes import LanguageCode, RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import ConsumeStatsHeader, ResetOffsetHeader
from haservice.remoting.headers.clients import OffsetResponseHeader, RouteHeader, UpdateConsumerOffsetHeader
from tests.admin.asking import Serve, body, run

NOW_MS = 1_700_000_000_000
OFFLINE = int(ResponseCode.CONSUMER_NOT_ONLINE)


def stats(name: str, *progress: tuple[int, int]) -> ConsumeStats:
    """Queues of topic T at a broker: (end, the group's offset)."""
    return ConsumeStats(
        1.5,
        {
            MessageQueue("T", name, number): QueueProgress(end, offset, NOW_MS)
            for number, (end, offset) in enumerate(progress)
        },
    )


def two_brokers(serve: Serve, one: str, other: str) -> str:
    """A nameserver that knows every topic at both."""
    route = TopicRouteData(
        (QueueData("a", 2, 2, 6), QueueData("b", 1, 1, 6)),
        (BrokerData("a", "C", {0: one}), BrokerData("b", "C", {0: other})),
    )
    return serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route.encode())})


def test_progress_is_of_all_brokers_together(serve: Serve) -> None:
    one = serve({RequestCode.GET_CONSUME_STATS: body(stats("a", (10, 7), (5, 5)).encode())})
    other = serve({RequestCode.GET_CONSUME_STATS: body(stats("b", (3, 0)).encode())})
    namesrv = two_brokers(serve, one, other)
    shown = json.loads(run("consumerProgress", "-n", namesrv, "-g", "g", "-f", "json").stdout)
    assert (shown["consumeTps"], shown["diffTotal"]) == (3.0, 6)
    assert [(row["brokerName"], row["diff"]) for row in shown["queues"]] == [("a", 3), ("a", 0), ("b", 3)]
    assert "Diff Total: 6" in run("consumerProgress", "-n", namesrv, "-g", "g").output


def test_progress_of_the_brokers_that_answer_is_shown_and_the_exit_code_is_1(serve: Serve) -> None:
    one = serve({RequestCode.GET_CONSUME_STATS: body(stats("a", (10, 7)).encode())})
    down = f"127.0.0.1:{free_port_block(1)}"
    result = run("consumerProgress", "-n", two_brokers(serve, one, down), "-g", "g")
    assert result.exit_code == 1
    assert "Diff Total: 3" in result.stdout
    assert down in result.stderr


def test_a_group_without_any_offset_is_said_to_have_none(serve: Serve) -> None:
    none = serve({RequestCode.GET_CONSUME_STATS: body(stats("a").encode())})
    result = run("consumerProgress", "-n", two_brokers(serve, none, none), "-g", "orders-typo")
    assert result.exit_code == 1
    assert "no broker has an offset of group 'orders-typo'" in result.stderr


def test_a_group_without_a_retry_topic_is_looked_for_at_every_master(serve: Serve) -> None:
    broker = serve({RequestCode.GET_CONSUME_STATS: body(stats("a", (4, 1)).encode())})
    info = ClusterInfo({"a": BrokerData("a", "C", {0: broker, 1: "127.0.0.1:1"})}, {"C": ("a",)})
    asked: list[str] = []

    def no_route(request: RemotingCommand) -> RemotingCommand:
        asked.append(RouteHeader.decode(request.ext).topic)
        return request.answer(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")

    namesrv = serve(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: no_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: body(info.encode()),
        }
    )
    assert (
        json.loads(run("consumerProgress", "-n", namesrv, "-g", "g", "-f", "json").stdout)["diffTotal"] == 3
    )
    assert asked == ["%RETRY%g"]


def test_members_that_any_broker_knows_are_listed_once(serve: Serve) -> None:
    def known(*client_ids: str) -> bytes:
        members = tuple(ClientConnection(client_id, "10.0.0.1:1", "GO", 317) for client_id in client_ids)
        data = SubscriptionData("T", "A || B", "TAG")
        return ConsumerConnection(members, {"T": data}, "CONSUME_PASSIVELY", "CLUSTERING").encode()

    one = serve({RequestCode.GET_CONSUMER_CONNECTION_LIST: body(known("y", "x"))})
    other = serve({RequestCode.GET_CONSUMER_CONNECTION_LIST: body(known("y", "z"))})
    namesrv = two_brokers(serve, one, other)
    shown = json.loads(run("consumerConnection", "-n", namesrv, "-g", "g", "-f", "json").stdout)
    assert [member["clientId"] for member in shown["connections"]] == ["x", "y", "z"]
    table = run("consumerConnection", "-n", namesrv, "-g", "g").output
    assert "V4_5_2" in table
    assert "MessageModel: CLUSTERING" in table


def test_a_group_that_is_nowhere_online_is_told_with_where_to_look(serve: Serve) -> None:
    offline = {RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda r: r.answer(OFFLINE, "not online")}
    result = run("consumerConnection", "-n", two_brokers(serve, serve(offline), serve(offline)), "-g", "g")
    assert result.exit_code == 1
    assert "consumerProgress -g shows how far it came" in result.output


# -- offsets -------------------------------------------------------------------------------------------


class Offline:
    """A broker where the group has no member: it takes offsets by 15."""

    def __init__(self, progress: ConsumeStats, found: int) -> None:
        self.progress = progress
        self.found = OffsetResponseHeader(found).encode()
        self.groups = ["g"]
        self.written: list[UpdateConsumerOffsetHeader] = []

    def start(self, serve: Serve) -> str:
        return serve(
            {
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda r: r.answer(OFFLINE, "not online"),
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: body(GroupList(self.groups).encode()),
                RequestCode.GET_CONSUME_STATS: self.of_topic,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda r: r.answer(ext=self.found),
                RequestCode.GET_MAX_OFFSET: lambda r: r.answer(ext=self.found),
                RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            }
        )

    def of_topic(self, request: RemotingCommand) -> RemotingCommand:
        assert ConsumeStatsHeader.decode(request.ext).topic == "T"  # not of all topics that the group has
        return request.answer(body=self.progress.encode())

    def update(self, request: RemotingCommand) -> RemotingCommand:
        self.written.append(UpdateConsumerOffsetHeader.decode(request.ext))
        return request.answer()


def test_members_are_told_where_they_are_online_and_offsets_moved_where_not(serve: Serve) -> None:
    asked: list[RemotingCommand] = []

    def reset(request: RemotingCommand) -> RemotingCommand:
        asked.append(request)
        return request.answer(body=ResetOffsetBody({MessageQueue("T", "a", 0): 4}).encode())

    offline = Offline(stats("b", (9, 8)), 2)
    online = serve({RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset})
    namesrv = two_brokers(serve, online, offline.start(serve))
    arguments = ("resetOffsetByTime", "-n", namesrv, "-g", "g", "-t", "T", "-s", "1000", "-c")
    rows = json.loads(run(*arguments, "--format", "json").stdout)
    assert [(row["brokerName"], row["offset"], row["online"]) for row in rows] == [
        ("a", 4, True),
        ("b", 2, False),
    ]
    assert offline.written == [UpdateConsumerOffsetHeader("g", "T", 0, 2)]
    (request,) = asked
    assert ResetOffsetHeader.decode(request.ext) == ResetOffsetHeader("T", "g", 1000, True)
    assert request.language == LanguageCode.CPP


def test_without_force_a_group_is_never_sent_forward(serve: Serve) -> None:
    offline = Offline(stats("a", (9, 3), (9, 8)), 5)
    addr = offline.start(serve)
    namesrv = serve(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: body(
                TopicRouteData((QueueData("a", 2, 2, 6),), (BrokerData("a", "C", {0: addr}),)).encode()
            )
        }
    )
    arguments = ("skipAccumulatedMessage", "-n", namesrv, "-g", "g", "-t", "T", "-f", "false")
    rows = json.loads(run(*arguments, "--format", "json").stdout)
    assert [(row["consumerOffset"], row["offset"]) for row in rows] == [(3, 3), (8, 5)]
    assert offline.written == [UpdateConsumerOffsetHeader("g", "T", 1, 5)]


def test_a_group_without_offsets_cannot_be_cloned(serve: Serve) -> None:
    addr = serve({RequestCode.GET_CONSUME_STATS: body(ConsumeStats().encode())})
    result = run("cloneGroupOffset", "-n", two_brokers(serve, addr, addr), "-s", "x", "-d", "y", "-t", "T")
    assert result.exit_code == 1
    assert "consumerProgress -g x" in result.output


# -- what members tell of themselves -------------------------------------------------------------------


def member(expression: str = "*", *, age_ms: int = 200_000, **queue: object) -> ConsumerRunningInfo:
    process = ProcessQueueInfo(**queue)  # type: ignore[arg-type]
    return ConsumerRunningInfo(
        {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMER_START_TIMESTAMP": str(NOW_MS - age_ms),
            "PROP_CONSUMEORDERLY": "false",
        },
        (SubscriptionData("T", expression),),
        {MessageQueue("T", "a", 0): process},
    )


def test_members_that_subscribe_differently_are_found_once_they_are_settled() -> None:
    assert list(wrong_subscriptions({"x": member("A"), "y": member("A")}, NOW_MS)) == []
    (found,) = wrong_subscriptions({"x": member("A"), "y": member("B")}, NOW_MS)
    assert "Different subscription" in found
    assert list(wrong_subscriptions({"x": member("A"), "y": member("B", age_ms=1000)}, NOW_MS)) == []


@pytest.mark.parametrize(
    ("cached", "idle_ms", "stuck"), [(1, 61_000, True), (0, 61_000, False), (1, 59_000, False)]
)
def test_a_member_is_stuck_when_it_has_messages_and_works_on_none(
    cached: int, idle_ms: int, stuck: bool
) -> None:
    info = member(cached_msg_count=cached, last_consume_timestamp=NOW_MS - idle_ms)
    assert bool(list(wrong_queues({"x": info}, NOW_MS))) is stuck


def test_the_account_of_each_member_goes_to_a_file(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    members = ConsumerConnection((ClientConnection("10.0.0.1@7"),))
    addr = serve(
        {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: body(members.encode()),
            RequestCode.GET_CONSUMER_RUNNING_INFO: body(member("A || B").encode()),
        }
    )
    result = run("consumerStatus", "-b", addr, "-g", "g")
    assert result.exit_code == 0, result.output
    (file,) = tmp_path.glob("*/10.0.0.1@7")
    assert "A || B" in file.read_text()
    assert "A || B" in run("consumerStatus", "-b", addr, "-g", "g", "-i", "10.0.0.1@7").output
