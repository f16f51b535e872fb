"""What etcd answers, as its JSON gateway writes it: values of declared types, or a ValueError.

A proxy in between may answer `{}`, or a page of its own; so what etcd always sends is wanted.  Numbers of 64 bits
come as text, bytes as base64, and what is 0 or empty is left out.  A ttl that no lease of ours has is refused as
well: a lease that is believed to live too long would keep a master that another has replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from haservice.bounds import LONG_MAX
from haservice.coordination.cluster import TTL_S_MAX
from haservice.coordination.coordinator import Snapshot, Versioned
from haservice.typed_json import decode_lax as decode

Revision = Annotated[int, Meta(ge=0, le=LONG_MAX)]


@dataclass(frozen=True, slots=True)
class Header:
    """Of each answer."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease."""

    ID: Annotated[int, Meta(ge=1, le=LONG_MAX)]
    TTL: Annotated[int, Meta(ge=1, le=int(TTL_S_MAX))]


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """For how long a lease lives from now on; 0 if it is over, or -1."""

    header: Header
    TTL: Annotated[int, Meta(ge=-1, le=int(TTL_S_MAX))] = 0


@dataclass(frozen=True, slots=True)
class KeptAlive:
    """A line of the stream that answers."""

    result: TimeToLive


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: bytes
    mod_revision: Revision = 0
    value: bytes = b""
    lease: Annotated[int, Meta(ge=0, le=LONG_MAX)] = 0


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys."""

    header: Header
    kvs: tuple[KeyValue, ...] = ()


@dataclass(frozen=True, slots=True)
class InTransaction:
    """The answer to one request of a transaction."""

    response_range: KeyRange | None = None


@dataclass(frozen=True, slots=True)
class Transacted:
    """A transaction."""

    header: Header
    succeeded: bool = False
    responses: tuple[InTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Of the server.  Its alarms are among `errors`."""

    header: Header
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """What each call shows from now on."""

    token: str


@dataclass(frozen=True, slots=True)
class Anything:
    """Nobody looks at it."""


@dataclass(frozen=True, slots=True)
class _Event:
    kv: KeyValue


@dataclass(frozen=True, slots=True)
class _Changes:
    canceled: bool = False
    cancel_reason: str = ""
    events: tuple[_Event, ...] = ()


@dataclass(frozen=True, slots=True)
class _Change:
    result: _Changes


@dataclass(frozen=True, slots=True)
class _Error:
    """Of an answer that is a refusal, and of a stream."""

    message: str = ""
    grpc_code: int = -1


@dataclass(frozen=True, slots=True)
class _Refusal:
    error: str | _Error = ""
    code: int = -1


def snapshot(done: Transacted, root: str, ranges: int) -> Snapshot:
    """The keys of so many ranges, without `root`.  Raises ValueError if not all of them are there."""
    found = [one.response_range for one in done.responses]
    if not done.succeeded or len(found) != ranges or None in found:
        raise ValueError(f"{len(found)} answers to {ranges} questions for keys")
    kvs = (one for some in found if some is not None for one in some.kvs)
    return {name_of(one.key)[len(root) :]: Versioned(one.value, one.mod_revision) for one in kvs}


def names(kvs: Iterable[KeyValue], above: bytes) -> list[str]:
    """CLUSTER/NAME of all keys below `above`."""
    parts = (name_of(one.key[len(above) :]).split("/") for one in kvs)
    return sorted({"/".join(one[:2]) for one in parts if len(one) > 2})


def changed(line: bytes) -> list[str]:
    """The keys that a line of a watch tells of.

    Raises ValueError if the server has ended this watch, which leaves the stream open and silent.
    """
    if not line.strip():
        return []
    result = decode(_Change, line).result
    if result.canceled:
        raise ValueError(result.cancel_reason or "etcd has ended the watch")
    return [name_of(one.kv.key) for one in result.events]


def name_of(key: bytes) -> str:
    """A key of ours is UTF-8; another's is shown as it is, with \\xff for what is none."""
    return key.decode(errors="backslashreplace")


def refusal(said: bytes) -> tuple[int, str]:
    """gRPC's code, -1 if there is none, and the text in one line."""
    code, text = -1, said.decode(errors="replace")
    try:
        found = decode(_Refusal, said)
    except ValueError:
        pass
    else:
        inner = found.error
        code, said_text = (
            (inner.grpc_code, inner.message) if isinstance(inner, _Error) else (found.code, inner)
        )
        text = said_text or text
    return code, " ".join(text.split())[:200]
