"""The faults of the DLedger simulator, drawn by the seed; each ends by itself, and heal_all() ends what is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from haservice.dledger.events import HandOverTo

if TYPE_CHECKING:
    from tests.chaos.dledger_node import Copy, Node
    from tests.chaos.dledger_sim import World

_SPANS_S = (0.03, 0.3, 1.0, 2.5, 5.0)


class Faults:
    """What happens to one world.  `strikes` is the share of elections that are followed by a fault at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.strikes = world.source.choice((0.0, 0.0, 0.4, 0.8))
        self._pause_s = world.source.choice((0.2, 0.6, 1.5))
        self._over = False
        kinds: list[tuple[float, Callable[[], None]]] = [
            (3.0, self._crash),
            (2.0, self._power_cut),
            (1.0, self._power_cut_all),
            (1.5, self._die_between_actions),
            (2.0, self._freeze),
            (3.0, self._cut_one_way),
            (2.0, self._isolate),
            (1.5, self._split),
            (1.5, self._lossy),
            (1.5, self._late),
            (1.0, self._clock),
            (1.0, self._full),
            (0.5, self._failed_disk),
            (1.0, self._slow_disk),
            (1.0, self._hand_over),
            (0.7, self._expire),
            (1.5, self._flip),
            (1.0, self._wipe),
            (1.0, self._put_back),
        ]
        # Each seed has some kinds often, others seldom or never.
        self._kinds = [
            (weight * world.source.choice((0.0, 0.2, 1.0, 3.0)) + 1e-3, kind) for weight, kind in kinds
        ]

        self._copies: dict[str, Copy] = {}
        self._quiet_until_s = -math.inf
        """Until then nothing else happens: a member that was put back hears what others remember of it."""

    def begin(self) -> None:
        if self._over:
            return
        self._one()
        self._after(self._world.source.uniform(0.05, 2 * self._pause_s), self.begin)

    def strike(self) -> None:
        if self._world.source.random() < self.strikes:
            self._after(self._world.source.uniform(0.0, 0.1), self._one)

    def _one(self) -> None:
        if self._over or self._world.clock.now_s < self._quiet_until_s:
            return
        for node in self._world.nodes:
            if self._world.source.random() < 0.1:
                self._copies[node.name] = node.copy()
        weights = [weight for weight, _ in self._kinds]
        ((_, kind),) = self._world.source.choices(self._kinds, weights)
        self._world.count[f"times {kind.__name__.strip('_')}"] += 1
        self._world.note(kind.__name__)
        kind()

    def heal_all(self) -> None:
        world = self._world
        world.note("HEAL")
        self._over = True
        world.cuts.clear()
        world.loss = world.twice = world.late = 0.0
        for node in world.nodes:
            node.frozen_until_s = -math.inf
            node.log.is_full, node.slow_disk_s, node.dies_at_action = False, 0.0, -1
            if node.log.has_failed:
                node.crash()
            node.boot()
            node.heal_clock()
            node.thaw()
            node.scrub()

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._world.clock.after(delay_s, call)

    def _any(self) -> Node:
        """One of them, often the leader."""
        leaders = [one for one in self._world.nodes if one.leads]
        if leaders and self._world.source.random() < 0.5:
            return self._world.source.choice(leaders)
        return self._world.source.choice(self._world.nodes)

    def _span(self) -> float:
        return self._world.source.choice(_SPANS_S) * self._world.source.uniform(0.6, 1.4)

    # -- members ------------------------------------------------------------------------------------

    def _crash(self) -> None:
        node = self._any()
        node.crash()
        self._after(self._span(), node.boot)

    def _power_cut(self) -> None:
        node = self._any()
        if not node.flushes and not self._may_lose(node):
            return
        node.crash(power=True)
        self._after(self._span(), node.boot)

    def _power_cut_all(self) -> None:
        for node in self._world.nodes:
            node.crash(power=True)
            self._after(self._span() / 2, node.boot)
        if not self._world.mode.flushes:
            self._world.all_lost_power()

    def _may_lose(self, node: Node) -> bool:
        """Whether a majority is whole even without it; else it may have the only copy."""
        others = [one for one in self._world.nodes if one is not node]
        if any(one.log.damaged for one in others):
            return False  # it may have what they need to be mended
        return sum(one.record.is_whole for one in others) > len(others) // 2

    def _wipe(self) -> None:
        node = self._any()
        if self._may_lose(node):
            self._world.count["wiped"] += 1
            node.wipe()
            self._after(self._span(), node.boot)

    def _put_back(self) -> None:
        """An older copy of its store, while somebody hears it that knows better."""
        node, world = self._any(), self._world
        copy = self._copies.get(node.name)
        others = [one for one in world.nodes if one is not node]
        is_heard = all(one.up and not one.frozen and one.dies_at_action < 0 for one in others)
        if copy is None or not is_heard or not self._may_lose(node) or not _is_missed(node, copy, others):
            return
        world.cuts.clear()
        world.loss = world.twice = world.late = 0.0
        world.count["put back"] += 1
        world.note(f"{node.name} is put back to {copy.begin} + {len(copy.entries)}, {copy.saved}")
        node.put_back(copy)
        self._quiet_until_s = world.clock.now_s + 2.0
        node.boot()

    def _die_between_actions(self) -> None:
        node = self._any()
        node.dies_at_action = self._world.source.randint(0, 6)
        self._after(1.0 + self._span(), node.boot)

    def _freeze(self) -> None:
        node = self._any()
        span_s = self._span()
        node.frozen_until_s = self._world.clock.now_s + span_s
        self._after(span_s + 1e-3, node.thaw)

    def _clock(self) -> None:
        self._any().jump_clock(self._world.source.choice((-3.0, -0.5, 0.5, 2.0, 10.0)))

    def _hand_over(self) -> None:
        node, to = self._any(), self._world.source.choice(self._world.nodes)
        node.step(HandOverTo("operator", to.name))

    def _expire(self) -> None:
        self._any().expire()

    def _flip(self) -> None:
        """A bit flips in an entry that another member has, too; somebody reads it now or later, or nobody."""
        node, world = self._any(), self._world
        log = node.log
        if log.end_index < 0:
            return
        index = world.source.randint(max(log.begin_index, log.end_index - 30), log.end_index)
        entry = log.now.get(index)
        others = [one for one in world.nodes if one is not node]
        if (
            entry is None
            or not log.holds_durably(entry)
            or any(index in one.log.damaged for one in others)
            or not any(one.log.disk.get(index) == entry for one in others)  # which a power cut leaves there
        ):
            return
        log.damaged.add(index)
        world.count["flipped"] += 1
        world.note(f"{node.name} {index} of term {entry.term} is damaged")
        if world.source.random() < 0.8:
            self._after(self._span() / 2, node.scrub)

    # -- disks --------------------------------------------------------------------------------------

    def _full(self) -> None:
        node = self._any()
        node.log.is_full = True

        def heal() -> None:
            node.log.is_full = False

        self._after(self._span(), heal)

    def _failed_disk(self) -> None:
        node = self._any()
        node.log.has_failed = True

        def replace_process() -> None:
            if node.log.has_failed:
                node.crash()
                node.boot()

        self._after(self._span(), replace_process)

    def _slow_disk(self) -> None:
        node = self._any()
        node.slow_disk_s = self._world.source.choice((0.05, 0.3, 1.5))

        def heal() -> None:
            node.slow_disk_s = 0.0

        self._after(self._span(), heal)

    # -- links --------------------------------------------------------------------------------------

    def _cut(self, pairs: set[tuple[str, str]]) -> None:
        self._world.cuts.update(pairs)
        self._after(self._span(), lambda: self._world.cuts.difference_update(pairs))

    def _cut_one_way(self) -> None:
        one, other = self._world.source.sample(self._world.nodes, 2)
        self._cut({(one.name, other.name)})

    def _isolate(self) -> None:
        """A member hears nobody, or is heard by nobody, or both."""
        name = self._any().name
        others = [one.name for one in self._world.nodes if one.name != name]
        ways = self._world.source.choice((1, 2, 3))
        pairs = {(name, one) for one in others} if ways & 1 else set()
        self._cut(pairs | ({(one, name) for one in others} if ways & 2 else set()))

    def _split(self) -> None:
        names = [one.name for one in self._world.nodes]
        side = set(self._world.source.sample(names, len(names) // 2))
        self._cut({(a, b) for a in names for b in names if (a in side) != (b in side)})

    def _lossy(self) -> None:
        self._world.loss = self._world.source.choice((0.02, 0.1, 0.3))
        self._world.twice = self._world.source.choice((0.0, 0.1, 0.3))

        def heal() -> None:
            self._world.loss = self._world.twice = 0.0

        self._after(self._span(), heal)

    def _late(self) -> None:
        self._world.late = self._world.source.choice((0.05, 0.2, 0.5))

        def heal() -> None:
            self._world.late = 0.0

        self._after(self._span(), heal)


def _is_missed(node: Node, copy: Copy, others: list[Node]) -> bool:
    """Whether another member remembers of this one what the copy lacks."""
    end = copy.begin + len(copy.entries) - 1 if copy.entries else -1
    for one in others:
        assert one.member is not None
        recall = one.member.recalls().get(node.name)
        if recall is None or not copy.record.is_whole:
            continue
        forgot = recall.vote > copy.saved[0] or (recall.vote == copy.saved[0] and copy.saved[1] is None)
        if forgot or (recall.term >= copy.record.since and recall.index > end):
            return True
    return False
