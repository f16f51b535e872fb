"""An operator at the first nameserver's host changes roles with mqadmin, while other things fail.

    switchover by command          to the nearest slave
    failover by command            of a dead or frozen master, to the furthest slave that answers
    failover with a silent slave   the same while another slave is frozen, at times one that alone has the
                                   last messages: refused without --force, or safe
    failover of an island          {master, slave} hear neither {slave} nor the operator, who makes that one
                                   the master if mqadmin lets him; clients reach both sides
    reinit by command              a slave is built anew

Nobody says --force here: whatever a command lets through must lose nothing, and one that is refused changes
nothing.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.history import RoleChanged
from tests.chaos.netns import run_in
from tests.chaos.proc_cluster import BROKER, Cluster, Node, NotSoInTime
from tests.chaos.proc_faults import Fault, Scene, Span, a_slave, turned
from tests.chaos.proc_packets import hosts_of, isolate

COMMAND_S = 60.0
TIMEOUT_S = 10


async def mqadmin(cluster: Cluster, *words: str) -> tuple[int, str]:
    """The exit code, and all that it says.  Raises NotSoInTime."""
    command = [str(Path(sys.executable).with_name("mqadmin")), *words]
    popen = run_in(
        cluster.office,
        lambda: subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ),
    )
    try:
        said, _ = await asyncio.to_thread(popen.communicate, timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        raise NotSoInTime(f"mqadmin {' '.join(words)} does not end within {COMMAND_S:g} s") from None
    finally:
        if popen.poll() is None:
            popen.kill()
    return popen.returncode, said


def _name(cluster: Cluster) -> list[str]:
    return ["-n", ";".join(one.addr for one in cluster.namesrvs), "-b", BROKER]


async def _change(scene: Scene, span: Span, new: Node, words: Sequence[str]) -> bool:
    """Whether the command went through.  What it says is written down."""
    cluster, history = scene.cluster, scene.history
    # It takes messages before the command has seen the others follow.
    before = history.replaced_by(new.name)
    code, said = await mqadmin(
        cluster, words[0], *_name(cluster), *words[1:], "--timeout", str(TIMEOUT_S), "--yes"
    )
    last = (said.strip().splitlines() or [""])[-1]
    if code:
        history.goes_on_with(before)
        why = f"{words[0]} refused: {last}"
        history.add(RoleChanged(history.now_s, new.name, "slave", why=why))
        return False
    body = await cluster.lineage(new)
    epoch = -1 if body is None else body.epoch
    history.add(RoleChanged(history.now_s, new.name, "master", epoch, why=f"{words[0]} by command"))
    if body is not None and body.is_master:
        await turned(cluster, new, epoch)
    return True


async def switchover(scene: Scene) -> None:
    cluster = scene.cluster
    master = await cluster.the_master()
    span = Span(scene, "switchover by command", master.name)
    code, said = await mqadmin(cluster, "switchover", *_name(cluster), "--timeout", str(TIMEOUT_S), "--yes")
    new = await cluster.the_master()
    why = said.strip().splitlines()[-1] if said.strip() else ""
    if not code:
        scene.history.replaced_by(new.name)
    scene.history.add(RoleChanged(scene.history.now_s, new.name, "master", why=f"switchover: {code} {why}"))
    span.healed()


async def _furthest(cluster: Cluster, among: Sequence[Node]) -> Node | None:
    said = await cluster.lineages()
    bodies = [(body, node) for node in among if (body := said[node.name]) is not None]
    return max(bodies, key=lambda one: (one[0].epoch, one[0].log_end))[1] if bodies else None


async def _failover(scene: Scene, what: str, silent: Sequence[Node], master: Node) -> None:
    """With these slaves frozen, too; at times the others have fallen behind them before."""
    cluster, rng = scene.cluster, scene.rng
    span = Span(scene, what, master.name)
    if silent and rng.random() < 0.5:
        for node in cluster.nodes:
            if node not in silent and node is not master:
                hosts_of(cluster).lose(master.number, node.number)
        await asyncio.sleep(scene.seconds)
    for node in silent:
        node.freeze()
    await asyncio.sleep(rng.uniform(0, scene.seconds))
    dies = rng.random() < 0.5
    if dies:
        master.kill()
    else:
        master.freeze()
    hosts_of(cluster).heal()
    others = [node for node in cluster.nodes if node is not master and node not in silent]
    new = await _furthest(cluster, others)
    if new is not None:
        await _change(scene, span, new, ["failover", "--to", new.addr])
    await asyncio.sleep(rng.uniform(0, scene.seconds))
    for node in silent:
        node.thaw()
    if dies:
        await cluster.run(master)
    else:
        master.thaw()
    span.healed()


async def failover(scene: Scene) -> None:
    await _failover(scene, "failover by command", [], await scene.cluster.the_master())


async def failover_with_silent(scene: Scene) -> None:
    master = await scene.cluster.the_master()
    slaves = [node for node in scene.cluster.nodes if node is not master]
    await _failover(scene, "failover with a silent slave", [scene.rng.choice(slaves)], master)


async def island_failover(scene: Scene) -> None:
    cluster, rng = scene.cluster, scene.rng
    master = await cluster.the_master()
    slaves = [node for node in cluster.nodes if node is not master]
    with_it = rng.sample(slaves, rng.randint(0, 1))
    outside = [node for node in slaves if node not in with_it]
    span = Span(scene, "failover of an island", " ".join(node.name for node in [master, *with_it]))
    isolate(cluster, [master, *with_it])
    await asyncio.sleep(scene.seconds)
    new = await _furthest(cluster, outside)
    if new is not None:
        await _change(scene, span, new, ["failover", "--to", new.addr])
    await asyncio.sleep(scene.seconds)
    hosts_of(cluster).heal()
    span.healed()


async def reinit(scene: Scene) -> None:
    cluster = scene.cluster
    slave = await a_slave(scene)
    span = Span(scene, "reinit by command", slave.name)
    names = ";".join(one.addr for one in cluster.namesrvs)
    keep = scene.rng.choice([[], ["--discard"]])
    code, said = await mqadmin(cluster, "reinit", "-n", names, "-b", slave.addr, *keep, "--yes")
    last = (said.strip().splitlines() or [""])[-1]
    scene.history.add(RoleChanged(scene.history.now_s, slave.name, "slave", why=f"reinit: {code} {last}"))
    span.healed()


COMMAND_FAULTS: dict[str, Fault] = {
    "switchover by command": switchover,
    "failover by command": failover,
    "failover with a silent slave": failover_with_silent,
    "failover of an island": island_failover,
    "reinit by command": reinit,
}
