"""The simulator: the product keeps its promises in some hundred seeds, and a product that is broken does not.

A simulator that cannot fail proves nothing: so bugs that systems of this kind had are put into the product in
memory, one at a time, and have to be found within few seeds.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import LogNotWritable
from commitlog.log.log import CommitLog
from commitlog.log.segment import Segment
from haservice.broker.roles import promotion as role_promotion
from haservice.configuration.settings import BrokerRole
from haservice.remoting.headers.lineage import PromoteHeader
from haservice.replication.lineage.epochs import Epoch, Lineage, Plan, Step
from haservice.replication.lineage.file import Pledge
from haservice.replication.lineage.membership import Membership, ReplicaList
from haservice.replication.master.progress import AckTable, Advance, SlaveProgress
from haservice.replication.master.read_mark import HighWaterMark
from haservice.replication.slave.actions import Action, Send
from haservice.replication.slave.rejoin import Rejoin
from haservice.replication.slave.session import SlaveSession
from haservice.replication.wire import greeting
from haservice.replication.wire.protocol import REPORT, Run
from tests.chaos import sim
from tests.chaos.checker import Violation
from tests.chaos.report import Report
from tests.chaos.sim import Outcome, Simulation, draw_mode, simulate
from tests.chaos.sim_clock import BEGIN_S, virtual
from tests.chaos.sim_node import Node

ROOT = Path(__file__).parents[2]
SEEDS = 200
# A bug that was put in is found within so many.
SEEDS_OF_BUGS = 300


@pytest.mark.timeout(300)
def test_no_promise_is_broken(tmp_path: Path) -> None:
    report = Report()
    sim.run(SEEDS, 1, report)
    told = "\n\n".join(f"{one.repeat}\n{one.text}" for one in report.failures[:3])
    assert report.ok, f"{report.failed.total()} of {SEEDS} seeds fail, first:\n{told}"
    assert report.totals["sim"]["seeds"] == SEEDS
    # It has been a run worth the name: much was said OK, and every kind of fault was there.
    assert report.totals["sim"]["acknowledged"] > 10 * SEEDS
    assert report.totals["sim"]["failovers"] > SEEDS / 10
    assert len([name for name in report.totals["sim"] if name.startswith("times ")]) >= 15


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    first, again, other = (simulate(seed, tmp_path) for seed in (3, 3, 4))
    assert (first.digest, first.steps) == (again.digest, again.steps)
    assert first.events == again.events
    assert first.digest != other.digest


def test_a_seed_decides_everything_in_another_process_too(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.chaos.sim import simulate;"
        "print(simulate(3, Path(sys.argv[1])).digest)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(printed.stdout) == simulate(3, tmp_path).digest


def first_failure(directory: Path, wanted: Callable[[Outcome], bool], **mode: Any) -> Outcome:
    """Of the seeds from 1 on, the first one that is as it has to be; fails without any.  `mode` is what all have."""
    for seed in range(1, SEEDS_OF_BUGS + 1):
        changed = replace(draw_mode(random.Random(seed)), **mode) if mode else None
        outcome = simulate(seed, directory, changed)
        if wanted(outcome):
            return outcome
    raise AssertionError(f"not found in {SEEDS_OF_BUGS} seeds")


def broke(*violations: Violation) -> Callable[[Outcome], bool]:
    return lambda outcome: any(verdict.violation in violations for verdict in outcome.verdicts)


@pytest.mark.timeout(300)
def test_a_flush_that_fails_and_is_called_a_success_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PostgreSQL's fsyncgate; RocketMQ's #9713."""
    flush_segment = CommitLog._flush_segment

    def passes_over(self: CommitLog, segment: Segment) -> None:
        fence = self.fence
        self.fence = lambda reason: None  # type: ignore[method-assign]
        try:
            flush_segment(self, segment)
        except LogNotWritable:
            pass
        finally:
            self.fence = fence  # type: ignore[method-assign]

    monkeypatch.setattr(CommitLog, "_flush_segment", passes_over)
    outcome = first_failure(tmp_path, broke(Violation.LOST, Violation.CORRUPT))
    assert any("had flushed" in verdict.text for verdict in outcome.verdicts)


