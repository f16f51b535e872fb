"""The header of 326: a broker hands a reply to the client that waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from haservice.bounds import GroupName, ShortText, TopicName
from haservice.remoting.headers.clients import I32, I64, ExtHeader


@dataclass(frozen=True, slots=True)
class ReplyMessageHeader(ExtHeader):
    """326: the fields of the reply's send, who sent it (`born_host`), and who passed it on, as `ip:port`."""

    producer_group: GroupName
    topic: TopicName
    default_topic: TopicName
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: ShortText
    store_host: ShortText
    store_timestamp: I64
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool = False
