"""What consuming leaves in the trace topic."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from haservice.client import (
    AsyncPushConsumer,
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    Received,
    RetryLater,
)
from haservice.client.consumer.callback.handler import ConsumeOutcome, ConsumeTimeout
from haservice.client.consumer.callback.traces import encode
from tests.admin.asking import run as mqadmin
from tests.client.consumer.consuming import Seen, run, until
from tests.client.consumer.test_reader import message
from tests.pipeline.brokers import Cluster, stored


def lines(text: str) -> list[list[str]]:
    return [line.split("\x01") for line in text.split("\x02") if line]


def test_lines_are_those_of_javas_consumers() -> None:
    one, two = message(1), message(2)
    told = lines(encode("g", "request", 5000, ConsumeOutcome([one, two], 2, 0.1)))
    assert told == [
        ["SubBefore", "4900", "DefaultRegion", "g", "request", "", "0", ""],
        ["SubBefore", "4900", "DefaultRegion", "g", "request", "", "0", ""],
        ["SubAfter", "request", "", "50", "true", "", "0", "5000", "g"],
        ["SubAfter", "request", "", "50", "true", "", "0", "5000", "g"],
    ]


def test_the_code_says_what_came_of_it() -> None:
    for error, code in ((RetryLater(), "4"), (ConsumeTimeout(), "1"), (ValueError(), "2")):
        (_, after) = lines(encode("g", "r", 5000, ConsumeOutcome([message(1)], 0, 0.1, error)))
        assert after[4:7:2] == ["false", code]


def test_a_message_whose_producer_wants_no_trace_has_none() -> None:
    quiet = replace(message(1), properties={"TRACE_ON": "false"})
    assert encode("g", "r", 5000, ConsumeOutcome([quiet], 1, 0.1)) == ""


def test_mqadmin_shows_who_consumed_a_message(cluster: Cluster) -> None:
    node = cluster.start(broker={"trace_topic_enable": True})
    cluster.fill(node, count=4)

    def fail(one: Received) -> None:
        if one.body == b"3":
            raise RetryLater(-1)

    async def main() -> None:
        seen = Seen(fail)
        options = ClientOptions(cluster.namesrv, trace=True)
        consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
        async with AsyncPushConsumer("g", seen, options, consuming=consuming).subscribe("Orders"):
            await until(lambda: len(seen.messages) == 4, "all have come")
        await until(lambda: stored(node, "RMQ_SYS_TRACE_TOPIC"), "traces are there")

        def shown() -> str:
            result = mqadmin("queryMsgTraceById", "-i", seen.messages[0].msg_id, "-n", cluster.namesrv)
            return result.output

        await until(lambda: node.store.dispatcher.behind == 0, "they are indexed")
        said = await asyncio.to_thread(shown)
        assert "Sub" in said
        assert "success" in said

    run(main())
