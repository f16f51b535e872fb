"""Held pulls: woken by arrivals and by the mark, ended by deadlines and closed connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from haservice.broker.pull import long_polling
from haservice.broker.pull.long_polling import (
    ATTEMPTS_AT_ONCE,
    TICK_SECONDS,
    HeldPull,
    LongPolling,
    QueueKey,
)
from haservice.broker.pull.tag_filter import tag_codes


class Timers:
    """A loop whose clock moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.timers: list[Timer] = []
        self.soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(when, callback)
        self.timers.append(timer)
        return timer

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append((callback, args))

    def run_soon(self) -> int:
        calls, self.soon = self.soon, []
        for callback, args in calls:
            callback(*args)
        return len(calls)

    def advance(self, seconds: float) -> None:
        end = self.now_s + seconds
        while due := [timer for timer in self.pending if timer.when <= end]:
            first = min(due, key=lambda timer: timer.when)
            self.timers.remove(first)
            self.now_s = max(self.now_s, first.when)
            first.callback()
        self.now_s = end

    @property
    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]


class Timer:
    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Peer:
    def __init__(self) -> None:
        self.closed = False
        self.congested = False
        self.is_busy = False
        self.on_close: list[Callable[[Any], None]] = []
        self.on_writable: list[Callable[[], object]] = []

    @property
    def overloaded(self) -> bool:
        return self.congested or self.is_busy

    def when_writable(self, callback: Callable[[], object]) -> None:
        self.on_writable.append(callback)

    def read(self) -> None:
        """Takes everything that was written to it."""
        self.congested = self.is_busy = False
        callbacks, self.on_writable = self.on_writable, []
        for callback in callbacks:
            callback()

    def end(self) -> None:
        self.closed = True
        for callback in self.on_close:
            callback(self)


class StoryPull(HeldPull):
    """Is answered when the end of its queue in the story passes what it wants."""

    __slots__ = ("name", "story")

    def __init__(self, story: Story, name: str, peer: Peer, key: QueueKey, wanted: int, tags: str) -> None:
        super().__init__(peer, key, wanted, tag_codes(tags))
        self.story = story
        self.name = name

    def attempt(self, final: bool) -> bool:
        answers = self.story.answers
        self.story.attempts += 1
        assert self.name not in answers, "answered twice"
        if self.story.ends.get(self.key, 0) > self.wanted:
            answers[self.name] = "messages"
        elif final:
            answers[self.name] = "nothing"
        return self.name in answers

    def refuse(self) -> None:
        assert self.name not in self.story.answers, "answered twice"
        self.story.answers[self.name] = "refused"


class Story:
    """One LongPolling, a queue end per key, and what became of each pull."""

    def __init__(self, held_max: int = 100) -> None:
        self.timers = Timers()
        self.polling = LongPolling(held_max, self.timers)
        self.ends: dict[tuple[str, int], int] = {}
        self.answers: dict[str, str] = {}
        self.attempts = 0

    def hold(
        self,
        name: str,
        seconds: float = 15,
        *,
        wanted: int = 0,
        queue: int = 0,
        tags: str = "*",
        peer: Peer | None = None,
        below_mark: bool = False,
        text: str = "",
    ) -> bool:
        key = ("T", queue)

        pull = StoryPull(self, name, peer or Peer(), key, wanted, tags)
        pull.text, pull.text_bytes = text, len(text)
        pull.below_mark = below_mark
        return self.polling.hold(pull, seconds)

    def arrive(self, end: int, queue: int = 0, tag: str = "") -> int:
        """A message is indexed, then announced; returns how many calls to the loop that took."""
        self.ends["T", queue] = end
        self.polling.on_arrival([("T", queue, end, code_of(tag))])
        return self.timers.run_soon()


def code_of(tag: str) -> int:
    codes = tag_codes(tag)
    return min(codes) if codes else 0


