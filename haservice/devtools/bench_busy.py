"""What brokers do on a machine that has far too much to do: a pair, a pair with etcd, a DLedger group, one by one.

N processes that count ──┐
three brokers at most  ──┴── the same cores; eight threads send; after a while the one that leads is killed
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from haservice.admin.calls import MQAdmin
from haservice.client import ClientOptions, Message, Producer
from haservice.devtools.auto_story import AutoStoryFailed, etcd_running
from haservice.devtools.group import ScratchGroup
from haservice.devtools.pair import ScratchPair
from haservice.errors import HAServiceError
from haservice.terminal.output import echo

THREADS = 8
# Until the first sends are answered, and until all of it has begun to be late.
SETTLE_S = 15.0
BODY = b"x" * 1024
# In the logs of brokers: each stands for a master that begins.
_BEGUN = re.compile(r" (?:role=LEADER \w+|(?:master|promoted)\b.* epoch)=(\d+)")


class SteadySends:
    """Eight threads that send until they are stopped."""

    def __init__(self, namesrv_addr: str) -> None:
        self.ok = self.failed = 0
        self.longest_s = 0.0
        self._last_s = time.monotonic()
        self._options = ClientOptions(namesrv_addr)
        self._lock = threading.Lock()
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        with Producer("bench-busy", self._options) as producer:
            threads = [threading.Thread(target=self._send, args=(producer,)) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join()
                self._count(ok=False)

    def _send(self, producer: Producer) -> None:
        while not self._stop.is_set():
            try:
                producer.send(Message("bench-busy", BODY))
            except HAServiceError:
                self.failed += 1
                self._stop.wait(0.1)
            else:
                self._count(ok=True)

    def _count(self, *, ok: bool) -> None:
        with self._lock:
            now_s = time.monotonic()
            self.ok += ok
            self.longest_s = max(self.longest_s, now_s - self._last_s)
            self._last_s = now_s


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that count."""
    processes = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@click.command()
@click.option("--busy", "count", default=40, show_default=True, help="Processes that count.")
@click.option("--seconds", default=120.0, show_default=True, help="How long each kind is looked at.")
@click.option(
    "--kill/--no-kill", default=True, show_default=True, help="Kill who leads, where another takes over."
)
@click.option("--only", type=click.Choice(["pair", "etcd", "group"]), help="One kind.")
def main(count: int, seconds: float, kill: bool, only: str | None) -> None:
    """Masters that begin, and sends that are answered with OK, beside many busy processes."""
    kinds: dict[str, Callable[[ExitStack, Path], tuple[ScratchPair, str]]] = {
        "pair": _pair, "etcd": _pair_with_etcd, "group": _group
    }  # fmt: skip
    echo(f"{'':<8} {'OK':>8} {'failed':>8} {'longest without OK':>20} {'masters that began':>20}")
    for kind, start in kinds.items():
        if only in (None, kind):
            with ExitStack() as stack:
                root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-busy-")))
                try:
                    cluster, leader = start(stack, root)
                except AutoStoryFailed as error:
                    echo(f"{kind:<8} {error}")
                    continue
                _look(kind, cluster, leader if kill and kind != "pair" else "", count, seconds)


def _look(kind: str, cluster: ScratchPair, victim: str, count: int, seconds: float) -> None:
    before = _begun(cluster)
    sends = SteadySends(cluster.namesrv_addr)
    with sends.running(), busy(count):
        time.sleep(min(SETTLE_S, seconds / 2))
        if victim:
            cluster.processes[victim].kill()
        time.sleep(max(0.0, seconds - SETTLE_S))
    begun = len(_begun(cluster) - before)
    echo(f"{kind:<8} {sends.ok:>8} {sends.failed:>8} {sends.longest_s:>18.1f} s {begun:>20}")


def _begun(cluster: ScratchPair) -> set[str]:
    """The epochs, and their like in a group, that were begun so far."""
    logs = [process.log.read_text() for process in cluster.processes.values()]
    return {number for text in logs for number in _BEGUN.findall(text)}


def _pair(stack: ExitStack, root: Path) -> tuple[ScratchPair, str]:
    pair = stack.enter_context(ScratchPair(root))
    pair.start()
    return pair, "broker-a"


def _pair_with_etcd(stack: ExitStack, root: Path) -> tuple[ScratchPair, str]:
    settings = {"haCoordinator": stack.enter_context(etcd_running(root))}
    pair = stack.enter_context(ScratchPair(root, settings=settings))
    pair.start()
    pair.start_second_slave()
    return pair, "broker-a"


def _group(stack: ExitStack, root: Path) -> tuple[ScratchPair, str]:
    group = stack.enter_context(ScratchGroup(root))
    group.start_nameserver()
    group.start_members()
    with MQAdmin() as admin:
        return group, group.leader(admin)


if __name__ == "__main__":
    main()
