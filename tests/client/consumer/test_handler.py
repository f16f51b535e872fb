"""What becomes of messages by what the callback does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from haservice.client.consumer.callback.handler import ConsumeOutcome, ConsumeTimeout, Handler, RetryLater
from haservice.deadline import Deadline
from tests.client.consumer.consuming import until
from tests.support.waiting import PATIENCE_S

Way = Callable[..., Handler[Any]]


@pytest.fixture(params=["thread", "loop"])
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """A handler around a plain function, as it is or as a coroutine function."""
    made: list[Handler[Any]] = []

    def make(callback: Callable[[Any], None], **kw: Any) -> Handler[Any]:
        async def on_loop(given: Any) -> None:
            callback(given)

        options = {"takes_lists": False, "threads": 2, "timeout_s": PATIENCE_S, **kw}
        handler: Handler[Any] = Handler(callback if request.param == "thread" else on_loop, **options)
        made.append(handler)
        return handler

    yield make
    assert all(handler.stop(Deadline(PATIENCE_S)) for handler in made)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(main())  # type: ignore[arg-type]


@pytest.mark.usefixtures("way")
def test_a_callback_that_returns_has_consumed_and_one_that_raises_has_not(way: Way) -> None:
    def callback(one: int) -> str:
        if one == 2:
            raise KeyError("two")
        return "anything"

    async def main() -> list[ConsumeOutcome[int]]:
        return await way(callback).call([[1], [2], [3]])

    outcomes = run(main)
    assert [list(one.failed) for one in outcomes] == [[], [2], []]
    assert isinstance(outcomes[1].error, KeyError)
    assert outcomes[1].delay_level == 0


def test_a_failure_stops_where_order_counts(way: Way) -> None:
    def callback(one: int) -> None:
        if one == 2:
            raise RetryLater(delay_s=0.5)

    async def main() -> list[ConsumeOutcome[int]]:
        return await way(callback).call(
            [[1], [2], [3]], go_on=lambda before: before is None or before.error is None
        )

    outcomes = run(main)
    assert [one.consumed for one in outcomes] == [1, 0]
    assert outcomes[1].delay_s == 0.5


def test_a_callback_that_takes_lists_says_how_many_are_consumed(way: Way) -> None:
    def callback(messages: list[int]) -> None:
        raise RetryLater(3, consumed=len(messages) - 1)

    async def main() -> list[ConsumeOutcome[int]]:
        return await way(callback, takes_lists=True).call([[1, 2, 3], [4]])

    first, second = run(main)
    assert (first.consumed, list(first.failed), first.delay_level) == (2, [3], 3)
    assert (second.consumed, list(second.failed)) == (0, [4])


@pytest.mark.parametrize(("said", "counted"), [(-1, 0), (7, 2)])
def test_a_number_that_cannot_be_is_cut(way: Way, said: int, counted: int) -> None:
    def callback(messages: list[int]) -> None:
        raise RetryLater(consumed=said)

    async def main() -> list[ConsumeOutcome[int]]:
        return await way(callback, takes_lists=True).call([[1, 2]])

    assert run(main)[0].consumed == counted


def test_a_thread_that_takes_too_long_is_given_up_and_begins_nothing_else() -> None:
    gate, seen = threading.Event(), []

    def callback(one: int) -> None:
        seen.append(one)
        if one == 2:
            gate.wait(PATIENCE_S)

    async def main() -> list[ConsumeOutcome[int]]:
        handler: Handler[int] = Handler(callback, takes_lists=False, threads=1, timeout_s=0.05)
        try:
            return await handler.call([[1], [2], [3]])
        finally:
            gate.set()
            assert handler.stop(Deadline(PATIENCE_S))

    outcomes = run(main)
    assert [one.consumed for one in outcomes] == [1, 0]
    assert isinstance(outcomes[1].error, ConsumeTimeout)
    assert seen == [1, 2]


def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    cancelled = []

    async def callback(one: int) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.append(one)
            raise

    async def main() -> list[ConsumeOutcome[int]]:
        return await Handler(callback, takes_lists=False, threads=1, timeout_s=0.05).call([[1], [2]])

    assert [type(one.error) for one in run(main)] == [ConsumeTimeout, ConsumeTimeout]
    assert cancelled == [1, 2]


def test_an_object_whose_call_is_a_coroutine_function_runs_on_the_loop() -> None:
    class Callback:
        async def __call__(self, one: int) -> None:
            assert threading.current_thread() is threading.main_thread()

    handler: Handler[int] = Handler(Callback(), takes_lists=False, threads=1, timeout_s=1)
    assert handler.on_loop

    async def main() -> list[ConsumeOutcome[int]]:
        return await handler.call([[1]])

    assert run(main)[0].error is None


def test_a_level_that_no_broker_has_is_refused() -> None:
    with pytest.raises(ValueError, match="delay level -2"):
        RetryLater(-2)


def test_a_callback_that_exits_has_raised_and_the_next_call_is_made(way: Way) -> None:
    def callback(one: int) -> None:
        if one == 1:
            raise SystemExit(3)
        if one == 2:
            raise asyncio.CancelledError

    async def main() -> list[ConsumeOutcome[int]]:
        return await way(callback, threads=1).call([[1], [2], [3]])

    outcomes = run(main)
    assert [type(one.error) for one in outcomes] == [SystemExit, asyncio.CancelledError, type(None)]


class Awaited:
    """A callback whose calls give coroutines, as a decorated coroutine function may: it is a plain function."""

    def __init__(self, *, held: bool = False) -> None:
        self.ended: list[int | str] = []
        self._held = held

    def __call__(self, one: int) -> Any:
        return self._run(one)

    async def _run(self, one: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        try:
            await (asyncio.Event().wait() if self._held else asyncio.sleep(0))
        finally:
            self.ended.append(one)
        if one == 2:
            raise KeyError("two")


def test_a_coroutine_that_a_plain_function_returns_runs_on_the_loop() -> None:
    callback = Awaited()

    async def main() -> list[ConsumeOutcome[int]]:
        handler: Handler[int] = Handler(callback, takes_lists=False, threads=1, timeout_s=PATIENCE_S)
        found = await handler.call([[1], [2], [3]])
        assert await asyncio.to_thread(handler.stop, Deadline(PATIENCE_S))
        return found

    assert [type(one.error) for one in run(main)] == [type(None), KeyError, type(None)]
    assert callback.ended == [1, 2, 3]


def test_a_coroutine_that_a_plain_function_returns_is_cancelled_when_it_takes_too_long() -> None:
    callback = Awaited(held=True)

    async def main() -> list[ConsumeOutcome[int]]:
        handler: Handler[int] = Handler(callback, takes_lists=False, threads=1, timeout_s=0.05)
        found = await handler.call([[1], [2]])
        await until(lambda: callback.ended == [1], "the coroutine is cancelled")
        assert await asyncio.to_thread(handler.stop, Deadline(PATIENCE_S))
        return found

    (outcome,) = run(main)
    assert isinstance(outcome.error, ConsumeTimeout)


def test_a_generator_function_is_refused() -> None:
    def one_by_one(message: int) -> Iterator[int]:
        yield message

    async def each(message: int) -> AsyncIterator[int]:
        yield message

    for callback in (one_by_one, each):
        with pytest.raises(TypeError, match="is a generator function: its body never runs"):
            Handler(callback, takes_lists=False, threads=1, timeout_s=1)


def test_a_generator_that_comes_back_has_consumed_nothing() -> None:
    async def coroutine() -> Any:
        return (one for one in [1])

    for returned in (lambda: (one for one in [1]), coroutine):

        async def main(returned: Callable[[], Any] = returned) -> list[ConsumeOutcome[int]]:
            handler: Handler[int] = Handler(
                lambda message: returned(), takes_lists=False, threads=1, timeout_s=PATIENCE_S
            )
            found = await handler.call([[1]])
            assert await asyncio.to_thread(handler.stop, Deadline(PATIENCE_S))
            return found

        (outcome,) = run(main)
        assert (outcome.consumed, type(outcome.error)) == (0, TypeError)


def test_a_job_that_waits_for_a_thread_has_not_begun_its_time() -> None:
    """Messages behind a call that hangs: no call is no try."""
    gate, seen = threading.Event(), list[int]()

    def callback(one: int) -> None:
        seen.append(one)
        if one == 1:
            gate.wait(PATIENCE_S)

    async def main() -> list[list[ConsumeOutcome[int]]]:
        handler: Handler[int] = Handler(callback, takes_lists=False, threads=1, timeout_s=0.05)
        hung = await handler.call([[1], [2]])
        waiting = asyncio.create_task(handler.call([[2], [3]]))
        unwanted = asyncio.create_task(handler.call([[4]], go_on=lambda before: False))
        done, _ = await asyncio.wait([waiting], timeout=0.2)  # four times what a call may take
        assert not done
        gate.set()
        found = [hung, await waiting, await unwanted]
        assert await asyncio.to_thread(handler.stop, Deadline(PATIENCE_S))
        return found

    hung, waited, unwanted = run(main)
    assert [type(one.error) for one in hung] == [ConsumeTimeout]
    assert [one.error for one in waited] == [None, None]
    assert (unwanted, seen) == ([], [1, 2, 3])


def test_a_thread_is_waited_for_where_order_counts(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    async def main() -> list[ConsumeOutcome[int]]:
        handler: Handler[int] = Handler(
            lambda one: gate.wait(PATIENCE_S),
            takes_lists=False,
            threads=1,
            timeout_s=0.05,
            waits_for_threads=True,
        )
        call = asyncio.create_task(handler.call([[1]]))
        await until(lambda: "its queue waits" in caplog.text, "it is logged")
        assert not call.done()
        gate.set()
        found = await call
        assert await asyncio.to_thread(handler.stop, Deadline(PATIENCE_S))
        return found

    assert [one.error for one in run(main)] == [None]
