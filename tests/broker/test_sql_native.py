"""The native build of SQL92 expressions, held against the reference."""

from __future__ import annotations

import random
import threading

import pytest

from haservice.broker.pull import native
from haservice.broker.pull.native import compile_expression
from haservice.broker.pull.sql_filter import EXPRESSION_CHARS_MAX, NESTING_MAX, SqlFault, compile_filter
from haservice.broker.pull.sql_values import double_of
from tests.support.sql_texts import TEXTS, Maker, agree

pytestmark = pytest.mark.skipif(native.sql is None, reason="the native build of expressions is not in force")


@pytest.mark.parametrize("seed", range(8))
def test_both_builds_take_the_same_expressions_and_the_same_messages(seed: int) -> None:
    maker = Maker(random.Random(seed))
    ends = set()
    for _ in range(150):
        expression = maker.expression()
        ends |= {agree(expression, maker.properties()) for _ in range(3)}
    assert {(True, False), (False, False), (None, False)} < ends


@pytest.mark.parametrize("one", TEXTS)
def test_texts_are_the_same_numbers_in_both_builds(one: str) -> None:
    literals = (
        "5",
        "-5",
        "2147483647",
        "2147483648",
        "9223372036854775807",
        "0.5",
        "5.0",
        "1e23",
        "TRUE",
        "b",
    )
    for literal in literals:
        for sign in ("=", "<>"):
            agree(f"a {sign} {literal}", b"a\1" + one.encode() + b"\2b\0015\2")
            agree(f"{literal} {sign} a", b"a\1" + one.encode() + b"\2b\1\xd9\xa5")
        if literal != "TRUE":
            agree(f"a >= {literal}", b"a\1" + one.encode() + b"\2b\1NaN\2")
            agree(f"a NOT BETWEEN {literal} AND 7", b"a\1" + one.encode() + b"\2b\1\xff5")
    quoted = one.replace("'", "''")
    agree(f"a = '{quoted}' AND '{quoted}' = 5 OR a IN ('x', '{quoted}')", b"a\1" + one.encode() + b"\2")


@pytest.mark.parametrize("opening", ["(", "NOT ", "-", "+", "-(", "NOT ("])
@pytest.mark.parametrize("count", [NESTING_MAX // 2, NESTING_MAX - 1, NESTING_MAX, NESTING_MAX + 1])
def test_both_builds_nest_equally_deep(opening: str, count: int) -> None:
    for inner in ("a", "a = 1", "a BETWEEN 1 AND 2", "a > b", "a IS NOT NULL", "a OR b"):
        agree(opening * count + inner + ")" * count * opening.count("("), b"a\0012\2b\0011\2")
    assert native.sql.NESTING_MAX == NESTING_MAX


def worst_texts() -> dict[str, str]:
    """The longest expressions there may be, with as much in them as goes in."""
    parts = {
        "chain": ("a = 5", " OR "),
        "parentheses": ("(" * 50 + "a" + ")" * 50, " OR"),
        "equal": ("a" + "=1" * 48, " OR "),
        "unequal": ("a" + "<>1" * 24, " OR "),
        "not": ("NOT a", " OR "),
        "signs": ("+" * 49 + "a=1", " OR "),
        "doubles": ("a=1e99", " OR "),
        "dashes": ("a= - -5", " OR "),
        "texts": ("a IN (''" + ",''" * 100 + ")", " OR "),
        "unreadable": ("a = 5", " OR "),
    }
    texts = {name: _filled(*part) for name, part in parts.items()}
    texts["unreadable"] = texts["unreadable"][:-1]
    return texts


def _filled(part: str, joint: str) -> str:
    return joint.join([part] * ((EXPRESSION_CHARS_MAX + len(joint)) // (len(part) + len(joint))))


@pytest.mark.parametrize("name", worst_texts())
def test_a_program_takes_sixteen_bytes_a_character_at_most(name: str) -> None:
    expression = worst_texts()[name]
    agree(expression, b"a\0015\2")
    try:
        program = compile_expression(expression).selects
    except SqlFault:
        return
    assert program.size_bytes <= 16 * len(expression)  # type: ignore[attr-defined]


def test_what_utf8_has_no_bytes_for_is_read_by_the_reference() -> None:
    assert compile_expression("a = '\ud800'").selects(b"a\0015\2") is False
    with pytest.raises(SqlFault, match="character 5"):
        compile_expression("a = \ud800")


def test_numbers_that_only_the_reference_reads_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_expression("a > 1.5").selects
    assert program(b"a\0010x1p3\2")
    assert not program(b"a\0010x1p\2")
    assert compile_expression("a = 5").selects("a\1٥\2".encode())
    many = [compile_expression(f"a > {number}.5").selects for number in range(50)]
    assert native.matching(many, b"a\0010x1p3\2") == list(range(8))
    assert double_of("0x1p3") == 8


def test_programs_run_in_many_threads_at_once() -> None:
    programs = [compile_expression(f"a = {number} OR b = '{number}'").selects for number in range(200)]
    messages = [b"a\1%d\2b\1%d\2" % (number, number + 1) for number in range(199)]
    wrong = []

    def run() -> None:
        for number, properties in enumerate(messages):
            if native.matching(programs, properties) != [number, number + 1]:
                wrong.append(number)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_the_native_build_the_reference_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "sql", None)
    made = compile_expression("a > 5 LIKE")
    assert (made.text, made.unread) == ("a > 5 LIKE", compile_filter("a > 5 LIKE").unread)
    assert native.matching([made.selects, compile_expression("a > 7").selects], b"a\0016\2") == [0]
