"""SQL92 expressions by chance, sound ones and others, and properties that they may be about."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from commitlog.kernel.records import decode_properties
from haservice.broker.pull.native import Expression, compile_expression, sql
from haservice.broker.pull.sql_filter import EvaluationFault, SqlFault, SqlFilter, compile_filter

NAMES = ("a", "b", "c", "_x$1", "NOTa", "$", "missing")
TEXTS = (
    *("5", "-5", "+5", "007", "5.0", "5e0", "0.5", ".5", "5.", "1e22", "1e23", "1e400", "-0", "-0.0", "0"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "-9223372036854775809", "9" * 70, "0" * 70 + "5", "0.1", "0.30000000000000004"),
    *(
        "NaN",
        "-NaN",
        "Infinity",
        "-Infinity",
        "0x1p3",
        "0X.8P1d",
        "0x",
        " 5",
        "5 ",
        "\t5\n",
        "5f",
        "5D",
        "5_0",
    ),
    *(
        "true",
        "TRUE",
        "tRuE",
        "false",
        "x",
        "it's",
        "''",
        "'",
        "é",
        "٥",
        "5٥",
        "𝟝",
        "\ufffd",
        "eu",
        "",
        "+",
        ".",
    ),
    *("1e", "1e+", "--5", "nan", "inf", "1e-400", "123456789012345678901234567890e-20", "١.٥", "\u20005"),
)
_INTEGERS = ("0", "1", "5", "7L", "007", "2147483647", "2147483648", "2147483648l", "9223372036854775807")
_LARGE = ("9223372036854775808", "99999999999999999999", "0L", "05", "5x")
_FLOATS = (
    "0.5",
    "5.",
    ".5",
    "5.0e0",
    "1e22",
    "1e23",
    "1E-5",
    "1e400",
    "0.0",
    "1e-400",
    "5.5e+1",
    "0.1",
    "1e",
)
_FLOATS_MORE = ("0.30000000000000004", "123456789012345678901.5", "179769313486231570000e290")
_BLANKS = ("", " ", "\n", "\t", "--x\n", "/**/", "/* * **/", "\f\r")
_PIECES = (
    *(
        "'",
        "''",
        "(",
        ")",
        "--",
        "/*",
        "*/",
        "é",
        "\ud800",
        "𝟝",
        "\0",
        ",",
        "<",
        ">",
        "=",
        ".",
        "e",
        "L",
        "\n",
    ),
    *(
        "NOT ",
        " AND ",
        " OR ",
        " IN ",
        " BETWEEN ",
        " IS ",
        "NULL",
        "TRUE",
        "/",
        "*",
        "-",
        "+",
        "\x7f",
        "\xa0",
    ),
)


class Maker:
    """Makes them of a source of chance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def expression(self) -> str:
        made = self._condition(self._rng.choice((0, 1, 2, 3, 4)))
        for _ in range(self._rng.choice((0, 0, 0, 1, 1, 3))):
            made = self._spoilt(made)
        return made

    def properties(self) -> bytes:
        rng, out = self._rng, bytearray()
        for _ in range(rng.randrange(6)):
            name = rng.choice((*NAMES[:-1], "other", "", "é"))
            value = rng.choice(TEXTS)
            out += name.encode() + rng.choice((b"\1",) * 9 + (b"",)) + value.encode()
            out += rng.choice((b"\2",) * 9 + (b"", b"\2\2", b"\1", b"\xff\2", b"\xe6\2")) or b"\2"
        return bytes(out)

    def _spoilt(self, text: str) -> str:
        rng, at = self._rng, self._rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 0, 1, 1, 2, 5)))
        return text[:at] + rng.choice((*_PIECES, "")) + text[end:]

    def _gap(self) -> str:
        return self._rng.choice((" ",) * 12 + _BLANKS)

    def _condition(self, depth: int) -> str:
        rng = self._rng
        kind = rng.randrange(10 if depth > 0 else 5)
        if kind < 5:
            return self._simple(depth)
        if kind == 5:
            return f"({self._gap()}{self._condition(depth - 1)}{self._gap()})"
        if kind == 6:
            return f"{rng.choice(('NOT', 'not', 'Not'))} {self._condition(depth - 1)}"
        word = rng.choice(("AND", "OR", "or", "And"))
        parts = [self._condition(depth - 1) for _ in range(rng.randrange(2, 5))]
        return f"{self._gap()} {word} {self._gap()}".join(parts)

    def _simple(self, depth: int) -> str:
        rng, gap = self._rng, self._gap
        kind, left = rng.randrange(12), self._value(depth)
        if kind < 5:
            return f"{left}{gap()}{rng.choice(('=', '<>', '=', '>', '>=', '<', '<='))}{gap()}{self._value(depth)}"
        if kind < 7:
            word = rng.choice(("BETWEEN", "NOT BETWEEN"))
            return f"{left} {gap()}{word} {gap()}{self._value(depth)} AND {self._value(depth)}"
        if kind < 9:
            texts = f"{gap()},".join(self._text() for _ in range(rng.randrange(1, 5)))
            left = left if rng.randrange(8) == 0 else rng.choice(NAMES)
            return f"{left} {rng.choice(('IN', 'NOT IN', 'not in'))}{gap()}({texts})"
        if kind == 9:
            return rng.choice((*NAMES, "TRUE", "FALSE", "NULL", "true"))
        return f"{left} {rng.choice(('IS NULL', 'IS NOT NULL', 'is not null'))}"

    def _value(self, depth: int) -> str:
        rng = self._rng
        kind = rng.choice((0, 0, 0, 0, 0, 5, 6, 7, 8, 9, 10, 12, rng.randrange(14)))
        if kind < 5:
            return rng.choice(NAMES)
        if kind < 7:
            return rng.choice(_INTEGERS if rng.randrange(20) else _LARGE)
        if kind < 9:
            return rng.choice(_FLOATS + _FLOATS_MORE)
        if kind < 11:
            return self._text()
        if kind == 11:
            return rng.choice(("TRUE", "FALSE", "NULL")) if rng.randrange(3) else "TRUE"
        if kind == 12:
            return rng.choice(("-", "- ", "+", "- -", "-+")) + self._value(depth)
        return f"({self._condition(depth - 1) if depth > 0 else self._value(0)})"

    def _text(self) -> str:
        return "'" + self._rng.choice(TEXTS).replace("'", "''") + "'"


