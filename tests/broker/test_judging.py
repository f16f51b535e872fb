"""Watches of held pulls, with work that ends when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from haservice.broker.pull.judging import Judging
from haservice.broker.pull.long_polling import HeldPull
from haservice.broker.pull.read_result import PullStatus, Scan

KEY = ("T", 0)


class Queue:
    """Messages whose properties are their offsets."""

    def __init__(self, end: int) -> None:
        self.end = end

    def indexed_beyond(self, topic: str, queue_id: int, offset: int) -> bool:
        return offset < self.end

    def select(
        self, topic: str, queue_id: int, offset: int, count: int, codes: Any, selector: Any, entries_max: int
    ) -> tuple[Scan, bytes]:
        if offset >= self.end:
            return Scan(PullStatus.OFFSET_OVERFLOW_ONE, offset, 0, self.end), b""
        selector(b"%d" % offset)
        return Scan(PullStatus.NO_MATCHED_MESSAGE, offset + 1, 0, self.end), b""


class Bench:
    """Pulls that wait for the message at `wanted`."""

    def __init__(self, wanted: int, end: int) -> None:
        self.queue = Queue(end)
        self.jobs: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self.woken: list[HeldPull] = []
        self.wanted = b"%d" % wanted
        self.asked: list[HeldPull] = []
        self.depends = 0
        self.judging = Judging(self.queue, self.offload, self.resolve, self.wake, lambda: self.depends)

    def offload(self, function: Callable[..., Any], /, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.jobs.append((future, lambda: function(*args)))
        return future

    def resolve(self, pull: HeldPull) -> Callable[[bytes], bool]:
        self.asked.append(pull)
        return self.wanted.__eq__

    def wake(self, pulls: Iterable[HeldPull]) -> None:
        self.woken += pulls

    def hold(self, wanted: int, expression: str = "a = 1") -> HeldPull:
        pull = HeldPull(None, KEY, wanted, None, (expression, ""))  # type: ignore[arg-type]
        self.judging.add(pull)
        return pull

    async def work(self) -> None:
        """Ends the job that is under way."""
        future, function = self.jobs.pop(0)
        future.set_result(function())
        for _ in range(3):
            await asyncio.sleep(0)


def test_a_pull_that_comes_amid_a_look_is_tried_with_what_lies_before() -> None:
    async def story() -> None:
        bench = Bench(wanted=2, end=10)
        bench.hold(5)
        late = bench.hold(1)  # while messages from 5 on are tried
        await bench.work()
        assert bench.woken == []
        await bench.work()
        assert (bench.woken, late.wanted) == ([late], 2)

    asyncio.run(story())


def test_a_message_asks_for_no_selector_again_until_what_it_depends_on_changes() -> None:
    async def story() -> None:
        bench = Bench(wanted=99, end=1)
        pulls = [bench.hold(1, f"a = {number}") for number in range(50)]
        for message in range(1, 6):
            bench.queue.end = message + 1
            bench.judging.arrived(KEY)
            await bench.work()
            assert len(bench.asked) == 50
        late = bench.hold(6, "b = 1")
        bench.depends += 1
        bench.queue.end += 1
        bench.judging.arrived(KEY)
        await bench.work()
        assert (bench.asked[50:], bench.woken) == ([*pulls, late], [])

    asyncio.run(story())


def test_a_pull_that_comes_late_catches_up_and_the_others_are_tried_no_message_twice() -> None:
    async def story() -> None:
        bench = Bench(wanted=3, end=8)
        early = bench.hold(4, "a = 1")
        await bench.work()
        late = bench.hold(2, "b = 1")
        await bench.work()
        assert (bench.woken, late.wanted) == ([late], 3)
        bench.judging.remove(early)
        assert (early.wanted, bench.jobs) == (8, [])

    asyncio.run(story())


def test_a_pull_that_leaves_amid_a_look_knows_of_no_message_that_it_was_not_tried_with() -> None:
    async def story() -> None:
        bench = Bench(wanted=99, end=8)
        early = bench.hold(4, "a = 1")
        await bench.work()
        late = bench.hold(2, "b = 1")
        bench.judging.remove(late)
        assert (late.wanted, early.wanted) == (2, 4)
        await bench.work()
        other = bench.hold(3, "b = 1")
        fresh = bench.hold(8, "c = 1")  # while messages from 3 on are tried
        bench.queue.end = 9
        bench.judging.arrived(KEY)
        await bench.work()
        for pull in (fresh, other):
            bench.judging.remove(pull)
        assert (other.wanted, fresh.wanted) == (9, 8)

    asyncio.run(story())
