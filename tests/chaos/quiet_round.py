"""One round of something that breaks quietly: armed, stirred up until it is reached, and then everything comes back.

    armed ── what leads there, see quiet_stimuli.py ── questions ── restarts ── switchover ── the master dies
    until a broker comes to the place
    reached ── OK again within BACK_S ── what ended is told ── the broker closes cleanly, and comes up again

A broker that ends by itself as its supervisor decides, or whose start is refused, is started again, as systemd does.
Everything else is as in other rounds, and so is the checker.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from haservice.devtools.pair import ProcessDied
from haservice.errors import ProtocolError, RemotingError
from haservice.remoting.bodies.clients import HARuntimeInfo, KVTable
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import SwitchoverHeader
from haservice.supervisor import EXIT_CODE
from tests.chaos import auto_faults, group_faults, proc_faults
from tests.chaos.auto_coordinators import AutoCluster
from tests.chaos.auto_round import AutoTraffic, as_promised
from tests.chaos.checker import Verdict, Violation
from tests.chaos.group_cluster import GroupCluster, entry_messages
from tests.chaos.group_round import GroupHistory
from tests.chaos.proc_clients import History, Traffic
from tests.chaos.proc_cluster import Cluster, Node, NotSoInTime
from tests.chaos.proc_faults import Fault, Scene, Span, a_slave
from tests.chaos.proc_round import Outcome, Play
from tests.chaos.quiet_breaks import ROOT, Break
from tests.chaos.quiet_broker import ARMED, DIRECTORY, GO_ON, LOOKED, NODE, REACHED, WAKE_S
from tests.chaos.quiet_still import QUOTA_S, crawling, standing_still
from tests.chaos.quiet_stimuli import leading_to
from tests.support.waiting import slowness

ARMED_S = 10.0
BACK_S = 30.0
TOLD_S = 15.0
LOOK_S = 0.05
STIRRED_S = 1.5
AMID_S = 1.0
HTTP_S = 5.0
STARTS_MAX = 4
_MODULE = "tests.chaos.quiet_broker"


class QuietTraffic(AutoTraffic):
    """Less of it: a round is about what comes back, and a whole run has many."""

    pace_s = 0.04

    def __init__(self, cluster: Cluster, history: History, rng: random.Random) -> None:
        super().__init__(cluster, history, rng, producers=2, each=2)


class NotClean(NotSoInTime):
    """A broker did not end as it should."""


class Arms:
    """The harness's end of quiet_broker.Arms."""

    def __init__(self, cluster: Cluster) -> None:
        """Of a cluster that has not been started."""
        self._cluster = cluster
        self._directory = cluster.root / "quiet"
        self._directory.mkdir()
        for node in cluster.nodes:
            node.module = _MODULE
            node.env = {DIRECTORY: str(self._directory), NODE: node.name, "PYTHONPATH": str(ROOT)}
            node.extra["metricsListenAddr"] = f"{node.ip}:{metrics_port(cluster, node)}"

    async def arm(self, one: Break) -> None:
        """Returns once every broker knows.  Raises NotSoInTime."""
        self.disarm()
        written = self._directory / "written"
        written.write_text(json.dumps({"name": one.name, **one.place}))
        written.rename(self._directory / ARMED)

        async def all_know() -> bool:
            running = [node for node in self._cluster.nodes if node.running]
            return self.reached() is not None or all(self._last_seen(node) == one.name for node in running)

        await self._cluster.until(all_know, "every broker knows what is to break", ARMED_S)

    def go_on(self) -> None:
        (self._directory / GO_ON).touch()

    def disarm(self) -> None:
        for name in (ARMED, GO_ON):
            (self._directory / name).unlink(missing_ok=True)
        for path in self._directory.glob(f"{REACHED}*"):
            path.unlink()

    def reached(self) -> Node | None:
        """Who came to the place."""
        return next((one for one in self._cluster.nodes if self._mark(one).exists()), None)

    def _last_seen(self, node: Node) -> str:
        path = self._directory / f"{LOOKED}{node.name}"
        return path.read_text() if path.exists() else ""

    def _mark(self, node: Node) -> Path:
        return self._directory / f"{REACHED}{node.name}"


def metrics_port(cluster: Cluster, node: Node) -> int:
    """Of the four ports of a broker the one that nothing else of it has."""
    return node.port + (1 if isinstance(cluster, GroupCluster) else -1)


