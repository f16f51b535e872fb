"""The decision: one broker's facts in, what it does out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from haservice.coordination.candidate import next_epoch, why_not, why_restored
from haservice.coordination.cluster import (
    EPOCH,
    FAILOVER,
    MASTER,
    REQUEST,
    SETTINGS,
    STATUS,
    VOTERS,
    Cluster,
    Leaseholder,
    MasterRequest,
    MemberState,
    Settings,
    Status,
    decode,
)
from haservice.coordination.coordinator import ABSENT, Transaction, Versioned
from haservice.coordination.decision import (
    Action,
    AskPromises,
    Block,
    CountBy,
    Decided,
    Follow,
    Promote,
    Seal,
    Serve,
    decide,
    give_back,
)
from haservice.coordination.facts import LeaseFacts, Own, OwnSession, VotersChange, may_promise
from haservice.coordination.rounds import Rounds
from haservice.coordination.voters import NEVER, Follower, Voters
from haservice.replication.lineage.epochs import Mark
from haservice.typed_json import encode

SESSION = OwnSession("b.1/1", 100.0, 5.0)
VERSIONS = {EPOCH: 7, VOTERS: 8, STATUS: 9, SETTINGS: 10}
TOLD = {"b": Mark(2000, 50)}
PAIR = Voters(frozenset("ab"), 1)
ASYNC = Voters(frozenset("ab"), 0)


def member(name: str, end: int = 50, *, sealed: int = 1000, epoch: int = 1000, **more: Any) -> MemberState:
    return MemberState(name, f"{name}.1", Mark(epoch, end), epoch, max(epoch, sealed), epoch, sealed, **more)


def cluster(
    *others: MemberState,
    voters: Voters = PAIR,
    **more: Any,
) -> Cluster:
    """Master a of epoch 1000 is gone."""
    found = Cluster(
        epoch=1000,
        voters=voters,
        status=Status("a", 1000, 50),
        members={one.replica_id: one for one in others},
        versions=VERSIONS,
    )
    return replace(found, **more)


def candidate(seen: Cluster, own: Own | None = None, **more: Any) -> LeaseFacts:
    """Broker b, which followed a."""
    return replace(LeaseFacts(102.0, own or Own(member("b")), seen, True, SESSION), **more)


def master(
    seen: Cluster | None = None, followers: Mapping[str, Follower] | None = None, **more: Any
) -> LeaseFacts:
    """Broker b is the master of epoch 2000, and a follows."""
    lease = Leaseholder("b", 2000, SESSION.name)
    found = seen or cluster()
    status, versions = Status("b", 2000, 50, told=TOLD), {**VERSIONS, MASTER: 11}
    found = replace(found, master=lease, epoch=2000, status=status, versions=versions)
    follows = {"a": Follower(50)} if followers is None else followers
    own = Own(member("b", epoch=2000), opened=2000, counts=found.voters, base=40, followers=follows)
    return replace(LeaseFacts(102.0, own, found, True, SESSION), **more)


def status_in(decision: Decided) -> Status:
    status = decode({STATUS: Versioned(taken(decision).puts[STATUS], 1)}).status
    assert status is not None
    return status


def taken(decision: Decided) -> Transaction:
    assert decision.commit is not None, decision.why
    return decision.commit


# -- the lease --------------------------------------------------------------------------------------


def test_a_master_serves_until_the_lease_that_it_asked_for_ends_and_a_margin_before_it() -> None:
    (count, serve) = decide(master()).actions
    assert (count, serve) == (CountBy(Voters(frozenset("ab"), 1)), Serve(2000, 100.0 + 5.0 - 0.5))


def test_a_master_whose_renewal_was_not_answered_in_time_blocks() -> None:
    actions = decide(master(now_s=104.5)).actions
    assert actions[-1] == Block("its lease was not renewed in time")
    unread = decide(master(now_s=104.5, is_fresh=False)).actions
    assert unread[0] == Block("the coordinator cannot be reached")
    assert decide(master(now_s=104.4, is_fresh=False)).actions[0] == Serve(2000, 104.5)


def test_a_session_that_is_another_one_proves_no_lease() -> None:
    other = replace(SESSION, name="b.1/2")
    decision = decide(master(session=other))
    assert decision.actions == (Block("a lease of this broker's earlier session has not ended yet"),)
    assert taken(decision).deletes == {MASTER}


def test_a_lease_that_an_earlier_process_of_ours_had_is_left_to_its_end() -> None:
    facts = master(session=replace(SESSION, name="b.2/1"))
    own = replace(facts.own, opened=-1, member=replace(facts.own.member, life="b.2"))
    decision = decide(replace(facts, own=own))
    assert (decision.actions, decision.commit) == ((), None)


def test_who_has_the_lease_and_has_not_begun_its_epoch_begins_it() -> None:
    facts = master()
    decision = decide(replace(facts, own=replace(facts.own, opened=-1)))
    assert decision.actions == (Block("its epoch begins"), Promote(2000, 104.5))


def test_a_master_that_cannot_be_one_gives_the_lease_back() -> None:
    facts = master()
    own = replace(facts.own, opened=-1, member=replace(facts.own.member, unfit="its disk is full"))
    decision = decide(replace(facts, own=own))
    assert (decision.why, taken(decision).deletes) == ("its disk is full", {MASTER})


def test_another_master_is_followed_and_a_deposed_one_blocks_first() -> None:
    facts = candidate(cluster(master=Leaseholder("a", 1000, "a.1/1")))
    assert decide(facts).actions == (Follow(facts.seen.master),)  # type: ignore[union-attr,arg-type]
    deposed = decide(replace(facts, own=replace(facts.own, opened=0)))
    assert [type(one) for one in deposed.actions] == [Block, Follow]
    assert decide(replace(facts, own=replace(facts.own, follows=1000))).actions == ()


# -- a switchover -----------------------------------------------------------------------------------


def asked(facts: LeaseFacts, to: str = "a", **own: Any) -> LeaseFacts:
    assert facts.seen is not None
    seen = replace(facts.seen, request=MasterRequest(to), versions={**facts.seen.versions, REQUEST: 12})
    return replace(facts, seen=seen, own=replace(facts.own, **own), requested_s=101.0)


def test_a_master_that_is_to_hand_over_takes_nothing_and_gives_the_lease_once_the_slave_has_everything() -> (
    None
):
    first = decide(asked(master()))
    assert ([type(one) for one in first.actions], first.commit) == ([Block], None)
    behind = asked(master(), is_held=True, followers={"a": Follower(49)})
    assert decide(behind).commit is None
    given = taken(decide(asked(master(), is_held=True)))
    assert (given.deletes, given.bound) == ({MASTER}, {REQUEST})
    assert given.expects.items() >= {MASTER: 11, REQUEST: 12}.items()
    assert decode({STATUS: Versioned(given.puts[STATUS], 1)}).status == Status(
        "b", 2000, 50, is_final=True, told=TOLD
    )


def test_a_switchover_to_nobody_or_for_too_long_is_dropped_and_the_master_goes_on() -> None:
    for facts in (
        asked(master(), "c"),
        asked(master(), followers={}),
        replace(asked(master(), is_held=True, followers={"a": Follower(49)}), requested_s=97.0),
    ):
        dropped = decide(facts)
        assert (dropped.actions, taken(dropped).deletes) == ((), {REQUEST})


def test_during_a_switchover_only_who_is_named_takes_the_lease_and_the_request_ends_with_that() -> None:
    assert "a switchover to replica a" in why_not(asked(candidate(cluster()), "a"))
    named = asked(candidate(cluster(settings=Settings(paused=True))), "b")
    assert taken(decide(named)).deletes == {REQUEST}
    late = replace(asked(candidate(cluster()), "a"), requested_s=97.0)
    assert taken(decide(late)).deletes == {REQUEST}


def test_what_is_asked_for_later_is_nothing_yet_and_is_over_with_the_next_master() -> None:
    facts = asked(candidate(cluster()), "a")
    assert facts.seen is not None
    seen = replace(facts.seen, request=MasterRequest("a", not_before_ms=2000))
    assert seen.at(2000) == seen
    early = replace(facts, seen=seen.at(1999))
    assert why_not(early) == ""
    assert taken(decide(early)).deletes == {REQUEST}
    assert taken(decide(early)).expects[REQUEST] == 12


def test_a_master_that_hands_over_in_time_makes_it_due_for_all_clocks() -> None:
    facts = asked(master(), is_held=True)
    assert facts.seen is not None
    due = replace(facts, seen=replace(facts.seen, request=MasterRequest("a", not_before_ms=2000)))
    puts = taken(decide(due)).puts
    assert decode({REQUEST: Versioned(puts[REQUEST], 1)}).request == MasterRequest("a")


# -- a promotion ------------------------------------------------------------------------------------


def test_a_promotion_expects_all_that_it_was_decided_from() -> None:
    transaction = taken(decide(candidate(cluster())))
    assert transaction.expects == {**VERSIONS, MASTER: ABSENT, REQUEST: ABSENT, "history/2000": ABSENT}
    assert transaction.bound == {MASTER}
    assert "history/2000" in transaction.puts
    after = decode({key: Versioned(value, 1) for key, value in transaction.puts.items() if "/" not in key})
    assert after.epoch == 2000
    assert after.master is not None
    assert (after.master.replica_id, after.master.epoch, after.master.session) == ("b", 2000, "b.1/1")


def test_its_epoch_is_above_all_that_anybody_knows_of() -> None:
    facts = candidate(cluster(member("a", epoch=1000)))
    assert next_epoch(facts) == 2000
    assert next_epoch(candidate(cluster(member("a", sealed=3001)))) == 4000


def test_a_slave_seals_its_log_before_it_is_heard() -> None:
    facts = candidate(cluster(), Own(member("b", sealed=-1), follows=1000))
    decision = decide(facts)
    assert decision.actions == (Seal(1000),)
    assert decision.commit is None
    assert "not sealed" in decision.why


def three(*others: MemberState, needed: int = 1, **more: Any) -> LeaseFacts:
    return candidate(cluster(*others, voters=Voters(frozenset("abc"), needed)), **more)


def test_with_two_slaves_both_are_heard_or_one_alone_if_an_ok_took_both() -> None:
    assert "2 voters that have no more than this one have to be heard, and 1 are" in why_not(three())
    assert why_not(three(member("c"))) == ""
    assert why_not(three(needed=2)) == ""


def test_a_log_that_may_still_grow_is_not_heard() -> None:
    assert "and 1 are" in why_not(three(member("c", sealed=0)))
    assert "and 1 are" in why_not(three(replace(member("c"), is_whole=False)))


def test_a_voter_with_more_stops_a_candidate() -> None:
    assert "and 1 are" in why_not(three(member("c", end=51)))
    assert "has more: up to 51" in why_not(three(member("c", end=51), needed=2))
    assert why_not(three(replace(member("c", end=51), unfit="no disk"), needed=2)) == ""
    assert why_not(three(member("c", end=99, epoch=0))) == "", "an older epoch's end does not count"


def test_who_is_no_voter_takes_no_lease() -> None:
    assert "no voter" in why_not(candidate(cluster(voters=Voters(frozenset("ac"), 1))))


def test_the_last_master_may_go_on_without_hearing_anybody() -> None:
    facts = three(member("c", end=10))
    assert facts.seen is not None
    assert why_not(replace(facts, seen=replace(facts.seen, status=Status("b", 1000, 50)))) == ""
    lost = replace(facts.own, member=replace(facts.own.member, is_whole=False))
    assert "went down" in why_not(replace(facts, own=lost))


def told_of(facts: LeaseFacts, **places: Mark) -> LeaseFacts:
    """The coordinator remembers these places."""
    assert facts.seen is not None
    status = Status("a", 1000, 50, told=places)
    return replace(facts, seen=replace(facts.seen, status=status))


def test_who_has_less_than_it_acknowledged_takes_no_lease_but_by_force() -> None:
    told = "by what the coordinator remembers it had acknowledged up to 60 of epoch 1000"
    facts = told_of(candidate(cluster()), b=Mark(1000, 60))
    assert told in why_not(facts)
    assert why_not(told_of(facts, b=Mark(1000, 50))) == ""
    assert "up to 10 of epoch 2000" in why_not(told_of(facts, b=Mark(2000, 10)))
    last_master = replace(facts, seen=cluster(status=Status("b", 1000, 60)))
    assert told in why_not(last_master), "an older version told its end"
    request = MasterRequest("b", kind="failover", force=True)
    seen = replace(facts.seen or cluster(), request=request, versions={**VERSIONS, REQUEST: 12})
    assert why_not(replace(facts, seen=seen)) == ""


def test_who_has_less_than_it_acknowledged_is_not_heard() -> None:
    facts = told_of(three(member("c", end=40)), c=Mark(1000, 45))
    assert "and 1 are" in why_not(facts)
    assert why_not(told_of(facts, c=Mark(1000, 40))) == ""
    following = told_of(three(member("c", end=40, state="follows")), c=Mark(1000, 45))
    assert why_not(following) == "", "what it tells of itself is older than what its master tells of it"


def test_an_epoch_that_a_log_has_reached_counts_before_its_first_byte() -> None:
    """Its log was cut to where the epoch begins: it acknowledged more in the one before, and nobody needs that."""
    cut = Own(member("b", end=40, epoch=1000, reached=2000))
    assert why_not(told_of(candidate(cluster(), cut), b=Mark(1000, 45))) == ""
    assert "has more: up to 90" in why_not(candidate(cluster(member("a", end=90)), Own(member("b", end=40))))


def test_a_last_master_that_has_less_than_another_one_leaves_it_the_lease() -> None:
    other = cluster(member("c", end=90), status=Status("b", 1000, 50))
    assert "replica c at  has more: up to 90" in why_not(candidate(other)), "voter or not"


def test_who_is_the_first_by_its_file_is_it_only_if_nobody_connected_has_more() -> None:
    """Its file may be that of a master that a command replaced."""
    first = Own(member("b", sealed=-1), may_be_first=True)
    new = {"epoch": -1, "voters": Voters(), "status": None, "versions": {}}
    assert why_not(candidate(cluster(member("c", sealed=-1), **new), first)) == ""
    more = cluster(member("c", 51, sealed=-1), **new)
    assert "replica c at  has more: up to 51" in why_not(candidate(more, first))


def test_who_is_no_voter_takes_the_lease_if_it_has_more_than_the_voters() -> None:
    """The coordinator is one of older voters."""
    voters = Voters(frozenset("ac"), 1)
    assert why_not(candidate(cluster(member("c", end=40), voters=voters))) == ""
    assert "voter c at  has as much" in why_not(candidate(cluster(member("c"), voters=voters)))
    assert "0 are" in why_not(candidate(cluster(member("c", end=40, sealed=0), voters=voters)))
    taken_with = decode_voters(decide(candidate(cluster(member("c", end=40), voters=voters))))
    assert taken_with.ids == frozenset("abc")


def decode_voters(decision: Decided) -> Voters:
    return decode({VOTERS: Versioned(taken(decision).puts[VOTERS], 1)}).voters


class Idle:
    """A broker that has just started."""

    def now_s(self) -> float:
        return 100.0

    def now_ms(self) -> int:
        return 0

    def own(self) -> Own:
        return Own(member("b"))

    def act(self, action: Action) -> None:
        raise AssertionError(action)


def test_who_has_just_started_may_have_promised_something() -> None:
    assert Rounds(Idle(), "b.1").facts().promised_until_s == 100.0 + Settings().ttl_s


def test_a_session_that_is_new_takes_no_lease_before_others_can_have_theirs() -> None:
    fresh = replace(SESSION, opened_s=100.0)
    assert "its session is new" in why_not(candidate(cluster(), session=fresh))
    assert why_not(candidate(cluster(), session=fresh, now_s=105.0)) == ""
    assert why_not(candidate(cluster(status=Status("b", 1000, 50)), session=fresh)) == "", (
        "nobody was master since"
    )


def dark(name: str, end: int = 50, **more: Any) -> MemberState:
    """Its machine went down."""
    return member(name, end, is_whole=False, lost_power=True, **more)


def test_after_a_power_cut_the_longest_log_leads_once_all_voters_are_there() -> None:
    me = Own(dark("b"))
    assert "its machine went down" in why_not(candidate(cluster(), me)), "a may have more"
    facts = candidate(cluster(dark("a", 45)), me)
    assert why_not(facts) == ""
    decision = decide(facts)
    assert "a power cut left too few whole logs" in decision.alarm
    assert "a 45, b 50" in decision.alarm
    assert "its machine went down" in why_not(candidate(cluster(dark("a", 55)), me))
    assert "its machine went down" in why_not(candidate(cluster(dark("a", 45, sealed=0)), me)), "it may grow"
    assert why_not(candidate(cluster(member("a", 45)), me)) != "", "a is whole, and has every OK"
    emptied = replace(member("a", 0), is_whole=False)
    assert "its machine went down" in why_not(candidate(cluster(emptied), me)), "an operator decides"
    longer = cluster(dark("a", 45), replace(member("c", 70), is_whole=False))
    assert "has more, and its log does not count" in why_not(candidate(longer, me))


def test_another_process_of_our_replica_id_keeps_us_from_the_lease() -> None:
    twin = replace(member("b"), life="b.0", broker_addr="10.0.0.9:10911")
    assert "10.0.0.9:10911" in why_not(candidate(cluster(twin)))


# -- voters -----------------------------------------------------------------------------------------


def test_a_change_of_voters_counts_by_both_first_and_is_asked_for_then() -> None:
    followers = {"a": Follower(50), "c": Follower(50)}
    first = decide(master(cluster(member("c")), followers))
    assert first.change == VotersChange(Voters(frozenset("abc"), 1), 8, is_asked=True)
    assert first.actions[0] == CountBy(Voters(frozenset("ab"), 1)), "acks of c do not count yet"
    assert taken(first).expects == {MASTER: 11, EPOCH: 7, VOTERS: 8}
    gone = cluster(voters=Voters(frozenset("abc"), 1))
    leaving = decide(master(gone, {"a": Follower(50)}))
    assert leaving.actions[0] == CountBy(Voters(frozenset("ab"), 1))
    assert leaving.commit is None, "acks of c still count, as far as the facts say"


def test_a_change_that_was_asked_for_stays_until_the_key_has_another_version() -> None:
    asked = VotersChange(Voters(frozenset("ab"), 1), 8, is_asked=True)
    seen, back = cluster(voters=Voters(frozenset("abc"), 1)), {"a": Follower(50), "c": Follower(50)}
    facts = master(seen, back, change=asked)
    assert decide(facts).actions[0] == CountBy(Voters(frozenset("ab"), 1))
    assert decide(replace(facts, change=replace(asked, version=5))).actions[0] == CountBy(
        Voters(frozenset("abc"), 1)
    )


def test_a_change_that_would_lose_something_by_now_is_prevented_by_the_same_voters_anew() -> None:
    """c is to take the place of a, which is gone; c's log is wiped, and the change may happen yet."""
    asked = VotersChange(Voters(frozenset("bc"), 1), 8, is_asked=True)
    wiped = master(cluster(voters=PAIR), {"c": Follower(0, is_level=False)}, change=asked)
    (counts,) = [one for one in decide(wiped).actions if isinstance(one, CountBy)]
    found = decide(replace(wiped, own=replace(wiped.own, counts=counts.voters)))
    assert taken(found).puts[VOTERS] == encode(PAIR)
    assert taken(found).expects[VOTERS] == 8
    assert found.change == asked, "it is over once the key has another version"


