"""LeaderElector: when a member asks for votes, whom it votes for, and whom it follows.

    follower   no word for its patience ───────────▶ candidate, preliminary round at once
    candidate  preliminary round, term unchanged ──▶ PASSED: next term, real round ──▶ PASSED: leader
                                                     anything else: wait, preliminary round again

A member that was cut off asks, when it is back, in a preliminary round.  Whoever hears a leader objects, and nothing
has changed: no term has risen, no leader has lost anything.  Stock members do not know preliminary rounds.  They are
asked for a vote in the candidate's current term, which they refuse for the same reason (ALREADY_HAS_LEADER), and in
which a vote, if they give it, harms nobody: a member leads only in a term that it has begun itself since it started.
That is also why a restarted member, whose log may have lost what was not durable, never leads an old term again.
"""

from __future__ import annotations

import math
from functools import partial

from haservice.dledger.ballot import Ballot, VoteOutcome
from haservice.dledger.codes import DLedgerResponseCode, VoteResult, why_refused
from haservice.dledger.events import TellOperator
from haservice.dledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    MemberMessage,
    VoteRequest,
    VoteResponse,
)
from haservice.dledger.patience import GroupPatience
from haservice.dledger.settings import HEARTBEAT_S_MAX, STOCK_HEARTBEAT_S
from haservice.dledger.state import TermState
from haservice.dledger.wholeness import Wholeness

# Between two rounds of one term, while members come to it.
_REVOTE_S = 0.01
# A candidate tells the operator after so long what the others answer, and then each minute.
TELL_AFTER_S = 5.0
TELL_AGAIN_S = 60.0
# By so many an operator's --force raises the term: none of those that are silent leads that one.  It is half of what
# nameservers let a name jump (EPOCH_JUMP_MAX): they may have missed elections before.
FORCED_TERMS = 500


