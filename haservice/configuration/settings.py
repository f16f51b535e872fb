"""The settings of brokers and nameservers: frozen dataclasses, each field declared with its key.

commitlog.keys says how; the store's settings are in commitlog.options.LogOptions.
haservice.configuration.config reads properties files into these classes.
After a change: python -m haservice.configuration.generate

Code may construct them with any value: port 0 there means "any free port".
"""
# ruff: noqa: RUF009 - paths and an enum's members are as immutable as they come

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from commitlog.keys import (
    ANY,
    BY_HAND,
    BYTES,
    GUARDED,
    IMPORTANT,
    MESSAGES,
    MS,
    OURS,
    Section,
    Taker,
    Values,
)
from commitlog.options import SEND_WAITS, TRANSACTION_CHECKS, LogOptions
from haservice.configuration import texts
from haservice.configuration.coordinator_settings import CoordinatorConfig
from haservice.configuration.dledger_settings import DLedgerConfig
from haservice.configuration.security_settings import (
    REPLICATION_TLS,
    AclConfig,
    NameserverAclConfig,
    TlsConfig,
)

# A broker that is silent for so long is gone; RocketMQ has no key for it either.
EXPIRE_MS = 120_000
# A slave reads its master's table from one answer: the tree of so many topics takes 64 MiB, the bound of an answer's.
TOPICS_MAX = 125_000
# A slave of RocketMQ's reads frames into a buffer of 4 MiB, their 12-byte header included.
TRANSFER_BATCH_MAX = 4 * 1024 * 1024 - 12
LONG_MAX = 2**63 - 1

IDENTITY = Section("Who this broker is")
ADDRESSES = Section("Addresses and ports")
REGISTERING = Section("Registration")
REPLICATION = Section("Replication")
TOPICS = Section("Topics and groups")
SENDING = Section("Sending")
PULLING = Section("Pulling")
CHANGES = Section("Changes while it runs")
CLIENT_VALUES = Section("Configuration kept for clients")

SENDS = Taker("sends")
PULLS = Taker("pulls")
FILTERS = Taker("filters by SQL92 expressions")
QUERIES = Taker("queries by key")
REPLIES = Taker("replies")
DELAY_STATS = Taker("statistics of delayed messages")
TOPIC_CREATION = Taker("creation of topics")
TOPIC_COUNT = Taker("the number of topics")
GROUPS = Taker("creation of consumer groups")
OFFSETS = Taker("the table of consumer offsets")
REGISTRATION = Taker("registration")
PERMISSION = Taker("messages sent back")
ROUTES = Taker("routes")

# Brokers and clients find each other by these names.  RocketMQ would take a blank one; here it is refused,
# for a name that the user did not mean is worse than none.
NAME = Values(check=texts.name, never_blank=True)
PORT = Values(high=texts.PORT_MAX)
PORT_OR_NONE = Values(low=0, high=texts.PORT_MAX)
CONNECTIONS = Values("connections")
SECONDS = Values("s")
HTTP_ADDRESS = Values("host:port", check=texts.check_address)
METRICS_DOC = (
    "Where monitoring asks over HTTP, without a login: /metrics for Prometheus, /healthz, /readyz and more for load "
    "balancers. Not set: nowhere."
)
KEY_LIST = Values("key;…", separator=";")


def local_name() -> str:
    """The host name of this machine, or RocketMQ's word where there is none."""
    return socket.gethostname() or "DEFAULT_BROKER"


