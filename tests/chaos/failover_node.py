"""A broker of the failover simulator: a log of numbered entries, links between brokers, the product's rounds.

What decides is the product's: rounds, decision, voters, lineage.  What carries it out is a few lines here, without
bytes or files.  An entry counts as one byte.  The log, the lineage and the seal survive a crash; nothing else does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from haservice.coordination.cluster import FOLLOWS, Leaseholder, MemberState
from haservice.coordination.coordinator import CoordinatorError, Transaction
from haservice.coordination.decision import (
    Action,
    Alarm,
    AskPromises,
    Block,
    CountBy,
    Doubt,
    Follow,
    Promote,
    Seal,
    Serve,
)
from haservice.coordination.facts import Own
from haservice.coordination.gate import Gate
from haservice.coordination.rounds import (
    OpenSession,
    Prune,
    Question,
    Read,
    Renew,
    Round,
    Rounds,
    Transact,
    Upkeep,
)
from haservice.coordination.voters import Follower, Voters
from haservice.replication.lineage.epochs import Epoch, Lineage, Mark, common_point
from haservice.replication.lineage.file import (
    LineageState,
    is_or_was_whole,
    whole_again_from,
    without_its_log,
    without_power,
)
from haservice.replication.slave.recorder import LOOK_S

if TYPE_CHECKING:
    from tests.chaos.failover_sim import World

# A question to the coordinator has so long.
TIMEOUT_S = 1.0
DIAL_S = 0.1
HEARTBEAT_S = 0.4
PIECE = 8
LEVEL = 10


class Entry(NamedTuple):
    """A message in a log, written by the master of `epoch`."""

    epoch: int
    number: int


@dataclass(slots=True)
class Link:
    """An HA connection, as its master sees it."""

    master: Node
    slave: Node
    epoch: int
    ack: int
    heard_s: float
    is_open: bool = True


class Waiting(NamedTuple):
    end: int
    entry: Entry


class Copy(NamedTuple):
    """A store's disk at some moment."""

    id: str
    log: tuple[Entry, ...]
    lineage: Lineage
    numbers: tuple[int, int, int, int]
    lost_power: bool

    @property
    def place(self) -> Mark:
        last = self.lineage.up_to(len(self.log)).last
        return Mark(last.number if last is not None else -1, len(self.log))


