"""AcceptSocketService: the HA ports, plain and secure; an HAConnection for each slave that comes.

    accept ─▶ an allowed network? ─▶ a place, for its address and in all? ─▶ HAConnection, TLS in its thread
                     │ no                       │ none                            │ no report in time
                     ▼                          ▼                                 ▼
                  closed              the oldest silent one goes               closed

Anyone can reach the ports, so nobody gets a thread or a byte beyond the limits.  When all places are taken, a
newcomer gets the place of a connection that has reported nothing yet.  If the newcomer's address has used up
its share, that is one of its own; otherwise it is one of the address that holds most of the silent ones.
Slaves at work are never displaced.

A connection has to send its first whole report before its deadline, however it spends the time.  The TLS
handshake and our own count as part of that time.
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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from haservice.deadline import Deadline
from haservice.log_throttle import LogThrottle
from haservice.replication.master.connection import HAConnection
from haservice.replication.rates_and_backoff import Backoff
from haservice.replication.wire.protocol import MasterState
from haservice.replication.wire.secure import SecureDoors
from haservice.replication.wire.transport import PlainTransport, Transport
from haservice.replication.wire.wakeup import Wakeup

logger = logging.getLogger(__name__)

# A caller that finds the backlog full tries again a whole second later.
BACKLOG = 1024
# The machine is out of something; this passes when somebody lets go.
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
SCARCE_PAUSE_S = 0.1
SCARCE_PAUSE_S_MAX = 1.0
# The log tells one cause this often at most.
TELL_S = 10.0
# Time for the first whole report.  Our slaves send it at once.  Stock slaves send it when their
# haSendHeartbeatInterval has passed, up to a second late.
FIRST_REPORT_S = 5.0
STOCK_LATENESS = 2.0
# So many are accepted from one port before the other has its turn, and before deadlines are looked at.
ACCEPTS_IN_A_ROW = 64

Connect = Callable[[Transport, str, str], HAConnection]
Identify = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Door:
    """One port.  `key` is the key that sets it; `wrap` makes a connection's link, and sends no byte yet."""

    port: int
    key: str = "haListenPort"
    wrap: Callable[[socket.socket], Transport] = PlainTransport
    first_report_s: float = FIRST_REPORT_S