def test_an_arrival_wakes_the_pulls_of_its_queue_only() -> None:
    story = Story()
    assert story.hold("a")
    assert story.hold("b", queue=1)
    assert story.arrive(1) == 1
    assert story.answers == {"a": "messages"}
    assert len(story.polling) == 1


def test_an_arrival_costs_nothing_for_pulls_of_other_queues() -> None:
    story = Story(held_max=3000)
    for number in range(2000):
        assert story.hold(f"pull {number}", queue=number % 1000)
    story.attempts = 0
    assert story.arrive(1, queue=7) == 1
    assert story.attempts == 2
    assert sorted(story.answers) == ["pull 1007", "pull 7"]
    assert story.arrive(2, queue=7) == 0, "nobody waits there any more"


def many(count: int = 2 * ATTEMPTS_AT_ONCE + 50) -> tuple[Story, list[Peer]]:
    story, peers = Story(held_max=1000), [Peer() for _ in range(count)]
    for number, peer in enumerate(peers):
        assert story.hold(f"pull {number}", peer=peer, seconds=10)
    story.attempts = 0
    return story, peers


def test_many_pulls_of_one_queue_wake_in_several_turns_of_the_loop() -> None:
    story, peers = many()
    story.arrive(1)
    assert (story.attempts, len(story.answers)) == (ATTEMPTS_AT_ONCE, ATTEMPTS_AT_ONCE)
    left = [number for number in range(len(peers)) if f"pull {number}" not in story.answers]
    peers[left[0]].end()
    story.timers.advance(0)
    assert (story.attempts, len(story.polling)) == (len(peers) - 1, 0)
    assert len(story.answers) == len(peers) - 1, "nobody looks for one whose connection has closed"


def test_many_pulls_that_expire_together_are_answered_in_several_turns_of_the_loop() -> None:
    story, peers = many()
    story.timers.now_s += 10 + TICK_SECONDS
    for answered in (ATTEMPTS_AT_ONCE, 2 * ATTEMPTS_AT_ONCE, len(peers)):
        (timer,) = story.timers.pending
        assert timer.when <= story.timers.now_s
        story.timers.timers.clear()
        timer.callback()
        assert (story.attempts, len(story.answers)) == (answered, answered)
    assert len(story.polling) == 0
    assert set(story.answers.values()) == {"nothing"}
    assert story.timers.pending == []


def test_with_nothing_held_an_arrival_costs_no_call_and_no_timer() -> None:
    story = Story()
    assert story.arrive(1) == 0
    assert story.timers.pending == []


def test_arrivals_of_other_queues_are_not_passed_on() -> None:
    story = Story()
    story.hold("a")
    assert story.arrive(1, queue=3) == 0


def test_one_pass_of_many_arrivals_is_one_call_and_one_answer() -> None:
    story = Story()
    story.hold("a")
    story.ends["T", 0] = 500
    story.polling.on_arrival([("T", 0, end, 0) for end in range(1, 501)])
    assert story.timers.run_soon() == 1
    assert story.answers == {"a": "messages"}


def test_a_message_of_another_tag_does_not_wake() -> None:
    story = Story()
    story.hold("a", tags="red || green")
    attempts = story.attempts
    story.polling.on_arrival([("T", 0, 1, code_of("blue"))])
    story.timers.run_soon()
    assert story.attempts == attempts
    story.arrive(2, tag="green")
    assert story.answers == {"a": "messages"}


def test_an_arrival_below_the_wanted_offset_does_not_wake() -> None:
    story = Story()
    story.hold("a", wanted=7)
    attempts = story.attempts
    story.polling.on_arrival([("T", 0, 7, 0)])
    story.timers.run_soon()
    assert story.attempts == attempts


def test_a_message_that_came_between_the_read_and_the_hold_is_found() -> None:
    story = Story()
    story.ends["T", 0] = 1
    assert story.hold("a")
    assert story.answers == {"a": "messages"}
    assert len(story.polling) == 0


