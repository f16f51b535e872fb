"""What a broker does about its role, with peers and a disk that do what the test wants."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from haservice.bounds import OFFSET_MAX
from haservice.broker.roles.actions import (
    Answer,
    AnswerWith,
    Ask,
    AskOne,
    AwaitLevel,
    Confirm,
    Copy,
    Done,
    Empty,
    End,
    Failed,
    FindOut,
    GatherPledges,
    LeaveMaster,
    Lost,
    NoVote,
    Prove,
    Pull,
    Pulled,
    Refuse,
    Say,
    SendPromote,
    SetMaster,
    Slaves,
    StopLink,
    TakeList,
    TellFollow,
    Turn,
    Votes,
    Write,
)
from haservice.broker.roles.machine import why_busy
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import NewerMaster, RoleInForce, StartOfMaster
from haservice.broker.roles.state import Begin, Hint, RoleState, SlaveAhead, Tick, Who
from haservice.configuration.settings import BrokerRole
from haservice.remoting.headers.lineage import (
    EpochBody,
    FollowHeader,
    ForgetHeader,
    LineageBody,
    MembersBody,
    PledgeHeader,
    PromoteHeader,
    ReinitHeader,
    SwitchoverHeader,
)
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan, Mark
from haservice.replication.lineage.file import HandingOver, Pledge, Replica
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.status import SlaveStatus
from tests.broker.test_roles import ME, OTHER, peer
from tests.support.role_driver import ADDR, Driver, listed, master, slave

NO_ROOM = Failed("No space left on device")
WAITING = {"s": Replica("s:10911", 1500, 1, True)}
NEWER = peer(OTHER, (1, 0, ME), (1000, 800, OTHER), role="SYNC_MASTER")


def follower(end: int, **changes: Any) -> LineageBody:
    """The slave s of our epoch 1."""
    return peer("s", (1, 0, ME), end=end, **changes)


def reason(answer: object) -> str:
    assert isinstance(answer, Refuse), answer
    return answer.reason


# -- a newer epoch -----------------------------------------------------------------------------------


def test_nothing_happens_while_peers_follow() -> None:
    world = Driver(master(), Ask=Heard([follower(900, master_addr=ADDR)])).tell(Tick())
    assert [type(action) for action, _ in world.done] == [Ask]
    assert (world.state, world.state.held) == (master(heard=1), "")


def test_a_newer_master_that_proves_it_is_given_way_to() -> None:
    world = Driver(master(), Ask=Heard([NEWER]), Prove=Done()).tell(Tick())
    assert [one.peer for one in world.did(Prove)] == [NEWER]
    ((written),) = world.wrote
    assert written["command"].role == "SLAVE"
    assert (world.turned, "epoch 1000" in world.state.turning) == (True, True)
    assert world.state.held


def test_a_newer_master_of_our_list_needs_no_other_proof() -> None:
    world = Driver(master(), Ask=Heard([NEWER])).keep(members=listed("s", OTHER)).tell(Tick())
    assert (world.did(Prove), world.turned, world.state.heard) == ([], True, 1000)


def test_a_known_replica_at_another_port_than_its_own_has_to_prove_it() -> None:
    moved = dataclasses.replace(NEWER, broker_addr="127.0.0.1:6666")
    world = Driver(master(), Ask=Heard([moved])).keep(members=listed("s", OTHER)).tell(Tick())
    assert (len(world.did(Prove)), world.turned, world.state.held) == (1, False, "")
    assert "127.0.0.1:6666 claims epoch 1000" in world.state.unproven
    assert world.state.heard == -1


def test_a_strangers_claim_of_a_newer_epoch_deposes_nobody() -> None:
    """By a nameserver's word, or by a hello that names another port: who is there is asked, no more."""
    world = Driver(master(), Ask=Heard([NEWER])).tell(Hint(f"{OTHER}:10911"), Tick())
    assert world.did(Ask)[0].also == (f"{OTHER}:10911",)
    assert (world.turned, world.wrote, world.state.held) == (False, [], "")
    assert f"{OTHER}:10911 claims epoch 1000 without proof" in world.state.unproven
    world.said["Ask"] = Heard()
    assert world.tell(Tick()).state.unproven == ""


def test_the_next_of_two_who_claim_a_newer_epoch_is_asked_when_one_cannot_prove_it() -> None:
    liar = peer("liar", (2000, 0, "liar"), role="SYNC_MASTER")
    world = Driver(master(), Ask=Heard([liar, NEWER]), Prove=[Failed("other bytes"), Done()]).tell(Tick())
    assert [one.peer.replica_id for one in world.did(Prove)] == ["liar", OTHER]
    assert "epoch 1000" in world.state.turning


def test_whom_a_name_server_names_is_asked_once_and_the_word_alone_is_nothing() -> None:
    world = Driver(master()).tell(Hint("there:10911"), Hint("there:10911"), Hint(""), Tick(), Tick())
    assert [one.also for one in world.did(Ask)] == [("there:10911",), ()]
    assert (world.turned, world.state.held) == (False, "")


def test_what_was_newer_yesterday_is_not_in_a_newer_epoch_of_our_own() -> None:
    world = Driver(master(), Epoch(1, 0, ME), Epoch(2000, 500, ME), Ask=Heard([NEWER]), Prove=Done())
    assert world.tell(Tick()).turned is False


def test_a_role_that_cannot_be_written_is_tried_again_and_nothing_is_taken_meanwhile() -> None:
    world = Driver(master(), Ask=Heard([NEWER]), Prove=Done(), Write=NO_ROOM).tell(Tick())
    assert "cannot be written: No space left" in world.state.held
    assert (world.turned, world.state.is_urgent) == (False, True)
    world.said |= {"Ask": Heard(), "Write": Done()}
    world.tell(Tick())
    assert (len(world.wrote), world.turned) == (2, True)


def test_a_master_that_gives_way_follows_no_older_master_than_that_one() -> None:
    """Its own last epoch may have left no byte, and then counts for nothing."""
    world = Driver(master(), Ask=Heard([NEWER]), Prove=Done()).tell(Tick())
    assert world.kept.pledge == Pledge(1000, OTHER, f"{OTHER}:10911")


def test_two_masters_of_one_number_are_told_of() -> None:
    rival = peer(OTHER, (1, 0, OTHER), role="SYNC_MASTER")
    world = Driver(master(), Ask=Heard([rival])).tell(Tick())
    assert any("two masters have one epoch" in one.text for one in world.did(Say))
    assert (world.turned, world.state.held) == (False, "")


RIVAL = peer(OTHER, (1, 0, OTHER), (2003, 900, OTHER), role="SYNC_MASTER")
OWN_PROMOTION = Lineage((Epoch(1, 0, OTHER), Epoch(2000, 500, ME)))


