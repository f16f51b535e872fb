"""Faults of a pair that fails over by itself: nobody commands a role, the brokers and their coordinator decide.

    master      killed and started again at once or later, frozen beyond its lease, stopped cleanly, full
    its links   to the coordinators, to the slaves, to the clients; one of them flaps
    coordinator its leader killed, its majority killed
    all         every broker killed, and one of them comes back before the others

Before a fault all is well: there is a master, and each slave is in sync with it.  Most faults last longer than
the lease, so that another broker has to become the master while they do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from haservice.errors import ProtocolError, RemotingError
from haservice.remoting.bodies.clients import HARuntimeInfo
from haservice.remoting.codes import RequestCode
from tests.chaos.auto_coordinators import COORDINATORS, AutoCluster
from tests.chaos.netns import HUB
from tests.chaos.proc_cluster import Cluster, Node
from tests.chaos.proc_disks import disk_of
from tests.chaos.proc_faults import Fault, Scene, Span
from tests.chaos.proc_packets import Way, hosts_of

TTL_S = 5
READY_S = 40.0
# On a busy machine a broker that has just started waits a lease and its start, then takes the next one.
TAKEN_S = 30.0
FLAP_S = (0.1, 1.2)


def cluster_of(scene: Scene) -> AutoCluster:
    assert isinstance(scene.cluster, AutoCluster)
    return scene.cluster


async def ready(cluster: AutoCluster) -> Node:
    """The master, once each slave is in sync with it, and up for a ttl: it takes no lease before that.

    Raises NotSoInTime.
    """
    found: list[Node] = []

    async def all_well() -> bool:
        if cluster.youngest_s() < TTL_S:
            return False
        bodies = [await cluster.lineage(node) for node in cluster.nodes]
        if len({-1 if body is None else body.epoch for body in bodies}) != 1 or bodies[0] is None:
            return False
        master = await cluster.master()
        if master is None:
            return False
        try:
            status = await cluster.ask(master.addr, RequestCode.GET_BROKER_HA_STATUS, HARuntimeInfo)
        except (RemotingError, ProtocolError):
            return False
        if sum(slave.in_sync for slave in status.ha_connection_info) < len(cluster.nodes) - 1:
            return False
        found.append(master)
        return True

    await cluster.until(all_well, "there is a master, and each slave is in sync", READY_S)
    return found[-1]


async def another(cluster: Cluster, old: Node) -> Node:
    """Who is the master after `old`.  Raises NotSoInTime."""
    found: list[Node] = []

    async def there() -> bool:
        node = await cluster.master()
        if node is not None and node is not old:
            found.append(node)
        return bool(found)

    await cluster.until(there, f"another broker than {old.name} is the master", TAKEN_S)
    return found[-1]


def _beyond_the_lease(scene: Scene) -> float:
    return scene.rng.uniform(1.2, 2.0) * TTL_S


# -- the master's process ----------------------------------------------------------------------------


async def kill_master(scene: Scene) -> None:
    cluster = cluster_of(scene)
    master = await ready(cluster)
    span = Span(scene, "kill master", master.name)
    master.kill()
    await another(cluster, master)
    await asyncio.sleep(scene.seconds)
    await cluster.run(master)
    span.healed()


async def kill_master_back_at_once(scene: Scene) -> None:
    """It comes back while the coordinator still takes it for the master."""
    cluster = cluster_of(scene)
    master = await ready(cluster)
    span = Span(scene, "kill master, back at once", master.name)
    master.kill()
    await cluster.run(master)
    await cluster.the_master()
    span.healed()


async def zombie_master(scene: Scene) -> None:
    """It sleeps until another one is the master, and wakes as one."""
    cluster = cluster_of(scene)
    master = await ready(cluster)
    span = Span(scene, "freeze master", master.name)
    master.freeze()
    await another(cluster, master)
    await asyncio.sleep(scene.seconds)
    master.thaw()
    span.healed()


async def short_zombie_master(scene: Scene) -> None:
    """It sleeps about as long as its lease; who is the master then is open."""
    cluster = cluster_of(scene)
    master = await ready(cluster)
    span = Span(scene, "freeze master, about a lease", master.name)
    master.freeze()
    await asyncio.sleep(scene.rng.uniform(0.7, 1.3) * TTL_S)
    master.thaw()
    span.healed()


async def stop_master(scene: Scene) -> None:
    """SIGTERM: it gives its lease back."""
    cluster = cluster_of(scene)
    master = await ready(cluster)
    span = Span(scene, "stop master", master.name)
    await cluster.stop(master)
    await another(cluster, master)
    await cluster.run(master)
    span.healed()


async def kill_all_one_back(scene: Scene) -> None:
    """One comes back, and becomes the master; then the others."""
    cluster = cluster_of(scene)
    await ready(cluster)
    span = Span(scene, "kill all, one back")
    for node in cluster.nodes:
        node.kill()
    await asyncio.sleep(scene.seconds)
    enough = 1 if len(cluster.nodes) == 2 else 2
    first = scene.rng.sample(cluster.nodes, len(cluster.nodes))
    for node in first[:enough]:
        await cluster.run(node)
    await cluster.the_master(TAKEN_S)
    for node in first[enough:]:
        await cluster.run(node)
    span.healed()


# -- the master's links ------------------------------------------------------------------------------


async def _lost(scene: Scene, what: str, others: Callable[[AutoCluster, Node], Iterable[int]]) -> None:
    """Both ways between the master and those hosts, for longer than its lease."""
    cluster = cluster_of(scene)
    hosts, master = hosts_of(cluster), await ready(cluster)
    ways: list[Way] = [way for other in others(cluster, master) for way in _both(master.number, other)]
    span = Span(scene, what, master.name)
    for source, target in ways:
        hosts.lose(source, target)
    await asyncio.sleep(_beyond_the_lease(scene))
    for source, target in ways:
        hosts.find(source, target)
    span.healed()


def _both(one: int, other: int) -> list[Way]:
    return [(one, other), (other, one)]


def _coordinators(cluster: AutoCluster, master: Node) -> Iterable[int]:
    return cluster.coordinators.numbers


def _slaves(cluster: AutoCluster, master: Node) -> Iterable[int]:
    return [node.number for node in cluster.nodes if node is not master]


def _clients(cluster: AutoCluster, master: Node) -> Iterable[int]:
    return [HUB]


async def no_coordinator(scene: Scene) -> None:
    await _lost(scene, "master without coordinators", _coordinators)


async def no_slave(scene: Scene) -> None:
    await _lost(scene, "master without slaves", _slaves)


async def no_clients(scene: Scene) -> None:
    await _lost(scene, "master without clients", _clients)


async def _flap(scene: Scene, what: str, others: Callable[[AutoCluster, Node], Iterable[int]]) -> None:
    """Lost and found again, in turn."""
    cluster = cluster_of(scene)
    hosts, master = hosts_of(cluster), await ready(cluster)
    ways: list[Way] = [way for other in others(cluster, master) for way in _both(master.number, other)]
    until_s = time.monotonic() + _beyond_the_lease(scene)
    span = Span(scene, what, master.name)
    while time.monotonic() < until_s:
        for change in (hosts.lose, hosts.find):
            for source, target in ways:
                change(source, target)
            await asyncio.sleep(scene.rng.uniform(*FLAP_S))
    span.healed()


async def flapping_slave(scene: Scene) -> None:
    await _flap(scene, "link to slaves flaps", _slaves)


async def flapping_coordinator(scene: Scene) -> None:
    await _flap(scene, "link to coordinators flaps", _coordinators)


# -- the coordinators --------------------------------------------------------------------------------


async def kill_leader(scene: Scene) -> None:
    cluster = cluster_of(scene)
    await ready(cluster)
    leader = await asyncio.to_thread(cluster.coordinators.leader)
    await _coordinators_gone(scene, "coordinator's leader killed", [leader])


async def kill_majority(scene: Scene) -> None:
    """As long as the voters follow the master, it goes on."""
    await ready(cluster_of(scene))
    await _coordinators_gone(
        scene, "coordinator's majority killed", scene.rng.sample(range(COORDINATORS), COORDINATORS - 1)
    )


async def _coordinators_gone(scene: Scene, what: str, gone: list[int]) -> None:
    cluster = cluster_of(scene)
    span = Span(scene, what, " ".join(map(str, gone)))
    for at in gone:
        await asyncio.to_thread(cluster.coordinators.kill, at)
    await asyncio.sleep(_beyond_the_lease(scene))
    await cluster.heal_coordinators()
    span.healed()


# -- disks -------------------------------------------------------------------------------------------


async def full_master(scene: Scene) -> None:
    """Whether it stays the master is open; it refuses what it cannot store."""
    cluster = cluster_of(scene)
    master = await ready(cluster)
    await _full(scene, "disk of master full", master, lambda: asyncio.sleep(_beyond_the_lease(scene)))


async def full_successor(scene: Scene) -> None:
    """The master dies while its slave cannot write; that one takes over at the latest when it can."""
    cluster = cluster_of(scene)
    master = await ready(cluster)
    slave = scene.rng.choice([node for node in cluster.nodes if node is not master])

    async def die() -> None:
        master.kill()
        await asyncio.sleep(_beyond_the_lease(scene))

    await _full(scene, "kill master, disk of slave full", slave, die)
    await another(cluster, master)
    await cluster.run(master)


async def _full(scene: Scene, what: str, node: Node, meanwhile: Callable[[], Awaitable[None]]) -> None:
    disk = disk_of(scene.cluster, node)
    span = Span(scene, what, node.name)
    await asyncio.to_thread(disk.fill)
    try:
        await meanwhile()
    finally:
        disk.make_room()
    span.healed()


AUTO_FAULTS: dict[str, Fault] = {
    "kill master": kill_master,
    "kill master, back at once": kill_master_back_at_once,
    "freeze master": zombie_master,
    "freeze master, about a lease": short_zombie_master,
    "stop master": stop_master,
    "kill all, one back": kill_all_one_back,
    "master without coordinators": no_coordinator,
    "master without slaves": no_slave,
    "master without clients": no_clients,
    "link to slaves flaps": flapping_slave,
    "link to coordinators flaps": flapping_coordinator,
    "coordinator's leader killed": kill_leader,
    "coordinator's majority killed": kill_majority,
}
AUTO_DISK_FAULTS: dict[str, Fault] = {
    "disk of master full": full_master,
    "kill master, disk of slave full": full_successor,
}
ALL_FAULTS = {**AUTO_FAULTS, **AUTO_DISK_FAULTS}