def local_address() -> str:
    """The IPv4 address at which others reach this machine; 127.0.0.1 if it has no other.

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

    cluster_name: str = IDENTITY.key("brokerClusterName", "DefaultCluster", NAME, IMPORTANT, GUARDED)(
        "The cluster of this broker."
    )
    broker_name: str = IDENTITY.key("brokerName", local_name, NAME, IMPORTANT, GUARDED)(
        "A master and its slaves share this name. Not set: the host name of this machine."
    )
    broker_id: int = IDENTITY.key(
        "brokerId", 0, Values(low=-LONG_MAX - 1, high=LONG_MAX), IMPORTANT, GUARDED
    )("0 is the master, a slave has a number above 0. A master's is always 0, whatever is set.")
    role: BrokerRole = IDENTITY.key("brokerRole", BrokerRole.ASYNC_MASTER, ANY, IMPORTANT, GUARDED)(
        "ASYNC_MASTER answers a send at once, SYNC_MASTER once a slave has the message, SLAVE keeps a copy."
    )
    namesrv_addrs: tuple[str, ...] = IDENTITY.key(
        "namesrvAddr", (), Values("host:port;…", check=texts.nameserver, separator=";"), IMPORTANT, GUARDED
    )("The nameservers to register with. Not set: the environment variable NAMESRV_ADDR.")
    broker_ip1: str = ADDRESSES.key(
        "brokerIP1", local_address, Values(check=texts.told_address), IMPORTANT, GUARDED
    )("The address that clients are told. Not set: bindAddress if it is one address, else this machine's.")
    broker_ip2: str = ADDRESSES.key("brokerIP2", local_address, Values(check=texts.told_address), GUARDED)(
        "The address that slaves are told for replication. Not set: as for brokerIP1."
    )
    register_period_ms: int = REGISTERING.key(
        "registerNameServerPeriod", 30000, Values("ms", held=(10_000, 60_000)), REGISTRATION
    )("How often to register with the nameservers.")
    register_timeout_ms: int = REGISTERING.key("registerBrokerTimeoutMills", 6000, MS, REGISTRATION)(
        "How long to wait for a nameserver's answer."
    )
    permission: int = TOPICS.key(
        "brokerPermission",
        6,
        Values(low=0, high=7, check=texts.broker_permission, shown="0, 2 ... 7"),
        SENDS,
        PULLS,
        PERMISSION,
        REGISTRATION,
    )(
        "4: clients may read, 2: they may write, 6: both. Routes show what it and the topic's permissions both allow."
    )
    auto_create_topic_enable: bool = TOPICS.key(
        "autoCreateTopicEnable", True, ANY, IMPORTANT, TOPIC_CREATION
    )("A send to an unknown topic creates it, with the rights of TBW102.")
    default_topic_queue_nums: int = TOPICS.key("defaultTopicQueueNums", 8, Values("queues", high=65536))(
        "A topic that is created by a send gets at most this many queues."
    )
    max_topics: int = TOPICS.key("maxTopics", 100_000, Values("topics", high=TOPICS_MAX), OURS, TOPIC_COUNT)(
        "The broker keeps at most this many topics."
    )
    auto_create_subscription_group: bool = TOPICS.key(
        "autoCreateSubscriptionGroup", True, ANY, IMPORTANT, GROUPS
    )("An unknown consumer group may consume.")
    notify_consumer_ids_changed_enable: bool = TOPICS.key("notifyConsumerIdsChangedEnable", True, ANY)(
        "Consumers are told at once when their group's members change; false: they find out within 20 s."
    )
    cluster_topic_enable: bool = TOPICS.key("clusterTopicEnable", True, ANY)(
        "There is a topic named like the cluster."
    )
    broker_topic_enable: bool = TOPICS.key("brokerTopicEnable", True, ANY)(
        "There is a topic named like the broker."
    )
    trace_topic_enable: bool = TOPICS.key("traceTopicEnable", False, ANY, IMPORTANT)(
        "There is a topic for message traces, RMQ_SYS_TRACE_TOPIC."
    )
    flush_consumer_offset_interval_ms: int = TOPICS.key("flushConsumerOffsetInterval", 5000, MS, OFFSETS)(
        "How often consumer offsets are written to disk."
    )
    max_consumer_offset_bytes: int = TOPICS.key(
        "maxConsumerOffsetBytes", 128 * 1024 * 1024, Values("bytes", low=1024, high=2**30), OURS, OFFSETS
    )("The broker keeps this many bytes of consumer offsets: 32 a queue, and the names of topic and group.")
    reject_transaction_message: bool = SENDING.key("rejectTransactionMessage", False, ANY, IMPORTANT, SENDS)(
        "Transactional messages are refused."
    )
    transaction_timeout_ms: int = SENDING.key("transactionTimeOut", 6000, MS, IMPORTANT, TRANSACTION_CHECKS)(
        "Age from which a producer is asked how its transaction ended."
    )
    transaction_check_max: int = SENDING.key(
        "transactionCheckMax", 15, Values("times"), IMPORTANT, TRANSACTION_CHECKS
    )("How often it is asked, before the message goes to TRANS_CHECK_MAX_TIME_TOPIC.")
    transaction_check_interval_ms: int = SENDING.key(
        "transactionCheckInterval", 60000, MS, IMPORTANT, TRANSACTION_CHECKS
    )("How often to look for open transactions.")
    store_reply_message_enable: bool = SENDING.key("storeReplyMessageEnable", True, ANY, REPLIES)(
        "Replies to requests are stored, and not only passed on."
    )
    flush_delay_offset_interval_ms: int = SENDING.key("flushDelayOffsetInterval", 10000, MS)(
        "How long the progress of delayed messages may stay unwritten; we write it after 1 s at the latest."
    )
    enable_schedule_message_stats: bool = SENDING.key("enableScheduleMessageStats", True, ANY, DELAY_STATS)(
        "Delayed messages count in the statistics of their topic when they are delivered."
    )
    max_pending_sends: int = SENDING.key("maxPendingSends", 100000, Values("requests"), OURS, SENDS)(
        "Most sends that wait for disk or slave; one more is answered SYSTEM_BUSY."
    )
    page_cache_busy_ms: int = SENDING.key("osPageCacheBusyTimeOutMills", 1000, MS, SENDS)(
        "While an append takes longer, sends are answered busy."
    )
    start_accept_send_timestamp_ms: int = SENDING.key(
        "startAcceptSendRequestTimeStamp", 0, Values("ms", low=0, high=LONG_MAX), SENDS
    )("Sends are refused before this time, counted since 1970. 0: never.")
    region_id: str = SENDING.key("regionId", "DefaultRegion", Values(check=texts.name), SENDS)(
        "Told to clients, for message traces."
    )
    trace_on: bool = SENDING.key("traceOn", True, ANY, SENDS)(
        "Clients are told that they should trace messages."
    )
    long_polling_enable: bool = PULLING.key("longPollingEnable", True, ANY, PULLS)(
        "A pull that finds nothing waits as long as the client says."
    )
    short_polling_ms: int = PULLING.key("shortPollingTimeMills", 1000, MS, PULLS)(
        "How long it waits when longPollingEnable is false."
    )
    enable_property_filter: bool = PULLING.key("enablePropertyFilter", False, ANY, FILTERS)(
        "Consumers may subscribe by SQL92 expressions over properties."
    )
    property_filter_ignores_tail: bool = PULLING.key("propertyFilterIgnoresTail", False, ANY, OURS, FILTERS)(
        "Take `a = 1 LIKE 'x'` as `a = 1`, as RocketMQ does. Otherwise such an expression is refused."
    )
    filter_support_retry: bool = PULLING.key("filterSupportRetry", False, ANY, FILTERS)(
        "A message that was sent back is filtered by the expression for its original topic."
    )
    slave_read_enable: bool = PULLING.key("slaveReadEnable", False, ANY, PULLS)(
        "Clients that lag far behind are sent to a slave."
    )
    offset_check_in_slave: bool = PULLING.key("offsetCheckInSlave", False, ANY, PULLS)(
        "A slave corrects an offset outside its queue, as a master does."
    )
    pass_damaged_messages: bool = PULLING.key("passDamagedMessages", False, ANY, OURS, PULLS)(
        "Consumers skip damaged messages instead of waiting for their repair."
    )
    access_message_in_memory_max_ratio: int = PULLING.key(
        "accessMessageInMemoryMaxRatio", 40, Values("% of memory", low=0, high=100), IMPORTANT, PULLS
    )("Messages further from the end of the log count as on disk, nearer ones as in memory.")
    max_transfer_bytes_in_memory: int = PULLING.key(
        "maxTransferBytesOnMessageInMemory", 262144, BYTES, IMPORTANT, PULLS
    )("Most bytes that one pull takes from memory.")
    max_transfer_count_in_memory: int = PULLING.key(
        "maxTransferCountOnMessageInMemory", 32, MESSAGES, IMPORTANT, PULLS
    )("Most messages that one pull takes from memory.")
    max_transfer_bytes_on_disk: int = PULLING.key(
        "maxTransferBytesOnMessageInDisk", 65536, BYTES, IMPORTANT, PULLS
    )("Most bytes that one pull takes from disk.")
    max_transfer_count_on_disk: int = PULLING.key(
        "maxTransferCountOnMessageInDisk", 8, MESSAGES, IMPORTANT, PULLS
    )("Most messages that one pull takes from disk.")
    default_query_max_num: int = PULLING.key("defaultQueryMaxNum", 32, MESSAGES, QUERIES)(
        "Most messages that a query by key answers."
    )
    config_black_list: tuple[str, ...] = CHANGES.key(
        "configBlackList", ("configBlackList", "brokerConfigPath"), KEY_LIST, BY_HAND
    )("Keys that updateBrokerConfig may not change.")


class ReadMark(Enum):
    """How far a SYNC_MASTER's consumers may read; see haservice.replication.master.read_mark."""

    IN_SYNC = "IN_SYNC"
    STRICT = "STRICT"
    OFF = "OFF"


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """The replication port of a master, and the slave's side of it."""

    listen_port: int = ADDRESSES.key("haListenPort", 0, PORT_OR_NONE, GUARDED)(
        "Where a master takes slaves. 0 or not set: listenPort + 1."
    )
    master_address: str | None = REPLICATION.key(
        "haMasterAddress", None, Values("host:port", check=texts.check_address), IMPORTANT, GUARDED
    )("A slave's master. Not set: what the nameserver says.")
    slave_timeout_ms: int = REPLICATION.key("slaveTimeout", 3000, MS, SEND_WAITS)(
        "How long a SYNC_MASTER's send waits for a slave."
    )
    in_sync_replicas: int = REPLICATION.key("inSyncReplicas", 1, Values("replicas"))(
        "Replicas that a SYNC_MASTER's message has to be on, itself included; 1, as 2, waits for one slave. A "
        "key of RocketMQ 5."
    )
    read_mark: ReadMark = REPLICATION.key("haReadMark", ReadMark.IN_SYNC, ANY, OURS)(
        "How far consumers read. IN_SYNC: with SYNC_FLUSH only what is flushed, and of a SYNC_MASTER only "
        "what an in-sync slave has; while there is no such slave, all. STRICT: while there is none, nothing "
        "new, and nothing after a start; of a slave only what its master has told to be acknowledged. OFF: all, "
        "as RocketMQ."
    )
    heartbeat_interval_ms: int = REPLICATION.key("haSendHeartbeatInterval", 5000, MS)(
        "Silence after which master and slave send a sign of life."
    )
    housekeeping_interval_ms: int = REPLICATION.key("haHousekeepingInterval", 20000, MS)(
        "Silence of the other side after which the connection is closed."
    )
    transfer_batch_bytes: int = REPLICATION.key(
        "haTransferBatchSize", 32768, Values("bytes", high=TRANSFER_BATCH_MAX)
    )("Most bytes of the log in one frame to a slave.")
    fallbehind_max_bytes: int = REPLICATION.key("haSlaveFallbehindMax", 268435456, BYTES)(
        "A slave further behind does not count as available."
    )
    allowed_slaves: tuple[str, ...] = REPLICATION.key(
        "haAllowedSlaves", (), Values("network,…", check=texts.network, separator=","), OURS, GUARDED
    )("Networks that slaves may come from, such as 10.0.0.0/8. Not set: all.")
    max_connections: int = REPLICATION.key("haMaxConnections", 64, CONNECTIONS, OURS, GUARDED)(
        "Most replication connections at once."
    )
    max_connections_per_address: int = REPLICATION.key(
        "haMaxConnectionsPerAddress", 8, CONNECTIONS, OURS, GUARDED
    )("Most replication connections of one address at once.")
    sample_interval_ms: int = REPLICATION.key("haSampleInterval", 1000, Values("ms", low=0), OURS)(
        "How often the state of replication, if it has changed, is written to hasamples/ below "
        "storePathRootDir; for mqpipeline lag-report. 0: never."
    )
    plain_port: bool = REPLICATION_TLS.key("haPlainPort", True, ANY, OURS, BY_HAND)(
        "false leaves haListenPort closed; slaves then come to haSecurePort only."
    )
    secure_port: int = REPLICATION_TLS.key("haSecurePort", 0, PORT_OR_NONE, OURS, BY_HAND)(
        "Where a master takes slaves over TLS, with certificates on both sides, and where a slave with "
        "haSecureMaster looks for it. 0: nowhere."
    )
    secure_master: bool = REPLICATION_TLS.key("haSecureMaster", False, ANY, OURS, BY_HAND)(
        "A slave follows over TLS only: at haMasterAddress, or at haSecurePort of the host that the "
        "nameserver says."
    )
    secure_cert: Path | None = REPLICATION_TLS.key("haSecureCertPath", None, ANY, OURS, BY_HAND)(
        "This broker's certificate for replication, and those between it and its root, in PEM."
    )
    secure_key: Path | None = REPLICATION_TLS.key("haSecureKeyPath", None, ANY, OURS, BY_HAND)(
        "The private key of that certificate, not locked."
    )
    secure_trust: Path | None = REPLICATION_TLS.key("haSecureTrustCertPath", None, ANY, OURS, BY_HAND)(
        "The roots that certificates of other brokers must come from; those of the system do not count."
    )


