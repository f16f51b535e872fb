"""Who is there of one broker name, who is ahead, and what would be lost if another one became the master.

    Member       one broker, by its answer
    Topology     all of a name: who is the master, who holds the furthest log
    Loss         the part of the furthest log that a candidate has not
    Count        how many messages lie in it

Ahead is who has the newer epoch, and of two with the same the further end.  A broker that has nothing, and
began an epoch by itself, is ahead of nobody.  A master that does not answer counts by what its slaves heard
of its log's end, and an epoch of which only a nameserver has heard by nothing: then nobody knows.  Stock
brokers keep no epochs: they are shown by their log's end, and cannot be told anything.  Pure; roll_call.py
asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.bounds import EPOCH_JUMP_MAX
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan, common_point, of_one_promotion
from haservice.replication.lineage.membership import Members
from haservice.terminal.output import local_second, shown_addr

SHORT_ID = 8
STOCK = "stock peer: keeps no lineage"
SYNC_MASTER = "SYNC_MASTER"
# How the trouble begins of one that did not answer in time.
SILENT = "silent for"


@dataclass(frozen=True, slots=True)
class Member:
    """One broker, by its answer.  `trouble` is why there is none, and all else then empty.

    A stock broker has no `replica_id`, and of its log only the end is known.
    """

    addr: str
    """By which it was asked; `broker_addr` is what it calls itself, and registers as."""
    broker_id: int | None = None
    """As the nameservers list it; None if none does."""
    cluster: str = ""
    name: str = ""
    role: str = ""
    role_from: str = ""
    role_why: str = ""
    broker_addr: str = ""
    ha_addr: str = ""
    replica_id: str = ""
    segment_bytes: int = 0
    log: LogSpan | None = None
    lineage: Lineage = field(default_factory=Lineage)
    held: str = ""
    changing: bool = False
    master_end: int = -1
    master_heard_ms: int = 0
    master_end_kept: bool = False
    """Whether it heard that before it was started last."""
    master_addr: str = ""
    not_copied: str = ""
    promise: str = ""
    """What a SEND_OK of it rests on beside its role, by its settings."""
    damaged: str = ""
    """Ranges of its log that it knows to be damaged."""
    master_role: str = ""
    named: Mapping[str, str] = field(default_factory=dict)
    """replica id → address of others that it knows."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """replica id → when it heard it last, in ms."""
    replicas: Members = field(default_factory=Members)
    """Who may hold an acknowledged message, by the newest list that it knows."""
    given: Members = field(default_factory=Members)
    """The same as its master gave it, where replicas were forgotten there since."""
    whole_from: int = 0
    """Below there it may have lost what it had acknowledged, while its log ends before."""
    pledged: int = -1
    """Of a slave: it follows no master of an epoch below this one; -1 where it has promised nothing."""
    pledged_to: str = ""
    past: tuple[Epoch, ...] = ()
    """Epochs that left no byte in its log."""
    unproven: str = ""
    """Of a master: who says that there is a newer epoch, and does not prove it."""
    listed_as: str = ""
    """Of one that does not answer: the replica that it is by the list of those who do."""
    seen_ms: int = 0
    """And when these heard it last; 0 if unknown."""
    seen_told: bool = True
    """Whether somebody answers who would know that: of a slave its master, and no other slave."""
    trouble: str = ""
    lives: bool = False
    """Whether it answered, though with an error: what it is is not known, but it is not dead."""
    advice: str = ""
    """What helps against that error."""

    @property
    def answers(self) -> bool:
        return not self.trouble

    @property
    def is_waited_for(self) -> bool:
        """Whether each that asks it waits to the end: it takes connections, and says nothing."""
        return self.trouble.startswith(SILENT)

    @property
    def is_ours(self) -> bool:
        return bool(self.replica_id)

    @property
    def where(self) -> str:
        """For people: its address, or its id where nobody knows one."""
        return shown_addr(self.addr) if self.addr else f"replica {self.listed_as[:SHORT_ID]}"

    def is_at(self, addr: str) -> bool:
        return bool(addr) and addr in (self.addr, self.broker_addr)

    @property
    def is_master(self) -> bool:
        return self.role.endswith("MASTER")

    @property
    def end(self) -> int | None:
        return None if self.log is None else self.log.end

    @property
    def own_lineage(self) -> Lineage:
        """Without the epochs that its log has not reached yet."""
        return self.lineage if self.log is None else self.lineage.up_to(self.log.end)

    @property
    def epoch(self) -> int | None:
        last = self.own_lineage.last
        return None if last is None else last.number

    @property
    def last_epoch(self) -> Epoch | None:
        """The newest that it has heard of, whether its log has come to it or not."""
        return self.lineage.last

    @property
    def is_blank(self) -> bool:
        """Whether it has nothing, and has followed nobody: what it says of epochs is its own invention."""
        last = self.last_epoch
        empty = self.log is not None and self.log.is_empty
        return empty and (last is None or last.master == self.replica_id)

    @property
    def state(self) -> str:
        """For people: what matters most of it."""
        if self.trouble:
            seen = seen_text(self.seen_ms, told=self.seen_told) if self.listed_as else ""
            return f"lives, but {self.trouble}" if self.lives else f"no answer: {self.trouble}{seen}"
        if not self.is_ours:
            return STOCK
        if self.held:
            return f"refuses writes: {self.held}"
        if self.changing:
            return "changes its role"
        if self.is_master:
            return f"accepts writes{self.lacking}"
        if not self.master_addr:
            return f"knows no master yet{self.lacking}"
        return f"follows {shown_addr(self.master_addr)}{self.lacking}"

    @property
    def lacking(self) -> str:
        """What it cannot give, or has not got of its master beside the log: to be added to its state."""
        copied = f"; topics, groups and offsets not copied: {self.not_copied}" if self.not_copied else ""
        return f"; damaged{copied}" if self.damaged else copied


def last_seen_text(seen_ms: int | None, *, told: bool = True) -> str:
    """When a replica was seen last; where that is unknown, whether who knows it was `told`, that is, asked."""
    if seen_ms:
        return local_second(seen_ms)
    return "not known" if told else "only its master knows"


def seen_text(seen_ms: int, *, told: bool) -> str:
    """The same behind a comma, of one that does not answer."""
    return (
        f", last seen {last_seen_text(seen_ms)}" if seen_ms or told else ", last seen: only its master knows"
    )


def damage_text(who: str, ranges: str) -> str:
    return (
        f"{who} is damaged from {ranges}: no client and no slave gets these bytes until another broker of this"
        " name returns them."
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost if `candidate` becomes the master: the bytes from `begin` to `end` of the furthest log.

    `holder` has them from where its own log begins up to `held_end`; None if nobody who answers does.  With
    `unknown` nobody can tell, and the numbers say nothing.  `heard_by` has only heard where the log ends,
    and so there may be more; None if the one that wrote it says so itself.
    """

    candidate: str
    begin: int = 0
    end: int = 0
    holder: Member | None = None
    held_end: int = 0
    unknown: str = ""
    heard_by: Member | None = None

    @property
    def size(self) -> int | None:
        """In bytes; None if it cannot be told."""
        return None if self.unknown else self.end - self.begin


