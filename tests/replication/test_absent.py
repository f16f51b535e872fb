"""Slaves that are not connected: what the log says of them, and how often."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from haservice.replication.master import absent
from haservice.replication.master.absent import AbsentSlaves
from haservice.replication.master.progress import Refusal, ReportRefused


def test_a_slave_that_is_ahead_is_an_error_once_and_not_at_each_redial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(absent, "time", SimpleNamespace(monotonic=lambda: now[0]))
    slaves = AbsentSlaves(lambda: 0)
    for port in range(50000, 50060):
        progress = SimpleNamespace(identity="10.0.0.2", reported=-1)
        connection: Any = SimpleNamespace(peer=f"10.0.0.2:{port}", progress=progress)
        slaves.ended(connection, ReportRefused(Refusal.AHEAD, 900, 500, "ahead of the log's end 500"))
        now[0] += 5.0
    assert [one.levelno for one in caplog.records] == [logging.ERROR]
    assert len(slaves.since({})) == 1
