"""The decision: facts in, actions out.  Pure.

    the lease is   ours       take messages until a moment that our own clock tells; keep the voters; tell our end
                   another's  follow him
                   nobody's   seal the log against the last master; take the lease, if that is safe
    unreadable                a master goes on for as long as its lease, or all voters' promises, last

At most one transaction follows from one decision.  What it expects is what the decision was made from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from haservice.coordination.candidate import (
    first_voters,
    is_last_resort,
    newest_known,
    next_epoch,
    voters_anew,
    why_not,
    why_not_anew,
    why_restored,
    why_taken,
)
from haservice.coordination.cluster import (
    EPOCH,
    MASTER,
    REQUEST,
    SETTINGS,
    STATUS,
    VOTERS,
    Cluster,
    HistoryEntry,
    Leaseholder,
    MasterRequest,
    Status,
)
from haservice.coordination.coordinator import ABSENT, HISTORY, Transaction
from haservice.coordination.facts import TELL_SECONDS, LeaseFacts, Own, VotersChange
from haservice.coordination.voters import NEVER, Follower, Voters, wanted
from haservice.replication.lineage.epochs import Mark
from haservice.typed_json import encode

# -- actions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Serve:
    """Takes messages as the master of `epoch`, and answers OK, while the clock is before `until_s`."""

    epoch: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Block:
    """Takes no message and answers no OK; readers are served."""

    why: str


@dataclass(frozen=True, slots=True)
class Promote:
    """Begins the epoch that came with the lease, in our log; not from `until_s` on, for another one may have begun."""

    epoch: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Follows that master; a broker that was the master becomes a slave."""

    master: Leaseholder


