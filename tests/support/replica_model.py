"""A small world of replicas that run the product's own rules: who counts, who pledges, who may be promoted.

What decides is real: the machine of roles (`step`), MemberList, `plan`, the lineage's rules, what a start does.
What is played is small: a log is a tuple of messages, one offset each; disks keep what they have; a connection is
two ends that need not end at once, and reports on their way between them.

    world.run(["append m", "greet a m", ...])     each event is a line of text; one that cannot happen does nothing

`world.broken` says, once it is so, which acknowledged message a promotion lacks that nobody forced.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from haservice.broker.roles.actions import (
    Action,
    Answer,
    AnswerWith,
    Ask,
    AskOne,
    AwaitLevel,
    Confirm,
    Copy,
    Done,
    End,
    Failed,
    Flush,
    GatherPledges,
    LeaveMaster,
    LookAtSlaves,
    Prove,
    Refuse,
    SendPromote,
    Slaves,
    StopLink,
    TakeList,
    Turn,
    Votes,
    Write,
)
from haservice.broker.roles.describe import epoch_bodies, members_body
from haservice.broker.roles.machine import step
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import RoleInForce, StartOfMaster, command_that_counts, start_of_master
from haservice.broker.roles.state import Asked, Event, RoleState, Tick, View, Who
from haservice.broker.roles.votes import newest_list
from haservice.configuration.settings import BrokerRole
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import (
    ForgetHeader,
    LineageBody,
    PledgeHeader,
    PromoteHeader,
    SwitchoverHeader,
)
from haservice.replication.lineage.epochs import LogSpan, Step, plan
from haservice.replication.lineage.file import LineageState
from haservice.replication.lineage.member_list import MemberList
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.status import Lack, NotInSync, SlaveStatus
from haservice.replication.wire.hello import SlaveHello

FIRST = "m"


class Message(NamedTuple):
    """One of a log: the master's epoch that wrote it, and a number of its own."""

    epoch: int
    number: int


class File:
    """A lineage file that is durable at once."""

    def __init__(self, state: LineageState) -> None:
        self.state = state

    def update(self, *, listed: ReplicaList | None = None, **changes: Any) -> None:
        assert listed is None or listed == self.state.members, "nothing happens at the same time here"
        self.state = replace(self.state, **changes)


@dataclass(eq=False)
class Link:
    """A slave's connection, as its master sees it; the slave's end may be gone already."""

    slave: Replica
    master: Replica
    listed: ReplicaList
    coming: int
    """The newest report on its way."""
    reported: int = -1
    slave_is_there: bool = True


