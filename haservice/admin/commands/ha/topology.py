"""The brokers of one name, which of them is ahead, and what would be lost if another became the master.

    Member       one broker, by its answer
    Topology     all brokers of a name: which is the master, which has the furthest log
    Loss         the part of the furthest log that a candidate lacks
    Count        how many messages are in it

The broker with the newer epoch is ahead; of two with the same epoch, the one with the further log end.  An
empty broker that began an epoch by itself is ahead of nobody.  If a master does not answer, what its slaves
heard of its log's end counts; if only a nameserver has heard of an epoch, nobody knows its end.  Stock
brokers keep no epochs: they are shown by their log's end, and cannot be told anything.  A DLedger group elects
its master, so nobody asks what would be lost.  Pure; ask_brokers.py asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.bounds import EPOCH_JUMP_MAX
from haservice.remoting.headers.lineage import OF_GROUP
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan, common_point, of_one_promotion
from haservice.replication.lineage.membership import ReplicaList
from haservice.terminal.output import local_second, shown_addr

SHORT_ID = 8
STOCK = "stock peer: keeps no lineage"
SYNC_MASTER, ASYNC_MASTER = "SYNC_MASTER", "ASYNC_MASTER"
# How the `trouble` of a broker that did not answer in time begins.
SILENT = "silent for"


@dataclass(frozen=True, slots=True)
class Member:
    """One broker, by its answer.  `trouble` says why there is none; all else is then empty.

    A stock broker has no `replica_id`; only the end of its log is known.
    """

    addr: str
    """The address at which it was asked; it registers `broker_addr`."""
    broker_id: int | None = None
    """Its id in the nameservers' lists; None if none lists it."""
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
    """Whether it heard that before its last start."""
    master_addr: str = ""
    not_copied: str = ""
    promise: str = ""
    """The settings that decide, beside its role, what its SEND_OK means."""
    damaged: str = ""
    """Ranges of its log that it knows to be damaged."""
    master_role: str = ""
    named: Mapping[str, str] = field(default_factory=dict)
    """Replica id → address of the others that it knows."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """Replica id → when it last heard that one, in ms."""
    replicas: ReplicaList = field(default_factory=ReplicaList)
    """Who may hold an acknowledged message, by the newest list that it knows."""
    given: ReplicaList = field(default_factory=ReplicaList)
    """That list as its master gave it, if the broker has forgotten replicas since."""
    whole_from: int = 0
    """It may have lost acknowledged bytes below this offset, while its log ends before."""
    pledged: int = -1
    """Of a slave: it follows no master of an epoch below this one; -1 if it has promised nothing."""
    pledged_to: str = ""
    past: tuple[Epoch, ...] = ()
    """Epochs that left no byte in its log."""
    unproven: str = ""
    """Of a master: who tells of a newer epoch without proof."""
    group_epoch: int = -1
    """Of a member of a DLedger group: which leader's time in office it is in, as the group counts; else -1."""
    listed_as: str = ""
    """Of one that does not answer: its replica id by the list of those that do."""
    seen_ms: int = 0
    """When those last heard it; 0 if unknown."""
    seen_told: bool = True
    """Whether a broker answers that would know that: for a slave, only its master would."""
    trouble: str = ""
    lives: bool = False
    """Whether it answered, though with an error: its state is unknown, but it is alive."""
    advice: str = ""
    """What helps against that error."""

    @property
    def answers(self) -> bool:
        return not self.trouble

    @property
    def is_waited_for(self) -> bool:
        """Whether all who ask it wait until the timeout: it accepts connections and does not answer."""
        return self.trouble.startswith(SILENT)

    @property
    def is_ours(self) -> bool:
        return bool(self.replica_id)

    @property
    def where(self) -> str:
        """For people: its address, or its id if nobody knows the address."""
        return shown_addr(self.addr) if self.addr else f"replica {self.listed_as[:SHORT_ID]}"

    def is_at(self, addr: str) -> bool:
        return bool(addr) and addr in (self.addr, self.broker_addr)

    @property
    def is_in_group(self) -> bool:
        """Whether it is a member of a DLedger group; its replica id is then the member's."""
        return self.role_from == OF_GROUP

    @property
    def is_master(self) -> bool:
        return self.role.endswith("MASTER")

    @property
    def end(self) -> int | None:
        return None if self.log is None else self.log.end

    @property
    def own_lineage(self) -> Lineage:
        """Its lineage without the epochs that its log has not reached yet."""
        return self.lineage if self.log is None else self.lineage.up_to(self.log.end)

    @property
    def epoch(self) -> int | None:
        if self.is_in_group:
            return self.group_epoch
        last = self.own_lineage.last
        return None if last is None else last.number

    @property
    def last_epoch(self) -> Epoch | None:
        """The newest epoch that it has heard of, whether or not its log has reached it."""
        return self.lineage.last

    @property
    def is_blank(self) -> bool:
        """Whether it is empty and has followed nobody: its epochs then mean nothing to others."""
        last = self.last_epoch
        empty = self.log is not None and self.log.is_empty
        return empty and (last is None or last.master == self.replica_id)

    @property
    def state(self) -> str:
        """For people: its most important state."""
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
        """To add to its state: what it cannot give, or did not get from its master beside the log."""
        copied = f"; topics, groups and offsets not copied: {self.not_copied}" if self.not_copied else ""
        return f"; damaged{copied}" if self.damaged else copied


