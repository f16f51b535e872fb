"""Services: a broker's parts with threads, each built from the configuration and the parts it needs.

The functions here only build: assembly.py connects the services, the node starts and stops them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from commitlog.dispatch.dispatcher import parse_delay_levels
from commitlog.kernel.records import encode_host
from commitlog.options import FlushDiskType
from commitlog.store import Store
from haservice.broker.acl.security import Security
from haservice.broker.delay.overdue import Overdue
from haservice.broker.groups.offset_reclaim import OffsetReclaim
from haservice.broker.handlers import Processors, vip_processors_of
from haservice.broker.metadata.next_start import check_store
from haservice.broker.metadata.registration import Identity, MasterAddresses, Registration
from haservice.broker.metadata.slave_sync import SlaveSync
from haservice.broker.metadata.tables import Tables
from haservice.broker.roles.rules import as_in_file
from haservice.broker.send.durability import Durability, PutStatus, ReplicaProof, Wait
from haservice.broker.stats.ha_samples import HASamples
from haservice.broker.topics.deleted import DeletedTopics
from haservice.configuration.live_settings import LiveSettings, file_of
from haservice.configuration.settings import BrokerRole, NodeConfig, ReadMark
from haservice.coordination.gate import Gate
from haservice.errors import ConfigError
from haservice.observability.server import check_addr
from haservice.remoting.client import RemotingClient
from haservice.remoting.server import Listener, RemotingServer, check_listeners
from haservice.replication.lineage.file import LineageFile
from haservice.replication.master.accept import check_doors, doors_of
from haservice.replication.master.greeter import Greets
from haservice.replication.master.service import MasterHAService
from haservice.replication.service import HAService
from haservice.replication.slave.rejoin import Rejoin
from haservice.replication.slave.service import SlaveHAService
from haservice.replication.wire.greeting import Facts, GreetingOutcome
from haservice.replication.wire.hello import SlaveHello
from haservice.supervisor import Supervisor


def live_settings_of(config: NodeConfig, of_file: NodeConfig) -> LiveSettings[NodeConfig]:
    """`config` is in force, `of_file` as the file has it."""
    return LiveSettings(
        config,
        path=file_of(config.source),
        black_list=config.broker.config_black_list,
        open_to_all=not config.acl.enabled,
        check=lambda following, asked: check_store(config, following, asked),
        as_in_file=lambda now: as_in_file(now, of_file),
    )


def store_host_of(config: NodeConfig) -> bytes:
    """The address that every record has.  Raises ConfigError."""
    try:
        return encode_host(config.broker.broker_ip1, config.remoting.listen_port)
    except OSError:
        raise ConfigError(
            config.source, 0, "brokerIP1", "not an IP address", config.broker.broker_ip1
        ) from None


def check_ports(config: NodeConfig, security: Security) -> None:
    """Raises ConfigError or OSError, as the start of a port's owner would, for a port that is taken.

    The node calls it before it decides on its role: whoever starts a broker with a copy of another one's file
    reads of the taken port, not of a lineage that cannot be right.
    """
    check_listeners(listeners_of(config, security, {}))
    if config.remoting.metrics_addr is not None:
        check_addr(config.remoting.metrics_addr, config.source)
    if not config.broker.role.is_slave and not config.dledger.enabled:
        check_doors(
            config.remoting.bind_address, doors_of(config.replication.listen_port, 0, 0, security.doors)
        )


def listeners_of(config: NodeConfig, security: Security, processors: Processors) -> tuple[Listener, ...]:
    """Both ports."""
    remoting = config.remoting
    return tuple(
        Listener(remoting.bind_address, port, served, key, security.guard, security.tls)
        for port, served, key in (
            (remoting.listen_port, processors, "listenPort"),
            (remoting.vip_port, vip_processors_of(processors), "listenPort - 2"),
        )
    )


def replication_of(
    config: NodeConfig,
    store: Store,
    lineage: LineageFile,
    security: Security,
    server: RemotingServer,
    *,
    on_mark: Callable[[], None],
    on_ahead: Callable[[SlaveHello], None],
    on_heard: Callable[[SlaveHello, GreetingOutcome], None],
    supervisor: Supervisor,
    by_voters: bool = False,
    on_lost: Callable[[], None] = lambda: None,
    on_greeted: Callable[[str], None] = lambda _: None,
    on_cut: Callable[[], None] = lambda: None,
) -> MasterHAService[Wait] | SlaveHAService:
    """The service of this role.  With SYNC_FLUSH a slave reports only what is on its disk."""
    flushes = flushes_at_once(config)
    if config.broker.role.is_slave:
        return SlaveHAService(
            config.replication,
            store.log,
            damage=lambda: store.dispatcher.failed,
            flush=store.log.flush if flushes else None,
            boundary=lambda: store.dispatcher.position,
            supervisor=supervisor,
            rejoin=Rejoin(
                _facts(config),
                lineage,
                store.log,
                store,
                on_cut=on_cut,
                lower_floors=DeletedTopics(store).lower_floors,
                flushes=flushes,
                takes_marks=config.replication.read_mark is ReadMark.STRICT,
            ),
            doors=security.doors,
            on_lost=on_lost,
            on_mark=on_mark,
            on_greeted=on_greeted,
        )
    return MasterHAService(
        config.replication,
        store.log,
        role=config.broker.role,
        bind_address=config.remoting.bind_address,
        on_mark=on_mark,
        flushes=flushes,
        supervisor=supervisor,
        greets=Greets(lineage, _facts(config), on_ahead, on_heard),
        doors=security.doors,
        loop=server,
        by_voters=by_voters,
        on_lost=on_lost,
    )


def _facts(config: NodeConfig) -> Facts:
    broker = config.broker
    return Facts(
        broker.cluster_name,
        broker.broker_name,
        config.broker_addr,
        heartbeat_ms=config.replication.heartbeat_interval_ms,
    )


def durability_of(
    config: NodeConfig,
    store: Store,
    replica: ReplicaProof | None,
    server: RemotingServer,
    gate: Gate | None,
) -> Durability:
    """`replica` gives the proofs of a SYNC_MASTER's sends.  A majority has flushed what it has, if that is asked."""
    by_majority = config.dledger.enabled
    return Durability(
        flush=store.flusher if flushes_at_once(config) and not by_majority else None,
        replica=replica if config.broker.role is BrokerRole.SYNC_MASTER else None,
        flush_timeout_s=config.log.sync_flush_timeout_ms / 1000,
        replica_timeout_s=config.replication.slave_timeout_ms / 1000,
        call_soon=server.call_soon,
        on_loop=server.is_here,
        gate=gate,
        lacking=PutStatus.NOT_AGREED if by_majority else PutStatus.FLUSH_SLAVE_TIMEOUT,
    )


