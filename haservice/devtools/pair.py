"""A pair of real processes in a scratch directory: nameserver, broker-a and broker-a-s on loopback.

The quickstart, the benchmarks and the cluster tests run the same commands that a user types, with
properties files written here.  The owner of a ScratchPair closes it; close() ends every process.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from haservice.errors import HAServiceError

BOOT_SECONDS = 30.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.01
LOG_TAIL_LINES = 20

# Below the range that the kernel gives to outgoing connections.  Taken in turn, from a random start: a client
# that still calls a port's last user must not soon find another one there.
PORTS = deque(range(20000, 32000))
PORTS.rotate(random.randrange(len(PORTS)))
BROKER_PORTS = 4
# Stores and ports; start the third for a second slave.
BROKERS = ("broker-a", "broker-a-s", "broker-a-s2")

_RUN = "from {module} import {command}; {command}()"


class ProcessDied(HAServiceError):
    """A process of the pair ended, or did not come up; the text holds the tail of its log."""


def free_port_block(count: int) -> int:
    """The first of `count` consecutive TCP ports that nobody uses right now, on any address of this machine."""
    for _ in range(200):
        first = PORTS[0]
        PORTS.rotate(-count)
        probes = [socket.socket() for _ in range(count)]
        try:
            for index, probe in enumerate(probes):
                probe.bind(("", first + index))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise HAServiceError(f"no {count} free ports in a row between {min(PORTS)} and {max(PORTS)}")


def started(
    module: str, command: str, arguments: Sequence[str], output: IO[bytes], env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """One of our commands as a child process; `env` is added to this process's environment."""
    return subprocess.Popen(
        [sys.executable, "-c", _RUN.format(module=module, command=command), *arguments],
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
    )


class Process:
    """One of our commands as a child process, its output in a log file."""

    def __init__(
        self,
        name: str,
        command: str,
        arguments: list[str],
        log: Path,
        boot_line: str,
        env: Mapping[str, str] | None = None,
        module: str | None = None,
    ) -> None:
        """`env` is added to this process's environment; `module` has the command, by default that of its name."""
        self.name = name
        self.log = log
        self._boot_line = boot_line
        self._output = log.open("ab")
        self._seen = log.stat().st_size
        self.popen = started(
            module or f"haservice.admin.{command}", command, arguments, self._output, env or {}
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def wait_booted(self, seconds: float = BOOT_SECONDS) -> None:
        """Returns when the process has printed that it is up."""
        deadline = time.monotonic() + seconds
        while self._boot_line not in self.output():
            if self.popen.poll() is not None:
                raise ProcessDied(f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ProcessDied(f"{self.name} did not come up within {seconds:g} s:\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def output(self) -> str:
        """What this run has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._seen)
            return log.read().decode(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.output().splitlines()[-LOG_TAIL_LINES:])

    def kill(self) -> None:
        """SIGKILL: bytes that the process has not given to the kernel are lost."""
        self.popen.kill()
        self.popen.wait(STOP_SECONDS)
        self._output.close()

    def stop(self) -> int:
        """SIGTERM, and the exit code; SIGKILL when it does not end in time."""
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(STOP_SECONDS)
            raise ProcessDied(f"{self.name} did not stop within {STOP_SECONDS:g} s:\n{self.tail()}") from None
        finally:
            self._output.close()


class ScratchPair:
    """Nameserver, master and slave under `root`.  `settings` go into both brokers' properties files."""

    def __init__(
        self,
        root: Path,
        role: str = "SYNC_MASTER",
        settings: Mapping[str, str] | None = None,
        brokers: Sequence[str] = BROKERS,
    ) -> None:
        """`brokers` are the names of stores and ports; `start_broker` starts further ones than the pair's."""
        self.root = root
        self.role = role
        self._settings = dict(settings or {})
        first = free_port_block(1 + len(brokers) * BROKER_PORTS)
        self.namesrv_addr = f"127.0.0.1:{first}"
        self._ports = {name: first + 3 + at * BROKER_PORTS for at, name in enumerate(brokers)}
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def master_addr(self) -> str:
        return self.addr("broker-a")

    @property
    def slave_addr(self) -> str:
        return self.addr("broker-a-s")

    def addr(self, name: str) -> str:
        """Where clients reach the broker of that name."""
        return f"127.0.0.1:{self._ports[name]}"

    def store(self, name: str) -> Path:
        """The store directory of one of the brokers."""
        return self.root / name

    def ha_port(self, name: str = "broker-a") -> int:
        return self._ports[name] + 1

    def start(self) -> Self:
        """Starts everything, each process up before the next."""
        self.start_nameserver()
        self.start_master()
        self.start_slave()
        return self

    def start_nameserver(self, **settings: str) -> Process:
        port = self.namesrv_addr.rpartition(":")[2]
        lines = {
            "listenPort": port,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.root / "kvConfig.json"),
            **settings,
        }
        return self._start(
            "namesrv", "mqnamesrv", self._write("namesrv", lines), "The Name Server boot success"
        )

    def start_master(self, **settings: str) -> Process:
        return self.start_broker("broker-a", brokerRole=self.role, brokerId="0", **settings)

    def start_slave(self, **settings: str) -> Process:
        return self.start_broker("broker-a-s", brokerRole="SLAVE", brokerId="1", **settings)

    def start_second_slave(self, **settings: str) -> Process:
        return self.start_broker("broker-a-s2", brokerRole="SLAVE", brokerId="2", **settings)

    def start_broker(self, name: str, flags: Sequence[str] = (), **settings: str) -> Process:
        """Starts a broker with the store and ports of `name`; `settings` go before its other properties, `flags` into
        its command line.
        """
        lines = {**self.broker_lines(name), **settings}
        return self._start(name, "mqbroker", self._write(name, lines), "The broker[", flags)

    def broker_lines(self, name: str) -> dict[str, str]:
        """What stands in the properties file of each broker."""
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "namesrvAddr": self.namesrv_addr,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": str(self._ports[name]),
            "storePathRootDir": str(self.store(name)),
            **self._settings,
        }

    def close(self) -> None:
        """Ends what still runs, brokers before the nameserver."""
        for process in reversed(list(self.processes.values())):
            if process.popen.poll() is None:
                process.kill()
        self.processes.clear()

    def _write(self, name: str, lines: Mapping[str, str]) -> Path:
        path = self.root / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path

    def _start(
        self, name: str, command: str, properties: Path, boot_line: str, flags: Sequence[str] = ()
    ) -> Process:
        process = self._begin(name, command, properties, boot_line, flags)
        process.wait_booted()
        return process

    def _begin(
        self, name: str, command: str, properties: Path, boot_line: str, flags: Sequence[str] = ()
    ) -> Process:
        arguments = ["-c", str(properties), *flags]
        process = Process(name, command, arguments, self.root / f"{name}.log", boot_line)
        self.processes[name] = process
        return process
