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
    from tests.chaos.failover_node import Copy, Node
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
        self._copies: list[Mapping[str, Copy]] = []
        """The brokers' stores at the moments of the backups."""
        self._is_put_back = False
        """Whether a broker may have forgotten a seal; then a session that ends early proves nothing."""
        self._calm_until_epoch = -1
        """No fault comes before an OK of a later epoch."""
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
            (2, self._put_back),
            (1, self._copy),
            (1, self._power),
            (1, self._older_voters),
            (1, self._restore_twice),
            (1, self._empty_coordinator),
            (2, self._full),
            (2, self._deny),
        ]
        self._kinds = [(weight * world.source.choice(WEIGHTS), kind) for weight, kind in self._kinds]
        self._kinds.append((1, self._crash))
        self.strikes = world.source.choice(STRIKES)
        """How often a fault strikes in the moment in which the lease or the voters change."""

    def begin(self) -> None:
        if self._over:
            return
        if self._true is None and not self._is_calm:
            self._backups = [*self._backups[-9:], self._world.server.backup()]
            self._copies = [*self._copies[-9:], {one.name: one.copy() for one in self._world.nodes}]
            self._one()
        self._after(self._world.draw(0.1, 2 * self._pause_s), self.begin)

    def _one(self) -> None:
        if self._over or self._true is not None or self._is_calm:
            return
        weights = [weight for weight, _ in self._kinds]
        ((_, kind),) = self._world.source.choices(self._kinds, weights)
        self._world.count[f"times {kind.__name__.strip('_')}"] += 1
        self._world.note(kind.__name__)
        kind()

    @property
    def _is_calm(self) -> bool:
        return self._world.last_ok_epoch <= self._calm_until_epoch

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
        world.denied.clear()
        world.full = False
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

    def _put_back(self) -> None:
        """The store of a broker is put back from an older copy; the coordinator has heard of what that lacks."""
        node = self._any()
        if self._world.ended_early or not self._copies or not self._may_lose(node):
            return
        node.crash()
        self._after(self._world.draw(0.3, 3.0), lambda: self._put_back_now(node))

    def _put_back_now(self, node: Node) -> None:
        copy = self._world.source.choice(self._copies)[node.name]
        if (
            not (self._over or node.up or self._world.ended_early)
            and copy.id == node.id
            and self._is_known(node, copy)
        ):
            self._is_put_back = True
            self._world.emptied.add(node.name)
            node.put_back(copy)
        self._boot_later(node)

    def _is_known(self, node: Node, copy: Copy) -> bool:
        """Whether the coordinator knows that this broker had more than the copy has.  It hears of it once a round: a
        copy that is younger than that is as good as the store.
        """
        now = decode(self._world.server.read())
        told = now.status.told.get(node.id) if now.status is not None else None
        return self._true is None and told is not None and told > copy.place

    def _copy(self) -> None:
        """A machine is lost for good, and begins anew with a copy of another one's store: a replica of its own."""
        node, other = self._any(), self._any()
        if node is other or self._world.mode.brokers < 3 or not self._may_lose(node):
            return
        node.crash()
        node.wipe()
        own = node.id
        node.put_back(other.copy())
        node.id = own
        if other.name in self._world.emptied:
            self._world.emptied.add(node.name)
        self._boot_later(node)

    def _power(self) -> None:
        """All machines go down.  The voter that has the most finds all of it again: what none of them has is gone,
        whoever else has it.
        """
        world, nodes = self._world, self._world.nodes
        ids = decode(world.server.read()).voters.ids
        hurt = world.emptied or not ids <= {one.id for one in nodes}
        if hurt and world.source.random() >= LAST_COPIES:
            return
        most = max([one for one in nodes if one.id in ids] or nodes, key=lambda one: one.place)
        for node in nodes:
            node.lose_power(0 if node is most else world.source.randrange(6))
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
        if self._may_be_async or self._is_put_back:
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
        if self._backups:
            self._restore_from(self._world.source.choice(self._backups))

    def _empty_coordinator(self) -> None:
        """All keys are gone while all brokers that are there know what was in them."""
        self._restore_from({})

    def _restore_from(self, backup: Mapping[str, bytes]) -> None:
        world = self._world
        epoch = decode(world.server.read()).epoch
        is_older = decode_epoch(backup) < epoch and not self._is_put_back
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

    def _older_voters(self) -> None:
        """An operator restores a backup of the present epoch, for good, while all brokers are connected.  No other
        fault comes before a master has begun an epoch after that.
        """
        if (at := self._moment()) is not None:
            self._world.server.restore(self._backups[at])

    def _restore_twice(self) -> None:
        """As above, and the store of a broker is put back to the same moment.  The others are unhurt."""
        at = self._moment()
        if at is None:
            return
        world = self._world
        node = world.source.choice(world.nodes)
        copy, unhurt = self._copies[at][node.name], [one for one in world.nodes if one is not node]
        if copy.id != node.id or max(one.place for one in unhurt) < node.place or not self._may_lose(node):
            return
        node.crash()
        node.put_back(copy)
        self._is_put_back = True
        world.emptied.add(node.name)
        world.server.restore(self._backups[at])
        node.boot()

    def _moment(self) -> int | None:
        """A backup of this epoch, while everybody is well; from now on it is calm."""
        world = self._world
        now = decode(world.server.read())
        hindered = world.blocked or world.cut_off or world.denied or world.stale or world.late or world.full
        is_well = (
            world.coordinator_up and not hindered and all(one.up and not one.frozen for one in world.nodes)
        )
        moments = [at for at, one in enumerate(self._backups) if decode_epoch(one) == now.epoch > 0]
        if not (is_well and moments) or any(one.joined < now.epoch for one in world.nodes):
            return None
        self._calm_until_epoch = now.epoch
        return world.source.choice(moments)

    def _full(self) -> None:
        """The coordinator takes no writes."""
        self._world.full = True

        def heal() -> None:
            self._world.full = False

        self._after(self._span(), heal)

    def _deny(self) -> None:
        """A broker's rights there are taken away."""
        name = self._any().name
        self._world.denied.add(name)
        self._after(self._span(), lambda: self._world.denied.discard(name))

    def _come_back(self) -> None:
        """The right keys are there again."""
        if self._true is not None:
            self._world.server.restore(self._true)
            self._true = None
            self._world.restored = False


def decode_epoch(backup: Mapping[str, bytes]) -> int:
    return int(backup.get("epoch", b"-1"))
