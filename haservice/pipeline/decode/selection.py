"""Which records are wanted: options and pushed-down filters, as ranges to skip by and as a mask to choose by.

This takes filters on topic, queueId, queueOffset, physicalOffset and storeTimestamp from Spark: equality,
order and IN.  It applies them exactly, so Spark does not check again.  Other filters stay with Spark.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from haservice.pipeline.decode.bulk import Records
from haservice.pipeline.decode.scan import Damage
from haservice.pipeline.decode.texts import Flags, Ints
from haservice.pipeline.sources.options import LATEST, LogSourceOptions, Offsets, offsets_of

# Skipping by time allows for a broker's clock that was set back by this much.
CLOCK_SLACK_MS = 600_000
_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_US = datetime.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Numbers from `low` to `high`, both included; if `values` are given, only those of them."""

    low: int = _MIN
    high: int = _MAX
    values: frozenset[int] | None = None

    def also(self, other: NumberRange) -> NumberRange:
        """The numbers that are in both."""
        values = other.values if self.values is None else self.values
        if self.values is not None and other.values is not None:
            values = self.values & other.values
        low, high = max(self.low, other.low), min(self.high, other.high)
        if values is not None:
            values = frozenset(value for value in values if low <= value <= high)
            low, high = (min(values), max(values)) if values else (_MAX, _MIN)
        return NumberRange(low, high, values)

    def mask(self, numbers: Ints) -> Flags:
        if self.values is not None and len(self.values) > 1:
            wanted = np.array(sorted(self.values), np.int64)
            return np.isin(numbers, wanted)
        return (numbers >= self.low) & (numbers <= self.high)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is wanted of a store.  `of_damage`: damage, too, unless a filter asks for what damage lacks."""

    topics: frozenset[str] | None = None
    bounds: Mapping[str, NumberRange] = field(default_factory=dict)
    begins: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)
    of_damage: bool = True

    @classmethod
    def of_options(cls, options: LogSourceOptions) -> Selection:
        bounds = {}
        if options.starting_ms is not None or options.ending_ms is not None:
            begin = _MIN if options.starting_ms is None else options.starting_ms
            end = _MAX if options.ending_ms is None else options.ending_ms - 1
            bounds["storeTimestamp"] = NumberRange(begin, end)
        starting = options.starting_offsets if options.starting_ms is None else None
        ending = options.ending_offsets if options.ending_ms is None else None
        return cls(
            topics=frozenset(options.topics) or None,
            bounds=bounds,
            begins={} if starting is None else starting.offsets,
            ends={} if ending is None else {key: at for key, at in ending.offsets.items() if at != LATEST},
        )

    def push(self, filters: Iterable[Filter]) -> tuple[Selection, list[Filter]]:
        """A selection with those filters that it can apply, and the other filters."""
        selection, others = self, []
        for one in filters:
            held = selection._with(one)
            if held is None:
                others.append(one)
            else:
                selection = held
        return selection, others

    def _with(self, one: Filter) -> Selection | None:
        if len(getattr(one, "attribute", ())) != 1:
            return None
        (column,) = one.attribute  # type: ignore[attr-defined]
        if column == "topic":
            wanted = _texts(one)
            if wanted is None:
                return None
            topics = wanted if self.topics is None else self.topics & wanted
            return replace(self, topics=topics, of_damage=False)
        bounds = _bounds(one, _UNITS[column]) if column in _UNITS else None
        if bounds is None:
            return None
        bounds = bounds.also(self.bounds.get(column, NumberRange()))
        of_damage = self.of_damage and column == "physicalOffset"
        return replace(self, bounds={**self.bounds, column: bounds}, of_damage=of_damage)

    # -- skipping -------------------------------------------------------------------------------------

    @property
    def physical(self) -> NumberRange:
        return self.bounds.get("physicalOffset", NumberRange())

    def skips_time(self, first_ms: int, last_ms: int) -> bool:
        """Whether nothing stored between these times is wanted, even if the clock was set back a little."""
        wanted = self.bounds.get("storeTimestamp", NumberRange())
        return last_ms + CLOCK_SLACK_MS < wanted.low or first_ms - CLOCK_SLACK_MS > wanted.high

    @property
    def by_time(self) -> bool:
        return "storeTimestamp" in self.bounds

    # -- choosing ---------------------------------------------------------------------------------------

    @property
    def takes_all(self) -> bool:
        """Whether everything is wanted, damage included: nothing else leaves damage out."""
        return self.topics is None and not (self.bounds or self.begins or self.ends)

    def keeps(self, damage: Damage) -> bool:
        return self.of_damage and bool(self.physical.mask(np.array([damage.begin]))[0])

    def choose(self, records: Records, broker_name: str) -> Records:
        """The wanted ones of this broker's records."""
        for column, bounds in self.bounds.items():
            if len(records):
                records = records.where(bounds.mask(_NUMBERS[column](records)))
        if self.topics is not None and len(records):
            wanted = frozenset(topic.encode() for topic in self.topics)
            records = records.where(records.topics.among(wanted))
        for offsets, begins in ((self.begins, True), (self.ends, False)):
            if offsets and len(records):
                wanted_of = offsets_of(offsets, broker_name)
                records = records.where(_queue_mask(records, wanted_of, begins=begins))
        return records