def test_no_ok_promises_more_than_what_the_voters_are_agreed_on() -> None:
    """A broker that becomes a SYNC_MASTER answers no OK while its slave could be promoted with a loss."""
    facts = master(cluster(voters=ASYNC), {"a": Follower(30)})
    assert decide(facts).actions[0] == CountBy(replace(ASYNC, needed=NEVER))
    more = master(cluster(voters=PAIR), {"a": Follower(50)})
    more = replace(more, own=replace(more.own, needed=2))
    assert decide(more).actions[0] == CountBy(Voters(frozenset("ab"), 2))


# -- ASYNC_MASTER -----------------------------------------------------------------------------------


def behind(lost: int, most: int, **more: Any) -> str:
    settings = Settings(max_loss_bytes=most)
    return why_not(
        candidate(cluster(voters=ASYNC, settings=settings), Own(member("b", end=50 - lost), **more))
    )


def test_a_slave_of_an_async_master_may_lack_as_much_as_is_allowed_and_no_more() -> None:
    assert behind(10, 10) == ""
    assert (
        behind(11, 10) == "it is 11 bytes behind the end that the last master told, and haMaxLossBytes is 10"
    )
    assert "61 bytes" in behind(10, 10, master_end=101), "it has heard of more than the coordinator was told"


def test_with_no_loss_allowed_only_a_clean_end_is_trusted() -> None:
    assert "may have had more" in behind(0, 0)
    final = cluster(
        voters=ASYNC, status=Status("a", 1000, 50, is_final=True), settings=Settings(max_loss_bytes=0)
    )
    assert why_not(candidate(final)) == ""


