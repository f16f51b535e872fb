"""What the sends of a broker wait for, in a test's hand."""

from __future__ import annotations

from collections.abc import Callable

from haservice.broker.send.durability import Durability, PutStatus, Wait


class Told(Wait):
    """Tells what it was settled with."""

    __slots__ = ("tell",)

    def __init__(self, tell: Callable[[PutStatus], object]) -> None:
        self.tell = tell

    def settled(self, status: PutStatus) -> None:
        self.tell(status)


class Slave:
    """An HA service whose acks come when the test says so."""

    def __init__(self) -> None:
        self.ok = True
        self.ends: list[int] = []
        self.waits: list[Wait] = []

    def is_slave_ok(self, end: int) -> bool:
        return self.ok

    def await_ack(self) -> None:
        pass

    def submit(self, end: int, deadline_s: float, waiter: Wait) -> bool:
        self.ends.append(end)
        self.waits.append(waiter)
        return False


class Proofs:
    """A durability that waits for this slave if `sync`, and runs its calls where ack() is called."""

    def __init__(self, *, sync: bool) -> None:
        self.slave = Slave()
        self._calls: list[Callable[[], None]] = []
        self.durability = Durability(
            flush=None,
            replica=self.slave if sync else None,
            flush_timeout_s=5,
            replica_timeout_s=3,
            call_soon=self._calls.append,
        )

    def ack(self, ok: bool = True) -> None:
        waits, self.slave.waits = self.slave.waits, []
        self.durability.replicated(waits, ok)
        calls = list(self._calls)
        self._calls.clear()
        for call in calls:
            call()
