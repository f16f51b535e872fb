"""Assembly: every part of a broker, each built from the parts that it uses.

    store, role, tables   are opened by the node; here nothing touches the disk but a look at transactions
    long polling, server  need nothing of each other; the server takes its ports when it starts
    replication           the log; answers through the server's loop
    durability            the flusher and replication
    registration, roles   the tables; what a slave follows
    sends                 durability
    delays, transactions  the sends
    processors            everything above

Nothing runs yet.  A part that has to call one that is built after it does so through `connect`, and no other
way: those are all calls that go up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from commitlog.dispatch.dispatcher import Arrival, parse_delay_levels
from commitlog.dledger.log import MajorityLog
from commitlog.store import Store
from haservice.broker.acl.message_rights import MessageRights
from haservice.broker.acl.recipients import Recipients
from haservice.broker.acl.security import Security
from haservice.broker.delay.delivery import DelayDelivery
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.groups.notices import Notices
from haservice.broker.handlers import Parts, processors_of, sends_of, transaction_check_of
from haservice.broker.health import Health
from haservice.broker.lease.keeper import LeaseKeeper
from haservice.broker.majority.classic import ClassicPart
from haservice.broker.majority.ha import MajorityHA
from haservice.broker.majority.keeper import MajorityKeeper, OpenedMember
from haservice.broker.majority.proof import MajorityProof
from haservice.broker.metadata.registration import Registration
from haservice.broker.metadata.reloadable_keys import follow_settings
from haservice.broker.metadata.slave_sync import SlaveSync
from haservice.broker.metadata.tables import Tables
from haservice.broker.pull.long_polling import LongPolling
from haservice.broker.roles.executor import RoleEvents
from haservice.broker.roles.peer_repair import Repairer
from haservice.broker.roles.peers import Peers
from haservice.broker.roles.startup import FollowedMaster, OpenedRole, RoleKeeper
from haservice.broker.send.durability import Durability, ReplicaProof, Wait
from haservice.broker.send.processor import SendProcessor
from haservice.broker.services import (
    durability_of,
    ha_samples_of,
    listeners_of,
    registration_of,
    replication_of,
    slave_sync_of,
)
from haservice.broker.stats.counters import Stats
from haservice.broker.stats.gauges import Gauges
from haservice.broker.stats.ha_samples import HASamples
from haservice.broker.transactions.check import TransactionCheck
from haservice.broker.transactions.half_messages import Ends
from haservice.configuration.live_settings import LiveSettings
from haservice.configuration.settings import NodeConfig
from haservice.remoting.client import BlockingClient
from haservice.remoting.server import Listener, RemotingServer
from haservice.replication.master.service import MasterHAService
from haservice.replication.slave.service import SlaveHAService

# An answer is in the socket by then; a client that did not get it asks again.
ANSWER_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Opened:
    """What a node has opened, and decided, before the other parts are built."""

    role: OpenedRole | OpenedMember
    store_host: bytes
    tables: Tables
    security: Security
    client: BlockingClient
    live: LiveSettings[NodeConfig]
    health: Health
    lease: LeaseKeeper | None = None
    """The process's part in failover by a coordinator, if there is one."""


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """Every part that is started, stopped or looked at.  `ha_samples` is None if there are none."""

    config: NodeConfig
    live: LiveSettings[NodeConfig]
    security: Security
    client: BlockingClient
    store: Store
    tables: Tables
    server: RemotingServer
    listeners: tuple[Listener, ...]
    ha: MasterHAService[Wait] | SlaveHAService | MajorityHA
    long_polling: LongPolling
    durability: Durability
    ha_samples: HASamples | None
    slave_sync: SlaveSync
    registration: Registration
    standing: RoleKeeper | MajorityKeeper
    repairer: Repairer
    stats: Stats
    clients: ClientTable
    sends: SendProcessor
    delivery: DelayDelivery
    transaction_check: TransactionCheck
    lease: LeaseKeeper | None = None

    @property
    def is_slave(self) -> bool:
        return self.config.broker.role.is_slave


