"""Options of reading with format "rocketmq"."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from haservice.pipeline.sources.brokers import name_servers
from haservice.pipeline.sources.options import (
    PUSH_FILTERS,
    Place,
    WrongOption,
    flag,
    names,
    option,
    place,
    text,
    timestamp_ms,
    topics,
    whole,
)

FORMAT = "rocketmq"


class ReadFrom(Enum):
    """Which brokers of a name are read; slaves stand in for a master that is away."""

    MASTER = "master"
    SLAVE = "slave"


def read_from(value: str) -> ReadFrom:
    try:
        return ReadFrom(value.strip().lower())
    except ValueError:
        raise ValueError(f"allowed are {', '.join(one.value for one in ReadFrom)}") from None


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of reading."""

    name_servers: tuple[str, ...] = option(
        "nameServer", (), name_servers, "Nameservers, host:port;host:port."
    )
    topics: tuple[str, ...] = option("topic", (), topics, "The topics, separated by commas.")
    expression: str = option("subExpression", "*", text, "Only messages with these tags: TagA || TagB.")
    read_from: ReadFrom = option(  # noqa: RUF009 - an enum's member
        "readFrom", ReadFrom.MASTER, read_from, "master, or slave to spare it."
    )
    starting_offsets: Place | None = option(  # noqa: RUF009 - None
        "startingOffsets", None, place, "Where to begin: earliest, which a batch does, latest, or JSON."
    )
    ending_offsets: Place | None = option(  # noqa: RUF009 - None
        "endingOffsets", None, place, "Where to end; a batch only."
    )
    starting_ms: int | None = option(
        "startingTimestamp", None, timestamp_ms, "Only what was stored at this time, in ms, or later."
    )
    ending_ms: int | None = option(
        "endingTimestamp", None, timestamp_ms, "Only what was stored before this time; a batch only."
    )
    partitions_min: int = option(
        "minPartitions", 1, whole(1), "At least so many tasks, if there are messages."
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        True,
        flag,
        "Whether it is an error that a queue no longer holds what is to be read.",
    )
    offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger", None, whole(1), "Offsets in a batch of a stream, at most."
    )
    columns: tuple[str, ...] = option("columns", (), names, "Only these columns are read; else all.")
    decompress: bool = option("decompress", False, flag, "Whether compressed bodies are unpacked.")
    push_filters: bool = option("pushFilters", False, flag, PUSH_FILTERS)
    credentials_file: str | None = option(
        "aclCredentialsFile",
        None,
        text,
        "accessKey and secretKey as in tools.yml; the same path on all workers.",
    )

    def check(self) -> None:
        """Raises WrongOption if an option that every read needs is missing."""
        if not self.name_servers:
            raise WrongOption(FORMAT, 0, "nameServer", "has to be given, such as 127.0.0.1:9876")
        if not self.topics:
            raise WrongOption(FORMAT, 0, "topic", "has to be given")
