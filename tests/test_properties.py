"""Java's .properties rules, case by case."""

import pytest

from haservice.configuration.properties import parse, rewritten
from haservice.errors import ConfigError


def values(text: str) -> dict[str, str]:
    return {key: entry.value for key, entry in parse(text, "t.properties").items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb", {"a": "b"}),
        ("a\fb", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("  a=b", {"a": "b"}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("a:=b", {"a": "=b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=b ", {"a": "b "}),
        ("a=b c", {"a": "b c"}),
        ("a=b#c", {"a": "b#c"}),
        ("a=1\nb=2", {"a": "1", "b": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("", {}),
        ("\n \n\t\n", {}),
    ],
)
def test_separators_and_blanks(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize("text", ["# a=b", "! a=b", "  #a=b", "#a=b\\\n", "#"])
def test_comments(text: str) -> None:
    assert values(text) == {}


def test_a_comment_is_not_continued() -> None:
    assert values("# a comment \\\na=b") == {"a": "b"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b\\\nc", {"a": "bc"}),
        ("a=b\\\n    c", {"a": "bc"}),
        ("a=b\\\r\n    c", {"a": "bc"}),
        ("a=\\\n  b,\\\n  c", {"a": "b,c"}),
        ("a=b\\\n#c", {"a": "b#c"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a\\\nb=c", {"ab": "c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\\\\\nc", {"a": "b\\c"}),
        ("a=b\\", {"a": "b"}),
        ("\\\na=b", {"a": "b"}),
    ],
)
def test_continuation_lines(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a=\u0041\u00e9", {"a": "Aé"}),
        (r"a=\u00E9", {"a": "é"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        (r"a=x\ty\nz\rw\fv", {"a": "x\ty\nz\rw\fv"}),
        (r"a=\q\"", {"a": 'q"'}),
        (r"a=C:\\logs", {"a": "C:\\logs"}),
        (r"a\=b=c", {"a=b": "c"}),
        (r"a\:b:c", {"a:b": "c"}),
        (r"a\ b c", {"a b": "c"}),
        (r"\#a=b", {"#a": "b"}),
        (r"a=\ b", {"a": " b"}),
    ],
)
def test_escapes(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\uxyzw", r"a=\u+123", r"a=\u"])
def test_a_malformed_unicode_escape_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^t\.properties:2: \\u.*four hexadecimal digits"):
        parse("x=1\n" + text, "t.properties")


def test_a_lone_surrogate_becomes_a_replacement_and_not_an_error_later() -> None:
    assert values(r"a=\ud83d!")["a"].encode()


def test_each_key_knows_its_line_also_after_continuations() -> None:
    properties = parse("# head\n\na=1,\\\n  2\nb=3\n", "t.properties")
    assert properties["a"] == ("1,2", 3)
    assert properties["b"] == ("3", 5)
    assert properties.line_of("b") == 5
    assert properties.line_of("c") == 0


def test_the_later_duplicate_wins_and_is_warned_of() -> None:
    properties = parse("a=1\nb=2\na=3\n", "t.properties")
    assert properties["a"] == ("3", 3)
    assert properties.warnings == ("t.properties:3: a: overrides line 1",)


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("", {"a": "1"}, "a=1\n"),
        ("x=1", {"a": "1"}, "x=1\na=1\n"),
        ("x=1\r\n", {"a": "1"}, "x=1\r\na=1\r\n"),
        ("# a=0\n a : 1 \nb=2\n", {"a": "3"}, "# a=0\na=3\nb=2\n"),
        ("a=1\nb=2\na=3", {"a": "4"}, "a=1\nb=2\na=4"),
        ("a=1,\\\n  2\n\nb=3\n", {"a": "", "b": "4"}, "a=\n\nb=4\n"),
        ("a=1\n", {}, "a=1\n"),
        ("a=1\\", {"b": "2"}, "a=1\\\n\nb=2\n"),
        ("a=1\\\n", {"b": "2"}, "a=1\\\n\nb=2\n"),
        ("\na=1\\\r", {"b": "2"}, "\na=1\\\r\rb=2\r"),
    ],
)
def test_values_are_changed_where_they_stand(text: str, changes: dict[str, str], expected: str) -> None:
    assert rewritten(text, changes) == expected
    assert {key: parse(expected, "t.properties")[key].value for key in changes} == changes


@pytest.mark.parametrize(
    "value", [" led by a blank", "a\\b", "tab\there", "two\nlines", "S\u00fcd \U0001f600", "="]
)
def test_a_value_that_was_written_is_read_as_it_was(value: str) -> None:
    assert values(rewritten("a=1\n", {"a": value})) == {"a": value}