def test_a_master_gives_way_to_no_rival_that_started_oftener() -> None:
    world = Driver(master(), Ask=Heard([RIVAL])).keep(lineage=OWN_PROMOTION).tell(Tick())
    assert any("two masters have one epoch" in one.text for one in world.did(Say))
    assert (world.turned, world.state.held) == (False, "")
    assert "2003 is no newer one" in reason(world.ask(FollowHeader(f"{OTHER}:10911", "", 2003)))


@pytest.mark.parametrize("followed", [True, False])
def test_a_master_that_starts_gives_way_to_a_rival_unless_its_slaves_may_have_made_an_ok(
    followed: bool,
) -> None:
    slaves = {"s": Replica("s:1", 900, 1, followed)}
    world = Driver(master(), Prove=Done()).keep(lineage=OWN_PROMOTION, replicas=slaves)
    world.tell(Begin(Heard([RIVAL]), start()))
    assert world.turned is not followed


def test_slaves_that_follow_another_one_are_told_who_the_master_is() -> None:
    lost = follower(900, master_addr="other:10911")
    world = Driver(master(), Ask=Heard([lost, peer("x", (1, 0, ME))])).tell(Tick())
    assert [one.addr for one in world.did(TellFollow)] == ["s:10911"]
    pledged = dataclasses.replace(lost, pledged=1000)
    assert Driver(master(), Ask=Heard([pledged])).tell(Tick()).did(TellFollow) == []


# -- what a master has lost -------------------------------------------------------------------------


def test_a_held_master_takes_back_what_a_replica_has_and_then_begins_its_epoch() -> None:
    world = Driver(master(waiting=WAITING))
    assert "s:10911" in world.state.held
    world.tell(Tick())
    assert (world.wrote, bool(world.state.waiting)) == ([], True)
    assert world.did(Ask)[0].also == ("s:10911",)
    world.said["Ask"] = Heard([follower(1500)])
    world.tell(Tick())
    assert [(one.begin, one.end) for one in world.did(Pull)] == [(1000, 1500)]
    assert (len(world.wrote), world.kept.lineage.epochs[-1].start) == (1, 1500)
    assert all(world.held_during(Pull) + world.held_during(Write))
    assert (world.state.held, world.state.waiting, world.did(TakeList)) == ("", {}, [TakeList(True)])


def test_a_held_master_goes_on_when_its_replica_has_nothing_more() -> None:
    world = Driver(master(waiting=WAITING), Ask=Heard([follower(1000)])).tell(Tick())
    assert (world.did(Pull), len(world.wrote), world.state.held) == ([], 1, "")


def test_a_replica_that_follows_has_been_heard() -> None:
    world = Driver(master(waiting=WAITING))
    world.followers = frozenset({"s"})
    assert len(world.tell(Tick()).wrote) == 1


def test_every_replica_that_was_in_sync_is_waited_for() -> None:
    waiting = {**WAITING, "t": Replica("t:10911", 1400, 1, True)}
    world = Driver(master(waiting=waiting), Ask=Heard([follower(1000)])).tell(Tick())
    assert world.wrote == []
    assert "t:10911" in world.state.held
    assert "start it" in world.state.held
    assert "mqadmin failover" in world.state.held
    assert "s:10911" not in world.state.held


def test_a_pull_that_fails_leaves_the_master_held_and_says_why() -> None:
    failed = Pulled(1000, "other bytes than we")
    world = Driver(master(waiting=WAITING), Ask=Heard([follower(1500)]), Pull=failed).tell(Tick())
    assert world.wrote == []
    assert "other bytes than we" in world.state.held


def test_a_long_pull_goes_on_piece_by_piece_and_lets_a_request_in_between() -> None:
    world = Driver(master(waiting=WAITING), Ask=Heard([follower(1500)]))
    world.said["Pull"] = [Pulled(1100, more=True), Pulled(1200, more=True), Pulled(1500)]
    world.asked = True
    world.tell(Tick())
    assert (len(world.did(Pull)), world.state.again, world.state.change) == (1, True, None)
    assert "no answer yet" in world.state.held
    world.asked = False
    world.tell(Tick())
    assert [(one.begin, one.end) for one in world.did(Pull)] == [(1000, 1500), (1100, 1500), (1200, 1500)]
    assert (len(world.wrote), world.state.held) == (1, "")


def test_an_epoch_that_cannot_begin_is_tried_again_and_nothing_is_taken_meanwhile() -> None:
    world = Driver(master(waiting=WAITING), Write=NO_ROOM)
    world.followers = frozenset({"s"})
    world.tell(Tick())
    assert world.state.waiting
    assert "No space left" in world.state.held
    # The slave has told all it has; it may go.
    world.followers = frozenset()
    world.said["Write"] = Done()
    world.tell(Tick())
    assert (len(world.wrote), world.state.waiting, world.state.held) == (2, {}, "")


def test_a_held_master_gives_way_like_any_other() -> None:
    newer = peer("s", (1, 0, ME), (1000, 900, "s"), role="SYNC_MASTER")
    world = Driver(master(waiting=WAITING), Ask=Heard([newer])).tell(Tick())
    assert (world.turned, world.did(Pull)) == (True, [])


def test_a_slave_ahead_of_a_master_that_lost_nothing_it_knows_of_is_pulled_from_too() -> None:
    world = Driver(master(), Ask=Heard([follower(1200)])).tell(SlaveAhead("s", "s:10911"))
    assert "copied back" in world.state.held
    world.tell(Tick())
    assert [(one.begin, one.end) for one in world.did(Pull)] == [(1000, 1200)]
    assert (world.state.held, world.wrote) == ("", [])


def test_a_slave_that_was_ahead_and_is_silent_holds_nobody_for_ever() -> None:
    """It dials again, and says so again."""
    world = Driver(master()).tell(SlaveAhead("s", "s:10911"), Tick())
    assert (world.state.held, world.did(Pull)) == ("", [])


# -- doubt ------------------------------------------------------------------------------------------

IN_DOUBT = HandingOver("s:10911", "s")
DOUBT = "it is not known"


def in_doubt(*peers: LineageBody, **known: Any) -> Driver:
    return Driver(master(doubt=DOUBT, **known), Ask=Heard(peers)).keep(handing_over=IN_DOUBT)


def test_a_doubt_ends_with_the_slaves_own_word() -> None:
    world = in_doubt()
    assert world.tell(Tick()).state.held == DOUBT
    assert world.did(Ask)[0].also == ("s:10911",)
    world.said["Ask"] = Heard([follower(1000, changing=True)])
    assert world.tell(Tick()).state.held == DOUBT
    world.said["Ask"] = Heard([follower(1000)])
    world.tell(Tick())
    assert (world.state.held, world.kept.handing_over) == ("", None)


