"""The simulator: a seed in, a judged run out.

    0 s          the brokers start, clients send and read
    … 20 s       faults, by the seed
    then         everything heals; what is left to an operator he decides; all has to be level and OK
    at last      the logs of all nodes and the whole history go to the checker

One process, one thread, virtual time: a run of a seed is the same in every detail wherever it runs.
"""

from __future__ import annotations

import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commitlog.errors import CommitLogError
from commitlog.options import FlushDiskType
from haservice.configuration.settings import BrokerRole, ReadMark
from haservice.remoting.headers.lineage import ReinitHeader
from tests.chaos import checker, history
from tests.chaos.early import workers
from tests.chaos.report import Report
from tests.chaos.sim_clients import Consumer, Operator, Producer
from tests.chaos.sim_clock import BEGIN_S, virtual
from tests.chaos.sim_faults import Faults
from tests.chaos.sim_world import Mode, World

LAYER = "sim"
FAULTS_S = 20.0
SETTLE_S = 20.0
# After this an operator looks at what does not go on by itself.
OPERATOR_S = 10.0
DECIDED_S = 3.0
LOOK_S = 0.5
STEPS_MAX = 200_000
# Timelines of so many seeds are drawn.
TIMELINES = 1
_SEEDS_PER_TASK = 10
# A slave has promised itself to a broker that is no more, which nobody can know but a person.
PLEDGED = "has promised"
# It follows the other one of two masters that began one number, and only a further epoch is above both.
TWO_MASTERS = "two masters have epoch"
# Two logs that have no epoch in common are for a person; two that differ in one they share never are.
NOT_ONE_LOG = "no epoch of a master is in both logs"


@dataclass(slots=True)
class Outcome:
    """One seed's run."""

    seed: int
    mode: str
    verdicts: list[checker.Verdict]
    findings: checker.Findings
    steps: int
    digest: int
    faults: dict[str, int]
    trace: list[str]
    operator: dict[str, int] = field(default_factory=dict)
    error: str = ""
    events: list[history.Event] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.verdicts and not self.error

    def text(self) -> str:
        """Why it fails, and its last steps."""
        lines = [f"{self.mode}"]
        lines += [str(verdict) for verdict in self.verdicts[:10]]
        if self.error:
            lines.append(self.error)
        return "\n".join([*lines, "the last steps:", *self.trace])


def draw_mode(source: random.Random) -> Mode:
    """How the brokers of a seed are configured."""
    slaves = source.choice((1, 1, 2, 3))
    flushes = (FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH)
    master_flush = source.choice(flushes)
    return Mode(
        slaves=slaves,
        master_role=source.choice((BrokerRole.SYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER)),
        master_flush=master_flush,
        slave_flush=source.choice((master_flush, source.choice(flushes))),
        segment_bytes=source.choice((8192, 16384, 65536)),
        in_sync_replicas=source.choice((1, 2, min(3, slaves + 1))),
        read_mark=source.choice((ReadMark.IN_SYNC, ReadMark.IN_SYNC, ReadMark.STRICT)),
    )


