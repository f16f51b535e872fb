"""Real brokers and real clients; a round is two or three faults, and then everything has to be right.

    seed ── group (of ten seeds in a row) ── kind, shape ── faults ── history ── checker

Of each ten seeds in a row one cluster serves all, unless a round fails: its directory is kept, and the next
round has a new one.  Groups are played one after the other, or several beside each other (proc_pool.py).
"""

from __future__ import annotations

import random
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path

from tests.chaos import history as histories
from tests.chaos.early import ending_on_sigterm
from tests.chaos.libc_shim import NoShim
from tests.chaos.netns import Hosts, NoHosts, run_loop_in
from tests.chaos.power_disk import NoDisks
from tests.chaos.proc_cluster import Cluster, NotSoInTime, Shape
from tests.chaos.proc_java import NoJava
from tests.chaos.proc_kinds import ALL_FAULTS, KINDS, SLOW, clients_of, kind_of, steps_of
from tests.chaos.proc_pool import play_beside
from tests.chaos.proc_round import Outcome, Play
from tests.chaos.report import HARNESS_FAILED, Report

LAYER = "processes"
ROUNDS_A_CLUSTER = 10
# Timelines that are kept for plots.
TIMELINES_MAX = 1
# Of each class.
VERDICTS_SHOWN = 3
FAILED_STARTS_MAX = 2
# Whoever else uses the machine may be quicker with a port that was free.
PORT_TAKEN = "the port is already taken"
STARTS_AGAIN_MAX = 3


class Left(Exception):
    """This machine has not what a kind needs; the text says what."""


def shape_of(kind: str, seed: int) -> Shape:
    """All rounds of a group have one."""
    return KINDS[kind].shape(random.Random(f"{kind} {seed // ROUNDS_A_CLUSTER}"))


def run(rounds: int, seed: int, report: Report, only: Sequence[str] = (), resume: bool = False) -> None:
    """Seeds `seed` … `seed + rounds - 1`, of the kinds that are named, or all; without those that were played
    already, by what the report's directory says, if `resume`.
    """
    done = report.played(LAYER) if resume else set()
    seeds = [one for one in range(seed, seed + rounds) if one not in done]
    groups: dict[int, list[int]] = {}
    for one in seeds:
        groups.setdefault(one // ROUNDS_A_CLUSTER, []).append(one)
    began_s, began_cpu_s = time.monotonic(), _cpu_s()
    with ending_on_sigterm():
        if report.jobs > 1:
            tasks = [(kind_of(group, only), some) for group, some in groups.items()]
            tasks.sort(key=lambda task: task[0] not in SLOW)  # so that none of them is the last one alone
            play_beside(LAYER, tasks, report.jobs, report)
        else:
            teller = Teller(LAYER, report, len(seeds))
            for group, some in groups.items():
                play_group(kind_of(group, only), some, report, teller)
    hours = (time.monotonic() - began_s) / 3600
    if seeds:
        report.figure(LAYER, f"rounds an hour, {report.jobs} beside each other", round(len(seeds) / hours))
        report.figure(LAYER, "CPU seconds a round", round((_cpu_s() - began_cpu_s) / len(seeds), 2))


def _cpu_s() -> float:
    """Of this process, and of all that have ended below it."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in uses)


def play_group(kind: str, seeds: Sequence[int], report: Report, teller: Teller) -> None:
    """Plays them all, with one cluster as long as none fails."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-processes-"))
    left = list(seeds)
    try:
        while left:
            played = _play_some(kind, left, directory, teller)
            left = left[played:]
    except Left as error:
        report.figure(LAYER, f"{kind} rounds", f"left out: {error}")
        for seed in left:
            report.round(LAYER, seed, kind, True, 0.0)
    finally:
        if not any(directory.iterdir()):
            directory.rmdir()


