"""Access control and TLS with stock peers: who gets in, who does not, and in which words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from haservice.configuration.security_settings import TlsConfig
from haservice.devtools.pair import free_port_block
from haservice.remoting.client import BlockingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import sign
from haservice.remoting.tls import client_tls
from tests.interop.driver import JavaDriver, JavaError, Producer, Queue, message
from tests.interop.stock import (
    KINDS,
    Broker,
    Nameserver,
    OurBroker,
    OurNameserver,
    StockBroker,
    broker,
    nameserver,
    requires_stock,
    servers,
)
from tests.support.certificates import certificates
from tests.support.quick_java import QUICK_JAVA
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(120)]

ADMIN = {"accessKey": "admins-key", "secretKey": "admins-secret"}
USER = {"accessKey": "users-key", "secretKey": "12345678"}
NEWCOMER = {"accessKey": "newcomers-key", "secretKey": "newcomers-secret"}
RULES = """\
globalWhiteRemoteAddresses:
accounts:
  - accessKey: admins-key
    secretKey: admins-secret
    admin: true
  - accessKey: users-key
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - Open=PUB|SUB
      - ReadOnly=SUB
      - Denied=DENY
    groupPerms:
      - readers=SUB
"""
TOPICS = ("Open", "ReadOnly", "Denied")
# The slowest of the two, RocketMQ's, looks every 5 s.
RELOAD_SECONDS = 15.0


def write_rules(server: Broker, text: str = RULES) -> Path:
    path = server.home / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Guarded(NamedTuple):
    namesrv: Nameserver
    master: Broker
    rules: Path


def guarded_master(kind: str, directory: Path, namesrv: Nameserver) -> tuple[Broker, Path]:
    master = broker(kind, directory, role="ASYNC_MASTER", namesrv=namesrv, aclEnable="true")
    return master, write_rules(master)


def admin_call(addr: str, code: int, body: bytes = b"", **ext: str) -> RemotingCommand:
    request = RemotingCommand.request(code, ext, body)
    sign(request, ADMIN["accessKey"], ADMIN["secretKey"])
    with BlockingClient() as client:
        return expect(addr, client.call(addr, request))


def create_topics(addr: str, *topics: str) -> None:
    for topic in topics:
        fields = {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        numbers = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicSysFlag": "0"}
        admin_call(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields, **numbers, order="false")


@pytest.fixture(scope="module", params=KINDS)
def guarded(
    request: pytest.FixtureRequest, stock_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp(f"acl-{request.param}")
    with servers() as start:
        namesrv = nameserver("ours", directory)
        start(namesrv)
        master, rules = guarded_master(request.param, directory, namesrv)
        start(master)
        create_topics(master.addr, *TOPICS)
        yield Guarded(namesrv, master, rules)


def run_tool(java: JavaDriver, guarded: Guarded, keys: dict[str, str] | None, *arguments: str) -> str:
    """What stock mqadmin prints; it takes its credentials from conf/tools.yml of its home."""
    credentials = java.directory / "home" / "conf" / "tools.yml"
    if keys is not None:
        credentials.write_text("".join(f"{name}: '{value}'\n" for name, value in keys.items()))
    try:
        return java.mqadmin(guarded.namesrv, *arguments)
    finally:
        credentials.unlink(missing_ok=True)


def refusal(java: JavaDriver, guarded: Guarded, topic: str, **keys: str) -> str:
    producer = java.producer(guarded.namesrv, "producers", retryTimesWhenSendFailed=0, **keys)
    with pytest.raises(JavaError) as refused:
        producer.send(topic, b"x", queue_id=0)  # to one queue: what the broker says is what is thrown
    assert refused.value.code == 1
    assert "org.apache.rocketmq.acl.common.AclException: " in refused.value.text
    return refused.value.text


# ---- access control: the same tests for both kinds of broker


def test_a_producer_with_the_right_key_is_served(guarded: Guarded, java: JavaDriver) -> None:
    producer = java.producer(guarded.namesrv, "producers", **USER)
    assert producer.send("Open", "ü→", tag="T", keys="k")["status"] == "SEND_OK"
    batch = producer.send_batch([message("Open", f"{number}") for number in range(3)])
    assert batch["status"] == "SEND_OK"
    vip = java.producer(guarded.namesrv, "producers", vipChannelEnabled=True, **USER)
    assert vip.send("Open", b"vip")["status"] == "SEND_OK"


def test_who_may_not_send_is_told_why(guarded: Guarded, java: JavaDriver) -> None:
    assert "No accessKey is configured" in refusal(java, guarded, "Open")
    assert "No acl config for strangers-key" in refusal(
        java, guarded, "Open", accessKey="strangers-key", secretKey="12345678"
    )
    wrong = {**USER, "secretKey": "87654321"}
    assert "Check signature failed for accessKey=users-key" in refusal(java, guarded, "Open", **wrong)
    for topic in ("ReadOnly", "Denied", "Unheard"):
        assert f"No default permission for topic:{topic}" in refusal(java, guarded, topic, **USER)
    assert "No accessKey" in refusal(java, guarded, "Open", vipChannelEnabled=True)  # type: ignore[arg-type]


def test_a_consumer_needs_its_topic_and_its_group(guarded: Guarded, java: JavaDriver) -> None:
    writer = java.producer(guarded.namesrv, "admins", **ADMIN)
    for topic in TOPICS:
        assert writer.send(topic, topic)["status"] == "SEND_OK"
    reader = java.push(guarded.namesrv, "readers", "ReadOnly", **USER)
    wait_until(lambda: b"ReadOnly" in reader.bodies(), "what may be read is read", 30)
    asking = java.pull(guarded.namesrv, "readers", **USER)
    with pytest.raises(JavaError, match="No default permission for topic:Denied"):
        asking.pull(Queue("Denied", guarded.master.broker_name, 0), 0)
    other = java.pull(guarded.namesrv, "others", **USER)
    with pytest.raises(JavaError, match="No default permission for group:others"):
        other.pull(Queue("ReadOnly", guarded.master.broker_name, 0), 0)


def test_a_message_that_fails_comes_back_to_a_group_with_permission(
    guarded: Guarded, java: JavaDriver
) -> None:
    java.producer(guarded.namesrv, "admins", **ADMIN).send("Open", "fails once", tag="failing")
    reader = java.push(guarded.namesrv, "readers", "Open", "failing", fail_times=1, delay_level=1, **USER)
    wait_until(
        lambda: [one.reconsume_times for one in reader.received() if one.body == b"fails once"] == [0, 1],
        "it comes twice",
        40,
    )


@pytest.mark.parametrize("vip", [False, True])
def test_a_transaction_of_a_new_producer_is_ended_at_once(
    guarded: Guarded, java: JavaDriver, vip: bool
) -> None:
    """Before its first heartbeat; with VIP channels, on another connection than the half message came by."""
    reader = java.push(guarded.namesrv, "readers", "Open", "ended", **USER)
    group = f"transactions-{guarded.master.kind}-{vip}"
    producer = java.transaction_producer(guarded.namesrv, group, {}, vipChannelEnabled=vip, **USER)
    body = f"committed {vip}".encode()
    assert producer.send_transaction("Open", body, tag="ended")["status"] == "SEND_OK"
    wait_until(lambda: body in reader.bodies(), "it is delivered", 30)


def test_stock_finds_a_message_by_its_id_with_the_permission_to_read_it(
    guarded: Guarded, java: JavaDriver
) -> None:
    sent = java.producer(guarded.namesrv, "admins", **ADMIN).send("Denied", "by its id")
    for keys, found in ((ADMIN, True), (USER, guarded.master.kind == "stock")):
        shown = run_tool(java, guarded, keys, "queryMsgById", "-i", sent["offsetMsgId"])
        assert ("Message Body Path" in shown) == found, shown
        assert ("No default permission for topic:Denied" in shown) == (not found), shown


@pytest.mark.parametrize("kind", KINDS)
def test_a_guarded_nameserver_of_ours_takes_a_broker_by_its_address(
    kind: str, stock_jars: Path, java: JavaDriver, tmp_path: Path
) -> None:
    """A broker of ours signs, a stock one cannot; mqadmin signs with tools.yml."""
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES)
    keys = tmp_path / "keys.yml"
    keys.write_text("accessKey: admins-key\nsecretKey: admins-secret\n")
    allowed = {"changesAllowedFrom": "127.0.0.1"} if kind == "stock" else {}
    signs = {"aclCredentialsFile": keys} if kind == "ours" else {}
    with servers() as start:
        namesrv = nameserver("ours", tmp_path, aclEnable="true", aclFile=rules, **allowed)
        start(namesrv)
        master = broker(kind, tmp_path, namesrv=namesrv, **signs)
        start(master)
        producer = java.producer(namesrv, "producers")
        wait_until(lambda: producer.send("TBW102", b"x")["status"] == "SEND_OK", "its route is there", 30)
        put = ("updateKvConfig", "-s", "n", "-k", "k", "-v", "v")
        guarded = Guarded(namesrv, master, rules)
        if kind == "ours":
            assert "No accessKey is configured" in run_tool(java, guarded, None, *put)
        assert "success" in run_tool(java, guarded, ADMIN, *put)


def test_admin_commands_take_an_admin(guarded: Guarded, java: JavaDriver) -> None:
    update = ("updateTopic", "-b", guarded.master.addr, "-t", "Made", "-r", "1", "-w", "1")
    assert "Need admin permission for request code=17" in run_tool(java, guarded, USER, *update)
    assert "No accessKey is configured" in run_tool(java, guarded, None, *update)
    assert "create topic to" in run_tool(java, guarded, ADMIN, *update)


def test_a_new_account_in_the_file_counts_without_a_restart(guarded: Guarded, java: JavaDriver) -> None:
    producer = java.producer(guarded.namesrv, "producers", retryTimesWhenSendFailed=0, **NEWCOMER)
    with pytest.raises(JavaError, match="No acl config for newcomers-key"):
        producer.send("Open", b"x", queue_id=0)
    guarded.rules.write_text(
        guarded.rules.read_text()
        + "  - {accessKey: newcomers-key, secretKey: newcomers-secret, defaultTopicPerm: PUB}\n"
    )

    def served() -> bool:
        try:
            return bool(producer.send("Open", b"x")["status"] == "SEND_OK")
        except JavaError:
            return False

    wait_until(served, "the account counts", RELOAD_SECONDS)
    guarded.rules.write_text(RULES)
    wait_until(lambda: not served(), "the account is gone", RELOAD_SECONDS)


def test_stock_mqadmin_reads_and_changes_the_rules(guarded: Guarded, java: JavaDriver) -> None:
    def tool(*arguments: str) -> str:
        return run_tool(java, guarded, ADMIN, *arguments, "-b", guarded.master.addr)

    account = ("-a", "tools-key", "-s", "tools-secret", "-m", "false", "-t", "Open=PUB,ReadOnly=SUB")
    assert "success" in tool("updateAclConfig", *account, "-g", "readers=SUB", "-i", "PUB", "-u", "SUB")
    tools = {"accessKey": "tools-key", "secretKey": "tools-secret"}
    producer = java.producer(guarded.namesrv, "producers", retryTimesWhenSendFailed=0, **tools)
    assert producer.send("Open", b"x")["status"] == "SEND_OK"
    with pytest.raises(JavaError, match="No default permission for topic:ReadOnly"):
        producer.send("ReadOnly", b"x", queue_id=0)
    printed = tool("clusterAclConfigVersion")
    assert str(guarded.rules) in printed
    assert guarded.master.broker_name in printed
    assert "success" in tool("updateGlobalWhiteAddr", "-g", "10.10.15.11,10.10.16.*")
    assert "10.10.16.*" in guarded.rules.read_text()
    assert "success" in tool("deleteAclConfig", "-a", "tools-key")

    def refused() -> bool:
        try:
            producer.send("Open", b"x", queue_id=0)
        except JavaError as error:
            return "No acl config for tools-key" in error.text
        return False

    wait_until(refused, "the account is gone", RELOAD_SECONDS)


def test_only_admins_change_our_rules(java: JavaDriver, guarded: Guarded) -> None:
    if guarded.master.kind == "stock":
        pytest.skip("RocketMQ lets every account change them")
    account = ("-a", "users-key", "-s", "12345678", "-m", "true")
    printed = run_tool(java, guarded, USER, "updateAclConfig", "-b", guarded.master.addr, *account)
    assert "Need admin permission for request code=50" in printed


# ---- slaves of a master with access control


def unsigned(addr: str) -> int:
    """The code of the answer to a request without credentials."""
    with BlockingClient() as client:
        return client.call(addr, RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG)).code


def topics_of(slave: Broker) -> str:
    path = slave.root / "config" / "topics.json"
    return path.read_text() if path.exists() else ""


def test_our_slave_signs_its_requests(guarded: Guarded, tmp_path: Path) -> None:
    assert unsigned(guarded.master.addr) == 1
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: admins-key\nsecretKey: admins-secret\n")
    slave = OurBroker(
        tmp_path, broker_id=2, role="SLAVE", namesrv=guarded.namesrv, aclCredentialsFile=str(keys)
    )
    with servers() as start:
        start(slave)
        wait_until(lambda: "ReadOnly" in topics_of(slave), "topics are copied", 40)


def test_a_slave_of_either_kind_copies_all_from_a_master_that_white_lists_it(
    guarded: Guarded, tmp_path: Path
) -> None:
    slave = broker(
        "stock" if guarded.master.kind == "ours" else "ours",
        tmp_path,
        broker_id=1,
        role="SLAVE",
        namesrv=guarded.namesrv,
    )
    with servers() as start:
        admin_call(
            guarded.master.addr,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            globalWhiteAddrs="127.0.0.1",
            aclFileFullPath=str(guarded.rules),
        )
        start(slave)
        wait_until(lambda: "ReadOnly" in topics_of(slave), "topics are copied", 40)


# ---- TLS


MODES = ("disabled", "permissive", "enforcing")


class Encrypted(NamedTuple):
    namesrv: Nameserver
    brokers: dict[str, Broker]


def tls_keys(mode: str) -> dict[str, str]:
    made = certificates()
    return {
        "tls.server.mode": mode,
        "tls.server.certPath": str(made.server),
        "tls.server.keyPath": str(made.server_key),
    }


@pytest.fixture(scope="module")
def encrypted(stock_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    """A nameserver and a broker of each mode, with a topic of that name."""
    directory = tmp_path_factory.mktemp("tls")
    with servers() as start:
        namesrv = OurNameserver(directory, **tls_keys("permissive"))
        start(namesrv)
        brokers: dict[str, Broker] = {
            mode: OurBroker(directory, name=f"broker-{mode}", namesrv=namesrv, **tls_keys(mode))
            for mode in MODES
        }
        start(*brokers.values())
        for mode, one in brokers.items():
            create_topic_over_tls(one.addr, mode, tls=mode == "enforcing")
        yield Encrypted(namesrv, brokers)


def create_topic_over_tls(addr: str, topic: str, *, tls: bool = True) -> None:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    with BlockingClient(tls=client_tls(TlsConfig(calls=tls))) as client:
        request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        expect(addr, client.call(addr, request))


def knows(producer: Producer, topic: str) -> bool:
    try:
        return bool(producer.queues(topic))
    except JavaError:
        return False


@pytest.mark.parametrize("mode", MODES)
def test_stock_clients_are_served_as_each_mode_says(
    encrypted: Encrypted, java: JavaDriver, mode: str
) -> None:
    served = {}
    for tls in (False, True):
        options = {"useTLS": tls, "retryTimesWhenSendFailed": 0, "sendMsgTimeout": 3000}
        producer = java.producer(encrypted.namesrv, f"tls-{tls}", **options)

        wait_until(lambda: knows(producer, mode), "the route is known")  # noqa: B023
        try:
            served[tls] = producer.send(mode, b"x" * 100_000)["status"] == "SEND_OK"
        except JavaError:
            served[tls] = False
    assert served == {False: mode != "enforcing", True: mode != "disabled"}


def test_a_stock_consumer_reads_over_tls(encrypted: Encrypted, java: JavaDriver) -> None:
    producer = java.producer(encrypted.namesrv, "tls-producers", useTLS=True)
    bodies = {f"message {number}".encode() for number in range(50)}
    answers = producer.burst([message("enforcing", body, tag="many") for body in sorted(bodies)])
    assert {answer["status"] for answer in answers} == {"SEND_OK"}
    consumer = java.push(encrypted.namesrv, "tls-readers", "enforcing", "many", useTLS=True)
    wait_until(lambda: set(consumer.bodies()) == bodies, "all is read", 30)


def test_our_slave_copies_over_tls_from_an_enforcing_stock_master(
    encrypted: Encrypted, java: JavaDriver, tmp_path: Path
) -> None:
    made = certificates()
    settings = tmp_path / "tls.properties"
    settings.write_text(
        "tls.test.mode.enable=false\n"
        f"tls.server.certPath={made.server}\ntls.server.keyPath={made.server_key}\n"
    )
    master = StockBroker(tmp_path, name="broker-stock", namesrv=encrypted.namesrv)
    master.flags = (*QUICK_JAVA, "-Dtls.server.mode=enforcing", f"-Dtls.config.file={settings}")
    slave = OurBroker(
        tmp_path,
        name="broker-stock",
        broker_id=1,
        role="SLAVE",
        namesrv=encrypted.namesrv,
        **{"tls.enable": "true", "tls.client.authServer": "true", "tls.client.trustCertPath": made.root},
    )
    with servers() as start:
        start(master)
        create_topic_over_tls(master.addr, "OfStock")
        start(slave)
        wait_until(lambda: "OfStock" in topics_of(slave), "topics are copied", 30)
        producer = java.producer(encrypted.namesrv, "tls-producers", useTLS=True)
        wait_until(lambda: knows(producer, "OfStock"), "the route is known", 30)
        assert producer.send("OfStock", b"x")["status"] == "SEND_OK"


def test_a_stock_slave_copies_over_tls_from_our_enforcing_master(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    slave = StockBroker(
        tmp_path,
        name="broker-enforcing",
        broker_id=1,
        role="SLAVE",
        namesrv=encrypted.namesrv,
        port=free_port_block(4) + 2,
    )
    slave.flags = (*QUICK_JAVA, "-Dtls.enable=true", "-Dtls.server.mode=disabled")
    with servers() as start:
        start(slave)
        wait_until(lambda: '"enforcing"' in topics_of(slave), "topics are copied", 40)