def _queue_mask(records: Records, offsets: Mapping[tuple[str, int], int], *, begins: bool) -> Flags:
    """Which records lie at or behind (`begins`), or before, their queue's offset; true for other queues."""
    wanted = np.ones(len(records), np.bool_)
    queue_ids, queue_offsets = records.queue_ids, records.queue_offsets
    for topic in {topic for topic, _ in offsets}:
        of_topic = records.topics.among(frozenset((topic.encode(),)))
        for (name, queue_id), offset in offsets.items():
            if name == topic:
                inside = queue_offsets >= offset if begins else queue_offsets < offset
                wanted &= ~(of_topic & (queue_ids == queue_id)) | inside
    return wanted


_NUMBERS: dict[str, Any] = {
    "queueId": lambda records: records.queue_ids,
    "queueOffset": lambda records: records.queue_offsets,
    "physicalOffset": lambda records: records.physical_offsets,
    "storeTimestamp": lambda records: records.store_ms,
}
# How many of a filter value's units make one of the column's; a filter's times are in microseconds.
_UNITS = {"queueId": 1, "queueOffset": 1, "physicalOffset": 1, "storeTimestamp": 1000}


def _texts(one: Filter) -> frozenset[str] | None:
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(one.value, str):
        return frozenset((one.value,))
    if isinstance(one, In) and all(isinstance(value, str) for value in one.value):
        return frozenset(one.value)
    return None


def _bounds(one: Filter, unit: int) -> NumberRange | None:
    """The numbers of a column that fulfil the filter; None for another kind of filter."""
    values = list(_numbers(one, unit))
    if not values or None in values:
        return None
    numbers = [value for value in values if value is not None]
    value = numbers[0]
    match one:
        case EqualTo() | EqualNullSafe() | In():
            return NumberRange().also(
                NumberRange(values=frozenset(n // unit for n in numbers if n % unit == 0))
            )
        case GreaterThan():
            return NumberRange(low=value // unit + 1)
        case GreaterThanOrEqual():
            return NumberRange(low=-(-value // unit))
        case LessThan():
            return NumberRange(high=-(-value // unit) - 1)
        case LessThanOrEqual():
            return NumberRange(high=value // unit)
    return None


def _numbers(one: Filter, unit: int) -> Iterator[int | None]:
    """The filter's values as whole numbers; None for a value that is none."""
    values = one.value if isinstance(one, In) else (getattr(one, "value", None),)
    for value in values:
        if unit > 1 and isinstance(value, datetime.datetime) and value.tzinfo is not None:
            yield (value - _EPOCH) // _US
        elif unit == 1 and isinstance(value, int) and not isinstance(value, bool):
            yield value
        else:
            yield None
