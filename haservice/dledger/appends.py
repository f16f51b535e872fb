"""Appends of a leader that wait for a majority: bounded, each with a deadline, all ended when the leader steps down."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import AnswerAsked, AppendEnded, AppendPlaced
from haservice.dledger.log.entry_log import Bodies, EntryLogError
from haservice.dledger.log.ledger_run import span_of
from haservice.dledger.messages import AppendEntryRequest, AppendEntryResponse
from haservice.dledger.state import TermState


@dataclass(frozen=True, slots=True)
class _Append:
    """`request` is None if the broker above has appended."""

    token: object
    request: AppendEntryRequest | None
    term: int
    pos: int
    until_s: float


class PendingAppends:
    """By the index of their last entry.  Indexes and deadlines rise together."""

    def __init__(self, state: TermState) -> None:
        self._state = state
        self._pending: OrderedDict[int, _Append] = OrderedDict()
        self.transferring = False

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def due_s(self) -> float:
        return next((one.until_s for one in self._pending.values()), math.inf)

    def append(
        self,
        token: object,
        bodies: Bodies,
        request: AppendEntryRequest | None,
        term: int | None = None,
    ) -> bool:
        """Whether something was appended.  A refusal is answered here."""
        state = self._state
        refused = self._refusal(bodies)
        if refused is None and term not in (None, state.term):
            refused = DLedgerResponseCode.TERM_CHANGED
        if refused is None:
            try:
                entries = state.log.append_as_leader(state.term, bodies)
            except EntryLogError as error:
                refused = error.code
        if refused is not None:
            self._end(_Append(token, request, state.term, -1, math.inf), refused, -1)
            return False
        span = span_of(entries)
        until_s = state.now_s + state.settings.wait_ack_max_s
        self._pending[span.last] = _Append(token, request, state.term, span.last_pos, until_s)
        if request is None:
            state.actions.append(AppendPlaced(token, entries))
        return True

    def _refusal(self, bodies: Bodies) -> DLedgerResponseCode | None:
        if not self._state.is_leader:
            return DLedgerResponseCode.NOT_LEADER
        if self.transferring:
            return DLedgerResponseCode.LEADER_TRANSFERRING
        if len(self._pending) >= self._state.settings.pending_appends_max:
            return DLedgerResponseCode.LEADER_PENDING_FULL
        return None if bodies else DLedgerResponseCode.REQUEST_WITH_EMPTY_BODYS

    def acknowledge(self) -> None:
        """Those that are committed."""
        committed = self._state.committed_index
        while self._pending:
            index = next(iter(self._pending))
            if index > committed:
                return
            self._end(self._pending.pop(index), DLedgerResponseCode.SUCCESS, index)

    def give_up(self) -> None:
        """Those that have waited too long.  Their entries stay, and may be committed later."""
        while self._pending:
            index, first = next(iter(self._pending.items()))
            if first.until_s > self._state.now_s:
                return
            del self._pending[index]
            self._end(first, DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT, index)

    def end_all(self) -> None:
        """The leader has stepped down; what becomes of them, another leader decides."""
        while self._pending:
            index, one = self._pending.popitem(last=False)
            self._end(one, DLedgerResponseCode.TERM_CHANGED, index)

    def _end(self, one: _Append, code: DLedgerResponseCode, index: int) -> None:
        state = self._state
        if one.request is None:
            state.actions.append(AppendEnded(one.token, code, index))
            return
        answer = AppendEntryResponse(
            group=one.request.group,
            remote_id=one.request.remote_id,
            local_id=one.request.local_id,
            leader_id=state.leader_id,
            term=one.term,
            code=int(code),
            index=index,
            pos=one.pos,
        )
        state.actions.append(AnswerAsked(one.token, answer))
