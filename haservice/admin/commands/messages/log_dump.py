"""`mqadmin dumpLog FILE`: a commit log segment, shown to a person or as JSON lines.

`scan` finds what is in a segment, in order, and stops at bytes that are no record:

    Record       a whole record, its body summed
    Blank        the rest of the file, given up because the next record did not fit
    Unwritten    zeros to the end of the file
    Torn         bytes that are no record: the tail of a crash, or damage, with the reason
    BareEntry    an entry of a DLedger log whose body is no record

A data file of DLedger has entries; what is shown of one is the record in it, with index and term.

It only reads the file, so it may be used on a broker's store while the broker runs.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from commitlog.dledger.entries import EntryHead
from commitlog.dledger.reading import begins_entry, walk_file
from commitlog.dledger.scan import holds_record
from commitlog.errors import CorruptRecord
from commitlog.kernel import layout, records
from haservice.admin.commands.messages.reading import message_fields
from haservice.terminal.options import CONTEXT, format_option
from haservice.terminal.output import echo, echo_line, human_bytes, local_time, preview, to_json_line

# A segment is named by its first offset in 20 digits.
NAME_DIGITS = 20
ZEROS_CHUNK_BYTES = 1024 * 1024

LINE = "{:<16} {:>9}  {:<24} {:>6} {:>12}  {:<23}  {:<20} {}"


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    message: records.StoredMessage
    trouble: str | None
    entry: EntryHead | None = None
    """Of a record in a DLedger log."""


@dataclass(frozen=True, slots=True)
class Blank:
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Torn:
    """`size` counts to the last byte that is not zero."""

    offset: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class BareEntry:
    """An entry of a DLedger log, as an application may append one, or a leader that has nothing to say."""

    offset: int
    entry: EntryHead


Found = Record | Blank | Unwritten | Torn | BareEntry


def base_offset(path: Path) -> int:
    """The offset of the file's first byte: its name without the number of a cut; 0 for other names."""
    digits = path.name.partition("-")[0]
    return int(digits) if len(digits) == NAME_DIGITS and digits.isdigit() else 0


def scan(view: bytes | memoryview, base: int = 0) -> Iterator[Found]:
    """What is in the bytes of a segment that begins at `base`; see the module's list."""
    if begins_entry(view[: layout.BLANK_BYTES]):
        yield from _scan_entries(view, base)
        return
    end = len(view)
    position = 0
    while position < end:
        if not any(view[position : position + layout.BLANK_BYTES]):
            yield from _rest_of_zeros(view, position, base)
            return
        try:
            head = records.parse_head(view, position, end - position)
            if head is None:
                raise CorruptRecord(position, "the file ends before the record does")
            if head.magic == layout.BLANK_MAGIC:
                if head.size != end - position:
                    raise CorruptRecord(position, f"a blank of {head.size} bytes, left are {end - position}")
                yield Blank(base + position, head.size)
                return
            message = records.decode(view, position)
        except CorruptRecord as error:
            yield Torn(base + position, _last_byte(view, position) - position, error.reason)
            return
        yield Record(base + position, message, _trouble(message, base + position))
        position += head.size


def _scan_entries(view: bytes | memoryview, base: int) -> Iterator[Found]:
    walk = walk_file(view, base)
    for found in walk.in_file():
        offset = found.record_offset
        try:
            message = records.decode(found.body) if holds_record(found.body) else None
        except CorruptRecord as error:
            yield Torn(offset, len(found.body), error.reason)
            continue
        if message is None:
            yield BareEntry(offset, found.head)
        else:
            yield Record(offset, message, _trouble(message, offset), found.head)
    if walk.reason is not None:
        position = walk.position - base
        yield Torn(walk.position, _last_byte(view, position) - position, walk.reason)
    elif walk.blank:
        yield Blank(walk.position, walk.blank)
    elif walk.position < base + len(view):
        yield from _rest_of_zeros(view, walk.position - base, base)


def _trouble(message: records.StoredMessage, offset: int) -> str | None:
    """Why recovery would refuse a record whose fields are consistent."""
    if not message.crc_ok:
        return "body CRC does not match"
    if message.physical_offset != offset:
        return f"says it lies at {message.physical_offset}"
    return None