@pytest.mark.timeout(300)
def test_bytes_that_were_sent_and_are_taken_for_acknowledged_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An ack before the store: whatever the slave reports, all that is on its way to it counts."""
    count = AckTable._count

    def count_sent(self: AckTable, progress: SlaveProgress) -> Advance | None:
        if progress.acked is not None:
            progress.acked = progress.sent
        return count(self, progress)

    monkeypatch.setattr(AckTable, "_count", count_sent)
    outcome = first_failure(tmp_path, broke(Violation.WRONG_OK))
    assert "SYNC_MASTER" in outcome.mode or "believes" in outcome.text()


@pytest.mark.timeout(300)
def test_a_slave_that_reports_what_it_has_not_flushed_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The session of the product is what runs here: what is wrong in it is wrong in the simulation."""
    monkeypatch.setattr(SlaveSession, "_flush_first", SlaveSession.flushed)
    outcome = first_failure(tmp_path, broke(Violation.WRONG_OK))
    assert "slaves SYNC" in outcome.mode


@pytest.mark.timeout(300)
def test_a_slave_that_reports_before_it_has_stored_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """RocketMQ's 4.9: an append that fails advances what is reported all the same."""
    take = SlaveSession._take

    def early(self: SlaveSession, runs: Sequence[Run]) -> Sequence[Action]:
        actions = take(self, runs)
        return (Send(REPORT.pack(self.whole)), *actions)

    monkeypatch.setattr(SlaveSession, "_take", early)
    first_failure(tmp_path, broke(Violation.WRONG_OK, Violation.LOST))


@pytest.mark.timeout(300)
def test_a_log_that_parted_from_its_masters_and_is_continued_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before Kafka's KIP-101: offsets alone are compared."""
    real = greeting.plan

    def by_offset(own: Any, own_log: Any, theirs: Any, their_log: Any, me: str = "", **more: bool) -> Plan:
        decided = real(own, own_log, theirs, their_log, me, **more)
        if decided.step is Step.TRUNCATE and own_log.end <= their_log.end:
            return Plan(Step.CONTINUE, own_log.end)
        return decided

    monkeypatch.setattr(greeting, "plan", by_offset)
    monkeypatch.setattr(greeting.MasterGreeting, "_compare", lambda *_: "")
    first_failure(tmp_path, broke(Violation.DIVERGED))


@pytest.mark.timeout(300)
def test_a_record_that_is_shown_before_a_slave_has_it_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """RocketMQ's #2830: read, and then gone."""
    monkeypatch.setattr(HighWaterMark, "readable_end", lambda _, __, log_end: log_end)
    outcome = first_failure(tmp_path, broke(Violation.PHANTOM))
    assert "SYNC_MASTER" in outcome.mode


def test_a_failing_seed_is_told_with_its_last_steps_and_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sim.Simulation, "_unsettled", lambda *_: "made up")
    monkeypatch.setattr(sim, "SETTLE_S", 1.0)
    report = Report()
    sim.run(2, 3, report)
    assert [one.seed for one in report.failures] == [3, 4]
    assert report.failures[0].repeat == "scripts/chaos --rounds 1 --seed 3 sim"
    assert "not settled" in report.failures[0].text
    assert "HEAL" in report.failures[0].text
    assert not report.ok


def test_modes_of_all_kinds_are_drawn() -> None:
    modes = [draw_mode(random.Random(seed)) for seed in range(200)]
    assert {mode.slaves for mode in modes} == {1, 2, 3}
    assert {mode.master_role for mode in modes} == {BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER}
    assert {mode.in_sync_replicas for mode in modes} == {1, 2, 3}


