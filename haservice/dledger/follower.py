"""EntryHandler: what a follower does with what its leader pushes.

    agreed      up to here this log is known to be the leader's, in this term and since this member started
    waiting     appends that came before the one they follow
    held        SUCCESS answers of entries that are not durable yet

An entry is appended only where everything before it is agreed, and never cut where it is.  So neither an append from
before a crash that took this log back, nor a TRUNCATE that was long on its way, does harm.  And only agreed entries
are committed: the commit index says nothing about a tail that nobody has compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from haservice.dledger.codes import DLedgerResponseCode, PushType
from haservice.dledger.election import LeaderElector
from haservice.dledger.events import AnswerAsked, TellOperator
from haservice.dledger.log.entry_log import EntryLogError, EntryRefused
from haservice.dledger.log.ledger_run import LedgerRun, span_of
from haservice.dledger.messages import LedgerEntry, PushEntryRequest, PushEntryResponse
from haservice.dledger.state import TermState
from haservice.dledger.wholeness import Wholeness

_OK = DLedgerResponseCode.SUCCESS
_INCONSISTENT = DLedgerResponseCode.INCONSISTENT_STATE
_LATER = DLedgerResponseCode.PUSH_REQUEST_IS_FULL


@dataclass(frozen=True, slots=True)
class _Push:
    token: object
    request: PushEntryRequest
    since_s: float


class EntryHandler:
    """Of one member, while it follows."""

    def __init__(self, state: TermState, elector: LeaderElector, wholeness: Wholeness) -> None:
        self._state, self._elector, self._wholeness = state, elector, wholeness
        self._of: tuple[int, str | None] = (-1, None)
        self.agreed_index = -1
        self._waiting: dict[int, _Push] = {}
        self._held: list[tuple[int, _Push]] = []
        self._told = ""
        """The last that the operator was told."""
        self._handlers: dict[PushType, Callable[[_Push], None]] = {
            PushType.APPEND: self._on_append,
            PushType.COMMIT: self._on_commit,
            PushType.COMPARE: self._on_compare,
            PushType.TRUNCATE: self._on_truncate,
        }

    def on_role(self) -> None:
        """Another term or another leader: nothing is agreed, and nobody waits for the old one's answers."""
        state = self._state
        of = (state.term, state.leader_id if state.is_follower else None)
        if of != self._of:
            self._of = of
            self.agreed_index = -1
            self._state.refuses_cut = ""
            self._end_waiting(DLedgerResponseCode.NOT_FOLLOWER)
            for _, push in self._held:
                self._answer(push, DLedgerResponseCode.NOT_FOLLOWER)
            self._held = []

    def on_push(self, token: object, request: PushEntryRequest) -> None:
        push = _Push(token, request, self._state.now_s)
        kind = request.push_type
        if kind is None or not _is_sound(kind, request):
            self._answer(push, DLedgerResponseCode.UNEXPECTED_ARGUMENT)
            return
        code = self._elector.accept_leader(request)
        if code is not _OK:
            self._answer(push, code)
        elif not self._wholeness.takes_entries:
            self._answer(push, DLedgerResponseCode.ILLEGAL_MEMBER_STATE)
        else:
            self._handlers[kind](push)

    # -- time and the disk --------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        if not self._waiting:
            return math.inf
        return min(push.since_s for push in self._waiting.values()) + self._state.settings.fast_forward_s

    def on_time(self) -> None:
        """Fast forward: the one that is missing does not come, so the leader has to compare again."""
        if self.due_s > self._state.now_s:
            return
        first = self._waiting.pop(min(self._waiting))
        self._answer(first, _INCONSISTENT)
        self._end_waiting(_LATER)

    def release(self) -> None:
        """Answers what has become durable."""
        if not self._held:
            return
        durable = self._state.counted_index
        held, self._held = self._held, []
        for index, push in held:
            if index <= durable:
                self._answer(push, _OK)
            else:
                self._held.append((index, push))

    # -- APPEND and COMMIT --------------------------------------------------------------------------

    def _on_append(self, push: _Push) -> None:
        first = span_of(push.request.entries).first
        if first > self._state.log.end_index + 1:
            self._wait(first, push)
            return
        self._append(push)
        while self._waiting and min(self._waiting) <= self._state.log.end_index + 1:
            self._append(self._waiting.pop(min(self._waiting)))

    def _wait(self, first: int, push: _Push) -> None:
        if first in self._waiting:
            self._answer(push, DLedgerResponseCode.REPEATED_PUSH)
        elif len(self._waiting) >= self._state.settings.waiting_pushes_max:
            self._answer(push, _LATER)
        else:
            self._waiting[first] = push

    def _append(self, push: _Push) -> None:
        code = self._take(push.request)
        if code is _OK:
            self._agree(push, span_of(push.request.entries).last)
        else:
            self._answer(push, code)

    def _take(self, request: PushEntryRequest) -> DLedgerResponseCode:
        """SUCCESS if its entries are in the log."""
        log, entries = self._state.log, request.entries
        there = max(0, min(len(entries), log.end_index - span_of(entries).first + 1))
        for entry in entries[:there]:
            try:
                if not self._has(entry, request):
                    return _INCONSISTENT
            except EntryLogError as error:
                return error.code
            self.agreed_index = max(self.agreed_index, entry.index)
        if there == len(entries):
            return _OK
        if self.agreed_index != log.end_index:
            return _INCONSISTENT
        try:
            log.append_as_follower(entries[there:])
        except EntryLogError as error:
            return error.code
        finally:
            # The leader's, all of them.
            self.agreed_index = log.end_index
        return _OK

    def _has(self, entry: LedgerEntry, request: PushEntryRequest) -> bool:
        """Whether the log has the entry.  If it had, and that is damaged, it has it again: this is it.

        Raises EntryLogError if it cannot be put back: nobody may take it for another entry, and cut it.
        """
        log, state = self._state.log, self._state
        if not log.begin_index <= entry.index <= log.end_index:
            return False
        found = state.read(entry.index)
        if found is not None:
            return found.same_as(entry)
        try:
            mended = log.mend(entry, committed=entry.index <= request.commit_index)
        except EntryLogError as error:
            state.actions.append(TellOperator(str(error)))
            raise
        if mended:
            state.is_mended(entry.index)
        return mended

    def _agree(self, push: _Push, index: int) -> None:
        """Up to `index` this log is the leader's: commits, and answers once it is durable."""
        self.agreed_index = max(self.agreed_index, index)
        if self._state.refuses_cut and self.agreed_index >= self._state.committed_index:
            self._state.refuses_cut = ""  # what was to be cut is the leader's, too: it came late
        self._commit(push.request)
        if len(self._held) < self._state.settings.waiting_pushes_max:
            self._held.append((index, push))
            self.release()
        else:
            self._answer(push, _LATER)

    def _commit(self, request: PushEntryRequest) -> None:
        self._state.commit_to(min(request.commit_index, self.agreed_index))

    def _on_commit(self, push: _Push) -> None:
        """A leader that only speaks of commits believes that all is agreed.  That ends with the process."""
        self._commit(push.request)
        self._answer(push, _OK if self.agreed_index != -1 else _INCONSISTENT)

    # -- COMPARE and TRUNCATE -----------------------------------------------------------------------

    def _on_compare(self, push: _Push) -> None:
        self._end_waiting(_LATER)
        entry = push.request.entries[0]
        try:
            has = self._has(entry, push.request)
        except EntryLogError as error:
            self._answer(push, error.code)
            return
        if has:
            self._agree(push, entry.index)
        else:
            self._answer(push, _INCONSISTENT)

    def _on_truncate(self, push: _Push) -> None:
        self._end_waiting(_LATER)
        entry = push.request.entries[0]
        try:
            done = self._cut_behind(entry) if self._has(entry, push.request) else self._begin_at(entry)
        except EntryLogError as error:
            self._answer(push, error.code)
            return
        if done:
            self._agree(push, entry.index)
        else:
            self._answer(push, _INCONSISTENT)

    def _cut_behind(self, entry: LedgerEntry) -> bool:
        log = self._state.log
        last = max(entry.index, self.agreed_index)
        if last < self._state.committed_index:
            return self._refuse_cut(last + 1)
        if last < log.end_index:
            self._wholeness.log_is_cut()
            log.truncate_from(last + 1)
            self._state.forget_what_is_gone()
        return True

    def _begin_at(self, entry: LedgerEntry) -> bool:
        """The two logs have nothing in common, or the leader no longer has what they had."""
        if entry.index <= max(self._state.committed_index, self.agreed_index):
            return self._refuse_cut(entry.index)
        try:
            self._state.log.begin_at(entry)
        except EntryRefused as error:
            self._tell_once(f"{self._state.leader_id} leads, and cannot be followed: {error}")
            raise
        self._wholeness.log_is_cut()
        self._state.forget_what_is_gone()
        return True

    def _tell_once(self, text: str) -> None:
        """The leader tries again and again."""
        if text != self._told:
            self._told = text
            self._state.actions.append(TellOperator(text))

    def _refuse_cut(self, index: int) -> bool:
        """A leader without what is committed: entries that were acknowledged are lost, or are about to be."""
        committed, leader = self._state.committed_index, self._state.leader_id
        held = (
            f"up to {committed} all is committed" if committed >= 0 else "this member has agreed to it before"
        )
        text = f"{leader} wants entry {index} cut, and {held}: nothing is cut"
        if index <= committed:
            self._state.refuses_cut = text
        self._tell_once(text)
        return False

    # -- answers ------------------------------------------------------------------------------------

    def _end_waiting(self, code: DLedgerResponseCode) -> None:
        for push in self._waiting.values():
            self._answer(push, code)
        self._waiting = {}

    def _answer(self, push: _Push, code: DLedgerResponseCode) -> None:
        state, request = self._state, push.request
        entries = request.entries
        answer = PushEntryResponse(
            group=request.group,
            local_id=state.self_id,
            remote_id=request.local_id,
            leader_id=state.leader_id,
            term=state.term if code is DLedgerResponseCode.EXPIRED_TERM else request.term,
            code=int(code),
            index=span_of(entries).first if entries else None,
            count=len(entries),
            begin_index=state.log.begin_index,
            end_index=state.log.end_index,
            takes_runs=True,
        )
        state.actions.append(AnswerAsked(push.token, answer))


def _is_sound(kind: PushType, request: PushEntryRequest) -> bool:
    """Whether it has the entries that its kind needs, one after the other, of no newer term than the leader's."""
    some = request.entries
    if kind is PushType.COMMIT:
        return not some
    if not some or (kind is not PushType.APPEND and len(some) != 1):
        return False
    if isinstance(some, LedgerRun):
        return some.run.end_term <= request.term
    before = some[0]
    for entry in some:
        follows = entry is some[0] or (entry.index == before.index + 1 and entry.term >= before.term)
        if not entry.is_sound or not follows:
            return False
        before = entry
    return before.term <= request.term