def ha_samples_of(config: NodeConfig, store: Store, ha: HAService) -> HASamples | None:
    interval_ms = config.replication.sample_interval_ms
    if interval_ms == 0:
        return None
    return HASamples(config.log.root, store.log, store.dispatcher, ha, interval_ms / 1000)


def slave_sync_of(config: NodeConfig, tables: Tables, store: Store) -> SlaveSync:
    levels, deleted = len(parse_delay_levels(config.log.message_delay_levels)), DeletedTopics(store)
    return SlaveSync(
        config.broker_addr,
        tables.topics,
        tables.offsets,
        tables.groups,
        delays=tables.delays,
        on_synced=tables.persistence.soon,
        overdue=Overdue(store.queues.get, tables.delays, levels),
        keep=tables.keep,
        on_copied=tables.awaited.copied,
        deleting=deleted.committed if config.dledger.enabled else deleted.from_now,
    )


def registration_of(
    config: NodeConfig,
    tables: Tables,
    *,
    epoch: Callable[[], int],
    on_master: Callable[[MasterAddresses], None],
    master_wanted: Callable[[], bool],
    on_newer: Callable[[int, str], None],
) -> Registration:
    """A master takes consumer offsets back from its slaves before a nameserver hears of it."""
    broker = config.broker
    on_reachable: Callable[[RemotingClient, str], Awaitable[None]] | None = None
    if not broker.role.is_slave:
        on_reachable = OffsetReclaim(
            broker.broker_name,
            config.broker_addr,
            tables.offsets,
            tables.groups,
            tables.queue_end,
            on_taken=tables.persistence.soon,
        ).run
    return Registration(
        Identity(
            broker.cluster_name,
            broker.broker_name,
            broker.broker_id,
            config.broker_addr,
            config.ha_server_addr,
        ),
        broker.namesrv_addrs,
        tables.topics,
        permission=broker.permission,
        period_s=broker.register_period_ms / 1000,
        timeout_s=broker.register_timeout_ms / 1000,
        on_master=on_master,
        master_wanted=master_wanted,
        on_reachable=on_reachable,
        epoch=epoch,
        on_newer=on_newer,
    )


def flushes_at_once(config: NodeConfig) -> bool:
    """Whether flushDiskType is SYNC_FLUSH."""
    return config.log.flush_disk_type is FlushDiskType.SYNC_FLUSH
