"""What a slave does about roles: it becomes the master, pledges itself to another slave, begins anew.  Pure.

A promotion after a death, without --force:

    candidate                                       the other slaves on the list
    link down, all flushed
    ──── PLEDGE: epoch, who we are ───────────────▶ written: no master of an older epoch is followed, and
    ◀─── where the log ends, which list is known ── nothing is acknowledged to one any more
    enough pledged, none further than we (membership.why_unsafe)
    new epoch and role, durable

From then on a master that is cut off gives no OK: the slaves that it would need have pledged, or are we.  A
pledge stands until its epoch begins, or until the candidate says that it is no master and changes nothing.
Such a candidate will not become the master by the old pledge: it would ask anew.  While the candidate is
silent, the pledge stands.

In a switchover the master itself holds its appends; the candidate asks the master back instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from haservice.broker.roles.actions import (
    Action,
    Answer,
    AskOne,
    Confirm,
    Copy,
    Done,
    Empty,
    End,
    Failed,
    GatherPledges,
    LeaveMaster,
    LogLevel,
    Refuse,
    Result,
    Say,
    SetMaster,
    StopLink,
    Turn,
    Votes,
    Write,
)
from haservice.broker.roles.rules import command_for, new_epoch, next_number, role_wanted
from haservice.broker.roles.state import BeginEpoch, Change, Looking, RoleState, Step, View
from haservice.broker.roles.votes import (
    newest_list,
    objections_to,
    others_of,
    pledged_to,
    silent_text,
    votes_of,
)
from haservice.configuration.settings import BrokerRole
from haservice.remoting.headers.lineage import LineageBody, PledgeHeader, PromoteHeader, ReinitHeader
from haservice.replication.lineage.epochs import Lineage, LogSpan, of_one_promotion
from haservice.replication.lineage.file import LineageState, Pledge, without_its_log
from haservice.replication.lineage.membership import vote_of, why_no_candidate, why_unsafe

# The end of a refusal that can be overruled.
FORCE = "--force does it all the same"

# -- becoming the master ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promotion(Change):
    """A slave becomes the master.  `end` is where its log ends once its link is down."""

    ticket: int
    header: PromoteHeader
    role: BrokerRole
    end: int = -1
    order: BeginEpoch | None = None
    """By whose lease, if it is by one: then nobody else is asked."""

    def begin(self, state: RoleState) -> Step:
        return state.but(change=self), (Copy(from_living=self._is_planned),)

    @property
    def _is_planned(self) -> bool:
        return bool(self.header.confirm_addr)

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        said: tuple[Action, ...] = ()
        if isinstance(result, Failed):
            text = f"promoted without a last copy of what the master keeps beside its log: {result.reason}"
            said = (Say(LogLevel.WARNING, text),)
        return state.but(change=LinkDown(self)), (*said, StopLink())


@dataclass(frozen=True, slots=True)
class LinkDown(Change):
    """The link has to be down, and the log has to end with a whole record."""

    promotion: Promotion

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        header = self.promotion.header
        if isinstance(result, Failed):
            return give_up(state, self.promotion, result.reason)
        assert isinstance(result, End), result
        promotion = replace(self.promotion, end=result.offset)
        if header.expected_end not in (-1, result.offset):
            text = f"the log ends at {result.offset}, and not at {header.expected_end}"
            return give_up(state, promotion, text)
        if header.confirm_addr:
            change = Agreed(promotion)
            return state.but(change=change), (Confirm(header.confirm_addr, header.token),)
        if (order := promotion.order) is not None:
            if why := order.why_late(view.boottime_s):
                return give_up(state, promotion, why)
            return _write(state, promotion, view, view.kept, order.epoch)
        kept = view.kept
        epoch = next_number(_highest(kept), max(header.min_epoch - 1, state.heard), promoted=True)
        addrs = others_of(kept, state.who.broker_addr)
        asked = PledgeHeader(epoch, kept.replica_id, state.who.broker_addr)
        return state.but(change=Counting(promotion, epoch)), (GatherPledges(addrs, asked),)


def _highest(kept: LineageState) -> int:
    last = kept.lineage.last
    return max(last.number if last is not None else -1, kept.pledge.epoch if kept.pledge is not None else -1)


@dataclass(frozen=True, slots=True)
class Counting(Change):
    """The others pledge themselves; enough of them have to."""

    promotion: Promotion
    epoch: int

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        assert isinstance(result, Votes), result
        promotion, kept = self.promotion, view.kept
        pledged = pledged_to(result.heard, self.epoch, state.who.broker_addr)
        members = newest_list(kept.members, pledged)
        me = vote_of(kept.replica_id, kept.lineage, promotion.end, kept.whole_from)
        last = kept.lineage.last
        newest = last.number if last is not None else -1
        objections = objections_to(members, result, pledged)
        why = _living_master(result.heard, newest) or why_unsafe(members, me, votes_of(pledged), objections)
        if why and not promotion.header.force:
            return give_up(state, promotion, f"{why}{silent_text(result)}; {FORCE}")
        kept = replace(kept, members=members)
        return _write(state, promotion, view, kept, self.epoch)


def _living_master(heard: Sequence[LineageBody], newest: int) -> str:
    """Which master is not dead after all; one of an older epoch than we know gives way by itself."""
    for one in heard:
        is_older = one.epoch < newest and not of_one_promotion(one.epoch, newest)
        if one.is_master and not one.held and not is_older:
            return (
                f"{one.broker_addr} is the master of epoch {one.epoch} and accepts writes: mqadmin switchover loses"
                " nothing"
            )
    return ""


@dataclass(frozen=True, slots=True)
class Agreed(Change):
    """The master that hands over has to say that it still does: it may have given up meanwhile."""

    promotion: Promotion

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return give_up(state, self.promotion, result.reason)
        return _write(state, self.promotion, view, view.kept, self.promotion.header.min_epoch)


def _write(state: RoleState, promotion: Promotion, view: View, kept: LineageState, epoch: int) -> Step:
    header, now = promotion.header, state.who.role
    why = header.why or "promoted"
    command = command_for(promotion.role, 0, now, why, view.now_ms)
    try:
        changes = new_epoch(
            kept,
            LogSpan(view.log.start, promotion.end),
            why,
            view.now_ms,
            addr=state.who.broker_addr,
            needed=state.who.needed,
            promoted=True,
            heard=max(epoch - 1, state.heard),
        )
    except ValueError as error:
        return give_up(state, promotion, f"the new epoch cannot be written: {error}")
    if promotion.order is not None and (number := changes["lineage"].last.number) != promotion.order.epoch:
        return give_up(
            state, promotion, f"the epoch would be {number}, and the lease is for {promotion.order.epoch}"
        )
    written = {**changes, "command": command, "boot_id": view.boot_id}
    change = Written(promotion, f"promoted to {promotion.role.value}: {header.why or 'no reason given'}")
    return state.but(change=change), (Write(written),)


@dataclass(frozen=True, slots=True)
class Written(Change):
    """Epoch and role are written in one step; then the broker turns."""

    promotion: Promotion
    why: str

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return give_up(state, self.promotion, f"the new epoch cannot be written: {result.reason}")
        last = view.kept.lineage.last
        assert last is not None
        text = (
            f"promoted role={self.promotion.role.value} epoch={last.number} start={last.start} why={self.why}"
        )
        answer = Answer(self.promotion.ticket, state.who.role.by(view.kept.command))
        return state.but(change=None, turning=self.why), (Say(LogLevel.WARNING, text), answer, Turn(self.why))


def give_up(state: RoleState, promotion: Promotion, reason: str) -> Step:
    """The link is down; it comes back when the broker has restarted."""
    why = "not promoted, connecting to the master again"
    return state.but(change=None, turning=why), (Refuse(promotion.ticket, reason), Turn(why))


def promote(state: RoleState, ticket: int, header: PromoteHeader, view: View) -> Step:
    """40003 at a slave.  If it is refused before the slave's link ends, nothing has changed."""
    wanted = role_wanted(header.role, view.kept, state.who.role)
    if isinstance(wanted, str):
        return state, (Refuse(ticket, wanted),)
    if header.expected_end not in (-1, view.log.end):
        return state, (Refuse(ticket, f"the log ends at {view.log.end}, and not at {header.expected_end}"),)
    promise = view.kept.pledge
    if header.confirm_addr and promise is not None:
        # The master that hands over does not know of it, and the other one may have counted on us.
        why = f"this slave has pledged to {promise.broker_addr} for epoch {promise.epoch} meanwhile"
        return state, (Refuse(ticket, why),)
    return Promotion(ticket, header, wanted).begin(state)


