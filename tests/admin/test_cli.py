"""Commands as a user types them, against a broker made of answers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pkgutil
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from commitlog.kernel import records
from haservice.admin import calls, commands
from haservice.admin.cli import MODULES, commands_of, main
from haservice.client import raw_sends
from haservice.client.raw_sends import RawMessage, Tally, send_all
from haservice.devtools.pair import free_port_block
from haservice.remoting.bodies.clients import (
    BrokerData,
    ClusterInfo,
    HARuntimeInfo,
    KVTable,
    MessageQueue,
    QueueData,
    TopicList,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
)
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import KVValueResponseHeader
from haservice.remoting.headers.clients import (
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
)
from tests.admin.asking import Serve, body, route, run, stored
from tests.admin.conftest import Answers
from tests.support.remoting import serving
from tests.support.waiting import PATIENCE_S, wait_until


class Sends:
    """Answers sends with the codes given, then with SUCCESS."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.headers: list[SendMessageHeader] = []
        self.bodies: list[bytes] = []

    def __call__(self, request: RemotingCommand) -> RemotingCommand:
        header = SendMessageHeader.decode(request.code, request.ext)
        self.headers.append(header)
        self.bodies.append(bytes(request.body))
        code = self.codes.pop(0) if self.codes else int(ResponseCode.SUCCESS)
        if code not in (0, 10, 11, 12):
            return request.answer(code, "told why")
        answer = SendMessageResponseHeader("7F00000100002A9F0000000000000000", max(0, header.queue_id), 7)
        return request.answer(code, None if code == 0 else "told why", ext=answer.encode())


def test_every_command_of_every_module_is_in_a_section() -> None:
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}."):
        there = {} if module.ispkg else commands_of(module.name)
        inner = {name for one in there.values() if isinstance(one, click.Group) for name in one.commands}
        found |= dict.fromkeys(there.keys() - inner, module.name)
    assert found == MODULES


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_command_is_listed_and_explained(name: str) -> None:
    assert name in run("help").output
    assert "Usage: " in run("help", name).output
    assert run(name, "--help").exit_code == 0


def test_help_of_an_unknown_command_is_a_usage_error() -> None:
    assert run("help", "nonsense").exit_code == 2


def test_a_command_that_is_misspelt_is_named_with_the_nearest() -> None:
    result = CliRunner().invoke(main, ["chekc"])
    assert result.exit_code == 2
    assert "there is no command 'chekc': did you mean check?" in result.output


def test_an_address_where_nobody_listens_is_one_line_with_the_fix() -> None:
    addr = f"127.0.0.1:{free_port_block(1)}"
    result = run("clusterList", "-n", addr)
    assert result.exit_code == 1
    assert addr in result.output
    assert "-n names a nameserver" in result.output
    assert "Traceback" not in result.output


def test_the_second_nameserver_answers_when_the_first_is_down(serve: Serve) -> None:
    up = serve({RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: body(TopicList(("A", "B")).encode())})
    down = f"127.0.0.1:{free_port_block(1)}"
    assert run("topicList", "-n", f"{down};{up}").output == "A\nB\n"
    assert json.loads(run("topicList", "-n", up, "-f", "json").output) == [{"topic": "A"}, {"topic": "B"}]


@pytest.mark.parametrize(
    ("command", "head"),
    [
        (("clusterList",), "#Cluster Name"),
        (("clusterList", "-m"), "#Cluster Name"),
        (("haStatus",), "#Broker Name"),
        (("topicList",), ""),
        (("topicList", "-c"), "#Cluster Name"),
    ],
)
def test_a_nameserver_without_a_broker_is_named(serve: Serve, command: tuple[str, ...], head: str) -> None:
    addr = serve(
        {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: body(TopicList(()).encode()),
            RequestCode.GET_BROKER_CLUSTER_INFO: body(ClusterInfo({}, {}).encode()),
        }
    )
    result = run(command[0], "-n", addr, *command[1:])
    assert result.exit_code == 0
    assert result.stdout.startswith(head)
    assert len(result.stdout.splitlines()) == (1 if head else 0)
    assert result.stderr == (
        f"no broker is registered at nameserver {addr}: is a broker running whose namesrvAddr names it?\n"
    )
    as_json = run(command[0], "-n", addr, *command[1:], "-f", "json")
    assert (as_json.exit_code, json.loads(as_json.stdout), as_json.stderr) == (0, [], "")


