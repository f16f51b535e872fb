"""RoleStartup: what a broker finds out about its role before it serves; RoleKeeper: its role while it serves.

    made      the role in force, by the file or by command
    open      the store is ours: the peers are asked; a master gives way to a newer one, or begins its epoch
    keeper    the machine of roles, what carries out its decisions, and who asks

rules.py and the machine (machine.py) decide whatever follows from facts alone.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commitlog.log.log import wall_clock_ms
from commitlog.store import Store
from haservice.broker.lease.start import waiting, why_not_first, with_free_id
from haservice.broker.metadata.registration import MasterAddresses
from haservice.broker.metadata.slave_sync import SlaveSync
from haservice.broker.roles.describe import Describe, LastHeard
from haservice.broker.roles.executor import RoleEvents, RoleExecutor
from haservice.broker.roles.hands import RoleHands
from haservice.broker.roles.peers import Heard, Peers
from haservice.broker.roles.rules import (
    RoleInForce,
    StartOfMaster,
    as_in_file,
    command_that_counts,
    in_role,
    may_have_lost_what_it_acknowledged,
    original_of,
    role_in_force,
)
from haservice.broker.roles.state import Begin, Order, RoleState, Who, refused
from haservice.broker.services import flushes_at_once
from haservice.configuration.settings import BrokerRole, NodeConfig, ReplicationConfig
from haservice.errors import ConfigError
from haservice.log_throttle import LogThrottle
from haservice.remoting.client import BlockingClient
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
from haservice.remoting.json_body import JSONBody
from haservice.replication.lineage.acked_cuts import bytes_cut, cuts_text
from haservice.replication.lineage.epochs import LogSpan
from haservice.replication.lineage.file import (
    LineageFile,
    RoleCommand,
    lacks_its_log,
    without_its_log,
    without_power,
)
from haservice.replication.master.progress import slaves_needed
from haservice.replication.master.service import MasterHAService
from haservice.replication.slave.service import SlaveHAService

logger = logging.getLogger(__name__)

# How long a start waits for a peer that took its question and was silent.
SECOND_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class OpenedRole:
    """A role that may be served.  `config` is the one in force, `role` says why."""

    config: NodeConfig
    role: RoleInForce
    store: Store
    lineage: LineageFile
    peers: Peers
    state: RoleState
    before: LastHeard | None = None

    @property
    def begins_epoch(self) -> bool:
        """Whether nothing was appended yet in our own last epoch, and nothing has to be taken back before."""
        kept, end = self.lineage.state, self.store.log.end
        last = kept.lineage.last
        if last is None or last.master != kept.replica_id or self.role.role.is_slave:
            return False
        return last.start == end > 0 and not self.state.held


class RoleStartup:
    """`config` is the node's in the role in force, `role` why; `state` is as far as it is known by now."""

    def __init__(
        self,
        file_config: NodeConfig,
        client: BlockingClient,
        heard: int,
        *,
        leads: bool = True,
        before: LastHeard | None = None,
    ) -> None:
        """`leads`: whether it may start as a master.  With a coordinator only a successor of a node that was
        promoted may: who is the master is not known before the coordinator was read.
        """
        self._file_config = file_config
        self._leads = leads
        self._known: RoleCommand | None = None  # as it was in the file when we looked
        counts: RoleCommand | None = None
        joined = -1
        # Read before we have the store's lock, because the role says how to open the store.  The store will
        # give the better error for a bad place.
        self._unread: OSError | None = None
        try:
            if (file_config.log.root / "lineage").is_dir():
                state = LineageFile(file_config.log.root).state
                joined = state.joined
                self._known, counts = (
                    state.command,
                    command_that_counts(file_config.broker.role, state, wall_clock_ms()),
                )
        except OSError as error:
            self._unread = error
        self.role = role_in_force(file_config, counts)
        self.may_be_first = not self.role.role.is_slave and joined < 0
        """Whether it would be the master without a coordinator, and has never had one."""
        self._is_command_kept = leads or joined >= 0
        if not leads:
            self.role = waiting(self.role, wall_clock_ms())
        self.config = in_role(file_config, self.role)
        self._client = client
        name, addr = file_config.broker.broker_name, file_config.broker_addr
        who = Who(
            self.role,
            addr,
            file_config.ha_server_addr,
            slaves_needed(file_config.replication.in_sync_replicas),
            f"mqadmin failover -b {name} --to {addr} --force",
            str(file_config.log.log_path),
        )
        self.state = RoleState(who, heard=heard)
        self._before = before

    # -- the start ----------------------------------------------------------------------------------

    def open(self, store: Store) -> OpenedRole | str:
        """With the store ours.  Returns why this broker has to start again, in another role, if it has to.

        Raises OSError, or ConfigError if another process has changed the role meanwhile.
        """
        config = self.config
        lineage = LineageFile(config.log.root, log_path=config.log.log_path)
        if lineage.state.command != self._known:
            if self._unread is not None:
                raise self._unread
            raise ConfigError(config.source, 0, "brokerRole", "the role was changed just now; start again")
        _check_coordinator(config, lineage)
        peers = Peers(
            config.broker.broker_name,
            config.broker_addr,
            config.broker.namesrv_addrs,
            self._client,
            lambda: _remembered(lineage),
        )
        if self.role.said:
            logger.warning("role %s", self.role.said)
        handing = lineage.state.handing_over
        coordinated = config.coordinator.is_set
        if coordinated and self._leads:
            heard = Heard()  # the coordinator has said it, and the time until writes are taken counts
        else:
            heard = self._heard(peers, [handing.broker_addr] if handing is not None else [])
        if coordinated and self.may_be_first:
            why = why_not_first(lineage.state, store.log.end, config.broker_addr, heard)
            self.may_be_first = not why
            if why:
                logger.error("it takes no lease of a coordinator that had no master reason=%s", why)
        if coordinated and self.role.role.is_slave:
            self.role = with_free_id(self.role, config.broker_addr, heard)
            config = self.config = in_role(self._file_config, self.role)
        if self.role.command != self._known and self._is_command_kept:
            lineage.update(command=self.role.command)
        if _is_copy(config, lineage, heard):
            lineage.update(replica_id=uuid.uuid4().hex, replicas={}, command=None, handing_over=None)
            if self.role.command is not None:
                return "the role that was given by command was another broker's"
        if self.role.role.is_slave:
            self._open_slave(store, lineage)
        else:
            self._open_master(store, lineage, peers, heard)
            if self.state.broken:
                # It may pass: a broker that turns waits for that, where a process that begins says so and ends.
                raise OSError(errno.EAGAIN, self.state.broken)
            if self.state.turning:
                return self.state.turning
        return OpenedRole(config, self.role, store, lineage, peers, self.state, self._before)

    def _heard(self, peers: Peers, also: Sequence[str]) -> Heard:
        """Who is there.  Before it leads, it looks again with patience where somebody is silent: a broker that stands
        still for a moment may be the master by now.
        """
        heard = peers.ask(also)
        if heard.silent and not self.role.role.is_slave and not self.config.coordinator.is_set:
            logger.warning(
                "asking once more before this broker leads silent=%s patience_s=%g",
                *(",".join(heard.silent), SECOND_LOOK_SECONDS),
            )
            again = peers.ask(also, SECOND_LOOK_SECONDS)
            now = {one.broker_addr for one in again.peers}
            once = [one for one in heard.peers if one.broker_addr not in now]
            heard = Heard([*again.peers, *once], {**heard.taken_ids, **again.taken_ids}, again.silent)
        return heard

    def file_config_of(self, live: NodeConfig) -> NodeConfig:
        """The configuration for a successor: settings as they are now, the role as in the file."""
        return as_in_file(live, self._file_config)

    def _open_slave(self, store: Store, lineage: LineageFile) -> None:
        log, state = store.log, lineage.state
        lost = may_have_lost_what_it_acknowledged(
            stopped_cleanly=store.recovery.clean,
            booted_anew=lineage.booted_anew,
            flushes_at_once=flushes_at_once(self.config),
        )
        span = LogSpan(log.start, log.end)
        changes = without_power(state, log.end) if lost else {}
        if lacks_its_log(state, span) or store.recovery.had_end > log.end:
            changes = without_its_log(state)
            logger.warning(
                "the log lacks what this broker had; it counts for no failover before it has caught up end=%d",
                log.end,
            )
        lineage.update(
            lineage=state.lineage.or_unknown(span), boot_id=lineage.boot, handing_over=None, **changes
        )

    def _open_master(self, store: Store, lineage: LineageFile, peers: Peers, heard: Heard) -> None:
        """The machine decides, with only the file and the peers to act on."""
        log = store.log
        start = StartOfMaster(
            LogSpan(log.start, log.end),
            stopped_cleanly=store.recovery.clean,
            booted_anew=lineage.booted_anew,
            flushes_at_once=flushes_at_once(self.config),
            sync_master=self.role.role is BrokerRole.SYNC_MASTER,
            had_end=store.recovery.had_end,
            has_own_marks=store.checkpoint.positions.known is not None,
        )
        hands = RoleHands(
            self.config,
            lineage,
            store,
            peers,
            copy_side_state=lambda _: False,
            set_master=lambda _, __: None,
            turn=lambda _: None,
            announce=lambda: None,
            describe=_nobody_asks_yet,
        )
        executor = RoleExecutor(self.state, hands)
        executor.drive(Begin(heard, start))
        self.state = executor.state


