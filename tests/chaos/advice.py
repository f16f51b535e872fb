"""An operator who does what the program advises: after each trouble somebody follows `mqadmin check` until it says OK.

    seed ── group (of five seeds in a row) ── shape: a pair or three brokers, by command or with a coordinator (etcd)
    round ── a trouble or two ──▶ check ──▶ what it advises ──▶ what that advises … ──▶ OK ──▶ the checker of all layers

Every message that was answered with OK has to be there in the end.  More than three steps after a trouble, or advice
that leads back to what was done already, fails the round: see tests/cluster/advised.py.  An OK stands for two brokers,
and a trouble costs one of them, so nobody ever needs --force or --lose: where only these are left, the operator waits
for the broker that is away; a text that names nothing else although no broker comes back fails the round, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.advice_faults import TROUBLES, advised_faults
from tests.chaos.auto import SETTINGS
from tests.chaos.auto_coordinators import COORDINATORS, MISSING, AutoCluster
from tests.chaos.auto_round import AutoTraffic, as_promised
from tests.chaos.netns import Hosts
from tests.chaos.proc_clients import History
from tests.chaos.proc_cluster import Cluster, Shape
from tests.chaos.proc_round import Outcome, Play
from tests.chaos.processes import FaultTeller, play_on_hosts, play_seeds
from tests.chaos.report import Report

LAYER = "advice"
ROUNDS_A_CLUSTER = 5
TWO = 0.25
# (brokers, whether they have a coordinator): by command there is more to advise.
SHAPES = ((2, False), (3, False), (2, False), (2, True))


def shape_of(seed: int) -> Shape:
    """All rounds of a group have one."""
    brokers, coordinated = SHAPES[seed // ROUNDS_A_CLUSTER % len(SHAPES)]
    return Shape(links="netns", brokers=brokers, offices=coordinated)


def is_coordinated(shape: Shape) -> bool:
    return shape.offices


def name_of(shape: Shape) -> str:
    size = "pair" if shape.brokers == 2 else f"{shape.brokers} brokers"
    return f"{size}, {'with a coordinator' if is_coordinated(shape) else 'by command'}"


def steps_of(seed: int, only: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """One trouble or two, one after the other."""
    rng = random.Random(f"advice {seed}")
    names = list(only) or list(TROUBLES)
    return [(rng.choice(names),) for _ in range(2 if rng.random() < TWO else 1)]


def run(rounds: int, seed: int, report: Report, only: Sequence[str] = ()) -> None:
    """Seeds `seed` … `seed + rounds - 1`; says why not where something is missing."""
    teller = FaultTeller(LAYER, report, rounds, only)
    seeds = [
        one for one in range(seed, seed + rounds) if not (MISSING["etcd"] and is_coordinated(shape_of(one)))
    ]

    async def play(root: Path, hosts: Hosts, some: list[int]) -> int:
        shape = shape_of(some[0])
        coordinated = is_coordinated(shape)
        cluster = (
            AutoCluster(root, shape, hosts, "etcd", SETTINGS) if coordinated else Cluster(root, shape, hosts)
        )
        return await play_seeds(
            name_of(shape),
            cluster,
            lambda: AdvicePlay(cluster, report),
            lambda one: steps_of(one, only),
            some,
            teller,
        )

    def hosts_of(one: int) -> int:
        shape = shape_of(one)
        return shape.hosts + (COORDINATORS if is_coordinated(shape) else 0)

    play_on_hosts(LAYER, seeds, ROUNDS_A_CLUSTER, hosts_of, play, report)


class AdvicePlay(Play):
    """The rounds of one cluster."""

    make_traffic = AutoTraffic

    def __init__(self, cluster: Cluster, report: Report) -> None:
        super().__init__(cluster, advised_faults(lambda what: report.add(LAYER, what)))

    def _judged(self, history: History, level_s: float, steps: Sequence[tuple[str, ...]]) -> Outcome:
        """What a consumer was shown before any OK may be gone with the broker that showed it."""
        history.events = as_promised(history.events, is_async=False)
        return super()._judged(history, level_s, steps)
