"""What a broker is from its start on: whole ones in this process, that have been something before."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from haservice.admin.daemons import Patience
from haservice.bounds import OFFSET_MAX
from haservice.broker.node import BrokerNode
from haservice.broker.roles import hands, startup
from haservice.broker.roles.actions import Flush
from haservice.broker.roles.executor import RoleExecutor
from haservice.broker.roles.peers import PATIENCE_S, Heard, Peers
from haservice.broker.roles.startup import SECOND_LOOK_SECONDS
from haservice.configuration.settings import BrokerRole
from haservice.errors import RequestError
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import ResponseCode
from haservice.remoting.headers.lineage import FollowHeader, LineageBody, PromoteHeader
from haservice.replication.lineage.epochs import Epoch, Lineage
from haservice.replication.lineage.file import LineageFile, RoleCommand
from tests.support.brokers import addr_of, send
from tests.support.waiting import wait_until

Start = Callable[..., BrokerNode]


def stopped(start: Start, client: BlockingClient) -> LineageFile:
    """The lineage of a master that took a message and was stopped."""
    node = start()
    assert send(client, addr_of(node), "Topic", b"body").code == ResponseCode.SUCCESS
    node.stop()
    return LineageFile(node.config.log.root)


def test_a_lineage_that_could_not_be_read_is_told_as_that(
    start: Start, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told as a role that somebody had changed."""
    file = stopped(start, client)
    file.update(command=RoleCommand("SLAVE", 1, "ASYNC_MASTER", 99, "by hand"))
    left = [OSError(errno.EMFILE, "Too many open files")]

    class Unread(LineageFile):
        def __init__(self, *args: Any, **more: Any) -> None:
            if left:
                raise left.pop()
            super().__init__(*args, **more)

    monkeypatch.setattr(startup, "LineageFile", Unread)
    with pytest.raises(OSError, match="Too many open files"):
        start()
    assert start().config.broker.role is BrokerRole.SLAVE


def test_a_master_without_a_number_for_its_epoch_is_held_until_an_operator_says_so(
    start: Start, client: BlockingClient
) -> None:
    file = stopped(start, client)
    own = file.state.replica_id
    file.update(lineage=Lineage((Epoch(999, 0, own),)), boot_id="another boot")
    (file.root / "abort").touch()
    for _ in range(2):  # a clean stop does not make it forget
        node = start()
        assert "no number is left below 1000" in node.standing.state.held
        assert send(client, addr_of(node), "Topic", b"early").code == ResponseCode.SERVICE_NOT_AVAILABLE
        node.stop()
    node = start()
    body = node.standing.ask(PromoteHeader(min_epoch=1000, why="by hand"))
    assert isinstance(body, LineageBody)
    assert (body.epoch, body.held) == (1000, "")
    assert send(client, addr_of(node), "Topic", b"late").code == ResponseCode.SUCCESS


