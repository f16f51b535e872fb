"""Membership: which replicas may hold an OK, how many of them have to, and so who may be promoted.  Pure.

A master keeps the list in its lineage file and gives it to each slave that it accepts, in the greeting's
verdict; the slave has written it down before its first report.  So whoever is left after a death knows of
all the others.  A replica stays on the list, however long it is away, until it is forgotten on purpose.

    V        slaves on the list: all its replicas but the master that made it
    needed   slaves that have to hold a message before SEND_OK is given
    rule     who has heard the log ends of V - needed + 1 slaves, its own included, has heard of every OK

For any `needed` slaves and any V - needed + 1 of V have one in common.  That holds as long as both sides mean
the same list.  So another list is in effect, and the slaves that it adds count, only once as many slaves of
the list before know it as an OK took there: no promotion can then miss it (as Raft changes one server at a
time, with the rule above for its majority).  What was acknowledged under an older list lies below `since`: a
slave whose log does not reach that far lacks some of it, and is no safe choice whatever it has heard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from haservice.replication.lineage import UNKNOWN_EPOCH, Lineage

# More than any broker name has; what is forgotten makes room.
REPLICAS_MAX = 64


@dataclass(frozen=True, slots=True)
class Members:
    """One list.  Of two the one with the higher (`epoch`, `number`) is the newer."""

    epoch: int = UNKNOWN_EPOCH - 1
    """The term in which it was made; -1 of the list that nobody has made yet."""
    number: int = 0
    master: str = ""
    """The replica id of the master that made it."""
    needed: int = 1
    since: int = 0
    """Where the master's log ended when it was made."""
    replicas: Mapping[str, str] = field(default_factory=dict)
    """Replica ids, the master's included, and where clients reach them."""

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

    def in_term(self, epoch: int, since: int, master: str, addr: str, needed: int) -> Members:
        """As the master of term `epoch` has it, whose log ends at `since`; itself if nothing is another."""
        replicas = _with(self.replicas, master, addr)
        if (self.master, self.needed, self.replicas) == (master, needed, replicas):
            return self
        return self._next(epoch, since, master=master, needed=needed, replicas=replicas)

    def joined(self, epoch: int, since: int, replica_id: str, addr: str) -> Members:
        """With a slave; whoever was at its address before is no more, for its store is another one."""
        replicas = _with(self.replicas, replica_id, addr)
        return self if replicas == self.replicas else self._next(epoch, since, replicas=replicas)

    def forgotten(self, epoch: int, since: int, replica_id: str) -> Members:
        """Without a replica that is given up."""
        if replica_id not in self.replicas or replica_id == self.master:
            return self
        replicas = {one: addr for one, addr in self.replicas.items() if one != replica_id}
        return self._next(epoch, since, replicas=replicas)

    def _next(self, epoch: int, since: int, **changes: object) -> Members:
        number = self.number + 1 if epoch == self.epoch else 0
        return replace(self, epoch=max(epoch, self.epoch), number=number, since=since, **changes)  # type: ignore[arg-type]


def _with(replicas: Mapping[str, str], replica_id: str, addr: str) -> Mapping[str, str]:
    kept = {one: at for one, at in replicas.items() if one != replica_id and (at != addr or not addr)}
    return {**kept, replica_id: addr or replicas.get(replica_id, "")}


class Membership:
    """A master's: the list that it gives out, and the one that is in effect."""

    def __init__(self, me: str, listed: Members, in_effect: Members) -> None:
        """`in_effect` is what the file says: the newest list that was known to enough slaves."""
        self._me = me
        self.listed = listed
        self.in_effect = in_effect
        self._known: dict[str, tuple[int, int]] = {me: listed.version}
        self._take_effect()

    @property
    def counting(self) -> frozenset[str]:
        """Slaves whose acknowledgements count."""
        return self.in_effect.slaves & self.listed.slaves

    @property
    def needed(self) -> int:
        """Acknowledgements that an OK takes: while one list gives way to another, those that both want."""
        return max(self.listed.needed, self.in_effect.needed)

    @property
    def missing(self) -> tuple[str, ...]:
        """Slaves of the list before that do not know the present one yet; empty once that is in effect."""
        if self.in_effect == self.listed:
            return ()
        asked = self.in_effect.slaves & frozenset(self.listed.replicas)
        return tuple(sorted(one for one in asked if not self._knows(one)))

    def list_anew(self, listed: Members) -> bool:
        """Another list is written down; whether it is in effect at once."""
        self.listed = listed
        self._known[self._me] = listed.version
        return self._take_effect()

    def known_to(self, replica_id: str, version: tuple[int, int]) -> bool:
        """A slave has written down the list of that version; whether one is in effect now that was not."""
        self._known[replica_id] = max(version, self._known.get(replica_id, version))
        return self._take_effect()

    def _knows(self, replica_id: str) -> bool:
        return self._known.get(replica_id, (-1, 0)) >= self.listed.version

    def _take_effect(self) -> bool:
        before = self.in_effect
        if before == self.listed:
            return False
        asked = before.slaves & frozenset(self.listed.replicas)
        if sum(map(self._knows, asked)) < min(before.needed, len(asked)):
            return False
        self.in_effect = self.listed
        return True


@dataclass(frozen=True, slots=True)
class Vote:
    """What one slave says when it is asked before a promotion: where its log ends, and its last byte's term.

    As in Raft the later term is the further one, and in one term the longer log.
    """

    replica_id: str
    term: int
    end: int


def vote_of(replica_id: str, lineage: Lineage, end: int) -> Vote:
    """Of a replica whose log ends there, by its terms."""
    wrote = lineage.epoch_at(end - 1) if end else None
    return Vote(replica_id, wrote.number if wrote is not None else -1, end)


def why_unsafe(members: Members, me: Vote, heard: Collection[Vote]) -> str:
    """Why `me` cannot become the master without losing, or without anybody knowing; "" if it can.

    `members` is the newest list that any of them knows, `heard` are the others that answered, and promised to
    follow no older master.
    """
    slaves = members.slaves
    further = [one for one in heard if (one.term, one.end) > (me.term, me.end)]
    if further:
        best = max(further, key=lambda one: (one.term, one.end))
        who, better = (_named(members, one.replica_id) for one in (me, best))
        return f"{better} has the log up to {best.end}, {who} up to {me.end}"
    if not slaves:
        return ""
    if me.replica_id not in slaves:
        return "it is not on its master's list of replicas, so it may lack what they were told OK for"
    if me.end < members.since:
        return (
            f"its log ends at {me.end}, and messages up to {members.since} were acknowledged before the list of"
            " replicas was made"
        )
    counted = slaves & {me.replica_id, *(one.replica_id for one in heard)}
    if len(counted) >= members.wanted:
        return ""
    silent = ", ".join(_named(members, one) for one in sorted(slaves - counted))
    return (
        f"SEND_OK takes {members.needed} of {len(slaves)} slaves, so {members.wanted} have to be heard, and"
        f" {len(counted)} are: {silent} may have acknowledged messages that no other broker has"
    )


def _named(members: Members, replica_id: str) -> str:
    return members.replicas.get(replica_id) or f"replica {replica_id[:8]}"
