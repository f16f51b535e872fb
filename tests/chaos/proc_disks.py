"""Faults of a broker's disk: it becomes read-only, is full, or its flushes fail.

    disk read-only   ext4 as after an error of its journal: every write is refused, and what was not flushed
                     is lost when it is mounted again, for which the broker has to end; its machine stays up
    disk full        no byte is left, until there is room again
    disk hangs       whoever writes waits, until it goes on
    flushes fail     fsync and fdatasync give EIO for a while, of all files or of some

An orderly remount (mount -o remount,ro) is refused by Linux while a file is open for writing, and so is that
of a bind mount; ext4 itself does it after an error, and mount -o remount,abort is such an error.
"""

from __future__ import annotations

import asyncio
import contextlib

from tests.chaos.history import OK, Answered
from tests.chaos.power_disk import Disk
from tests.chaos.proc_cluster import Cluster, Node, NotSoInTime, all_still
from tests.chaos.proc_faults import Fault, Scene, Span, a_slave, promote_furthest

BROKEN_S = 20.0
HANG_FACTOR = 3
# Where a store's flushes fail: "" is everywhere.
FLUSHED = ("", "/{log}/", "/{log}/", "/consumequeue/", "/index/", "/config/", "/lineage/")


def disk_of(cluster: Cluster, node: Node) -> Disk:
    return cluster.disks[node.number]


async def _until_refused(scene: Scene, what: str) -> None:
    """Until a send from now on is answered otherwise than OK.  Raises NotSoInTime."""
    begin = len(scene.history.events)

    async def refused() -> bool:
        some = scene.history.events[begin:]
        return any(isinstance(one, Answered) and one.status != OK for one in some)

    await scene.cluster.until(refused, f"sends are not OK with {what}", BROKEN_S)


async def _read_only(scene: Scene, node: Node, what: str) -> None:
    """With another slave sends may go on; a master's death is followed by a failover, at times."""
    cluster, rng = scene.cluster, scene.rng
    span = Span(scene, what, node.name)
    was_master = node is await cluster.master()
    async with all_still([node]):
        await asyncio.to_thread(disk_of(cluster, node).turn_read_only)
    if was_master:
        await _until_refused(scene, what)
    await asyncio.sleep(scene.seconds)
    if node.running and rng.random() < 0.5:
        with contextlib.suppress(Exception):  # what it may say at its end, it said to its log
            await cluster.stop(node)
    node.kill()
    await scene.history.pulls_over()
    # What was read while no slave was in sync is on no disk.
    scene.history.void("disk read-only")
    if was_master and rng.random() < 0.5:
        await promote_furthest(scene, node, span)
    await asyncio.to_thread(disk_of(cluster, node).power_on)
    for proxy in cluster.proxies.values():
        proxy.acknowledged = -1
    await cluster.run(node)
    span.healed()


async def master_read_only(scene: Scene) -> None:
    await _read_only(scene, await scene.cluster.the_master(), "disk of master read-only")


async def slave_read_only(scene: Scene) -> None:
    await _read_only(scene, await a_slave(scene), "disk of slave read-only")


async def _full(scene: Scene, node: Node, what: str) -> None:
    span = Span(scene, what, node.name)
    disk = disk_of(scene.cluster, node)
    await asyncio.to_thread(disk.fill)
    try:
        if len(scene.cluster.nodes) == 2 or node is await scene.cluster.master():
            await _until_refused(scene, what)
        await asyncio.sleep(scene.seconds)
    finally:
        disk.make_room()
    if not node.running:
        raise NotSoInTime(f"{node.name} ended when its disk was full:\n{node.tail()}")
    span.healed()


async def master_full(scene: Scene) -> None:
    await _full(scene, await scene.cluster.the_master(), "disk of master full")


async def slave_full(scene: Scene) -> None:
    await _full(scene, await a_slave(scene), "disk of slave full")


async def _hangs(scene: Scene, node: Node, what: str) -> None:
    span = Span(scene, what, node.name)
    disk = disk_of(scene.cluster, node)
    await asyncio.to_thread(disk.hang)
    try:
        await asyncio.sleep(HANG_FACTOR * scene.seconds)
    finally:
        disk.go_on()
    span.healed()


async def master_hangs(scene: Scene) -> None:
    await _hangs(scene, await scene.cluster.the_master(), "disk of master hangs")


async def slave_hangs(scene: Scene) -> None:
    await _hangs(scene, await a_slave(scene), "disk of slave hangs")


async def _flushes_fail(scene: Scene, node: Node, what: str) -> None:
    """Once the log could not be flushed the broker takes nothing more of it for true: it starts anew."""
    cluster, rng = scene.cluster, scene.rng
    assert node.shim is not None
    words = rng.choice(FLUSHED).format(log=node.log_directory)
    # What a SYNC_FLUSH broker's OK stands on.
    is_log = words in ("", f"/{node.log_directory}/")
    span = Span(scene, what, f"{node.name} {words}".strip())
    failed = node.shim.failed
    master = await cluster.the_master()
    node.shim.fail(words)
    if is_log and cluster.shape.flush == "SYNC_FLUSH":
        body = await cluster.lineage(master)
        if body is not None:
            scene.history.unflushed[node.name] = body.log_end
        if node is master or len(cluster.nodes) == 2:
            await _until_refused(scene, what)
    await asyncio.sleep(scene.seconds)
    scene.history.unflushed.pop(node.name, None)
    node.shim.heal()
    if node.shim.failed > failed:
        node.kill()
        await cluster.run(node)
    span.healed()


async def master_flushes_fail(scene: Scene) -> None:
    await _flushes_fail(scene, await scene.cluster.the_master(), "flushes of master fail")


async def slave_flushes_fail(scene: Scene) -> None:
    await _flushes_fail(scene, await a_slave(scene), "flushes of slave fail")


DISK_FAULTS: dict[str, Fault] = {
    "disk of master read-only": master_read_only,
    "disk of slave read-only": slave_read_only,
    "disk of master full": master_full,
    "disk of slave full": slave_full,
    "disk of master hangs": master_hangs,
    "disk of slave hangs": slave_hangs,
}
FLUSH_FAULTS: dict[str, Fault] = {
    "flushes of master fail": master_flushes_fail,
    "flushes of slave fail": slave_flushes_fail,
}
