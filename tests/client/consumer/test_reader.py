"""One queue's reader, at a broker made of answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from haservice.client.consumer.calls import PullAnswer, PullLimits, PullOutcome
from haservice.client.consumer.queues import reader as reader_module
from haservice.client.consumer.queues.in_flight import QueueLimits
from haservice.client.consumer.queues.reader import QueueReader, Reading
from haservice.client.consumer.stats import ConsumerStats
from haservice.client.consumer.subscription import Subscription
from haservice.client.message import Received
from haservice.errors import AnswerError, RemotingUnreachable
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.codes import ResponseCode
from tests.client.consumer.consuming import run, until

QUEUE = MessageQueue("T", "broker-a", 0)


def message(offset: int) -> Received:
    return Received(
        topic="T", body=b"%d" % offset, msg_id="", offset_msg_id="", queue=QUEUE, queue_offset=offset,
        physical_offset=0, store_bytes=100, born_timestamp_ms=0, born_host="", store_timestamp_ms=0,
        store_host="", reconsume_times=0, properties={},
    )  # fmt: skip


def found(*offsets: int, next_offset: int | None = None, suggested_id: int = 0) -> PullAnswer:
    messages = [message(offset) for offset in offsets]
    end = offsets[-1] + 1 if next_offset is None else next_offset
    return PullAnswer(PullOutcome.FOUND, messages, end, 0, 1000, suggested_id)


def nothing(status: PullOutcome, next_offset: int) -> PullAnswer:
    return PullAnswer(status, [], next_offset, 0, 1000, 0)


Script = Sequence[PullAnswer | Exception]


class Broker:
    """Calls and offsets: gives one answer of the script after the other, and then holds pulls for ever."""

    group = "g"

    def __init__(self, script: Script, start: int = 0) -> None:
        self.script = list(script)
        self.pulls: list[tuple[str, int, float]] = []
        self.addrs = {0: "master", 1: "slave"}
        self.offsets: dict[MessageQueue, int] = {}
        self.stored: list[int] = []
        self.delivered: list[int] = []
        self.unheard = 0
        self._start = start

    def any_of(self, name: str, broker_id: int = 0) -> str:
        return self.addrs.get(broker_id) or self.addrs[min(self.addrs)]

    async def pull(self, addr: str, queue: MessageQueue, offset: int, *_: object, **kw: object) -> PullAnswer:
        self.pulls.append((addr, offset, asyncio.get_running_loop().time()))
        if not self.script:
            await asyncio.Event().wait()
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def current(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        self.offsets[queue] = offset

    async def commit(self, queues: object = None) -> None:
        self.stored.append(self.offsets[QUEUE])

    async def begin_at(self, queue: MessageQueue) -> int:
        return self._start

    def note_unheard(self, name: str) -> None:
        self.unheard += 1

    def reader(self, **limits: int) -> QueueReader:
        this: Any = self
        reading = Reading(
            calls=this, offsets=this, stats=ConsumerStats(), limits=QueueLimits(**limits), pull_limits=PullLimits(),
            begin_at=self.begin_at, deliver=self._deliver, on_unheard=self.note_unheard,
        )  # fmt: skip
        return QueueReader(QUEUE, Subscription("T"), reading)

    def _deliver(self, _: QueueReader, messages: Sequence[Received]) -> None:
        self.delivered += [one.queue_offset for one in messages]


def reading(broker: Broker, then: Callable[[QueueReader], Awaitable[None]], **limits: int) -> None:
    async def main() -> None:
        reader = broker.reader(**limits)
        reader.start()
        try:
            await then(reader)
        finally:
            reader.drop()
            await reader.stopped()

    run(main())


async def consume(reader: QueueReader, *offsets: int) -> None:
    assert reader.in_flight is not None
    reader.consumed(reader.in_flight, [message(offset) for offset in offsets])


def test_pulls_follow_each_other_and_the_offset_follows_what_is_consumed() -> None:
    broker = Broker([found(5, 6), nothing(PullOutcome.NO_MATCHED_MESSAGE, 20), found(20, next_offset=25)], 5)

    async def then(reader: QueueReader) -> None:
        await until(lambda: len(broker.pulls) == 4, "all is pulled")
        assert [offset for _, offset, _ in broker.pulls] == [5, 7, 20, 25]
        assert broker.delivered == [5, 6, 20]
        await consume(reader, 6)
        assert broker.offsets[QUEUE] == 5
        await consume(reader, 5, 20)
        assert broker.offsets[QUEUE] == 25

    reading(broker, then)


def test_a_full_queue_is_pulled_again_when_something_is_consumed() -> None:
    broker = Broker([found(0, 1, 2)])

    async def then(reader: QueueReader) -> None:
        await until(lambda: broker.delivered == [0, 1, 2], "three are there")
        await asyncio.sleep(0.05)
        assert len(broker.pulls) == 1
        await consume(reader, 0)
        await asyncio.sleep(0.05)
        assert len(broker.pulls) == 1
        await consume(reader, 1)
        await until(lambda: len(broker.pulls) == 2, "there is room")

    reading(broker, then, messages_max=2)


def test_an_offset_that_retention_took_is_passed_over_and_what_is_in_memory_still_counts() -> None:
    broker = Broker([found(0, 1), nothing(PullOutcome.OFFSET_MOVED, 100), found(100)])

    async def then(reader: QueueReader) -> None:
        await until(lambda: broker.delivered == [0, 1, 100], "it goes on behind the gap")
        await consume(reader, 0, 100)
        assert broker.offsets[QUEUE] == 1
        await consume(reader, 1)
        assert broker.offsets[QUEUE] == 101

    reading(broker, then)


def test_a_log_that_was_cut_is_read_again_when_what_was_pulled_before_is_consumed() -> None:
    broker = Broker([found(0, 1, 2, 3), nothing(PullOutcome.OFFSET_MOVED, 2), found(2)])

    async def then(reader: QueueReader) -> None:
        await until(lambda: len(broker.pulls) == 2, "the broker has said so")
        await consume(reader, 0, 1, 2)
        await asyncio.sleep(0.05)
        assert len(broker.pulls) == 2
        await consume(reader, 3)
        await until(lambda: broker.delivered == [0, 1, 2, 3, 2], "the new message with that offset has come")
        assert broker.stored == [2]
        await consume(reader, 2)
        assert broker.offsets[QUEUE] == 3

    reading(broker, then)


def test_a_broker_that_has_nothing_and_does_not_wait_is_asked_a_few_times_a_second() -> None:
    """A slave answers so that does not have what its dead master had."""
    broker = Broker([nothing(PullOutcome.NO_MATCHED_MESSAGE, 7)] * 3, 7)

    async def then(_: QueueReader) -> None:
        await until(lambda: len(broker.pulls) == 4, "it is asked again")
        times = [when for _, _, when in broker.pulls]
        assert all(two - one >= reader_module.STILL_S for one, two in itertools.pairwise(times))

    reading(broker, then)


def test_the_broker_that_an_answer_suggests_is_asked_next_and_the_master_after_a_failure() -> None:
    broker = Broker([found(0, suggested_id=1), RemotingUnreachable("slave", "gone"), found(1)])

    async def then(_: QueueReader) -> None:
        await until(lambda: len(broker.pulls) == 4, "all is pulled")
        assert [addr for addr, _, _ in broker.pulls] == ["master", "slave", "master", "master"]

    reading(broker, then)


def test_a_held_pull_is_left_when_its_broker_is_the_one_to_ask_no_more() -> None:
    broker = Broker([])

    async def then(reader: QueueReader) -> None:
        await until(lambda: len(broker.pulls) == 1, "it is held")
        reader.look_again()
        reader.leave("somebody else")
        await asyncio.sleep(0.02)
        assert len(broker.pulls) == 1
        broker.addrs = {0: "new master"}
        reader.look_again()
        await until(lambda: len(broker.pulls) == 2, "the new master is asked")
        assert broker.pulls[1][:2] == ("new master", 0)
        reader.halt()
        reader.leave("new master")
        await asyncio.sleep(0.02)
        assert len(broker.pulls) == 2

    reading(broker, then)


def test_a_route_that_changes_ends_the_wait_after_a_refusal() -> None:
    broker = Broker([AnswerError("master", ResponseCode.TOPIC_NOT_EXIST, "gone")])

    async def then(reader: QueueReader) -> None:
        await until(lambda: len(broker.pulls) == 1, "it is refused")
        await asyncio.sleep(0.05)
        assert len(broker.pulls) == 1
        reader.look_again()
        await until(lambda: len(broker.pulls) == 2, "it is asked again", 2)

    reading(broker, then)


def test_a_subscription_that_the_broker_has_not_heard_is_told_by_a_heartbeat() -> None:
    broker = Broker([AnswerError("master", ResponseCode.SUBSCRIPTION_NOT_EXIST, ""), found(0)])

    async def then(_: QueueReader) -> None:
        await until(lambda: broker.delivered == [0], "it has come")
        assert broker.unheard == 1

    reading(broker, then)


def test_a_broker_that_is_on_its_way_up_or_down_is_asked_again_soon() -> None:
    """A promotion takes less than what a pull waits for that was refused."""
    broker = Broker(
        [AnswerError("master", ResponseCode.SERVICE_NOT_AVAILABLE, "shutting down")] * 3 + [found(0)]
    )

    async def then(_: QueueReader) -> None:
        await until(lambda: broker.delivered == [0], "it has come", reader_module.REFUSED_S - 1)

    reading(broker, then)


def test_a_pause_leaves_the_pull_that_is_held() -> None:
    broker = Broker([])

    async def then(reader: QueueReader) -> None:
        await until(lambda: len(broker.pulls) == 1, "it is held")
        reader.paused = True
        broker.script.append(found(0))
        await asyncio.sleep(0.05)
        assert (len(broker.pulls), broker.delivered) == (1, [])
        reader.paused = False
        await until(lambda: broker.delivered == [0], "it goes on")

    reading(broker, then)


def test_after_a_seek_what_was_pulled_before_does_not_count() -> None:
    broker = Broker([found(0, 1)])

    async def then(reader: QueueReader) -> None:
        await until(lambda: len(broker.pulls) == 2, "it is held")
        before = reader.in_flight
        assert before is not None
        reader.seek(50)
        await until(lambda: len(broker.pulls) == 3, "it is asked for the other offset")
        assert broker.pulls[2][1] == 50
        reader.consumed(before, [message(0), message(1)])
        assert broker.offsets[QUEUE] == 50
        assert not reader.is_current(before)

    reading(broker, then)


def test_a_broker_that_is_away_is_one_line_in_the_log_for_all_its_queues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker([RemotingUnreachable("master", "refused")] * 2)

    async def main() -> None:
        first = broker.reader()
        other = QueueReader(MessageQueue("T", "broker-a", 1), Subscription("T"), first._reading)
        for one in (first, other):
            one.start()
        await until(lambda: len(broker.pulls) >= 4, "both have pulled again")
        for one in (first, other):
            one.halt()
            await one.stopped()

    run(main())
    assert len([one for one in caplog.records if "pull failed" in one.getMessage()]) == 1
