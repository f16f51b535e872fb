"""What a SlaveSession wants done, as values.

Actions are carried out in their order.  One that fails ends the connection: what is left of its batch is
dropped, and lost() told why.  Dial, Store, Flush and Rejoin stand last in their batch, for the session goes
on by what it is told then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haservice.replication.wire.greeting import SlaveGreeting
from haservice.replication.wire.protocol import Run


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to this address, tell reached(), agree on keys, and tell connected()."""

    address: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the link, if there is one."""


@dataclass(frozen=True, slots=True)
class Send:
    """These bytes, all of them."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """End the log at this offset: what follows is no whole record, and is sent again."""

    offset: int


@dataclass(frozen=True, slots=True)
class Store:
    """Append these runs, whose views are valid until the next space(), and tell stored()."""

    runs: Sequence[Run]


@dataclass(frozen=True, slots=True)
class EndAt:
    """A bad record begins at `offset`: the log ends there.  What is whole before it stays, or is stored from
    the run; a CommitLogError is no matter, for the next check finds the log elsewhere, and looks at it."""

    offset: int
    run: Run


@dataclass(frozen=True, slots=True)
class ForgetEpochs:
    """Bytes of a stock master follow: Rejoin.follow_stock()."""


@dataclass(frozen=True, slots=True)
class Flush:
    """The log, and tell flushed(): a report is to speak of flushed bytes."""


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Do what the greeting came to, see rejoin.Rejoin.carry_out(), and tell rejoined()."""

    greeting: SlaveGreeting


@dataclass(frozen=True, slots=True)
class Break:
    """The connection is over for this: as if this action had failed with it."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Tell:
    """A line for the log of the program: a logging level, a format and its values."""

    level: int
    text: str
    values: tuple[object, ...]


Action = Dial | Close | Send | Cut | Store | EndAt | ForgetEpochs | Flush | Rejoin | Break | Tell
