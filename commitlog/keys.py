"""How a configuration key is declared: once, at the dataclass field that holds its value.

    period_ms: int = REGISTERING.key("registerNameServerPeriod", 30000, MS, REGISTRATION)("How often to register.")

The field's type says how to read the text of a properties file; its Key says everything else.  All code that
reads files, prints settings, changes them while a node runs, or writes the commented files of conf/ and the
tables of docs/configuration.md, uses this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

INT_MAX = 2**31 - 1


class KeyTrait(Enum):
    """A trait that some keys have."""

    OURS = "not a key of RocketMQ's"
    IMPORTANT = "RocketMQ calls it important, and mqbroker -m prints it"
    GUARDED = "no request changes it without access control"
    BY_HAND = "no request ever changes it, only who edits the file"


OURS, IMPORTANT, GUARDED, BY_HAND = KeyTrait


@dataclass(frozen=True, slots=True)
class Taker:
    """A part of a node that takes another value of a key at once, without a restart."""

    name: str


@dataclass(frozen=True, slots=True)
class Values:
    """Which values a key takes, beyond what the type of its field says."""

    unit: str = ""
    low: int = 1
    """For a whole number, as `high`: values outside are refused."""
    high: int = INT_MAX
    held: tuple[int, int] | None = None
    """For a whole number: values outside are brought inside, with a warning.  RocketMQ does so without."""
    check: Callable[[str], str] = str
    """For a text, a path, or each part of a list: the value to use.  Raises ValueError with the reason.

    For a whole number within the bounds: it may raise, too.
    """
    separator: str = ""
    """For a list: what stands between its parts."""
    shown: str = ""
    """What files and the page say of the values, where `low` and `high` do not say all."""
    never_blank: bool = False
    """An empty value is refused.  Otherwise it means that the key is not set."""
    any_case: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A group of keys that stand together in files and on the page."""

    title: str

    def key(self, name: str, default: Any, values: Values, *notes: KeyTrait | Taker) -> Callable[[str], Any]:
        """Returns a function: called with a doc, it makes a dataclass field that is read from the key `name`.

        A callable default is called for each object.
        """
        marks = frozenset(note for note in notes if isinstance(note, KeyTrait))
        takers = frozenset(note for note in notes if isinstance(note, Taker))

        def declared(doc: str) -> Any:
            metadata = {"key": Key(name, default, values, doc, self, marks, takers)}
            if callable(default):
                return dataclasses.field(default_factory=default, metadata=metadata)
            return dataclasses.field(default=default, metadata=metadata)

        return declared


@dataclass(frozen=True, slots=True)
class Key:
    """One key.  A change counts at once if it has `takers`, else from the next start on."""

    name: str
    default: Any
    values: Values
    doc: str
    section: Section
    marks: frozenset[KeyTrait]
    takers: frozenset[Taker]

    def shown(self, value: object) -> str:
        """`value` as it would stand in a file; for a secret only that there is one."""
        if self.values.secret and value is not None:
            return "******"
        if isinstance(value, tuple):
            return self.values.separator.join(value)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, Enum):
            return value.name
        return "" if value is None else str(value)


ANY = Values()
MS = Values("ms")
BYTES = Values("bytes")
MESSAGES = Values("messages")