def test_a_master_whose_role_cannot_be_written_takes_nothing_and_tries_again(
    start: Start, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    lineage = node.standing.lineage

    def no_room(**changes: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lineage, "update", no_room)
    with pytest.raises(RequestError, match=r"cannot be written.*nothing is taken"):
        node.standing.ask(FollowHeader("127.0.0.1:1", "127.0.0.1:2", 1000))
    assert node.restart is None
    assert send(client, addr_of(node), "Topic", b"body").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "cannot be written" in node.standing.describe().held

    monkeypatch.undo()
    node.standing.executor.wake()
    wait_until(lambda: node.restart is not None, "the role is written, and the broker turns")
    command = LineageFile(node.config.log.root).state.command
    assert command is not None
    assert command.role == "SLAVE"


def test_a_master_that_could_not_flush_as_it_began_may_try_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_time(*_: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as broken:
        broken.setitem(hands._PERFORM, Flush, no_time)
        with pytest.raises(OSError, match="a master cannot begin here: TimeoutError") as raised:
            start()
    assert Patience().seconds(raised.value) is not None
    start()


def test_a_master_by_a_command_that_is_over_starts_as_a_slave(start: Start, client: BlockingClient) -> None:
    """It has followed somebody since, and that could not be written."""
    file = stopped(start, client)
    own = file.state.replica_id
    file.update(
        lineage=Lineage((Epoch(1, 0, own), Epoch(1000, 10, "another"))),
        command=RoleCommand("ASYNC_MASTER", 0, "SLAVE", 1, "promoted yesterday"),
    )
    node = start(role=BrokerRole.SLAVE)
    assert node.standing.role.role is BrokerRole.SLAVE
    state = LineageFile(node.config.log.root).state
    assert (state.command, state.lineage.epochs[-1].number) == (None, 1000)


@pytest.mark.parametrize("begins", [True, False])
def test_a_master_whose_epoch_begins_sets_offsets_of_lost_messages(
    start: Start, client: BlockingClient, begins: bool
) -> None:
    """Else they are kept: the log that they were made on may be mounted again."""
    node = start()
    assert send(client, addr_of(node), "Topic", b"body").code == ResponseCode.SUCCESS
    for group, offset in (("Ahead", 7), ("Level", 1)):
        node.offsets.commit(group, "Topic", 0, offset)
    node.stop()
    end, file = node.store.log.end, LineageFile(node.config.log.root)
    if begins:
        own = file.state.replica_id
        file.update(lineage=Lineage((Epoch(1, 0, own), Epoch(1000, end, own))))
    node = start()
    assert (node.store.log.end, node.standing.state.held) == (end, "")
    assert [node.offsets.query(group, "Topic", 0) for group in ("Ahead", "Level")] == [1 if begins else 7, 1]


def test_a_master_whose_log_was_removed_takes_nothing_until_it_is_there_again(
    start: Start, client: BlockingClient
) -> None:
    log = stopped(start, client).root / "commitlog"
    log.rename(log.parent / "unmounted")
    for _ in range(2):  # a clean stop does not make it forget
        node = start()
        assert str(log) in node.standing.state.held
        assert send(client, addr_of(node), "Topic", b"early").code == ResponseCode.SERVICE_NOT_AVAILABLE
        node.stop()
    shutil.rmtree(log)
    (log.parent / "unmounted").rename(log)
    assert send(client, addr_of(start()), "Topic", b"late").code == ResponseCode.SUCCESS


def test_a_slave_whose_newest_segments_were_moved_away_counts_for_no_failover(
    start: Start, client: BlockingClient
) -> None:
    """Its epochs all begin below the end that is left; only the mark of its last flush lies beyond."""
    file = stopped(start, client)
    (segment,) = (file.root / "commitlog").iterdir()
    segment.write_bytes(bytes(len(segment.read_bytes())))
    start(role=BrokerRole.SLAVE)
    assert LineageFile(file.root).state.whole_from == OFFSET_MAX


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_broker_whose_log_was_removed_counts_for_no_failover_before_it_has_caught_up(
    start: Start, client: BlockingClient, is_gone: bool
) -> None:
    """By the epochs beside the log: it ended beyond where the newest one begins."""
    file = stopped(start, client)
    own = file.state.replica_id
    begin = 1 if not is_gone else 1 << 20
    file.update(lineage=Lineage((Epoch(1, 0, own), Epoch(2001, begin, own))), joined=2001)
    node = start(role=BrokerRole.SLAVE, coordinator="etcd://127.0.0.1:1")
    kept = LineageFile(node.config.log.root).state
    assert (kept.whole_from, kept.sealed) == ((OFFSET_MAX, 1999) if is_gone else (0, -1))


def test_a_master_that_starts_looks_again_with_patience_where_somebody_is_silent(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promoted broker stood still for a second just then, and there were two masters."""
    looks: list[float] = []
    ask = Peers.ask

    def looked(peers: Peers, also: Iterable[str] = (), patience_s: float = PATIENCE_S) -> Heard:
        looks.append(patience_s)
        return ask(peers, also, patience_s)._replace(silent=["127.0.0.1:9"])

    monkeypatch.setattr(Peers, "ask", looked)
    monkeypatch.setattr(RoleExecutor, "run", lambda _, stop: stop.wait())
    start()
    assert looks == [PATIENCE_S, SECOND_LOOK_SECONDS]
    start("b", role=BrokerRole.SLAVE)
    assert looks[2:] == [PATIENCE_S]
