"""Fixtures of the broker's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.reading_broker import ReadingBroker


@pytest.fixture
def reading_broker(tmp_path: Path) -> Iterator[Callable[..., ReadingBroker]]:
    """Makes ReadingBrokers, and closes them."""
    from tests.support.reading_broker import ReadingBroker

    brokers: list[ReadingBroker] = []

    def make(**options: Any) -> ReadingBroker:
        brokers.append(ReadingBroker(tmp_path / f"store-{len(brokers)}", **options))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()
