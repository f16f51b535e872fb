"""A group of brokers whose log a majority agrees on, one of them stock; stock clients, and both kinds lead."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitlog.dledger.reading import read_records
from commitlog.kernel.records import decode
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.dledger.judging import differing
from haservice.admin.commands.ha.ha_questions import take
from haservice.devtools.pair import free_port_block
from haservice.dledger.messages import LeadershipTransferRequest
from haservice.dledger.wire import request_command
from haservice.errors import HAServiceError
from haservice.remoting.client import BlockingClient
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.interop.driver import JavaDriver, Producer, message
from tests.interop.stock import Broker, Kind, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(400)]

TOPIC, QUEUES = "Agreed", 4
# A stock member waits for 6 s before it stands; then it is up to 1 s until a client asks for the route.
PATIENCE_S = 90.0


class BrokerGroup:
    """Its brokers by their ids; `start` is that of `servers`."""

    def __init__(self, directory: Path, start: Callable[..., None], kinds: dict[str, Kind]) -> None:
        first = free_port_block(len(kinds))
        self.peers = {name: f"127.0.0.1:{first + at}" for at, name in enumerate(kinds)}
        self.namesrv: Nameserver = nameserver("stock", directory)
        start(self.namesrv)
        self.admin = MQAdmin([self.namesrv.addr])
        self.brokers: dict[str, Broker] = {
            name: broker(
                kind,
                directory,
                broker_id=at,
                role="ASYNC_MASTER",
                namesrv=self.namesrv,
                enableDLegerCommitLog="true",
                dLegerGroup="broker-a",
                dLegerPeers=";".join(f"{peer}-{addr}" for peer, addr in self.peers.items()),
                dLegerSelfId=name,
                messageDelayLevel="1s 5s",
            )
            for at, (name, kind) in enumerate(kinds.items())
        }
        for one in self.brokers.values():
            one.launch()

    def route(self) -> dict[int, str]:
        with contextlib.suppress(HAServiceError, ValueError):
            (data,) = self.admin.route(TOPIC).broker_datas
            return dict(data.broker_addrs)
        return {}

    def create_topic(self) -> None:
        """On whoever leads."""

        def create() -> bool:
            for one in self.brokers.values():
                with contextlib.suppress(HAServiceError):
                    self.admin.update_topic(one.addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
            return bool(self.route().get(0))

        wait_until(create, "the route leads to a master", PATIENCE_S)

    def leader(self) -> str:
        """The name of the broker that is the master."""
        found: list[str] = []

        def is_found() -> bool:
            addr = self.route().get(0)
            found[:] = [name for name, one in self.brokers.items() if one.addr == addr and one.is_running]
            return bool(found)

        wait_until(is_found, "the route leads to a master that runs", PATIENCE_S)
        return found[0]

    def lead(self, *names: str) -> str:
        """Has one of these lead, as the operator of a stock group would; returns which."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            leader = self.leader()
            if leader in names:
                return leader
            with BlockingClient() as client:
                for term in range(20):
                    request = LeadershipTransferRequest(
                        group="broker-a", local_id=leader, remote_id=leader, leader_id=leader, term=term,
                        transfer_id=leader, transferee_id=names[0],
                    )  # fmt: skip
                    with contextlib.suppress(HAServiceError):
                        client.call(self.peers[leader], request_command(request), 5.0)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: self.leader() in names, "the chosen one leads", 20.0)
        raise AssertionError(f"none of {names} leads")

    def is_level(self) -> bool:
        """Whether all three have committed the same."""
        try:
            infos = [self.admin.runtime_info(one.addr) for one in self.brokers.values()]
        except HAServiceError:
            return False
        return len({info["commitLogMaxOffset"] for info in infos}) == 1


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    with servers() as start:
        made = BrokerGroup(tmp_path, start, {"n0": "ours", "n1": "ours", "n2": "stock"})
        try:
            yield made
        finally:
            made.admin.close()
            for one in made.brokers.values():
                one.kill()


def send_all_ok(producer: Producer, bodies: list[bytes]) -> None:
    """Each until it is answered with OK: a master may change meanwhile."""
    for body in bodies:

        def is_ok(body: bytes = body) -> bool:
            with contextlib.suppress(Exception):
                return bool(producer.send(TOPIC, body, tag="A", keys=body.decode())["status"] == "SEND_OK")
            return False

        wait_until(is_ok, "a send is answered with OK", PATIENCE_S)


def test_stock_clients_lose_nothing_while_leadership_moves_between_the_kinds(
    group: BrokerGroup, java: JavaDriver
) -> None:
    group.create_topic()
    consumer = java.push(group.namesrv, "agreed-readers", TOPIC)
    producer = java.producer(group.namesrv, "agreed-senders", sendMsgTimeout=3000)
    bodies = [b"message %d" % number for number in range(60)]
    send_all_ok(producer, bodies[:10])
    stock = group.lead("n2")
    send_all_ok(producer, bodies[10:20])
    ours = group.lead("n0", "n1")
    send_all_ok(producer, bodies[20:30])
    group.brokers[ours].kill()
    wait_until(lambda: group.leader() != ours, "another one leads", PATIENCE_S)
    send_all_ok(producer, bodies[30:40])
    group.brokers[ours].launch()
    group.lead(stock)
    assert list(differing(take(group.admin, "broker-a", None))) == []
    group.brokers[stock].kill()
    wait_until(lambda: group.leader() != stock, "another one leads", PATIENCE_S)
    send_all_ok(producer, bodies[40:50])
    producer.send(TOPIC, b"late", delay_level=1)
    batch = producer.send_batch([message(TOPIC, body, tag="A") for body in bodies[50:]])
    assert batch["status"] == "SEND_OK"
    group.brokers[stock].properties["preferredLeaderId"] = stock
    group.brokers[stock].launch()
    wait_until(lambda: {*bodies, b"late"} <= set(consumer.bodies()), "all is consumed", PATIENCE_S)
    wait_until(group.is_level, "all three have committed the same", PATIENCE_S)
    (found,) = differing(take(group.admin, "broker-a", None))
    assert found.text.startswith("preferredLeaderId is not set at n0")
    assert f"{stock} at {stock} (" in found.text
    roots = [one.root for one in group.brokers.values()]
    for one in group.brokers.values():
        one.stop()
    logs = [[bytes(one.record) for one in read_records(root)] for root in roots]
    shortest = min(map(len, logs))
    assert all(log[:shortest] == logs[0][:shortest] for log in logs)
    for log in logs:
        found = {decode(record).body for record in log}
        assert set(bodies) <= found, "every log has all that was acknowledged"
