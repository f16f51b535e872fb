"""Statistics by queue, topic and group, over a minute, an hour and a day."""

from __future__ import annotations

import random
import timeit
import tracemalloc

import pytest

from haservice.broker.stats.budget import COUNTER_BYTES, WAITING_BYTES, WAITING_MAX, CounterBudget
from haservice.broker.stats.traffic import FED_MAX, FRESH_MAX, Traffic
from haservice.broker.stats.windows import Counter


class Clock:
    def __init__(self) -> None:
        self.now_s = 100_000.0

    def __call__(self) -> float:
        return self.now_s


def room_for(counters: int) -> int:
    """Bytes for so many counters with short names."""
    return WAITING_MAX * WAITING_BYTES + counters * (COUNTER_BYTES + 16)


def make(topics_max: int = 100, queues_max: int = 100) -> tuple[Traffic, Clock]:
    clock = Clock()
    bounds = {"bytes_max": room_for(topics_max), "queues_bytes_max": room_for(queues_max)}
    return Traffic(monotonic=clock, **bounds), clock


def after(traffic: Traffic, clock: Clock, seconds: float) -> None:
    clock.now_s += seconds
    traffic.turn()


def sums(traffic: Traffic, name: str, key: str) -> list[int]:
    figures = traffic.figures(name, key)
    assert figures is not None
    return [one.sum for one in figures]


def test_what_was_put_is_told_of_the_queue_the_topic_and_the_broker() -> None:
    traffic, _ = make()
    traffic.put("T", 0, 1, 100)
    traffic.put("T", 1, 3, 500)
    traffic.put("U", 0, 1, 50)
    assert sums(traffic, "TOPIC_PUT_NUMS", "T") == [4, 4, 4]
    assert sums(traffic, "TOPIC_PUT_SIZE", "T") == [600, 600, 600]
    assert sums(traffic, "QUEUE_PUT_NUMS", "T@1") == [3, 3, 3]
    assert sums(traffic, "QUEUE_PUT_SIZE", "T@1") == [500, 500, 500]
    assert sums(traffic, "BROKER_PUT_NUMS", "DefaultCluster") == [5, 5, 5]
    minute = traffic.figures("TOPIC_PUT_SIZE", "T")
    assert minute is not None
    assert minute[0].avgpt == 300.0  # of one call
    assert traffic.rate("T") == (0.4, 4)
    assert traffic.rate("V") is None


def test_what_was_got_is_told_of_the_group() -> None:
    traffic, _ = make()
    traffic.got("T", 0, "G", 32, 3200, 0.004)
    traffic.got("T", 1, "G", 8, 800, 0.002)
    assert sums(traffic, "GROUP_GET_NUMS", "T@G") == [40, 40, 40]
    assert sums(traffic, "GROUP_GET_SIZE", "T@G") == [4000, 4000, 4000]
    assert sums(traffic, "QUEUE_GET_NUMS", "T@1@G") == [8, 8, 8]
    assert sums(traffic, "QUEUE_GET_SIZE", "T@1@G") == [800, 800, 800]
    assert sums(traffic, "BROKER_GET_NUMS", "C") == [40, 40, 40]
    latency = traffic.figures("GROUP_GET_LATENCY", "0@T@G")
    assert latency is not None
    assert (latency[0].sum, latency[0].avgpt) == (4, 4.0)
    traffic.sent_back("T", "G")
    assert sums(traffic, "SNDBCK_PUT_NUMS", "T@G") == [1, 1, 1]


def test_each_window_forgets_in_its_time() -> None:
    traffic, clock = make()
    traffic.put("T", 0, 10, 1)
    after(traffic, clock, 30)
    traffic.put("T", 0, 1, 1)
    assert sums(traffic, "TOPIC_PUT_NUMS", "T") == [11, 11, 11]
    after(traffic, clock, 40)
    assert sums(traffic, "TOPIC_PUT_NUMS", "T") == [1, 11, 11]
    after(traffic, clock, 600)
    traffic.put("T", 0, 100, 1)
    assert sums(traffic, "TOPIC_PUT_NUMS", "T") == [100, 111, 111]
    after(traffic, clock, 3600)
    assert sums(traffic, "TOPIC_PUT_NUMS", "T") == [0, 0, 111]
    after(traffic, clock, 24 * 3600)
    assert sums(traffic, "TOPIC_PUT_NUMS", "T") == [0, 0, 0]