@pytest.mark.parametrize("addr", ["nonsense", "host:", "host:0", "host:70000", ""])
def test_what_is_no_address_is_a_usage_error(addr: str) -> None:
    result = run("topicList", "-n", addr)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_without_a_nameserver_the_flag_is_named() -> None:
    result = CliRunner(env={"NAMESRV_ADDR": ""}).invoke(main, ["topicList"])
    assert result.exit_code == 2
    assert "-n host:port" in result.output


def test_an_unknown_topic_is_named_with_the_fix(serve: Serve) -> None:
    addr = serve(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda request: request.answer(
                ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server for the topic: Nope"
            )
        }
    )
    result = run("topicRoute", "-n", addr, "-t", "Nope")
    assert result.exit_code == 1
    assert "Nope" in result.output
    assert "updateTopic makes a topic" in result.output


def test_what_does_not_speak_the_protocol_is_an_error_not_a_traceback(serve: Serve) -> None:
    addr = serve({RequestCode.GET_BROKER_CLUSTER_INFO: body(b"<html>")})
    result = run("clusterList", "-n", addr)
    assert result.exit_code == 1
    assert "Traceback" not in result.output


def test_a_cluster_is_listed_with_brokers_that_do_not_answer(serve: Serve) -> None:
    up = serve(
        {
            RequestCode.GET_BROKER_RUNTIME_INFO: body(
                KVTable(
                    {
                        "putTps": "12.5 3.0 1.0",
                        "getTransferedTps": "1.0",
                        "sendThreadPoolQueueSize": "7",
                        "sendThreadPoolQueueHeadWaitTimeMills": "30",
                        "commitLogMaxOffset": "2048",
                        "commitLogDiskRatio": "0.25",
                        "brokerVersionDesc": "V4_9_8",
                        "haserviceVersion": "0.5.0",
                    }
                ).encode()
            )
        }
    )
    down = f"127.0.0.1:{free_port_block(1)}"
    info = ClusterInfo({"broker-a": BrokerData("broker-a", "C", {0: up, 1: down})}, {"C": ("broker-a",)})
    namesrv = serve({RequestCode.GET_BROKER_CLUSTER_INFO: body(info.encode())})
    first, second = json.loads(run("clusterList", "-n", namesrv, "-f", "json").stdout)
    assert (first["brokerId"], first["inTps"], first["commitLogMaxOffset"]) == (0, 12.5, 2048)
    assert second["version"] is None
    assert down in second["note"]
    result = run("clusterList", "-n", namesrv)
    assert result.exit_code == 1
    assert f"Failed: {down}: " in result.stderr
    verdict, heads, master, slave = result.stdout.splitlines()
    assert verdict.startswith("broker-a: SLAVE NOT IN SYNC, ")
    assert (first["verdict"], second["verdictText"]) == ("WARNING", verdict)
    assert re.split("  +", heads) == [
        *("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)"),
        *("#PCWait(ms)", "#Hour", "#SPACE", "#Log End", "#haservice"),
    ]
    shown = [
        "C",
        "broker-a",
        "0",
        up,
        "V4_9_8",
        "12.50(7,30ms)",
        "1.00",
        "-",
        "-",
        "0.2500",
        "2.0 KiB",
        "0.5.0",
    ]
    assert re.split("  +", master) == shown
    assert slave.split() == ["C", "broker-a", "1", down, *"--------"]


