"""The configuration of a running broker, asked for and changed over the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
from click.testing import CliRunner

from commitlog.keys import KeyTrait
from haservice.admin.calls import MQAdmin
from haservice.admin.mqbroker import mqbroker
from haservice.binding import keys_of, kinds_of
from haservice.broker.node import BrokerNode
from haservice.configuration.config import BROKER_CLASSES, NAMESERVER_CLASSES, load_broker
from haservice.configuration.security_settings import AclConfig
from haservice.configuration.settings import NameserverConfig
from haservice.configuration.texts import PORT_MAX
from haservice.devtools.pair import free_port_block
from haservice.errors import AnswerError
from haservice.nameserver.node import NameserverNode
from haservice.remoting.bodies.admin import FileConfigBody
from haservice.remoting.bodies.clients import TopicConfigWrapper, TopicRouteData
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import sign
from haservice.terminal.explain import explain
from tests.admin.asking import run
from tests.support.brokers import addr_of, node_config, send
from tests.support.waiting import wait_until


class Served(NamedTuple):
    node: BrokerNode
    file: Path
    namesrv: str


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A broker that was started with a file, and its nameserver."""
    names = NameserverNode(
        NameserverConfig(
            bind_address="127.0.0.1", listen_port=0, kv_config_path=tmp_path / "kv.json",
            config_store_path=tmp_path / "namesrv.properties",
        )
    )  # fmt: skip
    names.start()
    namesrv = f"127.0.0.1:{names.port}"
    file = tmp_path / "broker.properties"
    file.write_text(
        "# a broker of a test\nbrokerName=broker-a\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n"
        f"bindAddress=127.0.0.1\nlistenPort={free_port_block(4) + 2}\nnamesrvAddr={namesrv}\n"
        f"storePathRootDir={tmp_path / 'store'}\nmappedFileSizeCommitLog=65536\nmaxMessageSize=16384\n"
        "mappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
    )
    node = BrokerNode(load_broker(file, environ={}))
    try:
        node.start()
        yield Served(node, file, namesrv)
    finally:
        node.stop()
        names.stop()


def update(client: BlockingClient, addr: str, text: str) -> RemotingCommand:
    return client.call(addr, RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode()))


def config(client: BlockingClient, addr: str) -> tuple[dict[str, int], dict[str, str]]:
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_BROKER_CONFIG))
    lines = bytes(answer.body).decode().splitlines()
    return orjson.loads(answer.ext["version"]), dict(line.split("=", 1) for line in lines)


def test_a_change_is_in_force_stored_and_has_a_version(served: Served, client: BlockingClient) -> None:
    addr = addr_of(served.node)
    version, lines = config(client, addr)
    assert (version["counter"], lines["traceOn"], lines["listenPort"]) == (0, "true", addr.split(":")[1])
    assert version["timestamp"] > 0
    answer = update(client, addr, "traceOn=false\nmaxMessageSize=1024\n")
    assert answer.code == 0
    assert answer.remark == (
        f"in force now: traceOn; from the next start on: maxMessageSize; stored in {served.file}"
    )
    after, lines = config(client, addr)
    assert (after["counter"], lines["traceOn"], lines["maxMessageSize"]) == (1, "false", "16384")
    assert after["timestamp"] >= version["timestamp"]
    assert send(client, addr, "T").ext["TRACE_ON"] == "false"
    stored = load_broker(served.file, environ={})
    assert (stored.broker.trace_on, stored.log.max_message_bytes) == (False, 1024)
    assert served.file.read_text().startswith("# a broker of a test\n")


@pytest.mark.parametrize(
    ("live", "later", "what"),
    [
        (("traceOn", "false"), ("maxMessageSize", "1024"), "Broker"),
        (("orderMessageEnable", "true"), ("serverChannelMaxIdleTimeSeconds", "60"), "Namesrv"),
    ],
)
def test_mqadmin_says_of_a_key_that_it_counts_from_the_next_start_on(
    served: Served, live: tuple[str, str], later: tuple[str, str], what: str
) -> None:
    where = ("-b", addr_of(served.node)) if what == "Broker" else ("-n", served.namesrv)

    def told(key: str, value: str, output_format: str) -> str:
        result = run(f"update{what}Config", *where, "-k", key, "-v", value, "-f", output_format)
        assert result.exit_code == 0
        return result.stdout

    assert f"\n  in force now: {live[0]}; stored in " in told(*live, "table")
    assert f"\n  from the next start on: {later[0]}; stored in " in told(*later, "table")
    assert orjson.loads(told(*live, "json"))["fromNextStart"] == []
    assert orjson.loads(told(*later, "json"))["fromNextStart"] == [where[1]]


def unlike_file(client: BlockingClient, addr: str) -> FileConfigBody:
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_FILE_CONFIG))
    assert answer.code == 0
    return FileConfigBody.decode(answer.body)