def _check_coordinator(config: NodeConfig, lineage: LineageFile) -> None:
    """A store that has had a coordinator has one, or is told that it has none any more.  Raises ConfigError, OSError.

    By itself it would count acks by another list than its peers, and nobody could take over from it.
    """
    joined = lineage.state.joined
    if joined < 0 or config.coordinator.is_set:
        return
    if not config.coordinator.is_given_up:
        raise ConfigError(
            config.source,
            0,
            "haCoordinator",
            f"it is not set, and this broker has had a coordinator, which gave epoch {joined}: give it the same line as"
            " the other brokers of its name; to go on without a coordinator stop all of them, and give each"
            " haCoordinator=none",
        )
    logger.warning("this broker goes on without a coordinator last_epoch=%d", joined)
    lineage.update(joined=-1)


class FollowedMaster:
    """Whom a slave follows: its log, and what its master keeps beside it.

    `slave` is None on a master, and in a DLedger group, whose members follow each other by themselves.
    """

    def __init__(
        self, config: ReplicationConfig, slave: SlaveHAService | None, slave_sync: SlaveSync
    ) -> None:
        self._config = config
        self._slave = slave
        self._slave_sync = slave_sync
        self._throttle = LogThrottle()

    def set_master(self, master_addr: str, ha_addr: str) -> None:
        """Sets the master, as the machine of roles says."""
        if self._slave is not None:
            self._slave.set_master_address(ha_addr or None)
        if master_addr:
            self._slave_sync.set_master_addr(master_addr)

    def master_found(self, master: MasterAddresses) -> None:
        """What a nameserver said to a slave.  If it names none, the slave keeps its own, as in RocketMQ.

        Ours: a slave does not leave a master of ours whose log is coming for a nameserver's word.  The
        master of a newer epoch tells its slaves to follow it, and a replaced master ends the link; a stranger
        does neither.
        """
        here = self._slave.greeted_by if self._slave is not None else ""
        if here and master.broker_addr not in (None, here):
            if self._throttle.ready(master.broker_addr):
                logger.warning(
                    "a nameserver names another master, the present one is still followed named=%s master=%s",
                    *(master.broker_addr, here),
                )
            master = MasterAddresses(here, None)
        if self._slave is not None and master.ha_addr is not None and self._config.master_address is None:
            self._slave.set_master_address(master.ha_addr)
        self._slave_sync.set_master_addr(master.broker_addr)


