from __future__ import annotations

from haservice.news import News


def test_a_cause_is_told_once_in_a_while_and_again_after_its_end() -> None:
    now_s = 0.0
    news = News(60, clock_s=lambda: now_s)
    assert news.is_news("a")
    assert news.is_news("b")
    now_s = 59.0
    assert not news.is_news("a")
    news.ended("a")
    assert news.is_news("a")
    now_s = 60.0
    assert news.is_news("b")
    assert not news.is_news("a")


def test_causes_that_are_made_up_are_forgotten() -> None:
    news = News(60, causes_max=2, clock_s=lambda: 0.0)
    assert [news.is_news(cause) for cause in ("a", "b", "a", "c", "c", "a")] == [
        True, True, False, True, False, True,
    ]  # fmt: skip
