"""JSONBody: dataclass ⇄ JSON tree, by the dataclass's own annotations.

    int float bool str        numbers may come as strings and strings as numbers; Go clients send both
    bytes                     Base64, as fastjson writes a byte[]
    Epoch, Offset, …           an int within its bounds, see haservice.bounds
    TopicName, GroupName, …    a text within its bytes, likewise
    X | None                  left out when None
    Sequence[X]               written as an array, read as a tuple
    Mapping[str|int|B, X]     read as a dict; int keys and keys that are bodies are fastjson's dialect

An absent or null member gets its field's default; without a default it is required.  Unknown members are
ignored.  Members are written in alphabetical order, as Java does.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from haservice.bounds import Bounds, TextBytes
from haservice.remoting.fastjson import ANSWER_TREE_BYTES_MAX, BodyUnreadable, ObjectKey, dumps, loads
from haservice.remoting.headers.clients import wire_name

_I64_MAX = 2**63 - 1

_Read = Callable[[Any], Any]
_Write = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """One field: its names on the wire, and how its value is read and written."""

    field: str
    names: tuple[str, ...]  # the first is written, any is read
    read: _Read
    write: _Write | None  # None: as it is
    default: Callable[[], Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    members: tuple[_Member, ...]
    dialect: bool  # somewhere inside are keys that are no text


def named(*names: str) -> Mapping[str, tuple[str, ...]]:
    """Metadata for a field with another wire name than its own in camel case; further names are read, too."""
    return {"names": names}


class JSONBody:
    """Base of every body that is a JSON object."""

    __slots__ = ()

    # The memory that reading a body may take; less for bodies of requests.
    TREE_BYTES_MAX: ClassVar[int] = ANSWER_TREE_BYTES_MAX

    @classmethod
    def decode(cls, data: bytes | memoryview | str) -> Self:
        """Raises BodyUnreadable, which names the member that is wrong."""
        return cls.from_tree(loads(data, dialect=_plan(cls).dialect, tree_bytes_max=cls.TREE_BYTES_MAX))

    def encode(self, *, pretty: bool = False, standard: bool = False) -> bytes:
        """`pretty` for config files; `standard` quotes every key and writes ASCII, for newer clients'
        routes.
        """
        return dumps(self.tree(), unquoted_int_keys=not standard, pretty=pretty, ascii_only=standard)

    @classmethod
    def from_tree(cls, tree: Any) -> Self:
        if type(tree) is not dict:
            raise BodyUnreadable(f"{cls.__name__} is a JSON {type(tree).__name__}, not an object")
        values = {}
        for member in _plan(cls).members:
            value = tree.get(member.names[0])
            if value is None and len(member.names) > 1:
                value = next((tree[name] for name in member.names if tree.get(name) is not None), None)
            if value is not None:
                try:
                    values[member.field] = member.read(value)
                except BodyUnreadable as error:
                    raise BodyUnreadable(f"{cls.__name__}.{member.names[0]}: {error}") from None
            elif member.default is None:
                raise BodyUnreadable(f"{cls.__name__} has no member {member.names[0]}")
            else:
                values[member.field] = member.default()
        return cls(**values)

    def tree(self) -> dict[str, Any]:
        members = {}
        for member in _plan(type(self)).members:
            value = getattr(self, member.field)
            if value is not None:
                members[member.names[0]] = value if member.write is None else member.write(value)
        return members


_plans: dict[type, _Plan] = {}


def _plan(cls: type[JSONBody]) -> _Plan:
    plan = _plans.get(cls)
    if plan is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        members = []
        dialect = False
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            read, write, inside = _codec(hints[field.name])
            dialect |= inside
            names = field.metadata.get("names") or (wire_name(field.name),)
            members.append(_Member(field.name, names, read, write, _default(field)))
        members.sort(key=lambda member: member.names[0])
        plan = _plans[cls] = _Plan(tuple(members), dialect)
    return plan


def _default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    return None


def _codec(hint: Any) -> tuple[_Read, _Write | None, bool]:
    """How a type is read and written, and whether it needs the dialect."""
    if hint in _SCALARS:
        return _SCALARS[hint], None, False
    if hint is bytes:
        return _blob, _base64, False
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        return _bounded(arguments[1]), None, False
    if origin in (types.UnionType, typing.Union):
        return _codec(next(kind for kind in arguments if kind is not type(None)))
    if origin is collections.abc.Sequence:
        return _sequence_codec(arguments[0])
    if origin is collections.abc.Mapping:
        return _mapping_codec(*arguments)
    assert isinstance(hint, type), hint
    assert issubclass(hint, JSONBody), hint
    return hint.from_tree, lambda value: value.tree(), _plan(hint).dialect


def _sequence_codec(kind: Any) -> tuple[_Read, _Write | None, bool]:
    read_item, write_item, dialect = _codec(kind)

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise BodyUnreadable(f"is a JSON {type(value).__name__}, not an array")
        return tuple([read_item(item) for item in value if item is not None])

    def write(value: Any) -> list[Any]:
        return list(value) if write_item is None else [write_item(item) for item in value]

    return read, write, dialect


def _mapping_codec(key_kind: Any, kind: Any) -> tuple[_Read, _Write | None, bool]:
    read_item, write_item, dialect = _codec(kind)
    read_key: _Read | None = None
    write_key: _Write | None = None
    if key_kind is int:
        read_key = _whole
    elif key_kind is not str:
        read_key = key_kind.decode

        def write_key(key: JSONBody) -> ObjectKey:
            return ObjectKey(dumps(key.tree()).decode())

    def read(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise BodyUnreadable(f"is a JSON {type(value).__name__}, not an object")
        items = value.items()
        if read_key is None:
            return {key: read_item(item) for key, item in items if item is not None}
        return {read_key(key): read_item(item) for key, item in items if item is not None}

    def write(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        if write_key is None:
            return value if write_item is None else {key: write_item(item) for key, item in value.items()}
        return {
            write_key(key): item if write_item is None else write_item(item) for key, item in value.items()
        }

    return read, write, dialect or read_key is not None


def _whole(value: Any) -> int:
    if type(value) is not int:
        if not isinstance(value, (str, bool)) and not (isinstance(value, float) and value.is_integer()):
            raise BodyUnreadable(f"{str(value)[:40]!r} is not a whole number")
        try:
            value = int(value)
        except ValueError:
            raise BodyUnreadable(f"{str(value)[:40]!r} is not a whole number") from None
    # The JSON writer cannot write a larger number, and no Java peer could read it.
    if not -_I64_MAX - 1 <= value <= _I64_MAX:
        raise BodyUnreadable(f"{str(value)[:40]} does not fit into 64 bits")
    return int(value)


def _bounded(bounds: Bounds | TextBytes) -> _Read:
    def read(value: Any) -> Any:
        try:
            return bounds.checked(_whole(value)) if isinstance(bounds, Bounds) else bounds.read(_text(value))
        except ValueError as error:
            raise BodyUnreadable(str(error)) from None

    return read


def _real(value: Any) -> float:
    if isinstance(value, (int, float, str)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise BodyUnreadable(f"{str(value)[:40]!r} is not a number")


def _truth(value: Any) -> bool:
    if isinstance(value, (bool, int)):
        return bool(value)
    if isinstance(value, str):
        return value.lower() == "true"
    raise BodyUnreadable(f"is a JSON {type(value).__name__}, not true or false")


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise BodyUnreadable(f"is a JSON {type(value).__name__}, not text")


def _blob(value: Any) -> bytes:
    if type(value) is not str:
        raise BodyUnreadable(f"is a JSON {type(value).__name__}, not Base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:  # binascii.Error is one; letters behind ASCII raise another
        raise BodyUnreadable(f"text of {len(value)} characters is not Base64: {error}") from None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_SCALARS: dict[Any, _Read] = {int: _whole, float: _real, bool: _truth, str: _text}
