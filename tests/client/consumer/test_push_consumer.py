"""Push consumers at brokers of ours."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from haservice.client.consumer.callback.handler import RetryLater
from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.push_consumer import AsyncPushConsumer, PushConsumer
from haservice.client.consumer.queues.in_flight import QueueLimits
from haservice.client.consumer.queues.offsets import ConsumeFrom
from haservice.client.consumer.queues.reader import QueueReader
from haservice.client.message import Received
from haservice.client.options import ClientOptions
from haservice.client.session import Session
from haservice.errors import AnswerError
from haservice.remoting.bodies.clients import KVTable
from haservice.remoting.command import RemotingCommand
from tests.client.consumer.consuming import Seen, push, run, until
from tests.pipeline.brokers import Cluster, properties_of, stored
from tests.support.brokers import addr_of
from tests.support.waiting import PATIENCE_S, wait_until

# A message that is not consumed comes again after a second.
QUICK = {"message_delay_levels": "1s 1s 1s 1s 1s 1s"}


def queues_of(*consumers: AsyncPushConsumer) -> list[int]:
    """How many queues of the topic each has."""
    return [len([queue for queue in one.assignment() if queue.topic == "Orders"]) for one in consumers]


def readers_of(consumer: AsyncPushConsumer) -> list[QueueReader]:
    """Those of the topic."""
    return [one for one in consumer._member.readers.values() if one.queue.topic == "Orders"]


def test_messages_come_to_the_callback_and_are_not_there_again_after_a_restart(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=100)

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen):
            await until(lambda: len(seen.messages) >= 100, "all have come")
        assert seen.numbers == list(range(100))
        message = seen.messages[0]
        assert (message.topic, message.queue.topic, message.queue.broker_name) == (
            "Orders",
            "Orders",
            "broker-a",
        )
        assert (message.msg_id, message.keys) == (f"{int(message.body):032X}", (f"key-{int(message.body)}",))
        await asyncio.to_thread(cluster.fill, node, first=100, count=10)
        again = Seen()
        async with push(cluster, "g", again):
            await until(lambda: len(again.messages) >= 10, "the new ones have come")
        assert again.numbers == list(range(100, 110))

    run(main())


def test_a_coroutine_function_runs_on_the_loop_as_often_at_a_time_as_there_are_workers(
    cluster: Cluster,
) -> None:
    node = cluster.start()
    cluster.fill(node, count=40)
    seen: list[Received] = []
    running = most = 0

    async def callback(message: Received) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        seen.append(message)

    async def main() -> None:
        async with push(cluster, "g", callback, consume_threads=5):
            await until(lambda: len(seen) == 40, "all have come")
        assert most == 5

    run(main())


# Sharing


def test_members_share_the_queues_and_take_over_those_of_one_that_leaves(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=4)

    async def main() -> None:
        seen = [Seen(), Seen(), Seen()]
        members = [push(cluster, "g", one) for one in seen]
        for member in members:
            await member.start()
        await until(lambda: sorted(queues_of(*members)) == [1, 1, 2], "each has its part")
        for one in seen:
            one.messages.clear()
        await asyncio.to_thread(cluster.fill, node, first=100, count=40)
        await until(lambda: sum(len(one.messages) for one in seen) >= 40, "all have come")
        assert all(one.messages for one in seen)
        leaving = members.pop()
        await leaving.close()
        await until(lambda: queues_of(*members) == [2, 2], "who is left has all queues", 5)
        await asyncio.to_thread(cluster.fill, node, first=200, count=40)
        await until(lambda: sum(len(one.messages) for one in seen) >= 80, "all have come")
        for member in members:
            await member.close()
        numbers = sorted(number for one in seen for number in one.numbers)
        assert numbers == [*range(100, 140), *range(200, 240)]

    run(main())


def test_two_groups_over_one_session_each_get_everything(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=20)

    async def main() -> None:
        first, second = Seen(), Seen()
        options = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
        async with (
            Session(ClientOptions(cluster.namesrv)) as session,
            AsyncPushConsumer("one", first, session=session, consuming=options).subscribe("Orders"),
            AsyncPushConsumer("two", second, session=session, consuming=options).subscribe("Orders"),
        ):
            await until(lambda: len(first.messages) == len(second.messages) == 20, "both have all")

    run(main())


def test_a_start_without_a_subscription_is_told_once_and_one_with_it_is_not(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.start()

    def warnings() -> list[str]:
        return [text for text in caplog.messages if "without a subscription" in text]

    async def main() -> None:
        async with push(cluster, "subscribed", Seen()):
            assert warnings() == []
        async with push(cluster, "g", Seen(), topic=None) as consumer:
            (warning,) = warnings()
            assert warning.endswith("subscribe(TOPIC) group=g")
            await consumer.start()
            consumer.subscribe("Orders")
            assert len(warnings()) == 1

    run(main())


def test_a_tag_that_looks_like_several_is_told(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with push(cluster, "g", Seen(), topic=None) as consumer:
            consumer.subscribe("Orders", "TagA || TagB")
            assert "one tag" not in caplog.text
            consumer.subscribe("Orders", "TagA | TagB || TagC")

    run(main())
    (warning,) = [text for text in caplog.messages if "one tag" in text]
    assert warning.endswith("group=g topic=Orders tag='TagA | TagB'")


def test_a_topic_that_is_made_later_is_consumed_then(cluster: Cluster) -> None:
    node = cluster.start()

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen):
            await asyncio.to_thread(cluster.fill, node, count=8)
            await until(lambda: len(seen.messages) == 8, "all have come")

    run(main())


def test_subscriptions_may_change_while_it_runs(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, "Orders", 4)
    cluster.fill(node, "Bills", 4)

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen) as consumer:
            await until(lambda: len(seen.messages) == 4, "the first topic's have come")
            consumer.subscribe("Bills")
            consumer.unsubscribe("Orders")
            await until(lambda: len(seen.messages) == 8, "the second one's have come")
            await until(
                lambda: {queue.topic for queue in consumer.assignment()} == {"Bills", "%RETRY%g"}, "given up"
            )

    run(main())


# Filters


def test_tags_and_sql92(cluster: Cluster) -> None:
    node = cluster.start(broker={"enable_property_filter": True})
    cluster.fill(node, count=40)

    async def main() -> None:
        tagged, chosen = Seen(), Seen()
        by_tag = push(cluster, "tags", tagged, topic=None).subscribe("Orders", "TagA || Other")
        by_sql = push(cluster, "sql", chosen, topic=None).subscribe(
            "Orders", "TAGS = 'TagB' AND KEYS IN ('key-1', 'key-2', 'key-3')", sql=True
        )
        async with by_tag, by_sql:
            await until(lambda: len(tagged.messages) >= 20 and len(chosen.messages) >= 2, "they have come")
            await asyncio.to_thread(cluster.fill, node, first=40, count=2)
            await until(lambda: len(tagged.messages) >= 21, "a held pull brings more")
        assert tagged.numbers == list(range(0, 42, 2))
        assert chosen.numbers == [1, 3]

    run(main())


def test_a_broker_that_does_not_filter_by_sql92_is_told_of_at_the_start(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=4)

    async def main() -> None:
        with pytest.raises(AnswerError, match="enablePropertyFilter"):
            await push(cluster, "sql", Seen(), topic=None).subscribe("Orders", "a > 1", sql=True).__aenter__()

    run(main())


# Where a group begins


def test_a_new_group_begins_where_it_says(cluster: Cluster) -> None:
    # So a queue's messages count as on the disk, and the broker says nothing of a group that it does not know.
    node = cluster.start(broker={"access_message_in_memory_max_ratio": 0})
    cluster.fill(node, count=8)

    async def main() -> None:
        begun = time.time()
        await until(lambda: time.time() > begun + 0.1, "the clock goes on")
        between = time.time()
        await until(lambda: time.time() > between + 0.1, "the clock goes on")
        first, at, last = Seen(), Seen(), Seen()
        last_member = push(cluster, "last", last, consume_from=ConsumeFrom.LAST)
        async with last_member:
            await until(lambda: begun_everywhere(last_member), "it has begun")
            await asyncio.to_thread(cluster.fill, node, first=8, count=8)
            async with (
                push(cluster, "first", first),
                push(cluster, "at", at, consume_from=ConsumeFrom.at(between)),
            ):
                await until(lambda: len(first.messages) >= 16, "FIRST has all")
                await until(lambda: set(at.numbers) >= set(range(8, 16)), "those from then on have come")
                await until(lambda: len(last.messages) == 8, "LAST has what came after it")
        assert last.numbers == list(range(8, 16))
        assert at.numbers == list(range(8, 16))

    def begun_everywhere(consumer: AsyncPushConsumer) -> bool:
        readers = readers_of(consumer)
        return len(readers) == 4 and all(one.in_flight is not None for one in readers)

    run(main())


@pytest.mark.parametrize("way", ["close", "give up"])
def test_a_new_group_at_the_end_of_a_quiet_queue_goes_on_there(cluster: Cluster, way: str) -> None:
    """Closed early, or at its first rebalance: its pulls are still held at the broker."""
    node = cluster.start(broker={"access_message_in_memory_max_ratio": 0})
    cluster.fill(node, count=8)

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen, consume_from=ConsumeFrom.LAST) as one:
            await until(lambda: len(readers_of(one)) == 4, "it has its queues")
            await until(
                lambda: all(reader.in_flight is not None for reader in readers_of(one)), "it begins in each"
            )
            if way == "give up":
                one.unsubscribe("Orders")
                await until(lambda: not readers_of(one), "it gives them up")
        await asyncio.to_thread(cluster.fill, node, first=8, count=8)
        async with push(cluster, "g", seen, consume_from=ConsumeFrom.LAST):
            await until(lambda: len(seen.messages) >= 8, "what came while no member ran is consumed")
        assert seen.numbers == list(range(8, 16))

    run(main())


@pytest.mark.parametrize("orderly", [False, True])
def test_a_member_that_stood_still_begins_at_what_others_have_stored(cluster: Cluster, orderly: bool) -> None:
    node = cluster.start()
    cluster.fill(node, count=8, queues=1)
    gate = threading.Event()

    def hold(message: Received) -> None:
        if message.body == b"2" and not gate.is_set():
            gate.wait(PATIENCE_S)

    async def main() -> None:
        seen, now_s = Seen(hold), [1000.0]
        one = push(cluster, "g", seen, orderly=orderly, consume_threads=1)
        one._member._clock_s = lambda: now_s[0]
        async with one:
            await until(lambda: len(seen.messages) == 3, "it is at the third message")
            node.offsets.commit("g", "Orders", 0, 6)  # another member has gone on meanwhile
            now_s[0] += 150.0
            assert await one.commit()
            assert node.offsets.query("g", "Orders", 0) == 6
            gate.set()
            await until(lambda: len(seen.messages) >= 5, "it goes on")
            assert await one.commit()
        assert seen.numbers == [0, 1, 2, 6, 7]
        assert node.offsets.query("g", "Orders", 0) == 8

    run(main())


# What is not consumed


def test_a_message_that_is_not_consumed_comes_again_and_is_a_dead_letter_at_last(cluster: Cluster) -> None:
    node = cluster.start(log=QUICK)
    cluster.fill(node, count=4)

    def fail(message: Received) -> None:
        if message.body == b"1":
            raise ValueError("not this one")

    async def main() -> None:
        seen = Seen(fail)
        async with push(cluster, "g", seen, max_reconsume_times=2):
            await until(lambda: stored(node, "%DLQ%g"), "it is a dead letter")
            assert Counter(seen.bodies) == {b"0": 1, b"1": 3, b"2": 1, b"3": 1}
            tries = [message for message in seen.messages if message.body == b"1"]
            assert [message.reconsume_times for message in tries] == [0, 1, 2]
            assert {(message.topic, message.msg_id) for message in tries} == {("Orders", f"{1:032X}")}
            assert [message.queue.topic for message in tries] == ["Orders", "%RETRY%g", "%RETRY%g"]

    run(main())
    (dead,) = stored(node, "%DLQ%g")
    assert (dead.body, properties_of(dead)["RETRY_TOPIC"]) == (b"1", "Orders")


def test_a_callback_says_when_a_message_comes_again_or_that_it_is_over(cluster: Cluster) -> None:
    node = cluster.start(log={"message_delay_levels": "1s 2h 2h 2h"})
    cluster.fill(node, count=2)

    def ask(message: Received) -> None:
        if message.body == b"0" and message.reconsume_times == 0:
            raise RetryLater(1)
        if message.body == b"1":
            raise RetryLater(-1)

    async def main() -> None:
        seen = Seen(ask)
        async with push(cluster, "g", seen):
            await until(lambda: seen.bodies.count(b"0") == 2 and stored(node, "%DLQ%g"), "both are done with")
        assert Counter(seen.bodies) == {b"0": 2, b"1": 1}

    run(main())


def test_lists_of_messages_with_some_that_are_consumed(cluster: Cluster) -> None:
    node = cluster.start(log=QUICK)
    cluster.fill(node, count=12, queues=1)
    calls: list[list[int]] = []

    def callback(messages: Sequence[Received]) -> None:
        calls.append([int(message.body) for message in messages])
        if len(messages) > 1:
            raise RetryLater(1, consumed=len(messages) - 1)

    async def main() -> None:
        client = ClientOptions(cluster.namesrv)
        options = ConsumerOptions(consume_from=ConsumeFrom.FIRST, batch_max=4, consume_threads=1)
        consumer = AsyncPushConsumer("g", on_messages=callback, options=client, consuming=options)
        async with consumer.subscribe("Orders"):
            await until(lambda: sum(11 in call for call in calls) >= 2, "the last of each came again")
        assert calls[:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert {number for call in calls[3:] for number in call} == {3, 7, 11}

    run(main())


def test_a_message_whose_callback_takes_too_long_comes_again(cluster: Cluster) -> None:
    node = cluster.start(log=QUICK)
    cluster.fill(node, count=1)
    gate = threading.Event()

    def wait(message: Received) -> None:
        if message.reconsume_times == 0:
            gate.wait(PATIENCE_S)

    async def main() -> None:
        seen = Seen(wait)
        async with push(cluster, "g", seen, consume_timeout_s=0.2, consume_threads=2):
            await until(lambda: len(seen.messages) == 2, "it has come again")
            gate.set()

    run(main())


# Bounds, pauses, the end


def test_messages_behind_a_call_that_hangs_are_no_dead_letters(cluster: Cluster) -> None:
    node = cluster.start(log={"message_delay_levels": "1s 1s 1s 1s"})
    cluster.fill(node, count=4, queues=1)
    gate = threading.Event()

    def hang(message: Received) -> None:
        if len(seen.messages) == 1:
            gate.wait(PATIENCE_S)

    seen = Seen(hang)

    async def main() -> None:
        limits = {"consume_threads": 1, "consume_timeout_s": 0.1, "max_reconsume_times": 1}
        async with push(cluster, "g", seen, **limits):
            await until(lambda: stored(node, "%RETRY%g"), "the call that hangs has timed out")
            await asyncio.sleep(0.3)  # what waits behind it would have, too
            gate.set()
            await until(lambda: len(seen.messages) >= 5, "all are seen, one of them twice")
        assert set(seen.numbers) == {0, 1, 2, 3}

    run(main())
    assert stored(node, "%DLQ%g") == []


def test_no_more_is_pulled_than_the_limits_allow(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=100, queues=1)
    gate = threading.Event()

    async def main() -> None:
        seen = Seen(lambda _: gate.wait(PATIENCE_S) and None)
        async with push(
            cluster, "g", seen, limits=QueueLimits(messages_max=10), pull_batch=8, consume_threads=2
        ) as consumer:
            await until(lambda: readers_of(consumer), "it has its queues")
            (reader,) = [one for one in readers_of(consumer) if one.queue.queue_id == 0]
            await until(lambda: reader.in_flight and reader.in_flight.full, "it is full")
            await asyncio.sleep(0.2)
            assert len(reader.in_flight or ()) == 16
            gate.set()
            await until(lambda: len(seen.messages) == 100, "all have come")

    run(main())


def test_a_pause_ends_with_resume(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=4)

    async def main() -> None:
        seen = Seen()
        consumer = push(cluster, "g", seen)
        consumer.pause()
        async with consumer:
            await until(lambda: queues_of(consumer) == [4], "it has its queues")
            await asyncio.sleep(0.2)
            assert seen.messages == []
            consumer.resume()
            await until(lambda: len(seen.messages) == 4, "they have come")

    run(main())


def test_close_waits_for_calls_that_run_and_what_was_not_begun_comes_to_the_next(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=20, queues=1)
    gate = threading.Event()

    async def main() -> None:
        seen = Seen(lambda _: gate.wait(PATIENCE_S) and None)
        consumer = push(cluster, "g", seen, consume_threads=1)
        await consumer.start()
        await until(lambda: len(seen.messages) == 1, "the first call runs")
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        gate.set()
        await closing
        await consumer.close()
        later = Seen()
        async with push(cluster, "g", later):
            await until(lambda: len(later.messages) >= 20 - len(seen.messages), "the others have come")
        assert sorted(seen.numbers + later.numbers) == list(range(20))

    run(main())


def test_a_callback_and_a_list_callback_exclude_each_other(cluster: Cluster) -> None:
    async def main() -> None:
        for given in ({}, {"on_messages": print, "on_message": print}):
            with pytest.raises(ValueError, match="one of on_message and on_messages"):
                AsyncPushConsumer("g", options=ClientOptions(cluster.namesrv), **given)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="batch_max=0"):
            ConsumerOptions(batch_max=0)

    run(main())


# Broadcasting


def test_broadcasting_gives_every_member_everything_and_goes_on_after_a_restart(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.start()
    cluster.fill(node, count=20)

    def fail(message: Received) -> None:
        if message.body == b"3":
            raise ValueError("nobody brings it again")

    def member(name: str, seen: Seen) -> AsyncPushConsumer:
        client = ClientOptions(cluster.namesrv, instance_name=name)
        options = ConsumerOptions(
            broadcasting=True, consume_from=ConsumeFrom.FIRST, offsets_directory=tmp_path / "offsets"
        )
        return AsyncPushConsumer("g", seen, options=client, consuming=options).subscribe("Orders")

    async def main() -> None:
        first, second = Seen(fail), Seen()
        async with member("one", first), member("two", second):
            await until(lambda: len(first.messages) == len(second.messages) == 20, "both have all")
        await asyncio.to_thread(cluster.fill, node, first=20, count=4)
        again = Seen()
        async with member("one", again):
            await until(lambda: len(again.messages) == 4, "it goes on where it was")
        assert again.numbers == [20, 21, 22, 23]

    run(main())
    files = sorted(path.parent.parent.name for path in (tmp_path / "offsets").rglob("offsets.json"))
    assert files == ["127.0.0.1@one", "127.0.0.1@two"]
    assert stored(node, "%RETRY%g") == []


# Offsets


def test_an_offset_that_retention_took_is_passed_over(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=4, queues=1)

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen) as consumer:
            await until(lambda: len(seen.messages) == 4, "all have come")
            (reader,) = [one for one in readers_of(consumer) if one.queue.queue_id == 0]
            reader.seek(1000)  # beyond the end: the broker says where it goes on
            await until(
                lambda: reader.in_flight is not None and reader.in_flight.pulled_to == 4, "it goes on"
            )
            await asyncio.to_thread(cluster.fill, node, first=4, count=1, queues=1)
            await until(lambda: len(seen.messages) == 5, "what is new comes")

    run(main())


# For threads


def test_a_push_consumer_for_threads(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=20)
    seen = Seen()
    consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
    with PushConsumer("g", seen, ClientOptions(cluster.namesrv), consuming=consuming) as consumer:
        consumer.subscribe("Orders", "TagA")
        wait_until(lambda: len(seen.messages) == 10, "they have come")
        consumer.pause()
        consumer.resume()
        assert consumer.commit()
        assert len([queue for queue in consumer.assignment() if queue.topic == "Orders"]) == 4
        consumer.unsubscribe("Orders")
        wait_until(lambda: {one.topic for one in consumer.assignment()} <= {"%RETRY%g"}, "given up")
    assert seen.numbers == list(range(0, 20, 2))


# The slave


def test_who_is_far_behind_reads_from_the_slave_that_the_master_names(cluster: Cluster) -> None:
    # All messages count as on the disk, whose readers the master sends away.
    node = cluster.start(broker={"slave_read_enable": True, "access_message_in_memory_max_ratio": 0})
    slave = cluster.start_slave(
        node, broker={"slave_read_enable": True, "access_message_in_memory_max_ratio": 0}
    )
    cluster.fill(node, count=200)
    wait_until(lambda: slave.store.log.end >= node.store.log.end, "the slave has all")
    wait_until(lambda: slave.store.dispatcher.behind == 0, "and in its queues")

    def gets() -> int:
        table = KVTable.decode(cluster.client.call(addr_of(slave), RemotingCommand.request(28)).body).table
        return int(table["msgGetTotalTodayNow"])

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen):
            await until(lambda: len(seen.messages) >= 200, "all have come")
        assert seen.numbers == list(range(200))

    run(main())
    assert gets() > 0