@pytest.mark.timeout(300)
def test_a_promotion_that_counts_nobody_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ours: a slave that acknowledged alone was silent, and another one was promoted."""
    monkeypatch.setattr(role_promotion, "why_unsafe", lambda *_: "")
    outcome = first_failure(tmp_path, broke(Violation.LOST, Violation.WRONG_OK))
    assert any("without force" in verdict.text for verdict in outcome.verdicts)


def test_a_candidate_that_is_late_is_not_the_master_whose_log_counts(tmp_path: Path) -> None:
    """It stands still once others have pledged to it; a newer epoch begins, to which it gives way."""
    outcome = simulate(9933, tmp_path)
    assert outcome.ok, outcome.text()


def test_of_two_masters_the_one_of_the_newer_epoch_is_the_rightful_one(tmp_path: Path) -> None:
    world = Simulation(1, tmp_path).world
    with virtual(world.clock):
        for node in world.nodes.values():
            node.boot()
        for name, epoch in (("b", 2000), ("a", 1000)):
            node = world.nodes[name]
            lineage = Lineage((Epoch(epoch, 0, node.lineage.state.replica_id),))
            node.lineage.update(lineage=lineage)
            world.promoted(node, forced=False, sight=world.sight())
        assert (world.rightful, world.verdicts) == ("b", [])
        world.promoted(world.nodes["a"], forced=True, sight=world.sight())
        assert world.rightful == "a"


def test_of_two_masters_of_one_epoch_the_one_that_goes_on_is_the_rightful_one(tmp_path: Path) -> None:
    world = Simulation(1, tmp_path).world
    with virtual(world.clock):
        for node in world.nodes.values():
            node.boot()
        b = world.nodes["b"]
        world.promoted(b, forced=False, sight=world.sight())
        b.lineage.update(pledge=Pledge(1000, world.nodes["a"].lineage.state.replica_id, "a"))
        b.stop_cleanly()
        b.boot()
        assert (world.rightful, world.verdicts) == ("a", [])


@pytest.mark.timeout(300)
def test_a_pledge_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ours: a master that was cut off went on answering OK, by slaves that had heard of its successor."""
    monkeypatch.setattr(Rejoin, "objection", lambda self, master: "")
    mode = {"slaves": 3, "in_sync_replicas": 2, "master_role": BrokerRole.SYNC_MASTER}
    first_failure(tmp_path, broke(Violation.LOST, Violation.WRONG_OK), **mode)


@pytest.mark.timeout(300)
def test_a_new_slave_that_counts_before_others_know_of_it_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Raft's dissertation: two majorities that do not meet."""
    monkeypatch.setattr(Membership, "counting", property(lambda self: self.listed.slaves))
    monkeypatch.setattr(Membership, "needed", property(lambda self: self.listed.needed))
    monkeypatch.setattr(ReplicaList, "_under", lambda self, newer: ())
    first_failure(tmp_path, broke(Violation.LOST, Violation.WRONG_OK))


def begun(directory: Path, slaves: int) -> Simulation:
    """A SYNC_MASTER whose slaves follow it; nobody registers again by itself, and there are no faults."""
    mode = replace(draw_mode(random.Random(1)), slaves=slaves, master_role=BrokerRole.SYNC_MASTER)
    simulation = Simulation(1, directory, mode)
    with virtual(simulation.world.clock):
        for node in simulation.world.nodes.values():
            node.boot()
        simulation.world.clock.run_until(BEGIN_S + 1.0)
    assert len(simulation.world.nodes["a"].following()) == slaves
    return simulation


def test_a_failover_is_numbered_above_an_epoch_that_only_the_name_server_has_heard_of(tmp_path: Path) -> None:
    """As in the product a master that runs tells them of its new epoch at once.  It told them with its next
    registration: where it died before, its successor took the same number.
    """
    simulation = begun(tmp_path, slaves=1)
    world = simulation.world
    master, slave = world.nodes["a"], world.nodes["b"]
    with virtual(world.clock):
        for pair in (("a", "b"), ("b", "a")):
            world.network.block(*pair)
        master.requested(PromoteHeader(min_epoch=1000, why="a further epoch", force=True), lambda _: None)
        world.clock.run_until(BEGIN_S + 1.3)
        assert epoch_of(master) == 1000
        master.power_cut()
        simulation.operator.fail_over(may_force=True, to="b")
        world.clock.run_until(BEGIN_S + 6.0)
        assert (slave.role.is_slave, epoch_of(slave)) == (False, 2000)
        slave.crash()


def epoch_of(node: Node) -> int:
    last = node.lineage.state.lineage.last
    return last.number if last is not None else -1


def test_a_connection_that_was_to_break_after_some_bytes_does_not_once_all_is_healed(tmp_path: Path) -> None:
    """It broke after the end of all faults, in the very moment in which slaves have to be level."""
    simulation = begun(tmp_path, slaves=2)
    world = simulation.world
    with virtual(world.clock):
        connections = list(world.network.connections)
        for connection in connections:
            connection.cut_after(connection.near, 20)
        simulation.faults.heal_all()
        world.clock.run_until(BEGIN_S + 10.0)
        assert len(connections) == 2
        assert [one.is_open for one in connections] == [True, True]
        for node in world.nodes.values():
            node.crash()


