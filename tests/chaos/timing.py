"""How fast things go on after a fault, as figures for the report; nothing here passes or fails by a time.

    link flap       a connection is cut, or for a while nobody listens, or what comes is reset, or packets are
                    lost; until the log's bytes flow again, or a send is OK
    silence         the link passes nothing; until each side says that the other is gone
    promotion       PROMOTE, or SWITCHOVER, is sent; until the new master says OK to a send
    stalled slave   500 sends wait for a slave that stands still; how far beyond their deadline the last is
                    answered, and how soon after it goes on there is an OK again
    hostile         sends to a SYNC_MASTER while strangers crowd its HA port, against those before

What is measured is a machine's, and that of all who share it.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from haservice.client.raw_sends import RawMessage, send_command
from haservice.devtools.bench_replication import drive
from haservice.devtools.pair import ScratchPair
from haservice.errors import ProtocolError, RemotingError
from haservice.remoting.bodies.clients import HARuntimeInfo
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import (
    FollowHeader,
    LineageBody,
    PromoteHeader,
    SwitchoverBody,
    SwitchoverHeader,
)
from tests.chaos import hostile
from tests.chaos.netns import Hosts, NoHosts, run_in
from tests.chaos.proc_cluster import HEARTBEAT_MS, QUEUES, SETTINGS, TOPIC, Cluster, Node, NotSoInTime, Shape
from tests.chaos.report import Report

LAYER = "timing"
SENDS = 500
CONNECTIONS = 10
PATIENCE_S = 20.0
AWAY_S = (0.05, 0.5, 3.0)
LOST_S = (0.5, 3.0)
HOSTILE_SENDS, HOSTILE_IN_FLIGHT = 30_000, 64
SLAVE_TIMEOUT_S = int(SETTINGS["slaveTimeout"]) / 1000
BODY = b"x" * 512
_LOOK_S = 0.001


def run(rounds: int, seed: int, report: Report) -> None:
    """Each measurement so many times; `seed` is not used, for nothing is random."""
    root = Path(tempfile.mkdtemp(prefix="chaos-timing-"))
    try:
        _Timing(root, rounds, report).measure()
    finally:
        shutil.rmtree(root, ignore_errors=True)


class _Timing:
    def __init__(self, root: Path, rounds: int, report: Report) -> None:
        self._root = root
        self._rounds = rounds
        self._report = report
        self._count = 0
        self._seconds: dict[str, list[float]] = {}
        self._shares: dict[str, list[float]] = {}

    def measure(self) -> None:
        try:
            self._with(Shape(), self._flaps, self._silences, self._stalls, self._switchovers)
            self._on_hosts(self._losses)
            self._with(Shape(brokers=3), self._promotions)
            self._with(Shape(role="ASYNC_MASTER"), self._promotions)
            self._hostile()
        finally:
            for name, shares in self._shares.items():
                self._report.figure(LAYER, f"{name}: median", round(statistics.median(shares), 2))
                self._report.figure(LAYER, f"{name}: worst of {len(shares)}", round(min(shares), 2))
            for name, seconds in self._seconds.items():
                ordered = sorted(1000 * one for one in seconds)
                self._report.figure(LAYER, f"{name}, ms: median", round(statistics.median(ordered), 1))
                self._report.figure(LAYER, f"{name}, ms: worst of {len(ordered)}", round(ordered[-1], 1))

    def _on_hosts(self, *measurements: Callable[..., object]) -> None:
        try:
            hosts = Hosts(2)
        except NoHosts as error:
            self._report.figure(LAYER, "network namespaces", f"not used: {error}")
            return
        try:
            run_in(hosts.hub, lambda: self._with(Shape(links="netns"), *measurements, hosts=hosts))
        finally:
            hosts.close()

    def _with(self, shape: Shape, *measurements: Callable[..., object], hosts: Hosts | None = None) -> None:
        asyncio.run(self._on_cluster(shape, measurements, hosts))

    async def _on_cluster(
        self, shape: Shape, measurements: Sequence[Callable[..., object]], hosts: Hosts | None
    ) -> None:
        self._count += 1
        cluster = Cluster(self._root / str(self._count), shape, hosts)
        try:
            await cluster.start()
            for measurement in measurements:
                for number in range(self._rounds):
                    await cluster.until(cluster.is_caught_up, "the cluster is level", PATIENCE_S)
                    await measurement(cluster)  # type: ignore[misc]
                    self._report.progress(LAYER, number + 1, self._rounds)
        finally:
            await cluster.close()

    def _took(self, name: str, seconds: float) -> None:
        self._seconds.setdefault(name, []).append(seconds)
        self._report.recovery(LAYER, name, seconds)

    # -- links ---------------------------------------------------------------------------------------

    async def _flaps(self, cluster: Cluster) -> None:
        master = await cluster.the_master()
        proxy = cluster.proxies[master.name]
        over = asyncio.Event()
        traffic = asyncio.create_task(_keep_sending(cluster, master, over))
        try:
            await asyncio.sleep(0.1)
            proxy.cut()
            self._took("link cut until bytes flow", await _flowing(cluster, master))
            for away_s in AWAY_S:
                proxy.refuses = True
                proxy.cut()
                await asyncio.sleep(away_s)
                proxy.refuses = False
                name = f"link reset for {away_s:g} s until bytes flow"
                self._took(name, await _flowing(cluster, master))
            for away_s in AWAY_S:
                await proxy.shut()
                await asyncio.sleep(away_s)
                await proxy.open()
                name = f"nobody listens for {away_s:g} s until bytes flow"
                self._took(name, await _flowing(cluster, master))
        finally:
            over.set()
            await traffic

    async def _losses(self, cluster: Cluster) -> None:
        """Between hosts: packets are lost on their way, or the slave's own link is down."""
        hosts, master = cluster.hosts, await cluster.the_master()
        assert hosts is not None
        slave = next(node for node in cluster.nodes if node is not master)
        one, other = master.number, slave.number
        client, over = RemotingClient(), asyncio.Event()
        traffic = asyncio.create_task(_keep_sending(cluster, master, over))
        try:
            for lost_s in LOST_S:
                await _until_ok(client, master)
                hosts.lose(one, other)
                hosts.lose(other, one)
                await asyncio.sleep(lost_s)
                hosts.find(one, other)
                hosts.find(other, one)
                self._took(f"packets lost for {lost_s:g} s until OK", await _until_ok(client, master))
            await _until_ok(client, master)
            hosts.unplug(other)
            await asyncio.sleep(LOST_S[-1])
            hosts.plug(other)
            self._took(f"slave unplugged for {LOST_S[-1]:g} s until OK", await _until_ok(client, master))
        finally:
            over.set()
            hosts.find(one, other)
            hosts.find(other, one)
            hosts.plug(other)
            await traffic
            await client.close()

    async def _silences(self, cluster: Cluster) -> None:
        master = await cluster.the_master()
        slave = next(node for node in cluster.nodes if node is not master)
        proxy = cluster.proxies[master.name]

        async def master_knows() -> bool:
            status = await _ha_status(cluster, master)
            return status is not None and not status.ha_connection_info

        async def slave_knows() -> bool:
            status = await _ha_status(cluster, slave)
            client = None if status is None else status.ha_client_runtime_info
            return client is not None and client.state != "TRANSFER"

        began_s = time.monotonic()
        proxy.silence()
        try:
            for name, took_s in zip(
                ("a silent slave is noticed by its master", "a silent master is noticed by its slave"),
                await asyncio.gather(
                    *(_until(cluster, known, began_s) for known in (master_knows, slave_knows))
                ),
                strict=True,
            ):
                self._took(f"{name} (heartbeat {HEARTBEAT_MS} ms)", took_s)
        finally:
            proxy.cut()
            proxy.heal()

    # -- waiting sends -------------------------------------------------------------------------------

    async def _stalls(self, cluster: Cluster) -> None:
        master = await cluster.the_master()
        slave = next(node for node in cluster.nodes if node is not master)
        clients = [RemotingClient() for _ in range(CONNECTIONS)]
        try:
            for client in clients:
                await _send(client, master)
            slave.freeze()
            began_s = time.monotonic()
            sends = [_timed(clients[number % CONNECTIONS], master) for number in range(SENDS)]
            answers = await asyncio.gather(*sends)
            took = [seconds for _, seconds in answers]
            self._took(
                "500 sends, stalled slave: last answer after the deadline", max(took) - SLAVE_TIMEOUT_S
            )
            self._report.add(LAYER, "sends to a stalled slave's master", len(answers))
            self._report.add(LAYER, "of them without an answer", sum(code is None for code, _ in answers))
            self._report.add(LAYER, "of them OK", sum(code == 0 for code, _ in answers))
            await asyncio.sleep(max(0.0, 2 * SLAVE_TIMEOUT_S - (time.monotonic() - began_s)))
            slave.thaw()
            self._took("stalled slave goes on until OK", await _until_ok(clients[0], master))
        finally:
            slave.thaw()
            for client in clients:
                await client.close()

    # -- strangers -----------------------------------------------------------------------------------

    def _hostile(self) -> None:
        """Calm and crowded in turn, with nothing between the two brokers."""
        root = self._root / "hostile"
        root.mkdir()
        with ScratchPair(root, "SYNC_MASTER") as pair:
            pair.start()
            for number in range(self._rounds + 1):
                calm = self._sends(pair)
                with hostile.crowd(pair.ha_port()):
                    crowded = self._sends(pair)
                if number:  # the first one warms up
                    name = f"{hostile.SILENT} silent strangers and {hostile.CALLS_A_SECOND} a second more"
                    self._shares.setdefault(f"SYNC_MASTER sends beside {name}, of those without", []).append(
                        crowded / calm
                    )
                self._report.progress(LAYER, number, self._rounds)

    def _sends(self, pair: ScratchPair) -> float:
        load = asyncio.run(drive(pair.master_addr, BODY, HOSTILE_IN_FLIGHT, HOSTILE_SENDS))
        self._report.add(LAYER, "sends beside strangers not OK", load.not_ok)
        return load.per_second

    # -- roles ---------------------------------------------------------------------------------------

    async def _switchovers(self, cluster: Cluster) -> None:
        master = await cluster.the_master()
        client = RemotingClient()
        try:
            began_s = time.monotonic()
            done = await cluster.ask(
                master.addr, RequestCode.SWITCHOVER, SwitchoverBody, SwitchoverHeader("", 10_000), 15.0
            )
            new = cluster.node_at(done.new_master)
            assert new is not None
            await _until_ok(client, new)
            self._took("switchover until OK, SYNC_MASTER pair", time.monotonic() - began_s)
        finally:
            await client.close()

    async def _promotions(self, cluster: Cluster) -> None:
        """With a SYNC_MASTER there are two slaves: alone, the new master has nobody to be in sync with."""
        old = await cluster.the_master()
        others = [node for node in cluster.nodes if node is not old]
        client = RemotingClient()
        try:
            old.kill()
            new = others[0]
            before = await cluster.lineage(new)
            assert before is not None
            began_s = time.monotonic()
            header = PromoteHeader(min_epoch=before.epoch + 1, why="timing")
            body = await cluster.ask(new.addr, RequestCode.PROMOTE, LineageBody, header, PATIENCE_S)
            follow = FollowHeader(body.broker_addr, body.ha_addr, body.epoch, "timing")
            for node in others[1:]:
                await cluster.call(node.addr, RequestCode.FOLLOW, follow, PATIENCE_S)
            await _until_ok(client, new)
            self._took(f"promotion until OK, {cluster.shape.role}", time.monotonic() - began_s)
            await cluster.run(old)
        finally:
            await client.close()


