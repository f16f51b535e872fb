"""The table of consumer offsets as text, written and read in slices.

    {"offsetTable":{"topic@group":{0:1500,1:1498},…}}        request 43, and, indented, consumerOffset.json
    {"offsetTable":{"topic@group":{0:1501,1:null},…}}        what changed in it; null: removed

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

# Of a queue id that fits into 64 bits whatever its digits are.
_ID_LETTERS_MAX = 18
_I64_MAX = 2**63 - 1

_BEGIN = re.compile(rb'\s*\{\s*"offsetTable"\s*:\s*\{')
_END = re.compile(rb"\}\s*\}\s*\Z")


def slices(members: Iterable[V]) -> Iterator[list[V]]:
    """The members of a table that nobody changes, SLICE_KEYS at a time."""
    rest = iter(members)
    while some := list(islice(rest, SLICE_KEYS)):
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


def encode_changes(members: Iterable[tuple[str, Mapping[int, int | None]]]) -> bytearray:
    """The text of what changed; None for a queue that was removed."""
    text = bytearray(_PLAIN.before_table)
    for some in slices(members):
        if len(text) > len(_PLAIN.before_table):
            text += b","
        text += ",".join(
            [f"{orjson.dumps(key).decode()}:{_changed(queues)}" for key, queues in some]
        ).encode()
    text += _PLAIN.after_members
    return text


def _changed(queues: Mapping[int, int | None]) -> str:
    values = [f"{number}:{'null' if offset is None else offset}" for number, offset in queues.items()]
    return "{" + ",".join(values) + "}"


def decode_changes(data: bytes | memoryview, *, tree_bytes_max: int = 0) -> dict[str, dict[int, int | None]]:
    """What changed.  Raises BodyUnreadable."""
    changes: dict[str, dict[int, int | None]] = {}
    try:
        for tree in decode_offsets(data, tree_bytes_max=tree_bytes_max):
            for key, queues in tree.items():
                changes[key] = {
                    int(number): offset
                    for number, offset in queues.items()
                    if offset is None or (type(offset) is int and offset <= _I64_MAX)
                }
                if len(changes[key]) < len(queues):
                    raise BodyUnreadable(f"an offset of {key[:80]!r} is not a whole number of 64 bits")
    except (AttributeError, TypeError, ValueError) as error:
        raise error if isinstance(error, BodyUnreadable) else BodyUnreadable(str(error)) from None
    return changes


def decode_offsets(data: bytes | bytearray | memoryview, *, tree_bytes_max: int = 0) -> Iterator[Any]:
    """The trees of the table's slices; queue ids may still be text.

    Raises BodyUnreadable if the text is no JSON, or if the trees would take more than `tree_bytes_max` (0:
    TREE_BYTES_MAX).  JSON in another form than ours and RocketMQ's is read in one step.  If it raises after
    some slices, those that it yielded before mean nothing.
    """
    tree_bytes_max = tree_bytes_max or TREE_BYTES_MAX
    view = memoryview(data)
    begin, end = _BEGIN.match(view), _END.search(view[-64:])
    if begin is None or end is None:
        yield _whole(data, tree_bytes_max)
        return
    position, last = begin.end(), max(0, len(view) - 64) + end.start()
    cost = 0
    while position < last:
        text, position = _slice(view, position, last)
        cost += tree_bytes(text)
        if cost > tree_bytes_max:
            raise BodyUnreadable(f"a table of {len(view)} bytes would take more than {tree_bytes_max}")
        tree = _tree(text, tree_bytes_max)
        if tree is None:
            yield _whole(data, tree_bytes_max)
            return
        yield tree


def plain_offsets(tree: Any) -> dict[str, dict[int, int]] | None:
    """The table of a slice's tree, several times as fast as member by member; None if it is not quite as it
    should be.
    """
    table: dict[str, dict[int, int]] = {}
    try:
        for key, queues in tree.items():
            table[key] = {int(number): offset for number, offset in queues.items() if type(offset) is int}
            if len(table[key]) < len(queues) or not queues:
                return None
            if max(map(len, queues)) > _ID_LETTERS_MAX or max(table[key].values()) > _I64_MAX:
                return None
    except (AttributeError, TypeError, ValueError):
        return None
    return table


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


def _tree(text: bytes, tree_bytes_max: int) -> Any:
    """None if `text` cannot be read by itself: it is cut inside a key, or refers to elsewhere."""
    if b'"$ref"' in text:
        return None
    try:
        return loads(text, tree_bytes_max=tree_bytes_max)
    except BodyUnreadable:
        return None


def _whole(data: bytes | bytearray | memoryview, tree_bytes_max: int) -> Any:
    tree = loads(bytes(data), tree_bytes_max=tree_bytes_max)
    if type(tree) is not dict:
        raise BodyUnreadable(f"a table of offsets is a JSON {type(tree).__name__}, not an object")
    table = tree.get("offsetTable")
    return {} if table is None else table
