"""What a verdict on a broker name consists of.  Pure: values only; verdict.py finds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Severity(IntEnum):
    """The numbers are Nagios's exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def rank(self) -> int:
        """UNKNOWN lies between OK and WARNING, as in Nagios's own plugins."""
        return _RANKS.index(self)


_RANKS = (Severity.OK, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL)


class CheckLimits(NamedTuple):
    """What the user wants to be told of."""

    lag_warning_s: float = 30.0
    lag_critical_s: float = 300.0
    slaves: int = 0
    """How many slaves in sync there have to be, whatever brokerRole asks for."""


class Finding(NamedTuple):
    """One thing that is wrong, or the one that is right: a headline, and what it means."""

    state: Severity
    head: str
    text: str

    def __str__(self) -> str:
        return f"{self.head}, {self.text}"


class NameFigures(NamedTuple):
    """For graphs; None is unknown."""

    slaves_in_sync: int | None = None
    slaves_known: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    disk_used: float | None = None


@dataclass(frozen=True, slots=True)
class NameVerdict:
    """On one broker name; `findings` is never empty, the worst first."""

    cluster: str
    name: str
    findings: tuple[Finding, ...]
    figures: NameFigures = field(default_factory=NameFigures)

    @property
    def state(self) -> Severity:
        return self.findings[0].state

    @property
    def text(self) -> str:
        """One line: what is wrong, the worst first."""
        return f"{self.name}: " + "; ".join(map(str, self.findings))


def worst(states: Iterable[Severity]) -> Severity:
    """OK if there are none."""
    return max(states, key=lambda one: one.rank, default=Severity.OK)
