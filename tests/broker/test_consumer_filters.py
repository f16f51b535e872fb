"""What groups subscribed by expression: kept by version, dying and coming back, and their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from haservice.broker.pull import consumer_filters
from haservice.broker.pull.bloom import BITS, bit_positions, murmur3_64
from haservice.broker.pull.consumer_filters import DEAD_KEPT_MS, ConsumerFilters
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import SubscriptionData

# As a RocketMQ 4.9.8 broker wrote it, when the group's consumer had gone.
STOCK_FILE = """{
	"filterDataByTopic":{
		"T":{
			"groupFilterData":{
				"G1":{
					"bloomFilterData":{
						"bitNum":112,
						"bitPos":[48,65,29]
					},
					"bornTime":1795263168288,
					"clientVersion":7,
					"consumerGroup":"G1",
					"dead":true,
					"deadTime":1795263168318,
					"expression":"a > 5 AND b = 'ü'",
					"expressionType":"SQL92",
					"topic":"T"
				}
			},
			"topic":"T"
		}
	}
}"""
STOCK_WRITTEN_MS = 1795263168400


class Table:
    """Filters with a clock that a test sets."""

    def __init__(self, root: Path) -> None:
        self.now_ms = STOCK_WRITTEN_MS
        self.path = root / "consumerFilter.json"
        self.open()

    def open(self) -> None:
        self.filters = ConsumerFilters(PersistedFile(self.path), lambda: self.now_ms)
        self.filters.load()

    def hear(self, version: int = 1, group: str = "G", **expressions: str) -> None:
        self.filters.register(
            group, [SubscriptionData(topic, text, "SQL92", version) for topic, text in expressions.items()]
        )

    def expression(self, topic: str = "T", group: str = "G") -> str | None:
        found = self.filters.find(topic, group)
        return None if found is None else found.expression

    def stored(self) -> Any:
        self.filters.persist()
        return orjson.loads(self.path.read_bytes())["filterDataByTopic"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_a_newer_version_replaces_and_an_older_one_does_not(table: Table) -> None:
    table.hear(2, T="a = 2")
    table.hear(1, T="a = 1")
    assert table.expression() == "a = 2"
    table.hear(3, T="a = 3")
    assert table.expression() == "a = 3"
    found = table.filters.find("T", "G")
    assert found is not None
    assert found.compiled is not None
    assert found.compiled.selects(b"a\0013\2")
    table.hear(4, T="a = 3")
    known = table.filters.find("T", "G")
    assert known is not None
    assert (known.version, known.compiled) == (4, found.compiled)


def test_one_that_does_not_compile_leaves_none(table: Table) -> None:
    table.hear(1, T="a >")
    assert table.expression() is None
    table.hear(2, T="a > 1")
    table.hear(3, T="a >")
    assert table.expression() is None


def test_tags_are_not_kept(table: Table) -> None:
    table.filters.register(
        "G", [SubscriptionData("T", "a || b", "TAG", 1), SubscriptionData("U", "*", None, 1)]
    )
    assert table.expression() is None
    assert not table.filters.persist()
    assert not table.path.exists()


def test_a_filter_dies_with_its_subscription_comes_back_and_is_forgotten_after_a_day(table: Table) -> None:
    table.hear(1, T="a = 1", U="a = 1")
    table.hear(1, T="a = 1")
    assert {topic: one["groupFilterData"]["G"]["dead"] for topic, one in table.stored().items()} == {
        "T": False,
        "U": True,
    }
    table.hear(1, T="a = 1", U="a = 1")
    assert not table.stored()["U"]["groupFilterData"]["G"]["dead"]
    table.filters.unregister("G")
    table.now_ms += DEAD_KEPT_MS - 1
    table.filters.expire()
    assert table.expression() == "a = 1"
    table.now_ms += 1
    assert table.stored() == {}
    table.filters.expire()
    assert table.expression() is None


def test_a_file_of_rocketmq_is_read_and_written_as_it_was(table: Table) -> None:
    table.path.write_text(STOCK_FILE)
    table.open()
    found = table.filters.find("T", "G1")
    assert found is not None
    assert found.is_dead
    assert found.compiled is not None
    assert found.compiled.selects("a\0016\2b\1ü\2".encode())
    table.filters.persist()
    assert orjson.loads(table.path.read_bytes()) == orjson.loads(STOCK_FILE)


def test_who_lived_when_the_file_was_written_is_dead_until_heard_of(table: Table) -> None:
    table.hear(5, T="a = 1")
    table.filters.persist()
    table.now_ms += 60_000
    table.open()
    found = table.filters.find("T", "G")
    assert found is not None
    assert (found.is_dead, found.dead_ms) == (True, table.now_ms - 30_000)
    table.hear(5, T="a = 1")
    again = table.filters.find("T", "G")
    assert again is not None
    assert not again.is_dead


def test_bloom_positions_are_those_of_rocketmq() -> None:
    assert (BITS, bit_positions("G1#T"), bit_positions("G2#T")) == (112, (48, 65, 29), (63, 87, 32))
    assert bit_positions("G1#TBW102") == (59, 51, 93)
    # The known sums of MurmurHash3 x64 128.
    assert murmur3_64(b"") == 0
    assert murmur3_64(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C


def test_of_a_file_with_too_many_filters_the_latest_are_taken(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        table.now_ms += 1000
        table.hear(1, group=f"G{number}", T=f"a = {number}")
    table.now_ms += 1000
    table.filters.unregister("G5")
    table.filters.persist()
    monkeypatch.setattr(consumer_filters, "FILTERS_MAX", 3)
    table.open()
    assert [table.expression(group=f"G{number}") is not None for number in range(6)] == [
        False, False, True, True, True, False,
    ]  # fmt: skip
    monkeypatch.setattr(consumer_filters, "FILTERS_CHARS_MAX", 12)
    table.open()
    assert [number for number in range(6) if table.expression(group=f"G{number}")] == [3, 4]


def test_a_file_that_is_too_large_is_kept_aside_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "consumerFilter.json"
    path.write_text(STOCK_FILE + " " * 1000)
    stored = PersistedFile(path, bytes_max=900)
    filters = ConsumerFilters(stored, lambda: STOCK_WRITTEN_MS)
    filters.load()
    assert filters.find("T", "G1") is None
    assert stored.unfit == f"it has {len(STOCK_FILE.encode()) + 1000} bytes, at most 900 are read"
    assert not path.exists()
    assert path.with_name("consumerFilter.json.unfit").read_text().startswith(STOCK_FILE)
    filters.register("G1", [SubscriptionData("T", "a = 1", "SQL92", 8)])
    assert filters.persist()
    again = ConsumerFilters(PersistedFile(path, bytes_max=900), lambda: STOCK_WRITTEN_MS)
    again.load()
    assert again.find("T", "G1") is not None