def test_a_broker_tells_what_its_file_says_otherwise_and_when_that_counts(
    served: Served, client: BlockingClient
) -> None:
    addr = addr_of(served.node)
    assert unlike_file(client, addr) == FileConfigBody(str(served.file))
    update(client, addr, "traceOn=false\nmaxMessageSize=1024\n")
    assert dict(unlike_file(client, addr).values) == {"maxMessageSize": "1024"}
    with served.file.open("a") as file:
        file.write("fileReservedTime=5\nbrokerRole=SYNC_MASTER\ntls.server.keyPassword=a secret\n")
    found = unlike_file(client, addr)
    assert dict(found.values) == {
        "maxMessageSize": "1024",
        "fileReservedTime": "5",
        "brokerRole": "SYNC_MASTER",
    }
    assert (list(found.later), found.trouble) == (["brokerRole", "maxMessageSize"], "")
    served.file.write_text("fileReservedTime=soon\n")
    wrong = unlike_file(client, addr)
    assert wrong.values == {}
    assert wrong.trouble.startswith(f"{served.file}:1: fileReservedTime=soon: ")


def test_mqbroker_prints_what_the_running_broker_has_and_not_what_its_file_has_by_now(
    served: Served, client: BlockingClient
) -> None:
    def printed(*arguments: str) -> tuple[dict[str, str], str]:
        result = CliRunner().invoke(mqbroker, [*arguments, "-c", str(served.file)])
        assert result.exit_code == 0
        return dict(line.split("=", 1) for line in result.stdout.splitlines()), result.stderr

    lines, told = printed("-p")
    assert (lines["maxMessageSize"], lines["traceOn"], told) == ("16384", "true", "")
    assert update(client, addr_of(served.node), "traceOn=false\nmaxMessageSize=1024\n").code == 0
    lines, told = printed("-p")
    assert (lines["maxMessageSize"], lines["traceOn"]) == ("16384", "false")
    assert f"its next start takes '1024', of {served.file}" in told
    assert told.count("note: ") == 1
    assert "maxMessageSize" not in printed("-m")[1]
    served.node.stop()
    lines, told = printed("-p")
    assert (lines["maxMessageSize"], told) == ("1024", "")


def test_mqbroker_says_when_the_running_broker_does_not_answer(served: Served) -> None:
    served.file.write_text(served.file.read_text().replace("listenPort=", f"listenPort={PORT_MAX - 1}\n#"))
    result = CliRunner().invoke(mqbroker, ["-p", "-c", str(served.file)])
    assert f"listenPort={PORT_MAX - 1}" in result.stdout.splitlines()
    assert "the broker that runs on this store did not say what it runs with: " in result.stderr


def test_what_tools_want_to_read_is_there(served: Served, client: BlockingClient) -> None:
    _, lines = config(client, addr_of(served.node))
    assert (lines["filterServerNums"], lines["msgTraceTopicName"], lines["useTLS"]) == (
        "0", "RMQ_SYS_TRACE_TOPIC", "false",
    )  # fmt: skip


def test_groups_wait_at_a_message_that_rotted_until_they_are_let_past(
    served: Served, client: BlockingClient
) -> None:
    node, addr = served.node, addr_of(served.node)
    ids = [send(client, addr, "T").ext["queueOffset"] for _ in range(3)]
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
    queue = node.store.queues.get("T", 0)
    assert queue is not None
    place = queue.read(1, 1)[0].physical_offset
    assert len(ids) == queue.max_offset
    body_at = place + 88
    with (node.config.log.log_path / f"{0:020d}").open("r+b") as file:
        file.seek(body_at)
        byte = file.read(1)[0]
        file.seek(body_at)
        file.write(bytes((byte ^ 1,)))

    def pull() -> RemotingCommand:
        ext = {
            "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0",
        }  # fmt: skip
        return client.call(addr, RemotingCommand.request(RequestCode.PULL_MESSAGE, ext))

    assert pull().code == ResponseCode.SYSTEM_ERROR
    wait_until(lambda: [begin for begin, _ in node.store.log.damaged] == [place], "fenced")
    assert pull().code == ResponseCode.SYSTEM_ERROR
    assert update(client, addr, "passDamagedMessages=true\n").code == ResponseCode.SUCCESS
    answer = pull()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.SUCCESS, "3")


