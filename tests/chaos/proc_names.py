"""Several nameservers that disagree, while masters change.

    nameserver deaf        does not hear some brokers, or all; at times a role changes meanwhile
    nameserver stale       stands still while a role changes, and then goes on with the old master
    nameserver empty       killed, and started again with nothing
    nameservers gone       all but one, while a role changes

Brokers come to each nameserver through a proxy of their own (links "proxy").  Clients ask one that answers,
and stay with it.
"""

from __future__ import annotations

import asyncio
import signal

from tests.chaos.proc_cluster import Cluster, NameServer
from tests.chaos.proc_faults import ROLE_FAULTS, Fault, Scene, Span

# A broker that notices nothing sends its next registration into the void.
ROLE_CHANGES = 0.6


async def _change_roles(scene: Scene) -> None:
    await ROLE_FAULTS[scene.rng.choice(["switchover", "failover"])](scene)


def _heal_names(cluster: Cluster, namesrv: NameServer) -> None:
    for (_, number), link in cluster.name_links.items():
        if number == namesrv.number:
            link.heal()
            link.cut()  # what was silent for long is called anew


async def deaf(scene: Scene) -> None:
    cluster, rng = scene.cluster, scene.rng
    namesrv = rng.choice(cluster.namesrvs)
    nodes = rng.sample(cluster.nodes, rng.randint(1, len(cluster.nodes)))
    cuts = rng.random() < 0.5
    span = Span(scene, "nameserver deaf", f"{namesrv.name} to {' '.join(node.name for node in nodes)}")
    for node in nodes:
        link = cluster.name_links[node.number, namesrv.number]
        if cuts:
            link.refuses = True
            link.cut()
        else:
            link.up.silence()
    if rng.random() < ROLE_CHANGES:
        await _change_roles(scene)
    await asyncio.sleep(scene.seconds)
    _heal_names(cluster, namesrv)
    span.healed()


async def stale(scene: Scene) -> None:
    namesrv = scene.rng.choice(scene.cluster.namesrvs)
    span = Span(scene, "nameserver stale", namesrv.name)
    namesrv.signal(signal.SIGSTOP)
    await _change_roles(scene)
    await asyncio.sleep(scene.seconds)
    namesrv.signal(signal.SIGCONT)
    span.healed()


async def empty(scene: Scene) -> None:
    some = scene.rng.sample(scene.cluster.namesrvs, scene.rng.randint(1, len(scene.cluster.namesrvs)))
    span = Span(scene, "nameserver empty", " ".join(one.name for one in some))
    for namesrv in some:
        namesrv.kill()
    await asyncio.sleep(scene.rng.choice([0, scene.seconds]))
    for namesrv in some:
        await scene.cluster.run_namesrv(namesrv)
    span.healed()


async def gone(scene: Scene) -> None:
    left = scene.rng.choice(scene.cluster.namesrvs)
    some = [one for one in scene.cluster.namesrvs if one is not left]
    span = Span(scene, "nameservers gone", f"all but {left.name}")
    for namesrv in some:
        namesrv.kill()
    await _change_roles(scene)
    for namesrv in some:
        await scene.cluster.run_namesrv(namesrv)
    span.healed()


NAME_FAULTS: dict[str, Fault] = {
    "nameserver deaf": deaf,
    "nameserver stale": stale,
    "nameserver empty": empty,
    "nameservers gone": gone,
}