class Replica:
    """One broker; its file says SLAVE, but for the first master's."""

    def __init__(self, world: World, name: str, addr: str, needed: int) -> None:
        self.world, self.name, self.addr, self.needed = world, name, addr, needed
        self.file = File(LineageState(name))
        self.log: tuple[Message, ...] = ()
        self.links: list[Link] = []
        self.waiting: dict[Message, int] = {}
        self.counting: frozenset[str] = frozenset()
        self.wanted = 1
        self.votes: list[LineageBody] = []
        self.gathering: GatherPledges | None = None
        self.file_role = BrokerRole.SYNC_MASTER if name == FIRST else BrokerRole.SLAVE
        self.start()

    # -- a life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """What it did before is over; its file and its log stay."""
        self.world.cut(self)
        self.waiting, self.votes, self.gathering = {}, [], None
        kept = self.file.state
        own_id = 0 if self.file_role is BrokerRole.SYNC_MASTER else 1
        role = RoleInForce(self.file_role, own_id, self.file_role, own_id)
        role = role.by(command_that_counts(self.file_role, kept, 1))
        self.state = RoleState(Who(role, self.addr, self.addr, self.needed))
        if role.role.is_slave:
            return
        found = StartOfMaster(self.span, True, False, flushes_at_once=True)
        changes, waiting, undecided = start_of_master(kept, found, 1, addr=self.addr, needed=self.needed)
        assert not waiting
        self.state = self.state.but(undecided=undecided)
        self.file.update(**changes)
        self.list = MemberList(self.file, self, lambda: len(self.log))  # type: ignore[arg-type]
        self.list.take()

    @property
    def is_slave(self) -> bool:
        return self.state.who.is_slave

    @property
    def span(self) -> LogSpan:
        return LogSpan(0, len(self.log))

    @property
    def epoch(self) -> int:
        last = self.file.state.lineage.last
        return last.number if last is not None else -1

    def body(self) -> LineageBody:
        kept, role = self.file.state, self.state.who.role
        pledge = kept.pledge
        return LineageBody(
            "C", "broker-a", self.addr, self.addr, role.broker_id, role.file_broker_id, role.role.value,
            self.name, 1, 0, len(self.log), len(self.log), epoch_bodies(kept.lineage.epochs),
            changing=self.state.changing,
            pledged=pledge.epoch if pledge is not None else -1,
            pledged_to=pledge.broker_addr if pledge is not None else "", members=members_body(kept.members),
            given=members_body(kept.given),
        )  # fmt: skip

    # -- the machine --------------------------------------------------------------------------------

    def tell(self, event: Event) -> list[Action]:
        """Steps until it rests, or gathers pledges; the answers that it gives."""
        said: list[Action] = []
        following: Event | None = event
        while following is not None:
            self.state, actions = step(self.state, following, self._view())
            following = None
            for action in actions:
                if isinstance(action, Answer | AnswerWith | Refuse):
                    said.append(action)
                    if isinstance(action, Answer) and self.gathering is None:
                        self.world.heard = self.body()
                following = self._perform(action) or following
        return said

    def ask(self, header: ExtHeader) -> list[Action]:
        return self.tell(Asked(1, header))

    def _view(self) -> View:
        followers = frozenset(one.slave.name for one in self.links if one.reported >= 0)
        return View(self.file.state, self.span, 1, 0.0, "boot", followers)

    def _perform(self, action: Action) -> Event | None:
        if isinstance(action, Copy | Prove):
            return Done()
        if isinstance(action, Ask):
            return Heard([one.body() for one in self.world.replicas.values() if one is not self])
        if isinstance(action, LookAtSlaves | AwaitLevel | SendPromote | Confirm):
            return self._hand_over(action)
        if isinstance(action, LeaveMaster):
            self.world.leave(self)
            return None
        if isinstance(action, StopLink | Flush):
            self.world.leave(self)
            return End(len(self.log))
        if isinstance(action, Write):
            self.file.update(**action.changes)
            return Done()
        if isinstance(action, AskOne):
            other = self.world.at(action.addr)
            return other.body() if other is not None else Failed("silent")
        if isinstance(action, GatherPledges):
            self.gathering = action
        elif isinstance(action, TakeList):
            self.list.take((one.slave.name, one.listed.version) for one in self.links if one.reported >= 0)
            if action.regreet:
                self.world.cut(self)
            for link in list(self.links):
                if link.slave.name in self.list.missing:
                    self.world.end(link)
        elif isinstance(action, Turn):
            self.start()
        return None

    def _hand_over(self, action: Action) -> Event:
        if isinstance(action, LookAtSlaves):
            return Slaves([_status(link, len(self.log)) for link in self.links])
        if isinstance(action, AwaitLevel):
            level = any(
                _status(link, len(self.log)).in_sync for link in self.links if link.slave.addr == action.addr
            )
            return End(len(self.log)) if level else Failed("not level")
        assert isinstance(action, SendPromote | Confirm)
        other = self.world.at(action.addr)
        assert other is not None
        if isinstance(action, Confirm):
            return Done() if other.state.token == action.token else Failed("no more")
        before = other.epoch
        other.ask(action.header)
        if other.is_slave or other.epoch == before:
            return Failed("refused")
        self.world.is_promoted(other, forced=False)
        return other.body()

    # -- a master -----------------------------------------------------------------------------------

    def count_only(self, counting: frozenset[str], needed: int) -> None:
        """Of the table of acknowledgements what it comes to: the product's is tested by itself."""
        self.counting, self.wanted = counting, needed
        self.count()

    def count(self) -> None:
        for message, end in list(self.waiting.items()):
            holders = {one.slave.name for one in self.links if one.reported >= end} & self.counting
            if len(holders) >= self.wanted:
                del self.waiting[message]
                self.world.acknowledged(self, message)

    def joins(self, slave: Replica) -> ReplicaList:
        hello = SlaveHello(
            slave.name, "broker-a", slave.addr, 1, slave.span, len(slave.log), 0, "", True,
            slave.file.state.lineage, keeps_list=True,
        )  # fmt: skip
        members = self.list.with_slave(hello)
        for link in list(self.links):
            if link.slave.name in self.list.missing:
                self.world.end(link)
        return members


