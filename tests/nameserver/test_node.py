"""A real nameserver on a free port, asked over real sockets."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from haservice.bounds import EPOCH_MAX
from haservice.configuration.settings import NameserverConfig
from haservice.deadline import Deadline
from haservice.errors import ConfigError, RemotingUnreachable
from haservice.nameserver import node as node_module
from haservice.nameserver.broker_requests import BrokerProcessors
from haservice.nameserver.kv_config import KvConfig
from haservice.nameserver.node import NameserverNode
from haservice.nameserver.processors import RouteProcessors
from haservice.nameserver.route_table import RouteTable
from haservice.remoting.bodies import registration as body_of_registration
from haservice.remoting.bodies.clients import (
    ClusterInfo,
    DataVersion,
    KVTable,
    TopicConfig,
    TopicConfigWrapper,
    TopicList,
    TopicRouteData,
)
from haservice.remoting.bodies.registration import PlainRegistration, RegisterBrokerBody, body_crc32
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import NewestEpochBody
from haservice.remoting.server import Listener, RemotingServer
from tests.admin.asking import run as mqadmin
from tests.support.waiting import PATIENCE_S, wait_until

V1 = DataVersion(counter=1, timestamp=1_700_000_000_000)
V2 = DataVersion(counter=2, timestamp=1_700_000_000_500)
MASTER = "127.0.0.1:10911"
SLAVE = "127.0.0.1:11911"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NameserverNode]:
    made = NameserverNode(NameserverConfig("127.0.0.1", 0, tmp_path / "kv" / "kvConfig.json"))
    made.start()
    yield made
    made.stop(Deadline(5))


class Peer:
    """A client of one nameserver that has a connection of its own."""

    def __init__(self, port: int) -> None:
        self.addr = f"127.0.0.1:{port}"
        self.client = BlockingClient()

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 409
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, ext, body)
        command.version = version
        return self.client.call(self.addr, command, 10)

    def ok(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 409
    ) -> RemotingCommand:
        answer = self.ask(code, ext, body, version)
        assert answer.code == 0, answer
        return answer

    def register(
        self, *topics: str, broker_id: int = 0, version: DataVersion = V1, **changes: str
    ) -> RemotingCommand:
        body = table(*(topics or ("T",)), version=version).encode()
        return self.ok(RequestCode.REGISTER_BROKER, registration(broker_id, body, **changes), body)


def table(*topics: str, version: DataVersion = V1) -> RegisterBrokerBody:
    configs = {name: TopicConfig(name, 8, 4, 6) for name in topics}
    return RegisterBrokerBody(topics=TopicConfigWrapper(version, configs))


def registration(broker_id: int = 0, body: bytes = b"", **changes: str) -> dict[str, str]:
    addr = SLAVE if broker_id else MASTER
    return {
        "brokerName": "broker-a",
        "brokerAddr": addr,
        "clusterName": "DefaultCluster",
        "haServerAddr": addr[:-1] + "2",
        "brokerId": str(broker_id),
        "compressed": "false",
        "bodyCrc32": str(body_crc32(body)),
        **changes,
    }


@pytest.fixture
def connect(node: NameserverNode) -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(node.port))
        return peers[-1]

    yield make
    for peer in peers:
        peer.client.close()


@pytest.fixture
def peer(connect: Callable[[], Peer]) -> Peer:
    return connect()


def route(peer: Peer, topic: str = "T") -> TopicRouteData:
    return TopicRouteData.decode(peer.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body)


# ---- brokers


def test_an_old_master_is_told_who_the_newer_one_is(peer: Peer) -> None:
    peer.register(epoch="1")
    answer = peer.register(epoch="2", brokerAddr=SLAVE, haServerAddr="127.0.0.1:11912")
    assert "newerEpoch" not in answer.ext
    answer = peer.register(epoch="1")
    assert (answer.ext["newerEpoch"], answer.ext["newerMaster"]) == ("2", SLAVE)
    assert route(peer).broker_datas[0].broker_addrs == {0: SLAVE}
    # A stock broker says nothing of epochs, and is told nothing.
    assert "newerEpoch" not in peer.register().ext


@pytest.mark.parametrize("epoch", ["9223372036854775807", str(EPOCH_MAX + 1), str(10**7), "-2", "x"])
def test_a_stranger_with_a_number_beyond_belief_deposes_nobody(
    peer: Peer, connect: Callable[[], Peer], epoch: str
) -> None:
    peer.register(epoch="3")
    refused = connect().ask(RequestCode.REGISTER_BROKER, registration(epoch=epoch, brokerAddr=SLAVE))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert epoch in str(refused.remark), "the remark says what was wrong"
    assert route_master(peer) == MASTER
    assert "newerEpoch" not in peer.register(epoch="3").ext
    assert "newerEpoch" not in peer.register(epoch="1000").ext


def test_two_clusters_with_one_broker_name_are_told_and_checked(
    node: NameserverNode, connect: Callable[[], Peer], caplog: pytest.LogCaptureFixture
) -> None:
    connect().register()
    connect().register(brokerAddr="127.0.0.9:1", haServerAddr="127.0.0.9:2", clusterName="Other")
    assert "two clusters have a broker of one name" in caplog.text
    assert "name=broker-a addr=127.0.0.9:1 cluster=Other others=DefaultCluster" in caplog.text
    result = mqadmin("check", "-n", f"127.0.0.1:{node.port}", "--timeout", "0.1")
    assert result.exit_code == 2
    assert "TWO CLUSTERS, " in result.stdout
    assert "in clusters DefaultCluster and Other: clients find only one" in result.stdout


def test_the_newest_epoch_of_a_name_is_told(peer: Peer) -> None:
    def asked() -> NewestEpochBody:
        return NewestEpochBody.decode(peer.ok(RequestCode.GET_LINEAGE, {"brokerName": "broker-a"}).body)

    assert asked() == NewestEpochBody("broker-a")
    peer.register(epoch="4")
    assert asked().epoch == 4
    assert asked().master_addr == route_master(peer)


def route_master(peer: Peer) -> str:
    table = ClusterInfo.decode(peer.ok(RequestCode.GET_BROKER_CLUSTER_INFO).body).broker_addr_table
    return table["broker-a"].broker_addrs[0]


def test_a_registered_topic_has_a_route(peer: Peer) -> None:
    answer = peer.register("T", "U")
    assert "masterAddr" not in answer.ext
    assert "haServerAddr" not in answer.ext
    assert bytes(answer.body) == b""
    found = route(peer, "U")
    (broker,) = found.broker_datas
    assert (broker.cluster, broker.broker_name, broker.broker_addrs) == (
        "DefaultCluster",
        "broker-a",
        {0: MASTER},
    )
    (queues,) = found.queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (
        "broker-a",
        8,
        4,
        6,
    )


def test_a_topic_whose_name_cannot_be_is_left_out_told_once_and_the_rest_is_known(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    long = "%RETRY%" + "g" * 249
    for version in (V1, V2):
        peer.register("T", long, "U", version=version)
    assert sorted(TopicList.decode(peer.ok(206).body).topic_list) == ["T", "U"]
    assert peer.ask(105, {"topic": long}).code == 17
    told = [one.getMessage() for one in caplog.records if "left out" in one.getMessage()]
    assert len(told) == 1
    assert "name=broker-a addr=127.0.0.1:10911" in told[0]
    assert "is not a printable name of 1 ... 255 bytes" in told[0]


def test_an_unknown_topic_is_code_17(peer: Peer) -> None:
    answer = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic route info in name server for the topic: nowhere"


def test_a_slave_is_told_its_masters_two_addresses(connect: Callable[[], Peer]) -> None:
    master, slave = connect(), connect()
    assert slave.register(broker_id=1).ext.get("masterAddr") is None
    master.register()
    answer = slave.register(broker_id=1)
    assert answer.ext == {"masterAddr": MASTER, "haServerAddr": "127.0.0.1:10912"}
    master.ok(RequestCode.UNREGISTER_BROKER, registration())
    assert slave.register(broker_id=1).ext.get("masterAddr") is None


def test_a_killed_masters_connection_takes_it_out_at_once_and_the_slave_stays(
    connect: Callable[[], Peer],
) -> None:
    master, slave, client = connect(), connect(), connect()
    master.register()
    slave.register(broker_id=1)
    assert route(client).broker_datas[0].broker_addrs == {0: MASTER, 1: SLAVE}
    master.client.close()
    wait_until(lambda: route(client).broker_datas[0].broker_addrs == {1: SLAVE}, "the master is gone")
    assert route(client).queue_datas[0].perm == 6


def test_a_connection_that_is_not_the_latest_takes_nothing_with_it(
    connect: Callable[[], Peer], node: NameserverNode
) -> None:
    old, new = connect(), connect()
    old.register()
    new.register()
    old.client.close()
    wait_until(lambda: node._server.connections == 1, "the old connection is gone")
    assert route(new).broker_datas[0].broker_addrs == {0: MASTER}


def test_a_compressed_registration(peer: Peer) -> None:
    body = table("T", "U").encode_compressed()
    peer.ok(RequestCode.REGISTER_BROKER, registration(0, body, compressed="true"), body)
    assert sorted(TopicList.decode(peer.ok(206).body).topic_list) == ["T", "U"]


def test_a_registration_from_before_3_0_11_has_a_bare_table(peer: Peer) -> None:
    body = table("T").topics.encode()
    peer.ok(RequestCode.REGISTER_BROKER, registration(0, body), body, version=36)
    assert route(peer).queue_datas[0].write_queue_nums == 4


def test_the_body_a_java_broker_sends(peer: Peer) -> None:
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":1700000000000},'
        b'"topicConfigTable":{"TBW102":{"order":false,"perm":7,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"TBW102","topicSysFlag":0,"writeQueueNums":8}}}}'
    )
    peer.ok(RequestCode.REGISTER_BROKER, registration(0, body), body)
    assert route(peer, "TBW102").queue_datas[0].perm == 7


def test_data_version_query(peer: Peer) -> None:
    answer = peer.ok(RequestCode.QUERY_DATA_VERSION, registration(), V1.encode())
    assert answer.ext == {"changed": "true"}
    assert bytes(answer.body) == b""
    peer.register()
    answer = peer.ok(RequestCode.QUERY_DATA_VERSION, registration(), V1.encode())
    assert answer.ext == {"changed": "false"}
    assert DataVersion.decode(answer.body) == V1
    answer = peer.ok(RequestCode.QUERY_DATA_VERSION, registration(), V2.encode())
    assert answer.ext == {"changed": "true"}
    assert DataVersion.decode(answer.body) == V1


def test_a_silent_broker_is_removed_and_hung_up_on(tmp_path: Path) -> None:
    now = [0.0]
    routes = RouteTable(lambda: now[0])
    brokers = BrokerProcessors(routes, KvConfig(tmp_path / "kv.json"))
    server = RemotingServer(
        [Listener("127.0.0.1", 0, brokers.handlers())], on_close=brokers.connection_closed
    )
    server.start()
    peer = Peer(server.ports[0])
    try:
        peer.register()
        server.call_soon(brokers.expire)
        peer.ok(RequestCode.UNREGISTER_BROKER, registration(7))
        assert server.connections == 1
        now[0] = 120.1
        server.call_soon(brokers.expire)
        wait_until(lambda: server.connections == 0, "the nameserver hangs up")
        assert routes.clusters() == {}
    finally:
        peer.client.close()
        server.stop(Deadline(5))


def test_a_scan_that_comes_late_takes_no_broker_out(
    node: NameserverNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause of the process all brokers look silent: what they said meanwhile is not read yet."""
    judged: list[bool] = []
    monkeypatch.setattr(node._brokers, "expire", lambda: judged.append(True))

    def scan(late_s: float) -> int:
        loop = node._server.loop
        node._server.call_soon(node._scan, loop.time() - late_s)
        scanned = threading.Event()
        node._server.call_soon(scanned.set)
        assert scanned.wait(PATIENCE_S)
        return len(judged)

    assert [scan(0.0), scan(150.0), scan(150.0), scan(0.0)] == [1, 1, 2, 3]


