from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from haservice.broker.metadata.registration import Identity, MasterAddresses, Registration
from haservice.broker.topics.table import TopicTable, topic_config
from haservice.configuration.settings import TOPICS_MAX, BrokerConfig, NameserverConfig
from haservice.deadline import Deadline
from haservice.devtools.pair import free_port_block
from haservice.errors import RequestError
from haservice.nameserver.broker_requests import BrokerProcessors
from haservice.nameserver.node import NameserverNode
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import (
    ClusterInfo,
    DataVersion,
    TopicConfig,
    TopicConfigWrapper,
    TopicRouteData,
)
from haservice.remoting.bodies.registration import RegisterBrokerBody
from haservice.remoting.client import BlockingClient, RemotingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.clients import RegisterBrokerHeader, RouteHeader
from haservice.remoting.headers.lineage import ToldTopicsHeader
from haservice.remoting.server import Listener, RemotingServer
from haservice.supervisor import Supervisor
from tests.support.remoting import serving
from tests.support.waiting import wait_until

MASTER = Identity("C", "broker-a", 0, "127.0.0.1:10911", "127.0.0.1:10912")
SLAVE = Identity("C", "broker-a", 1, "127.0.0.1:10921", "127.0.0.1:10922")


class Registered:
    """One registration, with a client of its own."""

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        addrs: list[str],
        more_topics: Sequence[TopicConfig] = (),
        **options: Any,
    ) -> None:
        self.topics = TopicTable(BrokerConfig(broker_name="broker-a"), PersistedFile(directory / "t.json"))
        for topic in more_topics:
            self.topics.update(topic)
        self.masters: list[MasterAddresses] = []
        settings: dict[str, Any] = {"permission": 6, "period_s": 3600, "timeout_s": 5, **options}
        self.registration = Registration(
            identity, addrs, self.topics, on_master=self.masters.append, **settings
        )
        self.topics.on_change = self.registration.announce
        self.client, self.supervisor = BlockingClient(), Supervisor()
        self.task = self.client.task(
            "register", self.registration.run, self.supervisor.again, self.registration.leave
        )
        self.task.start()

    def stop(self) -> None:
        assert self.task.stop(Deadline(10))
        assert self.supervisor.fatal is None
        self.client.close()


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Callable[..., Registered]]:
    made: list[Registered] = []

    def maker(identity: Identity, addrs: list[str], **options: Any) -> Registered:
        made.append(Registered(tmp_path, identity, addrs, **options))
        return made[-1]

    yield maker
    for registered in made:
        registered.stop()


@pytest.fixture
def start_namesrv(tmp_path: Path) -> Iterator[Callable[[int], NameserverNode]]:
    nodes: list[NameserverNode] = []

    def start(port: int = 0) -> NameserverNode:
        config = NameserverConfig(
            bind_address="127.0.0.1", listen_port=port, kv_config_path=tmp_path / "kv.json"
        )
        nodes.append(NameserverNode(config))
        nodes[-1].start()
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as made:
        yield made


def addr_of(node: NameserverNode) -> str:
    return f"127.0.0.1:{node.port}"


def brokers(client: BlockingClient, addr: str) -> dict[str, dict[int, str]]:
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO))
    table = ClusterInfo.decode(answer.body).broker_addr_table
    return {name: dict(data.broker_addrs) for name, data in table.items()}


def route(client: BlockingClient, addr: str, topic: str) -> TopicRouteData | None:
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic).encode())
    answer = client.call(addr, request)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    return TopicRouteData.decode(answer.body)


