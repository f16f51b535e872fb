"""Membership: which replicas may hold an OK, how many have to, and so who may be promoted.  Pure.

A master keeps the list in its lineage file.  It gives the list to each slave that it accepts, in the
greeting's verdict, and the slave writes it down before its first report.  So whoever is left after a death
knows of all the others.  A replica stays on the list, however long it is away, until an operator forgets it.

    V        slaves on the list: all its replicas but the master that made it
    needed   slaves that have to hold a message before SEND_OK is given
    rule     who has heard the log ends of V - needed + 1 slaves, itself included, has heard of every OK

For any `needed` slaves and any V - needed + 1 of V have at least one in common.  This holds as long as both
sides mean the same list.  So a new list stands `over` the one before until it is in effect (as in Raft's
joint consensus): meanwhile an OK, and a promotion, has to satisfy both.  It is in effect once as many slaves
of the old list know it as an OK took there: no promotion can miss it then.  A master that was just promoted
does not know which of the lists that it has heard of was in effect, so its first list stands over them all.
What was acknowledged under an older list lies below `since`.  A slave whose log ends before `since` lacks
some of it, and is no safe choice whatever it has heard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from haservice.mastership.whole import NOT_WHOLE
from haservice.replication.lineage.epochs import UNKNOWN_EPOCH, Lineage, Mark, numbers_text, of_one_promotion

# More than any broker name has.  To forget a replica makes room.
REPLICAS_MAX = 64
# So many masters in a row may be promoted without any of their lists coming into effect.
OVER_MAX = 4
NOBODY: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """One list.  Of two the one with the higher (`epoch`, `number`) is the newer."""

    epoch: int = UNKNOWN_EPOCH - 1
    """The epoch in which it was made; -1 for the list that nobody has made yet."""
    number: int = 0
    master: str = ""
    """The replica id of the master that made it."""
    needed: int = 1
    since: Mark = Mark()  # noqa: RUF009 - frozen
    """Where the master's log ended when it was made."""
    replicas: Mapping[str, str] = field(default_factory=dict)
    """Replica ids, the master's included, and where clients reach them."""
    over: tuple[ReplicaList, ...] = ()
    """Lists that may be in effect instead of this one; empty when this one is in effect."""

    @property
    def version(self) -> tuple[int, int]:
        return (self.epoch, self.number)

    @property
    def slaves(self) -> frozenset[str]:
        return frozenset(self.replicas) - {self.master}

    @property
    def wanted(self) -> int:
        """How many slaves a promotion has to have heard, the promoted one included."""
        return max(1, len(self.slaves) - self.needed + 1)

    @property
    def lists(self) -> tuple[ReplicaList, ...]:
        """All lists that count while this one is not in effect; only this one if it is."""
        return (*self.over, self)

    def in_epoch(self, epoch: int, since: Mark, master: str, addr: str, needed: int) -> ReplicaList:
        """This list as the master of `epoch` has it, whose log ends at `since`; itself if nothing changes."""
        replicas = _with(self.replicas, master, addr)
        if (self.master, self.needed, self.replicas) == (master, needed, replicas):
            return self
        return self._next(epoch, since, master=master, needed=needed, replicas=replicas)

    def joined(self, epoch: int, since: Mark, replica_id: str, addr: str) -> ReplicaList:
        """With a slave added.  It replaces a replica at the same address: that replica's store is gone."""
        replicas = _with(self.replicas, replica_id, addr)
        return self if replicas == self.replicas else self._next(epoch, since, replicas=replicas)

    def forgotten(self, epoch: int, since: Mark, replica_id: str) -> ReplicaList:
        """Without a replica that is given up."""
        if replica_id not in self.replicas or replica_id == self.master:
            return self
        return self._next(epoch, since, replicas=_without(self.replicas, replica_id))

    def written_off(self, replica_id: str) -> ReplicaList:
        """With a replica given up by this slave's operator: the same list, but nobody asks that replica.

        An OK may have counted it: then one fewer of those that are left has each message.
        """
        counted = replica_id in self.slaves
        return replace(
            self,
            needed=max(1, self.needed - counted),
            replicas=_without(self.replicas, replica_id),
            over=tuple(one.written_off(replica_id) for one in self.over),
        )

    def given_up(self, given: ReplicaList) -> dict[str, str]:
        """Replicas that were written off here, and their addresses.  `given` is the list as its master gave
        it; a list of another version says nothing.
        """
        if given.version != self.version:
            return {}
        return {one: addr for one, addr in given._everybody.items() if one not in self._everybody}

    def let_back(self, given: ReplicaList, replica_id: str) -> ReplicaList:
        """This list as if that replica had not been written off here."""
        gone = self.given_up(given)
        if replica_id not in gone:
            return self
        members = given
        for one in gone.keys() - {replica_id}:
            members = members.written_off(one)
        return members

    @property
    def _everybody(self) -> dict[str, str]:
        """All replicas, including those of the lists that this one stands over."""
        return {one: addr for each in self.lists for one, addr in each.replicas.items()}

    def taken_effect(self) -> ReplicaList:
        """The same list, no longer over others.  It gets a version of its own, so that slaves can be told."""
        return replace(self, number=self.number + 1, over=())

    def _next(self, epoch: int, since: Mark, **changes: Any) -> ReplicaList:
        newer = replace(self, epoch=max(epoch, self.epoch), since=since, **changes)
        number = self.number + 1 if newer.epoch == self.epoch else 0
        return replace(newer, number=number, over=self._under(newer))

    def _under(self, newer: ReplicaList) -> tuple[ReplicaList, ...]:
        """What a newer one stands over.  A master's own that were not in effect yet are passed over: whoever
        knows them knows that they stood over the same.
        """
        if not self.replicas:
            return ()
        alone = replace(self, over=())
        return (self.over or (alone,)) if newer.master == self.master else (*self.over, alone)[-OVER_MAX:]


