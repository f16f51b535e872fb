"""BrokerNode: opens the store, settles its role, starts every part in order, stops them in reverse.

    part            thread                       needs
    client          remoting-client              keys and certificates; all calls to others use it
    store           –                            its lock; recovers, or refuses what it cannot trust
    lineage         –                            the store; asks the peers, a master begins its epoch
    tables          –                            topics.json, consumerOffset.json, subscriptionGroup.json
    (all others)    –                            built by assembly.py from those above
    log services    log-flush, log-dispatch, …   the store
    replication     ha-…                         the log
    clients' ports  remoting-loop, remoting-work everything above
    monitoring      metrics-http                 metricsListenAddr; all parts, which it only reads
    persistence     broker-persist               the tables
    repair          log-repair                   the store; the peers
    samples         ha-samples                   replication; the store
    lease           lease-keeper (the daemon's)  with haCoordinator: all parts; given back before replication ends
    group           dledger-… (the daemon's)     with enableDLegerCommitLog: the log; handed over before the ports close
    slave sync      – (of the client's loop)     a slave's; the tables
    delays          delay-delivery               a master's; the store, delayOffset.json
    transactions    transaction-check            a master's; the store, the tables, the ports
    roles           role-keeper                  the store, replication; the peers
    registration    – (of the client's loop)     open ports, for a route leads here from now on

A start that fails stops what it had started, and raises the error.  What follows a thread that fails is
health.py's.  A node has one role.  To change it, the node is stopped and its successor started: `restart`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from commitlog.store import Store
from haservice.broker.acl.security import security_of
from haservice.broker.assembly import BrokerParts, Opened, assemble
from haservice.broker.health import Health
from haservice.broker.lease.keeper import LeaseKeeper
from haservice.broker.lease.office import RunningBroker
from haservice.broker.lease.start import leads
from haservice.broker.majority.ha import MajorityHA
from haservice.broker.majority.member import BrokerMember
from haservice.broker.majority.startup import MajorityStartup, attach, check_is_classic
from haservice.broker.metadata.tables import Tables
from haservice.broker.metrics.port import open_monitoring
from haservice.broker.roles.describe import LastHeard
from haservice.broker.roles.startup import OpenedRole, RoleKeeper, RoleStartup
from haservice.broker.roles.state import RoleState
from haservice.broker.running import Running
from haservice.broker.services import check_ports, live_settings_of, store_host_of
from haservice.broker.store_owner import REFUSES_ALL, Accepted, check_owner, note_owner
from haservice.configuration.live_settings import ConfigChange
from haservice.configuration.settings import NodeConfig
from haservice.deadline import Deadline
from haservice.supervisor import Supervisor, ThreadEnded
from haservice.watched_files import read_again

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A thread that gave up the GIL gets it back after so long at the latest, while another thread computes.
# Measured with SYNC_MASTER sends and a thread that computes half of the time: p99 9 ms with Python's 5 ms,
# 4.6 ms with this (64 in flight: 31 and 12 ms).  Without such a thread it makes no difference.
SWITCH_INTERVAL_S = 0.0005

STOP_SECONDS = 15.0
# How long a stop waits for proofs that are under way before it answers without them.
PROOF_SECONDS = 1.0
# How long a start waits for the nameservers' first answers; the broker serves meanwhile.
FIRST_ROUND_SECONDS = 3.0
TICK_SECONDS = 1.0
EXPIRE_EVERY_TICKS = 10


class _Shown(Generic[T]):
    """A part as an attribute of its node, once the node has its parts; for tests, which look at nodes."""

    def __init__(self, of: Callable[[BrokerParts], T]) -> None:
        self._of = of

    def __get__(self, node: BrokerNode, _: type[BrokerNode]) -> T:
        return self._of(node.parts)


class BrokerNode:
    """One broker in one role, for one start and one stop."""

    live = _Shown(lambda parts: parts.live)
    store = _Shown(lambda parts: parts.store)
    tables = _Shown(lambda parts: parts.tables)
    topics = _Shown(lambda parts: parts.tables.topics)
    groups = _Shown(lambda parts: parts.tables.groups)
    offsets = _Shown(lambda parts: parts.tables.offsets)
    delays = _Shown(lambda parts: parts.tables.delays)
    persistence = _Shown(lambda parts: parts.tables.persistence)
    server = _Shown(lambda parts: parts.server)
    ha = _Shown(lambda parts: parts.ha)
    long_polling = _Shown(lambda parts: parts.long_polling)
    durability = _Shown(lambda parts: parts.durability)
    ha_samples = _Shown(lambda parts: parts.ha_samples)
    slave_sync = _Shown(lambda parts: parts.slave_sync)
    registration = _Shown(lambda parts: parts.registration)
    standing = _Shown(lambda parts: parts.standing)
    repairer = _Shown(lambda parts: parts.repairer)
    stats = _Shown(lambda parts: parts.stats)
    clients = _Shown(lambda parts: parts.clients)
    sends = _Shown(lambda parts: parts.sends)
    delivery = _Shown(lambda parts: parts.delivery)
    transaction_check = _Shown(lambda parts: parts.transaction_check)

    def __init__(
        self,
        config: NodeConfig,
        *,
        heard: int = -1,
        trusted_end: int | None = None,
        last_heard: LastHeard | None = None,
        lease: LeaseKeeper | None = None,
        leads: bool = False,
        member: BrokerMember | None = None,
        accepted: Accepted = REFUSES_ALL,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`config` is as its file says.  What a predecessor in this process knew: `heard`, the highest number
        of an epoch; `trusted_end`, where it closed the log, all in order; `last_heard`, what it knew of its master's
        log; `leads`, that it was promoted.

        `lease` is the process's part in failover by a coordinator, None without haCoordinator; `member` its member of
        a DLedger group, None without enableDLegerCommitLog.  `accepted`: what would refuse this start otherwise.
        `supervisor` knows which threads of the process have ended, those of nodes before this one too.
        """
        self.file_config = config
        # As it is in force: the role may be another one by command.
        self.config = config
        # Set when this broker is to be run again, in another role: what its successor starts with.
        self.restart: NodeConfig | None = None
        # Called in any thread when `restart` is set.
        self.on_restart: Callable[[], None] = lambda: None
        self._supervisor = supervisor or Supervisor()
        self.health = Health(self._supervisor)
        # Set when the node has stopped, or has to be stopped because its ports are gone.
        self.stopped = threading.Event()
        self._lease = lease
        self._member = member
        self._accepted = accepted
        self._leads = leads or lease is None
        self._heard = heard
        self._trusted_end = trusted_end
        self._last_heard = last_heard
        self._closed_end: int | None = None
        self._running = Running()
        self._startup: RoleStartup | MajorityStartup | None = None
        self._parts: BrokerParts | None = None
        self._served = False

    @property
    def parts(self) -> BrokerParts:
        """From `start` on, if it did not find a newer master."""
        assert self._parts is not None, "the broker has not been started"
        return self._parts

    # Life

    def start(self) -> None:
        """Returns when clients are served; or with all stopped and `restart` set, if there is a newer master.

        Raises ConfigError, CommitLogError or OSError, with all stopped.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            self._parts = self._open()
            if self._parts is not None:
                self._serve(self._parts)
        except BaseException:
            self.stop(Deadline(STOP_SECONDS))
            raise
        if self._served:
            self._say_ready()
        else:
            self.stop(Deadline(STOP_SECONDS))

    def stop(self, deadline: Deadline | None = None) -> None:
        """Ends every part, the last started first; may be called twice, and by any thread."""
        self._running.stop(deadline or Deadline(STOP_SECONDS))
        if not self.stopped.is_set():
            self.stopped.set()
            if self._served:  # if a start was refused, the error says all
                logger.info(
                    "broker stopped broker=%s clean=%s", self.config.broker.broker_name, self._running.clean
                )

    @property
    def failed(self) -> ThreadEnded | None:
        """Why the process has to end, if a thread has ended for good."""
        return self._supervisor.fatal

    def reload(self) -> ConfigChange:
        """Takes what the file says by now, of the keys that change while a broker runs.  Raises ConfigError."""
        live = self.parts.live
        change = live.reread()
        if change.live:
            self.parts.server.call_soon(live.apply, change)
        return change

    def read_files_again(self) -> str:
        """Accounts, keys and certificates, at once; says what was read.  Waits for the disk."""
        return read_again(self.parts.security.watched())

    def successor(self) -> BrokerNode | None:
        """The node to start in this process once this one has stopped; None if there is none."""
        if self.restart is None:
            return None
        standing = self._parts.standing if self._parts is not None else None
        keeper = standing if isinstance(standing, RoleKeeper) else None
        return BrokerNode(
            self.restart,
            heard=self._role_state.heard,
            trusted_end=self._closed_end,
            last_heard=keeper.last_heard if keeper is not None else None,
            lease=self._lease,
            leads=keeper is not None and leads(keeper.lineage.state),
            member=self._member,
            supervisor=self._supervisor,
        )

    def again(self) -> BrokerNode:
        """The same node anew, after a refused start; without `trusted_end`, for it saw no log in order."""
        return BrokerNode(
            self.file_config,
            heard=self._heard,
            last_heard=self._last_heard,
            lease=self._lease,
            leads=self._leads,
            member=self._member,
            accepted=self._accepted,
            supervisor=self._supervisor,
        )

    @property
    def _role_state(self) -> RoleState:
        """As far as it is known by now."""
        if self._parts is not None:
            return self._parts.standing.state
        assert self._startup is not None, "nothing is known of a role before a start"
        return self._startup.state

    def _turn(self, why: str, following: NodeConfig) -> None:
        logger.warning("the broker stops and starts again in this process why=%s", why)
        self.restart = following
        self.on_restart()

    # Starting

    def _open(self) -> BrokerParts | None:
        """Opens the store, settles the role and builds every part; None if there is a newer master."""
        security = security_of(self.file_config)
        client = security.make_client(self._supervisor.never)
        self._running.add("client", client.close)
        member = self._member
        startup: RoleStartup | MajorityStartup
        if member is None:
            startup = RoleStartup(
                self.file_config, client, self._heard, leads=self._leads, before=self._last_heard
            )
        else:
            startup = MajorityStartup(self.file_config, member)
        self._startup = startup
        config = self.config = startup.config
        live = live_settings_of(config, self.file_config)
        store_host = store_host_of(config)
        owner = check_owner(self.file_config, self._accepted)
        if member is None:
            check_is_classic(config.log)
            store = Store.open(config.log, store_host=store_host, trusted_end=self._trusted_end)
        else:
            store = member.open_store(config, store_host)
        self._running.add("store", lambda _: self._close_store(store))
        note_owner(self.file_config, owner)
        check_ports(config, security)

        def turn(why: str) -> None:
            self._turn(why, startup.file_config_of(live.config))

        role = startup.open(store)
        if isinstance(role, str):
            turn(role)
            return None
        tables = Tables(
            config,
            store,
            epoch_begins=isinstance(role, OpenedRole) and role.begins_epoch,
            accept_empty=self._accepted.empty,
        )
        self._running.add("tables", lambda _: tables.close())
        opened = Opened(role, store_host, tables, security, client, live, self.health, self._lease)
        return assemble(opened, turn)

    def _serve(self, parts: BrokerParts) -> None:
        running, supervisor = self._running, self._supervisor
        supervisor.begins()
        again, always = supervisor.again, supervisor.always
        for name, task in parts.store.tasks():
            # A pass of the dispatch that broke off may have written half of what it was to write.
            vital = {"log-dispatch": supervisor.never, "log-flush": again}
            running.run(name, task, vital.get(name, always))
        running.add("replication", parts.ha.stop)
        parts.ha.start()
        running.add("clients' ports", parts.server.stop)
        parts.server.start(parts.listeners)
        if (monitoring := open_monitoring(parts, self.health)) is not None:
            running.add("monitoring", monitoring.stop)
        if self._lease is not None:
            running.add("lease", self._leave)
        if self._member is not None:
            running.add("group", self._leave_group)
            attach(self._member, parts, self.health)
        running.add("sends", lambda deadline: self._stop_sends(parts, deadline))
        parts.server.call_soon(self._tick, parts)
        running.run("broker-persist", parts.tables.persistence, again)
        running.run("log-repair", parts.repairer, always)
        if parts.ha_samples is not None:
            running.run("ha-samples", parts.ha_samples, always)
        if parts.is_slave:
            running.run_on_loop("slave-sync", parts.client, parts.slave_sync.run, again)
        else:
            running.run("delay-delivery", parts.delivery, again)
            running.run("transaction-check", parts.transaction_check, again)
        # A machine of roles that broke off has lost the result that it waits for; of a group's, nothing waits.
        running.run(
            "role-keeper", parts.standing.executor, supervisor.never if self._member is None else again
        )
        self._served = True
        if self._lease is not None:
            assert isinstance(self._startup, RoleStartup)
            self._lease.attach(self._running_broker(parts, may_be_first=self._startup.may_be_first))
        if parts.config.broker.namesrv_addrs:
            registration = parts.registration
            running.run_on_loop("register", parts.client, registration.run, again, registration.leave)
            parts.registration.first_round.wait(FIRST_ROUND_SECONDS)

    def _running_broker(self, parts: BrokerParts, *, may_be_first: bool) -> RunningBroker:
        role = parts.standing
        assert isinstance(role, RoleKeeper)
        assert not isinstance(parts.ha, MajorityHA)
        return RunningBroker(
            parts.config,
            parts.store,
            role.lineage,
            role.executor,
            role.peers,
            parts.ha,
            may_be_first,
            self.health,
            lambda: parts.tables.awaited.why,
        )

    def _say_ready(self) -> None:
        """RocketMQ's own line, which people and scripts wait for."""
        config = self.config
        line = (
            f"The broker[{config.broker.broker_name}, {config.broker_addr}] boot success. serializeType=JSON"
        )
        if config.broker.namesrv_addrs:
            line += f" and name server is {';'.join(config.broker.namesrv_addrs)}"
        print(line, flush=True)

    # Running

    def _tick(self, parts: BrokerParts, count: int = 0) -> None:
        """Once a second, on the loop."""
        parts.server.loop.call_later(TICK_SECONDS, self._tick, parts, count + 1)
        parts.stats.sample()
        parts.security.poll(parts.server.offload_quietly)
        parts.store.flusher.expire(time.monotonic())
        parts.durability.sweep()
        parts.long_polling.recheck()  # without a report the mark moves, too: when the last slave goes
        if count % EXPIRE_EVERY_TICKS == 0:
            parts.clients.expire(time.monotonic())
            parts.tables.filters.expire()
        trouble = parts.store.dispatcher.trouble
        self.health.dispatch_is(trouble, parts.store.dispatcher.failed)
        if self._member is not None:
            self._member.unwell(self.health.why_vital or trouble or parts.tables.awaited.why)

    # Stopping

    def _leave(self, deadline: Deadline) -> None:
        """Nothing is appended any more; slaves still follow.  A broker that stops for good gives its lease back."""
        assert self._lease is not None
        if self.restart is None and self._served:
            self._lease.leave(deadline)
        else:
            self._lease.detach()

    def _leave_group(self, deadline: Deadline) -> None:
        """Nothing is appended any more.  A leader that stops for good hands over first."""
        assert self._member is not None
        if self.restart is None and self._served:
            self._member.hand_over(deadline)
        self._member.detach()

    def _stop_sends(self, parts: BrokerParts, deadline: Deadline) -> None:
        """Takes no more sends; answers waiting ones, with their proofs if these come soon, else without."""
        self.health.stopping()
        patience = Deadline(min(PROOF_SECONDS, deadline.remaining))
        while parts.sends.pending and not patience.expired:
            time.sleep(0.005)
        settled = threading.Event()

        def settle() -> None:
            parts.durability.settle_all()
            parts.long_polling.stop()
            settled.set()

        parts.server.call_soon(settle)
        settled.wait(deadline.remaining)

    def _close_store(self, store: Store) -> bool:
        """A master that must begin anew does not close the store as clean: its next start sees the same.  Nor does a
        broker whose dispatch broke off, for it may have written half of what it was to write.
        """
        fatal = self._supervisor.fatal
        broke_off = self._role_state.must_begin_anew or (fatal is not None and fatal.name == "log-dispatch")
        clean = store.close(clean=self._running.clean and not broke_off)
        if clean:
            self._closed_end = store.log.end
        return clean
