"""What a command shows: a table for a person, JSON for a program.

A `Table` has columns and rows of plain values.  A column has RocketMQ's head (`#Broker Name`), the key
of the same value in JSON (`brokerName`), and a form for people; JSON has the raw value, so that a script
never has to parse "1.2 MiB".

Names, remarks and bodies come from outside.  All commands write with `echo`, which escapes control
characters; values in a table, or in a line of names and values, have no line ends.
"""

from __future__ import annotations

import codecs
import contextlib
import contextvars
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from haservice import printable
from haservice.printable import escaped

SHOWN_TEXT_MAX = 60
# Between columns; before what stands below its line.
GAP, BELOW = "  ", "    "
UNITS = ("KiB", "MiB", "GiB", "TiB")


# Who hears, instead of the terminal, what the command says that runs in this context.
_LISTENER: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "listener", default=None
)


@contextlib.contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """For a program that does for somebody else what a command does: `echo` and `echo_line` call `listener`."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def on_terminal() -> bool:
    """Whether a person sees what goes to standard error, such as a bar."""
    return _LISTENER.get() is None and sys.stderr.isatty()


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Writes a line or more.  Escapes characters that are not printable; in JSON with JSON's escapes."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(printable.lines(text))
        return
    click.echo(printable.lines(text), err=err, nl=nl)


def echo_line(text: str, *, err: bool = False) -> None:
    """Writes exactly one line, whatever the text is; a body may have tabs."""
    echo("\t".join(map(escaped, text.split("\t"))), err=err)


def echo_coloured(text: str, colour: str) -> None:
    """Writes one line, in colour on a terminal unless NO_COLOR is set."""
    click.echo(click.style(escaped(text), fg=colour), color=False if os.environ.get("NO_COLOR") else None)


def plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return java_map(value) if isinstance(value, Mapping) else str(value)


def java_map(entries: Mapping[Any, Any]) -> str:
    """{a=0, KEYS=k}, as Java prints a map."""
    return "{" + ", ".join(f"{name}={value}" for name, value in entries.items()) + "}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `head` over the table, `key` in JSON, `shown` from value to text.

    With `json_only` it is only in JSON, not in the table.  On a narrow terminal columns are left out until the
    others fit: those with the highest `spare` first, those with 0 never.
    """

    head: str
    key: str
    shown: Callable[[Any], str] = plain
    right: bool = False
    json_only: bool = False
    spare: int = 0


@dataclass(slots=True)
class Table:
    """Rows under columns.  JSON has `facts` beside the rows; text has `notes` as lines below them."""

    columns: Sequence[Column]
    rows: list[Any] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    name: str = "rows"
    notes: Sequence[str] = ()

    def add(self, *values: Any) -> None:
        assert len(values) == len(self.columns), (len(values), len(self.columns))
        self.rows.append(values)

    def text(self, width: int | None = None) -> str:
        """Heads and rows in aligned columns; no trailing blanks.

        With a width it leaves columns out; a last cell that does not fit stands on lines of its own below.
        """
        columns = [column for column in self.columns if not column.json_only]
        cells = [[column.head for column in columns]]
        cells += [
            [
                escaped(column.shown(value))
                for column, value in zip(self.columns, row, strict=True)
                if not column.json_only
            ]
            for row in self.rows
        ]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        if width is None:
            return "\n".join(_line(columns, row, widths) for row in cells)
        kept = _fitting(columns, [*widths[:-1], len(columns[-1].head)], width)
        columns, widths = [columns[i] for i in kept], [widths[i] for i in kept]
        rows = [[row[i] for i in kept] for row in cells]
        lines = [line for row in rows[1:] for line in _folded(columns, row, widths, width)]
        return "\n".join([_line(columns, rows[0], widths), *lines])

    def leaves_out(self, width: int) -> bool:
        """Whether text(width) has fewer columns than text()."""
        return self.text(width).partition("\n")[0] != self.text().partition("\n")[0]

    def objects(self) -> list[dict[str, Any]]:
        return [dict(zip((c.key for c in self.columns), row, strict=True)) for row in self.rows]


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [
        cell.rjust(width) if column.right else cell.ljust(width)
        for column, cell, width in zip(columns, cells, widths, strict=True)
    ]
    return GAP.join(parts).rstrip()


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """The places of the columns that stay."""
    kept = list(range(len(columns)))
    while sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1) > width:
        most = max(kept, key=lambda i: columns[i].spare)
        if not columns[most].spare:
            break
        kept.remove(most)
    return kept


