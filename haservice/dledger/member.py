"""DLedgerMember: one member of a group.  step(event, now) gives what is to be done.

It holds no thread, no socket, no file and no clock.  Its log, which it is given, does at once what it is asked; all
else is an action.  See events.py for what a caller owes it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from haservice.dledger.appends import PendingAppends
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.election import LeaderElector
from haservice.dledger.events import (
    AnswerAsked,
    AppendBodies,
    HandOverEnded,
    HandOverTo,
    LeadByForce,
    LogDamaged,
    LogSynced,
    MemberAction,
    MemberEvent,
    MemberRole,
    PeerAnswered,
    RequestCame,
    TimePassed,
    WholeRecord,
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
    Recall,
    VoteRequest,
    refusal,
)
from haservice.dledger.patience import GroupPatience
from haservice.dledger.settings import MemberSettings
from haservice.dledger.state import TermState
from haservice.dledger.transfer import LeadershipTransfer
from haservice.dledger.wholeness import Wholeness
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
    owes_s: float = 0.0
    """For so long it has acknowledged nothing, though there was something."""
    trouble: str = ""
    """Why it counts for no majority, as it says."""
    refuses_cut: str = ""
    """What it refuses to cut, as it says."""


class DLedgerMember:
    """`term` and `vote` are what SaveTerm saved last; `committed_index` is a checkpoint_index of before, or -1.
    `record` is what SaveWhole saved last, and `recalls` are those that an earlier member had.

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
        record: WholeRecord | None = None,
        recalls: Mapping[str, Recall] | None = None,
        source: random.Random,
    ) -> None:
        self.state = state = TermState(
            settings,
            log,
            term=term,
            vote=vote,
            committed_index=committed_index,
            asked=asked,
            record=record or WholeRecord(),
            recalls=recalls or {},
            source=source,
        )
        self._wholeness = Wholeness(state, lambda: self._handler.agreed_index, listens=record is not None)
        self._patience = GroupPatience(state)
        self._elector = LeaderElector(state, self._wholeness, self._patience)
        self._appends = PendingAppends(state)
        self._leadership = Leadership(state, self._elector, self._appends, self._patience)
        self._handler = EntryHandler(state, self._elector, self._wholeness)
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

    @property
    def not_whole(self) -> str:
        """Why it is not whole, and what it waits for; "" if it is."""
        return self._wholeness.text

    @property
    def patience_s(self) -> float:
        """For how long a member waits for word of the leader; of one that leads, what it asks for."""
        return self._patience.asked_s if self.state.is_leader else self._elector.patience_s

    @property
    def answers(self) -> str:
        """What the others have answered last to this candidate, for people."""
        return self._elector.answers

    def recalls(self) -> dict[str, Recall]:
        """What it remembers of the others; those that it leads are as far as they are now."""
        self._leadership.remember()
        return dict(self.state.recalls)

    def peers(self) -> list[PeerProgress]:
        """How far the others are; empty unless this member leads."""
        leadership, addresses = self._leadership, self.state.settings.peers
        return [
            PeerProgress(
                peer,
                addresses[peer],
                one.match_index,
                leadership.lag(peer),
                leadership.is_live(peer),
                0.0 if one.waits_since_s is None else self.state.now_s - one.waits_since_s,
                leadership.not_whole.get(peer, ""),
                leadership.refuses_cut.get(peer, ""),
            )
            for peer, one in leadership.dispatchers.items()
        ]

    @property
    def next_due_s(self) -> float:
        """When TimePassed has something to do, if nothing else happens."""
        parts = (
            self._elector, self._leadership, self._handler, self._transfer, self._mending, self._wholeness
        )  # fmt: skip
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
            self._wholeness.begin()
        self._leadership.check_lease()
        for event in events:
            self._on_event(event)
        state.give_up_calls()
        self._transfer.on_time()
        self._elector.on_time()
        self._handler.on_time()
        self._mending.on_time()
        self._wholeness.on_time()
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
            case LeadByForce(token):
                self.state.actions.append(HandOverEnded(token, self._force()))
            case TimePassed():
                pass

    def _force(self) -> DLedgerResponseCode:
        """SUCCESS: it stands."""
        state = self.state
        if state.is_leader or self._elector.hears_leader:
            return DLedgerResponseCode.ILLEGAL_MEMBER_STATE
        if not state.may_lead:
            return DLedgerResponseCode.DISK_ERROR
        self._elector.stand_by_force()
        return DLedgerResponseCode.SUCCESS

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
