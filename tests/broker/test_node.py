"""Whole brokers in this process, over real sockets."""

from __future__ import annotations

import errno
import logging
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import StoreLocked
from commitlog.kernel import native
from commitlog.kernel.records import decode
from commitlog.options import FlushDiskType
from haservice import __version__
from haservice.broker.health import Health
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole, NameserverConfig
from haservice.devtools.pair import free_port_block
from haservice.errors import ConfigError
from haservice.nameserver.node import NameserverNode
from haservice.remoting.bodies.clients import (
    ConsumerData,
    ConsumerOffsetWrapper,
    HARuntimeInfo,
    HeartbeatData,
    KVTable,
)
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import (
    CreateTopicHeader,
    PullMessageHeader,
    UpdateConsumerOffsetHeader,
)
from haservice.supervisor import Supervisor
from tests.support.brokers import LOOPBACK, addr_of, send, send_request
from tests.support.messages import batch_body
from tests.support.waiting import wait_until

SYNC = BrokerRole.SYNC_MASTER
SLAVE = BrokerRole.SLAVE


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    node = NameserverNode(
        NameserverConfig(bind_address=LOOPBACK, listen_port=0, kv_config_path=tmp_path / "kv.json")
    )
    node.start()
    yield f"{LOOPBACK}:{node.port}"
    node.stop()


def slave_of(
    start: Callable[..., BrokerNode], master: BrokerNode, name: str = "a-s", **options: Any
) -> BrokerNode:
    address = f"{LOOPBACK}:{master.ha.port}"
    return start(name, role=SLAVE, replication={"master_address": address}, **options)


def table(client: BlockingClient, addr: str) -> dict[str, str]:
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert answer.code == 0
    return dict(KVTable.decode(answer.body).table)


