"""Links on virtual time: connections of bytes that come whole, in order, late, in pieces, or not at all.

A connection loses nothing in its middle, as TCP does not: it delays, it is cut (what was under way up to some
byte still arrives), or the network between two nodes is gone and all is silence until it is back.  Two links
know nothing of each other, so what goes over one may come before what went over the other earlier.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tests.chaos.sim_clock import Clock

# A connection that cannot be made is given up after this.
CONNECT_S = 1.0
# What a sender may have under way before it has to wait.
WINDOW_BYTES = 16 * 1024


class End(Protocol):
    """Who holds one end of a connection."""

    def received(self, data: bytes) -> None: ...

    def closed(self) -> None:
        """By the other side, or cut; not called for one's own close()."""

    def drained(self) -> None:
        """There is room again behind a send() that found none."""


class Network:
    """Who reaches whom, and how slowly."""

    def __init__(self, clock: Clock, source: random.Random) -> None:
        self.clock = clock
        self.source = source
        self.connections: list[Connection] = []
        self._blocked: dict[tuple[str, str], int] = {}
        self.slow: dict[frozenset[str], float] = {}
        """Seconds that every piece between two nodes takes, beyond the usual."""

    def block(self, sender: str, receiver: str) -> None:
        """Nothing goes from the one to the other; as often as it is blocked it has to be unblocked."""
        self._blocked[sender, receiver] = self._blocked.get((sender, receiver), 0) + 1

    def unblock(self, sender: str, receiver: str) -> None:
        count = self._blocked.get((sender, receiver), 0) - 1
        if count > 0:
            self._blocked[sender, receiver] = count
            return
        self._blocked.pop((sender, receiver), None)
        for connection in list(self.connections):
            connection.moved()

    def reaches(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self._blocked

    def talk(self, one: str, other: str) -> bool:
        """Whether both reach each other."""
        return self.reaches(one, other) and self.reaches(other, one)

    def heal(self) -> None:
        """No connection that is there now breaks later; what is blocked is for who blocked it."""
        for connection in self.connections:
            for node in (connection.near, connection.far):
                connection.cut_after(node, None)

    def delay_s(self, one: str, other: str) -> float:
        slow_s = self.slow.get(frozenset((one, other)), 0.0)
        return self.source.uniform(0.0002, 0.002) + slow_s * self.source.uniform(0.5, 1.5)

    def connect(
        self, near: str, far: str, near_end: End, make_far_end: Callable[[Connection], End | None]
    ) -> Connection | None:
        """A connection, whose far end is made now; None if nobody is there or it cannot be reached."""
        if not self.talk(near, far):
            return None
        connection = Connection(self, near, far)
        connection.ends[near] = near_end
        far_end = make_far_end(connection)
        if far_end is None:
            return None
        connection.ends[far] = far_end
        self.connections.append(connection)
        return connection


class _Way:
    """One direction."""

    __slots__ = ("arrives_s", "cut_after", "ended", "pieces", "under_way", "waiting")

    def __init__(self) -> None:
        self.pieces: deque[tuple[float, bytes]] = deque()
        self.arrives_s = 0.0
        self.cut_after: int | None = None
        self.under_way = 0
        self.waiting = False
        self.ended = False


class Connection:
    """Between `near`, who connected, and `far`."""

    def __init__(self, network: Network, near: str, far: str) -> None:
        self.network = network
        self.near = near
        self.far = far
        self.ends: dict[str, End] = {}
        self.is_open = True
        self.coming: list[Any] = []
        """What the simulation knows to be in the bytes under way, in their order."""
        self._ways = {near: _Way(), far: _Way()}

    def other(self, node: str) -> str:
        return self.far if node == self.near else self.near

    def has_room(self, node: str) -> bool:
        """Whether `node` may send more now; if not, its end is told when it may."""
        way = self._ways[node]
        way.waiting = way.under_way >= WINDOW_BYTES
        return not way.waiting

    def send(self, node: str, data: bytes) -> None:
        if not self.is_open or not data:
            return
        network, way = self.network, self._ways[node]
        source = network.source
        # Mostly as it was sent; now and then in pieces, as a stream may come.
        cuts = sorted(source.randrange(len(data)) for _ in range(3)) if source.random() < 0.1 else []
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if begin < end:
                way.arrives_s = max(
                    way.arrives_s, network.clock.now_s + network.delay_s(node, self.other(node))
                )
                way.pieces.append((way.arrives_s, data[begin:end]))
                way.under_way += end - begin
                network.clock.after(way.arrives_s - network.clock.now_s, self._arrive, node)

    def cut_after(self, node: str, size: int | None) -> None:
        """The connection breaks once `size` more bytes of `node` have arrived; None: it does not."""
        self._ways[node].cut_after = size

    def moved(self) -> None:
        """The network has changed: what was held up arrives."""
        for node in (self.near, self.far):
            self._arrive(node)

    def _arrive(self, node: str) -> None:
        way, other = self._ways[node], self.other(node)
        while self.is_open and way.pieces and way.pieces[0][0] <= self.network.clock.now_s + 1e-9:
            if not self.network.reaches(node, other):
                return
            data = way.pieces.popleft()[1]
            way.under_way -= len(data)
            if way.cut_after is not None:
                if way.cut_after < len(data):
                    data = data[: way.cut_after]
                    if data:
                        self.ends[other].received(data)
                    self.break_off()
                    return
                way.cut_after -= len(data)
            self.ends[other].received(data)
            if self.is_open and way.waiting and way.under_way < WINDOW_BYTES:
                way.waiting = False
                self.ends[node].drained()
        if self.is_open and way.ended and not way.pieces and self.network.reaches(node, other):
            self._gone()
            self.ends[other].closed()

    def close(self, node: str) -> None:
        """`node` ends it.  What it has sent still arrives; then the other side is told."""
        if not self.is_open or self._ways[node].ended:
            return
        way = self._ways[node]
        way.ended = True
        self.ends[node] = _NOBODY
        at_s = max(way.arrives_s, self.network.clock.now_s + self.network.delay_s(node, self.other(node)))
        self.network.clock.after(at_s - self.network.clock.now_s, self._arrive, node)

    def forget(self, node: str) -> None:
        """The machine of `node` is gone without a word: what comes for it is answered by nobody."""
        self.ends[node] = _NOBODY
        self._ways[node].pieces.clear()

    def break_off(self) -> None:
        """It is cut: both sides are told at once."""
        if self.is_open:
            self._gone()
            for node in (self.near, self.far):
                self.ends[node].closed()

    def _gone(self) -> None:
        self.is_open = False
        if self in self.network.connections:
            self.network.connections.remove(self)


class _Nobody:
    def received(self, data: bytes) -> None:
        pass

    def closed(self) -> None:
        pass

    def drained(self) -> None:
        pass


_NOBODY = _Nobody()