def test_a_broker_is_known_while_it_runs_and_unknown_afterwards(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    addrs = [addr_of(start_namesrv()), addr_of(start_namesrv())]
    registered = register(MASTER, addrs)
    assert registered.registration.first_round.wait(10)
    for addr in addrs:
        assert brokers(client, addr) == {"broker-a": {0: "127.0.0.1:10911"}}
    registered.stop()
    for addr in addrs:
        assert brokers(client, addr) == {}


def test_a_name_server_that_answers_beyond_belief_is_one_that_does_not_answer(
    register: Callable[..., Registered], caplog: pytest.LogCaptureFixture
) -> None:
    newer: list[int] = []
    answers = {
        RequestCode.REGISTER_BROKER: lambda _, request: request.answer(
            ext={"newerEpoch": str(2**63 - 1), "newerMaster": "10.6.6.6:10911"}
        )
    }
    server = RemotingServer([Listener("127.0.0.1", 0, answers)])
    server.start()
    try:
        registered = register(
            MASTER, [f"127.0.0.1:{server.ports[0]}"], on_newer=lambda epoch, addr: newer.append(epoch)
        )
        assert registered.registration.first_round.wait(10)
        registered.stop()
    finally:
        server.stop()
    assert newer == []
    assert "field newerEpoch of the request header is '9223372036854775807'" in caplog.text


def test_a_new_topic_is_announced_at_once(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr])
    assert registered.registration.first_round.wait(10)
    assert route(client, addr, "T") is None
    registered.topics.update(topic_config("T", 3, 6))
    wait_until(lambda: route(client, addr, "T") is not None, "the topic has a route")
    found = route(client, addr, "T")
    assert found is not None
    assert found.queue_datas[0].write_queue_nums == 3


def test_who_waits_is_told_when_every_name_server_knows_a_new_topic(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    addrs = [addr_of(start_namesrv()), addr_of(start_namesrv())]
    registered = register(MASTER, addrs)
    for number in range(10):
        registered.topics.update(topic_config(f"T{number}", 3, 6))
        registered.registration.told().result(10)
        assert all(route(client, addr, f"T{number}") is not None for addr in addrs)


def test_who_waits_is_told_soon_though_a_name_server_is_away(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    there, away = start_namesrv(), start_namesrv()
    registered = register(MASTER, [addr_of(there), addr_of(away)])
    assert registered.registration.first_round.wait(10)
    away.stop()
    registered.topics.update(topic_config("T", 3, 6))
    registered.registration.told().result(10)
    assert route(client, addr_of(there), "T") is not None


def test_a_broker_that_may_not_be_written_registers_its_topics_so(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    addr = addr_of(start_namesrv())
    more = [TopicConfig("WriteOnly", perm=2), TopicConfig("ReadOnly", perm=4)]
    registered = register(MASTER, [addr], more_topics=more, permission=4)
    assert registered.registration.first_round.wait(10)
    for topic, perm in (("BenchmarkTest", 4), ("WriteOnly", 0), ("ReadOnly", 4)):
        found = route(client, addr, topic)
        assert found is not None
        assert found.queue_datas[0].perm == perm
    assert registered.topics.get("BenchmarkTest").perm == 6  # type: ignore[union-attr]


def test_a_slave_learns_its_master_and_that_it_has_gone(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode]
) -> None:
    addr = addr_of(start_namesrv())
    master = register(MASTER, [addr])
    assert master.registration.first_round.wait(10)
    slave = register(SLAVE, [addr], master_wanted=lambda: False)
    assert slave.registration.first_round.wait(10)
    assert slave.masters == [MasterAddresses("127.0.0.1:10911", "127.0.0.1:10912")]
    master.stop()
    slave.registration.announce()
    wait_until(lambda: slave.masters[-1] == MasterAddresses(None, None), "the slave hears of it")


def test_a_slave_no_longer_believes_a_name_server_that_died(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode]
) -> None:
    first, second = start_namesrv(), start_namesrv()
    moved = MASTER._replace(broker_addr="127.0.0.1:10931", ha_server_addr="127.0.0.1:10932")
    for identity, namesrv in ((MASTER, first), (moved, second)):
        assert register(identity, [addr_of(namesrv)]).registration.first_round.wait(10)
    slave = register(SLAVE, [addr_of(first), addr_of(second)])
    assert slave.registration.first_round.wait(10)
    assert slave.masters[-1].broker_addr == "127.0.0.1:10911"
    first.stop()
    slave.registration.announce()
    found = MasterAddresses("127.0.0.1:10931", "127.0.0.1:10932")
    wait_until(lambda: slave.masters[-1] == found, "the second one is believed")


def test_the_silence_of_the_only_name_server_that_knows_a_master_takes_nothing_away(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode]
) -> None:
    namesrv = start_namesrv()
    assert register(MASTER, [addr_of(namesrv)]).registration.first_round.wait(10)
    slave = register(SLAVE, [addr_of(namesrv)])
    assert slave.registration.first_round.wait(10)
    namesrv.stop()
    slave.registration.announce()
    wait_until(lambda: slave.registration._masters == {}, "the slave has noticed")
    assert slave.masters == [MasterAddresses("127.0.0.1:10911", "127.0.0.1:10912")]