def test_which_build_of_the_kernel_is_in_force_is_told(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    told = table(client, addr_of(start()))["kernelBuild"]
    assert told == native.build
    assert told.split()[0] in ("native", "python")


def test_a_broker_tells_people_its_own_version_and_clients_that_of_rocketmq(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    answer = client.call(addr_of(start()), RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    told = KVTable.decode(answer.body).table
    assert (told["haserviceVersion"], told["brokerVersionDesc"]) == (__version__, "V4_9_8")
    assert (answer.version, told["brokerVersion"]) == (409, "409")


# Sends and their statuses


def test_a_message_sent_is_stored_and_its_place_told(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    answer = send(client, addr_of(node), "New", b"body", queue_id=3)
    assert answer.code == ResponseCode.SUCCESS
    message = decode(node.store.log.read_record(0))
    assert answer.ext["msgId"] == message.message_id
    assert (message.topic, message.queue_id, message.body) == ("New", 3, b"body")
    wait_until(lambda: node.store.queues.get("New", 3) is not None, "dispatched")


def test_both_ports_take_sends_and_only_the_main_one_pulls(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    vip = f"{LOOPBACK}:{node.config.remoting.vip_port}"
    assert send(client, vip).code == ResponseCode.SUCCESS
    pull = RemotingCommand.request(RequestCode.PULL_MESSAGE)
    assert client.call(vip, pull).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert client.call(addr_of(node), pull).code == ResponseCode.SYSTEM_ERROR


def test_a_batch_is_answered_with_all_its_ids(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    answer = send(client, addr_of(node), "T", batch_body([b"1", b"2", b"3"]), batch=True)
    assert answer.code == ResponseCode.SUCCESS
    assert len(answer.ext["msgId"].split(",")) == 3
    assert send(client, addr_of(node)).ext["queueOffset"] == "3"


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_pair_answers_ok_when_the_slave_has_it(
    start: Callable[..., BrokerNode], client: BlockingClient, flush: FlushDiskType
) -> None:
    log = {"flush_disk_type": flush}
    master = start(role=SYNC, log=log)
    slave = slave_of(start, master, log=log)
    wait_until(lambda: master.ha.is_slave_ok(0), "the slave is there")
    for number in range(20):
        answer = send(client, addr_of(master), "T", b"%d" % number * 100)
        assert answer.code == ResponseCode.SUCCESS
        assert slave.store.log.end == master.store.log.end
        if flush is FlushDiskType.SYNC_FLUSH:
            assert master.store.log.flushed == slave.store.log.flushed == master.store.log.end
    end = master.store.log.end
    assert slave.store.log.read(0, end) == master.store.log.read(0, end)


def test_without_a_slave_the_message_is_stored_and_the_lack_told(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start(role=SYNC)
    assert send(client, addr_of(node)).code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert send(client, addr_of(node), properties="WAIT\x01false").code == ResponseCode.SUCCESS
    assert node.store.log.end > 0


def test_a_slave_that_stops_acknowledging_costs_its_timeout_and_no_more(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(role=SYNC, replication={"slave_timeout_ms": 50})
    monkeypatch.setattr(node.ha, "is_slave_ok", lambda end: True)
    answer = send(client, addr_of(node))
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert answer.ext["queueOffset"] == "0"


def test_a_disk_that_hangs_costs_the_flush_timeout(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(log={"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout_ms": 50})
    monkeypatch.setattr(node.store.log, "flush", lambda least_pages=0: node.store.log.flushed)
    assert send(client, addr_of(node)).code == ResponseCode.FLUSH_DISK_TIMEOUT


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        (send_request("../../x"), ResponseCode.SYSTEM_ERROR, "illegal characters"),
        (send_request(body=b"x" * 16385), ResponseCode.MESSAGE_ILLEGAL, "body is 16385 bytes"),
        (send_request("N", default_topic="none"), ResponseCode.TOPIC_NOT_EXIST, "topic[N] not exist"),
        (send_request(properties="DELAY\x01soon"), ResponseCode.SYSTEM_ERROR, "delay level 'soon'"),
    ],
)
def test_bad_sends_are_refused_clearly(
    start: Callable[..., BrokerNode], client: BlockingClient, request_: RemotingCommand, code: int, said: str
) -> None:
    node = start()
    answer = client.call(addr_of(node), request_)
    assert answer.code == code
    assert said in (answer.remark or "")
    assert answer.ext["MSG_REGION"] == "DefaultRegion"
    assert node.store.log.end == 0
    assert not list(node.config.log.root.parent.glob("x*"))


def test_a_slave_refuses_sends_and_changes_of_topics(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start(role=SLAVE)
    assert send(client, addr_of(node), "New").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert node.topics.get("New") is None
    header = CreateTopicHeader("New", "TBW102", 2, 3, 6)
    request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
    answer = client.call(addr_of(node), request)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "slave" in (answer.remark or "")


def test_a_thread_that_fails_makes_the_broker_refuse_sends_and_say_why(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(supervisor=Supervisor(standing_still))
    monkeypatch.setattr(node.store.flusher, "step", lambda: (_ for _ in ()).throw(OSError("broken disk")))
    node.store.flusher.wake()
    wait_until(lambda: "broken disk" in (send(client, addr_of(node)).remark or ""), "sends are refused")
    assert send(client, addr_of(node)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "broken disk" in table(client, addr_of(node))["failedThreads"]


def standing_still() -> float:
    """A clock that stands still: no pause is ever over."""
    return 0.0


def dies(*_: object) -> None:
    raise ValueError("a mistake of ours")


# What each of these threads calls in every turn, and what makes it take a turn.
TURNS: dict[str, Callable[[BrokerNode], tuple[object, str, Callable[[], None]]]] = {
    "ha-group-transfer": lambda node: (node.ha._group, "_next_expired", node.ha._group.wake),
    "ha-recorder": lambda node: (node.ha._greeter.recorder, "_record", node.ha._greeter.recorder.wake),
    "ha-accept": lambda node: (node.ha._accept, "_hang_up_on_silent", node.ha._accept.wake),
    "role-keeper": lambda node: (node.standing.executor, "drive", node.standing.executor.wake),
    "delay-delivery": lambda node: (node.delivery, "step", node.delivery.wake),
    "transaction-check": lambda node: (node.transaction_check, "_interval_s", node.transaction_check.wake),
    "log-repair": lambda node: (node.repairer, "repair_all", node.repairer.wake),
    "broker-persist": lambda node: (node.persistence, "persist", node.persistence.wake),
    "register": lambda node: (node.registration, "_register_now", node.registration.announce),
}


WITHOUT_WHICH_OK_IS_NOT_TRUE = {
    *("ha-group-transfer", "ha-recorder", "role-keeper", "delay-delivery", "transaction-check")
}


@pytest.mark.parametrize("name", TURNS)
def test_every_thread_that_dies_is_told_and_takes_the_sends_with_it_that_need_it(
    name: str,
    start: Callable[..., BrokerNode],
    namesrv: str,
    client: BlockingClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = start(role=SYNC, broker={"namesrv_addrs": (namesrv,)}, supervisor=Supervisor(standing_still))
    part, turn, wake = TURNS[name](node)
    with monkeypatch.context() as broken:
        broken.setattr(part, turn, dies)
        wake()
        wait_until(lambda: node.health.failures, "the failure was noticed")
    assert name in table(client, addr_of(node))["failedThreads"]
    assert any(
        record.exc_info and name in record.getMessage() and record.levelno == logging.ERROR
        for record in caplog.records
    )
    said = f"thread {name} has failed"
    if name in WITHOUT_WHICH_OK_IS_NOT_TRUE:  # a moment later
        wait_until(lambda: said in (send(client, addr_of(node)).remark or ""), "sends are refused")
    answer = send(client, addr_of(node))
    refused = answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused is (name in WITHOUT_WHICH_OK_IS_NOT_TRUE)
    assert (said in (answer.remark or "")) is refused
    assert (node.failed is not None) is (name == "role-keeper")


@pytest.mark.parametrize("name", [name for name in TURNS if name != "role-keeper"])
def test_a_thread_that_died_is_started_again_and_sends_go_on(
    name: str,
    start: Callable[..., BrokerNode],
    namesrv: str,
    client: BlockingClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = start(role=SYNC, broker={"namesrv_addrs": (namesrv,)})
    part, turn, wake = TURNS[name](node)
    again = threading.Event()
    sound = getattr(part, turn)

    def sound_again(*given: Any) -> Any:
        again.set()
        return sound(*given)

    with monkeypatch.context() as broken:
        broken.setattr(part, turn, dies)
        wake()
        wait_until(lambda: node.health.supervisor.counts, "the end was noticed")
        broken.setattr(part, turn, sound_again if callable(sound) else sound)
        wait_until(lambda: again.is_set() or not callable(sound), "it runs again")
        wait_until(lambda: not node.health.failures, "and counts as running")
        wait_until(
            lambda: send(client, addr_of(node)).code != ResponseCode.SERVICE_NOT_AVAILABLE, "sends go on"
        )
    assert name in table(client, addr_of(node))["restartedThreads"]
    assert node.failed is None


@pytest.mark.parametrize("name", ["ha-client", "slave-sync"])
def test_a_thread_of_a_slave_that_dies_is_told(
    name: str, start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = start(role=SYNC)
    node = slave_of(start, master, supervisor=Supervisor(standing_still))
    if name == "ha-client":
        wait_until(lambda: node.ha.connected)
        monkeypatch.setattr(type(node.store.log), "append_replica", dies)
        send(client, addr_of(master))
    else:
        monkeypatch.setattr(node.slave_sync, "sync_once", dies)
        node.slave_sync.set_master_addr(addr_of(master))
    wait_until(lambda: node.health.failures, "the failure was noticed")
    assert f"{name}: ValueError: a mistake of ours" in table(client, addr_of(node))["failedThreads"]
    if name == "ha-client":
        assert not node.ha.connected
        wait_until(lambda: not master.ha.status().slaves, "its link is closed")


def test_a_death_outlives_a_change_of_role(start: Callable[..., BrokerNode]) -> None:
    node = start()
    node.health.supervisor.never("lease-keeper", ValueError("gone"))
    node._turn("a test says so", node.file_config)
    for following in (node.successor(), node.again()):
        assert following is not None
        assert "gone" in following.health.why_vital
        assert following.failed is node.failed is not None
        said: list[str | None] = []
        following.health.refuse_sends = said.append
        following.health.dispatch_is(None, None)
        assert "thread lease-keeper has failed" in (said[0] or "")


@pytest.mark.parametrize("name", ["ha-client", "slave-sync"])
def test_a_thread_of_a_slave_that_died_is_started_again_and_the_slave_follows(
    name: str, start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = start(role=SYNC)
    node = slave_of(start, master)
    wait_until(lambda: node.ha.connected)
    with monkeypatch.context() as broken:
        if name == "ha-client":
            broken.setattr(type(node.store.log), "append_replica", dies)
            broken.setattr(type(node.store.log), "append_arrivals", dies)
            send(client, addr_of(master))
        else:
            broken.setattr(node.slave_sync, "sync_once", dies)
            node.slave_sync.set_master_addr(addr_of(master))
        wait_until(lambda: node.health.supervisor.counts, "the end was noticed")
    assert name in node.health.supervisor.counts
    wait_until(lambda: node.ha.connected and not node.health.failures, "it runs again")
    answer = send(client, addr_of(master), "New")
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
    wait_until(lambda: node.store.log.end == master.store.log.end, "the log is copied")
    if name == "slave-sync":
        wait_until(lambda: node.topics.get("New") is not None, "so are the topics")
    assert node.failed is None


def test_a_failure_is_not_forgotten_by_a_look_at_the_queues_that_is_under_way(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop finds that all is well, a thread dies, and the loop says so."""
    node = start()
    died = threading.Thread(target=node.health.supervisor.never, args=("log-flush", ValueError("gone")))

    def looks(_: Supervisor) -> dict[str, str]:
        if not died.ident:
            died.start()
            died.join(0.5)  # it has to wait for the look to end
            return {}
        return dict(node.health.supervisor.counts and {"log-flush": "gone"})

    monkeypatch.setattr(Supervisor, "failures", property(looks))
    node.health.dispatch_is(None, None)
    died.join()
    assert "gone" in (node.sends.refuse_all or "")


def test_a_broker_whose_log_cannot_go_on_says_so_while_it_still_takes_messages(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(node.store.log.segments, "prepare", lambda: (_ for _ in ()).throw(full))
    while node.store.log.end < 50_000:
        assert send(client, addr_of(node), "T", bytes(8192)).code == ResponseCode.SUCCESS
    wait_until(lambda: table(client, addr_of(node))["nextSegmentNotMade"], "the broker says so")
    said = table(client, addr_of(node))
    assert "No space left on device" in said["nextSegmentNotMade"]
    assert said["refusesSends"] == ""


def test_a_broker_with_all_the_topics_it_may_have_refuses_others_and_names_the_key(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    addr = addr_of(node)
    assert send(client, addr, "T").code == ResponseCode.SUCCESS
    node.live.apply(node.live.change(f"maxTopics={len(node.topics)}"))

    def refused(answer: RemotingCommand) -> bool:
        assert answer.code == ResponseCode.SYSTEM_ERROR, answer
        return f"maxTopics={len(node.topics)}" in (answer.remark or "")

    create = CreateTopicHeader("New", "TBW102", 2, 2, 6).encode()
    assert refused(client.call(addr, RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, create)))
    assert refused(send(client, addr, "New"))
    assert refused(send(client, addr, "%RETRY%G"))
    back = {"offset": "0", "group": "G", "delayLevel": "0"}
    assert refused(client.call(addr, RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)))
    beat = HeartbeatData(client_id="c", consumer_data_set=(ConsumerData("G"),))
    request = RemotingCommand.request(RequestCode.HEART_BEAT, body=beat.encode())
    assert client.call(addr, request).code == ResponseCode.SUCCESS
    assert node.topics.get("%RETRY%G") is None
    assert send(client, addr, "T").code == ResponseCode.SUCCESS
    create = CreateTopicHeader("T", "TBW102", 2, 2, 6, topic_filter_type="x" * 1000).encode()
    answer = client.call(addr, RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, create))
    assert "none of SINGLE_TAG, MULTI_TAG" in (answer.remark or "")


def test_a_broker_that_a_name_server_does_not_have_says_which_and_why(
    start: Callable[..., BrokerNode], client: BlockingClient, namesrv: str
) -> None:
    away = f"{LOOPBACK}:{free_port_block(1)}"
    node = start(broker={"namesrv_addrs": (away, namesrv)})
    wait_until(lambda: table(client, addr_of(node))["notRegistered"], "the broker says so")
    assert table(client, addr_of(node))["notRegistered"].startswith(f"{away}: ")
    assert namesrv not in table(client, addr_of(node))["notRegistered"]


def test_offsets_beyond_the_bound_are_refused_with_the_reason_and_told_of(
    start: Callable[..., BrokerNode], client: BlockingClient, caplog: pytest.LogCaptureFixture
) -> None:
    node = start()
    assert send(client, addr_of(node), "T").code == ResponseCode.SUCCESS
    assert table(client, addr_of(node))["consumerOffsetsNotKept"] == ""
    node.offsets.configure(0)

    def update() -> RemotingCommand:
        header = UpdateConsumerOffsetHeader("G", "T", 0, 1)
        return client.call(
            addr_of(node), RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
        )

    header = PullMessageHeader("H", "T", 0, 0, 1, sys_flag=1 | 4, commit_offset=1, subscription="*")
    for _ in range(3):
        pull = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())
        answer = client.call(addr_of(node), pull)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "group H in queue 0 of topic T is not kept" in (answer.remark or "")
        assert "maxConsumerOffsetBytes=0" in (answer.remark or "")
    answer = update()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the offset of group G in queue 0 of topic T is not kept: no more offsets" in (answer.remark or "")
    assert table(client, addr_of(node))["consumerOffsetsNotKept"].endswith("commits refused so far: 4")
    told = [one.getMessage() for one in caplog.records if "no more offsets are kept" in one.getMessage()]
    assert len([line for line in told if "first=T@H" in line]) == 1


def test_a_stop_answers_the_sends_that_wait(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(role=SYNC, replication={"slave_timeout_ms": 60_000})
    monkeypatch.setattr(node.ha, "is_slave_ok", lambda end: True)
    monkeypatch.setattr("haservice.broker.node.PROOF_SECONDS", 0.05)
    answers: list[RemotingCommand] = []
    sender = threading.Thread(target=lambda: answers.append(send(client, addr_of(node))))
    sender.start()
    wait_until(lambda: node.sends.pending, "the send waits")
    node.stop()
    sender.join(10)
    assert [answer.code for answer in answers] == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


# Starting and stopping


def test_what_was_stored_is_there_after_a_restart(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    send(client, addr_of(node), "T", queue_id=2)
    offset = UpdateConsumerOffsetHeader("g", "T", 2, 1)
    client.call(addr_of(node), RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, offset.encode()))
    node.stop()
    assert not (node.config.log.root / "abort").exists()
    again = start()
    assert again.store.recovery.clean
    assert again.topics.get("T") is not None
    assert again.offsets.query("g", "T", 2) == 1
    assert send(client, addr_of(again), "T", queue_id=2).ext["queueOffset"] == "1"


def test_a_master_on_a_store_that_its_groups_offsets_were_not_made_on_says_so(
    start: Callable[..., BrokerNode], client: BlockingClient, caplog: pytest.LogCaptureFixture
) -> None:
    node = start("a")
    assert send(client, addr_of(node), "T", queue_id=1).code == ResponseCode.SUCCESS
    for topic, queue_id, offset in (("T", 1, 1), ("T", 0, 7), ("Deleted", 0, 7)):
        node.offsets.commit("G", topic, queue_id, offset)
    node.stop()
    start("a")
    (warning,) = [text for text in caplog.messages if "beyond" in text]
    assert warning.endswith("count=1 largest: topic@group=T@G queue=0 offset=7 queue_end=0")


@pytest.mark.parametrize(("offset", "named"), [(0, "listenPort"), (-2, "listenPort - 2"), (1, "")])
def test_a_port_that_is_taken_refuses_the_start_and_leaves_nothing_behind(
    start: Callable[..., BrokerNode], tmp_path: Path, offset: int, named: str
) -> None:
    port = free_port_block(4) + 2
    with socket.socket() as taken:
        taken.bind((LOOPBACK, port + offset))
        taken.listen()
        with pytest.raises((ConfigError, OSError), match=f"{port + offset}") as caught:
            start(port=port)
        assert named in str(caught.value)
    # The store is closed cleanly and free again, and so are the other ports.
    assert start(port=port).store.recovery.clean


def test_a_copy_of_a_running_masters_file_hears_of_the_port_and_not_of_epochs(
    start: Callable[..., BrokerNode], namesrv: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its store is new, so all that it hears from peers is itself, as the master that it never was."""
    running = start("a", broker={"namesrv_addrs": (namesrv,)})
    caplog.clear()
    port = running.config.remoting.listen_port
    with pytest.raises(ConfigError, match=f"{port}: listenPort: the port is already taken"):
        start("copy", port=port, broker={"namesrv_addrs": (namesrv,)})
    assert "epoch" not in caplog.text
    assert not (running.config.log.root.parent / "copy" / "lineage" / "state.json").exists()


def test_a_store_that_another_broker_holds_refuses_the_start(start: Callable[..., BrokerNode]) -> None:
    node = start()
    with pytest.raises(StoreLocked, match=str(node.config.log.root)):
        start()
    assert not node.stopped.is_set()


def test_an_address_that_is_none_refuses_the_start(start: Callable[..., BrokerNode]) -> None:
    with pytest.raises(ConfigError, match="brokerIP1=nowhere"):
        start(broker={"broker_ip1": "nowhere"})


def test_a_start_without_its_name_server_serves_all_the_same(
    start: Callable[..., BrokerNode], client: BlockingClient, capsys: pytest.CaptureFixture[str]
) -> None:
    addr = f"{LOOPBACK}:{free_port_block(1)}"
    node = start(broker={"namesrv_addrs": (addr,)})
    assert send(client, addr_of(node)).code == ResponseCode.SUCCESS
    assert (
        f"The broker[broker-a, {addr_of(node)}] boot success. serializeType=JSON and name server is {addr}"
        in capsys.readouterr().out
    )


def test_stopping_twice_is_fine(start: Callable[..., BrokerNode]) -> None:
    node = start()
    node.stop()
    node.stop()
    assert node.stopped.is_set()


def test_sends_are_refused_while_messages_cannot_be_dispatched_and_no_longer(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()

    def no_room() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "index")

    with monkeypatch.context() as patch:
        patch.setattr(node.store.index, "write", no_room)
        assert send(client, addr_of(node), "T", b"x").code == ResponseCode.SUCCESS
        wait_until(lambda: send(client, addr_of(node), "T").code == ResponseCode.SERVICE_NOT_AVAILABLE)
        assert "No space left on device" in table(client, addr_of(node))["refusesSends"]
        wait_until(lambda: node.store.dispatcher.behind == 0, "the queues go on")
    wait_until(lambda: send(client, addr_of(node), "T").code == ResponseCode.SUCCESS, "taken again")


# A pair


def test_a_slave_finds_its_master_by_name_server_and_copies_everything(
    start: Callable[..., BrokerNode], client: BlockingClient, namesrv: str
) -> None:
    broker = {"namesrv_addrs": (namesrv,)}
    master = start(role=SYNC, broker=broker)
    slave = start("a-s", role=SLAVE, broker=broker)
    wait_until(lambda: master.ha.is_slave_ok(0), "the slave is there")
    assert send(client, addr_of(master), "New", b"x", queue_id=1).code == ResponseCode.SUCCESS
    offset = UpdateConsumerOffsetHeader("g", "New", 1, 1)
    client.call(addr_of(master), RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, offset.encode()))
    slave.slave_sync.wake()
    wait_until(lambda: slave.offsets.query("g", "New", 1) == 1, "offsets copied")
    wait_until(lambda: slave.topics.data_version == master.topics.data_version, "topics copied")
    assert slave.topics.get("New") == master.topics.get("New")
    wait_until(lambda: slave.store.queues.get("New", 1) is not None, "dispatched on the slave")
    info = ha_status(client, addr_of(master))
    assert info.master
    assert info.in_sync_slave_nums == 1
    assert info.ha_connection_info[0].slave_ack_offset == master.store.log.end
    mine = ha_status(client, addr_of(slave))
    assert not mine.master
    assert mine.ha_client_runtime_info is not None
    assert mine.ha_client_runtime_info.max_offset == master.store.log.end


def test_a_slave_that_started_first_finds_a_master_that_comes_later(
    start: Callable[..., BrokerNode], client: BlockingClient, namesrv: str
) -> None:
    broker = {"namesrv_addrs": (namesrv,)}
    start("a-s", role=SLAVE, broker=broker)
    master = start(role=SYNC, broker=broker)
    wait_until(lambda: master.ha.is_slave_ok(0), "the slave is there")
    assert send(client, addr_of(master)).code == ResponseCode.SUCCESS


def test_a_master_gives_a_configuration_to_topics_that_have_messages_and_none(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    """As a slave that is the master now, or a broker that lost its topics.json, with its copy."""
    node = start()
    node.topics.find_or_create("Kept", 8)
    for queue_id in (0, 6):
        assert send(client, addr_of(node), "Kept", b"x", queue_id=queue_id).code == ResponseCode.SUCCESS
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
    node.stop()
    for path in (node.config.log.root / "config").glob("topics.json*"):
        path.unlink()
    again = start()
    kept = again.topics.get("Kept")
    assert kept is not None
    assert (kept.read_queue_nums, kept.write_queue_nums, kept.perm) == (7, 7, 6)


# Administration


def ha_status(client: BlockingClient, addr: str) -> HARuntimeInfo:
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_BROKER_HA_STATUS))
    assert answer.code == 0
    return HARuntimeInfo.decode(answer.body)


def test_runtime_info_has_rocketmqs_keys(start: Callable[..., BrokerNode], client: BlockingClient) -> None:
    node = start()
    assert table(client, addr_of(node))["earliestMessageTimeStamp"] == "-1"
    send(client, addr_of(node))
    values = table(client, addr_of(node))
    for key in values:
        if key.endswith("Tps"):
            assert len([float(part) for part in values[key].split(" ")]) == 3
    assert values["brokerVersionDesc"] == "V4_9_8"
    assert values["commitLogMaxOffset"] == str(node.store.log.end)
    usage = shutil.disk_usage(node.config.log.root)
    assert float(values["commitLogDiskRatio"]) == pytest.approx(
        usage.used / (usage.used + usage.free), abs=0.02
    )
    assert int(values["earliestMessageTimeStamp"]) > 0
    assert values["msgPutTotalTodayNow"] == "1"
    assert values["runtime"].startswith("[ 0 days, 0 hours, 0 minutes, ")


def test_the_configuration_in_force_is_told(start: Callable[..., BrokerNode], client: BlockingClient) -> None:
    node = start()
    answer = client.call(addr_of(node), RemotingCommand.request(RequestCode.GET_BROKER_CONFIG))
    lines = bytes(answer.body).decode().splitlines()
    assert f"listenPort={node.config.remoting.listen_port}" in lines
    assert "brokerRole=ASYNC_MASTER" in lines


def test_all_consumer_offsets_are_told(start: Callable[..., BrokerNode], client: BlockingClient) -> None:
    node = start()
    node.offsets.commit("g", "T", 1, 5)
    answer = client.call(addr_of(node), RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET))
    assert ConsumerOffsetWrapper.decode(answer.body).offset_table == {"T@g": {1: 5}}


def test_all_that_a_broker_asks_others_goes_through_one_thread(
    start: Callable[..., BrokerNode], namesrv: str
) -> None:
    before = set(threading.enumerate())
    master = start(role=SYNC, broker={"namesrv_addrs": (namesrv,)})
    slave = slave_of(start, master)
    wait_until(lambda: slave.ha.connected)
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert names.count("remoting-client") == 2  # one each
    assert not {"register", "slave-sync"} & set(names)


def test_damage_that_is_repaired_is_no_failure_any_more() -> None:
    health, said = Health(), list[str | None]()
    health.refuse_sends = said.append
    for damage in ("record at 7", "record at 7", "record at 9"):
        health.dispatch_is(None, damage)
        assert health.failures == {"log-dispatch": damage}
    assert "record at 9" in (said[-1] or "")
    health.dispatch_is(None, None)
    assert (health.failures, said[-1], health.why_vital) == ({}, None, "")
    health.supervisor.never("log-dispatch", OSError("gone"))
    health.dispatch_is(None, None)
    assert health.why_vital
