"""Which consumer groups have a message: queryMsgById and its like show it below the message."""

from __future__ import annotations

from typing import NamedTuple

from commitlog.kernel.records import StoredMessage, decode_properties
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.groups.group_calls import consume_stats, consumer_connection
from haservice.admin.commands.topics.topic_list import topic_groups
from haservice.client.message import host_text
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.admin import ConsumerConnection
from haservice.remoting.bodies.clients import MASTER_ID, TopicRouteData
from haservice.remoting.codes import ResponseCode

ALL_TAGS = "*"


class Track(NamedTuple):
    """RocketMQ's MessageTrack.  `kind` is NOT_ONLINE, PULL, CONSUMED, CONSUMED_BUT_FILTERED, NOT_CONSUME_YET
    or UNKNOWN; UNKNOWN comes with the reason.
    """

    group: str
    kind: str
    failure: str | None = None

    def __str__(self) -> str:
        failure = self.failure or "null"
        return f"MessageTrack [consumerGroup={self.group}, trackType={self.kind}, exceptionDesc={failure}]"


def tracks(admin: MQAdmin, message: StoredMessage, groups_max: int | None = None) -> list[Track]:
    """A track for each group that consumes the message's topic, or the first so many.  Raises RemotingError."""
    route = admin.route(message.topic)
    groups = topic_groups(admin, message.topic, route)[:groups_max]
    return [_track(admin, group, message, route) for group in groups]


def _track(admin: MQAdmin, group: str, message: StoredMessage, route: TopicRouteData) -> Track:
    try:
        members = consumer_connection(admin, group)
        if members.consume_type == "CONSUME_ACTIVELY":
            return Track(group, "PULL")
        if not _consumed(admin, group, message, route):
            return Track(group, "NOT_CONSUME_YET")
        return Track(group, "CONSUMED" if wanted(members, message) else "CONSUMED_BUT_FILTERED")
    except AnswerError as error:
        offline = error.code == ResponseCode.CONSUMER_NOT_ONLINE
        return Track(group, "NOT_ONLINE" if offline else "UNKNOWN", f"CODE:{error.code} DESC:{error.remark}")
    except RemotingError as error:
        return Track(group, "UNKNOWN", str(error))


def _consumed(admin: MQAdmin, group: str, message: StoredMessage, route: TopicRouteData) -> bool:
    """Whether the group's offset is beyond the message, at the broker that stored it."""
    stored_at = host_text(message.store_host)
    masters = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in route.broker_datas}
    stats, _ = consume_stats(admin, group, message.topic)
    return any(
        progress.consumer_offset > message.queue_offset
        for queue, progress in stats.offset_table.items()
        if queue.topic == message.topic
        and queue.queue_id == message.queue_id
        and masters.get(queue.broker_name) == stored_at
    )


def wanted(members: ConsumerConnection, message: StoredMessage) -> bool:
    """Whether the group's subscription takes the message's tag.  Pure."""
    data = members.subscription_table.get(message.topic)
    if data is None or not data.tags_set or ALL_TAGS in data.tags_set:
        return True
    return decode_properties(message.properties).get("TAGS") in data.tags_set
