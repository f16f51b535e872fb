"""Faults of real processes and links: each breaks something, waits, and heals it.

    processes   killed, stopped, frozen, of master or slave, and started again
    links       by the proxy: cut, one end cut, cut at a byte, sliced, coalesced, delayed, slow, silent, flips
    roles       switchover, failover of a dead master, failover of a frozen one that wakes up afterwards

A fault is over (Healed) when what it took is given back; of roles,
when there are a master and a slave again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from haservice.errors import RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import (
    FollowHeader,
    LineageBody,
    PromoteHeader,
    SwitchoverBody,
    SwitchoverHeader,
)
from tests.chaos.history import Faulted, Healed, RoleChanged
from tests.chaos.proc_clients import History
from tests.chaos.proc_cluster import Cluster, Node, NotSoInTime

PROMOTE_S = 10.0
FLIPPED_S = 5.0
SWITCHOVER_MS = 5000


class Scene(NamedTuple):
    """What a fault acts on."""

    cluster: Cluster
    history: History
    rng: random.Random
    seconds: float
    """How long it is to last."""


class Span:
    """One fault, written into the history."""

    _numbers = iter(range(1, 1 << 62))

    def __init__(self, scene: Scene, what: str, where: str = "") -> None:
        self._history = scene.history
        self._number = next(self._numbers)
        self._open = True
        self._history.add(Faulted(self._history.now_s, self._number, what, where))

    def healed(self) -> None:
        if self._open:
            self._open = False
            self._history.add(Healed(self._history.now_s, self._number))


Fault = Callable[[Scene], Awaitable[None]]


async def a_slave(scene: Scene) -> Node:
    master = await scene.cluster.the_master()
    return scene.rng.choice([node for node in scene.cluster.nodes if node is not master])


async def _kill(scene: Scene, node: Node, what: str) -> None:
    span = Span(scene, what, node.name)
    node.kill()
    await asyncio.sleep(scene.seconds)
    await scene.cluster.run(node)
    span.healed()


async def kill_master(scene: Scene) -> None:
    await _kill(scene, await scene.cluster.the_master(), "kill master")


async def kill_slave(scene: Scene) -> None:
    await _kill(scene, await a_slave(scene), "kill slave")


async def kill_all(scene: Scene) -> None:
    """Every process at one moment; they come up in any order."""
    span = Span(scene, "kill all")
    for node in scene.cluster.nodes:
        node.kill()
    nodes = scene.rng.sample(scene.cluster.nodes, len(scene.cluster.nodes))
    for node in nodes:
        node.launch(scene.cluster.shape)
        await asyncio.sleep(scene.rng.choice([0, scene.seconds]))
    for node in nodes:
        await scene.cluster.booted(node)
    span.healed()


async def kill_starting(scene: Scene) -> None:
    """Killed, and again while it starts, at any moment of its recovery."""
    node = scene.rng.choice(scene.cluster.nodes)
    master = await scene.cluster.the_master()
    span = Span(scene, "kill starting master" if node is master else "kill starting slave", node.name)
    for _ in range(scene.rng.randint(1, 2)):
        node.kill()
        node.launch(scene.cluster.shape)
        await asyncio.sleep(scene.rng.uniform(0.3, 0.9))
    node.kill()
    await scene.cluster.run(node)
    span.healed()


async def _restart(scene: Scene, node: Node, what: str) -> None:
    span = Span(scene, what, node.name)
    await scene.cluster.stop(node)
    await scene.cluster.run(node)
    span.healed()


async def restart_master(scene: Scene) -> None:
    await _restart(scene, await scene.cluster.the_master(), "restart master")


async def restart_slave(scene: Scene) -> None:
    await _restart(scene, await a_slave(scene), "restart slave")


async def _freeze(scene: Scene, node: Node, what: str) -> None:
    span = Span(scene, what, node.name)
    node.freeze()
    await asyncio.sleep(scene.seconds)
    node.thaw()
    span.healed()


async def freeze_master(scene: Scene) -> None:
    await _freeze(scene, await scene.cluster.the_master(), "freeze master")


async def freeze_slave(scene: Scene) -> None:
    await _freeze(scene, await a_slave(scene), "freeze slave")


# -- links by the proxy ------------------------------------------------------------------------------


async def _link(scene: Scene, what: str, spoil: Callable[[Cluster, Node], None]) -> None:
    master = await scene.cluster.the_master()
    span = Span(scene, what, master.name)
    spoil(scene.cluster, master)
    await asyncio.sleep(scene.seconds)
    scene.cluster.proxies[master.name].heal()
    span.healed()


async def link_cut(scene: Scene) -> None:
    master = await scene.cluster.the_master()
    span = Span(scene, "link cut", master.name)
    for _ in range(scene.rng.randint(1, 5)):
        scene.cluster.proxies[master.name].cut()
        await asyncio.sleep(scene.rng.uniform(0, 0.1))
    span.healed()


async def link_end_cut(scene: Scene) -> None:
    """One end sees the connection reset, the other one goes on with a connection that nobody answers."""
    master = await scene.cluster.the_master()
    proxy = scene.cluster.proxies[master.name]
    end = scene.rng.choice(["slave", "master"])
    span = Span(scene, f"link's end at the {end} cut", master.name)
    for _ in range(scene.rng.randint(1, 3)):
        proxy.cut_end(at_target=end == "master")
        await asyncio.sleep(scene.rng.uniform(0, scene.seconds / 2))
    proxy.heal()
    span.healed()


async def link_cut_at_byte(scene: Scene) -> None:
    master = await scene.cluster.the_master()
    proxy = scene.cluster.proxies[master.name]
    span = Span(scene, "link cut at a byte", master.name)
    for _ in range(scene.rng.randint(1, 5)):
        way = scene.rng.choice([proxy.down, proxy.down, proxy.up])
        way.cut_after = scene.rng.choice([scene.rng.randrange(13), scene.rng.randrange(1, 20_000)])
        await asyncio.sleep(scene.rng.uniform(0.02, 0.2))
    proxy.heal()
    span.healed()


async def link_sliced(scene: Scene) -> None:
    size = scene.rng.choice([1, 1, 7, 13])

    def spoil(cluster: Cluster, master: Node) -> None:
        cluster.proxies[master.name].down.slice_bytes = size
        cluster.proxies[master.name].up.slice_bytes = 1

    await _link(scene, "link sliced", spoil)


async def link_coalesced(scene: Scene) -> None:
    def spoil(cluster: Cluster, master: Node) -> None:
        cluster.proxies[master.name].down.coalesce_s = cluster.proxies[master.name].up.coalesce_s = 0.1

    await _link(scene, "link coalesced", spoil)


async def link_delayed(scene: Scene) -> None:
    delay_s = scene.rng.choice([0.02, 0.1, 0.3])

    def spoil(cluster: Cluster, master: Node) -> None:
        cluster.proxies[master.name].down.delay_s = cluster.proxies[master.name].up.delay_s = delay_s

    await _link(scene, "link delayed", spoil)


async def link_slow(scene: Scene) -> None:
    def spoil(cluster: Cluster, master: Node) -> None:
        cluster.proxies[master.name].down.bytes_per_s = 125_000.0

    await _link(scene, "link slow", spoil)


async def link_silent(scene: Scene) -> None:
    way = scene.rng.choice(["both ways", "to the slave", "to the master"])

    def spoil(cluster: Cluster, master: Node) -> None:
        proxy = cluster.proxies[master.name]
        if way != "to the master":
            proxy.down.silence()
        if way != "to the slave":
            proxy.up.silence()

    await _link(scene, f"link silent {way}", spoil)


async def link_flips(scene: Scene) -> None:
    master = await scene.cluster.the_master()
    proxy = scene.cluster.proxies[master.name]
    span = Span(scene, "link flips bits", master.name)
    wanted = proxy.flipped + 3
    proxy.down.flips = 3

    async def flipped() -> bool:
        return proxy.flipped >= wanted

    try:
        with contextlib.suppress(NotSoInTime):  # another fault at the same time may leave no bytes to flip
            await scene.cluster.until(flipped, "bits are flipped", FLIPPED_S)
    finally:
        proxy.down.flips = 0
    span.healed()


# -- roles -------------------------------------------------------------------------------------------


async def switchover(scene: Scene) -> None:
    """A planned change; refused, it leaves all as it was."""
    cluster = scene.cluster
    master = await cluster.the_master()
    span = Span(scene, "switchover", master.name)
    for node in cluster.nodes:
        if node is not master:
            forget_reports(cluster, node)
    try:
        done = await cluster.ask(
            master.addr,
            RequestCode.SWITCHOVER,
            SwitchoverBody,
            SwitchoverHeader("", SWITCHOVER_MS),
            SWITCHOVER_MS / 1000 + 5.0,
        )
    except RemotingError as error:
        scene.history.add(
            RoleChanged(scene.history.now_s, master.name, "master", why=f"not handed over: {error}")
        )
        span.healed()
        return
    span.healed()
    new = cluster.node_at(done.new_master)
    assert new is not None, done
    scene.history.replaced_by(new.name)
    scene.history.add(
        RoleChanged(scene.history.now_s, new.name, "master", done.epoch, done.logged_end, "switchover")
    )
    await turned(cluster, new, done.epoch)


async def failover(scene: Scene) -> None:
    """The master dies, the furthest slave takes over, the old one comes back by itself."""
    master = await scene.cluster.the_master()
    await _all_follow(scene.cluster, master)
    span = Span(scene, "failover", master.name)
    master.kill()
    await asyncio.sleep(scene.rng.uniform(0, scene.seconds))
    await promote_furthest(scene, master, span)
    await asyncio.sleep(scene.rng.uniform(0, scene.seconds))
    await scene.cluster.run(master)
    span.healed()


async def failover_frozen(scene: Scene) -> None:
    """As failover, but the old master only sleeps, and wakes up as one."""
    master = await scene.cluster.the_master()
    await _all_follow(scene.cluster, master)
    span = Span(scene, "failover of a frozen master", master.name)
    master.freeze()
    await asyncio.sleep(scene.rng.uniform(0, scene.seconds))
    await promote_furthest(scene, master, span)
    await asyncio.sleep(scene.rng.uniform(0, scene.seconds))
    master.thaw()
    span.healed()


async def _all_follow(cluster: Cluster, master: Node) -> None:
    """Returns once each slave has the master's epoch: one that has not yet is rightly not promoted."""

    async def in_its_epoch() -> bool:
        bodies = [await cluster.lineage(node) for node in cluster.nodes]
        return len({body.epoch if body is not None else -1 for body in bodies}) == 1

    await cluster.until(in_its_epoch, f"all follow {master.name}", PROMOTE_S)


