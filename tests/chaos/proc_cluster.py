"""Real brokers of one name as processes, with a nameserver, whose links can be made to fail.

    links "proxy"   all on loopback; a master's slaves come to it through its LinkProxy, and with several
                    nameservers each broker to each of them through one more
    links "netns"   each broker a host of its own, see netns.py; so is each nameserver, if hosts are left
    disks           each store on a small file system of its own, see power_disk.py
    shim            flushes of the brokers can fail or be late, and their clocks jump, see libc_shim.py

A Cluster belongs to one asyncio loop.  close() ends every process and host, and says nothing of files: they
lie below `root` until someone removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from haservice.devtools.pair import BROKER_PORTS, Process, free_port_block
from haservice.errors import HAServiceError, ProtocolError, RemotingError
from haservice.remoting.bodies.clients import MASTER_ID, ClusterInfo, HARuntimeInfo, KVTable
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import CreateTopicHeader, ExtHeader
from haservice.remoting.headers.lineage import LineageBody
from haservice.remoting.json_body import JSONBody
from tests.chaos.libc_shim import LibcShim
from tests.chaos.netns import HUB_ADDR, Hosts, run_in
from tests.chaos.power_disk import Disk
from tests.chaos.proxy import LinkProxy
from tests.support.standing_still import freeze
from tests.support.waiting import slowness

Body = TypeVar("Body", bound=JSONBody)

BROKER = "broker-a"
TOPIC = "Chaos"
QUEUES = 4
SEGMENT_BYTES = 1024 * 1024
# Where slaves are told that a master is: its proxy.
PROXY_HOST = "127.0.0.2"
HEARTBEAT_MS = 500
ASK_S = 2.0
LOOK_S = 0.05
DISK_MB = 256
STILL_S = 5.0

SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "maxMessageSize": "65536",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "haSendHeartbeatInterval": str(HEARTBEAT_MS),
    "haHousekeepingInterval": str(3 * HEARTBEAT_MS),
    "slaveTimeout": "1000",
    "syncFlushTimeout": "2000",
    "maxTransferCountOnMessageInMemory": "256",
    "maxTransferCountOnMessageInDisk": "256",
    "autoCreateTopicEnable": "false",
    "registerNameServerPeriod": "10000",
}


class Shape(NamedTuple):
    """What a cluster is; rounds of one shape may share one."""

    flush: str = "ASYNC_FLUSH"
    links: str = "proxy"
    brokers: int = 2
    role: str = "SYNC_MASTER"
    in_sync: int = 1
    """inSyncReplicas."""
    nameservers: int = 1
    offices: bool = False
    """With links "netns": each nameserver is a host of its own, and who administers sits at the first."""
    disks: bool = False
    shim: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    """Of every broker."""
    clients: tuple[str, ...] = ()
    """Topics of further clients, see proc_kinds.clients_of()."""

    @property
    def hosts(self) -> int:
        """How many hosts it takes."""
        return self.brokers + (self.nameservers if self.offices else 0)

    @property
    def copies(self) -> int:
        """How many brokers an OK of a SYNC_MASTER stands for."""
        return max(2, self.in_sync)

    def __str__(self) -> str:
        words = [f"{self.brokers} brokers", self.role, self.flush, self.links]
        words += [f"inSyncReplicas {self.in_sync}"] if self.in_sync > 1 else []
        words += [f"{self.nameservers} nameservers"] if self.nameservers > 1 else []
        words += ["disks of their own"] if self.disks else []
        return ", ".join([*words, *self.clients])


class NotSoInTime(Exception):
    """Something did not become so before its deadline; the text says what was so instead."""


class Node:
    """One broker, whether its process runs or not."""

    def __init__(self, root: Path, number: int, ip: str, port: int, namesrv: str, ns: str | None) -> None:
        self.number = number
        self.name = f"n{number}"
        self.root = root / self.name
        self.ip = ip
        self.port = port
        self.ns = ns
        self.process: Process | None = None
        self.frozen = False
        self.extra: dict[str, str] = {}
        self.shim: LibcShim | None = None
        self.module: str | None = None
        """Has the command that it runs, if that is another one than the product's own."""
        self.env: dict[str, str] = {}
        self.log_directory = "commitlog"
        """Below its root."""
        self._namesrv = namesrv
        self._directory = root

    @property
    def addr(self) -> str:
        return f"{self.ip}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.popen.poll() is None

    @property
    def commitlog(self) -> Path:
        return self.root / self.log_directory

    def launch(self, shape: Shape) -> None:
        """Starts the process; it is not up yet."""
        assert not self.running, f"{self.name} runs"
        lines = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": BROKER,
            "brokerId": str(self.number),
            "brokerRole": shape.role if self.number == 0 else "SLAVE",
            "flushDiskType": shape.flush,
            "namesrvAddr": self._namesrv,
            "bindAddress": self.ip,
            "brokerIP1": self.ip,
            "brokerIP2": PROXY_HOST if shape.links == "proxy" else self.ip,
            "listenPort": str(self.port),
            "storePathRootDir": str(self.root),
            "inSyncReplicas": str(shape.in_sync),
            **SETTINGS,
            **dict(shape.settings),
            **self.extra,
        }
        path = self._directory / f"{self.name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        log = self._directory / f"{self.name}.log"
        env = {**self.env, **({} if self.shim is None else self.shim.env)}
        words = ["-c", str(path)]
        self.process = run_in(
            self.ns, lambda: Process(self.name, "mqbroker", words, log, "The broker[", env, self.module)
        )
        self.frozen = False

    def kill(self) -> None:
        if self.running and self.process is not None:
            self.process.kill()

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        if self.running and self.frozen and self.process is not None:
            os.kill(self.process.pid, signal.SIGCONT)
        self.frozen = False

    def tail(self) -> str:
        return "" if self.process is None else self.process.tail()


