"""Failover without an operator, simulated: seeds of all kinds, and stories that seeds seldom tell.

A story drives the same brokers and the same coordinator by hand, and is judged by the same looks at every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from haservice.coordination.cluster import (
    EPOCH,
    FAILOVER,
    MASTER,
    REQUEST,
    STATUS,
    SWITCHOVER,
    VOTERS,
    Leaseholder,
    MasterRequest,
    Settings,
    decode,
)
from haservice.coordination.coordinator import Transaction
from haservice.coordination.rounds import LATE_SECONDS
from haservice.typed_json import encode
from tests.chaos import failover_flapping, failover_sim
from tests.chaos.failover_node import Node
from tests.chaos.failover_sim import Mode, World, draw_mode, simulate
from tests.chaos.failover_stuck import why_stuck
from tests.chaos.report import Report

SEEDS = 150
SYNC_PAIR = Mode(2, 1, 0, failsafe=False)
SYNC_THREE = Mode(3, 1, 0, failsafe=False)
ASYNC_PAIR = Mode(2, 0, 5, failsafe=False)
ASYNC_THREE = Mode(3, 0, 5, failsafe=True)


@pytest.mark.timeout(300)
def test_no_seed_breaks_a_rule() -> None:
    report = Report()
    failover_sim.run(SEEDS, 1, report)
    told = "\n\n".join(f"{one.repeat}\n{one.text}" for one in report.failures[:3])
    assert report.ok, f"{report.failed.total()} of {SEEDS} seeds fail, first:\n{told}"
    count = report.totals["failover"]
    assert count["acknowledged"] > 100 * SEEDS
    assert count["epochs"] > 2 * SEEDS
    assert count["seeds that wait for an operator"] < SEEDS / 15
    assert len([name for name in count if name.startswith("times ")]) == 24


def test_a_seed_is_the_same_in_every_run() -> None:
    one, other = simulate(7), simulate(7)
    assert (one.steps, one.count) == (other.steps, other.count)


def test_modes_of_all_kinds_are_drawn() -> None:
    modes = [draw_mode(random.Random(seed)) for seed in range(200)]
    assert {mode.brokers for mode in modes} == {2, 3, 4}
    assert {mode.needed for mode in modes} == {0, 1, 2}


def test_some_time_of_flapping_links_breaks_no_rule_and_a_third_broker_bridges_it() -> None:
    world = failover_flapping.flap(2, 1200.0)
    assert not world.verdicts, "\n".join(map(str, world.verdicts))
    assert world.count["times a link is lost"] > 5
    assert world.count["times the way to the coordinator is lost"] > 5
    assert sum(failover_flapping.pauses(world)) < 60.0


# -- stories ----------------------------------------------------------------------------------------


class Story:
    """A world without faults of its own."""

    def __init__(self, mode: Mode, seed: int = 1) -> None:
        self.world = World(seed, mode)
        self.world.watch_share, self.world.faults.strikes = 1.0, 0.0
        self.world.begin()
        self.a, self.b = self.world.nodes[:2]
        self.until(lambda: len(self.voters) == mode.brokers, "all are voters")
        self.on(6.0)

    @property
    def c(self) -> Node:
        return self.world.nodes[2]

    @property
    def voters(self) -> frozenset[str]:
        return decode(self.world.server.read()).voters.ids

    @property
    def settings(self) -> Settings:
        return decode(self.world.server.read()).settings

    def on(self, seconds: float) -> None:
        self.world.clock.run_until(self.world.clock.now_s + seconds)

    def until(
        self, condition: Callable[[], bool], what: str, seconds: float = 30.0, step_s: float = 0.05
    ) -> float:
        """How long it took, on virtual time."""
        began_s = self.world.clock.now_s
        while not condition():
            assert self.world.clock.now_s < began_s + seconds, f"not: {what}\n" + "\n".join(
                self.world.trace[-30:]
            )
            self.on(step_s)
        return self.world.clock.now_s - began_s

    def goes_on_in_a_pause(self) -> None:
        """Failover is paused; a is cut off, and serves on when its lease is over."""
        self.world.faults.set_paused(True)
        self.on(2.0)
        self.world.cut_off.add("a")
        self.on(9.0)
        assert self.a.serves

    def serving(self, node: Node, seconds: float = 30.0) -> float:
        return self.until(lambda: node.serves, f"{node.name} serves", seconds)

    def unlink(self, one: Node, other: Node) -> None:
        self.world.blocked.add(frozenset({one.name, other.name}))

    def link(self, one: Node, other: Node) -> None:
        self.world.blocked.discard(frozenset({one.name, other.name}))

    def ask(self, kind: str, node: Node, *, force: bool = False, later_s: float = 0.0) -> None:
        now = decode(self.world.server.read())
        self.world.committing = self.a
        not_before_ms = int((self.world.clock.now_s + later_s) * 1000) if later_s else 0
        asked = encode(MasterRequest(node.id, "a test", kind=kind, force=force, not_before_ms=not_before_ms))
        assert self.world.server.commit(Transaction(now.expecting(EPOCH, REQUEST), {REQUEST: asked}), 0)

    @property
    def request(self) -> MasterRequest | None:
        return decode(self.world.server.read()).request

    def ends_well(self) -> None:
        assert not self.world.verdicts, "\n".join(map(str, [*self.world.verdicts, *self.world.trace[-40:]]))


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_a_slave_takes_over_from_a_master_that_is_killed(mode: Mode) -> None:
    story = Story(mode)
    story.a.crash()
    assert story.serving(story.b) < 5.0 + 1.5
    story.a.boot()
    story.until(lambda: story.a.follows == story.b.opened, "the old master follows")
    story.on(5.0)
    story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR, ASYNC_THREE], ids=str)
def test_a_switchover_that_is_asked_for_is_done_at_once_and_loses_nothing(mode: Mode) -> None:
    for seed in range(1, 9):
        story = Story(mode, seed)
        story.world.faults.set_paused(seed % 2 == 0)
        story.on(2.0)
        to = story.world.nodes[-1]
        story.ask(SWITCHOVER, to)
        assert story.serving(to) < 3.0
        story.until(lambda story=story, to=to: story.a.follows == to.opened, "the old one follows")  # type: ignore[misc]
        assert story.request is None
        assert decode(story.world.server.read()).epoch == 2000
        story.ends_well()


@pytest.mark.parametrize("slave_off_s", [-30.0, 0.0, 30.0])
def test_a_switchover_for_later_is_done_when_the_masters_clock_says_so(slave_off_s: float) -> None:
    story = Story(SYNC_THREE)
    story.a.clock_off_s, story.b.clock_off_s, story.c.clock_off_s = 0.0, slave_off_s, -slave_off_s
    story.ask(SWITCHOVER, story.c, later_s=10.0)
    story.on(9.5)
    assert story.a.serves
    story.serving(story.c, 3.0)
    assert story.request is None
    story.ends_well()


def test_a_switchover_for_later_is_over_once_another_one_is_the_master() -> None:
    story = Story(SYNC_PAIR)
    story.ask(SWITCHOVER, story.b, later_s=60.0)
    story.a.crash()
    story.serving(story.b)
    assert story.request is None
    story.a.boot()
    story.on(70.0)
    assert story.b.serves
    story.ends_well()


def test_a_switchover_to_a_slave_that_is_cut_off_is_dropped_and_the_master_goes_on() -> None:
    story = Story(SYNC_THREE)
    story.unlink(story.a, story.b)
    story.on(1.0)
    story.ask(SWITCHOVER, story.b)
    story.until(lambda: story.request is None, "it is dropped")
    story.serving(story.a, 3.0)
    assert decode(story.world.server.read()).epoch == 1000
    story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_a_switchover_to_a_slave_that_dies_meanwhile_ends_with_a_master(mode: Mode) -> None:
    for seed in range(1, 9):
        story = Story(mode, seed)
        story.ask(SWITCHOVER, story.b)
        story.on(0.05 * seed)
        story.b.crash()
        story.on(2.0)
        story.b.boot()
        story.until(lambda story=story: story.a.serves or story.b.serves, "one serves")  # type: ignore[misc]
        story.on(8.0)
        story.ends_well()


def test_a_failover_that_is_asked_for_is_done_while_failover_is_paused() -> None:
    story = Story(SYNC_THREE)
    story.world.quiet = True
    story.on(1.0)  # b has no more than c
    story.a.crash()
    story.world.faults.set_paused(True)
    story.on(8.0)
    assert not story.b.serves
    assert not story.c.serves
    story.ask(FAILOVER, story.c)
    story.serving(story.c)
    story.ends_well()


def test_a_failover_is_forced_over_what_may_be_lost() -> None:
    """Of three two are gone, and one acknowledgement may be on them alone."""
    story = Story(SYNC_THREE)
    story.a.crash()
    story.b.crash()
    story.on(8.0)
    story.ask(FAILOVER, story.c)
    story.on(5.0)
    assert not story.c.serves
    story.ask(FAILOVER, story.c, force=True)
    story.until(lambda: story.c.opened == 2000, "c is the master")


def test_a_slave_takes_over_at_once_from_a_master_that_stops() -> None:
    story = Story(SYNC_PAIR)
    story.a.stop()
    assert story.serving(story.b) < 0.5
    story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_a_master_that_stood_still_answers_nothing_when_it_goes_on(mode: Mode) -> None:
    for seed in range(1, 13):
        story = Story(mode, seed)
        story.a.frozen_until_s = story.world.clock.now_s + 9.0
        story.serving(story.b)
        story.on(10.0)
        story.ends_well()


def test_a_master_that_is_cut_off_blocks_before_its_slave_takes_over() -> None:
    story = Story(ASYNC_PAIR)
    story.world.cut_off.add("a")
    story.serving(story.b)
    assert not story.a.serves
    story.on(5.0)
    story.ends_well()


def test_a_master_without_its_lease_ends_it_before_anybody_tells() -> None:
    """Its renewals come, and their answers do not: it counts from what was answered."""
    for seed in range(1, 13):
        story = Story(ASYNC_PAIR, seed)
        story.world.late_answers.add("a")
        story.on(2.0 + seed / 4)
        story.world.cut_off.add("a")
        story.serving(story.b)
        story.on(2.0)
        story.ends_well()


def test_what_a_slave_told_of_its_log_before_it_sealed_it_is_not_heard() -> None:
    """c has the last OKs, and what it told of itself is from before them; b lacks them."""
    for seed in range(1, 9):
        story = Story(SYNC_THREE, seed)
        story.unlink(story.a, story.b)
        story.world.cut_off.update("ac")
        story.on(0.6)
        story.world.ended_early = True
        story.world.server.end(story.a.session)
        story.on(3.0)
        assert story.b.opened < 0
        story.world.cut_off.clear()
        story.until(lambda s=story: any(one.opened >= 2000 for one in s.world.nodes), "a new epoch")  # type: ignore[misc]
        story.on(3.0)
        story.ends_well()


def test_a_slave_with_less_is_not_promoted_although_the_one_with_more_cannot_be() -> None:
    story = Story(SYNC_THREE)
    story.c.unfit = "its disk is full"
    story.unlink(story.a, story.b)
    story.on(1.0)
    story.a.crash()
    story.on(12.0)
    assert story.b.opened < 0
    assert "2 voters that have no more than this one have to be heard, and 1 are" in story.b.rounds.why
    story.c.unfit = ""
    story.serving(story.c)
    story.ends_well()


def test_a_voter_that_is_gone_is_not_heard_before_the_others_have_its_oks() -> None:
    """b lags while c acknowledges; c falls silent; b comes back and is not level when a dies."""
    for seed in range(1, 9):
        story = Story(SYNC_THREE, seed)
        story.b.stalled = True
        story.on(2.0)
        story.world.cut_off.add("c")
        story.unlink(story.a, story.c)
        story.unlink(story.b, story.c)
        story.on(8.0)
        assert story.voters == frozenset("abc")
        story.a.crash()
        story.on(9.0)
        assert story.b.opened < 2000
        story.ends_well()


def test_machines_that_replace_lost_voters_make_oks_possible_again() -> None:
    """Two of three are lost at once, and an OK takes all three."""
    story = Story(Mode(3, 2, 0, failsafe=False))
    for node in (story.b, story.c):
        node.crash()
        node.wipe()
        node.boot()
    story.until(lambda: story.voters == {"a", "b2", "c2"}, "the new ones vote")
    story.on(2.0)
    assert story.world.last_ok_s > story.world.clock.now_s - 1.0
    story.a.crash()
    story.until(lambda: story.b.serves or story.c.serves, "one of the new ones is the master")
    story.ends_well()


def test_a_change_of_voters_that_got_lost_is_given_up_once_it_would_lose_something() -> None:
    """Two of three are lost at once; those that are to take their places are lost, too, and the change never comes."""
    story = Story(Mode(3, 2, 0, failsafe=False))

    def lose() -> None:
        for node in (story.b, story.c):
            node.crash()
            node.wipe()
            node.boot()

    story.world.hold = VOTERS
    lose()
    story.until(lambda: bool(story.world.held), "the change is asked for")
    story.world.held.clear()
    lose()
    story.world.hold = ""
    story.until(lambda: story.voters == {"a", "b3", "c3"}, "the newest ones vote")
    story.on(2.0)
    assert story.world.last_ok_s > story.world.clock.now_s - 1.0
    story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_that_nobody_may_be_promoted_is_said_only_while_it_is_so(mode: Mode) -> None:
    """The master is dead, and its slave's log is gone; then the master is back, and the slave catches up."""
    story = Story(mode)
    assert why_stuck(story.world) == ""
    for node in (story.b, story.a):
        node.crash()
    story.on(8.0)
    assert why_stuck(story.world) == "", "a is the last master, and has its log"
    story.a.empty()
    assert why_stuck(story.world) == "", "b has what it acknowledged"
    story.b.empty()
    assert "only [] have their logs" in why_stuck(story.world)
    story.a.boot()
    story.b.boot()
    story.on(12.0)
    assert why_stuck(story.world)
    assert not story.a.serves
    assert not story.b.serves
    story.ask(FAILOVER, story.b, force=True)
    story.until(lambda: story.b.opened == 2000, "b is the master")
    assert why_stuck(story.world) == ""