class RoleKeeper:
    """`executor` is the task of role-keeper.  Once this is made, appends are held if they have to be."""

    def __init__(
        self,
        opened: OpenedRole,
        ha: MasterHAService[Any] | SlaveHAService,
        slave_sync: SlaveSync,
        following: FollowedMaster,
        events: RoleEvents,
        *,
        turn: Callable[[str], None],
        announce: Callable[[], None],
        epoch_began: Callable[[], None],
        unfit_tables: Callable[[], str] = lambda: "",
    ) -> None:
        """`turn` is called once the broker has to be stopped and started again, `announce` when nameservers
        have something to hear, `epoch_began` once an epoch has begun on a running master.  `unfit_tables` says why
        a slave's tables are no master's.
        """
        self.role = opened.role
        self.lineage = opened.lineage
        self.peers = opened.peers
        self._unfit_tables = unfit_tables
        self._describe = Describe(
            opened.config,
            opened.lineage,
            opened.store,
            ha,
            not_copied=lambda: unfit_tables() or slave_sync.refused,
            master_addr=lambda: slave_sync.master_addr or "",
            before=opened.before,
        )
        hands = RoleHands(
            opened.config,
            opened.lineage,
            opened.store,
            opened.peers,
            copy_side_state=slave_sync.copy_now,
            set_master=following.set_master,
            turn=turn,
            announce=announce,
            describe=self.describe,
            master=ha if isinstance(ha, MasterHAService) else None,
            slave=ha if isinstance(ha, SlaveHAService) else None,
            epoch_began=epoch_began,
        )
        if opened.state.held:
            hands.hold(opened.state.held)
        self.executor = RoleExecutor(opened.state, hands, events)
        command = opened.role.command
        if isinstance(ha, SlaveHAService) and command is not None and command.ha_master:
            ha.set_master_address(command.ha_master)

    @property
    def state(self) -> RoleState:
        return self.executor.state

    @property
    def last_heard(self) -> LastHeard | None:
        return self._describe.last_heard

    def describe(self, role: RoleInForce | None = None) -> LineageBody:
        """Who we are and what our log is; in `role`, if we are about to be that."""
        executor = self.executor
        return self._describe.body(executor.state, role, changing=executor.changing)

    def ask(self, header: ExtHeader | Order) -> JSONBody:
        """Asks for a change of role; blocks.  Raises RequestError if it is refused."""
        if isinstance(header, PromoteHeader) and (why := self._unfit_tables()):
            raise refused(why)
        return self.executor.ask(header)

    def gauges(self) -> Mapping[str, str]:
        """Entries for request 28."""
        last = self.lineage.state.lineage.last
        role_from, role_why = self.role.told
        return {
            "brokerRole": self.role.role.value,
            "roleFrom": role_from,
            "roleWhy": role_why,
            "epoch": str(last.number if last is not None else -1),
            "unprovenTerm": self.state.unproven,
            "acknowledgedCut": cuts_text(self.lineage.root, self.lineage.state.acked_cuts),
        }

    def acknowledged_cut_bytes(self) -> int:
        """How much was cut here that a slave had acknowledged, and that lies in cut/ still."""
        return bytes_cut(self.lineage.root, self.lineage.state.acked_cuts)


def _nobody_asks_yet(_: RoleInForce | None = None) -> LineageBody:
    raise AssertionError("nothing is asked before the ports are open")


def _remembered(lineage: LineageFile) -> list[str]:
    """Brokers to ask whatever the nameservers say: replicas do not vanish because nobody registers them."""
    state = lineage.state
    return [*state.members.replicas.values(), *(one.broker_addr for one in state.replicas.values())]


def _is_copy(config: NodeConfig, lineage: LineageFile, heard: Heard) -> bool:
    original = original_of(
        lineage.state.replica_id, config.broker_addr, heard.peers, is_slave=config.broker.role.is_slave
    )
    if original:
        logger.warning("the store is a copy, this broker gets an id of its own of=%s", original)
    return bool(original)