def _rest_of_zeros(view: bytes | memoryview, position: int, base: int) -> Iterator[Found]:
    last = _last_byte(view, position)
    if last > position:
        yield Torn(base + position, last - position, "zeros, and then bytes that no record leads to")
    else:
        yield Unwritten(base + position, len(view) - position)


def _last_byte(view: bytes | memoryview, position: int) -> int:
    """The place after the last nonzero byte from `position` on; `position` if all are zero."""
    for start in range(len(view), position, -ZEROS_CHUNK_BYTES):
        begin = max(position, start - ZEROS_CHUNK_BYTES)
        kept = len(bytes(view[begin:start]).rstrip(b"\0"))
        if kept:
            return begin + kept
    return position


def as_json(found: Found) -> dict[str, Any]:
    """One line of `-f json`."""
    if isinstance(found, BareEntry):
        return {"what": "entry", "offset": found.offset, "size": found.entry.body_size, **_entry(found.entry)}
    if not isinstance(found, Record):
        reason = {"reason": found.reason} if isinstance(found, Torn) else {}
        return {"what": type(found).__name__.lower(), "offset": found.offset, "size": found.size, **reason}
    trouble = {"trouble": found.trouble} if found.trouble else {}
    entry = _entry(found.entry) if found.entry is not None else {}
    return {"what": "record", "offset": found.offset, **entry, **message_fields(found.message), **trouble}


def _entry(head: EntryHead) -> dict[str, int]:
    return {"index": head.index, "term": head.term}


def as_line(found: Found) -> str:
    """One line of the table."""
    match found:
        case BareEntry(offset, entry):
            return (
                f"{offset:<16} {entry.body_size:>9}  entry {entry.index} of term {entry.term} holds no record"
            )
        case Record(offset, message, trouble):
            keys = records.decode_properties(message.properties).get("KEYS", "-")
            line = LINE.format(
                offset,
                message.size,
                message.topic,
                message.queue_id,
                message.queue_offset,
                local_time(message.store_timestamp_ms),
                keys,
                preview(message.body),
            )
            return f"{line}\n{offset:<16} ^ {trouble}" if trouble else line
        case Blank(offset, size):
            return f"{offset:<16} {size:>9}  blank: the next record did not fit, and begins the next file"
        case Unwritten(offset, size):
            return f"{offset:<16} {size:>9}  unwritten ({human_bytes(size)} of zeros)"
        case Torn(offset, size, reason):
            return f"{offset:<16} {size:>9}  NO RECORD: {reason}; recovery cuts here"


@click.command("dumpLog", context_settings=CONTEXT)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--limit", type=click.IntRange(min=1), help="Show this many records, and stop.")
@click.option("-t", "--topic", help="Only records of this topic.")
@format_option
def dump_log(file: Path, limit: int | None, topic: str | None, output_format: str) -> None:
    """Shows what is in a commit log file.

    FILE is a segment, such as ~/store/commitlog/00000000000000000000, or a data file of a broker on
    DLedger, such as ~/store/dledger-n0/data/00000000000000000000.  The end of what was written,
    the blank before the next file, a torn tail and damaged bodies are marked.  -f json writes one
    object a line.
    """
    if output_format == "table":
        echo(
            LINE.format(
                "#Offset", "#Size", "#Topic", "#Queue", "#QueueOffset", "#StoreTime", "#Keys", "#Body"
            )
        )
    shown = seen = 0
    with file.open("rb") as opened:
        if not file.stat().st_size:
            raise click.ClickException(f"{file}: empty, a segment is never")
        with mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            for found in scan(view, base_offset(file)):
                if isinstance(found, Record):
                    seen += 1
                    if topic is not None and found.message.topic != topic:
                        continue
                    shown += 1
                echo_line(to_json_line(as_json(found)) if output_format == "json" else as_line(found))
                if shown == limit:
                    break
    if output_format == "table":
        echo(f"{shown} of {seen} records read" if shown != seen else f"{seen} records")
