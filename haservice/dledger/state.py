"""TermState: role, term, vote and leader of a member; what all its parts share.

The term and the vote change here only, and every change of them puts a SaveTerm before whatever tells anybody.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import (
    AskPeer,
    CommittedTo,
    DamageFound,
    EntryMended,
    MemberAction,
    MemberRole,
    RoleIs,
    SaveTerm,
    WholeRecord,
)
from haservice.dledger.log.entry_log import EntryDamaged, EntryLog
from haservice.dledger.messages import LedgerEntry, MemberMessage, Recall
from haservice.dledger.settings import MemberSettings

OnAnswer = Callable[[Any], None]
"""Is given the answer, or None when there will be none."""


class TermState:
    """Owned by one DLedgerMember."""

    def __init__(
        self,
        settings: MemberSettings,
        log: EntryLog,
        *,
        term: int,
        vote: str | None,
        committed_index: int,
        asked: int,
        record: WholeRecord,
        recalls: Mapping[str, Recall],
        source: random.Random,
    ) -> None:
        self.settings, self.log, self.source = settings, log, source
        self.now_s = -math.inf
        self.role = MemberRole.CANDIDATE
        self.term, self.vote = term, vote
        self.leader_id: str | None = None
        self.committed_index = min(committed_index, log.end_index)
        self.damaged: set[int] = set()
        """Entries of the log that are known to be damaged."""
        self.actions: list[MemberAction] = []
        self.on_role: list[Callable[[], None]] = []
        """Called after each change of role, term or leader."""
        self.on_mended: list[Callable[[], None]] = []
        """Called when more may count than before."""
        self._calls: dict[int, tuple[float, OnAnswer]] = {}
        self.asked = asked
        """The number of the last question to a peer."""
        self.record = record
        """Whether this member is whole; wholeness.py changes it."""
        self.recalls = dict(recalls)
        """What this member remembers of others."""
        self.disk_trouble = ""
        """Why the first entry of a term was not appended, the last time that this member led."""
        self.refuses_cut = ""
        """What its leader wants cut, and this member holds committed; "" if nothing."""
        end_term = self.end_term
        if term < end_term:
            # The file with term and vote is older than the log, or lost.  Whom we voted for is not known: nobody else.
            self.term, self.vote = end_term, settings.self_id
            self._save()

    # -- what is so ---------------------------------------------------------------------------------

    @property
    def self_id(self) -> str:
        return self.settings.self_id

    @property
    def end_term(self) -> int:
        return self.log.term_at(self.log.end_index)

    @property
    def reach(self) -> tuple[int, int]:
        """How far the log goes: the last entry's term and index."""
        return self.end_term, self.log.end_index

    @property
    def is_leader(self) -> bool:
        return self.role is MemberRole.LEADER

    @property
    def is_follower(self) -> bool:
        return self.role is MemberRole.FOLLOWER

    @property
    def is_candidate(self) -> bool:
        return self.role is MemberRole.CANDIDATE

    @property
    def counted_index(self) -> int:
        """Up to here this log counts for a majority: durable, and sound.  What is committed needs this copy no more."""
        first = min((index for index in self.damaged if index > self.committed_index), default=math.inf)
        return int(min(self.log.durable_index, first - 1))

    @property
    def may_lead(self) -> bool:
        """Whether this member could append, and push what it has."""
        return not self.log.unwritable and all(index <= self.committed_index for index in self.damaged)

    def base(self, to: str | None = None) -> dict[str, Any]:
        """The base fields of a message of ours."""
        return {
            "group": self.settings.group,
            "local_id": self.self_id,
            "remote_id": to,
            "leader_id": self.leader_id,
            "term": self.term,
        }

    def wrong_address(self, request: MemberMessage) -> DLedgerResponseCode | None:
        """Why a request is not for this member."""
        if request.remote_id != self.self_id:
            return DLedgerResponseCode.UNKNOWN_MEMBER
        if request.group != self.settings.group:
            return DLedgerResponseCode.UNKNOWN_GROUP
        return None

    def random_wait_s(self) -> float:
        return self.source.uniform(self.settings.vote_interval_min_s, self.settings.vote_interval_max_s)

    # -- changes ------------------------------------------------------------------------------------

    def adopt_term(self, term: int, vote: str | None = None) -> None:
        """A newer term is known: whoever led the older one does not lead.

        A member that is not whole votes for nobody in it but for `vote`: it may have voted in it before.
        """
        assert term > self.term, f"term {term} is not above {self.term}"
        if vote is None and not self.record.is_whole:
            vote = self.self_id
        self.term, self.vote = term, vote
        self._save()
        self._become(MemberRole.CANDIDATE, None)

    def vote_for(self, candidate: str) -> None:
        """For this term, once."""
        assert self.vote in (None, candidate), f"voted for {self.vote} in term {self.term}"
        if self.vote is None:
            self.vote = candidate
            self._save()

    def give_vote_away(self) -> None:
        """In this term nobody else gets it any more."""
        if self.vote is None:
            self.vote = self.self_id
            self._save()

    def stand(self, term: int) -> None:
        """Begins a term with a vote for itself."""
        assert term > self.term, f"term {term} is not above {self.term}"
        self.term, self.vote = term, self.self_id
        self._save()
        self._become(MemberRole.CANDIDATE, None)

    def become_candidate(self) -> None:
        self._become(MemberRole.CANDIDATE, None)

    def become_leader(self) -> None:
        self._become(MemberRole.LEADER, self.self_id)

    def become_follower(self, leader_id: str) -> None:
        self._become(MemberRole.FOLLOWER, leader_id)

    def remember(self, peer: str, *, term: int = -1, index: int = -1, vote: int = -1) -> None:
        """A peer has acknowledged to this leader of `term` up to `index`, or has voted for this member."""
        known = self.recalls.get(peer, Recall())
        if index < 0 or term < known.term:
            term, index = known.term, known.index
        elif term == known.term:
            index = max(index, known.index)
        self.recalls[peer] = Recall(term=term, index=index, vote=max(vote, known.vote))

    def commit_to(self, index: int) -> None:
        """The mark only rises, and never above the log's end."""
        index = min(index, self.log.end_index)
        if index > self.committed_index:
            self.committed_index = index
            self.actions.append(CommittedTo(index))

    def read(self, index: int) -> LedgerEntry | None:
        """None if it is damaged: then it is asked for."""
        try:
            return self.log.read(index)
        except EntryDamaged:
            self.found_damaged(index)
            return None

    def read_some(self, index: int, most: int, max_bytes: int) -> Sequence[LedgerEntry]:
        """As the log's; none if the first one is damaged: then it is asked for."""
        try:
            return self.log.read_some(index, most, max_bytes)
        except EntryDamaged:
            self.found_damaged(index)
            return ()

    def found_damaged(self, index: int) -> None:
        if index not in self.damaged and len(self.damaged) < self.settings.damaged_max:
            self.damaged.add(index)
            self.actions.append(DamageFound(index))

    def is_mended(self, index: int) -> None:
        """It is sound again, or gone."""
        if index in self.damaged:
            self.damaged.discard(index)
            self.actions.append(EntryMended(index))
            for call in self.on_mended:
                call()

    def forget_what_is_gone(self) -> None:
        """The log was cut: another entry may come to the place of a damaged one."""
        for index in sorted(self.damaged):
            if not self.log.begin_index <= index <= self.log.end_index:
                self.is_mended(index)

    def _save(self) -> None:
        self.actions.append(SaveTerm(self.term, self.vote))

    def _become(self, role: MemberRole, leader_id: str | None) -> None:
        self.role, self.leader_id = role, leader_id
        self.actions.append(RoleIs(role, self.term, leader_id))
        for call in self.on_role:
            call()

    # -- questions ----------------------------------------------------------------------------------

    def ask(self, peer: str, request: MemberMessage, on_answer: OnAnswer) -> None:
        self.asked += 1
        self._calls[self.asked] = (self.now_s + self.settings.rpc_timeout_s, on_answer)
        self.actions.append(AskPeer(self.asked, peer, request))

    def answered(self, call: int, answer: MemberMessage | None) -> None:
        """An answer to a question that has been given up is nothing."""
        waiting = self._calls.pop(call, None)
        if waiting is not None:
            waiting[1](answer)

    def give_up_calls(self) -> None:
        """Those that have waited too long.  All wait equally long, so the oldest is the first."""
        while self._calls:
            call, (until_s, on_answer) = next(iter(self._calls.items()))
            if until_s > self.now_s:
                return
            del self._calls[call]
            on_answer(None)

    @property
    def calls_due_s(self) -> float:
        return next((until_s for until_s, _ in self._calls.values()), math.inf)