def emptied_voter(seed: int) -> Story:
    """b lags while c acknowledges; then c's log is emptied, and c votes on."""
    story = Story(SYNC_THREE, seed)
    story.b.stalled = True
    story.on(3.0)
    story.c.crash()
    story.c.empty()
    return story


def test_a_voter_whose_log_was_emptied_is_not_heard_before_it_has_caught_up() -> None:
    for seed in range(1, 9):
        story = emptied_voter(seed)
        assert story.voters == frozenset("abc")
        story.a.crash()
        story.c.boot()
        story.on(12.0)
        assert story.b.opened < 2000
        assert "1 are" in story.b.rounds.why
        story.a.boot()
        story.serving(story.a)
        story.until(lambda s=story: len(s.c.log) >= s.c.whole_from, "c has caught up")  # type: ignore[misc]
        story.on(6.0)
        story.a.crash()
        story.serving(story.c)
        story.ends_well()


def test_a_voter_that_has_caught_up_is_heard_although_it_lags_when_it_connects_again() -> None:
    for seed in range(1, 9):
        story = emptied_voter(seed)
        story.b.stalled = False
        story.c.boot()
        story.until(lambda s=story: 0 < s.c.whole_from <= len(s.c.log), "c has caught up")  # type: ignore[misc]
        story.c.crash()
        story.on(3.0)
        story.c.boot()
        story.c.stalled = True
        story.until(lambda s=story: s.c.follows == 1000, "c follows")  # type: ignore[misc]
        assert len(story.c.log) < len(story.a.log)
        story.a.crash()
        story.serving(story.b)
        story.ends_well()