# -- the pledge -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verifying(Change):
    """Whether the candidate sent it: where our master knew it, it has to say that it changes its role."""

    ticket: int
    header: PledgeHeader

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        header = self.header
        if isinstance(result, Failed):
            why = f"{header.broker_addr} does not say that it asks for this: {result.reason}"
            return state.but(change=None), (Refuse(self.ticket, why),)
        assert isinstance(result, LineageBody), result
        if result.replica_id != header.replica_id or not result.changing:
            why = f"{header.broker_addr} says that it does not ask for this"
            return state.but(change=None), (Refuse(self.ticket, why),)
        kept, promise = view.kept, Pledge(header.epoch, header.replica_id, header.broker_addr)
        write, said = Write({"pledge": promise}), tuple[Action, ...]()
        members = kept.members.let_back(kept.given, header.replica_id)
        if members != kept.members:
            write = Write({"pledge": promise, "members": members}, listed=kept.members)
            text = f"a replica that was forgotten asks for a pledge, and is on the list again addr={header.broker_addr}"
            said = (Say(LogLevel.WARNING, text),)
        return state.but(change=Pledging(self.ticket, header)), (*said, write)


@dataclass(frozen=True, slots=True)
class Pledging(Change):
    """The promise is written: from here on the slave follows no older master, and acknowledges to none more
    than the log end in its answer.
    """

    ticket: int
    header: PledgeHeader

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        state = state.but(change=None)
        if isinstance(result, Failed):
            return state, (Refuse(self.ticket, f"the promise cannot be written: {result.reason}"),)
        said = Say(LogLevel.WARNING, f"pledged epoch={self.header.epoch} to={self.header.broker_addr}")
        return state, (said, LeaveMaster(), Answer(self.ticket))


