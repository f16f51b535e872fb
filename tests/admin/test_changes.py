"""Commands that change something: who is told, in which order, and what becomes of one that refuses."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

import pytest

from haservice.admin.calls import Broker
from haservice.admin.commands.nodes.config import property_line
from haservice.admin.fanout import addrs_of
from haservice.client import Admin, ClientOptions, TopicKept
from haservice.devtools.pair import free_port_block
from haservice.remoting.bodies.clients import (
    BrokerData,
    ClusterInfo,
    QueueData,
    SubscriptionGroupConfig,
    TopicRouteData,
    TopicStatsTable,
)
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import (
    DeleteSubscriptionGroupHeader,
    KVValueResponseHeader,
    PutKVConfigHeader,
)
from haservice.remoting.headers.clients import (
    CreateTopicHeader,
    DeleteTopicInNamesrvHeader,
    TopicHeader,
    WipeWritePermResponseHeader,
)
from tests.admin.asking import Serve, body, run


class Told:
    """Answers SUCCESS and keeps the requests in the order they came, from all who share it."""

    def __init__(self) -> None:
        self.requests: list[RemotingCommand] = []

    def __call__(self, request: RemotingCommand) -> RemotingCommand:
        self.requests.append(request)
        return request.answer()

    @property
    def codes(self) -> list[int]:
        return [request.code for request in self.requests]


def refuse(code: int, remark: str) -> Callable[[RemotingCommand], RemotingCommand]:
    return lambda request: request.answer(code, remark)


def cluster_of(*masters: str) -> ClusterInfo:
    names = [f"broker-{number}" for number in range(len(masters))]
    table = {name: BrokerData(name, "C", {0: addr}) for name, addr in zip(names, masters, strict=True)}
    return ClusterInfo(table, {"C": names})


def test_a_master_that_is_down_does_not_keep_the_others_from_it(serve: Serve) -> None:
    told = Told()
    up = serve({RequestCode.UPDATE_AND_CREATE_TOPIC: told})
    down = f"127.0.0.1:{free_port_block(1)}"
    namesrv = serve({RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(down, up).encode())})
    result = run("updateTopic", "-n", namesrv, "-c", "C", "-t", "T", "-f", "json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown["brokerAddrs"] == [up]
    assert list(shown["failures"]) == [down]
    assert CreateTopicHeader.decode(told.requests[0].ext).topic == "T"


def test_one_broker_that_refuses_is_an_error_in_its_own_words(serve: Serve) -> None:
    addr = serve({RequestCode.UPDATE_AND_CREATE_TOPIC: refuse(ResponseCode.SYSTEM_ERROR, "not this one")})
    result = run("updateTopic", "-b", addr, "-t", "T")
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "not this one" in result.output


@pytest.mark.parametrize("where", ["-b", "-c"])
def test_an_ordered_topic_is_added_to_what_the_nameserver_has_of_brokers_that_may_be_down(
    serve: Serve, where: str
) -> None:
    told = Told()
    broker = serve({RequestCode.UPDATE_AND_CREATE_TOPIC: Told()})
    namesrv = serve(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(broker).encode()),
            RequestCode.GET_KV_CONFIG: lambda r: r.answer(ext=KVValueResponseHeader("broker-z:2").encode()),
            RequestCode.PUT_KV_CONFIG: told,
        }
    )
    at = (where, broker if where == "-b" else "C")
    result = run("updateTopic", "-n", namesrv, *at, "-t", "T", "-w", "4", "-o", "true")
    assert result.exit_code == 0, result.output
    assert "T: ordered at broker-0:4;broker-z:2\n" in result.output
    assert PutKVConfigHeader.decode(told.requests[0].ext) == PutKVConfigHeader(
        "ORDER_TOPIC_CONFIG", "T", "broker-0:4;broker-z:2"
    )


def test_an_ordered_topic_is_not_made_beside_a_malformed_configuration(serve: Serve) -> None:
    told = Told()
    broker = serve({RequestCode.UPDATE_AND_CREATE_TOPIC: told})
    namesrv = serve(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(broker).encode()),
            RequestCode.GET_KV_CONFIG: lambda r: r.answer(ext=KVValueResponseHeader("broker-z").encode()),
            RequestCode.PUT_KV_CONFIG: told,
        }
    )
    result = run("updateTopic", "-n", namesrv, "-b", broker, "-t", "T", "-w", "4", "-o", "true")
    assert result.exit_code == 1
    assert "'broker-z' is not brokerName:num" in result.stderr
    assert told.requests == []
    arguments = shlex.split(
        result.stderr.partition("mqadmin ")[2].partition(" stores")[0].replace(";...", "")
    )
    assert run(*arguments, "-n", namesrv).exit_code == 0
    assert PutKVConfigHeader.decode(told.requests[0].ext).value == "broker-0:4"


@pytest.mark.parametrize("flags", [("-o",), ("-o", "true"), ("--order", "TRUE"), ("-order", "true")])
def test_a_switch_of_stock_takes_a_word_or_stands_alone(serve: Serve, flags: tuple[str, ...]) -> None:
    told = Told()
    broker = serve({RequestCode.UPDATE_AND_CREATE_TOPIC: told})
    namesrv = serve(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(broker).encode()),
            RequestCode.GET_KV_CONFIG: refuse(ResponseCode.QUERY_NOT_FOUND, "none"),
            RequestCode.PUT_KV_CONFIG: Told(),
        }
    )
    result = run("updateTopic", *flags, "-n", namesrv, "-c", "C", "-topic", "T")
    assert result.exit_code == 0, result.output
    assert CreateTopicHeader.decode(told.requests[0].ext).order is True


def test_each_broker_keeps_its_queues_when_the_permission_changes(serve: Serve) -> None:
    told = Told()
    one, other = (serve({RequestCode.UPDATE_AND_CREATE_TOPIC: told}) for _ in range(2))
    route = TopicRouteData(
        (QueueData("broker-0", 1, 2, 6), QueueData("broker-1", 3, 4, 4)),
        (BrokerData("broker-0", "C", {0: one}), BrokerData("broker-1", "C", {0: other})),
    )
    namesrv = serve(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(one, other).encode()),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route.encode()),
        }
    )
    result = run("updateTopicPerm", "-n", namesrv, "-c", "C", "-t", "T", "-p", "2")
    assert f"update topic perm from 4 to 2 in {other} success." in result.output
    headers = [CreateTopicHeader.decode(request.ext) for request in told.requests]
    assert [(h.read_queue_nums, h.write_queue_nums, h.perm) for h in headers] == [(1, 2, 2), (3, 4, 2)]


def test_a_topic_goes_from_the_brokers_first_and_then_from_every_nameserver(serve: Serve) -> None:
    told = Told()
    broker = serve({RequestCode.DELETE_TOPIC_IN_BROKER: told})
    answers = {
        RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(broker).encode()),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: told,
    }
    result = run("deleteTopic", "-n", f"{serve(answers)};{serve(answers)}", "-c", "C", "-t", "T")
    assert result.exit_code == 0, result.output
    assert told.codes == [RequestCode.DELETE_TOPIC_IN_BROKER, *[RequestCode.DELETE_TOPIC_IN_NAMESRV] * 2]
    assert TopicHeader.decode(told.requests[0].ext).topic == "T"
    assert DeleteTopicInNamesrvHeader.decode(told.requests[1].ext).cluster_name == "C"


def test_a_topic_that_a_master_keeps_stays_in_the_routes(serve: Serve) -> None:
    told = Told()
    broker = serve({RequestCode.DELETE_TOPIC_IN_BROKER: refuse(1, "a system topic")})
    answers = {
        RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(broker).encode()),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: told,
    }
    assert run("deleteTopic", "-n", serve(answers), "-c", "C", "-t", "T").exit_code == 1
    assert told.requests == []


def test_a_broker_name_without_a_master_keeps_the_topic_and_is_named(serve: Serve) -> None:
    told = Told()
    broker = serve({RequestCode.DELETE_TOPIC_IN_BROKER: told})
    cluster = cluster_of(broker)
    slave_only = BrokerData("broker-gone", "C", {1: "10.0.0.9:10911"})
    cluster = ClusterInfo(
        {**cluster.broker_addr_table, "broker-gone": slave_only},
        {"C": [*cluster.cluster_addr_table["C"], "broker-gone"]},
    )
    answers = {
        RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster.encode()),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: told,
    }
    namesrv = serve(answers)
    result = run("deleteTopic", "-n", namesrv, "-c", "C", "-t", "T")
    assert result.exit_code == 1, result.output
    assert "NOT deleted at broker-gone: it has no master now, its slave is 10.0.0.9:10911." in result.stderr
    assert "delete topic [T] from cluster [C] success." in result.stdout
    assert told.codes == [RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV]

    as_json = run("deleteTopic", "-n", namesrv, "-c", "C", "-t", "T", "-f", "json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["noMasterAt"] == ["broker-gone"]


def test_applications_are_told_of_a_broker_name_that_keeps_the_topic(serve: Serve) -> None:
    told = Told()
    has_it = body(TopicStatsTable({}).encode())
    broker = serve({RequestCode.DELETE_TOPIC_IN_BROKER: told, RequestCode.GET_TOPIC_STATS_INFO: has_it})

    def delete(slave: str) -> None:
        cluster = cluster_of(broker)
        slave_only = BrokerData("broker-gone", "C", {1: slave})
        cluster = ClusterInfo(
            {**cluster.broker_addr_table, "broker-gone": slave_only},
            {"C": [*cluster.cluster_addr_table["C"], "broker-gone"]},
        )
        answers = {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster.encode()),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: told,
        }
        with Admin(ClientOptions(serve(answers))) as admin:
            admin.delete_topic("T")

    with pytest.raises(TopicKept, match="not deleted at broker-gone, which has no master now") as error:
        delete(serve({RequestCode.GET_TOPIC_STATS_INFO: has_it}))
    assert (error.value.topic, error.value.brokers) == ("T", ("broker-gone",))
    assert told.codes == [RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV]
    with pytest.raises(TopicKept):  # nobody knows whether it has the topic
        delete("127.0.0.1:1")
    delete(serve({RequestCode.GET_TOPIC_STATS_INFO: refuse(ResponseCode.TOPIC_NOT_EXIST, "no")}))


def test_a_master_that_cannot_delete_a_topic_does_not_keep_it_at_the_others(serve: Serve) -> None:
    told = Told()
    one, other = (
        serve({RequestCode.DELETE_TOPIC_IN_BROKER: refuse(1, "no")}),
        serve({RequestCode.DELETE_TOPIC_IN_BROKER: told}),
    )
    namesrv = serve({RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(one, other).encode())})
    result = run("deleteTopic", "-n", namesrv, "-c", "C", "-t", "T")
    assert result.exit_code == 1
    assert one in result.stderr
    assert told.codes == [RequestCode.DELETE_TOPIC_IN_BROKER]


def test_a_group_is_sent_whole_with_the_defaults_of_stock(serve: Serve) -> None:
    told = Told()
    addr = serve({RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: told})
    assert run("updateSubGroup", "-b", addr, "-g", "g", "-r", "3", "-s", "false").exit_code == 0
    assert SubscriptionGroupConfig.decode(told.requests[0].body) == SubscriptionGroupConfig(
        "g",
        consume_enable=False,
        consume_from_min_enable=False,
        consume_broadcast_enable=False,
        retry_max_times=3,
    )


def test_a_group_of_a_cluster_goes_with_its_retry_and_dead_letter_topics(serve: Serve) -> None:
    told = Told()
    broker = serve({RequestCode.DELETE_SUBSCRIPTIONGROUP: told, RequestCode.DELETE_TOPIC_IN_BROKER: told})
    namesrv = serve(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(cluster_of(broker).encode()),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: Told(),
        }
    )
    assert run("deleteSubGroup", "-n", namesrv, "-c", "C", "-g", "g", "-r", "true").exit_code == 0
    first, *others = told.requests
    assert DeleteSubscriptionGroupHeader.decode(first.ext) == DeleteSubscriptionGroupHeader("g", True)
    assert [TopicHeader.decode(request.ext).topic for request in others] == ["%RETRY%g", "%DLQ%g"]


def test_every_nameserver_is_told_to_wipe_though_one_is_down(serve: Serve) -> None:
    answer = WipeWritePermResponseHeader(5).encode()
    up = serve({RequestCode.WIPE_WRITE_PERM_OF_BROKER: lambda request: request.answer(ext=answer)})
    down = f"127.0.0.1:{free_port_block(1)}"
    result = run("wipeWritePerm", "-n", f"{down};{up}", "-b", "broker-a")
    assert result.exit_code == 1
    assert f"wipe write perm of broker[broker-a] in name server[{up}] OK, 5" in result.output
    assert down in result.output


def test_a_key_is_changed_by_a_line_that_reads_as_it_was_typed(serve: Serve) -> None:
    told = Told()
    addr = serve({RequestCode.UPDATE_BROKER_CONFIG: told})
    assert run("updateBrokerConfig", "-b", addr, "-k", "path", "-v", "C:\\new={a}").exit_code == 0
    assert bytes(told.requests[0].body) == b"path=C:\\\\new={a}" == property_line("path", "C:\\new={a}")
    assert run("updateBrokerConfig", "-b", addr, "-k", "a=b", "-v", "c").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("updateTopic", "-t", "T"),
        ("deleteTopic", "-t", "T"),
        ("updateSubGroup", "-g", "g"),
        ("updateBrokerConfig", "-k", "a", "-v", "b"),
        ("updateOrderConf", "-t", "T", "-m", "put"),
        ("updateOrderConf", "-t", "T", "-m", "put", "-v", "broker-a"),
        ("exportConfigs",),
    ],
)
def test_what_is_not_said_is_asked_for(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "-n", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "Usage: " in result.output


def test_addresses_of_brokers_keep_their_order() -> None:
    assert addrs_of([Broker("C", "b", 0, "h:2"), Broker("C", "a", 1, "h:1")]) == ["h:2", "h:1"]
