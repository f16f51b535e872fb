"""A member of a DLedger group on virtual time: the product's decisions, a log in memory, a clock of its own."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from haservice.dledger.events import (
    AnswerAsked,
    AppendBodies,
    AppendEnded,
    AppendPlaced,
    AskPeer,
    CommittedTo,
    LogDamaged,
    LogSynced,
    MemberAction,
    MemberEvent,
    MemberRole,
    PeerAnswered,
    RequestCame,
    RoleIs,
    SaveTerm,
    SaveWhole,
    TellOperator,
    TimePassed,
    WholeRecord,
)
from haservice.dledger.member import DLedgerMember
from haservice.dledger.messages import (
    AppendEntryRequest,
    AppendEntryResponse,
    LedgerEntry,
    MemberMessage,
    Recall,
)
from haservice.dledger.node.whole_file import NEW
from haservice.dledger.settings import MemberSettings
from haservice.mastership.whole import LOST_POWER, Refill
from tests.support.entry_log import MemoryLog

if TYPE_CHECKING:
    from tests.chaos.dledger_sim import World

# What waits in the sockets of a member that stands still.
_QUEUED_MAX = 400
_WAKE_LATEST_S = 5.0


class ReturnAddress(NamedTuple):
    """To whom an answer goes."""

    node: Node
    boots: int
    call: int


class Copy(NamedTuple):
    """Of a store, as a snapshot of its volume has it."""

    begin: int
    entries: tuple[LedgerEntry, ...]
    saved: tuple[int, str | None]
    checkpoint: int
    record: WholeRecord
    recalls: dict[str, Recall]


# The disk of an ASYNC_FLUSH member has by then what was written.
_WRITE_BACK_S = 0.5


class Node:
    """One member, from boot to boot."""

    def __init__(self, world: World, name: str, settings: MemberSettings, *, flushes: bool) -> None:
        self.world, self.name, self.settings = world, name, settings
        self.flushes = flushes
        self.ghosts: dict[tuple[int, int], LedgerEntry] = {}
        """What it had durably, and lost with its store: (index, term) → entry."""
        self.recalls: dict[str, Recall] = {}
        self._new_store()
        self.member: DLedgerMember | None = None
        self.boots = 0
        self.frozen_until_s = -math.inf
        self.slow_disk_s = 0.0
        self.dies_at_action = -1
        """Counts down; the process ends between two actions of one step."""
        self.rate = world.source.uniform(0.98, 1.02)
        self._clock_offset_s = world.source.uniform(0.0, 1000.0)
        self._queued: list[MemberEvent] = []
        self._wake_at_s = math.inf
        self._wakes = 0
        self._syncing = False

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.member is not None

    @property
    def frozen(self) -> bool:
        return self.world.clock.now_s < self.frozen_until_s

    @property
    def leads(self) -> bool:
        return self.member is not None and self.member.role is MemberRole.LEADER

    @property
    def now_s(self) -> float:
        return self._clock_offset_s + self.world.clock.now_s * self.rate

    def jump_clock(self, seconds: float) -> None:
        self._clock_offset_s += seconds
        self.step(TimePassed())

    def heal_clock(self) -> None:
        """A clock that was put back goes on from where it was: until then the member would do nothing by time."""
        if self.member is not None:
            self._clock_offset_s += max(0.0, self.member.state.now_s - self.now_s)

    # -- its store ----------------------------------------------------------------------------------

    def _new_store(self) -> None:
        self.log = MemoryLog(flushes=self.flushes)
        self.log.on_append = lambda entry, before: self.world.appended(self, entry, before)
        self.log.on_cut = lambda entries: self.world.cut(self, entries)
        self.log.on_mend = lambda entry: self.world.mended(self, entry)
        self.saved: tuple[int, str | None] = (0, None)
        self.checkpoint = -1
        self.record = WholeRecord(NEW, Refill(frozenset(self.settings.others)))
        self.recalls = {}

    def wipe(self) -> None:
        """Its directory is removed, or its volume is another one."""
        self._keep_ghosts()
        self.crash()
        self._new_store()

    def copy(self) -> Copy:
        disk = self.log.disk
        return Copy(
            disk.begin, tuple(disk.list), self.saved, self.checkpoint, self.record, dict(self.recalls)
        )

    def put_back(self, copy: Copy) -> None:
        """Its volume is as it was when the copy was made."""
        self._keep_ghosts()
        self.crash()
        self._new_store()
        for entries in (self.log.disk, self.log.now):
            entries.begin, entries.list = copy.begin, list(copy.entries)
        self.log.sync()
        self.saved, self.record, self.recalls = copy.saved, copy.record, dict(copy.recalls)
        self.checkpoint = min(copy.checkpoint, self.log.end_index)

    def _keep_ghosts(self) -> None:
        for entry in self.log.now.list:
            if self.log.holds_durably(entry):
                self.ghosts[entry.index, entry.term] = entry

    def has_held(self, entry: LedgerEntry) -> bool:
        """Durably, at some time."""
        ghost = self.ghosts.get((entry.index, entry.term))
        return self.log.holds_durably(entry) or (ghost is not None and ghost.same_as(entry))

    # -- life ---------------------------------------------------------------------------------------

    def boot(self) -> None:
        if self.member is not None:
            return
        self.boots += 1
        self.log.has_failed = False
        term, vote = self.saved
        self.member = DLedgerMember(
            self.settings,
            self.log,
            term=term,
            vote=vote,
            committed_index=self.checkpoint,
            record=self.record,
            recalls=self.recalls,
            source=random.Random(self.world.source.random()),
        )
        self.world.booted(self)
        self._queued.clear()
        self._syncing = False
        self._wake_at_s = math.inf
        self.step(TimePassed())
        self.scrub()
        self._sync_later()

    def scrub(self) -> None:
        """Who reads the log finds what is damaged in it."""
        if self.log.damaged:
            self.step(LogDamaged(tuple(self.log.damaged)))

    def crash(self, *, power: bool = False) -> None:
        if power:
            self._keep_ghosts()
            self.log.power_cut(self.world.source)
            if not self.flushes and self.record.is_whole:
                # As its file `whole` says at the next start: another boot, and no clean stop.
                self.record = replace(self.record, why=LOST_POWER, filling=Refill(frozenset()))
        if self.member is not None:
            self.member = None
            self.dies_at_action = -1
            self.frozen_until_s = -math.inf
            self.world.crashed(self)

    # -- steps --------------------------------------------------------------------------------------

    def step(self, *events: MemberEvent) -> None:
        """Lets something happen to it, now or when it goes on."""
        if self.member is None:
            return
        if self.frozen:
            if len(self._queued) < _QUEUED_MAX:
                self._queued.extend(events)
            return
        member = self.member
        events = (*self._queued, *events)
        self._queued.clear()
        for action in member.steps(events, self.now_s):
            if self.dies_at_action >= 0:
                self.dies_at_action -= 1
                if self.dies_at_action < 0:
                    self.crash()
                    return
            self._act(action)
            if self.member is not member:
                return
        self.world.after_step(self)
        self._sync_later()
        self._wake_later()

    def thaw(self) -> None:
        if not self.frozen:
            self.step(TimePassed())

    def _wake_later(self) -> None:
        assert self.member is not None
        wait_s = min(max(0.0, (self.member.next_due_s - self.now_s) / self.rate), _WAKE_LATEST_S) + 1e-4
        at_s = self.world.clock.now_s + wait_s
        if at_s < self._wake_at_s - 1e-3 or self._wake_at_s <= self.world.clock.now_s:
            self._wake_at_s = at_s
            self._wakes += 1
            self.world.clock.after(wait_s, self._wake, self._wakes)

    def _wake(self, wakes: int) -> None:
        if wakes == self._wakes:
            self._wake_at_s = math.inf
            self.step(TimePassed())

    def _sync_later(self) -> None:
        if self.log.unsynced and not self._syncing:
            self._syncing = True
            wait_s = self.world.source.uniform(0.0005, 0.006) if self.flushes else _WRITE_BACK_S
            wait_s += self.slow_disk_s
            self.world.clock.after(wait_s, self._synced, self.boots)

    def _synced(self, boots: int) -> None:
        if self.member is None or boots != self.boots:
            return
        if self.frozen:
            self.world.clock.after(0.05, self._synced, boots)
            return
        self._syncing = False
        if self.log.has_failed:
            return
        self.log.sync()
        if self.world.source.random() < 0.1:
            self.checkpoint = min(self.member.checkpoint_index, self.log.disk.end)
            self.recalls = self.member.recalls()
        self.step(LogSynced())

    # -- actions ------------------------------------------------------------------------------------

    def _act(self, action: MemberAction) -> None:
        world = self.world
        match action:
            case SaveTerm(term, vote):
                self.saved = (term, vote)
            case SaveWhole(record):
                if record.is_whole != self.record.is_whole:
                    world.note(f"{self.name} is whole" if record.is_whole else f"{self.name}: {record.why}")
                self.record = record
            case AskPeer(call, peer, request):
                world.ask(self, ReturnAddress(self, self.boots, call), peer, request)
            case AnswerAsked(ReturnAddress() as to, answer):
                world.answer(self, to, answer)
            case AnswerAsked(int() as number, AppendEntryResponse() as answer):
                world.ended(self, number, answer.result, answer.index)
            case AppendPlaced(number, _):
                assert isinstance(number, int)
            case AppendEnded(number, code, index):
                assert isinstance(number, int)
                world.ended(self, number, code, index)
            case CommittedTo(index):
                world.committed(self, index)
            case RoleIs(role, term, leader_id):
                world.role_is(self, role, term, leader_id)
            case TellOperator(text):
                world.note(f"{self.name} tells: {text}")
            case _:
                pass

    # -- from outside -------------------------------------------------------------------------------

    def asked(self, to: ReturnAddress, request: MemberMessage) -> None:
        self.step(RequestCame(to, request))

    def answered(self, to: ReturnAddress, answer: MemberMessage | None) -> None:
        if to.boots == self.boots:
            self.step(PeerAnswered(to.call, answer))

    def send(self, number: int, bodies: tuple[bytes, ...], *, by_wire: bool) -> None:
        if by_wire:
            request = AppendEntryRequest(group="g", remote_id=self.name, batch_msgs=bodies)
            self.step(RequestCame(number, request))
        else:
            self.step(AppendBodies(number, bodies))

    def expire(self) -> None:
        """Old entries that are committed everywhere it matters go; not those that another one may have to ask for."""
        if self.member is not None:
            damaged = [min(one.log.damaged) for one in self.world.nodes if one.log.damaged]
            self.log.expire_before(
                min(self.member.checkpoint_index - self.world.source.randint(0, 10), *damaged, 1 << 60)
            )