def test_a_voter_whose_log_was_emptied_does_not_catch_up_with_a_master_of_before() -> None:
    """c was away when a was replaced, and sealed nothing then; emptied, it meets a, which was cut off."""
    for seed in range(1, 5):
        story = Story(Mode(4, 2, 0, failsafe=False), seed)
        a, b, c, d = story.world.nodes
        c.crash()
        story.world.cut_off.add("a")
        for one in (b, c, d):
            story.unlink(a, one)
        story.until(lambda b=b, d=d: b.serves or d.serves, "b or d is the master")  # type: ignore[misc]
        c.boot()
        story.until(lambda c=c: c.follows == 2000, "c follows")  # type: ignore[misc]
        story.on(9.0)
        assert story.world.last_ok_s > story.world.clock.now_s - 1.0
        c.crash()
        c.empty()
        b.crash()
        d.crash()
        story.link(a, c)
        story.world.cut_off.add("c")
        c.boot()
        c.leader = Leaseholder(a.id, a.opened, "")
        story.on(2.0)
        assert not c.log
        c.leader = None
        a.crash()
        story.world.cut_off.clear()
        story.on(15.0)
        assert not c.serves
        story.ends_well()


def test_a_change_of_voters_that_comes_late_is_reckoned_with() -> None:
    """c is silent, and its going is asked for; c is back before that happens, and b stands still then."""
    for seed in range(1, 9):
        story = Story(SYNC_THREE, seed)
        story.world.quiet = True  # else what the master tells of its log would be in the transaction, too
        story.on(1.5)
        story.unlink(story.a, story.c)
        story.world.hold = VOTERS
        story.until(lambda s=story: bool(s.world.held), "the change is asked for")  # type: ignore[misc]
        story.link(story.a, story.c)
        story.on(1.5)
        story.b.stalled, story.world.quiet = True, False
        story.on(2.0)
        story.world.let_go()
        story.on(0.3)
        story.a.crash()
        story.world.cut_off.add("c")
        story.unlink(story.b, story.c)
        story.on(9.0)
        story.ends_well()