def test_who_has_not_followed_the_last_master_lacks_nobody_knows_what() -> None:
    own = Own(member("b", epoch=0, sealed=1000))
    assert "has not followed" in why_not(candidate(cluster(voters=ASYNC), own))


def test_an_async_master_without_a_coordinator_takes_no_more_than_may_be_lost() -> None:
    """It told of 50 bytes and has 61; what all voters have needs not be told."""
    seen = cluster(voters=Voters(frozenset("abc"), 0), settings=Settings(max_loss_bytes=10))

    def first(*acks: int, is_fresh: bool = False) -> object:
        facts = master(seen, dict(zip("ac", map(Follower, acks), strict=False)), is_fresh=is_fresh)
        member_ = replace(facts.own.member, mark=Mark(2000, 61))
        return decide(replace(facts, own=replace(facts.own, member=member_, needed=0))).actions[0]

    serves = Serve(2000, 104.5)
    assert first(61, 51) == serves
    assert first(20, 20, is_fresh=True) == CountBy(seen.voters), "it tells"
    why = "the coordinator cannot be reached: 11 bytes are neither told to it nor on all voters"
    assert first(61, 50) == first(61) == first(30, 20) == Block(f"{why}, and haMaxLossBytes is 10")
    seen = replace(seen, settings=Settings(max_loss_bytes=11))
    assert first(61) == serves
    seen = replace(seen, settings=Settings(max_loss_bytes=0))
    assert first(61) == serves, "nobody takes over"


