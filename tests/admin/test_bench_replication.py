"""scripts/bench_replication: what it says of a pair that does not come to be level."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest

from haservice.devtools import bench_replication
from haservice.devtools.bench_replication import Load, ReplicationBench, until


class LonePair(SimpleNamespace):
    """A pair whose slave never comes."""

    def __init__(self, *_: object) -> None:
        super().__init__(master_addr="127.0.0.1:1", slave_addr="127.0.0.1:2")

    def __enter__(self) -> LonePair:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ha_port(self) -> int:
        return 3

    def start_nameserver(self) -> None:
        pass

    start_master = start_nameserver

    def start_slave(self, **_: str) -> None:
        pass


def test_cut_rows_say_that_the_slave_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sent(*_: Any) -> Load:
        return Load(1.0, 1.0, 1.0, not_ok=10)

    monkeypatch.setattr(bench_replication, "ScratchPair", LonePair)
    monkeypatch.setattr(bench_replication, "drive", sent)
    monkeypatch.setattr(bench_replication, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(click.ClickException) as raised:
        ReplicationBench(1, 1, 1, 1, None).cut()
    assert raised.value.message == (
        "cut: the slave at 127.0.0.1:2 does not follow, sends to 127.0.0.1:1 are not OK, for 0 s now"
    )


def test_what_is_so_is_looked_at_once_and_at_the_end_of_patience_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_replication, "PATIENCE_SECONDS", 0.0)
    looks = []
    until(lambda: not looks.append(None), "it is not")  # type: ignore[func-returns-value]
    assert len(looks) == 1