def last_seen_text(seen_ms: int | None, *, told: bool = True) -> str:
    """When a replica was last seen; if unknown, `told` says whether a broker that would know answered."""
    if seen_ms:
        return local_second(seen_ms)
    return "not known" if told else "only its master knows"


def seen_text(seen_ms: int, *, told: bool) -> str:
    """The same after a comma, for a broker that does not answer."""
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

    `holder` has them from the beginning of its own log up to `held_end`; None if no broker that answers has
    them.  With `unknown` nobody can tell, and the numbers mean nothing.  `heard_by` only heard where the log
    ends, so there may be more; None if the broker that wrote it says so itself.
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
        """In bytes; None if unknown."""
        return None if self.unknown else self.end - self.begin


class Count(NamedTuple):
    """The messages found; there may be more unless `exact`.  None if no broker could be asked."""

    messages: int | None
    exact: bool = True

    def text(self) -> str:
        if self.messages is None:
            return "an unknown number of messages"
        some = "message" if self.messages == 1 else "messages"
        return f"{self.messages} {some}" if self.exact else f"{self.messages} {some} or more"


class KnownMaster(NamedTuple):
    """The newest epoch that a nameserver knows, -1 if none, and its master's address."""

    epoch: int = -1
    addr: str = ""


NOT_REGISTERED = KnownMaster()