def assemble(opened: Opened, turn: Callable[[str], None]) -> BrokerParts:
    """Builds the parts and connects them.  `turn` is called on the loop, with the reason, when the broker has
    to start again in another role.
    """
    role, tables, security, live = opened.role, opened.tables, opened.security, opened.live
    config, store, broker = role.config, role.store, role.config.broker
    lease, events, stats = opened.lease, RoleEvents(), Stats()
    gate = lease.gate if lease is not None else None
    long_polling = LongPolling(on_awaited=store.dispatcher.hurry)
    server = RemotingServer(
        [],
        config.remoting.idle_seconds,
        on_failure=opened.health.supervisor.never,
        unread_bytes_max=config.remoting.unread_bytes_max,
    )
    # Once the answers until now have gone out.
    turn_soon = partial(server.call_soon, _later, server, turn)
    slave_sync = slave_sync_of(config, tables, store)
    ha: MasterHAService[Wait] | SlaveHAService | MajorityHA
    if isinstance(role, OpenedMember):
        proof = MajorityProof(server)
        ha = MajorityHA(role.member, broker.role, store.log, proof)
    else:
        ha = replication_of(
            config,
            store,
            role.lineage,
            security,
            server,
            on_mark=long_polling.on_mark,
            on_ahead=events.on_ahead,
            on_heard=events.on_heard,
            supervisor=opened.health.supervisor,
            by_voters=gate is not None,
            on_lost=lease.wake if lease is not None else lambda: None,
            on_greeted=slave_sync.greeted,
            on_cut=tables.end_offsets,
        )
    slave = slave_sync.link = ha if isinstance(ha, SlaveHAService) else None
    durability = durability_of(config, store, _replica_proof(ha), server, gate)
    following = FollowedMaster(config.replication, slave, slave_sync)
    registration = registration_of(
        config,
        tables,
        epoch=partial(_epoch, role),
        on_master=following.master_found,
        master_wanted=partial(_master_wanted, ha, slave_sync),
        on_newer=(lambda _, __: None)
        if broker.role.is_slave or isinstance(role, OpenedMember)
        else events.told_of,
    )
    standing: RoleKeeper | MajorityKeeper
    if isinstance(role, OpenedMember):
        peers = Peers(
            *(broker.broker_name, config.broker_addr, broker.namesrv_addrs, opened.client), lambda: ()
        )
        standing = MajorityKeeper(
            role, peers=peers, turn=turn_soon, master_addr=lambda: slave_sync.master_addr
        )
    else:
        assert not isinstance(ha, MajorityHA)
        standing = RoleKeeper(
            role,
            ha,
            slave_sync,
            following,
            events,
            turn=turn_soon,
            announce=registration.announce,
            epoch_began=tables.end_offsets,
            unfit_tables=lambda: tables.awaited.why,
        )
    follow_settings(
        live,
        groups=tables.groups,
        topics=tables.topics,
        offsets=tables.offsets,
        persistence=tables.persistence,
        retention=store.retention,
        durability=durability,
        registration=registration,
    )
    notices = Notices(tables.groups, enabled=broker.notify_consumer_ids_changed_enable)
    clients = ClientTable(notices.changed, tables.filters)
    parts = Parts(
        config=config,
        store=store,
        store_host=opened.store_host,
        topics=tables.topics,
        groups=tables.groups,
        clients=clients,
        filters=tables.filters,
        offsets=tables.offsets,
        delays=tables.delays,
        stats=stats,
        server=server,
        ha=ha,
        durability=durability,
        long_polling=long_polling,
        transaction_ends=Ends(),
        told=registration.told,
        live=live,
        roles=standing,
        rights=MessageRights(security.acl if config.acl.follows_message else None, clients),
        recipients=Recipients(security.acl),
        acl=security.acl,
        lease=lease,
    )
    sends = sends_of(parts)
    delivery = DelayDelivery(
        store.log,
        store.queues.get,
        tables.delays,
        parse_delay_levels(config.log.message_delay_levels),
        held=lambda: sends.refuse_all or store.log.writable,
        persist_s=broker.flush_delay_offset_interval_ms / 1000,
        mend=store.mender.mend,
        queue_to_deliver=tables.topics.queue_to_deliver,
        floor_of=store.queues.floors.of,
        on_delivered=stats.delivered,
    )
    gauges = Gauges(
        live,
        store,
        opened.health,
        server,
        sends,
        long_polling,
        tables.offsets,
        delivery,
        standing,
        slave_sync,
        registration,
        security,
        in_sync_replicas=config.replication.in_sync_replicas,
        lease=lease,
    )
    processors = processors_of(parts, sends, gauges)
    built = BrokerParts(
        config=config,
        live=live,
        security=security,
        client=opened.client,
        store=store,
        tables=tables,
        server=server,
        listeners=listeners_of(config, security, processors),
        ha=ha,
        long_polling=long_polling,
        durability=durability,
        ha_samples=ha_samples_of(config, store, ha),
        slave_sync=slave_sync,
        registration=registration,
        standing=standing,
        repairer=Repairer(
            ClassicPart(store.log) if isinstance(store.log, MajorityLog) else store.log,
            standing.peers.sources,
            standing.peers.reading,
        ),
        stats=stats,
        clients=clients,
        sends=sends,
        delivery=delivery,
        transaction_check=transaction_check_of(parts, sends, tables.persistence.soon),
        lease=lease,
    )
    connect(built, opened.health)
    return built


