"""What members and clients of a group say to each other: JSON bodies, with stock DLedger's names and defaults.

    client → member    METADATA  APPEND  GET
    member → member    VOTE  HEART_BEAT  PUSH  PULL (nobody serves it)
    either → leader    LEADERSHIP_TRANSFER

Some fields are ours.  Stock peers ignore them, and do without them:

    VoteRequest.preVote          asks how a vote in the next term would go; nobody changes anything for it
    GetEntriesRequest.mends      wants the entry of whoever has it, also of a follower, to put back a damaged one
    GetEntriesResponse.committedIndex  answers that: what this member knows to be committed
    HeartBeatRequest.intervalMs  how often this leader beats; one that does not say it is stock, and beats every 2 s
    PushEntryResponse.takesRuns  this follower takes entries as they are stored (wire.py), not only as JSON
    VoteRequest.recall, VoteResponse.recall, HeartBeatRequest.recall   what the sender remembers of the receiver
    VoteResponse.ledgerEndIndex, ledgerEndTerm   where the log of the answering member ends
    VoteResponse.notWhole, HeartBeatResponse.notWhole   why the answering member is not whole; absent if it is
    HeartBeatResponse.refusesCut   that it refuses to cut what it holds committed
    VoteRequest.forced, HeartBeatRequest.forced   an operator's --force began this term
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from haservice.bounds import EpochOrNone, FileBytes, OffsetOrNone
from haservice.dledger.codes import DLedgerResponseCode, PushType, VoteResult
from haservice.remoting.json_body import JSONBody

ENTRY_HEADER_BYTES = 48
ENTRY_MAGIC = 1
SUCCESS = int(DLedgerResponseCode.SUCCESS)


@dataclass(frozen=True, slots=True)
class LedgerEntry(JSONBody):
    """One entry of the log, as it is pushed.  `size` counts the 48 bytes of its header."""

    index: OffsetOrNone
    term: EpochOrNone
    pos: OffsetOrNone = -1
    body: bytes = b""
    size: FileBytes = 0
    magic: int = ENTRY_MAGIC
    channel: int = 0
    chain_crc: int = 0
    body_crc: int = 0

    @classmethod
    def of(cls, index: int, term: int, pos: int, body: bytes) -> LedgerEntry:
        return cls(index, term, pos, body, ENTRY_HEADER_BYTES + len(body))

    @property
    def is_sound(self) -> bool:
        return (
            self.index >= 0
            and self.term >= 0
            and self.pos >= 0
            and self.size == ENTRY_HEADER_BYTES + len(self.body)
        )

    def same_as(self, other: LedgerEntry) -> bool:
        """All but the two checksums, which stock never fills."""
        return (
            self.index == other.index
            and self.term == other.term
            and self.pos == other.pos
            and self.magic == other.magic
            and self.channel == other.channel
            and self.body == other.body
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMessage(JSONBody):
    """What every request and every answer has.  `remote_id` is to whom it goes, `local_id` from whom it comes."""

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    leader_id: str | None = None
    term: EpochOrNone = -1
    code: int = SUCCESS

    @property
    def result(self) -> DLedgerResponseCode:
        return DLedgerResponseCode(self.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(JSONBody):
    """What a member remembers of another one: up to where that one has acknowledged to it as the leader of `term`, and
    the last term in which it voted for it.
    """

    term: EpochOrNone = -1
    index: OffsetOrNone = -1
    vote: EpochOrNone = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(MemberMessage):
    """`leader_id` is the candidate, `term` the term of the vote; -1 asks for no vote, and only what there is."""

    ledger_end_index: OffsetOrNone = -1
    ledger_end_term: EpochOrNone = -1
    pre_vote: bool | None = None
    forced: bool | None = None
    recall: Recall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(MemberMessage):
    """`term` is the answering member's."""

    vote_result: str = VoteResult.UNKNOWN.value
    ledger_end_index: OffsetOrNone | None = None
    ledger_end_term: EpochOrNone | None = None
    not_whole: str | None = None
    recall: Recall | None = None

    @property
    def vote(self) -> VoteResult:
        return VoteResult(self.vote_result)

    @property
    def place(self) -> tuple[int, int] | None:
        """Where the log of the answering member ends; None of a stock one."""
        if self.ledger_end_term is None or self.ledger_end_index is None:
            return None
        return self.ledger_end_term, self.ledger_end_index


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartBeatRequest(MemberMessage):
    interval_ms: int | None = None
    patience_growth: int | None = None
    forced: bool | None = None
    recall: Recall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartBeatResponse(MemberMessage):
    not_whole: str | None = None
    refuses_cut: str | None = None
    patience_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushEntryRequest(MemberMessage):
    """One entry, several that follow each other, or none (COMMIT)."""

    type: str = PushType.APPEND.value
    entry: LedgerEntry | None = None
    batch_entry: Sequence[LedgerEntry] = ()
    commit_index: OffsetOrNone = -1
    total_size: FileBytes = 0

    @property
    def push_type(self) -> PushType | None:
        return PushType(self.type) if self.type in PushType.__members__ else None

    @property
    def entries(self) -> Sequence[LedgerEntry]:
        return self.batch_entry or ((self.entry,) if self.entry is not None else ())

    def tree(self) -> dict[str, Any]:
        """With what a stock peer derives itself, and writes too."""
        entries = self.entries
        # slots=True makes the class anew, and super() without arguments does not find it.
        tree = JSONBody.tree(self)
        tree["count"] = len(entries)
        tree["batch"] = bool(self.batch_entry)
        tree["firstEntryIndex"] = entries[0].index if entries else -1
        tree["lastEntryIndex"] = entries[-1].index if entries else -1
        return tree


