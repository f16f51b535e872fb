"""What SQL92 filters compute with: Java's values, how text becomes a number, and how two values compare.

A value is None (no such property, or unknown), bool, str, int (Java's Integer), Long, or float (Double).
The two integer types are kept apart, because a literal's type decides which property texts it can be
compared with.  The rules are those of RocketMQ's ComparisonExpression, odd ones included: they decide which
messages a group gets.  Pure.
"""

from __future__ import annotations

import math
import re

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

_INTEGER = re.compile(r"[+-]?\d+")
# A property has up to 32 KiB: with two adjacent runs of digits, every split would be tried.
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII
)
_NAMED = {
    "NaN": math.nan,
    "+NaN": math.nan,
    "-NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
}
# What Java's String.trim() removes.
_BLANKS = "".join(map(chr, range(33)))


class Long(int):
    """A 64-bit integer."""

    __slots__ = ()


Value = None | bool | str | int | Long | float


class EvaluationFault(ValueError):
    """Two values cannot be compared; the message that they come from does not match."""


def integer_of(text: str, largest: int) -> int:
    """Java's Integer.valueOf and Long.valueOf: a sign and digits, of any script.  Raises EvaluationFault."""
    if _INTEGER.fullmatch(text) and max(text) <= "\uffff":
        # Longer ones are out of range, unless zeros lead, and costly to parse.
        value = int(text) if len(text) <= 64 else _long_text(text)
        if -largest - 1 <= value <= largest:
            return value
    raise EvaluationFault(f"{text[:64]!r} is no integer of up to {largest}")


def _long_text(text: str) -> int:
    digits = text.lstrip("+-").lstrip("0")
    value = int(digits or "0") if len(digits) <= 64 else LONG_MAX + 2
    return -value if text[0] == "-" else value


def double_of(text: str) -> float:
    """Java's Double.valueOf.  Raises EvaluationFault."""
    text = text.strip(_BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD"))
    named = _NAMED.get(text)
    if named is not None:
        return named
    found = _HEXADECIMAL.fullmatch(text)
    if found is None:
        raise EvaluationFault(f"{text[:64]!r} is no number")
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if text[0] == "-" else math.inf


def equal(left: Value, right: Value) -> bool | None:
    """`=`: None if only the left side is unknown.  Raises EvaluationFault for text that is not a number."""
    if left is None or right is None:
        return True if left is right else None if left is None else False
    if type(left) is type(right):
        return order(left, right) == 0 if type(left) is float else left == right
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationFault("a truth value on the left is not compared with text")
        return False
    if isinstance(right, bool):
        return isinstance(left, str) and (left.lower() == "true") is right
    return order(left, right) == 0


def order(left: str | int | float, right: str | int | float) -> int:
    """Below, at or above 0, as Java's compareTo.  Raises EvaluationFault.

    Text is read as the other side's type; two texts are read as doubles.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return _order_doubles(double_of(left), double_of(right))
        left = _like(right, left)
    elif isinstance(right, str):
        right = _like(left, right)
    if isinstance(left, float) or isinstance(right, float):
        return _order_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _like(number: int | float, text: str) -> int | float:
    if isinstance(number, float):
        return double_of(text)
    return integer_of(text, LONG_MAX if isinstance(number, Long) else INT_MAX)


def _order_doubles(left: float, right: float) -> int:
    """Double.compareTo: NaN is above all others and equal to itself; 0.0 is above -0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(number: float) -> int:
    """Ranks numbers that `<` and `>` cannot tell apart."""
    if math.isnan(number):
        return 2
    return 0 if number == 0 and math.copysign(1.0, number) < 0 else 1