def test_a_doubt_that_is_over_ends_though_that_cannot_be_written() -> None:
    """The next start asks the slave once more."""
    world = in_doubt(follower(1000))
    world.said["Write"] = NO_ROOM
    world.tell(Tick())
    assert (world.state.held, world.kept.handing_over) == ("", IN_DOUBT)


def test_another_broker_at_the_slaves_address_does_not_end_a_doubt() -> None:
    world = in_doubt(peer("new", (1, 0, ME), end=1000, broker_addr="s:10911")).tell(Tick())
    assert (world.state.held, world.kept.handing_over) == (DOUBT, IN_DOUBT)
    # An operator can: a further epoch of ours is above whatever that one had.
    assert isinstance(world.ask(PromoteHeader(min_epoch=2, force=True)), Answer)
    assert (world.state.held, world.kept.handing_over) == ("", None)


def test_no_epoch_begins_in_doubt_whether_another_one_is_the_master() -> None:
    world = in_doubt(waiting=WAITING).keep(handing_over=HandingOver("t:10911", "t"))
    world.followers = frozenset({"s"})
    world.tell(Tick())
    assert (world.wrote, world.state.held) == ([], DOUBT)
    world.said["Ask"] = Heard([peer("t", (1, 0, ME), end=1000)])
    world.tell(Tick())
    assert list(world.wrote[0]) == ["handing_over"]
    assert (len(world.wrote), world.state.held) == (2, "")


def test_a_doubt_ends_when_the_slave_is_the_master() -> None:
    world = in_doubt(peer("s", (1, 0, ME), (1000, 1000, "s"), role="SYNC_MASTER")).tell(Tick())
    assert world.turned
    assert world.state.held


def test_a_hold_belongs_to_who_asked_for_it() -> None:
    """In doubt after a switchover, its disk full for a moment: the epoch that cannot begin lets nothing go."""
    world = in_doubt()
    world.said["Write"] = NO_ROOM
    assert "cannot be written" in reason(world.ask(PromoteHeader(min_epoch=2, force=True)))
    assert (world.state.held, world.turned) == (DOUBT, False)
    assert "No space left" in reason(world.ask(FollowHeader("t:10911", "t:10912", 1000)))
    assert world.state.held


def test_a_master_without_a_number_for_its_epoch_waits_for_an_operator() -> None:
    world = Driver(master(undecided="no number is left"), Ask=Heard([follower(1000)])).tell(Tick())
    assert (world.wrote, world.state.held, world.state.must_begin_anew) == ([], "no number is left", True)
    assert isinstance(world.ask(PromoteHeader(min_epoch=1000, force=True)), Answer)
    assert (world.state.held, world.kept.lineage.epochs[-1].number) == ("", 1000)


# -- the start of a master --------------------------------------------------------------------------


def start(**changes: Any) -> StartOfMaster:
    known: dict[str, Any] = {"stopped_cleanly": True, "booted_anew": False, "flushes_at_once": False}
    return StartOfMaster(LogSpan(0, 1000), **{**known, **changes})


def test_a_master_goes_on_in_its_epoch() -> None:
    world = Driver(master()).tell(Begin(Heard(), start()))
    assert (world.state.held, world.kept.lineage.epochs) == ("", (Epoch(1, 0, ME),))
    assert world.kept.boot_id == "boot"


def test_a_master_whose_machine_went_down_waits_and_writes_nothing_of_it() -> None:
    crashed = start(stopped_cleanly=False, booted_anew=True)
    world = Driver(master()).keep(replicas=WAITING).tell(Begin(Heard(), crashed))
    assert (world.wrote, set(world.state.waiting)) == ([], {"s"})


def test_a_master_whose_log_ends_before_what_it_told_waits_until_it_is_whole() -> None:
    world = Driver(master()).keep(replicas=WAITING).tell(Begin(Heard(), start(had_end=1500)))
    assert "lineage/durable" in world.state.held
    assert "1500 of epoch 1" in world.state.held
    assert (set(world.state.waiting), world.state.must_begin_anew) == ({"s"}, True)
    assert world.kept.whole_from == 1500  # the next start finds it so
    # What its slave has is not all.
    world.said["Ask"] = Heard([follower(1400)])
    world.tell(Tick())
    assert world.end == 1400
    assert world.state.held
    assert "had acknowledged up to 1500" in reason(world.ask(PromoteHeader(min_epoch=1000)))
    world.said["Ask"] = Heard([follower(1500)])
    world.state = world.state.but(caught_up=frozenset())
    world.tell(Tick())
    assert (world.state.held, world.kept.whole_from, world.kept.lineage.epochs[-1].number) == ("", 0, 2)


def test_a_master_takes_back_what_a_slave_that_answers_has_before_it_takes_writes() -> None:
    """Its volume was put back from an older copy; nothing beside the log knows of it."""
    world = Driver(master()).tell(Begin(Heard([follower(1400)]), start()))
    assert (set(world.state.waiting), world.wrote) == ({"s"}, [])
    world.said["Ask"] = Heard([follower(1400)])
    world.tell(Tick())
    assert (world.state.held, world.end, world.kept.lineage.epochs[-1].number) == ("", 1400, 2)


@pytest.mark.parametrize("case", ["log moved away", "an older copy", "power alone", "promoted"])
def test_a_power_cut_of_before_is_no_excuse_for_a_log_that_was_put_back(case: str) -> None:
    """A coordinator lets a log lead that lacks only what power cuts took."""
    world = Driver(master()).keep(lost_power=True)
    if case == "log moved away":
        world.tell(Begin(Heard(), start(had_end=1500)))
    elif case == "an older copy":
        said = peer("s", (1, 0, ME), (1000, 800, ME), end=1400)
        world = Driver(master(), Ask=Heard([said])).keep(lost_power=True).tell(Tick())
    elif case == "power alone":
        world.keep(whole_from=OFFSET_MAX).tell(Begin(Heard(), start()))
    else:
        world = candidate("s", GatherPledges=Votes([voter("s")])).keep(lost_power=True, whole_from=900)
        assert isinstance(world.ask(PromoteHeader("SYNC_MASTER")), Answer)
    assert bool(world.state.held) is (case != "promoted")
    assert world.kept.lost_power is (case == "power alone")


def test_a_master_that_a_slave_knows_from_a_later_epoch_waits_for_an_operator() -> None:
    world = Driver(master()).tell(Begin(Heard([peer("s", (1, 0, ME), (1000, 800, ME), end=1400)]), start()))
    assert "s:10911 remembers" in world.state.held
    assert "of epoch 1000" in world.state.held
    assert world.kept.whole_from == OFFSET_MAX
    later = Driver(master(), Ask=Heard([peer("s", (1, 0, ME), (1000, 800, ME), end=1400)])).tell(Tick())
    assert "s:10911 remembers" in later.state.held  # the slave was away when it started
    stranger = peer("x", (1, 0, ME), (1000, 800, ME), end=1400)
    assert not Driver(master()).tell(Begin(Heard([stranger]), start())).state.held


