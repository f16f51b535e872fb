"""Nameservers and brokers of both kinds, stock RocketMQ's and ours, as processes with one set of methods.

    with servers(tmp_path) as start:
        namesrv = nameserver("stock", tmp_path)
        master = broker("ours", tmp_path, role="SYNC_MASTER", namesrv=namesrv)
        slave = broker("stock", tmp_path, broker_id=1, role="SLAVE", namesrv=namesrv)
        start(namesrv); start(master); start(slave)

Each lives in a directory of its own below the test's; a broker of either kind with the same name and id has
the same directory, so that one can be stopped and the other started on its store.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from haservice.devtools.pair import BROKER_PORTS, free_port_block
from tests.interop.jars import java_command
from tests.support.quick_java import QUICK_JAVA

Kind = Literal["ours", "stock"]
KINDS: tuple[Kind, Kind] = ("ours", "stock")

# Where Java, Maven or the jars are missing, tests with this mark are skipped, and say why.
requires_stock = pytest.mark.usefixtures("stock_jars")

BOOT_SECONDS = 120.0
STOP_SECONDS = 30.0
TOOL_SECONDS = 60.0
TAIL_LINES = 40
_RUN = "from haservice.admin.{command} import {command}; {command}()"

# Warnings of a stock process go where its standard output goes, and nothing into files.
_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %logger{0} %m%n%ex{5}</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""

_running: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _end_all() -> None:
    for popen in _running:
        popen.kill()


class Died(AssertionError):
    """A process ended, or did not come up; the text holds the end of its output."""


class Server:
    """One process, which may be started again after it was stopped or killed."""

    kind: ClassVar[Kind]
    boot_line: ClassVar[str]

    def __init__(self, directory: Path, name: str, port: int) -> None:
        self.name = name
        self.directory = directory / name
        self.port = port
        self.popen: subprocess.Popen[bytes] | None = None
        self._seen = 0
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What it printed, over all its runs."""
        return self.directory / "output.log"

    @property
    def home(self) -> Path:
        """ROCKETMQ_HOME of a stock process, and its user.home; conf/ is below it."""
        return self.directory / "home"

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self.home)}

    def prepare(self) -> None:
        """Writes what the process reads when it starts."""

    def start(self) -> None:
        """Returns when it has printed that it is up."""
        self.launch()
        self.wait_booted()

    def launch(self) -> None:
        """Starts the process and does not wait; several come up side by side."""
        assert not self.is_running, f"{self.name} runs"
        self.prepare()
        with self.log.open("ab") as output:
            self._seen = output.tell()
            self.popen = subprocess.Popen(
                self.command(), stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd=self.directory, env=self.environment(),
            )  # fmt: skip
        _running.add(self.popen)

    def wait_booted(self, seconds: float = BOOT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.boot_line not in self.output():
            if not self.is_running:
                assert self.popen is not None
                raise Died(f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise Died(f"{self.name} was not up within {seconds:g} s:\n{self.tail()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """SIGTERM, a clean stop; it must end in time."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGTERM)
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Died(f"{self.name} did not stop within {STOP_SECONDS:g} s:\n{self.tail()}") from None
        _running.discard(self.popen)

    def kill(self) -> None:
        """SIGKILL; quiet when it does not run."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait(STOP_SECONDS)
            _running.discard(self.popen)

    def output(self) -> str:
        """What this run has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._seen)
            return log.read().decode(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.output().splitlines()[-TAIL_LINES:])

    def _write(self, name: str, lines: dict[str, str]) -> Path:
        path = self.directory / name
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path


def write_home(home: Path) -> None:
    """What a stock process wants to find in its ROCKETMQ_HOME; files that are there stay."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    # Tools are heard by what they print, not by what they log.
    logbacks = {"namesrv": _LOGBACK, "broker": _LOGBACK, "tools": "<configuration/>\n"}
    for name, text in logbacks.items():
        file = conf / f"logback_{name}.xml"
        if not file.exists():
            file.write_text(text)


class Nameserver(Server):
    boot_line = "The Name Server boot success"

    def __init__(self, directory: Path, port: int | None = None, **properties: object) -> None:
        super().__init__(directory, "namesrv", port or free_port_block(1))
        self.properties = properties

    def prepare(self) -> None:
        self.file = self._write(
            "namesrv.properties",
            {
                "listenPort": str(self.port),
                "kvConfigPath": str(self.directory / "kvConfig.json"),
                **self.of_kind(),
                **{key: str(value) for key, value in self.properties.items()},
            },
        )

    def of_kind(self) -> dict[str, str]:
        return {}


class StockNameserver(Nameserver):
    kind = "stock"

    def prepare(self) -> None:
        super().prepare()
        write_home(self.home)

    def of_kind(self) -> dict[str, str]:
        return {"configStorePath": str(self.directory / "stored.properties")}

    def command(self) -> list[str]:
        return java_command(
            "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(self.file), home=self.home
        )


class OurNameserver(Nameserver):
    kind = "ours"

    def of_kind(self) -> dict[str, str]:
        return {"bindAddress": "127.0.0.1"}

    def command(self) -> list[str]:
        return [sys.executable, "-c", _RUN.format(command="mqnamesrv"), "-c", str(self.file)]


class Broker(Server):
    """`properties` are RocketMQ's own keys; they win over those that the arguments give."""

    boot_line = "The broker["

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "broker-a",
        broker_id: int = 0,
        role: str = "ASYNC_MASTER",
        namesrv: Nameserver | str,
        port: int | None = None,
        cluster: str = "DefaultCluster",
        **properties: object,
    ) -> None:
        # Below listenPort there is the VIP port, behind it that of HA.
        super().__init__(directory, f"{name}-{broker_id}", port or free_port_block(BROKER_PORTS) + 2)
        self.broker_name = name
        self.broker_id = broker_id
        self.role = role
        self.cluster = cluster
        self.namesrv = namesrv if isinstance(namesrv, str) else namesrv.addr
        self.properties = properties

    @property
    def ha_port(self) -> int:
        return self.port + 1

    @property
    def root(self) -> Path:
        """The store."""
        return self.directory / "store"

    def prepare(self) -> None:
        self.file = self._write(
            "broker.properties",
            {
                "brokerClusterName": self.cluster,
                "brokerName": self.broker_name,
                "brokerId": str(self.broker_id),
                "brokerRole": self.role,
                "namesrvAddr": self.namesrv,
                "listenPort": str(self.port),
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "storePathRootDir": str(self.root),
                "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
                "mappedFileSizeConsumeQueue": "60000",
                "maxHashSlotNum": "20000",
                "maxIndexNum": "80000",
                "haSendHeartbeatInterval": "1000",
                **self.of_kind(),
                **{key: str(value) for key, value in self.properties.items()},
            },
        )

    def of_kind(self) -> dict[str, str]:
        return {}


class StockBroker(Broker):
    kind = "stock"
    flags: tuple[str, ...] = QUICK_JAVA

    def prepare(self) -> None:
        super().prepare()
        write_home(self.home)
        # Killed between making a file and giving it its size, RocketMQ does not start over it again.
        for file in self.root.rglob("0*"):
            if file.is_file() and not file.stat().st_size:
                file.unlink()

    def of_kind(self) -> dict[str, str]:
        # A busy test machine is no reason to refuse a send.
        return {
            "storePathCommitLog": str(self.root / "commitlog"),
            "waitTimeMillsInSendQueue": "5000",
            "osPageCacheBusyTimeOutMills": "5000",
            "diskMaxUsedSpaceRatio": "95",
        }

    def command(self) -> list[str]:
        return java_command(
            "org.apache.rocketmq.broker.BrokerStartup", "-c", str(self.file),
            home=self.home, heap_mb=512, flags=self.flags,
        )  # fmt: skip


class OurBroker(Broker):
    kind = "ours"

    def of_kind(self) -> dict[str, str]:
        return {"bindAddress": "127.0.0.1"}

    def command(self) -> list[str]:
        return [sys.executable, "-c", _RUN.format(command="mqbroker"), "-c", str(self.file)]


def nameserver(kind: str, directory: Path, port: int | None = None, **properties: object) -> Nameserver:
    """A nameserver of that kind, not started."""
    made = StockNameserver if kind == "stock" else OurNameserver
    return made(directory, port, **properties)


def broker(kind: str, directory: Path, **arguments: object) -> Broker:
    """A broker of that kind, not started; `arguments` are those of Broker."""
    made = StockBroker if kind == "stock" else OurBroker
    return made(directory, **arguments)  # type: ignore[arg-type]


@contextlib.contextmanager
def servers(*, show: bool = True) -> Iterator[Callable[..., None]]:
    """`start(*servers)` brings them up side by side; at the end all are killed, brokers first.

    When the block fails, the ends of their outputs are shown.
    """
    started: list[Server] = []

    def start(*some: Server) -> None:
        started.extend(one for one in some if one not in started)
        for one in some:
            one.launch()
        for one in some:
            one.wait_booted()

    failed = True
    try:
        yield start
        failed = False
    finally:
        for one in reversed(started):
            one.kill()
        if failed and show:
            for one in started:
                print(f"--- {one.kind} {one.name}, {one.log}\n{one.tail()}")


def mqadmin(namesrv: Nameserver | str | None, *arguments: str, home: Path | None = None) -> str:
    """What stock mqadmin prints, in a process of its own.  JavaDriver.mqadmin is quicker.

    `home` is a ROCKETMQ_HOME, whose conf/tools.yml may hold the keys of an ACL.
    """
    home = home or jars_home()
    write_home(home)
    named = [] if namesrv is None else ["-n", namesrv if isinstance(namesrv, str) else namesrv.addr]
    done = subprocess.run(
        java_command("org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, *named, home=home),
        capture_output=True, text=True, timeout=TOOL_SECONDS, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "ROCKETMQ_HOME": str(home)},
    )  # fmt: skip
    return done.stdout + done.stderr


def jars_home() -> Path:
    """A ROCKETMQ_HOME for tools that have no directory of their own."""
    from tests.interop.jars import cache

    return cache() / "tools-home"


def log_bytes(root: Path, end: int) -> bytes:
    """The commit log of a store on disk, from its first byte to `end`."""
    segments = sorted((root / "commitlog").iterdir())
    first = int(segments[0].name)
    return b"".join(segment.read_bytes() for segment in segments)[: end - first]


def logs_equal(one: Path, other: Path, end: int) -> bool:
    """True when both stores have logs with the same bytes from the same first offset to `end`, not empty."""
    ours = log_bytes(one, end)
    return len(ours) > 0 and ours == log_bytes(other, end)
