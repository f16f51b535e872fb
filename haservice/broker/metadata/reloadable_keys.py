"""Keys of a broker that `updateBrokerConfig` changes while it runs, by the part that takes them.

All others count from the next start on.  What processors take is told to them in haservice.broker.handlers.
"""

from __future__ import annotations

from commitlog.upkeep.retention import Retention
from haservice.broker.groups.subscription_groups import Groups
from haservice.broker.metadata.persistence import Persistence
from haservice.broker.metadata.registration import Registration
from haservice.broker.metadata.topics import TopicTable
from haservice.broker.send.durability import Durability
from haservice.configuration.live_settings import LiveSettings
from haservice.configuration.settings import NodeConfig

# Sends and replies.
SEND_LIMITS = frozenset(
    {
        "regionId",
        "traceOn",
        "startAcceptSendRequestTimeStamp",
        "osPageCacheBusyTimeOutMills",
        "maxPendingSends",
    }
)
REPLIES = SEND_LIMITS | {"storeReplyMessageEnable"}
ADMISSION = frozenset({"brokerPermission", "rejectTransactionMessage"})
# Open transactions, of which the oldest are given up with the log.
TRANSACTIONS = frozenset(
    {"transactionTimeOut", "transactionCheckMax", "transactionCheckInterval", "fileReservedTime"}
)
# Pulls.
PULLS = frozenset(
    {
        "brokerPermission",
        "longPollingEnable",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "offsetCheckInSlave",
    }
)
READS = frozenset(
    {
        "accessMessageInMemoryMaxRatio",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferCountOnMessageInDisk",
        "passDamagedMessages",
    }
)
FILTERS = frozenset({"enablePropertyFilter", "filterSupportRetry"})
QUERIES = frozenset({"defaultQueryMaxNum"})
# Tables.
GROUP_TABLE = frozenset({"autoCreateSubscriptionGroup"})
TOPIC_TABLE = frozenset({"autoCreateTopicEnable"})
TOPICS_BOUND = frozenset({"maxTopics"})
PERSISTENCE = frozenset({"flushConsumerOffsetInterval"})
# Name servers.  A changed permission is told at once.
REGISTRATION = frozenset({"brokerPermission", "registerNameServerPeriod", "registerBrokerTimeoutMills"})
PERMISSION = frozenset({"brokerPermission"})
# How long a send waits for its proofs.
DURABILITY = frozenset({"syncFlushTimeout", "slaveTimeout"})
# What goes from the disk, and when.
RETENTION = frozenset({"deleteWhen", "fileReservedTime", "diskMaxUsedSpaceRatio", "cleanFileForciblyEnable"})


def follow_settings(
    live: LiveSettings[NodeConfig],
    *,
    groups: Groups,
    topics: TopicTable,
    persistence: Persistence,
    retention: Retention,
    durability: Durability,
    registration: Registration,
) -> None:
    """Has these parts take what changes of their keys."""
    live.follow(GROUP_TABLE, lambda c: groups.configure(c.broker.auto_create_subscription_group))
    live.follow(TOPIC_TABLE, lambda c: topics.allow_creation(c.broker.auto_create_topic_enable))
    live.follow(TOPICS_BOUND, lambda c: topics.configure(c.broker.max_topics))
    live.follow(
        PERSISTENCE, lambda c: persistence.configure(c.broker.flush_consumer_offset_interval_ms / 1000)
    )
    live.follow(RETENTION, lambda c: retention.configure(c.log))
    live.follow(
        DURABILITY,
        lambda c: durability.configure(
            flush_timeout_s=c.log.sync_flush_timeout_ms / 1000,
            replica_timeout_s=c.replication.slave_timeout_ms / 1000,
        ),
    )
    live.follow(
        REGISTRATION,
        lambda c: registration.configure(
            permission=c.broker.permission,
            period_s=c.broker.register_period_ms / 1000,
            timeout_s=c.broker.register_timeout_ms / 1000,
        ),
    )
    # Under a new version, for name servers take no notice of what they know.
    live.follow(PERMISSION, lambda _: topics.renew_version())
