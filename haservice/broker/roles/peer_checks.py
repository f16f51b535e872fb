"""What a master learns from its peers: a newer epoch, what it has lost, whom it promoted.  Pure.

A newer epoch counts if the peer that tells of it is a replica that we know, at its known address, or if the
peer has our own bytes (state.Prove).  A nameserver, or a stranger at the HA port, only tells where to ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from haservice.bounds import OFFSET_MAX
from haservice.broker.roles.actions import (
    Action,
    Done,
    End,
    Failed,
    Flush,
    LogLevel,
    Prove,
    Pull,
    Pulled,
    Result,
    Say,
    TellFollow,
    Write,
)
from haservice.broker.roles.new_epoch import Following, NewEpoch
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import (
    NewerMaster,
    StartOfMaster,
    highest_number,
    is_member,
    lineage_of,
    may_have_answered,
    members_of,
    newer_masters,
    replicas_in_sync,
    rival,
    start_of_master,
    takes_over,
    was_not_promoted,
)
from haservice.broker.roles.state import Begin, Change, Looking, RoleState, Step, View
from haservice.configuration.settings import BrokerRole
from haservice.mastership.whole import LOST_POWER, Evidence, Place, why_not_whole
from haservice.remoting.headers.lineage import FollowHeader, LineageBody
from haservice.replication.lineage.epochs import UNKNOWN_EPOCH, LogSpan, Mark, plan
from haservice.replication.lineage.epochs import Step as PlanStep
from haservice.replication.lineage.file import LineageState, Replica
from haservice.replication.lineage.own_record import DURABLE, own_evidence, why_older_copy

Claims = Sequence[tuple[NewerMaster, LineageBody]]


@dataclass(frozen=True, slots=True)
class Look(Looking):
    """Asks all peers."""

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        assert isinstance(result, Heard), result
        kept = view.kept
        known = [one for one in result.peers if is_member(kept.members, one)]
        state = state.but(heard=max(state.heard, highest_number(known)))
        told = _told(known, kept, lost_power=True)
        evidence = Evidence(kept.lineage.mark(view.log.end), told)
        lost = why_not_whole(evidence) or _why_older_copy(state, result.peers, kept)
        if lost and not state.lost:
            changes = {"whole_from": OFFSET_MAX, "lost_power": False}
            return state.but(lost=lost, change=Outdated()), (Write(changes),)
        claims = newer_masters(kept.replica_id, kept.lineage, result.peers)
        return Proving(claims, result).begin(state, view)


@dataclass(frozen=True, slots=True)
class Outdated(Looking):
    """A slave remembers an epoch of ours that we do not, or has more of one: our store is an older copy.  Writes it
    down; if that fails, the next look tries again.
    """

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return state.but(change=None, lost=""), ()
        return state.but(change=None), (
            Say(LogLevel.ERROR, f"this master is out of date reason={state.lost}"),
        )


def begin(state: RoleState, event: Begin, view: View) -> Step:
    """A master starts: it gives way to a newer one, or begins, or waits for what it may have lost."""
    kept = view.kept
    starting = not may_have_answered(kept, state.who.needed)
    claims = newer_masters(kept.replica_id, kept.lineage, event.heard.peers, starting=starting)
    return Proving(claims, event.heard, start=event.start).begin(state, view)


def start_as_master(state: RoleState, heard: Heard, start: StartOfMaster, view: View) -> Step:
    """Nobody has taken over."""
    kept = view.kept
    known = [one for one in heard.peers if is_member(kept.members, one)]
    state = state.but(heard=max(state.heard, highest_number(known)))
    handing, changes = kept.handing_over, dict[str, Any]()
    if handing is not None and any(was_not_promoted(handing, one) for one in heard.peers):
        changes["handing_over"] = None
    elif handing is not None:
        why = (
            f"it is not known whether {handing.broker_addr} became the master: it was told to, and we started"
        )
        state = state.but(doubt=why)
    if undecided := _why_unproven(kept, start, heard):
        return state.but(undecided=state.undecided or f"{undecided}: {state.who.counted_failover}"), ()
    start = replace(start, heard=state.heard)
    begun, waiting, undecided = start_of_master(
        kept, start, view.now_ms, addr=state.who.broker_addr, needed=state.who.needed
    )
    evidence = _evidence(kept, start, known)
    lost = why_not_whole(evidence) or ""
    waiting = {**(replicas_in_sync(kept) if lost else waiting), **_ahead(known, view)}
    if lost:
        state = state.but(lost=lost)
        changes["whole_from"] = max(kept.whole_from, _had_end(kept, evidence))
        changes["lost_power"] = kept.lost_power and lost == LOST_POWER
    if waiting or lost or undecided or state.undecided:
        undecided = undecided and f"{undecided}: {state.who.failover}"
        state = state.but(waiting=waiting, undecided=state.undecided or undecided)
    else:
        # A new epoch does not settle whether a slave was promoted: a doubt stays in the file.
        changes = {
            **begun,
            **changes,
            "handing_over": handing if state.doubt else None,
            "boot_id": view.boot_id,
        }
    if not changes:
        return state, ()
    return state.but(change=Starting(changes)), (Flush(),)


def _why_unproven(kept: LineageState, start: StartOfMaster, heard: Heard) -> str:
    """Why a broker that its properties file makes the master may not go on with its log before an operator says so;
    "" if it may.  A log that a stock broker wrote, and nobody knows, is its own.
    """
    last = kept.lineage.last
    if last is not None:
        if last.number == UNKNOWN_EPOCH or not takes_over(kept):
            return ""
        return f"its properties file makes it the master, and epoch {last.number} was another broker's"
    further = [
        one.broker_addr for one in heard.peers if one.epoch > UNKNOWN_EPOCH or one.log_end > start.log.end
    ]
    known_to = DURABLE if start.has_own_marks and not start.log.is_empty else "".join(further[:1])
    return (
        why_not_whole(Evidence(kept.lineage.mark(start.log.end), has_record=False, known_to=known_to)) or ""
    )


def _evidence(kept: LineageState, start: StartOfMaster, known: Sequence[LineageBody]) -> Evidence:
    """What this broker's own files and the replicas on its list remember of its log."""
    lost_power = start.may_have_lost_its_end
    evidence = own_evidence(kept, start.log, start.had_end, lost_power=lost_power)
    return replace(evidence, told={**evidence.told, **_told(known, kept, lost_power=lost_power)})