class Quiet:
    """The rounds' one fault, for each break of a cluster."""

    def __init__(self, kind: str, cluster: Cluster, arms: Arms, count: Callable[[str], None]) -> None:
        self._kind = kind
        self._cluster = cluster
        self._arms = arms
        self._count = count
        self.missed: list[str] = []
        """Breaks that nobody came to."""
        self._last_words: dict[str, str] = {}
        """What a broker printed that ended by itself."""

    def faults(self, breaks: Sequence[Break]) -> dict[str, Fault]:
        return {one.name: partial(self._play, one) for one in breaks}

    async def _play(self, one: Break, scene: Scene) -> None:
        self._last_words.clear()
        span = Span(scene, one.name)
        try:
            node = await self._break(one, scene)
            if node is None:
                self._count("breaks not reached")
                self.missed.append(one.name)
                span.healed()
                return
            self._count("breaks reached")
            await self._back(scene)
            if one.kind == "thread" and not one.name.endswith(":"):  # a connection's thread ends with it
                await self._told(one, node)
        finally:
            self._arms.disarm()
        await self._close(node)
        await self._revive()
        span.healed()

    async def _break(self, one: Break, scene: Scene) -> Node | None:
        """Who was broken; None if nobody came to the place."""
        if one.kind == "crawl":
            return await self._crawl(one.place["who"])
        if "amid" in one.place:
            return await self._stop_amid(one, scene)
        await self._arms.arm(one)
        stopping = asyncio.create_task(self._stop_there(one)) if one.kind == "still" else None
        node = None
        try:
            node = await self._stir(one, scene)
        finally:
            if stopping is not None:
                if node is None:
                    stopping.cancel()
                await asyncio.wait({stopping})
        return node

    async def _crawl(self, who: str) -> Node:
        nodes = await self._nodes(who)
        with crawling(nodes):
            await asyncio.sleep(QUOTA_S)
        return nodes[0]

    async def _stop_amid(self, one: Break, scene: Scene) -> Node:
        """At any moment of a change."""
        (node,) = await self._nodes(one.place["who"])
        change = asyncio.create_task(self._try(one.place["amid"], scene))
        await asyncio.sleep(scene.rng.uniform(0.0, AMID_S))
        async with standing_still(node):
            await asyncio.sleep(one.place["seconds"])
        await change
        return node

    async def _stop_there(self, one: Break) -> None:
        """The broker that comes to the place, or its peer, stands still before it goes on from there."""
        while (here := self._arms.reached()) is None:
            await asyncio.sleep(LOOK_S / 10)
        others = [node for node in self._cluster.nodes if node is not here]
        async with standing_still(here if one.place["who"] == "this one" else others[0]):
            self._arms.go_on()
            await asyncio.sleep(one.place["seconds"])

    async def _nodes(self, who: str) -> list[Node]:
        master = await self._cluster.the_master()
        if who == "all":
            return self._cluster.nodes
        others = [node for node in self._cluster.nodes if node is not master]
        return [master] if who == "master" else others[:1]

    # -- what makes a broker come to a place ---------------------------------------------------------

    async def _stir(self, one: Break, scene: Scene) -> Node | None:
        patience_s = (WAKE_S + STIRRED_S if one.kind == "thread" else STIRRED_S) * slowness()
        for name, stimulus in {**leading_to(self._kind, one), **self._stimuli()}.items():
            try:
                await stimulus(scene)
            except NotClean:
                if one.kind != "still":
                    raise
            except (NotSoInTime, RemotingError, ProtocolError) as error:
                self._count(f"times without success: {name}")
                if self._arms.reached() is None:
                    raise NotSoInTime(f"{name}, before anything was broken: {error}") from None
            await self._revive()
            if (node := await self._reached(patience_s)) is not None:
                self._count(f"reached by {name}")
                return node
            patience_s = STIRRED_S * slowness()
        return None

    def _stimuli(self) -> Mapping[str, Fault]:
        return {
            "questions": self._ask,
            "a restart of a slave": self._restart_slave,
            "a switchover": hand_over if isinstance(self._cluster, GroupCluster) else proc_faults.switchover,
            "a restart of the master": self._restart_master,
            "the master's death": _master_dies(self._cluster),
        }

    async def _try(self, name: str, scene: Scene) -> None:
        """Who stands still may not answer, or not end in time."""
        try:
            await self._stimuli()[name](scene)
        except (NotSoInTime, RemotingError, ProtocolError):
            self._count(f"times without success: {name}")

    async def _reached(self, seconds: float) -> Node | None:
        until_s = time.monotonic() + seconds
        while (node := self._arms.reached()) is None and time.monotonic() < until_s:
            await asyncio.sleep(LOOK_S)
        return node

    async def _ask(self, scene: Scene) -> None:
        """As monitoring does.  Who is broken meanwhile may not answer."""
        with contextlib.suppress(RemotingError, ProtocolError):
            for node in self._cluster.nodes:
                await self._cluster.ask(node.addr, RequestCode.GET_BROKER_HA_STATUS, HARuntimeInfo)
        for node in self._cluster.nodes:
            for page in ("/metrics", "/readyz"):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    await asyncio.to_thread(_get, node.ip, metrics_port(self._cluster, node), page)

    async def _restart_slave(self, scene: Scene) -> None:
        await self._close(await a_slave(scene))
        await self._revive()

    async def _restart_master(self, scene: Scene) -> None:
        await self._close(await self._cluster.the_master())
        await self._revive()

    # -- what has to be so afterwards -----------------------------------------------------------------

    async def _back(self, scene: Scene) -> None:
        """OK again; brokers that ended are started meanwhile."""
        history, until_s = scene.history, time.monotonic() + BACK_S * slowness()
        await self._revive()
        history.answered.clear()
        while not history.answered.is_set():
            if time.monotonic() > until_s:
                why = "; ".join(sorted(history.refusals)) or "no refusal"
                raise NotSoInTime(
                    f"no OK within {BACK_S * slowness():g} s ({why})\n{await self._cluster.describe()}"
                )
            await self._revive()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(history.answered.wait(), LOOK_S)

    async def _told(self, one: Break, node: Node) -> None:
        """What ended is told by its name: in what haStatus and check read, or by the process that ended for it."""
        name: str = one.place["thread"]
        said: dict[str, str] = {}

        async def is_told() -> bool:
            await self._revive()
            if f"thread {name} has failed" in self._last_words.get(node.name, ""):
                return True
            with contextlib.suppress(RemotingError, ProtocolError):
                said.update(
                    (await self._cluster.ask(node.addr, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)).table
                )
            return any(name in said.get(key, "") for key in ("failedThreads", "restartedThreads"))

        await self._cluster.until(is_told, f"{node.name} tells that {name} ended", TOLD_S)

    async def _close(self, node: Node) -> None:
        """SIGTERM, and a clean end."""
        if not node.running:
            return
        assert node.process is not None
        try:
            code = await asyncio.to_thread(node.process.stop)
        except ProcessDied as error:
            raise NotClean(f"closing is not clean: {error}") from None
        if code not in (0, EXIT_CODE):
            raise NotClean(f"closing is not clean: {node.name} ended with {code}\n{node.tail()}")

    async def _revive(self) -> None:
        """Starts every broker that has ended, again and again if that is refused.  Raises NotSoInTime."""
        for node in self._cluster.nodes:
            for attempt in range(STARTS_MAX):
                if node.running:
                    break
                self._look_at_end(node)
                try:
                    await self._cluster.run(node)
                except NotSoInTime:
                    if node.running or attempt == STARTS_MAX - 1:
                        raise
                    self._count("starts tried again")

    def _look_at_end(self, node: Node) -> None:
        """Raises NotSoInTime if a broker that served ended by itself, and not as its supervisor decides."""
        assert node.process is not None
        code = node.process.popen.returncode
        if code == EXIT_CODE:
            self._count("brokers that ended, and were started again")
            self._last_words[node.name] = node.process.output()
        elif code > 0 and node.process._boot_line in node.process.output():
            raise NotSoInTime(f"{node.name} ended by itself with {code}:\n{node.tail()}")


