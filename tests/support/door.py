"""A way to a server that can be shut: who has connected through it is cut off, and nobody else comes in."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Door:
    """Passes each connection on to `port` of loopback while it is open.  `with` ends it."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()  # guards _is_open and _ends
        self._is_open = True
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._threads:
            one.join()

    def shut(self) -> None:
        with self._lock:
            self._is_open = False
            ends, self._ends = self._ends, []
        for one in ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        with self._lock:
            self._is_open = True

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._is_open:
                    caller.close()
                    continue
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    caller.close()
                    continue
                self._ends += [caller, server]
            for one, other in ((caller, server), (server, caller)):
                thread = threading.Thread(target=_pass_on, args=(one, other), daemon=True)
                self._threads.append(thread)
                thread.start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        source.close()