@pytest.mark.parametrize("command", ["clusterList", "haStatus", "brokerStatus"])
def test_brokers_that_let_nobody_in_are_named_with_the_fix(serve: Serve, command: str) -> None:
    def refuse(request: RemotingCommand) -> RemotingCommand:
        return request.answer(1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured")

    closed = serve({RequestCode.GET_BROKER_RUNTIME_INFO: refuse})
    info = ClusterInfo({"broker-a": BrokerData("broker-a", "C", {0: closed})}, {"C": ("broker-a",)})
    namesrv = serve({RequestCode.GET_BROKER_CLUSTER_INFO: body(info.encode())})
    for arguments in ((), ("-f", "json")):
        result = run(command, "-n", namesrv, *arguments)
        assert result.exit_code == 1
        assert closed in result.stdout
        assert f"Failed: {closed}: answered code 1" in result.stderr
        assert "tools.yml" in result.stderr


def test_a_route_is_printed_as_stock_mqadmin_prints_it(serve: Serve) -> None:
    queues = (QueueData("b", 2, 3, 6), QueueData("a", 4, 4, 4))
    brokers = (BrokerData("b", "C", {1: "h:2", 0: "h:1"}), BrokerData("a", "C", {0: "h:3"}))
    answer = TopicRouteData(queues, brokers, order_topic_conf="b:2").encode(standard=True)
    command = (
        "topicRoute",
        "-n",
        serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(answer)}),
        "-t",
        "T",
    )
    shown = run(*command).stdout
    assert shown.startswith('{\n\t"brokerDatas":[\n\t\t{\n\t\t\t"brokerAddrs":{0:"h:1",1:"h:2"\n\t\t\t},\n')
    assert '\n\t"orderTopicConf":"b:2",\n' in shown
    assert '\n\t\t\t"perm":6,\n' in shown
    assert json.loads(run(*command, "-f", "json").stdout) == json.loads(answer)
    heads, first, second, rule, totals = run(*command, "-l").stdout.splitlines()
    assert heads.split() == [
        *("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    ]
    assert first.split() == ["C", "a", "{0=h:3}", "4", "4", "4"]
    assert re.split("  +", second) == ["C", "b", "{0=h:1, 1=h:2}", "2", "3", "6"]
    assert rule == "-" * 158
    assert totals.split() == ["Total:", "2", "6", "7"]


def test_an_order_configuration_that_is_malformed_or_names_unknown_brokers_is_refused(serve: Serve) -> None:
    puts: list[str] = []

    def put(request: RemotingCommand) -> RemotingCommand:
        puts.append(request.ext["value"])
        return request.answer()

    info = ClusterInfo({"broker-a": BrokerData("broker-a", "C", {0: "h:1"})}, {"C": ("broker-a",)})
    namesrv = serve(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(info.encode()),
            RequestCode.GET_KV_CONFIG: lambda r: r.answer(
                ext=KVValueResponseHeader("broker-down:4;broken").encode()
            ),
            RequestCode.PUT_KV_CONFIG: put,
        }
    )
    command = ("updateOrderConf", "-n", namesrv, "-m", "put", "-t", "T", "-v")
    for conf, said in (
        ("broker-a", "is not brokerName:num"),
        ("broker-a:-1", "is not brokerName:num"),
        ("broker-a:99999", "0 to 65536 queues"),
        ("broker-a:0", "which brokers' queues?"),
        ("broker-a:1;broker-a:2", "broker-a is named twice"),
        (";", "which brokers' queues?"),
        ("broker-a:1;broker-b:2", "no broker has the name broker-b; the nameserver knows broker-a"),
    ):
        result = run(*command, conf)
        assert result.exit_code != 0, conf
        assert said in result.stderr
    assert run(*command, "broker-a:4;").exit_code == 0
    assert run(*command, "broker-a:0;broker-down:2").exit_code == 0  # it is in the present one
    assert puts == ["broker-a:4", "broker-a:0;broker-down:2"]


def test_without_a_flag_the_status_of_every_broker_is_shown(serve: Serve) -> None:
    up = serve({RequestCode.GET_BROKER_RUNTIME_INFO: body(KVTable({"putTps": "1.0"}).encode())})
    down = f"127.0.0.1:{free_port_block(1)}"
    info = ClusterInfo({"broker-a": BrokerData("broker-a", "C", {0: down, 1: up})}, {"C": ("broker-a",)})
    namesrv = serve({RequestCode.GET_BROKER_CLUSTER_INFO: body(info.encode())})
    result = run("brokerStatus", "-n", namesrv, "-f", "json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown[up] == {"putTps": "1.0"}
    assert down in shown[down]["error"]
    table = run("brokerStatus", "-n", namesrv).stdout
    assert table.index(f"# {down}") < table.index(f"# {up}\nputTps : 1.0")


def test_a_topic_that_was_made_is_told_as_json(serve: Serve) -> None:
    addr = serve({RequestCode.UPDATE_AND_CREATE_TOPIC: body(b"")})
    shown = json.loads(run("updateTopic", "-b", addr, "-t", "T", "-w", "4", "-f", "json").stdout)
    assert shown == {
        "topic": "T",
        "brokerAddrs": [addr],
        "readQueueNums": 8,
        "writeQueueNums": 4,
        "perm": 6,
        "order": False,
    }


def test_an_unknown_cluster_is_refused_with_those_that_are_known(serve: Serve) -> None:
    info = ClusterInfo({"b": BrokerData("b", "C", {0: "127.0.0.1:1"})}, {"C": ("b",)})
    namesrv = serve({RequestCode.GET_BROKER_CLUSTER_INFO: body(info.encode())})
    result = run("haStatus", "-n", namesrv, "-c", "Other")
    assert result.exit_code == 1
    assert "'Other'" in result.output
    assert "it knows C" in result.output


def test_ha_status_of_a_name_shows_its_brokers_and_no_others(serve: Serve) -> None:
    info = {
        name: BrokerData(name, "C", {0: f"127.0.0.1:{port}"}) for port, name in enumerate(("a", "b"), start=1)
    }
    namesrv = serve(
        {RequestCode.GET_BROKER_CLUSTER_INFO: body(ClusterInfo(info, {"C": ("a", "b")}).encode())}
    )
    rows = json.loads(run("haStatus", "-n", namesrv, "-b", "b", "-f", "json").stdout)
    assert [(row["brokerName"], row["brokerAddr"]) for row in rows] == [("b", "127.0.0.1:2")]
    unknown = run("haStatus", "-n", namesrv, "--brokerName", "c")
    assert unknown.exit_code == 1
    assert f"no broker 'c' at {namesrv}; it knows a, b" in unknown.output
    assert "127.0.0.1:70000" in run("haStatus", "-b", "127.0.0.1:70000").output


def test_ha_status_falls_back_where_907_is_unknown(serve: Serve) -> None:
    addr = serve(
        {
            RequestCode.GET_BROKER_RUNTIME_INFO: body(KVTable({"commitLogMaxOffset": "77"}).encode()),
            RequestCode.GET_BROKER_CONFIG: body(b"brokerName=broker-a\nbrokerRole=SYNC_MASTER\n"),
        }
    )
    (row,) = json.loads(run("haStatus", "-b", addr, "-f", "json").output)
    assert (row["brokerName"], row["role"], row["logEnd"]) == ("broker-a", "SYNC_MASTER", 77)
    assert "4.9" in row["state"]


def test_ha_status_of_one_broker(serve: Serve) -> None:
    addr = serve(
        {
            RequestCode.GET_BROKER_RUNTIME_INFO: body(
                KVTable({"commitLogMaxOffset": "77", "brokerRole": "ASYNC_MASTER"}).encode()
            ),
            RequestCode.GET_BROKER_CONFIG: body(b"brokerName=broker-a\n"),
            RequestCode.GET_BROKER_HA_STATUS: body(HARuntimeInfo(True, 77).encode()),
        }
    )
    result = run("haStatus", "-b", addr)
    assert "no slave is connected" in result.output
    assert "ASYNC_MASTER" in result.output


def test_topic_status_is_sorted_by_queue(serve: Serve) -> None:
    table = {MessageQueue("T", "broker-a", number): TopicOffset(0, number * 10) for number in (3, 1, 2)}
    addr = serve({RequestCode.GET_TOPIC_STATS_INFO: body(TopicStatsTable(table).encode())})
    rows = json.loads(run("topicStatus", "-b", addr, "-t", "T", "-f", "json").output)
    assert [(row["queueId"], row["maxOffset"]) for row in rows] == [(1, 10), (2, 20), (3, 30)]


def test_one_message_is_sent_to_a_queue_of_the_route(serve: Serve) -> None:
    sends = Sends()
    broker = serve({RequestCode.SEND_MESSAGE_V2: sends})
    namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route(broker).encode())})
    result = run(
        "sendMessage", "-n", namesrv, "-t", "T", "-p", "hello", "-k", "k1 k2", "-c", "tag", "-i", "1"
    )
    assert result.exit_code == 0, result.output
    assert "SEND_OK" in result.output
    assert sends.bodies == [b"hello"]
    (header,) = sends.headers
    properties = records.decode_properties(header.properties.encode())
    assert (header.topic, header.queue_id) == ("T", 1)
    assert (properties["KEYS"], properties["TAGS"], len(properties["UNIQ_KEY"])) == ("k1 k2", "tag", 32)


