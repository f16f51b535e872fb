"""A coordinator in memory: what etcd and ZooKeeper promise, and no more.

MemoryServer        keys, versions, sessions that end by a clock; `restore` goes back to a backup
MemoryCoordinator   one broker's session there, as haservice.coordination.coordinator asks for it
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from haservice.coordination.coordinator import (
    ABSENT,
    HISTORY,
    CoordinatorError,
    SessionEnded,
    Snapshot,
    Transaction,
    Versioned,
)
from haservice.service import OnFailure


@dataclass(slots=True)
class _Session:
    ttl_s: float
    until_s: float


@dataclass(slots=True)
class MemoryServer:
    """`now_s` is the server's own clock.  `on_commit` hears of what was written, and by which session."""

    now_s: Callable[[], float]
    on_commit: Callable[[Transaction, int], None] = lambda _transaction, _session: None
    keys: dict[str, Versioned] = field(default_factory=dict)
    sessions: dict[int, _Session] = field(default_factory=dict)
    _bound: dict[str, int] = field(default_factory=dict)
    _revisions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _watchers: list[tuple[frozenset[str], Callable[[], None]]] = field(default_factory=list)

    def open(self, ttl_s: float) -> int:
        number = next(self._numbers)
        self.sessions[number] = _Session(ttl_s, self.now_s() + ttl_s)
        return number

    def renew(self, number: int) -> None:
        self.expire()
        session = self.sessions.get(number)
        if session is None:
            raise SessionEnded("the session is over")
        session.until_s = self.now_s() + session.ttl_s

    def read(self) -> Snapshot:
        self.expire()
        return {key: entry for key, entry in self.keys.items() if not key.startswith(HISTORY)}

    def history(self) -> Snapshot:
        return {key: entry for key, entry in self.keys.items() if key.startswith(HISTORY)}

    def commit(self, transaction: Transaction, number: int) -> bool:
        self.expire()
        if transaction.bound and number not in self.sessions:
            raise SessionEnded("the session is over")
        if any(self._version(key) != version for key, version in transaction.expects.items()):
            return False
        for key in transaction.deletes:
            self._delete(key)
        for key, value in transaction.puts.items():
            self.keys[key] = Versioned(value, next(self._revisions))
            self._bound.pop(key, None)
            if key in transaction.bound:
                self._bound[key] = number
        self.on_commit(transaction, number)
        self._changed(transaction.puts.keys() | transaction.deletes)
        return True

    def end(self, number: int) -> None:
        """The session is over, whoever ended it."""
        if self.sessions.pop(number, None) is not None:
            gone = [one for one, owner in self._bound.items() if owner == number]
            for key in gone:
                self._delete(key)
            self._changed(gone)

    def expire(self) -> None:
        """Ends the sessions that are not renewed."""
        for number in [one for one, session in self.sessions.items() if session.until_s <= self.now_s()]:
            self.end(number)

    def backup(self) -> Mapping[str, bytes]:
        """The keys that are bound to no session."""
        return {key: entry.value for key, entry in self.keys.items() if key not in self._bound}

    def restore(self, backup: Mapping[str, bytes]) -> None:
        """Its keys are those of a backup, and every session is gone; versions go on."""
        self.sessions.clear()
        self._bound.clear()
        gone = self.keys.keys()
        self.keys = {key: Versioned(value, next(self._revisions)) for key, value in backup.items()}
        self._changed(gone | self.keys.keys())

    def watch(self, keys: Collection[str], on_change: Callable[[], None]) -> None:
        self._watchers.append((frozenset(keys), on_change))

    def owner(self, key: str) -> int | None:
        return self._bound.get(key)

    def _version(self, key: str) -> int:
        return self.keys[key].version if key in self.keys else ABSENT

    def _delete(self, key: str) -> None:
        self.keys.pop(key, None)
        self._bound.pop(key, None)

    def _changed(self, keys: Collection[str]) -> None:
        for watched, on_change in self._watchers:
            if not watched.isdisjoint(keys):
                on_change()


class MemoryCoordinator:
    """Implements Coordinator.  While `is_cut`, the server cannot be reached."""

    def __init__(self, server: MemoryServer) -> None:
        self.is_cut = False
        self._server = server
        self._session = 0
        self._closed = False

    def connect(self) -> None:
        self._reach()

    def names(self) -> list[str]:
        self._reach()
        return ["test/broker-a"] if self._server.keys else []

    def lease_left_s(self) -> float | None:
        return None

    def open_session(self, ttl_s: float) -> float:
        self._reach()
        self._session, self._closed = self._server.open(ttl_s), False
        return ttl_s

    def renew(self) -> None:
        self._reach()
        self._server.renew(self._session)

    def read(self) -> Snapshot:
        self._reach()
        return self._server.read()

    def upkeep(self, *, cleans: bool) -> str:
        self._reach()
        return ""

    def history(self) -> Snapshot:
        self._reach()
        return self._server.history()

    def commit(self, transaction: Transaction) -> bool:
        self._reach()
        return self._server.commit(transaction, self._session)

    def watch(
        self, keys: Collection[str], on_change: Callable[[], None], on_failure: OnFailure | None = None
    ) -> None:
        self._server.watch(keys, lambda: None if self._closed else on_change())

    def close(self) -> None:
        if not self._closed and not self.is_cut:
            self._server.end(self._session)
        self._closed = True

    def _reach(self) -> None:
        if self.is_cut:
            raise CoordinatorError("the coordinator cannot be reached")
