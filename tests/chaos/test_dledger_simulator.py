"""DLedger groups, simulated: seeds of all kinds, and stories that seeds seldom tell.

A story drives the same members over the same network by hand, and is judged by the same looks at every step.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from haservice.dledger.codes import DLedgerResponseCode, PushType
from haservice.dledger.events import HandOverTo
from haservice.dledger.messages import MemberMessage, PushEntryRequest
from tests.chaos import dledger_sim
from tests.chaos.dledger_node import Node, ReturnAddress
from tests.chaos.dledger_sim import Mode, World, draw_mode, simulate
from tests.chaos.report import Report

SEEDS = 50
THREE = Mode(3, flushes=True, first_entry=True, preferred=False, small=False)
FIVE = Mode(5, flushes=True, first_entry=True, preferred=False, small=False)
PREFERRED = Mode(3, flushes=True, first_entry=True, preferred=True, small=False)


@pytest.mark.timeout(300)
def test_no_seed_breaks_a_rule() -> None:
    report = Report()
    dledger_sim.run(SEEDS, 1, report)
    told = "\n\n".join(f"{one.repeat}\n{one.text}" for one in report.failures[:3])
    assert report.ok, f"{report.failed.total()} of {SEEDS} seeds fail, first:\n{told}"
    count = report.totals["dledger"]
    assert count["acknowledged"] > 50 * SEEDS
    assert count["elections"] > 2 * SEEDS
    assert count["cuts"] > 0
    assert count["mended"] > 0
    assert len([name for name in count if name.startswith("times ")]) == 19


def test_a_seed_is_the_same_in_every_run() -> None:
    one, other = simulate(20), simulate(20)
    assert (one.steps, one.count) == (other.steps, other.count)


def test_modes_of_all_kinds_are_drawn() -> None:
    modes = [draw_mode(random.Random(seed)) for seed in range(200)]
    assert {mode.members for mode in modes} == {3, 5}
    for name in ("flushes", "first_entry", "preferred", "small"):
        assert {getattr(mode, name) for mode in modes} == {True, False}


# -- stories ----------------------------------------------------------------------------------------


class Story:
    """A world without faults of its own, with a leader."""

    def __init__(self, mode: Mode = THREE, seed: int = 1) -> None:
        self.world = World(seed, mode)
        self.world.faults.strikes = 0.0
        self.world.begin()
        self.until(lambda: self.world.ok_index >= 0, "somebody answers OK")
        self.on(1.0)

    @property
    def leader(self) -> Node:
        (leader,) = self.world.leaders
        return leader

    @property
    def followers(self) -> list[Node]:
        return [node for node in self.world.nodes if not node.leads]

    def on(self, seconds: float) -> None:
        self.world.on(seconds)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> float:
        """How long it took, on virtual time."""
        began_s = self.world.clock.now_s
        while not condition():
            assert self.world.clock.now_s < began_s + seconds, f"not: {what}\n" + "\n".join(
                self.world.trace[-30:]
            )
            self.on(0.02)
        return self.world.clock.now_s - began_s

    def next_ok(self, seconds: float = 20.0) -> float:
        """How long until somebody answers OK to what is sent from now on."""
        seen = self.world.count["acknowledged"]
        sent = self.world.count["sent"]
        self.until(lambda: self.world.count["sent"] > sent, "something is sent", seconds)
        return self.until(lambda: self.world.count["acknowledged"] > seen, "an OK", seconds)

    def another_leads(self, old: Node) -> None:
        self.until(lambda: any(one is not old for one in self.world.leaders), "another leads")

    def cut_off(self, node: Node, *, hears: bool = False, is_heard: bool = False) -> None:
        for one in self.world.nodes:
            if one is not node:
                if not is_heard:
                    self.world.cuts.add((node.name, one.name))
                if not hears:
                    self.world.cuts.add((one.name, node.name))

    def level(self) -> None:
        """All members have what was acknowledged, and know that it is committed."""
        index = self.world.ok_index
        self.until(
            lambda: all(node.member and node.member.committed_index >= index for node in self.world.nodes),
            f"all have committed {index}",
        )

    def ends_well(self) -> None:
        assert not self.world.verdicts, "\n".join(map(str, [*self.world.verdicts, *self.world.trace[-40:]]))


@pytest.mark.parametrize("mode", [THREE, FIVE], ids=str)
def test_the_group_goes_on_within_three_seconds_of_its_leaders_death(mode: Mode) -> None:
    took_s = []
    for seed in range(1, 31):
        story = Story(mode, seed)
        leader = story.leader
        if seed % 2:
            leader.crash(power=True)
        else:
            story.cut_off(leader)
        began_s = story.world.clock.now_s
        story.another_leads(leader)
        story.next_ok()
        took_s.append(story.world.clock.now_s - began_s)
        story.ends_well()
    assert max(took_s) <= 3.0, took_s
    assert statistics.median(took_s) <= 2.2, took_s


@pytest.mark.parametrize("mode", [THREE, FIVE], ids=str)
@pytest.mark.parametrize("ways", [(False, False), (True, False), (False, True)], ids=str)
def test_a_member_that_was_cut_off_changes_nothing_when_it_returns(
    mode: Mode, ways: tuple[bool, bool]
) -> None:
    """Nor while it is away: no term, no leader, no append that is answered with anything but OK."""
    for seed in range(1, 6):
        story = Story(mode, seed)
        leader, away = story.leader, story.followers[0]
        assert leader.member is not None
        term, elections = leader.member.term, len(story.world.elections)
        hears, is_heard = ways
        story.cut_off(away, hears=hears, is_heard=is_heard)
        story.on(15.0)
        story.world.cuts.clear()
        story.on(3.0)
        story.level()
        assert (leader.leads, leader.member.term) == (True, term)
        assert len(story.world.elections) == elections
        answers = {name for name in story.world.count if name.startswith("answered ")}
        assert answers <= {"answered SUCCESS", "answered NOT_LEADER"}, answers
        assert all(one.member and one.member.term == term for one in story.world.nodes)
        story.ends_well()


def test_a_member_that_only_the_leader_does_not_reach_raises_no_term() -> None:
    """An asymmetric partition: it asks the other follower, which hears the leader."""
    story = Story()
    leader, one = story.leader, story.followers[0]
    assert leader.member is not None
    term = leader.member.term
    story.world.cuts |= {(leader.name, one.name), (one.name, leader.name)}
    story.on(20.0)
    story.world.cuts.clear()
    story.level()
    assert {node.member.term for node in story.world.nodes if node.member} == {term}
    story.ends_well()


def test_a_follower_that_restarts_changes_nothing() -> None:
    story = Story()
    leader = story.leader
    elections = len(story.world.elections)
    for node in story.followers:
        node.crash(power=True)
        story.on(0.5)
        node.boot()
        story.on(2.0)
    assert leader.leads
    assert len(story.world.elections) == elections
    story.level()
    story.ends_well()


def test_a_leader_without_a_majority_steps_down_and_answers_nothing() -> None:
    story = Story()
    leader = story.leader
    story.cut_off(leader)
    story.until(lambda: not leader.leads, "it steps down", seconds=2.0)
    number = story.world.send_to(leader)
    assert number not in story.world._sent, "refused at once"
    # Before any other one leads, as its lease is shorter than their patience.
    assert story.world.elections[-1][1] == leader.name
    story.ends_well()


def test_a_leader_that_stood_still_answers_nothing_when_it_goes_on() -> None:
    for seed in range(1, 9):
        story = Story(seed=seed)
        leader = story.leader
        assert leader.member is not None
        leader.frozen_until_s = story.world.clock.now_s + 8.0
        story.another_leads(leader)
        story.on(1.0)
        number = story.world.send_to(leader)
        story.world.send_s = (100.0, 100.0)
        story.on(0.5)
        leader.frozen_until_s = 0.0
        before = story.world.count["answered SUCCESS"]
        leader.thaw()
        assert not leader.leads
        assert story.world.count["answered SUCCESS"] == before
        assert number not in story.world._sent
        story.ends_well()


def test_a_group_without_a_majority_keeps_its_term() -> None:
    story = Story()
    leader = story.leader
    assert leader.member is not None
    term = leader.member.term
    for node in story.followers:
        node.crash()
    story.on(20.0)
    assert (leader.leads, leader.member.term) == (False, term)
    for node in story.world.nodes:
        node.boot()
    story.next_ok()
    story.ends_well()


def test_a_member_with_a_newer_term_and_a_shorter_log_rejoins() -> None:
    """It refuses the leader's heartbeats, and nobody votes for it: the leader has to come to its term."""
    story = Story()
    leader, away = story.leader, story.followers[0]
    away.crash()
    story.on(1.0)
    assert leader.member is not None
    away.saved = (leader.member.term + 5, away.name)
    away.boot()
    story.until(lambda: away.member is not None and away.member.leader_id is not None, "it follows", 3.0)
    story.on(1.0)
    assert story.leader is leader, "who has the longest log leads on"
    story.level()
    story.ends_well()


