"""Expressions of tags and of SQL92, and what heartbeats say of them."""

from __future__ import annotations

import pytest

from haservice.client.consumer.subscription import Subscription, dead_letter_topic, retry_topic
from haservice.client.identity import GROUP_CHARS_MAX


def test_tags_are_split_and_hashed_as_java_does() -> None:
    subscription = Subscription("T", " TagA || TagB||", version=7)
    assert subscription.tags == {"TagA", "TagB"}
    data = subscription.data()
    assert (data.sub_string, data.expression_type, data.sub_version) == (" TagA || TagB||", "TAG", 7)
    assert dict(zip(data.tags_set, data.code_set, strict=True)) == {"TagA": 2598919, "TagB": 2598920}


@pytest.mark.parametrize("expression", ["", "*", " * "])
def test_all(expression: str) -> None:
    subscription = Subscription("T", expression)
    assert subscription.tags == frozenset()
    assert subscription.data().sub_string == "*"


def test_sql() -> None:
    data = Subscription("T", "a > 1 || TRUE", sql=True).data()
    assert (data.expression_type, data.sub_string, data.tags_set) == ("SQL92", "a > 1 || TRUE", [])


@pytest.mark.parametrize(
    ("expression", "sql", "text"),
    [
        ("||", False, "names no tag"),
        (" ", True, "is missing"),
        ("a" * 8193, False, "at most 8192"),
        ("A || B\x02", False, r"no message can have the tag 'B\\x02'"),
        ("\ud800", False, "no message can have the tag"),
    ],
)
def test_what_no_broker_would_take_is_refused(expression: str, sql: bool, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Subscription("T", expression, sql)


@pytest.mark.parametrize(
    ("expression", "doubtful"),
    [
        ("TagA || TagB", []),
        ("\nTagA\t||\nTagB\n", []),
        ("*", []),
        ("TagA TagB || TagC", ["TagA TagB"]),
        ("TagA\nTagB", ["TagA\nTagB"]),
        ("TagA | TagB", ["TagA | TagB"]),
        ("TagA,TagB", ["TagA,TagB"]),
        ("* || TagA", ["*"]),
        ("price > 10", ["price > 10"]),
    ],
)
def test_tags_that_look_like_another_expression_are_told_apart(expression: str, doubtful: list[str]) -> None:
    assert Subscription("T", expression).doubtful_tags == doubtful


def test_an_sql92_expression_has_no_tags_to_doubt() -> None:
    assert Subscription("T", "price > 10", sql=True).doubtful_tags == []


def test_topics_of_a_group() -> None:
    assert (retry_topic("g"), dead_letter_topic("g")) == ("%RETRY%g", "%DLQ%g")


def test_the_retry_topic_of_the_longest_group_name_can_be_subscribed() -> None:
    topic = retry_topic("g" * GROUP_CHARS_MAX)
    assert Subscription(topic).topic == topic
