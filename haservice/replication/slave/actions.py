"""What a SlaveSession wants done, as values.

The actions of a batch are carried out in order.  One that fails ends the connection: the rest of its batch is
dropped, and lost() is told why.  Dial, both Stores, Flush and Rejoin stand last in their batch, because the session
goes on with their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haservice.replication.wire.greeting import SlaveGreeting
from haservice.replication.wire.protocol import Run


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to this address, call reached(), agree on keys, and call connected()."""

    address: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the link, if there is one."""


@dataclass(slots=True)  # of every turn: to make a frozen one takes three times as long
class Send:
    """Send all of these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """End the log at this offset: what follows is not a whole record, and is sent again."""

    offset: int


@dataclass(slots=True)  # as Send
class StoreRuns:
    """Append these runs, and call stored().  Their views are valid until the next space()."""

    runs: Sequence[Run]


@dataclass(slots=True)  # as Send
class StoreArrivals:
    """Have the log take what is sound of the arrivals, see ArrivalsReader, and call taken().

    The log's last whole record ends at `whole`.
    """

    whole: int


@dataclass(frozen=True, slots=True)
class EndAt:
    """End the log at `offset`, where a bad record begins.  What is whole before it stays, or is stored from
    the run.  A CommitLogError is no matter: the next check finds the log elsewhere, and looks at it."""

    offset: int
    run: Run


@dataclass(frozen=True, slots=True)
class ForgetEpochs:
    """Bytes of a stock master follow: call Rejoin.follow_stock()."""


@dataclass(frozen=True, slots=True)
class FlushLog:
    """Flush the log, and call flushed(): a report has to speak of flushed bytes."""


@dataclass(frozen=True, slots=True)
class RejoinMaster:
    """Do what the greeting asks for, see rejoin.Rejoin.carry_out(), and call rejoined()."""

    greeting: SlaveGreeting


@dataclass(frozen=True, slots=True)
class Break:
    """End the connection for this error, as if the action had failed with it."""

    error: Exception


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for the log: a logging level, a format and its values."""

    level: int
    text: str
    values: tuple[object, ...]


Action = (
    Dial
    | Close
    | Send
    | Cut
    | StoreRuns
    | StoreArrivals
    | EndAt
    | ForgetEpochs
    | FlushLog
    | RejoinMaster
    | Break
    | LogLine
)
