"""Small files that are there and cannot be read: no first start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from haservice.broker.metadata import unfit_files
from haservice.broker.metadata.unfit_files import UnfitFile
from haservice.broker.node import BrokerNode
from haservice.broker.store_owner import Accepted
from haservice.configuration.settings import BrokerRole
from haservice.persisted_file import PersistedFile
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import PromoteHeader
from tests.support.brokers import addr_of, node_config, send
from tests.support.waiting import wait_until

Start = Callable[..., BrokerNode]
TORN = b'{"offsetTable":{"T@g":{0:'


def spoil(root: Path, name: str) -> Path:
    path = root / "config" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(TORN)
    path.with_name(f"{name}.bak").write_bytes(b"\0" * 64)
    return path


def filled(root: Path, start: Start, client: BlockingClient) -> None:
    """A store with a message, and an offset that a group has committed."""
    node = start("a")
    assert send(client, addr_of(node)).code == 0
    node.offsets.commit("g", "T", 0, 1)
    node.stop()


@pytest.mark.parametrize("name", unfit_files.NAMES)
def test_a_master_does_not_start_with_an_empty_table(
    name: str, start: Start, client: BlockingClient, tmp_path: Path
) -> None:
    filled(tmp_path / "a", start, client)
    path = spoil(tmp_path / "a", name)
    with pytest.raises(UnfitFile) as caught:
        start("a")
    assert str(path) in str(caught.value)
    assert f"mqbroker -c FILE --accept-empty {name}" in str(caught.value)
    assert path.read_bytes() == TORN

    node = BrokerNode(node_config(tmp_path / "a"), accepted=Accepted(empty=frozenset({name})))
    node.start()
    node.stop()
    assert path.with_name(f"{name}.unfit").read_bytes() == TORN
    json.loads(path.read_bytes().replace(b"0:", b'"0":'))
    start("a")  # as ever


def test_all_unfit_files_are_named_at_once(start: Start, tmp_path: Path) -> None:
    for name in unfit_files.NAMES:
        spoil(tmp_path / "a", name)
    with pytest.raises(UnfitFile) as caught:
        start("a")
    for name in unfit_files.NAMES:
        assert f"--accept-empty {name}" in str(caught.value)


def test_a_fit_file_is_not_emptied_by_the_flag(start: Start, client: BlockingClient, tmp_path: Path) -> None:
    filled(tmp_path / "a", start, client)
    node = BrokerNode(node_config(tmp_path / "a"), accepted=Accepted(empty=frozenset({unfit_files.OFFSETS})))
    node.start()
    assert node.offsets.query("g", "T", 0) == 1
    node.stop()
    assert not list((tmp_path / "a").rglob("*.unfit"))


def test_a_slave_keeps_its_unfit_file_until_it_has_its_masters(
    start: Start, client: BlockingClient, tmp_path: Path
) -> None:
    master = start("m")
    assert send(client, addr_of(master)).code == 0
    master.offsets.commit("g", "T", 0, 1)
    path = spoil(tmp_path / "s", unfit_files.OFFSETS)
    slave = start("s", role=BrokerRole.SLAVE, replication={"master_address": "127.0.0.1:1"})
    slave.persistence.persist()
    assert path.read_bytes() == TORN
    request = RemotingCommand.request(RequestCode.PROMOTE, PromoteHeader(force=True).encode())
    answer = client.call(addr_of(slave), request, timeout_s=10.0)
    assert "consumerOffset.json could not be read" in str(answer.remark)
    assert "consumerOffset.json could not be read" in slave.standing.describe().not_copied

    slave.slave_sync.link = None  # no link has to bring a log first
    slave.slave_sync.set_master_addr(addr_of(master))
    wait_until(lambda: path.with_name("consumerOffset.json.unfit").exists(), "the unfit file is kept")
    wait_until(lambda: path.read_bytes() != TORN, "the master's table is written")
    assert slave.offsets.query("g", "T", 0) == 1
    assert slave.standing.describe().not_copied == ""


def test_a_slave_that_stops_before_it_has_copied_leaves_its_unfit_file(start: Start, tmp_path: Path) -> None:
    path = spoil(tmp_path / "s", unfit_files.OFFSETS)
    topics = spoil(tmp_path / "s", unfit_files.TOPICS)
    start("s", role=BrokerRole.SLAVE, replication={"master_address": "127.0.0.1:1"}).stop()
    assert path.read_bytes() == topics.read_bytes() == TORN
    with pytest.raises(UnfitFile):
        start("s")


def test_a_file_is_unfit_only_if_nothing_of_it_can_be_read(tmp_path: Path) -> None:
    file = PersistedFile(tmp_path / "t.json")
    assert file.load(json.loads) is None
    assert file.unfit is None
    file.path.write_bytes(b"{")
    assert file.load(json.loads) is None
    assert file.unfit
    file.path.with_name("t.json.bak").write_bytes(b"[1]")
    assert file.load(json.loads) == [1]
    assert file.unfit is None
