"""BrokerMember: a broker process's member of its group, from the process's start to its end.

    opened     a classic log changed over, the entries' store open, the port served: it votes and follows
    attached   to the log of the broker that runs now; of a master with the term that it leads: its office

A leader may serve once an entry of its own term is committed, for then all that was acknowledged before is, too
(`ready_term`).  It appends that entry itself, as it begins: log.first_body().
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from commitlog.disk.files import OSFiles
from commitlog.dledger.changing_over import change_over
from commitlog.dledger.layout import NONE
from commitlog.dledger.log import first_body, stamp_place
from commitlog.dledger.majority import MajorityStore
from commitlog.dledger.store import EntryStoreOptions
from commitlog.errors import CommitLogError, LogNotWritable, StoreUnreadable
from commitlog.log.waiters import Signal
from haservice.broker.services import flushes_at_once, store_host_of
from haservice.configuration.dledger_settings import is_self_id, parse_peers
from haservice.configuration.settings import NodeConfig
from haservice.deadline import Deadline
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import MemberRole
from haservice.dledger.log.entry_log import Bodies, SpacedRecords
from haservice.dledger.member import PeerProgress
from haservice.dledger.messages import LedgerEntry
from haservice.dledger.node.node import DLedgerNode
from haservice.dledger.node.shell import MemberLook, NodeStatus
from haservice.dledger.settings import MemberSettings
from haservice.errors import HAServiceError
from haservice.replication.lineage.epochs import PROMOTION_STEP
from haservice.replication.lineage.file import LineageFile

logger = logging.getLogger(__name__)

END_SECONDS = 10.0
# The transferee waits for its last entries, and asks for votes.
HAND_OVER_S = 2.0


class Committed(NamedTuple):
    """What this member knows to be committed: the last entry, its term, and where it ends in the log."""

    entry: int
    term: int
    end: int


class Attached(NamedTuple):
    """The broker that runs on the member now.  `office` is the term that it leads; None for a slave.

    `loop` is where its sends are appended and answered.
    """

    store: MajorityStore
    office: int | None
    on_committed: Callable[[int], None]
    on_office_lost: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    on_failure: Callable[[str, BaseException], None]


class BrokerMember:
    """The EntryAppender of the broker that is attached.  Any thread."""

    def __init__(self, config: NodeConfig) -> None:
        """Opens the entries' store.  Raises CommitLogError or ConfigError."""
        self.settings = settings = settings_of(config)
        directory = config.log.root / f"dledger-{settings.self_id}"
        _check_is_own(config.log.root, settings.self_id)
        options = EntryStoreOptions(
            directory,
            config.dledger.data_directories,
            data_file_bytes=config.log.segment_bytes,
            records=True,
            read_only=config.dledger.read_only_directories,
        )
        start = change_over(config.log, [*options.data, *options.read_only], store_host=store_host_of(config))
        self.changed = Signal()
        """Given when the role, the term or the leader has changed, and when a leader has become ready."""
        self.failure = ""
        """Why the member has ended; "" while it takes part."""
        self.damaged: tuple[int, ...] = ()
        """Entries of its log that are damaged, whether committed or not."""
        self._attached: Attached | None = None
        self._held: str | None = None
        self._unwell = ""
        self.node = DLedgerNode(
            settings,
            replace(options, start=start),
            sync=flushes_at_once(config),
            flush_interval_s=config.log.flush_interval_ms / 1000,
            stamp=stamp_place,
            least_term=_promotions(config),
            on_status=self._on_status,
            on_committed=self._on_committed,
            on_damage=self._on_damage,
            on_mended=self._on_mended,
            on_failure=self._on_failure,
        )
        self.committed = self._committed_at(self.node.store.committed_index)

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes part from now on.  Raises ConfigError for a port that is taken, or HAServiceError."""
        try:
            self.node.start()
        except TimeoutError:
            raise HAServiceError(
                f"this broker's member {self.settings.self_id} of group {self.settings.group} has not begun in time:"
                " the disk of its store is slow, or the machine busy; start it again"
            ) from None

    def close(self, deadline: Deadline) -> None:
        self.node.stop(deadline)

    def hand_over(self, deadline: Deadline) -> None:
        """A leader that is about to stop lets another member lead, the one with most of its log if that can."""
        members = self.nearest()
        if members:
            self.hand_over_to(members, deadline)

    def nearest(self) -> list[str]:
        """Of a leader: the members that are there; the one with most of its log comes first."""
        live = [one for one in self.node.peers() if one.is_live]
        return [one.peer for one in sorted(live, key=lambda one: one.lag)]

    def hand_over_to(self, members: Sequence[str], deadline: Deadline) -> tuple[str, DLedgerResponseCode]:
        """Lets the first of `members` lead that can, if this one leads now.  Returns which was asked last, and what
        came of it.  Blocks until the deadline at most, HAND_OVER_S for each."""
        for to in members:
            before = self.node.status.term
            try:
                code = self.node.hand_over(to).result(min(HAND_OVER_S, deadline.remaining))
            except TimeoutError:
                code = DLedgerResponseCode.TIMEOUT
            logger.info("leadership handed over to=%s term=%d result=%s", to, before, code.name)
            if code is DLedgerResponseCode.SUCCESS or deadline.expired or not self.is_leader:
                break
        return to, code

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def status(self) -> NodeStatus:
        return self.node.status

    @property
    def epoch(self) -> int:
        """What nameservers are told of its term: each leader is elected, as a pair's master is promoted."""
        return self.node.status.term * PROMOTION_STEP

    @property
    def is_leader(self) -> bool:
        return self.node.status.role is MemberRole.LEADER

    @property
    def office(self) -> int | None:
        """The term in which this member leads and may serve; None if it does not, or not yet."""
        led = _led(self.node.status)
        return led if led == self.committed.term else None

    @property
    def refused(self) -> str | None:
        attached, status = self._attached, self.node.status
        if self.failure:
            return f"this broker's member of its group has ended: {self.failure}"
        if self.node.resting:
            return f"this broker's member of its group rests for a while: {self.node.resting}"
        if attached is not None and attached.office is not None and status.role is MemberRole.LEADER:
            if status.term == attached.office:
                return None
            return f"leads term {status.term} of its group from now on; a moment"
        leader = f"{status.leader_id} leads it" if status.leader_id else "nobody leads it now"
        return f"this broker does not lead its group {self.settings.group} in term {status.term}: {leader}"

    def peers(self) -> list[PeerProgress]:
        """Of a leader: how far the others are."""
        return self.node.peers()

    @property
    def look(self) -> MemberLook:
        """What people have to know of it."""
        return self.node.look()

    @property
    def refuses_cut(self) -> str:
        """What this member, or one that follows it, holds as committed and is to cut; "" if nothing."""
        others = [f"{one.peer}: {one.refuses_cut}" for one in self.peers() if one.refuses_cut]
        return self.look.refuses_cut or "; ".join(others)

    def lead_by_force(self, deadline: Deadline) -> DLedgerResponseCode:
        """An operator goes on without the members that are silent.  SUCCESS once this one may serve as the leader."""
        try:
            code = self.node.force().result(max(0.1, deadline.remaining))
        except TimeoutError:
            return DLedgerResponseCode.TIMEOUT
        while code is DLedgerResponseCode.SUCCESS and self.office is None:
            if deadline.expired:
                return DLedgerResponseCode.TIMEOUT
            self.changed.take(min(HAND_OVER_S, max(0.01, deadline.remaining)))
        return code

    # -- the broker above -----------------------------------------------------------------------------

    def open_store(self, config: NodeConfig, store_host: bytes) -> MajorityStore:
        """The store of the broker that is to run.  Raises CommitLogError."""
        return MajorityStore(config.log, self.node.store, self, self.committed.entry, store_host=store_host)

    def attach(self, attached: Attached) -> None:
        """From now on that log is told of what is committed, what was committed meanwhile first."""
        self._attached = attached
        self._unwell = ""
        self.refuse(attached.store.log.held)
        if self.failure:
            attached.on_failure("dledger-loop", RuntimeError(self.failure))
        self._tell(attached, self.committed.end)
        if attached.office is not None:
            self.node.lend(attached.loop)
        self.ask_for(attached.store.damaged_entries)

    def ask_for(self, positions: Sequence[int]) -> None:
        """The entries there are damaged: other members are asked for them."""
        units = [self.node.store.find(position) for position in positions]
        self.node.damaged([unit.index for unit in units if unit is not None])

    def detach(self) -> None:
        self.node.take_back()
        self._attached = None

    def place(self, bodies: Sequence[bytes]) -> Sequence[int]:
        return [entry.pos for entry in self._placed(bodies)]

    @property
    def end(self) -> int:
        return self.node.store.end

    def place_of(self, entry_bytes: int) -> tuple[int, int]:
        return self.node.store.place_of(entry_bytes)

    def place_spaced(self, data: memoryview, position: int) -> None:
        self._placed(SpacedRecords(data, position))

    def _placed(self, bodies: Bodies) -> Sequence[LedgerEntry]:
        attached = self._attached
        if attached is None or attached.office is None:
            raise LogNotWritable(self.refused or "this broker stops")
        placed = self.node.place(bodies, attached.office)
        if not placed.entries:
            raise LogNotWritable(self.refused or f"the group takes no message now: {placed.code.name}")
        return placed.entries

    def refuse(self, reason: str | None) -> None:
        self._held = reason
        self.node.refuse(reason or self._unwell or None)

    def unwell(self, why: str) -> None:
        """The attached broker cannot serve as the master for `why`, so another member should lead; "" if it can."""
        if why != self._unwell:
            self._unwell = why
            self.refuse(self._held)

    # -- called by the node, which waits --------------------------------------------------------------

    def _committed_at(self, index: int) -> Committed:
        store = self.node.store
        if index == NONE or index < store.begin_index:
            return Committed(NONE, NONE, 0)
        return Committed(index, *store.mark_of(index))

    def _on_committed(self, index: int) -> None:
        before, now = self.committed, self._committed_at(index)
        self.committed = now
        if now.term != before.term:
            self.changed.give()
        attached = self._attached
        if attached is not None:
            self._tell(attached, now.end)

    def _tell(self, attached: Attached, end: int) -> None:
        attached.store.log.committed_to(end)
        attached.on_committed(end)

    def _on_damage(self, index: int) -> None:
        """The member has met it; who reads the log should not."""
        self.damaged = tuple(dict.fromkeys((*self.damaged, index)))
        attached = self._attached
        if attached is not None:
            with suppress(CommitLogError):  # cut, or expired
                attached.store.log.suspect(self.node.store.position_of(index))

    def _on_mended(self, index: int) -> None:
        self.damaged = tuple(one for one in self.damaged if one != index)
        attached = self._attached
        if attached is not None:
            with suppress(CommitLogError):
                attached.store.mended(self.node.store.position_of(index))

    def _on_status(self, status: NodeStatus) -> None:
        attached = self._attached
        if attached is not None and attached.office is not None and attached.office != _led(status):
            attached.on_office_lost()
        self.changed.give()

    def _on_failure(self, thread: str, error: BaseException) -> None:
        self.failure = f"{thread}: {error}"
        logger.error("the member has ended thread=%s reason=%s", thread, error)
        if self._attached is not None:
            self._attached.on_failure(thread, error)
        self.changed.give()


