"""EntryDispatcher: what a leader sends one follower, from the first comparison to the last commit.

    COMPARE ── equal at the follower's end ────────────────────────────▶ APPEND ─▶ entries, in a window
       │  ▲                                                                │  ▲    COMMIT when there are none
       │  └── INCONSISTENT_STATE, less than it had, or expired here ───────┘  │
       └───── the last equal entry is known, or there is none ──▶ TRUNCATE ───┘

Two logs that have one entry in common have all before it in common.  So the last equal entry is found by halving,
with COMPAREs that change nothing at the follower, and a follower is only told to cut what differs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from haservice.dledger.codes import DLedgerResponseCode, PushType
from haservice.dledger.log.ledger_run import LedgerRun, span_of
from haservice.dledger.messages import LedgerEntry, PushEntryRequest, PushEntryResponse
from haservice.dledger.state import TermState


@dataclass(frozen=True, slots=True)
class _Pushed:
    """Entries on their way."""

    last: int
    size: int
    sent_s: float


class PushQuota:
    """Bytes a second for a follower that is far behind, so that those that are not keep the network."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._second, self._spent = -1, 0

    def left(self, now_s: float) -> int:
        if int(now_s) != self._second:
            self._second, self._spent = int(now_s), 0
        return max(0, self._bytes_per_s - self._spent)

    def spend(self, size: int, now_s: float) -> None:
        self.left(now_s)
        self._spent += size


