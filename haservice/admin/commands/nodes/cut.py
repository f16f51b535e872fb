"""`mqadmin listCut` and `removeCut`: what lies in a store's cut/, where a broker keeps what it cut off its log.

    cut/OFFSET-N             the end of a log from OFFSET on: torn by a crash, or not in the new master's log
    cut/reinit-TIME/         the whole log of a slave that was told to begin anew
    cut/parted-TIME/         … of a slave that had another log than its master

They read the directory, whether or not a broker runs on it, as dumpLog does: nobody should remove messages
that he did not look at, and no request from afar should be able to.  A broker never reads cut/, except to
finish a cut amid which it died; removeCut waits for that.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click

from commitlog.disk.store_lock import is_locked
from commitlog.log.log import wall_clock_ms
from haservice.admin.commands.ha.role_steps import StepLog, yes_option
from haservice.admin.commands.messages.log_dump import Record, base_offset, scan
from haservice.terminal.options import command, format_option
from haservice.terminal.output import Column, Table, echo, human_bytes, local_second, show

MS_PER_DAY = 86_400_000
# Beyond these a list says "or more": it is no audit.
MESSAGES_MAX = 10_000
READ_BYTES_MAX = 64 * 1024 * 1024
WHAT = {"reinit": "whole log, rebuilt", "parted": "whole log, another than its master's"}
TAIL = "end of the log"
NAMES = re.compile(r"(?P<offset>\d{20})-\d+|(?P<why>reinit|parted)-(?P<ms>\d+)")
# Files of a store that say that a cut or a removal is not finished.
UNFINISHED = ("lineage/rewinding", "lineage/emptying")


class Kept(NamedTuple):
    """One file or directory below cut/."""

    path: Path
    what: str
    kept_ms: int
    offset: int | None
    disk_bytes: int
    messages: int
    counted_all: bool
    first_ms: int | None
    last_ms: int | None
    """When the first and the last of these messages were stored."""


COLUMNS = (
    Column("#Name", "name"),
    Column("#What", "what"),
    Column("#Kept Since", "keptMs", local_second),
    Column("#From Offset", "offset", right=True),
    Column("#On Disk", "diskBytes", human_bytes, right=True),
    Column("#Messages", "messages", right=True),
    Column("#First Stored", "firstStoredMs", local_second),
    Column("#Last Stored", "lastStoredMs", local_second),
    Column("", "messagesExact", json_only=True),
)

store_argument = click.argument(
    "store", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="STORE"
)


@command("listCut")
@store_argument
@format_option
def list_cut(store: Path, output_format: str) -> None:
    """Lists what a broker has cut off its log and kept.

    STORE is the broker's storePathRootDir, on this machine; the broker may run.  Messages counts those that
    can be read one behind the other from the beginning; mqadmin dumpLog shows them.
    """
    found = kept_in(store)
    show(table_of(found), output_format)
    if not found and output_format == "table":
        echo(f"nothing is kept in {store / 'cut'}", err=True)


@command("removeCut")
@store_argument
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--all", "everything", is_flag=True, help="All that listCut shows.")
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="What was kept before so many days.",
)
@yes_option
@format_option
def remove_cut(
    store: Path, names: Sequence[str], everything: bool, days: float | None, yes: bool, output_format: str
) -> None:
    """Removes what a broker has cut off its log, for good.

    \b
      mqadmin removeCut /data/broker-a 00000000000000373224-1
      mqadmin removeCut /data/broker-a --older-than 30

    It shows what it is about to remove, and asks.  These may be the only copies of messages: read them with
    mqadmin dumpLog first.  Refused while a cut is not finished.
    """
    if bool(names) + everything + (days is not None) != 1:
        raise click.UsageError("which?  Say names that listCut shows, or --all, or --older-than DAYS")
    report = StepLog(output_format, yes)
    with report:
        chosen = choose(kept_in(store), names, days, wall_clock_ms(), store)
        report.table("entries", f"To be removed from {store / 'cut'}", table_of(chosen))
        if not chosen:
            report.line("Nothing to remove.")
        else:
            check_finished(store)
            size = sum(one.disk_bytes for one in chosen)
            report.line(f"That frees {human_bytes(size)}, and cannot be undone.")
            report.go_on()
            for one in chosen:
                remove(one.path)
            report.line(f"Removed, {human_bytes(size)} freed.")
        report.end(storePath=str(store), freedBytes=sum(one.disk_bytes for one in chosen))


def kept_in(store: Path) -> list[Kept]:
    """What is kept, the oldest first.  Raises click.ClickException if that is no store."""
    if not (store / "commitlog").is_dir() and not (store / "cut").is_dir():
        raise click.ClickException(
            f"{store} is no store: it has neither commitlog nor cut\n  STORE is a broker's storePathRootDir"
        )
    directory = store / "cut"
    entries = sorted(directory.iterdir()) if directory.is_dir() else []
    found = [look(path, matched) for path in entries if (matched := NAMES.fullmatch(path.name))]
    return sorted(found, key=lambda one: (one.kept_ms, one.path.name))


def look(path: Path, matched: re.Match[str]) -> Kept:
    """Reads the beginning of it."""
    why = matched["why"]
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    logs = [one for one in files if one is path or one.parent.name == "commitlog"]
    stored = list(islice(stored_ms(logs), MESSAGES_MAX + 1))
    read_all = len(stored) <= MESSAGES_MAX and sum(map(_disk_bytes, logs)) <= READ_BYTES_MAX
    offset = int(matched["offset"]) if matched["offset"] else next((base_offset(one) for one in logs), None)
    return Kept(
        path,
        WHAT[why] if why else TAIL,
        int(matched["ms"]) if why else int(path.stat().st_mtime * 1000),
        offset,
        sum(map(_disk_bytes, files)),
        min(len(stored), MESSAGES_MAX),
        read_all,
        stored[0] if stored else None,
        stored[-1] if stored and read_all else None,
    )


def stored_ms(files: Sequence[Path]) -> Iterator[int]:
    """When each message was stored, as far as they can be read one behind the other, READ_BYTES_MAX in all."""
    left = READ_BYTES_MAX
    for file in files:
        with closing(file.open("rb")) as opened:
            data = opened.read(left)
        left -= len(data)
        for found in scan(data, base_offset(file)):
            if isinstance(found, Record) and found.trouble is None:
                yield found.message.store_timestamp_ms
        if left <= 0:
            return


def _disk_bytes(file: Path) -> int:
    """Without its holes."""
    return file.stat().st_blocks * 512


def table_of(found: Sequence[Kept]) -> Table:
    table = Table(COLUMNS)
    if some := [one.path.name for one in found if not one.counted_all]:
        table.notes = [f"Not all is read, there may be more messages: {', '.join(some)}"]
    for one in found:
        table.add(
            one.path.name,
            one.what,
            one.kept_ms,
            one.offset,
            one.disk_bytes,
            one.messages,
            one.first_ms,
            one.last_ms,
            one.counted_all,
        )
    return table


def choose(
    found: Sequence[Kept], names: Sequence[str], days: float | None, now_ms: int, store: Path
) -> list[Kept]:
    """Those that are meant.  Raises click.ClickException for a name that is not there."""
    there = {one.path.name: one for one in found}
    for name in names:
        if name.rstrip("/") not in there:
            raise click.ClickException(
                f"{store / 'cut'} has no {name!r}\n  mqadmin listCut {store} shows what it has"
            )
    if names:
        return [there[name] for name in dict.fromkeys(one.rstrip("/") for one in names)]
    return [one for one in found if days is None or one.kept_ms < now_ms - days * MS_PER_DAY]


def check_finished(store: Path) -> None:
    """Raises click.ClickException if the next start, or a broker that runs, still needs what is in cut/."""
    for name in UNFINISHED:
        if (store / name).exists():
            raise click.ClickException(
                f"{store / name}: a cut is not finished; let the broker finish it, and repeat the command"
            )
    if (store / "abort").exists() and not is_locked(store):
        raise click.ClickException(
            f"the broker of {store} did not stop cleanly: start it, so that it ends its log where it has to,"
            " and repeat the command"
        )


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
