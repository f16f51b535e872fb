"""Wholeness: whether a member may vote, acknowledge and lead, and how it comes to that.  The rule is mastership.whole.

    new or emptied ──┐                                     hears every voter       is filled by a leader
    an older copy  ──┼─▶ not whole: record, durably ─────▶ (phase 1) ────────────▶ (phase 2) ────────────▶ whole
    power, ASYNC   ──┘                                     takes no entry          acknowledges

A member asks by a VoteRequest of term -1, which every kind of member refuses, with its term, and changes nothing for.
Ours add what they know: where their log ends, whether they are whole, and what the asking one had acknowledged to them.
Of a stock member only its term is known, and whether its log is longer than the asking one's.

An acknowledgement in phase 2 is an honest one: the leader's term is no older than any that this member can have voted
in, and the whole log up to there is the leader's.  A vote has to wait until what it had acknowledged before is back.

All logs of a group are empty, and all voters answer: nothing was ever acknowledged, and the group begins.  Each term
that any of them knows is over for votes: a member that is not whole gives its vote in each that it comes to away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from haservice.dledger.codes import VoteResult
from haservice.dledger.events import SaveWhole, TellOperator, WholeRecord
from haservice.dledger.messages import Recall, VoteRequest, VoteResponse
from haservice.dledger.state import TermState
from haservice.mastership.whole import (
    NOWHERE,
    Evidence,
    KnownVoter,
    Place,
    Refill,
    is_new_group,
    last_resort,
    why_not_whole,
)

# So long after an answer a voter is asked again, while this member is not whole.
ASK_S = 0.5
# What a voter answered holds for so long, where all have to be heard at one time.
FRESH_S = 4.0
_LONGER = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
# What a request of term -1 is answered by a member whose log is no longer.
_NO_LONGER = VoteResult.REJECT_EXPIRED_VOTE_TERM
# So long at most a member that starts listens to what others remember of it, before it votes.
LISTEN_S = 1.0
# After so long the operator is told for whom a member waits; and then, if it waits for another one, each minute.
TELL_AFTER_S = 5.0
TELL_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a voter answered.  Of a stock one it is not known how far its log goes."""

    voter: KnownVoter
    at_s: float
    knows_reach: bool