def test_a_master_that_began_an_epoch_without_a_slave_that_has_more_of_the_one_before_waits() -> None:
    """Its volume was put back from before that slave came, and the slave was away when it started."""
    restarted = (Epoch(1, 0, ME), Epoch(2, 800, ME))
    older = Driver(master(), *restarted, Ask=Heard([follower(900)])).tell(Tick())
    assert "its log ends at 800 of epoch 1" in older.state.held
    assert "s:10911 remembers it had acknowledged up to 900" in older.state.held
    assert older.kept.whole_from == OFFSET_MAX
    for one in (
        Driver(master(), *restarted, Ask=Heard([follower(800)])),
        Driver(master(BrokerRole.ASYNC_MASTER), *restarted, Ask=Heard([follower(900)])),
        Driver(master(), *restarted, Ask=Heard([follower(900)])).keep(joined=1000),
        Driver(master(), *restarted, Ask=Heard([peer("x", (1, 0, ME), end=900)])),
    ):
        assert not one.tell(Tick()).state.held


def test_a_slave_that_was_let_back_on_a_later_list_has_to_be_compared_first() -> None:
    """Its volume was put back from a moment at which that slave was forgotten."""
    later = MembersBody(1, 5, ME, 1, 0, {ME: ADDR, "x": "x:10911"})
    said = peer("x", (1, 0, ME), end=900, members=later)
    world = Driver(master(), Epoch(1, 0, ME), Epoch(2, 800, ME), Ask=Heard([said]))
    world.keep(forgotten={"x": (1, 4)}).tell(Tick())
    assert not world.state.held
    world.tell(SlaveAhead("x", "x:10911"), Tick())
    assert "x:10911 remembers it had acknowledged up to 900" in world.state.held


def test_a_broker_that_only_its_file_makes_the_master_counts_first() -> None:
    epochs = Epoch(1, 0, ME), Epoch(1000, 500, "s")
    world = Driver(master(), *epochs).keep(members=listed(ME, by="s")).tell(Begin(Heard(), start()))
    assert "epoch 1000 was another broker's" in world.state.held
    assert not world.wrote
    assert isinstance(world.ask(PromoteHeader(min_epoch=1001)), Answer)
    assert (world.state.held, world.kept.lineage.epochs[-1].number) == ("", 2000)
    unlisted = Driver(master(), *epochs).keep(members=listed("t", by="s")).tell(Begin(Heard(), start()))
    assert "not on its master's list" in reason(unlisted.ask(PromoteHeader(min_epoch=1001)))


@pytest.mark.parametrize(
    ("known", "heard", "is_held"),
    [
        ({}, [], False),  # a stock broker's log
        ({"has_own_marks": True}, [], True),
        ({}, ["s"], True),
    ],
)
def test_a_master_that_lost_its_record_of_epochs_takes_no_writes(
    known: dict[str, bool], heard: list[str], is_held: bool
) -> None:
    world = Driver(master()).keep(lineage=Lineage(), members=ReplicaList())
    world.tell(Begin(Heard([follower(900) for _ in heard]), start(**known)))
    assert bool(world.state.held) is is_held
    assert ("its own record of votes and epochs is missing" in world.state.held) is is_held
    assert bool(world.kept.lineage.epochs) is not is_held


def test_a_master_that_cannot_write_its_epoch_does_not_start() -> None:
    world = Driver(master(), Write=NO_ROOM).tell(Begin(Heard(), start()))
    assert "No space left" in world.state.broken


def test_a_master_that_was_handing_over_starts_in_doubt() -> None:
    world = Driver(master()).keep(handing_over=IN_DOUBT).tell(Begin(Heard(), start()))
    assert ("s:10911" in world.state.held, world.kept.handing_over) == (True, IN_DOUBT)
    sure = Driver(master()).keep(handing_over=IN_DOUBT).tell(Begin(Heard([follower(1000)]), start()))
    assert (sure.state.held, sure.kept.handing_over) == ("", None)


def test_a_master_that_lost_what_it_was_does_not_follow_itself() -> None:
    """Its lineage file is gone, and a slave names the master at its own address, who was another replica."""
    before = peer("s", (7, 0, "who it was"), end=1000, master_addr=ADDR)
    world = Driver(master()).keep(members=listed(ME, "s")).tell(Begin(Heard([before]), start()))
    assert "what it knew of epochs and replicas is lost" in world.state.held
    assert "failover -b broker-a --to s:10911 makes a broker with all messages the master" in world.state.held
    assert (world.turned, world.wrote) == (False, [])


def test_an_empty_master_in_the_place_of_another_becomes_a_slave() -> None:
    """Its machine was replaced, and its slave still names the master that had its address."""
    before = peer("s", (7, 0, "who it was"), end=1000, master_addr=ADDR)
    empty = Driver(master())
    empty.end = 0
    empty.keep(lineage=Lineage(), members=ReplicaList()).tell(Begin(Heard([before]), start()))
    assert empty.turned
    assert "what it knew" not in empty.state.held


def test_an_empty_master_gives_way_without_a_proof_and_one_with_messages_does_not() -> None:
    world = Driver(master()).tell(Begin(Heard([NEWER]), start()))
    assert (len(world.did(Prove)), world.turned) == (1, False)
    empty = Driver(master())
    empty.end = 0
    assert empty.tell(Begin(Heard([NEWER]), start())).turned


# -- handing over -----------------------------------------------------------------------------------

TARGET = peer("s", (1, 0, ME), end=1000)
PROMOTED = dataclasses.replace(
    TARGET, role="SYNC_MASTER", broker_id=0, epochs=(EpochBody(1, 0, ME), EpochBody(1000, 1000, "s"))
)
LOST = Lost("no answer within 1 s")


def at(name: str, ack: int = 1000, addr: str = "") -> SlaveStatus:
    return SlaveStatus(
        f"{name}:1", "TRANSFER", ack, ack, ack, 0, 0, 0.0, 0.0, None, replica_id=name,
        broker_addr=addr or f"{name}:10911",
    )  # fmt: skip


def switching(**said: Any) -> Driver:
    known = {"LookAtSlaves": Slaves([at("s")]), "Ask": Heard([TARGET], {1: TARGET.broker_addr})}
    return Driver(master(), **{**known, "SendPromote": PROMOTED, **said})


def switch(world: Driver, target: str = "", min_epoch: int = 0) -> object:
    return world.ask(SwitchoverHeader(target, 1000, min_epoch))


