"""Pairs that fail over by themselves, beside real coordinators; a round is one fault or two.

    hosts    brokers ── nameserver ── three coordinators, each a network namespace; clients are in the hub
    seed ── group (of five seeds in a row) ── shape: SYNC pair, ASYNC pair, SYNC of three, with disks or without

Clients send to whoever is the master all the time.  At the end of a round everything is healed, becomes level,
and is judged: see auto_round.py.  The table at the end says how long no message was stored, and none
answered with OK, from each fault on.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from tests.chaos.auto_coordinators import COORDINATORS, MISSING, AutoCluster
from tests.chaos.auto_faults import AUTO_DISK_FAULTS, AUTO_FAULTS, TTL_S
from tests.chaos.auto_round import UNTIL_OK, UNTIL_TAKEN, AutoPlay
from tests.chaos.netns import Hosts
from tests.chaos.proc_cluster import Shape
from tests.chaos.processes import FaultTeller, play_on_hosts, play_seeds
from tests.chaos.report import Report

LAYER = "auto"
ROUNDS_A_CLUSTER = 5
MAX_LOSS_BYTES = 1024 * 1024
SETTINGS = {
    "haLeaseTtl": str(TTL_S),
    "haLoopWait": "1",
    "haMaxLossBytes": str(MAX_LOSS_BYTES),
    # A disk stays full for long enough that the log's beginning would go, with which the logs are compared.
    "cleanFileForciblyEnable": "false",
}
# Of ten rounds so many have a fault of a broker while coordinators are gone.
AT_ONCE = 0.15
_GONE = ("coordinator's leader killed", "coordinator's majority killed")
_KILLS = ("kill master", "freeze master", "kill all, one back")


def shape_of(seed: int) -> Shape:
    """All rounds of a group have one."""
    group = seed // ROUNDS_A_CLUSTER
    role, brokers = (("SYNC_MASTER", 2), ("ASYNC_MASTER", 2), ("SYNC_MASTER", 3))[group % 3]
    return Shape(links="netns", offices=True, role=role, brokers=brokers, disks=group % 2 == 1)


def name_of(shape: Shape) -> str:
    size = "pair" if shape.brokers == 2 else f"of {shape.brokers}"
    return f"{shape.role.removesuffix('_MASTER')} {size}"


def steps_of(seed: int, shape: Shape, only: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """One fault or two."""
    rng = random.Random(f"auto {seed}")
    names = list(only) or [*AUTO_FAULTS, *(AUTO_DISK_FAULTS if shape.disks else ())]
    steps: list[tuple[str, ...]] = [(rng.choice(names),)]
    if not only and rng.random() < AT_ONCE:
        steps[0] = (rng.choice(_GONE), rng.choice(_KILLS))
    elif rng.random() < 0.3:
        steps.append((rng.choice(names),))
    return steps


def run(rounds: int, seed: int, report: Report, coordinator: str = "etcd", only: Sequence[str] = ()) -> None:
    """Seeds `seed` … `seed + rounds - 1`; says why not where something is missing."""
    if MISSING[coordinator]:
        report.absent(LAYER, MISSING[coordinator])
        return
    teller = AutoTeller(coordinator, only, report, rounds)

    async def play(root: Path, hosts: Hosts, seeds: list[int]) -> int:
        shape = shape_of(seeds[0])
        cluster = AutoCluster(root, shape, hosts, coordinator, SETTINGS)
        return await play_seeds(
            name_of(shape),
            cluster,
            lambda: AutoPlay(cluster, name_of(shape), MAX_LOSS_BYTES, partial(report.add, LAYER)),
            lambda seed: steps_of(seed, shape, only),
            seeds,
            teller,
        )

    try:
        play_on_hosts(
            LAYER,
            range(seed, seed + rounds),
            ROUNDS_A_CLUSTER,
            lambda one: shape_of(one).hosts + COORDINATORS,
            play,
            report,
        )
    finally:
        for line in table(report, LAYER):
            click.echo(line)


class AutoTeller(FaultTeller):
    """Says also by which coordinator."""

    def __init__(self, coordinator: str, only: Sequence[str], report: Report, rounds: int) -> None:
        super().__init__(LAYER, report, rounds, only)
        self._coordinator = coordinator

    def option(self, kind: str) -> str:
        return f" --coordinator {self._coordinator}{super().option(kind)}"


def table(report: Report, layer: str) -> list[str]:
    """By fault: how often, and the seconds from it on without a message stored, and without OK."""
    seconds = report.seconds_by_kind(layer)
    lines = [f"{'seconds from the fault':<48} times  stored: median, worst   OK: median, worst"]
    for what in sorted({name.rpartition(", until ")[0] for name in seconds} - {""}):
        stored, oks = seconds[f"{what}, {UNTIL_TAKEN}"], seconds[f"{what}, {UNTIL_OK}"]
        lines.append(f"{what:<48} {len(oks):>5}  {_two(stored):>22}  {_two(oks):>18}")
    return lines if len(lines) > 1 else []


def _two(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f}, {max(seconds):.2f}"
