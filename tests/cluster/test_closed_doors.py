"""docs/closed-doors.md, step by step: every file and command of the page, clients of both kinds, traffic meanwhile."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner

from haservice.admin.cli import main as mqadmin
from haservice.client import (
    ClientError,
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    Credentials,
    Message,
    Producer,
    PushConsumer,
    Received,
    tls_context,
)
from haservice.devtools.pair import BROKER_PORTS, Process, free_port_block
from haservice.errors import HAServiceError
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from tests.docs.running import of_page
from tests.interop.driver import JavaDriver, JavaError
from tests.interop.jars import NoStock, classes, jars
from tests.interop.stock import OurBroker, OurNameserver, Server, servers
from tests.support.certificates import certificates
from tests.support.coordinators import ETCD_MISSING, etcd_with_tls
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command"),
]

ROOT = Path(__file__).parents[2]
PAGE = "docs/closed-doors.md"
TOPIC, GROUP = "Orders", "orders-workers"
QUEUES = 4  # of those that Java's load goes to
COMMAND_S = 180.0
FLOWING = 10
PACE_S = 0.02
# A nameserver forgets nothing meanwhile; on a busy machine several rounds of a client pass.
SETTLED_S = 120.0


def block(section: str, kind: str, number: int = 0) -> str:
    found = [one.text for one in of_page(PAGE) if section in one.section and one.kind == kind]
    return found[number]


class Walk:
    """The machines of the page, as directories; `at` says which servers are where."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.authority = root / "authority"
        self.authority.mkdir()
        self.namesrv_port = free_port_block(1)
        self.broker_port = free_port_block(BROKER_PORTS + 1) + 2
        self.secure_port = self.broker_port + 2
        self.console_port = free_port_block(1)

    def etc(self, machine: str) -> Path:
        directory = self.root / machine / "etc"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def here(self, text: str, machine: str) -> str:
        """A text of the page, with our addresses and directories."""
        ours = {
            "/etc/haservice": str(self.etc(machine)),
            "10.0.7.1:9876": f"127.0.0.1:{self.namesrv_port}",
            "10.0.7.1:8443": f"127.0.0.1:{self.console_port}",
            "10.0.7.11": "127.0.0.1",
            "10.0.7.12": "127.0.0.2",
            "=10914": f"={self.secure_port}",
        }
        for theirs, own in ours.items():
            text = text.replace(theirs, own)
        return text

    def properties(self, number: int, machine: str) -> dict[str, str]:
        text = self.here(block("Settings", "properties", number), machine)
        return dict(line.split("=", 1) for line in text.splitlines())

    def sh(self, commands: str, directory: Path) -> str:
        """As a person at a shell; the first command that fails ends it."""
        path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", f"set -eo pipefail; shopt -s expand_aliases\n{self.here(commands, 'client')}"],
            cwd=directory,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\nexit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def mqadmin(self, commands: str, tools: str = "tools.yml") -> None:
        """Lines of the page, one by one, in this process, which is quicker.  Each must succeed."""
        etc = self.etc("client")
        for line in commands.splitlines():
            name, *words = shlex.split(line)
            assert name == "mqadmin", line
            said = None
            if "<" in words:
                *words, _, file = words
                said = (etc / file).read_text()
            code, output = self.run_mqadmin(words, said, tools)
            assert code == 0, f"{line}\nexit code {code}\n{output}"

    def run_mqadmin(
        self, words: list[str], said: str | None = None, tools: str = "tools.yml"
    ) -> tuple[int, str]:
        etc = self.etc("client")
        env = {"NAMESRV_ADDR": f"127.0.0.1:{self.namesrv_port}", "MQADMIN_TOOLS_YML": str(etc / tools)}
        done = CliRunner().invoke(
            mqadmin, ["--tls-config", str(etc / "tls.properties"), *words], input=said, env=env
        )
        return done.exit_code, done.output

    def all_is_well(self) -> None:
        """By the page's own word for it."""
        said = [""]

        def well() -> bool:
            code, said[0] = self.run_mqadmin(["check"])
            return code == 0

        try:
            wait_until(well, "check is OK", SETTLED_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {said[0]}") from None

    # Certificates

    def make_certificates(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.sh(block("Certificates", "sh"), directory)

    def hand_out(
        self, machine: str, own: Path | None = None, roots: Path | None = None, certificate: str = ""
    ) -> None:
        """Certificate and key of one directory, by the machine's name if nothing is said; roots of another."""
        is_broker = machine not in ("namesrv", "client")
        named = certificate or machine
        if own is not None:
            self._put(machine, {"own.pem": own / f"{named}.pem", "own.key": own / f"{named}.key"})
            if is_broker:
                self._put(machine, {"ha.pem": own / f"{named}-ha.pem", "ha.key": own / f"{named}-ha.key"})
        if roots is not None:
            self._put(machine, {"root.pem": roots / "root.pem"})
            if is_broker:
                self._put(machine, {"ha-root.pem": roots / "ha-root.pem"})

    def _put(self, machine: str, files: dict[str, Path]) -> None:
        """In one step each, as install(1) does."""
        for name, source in files.items():
            place = self.etc(machine) / name
            shutil.copy(source, place.with_suffix(".new"))
            place.with_suffix(".new").rename(place)

    # Accounts and tools

    def give_accounts(self, *machines: str) -> None:
        for machine in machines:
            (self.etc(machine) / "plain_acl.yml").write_text(block("Accounts", "yaml"))
            if machine != "namesrv":
                (self.etc(machine) / "brokers-key.yml").write_text(block("Accounts", "yaml", 1))
        keys = block("Accounts", "yaml", 1).replace("brokers-1", "operators")
        (self.etc("client") / "tools.yml").write_text(keys)
        for machine in ("client", "namesrv"):
            text = self.here(block("Settings", "properties", 2), machine)
            (self.etc(machine) / "tls.properties").write_text(text)

    # Servers

    def namesrv(self) -> OurNameserver:
        return OurNameserver(self.root / "namesrv", self.namesrv_port, **self.properties(1, "namesrv"))

    def broker(self, machine: str, role: str, **more: str) -> OurBroker:
        number = 0 if role == "SYNC_MASTER" else 1
        host = f"127.0.0.{number + 1}"
        at = {"bindAddress": host, "brokerIP1": host, "brokerIP2": host}
        return OurBroker(
            self.root / machine,
            broker_id=number,
            role=role,
            namesrv=f"127.0.0.1:{self.namesrv_port}",
            port=self.broker_port,
            **{**self.properties(0, machine), **at, **more},
        )

    # Clients

    def options(self, account: str) -> ClientOptions:
        etc = self.etc("client")
        return ClientOptions(
            f"127.0.0.1:{self.namesrv_port}",
            credentials=Credentials(account, f"secret-of-{account}"),
            tls=tls_context(roots=etc / "root.pem", certificate=etc / "own.pem", key=etc / "own.key"),
            send_timeout_s=60.0,
            route_interval_s=2.0,
        )


class Flow:
    """A producer and a consumer of ours."""

    def __init__(self, walk: Walk, account: str, prefix: str) -> None:
        self._sent: set[bytes] = set()
        self._got: set[bytes] = set()
        self._failed: list[str] = []
        self._prefix = prefix.replace(" ", "-")
        self._stop = threading.Event()
        options, reads = walk.options(account), ConsumerOptions(consume_from=ConsumeFrom.FIRST)
        self._producer = Producer(f"writers-{self._prefix}", options)
        self._consumer = PushConsumer(GROUP, self._take, options, consuming=reads).subscribe(TOPIC)
        self._consumer.start()
        self._thread = threading.Thread(target=self._send, name="traffic", daemon=True)
        self._thread.start()

    def _take(self, one: Received) -> None:
        self._got.add(bytes(one.body))

    def _send(self) -> None:
        number = 0
        while not self._stop.is_set():
            body = f"{self._prefix}-{number}".encode()
            number += 1
            try:
                status = self._producer.send(Message(TOPIC, body)).status.name
            except ClientError as error:
                status = repr(error)
            if status == "SEND_OK":
                self._sent.add(body)
            else:
                self._failed.append(status)
            time.sleep(PACE_S)

    def flows(self, *, only_ok: bool = True) -> None:
        """More is sent and consumed.  Without `only_ok` sends may fail, or be stored by a master without a slave."""
        sent, got = len(self._sent), len(self._got)

        def are() -> bool:
            assert not (only_ok and self._failed), self._failed[:3]
            return len(self._got) >= got + FLOWING and (len(self._sent) >= sent + FLOWING or not only_ok)

        try:
            wait_until(are, "our client sends and consumes", SETTLED_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; failed: {self._failed[-3:]}") from None

    def close(self, *, but_failed: bool = False) -> set[bytes]:
        """What was acknowledged: each send, or not all of them."""
        self._end()
        assert but_failed or not self._failed, self._failed[:3]
        return self._sent

    def _end(self) -> None:
        self._stop.set()
        self._thread.join(SETTLED_S)
        self._consumer.close()
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


class Java:
    """A stock producer that sends all the time, and a consumer in the same group as ours."""

    def __init__(self, walk: Walk, driver: JavaDriver, name: str, account: str) -> None:
        keys: dict[str, Any] = {"accessKey": account, "secretKey": f"secret-of-{account}"}
        namesrv = f"127.0.0.1:{walk.namesrv_port}"
        self._prefix = f"{name}-"
        self._consumer = driver.push(namesrv, GROUP, TOPIC, **keys, useTLS=True)
        self._producer = driver.producer(
            namesrv, f"writers-{name}", **keys, useTLS=True, sendMsgTimeout=60_000
        )
        self._producer.start_load(TOPIC, count=10**6, queues=QUEUES, prefix=self._prefix, pace_ms=200)

    def flows(self) -> None:
        sent, got = self._producer.load_state()["ok"], self._consumer.count()

        def are() -> bool:
            more_sent = self._producer.load_state()["ok"] >= sent + FLOWING
            return more_sent and self._consumer.count() >= got + FLOWING

        wait_until(are, "a stock client sends and consumes", SETTLED_S)

    def close(self) -> set[bytes]:
        """What was acknowledged.  Its sends to one queue are not tried again when a slow heartbeat closes a channel."""
        self._producer.stop_load()
        sent = {
            f"{self._prefix}{queue}-{number}".encode()
            for queue in range(QUEUES)
            for number in self._producer.load_acknowledged(queue)
        }
        self._consumer.close()
        self._producer.close()
        return sent


class Clients:
    """Of both kinds, where there is Java; `renewed` starts others first, and then takes those before away."""

    def __init__(self, walk: Walk, *, with_java: bool) -> None:
        self._walk = walk
        self._with_java = with_java
        self._count = 0
        self._driver: JavaDriver | None = None
        self._now: list[Flow | Java] = []
        self.sent: set[bytes] = set()

    def renewed(self, account: str, *, new_jvm: bool = False) -> None:
        before, self._count = len(self._now), self._count + 1
        driver = self._driver
        self._now.append(Flow(self._walk, account, f"ours{self._count}"))
        if self._with_java:
            if driver is None or new_jvm:
                self._driver = self._jvm(f"jvm{self._count}")
            assert self._driver is not None
            self._now.append(Java(self._walk, self._driver, f"java{self._count}", account))
        self.flow(self._now[before:])
        self._end(before)
        if driver is not None and driver is not self._driver:
            driver.close()

    def _jvm(self, name: str) -> JavaDriver:
        directory = self._walk.root / name
        directory.mkdir()
        config = self._walk.etc("client") / "tls.properties"
        return JavaDriver(directory, {"tls.config.file": str(config), "tls.enable": "true"})

    def flow(self, some: list[Flow | Java] | None = None) -> None:
        for one in self._now if some is None else some:
            one.flows()

    def close(self) -> None:
        self._end(len(self._now))

    def _end(self, count: int) -> None:
        ending, self._now = self._now[:count], self._now[count:]
        for one in ending:
            self.sent |= one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """After a failure, which is told, they are not closed yet."""
        for one in self._now:
            with suppress(AssertionError, JavaError, RuntimeError, TimeoutError):
                one.close()
        if self._driver is not None:
            self._driver.close()


def java_is_missing() -> str:
    try:
        jars()
        classes()
    except NoStock as why:
        return str(why)
    return ""


@contextmanager
def closed_pair(root: Path, **more: str) -> Iterator[tuple[Walk, OurNameserver, OurBroker, OurBroker]]:
    walk = Walk(root)
    walk.make_certificates(walk.authority)
    for machine in ("namesrv", "broker-a", "broker-a-s", "client"):
        walk.hand_out(machine, walk.authority, walk.authority)
    walk.give_accounts("namesrv", "broker-a", "broker-a-s")
    with servers() as start:
        namesrv = walk.namesrv()
        master = walk.broker("broker-a", "SYNC_MASTER", **more)
        slave = walk.broker("broker-a-s", "SLAVE", **more)
        start(namesrv)
        start(master)
        start(slave)
        walk.all_is_well()
        walk.sh(block("Settings", "sh"), walk.etc("client"))
        yield walk, namesrv, master, slave


def verified(walk: Walk, sent: set[bytes]) -> None:
    """All of it is there, for an account that may read everything."""
    got: set[bytes] = set()
    reads = ConsumerOptions(consume_from=ConsumeFrom.FIRST)

    def take(one: Received) -> None:
        got.add(bytes(one.body).split()[0])

    consumer = PushConsumer("verifiers", take, walk.options("operators"), consuming=reads)
    with consumer.subscribe(TOPIC):
        wait_until(lambda: sent <= got, "all that was acknowledged is there", SETTLED_S)


def answered(port: int, tls: ssl.SSLContext | None, host: str = "127.0.0.1") -> bool:
    """Whether who asks there is told anything: a route, or a refusal in words."""
    request = RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG)
    try:
        with BlockingClient(tls=tls) as client:
            client.call(f"{host}:{port}", request)
    except HAServiceError:
        return False
    return True


def strangers_are_refused(walk: Walk) -> None:
    client = walk.etc("client")
    shown = {"certificate": client / "own.pem", "key": client / "own.key"}
    foreign = {"certificate": certificates().client, "key": certificates().client_key}
    good = tls_context(roots=client / "root.pem", **shown)
    doors = [(walk.namesrv_port, "127.0.0.1")]
    doors += [
        (port, host)
        for host in ("127.0.0.1", "127.0.0.2")
        for port in (walk.broker_port, walk.broker_port - 2)
    ]
    for port, host in doors:
        assert answered(port, good, host)
        assert not answered(port, None, host), "in the clear"
        assert not answered(port, tls_context(roots=client / "root.pem"), host), "without a certificate"
        assert not answered(port, tls_context(roots=client / "root.pem", **foreign), host), (
            "with a foreign one"
        )
        assert not answered(port, tls_context(roots=certificates().root, **shown), host), (
            "it is not whom we trust"
        )
    for host in ("127.0.0.1", "127.0.0.2"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, walk.broker_port + 1))
    # A good certificate without an account, and an account without rights.
    keys = (client / "tools.yml").read_text()
    for account, words in (("nobody", "No acl config"), ("orders-1", "admin permission")):
        (client / "other.yml").write_text(keys.replace("operators", account))
        with pytest.raises(AssertionError, match=words):
            walk.mqadmin("mqadmin deleteTopic -c DefaultCluster -t Orders", "other.yml")


@contextmanager
def console_of_the_page(walk: Walk) -> Iterator[Process]:
    words = walk.here(block("Settings", "sh", 1), "namesrv").replace("\\\n", " ").split()
    assert words[0] == "mqconsole"
    log = walk.root / "console.log"
    console = Process(
        "mqconsole", "mqconsole", words[1:], log, "console open", module="haservice.console.cli"
    )
    try:
        console.wait_booted()
        yield console
    finally:
        console.kill()


def console_shows_a_login(walk: Walk) -> bytes:
    """The certificate that it shows."""
    context = tls_context(roots=walk.etc("client") / "root.pem")
    with (
        socket.create_connection(("127.0.0.1", walk.console_port)) as plain,
        context.wrap_socket(plain) as secure,
    ):
        secure.sendall(b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        said = b""
        while piece := secure.recv(4096):
            said += piece
        assert said.startswith(b"HTTP/1.1 200"), said[:300]
        assert b"secret_key" in said
        return secure.getpeercert(binary_form=True) or b""


def told(server: Server, text: str, times: int) -> None:
    wait_until(
        lambda: server.output().count(text) >= times, f"{server.name}: {text}, {times} times", SETTLED_S
    )


CERTIFICATES = (
    "certificate read again",
    "certificate of calls read again",
    "certificate for replication read again",
)


def renew_accounts(walk: Walk, namesrv: Server, brokers: list[OurBroker], clients: Clients) -> None:
    client = walk.etc("client")
    for name in ("brokers-2", "orders-2"):
        (client / f"{name}.secret").write_text(f"secret-of-{name}\n")

    def as_at_the_broker(times: int) -> None:
        shutil.copy(walk.etc("broker-a") / "plain_acl.yml", walk.etc("namesrv") / "plain_acl.yml")
        told(namesrv, "access control read again", times)

    walk.mqadmin(block("Renew accounts", "sh"))
    as_at_the_broker(1)
    for machine in ("broker-a", "broker-a-s"):
        keys = walk.etc(machine) / "brokers-key.yml"
        keys.write_text(keys.read_text().replace("brokers-1", "brokers-2"))
    for broker in brokers:
        told(broker, "own key (aclCredentialsFile) read again", 1)
    clients.renewed("orders-2")
    walk.all_is_well()
    walk.mqadmin(block("Renew accounts", "sh", 1))
    as_at_the_broker(2)
    clients.flow()
    walk.all_is_well()
    with Producer("writers", walk.options("orders-1")) as old, pytest.raises(ClientError, match="orders-1"):
        old.send(Message(TOPIC, b"refused"))


def renew_certificates(
    walk: Walk, namesrv: Server, brokers: list[OurBroker], clients: Clients, console: Process
) -> None:
    new, both = walk.authority / "new", walk.root / "both"
    machines = ("namesrv", "broker-a", "broker-a-s")
    walk.make_certificates(new)
    walk.sh(block("Renew roots", "sh"), walk.authority)
    both.mkdir()
    shutil.copy(walk.authority / "both-roots.pem", both / "root.pem")
    shutil.copy(walk.authority / "both-ha-roots.pem", both / "ha-root.pem")

    def in_force(times: int) -> None:
        for broker in brokers:
            for text in CERTIFICATES:
                told(broker, f"{text} path=", times)
        told(namesrv, f"{CERTIFICATES[0]} path=", times)
        clients.flow()
        walk.all_is_well()

    for machine in (*machines, "client"):
        walk.hand_out(machine, roots=both)
    in_force(1)
    walk.hand_out("client", new)
    clients.renewed("orders-2", new_jvm=True)
    walk.all_is_well()
    for machine in machines:
        walk.hand_out(machine, new)
    in_force(2)
    before = console_shows_a_login(walk)
    console.popen.send_signal(signal.SIGHUP)
    wait_until(lambda: console_shows_a_login(walk) != before, "the console shows its new certificate")
    for machine in (*machines, "client"):
        walk.hand_out(machine, roots=new)
    in_force(3)
    old = {"certificate": walk.authority / "client.pem", "key": walk.authority / "client.key"}
    assert not answered(walk.broker_port, tls_context(roots=new / "root.pem", **old)), (
        "the old root counts no more"
    )


def test_every_door_is_closed_and_every_secret_is_renewed_under_traffic(tmp_path: Path) -> None:
    missing = java_is_missing()
    with closed_pair(tmp_path) as (walk, namesrv, master, slave), console_of_the_page(walk) as console:
        strangers_are_refused(walk)
        console_shows_a_login(walk)
        with Clients(walk, with_java=not missing) as clients:
            clients.renewed("orders-1")
            renew_accounts(walk, namesrv, [master, slave], clients)
            renew_certificates(walk, namesrv, [master, slave], clients, console)
            clients.close()
            # Roles turn: the link of replication is made anew, in the other direction, with what is in force now.
            walk.mqadmin("mqadmin switchover -b broker-a --yes")
            walk.all_is_well()
            assert "secure link" in master.output().rpartition("the broker stops and starts again")[2]
            clients.renewed("orders-2")
            clients.close()
            verified(walk, clients.sent)
    if missing:
        pytest.skip(f"all but the stock clients was run: {missing}")


@pytest.mark.skipif(bool(ETCD_MISSING), reason=ETCD_MISSING)
def test_a_slave_takes_over_by_a_coordinator_behind_closed_doors(tmp_path: Path) -> None:
    made = certificates()
    with etcd_with_tls(tmp_path) as server:
        keys = {
            "haCoordinator": f"etcds://127.0.0.1:{server.port}",
            "haCoordinatorTrustCertPath": str(made.root),
            "haCoordinatorCertPath": str(made.client),
            "haCoordinatorKeyPath": str(made.client_key),
            "haLeaseTtl": "6",
        }
        pair = closed_pair(tmp_path, **keys)
        with pair as (walk, _, master, _), Flow(walk, "orders-1", "taken over") as flow:
            flow.flows()
            master.kill()
            flow.flows(only_ok=False)
            verified(walk, flow.close(but_failed=True))


def test_a_group_of_three_elects_its_leader_behind_closed_doors(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    walk.make_certificates(walk.authority)
    names = ("n0", "n1", "n2")
    for machine in ("namesrv", "client"):
        walk.hand_out(machine, walk.authority, walk.authority)
    for name in names:
        walk.hand_out(name, walk.authority, walk.authority, certificate="broker-a")
    walk.give_accounts("namesrv", *names)
    ports = {name: free_port_block(BROKER_PORTS + 1) + 2 for name in names}
    peers = ";".join(f"{name}-127.0.0.1:{port - 1}" for name, port in ports.items())
    with servers() as start:
        namesrv = walk.namesrv()
        start(namesrv)
        members = {
            name: OurBroker(
                walk.root / name,
                broker_id=0,
                role="SYNC_MASTER",
                namesrv=f"127.0.0.1:{walk.namesrv_port}",
                port=port,
                enableDLegerCommitLog="true",
                dLegerGroup="broker-a",
                dLegerPeers=peers,
                dLegerSelfId=name,
                **{key: value for key, value in walk.properties(0, name).items() if not key.startswith("ha")},
            )
            for name, port in ports.items()
        }
        start(*members.values())
        walk.all_is_well()
        walk.mqadmin("mqadmin updateTopic -c DefaultCluster -t Orders")
        with Flow(walk, "orders-1", "group") as flow:
            flow.flows()
            registered = r"broker registered name=broker-a id=0 addr=127\.0\.0\.1:(\d+) "
            port = int(re.findall(registered, namesrv.output())[-1])
            (leader,) = (name for name in names if ports[name] == port)
            members[leader].kill()
            flow.flows(only_ok=False)
            verified(walk, flow.close(but_failed=True))
