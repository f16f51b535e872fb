"""A relay between a slave and its master that slices, and cuts, the stream; for benchmarks and tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial


class Relay:
    """Listens for slaves and connects each to the master's port.

    `slice_bytes()` says how many bytes are passed on at a time, `cut_after()` after how many of the master's
    bytes a new connection is cut; None for never.
    """

    def __init__(self, target_port: int) -> None:
        self.slice_bytes: Callable[[], int] = lambda: 65536
        self.cut_after: Callable[[], int | None] = lambda: None
        self.count = 0
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()  # guards _pairs
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    @property
    def live(self) -> bool:
        return bool(self._pairs)

    def cut(self) -> None:
        """Ends the present connections, both ways at once."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.count += 1
            with self._lock:
                self._pairs.append((near, far))
            both = threading.Barrier(2, action=partial(_close, near, far))
            self._spawn(self._pass, near, far, None, both)
            self._spawn(self._pass, far, near, self.cut_after(), both)

    def _pass(
        self, source: socket.socket, target: socket.socket, limit: int | None, both: threading.Barrier
    ) -> None:
        left = limit
        with contextlib.suppress(OSError):
            while left is None or left > 0:
                data = source.recv(self.slice_bytes() if left is None else min(self.slice_bytes(), left))
                if not data:
                    break
                target.sendall(data)
                if left is not None:
                    left -= len(data)
        with self._lock:
            self._pairs = [pair for pair in self._pairs if source not in pair]
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        both.wait()


def _close(*ends: socket.socket) -> None:
    for end in ends:
        end.close()