class Simulation:
    """One run."""

    def __init__(self, seed: int, directory: Path, mode: Mode | None = None) -> None:
        source = random.Random(seed)
        self.mode = mode if mode is not None else draw_mode(source)
        self.world = World(seed, self.mode, directory, source)
        self.operator = Operator(self.world)
        self.faults = Faults(self.world, self.operator)
        self.producers: list[Producer] = []

    def run(self) -> Outcome:
        world, error = self.world, ""
        try:
            with virtual(world.clock):
                try:
                    self._live()
                    self._heal()
                    self._settle()
                    self._final_logs()
                except Exception:
                    error = traceback.format_exc(limit=-12)
        finally:
            with virtual(world.clock):
                for node in world.nodes.values():
                    node.crash()
        findings = checker.check(world.events)
        return Outcome(
            world.seed,
            str(self.mode),
            [*world.verdicts, *findings.verdicts],
            findings,
            world.clock.steps,
            world.digest,
            self.faults.count,
            world.last_steps(),
            {
                "failovers": self.operator.failovers,
                "forced": self.operator.forced,
                "switchovers": self.operator.switchovers,
                "told to forget a replica": self.operator.forgotten,
                "told so without a master": self.operator.written_off,
            },
            error,
            world.events,
        )

    def _live(self) -> None:
        world, source = self.world, self.world.source
        for node in world.nodes.values():
            node.boot()
        world.clients += ["p1", "p2", "c1"]
        pause_s = source.choice((0.1, 0.3, 0.8))
        self.producers = [Producer(world, name, pause_s) for name in ("p1", "p2")]
        Consumer(world, "c1", 0.5)
        world.registrations()
        self._sample()
        self.faults.begin(source.choice((0.5, 1.5, 3.0)))
        self._run_until(FAULTS_S)

    def _run_until(self, at_s: float) -> None:
        self.world.clock.run_until(BEGIN_S + at_s)
        if self.world.clock.steps > STEPS_MAX:
            raise AssertionError(f"{self.world.clock.steps} steps by {self.world.now_s} s: something spins")

    def _sample(self) -> None:
        world = self.world
        master = world.nodes.get(world.registered)
        if master is not None and master.up:
            for node in world.nodes.values():
                if node is not master and node.up:
                    lag = max(0, master.store.log.end - node.store.log.end)
                    world.put(history.Sampled(world.now_s, node.name, lag))
        world.later(1.0, self._sample)

    # -- the end ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        world = self.world
        world.note("HEAL")
        self.faults.heal_all()
        for node in world.nodes.values():
            node.disk.heal()
            node.frozen_until_s = 0.0
            world.start_again(node)

    def _settle(self) -> None:
        """Until all is level and OK; what waits for an operator he decides meanwhile."""
        world = self.world
        healed_s = world.now_s
        decided_s = healed_s
        while True:
            self._run_until(world.now_s + LOOK_S)
            why = self._unsettled(healed_s)
            if not why:
                break
            passed_s = world.now_s - healed_s
            if passed_s >= OPERATOR_S and world.now_s - decided_s >= DECIDED_S:
                decided_s = world.now_s
                self._decide()
            if passed_s >= SETTLE_S:
                break
        world.put(history.Settled(world.now_s, not why, why))
        for producer in self.producers:
            producer.stopped = True
        self._run_until(world.now_s + 5.0)
        if not why:
            why = self._unsettled(healed_s)
            if why:
                world.put(history.Settled(world.now_s, False, f"again: {why}"))

    def _unsettled(self, healed_s: float) -> str:
        """What is not as it should be when nothing is broken; empty when all is."""
        world = self.world
        down = [f"{node}: {node.broken or 'down'}" for node in world.nodes.values() if not node.up]
        if down:
            return "; ".join(down)
        masters = [node for node in world.nodes.values() if not node.role.is_slave]
        if len(masters) != 1:
            return f"{len(masters)} masters: {masters}"
        (master,) = masters
        if master.roles.state.held or master.store.log.writable is not None:
            return f"{master} refuses writes: {master.roles.state.held or master.store.log.writable}"
        for node in world.nodes.values():
            if node.link is not None and (
                not node.link.transfers or node.store.log.end < master.store.log.end - 64 * 1024
            ):
                why = node.link.refused or "not level"
                return f"{node} at {node.store.log.end} of {master.store.log.end}: {why}"
        if not all(producer.last_ok_s > healed_s for producer in self.producers):
            return "no OK since"
        if all(producer.stopped for producer in self.producers):
            for node in world.nodes.values():
                if node.store.log.end != master.store.log.end:
                    return f"{node} ends at {node.store.log.end}, {master} at {master.store.log.end}"
        return ""

    def _decide(self) -> None:
        """An operator looks at what does not go on by itself, and does what it says."""
        world = self.world
        masters = [node for node in world.nodes.values() if node.up and not node.role.is_slave]
        held = [node for node in masters if node.roles.state.held]
        refused = [
            one for one in world.nodes.values() if one.up and one.link is not None and one.link.refused
        ]
        if len(masters) != 1 or held:
            world.note(
                "an operator decides: {}", held[0].roles.state.held if held else f"{len(masters)} masters"
            )
            self._count("decided by an operator: who is the master")
            self.operator.fail_over(may_force=True)
            return
        if masters[0].name != world.registered:
            world.note("an operator makes {} begin an epoch that nameservers take", masters[0])
            self._count("decided by an operator: an epoch that nameservers take")
            self.operator.fail_over(may_force=True, to=masters[0].name)
            return
        whys = [one.link.refused for one in refused if one.link is not None]
        if any(PLEDGED in why or TWO_MASTERS in why for why in whys):
            world.note("an operator makes {} begin an epoch that all may follow", masters[0])
            self._count("decided by an operator: an epoch that all may follow")
            self.operator.fail_over(may_force=True, to=masters[0].name)
        for node in refused:
            if node.link is not None and NOT_ONE_LOG in node.link.refused:
                world.note("an operator renews {}", node)
                self._count("decided by an operator: a slave renewed")
                node.requested(ReinitHeader(), lambda _: None)

    def _count(self, what: str) -> None:
        self.faults.count[what] = self.faults.count.get(what, 0) + 1

    def _final_logs(self) -> None:
        world = self.world
        for node in world.nodes.values():
            if not node.up:
                continue
            try:
                data = node.log_bytes()
            except CommitLogError as error:
                world.broken(checker.Violation.CORRUPT, f"the log of {node} cannot be read: {error}")
                continue
            log = node.store.log
            world.put(
                history.final_log(
                    node.name,
                    data,
                    log.start,
                    log.segment_bytes,
                    at_s=world.now_s,
                    surviving=node.name == world.registered,
                )
            )
            self._check_queues(node.name)

    def _check_queues(self, name: str) -> None:
        """What a node's queues say is what its log says."""
        node, world = self.world.nodes[name], self.world
        wanted: dict[tuple[str, int], list[int]] = {}
        for record in node.records:
            topic, queue, offset = record.place
            places = wanted.setdefault((topic, queue), [])
            if offset < len(places):
                del places[offset:]
            places.append(record.offset)
        for key, places in wanted.items():
            queue_ = node.store.queues.get(*key)
            entries = queue_.read(0, len(places) + 10) if queue_ is not None else []
            found = [entry.physical_offset for entry in entries]
            if node.store.log.start == 0 and found != places:
                at = next(
                    (n for n, pair in enumerate(zip(found, places, strict=False)) if pair[0] != pair[1]),
                    min(len(found), len(places)),
                )
                world.broken(
                    checker.Violation.QUEUE_GAP,
                    f"queue {key[0]}/{key[1]} of {node} has {len(found)} entries for {len(places)} records,"
                    f" and differs from {at} on: {found[at : at + 3]}, wanted {places[at : at + 3]}",
                )