@dataclass(frozen=True, slots=True)
class Seal:
    """Durably: acknowledges nothing more to a master of this epoch or an older one, and is none itself."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """Durably: our log is an older copy of itself.  It counts for nothing until a master of `epoch` or a newer one has
    filled it up.
    """

    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """An operator has to read this."""

    text: str


@dataclass(frozen=True, slots=True)
class CountBy:
    """Whose acks make an OK from now on."""

    voters: Voters


@dataclass(frozen=True, slots=True)
class AskPromises:
    """Asks these voters, over the HA link, to take no lease for so long; tells them where our log ends."""

    ids: frozenset[str]
    epoch: int
    ttl_s: float


Action = Serve | Block | Promote | Follow | Seal | CountBy | AskPromises | Doubt | Alarm


@dataclass(frozen=True, slots=True)
class Decided:
    """`why` says, for people, why this broker is not the master; `change` is the change of voters under way."""

    actions: tuple[Action, ...] = ()
    commit: Transaction | None = None
    why: str = ""
    change: VotersChange | None = None
    alarm: str = ""
    """What an operator has to read once `commit` has happened."""


# -- the decision -----------------------------------------------------------------------------------


def decide(facts: LeaseFacts, now_ms: int = 0) -> Decided:
    seen, own = facts.seen, facts.own
    if not facts.is_fresh or seen is None:
        return _unreadable(facts)
    if why := why_restored(facts):
        return _not_believed(facts, seen, why, now_ms)
    if seen.master is None:
        return _vacant(facts, seen, now_ms)
    if facts.holds is not None:
        return _ours(facts, seen, seen.master)
    if seen.master.replica_id == own.id:
        return _left_over(facts, seen, seen.master)
    why = f"replica {seen.master.replica_id[:8]} is the master of epoch {seen.master.epoch}"
    actions: list[Action] = [Block(why)] if own.opened >= 0 else []
    if own.follows != seen.master.epoch:
        actions.append(Follow(seen.master))
    return Decided(tuple(actions), why=why)


def _unreadable(facts: LeaseFacts) -> Decided:
    own, why = facts.own, "the coordinator cannot be reached"
    if own.opened < 0:
        return Decided(why=why, change=facts.change)
    if has := why_untold(facts):
        actions: list[Action] = [Block(f"{why}: {has}")]
    else:
        actions = [*_served(facts, own.opened, why)]
    if facts.settings.failsafe and facts.is_last_master:
        actions.append(AskPromises(facts.who_could_take_it, own.opened, facts.settings.ttl_s))
    return Decided(tuple(actions), why=why, change=facts.change)


def why_untold(facts: LeaseFacts) -> str:
    """Rule 5, while the coordinator hears nothing of us: why an ASYNC_MASTER takes no more; "" if it may."""
    most, untold = facts.settings.max_loss_bytes, facts.untold_bytes
    if facts.own.opened < 0 or facts.goes_on or not facts.own.needed == 0 < most < untold:
        return ""
    return f"{untold} bytes are neither told to it nor on all voters, and haMaxLossBytes is {most}"


def _served(facts: LeaseFacts, epoch: int, why: str) -> Iterable[Action]:
    until_s = facts.serves_until_s
    yield Serve(epoch, until_s) if facts.now_s < until_s else Block(why)


def _not_believed(facts: LeaseFacts, seen: Cluster, restored: str, now_ms: int) -> Decided:
    """The coordinator was restored, or emptied: nobody is master by its word, and nobody without it, for it answers.

    Only a failover that an operator asks for ends that.  A lease that came back with a backup goes.
    """
    own, request = facts.own, seen.request
    why = f"{restored}; once all brokers run, mqadmin failover -b {own.member.broker_addr} begins anew"
    actions: list[Action] = [Block(why)]
    if seen.master is not None:
        is_this_life = seen.master.session.startswith(f"{own.member.life}/")
        drop = Transaction(seen.expecting(MASTER, EPOCH), deletes=frozenset({MASTER}))
        return Decided(tuple(actions), drop if is_this_life else None, why, facts.change)
    if request is None or not request.among:
        return Decided(tuple(actions), why=why, change=facts.change)
    if own.member.sealed < (newest := newest_known(facts)):
        actions.append(Seal(newest))
    if why := why_not_anew(facts):
        drop_it = _drop_request(seen) if facts.is_request_over else None
        return Decided(tuple(actions), drop_it, why, facts.change)
    return Decided(tuple(actions), _take(facts, seen, now_ms))


def _vacant(facts: LeaseFacts, seen: Cluster, now_ms: int) -> Decided:
    """Nobody has the lease.  A failover by force seals the log that it asks for, whatever that one serves by."""
    own, actions, request = facts.own, list[Action](), seen.request
    is_forced = request is not None and request.force and request.to == own.id
    is_serving = facts.is_last_master and facts.now_s < facts.serves_until_s and not is_forced
    if is_serving:
        actions.append(Serve(own.opened, facts.serves_until_s))
    else:
        if own.opened >= 0:
            actions.append(Block("its lease has ended"))
        if own.member.sealed < seen.epoch and (request is not None or not facts.may_be_served):
            actions.append(Seal(seen.epoch))
    why = why_not(facts)
    if why:
        drop = _drop_request(seen) if facts.is_request_over else None
        return Decided(tuple(actions), drop, why=why, change=facts.change)
    alarm = why_taken(facts, seen) if seen.request is None and is_last_resort(facts, seen) else ""
    return Decided(tuple(actions), _take(facts, seen, now_ms), alarm=alarm)


def _drop_request(seen: Cluster) -> Transaction | None:
    """Nobody has taken over as it asks; from now on the others may."""
    if seen.request is None:
        return None
    return Transaction(seen.expecting(MASTER, EPOCH, REQUEST), deletes=frozenset({REQUEST}))


def _take(facts: LeaseFacts, seen: Cluster, now_ms: int) -> Transaction:
    """Rule 2: nobody is master, and everything that we counted by is as we read it.

    A request is over with it, also one for later: another master was to hand over.  Who goes on without a lease still
    does when this has happened: until it hears so, nobody may replace it.
    """
    own, epoch = facts.own, next_epoch(facts)
    me = own.member
    assert facts.session is not None
    master = Leaseholder(me.replica_id, epoch, facts.session.name, me.broker_addr, me.ha_addr, now_ms)
    puts = {
        MASTER: encode(master),
        EPOCH: encode(epoch),
        STATUS: encode(
            Status(
                me.replica_id,
                epoch,
                me.mark.end,
                goes_on=facts.goes_on,
                told=told(facts, seen, None, me.place),
            )
        ),
        f"{HISTORY}{epoch}": encode(
            HistoryEntry(me.replica_id, epoch, me.broker_addr, now_ms, me.mark.end, why_taken(facts, seen))
        ),
    }
    if seen.request is not None and seen.request.among:
        puts[VOTERS] = encode(voters_anew(facts, seen))
    elif seen.is_new:
        puts[VOTERS] = encode(first_voters(facts))
    elif own.id not in seen.voters.ids:  # an operator forces it
        puts[VOTERS] = encode(replace(seen.voters, ids=seen.voters.ids | {own.id}))
    if seen.version(SETTINGS) == ABSENT:
        puts[SETTINGS] = encode(seen.settings)
    expects = seen.expecting(MASTER, EPOCH, VOTERS, STATUS, SETTINGS, REQUEST, f"{HISTORY}{epoch}")
    assert expects[MASTER] == ABSENT
    done = frozenset({REQUEST} & seen.versions.keys())
    return Transaction(expects, puts, bound=frozenset({MASTER}), deletes=done)


def _left_over(facts: LeaseFacts, seen: Cluster, master: Leaseholder) -> Decided:
    """A lease of an earlier session of ours.  If this process had that session, nobody else uses it."""
    own, why = facts.own, "a lease of this broker's earlier session has not ended yet"
    actions = [*_served(facts, own.opened, why)] if own.opened >= 0 else []
    is_this_life = master.session.startswith(f"{own.member.life}/")
    commit = None
    if is_this_life and not facts.goes_on:
        commit = Transaction(seen.expecting(MASTER, EPOCH), deletes=frozenset({MASTER}))
    return Decided(tuple(actions), commit, why, facts.change)


def _ours(facts: LeaseFacts, seen: Cluster, master: Leaseholder) -> Decided:
    """We hold the lease, as far as the coordinator knew when it was read."""
    own = facts.own
    if not facts.is_last_master:
        if own.member.unfit:
            return Decided((Block(own.member.unfit),), give_back(facts), own.member.unfit)
        return Decided(
            (Block("its epoch begins"), Promote(master.epoch, facts.lease_until_s)), change=facts.change
        )
    if seen.request is not None:
        return _hand_over(facts, seen, seen.request)
    change, counts = _next_voters(facts, seen)
    actions = [CountBy(counts), *_served(facts, own.opened, "its lease was not renewed in time")]
    puts = {}
    end = own.member.mark.end
    status = Status(
        own.id,
        master.epoch,
        end,
        goes_on=seen.settings.paused,
        told=told(facts, seen, change, Mark(own.opened, end)),
    )
    if _is_news(facts, seen.status, status) or facts.is_given_back or facts.has_fallen_back:
        puts[STATUS] = encode(status)
    if change is not None and own.counts == counts and change.version == seen.version(VOTERS):
        acks = {name: one.ack for name, one in own.followers.items()}
        if change.after.covers(own.id, own.base, acks):
            puts[VOTERS] = encode(change.after)
            change = replace(change, is_asked=True)
        elif change.is_asked:
            # With it something would be lost by now, and it may happen yet.  The same voters anew prevent that.
            puts[VOTERS] = encode(seen.voters)
    commit = Transaction(seen.expecting(MASTER, EPOCH, *puts), puts) if puts else None
    return Decided(tuple(actions), commit, change=change)


def _is_news(facts: LeaseFacts, told: Status | None, now: Status) -> bool:
    """Whether `status` is to be written: how far logs go is told when it matters, and now and then."""
    if told is None or _word(told) != _word(now):
        return True
    is_due = facts.must_tell_end or facts.now_s >= facts.status_told_s + TELL_SECONDS
    return told != now and is_due


def _word(status: Status) -> tuple[str, int, bool, bool, frozenset[str]]:
    """What it says beside how far logs go."""
    return status.replica_id, status.epoch, status.is_final, status.goes_on, frozenset(status.told)


def told(facts: LeaseFacts, seen: Cluster, change: VotersChange | None, mine: Mark) -> dict[str, Mark]:
    """The furthest place of each voter's log.  It falls for nobody who comes back with less."""
    own, before = facts.own, seen.status.told if seen.status is not None else {}
    ids = seen.voters.ids | (change.after.ids if change is not None else frozenset())
    places = {one: [at[one] for at in (before, own.told) if one in at] for one in ids}
    return {**{one: max(found) for one, found in places.items() if found}, own.id: mine}


