"""The header of 36: a consumer sends back a message that it could not consume."""

from __future__ import annotations

from dataclasses import dataclass

from haservice.bounds import GroupName, TopicName
from haservice.remoting.headers.clients import I32, I64, ExtHeader


@dataclass(frozen=True, slots=True)
class SendBackHeader(ExtHeader):
    """36.  `offset` is physical, as in the record; `delay_level` 0 leaves it to the broker, -1 means dead."""

    offset: I64
    group: GroupName
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: TopicName | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