def _with(replicas: Mapping[str, str], replica_id: str, addr: str) -> Mapping[str, str]:
    kept = {one: at for one, at in replicas.items() if one != replica_id and (at != addr or not addr)}
    return {**kept, replica_id: addr or replicas.get(replica_id, "")}


def _without(replicas: Mapping[str, str], replica_id: str) -> Mapping[str, str]:
    return {one: addr for one, addr in replicas.items() if one != replica_id}


class Membership:
    """A master's view: the list that it gives out, and whose acknowledgements count by it."""

    def __init__(self, me: str, listed: ReplicaList) -> None:
        self._me = me
        self.listed = listed
        self._known: dict[str, tuple[int, int]] = {me: listed.version}

    @property
    def counting(self) -> frozenset[str]:
        """Slaves whose acknowledgements count: while one list gives way to another, those on both."""
        return frozenset.intersection(*(one.slaves for one in self.listed.lists))

    @property
    def needed(self) -> int:
        """Acknowledgements that an OK takes; while one list gives way to another, enough for both lists."""
        return max(one.needed for one in self.listed.lists)

    @property
    def missing(self) -> tuple[str, ...]:
        """Slaves of the lists before that do not know the present one yet; empty once it is in effect."""
        asked = frozenset(one for before in self.listed.over for one in self._asked(before))
        return tuple(sorted(one for one in asked if not self._knows(one)))

    @property
    def asks_too_much(self) -> bool:
        """Whether a promotion needs replicas while the list stands over others that it does not need later."""
        listed = self.listed
        return any(
            one.slaves - frozenset(listed.replicas) or one.needed < listed.needed for one in listed.over
        )

    @property
    def newcomers(self) -> frozenset[str]:
        """Slaves that are missing from at least one of the lists before."""
        return frozenset(one for before in self.listed.over for one in self.listed.slaves - before.slaves)

    @property
    def settled(self) -> ReplicaList | None:
        """The list to write down, and to pass to list_anew(), once enough slaves know it; else None."""
        over = self.listed.over
        return self.listed.taken_effect() if over and all(map(self._is_superseded, over)) else None

    def list_anew(self, listed: ReplicaList) -> None:
        """Another list is written down."""
        self.listed = listed
        self._known[self._me] = listed.version

    def known_to(self, replica_id: str, version: tuple[int, int]) -> None:
        """A slave has written down the list of that version."""
        self._known[replica_id] = max(version, self._known.get(replica_id, version))

    def _knows(self, replica_id: str) -> bool:
        return self._known.get(replica_id, (-1, 0)) >= self.listed.version

    def _asked(self, before: ReplicaList) -> frozenset[str]:
        return before.slaves & frozenset(self.listed.replicas)

    def _is_superseded(self, before: ReplicaList) -> bool:
        asked = self._asked(before)
        return sum(map(self._knows, asked)) >= min(before.needed, len(asked))


@dataclass(frozen=True, slots=True)
class Vote:
    """What a slave answers before a promotion: where its log ends, and the last byte's epoch, which was
    `master`'s.
    """

    replica_id: str
    epoch: int
    end: int
    master: str = ""
    is_whole: bool = True
    """Whether its log has all that it ever acknowledged: not after a power cut, until it caught up again."""

    @property
    def mark(self) -> Mark:
        return Mark(self.epoch, self.end)


def vote_of(replica_id: str, lineage: Lineage, end: int, whole_from: int = 0) -> Vote:
    """The vote of a replica whose log ends at `end`, by its epochs; see LineageState.whole_from."""
    wrote = lineage.epoch_at(end - 1) if end else None
    return Vote(
        replica_id, lineage.mark(end).epoch, end, wrote.master if wrote is not None else "", end >= whole_from
    )


def newest_of(own: ReplicaList, others: Iterable[ReplicaList]) -> ReplicaList:
    """The list that a promotion is judged by: the newest one; of two with the same version, our own."""
    return max((own, *others), key=lambda one: one.version)


def why_no_candidate(members: ReplicaList, given: ReplicaList, replica_id: str, addr: str) -> str:
    """Why a slave with this list does not pledge itself to the replica at `addr`; "" if it may.

    A candidate that an operator wrote off here may still ask.  By `given`, the list as its master gave it,
    that candidate may hold an OK, and nobody has made a newer list without it since.  So it is let back on
    this list, as if it had never been written off.
    """
    if addr in members.replicas.values() or members.given_up(given).get(replica_id, "") == addr != "":
        return ""
    return f"{addr} is not on the list of replicas that this slave knows"