def test_a_steady_rate_is_told_as_it_is() -> None:
    traffic, clock = make()
    for _ in range(3 * 3600):
        traffic.put("T", 0, 5, 500)
        after(traffic, clock, 1)
    figures = traffic.figures("TOPIC_PUT_NUMS", "T")
    assert figures is not None
    for one in figures:
        assert abs(one.tps - 5.0) < 0.01
    assert 250 <= figures[0].sum <= 300
    assert 5 * 3000 <= figures[1].sum <= 5 * 3600
    assert figures[2].sum == 5 * 3 * 3600


def test_a_young_counter_divides_by_ten_seconds_at_least() -> None:
    traffic, clock = make()
    traffic.got("T", 0, "G", 50, 1, 0.0)
    traffic.turn()
    assert traffic.consumed_per_second("T", "G") == 5.0
    after(traffic, clock, 20)
    assert traffic.consumed_per_second("T", "G") == 2.5
    assert traffic.consumed_per_second("T", "other") == 0.0


def test_what_never_happened_is_not_told() -> None:
    traffic, _ = make()
    traffic.put("T", 0, 1, 1)
    for name, key in (
        ("TOPIC_PUT_NUMS", "U"),
        ("QUEUE_PUT_NUMS", "T"),
        ("QUEUE_PUT_NUMS", "T@x"),
        ("GROUP_GET_NUMS", "T@G"),
        ("SNDBCK_PUT_NUMS", "T@G"),
        ("NO_SUCH_NAME", "T"),
        ("TOPIC_PUT", "T"),
        ("", ""),
    ):
        assert traffic.figures(name, key) is None, name


