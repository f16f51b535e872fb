"""The settings of brokers and name servers: frozen dataclasses with RocketMQ's keys, defaults and units.

Each field declares its key, default, unit and one sentence through `option`; the store's own stand in
commitlog.options.LogOptions.  haservice.configuration.config reads properties files into these.

A field constructed in code takes what it is given: port 0 there means "any free port".
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from commitlog.options import LogOptions, option
from haservice.configuration.security_settings import AclConfig, NameserverAclConfig, TlsConfig

# A broker that has said nothing for so long is gone; RocketMQ has no key for it either.
EXPIRE_MS = 120_000


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


def _namesrv_config_path() -> Path:
    return Path.home() / "namesrv" / "namesrv.properties"


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
    max_topics: int = option(
        "maxTopics",
        32768,
        "topics",
        "OURS, not RocketMQ's: topics of a broker, one more is refused. At most 40000, which register in"
        " one frame.",
    )
    auto_create_topic_enable: bool = option(
        "autoCreateTopicEnable", True, "", "A send to an unknown topic creates it, after TBW102."
    )
    auto_create_subscription_group: bool = option(
        "autoCreateSubscriptionGroup", True, "", "An unknown consumer group may consume."
    )
    notify_consumer_ids_changed_enable: bool = option(
        "notifyConsumerIdsChangedEnable",
        True,
        "",
        "Consumers are told at once when their group's members change; false: they find out within 20 s.",
    )
    region_id: str = option("regionId", "DefaultRegion", "", "Told to clients, for message traces.")
    trace_on: bool = option("traceOn", True, "", "Told to clients: whether they should trace messages.")
    long_polling_enable: bool = option(
        "longPollingEnable", True, "", "A pull that finds nothing is held as long as the client says."
    )
    short_polling_ms: int = option(
        "shortPollingTimeMills", 1000, "ms", "How long such a pull is held when longPollingEnable is false."
    )
    enable_property_filter: bool = option(
        "enablePropertyFilter", False, "", "Consumers may subscribe by SQL92 expressions over properties."
    )
    filter_support_retry: bool = option(
        "filterSupportRetry",
        False,
        "",
        "A message that was sent back is judged by the expression for the topic it came from.",
    )
    slave_read_enable: bool = option(
        "slaveReadEnable", False, "", "Clients that lag far behind are sent to a slave."
    )
    offset_check_in_slave: bool = option(
        "offsetCheckInSlave", False, "", "A slave answers a pull outside its queue as a master does."
    )
    pass_damaged_messages: bool = option(
        "passDamagedMessages",
        False,
        "",
        "OURS, not RocketMQ's: consumers pass over what is damaged, and do not wait for its repair.",
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
    reject_transaction_message: bool = option(
        "rejectTransactionMessage", False, "", "Transactional messages are refused."
    )
    transaction_timeout_ms: int = option(
        "transactionTimeOut", 6000, "ms", "Age from which a producer is asked how its transaction ended."
    )
    transaction_check_max: int = option(
        "transactionCheckMax",
        15,
        "times",
        "How often it is asked, before the message goes to TRANS_CHECK_MAX_TIME_TOPIC.",
    )
    transaction_check_interval_ms: int = option(
        "transactionCheckInterval", 60000, "ms", "How often open transactions are looked at."
    )
    store_reply_message_enable: bool = option(
        "storeReplyMessageEnable", True, "", "Replies to requests are stored, too, and not only passed on."
    )
    flush_delay_offset_interval_ms: int = option(
        "flushDelayOffsetInterval",
        10000,
        "ms",
        "How long the progress of delayed messages may stay unwritten; we write it after 1 s at the latest.",
    )
    config_black_list: tuple[str, ...] = option(
        "configBlackList",
        ("configBlackList", "brokerConfigPath"),
        "key;…",
        "Keys that updateBrokerConfig may not change.",
    )
    max_pending_sends: int = option(
        "maxPendingSends",
        100000,
        "requests",
        "OURS, not RocketMQ's: sends that wait for disk or slave; one more is answered SYSTEM_BUSY.",
    )


class ReadMark(Enum):
    """How far a SYNC_MASTER's consumers may read, see haservice.replication.master.read_mark."""

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
    in_sync_replicas: int = option(
        "inSyncReplicas",
        1,
        "replicas",
        "Replicas that a SYNC_MASTER's message has to be on, itself included; 1, as 2, waits for one slave. "
        "A key of RocketMQ 5.",
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
    max_connections_per_address: int = option(
        "haMaxConnectionsPerAddress",
        8,
        "connections",
        "OURS, not RocketMQ's: replication connections of one address at once; one more is closed.",
    )
    plain_port: bool = option(
        "haPlainPort",
        True,
        "",
        "OURS, not RocketMQ's: false leaves haListenPort closed; slaves then come to haSecurePort only.",
    )
    secure_port: int = option(
        "haSecurePort",
        0,
        "",
        "OURS, not RocketMQ's: where a master takes slaves over TLS, with certificates on both sides, and "
        "where a slave with haSecureMaster looks for it. 0: nowhere.",
    )
    secure_master: bool = option(
        "haSecureMaster",
        False,
        "",
        "OURS, not RocketMQ's: a slave follows over TLS only: haMasterAddress, or haSecurePort of the host "
        "that the name server says.",
    )
    secure_cert: Path | None = option(  # noqa: RUF009 - None
        "haSecureCertPath",
        None,
        "path",
        "OURS, not RocketMQ's: this broker's certificate for replication, and those between it and its root, "
        "in PEM.",
    )
    secure_key: Path | None = option(  # noqa: RUF009 - None
        "haSecureKeyPath",
        None,
        "path",
        "OURS, not RocketMQ's: the private key of that certificate, not locked.",
    )
    secure_trust: Path | None = option(  # noqa: RUF009 - None
        "haSecureTrustCertPath",
        None,
        "path",
        "OURS, not RocketMQ's: the roots that certificates of other brokers must come from. "
        "Not the system's.",
    )
    read_mark: ReadMark = option(  # noqa: RUF009 - an enum's member
        "haReadMark",
        ReadMark.IN_SYNC,
        "",
        "OURS, not RocketMQ's: consumers read what is flushed, with SYNC_FLUSH, and of a SYNC_MASTER what an "
        "in-sync slave has, too; without one all. STRICT: without one nothing new, after a start nothing. "
        "OFF: always all, as RocketMQ.",
    )
    sample_interval_ms: int = option(
        "haSampleInterval",
        1000,
        "ms",
        "OURS, not RocketMQ's: how often the state of replication is written to hasamples/ below "
        "storePathRootDir, if it has changed; for mqpipeline lag-report. 0: never.",
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
    config_store_path: Path = option(  # noqa: RUF009 - made for each object
        "configStorePath",
        _namesrv_config_path,
        "path",
        "Where updateNamesrvConfig stores; a name server started with a file stores there.",
    )
    config_black_list: tuple[str, ...] = option(
        "configBlackList",
        ("configBlackList", "configStorePath", "kvConfigPath"),
        "key;…",
        "Keys that updateNamesrvConfig may not change.",
    )
    order_message_enable: bool = option(
        "orderMessageEnable", False, "", "Routes carry the configuration of ordered topics."
    )
    idle_seconds: int = option(
        "serverChannelMaxIdleTimeSeconds", 120, "s", "A connection that is silent for so long is closed."
    )
    acl: NameserverAclConfig = field(default_factory=NameserverAclConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    source: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """All that mqbroker needs.  `source` is the file's path as it was given, `warnings` are for the log."""

    broker: BrokerConfig
    log: LogOptions
    replication: ReplicationConfig
    remoting: RemotingConfig
    acl: AclConfig = field(default_factory=AclConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
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