def _folded(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], width: int) -> list[str]:
    line = _line(columns, cells, widths)
    if len(line) <= width:
        return [line]
    below = textwrap.wrap(cells[-1], width, initial_indent=BELOW, subsequent_indent=BELOW)
    return [_line(columns[:-1], cells[:-1], widths[:-1]), *below]


def terminal_width() -> int | None:
    """In columns; None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show(table: Table, output_format: str, *, wide: bool = True) -> None:
    """Writes one table; as JSON an array of objects, or one object if the table has facts.

    Unless `wide` it fits the terminal; what is no terminal gets all columns.
    """
    if output_format == "json":
        rows = table.objects()
        echo(to_json({**table.facts, table.name: rows} if table.facts else rows))
        return
    width = None if wide else terminal_width()
    echo(table.text(width))
    if width is not None and table.leaves_out(width):
        echo("\n--wide shows all columns.")
    if table.notes:
        echo("\n" + "\n".join(map(escaped, table.notes)))


def show_pairs(pairs: Mapping[str, Any], output_format: str) -> None:
    """Writes names and values: one aligned line each, or one JSON object."""
    if output_format == "json":
        echo(to_json(dict(pairs)))
        return
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        echo_line(f"{name.ljust(width)} : {plain(value)}")


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def to_json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def human_bytes(count: int | None) -> str:
    """1536 → "1.5 KiB"; below 1 KiB the bytes themselves; None → "-"."""
    if count is None:
        return "-"
    if abs(count) < 1024:
        return f"{count} B"
    power = min((abs(count).bit_length() - 1) // 10, len(UNITS))
    return f"{count / 1024**power:.1f} {UNITS[power - 1]}"


def human_rate(bytes_per_second: int | None) -> str:
    return "-" if bytes_per_second is None else f"{human_bytes(bytes_per_second)}/s"


def human_seconds(seconds: float | None) -> str:
    """0.04 → "0.0 s", 75 → "1 min 15 s", 7300 → "2 h 1 min"; None → "-"."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def local_time(timestamp_ms: int | None) -> str:
    """Milliseconds since 1970 as local time, in the form RocketMQ's tools print; 0 and None → "-"."""
    if not timestamp_ms:
        return "-"
    seconds, millis = divmod(timestamp_ms, 1000)
    try:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))},{millis:03d}"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"  # a record from a broken clock is still worth a line


def local_second(timestamp_ms: int | None) -> str:
    """As local_time, without the milliseconds; 0 and None → "N/A", as RocketMQ's progress tables say."""
    return local_time(timestamp_ms).rpartition(",")[0] or "N/A" if timestamp_ms else "N/A"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def perm_text(perm: int) -> str:
    """6 → "RW-", as RocketMQ prints permissions."""
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")


def version_text(version: int) -> str:
    """409 → "V4_9_8": the ordinals of RocketMQ's releases; each release follows its own SNAPSHOT.

    From 4.0.0 on every minor version has ten releases; from 3.3 to 3.9 nine, without a .0.
    """
    release, snapshot = version + (version + 1) % 2, "" if version % 2 else "_SNAPSHOT"
    if release >= 213:
        minors, patch = divmod((release - 213) // 2, 10)
        return f"V{4 + minors // 10}_{minors % 10}_{patch}{snapshot}"
    if release >= 87:
        minors, patch = divmod((release - 87) // 2, 9)
        return f"V3_{3 + minors}_{patch + 1}{snapshot}"
    if release >= 47:
        minors, patch = divmod((release - 47) // 2, 10)
        return f"V3_{1 + minors}_{patch}{snapshot}"
    return f"V3_0_{(release - 15) // 2}{snapshot}" if release >= 17 else f"V3_0_0 ({version})"


def shown_addr(addr: str) -> str:
    """RocketMQ's host:port; an IPv6 host gets its brackets."""
    host, _, port = addr.rpartition(":")
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else addr


def and_text(names: Sequence[str]) -> str:
    """A; A and B; A, B and C."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def counted(count: int, what: str) -> str:
    """1 message, 2 messages."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def preview(body: bytes | memoryview, limit: int = SHOWN_TEXT_MAX) -> str:
    """The start of a body on one line: as text if it is text, else as hex; "…" if there is more."""
    start = bytes(body[: limit * 4])
    more = len(start) < len(body)
    try:
        # An incremental decoder allows a character cut at the end, and still refuses bytes that are no UTF-8.
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=not more)
    except UnicodeDecodeError:
        text = "\0"
    line = " ".join(text.split())
    if not line.isprintable():
        shown = start[: limit // 2]
        return f"0x{shown.hex()}" + ("…" if len(shown) < len(body) else "")
    return f"{line[:limit]}…" if more or len(line) > limit else line
