"""Stories of the failover simulator in which stores and coordinators come back older, emptied, full or shut."""

from __future__ import annotations

import pytest

from haservice.coordination.cluster import FAILOVER, STATUS, Status, decode
from haservice.typed_json import encode
from tests.chaos.failover_sim import Mode
from tests.chaos.failover_stuck import why_stuck
from tests.chaos.test_failover_simulator import ASYNC_PAIR, SYNC_PAIR, SYNC_THREE, Story

SEEDS = range(1, 9)


def restarted_older(story: Story, name: str, seconds: float = 4.0) -> None:
    """The store of a broker is put back as it was so long ago; the others are gone meanwhile, and come back first."""
    node = next(one for one in story.world.nodes if one.name == name)
    copy = node.copy()
    story.on(seconds)
    story.world.quiet = True
    story.on(1.5)  # the coordinator hears of the end
    for one in story.world.nodes:
        one.crash()
    story.world.emptied.add(name)
    node.put_back(copy)
    node.boot()
    story.world.quiet = False


@pytest.mark.parametrize("mode", [SYNC_PAIR, SYNC_THREE, ASYNC_PAIR], ids=str)
def test_a_last_master_that_was_put_back_does_not_take_its_lease_again(mode: Mode) -> None:
    """Not even if it is asked to: a connected slave has everything, and the coordinator knows what it had."""
    for seed in SEEDS:
        story = Story(mode, seed)
        restarted_older(story, "a")
        story.ask(FAILOVER, story.a)
        for one in story.world.nodes[1:]:
            one.boot()
        story.on(8.0)
        assert story.a.opened < 2000
        story.until(lambda s=story: any(one.serves for one in s.world.nodes[1:]), "a slave took over")  # type: ignore[misc]
        story.until(lambda s=story: len(s.a.log) >= s.a.whole_from > 0, "a is whole again")  # type: ignore[misc]
        story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_a_last_master_that_was_put_back_waits_for_its_slave(mode: Mode) -> None:
    for seed in SEEDS:
        story = Story(mode, seed)
        restarted_older(story, "a")
        story.on(15.0)
        assert not story.a.serves
        assert "by what the coordinator remembers it had acknowledged up to" in story.a.rounds.why
        assert why_stuck(story.world) or not story.b.up
        story.b.boot()
        story.serving(story.b)
        story.ends_well()


def test_a_last_master_that_an_older_version_told_of_is_measured_by_its_end() -> None:
    story = Story(SYNC_PAIR)
    restarted_older(story, "a")
    server = story.world.server
    status = decode(server.read()).status
    assert status is not None
    story.world.server.keys[STATUS] = server.keys[STATUS]._replace(
        value=encode(Status(status.replica_id, status.epoch, status.end))
    )
    story.on(15.0)
    assert not story.a.serves
    assert "had acknowledged up to" in story.a.rounds.why
    story.b.boot()
    story.serving(story.b)
    story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_a_slave_that_was_put_back_does_not_take_over(mode: Mode) -> None:
    for seed in SEEDS:
        story = Story(mode, seed)
        restarted_older(story, "b")
        story.on(15.0)
        assert not story.b.serves
        assert "had acknowledged up to" in story.b.rounds.why
        assert story.b.whole_from > len(story.b.log), "it is written down"
        story.a.boot()
        story.serving(story.a)
        story.until(lambda s=story: len(s.b.log) >= s.b.whole_from, "b is whole again")  # type: ignore[misc]
        story.on(3.0)
        story.a.crash()
        story.serving(story.b)
        story.ends_well()


