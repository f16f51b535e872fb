"""Starts our commands by forks of a process that has imported them: 50 ms of CPU for a start, not a second.

    this process  ──unix socket──>  server: everything imported, one thread
      Forked, a Popen                 └─ fork: the command, as `python -c` would run it

`use()` makes `haservice.devtools.pair` start its processes so.  The server ends with the process that uses it, and what
it started goes on, as children do.  A process that is to have another environment of the interpreter, other limits or
another network than the server is started in the plain way, and so is a broker that breaks itself before it imports.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from haservice.devtools import pair

# What a command imports at its start, or soon.
MODULES = (
    "haservice.admin.mqbroker",
    "haservice.admin.mqnamesrv",
    "haservice.broker.majority.member",
    "haservice.broker.lease.keeper",
    "haservice.coordination.etcd",
)
# Variables that count while an interpreter starts, or while modules are imported.
AT_START = (
    "HASERVICE_",
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "LANG",
    "LC_",
    "TZ",
    "OPENSSL_",
    "SSL_",
    "UV_",
)
BREAKS_ITSELF = "tests.chaos."
REQUEST_BYTES_MAX = 1024 * 1024
STATUS = struct.Struct("<i")

started_plainly = pair.started

_FORK = f"from {__name__} import serve; serve()"


def use() -> None:
    """From now on; the server is started when it is needed first."""
    server = ForkServer()

    def started(
        module: str, command: str, arguments: Sequence[str], output: IO[bytes], env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        if not module.startswith(BREAKS_ITSELF) and server.fits(env):
            return server.start(module, command, arguments, output, env)
        return started_plainly(module, command, arguments, output, env)

    pair.started = started


class Forked(subprocess.Popen[bytes]):
    """A process of the server's, which tells how it ended."""

    def __init__(self, link: socket.socket, command: list[str]) -> None:
        self.args = command
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None  # type: ignore[assignment]
        self._link = link
        self._reading = threading.Lock()
        (self.pid,) = STATUS.unpack(link.recv(STATUS.size))

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        with self._reading:
            if self.returncode is None and select.select([self._link], [], [], timeout)[0]:
                said = self._link.recv(STATUS.size)
                self.returncode = STATUS.unpack(said)[0] if said else -signal.SIGKILL
                self._link.close()
            return self.returncode

    def __del__(self, *_: object, **__: object) -> None:
        self._link.close()


class ForkServer:
    """Its owner is the process in which it is made, until that ends."""

    def __init__(self) -> None:
        self._alive, self._lives = os.pipe()  # the server reads the end of this process
        self._directory = tempfile.TemporaryDirectory(prefix="fork-server-")
        self._path = Path(self._directory.name) / "socket"
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._made_in = ""

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether a process with these further variables can be a fork of the server."""
        with self._starting:
            here = _surroundings({**os.environ, **env})
            if self._process is None:
                if env and here != _surroundings(os.environ):
                    return False
                self._made_in = here
                self._begin()
            return here == self._made_in

    def _begin(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(str(self._path))
            door.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _FORK, str(door.fileno()), str(self._alive)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(door.fileno(), self._alive),
            )

    def start(
        self, module: str, command: str, arguments: Sequence[str], output: IO[bytes], env: Mapping[str, str]
    ) -> Forked:
        request = {
            "module": module,
            "command": command,
            "arguments": list(arguments),
            "env": {**os.environ, **env},
            "cwd": str(Path.cwd()),
        }
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.connect(str(self._path))
        socket.send_fds(link, [json.dumps(request).encode()], [output.fileno()])
        return Forked(link, [command, *arguments])


def _surroundings(env: Mapping[str, str]) -> str:
    """What a fork has of its server, and cannot change."""
    limits = [
        resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")
    ]
    spaces = [str(Path(f"/proc/thread-self/ns/{name}").readlink()) for name in ("net", "mnt", "pid")]
    status = Path("/proc/self/status").read_text()
    kept = [line for line in status.splitlines() if line.startswith(("Umask", "SigIgn"))]
    variables = sorted((key, value) for key, value in env.items() if key.startswith(AT_START))
    return repr((limits, spaces, kept, variables, os.getuid()))


# -- the server -------------------------------------------------------------------------------------


def serve() -> None:
    """The whole life of the server; in a fork, that of the command."""
    door, alive = (int(word) for word in sys.argv[1:3])
    for module in MODULES:
        importlib.import_module(module)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    command = _Server(door, alive).run()
    if command is not None:
        command()


class _Server:
    def __init__(self, door: int, alive: int) -> None:
        self._door = socket.socket(fileno=door)
        self._alive = alive
        self._links: dict[int, socket.socket] = {}
        """By the processes that run."""
        self._ends, self._ended = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> Callable[[], Any] | None:
        """None when the user of the server has ended; the command in the process that is to run it."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._ended)
        while True:
            ready = select.select([self._door, self._alive, self._ends], [], [])[0]
            if self._alive in ready:
                return None
            if self._ends in ready:
                self._reap()
            if self._door in ready:
                link, _ = self._door.accept()
                command = self._fork(link)
                if command is not None:
                    return command

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._ends, 4096)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                link = self._links.pop(pid)
                with contextlib.suppress(OSError):  # nobody waits for it
                    link.send(STATUS.pack(os.waitstatus_to_exitcode(status)))
                link.close()

    def _fork(self, link: socket.socket) -> Callable[[], Any] | None:
        said, (output, *_), _, _ = socket.recv_fds(link, REQUEST_BYTES_MAX, 1)
        pid = os.fork()
        if pid:
            os.close(output)
            self._links[pid] = link
            link.send(STATUS.pack(pid))
            return None
        self._leave(link)
        request = json.loads(said)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv = ["-c", *request["arguments"]]
        command: Callable[[], Any] = getattr(importlib.import_module(request["module"]), request["command"])
        return command

    def _leave(self, link: socket.socket) -> None:
        """In the fork: nothing of the server's stays open."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (self._alive, self._ends, self._ended):
            os.close(fd)
        for one in (link, self._door, *self._links.values()):
            one.close()