@dataclass(frozen=True, slots=True)
class RemotingConfig:
    """The clients' port of a broker, and its second one, two below."""

    bind_address: str = ADDRESSES.key("bindAddress", "0.0.0.0", Values(check=texts.address), OURS, GUARDED)(
        "The address that all ports of this broker are opened on."
    )
    listen_port: int = ADDRESSES.key("listenPort", 10911, PORT, GUARDED)(
        "Where clients come. listenPort - 2 is opened beside it."
    )
    idle_seconds: int = ADDRESSES.key("serverChannelMaxIdleTimeSeconds", 120, SECONDS)(
        "A client that is silent for so long is disconnected."
    )
    unread_bytes_max: int = ADDRESSES.key(
        "maxUnreadAnswerBytes", 128 * 1024 * 1024, Values("bytes", low=32 * 1024 * 1024), OURS
    )(
        "Answers that all clients together have not read yet; memory may be twice that. Above it, those that have "
        "read nothing for longest are disconnected."
    )
    metrics_addr: str | None = ADDRESSES.key("metricsListenAddr", None, HTTP_ADDRESS, OURS, GUARDED)(
        METRICS_DOC
    )

    @property
    def vip_port(self) -> int:
        """RocketMQ's second port: everything but pulls.  0 (any free port) if listen_port is 0."""
        return self.listen_port - 2 if self.listen_port else 0