def test_a_push_whose_predecessor_is_lost_is_pushed_again() -> None:
    story = Story(Mode(3, flushes=True, first_entry=True, preferred=False, small=True))
    for seed in range(80):
        story.world.source = random.Random(seed)
        story.world.loss = 0.3
        story.on(0.3)
        story.world.loss = 0.0
        story.on(0.2)
    steps = story.world.clock.steps
    story.on(2.0)
    story.level()
    # A push that stays for ever is due for ever.
    assert story.world.clock.steps < steps + 5000
    story.ends_well()


def test_a_truncate_that_comes_late_cuts_nothing_that_was_acknowledged() -> None:
    story = Story()
    old = story.leader
    kept: list[tuple[ReturnAddress, MemberMessage]] = []
    ask = story.world.ask

    def keep(node: Node, to: ReturnAddress, peer: str, request: MemberMessage) -> None:
        if isinstance(request, PushEntryRequest) and request.push_type is PushType.TRUNCATE:
            kept.append((to, request))
        ask(node, to, peer, request)

    story.world.ask = keep  # type: ignore[method-assign]
    # What it appends now, nobody else has: it is told to cut it when it is back.
    story.cut_off(old)
    story.another_leads(old)
    story.next_ok()
    story.world.cuts.clear()
    story.until(lambda: bool(kept), "it is told to cut")
    story.on(1.0)
    story.level()
    end = old.log.end_index
    to, request = kept[-1]
    assert isinstance(request, PushEntryRequest)
    assert request.entries[0].index < end - 5
    # The same once more, as if it had been long on its way.
    old.asked(to, request)
    assert old.log.end_index == end
    story.on(1.0)
    story.level()
    story.ends_well()


