"""Expressions and properties to try two SQL92 filters on: right ones, odd ones, and broken ones."""

from __future__ import annotations

import random

Case = tuple[str, dict[str, str]]
NAMES = ("a", "b", "c", "TAGS", "_x$1")
NUMBERS = (
    "0", "1", "5", "7L", "10", "2147483647", "2147483648", "9223372036854775807",
    "9223372036854775808l", "0.5", "5.", ".5E1", "1e3", "2E-2", "0.0", "1e400", "1e-400", "007", "0L",
    "12abc",
)  # fmt: skip
TEXTS = (
    "'x'", "'y'", "''", "'it''s'", "'5'", "'true'", "'a''b''c'", "'ü 漢'", "'5.0'",
)  # fmt: skip
LITERALS = ("TRUE", "false", "NULL")
VALUES = (
    "x", "y", "5", "05", "+5", "-5", "5.0", " 5", "7", "2147483648", "-2147483649",
    "9223372036854775808", "true", "TRUE", "false", "it's", "ü 漢", "1e3", "5d", "0x1p3", "NaN",
    "Infinity", "-0.0", "0.0", "٥", "1_0", ".5", "5.", "", "e", "0x10", "99999999999999999999999999",
    "-Infinity", "\t5\n", "5f",
)  # fmt: skip
BROKEN = (
    "a = ", "= 1", "a LIKE 'x'", "a NOT LIKE 'x'", "a IN (1)", "a IN ()", "a IN 'x'", "5 IN ('5')",
    "a BETWEEN 1", "a BETWEEN 5 AND 1", "a BETWEEN 'a' AND 'b'", "a BETWEEN NULL AND 5",
    "a BETWEEN 1 AND 1", "a > 'x'", "a > TRUE", "(a = 1", "a = 1)", "a = 1 !", "a = 1 b !", "a = 'x",
    "a = \"x\"", "'x'", "5", "-a", "a", "NOT a", "NOT 5", "NULL", "TRUE", "(TRUE)", "a = NULL",
    "TRUE = 1", "1 = TRUE", "TRUE = TRUE", "a == 1", "a != 1", "a = 0x10", "a = 1 -- end",
    "a = 1 -- end\n", "a -- in between\n = 5", "a /* x */ = 5", "a /* x = 5", "a /* * / ** */ = 5",
    "a = - -5", "a = --5", "a = +-5", "a = + 5", "NOT a = 5", "NOT (a = 5)", "NOT a > 5",
    "NOT a IN ('x')", "a IS 5", "a IS NOT 5", "a IS NULL IS NULL", "(a = 5) IS NOT NULL", "a = b",
    "a <> b", "a > b", "a = b = c", "a > b > c", "1 < a", "'x' = a", "TRUE = a", "a = TRUE",
    "a BETWEEN -5 AND 5", "a NOT BETWEEN 1 AND 5", "a NOT BETWEEN 5 AND 1", "a BETWEEN b AND c", "",
    " ", "a = 9223372036854775808", "a = -9223372036854775808", "a = -2147483648", "a > -0.5",
    "a = 1.5L", "a IN ('x','y','5','true','7','it''s')", "a NOT IN ('x')", "a in('5')", "and = 1",
    "a = 1 and", "a.b = 1", "a BETWEEN 1 AND 5 AND b = 'x'", "a BETWEEN 1 AND 5.5",
    "a BETWEEN 2147483648 AND 5", "a IS NULL OR a > 4", "a IS NOT NULL AND b IS NULL", "(((a)))",
    "a OR b", "a = (b = c)", "(a = 5) = (b = 5)", "(a = 5) = TRUE", "(a = 5) > 1", "-(a = 5) > 1",
    "-a > 1", "-'5' < 1", "a = 'ü 漢'", "ä = 1", "a = 1;", "a % 2 = 1", "a*2>1", "a + 1 = 2",
    "NOT NOT (a = 5)", "NOT + (a = 5)", "a = 5 OR NULL", "NULL AND a = 5", "FALSE OR a = '5'",
    "a <> 5 AND a <> 'x'", "\ta\r\n=\f5", "a\u00a0= 5", "a = 5\x0b", "TAGS = 'x' or TAGS in ('y')",
    "b > c", "a = 1e400", "a = 0.0", "a > 1e-400", "a = 5e", "a = .", "a = 5..", "NULL IS NULL",
    "TRUE IS NULL", "'x' IS NOT NULL", "1 IS NULL", "-1 IS NULL", "a = TRUE OR b", "a >= 5 AND a <= 5",
    "a = 5 a = 6",
)  # fmt: skip


def generated(count: int, seed: int = 92) -> list[Case]:
    """The broken ones with several sets of properties each, then `count` that follow the grammar, mostly."""
    choose = random.Random(seed)
    cases = [(expression, _properties(choose)) for expression in BROKEN for _ in range(4)]
    while len(cases) < count + 4 * len(BROKEN):
        expression = _condition(choose, 3)
        if choose.random() < 0.1:
            expression = _damaged(choose, expression)
        cases.append((expression, _properties(choose)))
    return cases


def _properties(choose: random.Random) -> dict[str, str]:
    # An empty value cannot be stored with a message.
    return {name: choose.choice(VALUES) or "e" for name in NAMES if choose.random() < 0.75}


def _condition(choose: random.Random, depth: int) -> str:
    kind = choose.randrange(9 if depth else 6)
    if kind < 3:
        sign = choose.choice(("=", "<>", ">", ">=", "<", "<="))
        return f"{_operand(choose)} {sign} {_operand(choose)}"
    if kind == 3:
        words = choose.choice(("BETWEEN", "not between"))
        return f"{choose.choice(NAMES)} {words} {_operand(choose, 0.8)} AND {_operand(choose, 0.8)}"
    if kind == 4:
        texts = ", ".join(choose.choice(TEXTS) for _ in range(choose.randint(1, 6)))
        return f"{choose.choice(NAMES)} {choose.choice(('IN', 'NOT IN'))} ({texts})"
    if kind == 5:
        return f"{choose.choice(NAMES)} {choose.choice(('IS NULL', 'is not null', '', '= TRUE'))}"
    if kind == 6:
        return f"NOT ({_condition(choose, depth - 1)})"
    joined = choose.choice((" AND ", " OR ")).join(
        _condition(choose, depth - 1) for _ in range(choose.randint(2, 3))
    )
    return f"({joined})" if kind == 7 else joined


def _operand(choose: random.Random, numbers: float = 0.35) -> str:
    drawn = choose.random()
    if drawn < numbers:
        return choose.choice(("", "", "", "-", "+")) + choose.choice(NUMBERS)
    if drawn < numbers + (1 - numbers) * 0.6:
        return choose.choice(NAMES)
    return choose.choice(TEXTS if choose.random() < 0.85 else LITERALS)


def _damaged(choose: random.Random, expression: str) -> str:
    place = choose.randrange(len(expression) + 1)
    return (
        expression[:place]
        + choose.choice(("", " ", "(", ")", "'", "!", "-", "+", " NOT ", ","))
        + expression[place + 1 :]
    )