def test_what_was_acknowledged_with_acks_is_not_lost_by_an_async_master() -> None:
    voters = replace(ASYNC, floor=49)
    assert "its log ends at 45" in why_not(candidate(cluster(voters=voters), Own(member("b", end=45))))
    assert why_not(candidate(cluster(voters=voters), Own(member("b", end=49)))) == ""


# -- failsafe, pause, backups -----------------------------------------------------------------------


def test_without_a_coordinator_a_master_goes_on_while_every_voter_promises() -> None:
    seen = cluster(voters=Voters(frozenset("abc"), 1))
    late = master(seen, now_s=110.0, is_fresh=False)
    both = replace(late, promises={"a": 109.0, "c": 108.0})
    assert decide(both).actions == (
        Serve(2000, 108.0 + 4.5),
        AskPromises(frozenset("ac"), 2000, 5.0),
    )
    one = decide(replace(late, promises={"a": 109.0})).actions
    assert one[0] == Block("the coordinator cannot be reached")
    off = replace(both, seen=replace(both.seen, settings=Settings(failsafe=False)))  # type: ignore[type-var]
    assert decide(off).actions == (Block("the coordinator cannot be reached"),)


def test_a_slave_promises_its_own_master_if_it_reaches_no_coordinator_itself() -> None:
    facts = candidate(cluster(), Own(member("b"), follows=1000), is_fresh=False)
    assert may_promise(facts, 1000) == ""
    assert may_promise(facts, 2000) != ""
    assert may_promise(replace(facts, is_fresh=True), 1000) != ""