def _play_some(kind: str, seeds: list[int], directory: Path, teller: Teller) -> int:
    """How many of the seeds were played by one cluster.  Raises Left."""
    shape, hosts = shape_of(kind, seeds[0]), None
    if shape.links == "netns":
        try:
            hosts = Hosts(shape.hosts)
        except NoHosts as error:
            if kind != "classic":
                raise Left(str(error)) from None
            shape = shape._replace(links="proxy")
    try:
        root = directory / f"seed-{seeds[0]}"
        return run_loop_in(
            None if hosts is None else hosts.hub, lambda: _play(kind, root, shape, hosts, seeds, teller)
        )
    finally:
        if hosts is not None:
            hosts.close()


async def _play(
    kind: str, root: Path, shape: Shape, hosts: Hosts | None, seeds: list[int], teller: Teller
) -> int:
    cluster = Cluster(root, shape, hosts)
    closers: list[Callable[[], None]] = []

    def play() -> Play:
        return Play(cluster, ALL_FAULTS, clients=clients_of(cluster, closers))

    return await play_seeds(
        kind, cluster, play, lambda seed: steps_of(kind, seed, shape), seeds, teller, closers
    )


async def play_seeds(
    kind: str,
    cluster: Cluster,
    make_play: Callable[[], Play],
    steps: Callable[[int], Sequence[tuple[str, ...]]],
    seeds: list[int],
    teller: Teller,
    closers: Sequence[Callable[[], None]] = (),
) -> int:
    """Starts and closes the cluster, whose files stay if a round fails.  How many were played; raises Left."""
    root, shape, kept = cluster.root, cluster.shape, False
    try:
        try:
            await cluster.start()
            play = make_play()
        except (NoJava, NoDisks, NoShim) as error:
            raise Left(str(error)) from None
        except NotSoInTime as error:
            if PORT_TAKEN in str(error) and teller.may_start_again():
                return 0
            kept = True
            teller.failed_start(seeds[0], kind, shape, str(error))
            return 1
        for count, seed in enumerate(seeds, 1):
            began_s = time.monotonic()
            try:
                outcome = await play.round(seed, steps(seed))
            except Exception as error:  # a run of hours goes on behind it
                if teller.may_play_again(seed, error):
                    return count - 1
                kept = True
                teller.harness_failed(seed, kind, shape, error)
                return count
            teller.tell(seed, kind, shape, outcome, time.monotonic() - began_s)
            if not outcome.ok:
                kept = True
                histories.dump(outcome.events, root / f"history-{seed}.jsonl")
                teller.fail(seed, kind, shape, outcome, cluster)
                return count
        return len(seeds)
    finally:
        for close in closers:
            close()
        if kept:
            cluster.keep_stores()
        await cluster.close()
        if not kept:
            shutil.rmtree(root, ignore_errors=True)


