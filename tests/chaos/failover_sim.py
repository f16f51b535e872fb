"""Failover without an operator, on virtual time: brokers, a coordinator, and faults of both; a round is a seed.

    0 s          the brokers start with an empty coordinator, clients send
    … 35 s       faults, by the seed
    then         everything heals: one broker has to be master, and to answer OK
    at last      the history goes to the checker that judges every other layer

The rules of docs/failover.md are looked at whenever something happens that could break one:

    an OK                an offset is acknowledged once; by nobody once a newer epoch has begun; with its acks
    an epoch begins      above all before; in SYNC_MASTER all that was acknowledged is in its log, in ASYNC_MASTER all
                         but haMaxLossBytes below the end that the last master told
    a log is cut         nothing that was acknowledged goes with it
    a message comes      one broker alone has an open gate
    the coordinator      its epoch never falls; only the holder of the lease changes the voters; nobody takes the
                         lease while failover is paused, but who is asked to; nor of a restored backup;
                         nobody hands over before he is asked to
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from haservice.coordination.cluster import (
    EPOCH,
    MASTER,
    REQUEST,
    SETTINGS,
    STATUS,
    VOTERS,
    Settings,
    decode,
)
from haservice.coordination.coordinator import Snapshot, Transaction
from haservice.coordination.rounds import WATCHED
from haservice.typed_json import encode
from tests.chaos import checker, history
from tests.chaos.checker import Verdict, Violation
from tests.chaos.failover_faults import Faults
from tests.chaos.failover_node import Entry, Node, Waiting
from tests.chaos.failover_stuck import why_stuck
from tests.chaos.report import Report
from tests.chaos.seeds import Outcome, run_seeds
from tests.chaos.sim_clock import BEGIN_S, Clock
from tests.support.memory_coordinator import MemoryServer

LAYER = "failover"
FAULTS_S = 35.0
SETTLE_S = 20.0
PACE_S = (0.02, 0.25)
STEPS_MAX = 200_000
_SEEDS_PER_TASK = 50
_TRACE = 60


@dataclass(frozen=True, slots=True)
class Mode:
    """How the brokers of a seed are set up."""

    brokers: int
    needed: int
    max_loss: int
    failsafe: bool

    def __str__(self) -> str:
        role = f"SYNC_MASTER inSyncReplicas={self.needed + 1}" if self.needed else "ASYNC_MASTER"
        return f"{role}, {self.brokers} brokers, haMaxLossBytes={self.max_loss}, haFailsafe={self.failsafe}"


def draw_mode(source: random.Random) -> Mode:
    brokers = source.choice((2, 2, 3, 3, 4))
    needed = source.choice((0, 1, 1, min(2, brokers - 1)))
    return Mode(brokers, needed, source.choice((0, 5, 20)), source.random() < 0.7)


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, mode: Mode | None = None) -> None:
        self.seed = seed
        self.source = random.Random(seed)
        self.mode = mode if mode is not None else draw_mode(self.source)
        self.needed = self.mode.needed
        self.clock = Clock()
        self.server = MemoryServer(lambda: self.clock.now_s, self._committed)
        self.coordinator_up = True
        self.cut_off: set[str] = set()
        """Brokers that do not reach the coordinator."""
        self.blocked: set[frozenset[str]] = set()
        """Pairs of brokers that do not reach each other."""
        self.stale: dict[str, Snapshot] = {}
        """What a server that lags behind tells these brokers."""
        self.late = 0.0
        """The share of questions that come, or are answered, late or never."""
        self.full = False
        """Whether the coordinator takes no writes."""
        self.denied: set[str] = set()
        """Brokers that may neither read nor write there."""
        self.late_answers: set[str] = set()
        """Brokers whose answers take nearly as long as they wait."""
        self.lost_commits: set[str] = set()
        """Brokers whose transactions get lost."""
        self.hold = ""
        """Transactions that write this key are held on their way, in `held`, until let_go()."""
        self.held: list[Callable[[], None]] = []
        self.watch_share = 0.8
        """How much of what changes a watch tells."""
        self.quiet = False
        """Whether nobody sends."""
        self.pace_s = PACE_S
        """Between two messages."""
        self.restored = False
        self.ended_early = False
        """Whether a session was ever ended before its time: then a lease proves nothing, and only seals do."""
        self.emptied: set[str] = set()
        """Brokers whose log was emptied, and that have not been level with a master since."""
        self.alarms: list[str] = []
        """What operators had to read."""
        self.committing: Node | None = None
        self.nodes = [
            Node(self, name, self.source.uniform(0.97, 1.03)) for name in "abcd"[: self.mode.brokers]
        ]
        self._begin_to_look()
        self.faults = Faults(self)

    def _begin_to_look(self) -> None:
        self.verdicts: list[Verdict] = []
        self.count: Counter[str] = Counter()
        self.events: list[history.Event] = []
        self.trace: list[str] = []
        self._oks: dict[int, tuple[Entry, int]] = {}
        """End → what was acknowledged there, and the acks that it took; what may be gone is taken out."""
        self._newest = -1
        self._epochs_max = -1
        self._told: tuple[str, int] = ("", 0)
        """Which master told last where his log ends, and where."""
        self._asked_ms = self._numbers = 0
        self.last_ok_s, self.last_ok_epoch = -math.inf, -1

    # -- for nodes ----------------------------------------------------------------------------------

    def draw(self, low: float, high: float) -> float:
        return self.source.uniform(low, high)

    def latency(self) -> float:
        return self.source.uniform(0.0005, 0.03)

    def by_id(self, replica_id: str) -> Node | None:
        return next((one for one in self.nodes if one.id == replica_id), None)

    def connected(self, one: Node, other: Node) -> bool:
        return one.up and other.up and frozenset({one.name, other.name}) not in self.blocked

    def way_to_coordinator(self, node: Node) -> float | None:
        """How long a packet takes there or back; None if it is lost."""
        if node.name in self.cut_off or not self.coordinator_up:
            return None
        if self.late and self.source.random() < self.late:
            return None if self.source.random() < 0.5 else self.source.uniform(0.2, 6.0)
        return self.source.uniform(0.0005, 0.01)

    def read(self, node: Node) -> Snapshot:
        now = self.server.read()
        return self.stale.get(node.name, now)

    def let_go(self) -> None:
        """What was held on its way comes."""
        self.hold = ""
        for call in self.held:
            call()
        self.held.clear()

    def note(self, text: str) -> None:
        self.trace.append(f"{self.clock.now_s - BEGIN_S:8.3f} {text}")

    def broken(self, violation: Violation, text: str) -> None:
        self.note(f"BROKEN {violation.value}: {text}")
        self.verdicts.append(Verdict(violation, text, self.clock.now_s - BEGIN_S))

    # -- what is looked at --------------------------------------------------------------------------

    def appended(self, node: Node) -> None:
        entry = node.log[-1]
        key = str(entry.number)
        at_s = self.clock.now_s
        self.events.append(history.Invoked(at_s, key, key, "t", 0, entry.number, 1, "p", deadline_s=math.inf))
        others = [one.name for one in self.nodes if one is not node and one.serves]
        if others and not self.ended_early:
            self.broken(Violation.DIVERGED, f"{node.name} and {others} take messages at one time")

    def released(self, node: Node, wait: Waiting, needed: int) -> None:
        end, entry = wait
        self.last_ok_s = self.clock.now_s
        self.count["acknowledged"] += 1
        before = self._oks.get(end)
        if before is not None and before[0] != entry:
            self.broken(
                Violation.OFFSET_REUSED, f"{node.name} answers OK for {entry} at {end}, as was {before[0]}"
            )
        if (
            entry.epoch < self._newest
            and (needed == 0 or not self._has(entry, end))
            and not (needed and self.ended_early)
        ):
            self.broken(
                Violation.WRONG_OK,
                f"{node.name} answers OK for {entry} at {end}; epoch {self._newest} has begun",
            )
        holders = [one.name for one in self.nodes if _holds(one, entry, end)]
        if len(holders) <= needed:
            self.broken(Violation.WRONG_OK, f"{entry} at {end} is acknowledged, and only {holders} have it")
        self._oks[end] = (entry, needed)
        self.last_ok_epoch = entry.epoch
        self.events.append(
            history.Answered(
                self.clock.now_s, str(entry.number), history.OK, node.name, end - 1, end - 1, tuple(holders)
            )
        )

    def _has(self, entry: Entry, end: int) -> bool:
        """Whether the newest master has it."""
        return any(one.opened == self._newest and _holds(one, entry, end) for one in self.nodes)

    def promoted(self, node: Node, epoch: int) -> None:
        self.note(f"{node.name} begins epoch {epoch} at {len(node.log)}")
        self.count["epochs"] += 1
        if epoch <= self._newest and self.ended_early:
            return  # its lease was taken away; no OK of this epoch can come, which is looked at then
        if epoch <= self._newest:
            self.broken(Violation.DIVERGED, f"{node.name} begins epoch {epoch}, and {self._newest} has begun")
        self._newest = max(epoch, self._newest)
        lost = [end for end, (entry, _) in self._oks.items() if not _holds(node, entry, end)]
        holder, told_end = self._told
        self._told = (node.id, len(node.log))
        floor = told_end - self.mode.max_loss if holder != node.id else math.inf
        voided = []
        for end in lost:
            entry, needed = self._oks[end]
            if needed or end <= floor:
                text = f"{entry} at {end} is not in the log of {node.name}, which begins epoch {epoch}"
                self.broken(Violation.LOST, f"{text}; told was {told_end}, taken with {len(node.log)}")
            else:
                voided.append((end, entry))
                del self._oks[end]
        if voided:
            self.count["acknowledged and lost in ASYNC_MASTER"] += len(voided)
            self.events.append(
                history.Voided(
                    self.clock.now_s,
                    tuple(str(entry.number) for _, entry in voided),
                    "ASYNC_MASTER",
                    tuple(("t", 0, end - 1) for end, _ in voided),
                )
            )
        self.events.append(history.RoleChanged(self.clock.now_s, node.name, "master", epoch, len(node.log)))

    def cut(self, node: Node, point: int) -> None:
        for end in range(point + 1, len(node.log) + 1):
            ok = self._oks.get(end)
            if ok is not None and ok[0] == node.log[end - 1]:
                self.broken(Violation.LOST, f"{ok[0]} at {end} was acknowledged, and {node.name} cuts it off")

    def _committed(self, transaction: Transaction, session: int) -> None:
        node, puts = self.committing, transaction.puts
        assert node is not None
        now = decode(self.server.read())
        if EPOCH in puts:
            if now.epoch <= self._epochs_max and not self.restored:
                self.broken(
                    Violation.DIVERGED, f"{node.name} takes epoch {now.epoch} after {self._epochs_max}"
                )
            self._epochs_max = max(self._epochs_max, now.epoch)
        if MASTER in puts:
            self.note(f"{node.name} takes the lease with epoch {now.epoch}")
            if self.restored:
                self.broken(Violation.DIVERGED, f"{node.name} takes the lease of a restored backup")
            if now.settings.paused and REQUEST not in transaction.deletes:
                self.broken(Violation.DIVERGED, f"{node.name} takes the lease while failover is paused")
        if REQUEST in puts:
            assert now.request is not None
            # By the wall clock, when the switchover is due that was asked for last.
            if MASTER in transaction.deletes and node.now_ms() < self._asked_ms:
                self.broken(Violation.DIVERGED, f"{node.name} hands over before the time that is asked for")
            self._asked_ms = now.request.not_before_ms
        if VOTERS in puts:
            self.note(f"voters are {sorted(now.voters.ids)}, needed {now.voters.needed}")
            if self.server.owner(MASTER) is None:
                self.broken(Violation.DIVERGED, f"{node.name} changes the voters without a lease")
        if {MASTER, VOTERS} & puts.keys():
            self.faults.strike()
        if STATUS in puts and MASTER not in puts:
            assert now.status is not None
            if now.status.epoch <= self._newest:  # else it gives back a lease whose epoch it has not begun
                self._told = (now.status.replica_id, now.status.end)

    def needs_not_tell(self, node: Node) -> None:
        """A master finds that its slaves have enough: its promise is as if it had told its end."""
        if self.server.owner(MASTER) == node.session and node.opened == self._newest:
            self._told = (node.id, len(node.log))

    # -- the run ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The brokers start, and clients send."""
        settings = replace(Settings(), max_loss_bytes=self.mode.max_loss, failsafe=self.mode.failsafe)
        self.committing = self.nodes[0]
        self.server.commit(Transaction({SETTINGS: 0}, {SETTINGS: encode(settings)}), 0)
        self.server.watch(WATCHED, self._changed)
        for node in self.nodes:
            node.boot()
        self._send()

    def run(self, faults: Callable[[], None] | None = None, seconds: float = FAULTS_S) -> list[Verdict]:
        """`faults` begins them, those of the seed if nothing is said."""
        self.begin()
        self.clock.after(3.0, faults or self.faults.begin)
        self.clock.run_until(BEGIN_S + seconds)
        self.faults.heal_all()
        healed_s = self.clock.now_s
        self.clock.run_until(healed_s + SETTLE_S)
        assert self.clock.steps < STEPS_MAX * seconds / FAULTS_S, "something spins"
        self._judge(healed_s)
        return self.verdicts

    def _changed(self) -> None:
        """A watch tells, mostly."""
        for node in self.nodes:
            if (
                node.up
                and self.source.random() < self.watch_share
                and self.way_to_coordinator(node) is not None
            ):
                node.later(self.latency(), node.wake)

    def _send(self) -> None:
        self.clock.after(self.draw(*self.pace_s), self._send)
        for node in self.nodes:
            if node.up and not node.frozen and not self.quiet:
                self._numbers += 1
                node.send(self._numbers)

    def _judge(self, healed_s: float) -> None:
        at_s = self.clock.now_s
        masters = [one for one in self.nodes if one.serves]
        why = ""
        if len(masters) != 1 or self.last_ok_s < healed_s + SETTLE_S / 2:
            whys = "; ".join(f"{one.name}: {one.rounds.why or one.gate.why_shut}" for one in self.nodes)
            why = f"{len(masters)} masters, last OK {at_s - self.last_ok_s:.0f} s ago: {whys}"
        if why and why_stuck(self):
            self.note(f"STUCK {why_stuck(self)}: {why}")
            self.count["seeds that wait for an operator"] += 1
        elif why:
            self.broken(Violation.NOT_SETTLED, why)
        if len(masters) == 1:
            self.events += [self._final(one, masters[0]) for one in self.nodes if one.log]
        self.verdicts += checker.check(self.events).verdicts

    def _final(self, node: Node, master: Node) -> history.FinalLog:
        last_s = self.clock.now_s
        common = len(node.log) if node.link is not None or node is master else 0
        records = tuple(
            history.FinalRecord(str(one.number), "t", 0, at, at, 1, one.number)
            for at, one in enumerate(node.log[:common])
        )
        return history.FinalLog(last_s, node.name, 0, common, node is master, records, {})


def _holds(node: Node, entry: Entry, end: int) -> bool:
    return len(node.log) >= end and node.log[end - 1] == entry


# -- the layer --------------------------------------------------------------------------------------


def simulate(seed: int, mode: Mode | None = None) -> Outcome:
    world = World(seed, mode)
    verdicts = world.run()
    trace = world.trace[-_TRACE:] if verdicts else []
    return Outcome(seed, str(world.mode), verdicts, world.count, world.clock.steps, trace)


def run(rounds: int, seed: int, report: Report) -> None:
    """The layer: `rounds` seeds from `seed` on."""
    run_seeds(LAYER, simulate, range(seed, seed + rounds), _SEEDS_PER_TASK, report)
