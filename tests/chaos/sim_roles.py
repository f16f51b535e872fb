"""Roles of a simulated node: its lineage file, and what the product's RoleChanges and Peers do over the wire.

The decisions are those of roles.py, role_keeper.py and refill.py; here is what carries them out, in the order
in which the product does: flush, write, answer, turn.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.errors import CommitLogError
from commitlog.log import wall_clock_ms
from commitlog.store import Store
from haservice.broker import refill
from haservice.broker.peers import Heard
from haservice.broker.role_keeper import RoleKeeper
from haservice.broker.roles import NewerMaster, none_in_sync, with_new_term
from haservice.errors import AnswerError, RemotingUnreachable
from haservice.persisted_file import PersistedFile
from haservice.remoting.lineage_headers import EpochBody, LineageBody, ReplicaBody
from haservice.replication.greeting import Facts
from haservice.replication.lineage import Lineage, LogSpan
from haservice.replication.lineage_file import (
    LineageFile,
    LineageState,
    RoleCommand,
    decode_state,
)
from haservice.settings import BrokerRole
from tests.chaos.sim_disk import SimFiles
from tests.chaos.sim_ends import SlaveEnd

if TYPE_CHECKING:
    from tests.chaos.sim_node import Node
    from tests.chaos.sim_world import World

NAME = "broker-a"
HOLDER = "role"


class SimLineageFile(LineageFile):
    """The lineage file on the simulated disk; the machine's boot is what the simulation says."""

    def __init__(self, root: Path, files: SimFiles, boot: str) -> None:
        self.root = root
        self.boot = boot
        self._file = PersistedFile(root / "lineage" / "state.json", files)
        self._lock = threading.Lock()
        state = self._file.load(decode_state)
        self.is_new = state is None
        self.state = state if state is not None else LineageState(uuid.uuid4().hex)
        self.booted_anew = self.state.boot_id != boot
        if self.is_new:
            self._write(self.state)

    def started(self) -> None:
        self.update(boot_id=self.boot)


