"""Power cuts of real brokers on disks of their own; a round is a cut, or a full disk.

    seed ── flush (of twenty seeds in a row) ── which machines, what was written by then ── checker

With SYNC_FLUSH every OK outlives a cut of any machine and of all at once; with ASYNC_FLUSH that of one.  The
log ends on a record's edge, the pair becomes level by itself, and both logs are equal.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos import history as histories
from tests.chaos.early import ending_on_sigterm
from tests.chaos.power_disk import Disk, NoDisks
from tests.chaos.power_faults import Machines
from tests.chaos.proc_cluster import Cluster, NotSoInTime, Shape
from tests.chaos.proc_faults import LINK_FAULTS
from tests.chaos.proc_round import ALL_FAULTS, Play
from tests.chaos.processes import Teller
from tests.chaos.report import Report

LAYER = "power"
ROUNDS_A_CLUSTER = 20
CALM_S = 0.15
MEGABYTES = 256
LINK_TOO = 0.25


def shape_of(seed: int) -> Shape:
    return Shape(flush="ASYNC_FLUSH" if seed // ROUNDS_A_CLUSTER % 3 == 2 else "SYNC_FLUSH")


def step_of(seed: int) -> tuple[str, ...]:
    """What happens in this seed's round; at times the link is in trouble as well."""
    kinds = {
        "power cut of master": 4,
        "power cut of slave": 3,
        "power cut of all": 5,
        "power cut and failover": 3,
        "disk of master full": 1,
        "disk of slave full": 1,
    }
    rng = random.Random(f"step {seed}")
    name = rng.choices(list(kinds), weights=list(kinds.values()))[0]
    return (name, rng.choice(list(LINK_FAULTS))) if rng.random() < LINK_TOO else (name,)


def run(rounds: int, seed: int, report: Report) -> None:
    """Seeds `seed` … `seed + rounds - 1`; says why not where there are no disks to be had."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-power-"))
    teller = Teller(LAYER, report, rounds)
    seeds = list(range(seed, seed + rounds))
    try:
        while seeds:
            group = seeds[0] // ROUNDS_A_CLUSTER
            some = [one for one in seeds if one // ROUNDS_A_CLUSTER == group]
            root = Path(tempfile.mkdtemp(prefix=f"seed-{some[0]}-", dir=directory))
            with ending_on_sigterm():
                played = asyncio.run(play(root, some, teller))
            seeds = seeds[played:]
    except NoDisks as error:
        print(f"{LAYER}: left out, {error}")
        report.absent(LAYER, str(error))
    finally:
        with contextlib.suppress(OSError):
            directory.rmdir()


async def play(root: Path, seeds: list[int], teller: Teller) -> int:
    """How many of the seeds one cluster has played.  Raises NoDisks if there never was one."""
    shape = shape_of(seeds[0])
    kept = False
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: None if kept else shutil.rmtree(root, ignore_errors=True))
        try:
            disks = [stack.enter_context(_disk(root / f"disk{number}")) for number in range(shape.brokers)]
        except NoDisks as error:
            if not teller.done:
                raise
            teller.failed_start(seeds[0], LAYER, shape, str(error))
            return 1
        machines = Machines(disks)
        cluster = Cluster(root, shape)
        machines.give(cluster)
        try:
            try:
                await cluster.start()
            except NotSoInTime as error:
                kept = True
                teller.failed_start(seeds[0], LAYER, shape, str(error))
                return 1
            rounds = Play(cluster, {**ALL_FAULTS, **machines.faults}, calm_s=CALM_S)
            for count, seed in enumerate(seeds, 1):
                try:
                    outcome = await rounds.round(seed, [step_of(seed)])
                except Exception as error:  # of the harness, or of a disk: a run of hours goes on behind it
                    if teller.may_play_again(seed, error):
                        return count - 1
                    kept = True
                    teller.harness_failed(seed, LAYER, shape, error)
                    return count
                teller.tell(seed, LAYER, shape, outcome)
                if not outcome.ok:
                    kept = True
                    await _keep(cluster, root, outcome.events, seed)
                    teller.fail(seed, LAYER, shape, outcome, cluster)
                    return count
            return len(seeds)
        finally:
            await cluster.close()


@contextlib.contextmanager
def _disk(directory: Path) -> Iterator[Disk]:
    disk = Disk(directory, MEGABYTES)
    try:
        yield disk
    finally:
        disk.close()


async def _keep(cluster: Cluster, root: Path, events: Sequence[histories.Event], seed: int) -> None:
    """The round's history, and what is on the disks, which go."""
    histories.dump(events, root / f"history-{seed}.jsonl")
    await cluster.close()
    for node in cluster.nodes:
        with contextlib.suppress(OSError):
            shutil.copytree(node.root, root / node.name)
