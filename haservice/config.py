"""Configuration: frozen dataclasses with RocketMQ's keys, defaults and units.

Each field declares its key, default, unit and one sentence through `option`; the store's own stand
in commitlog.options.LogOptions.  `load_broker` and `load_nameserver` read a properties file into them:
values that do not parse, or contradict another, raise one ConfigError, a line with file, line and key each;
what can be lived with is a warning on the result.

A field constructed in code takes what it is given: port 0 there means "any free port".
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from commitlog.options import QUEUE_ENTRY_BYTES, LogOptions, option
from haservice import rocketmq_keys
from haservice.binding import Binder, expanded, option_text, told_address
from haservice.errors import ConfigError
from haservice.properties import Entry, Properties, parse

# Nobody's configuration is larger; a file that is, is not one.
FILE_BYTES_MAX = 1024 * 1024
# A broker that has said nothing for so long is gone; RocketMQ has no key for it either.
EXPIRE_MS = 120_000
# To listen on; nobody can connect to them from afar.
EVERY_ADDRESS = ("0.0.0.0", "::")


def local_name() -> str:
    """The host name of this machine, or RocketMQ's word where there is none."""
    return socket.gethostname() or "DEFAULT_BROKER"


def local_address() -> str:
    """The IPv4 address this machine would be reached at; 127.0.0.1 if it has no other.

    Connecting a datagram socket asks the routing table and sends nothing.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, nobody's address
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address


def _kv_config_path() -> Path:
    return Path.home() / "namesrv" / "kvConfig.json"


class BrokerRole(Enum):
    """What a broker is in its pair, and whether a send waits for the slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"

    @property
    def is_slave(self) -> bool:
        return self is BrokerRole.SLAVE


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Who the broker is, and how it treats clients."""

    cluster_name: str = option(
        "brokerClusterName", "DefaultCluster", "", "The cluster this broker belongs to."
    )
    broker_name: str = option(
        "brokerName",
        local_name,
        "",
        "Shared by a master and its slaves. Not set: the host name of this machine.",
    )
    broker_id: int = option(
        "brokerId", 0, "", "0 is the master, a slave has a number above 0. A master's is forced to 0."
    )
    role: BrokerRole = option(  # noqa: RUF009 - an enum's member, as immutable as they come
        "brokerRole",
        BrokerRole.ASYNC_MASTER,
        "",
        "ASYNC_MASTER answers a send at once, SYNC_MASTER when a slave has it, SLAVE keeps a copy.",
    )
    namesrv_addrs: tuple[str, ...] = option(
        "namesrvAddr",
        (),
        "host:port;…",
        "Name servers to register with. Not set: the environment variable NAMESRV_ADDR.",
    )
    broker_ip1: str = option(
        "brokerIP1",
        local_address,
        "",
        "The address clients are told. Not set: bindAddress if it names one address, else this machine's.",
    )
    broker_ip2: str = option(
        "brokerIP2",
        local_address,
        "",
        "The address slaves are told for replication. Not set: as for brokerIP1.",
    )
    permission: int = option("brokerPermission", 6, "", "4 may be read, 2 may be written, 6 both.")
    default_topic_queue_nums: int = option(
        "defaultTopicQueueNums", 8, "queues", "Most queues that a topic created by a send gets."
    )
    auto_create_topic_enable: bool = option(
        "autoCreateTopicEnable", True, "", "A send to an unknown topic creates it, after TBW102."
    )
    auto_create_subscription_group: bool = option(
        "autoCreateSubscriptionGroup", True, "", "An unknown consumer group may consume."
    )
    region_id: str = option("regionId", "DefaultRegion", "", "Told to clients, for message traces.")
    trace_on: bool = option("traceOn", True, "", "Told to clients: whether they should trace messages.")
    long_polling_enable: bool = option(
        "longPollingEnable", True, "", "A pull that finds nothing is held as long as the client says."
    )
    short_polling_ms: int = option(
        "shortPollingTimeMills", 1000, "ms", "How long such a pull is held when longPollingEnable is false."
    )
    slave_read_enable: bool = option(
        "slaveReadEnable", False, "", "Clients that lag far behind are sent to a slave."
    )
    offset_check_in_slave: bool = option(
        "offsetCheckInSlave", False, "", "A slave answers a pull outside its queue as a master does."
    )
    flush_consumer_offset_interval_ms: int = option(
        "flushConsumerOffsetInterval", 5000, "ms", "How often consumer offsets are written to their file."
    )
    register_period_ms: int = option(
        "registerNameServerPeriod", 30000, "ms", "How often to register; held within 10000 ... 60000."
    )
    register_timeout_ms: int = option(
        "registerBrokerTimeoutMills", 6000, "ms", "How long to wait for a name server's answer."
    )
    start_accept_send_timestamp_ms: int = option(
        "startAcceptSendRequestTimeStamp", 0, "ms", "Sends are refused before this time since 1970. 0: never."
    )
    page_cache_busy_ms: int = option(
        "osPageCacheBusyTimeOutMills", 1000, "ms", "An append that takes longer makes the broker say busy."
    )
    access_message_in_memory_max_ratio: int = option(
        "accessMessageInMemoryMaxRatio", 40, "% of memory", "Beyond it from the end, a read counts as cold."
    )
    max_transfer_bytes_in_memory: int = option(
        "maxTransferBytesOnMessageInMemory", 262144, "bytes", "Most bytes in one pull of recent messages."
    )
    max_transfer_count_in_memory: int = option(
        "maxTransferCountOnMessageInMemory", 32, "messages", "Most messages in one pull of recent messages."
    )
    max_transfer_bytes_on_disk: int = option(
        "maxTransferBytesOnMessageInDisk", 65536, "bytes", "Most bytes in one pull of cold messages."
    )
    max_transfer_count_on_disk: int = option(
        "maxTransferCountOnMessageInDisk", 8, "messages", "Most messages in one pull of cold messages."
    )
    cluster_topic_enable: bool = option(
        "clusterTopicEnable", True, "", "There is a topic named like the cluster."
    )
    broker_topic_enable: bool = option(
        "brokerTopicEnable", True, "", "There is a topic named like the broker."
    )
    trace_topic_enable: bool = option(
        "traceTopicEnable", False, "", "There is a topic for message traces, RMQ_SYS_TRACE_TOPIC."
    )
    default_query_max_num: int = option(
        "defaultQueryMaxNum", 32, "messages", "Most messages that a query by key answers."
    )
    max_pending_sends: int = option(
        "maxPendingSends",
        100000,
        "requests",
        "OURS, not RocketMQ's: sends that wait for disk or slave; one more is answered SYSTEM_BUSY.",
    )


class ReadMark(Enum):
    """How far a SYNC_MASTER's consumers may read, see haservice.replication.read_mark."""

    IN_SYNC = "IN_SYNC"
    STRICT = "STRICT"
    OFF = "OFF"


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """The replication port of a master, and the slave's side of it."""

    listen_port: int = option(
        "haListenPort", 0, "", "Where a master takes slaves. 0 or not set: listenPort + 1."
    )
    master_address: str | None = option(
        "haMasterAddress", None, "host:port", "A slave's master. Not set: what the name server says."
    )
    heartbeat_interval_ms: int = option(
        "haSendHeartbeatInterval", 5000, "ms", "Silence after which master and slave send a sign of life."
    )
    housekeeping_interval_ms: int = option(
        "haHousekeepingInterval", 20000, "ms", "Silence of the other side after which to hang up."
    )
    transfer_batch_bytes: int = option(
        "haTransferBatchSize", 32768, "bytes", "Most bytes of the log in one frame to a slave."
    )
    fallbehind_max_bytes: int = option(
        "haSlaveFallbehindMax", 268435456, "bytes", "A slave further behind does not count as available."
    )
    slave_timeout_ms: int = option(
        "slaveTimeout", 3000, "ms", "How long a SYNC_MASTER's send waits for a slave."
    )
    allowed_slaves: tuple[str, ...] = option(
        "haAllowedSlaves",
        (),
        "network,…",
        "OURS, not RocketMQ's: networks that slaves may come from, such as 10.0.0.0/8. Not set: all.",
    )
    max_connections: int = option(
        "haMaxConnections",
        64,
        "connections",
        "OURS, not RocketMQ's: replication connections at once; one more is closed.",
    )
    read_mark: ReadMark = option(  # noqa: RUF009 - an enum's member
        "haReadMark",
        ReadMark.IN_SYNC,
        "",
        "OURS, not RocketMQ's: a SYNC_MASTER's consumers read what an in-sync slave has, too; without one "
        "all. STRICT: without one nothing new. OFF: always all, as RocketMQ.",
    )


