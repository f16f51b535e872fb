"""Advice leads out: who does what `check` and its commands say comes to a pair where all is well, in three steps.

Or to a command with --force or --lose, which nobody gives here.  What was answered with OK is there in the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.group import ScratchGroup
from haservice.devtools.pair import ScratchPair
from haservice.errors import RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import CreateTopicHeader
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
from haservice.replication.lineage.file import LineageFile
from tests.admin.asking import run
from tests.cluster.advised import Outcome, follow, options_of
from tests.cluster.support import (
    QUEUES,
    SETTINGS,
    TOPIC,
    Ask,
    MakePair,
    follows,
    log_end,
    numbered,
    read,
    send_ok,
    start_with_topic,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

MASTER, SLAVE = "broker-a", "broker-a-s"


class Operator:
    """Looks after one pair, and knows what was answered with OK."""

    def __init__(self, pair: ScratchPair, ask: MQAdmin) -> None:
        self.pair = pair
        self.ask = ask
        self._sent = 0
        start_with_topic(pair, ask)

    def addr(self, name: str) -> str:
        return self.pair.addr(name)

    def mqadmin(self, words: Sequence[str]) -> tuple[int, str]:
        yes = ["--yes"] if "--yes" in options_of(words[0]) else []
        result = run(words[0], "-n", self.pair.namesrv_addr, *words[1:], *yes)
        return result.exit_code, result.output

    def follow(self, *can_start: str, refusal: str = "", anew: bool = False) -> Outcome:
        """`anew`: only the machine's name is left of a broker, its store is empty."""
        start = {self.addr(name): lambda name=name: self.start(name, anew=anew) for name in can_start}
        return follow(self.mqadmin, start, refusal)  # type: ignore[arg-type]

    def start(self, name: str, *, anew: bool = False) -> None:
        if anew:
            shutil.rmtree(self.pair.store(name), ignore_errors=True)
        {MASTER: self.pair.start_master, SLAVE: self.pair.start_slave}[name]()

    def kill(self, *names: str) -> None:
        for name in names:
            self.pair.processes[name].kill()

    def send(self, addr: str, count: int = 50) -> None:
        send_ok(addr, numbered(self._sent, self._sent + count))
        self._sent += count

    def is_level(self, master: str = MASTER, slave: str = SLAVE) -> None:
        wait_until(lambda: follows(self.ask, self.addr(master), self.addr(slave)), "the slave is level")

    def has_all(self, *names: str) -> None:
        for name in names:
            wait_until(
                lambda name=name: self.ask.runtime_info(self.addr(name))["dispatchBehindBytes"] == "0",  # type: ignore[misc]
                "all is dispatched",
            )
            assert read(self.ask, self.addr(name)) == numbered(0, self._sent)

    def away(self, name: str) -> None:
        """Kills it; check has noticed."""
        self.kill(name)
        wait_until(lambda: self.addr(name) in self.mqadmin(["check"])[1], "check names it")


