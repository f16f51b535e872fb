"""SQL92 expressions: what they accept, refuse and decide.  tests/interop compares thousands with RocketMQ."""

from __future__ import annotations

import pytest

from haservice.broker.pull.sql_filter import (
    EXPRESSION_CHARS_MAX,
    NESTING_MAX,
    EvaluationFault,
    SqlFault,
    compile_filter,
)
from haservice.broker.pull.sql_values import double_of, integer_of

PROPERTIES = {
    "a": "5",
    "b": "x",
    "yes": "true",
    "big": "3000000000",
    "TAGS": "T",
    "half": "0.5",
    "_x$1": "it's",
}


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        # Comparing with text, numbers and truth values
        ("b = 'x'", True),
        ("b <> 'x'", False),
        ("_x$1 = 'it''s'", True),
        ("a = 5 and TAGS = 'T'", True),
        ("a = 5.0", True),
        ("a = '5'", True),
        ("5 = a", True),
        ("a > 4 AND a >= 5 AND a < 6 AND a <= 5", True),
        ("a > 4.5e0", True),
        ("a = - -5", True),
        ("a > -1", True),
        ("a = +5L", True),
        ("yes = TRUE", True),
        ("yes = FALSE", False),
        ("half < 1.0", True),
        ("half < .6", True),
        ("a > half", True),
        # Of the type of the literal: this text is no int, but it is a long
        ("big > 2147483648", True),
        # BETWEEN and IN
        ("a BETWEEN 5 AND 5", True),
        ("a NOT BETWEEN 1 AND 4", True),
        ("a between -1 and 5.5", True),
        ("b IN ('y', 'x')", True),
        ("b NOT IN ('y')", True),
        ("b in ('y')", False),
        # Three values
        ("no IS NULL", True),
        ("no IS NOT NULL", False),
        ("a IS NOT NULL", True),
        ("no = 5", None),
        ("no IN ('x')", None),
        ("no NOT IN ('x')", None),
        ("no BETWEEN 1 AND 2", None),
        ("NOT (no = 5)", None),
        ("no = 5 OR a = 5", True),
        ("no = 5 OR a = 6", None),
        ("no = 5 AND a = 6", False),
        ("no = 5 AND a = 5", None),
        ("no = nope", True),
        ("a = no", False),
        ("NULL OR a = 5", True),
        ("TRUE AND NOT FALSE", True),
        # A property alone is a condition that no text fulfils
        ("yes", False),
        ("NOT yes", True),
        ("no", None),
        # Binding: AND before OR, NOT before everything else
        ("a = 5 OR a = 6 AND a = 7", True),
        ("(a = 5 OR a = 6) AND a = 7", False),
        ("NOT a = 5", False),
        ("a = 5 IS NULL", False),
        # What stands behind a whole expression
        ("a = 5 LIKE", True),
        ("b LIKE 'x'", False),
        ("a = 007", False),
        ("a = 5 -- no line end", True),
        # Comments
        ("a /* = 6 ** */ = 5", True),
        ("a = -- six\n5", True),
    ],
)
def test_what_an_expression_decides(expression: str, outcome: bool | None) -> None:
    taken = compile_filter(expression)
    assert taken.evaluate(PROPERTIES.get) is outcome
    assert taken.matches(PROPERTIES.get) is (outcome is True)


