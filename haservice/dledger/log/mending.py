"""EntryMending: gets damaged entries of this log from other members, and puts them back.

    damage ─▶ GET with `mends`, the leader first, then the others ─▶ the same entry: put back, durably
              nobody has it: the operator is told, and all are asked again later

A damaged entry keeps its index and its term: this member votes as if it had it, and cuts nothing for it.  But it counts
for no majority: until it is mended nothing from there on is acknowledged, unless it is committed without this copy.  A
leader steps down for one that is not committed yet, and does not stand.

What comes is not believed because it came.  The log takes it only if it is the entry that was there, as EntryLog.mend()
says.  A stock member answers GET while it leads; ours always do.
"""

from __future__ import annotations

import math

from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import TellOperator
from haservice.dledger.log.entry_log import EntryLogError
from haservice.dledger.messages import GetEntriesRequest, GetEntriesResponse
from haservice.dledger.state import TermState

_AGAIN_MAX_S = 60.0
_WHY_NOT = {
    DLedgerResponseCode.NOT_LEADER: "a stock member gives entries only while it leads",
    DLedgerResponseCode.DISK_ERROR: "its own is damaged, too",
    DLedgerResponseCode.INDEX_OUT_OF_RANGE: "does not have it",
    DLedgerResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN: "does not have it any more",
}


class EntryMending:
    """Of one member.  It asks for one entry at a time."""

    def __init__(self, state: TermState) -> None:
        self._state = state
        self._index: int | None = None
        """The one that is asked for now."""
        self._round: list[int] = []
        """Those that come next."""
        self._peers: list[str] = []
        """Whom to ask for it yet."""
        self._reasons: list[str] = []
        self._told: set[int] = set()
        self._next_s = -math.inf
        self._pause_s = state.settings.mend_again_s

    @property
    def due_s(self) -> float:
        return self._next_s if self._state.damaged and self._index is None else math.inf

    def on_role(self) -> None:
        """A new leader may have what nobody gave before."""
        self._soon()

    def found(self, indexes: tuple[int, ...]) -> None:
        """Somebody has found these damaged, or believes it."""
        log = self._state.log
        for index in indexes:
            if log.begin_index <= index <= log.end_index:
                self._state.found_damaged(index)
        self._soon()

    def _soon(self) -> None:
        self._next_s, self._pause_s = -math.inf, self._state.settings.mend_again_s

    def on_time(self) -> None:
        state = self._state
        if state.damaged and self._index is None and state.now_s >= self._next_s:
            # Who misses what is not committed yet can neither lead nor acknowledge.
            pause_s = self._pause_s if state.may_lead else state.settings.patience_s
            self._next_s, self._pause_s = state.now_s + pause_s, min(2 * self._pause_s, _AGAIN_MAX_S)
            self._round = sorted(state.damaged)
            self._go_on()

    def _go_on(self) -> None:
        """Asks the next member for this entry, or the first one for the next entry."""
        while not self._peers:
            if self._index is not None:
                self._tell(self._index)
            self._index = self._next_damaged()
            if self._index is None:
                return
            state = self._state
            leader = [state.leader_id] if state.leader_id in state.settings.others else []
            self._peers = [*leader, *(one for one in state.settings.others if one not in leader)]
            self._reasons = []
        self._ask(self._index, self._peers.pop(0))

    def _next_damaged(self) -> int | None:
        """The next of this round that is still there, and still damaged."""
        state = self._state
        while self._round:
            index = self._round.pop(0)
            if state.log.begin_index <= index <= state.log.end_index and not state.log.is_sound(index):
                return index
            state.is_mended(index)
        return None

    def _ask(self, index: int | None, peer: str) -> None:
        assert index is not None
        request = GetEntriesRequest(**self._state.base(peer), begin_index=index, mends=True)

        def answered(answer: GetEntriesResponse | None) -> None:
            reason = self._taken(index, answer)
            if reason is None:
                self._told.discard(index)
                self._state.is_mended(index)
                self._soon()
                self._index, self._peers = None, []
            else:
                self._reasons.append(f"{peer}: {reason}")
            self._go_on()

        self._state.ask(peer, request, answered)

    def _taken(self, index: int, answer: GetEntriesResponse | None) -> str | None:
        """Puts the entry back; why not, if it is not the one."""
        if answer is None:
            return "no answer"
        if answer.result is not DLedgerResponseCode.SUCCESS:
            return _WHY_NOT.get(answer.result, answer.result.name)
        entry = next(iter(answer.entries), None)
        if entry is None or entry.index != index or not entry.is_sound:
            return "gives no such entry"
        committed = answer.committed_index is not None and index <= answer.committed_index
        try:
            return None if self._state.log.mend(entry, committed=committed) else "has another entry there"
        except EntryLogError as error:
            return str(error)

    def _tell(self, index: int) -> None:
        if index in self._told:
            return
        self._told.add(index)
        reasons = "; ".join(self._reasons)
        text = f"entry {index} is damaged, and nobody gives it: {reasons}; all are asked again and again"
        self._state.actions.append(TellOperator(text))