def _get(host: str, port: int, page: str) -> None:
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=HTTP_S)) as one:
        one.request("GET", page)
        one.getresponse().read()


async def hand_over(scene: Scene) -> None:
    """A planned change of a group, which names its members by their ids."""
    cluster = scene.cluster
    master = await cluster.the_master()
    header = SwitchoverHeader("", proc_faults.SWITCHOVER_MS)
    await cluster.call(master.addr, RequestCode.SWITCHOVER, header, proc_faults.SWITCHOVER_MS / 1000 + 5.0)
    await auto_faults.another(cluster, master)


def _master_dies(cluster: Cluster) -> Fault:
    if isinstance(cluster, AutoCluster):
        return auto_faults.kill_master
    if isinstance(cluster, GroupCluster):
        return group_faults.kill_master_until_another
    return proc_faults.failover


# -- rounds ------------------------------------------------------------------------------------------


class QuietPlay(Play):
    """The rounds of one cluster."""

    make_traffic: type[Traffic] = QuietTraffic

    def _judged(self, history: History, level_s: float, steps: Sequence[tuple[str, ...]]) -> Outcome:
        outcome = super()._judged(history, level_s, steps)
        if "" in history.refusals:
            outcome.findings.verdicts.append(
                Verdict(Violation.NOT_SETTLED, "a send was refused, and nobody said why", history.now_s)
            )
        return outcome


class QuietAutoPlay(QuietPlay):
    def _judged(self, history: History, level_s: float, steps: Sequence[tuple[str, ...]]) -> Outcome:
        """What a consumer was shown before any OK may be gone with the broker that showed it."""
        history.events = as_promised(history.events, is_async=False)
        return super()._judged(history, level_s, steps)


class QuietGroupPlay(QuietPlay):
    make_history = GroupHistory
    read_log = staticmethod(entry_messages)


def play_of(cluster: Cluster, faults: Mapping[str, Fault]) -> QuietPlay:
    if isinstance(cluster, AutoCluster):
        return QuietAutoPlay(cluster, faults)
    if isinstance(cluster, GroupCluster):
        return QuietGroupPlay(cluster, faults)
    return QuietPlay(cluster, faults)
