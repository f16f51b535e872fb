"""Three real coordinators, etcd or ZooKeeper, each a host of its own, beside the brokers whose judge they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import urllib.request
from pathlib import Path

from tests.chaos.netns import Hosts, run_in
from tests.chaos.proc_cluster import Cluster, Node, NotSoInTime, Shape
from tests.support.coordinators import (
    ETCD_MISSING,
    ETCD_QUESTION,
    ZOOKEEPER_MISSING,
    ZOOKEEPER_QUESTION,
    Server,
    etcd_command,
    zookeeper_command,
)

COORDINATORS = 3
MISSING = {"etcd": ETCD_MISSING, "zookeeper": ZOOKEEPER_MISSING}
_ETCD_PORTS = (2379, 2380)
_ZOOKEEPER_PORTS = (2181, 2888, 3888)
_ASK_S = 1.0


class Coordinators:
    """Of one kind, at the hosts of these numbers.  Calls block, and are made from the hub."""

    def __init__(self, root: Path, kind: str, hosts: Hosts, first: int) -> None:
        """The files of server N are in `root`/coordinatorN."""
        self.kind = kind
        self.numbers = range(first, first + COORDINATORS)
        self._namespaces = [hosts.names[number] for number in self.numbers]
        self.running = [False] * COORDINATORS
        ips = [hosts.addrs[number] for number in self.numbers]
        make = {"etcd": _etcd, "zookeeper": _zookeeper}[kind]
        self.servers = [make(root / f"coordinator{at}", at, ips) for at in range(COORDINATORS)]
        self.url = f"{kind}://" + ",".join(f"{one.host}:{one.port}" for one in self.servers)

    def start(self, at: int) -> None:
        """It may not answer yet."""
        if not self.running[at]:
            run_in(self._namespaces[at], self.servers[at].start)
            self.running[at] = True

    def start_all(self) -> None:
        """Those that do not run; returns when each has answered.  Raises NotSoInTime."""
        for at in range(COORDINATORS):
            self.start(at)
        for server in self.servers:
            try:
                server.answers()
            except AssertionError as error:
                raise NotSoInTime(str(error)) from None

    def kill(self, at: int) -> None:
        self.servers[at].stop()
        self.running[at] = False

    def leader(self) -> int:
        """Which one leads; the first one if nobody says so."""
        for at, server in enumerate(self.servers):
            with contextlib.suppress(OSError, ValueError, KeyError):
                if self.running[at] and _LEADS[self.kind](server):
                    return at
        return 0

    def close(self) -> None:
        """May be called twice."""
        for at in range(COORDINATORS):
            self.kill(at)


def _etcd(directory: Path, at: int, ips: list[str]) -> Server:
    directory.mkdir()
    port, peer_port = _ETCD_PORTS
    peers = ",".join(f"n{number}=http://{one}:{peer_port}" for number, one in enumerate(ips))
    words = etcd_command(at, directory, f"http://{ips[at]}:{port}", f"http://{ips[at]}:{peer_port}", peers)
    return Server(words, port, directory, ETCD_QUESTION, ips[at])


def _zookeeper(directory: Path, at: int, ips: list[str]) -> Server:
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "myid").write_text(f"{at + 1}\n")
    port, peer_port, vote_port = _ZOOKEEPER_PORTS
    lines = ["initLimit=10", "syncLimit=4"]
    lines += [f"server.{number}={one}:{peer_port}:{vote_port}" for number, one in enumerate(ips, 1)]
    words = zookeeper_command(directory, ips[at], port, tuple(lines))
    return Server(words, port, directory, ZOOKEEPER_QUESTION, ips[at])


def _leads_etcd(server: Server) -> bool:
    url = f"http://{server.host}:{server.port}/v3/maintenance/status"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=_ASK_S) as answer:
        said = json.load(answer)
    return bool(said["leader"] == said["header"]["member_id"])


def _leads_zookeeper(server: Server) -> bool:
    with socket.create_connection((server.host, server.port), _ASK_S) as one:
        one.sendall(b"srvr")
        said = b""
        while more := one.recv(4096):
            said += more
    return b"Mode: leader" in said


_LEADS = {"etcd": _leads_etcd, "zookeeper": _leads_zookeeper}


class AutoCluster(Cluster):
    """Brokers that fail over by themselves; its hosts are brokers, nameserver, coordinators."""

    def __init__(self, root: Path, shape: Shape, hosts: Hosts, kind: str, settings: dict[str, str]) -> None:
        super().__init__(root, shape, hosts)
        self.coordinators = Coordinators(root, kind, hosts, shape.hosts)
        self._up = False
        self._booted_s: dict[str, float] = {}
        for node in self.nodes:
            node.extra = {"haCoordinator": self.coordinators.url, **settings}

    async def start(self) -> None:
        await self.heal_coordinators()
        await super().start()
        self._up = True

    async def run(self, node: Node) -> None:
        """The first of all is to be the master before it is told topics."""
        await super().run(node)
        if not self._up:
            await self.the_master()

    async def booted(self, node: Node) -> None:
        await super().booted(node)
        self._booted_s[node.name] = time.monotonic()

    def youngest_s(self) -> float:
        """How long each broker has been up, at least."""
        return time.monotonic() - max(self._booted_s.values())

    async def heal_coordinators(self) -> None:
        """Those that were killed run again, and answer."""
        await asyncio.to_thread(self.coordinators.start_all)

    async def close(self) -> None:
        await super().close()
        self.coordinators.close()