def test_the_slave_is_told_where_the_log_ends_and_whom_to_ask() -> None:
    world = switching()
    answer = switch(world)
    assert isinstance(answer, AnswerWith)
    assert (answer.body.new_master, answer.body.epoch, answer.body.logged_end) == (
        TARGET.broker_addr,
        1000,
        1000,
    )
    (told,) = world.did(SendPromote)
    assert (told.header.role, told.header.expected_end, told.header.min_epoch) == ("SYNC_MASTER", 1000, 2)
    assert (told.header.confirm_addr, bool(told.header.token)) == (ADDR, True)
    assert all(world.held_during(AwaitLevel) + world.held_during(SendPromote))
    assert (world.turned, world.kept.command and world.kept.command.broker_id) == (True, 1)
    assert world.kept.pledge == Pledge(1000, "s", TARGET.broker_addr)


def test_the_slave_may_ask_back_by_the_token_that_it_was_told_while_its_answer_is_awaited() -> None:
    tokens = []

    def promote(action: SendPromote) -> LineageBody:
        tokens.append((action.header.token, world.state.token))
        return PROMOTED

    world = switching(SendPromote=promote)
    switch(world)
    ((told, known),) = tokens
    assert told == known != ""


def test_a_slave_that_is_not_who_it_says_is_passed_over() -> None:
    """It is nearer, and nobody answers as that replica where it says that clients reach it."""
    both = Slaves([at("s"), at("x", 1001)])
    world = switching(LookAtSlaves=both)
    assert isinstance(switch(world, min_epoch=9), AnswerWith)
    assert [(one.addr, one.header.min_epoch) for one in world.did(SendPromote)] == [(TARGET.broker_addr, 9)]
    named = switching(LookAtSlaves=both, AskOne=dataclasses.replace(TARGET, replica_id="y"))
    assert "x:10911 does not answer there" in reason(switch(named, "x:10911"))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (Failed("AclException: No accessKey is configured", answered=True), "aclCredentialsFile"),
        (Failed("AclException: No accessKey is configured", answered=True), "No accessKey is configured"),
        (Failed("it is silent"), "does not answer there, which it would as a master: it is silent"),
        (
            Failed("Connection refused"),
            "does not answer there, which it would as a master: Connection refused",
        ),
    ],
)
def test_why_a_slave_cannot_be_asked_is_said(word: Failed, said: str) -> None:
    world = switching(LookAtSlaves=Slaves([at("s"), at("x", 1001)]), AskOne=word)
    assert said in reason(switch(world, "x:10911"))
    assert world.state.held == ""


def test_what_else_holds_appends_is_an_obstacle() -> None:
    """A full disk is none: the hands leave it out of what they call unwritable."""
    world = switching()
    world.unwritable = "queues are not complete yet"
    assert "queues are not complete yet" in reason(switch(world))
    assert world.did(SendPromote) == []


def test_the_epoch_of_a_switchover_begins_on_the_other_side_alone() -> None:
    world = switching()
    before = world.kept.lineage
    switch(world)
    assert world.kept.lineage == before


def test_a_slave_that_does_not_get_level_is_not_promoted() -> None:
    world = switching(AwaitLevel=Failed("s:10911 has acknowledged 999 of 1000 in time"))
    assert "has acknowledged 999 of 1000" in reason(switch(world))
    assert (world.did(SendPromote), world.state.held, world.state.token) == ([], "", "")


def test_a_slave_that_says_no_leaves_all_as_it_was() -> None:
    world = switching(SendPromote=Failed("the log ends at 7", answered=True))
    assert "was not promoted: the log ends at 7" in reason(switch(world))
    assert (world.state.held, world.state.token, world.kept.handing_over) == ("", "", None)


def test_a_lost_answer_of_a_slave_that_was_promoted_is_found_out() -> None:
    world = switching(SendPromote=LOST, FindOut=PROMOTED)
    answer = switch(world)
    assert isinstance(answer, AnswerWith)
    assert (answer.body.epoch, [one.epoch for one in world.did(FindOut)]) == (1000, [2])


def test_a_lost_answer_of_a_slave_that_was_not_promoted_undoes_it() -> None:
    tokens: list[str] = []
    world = switching(SendPromote=LOST)

    def found(_: FindOut) -> Failed:
        tokens.append(world.state.token)
        return Failed("it says that it was not", answered=True)

    world.said["FindOut"] = found
    assert "was not promoted" in reason(switch(world))
    assert world.state.held == ""
    # Whatever of the request is still on its way comes to nothing, since before the slave was asked.
    assert tokens == [""]


def test_a_slave_that_stays_silent_leaves_a_doubt_and_nothing_is_taken() -> None:
    world = switching(SendPromote=LOST, FindOut=Lost("it does not answer"))
    assert "nothing is taken until it is" in reason(switch(world))
    assert world.state.held
    assert world.kept.handing_over == HandingOver(TARGET.broker_addr, "s")
    world.said["Ask"] = Heard([TARGET])
    world.tell(Tick())
    assert (world.state.held, world.kept.handing_over) == ("", None)


def test_whom_it_is_handed_over_to_is_written_before_the_slave_is_told() -> None:
    written: list[HandingOver | None] = []
    world = switching()
    world.said["SendPromote"] = lambda _: written.append(world.kept.handing_over) or PROMOTED
    switch(world)
    assert written == [HandingOver(TARGET.broker_addr, "s")]


def test_a_switchover_that_cannot_be_written_is_none() -> None:
    world = switching(Write=NO_ROOM)
    assert "cannot be written" in reason(switch(world))
    assert (world.did(SendPromote), world.state.held, world.state.token) == ([], "", "")


def test_a_master_hands_over_in_no_epoch_above_one_that_is_pledged_or_has_begun_elsewhere() -> None:
    """A candidate that others have pledged to may be late, and gives OK in its epoch all the same."""
    world = switching()
    said = reason(switch(world, min_epoch=1001))
    assert "epoch 1000 has begun or is pledged" in said
    assert f"mqadmin failover --to {ADDR}" in said
    assert (world.did(AwaitLevel), world.wrote, world.state.change) == ([], [], None)
    assert isinstance(switch(world, min_epoch=1000), AnswerWith)


def test_a_slave_hands_nothing_over_and_a_held_master_neither() -> None:
    assert "is a slave" in reason(Driver(slave()).ask(SwitchoverHeader()))
    assert DOUBT in reason(switch(Driver(master(doubt=DOUBT))))


# -- becoming the master ----------------------------------------------------------------------------


def candidate(*slaves: str, needed: int = 1, **said: Any) -> Driver:
    """The slave of m, whose other slaves they are."""
    world = Driver(slave(), Epoch(1, 0, "m"), **said)
    return world.keep(members=listed(ME, *slaves, by="m", needed=needed))


def voter(name: str, end: int = 1000) -> LineageBody:
    return peer(name, (1, 0, "m"), end=end, pledged=1000, pledged_to=ADDR)