class EntryDispatcher:
    """One follower, in one term of this leader."""

    def __init__(
        self, state: TermState, peer: str, on_word: Callable[[str, float, PushEntryResponse], None]
    ) -> None:
        self._state, self.peer = state, peer
        self._on_word = on_word
        """Called with what this follower answers, and when it was asked."""
        self.mode = PushType.COMPARE
        self.match_index = -1
        """The follower has everything up to here, durably."""
        self.acknowledged = -1
        """The furthest that match_index ever was."""
        self.waits_since_s: float | None = None
        """Since when it owes an answer that brings match_index on; None if it owes none."""
        self._round = 0
        """An answer of an earlier round moves nothing but match_index."""
        self._low, self._high, self._at = -1, -1, -1
        """COMPARE: below and above what is searched, -1 if not known yet; the one that is asked about."""
        self._equal = -1
        """The last entry known to be equal."""
        self._asked_s: float | None = None
        self._write_index = 0
        self._in_flight: OrderedDict[int, _Pushed] = OrderedDict()
        self._in_flight_entries = self._in_flight_bytes = 0
        self._paused_until_s = -math.inf
        self._probing = False
        """After an error one push at a time, until one succeeds."""
        self._takes_runs = False
        """As it said last: entries are pushed as they are stored."""
        self._commit_asked = False
        self._pushed_s = -math.inf
        self._told_commit = -1
        self._quota = PushQuota(state.settings.throttle_bytes_per_s)
        self._compare()

    # -- what is sent -------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what can be sent now."""
        state = self._state
        if state.now_s < self._paused_until_s or state.log.end_index == -1:
            return
        if self.mode is not PushType.APPEND:
            if self._asked_s is None:
                self._send_compare()
            return
        self._go_back_if_late()
        while self._write_index <= state.log.end_index and self._send_batch():
            pass
        self._send_commit()

    @property
    def due_s(self) -> float:
        """When time alone gives it something to do."""
        state = self._state
        if state.log.end_index == -1:
            return math.inf
        if state.now_s < self._paused_until_s:
            return self._paused_until_s
        if self.mode is not PushType.APPEND:
            return state.now_s if self._asked_s is None else math.inf
        due_s = math.inf
        if self._in_flight:
            due_s = next(iter(self._in_flight.values())).sent_s + state.settings.push_timeout_s
        elif self._write_index <= state.log.end_index:
            due_s = math.floor(state.now_s) + 1.0
        if not self._commit_asked:
            due_s = min(due_s, self._commit_due_s)
        return due_s

    @property
    def _commit_due_s(self) -> float:
        """When it hears next what is committed, if nothing is pushed before."""
        settings = self._state.settings
        is_told = self._told_commit >= min(self._state.committed_index, self.match_index)
        return self._pushed_s + (settings.commit_repeat_s if is_told else settings.commit_push_interval_s)

    def _request(self, kind: PushType, entries: Sequence[LedgerEntry]) -> PushEntryRequest:
        state = self._state
        if kind is PushType.APPEND and self._takes_runs and isinstance(entries, LedgerRun):
            return PushEntryRequest(
                **state.base(self.peer),
                batch_entry=entries,
                total_size=len(entries.run.data),
                commit_index=state.committed_index,
            )
        entries = tuple(entries)
        many = len(entries) > 1
        return PushEntryRequest(
            **state.base(self.peer),
            type=kind.value,
            entry=entries[0] if len(entries) == 1 else None,
            batch_entry=entries if many else (),
            total_size=sum(entry.size for entry in entries) if many else 0,
            commit_index=state.committed_index,
        )

    def _ask(self, request: PushEntryRequest, on_answer: Callable[[PushEntryResponse], None]) -> None:
        state, round_, sent_s = self._state, self._round, self._state.now_s

        def answered(answer: PushEntryResponse | None) -> None:
            if request.push_type is PushType.COMMIT:
                self._commit_asked = False
            if not state.is_leader or state.term != request.term:
                return
            self._takes_runs = answer is not None and bool(answer.takes_runs)
            if answer is not None:
                self._on_word(self.peer, sent_s, answer)
                if not state.is_leader or state.term != request.term:
                    return
                if answer.result is DLedgerResponseCode.SUCCESS:
                    self._probing = False
                    if request.push_type is PushType.APPEND:
                        self._matches(_last_acknowledged(request, answer))
                    self._told_commit = max(self._told_commit, min(request.commit_index, self.match_index))
            if round_ != self._round:
                return
            if answer is None:
                self._pause()
            else:
                on_answer(answer)

        self._pushed_s = state.now_s
        state.ask(self.peer, request, answered)

    def _await_mending(self) -> None:
        """What comes next is damaged: the follower waits until it is mended."""
        self._paused_until_s = self._state.now_s + self._state.settings.push_pause_s

    def _matches(self, index: int) -> None:
        if index > self.match_index:
            self.match_index = index
            self.acknowledged = max(self.acknowledged, index)
            self.waits_since_s = None if index + 1 >= self._write_index else self._state.now_s
            while self._in_flight and next(iter(self._in_flight.values())).last <= index:
                first, one = self._in_flight.popitem(last=False)
                self._in_flight_entries -= one.last - first + 1
                self._in_flight_bytes -= one.size

    def _pause(self) -> None:
        """Something went wrong: after a while all that is not acknowledged is sent again."""
        self._round += 1
        self._probing = True
        self._asked_s = None
        self._paused_until_s = self._state.now_s + self._state.settings.push_pause_s
        if self.mode is PushType.APPEND:
            self._write_from(self.match_index + 1)

    # -- COMPARE and TRUNCATE -----------------------------------------------------------------------

    def _compare(self) -> None:
        self._round += 1
        self.mode = PushType.COMPARE
        log = self._state.log
        self._low, self._high, self._at = log.begin_index - 1, -1, log.end_index
        self._equal = -1
        self._asked_s = None
        self._write_from(0)

    def _send_compare(self) -> None:
        log = self._state.log
        if not log.begin_index <= self._at <= log.end_index:
            self._compare()
        kind, entry = self.mode, self._state.read(self._at)
        if entry is None:
            self._await_mending()
            return
        request = self._request(kind, (entry,))
        self._asked_s = self._state.now_s
        self._owes()
        self._ask(request, self._on_truncated if kind is PushType.TRUNCATE else self._on_compared)

    def _on_compared(self, answer: PushEntryResponse) -> None:
        self._asked_s = None
        log, at = self._state.log, self._at
        if answer.result is DLedgerResponseCode.SUCCESS:
            if at == answer.end_index:
                self._append_after(at)
            elif self._high == -1 and at < log.end_index:
                # It has more than it said before, perhaps by a push that was long on its way: that may be equal.
                self._low = self._equal = at
                self._at = min(answer.end_index, log.end_index)
            elif self._high in (-1, at + 1):
                self._truncate(at)
            else:
                self._low = self._equal = at
                self._halve()
        elif answer.result is not DLedgerResponseCode.INCONSISTENT_STATE:
            self._pause()
        elif (
            answer.end_index < log.begin_index
            or answer.begin_index > log.end_index
            or at < answer.begin_index
        ):
            self._truncate(log.begin_index)
        elif at > answer.end_index:
            self._at = answer.end_index
        else:
            self._high = at
            self._low = max(self._low, log.begin_index - 1, answer.begin_index - 1)
            self._halve()

    def _halve(self) -> None:
        if self._high > self._low + 1:
            self._at = (self._low + self._high) // 2
        else:
            self._truncate(self._equal if self._equal != -1 else self._state.log.begin_index)

    def _truncate(self, index: int) -> None:
        self.mode, self._at = PushType.TRUNCATE, index

    def _on_truncated(self, answer: PushEntryResponse) -> None:
        self._asked_s = None
        if answer.result is DLedgerResponseCode.SUCCESS:
            self._append_after(self._at)
        else:
            self._compare()
            self._pause()

    # -- APPEND and COMMIT --------------------------------------------------------------------------

    def _append_after(self, index: int) -> None:
        self._round += 1
        self.mode = PushType.APPEND
        self._write_from(index + 1)
        # A stock follower, whose acks do not wait for its disk, may have less than it had.
        self.match_index = index
        self.waits_since_s = None
        self.acknowledged = max(self.acknowledged, index)

    def _write_from(self, index: int) -> None:
        self._write_index = index
        self._in_flight.clear()
        self._in_flight_entries = self._in_flight_bytes = 0

    def _go_back_if_late(self) -> None:
        if self._in_flight:
            oldest = next(iter(self._in_flight.values()))
            if self._state.now_s >= oldest.sent_s + self._state.settings.push_timeout_s:
                self._round += 1
                self._probing = True
                self._write_from(self.match_index + 1)

    def _send_batch(self) -> bool:
        """Whether something was sent."""
        state, settings = self._state, self._state.settings
        if self._probing and self._in_flight:
            return False
        if (
            self._in_flight_entries >= settings.in_flight_max
            or self._in_flight_bytes >= settings.in_flight_bytes_max
        ):
            return False
        if self._write_index < state.log.begin_index:
            self._compare()
            return False
        if not self._quota.left(state.now_s):  # it is spent only on a follower that is far behind
            first = state.read(self._write_index)
            if first is not None and self._is_far_behind(first.pos):
                return False
        most = min(
            state.log.end_index - self._write_index + 1, settings.in_flight_max - self._in_flight_entries
        )
        entries = state.read_some(self._write_index, most, settings.batch_push_bytes_max)
        if not entries:
            self._await_mending()
            return False
        span = span_of(entries)
        size = span.end - span.pos
        if self._is_far_behind(span.pos):
            self._quota.spend(size, state.now_s)
        self._owes()
        self._ask(self._request(PushType.APPEND, entries), self._on_appended)
        self._in_flight[span.first] = _Pushed(span.last, size, state.now_s)
        self._in_flight_entries += len(entries)
        self._in_flight_bytes += size
        self._write_index = span.last + 1
        return True

    def _owes(self) -> None:
        if self.waits_since_s is None:
            self.waits_since_s = self._state.now_s

    def _is_far_behind(self, pos: int) -> bool:
        return self._state.log.end_pos - pos >= self._state.settings.throttle_behind_bytes

    def _on_appended(self, answer: PushEntryResponse) -> None:
        match answer.result:
            case DLedgerResponseCode.SUCCESS:
                pass
            case DLedgerResponseCode.REPEATED_PUSH:
                pass  # the first one is answered
            case DLedgerResponseCode.INCONSISTENT_STATE:
                self._compare()
            case _:
                self._pause()

    def _send_commit(self) -> None:
        if self.mode is not PushType.APPEND or self._commit_asked or self._state.now_s < self._commit_due_s:
            return
        self._commit_asked, match_index = True, self.match_index

        def answered(answer: PushEntryResponse) -> None:
            lost = 0 <= answer.end_index < match_index
            if lost or answer.result is DLedgerResponseCode.INCONSISTENT_STATE:
                self._compare()

        self._ask(self._request(PushType.COMMIT, ()), answered)


def _last_acknowledged(request: PushEntryRequest, answer: PushEntryResponse) -> int:
    """Of a push that succeeded.  A peer from before batches says no count, and has taken one entry."""
    span = span_of(request.entries)
    return min(span.last, span.first + max(answer.count, 1) - 1)
