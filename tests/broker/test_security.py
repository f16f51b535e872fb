"""A broker with access control, from outside: both ports, tools, changes of the file, a slave that signs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from click.testing import CliRunner

from haservice.access.files import AclFiles
from haservice.admin.cli import main as mqadmin
from haservice.broker.acl.rights import CLIENT_CODES
from haservice.broker.acl.security import Security, security_of
from haservice.broker.node import BrokerNode
from haservice.configuration.coordinator_settings import CoordinatorConfig
from haservice.configuration.security_settings import AclConfig
from haservice.devtools.pair import free_port_block
from haservice.errors import ConfigError
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import sign
from tests.support.brokers import node_config, send_request
from tests.support.certificates import certificates
from tests.support.remoting import Peer
from tests.support.scraped import get, value_of
from tests.support.waiting import PATIENCE_S, wait_until

ADMIN, USER, SECRET = "admins-key", "users-key", "secret-key"
RULES = f"""\
accounts:
  - {{accessKey: {ADMIN}, secretKey: {SECRET}, admin: true}}
  - {{accessKey: {USER}, secretKey: {SECRET}, topicPerms: [T=PUB]}}
"""


@pytest.fixture
def acl_file(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(RULES)
    return path


def guarded(root: Path, acl_file: Path | None, **kw: object) -> BrokerNode:
    config = node_config(root, **kw)  # type: ignore[arg-type]
    return BrokerNode(dataclasses.replace(config, acl=AclConfig(enabled=True, file=acl_file)))


@pytest.fixture
def node(tmp_path: Path, acl_file: Path) -> Iterator[BrokerNode]:
    made = guarded(tmp_path / "store", acl_file)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as made:
        yield made


def signed(request: RemotingCommand, access_key: str = USER, secret: str = SECRET) -> RemotingCommand:
    sign(request, access_key, secret)
    return request


def admin(code: int, **ext: str) -> RemotingCommand:
    return signed(RemotingCommand.request(code, ext), ADMIN)


def vip(node: BrokerNode) -> str:
    return f"127.0.0.1:{node.config.remoting.vip_port}"


def test_both_ports_ask_for_credentials(node: BrokerNode, client: BlockingClient) -> None:
    for addr in (node.config.broker_addr, vip(node)):
        assert client.call(addr, signed(send_request("T"))).code == 0
        refused = client.call(addr, send_request("T"))
        assert (refused.code, "No accessKey is configured" in str(refused.remark)) == (1, True)
        assert client.call(addr, signed(send_request("T"), secret="wrong-secret")).code == 1
        assert "topic:U" in str(client.call(addr, signed(send_request("U"))).remark)
        assert "No accessKey" in str(client.call(addr, RemotingCommand.request(26)).remark)


def test_of_several_sends_in_one_read_only_the_bad_ones_are_refused(node: BrokerNode) -> None:
    good = [signed(send_request("T")) for _ in range(3)]
    requests = [good[0], send_request("T"), good[1], signed(send_request("U")), good[2]]
    for number, request in enumerate(requests):
        request.opaque = number
    with Peer(node.config.remoting.listen_port) as peer:
        peer.send(*requests)
        answers = {answer.opaque: answer for answer in (peer.receive() for _ in requests)}
    assert [answers[number].code for number in range(5)] == [0, 1, 0, 1, 0]
    offsets = sorted(int(answers[number].ext["queueOffset"]) for number in (0, 2, 4))
    assert offsets == [0, 1, 2], "what was refused was not stored"


def test_a_oneway_request_without_credentials_does_nothing(node: BrokerNode) -> None:
    with Peer(node.config.remoting.listen_port) as peer:
        request = send_request("T")
        request.flag = 2
        peer.send(request)
        answer = peer.ask(*_call(signed(send_request("T"))))
    assert answer.ext["queueOffset"] == "0"


def _call(request: RemotingCommand) -> tuple[int, dict[str, str], bytes]:
    return int(request.code), request.ext, bytes(request.body)


def test_a_new_account_in_the_file_counts_without_a_restart(
    node: BrokerNode, client: BlockingClient, acl_file: Path
) -> None:
    addr = node.config.broker_addr
    request = signed(send_request("T"), "newcomers-key")
    assert "No acl config for newcomers-key" in str(client.call(addr, request).remark)
    acl_file.write_text(RULES + f"  - {{accessKey: newcomers-key, secretKey: {SECRET}, admin: true}}\n")
    wait_until(lambda: client.call(addr, request).code == 0, "the account counts")


def test_tools_change_accounts(node: BrokerNode, client: BlockingClient, acl_file: Path) -> None:
    addr = node.config.broker_addr
    fields = {
        "accessKey": "newcomers-key",
        "secretKey": SECRET,
        "admin": "false",
        "topicPerms": "T=PUB,U=SUB",
    }
    put = admin(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, **fields)
    assert (client.call(addr, put).code, client.call(addr, put).remark) == (0, None)
    assert client.call(addr, signed(send_request("T"), "newcomers-key")).code == 0
    assert client.call(addr, signed(send_request("U"), "newcomers-key")).code == 1

    answer = client.call(addr, admin(RequestCode.GET_BROKER_CLUSTER_ACL_INFO))
    assert (answer.ext["brokerName"], answer.ext["clusterName"]) == ("broker-a", "C")
    assert answer.ext["brokerAddr"] == addr
    assert orjson.loads(answer.ext["version"])["counter"] == 2
    assert orjson.loads(answer.ext["allAclFileVersion"]).keys() == {str(acl_file)}

    white = admin(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, globalWhiteAddrs="10.0.0.1,127.0.0.*")
    assert client.call(addr, white).code == 0
    assert client.call(addr, send_request("anything")).code == 0
    white = admin(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, globalWhiteAddrs="")
    assert client.call(addr, white).code == 0

    delete = admin(RequestCode.DELETE_ACL_CONFIG, accessKey="newcomers-key")
    assert client.call(addr, delete).code == 0
    assert client.call(addr, signed(send_request("T"), "newcomers-key")).code == 1
    assert client.call(addr, delete).code == 210


def test_permissions_that_are_set_to_nothing_are_taken_away(
    node: BrokerNode, client: BlockingClient, acl_file: Path
) -> None:
    addr = node.config.broker_addr
    put = {"accessKey": "newcomers-key", "secretKey": SECRET, "admin": "false"}
    given = {
        "topicPerms": "T=PUB",
        "groupPerms": "G=SUB",
        "defaultTopicPerm": "PUB",
        "defaultGroupPerm": "SUB",
    }

    def codes() -> list[int]:
        return [client.call(addr, signed(send_request(topic), "newcomers-key")).code for topic in ("T", "U")]

    assert client.call(addr, admin(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, **put, **given)).code == 0
    assert codes() == [0, 0]
    assert client.call(addr, admin(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, **put)).code == 0
    assert codes() == [0, 0], "what is not named stays"
    nothing = dict.fromkeys(given, "")
    assert client.call(addr, admin(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, **put, **nothing)).code == 0
    assert codes() == [1, 1]
    for written in ("[]", ""):
        text = f"  - {{accessKey: newcomers-key, secretKey: {SECRET}, topicPerms: {written}, groupPerms: {written}}}\n"
        acl_file.write_text(RULES + text)
        rules = AclFiles(acl_file)
        rules.load()
        account = rules.rules.accounts["newcomers-key"]
        assert not account.perms


@pytest.mark.parametrize(
    ("code", "ext", "answered", "remark"),
    [
        (50, {"accessKey": "k", "secretKey": SECRET}, 209, "accessKey has 1 characters"),
        (50, {"accessKey": "long-enough"}, 209, "secretKey has 0 characters"),
        (
            50,
            {"accessKey": "long-enough", "secretKey": SECRET, "topicPerms": "T=ALL"},
            209,
            "permission 'ALL'",
        ),
        (50, {"accessKey": "long-enough", "secretKey": SECRET, "whiteRemoteAddress": "x"}, 209, "no address"),
        (50, {"secretKey": SECRET}, 1, "accessKey"),
        (51, {"accessKey": "nobodys-key"}, 210, "nobodys-key"),
        (53, {"globalWhiteAddrs": "10.0.0.900"}, 211, "not an address"),
        (53, {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/passwd"}, 211, "none of the files"),
    ],
)
def test_what_tools_ask_for_and_cannot_be_is_refused(
    node: BrokerNode,
    client: BlockingClient,
    acl_file: Path,
    code: int,
    ext: dict[str, str],
    answered: int,
    remark: str,
) -> None:
    answer = client.call(node.config.broker_addr, admin(code, **ext))
    assert answer.code == answered
    assert remark.replace("no address", "is not an address") in str(answer.remark)
    assert acl_file.read_text() == RULES


@pytest.mark.parametrize("code", [50, 51, 53])
def test_only_an_admin_changes_the_rules(node: BrokerNode, client: BlockingClient, code: int) -> None:
    request = signed(RemotingCommand.request(code, {"accessKey": USER, "globalWhiteAddrs": "*"}))
    assert "Need admin permission" in str(client.call(node.config.broker_addr, request).remark)


def test_everything_that_is_served_asks_who_it_is(node: BrokerNode, client: BlockingClient) -> None:
    """And what is no client's request takes an admin, whatever the account may read and write."""
    addr = node.config.broker_addr
    codes = {code for one in node.server._listeners for code in one.processors}
    assert {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET} <= codes
    for code in sorted(codes):
        answer = client.call(addr, RemotingCommand.request(code))
        assert (answer.code, "No accessKey is configured" in str(answer.remark)) == (1, True), code
        if code not in CLIENT_CODES:
            answer = client.call(addr, signed(RemotingCommand.request(code)))
            assert f"Need admin permission for request code={code}" in str(answer.remark)


