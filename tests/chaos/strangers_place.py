"""Where a stranger comes: a nameserver and a broker in processes of their own, a sender, and what all that costs.

Place      the processes, and the means of a stranger: connections, bytes, messages
Cost       memory and CPU time of one process, seen from outside
`python -m tests.chaos.strangers_place ADDRESS FILE`   the sender; one line of FILE is one send
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from haservice.admin.calls import MQAdmin
from haservice.client.raw_sends import RawMessage, send_command
from haservice.devtools.pair import Process, ScratchPair
from haservice.errors import RemotingError
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand, encode
from haservice.remoting.headers.clients import CreateTopicHeader, SendMessageResponseHeader
from tests.support.waiting import PATIENCE_S, wait_until

MIB = 1 << 20
TOPIC, OTHERS, GROUP = "Strange", "Calm", "strangers"
LARGE_BYTES = 4 * MIB - 64 * 1024
SETTINGS = {
    "maxMessageSize": str(4 * MIB),
    "mappedFileSizeCommitLog": str(64 * MIB),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "enablePropertyFilter": "true",
}
# Between two sends of the sender; between two looks at a process.
SEND_EACH_S = 0.01
# A send that has no answer by then is lost.
SEND_S = 60.0
LOOK_S = 0.05
BOOT_S = 3 * PATIENCE_S
BODY = b"x" * 512
_TICKS = os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """Bytes of a process.  Pages of files are the kernel's: it takes them back when it wants them."""

    now: int
    peak: int


class Cost:
    """What a process takes of the machine."""

    def __init__(self, process: Process) -> None:
        self._proc = Path(f"/proc/{process.pid}")

    def forget_peak(self) -> None:
        """Its peak begins anew."""
        (self._proc / "clear_refs").write_text("5")

    def memory(self) -> Memory:
        fields = dict(
            line.split(":", 1) for line in (self._proc / "status").read_text().splitlines() if ":" in line
        )
        rss, peak, files = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM", "RssFile"))
        return Memory(rss - files, max(rss, peak) - files)

    def cpu_s(self) -> float:
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


class Send(NamedTuple):
    begun_s: float
    took_s: float
    is_ok: bool


class _Pair(ScratchPair):
    """Whose processes may take long to start."""

    def _start(
        self, name: str, command: str, properties: Path, boot_line: str, flags: Sequence[str] = ()
    ) -> Process:
        process = self._begin(name, command, properties, boot_line, flags)
        process.wait_booted(BOOT_S)
        return process


