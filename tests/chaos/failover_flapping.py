"""A day of links that flap, on virtual time; a round is a day of one pair, or of three brokers.

Nothing else happens: no broker dies, and the coordinator stands.  Every half minute or so the way between two
brokers, or between one of them and the coordinator, is lost for some seconds or less.  All rules are looked at as in
failover_sim.py, and the pauses are told in which no message got its OK.
"""

from __future__ import annotations

import itertools
import statistics

import click

from tests.chaos import history
from tests.chaos.failover_sim import Mode, World
from tests.chaos.report import Report
from tests.chaos.sim_clock import BEGIN_S

LAYER = "flapping"
DAY_S = 86_400.0
MODES = (Mode(2, 1, 20, failsafe=True), Mode(2, 0, 20, failsafe=True), Mode(3, 1, 20, failsafe=True))
# Between two losses, on average.
EVERY_S = 30.0
SPANS_S = (0.2, 1.0, 3.0, 8.0, 15.0)
PACE_S = (0.4, 1.2)
# A pause is longer than any time between two messages.
PAUSE_S = 2.0


class Flapping:
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.pace_s, world.faults.strikes = PACE_S, 0.0

    def begin(self) -> None:
        world = self._world
        world.clock.after(world.source.expovariate(1 / EVERY_S), self.begin)
        span_s = world.source.choice(SPANS_S) * world.draw(0.6, 1.4)
        one, other = world.source.sample(world.nodes, 2)
        if world.source.random() < 0.5:
            world.count["times the way to the coordinator is lost"] += 1
            world.cut_off.add(one.name)
            world.clock.after(span_s, world.cut_off.discard, one.name)
        else:
            world.count["times a link is lost"] += 1
            pair = frozenset({one.name, other.name})
            world.blocked.add(pair)
            world.clock.after(span_s, world.blocked.discard, pair)


def flap(seed: int, seconds: float = DAY_S) -> World:
    """The world when it is over."""
    world = World(seed, MODES[seed % len(MODES)])
    world.run(Flapping(world).begin, seconds)
    return world


def pauses(world: World) -> list[float]:
    """Seconds between two OKs that follow each other, of more than PAUSE_S."""
    oks = [one.at_s for one in world.events if isinstance(one, history.Answered)]
    return [after - before for before, after in itertools.pairwise(oks) if after - before > PAUSE_S]


def run(rounds: int, seed: int, report: Report) -> None:
    """The layer: a day of each seed."""
    for done, number in enumerate(range(seed, seed + rounds), 1):
        world = flap(number)
        for name, count in world.count.items():
            report.add(LAYER, name, count)
        report.add(LAYER, "days")
        for verdict in world.verdicts:
            report.violation(LAYER, verdict.violation.value)
        if world.verdicts:
            report.failure(LAYER, number, "\n".join(map(str, [world.mode, *world.verdicts[:10]])))
        found = pauses(world)
        for one in found:
            report.recovery(LAYER, f"{world.mode}: pause", one)
        days = (world.clock.now_s - BEGIN_S) / DAY_S
        click.echo(
            f"{world.mode}: {world.count['epochs']} masters; {len(found)} pauses of more than {PAUSE_S:g} s,"
            f" median {statistics.median(found or [0]):.1f} s, worst {max(found, default=0):.1f} s,"
            f" together {sum(found) / days / DAY_S:.2%} of the day"
        )
        report.progress(LAYER, done, rounds)