def test_a_queue_or_broker_that_is_named_need_not_be_in_the_order_configuration(serve: Serve) -> None:
    sends = Sends()
    found = route(serve({RequestCode.SEND_MESSAGE_V2: sends}))
    for conf, where, queue_id in (
        ("broker-a:1", ("-i", "1"), 1),
        ("broker-z:1", ("-b", "broker-a"), 0),
        ("broker-a:1", (), 0),
    ):
        data = dataclasses.replace(found, order_topic_conf=conf)
        namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(data.encode())})
        result = run("sendMessage", "-n", namesrv, "-t", "T", "-p", "hello", *where)
        assert result.exit_code == 0, result.output
        assert sends.headers[-1].queue_id == queue_id


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, "FLUSH_DISK_TIMEOUT"),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, "FLUSH_SLAVE_TIMEOUT"),
        (ResponseCode.SLAVE_NOT_AVAILABLE, "SLAVE_NOT_AVAILABLE"),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "SERVICE_NOT_AVAILABLE"),
        (999, "CODE_999"),
    ],
)
def test_a_status_that_is_not_ok_is_shown_and_makes_the_exit_code_1(
    serve: Serve, code: int, status: str
) -> None:
    broker = serve({RequestCode.SEND_MESSAGE_V2: Sends(int(code))})
    result = run("sendMessage", "-b", broker, "-t", "T", "-p", "hello")
    assert result.exit_code == 1
    assert status in result.output
    assert "told why" in result.output


