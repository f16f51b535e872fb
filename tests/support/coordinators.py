"""Real coordinators: etcd and ZooKeeper, on loopback or at hosts of our own; what is missing is said.

A server has a directory of its own, dies with `stop`, and can be stopped and started again with what it had.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from haservice.coordination.coordinator import Coordinator, CoordinatorError
from haservice.devtools.pair import free_port_block
from tests.support.certificates import certificates, signed
from tests.support.quick_java import QUICK_JAVA
from tests.support.standing_still import freeze, thaw

ETCD_MISSING = "" if shutil.which("etcd") else "etcd is not there: apt-get install etcd-server"
ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
ZOOKEEPER_MISSING = (
    ""
    if ZOOKEEPER_JAR.exists() and shutil.which("java")
    else "ZooKeeper is not there: apt-get install zookeeper"
)
# Where a disk is busy, a server that syncs each change answers after its clients have given up.
MEMORY = Path("/dev/shm")
START_SECONDS = 30.0
TICK_MS = 1000
ETCD_QUESTION = b"GET /health HTTP/1.0\r\n\r\n"
ZOOKEEPER_QUESTION = b"ruok"


class Server:
    """One process that listens at a port, of loopback if nothing else is said."""

    def __init__(
        self, command: list[str], port: int, directory: Path, question: bytes, host: str = "127.0.0.1"
    ) -> None:
        self.port = port
        self.host = host
        self._question = question
        self._command = command
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._directory)

    def answers(self) -> None:
        """Waits until it answers to its question."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + START_SECONDS:
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1.0) as one:
                one.sendall(self._question)
                if one.recv(100):
                    return
            time.sleep(0.05)
        log = self._log.read_text(errors="replace")
        raise AssertionError(f"{self._command[0]} does not answer at {self.host}:{self.port}:\n{log[-2000:]}")

    @property
    def _log(self) -> Path:
        name = "" if self.host == "127.0.0.1" else f"{self.host}-"
        return self._directory / f"{name}{self.port}.log"

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            thaw(process)
            process.kill()
            process.wait(10)

    @property
    def data(self) -> Path:
        """Of etcd: where it keeps what it was told."""
        return Path(self._command[self._command.index("--data-dir") + 1])

    def keep(self, copy: Path) -> None:
        """Copies what it was told so far, as a backup does."""
        self.stop()
        shutil.copytree(self.data, copy)
        self.start()
        self.answers()

    def empty(self, copy: Path | None = None) -> None:
        """What it was told is gone, or is what a backup has."""
        self.stop()
        shutil.rmtree(self.data)
        if copy is not None:
            shutil.copytree(copy, self.data)
        self.start()
        self.answers()

    def freeze(self) -> None:
        assert self._process is not None
        freeze(self._process)

    def thaw(self) -> None:
        assert self._process is not None
        thaw(self._process)


def opened(coordinator: Coordinator, ttl_s: float) -> bool:
    """A server that was just started, on a busy machine, may be late: whoever asks asks again, as a broker does."""
    try:
        return coordinator.open_session(ttl_s) > 0
    except CoordinatorError:
        return False


@contextmanager
def _running(servers: list[Server]) -> Iterator[list[Server]]:
    try:
        for one in servers:
            one.start()
        for one in servers:
            one.answers()
        yield servers
    finally:
        for one in servers:
            one.stop()


@contextmanager
def _data(directory: Path) -> Iterator[Path]:
    """A directory for what a server syncs: in memory where that can be."""
    if not MEMORY.is_dir():
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="haservice-", dir=MEMORY) as made:
        yield Path(made)


def etcd_command(at: int, directory: Path, client_url: str, peer_url: str, cluster: str) -> list[str]:
    """Node `at` of a cluster, n0=PEER_URL,n1=…"""
    words = ["etcd", "--name", f"n{at}", "--data-dir", str(directory / f"n{at}")]
    words += ["--listen-client-urls", client_url, "--advertise-client-urls", client_url]
    words += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
    return [*words, "--initial-cluster", cluster]


def token_options(kind: str) -> tuple[str, ...]:
    """For an etcd that wants a login: simple tokens, or jwt, which hold until users or roles are changed."""
    cheap = ("--bcrypt-cost", "4")
    if kind == "simple":
        return cheap
    certificate, key = signed("etcd", ip="127.0.0.1")
    return (*cheap, "--auth-token", f"jwt,pub-key={certificate},priv-key={key},sign-method=ES256")


def wants_a_login(server: Server) -> None:
    """From now on etcd serves only who logs in; root's password is `secret`."""
    ask_etcd(server, "auth/user/add", {"name": "root", "password": "secret"})
    ask_etcd(server, "auth/role/add", {"name": "root"})
    ask_etcd(server, "auth/user/grant", {"user": "root", "role": "root"})
    ask_etcd(server, "auth/enable", {})


