"""Faults of machines and their disks: the power goes, of one or of all at once, or the disk is full.

    power cut   some pages written ── shutdown of the file system ── the process lives on for a moment, or not
                ── SIGKILL ── mounted again ── another boot id ── started

A broker sees by the machine's boot id that its unflushed pages may be lost.  Here the machine stays up, so
its file says another one before it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from haservice.replication.lineage.file import decode_state, encode_state
from tests.chaos.history import OK, Answered, Consumed, Invoked, Voided
from tests.chaos.power_disk import JOURNAL_LOST, JOURNAL_OUT, Disk
from tests.chaos.proc_clients import History
from tests.chaos.proc_cluster import Cluster, Node, NotSoInTime, all_still
from tests.chaos.proc_faults import Fault, Scene, Span, a_slave, forget_reports, promote_furthest

FLUSHED_S = 10.0
FULL_S = 20.0
# A moment in which a broker has a dead disk.
DYING_S = 0.1


class Machines:
    """The disks of a cluster's brokers, and what happens to them."""

    def __init__(self, disks: Sequence[Disk]) -> None:
        self.disks = disks

    def give(self, cluster: Cluster) -> None:
        """Before its start: each broker has its store on its own disk."""
        for node, disk in zip(cluster.nodes, self.disks, strict=True):
            node.root = disk.store

    @property
    def faults(self) -> dict[str, Fault]:
        return {
            "power cut of master": self.cut_master,
            "power cut of slave": self.cut_slave,
            "power cut of all": self.cut_all,
            "power cut and failover": self.cut_and_failover,
            "disk of master full": self.master_full,
            "disk of slave full": self.slave_full,
        }

    async def cut_master(self, scene: Scene) -> None:
        await self.cut(scene, "power cut of master", [await scene.cluster.the_master()])

    async def cut_slave(self, scene: Scene) -> None:
        await self.cut(scene, "power cut of slave", [await a_slave(scene)])

    async def cut_all(self, scene: Scene) -> None:
        if scene.cluster.shape.flush != "SYNC_FLUSH":
            await _flushed_below(scene)
        await self.cut(scene, "power cut of all", scene.cluster.nodes)

    async def cut_and_failover(self, scene: Scene) -> None:
        """The slave takes over before the master's machine is back."""
        master = await scene.cluster.the_master()
        span = Span(scene, "power cut and failover", master.name)
        await self._off(scene, [master])
        await promote_furthest(scene, master, span)
        await self._mount([master])
        await self._launch(scene, [master])
        span.healed()

    async def cut(self, scene: Scene, what: str, nodes: Sequence[Node]) -> None:
        span = Span(scene, what, " ".join(node.name for node in nodes))
        await self._off(scene, nodes)
        await self.while_off(scene, nodes)
        await self._mount(nodes)
        if len(nodes) == len(scene.cluster.nodes) and scene.cluster.shape.flush != "SYNC_FLUSH":
            void_all(scene.history, what)  # as late as can be: an answer may have been on its way
        await self._launch(scene, nodes)
        span.healed()

    async def while_off(self, scene: Scene, nodes: Sequence[Node]) -> None:
        """Those of `nodes` have no power."""

    async def _off(self, scene: Scene, nodes: Sequence[Node]) -> None:
        rng = scene.rng
        disks = [self.disks[node.number] for node in nodes]
        if rng.random() < 0.6:
            for disk in disks:
                await asyncio.to_thread(disk.write_some_pages, rng)
        async with all_still(nodes):
            for disk in rng.sample(disks, len(disks)):
                disk.shut_down(rng.choice([JOURNAL_LOST, JOURNAL_LOST, JOURNAL_OUT]))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(0, DYING_S))
        for node in nodes:
            node.kill()
        # Answers that were on their way are read.
        await scene.history.pulls_over()
        # Read while no slave was in sync, and flushed nowhere.
        scene.history.void("power cut")

    async def _mount(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            await asyncio.to_thread(self.disks[node.number].power_on)
            machine_booted(node)

    async def _launch(self, scene: Scene, nodes: Sequence[Node]) -> None:
        for node in scene.rng.sample(list(nodes), len(nodes)):
            forget_reports(scene.cluster, node)
            node.launch(scene.cluster.shape)
        for node in nodes:
            await scene.cluster.booted(node)

    async def master_full(self, scene: Scene) -> None:
        await self._full(scene, "disk of master full", await scene.cluster.the_master())

    async def slave_full(self, scene: Scene) -> None:
        await self._full(scene, "disk of slave full", await a_slave(scene))

    async def _full(self, scene: Scene, what: str, node: Node) -> None:
        """Until a send is answered otherwise than OK.  Raises NotSoInTime if the broker dies of it."""
        span = Span(scene, what, node.name)
        disk, begin = self.disks[node.number], len(scene.history.events)
        await asyncio.to_thread(disk.fill)

        async def refused() -> bool:
            some = scene.history.events[begin:]
            return any(isinstance(one, Answered) and one.status != OK for one in some)

        try:
            await scene.cluster.until(refused, f"sends are not OK with the {what}", FULL_S)
            await asyncio.sleep(scene.seconds)
        finally:
            disk.make_room()
        if not node.running:
            raise NotSoInTime(f"{node.name} ended when its disk was full:\n{node.tail()}")
        span.healed()


async def _flushed_below(scene: Scene) -> None:
    """What earlier rounds have acknowledged is on every disk."""

    async def flushed() -> bool:
        said = await scene.cluster.lineages()
        return all(body is not None and body.flushed >= scene.history.base.offset for body in said.values())

    await scene.cluster.until(flushed, "the log of earlier rounds is flushed", FLUSHED_S)


def machine_booted(node: Node) -> None:
    """The broker's file is one of another boot."""
    path = node.root / "lineage" / "state.json"
    if path.exists():
        path.write_bytes(encode_state(replace(decode_state(path.read_bytes()), boot_id="another boot")))


def void_all(history: History, why: str) -> None:
    """With ASYNC_FLUSH, and all machines down at once, no OK of this round stands."""
    sends = {one.send: one for one in history.events if isinstance(one, Invoked)}
    keys, places = set(), set()
    for event in history.events:
        if isinstance(event, Answered) and event.queue_offset >= 0:
            invoked = sends[event.send]
            keys.add(invoked.key)
            places.add((invoked.topic, invoked.queue, event.queue_offset))
        elif isinstance(event, Consumed):
            keys.add(event.key)
            places.add((event.topic, event.queue, event.queue_offset))
    history.add(Voided(history.now_s, tuple(keys), why, tuple(places)))