def test_who_has_promised_takes_no_lease_meanwhile() -> None:
    assert "for 3.0 s" in why_not(candidate(cluster(), promised_until_s=105.0))


def test_a_slave_that_promised_its_master_does_not_leave_it_meanwhile() -> None:
    """The lease is over, and the master may go on by the promise: what it takes is to be here, too."""
    facts = candidate(cluster(), Own(member("b", sealed=-1), follows=1000), promised_until_s=103.0)
    assert decide(facts).actions == ()
    assert decide(replace(facts, now_s=103.0)).actions == (Seal(1000),)
    goes_on = cluster(status=Status("a", 1000, 50, goes_on=True))
    assert decide(replace(facts, now_s=103.0, seen=goes_on)).actions == ()
    asked = replace(goes_on, request=MasterRequest("b", force=True), versions={**VERSIONS, REQUEST: 3})
    assert decide(replace(facts, seen=asked)).actions == (Seal(1000),)
    alone = replace(facts.own, follows=-1)
    assert decide(replace(facts, own=alone)).actions == (Seal(1000),)


def test_while_failover_is_paused_nobody_takes_the_lease_and_nobody_seals() -> None:
    paused = cluster(settings=Settings(paused=True))
    decision = decide(candidate(paused, Own(member("b", sealed=-1))))
    assert (decision.commit, decision.actions) == (None, ())
    assert "paused" in decision.why


