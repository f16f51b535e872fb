"""Three brokers of one name, real processes: who has to be heard before a promotion, and who is told of one."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from haservice.errors import RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import LineageBody
from tests.admin.asking import run
from tests.cluster.support import (
    Ask,
    MakePair,
    numbered,
    read,
    send_ok,
    start_with_topic,
    wait_caught_up,
)
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

THIRD = "broker-a-s2"


def start_three(pair: ScratchPair, ask: MQAdmin, third_id: int = 2) -> str:
    """All of them, with both slaves in sync; the address of the third."""
    start_with_topic(pair, ask)
    pair.start_broker(THIRD, brokerRole="SLAVE", brokerId=str(third_id))
    wait_until(lambda: knows_all(ask, pair.addr(THIRD)), "the third has the list that is in effect")
    wait_until(
        lambda: in_sync(ask, pair.master_addr) == {pair.slave_addr, pair.addr(THIRD)}, "both are in sync"
    )
    return pair.addr(THIRD)


def knows_all(ask: MQAdmin, addr: str) -> bool:
    """Whether the list that it has stands over no other one: it dials no more for another."""
    try:
        members = ask.ask(addr, RequestCode.GET_LINEAGE, into=LineageBody).members
    except RemotingError:
        return False
    return members is not None and len(members.replicas) == 3 and not members.over


def in_sync(ask: MQAdmin, master: str) -> set[str | None]:
    try:
        status = ask.ha_status(master)
    except RemotingError:
        return set()
    return {one.broker_addr for one in status.ha_connection_info if one.in_sync} if status else set()


# What nobody knows of a slave that was started again since its master died.
PUT_BACK = "if its store was put back from an older copy"


def typed(pair: ScratchPair, *arguments: str, exit_code: int = 0) -> Any:
    """What the command prints as JSON."""
    result = run(arguments[0], "-n", pair.namesrv_addr, *arguments[1:], "-f", "json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def kill(pair: ScratchPair, *names: str) -> None:
    for name in names:
        pair.processes[name].kill()


@pytest.mark.parametrize("by", ["force", "forget"])
def test_a_silent_slave_that_acknowledged_alone_is_not_passed_over_without_force(
    make_pair: MakePair, admin: Ask, by: str
) -> None:
    """A hundred messages are on A and C; both die, and B, who was away, comes back."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    third = start_three(pair, ask)
    send_ok(pair.master_addr, numbered(0, 50))
    wait_caught_up(pair, ask)
    kill(pair, "broker-a-s")
    send_ok(pair.master_addr, numbered(50, 150))
    kill(pair, "broker-a", THIRD)
    pair.start_slave()
    command = ("failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    refused = run(command[0], "-n", pair.namesrv_addr, *command[1:])
    assert refused.exit_code == 1
    assert f"{third} may have acknowledged messages that no other broker has" in refused.stderr
    assert f"start {third}" in refused.stderr
    there = {row["brokerAddr"] for row in typed(pair, *command, exit_code=1)["before"]}
    assert there == {pair.master_addr, pair.slave_addr, third}
    if by == "forget":
        command_of = ("forget", "-b", "broker-a", "--replica", third, "--yes")
        assert "--force" in typed(pair, *command_of, exit_code=1)["error"]
        forgotten = typed(pair, *command_of, "--force")
        assert (forgotten["told"], forgotten["complete"]) == ([pair.slave_addr], True)
        assert third not in [row["brokerAddr"] for row in forgotten["after"]]
        assert PUT_BACK in run(command[0], "-n", pair.namesrv_addr, *command[1:]).output
    done = typed(pair, *command, "--force")
    assert (done["newMaster"], done["epoch"], done["complete"]) == (pair.slave_addr, 1000, True)
    assert bool(done["unsafe"]) is (by == "force")
    assert read(ask, pair.slave_addr) == numbered(0, 50)


def test_the_slave_that_acknowledged_alone_is_the_one_to_promote(make_pair: MakePair, admin: Ask) -> None:
    """As above, but C comes back, too: nothing is lost with it, and B is refused."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    third = start_three(pair, ask)
    kill(pair, "broker-a-s")
    send_ok(pair.master_addr, numbered(0, 100))
    kill(pair, "broker-a", THIRD)
    pair.start_slave()
    pair.start_second_slave()
    refused = run("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert refused.exit_code == 1
    assert f"--to {third} would lose 0 B" in refused.stderr
    # All that heard the master were started again since.
    done = typed(pair, "failover", "-b", "broker-a", "--to", third, "--yes", "--force")
    assert (done["newMaster"], done["complete"], done["unsafe"]) == (third, True, None)
    wait_until(lambda: in_sync(ask, third) == {pair.slave_addr}, "the other one follows")
    assert read(ask, third) == numbered(0, 100)


def test_a_slave_that_was_forgotten_while_it_stood_still_is_promoted_with_all_that_it_has(
    make_pair: MakePair, admin: Ask
) -> None:
    """The other one stood still before, and lacks what was acknowledged meanwhile; the master is dead."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    third = start_three(pair, ask)
    with contextlib.ExitStack() as standing_still:
        with frozen(pair.processes[THIRD].popen):
            wait_until(lambda: in_sync(ask, pair.master_addr) == {pair.slave_addr}, "the third is let go")
            send_ok(pair.master_addr, numbered(0, 50))
            standing_still.enter_context(frozen(pair.processes["broker-a-s"].popen))
            kill(pair, "broker-a")
        command = (
            "forget",
            "-n",
            pair.namesrv_addr,
            "-b",
            "broker-a",
            "--replica",
            pair.slave_addr,
            "--force",
            "--yes",
        )
        forgotten = run(*command)
        assert forgotten.exit_code == 0, forgotten.output
        assert f"NOTE: {pair.slave_addr}" in forgotten.output
        assert "may have acknowledged messages that no other broker has" in forgotten.output
        assert f"Or start {pair.master_addr}, the last master, again" in forgotten.output
    refused = run("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", third, "--yes")
    assert refused.exit_code == 1
    assert f"--to {pair.slave_addr} needs no --force" in refused.stderr
    done = typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert (done["newMaster"], done["complete"], done["unsafe"]) == (pair.slave_addr, True, None)
    wait_until(lambda: in_sync(ask, pair.slave_addr) == {third}, "the third follows")
    assert read(ask, pair.slave_addr) == numbered(0, 50)


def test_one_silent_slave_is_no_danger_where_two_have_to_acknowledge(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER", inSyncReplicas="3")
    ask = admin(pair)
    start_three(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    kill(pair, "broker-a", THIRD)
    done = typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert (done["newMaster"], done["complete"], done["unsafe"]) == (pair.slave_addr, True, None)
    assert read(ask, pair.slave_addr) == numbered(0, 100)


def test_a_dead_broker_is_shown_until_it_is_forgotten_on_purpose(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    third = start_three(pair, ask)
    refused = run("forget", "-n", pair.namesrv_addr, "-b", "broker-a", "--replica", third, "--yes")
    assert (refused.exit_code, "stop it first" in refused.stderr) == (1, True)
    kill(pair, THIRD)
    wait_until(lambda: "2" not in registered(ask), "the nameserver has dropped it")
    status = run("haStatus", "-n", pair.namesrv_addr)
    assert status.exit_code == 1
    assert f"mqadmin forget -b broker-a --replica {third}" in status.stdout
    gone = run("history", "-n", pair.namesrv_addr, "-b", "broker-a")
    assert (gone.exit_code, f"Not shown: {third}" in gone.stderr) == (1, True)
    done = typed(pair, "forget", "-b", "broker-a", "--replica", third, "--yes")
    assert done["told"] == [pair.master_addr]
    assert {row["brokerAddr"] for row in done["after"]} == {pair.master_addr, pair.slave_addr}
    for addr in (pair.master_addr, pair.slave_addr):  # its slave has the new list as well, should it die now
        body = ask.ask(addr, RequestCode.GET_LINEAGE, into=LineageBody)
        assert body.members is not None
        assert third not in body.members.replicas.values()
    assert typed(pair, "history", "-b", "broker-a")
    # Slaves dial again for a new list, and once more when it is in effect.
    wait_until(lambda: in_sync(ask, pair.master_addr) == {pair.slave_addr}, "the slave has it")
    assert typed(pair, "haStatus")
    send_ok(pair.master_addr, numbered(0, 20))
    # It was not lost after all, and is on the list again.
    pair.start_second_slave()
    wait_until(lambda: third in in_sync(ask, pair.master_addr), "it follows again, and counts")
    assert third in {one["brokerAddr"] for one in typed(pair, "haStatus")[0]["replicas"]}


def registered(ask: MQAdmin) -> set[str]:
    return {str(one.broker_id) for one in ask.brokers()}


def test_a_switchover_tells_the_third_and_refuses_nobody_aloud(make_pair: MakePair, admin: Ask) -> None:
    """Planned work is quiet: no line says that a connection was refused, and no epoch is left out of the history."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    third = start_three(pair, ask)
    send_ok(pair.master_addr, numbered(0, 50))
    for master, slave in ((pair.master_addr, pair.slave_addr), (pair.slave_addr, pair.master_addr)):
        wait_until(lambda m=master, s=slave: in_sync(ask, m) == {s, third}, "both are in sync")  # type: ignore[misc]
        done = run("switchover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", slave, "--yes")
        assert done.exit_code == 0, done.output
        assert f"{' and '.join(sorted([master, third]))} follow {slave}." in done.stdout
        assert "refused" not in done.output
    wait_until(lambda: in_sync(ask, pair.master_addr) == {pair.slave_addr, third}, "both are in sync")
    for name, process in pair.processes.items():
        loud = [line for line in process.output().splitlines() if " WARNING " in line or " ERROR " in line]
        assert [line for line in loud if "refused" in line or "link to master lost" in line] == [], name
    history = typed(pair, "history", "-b", "broker-a")
    assert [(row["epoch"], row["empty"]) for row in history] == [(1, False), (1000, True), (2000, False)]
    assert history[1]["masterAddr"] == pair.slave_addr


def test_a_frozen_slave_is_stopped_first_and_a_dead_master_was_seen_when_it_was_heard_last(
    make_pair: MakePair, admin: Ask
) -> None:
    """Both slaves have one brokerId; nothing is written while the second is the master."""
    pair = make_pair("SYNC_MASTER", haSendHeartbeatInterval="3000")  # else it is let go of at once
    ask = admin(pair)
    third = start_three(pair, ask, third_id=1)
    status = run("haStatus", "-n", pair.namesrv_addr).stdout
    first, second = sorted([pair.slave_addr, third])
    assert f"broker-a: {first} and {second} have the same brokerId=1" in status
    forget = ("forget", "-n", pair.namesrv_addr, "-b", "broker-a", "--replica", third, "--yes")
    with frozen(pair.processes[THIRD].popen):
        refused = run(*forget)
        pair.processes[THIRD].kill()
    assert refused.exit_code == 1
    assert f"still holds a connection to {pair.master_addr}, and was heard " in refused.stderr
    assert "stop it first, then forget it" in refused.stderr
    wait_until(lambda: third not in in_sync(ask, pair.master_addr), "the master has let go of it")
    assert run(*forget).exit_code == 0
    wait_until(lambda: in_sync(ask, pair.master_addr) == {pair.slave_addr}, "the slave has the list")
    for addr in (pair.slave_addr, pair.master_addr):
        done = typed(pair, "switchover", "-b", "broker-a", "--to", addr, "--yes")
        assert {row["epoch"] for row in done["after"]} == {done["epoch"]}
        other = ({pair.slave_addr, pair.master_addr} - {addr}).pop()
        wait_until(lambda at=addr, of=other: in_sync(ask, at) == {of}, "the other one follows")
    epochs = {row["epoch"]: row["why"] for row in typed(pair, "history", "-b", "broker-a")}
    assert epochs[1000].endswith("nothing was written in it")
    before_ms = wall_clock_ms()
    send_ok(pair.master_addr, numbered(0, 20))
    wait_caught_up(pair, ask)
    kill(pair, "broker-a")
    done = typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    seen = {row["brokerAddr"]: row["lastSeenMs"] for row in done["before"]}
    assert seen[pair.master_addr] >= before_ms
