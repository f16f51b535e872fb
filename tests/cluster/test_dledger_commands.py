"""What an operator types about a DLedger group, with real processes: switchovers, states, what is for pairs only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.group import ScratchGroup
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.admin.asking import run
from tests.cluster.support import QUEUES, SETTINGS, TOPIC, numbered, read, send_ok
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ScratchGroup]:
    with ScratchGroup(tmp_path, SETTINGS) as made:
        made.start_nameserver()
        yield made


@pytest.fixture
def admin(group: ScratchGroup) -> Iterator[MQAdmin]:
    with MQAdmin([group.namesrv_addr]) as made:
        yield made


def typed(group: ScratchGroup, *arguments: str, exit_code: int = 0) -> Any:
    """What the command prints as JSON."""
    result = run(arguments[0], "-n", group.namesrv_addr, *arguments[1:], "-f", "json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def refused(group: ScratchGroup, *arguments: str) -> str:
    """What the command says as it refuses."""
    result = run(arguments[0], "-n", group.namesrv_addr, *arguments[1:])
    assert result.exit_code != 0, result.output
    return result.output


def check(group: ScratchGroup) -> tuple[int, str]:
    """Exit code and first line of mqadmin check."""
    result = run("check", "-n", group.namesrv_addr)
    return result.exit_code, result.stdout.splitlines()[0]


def serving(group: ScratchGroup, admin: MQAdmin) -> str:
    """The leader, once it has the topic and all members are registered."""
    leader = group.leader(admin)
    admin.update_topic(group.addr(leader), CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    wait_until(lambda: len(admin.brokers()) == len(group.names), "all members are registered")
    wait_until(lambda: "OK" in check(group)[1], "all members are level")
    return leader


def in_sync(admin: MQAdmin, addr: str) -> int:
    """How many slaves of the broker there are."""
    status = admin.ha_status(addr)
    return 0 if status is None else status.in_sync_slave_nums


def master_in_route(admin: MQAdmin) -> str | None:
    return next((one.addr for one in admin.brokers() if one.broker_id == MASTER_ID), None)


def test_an_operator_hands_the_leadership_over_to_the_nearest_and_to_a_chosen_member(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    group.start_members()
    first = serving(group, admin)
    send_ok(group.addr(first), numbered(0, 50))
    done = typed(group, "switchover", "-b", "broker-a", "--yes")
    second = done["newLeaderId"]
    assert second in set(group.names) - {first}
    assert (done["newMaster"], done["complete"]) == (group.addr(second), True)
    assert {row["epoch"] for row in done["after"]} == {done["epoch"]}
    assert {row["brokerAddr"]: row["role"] for row in done["after"]} == {
        group.addr(name): "SYNC_MASTER" if name == second else "SLAVE" for name in group.names
    }
    send_ok(group.addr(second), numbered(50, 100))
    (third,) = set(group.names) - {first, second}
    back = run("switchover", "-n", group.namesrv_addr, "-b", "broker-a", "--to", group.addr(third), "--yes")
    assert back.exit_code == 0, back.output
    assert f"{group.addr(third)} ({third}) leads broker-a in term " in back.stdout
    assert "Lost If Master" not in back.stdout
    assert master_in_route(admin) == group.addr(third)
    send_ok(group.addr(third), numbered(100, 150))
    assert read(admin, group.addr(third)) == numbered(0, 150)
    already = refused(group, "switchover", "-b", "broker-a", "--to", group.addr(third), "--yes")
    assert "leads broker-a already" in already


def test_who_is_away_is_named_and_a_group_without_a_majority_is_critical(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    group.start_members()
    leader = serving(group, admin)
    status, text = check(group)
    assert status == 0, text
    assert f"{group.addr(leader)} leads and accepts writes, 3 of 3 members are level" in text
    links = [row for row in typed(group, "haStatus") if row["role"] == "SYNC_MASTER"]
    assert {(row["peerBrokerAddr"], row["inSync"]) for row in links} == {
        (group.addr(name), True) for name in group.names if name != leader
    }
    hours = {row["brokerAddr"]: row["hoursKept"] for row in typed(group, "clusterList")}
    assert all(kept is not None for kept in hours.values()), hours
    gone, left = sorted(set(group.names) - {leader})
    group.processes[gone].kill()
    away = f"MEMBER NOT LEVEL, {gone} at {group.member_addr(gone)}: has not answered"
    wait_until(lambda: away in check(group)[1], "the leader misses it")
    assert check(group)[0] == 1
    dead = refused(group, "switchover", "-b", "broker-a", "--to", group.addr(gone), "--yes")
    assert f"{group.addr(gone)} cannot lead broker-a" in dead
    group.processes[left].kill()
    wait_until(lambda: "NOBODY LEADS" in check(group)[1], "the leader leaves office")
    assert check(group)[0] == 2
    assert "1 of 3 members answer, and 2 of them elect one" in check(group)[1]
    nobody = refused(group, "switchover", "-b", "broker-a", "--yes")
    assert "nobody leads broker-a now" in nobody


def test_members_whose_files_differ_are_named_with_their_values(group: ScratchGroup, admin: MQAdmin) -> None:
    for name in group.names:
        group.begin_member(name, **({"preferredLeaderId": "n2"} if name == "n1" else {}))
    for name in group.names:
        group.processes[name].wait_booted()
    wait_until(lambda: "MEMBERS DIFFER" in check(group)[1], "it is seen")
    wait_until(
        lambda: "not set at n0" in check(group)[1] and "and n2" in check(group)[1], "all are registered"
    )
    wait_until(lambda: check(group)[0] == 1, "nothing else is to be told")
    assert f"n2 at n1 ({group.addr('n1')}): write one value" in check(group)[1]


def test_a_member_without_a_broker_that_clients_find_is_told(group: ScratchGroup, admin: MQAdmin) -> None:
    group.start_members("n0", "n1")
    group.start_members("n2", namesrvAddr="127.0.0.1:1", preferredLeaderId="n0")
    group.leader(admin)
    where = (
        f"n2 at {group.member_addr('n2')} is level, and no client reaches it; its broker is not registered"
    )
    wait_until(lambda: f"BROKER DOES NOT ANSWER, {where}" in check(group)[1], "it is told")


def test_what_is_for_pairs_only_is_refused_with_what_helps(group: ScratchGroup, admin: MQAdmin) -> None:
    group.start_members()
    leader = serving(group, admin)
    other = next(name for name in group.names if name != leader)
    for arguments, helps in (
        (("failover", "-b", "broker-a", "--to", group.addr(other), "--yes"), "takes over by itself"),
        (("reinit", "-b", group.addr(other), "--yes"), "fills a member that is empty"),
        (("forget", "-b", "broker-a", "--replica", group.addr(other), "--yes"), "dLegerSelfId"),
        (("pause", "-b", "broker-a"), "elections cannot be paused"),
        (("resume", "-b", "broker-a"), "elections cannot be paused"),
        (("haConfig", "show", "-b", "broker-a"), "no coordinator"),
        (("haList", "-b", "broker-a"), "no coordinator"),
        (("history", "-b", "broker-a"), "mqadmin haStatus"),
    ):
        result = run(*arguments, "-n", group.namesrv_addr)
        assert result.exit_code != 0, result.output
        assert "broker-a is a DLedger group, which elects its master: " in result.output
        assert helps in result.output
    # As reinit advises: what the leader has comes again.
    send_ok(group.addr(leader), numbered(0, 100))
    assert group.processes[other].stop() == 0
    shutil.rmtree(group.store(other) / f"dledger-{other}")
    group.start_members(other)
    wait_until(lambda: read(admin, group.addr(other)) == numbered(0, 100), "it has everything again")


def test_preferred_leader_is_not_sent_away(group: ScratchGroup, admin: MQAdmin) -> None:
    group.start_members(preferredLeaderId="n1")
    wait_until(lambda: group.leader(admin) == "n1", "the preferred member leads")
    serving(group, admin)
    said = refused(group, "switchover", "-b", "broker-a", "--yes")
    assert "preferredLeaderId=n1 leads whenever it is there and level" in said
    assert "nothing was changed" in said
    assert "mqadmin history" not in said


def test_a_pair_that_was_promoted_often_becomes_a_group_at_the_same_nameserver(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    """The nameserver goes on believing the newest epoch, whichever member leads."""
    group.start_broker("n0", brokerRole="ASYNC_MASTER", brokerId="0")
    group.start_broker("n1", brokerRole="SLAVE", brokerId="1")
    admin.update_topic(group.addr("n0"), CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    send_ok(group.addr("n0"), numbered(0, 50))
    for master in ("n0", "n1"):
        wait_until(partial(in_sync, admin, group.addr(master)), "the slave is in sync")
        typed(group, "switchover", "-b", "broker-a", "--yes")
    assert typed(group, "haStatus")[0]["epoch"] == 2000
    send_ok(group.addr("n0"), numbered(50, 60))
    for name in ("n0", "n1"):
        assert group.processes[name].stop() == 0
    shutil.copytree(group.store("n0"), group.store("n2"))
    group.start_members()
    leader = serving(group, admin)
    assert read(admin, group.addr(leader)) == numbered(0, 60)
    for name in [*sorted(set(group.names) - {leader}), leader]:
        done = typed(group, "switchover", "-b", "broker-a", "--to", group.addr(name), "--yes")
        assert (done["newLeaderId"], done["complete"]) == (name, True)
        assert master_in_route(admin) == group.addr(name)
    send_ok(group.addr(leader), numbered(60, 100))
