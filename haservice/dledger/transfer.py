"""Handing over: a leader gives the leadership to another member, on request or because one is preferred.

    leader      takes no more appends; tells the transferee how far to come
    transferee  waits until it is there; next term at once, asks for votes; answers when it is decided

A transferee that does not answer within its time costs a second of refused appends, not more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from haservice.dledger.appends import PendingAppends
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.election import LeaderElector
from haservice.dledger.events import AnswerAsked
from haservice.dledger.leadership import Leadership
from haservice.dledger.messages import LeadershipTransferRequest, LeadershipTransferResponse, refusal
from haservice.dledger.state import TermState

OnEnd = Callable[[DLedgerResponseCode], None]


class LeadershipTransfer:
    """Both sides of it, of one member."""

    def __init__(
        self, state: TermState, elector: LeaderElector, leadership: Leadership, appends: PendingAppends
    ) -> None:
        self._state, self._elector, self._leadership, self._appends = state, elector, leadership, appends
        self.transferee: str | None = None
        self._on_end: OnEnd | None = None
        self._until_s = math.inf
        self._check_s = -math.inf
        self._pause_s = state.settings.preferred_check_s
        self._taking: tuple[object, LeadershipTransferRequest] | None = None
        """What this member was told to take."""
        self._taking_until_s = math.inf

    @property
    def due_s(self) -> float:
        due_s = min(self._until_s, self._taking_until_s)
        if self._state.is_leader and self._state.settings.preferred_leaders:
            due_s = min(due_s, self._check_s)
        return due_s

    def on_time(self) -> None:
        now_s = self._state.now_s
        if now_s >= self._until_s:
            self._end(DLedgerResponseCode.TIMEOUT)
        if self._taking is not None:
            self._take_if_there()
        if self._state.is_leader and now_s >= self._check_s:
            self._check_s = now_s + self._state.settings.preferred_check_s
            self._look_for_preferred()

    def on_role(self) -> None:
        state = self._state
        if state.is_leader:
            self._check_s = state.now_s + self._pause_s
            if self.transferee is not None:
                self._end(DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)
        elif state.is_follower and self.transferee is not None:
            took = state.leader_id == self.transferee
            self._end(DLedgerResponseCode.SUCCESS if took else DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)
        self._answer_taking()

    # -- the leader ---------------------------------------------------------------------------------

    def hand_over(self, to: str | None, term: int, on_end: OnEnd) -> None:
        state = self._state
        code = self._why_not(to, term)
        if code is not None:
            on_end(code)
            return
        assert to is not None
        self.transferee, self._on_end = to, on_end
        self._appends.transferring = True
        # The transferee waits for its part of it, and has to win its votes.
        self._until_s = state.now_s + state.settings.transfer_wait_s + state.settings.vote_wait_s
        request = LeadershipTransferRequest(
            **state.base(to),
            transfer_id=state.self_id,
            transferee_id=to,
            take_leadership_ledger_index=max(0, state.log.end_index),
        )

        def answered(answer: LeadershipTransferResponse | None) -> None:
            if self._on_end is on_end:
                self._end(DLedgerResponseCode.NETWORK_ERROR if answer is None else answer.result)

        state.ask(to, request, answered)

    def _why_not(self, to: str | None, term: int) -> DLedgerResponseCode | None:
        state = self._state
        if to not in state.settings.others:
            return DLedgerResponseCode.UNKNOWN_MEMBER
        if term != state.term:
            return DLedgerResponseCode.INCONSISTENT_TERM
        if not state.is_leader:
            return DLedgerResponseCode.NOT_LEADER
        if self.transferee is not None:
            return DLedgerResponseCode.LEADER_TRANSFERRING
        is_near = self._leadership.lag(to) < state.settings.transfer_lag_max
        if not is_near or not self._leadership.is_live(to):
            return DLedgerResponseCode.FALL_BEHIND_TOO_MUCH
        return None

    def _end(self, code: DLedgerResponseCode) -> None:
        """Appends are taken again, if this member still leads."""
        settings = self._state.settings
        if code is DLedgerResponseCode.SUCCESS:
            self._pause_s = settings.preferred_check_s
        else:
            # What kept it from the lead may last, and each try costs appends.
            self._pause_s = min(2 * self._pause_s, settings.preferred_pause_max_s)
            self._check_s = self._state.now_s + self._pause_s
        on_end, self._on_end = self._on_end, None
        self.transferee, self._until_s = None, math.inf
        self._appends.transferring = False
        if on_end is not None:
            on_end(code)

    def _look_for_preferred(self) -> None:
        state = self._state
        preferred = [one for one in state.settings.preferred_leaders if one in state.settings.others]
        if state.self_id in state.settings.preferred_leaders or not preferred or self.transferee is not None:
            return
        live = [one for one in preferred if self._leadership.is_live(one)]
        if live:
            to = min(live, key=self._leadership.lag)
            if self._leadership.lag(to) < state.settings.transfer_lag_max:
                self.hand_over(to, state.term, lambda code: None)

    # -- the transferee -----------------------------------------------------------------------------

    def on_request(self, token: object, request: LeadershipTransferRequest) -> None:
        state = self._state
        if request.transfer_id == state.self_id:
            self.hand_over(
                request.transferee_id, request.term, lambda code: self._answer(token, request, code)
            )
        elif request.transferee_id != state.self_id:
            self._answer(token, request, DLedgerResponseCode.UNEXPECTED_ARGUMENT)
        elif request.transfer_id != state.leader_id or self._taking is not None:
            self._answer(token, request, DLedgerResponseCode.INCONSISTENT_LEADER)
        else:
            self._taking = (token, request)
            self._taking_until_s = state.now_s + state.settings.transfer_wait_s
            self._take_if_there()

    def _take_if_there(self) -> None:
        """Takes the leadership once this log is as long as the leader's."""
        state, elector = self._state, self._elector
        if self._taking is None:
            return
        _, request = self._taking
        if state.now_s >= self._taking_until_s:
            elector.taking_term = -1  # it votes for others again, who may need it
            self._end_taking(DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)
        elif state.term == request.term + 1 == elector.taking_term:
            pass  # it has asked for votes
        elif state.term != request.term or state.leader_id != request.transfer_id:
            self._end_taking(DLedgerResponseCode.INCONSISTENT_TERM)
        elif not state.may_lead or not elector.may_stand:
            self._end_taking(DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)
        elif state.log.end_index >= request.take_leadership_ledger_index:
            elector.taking_term = state.term + 1
            elector.stand()

    def after_append(self) -> None:
        if self._taking is not None:
            self._take_if_there()

    def _answer_taking(self) -> None:
        """Once it is decided who leads the term that this member was to lead."""
        state = self._state
        if self._taking is None:
            return
        target = self._taking[1].term + 1
        if state.term > target:
            self._end_taking(DLedgerResponseCode.EXPIRED_TERM)
        elif state.term == target and state.is_leader:
            self._end_taking(DLedgerResponseCode.SUCCESS)
        elif state.term == target and state.is_follower:
            self._end_taking(DLedgerResponseCode.TAKE_LEADERSHIP_FAILED)

    def _end_taking(self, code: DLedgerResponseCode) -> None:
        assert self._taking is not None
        token, request = self._taking
        self._taking, self._taking_until_s = None, math.inf
        self._answer(token, request, code)

    def _answer(self, token: object, request: LeadershipTransferRequest, code: DLedgerResponseCode) -> None:
        answer = refusal(LeadershipTransferResponse, request, code, self._state.leader_id)
        self._state.actions.append(AnswerAsked(token, answer))
