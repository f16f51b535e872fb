"""Groups of three and five brokers whose log a majority agrees on; a round is a fault or two, or a cut of power.

    hosts    brokers ── two nameservers, each a network namespace; clients are in the hub
    seed ── group (of twenty seeds in a row) ── shape: three or five brokers, SYNC_FLUSH or ASYNC_FLUSH
         └─ even: faults of processes, links, disks and clocks; odd: the power goes

Clients send to whoever is the master all the time.  At the end of a round everything is healed, becomes level,
and is judged: see group_round.py.  The table at the end says how long no message was stored, and none
answered with OK, from each fault on that was alone, and how many terms rose with it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import click

from tests.chaos.auto import table
from tests.chaos.group_cluster import GroupCluster
from tests.chaos.group_faults import GROUP_FAULTS, ONLY_SYNC, POWER_FAULTS
from tests.chaos.group_round import GroupPlay
from tests.chaos.netns import Hosts
from tests.chaos.proc_cluster import Shape
from tests.chaos.proc_packets import HOST_FAULTS, ONE_WAY_FAULTS
from tests.chaos.processes import FaultTeller, play_on_hosts, play_seeds
from tests.chaos.report import Report

LAYER = "groups"
ROUNDS_A_CLUSTER = 20
ALL_FAULTS = (*GROUP_FAULTS, *POWER_FAULTS)
SHAPES = ((3, "SYNC_FLUSH"), (5, "SYNC_FLUSH"), (3, "ASYNC_FLUSH"), (5, "ASYNC_FLUSH"))
TWO, AT_ONCE = 0.3, 0.2


def shape_of(seed: int) -> Shape:
    """All rounds of a cluster have one."""
    brokers, flush = SHAPES[seed // ROUNDS_A_CLUSTER % len(SHAPES)]
    return Shape(flush, "netns", brokers, nameservers=2, offices=True, disks=True, shim=True)


def name_of(shape: Shape) -> str:
    return f"{shape.brokers} brokers"


def steps_of(seed: int, shape: Shape, only: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """What goes wrong in the round of this seed; at times a link is in trouble while the power goes."""
    rng = random.Random(f"groups {seed}")
    barred = () if shape.flush == "SYNC_FLUSH" else ONLY_SYNC
    power = [name for name in POWER_FAULTS if name not in barred]
    if only:
        return [(rng.choice([name for name in only if name not in barred] or power),)]
    if seed % 2:
        name = rng.choice(power)
        return [(name, rng.choice([*HOST_FAULTS, *ONE_WAY_FAULTS]))] if rng.random() < AT_ONCE else [(name,)]
    return [(rng.choice(list(GROUP_FAULTS)),) for _ in range(2 if rng.random() < TWO else 1)]


def run(rounds: int, seed: int, report: Report, only: Sequence[str] = ()) -> None:
    """Seeds `seed` … `seed + rounds - 1`; says why not where something is missing."""
    teller = FaultTeller(LAYER, report, rounds, only)
    terms: defaultdict[str, list[int]] = defaultdict(list)

    async def play(root: Path, hosts: Hosts, seeds: list[int]) -> int:
        shape = shape_of(seeds[0])
        cluster = GroupCluster(root, shape, hosts)
        return await play_seeds(
            name_of(shape),
            cluster,
            lambda: GroupPlay(cluster, name_of(shape), lambda fault, risen: terms[fault].append(risen)),
            lambda one: steps_of(one, shape, only),
            seeds,
            teller,
        )

    try:
        play_on_hosts(
            LAYER, range(seed, seed + rounds), ROUNDS_A_CLUSTER, lambda one: shape_of(one).hosts, play, report
        )
    finally:
        for line in [*table(report, LAYER), *elections(terms)]:
            click.echo(line)


def elections(terms: dict[str, list[int]]) -> list[str]:
    """By fault that was alone in its round: how many terms rose."""
    lines = [f"{'terms that rose with the fault':<48} times  mean, most"]
    for fault, some in sorted(terms.items()):
        lines.append(f"{fault:<48} {len(some):>5}  {sum(some) / len(some):.1f}, {max(some)}")
    return lines if terms else []
