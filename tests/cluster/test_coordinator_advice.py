"""Advice of a pair with a coordinator is followed: real brokers, a real etcd, and the commands that the texts name.

    a state ──▶ each text that an operator reads in it ──▶ the command that it names ──▶ … ──▶ well, or his decision

In a state all texts name the same way out.  It takes three commands at most, and none twice.  A command that may lose
something, by --force or forget, is for the operator to decide: there the way ends.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from haservice.admin.calls import MQAdmin
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.desk import OperatorDesk
from haservice.devtools.pair import ProcessDied, ScratchPair
from tests.admin.asking import run
from tests.cluster.support import Ask, MakePair, follows, numbered, read, send_ok
from tests.cluster.test_auto_failover import Numbers, may_take_the_lease, role_of, started
from tests.cluster.test_coordinator_commands import all_voters, goes_on, listed, settings_of
from tests.support.coordinators import ETCD_MISSING, Server, etcd
from tests.support.door import Door
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STEPS_MAX = 3
TEXTS = ("check", "haStatus", "haList", "switchover", "failover")
ASKS = ("switchover", "failover", "forget")
LOOKS = ("check", "haStatus", "haList", "history")
BODIES = numbered(0, 200)
_COMMAND = re.compile(r"mqadmin (\w+)((?: --?\w+(?: \w[\w.:-]*\w)?)*)")


@pytest.fixture
def etcd_server(tmp_path: Path) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path) as (server,):
        yield server


def commands_in(text: str) -> list[list[str]]:
    """The commands that a text names, that change something, and that can be typed as they stand."""
    found = []
    for match in _COMMAND.finditer(text):
        words = [match.group(1), *match.group(2).split()]
        for flag in ("--force", "--yes"):
            if flag in words:
                del words[words.index(flag) + 1 :]
        if words[0] not in LOOKS and not any(one.isupper() for one in words):
            found.append(words)
    return found


def is_decision(words: Sequence[str]) -> bool:
    return words[0] == "forget" or "--force" in words


class Operator:
    """Types what the texts name."""

    def __init__(self, pair: ScratchPair, place: str) -> None:
        self._where = ("-n", pair.namesrv_addr)
        self._place = place

    def types(self, words: Sequence[str]) -> tuple[int, str]:
        more = [*self._where]
        if "-b" not in words and words[0] != "check":
            more += ["-b", "broker-a"]
        if words[0] in ASKS:
            more += ["--yes"]
        if words[0] not in ("check", "haStatus"):
            more += ["--coordinator", self._place]
        result = run(*words, *more)
        return result.exit_code, result.output

    def text(self, command: str) -> str:
        return self.types([command])[1]

    def follows(self, text: str) -> list[list[str]]:
        """What it takes until there is a master, or a decision; the last one is not typed if it is a decision."""
        steps: list[list[str]] = []
        while (advised := commands_in(text)) and not self.has_master():
            words = advised[0]
            assert words not in steps, f"a circle: {steps} and {words} again:\n{text}"
            steps.append(words)
            assert len(steps) <= STEPS_MAX, steps
            if is_decision(words):
                break
            exit_code, text = self.types(words)
            assert exit_code == 0 or commands_in(text), f"{words} is refused, and names no way out:\n{text}"
            if exit_code == 0:
                wait_until(self.is_over, f"a master, or a decision, after {words}: {text}")
                text = self.text("haList")
        return steps

    def is_over(self) -> bool:
        return self.has_master() or any(map(is_decision, commands_in(self.text("haList"))[:1]))

    def master(self) -> str | None:
        """None also while nobody is registered: a broker that changes its role is not, for a moment."""
        _, said = self.types(["haList", "-f", "json"])
        found: str | None = json.loads(said)["master"] if said.startswith("{") else None
        return found

    def has_master(self) -> bool:
        return self.types(["haList"])[0] == 0


class Scene(NamedTuple):
    pair: ScratchPair
    ask: MQAdmin
    server: Server
    operator: Operator
    root: Path


def scene(server: Server, make_pair: MakePair, admin: Ask, root: Path, role: str = "SYNC_MASTER") -> Scene:
    """A pair of which both are voters and have all of BODIES."""
    pair = make_pair(role)
    ask, place = admin(pair), f"etcd://127.0.0.1:{server.port}"
    started(pair, ask, place)
    wait_until(Numbers().try_at(pair.master_addr), "the master answers OK")
    send_ok(pair.master_addr, BODIES)
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "the slave has everything")
    wait_until(lambda: all_voters(pair), "the slave is a voter")
    wait_until(lambda: may_take_the_lease(ask, pair.slave_addr), "the slave has been up for a ttl")
    return Scene(pair, ask, server, Operator(pair, place), root)


def is_disbelieved(one: Scene, brokers: int) -> Callable[[], bool]:
    def looked() -> bool:
        found = run("haList", "-n", one.pair.namesrv_addr, "-b", "broker-a").output
        return "No broker believes this coordinator" in found and found.count("\n127.0.0.1:") == brokers

    return looked


def answers_ok(one: Scene) -> bool:
    addr = listed(one.pair)["master"]
    return bool(addr) and Numbers().try_at(addr)()


def check_well(one: Scene) -> None:
    """It answers OK, once both run, and has what it answered OK for."""
    wait_until(lambda: answers_ok(one), "an OK")
    assert set(BODIES) <= set(read(one.ask, listed(one.pair)["master"]))
    wait_until(lambda: one.operator.types(["check"])[0] == 0, "check says OK")


# -- the coordinator emptied, or restored -------------------------------------------------------------


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_coordinator_that_was_emptied_is_mended_by_the_one_command_that_every_text_names(
    text: str, role: str, etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    if role == "ASYNC_MASTER" and text != "check":
        pytest.skip("the texts are those of a SYNC_MASTER")
    one = scene(etcd_server, make_pair, admin, tmp_path, role)
    etcd_server.empty()
    wait_until(is_disbelieved(one, 2), "nobody believes it")
    assert not Numbers().try_at(one.pair.master_addr)(), "nobody goes on by failsafe: it answers"
    if text == "failover":
        assert one.operator.types(["failover"])[0] == 0
    else:
        (step,) = one.operator.follows(one.operator.text(text))
        assert (step[0], "--force" in step) == ("failover", False)
    check_well(one)
    # Once more: it does no harm.
    epoch = listed(one.pair)["epoch"]
    exit_code, said = one.operator.types(["failover"])
    assert (exit_code, listed(one.pair)["epoch"]) == (1, epoch), said
    check_well(one)


def test_emptied_with_the_master_dead_the_slave_that_has_everything_begins_anew(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    one = scene(etcd_server, make_pair, admin, tmp_path)
    settings = settings_of(one.pair)
    one.pair.processes["broker-a"].kill()
    etcd_server.empty()
    wait_until(is_disbelieved(one, 1), "nobody believes it")
    for text in TEXTS[:-1]:
        named = commands_in(one.operator.text(text))
        assert named, text
        assert named[0][0] == "failover", text
    (step,) = one.operator.follows(one.operator.text("haList"))
    assert "--force" not in step
    assert listed(one.pair)["master"] == one.pair.slave_addr
    one.pair.start_master(**settings)
    check_well(one)


def test_emptied_and_a_forced_failover_to_the_old_master_ends_with_a_lease(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    """It ended in a loop: that master served for ever without a lease, and what it answered OK for was lost."""
    one = scene(etcd_server, make_pair, admin, tmp_path, "ASYNC_MASTER")
    etcd_server.empty()
    wait_until(is_disbelieved(one, 2), "nobody believes it")
    exit_code, said = one.operator.types(["failover", "--to", one.pair.master_addr, "--force"])
    assert exit_code == 0, said
    assert listed(one.pair)["master"] == one.pair.master_addr
    check_well(one)
    wait_until(lambda: all_voters(one.pair), "the slave is a voter")
    wait_until(
        lambda: follows(one.ask, one.pair.master_addr, one.pair.slave_addr), "the slave has everything"
    )
    one.pair.processes["broker-a"].kill()
    wait_until(lambda: role_of(one.ask, one.pair.slave_addr) == "ASYNC_MASTER", "the slave takes over")
    assert set(BODIES) <= set(read(one.ask, one.pair.slave_addr))


def test_a_coordinator_put_back_from_a_backup_is_mended_and_nothing_is_lost(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    """In the backup another broker is the master, and its session lives."""
    one = scene(etcd_server, make_pair, admin, tmp_path)
    etcd_server.keep(tmp_path / "backup")
    wait_until(lambda: one.operator.types(["switchover"])[0] == 0, "the slave is the master")
    wait_until(Numbers().try_at(one.pair.slave_addr), "it answers OK")
    late = numbered(200, 400)
    send_ok(one.pair.slave_addr, late)
    wait_until(lambda: follows(one.ask, one.pair.slave_addr, one.pair.master_addr), "the old one follows")
    etcd_server.empty(tmp_path / "backup")
    wait_until(is_disbelieved(one, 2), "nobody believes it")
    wait_until(lambda: listed(one.pair)["master"] is None, "the lease of the backup goes")
    (step,) = one.operator.follows(one.operator.text("check"))
    assert (step[0], "--force" in step) == ("failover", False)
    check_well(one)
    assert set(late) <= set(read(one.ask, listed(one.pair)["master"]))


def test_a_failover_that_was_cut_short_is_done_by_the_same_command_again(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    """Its request names a broker that is gone: it says what it has done and what not, and is asked for anew."""
    one = scene(etcd_server, make_pair, admin, tmp_path)
    settings = settings_of(one.pair)
    etcd_server.empty()
    wait_until(is_disbelieved(one, 2), "nobody believes it")
    with one.pair.processes["broker-a-s"].popen as slave:
        one.pair.processes["broker-a-s"].popen.send_signal(19)
        exit_code, said = one.operator.types(
            ["failover", "--to", one.pair.master_addr, "--force", "--timeout", "1"]
        )
        assert exit_code == 1
        assert "the failover is not finished" in said
        assert "done: " in said
        assert "not done: nobody has the lease, no epoch began" in said
        assert listed(one.pair)["epoch"] == -1
        slave.kill()
    one.pair.start_slave(**settings)
    wait_until(is_disbelieved(one, 2), "both run")
    wait_until(lambda: one.operator.types(["failover"])[0] == 0, "the command does it")
    check_well(one)


# -- other states ------------------------------------------------------------------------------------


def test_paused_and_the_master_stopped_it_is_resumed(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    one = scene(etcd_server, make_pair, admin, tmp_path)
    assert one.operator.types(["pause"])[0] == 0
    one.pair.processes["broker-a"].stop()
    wait_until(lambda: listed(one.pair)["master"] is None, "its lease is given back")
    for text in ("haList", "haStatus", "check"):
        assert commands_in(one.operator.text(text))[0][0] == "resume", text
    assert [words[0] for words in one.operator.follows(one.operator.text("haList"))] == ["resume"]
    wait_until(lambda: one.operator.master() == one.pair.slave_addr, "the other one is the master")


def test_paused_and_the_master_killed_the_operator_decides(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    one = scene(etcd_server, make_pair, admin, tmp_path)
    place = f"etcd://127.0.0.1:{etcd_server.port}"
    assert one.operator.types(["pause"])[0] == 0
    wait_until(lambda: goes_on(place), "the master has heard of it")
    one.pair.processes["broker-a"].kill()
    wait_until(lambda: listed(one.pair)["master"] is None, "its lease has ended")
    for text in ("haList", "failover"):
        *_, last = one.operator.follows(one.operator.text(text))
        assert (last[0], last[-1]) == ("failover", "--force"), text
    assert one.operator.types(last)[0] == 0
    assert listed(one.pair)["master"] == one.pair.slave_addr


def test_a_master_that_serves_by_failsafe_is_shown_and_its_slave_is_not_forgotten(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    """The operator reaches etcd, and both brokers do not."""
    pair = make_pair("SYNC_MASTER")
    with Door(etcd_server.port) as door:
        ask, numbers = admin(pair), Numbers()
        started(pair, ask, f"etcd://127.0.0.1:{door.port}")
        operator = Operator(pair, f"etcd://127.0.0.1:{etcd_server.port}")
        wait_until(numbers.try_at(pair.master_addr), "the master answers OK")
        wait_until(lambda: all_voters(pair), "the slave is a voter")
        ids = {row["brokerAddr"]: row["replicaId"] for row in listed(pair)["members"]}
        door.shut()
        shown = f"{pair.master_addr} takes messages as the master without a lease: by failsafe"
        wait_until(lambda: shown in operator.text("haList"), "it is shown")
        said = operator.text("haList")
        assert "mqadmin forget" not in said
        assert not commands_in(said)
        notes = operator.text("haStatus")
        assert not ("holds the lease" in notes and "is not the master" in notes)
        for words in (["failover"], ["switchover"], ["forget", "--replica", ids[pair.slave_addr][:8]]):
            exit_code, refused = operator.types(words)
            assert exit_code == 1
            assert not commands_in(refused), refused
        assert f"{pair.slave_addr} (replica {ids[pair.slave_addr][:8]}) is alive" in refused
        assert numbers.try_at(pair.master_addr)()
        with OperatorDesk(
            place_of(f"etcd://127.0.0.1:{etcd_server.port}"), "DefaultCluster", "broker-a", Keys()
        ) as desk:
            assert desk.see().voters.ids == set(ids.values())
        door.open()
        wait_until(operator.has_master, "it takes its lease again")


def test_a_voter_that_is_away_is_started(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    one = scene(etcd_server, make_pair, admin, tmp_path)
    settings = settings_of(one.pair)
    one.pair.processes["broker-a-s"].kill()
    wait_until(lambda: "Not connected: " in one.operator.text("haList"), "its session has ended")
    assert not commands_in(one.operator.text("haList")), "the master sees to it"
    exit_code, said = one.operator.types(["failover"])
    assert (exit_code, commands_in(said)) == (1, []), said
    one.pair.start_slave(**settings)
    check_well(one)


def test_with_the_last_master_away_the_operator_starts_it_or_decides(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    """The other one was away while an ASYNC_MASTER went on: it is no voter, and what it lacks is unknown."""
    one = scene(etcd_server, make_pair, admin, tmp_path, "ASYNC_MASTER")
    settings = settings_of(one.pair)
    one.pair.processes["broker-a-s"].kill()
    wait_until(lambda: not all_voters(one.pair), "it is no voter any more")
    send_ok(one.pair.master_addr, numbered(200, 300))
    one.pair.processes["broker-a"].kill()
    one.pair.start_slave(**settings)
    wait_until(
        lambda: "it is no voter" in (text := one.operator.text("haList")) and commands_in(text),
        "it does not take over, and says what helps",
    )
    *_, last = one.operator.follows(one.operator.text("haList"))
    assert is_decision(last)
    assert f"start {one.pair.master_addr}" in one.operator.text("failover")
    one.pair.start_master(**settings)
    wait_until(lambda: answers_ok(one), "an OK")
    assert set(numbered(0, 300)) <= set(read(one.ask, listed(one.pair)["master"]))


def test_of_two_brokers_one_is_not_whole_and_the_operator_starts_the_other_or_decides(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    one = scene(etcd_server, make_pair, admin, tmp_path)
    settings = settings_of(one.pair)
    wait_until(lambda: one.operator.types(["switchover"])[0] == 0, "broker-a-s is the master")
    wait_until(lambda: follows(one.ask, one.pair.slave_addr, one.pair.master_addr), "broker-a follows")
    one.pair.processes["broker-a"].kill()
    one.pair.processes["broker-a-s"].kill()
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(one.pair.store("broker-a") / name)
    one.pair.start_master(**settings)
    hurt = re.compile("has not caught up since|it had acknowledged")
    wait_until(
        lambda: hurt.search(text := one.operator.text("haList")) and commands_in(text),
        "it does not take over, and says what helps",
    )
    *_, last = one.operator.follows(one.operator.text("haList"))
    assert is_decision(last)
    assert f"start {one.pair.slave_addr}" in one.operator.text("failover")
    one.pair.start_slave(**settings)
    check_well(one)


# -- without a coordinator ---------------------------------------------------------------------------


def test_a_store_that_has_had_a_coordinator_starts_without_one_only_if_that_is_said(
    etcd_server: Server, make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    one = scene(etcd_server, make_pair, admin, tmp_path)
    one.pair.processes["broker-a-s"].stop()
    one.pair.processes["broker-a"].stop()
    with pytest.raises(ProcessDied, match="it is not set, and this broker has had a coordinator"):
        one.pair.start_master()
    one.pair.start_master(haCoordinator="none")
    one.pair.start_slave(haCoordinator="none")
    wait_until(lambda: role_of(one.ask, one.pair.master_addr) == "SYNC_MASTER", "its file says so")
    wait_until(Numbers().try_at(one.pair.master_addr), "it answers OK")
    assert set(BODIES) <= set(read(one.ask, one.pair.master_addr))
    one.pair.processes["broker-a-s"].stop()
    one.pair.start_slave()
    wait_until(lambda: follows(one.ask, one.pair.master_addr, one.pair.slave_addr), "once is enough")
