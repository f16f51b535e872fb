"""DLedger groups on virtual time: three or five members, clients, and faults; a round is a seed.

    0 s          the members start with empty logs, clients append
    … 14 s       faults, by the seed
    then         everything heals: one member has to lead, answer OK, and bring the others level

After each step these are looked at, as the step may have broken them:

    election safety        one member at most leads a term, and none leads one twice
    log matching           an entry's index and term say its body, and the term of the entry before it
    leader completeness    who leads a term has all that was committed in earlier ones
    state-machine safety   what is committed at an index is the same everywhere, and for ever
    an OK                  a majority has the entry durably; it lies behind every OK that was known when it was sent
    a cut                  nothing that is committed goes with it
    a mended entry         is the one that was there
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import MemberRole
from haservice.dledger.messages import LedgerEntry, MemberMessage
from haservice.dledger.patience import GROWTH_MAX
from haservice.dledger.settings import MemberSettings
from haservice.dledger.wire import answer_command, read_request, request_command
from haservice.remoting.command import RemotingCommand, decode, encode
from haservice.remoting.frame import FrameReader
from tests.chaos.checker import Verdict, Violation
from tests.chaos.dledger_faults import Faults
from tests.chaos.dledger_node import Node, ReturnAddress
from tests.chaos.report import Report
from tests.chaos.seeds import Outcome, run_seeds
from tests.chaos.sim_clock import BEGIN_S, Clock

LAYER = "dledger"
FAULTS_S = 14.0
SETTLE_S = 10.0
# Of what has healed: from here on nobody may begin a new term.
CALM_S = 6.0
# So long nobody sends at the end, and then once more, behind the restart of a follower.
REST_S = 3.0
STEPS_MAX = 200_000
# Every so often a seed's messages go through the frames and the JSON of the wire.
_WIRE_EVERY = 20
_SEEDS_PER_TASK = 20
_TRACE = 80


@dataclass(frozen=True, slots=True)
class Mode:
    """How the group of a seed is set up."""

    members: int
    flushes: bool
    first_entry: bool
    preferred: bool
    small: bool
    """Small windows and batches, so that their bounds are met."""

    def __str__(self) -> str:
        flush = "SYNC_FLUSH" if self.flushes else "ASYNC_FLUSH"
        words = ["first entry"] * self.first_entry + ["preferred leader"] * self.preferred
        return ", ".join([f"{self.members} members, {flush}", *words, *["small windows"] * self.small])


def draw_mode(source: random.Random) -> Mode:
    return Mode(
        source.choice((3, 3, 3, 5)),
        source.random() < 0.7,
        source.random() < 0.7,
        source.random() < 0.25,
        source.random() < 0.5,
    )


@dataclass(slots=True)
class _Sent:
    """An append on its way."""

    bodies: tuple[bytes, ...]
    node: str
    boots: int
    ok_before: int
    """The highest index that was known to be acknowledged when it was sent."""


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, mode: Mode | None = None) -> None:
        self.seed = seed
        self.source = random.Random(seed)
        self.mode = mode if mode is not None else draw_mode(self.source)
        self.clock = Clock()
        self.through_wire = seed % _WIRE_EVERY == 0
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): no message gets there."""
        self.loss = self.twice = self.late = 0.0
        self.send_s = (0.01, 0.1)
        self.sends = True
        names = [f"n{number}" for number in range(self.mode.members)]
        peers = {name: f"{name}:40911" for name in names}
        self.nodes = [
            Node(self, name, self._settings(name, peers), flushes=self.mode.flushes) for name in names
        ]
        self.verdicts: list[Verdict] = []
        self.count: Counter[str] = Counter()
        self.trace: list[str] = []
        self._leaders: dict[int, tuple[str, int]] = {}
        self._known: dict[tuple[int, int], tuple[bytes, int | None]] = {}
        """(index, term) → body, and the term of the entry before it."""
        self._committed: dict[int, tuple[LedgerEntry, int]] = {}
        """Index → entry, and the term of whoever committed it first."""
        self._committed_by: dict[str, int] = {}
        self._sent: dict[int, _Sent] = {}
        self._number = 0
        self.ok_index = -1
        self.last_ok_s = 0.0
        self.elections: list[tuple[float, str, int]] = []
        self.faults = Faults(self)

    def _settings(self, name: str, peers: dict[str, str]) -> MemberSettings:
        small = {"in_flight_max": 5, "batch_push_bytes_max": 120, "pending_appends_max": 8}
        return MemberSettings(
            group="g",
            self_id=name,
            peers=peers,
            preferred_leaders=("n1",) if self.mode.preferred else (),
            first_entry_body=b"" if self.mode.first_entry else None,
            **(small if self.mode.small else {}),
        )

    def node(self, name: str) -> Node:
        return next(one for one in self.nodes if one.name == name)

    @property
    def leaders(self) -> list[Node]:
        return [one for one in self.nodes if one.leads]

    def note(self, text: str) -> None:
        self.trace.append(f"{self.clock.now_s - BEGIN_S:8.3f} {text}")

    def broken(self, violation: Violation, text: str) -> None:
        self.note(f"BROKEN {violation.value}: {text}")
        self.verdicts.append(Verdict(violation, text, self.clock.now_s - BEGIN_S))

    # -- the network --------------------------------------------------------------------------------

    def _ways(self, one: str, other: str) -> Iterator[float]:
        """How long each copy of a message takes."""
        if (one, other) in self.cuts or self.source.random() < self.loss:
            return
        for _ in range(2 if self.source.random() < self.twice else 1):
            slow = self.source.random() < self.late
            yield self.source.uniform(0.0002, 0.004) + (self.source.uniform(0.0, 3.5) if slow else 0.0)

    def ask(self, node: Node, to: ReturnAddress, peer: str, request: MemberMessage) -> None:
        other = self.node(peer)
        if not other.up and self.source.random() < 0.5:
            self.clock.after(0.001, node.answered, to, None)  # nobody listens there
            return
        if self.through_wire:
            request = read_request(_through_frame(request_command(request)))
        for delay_s in self._ways(node.name, peer):
            self.clock.after(delay_s, other.asked, to, request)

    def answer(self, node: Node, to: ReturnAddress, answer: MemberMessage) -> None:
        if self.through_wire:
            command = _through_frame(answer_command(RemotingCommand(0), answer))
            answer = type(answer).decode(command.body)
        for delay_s in self._ways(node.name, to.node.name):
            self.clock.after(delay_s, to.node.answered, to, answer)

    # -- clients ------------------------------------------------------------------------------------

    def send(self) -> None:
        self.clock.after(self.source.uniform(*self.send_s), self.send)
        if not self.sends:
            return
        nodes = [one for one in self.nodes if one.up and (one.leads or self.source.random() < 0.02)]
        for node in nodes:
            self.send_to(node, self.source.choice((1, 1, 1, 4)))

    def send_to(self, node: Node, entries: int = 1) -> int:
        self._number += 1
        filler = b"." * self.source.choice((0, 20, 300))
        bodies = tuple(b"%d.%d%s" % (self._number, at, filler) for at in range(entries))
        self._sent[self._number] = _Sent(bodies, node.name, node.boots, self.ok_index)
        self.count["sent"] += 1
        number = self._number
        node.send(number, bodies, by_wire=self.source.random() < 0.3)
        return number

    def ended(self, node: Node, number: int, code: DLedgerResponseCode, index: int) -> None:
        sent = self._sent.pop(number, None)
        if sent is None:
            self.broken(Violation.WRONG_OK, f"{node.name} answers {number} twice, now {code.name}")
            return
        self.count[f"answered {code.name}"] += 1
        if code is not DLedgerResponseCode.SUCCESS:
            return
        self.count["acknowledged"] += 1
        self.last_ok_s = self.clock.now_s
        first = index - len(sent.bodies) + 1
        for at, body in enumerate(sent.bodies, first):
            entry = node.log.now.get(at)
            if entry is None and at < node.log.begin_index and at in self._committed:
                entry = self._committed[at][0]  # it has expired meanwhile
            if entry is None or entry.body != body:
                self.broken(Violation.WRONG_OK, f"{node.name} answers OK for {body[:9]!r} at {at}: {entry}")
                return
            self._ok_is_true(node, entry)
        if first <= sent.ok_before:
            text = f"{number} is acknowledged at {first}; when it was sent, {sent.ok_before} was already"
            self.broken(Violation.REORDERED, text)
        self.ok_index = max(self.ok_index, index)

    def _ok_is_true(self, node: Node, entry: LedgerEntry) -> None:
        holders = [one.name for one in self.nodes if one.has_held(entry)]
        if len(holders) <= len(self.nodes) // 2:
            text = (
                f"{node.name} answers OK for entry {entry.index} of term {entry.term}: only {holders} have it"
            )
            self.broken(Violation.WRONG_OK, text)
        committed = self._committed.get(entry.index)
        if committed is None or not committed[0].same_as(entry):
            self.broken(
                Violation.WRONG_OK, f"{node.name} answers OK for {entry.index}; {committed} is committed"
            )

    # -- what is looked at --------------------------------------------------------------------------

    def appended(self, node: Node, entry: LedgerEntry, before: LedgerEntry | None) -> None:
        known = self._known.setdefault((entry.index, entry.term), (entry.body, None))
        if known[0] != entry.body:
            text = f"{node.name} has {entry.body[:9]!r} at {entry.index} of term {entry.term}, not {known[0][:9]!r}"
            self.broken(Violation.DIVERGED, f"log matching: {text}")
        before_term = before.term if before is not None else (-1 if entry.index == 0 else None)
        if before_term is None:
            return
        if before_term > entry.term:
            self.broken(
                Violation.DIVERGED, f"{node.name}: term {entry.term} at {entry.index} after {before_term}"
            )
        if known[1] is None:
            self._known[entry.index, entry.term] = (entry.body, before_term)
        elif known[1] != before_term:
            text = f"{node.name} has term {before_term} before {entry.index} of term {entry.term}, not {known[1]}"
            self.broken(Violation.DIVERGED, f"log matching: {text}")

    def cut(self, node: Node, entries: list[LedgerEntry]) -> None:
        if entries:
            self.count["cuts"] += 1
            self.note(f"{node.name} cuts {entries[0].index} … {entries[-1].index}")
        for entry in entries:
            committed = self._committed.get(entry.index)
            if committed is not None and committed[0].same_as(entry):
                self.broken(Violation.LOST, f"{node.name} cuts {entry.index}, which is committed")
                return

    def mended(self, node: Node, entry: LedgerEntry) -> None:
        self.count["mended"] += 1
        known = self._known.get((entry.index, entry.term))
        if known is None or known[0] != entry.body:
            text = f"{node.name} puts {entry.body[:9]!r} into its place {entry.index} of term {entry.term}: {known}"
            self.broken(Violation.DIVERGED, f"log matching: {text}")

    def committed(self, node: Node, index: int) -> None:
        assert node.member is not None
        term = node.member.term
        begin = max(self._committed_by.get(node.name, -1) + 1, node.log.begin_index)
        for at in range(begin, index + 1):
            entry = node.log.now.get(at)
            assert entry is not None
            known = self._committed.setdefault(at, (entry, term))
            if not known[0].same_as(entry):
                text = f"{node.name} commits term {entry.term} at {at}, and term {known[0].term} is committed"
                self.broken(Violation.DIVERGED, f"state-machine safety: {text}")
                break
        self._committed_by[node.name] = index

    def all_lost_power(self) -> None:
        """With ASYNC_FLUSH what no disk has is gone, whoever acknowledged it."""
        for at, (entry, _) in list(self._committed.items()):
            if not any(one.log.holds_durably(entry) for one in self.nodes):
                self.count["lost with the power of all"] += 1
                del self._committed[at]
        self.ok_index = min(self.ok_index, max(self._committed, default=-1))

    def booted(self, node: Node) -> None:
        """What it takes for committed has to be."""
        self.note(f"{node.name} boots with {node.log.begin_index} … {node.log.end_index}, {node.saved}")
        self._committed_by[node.name] = -1
        assert node.member is not None
        index = node.member.committed_index
        if index >= 0:
            self.committed(node, index)

    def crashed(self, node: Node) -> None:
        self.note(f"{node.name} ends with {node.log.end_index}")
        for number in [number for number, one in self._sent.items() if one.node == node.name]:
            del self._sent[number]

    def role_is(self, node: Node, role: MemberRole, term: int, leader_id: str | None) -> None:
        if role is not MemberRole.LEADER:
            return
        self.count["elections"] += 1
        self.elections.append((self.clock.now_s, node.name, term))
        self.note(f"{node.name} leads term {term} with {node.log.begin_index} … {node.log.end_index}")
        before = self._leaders.setdefault(term, (node.name, node.boots))
        if before != (node.name, node.boots):
            self.broken(
                Violation.DIVERGED, f"election safety: {node.name} leads term {term}, as did {before}"
            )
        for at, (entry, by_term) in self._committed.items():
            if by_term < term and at >= max(0, node.log.begin_index):
                own = node.log.now.get(at)
                if own is None or not own.same_as(entry):
                    text = f"{node.name} leads term {term} without entry {at}, committed in term {by_term}"
                    self.broken(Violation.LOST, f"leader completeness: {text}")
                    break
        self.faults.strike()

    def after_step(self, node: Node) -> None:
        assert node.member is not None
        if len(node.member._appends) > node.settings.pending_appends_max:
            self.broken(Violation.HANG, f"{node.name} has {len(node.member._appends)} appends that wait")

    # -- the run ------------------------------------------------------------------------------------

    def begin(self) -> None:
        for node in self.nodes:
            node.boot()
        self.send()

    def on(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now_s + seconds)
        assert self.clock.steps < STEPS_MAX, "something spins"

    def run(self) -> list[Verdict]:
        self.begin()
        self.clock.after(self.source.uniform(0.0, 2.0), self.faults.begin)
        self.on(FAULTS_S)
        self.faults.heal_all()
        self.send_s = (0.1, 0.3)
        if any(
            one.member is not None and one.member.patience_s > one.settings.patience_s for one in self.nodes
        ):
            self.on(GROWTH_MAX * self.nodes[0].settings.patience_s)  # so patient a group may become
        self.on(CALM_S)
        elections = len(self.elections)
        self.on(SETTLE_S - CALM_S)
        if not self.verdicts:
            self._judge(len(self.elections) - elections)
        if not self.verdicts:
            self._restart_at_rest()
        return self.verdicts

    def _judge(self, elections: int) -> None:
        leaders = self.leaders
        if len(leaders) != 1 or self.clock.now_s - self.last_ok_s > 1.0:
            roles = ", ".join(
                f"{one.name} {one.member.role.name} of term {one.member.term}"
                for one in self.nodes
                if one.member
            )
            self.broken(
                Violation.NOT_SETTLED, f"last OK {self.clock.now_s - self.last_ok_s:.1f} s ago: {roles}"
            )
            return
        if elections and not self.mode.preferred:
            self.broken(Violation.NOT_SETTLED, f"{elections} elections though nothing is wrong any more")
        for node in self.nodes:
            assert node.member is not None
            others = [one.log.now for one in self.nodes if one is not node]
            damaged = [
                at for at in sorted(node.log.damaged) if any(one.get(at) is not None for one in others)
            ]
            if damaged:
                text = f"{node.name} has damaged entries, which others have: {damaged}"
                self.broken(Violation.NOT_SETTLED, text)
            if node.member.committed_index < self.ok_index - 4:
                text = f"{node.name} has committed {node.member.committed_index} of {self.ok_index}"
                self.broken(Violation.NOT_SETTLED, text)

    def _restart_at_rest(self) -> None:
        """A follower dies at rest, and may lose what was not flushed: without a message it is whole again."""
        self.sends = False
        self.on(REST_S)
        follower = self.source.choice([one for one in self.nodes if not one.leads])
        follower.crash(power=True)
        follower.boot()
        self.on(REST_S)
        ends = {
            (one.log.end_index, one.member.committed_index) for one in self.nodes if one.member is not None
        }
        if len(ends) > 1:
            text = f"{follower.name} was started again at rest; ends, and what is committed: {sorted(ends)}"
            self.broken(Violation.NOT_SETTLED, text)


def _through_frame(command: RemotingCommand) -> RemotingCommand:
    """As it comes out at the other end of a connection."""
    (frame,) = FrameReader().feed(encode(command))
    return decode(*frame)


# -- the layer --------------------------------------------------------------------------------------


def simulate(seed: int, mode: Mode | None = None) -> Outcome:
    world = World(seed, mode)
    verdicts = world.run()
    trace = world.trace[-_TRACE:] if verdicts else []
    return Outcome(seed, str(world.mode), verdicts, world.count, world.clock.steps, trace)


def run(rounds: int, seed: int, report: Report) -> None:
    """The layer: `rounds` seeds from `seed` on."""
    run_seeds(LAYER, simulate, range(seed, seed + rounds), _SEEDS_PER_TASK, report)
