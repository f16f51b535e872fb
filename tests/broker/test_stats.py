from __future__ import annotations

from haservice.broker.stats.counters import PUT_LABELS, Stats


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def advance(self, stats: Stats, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            stats.sample()


def make() -> tuple[Stats, Clock]:
    clock = Clock()
    stats = Stats(clock_ms=lambda: 1_700_000_000_000 + int(clock.now_s * 1000), monotonic=lambda: clock.now_s)
    return stats, clock


def test_rates_are_always_three_numbers() -> None:
    stats, _ = make()
    for key, value in stats.table().items():
        if key.endswith("Tps"):
            assert value == "0.000 0.000 0.000"


def test_rates_look_back_ten_seconds_a_minute_and_ten_minutes() -> None:
    stats, clock = make()
    clock.advance(stats, 1000)
    stats.put(600, 600, 0.0)
    clock.advance(stats, 30)
    assert stats.table()["putTps"] == "0.000 10.000 1.000"


def test_a_young_broker_divides_by_its_age() -> None:
    stats, clock = make()
    clock.advance(stats, 2)
    stats.put(10, 1000, 0.0)
    assert stats.table()["putTps"] == "5.000 5.000 5.000"


def test_puts_are_counted_by_how_long_they_took() -> None:
    stats, _ = make()
    stats.put(3, 300, 0.0002)
    stats.put(1, 100, 0.3)
    table = stats.table()
    assert table["putMessageDistributeTime"].startswith("[<=0ms]:3 [0~10ms]:0 ")
    assert "[200~500ms]:1 " in table["putMessageDistributeTime"]
    assert table["putMessageDistributeTime"].count(":") == len(PUT_LABELS)
    assert table["putMessageEntireTimeMax"] == "300"
    assert table["putMessageAverageSize"] == "100.0"
    assert table["putMessageTimesTotal"] == "4"
    assert float(table["putLatency999"]) >= 300


def test_gets_are_found_or_missed() -> None:
    stats, clock = make()
    stats.get(32, 3200)
    stats.get(0, 0)
    clock.advance(stats, 1)
    table = stats.table()
    assert table["getFoundTps"].startswith("1.000 ")
    assert table["getMissTps"].startswith("1.000 ")
    assert table["getTotalTps"].startswith("2.000 ")
    assert table["getTransferedTps"].startswith("32.000 ")
    assert table["msgGetTotalTodayNow"] == "32"


def test_midnight_moves_todays_counters_to_yesterday() -> None:
    stats, clock = make()
    stats.put(5, 5, 0.0)
    clock.now_s += 86_400
    stats.sample()
    stats.put(2, 2, 0.0)
    table = stats.table()
    assert (table["msgPutTotalTodayMorning"], table["msgPutTotalTodayNow"]) == ("5", "7")


def test_runtime_is_told_in_rocketmqs_words() -> None:
    stats, clock = make()
    clock.now_s = 2 * 86_400 + 3 * 3600 + 4 * 60 + 5
    assert stats.table()["runtime"] == "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"


def test_what_is_delivered_late_is_a_put_and_counts_for_its_topic_only_if_it_should() -> None:
    stats, clock = make()
    stats.delivered(0, {"T": (2, 300), "U": (1, 100)}, 0.0)
    assert stats.table()["putMessageTimesTotal"] == "3"
    assert stats.table()["putMessageSizeTotal"] == "400"
    clock.advance(stats, 1)
    assert stats.traffic.rate("T") == (0.2, 2)
    stats.counts_delivered = False
    stats.delivered(0, {"T": (5, 500)}, 0.0)
    clock.advance(stats, 1)
    assert stats.table()["putMessageTimesTotal"] == "8"
    assert stats.traffic.rate("T") == (0.2, 2)