def test_a_broker_unregisters_where_it_is_known_though_the_last_call_failed(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr])
    assert registered.registration.first_round.wait(10)
    registered.registration._disbelieve(addr)
    registered.stop()
    assert brokers(client, addr) == {}


def test_a_broker_that_stops_while_its_registration_rests_after_a_failure_unregisters(
    register: Callable[..., Registered],
    start_namesrv: Callable[..., NameserverNode],
    client: BlockingClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, rests = threading.Event(), threading.Event()

    def epoch() -> int | None:
        if broken.is_set():
            raise ZeroDivisionError
        return None

    def again(_: Supervisor, __: str, ___: BaseException) -> float:
        rests.set()
        return 3600.0

    monkeypatch.setattr(Supervisor, "again", again)
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr], epoch=epoch)
    assert registered.registration.first_round.wait(40)
    broken.set()
    registered.registration.announce()
    assert rests.wait(40)
    assert brokers(client, addr) == {"broker-a": {0: "127.0.0.1:10911"}}
    registered.stop()
    assert brokers(client, addr) == {}


def test_a_task_that_is_cancelled_late_unregisters_nobody(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    """Its loop stood still while the broker took another role: who is registered by now is its successor."""
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr])
    assert registered.registration.first_round.wait(10)
    goes_on = threading.Event()
    registered.task._thread.loop.call_soon_threadsafe(goes_on.wait, 40)
    assert not registered.task.stop(Deadline(0.05))
    goes_on.set()
    assert registered.task._ended.wait(40)
    assert brokers(client, addr) == {"broker-a": {0: "127.0.0.1:10911"}}


def test_a_slave_without_a_master_asks_again_soon(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode]
) -> None:
    addr = addr_of(start_namesrv())
    slave = register(SLAVE, [addr], master_wanted=lambda: True)
    assert slave.registration.first_round.wait(10)
    assert slave.masters[-1] == MasterAddresses(None, None)
    assert register(MASTER, [addr]).registration.first_round.wait(10)
    wait_until(lambda: slave.masters[-1].broker_addr == "127.0.0.1:10911", "the slave finds its master")


def test_a_name_server_that_comes_late_is_found_and_its_absence_told_once(
    register: Callable[..., Registered],
    start_namesrv: Callable[..., NameserverNode],
    client: BlockingClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "haservice.broker.metadata.registration")
    port = free_port_block(1)
    addr = f"127.0.0.1:{port}"
    alive = addr_of(start_namesrv())
    registered = register(MASTER, [addr, alive])
    # One that is away keeps nobody from the other, and the first round ends all the same.
    assert registered.registration.first_round.wait(10)
    assert brokers(client, alive) == {"broker-a": {0: "127.0.0.1:10911"}}
    start_namesrv(port)
    wait_until(lambda: brokers(client, addr), "registered at the late one")
    warnings = [record.getMessage() for record in caplog.records if "not registered" in record.getMessage()]
    assert len(warnings) == 1
    assert addr in warnings[0]


