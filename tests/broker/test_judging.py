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
        self.judging = Judging(self.queue, self.offload, lambda _: (b"%d" % wanted).__eq__, self.wake)

    def offload(self, function: Callable[..., Any], /, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.jobs.append((future, lambda: function(*args)))
        return future

    def wake(self, pulls: Iterable[HeldPull]) -> None:
        self.woken += pulls

    def hold(self, wanted: int) -> HeldPull:
        pull = HeldPull(None, KEY, wanted, None, ("a = 1", ""))  # type: ignore[arg-type]
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