def test_the_memory_of_counters_is_bounded() -> None:
    """Every slot of every window has a message, so that all rows are there."""
    clock = Clock()
    bounds = [room_for(900), room_for(800)]
    names = [f"a-topic-with-a-long-name-{number:05d}" for number in range(1000)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        traffic = Traffic(monotonic=clock, bytes_max=bounds[0], queues_bytes_max=bounds[1])
        for hour in range(24):
            for _ in range(12 if hour == 23 else 1):
                for name in names:
                    traffic.put(name, 0, 1000, 100_000)
                after(traffic, clock, 300 if hour == 23 else 3600)
        for _ in range(7):
            for name in names:
                traffic.put(name, 0, 1000, 100_000)
            after(traffic, clock, 10)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 1600 <= len(traffic) <= 1700
    waiting = traffic._budget.waiting + traffic._queue_budget.waiting
    assert taken <= sum(bounds) - (2 * WAITING_MAX - waiting) * WAITING_BYTES


def test_it_is_told_what_has_no_counter() -> None:
    traffic, clock = make(topics_max=10, queues_max=5)
    for number in range(10):
        traffic.put(f"T{number}", 0, 100, 1)
    traffic.turn()
    assert len(traffic) == 15
    assert "queues" in traffic.left_out
    assert "topics" not in traffic.left_out
    after(traffic, clock, 1)
    for number in range(10, 20):
        traffic.put(f"T{number}", 0, 3, 1)
    traffic.turn()
    assert len(traffic) == 15
    assert "30 messages of 10 or more topics and groups were not counted" in traffic.left_out
    assert sums(traffic, "BROKER_PUT_NUMS", "DefaultCluster") == [1030] * 3


def test_the_busiest_have_counters() -> None:
    """Fifty topics send more than the others; they come last, when all counters are taken."""
    traffic, clock = make(topics_max=60)
    for number in range(60):
        traffic.put(f"idle-{number}", 0, 1, 1)
    for _ in range(120):
        after(traffic, clock, 1)
        for number in range(50):
            traffic.put(f"busy-{number}", 0, 20, 1)
        for number in range(200):
            traffic.put(f"some-{number}", 0, 1, 1)
    after(traffic, clock, 1)
    counted = {number for number in range(50) if traffic.rate(f"busy-{number}") is not None}
    assert len(counted) >= 48, counted
    figures = traffic.figures("TOPIC_PUT_NUMS", f"busy-{min(counted)}")
    assert figures is not None
    assert figures[0].tps == pytest.approx(20, rel=0.2)


def test_an_idle_counter_gives_way_and_a_busy_one_stays() -> None:
    traffic, clock = make(topics_max=10)
    for number in range(9):
        traffic.put(f"T{number}", 0, 1, 1)
    traffic.put("busy", 0, 1000, 1)
    after(traffic, clock, 3700)
    traffic.put("busy", 0, 1000, 1)
    traffic.put("U", 0, 1, 1)
    assert traffic.figures("TOPIC_PUT_NUMS", "U") is None
    after(traffic, clock, 1)
    traffic.put("U", 0, 5, 1)
    assert sums(traffic, "TOPIC_PUT_NUMS", "U") == [5, 5, 5]
    assert sums(traffic, "TOPIC_PUT_NUMS", "busy") == [1000, 1000, 2000]
    assert "1 gave way to busier ones" in traffic.left_out


def test_who_is_less_busy_than_all_others_goes_without() -> None:
    traffic, clock = make(topics_max=10)
    for _ in range(5):
        for number in range(10):
            traffic.put(f"T{number}", 0, 100, 1)
        traffic.put("U", 0, 1, 1)
        after(traffic, clock, 1)
    assert traffic.rate("U") is None
    assert all(traffic.rate(f"T{number}") is not None for number in range(10))


def test_a_second_looks_at_a_bounded_number_of_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait, and however many there are."""
    gone: list[tuple[str, int]] = []
    clock = Clock()
    given: list[tuple[str, int]] = []
    budget = CounterBudget[tuple[str, int]](
        room_for(1000),
        on_given=lambda key, _: given.append(key),
        on_gone=gone.append,
        monotonic=clock,
        chance=random.Random(1),
    )
    number = 0
    while budget.counter(("T", number), 1) is not None:
        number += 1
    for other in range(2 * WAITING_MAX):
        budget.counter(("U", other), 5)
    assert budget.waiting == WAITING_MAX
    looked = 0
    within = Counter.within

    def counted(*arguments: object) -> object:
        nonlocal looked
        looked += 1
        return within(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Counter, "within", counted)
    given.clear()
    budget.review()
    assert len(given) == 50
    assert looked <= 50 * 17
    assert budget.waiting == WAITING_MAX - 50
    assert len(gone) == 50 == budget.replaced
    clock.now_s += 3601
    budget.review()
    assert budget.waiting == 0  # what waited for an hour waits anew


def test_what_is_counted_reaches_the_counters_before_it_is_much() -> None:
    traffic, _ = make(topics_max=2 * FRESH_MAX)
    for number in range(FRESH_MAX + 1):
        traffic.put(f"T{number}", 0, 1, 1)
    assert traffic.rate("T0") == (0.1, 1)
    assert traffic.rate(f"T{FRESH_MAX}") is None
    traffic.turn()
    assert traffic.rate(f"T{FRESH_MAX}") == (0.1, 1)


def test_a_second_takes_a_bounded_number_of_fed_queues() -> None:
    traffic, _ = make(topics_max=10, queues_max=FED_MAX + 100)
    fed = [{("T", queue_id): (1, 1) for queue_id in range(FED_MAX + 7)}]
    traffic.feed = lambda: fed.pop() if fed else {}
    traffic.turn()
    assert traffic.rate("T") == (FED_MAX / 10, FED_MAX)
    traffic.turn()
    assert traffic.rate("T") == ((FED_MAX + 7) / 10, FED_MAX + 7)
    fed.append({("T", 0): (3, 1)})
    traffic.turn()
    fed.append({("T", 0): (3, 1)})
    assert sums(traffic, "TOPIC_PUT_NUMS", "T") == [FED_MAX + 13] * 3


def test_a_delayed_message_is_counted_as_rocketmq_counts_it() -> None:
    """Stored for SCHEDULE_TOPIC_XXXX, then got by SCHEDULE_CONSUMER and put for its topic."""
    traffic, _ = make()
    traffic.put("SCHEDULE_TOPIC_XXXX", 2, 1, 300)
    traffic.scheduled(2, 310)  # sent back by a consumer
    schedule = "SCHEDULE_TOPIC_XXXX"
    assert sums(traffic, "TOPIC_PUT_NUMS", schedule) == [2, 2, 2]
    assert sums(traffic, "QUEUE_PUT_SIZE", f"{schedule}@2") == [610, 610, 610]
    assert sums(traffic, "BROKER_PUT_NUMS", "C") == [1, 1, 1]
    traffic.delivered(2, {"T": (1, 290), "%RETRY%G": (3, 900)})
    assert sums(traffic, "GROUP_GET_NUMS", f"{schedule}@SCHEDULE_CONSUMER") == [4, 4, 4]
    assert sums(traffic, "QUEUE_GET_SIZE", f"{schedule}@2@SCHEDULE_CONSUMER") == [1190, 1190, 1190]
    assert sums(traffic, "TOPIC_PUT_NUMS", "%RETRY%G") == [3, 3, 3]
    assert traffic.figures("QUEUE_PUT_NUMS", "T@0") is None
    assert sums(traffic, "BROKER_PUT_NUMS", "C") == [5, 5, 5]
    assert traffic.figures("BROKER_GET_NUMS", "C") is None


def test_a_deleted_topic_and_a_deleted_group_are_forgotten() -> None:
    traffic, _ = make()
    traffic.put("T", 0, 1, 1)
    traffic.got("T", 0, "G", 1, 1, 0.0)
    traffic.got("U", 0, "G", 1, 1, 0.0)
    traffic.got("U", 0, "H", 1, 1, 0.0)
    traffic.forget_topic("T")
    assert traffic.figures("TOPIC_PUT_NUMS", "T") is None
    assert traffic.figures("GROUP_GET_NUMS", "T@G") is None
    traffic.forget_group("G")
    assert traffic.figures("GROUP_GET_NUMS", "U@G") is None
    assert sums(traffic, "GROUP_GET_NUMS", "U@H") == [1, 1, 1]


def test_counting_costs_next_to_nothing() -> None:
    """0.12 µs for a message, where measured; the bound is for a machine that is busy with other things."""
    traffic, _ = make()
    count = 20_000
    best_s = min(timeit.repeat(lambda: traffic.put("Topic", 3, 1, 1000), number=count, repeat=5))
    assert best_s / count < 2e-6


def test_what_others_have_counted_is_in_every_answer_and_counted_once() -> None:
    traffic = Traffic()
    fed = [{("T", 1): (3, 500)}, {("T", 1): (1, 100), ("T", 2): (2, 20)}]
    traffic.feed = lambda: fed.pop(0) if fed else {}
    assert sums(traffic, "QUEUE_PUT_NUMS", "T@1") == [3, 3, 3]
    traffic.turn()
    assert sums(traffic, "QUEUE_PUT_NUMS", "T@1") == [4, 4, 4]
    assert sums(traffic, "QUEUE_PUT_SIZE", "T@1") == [600, 600, 600]
    assert sums(traffic, "TOPIC_PUT_NUMS", "T") == [6, 6, 6]
    fed.append({("T", 1): (1, 1)})
    traffic.forget_topic("T")
    assert traffic.figures("TOPIC_PUT_NUMS", "T") is None