def pledge(state: RoleState, ticket: int, header: PledgeHeader, view: View) -> Step:
    """40007."""
    kept = view.kept
    own = kept.pledge
    if not state.who.is_slave:
        return state, (Answer(ticket),)  # a master promises nothing, but is not dead
    highest = _highest(kept)
    is_same = own is not None and (own.epoch, own.replica_id) == (header.epoch, header.replica_id)
    if header.epoch < highest or (header.epoch == highest and not is_same):
        to = f", which {own.broker_addr} is to begin" if own is not None and own.epoch == highest else ""
        return state, (
            Refuse(ticket, f"this slave knows of epoch {highest}{to}, and {header.epoch} is no newer one"),
        )
    if why := why_no_candidate(kept.members, kept.given, header.replica_id, header.broker_addr):
        return state, (Refuse(ticket, why),)
    return state.but(change=Verifying(ticket, header)), (AskOne(header.broker_addr),)


@dataclass(frozen=True, slots=True)
class AskingAfterPledge(Looking):
    """Asks the candidate what became of it."""

    promise: Pledge

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if not isinstance(result, LineageBody):
            return state.but(change=None), ()
        promise = self.promise
        if result.replica_id != promise.replica_id or result.changing:
            return state.but(change=None), ()
        if result.epoch >= promise.epoch:  # it was promoted, though it may have handed over since
            told = (SetMaster(result.broker_addr, result.ha_addr),) if result.is_master else ()
            return state.but(change=None), told
        text = f"the pledge is over, for it was not promoted epoch={promise.epoch} to={promise.broker_addr}"
        return state.but(change=Released()), (Say(LogLevel.WARNING, text), Write({"pledge": None}))


@dataclass(frozen=True, slots=True)
class Released(Looking):
    """The end of the pledge is written; if that fails, the candidate is asked again."""

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        return state.but(change=None), ()


def ask_after_pledge(state: RoleState, view: View) -> Step:
    """A slave's tick: asks after its pledge."""
    promise = view.kept.pledge
    if promise is None:
        return state, ()
    return state.but(change=AskingAfterPledge(promise)), (AskOne(promise.broker_addr),)


# -- beginning anew ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EmptyingStore(Change):
    """Link down, log and queues emptied, epochs dropped; then the broker turns, and takes everything anew.

    Before a byte goes it is written down that the log is not whole.
    """

    keep: bool
    steps_done: int = 0

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if self.steps_done == 0:
            return self._next(state, Write(without_its_log(view.kept)))
        if isinstance(result, Done) and self.steps_done == 1:
            return self._next(state, Empty(self.keep))
        if isinstance(result, Done) and self.steps_done == 2:
            return self._next(state, Write({"lineage": Lineage()}))
        why = "everything is copied again"
        said: tuple[Action, ...] = ()
        if isinstance(result, Failed):
            said = (Say(LogLevel.ERROR, f"the store was not emptied reason={result.reason}"),)
        return state.but(change=None, turning=why), (*said, Turn(why))

    def _next(self, state: RoleState, action: Empty | Write) -> Step:
        return state.but(change=replace(self, steps_done=self.steps_done + 1)), (action,)


def empty(state: RoleState, ticket: int, header: ReinitHeader, view: View) -> Step:
    """40006; whoever asked gets the answer before."""
    if not state.who.is_slave:
        why = "this broker is the master: it would lose what no other broker may have"
        return state, (Refuse(ticket, why),)
    said = Say(LogLevel.WARNING, f"the store is emptied end={view.log.end} keep={header.keep}")
    return state.but(change=EmptyingStore(header.keep)), (said, Answer(ticket), StopLink())