class LeaderElector:
    """Of one member."""

    def __init__(self, state: TermState, wholeness: Wholeness, patience: GroupPatience) -> None:
        self._state, self._wholeness, self._patience = state, wholeness, patience
        self._ballot: Ballot | None = None
        self._ballot_until_s = math.inf
        self._next_round_s = -math.inf
        self._standing_term = -1
        """The term that this member has begun itself, since it started."""
        self._forced_term = -1
        """The one of them that an operator's --force began."""
        self._stands_on = False
        """The next round is a real one, of that term."""
        self._heard_s = -math.inf
        """When the leader was heard last."""
        self.patience_s = self._jitter_s = 0.0
        self.taking_term = -1
        """The term that this member was told to take the leadership in."""
        self._tell_at_s = math.inf
        """Of a candidate."""
        self._answers: dict[str, str] = {}
        """What the others have answered in this round, for the operator."""

    # -- time ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A member that starts gives a leader time to be heard."""
        self._next_round_s = self._state.now_s + self._state.random_wait_s()
        self._tell_at_s = self._state.now_s + TELL_AFTER_S

    def on_time(self) -> None:
        state = self._state
        if state.is_follower and state.now_s >= self._heard_s + self.patience_s + self._jitter_s:
            state.become_candidate()
            self._next_round_s = state.now_s
        if not state.is_candidate:
            return
        if self._ballot is not None:
            if state.now_s >= self._ballot_until_s:
                self._follow_from(self._ballot, self._ballot.outcome())
        elif state.now_s >= self._next_round_s:
            self._begin_round()

    @property
    def due_s(self) -> float:
        if self._state.is_follower:
            return self._heard_s + self.patience_s + self._jitter_s
        if self._state.is_candidate:
            return self._ballot_until_s if self._ballot is not None else self._next_round_s
        return math.inf

    @property
    def hears_leader(self) -> bool:
        """Whether this member follows a leader that it has heard within its patience."""
        state = self._state
        return state.is_follower and state.now_s < self._heard_s + self.patience_s

    # -- rounds -------------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        state = self._state
        if not state.may_lead:
            # A leader that cannot write, or push what it has, is none.
            self._wait(state.settings.patience_s)
            return
        if not self.is_forced and not self._wholeness.may_stand():
            self._wait(0.0)
            return
        preliminary = not (self._stands_on and state.term == self._standing_term)
        self._stands_on = False
        assert preliminary or state.vote == state.self_id, f"term {state.term}: voted for {state.vote}"
        self._ballot = ballot = Ballot(state.term, len(state.settings.peers), preliminary=preliminary)
        self._ballot_until_s = state.now_s + state.settings.vote_wait_s
        ballot.add(state.self_id, VoteResult.ACCEPT, state.term)
        self._answers = dict.fromkeys(state.settings.others, "does not answer")
        for peer in state.settings.others:
            base = state.base(peer) | {"leader_id": state.self_id}
            request = VoteRequest(
                **base,
                ledger_end_index=state.log.end_index,
                ledger_end_term=state.end_term,
                pre_vote=preliminary or None,
                forced=self.is_forced or None,
                recall=state.recalls.get(peer),
            )
            state.ask(peer, request, partial(self._on_vote_answer, ballot, peer))
        self._look_at(ballot)

    def _on_vote_answer(self, ballot: Ballot, peer: str, answer: VoteResponse | None) -> None:
        if answer is None:
            ballot.add(peer, VoteResult.UNKNOWN, -1)
        else:
            ballot.add(peer, answer.vote, answer.term)
            self._wholeness.hear_recall(peer, answer.recall)
            if answer.vote is VoteResult.ACCEPT and not ballot.preliminary:
                self._state.remember(peer, vote=ballot.term)
            if ballot is self._ballot:
                self._answers[peer] = _answer_text(answer)
        if ballot is self._ballot:
            self._look_at(ballot)

    def _look_at(self, ballot: Ballot) -> None:
        outcome = ballot.decided()
        if outcome is not None:
            self._follow_from(ballot, outcome)

    def _follow_from(self, ballot: Ballot, outcome: VoteOutcome) -> None:
        """What a round's outcome means for a candidate that is still in the round's term."""
        state, settings = self._state, self._state.settings
        self._ballot = None
        if not state.is_candidate or state.term != ballot.term:
            return
        if outcome is not VoteOutcome.PASSED:
            self._tell_why()
        elif not self.is_forced and not self._wholeness.may_stand():
            self._wait(0.0)  # it has learnt meanwhile that it is not whole
            return
        match outcome:
            case VoteOutcome.PASSED if ballot.preliminary:
                self.stand()
            case VoteOutcome.PASSED:
                self._wholeness.leads(self.is_forced)
                state.become_leader()
            case VoteOutcome.NEWER_TERM:
                state.adopt_term(ballot.newest_term)
                self._wait(0.0)
            case VoteOutcome.HAS_LEADER:
                self._wait(settings.heartbeat_interval_s)
            case VoteOutcome.BEHIND:
                self._wait(settings.vote_interval_max_s)
            case VoteOutcome.REVOTE:
                self._stands_on = True
                self._next_round_s = state.now_s + _REVOTE_S
            case VoteOutcome.NO_QUORUM | VoteOutcome.NEXT_TERM:
                self._wait(0.0)

    def _tell_why(self) -> None:
        """Whom nobody leads for long, an operator has to help."""
        state = self._state
        if state.now_s >= self._tell_at_s:
            self._tell_at_s = state.now_s + TELL_AGAIN_S
            state.actions.append(TellOperator(f"has no leader, and is not elected: {self.answers}"))

    @property
    def answers(self) -> str:
        """What the others have answered last to this candidate."""
        peers = self._state.settings.peers
        return "; ".join(f"{peer} at {peers[peer]} {text}" for peer, text in self._answers.items())

    def _wait(self, longer_s: float) -> None:
        self._next_round_s = self._state.now_s + self._state.random_wait_s() + longer_s

    def stand(self) -> None:
        """Asks for votes in the next term, now."""
        self._stand_in(self._state.term + 1)

    def stand_by_force(self) -> None:
        """As stand(), whether members are whole or not, in a term that none of those that are silent leads."""
        self._forced_term = self._state.term + FORCED_TERMS
        self._stand_in(self._forced_term)

    def _stand_in(self, term: int) -> None:
        self._state.stand(term)
        self._standing_term = term
        self._stands_on = True
        self._begin_round()

    @property
    def is_forced(self) -> bool:
        return self._state.term == self._forced_term

    @property
    def may_stand(self) -> bool:
        return self._wholeness.may_stand()

    def step_down(self) -> None:
        """Of a leader: looks for a majority again, a little later."""
        self._state.become_candidate()
        self._wait(0.0)

    def give_way(self, term: int) -> None:
        """To the member that was told to take the lead, and has begun this term: a stock one waits before it asks."""
        self._state.adopt_term(term)
        self._wait(self._state.settings.transfer_wait_s)

    def on_role(self) -> None:
        """A round belongs to one term of a candidate."""
        state = self._state
        self._patience.on_role(self.taking_term)
        soon_s = state.now_s + TELL_AFTER_S
        self._tell_at_s = min(self._tell_at_s, soon_s) if state.is_candidate else math.inf
        if self._ballot is not None and (not state.is_candidate or self._ballot.term != state.term):
            self._ballot = None
            self._wait(0.0)
        if not state.is_candidate:
            self._stands_on = False
        if self.taking_term != -1 and (state.term > self.taking_term or not state.is_candidate):
            self.taking_term = -1

    # -- votes of others ----------------------------------------------------------------------------

    def on_vote_request(self, request: VoteRequest, leads: bool) -> VoteResponse:
        """`leads`: whether this member leads, and a majority has confirmed it within the lease."""
        state, sender = self._state, request.local_id or ""
        self._wholeness.hear_recall(sender, request.recall)
        self._wholeness.ask_soon(sender)
        result = self._vote(request, leads or self.hears_leader)
        return VoteResponse(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=request.leader_id,
            term=state.term,
            vote_result=result.value,
            ledger_end_index=state.log.end_index,
            ledger_end_term=state.end_term,
            not_whole=self._wholeness.text or None,
            recall=state.recalls.get(sender),
        )

    def _vote(self, request: VoteRequest, has_leader: bool) -> VoteResult:
        state, candidate = self._state, request.leader_id
        if candidate is None or candidate not in state.settings.peers:
            return VoteResult.REJECT_UNKNOWN_LEADER
        if candidate == state.self_id:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        # The log comes first: a candidate that cannot win raises nobody's term.
        if request.ledger_end_term < state.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == state.end_term and request.ledger_end_index < state.log.end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        same_term = request.term == state.term
        if has_leader and candidate != state.leader_id and (request.pre_vote or same_term or request.forced):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if request.term < state.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if self.taking_term == state.term and same_term and state.is_candidate:
            return VoteResult.REJECT_TAKING_LEADERSHIP
        if not request.forced and not self._wholeness.may_vote_for(candidate):
            return VoteResult.UNKNOWN
        if request.pre_vote:
            return VoteResult.ACCEPT
        if not same_term:
            # One that is not whole votes in a term that it cannot have known before, or not at all.
            state.adopt_term(request.term, None if state.record.is_whole else candidate)
        if state.vote not in (None, candidate):
            known = state.leader_id is not None
            return VoteResult.REJECT_ALREADY_HAS_LEADER if known else VoteResult.REJECT_ALREADY_VOTED
        state.vote_for(candidate)
        if request.forced:
            self._wholeness.forced(state.term)
        # Time for it to win: who stands against the one that it has just voted for, takes the lead from it.
        self._wait(state.settings.vote_wait_s)
        return VoteResult.ACCEPT

    # -- leaders ------------------------------------------------------------------------------------

    def on_heartbeat(self, request: HeartBeatRequest) -> HeartBeatResponse:
        stock_ms = STOCK_HEARTBEAT_S * 1000
        beat_s = (request.interval_ms if request.interval_ms is not None else stock_ms) / 1000
        code = self.accept_leader(request, beat_s, request.patience_growth)
        state, wholeness = self._state, self._wholeness
        if code is DLedgerResponseCode.SUCCESS:
            wholeness.hear_recall(request.local_id or "", request.recall)
            if request.forced:
                wholeness.forced(state.term)
            if not wholeness.takes_entries:
                code = DLedgerResponseCode.ILLEGAL_MEMBER_STATE
        return HeartBeatResponse(
            **state.base(request.local_id) | {"code": int(code)},
            not_whole=wholeness.text or None,
            refuses_cut=state.refuses_cut or None,
            patience_ms=round(self.patience_s * 1000),
        )

    def accept_leader(
        self, request: MemberMessage, beat_s: float | None = None, growth: int | None = None
    ) -> DLedgerResponseCode:
        """Follows whoever leads this term or a newer one; SUCCESS if that is the sender of `request`."""
        state, leader = self._state, request.leader_id
        if leader is None or leader not in state.settings.peers:
            return DLedgerResponseCode.UNKNOWN_MEMBER
        if leader == state.self_id:
            return DLedgerResponseCode.UNEXPECTED_MEMBER
        if request.term < state.term:
            return DLedgerResponseCode.EXPIRED_TERM
        if request.term > state.term:
            state.adopt_term(request.term)
        if state.is_leader or state.leader_id not in (None, leader):
            return DLedgerResponseCode.INCONSISTENT_LEADER
        self._heard_s = state.now_s
        if beat_s is not None:
            beat_s = min(max(beat_s, state.settings.heartbeat_interval_s), HEARTBEAT_S_MAX)
            self._patience.heard(growth)
            self.patience_s = beat_s * state.settings.heartbeat_leak * self._patience.growth
        if not state.is_follower:
            self._jitter_s = state.source.uniform(0.0, state.settings.vote_interval_max_s)
            if beat_s is None:
                self.patience_s = state.settings.patience_s
            state.become_follower(leader)
        return DLedgerResponseCode.SUCCESS


def _answer_text(answer: VoteResponse) -> str:
    """For operators."""
    match answer.vote:
        case VoteResult.UNKNOWN:
            return answer.not_whole or why_refused(answer.result)
        case VoteResult.REJECT_UNKNOWN_LEADER:
            return "does not have this member in its dLegerPeers"
        case VoteResult.REJECT_ALREADY_HAS_LEADER:
            return "hears a leader, which does not reach this member, or is not in its dLegerPeers"
        case VoteResult.REJECT_EXPIRED_LEDGER_TERM | VoteResult.REJECT_SMALL_LEDGER_END_INDEX:
            return "has more entries"
        case result:
            return f"answers {result.name}"
