"""Troubles of brokers, and the operator who follows the advice that comes of them.

    dies        killed or stopped, and can be started again
    lost        killed, and its disk is gone: a new machine has its address, and an empty store
    wiped       the same, and the platform starts it before anybody looks
    emptied     its log's directory is not there when it starts
    put back    its store is an older copy when it starts
    away        killed, and nobody can start it; its machine is back after a while
    cut off     its host loses all others for a while
    all die     every broker; one of them is away

The operator can start what does not run.  Nobody says --force or --lose here: where nothing else is advised, the
operator waits for the machine that is away, if there is one, and looks once more when all have registered again:
of two that take one brokerId, as a wiped master and the slave that took its place may, a nameserver lists one.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.admin.asking import run
from tests.chaos.history import RoleChanged
from tests.chaos.proc_cluster import BROKER, Cluster, Node, NotSoInTime
from tests.chaos.proc_faults import Fault, Scene, Span, a_slave
from tests.chaos.proc_packets import isolate
from tests.cluster.advised import NoWayOut, Outcome, follow, options_of
from tests.support.waiting import slowness

PATIENCE_S = 60.0
START_S = 60.0
STEPS_MAX = 3
AWAY_S = (1.0, 20.0)
REGISTERED_AGAIN_S = 12.0

Count = Callable[[str], None]


@dataclass(slots=True)
class Operator:
    """Looks after one cluster, from where its nameserver is found."""

    scene: Scene
    count: Count
    empty: set[str] = field(default_factory=set)
    """Brokers whose store has to be empty when they are started: their disks are gone."""

    async def follow(self, away: Node | None = None) -> None:
        """Until check says OK.  The machine of `away` comes back by itself after a while.  Raises NotSoInTime."""
        self.count("times advice was followed")
        nodes = self.scene.cluster.nodes
        back = asyncio.create_task(self._comes_back(away)) if away is not None else None
        try:
            outcome = await self._follow([one for one in nodes if one is not away])
            if outcome.decision is not None and back is not None:
                self.count("times the operator waited instead of a loss")
                await back
                outcome = await self._follow(nodes)
            if outcome.decision is not None:
                self.count("times the operator looked again instead of a loss")
                await asyncio.sleep(REGISTERED_AGAIN_S)
                outcome = await self._follow(nodes)
            if outcome.decision is not None:
                raise NotSoInTime(f"nothing but a loss is advised: {' '.join(outcome.decision)}")
        finally:
            if back is not None:
                await back

    async def _comes_back(self, node: Node) -> None:
        await asyncio.sleep(self.scene.rng.uniform(*AWAY_S))
        await self.start(node)

    async def _follow(self, can_start: Sequence[Node]) -> Outcome:
        loop = asyncio.get_running_loop()

        def starts(node: Node) -> None:
            if not node.running:
                asyncio.run_coroutine_threadsafe(self.start(node), loop).result(START_S * slowness())

        by_addr: Mapping[str, Callable[[], object]] = {node.addr: partial(starts, node) for node in can_start}
        try:
            outcome = await asyncio.to_thread(
                follow,
                partial(_mqadmin, self.scene.cluster),
                by_addr,
                patience_s=PATIENCE_S * slowness(),
                most=STEPS_MAX,
            )
        except NoWayOut as error:
            raise NotSoInTime(
                f"advice that leads nowhere:\n{error}\n{await self.scene.cluster.describe()}"
            ) from None
        history = self.scene.history
        for one in outcome.steps:
            self.count(f"steps {one.words[0]}{' (refused)' if one.exit_code else ''}")
            history.add(
                RoleChanged(history.now_s, BROKER, "operator", why=f"{' '.join(one.words)}: {one.exit_code}")
            )
        self.count(f"ways of {len(outcome.steps)} steps")
        return outcome

    async def start(self, node: Node) -> None:
        if node.name in self.empty:
            self.empty.discard(node.name)
            _remove(node.root)
        await self.scene.cluster.run(node)


def _mqadmin(cluster: Cluster, words: Sequence[str]) -> tuple[int, str]:
    """In this process: a command of its own would take seconds to start."""
    options = options_of(words[0])
    names = ";".join(one.addr for one in cluster.namesrvs)
    yes = ["--yes"] if "--yes" in options else []
    done = run(words[0], *(["-n", names] if "-n" in options else []), *words[1:], *yes)
    return done.exit_code, done.output


def _remove(directory: Path) -> None:
    """What is in it; it may be where a disk is mounted."""
    for one in directory.iterdir():
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink()


# -- troubles ----------------------------------------------------------------------------------------

Trouble = Callable[[Operator, Node], Awaitable[None]]


async def dies(op: Operator, node: Node) -> None:
    node.kill()
    await op.follow()


async def stopped(op: Operator, node: Node) -> None:
    await op.scene.cluster.stop(node)
    await op.follow()


async def is_away(op: Operator, node: Node) -> None:
    """Nobody can start it; its machine is back after a while."""
    node.kill()
    await op.follow(node)


async def lost(op: Operator, node: Node) -> None:
    node.kill()
    op.empty.add(node.name)
    await op.follow()


async def wiped(op: Operator, node: Node) -> None:
    node.kill()
    op.empty.add(node.name)
    await op.start(node)
    await op.follow()


async def emptied(op: Operator, node: Node) -> None:
    if op.scene.rng.random() < 0.5:
        await op.scene.cluster.stop(node)
    else:
        node.kill()
    shutil.rmtree(node.commitlog)
    await op.start(node)
    await op.follow()


async def put_back(op: Operator, node: Node) -> None:
    """A copy of a store that stood still, and some traffic since, which all have."""
    cluster = op.scene.cluster
    await cluster.stop(node)
    copy = cluster.root / f"{node.name}.copy"
    await asyncio.to_thread(shutil.copytree, node.root, copy)
    await cluster.run(node)
    await op.follow()
    await asyncio.sleep(op.scene.seconds)
    await op.follow()
    node.kill()
    _remove(node.root)
    await asyncio.to_thread(shutil.copytree, copy, node.root, dirs_exist_ok=True)
    shutil.rmtree(copy)
    await cluster.run(node)
    await op.follow()


async def cut_off(op: Operator, node: Node) -> None:
    """The others lose it for a while; the operator and the clients do not."""
    cluster, hosts = op.scene.cluster, op.scene.cluster.hosts
    assert hosts is not None
    isolate(cluster, [node])
    back = asyncio.create_task(asyncio.sleep(op.scene.rng.uniform(*AWAY_S)))
    back.add_done_callback(lambda _: hosts.heal())
    await op.follow()
    await back


async def all_die(op: Operator, node: Node) -> None:
    """Every broker, at one moment; `node` stays away at first."""
    for one in op.scene.cluster.nodes:
        one.kill()
    for one in op.scene.cluster.nodes:
        if one is not node:
            await op.start(one)
    await op.follow(node)


TROUBLES: Mapping[str, Trouble] = {
    "dies": dies,
    "stopped": stopped,
    "away": is_away,
    "lost": lost,
    "wiped": wiped,
    "emptied": emptied,
    "put back": put_back,
    "cut off": cut_off,
    "all die": all_die,
}


def advised_faults(count: Count) -> dict[str, Fault]:
    """Each as a fault of a round: of the master or of a slave, from a level cluster on."""

    def fault_of(name: str, trouble: Trouble) -> Fault:
        async def fault(scene: Scene) -> None:
            cluster = scene.cluster
            op = Operator(scene, count)
            await op.follow()  # what the last trouble left
            master = await cluster.the_master()
            node = master if scene.rng.random() < 0.5 else await a_slave(scene)
            span = Span(scene, f"{name}: {'master' if node is master else 'slave'}", node.name)
            await trouble(op, node)
            new = await cluster.the_master()
            if new is not master:
                scene.history.replaced_by(new.name)
            span.healed()

        return fault

    return {name: fault_of(name, trouble) for name, trouble in TROUBLES.items()}