async def promote_furthest(scene: Scene, old: Node, span: Span) -> LineageBody:
    """Tells it, and the others; returns when it is the master.  Raises NotSoInTime, RemotingError.

    With another slave there can be an OK from here on; in a pair only once the old master is back.
    """
    cluster, history = scene.cluster, scene.history
    bodies: dict[str, LineageBody] = {}

    async def all_answer() -> bool:
        for node in cluster.nodes:
            body = await cluster.lineage(node) if node is not old else None
            if body is not None and not body.changing:
                bodies[node.name] = body
        return len(bodies) == len(cluster.nodes) - 1

    await cluster.until(all_answer, "the slaves answer after their master's end", PROMOTE_S)
    new = max(
        (node for node in cluster.nodes if node.name in bodies),
        key=lambda one: (bodies[one.name].epoch, bodies[one.name].log_end),
    )
    epoch = max(body.epoch for body in bodies.values()) + 1
    history.replaced_by(new.name)
    if len(cluster.nodes) > 2:
        span.healed()
    forget_reports(cluster, new)
    header = PromoteHeader(min_epoch=epoch, why="chaos")
    body = await promoted(cluster, new, header)
    start = body.epochs[-1].start if body.epochs else -1
    history.add(RoleChanged(history.now_s, new.name, "master", body.epoch, start, "failover"))
    await turned(cluster, new, body.epoch)
    follow = FollowHeader(body.broker_addr, body.ha_addr, body.epoch, "chaos")
    for node in cluster.nodes:
        if node not in (new, old):
            await _told(cluster, node, follow)
    return body