def simulate(seed: int, directory: Path, mode: Mode | None = None) -> Outcome:
    """Runs one seed; `directory` holds nothing but lock files."""
    return Simulation(seed, directory, mode).run()


# -- the layer ---------------------------------------------------------------------------------------


def _seed(seed: int, first: int, directory: Path) -> Outcome:
    """With its events if it is the first of its task."""
    outcome = simulate(seed, directory)
    if seed != first or not outcome.ok:
        outcome.events = []
    return outcome


def _seeds(seeds: list[int], directory: Path) -> list[Outcome]:
    """In a process of its own."""
    own = directory / str(seeds[0])
    own.mkdir()
    return [_seed(seed, seeds[0], own) for seed in seeds]


def outcomes(rounds: int, seed: int, jobs: int) -> Iterator[Outcome]:
    """Of the seeds from `seed` on, in their order."""
    seeds = range(seed, seed + rounds)
    with tempfile.TemporaryDirectory(prefix="chaos-sim-") as root:
        directory = Path(root)
        if jobs == 1:
            for one in seeds:
                yield _seed(one, seed, directory)
            return
        tasks = [list(seeds[at : at + _SEEDS_PER_TASK]) for at in range(0, rounds, _SEEDS_PER_TASK)]
        with workers(jobs) as pool:
            parts = [pool.submit(_seeds, task, directory) for task in tasks]
            for part in parts:
                yield from part.result()


def run(rounds: int, seed: int, report: Report) -> None:
    """The layer: `rounds` seeds from `seed` on."""
    faults: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    drawn = 0
    try:
        for done, outcome in enumerate(outcomes(rounds, seed, report.jobs), 1):
            _tell(outcome, report)
            faults.update(outcome.faults)
            modes[outcome.mode.partition(",")[0]] += 1
            if outcome.events and drawn < TIMELINES:
                drawn += 1
                _draw(outcome, report)
            report.progress(LAYER, done, rounds)
    finally:
        for name, count in sorted(faults.items()):
            report.add(LAYER, f"times {name}", count)
        for name, count in sorted(modes.items()):
            report.add(LAYER, f"seeds with {name}", count)


def _tell(outcome: Outcome, report: Report) -> None:
    findings = outcome.findings
    report.add(LAYER, "seeds")
    report.add(LAYER, "steps", outcome.steps)
    report.add(LAYER, "sends", findings.sends)
    report.add(LAYER, "acknowledged", findings.acknowledged)
    report.add(LAYER, "consumed", findings.consumed)
    for name, count in outcome.operator.items():
        report.add(LAYER, name, count)
    for recovery in findings.recoveries:
        report.recovery(LAYER, recovery.what, recovery.seconds)
    for why, lost in findings.lost_bytes.items():
        report.add(LAYER, f"bytes lost beyond every promise: {why}", lost)
    for verdict in outcome.verdicts:
        report.violation(LAYER, verdict.violation.value)
    if not outcome.ok:
        report.failure(LAYER, outcome.seed, outcome.text())


def _draw(outcome: Outcome, report: Report) -> None:
    """The timeline of one seed."""
    line = checker.timeline(outcome.events)
    report.series(LAYER, "acknowledged", line.throughput, "OK a second")
    for node, points in line.lag.items():
        report.series(LAYER, f"lag of {node}", points, "bytes behind")
    for what, begin_s, end_s in line.faults:
        report.span(LAYER, what, begin_s, end_s)
