"""The command: finds the rows, runs them, prints a table for each with its law of growth."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from haservice.devtools.scale import rows
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.stage import Stage
from haservice.terminal.options import CONTEXT, version_option
from haservice.terminal.output import Column, Table, echo, to_json_line

LAW = "law"


def found_rows() -> dict[str, Row]:
    """All rows by name, in the order of their modules' names."""
    found: dict[str, Row] = {}
    for module in sorted(pkgutil.iter_modules(rows.__path__), key=lambda module: module.name):
        for row in importlib.import_module(f"{rows.__name__}.{module.name}").ROWS:
            assert row.name not in found, f"two rows are called {row.name}"
            found[row.name] = row
    return found


def chosen_rows(only: Sequence[str]) -> list[Row]:
    """The rows that --only names by name or beginning; without it those that run by default."""
    found = found_rows()
    for name in only:
        if not any(row.startswith(name) for row in found):
            raise click.UsageError(f"there is no row {name!r}; rows are {', '.join(found)}")
    if not only:
        return [row for row in found.values() if row.by_default]
    return [row for row in found.values() if row.name.startswith(tuple(only))]


def sizes_of(_context: Any, _option: Any, text: str | None) -> list[int] | None:
    """100,1000 as numbers."""
    if text is None:
        return None
    try:
        sizes = [int(size.replace("_", "")) for size in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 100,1000,10000") from None
    if min(sizes) < 1:
        raise click.BadParameter("a size is 1 or more")
    return sizes


EPILOG = """\b
Rows:
{rows}

\b
Columns, as far as they apply to a row:
  CPU s           CPU of the measured process over the work, user and kernel
  memory MB       what the process itself holds: its proportional share, pages of files aside
  files, disk MB  files in the store, and what the file system has allocated for them
  seconds         the work by the clock
  worst send ms   another client sends small messages one after the other; its longest wait

The last line has the law of growth: O(1) does not grow, n^1.00 doubles with the size.  "last n^0.97" stands
beside a fit that the last step differs from: at small sizes a constant share hides the growth.
The last line of `soak` has slopes: what is added in an hour, by the second half of the run.

\b
Examples:
  scripts/bench_scale --only held-pulls
  scripts/bench_scale --only held-pulls --sizes 1000,10000 --json
  scripts/bench_scale --only soak --minutes 120
"""


class _Command(click.Command):
    """Looks for the rows only when help is asked for."""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        lines = "\n".join(f"  {row.name:<18}{row.title}" for row in found_rows().values())
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(EPILOG.format(rows=lines).strip())


@click.command(cls=_Command, context_settings=CONTEXT)
@version_option
@click.option("--only", multiple=True, metavar="ROW", help="Only rows whose name begins so; may be repeated.")
@click.option("--sizes", callback=sizes_of, metavar="N,N", help="Other sizes than those of the row.")
@click.option("--minutes", default=5.0, show_default=True, help="How long `soak` runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row, on a line, instead of tables.")
@click.option("--dir", "directory", type=click.Path(path_type=Path, exists=True), help="Where stores go.")
def main(
    only: Sequence[str], sizes: Sequence[int] | None, minutes: float, as_json: bool, directory: Path | None
) -> None:
    """Measures how costs grow with the work, on real processes on loopback, and prints the law of growth.

    Each row does one thing at growing sizes.  Progress goes to stderr, tables to stdout.
    """
    for row in chosen_rows(only):
        stage = Stage(row.name, directory, minutes=minutes)
        points = []
        for point in row.measure(stage, sizes or row.sizes):
            points.append(point)
            stage.say(f"{point.size:,}: {', '.join(f'{k} {shown(v)}' for k, v in point.costs().items())}")
        echo(as_object(row, points) if as_json else as_table(row, points) + "\n")


def as_object(row: Row, points: Sequence[Point]) -> str:
    return to_json_line(
        {
            "row": row.name,
            "title": row.title,
            "points": [{"size": point.size, **point.costs()} for point in points],
            LAW: row.growth(points),
        }
    )


def as_table(row: Row, points: Sequence[Point]) -> str:
    growth = row.growth(points)
    table = Table(
        [Column("size", "size", shown, right=True)]
        + [Column(name, name, shown, right=True) for name in growth]
    )
    for point in points:
        costs = point.costs()
        table.add(point.size, *(costs.get(name) for name in growth))
    if len(points) > 1:
        table.add(LAW, *growth.values())
    return f"{row.name}: {row.title}\n{table.text()}"


def shown(value: Any) -> str:
    """A size or cost with three digits that count; text as it is."""
    if value is None:
        return "-"
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.4f}"