@contextlib.asynccontextmanager
async def all_still(nodes: Sequence[Node]) -> AsyncIterator[None]:
    """No flush of theirs is on its way meanwhile: for what is done to their disks.

    When an ext4 is shut down, or its journal aborted, the fdatasync that it is amid says that all is on disk, and
    that is lost: 43 of 300 tries.  No disk lies so that loses its power, and no program can know.
    """
    running = [node for node in nodes if node.running and not node.frozen]
    try:
        for node in running:
            assert node.process is not None
            with contextlib.suppress(AssertionError):  # its disk may hang
                await asyncio.to_thread(freeze, node.process.popen, STILL_S)
            node.frozen = True
        yield
    finally:
        for node in running:
            node.thaw()


class NameServer:
    """One of them, whether its process runs or not; what it knows it has from brokers that are there."""

    def __init__(self, root: Path, number: int, ip: str, port: int, ns: str | None) -> None:
        self.number = number
        self.name = "namesrv" if number == 0 else f"namesrv{number}"
        self.ip = ip
        self.port = port
        self.ns = ns
        self.process: Process | None = None
        self._root = root

    @property
    def addr(self) -> str:
        return f"{self.ip}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.popen.poll() is None

    def launch(self) -> Process:
        path = self._root / f"{self.name}.properties"
        lines = {
            "listenPort": str(self.port),
            "bindAddress": self.ip,
            "kvConfigPath": str(self._root / f"{self.name}-kvConfig.json"),
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        log = self._root / f"{self.name}.log"
        boot_line = "The Name Server boot success"
        self.process = run_in(
            self.ns, lambda: Process(self.name, "mqnamesrv", ["-c", str(path)], log, boot_line)
        )
        return self.process

    def signal(self, number: int) -> None:
        if self.running and self.process is not None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.running and self.process is not None:
            self.process.kill()


class Cluster:
    """Made, started, asked, closed."""

    disk_mb = DISK_MB

    def __init__(self, root: Path, shape: Shape, hosts: Hosts | None = None) -> None:
        """With links "netns" the caller makes the hosts, lives in their hub, and closes them."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.shape = shape
        self.hosts = hosts
        count, names = shape.brokers, shape.nameservers
        first = free_port_block(names + 2 + count * BROKER_PORTS)
        ips = hosts.addrs if hosts is not None else ["127.0.0.1"] * count
        namespaces: list[str | None] = [*hosts.names] if hosts is not None else [None] * count
        offices = [count + number if shape.offices and hosts is not None else -1 for number in range(names)]
        hub = HUB_ADDR if hosts is not None else "127.0.0.1"
        self.namesrvs = [
            NameServer(
                root,
                number,
                ips[office] if office >= 0 else hub,
                first + number,
                namespaces[office] if office >= 0 else None,
            )
            for number, office in enumerate(offices)
        ]
        self.namesrv = self.namesrvs[0].addr
        self.office: str | None = self.namesrvs[0].ns
        """The namespace in which who administers sits; None: where this process is."""
        first += names
        self.nodes = [
            Node(
                root,
                number,
                ips[number],
                first + 2 + number * BROKER_PORTS,
                ";".join(f"{self._namesrv_host(number, one)}:{one.port}" for one in self.namesrvs),
                namespaces[number],
            )
            for number in range(count)
        ]
        self.disks: list[Disk] = []
        self.name_links: dict[tuple[int, int], LinkProxy] = {}
        """By the numbers of a broker and of a nameserver: the broker's way there."""
        self.proxies: dict[str, LinkProxy] = {}
        self.client = RemotingClient(connect_timeout_s=1.0)

    def _namesrv_host(self, number: int, namesrv: NameServer) -> str:
        """Where broker `number` finds the nameserver."""
        return f"127.0.1.{number + 1}" if self._links_names else namesrv.ip

    @property
    def _links_names(self) -> bool:
        return self.shape.links == "proxy" and self.shape.nameservers > 1

    def node_at(self, addr: str) -> Node | None:
        return next((one for one in self.nodes if one.addr == addr), None)

    # -- processes -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Everything, level, and every broker has the topics."""
        if self.shape.links == "proxy":
            for node in self.nodes:
                proxy = LinkProxy((node.ip, node.port + 1))
                await proxy.start(PROXY_HOST, node.port + 1)
                self.proxies[node.name] = proxy
        if self._links_names:
            for node in self.nodes:
                for namesrv in self.namesrvs:
                    link = LinkProxy((namesrv.ip, namesrv.port))
                    await link.start(self._namesrv_host(node.number, namesrv), namesrv.port)
                    self.name_links[node.number, namesrv.number] = link
        for node in self.nodes:
            if self.shape.disks:
                disk = await asyncio.to_thread(Disk, self.root / f"disk{node.number}", self.disk_mb)
                self.disks.append(disk)
                node.root = disk.store
            if self.shape.shim:
                node.shim = LibcShim(self.root / f"{node.name}.shim")
        for namesrv in self.namesrvs:
            await self._booted(namesrv.launch())
        await self.start_brokers()
        await self.until(self.is_caught_up, "the cluster is level at its start", 30.0)

    async def start_brokers(self) -> None:
        """The topics are there before the slaves, which copy them when they start."""
        await self.run(self.nodes[0])
        await self.create_topics(self.nodes[0])
        for node in self.nodes[1:]:
            node.launch(self.shape)
        for node in self.nodes[1:]:
            await self.booted(node)

    async def create_topics(self, master: Node) -> None:
        for topic in (TOPIC, *self.shape.clients):
            header = CreateTopicHeader(topic, "TBW102", QUEUES, QUEUES, 6)
            await self.call(master.addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header, 30.0 * slowness())

    async def run(self, node: Node) -> None:
        """Starts a broker; returns when it is up."""
        node.launch(self.shape)
        await self.booted(node)

    async def run_namesrv(self, namesrv: NameServer) -> None:
        await self._booted(namesrv.launch())

    async def booted(self, node: Node) -> None:
        assert node.process is not None
        await self._booted(node.process)

    async def _booted(self, process: Process, seconds: float = 120.0) -> None:
        deadline_s = time.monotonic() + seconds * slowness()
        while process._boot_line not in process.output():
            if process.popen.poll() is not None:
                raise NotSoInTime(f"{process.name} ended with {process.popen.returncode}:\n{process.tail()}")
            if time.monotonic() > deadline_s:
                raise NotSoInTime(f"{process.name} is not up after {seconds:g} s:\n{process.tail()}")
            await asyncio.sleep(0.01)

    async def stop(self, node: Node) -> None:
        """SIGTERM, and its end."""
        assert node.process is not None
        await asyncio.to_thread(node.process.stop)

    async def close(self) -> None:
        """May be called twice."""
        for disk in self.disks:
            disk.go_on()  # who waits for a disk cannot be killed
        for node in self.nodes:
            node.kill()
        for namesrv in self.namesrvs:
            namesrv.kill()
        await self.client.close()
        for proxy in (*self.proxies.values(), *self.name_links.values()):
            await proxy.close()
        for disk in self.disks:
            await asyncio.to_thread(disk.close)
        self.disks.clear()

    def keep_stores(self) -> None:
        """Before close(): stores on disks of their own are copied to where the other files are."""
        for node, disk in zip(self.nodes, self.disks, strict=False):
            node.kill()
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(disk.store, self.root / node.name, dirs_exist_ok=True)

    # -- questions -----------------------------------------------------------------------------------

    async def call(
        self, addr: str, code: RequestCode, header: ExtHeader | None = None, timeout_s: float = ASK_S
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, None if header is None else header.encode())
        return expect(addr, await self.client.invoke(addr, command, timeout_s))

    async def ask(
        self,
        addr: str,
        code: RequestCode,
        into: type[Body],
        header: ExtHeader | None = None,
        timeout_s: float = ASK_S,
    ) -> Body:
        return into.decode((await self.call(addr, code, header, timeout_s)).body)

    async def lineage(self, node: Node) -> LineageBody | None:
        """What the broker says; None while it does not."""
        if not node.running or node.frozen:
            return None
        try:
            return await self.ask(node.addr, RequestCode.GET_LINEAGE, LineageBody)
        except (RemotingError, ProtocolError):
            return None

    async def lineages(self) -> dict[str, LineageBody | None]:
        bodies = await asyncio.gather(*(self.lineage(node) for node in self.nodes))
        return {node.name: body for node, body in zip(self.nodes, bodies, strict=True)}

    async def master(self) -> Node | None:
        """Who is the master of the newest epoch, or of a group's newest term, and takes messages."""
        said = await self.lineages()
        masters = [
            (max(body.epoch, body.group_epoch), node)
            for node in self.nodes
            if (body := said[node.name]) is not None
            and body.is_master
            and not body.changing
            and not body.held
        ]
        return max(masters, key=lambda one: one[0])[1] if masters else None

    async def the_master(self, seconds: float = 30.0) -> Node:
        """As master(), with patience.  Raises NotSoInTime."""
        found: list[Node] = []

        async def there() -> bool:
            node = await self.master()
            if node is not None:
                found.append(node)
            return node is not None

        await self.until(there, "there is a master", seconds)
        return found[-1]

    async def is_caught_up(self) -> bool:
        """One master; every other broker is in sync with it, and holds and has dispatched what it has."""
        said = await self.lineages()
        bodies = [body for body in said.values() if body is not None]
        if len(bodies) < len(self.nodes) or sum(body.is_master for body in bodies) != 1:
            return False
        if len({(body.log_end, body.epoch) for body in bodies}) != 1 or any(
            b.held or b.changing for b in bodies
        ):
            return False
        master = next(body for body in bodies if body.is_master)
        try:
            status = await self.ask(master.broker_addr, RequestCode.GET_BROKER_HA_STATUS, HARuntimeInfo)
            if sum(slave.in_sync for slave in status.ha_connection_info) < len(self.nodes) - 1:
                return False
            for node in self.nodes:
                info = await self.ask(node.addr, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)
                if info.table["dispatchBehindBytes"] != "0":
                    return False
        except (RemotingError, ProtocolError):
            return False
        return True

    async def namesrvs_agree(self) -> bool:
        """Every nameserver names the one master."""
        said = await self.lineages()
        masters = {body.broker_addr for body in said.values() if body is not None and body.is_master}
        for namesrv in self.namesrvs:
            try:
                info = await self.ask(namesrv.addr, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)
            except (RemotingError, ProtocolError):
                return False
            data = info.broker_addr_table.get(BROKER)
            if data is None or {data.broker_addrs.get(MASTER_ID)} != masters:
                return False
            if len(data.broker_addrs) != len(self.nodes):
                return False
        return True

    async def until(self, condition: Callable[[], object], what: str, seconds: float) -> float:
        """Waits for an awaitable condition; the seconds that it took.  Raises NotSoInTime with what is so.

        `seconds` are those of a quiet machine.
        """
        began_s, seconds = time.monotonic(), seconds * slowness()
        while True:
            if await condition():  # type: ignore[misc]
                return time.monotonic() - began_s
            if time.monotonic() - began_s >= seconds:
                raise NotSoInTime(f"{what}: not so within {seconds:g} s\n{await self.describe()}")
            await asyncio.sleep(LOOK_S)

    async def describe(self) -> str:
        """Who says what, for a failure."""
        lines = []
        for node in self.nodes:
            body = await self.lineage(node)
            state = "runs" if node.running else "ended"
            if body is not None:
                epochs = " ".join(f"{one.epoch}@{one.start}" for one in body.epochs)
                state = (
                    f"{body.role} ({body.role_from}) log {body.log_start}..{body.log_end} epochs {epochs}"
                    f" held={body.held!r} changing={body.changing} master={body.master_addr} {body.role_why}"
                )
            lines.append(f"{node.name} {node.addr}{' frozen' if node.frozen else ''}: {state}")
        return "\n".join(lines)

    # -- files ---------------------------------------------------------------------------------------

    def segments(self, node: Node) -> list[int]:
        """Where each segment of a broker's log begins."""
        return sorted(int(path.name) for path in node.commitlog.iterdir())

    def log_bytes(self, node: Node, end: int, start: int = 0) -> bytes:
        """The bytes [start, end) of a broker's log, from its files.  Raises HAServiceError for a hole."""
        parts = []
        for path in sorted(node.commitlog.iterdir()):
            base = int(path.name)
            low, high = max(start, base), min(end, base + SEGMENT_BYTES)
            if low < high:
                with path.open("rb") as file:
                    file.seek(low - base)
                    parts.append(file.read(high - low))
        data = b"".join(parts)
        if len(data) != end - start:
            raise HAServiceError(f"{node.name} has {len(data)} bytes of [{start}, {end}) in its files")
        return data
