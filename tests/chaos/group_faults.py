"""Faults of a group whose log a majority agrees on: the brokers elect their master, and nobody commands a role.

    processes   one, a majority, all of them, or two masters one after the other killed; stopped, frozen
    links       packets lost one way, both ways, or in bursts; slow; a minority alone with a nameserver
    disks       full, hanging, flushes that fail
    clocks      that of the day jumps, and back
    power       of one, of a minority, of a majority, of all; back before others have elected a master, or after

Most of them are those of a pair.  With ASYNC_FLUSH a member that lost its power can have lost what it has
acknowledged.  So there the power comes back once the others, who still have all, have a master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.chaos.auto_faults import another
from tests.chaos.group_cluster import GroupCluster
from tests.chaos.power_faults import Machines
from tests.chaos.proc_cluster import Node
from tests.chaos.proc_disks import DISK_FAULTS, FLUSH_FAULTS, disk_of
from tests.chaos.proc_faults import PROCESS_FAULTS, Fault, Scene, Span, a_slave
from tests.chaos.proc_packets import HOST_FAULTS, ONE_WAY_FAULTS, hosts_of, isolate

JUMPS_S = (-86_400.0, -600.0, -3.0, -0.5, 0.5, 3.0, 600.0, 86_400.0)
MASTER_S = 30.0
FLUSHES_LATE_S = (0.0, 0.02, 0.1, 0.3)


def group_of(scene: Scene) -> GroupCluster:
    assert isinstance(scene.cluster, GroupCluster)
    return scene.cluster


async def _with_master(scene: Scene, slaves: int) -> list[Node]:
    """The master, and so many others."""
    master = await scene.cluster.the_master()
    return [master, *scene.rng.sample([node for node in scene.cluster.nodes if node is not master], slaves)]


async def _launch(scene: Scene, nodes: Sequence[Node]) -> None:
    """Together: one alone may wait for a majority."""
    for node in nodes:
        node.launch(scene.cluster.shape)
    for node in nodes:
        await scene.cluster.booted(node)


# -- processes ---------------------------------------------------------------------------------------


async def kill_master_until_another(scene: Scene) -> None:
    cluster, master = scene.cluster, await scene.cluster.the_master()
    span = Span(scene, "kill master, another one takes over", master.name)
    master.kill()
    await another(cluster, master)
    await cluster.run(master)
    span.healed()


async def kill_two_masters(scene: Scene) -> None:
    """One after the other; with three brokers the first one is back before."""
    cluster, first = scene.cluster, await scene.cluster.the_master()
    span = Span(scene, "kill master twice", first.name)
    first.kill()
    second = await another(cluster, first)
    if len(cluster.nodes) == 3:
        await cluster.run(first)
    second.kill()
    await asyncio.sleep(scene.seconds)
    await _launch(scene, [node for node in (first, second) if not node.running])
    span.healed()


async def kill_majority(scene: Scene) -> None:
    nodes = await _with_master(scene, group_of(scene).majority - 1)
    span = Span(scene, "kill majority", " ".join(node.name for node in nodes))
    for node in nodes:
        node.kill()
    await asyncio.sleep(scene.seconds)
    await _launch(scene, nodes)
    span.healed()


# -- links -------------------------------------------------------------------------------------------


async def minority_alone(scene: Scene) -> None:
    """It has a nameserver, and clients that ask that one; mostly the master is in it."""
    cluster, rng = group_of(scene), scene.rng
    count = len(cluster.nodes) - cluster.majority
    has_master = rng.random() < 0.7
    nodes = await _with_master(scene, count)
    inside = nodes[:-1] if has_master else nodes[1:]
    what = "minority with the master alone" if has_master else "minority of slaves alone"
    span = Span(scene, what, " ".join(node.name for node in inside))
    isolate(cluster, inside, cluster.namesrvs[1:])
    await asyncio.sleep(scene.seconds)
    hosts_of(cluster).heal()
    span.healed()


# -- disks -------------------------------------------------------------------------------------------


async def disks_of_majority_full(scene: Scene) -> None:
    """The master's is one of them."""
    nodes = await _with_master(scene, group_of(scene).majority - 1)
    span = Span(scene, "disk of majority full", " ".join(node.name for node in nodes))
    disks = [disk_of(scene.cluster, node) for node in nodes]
    try:
        for disk in disks:
            await asyncio.to_thread(disk.fill)
        await asyncio.sleep(scene.seconds)
    finally:
        for disk in disks:
            disk.make_room()
    span.healed()