@pytest.mark.parametrize(
    "command", [("sendMsgStatus", "-b", "broker-a", "-c"), ("checkMsgSendRT", "-t", "T", "-a")]
)
def test_a_probe_that_is_not_ok_has_its_reason_and_makes_the_exit_code_1(
    serve: Serve, command: tuple[str, ...]
) -> None:
    sends = Sends(0, 0, int(ResponseCode.SERVICE_NOT_AVAILABLE))
    broker = serve({RequestCode.SEND_MESSAGE_V2: sends})
    namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route(broker).encode())})
    result = run(*command, "3", "-n", namesrv)
    assert result.exit_code == 1
    assert "SERVICE_NOT_AVAILABLE" in result.stdout
    assert result.stderr == f"{broker}: SERVICE_NOT_AVAILABLE: told why\n"
    assert run(*command, "3", "-n", namesrv).exit_code == 0


@pytest.mark.parametrize("by_file", [False, True])
def test_what_a_status_that_is_not_ok_means_is_told_of_one_message_and_of_a_file(
    serve: Serve, tmp_path: Path, by_file: bool
) -> None:
    broker = serve({RequestCode.SEND_MESSAGE_V2: Sends(int(ResponseCode.SLAVE_NOT_AVAILABLE))})
    file = tmp_path / "lines.txt"
    file.write_text("hello")
    what = [str(file)] if by_file else ["-p", "hello"]
    result = run("sendMessage", "-b", broker, "-t", "T", *what)
    assert result.exit_code == 1
    assert "stored on the master only" in result.stderr
    assert "mqadmin haStatus says why" in result.stderr
    assert ("1 of 1 message stored" in result.output) is by_file


