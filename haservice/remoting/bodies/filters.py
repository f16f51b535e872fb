"""`config/consumerFilter.json`: what groups subscribed by expression, as RocketMQ's ConsumerFilterManager
keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haservice.remoting.json_body import JSONBody


@dataclass(frozen=True, slots=True)
class BloomFilterData(JSONBody):
    """The bits that stand for one group and topic in a message's filter bitmap."""

    bit_num: int = 0
    bit_pos: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ConsumerFilterData(JSONBody):
    """One group's expression for one topic.  Times in ms; dead while `dead_time` is not below `born_time`."""

    consumer_group: str
    topic: str
    expression: str = ""
    expression_type: str = ""
    client_version: int = 0
    born_time: int = 0
    dead_time: int = 0
    dead: bool = False
    bloom_filter_data: BloomFilterData | None = None


@dataclass(frozen=True, slots=True)
class TopicFilters(JSONBody):
    """Group → its filter of this topic."""

    topic: str
    group_filter_data: Mapping[str, ConsumerFilterData] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerFilterWrapper(JSONBody):
    """The whole file: topic → its groups' filters."""

    filter_data_by_topic: Mapping[str, TopicFilters] = field(default_factory=dict)