def agree(expression: str, properties: bytes) -> object:
    """Holds the native build against the reference; the end that both came to."""
    wanted, found = _made(compile_filter, expression), _made(compile_expression, expression)
    if not isinstance(wanted, SqlFilter) or not isinstance(found, Expression):
        assert found == wanted
        return str(wanted).split(": ", 1)[-1][:12]
    assert (found.text, found.unread) == (expression, wanted.unread)
    get = decode_properties(properties).get
    end = _value_or_fault(lambda: wanted.evaluate(get))
    assert found.selects(properties) is (end is True), f"python: {end}"
    if isinstance(found.selects, sql.Program):
        program: Any = found.selects
        assert _value_or_fault(lambda: program.evaluate(properties)) == end, f"python: {end}"
        some = [program, bool, program]
        passed = [number for number, yes in enumerate((end is True, properties, end is True)) if yes]
        assert sql.matching(some, properties) == passed
    else:
        assert not _has_bytes(expression)
    return end, bool(wanted.unread)


def _made(compiled: Callable[[str], object], expression: str) -> object:
    """What it is compiled to, or the text of the fault."""
    try:
        return compiled(expression)
    except SqlFault as fault:
        return str(fault)


def _value_or_fault(evaluate: Callable[[], object]) -> object:
    try:
        return evaluate()
    except EvaluationFault:
        return "fault"


def _has_bytes(expression: str) -> bool:
    try:
        expression.encode()
    except UnicodeEncodeError:
        return False
    return True
