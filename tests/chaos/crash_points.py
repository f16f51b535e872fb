"""Crash points: a crash at every operation of a story, with every kind of loss; the next start is compared.

    play ─ operation ─▶ for each loss: the disk as the crash leaves it ─▶ start ─▶ compare ─▶ start again …

A story is played once: at each operation the disks that a crash there could leave are derived, and looked at
on the spot.  A disk that was seen before with the same promises is not looked at again, nor counted.

    python -m tests.chaos.crash_points STORY SEED       all states of one story
"""

from __future__ import annotations

import logging
import random
import shlex
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.chaos.crash_stories import MasterStory, RecoveryStory, ReplicaStory, Story
from tests.chaos.crash_stories_moves import RejoinStory, SmallFilesStory
from tests.chaos.disk import MemoryDisk, in_memory
from tests.chaos.disk_states import Loss
from tests.chaos.early import workers

if TYPE_CHECKING:
    from tests.chaos.report import Report

LAYER = "crash"
# At each operation: a dead process, a power cut, and some of the many half-way states.
LOSSES = (Loss.NOTHING, Loss.ALL, Loss.SOME, Loss.SOME, Loss.SOME, Loss.TORN, Loss.TORN)
# Of one story, so that many are told.
STATES_PER_STORY = 400
# One cause is told this often; after so many findings nobody looks for more.
TOLD_MAX = 3
FINDINGS_MAX = 300

STORIES: dict[str, Callable[[int], Story]] = {
    "master": MasterStory,
    "recovery": RecoveryStory,
    "replica": ReplicaStory,
    "rejoin": RejoinStory,
    "small files": SmallFilesStory,
}


@dataclass
class Tally:
    """What was looked at.  `failures` are (story, seed, operation, loss, what)."""

    operations: int = 0
    states: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, int, int, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.states.values())

    def add(self, other: Tally) -> None:
        self.operations += other.operations
        self.states += other.states
        self.losses += other.losses
        self.failures += other.failures
        self.seconds += other.seconds


class Explorer:
    """Watches one story's disk and looks at every crash."""

    def __init__(self, story: Story, seed: int, tally: Tally, states_max: int) -> None:
        self._story = story
        self._seed = seed
        self._tally = tally
        self._left = states_max
        self._chance = random.Random(seed ^ 0xC0FFEE)
        self._seen: set[int] = set()
        self._operation = 0

    def run(self) -> None:
        story = self._story
        story.disk.watch = self._look
        try:
            story.play()
        except Exception:
            self._fail("play", traceback.format_exc())
        else:
            self._look("end")

    def _look(self, _operation: str) -> None:
        self._operation += 1
        self._tally.operations += 1
        story = self._story
        for loss in LOSSES:
            if self._left <= 0:
                return
            disk = story.disk.after_crash(loss, self._chance)
            if self._is_new(disk, loss):
                self._left -= 1
                self._check(disk, loss)

    def _is_new(self, disk: MemoryDisk, loss: Loss) -> bool:
        content = tuple(sorted(disk.files().items()))
        seen = hash((content, self._story.promise, loss is Loss.NOTHING))
        if seen in self._seen:
            return False
        self._seen.add(seen)
        return True

    def _check(self, disk: MemoryDisk, loss: Loss) -> None:
        self._tally.states[self._story.name] += 1
        self._tally.losses[loss.value] += 1
        try:
            self._story.check(disk)
        except Exception:
            self._fail(loss.value, traceback.format_exc(limit=-6))

    def _fail(self, loss: str, text: str) -> None:
        self._tally.failures.append((self._story.name, self._seed, self._operation, loss, text))


def explore(
    names: Sequence[str],
    states: int,
    seed: int,
    *,
    states_per_story: int = 1 << 30,
    seconds: float = float("inf"),
) -> Tally:
    """Plays stories of these names in turn, each with a seed of its own, until so many states are seen.

    `seconds` ends it earlier, between two stories, and so do many findings.
    """
    tally = Tally()
    began_s = time.monotonic()
    number = 0
    with in_memory(), _quiet():
        while (
            tally.total < states
            and len(tally.failures) < FINDINGS_MAX
            and time.monotonic() - began_s < seconds
        ):
            name = names[number % len(names)]
            story_seed = seed + number // len(names)
            left = min(states_per_story, states - tally.total)
            Explorer(STORIES[name](story_seed), story_seed, tally, left).run()
            number += 1
    tally.seconds = time.monotonic() - began_s
    return tally


@contextmanager
def _quiet() -> Iterator[None]:
    """What a start says of the damage it finds is no news here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def run(rounds: int, seed: int, report: Report) -> None:
    """Looks at `rounds` states; every story has its share.  Story after story, with up to `report.jobs`."""
    share = -(-rounds // len(STORIES))
    tally = Tally()
    with workers(report.jobs) as pool:
        parts = [
            pool.submit(explore, [name], share, seed, states_per_story=STATES_PER_STORY) for name in STORIES
        ]
        for part in as_completed(parts):
            one = part.result()
            tally.add(one)
            report.progress(LAYER, tally.total, rounds)
            for name, count in one.states.items():
                report.add(LAYER, "states", count)
                report.add(LAYER, f"states of {name}", count)
            report.add(LAYER, "operations", one.operations)
    for loss, count in sorted(tally.losses.items()):
        report.add(LAYER, f"states with {loss} lost", count)
    report.figure(LAYER, "milliseconds per state", round(1000 * tally.seconds / max(1, tally.total), 2))
    for name, story_seed, operation, loss, text in told(tally.failures):
        report.failure(
            LAYER,
            story_seed,
            f"{name} at operation {operation}, {loss} lost\n{text}",
            f"python -m tests.chaos.crash_points {shlex.quote(name)} {story_seed}",
        )


def told(failures: Sequence[tuple[str, int, int, str, str]]) -> list[tuple[str, int, int, str, str]]:
    """The first few of each cause; a cause is a story and the last line of what was raised."""
    counts: Counter[tuple[str, str]] = Counter()
    some = []
    for failure in failures:
        last = failure[4].strip().splitlines()[-1]
        cause = failure[0], "".join(char for char in last if not char.isdigit())
        counts[cause] += 1
        if counts[cause] <= TOLD_MAX:
            some.append(failure)
    return some


def main(arguments: Sequence[str]) -> int:
    """`STORY SEED`: all states of that story; without them the names."""
    if len(arguments) != 2:
        print("\n".join(STORIES))
        return 0
    name, story_seed = arguments[0], int(arguments[1])
    tally = Tally()
    with in_memory(), _quiet():
        Explorer(STORIES[name](story_seed), story_seed, tally, 1 << 30).run()
    print(f"{name}: {tally.total} states, {len(tally.failures)} failures")
    for _, _, operation, loss, text in told(tally.failures):
        print(f"at operation {operation}, {loss} lost\n{text}")
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
