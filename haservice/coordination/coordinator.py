"""What is asked of a coordinator: etcd, ZooKeeper, or one in memory.

    read      all keys of one broker name, each with its version
    commit    a transaction: if every key it names is still as expected, all that it writes; else nothing
    session   keys may be bound to it; they go when the coordinator has not heard of it for its ttl
    watch     tells that something may have changed

A version is above 0 and differs after each write of the key.  That of a key that was deleted may come again (in
ZooKeeper it does), so whoever expects a key that sessions delete also expects `epoch`, which is never deleted.

Keys are relative: `master`, `members/ID`.  Every call ends by a deadline of its own, and raises CoordinatorError.
After one a commit may have happened, or may still happen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from haservice.errors import HAServiceError
from haservice.service import OnFailure

# The version of a key that is not there.
ABSENT = 0
# Below it is what grows, and what nothing is decided by.
HISTORY = "history/"


class CoordinatorError(HAServiceError):
    """The coordinator did not answer, or not as it should; what was asked for may have happened or not."""


class SessionEnded(CoordinatorError):
    """The coordinator has ended our session: what was bound to it is gone."""


class CoordinatorRefusal(CoordinatorError):
    """The coordinator answers, and does not let us: the user, the password, or a right is missing."""


@contextlib.contextmanager
def outside(doing: str) -> Iterator[None]:
    """Whatever a library raises, or an answer that nobody expected makes us raise, becomes a CoordinatorError."""
    try:
        yield
    except CoordinatorError:
        raise
    except Exception as error:
        raise CoordinatorError(
            f"the coordinator's answer is not understood while {doing}: {type(error).__name__}: {error}"
        ) from error


class Versioned(NamedTuple):
    """A key's value and version."""

    value: bytes
    version: int


Snapshot = Mapping[str, Versioned]


@dataclass(frozen=True, slots=True)
class Transaction:
    """All or nothing.  Every key that is written or deleted is expected, too."""

    expects: Mapping[str, int]
    puts: Mapping[str, bytes] = field(default_factory=dict)
    bound: frozenset[str] = frozenset()
    """Those of `puts` that end with our session."""
    deletes: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unexpected = (self.puts.keys() | self.deletes) - self.expects.keys()
        assert not unexpected, f"written without being expected: {sorted(unexpected)}"
        assert self.bound <= self.puts.keys(), (
            f"bound and not written: {sorted(self.bound - self.puts.keys())}"
        )


class Coordinator(Protocol):
    """One broker name in a coordinator, and our session there.  Used by one thread.

    Operators have no session: they `connect`, and bind nothing.
    """

    def connect(self) -> None:
        """For reading, and for writing what is not bound.  Makes no key.  Raises CoordinatorError."""

    def names(self) -> list[str]:
        """CLUSTER/BROKERNAME of all that have keys here, some thousands at most."""

    def lease_left_s(self) -> float | None:
        """How long `master` stays unless it is renewed; None if nobody can tell, or it is not there."""

    def open_session(self, ttl_s: float, /) -> float:
        """Begins a session, and returns its ttl, which may be another one.  An earlier session is over, or ends so."""

    def renew(self) -> None:
        """Our session lives for its ttl from the moment of this call on.  Raises SessionEnded if it is over."""

    def read(self) -> Snapshot:
        """All keys but those of the history, as they are now, or were since the call began; not of one moment."""

    def history(self) -> Snapshot:
        """The keys of the history."""

    def upkeep(self, *, cleans: bool) -> str:
        """What is wrong with the coordinator itself, and what helps; "" if nothing is.  To be asked now and then.

        With `cleans` it also removes old versions of keys, where it would keep them for ever.
        """

    def commit(self, transaction: Transaction, /) -> bool:
        """Whether it happened.  Raises SessionEnded if a key was to be bound and the session is over."""

    def watch(
        self, keys: Collection[str], on_change: Callable[[], None], on_failure: OnFailure | None = None, /
    ) -> None:
        """Calls `on_change`, in a thread of the library's, soon after one of these has changed; perhaps without
        cause, and not at all if the way there is cut meanwhile.  `on_failure` decides as that of a Service if the
        thread is ours, and ends.
        """

    def close(self) -> None:
        """Ends our session, if the coordinator can be reached, and all that is bound to it; may be called twice.

        Whoever has closed may connect, or open a session, again.
        """
