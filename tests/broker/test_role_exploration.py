"""Every way through the machine of roles: whatever action fails, wherever, what has to be so is so.

From each beginning every result is tried for every action, breadth first, over three events in a row.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from haservice.broker.roles.actions import (
    Action,
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
    Flush,
    GatherPledges,
    LookAtSlaves,
    Lost,
    NoVote,
    Prove,
    Pull,
    Pulled,
    Refuse,
    Result,
    SendPromote,
    Slaves,
    StopLink,
    Turn,
    Votes,
    WithResult,
    Write,
)
from haservice.broker.roles.machine import step, why_busy
from haservice.broker.roles.new_epoch import NewEpoch
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import NewerMaster, StartOfMaster
from haservice.broker.roles.state import Asked, Begin, Event, Hint, RoleState, SlaveAhead, Tick, View
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import (
    FollowHeader,
    ForgetHeader,
    PledgeHeader,
    PromoteHeader,
    ReinitHeader,
    SwitchoverHeader,
)
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan
from haservice.replication.lineage.file import HandingOver, LineageState, Pledge, Replica
from tests.broker.test_role_machine import PROMOTED, TARGET, at
from tests.broker.test_roles import ME, OTHER, peer
from tests.support.role_driver import ADDR, listed, master, slave

END = 1000
NO = Failed("no")
NEWER = peer(OTHER, (1, 0, ME), (1000, 800, OTHER), role="SYNC_MASTER")
AHEAD = peer("s", (1, 0, ME), end=END + 500)
NO_VOTES = [NoVote("x", "refused"), NoVote("s:10911", "no", answered=True)]
VOTER = peer("s", (1, 0, "m"), end=END, pledged=1000, pledged_to=ADDR)
ASKS = peer(OTHER, (1, 0, "m"), changing=True)
# What each action may come to.
RESULTS: Mapping[type, tuple[Result, ...]] = {
    Ask: (Heard(), Heard([TARGET]), Heard([NEWER, TARGET]), Heard([AHEAD])),
    AskOne: (NO, Failed("no", answered=True), TARGET, peer(OTHER, (1, 0, "m")), ASKS),
    Prove: (Done(), NO),
    Flush: (End(END), NO),
    Write: (Done(), NO),
    Pull: (Pulled(END + 500), Pulled(END, "other bytes"), Pulled(END + 100, more=True)),
    Copy: (Done(), NO),
    StopLink: (End(END), End(END - 10), NO),
    Confirm: (Done(), NO),
    GatherPledges: (
        Votes([]),
        Votes([VOTER]),
        Votes([AHEAD], NO_VOTES),
    ),
    LookAtSlaves: (Slaves([]), Slaves([at("s")]), Slaves([at("s"), at("x", END + 1)])),
    AwaitLevel: (End(END), NO),
    SendPromote: (PROMOTED, NO, Lost("no answer")),
    FindOut: (PROMOTED, NO, Lost("silent")),
    Empty: (Done(), NO),
}
WAITING = {"s": Replica("s:10911", END, 1, True)}
START = StartOfMaster(LogSpan(0, END), True, False, flushes_at_once=False)
CRASHED = dataclasses.replace(START, stopped_cleanly=False, booted_anew=True)
REQUESTS: tuple[ExtHeader, ...] = (
    PromoteHeader("SYNC_MASTER", min_epoch=2),
    PromoteHeader("ASYNC_MASTER", min_epoch=2, force=True),
    PromoteHeader("SYNC_MASTER", END, 2, confirm_addr="m:10911", token="t"),
    PromoteHeader("KING"),
    FollowHeader(f"{OTHER}:10911", f"{OTHER}:10912", 1000),
    FollowHeader(f"{OTHER}:10911", "", 0),
    SwitchoverHeader(),
    SwitchoverHeader("x:10911"),
    PledgeHeader(1000, OTHER, f"{OTHER}:10911"),
    ForgetHeader("s"),
    ForgetHeader("x"),
    ReinitHeader(),
)
NOTICED: tuple[Event, ...] = (Tick(), Hint("x:10911"), SlaveAhead("s", "s:10911"))
MASTERS: Mapping[str, RoleState] = {
    "a master": master(),
    "one that waits": master(waiting=WAITING),
    "one that cannot decide": master(undecided="no number is left"),
    "one in doubt": master(doubt="it is not known"),
    "one that could not follow": master(newer=NewerMaster(1000, "o:1", "o:2"), trouble="not written"),
    "one with a slave ahead": master(ahead={"s": "s:10911"}),
    "one with all of it": master(waiting=WAITING, doubt="it is not known", ahead={"s": "s:10911"}),
}


@dataclass(frozen=True)
class Place:
    """Somewhere on the way: what has the machine, its file, and what it was asked and has answered."""

    state: RoleState
    kept: LineageState
    waited_for: WithResult | None = None
    asked: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()
    story: tuple[str, ...] = field(default=(), compare=False)

    @property
    def key(self) -> str:
        return repr((self.state, self.kept, self.waited_for, len(self.asked), len(self.answered)))

    @property
    def view(self) -> View:
        return View(self.kept, LogSpan(0, END), 7, 0.0, "boot")


def kept_by(state: RoleState) -> LineageState:
    writer = "m" if state.who.is_slave else ME
    return LineageState(
        ME,
        lineage=Lineage((Epoch(1, 0, writer),)),
        members=listed("s", by=ME) if writer == ME else listed(ME, "s", OTHER, by="m"),
        replicas=WAITING,
        handing_over=HandingOver("s:10911", "s") if state.doubt else None,
    )


def after(place: Place, event: Event) -> Place:
    """The next place, which is checked."""
    kept = place.kept
    if isinstance(event, Done) and isinstance(place.waited_for, Write):
        kept = dataclasses.replace(kept, **place.waited_for.changes)
    before = dataclasses.replace(place, kept=kept)
    story = (*place.story, f"{event}"[:90])
    state, actions = step(place.state, event, before.view)
    asked = (*place.asked, event.ticket) if isinstance(event, Asked) else place.asked
    answers = tuple(one.ticket for one in actions if isinstance(one, Answer | AnswerWith | Refuse))
    waited = [one for one in actions if isinstance(one, WithResult)]
    found = Place(state, kept, waited[0] if waited else None, asked, (*place.answered, *answers), story)
    check(before, event, found, actions)
    return found


def check(before: Place, event: Event, found: Place, actions: tuple[Action, ...]) -> None:
    state, story = found.state, found.story
    waited = [one for one in actions if isinstance(one, WithResult)]
    assert len(waited) <= 1, story
    assert not waited or actions[-1] is waited[0], story
    assert bool(waited) is (state.change is not None), f"it waits for nothing, or nobody waits: {story}"
    # Who asked is answered once; and when nothing is under way any more, he has been.
    assert not [one for one, times in Counter(found.answered).items() if times > 1], story
    assert set(found.answered) <= set(found.asked), story
    if state.change is None:
        assert set(found.answered) == set(found.asked), story
    # A broker turns once, and holds from then on.
    turns = [one for one in actions if isinstance(one, Turn)]
    assert not turns or (state.turning and not before.state.turning), story
    assert not before.state.turning or state.turning == before.state.turning, story
    assert not (turns and waited), story
    check_holds(before, event, state, story)


def check_holds(before: Place, event: Event, state: RoleState, story: tuple[str, ...]) -> None:
    """A reason to hold ends for its own cause, and for no other."""
    was = before.state
    epoch_began = (
        isinstance(event, Done) and isinstance(was.change, NewEpoch) and isinstance(before.waited_for, Write)
    )
    if epoch_began:
        return
    assert was.waiting.keys() <= state.waiting.keys(), story
    assert not was.undecided or state.undecided == was.undecided, story
    assert not was.newer or state.newer, story
    if was.doubt and not state.doubt:
        assert type(was.change).__name__ == "TakingBack", story
    if was.ahead.keys() - state.ahead.keys():
        assert type(was.change).__name__ in ("Look", "Proving", "PeerRepair", "TakingBack"), story
    reasons = state.newer or state.doubt or state.undecided or state.waiting or state.turning
    assert state.held or state.who.is_slave or not reasons, story
    # Whoever is to follow takes nothing more, whatever it could write.
    assert state.held or type(was.change).__name__ != "Following", story


def ways(place: Place, events: tuple[Event, ...]) -> Iterator[Event]:
    """What may come next: a result, or, at rest, something new."""
    if place.waited_for is not None:
        yield from RESULTS[type(place.waited_for)]
    elif not place.state.broken:
        yield from events
        if not why_busy(place.state):
            yield from (Asked(len(place.asked) + 1, header) for header in REQUESTS)


def explore(begin: Place, first: tuple[Event, ...], deep: int) -> tuple[int, set[str]]:
    """How many places there are, and which actions were seen."""
    seen: set[str] = set()
    kinds: set[str] = set()
    places = [after(begin, event) for event in first] or [begin]
    for _ in range(deep):
        coming: list[Place] = []
        for place in places:
            if place.key in seen:
                continue
            seen.add(place.key)
            kinds |= {type(place.waited_for).__name__}
            coming += [after(place, event) for event in ways(place, NOTICED)]
        places = coming
    return len(seen), kinds


@pytest.mark.parametrize("name", MASTERS)
def test_whatever_fails_in_a_master(name: str) -> None:
    state = MASTERS[name]
    count, kinds = explore(Place(state, kept_by(state)), (), 9)
    assert count > 200
    assert {"Ask", "Write"} <= kinds or state.newer


def test_whatever_fails_in_a_slave() -> None:
    state = slave()
    for pledge in (None, Pledge(1000, OTHER, f"{OTHER}:10911")):
        kept = dataclasses.replace(kept_by(state), pledge=pledge)
        count, kinds = explore(Place(state, kept), (), 9)
        assert count > 100
        assert {"Copy", "StopLink", "GatherPledges", "Write", "Confirm", "Empty"} <= kinds


def test_whatever_fails_in_the_start_of_a_master() -> None:
    for started in (START, CRASHED):
        for heard in (Heard(), Heard([TARGET]), Heard([NEWER])):
            for handing in (None, HandingOver("s:10911", "s")):
                kept = dataclasses.replace(kept_by(master()), handing_over=handing)
                count, _ = explore(Place(master(), kept), (Begin(heard, started),), 6)
                assert count > 2


def test_every_action_and_every_result_comes_up() -> None:
    kinds: set[str] = set()
    for state in (*MASTERS.values(), slave()):
        kinds |= explore(Place(state, kept_by(state)), (), 7)[1]
    pledged = dataclasses.replace(kept_by(slave()), pledge=Pledge(1000, OTHER, f"{OTHER}:10911"))
    kinds |= explore(Place(slave(), pledged), (), 3)[1]
    assert kinds - {"NoneType"} == {one.__name__ for one in RESULTS}
