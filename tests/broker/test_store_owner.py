"""A store of another broker name or cluster is not opened without a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.errors import StoreUnreadable
from haservice.broker.node import BrokerNode
from haservice.broker.store_owner import Accepted, ForeignStore
from haservice.configuration.settings import BrokerRole
from tests.support.brokers import node_config

Start = Callable[..., BrokerNode]


@pytest.mark.parametrize("other", [{"broker_name": "broker-b"}, {"cluster_name": "Other"}])
def test_a_store_of_another_name_or_cluster_is_refused(
    other: dict[str, str], start: Start, tmp_path: Path
) -> None:
    start("a").stop()
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "a").rglob("*"))
    with pytest.raises(ForeignStore) as caught:
        start("a", broker=other)
    assert str(tmp_path / "a") in str(caught.value)
    assert "mqbroker -c FILE --accept-store" in str(caught.value)
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "a").rglob("*")) == before

    node = BrokerNode(node_config(tmp_path / "a", broker=other), accepted=Accepted(store=True))
    node.start()
    node.stop()
    start("a", broker=other).stop()
    with pytest.raises(ForeignStore):
        start("a")


def test_a_store_that_names_no_owner_is_taken_and_that_is_written_down(start: Start, tmp_path: Path) -> None:
    start("a").stop()
    owner = tmp_path / "a" / "lineage" / "owner.json"
    owner.unlink()
    start("a", broker={"broker_name": "broker-b"}).stop()
    assert json.loads(owner.read_bytes()) == {
        "cluster_name": "C",
        "broker_name": "broker-b",
        "broker_id": 0,
    }


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 80])
def test_a_store_whose_owner_cannot_be_read_is_not_taken_for_nobodys(
    start: Start, tmp_path: Path, content: bytes
) -> None:
    start("a").stop()
    owner = tmp_path / "a" / "lineage" / "owner.json"
    owner.write_bytes(content)
    with pytest.raises(StoreUnreadable, match="does not say whose store this is") as caught:
        start("a", broker={"broker_name": "broker-b"})
    assert str(owner) in str(caught.value)
    assert "mqbroker -c FILE --accept-store" in str(caught.value)
    assert owner.read_bytes() == content

    node = BrokerNode(node_config(tmp_path / "a"), accepted=Accepted(store=True))
    node.start()
    node.stop()
    assert json.loads(owner.read_bytes())["cluster_name"] == "C"


def test_a_store_of_another_slave_of_the_name_is_told_of(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start("s", role=BrokerRole.SLAVE).stop()
    start("s", role=BrokerRole.SLAVE, broker={"broker_id": 2}).stop()
    assert "the store was that of brokerId=1, and is that of brokerId=2 from now on" in caplog.text
    caplog.clear()
    # A copy of a master's store begins a slave's: nothing to tell.
    start("m").stop()
    shutil.copytree(tmp_path / "m", tmp_path / "copy")
    start("copy", role=BrokerRole.SLAVE).stop()
    assert "the store was that of" not in caplog.text