def test_a_stop_while_no_name_server_answers_is_quick(register: Callable[..., Registered]) -> None:
    registered = register(MASTER, [f"127.0.0.1:{free_port_block(1)}"])
    assert registered.registration.first_round.wait(10)
    registered.stop()


def filled(topics: TopicTable, count: int) -> TopicTable:
    """With topics of the longest names."""
    names = [f"{number:0127}" for number in range(count)]
    table = {name: TopicConfig(name, 65536, 65536, 6, "MULTI_TAG", 2**31 - 1) for name in names}
    topics.configure(count)
    topics.replace_all(TopicConfigWrapper(DataVersion(1, 1), table))
    return topics


def test_as_many_topics_as_a_broker_may_have_are_registered(
    register: Callable[..., Registered],
    start_namesrv: Callable[[int], NameserverNode],
    client: BlockingClient,
) -> None:
    """With the longest names they do not fit into a frame: they are compressed."""
    addr = addr_of(start_namesrv(0))
    registered = register(MASTER, [addr])
    wait_until(lambda: route(client, addr, "SELF_TEST_TOPIC") is not None, "registered")
    filled(registered.topics, TOPICS_MAX)
    wait_until(lambda: route(client, addr, f"{TOPICS_MAX - 1:0127}") is not None, "all are known")
    wait_until(lambda: registered.registration.trouble == "", "the answer is heard")
    body = RegisterBrokerBody(registered.topics.wrapper())
    again = RegisterBrokerBody.decode_compressed(body.encode_compressed())
    assert len(again.topics.topic_config_table) == TOPICS_MAX


