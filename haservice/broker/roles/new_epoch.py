"""A master's changes that need no other broker: it begins an epoch, follows, or forgets a replica.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from haservice.broker.roles.actions import (
    Action,
    Answer,
    AnswerWith,
    Ask,
    Done,
    End,
    Failed,
    Flush,
    GatherPledges,
    LogLevel,
    Refuse,
    Result,
    Say,
    SetMaster,
    TakeList,
    Turn,
    Votes,
    Write,
)
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import (
    NewerMaster,
    RoleInForce,
    command_for,
    new_epoch,
    next_number,
    role_wanted,
    slave_id,
)
from haservice.broker.roles.state import Change, RoleState, Step, TakeRole, View, Who
from haservice.broker.roles.votes import (
    newest_list,
    objections_to,
    others_of,
    pledged_to,
    silent_text,
    votes_of,
)
from haservice.configuration.settings import BrokerRole
from haservice.remoting.headers.lineage import (
    FollowHeader,
    ForgetHeader,
    PledgeHeader,
    PromoteHeader,
    SwitchoverBody,
)
from haservice.replication.lineage.epochs import LogSpan, of_one_promotion
from haservice.replication.lineage.file import Pledge, RoleCommand
from haservice.replication.lineage.membership import ReplicaList, vote_of, why_unsafe, why_unsafe_to_go_on
from haservice.replication.lineage.own_record import with_forgotten


@dataclass(frozen=True, slots=True)
class NewEpoch(Change):
    """A running master begins an epoch at its log's end, while appends are held: flush, write."""

    why: str
    promoted: bool
    min_epoch: int = 0
    ticket: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What else is written: a command, if the role changes."""
    role: RoleInForce | None = None
    """The role that the master gets by that command."""
    hold: str = field(default="a new epoch begins", kw_only=True)
    until_s: float = field(default=math.inf, kw_only=True)
    """With a lease: it does not begin from then on, by View.boottime_s."""

    def begin(self, state: RoleState, view: View) -> Step:
        return state.but(change=self), (Flush(),)

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return self._failed(state, result.reason)
        if isinstance(result, End):
            return self._write(state, result.offset, view)
        assert isinstance(result, Done), result
        last = view.kept.lineage.last
        assert last is not None
        state = state.but(
            change=None,
            waiting={},
            lost="",
            caught_up=frozenset(),
            undecided="",
            doubt="",
            ahead={},
            newer=None,
            trouble="",
        )
        actions: list[Action] = [
            Say(LogLevel.WARNING, f"an epoch begins epoch={last.number} start={last.start} why={self.why}"),
            TakeList(regreet=True),
        ]
        if self.ticket is not None:
            actions.append(Answer(self.ticket, self.role))
        if self.role is not None:
            state = state.but(turning=f"the role is {self.role.role.value} from now on: {self.why}")
            actions.append(Turn(state.turning))
        return state, tuple(actions)

    def _write(self, state: RoleState, end: int, view: View) -> Step:
        if view.boottime_s >= self.until_s:
            return self._failed(state, "the lease is over")
        try:
            changes = new_epoch(
                view.kept,
                LogSpan(view.log.start, end),
                self.why,
                view.now_ms,
                addr=state.who.broker_addr,
                needed=state.who.needed,
                promoted=self.promoted,
                heard=max(self.min_epoch - 1, state.heard),
            )
        except ValueError as error:
            return self._failed(state, str(error))
        number = changes["lineage"].last.number
        if self.until_s < math.inf and number != self.min_epoch:
            return self._failed(state, f"it would be {number}, and the lease is for {self.min_epoch}")
        written = {**changes, **self.changes, "boot_id": view.boot_id}
        return state, (Write(written, listed=view.kept.members),)

    def _failed(self, state: RoleState, reason: str) -> Step:
        """Whatever held this master before still does: the state has it, and it was never let go."""
        trouble = f"the new epoch cannot be written: {reason}"
        actions: tuple[Action, ...] = (Say(LogLevel.ERROR, trouble, ("epoch",)),)
        if self.ticket is not None:
            actions = (Refuse(self.ticket, trouble),)
        return state.but(change=None, trouble=trouble), actions


def further_epoch(state: RoleState, ticket: int, header: PromoteHeader, view: View) -> Step:
    """40003 at a master: it has to go on without those that it waits for, or in the other master's role."""
    last = view.kept.lineage.last
    number = last.number if last is not None else -1
    if header.min_epoch <= number:
        which = f"its epoch is {number}" if last is not None else "and has begun no epoch yet"
        return state, (Refuse(ticket, f"this broker is the master already, {which}"),)
    if header.expected_end not in (-1, view.log.end):
        return state, (Refuse(ticket, f"the log ends at {view.log.end}, and not at {header.expected_end}"),)
    now, why = state.who.role, header.why or "an operator's choice"
    wanted = role_wanted(header.role, view.kept, now) if header.role else now.role
    if isinstance(wanted, str):
        return state, (Refuse(ticket, wanted),)
    new = NewEpoch(why, True, header.min_epoch, ticket)
    if wanted is not now.role:
        command = command_for(wanted, 0, now, why, view.now_ms)
        changes = {"command": command, "master_role": wanted.value}
        new = replace(new, changes=changes, role=now.by(command))
    if header.force:
        return new.begin(state, view)
    if state.lost:
        return state, (Refuse(ticket, f"{state.lost}; --force does it all the same"),)
    kept = view.kept
    epoch = next_number(number, max(header.min_epoch - 1, state.heard), promoted=True)
    asked = PledgeHeader(epoch, kept.replica_id, state.who.broker_addr)
    change = Recounting(new, epoch, hold=state.held or "slaves are asked whether there is a newer master")
    return state.but(change=change), (GatherPledges(others_of(kept, state.who.broker_addr), asked),)


