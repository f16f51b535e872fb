"""Options of the sources: turns Spark's strings into frozen values; names an unknown or wrong option.

Spark gives a source its options with lower-case names; users may write any name in any case.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from inspect import isgeneratorfunction
from types import FunctionType
from typing import Any, TypeVar

from commitlog.errors import CommitLogError
from haservice.client.errors import MessageIllegal
from haservice.client.message import check_topic
from haservice.errors import ConfigError, HAServiceError, RemotingClosed, RemotingError, RemotingUnreachable
from haservice.terminal.explain import advise

T = TypeVar("T")
C = TypeVar("C")

# What explains itself to a user.
EXPLAINED = (HAServiceError, CommitLogError, OSError)

EARLIEST, LATEST = -2, -1
# From a JSON of offsets: by topic, broker (None: all brokers), and queue id.
Offsets = Mapping[tuple[str, str | None, int], int]


class Mode(Enum):
    """What a read does with damaged bytes."""

    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading begins or ends: at the log's `earliest` or `latest`, or at queue offsets.

    `offsets` may hold EARLIEST and LATEST, too; a queue that it does not name is read whole.
    """

    everywhere: int
    offsets: Offsets = dataclasses.field(default_factory=dict)

    def of(self, topic: str, broker_name: str, queue_id: int) -> int:
        return offsets_of(self.offsets, broker_name).get((topic, queue_id), self.everywhere)


def offsets_of(offsets: Offsets, broker_name: str) -> dict[tuple[str, int], int]:
    """Offsets by topic and queue id; an offset for this broker takes precedence over one for all."""
    general = {(topic, queue): at for (topic, broker, queue), at in offsets.items() if broker is None}
    own = {(topic, queue): at for (topic, broker, queue), at in offsets.items() if broker == broker_name}
    return general | own


class WrongOption(ConfigError):
    """A user's option is wrong."""


def one_sentence(kind: type[C]) -> type[C]:
    """Decorates a class whose methods Spark calls in processes of its own: what we raise on purpose explains
    itself, and Spark shows it without a traceback.
    """
    for name, value in list(vars(kind).items()):
        if isinstance(value, FunctionType) and value.__module__ == kind.__module__:
            setattr(kind, name, _of_generator(value) if isgeneratorfunction(value) else _of_function(value))
    return kind


def _of_function(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kw: Any) -> Any:
        try:
            return method(*args, **kw)
        except EXPLAINED as error:
            _show_plainly(error)
            raise

    return call


