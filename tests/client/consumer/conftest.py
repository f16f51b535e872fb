"""A nameserver and brokers of this process, for clients that run on a loop of the test's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.brokers import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Without a broker yet."""
    made = Cluster(tmp_path)
    yield made
    made.close()