def _told(known: Sequence[LineageBody], kept: LineageState, *, lost_power: bool) -> dict[str, Place]:
    places = {one.broker_addr: _told_to(one, kept, lost_power=lost_power) for one in known}
    return {who: place for who, place in places.items() if place is not None}


def _told_to(peer: LineageBody, kept: LineageState, *, lost_power: bool) -> Place | None:
    """How far our log went, as that replica heard while it followed us.

    If the machine went down, what a slave only heard of was perhaps never flushed; it is waited for by other rules.
    """
    theirs, own = lineage_of(peer).last, kept.lineage
    if theirs is None or theirs.master != kept.replica_id or peer.is_master:
        return None
    if own.last is None or theirs.number > own.last.number:
        return Mark(theirs.number, max(theirs.start, peer.master_end))
    if theirs.identity != own.last.identity or lost_power or peer.master_end < 0:
        return None
    return own.mark(peer.master_end)


def _why_older_copy(state: RoleState, peers: Sequence[LineageBody], kept: LineageState) -> str:
    """By a replica on our list, or a slave whose log was compared with ours.  With a coordinator it remembers how far
    our log went; an ASYNC_MASTER's OK is its own affair.
    """
    if state.who.role.role is not BrokerRole.SYNC_MASTER or kept.joined >= 0:
        return ""
    for one in peers:
        is_known = is_member(kept.members, one) or one.replica_id in state.ahead
        if is_known and not one.is_master:
            who, listed = (one.replica_id, one.broker_addr), members_of(one)
            if why := why_older_copy(kept, *who, listed, lineage_of(one), one.log_end):
                return why
    return ""


def _had_end(kept: LineageState, evidence: Evidence) -> int:
    """From which end on the log is whole again; an epoch that our list of epochs lacks comes from a master only."""
    last = kept.lineage.last
    newest, end = max(evidence.told.values(), default=evidence.reach)
    return OFFSET_MAX if last is not None and newest > last.number else end


def _ahead(known: Sequence[LineageBody], view: View) -> dict[str, Replica]:
    """The replicas that have more of our last epoch than we have."""
    return {
        one.replica_id: Replica(one.broker_addr, one.log_end, view.now_ms, in_sync=True)
        for one in known
        if _ahead_up_to(one, view) is not None
    }


