"""Bodies of messages as a page shows them: JSON, text or hex, decompressed, and never more than so much.  Pure.

A body that is longer is cut, and it is said where.  JSON is only laid out: its numbers, names and order stay as
they are.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass

from commitlog.kernel import layout
from haservice.client.message import SYS_COMPRESSION_MASK, SYS_ZLIB
from haservice.terminal.output import human_bytes

SHOWN_BYTES_MAX = 64 * 1024
HEX_BYTES_MAX = 4 * 1024
HEX_ROW = 16
PREVIEW_BYTES = 512
# Laid-out JSON of deep nesting is mostly blanks.
LAID_OUT_MAX = 4 * SHOWN_BYTES_MAX
INDENT = "  "
_CLOSED_AT_ONCE = re.compile(r"\s*([}\]])")
_ZLIB = (0x000, SYS_ZLIB)
_KINDS = {0x100: "LZ4", 0x200: "ZSTD"}


@dataclass(frozen=True, slots=True)
class BodyView:
    """`kind` is JSON, text, binary or empty; `size` says how long the body is, and in which form it is stored."""

    kind: str
    text: str
    size: str
    note: str = ""


def shown(body: bytes, sys_flag: int) -> BodyView:
    """The body of a record with these flags."""
    data, more, compression = opened(body, sys_flag, SHOWN_BYTES_MAX)
    size = human_bytes(len(body))
    if compression:
        length = f"more than {human_bytes(len(data))}" if more else human_bytes(len(data))
        size = (
            f"{length}, {compression}-compressed to {size}" if data is not body else f"{size}, {compression}"
        )
    if compression and data is body:
        note = f"The body is {compression}-compressed, which this page cannot undo: these are its bytes as stored."
        return BodyView("binary", _hex(body), size, note)
    if not data:
        return BodyView("empty", "", size)
    text = _decoded(data, more)
    if text is None:
        note = f"The first {human_bytes(HEX_BYTES_MAX)} of it." if len(data) > HEX_BYTES_MAX else ""
        return BodyView("binary", _hex(data), size, note)
    note = f"The first {human_bytes(SHOWN_BYTES_MAX)} of it." if more else ""
    laid_out = None if more else _json(text)
    return BodyView("text", text, size, note) if laid_out is None else BodyView("JSON", laid_out, size)


def opened(body: bytes, sys_flag: int, most: int) -> tuple[bytes, bool, str]:
    """(the first `most` bytes of the body as its producer had it, whether there are more, how it is compressed).

    A body that cannot be decompressed is given whole, as it is stored.
    """
    if not sys_flag & layout.SYS_COMPRESSED:
        return body[:most], len(body) > most, ""
    kind = sys_flag & SYS_COMPRESSION_MASK
    if kind not in _ZLIB:
        return body, False, _KINDS.get(kind, f"kind {kind:#x}")
    try:
        data = zlib.decompressobj().decompress(body, most + 1)
    except zlib.error:
        return body, False, "wrongly zlib"
    return data[:most], len(data) > most, "zlib"


def start(body: bytes, sys_flag: int) -> bytes:
    """The first bytes, for a line of a list."""
    return opened(body, sys_flag, PREVIEW_BYTES)[0][:PREVIEW_BYTES]


def _decoded(data: bytes, more: bool) -> str | None:
    """The text; None for what is none.  A character that the cut has parted is left out."""
    for cut in range(4 if more else 1):
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def _json(text: str) -> str | None:
    """An object or array, laid out; None for other texts."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return _laid_out(text)


def _laid_out(text: str) -> str | None:
    """Valid JSON with a line for each member; None if that becomes too long."""
    out: list[str] = []
    depth = size = at = 0
    while at < len(text):
        one = text[at]
        end = at + 1
        if one == '"':
            end = _end_of_string(text, at)
            piece = text[at:end]
        elif one.isspace():
            piece = ""
        elif one in "{[":
            nothing = _CLOSED_AT_ONCE.match(text, end)
            if nothing is not None:
                end = nothing.end()
                piece = one + nothing[1]
            else:
                depth += 1
                piece = f"{one}\n{INDENT * depth}"
        elif one in "}]":
            depth -= 1
            piece = f"\n{INDENT * depth}{one}"
        else:
            piece = {",": f",\n{INDENT * depth}", ":": ": "}.get(one, one)
        out.append(piece)
        size += len(piece)
        if size > LAID_OUT_MAX:
            return None
        at = end
    return "".join(out)


def _end_of_string(text: str, at: int) -> int:
    at += 1
    while text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _hex(data: bytes) -> str:
    rows = []
    for at in range(0, min(len(data), HEX_BYTES_MAX), HEX_ROW):
        row = data[at : min(at + HEX_ROW, HEX_BYTES_MAX)]
        letters = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{HEX_ROW * 3}} {letters}")
    return "\n".join(rows)