def test_a_master_goes_on_in_a_pause_only_once_the_coordinator_says_so() -> None:
    facts = master(cluster(settings=Settings(paused=True)), now_s=200.0)
    first = decide(facts)
    assert isinstance(first.actions[-1], Block)
    after = decode({STATUS: Versioned(taken(first).puts[STATUS], 1)})
    assert after.status is not None
    assert after.status.goes_on
    told = replace(facts, seen=replace(facts.seen, status=after.status))  # type: ignore[type-var]
    assert decide(told).actions[-1] == Serve(2000, math.inf)
    resumed = replace(told, seen=replace(told.seen, settings=Settings()))  # type: ignore[type-var]
    assert isinstance(decide(resumed).actions[-1], Block)


def test_a_master_that_goes_on_writes_that_once_more_when_it_takes_the_lease() -> None:
    """Until it hears that it has the lease, it serves without end."""
    goes_on = Status("b", 2000, 50, goes_on=True)
    seen = cluster(
        epoch=2000,
        status=goes_on,
        settings=Settings(paused=True),
        request=MasterRequest("b"),
        versions={**VERSIONS, REQUEST: 3},
    )
    facts = replace(master(seen, now_s=200.0), seen=seen)
    decision = decide(facts)
    assert decision.actions == (Serve(2000, math.inf),)
    assert status_in(decision) == replace(goes_on, epoch=3000, told=TOLD)
    resumed = replace(facts, seen=replace(seen, settings=Settings()))
    assert isinstance(decide(resumed).actions[0], Block)
    assert status_in(decide(resumed)) == Status("b", 3000, 50, told=TOLD)


def test_who_went_on_and_has_not_begun_its_epoch_goes_on_no_more_when_it_gives_the_lease_back() -> None:
    facts = master(cluster(settings=Settings(paused=True)))
    seen = replace(facts.seen, status=Status("b", 2000, 50, goes_on=True))  # type: ignore[type-var]
    for unfit in ("", "its disk is full"):
        own = Own(member("b", unfit=unfit), opened=1000)
        facts = replace(facts, seen=seen, own=own)
        back = taken(decide(facts)) if unfit else give_back(facts)
        assert back is not None
        assert back.deletes == {MASTER}
        assert STATUS in back.expects
        assert decode({STATUS: Versioned(back.puts[STATUS], 1)}).status == Status("b", 2000, 50)