def test_a_scan_that_failed_once_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "FIRST_SCAN_S", 0.01)
    monkeypatch.setattr(node_module, "SCAN_INTERVAL_S", 0.01)
    calls: list[int] = []

    def expire() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise RuntimeError("can't start new thread")

    node = NameserverNode(NameserverConfig("127.0.0.1", 0, tmp_path / "kv" / "kvConfig.json"))
    monkeypatch.setattr(node._brokers, "expire", expire)
    node.start()
    try:
        wait_until(lambda: len(calls) > 2, "it scans on")
    finally:
        node.stop()


# ---- what stock clients parse


def test_old_and_go_clients_get_unquoted_ids_and_new_ones_standard_json(peer: Peer) -> None:
    peer.register()
    ask = RequestCode.GET_ROUTEINFO_BY_TOPIC
    dialect = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,'
        b'"writeQueueNums":4}]}'
    )
    standard = dialect.replace(b"{0:", b'{"0":')
    for version in (0, 317, 400):
        assert bytes(peer.ok(ask, {"topic": "T"}, version=version).body) == dialect
        accepting = {"topic": "T", "acceptStandardJsonOnly": "true"}
        assert bytes(peer.ok(ask, accepting, version=version).body) == standard
    for version in (401, 409, 612):
        assert bytes(peer.ok(ask, {"topic": "T"}, version=version).body) == standard


