"""The walks of docs/operations.md that go by command, with real processes, as an operator types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from haservice.devtools.pair import ScratchPair
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import CreateTopicHeader, TopicHeader
from tests.admin.asking import run
from tests.cluster.support import (
    QUEUES,
    TOPIC,
    Ask,
    MakePair,
    assert_equal_logs,
    follows,
    knows_topic,
    log_end,
    numbered,
    read,
    send_ok,
    start_with_topic,
    wait_caught_up,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def typed(pair: ScratchPair, *arguments: str, exit_code: int = 0) -> Any:
    """What the command prints as JSON."""
    result = run(arguments[0], "-n", pair.namesrv_addr, *arguments[1:], "-f", "json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def epochs(pair: ScratchPair) -> list[tuple[int, str, str]]:
    return [(row["epoch"], row["masterAddr"], row["why"]) for row in typed(pair, "history", "-b", "broker-a")]


def test_a_planned_switchover_and_back(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 200))
    there = typed(pair, "switchover", "-b", "broker-a", "--yes")
    assert (there["newMaster"], there["epoch"], there["complete"]) == (pair.slave_addr, 1000, True)
    roles = {row["brokerAddr"]: (row["role"], row["roleFrom"]) for row in there["after"]}
    assert roles == {pair.slave_addr: ("SYNC_MASTER", "command"), pair.master_addr: ("SLAVE", "command")}
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    send_ok(pair.slave_addr, numbered(200, 300))
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")

    back = typed(pair, "switchover", "-b", "broker-a", "--to", pair.master_addr, "--yes")
    assert (back["newMaster"], back["epoch"]) == (pair.master_addr, 2000)
    wait_caught_up(pair, ask)
    assert {row["roleFrom"] for row in typed(pair, "haStatus")} == {"file"}
    assert "by command" not in run("haStatus", "-n", pair.namesrv_addr).stdout
    assert [(number, addr) for number, addr, _ in epochs(pair)] == [
        (1, pair.master_addr),
        (1000, pair.slave_addr),
        (2000, pair.master_addr),
    ]
    assert read(ask, pair.master_addr) == read(ask, pair.slave_addr) == numbered(0, 300)
    status = typed(pair, "haStatus")
    assert {row["epoch"] for row in status} == {2000}
    (link,) = [row for row in status if row["role"] == "SYNC_MASTER"]
    assert (link["peerBrokerAddr"], link["inSync"]) == (pair.slave_addr, True)


def test_a_failover_after_a_death_and_the_old_master_comes_back(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 200))
    refused = run(
        "failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes", "--force"
    )
    assert refused.exit_code == 1
    assert "mqadmin switchover" in refused.output

    pair.processes["broker-a"].kill()
    done = typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert (done["newMaster"], done["epoch"], done["lostBytes"], done["complete"]) == (
        pair.slave_addr,
        1000,
        0,
        True,
    )
    (data,) = ask.route(TOPIC).broker_datas
    assert data.broker_addrs == {0: pair.slave_addr}

    pair.start_master()
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    send_ok(pair.slave_addr, numbered(200, 300))
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    assert read(ask, pair.slave_addr) == read(ask, pair.master_addr) == numbered(0, 300)
    assert_equal_logs(pair, ask, pair.slave_addr)
    assert [number for number, _, _ in epochs(pair)] == [1, 1000]


def test_a_master_that_denies_the_tool_is_not_deposed(
    make_pair: MakePair, admin: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    rules = tmp_path / "plain_acl.yml"
    rules.write_text("accounts:\n- accessKey: the-keeper\n  secretKey: 12345678\n  admin: true\n")
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: the-keeper\nsecretKey: 12345678\n")
    assert pair.processes["broker-a"].stop() == 0
    pair.start_master(aclEnable="true", aclFile=str(rules))
    command = ("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    for force in ((), ("--force",)):
        refused = run(*command, *force)
        assert refused.exit_code == 1
        assert f"{pair.master_addr}: lives, but answered code 1" in refused.stderr
        assert "tools.yml" in refused.stderr
    denied = run("switchover", "-n", pair.namesrv_addr, "-b", "broker-a", "--yes")
    assert denied.exit_code == 1
    assert "tools.yml" in denied.stderr
    monkeypatch.setenv("MQADMIN_TOOLS_YML", str(keys))
    refused = run(*command, "--force")
    assert refused.exit_code == 1
    assert "alive and well" in refused.stderr
    assert [number for number, _, _ in epochs(pair)] == [1]


def test_a_failover_to_a_slave_that_heard_nothing_of_the_master_wants_force(
    make_pair: MakePair, admin: Ask
) -> None:
    """It was away when the master went on, and died."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_caught_up(pair, ask)
    pair.processes["broker-a-s"].kill()
    send_ok(pair.master_addr, numbered(100, 150))
    pair.processes["broker-a"].kill()
    pair.start_slave()
    command = ("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    refused = run(*command)
    assert refused.exit_code == 1
    assert "--force" in refused.output
    done = typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes", "--force")
    assert (done["lostBytes"], done["epoch"], done["complete"]) == (None, 1000, True)
    pair.start_master()
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    assert read(ask, pair.master_addr) == numbered(0, 100)
    assert any((pair.store("broker-a") / "cut").iterdir())


def test_a_slave_that_was_started_again_knows_only_by_its_own_records_how_far_its_sync_master_was(
    make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_caught_up(pair, ask)
    pair.processes["broker-a"].kill()
    assert pair.processes["broker-a-s"].stop() == 0
    pair.start_slave()
    refused = run("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert refused.exit_code == 1
    assert "if its store was put back from an older copy" in refused.output
    done = typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes", "--force")
    assert (done["lostBytes"], done["lostBytesExact"], done["complete"]) == (0, False, True)
    assert read(ask, pair.slave_addr) == numbered(0, 100)


def test_a_nameserver_knows_of_an_epoch_that_nobody_else_has_heard_of(
    make_pair: MakePair, admin: Ask
) -> None:
    """The slave was away when its master began it."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_caught_up(pair, ask)
    typed(pair, "switchover", "-b", "broker-a", "--yes")
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    pair.processes["broker-a"].kill()
    again = run("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert "already" in again.output
    pair.processes["broker-a-s"].kill()
    shutil.rmtree(pair.store("broker-a") / "lineage")
    pair.start_master()
    command = ("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.master_addr, "--yes")
    refused = run(*command)
    assert refused.exit_code == 1
    assert f"the nameserver knows of epoch 1000, of {pair.slave_addr}" in refused.stderr
    # It does not step down on a nameserver's word; whoever knows that the other one is lost says so.
    done = typed(pair, *command[:1], *command[3:], "--force")
    assert (done["newMaster"], done["epoch"], done["lostBytes"]) == (pair.master_addr, 2000, None)
    wait_until(
        lambda: ask.route(TOPIC).broker_datas[0].broker_addrs == {0: pair.master_addr}, "it is in the route"
    )


@pytest.mark.parametrize("discard", [False, True])
def test_a_slave_is_built_anew(make_pair: MakePair, admin: Ask, discard: bool) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 300))
    wait_caught_up(pair, ask)
    refused = run("reinit", "-b", pair.master_addr, "--yes")
    assert refused.exit_code == 1
    arguments = ("--discard",) if discard else ()
    result = run("reinit", "-b", pair.slave_addr, *arguments, "--yes", "-f", "json")
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert (done["complete"], done["kept"], done["logEnd"]) == (
        True,
        not discard,
        log_end(ask, pair.master_addr),
    )
    wait_caught_up(pair, ask)
    assert_equal_logs(pair, ask, pair.master_addr)
    assert bool(list((pair.store("broker-a-s") / "cut").glob("reinit-*"))) is not discard
    store = str(pair.store("broker-a-s"))
    kept = json.loads(run("listCut", store, "-f", "json").stdout)
    assert [(row["messages"], row["offset"]) for row in kept] == ([] if discard else [(300, 0)])
    assert run("removeCut", store, "--all", "--yes").exit_code == 0  # the broker runs on
    assert run("listCut", store, "-f", "json").stdout == "[]\n"
    pair.processes["broker-a"].kill()
    refused = run("reinit", "-b", pair.slave_addr, "--yes")
    assert refused.exit_code == 1
    assert "may be all there is" in refused.output


def test_a_slave_with_the_only_sound_copy_does_not_give_it_up(make_pair: MakePair, admin: Ask) -> None:
    """The master's copy has rotted below the tail, and nobody has read it since."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    bodies = [b"%d" % number + b"." * 4000 for number in range(60)]
    send_ok(pair.master_addr, bodies)
    wait_caught_up(pair, ask)
    first = sorted((pair.store("broker-a") / "commitlog").iterdir())[0]
    at = first.read_bytes().index(bodies[7])
    with first.open("r+b") as file:
        file.seek(at)
        file.write(b"8")
    refused = run("reinit", "-b", pair.slave_addr, "--discard", "--yes")
    assert refused.exit_code == 1
    assert "the log of the master" in refused.output
    assert "let both run" in refused.output
    wait_until(lambda: first.read_bytes()[at : at + 1] == b"7", "the master has its byte back")
    wait_until(lambda: not ask.runtime_info(pair.master_addr)["damagedRanges"], "it is sound again")
    assert typed(pair, "reinit", "-b", pair.slave_addr, "--discard", "--yes")["complete"]
    wait_caught_up(pair, ask)
    assert sorted(read(ask, pair.slave_addr)) == sorted(bodies)
    assert_equal_logs(pair, ask, pair.master_addr)


def role_at(ask: Any, addr: str) -> str:
    return str(ask.runtime_info(addr)["brokerRole"])


def unlike_file(pair: ScratchPair) -> list[str]:
    """What `check` says of a role that differs from a properties file."""
    lines = run("check", "-n", pair.namesrv_addr, "-b", "broker-a").stdout.splitlines()
    return [line for line in lines if "ROLE UNLIKE FILE" in line]


def test_a_master_becomes_a_sync_master_and_back_at_once_whoever_takes_over(
    make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    assert not unlike_file(pair)
    done = typed(pair, "switchover", "-b", "broker-a", "--role", "SYNC_MASTER", "--yes")
    assert (done["master"], done["role"], done["complete"]) == (pair.master_addr, "SYNC_MASTER", True)
    assert role_at(ask, pair.master_addr) == "SYNC_MASTER"
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "the slave follows")
    send_ok(pair.master_addr, numbered(100, 200))
    (said,) = unlike_file(pair)
    assert "brokerRole=ASYNC_MASTER" in said
    again = run("switchover", "-n", pair.namesrv_addr, "-b", "broker-a", "--role", "SYNC_MASTER", "--yes")
    assert (again.exit_code, "is SYNC_MASTER already" in again.stderr) == (1, True)

    pair.processes["broker-a"].kill()
    typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert role_at(ask, pair.slave_addr) == "SYNC_MASTER"
    pair.start_master()
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    send_ok(pair.slave_addr, numbered(200, 300))
    (said,) = unlike_file(pair)
    advice = said.partition("mqadmin ")[2].partition(" makes it")[0].split()
    assert advice == ["switchover", "-b", "broker-a", "--role", "ASYNC_MASTER"]
    done = run(advice[0], "-n", pair.namesrv_addr, *advice[1:], "--yes")
    assert (done.exit_code, "write brokerRole" in done.output) == (0, False)  # the file says so already
    assert role_at(ask, pair.slave_addr) == "ASYNC_MASTER"
    assert not unlike_file(pair)
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    assert read(ask, pair.slave_addr) == read(ask, pair.master_addr) == numbered(0, 300)


def test_a_sync_master_whose_slave_is_lost_becomes_an_async_master_as_its_refusal_says(
    make_pair: MakePair, admin: Ask
) -> None:
    """The slave would believe that a SYNC_MASTER answered what no slave has, and take over without --force."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    pair.processes["broker-a-s"].kill()
    command = ("switchover", "-b", "broker-a", "--role", "ASYNC_MASTER", "--yes")
    refused = run(command[0], "-n", pair.namesrv_addr, *command[1:])
    assert refused.exit_code == 1
    assert role_at(ask, pair.master_addr) == "SYNC_MASTER"
    advice = refused.stderr.partition("is lost for good: mqadmin ")[2].splitlines()[0].split()
    assert advice[0] == "forget"
    typed(pair, *advice, "--yes")
    typed(pair, *command)
    assert role_at(ask, pair.master_addr) == "ASYNC_MASTER"
    send_ok(pair.master_addr, numbered(100, 200))
    pair.start_slave()
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "the slave follows again")
    assert read(ask, pair.slave_addr) == numbered(0, 200)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_nobody_knows_what_an_async_master_acknowledged_last(
    end: str, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_caught_up(pair, ask)
    getattr(pair.processes["broker-a"], end)()
    command = ("failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    refused = run(command[0], "-n", pair.namesrv_addr, *command[1:])
    assert refused.exit_code == 1
    assert "refused: the last master was an ASYNC_MASTER" in refused.stderr
    assert f"start {pair.master_addr}, the last master, again" in refused.stderr
    if end == "kill":
        assert typed(pair, *command, "--force")["newMaster"] == pair.slave_addr
        assert role_at(ask, pair.slave_addr) == "ASYNC_MASTER"
    else:  # as the refusal says
        pair.start_master()
        wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "the slave follows again")
        done = typed(pair, "switchover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
        assert done["newMaster"] == pair.slave_addr
    assert read(ask, pair.slave_addr) == numbered(0, 100)


def test_a_topic_that_was_deleted_a_moment_before_its_master_died_stays_deleted(
    make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 50))
    wait_caught_up(pair, ask)
    ask.tell(pair.master_addr, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(TOPIC))
    pair.processes["broker-a"].kill()
    typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert not knows_topic(ask, pair.slave_addr)
    ask.update_topic(pair.slave_addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    pair.start_master()
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    send_ok(pair.slave_addr, numbered(50, 60))
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    assert read(ask, pair.slave_addr) == read(ask, pair.master_addr) == numbered(50, 60)