def test_a_slave_becomes_the_master_by_the_pledges_of_the_others() -> None:
    world = candidate("s", GatherPledges=Votes([voter("s")]))
    assert isinstance(world.ask(PromoteHeader("SYNC_MASTER")), Answer)
    (asked,) = world.did(GatherPledges)
    assert (asked.addrs, asked.header) == (("m:10911", "s:10911"), PledgeHeader(1000, ME, ADDR))
    kinds = [type(action) for action, _ in world.done]
    assert kinds.index(StopLink) < kinds.index(GatherPledges) < kinds.index(Write)
    last = world.kept.lineage.epochs[-1]
    assert (last.number, last.start, last.master, world.turned) == (1000, 1000, ME, True)


def test_a_promotion_that_is_not_safe_wants_force_and_says_what_is_not_known() -> None:
    votes = Votes([], [NoVote("s:10911", "Connection refused")])
    world = candidate("s", GatherPledges=votes)
    said = reason(world.ask(PromoteHeader("SYNC_MASTER")))
    assert "s:10911 may have acknowledged messages that no other broker has" in said
    assert "Connection refused" in said
    assert (world.wrote, world.turned) == ([], True)
    forced = candidate("s", GatherPledges=votes)
    assert isinstance(forced.ask(PromoteHeader("SYNC_MASTER", force=True)), Answer)


def test_a_slave_that_lost_its_end_in_a_power_cut_is_no_safe_choice() -> None:
    said = reason(candidate(GatherPledges=Votes([])).keep(whole_from=1001).ask(PromoteHeader("SYNC_MASTER")))
    assert "has not caught up since" in said


def test_nobody_is_promoted_beside_a_master_that_lives() -> None:
    lives = peer("m", (1, 0, "m"), end=1000, role="SYNC_MASTER")
    world = candidate("s", GatherPledges=Votes([voter("s"), lives]))
    assert "accepts writes: mqadmin switchover loses nothing" in reason(
        world.ask(PromoteHeader("SYNC_MASTER"))
    )


def going_on(**said: Any) -> Driver:
    """A master with two slaves, s and t, of which each may hold an OK."""
    return Driver(master(), Epoch(1, 0, ME), **said).keep(members=listed(ME, "s", "t", by=ME))


def test_a_master_that_is_to_go_on_asks_whether_there_is_a_newer_one() -> None:
    pledged = [peer(one, (1, 0, ME), end=900, pledged=1000, pledged_to=ADDR) for one in "st"]
    world = going_on(GatherPledges=Votes(pledged))
    assert isinstance(world.ask(PromoteHeader(min_epoch=2)), Answer)
    assert world.kept.lineage.epochs[-1].number == 1000
    alone = going_on(GatherPledges=Votes(pledged[:1], [NoVote("t:10911", "Connection refused")]))
    assert "t:10911 may follow a newer master" in reason(alone.ask(PromoteHeader(min_epoch=2)))
    assert (alone.wrote, alone.state.held) == ([], "")
    forced = going_on(GatherPledges=Votes([]))
    assert isinstance(forced.ask(PromoteHeader(min_epoch=2, force=True)), Answer)
    assert forced.did(GatherPledges) == []


def test_a_master_goes_on_over_what_another_one_of_its_number_wrote_by_force_alone() -> None:
    """Two sides of a cut network have each begun epoch 1000.  What t holds of the other one's may be OK."""
    ours, others = Epoch(1000, 500, ME), (1000, 500, OTHER)
    for end, lost in ((500, False), (900, True)):
        votes = [
            peer("s", (1, 0, "m"), (1000, 500, ME), end=900, pledged=2000, pledged_to=ADDR),
            peer("t", (1, 0, "m"), others, end=end, pledged=2000, pledged_to=ADDR),
        ]
        world = Driver(master(), Epoch(1, 0, "m"), ours, GatherPledges=Votes(votes))
        world.keep(members=listed(ME, "s", "t", by=ME))
        said = world.ask(PromoteHeader(min_epoch=1001))
        assert isinstance(said, Refuse if lost else Answer), said
        assert (world.wrote == []) == lost
        if lost:
            assert "two masters had epoch 1000" in reason(said)
            assert isinstance(world.ask(PromoteHeader(min_epoch=1001, force=True)), Answer)
        assert world.kept.lineage.epochs[-1].number == 2000


def test_a_slave_that_another_one_is_ahead_of_is_not_promoted() -> None:
    world = candidate("s", GatherPledges=Votes([voter("s", 1001)]))
    assert "s:10911 has the log up to 1001" in reason(world.ask(PromoteHeader("SYNC_MASTER")))


def test_a_promotion_in_a_switchover_asks_the_master_back_and_nobody_else() -> None:
    header = PromoteHeader("SYNC_MASTER", 1000, 1000, confirm_addr="m:10911", token="t")
    world = candidate("s")
    assert isinstance(world.ask(header), Answer)
    assert (world.did(Confirm), world.did(GatherPledges)) == ([Confirm("m:10911", "t")], [])
    gone = candidate("s", Confirm=Failed("the master does not hand over any more"))
    assert "does not hand over any more" in reason(gone.ask(header))
    assert (gone.wrote, gone.turned) == ([], True)


def test_nobody_is_handed_over_to_who_has_pledged_itself_to_another_slave_meanwhile() -> None:
    """That one may count on it, and be the master by now."""
    world = candidate("s", OTHER).keep(pledge=PROMISE)
    said = reason(world.ask(PromoteHeader("SYNC_MASTER", 1000, 2, confirm_addr="m:10911", token="t")))
    assert f"has pledged to {PROMISE.broker_addr} for epoch 1000" in said
    assert (world.kept.pledge, world.wrote, world.did(StopLink), world.turned) == (PROMISE, [], [], False)


def test_a_promotion_without_a_last_copy_goes_on_and_says_so() -> None:
    world = candidate(Copy=Failed("its master did not give it within 0.5 s"))
    assert isinstance(world.ask(PromoteHeader("SYNC_MASTER")), Answer)
    assert (world.did(Copy), any("without a last copy" in one.text for one in world.did(Say))) == (
        [Copy(False)],
        True,
    )


@pytest.mark.parametrize(
    "said", [{"StopLink": Failed("does not end")}, {"Write": NO_ROOM}, {"StopLink": End(990)}]
)
def test_a_promotion_that_fails_once_its_link_is_down_begins_another_life(said: dict[str, Any]) -> None:
    world = candidate(**said)
    assert reason(world.ask(PromoteHeader("SYNC_MASTER", 1000)))
    assert (world.turned, world.kept.lineage.epochs[-1].number) == (True, 1)