def test_a_master_that_asked_to_give_its_lease_back_and_was_cut_off_goes_on_no_more() -> None:
    """Its request happens, and the answer does not come; by its own clock its lease would last for seconds."""
    for seed in range(1, 9):
        story = Story(ASYNC_PAIR, seed)
        story.world.hold = REQUEST
        story.world.committing = story.a
        story.ask(SWITCHOVER, story.b)
        story.until(lambda s=story: bool(s.world.held), "it asks")  # type: ignore[misc]
        story.world.cut_off.add("a")
        story.world.let_go()
        story.serving(story.b)
        story.on(6.0)
        story.ends_well()


def test_a_pair_that_becomes_sync_answers_no_ok_before_a_failover_counts_acks() -> None:
    """The change of voters is on its way; c lags by less than may be lost, and b alone has what is acknowledged."""
    for seed in range(1, 9):
        story = Story(Mode(3, 0, 1000, failsafe=False), seed)
        story.world.hold = VOTERS
        story.c.stalled = True
        story.world.needed = 1
        story.on(3.0)
        assert story.world.held
        story.b.crash()
        story.a.crash()
        story.serving(story.c)
        story.ends_well()


def test_no_session_ends_early_while_a_master_counts_no_acks_whatever_the_files_say_by_now() -> None:
    """What such a master promises stands on that; the files say SYNC_MASTER again, and it has not heard so."""
    story = Story(SYNC_PAIR)
    sessions = story.world.server.sessions
    story.world.needed = 0
    story.until(lambda: story.a.counts is not None and story.a.counts.needed == 0, "ASYNC_MASTER")
    story.world.cut_off.add("a")
    story.world.needed = 1
    before = len(sessions)
    story.world.faults._end_session()
    assert len(sessions) == before
    story.world.cut_off.clear()
    story.until(lambda: story.a.counts is not None and story.a.counts.needed == 1, "SYNC_MASTER")
    story.world.faults._end_session()
    assert len(sessions) < before
    story.ends_well()