def _promotions(config: NodeConfig) -> int:
    """Of the pair that had this log before: the first term is the next promotion.  So all that knew the pair's epochs
    believe the group's leader.  Raises OSError.
    """
    if not (config.log.root / "lineage").is_dir():
        return 0
    state = LineageFile(config.log.root, log_path=config.log.log_path).state
    last, pledge = state.lineage.last, state.pledge
    known = (state.sealed, state.joined, last.number if last else 0, pledge.epoch if pledge else 0)
    return max(known) // PROMOTION_STEP


def _check_is_own(root: Path, own: str) -> None:
    """Raises StoreUnreadable if the store has another member's log: the group counts on its entries and votes."""
    for other in root.glob("dledger-*"):
        name = other.name.removeprefix("dledger-")
        if name != own and is_self_id(name):
            raise StoreUnreadable(
                other,
                f"is the log of member {name}, and this broker is {own} by dLegerSelfId, which would begin with no "
                f"entries and no votes: set dLegerSelfId={name}; or, if another broker is {name} now, move "
                f"{other.name} out of the store, and the group's leader fills {own}",
            )


def _led(status: NodeStatus) -> int | None:
    """The term that the member leads."""
    return status.term if status.role is MemberRole.LEADER else None


def settings_of(config: NodeConfig) -> MemberSettings:
    """Raises ConfigError."""
    dledger, broker = config.dledger, config.broker
    assert dledger.self_id is not None, "checked when the file was read"
    assert dledger.peers is not None, "checked when the file was read"
    return MemberSettings(
        dledger.group or broker.broker_name,
        dledger.self_id,
        parse_peers(dledger.peers),
        heartbeat_interval_s=dledger.heartbeat_interval_ms / 1000,
        wait_ack_max_s=config.replication.slave_timeout_ms / 1000,
        preferred_leaders=dledger.preferred_leaders,
        first_entry_body=first_body(store_host_of(config)),
        serves_appends=False,
    )


@contextmanager
def member_of(config: NodeConfig) -> Iterator[BrokerMember | None]:
    """The process's member; it outlives the nodes, which have one role each.  None without enableDLegerCommitLog."""
    if not config.dledger.enabled:
        yield None
        return
    OSFiles().make_directory(config.log.root)
    member = BrokerMember(config)
    try:
        member.start()
        yield member
    finally:
        member.close(Deadline(END_SECONDS))