def test_what_is_wrong_with_a_promotion_from_the_start_leaves_the_link_alone() -> None:
    for header, said in (
        (PromoteHeader("SLAVE"), "neither ASYNC_MASTER nor SYNC_MASTER"),
        (PromoteHeader("SYNC_MASTER", 999), "the log ends at 1000, and not at 999"),
    ):
        world = candidate()
        assert said in reason(world.ask(header))
        assert (world.turned, world.did(StopLink), why_busy(world.state)) == (False, [], "")


# -- pledges ----------------------------------------------------------------------------------------

ASKED = PledgeHeader(1000, OTHER, f"{OTHER}:10911")
PROMISE = Pledge(1000, OTHER, f"{OTHER}:10911")


ASKS = peer(OTHER, (1, 0, "m"), changing=True)


def voting(**said: Any) -> Driver:
    """A slave on whose list the candidate is, which says that it asks for this."""
    return candidate("s", OTHER, **{"AskOne": ASKS, **said})


def test_a_pledge_is_written_then_the_link_is_left_then_it_is_answered() -> None:
    world = voting()
    assert isinstance(world.ask(ASKED), Answer)
    assert [type(action) for action, _ in world.done if not isinstance(action, Say)] == [
        AskOne, Write, LeaveMaster, Answer,
    ]  # fmt: skip
    assert (world.kept.pledge, world.turned) == (PROMISE, False)


def test_a_pledge_that_cannot_be_written_is_none() -> None:
    world = voting(Write=NO_ROOM)
    assert "No space left" in reason(world.ask(ASKED))
    assert (world.kept.pledge, world.did(LeaveMaster), world.state.change) == (None, [], None)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (Failed("it is silent"), "it is silent"),
        (peer(OTHER, (1, 0, "m")), "does not ask for this"),
        (peer("x", (1, 0, "m"), changing=True), "does not ask for this"),
    ],
)
def test_a_pledge_that_its_candidate_does_not_ask_for_is_none(word: object, said: str) -> None:
    world = voting(AskOne=word)
    assert said in reason(world.ask(ASKED))
    assert world.wrote == []


def test_nobody_pledges_himself_to_a_stranger() -> None:
    assert "is not on the list" in reason(candidate("s", AskOne=ASKS).ask(ASKED))


def test_whom_a_slave_was_told_to_forget_is_on_its_list_again_with_the_pledge() -> None:
    """Its operator took it for lost; it asks for a pledge, and says so where it is asked."""
    world = voting()
    given = world.kept.members
    assert isinstance(world.ask(ForgetHeader(OTHER)), Answer)
    assert (world.kept.members, world.kept.given) == (given.written_off(OTHER), given)
    assert isinstance(world.ask(ForgetHeader("s")), Answer)
    world.said["AskOne"] = peer(OTHER, (1, 0, "m"))
    assert "does not ask for this" in reason(world.ask(ASKED))
    assert OTHER not in world.kept.members.replicas
    world.said["AskOne"] = ASKS
    assert isinstance(world.ask(ASKED), Answer)
    assert (world.kept.pledge, world.kept.members) == (PROMISE, given.written_off("s"))


def test_who_was_forgotten_by_a_master_of_the_list_since_is_not_let_back() -> None:
    world = voting()
    given = world.kept.members
    newer = given.forgotten(1, Mark(1, 1000), OTHER).taken_effect()
    world.keep(members=newer, given=given)
    assert "is not on the list" in reason(world.ask(ASKED))


def test_a_slave_that_becomes_the_master_asks_whom_it_was_told_to_forget_as_well() -> None:
    """That one has no say any more, but what it has is known of."""
    world = candidate("s", GatherPledges=Votes([voter("s", 1001)]))
    assert isinstance(world.ask(ForgetHeader("s")), Answer)
    assert "s has the log up to 1001" in reason(world.ask(PromoteHeader("SYNC_MASTER")))
    assert world.did(GatherPledges)[0].addrs == ("m:10911", "s:10911")
    world = candidate("s", GatherPledges=Votes([]))
    world.ask(ForgetHeader("s"))
    assert isinstance(world.ask(PromoteHeader("SYNC_MASTER")), Answer)
    assert world.kept.given == ReplicaList()


def test_who_refuses_its_pledge_is_named_with_its_reason_and_not_called_silent() -> None:
    votes = Votes(
        [], [NoVote("m:10911", "Connection refused"), NoVote("s:10911", "it will not", answered=True)]
    )
    said = reason(candidate("s", GatherPledges=votes).ask(PromoteHeader("SYNC_MASTER")))
    assert "and 1 counts: s:10911 answers, but refuses: it will not; m:10911: Connection refused" in said
    assert said.endswith("--force does it all the same")
    assert "may have acknowledged" not in said
    said = reason(going_on(GatherPledges=votes).ask(PromoteHeader(min_epoch=2)))
    assert "s:10911 answers, but refuses: it will not" in said
    assert "t:10911 may follow a newer master" in said


S_ASKS = peer("s", (1, 0, "m"), changing=True)


@pytest.mark.parametrize(
    ("pledge", "header", "taken"),
    [
        (None, ASKED, True),
        (PROMISE, ASKED, True),
        (PROMISE, PledgeHeader(1000, "s", "s:10911"), False),
        (PROMISE, PledgeHeader(2000, "s", "s:10911"), True),
        (Pledge(2000, "s", "s:10911"), ASKED, False),
        (None, PledgeHeader(1, "s", "s:10911"), False),
    ],
)
def test_nobody_pledges_himself_twice_for_one_number(
    pledge: Pledge | None, header: PledgeHeader, taken: bool
) -> None:
    asks = ASKS if header.replica_id == OTHER else S_ASKS
    answer = voting(AskOne=asks).keep(pledge=pledge).ask(header)
    assert isinstance(answer, Answer) is taken


def test_a_master_pledges_nothing_but_says_that_it_lives() -> None:
    world = Driver(master())
    assert isinstance(world.ask(ASKED), Answer)
    assert (world.wrote, world.kept.pledge) == ([], None)
    living = peer("m", (1, 0, "m"), role="SYNC_MASTER")
    asking = candidate("s", GatherPledges=Votes([voter("s"), living]))
    assert "accepts writes" in reason(asking.ask(PromoteHeader("SYNC_MASTER")))


def pledged(word: object) -> Driver:
    return Driver(slave(), Epoch(1, 0, "m"), AskOne=word).keep(pledge=PROMISE).tell(Tick())


def test_a_pledge_stands_while_the_candidate_is_silent_or_changing_or_another_one() -> None:
    for word in (Failed("it is silent"), peer(OTHER, changing=True), peer("x", (1, 0, "m"))):
        assert pledged(word).kept.pledge == PROMISE


def test_a_pledge_is_over_when_the_candidate_says_that_it_was_not_promoted() -> None:
    world = pledged(peer(OTHER, (1, 0, "m")))
    assert ([one.addr for one in world.did(AskOne)], world.kept.pledge) == ([PROMISE.broker_addr], None)


