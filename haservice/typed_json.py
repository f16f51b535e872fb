"""JSON that no RocketMQ peer reads: values of declared types ⇄ bytes, by msgspec.

The annotations of a dataclass, a Struct or a plain type say what the JSON has to be.  Unknown members are ignored.
Bodies of RocketMQ's requests are no part of this: fastjson's dialect has `haservice.remoting.json_body`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Equal values have equal bytes: sets and dicts are written in order."""
    return msgspec.json.encode(value, order="deterministic")


def encode_pretty(value: Any) -> bytes:
    """For files that people look at: dicts keep their order."""
    return msgspec.json.format(msgspec.json.encode(value))


def decode(kind: type[T], text: bytes | str) -> T:
    """Raises ValueError, which says what is wrong and where: Expected `int`, got `str` - at `$.epoch`."""
    return _decoded(kind, text, strict=True)


def decode_lax(kind: type[T], text: bytes | str) -> T:
    """As `decode`, of what writes numbers as text."""
    return _decoded(kind, text, strict=False)


def _decoded(kind: type[T], text: bytes | str, *, strict: bool) -> T:
    try:
        return msgspec.json.decode(text, type=kind, strict=strict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