def cut_power(store: Path, *, keeps: int, end: int) -> None:
    """As after a power cut: what was written last was not on the disk, and the machine booted anew."""
    segment = next((store / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(keeps)
        file.write(bytes(end - keeps))
    LineageFile(store).update(boot_id="another boot")


def rot(store: Path, body: bytes) -> None:
    """One bit of the record with that body."""
    segment = next((store / "commitlog").iterdir())
    at = segment.read_bytes().index(body)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(bytes([body[0] ^ 1]))


@pytest.fixture
def hire(make_pair: MakePair, admin: Ask) -> Callable[[str], Operator]:
    def hired(role: str) -> Operator:
        pair = make_pair(role)
        return Operator(pair, admin(pair))

    return hired


def is_master(op: Operator, name: str) -> bool:
    try:
        said = op.ask.ask(op.addr(name), RequestCode.GET_LINEAGE, into=LineageBody)
    except RemotingError:
        return False
    return said.role.endswith("MASTER") and not said.changing


def names(outcome: Outcome) -> list[str]:
    return [one.words[0] for one in outcome.steps]


@pytest.mark.timeout(300)
def test_of_brokers_that_are_away_or_replaced(hire: Callable[[str], Operator]) -> None:
    """One SYNC pair, one state after the other."""
    op = hire("SYNC_MASTER")
    op.send(op.addr(MASTER))
    op.is_level()

    # The slave is away; a switchover is refused for want of it.
    op.away(SLAVE)
    code, refusal = op.mqadmin(["switchover", "-b", "broker-a"])
    assert code == 1
    assert names(op.follow(SLAVE, refusal=refusal)) == ["start"]
    op.has_all(MASTER, SLAVE)

    # The slave was wiped.
    op.kill(SLAVE)
    op.start(SLAVE, anew=True)
    op.is_level()
    assert op.follow().steps == []

    # The master is killed, and can be started.
    op.away(MASTER)
    assert names(op.follow(MASTER)) == ["start"]
    op.has_all(MASTER, SLAVE)

    # The master lost its log's directory, and does not know it.
    op.kill(MASTER)
    shutil.rmtree(op.pair.store(MASTER) / "commitlog")
    op.start(MASTER)
    assert op.follow().decision is None
    op.has_all(MASTER, SLAVE)

    # The slave is ahead: the master's machine lost the end of its log.
    op.send(op.addr(MASTER))
    op.is_level()
    end = log_end(op.ask, op.addr(MASTER))
    op.kill(MASTER)
    cut_power(op.pair.store(MASTER), keeps=end - 2000, end=end)
    op.start(MASTER)
    assert op.follow().decision is None
    op.has_all(MASTER, SLAVE)

    # A record of the slave has rotted, and somebody reads it.
    rot(op.pair.store(SLAVE), b"000007 ")
    with pytest.raises((RemotingError, AssertionError)):
        read(op.ask, op.addr(SLAVE))
    wait_until(lambda: op.mqadmin(["check"])[0] == 0, "it is put back")
    op.has_all(MASTER, SLAVE)

    # The master is gone for good, with its disk: another machine comes in its place, with the same file.
    op.away(MASTER)
    outcome = op.follow(MASTER, anew=True)
    assert (names(outcome), outcome.decision) == (["start", "failover"], None)
    op.has_all(MASTER, SLAVE)


@pytest.mark.timeout(300)
def test_of_brokers_that_are_gone_for_good_and_of_two_masters(hire: Callable[[str], Operator]) -> None:
    """One ASYNC pair: what was sent is on both, so no state but the last ones has anything to lose."""
    op = hire("ASYNC_MASTER")
    op.send(op.addr(MASTER))
    op.is_level()

    # The slave is gone for good.
    op.away(SLAVE)
    assert names(op.follow()) == ["forget"]
    op.start(SLAVE)
    op.is_level()

    # The master dies, and is gone for good.  What an ASYNC_MASTER answered last may be for the operator to decide.
    op.away(MASTER)
    outcome = op.follow()
    assert names(outcome)[0] == "failover"
    if outcome.decision is not None:
        assert op.mqadmin(outcome.decision)[0] == 0
        outcome = op.follow()
    assert names(outcome)[-1] == "forget"
    op.has_all(SLAVE)

    # It is back after all, and follows.
    op.start(MASTER)
    op.is_level(SLAVE, MASTER)
    op.send(op.addr(SLAVE))
    op.is_level(SLAVE, MASTER)
    assert op.follow().steps == []

    # Somebody makes each of them the master while the other is down: two masters of one epoch.
    op.kill(MASTER)
    op.kill(SLAVE)
    for name in (MASTER, SLAVE):
        op.start(name)
        header = PromoteHeader(min_epoch=5000, why="by hand", force=True)
        op.ask.ask(op.addr(name), RequestCode.PROMOTE, header, into=LineageBody, timeout_s=30.0)
        wait_until(lambda name=name: is_master(op, name), f"{name} is the master")  # type: ignore[misc]
        op.send(op.addr(name), 5)
        if name == MASTER:
            op.kill(MASTER)
    op.start(MASTER)
    outcome = op.follow()
    assert outcome.decision is not None, outcome
    assert "--force" in outcome.decision


@pytest.mark.timeout(300)
def test_of_brokers_that_have_each_others_stores(hire: Callable[[str], Operator]) -> None:
    """The list of the last master stays whole, though it is at an address that another replica had."""
    op = hire("SYNC_MASTER")
    op.send(op.addr(MASTER))
    op.is_level()
    for name in (MASTER, SLAVE):
        assert op.pair.processes[name].stop() == 0
    one, other = op.pair.store(MASTER), op.pair.store(SLAVE)
    one.rename(op.pair.root / "aside")
    other.rename(one)
    (op.pair.root / "aside").rename(other)
    op.start(MASTER)
    op.start(SLAVE)
    wait_until(lambda: "has not begun an epoch yet" in op.mqadmin(["check"])[1], "the slave is there")
    outcome = op.follow()
    assert (names(outcome), outcome.decision) == (["failover"], None)
    op.is_level()
    op.send(op.addr(MASTER))
    op.has_all(MASTER, SLAVE)


@pytest.mark.timeout(300)
def test_of_a_master_that_waits_for_a_slave_after_a_power_cut(hire: Callable[[str], Operator]) -> None:
    """The slave is away: start it, or decide about the loss.  It cannot be forgotten without a word of that."""
    op = hire("SYNC_MASTER")
    op.send(op.addr(MASTER))
    op.is_level()
    wait_until(lambda: in_sync(op), "the master has written down that its slave is in sync")
    end = log_end(op.ask, op.addr(MASTER))
    op.kill(MASTER)
    op.kill(SLAVE)
    cut_power(op.pair.store(MASTER), keeps=end - 2000, end=end)
    op.start(MASTER)

    outcome = op.follow()
    assert outcome.decision is not None
    assert "--force" in outcome.decision
    code, said = op.mqadmin(["forget", "-b", "broker-a", "--replica", op.addr(SLAVE)])
    assert (code, f"start {op.addr(SLAVE)}" in said, "--force" in said) == (1, True, True)

    assert names(op.follow(SLAVE, refusal=said)) == ["start"]
    op.has_all(MASTER, SLAVE)


def in_sync(op: Operator) -> bool:
    said = op.ask.ask(op.addr(MASTER), RequestCode.GET_LINEAGE, into=LineageBody)
    return any(one.in_sync for one in said.replicas)


@pytest.mark.timeout(300)
def test_of_members_of_a_group_that_are_away(tmp_path: Path) -> None:
    """One of three, and then a majority: each is named, at the address at which members reach it."""
    with ScratchGroup(tmp_path, SETTINGS) as group, MQAdmin([group.namesrv_addr]) as ask:
        group.start_nameserver()
        group.start_members()

        def mqadmin(words: Sequence[str]) -> tuple[int, str]:
            done = run(words[0], "-n", group.namesrv_addr, *words[1:])
            return done.exit_code, done.output

        def start(name: str) -> None:
            """One that is about to lead starts again in its process, and does not answer for a moment."""
            if group.processes[name].popen.poll() is not None:
                group.start_members(name)

        starts = {group.member_addr(name): partial(start, name) for name in group.names}
        leader = group.leader(ask)
        ask.update_topic(group.addr(leader), CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
        wait_until(lambda: mqadmin(["check"])[0] == 0, "all are level")
        send_ok(group.addr(leader), numbered(0, 50))
        for count in (1, 2):
            gone = sorted(set(group.names) - {leader})[:count]
            if count == 2:
                gone[0] = leader
            for name in gone:
                group.processes[name].kill()
            wait_until(lambda: mqadmin(["check"])[0] != 0, "check has seen it")
            outcome = follow(mqadmin, starts)
            assert {("start", group.member_addr(name)) for name in gone} <= {
                one.words for one in outcome.steps
            }
            leader = group.leader(ask)
        wait_until(lambda: read(ask, group.addr(leader)) == numbered(0, 50), "nothing is lost")
