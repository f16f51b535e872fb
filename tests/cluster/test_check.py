"""`mqadmin check` beside a real pair: its exit code and its line through deaths, lag and damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from haservice.devtools.pair import ScratchPair, free_port_block
from tests.admin.asking import run
from tests.cluster.support import (
    Ask,
    MakePair,
    numbered,
    send,
    send_ok,
    start_master_with_topic,
    start_with_topic,
    wait_caught_up,
)
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

EXIT = {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}


def check(pair: ScratchPair, *arguments: str) -> Result:
    return run("check", "-n", pair.namesrv_addr, *arguments)


def wait_says(pair: ScratchPair, state: str, text: str, *arguments: str) -> str:
    """Its first line, once it is of that state and has the text; the exit code always fits the state."""
    lines: list[str] = []

    def says() -> bool:
        result = check(pair, *arguments)
        lines.append(result.stdout.splitlines()[0])
        assert result.exit_code == EXIT[lines[-1].partition(" - ")[0]], result.output
        return lines[-1].startswith(f"{state} - broker-a: ") and text in lines[-1]

    try:
        wait_until(says, f"{state}: {text}")
    except AssertionError as error:
        raise AssertionError(f"{error}; last: {lines[-1:]}") from None
    return lines[-1]


def test_a_killed_master_is_critical_in_every_command(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    start_with_topic(pair, admin(pair))
    send_ok(pair.master_addr, numbered(0, 50))
    good = wait_says(pair, "OK", f"{pair.master_addr} accepts writes, 1 slave in sync")
    assert "| broker-a.slaves_in_sync=1;;;0;1 broker-a.lag_bytes=" in good
    for command in ("haStatus", "clusterList"):
        shown = run(command, "-n", pair.namesrv_addr)
        assert shown.stdout.startswith("broker-a: OK, "), shown.output
        assert shown.exit_code == 0

    pair.processes["broker-a"].kill()
    said = wait_says(pair, "CRITICAL", "NO MASTER, sends fail since ")
    assert f"{pair.slave_addr} can be read; {pair.master_addr}: " in said
    for command in ("haStatus", "clusterList"):
        shown = run(command, "-n", pair.namesrv_addr)
        assert shown.stdout.startswith("broker-a: NO MASTER, sends fail since "), shown.output
        assert shown.exit_code == 1
        # The nameserver has dropped it; its slave's replica list keeps it.
        assert pair.master_addr in shown.stdout.partition("\n")[2]
        rows = json.loads(run(command, "-n", pair.namesrv_addr, "-f", "json").stdout)
        assert {row["verdict"] for row in rows} == {"CRITICAL"}
    assert run("check", "-b", pair.slave_addr).exit_code == 2

    pair.processes["broker-a-s"].kill()
    wait_until(lambda: "NOT REGISTERED" in check(pair).stdout, "the nameserver has dropped both")
    assert check(pair).exit_code == 2
    assert "no broker name broker-a is registered at" in wait_says(
        pair, "CRITICAL", "NOT REGISTERED", "-b", "broker-a"
    )
    pair.processes["namesrv"].kill()
    silent = check(pair)
    assert (silent.exit_code, silent.stdout.startswith(f"UNKNOWN - {pair.namesrv_addr}: ")) == (3, True)


def test_a_master_that_stands_still_is_unknown_first_and_then_critical(
    make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("ASYNC_MASTER", haHousekeepingInterval="3000")
    start_with_topic(pair, admin(pair))
    wait_says(pair, "OK", "accepts writes")
    with frozen(pair.processes["broker-a"].popen):
        said = check(pair, "--timeout", "0.5", "-f", "json")
        assert json.loads(said.stdout)["state"] in ("UNKNOWN", "CRITICAL")
        wait_says(pair, "CRITICAL", "NO MASTER", "--timeout", "0.5")
    wait_says(pair, "OK", "accepts writes")


@pytest.mark.parametrize(("role", "state"), [("SYNC_MASTER", "CRITICAL"), ("ASYNC_MASTER", "WARNING")])
def test_a_slave_that_is_away_matters_as_much_as_sends_need_it(
    make_pair: MakePair, admin: Ask, role: str, state: str
) -> None:
    pair = make_pair(role)
    start_with_topic(pair, admin(pair))
    wait_says(pair, "OK", "1 slave in sync")
    pair.processes["broker-a-s"].kill()
    said = wait_says(pair, state, f"{pair.slave_addr} is away, last seen ")
    assert ("SLAVE_NOT_AVAILABLE" in said) == (role == "SYNC_MASTER")
    assert run("haStatus", "-n", pair.namesrv_addr).exit_code == 1
    assert {one.status for one in send(pair.master_addr, numbered(0, 2))} == {
        "SLAVE_NOT_AVAILABLE" if role == "SYNC_MASTER" else "SEND_OK"
    }
    pair.start_slave()
    wait_says(pair, "OK", "1 slave in sync")


def test_a_slave_that_lags_is_told_by_the_limits_that_the_user_gives(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("ASYNC_MASTER", haSendHeartbeatInterval="5000")  # else the master lets go of it at once
    start_with_topic(pair, admin(pair))
    limits = ("--lag-warning", "0.2", "--lag-critical", "2", "--timeout", "0.3")
    wait_says(pair, "OK", "1 slave in sync", *limits)
    with frozen(pair.processes["broker-a-s"].popen):
        send_ok(pair.master_addr, numbered(0, 50))
        warned = wait_says(pair, "WARNING", f"SLAVE LAGS, {pair.slave_addr} is ", *limits)
        assert "SLAVE DOES NOT ANSWER" in warned
        wait_says(pair, "CRITICAL", "SLAVE LAGS", *limits)
    wait_says(pair, "OK", "1 slave in sync", *limits)


def test_a_slave_with_another_log_is_told_with_the_reason(make_pair: MakePair, admin: Ask) -> None:
    """Each began as a master of its own: their epochs have nothing in common."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_master_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 20))
    alone = pair.start_broker("broker-a-s", brokerRole="ASYNC_MASTER", brokerId="0", namesrvAddr="")
    send_ok(pair.slave_addr, numbered(100, 140))
    assert alone.stop() == 0
    pair.start_slave()
    begin = f"{pair.slave_addr} runs and does not follow: "

    def has_reason() -> bool:
        """Before the slave was refused it is just not connected."""
        said = wait_says(pair, "WARNING", begin)
        return "epoch" in said or "log" in said

    wait_until(has_reason, "the reason is told")
    assert "SLAVE NOT IN SYNC" in run("haStatus", "-n", pair.namesrv_addr).stdout.splitlines()[0]


