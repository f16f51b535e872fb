"""A history: what clients asked and were told, what was broken meanwhile, what every node held at the end.

    Invoked ──▶ Answered        one send; several sends of one `key` are its retries
    Consumed                    one record in a consumer's hands
    Faulted ──▶ Healed          the span of one fault
    RoleChanged                 a node became a master, a slave, or went away
    Promised                    from now on OK means: so many copies, so many of them flushed
    Voided                      these messages' promises are over, because a fault took what they stood on
    Waiting, Settled            an operator has to decide; everything is healed and level again
    Sampled                     how far behind a slave is
    Owed ──▶ Delivered          a message that comes later, delayed or of a transaction, or never
    Served                      what one node gives of a queue when it was all over
    FinalLog                    one node's log when it was all over

Times are seconds on one clock that all events share, in ascending order; offsets and sizes are bytes, queue
offsets entries.  As JSON lines (`dump`, `load`) a history may be written by many processes and checked later:
the simulator and the real brokers are judged by the same checker.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from commitlog.kernel.layout import BLANK, BLANK_BYTES, BLANK_MAGIC
from commitlog.kernel.records import StoredMessage, body_crc, decode, decode_properties

# Logs are compared by digests of so many bytes.
PIECE_BYTES = 4096
OK = "OK"
# A send that nobody answered: the connection was cut, or the deadline came.
UNKNOWN = "UNKNOWN"
# The broker stored nothing and said so.
REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class Invoked:
    """A send begins; by `deadline_s` it has to be answered, or given up by its client."""

    kind: ClassVar[str] = "invoked"
    at_s: float
    send: str
    key: str
    topic: str
    queue: int
    crc: int
    size: int
    client: str = ""
    deadline_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a send.  `held_by` and `flushed_by` are the nodes that had the record then, if known."""

    kind: ClassVar[str] = "answered"
    at_s: float
    send: str
    status: str
    node: str = ""
    queue_offset: int = -1
    offset: int = -1
    held_by: tuple[str, ...] | None = None
    flushed_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Consumed:
    """A consumer got this record; `below_level` says that it was shown too early, if that is known."""

    kind: ClassVar[str] = "consumed"
    at_s: float
    key: str
    topic: str
    queue: int
    queue_offset: int
    crc: int
    node: str = ""
    client: str = ""
    below_level: str = ""


@dataclass(frozen=True, slots=True)
class Owed:
    """A message of `key` that comes to consumers of `topic` later, or never.

    `deliver`: whether it has to, or must not; None: it may.  Not before `due_s`.  Of several with one key the
    last one counts.
    """

    kind: ClassVar[str] = "owed"
    at_s: float
    key: str
    topic: str
    deliver: bool | None
    due_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A consumer got what was owed; twice is allowed."""

    kind: ClassVar[str] = "delivered"
    at_s: float
    key: str
    topic: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Faulted:
    """Fault number `fault` of the kind `what` begins at a node or a link."""

    kind: ClassVar[str] = "faulted"
    at_s: float
    fault: int
    what: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Healed:
    """Fault number `fault` is over."""

    kind: ClassVar[str] = "healed"
    at_s: float
    fault: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """`node` is now `role`: "master", "slave" or "down"; a master's epoch is `epoch`, from `start` on."""

    kind: ClassVar[str] = "role"
    at_s: float
    node: str
    role: str
    epoch: int = -1
    start: int = -1
    why: str = ""


@dataclass(frozen=True, slots=True)
class Promised:
    """What OK of `node` means from here on: `replicas` nodes hold the record, `flushed` of them durably.

    Without a node it is said for all that say nothing of their own.
    """

    kind: ClassVar[str] = "promised"
    at_s: float
    replicas: int
    flushed: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class Voided:
    """What was promised for these messages so far may be gone, by the letter of the guarantee.

    `why` names the fault that took it: a power cut of unflushed pages, the death of the only holder, an
    operator who forced a failover.  `places` are queue offsets that may be given again: topic, queue, offset.
    """

    kind: ClassVar[str] = "voided"
    at_s: float
    keys: tuple[str, ...]
    why: str
    places: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A node waits for an operator's decision, and says why."""

    kind: ClassVar[str] = "waiting"
    at_s: float
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Settled:
    """All is healed; `ok` if sends are OK again and every slave is level, else `why` says what is not."""

    kind: ClassVar[str] = "settled"
    at_s: float
    ok: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Sampled:
    """How many bytes `node` is behind its master."""

    kind: ClassVar[str] = "sampled"
    at_s: float
    node: str
    lag_bytes: int


@dataclass(frozen=True, slots=True)
class Served:
    """All that `node` gives to a reader of one queue: its offsets, and the key of each."""

    kind: ClassVar[str] = "served"
    at_s: float
    node: str
    topic: str
    queue: int
    records: tuple[tuple[int, str], ...] = field(repr=False)


