"""Logs that were not mounted, put back from an older copy, or lost who they are: no OK goes with them.

What a broker or a command advises on the way is followed here as it is printed.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from haservice.errors import RemotingError
from haservice.remoting.bodies.clients import TopicConfigWrapper
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import CreateTopicHeader
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
from haservice.replication.lineage.file import LineageFile
from haservice.replication.lineage.own_record import acked_by_slaves
from tests.admin.asking import run
from tests.cluster.advised import commands_in
from tests.cluster.support import (
    TOPIC,
    Ask,
    MakePair,
    assert_equal_logs,
    follows,
    log_end,
    numbered,
    read,
    send,
    send_ok,
    start_with_topic,
    wait_follows,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def lineage(ask: MQAdmin, addr: str) -> LineageBody:
    return ask.ask(addr, RequestCode.GET_LINEAGE, into=LineageBody)


def held(ask: MQAdmin, addr: str) -> str:
    """Why the broker refuses writes; "" if it takes them, or is not there."""
    try:
        return lineage(ask, addr).held
    except RemotingError:
        return ""


def wait_takes_writes(ask: MQAdmin, addr: str) -> None:
    def takes() -> bool:
        try:
            found = lineage(ask, addr)
        except RemotingError:
            return False
        return found.is_master and not found.held

    wait_until(takes, f"{addr} takes writes")


def assert_refuses(addr: str) -> None:
    (refused,) = send(addr, [b"too early"])
    assert refused.status == "SERVICE_NOT_AVAILABLE"


def pair_with(make_pair: MakePair, admin: Ask, role: str) -> tuple[ScratchPair, MQAdmin]:
    """A pair that has taken 200 messages, level."""
    pair = make_pair(role)
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 200))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    return pair, ask


def advised(pair: ScratchPair, text: str, **places: str) -> tuple[str, ...]:
    """The last mqadmin command that the text names, as arguments; `places` replaces what stands for an address."""
    command = re.findall(r"mqadmin ((?:failover|reinit|switchover)(?: -{1,2}\w+(?: [^ ,;]+)?)*)", text)[-1]
    for name, value in places.items():
        command = command.replace(name, value)
    first, *rest = command.split()
    return (first, "-n", pair.namesrv_addr, *rest, "--yes")


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_a_master_whose_log_was_not_mounted_takes_it_back_from_its_slave(
    make_pair: MakePair, admin: Ask, role: str
) -> None:
    pair, ask = pair_with(make_pair, admin, role)
    assert pair.processes["broker-a"].stop() == 0
    shutil.rmtree(pair.store("broker-a") / "commitlog")
    pair.start_master()
    wait_takes_writes(ask, pair.master_addr)
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    send_ok(pair.master_addr, numbered(200, 250))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert read(ask, pair.master_addr) == read(ask, pair.slave_addr) == numbered(0, 250)
    assert_equal_logs(pair, ask, pair.master_addr)
    assert not (pair.store("broker-a-s") / "cut").exists()


def test_a_master_whose_log_was_not_mounted_refuses_writes_while_its_slave_is_away(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    pair, ask = pair_with(make_pair, admin, "ASYNC_MASTER")
    end = log_end(ask, pair.master_addr)
    for name in ("broker-a-s", "broker-a"):
        assert pair.processes[name].stop() == 0
    disk = pair.store("broker-a") / "commitlog"
    disk.rename(tmp_path / "unmounted")
    for _ in range(2):  # a clean stop does not make it forget
        pair.start_master()
        why = held(ask, pair.master_addr)
        assert str(disk) in why
        assert f"{end} of epoch 1" in why
        assert_refuses(pair.master_addr)
        assert pair.processes["broker-a"].stop() == 0
    # The disk is mounted, as the text says: all is there.
    shutil.rmtree(disk)
    (tmp_path / "unmounted").rename(disk)
    pair.start_master()
    wait_takes_writes(ask, pair.master_addr)
    send_ok(pair.master_addr, numbered(200, 210))
    pair.start_slave()
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert read(ask, pair.slave_addr) == numbered(0, 210)


def test_a_master_without_its_log_goes_on_only_by_force_and_says_what_is_lost(
    make_pair: MakePair, admin: Ask
) -> None:
    pair, ask = pair_with(make_pair, admin, "ASYNC_MASTER")
    end = log_end(ask, pair.master_addr)
    for name in ("broker-a-s", "broker-a"):
        assert pair.processes[name].stop() == 0
    shutil.rmtree(pair.store("broker-a") / "commitlog")
    pair.start_master()
    refused = run("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.master_addr, "--yes")
    assert refused.exit_code == 1
    assert f"had acknowledged up to {end} of epoch 1" in refused.output
    header = PromoteHeader(min_epoch=1000, why="without --force")
    with pytest.raises(RemotingError, match="--force does it all the same"):
        ask.ask(pair.master_addr, RequestCode.PROMOTE, header, into=LineageBody, timeout_s=30.0)
    done = run(*advised(pair, held(ask, pair.master_addr)))
    assert done.exit_code == 0, done.output
    wait_takes_writes(ask, pair.master_addr)


def test_a_slave_with_the_only_full_copy_becomes_the_master_by_the_advice_of_a_master_without_its_log(
    make_pair: MakePair, admin: Ask
) -> None:
    """The master cannot take it back: its slave's log no longer begins at 0."""
    pair = make_pair("SYNC_MASTER", mappedFileSizeCommitLog="16384", maxMessageSize="8192")
    ask = admin(pair)
    start_with_topic(pair, ask)
    bodies = [b"%06d" % number + b"." * 1000 for number in range(60)]
    send_ok(pair.master_addr, bodies)
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    end = log_end(ask, pair.master_addr)
    assert pair.processes["broker-a-s"].stop() == 0
    assert pair.processes["broker-a"].stop() == 0
    min((pair.store("broker-a-s") / "commitlog").iterdir()).unlink()  # as retention does
    shutil.rmtree(pair.store("broker-a") / "commitlog")
    pair.start_master()
    pair.start_slave()
    wait_until(lambda: bool(held(ask, pair.master_addr)), "the master refuses writes")
    status = ask.ha_status(pair.slave_addr)
    assert status is not None
    assert status.ha_client_runtime_info is not None
    assert "reinit" not in (status.ha_client_runtime_info.last_error or "")
    to_another = held(ask, pair.master_addr).partition("if they are lost for good")[0]
    done = run(*advised(pair, to_another, ADDR=pair.slave_addr))
    assert done.exit_code == 0, done.output
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    assert log_end(ask, pair.master_addr) == log_end(ask, pair.slave_addr) == end


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_a_master_that_was_put_back_from_an_older_copy_takes_back_what_its_slave_has(
    make_pair: MakePair, admin: Ask, tmp_path: Path, role: str, is_clean: bool
) -> None:
    pair, ask = pair_with(make_pair, admin, role)
    master = pair.processes["broker-a"]
    assert master.stop() == 0 if is_clean else master.kill() is None
    shutil.copytree(pair.store("broker-a"), tmp_path / "snapshot")
    pair.start_master()
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    send_ok(pair.master_addr, numbered(200, 700))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    pair.processes["broker-a"].kill()
    put_back(tmp_path / "snapshot", pair.store("broker-a"), same_boot=is_clean)
    pair.start_master()
    wait_takes_writes(ask, pair.master_addr)
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert read(ask, pair.master_addr) == read(ask, pair.slave_addr) == numbered(0, 700)
    assert not (pair.store("broker-a-s") / "cut").exists()