class Wholeness:
    """Of one member.  `agreed_index` gives up to where its log is known to be its leader's."""

    def __init__(self, state: TermState, agreed_index: Callable[[], int], *, listens: bool) -> None:
        """`listens`: it asks all others what they remember of it, before it votes."""
        self._state = state
        self._listens_to = set(state.settings.others) if listens else set[str]()
        self._listen_until_s = -math.inf
        self._agreed_index = agreed_index
        self._heard: dict[str, _Heard] = {}
        self._ask_at_s: dict[str, float] = dict.fromkeys(state.settings.others, -math.inf)
        filling = state.record.filling
        self._all_heard_s = math.inf if filling is not None and filling.awaited else -math.inf
        self._tell_at_s = math.inf
        self._told = ""
        if filling is not None:
            state.record = replace(state.record, filling=filling.without(frozenset(state.settings.others)))

    # -- what is so ---------------------------------------------------------------------------------

    @property
    def takes_entries(self) -> bool:
        """Whether a leader's entries are taken, and acknowledged."""
        filling = self._state.record.filling
        return filling is None or not filling.awaited

    @property
    def text(self) -> str:
        """Why this member is not whole, and what it waits for; "" if it is whole."""
        record = self._state.record
        if record.is_whole:
            return ""
        waits = f", and waits for {record.filling.waits_for}" if record.filling is not None else ""
        return f"is not whole: {record.why}{waits}"

    @property
    def _listens(self) -> bool:
        """Whether it has just started, and others have not said yet what they remember of it."""
        return bool(self._listens_to) and self._state.now_s < self._listen_until_s

    def may_stand(self) -> bool:
        return self.may_vote_for(self._state.self_id)

    def may_vote_for(self, candidate: str) -> bool:
        if self._state.record.is_whole:
            return not self._listens
        return self._resort() == candidate

    def _resort(self) -> str | None:
        """Who leads although too few voters are whole: all of them have answered lately."""
        state = self._state
        if not self.takes_entries or not all(one.knows_reach for one in self._heard.values()):
            return None
        return last_resort(frozenset(state.settings.peers), state.settings.quorum, self._lately())

    def _lately(self) -> dict[str, KnownVoter]:
        """What all voters have answered lately, this one's own answer with it."""
        state, since_s = self._state, self._state.now_s - FRESH_S
        known = {peer: one.voter for peer, one in self._heard.items() if one.at_s >= since_s}
        known[state.self_id] = KnownVoter(state.reach, state.record.is_whole, is_new=state.log.end_index < 0)
        return known

    # -- what takes it away -------------------------------------------------------------------------

    def hear_recall(self, peer: str, recall: Recall | None) -> None:
        """What a peer remembers of this member; a store that was put back from an older copy has forgotten it."""
        state, record = self._state, self._state.record
        if recall is None or not record.is_whole:
            return
        forgot = recall.vote > state.term or (recall.vote == state.term and state.vote is None)
        told: dict[str, Place] = {}
        if recall.term >= record.since:
            told[peer] = (recall.term, recall.index)
        why = why_not_whole(
            Evidence((recall.term, state.log.end_index), told, not forgot, peer if forgot else "")
        )
        if why is not None:
            self._lose(why)

    def _lose(self, why: str) -> None:
        state = self._state
        self._heard = {}
        self._all_heard_s = math.inf
        self._save(replace(state.record, why=why, filling=Refill(frozenset(state.settings.others))))
        state.give_vote_away()
        state.actions.append(TellOperator(f"is not whole: {why}"))
        self._tell_at_s = state.now_s + TELL_AFTER_S
        if not state.is_follower:
            state.become_candidate()

    def log_is_cut(self) -> None:
        """By a leader in office: what was told to those of earlier terms may be gone with right."""
        state = self._state
        if state.record.since < state.term:
            self._save(replace(state.record, since=state.term))

    # -- time ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._listen_until_s = self._state.now_s + LISTEN_S
        if not self._state.record.is_whole:
            self._state.give_vote_away()
            self._tell_at_s = self._state.now_s + TELL_AFTER_S

    def on_time(self) -> None:
        state = self._state
        if state.record.is_whole and not self._listens:
            return
        for peer, at_s in self._ask_at_s.items():
            if state.now_s >= at_s and (peer in self._listens_to or not state.record.is_whole):
                self._ask(peer)
        self._look()
        if state.now_s >= self._tell_at_s and self.text not in ("", self._told):
            self._told = self.text
            self._tell_at_s = state.now_s + TELL_AGAIN_S
            state.actions.append(TellOperator(self.text))

    @property
    def due_s(self) -> float:
        if self._state.record.is_whole:
            return self._listen_until_s if self._listens else math.inf
        return min(self._ask_at_s.values(), default=math.inf)

    # -- asking -------------------------------------------------------------------------------------

    def ask_soon(self, peer: str) -> None:
        """It is there: it has just asked."""
        is_asked = self._ask_at_s.get(peer, math.inf) == math.inf
        if not is_asked and peer not in self._heard:
            self._ask_at_s[peer] = self._state.now_s

    def _ask(self, peer: str) -> None:
        state = self._state
        self._ask_at_s[peer] = math.inf
        sent, reach = state.now_s, state.reach
        base = state.base(peer) | {"leader_id": state.self_id, "term": -1}
        request = VoteRequest(**base, ledger_end_term=reach[0], ledger_end_index=reach[1])
        state.ask(peer, request, partial(self._on_answer, peer, sent, reach))

    def _on_answer(self, peer: str, sent_s: float, reach: Place, answer: VoteResponse | None) -> None:
        state = self._state
        self._ask_at_s[peer] = state.now_s + ASK_S
        self._listens_to.discard(peer)
        if answer is not None:
            self.hear_recall(peer, answer.recall)
        filling = state.record.filling
        if answer is None or filling is None or answer.vote not in (*_LONGER, _NO_LONGER) or answer.term < 0:
            return
        is_longer = answer.vote in _LONGER
        end = answer.place
        is_empty = not is_longer and reach == NOWHERE if end is None else end == NOWHERE
        voter = KnownVoter(end or NOWHERE, not answer.not_whole, is_new=is_empty)
        self._heard[peer] = _Heard(voter, sent_s, end is not None)
        if answer.term > state.term:
            state.adopt_term(answer.term)
        before, filling = filling, filling.heard(peer, answer.term)
        if before.awaited and not filling.awaited:
            self._all_heard_s = state.now_s
        if end is None and not is_longer:
            # A leader that does not say where its log ends is reached where it has no more than was asked about.
            end = reach
        is_leader = state.is_follower and peer == state.leader_id and answer.term == state.term
        if is_leader and end is not None and sent_s >= self._all_heard_s:
            filling = filling.led(answer.term, end)
        if filling != before:
            self._save(replace(state.record, filling=filling))
        self._look()

    def _look(self) -> None:
        """Whether it is whole by now."""
        state, filling = self._state, self._state.record.filling
        if filling is None:
            return
        voters = frozenset(state.settings.peers)
        if not filling.awaited and is_new_group(voters, self._lately()):
            self._is_whole(since=-1)
            return
        index = min(self._agreed_index(), state.counted_index)
        if state.is_follower and filling.is_over((state.log.term_at(index), index)):
            self._is_whole(since=state.term)

    def _is_whole(self, since: int, alone: str = "") -> None:
        record = self._state.record
        self._save(WholeRecord(since=max(since, record.since), alone=alone or record.alone))
        self._heard = {}
        self._told = ""

    # -- without enough whole voters ----------------------------------------------------------------

    def forced(self, term: int) -> None:
        """An operator goes on without those that are silent, in this term."""
        record = self._state.record
        if record.filling is not None and record.filling.awaited:
            self._all_heard_s = self._state.now_s
            self._save(replace(record, filling=Refill(frozenset(), newest=term)))

    def leads(self, by_force: bool) -> None:
        """This member was elected.  If it was not whole, its log is all there is."""
        state = self._state
        if state.record.is_whole and not by_force:
            return
        ends = ", ".join(f"{peer} with {_reach_text(one)}" for peer, one in sorted(self._lately().items()))
        silent = sorted(set(state.settings.others) - self._lately().keys())
        how = "by an operator's --force" if by_force else "by the longest log, for too few members are whole"
        without = f" without {', '.join(silent)}" if silent else ""
        lost = "what others had acknowledged beyond that is lost"
        text = f"{state.self_id} leads term {state.term} {how}{without}: {ends}; {lost}"
        state.actions.append(TellOperator(text))
        self._is_whole(since=state.term, alone=text)

    def _save(self, record: WholeRecord) -> None:
        self._state.record = record
        self._state.actions.append(SaveWhole(record))


def _reach_text(voter: KnownVoter) -> str:
    term, index = voter.reach
    if index < 0:
        return "no entries"
    return f"entries up to {index} of term {term}{'' if voter.is_whole else ', not whole'}"