@dataclass(frozen=True, slots=True)
class TakingRole(Change):
    """A master becomes another kind of master: it writes that, then turns."""

    ticket: int
    role: RoleInForce
    why: str
    hold: str = field(default="this broker becomes another kind of master", kw_only=True)

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return state.but(change=None), (
                Refuse(self.ticket, f"the new role cannot be written: {result.reason}"),
            )
        state = state.but(change=None, turning=f"the role is {self.role.role.value} from now on: {self.why}")
        said = Say(LogLevel.WARNING, state.turning)
        return state, (said, Answer(self.ticket, self.role), Turn(state.turning))


def take_role(state: RoleState, ticket: int, order: TakeRole, view: View) -> Step:
    """Its epoch goes on: with a coordinator the voters agree on what an OK means before the next one is given."""
    now, wanted = state.who.role, role_wanted(order.role, view.kept, state.who.role)
    if state.who.is_slave or isinstance(wanted, str):
        why = wanted if isinstance(wanted, str) else "this broker is a slave"
        return state, (Refuse(ticket, why),)
    if wanted is now.role:
        return state, (Refuse(ticket, f"this broker is {wanted.value} already"),)
    command = command_for(wanted, 0, now, order.why, view.now_ms)
    # The second one stays when the process starts anew, as a slave until the coordinator is heard.
    changes = {"command": command, "master_role": wanted.value}
    return state.but(change=TakingRole(ticket, now.by(command), order.why)), (Write(changes),)


@dataclass(frozen=True, slots=True)
class Recounting(Change):
    """A master that is to go on in a further epoch asks its slaves for their pledges, as a candidate does.
    If too few answer, there may be a newer master, and that one may have given OKs that this one does not
    know of.
    """

    new: NewEpoch
    epoch: int
    hold: str = field(kw_only=True)

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        assert isinstance(result, Votes), result
        kept = view.kept
        pledged = pledged_to(result.heard, self.epoch, state.who.broker_addr)
        me = vote_of(kept.replica_id, kept.lineage, view.log.end, kept.whole_from)
        members = newest_list(kept.members, pledged)
        last = kept.lineage.last
        goes_on = last is not None and last.master == kept.replica_id
        judge = why_unsafe_to_go_on if goes_on else why_unsafe  # by its file alone it has no OK of its own
        why = judge(members, me, votes_of(pledged), objections_to(members, result, pledged))
        if not why:
            return replace(self.new, min_epoch=self.epoch).begin(state, view)
        assert self.new.ticket is not None
        return state.but(change=None), (Refuse(self.new.ticket, f"{why}{silent_text(result)}"),)