@pytest.mark.parametrize("mode", [THREE, FIVE], ids=str)
def test_an_operator_hands_over_and_nothing_is_lost(mode: Mode) -> None:
    story = Story(mode)
    leader, to = story.leader, story.followers[-1]
    elections = len(story.world.elections)
    leader.step(HandOverTo("operator", to.name))
    assert story.until(lambda: to.leads, "the other leads", seconds=1.0) < 0.5
    story.next_ok(1.0)
    story.on(3.0)
    assert story.leader is to
    assert len(story.world.elections) == elections + 1
    story.level()
    story.ends_well()


def test_the_preferred_leader_leads_and_leads_again_when_it_is_back() -> None:
    story = Story(PREFERRED)
    preferred = story.world.node("n1")
    story.until(lambda: preferred.leads, "it leads", seconds=4.0)
    preferred.crash()
    story.until(lambda: bool(story.world.leaders), "another leads", seconds=3.0)
    story.on(1.0)
    preferred.boot()
    story.until(lambda: preferred.leads, "it leads again", seconds=4.0)
    story.on(5.0)
    assert story.leader is preferred
    story.ends_well()


def test_a_transferee_that_is_cut_off_costs_a_second_of_appends() -> None:
    story = Story()
    leader, to = story.leader, story.followers[0]
    story.cut_off(to)
    leader.step(HandOverTo("operator", to.name))
    assert story.next_ok() <= 2.0
    assert leader.leads
    story.on(2.0)
    # Now the leader knows that it does not answer, and asks nothing of it.
    refused = story.world.count["answered LEADER_TRANSFERRING"]
    leader.step(HandOverTo("operator", to.name))
    story.on(1.0)
    assert story.world.count["answered LEADER_TRANSFERRING"] == refused
    story.ends_well()