def test_a_registration_that_is_refused_or_too_large_is_told_with_the_name_server_and_the_reason(
    register: Callable[..., Registered],
    start_namesrv: Callable[[int], NameserverNode],
    client: BlockingClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haservice.broker.metadata.registration.RETRY_MAX_S", 0.1)
    monkeypatch.setattr("haservice.broker.topics.told.BODY_BYTES_MAX", 2_600)
    first, second = addr_of(start_namesrv(0)), addr_of(start_namesrv(0))
    registered = register(MASTER, [first, second])
    wait_until(lambda: brokers(client, first) and brokers(client, second), "registered")
    assert registered.registration.trouble == ""
    filled(registered.topics, 1000)
    wait_until(lambda: registered.registration.trouble.count("the registration of 1000 topics has ") == 2)
    assert registered.registration.trouble.startswith(f"{first}: the registration of 1000 topics has ")
    assert "maxTopics" in registered.registration.trouble
    monkeypatch.setattr("haservice.broker.topics.told.BODY_BYTES_MAX", 1 << 20)
    wait_until(lambda: registered.registration.trouble == "", "taken")

    def refuse(*_: object) -> None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the nameserver is full")

    monkeypatch.setattr("haservice.nameserver.route_table.RouteTable.check_room", refuse)
    registered.topics.replace_all(TopicConfigWrapper(DataVersion(2, 1), {"U": TopicConfig("U")}))
    wait_until(lambda: "the nameserver is full" in registered.registration.trouble, "refused")


def test_a_master_hears_from_a_name_server_that_its_epoch_is_over(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    addr = addr_of(start_namesrv())
    newer = MASTER._replace(broker_addr="127.0.0.1:10931", ha_server_addr="127.0.0.1:10932")
    assert register(newer, [addr], epoch=lambda: 2).registration.first_round.wait(10)
    told: list[tuple[int, str]] = []
    old = register(MASTER, [addr], epoch=lambda: 1, on_newer=lambda *what: told.append(what))
    assert old.registration.first_round.wait(10)
    assert told == [(2, "127.0.0.1:10931")]
    assert brokers(client, addr) == {"broker-a": {0: "127.0.0.1:10931"}}
    old.stop()
    assert brokers(client, addr) == {"broker-a": {0: "127.0.0.1:10931"}}


def test_a_stranger_who_registers_and_leaves_leaves_no_trace(
    register: Callable[..., Registered],
    start_namesrv: Callable[..., NameserverNode],
    client: BlockingClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haservice.broker.metadata.registration.REFUSED_S", 0.1, raising=False)
    addr = addr_of(start_namesrv())
    ours = {"broker-a": {0: MASTER.broker_addr}}
    stranger = RegisterBrokerHeader(
        "broker-a", "127.0.0.1:1", "DefaultCluster", "127.0.0.1:2", 0, epoch=2_000_000
    )
    request = RemotingCommand.request(RequestCode.REGISTER_BROKER, stranger.encode())
    with BlockingClient() as his:
        his.call(addr, request)
        told: list[int] = []
        real = register(MASTER, [addr], epoch=lambda: 1_005_000, on_newer=lambda epoch, _: told.append(epoch))
        wait_until(lambda: len(told) > 1, "it is refused, and asks again soon")
        assert "epoch 2000000" in real.registration.trouble
    wait_until(lambda: brokers(client, addr) == ours, "the real one is in the route")
    wait_until(lambda: real.registration.trouble == "", "and nothing is wrong with it")
    # Again, while it is there: nobody asks it to register before its place is its own again.
    for _ in range(3):
        with BlockingClient() as his:
            his.call(addr, request)
        wait_until(lambda: brokers(client, addr) == ours, "its place is given back")


def test_an_answer_that_cannot_be_read_ends_no_thread(
    register: Callable[..., Registered], caplog: pytest.LogCaptureFixture
) -> None:
    """register would be gone, and with it the broker's route, once a nameserver says nonsense."""
    epochs = iter(["many", "7"])

    def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ext={"newerEpoch": next(epochs, "7")})

    newer: list[int] = []
    with serving({RequestCode.REGISTER_BROKER: answer}) as server:
        register(MASTER, [f"127.0.0.1:{server.ports[0]}"], on_newer=lambda epoch, _: newer.append(epoch))
        wait_until(lambda: newer == [7], "it registers again")
    assert "newerEpoch" in caplog.text


# ---- what is told of the topics


class Told(NamedTuple):
    """A 103 as a nameserver got it."""

    bytes: int
    topics: set[str]
    version: DataVersion
    base: str | None
    whole: bool


def told_of(request: RemotingCommand) -> Told:
    body = RegisterBrokerBody.decode(request.body).topics
    header = ToldTopicsHeader.decode(request.ext)
    return Told(
        len(request.body),
        set(body.topic_config_table),
        body.data_version,
        header.topics_base,
        bool(header.topics_whole),
    )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    """What nameservers that are started from now on are told, oldest first."""
    seen: list[Told] = []
    register = BrokerProcessors.register

    def seeing(self: BrokerProcessors, connection: Connection, request: RemotingCommand) -> Any:
        seen.append(told_of(request))
        return register(self, connection, request)

    monkeypatch.setattr(BrokerProcessors, "register", seeing)
    return seen


def test_one_more_topic_is_told_in_as_few_bytes_whatever_the_number_of_topics(
    told: list[Told],
    register: Callable[..., Registered],
    start_namesrv: Callable[..., NameserverNode],
    client: BlockingClient,
) -> None:
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr])
    assert registered.registration.first_round.wait(10)
    for count in (100, 5_000):
        filled(registered.topics, count)
        registered.registration.told().result(20)
        told.clear()
        registered.topics.configure(count + 1)
        registered.topics.update(topic_config("T", 3, 6))
        registered.registration.told().result(20)
        assert route(client, addr, "T") is not None
        assert {name for one in told for name in one.topics} == {"T"}
        assert max(one.bytes for one in told) < 400


def test_between_two_changes_a_name_server_of_ours_is_told_only_the_version(
    told: list[Told], register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode]
) -> None:
    registered = register(MASTER, [addr_of(start_namesrv())], period_s=0.05)
    wait_until(lambda: len(told) >= 3, "three periods")
    version = registered.topics.data_version
    assert told[0].whole
    assert told[0].topics == {topic.topic_name for topic in registered.topics}
    for one in told[1:3]:
        assert one[1:] == (set(), version, version.text, False)