def level(simulation: Simulation, count: int, name: str = "a") -> None:
    """The master has as many more messages, and its slaves, too."""
    master, world = simulation.world.nodes[name], simulation.world
    answers: list[str] = []
    for number in range(count):
        key = f"k{master.store.log.end}"
        master.send("TopicTest", 0, b"%d" % number * 100, key, lambda status, _: answers.append(status))
    world.clock.run_until(world.clock.now_s + 1.0)
    assert answers == ["OK"] * count
    assert {node.store.log.end for node in world.nodes.values()} == {master.store.log.end}


def taken(node: Node) -> bool:
    return node.up and not node.role.is_slave and not node.roles.state.held


@pytest.mark.parametrize("kill", [Node.stop_cleanly, Node.crash])
def test_a_master_whose_log_is_not_mounted_takes_it_back(
    tmp_path: Path, kill: Callable[[Node], None]
) -> None:
    simulation = begun(tmp_path, slaves=1)
    world, master, slave = simulation.world, simulation.world.nodes["a"], simulation.world.nodes["b"]
    with virtual(world.clock):
        level(simulation, 20)
        end = master.store.log.end
        kill(master)
        master.unmount_log()
        slave.crash()
        master.boot()
        world.clock.run_until(world.clock.now_s + 10.0)
        assert not taken(master)
        slave.boot()
        world.clock.run_until(world.clock.now_s + 10.0)
        assert taken(master)
        assert master.store.log.end == slave.store.log.end == end
        assert not world.verdicts
        master.crash()
        slave.crash()


def test_a_master_that_is_put_back_takes_back_what_its_slave_has(tmp_path: Path) -> None:
    simulation = begun(tmp_path, slaves=1)
    world, master, slave = simulation.world, simulation.world.nodes["a"], simulation.world.nodes["b"]
    with virtual(world.clock):
        level(simulation, 5)
        copy = master.snapshot()
        level(simulation, 20)
        end = master.store.log.end
        master.crash()
        master.put_back(copy)
        master.boot()
        world.clock.run_until(world.clock.now_s + 10.0)
        assert taken(master)
        assert master.store.log.end == slave.store.log.end == end
        assert not world.verdicts
        master.crash()
        slave.crash()


def test_a_master_that_is_put_back_to_before_its_slave_came_does_not_have_it_cut(tmp_path: Path) -> None:
    """By the copy nobody followed it in its epoch, so it begins the next one alone; the slave, which was down
    meanwhile, has what was answered with OK.
    """
    simulation = begun(tmp_path, slaves=1)
    world, slave, master = simulation.world, simulation.world.nodes["a"], simulation.world.nodes["b"]
    with virtual(world.clock):
        level(simulation, 5)
        slave.crash()
        simulation.operator.fail_over(may_force=False)
        world.clock.run_until(world.clock.now_s + 3.0)
        copy = master.snapshot()
        slave.boot()
        world.clock.run_until(world.clock.now_s + 10.0)
        level(simulation, 5, "b")
        end = master.store.log.end
        slave.crash()
        master.crash()
        master.put_back(copy)
        master.boot()
        world.clock.run_until(world.clock.now_s + 5.0)
        assert taken(master)
        assert (master.last_epoch, master.store.log.end < end) == (1001, True)
        slave.boot()
        world.clock.run_until(world.clock.now_s + 10.0)
        assert "by what a remembers it had acknowledged up to" in master.roles.state.held
        assert slave.store.log.end == end
        assert not world.verdicts
        simulation.operator.fail_over(may_force=False)
        world.clock.run_until(world.clock.now_s + 5.0)
        assert master.roles.state.held, "an operator says what is lost"
        master.crash()
        slave.crash()


def test_a_slave_that_is_put_back_hears_from_its_master_that_it_is_not_whole(tmp_path: Path) -> None:
    simulation = begun(tmp_path, slaves=1)
    world, master, slave = simulation.world, simulation.world.nodes["a"], simulation.world.nodes["b"]
    with virtual(world.clock):
        level(simulation, 5)
        copy = slave.snapshot()
        level(simulation, 20)
        end = master.store.log.end
        slave.crash()
        world.clock.run_until(world.clock.now_s + 3.0)  # the master writes down how far it came
        slave.put_back(copy)
        slave.boot()
        world.clock.run_until(world.clock.now_s + 3.0)
        assert slave.lineage.state.whole_from == slave.store.log.end == end
        assert not world.verdicts
        master.crash()
        slave.crash()