def test_a_changed_permission_is_told_to_the_name_server(served: Served, client: BlockingClient) -> None:
    addr = addr_of(served.node)
    send(client, addr, "T")

    def route_perm() -> int | None:
        answer = client.call(
            served.namesrv, RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        )
        return TopicRouteData.decode(answer.body).queue_datas[0].perm if answer.code == 0 else None

    wait_until(lambda: route_perm() == 6, "the topic has a route")
    assert update(client, addr, "brokerPermission=4").code == 0
    wait_until(lambda: route_perm() == 4, "the route is read only")
    own = client.call(addr, RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert TopicConfigWrapper.decode(own.body).topic_config_table["T"].perm == 6
    assert update(client, addr, "brokerPermission=2").code == 0
    pull = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0",
    }  # fmt: skip
    refused = client.call(addr, RemotingCommand.request(RequestCode.PULL_MESSAGE, pull))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert update(client, addr, "brokerPermission=6").code == 0
    wait_until(lambda: route_perm() == 6, "the route is as before")


def test_blanks_and_tabs_behind_values_are_neither_refused_nor_stored(
    served: Served, client: BlockingClient
) -> None:
    addr = addr_of(served.node)
    assert update(client, addr, "fileReservedTime=71 \t\ntraceOn=false\t\nbrokerPermission=4\\t").code == 0
    lines = served.file.read_text().splitlines()
    assert {"fileReservedTime=71", "traceOn=false", "brokerPermission=4"} <= set(lines)
    assert served.node.live.config.broker.permission == 4


def test_creation_of_topics_and_groups_is_switched(served: Served, client: BlockingClient) -> None:
    addr = addr_of(served.node)
    assert update(client, addr, "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false").code == 0
    assert send(client, addr, "New").code == ResponseCode.TOPIC_NOT_EXIST
    assert served.node.groups.find("NewGroup") is None
    assert update(client, addr, "autoCreateTopicEnable=true\nautoCreateSubscriptionGroup=true").code == 0
    assert send(client, addr, "New").code == 0
    assert served.node.groups.find("NewGroup") is not None


def test_sends_begin_when_they_are_said_to(served: Served, client: BlockingClient) -> None:
    addr = addr_of(served.node)
    assert update(client, addr, f"startAcceptSendRequestTimeStamp={2**60}").code == 0
    answer = send(client, addr, "T")
    assert (answer.code, "broker unable to service" in (answer.remark or "")) == (1, True)
    assert update(client, addr, "startAcceptSendRequestTimeStamp=0").code == 0
    assert send(client, addr, "T").code == 0


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("configBlackList=x", 16, "Can not update config in black list."),
        ("brokerConfigPath=/x", 16, "black list"),
        ("traceOn=perhaps", 1, "neither true nor false"),
        ("tracOn=true", 1, "nearest known key is traceOn"),
        ("brokerPermission=1", 1, "neither 4 (clients may read) nor 2"),
        ("traceOn=false\n" + "x" * 70_000, 1, "bytes"),
        ("traceOn=\\u1", 1, "hexadecimal"),
    ],
)
def test_what_is_refused_changes_nothing(
    served: Served, client: BlockingClient, text: str, code: int, said: str
) -> None:
    before = served.file.read_bytes()
    answer = update(client, addr_of(served.node), text)
    assert answer.code == code
    assert said in (answer.remark or "")
    assert served.file.read_bytes() == before
    assert config(client, addr_of(served.node))[0]["counter"] == 0


@pytest.mark.parametrize(
    ("key", "value", "there"),
    [
        ("mappedFileSizeCommitLog", "131072", 65536),
        ("mappedFileSizeConsumeQueue", "60000", 2000),
        ("maxHashSlotNum", "200", 100),
        ("maxIndexNum", "500", 400),
    ],
)
def test_a_size_that_the_store_does_not_have_is_refused_and_the_broker_starts_again(
    served: Served, client: BlockingClient, key: str, value: str, there: int
) -> None:
    addr, before = addr_of(served.node), served.file.read_bytes()
    assert send(client, addr, "T", properties="KEYS\x01K\x02").code == 0
    wait_until(lambda: served.node.store.dispatcher.behind == 0, "dispatched")
    result = run("updateBrokerConfig", "-b", addr, "-k", key, "-v", value)
    served.node.stop()
    again = BrokerNode(load_broker(served.file, environ={}))
    again.start()
    again.stop()
    assert result.exit_code == 1
    assert f"{key}={value}: the store in {served.node.config.log.root} has {there}, " in result.stderr
    assert "a new, empty store: stop the broker, set this key and a new storePathRootDir" in result.stderr
    assert served.file.read_bytes() == before


def test_an_index_of_as_many_bytes_in_another_shape_is_refused(
    served: Served, client: BlockingClient
) -> None:
    answer = update(client, addr_of(served.node), "maxHashSlotNum=105\nmaxIndexNum=399")
    assert "maxHashSlotNum=105: the store in " in str(answer.remark)


def test_the_size_that_the_store_has_is_taken_also_before_it_is_rounded_up(
    served: Served, client: BlockingClient
) -> None:
    assert update(client, addr_of(served.node), "mappedFileSizeConsumeQueue=1981").code == 0
    assert update(client, addr_of(served.node), "mappedFileSizeCommitLog=65536").code == 0


