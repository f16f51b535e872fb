"""RoleStartup: what a node is from its start on, and all that has to do with it.

    made      the role in force, by the file or by command
    open      the store is ours: the peers are asked; a master gives way to a newer one, or begins its epoch
    build     the machine of roles, and what carries out what it decides

What is decided by facts alone is decided in rules.py and in the machine, machine.py.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from commitlog.log.log import wall_clock_ms
from commitlog.store import Store
from haservice.bounds import OFFSET_MAX
from haservice.broker.acl.security import Security
from haservice.broker.metadata.registration import MasterAddresses
from haservice.broker.metadata.slave_sync import SlaveSync
from haservice.broker.roles.describe import Describe
from haservice.broker.roles.executor import RoleExecutor
from haservice.broker.roles.hands import RoleHands
from haservice.broker.roles.peers import Heard, Peers
from haservice.broker.roles.rules import (
    RoleInForce,
    StartOfMaster,
    as_in_file,
    command_that_counts,
    in_role,
    may_have_lost_what_it_acknowledged,
    role_in_force,
)
from haservice.broker.roles.state import Begin, Hint, RoleState, SlaveAhead, Who
from haservice.broker.services import flushes_at_once
from haservice.configuration.settings import BrokerRole, NodeConfig
from haservice.errors import ConfigError
from haservice.log_throttle import LogThrottle
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import LineageBody
from haservice.remoting.json_body import JSONBody
from haservice.replication.lineage.epochs import LogSpan
from haservice.replication.lineage.file import LineageFile, RoleCommand
from haservice.replication.master.progress import slaves_needed
from haservice.replication.service import HAService
from haservice.replication.wire.greeting import Outcome
from haservice.replication.wire.hello import SlaveHello

logger = logging.getLogger(__name__)


class RoleStartup:
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
        self._security = security
        name, addr = file_config.broker.broker_name, file_config.broker_addr
        who = Who(
            self.role,
            addr,
            file_config.ha_server_addr,
            slaves_needed(file_config.replication.in_sync_replicas),
            f"mqadmin failover -b {name} --to {addr} --force",
        )
        self._state = RoleState(who, heard=heard)
        self._executor: RoleExecutor | None = None
        self._throttle = LogThrottle()

    # -- the start ----------------------------------------------------------------------------------

    def open(self, store: Store) -> str:
        """With the store ours.  Why this broker has to start again, in another role; "" to go on.

        Raises OSError, or ConfigError if another process has changed the role meanwhile.
        """
        self._store = store
        config = self.config
        self.lineage = LineageFile(config.log.root, log_path=config.log.log_path)
        if self.lineage.state.command != self._known:
            raise ConfigError(config.source, 0, "brokerRole", "the role was changed just now; start again")
        self.peers = Peers(
            config.broker.broker_name,
            config.broker_addr,
            config.broker.namesrv_addrs,
            self._security.make_client,
            self._remembered,
        )
        if self.role.said:
            logger.warning("role %s", self.role.said)
        if self.role.command != self._known:
            self.lineage.update(command=self.role.command)
        handing = self.lineage.state.handing_over
        heard = self.peers.ask([handing.broker_addr] if handing is not None else [])
        if self._is_copy(heard):
            self.lineage.update(replica_id=uuid.uuid4().hex, replicas={}, command=None, handing_over=None)
            if self.role.command is not None:
                return "the role that was given by command was another broker's"
        if self.role.role.is_slave:
            self._open_slave()
            return ""
        return self._open_master(heard)

    def _remembered(self) -> list[str]:
        """Whom we know, whatever the name servers say: replicas do not go because nobody registers them."""
        state = self.lineage.state
        return [*state.members.replicas.values(), *(one.broker_addr for one in state.replicas.values())]

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
        log, state = self._store.log, self.lineage.state
        lost = may_have_lost_what_it_acknowledged(
            stopped_cleanly=self._store.recovery.clean,
            booted_anew=self.lineage.booted_anew,
            flushes_at_once=flushes_at_once(self.config),
        )
        self.lineage.update(
            lineage=state.lineage.or_unknown(LogSpan(log.start, log.end)),
            boot_id=self.lineage.boot,
            handing_over=None,
            whole_from=OFFSET_MAX if lost else state.whole_from,
        )

    def _open_master(self, heard: Heard) -> str:
        """The machine decides; only the file and the peers are there to act on."""
        log = self._store.log
        start = StartOfMaster(
            LogSpan(log.start, log.end),
            stopped_cleanly=self._store.recovery.clean,
            booted_anew=self.lineage.booted_anew,
            flushes_at_once=flushes_at_once(self.config),
            sync_master=self.role.role is BrokerRole.SYNC_MASTER,
        )
        hands = RoleHands(
            self.config,
            self.lineage,
            self._store,
            self.peers,
            None,
            copy_side_state=lambda _: False,
            set_master=lambda _, __: None,
            turn=lambda _: None,
            announce=lambda: None,
            describe=self.describe,
        )
        executor = RoleExecutor(self._state, hands)
        executor.drive(Begin(heard, start))
        self._state = executor.state
        if self._state.broken:
            raise OSError(self._state.broken)
        return self._state.turning

    # -- while it runs ------------------------------------------------------------------------------

    def build(
        self,
        ha: HAService[Any],
        slave_sync: SlaveSync,
        *,
        turn: Callable[[str], None],
        announce: Callable[[], None],
    ) -> None:
        """Before the ports open; from now on appends are held if they have to be.

        `turn` is called once the broker is to be stopped and started again, `announce` when the name servers
        have something to hear.
        """
        self._ha, self._slave_sync = ha, slave_sync
        self._describe = Describe(
            self.config,
            self.lineage,
            self._store,
            ha,
            not_copied=lambda: slave_sync.refused,
            master_addr=lambda: slave_sync.master_addr or "",
        )
        hands = RoleHands(
            self.config,
            self.lineage,
            self._store,
            self.peers,
            ha,
            copy_side_state=slave_sync.copy_now,
            set_master=self._set_master,
            turn=turn,
            announce=announce,
            describe=self.describe,
        )
        if self._state.held:
            hands.hold(self._state.held)
        self._executor = RoleExecutor(self._state, hands)
        command = self.role.command
        if self.role.role.is_slave and command is not None and command.ha_master:
            ha.set_master_address(command.ha_master)

    @property
    def executor(self) -> RoleExecutor:
        """From build() on."""
        assert self._executor is not None, "not built yet"
        return self._executor

    @property
    def state(self) -> RoleState:
        return self._state if self._executor is None else self._executor.state

    @property
    def heard(self) -> int:
        """The highest number of an epoch that was heard of; -1 when none was."""
        return self.state.heard

    @property
    def unresolved(self) -> bool:
        """Whether the next start has to find this master as this one did."""
        return self.state.must_begin_anew

    def describe(self, role: RoleInForce | None = None) -> LineageBody:
        """Who we are and what our log is; in `role`, if that is what we are about to be."""
        executor = self.executor
        return self._describe.body(executor.state, role, changing=executor.changing)

    def ask(self, header: ExtHeader) -> JSONBody:
        """A change of role: blocks.  Raises RequestError if it is refused."""
        return self.executor.ask(header)

    def on_ahead(self, hello: SlaveHello) -> None:
        """A slave holds what this master has lost."""
        self.executor.put(SlaveAhead(hello.replica_id, hello.broker_addr))

    def on_heard(self, hello: SlaveHello, outcome: Outcome) -> None:
        """A slave has greeted; one that knows a newer epoch is asked about it."""
        if outcome is Outcome.OLD_MASTER:
            self.executor.put(Hint(hello.broker_addr))

    def told_of(self, epoch: int, addr: str) -> None:
        """A name server speaks of a newer epoch: who is there is asked, and nothing is done by its word."""
        if not self.role.role.is_slave:
            self.executor.put(Hint(addr))

    def master_found(self, master: MasterAddresses) -> None:
        """What a name server said.  A silent one never takes away the log's source, as in RocketMQ.

        Ours: a master of ours whose log is coming is left for no name server's word.  One of a newer epoch tells
        its slaves to follow it, and whoever is replaced ends the link; a stranger does neither.
        """
        here = self._ha.greeted_by
        if here and master.broker_addr not in (None, here):
            if self._throttle.ready(master.broker_addr):
                logger.warning(
                    "a name server names another master, the present one is still followed named=%s master=%s",
                    *(master.broker_addr, here),
                )
            master = MasterAddresses(here, None)
        if master.ha_addr is not None and self.config.replication.master_address is None:
            self._ha.set_master_address(master.ha_addr)
        self._slave_sync.set_master_addr(master.broker_addr)

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
            "unprovenTerm": self.state.unproven,
        }

    def _set_master(self, master_addr: str, ha_addr: str) -> None:
        self._ha.set_master_address(ha_addr or None)
        if master_addr:
            self._slave_sync.set_master_addr(master_addr)