def test_a_wake_that_finds_nothing_leaves_the_pull_held() -> None:
    story = Story()
    story.hold("a")
    story.polling.on_arrival([("T", 0, 1, 0)])  # announced, but not readable yet
    story.timers.run_soon()
    assert story.answers == {}
    assert len(story.polling) == 1
    story.timers.advance(16)
    assert story.answers == {"a": "nothing"}


@pytest.mark.parametrize("seconds", [0.001, 0.5, 3, 15, 30])
def test_each_pull_ends_at_its_own_deadline_never_before(seconds: float) -> None:
    story = Story()
    story.hold("other", 60, queue=1)
    story.hold("a", seconds)
    story.timers.advance(seconds - 0.0005)
    assert story.answers == {}
    story.timers.advance(TICK_SECONDS + 0.001)
    assert story.answers == {"a": "nothing"}


def test_a_later_hold_with_a_nearer_deadline_ends_first() -> None:
    story = Story()
    story.hold("long", 20)
    story.hold("short", 1)
    story.timers.advance(1.5)
    assert story.answers == {"short": "nothing"}
    story.timers.advance(19)
    assert story.answers == {"short": "nothing", "long": "nothing"}
    assert story.timers.pending == []


def test_a_hold_is_never_longer_than_the_bound() -> None:
    story = Story()
    story.hold("a", 10**15)
    story.timers.advance(101)
    assert story.answers == {"a": "nothing"}


@pytest.mark.parametrize("seconds", [0, -1, -(10**15)])
def test_no_time_to_wait_is_no_hold(seconds: float) -> None:
    assert not Story().hold("a", seconds)


def test_above_the_bound_pulls_are_not_held() -> None:
    story = Story(held_max=2)
    assert story.hold("a")
    assert story.hold("b")
    assert not story.hold("c")
    story.arrive(1)
    assert story.hold("d", wanted=1)


def test_one_connection_cannot_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "HELD_PER_CONNECTION_MAX", 2)
    story = Story()
    greedy = Peer()
    assert [story.hold(f"{n}", peer=greedy) for n in range(3)] == [True, True, False]
    assert story.hold("other")


def test_texts_of_held_pulls_are_bounded_and_count_once_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "PULL_BYTES", 1)
    monkeypatch.setattr(long_polling, "HELD_BYTES_PER_CONNECTION_MAX", 105)
    monkeypatch.setattr(long_polling, "HELD_BYTES_MAX", 170)
    story, one, other = Story(), Peer(), Peer()

    def holds(text: str, peer: Peer) -> bool:
        return story.hold(f"{len(story.polling)}", peer=peer, text=text)

    assert [holds(text, one) for text in ("t" * 60, "t" * 60, "t" * 60, "u" * 60, "v" * 40, "")] == [
        *(True, True, True, False, True, True),
    ]
    assert [holds("t" * 60, other), holds("w" * 50, other), holds("x" * 30, other)] == [True, False, False]
    held = story.polling._bytes
    assert held.bytes == 166
    story.arrive(1)
    assert len(story.answers) == 6
    assert (held.bytes, held._of, held._texts) == (0, {}, {})


def test_a_closed_connection_takes_its_pulls_along() -> None:
    story = Story()
    leaving, staying = Peer(), Peer()
    story.hold("a", peer=leaving)
    story.hold("b", peer=leaving, queue=1)
    story.hold("c", peer=staying)
    leaving.end()
    assert len(story.polling) == 1
    story.arrive(1)
    story.timers.advance(60)
    assert story.answers == {"c": "messages"}
    assert not story.hold("d", peer=leaving)


def test_a_connection_that_polls_for_long_gathers_no_callbacks() -> None:
    story = Story()
    peer = Peer()
    for turn in range(50):
        story.hold(f"turn {turn}", wanted=turn, peer=peer)
        story.arrive(turn + 1)
    assert len(peer.on_close) == 1
    assert len(story.answers) == 50