def test_each_line_of_a_file_is_a_message(serve: Serve, tmp_path: Path) -> None:
    sends = Sends()
    broker = serve({RequestCode.SEND_MESSAGE_V2: sends})
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\r\n\ntwo\n" + b"x" * 100_000 + b"\nlast")
    result = run("sendMessage", "-b", broker, "-t", "T", str(file), "-f", "json")
    assert result.exit_code == 0, result.output
    assert sorted(sends.bodies) == sorted([b"one", b"two", b"x" * 100_000, b"last"])
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["statuses"] == {"SEND_OK": 4}


def test_lines_of_standard_input_are_counted_by_status(serve: Serve) -> None:
    broker = serve({RequestCode.SEND_MESSAGE_V2: Sends(0, int(ResponseCode.FLUSH_SLAVE_TIMEOUT), 0)})
    result = run("sendMessage", "-b", broker, "-t", "T", "-", stdin="".join(f"{n}\n" for n in range(10)))
    assert result.exit_code == 1
    assert "FLUSH_SLAVE_TIMEOUT               1  told why" in result.output
    assert "10 of 10 messages stored" in result.output


def test_sending_stops_when_the_broker_is_gone() -> None:
    addr = f"127.0.0.1:{free_port_block(1)}"
    result = run("sendMessage", "-b", addr, "-t", "T", "-", stdin="x\n" * 10_000)
    assert result.exit_code == 1
    assert "UNREACHABLE" in result.output
    assert "0 of" in result.output
    assert "mqadmin check" in result.stderr
    last = re.search(r"NOT sent: what follows line (\d+)\.", result.output)
    assert last is not None
    assert int(last[1]) == sum(tally_of(result.output).values()) <= raw_sends.IN_FLIGHT


def tally_of(output: str) -> dict[str, int]:
    """Status → count, as a run shows them."""
    return {name: int(count) for name, count in re.findall(r"^([A-Z_]+) +(\d+)", output, re.M)}