def test_a_pair_that_becomes_async_keeps_what_was_acknowledged_with_acks() -> None:
    mode = Mode(3, 1, 1000, failsafe=False)
    for seed in range(1, 9):
        story = Story(mode, seed)
        story.b.stalled = True
        story.on(3.0)
        story.world.needed = 0
        story.until(lambda s=story: decode(s.world.server.read()).voters.needed == 0, "ASYNC_MASTER")  # type: ignore[misc]
        story.c.crash()
        story.a.crash()
        story.on(9.0)
        story.ends_well()


def test_a_paused_master_goes_on_once_that_is_known_and_is_not_replaced_before_it_knows_of_the_end() -> None:
    for mode in (ASYNC_PAIR, SYNC_PAIR):
        story = Story(mode)
        story.goes_on_in_a_pause()
        story.world.faults.set_paused(False)
        story.on(9.0)
        assert story.a.serves
        assert "go on without its lease" in story.b.rounds.why
        story.world.cut_off.clear()
        story.on(3.0)
        assert story.a.serves
        story.ends_well()


def test_a_paused_master_that_could_not_tell_so_does_not_go_on() -> None:
    """It reads that failover is paused, and its word that it goes on gets lost."""
    story = Story(ASYNC_PAIR)
    story.world.lost_commits.add("a")
    story.world.faults.set_paused(True)
    story.on(2.0)
    story.world.cut_off.add("a")
    story.on(1.0)
    story.world.faults.set_paused(False)
    story.serving(story.b)
    story.on(3.0)
    story.ends_well()


