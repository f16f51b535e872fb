"""What the machine of roles wants done, and the results of that.  Pure: values only.

An action has one result, or none.  In a step at most one action has a result, and it is the last one.
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
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.status import SlaveStatus

# -- results ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """The action is done."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The action failed, and changed nothing.  `answered`: whoever was asked gave this reason himself."""

    reason: str
    answered: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Where the log ends: whole records only, flushed or acknowledged as asked for."""

    offset: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """Where our log ends now; `failure`: why it ends short of the aim; `more`: there is more to pull."""

    end: int
    failure: str = ""
    more: bool = False


class NoVote(NamedTuple):
    """Why a broker that was asked for its pledge says nothing of itself; `answered`: it said no."""

    addr: str
    why: str
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Votes:
    """What those asked for their pledges say of themselves, and why others did not answer so."""

    heard: Sequence[LineageBody]
    refused: Sequence[NoVote] = ()


@dataclass(frozen=True, slots=True)
class Slaves:
    """Which slaves are connected."""

    slaves: Sequence[SlaveStatus]


@dataclass(frozen=True, slots=True)
class Lost:
    """The answer to a request did not come: its outcome is unknown."""

    reason: str


Result = Heard | LineageBody | Done | Failed | End | Pulled | Votes | Slaves | Lost


# -- actions with a result --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks all peers, and those at `also`.  → Heard"""

    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskOne:
    """Asks one broker, which has a moment to answer.  → LineageBody or Failed"""

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
    """Replaces fields of the lineage file, durably.  With `listed`, only if the file's list of replicas is
    still that one.  → Done or Failed
    """

    changes: Mapping[str, Any]
    listed: ReplicaList | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """Takes back what the peer has from `begin` to `end`, or a large piece of it.  → Pulled"""

    peer: LineageBody
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A slave's last copy of what its master keeps beside the log.  → Done or Failed"""

    from_living: bool


@dataclass(frozen=True, slots=True)
class StopLink:
    """Ends a slave's link; its log grows no more.  → End of its whole records, or Failed"""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Whether the master at `addr` still hands over by `token`.  → Done or Failed"""

    addr: str
    token: str


@dataclass(frozen=True, slots=True)
class GatherPledges:
    """Asks the brokers at `addrs` for their pledges, all at once.  → Votes"""

    addrs: tuple[str, ...]
    header: PledgeHeader


@dataclass(frozen=True, slots=True)
class LookAtSlaves:
    """→ Slaves"""


@dataclass(frozen=True, slots=True)
class AwaitLevel:
    """Flushes, and waits until the slave has acknowledged everything.  → End or Failed"""

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
    """Sends our lineage to whoever asked; in `role`, if we are about to be that."""

    ticket: int
    role: RoleInForce | None = None


@dataclass(frozen=True, slots=True)
class AnswerWith:
    """Sends this answer to whoever asked."""

    ticket: int
    body: SwitchoverBody


@dataclass(frozen=True, slots=True)
class Refuse:
    """Sends an error to whoever asked."""

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Stops the broker and starts it again, once the answers have gone out."""

    why: str


@dataclass(frozen=True, slots=True)
class TakeList:
    """Another list of replicas is written: acknowledgements now count by it.  `regreet`: in a new epoch."""

    regreet: bool


@dataclass(frozen=True, slots=True)
class LeaveMaster:
    """Ends a slave's link and greets the master anew: the slave may refuse it by what it has promised now."""


@dataclass(frozen=True, slots=True)
class SetMaster:
    """Sets a slave's master: the addresses for clients and for slaves."""

    broker_addr: str
    ha_addr: str


@dataclass(frozen=True, slots=True)
class TellFollow:
    """Tells a slave who the master is; nothing depends on its answer."""

    addr: str
    header: FollowHeader


class LogLevel(enum.IntEnum):
    """How serious a line is; the numbers are those of logging."""

    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log; with a `cause`, only once in a while for each cause."""

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


def ended_by_error(action: WithResult, reason: str, *, answered: bool) -> Result:
    """The result of an action that an error ended, of a type that the action promises.

    A request that may have been carried out is lost, not refused.  Who could not be asked has said nothing.
    """
    match action:
        case SendPromote() | FindOut() if not answered:
            return Lost(reason)
        case Ask():
            return Heard()
        case GatherPledges():
            return Votes([], [NoVote(addr, reason) for addr in action.addrs])
        case Pull():
            return Pulled(action.begin, reason)
        case LookAtSlaves():
            return Slaves(())
    return Failed(reason, answered)


Without = Answer | AnswerWith | Refuse | Turn | TakeList | LeaveMaster | SetMaster | TellFollow | Say
Action = WithResult | Without