class Place:
    """Made for one stranger.  What it opens is closed by `go_away`."""

    def __init__(self, root: Path, settings: Mapping[str, str], env: Mapping[str, str]) -> None:
        self._root, self._env = root, env
        self._pair = _Pair(root, "ASYNC_MASTER", {**SETTINGS, **settings})
        self._here = ExitStack()
        self._opened: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._gone = threading.Event()
        self.large = 0
        """The place in the log of a message of the largest kind."""

    def __enter__(self) -> Self:
        try:
            with _environment(self._env):
                self._pair.start_nameserver()
                self._pair.start_master()
            self._admin = self._here.enter_context(MQAdmin([self._pair.namesrv_addr]))
            self._client = self._here.enter_context(BlockingClient())
            for topic in (TOPIC, OTHERS):
                self._admin.update_topic(self.addr, CreateTopicHeader(topic, "TBW102", 1, 1, 6))
            self.large = self.put(LARGE_BYTES)
            for _ in range(10):  # so that a broker's usual buffers are there before it is looked at
                self._client.call(self.addr, view(self.large))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()
        self._here.close()
        self._pair.close()

    @property
    def addr(self) -> str:
        return self._pair.master_addr

    @property
    def port(self) -> int:
        return int(self.addr.rpartition(":")[2])

    @property
    def nameserver_port(self) -> int:
        return int(self._pair.namesrv_addr.rpartition(":")[2])

    @property
    def ha_port(self) -> int:
        return self._pair.ha_port()

    def cost(self, process: str) -> Cost:
        return Cost(self._pair.processes[process])

    def log(self, process: str) -> str:
        return self._pair.processes[process].tail()

    def held(self) -> int:
        with suppress(RemotingError):  # it may be slow to answer
            return int(self._admin.runtime_info(self.addr)["heldPulls"])
        return 0

    def end(self, topic: str) -> int:
        """How many messages the topic has."""
        return sum(one.max_offset for one in self._admin.topic_stats(self.addr, topic).offset_table.values())

    # The stranger

    def put(self, size: int = 100, **properties: str) -> int:
        """A message for the strangers; returns its place in the log."""
        answer = self._client.call(self.addr, send_command(TOPIC, 0, RawMessage(bytes(size), properties)))
        if answer.code:
            raise RemotingError(f"a message of the stranger's is refused: {answer.remark}")
        offset_id = SendMessageResponseHeader.decode(answer.ext).msg_id
        return struct.unpack(">q", bytes.fromhex(offset_id)[-8:])[0]  # type: ignore[no-any-return]

    def ask(self, port: int, command: RemotingCommand) -> RemotingCommand:
        return self._client.call(f"127.0.0.1:{port}", command)

    def says(self, port: int, pieces: Iterable[bytes], sealed: bool = False) -> None:
        """A connection, with TLS if `sealed`, that says all that, reads nothing, and stays."""
        sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        if sealed:
            sock = _trusting().wrap_socket(sock)
        self._opened.append(sock)
        thread = threading.Thread(target=_say, args=(sock, pieces), daemon=True)
        self._threads.append(thread)
        thread.start()

    def each(self, seconds: float, times: int, **properties: str) -> None:
        """A small message for the strangers so often."""

        def go_on() -> None:
            with suppress(OSError, RemotingError), BlockingClient() as client:
                for _ in range(times):
                    if self._gone.wait(seconds):
                        return
                    client.call(self.addr, send_command(TOPIC, 0, RawMessage(b"wanted", properties)))

        thread = threading.Thread(target=go_on, daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_held(self, count: int) -> None:
        wait_until(lambda: self.held() >= count, f"{count} pulls are held")

    def go_away(self) -> None:
        self._gone.set()
        for sock in self._opened:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._opened.clear()
        self._threads.clear()

    # Beside it

    @contextmanager
    def sender(self) -> Iterator[Path]:
        """A well-behaved sender in a process of its own; the file has a line for each send when it has ended."""
        path = self._root / "sends"
        command = [sys.executable, "-m", "tests.chaos.strangers_place", self.addr, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            try:
                wait_until(lambda: path.exists() and path.stat().st_size, "the sender sends")
                yield path
            finally:
                assert process.stdin is not None
                process.stdin.close()
                if process.wait(PATIENCE_S):
                    raise RemotingError("the sender has failed")


def sends_of(path: Path) -> list[Send]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [Send(float(begun), float(took), word == "ok") for begun, took, word in lines]


def view(offset: int, opaque: int = 0) -> RemotingCommand:
    return RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}, opaque=opaque)


def frames(commands: Iterable[RemotingCommand]) -> Iterator[bytes]:
    return (bytes(encode(one)) for one in commands)


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _say(sock: socket.socket, pieces: Iterable[bytes]) -> None:
    with suppress(OSError, ValueError):
        for piece in pieces:
            sock.sendall(piece)


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def send_on(addr: str, path: Path) -> None:
    """Sends until the standard input ends."""
    ended = threading.Event()

    def read_on() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read_on, daemon=True).start()
    with BlockingClient() as client, path.open("w") as lines:
        while not ended.wait(SEND_EACH_S):
            begun_s = time.monotonic()
            try:
                word = (
                    "ok"
                    if client.call(addr, send_command(OTHERS, 0, RawMessage(BODY, {})), SEND_S).code == 0
                    else "refused"
                )
            except (OSError, RemotingError):
                word = "failed"
            lines.write(f"{begun_s:.6f} {time.monotonic() - begun_s:.6f} {word}\n")
            lines.flush()


if __name__ == "__main__":
    send_on(sys.argv[1], Path(sys.argv[2]))
