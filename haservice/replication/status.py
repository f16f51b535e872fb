"""The status of replication: plain values, for status commands and tests.

Sizes and offsets are bytes of the log, durations seconds; timestamps are ms of the wall clock, 0 for never.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class NotInSync(enum.Enum):
    """Why a slave is not in sync: a word for programs, and a text for people with room for figures."""

    NO_REPORT = "no_report", "has not reported yet"
    BYTES_BEHIND = "bytes_behind", "{} bytes behind, haSlaveFallbehindMax is {}"
    NOT_COUNTED = "not_counted", "does not count yet: {}"
    SECONDS_BEHIND = "seconds_behind", "{:.1f} s behind, slaveTimeout is {} ms"
    # Of a DLedger group's members.
    SILENT = "silent", "has not answered for {:g} s"
    NOT_WHOLE = "not_whole", "{}"
    REFUSES_CUT = "refuses_cut", "refuses to follow: {}"
    ACKNOWLEDGES_NOTHING = "acknowledges_nothing", "has acknowledged nothing for {:.0f} s"
    ENTRIES_BEHIND = "entries_behind", "{:,} entries behind; it cannot take over before it is within {:,}"

    def __init__(self, word: str, text: str) -> None:
        self.word = word
        self.text = text


@dataclass(frozen=True, slots=True)
class Lack:
    """Why one slave is not in sync, with the figures that its text names."""

    why: NotInSync
    figures: tuple[object, ...] = ()

    def __str__(self) -> str:
        return self.why.text.format(*self.figures)


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """One slave connection of a master."""

    addr: str
    state: str
    position: int
    """The next offset to be sent; -1 before the first report."""
    ack: int
    """Its last believed report; -1 before the first."""
    proven: int
    """Up to where it is known to hold what this master sent; -1 while its report is only a position."""
    sent_from: int
    """The first byte that it was sent: in this life of the master it was never sent those below.  -1 before
    the first report.
    """
    lag_bytes: int
    lag_seconds: float
    bytes_per_second: float
    lack: Lack | None
    """Why it is not in sync; None if it is."""
    replica_id: str = ""
    """Its own word of who it is, after an accepted greeting; "" for a stock slave."""
    broker_addr: str = ""
    """Where clients reach it; "" for a stock slave."""
    software: str = ""
    """Its version of haservice; "" for a stock slave, and for one before 0.5."""
    heard_ms: int = 0
    """When its last byte came: a slave that stands still stays connected for a while."""

    @property
    def in_sync(self) -> bool:
        return self.lack is None

    @property
    def reason(self) -> str:
        """Why it is not in sync, for people; "" if it is."""
        return "" if self.lack is None else str(self.lack)


@dataclass(frozen=True, slots=True)
class AbsentSlave:
    """A slave that is not connected: it was refused for its report or its address, or it is gone."""

    addr: str
    reason: str
    reported: int
    """The offset that it reported last; -1 if none."""
    timestamp_ms: int


class MasterHeard(NamedTuple):
    """What a slave has heard of the log that it follows: up to where it goes, -1 if nothing, and when."""

    end: int = -1
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class MasterLinkStatus:
    """The slave's side: its link to the master."""

    master_addr: str
    state: str
    offset: int
    """End of the slave's log."""
    reported: int
    """What the slave told the master last; -1 before a connection's first report."""
    last_read_timestamp_ms: int
    last_write_timestamp_ms: int
    seconds_since_read: float
    """Time since the master's last byte; -1.0 if there was none."""
    bytes_per_second: float
    connects: int
    last_error: str
    """Why the link is down; empty once the master has spoken again."""
    master_end: int = -1
    """The furthest end of its log that the master has told or sent since its greeting; -1 if unknown."""
    lineage: str = ""
    """The outcome of the last greeting, for people; "" before the first."""
    software: str = ""
    """The version of the master whose log is coming, as in SlaveStatus."""


@dataclass(frozen=True, slots=True)
class HAStatus:
    """All of it.  A master has `slaves`, a slave has `master`."""

    role: str
    log_start: int
    log_end: int
    push2slave_max_offset: int = 0
    in_sync_slaves: int = 0
    waiting_sends: int = 0
    slaves: tuple[SlaveStatus, ...] = ()
    absent: tuple[AbsentSlave, ...] = ()
    """Newest last; one for each slave address, until a slave connects from that address again."""
    master: MasterLinkStatus | None = None
    epoch: int = -1
    """Number of our log's last epoch; -1 if there is none, or none is kept."""