def ask_etcd(
    server: Server, path: str, what: dict[str, Any], user: str = "", password: str = "secret"
) -> dict[str, Any]:
    """One call, as etcdctl makes it."""
    token = ""
    if user:
        token = ask_etcd(server, "auth/authenticate", {"name": user, "password": password})["token"]
    url = f"http://{server.host}:{server.port}/v3/{path}"
    request = urllib.request.Request(
        url, json.dumps(what).encode(), {"Authorization": token} if token else {}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        said: dict[str, Any] = json.loads(answer.read())
        return said


def fill_etcd(server: Server) -> None:
    """Writes until its quota is full; a small one is wanted."""
    put = {"key": b64encode(b"ballast").decode(), "value": b64encode(b"x" * 50_000).decode()}
    for _ in range(1000):
        try:
            ask_etcd(server, "kv/put", put)
        except urllib.error.HTTPError as error:
            if "database space exceeded" in error.read().decode():
                return
            raise
        time.sleep(0.01)  # it counts what it has written to its file, ten times a second
    raise AssertionError("its quota is too large to be filled")


def empty_etcd(server: Server) -> None:
    """What the docs advise for an etcd that is full: compact, defragment, disarm."""
    status = ask_etcd(server, "maintenance/status", {})
    ask_etcd(server, "kv/compaction", {"revision": status["header"]["revision"], "physical": True})
    ask_etcd(server, "maintenance/defragment", {})
    for alarm in ask_etcd(server, "maintenance/alarm", {"action": "GET"}).get("alarms", []):
        ask_etcd(server, "maintenance/alarm", {"action": "DEACTIVATE", **alarm})


@contextmanager
def etcd(directory: Path, nodes: int = 1, more: tuple[str, ...] = ()) -> Iterator[list[Server]]:
    """So many nodes of one cluster; elections take a second at most.  `more` are options of each."""
    first = free_port_block(2 * nodes)
    ports = range(first, first + 2 * nodes)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    cluster = ",".join(f"n{at}={urls[nodes + at]}" for at in range(nodes))
    servers = []
    with _data(directory) as data:
        for at in range(nodes):
            words = etcd_command(at, data, urls[at], urls[nodes + at], cluster)
            words += ["--heartbeat-interval", "50", "--election-timeout", "500", *more]
            servers.append(Server(words, ports[at], directory, ETCD_QUESTION))
        with _running(servers):
            yield servers


@contextmanager
def etcd_with_tls(directory: Path) -> Iterator[Server]:
    """One node that takes only clients with a certificate of the root's, as it has one itself."""
    port = free_port_block(3)
    peer_port, metrics_port = port + 1, port + 2
    certificate, key = signed("etcd", ip="127.0.0.1")
    peer = f"http://127.0.0.1:{peer_port}"
    with _data(directory) as data:
        words = etcd_command(0, data, f"https://127.0.0.1:{port}", peer, f"n0={peer}")
        words += ["--cert-file", str(certificate), "--key-file", str(key)]
        words += ["--client-cert-auth", "--trusted-ca-file", str(certificates().root)]
        # What listens for metrics wants no certificate: it is asked whether the node is up.
        words += ["--listen-metrics-urls", f"http://127.0.0.1:{metrics_port}"]
        with _running([Server(words, metrics_port, directory, ETCD_QUESTION)]) as (server,):
            server.port = port
            yield server


@contextmanager
def zookeeper(directory: Path) -> Iterator[list[Server]]:
    """One server, whose sessions may be as short as two ticks."""
    port = free_port_block(1)
    words = zookeeper_command(directory, "127.0.0.1", port)
    words[1:1] = ["-Dzookeeper.forceSync=no"]
    with _running([Server(words, port, directory, ZOOKEEPER_QUESTION)]) as servers:
        yield servers


def zookeeper_command(directory: Path, host: str, port: int, more: tuple[str, ...] = ()) -> list[str]:
    """With its settings and data below `directory`; `more` are lines of an ensemble."""
    settings = directory / "zoo.cfg"
    lines = [
        f"tickTime={TICK_MS}",
        f"dataDir={directory / 'data'}",
        f"clientPort={port}",
        f"clientPortAddress={host}",
        "admin.enableServer=false",
        "4lw.commands.whitelist=ruok,srvr",
        *more,
    ]
    settings.write_text("\n".join(lines) + "\n")
    words = ["java", "-Xmx128m", *QUICK_JAVA, "-cp", f"/etc/zookeeper/conf:{ZOOKEEPER_JAR}"]
    words += ["-Dzookeeper.root.logger=WARN,CONSOLE", "-Dzookeeper.sessionRequireClientSASLAuth=false"]
    return [*words, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)]