async def _told(cluster: Cluster, node: Node, follow: FollowHeader) -> None:
    """It may be amid a change of its role, and answer nobody for a moment."""
    told = False

    async def takes_it() -> bool:
        nonlocal told
        with contextlib.suppress(RemotingError):  # the new master tells it, too, and one at a time is heard
            await cluster.call(node.addr, RequestCode.FOLLOW, follow, PROMOTE_S)
            told = True
        return told

    await cluster.until(takes_it, f"{node.name} is told whom to follow", PROMOTE_S)


async def promoted(cluster: Cluster, new: Node, header: PromoteHeader) -> LineageBody:
    """As an operator who tries again: a broker may be amid another change of its role."""
    answers: list[LineageBody] = []

    async def says_yes() -> bool:
        with contextlib.suppress(RemotingError):
            answers.append(await cluster.ask(new.addr, RequestCode.PROMOTE, LineageBody, header, PROMOTE_S))
        return bool(answers)

    await cluster.until(says_yes, f"{new.name} takes the command to be the master", PROMOTE_S)
    return answers[0]


async def turned(cluster: Cluster, new: Node, epoch: int) -> None:
    async def is_master() -> bool:
        body = await cluster.lineage(new)
        return body is not None and body.is_master and not body.changing and body.epoch >= epoch

    await cluster.until(is_master, f"{new.name} is the master", PROMOTE_S)


