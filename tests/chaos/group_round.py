"""One round of a group: as other rounds, with what a group promises beside, and figures.

    shown      what a consumer was given, is never taken back, whatever becomes of the master that gave it
    calm       a fault has few elections: no storm of them
    silence    how long no send was answered with OK, from a fault on that was alone in its round

All faults are those of pairs and of machines, see group_faults.py; the checker is that of all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.chaos.auto_round import AutoTraffic, silences
from tests.chaos.checker import Verdict, Violation
from tests.chaos.group_cluster import GroupCluster, entry_messages
from tests.chaos.group_faults import GROUP_FAULTS, GroupMachines
from tests.chaos.proc_clients import History
from tests.chaos.proc_round import Outcome, Play

# From and to, by which time another broker may be the master or not.
FAULT_S = (0.2, 4.0)
CALM_S = 0.15
# So many elections one fault may have: one or two, and some more where a busy machine lets members wait.
TERMS_MAX = 6


class GroupHistory(History):
    """No fault voids what a group has shown or acknowledged."""

    def void(self, why: str) -> None:
        pass


class GroupPlay(Play):
    """The rounds of one group."""

    make_traffic = AutoTraffic
    make_history = GroupHistory
    read_log = staticmethod(entry_messages)
    fault_s = FAULT_S

    def __init__(self, cluster: GroupCluster, name: str, told: Callable[[str, int], None]) -> None:
        """`name` is that of the shape, for figures; `told` hears how many terms rose with a fault that was alone."""
        super().__init__(cluster, {**GROUP_FAULTS, **GroupMachines(cluster.disks).faults}, CALM_S)
        self._group = cluster
        self._name = name
        self._told = told

    async def round(self, seed: int, steps: Sequence[tuple[str, ...]] | None = None) -> Outcome:
        before = await self._group.term()
        outcome = await super().round(seed, steps)
        risen = await self._group.term() - before
        outcome.findings.verdicts += storm(risen, outcome.faults)
        if len(outcome.faults) == 1:
            self._told(outcome.faults[0], risen)
        return outcome

    def _judged(self, history: History, level_s: float, steps: Sequence[tuple[str, ...]]) -> Outcome:
        outcome = super()._judged(history, level_s, steps)
        lone = len(outcome.faults) == 1
        outcome.findings.recoveries = silences(outcome.events, self._name) if lone else []
        return outcome


def storm(risen: int, faults: Sequence[str]) -> list[Verdict]:
    """A verdict, if these faults had too many elections."""
    if risen <= TERMS_MAX * len(faults):
        return []
    text = f"{risen} terms with {len(faults)} faults: {', '.join(faults)}; {TERMS_MAX} are allowed for each"
    return [Verdict(Violation.ELECTION_STORM, text)]
