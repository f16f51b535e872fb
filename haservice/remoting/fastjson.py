"""JSON as RocketMQ's peers write it: text ⇄ tree.

fastjson, which Java peers use, writes two things that are no JSON, and reads both forms of each:

    {0:"10.0.0.1:10911"}                              integer keys without quotes
    {{"brokerName":"b","queueId":0,"topic":"T"}:9}    objects as keys

`loads` gives such keys as text ("0", or the JSON of the object), so the tree is an ordinary one; `dumps`
writes them for `int` and `ObjectKey` keys.  Standard JSON, which nearly everything is, costs one orjson
call.

Bounds: orjson refuses more than 1024 levels; `loads` refuses a text whose tree would take too much memory
before it reads it; the rest is linear in the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from haservice.errors import ProtocolError

# The memory that a tree may take: of a request that anyone may send, and of an answer from a broker we asked.
# The first has room for 65,536 consumers in a heartbeat, which takes 0.1 s to read.
REQUEST_TREE_BYTES_MAX = 16 * 1024 * 1024
ANSWER_TREE_BYTES_MAX = 64 * 1024 * 1024

# The references of a text: how many it may have, with how many steps each, and how many values all of them may
# bring in together.  Java writes one where an object occurs twice, which is rare in what RocketMQ sends.
REFERENCES_MAX = 512
REFERENCE_STEPS_MAX = 16
REFERENCED_NODES_MAX = 100_000

# CPython 3.11's sizes: a dict with an entry, a list with an entry, another entry with its value.
_DICT_BYTES = 232
_LIST_BYTES = 88
_ENTRY_BYTES = 40


class BodyUnreadable(ProtocolError, ValueError):
    """A body that cannot be read.  Its frame was whole, so the connection lives on."""


class ObjectKey(str):
    """A key that is an object: the text is its JSON."""

    __slots__ = ()


def loads(
    data: bytes | memoryview | str, *, dialect: bool = True, tree_bytes_max: int = ANSWER_TREE_BYTES_MAX
) -> Any:
    """The tree of a JSON text, in fastjson's dialect too if `dialect`; raises BodyUnreadable."""
    text = data.encode() if isinstance(data, str) else bytes(data)
    cost = tree_bytes(text)
    if cost > tree_bytes_max:
        raise BodyUnreadable(
            f"JSON of {len(text)} bytes would take {cost} bytes of memory, more than {tree_bytes_max}"
        )
    try:
        tree = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not dialect:
            raise BodyUnreadable(f"{len(text)} bytes are not JSON: {error}") from None
        try:
            tree = orjson.loads(_standard(text))
        except orjson.JSONDecodeError:
            raise BodyUnreadable(f"{len(text)} bytes are not JSON: {error}") from None
    return _resolved(tree) if b'"$ref"' in text and isinstance(tree, (dict, list)) else tree


def tree_bytes(text: bytes) -> int:
    """The most memory that the tree of a JSON text can take."""
    return text.count(b"{") * _DICT_BYTES + text.count(b"[") * _LIST_BYTES + text.count(b",") * _ENTRY_BYTES


def dumps(
    value: Any, *, unquoted_int_keys: bool = True, pretty: bool = False, ascii_only: bool = False
) -> bytes:
    """The JSON of a tree, keys in the order they stand in.

    With `unquoted_int_keys`, int keys have no quotes and ObjectKeys are objects; else both are strings.
    `pretty` is the form of RocketMQ's config files, indented by tabs.  `ascii_only` writes other
    characters as \\uXXXX.
    """
    if pretty:
        text = "".join(_pretty(value, "\n", unquoted_int_keys))
    else:
        try:
            standard = orjson.dumps(value)
            if not ascii_only:
                return standard
            text = standard.decode()
        except TypeError:  # it has keys that are not plain text
            pieces: list[str] = []
            _write(value, pieces, unquoted_int_keys)
            text = "".join(pieces)
    if ascii_only and not text.isascii():
        text = _NOT_ASCII.sub(_escaped, text)
    return text.encode()


# Reading

# The search skips whole strings, an unclosed one to the end of the text, so it looks at nothing twice.  A key
# is a number or a flat object with a colon behind it.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_KEY = re.compile(
    _STRING
    + rb"|[{,]\s*(?:(?P<number>-?\d+)|(?P<object>\{[^{}\"]*(?:"
    + _STRING
    + rb"[^{}\"]*)*\}))(?=\s*:)",
    re.DOTALL,
)


def _standard(text: bytes) -> bytearray:
    """`text` with its unquoted keys as strings."""
    standard = bytearray()
    done = 0
    for match in _KEY.finditer(text):
        kind = match.lastgroup
        if kind is None:
            continue
        start, end = match.span(kind)
        key = match[kind]
        standard += text[done:start]
        standard += b'"%b"' % key if kind == "number" else orjson.dumps(key.decode(errors="replace"))
        done = end
    standard += text[done:]
    return standard