class Node:
    """One broker."""

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        """Its clock's speed."""
        self.clock_off_s = world.draw(-5.0, 5.0)
        """By how much its wall clock is wrong."""
        self.may_be_first = name == "a"
        self.machines = 0
        self.life = 0
        self.up = False
        self.frozen_until_s = -math.inf
        self.unfit = ""
        self.stalled = False
        """Whether it takes nothing from its master, and its link stays up."""
        self.wipe()

    def wipe(self) -> None:
        """Another machine takes its place, with an empty disk and another replica id."""
        self.machines += 1
        self.world.emptied.discard(self.name)
        self.id = self.name if self.machines == 1 else f"{self.name}{self.machines}"
        self.log: list[Entry] = []
        self.lineage = Lineage()
        self.sealed = self.joined = self.master_end = -1
        self.whole_from = 0
        self.lost_power = False

    def copy(self) -> Copy:
        """Its store as it is now."""
        return Copy(
            self.id,
            tuple(self.log),
            self.lineage,
            (self.sealed, self.joined, self.master_end, self.whole_from),
            self.lost_power,
        )

    def put_back(self, copy: Copy) -> None:
        """Its store is that of a copy, the lineage with it."""
        self.id, self.log, self.lineage = copy.id, list(copy.log), copy.lineage
        self.sealed, self.joined, self.master_end, self.whole_from = copy.numbers
        self.lost_power = copy.lost_power

    @property
    def place(self) -> Mark:
        """How far its log goes."""
        return self.place_at(len(self.log))

    def place_at(self, end: int) -> Mark:
        reached = (one.number for one in reversed(self.lineage.epochs) if one.start <= end)
        return Mark(next(reached, -1), end)

    def lose_power(self, lost: int) -> None:
        """The machine goes down, and the last entries were not on the disk yet."""
        kept = LineageState(self.id, whole_from=self.whole_from, lost_power=self.lost_power)
        self.crash()
        del self.log[max(0, len(self.log) - lost) :]
        changes = without_power(kept, len(self.log))
        self.whole_from, self.lost_power = changes["whole_from"], changes["lost_power"]

    def empty(self) -> None:
        """Its log goes, and who it is stays: `mqadmin reinit`, or an operator who removed files."""
        self._without_its_log()
        self.log, self.lineage, self.master_end = [], Lineage(), -1
        self.world.emptied.add(self.name)

    def _without_its_log(self, newest: int = -1) -> None:
        kept = LineageState(self.id, lineage=self.lineage, sealed=self.sealed, joined=self.joined)
        changes = without_its_log(kept, newest)
        self.whole_from = changes.get("whole_from", self.whole_from)
        self.sealed = changes.get("sealed", self.sealed)
        self.lost_power = changes.get("lost_power", self.lost_power)

    # -- its lives ----------------------------------------------------------------------------------

    def boot(self) -> None:
        self.up, self.life = True, self.life + 1
        self.opened = self.follows = -1
        self.gate = Gate(self.now_s)
        self.counts: Voters | None = None
        self.base = 0
        self.link: Link | None = None
        self.links: dict[str, Link] = {}
        self.told: dict[str, Mark] = {}
        self.waits: list[Waiting] = []
        self.leader: Leaseholder | None = None
        self.session = 0
        self.rounds = Rounds(self, f"{self.id}.{self.life}")
        self._woken = self._in_round = self._promoting = self._stopping = False
        self._rounds_done = 0
        self.wake()
        self.later(0.0, self._dial)
        self.later(LOOK_S, self._record)

    def crash(self) -> None:
        if self.up:
            self.up = False
            self._drop_links()

    def stop(self) -> None:
        """A clean stop: no append any more, then the farewell."""
        if self.up and self._in_round:
            self.later(0.01, self.stop)
        elif self.up:
            self._stopping = True
            self.act(Block("it stops"))
            self.waits.clear()
            self._in_round = True
            self._go(self.rounds.farewell(), None, self._stopped)

    def _stopped(self, _: float) -> None:
        self.world.server.end(self.session)
        self.crash()
        self.world.clock.after(1.0, self.boot_again)

    def boot_again(self) -> None:
        if not self.up:
            self.boot()

    def later(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self.world.clock.after(delay_s, self._due_now, self.life, call, args)

    def _due_now(self, life: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Nothing happens in a process that stands still, or in one that is gone."""
        if not self.up or life != self.life:
            return
        left_s = self.frozen_until_s - self.world.clock.now_s
        if left_s > 0:
            self.world.clock.after(left_s, self._due_now, life, call, args)
        else:
            call(*args)

    # -- what the rounds ask of a broker ------------------------------------------------------------

    def now_s(self) -> float:
        return self.world.clock.now_s * self.rate

    def now_ms(self) -> int:
        return int((self.world.clock.now_s + self.clock_off_s) * 1000)

    def own(self) -> Own:
        end, last = len(self.log), self.lineage.last
        seen = self.rounds.seen if hasattr(self, "rounds") else None
        self.joined = max(self.joined, seen.epoch if seen is not None else -1)
        epoch = last.number if last is not None else -1
        member = MemberState(
            self.id,
            f"{self.id}.{self.life}",
            self.lineage.mark(end),
            epoch,
            max(epoch, self.sealed, self.joined),
            self.joined,
            self.sealed,
            is_whole=end >= self.whole_from,
            lost_power=self.lost_power and end < self.whole_from,
            reached=self.place.epoch,
            unfit=self.unfit,
            broker_addr=self.name,
            state=FOLLOWS if self.follows >= 0 else "",
        )
        followers = {
            one.slave.id: Follower(
                one.ack, (self.world.clock.now_s - one.heard_s) * self.rate, end - one.ack <= LEVEL
            )
            for one in self.links.values()
        }
        return Own(
            member,
            self.opened,
            self.follows,
            self.master_end,
            self.may_be_first and not self.log,
            self.world.needed,
            self.counts,
            self.base,
            followers,
            is_held=self.gate.is_blocked,
            told=dict(self.told) if self.opened >= 0 else {},
        )

    def act(self, action: Action) -> None:
        if isinstance(action, Serve):
            self.gate.open_until(action.until_s)
            self._answer()
        elif isinstance(action, Block):
            self.gate.block(action.why)
        elif isinstance(action, CountBy):
            self.counts = action.voters
        elif isinstance(action, Alarm):
            self.world.alarms.append(action.text)
        elif isinstance(action, Doubt):
            self.world.note(f"{self.name} doubts its log: {action.why}")
            self._without_its_log(action.epoch)
            if self.link is not None:
                self._hang_up(self.link)
        elif isinstance(action, Seal):
            self._seal(action.epoch)
        elif isinstance(action, Follow):
            self._follow(action.master)
        elif isinstance(action, Promote):
            if not self._promoting:
                self._promoting = True
                self.later(self.world.draw(0.005, 0.1), self._promote, action)
        else:
            self._ask_promises(action)

    def _seal(self, epoch: int) -> None:
        self.sealed = max(self.sealed, epoch)
        if self.follows <= epoch and self.link is not None:
            self._hang_up(self.link)
        if 0 <= self.opened <= epoch:
            self._step_down()

    def _step_down(self) -> None:
        self.opened = -1
        self.gate.block("it is a slave")
        self.waits.clear()
        self._drop_links()

    def _follow(self, master: Leaseholder) -> None:
        if self.opened >= 0:
            self._step_down()
        if self.link is not None and self.link.epoch != master.epoch:
            self._hang_up(self.link)
        self.leader = master

    def _promote(self, action: Promote) -> None:
        """The epoch begins in our log, if the lease is still ours."""
        self._promoting = False
        epoch = action.epoch
        if self.now_s() >= action.until_s or self._stopping:
            return
        if self.link is not None:
            self._hang_up(self.link)
        self.leader = None
        self.waits.clear()
        self._drop_links()
        if self.lineage.last is not None and self.lineage.last.number >= epoch:
            return
        self.lineage = self.lineage.begun(Epoch(epoch, len(self.log), self.id))
        self.opened, self.base, self.whole_from, self.told = epoch, len(self.log), 0, {}
        self.world.emptied.discard(self.name)
        self.gate.block("its epoch has begun")
        self.world.promoted(self, epoch)
        self.wake()

    def _ask_promises(self, action: AskPromises) -> None:
        sent_s = self.now_s()
        for link in list(self.links.values()):
            if link.slave.id in action.ids:
                link.slave.later(self.world.latency(), self._asked, link, action, sent_s, self.life)

    def _asked(self, link: Link, action: AskPromises, sent_s: float, life: int) -> None:
        """In the slave, over the link."""
        slave = link.slave
        if not link.is_open or not self.world.connected(self, slave):
            return
        slave.master_end = max(slave.master_end, len(self.log))
        if not slave.rounds.promise(action.epoch, action.ttl_s) and life == self.life:
            self.later(self.world.latency(), self.rounds.promised, slave.id, sent_s)

    # -- the coordinator ----------------------------------------------------------------------------

    def wake(self) -> None:
        """A round comes at once, or after the one that is under way."""
        self._woken = True
        if not self._in_round:
            self.later(self.world.draw(0.0005, 0.02), self._round, self._rounds_done)

    def _round(self, after: int) -> None:
        """Unless there was another one since."""
        if after == self._rounds_done and not self._in_round:
            self._in_round, self._woken = True, False
            self._go(self.rounds.round(), None, self._rounded)

    def _rounded(self, pause_s: float) -> None:
        self._in_round = False
        if self.rounds.is_fresh and not self.rounds.facts().must_tell_end:
            self.world.needs_not_tell(self)
        self._rounds_done += 1
        if self._woken or not pause_s:
            self._woken = False
            self.later(self.world.draw(0.0005, 0.005), self._round, self._rounds_done)
        else:
            self.later(pause_s, self._round, self._rounds_done)

    def _go(self, round_: Round, answer: Any, done: Callable[[float], None]) -> None:
        try:
            if isinstance(answer, CoordinatorError):
                question = round_.throw(answer)
            else:
                question = round_.send(answer)
        except StopIteration as end:
            done(float(end.value))
            return
        except CoordinatorError:
            done(0.0)
            return
        self._ask(round_, question, done)

    def _ask(self, round_: Round, question: Question, done: Callable[[float], None]) -> None:
        """One of answer and timeout comes first; the other finds that it is too late."""
        state = {"open": True}

        def answered(answer: Any) -> None:
            if state["open"]:
                state["open"] = False
                if isinstance(question, OpenSession) and not isinstance(answer, CoordinatorError):
                    self.session, answer = answer, question.ttl_s
                self._go(round_, answer, done)

        self.later(TIMEOUT_S, answered, CoordinatorError("no answer in time"))
        call = partial(self._served, question, self.session, answered, self.life)
        writes = question.transaction.puts.keys() if isinstance(question, Transact) else ()
        delay_s = self.world.way_to_coordinator(self)
        if self.world.hold in writes:
            self.world.held.append(call)
        elif delay_s is not None and not (writes and self.name in self.world.lost_commits):
            self.world.clock.after(delay_s, call)

    def _served(self, question: Question, session: int, answered: Callable[[Any], None], life: int) -> None:
        """At the server."""
        server = self.world.server
        answer: Any = None
        if not self.world.coordinator_up:
            return
        try:
            self._refused(question)
            if isinstance(question, OpenSession):
                answer = server.open(question.ttl_s)
            elif isinstance(question, Renew):
                server.renew(session)
            elif isinstance(question, Read):
                answer = self.world.read(self)
            elif isinstance(question, Prune):
                pass
            elif isinstance(question, Upkeep):
                answer = ""
            else:
                assert isinstance(question, Transact)
                answer = self._commit(question.transaction, session)
        except CoordinatorError as error:
            answer = error
        delay_s = self.world.way_to_coordinator(self)
        if self.name in self.world.late_answers:
            delay_s = 0.9 * TIMEOUT_S
        if delay_s is not None and life == self.life:
            self.later(min(delay_s, TIMEOUT_S * 2), answered, answer)

    def _refused(self, question: Question) -> None:
        """By a coordinator that is full, or has taken our rights away: a session that there is stays."""
        writes = isinstance(question, OpenSession) or (
            isinstance(question, Transact) and question.transaction.puts
        )
        if self.world.full and writes:
            raise CoordinatorError("no space")
        if self.name in self.world.denied and not isinstance(question, Renew):
            raise CoordinatorError("permission denied")

    def _commit(self, transaction: Transaction, session: int) -> bool:
        self.world.committing = self
        return self.world.server.commit(transaction, session)

    # -- the link -----------------------------------------------------------------------------------

    def _dial(self) -> None:
        """A slave connects to its leader."""
        self.later(DIAL_S, self._dial)
        if self.leader is None or self.link is not None or self.opened >= 0:
            return
        master = self.world.by_id(self.leader.replica_id)
        if master is None or not self.world.connected(self, master) or master.frozen:
            return
        epoch = master.opened
        if epoch < 0 or epoch <= self.sealed or epoch < self.newest:
            return
        common = common_point(self.lineage, len(self.log), master.lineage, len(master.log))
        point = common.point if common is not None else 0
        if point < len(self.log):
            self.world.cut(self, point)
            del self.log[point:]
        self.lineage, self.follows, self.master_end = master.lineage, epoch, len(master.log)
        self.whole_from = whole_again_from(self.whole_from, len(self.log), len(master.log))
        self.link = Link(master, self, epoch, point, self.world.clock.now_s)
        if (old := master.links.get(self.id)) is not None:
            old.is_open = False
        master.links[self.id] = self.link
        self.later(self.world.latency(), self._pump, self.link)
        master.later(self.world.latency(), master.acked, self.link, len(self.log))

    @property
    def newest(self) -> int:
        return self.lineage.last.number if self.lineage.last is not None else -1

    @property
    def frozen(self) -> bool:
        return self.world.clock.now_s < self.frozen_until_s

    def _pump(self, link: Link) -> None:
        """The slave takes what its master has, and acknowledges it; a heartbeat if there is nothing."""
        if not link.is_open or self.link is not link:
            return
        master = link.master
        if not self.world.connected(self, master):
            link.heard_s = min(link.heard_s, self.world.clock.now_s)
            self.later(HEARTBEAT_S, self._pump, link)
            if self.world.draw(0, 1) < 0.3:
                self._hang_up(link)
            return
        if master.frozen:
            self.later(HEARTBEAT_S, self._pump, link)
            return
        fresh = [] if self.stalled else master.log[len(self.log) : len(self.log) + PIECE]
        self.log += fresh
        if len(self.log) == len(master.log):
            self.world.emptied.discard(self.name)
        self.master_end = max(self.master_end, len(master.log))
        master.later(self.world.latency(), master.acked, link, len(self.log))
        self.later(self.world.latency() if fresh else self.world.draw(0.02, HEARTBEAT_S), self._pump, link)

    def acked(self, link: Link, end: int) -> None:
        if link.is_open and self.links.get(link.slave.id) is link and self.world.connected(self, link.slave):
            link.ack, link.heard_s = max(link.ack, end), self.world.clock.now_s
            place = self.place_at(end)
            self.told[link.slave.id] = max(place, self.told.get(link.slave.id, place))
            self._answer()

    def _record(self) -> None:
        """As LineageFile.reached()."""
        self.later(LOOK_S, self._record)
        if self.link is not None and self.whole_from > 0:
            kept = LineageState(self.id, whole_from=self.whole_from, lost_power=self.lost_power)
            self.lost_power = is_or_was_whole(kept, len(self.log))

    def _hang_up(self, link: Link) -> None:
        link.is_open = False
        self.link, self.follows = None, -1
        if link.master.links.get(self.id) is link:
            del link.master.links[self.id]

    def _drop_links(self) -> None:
        for link in list(self.links.values()):
            if link.slave.link is link:
                link.slave._hang_up(link)
        self.links.clear()
        if self.link is not None:
            self._hang_up(self.link)

    # -- sends --------------------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        return self.up and self.opened >= 0 and self.gate.is_open

    def send(self, number: int) -> bool:
        """A message; whether it is stored.  Its OK comes later, or never."""
        if not self.serves:
            return False
        entry = Entry(self.opened, number)
        self.log.append(entry)
        self.waits.append(Waiting(len(self.log), entry))
        self.world.appended(self)
        self.later(self.world.draw(0.0005, 0.05), self._answer)
        return True

    def _answer(self) -> None:
        """Answers what has its acks.  The lease is looked at right before: here the process may have slept."""
        if not self.serves or self.counts is None:
            return
        acks = {one.slave.id: one.ack for one in self.links.values()}
        left = []
        for wait in self.waits:
            if self.counts.is_ok(self.id, wait.end, acks):
                self.base = max(self.base, wait.end)
                self.world.released(self, wait, self.counts.needed)
            else:
                left.append(wait)
        self.waits = left
