"""The ext fields by which two brokers of ours copy tables by change.  Stock brokers send none and ignore them.

| request | its fields | the answer's fields |
| --- | --- | --- |
| 43 | part, copy, since | version, changes, copy, more |
| 21, 201 | knownCounter, knownTimestamp, of 21 knownBy | unchanged |
"""

from __future__ import annotations

from dataclasses import dataclass

from haservice.bounds import ShortText
from haservice.remoting.headers.clients import I32, I64, ExtHeader


@dataclass(frozen=True, slots=True)
class CopyOffsetsHeader(ExtHeader):
    """43 of a slave of ours.  `part` None: the asker is none of ours, or an older one.

    `since` is the version that the slave has; `copy` is the one that the parts before were of.
    """

    part: I32 | None = None
    copy: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class OffsetsCopyHeader(ExtHeader):
    """The answer of a master of ours.  `version` None: the master is none of ours, or an older one.

    `changes`: the body has only what changed since `since`.  Else it is a part of the table, and if there is
    `more`, the next part of this `copy` can be asked for.
    """

    version: str | None = None
    changes: bool = False
    copy: str = ""
    more: bool = False


@dataclass(frozen=True, slots=True)
class KnownVersionHeader(ExtHeader):
    """21 and 201 of a slave of ours: the data version that it has, and its address."""

    known_counter: I64 | None = None
    known_timestamp: I64 | None = None
    known_by: ShortText | None = None


@dataclass(frozen=True, slots=True)
class TableCopyHeader(ExtHeader):
    """The answer: `unchanged` if the slave has this version; the body is then empty."""

    unchanged: bool = False