def test_a_paused_master_that_takes_its_lease_again_is_not_replaced_before_it_hears_of_that() -> None:
    """It goes on without its lease, is asked to take it again, and the answer does not come."""
    for mode in (ASYNC_PAIR, SYNC_PAIR):
        story = Story(mode)
        story.goes_on_in_a_pause()
        story.ask(FAILOVER, story.a)
        story.world.hold = MASTER
        story.world.cut_off.clear()
        story.until(lambda s=story: bool(s.world.held), "a asks for the lease")  # type: ignore[misc]
        story.world.cut_off.add("a")
        story.world.let_go()
        story.world.faults.set_paused(False)
        story.on(9.0)
        assert story.a.serves
        assert "go on without its lease" in story.b.rounds.why
        story.world.cut_off.clear()
        story.until(lambda s=story: s.b.follows == s.a.opened > 1000, "b follows")  # type: ignore[misc]
        story.serving(story.a)
        story.ends_well()


def test_a_paused_master_that_asked_to_fall_back_does_not_go_on_by_its_older_word() -> None:
    """That word is still there when failover is paused once more; what it asked for happens after that."""
    for mode in (ASYNC_PAIR, SYNC_PAIR):
        story = Story(mode)
        story.world.faults.set_paused(True)
        story.on(2.0)
        story.world.hold = STATUS
        story.world.faults.set_paused(False)
        story.until(lambda s=story: bool(s.world.held), "a writes that it goes on no more")  # type: ignore[misc]
        story.world.quiet = True  # else what it tells of its log would be in the transaction, too
        story.world.faults.set_paused(True)
        story.on(2.0)
        story.world.cut_off.add("a")
        story.world.let_go()
        story.world.quiet = False
        story.on(6.0)
        story.world.faults.set_paused(False)
        story.serving(story.b)
        story.on(3.0)
        story.ends_well()


def test_a_promotion_that_was_under_way_when_failover_was_paused_does_not_happen() -> None:
    story = Story(SYNC_PAIR)
    story.world.hold = MASTER
    story.a.crash()
    story.until(lambda: bool(story.world.held), "b asks for the lease")
    story.world.faults.set_paused(True)
    story.world.let_go()
    story.on(3.0)
    assert story.b.opened < 0
    story.ends_well()


def epoch_is_given() -> Story:
    """a is dead, b has taken the lease of epoch 2000 and not begun it, c is unfit."""
    story = Story(SYNC_THREE)
    story.c.unfit = "its disk is full"
    story.world.quiet = True
    story.on(1.0)  # c has no more than b
    story.world.quiet = False
    story.a.crash()
    story.until(lambda: decode(story.world.server.read()).epoch == 2000, "b takes the lease", step_s=0.002)
    return story


def test_a_candidate_that_stood_still_does_not_begin_an_epoch_that_is_over() -> None:
    """Between the lease and the epoch in its log."""
    story = epoch_is_given()
    story.b.frozen_until_s = story.world.clock.now_s + 12.0
    story.a.boot()
    story.c.unfit = ""
    story.until(lambda: story.a.serves or story.c.serves, "a or c serves")
    story.on(10.0)
    assert not [line for line in story.world.trace if "b begins epoch 2000" in line]
    story.ends_well()


def test_an_epoch_that_nobody_began_is_not_given_again() -> None:
    story = epoch_is_given()
    story.b.crash()
    story.a.boot()
    story.c.unfit = ""
    story.until(lambda: story.a.serves or story.c.serves, "a or c serves")
    assert decode(story.world.server.read()).epoch == 3000
    story.ends_well()


def test_an_outage_of_the_coordinator_stops_no_healthy_pair() -> None:
    story = Story(Mode(3, 1, 0, failsafe=True))
    story.world.coordinator_up = False
    story.on(20.0)
    assert story.a.serves
    story.world.coordinator_up = True
    story.on(8.0)
    story.ends_well()
    assert story.a.serves or story.b.serves or story.c.serves


