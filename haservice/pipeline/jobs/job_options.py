"""Options that several jobs have, worded once: sizes of files, delays, limits, and where a report goes."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import click

from commitlog.dispatch.dispatcher import parse_delay_levels
from commitlog.options import DELAY_LEVELS, LogOptions

_DEFAULTS = LogOptions(root=Path())
# Java maps a file whole, and counts its bytes with an int; a slot has 4 of them, an entry of the index 20.
FILE_BYTES_MAX = 2**31 - 1
INDEX_SLOTS_MAX, INDEX_ENTRIES_MAX = FILE_BYTES_MAX // 4, FILE_BYTES_MAX // 20
# 1 PiB.  Spark counts bytes with a long.
MIB_MAX = 1 << 30
# Findings that are named are held in memory.
LIMIT_MAX = 1_000_000
# 30 years.
SECONDS_MAX = 1e9
EMPTY = "is empty; is a variable of the shell not set?"


def _delay_levels(_: click.Context, __: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter(f"is empty; RocketMQ's own are '{DELAY_LEVELS}'")
    try:
        parse_delay_levels(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


def not_empty(_: click.Context, __: click.Parameter, value: Any) -> Any:
    """Refuses an empty text, which a script gives whose variable is not set."""
    texts = (value,) if isinstance(value, str) else value or ()
    if not all(text.strip() for text in texts):
        raise click.BadParameter(EMPTY)
    return value


def number(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuses nan, which is within any range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number")
    return value


class NewDirectory(click.Path):
    """A directory that need not be there yet.  Refuses an empty text, which means the current one to a Path."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail(EMPTY, param, ctx)
        return super().convert(value, param, ctx)


index_slots_option = click.option(
    "--index-slots",
    type=click.IntRange(1, INDEX_SLOTS_MAX),
    default=_DEFAULTS.index_slots,
    show_default=True,
    help="maxHashSlotNum of the brokers.",
)
index_entries_option = click.option(
    "--index-entries",
    type=click.IntRange(2, INDEX_ENTRIES_MAX),
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
    type=click.IntRange(1, LIMIT_MAX),
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
    type=NewDirectory(),
    callback=_made,
    help="Write report.html and report.json into this directory.",
)
