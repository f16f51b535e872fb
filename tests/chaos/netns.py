"""Hosts of our own on this machine: network namespaces on one bridge, and links between them that fail.

    hub ── bridge ─┬─ veth ─ node 0     192.0.2.10
                   ├─ veth ─ node 1     192.0.2.11
                   └ 192.0.2.1, where clients and the nameserver are

Needs root.  This kernel may have neither netfilter nor traffic classes that drop: packets of one host to
another are lost by sending them to a card that nobody has, which is silent and one-way;
both ways, a partition.

Nothing leaves the machine: the bridge is in a namespace of its own, and has no way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HUB_ADDR = "192.0.2.1"
# The hub as an end of a link that loses packets; other hosts have numbers.
HUB = -1
_CLONE_NEWNET = 0x40000000
_RUN_NETNS = Path("/run/netns")
_NOBODY = "02:00:00:de:ad:{:02x}"
_COMMAND_S = 10.0


class NoHosts(Exception):
    """This machine cannot be divided; the text says why."""


def ip(*arguments: str, ns: str | None = None) -> str:
    """Runs iproute2's ip, and gives what it prints.  Raises NoHosts."""
    words = ["ip", *(() if ns is None else ("-n", ns)), *arguments]
    return _run(words)


def _run(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except OSError as error:
        raise NoHosts(f"{words[0]}: {error.strerror}") from None
    if done.returncode:
        raise NoHosts(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def enter(ns: str) -> None:
    """This thread, and what it starts from now on, lives in the namespace.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(_RUN_NETNS / ns, os.O_RDONLY)
    try:
        if libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {ns}")
    finally:
        os.close(fd)


def run_in(ns: str | None, work: Callable[[], T], cancel: Callable[[], None] = lambda: None) -> T:
    """`work()` in a thread of its own, within the namespace; None for where this thread is.

    A signal or an interrupt that ends the wait for it calls `cancel`, and waits until it is over.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    over = threading.Event()  # Thread.join() takes a thread for ended once a signal has interrupted it

    def body() -> None:
        try:
            if ns is not None:
                enter(ns)
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=body, name=f"in-{ns or 'here'}")
    thread.start()
    try:
        over.wait()
    except BaseException:
        cancel()
        over.wait()
        raise
    if errors:
        raise errors[0]
    return results[0]


def run_loop_in(ns: str | None, work: Callable[[], Coroutine[None, None, T]]) -> T:
    """`asyncio.run(work())` as run_in() runs things.  What ends this thread's wait, cancels it first."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None] | None]] = []

    async def body() -> T:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work()

    def cancel() -> None:
        for loop, task in running:
            if task is not None:
                with contextlib.suppress(RuntimeError):  # it is over already
                    loop.call_soon_threadsafe(task.cancel)

    return run_in(ns, lambda: asyncio.run(body()), cancel)


class Hosts:
    """So many hosts on one bridge; close() takes all of it away."""

    def __init__(self, count: int) -> None:
        """Raises NoHosts."""
        if os.geteuid() != 0:
            raise NoHosts("network namespaces need root")
        prefix = f"chaos{os.getpid()}"
        self.hub = f"{prefix}h"
        self.names = [f"{prefix}n{number}" for number in range(count)]
        self.addrs = [f"192.0.2.{10 + number}" for number in range(count)]
        self._made: list[str] = []
        self._lost: set[tuple[int, int]] = set()
        self._unplugged: set[int] = set()
        self._slow: set[int] = set()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for ns in (self.hub, *self.names):
            ip("netns", "add", ns)
            self._made.append(ns)
            ip("link", "set", "lo", "up", ns=ns)
        ip("link", "add", "bridge", "type", "bridge", ns=self.hub)
        ip("addr", "add", f"{HUB_ADDR}/24", "dev", "bridge", ns=self.hub)
        ip("link", "set", "bridge", "up", ns=self.hub)
        for number, ns in enumerate(self.names):
            port = f"port{number}"
            ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns, ns=self.hub)
            ip("link", "set", port, "master", "bridge", ns=self.hub)
            ip("link", "set", port, "up", ns=self.hub)
            ip("addr", "add", f"{self.addrs[number]}/24", "dev", "eth0", ns=ns)
            ip("link", "set", "eth0", "up", ns=ns)

    def lose(self, source: int, target: int) -> None:
        """Packets from host `source` to host `target` are lost from now on; one of them may be HUB."""
        self._lost.add((source, target))
        self._neighbour(source, target, _NOBODY.format(target & 0xFF), "permanent")

    def find(self, source: int, target: int) -> None:
        """They arrive again."""
        self._lost.discard((source, target))
        self._neighbour(source, target, self._card(target), "reachable")

    def _neighbour(self, source: int, target: int, card: str, state: str) -> None:
        ns, device = self._place(source)
        addr = HUB_ADDR if target == HUB else self.addrs[target]
        ip("neigh", "replace", addr, "lladdr", card, "dev", device, "nud", state, ns=ns)

    def _place(self, number: int) -> tuple[str, str]:
        """The namespace, and the card in it."""
        return (self.hub, "bridge") if number == HUB else (self.names[number], "eth0")

    def unplug(self, number: int) -> None:
        """The host has no link to anybody, the clients included."""
        self._unplugged.add(number)
        ip("link", "set", f"port{number}", "down", ns=self.hub)

    def plug(self, number: int) -> None:
        self._unplugged.discard(number)
        ip("link", "set", f"port{number}", "up", ns=self.hub)

    def throttle(self, number: int, rate: str) -> None:
        """The host sends so much, such as 1mbit, to all together."""
        self._slow.add(number)
        _run(["tc", "-n", self.names[number], "qdisc", "replace", "dev", "eth0", "root",
              "tbf", "rate", rate, "burst", "16kb", "latency", "400ms"])  # fmt: skip

    def unthrottle(self, number: int) -> None:
        self._slow.discard(number)
        _run(["tc", "-n", self.names[number], "qdisc", "del", "dev", "eth0", "root"])

    def heal(self) -> None:
        """Whatever is lost, unplugged or slow is no more."""
        for source, target in list(self._lost):
            self.find(source, target)
        for number in list(self._unplugged):
            self.plug(number)
        for number in list(self._slow):
            self.unthrottle(number)

    def _card(self, number: int) -> str:
        ns, device = self._place(number)
        words = ip("-o", "link", "show", device, ns=ns).split()
        return words[words.index("link/ether") + 1]

    def close(self) -> None:
        """May be called twice."""
        for ns in reversed(self._made):
            subprocess.run(["ip", "netns", "del", ns], capture_output=True, timeout=_COMMAND_S, check=False)
        self._made.clear()
