"""DLedgerMember: one member of a group.  step(event, now) gives what is to be done.

It holds no thread, no socket, no file and no clock.  Its log, which it is given, does at once what it is asked; all
else is an action.  See events.py for what a caller owes it.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from haservice.dledger.appends import PendingAppends
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.election import LeaderElector
from haservice.dledger.events import (
    AnswerAsked,
    AppendBodies,
    HandOverEnded,
    HandOverTo,
    LogDamaged,
    LogSynced,
    MemberAction,
    MemberEvent,
    MemberRole,
    PeerAnswered,
    RequestCame,
    TimePassed,
)
from haservice.dledger.follower import EntryHandler
from haservice.dledger.leadership import Leadership
from haservice.dledger.log.entry_log import EntryLog
from haservice.dledger.log.mending import EntryMending
from haservice.dledger.messages import (
    AppendEntryRequest,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatRequest,
    LeadershipTransferRequest,
    MemberMessage,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    VoteRequest,
    refusal,
)
from haservice.dledger.settings import MemberSettings
from haservice.dledger.state import TermState
from haservice.dledger.transfer import LeadershipTransfer
from haservice.dledger.wire import RESPONSES


class PeerProgress(NamedTuple):
    """What a leader knows of one other member."""

    peer: str
    address: str
    match_index: int
    """Up to here it has the leader's entries; NONE if that is not known."""
    lag: int
    """How many entries it is behind."""
    is_live: bool
    """Whether it has answered lately."""


class DLedgerMember:
    """`term` and `vote` are what SaveTerm saved last; `committed_index` is a checkpoint_index of before, or -1.

    `asked` is that of the member that this process had before: answers to its questions are none to this one's.
    """

    def __init__(
        self,
        settings: MemberSettings,
        log: EntryLog,
        *,
        term: int = 0,
        vote: str | None = None,
        committed_index: int = -1,
        asked: int = 0,
        source: random.Random,
    ) -> None:
        self.state = state = TermState(
            settings, log, term=term, vote=vote, committed_index=committed_index, asked=asked, source=source
        )
        self._elector = LeaderElector(state)
        self._appends = PendingAppends(state)
        self._leadership = Leadership(state, self._elector, self._appends)
        self._handler = EntryHandler(state, self._elector)
        self._transfer = LeadershipTransfer(state, self._elector, self._leadership, self._appends)
        self._mending = EntryMending(state)
        parts = (self._elector, self._leadership, self._handler, self._transfer, self._mending)
        state.on_role += [part.on_role for part in parts]
        state.on_mended.append(self._handler.release)
        self._begun = False

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def role(self) -> MemberRole:
        return self.state.role

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def leader_id(self) -> str | None:
        return self.state.leader_id

    @property
    def committed_index(self) -> int:
        """Up to here consumers may read."""
        return self.state.committed_index

    @property
    def asked(self) -> int:
        """How many questions it has asked peers; the last one's number."""
        return self.state.asked

    @property
    def checkpoint_index(self) -> int:
        """What may be saved of it: behind what is durable another log may stand after a power cut."""
        return min(self.state.committed_index, self.state.log.durable_index)

    def peers(self) -> list[PeerProgress]:
        """How far the others are; empty unless this member leads."""
        leadership, addresses = self._leadership, self.state.settings.peers
        return [
            PeerProgress(
                peer, addresses[peer], one.match_index, leadership.lag(peer), leadership.is_live(peer)
            )
            for peer, one in leadership.dispatchers.items()
        ]

    @property
    def next_due_s(self) -> float:
        """When TimePassed has something to do, if nothing else happens."""
        parts = (self._elector, self._leadership, self._handler, self._transfer, self._mending)
        return min(self.state.calls_due_s, *(part.due_s for part in parts))

    # -- a step -------------------------------------------------------------------------------------

    def step(self, event: MemberEvent, now_s: float) -> list[MemberAction]:
        """`now_s` is of a clock that does not go back; if it does, time stands still."""
        return self.steps((event,), now_s)

    def steps(self, events: tuple[MemberEvent, ...] | list[MemberEvent], now_s: float) -> list[MemberAction]:
        """Several events of one moment; what they lead to is sent once."""
        state = self.state
        state.now_s = max(state.now_s, now_s)
        if not self._begun:
            self._begun = True
            self._elector.begin()
        self._leadership.check_lease()
        for event in events:
            self._on_event(event)
        state.give_up_calls()
        self._transfer.on_time()
        self._elector.on_time()
        self._handler.on_time()
        self._mending.on_time()
        self._leadership.on_time()
        self._leadership.pump()
        actions = state.actions[:]
        state.actions.clear()
        return actions

    def _on_event(self, event: MemberEvent) -> None:
        match event:
            case RequestCame(token, request):
                self._on_request(token, request)
            case PeerAnswered(call, answer):
                self.state.answered(call, answer)
            case AppendBodies(token, bodies, term):
                self._appends.append(token, bodies, None, term)
            case LogDamaged(indexes):
                self._mending.found(indexes)
            case LogSynced():
                self._handler.release()
            case HandOverTo(token, to):
                ended = lambda code: self.state.actions.append(HandOverEnded(token, code))  # noqa: E731
                self._transfer.hand_over(to, self.state.term, ended)
            case TimePassed():
                pass

    def _on_request(self, token: object, request: MemberMessage) -> None:
        state = self.state
        wrong = state.wrong_address(request)
        if wrong is not None:
            self._refuse(token, request, wrong)
            return
        match request:
            case VoteRequest():
                self._answer(token, self._elector.on_vote_request(request, state.is_leader))
            case HeartBeatRequest():
                self._answer(token, self._elector.on_heartbeat(request))
            case PushEntryRequest():
                self._handler.on_push(token, request)
                self._transfer.after_append()
            case AppendEntryRequest() if not state.settings.serves_appends:
                self._refuse(token, request, DLedgerResponseCode.UNSUPPORTED)
            case AppendEntryRequest():
                self._appends.append(token, request.bodies, request)
            case LeadershipTransferRequest():
                self._transfer.on_request(token, request)
            case MetadataRequest():
                base = state.base(request.local_id)
                self._answer(token, MetadataResponse(**base, peers=dict(state.settings.peers)))
            case GetEntriesRequest():
                self._on_get(token, request)
            case _:
                self._refuse(token, request, DLedgerResponseCode.UNSUPPORTED)

    def _on_get(self, token: object, request: GetEntriesRequest) -> None:
        """Of the leader only, and only what is committed; to who mends its log, all there is, of anybody."""
        state, index, mends = self.state, request.begin_index, bool(request.mends)
        if not state.is_leader and not mends:
            self._refuse(token, request, DLedgerResponseCode.NOT_LEADER)
        elif index < state.log.begin_index:
            self._refuse(token, request, DLedgerResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        elif not 0 <= index <= (state.log.end_index if mends else state.committed_index):
            self._refuse(token, request, DLedgerResponseCode.INDEX_OUT_OF_RANGE)
        elif (entry := state.read(index)) is None:
            self._refuse(token, request, DLedgerResponseCode.DISK_ERROR)
        else:
            committed = state.committed_index if mends else None
            base = state.base(request.local_id)
            self._answer(token, GetEntriesResponse(**base, entries=(entry,), committed_index=committed))

    def _refuse(self, token: object, request: MemberMessage, code: DLedgerResponseCode) -> None:
        self._answer(token, refusal(RESPONSES[type(request)], request, code, self.state.leader_id))

    def _answer(self, token: object, answer: MemberMessage) -> None:
        self.state.actions.append(AnswerAsked(token, answer))
