"""Threads of real processes that end: what cannot be started again ends the process, with an exit code of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import Process, ScratchPair
from haservice.supervisor import EXIT_CODE
from tests.cluster.support import numbered, read, send_ok, start_master_with_topic, wait_follows
from tests.cluster.test_auto_failover import Numbers, is_ok, role_of, started
from tests.support.coordinators import Server
from tests.support.dying import dying
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.cluster

ROLE_KEEPER = "haservice.broker.roles.executor:RoleExecutor._one"


def ended(process: Process) -> str:
    """What it printed, once it has ended as a process does that lacks a thread for good."""
    assert process.popen.wait(PATIENCE_S) == EXIT_CODE
    return process.output()


def test_a_master_without_its_role_keeper_ends_and_serves_when_it_is_started_again(
    make_pair: Callable[..., ScratchPair], admin: Callable[[ScratchPair], MQAdmin], tmp_path: Path
) -> None:
    pair = make_pair("SYNC_MASTER")
    with dying(tmp_path, ROLE_KEEPER) as role_keeper:
        start_master_with_topic(pair, admin(pair))
    pair.start_slave()
    wait_follows(admin(pair), pair.master_addr, pair.slave_addr)
    send_ok(pair.master_addr, numbered(0, 10))
    role_keeper.now(pair.processes["broker-a"])
    said = ended(pair.processes["broker-a"])
    assert "stopped, for thread role-keeper has failed: ValueError: a mistake of ours" in said
    assert "clean=True" in said
    pair.start_master()
    wait_follows(admin(pair), pair.master_addr, pair.slave_addr)
    send_ok(pair.master_addr, numbered(10, 20))
    assert sorted(read(admin(pair), pair.master_addr)) == sorted(numbered(0, 20))


def test_the_other_broker_takes_over_from_one_that_ends_and_the_ended_one_follows(
    make_pair: Callable[..., ScratchPair],
    admin: Callable[[ScratchPair], MQAdmin],
    etcd_server: Server,
    tmp_path: Path,
) -> None:
    pair, settings = make_pair("SYNC_MASTER"), {"haCoordinator": f"etcd://127.0.0.1:{etcd_server.port}"}
    with dying(tmp_path, ROLE_KEEPER) as role_keeper:
        started(pair, admin(pair), settings["haCoordinator"])
    wait_until(lambda: is_ok(pair.master_addr, 1), "the master takes messages")
    role_keeper.now(pair.processes["broker-a"])
    ended(pair.processes["broker-a"])
    wait_until(lambda: role_of(admin(pair), pair.slave_addr) == pair.role, "the other one takes over")
    pair.start_master(**settings)
    wait_follows(admin(pair), pair.slave_addr, pair.master_addr)
    wait_until(Numbers().try_at(pair.slave_addr), "it takes messages, with the old one as its slave")


def test_a_nameserver_whose_loop_has_ended_says_so_by_its_exit_code(
    make_pair: Callable[..., ScratchPair], tmp_path: Path
) -> None:
    pair = make_pair()
    with dying(
        tmp_path, "haservice.nameserver.broker_requests:BrokerProcessors.expire", "SystemExit"
    ) as scan:
        nameserver = pair.start_nameserver()
    scan.now(nameserver)
    assert "stopped, for thread remoting-loop has failed: SystemExit: a mistake of ours" in ended(nameserver)
