"""A group whose members come and go is told of it together, and each member once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from haservice.broker.groups.consumers import Client, ConsumerGroup
from haservice.broker.groups.notices import PAUSE_S, STEP_MEMBERS, STEP_PAUSE_S, Notices
from haservice.broker.groups.subscription_groups import GroupConfig, Groups
from haservice.persisted_file import PersistedFile
from haservice.remoting.connection import Connection
from tests.support.reading_broker import ReadingBroker
from tests.support.waiting import wait_until


class Timers:
    """Timers that run when they are told to."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> None:
        self.set.append((delay, callback, args))

    def run(self) -> list[float]:
        """Runs those that are set now; returns for how long each was."""
        due, self.set = self.set, []
        for _, callback, args in due:
            callback(*args)
        return [delay for delay, _, _ in due]


class Member(Connection):
    def __init__(self) -> None:
        self.closed = False
        self.told: list[bytes] = []

    def send_encoded(self, answers: bytes) -> None:
        self.told.append(answers)


class Story:
    def __init__(self, path: Path, **options: Any) -> None:
        self.timers = Timers()
        self.groups = Groups(True, PersistedFile(path / "groups.json"))
        self.notices = Notices(self.groups, timers=self.timers, **options)
        self.group = ConsumerGroup("G")
        self.members: list[Member] = []

    def join(self, count: int = 1) -> None:
        for _ in range(count):
            self.members.append(Member())
            self.group.put(self.members[-1], Client(f"c{len(self.members)}", "JAVA", 1, 0))
            self.notices.changed(self.group)

    def told(self) -> list[int]:
        """How often each member was told since the last look."""
        counts = [len(member.told) for member in self.members]
        for member in self.members:
            member.told.clear()
        return counts


def test_the_first_change_is_told_at_once_and_those_of_the_pause_together(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.join()
    assert story.told() == [1]
    story.join(49)
    assert story.told() == [0] * 50
    assert story.timers.run() == [PAUSE_S]
    assert story.told() == [1] * 50
    assert story.timers.run() == [PAUSE_S]
    assert story.told() == [0] * 50, "nothing has changed since"
    assert story.timers.set == [], "a group at rest costs nothing"
    story.group.pop(story.members.pop())
    story.notices.changed(story.group)
    assert story.told() == [1] * 49, "it is told at once again"


def test_a_large_group_is_told_in_steps_with_one_frame(tmp_path: Path) -> None:
    story = Story(tmp_path)
    count = 2 * STEP_MEMBERS + 1
    for _ in range(count):
        story.members.append(Member())
        story.group.put(story.members[-1], Client(f"c{len(story.members)}", "JAVA", 1, 0))
    story.notices.changed(story.group)
    frames = {id(frame) for member in story.members for frame in member.told}
    assert sum(story.told()) == STEP_MEMBERS
    story.notices.changed(story.group)
    assert story.timers.run() == [STEP_PAUSE_S]
    assert sum(story.told()) == STEP_MEMBERS
    assert story.timers.run() == [STEP_PAUSE_S]
    frames |= {id(frame) for member in story.members for frame in member.told}
    assert story.told() == [0] * (count - 1) + [1]
    assert len(frames) == 1, "it was encoded once"
    assert story.timers.run() == [PAUSE_S], "the pause begins when all are told"
    assert sum(story.told()) == STEP_MEMBERS, "for it has changed since it began"


def test_a_group_that_does_not_want_to_be_told_is_not(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.groups.update(GroupConfig("G", notify_consumer_ids_changed_enable=False))
    story.join(3)
    story.timers.run()
    assert story.told() == [0, 0, 0]
    silent = Story(tmp_path, enabled=False)
    silent.join(3)
    assert silent.timers.set == []
    assert silent.told() == [0, 0, 0]


def test_groups_rest_by_themselves(tmp_path: Path) -> None:
    story, other = Story(tmp_path), ConsumerGroup("H")
    story.join()
    member = Member()
    other.put(member, Client("c", "JAVA", 1, 0))
    story.notices.changed(other)
    assert len(member.told) == 1
    assert b'"H"' in member.told[0]


def test_a_group_that_empties_and_comes_back_meanwhile_is_told(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.join(2)
    story.told()
    story.group = ConsumerGroup("G")  # as the table makes it anew
    story.join()
    story.timers.run()
    assert story.told() == [0, 0, 1]


def test_members_that_join_one_by_one_are_told_once_in_a_pause(
    reading_broker: Callable[..., ReadingBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = Timers()
    broker = reading_broker(notice_timers=timers)
    callers = [broker.caller() for _ in range(30)]
    told = [0] * len(callers)

    def tell(number: int) -> Callable[[object], None]:
        def count(_: object) -> None:
            told[number] += 1

        return count

    for number, caller in enumerate(callers):
        caller.on_request(40, tell(number))
        caller.heartbeat(f"c{number}", {"G": {"T": "*"}})
    wait_until(lambda: sum(told) == 1, "the first was told")
    for caller in callers:
        assert len(caller.call(38, {"consumerGroup": "G"}).body) > 0
    assert sum(told) == 1, "what is told comes before the answer to a later request"
    broker.on_loop(timers.run)
    for caller in callers:
        caller.call(38, {"consumerGroup": "G"})
    assert told == [2] + [1] * 29