@dataclass(frozen=True, slots=True)
class NameserverConfig:
    """What a nameserver needs."""

    bind_address: str = ADDRESSES.key("bindAddress", "0.0.0.0", Values(check=texts.address), OURS, GUARDED)(
        "The address that the port is opened on."
    )
    listen_port: int = ADDRESSES.key("listenPort", 9876, PORT, GUARDED)("Where brokers and clients come.")
    kv_config_path: Path = CLIENT_VALUES.key("kvConfigPath", _kv_config_path, ANY, BY_HAND)(
        "The file of the key-value configuration, written on every change."
    )
    config_store_path: Path = CHANGES.key("configStorePath", _namesrv_config_path, ANY, BY_HAND)(
        "Where updateNamesrvConfig stores, when the nameserver was started without a file."
    )
    config_black_list: tuple[str, ...] = CHANGES.key(
        "configBlackList", ("configBlackList", "configStorePath", "kvConfigPath"), KEY_LIST, BY_HAND
    )("Keys that updateNamesrvConfig may not change.")
    order_message_enable: bool = CLIENT_VALUES.key("orderMessageEnable", False, ANY, ROUTES)(
        "Routes carry the configuration of ordered topics."
    )
    idle_seconds: int = ADDRESSES.key("serverChannelMaxIdleTimeSeconds", 120, SECONDS)(
        "A peer that is silent for so long is disconnected."
    )
    unread_bytes_max: int = ADDRESSES.key(
        "maxUnreadAnswerBytes", 128 * 1024 * 1024, Values("bytes", low=32 * 1024 * 1024), OURS
    )(
        "Answers that all peers together have not read yet; memory may be twice that. Above it, those that have "
        "read nothing for longest are disconnected."
    )
    metrics_addr: str | None = ADDRESSES.key("metricsListenAddr", None, HTTP_ADDRESS, OURS, GUARDED)(
        METRICS_DOC
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
    coordinator: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    dledger: DLedgerConfig = field(default_factory=DLedgerConfig)
    source: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def broker_addr(self) -> str:
        """What clients are told: in routes, registrations, message ids."""
        return f"{self.broker.broker_ip1}:{self.remoting.listen_port}"

    @property
    def ha_server_addr(self) -> str:
        """What slaves are told, through the nameserver."""
        return f"{self.broker.broker_ip2}:{self.replication.listen_port}"