@dataclass(frozen=True, slots=True)
class RemotingConfig:
    """The clients' port of a broker, and its second one, two below."""

    bind_address: str = option(
        "bindAddress",
        "0.0.0.0",
        "",
        "OURS, not RocketMQ's: the address that all ports of this broker are opened on.",
    )
    listen_port: int = option(
        "listenPort", 10911, "", "Where clients come. listenPort - 2 is opened beside it."
    )
    idle_seconds: int = option(
        "serverChannelMaxIdleTimeSeconds", 120, "s", "A connection that is silent for so long is closed."
    )

    @property
    def vip_port(self) -> int:
        """RocketMQ's second port: everything but pulls.  0, any free one, goes with listen_port 0."""
        return self.listen_port - 2 if self.listen_port else 0


@dataclass(frozen=True, slots=True)
class NameserverConfig:
    """What a name server needs."""

    bind_address: str = option(
        "bindAddress", "0.0.0.0", "", "OURS, not RocketMQ's: the address that the port is opened on."
    )
    listen_port: int = option("listenPort", 9876, "", "Where brokers and clients come.")
    kv_config_path: Path = option(  # noqa: RUF009 - made for each object
        "kvConfigPath",
        _kv_config_path,
        "path",
        "The file of the key-value configuration, written on every change.",
    )
    order_message_enable: bool = option(
        "orderMessageEnable", False, "", "Routes carry the configuration of ordered topics."
    )
    idle_seconds: int = option(
        "serverChannelMaxIdleTimeSeconds", 120, "s", "A connection that is silent for so long is closed."
    )
    source: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """All that mqbroker needs.  `source` is the file's path as it was given, `warnings` are for the log."""

    broker: BrokerConfig
    log: LogOptions
    replication: ReplicationConfig
    remoting: RemotingConfig
    source: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def broker_addr(self) -> str:
        """What clients are told: in routes, registrations, message ids."""
        return f"{self.broker.broker_ip1}:{self.remoting.listen_port}"

    @property
    def ha_server_addr(self) -> str:
        """What slaves are told, through the name server."""
        return f"{self.broker.broker_ip2}:{self.replication.listen_port}"