_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,8})\]")


def _resolved(tree: Any) -> Any:
    """`tree` with fastjson's {"$ref":"$.a.b[0]"} replaced by what stands there.

    Java writes a reference where one object occurs twice.  A few references can name the same large object,
    so what they bring in is bounded.  Equal paths are looked up once.  A reference to nothing, or to what holds
    references, becomes null.
    """
    places = _references(tree)
    left = REFERENCED_NODES_MAX
    found: dict[str, tuple[Any, int]] = {}
    for node, key, path in places:
        if path not in found:
            target = _target(tree, path)
            count, plain = _survey(target, left)
            found[path] = target if plain else None, count
        node[key], count = found[path]
        left -= count
        if left < 0:
            raise _too_many_values()
    return tree


def _references(tree: Any) -> list[tuple[Any, Any, str]]:
    """Each reference: what holds it, under which key, and its path.  Raises BodyUnreadable if they are too many."""
    places: list[tuple[Any, Any, str]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for key, value in node.items() if type(node) is dict else enumerate(node):
            if not isinstance(value, (dict, list)):
                continue
            path = value.get("$ref") if type(value) is dict and len(value) == 1 else None
            if type(path) is not str:
                waiting.append(value)
                continue
            places.append((node, key, path))
            if len(places) > REFERENCES_MAX:
                raise BodyUnreadable(f"more than {REFERENCES_MAX} references stand in one JSON text")
    return places


def _target(tree: Any, path: str) -> Any:
    """What stands at a path like $.a.b[0]; None if nothing does.  Raises BodyUnreadable for one that is too long."""
    node = tree
    position, steps = 1, 0
    while path.startswith("$") and position < len(path):
        steps += 1
        if steps > REFERENCE_STEPS_MAX:
            raise BodyUnreadable(f"reference {path[:40]!r} has more than {REFERENCE_STEPS_MAX} steps")
        step = _STEP.match(path, position)
        name, index = step.groups() if step else (None, None)
        if name is not None and isinstance(node, dict):
            node = node.get(name)
        elif index is not None and isinstance(node, list) and int(index) < len(node):
            node = node[int(index)]
        else:
            return None
        assert step is not None
        position = step.end()
    return node if path.startswith("$") else None


def _too_many_values() -> BodyUnreadable:
    return BodyUnreadable(f"references stand for more than {REFERENCED_NODES_MAX} values")


def _survey(tree: Any, limit: int) -> tuple[int, bool]:
    """How many values `tree` has, and whether it has no references; raises BodyUnreadable beyond
    `limit`.
    """
    count = 0
    plain = True
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            plain &= "$ref" not in node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
        count += 1
        if count > limit:
            raise _too_many_values()
    return count, plain


# Writing

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def _escaped(match: re.Match[str]) -> str:
    """As fastjson's BrowserCompatible: UTF-16 units in upper case."""
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04X}" for i in range(0, len(units), 2))


def _key(key: Any, unquoted: bool) -> str:
    if isinstance(key, ObjectKey):
        return str(key) if unquoted else orjson.dumps(str(key)).decode()
    if isinstance(key, int):
        return str(int(key)) if unquoted else f'"{int(key)}"'
    return orjson.dumps(key).decode()


def _write(value: Any, pieces: list[str], unquoted: bool) -> None:
    if isinstance(value, Mapping):
        before = "{"
        for key, member in value.items():
            pieces.append(f"{before}{_key(key, unquoted)}:")
            if type(member) is int:
                pieces.append(str(member))
            else:
                _write(member, pieces, unquoted)
            before = ","
        pieces.append("}" if value else "{}")
    elif isinstance(value, (list, tuple)):
        before = "["
        for member in value:
            pieces.append(before)
            _write(member, pieces, unquoted)
            before = ","
        pieces.append("]" if value else "[]")
    else:
        pieces.append(orjson.dumps(value).decode())


def _pretty(value: Any, line: str, unquoted: bool) -> list[str]:
    """As fastjson's PrettyFormat, which puts members whose keys are no text on one line: {0:5,1:7 and
    }.
    """
    pieces: list[str] = []
    inner = line + "\t"
    if isinstance(value, Mapping) and value:
        textual = all(type(key) is str for key in value)
        before = "{" + inner if textual else "{"
        for key, member in value.items():
            pieces.append(f"{before}{_key(key, unquoted)}:")
            pieces += _pretty(member, inner, unquoted)
            before = "," + inner if textual else ","
        pieces.append(line + "}")
    elif isinstance(value, (list, tuple)) and value:
        before = "[" + inner
        for member in value:
            pieces.append(before)
            pieces += _pretty(member, inner, unquoted)
            before = "," + inner
        pieces.append(line + "]")
    else:
        _write(value, pieces, unquoted)
    return pieces
