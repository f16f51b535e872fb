"""A time is a boundary: 111 messages in a queue, 101 of them of one millisecond, asked for in every way we have."""

from __future__ import annotations

import asyncio
import json

import pytest

from commitlog.queues.readable_queue import ReadableQueue
from haservice.admin.calls import MQAdmin
from haservice.broker.node import BrokerNode
from haservice.client.admin import Admin
from haservice.client.consumer.pull_consumer import AsyncPullConsumer
from haservice.client.consumer.queues.offsets import ConsumeFrom
from haservice.client.options import ClientOptions
from haservice.console.questions import messages
from haservice.console.questions.messages import in_range
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import ResetOffsetHeader
from haservice.remoting.headers.clients import OffsetResponseHeader, SearchOffsetHeader
from tests.admin.asking import run as mqadmin
from tests.client.consumer.consuming import Seen, push, run, until
from tests.pipeline.brokers import Cluster
from tests.support.brokers import addr_of

T0 = 1_700_000_000_123
BEFORE, TOGETHER, COUNT = 5, 101, 111
FUTURE = "2100-01-01"


@pytest.fixture
def node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> BrokerNode:
    """The messages 0 to 4 are stored at T0 - 50, - 40, …, 5 to 105 at T0, 106 to 110 at T0 + 10, + 20, …"""
    # So a queue counts as on the disk, and a new group chooses its start itself.
    made = cluster.start(broker={"access_message_in_memory_max_ratio": 0})
    with monkeypatch.context() as patch:
        log = made.store.log
        for first, count, when_ms in (
            *((number, 1, T0 - 50 + 10 * number) for number in range(BEFORE)),
            (BEFORE, TOGETHER, T0),
            *((106 + number, 1, T0 + 10 + 10 * number) for number in range(5)),
        ):
            patch.setattr(log, "_clock_ms", lambda when_ms=when_ms: when_ms)
            cluster.fill(made, count=count, queues=1, first=first)
    return made


@pytest.fixture(params=[False, True], ids=["ours", "stock"])
def any_node(request: pytest.FixtureRequest, node: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> BrokerNode:
    """Ours, or one that answers every request 29 as RocketMQ 4.9, with the message nearest to the time."""
    if request.param:
        monkeypatch.setattr(ReadableQueue, "first_stored_at", ReadableQueue.offset_by_time)
    return node


def numbers_read(cluster: Cluster, *arguments: str) -> list[int]:
    result = mqadmin("consumeMessage", "-n", cluster.namesrv, "-t", "Orders", *arguments, "-f", "json")
    assert result.exit_code == 0, result.output
    return [int(json.loads(line)["body"]) for line in result.stdout.splitlines()]


def test_each_command_reads_from_the_first_stored_at_a_time_to_the_last_before_one(
    cluster: Cluster, any_node: BrokerNode
) -> None:
    everything = list(range(COUNT))
    assert numbers_read(cluster, "-e", FUTURE) == everything
    assert numbers_read(cluster, "-s", FUTURE) == []
    assert numbers_read(cluster, "-s", str(T0)) == everything[BEFORE:]
    assert numbers_read(cluster, "-s", str(T0 + 1)) == everything[106:]
    assert numbers_read(cluster, "-e", str(T0)) == everything[:BEFORE]
    assert numbers_read(cluster, "-s", str(T0), "-e", str(T0 + 1)) == everything[BEFORE:106]
    for name, wanted in (("-b", 0), ("-e", COUNT)):
        result = mqadmin("printMsg", "-n", cluster.namesrv, "-t", "Orders", name, FUTURE)
        assert result.stdout.count("MSGID") == wanted
    assert numbers_read(cluster, "-o", "2", "-s", str(T0), "-e", str(T0)) == everything[2:BEFORE]
    name = any_node.config.broker.broker_name
    counting = ("-a", name, "-i", "0", "-p", "true", "-b", str(T0), "-e", FUTURE)
    result = mqadmin("printMsgByQueue", "-n", cluster.namesrv, "-t", "Orders", *counting)
    assert result.stdout.count("MSGID") == 106


def test_request_29_gives_the_nearest_or_the_boundary_that_it_names(
    cluster: Cluster, node: BrokerNode
) -> None:
    def found(when_ms: int, boundary: str | None) -> int:
        header = SearchOffsetHeader("Orders", 0, when_ms, boundary)
        ask = RemotingCommand.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())
        return OffsetResponseHeader.decode(cluster.client.call(addr_of(node), ask).ext).offset

    assert 0 < BEFORE <= found(T0, None) <= 105
    assert (found(T0 + 9, None), found(0, None), found(T0 * 2, None)) == (106, 0, COUNT - 1)
    for lower in ("LOWER", "lower"):
        times = (0, T0 - 10, T0 - 9, T0, T0 + 1, T0 * 2)
        assert [found(when, lower) for when in times] == [0, 4, BEFORE, BEFORE, 106, COUNT]
    times = (0, T0 - 10, T0 - 9, T0, T0 + 1, T0 * 2)
    assert [found(when, "UPPER") for when in times] == [0, 4, 4, 105, 105, COUNT - 1]