def test_topics_that_change_while_an_answer_is_awaited_are_told_together(
    register: Callable[..., Registered],
) -> None:
    """A nameserver that answers when it may."""
    seen: list[Told] = []
    answers: list[Future[None]] = []

    def slow(connection: Connection, request: RemotingCommand) -> Any:
        seen.append(told_of(request))
        answers.append(Future())
        known = seen[-1].version.text

        async def later() -> RemotingCommand:
            await asyncio.wrap_future(answers[len(seen) - 1])
            return request.answer(ext={"topicsVersion": known})

        return later()

    server = RemotingServer([Listener("127.0.0.1", 0, {RequestCode.REGISTER_BROKER: slow})])
    server.start()
    try:
        registered = register(MASTER, [f"127.0.0.1:{server.ports[0]}"])
        wait_until(lambda: len(seen) == 1, "the first registration")
        for number in range(50):
            registered.topics.update(topic_config(f"T{number}", 1, 6))
        answers[0].set_result(None)
        wait_until(lambda: len(seen) == 2, "the second one")
        answers[1].set_result(None)
        assert seen[1].topics == {f"T{number}" for number in range(50)}
        assert seen[1].base == seen[0].version.text
        for number in (3, 4):  # each is told of by one registration
            done = registered.registration.told()
            wait_until(lambda number=number: len(seen) == number, "the next one")
            assert seen[-1].topics == set()
            answers[-1].set_result(None)
            done.result(10)
        registered.stop()
    finally:
        server.stop()


