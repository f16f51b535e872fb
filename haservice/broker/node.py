"""BrokerNode: builds every part of a broker, starts them in order, stops them in reverse.

    part            thread                       needs
    client          remoting-client              keys and certificates; all calls to others use it
    store           –                            its lock; recovers, or refuses what it cannot trust
    lineage         –                            the store; asks the peers, a master begins its epoch
    tables          –                            topics.json, consumerOffset.json, subscriptionGroup.json
    log services    log-flush, log-dispatch, …   the store
    replication     ha-…                         the log
    clients' ports  remoting-loop, remoting-work everything above
    persistence     broker-persist               the tables
    repair          log-repair                   the store; the peers
    samples         ha-samples                   replication; the store
    slave sync      – (of the client's loop)     a slave's; the tables
    delays          delay-delivery               a master's; the store, delayOffset.json
    transactions    transaction-check            a master's; the store, the tables, the ports
    roles           role-keeper                  the store, replication; the peers
    registration    – (of the client's loop)     open ports, for a route leads here from now on

A start that fails stops what it had started, and raises the error.  A thread that fails makes the broker
unhealthy: the log and request 28 report it.  If the thread was one of those that make OK true or messages
readable, the broker refuses sends from then on; consumers can still read what is stored.

A node has one role.  To change it, the node is stopped and its successor started: `restart`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from commitlog.dispatch.dispatcher import Arrival, parse_delay_levels
from commitlog.kernel.records import encode_host
from commitlog.store import Store
from haservice.broker.acl.message_rights import MessageRights
from haservice.broker.acl.security import security_of
from haservice.broker.delay.delivery import DelayDelivery
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.groups.heartbeat import notify_members
from haservice.broker.handlers import (
    Parts,
    Processors,
    processors_of,
    sends_of,
    transaction_check_of,
    vip_processors_of,
)
from haservice.broker.metadata.next_start import check_store
from haservice.broker.metadata.reloadable_keys import follow_settings
from haservice.broker.metadata.tables import Tables
from haservice.broker.pull.long_polling import LongPolling
from haservice.broker.roles.executor import RoleEvents
from haservice.broker.roles.peer_repair import Repairer
from haservice.broker.roles.startup import Following, OpenedRole, RoleKeeper, RoleStartup
from haservice.broker.send import native
from haservice.broker.services import (
    durability_of,
    ha_samples_of,
    registration_of,
    replication_of,
    server_of,
    slave_sync_of,
)
from haservice.broker.stats.counters import Stats
from haservice.broker.transactions.half_messages import Ends
from haservice.configuration.live_settings import LiveSettings, file_of
from haservice.configuration.settings import NodeConfig
from haservice.deadline import Deadline
from haservice.errors import ConfigError
from haservice.remoting.client import RemotingClient
from haservice.remoting.server import RemotingServer
from haservice.replication.slave.service import SlaveHAService
from haservice.service import Service, Task

logger = logging.getLogger(__name__)

# A thread that gave up the GIL gets it back after so long at the latest, while another thread computes.
# Measured with SYNC_MASTER sends and a thread that computes half of the time: p99 9 ms with Python's 5 ms,
# 4.6 ms with this (64 in flight: 31 and 12 ms).  Without such a thread it makes no difference.
SWITCH_INTERVAL_S = 0.0005

STOP_SECONDS = 15.0
# What one part may take of it.
STEP_SECONDS = 5.0
# How long a stop waits for proofs that are under way before it answers without them.
PROOF_SECONDS = 1.0
# How long a start waits for the name servers' first answers; the broker serves meanwhile.
FIRST_ROUND_SECONDS = 3.0
TICK_SECONDS = 1.0
# An answer is in the socket by then; a client that did not get it asks again.
ANSWER_SECONDS = 0.02
EXPIRE_EVERY_TICKS = 10

# The broker reports every thread that fails.  If one of these fails it also refuses sends, for OK would not
# be true: the message would be on no disk, not readable, on no slave, not waited for after a power cut
# (ha-recorder), stored by a master that has been replaced, or never delivered or asked about.
VITAL_THREADS = frozenset(
    {
        *("log-flush", "log-dispatch", "ha-group-transfer", "ha-recorder", "role-keeper"),
        *("delay-delivery", "transaction-check"),
    }
)


class _Part(NamedTuple):
    name: str
    stop: Callable[[Deadline], object]


class BrokerNode:
    """One broker in one role, for one start and one stop."""

    def __init__(self, config: NodeConfig, *, heard: int = -1, trusted_end: int | None = None) -> None:
        """`config` is as its file says.  What a predecessor in this process knew: `heard`, the highest number
        of an epoch; `trusted_end`, where it closed the log, all in order.
        """
        self.file_config = config
        # As it is in force: the role may be another one by command.
        self.config = config
        self.live: LiveSettings[NodeConfig] = LiveSettings(
            config,
            path=file_of(config.source),
            black_list=config.broker.config_black_list,
            open_to_all=not config.acl.enabled,
            check=lambda following, asked: check_store(self.config, following, asked),
        )
        # Set when this broker is to be run again, in another role: what its successor starts with.
        self.restart: NodeConfig | None = None
        # Called in any thread when `restart` is set.
        self.on_restart: Callable[[], None] = lambda: None
        # Names of threads that failed, and why.
        self.failures: dict[str, str] = {}
        # Guards `failures` and whether sends are refused for them: a failure is never forgotten.
        self._failure_lock = threading.Lock()
        # Set when the node has stopped, or has to be stopped because its ports are gone.
        self.stopped = threading.Event()
        self._heard = heard
        self._trusted_end = trusted_end
        self._closed_end: int | None = None
        self._parts: list[_Part] = []
        # Guards `_parts` against a stop by a signal while another stop runs.
        self._stop_lock = threading.Lock()
        self._clean = True
        self._served = False
        self._stopping_sends = False

    # Life

    def start(self) -> None:
        """Returns when clients are served; or with all stopped and `restart` set, if there is a newer master.

        Raises ConfigError, CommitLogError or OSError, with all stopped.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            self._start()
        except BaseException:
            self.stop(Deadline(STOP_SECONDS))
            raise
        if self._served:
            self._say_ready()
        else:
            self.stop(Deadline(STOP_SECONDS))

    def stop(self, deadline: Deadline | None = None) -> None:
        """Ends every part, the last started first; may be called twice, and by any thread."""
        deadline = deadline or Deadline(STOP_SECONDS)
        with self._stop_lock:
            while self._parts:
                part = self._parts.pop()
                try:
                    if part.stop(Deadline(min(STEP_SECONDS, deadline.remaining))) is False:
                        self._clean = False
                except Exception:
                    self._clean = False
                    logger.exception("part did not stop cleanly part=%s", part.name)
        if not self.stopped.is_set():
            self.stopped.set()
            if self._served:  # if a start was refused, the error says all
                logger.info("broker stopped broker=%s clean=%s", self.config.broker.broker_name, self._clean)

    @property
    def failed(self) -> BaseException | None:
        """What ended the clients' ports, if it was not stop()."""
        return self.server.failed if self._served else None

    def successor(self) -> BrokerNode | None:
        """The node to start in this process once this one has stopped; None if there is none."""
        if self.restart is None:
            return None
        return BrokerNode(self.restart, heard=self._roles.state.heard, trusted_end=self._closed_end)

    def again(self) -> BrokerNode:
        """The same node anew, after a refused start; without `trusted_end`, for it saw no log in order."""
        return BrokerNode(self.file_config, heard=self._heard)

    def _turn(self, why: str) -> None:
        logger.warning("the broker stops and starts again in this process why=%s", why)
        self.restart = self.startup.file_config_of(self.live.config)
        self.on_restart()

    def _turn_soon(self, why: str) -> None:
        """Calls _turn() once the answers until now have gone out; any thread."""
        self.server.call_soon(self.server.loop.call_later, ANSWER_SECONDS, self._turn, why)

    def _start(self) -> None:
        self.security = security_of(self.file_config)
        self.client = self.security.make_client(self._thread_failed)
        self._started("client", self.client.close)
        self._roles: RoleStartup | RoleKeeper = RoleStartup(self.file_config, self.client, self._heard)
        self.startup = self._roles
        self.config = self.live.config = self.startup.config
        self._is_slave = self.config.broker.role.is_slave
        self.store = self._open_store()
        opened = self.startup.open(self.store)
        if isinstance(opened, str):
            self._turn(opened)
            return
        self._take_tables()
        self._build_services(opened)
        self._build_processors()
        self._hear_of_the_store()
        for name, task in self.store.tasks():
            self._run(name, task)
        self._started("replication", self.ha.stop)
        self.ha.start()
        self._started("clients' ports", self.server.stop)
        self.server.start()
        self._started("sends", self._stop_sends)
        self.server.call_soon(self._tick)
        self._run("broker-persist", self.persistence)
        self._run("log-repair", self.repairer)
        if self.ha_samples is not None:
            self._run("ha-samples", self.ha_samples)
        if self._is_slave:
            self._run_on_loop("slave-sync", self.slave_sync.run)
        else:
            self._run("delay-delivery", self.delivery)
            self._run("transaction-check", self.transaction_check)
        self._run("role-keeper", self.standing.executor)
        self._served = True
        if self.config.broker.namesrv_addrs:
            self._run_on_loop("register", self.registration.run)
            self.registration.first_round.wait(FIRST_ROUND_SECONDS)

    # Building

    def _open_store(self) -> Store:
        config = self.config
        try:
            store_host = encode_host(config.broker.broker_ip1, config.remoting.listen_port)
        except OSError:
            raise ConfigError(
                config.source, 0, "brokerIP1", "not an IP address", config.broker.broker_ip1
            ) from None
        self._store_host = store_host
        store = Store.open(config.log, store_host=store_host, trusted_end=self._trusted_end)
        self._started("store", lambda _: self._close_store(store))
        return store

    def _close_store(self, store: Store) -> bool:
        """A master that must begin anew does not close the store as clean: its next start sees the same."""
        clean = store.close(clean=self._clean and not self._roles.state.must_begin_anew)
        if clean:
            self._closed_end = store.log.end
        return clean

    def _take_tables(self) -> None:
        self.tables = Tables(self.config, self.store)
        self.topics, self.offsets, self.groups = self.tables.topics, self.tables.offsets, self.tables.groups
        self.delays, self.filters = self.tables.delays, self.tables.filters
        self.persistence = self.tables.persistence
        self.topics.on_change = self._topics_changed
        self.groups.on_change = self.persistence.soon
        self._started("tables", lambda _: self.tables.close())

    def _build_services(self, opened: OpenedRole) -> None:
        """Builds what has threads, and connects it; the ports' processors are filled in later."""
        config, store, lineage, events = self.config, self.store, opened.lineage, RoleEvents()
        self.long_polling = LongPolling(on_awaited=store.dispatcher.hurry)
        self._processors: Processors = {}
        self._vip_processors: Processors = {}
        self.server: RemotingServer = server_of(config, self.security, self._processors, self._vip_processors)
        self.ha = replication_of(
            config,
            store,
            lineage,
            self.security,
            self.server,
            on_acked=lambda waits, ok: self.durability.replicated(waits, ok),  # noqa: PLW0108  # built later
            on_mark=self.long_polling.on_mark,
            on_ahead=events.on_ahead,
            on_heard=events.on_heard,
            on_failure=self._thread_failed,
        )
        self._slave = self.ha if isinstance(self.ha, SlaveHAService) else None
        self.durability = durability_of(config, store, self.ha, self.server)
        self.ha_samples = ha_samples_of(config, store, self.ha)
        self.slave_sync = slave_sync_of(config, self.tables)
        following = Following(config.replication, self._slave, self.slave_sync)
        self.registration = registration_of(
            config,
            self.tables,
            lineage,
            on_master=following.master_found,
            master_wanted=self._master_wanted,
            on_newer=(lambda _, __: None) if self._is_slave else events.told_of,
        )
        self._roles = self.standing = RoleKeeper(
            opened,
            self.ha,
            self.slave_sync,
            following,
            events,
            turn=self._turn_soon,
            announce=self.registration.announce,
        )
        self.repairer = Repairer(store.log, self.standing.sources, self.standing.peers.reading)
        follow_settings(
            self.live,
            groups=self.groups,
            topics=self.topics,
            offsets=self.offsets,
            persistence=self.persistence,
            retention=store.retention,
            durability=self.durability,
            registration=self.registration,
        )

    def _build_processors(self) -> None:
        config, broker, store = self.config, self.config.broker, self.store
        self.stats = Stats()
        self.clients = ClientTable(
            notify_members(self.groups, enabled=broker.notify_consumer_ids_changed_enable), self.filters
        )
        self.delivery = DelayDelivery(
            store.log,
            store.queues.get,
            self.delays,
            parse_delay_levels(config.log.message_delay_levels),
            held=lambda: self.sends.refuse_all or store.log.writable,
            persist_s=broker.flush_delay_offset_interval_ms / 1000,
            mend=store.mender.mend,
        )
        parts = Parts(
            config=config,
            store=store,
            store_host=self._store_host,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            filters=self.filters,
            offsets=self.offsets,
            delays=self.delays,
            stats=self.stats,
            server=self.server,
            ha=self.ha,
            durability=self.durability,
            long_polling=self.long_polling,
            transaction_ends=Ends(),
            gauges=self._gauges,
            told=self.registration.told,
            live=self.live,
            roles=self.standing,
            rights=MessageRights(self.security.acl if config.acl.follows_message else None, self.clients),
            acl=self.security.acl,
        )
        self.sends = sends_of(parts)
        self._processors.update(processors_of(parts, self.sends))
        self._vip_processors.update(vip_processors_of(self._processors))
        self.transaction_check = transaction_check_of(parts, self.sends, self.persistence.soon)

    def _hear_of_the_store(self) -> None:
        """Connects the store's callbacks to the parts built from it; its threads start after this."""
        store = self.store
        store.flusher.on_done = self.durability.flushed
        store.flusher.on_flushed = self.long_polling.on_mark
        store.dispatcher.on_arrival = self._arrived
        store.dispatcher.awaited = lambda: len(self.long_polling) > 0
        store.log.on_fences = lambda _: self.repairer.wake()

    # Running

    def _run(self, name: str, task: Task) -> None:
        service = Service(name, task, on_failure=self._thread_failed)
        service.start()
        self._started(name, service.stop)

    def _run_on_loop(self, name: str, work: Callable[[RemotingClient], Coroutine[Any, Any, None]]) -> None:
        task = self.client.task(name, work, self._thread_failed)
        task.start()
        self._started(name, task.stop)

    def _started(self, name: str, stop: Callable[[Deadline], object]) -> None:
        self._parts.append(_Part(name, stop))

    def _tick(self, count: int = 0) -> None:
        """Once a second, on the loop."""
        self.server.loop.call_later(TICK_SECONDS, self._tick, count + 1)
        self.stats.sample()
        self.security.poll(self.server.offload)
        self.store.flusher.expire(time.monotonic())
        self.durability.sweep()
        self.long_polling.recheck()  # without a report the mark moves, too: when the last slave goes
        if count % EXPIRE_EVERY_TICKS == 0:
            self.clients.expire(time.monotonic())
            self.filters.expire()
        self._heed_trouble(self.store.dispatcher.trouble)
        damage = self.store.dispatcher.failed
        if damage is not None and "log-dispatch" not in self.failures:
            self._unhealthy("log-dispatch", damage)

    def _heed_trouble(self, trouble: str | None) -> None:
        """Refuses sends only while queues or index cannot take them, as RocketMQ does."""
        with self._failure_lock:
            if not VITAL_THREADS & self.failures.keys() and not self._stopping_sends:
                self.sends.refuse_all = trouble

    def _thread_failed(self, name: str, error: BaseException) -> None:
        self._unhealthy(name, f"{type(error).__name__}: {error}")

    def _unhealthy(self, name: str, reason: str) -> None:
        with self._failure_lock:
            self.failures = {**self.failures, name: reason}  # a copy, for others may be iterating
            if name in VITAL_THREADS:
                self.sends.refuse_all = f"thread {name} has failed: {reason}"
        if name in VITAL_THREADS:
            logger.error("sends are refused from now on thread=%s reason=%s", name, reason)

    def _topics_changed(self) -> None:
        self.persistence.soon()
        self.registration.announce()

    def _arrived(self, arrivals: list[Arrival]) -> None:
        """Passes arrivals to held pulls, and to the delivery or, on a slave, to the fetching of topics."""
        if self._is_slave:
            self.slave_sync.on_arrival(arrivals)
        else:
            self.delivery.on_arrival(arrivals)
        self.long_polling.on_arrival(arrivals)

    def _master_wanted(self) -> bool:
        return self._slave is not None and not self._slave.connected

    def _stop_sends(self, deadline: Deadline) -> None:
        """Takes no more sends; answers waiting ones, with their proofs if these come soon, else without."""
        self._stopping_sends = True
        self.sends.refuse_all = "the broker is shutting down"
        patience = Deadline(min(PROOF_SECONDS, deadline.remaining))
        while self.sends.pending and not patience.expired:
            time.sleep(0.005)
        settled = threading.Event()
        self.server.call_soon(self._settle_sends, settled)
        settled.wait(deadline.remaining)

    def _settle_sends(self, settled: threading.Event) -> None:
        self.durability.settle_all()
        self.long_polling.stop()
        settled.set()

    def _gauges(self) -> Mapping[str, str]:
        """Entries of request 28 that need several parts, and our own entries."""
        broker = self.live.config.broker
        return {
            **self.delivery.gauges(),
            "kernelBuild": native.build(),
            "dispatchBehindBytes": str(self.store.dispatcher.behind),
            "damagedRanges": self.store.log.damaged_text,
            "nextSegmentNotMade": self.store.flusher.next_segment_trouble,
            "inSyncReplicas": str(self.config.replication.in_sync_replicas),
            "passDamagedMessages": str(broker.pass_damaged_messages).lower(),
            "startAcceptSendRequestTimeStamp": str(broker.start_accept_send_timestamp_ms),
            "sendThreadPoolQueueSize": str(self.sends.pending),
            "sendThreadPoolQueueCapacity": str(broker.max_pending_sends),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            **self.standing.gauges(),
            "metadataNotCopied": self.slave_sync.refused,
            "notRegistered": self.registration.trouble,
            "consumerOffsets": str(len(self.offsets)),
            "consumerOffsetsNotKept": self.offsets.full,
            "heldPulls": str(len(self.long_polling)),
            "clientConnections": str(self.server.connections),
            "failedThreads": ", ".join(f"{name}: {why}" for name, why in self.failures.items()),
            "refusesSends": self.sends.refuse_all or self.store.log.writable or "",
        }

    def _say_ready(self) -> None:
        """RocketMQ's own line, which people and scripts wait for."""
        config = self.config
        line = (
            f"The broker[{config.broker.broker_name}, {config.broker_addr}] boot success. serializeType=JSON"
        )
        if config.broker.namesrv_addrs:
            line += f" and name server is {';'.join(config.broker.namesrv_addrs)}"
        print(line, flush=True)
