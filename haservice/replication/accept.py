"""AcceptSocketService: the HA port; an HAConnection for each slave that comes, within limits.

The port is open to whoever reaches it, so: an allow-list of networks, a bound on connections, and no thread
or byte for anyone beyond them.  When all places are taken, a newcomer gets the place of the oldest connection
that has reported nothing yet; slaves at work are never displaced.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from haservice.deadline import Deadline
from haservice.replication.connection import HAConnection
from haservice.replication.pace import Backoff, Seldom
from haservice.replication.protocol import MasterState
from haservice.replication.wakeup import Wakeup

logger = logging.getLogger(__name__)

# A caller that finds it full tries again a whole second later.
BACKLOG = 1024
# The machine is out of something: it passes when somebody lets go.
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
SCARCE_PAUSE_S = 0.1
SCARCE_PAUSE_S_MAX = 1.0
# One cause is told this often at most.
TELL_S = 10.0

Connect = Callable[[socket.socket, str, str], HAConnection]
Identify = Callable[[str], str]


def address_of(ip: str) -> str:
    """One spelling for one address: an IPv4 peer of an IPv6 socket is an IPv4 peer, and a zone is dropped."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class AcceptSocketService:
    """The task of ha-accept, and the owner of all connections.

    `connect(socket, peer, identity)` makes a connection that is not started yet.  `refused(peer, reason)` is
    told of those that may not come.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect: Connect,
        refused: Callable[[str, str], None],
        allowed: Sequence[str] = (),
        max_connections: int = 64,
        identify: Identify = address_of,
    ) -> None:
        """Opens the port.  Raises OSError naming it if it is taken."""
        self._connect = connect
        self._refused = refused
        self._allowed = [ipaddress.ip_network(network, strict=False) for network in allowed]
        self._max_connections = max_connections
        self._identify = identify
        self._lock = threading.Lock()  # guards _connections
        self._connections: dict[HAConnection, None] = {}
        self._seldom = Seldom(TELL_S)
        self._scarce = Backoff(SCARCE_PAUSE_S, SCARCE_PAUSE_S_MAX)
        self._listener = _listen(host, port)
        self._wakeup = Wakeup()
        self.port: int = self._listener.getsockname()[1]

    @property
    def connections(self) -> list[HAConnection]:
        """Those that have not ended, oldest first."""
        with self._lock:
            return list(self._connections)

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                if self._wakeup.wait_for(self._listener, select.POLLIN, None):
                    while self._accept() and not stop.is_set():
                        pass
        finally:
            self._listener.close()

    def wake(self) -> None:
        self._wakeup.set()

    def close(self, deadline: Deadline) -> bool:
        """Ends all connections and waits for them; call it when run() has ended."""
        self._listener.close()
        connections = self.connections
        for connection in connections:
            connection.shut_down()
        ended = [connection.stop(deadline) for connection in connections]
        self._wakeup.close()
        return all(ended)

    def ended(self, connection: HAConnection) -> None:
        """Its thread is about to end: it has no place any more."""
        with self._lock:
            self._connections.pop(connection, None)

    # -- one connection -----------------------------------------------------------------------------

    def _accept(self) -> bool:
        """Takes one connection; False if none is left, or none can be had for now."""
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _SCARCE:
                self._tell("scarce", "cannot accept now, trying again reason=%s", error)
                self._wakeup.wait(self._scarce.next_s())
            return False  # anything else is that client's trouble: it went away while it waited
        self._scarce.succeeded()
        try:
            self._admit(connection, address)
        except (OSError, RuntimeError) as error:
            # No thread to be had, or a client that is gone again.
            connection.close()
            self._tell("serve", "cannot serve a connection peer=%s reason=%s", address[0], error)
        return True

    def _admit(self, connection: socket.socket, address: tuple[str, int]) -> None:
        ip, port = address_of(address[0]), address[1]
        peer = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        reason = self._why_not(ip) or self._make_room()
        if reason:
            self._refused(peer, reason)
            self._tell(f"{ip} {reason}", "connection refused peer=%s reason=%s", peer, reason)
            connection.close()
            return
        connection.setblocking(True)
        served = self._connect(connection, peer, self._identify(ip))
        with self._lock:
            self._connections[served] = None
        try:
            served.start()
        except BaseException:
            self.ended(served)
            raise

    def _why_not(self, ip: str) -> str:
        if not self._allowed:
            return ""
        address = ipaddress.ip_address(ip)
        if any(address in network for network in self._allowed):
            return ""
        return f"{ip} is in no network of haAllowedSlaves"

    def _make_room(self) -> str:
        """Empty if there is room for one more."""
        connections = self.connections
        if len(connections) < self._max_connections:
            return ""
        silent = [one for one in connections if one.progress.state is MasterState.WAIT_REPORT]
        # The displaced still count until their threads have ended; a flood does not get ahead of that.
        if silent and len(connections) < 2 * self._max_connections:
            self._tell("displaced", "all places taken, closing one that is silent peer=%s", silent[0].peer)
            silent[0].shut_down()
            return ""
        return f"all {self._max_connections} places of haMaxConnections are taken"

    def _tell(self, cause: str, message: str, *values: object) -> None:
        if self._seldom.ready(cause, time.monotonic()):
            logger.warning(message, *values)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        # The system's own words: Python adds to strerror what it attempted.
        number = error.errno or 0  # below 0: getaddrinfo's, with words of its own
        said = os.strerror(number) if number > 0 else error.strerror or str(error)
        reason = "the port is already taken" if taken else f"cannot listen there: {said}"
        raise OSError(error.errno, f"{host}:{port}: haListenPort: {reason}") from error
    listener.setblocking(False)
    return listener