def has_to_be_heard(members: ReplicaList, replica_id: str, heard: Collection[str]) -> ReplicaList | None:
    """The list with that replica by which the slaves heard are too few to know of every OK.  None if they are
    enough, or if that replica need not be heard.
    """
    for one in members.lists:
        if replica_id in one.slaves and replica_id not in heard and len(one.slaves & set(heard)) < one.wanted:
            return one
    return None


def why_unsafe(
    members: ReplicaList, me: Vote, heard: Collection[Vote], objections: Mapping[str, str] = NOBODY
) -> str:
    """Why `me` cannot become the master without a loss, or nobody knows whether it can; "" if it can.

    `members` is the newest list that any of them knows.  `heard` are the others that answered, and promised
    to follow no older master.  `objections` are of replicas that answered, and did not promise that.
    """
    further = [one for one in heard if one.mark > me.mark]
    if further:
        best = max(further, key=lambda one: one.mark)
        who, better = (_named(members, one.replica_id) for one in (me, best))
        return f"{better} has the log up to {best.end}, {who} up to {me.end}"
    if why := _why_two_masters(me, heard):
        return why
    if not members.replicas:
        return "no master has told it which other brokers have its messages, so what it lacks is unknown"
    if len(members.over) >= OVER_MAX:
        return f"{OVER_MAX} masters in a row were promoted before enough slaves knew of the one before"
    lists = reversed(members.lists)
    return next(filter(None, (_why_unsafe_by(one, me, heard, objections) for one in lists)), "")


def why_unsafe_to_go_on(
    members: ReplicaList, me: Vote, heard: Collection[Vote], objections: Mapping[str, str] = NOBODY
) -> str:
    """As why_unsafe(), for a master that is to go on in a further epoch.  It has every OK that it gave, but
    its slaves may have made another one the master since.
    """
    further = [one for one in heard if one.mark > me.mark]
    if further:
        best = max(further, key=lambda one: one.mark)
        return f"{_named(members, best.replica_id)} has the log up to {best.end}, this master up to {me.end}"
    if why := _why_two_masters(me, heard):
        return why
    for one in reversed(members.lists):
        slaves = one.slaves - {me.replica_id}
        counted = slaves & {vote.replica_id for vote in heard}
        if slaves and len(counted) < one.wanted - (me.replica_id in one.slaves):
            may = "follow a newer master, and have acknowledged to it"
            return _too_few(one, counted, slaves - counted, may, objections)
    return ""


def _why_two_masters(me: Vote, heard: Collection[Vote]) -> str:
    """Two masters had one epoch: the lengths of their logs do not tell whose bytes had an OK."""
    for one in heard:
        if of_one_promotion(one.epoch, me.epoch) and one.master != me.master:
            return f"two masters had epoch {numbers_text(one.epoch, me.epoch)}, and of both there is something left"
    return ""


def _why_unsafe_by(
    members: ReplicaList, me: Vote, heard: Collection[Vote], objections: Mapping[str, str]
) -> str:
    slaves = members.slaves
    if me.replica_id not in slaves:
        return "it is not on its master's list of replicas, so it may lack what was answered with OK"
    if me.mark < members.since:
        return (
            f"its log ends at {me.end}, and messages up to {members.since.end} were acknowledged before the list"
            " of replicas was made"
        )
    if not me.is_whole:
        return NOT_WHOLE
    counted = slaves & {me.replica_id, *(one.replica_id for one in heard if one.is_whole)}
    if len(counted) >= members.wanted:
        return ""
    lost_power = {one.replica_id: NOT_WHOLE for one in heard if not one.is_whole}
    may = "have acknowledged messages that no other broker has"
    return _too_few(members, counted, slaves - counted, may, {**objections, **lost_power})


def _too_few(
    members: ReplicaList,
    counted: Collection[str],
    others: Collection[str],
    may: str,
    objections: Mapping[str, str],
) -> str:
    """`others` are silent, or answer but do not count; each is named with its reason."""
    silent = ", ".join(_named(members, one) for one in sorted(others) if one not in objections)
    why = [f"{silent} may {may}"] if silent else []
    answer = [one for one in sorted(others) if one in objections]
    why += [f"{_named(members, one)} answers, but {objections[one]}" for one in answer]
    one_is, more_are = ("counts", "count") if answer else ("does", "do")
    return f"{takes_text(members)}, and {len(counted)} {one_is if len(counted) == 1 else more_are}: {'; '.join(why)}"


def takes_text(members: ReplicaList) -> str:
    """The rule, in numbers."""
    return f"SEND_OK takes {members.needed} of {len(members.slaves)} slaves, so {members.wanted} of them must answer"


def _named(members: ReplicaList, replica_id: str) -> str:
    return members.replicas.get(replica_id) or f"replica {replica_id[:8]}"