def address_of(ip: str) -> str:
    """One spelling per address: an IPv4 peer of an IPv6 socket is an IPv4 peer, and a zone is dropped."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class AcceptSocketService:
    """The task of ha-accept, and the owner of all connections.

    `connect(transport, peer, identity)` makes a connection that is not started yet.  `refused(peer, reason)`
    is told of each peer that is refused.
    """

    def __init__(
        self,
        host: str,
        doors: Sequence[Door],
        *,
        connect: Connect,
        refused: Callable[[str, str], None],
        allowed: Sequence[str] = (),
        max_connections: int = 64,
        max_per_address: int = 8,
        housekeeping_s: float = 20.0,
        identify: Identify = address_of,
    ) -> None:
        """A slave that has spoken has `housekeeping_s` in all for the report from which bytes flow."""
        self._host = host
        self._doors = doors
        self._connect = connect
        self._refused = refused
        self._allowed = [ipaddress.ip_network(network, strict=False) for network in allowed]
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._housekeeping_s = housekeeping_s
        self._identify = identify
        self._lock = threading.Lock()  # guards _connections
        self._connections: dict[HAConnection, _Guest] = {}
        self._throttle = LogThrottle(TELL_S)
        self._scarce = Backoff(SCARCE_PAUSE_S, SCARCE_PAUSE_S_MAX)
        self._listeners: list[tuple[socket.socket, Door]] = []
        self.ports: tuple[int, ...] = tuple(door.port for door in doors)
        """The ports that are open, or would be."""
        self._wakeup = Wakeup()
        # One descriptor to wait on for all ports.
        self._any = select.epoll()

    def open(self) -> None:
        """Opens the ports.  Raises OSError naming the one that is taken."""
        try:
            for door in self._doors:
                self._listeners.append((_listen(self._host, door), door))
        except OSError:
            self._close_listeners()
            raise
        for listener, _ in self._listeners:
            self._any.register(listener, select.EPOLLIN)
        self.ports = tuple(one.getsockname()[1] for one, _ in self._listeners)

    @property
    def port(self) -> int:
        """The first door's port."""
        return self.ports[0]

    @property
    def connections(self) -> list[HAConnection]:
        """Connections that have not ended, oldest first."""
        with self._lock:
            return list(self._connections)

    def run(self, stop: threading.Event) -> None:
        """The ports stay open if it breaks off, for it runs again."""
        while not stop.is_set():
            if self._wakeup.wait_for(self._any, select.POLLIN, self._hang_up_on_silent()):
                for listener, door in self._listeners:
                    self._accept_some(listener, door, stop)
        self._close_listeners()

    def wake(self) -> None:
        self._wakeup.set()

    def close(self, deadline: Deadline) -> bool:
        """Ends all connections and waits for them.  Call it when run() has ended.  It may be called twice."""
        self._close_listeners()
        self._any.close()
        connections = self.connections
        for connection in connections:
            connection.shut_down()
        ended = [connection.stop(deadline) for connection in connections]
        self._wakeup.close()
        return all(ended)

    def ended(self, connection: HAConnection) -> None:
        """The connection's thread is about to end: it gives up its place."""
        with self._lock:
            self._connections.pop(connection, None)

    def _close_listeners(self) -> None:
        for listener, _ in self._listeners:
            listener.close()

    # -- one connection -----------------------------------------------------------------------------

    def _accept_some(self, listener: socket.socket, door: Door, stop: threading.Event) -> None:
        for _ in range(ACCEPTS_IN_A_ROW):
            if stop.is_set() or not self._accept(listener, door):
                return

    def _accept(self, listener: socket.socket, door: Door) -> bool:
        """Takes one connection; False if none waits, or none can be accepted for now."""
        try:
            connection, address = listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _SCARCE:
                self._tell("scarce", "cannot accept now, trying again reason=%s", error)
                self._wakeup.wait(self._scarce.next_s())
            return False  # any other error is the client's: it went away while it waited
        self._scarce.succeeded()
        try:
            self._admit(connection, address, door)
        except (OSError, RuntimeError) as error:
            # No thread is to be had, or the client is gone again.
            connection.close()
            self._tell("serve", "cannot serve a connection peer=%s reason=%s", address[0], error)
        return True

    def _admit(self, connection: socket.socket, address: tuple[str, int], door: Door) -> None:
        ip, port = address_of(address[0]), address[1]
        peer = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        reason = self._why_not(ip) or self._make_room(ip)
        if reason:
            self._refused(peer, reason)
            self._tell(f"{ip} {reason}", "connection refused peer=%s reason=%s", peer, reason)
            connection.close()
            return
        connection.setblocking(True)
        served = self._connect(door.wrap(connection), peer, self._identify(ip))
        with self._lock:
            self._connections[served] = _Guest(ip, time.monotonic(), door.first_report_s)
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

    def _make_room(self, ip: str) -> str:
        """Why there is no room for one more connection from this address; empty if there is."""
        guests = self._guests()
        own = [one for one in guests if one[1].ip == ip]
        return self._room_among(
            own, self._max_per_address, f"haMaxConnectionsPerAddress are taken for {ip}"
        ) or self._room_among(guests, self._max_connections, "haMaxConnections are taken")

    def _room_among(self, guests: list[tuple[HAConnection, _Guest]], places: int, taken: str) -> str:
        """Why no more may come; empty if one may.  A displaced connection gives up its place at once, but
        with its thread still there are never more than 2 · `places`: a flood does not get ahead of that.
        """
        staying = [one for one in guests if not one[1].hung_up]
        if len(staying) < places and len(guests) < 2 * places:
            return ""
        silent = [one for one in staying if one[0].progress.state is MasterState.WAIT_REPORT]
        if not silent or len(guests) >= 2 * places:
            return f"all {places} places of {taken}"
        held = Counter(guest.ip for _, guest in silent)
        connection, guest = max(silent, key=lambda one: held[one[1].ip])  # the oldest of that address
        guest.hung_up = True
        self._tell("displaced", "all places taken, closing one that is silent peer=%s", connection.peer)
        connection.shut_down()
        return ""

    def _guests(self) -> list[tuple[HAConnection, _Guest]]:
        """Oldest first."""
        with self._lock:
            return list(self._connections.items())

    # -- silence ------------------------------------------------------------------------------------

    def _hang_up_on_silent(self) -> float | None:
        """Ends those that are out of time; seconds until the next one is, None if all are at work."""
        now_s, next_s = time.monotonic(), None
        for connection, guest in self._guests():
            if guest.hung_up or connection.progress.state is not MasterState.WAIT_REPORT:
                continue
            may_take_s = self._housekeeping_s if connection.spoke else guest.first_report_s
            left_s = guest.since_s + may_take_s - now_s
            if left_s > 0:
                next_s = left_s if next_s is None else min(next_s, left_s)
                continue
            guest.hung_up = True
            self._tell(
                f"silent {guest.ip}",
                "no report in time, closing the connection peer=%s seconds=%.1f",
                connection.peer,
                now_s - guest.since_s,
            )
            connection.shut_down()
        return next_s

    def _tell(self, cause: str, message: str, *values: object) -> None:
        if self._throttle.ready(cause, time.monotonic()):
            logger.warning(message, *values)


class _Guest:
    """What ha-accept knows of a connection; only its thread uses it."""

    __slots__ = ("first_report_s", "hung_up", "ip", "since_s")

    def __init__(self, ip: str, since_s: float, first_report_s: float) -> None:
        self.ip = ip
        self.since_s = since_s
        self.first_report_s = first_report_s
        self.hung_up = False


def doors_of(
    listen_port: int, heartbeat_s: float, housekeeping_s: float, secure: SecureDoors | None = None
) -> list[Door]:
    """The doors that a master opens; the plain one first, if there is one."""
    doors = []
    if secure is None or secure.plain:
        # A stock slave is silent for a heartbeat before it reports.
        first_s = min(max(FIRST_REPORT_S, STOCK_LATENESS * heartbeat_s), housekeeping_s)
        doors.append(Door(listen_port, first_report_s=first_s))
    if secure is not None and secure.port:
        first_s = min(FIRST_REPORT_S, housekeeping_s)
        doors.append(Door(secure.port, "haSecurePort", secure.accepted, first_s))
    return doors


def check_doors(host: str, doors: Sequence[Door]) -> None:
    """Raises OSError for a port that could not be opened now."""
    for door in doors:
        _listen(host, door).close()


def _listen(host: str, door: Door) -> socket.socket:
    port = door.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        # The system's own words: Python adds to strerror what it attempted.
        number = error.errno or 0  # below 0: getaddrinfo's, with words of its own
        said = os.strerror(number) if number > 0 else error.strerror or str(error)
        reason = "the port is already taken" if taken else f"cannot listen there: {said}"
        raise OSError(error.errno, f"{host}:{port}: {door.key}: {reason}") from error
    listener.setblocking(False)
    return listener