def test_a_damaged_log_is_told(make_pair: MakePair, admin: Ask) -> None:
    """Nobody has the bytes: the slave is away."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    bodies = [b"%d" % number + b"." * 4000 for number in range(20)]
    send_ok(pair.master_addr, bodies)
    wait_caught_up(pair, ask)
    assert pair.processes["broker-a"].stop() == 0
    pair.processes["broker-a-s"].kill()
    rot(pair.store("broker-a"), bodies[7])
    pair.start_master()
    run("consumeMessage", "-n", pair.namesrv_addr, "-t", "Walks")
    said = wait_says(pair, "CRITICAL", f"LOG DAMAGED, {pair.master_addr}: from ")
    assert f"{pair.slave_addr} is away" in said


def rot(store: Path, body: bytes) -> None:
    first = sorted((store / "commitlog").iterdir())[0]
    at = first.read_bytes().index(body)
    with first.open("r+b") as file:
        file.seek(at)
        file.write(b"#")


def test_whatever_keeps_it_from_a_verdict_is_unknown() -> None:
    nobody = f"127.0.0.1:{free_port_block(1)}"
    for arguments in (
        ("-n", nobody),
        ("-b", nobody),
        (),
        ("--no-such-option",),
        ("-n", nobody, "--slaves", "x"),
        ("-n", "not an address"),
    ):
        result: Any = run("check", *arguments)
        assert result.exit_code == 3, (arguments, result.output)
        assert "Traceback" not in result.output
    assert run("check", "-b", nobody).stdout.startswith(f"UNKNOWN - {nobody}: ")