@dataclass(frozen=True, slots=True)
class Starting(Change):
    """Writes the outcome of the start, once the log is flushed."""

    changes: Mapping[str, Any]

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return state.but(change=None, broken=f"a master cannot begin here: {result.reason}"), ()
        if isinstance(result, End):
            return state, (Write(self.changes),)
        last = view.kept.lineage.last
        text = "" if last is None else f"master epoch={last.number} start={last.start} why={last.why}"
        return state.but(change=None), (Say(LogLevel.INFO, text),)


@dataclass(frozen=True, slots=True)
class Proving(Looking):
    """The peers that say that there is a newer epoch prove it, one after the other."""

    claims: Claims
    heard: Heard
    doubts: tuple[str, ...] = ()
    start: StartOfMaster | None = None
    """Set for a master that starts: what comes next if nobody proves anything."""

    def begin(self, state: RoleState, view: View) -> Step:
        if not self.claims:
            return self._nobody(state.but(change=None, unproven="; ".join(self.doubts)), view)
        newer, peer = self.claims[0]
        # A master with an empty log that still refuses writes has nothing to prove it by, or to lose.
        is_blank = view.log.is_empty and (self.start is not None or bool(state.held))
        if is_blank or is_member(view.kept.members, peer):
            return self._give_way(state, newer, view)
        return state.but(change=self), (Prove(peer),)

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        newer, peer = self.claims[0]
        if isinstance(result, Done):
            return self._give_way(state, newer, view)
        assert isinstance(result, Failed), result
        doubt = f"{peer.broker_addr} claims epoch {newer.epoch} without proof: {result.reason}"
        rest = replace(self, claims=self.claims[1:], doubts=(*self.doubts, doubt))
        return rest.begin(state, view)

    def _not_to_itself(self, state: RoleState, newer: NewerMaster, view: View) -> Step:
        """A broker that lost its lineage file is another replica now, and was that newer master itself."""
        if self.start is not None:
            another = state.who.failover_to(self.claims[0][1].broker_addr)
            why = (
                f"this broker was the master of epoch {newer.epoch}, and what it knew of epochs and replicas is lost:"
                f" {another} makes a broker with all messages the master, or this one: {state.who.failover}"
            )
            state = state.but(undecided=why)
        return replace(self, claims=self.claims[1:]).begin(state, view)

    def _nobody(self, state: RoleState, view: View) -> Step:
        said = tuple(
            Say(LogLevel.ERROR, f"a newer epoch is not believed reason={one}", ("unproven", one))
            for one in self.doubts
        )
        if self.start is not None:
            after, actions = start_as_master(state, self.heard, self.start, view)
        else:
            after, actions = _judge(state, self.heard, view)
        return after, (*said, *actions)

    def _give_way(self, state: RoleState, newer: NewerMaster, view: View) -> Step:
        if newer.broker_addr == state.who.broker_addr:
            if not view.log.is_empty:
                return self._not_to_itself(state, newer, view)
            newer = replace(newer, broker_addr="")  # that master is gone: another machine is in its place
        why = f"stepped down: {newer.broker_addr or 'another broker'} is the master of epoch {newer.epoch}"
        return Following(newer, why, self.heard).begin(state.but(unproven=""), view)


def _judge(state: RoleState, heard: Heard, view: View) -> Step:
    """No newer epoch is proven: decides who has to be told, and what is to be settled or taken back."""
    kept = view.kept
    said: list[Action] = []
    other = rival(kept.replica_id, kept.lineage, heard.peers)
    if other is not None:
        said.append(
            Say(
                LogLevel.ERROR,
                "two masters have one epoch, choose one with mqadmin failover"
                f" epoch={other.epoch} other={other.broker_addr}",
                ("rival", other.replica_id),
            )
        )
    said += _told_master(state, heard, view)
    handing = kept.handing_over
    if state.doubt and handing is not None:
        if not any(was_not_promoted(handing, one) for one in heard.peers):
            return state, tuple(said)
        text = f"the slave was not promoted slave={handing.broker_addr}"
        change = TakingBack(heard)
        return state.but(change=change), (*said, Say(LogLevel.WARNING, text), Write({"handing_over": None}))
    after, actions = take_back(state, heard, view)
    return after, (*said, *actions)


