"""What mqadmin learns of a consumer, and does to it, through a broker of ours."""

from __future__ import annotations

import asyncio

from haservice.client.consumer.push_consumer import AsyncPushConsumer
from haservice.client.message import Received
from haservice.remoting.bodies.admin import ConsumerStatusBody
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import ConsumerStatusHeader
from tests.admin.asking import run as mqadmin
from tests.client.consumer.consuming import Seen, push, run, until
from tests.pipeline.brokers import Cluster
from tests.support.brokers import addr_of


async def asked(cluster: Cluster, *arguments: str) -> str:
    result = await asyncio.to_thread(mqadmin, *arguments, "-n", cluster.namesrv)
    assert result.exit_code == 0, result.output
    return result.output


def is_done(consumer: AsyncPushConsumer) -> bool:
    """Of what was pulled nothing is left."""
    return not any(reader.in_flight for reader in consumer._member.readers.values())


def test_consumer_connection_status_and_progress_name_it(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=8)

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen, orderly=True) as consumer:
            await until(lambda: len(seen.messages) == 8 and is_done(consumer), "all have been consumed")
            client_id = consumer.session.client_id
            shown = await asked(cluster, "consumerConnection", "-g", "g")
            assert client_id in shown
            assert "PYTHON" in shown
            assert "Orders" in shown
            shown = await asked(cluster, "consumerStatus", "-g", "g", "-i", client_id, "-s")
            assert "CONSUME_PASSIVELY" in shown
            assert "remoting" in shown or "MainThread" in shown
            await consumer.commit()
            assert "Orders" in await asked(cluster, "consumerProgress", "-g", "g")
            ask = RemotingCommand.request(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader("Orders", "g").encode()
            )
            answer = await asyncio.to_thread(cluster.client.call, addr_of(node), ask)
            (table,) = ConsumerStatusBody.decode(answer.body).consumer_table.values()
            assert {queue.queue_id: offset for queue, offset in table.items()} == dict.fromkeys(range(4), 2)

    run(main())


def test_reset_offset_by_time_brings_messages_again(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=8)

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen) as consumer:
            await until(lambda: len(seen.messages) == 8 and is_done(consumer), "all have been consumed")
            await consumer.commit()
            await asked(cluster, "resetOffsetByTime", "-g", "g", "-t", "Orders", "-s", "0", "-f", "true")
            await until(lambda: len(seen.messages) >= 16, "all have come again")
        assert seen.numbers == sorted([*range(8), *range(8)])

    run(main())


def test_a_message_is_consumed_directly(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=2)

    def fail(message: Received) -> None:
        if message.body == b"1" and len(seen.messages) > 2:
            raise ValueError("not again")

    seen = Seen(fail)

    async def main() -> None:
        async with push(cluster, "g", seen) as consumer:
            await until(lambda: len(seen.messages) == 2, "all have come")
            for message, verdict in zip(
                sorted(seen.messages, key=lambda one: one.body),
                ("CR_SUCCESS", "CR_THROW_EXCEPTION"),
                strict=True,
            ):
                shown = await asked(
                    cluster, "queryMsgById", "-i", message.offset_msg_id, "-g", "g",
                    "-d", consumer.session.client_id,
                )  # fmt: skip
                assert verdict in shown
        assert [message.topic for message in seen.messages] == ["Orders"] * 4

    run(main())
