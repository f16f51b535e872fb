"""Driven: one member whose peers are played by the test."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from haservice.dledger.codes import DLedgerResponseCode, PushType, VoteResult
from haservice.dledger.events import (
    AnswerAsked,
    AskPeer,
    MemberAction,
    MemberEvent,
    MemberRole,
    PeerAnswered,
    RequestCame,
    SaveTerm,
    TimePassed,
)
from haservice.dledger.member import DLedgerMember
from haservice.dledger.messages import (
    HeartBeatRequest,
    LedgerEntry,
    MemberMessage,
    PushEntryRequest,
    PushEntryResponse,
    VoteRequest,
    VoteResponse,
)
from haservice.dledger.settings import MemberSettings
from tests.support.entry_log import MemoryLog

A = TypeVar("A")
M = TypeVar("M", bound=MemberMessage)


def settings(members: int = 3, self_id: str = "n0", **others: Any) -> MemberSettings:
    peers = {f"n{number}": f"host:{40911 + number}" for number in range(members)}
    return MemberSettings("g", self_id, peers, **others)


def log_of(*terms: int, flushes: bool = False, body: bytes = b"x") -> MemoryLog:
    """A log with one entry of each of these terms, all durable."""
    log = MemoryLog(flushes=flushes)
    for term in terms:
        log.append_as_leader(term, [body])
    log.sync()
    return log


class Driven:
    """The member is n0."""

    def __init__(self, log: MemoryLog | None = None, members: int = 3, term: int = 0, **options: Any) -> None:
        self.log = log if log is not None else log_of()
        self.now_s = 100.0
        vote = options.pop("vote", None)
        committed = options.pop("committed_index", -1)
        self.member = DLedgerMember(
            settings(members, **options),
            self.log,
            term=term,
            vote=vote,
            committed_index=committed,
            source=random.Random(1),
        )
        self.actions: list[MemberAction] = []
        """Of the last step."""
        self.all: list[MemberAction] = []
        self.step(TimePassed())

    def step(self, *events: MemberEvent) -> list[MemberAction]:
        self.actions = self.member.steps(events, self.now_s)
        self.all += self.actions
        return self.actions

    def on(self, seconds: float) -> list[MemberAction]:
        """Time passes, one due moment after the other; gives what was done meanwhile."""
        done: list[MemberAction] = []
        until_s = self.now_s + seconds
        for _ in range(2000):
            due_s = max(self.now_s, self.member.next_due_s)
            if due_s > until_s:
                break
            self.now_s = due_s + 1e-6
            done += self.step(TimePassed())
        else:
            raise AssertionError("it is due again and again")
        self.now_s = max(self.now_s, until_s)
        done += self.step(TimePassed())
        self.actions = done
        return done

    def done(self, kind: type[A]) -> list[A]:
        """Actions of this kind in the last step."""
        return [one for one in self.actions if isinstance(one, kind)]

    def asks(self, kind: type[M]) -> list[tuple[AskPeer, M]]:
        return [(one, one.request) for one in self.done(AskPeer) if isinstance(one.request, kind)]

    def pushes(self, kind: PushType) -> list[tuple[AskPeer, PushEntryRequest]]:
        return [(ask, push) for ask, push in self.asks(PushEntryRequest) if push.push_type is kind]

    # -- as a peer ----------------------------------------------------------------------------------

    def ask(self, request: MemberMessage) -> MemberMessage | None:
        """What it answers at once."""
        self.step(RequestCame("token", request))
        answers = [one.answer for one in self.done(AnswerAsked) if one.token == "token"]
        return answers[-1] if answers else None

    def base(self, sender: str, term: int) -> dict[str, Any]:
        return {"group": "g", "remote_id": "n0", "local_id": sender, "leader_id": sender, "term": term}

    def vote(self, candidate: str, term: int, end: tuple[int, int], **more: Any) -> VoteResult:
        """`end` is the term and the index at the candidate's end."""
        request = VoteRequest(
            **self.base(candidate, term), ledger_end_term=end[0], ledger_end_index=end[1], **more
        )
        answer = self.ask(request)
        assert isinstance(answer, VoteResponse)
        return answer.vote

    def beat(self, leader: str, term: int, interval_ms: int | None = 500) -> DLedgerResponseCode:
        answer = self.ask(HeartBeatRequest(**self.base(leader, term), interval_ms=interval_ms))
        assert answer is not None
        return answer.result

    def push(
        self, kind: PushType, *entries: LedgerEntry, term: int, leader: str = "n1", commit: int = -1
    ) -> PushEntryResponse | None:
        many = len(entries) > 1
        request = PushEntryRequest(
            **self.base(leader, term),
            type=kind.value,
            entry=entries[0] if len(entries) == 1 else None,
            batch_entry=entries if many else (),
            commit_index=commit,
        )
        answer = self.ask(request)
        assert answer is None or isinstance(answer, PushEntryResponse)
        return answer

    # -- as the group -------------------------------------------------------------------------------

    def answer(self, asked: AskPeer, answer: MemberMessage | None) -> list[MemberAction]:
        return self.step(PeerAnswered(asked.call, answer))

    def voted(self, asked: AskPeer, result: VoteResult, term: int | None = None) -> list[MemberAction]:
        term = asked.request.term if term is None else term
        return self.answer(asked, VoteResponse(term=term, vote_result=result.value))

    def pushed(
        self,
        asked: AskPeer,
        code: DLedgerResponseCode = DLedgerResponseCode.SUCCESS,
        end: int | None = None,
        begin: int = 0,
        *,
        takes_runs: bool | None = None,
    ) -> list[MemberAction]:
        """An answer to a push; of SUCCESS the log ends with what was pushed."""
        request = asked.request
        assert isinstance(request, PushEntryRequest)
        entries = request.entries
        last = entries[-1].index if entries else -1
        return self.answer(
            asked,
            PushEntryResponse(
                term=request.term,
                code=int(code),
                takes_runs=takes_runs,
                index=entries[0].index if entries else None,
                count=len(entries),
                begin_index=begin,
                end_index=last if end is None else end,
            ),
        )

    def elect(self) -> list[MemberAction]:
        """All peers vote for it, in both rounds; gives the actions of the step in which it leads."""
        while not self.leads:
            self.until_asked()
            for asked, _ in self.asks(VoteRequest)[: len(self.member.state.settings.peers) // 2]:
                self.voted(asked, VoteResult.ACCEPT)
        return self.actions

    def until_asked(self) -> None:
        """Time passes until it asks for votes."""
        for _ in range(200):
            if self.asks(VoteRequest):
                return
            self.on(max(0.0, self.member.next_due_s - self.now_s) + 1e-6)
        raise AssertionError("it asks for no votes")

    @property
    def leads(self) -> bool:
        return self.member.role is MemberRole.LEADER

    @property
    def saved(self) -> list[SaveTerm]:
        return [one for one in self.all if isinstance(one, SaveTerm)]
