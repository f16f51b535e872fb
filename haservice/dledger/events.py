"""What a member is told, and what it wants done.

A caller carries actions out in the order in which they are given, each before the next: a vote is on disk before
anybody hears of it.  If one cannot be carried out (SaveTerm on a disk that fails), the member is stopped: what follows
must not happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.log.entry_log import Bodies
from haservice.dledger.messages import LedgerEntry, MemberMessage
from haservice.mastership.whole import Refill

# -- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestCame:
    """A request has come.  `token` names it for the AnswerAsked that follows at once, later, or not at all."""

    token: object
    request: MemberMessage


@dataclass(frozen=True, slots=True)
class PeerAnswered:
    """The answer to an AskPeer, or None: it could not be sent, its connection ended, or no answer came in time."""

    call: int
    answer: MemberMessage | None


@dataclass(frozen=True, slots=True)
class AppendBodies:
    """The broker above appends, and is answered by AppendPlaced and AppendEnded; all of `bodies` or nothing.

    With `term` only while this member leads that one: what the bodies say may be right in no other.
    """

    token: object
    bodies: Bodies
    term: int | None = None


@dataclass(frozen=True, slots=True)
class LogSynced:
    """The log's durable_index may have grown."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It may be later than next_due_s, or nothing else has happened for a while."""


@dataclass(frozen=True, slots=True)
class HandOverTo:
    """An operator wants this leader to hand over to another member."""

    token: object
    to: str


@dataclass(frozen=True, slots=True)
class LeadByForce:
    """An operator wants this member to lead, without those that are silent, though members are not whole."""

    token: object


@dataclass(frozen=True, slots=True)
class LogDamaged:
    """Who reads the log has found these entries damaged; an EntryMended follows for each, at once or much later."""

    indexes: tuple[int, ...]


MemberEvent = (
    RequestCame | PeerAnswered | AppendBodies | LogSynced | TimePassed | HandOverTo | LeadByForce | LogDamaged
)

# -- actions ----------------------------------------------------------------------------------------


class MemberRole(Enum):
    """RocketMQ's names of them."""

    CANDIDATE = "CANDIDATE"
    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"


@dataclass(frozen=True, slots=True)
class SaveTerm:
    """The term and the vote, durably: `currTerm` and `voteLeader` of the file `currterm`."""

    term: int
    vote: str | None


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """What a member writes down of whether it is whole; see wholeness.py."""

    why: str | None = None
    """Why it is not whole; None if it is."""
    filling: Refill | None = None
    """How far it has come, if it is not whole."""
    since: int = -1
    """The term in which its log was filled or cut last: what leaders of earlier terms were told does not count."""
    alone: str = ""
    """How it came to lead though too few members were whole, and what may be lost; "" if it never did."""

    @property
    def is_whole(self) -> bool:
        return self.why is None


@dataclass(frozen=True, slots=True)
class SaveWhole:
    """The record, durably."""

    record: WholeRecord


@dataclass(frozen=True, slots=True)
class AskPeer:
    """A request for `peer`; whatever becomes of it is told by PeerAnswered with this `call`."""

    call: int
    peer: str
    request: MemberMessage


@dataclass(frozen=True, slots=True)
class AnswerAsked:
    """The answer to a request that came by RequestCame."""

    token: object
    answer: MemberMessage


@dataclass(frozen=True, slots=True)
class AppendPlaced:
    """Bodies are in this leader's log as these entries; nothing is promised yet."""

    token: object
    entries: Sequence[LedgerEntry]


@dataclass(frozen=True, slots=True)
class AppendEnded:
    """SUCCESS: a majority has it durably.  With any other code after AppendPlaced it may still be committed."""

    token: object
    code: DLedgerResponseCode
    index: int = -1


@dataclass(frozen=True, slots=True)
class HandOverEnded:
    """What became of a HandOverTo, or of a LeadByForce."""

    token: object
    code: DLedgerResponseCode


@dataclass(frozen=True, slots=True)
class CommittedTo:
    """Entries up to this index may be read by consumers."""

    index: int


@dataclass(frozen=True, slots=True)
class RoleIs:
    """A role, a term or a leader has changed."""

    role: MemberRole
    term: int
    leader_id: str | None


@dataclass(frozen=True, slots=True)
class TellOperator:
    """For the log: something that an operator has to know."""

    text: str


@dataclass(frozen=True, slots=True)
class DamageFound:
    """This entry of the log is damaged: nobody should read it."""

    index: int


@dataclass(frozen=True, slots=True)
class EntryMended:
    """This entry is sound, or not there any more."""

    index: int


MemberAction = (
    SaveTerm
    | SaveWhole
    | AskPeer
    | AnswerAsked
    | AppendPlaced
    | AppendEnded
    | HandOverEnded
    | CommittedTo
    | RoleIs
    | TellOperator
    | DamageFound
    | EntryMended
)