# -- clocks ------------------------------------------------------------------------------------------


async def _clock_jumps(scene: Scene, node: Node, what: str) -> None:
    assert node.shim is not None
    seconds = scene.rng.choice(JUMPS_S)
    span = Span(scene, what, f"{node.name} {seconds:+g} s")
    node.shim.set_clock_ahead(seconds)
    await asyncio.sleep(scene.seconds)
    node.shim.set_clock_ahead(0.0)
    span.healed()


async def clock_of_master_jumps(scene: Scene) -> None:
    await _clock_jumps(scene, await scene.cluster.the_master(), "clock of master jumps")


async def clock_of_slave_jumps(scene: Scene) -> None:
    await _clock_jumps(scene, await a_slave(scene), "clock of slave jumps")


# -- power -------------------------------------------------------------------------------------------


class GroupMachines(Machines):
    """The machines of a group's brokers."""

    @property
    def faults(self) -> dict[str, Fault]:
        return {
            "power cut of master": self.cut_master,
            "power cut of slave": self.cut_slave,
            "power cut of minority": self.cut_minority,
            "power cut of majority": self.cut_majority,
            "power cut of all": self.cut_all,
        }

    async def cut_minority(self, scene: Scene) -> None:
        """The master and, of five, a slave."""
        count = len(scene.cluster.nodes) - group_of(scene).majority
        await self.cut(scene, "power cut of minority", await _with_master(scene, count - 1))

    async def cut_majority(self, scene: Scene) -> None:
        nodes = await _with_master(scene, group_of(scene).majority - 1)
        await self.cut(scene, "power cut of majority", nodes)

    async def cut(self, scene: Scene, what: str, nodes: Sequence[Node]) -> None:
        """Often while flushes take long, so that much is written that no disk has yet."""
        late_s = scene.rng.choice(FLUSHES_LATE_S)
        self._delay_flushes(scene, late_s)
        await asyncio.sleep(2 * late_s)
        await super().cut(scene, what, nodes)

    @staticmethod
    def _delay_flushes(scene: Scene, seconds: float) -> None:
        for node in scene.cluster.nodes:
            assert node.shim is not None
            node.shim.delay_flushes(seconds)

    async def while_off(self, scene: Scene, nodes: Sequence[Node]) -> None:
        self._delay_flushes(scene, 0.0)
        cluster = group_of(scene)
        can_elect = len(cluster.nodes) - len(nodes) >= cluster.majority
        is_sync = cluster.shape.flush == "SYNC_FLUSH"
        if can_elect and not (is_sync and scene.rng.random() < 0.5):
            await cluster.the_master(MASTER_S)  # those that are off say nothing


# Nothing is promised for those with ASYNC_FLUSH.
ONLY_SYNC = ("power cut of majority", "power cut of all")
POWER_FAULTS = ("power cut of master", "power cut of slave", "power cut of minority", *ONLY_SYNC)
# Each has its turn as often.
GROUP_FAULTS: dict[str, Fault] = {
    "kill master, another one takes over": kill_master_until_another,
    "kill master twice": kill_two_masters,
    "kill majority": kill_majority,
    **PROCESS_FAULTS,
    "minority alone": minority_alone,
    **HOST_FAULTS,
    **ONE_WAY_FAULTS,
    "clock of master jumps": clock_of_master_jumps,
    "clock of slave jumps": clock_of_slave_jumps,
    **{name: fault for name, fault in DISK_FAULTS.items() if "read-only" not in name},
    "disk of majority full": disks_of_majority_full,
    **FLUSH_FAULTS,
}