def test_cluster_information_is_always_in_the_dialect(peer: Peer) -> None:
    peer.register()
    body = peer.ok(RequestCode.GET_BROKER_CLUSTER_INFO).body
    assert bytes(body) == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )
    assert ClusterInfo.decode(body).cluster_addr_table == {"DefaultCluster": ("broker-a",)}


def test_names_beyond_ascii(peer: Peer) -> None:
    peer.register(clusterName="集群")
    ask = RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert b'"cluster":"\\u96C6\\u7FA4"' in bytes(peer.ok(ask, {"topic": "T"}).body)
    assert '"cluster":"集群"'.encode() in bytes(peer.ok(ask, {"topic": "T"}, version=317).body)


# ---- lists and tools' changes


def test_lists_of_topics(peer: Peer) -> None:
    peer.register("T", "U")
    assert sorted(TopicList.decode(peer.ok(206).body).topic_list) == ["T", "U"]
    assert TopicList.decode(peer.ok(206).body).broker_addr is None
    of_cluster = peer.ok(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"})
    assert sorted(TopicList.decode(of_cluster.body).topic_list) == ["T", "U"]
    assert bytes(peer.ok(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "x"}).body) == b'{"topicList":[]}'
    system = TopicList.decode(peer.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert (system.topic_list, system.broker_addr) == (("DefaultCluster", "broker-a"), MASTER)


def test_write_permission_is_wiped_and_added(peer: Peer) -> None:
    peer.register("T", "U")
    ext = {"brokerName": "broker-a"}
    assert peer.ok(RequestCode.WIPE_WRITE_PERM_OF_BROKER, ext).ext == {"wipeTopicCount": "2"}
    assert route(peer).queue_datas[0].perm == 4
    assert peer.ok(RequestCode.ADD_WRITE_PERM_OF_BROKER, ext).ext == {"addTopicCount": "2"}
    assert route(peer).queue_datas[0].perm == 6


def test_a_topic_is_deleted(peer: Peer) -> None:
    peer.register("T", "U")
    peer.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "other"})
    route(peer)
    peer.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
    peer.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
    assert TopicList.decode(peer.ok(206).body).topic_list == ("U",)


