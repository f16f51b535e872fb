"""What the machine of roles knows, and what it is told.  Pure: values only.

    RoleState    everything that decides whether this broker accepts writes, and what it is about to be
    events       what happens to it: a tick, a hint, a slave that is ahead, a request, the result of an action

`held` alone says whether a master may accept writes.  It is derived, so it belongs to nobody: a hold ends
when its reason does, never because another hold ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from haservice.broker.roles.actions import Action, Result
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import NewerMaster, RoleInForce, StartOfMaster
from haservice.errors import RequestError
from haservice.remoting.codes import ResponseCode
from haservice.remoting.headers.clients import ExtHeader
from haservice.replication.lineage.epochs import LogSpan
from haservice.replication.lineage.file import LineageState, Replica

# So many slaves that are ahead, and so many addresses to ask, are remembered at a time.
AHEAD_MAX = 16
SUSPECTS_MAX = 16


# -- the state --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Who:
    """What a broker is for one life, and where clients and slaves reach it.  `needed` slaves make an OK;
    `failover` is the command that makes the broker go on whatever is lost.
    """

    role: RoleInForce
    broker_addr: str
    ha_addr: str
    needed: int = 1
    failover: str = "mqadmin failover --force"
    log_path: str = ""
    """Where its log lies."""

    @property
    def counted_failover(self) -> str:
        """The command that counts first whether anything may be lost."""
        return self.failover.removesuffix(" --force")

    def failover_to(self, addr: str = "ADDR") -> str:
        """The command for another broker."""
        return self.counted_failover.replace(f"--to {self.broker_addr}", f"--to {addr}")

    @property
    def is_slave(self) -> bool:
        return self.role.role.is_slave


@dataclass(frozen=True, slots=True)
class View:
    """The facts at this moment: the lineage file, the log, which replicas follow us now; the time, by the
    wall clock and by a clock that never jumps.
    """

    kept: LineageState
    log: LogSpan
    now_ms: int
    now_s: float
    boot_id: str
    followers: frozenset[str] = frozenset()
    unwritable: str = ""
    """Why the log refuses writes, whatever our role; a full disk does not count."""
    asked: bool = False
    """Whether a request waits for its turn."""
    boottime_s: float = 0.0
    """By the clock of leases, which runs while the host is suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of a change of role that is under way, or of a look at the peers: it waits for one result."""

    hold: str = ""
    """Why the master refuses writes meanwhile; "" if it accepts them."""
    token: str = ""
    """The token of a switchover whose slave may still become the master; else ""."""

    @property
    def is_look(self) -> bool:
        """Whether it only looks: then nobody has to hear that another change is under way."""
        return False

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        """What follows from the result of the step's last action."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking(Change):
    """A step that only looks."""

    @property
    def is_look(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RoleState:
    """A broker's role, and everything that makes a master refuse writes."""

    who: Who
    change: Change | None = None
    waiting: Mapping[str, Replica] = field(default_factory=dict)
    """Replicas to hear before writes are accepted, because they may have what was lost here."""
    caught_up: frozenset[str] = frozenset()
    """Those of the waiting replicas that have nothing more for us."""
    lost: str = ""
    """Why this master's log is not whole; it is once it reaches the file's whole_from again."""
    undecided: str = ""
    """Why an operator has to decide before writes are accepted."""
    doubt: str = ""
    """Why it is not known whether a slave was promoted; the file says which slave."""
    newer: NewerMaster | None = None
    """The master that we have to follow, which could not be written yet."""
    ahead: Mapping[str, str] = field(default_factory=dict)
    """Slaves that hold more of our last epoch than we do, or of one before a restart: replica ids and addresses."""
    suspects: tuple[str, ...] = ()
    """Addresses that somebody named: the broker there is asked, and has to prove what it says."""
    heard: int = -1
    """The highest epoch number that was heard of; -1 if there was none."""
    trouble: str = ""
    """What went wrong at the last try to take something back, or to write."""
    unproven: str = ""
    """Who says that there is a newer epoch, and does not prove it."""
    turning: str = ""
    """Why the broker is about to stop and start again; never taken back."""
    broken: str = ""
    """Why this broker cannot start as a master."""
    again: bool = False
    """Whether the next look has to come as soon as others have had their turn."""

    @property
    def changing(self) -> bool:
        return bool(self.turning) or (self.change is not None and not self.change.is_look)

    @property
    def token(self) -> str:
        return self.change.token if self.change is not None else ""

    @property
    def must_begin_anew(self) -> bool:
        """Whether a new epoch has to begin before writes are accepted; the next start finds it so, too."""
        return bool(self.waiting or self.lost or self.undecided)

    @property
    def is_urgent(self) -> bool:
        """Whether every moment counts, because writes are refused."""
        return bool(self.waiting or self.lost or self.doubt or self.newer or self.ahead or self.suspects)

    @property
    def held(self) -> str:
        """Why this master refuses writes; empty if it accepts them."""
        if self.who.is_slave:
            return ""
        if self.change is not None and self.change.hold:
            return self.change.hold
        if self.turning:
            return f"this broker restarts to change its role: {self.turning}"
        if self.newer is not None:
            return self.trouble
        if self.doubt:
            return self.doubt
        if self.lost:
            return self._lost
        if self.waiting:
            return self._waited_for
        if self.undecided:
            return self.undecided
        return "a slave has messages that this master has lost, they are copied back" if self.ahead else ""

    @property
    def _lost(self) -> str:
        who = self.who
        left = [
            one.broker_addr or name[:8] for name, one in self.waiting.items() if name not in self.caught_up
        ]
        start = f"start {', '.join(left)}: what it has is copied back; " if left else ""
        trouble = f"{self.trouble}; " if self.trouble else ""
        return (
            f"{self.lost}: see that the right disk is mounted at {who.log_path}, and restart this broker; {start}"
            f"{trouble}if another broker has all messages: {who.failover_to()};"
            f" if they are lost for good: {who.failover}"
        )

    @property
    def _waited_for(self) -> str:
        left = [item for item in self.waiting.items() if item[0] not in self.caught_up]
        if not left:
            return f"a new epoch is to begin: {self.trouble}"
        named = ", ".join(f"{one.broker_addr or 'unknown address'} ({name[:8]})" for name, one in left)
        trouble = f"; {self.trouble}" if self.trouble else ""
        return (
            f"this master lost its log's end, and {named} may have messages that are lost here: start it, and they"
            f" are copied back; no answer yet{trouble}; if it is lost for good: {self.who.failover}"
        )

    def but(self, **changes: Any) -> RoleState:
        return replace(self, **changes)


# -- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """A master starts; this is what it finds."""

    heard: Heard
    start: StartOfMaster


@dataclass(frozen=True, slots=True)
class Tick:
    """Some time has passed."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Somebody, whom we need not believe, names a broker that may know of a newer epoch."""

    addr: str


@dataclass(frozen=True, slots=True)
class SlaveAhead:
    """A slave whose log was compared with ours holds more of our last epoch than we do, or of one before a restart."""

    replica_id: str
    addr: str


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """The holder of the lease begins its epoch; not from `until_s` on, by View.boottime_s."""

    epoch: int
    until_s: float
    why: str

    def why_late(self, now_s: float) -> str:
        """Why it may not begin any more; "" if it may."""
        return "" if now_s < self.until_s else "the lease is over, and another one's epoch may have begun"


@dataclass(frozen=True, slots=True)
class SealLog:
    """Nothing is acknowledged any more to a master of `epoch` or an older one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TakeRole:
    """A master with a coordinator becomes another kind of master, within its epoch."""

    role: str
    why: str


Order = BeginEpoch | SealLog | TakeRole
"""What only this broker itself asks for: by its coordinator's word, or because its epochs are the coordinator's."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; its answer goes to `ticket`."""

    ticket: int
    header: ExtHeader | Order


Event = Begin | Tick | Hint | SlaveAhead | Asked | Result
Step = tuple[RoleState, tuple[Action, ...]]


def refused(reason: str) -> RequestError:
    """The answer to a request for a change that is not made."""
    return RequestError(ResponseCode.SYSTEM_ERROR, reason)