def _of_generator(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(method)
    def call(*args: Any, **kw: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **kw)
        except EXPLAINED as error:
            _show_plainly(error)
            raise

    return call


def _show_plainly(error: BaseException) -> None:
    """A process of Spark's ends with the error, so nothing else loses its traceback."""
    if not _is_spark(sys.modules["__main__"]):
        return
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    advice = _advice(error)
    if advice and not hasattr(error, "__notes__"):
        error.add_note(advice)


def _advice(error: BaseException) -> str | None:
    """What to do about a server, as explain.py says it, but by the names of options."""
    match error:
        case RemotingClosed():
            return (
                f"something listens at {error.addr}, and hangs up: is it a nameserver's port (9876), as"
                " nameServer wants it, or does it take only TLS?"
            )
        case RemotingUnreachable():
            return f"does a program listen at {error.addr}?  nameServer names nameservers (port 9876)"
        case RemotingError():
            return advise(error)
    return None


def _is_spark(main: object) -> bool:
    """Whether this process runs for Spark's Java, and not a program of the user's."""
    name = getattr(getattr(main, "__spec__", None), "name", None) or ""
    return name.startswith(("pyspark.daemon", "pyspark.worker", "pyspark.sql."))


def option(key: str, default: Any, parse: Callable[[str], Any], doc: str) -> Any:
    """A field that is read from the option `key`; `parse` raises ValueError that says what is allowed."""
    return dataclasses.field(default=default, metadata={"key": key, "parse": parse, "doc": doc})


def read_options(kind: type[T], source: str, given: Mapping[str, str]) -> T:
    """Makes the options dataclass `kind` of format `source` from a user's options.

    Raises WrongOption with the option's name; for an unknown one also with the nearest known name.
    """
    fields = {field.metadata["key"].lower(): field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    known = [field.metadata["key"] for field in fields.values()]
    values = {}
    for name, text in given.items():
        field = fields.get(name.lower())
        if field is None:
            near = difflib.get_close_matches(name.lower(), list(fields), 1, 0.5)
            meant = f"did you mean {fields[near[0]].metadata['key']}? " if near else ""
            raise WrongOption(source, 0, name, f"no such option; {meant}There are {', '.join(known)}", text)
        try:
            values[field.name] = field.metadata["parse"](text)
        except ValueError as error:
            raise WrongOption(source, 0, field.metadata["key"], str(error), text) from None
    return kind(**values)


# -- values ------------------------------------------------------------------------------------------


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def topic(value: str) -> str:
    """A name that a broker would take."""
    try:
        check_topic(text(value))
    except MessageIllegal as error:
        raise ValueError(str(error)) from None
    return text(value)


def topics(value: str) -> tuple[str, ...]:
    """Comma separated."""
    return tuple(topic(name) for name in names(value))


def names(value: str) -> tuple[str, ...]:
    """Comma separated."""
    found = tuple(name.strip() for name in value.split(",") if name.strip())
    if not found:
        raise ValueError("is empty; allowed are names, separated by commas")
    return found


def paths(value: str) -> tuple[str, ...]:
    """Comma separated, or a JSON list, as load([…]) gives it."""
    if value.lstrip().startswith("["):
        found = json.loads(value)
        if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
            raise ValueError("not a JSON list of paths")
        return tuple(_local(path) for path in found)
    return tuple(_local(path) for path in names(value))


def _local(path: str) -> str:
    """Spark's users write file:/data or file:///data for what lies on each machine."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        raise ValueError(
            f"{path}: stores are read from disks or mounts of the workers, as /data or file:/data"
        )
    return path


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number, `least` or more, and at most `most`."""
    words = f"not a whole number from {least} {'on' if most is None else f'to {most}'}"

    def parse(value: str) -> int:
        try:
            number = int(value) if value.strip().lstrip("-").isdecimal() else least - 1
        except ValueError:  # more digits than Python reads
            raise ValueError(words) from None
        if number < least or (most is not None and number > most):
            raise ValueError(words)
        return number

    return parse


def flag(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("allowed are true and false")
    return value.strip().lower() == "true"


def mode(value: str) -> Mode:
    try:
        return Mode(value.strip().upper())
    except ValueError:
        raise ValueError(f"allowed are {', '.join(one.value for one in Mode)}") from None


def place(value: str) -> Place:
    """`earliest`, `latest`, or JSON: topic > queue > offset, or topic > broker > queue > offset."""
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return Place(EARLIEST if word == "earliest" else LATEST)
    wanted = 'allowed are earliest, latest, and JSON as {"topic": {"0": 23, "1": -2}}; -2 earliest, -1 latest'
    offsets: dict[tuple[str, str | None, int], int] = {}
    try:
        for topic, below in json.loads(value).items():
            for name, what in below.items():
                if isinstance(what, dict):
                    offsets |= {(topic, name, int(queue)): offset for queue, offset in what.items()}
                else:
                    offsets[topic, None, int(name)] = what
    except (ValueError, AttributeError):
        raise ValueError(wanted) from None
    for (topic, _, queue), offset in offsets.items():
        if type(offset) is not int or offset < EARLIEST:
            raise ValueError(f"offset {offset!r} of topic {topic} queue {queue}; {wanted}")
    return Place(EARLIEST, offsets)


def timestamp_ms(value: str) -> int:
    """Milliseconds since 1970."""
    return whole(0)(value)


# Spark (4.1 to 4.3 at least) keeps a filter's result with the table that load() gave, not with the query.
# The next query of that table, or another branch of the same one, gets that filter's rows, and no others.
PUSH_FILTERS = (
    "Whether filters of a query skip what they can, before Spark looks; for a table that load() made for "
    "this query only: Spark would give its rows to the next query of the same table as well."
)


# -- the source over stores ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogSourceOptions:
    """Options of the format rocketmq-log."""

    path: tuple[str, ...] = option("path", (), paths, "Store directories; also load(path), load([path, …]).")
    paths: tuple[str, ...] = option("paths", (), paths, "The same.")
    broker_names: tuple[str, ...] = option(
        "brokerNames", (), names, "What column brokerName holds for each store; else the directory's name."
    )
    columns: tuple[str, ...] = option("columns", (), names, "Only these columns are read; else all.")
    count_by: tuple[str, ...] = option(
        "countBy",
        (),
        names,
        "Not the records: for each value of these columns how many, in parts to be summed.",
    )
    topics: tuple[str, ...] = option("topic", (), names, "Only these topics.")
    starting_offsets: Place | None = option(  # noqa: RUF009 - frozen
        "startingOffsets",
        None,
        place,
        "Where to begin; else a batch at the earliest, a new stream at the latest.",
    )
    ending_offsets: Place | None = option(  # noqa: RUF009 - frozen
        "endingOffsets", None, place, "Where to end; a batch only."
    )
    starting_ms: int | None = option(
        "startingTimestamp", None, timestamp_ms, "Only what was stored at this time, in ms, or later."
    )
    ending_ms: int | None = option(
        "endingTimestamp", None, timestamp_ms, "Only what was stored before this time; a batch only."
    )
    partitions_min: int = option("minPartitions", 1, whole(1), "At least so many tasks, as far as bytes go.")
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        True,
        flag,
        "Whether it is an error that the log no longer holds what is to be read.",
    )
    mode: Mode = option(  # noqa: RUF009 - an enum's member
        "mode", Mode.PERMISSIVE, mode, "What becomes of damaged bytes."
    )
    offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger", None, whole(1), "Records in a batch of a stream, at most."
    )
    decompress: bool = option("decompress", False, flag, "Whether compressed bodies are unpacked.")
    push_filters: bool = option("pushFilters", False, flag, PUSH_FILTERS)
    use_queues: bool = option(
        "useConsumeQueue", True, flag, "Whether rare topics are found by the store's consume queues."
    )

    @property
    def stores(self) -> tuple[str, ...]:
        return self.path or self.paths