class Count(NamedTuple):
    """Messages that were found; there may be more unless `exact`.  None if nobody could be asked."""

    messages: int | None
    exact: bool = True

    def text(self) -> str:
        if self.messages is None:
            return "an unknown number of messages"
        some = "message" if self.messages == 1 else "messages"
        return f"{self.messages} {some}" if self.exact else f"{self.messages} {some} or more"


class Registered(NamedTuple):
    """The newest epoch that a nameserver was told of, -1 if none, and where its master was."""

    epoch: int = -1
    addr: str = ""


NOT_REGISTERED = Registered()


class _End(NamedTuple):
    """Where a log is known to end, who has only heard so, and why that is not known."""

    end: int = 0
    heard_by: Member | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Topology:
    """All brokers of one name that are known, the master first, then by address."""

    name: str
    members: tuple[Member, ...]
    registered: Registered = NOT_REGISTERED

    @property
    def masters(self) -> tuple[Member, ...]:
        return tuple(one for one in self.members if one.answers and one.is_master)

    @property
    def ours(self) -> tuple[Member, ...]:
        """Those that answer and keep a lineage, of this name's log."""
        return tuple(one for one in self.members if one.is_ours and one.name == self.name)

    @property
    def furthest(self) -> Member | None:
        """Who holds the newest epoch, and most of it."""
        return max(self._told, key=_rank, default=None)

    @property
    def _told(self) -> tuple[Member, ...]:
        """Whose word on epochs counts: all but the blank ones, unless there are no others."""
        return tuple(one for one in self.ours if not one.is_blank) or self.ours

    @property
    def heard_epoch(self) -> int:
        """The highest number that a broker which answers knows of; 0 if none."""
        return max((one.last_epoch.number for one in self.ours if one.last_epoch), default=0)

    @property
    def last_epoch(self) -> int:
        """The highest number that anybody knows of or has pledged, the nameservers too; 0 if none.

        Theirs may be anybody's word: one beyond belief would leave no number for the next promotion.
        """
        past = [one.number for member in self.ours for one in member.past]
        known = max(self.heard_epoch, *past, *(one.pledged for one in self.ours), 0)
        told = self.registered.epoch
        return max(known, told if told <= known + EPOCH_JUMP_MAX else 0)

    @property
    def replicas(self) -> Members:
        """The newest list of replicas that anybody knows; the longest, where some have forgotten one of it."""
        lists = (one.replicas for one in self.ours)
        return max(lists, key=lambda one: (one.version, len(one.replicas)), default=Members())

    @property
    def silent(self) -> tuple[Member, ...]:
        return tuple(one for one in self.members if not one.answers)

    @property
    def addrs_by_id(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in self.members:
            found.update(one.named)
        return found | {one.replica_id: one.addr for one in self.ours}

    def seen_ms(self, replica_id: str) -> int:
        """When anybody who answers heard a replica last; 0 if nobody knows."""
        return max((one.seen.get(replica_id, 0) for one in self.ours), default=0)

    def seen_told(self, replica_id: str) -> bool:
        """Whether somebody answers who would know when it was seen; of a master each slave does."""
        return bool(self.masters) or replica_id == self.replicas.master

    def member(self, addr: str) -> Member | None:
        return next((one for one in self.members if one.is_at(addr)), None)

    def state_of(self, one: Member) -> str:
        """For people: its state, and of a slave whether its master answers."""
        master = self.member(one.master_addr)
        if master is None or master.answers or master.lives or not one.state.startswith("follows "):
            return one.state
        return f"waits for {shown_addr(one.master_addr)}{one.lacking}"

    def loss(self, addr: str, *, hearsay: bool = True) -> Loss:
        """What is lost if the broker at `addr` becomes the master; without `hearsay`, of what those hold who answer,
        whatever a nameserver was told besides.
        """
        candidate = self.member(addr)
        if candidate is None or not candidate.answers:
            return Loss(addr, unknown="it does not answer")
        if candidate.log is None or candidate not in self.ours:
            return Loss(addr, unknown="it keeps no lineage of this log")
        unknown = self.unheard_epoch if hearsay else ""
        answering = {one.replica_id for one in self.ours}
        unheard = [where for name, where in candidate.named.items() if where and name not in answering]
        if candidate.held and unheard and not unknown:
            said = ", ".join(map(shown_addr, unheard))
            unknown = f"it may have lost what {said} has, which does not answer"
        if unknown:
            return Loss(addr, unknown=unknown)
        # Of two masters that began one number each has a log of its own, and the candidate lacks one of them.
        losses = [self._loss_of(candidate, epoch) for epoch in self._last_epochs]
        return max(losses, key=lambda one: (one.size is None, one.size or 0))

    @property
    def _last_epochs(self) -> tuple[Epoch | None, ...]:
        """The newest one that anybody who counts has heard of; more than one of masters who are rivals."""
        epochs = [one.last_epoch for one in self._told if one.last_epoch is not None]
        found = {one.identity: one for one in epochs if not any(other.outranks(one) for other in epochs)}
        return tuple(found.values()) or (None,)

    def gives_way(self, master: Member) -> bool:
        """Whether it does so by itself, to a newer epoch of which it only has to hear."""
        number, newest = master.epoch or 0, self.heard_epoch
        return number < newest and not of_one_promotion(number, newest)

    def needs_further_epoch(self, master: Member) -> bool:
        """Whether somebody who answers follows it in a further epoch only: there is a rival, or a promise to
        another one forbids it.
        """
        number = master.epoch if master.epoch is not None else -1
        return len(self._last_epochs) > 1 or any(
            one.pledged > number
            or (of_one_promotion(one.pledged, number) and not master.is_at(one.pledged_to))
            for one in self.ours
            if one is not master
        )

    def _loss_of(self, candidate: Member, epoch: Epoch | None) -> Loss:
        """What is lost of the log that ends with `epoch`."""
        addr = candidate.addr
        furthest = max(
            (
                one
                for one in self._told
                if one.last_epoch is None or epoch is None or not one.last_epoch.rivals(epoch)
            ),
            key=_rank,
        )
        assert candidate.log is not None
        assert furthest.log is not None
        end, heard_by, unknown = self._end_of(furthest, epoch)
        if unknown:
            return Loss(addr, unknown=unknown)
        begin = candidate.log.end
        if candidate is not furthest and not (candidate.log.is_empty and furthest.log.is_empty):
            common = common_point(candidate.lineage, candidate.log.end, furthest.lineage, end)
            begin = furthest.log.start if common is None else common.point
        if begin >= end:
            return Loss(addr, end, end, heard_by=heard_by)
        holder = furthest if candidate is not furthest and furthest.log.end > begin else None
        return Loss(addr, begin, end, holder, min(end, furthest.log.end), heard_by=heard_by)

    @property
    def unheard_epoch(self) -> str:
        """That only a nameserver has heard of an epoch, whose master has written who knows what; "" if not."""
        number, addr = self.registered
        epochs = [one.last_epoch for one in self.ours if one.last_epoch is not None]
        same = [epoch for epoch in epochs if of_one_promotion(epoch.number, number)]
        known = self.addrs_by_id
        if number < 0 or any(epoch.number > number and epoch not in same for epoch in epochs):
            return ""
        if any(
            epoch.number >= number and (not (where := known.get(epoch.master)) or self._same(where, addr))
            for epoch in same
        ):
            return ""
        return (
            f"the nameserver knows of epoch {number}, of {shown_addr(addr)}, "
            "and no broker that answers knows of it"
        )

    def _same(self, addr: str, other: str) -> bool:
        """Whether both are addresses of one broker."""
        one = self.member(addr)
        return addr == other or (one is not None and one.is_at(other))

    def _end_of(self, furthest: Member, epoch: Epoch | None) -> _End:
        """Of the log that ends with `epoch`; `furthest` holds most of it."""
        end = furthest.end or 0
        stock_ends = [one.end for one in self.masters if not one.is_ours and one.end is not None]
        if stock_ends:
            return _End(max(end, *stock_ends))
        if epoch is not None and any(one.replica_id == epoch.master for one in self.ours):
            return _End(end)  # who wrote the last epoch speaks for itself
        ears = [
            one
            for one in self._told
            if one.master_end >= 0
            and (epoch is None or (one.last_epoch is not None and one.last_epoch.is_same_epoch(epoch)))
        ]
        silent = ", ".join(one.where for one in self.silent)
        who = f"the last master is not among those that answer{f' ({silent} does not)' if silent else ''}"
        if not ears:
            return _End(end, unknown=f"{who}, and no slave knows how long its log was")
        # Who was not started since has heard it to its last moment, as far as anybody can tell.
        best = max(ears, key=lambda one: (not one.master_end_kept, one.master_end, one.master_heard_ms))
        if best.master_end_kept and best.master_role != SYNC_MASTER:
            return _End(
                end,
                unknown=f"{who}, and {shown_addr(best.addr)} was restarted since it heard, "
                f"{local_second(best.master_heard_ms)}, that this log ends at {best.master_end}",
            )
        return _End(max(end, *(one.master_end for one in ears)), best)


def _rank(one: Member) -> tuple[int, int]:
    return (-1 if one.epoch is None else one.epoch, -1 if one.end is None else one.end)