def _told_master(state: RoleState, heard: Heard, view: View) -> list[Action]:
    """Slaves of older epochs that follow somebody else are told who the master is."""
    last = view.kept.lineage.last
    if state.held or last is None:
        return []
    return [
        TellFollow(
            one.broker_addr,
            FollowHeader(state.who.broker_addr, state.who.ha_addr, last.number, "it is the master"),
        )
        for one in heard.peers
        if not one.is_master
        and not one.changing
        and one.master_addr != state.who.broker_addr
        and one.replica_id in view.kept.members.replicas
        and one.pledged <= last.number
    ]


@dataclass(frozen=True, slots=True)
class TakingBack(Looking):
    """It is known that nobody was promoted: writes that down."""

    heard: Heard

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        # If that cannot be written, the next start asks the slave once more.
        said: tuple[Action, ...] = ()
        if isinstance(result, Failed):
            said = (
                Say(
                    LogLevel.WARNING, f"that the switchover is over cannot be written reason={result.reason}"
                ),
            )
        after, actions = take_back(state.but(change=None, doubt=""), self.heard, view)
        return after, (*said, *actions)


def take_back(state: RoleState, heard: Heard, view: View) -> Step:
    """Asks who may have what we lost, and takes back a piece of it; an epoch begins once nobody has more."""
    if not state.waiting and not state.ahead and not state.lost:
        return state, ()
    if state.lost:
        known = [one for one in heard.peers if is_member(view.kept.members, one)]
        state = state.but(waiting={**state.waiting, **_ahead(known, view)})
    for one in heard.peers:
        if one.replica_id in state.ahead or (
            one.replica_id in state.waiting and one.replica_id not in state.caught_up
        ):
            position = _ahead_up_to(one, view)
            if position is not None:
                text = (
                    f"a replica has what its master lost addr={one.broker_addr} up_to={position}"
                    f" ours={view.log.end}"
                )
                change = PeerRepair(one, position, heard)
                said = Say(LogLevel.WARNING, text, ("ahead", one.replica_id))
                return state.but(change=change), (said, Pull(one, view.log.end, position))
            state = _level(state, one.replica_id)
    for replica_id in view.followers:
        state = _level(state, replica_id)
    is_whole = not state.lost or view.log.end >= view.kept.whole_from
    if (state.waiting or state.lost) and is_whole and state.waiting.keys() <= state.caught_up:
        why = "its end was lost; what the replicas have was taken back"
        return NewEpoch(why, promoted=False).begin(state, view)
    # A slave that was ahead and does not answer dials again, and says again that it is ahead.
    return state.but(ahead={}), ()


def _level(state: RoleState, replica_id: str) -> RoleState:
    ahead = {one: addr for one, addr in state.ahead.items() if one != replica_id}
    caught_up = state.caught_up | ({replica_id} & state.waiting.keys())
    return state.but(ahead=ahead, caught_up=caught_up)


def _ahead_up_to(peer: LineageBody, view: View) -> int | None:
    """Up to where the peer has what our last epoch wrote and we have lost; None if it has nothing of it."""
    theirs = LogSpan(peer.log_start, peer.log_end)
    found = plan(lineage_of(peer), theirs, view.kept.lineage, view.log, peer.replica_id)
    return found.position if found.step is PlanStep.AHEAD else None


@dataclass(frozen=True, slots=True)
class PeerRepair(Looking):
    """Takes back what a replica has, piece by piece; between two pieces others get their turn."""

    peer: LineageBody
    position: int
    heard: Heard
    hold: str = field(
        default="a slave has messages that this master has lost, they are copied back", kw_only=True
    )

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        assert isinstance(result, Pulled), result
        if result.more and not view.asked:
            return state, (Pull(self.peer, result.end, self.position),)
        state = state.but(change=None)
        if result.more:
            return state.but(again=True), ()
        if not result.failure:
            return take_back(_level(state.but(trouble=""), self.peer.replica_id), self.heard, view)
        trouble = f"not taken back from {self.peer.broker_addr}: {result.failure}"
        text = f"what a replica has cannot be taken back addr={self.peer.broker_addr} reason={result.failure}"
        ahead = {one: addr for one, addr in state.ahead.items() if one != self.peer.replica_id}
        said = Say(LogLevel.ERROR, text, ("pull", self.peer.replica_id))
        return state.but(trouble=trouble, ahead=ahead), (said,)