@pytest.mark.parametrize("code", [0, int(ResponseCode.SERVICE_NOT_AVAILABLE)])
def test_a_failure_ends_the_reading_of_a_pipe_at_once(code: int) -> None:
    """Of a pipe that stays open: with 0 the broker is gone before the second line, else it refuses that line."""
    sends = Sends(0, code)
    program = [sys.executable, "-c", "from haservice.admin.cli import main; main()"]
    pipe = subprocess.PIPE
    with (
        serving({RequestCode.SEND_MESSAGE_V2: lambda _, request: sends(request)}) as server,
        subprocess.Popen(
            [*program, "sendMessage", "-b", f"127.0.0.1:{server.ports[0]}", "-t", "T", "-"],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("one\n")
        process.stdin.flush()
        wait_until(lambda: sends.bodies == [b"one"], "the first line is sent")
        if code == 0:
            assert server.stop(PATIENCE_S)
        process.stdin.write("two\n")
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 1
        said = process.stdout.read()
    assert tally_of(said) == {"SEND_OK": 1, "UNREACHABLE" if code == 0 else "SERVICE_NOT_AVAILABLE": 1}
    assert "NOT sent: what follows line 2." in said


def test_ctrl_c_ends_a_run_with_its_counts(serve: Serve) -> None:
    sends = Sends()
    broker = serve({RequestCode.SEND_MESSAGE_V2: sends})
    program = [sys.executable, "-c", "from haservice.admin.cli import main; main()"]
    process = subprocess.Popen(
        [*program, "sendMessage", "-b", broker, "-t", "T", "-", "-f", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n" * 5)
        process.stdin.flush()  # and stays open: the program waits for more
        wait_until(lambda: len(sends.bodies) == 5, "all are sent")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        summary = json.loads(process.stdout.read())
    assert summary["sent"] == 5
    assert set(summary["statuses"]) <= {"SEND_OK", "NO_ANSWER"}


def test_what_was_in_flight_at_an_interrupt_is_counted_as_unanswered() -> None:
    async def lines() -> AsyncIterator[RawMessage]:
        for number in range(10):
            yield RawMessage(b"%d" % number, {})

    async def interrupted(addr: str) -> Tally:
        tally = Tally()
        queues = [raw_sends.SendQueue("broker-a", addr, 0)]
        run = asyncio.create_task(send_all("T", queues, lines(), lambda _: None, in_flight=3, tally=tally))
        await asyncio.sleep(0.05)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        return tally

    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, and says nothing
        tally = asyncio.run(interrupted(f"127.0.0.1:{listener.getsockname()[1]}"))
    assert tally.statuses == {"NO_ANSWER": 3}
    assert tally.seconds > 0


def test_a_topic_without_a_writable_queue_is_an_error(serve: Serve) -> None:
    namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route("127.0.0.1:1", perm=4).encode())})
    result = run("sendMessage", "-n", namesrv, "-t", "T", "-p", "x")
    assert result.exit_code == 1
    assert "no queue on any master" in result.output


class Queue:
    """Answers pulls from a list of messages, two at a time, from `first` on."""

    def __init__(self, bodies: list[bytes], first: int = 0) -> None:
        self.first = first
        self.records = [stored(first + index, data) for index, data in enumerate(bodies)]

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def answers(self) -> Answers:
        return {
            RequestCode.GET_MIN_OFFSET: lambda r: r.answer(ext=OffsetResponseHeader(self.first).encode()),
            RequestCode.GET_MAX_OFFSET: lambda r: r.answer(ext=OffsetResponseHeader(self.end).encode()),
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.GET_TOPIC_STATS_INFO: body(
                TopicStatsTable(
                    {MessageQueue("T", "broker-a", 1): TopicOffset(self.first, self.end)}
                ).encode()
            ),
        }

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        offset = PullMessageHeader.decode(request.ext).queue_offset
        if offset < self.first:
            header = PullMessageResponseHeader(0, self.first, self.first, self.end)
            return request.answer(ResponseCode.PULL_OFFSET_MOVED, ext=header.encode())
        found = self.records[offset - self.first :][:2]
        header = PullMessageResponseHeader(0, offset + len(found), self.first, self.end)
        return request.answer(ext=header.encode(), body=b"".join(found))


def test_messages_are_read_to_the_end_of_the_queue(serve: Serve) -> None:
    broker = serve(Queue([b"one", b"two", b"three"]).answers())
    lines = [
        json.loads(line)
        for line in run("consumeMessage", "-b", broker, "-t", "T", "-f", "json").output.splitlines()
    ]
    assert [line["body"] for line in lines] == ["one", "two", "three"]
    assert lines[2]["queueOffset"] == 2
    assert "3 messages" in run("consumeMessage", "-b", broker, "-t", "T").output


def test_reading_takes_an_offset_and_a_count(serve: Serve) -> None:
    broker = serve(Queue([b"one", b"two", b"three", b"four"]).answers())
    result = run("consumeMessage", "-b", broker, "-t", "T", "-o", "1", "-c", "2", "-f", "json")
    assert [json.loads(line)["body"] for line in result.output.splitlines()] == ["two", "three"]


def test_an_offset_that_retention_took_goes_on_at_the_first_that_is_left(serve: Serve) -> None:
    broker = serve(Queue([b"one", b"two"], first=100).answers())
    result = run("consumeMessage", "-b", broker, "-t", "T", "-o", "3", "-f", "json")
    assert [json.loads(line)["queueOffset"] for line in result.output.splitlines()] == [100, 101]


@pytest.mark.parametrize("command", ["consumeMessage", "printMsg"])
def test_a_queue_ends_before_a_damaged_message_and_the_others_are_read(serve: Serve, command: str) -> None:
    sound = Queue([b"one", b"two"])

    def pull(request: RemotingCommand) -> RemotingCommand:
        if PullMessageHeader.decode(request.ext).queue_id == 0:
            return request.answer(ResponseCode.SYSTEM_ERROR, "record at 4096: wrong CRC")
        return sound.pull(request)

    broker = serve({**sound.answers(), RequestCode.PULL_MESSAGE: pull})
    namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route(broker).encode())})
    result = run(command, "-n", namesrv, "-t", "T", "-f", "json")
    assert result.exit_code == 1
    assert [json.loads(line)["body"] for line in result.stdout.splitlines()] == ["one", "two"]
    assert result.stderr.splitlines() == [
        f"queue 0 of broker-a: {broker}: answered code 1: record at 4096: wrong CRC"
    ]