def put_back(copy: Path, store: Path, *, same_boot: bool = True) -> None:
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    if not same_boot:
        LineageFile(store).update(boot_id="another boot")


def test_a_master_whose_copy_is_older_than_its_epoch_gives_way_to_the_slave_that_has_it(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    pair, ask = pair_with(make_pair, admin, "ASYNC_MASTER")
    assert pair.processes["broker-a"].stop() == 0
    shutil.copytree(pair.store("broker-a"), tmp_path / "snapshot")
    pair.start_master()
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    header = PromoteHeader(min_epoch=1000, why="by hand")
    ask.ask(pair.master_addr, RequestCode.PROMOTE, header, into=LineageBody, timeout_s=30.0)
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    send_ok(pair.master_addr, numbered(200, 700))
    ask.update_topic(pair.master_addr, CreateTopicHeader("Later", "TBW102", 2, 2, 6))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    wait_until(lambda: knows(ask, pair.slave_addr, "Later"), "the slave has the topic")
    assert pair.processes["broker-a"].stop() == 0
    put_back(tmp_path / "snapshot", pair.store("broker-a"))
    pair.start_master()
    why = held(ask, pair.master_addr)
    assert f"by what {pair.slave_addr} remembers" in why
    assert_refuses(pair.master_addr)
    wait_until(lambda: "newer epoch" in link_error(ask, pair.slave_addr), "the slave refuses it")
    # A start asks for the tables at once: not those of a master whose log is refused.
    assert pair.processes["broker-a-s"].stop() == 0
    pair.start_slave()
    wait_until(lambda: "newer epoch" in link_error(ask, pair.slave_addr), "the slave refuses it")
    assert knows(ask, pair.slave_addr, "Later")
    assert not knows(ask, pair.master_addr, "Later")
    done = run(*advised(pair, why.partition("if they are lost for good")[0], ADDR=pair.slave_addr))
    assert done.exit_code == 0, done.output
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    assert read(ask, pair.slave_addr) == numbered(0, 700)
    assert knows(ask, pair.slave_addr, "Later")
    assert not (pair.store("broker-a-s") / "cut").exists()


def knows(ask: MQAdmin, addr: str, topic: str) -> bool:
    answer = ask.ask(addr, RequestCode.GET_ALL_TOPIC_CONFIG, into=TopicConfigWrapper)
    return topic in answer.topic_config_table


def link_error(ask: MQAdmin, addr: str) -> str:
    status = ask.ha_status(addr)
    client = status.ha_client_runtime_info if status is not None else None
    return (client.last_error or "") if client is not None else ""


def test_a_slave_that_was_put_back_while_its_master_is_away_takes_over_only_by_force_and_the_loss_stays_visible(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    """Nobody that answers knows what it had acknowledged; once the old master is back, `check` tells what was cut."""
    pair, ask = pair_with(make_pair, admin, "SYNC_MASTER")
    slave, store = pair.processes["broker-a-s"], pair.store("broker-a-s")
    assert slave.stop() == 0
    shutil.copytree(store, tmp_path / "snapshot")
    pair.start_slave()
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    begin = log_end(ask, pair.slave_addr)
    send_ok(pair.master_addr, numbered(200, 500))
    end = log_end(ask, pair.slave_addr)
    pair.processes["broker-a-s"].kill()

    def acked_up_to() -> int:
        return acked_by_slaves(LineageFile(pair.store("broker-a")).state)

    wait_until(lambda: acked_up_to() == end, "the master has written down what its slave acknowledged")
    pair.processes["broker-a"].kill()
    put_back(tmp_path / "snapshot", store)
    pair.start_slave()
    command = ("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    refused = run(*command)
    assert refused.exit_code == 1
    assert "if its store was put back from an older copy, nobody that answers knows" in refused.output
    assert f"start {pair.master_addr}, the last master, again" in refused.output
    done = run(*command, "--force")
    assert done.exit_code == 0, done.output
    pair.start_master()
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")

    def check() -> str:
        return run("check", "-n", pair.namesrv_addr).stdout

    def told() -> None:
        said = check()
        assert f"ACKNOWLEDGED MESSAGES WERE CUT, {pair.master_addr}: it cut from {begin} to {end}" in said
        assert said.startswith("CRITICAL")
        status = run("haStatus", "-n", pair.namesrv_addr).output
        assert f"has lost acknowledged messages: it cut from {begin} to {end}" in status

    told()
    assert pair.processes["broker-a"].stop() == 0
    pair.start_master()
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    told()
    show, remove = [words for _, words in commands_in(check()) if words[0] in ("dumpLog", "removeCut")]
    shown = run(*show)
    assert (shown.exit_code, shown.output.count(TOPIC)) == (0, 300)
    assert run(*remove, "--yes").exit_code == 0
    wait_until(lambda: check().startswith("OK"), "all is well")


def test_a_master_that_was_put_back_to_before_its_slave_came_cuts_nothing_before_an_operator_says_so(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    """By the copy nobody followed in its epoch, so it begins the next one alone while its slave is down."""
    pair, ask = pair_with(make_pair, admin, "SYNC_MASTER")
    pair.processes["broker-a"].kill()
    to_slave = ("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    done = run(*to_slave)
    assert done.exit_code == 0, done.output
    wait_takes_writes(ask, pair.slave_addr)
    shutil.copytree(pair.store("broker-a-s"), tmp_path / "snapshot")
    pair.start_master()
    wait_follows(ask, pair.slave_addr, pair.master_addr)
    send_ok(pair.slave_addr, numbered(200, 250))
    wait_follows(ask, pair.slave_addr, pair.master_addr)
    for name in ("broker-a", "broker-a-s"):
        pair.processes[name].kill()
    put_back(tmp_path / "snapshot", pair.store("broker-a-s"), same_boot=False)
    pair.start_slave()
    wait_takes_writes(ask, pair.slave_addr)
    assert lineage(ask, pair.slave_addr).epoch == 1001
    pair.start_master()
    wait_until(
        lambda: f"{pair.master_addr} remembers" in held(ask, pair.slave_addr),
        "the master knows what it lacks",
    )
    assert_refuses(pair.slave_addr)
    assert read(ask, pair.master_addr) == numbered(0, 250)
    why = held(ask, pair.slave_addr).partition("if they are lost for good")[0]
    to_holder = advised(pair, why, ADDR=pair.master_addr)
    done = run(*to_holder)
    assert done.exit_code == 0, done.output
    wait_until(
        lambda: follows(ask, pair.master_addr, pair.slave_addr), "the master that was put back follows"
    )
    assert read(ask, pair.slave_addr) == read(ask, pair.master_addr) == numbered(0, 250)


def test_a_master_that_forgot_who_it_is_takes_no_writes_before_an_operator_names_it(
    make_pair: MakePair, admin: Ask
) -> None:
    pair, ask = pair_with(make_pair, admin, "ASYNC_MASTER")
    for name in ("broker-a-s", "broker-a"):
        assert pair.processes[name].stop() == 0
    for path in (pair.store("broker-a") / "lineage").glob("state.json*"):
        path.unlink()
    for _ in range(2):
        pair.start_master()
        why = held(ask, pair.master_addr)
        assert "its own record of votes and epochs is missing" in why
        assert_refuses(pair.master_addr)
        assert pair.processes["broker-a"].stop() == 0
    pair.start_master()
    pair.start_slave()
    refused = run(*advised(pair, held(ask, pair.master_addr)))
    assert refused.exit_code == 1
    assert "--force" in refused.output
    slave = ("failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    refused = run(*slave)
    assert "loses no known message" in refused.output  # of an ASYNC_MASTER nobody knows more
    done = run(*slave, "--force")
    assert done.exit_code == 0, done.output


def test_a_slave_whose_log_its_master_cannot_compare_names_the_exact_loss_before_it_is_emptied(
    make_pair: MakePair, admin: Ask
) -> None:
    """The master was forced to begin without its log, so the slave has the only copy of 200 messages."""
    pair, ask = pair_with(make_pair, admin, "ASYNC_MASTER")
    end = log_end(ask, pair.slave_addr)
    for name in ("broker-a-s", "broker-a"):
        assert pair.processes[name].stop() == 0
    for path in (pair.store("broker-a") / "commitlog", pair.store("broker-a") / "lineage"):
        shutil.rmtree(path)
    shutil.rmtree(pair.store("broker-a") / "consumequeue")
    pair.start_master()
    send_ok(pair.master_addr, numbered(500, 510))
    pair.start_slave()
    reinit = ("reinit", "-n", pair.namesrv_addr, "-b", pair.slave_addr, "--discard", "--yes")
    refused = run(*reinit)
    assert refused.exit_code == 1
    assert f"--lose {end}" in refused.output
    assert run(*reinit, "--lose", str(end - 1)).exit_code == 1
    assert log_end(ask, pair.slave_addr) == end
    done = run(*reinit, "--lose", str(end))
    assert done.exit_code == 0, done.output
    wait_follows(ask, pair.master_addr, pair.slave_addr)


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_a_slave_whose_log_is_to_stay_becomes_the_master_by_the_advice_of_its_refusal(
    make_pair: MakePair, admin: Ask, role: str
) -> None:
    """The master began without its log, and perhaps took messages that nobody else has: somebody decides."""
    pair, ask = pair_with(make_pair, admin, role)
    for name in ("broker-a-s", "broker-a"):
        assert pair.processes[name].stop() == 0
    for part in ("commitlog", "consumequeue", "lineage"):
        shutil.rmtree(pair.store("broker-a") / part)
    pair.start_master()
    if role == "ASYNC_MASTER":
        send_ok(pair.master_addr, numbered(500, 510))
    pair.start_slave()
    keep = "to keep this slave's log, stop the master"
    wait_until(lambda: keep in link_error(ask, pair.slave_addr), "the slave refuses it")
    said = run("check", "-n", pair.namesrv_addr).stdout
    assert keep in said
    assert f"--to {pair.master_addr}" not in said  # a further epoch of the master is no help
    assert pair.processes["broker-a"].stop() == 0
    command = advised(pair, said)
    done = run(*command)
    if done.exit_code and "--force does it all the same" in done.output:
        done = run(*command, "--force")
    assert done.exit_code == 0, done.output
    if role == "ASYNC_MASTER":
        # It still has its own log, and takes the new master for a stranger.
        pair.start_master()
        help = "stop the one whose log is not to stay, move its store aside, and start it again"
        wait_until(lambda: help in run("check", "-n", pair.namesrv_addr).stdout, "check says how to go on")
        assert pair.processes["broker-a"].stop() == 0
    pair.store("broker-a").rename(pair.root / "aside")
    pair.start_master()
    wait_follows(ask, pair.slave_addr, pair.master_addr)
    wait_until(lambda: run("check", "-n", pair.namesrv_addr).stdout.startswith("OK"), "all is well")
    assert read(ask, pair.slave_addr) == read(ask, pair.master_addr) == numbered(0, 200)


def test_two_stores_with_one_identity_part_by_the_advice_of_the_refusal(
    make_pair: MakePair, admin: Ask
) -> None:
    """The slave began with a copy of its master's store while the master was down."""
    pair, ask = pair_with(make_pair, admin, "ASYNC_MASTER")
    for name in ("broker-a-s", "broker-a"):
        assert pair.processes[name].stop() == 0
    put_back(pair.store("broker-a"), pair.store("broker-a-s"))
    pair.start_slave()
    pair.start_master()

    def why_refused() -> str:
        status = ask.ha_status(pair.slave_addr)
        info = status.ha_client_runtime_info if status is not None else None
        return (info.last_error if info is not None else None) or ""

    wait_until(lambda: "same replica id" in why_refused(), "the two see that they have one id")
    assert "restart the slave while the master runs" in why_refused()
    assert pair.processes["broker-a-s"].stop() == 0
    pair.start_slave()
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert read(ask, pair.slave_addr) == numbered(0, 200)
