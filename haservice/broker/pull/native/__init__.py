"""SQL92 expressions as they are used: compiled natively where that was built, else by the reference.

`sql_filter.py` is the reference: both take the same expressions, find the same faults in the same words, and let the
same messages through.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from commitlog.kernel import native as kernel
from commitlog.kernel.records import decode_properties
from haservice.broker.pull.sql_filter import (
    EXPRESSION_CHARS_MAX,
    FOUND_CHARS_MAX,
    NESTING_MAX,
    SqlFault,
    compile_filter,
)
from haservice.broker.pull.sql_values import LONG_MAX

sql: Any
sql, _, _ = kernel.load(os.environ, "haservice.broker.pull.native._sql")


class Expression(NamedTuple):
    """A compiled expression.  `unread` is the text behind its end, which decides nothing; `selects` says whether a
    message with these encoded properties passes: unknown and incomparable values do not.
    """

    text: str
    unread: str
    selects: Callable[[bytes], bool]


def compile_expression(text: str) -> Expression:
    """Raises SqlFault."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise SqlFault(f"{len(text)} characters, at most {EXPRESSION_CHARS_MAX} are read")
    made = None if sql is None else sql.compile(text)
    if made is None:
        return _by_reference(text)
    if len(made) == 2:
        program, end = made
        return Expression(text, text[_characters(text, end) :].strip(), program)
    raise SqlFault(_told(text, *made))


def matching(selectors: list[Callable[[bytes], bool]], properties: bytes) -> list[int]:
    """The numbers of the selectors that let a message with these encoded properties through."""
    if sql is not None:
        found: list[int] = sql.matching(selectors, properties)
        return found
    return [number for number, selects in enumerate(selectors) if selects(properties)]


# -- the reference ---------------------------------------------------------------------------------

# One message is tried for many expressions, one after the other.
decoded = lru_cache(maxsize=8)(decode_properties)


def _by_reference(text: str) -> Expression:
    taken = compile_filter(text)
    matches = taken.matches
    return Expression(text, taken.unread, lambda properties: matches(decoded(properties).get))


# -- faults ----------------------------------------------------------------------------------------

# As core/sql.h numbers its tokens; the last one stands for whatever is a value.
_TOKENS = (
    *("end", "float", "integer", "text", "property"),
    *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
    *("=", "<>", ">", ">=", "<", "<=", "(", ")", ",", "+", "-"),
    "a value",
)
_MEANS_NOTHING, _UNEXPECTED = 2, 3
_REASONS = {
    4: "this is no condition",
    5: "NULL is not compared; IS NULL asks for it",
    6: "TRUE and FALSE are not compared with another kind of literal",
    7: "{wanted} takes numbers and properties only",
    8: "BETWEEN goes from {low} down to {high}",
    9: "IN takes a property on its left",
    10: f"nested more than {NESTING_MAX} deep",
    11: f"{{image}} is above {LONG_MAX}",
    12: "{image} is no positive double",
}


def _told(
    text: str, code: int, wanted: int, position: int, start: int, size: int, bounds: Sequence[object]
) -> str:
    """What the reference says of this fault."""
    begin = _characters(text, start)
    image = text[begin : _characters(text, start + size)]
    if code == _MEANS_NOTHING:
        return f"character {begin + 1}: {text[begin]!r} means nothing here"
    if code == _UNEXPECTED:
        found = image[:FOUND_CHARS_MAX] or "the end"
        return f"character {begin + 1}: expected {_TOKENS[wanted]}, found {found}"
    low, high = bounds
    reason = _REASONS[code].format(wanted=_TOKENS[wanted], image=image, low=low, high=high)
    return f"up to character {_characters(text, position)}: {reason}"


def _characters(text: str, size: int) -> int:
    """How many characters the first `size` bytes of the text's UTF-8 are."""
    return size if text.isascii() else len(text.encode()[:size].decode())