def test_a_pledge_whose_end_cannot_be_written_is_asked_after_again() -> None:
    world = Driver(slave(), AskOne=peer(OTHER, (1, 0, "m")), Write=[NO_ROOM, Done()]).keep(pledge=PROMISE)
    assert world.tell(Tick()).kept.pledge == PROMISE
    assert world.tell(Tick()).kept.pledge is None


def test_a_candidate_that_was_promoted_is_followed() -> None:
    world = pledged(peer(OTHER, (1, 0, "m"), (1000, 900, OTHER), role="SYNC_MASTER"))
    assert world.did(SetMaster) == [SetMaster(f"{OTHER}:10911", f"{OTHER}:10912")]
    assert world.kept.pledge == PROMISE


def test_a_candidate_that_was_promoted_and_has_handed_over_since_releases_nobody() -> None:
    world = pledged(peer(OTHER, (1, 0, "m"), (1000, 900, OTHER)))
    assert (world.kept.pledge, world.did(SetMaster)) == (PROMISE, [])


# -- following, forgetting, beginning anew ----------------------------------------------------------


def id_taken(me: str, file_id: int, heard: Heard) -> int:
    """What the old master `me` of ours and other:10911, both of a list of three, follows NEWER as."""
    who = Who(RoleInForce(BrokerRole.SYNC_MASTER, 0, BrokerRole.SYNC_MASTER, file_id), f"{me}:10911", "x:1")
    members = ReplicaList(1, 0, "a", replicas={one: f"{one}:10911" for one in ("a", "b", OTHER)})
    world = Driver(RoleState(who), Ask=heard, Prove=Done()).keep(members=members).tell(Tick())
    command = world.kept.command
    return command.broker_id if command is not None else file_id


def test_two_old_masters_that_step_down_at_the_same_time_take_two_broker_ids() -> None:
    """After two failovers soon after each other; the nameserver flipped between two brokers of one id."""
    unheard = Heard([NEWER])
    assert id_taken("a", 0, unheard) != id_taken("b", 0, unheard)
    assert id_taken("a", 0, unheard) != id_taken("b", 1, unheard)
    assert id_taken("a", 1, unheard) != id_taken("b", 0, unheard)
    # Each hears the other, who is a master still, for itself and for the nameserver.
    others = {one: peer(one, (1, 0, ME), role="SYNC_MASTER") for one in ("a", "b")}
    beside_b = Heard([NEWER, others["b"]], {0: "b:10911"})
    beside_a = Heard([NEWER, others["a"]], {0: "b:10911"})
    assert id_taken("a", 0, beside_b) != id_taken("b", 0, beside_a)
    # One was faster.
    first = id_taken("b", 0, unheard)
    assert id_taken("a", 0, Heard([NEWER], {first: "b:10911"})) != first


def test_a_master_that_is_told_to_follow_takes_a_free_id_and_turns() -> None:
    world = Driver(master(), Ask=Heard([NEWER], {1: "x:1"}))
    answer = world.ask(FollowHeader(NEWER.broker_addr, NEWER.ha_addr, 1000))
    assert isinstance(answer, Answer)
    assert (answer.role and answer.role.broker_id, world.turned) == (3, True)
    assert "is no newer one" in reason(Driver(master()).ask(FollowHeader("x:1", "x:2", 1)))


def test_a_slave_notes_where_its_master_is_but_of_no_older_epoch_than_it_knows_of() -> None:
    world = candidate()
    assert isinstance(world.ask(FollowHeader("n:10911", "n:10912", 1)), Answer)
    assert world.did(SetMaster) == [SetMaster("n:10911", "n:10912")]
    bound = candidate().keep(pledge=PROMISE)
    assert "older than 1000" in reason(bound.ask(FollowHeader("n:10911", "n:10912", 999)))


def test_a_forgotten_replica_is_waited_for_no_more() -> None:
    world = Driver(master(waiting=WAITING)).keep(replicas=WAITING)
    assert isinstance(world.ask(ForgetHeader("s")), Answer)
    assert (world.kept.members.slaves, world.kept.replicas) == (set(), {})
    assert world.kept.forgotten == {"s": world.kept.members.version}
    assert world.did(TakeList) == [TakeList(False)]
    assert (len(world.tell(Tick()).did(Pull)), world.state.held) == (0, "")


def test_what_cannot_be_forgotten_is_said() -> None:
    world = Driver(master())
    world.followers = frozenset({"s"})
    assert "still holds a connection" in reason(world.ask(ForgetHeader("s")))
    assert "broker itself" in reason(world.ask(ForgetHeader(ME)))
    assert "no replica x" in reason(world.ask(ForgetHeader("x")))
    assert "the master that made the list" in reason(candidate().ask(ForgetHeader("m")))


def test_a_slave_begins_anew_after_its_answer_and_a_master_does_not() -> None:
    world = candidate()
    assert isinstance(world.ask(ReinitHeader(keep=False)), Answer)
    kinds = [type(action) for action, _ in world.done if not isinstance(action, Say)]
    assert kinds == [Answer, StopLink, Write, Empty, Write, Turn]
    assert world.kept.lineage == Lineage()
    assert world.kept.whole_from == OFFSET_MAX
    assert "would lose" in reason(Driver(master()).ask(ReinitHeader()))


def test_a_store_that_cannot_be_emptied_keeps_its_epochs() -> None:
    world = candidate(Empty=NO_ROOM)
    world.ask(ReinitHeader())
    assert (world.kept.lineage.epochs[-1].number, world.turned) == (1, True)


def test_while_a_broker_turns_nothing_else_is_begun() -> None:
    state: RoleState = master(turning="it follows")
    assert "changing its role: it follows" in why_busy(state)
    world = Driver(state).tell(Tick(), Hint("x:1"), SlaveAhead("s", "s:1"))
    assert world.done == []
    assert "restarts to change its role" in world.state.held


def test_a_newer_master_is_remembered_over_all_else() -> None:
    newer = NewerMaster(1000, "n:1", "n:2")
    assert master(newer=newer, trouble="no room", doubt="d", undecided="u").held == "no room"


def test_a_slave_looks_for_a_rival_of_its_master_too_and_the_greeting_tells_what_is_wrong() -> None:
    """Its own master, of 2003, may be gone: refused here, it would never find out what an operator can do."""
    epochs = Lineage((Epoch(1, 0, OTHER), Epoch(2003, 500, OTHER)))
    world = Driver(slave()).keep(lineage=epochs)
    world.ask(FollowHeader("n:10911", "n:10912", 2000))
    assert world.did(SetMaster) == [SetMaster("n:10911", "n:10912")]
    assert "older than 2003" in reason(world.ask(FollowHeader("o:10911", "o:10912", 1000)))