# ---- the key-value configuration


def test_values_are_put_read_listed_deleted_and_survive_a_restart(peer: Peer, tmp_path: Path) -> None:
    key = {"namespace": "N", "key": "k"}
    assert peer.ask(RequestCode.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND
    assert peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, key).code == ResponseCode.QUERY_NOT_FOUND
    peer.ok(RequestCode.PUT_KV_CONFIG, {**key, "value": "v"})
    peer.ok(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "ü", "value": "{}"})
    assert peer.ok(RequestCode.GET_KV_CONFIG, key).ext == {"value": "v"}
    listed = KVTable.decode(peer.ok(RequestCode.GET_KVLIST_BY_NAMESPACE, key).body).table
    assert listed == {"k": "v", "ü": "{}"}
    again = KvConfig(tmp_path / "kv" / "kvConfig.json")
    assert again.namespace("N") == listed
    peer.ok(RequestCode.DELETE_KV_CONFIG, key)
    assert peer.ask(RequestCode.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND
    stored = json.loads((tmp_path / "kv" / "kvConfig.json").read_text())
    assert stored == {"configTable": {"N": {"ü": "{}"}}}


def test_the_order_configuration_is_handed_to_brokers_and_with_the_key_on_to_clients(
    peer: Peer, tmp_path: Path
) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    peer.ok(RequestCode.PUT_KV_CONFIG, order)
    assert KVTable.decode(peer.register().body).table == {"T": "broker-a:4"}
    assert route(peer).order_topic_conf is None
    config = NameserverConfig("127.0.0.1", 0, tmp_path / "kv" / "kvConfig.json", order_message_enable=True)
    ordering = NameserverNode(config)
    ordering.start()
    other = Peer(ordering.port)
    try:
        other.register("T", "U")
        assert route(other).order_topic_conf == "broker-a:4"
        assert route(other, "U").order_topic_conf is None
    finally:
        other.client.close()
        ordering.stop()


@pytest.mark.parametrize("content", ["[]", "{", '{"configTable":{"N":1}}', "\x00"])
def test_a_file_that_is_no_table_refuses_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "kv.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"kv\.json: not a key-value configuration"):
        KvConfig(file)


def test_the_backup_is_read_when_the_file_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "kv.json"
    kv = KvConfig(file)
    kv.put("N", "a", "1")
    kv.put("N", "b", "2")
    file.write_text("")
    assert KvConfig(file).namespace("N") == {"a": "1"}
    file.unlink()
    assert KvConfig(file).namespace("N") == {"a": "1"}


def test_a_file_that_cannot_be_written_is_answered_and_changes_nothing(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("in the way")
    answer = peer.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "cannot be written" in (answer.remark or "")
    assert peer.ask(RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "k"}).code == 22


def test_a_value_that_is_too_large_is_refused(peer: Peer) -> None:
    answer = peer.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v" * 65537})
    assert answer.code == ResponseCode.SYSTEM_ERROR


# ---- bad input: answered clearly, and the connection lives


def refused(peer: Peer, ext: dict[str, str], body: bytes = b"") -> str:
    answer = peer.ask(RequestCode.REGISTER_BROKER, ext, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert bytes(peer.ok(206).body) == b'{"topicList":[]}'
    return answer.remark or ""


def test_a_lying_checksum_is_refused(peer: Peer) -> None:
    body = table("T").encode()
    assert "crc32 not match" in refused(peer, registration(0, body, bodyCrc32="1"), body)
    assert "crc32 not match" in refused(peer, registration(0, body), body + b" ")


def test_a_checksum_of_0_is_not_checked(peer: Peer) -> None:
    body = table("T").encode()
    peer.ok(RequestCode.REGISTER_BROKER, registration(0, body, bodyCrc32="0"), body)
    fields = registration(0, body)
    del fields["bodyCrc32"], fields["compressed"]
    peer.ok(RequestCode.REGISTER_BROKER, fields, body)


@pytest.mark.parametrize("field", ["brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId"])
def test_a_missing_field_is_named(peer: Peer, field: str) -> None:
    fields = registration()
    del fields[field]
    assert field in refused(peer, fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("brokerAddr", "127.0.0.1"),
        ("brokerAddr", "127.0.0.1:0"),
        ("brokerAddr", "a b:1"),
        ("brokerAddr", ""),
        ("haServerAddr", "nonsense"),
        ("brokerId", "one"),
        ("brokerId", "-1"),
        ("brokerId", str(2**63)),
        ("brokerName", ""),
        ("brokerName", "x" * 300),
        ("clusterName", "a\x00b"),
    ],
)
def test_a_bad_field_is_named(peer: Peer, field: str, value: str) -> None:
    assert field in refused(peer, registration(**{field: value}))


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"[]",
        b"1",
        b"{",
        b'{"topicConfigSerializeWrapper":7}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","perm":"six"}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":NaN}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":-4}}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":"\xff"}}',
        b"[" * 100_000,
        b'{"a":' * 5_000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_body_that_is_nonsense_is_refused(peer: Peer, body: bytes) -> None:
    assert refused(peer, registration(0, body), body)


@pytest.mark.parametrize("body", [b"nonsense", table("T").encode_compressed()[:-5], b"\x78\x9c"])
def test_a_compressed_body_that_is_none_is_refused(peer: Peer, body: bytes) -> None:
    assert refused(peer, registration(0, body, compressed="true"), body)


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (RequestCode.UNREGISTER_BROKER, "brokerName"),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, "topic"),
        (RequestCode.QUERY_DATA_VERSION, "brokerName"),
        (RequestCode.PUT_KV_CONFIG, "namespace"),
        (RequestCode.GET_KV_CONFIG, "namespace"),
        (RequestCode.DELETE_KV_CONFIG, "namespace"),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, "namespace"),
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, "brokerName"),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, "brokerName"),
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, "topic"),
        (RequestCode.GET_TOPICS_BY_CLUSTER, "cluster"),
    ],
)
def test_every_request_without_its_fields_is_answered(peer: Peer, code: int, field: str) -> None:
    answer = peer.ask(code)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert field in (answer.remark or "")


