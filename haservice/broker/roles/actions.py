"""What the machine of roles wants done, and what comes of it.  Pure: values only.

An action has one result, or none.  Of one step at most one action has a result, and that is its last.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import RoleInForce
from haservice.remoting.headers.lineage import (
    FollowHeader,
    LineageBody,
    PledgeHeader,
    PromoteHeader,
    SwitchoverBody,
)
from haservice.replication.lineage.membership import Members
from haservice.replication.status import SlaveStatus

# -- results ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """It is done."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It is not, and nothing has changed by it.  `answered`: whoever was asked has said so himself."""

    reason: str
    answered: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Where the log ends, all of it whole records, and as asked for flushed or acknowledged."""

    offset: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """Where our log ends now; `failure` says why not where it was to, `more` that it goes on there."""

    end: int
    failure: str = ""
    more: bool = False


class NoVote(NamedTuple):
    """Why one that was asked for its pledge says nothing of itself; whether it `answered`, with a no."""

    addr: str
    why: str
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Votes:
    """What those say of themselves who were asked for their pledges, and why others did not answer so."""

    heard: Sequence[LineageBody]
    refused: Sequence[NoVote] = ()


@dataclass(frozen=True, slots=True)
class Slaves:
    """Who is connected."""

    slaves: Sequence[SlaveStatus]


@dataclass(frozen=True, slots=True)
class Lost:
    """A request's answer did not come: it is not known what became of it."""

    reason: str


Result = Heard | LineageBody | Done | Failed | End | Pulled | Votes | Slaves | Lost


# -- actions with a result --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """What all peers say, and those at `also`.  → Heard"""

    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskOne:
    """What one says, within a moment.  → LineageBody or Failed"""

    addr: str


@dataclass(frozen=True, slots=True)
class Prove:
    """Whether the peer has our bytes, up to where its epochs and ours are one.  → Done or Failed"""

    peer: LineageBody


@dataclass(frozen=True, slots=True)
class Flush:
    """→ End or Failed"""


@dataclass(frozen=True, slots=True)
class Write:
    """Replaces fields of the lineage file, durably; not if its list of replicas is another one than `listed` by
    then, where that was looked at.  → Done or Failed
    """

    changes: Mapping[str, Any]
    listed: Members | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """Takes back what the peer has from `begin` to `end`, or a good piece of it.  → Pulled"""

    peer: LineageBody
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A slave's last copy of what its master keeps beside the log.  → Done or Failed"""

    from_living: bool


@dataclass(frozen=True, slots=True)
class StopLink:
    """A slave's link ends; its log grows no more.  → End of its whole records, or Failed"""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Whether the master at `addr` still hands over by `token`.  → Done or Failed"""

    addr: str
    token: str


@dataclass(frozen=True, slots=True)
class GatherPledges:
    """Asks those at `addrs`, all at once.  → Votes"""

    addrs: tuple[str, ...]
    header: PledgeHeader


@dataclass(frozen=True, slots=True)
class LookAtSlaves:
    """→ Slaves"""


@dataclass(frozen=True, slots=True)
class AwaitLevel:
    """Flushes, and waits until the slave has acknowledged all.  → End or Failed"""

    replica_id: str
    addr: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SendPromote:
    """→ LineageBody, Failed if it was refused, or Lost"""

    addr: str
    header: PromoteHeader
    seconds: float


@dataclass(frozen=True, slots=True)
class FindOut:
    """Asks until the slave says whether it became the master of an epoch from `epoch` on.

    → LineageBody if it did, Failed if not, or Lost
    """

    addr: str
    replica_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Empty:
    """Empties a slave's log and queues; its link has ended.  → Done or Failed"""

    keep: bool


# -- actions without one ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """Who asked gets our lineage, in `role` if that is what we are about to be."""

    ticket: int
    role: RoleInForce | None = None


@dataclass(frozen=True, slots=True)
class AnswerWith:
    """Who asked gets this."""

    ticket: int
    body: SwitchoverBody


@dataclass(frozen=True, slots=True)
class Refuse:
    """Who asked gets an error."""

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Turn:
    """The broker stops and starts again, once the answers have gone out."""

    why: str


@dataclass(frozen=True, slots=True)
class TakeList:
    """Another list of replicas is written: acknowledgements count by it.  `regreet`: in a new epoch."""

    regreet: bool


@dataclass(frozen=True, slots=True)
class LeaveMaster:
    """A slave's link ends, and the master is greeted anew: by what is promised now it may be refused."""


@dataclass(frozen=True, slots=True)
class SetMaster:
    """A slave's master: where clients, and where slaves reach it."""

    broker_addr: str
    ha_addr: str


@dataclass(frozen=True, slots=True)
class TellFollow:
    """A slave is told who the master is; nothing hangs on its answer."""

    addr: str
    header: FollowHeader


class LogLevel(enum.IntEnum):
    """How loud something is said; the numbers are logging's."""

    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log; with a `cause` once in a while for each."""

    level: LogLevel
    text: str
    cause: tuple[str, ...] = ()


WithResult = (
    Ask
    | AskOne
    | Prove
    | Flush
    | Write
    | Pull
    | Copy
    | StopLink
    | Confirm
    | GatherPledges
    | LookAtSlaves
    | AwaitLevel
    | SendPromote
    | FindOut
    | Empty
)
Without = Answer | AnswerWith | Refuse | Turn | TakeList | LeaveMaster | SetMaster | TellFollow | Say
Action = WithResult | Without