def _status(link: Link, end: int) -> SlaveStatus:
    level = link.reported == end and link.slave_is_there
    return SlaveStatus(
        link.slave.addr, "TRANSFER", 0, link.reported, link.reported, 0, 0, 0.0, 0.0,
        None if level else Lack(NotInSync.NO_REPORT),
        replica_id=link.slave.name, broker_addr=link.slave.addr,
    )  # fmt: skip


class Promoted(NamedTuple):
    """An epoch that began by a promotion, with what was in its log."""

    epoch: int
    name: str
    log: frozenset[Message]
    by_writing_off: bool = False


@dataclass
class World:
    """`slaves` of one master; `needed` of them make an OK."""

    slaves: int
    needed: int
    replicas: dict[str, Replica] = field(default_factory=dict)
    oks: dict[Message, str] = field(default_factory=dict)
    promoted: list[Promoted] = field(default_factory=list)
    heard: LineageBody | None = None
    broken: str = ""
    forgotten: set[str] = field(default_factory=set)
    """Given up on purpose: nobody makes one of them the master before it has joined again."""
    lists: dict[tuple[str, tuple[int, int]], ReplicaList] = field(default_factory=dict)
    """As masters gave them, with nobody written off."""
    given_up: set[Message] = field(default_factory=set)
    """Lost by an operator's word: by a promotion without a replica that was written off."""
    written_off: set[str] = field(default_factory=set)
    let_back: int = 0
    """How many promotions there were of replicas that had been written off somewhere."""

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        for name in [FIRST, *"abcdef"[: self.slaves]]:
            self.replicas[name] = Replica(self, name, f"{name}:1", self.needed)

    def run(self, events: Iterable[str]) -> World:
        for event in events:
            name, *args = event.split()
            getattr(self, f"_{name}")(*args)
            if self.broken:
                break
        return self

    def at(self, addr: str) -> Replica | None:
        return next((one for one in self.replicas.values() if one.addr == addr), None)

    def link_of(self, slave: Replica) -> Link | None:
        links = (link for one in self.replicas.values() for link in one.links)
        return next((one for one in links if one.slave is slave and one.slave_is_there), None)

    # -- links --------------------------------------------------------------------------------------

    def cut(self, replica: Replica) -> None:
        """Nothing of its links is left, at either end."""
        for one in [*self.replicas.values(), replica]:
            one.links = [link for link in one.links if replica not in (link.slave, link.master)]

    def end(self, link: Link) -> None:
        if link in link.master.links:
            link.master.links.remove(link)

    def leave(self, slave: Replica) -> None:
        """A slave ends its link; what it has reported may come all the same."""
        link = self.link_of(slave)
        if link is not None:
            link.slave_is_there = False

    # -- what is promised ---------------------------------------------------------------------------

    def acknowledged(self, master: Replica, message: Message) -> None:
        self.oks[message] = master.name
        for one in self.promoted:
            if one.epoch > master.epoch and message not in one.log and one.by_writing_off:
                self.given_up.add(message)
            elif one.epoch > master.epoch and message not in one.log and message not in self.given_up:
                self.broken = (
                    f"{master.name} gives OK for {message} in epoch {master.epoch}, after {one.name} was"
                    f" promoted without it in epoch {one.epoch}"
                )

    def is_promoted(self, replica: Replica, forced: bool, by_writing_off: bool = False) -> None:
        name, log = replica.name, frozenset(replica.log)
        self.promoted.append(Promoted(replica.epoch, name, log, by_writing_off))
        lost = [one for one in self.oks if one not in log and one.epoch < replica.epoch]
        lost = [one for one in lost if one not in self.given_up]
        if by_writing_off:
            self.given_up.update(lost)
        elif lost and not forced:
            self.broken = (
                f"{name} is promoted in epoch {replica.epoch} without {lost}, for which there was an OK"
            )

    # -- events -------------------------------------------------------------------------------------

    def _append(self, name: str) -> None:
        master = self.replicas[name]
        if not master.is_slave and not master.state.held:
            message = Message(master.epoch, next(self._numbers))
            master.log = (*master.log, message)
            master.waiting[message] = len(master.log)

    def _greet(self, name: str, master_name: str) -> None:
        slave, master = self.replicas[name], self.replicas[master_name]
        if not slave.is_slave or master.is_slave or slave.state.changing or slave is master:
            return
        if self.link_of(slave) is not None:
            return
        pledge, last = slave.file.state.pledge, master.file.state.lineage.last
        if pledge is not None and (last is None or not pledge.allows(last)):
            return
        lineage = slave.file.state.lineage.or_unknown(slave.span)
        theirs = master.file.state.lineage
        found = plan(lineage, slave.span, theirs, master.span, slave.name)
        if found.step not in (Step.CONTINUE, Step.TRUNCATE, Step.FROM_START):
            return
        if slave.log[: found.position] != master.log[: found.position]:
            return  # its digest is another one
        members = master.joins(slave)
        self.forgotten.discard(slave.name)
        slave.log = slave.log[: found.position]
        slave.file.update(lineage=theirs, members=members, given=ReplicaList(), pledge=None)
        self.lists[members.master, members.version] = members
        master.links.append(Link(slave, master, members, len(slave.log)))

    def _take(self, name: str) -> None:
        """A slave gets the next message, and reports it."""
        link = self.link_of(self.replicas[name])
        if link is not None and link.reported >= 0 and len(link.slave.log) < len(link.master.log):
            link.slave.log = link.master.log[: len(link.slave.log) + 1]
            link.coming = len(link.slave.log)

    def _report(self, name: str, master_name: str) -> None:
        """What a slave has reported comes."""
        master = self.replicas[master_name]
        slave = self.replicas[name]
        for link in [one for one in master.links if one.slave is slave]:
            is_first = link.reported < 0
            link.reported = link.coming
            if is_first:
                master.links = [one for one in master.links if one.slave is not slave or one is link]
                master.list.known_to(slave.name, link.listed.version)
            master.count()

    def _level(self, name: str, master_name: str) -> None:
        """All of it at once: a slave greets, takes what there is, and it is known."""
        slave, master = self.replicas[name], self.replicas[master_name]
        self._greet(name, master_name)
        self._report(name, master_name)
        link = self.link_of(slave)
        if link is not None and link.master is master:
            for _ in range(len(master.log) - len(slave.log)):
                self._take(name)
            self._report(name, master_name)

    def _cut(self, name: str) -> None:
        self.cut(self.replicas[name])

    def _restart(self, name: str) -> None:
        self.replicas[name].start()

    def _needed(self, name: str, needed: str) -> None:
        """Its file says another inSyncReplicas, from its next start on."""
        self.replicas[name].needed = int(needed)
        self.replicas[name].start()

    def _promote(self, name: str, how: str = "") -> None:
        """It asks for pledges; `seen`: by a tool that knows of every epoch, `forced`: whatever is lost."""
        replica = self.replicas[name]
        if not replica.is_slave or replica.state.changing or replica.name in self.forgotten:
            return
        replica.ask(PromoteHeader("SYNC_MASTER", min_epoch=self._min_epoch(how), force=how == "forced"))
        if how == "forced":
            self._decide(name, forced=True)

    def _min_epoch(self, how: str) -> int:
        """What a tool asks for that has seen every epoch, begun or pledged, or none."""
        files = [one.file.state for one in self.replicas.values()]
        pledged = [one.pledge.epoch for one in files if one.pledge is not None]
        return max([one.epoch for one in self.replicas.values()] + pledged) + 1 if how == "seen" else 0

    def _pledge(self, name: str, candidate_name: str) -> None:
        voter, candidate = self.replicas[name], self.replicas[candidate_name]
        gathering = candidate.gathering
        if (
            gathering is None
            or voter.addr not in gathering.addrs
            or voter.state.changing
            or voter is candidate
        ):
            return
        assert isinstance(gathering.header, PledgeHeader)
        self.heard = None
        voter.ask(gathering.header)
        if self.heard is not None and all(one.replica_id != voter.name for one in candidate.votes):
            candidate.votes.append(self.heard)

    def _decide(self, name: str, forced: bool = False) -> None:
        candidate = self.replicas[name]
        if candidate.gathering is None:
            return
        votes, before = candidate.votes, candidate.epoch
        newest = newest_list(candidate.file.state.members, votes)
        given = self.lists.get((newest.master, newest.version), newest)
        candidate.gathering = None
        candidate.tell(Votes(votes))
        if not candidate.is_slave and candidate.epoch > before:
            self.is_promoted(candidate, forced, by_writing_off=newest != given)
            self.let_back += name in self.written_off

    def _tick(self, name: str) -> None:
        """A slave that has pledged asks what became of it."""
        replica = self.replicas[name]
        if replica.is_slave and not replica.state.changing:
            replica.tell(Tick())

    def _forget(self, name: str, gone: str) -> None:
        replica, given_up = self.replicas[name], self.replicas[gone]
        if replica.is_slave or not given_up.is_slave or given_up.state.changing:
            return
        if any(isinstance(one, Answer) for one in replica.ask(ForgetHeader(given_up.name))):
            self.forgotten.add(given_up.name)

    def _writeoff(self, name: str, gone: str) -> None:
        """A slave is told to forget one, for no master answers; that one may come back all the same."""
        replica, given_up = self.replicas[name], self.replicas[gone]
        if replica is given_up or not (replica.is_slave and given_up.is_slave) or replica.state.changing:
            return
        if any(isinstance(one, Answer) for one in replica.ask(ForgetHeader(gone))):
            self.written_off.add(gone)

    def _follow(self, name: str) -> None:
        """A master hears of a newer epoch, and gives way."""
        replica = self.replicas[name]
        if not replica.is_slave:
            replica.tell(Tick())

    def _switch(self, name: str, target_name: str, how: str = "") -> None:
        """A master hands over to a slave that has all; `seen` as in a promotion."""
        master, target = self.replicas[name], self.replicas[target_name]
        if not master.is_slave and not target.state.changing:
            master.ask(SwitchoverHeader(target.addr, min_epoch=self._min_epoch(how)))