async def _send(client: RemotingClient, to: Node, timeout_s: float = PATIENCE_S) -> int | None:
    """The answer's code; None without one."""
    command = send_command(TOPIC, int(time.monotonic() * 1e6) % QUEUES, RawMessage(BODY, {"KEYS": "timing"}))
    try:
        return (await client.invoke(to.addr, command, timeout_s)).code
    except RemotingError:
        return None


async def _timed(client: RemotingClient, to: Node) -> tuple[int | None, float]:
    began_s = time.monotonic()
    code = await _send(client, to)
    return code, time.monotonic() - began_s


async def _until_ok(client: RemotingClient, to: Node) -> float:
    """One send after the other, without a pause but for what cannot be reached."""
    began_s = time.monotonic()
    while (code := await _send(client, to, 1.0)) != 0:
        if time.monotonic() - began_s > PATIENCE_S:
            raise NotSoInTime(f"{to.name} says OK: not so within {PATIENCE_S:g} s, code {code}")
        await asyncio.sleep(_LOOK_S)
    return time.monotonic() - began_s


async def _keep_sending(cluster: Cluster, to: Node, over: asyncio.Event) -> None:
    while not over.is_set():
        await _send(cluster.client, to, 2.0)


async def _flowing(cluster: Cluster, master: Node) -> float:
    """Until bytes of the log pass the proxy."""
    proxy, began_s = cluster.proxies[master.name], time.monotonic()
    had = proxy.down_bytes
    hello_bytes = 4096  # of a greeting; records of 512 bytes come a dozen at a time
    while proxy.down_bytes - had < hello_bytes:
        if time.monotonic() - began_s > PATIENCE_S:
            raise NotSoInTime(f"bytes flow to the slave: not so within {PATIENCE_S:g} s")
        await asyncio.sleep(_LOOK_S)
    return time.monotonic() - began_s


async def _ha_status(cluster: Cluster, node: Node) -> HARuntimeInfo | None:
    try:
        return await cluster.ask(node.addr, RequestCode.GET_BROKER_HA_STATUS, HARuntimeInfo)
    except (RemotingError, ProtocolError):
        return None


async def _until(cluster: Cluster, condition: Callable[[], object], began_s: float) -> float:
    """Seconds since `began_s`, or a NotSoInTime."""
    while not await condition():  # type: ignore[misc]
        if time.monotonic() - began_s > PATIENCE_S:
            raise NotSoInTime(f"noticed: not so within {PATIENCE_S:g} s\n{await cluster.describe()}")
        await asyncio.sleep(0.005)
    return time.monotonic() - began_s
