"""Samples in, Prometheus's text out: read again by prometheus_client's own parser."""

from __future__ import annotations

from haservice.observability.exposition import LEFT_OUT, VALUE_CHARS_MAX, Exposition
from tests.support.scraped import samples_of


def test_a_sample_has_the_labels_of_all_and_its_own() -> None:
    out = Exposition({"cluster": "C"})
    out.gauge("lag_bytes", "What it lacks.", 7, replica='a"b\\\n')
    assert samples_of(out.text())["lag_bytes", (("cluster", "C"), ("replica", 'a"b\\\n'))] == 7


def test_a_family_that_comes_twice_is_one_family_with_its_type() -> None:
    out = Exposition()
    out.counter("sends_total", "Sends.", 3, reason="busy")
    out.gauge("other", "Between.", 1)
    out.counter("sends_total", "Sends.", 4, reason="slave")
    text = out.text().decode()
    assert text.count("# TYPE sends_total counter") == 1
    assert 'sends_total{reason="busy"} 3.0\nsends_total{reason="slave"} 4.0\n' in text


def test_labels_of_one_part_end_with_it() -> None:
    out = Exposition({"cluster": "C"})
    with out.labelled({"node_id": "broker-a"}):
        out.gauge("inside", "Inside.", 1)
    out.gauge("outside", "Outside.", 1)
    assert set(samples_of(out.text())) == {
        ("inside", (("node_id", "broker-a"),)),
        ("outside", (("cluster", "C"),)),
    }


def test_a_histogram_adds_up_its_buckets() -> None:
    out = Exposition()
    out.histogram("took_seconds", "Time.", [(0.001, 2), (0.01, 3), (float("inf"), 1)], 0.5)
    found = samples_of(out.text())
    assert found["took_seconds_bucket", (("le", "0.001"),)] == 2
    assert found["took_seconds_bucket", (("le", "0.01"),)] == 5
    assert found["took_seconds_bucket", (("le", "+Inf"),)] == 6
    assert found["took_seconds_count", ()] == 6
    assert found["took_seconds_sum", ()] == 0.5


def test_a_family_that_is_full_says_how_many_it_left_out() -> None:
    out = Exposition({"cluster": "C"}, series_max=3)
    for number in range(5):
        out.gauge("topic_tps", "Rate.", number, topic=f"T{number}")
    out.left_out("topic_tps", 10)
    found = samples_of(out.text())
    assert sum(1 for name, _ in found if name == "topic_tps") == 3
    assert found[LEFT_OUT, (("cluster", "C"), ("family", "topic_tps"))] == 12


def test_a_text_of_a_label_is_cut() -> None:
    out = Exposition()
    out.gauge("one", "One.", 1, name="x" * 1000)
    ((_, ((_, value),)),) = samples_of(out.text())
    assert len(value) == VALUE_CHARS_MAX