def test_without_access_control_tools_are_told_so(tmp_path: Path, client: BlockingClient) -> None:
    plain = BrokerNode(node_config(tmp_path / "store"))
    plain.start()
    try:
        answers = [
            client.call(plain.config.broker_addr, RemotingCommand.request(code, {"accessKey": "k"})).code
            for code in (50, 51, 52, 53)
        ]
    finally:
        plain.stop()
    assert answers == [209, 210, 1, 211]


@pytest.mark.parametrize(("text", "reason"), [(None, "nobody"), ("", "nobody"), ("accounts: [", ":1")])
def test_a_broker_does_not_start_without_good_rules(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "plain_acl.yml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        guarded(tmp_path / "store", path).start()
    assert not (tmp_path / "store").exists(), "nothing was opened"


def test_a_broker_that_cannot_know_where_the_rules_are_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"aclFile.*ROCKETMQ_HOME"):
        guarded(tmp_path / "store", None).start()


def test_sends_that_access_control_refuses_are_counted_and_other_requests_are_not(
    tmp_path: Path, acl_file: Path, client: BlockingClient
) -> None:
    port = free_port_block(1)
    node = guarded(tmp_path / "store", acl_file, metrics_addr=f"127.0.0.1:{port}")
    node.start()
    try:
        addr = node.config.broker_addr
        assert client.call(addr, signed(send_request("T"))).code == 0
        for request in (
            send_request("T"),
            signed(send_request("Other")),
            signed(send_request("T"), secret="no"),
        ):
            assert client.call(addr, request).code == 1
        assert client.call(addr, RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 1
        counted = value_of(get(port, "/metrics").body, "haservice_sends_refused_total", reason="system_error")
        assert counted == 3
    finally:
        node.stop()


def test_a_look_at_one_kind_of_files_that_fails_hides_no_other(
    node: BrokerNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Certificates ran out in silence, though new ones lay there, once a look at the accounts had failed."""
    security, looked = node.parts.security, threading.Event()

    def fails() -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(security.acl, "poll", fails)
    renewed = SimpleNamespace(renewed=SimpleNamespace(poll=looked.set))
    with_tls = dataclasses.replace(security, tls=renewed)  # type: ignore[arg-type]
    server = node.parts.server
    server.call_soon(with_tls.poll, server.offload_quietly)
    assert looked.wait(PATIENCE_S)
    wait_until(lambda: "a regular look failed" in caplog.text and "planted" in caplog.text, "it is told")


def test_a_brokers_own_key_is_renewed_without_a_restart(
    tmp_path: Path, acl_file: Path, client: BlockingClient
) -> None:
    keys = tmp_path / "keys.yml"
    keys.write_text(f"accessKey: {ADMIN}\nsecretKey: {SECRET}\n")
    config = node_config(tmp_path / "store")
    acl = AclConfig(enabled=True, file=acl_file, credentials_file=keys)
    node = BrokerNode(dataclasses.replace(config, acl=acl))
    node.start()
    try:
        addr = node.config.broker_addr
        own = node.parts.client
        asked = RemotingCommand.request
        assert own.call(addr, asked(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
        acl_file.write_text(RULES.replace(ADMIN, "newer-key"))
        wait_until(lambda: own.call(addr, asked(26)).code == 1, "the account before is gone")
        keys.write_text("accessKey: newer-key\n")

        def trouble() -> str:
            answer = client.call(addr, signed(asked(RequestCode.GET_BROKER_RUNTIME_INFO), "newer-key"))
            return str(orjson.loads(bytes(answer.body))["table"].get("filesNotInForce", ""))

        wait_until(lambda: "there is no secretKey" in trouble(), "the broken file is told")
        keys.write_text(f"accessKey: newer-key\nsecretKey: {SECRET}\n")
        wait_until(lambda: own.call(addr, asked(26)).code == 0, "the broker signs with the new key")
        wait_until(lambda: trouble() == "", "nothing is wrong any more")
    finally:
        node.stop()


def test_a_secret_of_an_account_comes_from_standard_input(
    node: BrokerNode, client: BlockingClient, tmp_path: Path
) -> None:
    tools = tmp_path / "tools.yml"
    tools.write_text(f"accessKey: {ADMIN}\nsecretKey: {SECRET}\n")
    words = [
        "updateAclConfig",
        "-b",
        node.config.broker_addr,
        "-a",
        "newcomers-key",
        "-s",
        "-",
        "-t",
        "T=PUB",
    ]
    ran = CliRunner().invoke(mqadmin, words, input="another-secret\n", env={"MQADMIN_TOOLS_YML": str(tools)})
    assert ran.exit_code == 0, ran.output
    assert "another-secret" not in ran.output
    request = signed(send_request("T"), "newcomers-key", "another-secret")
    assert client.call(node.config.broker_addr, request).code == 0


def test_the_files_of_tls_to_the_coordinator_are_dated_and_told_where_they_are_no_good(
    tmp_path: Path,
) -> None:
    made = certificates()
    root = tmp_path / "root.pem"
    root.write_bytes(made.root.read_bytes())

    def of(**changes: object) -> Security:
        settings = {"address": "etcds://127.0.0.1:1", "trust": root, **changes}
        coordinator = CoordinatorConfig(**settings)  # type: ignore[arg-type]
        return security_of(dataclasses.replace(node_config(tmp_path), coordinator=coordinator))

    security = of(certificate=made.client, key=made.client_key)
    assert set(security.validities()) == {"haCoordinatorTrustCertPath", "haCoordinatorCertPath"}
    root.write_bytes(b"no certificate")
    for _ in range(2):
        security.poll(lambda look: look())
    assert f"haCoordinatorTrustCertPath={root}: no certificates in it" in security.trouble
    with pytest.raises(ConfigError, match=r"haCoordinatorKeyPath.*certificate and key go together"):
        of(trust=None, certificate=made.client)
    assert of(address="etcd://127.0.0.1:1").coordinator is None