def test_a_slave_that_was_put_back_counts_once_it_has_all_and_not_once_it_has_what_was_told() -> None:
    """What the coordinator was told of is a round old; the master that fills the slave up dies meanwhile."""
    for seed in SEEDS:
        story = Story(SYNC_PAIR, seed)
        copy = story.b.copy()
        story.on(4.0)
        story.world.cut_off.add("a")  # from now on nothing is told, and the lease has seconds left
        story.on(2.0)
        story.b.crash()
        story.a.crash()
        story.world.emptied.add("b")
        story.b.put_back(copy)
        story.world.cut_off.clear()
        story.a.boot()
        story.b.boot()
        told = decode(story.world.server.read()).status
        assert told is not None
        story.until(lambda s=story, end=told.told["b"].end: len(s.b.log) >= end, "b has that", step_s=0.002)  # type: ignore[misc]
        story.a.crash()
        story.on(15.0)
        assert len(story.b.log) >= story.b.whole_from or not story.b.serves
        story.a.boot()
        story.until(lambda s=story: s.a.serves or s.b.serves, "one serves")  # type: ignore[misc]
        story.ends_well()


def test_of_three_one_that_was_put_back_is_not_heard() -> None:
    """c lags, b has all and is put back; c would count b."""
    for seed in SEEDS:
        story = Story(SYNC_THREE, seed)
        story.c.stalled = True
        restarted_older(story, "b")
        story.c.boot()
        story.on(15.0)
        assert not story.b.serves
        assert not story.c.serves
        story.a.boot()
        story.serving(story.a)
        story.ends_well()


def older_voters(seed: int) -> Story:
    """The coordinator says that a and b are the voters, as they were once; c has everything, and b has not."""
    story = Story(SYNC_THREE, seed)
    story.c.crash()
    story.until(lambda: story.voters == frozenset("ab"), "c is gone")
    backup = story.world.server.backup()
    story.c.boot()
    story.until(lambda: story.voters == frozenset("abc"), "c is a voter")
    story.unlink(story.a, story.b)
    story.until(lambda: story.voters == frozenset("ac"), "b is gone")
    story.on(3.0)
    story.a.crash()
    story.link(story.a, story.b)
    story.world.server.restore(backup)
    return story


def test_by_a_coordinator_of_older_voters_the_one_with_more_leads() -> None:
    for seed in SEEDS:
        story = older_voters(seed)
        story.serving(story.c)
        assert story.b.opened < 2000
        story.on(3.0)
        story.ends_well()


def test_who_is_no_voter_leaves_the_lease_to_a_voter_with_as_much() -> None:
    for seed in SEEDS:
        story = older_voters(seed)
        story.c.unfit = "its disk is full"
        story.on(12.0)
        assert not story.b.serves
        assert f"replica {story.c.id} at c has more" in story.b.rounds.why
        story.c.unfit = ""
        story.serving(story.c)
        story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, SYNC_THREE, ASYNC_PAIR], ids=str)
def test_if_all_lose_power_the_longest_log_leads_by_itself_and_says_so(mode: Mode) -> None:
    for seed in SEEDS:
        story = Story(mode, seed)
        best = max(story.world.nodes[1:], key=lambda one: one.place)
        for node in story.world.nodes:
            node.lose_power(0 if node is best else max(3, len(node.log) - len(best.log) + 3))
        story.a.boot()
        story.on(12.0)
        assert not story.a.serves, "the others are silent, and may have more"
        for node in story.world.nodes[1:]:
            node.boot()
        story.until(lambda best=best: best.opened == 2000, "the one with the longest log leads")  # type: ignore[misc]
        (alarm,) = story.world.alarms
        assert "a power cut left too few whole logs" in alarm
        assert f"{best.id} {best.lineage.epochs[-1].start}" in alarm
        story.serving(best)
        if mode is not ASYNC_PAIR:  # whose master may have had more
            story.ends_well()


def test_if_all_lose_power_and_one_was_emptied_an_operator_decides() -> None:
    story = Story(SYNC_PAIR)
    for node in story.world.nodes:
        node.lose_power(0)
    story.b.empty()
    for node in story.world.nodes:
        node.boot()
    story.on(15.0)
    assert why_stuck(story.world)
    assert not story.a.serves
    story.ask(FAILOVER, story.a, force=True)
    story.until(lambda: story.a.opened == 2000, "a is the master")