def connect(parts: BrokerParts, health: Health) -> None:
    """Makes the parts that were built early call those built late.  Nothing runs before this is done."""
    store, tables, long_polling = parts.store, parts.tables, parts.long_polling
    health.refuse_sends = parts.sends.refuse
    store.flusher.on_done = parts.durability.flushed
    store.flusher.on_flushed = long_polling.on_mark
    store.dispatcher.on_arrival = _arrivals_to(parts)
    store.dispatcher.awaited = lambda: len(long_polling) > 0
    store.log.on_fences = lambda _: parts.repairer.wake()
    if isinstance(parts.ha, MasterHAService):
        parts.ha.return_waits_to(parts.durability.replicated)
    elif isinstance(parts.ha, MajorityHA):
        parts.ha.proof.on_done = parts.durability.replicated
    tables.groups.on_change = tables.persistence.soon
    tables.topics.on_change = _both(tables.persistence.soon, parts.registration.announce)


def _later(server: RemotingServer, call: Callable[..., object], *args: object) -> None:
    server.loop.call_later(ANSWER_SECONDS, call, *args)


def _replica_proof(ha: MasterHAService[Wait] | SlaveHAService | MajorityHA) -> ReplicaProof | None:
    if isinstance(ha, MajorityHA):
        return ha.proof
    return ha if isinstance(ha, MasterHAService) else None


def _epoch(role: OpenedRole | OpenedMember) -> int:
    """What nameservers are told, so that they believe the newer of two masters."""
    if isinstance(role, OpenedMember):
        return role.member.epoch
    last = role.lineage.state.lineage.last
    return -1 if last is None else last.number


def _master_wanted(ha: MasterHAService[Wait] | SlaveHAService | MajorityHA, slave_sync: SlaveSync) -> bool:
    """Whether this slave should ask the nameservers for its master soon."""
    if isinstance(ha, MajorityHA):
        return ha.follows_another(slave_sync.master_addr)
    return isinstance(ha, SlaveHAService) and not ha.connected


def _both(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        then()

    return call


def _arrivals_to(parts: BrokerParts) -> Callable[[list[Arrival]], None]:
    """Passes arrivals to held pulls, and to the delivery or, on a slave, to the fetching of topics."""
    first = parts.slave_sync.on_arrival if parts.is_slave else parts.delivery.on_arrival
    then = parts.long_polling.on_arrival

    def arrived(arrivals: list[Arrival]) -> None:
        first(arrivals)
        then(arrivals)

    return arrived
