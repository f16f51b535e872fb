"""Standing: what a node is from its start on, and all that has to do with it.

    made      the role in force, by the file or by command
    open      the store is ours: the peers are asked; a master gives way to a newer one, or begins its term
    build     what changes the role while the node runs: RoleChanges, and a master's RoleKeeper

What is decided by facts alone is decided in roles.py.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from commitlog.log import wall_clock_ms
from commitlog.store import Store
from commitlog.store_lock import boot_id
from haservice.broker.peers import Heard, Peers
from haservice.broker.refill import PulledBack, pull_back
from haservice.broker.role_changes import RoleChanges, free_slave_id
from haservice.broker.role_keeper import RoleKeeper
from haservice.broker.role_parts import RoleParts
from haservice.broker.roles import (
    NewerMaster,
    NoNumberLeft,
    StartOfMaster,
    as_in_file,
    command_for,
    command_that_counts,
    highest_number,
    in_role,
    newer_master,
    none_in_sync,
    reason_for_new_term,
    replicas_to_hear,
    role_in_force,
    takes_over,
    was_not_promoted,
    with_new_term,
)
from haservice.broker.security import Security
from haservice.broker.services import flushes_at_once
from haservice.broker.slave_sync import SlaveSync
from haservice.errors import ConfigError
from haservice.replication.greeting import Outcome
from haservice.replication.hello import SlaveHello
from haservice.replication.lineage import LogSpan
from haservice.replication.lineage_file import LineageFile, Replica, RoleCommand
from haservice.replication.protocol import MasterState
from haservice.replication.service import HAService
from haservice.settings import BrokerRole, NodeConfig

logger = logging.getLogger(__name__)


class Standing:
    """`config` is the node's in the role that is in force, `role` why."""

    def __init__(self, file_config: NodeConfig, security: Security, heard: int) -> None:
        self._file_config = file_config
        self._known: RoleCommand | None = None  # as it was written when we looked
        counts: RoleCommand | None = None
        # Read before the store's lock is ours, for the role says how to open it; what is wrong with the
        # place the store will say better.
        with contextlib.suppress(OSError):
            if (file_config.log.root / "lineage").is_dir():
                state = LineageFile(file_config.log.root).state
                self._known, counts = (
                    state.command,
                    command_that_counts(file_config.broker.role, state, wall_clock_ms()),
                )
        self.role = role_in_force(file_config, counts)
        self.config = in_role(file_config, self.role)
        self._heard = heard
        self._hold: Mapping[str, Replica] = {}
        name, addr = file_config.broker.broker_name, file_config.broker_addr
        self._failover = f"mqadmin failover -b {name} --to {addr} --force"
        self._undecided = ""
        self._security = security
        self._keeper: RoleKeeper | None = None

    # -- the start ----------------------------------------------------------------------------------

    def open(self, store: Store) -> str:
        """With the store ours.  Why this broker has to start again, in another role; "" to go on.

        Raises OSError, or ConfigError if another process has changed the role meanwhile.
        """
        self._store = store
        config = self.config
        self.lineage = LineageFile(config.log.root)
        if self.lineage.state.command != self._known:
            raise ConfigError(config.source, 0, "brokerRole", "the role was changed just now; start again")
        self.peers = Peers(
            config.broker.broker_name,
            config.broker_addr,
            config.broker.namesrv_addrs,
            self._security.make_client,
            lambda: [one.broker_addr for one in self.lineage.state.replicas.values()],
        )
        if self.role.said:
            logger.warning("role %s", self.role.said)
        if self.role.command != self._known:
            self.lineage.update(command=self.role.command)
        handing = self.lineage.state.handing_over
        heard = self.peers.ask([handing.broker_addr] if handing is not None else [])
        self._heard = max(self._heard, highest_number(heard.peers))
        if self._is_copy(heard):
            self.lineage.update(replica_id=uuid.uuid4().hex, replicas={}, command=None, handing_over=None)
            if self.role.command is not None:
                return "the role that was given by command was another broker's"
        if self.role.role.is_slave:
            self._open_slave()
            return ""
        state = self.lineage.state
        newer = newer_master(state.replica_id, state.lineage, heard.peers, starting=True)
        if newer is not None:
            self._give_way(newer, heard)
            return "a newer master is there"
        if handing is not None and any(was_not_promoted(handing, one) for one in heard.peers):
            self.lineage.update(handing_over=None)
        self._open_master()
        return ""

    def _is_copy(self, heard: Heard) -> bool:
        """Whether our store is a copy of one whose broker runs: then its replica id is not ours."""
        own_id, own_addr = self.lineage.state.replica_id, self.config.broker_addr
        for one in heard.peers:
            if one.replica_id == own_id and one.broker_addr != own_addr:
                logger.warning(
                    "the store is a copy, this broker gets an id of its own of=%s", one.broker_addr
                )
                return True
        return False

    def _open_slave(self) -> None:
        log = self._store.log
        lineage = self.lineage.state.lineage.or_unknown(LogSpan(log.start, log.end))
        self.lineage.update(lineage=lineage, boot_id=boot_id(), handing_over=None)

    def _open_master(self) -> None:
        log, state = self._store.log, self.lineage.state
        start = StartOfMaster(
            LogSpan(log.start, log.end),
            stopped_cleanly=self._store.recovery.clean,
            booted_anew=self.lineage.booted_anew,
            flushes_at_once=flushes_at_once(self.config),
            sync_master=self.role.role is BrokerRole.SYNC_MASTER,
            heard=self._heard,
        )
        self._hold = {name: state.replicas[name] for name in replicas_to_hear(state, start)}
        if self._hold:
            return  # its term begins once they were heard; until then the machine counts as just booted
        why = reason_for_new_term(state, start)
        if why:
            log.flush()
            promoted = takes_over(state)
            try:
                lineage = with_new_term(
                    state, start.log, why, wall_clock_ms(), promoted=promoted, heard=start.heard
                )
            except NoNumberLeft as error:
                self._undecided = f"a new term is to begin, for {why}: {error}: {self._failover}"
                return
            self.lineage.update(lineage=lineage, replicas=none_in_sync(state), boot_id=boot_id())
            logger.info("term begins epoch=%d start=%d why=%s", lineage.epochs[-1].number, log.end, why)
        else:
            self.lineage.started()

    def _give_way(self, newer: NewerMaster, heard: Heard) -> None:
        why = f"stepped down: {newer.broker_addr or 'another broker'} is the master of term {newer.epoch}"
        broker_id = free_slave_id(self.role, newer, heard)
        command = command_for(BrokerRole.SLAVE, broker_id, self.role, why, wall_clock_ms(), newer.ha_addr)
        self.lineage.update(command=command, handing_over=None)
        logger.warning("becomes a slave id=%d of=%s epoch=%d", broker_id, newer.broker_addr, newer.epoch)

    # -- while it runs ------------------------------------------------------------------------------

    def build(self, ha: HAService[Any], slave_sync: SlaveSync, turn: Callable[[str], None]) -> None:
        """Before the ports open; from now on appends are held if they have to be."""
        self._ha, self._slave_sync = ha, slave_sync
        self.changes = RoleChanges(
            RoleParts(
                self._file_config,
                self.config,
                self.role,
                self.lineage,
                self._store,
                ha,
                self.peers,
                copy_side_state=slave_sync.copy_now,
                not_copied=lambda: slave_sync.refused,
                set_master=self._set_master,
                master_addr=lambda: slave_sync.master_addr or "",
                turn=turn,
                keeper=lambda: self.keeper,
            )
        )
        self._keeper = RoleKeeper(
            self.peers,
            lambda: self.lineage.state,
            self._store.log,
            self.changes,
            self._pull,
            hold=self._hold,
            followers=self._followers,
            undecided=self._undecided,
            failover=self._failover,
        )
        self._keeper.note_heard(self._heard)
        self._keeper.begin_hold()
        handing = self.lineage.state.handing_over
        if handing is not None:
            self.changes.ask_after(handing)
        command = self.role.command
        if self.role.role.is_slave and command is not None and command.ha_master:
            ha.set_master_address(command.ha_master)

    @property
    def keeper(self) -> RoleKeeper:
        """From build() on; only a master's is run."""
        assert self._keeper is not None, "not built yet"
        return self._keeper

    @property
    def heard(self) -> int:
        """The highest number of a term that was heard of; -1 when none was."""
        return self._heard if self._keeper is None else self._keeper.heard

    @property
    def unresolved(self) -> bool:
        """Whether the next start has to find this master as this one did."""
        return self._keeper is not None and self._keeper.waits

    def on_ahead(self, hello: SlaveHello) -> None:
        """A slave holds what this master has lost."""
        self.keeper.on_ahead(hello)

    def on_heard(self, hello: SlaveHello, outcome: Outcome) -> None:
        """A slave has greeted."""
        self.keeper.on_heard(hello, outcome)

    def told_of(self, epoch: int, addr: str) -> None:
        """A name server knows of a newer term."""
        if self.role.role.is_slave:
            self.keeper.note_heard(epoch)
        else:
            self.keeper.told_of(epoch, addr)

    def sources(self) -> list[str]:
        """Addresses of brokers that may have what is damaged here, a master first."""
        peers = self.peers.ask().peers
        return [one.broker_addr for one in sorted(peers, key=lambda one: one.is_master, reverse=True)]

    def file_config_of(self, live: NodeConfig) -> NodeConfig:
        """What a successor starts with: settings as they are now, the role as in the file."""
        return as_in_file(live, self._file_config)

    def gauges(self) -> Mapping[str, str]:
        """Entries of request 28."""
        last = self.lineage.state.lineage.last
        return {
            "brokerRole": self.role.role.value,
            "roleFrom": self.role.source,
            "roleWhy": self.role.why,
            "epoch": str(last.number if last is not None else -1),
        }

    def _set_master(self, master_addr: str, ha_addr: str) -> None:
        self._ha.set_master_address(ha_addr or None)
        if master_addr:
            self._slave_sync.set_master_addr(master_addr)

    def _followers(self) -> Iterable[str]:
        return [
            one.replica_id
            for one in self._ha.status().slaves
            if one.replica_id and one.state == MasterState.TRANSFER.value
        ]

    def _pull(self, addr: str, begin: int, end: int, peer_start: int) -> PulledBack:
        with self.peers.reading() as fetch:
            return pull_back(self._store.log, fetch, addr, begin, end, peer_start=peer_start)
