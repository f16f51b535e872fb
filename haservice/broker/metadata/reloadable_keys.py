"""The reloadable keys that this package and the store follow while the broker runs.

haservice.configuration.settings declares which part follows a key.  haservice.broker.handlers tells the
processors of theirs.
"""

from __future__ import annotations

from commitlog.options import RETENTION, SEND_WAITS
from commitlog.upkeep.retention import Retention
from haservice.broker.groups.subscription_groups import Groups
from haservice.broker.metadata.persistence import Persistence
from haservice.broker.metadata.registration import Registration
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.send.durability import Durability
from haservice.broker.topics.table import TopicTable
from haservice.configuration.live_settings import LiveSettings
from haservice.configuration.settings import (
    GROUPS,
    OFFSETS,
    PERMISSION,
    REGISTRATION,
    TOPIC_COUNT,
    TOPIC_CREATION,
    NodeConfig,
)


def follow_settings(
    live: LiveSettings[NodeConfig],
    *,
    groups: Groups,
    topics: TopicTable,
    offsets: ConsumerOffsets,
    persistence: Persistence,
    retention: Retention,
    durability: Durability,
    registration: Registration,
) -> None:
    """Makes these parts follow their keys."""
    live.follow({GROUPS}, lambda c: groups.configure(c.broker.auto_create_subscription_group))
    live.follow({TOPIC_CREATION}, lambda c: topics.allow_creation(c.broker.auto_create_topic_enable))
    live.follow({TOPIC_COUNT}, lambda c: topics.configure(c.broker.max_topics))
    live.follow({OFFSETS}, lambda c: persistence.configure(c.broker.flush_consumer_offset_interval_ms / 1000))
    live.follow({OFFSETS}, lambda c: offsets.configure(c.broker.max_consumer_offset_bytes))
    live.follow({RETENTION}, lambda c: retention.configure(c.log))
    live.follow(
        {SEND_WAITS},
        lambda c: durability.configure(
            flush_timeout_s=c.log.sync_flush_timeout_ms / 1000,
            replica_timeout_s=c.replication.slave_timeout_ms / 1000,
        ),
    )
    live.follow(
        {REGISTRATION},
        lambda c: registration.configure(
            permission=c.broker.permission,
            period_s=c.broker.register_period_ms / 1000,
            timeout_s=c.broker.register_timeout_ms / 1000,
        ),
    )
    # With a new version, for nameservers ignore a version that they know.
    live.follow({PERMISSION}, lambda _: topics.renew_version())
