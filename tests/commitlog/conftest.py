"""What tests of the log, of queues and of starts share."""

from __future__ import annotations

import pytest

from tests.support.builds import build

__all__ = ["build"]


@pytest.fixture
def no_known_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing proves where a record ends below what is durable, so that a start looks at whole segments."""
    monkeypatch.setattr("commitlog.store.edge_below", lambda *_: None)