def test_a_reset_of_a_group_brings_all_messages_stored_from_then_on(
    cluster: Cluster, node: BrokerNode
) -> None:
    node.offsets.commit("g", "Orders", 0, COUNT)
    where = ("-n", cluster.namesrv, "-g", "g", "-t", "Orders", "-f", "true")
    for when, offset in ((str(T0), BEFORE), (str(T0 + 1), 106), (FUTURE, COUNT), ("0", 0)):
        result = mqadmin("resetOffsetByTime", *where, "-s", when, "--format", "json")
        assert result.exit_code == 0, result.output
        (row,) = [row for row in json.loads(result.stdout) if row["queueId"] == 0]
        assert row["offset"] == offset

    async def online() -> None:
        seen = Seen()
        async with push(cluster, "h", seen) as consumer:
            await until(lambda: len(seen.messages) == COUNT, "all have been consumed")
            await consumer.commit()
            header = ResetOffsetHeader("Orders", "h", T0, True)
            ask = RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.encode())
            assert (await asyncio.to_thread(cluster.client.call, addr_of(node), ask)).code == 0
            await until(lambda: len(seen.messages) >= 2 * COUNT - BEFORE, "what was stored at T0 comes again")
        assert seen.numbers == sorted([*range(COUNT), *range(BEFORE, COUNT)])

    run(online())


def test_a_client_and_an_admin_find_the_first_stored_at_a_time(cluster: Cluster, node: BrokerNode) -> None:
    with Admin(ClientOptions(cluster.namesrv)) as admin:
        (queue,) = [one for one in admin.queues("Orders") if one.queue_id == 0]
        times = (0, T0, T0 + 1, T0 * 2)
        assert [admin.search_offset(queue, when) for when in times] == [0, BEFORE, 106, COUNT]

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "at", seen, consume_from=ConsumeFrom.at(T0 / 1000)):
            await until(lambda: len(seen.messages) >= COUNT - BEFORE, "all from T0 on have come")
        assert seen.numbers == list(range(BEFORE, COUNT))
        async with AsyncPullConsumer("p", ClientOptions(cluster.namesrv)) as consumer:
            assert queue in await consumer.queues("Orders")
            found = [await consumer.offset_for_timestamp(queue, when / 1000) for when in (T0, T0 + 1)]
        assert found == [BEFORE, 106]

    run(main())


def test_the_consoles_page_of_a_time_has_the_same_messages(
    cluster: Cluster, any_node: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "ROWS_MAX", COUNT)
    with MQAdmin((cluster.namesrv,)) as admin:
        for begin, end, wanted in (
            (T0, None, 106),
            (T0, T0 + 1, TOGETHER),
            (None, T0, BEFORE),
            (T0 * 2, None, 0),
            (None, T0 * 2, COUNT),
        ):
            found = in_range(admin, "Orders", begin, end, None, 0)
            assert (len(found.rows), found.more, found.unknown) == (wanted, False, 0)