@dataclass(frozen=True, slots=True)
class Following(Change):
    """A master becomes a slave: it writes that, then turns.  It refuses writes from the first moment on."""

    newer: NewerMaster
    why: str
    heard: Heard = field(default_factory=Heard)
    ticket: int | None = None
    answer: SwitchoverBody | None = None
    command: RoleCommand | None = None
    hold: str = field(default="this broker becomes a slave", kw_only=True)

    def begin(self, state: RoleState, view: View) -> Step:
        broker_id = _free_slave_id(state.who, self.newer, self.heard, view)
        command = command_for(
            BrokerRole.SLAVE, broker_id, state.who.role, self.why, view.now_ms, self.newer.ha_addr
        )
        change = Following(self.newer, self.why, self.heard, self.ticket, self.answer, command)
        newer = self.newer
        changes: dict[str, Any] = {"command": command, "handing_over": None}
        if newer.replica_id:
            # Our last epoch may have left no byte; then only this keeps us from an older master.
            changes["pledge"] = Pledge(newer.epoch, newer.replica_id, newer.broker_addr)
        return state.but(change=change), (Write(changes),)

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return self._failed(state, result.reason)
        text = f"becomes a slave of={self.newer.broker_addr} epoch={self.newer.epoch} why={self.why}"
        actions: list[Action] = [Say(LogLevel.WARNING, text)]
        if self.ticket is not None and self.answer is not None:
            actions.append(AnswerWith(self.ticket, self.answer))
        elif self.ticket is not None:
            actions.append(Answer(self.ticket, state.who.role.by(self.command)))
        return state.but(change=None, turning=self.why), (*actions, Turn(self.why))

    def _failed(self, state: RoleState, reason: str) -> Step:
        """There is a newer epoch whatever we write: the master refuses writes, and tries again."""
        trouble = f"{self.newer.broker_addr} is the master, and that this broker follows cannot be written: {reason}"
        actions: list[Action] = [Say(LogLevel.ERROR, f"nothing is taken reason={trouble}", ("follow",))]
        if self.ticket is not None:
            actions.append(Refuse(self.ticket, f"{trouble}; nothing is taken, and it is tried again"))
        return state.but(change=None, newer=self.newer, trouble=trouble), tuple(actions)


@dataclass(frozen=True, slots=True)
class LookingForPlace(Change):
    """A master was told to follow: it first asks which broker ids are free."""

    ticket: int
    header: FollowHeader

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        assert isinstance(result, Heard), result
        header = self.header
        named = next((one for one in result.peers if one.broker_addr == header.master_addr), None)
        file_id = named.file_broker_id if named is not None else 0
        newer = NewerMaster(header.epoch, header.master_addr, header.ha_addr, file_id)
        return Following(newer, header.why or "told to follow", result, self.ticket).begin(state, view)


def follow(state: RoleState, ticket: int, header: FollowHeader, view: View) -> Step:
    """40004 at a master."""
    last = view.kept.lineage.last
    if last is not None and (header.epoch <= last.number or of_one_promotion(header.epoch, last.number)):
        why = f"this broker is the master of epoch {last.number}, and {header.epoch} is no newer one"
        return state, (Refuse(ticket, why),)
    return state.but(change=LookingForPlace(ticket, header)), (Ask((header.master_addr,)),)


