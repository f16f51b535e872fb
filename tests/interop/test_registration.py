"""What nameservers know of a broker's topics, in every pairing with stock ones: created, changed, after a restart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haservice.broker.topics.table import topic_config
from haservice.devtools.scale.sender import send_command
from haservice.remoting.bodies.clients import DataVersion, TopicConfigWrapper, TopicList, TopicRouteData
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import CreateTopicHeader, RouteHeader
from tests.interop.stock import KINDS, Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(180)]

# Above the size from which a nameserver of ours reads a table in steps.
TOPICS = 2_000
PATIENCE_S = 60.0


@pytest.fixture
def start(stock_jars: Path) -> Iterator[Callable[..., None]]:
    with servers() as starter:
        yield starter


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as made:
        yield made


def queues(client: BlockingClient, at: Nameserver, topic: str) -> list[int]:
    """The topic's write queues on each broker name."""
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic).encode())
    answer = client.call(at.addr, request, 10)
    if answer.code != 0:
        return []
    return [one.write_queue_nums for one in TopicRouteData.decode(answer.body).queue_datas]


def topics(client: BlockingClient, at: Nameserver) -> set[str]:
    request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return set(TopicList.decode(client.call(at.addr, request, 10).body).topic_list)


def create(client: BlockingClient, at: Broker, topic: str, count: int) -> None:
    header = CreateTopicHeader(topic, "TBW102", count, count, 6)
    request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
    assert client.call(at.addr, request, 10).code == 0


def write_topics(root: Path, names: list[str]) -> None:
    (root / "config").mkdir(parents=True)
    table = {name: topic_config(name, 3, 6) for name in names}
    text = TopicConfigWrapper(DataVersion(5, 1_700_000_000_000), table).encode(pretty=True)
    (root / "config" / "topics.json").write_bytes(text)


@pytest.mark.parametrize(("of_namesrv", "of_master"), list(itertools.product(KINDS, KINDS)))
def test_a_nameserver_knows_each_topic_once_it_is_made_and_all_of_them_after_its_restart(
    of_namesrv: str,
    of_master: str,
    start: Callable[..., None],
    client: BlockingClient,
    tmp_path: Path,
) -> None:
    names = [f"T{number}" for number in range(TOPICS)]
    at = nameserver(of_namesrv, tmp_path)
    # Beside it another one of ours: what one is told does not depend on the other.
    other = nameserver("ours", tmp_path / "other")
    master = broker(of_master, tmp_path, namesrv=f"{at.addr};{other.addr}", registerNameServerPeriod=10_000)
    write_topics(master.root, names)
    start(at, other)
    start(master)
    both = at, other
    wait_until(
        lambda: all(topics(client, one).issuperset(names) for one in both), "all are known", PATIENCE_S
    )
    create(client, master, "Made", 5)
    assert client.call(master.addr, send_command("Sent", b"first"), 10).code == 0
    create(client, master, "T0", 7)
    for one in both:
        wait_until(lambda one=one: queues(client, one, "Sent") == [4], "sent, known", PATIENCE_S)
        wait_until(lambda one=one: queues(client, one, "Made") == [5], "made, known", PATIENCE_S)
        wait_until(lambda one=one: queues(client, one, "T0") == [7], "changed, known", PATIENCE_S)
        assert queues(client, one, "T1") == [3]
    at.kill()
    create(client, master, "MadeMeanwhile", 2)
    start(at)
    wanted = {*names, "Made", "Sent", "MadeMeanwhile"}
    wait_until(lambda: topics(client, at) >= wanted, "all are known again", PATIENCE_S)
    assert queues(client, at, "T0") == [7]
    assert queues(client, at, "MadeMeanwhile") == [2]
