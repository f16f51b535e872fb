"""Faults of the failover simulator: of brokers, of the links between them, of the coordinator and the way to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from haservice.coordination.cluster import FAILOVER, REQUEST, SETTINGS, SWITCHOVER, MasterRequest, decode
from haservice.coordination.coordinator import Transaction
from haservice.typed_json import encode
from tests.chaos.failover_stuck import why_nobody

if TYPE_CHECKING:
    from tests.chaos.failover_node import Node
    from tests.chaos.failover_sim import World

# Between two faults, on average.
PAUSES_S = (0.25, 0.7, 2.0, 4.0)
# How much likelier a kind of fault is in one seed than in another: what is rare together is not in some of them.
WEIGHTS = (0, 1, 1, 5)
# How often a switchover is asked for later, and by how much; the brokers' clocks show times that differ by as much.
LATER = 0.3
LATER_S = 10.0
# By then every lease that was held before is over.
LEASE_OVER_S = 6.0
# heal_all() comes not before.
HEALED_S = 1_035.0
# So often a fault strikes in the moment in which the lease or the voters change.
STRIKES = (0.0, 0.2, 0.5)
# How often a log may go that is the last copy of something.
LAST_COPIES = 0.03


class Faults:
    """Draws them, one after the other; each ends by itself, or with heal_all()."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._over = False
        self._pause_s = world.source.choice(PAUSES_S)
        self._backups: list[Mapping[str, bytes]] = []
        self._true: Mapping[str, bytes] | None = None
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self._crash),
            (2, self._stop),
            (5, self._freeze),
            (5, self._cut_off),
            (5, self._unlink),
            (3, self._isolate),
            (3, self._coordinator_down),
            (4, self._late),
            (3, self._stale),
            (2, self._pause),
            (2, self._end_session),
            (1, self._restore),
            (1, self._wipe),
            (2, self._empty),
            (1, self._role),
            (3, self._switch),
        ]
        self._kinds = [(weight * world.source.choice(WEIGHTS), kind) for weight, kind in self._kinds]
        self._kinds.append((1, self._crash))
        self.strikes = world.source.choice(STRIKES)
        """How often a fault strikes in the moment in which the lease or the voters change."""

    def begin(self) -> None:
        if self._over:
            return
        if self._true is None:
            self._backups = [*self._backups[-9:], self._world.server.backup()]
            self._one()
        self._after(self._world.draw(0.1, 2 * self._pause_s), self.begin)

    def _one(self) -> None:
        if self._over or self._true is not None:
            return
        weights = [weight for weight, _ in self._kinds]
        ((_, kind),) = self._world.source.choices(self._kinds, weights)
        self._world.count[f"times {kind.__name__.strip('_')}"] += 1
        self._world.note(kind.__name__)
        kind()

    def strike(self) -> None:
        """The lease or the voters have changed just now."""
        if self._world.source.random() < self.strikes:
            self._after(self._world.draw(0.0, 0.4), self._one)

    def heal_all(self) -> None:
        world = self._world
        world.note("HEAL")
        self._over = True
        world.coordinator_up, world.late = True, 0.0
        world.cut_off.clear()
        world.blocked.clear()
        world.stale.clear()
        self._come_back()
        self._resume()
        for node in world.nodes:
            node.frozen_until_s = -math.inf
            node.boot_again()

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._world.clock.after(delay_s, call)

    def _any(self) -> Node:
        """One of them, often the master."""
        masters = [one for one in self._world.nodes if one.up and one.opened >= 0]
        if masters and self._world.source.random() < 0.5:
            return self._world.source.choice(masters)
        return self._world.source.choice(self._world.nodes)

    def _span(self) -> float:
        return self._world.source.choice((0.3, 2.0, 5.0, 9.0)) * self._world.draw(0.6, 1.4)

    # -- brokers ------------------------------------------------------------------------------------

    def _crash(self) -> None:
        node = self._any()
        node.crash()
        self._boot_later(node)

    def _boot_later(self, node: Node) -> None:
        self._after(self._span(), node.boot_again)

    def _stop(self) -> None:
        node = self._any()
        node.stop()
        self._boot_later(node)

    def _freeze(self) -> None:
        node = self._any()
        node.frozen_until_s = self._world.clock.now_s + self._span()

    def _wipe(self) -> None:
        """A machine is lost for good, and another one takes its place."""
        node = self._any()
        if self._world.mode.brokers < 3 or not self._may_lose(node):
            return
        node.crash()
        node.wipe()
        self._boot_later(node)

    def _empty(self) -> None:
        """The log of a broker that is no master is gone, and it still votes."""
        node = self._any()
        if (node.opened >= 0 and node.up) or not self._may_lose(node):
            return
        node.crash()
        node.empty()
        self._boot_later(node)

    def _may_lose(self, node: Node) -> bool:
        """Whether the others could do without its log.  Mostly: if they cannot, the seed may wait for an operator."""
        now = decode(self._world.server.read())
        return not why_nobody(self._world, now, node) or self._world.source.random() < LAST_COPIES

    def _role(self) -> None:
        """Operators change brokerRole or inSyncReplicas of all brokers."""
        self._world.needed = self._world.source.randrange(self._world.mode.brokers)

    def _switch(self) -> None:
        """An operator asks for a switchover or a failover, to anybody, at once or for later."""
        server, source = self._world.server, self._world.source
        now = decode(server.read())
        if now.voters.ids and now.request is None:
            self._world.committing = self._world.nodes[0]
            kind = SWITCHOVER if now.master is not None else FAILOVER
            later_s = source.uniform(0.0, LATER_S) if source.random() < LATER else 0.0
            not_before_ms = int((self._world.clock.now_s + later_s) * 1000)
            request = MasterRequest(
                source.choice(sorted(now.voters.ids)), kind=kind, not_before_ms=not_before_ms
            )
            server.commit(Transaction(now.expecting(REQUEST), {REQUEST: encode(request)}), 0)

    # -- links --------------------------------------------------------------------------------------

    def _unlink(self) -> None:
        one, other = self._world.source.sample(self._world.nodes, 2)
        pair = frozenset({one.name, other.name})
        self._world.blocked.add(pair)
        self._after(self._span(), lambda: self._world.blocked.discard(pair))

    def _cut_off(self) -> None:
        name = self._any().name
        self._world.cut_off.add(name)
        self._after(self._span(), lambda: self._world.cut_off.discard(name))

    def _isolate(self) -> None:
        """A broker reaches nobody."""
        node = self._any()
        pairs = {frozenset({node.name, one.name}) for one in self._world.nodes if one is not node}
        self._world.cut_off.add(node.name)
        self._world.blocked.update(pairs)

        def heal() -> None:
            self._world.cut_off.discard(node.name)
            self._world.blocked.difference_update(pairs)

        self._after(self._span(), heal)

    # -- the coordinator ----------------------------------------------------------------------------

    def _coordinator_down(self) -> None:
        self._world.coordinator_up = False

        def back() -> None:
            self._world.coordinator_up = True

        self._after(self._span() * 2, back)

    def _late(self) -> None:
        self._world.late = self._world.source.choice((0.1, 0.3, 0.6))

        def heal() -> None:
            self._world.late = 0.0

        self._after(self._span(), heal)

    def _stale(self) -> None:
        """A server of the coordinator's lags, and answers one broker's reads."""
        name = self._any().name
        self._world.stale[name] = self._world.server.read()
        self._after(self._span(), lambda: self._world.stale.pop(name, None) and None)

    def _end_session(self) -> None:
        """The coordinator ends a session before its time.  What an ASYNC_MASTER promises stands on that it does not."""
        if self._may_be_async:
            return
        sessions = sorted(self._world.server.sessions)
        if sessions:
            self._world.ended_early = True
            self._world.server.end(self._world.source.choice(sessions))

    @property
    def _may_be_async(self) -> bool:
        """Whether somebody answers OK without acks, or will: by the brokers' files, by the voters, or by those that a
        master has counted by since it reached the coordinator last.
        """
        world = self._world
        masters = [one for one in world.nodes if one.up and one.opened >= 0]
        counts = [one.counts.needed for one in masters if one.counts is not None]
        return 0 in {world.mode.needed, world.needed, decode(world.server.read()).voters.needed, *counts}

    def _pause(self) -> None:
        self.set_paused(True)
        self._after(self._span() * 2, self._resume)

    def _resume(self) -> None:
        self.set_paused(False)

    def set_paused(self, paused: bool) -> None:
        server = self._world.server
        now = decode(server.read())
        if now.settings.paused != paused:
            self._world.committing = self._world.nodes[0]
            settings = encode(replace(now.settings, paused=paused))
            server.commit(Transaction(now.expecting(SETTINGS), {SETTINGS: settings}), 0)

    def _restore(self) -> None:
        """An operator restores a backup while all brokers that are there know what came after it."""
        world = self._world
        if not self._backups:
            return
        epoch = decode(world.server.read()).epoch
        backup = self._world.source.choice(self._backups)
        is_older = decode_epoch(backup) < epoch
        if not is_older or any(not one.up or one.joined < epoch or one.frozen for one in world.nodes):
            return
        span_s = self._span()
        if self._may_be_async:
            # Sessions end with it, and an ASYNC_MASTER stands on that its lease does not end before its time.
            span_s = max(span_s, LEASE_OVER_S)
            if world.clock.now_s + span_s > HEALED_S:
                return
        self._true = world.server.backup()
        world.restored = True
        world.ended_early = True
        world.server.restore(backup)
        self._after(span_s, self._come_back)

    def _come_back(self) -> None:
        """The right keys are there again."""
        if self._true is not None:
            self._world.server.restore(self._true)
            self._true = None
            self._world.restored = False


def decode_epoch(backup: Mapping[str, bytes]) -> int:
    return int(backup.get("epoch", b"-1"))