# -- looking for trouble ----------------------------------------------------------------------------

# How often each event comes.  A disk that goes with its pledge is no part of it: then a promise is gone.
KINDS = {
    "append": 4, "greet": 1, "level": 10, "take": 2, "report": 2, "cut": 2, "restart": 1, "promote": 2,
    "pledge": 6, "decide": 4, "tick": 3, "forget": 1, "follow": 2, "switch": 1, "needed": 1,
}  # fmt: skip


def story(rng: random.Random, slaves: int, events: int, kinds: Mapping[str, int]) -> list[str]:
    """Events by chance, by `kinds`."""
    names = [FIRST, *"abcdef"[:slaves]]
    told = []
    for _ in range(events):
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        one, other = rng.sample(names, 2)
        if kind in ("greet", "report", "level", "pledge", "forget"):
            told.append(f"{kind} {one} {other}")
        elif kind == "switch":
            told.append(f"{kind} {one} {other}{rng.choice(['', ' seen'])}")
        elif kind == "needed":
            told.append(f"{kind} {one} {rng.randint(1, slaves)}")
        elif kind == "promote":
            told.append(f"{kind} {one}{rng.choice(['', ' seen'])}")
        else:
            told.append(f"{kind} {one}")
    return told


def shortest(slaves: int, needed: int, events: Sequence[str]) -> list[str]:
    """The story with every event left out that it does not need to break something."""
    told = list(events)
    again = True
    while again:
        again = False
        for place in reversed(range(len(told))):
            shorter = told[:place] + told[place + 1 :]
            if World(slaves, needed).run(shorter).broken:
                told, again = shorter, True
    return told