def test_what_a_master_has_asked_to_replace_is_believed_no_more() -> None:
    """It read that the pause is over, and asked to say that it goes on no more; then failover is paused again."""
    facts = master(cluster(settings=Settings(paused=True)), now_s=200.0)
    goes_on = status_in(decide(facts))
    facts = replace(facts, seen=replace(facts.seen, status=goes_on))  # type: ignore[type-var]
    assert decide(facts).actions[-1] == Serve(2000, math.inf)
    fell_back = replace(facts, fell_back=VERSIONS[STATUS])
    decision = decide(fell_back)
    assert isinstance(decision.actions[-1], Block)
    assert status_in(decision) == goes_on, "once more, so that its version is a newer one"
    versions = {**facts.seen.versions, STATUS: 11}  # type: ignore[union-attr]
    newer = replace(fell_back, seen=replace(facts.seen, versions=versions))  # type: ignore[type-var]
    assert decide(newer).actions[-1] == Serve(2000, math.inf)


def test_who_may_go_on_without_a_lease_is_not_replaced_when_the_pause_is_over() -> None:
    goes_on = cluster(status=Status("a", 1000, 50, goes_on=True))
    assert "may go on without its lease" in why_not(candidate(goes_on))


def test_a_restored_backup_is_refused_by_all_if_one_knows_more() -> None:
    older = cluster(member("a"), epoch=0)
    facts = candidate(older, Own(member("b", sealed=0, epoch=0)))
    assert "replica a" in why_restored(facts)
    decision = decide(facts)
    assert isinstance(decision.actions[0], Block)
    assert decision.commit is None
    assert why_restored(candidate(cluster(member("a", epoch=1003)))) == "", "a restart within the term"


def test_the_first_coordinator_takes_a_pair_over_and_an_emptied_one_does_not() -> None:
    blank = Cluster(
        settings=Settings(ttl_s=9.0), members={"a": replace(member("a", sealed=-1, epoch=1), joined=-1)}
    )
    own = Own(replace(member("b", sealed=-1, epoch=1), joined=-1), may_be_first=True, needed=1)
    transaction = taken(decide(candidate(blank, own)))
    found = decode({key: Versioned(transaction.puts[key], 1) for key in (VOTERS, SETTINGS)})
    assert found.voters == Voters(frozenset("b"), 1)
    assert found.settings == blank.settings, "those of its properties file, for all"
    assert decide(candidate(blank, replace(own, may_be_first=False))).commit is None
    emptied = replace(own, member=replace(own.member, joined=1000, knows=1000))
    assert "emptied" in decide(candidate(blank, emptied)).why


# -- a coordinator that nobody believes ---------------------------------------------------------------


def emptied(*others: MemberState, **asked: Any) -> LeaseFacts:
    """Broker b was the master of epoch 2000; an operator asks it to begin anew, with all that are connected."""
    members = {one.replica_id: one for one in others}
    request = MasterRequest("b", kind=FAILOVER, among=frozenset({"b", *members}), **asked)
    seen = Cluster(members=members, request=request, versions={REQUEST: 3})
    own = Own(member("b", sealed=2000, epoch=2000), opened=-1, needed=1)
    return candidate(seen, own)


def in_epoch_2000(name: str, end: int = 50, **more: Any) -> MemberState:
    return member(name, end, epoch=2000, **{"sealed": 2000, **more})


def test_beginning_anew_is_one_transaction_once_all_that_were_connected_have_sealed_their_logs() -> None:
    sealed = emptied(in_epoch_2000("a"), in_epoch_2000("c", 40))
    transaction = taken(decide(sealed))
    found = decode({key: Versioned(value, 1) for key, value in transaction.puts.items() if "/" not in key})
    assert (found.epoch, found.master and found.master.replica_id) == (3000, "b")
    assert found.voters.ids == {"a", "b"}, "c lacks something: it becomes a voter once it has caught up"
    assert found.status == Status("b", 3000, 50, told={"b": Mark(2000, 50)})
    assert transaction.deletes == {REQUEST}
    for facts, why in (
        (emptied(in_epoch_2000("a", sealed=1000)), "the log of replica a at  is not sealed yet"),
        (emptied(in_epoch_2000("a", 51)), "replica a at  has more: up to 51, this one to 50"),
        (replace(sealed, seen=replace(sealed.seen, members={})), "replica a, c is not connected any more"),  # type: ignore[type-var]
        (replace(sealed, promised_until_s=103.0), "it takes no lease for 1.0 s"),
        (
            replace(sealed, own=replace(sealed.own, member=replace(sealed.own.member, is_whole=False))),
            "has not caught up since",
        ),
    ):
        decision = decide(facts)
        assert decision.commit is None
        assert why in decision.why
    assert decide(emptied(in_epoch_2000("a", 51), force=True)).commit is not None, (
        "the operator accepts that loss"
    )