def test_a_stock_name_server_is_told_changed_topics_only_and_the_whole_table_each_period(
    register: Callable[..., Registered],
) -> None:
    seen: list[Told] = []

    def stock(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        seen.append(told_of(request))
        return request.answer()

    server = RemotingServer(
        [Listener("127.0.0.1", 0, {RequestCode.REGISTER_BROKER: stock, RequestCode.UNREGISTER_BROKER: stock})]
    )
    server.start()
    try:
        registered = register(MASTER, [f"127.0.0.1:{server.ports[0]}"], period_s=2.0)
        assert registered.registration.first_round.wait(10)
        before = registered.topics.data_version
        registered.topics.update(topic_config("T", 1, 6))
        registered.registration.told().result(10)
        every = {topic.topic_name for topic in registered.topics}
        version = registered.topics.data_version
        change = next(one for one in seen if one.topics == {"T"})
        # With a version that no table has: the whole table that follows is learned in any case.
        assert change.version not in (before, version)
        assert change.base is None
        at = seen.index(change)
        wait_until(lambda: any(one.topics == every for one in seen[at + 1 :]), "the next period")
        assert seen[-1].version == version
        registered.stop()
    finally:
        server.stop()


def test_a_stock_name_server_is_told_the_whole_table_first_over_each_connection(
    register: Callable[..., Registered],
) -> None:
    """It was restarted, or has dropped this broker: it knows no topics any more."""
    seen: list[Told] = []
    connections: list[Connection] = []

    def stock(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.REGISTER_BROKER:
            seen.append(told_of(request))
            connections.append(connection)
        return request.answer()

    codes = RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER
    with serving(dict.fromkeys(codes, stock)) as server:
        registered = register(MASTER, [f"127.0.0.1:{server.ports[0]}"])
        assert registered.registration.first_round.wait(10)
        server.call_soon(connections[0].close, "as after a restart")
        wait_until(lambda: connections[0].closed, "the connection has ended")
        client = registered.client.use(current)
        wait_until(lambda: client.connection(f"127.0.0.1:{server.ports[0]}") is None, "the broker knows")
        registered.topics.update(topic_config("T", 1, 6))
        registered.registration.told().result(10)
        assert seen[1].topics == {topic.topic_name for topic in registered.topics}
        assert connections[1] is not connections[0]
        registered.stop()


async def current(client: RemotingClient) -> RemotingClient:
    return client


def test_a_deleted_topic_has_no_route_any_more(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr])
    registered.topics.update(topic_config("T", 1, 6))
    registered.topics.update(topic_config("U", 1, 6))
    registered.registration.told().result(10)
    assert route(client, addr, "T") is not None
    registered.topics.delete("T")
    registered.registration.told().result(10)
    assert route(client, addr, "T") is None
    assert route(client, addr, "U") is not None


def test_a_name_server_that_was_restarted_is_told_all_with_the_first_change(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    first = start_namesrv()
    addr = addr_of(first)
    registered = register(MASTER, [addr])
    registered.topics.update(topic_config("T", 1, 6))
    registered.registration.told().result(10)
    first.stop()
    start_namesrv(first.port)
    registered.topics.update(topic_config("U", 1, 6))
    wait_until(lambda: route(client, addr, "U") is not None, "the new one is known")
    assert route(client, addr, "T") is not None


def test_a_name_server_that_another_told_something_else_is_told_all_again(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    """Another version came from somewhere, or a change was lost."""
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr])
    registered.topics.update(topic_config("T", 1, 6))
    registered.registration.told().result(10)
    body = RegisterBrokerBody(TopicConfigWrapper(DataVersion(99, 99), {})).encode()
    header = RegisterBrokerHeader("broker-a", MASTER.broker_addr, "C", MASTER.ha_server_addr, 0)
    with BlockingClient() as other:
        ext = {**header.encode(), "topicsWhole": "true"}
        answer = other.call(addr, RemotingCommand.request(RequestCode.REGISTER_BROKER, ext, body))
        assert answer.code == 0
        assert route(client, addr, "T") is None
        registered.topics.update(topic_config("U", 1, 6))
        registered.registration.told().result(10)
        assert route(client, addr, "U") is not None
        assert route(client, addr, "T") is not None


def test_what_was_deleted_at_a_name_server_only_lasts_until_the_next_change(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    """As with RocketMQ's."""
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr])
    registered.topics.update(topic_config("T", 1, 6))
    registered.registration.told().result(10)
    client.call(addr, RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}))
    registered.registration.told().result(10)
    assert route(client, addr, "T") is None
    registered.topics.update(topic_config("U", 1, 6))
    registered.registration.told().result(10)
    assert route(client, addr, "T") is not None


def test_a_broker_that_starts_with_fewer_topics_has_no_others_though_its_slave_kept_the_name(
    register: Callable[..., Registered], start_namesrv: Callable[..., NameserverNode], client: BlockingClient
) -> None:
    addr = addr_of(start_namesrv())
    before = register(MASTER, [addr])
    before.topics.update(topic_config("T", 1, 6))
    before.registration.told().result(10)
    slave = register(SLAVE, [addr])
    assert slave.registration.first_round.wait(10)
    before.stop()
    assert route(client, addr, "T") is not None
    again = register(MASTER, [addr])
    assert again.registration.first_round.wait(10)
    assert route(client, addr, "T") is None
    assert route(client, addr, "TBW102") is not None


def test_topics_with_a_flag_keep_it_though_a_compressed_table_has_none(
    register: Callable[..., Registered],
    start_namesrv: Callable[..., NameserverNode],
    client: BlockingClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haservice.broker.topics.told.BODY_BYTES_MAX", 20_000)
    addr = addr_of(start_namesrv())
    registered = register(MASTER, [addr])
    table = {f"{n:0127}": TopicConfig(f"{n:0127}", 1, 1, 6, "SINGLE_TAG", n % 2) for n in range(200)}
    registered.topics.replace_all(TopicConfigWrapper(DataVersion(1, 1), table))
    registered.registration.told().result(10)
    for number in (0, 1, 199):
        found = route(client, addr, f"{number:0127}")
        assert found is not None
        assert found.queue_datas[0].topic_sys_flag == number % 2
