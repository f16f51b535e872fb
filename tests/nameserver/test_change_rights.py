"""Who may change what a nameserver knows: accounts and addresses, from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haservice.broker.node import BrokerNode
from haservice.configuration.config import nameserver_from
from haservice.configuration.properties import parse
from haservice.configuration.security_settings import AclConfig
from haservice.errors import ConfigError
from haservice.nameserver import node as node_module
from haservice.nameserver.change_rights import CHANGES
from haservice.nameserver.node import NameserverNode
from haservice.remoting.bodies.clients import ClusterInfo
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import sign
from tests.admin.asking import run
from tests.support.brokers import node_config
from tests.support.waiting import wait_until

ADMIN, USER, SECRET = "admins-key", "users-key", "secret-key"
RULES = f"""\
accounts:
  - {{accessKey: {ADMIN}, secretKey: {SECRET}, admin: true}}
  - {{accessKey: {USER}, secretKey: {SECRET}, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}}
"""
CREDENTIALS = f"accessKey: {ADMIN}\nsecretKey: {SECRET}\n"
REGISTRATION = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "C",
    "haServerAddr": "127.0.0.1:10912",
    "brokerId": "0",
}
# Each change, with what makes it a sound request.
ASKED: dict[int, tuple[dict[str, str], bytes]] = {
    RequestCode.REGISTER_BROKER: (REGISTRATION, b""),
    RequestCode.UNREGISTER_BROKER: (REGISTRATION, b""),
    RequestCode.QUERY_DATA_VERSION: (REGISTRATION, b'{"counter":1,"timestamp":1}'),
    RequestCode.PUT_KV_CONFIG: ({"namespace": "n", "key": "k", "value": "v"}, b""),
    RequestCode.DELETE_KV_CONFIG: ({"namespace": "n", "key": "k"}, b""),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, b""),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, b""),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: ({"topic": "T"}, b""),
    RequestCode.UPDATE_NAMESRV_CONFIG: ({}, b"orderMessageEnable=true\n"),
}
READS = {
    RequestCode.GET_KV_CONFIG,
    RequestCode.GET_KVLIST_BY_NAMESPACE,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.GET_LINEAGE,
}


class Asked:
    """A nameserver whose file says `text`, and a client that asks it."""

    def __init__(self, directory: Path, text: str) -> None:
        directory.mkdir(exist_ok=True)
        self.rules = directory / "plain_acl.yml"
        self.rules.write_text(RULES)
        file = directory / "namesrv.properties"
        file.write_text(f"bindAddress=127.0.0.1\nkvConfigPath={directory}/kv.json\n{text}")
        config = nameserver_from(parse(file.read_text(), str(file)), {})
        self.node = NameserverNode(dataclasses.replace(config, listen_port=0))
        self.node.start()
        self.addr = f"127.0.0.1:{self.node.port}"
        self.client = BlockingClient()

    def ask(self, code: int, access_key: str = "", secret: str = SECRET) -> RemotingCommand:
        ext, body = ASKED.get(code, ({}, b""))
        request = RemotingCommand.request(code, dict(ext), body)
        if access_key:
            sign(request, access_key, secret)
        return self.client.call(self.addr, request)

    def masters(self) -> dict[str, str]:
        answer = self.client.call(self.addr, RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        table = ClusterInfo.decode(answer.body).broker_addr_table
        return {name: data.broker_addrs[0] for name, data in table.items()}

    def close(self) -> None:
        self.client.close()
        self.node.stop()


Start = Callable[[str], Asked]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Asked] = []

    def make(text: str) -> Asked:
        started.append(Asked(tmp_path / f"namesrv-{len(started)}", text))
        return started[-1]

    yield make
    for one in started:
        one.close()


def test_of_every_request_it_is_decided_whether_it_is_a_change(start: Start) -> None:
    served = start("").node.served_codes
    assert served == CHANGES | READS | {RequestCode.GET_NAMESRV_CONFIG}
    assert ASKED.keys() == CHANGES


@pytest.mark.parametrize("code", sorted(CHANGES))
def test_with_accounts_a_change_takes_an_admin(start: Start, code: int) -> None:
    asked = start("aclEnable=true\n")
    assert "No accessKey is configured" in str(asked.ask(code).remark)
    assert "Check signature failed" in str(asked.ask(code, ADMIN, "another-secret").remark)
    assert "Need admin permission" in str(asked.ask(code, USER).remark)
    assert asked.masters() == {}
    assert asked.ask(code, ADMIN).code == 0


def test_its_own_settings_are_for_admins_where_there_are_accounts(start: Start) -> None:
    code = RequestCode.GET_NAMESRV_CONFIG
    asked = start("aclEnable=true\n")
    assert "No accessKey is configured" in str(asked.ask(code).remark)
    assert "Need admin permission" in str(asked.ask(code, USER).remark)
    assert asked.ask(code, ADMIN).code == 0
    assert start("changesAllowedFrom=10.0.0.0/8\n").ask(code).code == 0


@pytest.mark.parametrize("text", ["aclEnable=true\n", "changesAllowedFrom=10.0.0.0/8\n"])
def test_what_it_knows_stays_readable_to_all(start: Start, text: str) -> None:
    asked = start(text)
    for code in READS - {RequestCode.GET_KV_CONFIG, RequestCode.GET_KVLIST_BY_NAMESPACE}:
        remark = str(asked.ask(code).remark)
        assert "AclException" not in remark, code


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ("127.0.0.0/8", 0),
        ("10.0.0.1; 127.0.0.1", 0),
        ("127.0.0.{1,2}", 0),
        ("127.0.*.*", 0),
        ("10.0.0.0/8", 1),
        ("10.0.0-9.*;::1", 1),
    ],
)
def test_without_accounts_addresses_may_be_allowed(start: Start, allowed: str, code: int) -> None:
    asked = start(f"changesAllowedFrom={allowed}\n")
    answer = asked.ask(RequestCode.REGISTER_BROKER)
    assert answer.code == code, answer
    assert ("127.0.0.1 may not change this nameserver (changesAllowedFrom)" in str(answer.remark)) == bool(
        code
    )
    assert bool(asked.masters()) == (code == 0)


def test_a_stock_broker_that_signs_nothing_is_allowed_by_its_address_beside_the_accounts(
    start: Start,
) -> None:
    asked = start("aclEnable=true\nchangesAllowedFrom=127.0.0.1\n")
    assert asked.ask(RequestCode.REGISTER_BROKER).code == 0


def test_the_accounts_white_list_allows_as_at_a_broker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "FIRST_SCAN_S", 0.1)
    monkeypatch.setattr(node_module, "SCAN_INTERVAL_S", 0.1)
    asked = start("aclEnable=true\n")
    assert asked.ask(RequestCode.REGISTER_BROKER).code == 1
    asked.rules.write_text(f"globalWhiteRemoteAddresses: [127.0.0.*]\n{RULES}")
    wait_until(lambda: asked.ask(RequestCode.REGISTER_BROKER).code == 0, "the changed file counts")


def test_a_broker_of_ours_signs_its_registration_and_mqadmin_what_it_changes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = start("aclEnable=true\n")
    credentials = tmp_path / "tools.yml"
    credentials.write_text(CREDENTIALS)
    for file in (None, credentials):
        config = node_config(tmp_path / "store", broker={"namesrv_addrs": (asked.addr,)})
        broker = BrokerNode(dataclasses.replace(config, acl=AclConfig(credentials_file=file)))
        broker.start()
        try:
            if file is None:
                wait_until(lambda: "No accessKey is configured" in caplog.text, "the broker says why")
                assert asked.masters() == {}
            else:
                addr = config.broker_addr
                wait_until(lambda addr=addr: asked.masters() == {"broker-a": addr}, "it is registered")
        finally:
            broker.stop()
    assert asked.masters() == {}, "it has signed its farewell, too"

    put = ["updateKvConfig", "-n", asked.addr, "-s", "n", "-k", "k", "-v", "v"]
    refused = run(*put)
    assert (refused.exit_code, "No accessKey is configured" in refused.output) == (1, True)
    monkeypatch.setenv("MQADMIN_TOOLS_YML", str(credentials))
    assert run(*put).exit_code == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("changesAllowedFrom=10.0.0.0/33\n", "changesAllowedFrom: '10.0.0.0/33' is not a network"),
        ("changesAllowedFrom=somewhere\n", "changesAllowedFrom: 'somewhere' is not an address"),
        ("aclEnable=true\naclFile=/nowhere/plain_acl.yml\n", "/nowhere/plain_acl.yml"),
    ],
)
def test_a_guard_that_cannot_be_set_up_refuses_the_start(start: Start, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        start(text)


def test_no_request_changes_the_guards(start: Start) -> None:
    asked = start("aclEnable=true\n")
    for line in (b"aclEnable=false", b"changesAllowedFrom=*"):
        request = RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, line)
        sign(request, ADMIN, SECRET)
        assert asked.client.call(asked.addr, request).code == 16