def test_an_unknown_code_is_answered(peer: Peer) -> None:
    answer = peer.ask(12345)
    assert (answer.code, answer.remark) == (3, " request type 12345 not supported")


def test_a_frame_that_is_none_ends_its_connection_and_no_other(peer: Peer, node: NameserverNode) -> None:
    peer.register()
    for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", struct.pack(">ii", 100, 2_000), b"\xff" * 64):
        with socket.create_connection(("127.0.0.1", node.port), 10) as raw:
            raw.sendall(data)
            assert raw.recv(1) == b""
    route(peer)


# ---- start and stop


def test_the_boot_line_goes_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = NameserverNode(NameserverConfig("127.0.0.1", 0, tmp_path / "kv.json"))
    node.start()
    port = node.port
    node.stop()
    node.stop()
    assert capsys.readouterr().out == "The Name Server boot success. serializeType=JSON\n"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("remoting-")]
    with BlockingClient() as client, pytest.raises(RemotingUnreachable):
        client.call(f"127.0.0.1:{port}", RemotingCommand.request(206), 10)


def test_a_taken_port_is_named(node: NameserverNode, tmp_path: Path) -> None:
    other = NameserverNode(NameserverConfig("127.0.0.1", node.port, tmp_path / "kv.json"))
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{node.port}: listenPort: .*taken"):
        other.start()
    other.stop()


