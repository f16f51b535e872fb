"""The machine of roles without a broker: played results instead of hands, and a record of what was done.

    driver = Driver(master(), Ask=Heard([peer]), Write=[Failed("no room"), Done()])
    driver.tell(Tick())
    driver.did(Write)         the actions of a kind, in their order
    driver.state.held         what holds the master now; driver.held_during(Write): what did at that time

A result is a value, a list of values of which the last one stays, or a function of the action.  Where nothing
is said all goes well: a Write changes `kept`, a Pull brings the log to where it was to come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from haservice.broker.roles.actions import (
    Action,
    Answer,
    AnswerWith,
    Done,
    End,
    Failed,
    Flush,
    Pull,
    Pulled,
    Refuse,
    Result,
    Slaves,
    StopLink,
    Turn,
    Votes,
    WithResult,
    Write,
)
from haservice.broker.roles.machine import step, why_busy
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import RoleInForce
from haservice.broker.roles.state import Asked, Event, Order, RoleState, View, Who
from haservice.configuration.settings import BrokerRole
from haservice.remoting.headers.clients import ExtHeader
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan
from haservice.replication.lineage.file import LineageState
from haservice.replication.lineage.membership import ReplicaList

A = TypeVar("A")
ME, ADDR = "me", "me:10911"
FORCED = f"mqadmin failover -b broker-a --to {ADDR} --force"
# What an action comes to where a test says nothing.
_FINE: Mapping[str, Result] = {
    "Ask": Heard(),
    "AskOne": Failed("it is silent"),
    "Prove": Failed("no epoch of ours is in its log"),
    "GatherPledges": Votes([]),
    "LookAtSlaves": Slaves([]),
}


def master(role: BrokerRole = BrokerRole.SYNC_MASTER, **known: Any) -> RoleState:
    return RoleState(Who(RoleInForce(role, 0, role, 0), ADDR, "me:10912", failover=FORCED), **known)


def slave(**known: Any) -> RoleState:
    return RoleState(Who(RoleInForce(BrokerRole.SLAVE, 1, BrokerRole.SLAVE, 1), ADDR, "me:10912"), **known)


def listed(*slaves: str, by: str = ME, needed: int = 1) -> ReplicaList:
    """The list of a master in epoch 1, whose slaves are at `name:10911`."""
    return ReplicaList(1, 0, by, needed, replicas={one: f"{one}:10911" for one in (by, *slaves)})


class Driver:
    """As RoleExecutor goes about it."""

    def __init__(self, state: RoleState, *epochs: Epoch, **said: Any) -> None:
        self.state = state
        self.kept = LineageState(ME, lineage=Lineage(epochs or (Epoch(1, 0, ME),)), members=listed("s"))
        self.end = 1000
        self.now_s = 0.0
        self.boottime_s = 0.0
        self.followers: frozenset[str] = frozenset()
        self.unwritable = ""
        self.asked = False
        self.said = dict(said)
        self.done: list[tuple[Action, str]] = []
        self.answers: dict[int, Action] = {}
        self._tickets = 0

    def keep(self, **changes: Any) -> Driver:
        self.kept = replace(self.kept, **changes)
        return self

    def tell(self, *events: Event) -> Driver:
        for event in events:
            following: Event | None = event
            while following is not None:
                self.state, actions = step(self.state, following, self.view())
                following = self._carry_out(actions)
        return self

    def ask(self, header: ExtHeader | Order) -> Action:
        """The answer; exactly one."""
        self._tickets += 1
        if busy := why_busy(self.state):
            return Refuse(self._tickets, busy)
        self.tell(Asked(self._tickets, header))
        return self.answers[self._tickets]

    def did(self, kind: type[A]) -> list[A]:
        return [action for action, _ in self.done if isinstance(action, kind)]

    def held_during(self, kind: type) -> list[str]:
        return [held for action, held in self.done if isinstance(action, kind)]

    @property
    def wrote(self) -> list[Mapping[str, Any]]:
        return [one.changes for one in self.did(Write)]

    @property
    def turned(self) -> bool:
        return bool(self.did(Turn))

    def view(self) -> View:
        log = LogSpan(0, self.end)
        facts = (7, self.now_s, "boot", self.followers, self.unwritable, self.asked, self.boottime_s)
        return View(self.kept, log, *facts)

    def _carry_out(self, actions: tuple[Action, ...]) -> Event | None:
        following: Event | None = None
        for action in actions:
            self.done.append((action, self.state.held))
            if isinstance(action, Answer | AnswerWith | Refuse):
                assert action.ticket not in self.answers, action
                self.answers[action.ticket] = action
            elif isinstance(action, WithResult):
                assert following is None, actions
                following = self._result(action)
        return following

    def _result(self, action: WithResult) -> Result:
        name = type(action).__name__
        played = self.said.get(name, _FINE.get(name))
        if isinstance(played, list):
            played = played.pop(0) if len(played) > 1 else played[0]
        if isinstance(played, Callable):  # type: ignore[arg-type]
            played = played(action)
        if played is None:
            played = End(self.end) if isinstance(action, Flush | StopLink) or name == "AwaitLevel" else Done()
            if isinstance(action, Pull):
                played = Pulled(action.end)
        if isinstance(action, Write) and isinstance(played, Done):
            self.kept = replace(self.kept, **action.changes)
        if isinstance(action, Pull):
            self.end = played.end
        return played  # type: ignore[no-any-return]