class _End(NamedTuple):
    """Where a log ends, who only heard that, and why the end is unknown."""

    end: int = 0
    heard_by: Member | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Topology:
    """All known brokers of one name, the master first, then by address."""

    name: str
    members: tuple[Member, ...]
    registered: KnownMaster = NOT_REGISTERED

    @property
    def masters(self) -> tuple[Member, ...]:
        return tuple(one for one in self.members if one.answers and one.is_master)

    @property
    def group(self) -> tuple[Member, ...]:
        """The members of the DLedger group that has this name; empty if it is a pair's."""
        return tuple(one for one in self.ours if one.is_in_group)

    @property
    def ours(self) -> tuple[Member, ...]:
        """The members that answer and keep a lineage of this name's log."""
        return tuple(one for one in self.members if one.is_ours and one.name == self.name)

    @property
    def furthest(self) -> Member | None:
        """The member that has the newest epoch, and most of it."""
        return max(self._told, key=_rank, default=None)

    @property
    def _told(self) -> tuple[Member, ...]:
        """The members whose epochs count: all but blank ones, unless all are blank."""
        return tuple(one for one in self.ours if not one.is_blank) or self.ours

    @property
    def heard_epoch(self) -> int:
        """The highest number known to a broker that answers; 0 if none."""
        return max((one.last_epoch.number for one in self.ours if one.last_epoch), default=0)

    @property
    def last_epoch(self) -> int:
        """The highest number that any broker or nameserver knows or that was pledged; 0 if none.

        Anybody may have told the nameservers: a number beyond belief would leave none for the next promotion.
        """
        past = [one.number for member in self.ours for one in member.past]
        known = max(self.heard_epoch, *past, *(one.pledged for one in self.ours), 0)
        told = self.registered.epoch
        return max(known, told if told <= known + EPOCH_JUMP_MAX else 0)

    @property
    def replicas(self) -> ReplicaList:
        """The newest known replica list; the longest, if some brokers have forgotten a replica of it."""
        lists = (one.replicas for one in self.ours)
        return max(lists, key=lambda one: (one.version, len(one.replicas)), default=ReplicaList())

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
        """When a broker that answers last heard a replica; 0 if unknown."""
        return max((one.seen.get(replica_id, 0) for one in self.ours), default=0)

    def seen_told(self, replica_id: str) -> bool:
        """Whether a broker answers that would know when it was seen; for a master, each slave would."""
        return bool(self.masters) or replica_id == self.replicas.master

    def member(self, addr: str) -> Member | None:
        return next((one for one in self.members if one.is_at(addr)), None)

    def state_of(self, one: Member) -> str:
        """For people: its state, and for a slave whether its master answers."""
        master = self.member(one.master_addr)
        if master is None or master.answers or master.lives or not one.state.startswith("follows "):
            return one.state
        return f"waits for {shown_addr(one.master_addr)}{one.lacking}"

    def loss(self, addr: str, *, answering_only: bool = False) -> Loss:
        """What is lost if the broker at `addr` becomes the master; with `answering_only`, only of the logs of
        brokers that answer, whatever a nameserver was told.
        """
        candidate = self.member(addr)
        if candidate is None or not candidate.answers:
            return Loss(addr, unknown="it does not answer")
        if candidate.log is None or candidate not in self.ours:
            return Loss(addr, unknown="it keeps no lineage of this log")
        unknown = "" if answering_only else self.unheard_epoch
        answering = {one.replica_id for one in self.ours}
        unheard = [where for name, where in candidate.named.items() if where and name not in answering]
        last = candidate.last_epoch
        is_own = last is None or last.master == candidate.replica_id
        if candidate.held and is_own and unheard and not unknown:
            said = ", ".join(map(shown_addr, unheard))
            unknown = f"it may have lost what {said} has, which does not answer"
        if unknown:
            return Loss(addr, unknown=unknown)
        # Two masters that began one number have a log each, and the candidate lacks one of them.
        losses = [self._loss_of(candidate, epoch) for epoch in self._last_epochs]
        return max(losses, key=lambda one: (one.size is None, one.size or 0))

    @property
    def _last_epochs(self) -> tuple[Epoch | None, ...]:
        """The newest epoch known to a member that counts; several if masters are rivals."""
        epochs = [one.last_epoch for one in self._told if one.last_epoch is not None]
        found = {one.identity: one for one in epochs if not any(other.outranks(one) for other in epochs)}
        return tuple(found.values()) or (None,)

    def gives_way(self, master: Member) -> bool:
        """Whether it gives way by itself, once it hears of a newer epoch."""
        number, newest = master.epoch or 0, self.heard_epoch
        return number < newest and not of_one_promotion(number, newest)

    def needs_further_epoch(self, master: Member) -> bool:
        """Whether a broker that answers would follow it only in a further epoch: there is a rival, or a
        pledge to another broker forbids it.
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
        """Says that only a nameserver knows an epoch, whose master may have written anything; "" if not."""
        number, addr = self.registered
        epochs = [one.last_epoch for one in self.ours if one.last_epoch is not None]
        same = [epoch for epoch in epochs if of_one_promotion(epoch.number, number)]
        known, there = self.addrs_by_id, self.member(addr)
        if there is not None and there.last_epoch is not None and there.last_epoch.number == number:
            return ""  # it answers, and knows that epoch itself
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
        """The end of the log that ends with `epoch`; `furthest` has most of it."""
        end = furthest.end or 0
        stock_ends = [one.end for one in self.masters if not one.is_ours and one.end is not None]
        if stock_ends:
            return _End(max(end, *stock_ends))
        if epoch is not None and any(one.replica_id == epoch.master for one in self.ours):
            return _End(end)  # the broker that wrote the last epoch knows its end
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
        # A slave not restarted since heard the master until its last moment, as far as anybody can tell.
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


def promise_parts(promise: str) -> dict[str, str]:
    """What OK and reads mean at a broker, by its own file: key → value; empty if it does not say."""
    return dict(part.split("=", 1) for part in promise.split(", ") if "=" in part)


def promise_differences(promise: str, other: str) -> list[tuple[str, str]]:
    """The parts that both tell and that differ, as KEY=VALUE of each.  An older broker tells fewer."""
    one, two = promise_parts(promise), promise_parts(other)
    return [(f"{key}={one[key]}", f"{key}={two[key]}") for key in one if key in two and one[key] != two[key]]