def test_route_processors_need_no_server(tmp_path: Path) -> None:
    """Pure enough to be asked directly: the seam that a simulator uses."""
    routes = RouteProcessors(
        RouteTable(lambda: 0.0), KvConfig(tmp_path / "kv.json"), order_message_enable=False
    )
    answer = routes.all_topics(None, RemotingCommand.request(206))  # type: ignore[arg-type]
    assert isinstance(answer, RemotingCommand)
    assert bytes(answer.body) == b'{"topicList":[]}'


# ---- large tables


def hold_parts(monkeypatch: pytest.MonkeyPatch, may_go_on: Callable[[int], bool]) -> None:
    """Each part of a table has to wait until it may be read: the steps until then read nothing."""
    parts = PlainRegistration.parts
    deadline = Deadline(10)

    def held(body: PlainRegistration) -> Iterator[Mapping[str, Any]]:
        for number, part in enumerate(parts(body)):
            while not may_go_on(number) and not deadline.expired:
                yield {}
            yield part

    monkeypatch.setattr(body_of_registration, "PART_BYTES", 1000)
    monkeypatch.setattr(PlainRegistration, "parts", held)


def test_routes_are_answered_while_a_large_table_is_read(
    connect: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One route behind each of the first parts."""
    routes: list[TopicRouteData] = []
    hold_parts(monkeypatch, lambda number: len(routes) >= min(number, 21))
    broker, other = connect(), connect()
    broker.register("First")
    body = table(*(f"T{number}" for number in range(20_000)), version=V2).encode()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(broker.ok, RequestCode.REGISTER_BROKER, registration(0, body), body)
        for _ in range(21):
            assert not answer.done()
            routes.append(route(other, "First"))
        answer.result()
    assert route(other, "T19999").queue_datas[0].read_queue_nums == 8


def test_what_a_broker_says_behind_a_large_table_counts_after_it(connect: Callable[[], Peer]) -> None:
    """It says good-bye at once: nothing of it stays."""
    broker, other = connect(), connect()
    body = table(*(f"T{number}" for number in range(20_000))).encode()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(broker.ask, RequestCode.REGISTER_BROKER, registration(0, body), body)
        wait_until(
            lambda: other.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T0"}).code == 0 or first.done()
        )
        second = pool.submit(broker.ask, RequestCode.UNREGISTER_BROKER, registration())
        assert first.result().code == 0
        assert second.result().code == 0
    assert other.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T0"}).code == ResponseCode.TOPIC_NOT_EXIST
    listed = other.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert TopicList.decode(listed.body).topic_list == ()


def test_a_broker_whose_connection_ends_within_a_large_table_leaves_nothing(
    node: NameserverNode, connect: Callable[[], Peer]
) -> None:
    broker, other = Peer(node.port), connect()
    body = table(*(f"T{number}" for number in range(40_000))).encode()
    command = RemotingCommand.request(RequestCode.REGISTER_BROKER, registration(0, body), body)
    broker.client.oneway(broker.addr, command)
    # Some of it is known; then the broker is gone.
    wait_until(
        lambda: other.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T0"}).code == 0, "T0 is known"
    )
    broker.client.close()
    wait_until(
        lambda: (
            TopicList.decode(other.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body).topic_list == ()
        ),
        "no topic is left",
    )


def test_a_broker_whose_connection_ends_while_its_table_is_read_is_not_known(
    node: NameserverNode, connect: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_parts(monkeypatch, lambda number: number < 20)  # the others never
    broker, other = Peer(node.port), connect()
    body = table(*(f"T{number}" for number in range(20_000))).encode()
    command = RemotingCommand.request(RequestCode.REGISTER_BROKER, registration(0, body), body)
    broker.client.oneway(broker.addr, command)
    waiting = node._brokers._turns._waiting
    wait_until(lambda: waiting, "it is being read")
    broker.client.close()
    wait_until(lambda: not waiting, "it is not read any more")
    answer = other.ok(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert ClusterInfo.decode(answer.body).broker_addr_table == {}


def test_a_large_table_that_waits_gives_way_to_the_next_one(connect: Callable[[], Peer]) -> None:
    """A stock broker sends its whole table with each topic that a send creates."""
    broker, other = connect(), connect()
    bodies = [
        table(*(f"T{number}" for number in range(5_000)), f"Only{at}", version=DataVersion(at, 1)).encode()
        for at in range(8)
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = []
        for body in bodies:
            answers.append(pool.submit(broker.ask, RequestCode.REGISTER_BROKER, registration(0, body), body))
        assert {answer.result().code for answer in answers} == {0}
    # Threads may send in any order: the last one counts, whichever that is.
    listed = set(TopicList.decode(other.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body).topic_list)
    assert {f"T{number}" for number in range(5_000)} <= listed
    assert any(f"Only{at}" in listed for at in range(8))


def test_too_many_topics_of_one_broker_are_refused_before_they_are_known(
    node: NameserverNode, peer: Peer
) -> None:
    node._brokers._table._queue_entries_max = 3_000
    body = table(*(f"T{number}" for number in range(3_001))).encode()
    answer = peer.ask(RequestCode.REGISTER_BROKER, registration(0, body), body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the nameserver is full" in (answer.remark or "")
    assert TopicList.decode(peer.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body).topic_list == ()
