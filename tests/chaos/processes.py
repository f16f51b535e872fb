"""Real brokers and real clients; a round is two or three faults, and then everything has to be right.

    seed ── shape (of ten seeds in a row) ── faults ── history ── checker

Of each ten seeds in a row one cluster serves all, unless a round fails: its directory is kept, and the next
round has a new one.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path

from tests.chaos import history as histories
from tests.chaos.netns import Hosts, NoHosts, run_in
from tests.chaos.proc_cluster import Cluster, NotSoInTime, Shape, ending_on_sigterm
from tests.chaos.proc_round import Outcome, Play
from tests.chaos.report import Report

LAYER = "processes"
ROUNDS_A_CLUSTER = 10
# Timelines that are kept for plots.
TIMELINES_MAX = 3
VERDICTS_SHOWN = 8
FAILED_STARTS_MAX = 2


def shape_of(seed: int) -> Shape:
    """Four shapes in turn have both kinds of flush and of links; some have a second slave."""
    group = seed // ROUNDS_A_CLUSTER
    rng = random.Random(group)
    return Shape(
        flush="SYNC_FLUSH" if group % 2 else "ASYNC_FLUSH",
        links="netns" if group % 4 == 2 else "proxy",
        brokers=3 if rng.random() < 0.3 else 2,
    )


def run(rounds: int, seed: int, report: Report) -> None:
    """Seeds `seed` … `seed + rounds - 1`."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-processes-"))
    with ending_on_sigterm():
        _Run(rounds, seed, report, directory).run()
    if not any(directory.iterdir()):
        directory.rmdir()


class Teller:
    """What the rounds of a layer were, into its report."""

    def __init__(self, layer: str, report: Report, rounds: int) -> None:
        self.report = report
        self._layer = layer
        self._rounds = rounds
        self._done = 0
        self._timelines = 0
        self._failed_starts = 0

    def failed_start(self, seed: int, shape: Shape, text: str) -> None:
        """Raises NotSoInTime when one start after the other fails, and none would do better."""
        self.report.failure(self._layer, seed, f"{shape}: {text}")
        self._failed_starts += 1
        if self._failed_starts == FAILED_STARTS_MAX:
            raise NotSoInTime(text)

    def tell(self, seed: int, shape: Shape, outcome: Outcome) -> None:
        report, layer, findings = self.report, self._layer, outcome.findings
        self._done += 1
        self._failed_starts = 0
        report.progress(layer, self._done, self._rounds)
        report.add(layer, "rounds")
        report.add(layer, "sends", findings.sends)
        report.add(layer, "acknowledged messages", findings.acknowledged)
        report.add(layer, "consumed records", findings.consumed)
        report.add(layer, f"rounds with {shape.flush}, {shape.links}")
        for name in outcome.faults:
            report.add(layer, f"times {name}")
        lost = findings.lost_bytes
        for recovery in findings.recoveries:
            report.recovery(layer, recovery.what, recovery.seconds, lost.pop(recovery.what, 0))
        if outcome.level_s:
            report.recovery(layer, "peace until level", outcome.level_s)
        for name, count in findings.counts.items():
            report.violation(layer, name, count)
        if self._timelines < TIMELINES_MAX and outcome.timeline.faults:
            self._timelines += 1
            self._plot(seed, outcome)

    def _plot(self, seed: int, outcome: Outcome) -> None:
        report, layer, line = self.report, self._layer, outcome.timeline
        report.series(layer, f"OK, seed {seed}", line.throughput, "OK a second")
        for node, points in line.lag.items():
            report.series(layer, f"{node}, seed {seed}", points, "bytes behind")
        if self._timelines == 1:
            for what, begin_s, end_s in line.faults:
                report.span(layer, what, begin_s, end_s)

    def fail(self, seed: int, shape: Shape, outcome: Outcome, cluster: Cluster) -> None:
        """What was broken, and where the files are that show it."""
        verdicts = outcome.findings.verdicts
        lines = [f"{shape}; faults: {', '.join(outcome.faults)}; kept: {cluster.root}"]
        lines += [str(one) for one in verdicts[:VERDICTS_SHOWN]]
        if len(verdicts) > VERDICTS_SHOWN:
            lines.append(f"and {len(verdicts) - VERDICTS_SHOWN} more")
        lines += [f"--- {node.name}\n{node.tail()}" for node in cluster.nodes]
        self.report.failure(self._layer, seed, "\n".join(lines))


class _Run:
    def __init__(self, rounds: int, seed: int, report: Report, directory: Path) -> None:
        self._seeds = list(range(seed, seed + rounds))
        self._report = report
        self._teller = Teller(LAYER, report, rounds)
        self._directory = directory

    def run(self) -> None:
        while self._seeds:
            group = self._seeds[0] // ROUNDS_A_CLUSTER
            seeds = [one for one in self._seeds if one // ROUNDS_A_CLUSTER == group]
            shape = shape_of(seeds[0])
            hosts: Hosts | None = None
            if shape.links == "netns":
                try:
                    hosts = Hosts(shape.brokers)
                except NoHosts as error:
                    self._report.figure(LAYER, "network namespaces", f"not used: {error}")
                    shape = shape._replace(links="proxy")
            try:
                played = run_in(
                    None if hosts is None else hosts.hub,
                    partial(asyncio.run, self._play(shape, hosts, seeds)),
                )
            finally:
                if hosts is not None:
                    hosts.close()
            self._seeds = self._seeds[played:]

    async def _play(self, shape: Shape, hosts: Hosts | None, seeds: list[int]) -> int:
        """How many of the seeds were played by one cluster."""
        root = self._directory / f"seed-{seeds[0]}"
        cluster = Cluster(root, shape, hosts)
        kept = False
        try:
            try:
                await cluster.start()
            except NotSoInTime as error:
                kept = True
                self._teller.failed_start(seeds[0], shape, str(error))
                return 1
            play = Play(cluster)
            for count, seed in enumerate(seeds, 1):
                outcome = await play.round(seed)
                self._teller.tell(seed, shape, outcome)
                if not outcome.ok:
                    kept = True
                    histories.dump(outcome.events, root / f"history-{seed}.jsonl")
                    self._teller.fail(seed, shape, outcome, cluster)
                    return count
            return len(seeds)
        finally:
            await cluster.close()
            if not kept:
                shutil.rmtree(root)
