"""Faults of links between hosts, packet by packet: partitions, losses one way, of any two hosts or of groups.

    partition               the master and its slaves lose each other
    one way lost            packets of one way only, between master and slaves
    one way lost anywhere   between any two hosts, nameservers included
    one way lossy           the same, but in bursts of some ms: about half of the packets
    unplugged, host slow    a host without any link, or with little of it
    island                  some brokers on one side, the others, nameservers and administrators on the other

Hosts are numbered as in Hosts: brokers, then nameservers if they are hosts.  Clients and the harness itself
are in the hub, and reach everyone.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable

from tests.chaos.netns import Hosts
from tests.chaos.proc_cluster import Cluster, NameServer, Node
from tests.chaos.proc_faults import Fault, Scene, Span

Way = tuple[int, int]
BURST_S = (0.005, 0.06)


def hosts_of(cluster: Cluster) -> Hosts:
    assert cluster.hosts is not None
    return cluster.hosts


def host_name(cluster: Cluster, number: int) -> str:
    count = len(cluster.nodes)
    return cluster.nodes[number].name if number < count else cluster.namesrvs[number - count].name


async def _lost(scene: Scene, span: Span, ways: Iterable[Way]) -> None:
    """For the time of the scene."""
    hosts, lost = hosts_of(scene.cluster), list(ways)
    for source, target in lost:
        hosts.lose(source, target)
    await asyncio.sleep(scene.seconds)
    for source, target in lost:
        hosts.find(source, target)
    span.healed()


async def _from_master(scene: Scene, what: str, ways: Callable[[int, int], list[Way]]) -> None:
    master = await scene.cluster.the_master()
    others = [node.number for node in scene.cluster.nodes if node is not master]
    span = Span(scene, what, master.name)
    await _lost(scene, span, [way for other in others for way in ways(master.number, other)])


async def host_partition(scene: Scene) -> None:
    await _from_master(scene, "partition", lambda master, slave: [(master, slave), (slave, master)])


async def host_one_way(scene: Scene) -> None:
    if scene.rng.random() < 0.5:
        await _from_master(scene, "one way lost, master to slave", lambda master, slave: [(master, slave)])
    else:
        await _from_master(scene, "one way lost, slave to master", lambda master, slave: [(slave, master)])


def _any_way(scene: Scene) -> Way:
    """Between two hosts, one of which is a broker."""
    brokers = len(scene.cluster.nodes)
    pairs = itertools.permutations(range(len(hosts_of(scene.cluster).names)), 2)
    return scene.rng.choice([pair for pair in pairs if min(pair) < brokers])


async def any_one_way(scene: Scene) -> None:
    source, target = _any_way(scene)
    names = host_name(scene.cluster, source), host_name(scene.cluster, target)
    await _lost(scene, Span(scene, "one way lost anywhere", " to ".join(names)), [(source, target)])


async def one_way_lossy(scene: Scene) -> None:
    source, target = _any_way(scene)
    names = host_name(scene.cluster, source), host_name(scene.cluster, target)
    span = Span(scene, "one way lossy", " to ".join(names))
    hosts, until_s = hosts_of(scene.cluster), time.monotonic() + 2 * scene.seconds
    while time.monotonic() < until_s:
        hosts.lose(source, target)
        await asyncio.sleep(scene.rng.uniform(*BURST_S))
        hosts.find(source, target)
        await asyncio.sleep(scene.rng.uniform(*BURST_S))
    span.healed()


async def host_unplugged(scene: Scene) -> None:
    node = scene.rng.choice(scene.cluster.nodes)
    hosts = hosts_of(scene.cluster)
    master = await scene.cluster.the_master()
    span = Span(scene, "master unplugged" if node is master else "slave unplugged", node.name)
    hosts.unplug(node.number)
    await asyncio.sleep(scene.seconds)
    hosts.plug(node.number)
    span.healed()


async def host_slow(scene: Scene) -> None:
    master = await scene.cluster.the_master()
    hosts = hosts_of(scene.cluster)
    span = Span(scene, "host slow, 4 Mbit/s", master.name)
    hosts.throttle(master.number, "4mbit")
    await asyncio.sleep(scene.seconds)
    hosts.unthrottle(master.number)
    span.healed()


def isolate(cluster: Cluster, inside: Iterable[Node], namesrvs: Iterable[NameServer] = ()) -> None:
    """Those brokers and nameservers hear each other, and nobody else but clients."""
    hosts = hosts_of(cluster)
    here = {node.number for node in inside} | {len(cluster.nodes) + one.number for one in namesrvs}
    there = set(range(len(hosts.names))) - here
    for one, other in itertools.product(here, there):
        hosts.lose(one, other)
        hosts.lose(other, one)


async def island(scene: Scene) -> None:
    """{master, slave} without {slave, nameservers}, or the master alone; nobody changes a role."""
    cluster, rng = scene.cluster, scene.rng
    master = await cluster.the_master()
    others = [node for node in cluster.nodes if node is not master]
    inside = [master, *rng.sample(others, rng.randint(0, len(others) - 1))]
    span = Span(scene, f"island of {len(inside)}", " ".join(node.name for node in inside))
    isolate(cluster, inside)
    await asyncio.sleep(scene.seconds)
    hosts_of(cluster).heal()
    span.healed()


HOST_FAULTS: dict[str, Fault] = {
    "partition": host_partition,
    "one way lost": host_one_way,
    "unplugged": host_unplugged,
    "host slow": host_slow,
}
ONE_WAY_FAULTS: dict[str, Fault] = {
    "one way lost": host_one_way,
    "one way lost anywhere": any_one_way,
    "one way lossy": one_way_lossy,
}