@dataclass(frozen=True, slots=True, kw_only=True)
class PushEntryResponse(MemberMessage):
    """`index` is the request's first; a peer from before batches answers with `count` 0."""

    index: OffsetOrNone | None = None
    count: FileBytes = 0
    begin_index: OffsetOrNone = -1
    end_index: OffsetOrNone = -1
    takes_runs: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullEntriesRequest(MemberMessage):
    """51003, which stock never served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullEntriesResponse(MemberMessage):
    """UNSUPPORTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(MemberMessage):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(MemberMessage):
    """`leader_id` is absent while the member knows none."""

    peers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntryRequest(MemberMessage):
    """One body, or in `batch_msgs` several; each becomes an entry of its own."""

    body: bytes | None = None
    batch_msgs: Sequence[bytes] | None = None

    @property
    def bodies(self) -> tuple[bytes, ...]:
        if self.batch_msgs is not None:
            return tuple(self.batch_msgs)
        return (self.body or b"",)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntryResponse(MemberMessage):
    """Index and place of the last entry; -1 if nothing was appended."""

    index: OffsetOrNone = -1
    pos: OffsetOrNone = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEntriesRequest(MemberMessage):
    begin_index: OffsetOrNone = -1
    max_size: int = 0
    mends: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEntriesResponse(MemberMessage):
    entries: Sequence[LedgerEntry] = ()
    committed_index: OffsetOrNone | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipTransferRequest(MemberMessage):
    """To the leader, who is `transfer_id`; and from it to `transferee_id`, which is to reach the index first."""

    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: OffsetOrNone = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipTransferResponse(MemberMessage):
    pass


R = TypeVar("R", bound=MemberMessage)


def refusal(kind: type[R], request: MemberMessage, code: DLedgerResponseCode, leader_id: str | None) -> R:
    """An answer of `kind` that says no, as stock says it: the request's base, the code, the leader."""
    return kind(
        group=request.group,
        remote_id=request.remote_id,
        local_id=request.local_id,
        term=request.term,
        code=int(code),
        leader_id=leader_id,
    )
