"""QueueLocks: which member of a group has which queue for itself, for orderly consumers.

    free or expired  ──lock──▶  held by one client id  ──lock by the same──▶  held for another 60 s
                                └──unlock by the owner, or 60 s without a word──▶ free

The locks are in memory only, as in RocketMQ: after a restart the members lock anew, and a slave does not
know its master's locks.  The end of a client's connection frees no lock, for the client may still work on
the queue.  Clients refresh every 20 s and stop consuming 30 s after the last success: after 60 s nobody does.

Pure: the clock is a parameter.  The loop's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from haservice.remoting.bodies.clients import MessageQueue

# RocketMQ's default, which only a property of its Java process changes.  The clients' own times (refresh
# 20 s, stop 30 s) have to fit inside.
LOCK_SECONDS = 60.0
# Locked queues at a time, over all groups.  Beyond, expired locks are dropped; if none are, none is given.
LOCKS_MAX = 100_000
# And the memory that they may take, with their names.
LOCKED_BYTES_MAX = 64 * 1024 * 1024
# A lock beside its names: objects, entries of dicts, the dict of a group.
_LOCK_BYTES = 500
# While there are so many, expired ones are searched for at most this often.
SWEEP_SECONDS = 1.0


@dataclass(slots=True)
class _Lock:
    client_id: str
    since_s: float


class QueueLocks:
    """group → queue → who holds it, and since when."""

    def __init__(
        self,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        lock_s: float = LOCK_SECONDS,
        locks_max: int = LOCKS_MAX,
        bytes_max: int = LOCKED_BYTES_MAX,
    ) -> None:
        self._clock_s = clock_s
        self._lock_s = lock_s
        self._locks_max = locks_max
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._swept_s = -SWEEP_SECONDS

    def __len__(self) -> int:
        """How many locks are kept, expired ones included."""
        return self._count

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Locks or renews as many of `queues` as it can, and returns these, each once."""
        now_s = self._clock_s()
        granted: dict[MessageQueue, None] = {}
        for queue in queues:
            if self._take(group, client_id, queue, now_s):
                granted[queue] = None
        return list(granted)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Frees those of `queues` that `client_id` holds, and no others."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                self._free(locks, queue)
        if not locks:
            del self._groups[group]

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """The client id that holds `queue` now."""
        held = self._groups.get(group, {}).get(queue)
        return None if held is None or self._expired(held, self._clock_s()) else held.client_id

    def _take(self, group: str, client_id: str, queue: MessageQueue, now_s: float) -> bool:
        held = self._groups.get(group, {}).get(queue)
        if held is not None:
            if held.client_id != client_id and not self._expired(held, now_s):
                return False
            self._bytes += len(client_id) - len(held.client_id)
            held.client_id = client_id
            held.since_s = now_s
            return True
        if self._is_full and not self._drop_expired(now_s):
            return False
        self._groups.setdefault(group, {})[queue] = lock = _Lock(client_id, now_s)
        self._count += 1
        self._bytes += _size(queue, lock)
        return True

    @property
    def _is_full(self) -> bool:
        return self._count >= self._locks_max or self._bytes >= self._bytes_max

    def _free(self, locks: dict[MessageQueue, _Lock], queue: MessageQueue) -> None:
        self._count -= 1
        self._bytes -= _size(queue, locks.pop(queue))

    def _expired(self, held: _Lock, now_s: float) -> bool:
        return now_s - held.since_s > self._lock_s

    def _drop_expired(self, now_s: float) -> bool:
        """Drops expired locks; True if that made room."""
        if now_s - self._swept_s < SWEEP_SECONDS:
            return False
        self._swept_s = now_s
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, held in locks.items() if self._expired(held, now_s)]:
                self._free(locks, queue)
            if not locks:
                del self._groups[group]
        return not self._is_full


def _size(queue: MessageQueue, lock: _Lock) -> int:
    return _LOCK_BYTES + len(queue.topic) + len(queue.broker_name) + len(lock.client_id)