BROKER_CLASSES: tuple[type[Any], ...] = (BrokerConfig, LogOptions, ReplicationConfig, RemotingConfig)


def load_broker(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> NodeConfig:
    """The configuration of one broker from its properties file; all defaults without one."""
    return broker_from(_read(path) if path is not None else Properties({}, "defaults"), environ)


def broker_from(properties: Properties, environ: Mapping[str, str] = os.environ) -> NodeConfig:
    """As load_broker, from properties already read."""
    binder = Binder(properties)
    broker = binder.values(BrokerConfig)
    log = binder.values(LogOptions)
    replication = binder.values(ReplicationConfig)
    remoting = RemotingConfig(**binder.values(RemotingConfig))

    _settle_addresses(broker, remoting, binder)
    _settle_name_servers(broker, environ, binder)
    _settle_role(broker, binder)
    role: BrokerRole = broker.get("role", BrokerRole.ASYNC_MASTER)
    replication["listen_port"] = replication.get("listen_port") or remoting.listen_port + 1
    _check_ports(remoting, replication["listen_port"], binder)
    _check_intervals(replication, binder)
    _settle_log(log, binder)
    log["replica"] = role.is_slave
    if role.is_slave and not broker.get("namesrv_addrs"):
        _warn_of_no_name_server(binder, replication.get("master_address"))
    binder.check_names([key for key, _, _ in options_of(*BROKER_CLASSES)], rocketmq_keys.BROKER)
    binder.finish()
    return NodeConfig(
        broker=BrokerConfig(**broker),
        log=LogOptions(**log),
        replication=ReplicationConfig(**replication),
        remoting=remoting,
        source=properties.source,
        warnings=tuple(binder.warnings),
    )


def load_nameserver(path: str | Path | None = None) -> NameserverConfig:
    """The configuration of a name server; all defaults without a file."""
    binder = Binder(_read(path) if path is not None else Properties({}, "defaults"))
    values = binder.values(NameserverConfig)
    binder.check_names([key for key, _, _ in options_of(NameserverConfig)], rocketmq_keys.NAMESERVER)
    binder.finish()
    return NameserverConfig(**values, source=binder.properties.source, warnings=tuple(binder.warnings))


def options_of(*classes: type[Any]) -> Iterator[tuple[str, type[Any], dataclasses.Field[Any]]]:
    """(key, class, field) of every field that a properties file can set."""
    for config_class in classes:
        for field in dataclasses.fields(config_class):
            if key := field.metadata.get("key"):
                yield key, config_class, field


def in_force(config: NodeConfig | NameserverConfig) -> list[tuple[str, str]]:
    """Every key that is served and its value in force, sorted: what `mqbroker -p` prints."""
    parts: tuple[Any, ...] = (config,)
    if isinstance(config, NodeConfig):
        log = dataclasses.replace(config.log, commit_log_path=config.log.log_path)
        parts = (config.broker, log, config.replication, config.remoting)
    return sorted(
        (key, option_text(key, getattr(part, field.name)))
        for part in parts
        for key, _, field in options_of(type(part))
    )


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file, as plain Python values.  Raises ConfigError."""
    text = _read_text(path)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(str(path), line, "", problem) from None


def _settle_addresses(broker: dict[str, Any], remoting: RemotingConfig, binder: Binder) -> None:
    told = (("brokerIP1", "broker_ip1", "clients"), ("brokerIP2", "broker_ip2", "slaves"))
    for key, name, whom in told:
        if broker.get(name) in EVERY_ADDRESS:
            binder.warn(key, f"no address to connect to: {whom} on other hosts cannot use it")
        if name in broker or remoting.bind_address in EVERY_ADDRESS:
            continue
        try:
            broker[name] = told_address(remoting.bind_address)
        except ValueError as error:
            binder.refuse("bindAddress", f"{error}: set {key}")
            return


def _settle_name_servers(broker: dict[str, Any], environ: Mapping[str, str], binder: Binder) -> None:
    if "namesrv_addrs" not in broker and binder.sound("namesrvAddr") and environ.get("NAMESRV_ADDR"):
        given = {"namesrvAddr": Entry(environ["NAMESRV_ADDR"], 0)}
        of_environment = Binder(Properties(given, "environment variable NAMESRV_ADDR"))
        broker.update(of_environment.values(BrokerConfig))
        binder.errors += of_environment.errors


def _settle_role(broker: dict[str, Any], binder: Binder) -> None:
    if not binder.sound("brokerRole", "brokerId"):
        return
    role = broker.get("role", BrokerRole.ASYNC_MASTER)
    broker_id = broker.get("broker_id", 0)
    if role is BrokerRole.SLAVE:
        if broker_id <= 0:
            binder.refuse(
                "brokerId" if "broker_id" in broker else "brokerRole",
                f"a SLAVE has a brokerId above 0, this one has {broker_id}",
            )
    elif broker_id != 0:
        binder.warn("brokerId", f"{role.name} is always brokerId 0: 0 is in force")
        broker["broker_id"] = 0


def _warn_of_no_name_server(binder: Binder, master_address: str | None) -> None:
    if not binder.sound("namesrvAddr", "haMasterAddress"):
        return
    if not master_address:
        binder.warn("brokerRole", "without namesrvAddr and haMasterAddress a slave never finds its master")
    else:
        binder.warn(
            "haMasterAddress",
            "without namesrvAddr a slave copies the log alone, and neither topics nor consumer offsets",
        )


def _check_ports(remoting: RemotingConfig, ha_port: int, binder: Binder) -> None:
    if not binder.sound("listenPort", "haListenPort"):
        return
    port = remoting.listen_port
    if remoting.vip_port < 1:
        binder.refuse("listenPort", f"listenPort - 2 is opened too, and is {remoting.vip_port}")
    if ha_port > 65535:
        binder.refuse("listenPort", f"haListenPort, listenPort + 1, would be {ha_port}")
    if ha_port in (port, remoting.vip_port):
        name = "listenPort" if ha_port == port else "listenPort - 2"
        binder.refuse("haListenPort", f"port {ha_port} is already {name} (listenPort={port})")


def _check_intervals(replication: dict[str, Any], binder: Binder) -> None:
    """A side that hangs up before the other's next sign of life is due never keeps a quiet connection."""
    found = ReplicationConfig(**replication)
    heartbeat, housekeeping = found.heartbeat_interval_ms, found.housekeeping_interval_ms
    if housekeeping > heartbeat or not binder.sound("haSendHeartbeatInterval", "haHousekeepingInterval"):
        return
    if "housekeeping_interval_ms" in replication:
        key, rule = "haHousekeepingInterval", f"above haSendHeartbeatInterval={heartbeat}"
    else:
        key, rule = "haSendHeartbeatInterval", f"below haHousekeepingInterval={housekeeping}"
    binder.refuse(key, f"has to be {rule}, or every quiet slave is hung up on")


def _settle_log(log: dict[str, Any], binder: Binder) -> None:
    defaults = LogOptions()
    if log.get("queue_file_bytes", 0) % QUEUE_ENTRY_BYTES:
        log["queue_file_bytes"] += QUEUE_ENTRY_BYTES - log["queue_file_bytes"] % QUEUE_ENTRY_BYTES
        binder.warn(
            "mappedFileSizeConsumeQueue",
            f"rounded up to whole {QUEUE_ENTRY_BYTES}-byte entries: {log['queue_file_bytes']} is in force",
        )
    segment = log.get("segment_bytes", defaults.segment_bytes)
    message = log.get("max_message_bytes", defaults.max_message_bytes)
    if segment < message:
        key = "mappedFileSizeCommitLog" if "segment_bytes" in log else "maxMessageSize"
        binder.warn(key, f"a message of maxMessageSize={message} cannot fit a log file of {segment} bytes")


def _read(path: str | Path) -> Properties:
    return parse(_read_text(path), str(path))


def _read_text(path: str | Path) -> str:
    """UTF-8, or else Latin-1, which is what Java reads such files as.  Raises ConfigError."""
    try:
        with expanded(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except ValueError as error:
        raise ConfigError(str(path), 0, "", f"cannot be read: {error}") from None
    except OSError as error:
        raise ConfigError(str(path), 0, "", f"cannot be read: {error.strerror or error}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(str(path), 0, "", f"larger than {FILE_BYTES_MAX} bytes: not a configuration file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")
