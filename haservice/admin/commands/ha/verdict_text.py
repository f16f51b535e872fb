"""Shows verdicts: as lines that begin other commands' output, for Nagios, and for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from haservice.admin.commands.ha.findings import CheckLimits, NameVerdict, Severity, worst
from haservice.admin.commands.ha.verdict import DISK_CRITICAL, DISK_WARNING
from haservice.terminal.output import echo_coloured

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
