"""Exposition: samples of a node, gathered at scrape time, as Prometheus's text.

    exposition = Exposition({"cluster": …})        labels that every sample has
    exposition.gauge("name", "what it is", value, topic="T")
    exposition.text()

Its cardinality is bounded: of a family, `series_max` samples are kept.  How many were left out is a sample itself,
haservice_metrics_left_out.  Pure, but for the facts about this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

# Of one family.  Prometheus takes thousands easily, and each costs 3 µs of a scrape.
SERIES_MAX = 1_000
# A label's value: names of RocketMQ have 255 bytes at most.
VALUE_CHARS_MAX = 256

LEFT_OUT = "haservice_metrics_left_out"


class Exposition(Collector):
    """Takes samples in any order; families come out in the order of their first sample."""

    def __init__(self, labels: Mapping[str, str] | None = None, *, series_max: int = SERIES_MAX) -> None:
        self._labels = dict(labels or {})
        self._series_max = series_max
        self._families: dict[str, Metric] = {}
        self._left_out: dict[str, int] = {}

    @contextmanager
    def labelled(self, labels: Mapping[str, str]) -> Iterator[None]:
        """Other labels for every sample, inside."""
        before, self._labels = self._labels, dict(labels)
        try:
            yield
        finally:
            self._labels = before

    def gauge(self, name: str, what: str, value: float, /, **labels: str) -> None:
        self._add(name, "gauge", what, name, value, labels)

    def counter(self, name: str, what: str, value: float, /, **labels: str) -> None:
        """`name` ends with _total."""
        self._add(name.removesuffix("_total"), "counter", what, name, value, labels)

    def histogram(self, name: str, what: str, buckets: Sequence[tuple[float, int]], total: float) -> None:
        """`buckets`: upper bound → how many were in this bucket; the last bound is infinite.  `total`: their sum."""
        family = self._family(name, "histogram", what)
        below = 0
        for bound, count in buckets:
            below += count
            text = "+Inf" if bound == float("inf") else repr(bound)
            family.add_sample(f"{name}_bucket", {**self._labels, "le": text}, below)
        family.add_sample(f"{name}_count", self._labels, below)
        family.add_sample(f"{name}_sum", self._labels, total)

    def left_out(self, family: str, count: int) -> None:
        """So many samples of this family were not even given."""
        if count:
            self._left_out[family] = self._left_out.get(family, 0) + count

    def text(self) -> bytes:
        """Everything, in the text format 0.0.4."""
        return generate_latest(self)

    def collect(self) -> Iterable[Metric]:
        """For prometheus_client."""
        yield from self._families.values()
        left_out = Metric(LEFT_OUT, "Samples that were left out of this family, for it is full.", "gauge")
        for family in self._families:
            if count := self._left_out.get(family):
                left_out.add_sample(LEFT_OUT, {**self._labels, "family": family}, count)
        yield left_out

    def _add(
        self, family: str, kind: str, what: str, name: str, value: float, labels: Mapping[str, str]
    ) -> None:
        found = self._family(family, kind, what)
        if len(found.samples) >= self._series_max:
            self.left_out(family, 1)
            return
        cut = {label: text[:VALUE_CHARS_MAX] for label, text in labels.items()}
        found.add_sample(name, {**self._labels, **cut}, value)

    def _family(self, name: str, kind: str, what: str) -> Metric:
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = Metric(name, what, kind)
        return found


class ProcessFacts:
    """The facts about this process that prometheus_client knows: CPU, memory, open files, when it began."""

    def __init__(self) -> None:
        self._collector = ProcessCollector(registry=None)

    def text(self) -> bytes:
        return generate_latest(self._collector)