def _free_slave_id(who: Who, newer: NewerMaster, heard: Heard, view: View) -> int:
    """The broker id that a master takes when it follows `newer`.

    Others on the list of replicas that have no id yet may choose now as well, unheard.  So each counts by its
    address's rank among theirs, and takes another id.
    """
    taken = {number for number, addr in heard.taken_ids.items() if addr != newer.broker_addr}
    taken |= {one.broker_id for one in heard.peers if one.broker_addr != newer.broker_addr}
    have_one = {addr for number, addr in heard.taken_ids.items() if number > 0}
    have_one |= {one.broker_addr for one in heard.peers if one.broker_id > 0}
    listed = {who.broker_addr, newer.broker_addr, *view.kept.members.replicas.values()}
    before_us = {one for one in listed - have_one - {newer.broker_addr} if one < who.broker_addr}
    return slave_id(
        who.role.file_broker_id, newer.file_broker_id, taken, replicas=len(listed), rank=len(before_us)
    )


@dataclass(frozen=True, slots=True)
class Writing(Change):
    """Writes one thing, then answers whoever asked."""

    ticket: int
    what: str
    then: tuple[Action, ...] = ()
    forgets: str = ""

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        state = state.but(change=None)
        if isinstance(result, Failed):
            return state, (Refuse(self.ticket, f"{self.what} cannot be written: {result.reason}"),)
        if self.forgets in state.waiting:  # no longer waited for; then an epoch begins as ever
            state = state.but(caught_up=state.caught_up | {self.forgets})
        return state, (*self.then, Answer(self.ticket))


def note_master(state: RoleState, ticket: int, header: FollowHeader, view: View) -> Step:
    """40004 at a slave: where its master is."""
    kept, told = view.kept, SetMaster(header.master_addr, header.ha_addr)
    last = kept.lineage.last
    floor = max(kept.pledge.epoch if kept.pledge is not None else -1, last.number if last is not None else -1)
    # If neither is the newer one, the greeting says so, and what an operator can do.
    if header.epoch < floor and not of_one_promotion(header.epoch, floor):
        return state, (
            Refuse(ticket, f"epoch {header.epoch} is older than {floor}, which this slave knows of"),
        )
    command = kept.command
    if command is None or not header.ha_addr:
        return state, (told, Answer(ticket))
    noted = RoleCommand(
        command.role, command.broker_id, command.file_role, view.now_ms, command.why, header.ha_addr
    )
    return state.but(change=Writing(ticket, "its master", (told,))), (Write({"command": noted}),)


def forget(state: RoleState, ticket: int, header: ForgetHeader, view: View) -> Step:
    """40008: an operator forgets a replica: no broker waits for it, and no promotion needs its answer."""
    kept, gone = view.kept, header.replica_id
    if gone == kept.replica_id:
        return state, (Refuse(ticket, "that is this broker itself"),)
    if gone in view.followers:
        why = f"replica {gone[:8]} still holds a connection to the HA port: stop it first, then forget it"
        return state, (Refuse(ticket, why),)
    if gone not in kept.members.replicas and gone not in kept.replicas:
        return state, (Refuse(ticket, f"no replica {gone[:32]} is known"),)
    if gone == kept.members.master:
        return state, (Refuse(ticket, "that is the master that made the list: no broker waits for it"),)
    given, forgotten = ReplicaList(), kept.forgotten
    if state.who.is_slave:
        members = kept.members.written_off(gone)
        given = kept.given if kept.given.version == kept.members.version else kept.members
    else:
        last = kept.lineage.last
        epoch = last.number if last is not None else 0
        members = kept.members.forgotten(epoch, kept.lineage.mark(view.log.end), gone)
        forgotten = with_forgotten(kept, gone, members.version)
    replicas = {one: replica for one, replica in kept.replicas.items() if one != gone}
    text = f"a replica is forgotten id={gone[:8]} addr={kept.members.replicas.get(gone, '')}"
    then: tuple[Action, ...] = (Say(LogLevel.WARNING, text),)
    if not state.who.is_slave:
        then = (*then, TakeList(regreet=False))
    change = Writing(ticket, "that it is forgotten", then, forgets=gone)
    changes = {"members": members, "given": given, "replicas": replicas, "forgotten": forgotten}
    return state.but(change=change), (Write(changes, listed=kept.members),)
