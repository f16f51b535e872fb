"""GroupPatience: how many times longer than its interval says the members wait for word of their leader.

    a leader lost the group within CALM_S, and lives    its successor asks for twice as much as it did
    a leader leads for CALM_S                           and for half as much as before, down to 1

On a machine that is too busy, or stands still, a leader that lives is late with its heartbeats.  Who replaces it will
be late as well, for its broker begins to serve.  So elections would follow each other as long as the machine is busy.
A leader that is dead is not late: its successor asks for no more, and the next fail-over is as fast.

Heartbeats say how much is asked for; they come as often as ever.  A follower answers how patient it is, and a leader's
lease counts on no more.  Stock members know neither: they have the patience of their files.
"""

from __future__ import annotations

import math

from haservice.dledger.settings import HEARTBEAT_S_MAX
from haservice.dledger.state import TermState

# A leader that leads for so long has time enough for its heartbeats.
CALM_S = 300.0
GROWTH_MAX = 8


class GroupPatience:
    """What one member knows of it."""

    def __init__(self, state: TermState) -> None:
        self._state = state
        self.growth = 1
        """What the leader of this term asks for, or else the last one did."""
        self._leader: tuple[str, int] | None = None
        """Who led last, as far as this member knows, and in which term."""
        self._led_from_s = -math.inf
        self._calm_at_s = math.inf
        """Of a leader: when it asks for less."""
        self._ousted: str | None = None
        """Of a leader: who led before it, and not for long."""

    @property
    def asked_s(self) -> float:
        """Of a leader: the patience that it asks for."""
        return self._state.settings.patience_s * self.growth

    def lease_s(self, told_s: float) -> float:
        """For so long a follower that told this patience elects nobody else; it may have heard of a shorter one."""
        settings = self._state.settings
        return min(max(told_s, settings.patience_s), self.asked_s) * settings.lease_share

    def heard(self, growth: int | None) -> None:
        """From the leader."""
        self.growth = min(max(growth or 1, 1), GROWTH_MAX)

    def lives(self, peer: str, sent_s: float) -> None:
        """To this leader: `peer` has answered what it was asked at `sent_s`."""
        if peer == self._ousted and sent_s < self._led_from_s + self._state.settings.patience_s:
            self._ousted = None
            self._grow()

    def on_time(self) -> None:
        if self._state.now_s >= self.due_s:
            self._calm_at_s = self._state.now_s + CALM_S
            self.growth = max(1, self.growth // 2)

    @property
    def due_s(self) -> float:
        return self._calm_at_s if self._state.is_leader else math.inf

    def on_role(self, planned_term: int) -> None:
        """`planned_term`: the one that this member was asked to lead."""
        state = self._state
        if state.leader_id is None or self._leader == (state.leader_id, state.term):
            return
        last, self._leader = self._leader, (state.leader_id, state.term)
        was_short = last is not None and state.now_s < self._led_from_s + CALM_S
        self._led_from_s, self._calm_at_s = state.now_s, state.now_s + CALM_S
        self._ousted = None
        if state.is_leader and was_short and planned_term != state.term:
            assert last is not None
            if last[0] == state.self_id:
                self._grow()
            else:
                self._ousted = last[0]

    def _grow(self) -> None:
        grown = min(2 * self.growth, GROWTH_MAX)
        if grown * self._state.settings.heartbeat_interval_s <= HEARTBEAT_S_MAX:
            self.growth = grown