def play_on_hosts(
    layer: str,
    seeds: Sequence[int],
    rounds_a_cluster: int,
    hosts_of: Callable[[int], int],
    play: Callable[[Path, Hosts, list[int]], Coroutine[None, None, int]],
    report: Report,
) -> None:
    """`play(root, hosts, some seeds)` plays those with one cluster, and says how many it has played.

    `hosts_of(seed)` says how many hosts it takes.  The report says why not where something is missing.
    """
    directory, left = Path(tempfile.mkdtemp(prefix=f"chaos-{layer}-")), list(seeds)
    try:
        with ending_on_sigterm():
            while left:
                some = [one for one in left if one // rounds_a_cluster == left[0] // rounds_a_cluster]
                hosts = Hosts(hosts_of(some[0]))
                try:
                    root = directory / f"seed-{some[0]}"
                    left = left[run_loop_in(hosts.hub, partial(play, root, hosts, some)) :]
                finally:
                    hosts.close()
    except (NoHosts, Left) as error:
        report.absent(layer, str(error))
    finally:
        if not any(directory.iterdir()):
            directory.rmdir()


class Teller:
    """What the rounds of a layer were, into its report."""

    def __init__(self, layer: str, report: Report, rounds: int) -> None:
        self.report = report
        self._layer = layer
        self._rounds = rounds
        self.done = 0
        """How many rounds are over, however they ended."""
        self._timelines = 0
        self._failed_starts = self._starts_again = 0
        self._again: set[int] = set()

    def may_play_again(self, seed: int, error: Exception) -> bool:
        """After a round that the harness could not judge; once for each seed, and the report says why."""
        if seed in self._again:
            return False
        self._again.add(seed)
        self.report.add(self._layer, "rounds played again")
        self.report.figure(self._layer, f"seed {seed} played again", _first_line(error))
        return True

    def may_start_again(self) -> bool:
        """After a start that is not worth telling; a few times in a row."""
        self._starts_again += 1
        return self._starts_again <= STARTS_AGAIN_MAX

    def failed_start(self, seed: int, kind: str, shape: Shape, text: str) -> None:
        """Raises NotSoInTime when one start after the other fails, and none would do better."""
        self._broken_round(seed, kind, shape, text)
        self._failed_starts += 1
        if self._failed_starts == FAILED_STARTS_MAX:
            raise NotSoInTime(text)

    def harness_failed(self, seed: int, kind: str, shape: Shape, error: Exception) -> None:
        """The round was not judged, for a fault of the harness or of its machine."""
        self.report.add(self._layer, HARNESS_FAILED)
        trace = "".join(traceback.format_exception(error))
        self._broken_round(seed, kind, shape, f"harness failed: {_first_line(error)}\n{trace}")

    def _broken_round(self, seed: int, kind: str, shape: Shape, text: str) -> None:
        self.done += 1
        self.report.progress(self._layer, self.done, self._rounds)
        self.report.failure(self._layer, seed, f"{kind}: {shape}: {text}", self._repeat(seed, kind))
        self.report.round(self._layer, seed, kind, False, 0.0)

    def _repeat(self, seed: int, kind: str) -> str:
        return f"scripts/chaos --rounds 1 --seed {seed} {self._layer}{self.option(kind)}"

    def option(self, kind: str) -> str:
        """What makes the layer play this kind again."""
        return f" --only {kind}" if self._layer == LAYER else ""

    def tell(self, seed: int, kind: str, shape: Shape, outcome: Outcome, seconds: float = 0.0) -> None:
        report, layer, findings = self.report, self._layer, outcome.findings
        self.done += 1
        self._failed_starts = self._starts_again = 0
        report.progress(layer, self.done, self._rounds)
        report.add(layer, "rounds")
        report.add(layer, "sends", findings.sends)
        report.add(layer, "acknowledged messages", findings.acknowledged)
        report.add(layer, "consumed records", findings.consumed)
        report.add(layer, f"rounds of {kind}")
        report.add(layer, f"rounds with {shape.flush}, {shape.links}")
        if shape.in_sync > 1:
            report.add(layer, f"rounds with inSyncReplicas {shape.in_sync}")
        if findings.owed:
            report.add(layer, "messages owed later", findings.owed)
            report.add(layer, "of them delivered again", findings.delivered_again)
        report.round(layer, seed, kind, outcome.ok, seconds)
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
        report.series(layer, "OK", line.throughput, "OK a second", seed)
        for node, points in line.lag.items():
            report.series(layer, node, points, "bytes behind", seed)
        for what, begin_s, end_s in line.faults:
            report.span(layer, what, begin_s, end_s, seed)

    def fail(self, seed: int, kind: str, shape: Shape, outcome: Outcome, cluster: Cluster) -> None:
        """What was broken, and where the files are that show it."""
        verdicts = outcome.findings.verdicts
        lines = [f"{kind}: {shape}; faults: {', '.join(outcome.faults)}; kept: {cluster.root}"]
        for violation, count in outcome.findings.counts.items():
            some = [str(one) for one in verdicts if one.violation.value == violation]
            lines += some[:VERDICTS_SHOWN]
            if count > VERDICTS_SHOWN:
                lines.append(f"and {count - VERDICTS_SHOWN} more: {violation}")
        lines += [f"--- {node.name}\n{node.tail()}" for node in cluster.nodes]
        self.report.failure(self._layer, seed, "\n".join(lines), self._repeat(seed, kind))


class FaultTeller(Teller):
    """Of a layer whose rounds may be those of some faults only."""

    def __init__(self, layer: str, report: Report, rounds: int, only: Sequence[str]) -> None:
        super().__init__(layer, report, rounds)
        self.only = only

    def option(self, kind: str) -> str:
        return "".join(f' --only "{name}"' for name in self.only)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