def _hand_over(facts: LeaseFacts, seen: Cluster, request: MasterRequest) -> Decided:
    """A switchover: nothing is taken any more; once the slave has everything, the lease is for it.

    The request ends with our session from then on: if we die, the others may take over, too.  It is due for all of
    them, whatever their clocks show.
    """
    own, target = facts.own, facts.own.followers.get(request.to)
    if request.to not in seen.voters.ids or target is None or facts.is_request_over:
        return Decided(commit=_drop_request(seen), change=facts.change)
    why = f"it hands over to replica {request.to[:8]}: {request.why}"
    commit = None
    if own.is_held and target.ack >= own.member.mark.end and (final := give_back(facts)) is not None:
        commit = replace(
            final,
            expects={**final.expects, **seen.expecting(REQUEST)},
            puts={**final.puts, REQUEST: encode(replace(request, not_before_ms=0))},
            bound=frozenset({REQUEST}),
        )
    return Decided((Block(why),), commit, why, facts.change)


def _next_voters(facts: LeaseFacts, seen: Cluster) -> tuple[VotersChange | None, Voters]:
    """The change of voters under way, and whose acks count meanwhile.

    A change that was asked for stays: it may happen late, as long as the key has the version that it expects.
    """
    own, version = facts.own, seen.version(VOTERS)
    change = facts.change
    if change is None or not change.is_asked or change.version != version:
        silence_s = seen.settings.ttl_s
        after = wanted(seen.voters, own.id, own.needed, _countable(own, seen), silence_s, own.base)
        change = VotersChange(after, version) if after != seen.voters else None
    counts = seen.voters if change is None else seen.voters.during(change.after)
    if own.needed > seen.voters.needed == 0:
        # What an OK of ours promises is not agreed yet: a failover would count as after an ASYNC_MASTER.
        counts = replace(counts, needed=NEVER)
    elif own.needed > counts.needed:
        counts = replace(counts, needed=own.needed)
    return change, counts


def _countable(own: Own, seen: Cluster) -> dict[str, Follower]:
    """Followers that are voters or may become some.  One that is not connected to the coordinator never seals."""
    may_count = seen.voters.ids | seen.members.keys()
    return {name: one for name, one in own.followers.items() if name in may_count}


def give_back(facts: LeaseFacts) -> Transaction | None:
    """What a master that has stopped appending leaves: its log's true end, and no lease.  None if it has none.

    Who has the lease and has not begun its epoch leaves what it told when it took it.
    """
    seen, own = facts.seen, facts.own
    if seen is None or facts.holds is None:
        return None
    if facts.is_last_master:
        mine = Mark(own.opened, own.member.mark.end)
        places = told(facts, seen, facts.change, mine)
        status = Status(own.id, facts.holds.epoch, mine.end, is_final=True, told=places)
    elif seen.status is not None and seen.status.goes_on:
        status = replace(seen.status, goes_on=False)
    else:
        return Transaction(seen.expecting(MASTER, EPOCH), deletes=frozenset({MASTER}))
    return Transaction(
        seen.expecting(MASTER, EPOCH, STATUS), {STATUS: encode(status)}, deletes=frozenset({MASTER})
    )