def test_every_key_that_is_declared_with_a_taker_has_it(served: Served) -> None:
    declared = {key.name for key, _ in keys_of(*BROKER_CLASSES) if key.takers}
    assert served.node.live.reloadable_keys == declared
    assert served.node.live.takers == frozenset().union(*(key.takers for key, _ in keys_of(*BROKER_CLASSES)))


def test_an_empty_change_is_none(served: Served, client: BlockingClient) -> None:
    assert update(client, addr_of(served.node), "\n").code == 0
    assert config(client, addr_of(served.node))[0]["counter"] == 0


@pytest.mark.parametrize(
    "line",
    [
        "brokerRole=SLAVE",
        "brokerId=1",
        "brokerName=another",
        "brokerClusterName=another",
        "namesrvAddr=10.6.6.6:9876",
        "haMasterAddress=10.6.6.6:10912",
        "brokerIP1=10.6.6.6",
        "brokerIP2=10.6.6.6",
        "bindAddress=0.0.0.0",
        "listenPort=12345",
        "haListenPort=12345",
        "haAllowedSlaves=0.0.0.0/0",
        "haMaxConnections=1",
        "haMaxConnectionsPerAddress=1",
        "storePathRootDir=/tmp/elsewhere",
        "storePathCommitLog=/tmp/elsewhere",
        "storePathIndex=/tmp/elsewhere",
        "traceOn=false\nstorePathRootDir=/tmp/elsewhere",
    ],
)
def test_without_access_control_nobody_moves_the_broker(
    served: Served, client: BlockingClient, line: str
) -> None:
    before = served.file.read_text()
    answer = update(client, addr_of(served.node), line)
    key = line.splitlines()[-1].partition("=")[0]
    by_command = (
        " A broker that runs gets another role by mqadmin switchover (with --role its master becomes another kind of"
        " master), or by mqadmin failover"
    )
    assert (answer.code, answer.remark) == (
        16,
        f"{key} is a path, an address, a guard or a role: without access control (aclEnable) no request "
        "changes it. Edit the file and start again."
        + (f"{by_command} after its master has died." if key in ("brokerRole", "brokerId") else ""),
    )
    assert served.file.read_text() == before


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("brokerId", ""),
        ("haMaxConnections", ""),
        ("brokerRole", ""),
        ("bindAddress", ""),
        ("aclEnable", "edit the file there, and start the node again"),
        ("configBlackList", "edit the file there, and start the node again"),
    ],
)
def test_a_key_that_no_request_changes_is_not_explained_by_the_rights_of_topics(
    served: Served, key: str, hint: str
) -> None:
    result = run("updateBrokerConfig", "-b", addr_of(served.node), "-k", key, "-v", "0")
    assert result.exit_code == 1
    assert "answered code 16" in result.stderr
    assert "brokerPermission" not in result.stderr
    assert result.stderr.partition("\n  ")[2].strip().endswith(hint)
    assert bool(hint) == ("\n  " in result.stderr)


def test_a_pull_that_no_one_may_make_is_explained_by_the_rights_of_topics(
    served: Served, client: BlockingClient
) -> None:
    addr = addr_of(served.node)
    assert send(client, addr, "T").code == 0
    assert update(client, addr, "brokerPermission=2").code == 0
    with MQAdmin() as admin, pytest.raises(AnswerError) as refused:
        admin.pull(addr, "T", 0, 0, 1, "G")
    assert "mqadmin updateTopic -p 6 allows both ways" in explain(refused.value)


def test_with_access_control_an_admin_may_as_before(tmp_path: Path, client: BlockingClient) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text("accounts:\n  - {accessKey: admins-key, secretKey: secret-key, admin: true}\n")
    made = node_config(tmp_path / "store")
    node = BrokerNode(dataclasses.replace(made, acl=AclConfig(enabled=True, file=rules)))
    node.start()
    try:
        request = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, {}, b"haMaxConnections=7")
        assert "No accessKey is configured" in str(client.call(addr_of(node), request).remark)
        sign(request, "admins-key", "secret-key")
        assert client.call(addr_of(node), request).code == 0
    finally:
        node.stop()


def test_every_path_and_address_is_one_that_no_stranger_changes() -> None:
    for cls in (*BROKER_CLASSES, *NAMESERVER_CLASSES):
        kinds = kinds_of(cls)
        for key, field in keys_of(cls):
            kept = key.marks & {KeyTrait.GUARDED, KeyTrait.BY_HAND}
            assert not (kept and key.takers), key.name
            if kinds[field.name] is Path or any(
                word in key.name for word in ("Address", "Addr", "Port", "brokerIP")
            ):
                assert kept, key.name
