"""Metrics as a scraper sees them, and the HTTP client of the tests: one request, one answer."""

from __future__ import annotations

import http.client
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

Key = tuple[str, tuple[tuple[str, str], ...]]


def samples_of(text: bytes) -> dict[Key, float]:
    """(name, sorted labels) → value; fails where a sample comes twice."""
    found: dict[Key, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


class Got(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]


def get(port: int, path: str, method: str = "GET", timeout_s: float = 20.0) -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return Got(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})
    finally:
        connection.close()


def value_of(text: bytes, name: str, **labels: str) -> float | None:
    """The one sample that has these labels, whatever others it has; None without one."""
    values = [
        value
        for (found, has), value in samples_of(text).items()
        if found == name and labels.items() <= dict(has).items()
    ]
    assert len(values) <= 1, f"{name} {labels}: {len(values)} samples"
    return values[0] if values else None
