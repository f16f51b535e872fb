"""Who asks about queues is told of everything that was sent before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from haservice.broker.node import BrokerNode
from haservice.remoting.bodies.clients import TopicStatsTable
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import PullMessageHeader, QueryMessageHeader, QueueHeader, TopicHeader
from tests.support.brokers import addr_of, send

FLAG_SUBSCRIPTION = 0x4


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, start: Callable[..., BrokerNode]) -> Iterator[BrokerNode]:
    """A broker whose dispatcher comes to arrivals after ten minutes, unless somebody asks."""
    monkeypatch.setattr("commitlog.dispatch.dispatcher._UNAWAITED_LINGER_S", 600.0)
    monkeypatch.setattr("haservice.broker.dispatch_barrier.PATIENCE_S", 60.0)
    return start()


def max_offset(client: BlockingClient, addr: str) -> int:
    header = QueueHeader("T", 0).encode()
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header))
    return int(answer.ext["offset"])


def test_the_end_of_a_queue_counts_what_was_just_sent(slow: BrokerNode, client: BlockingClient) -> None:
    addr = addr_of(slow)
    for number in range(1, 6):
        send(client, addr, "T", queue_id=0)
        assert max_offset(client, addr) == number
    send(client, addr, "T", queue_id=0)
    answer = client.call(
        addr, RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("T").encode())
    )
    table = TopicStatsTable.decode(answer.body).offset_table
    assert max(queue.max_offset for queue in table.values()) == 6


def test_a_pull_that_does_not_wait_finds_what_was_just_sent(slow: BrokerNode, client: BlockingClient) -> None:
    addr = addr_of(slow)
    for number in range(3):
        send(client, addr, "T", b"body", queue_id=0)
        header = PullMessageHeader(
            "g", "T", 0, number, 32, FLAG_SUBSCRIPTION, subscription="*", expression_type="TAG"
        )
        answer = client.call(addr, RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode()))
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.SUCCESS, str(number + 1))


def test_a_message_just_sent_is_found_by_its_key(slow: BrokerNode, client: BlockingClient) -> None:
    addr = addr_of(slow)
    for number in range(3):
        send(client, addr, "T", queue_id=0, properties=f"KEYS\x01k{number}")
        header = QueryMessageHeader("T", f"k{number}", 32, 0, 1 << 62).encode()
        assert client.call(addr, RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)).code == 0
