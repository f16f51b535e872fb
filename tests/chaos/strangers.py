"""A stranger beside a well-behaved sender: what it costs a real broker; a round is one kind with one build.

    calm ── the stranger comes, and stays ── it goes
    memory of the process before, at its worst, and when the stranger is gone; CPU seconds
    the sender's p50 and worst send while the stranger is there, beside those of the calm before it

A round fails if memory grows by more than the bound of its kind (strangers_kinds.py), or a send is not answered
with OK, or is not in its queue.  How much slower sends become is told, and decides nothing.
Seed N is the Nth round of all there are.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from commitlog.kernel import native
from haservice.errors import HAServiceError
from tests.chaos.report import Report
from tests.chaos.strangers_kinds import KINDS, Kind
from tests.chaos.strangers_place import LOOK_S, MIB, OTHERS, Cost, Place, Send, sends_of

LAYER = "strangers"
NATIVE, PURE = "native", "pure"
BUILDS = {NATIVE: {native.PURE: ""}, PURE: {native.PURE: "1"}}
CALM_S, STAYS_S = 3.0, 5.0
# A process that takes less of a core has done what it was asked; it gets so long for it.
IDLE_SHARE, BUSY_MAX_S = 0.5, 60.0
# What it gives back comes in turns of its loop.
GIVES_BACK_S = 20.0


class Round(NamedTuple):
    kind: str
    build: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.build}"


class Told(NamedTuple):
    """What a stranger cost: bytes, seconds, and the ratio of the sender's times to those of the calm."""

    peak: int
    kept: int
    cpu_s: float
    stayed_s: float
    calm: tuple[float, float]
    beside: tuple[float, float]
    sends: int
    lost: int

    def __str__(self) -> str:
        p50, worst = (after / max(before, 1e-6) for before, after in zip(self.calm, self.beside, strict=True))
        return (
            f"+{self.peak / MIB:.0f} MiB, +{self.kept / MIB:.0f} MiB after;"
            f" {self.cpu_s:.1f} CPU s in {self.stayed_s:.0f} s;"
            f" p50 {1000 * self.beside[0]:.1f} ms ({p50:.1f} x), worst {1000 * self.beside[1]:.0f} ms ({worst:.1f} x);"
            f" {self.sends} sends, {self.lost} lost"
        )

    def faults(self, kind: Kind) -> list[str]:
        faults = [
            f"{what} grew by {grown / MIB:.1f} MiB, {kind.bytes_max // MIB} are allowed"
            for what, grown in (("memory", self.peak), ("memory that is kept", self.kept))
            if grown > kind.bytes_max
        ]
        return faults + ([f"{self.lost} of {self.sends} sends were lost"] if self.lost else [])


def all_rounds(only: Sequence[str] = ()) -> list[Round]:
    """Those whose name has one of these texts, or all."""
    builds = [PURE] if native.core is None else list(BUILDS)
    rounds = [Round(kind, build) for build in builds for kind in KINDS]
    return [one for one in rounds if not only or any(text in str(one) for text in only)]


def run(rounds: int, seed: int, report: Report, only: Sequence[str] = ()) -> None:
    """The rounds `seed` … `seed + rounds - 1` of all, which begin with 1."""
    play_all(all_rounds(only)[seed - 1 : seed - 1 + rounds], report)


def play_all(rounds: Sequence[Round], report: Report) -> None:
    for number, one in enumerate(rounds):
        began_s, root = time.monotonic(), Path(tempfile.mkdtemp(prefix=f"chaos-{LAYER}-"))
        try:
            told = play(root, one)
        except (HAServiceError, AssertionError, OSError) as error:
            what, faults = "", [f"{type(error).__name__}: {error}"]
        else:
            what, faults = str(told), told.faults(KINDS[one.kind])
            report.figure(LAYER, str(one), what)
            report.add(LAYER, "sends", told.sends)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        report.add(LAYER, "rounds")
        click.echo(f"{'FAILED' if faults else 'ok'}: {one}: {what or faults[0]}")
        if faults:
            repeat = f'scripts/chaos {LAYER} --only "{one}"'
            report.failure(LAYER, number, f"{one}: {'; '.join(faults)}", repeat)
        report.round(LAYER, number, one.kind, not faults, time.monotonic() - began_s)
        report.progress(LAYER, number + 1, len(rounds))


def play(root: Path, one: Round) -> Told:
    """One stranger comes, stays, and goes."""
    kind = KINDS[one.kind]
    with Place(root, kind.settings(), BUILDS[one.build]) as place:
        cost = place.cost(kind.where)
        with place.sender() as path:
            calm_s = time.monotonic()
            time.sleep(CALM_S)
            calm_to_s = time.monotonic()
            kind.before(place)
            cost.forget_peak()
            before, cpu_s, came_s = cost.memory(), cost.cpu_s(), time.monotonic()
            kind.play(place)
            _stay(cost)
            peak, went_s, cpu_s = cost.memory().peak, time.monotonic(), cost.cpu_s() - cpu_s
            place.go_away()
            kept = _kept(cost, before.now + kind.bytes_max)
        sends = sends_of(path)
        in_queue = place.end(OTHERS)
    answered = sum(send.is_ok for send in sends)
    lost = len(sends) - answered + max(0, answered - in_queue)
    calm = [send for send in sends if calm_s <= send.begun_s < calm_to_s]
    beside = [send for send in sends if came_s <= send.begun_s < went_s]
    return Told(
        *(peak - before.now, kept - before.now, cpu_s, went_s - came_s, _times(calm), _times(beside)),
        *(len(sends), lost),
    )


def _stay(cost: Cost) -> None:
    """Until the process has done what the stranger asked for."""
    deadline = time.monotonic() + BUSY_MAX_S
    while True:
        begun_s, cpu_s = time.monotonic(), cost.cpu_s()
        time.sleep(STAYS_S)
        now_s = time.monotonic()
        if now_s > deadline or cost.cpu_s() - cpu_s < IDLE_SHARE * (now_s - begun_s):
            return


def _kept(cost: Cost, wanted: int) -> int:
    """The least that it has after a while; no longer than until that is in order."""
    least, deadline = cost.memory().now, time.monotonic() + GIVES_BACK_S
    time.sleep(1.0)
    while (now := cost.memory().now) > wanted and time.monotonic() < deadline:
        least = min(least, now)
        time.sleep(LOOK_S)
    return min(least, now)


def _times(sends: Sequence[Send]) -> tuple[float, float]:
    """Median and worst."""
    if not sends:
        return 0.0, 0.0
    return statistics.median(send.took_s for send in sends), max(send.took_s for send in sends)