def test_if_all_lose_power_once_the_emptied_one_is_whole_again_the_longest_leads() -> None:
    for seed in SEEDS:
        story = Story(SYNC_PAIR, seed)
        story.b.crash()
        story.b.empty()
        story.b.boot()
        story.until(lambda s=story: s.b.lost_power, "b has all again, and has written that down")  # type: ignore[misc]
        mark = story.b.whole_from
        for node in story.world.nodes:
            node.lose_power(len(node.log) - mark + 3)
            node.boot()
        assert len(story.b.log) < mark < story.b.whole_from
        story.until(lambda s=story: s.a.serves or s.b.serves, "one leads by itself")  # type: ignore[misc]
        (alarm,) = story.world.alarms
        assert "a power cut left too few whole logs" in alarm


def test_if_the_coordinator_and_a_store_are_put_back_to_one_moment_the_unhurt_one_leads() -> None:
    for seed in SEEDS:
        story = Story(SYNC_PAIR, seed)
        backup, copy = story.world.server.backup(), story.b.copy()
        story.on(6.0)
        story.b.crash()
        story.world.emptied.add("b")
        story.b.put_back(copy)
        story.world.server.restore(backup)
        story.b.boot()
        story.until(lambda s=story: s.a.opened == 2000, "a begins an epoch")  # type: ignore[misc]
        story.until(lambda s=story: s.b.whole_from > 0, "b hears of what it has lost")  # type: ignore[misc]
        story.on(5.0)
        story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_by_a_coordinator_that_was_emptied_nobody_leads(mode: Mode) -> None:
    for seed in SEEDS:
        story = Story(mode, seed)
        story.world.restored = story.world.ended_early = True
        story.world.server.restore({})
        story.on(8.0)
        story.a.crash()
        story.on(12.0)
        assert not story.b.serves
        assert "restored from a backup, or emptied" in story.b.rounds.why
        story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_a_coordinator_that_is_full_replaces_nobody_until_it_takes_writes_again(mode: Mode) -> None:
    story = Story(mode)
    story.world.full = True
    story.on(12.0)
    assert story.a.serves, "its session lives"
    story.b.stalled = True
    story.on(4.0)
    assert story.a.serves is (mode is SYNC_PAIR), "an ASYNC_MASTER takes no more than may be lost"
    story.b.stalled = False
    story.on(2.0)
    story.a.crash()
    story.on(12.0)
    assert not story.b.serves
    story.world.full = False
    story.serving(story.b)
    story.ends_well()


@pytest.mark.parametrize("mode", [SYNC_PAIR, ASYNC_PAIR], ids=str)
def test_a_broker_without_rights_loses_no_ok(mode: Mode) -> None:
    for seed in SEEDS:
        story = Story(mode, seed)
        story.world.denied.add("ab"[seed % 2])
        story.on(10.0)
        story.a.crash()
        story.on(3.0)
        story.a.boot()
        story.on(10.0)
        story.world.denied.clear()
        story.until(lambda s=story: s.a.serves or s.b.serves, "one serves")  # type: ignore[misc]
        story.ends_well()


def test_a_copy_of_a_store_at_another_address_is_a_replica_of_its_own() -> None:
    for seed in SEEDS:
        story = Story(SYNC_THREE, seed)
        copy = story.b.copy()
        story.c.crash()
        story.c.wipe()
        own = story.c.id
        story.c.put_back(copy)
        story.c.id = own
        story.on(2.0)
        story.c.boot()
        story.until(lambda s=story: s.c.id in s.voters, "the copy is a voter")  # type: ignore[misc]
        story.a.crash()
        story.until(lambda s=story: s.b.serves or s.c.serves, "one serves")  # type: ignore[misc]
        story.on(3.0)
        story.ends_well()
