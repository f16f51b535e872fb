"""Leadership: what a member does while it leads.  Heartbeats, the lease, what a majority has.

A leader has a lease: for so long after a majority was asked for an answer that came, no majority has lost patience with
it.  When the lease ends it steps down, and ends every append that waits.  The lease is looked at before anything else,
so a leader that stood still answers nothing when it goes on.

An entry is committed once a majority has it durably and it is of the leader's own term.  What came before is committed
with it.  (An older entry that a majority has may still be overwritten: figure 8 of the Raft paper.)
"""

from __future__ import annotations

import math

from haservice.dledger.appends import PendingAppends
from haservice.dledger.codes import DLedgerResponseCode, why_refused
from haservice.dledger.dispatcher import EntryDispatcher
from haservice.dledger.election import LeaderElector
from haservice.dledger.events import TellOperator
from haservice.dledger.log.entry_log import EntryLogError
from haservice.dledger.messages import HeartBeatRequest, HeartBeatResponse, MemberMessage
from haservice.dledger.patience import GroupPatience
from haservice.dledger.state import TermState

# To a stock follower that comes to a new term.
_AGAIN_S = 0.02


class Leadership:
    """Of one member; it begins anew with every term that the member leads."""

    def __init__(
        self, state: TermState, elector: LeaderElector, appends: PendingAppends, patience: GroupPatience
    ) -> None:
        self._state, self._elector, self._appends, self._patience = state, elector, appends, patience
        self.dispatchers: dict[str, EntryDispatcher] = {}
        self._term = -1
        self._contact_s: dict[str, float] = {}
        """Peer → when it was asked what it has answered since."""
        self._told: dict[str, tuple[float, float]] = {}
        """Peer → when it was asked by the last heartbeat that it has answered, and how patient it is, as it says."""
        self._beat_at_s: dict[str, float] = {}
        self._differs: dict[str, DLedgerResponseCode] = {}
        """Peers of whom the operator was told that their files differ."""
        self.not_whole: dict[str, str] = {}
        """Why peers are not whole, as they say."""
        self.refuses_cut: dict[str, str] = {}
        """What peers refuse to cut, as they say."""
        self._is_forced = False
        """An operator's --force began this term, and nothing of it is committed yet."""

    # -- begin and end ------------------------------------------------------------------------------

    def on_role(self) -> None:
        state = self._state
        if state.is_leader and self._term != state.term:
            self._begin()
        elif not state.is_leader and self._term != -1:
            self.remember()
            self._term = -1
            self.dispatchers = {}
            self._appends.end_all()

    def remember(self) -> None:
        """How far the others have acknowledged in this term."""
        for peer, dispatcher in self.dispatchers.items():
            self._state.remember(peer, term=self._term, index=dispatcher.acknowledged)

    def _begin(self) -> None:
        state = self._state
        self._term = state.term
        self._differs, self.not_whole, self.refuses_cut, self._told = {}, {}, {}, {}
        self._is_forced = self._elector.is_forced
        others = state.settings.others
        # The votes are the first word of a majority.
        self._contact_s = dict.fromkeys(others, state.now_s)
        self._beat_at_s = dict.fromkeys(others, state.now_s)
        self.dispatchers = {peer: EntryDispatcher(state, peer, self._on_word) for peer in others}
        body = state.settings.first_entry_body
        if body is not None:
            try:
                state.log.append_as_leader(state.term, [body])
                state.disk_trouble = ""
            except EntryLogError as error:
                state.disk_trouble = f"the first entry of term {state.term} was not appended: {error}"
                state.actions.append(TellOperator(state.disk_trouble))

    # -- time ---------------------------------------------------------------------------------------

    def check_lease(self) -> None:
        """First of all in every step."""
        state = self._state
        if not state.is_leader:
            return
        if state.now_s > self._lease_until_s:
            self._elector.step_down()
        elif not state.may_lead:
            damaged = f"damaged before they were committed: entries {sorted(state.damaged)[-10:]}"
            why = state.log.unwritable or damaged
            state.actions.append(TellOperator(f"steps down: {why}"))
            self._elector.step_down()

    @property
    def _lease_until_s(self) -> float:
        leases = sorted([math.inf, *map(self._lease_of, self._contact_s)], reverse=True)
        return leases[len(leases) // 2]

    def _lease_of(self, peer: str) -> float:
        """By a heartbeat it has the patience that it told.  By another word it may have begun to follow anew, with that
        of its settings.
        """
        beaten_s, told_s = self._told.get(peer, (-math.inf, 0.0))
        patience = self._patience
        return max(self._contact_s[peer] + patience.lease_s(0.0), beaten_s + patience.lease_s(told_s))

    @property
    def due_s(self) -> float:
        if not self._state.is_leader:
            return math.inf
        dispatchers = (one.due_s for one in self.dispatchers.values())
        return min(
            (
                self._lease_until_s,
                *self._beat_at_s.values(),
                *dispatchers,
                self._appends.due_s,
                self._patience.due_s,
            )
        )

    def on_time(self) -> None:
        state = self._state
        if not state.is_leader:
            return
        self._appends.give_up()
        self._patience.on_time()
        for peer in state.settings.others:
            if state.now_s >= self._beat_at_s[peer]:
                self._beat(peer)

    def is_live(self, peer: str) -> bool:
        """Whether it has answered lately."""
        return self._contact_s.get(peer, -math.inf) + self._patience.asked_s > self._state.now_s

    # -- heartbeats ---------------------------------------------------------------------------------

    def _beat(self, peer: str) -> None:
        state, sent_s, term = self._state, self._state.now_s, self._state.term
        interval_s = state.settings.heartbeat_interval_s
        self._beat_at_s[peer] = sent_s + interval_s
        state.remember(peer, term=term, index=self.dispatchers[peer].acknowledged)
        request = HeartBeatRequest(
            **state.base(peer),
            interval_ms=round(interval_s * 1000),
            patience_growth=self._patience.growth,
            forced=self._is_forced or None,
            recall=state.recalls[peer],
        )

        def answered(answer: HeartBeatResponse | None) -> None:
            if answer is not None and state.is_leader and state.term == term:
                self.not_whole[peer] = answer.not_whole or ""
                self.refuses_cut[peer] = answer.refuses_cut or ""
                if answer.result is DLedgerResponseCode.SUCCESS:
                    beaten_s, _ = self._told.get(peer, (sent_s, 0.0))
                    self._told[peer] = (max(sent_s, beaten_s), (answer.patience_ms or 0) / 1000)
                self._patience.lives(peer, sent_s)
                self._on_word(peer, sent_s, answer)

        state.ask(peer, request, answered)

    def _on_word(self, peer: str, sent_s: float, answer: MemberMessage) -> None:
        """Any answer to what this leader has asked in its term."""
        state = self._state
        match answer.result:
            case DLedgerResponseCode.EXPIRED_TERM:
                if answer.term > state.term and self._appends.transferring:
                    self._elector.give_way(answer.term)
                elif answer.term > state.term:
                    # It has the right to lead, but not in this term: nobody's patience is over yet.
                    state.adopt_term(answer.term)
                    self._elector.stand()
            case DLedgerResponseCode.INCONSISTENT_LEADER:
                self._elector.step_down()
            case DLedgerResponseCode.TERM_NOT_READY:
                self._beat_at_s[peer] = min(self._beat_at_s[peer], state.now_s + _AGAIN_S)
            case DLedgerResponseCode.ILLEGAL_MEMBER_STATE:
                pass  # it is not whole, and counts for no majority
            case DLedgerResponseCode.UNKNOWN_MEMBER | DLedgerResponseCode.UNKNOWN_GROUP:
                self._tell_differs(peer, answer.result)
            case _:
                self._differs.pop(peer, None)
                self._contact_s[peer] = max(self._contact_s[peer], sent_s)

    def _tell_differs(self, peer: str, code: DLedgerResponseCode) -> None:
        """Once in a term, and again if it has answered rightly meanwhile: it stays until an operator changes a file."""
        if self._differs.get(peer) is not code:
            self._differs[peer] = code
            text = f"{peer} at {self._state.settings.peers[peer]} {why_refused(code)}"
            self._state.actions.append(TellOperator(text))

    # -- what a majority has ------------------------------------------------------------------------

    def pump(self) -> None:
        """Commits and sends what there is."""
        state = self._state
        if not state.is_leader:
            return
        self.commit()
        self._appends.acknowledge()
        for dispatcher in self.dispatchers.values():
            dispatcher.pump()

    def commit(self) -> None:
        state = self._state
        index = quorum_index([state.counted_index, *(one.match_index for one in self.dispatchers.values())])
        is_new = index > state.committed_index and index >= state.log.begin_index
        if is_new and state.log.term_at(index) == state.term:
            state.commit_to(index)
            self._is_forced = False

    def lag(self, peer: str) -> int:
        """How many entries it is behind."""
        return self._state.log.end_index - self.dispatchers[peer].match_index


def quorum_index(indexes: list[int]) -> int:
    """The highest index that a majority has reached, also of an even number of members."""
    return sorted(indexes, reverse=True)[len(indexes) // 2]