def test_beginning_anew_seals_the_own_log_first() -> None:
    facts = emptied(in_epoch_2000("a", sealed=3000))
    decision = decide(facts)
    assert decision.commit is None
    assert decision.actions[-1] == Seal(3000)
    assert "is not sealed yet" in decision.why


def test_who_is_not_asked_seals_too_and_an_old_request_is_dropped() -> None:
    facts = emptied(in_epoch_2000("a", sealed=1000))
    asked = replace(facts.seen.request, to="a")  # type: ignore[union-attr, type-var]
    other = replace(facts, own=replace(facts.own, member=in_epoch_2000("b", sealed=1000)))
    other = replace(other, seen=replace(facts.seen, request=asked))  # type: ignore[type-var]
    decision = decide(other)
    assert decision.actions[-1] == Seal(2000)
    assert decision.commit is None
    late = decide(replace(other, requested_s=90.0))
    assert taken(late).deletes == {REQUEST}


def test_a_lease_that_came_back_with_a_backup_goes() -> None:
    lease = Leaseholder("b", 1000, SESSION.name)
    older = cluster(member("a", epoch=2000), master=lease, versions={**VERSIONS, MASTER: 11})
    decision = decide(candidate(older, Own(member("b", epoch=1000), opened=1000)))
    assert isinstance(decision.actions[0], Block)
    assert taken(decision).deletes == {MASTER}
    theirs = decide(candidate(replace(older, master=replace(lease, session="a.1/1"))))
    assert theirs.commit is None


def test_nobody_goes_on_by_failsafe_where_the_coordinator_names_no_voters() -> None:
    own = Own(member("b", sealed=1000, epoch=2000), opened=2000)
    nobody = Cluster(epoch=2000, versions=VERSIONS)
    assert not isinstance(decide(candidate(nobody, own)).actions[0], Serve)
    silent = decide(replace(candidate(nobody, own), is_fresh=False))
    assert isinstance(silent.actions[0], Block)
    alone = replace(nobody, voters=Voters(frozenset("b"), 0))
    assert isinstance(decide(replace(candidate(alone, own), is_fresh=False)).actions[0], Serve)


def test_a_forced_failover_seals_the_log_that_it_asks_for() -> None:
    """Though that one serves: by promises that it has, or in a pause."""
    seen = cluster(
        epoch=2000,
        status=Status("b", 2000, 50, goes_on=True),
        settings=Settings(paused=True),
        request=MasterRequest("b", kind=FAILOVER, force=True),
    )
    facts = candidate(seen, Own(member("b", sealed=1000, epoch=2000), opened=2000, counts=PAIR))
    assert isinstance(decide(replace(facts, seen=replace(seen, request=None))).actions[0], Serve)
    assert [type(one) for one in decide(facts).actions] == [Block, Seal]


def test_a_follower_that_is_not_connected_to_the_coordinator_becomes_no_voter() -> None:
    """It would never seal its log, so nobody could take over."""
    follows = {"a": Follower(50), "c": Follower(50)}
    assert decide(master(followers=follows)).change is None
    connected = decide(master(cluster(member("c")), follows)).change
    assert connected is not None
    assert connected.after.ids == set("abc")


def test_a_clean_stop_leaves_the_true_end_and_no_lease() -> None:
    transaction = give_back(master())
    assert transaction is not None
    assert transaction.deletes == {MASTER}
    status = decode({STATUS: Versioned(transaction.puts[STATUS], 1)}).status
    assert status == Status("b", 2000, 50, is_final=True, told=TOLD)
    assert give_back(candidate(cluster())) is None


def test_a_master_that_became_a_sync_master_answers_no_ok_while_the_voters_are_an_async_masters() -> None:
    """Not even with acks that satisfy the voters before and after the change: nobody counts by those after it yet."""
    facts = master(cluster(voters=ASYNC))
    for change in (None, VotersChange(PAIR, 8, is_asked=True)):
        count = decide(replace(facts, change=change)).actions[0]
        assert isinstance(count, CountBy)
        assert count.voters.needed == NEVER


def test_a_lease_that_may_be_given_back_opens_no_gate_until_the_coordinator_shows_another_status() -> None:
    facts = replace(master(), gave_back=(2000, 9))
    for one in (facts, replace(facts, is_fresh=False)):
        assert not [action for action in decide(one).actions if isinstance(action, Serve)]
    assert STATUS in taken(decide(facts)).puts
    told = replace(facts, gave_back=(2000, 8))
    assert [action for action in decide(told).actions if isinstance(action, Serve)]
