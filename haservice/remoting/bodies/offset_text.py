"""The table of consumer offsets as text, written and read in slices.

    {"offsetTable":{"topic@group":{0:1500,1:1498},…}}        request 43, and, indented, consumerOffset.json

Half a million queues take most of a second.  One C call for all of them, or one that joins megabytes, holds
the interpreter lock and stops every other thread; a slice holds it for less than a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import orjson

from haservice.remoting.fastjson import BodyUnreadable, loads, tree_bytes

V = TypeVar("V")

# Keys of a slice for writing, and bytes of one for reading.
SLICE_KEYS = 500
SLICE_BYTES = 32 * 1024
# The most memory for all slices of a text: half a million queues, each under a key of its own.
TREE_BYTES_MAX = 160 * 1024 * 1024

_BEGIN = re.compile(rb'\s*\{\s*"offsetTable"\s*:\s*\{')
_END = re.compile(rb"\}\s*\}\s*\Z")


def slices(table: Mapping[str, V]) -> Iterator[list[tuple[str, V]]]:
    """The members of a table that nobody changes, SLICE_KEYS at a time."""
    members = iter(table.items())
    while some := list(islice(members, SLICE_KEYS)):
        yield some


class _Form(NamedTuple):
    """The text around members, as fastjson writes it."""

    before_table: bytes
    before_key: str
    after_queues: str
    after_members: bytes
    after_none: bytes


_PLAIN = _Form(b'{"offsetTable":{', "", "}", b"}}", b"}}")
_PRETTY = _Form(b'{\n\t"offsetTable":{', "\n\t\t", "\n\t\t}", b"\n\t}\n}", b"}\n}")


def encode_offsets(
    parts: Iterable[Iterable[tuple[str, Mapping[int, int]]]], *, pretty: bool = False
) -> bytearray:
    """The text of a table that comes in slices, byte for byte as `fastjson.dumps` writes the whole."""
    form = _PRETTY if pretty else _PLAIN
    text = bytearray(form.before_table)
    empty = len(text)
    for part in parts:
        members = [
            f"{form.before_key}{orjson.dumps(key).decode()}:{_queues(queues, form.after_queues)}"
            for key, queues in part
        ]
        if members:
            if len(text) > empty:
                text += b","
            # Grows in place: one join of all would copy, in one step, into memory never touched before.
            text += ",".join(members).encode()
    text += form.after_members if len(text) > empty else form.after_none
    return text


def _queues(queues: Mapping[int, int], end: str) -> str:
    if not queues:
        return "{}"
    return "{" + ",".join([f"{queue_id}:{offset}" for queue_id, offset in queues.items()]) + end


def decode_offsets(data: bytes | bytearray | memoryview) -> Iterator[Any]:
    """The trees of the table's slices; queue ids may still be text.

    Raises BodyUnreadable if the text is no JSON.  JSON in another form than ours and RocketMQ's is read in
    one step.  If it raises after some slices, those that it yielded before mean nothing.
    """
    view = memoryview(data)
    begin, end = _BEGIN.match(view), _END.search(view[-64:])
    if begin is None or end is None:
        yield _whole(data)
        return
    position, last = begin.end(), max(0, len(view) - 64) + end.start()
    cost = 0
    while position < last:
        text, position = _slice(view, position, last)
        cost += tree_bytes(text)
        if cost > TREE_BYTES_MAX:
            raise BodyUnreadable(f"a table of {len(view)} bytes would take more than {TREE_BYTES_MAX}")
        tree = _tree(text)
        if tree is None:
            yield _whole(data)
            return
        yield tree


def _slice(view: memoryview, position: int, last: int) -> tuple[bytes, int]:
    """An object of whole members from `position` on, and where the next one begins."""
    size = SLICE_BYTES
    while position + size < last:
        piece = bytes(view[position : position + size])
        cut = piece.rfind(b"},")
        if cut >= 0:
            return b"{" + piece[: cut + 1] + b"}", position + cut + 2
        size *= 2  # one group with very many queues
    return b"{" + bytes(view[position:last]) + b"}", last


def _tree(text: bytes) -> Any:
    """None if `text` cannot be read by itself: it is cut inside a key, or refers to elsewhere."""
    if b'"$ref"' in text:
        return None
    try:
        return loads(text, tree_bytes_max=TREE_BYTES_MAX)
    except BodyUnreadable:
        return None


def _whole(data: bytes | bytearray | memoryview) -> Any:
    tree = loads(bytes(data), tree_bytes_max=TREE_BYTES_MAX)
    if type(tree) is not dict:
        raise BodyUnreadable(f"a table of offsets is a JSON {type(tree).__name__}, not an object")
    table = tree.get("offsetTable")
    return {} if table is None else table