@pytest.mark.parametrize(
    "expression",
    ["b > 4", "b = 4", "b > a", "big > 5", "half > 0", "TRUE = yes", "b < 1.0", "b = 4 OR a = 5"],
)
def test_text_that_is_no_number_does_not_match(expression: str) -> None:
    taken = compile_filter(expression)
    with pytest.raises(EvaluationFault):
        taken.evaluate(PROPERTIES.get)
    assert not taken.matches(PROPERTIES.get)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "expected a value, found the end"),
        ("a =", "expected a value"),
        ("a = 'x", "means nothing"),
        ("a ! 5", "means nothing"),
        ("(a = 5", r"expected \), found the end"),
        ("a IS 5", "expected NULL, found 5"),
        ("a IN ()", r"expected text, found \)"),
        ("a IN (1)", "expected text"),
        ("5 IN ('5')", "a property on its left"),
        ("a NOT LIKE 'x'", "expected BETWEEN"),
        ("a > 'x'", "numbers and properties only"),
        ("a < TRUE", "numbers and properties only"),
        ("NOT a > 5", "numbers and properties only"),
        ("a > b > c", "numbers and properties only"),
        ("a BETWEEN 5 AND 1", "from 5 down to 1"),
        ("a BETWEEN NULL AND 1", "numbers and properties only"),
        ("a = NULL", "IS NULL"),
        ("TRUE = 1", "another kind"),
        ("a = 9223372036854775808", "is above 9223372036854775807"),
        ("a = " + "9" * 5000, "is above"),
        ("a > 0.0", "no positive double"),
        ("a > 1e400", "no positive double"),
        ("5", "no condition"),
        ("'x'", "no condition"),
        ("-a", "no condition"),
        ("a = 5 AND 6", "no condition"),
    ],
)
def test_what_cannot_be_compiled_is_said(expression: str, reason: str) -> None:
    with pytest.raises(SqlFault, match=reason):
        compile_filter(expression)


def test_what_is_not_read_is_known() -> None:
    assert compile_filter("a = 5").unread == ""
    assert compile_filter("a LIKE 'x%'").unread == "LIKE 'x%'"


def test_length_and_nesting_are_bounded_and_long_chains_are_not_deep() -> None:
    with pytest.raises(SqlFault, match="characters, at most"):
        compile_filter("a = 5" + " " * EXPRESSION_CHARS_MAX)
    for deep in (
        "(" * 4000 + "a = 5" + ")" * 4000,
        "NOT " * 2000 + "a",
        "+ " * 4000 + "5 = a",
        "- " * 2000 + "5 = a",
        "a" + " = a" * 2000,
        "a" + " IS NULL" * 1000,
    ):
        with pytest.raises(SqlFault, match=f"nested more than {NESTING_MAX}"):
            compile_filter(deep)
    chain = compile_filter(" OR ".join(f"a = {number}" for number in range(6, 700)) + " OR a = 5")
    assert chain.matches(PROPERTIES.get)
    within = "(" * (NESTING_MAX - 2) + "a = 5" + ")" * (NESTING_MAX - 2)
    assert compile_filter(within).matches(PROPERTIES.get)


@pytest.mark.parametrize(
    "text", ["", "+", "5 ", " 5", "5.0", "1_0", "2147483648", "-2147483649", "0x1", "9" * 9999]
)
def test_what_is_no_int(text: str) -> None:
    with pytest.raises(EvaluationFault):
        integer_of(text, (1 << 31) - 1)


def test_ints_and_doubles_are_read_as_java_reads_them() -> None:
    assert [integer_of(text, (1 << 31) - 1) for text in ("+7", "-7", "007", "٥", "0" * 99 + "1")] == [
        7,
        -7,
        7,
        5,
        1,
    ]
    assert [double_of(text) for text in (" 1.5d\n", "5.", ".5", "1e3f", "0x1p3", "-Infinity", "1e999")] == [
        1.5, 5.0, 0.5, 1000.0, 8.0, float("-inf"), float("inf"),
    ]  # fmt: skip
    for text in ("", "nan", "inf", "1_0", "1e", "0x10", "٥.0"):
        with pytest.raises(EvaluationFault):
            double_of(text)


def test_a_long_text_that_is_nearly_a_number_is_read_once() -> None:
    # Tried in every split of its digits, it would take hours, and the loop with it.
    with pytest.raises(EvaluationFault):
        double_of("1" * 1_000_000 + "x")
    assert double_of("1." + "0" * 30_000) == 1.0


def test_nan_and_zeros_are_ordered_as_java_orders_them() -> None:
    def decides(expression: str, a: str, b: str) -> bool:
        return compile_filter(expression).matches({"a": a, "b": b}.get)

    assert decides("a > b", "NaN", "Infinity")
    assert not decides("a < b", "NaN", "1")
    assert decides("a > b", "0.0", "-0.0")
    assert decides("a >= b", "NaN", "NaN")
