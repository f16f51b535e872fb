"""What a verdict on a broker name consists of, and how it is shown: as lines, for Nagios, and for programs.

verdict.py finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from haservice.terminal.output import echo_coloured

# Above these RocketMQ deletes files at once, and refuses writes.
DISK_WARNING = 0.85
DISK_CRITICAL = 0.90


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


COLOURS = {
    Severity.OK: "green",
    Severity.WARNING: "yellow",
    Severity.CRITICAL: "red",
    Severity.UNKNOWN: "magenta",
}


def show_verdicts(verdicts: Sequence[NameVerdict]) -> None:
    """A line for each, before a table."""
    for one in verdicts:
        echo_coloured(one.text, COLOURS[one.state])


def nagios_lines(verdicts: Sequence[NameVerdict], limits: CheckLimits) -> list[str]:
    """A line for each; the first one ends with the figures of all, which is where Nagios looks for them."""
    lines = [f"{one.state.name} - {one.text}" for one in verdicts]
    figures = " ".join(figure for one in verdicts for figure in _figures(one, limits))
    # What follows a `|` is for graphs: in a text it would be taken for the beginning of figures.
    lines = [line.replace("|", "/") for line in lines]
    return [f"{lines[0]} | {figures}", *lines[1:]] if figures else lines


def _figures(verdict: NameVerdict, limits: CheckLimits) -> Iterator[str]:
    """'label'=value[unit];warn;crit;min;max, as Nagios wants it."""
    name, figures = re.sub(r"[^\w.-]", "_", verdict.name), verdict.figures
    if figures.slaves_in_sync is not None:
        yield f"{name}.slaves_in_sync={figures.slaves_in_sync};;;0;{figures.slaves_known}"
    if figures.lag_bytes is not None:
        yield f"{name}.lag_bytes={figures.lag_bytes}B;;;0"
    if figures.lag_seconds is not None:
        ends = f"{limits.lag_warning_s:g};{limits.lag_critical_s:g}"
        yield f"{name}.lag_seconds={figures.lag_seconds:.3f}s;{ends};0"
    if figures.disk_used is not None:
        ends = f"{DISK_WARNING:.0%};{DISK_CRITICAL:.0%}".replace("%", "")
        yield f"{name}.disk_used={figures.disk_used * 100:.2f}%;{ends};0;100"


def verdict_object(verdict: NameVerdict) -> dict[str, Any]:
    """For a program."""
    figures = verdict.figures
    return {
        "clusterName": verdict.cluster,
        "brokerName": verdict.name,
        "state": verdict.state.name,
        "text": verdict.text,
        "findings": [
            {"state": one.state.name, "head": one.head, "text": one.text} for one in verdict.findings
        ],
        "slavesInSync": figures.slaves_in_sync,
        "slavesKnown": figures.slaves_known,
        "lagBytes": figures.lag_bytes,
        "lagSeconds": figures.lag_seconds,
        "diskRatio": figures.disk_used,
    }


def result_object(verdicts: Sequence[NameVerdict]) -> dict[str, Any]:
    state = worst(one.state for one in verdicts)
    return {
        "state": state.name,
        "exitCode": int(state),
        "verdicts": [verdict_object(one) for one in verdicts],
    }
