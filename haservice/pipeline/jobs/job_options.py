"""Options that several jobs have, worded once: sizes of files, delays, limits, and where a report goes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from commitlog.dispatch.dispatcher import parse_delay_levels
from commitlog.options import DELAY_LEVELS, LogOptions

_DEFAULTS = LogOptions(root=Path())


def _delay_levels(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        parse_delay_levels(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


index_slots_option = click.option(
    "--index-slots",
    type=click.IntRange(1),
    default=_DEFAULTS.index_slots,
    show_default=True,
    help="maxHashSlotNum of the brokers.",
)
index_entries_option = click.option(
    "--index-entries",
    type=click.IntRange(2),
    default=_DEFAULTS.index_entries,
    show_default=True,
    help="maxIndexNum of the brokers.",
)
delay_levels_option = click.option(
    "--delay-levels",
    default=DELAY_LEVELS,
    show_default=True,
    metavar="'1s 5s 10s …'",
    callback=_delay_levels,
    help="messageDelayLevel of the brokers: the delay of each level, in s, m, h or d.",
)
limit_option = click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="How many findings of a kind are named; all are counted.",
)


def _made(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    """Makes the directory now, not after hours of work."""
    if value is None:
        return None
    try:
        value.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=value).close()
    except OSError as error:
        raise click.BadParameter(
            f"nothing can be written to {value}: {error.strerror}; choose another directory"
        ) from None
    return value


report_option = click.option(
    "--report",
    "report_to",
    type=click.Path(file_okay=False, path_type=Path),
    callback=_made,
    help="Write report.html and report.json into this directory.",
)