class FinalRecord(NamedTuple):
    """One record of a log; `crc` is that of its body."""

    key: str
    topic: str
    queue: int
    queue_offset: int
    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class FinalLog:
    """All that a node holds.  `surviving`: of the node whose log counts, the master at the end.

    `digests` are of the PIECE_BYTES from each multiple of it, whole pieces only.
    """

    kind: ClassVar[str] = "log"
    at_s: float
    node: str
    start: int
    end: int
    surviving: bool
    records: tuple[FinalRecord, ...] = field(repr=False)
    digests: dict[int, str] = field(repr=False)
    damage: str = ""
    """Where bytes begin that are no record; empty for a log that is whole."""


# The records of `data`, which begins at an offset of a log, in files of so many bytes.  Raises ValueError.
ReadLog = Callable[[bytes, int, int], Iterator[StoredMessage]]

Event = (
    Invoked
    | Answered
    | Consumed
    | Owed
    | Delivered
    | Faulted
    | Healed
    | RoleChanged
    | Promised
    | Voided
    | Waiting
    | Settled
    | Sampled
    | Served
    | FinalLog
)
_KINDS: dict[str, type[Any]] = {
    one.kind: one
    for one in (
        *(Invoked, Answered, Consumed, Faulted, Healed, RoleChanged),
        *(Owed, Delivered, Promised, Voided, Waiting, Settled, Sampled, Served, FinalLog),
    )
}


def encode(event: Event) -> str:
    """One line, without its end."""
    said = {one.name: getattr(event, one.name) for one in dataclasses.fields(event)}
    return json.dumps({"kind": event.kind, **said}, separators=(",", ":"))


def decode_line(line: str) -> Event:
    """Raises ValueError for what is no event of a history."""
    said = json.loads(line)
    kind = _KINDS.get(said.pop("kind", ""))
    if kind is None:
        raise ValueError(f"no event of a history: {line[:200]}")
    if kind is FinalLog:
        said["records"] = tuple(FinalRecord(*one) for one in said["records"])
        said["digests"] = {int(offset): digest for offset, digest in said["digests"].items()}
    for name, value in said.items():
        if isinstance(value, list):
            said[name] = tuple(tuple(one) if isinstance(one, list) else one for one in value)
    try:
        event: Event = kind(**said)
    except TypeError as error:
        raise ValueError(f"{line[:200]}: {error}") from None
    return event


def dump(events: Iterable[Event], path: Path) -> None:
    """Writes a history as JSON lines."""
    with path.open("w") as file:
        for event in events:
            file.write(encode(event) + "\n")


def load(*paths: Path) -> list[Event]:
    """Histories that several processes wrote on one clock, as one, in the order of time."""
    events = [decode_line(line) for path in paths for line in path.read_text().splitlines() if line.strip()]
    return sorted(events, key=lambda event: event.at_s)


# -- logs --------------------------------------------------------------------------------------------


def key_of(message: StoredMessage) -> str:
    """The message's key, by which a record is found again."""
    return decode_properties(message.properties).get("KEYS", "")


def final_log(
    node: str,
    data: bytes,
    start: int,
    segment_bytes: int,
    read: ReadLog | None = None,
    *,
    at_s: float,
    surviving: bool,
    key: Callable[[StoredMessage], str] = key_of,
) -> FinalLog:
    """What `data`, a log's bytes from `start` on, says in the end; `read` is messages(), or of another kind of log."""
    records, damage = [], ""
    try:
        for message in (read or messages)(data, start, segment_bytes):
            if not message.crc_ok:
                raise ValueError(f"record at {message.physical_offset} does not match its CRC")
            records.append(
                FinalRecord(
                    key(message),
                    message.topic,
                    message.queue_id,
                    message.queue_offset,
                    message.physical_offset,
                    message.size,
                    body_crc(message.body),
                )
            )
    except ValueError as error:
        damage = str(error)
    return FinalLog(
        at_s, node, start, start + len(data), surviving, tuple(records), digests(data, start), damage
    )


def messages(data: bytes, start: int, segment_bytes: int) -> Iterator[StoredMessage]:
    """The records of a log, which begins at `start`.  Raises ValueError where none is."""
    view, position = memoryview(data), 0
    while position < len(data):
        left = segment_bytes - (start + position) % segment_bytes
        if len(data) - position >= BLANK_BYTES:
            size, magic = BLANK.unpack_from(view, position)
            if magic == BLANK_MAGIC and size == left:
                position += size
                continue
        try:
            message = decode(view, position)
        except Exception as error:
            raise ValueError(f"no record at {start + position}: {error}") from None
        if message.physical_offset != start + position or message.size > left:
            raise ValueError(f"record at {start + position} says that it is at {message.physical_offset}")
        yield message
        position += message.size


def digests(data: bytes, start: int) -> dict[int, str]:
    """Of every whole piece of a log that begins at `start`."""
    first = -start % PIECE_BYTES
    return {
        start + at: hashlib.blake2b(data[at : at + PIECE_BYTES], digest_size=8).hexdigest()
        for at in range(first, len(data) - PIECE_BYTES + 1, PIECE_BYTES)
    }