def test_a_preferred_leader_that_can_only_follow_costs_no_appends() -> None:
    story = Story(PREFERRED)
    preferred = story.world.node("n1")
    story.until(lambda: preferred.leads, "it leads", seconds=4.0)
    preferred.log.is_held = True
    story.another_leads(preferred)
    story.next_ok()
    refused = story.world.count["answered LEADER_TRANSFERRING"]
    story.on(10.0)
    assert story.world.count["answered LEADER_TRANSFERRING"] <= refused + 2
    preferred.log.is_held = False
    story.until(lambda: preferred.leads, "it leads again", seconds=40.0)
    story.ends_well()


def test_a_preferred_leader_that_a_minority_reaches_is_tried_less_and_less_often() -> None:
    """Its leader hears it, and nobody else would elect it."""
    story = Story(Mode(5, flushes=True, first_entry=True, preferred=True, small=False))
    preferred = story.world.node("n1")
    story.until(lambda: preferred.leads, "it leads", seconds=4.0)
    preferred.crash()
    story.until(lambda: bool(story.world.leaders), "another leads")
    elections = len(story.world.elections)
    for node in story.followers:
        story.world.cuts |= {(preferred.name, node.name), (node.name, preferred.name)}
    preferred.boot()
    story.on(40.0)
    assert elections + 3 <= len(story.world.elections) <= elections + 5
    story.world.cuts.clear()
    story.until(lambda: preferred.leads, "it leads again", seconds=40.0)
    story.ends_well()


def test_a_leader_whose_disk_is_full_leaves_the_lead_to_another_and_takes_it_no_more() -> None:
    story = Story()
    leader = story.leader
    leader.log.is_full = True
    assert story.next_ok() <= 3.0
    assert story.leader is not leader
    for _ in range(3):
        story.leader.crash(power=True)
        story.on(4.0)
        assert not leader.leads
        for node in story.world.nodes:
            node.boot()
        story.on(3.0)
    leader.log.is_full = False
    story.level()
    story.ends_well()


def test_a_follower_whose_log_ends_before_the_leaders_begins_starts_anew() -> None:
    story = Story()
    leader, away = story.leader, story.followers[0]
    away.crash()
    story.on(3.0)
    leader.log.expire_before(leader.log.end_index - 5)
    assert leader.log.begin_index > away.log.end_index + 1
    away.boot()
    story.level()
    assert away.log.begin_index > 0
    story.ends_well()


def test_a_client_is_answered_timeout_while_no_follower_acknowledges_and_full_when_too_many_wait() -> None:
    story = Story(Mode(3, flushes=True, first_entry=True, preferred=False, small=True))
    leader = story.leader
    # Heartbeats are answered, the disks of the followers are not.
    for node in story.followers:
        node.slow_disk_s = 4.0
    story.on(4.0)
    assert story.world.count["answered WAIT_QUORUM_ACK_TIMEOUT"] > 0
    assert story.world.count["answered LEADER_PENDING_FULL"] > 0
    for node in story.followers:
        node.slow_disk_s = 0.0
    story.on(5.0)
    story.next_ok()
    assert leader.leads
    story.ends_well()


def test_an_idle_group_says_little() -> None:
    story = Story()
    story.world.send_s = (1000.0, 1000.0)
    story.on(3.0)
    steps = story.world.clock.steps
    story.on(10.0)
    # Ten seconds: twenty heartbeats to each of two, their answers, and as many looks at the time.
    assert story.world.clock.steps - steps < 250


def test_a_handed_over_token_is_ended_once() -> None:
    story = Story()
    ended = []
    leader, to = story.leader, story.followers[0]
    act = leader._act

    def keep(action: object) -> None:
        if type(action).__name__ == "HandOverEnded":
            ended.append(action)
        act(action)  # type: ignore[arg-type]

    leader._act = keep  # type: ignore[method-assign]
    leader.step(HandOverTo("operator", to.name))
    story.on(3.0)
    assert [one.code for one in ended] == [DLedgerResponseCode.SUCCESS]  # type: ignore[attr-defined]
