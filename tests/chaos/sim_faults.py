"""What goes wrong in a simulation, when and for how long: drawn from the seed.

links      a connection cut at a byte, a link gone in one or both directions, a node cut off, a slow link
nodes      killed, killed with its page cache, all of them at once, frozen, replaced by an empty machine
disks      one flush that fails, no space for new files
stores     a volume put back from an older copy, lineage and all; a log's disk that is not mounted; a slave that begins
           with a copy of its master's store
clocks     a jump of seconds, hours, a year
roles      a failover after a death, a switchover; a fault just before a step of one; a replica that is down is
           forgotten, at the master or at slaves alone, and comes back
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.chaos import history
from tests.chaos.sim_clients import Operator

if TYPE_CHECKING:
    from tests.chaos.sim_node import Node, Snapshot
    from tests.chaos.sim_world import World

# Kinds of faults, and how often each is drawn in comparison.
WEIGHTS = {
    "cut connection": 6,
    "link gone": 4,
    "link gone one way": 3,
    "node cut off": 3,
    "slow link": 2,
    "crash": 5,
    "power cut": 5,
    "power cut of all": 1,
    "frozen": 2,
    "flush fails": 2,
    "disk full": 2,
    "clock jump": 2,
    "failover": 4,
    "switchover": 3,
    "step of a role change": 3,
    "master and a slave apart": 3,
    "slave paused": 2,
    "restarts in doubt": 2,
    "slave replaced": 1,
    "replica forgotten": 2,
    "replica forgotten without a master": 2,
    "store put back": 2,
    "log not mounted": 2,
    "store of a copy": 1,
}
JUMPS_MS = (-365 * 86_400_000, -3_600_000, -5_000, 700, 5_000, 3_600_000, 365 * 86_400_000)


class Faults:
    """Draws faults and heals them; `count` of each kind that was there."""

    def __init__(self, world: World, operator: Operator) -> None:
        self.world = world
        self.operator = operator
        self.count: dict[str, int] = {}
        self.stopped = False
        self._number = 0
        self._open: dict[int, Callable[[], None]] = {}

    def begin(self, mean_pause_s: float) -> None:
        self._mean_pause_s = mean_pause_s
        self.world.later(self.world.source.uniform(0.5, 2.0), self._next)

    def _next(self) -> None:
        if self.stopped:
            return
        what = self.world.source.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        begin: Callable[[str], None] = getattr(self, "_" + what.replace(" ", "_"))
        begin(what)
        self.world.later(self.world.source.expovariate(1.0 / self._mean_pause_s), self._next)

    def heal_all(self) -> None:
        """No further fault, and none that is left."""
        self.stopped = True
        self.world.strikes.clear()
        self.world.network.heal()
        for number in list(self._open):
            self._healed(number)

    def _fault(self, what: str, where: str, seconds: float, heal: Callable[[], None]) -> None:
        self._number += 1
        number = self._number
        self.count[what] = self.count.get(what, 0) + 1
        self._open[number] = heal
        self.world.put(history.Faulted(self.world.now_s, number, what, where))
        self.world.note("FAULT {} {} for {:.3f} s", what, where, seconds)
        self.world.later(seconds, self._healed, number)

    def _healed(self, number: int) -> None:
        heal = self._open.pop(number, None)
        if heal is not None:
            self.world.note("fault {} heals", number)
            heal()
            self.world.put(history.Healed(self.world.now_s, number))

    def _some_node(self) -> Node:
        return self.world.source.choice(list(self.world.nodes.values()))

    def _seconds(self) -> float:
        return self.world.source.choice((0.05, 0.3, 1.0, 2.0, 6.0)) * self.world.source.uniform(0.5, 1.5)

    # -- links --------------------------------------------------------------------------------------

    def _cut_connection(self, what: str) -> None:
        connections = [one for one in self.world.network.connections if one.is_open]
        if not connections:
            return
        connection = self.world.source.choice(connections)
        sender = self.world.source.choice((connection.near, connection.far))
        size = self.world.source.choice((0, 1, 5, 8, 11, 12, 13, 100, 900, 5000))
        connection.cut_after(sender, size)
        self._fault(what, f"{sender} after {size}", 1.0, lambda: None)

    def _block(self, what: str, where: str, pairs: list[tuple[str, str]]) -> None:
        network = self.world.network
        for sender, receiver in pairs:
            network.block(sender, receiver)

        def heal() -> None:
            for sender, receiver in pairs:
                network.unblock(sender, receiver)

        self._fault(what, where, self._seconds(), heal)

    def _pair(self) -> tuple[str, str]:
        one, other = self.world.source.sample([*self.world.nodes, "hub"], 2)
        return one, other

    def _link_gone(self, what: str) -> None:
        one, other = self._pair()
        self._block(what, f"{one} {other}", [(one, other), (other, one)])

    def _link_gone_one_way(self, what: str) -> None:
        one, other = self._pair()
        self._block(what, f"{one} to {other}", [(one, other)])

    def _node_cut_off(self, what: str) -> None:
        node = self._some_node()
        with_clients = self.world.source.random() < 0.4  # they are on its side, and go on sending
        self._block(what, node.name, self._around(node, () if with_clients else self.world.clients))

    def _slow_link(self, what: str) -> None:
        one, other = self.world.source.sample(list(self.world.nodes), 2)
        link = frozenset((one, other))
        slow = self.world.network.slow
        slow[link] = self.world.source.choice((0.02, 0.1, 0.5))
        self._fault(what, f"{one} {other}", self._seconds(), lambda: slow.pop(link, None) and None)

    # -- nodes --------------------------------------------------------------------------------------

    def _restart(self, node: Node) -> Callable[[], None]:
        return lambda: self.world.start_again(node)

    def _crash(self, what: str) -> None:
        node = self._some_node()
        if node.up:
            node.crash()
            self._fault(what, node.name, self._seconds(), self._restart(node))

    def _power_cut(self, what: str) -> None:
        node = self._some_node()
        if node.up:
            node.power_cut()
            self._fault(what, node.name, self._seconds(), self._restart(node))

    def _power_cut_of_all(self, what: str) -> None:
        nodes = [node for node in self.world.nodes.values() if node.up]
        for node in nodes:
            node.power_cut()
        for node in nodes:
            self._fault(what, node.name, self._seconds(), self._restart(node))

    def _frozen(self, what: str) -> None:
        node = self._some_node()
        if node.up:
            seconds = self._seconds()
            node.frozen_until_s = max(node.frozen_until_s, self.world.clock.now_s + seconds)
            self._fault(what, node.name, seconds, lambda: None)

    def _slave_replaced(self, what: str) -> None:
        slaves = [one for one in self.world.nodes.values() if one.up and one.role.is_slave]
        if slaves:
            node = self.world.source.choice(slaves)
            node.wipe()
            self._fault(what, node.name, self._seconds(), self._restart(node))

    # -- what operators and container platforms do to stores ------------------------------------------

    def _store_put_back(self, what: str) -> None:
        node = self._some_node()
        if node.up:
            self.world.later(self.world.source.uniform(0.3, 4.0), self._put_back, what, node, node.snapshot())

    def _put_back(self, what: str, node: Node, copy: Snapshot) -> None:
        if node.up and not self.stopped and copy.root == node.root:
            node.crash()
            node.put_back(copy)
            self._fault(what, node.name, self._seconds(), self._restart(node))

    def _log_not_mounted(self, what: str) -> None:
        node = self._some_node()
        if node.up:
            self.world.source.choice((node.stop_cleanly, node.crash))()
            node.unmount_log()
            self._fault(what, node.name, self._seconds(), self._restart(node))

    def _store_of_a_copy(self, what: str) -> None:
        """While its master runs, as the pages say: then the copy gets an id of its own."""
        world = self.world
        master = world.nodes.get(world.registered)
        slaves = [
            one
            for one in world.nodes.values()
            if one is not master
            and one.up
            and one.role.is_slave
            and world.network.talk(one.name, world.registered)
        ]
        if master is not None and master.awake and not master.role.is_slave and slaves:
            node = world.source.choice(slaves)
            node.become_copy(master.snapshot())
            self._fault(what, node.name, 1.0, lambda: None)
            world.start_again(node)

    # -- disks and clocks ---------------------------------------------------------------------------

    def _flush_fails(self, what: str) -> None:
        node = self._some_node()
        after = self.world.source.choice((0, 0, 1, 5))
        node.disk.fail("fdatasync", errno.EIO, after=after, where="commitlog")
        self._fault(what, node.name, 3.0, node.disk.heal)

    def _disk_full(self, what: str) -> None:
        self._disk_full_of(what, self._some_node())

    def _disk_full_of(self, what: str, node: Node) -> None:
        taken, node.disk.free_bytes = node.disk.free_bytes, 0
        disk = node.disk

        def heal() -> None:
            disk.free_bytes += taken

        self._fault(what, node.name, self._seconds(), heal)

    def _clock_jump(self, what: str) -> None:
        node = self._some_node()
        jump_ms = self.world.source.choice(JUMPS_MS)
        node.skew_ms += jump_ms
        self._fault(what, f"{node.name} by {jump_ms} ms", 1.0, lambda: None)

    # -- roles --------------------------------------------------------------------------------------

    def _failover(self, what: str) -> None:
        """The master dies, and after a while somebody makes another one, or waits for it."""
        world = self.world
        master = world.nodes.get(world.registered)
        if master is None:
            return
        if master.up and world.source.random() < 0.7:
            kill = world.source.choice((master.crash, master.power_cut))
            kill()
        elif master.up:
            self._block("node cut off", master.name, self._around(master, self.world.clients))
        self._fault(what, master.name, world.source.uniform(2.0, 10.0), self._restart(master))
        world.later(world.source.uniform(0.3, 3.0), self._fail_over, master)

    def _step_of_a_role_change(self, what: str) -> None:
        """The next step of a change of role: its disk fails there, its process dies, or it is cut off."""
        world = self.world

        def disk_full(node: Node) -> None:
            self._disk_full_of(what, node)

        def killed(node: Node) -> None:
            node.crash()
            self._fault(what, f"{node.name} killed", self._seconds(), self._restart(node))

        def power_cut(node: Node) -> None:
            node.power_cut()
            self._fault(what, f"{node.name} power cut", self._seconds(), self._restart(node))

        def cut_off(node: Node) -> None:
            self._block(what, node.name, self._around(node, ()))

        if len(world.strikes) < 3:
            world.strikes.append(world.source.choice((disk_full, killed, power_cut, cut_off)))
            world.source.choice(
                (lambda: self._failover("failover"), lambda: self._switchover("switchover"))
            )()

    def _master_and_a_slave_apart(self, what: str) -> None:
        """The operator and the other slaves reach the master no more; one slave reaches both sides, or the
        master's only.  Clients are on the master's side.  Somebody makes another one the master.
        """
        world = self.world
        master = world.nodes.get(world.registered)
        slaves = [one for one in world.nodes.values() if one is not master]
        if master is None or not master.up or len(slaves) < 2:
            return
        near = world.source.choice(slaves)
        far = ["hub", *(one.name for one in slaves if one is not near)]
        apart = [master.name] if world.source.random() < 0.7 else [master.name, near.name]
        pairs = [(one, other) for one in apart for other in far]
        self._block(what, f"{master} with {near}", [*pairs, *((other, one) for one, other in pairs)])
        world.later(world.source.uniform(0.1, 1.0), self._fail_over, master)

    def _slave_paused(self, what: str) -> None:
        """One of the slaves stands still while the others go on, long enough for a change of roles."""
        slaves = [one for one in self.world.nodes.values() if one.up and one.role.is_slave]
        if slaves:
            node, seconds = self.world.source.choice(slaves), self.world.source.uniform(2.0, 6.0)
            node.frozen_until_s = max(node.frozen_until_s, self.world.clock.now_s + seconds)
            self._fault(what, node.name, seconds, lambda: None)

    def _restarts_in_doubt(self, what: str) -> None:
        """A change of roles is asked for, and whoever is in the middle of it a moment later is killed."""
        self.operator.switch_over()
        self.world.later(self.world.source.uniform(0.01, 0.3), self._kill_who_changes, what)

    def _kill_who_changes(self, what: str) -> None:
        for node in self.world.nodes.values():
            if not self.stopped and node.up and (node.roles.changing or node.roles.state.held):
                node.crash()
                self._fault(what, node.name, self._seconds(), self._restart(node))

    def _around(self, node: Node, clients: Sequence[str]) -> list[tuple[str, str]]:
        others = [name for name in (*self.world.nodes, "hub", *clients) if name != node.name]
        return [(node.name, one) for one in others] + [(one, node.name) for one in others]

    def _fail_over(self, master: Node) -> None:
        if self.stopped or (master.awake and not self.world.isolated(master)):
            return
        self.operator.fail_over(may_force=self.world.source.random() < 0.3)

    def _switchover(self, what: str) -> None:
        self._fault(what, self.world.registered, 1.0, lambda: None)
        self.operator.switch_over()

    def _replica_forgotten(self, what: str) -> None:
        """A slave dies, an operator gives it up, and it comes back all the same."""
        slaves = [one for one in self.world.nodes.values() if one.up and one.role.is_slave]
        if slaves:
            self._forget(what, self.world.source.choice(slaves), force=False)

    def _replica_forgotten_without_a_master(self, what: str) -> None:
        """The master does not answer, and a slave dies: that one is given up at the slaves that are left, of which
        one is the master then."""
        world = self.world
        master = world.nodes.get(world.registered)
        slaves = [one for one in world.nodes.values() if one is not master and one.up and one.role.is_slave]
        if master is None or len(slaves) < 2:
            return
        if master.up:
            world.source.choice((master.crash, master.power_cut))()
            self._fault("crash", master.name, world.source.uniform(3.0, 10.0), self._restart(master))
        self._forget(what, world.source.choice(slaves), force=True)
        world.later(world.source.uniform(1.0, 3.0), self._fail_over, master)

    def _forget(self, what: str, gone: Node, *, force: bool) -> None:
        kill = self.world.source.choice((gone.crash, gone.crash, gone.power_cut))
        kill()
        self._fault(what, gone.name, self.world.source.uniform(1.5, 8.0), self._restart(gone))
        self.world.later(self.world.source.uniform(0.2, 1.0), self._forgotten, gone, force)

    def _forgotten(self, gone: Node, force: bool) -> None:
        if not self.stopped and not gone.up:
            self.operator.forget(gone, force=force)