class Roles:
    """What a Node is by its role."""

    world: World
    name: str
    root: Path
    store: Store
    lineage: SimLineageFile
    role: BrokerRole
    file_role: BrokerRole
    keeper: RoleKeeper
    link: SlaveEnd | None

    @property
    def facts(self) -> Facts:
        return Facts("cluster", NAME, self.name)

    def describe(self) -> LineageBody:
        log, state = self.store.log, self.lineage.state
        master_end = self.link.master_end if self.link is not None else -1
        is_kept = self.role.is_slave and master_end < 0 <= state.master_end
        return LineageBody(
            cluster_name="cluster",
            broker_name=NAME,
            broker_addr=self.name,
            ha_addr=self.name,
            broker_id=1 if self.role.is_slave else 0,
            file_broker_id=0,
            role=self.role.value,
            replica_id=state.replica_id,
            segment_bytes=log.segment_bytes,
            log_start=log.start,
            log_end=log.end,
            flushed=log.flushed,
            epochs=[
                EpochBody(one.number, one.start, one.master, one.began_ms, one.why)
                for one in state.lineage.epochs
            ],
            held="" if self.role.is_slave else self.keeper.held or log.writable or "",
            master_end=state.master_end if is_kept else master_end,
            master_end_kept=is_kept,
            master_addr=self.world.registered if self.role.is_slave else "",
            master_role=state.master_role,
            replicas=[
                ReplicaBody(name, one.broker_addr, one.offset, one.seen_ms, one.in_sync)
                for name, one in state.replicas.items()
            ],
        )

    def ask_peers(self) -> Heard:
        return Heard([node.describe() for node in self.world.peers_of(self)], {})

    def ask(self, also: Iterable[str] = (), /) -> Heard:
        """RoleKeeper's Peers."""
        return self.ask_peers()

    def read_log(self, addr: str, offset: int, size: int, /) -> bytes:
        """40002, of another node.  Raises RemotingError."""
        node = self.world.nodes[addr]
        if node not in self.world.peers_of(self):
            raise RemotingUnreachable(addr, "does not answer")
        try:
            return node.store.log.read(offset, size)
        except CommitLogError as error:
            raise AnswerError(addr, 1, str(error)) from error

    def _pull_back(self, addr: str, begin: int, end: int, peer_start: int, /) -> refill.PulledBack:
        outcome = refill.pull_back(self.store.log, self.read_log, addr, begin, end, peer_start=peer_start)
        self.world.pulled(self, self.world.nodes[addr])
        self._after_append()
        return outcome

    def step_down(self, newer: NewerMaster, heard: Heard, why: str, /) -> None:
        """Acts."""
        self.store.log.hold_appends("this broker becomes a slave")
        try:
            self._commit_slave(newer, why)
        except OSError as error:  # the keeper tries it again
            self.world.note("{} cannot write its role: {}", self.name, error)
            self.keeper.told_of(newer.epoch, newer.broker_addr)
            return
        self.turn(f"steps down: {why}")

    def _commit_slave(self, newer: NewerMaster, why: str) -> None:
        """Raises OSError."""
        command = RoleCommand("SLAVE", 1, self.file_role.value, wall_clock_ms(), why, newer.ha_addr)
        self.lineage.update(command=command)

    def begin_term(self, why: str, /) -> None:
        """Acts: the keeper has heard all that was held for."""
        try:
            self._commit_term(why, self.keeper.heard, promoted=False)
        except (CommitLogError, OSError, ValueError) as error:
            self.world.note("{} cannot write its new term: {}", self.name, error)
            return
        self.turn(why)

    def _commit_term(self, why: str, heard: int, *, promoted: bool) -> None:
        """Raises CommitLogError, OSError or ValueError, and appends are taken as before."""
        log = self.store.log
        log.hold_appends("a new term begins", HOLDER)
        try:
            log.flush()
            self.world.flushed(self)
            span = LogSpan(log.start, log.end)
            lineage = with_new_term(
                self.lineage.state, span, why, wall_clock_ms(), promoted=promoted, heard=heard
            )
            self.lineage.update(
                lineage=lineage, replicas=none_in_sync(self.lineage.state), boot_id=self.lineage.boot
            )
        finally:
            log.hold_appends(None, HOLDER)
        self.world.note("{} begins term {} at {}: {}", self.name, lineage.epochs[-1].number, log.end, why)

    def promote(self, *, min_epoch: int, why: str, forced: bool, expected_end: int = -1) -> bool:
        """40003.  Whether it was done."""
        log, last = self.store.log, self.lineage.state.lineage.last
        if not self.role.is_slave:
            if last is not None and min_epoch <= last.number:
                return False
            self._commit_term(why, min_epoch - 1, promoted=True)
            self.world.promoted(self, forced=forced)
            self.turn(why)
            return True
        assert self.link is not None
        end = self.link.whole_end()
        if expected_end not in (-1, end):
            return False
        self.link.abandon()
        try:
            if end < log.end:
                self.store.rewind(end)
                self.world.cut(self, end)
            log.flush()
            self.world.flushed(self)
            span = LogSpan(log.start, log.end)
            lineage = with_new_term(
                self.lineage.state, span, why, wall_clock_ms(), promoted=True, heard=min_epoch - 1
            )
            role = self.lineage.state.master_role or self.world.mode.master_role.value
            command = RoleCommand(role, 0, self.file_role.value, wall_clock_ms(), why)
            self.lineage.update(
                lineage=lineage,
                replicas=none_in_sync(self.lineage.state),
                command=command,
                boot_id=self.lineage.boot,
            )
        except BaseException:
            self.turn("not promoted, the link to the master is made anew")
            raise
        self.world.note("{} promoted, term {} at {}", self.name, lineage.epochs[-1].number, log.end)
        self.world.promoted(self, forced=forced)
        self.turn(why)
        return True

    def reinit(self) -> None:
        """40006, of a slave: it takes everything anew."""
        assert self.link is not None
        self.link.abandon()
        self.store.restart_at(0, self.root / "cut" / f"reinit-{wall_clock_ms()}")
        self.lineage.update(lineage=Lineage())
        self.world.rejoined(self)
        self.turn("everything is taken anew")

    def follow(self, master: Node, why: str) -> None:
        """40004."""
        if self.role.is_slave:
            if self.link is not None:
                self.link.look_up_master()
            return
        last = master.lineage.state.lineage.last
        self.follow_name(master.name, last.number if last is not None else 0, why)

    def follow_name(self, master: str, epoch: int, why: str) -> None:
        """Same, of a master; refused unless the term is newer than its own."""
        last = self.lineage.state.lineage.last
        if last is None or epoch > last.number:
            self.step_down(NewerMaster(epoch, master, master), Heard(), why)