def test_the_mark_wakes_the_pulls_that_wait_below_it_and_arrivals_do_not() -> None:
    story = Story()
    story.hold("below", below_mark=True)
    story.hold("other", queue=1)
    attempts = story.attempts
    story.polling.on_arrival([("T", 0, 1, 0)])
    story.timers.run_soon()
    assert story.attempts == attempts
    story.ends["T", 0] = 1
    story.polling.on_mark()
    assert story.timers.run_soon() == 1
    assert story.answers == {"below": "messages"}
    story.polling.on_mark()
    assert story.timers.run_soon() == 0


@pytest.mark.parametrize("look", [1, 2, None])
def test_the_mark_may_move_after_any_look(look: int | None) -> None:
    """A message is indexed just before the hold, above the mark, which moves right after the n-th look."""
    story = Story()
    looks = 0
    marked = False

    def move_mark() -> None:
        nonlocal marked
        marked = True
        story.polling.on_mark()

    class Pull(HeldPull):
        def attempt(self, final: bool) -> bool:
            nonlocal looks
            looks += 1
            found = marked
            self.below_mark = not found
            if looks == look:
                move_mark()
            return found

    assert story.polling.hold(Pull(Peer(), ("T", 0), 0, None), 15)
    if look is None:
        move_mark()
    story.timers.run_soon()
    assert len(story.polling) == 0


def test_a_broker_that_stops_refuses_what_is_held_and_what_comes_after() -> None:
    """A stock client waits 30 s for a pull that is not answered, though the connection is closed."""
    story = Story()
    story.hold("a")
    story.hold("b", queue=1)
    story.polling.stop()
    assert len(story.polling) == 0
    assert story.timers.pending == []
    assert story.arrive(1) == 0
    assert story.hold("late", queue=2)
    assert story.answers == {"a": "refused", "b": "refused", "late": "refused"}
    assert len(story.polling) == 0


def test_an_arrival_is_never_lost_between_two_threads() -> None:
    """The dispatcher indexes and announces while the loop reads and holds, over and over."""
    story = Story()
    rounds = 2000
    indexed = threading.Semaphore(0)
    wanted = threading.Semaphore(0)

    def dispatch() -> None:
        for end in range(1, rounds + 1):
            wanted.acquire()
            story.ends["T", 0] = end
            story.polling.on_arrival([("T", 0, end, 0)])
            indexed.release()

    thread = threading.Thread(target=dispatch)
    thread.start()
    for turn in range(rounds):
        wanted.release()
        story.hold(f"turn {turn}", wanted=turn)
        indexed.acquire()
        story.timers.run_soon()
        assert story.answers.pop(f"turn {turn}") == "messages"
    thread.join()


def test_a_pull_of_a_peer_that_does_not_read_waits_until_it_does() -> None:
    story, peer = Story(), Peer()
    story.hold("first", peer=peer)
    story.hold("second", peer=peer, seconds=5)
    peer.congested = True
    story.arrive(1)
    story.timers.advance(6)
    assert (story.answers, story.attempts, len(story.polling)) == ({}, 2, 2)
    peer.read()
    assert story.answers == {"first": "messages", "second": "messages"}
    assert len(story.polling) == 0


def test_a_pull_is_answered_from_memory_while_work_threads_make_many_answers_for_its_peer() -> None:
    story, peer = Story(), Peer()
    story.hold("hot", peer=peer)
    story.hold("idle", peer=peer, seconds=5)
    peer.is_busy = True
    story.arrive(1)
    assert story.answers == {"hot": "messages", "idle": "messages"}


def test_a_pull_whose_time_was_up_is_told_nothing_when_its_peer_reads() -> None:
    story, peer = Story(), Peer()
    peer.congested = True
    assert story.hold("late", peer=peer, seconds=5)
    story.timers.advance(10)
    assert story.answers == {}
    peer.read()
    assert story.answers == {"late": "nothing"}


def test_a_peer_that_ends_without_reading_leaves_nothing() -> None:
    story, peer = Story(), Peer()
    story.hold("gone", peer=peer, seconds=5)
    peer.congested = True
    story.arrive(1)
    story.timers.advance(10)
    peer.end()
    peer.read()
    assert (story.answers, len(story.polling)) == ({}, 0)
