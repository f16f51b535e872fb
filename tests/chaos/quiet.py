"""Something dies quietly while brokers serve; a round is one break of one kind of cluster.

    kinds     a classic pair by command, a pair with etcd, a DLedger group of three
    breaks    read from the product's sources, see quiet_breaks.py
    round     armed ── stirred up until it is reached ── back by itself ── told ── closed cleanly ── checker

Seed N is the Nth round of all there are.  A break that nobody comes to is no success: it is named at the end.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from tests.chaos.auto_coordinators import COORDINATORS, MISSING, AutoCluster
from tests.chaos.auto_faults import TTL_S
from tests.chaos.early import ending_on_sigterm
from tests.chaos.group_cluster import GroupCluster
from tests.chaos.netns import Hosts, NoHosts, run_loop_in
from tests.chaos.proc_cluster import Cluster, Shape
from tests.chaos.proc_round import Outcome
from tests.chaos.processes import FaultTeller, play_seeds
from tests.chaos.quiet_breaks import CLASSIC, COORDINATED, GROUP, KINDS, Break, all_breaks
from tests.chaos.quiet_round import Arms, Quiet, play_of
from tests.chaos.quiet_still import quota_missing
from tests.chaos.report import Report

LAYER = "quiet"
ROUNDS_A_CLUSTER = 8
SETTINGS = {"haLeaseTtl": str(TTL_S), "haLoopWait": "1"}
SHAPES = {
    CLASSIC: Shape(links="proxy"),
    COORDINATED: Shape(links="netns", offices=True),
    GROUP: Shape(links="netns", brokers=3, nameservers=2, offices=True),
}


class Round(NamedTuple):
    kind: str
    break_: Break

    def __str__(self) -> str:
        return f"{self.kind}: {self.break_.name}"


def all_rounds(only: Sequence[str] = ()) -> list[Round]:
    """Those whose name has one of these texts, or all."""
    crawls = not quota_missing()
    rounds = [
        Round(kind, one)
        for kind in KINDS
        for one in all_breaks()
        if kind in one.kinds and (crawls or one.kind != "crawl")
    ]
    return [one for one in rounds if not only or any(text in str(one) for text in only)]


def sample(seed: int, kind: str, count: int, of: Callable[[Break], bool] = lambda _: True) -> list[Round]:
    """A handful of the rounds of one kind."""
    rounds = [one for one in all_rounds() if one.kind == kind and of(one.break_)]
    return random.Random(f"quiet {seed}").sample(rounds, count)


def run(rounds: int, seed: int, report: Report, only: Sequence[str] = ()) -> None:
    """The rounds `seed` … `seed + rounds - 1` of all, which begin with 1; says why not where something is missing."""
    if why := quota_missing():
        report.figure(LAYER, "rounds with a CPU quota", f"left out: {why}")
    play_all(all_rounds(only)[seed - 1 : seed - 1 + rounds], report)


def play_all(rounds: Sequence[Round], report: Report) -> None:
    teller, missed = QuietTeller(report, rounds), list[str]()
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{LAYER}-"))
    try:
        with ending_on_sigterm():
            for kind, seeds in _clusters(rounds):
                why = _play_cluster(directory, kind, rounds, seeds, report, teller, missed)
                if why:
                    report.figure(LAYER, f"{kind} rounds", f"left out: {why}")
    finally:
        if not any(directory.iterdir()):
            directory.rmdir()
        for name in missed:
            click.echo(f"not reached: {name}")
        if missed:
            report.figure(LAYER, "not reached", "; ".join(missed))


class QuietTeller(FaultTeller):
    """Says how each round ended; the round of a seed is repeated by its name."""

    def __init__(self, report: Report, rounds: Sequence[Round]) -> None:
        super().__init__(LAYER, report, len(rounds), ())
        self._played = rounds

    def tell(self, seed: int, kind: str, shape: Shape, outcome: Outcome, seconds: float = 0.0) -> None:
        super().tell(seed, kind, shape, outcome, seconds)
        click.echo(f"{'ok' if outcome.ok else 'FAILED'}: {self._played[seed]}, {seconds:.0f} s")

    def _repeat(self, seed: int, kind: str) -> str:
        return f'scripts/chaos quiet --only "{self._played[seed]}"'


def _clusters(rounds: Sequence[Round]) -> Iterator[tuple[str, list[int]]]:
    """Which rounds, by number, one cluster plays."""
    for kind in KINDS:
        mine = [at for at, one in enumerate(rounds) if one.kind == kind]
        for at in range(0, len(mine), ROUNDS_A_CLUSTER):
            yield kind, mine[at : at + ROUNDS_A_CLUSTER]


def _play_cluster(
    directory: Path,
    kind: str,
    rounds: Sequence[Round],
    seeds: list[int],
    report: Report,
    teller: FaultTeller,
    missed: list[str],
) -> str:
    """Plays them all; a round that fails costs the cluster, and the next one has a new one.  Says why it did not."""
    if kind == COORDINATED and MISSING["etcd"]:
        return MISSING["etcd"]
    left = list(seeds)
    while left:
        shape, hosts = SHAPES[kind], None
        if shape.links == "netns":
            try:
                hosts = Hosts(shape.hosts + (COORDINATORS if kind == COORDINATED else 0))
            except NoHosts as error:
                return str(error)
        root = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=directory))

        async def play(root: Path = root, hosts: Hosts | None = hosts, some: list[int] = left) -> int:
            cluster = _cluster(kind, root / "cluster", hosts)
            quiet = Quiet(kind, cluster, Arms(cluster), lambda what: report.add(LAYER, what))
            faults = quiet.faults([rounds[at].break_ for at in some])
            try:
                return await play_seeds(
                    kind,
                    cluster,
                    lambda: play_of(cluster, faults),
                    lambda seed: [(rounds[seed].break_.name,)],
                    some,
                    teller,
                )
            finally:
                missed.extend(f"{kind}: {name}" for name in quiet.missed)

        try:
            left = left[run_loop_in(None if hosts is None else hosts.hub, play) :]
        finally:
            if hosts is not None:
                hosts.close()
            if not any(root.iterdir()):
                shutil.rmtree(root)
    return ""


def _cluster(kind: str, root: Path, hosts: Hosts | None) -> Cluster:
    if kind == CLASSIC:
        return Cluster(root, SHAPES[kind])
    assert hosts is not None
    if kind == GROUP:
        return GroupCluster(root, SHAPES[kind], hosts)
    return AutoCluster(root, SHAPES[kind], hosts, "etcd", SETTINGS)