def test_in_an_outage_one_voter_that_is_away_stops_the_master() -> None:
    story = Story(Mode(3, 0, 0, failsafe=True))
    story.world.coordinator_up = False
    story.unlink(story.a, story.c)
    story.on(7.0)
    assert not story.a.serves
    story.world.coordinator_up = True
    story.on(9.0)
    story.ends_well()


def test_a_slave_that_was_started_again_keeps_what_it_may_have_promised() -> None:
    """It promises in an outage, is killed, and finds the coordinator back, and the lease ended."""
    for seed in range(1, 9):
        story = Story(Mode(2, 0, 1000, failsafe=True), seed)
        story.world.coordinator_up = False
        story.on(7.0)
        assert story.a.serves
        story.b.crash()
        story.world.cut_off.add("a")
        story.world.coordinator_up = True
        story.b.boot()
        story.on(12.0)
        story.ends_well()


@pytest.mark.parametrize("outage_s", [3.0, 7.0])
def test_a_promise_is_kept_when_the_coordinator_is_back(outage_s: float) -> None:
    """After 3 s the slave still has its session, and need not wait for a new one."""
    for seed in range(1, 9):
        story = Story(Mode(2, 0, 1000, failsafe=True), seed)
        story.world.coordinator_up = False
        story.on(outage_s)
        story.world.cut_off.add("a")
        story.world.coordinator_up = True
        story.on(12.0)
        story.ends_well()


def test_what_a_master_takes_by_a_promise_is_on_its_slave() -> None:
    """The slave promises, and finds the coordinator back, and the lease ended; its master is cut off alone."""
    for seed in range(1, 9):
        story = Story(Mode(2, 0, 1000, failsafe=True), seed)
        story.world.coordinator_up = False
        story.on(5.5)
        story.world.cut_off.add("a")
        story.world.coordinator_up = True
        story.serving(story.b)
        assert story.world.clock.now_s - story.world.last_ok_s < 4.0
        assert story.world.count["acknowledged and lost in ASYNC_MASTER"] == 0
        story.on(3.0)
        story.ends_well()


def test_a_slave_that_waits_for_an_answer_promises_only_if_it_is_late() -> None:
    story = Story(Mode(2, 0, 5, failsafe=True))
    story.world.late_answers.add("b")
    asked = set()
    for _ in range(100):
        story.on(0.05)
        waits_s = story.b.now_s() - story.b.rounds._asked_s
        asked.add((waits_s > LATE_SECONDS, bool(story.b.rounds.promise(story.a.opened, 5.0))))
    assert asked == {(False, True), (True, False)}


def test_an_async_master_that_is_cut_off_takes_no_more_than_may_be_lost() -> None:
    """Its slave stands still, and its lease has seconds left."""
    story = Story(Mode(2, 0, 5, failsafe=True))
    story.b.stalled = True
    story.world.cut_off.add("a")
    story.until(lambda: not story.a.serves, "a is blocked", 3.0)
    assert "haMaxLossBytes is 5" in story.a.gate.why_shut
    story.b.stalled = False
    story.until(lambda: story.a.serves, "b has what a has", 1.5)
    story.ends_well()


def test_more_than_the_allowed_loss_is_not_lost_by_itself() -> None:
    story = Story(ASYNC_PAIR)
    story.b.stalled = True
    story.on(4.0)
    story.a.crash()
    story.on(12.0)
    assert story.b.opened < 0
    assert "haMaxLossBytes is 5" in story.b.rounds.why
    story.a.boot()
    story.serving(story.a)
    story.ends_well()


def test_nobody_is_master_by_a_backup() -> None:
    story = Story(SYNC_PAIR)
    backup = story.world.server.backup()
    story.a.crash()
    story.serving(story.b)
    story.a.boot()
    story.until(lambda: story.a.follows >= 2000, "a follows")
    story.on(2.0)
    story.world.restored = story.world.ended_early = True
    story.world.server.restore(backup)
    story.on(12.0)
    assert not story.a.serves
    assert not story.b.serves
    assert "restored from a backup" in story.b.rounds.why
    story.ends_well()
