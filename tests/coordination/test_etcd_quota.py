"""A real etcd whose quota is full, and what keeps it from that."""

from __future__ import annotations

import json
import urllib.error
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.coordination import etcd as etcd_module
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import Coordinator, CoordinatorError, Transaction
from tests.support.coordinators import (
    ETCD_MISSING,
    Server,
    ask_etcd,
    empty_etcd,
    etcd,
    fill_etcd,
    opened,
)
from tests.support.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path, more=("--quota-backend-bytes", "400000")) as (one,):
        yield one


@pytest.fixture
def broker(server: Server) -> Iterator[Coordinator]:
    made = coordinator_at(place_of(f"etcd://127.0.0.1:{server.port}"), "test", "broker-a", Keys())
    wait_until(lambda: opened(made, 60.0), "a session")
    yield made
    made.close()


def test_an_etcd_that_is_full_says_so_and_the_advice_helps(server: Server, broker: Coordinator) -> None:
    assert broker.upkeep(cleans=False) == ""
    fill_etcd(server)
    why = broker.upkeep(cleans=False)
    assert "is full, and takes no write (alarm NOSPACE)" in why
    assert "`etcdctl alarm disarm`" in why
    with pytest.raises(CoordinatorError) as told:
        broker.commit(Transaction({"epoch": 0}, {"epoch": b"1"}))
    assert str(told.value) == why
    broker.renew()
    assert broker.read() == {}, "all else is answered"
    empty_etcd(server)
    assert broker.upkeep(cleans=False) == ""
    assert broker.commit(Transaction({"epoch": 0}, {"epoch": b"1"}))


def test_a_master_compacts_what_is_old_and_nothing_else(
    server: Server, broker: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "COMPACT_SECONDS", 0.0)

    def written() -> int:
        version = broker.read().get("epoch", (b"", 0))[1]
        assert broker.commit(Transaction({"epoch": version}, {"epoch": b"1"}))
        return broker.read()["epoch"].version

    def is_kept(revision: int) -> bool:
        key = b64encode(b"/haservice/test/broker-a/epoch").decode()
        try:
            ask_etcd(server, "kv/range", {"key": key, "revision": revision})
        except urllib.error.HTTPError as error:
            return "has been compacted" not in json.loads(error.read())["error"]
        return True

    first, second = written(), written()
    assert broker.upkeep(cleans=True) == ""
    assert is_kept(first), "nothing is an hour old"
    monkeypatch.setattr(etcd_module, "KEPT_SECONDS", 0.0)
    assert broker.upkeep(cleans=False) == ""
    assert is_kept(first), "a slave compacts nothing"
    third = written()
    assert broker.upkeep(cleans=True) == ""
    assert not is_kept(first)
    assert not is_kept(second)
    assert is_kept(third)
    assert broker.upkeep(cleans=True) == "", "that is compacted already"
