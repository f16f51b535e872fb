"""Consumers, over real sockets: of a SYNC_MASTER they see nothing that no in-sync slave has acknowledged, and
with SYNC_FLUSH nothing that is not flushed.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog.options import FlushDiskType
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole, ReadMark
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import PullMessageHeader
from tests.support.brokers import addr_of, node_config, send
from tests.support.replication import ScriptedSlave
from tests.support.waiting import wait_until

MAY_SUSPEND, WITH_SUBSCRIPTION = 2, 4


@contextmanager
def started(root: Path, role: BrokerRole = BrokerRole.SYNC_MASTER, **options: Any) -> Iterator[BrokerNode]:
    made = BrokerNode(node_config(root, role=role, **options))
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerNode]:
    with started(tmp_path, replication={"slave_timeout_ms": 100}) as made:
        yield made


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as made:
        yield made


def pull(client: BlockingClient, node: BrokerNode, offset: int, hold_ms: int = 0) -> RemotingCommand:
    header = PullMessageHeader(
        consumer_group="g",
        topic="T",
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=WITH_SUBSCRIPTION | (MAY_SUSPEND if hold_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        subscription="*",
        sub_version=0,
    )
    return client.call(addr_of(node), RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode()), 30)


def test_a_message_is_read_when_a_slave_has_acknowledged_it_and_not_before(
    node: BrokerNode, client: BlockingClient
) -> None:
    assert send(client, addr_of(node), "T", b"alone").code == ResponseCode.SLAVE_NOT_AVAILABLE
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
    assert pull(client, node, 0).code == ResponseCode.SUCCESS, "without a slave everything is read"
    with ScriptedSlave(node.ha.port) as slave:
        slave.report(0)
        slave.frames_to(node.store.log.end)
        slave.report(node.store.log.end)
        wait_until(lambda: node.ha.is_slave_ok(node.store.log.end), "the slave counts")
        assert send(client, addr_of(node), "T", b"unproven").code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        end = node.store.log.end
        slave.frames_to(end)
        wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
        assert pull(client, node, 1).code == ResponseCode.PULL_NOT_FOUND
        assert pull(client, node, 0).code == ResponseCode.SUCCESS, "what was readable stays so"
        slave.report(end)
        held = pull(client, node, 1, hold_ms=20_000)
        assert held.code == ResponseCode.SUCCESS
        assert held.ext["nextBeginOffset"] == "2"


def test_what_only_the_master_has_is_read_once_its_slave_is_gone(
    node: BrokerNode, client: BlockingClient
) -> None:
    with ScriptedSlave(node.ha.port) as slave:
        slave.report(0)
        wait_until(lambda: node.ha.is_slave_ok(0), "the slave counts")
        assert send(client, addr_of(node), "T", b"unproven").code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
        assert pull(client, node, 0).code == ResponseCode.PULL_NOT_FOUND
    assert pull(client, node, 0, hold_ms=20_000).code == ResponseCode.SUCCESS


def test_a_strict_master_that_starts_alone_shows_nothing_until_a_slave_has_it(
    tmp_path: Path, client: BlockingClient
) -> None:
    strict = {"read_mark": ReadMark.STRICT, "slave_timeout_ms": 100}
    with started(tmp_path, replication=strict) as node:
        assert send(client, addr_of(node), "T", b"alone").code == ResponseCode.SLAVE_NOT_AVAILABLE
    with started(tmp_path, replication=strict) as node:
        assert pull(client, node, 0).code == ResponseCode.PULL_NOT_FOUND
        with ScriptedSlave(node.ha.port) as slave:
            slave.report(node.store.log.end)
            assert pull(client, node, 0, hold_ms=20_000).code == ResponseCode.SUCCESS
        wait_until(lambda: not node.ha.is_slave_ok(0), "the slave is gone")
        assert pull(client, node, 0).code == ResponseCode.SUCCESS, "what was readable stays so"


def test_a_broker_that_stops_answers_the_pulls_that_it_holds(tmp_path: Path, client: BlockingClient) -> None:
    """A stock client does not look at the end of a connection, and hung for 33 s after a clean restart."""
    with ThreadPoolExecutor(1) as other:
        with started(tmp_path) as node:
            send(client, addr_of(node), "T", b"read before")
            wait_until(lambda: pull(client, node, 0).code == ResponseCode.SUCCESS, "it is read")
            held = other.submit(pull, client, node, 1, 90_000)
            wait_until(lambda: len(node.long_polling) == 1, "the pull is held")
        answer = held.result()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "shutting down" in answer.remark


@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
@pytest.mark.parametrize("mode", [ReadMark.IN_SYNC, ReadMark.OFF])
def test_with_sync_flush_a_message_is_read_when_it_is_flushed_and_not_before(
    tmp_path: Path,
    client: BlockingClient,
    monkeypatch: pytest.MonkeyPatch,
    role: BrokerRole,
    mode: ReadMark,
) -> None:
    monkeypatch.setattr("haservice.broker.node.TICK_SECONDS", 3600.0)  # only the flush wakes who waits for it
    sync_flush = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    with (
        started(tmp_path, role, log=sync_flush, replication={"read_mark": mode}) as node,
        ThreadPoolExecutor(1) as other,
    ):
        with node.store.flusher.at_work:
            send(client, addr_of(node), "T", b"not flushed", properties="WAIT\x01false")
            wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
            shown = ResponseCode.SUCCESS if mode is ReadMark.OFF else ResponseCode.PULL_NOT_FOUND
            assert pull(client, node, 0).code == shown
            held = other.submit(pull, client, node, 0, 90_000)
            wait_until(lambda: held.done() or len(node.long_polling) == 1, "the pull is held")
            assert held.done() is (mode is ReadMark.OFF)
        assert held.result().code == ResponseCode.SUCCESS