def forget_reports(cluster: Cluster, new: Node) -> None:
    """What slaves reported to it when it was a master before, was of bytes that may be gone."""
    if (proxy := cluster.proxies.get(new.name)) is not None:
        proxy.acknowledged = -1


PROCESS_FAULTS: dict[str, Fault] = {
    "kill master": kill_master,
    "kill slave": kill_slave,
    "kill all": kill_all,
    "kill starting": kill_starting,
    "restart master": restart_master,
    "restart slave": restart_slave,
    "freeze master": freeze_master,
    "freeze slave": freeze_slave,
}
LINK_FAULTS: dict[str, Fault] = {
    "link cut": link_cut,
    "link's end cut": link_end_cut,
    "link cut at a byte": link_cut_at_byte,
    "link sliced": link_sliced,
    "link coalesced": link_coalesced,
    "link delayed": link_delayed,
    "link slow": link_slow,
    "link silent": link_silent,
    "link flips bits": link_flips,
}
ROLE_FAULTS: dict[str, Fault] = {
    "switchover": switchover,
    "failover": failover,
    "failover of a frozen master": failover_frozen,
}


async def heal_all(cluster: Cluster) -> None:
    """Whatever was left broken is given back.  Raises NotSoInTime for a broker that does not come up."""
    for proxy in (*cluster.proxies.values(), *cluster.name_links.values()):
        proxy.heal()
    if cluster.hosts is not None:
        cluster.hosts.heal()
    for namesrv in cluster.namesrvs:
        namesrv.signal(signal.SIGCONT)
        if not namesrv.running:
            await cluster.run_namesrv(namesrv)
    for disk in cluster.disks:
        disk.go_on()
    for node in cluster.nodes:
        if node.shim is not None:
            node.shim.heal()
        node.thaw()
        if not node.running:
            await cluster.run(node)