@pytest.mark.parametrize("source", [("-p", "one"), ("-",)])
def test_who_cannot_send_is_told_what_mends_it(serve: Serve, source: tuple[str, ...]) -> None:
    refusal = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    denying = serve({RequestCode.SEND_MESSAGE_V2: lambda r: r.answer(ResponseCode.SYSTEM_ERROR, refusal)})
    for broker, said in ((denying, "tools.yml"), (f"127.0.0.1:{free_port_block(1)}", "--tls")):
        result = run("sendMessage", "-b", broker, "-t", "T", *source, stdin="one\n")
        assert result.exit_code == 1
        assert said in result.stderr


def test_an_account_that_may_not_read_is_told_once(serve: Serve) -> None:
    refusal = "org.apache.rocketmq.acl.common.AclException: No default permission for T"
    denying = {
        **Queue([b"one"]).answers(),
        RequestCode.PULL_MESSAGE: lambda r: r.answer(ResponseCode.SYSTEM_ERROR, refusal),
    }
    namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route(serve(denying)).encode())})
    result = run("consumeMessage", "-n", namesrv, "-t", "T")
    assert result.exit_code == 1
    assert result.stderr.count("AclException") == 1
    assert "tools.yml" in result.stderr


def test_the_slave_is_read_while_the_master_is_down(serve: Serve) -> None:
    slave = serve(Queue([b"kept"]).answers())
    down = f"127.0.0.1:{free_port_block(1)}"
    data = TopicRouteData(
        (QueueData("broker-a", 1, 1, 6),), (BrokerData("broker-a", "C", {0: down, 1: slave}),)
    )
    namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(data.encode())})
    assert '"kept"' in run("consumeMessage", "-n", namesrv, "-t", "T", "-f", "json").output


def test_the_slave_is_read_while_the_master_is_frozen(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls.MQAdmin.call.__kwdefaults__, "timeout_s", 0.2)
    slave = serve(Queue([b"kept"]).answers())
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, and says nothing
        frozen = f"127.0.0.1:{listener.getsockname()[1]}"
        data = TopicRouteData(
            (QueueData("broker-a", 1, 1, 6),), (BrokerData("broker-a", "C", {0: frozen, 1: slave}),)
        )
        namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(data.encode())})
        result = run("consumeMessage", "-n", f"{frozen};{namesrv}", "-t", "T")
    assert result.exit_code == 0, result.output
    assert f"{frozen}: no answer" in result.stderr
    assert f"reading broker-a 1 at {slave} instead" in result.stderr
    assert result.stdout.endswith(f"1 message from broker-a at {slave}\n")


def test_a_message_is_found_by_its_id(serve: Serve, bodies: Path) -> None:
    broker = serve({RequestCode.VIEW_MESSAGE_BY_ID: body(stored(4, b"found me"))})
    host, _, port = broker.partition(":")
    message_id = records.offset_message_id(records.encode_host(host, int(port)), 4000)
    result = run("queryMsgById", "-i", message_id)
    lines = result.stdout.splitlines()
    assert "Queue Offset:        4" in lines
    assert "Tags:                [x]" in lines
    assert "Keys:                [null]" in lines
    assert "Properties:          {TAGS=x}" in lines
    assert "Body:                found me" in lines
    (saved,) = bodies.iterdir()
    assert f"Message Body Path:   {saved}" in lines
    assert saved.read_bytes() == b"found me"
    assert '"body": "found me"' in run("queryMsgById", "-i", message_id, "-f", "json").output


@pytest.mark.parametrize("message_id", ["", "xyz", "7F00", "FF" * 16, "00" * 16, "F" * 33])
def test_what_is_no_message_id_is_an_error(message_id: str) -> None:
    result = run("queryMsgById", "-i", message_id)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
