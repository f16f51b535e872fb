"""ZooKeeper, by kazoo: a session is a session, a version one more than that of a node.

A session may end sooner after its last renewal than its timeout says: a server tells the leader of it with the
leader's next ping, half a tickTime later, or not at all if the server dies before.  So a ttl counts half a tickTime
less than the timeout.  Nobody tells how long a tickTime is, but no timeout is below two of them, as long as
minSessionTimeout is not set; and we assume at most 3 s.

And it ends at a tick only, up to one later.  So that a dead master is replaced after its ttl, as with etcd, and not
half a tick later than that, a session is asked for that is so much shorter.

kazoo begins a new session by itself when one has ended.  Nothing of ours is bound to that: it ends the client.
Its threads keep a session alive while our thread stands still; whether we are master ends with what our own clock
says, so that costs time and no safety.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import Callback as KazooCallback
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry

from haservice.coordination.addresses import CoordinatorPlace, Keys
from haservice.coordination.cluster import MEMBERS, TTL_S_MAX, is_key
from haservice.coordination.coordinator import (
    ABSENT,
    HISTORY,
    CoordinatorError,
    CoordinatorRefusal,
    SessionEnded,
    Snapshot,
    Transaction,
    Versioned,
)
from haservice.deadline import Deadline
from haservice.service import OnFailure

logger = logging.getLogger(__name__)
# A command has no log: what kazoo says of a server that does not answer is in the error that follows.
logging.getLogger("kazoo").addHandler(logging.NullHandler())

CALL_SECONDS = 1.0
# To connect may take several tries, at several servers.
CONNECT_SECONDS = 3.0
FORWARDED_SECONDS_MAX = 1.5
# Half of the tickTime that docs/failover.md wants.
LATE_SECONDS = 0.5
# An operator's session binds nothing.
OPERATOR_SECONDS = 10.0
_REFUSALS = (AuthFailedError, InvalidACLError, NoAuthError)
_NOT_AS_EXPECTED = (BadVersionError, NodeExistsError, NoNodeError)


class ZooKeeperCoordinator:
    """Implements Coordinator."""

    def __init__(self, place: CoordinatorPlace, root: str, keys: Keys | None = None) -> None:
        self._place = place
        self._root = root
        self._keys = keys if keys is not None else Keys()
        self._client: KazooClient | None = None
        self._session = 0
        self._makes_paths = False
        self._owners: dict[str, int] = {}
        """Keys that are bound to a session, as last read, and to which."""
        self._known: dict[str, tuple[int, Any]] = {}
        """What was read of a key, or of the names below it, and in which generation of watches."""
        self._generation = 0
        self._stale: set[str] = set()
        """Keys that have changed since, as watches tell."""
        self._watched: tuple[frozenset[str], Callable[[], None]] = (frozenset(), lambda: None)

    # -- the session --------------------------------------------------------------------------------

    def open_session(self, ttl_s: float) -> float:
        return self._open(ttl_s - LATE_SECONDS, makes_paths=True)

    def _open(self, timeout_s: float, *, makes_paths: bool) -> float:
        """Returns for how long the session lives for certain."""
        self.close()
        client = self._made(timeout_s)
        negotiated_ms: list[float] = []
        connect = client._connection._connect

        def connected(*server: Any) -> tuple[float, float]:
            # Only here does kazoo let its caller know for how long the servers keep the session.
            read_ms, connect_ms = connect(*server)
            negotiated_ms.append(read_ms * 1.5)
            return read_ms, connect_ms

        client._connection._connect = connected
        client.add_listener(partial(self._state_is, client))
        try:
            client.start(timeout=CONNECT_SECONDS)
            session = client._session_id
        except (KazooException, KazooTimeoutError, OSError) as error:
            _end(client)
            raise self._trouble(error) from None
        if not session or not negotiated_ms:
            _end(client)
            raise CoordinatorError(f"{self._place} does not answer: the connection was lost at once")
        lives_s = negotiated_ms[-1] / 1000
        if not 0 < lives_s <= TTL_S_MAX:
            _end(client)
            raise CoordinatorError(
                f"{self._place} says that the session lives for {lives_s:g} s, not for up to {TTL_S_MAX:g} s"
            )
        self._client, self._session, self._makes_paths = client, session, makes_paths
        self._known.clear()
        self._generation += 1
        try:
            self._log_in()
            self._make_paths()
        except CoordinatorError:
            self.close()
            raise
        self._watch_anew()
        return lives_s - min(FORWARDED_SECONDS_MAX, lives_s / 4)

    def _log_in(self) -> None:
        keys = self._keys
        if keys.user:
            self._call(lambda client: client.add_auth_async("digest", f"{keys.user}:{keys.password}"))

    def _make_paths(self, deadline: Deadline | None = None) -> None:
        """Where keys lie, unless we are an operator's.  Whoever deleted one of these paths left us our session."""
        names = ("", f"/{MEMBERS[:-1]}", f"/{HISTORY[:-1]}") if self._makes_paths else ()
        for name in names:
            path = f"{self._root}{name}"
            self._call(lambda client: client.ensure_path_async(path), deadline)  # noqa: B023 - called at once

    def renew(self) -> None:
        """Only the leader answers it, and only for a session that lives."""
        self._call(lambda client: client.sync_async(self._root))

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            _end(client)

    def _made(self, timeout_s: float) -> KazooClient:
        once = KazooRetry(max_tries=-1, delay=0.1, backoff=1, max_delay=0.5)
        keys = self._keys
        return KazooClient(
            hosts=",".join(f"{host}:{port}" for host, port in self._place.servers),
            timeout=timeout_s,
            connection_retry=once,
            command_retry=KazooRetry(max_tries=0),
            use_ssl=self._place.is_tls,
            ca=str(keys.ca) if keys.ca is not None else None,
            certfile=str(keys.certificate) if keys.certificate is not None else None,
            keyfile=str(keys.key) if keys.key is not None else None,
            logger=logging.getLogger("kazoo"),
        )

    # -- for operators ------------------------------------------------------------------------------

    def connect(self) -> None:
        self._open(OPERATOR_SECONDS, makes_paths=False)

    def names(self) -> list[str]:
        above = f"{self._root.rpartition('/haservice/')[0]}/haservice"
        deadline = Deadline(CALL_SECONDS)
        found = []
        for cluster in sorted(self._below(above, deadline)):
            found += [f"{cluster}/{one}" for one in sorted(self._below(f"{above}/{cluster}", deadline))]
        return found

    def lease_left_s(self) -> float | None:
        return None

    def _below(self, path: str, deadline: Deadline) -> list[str]:
        try:
            found: list[str] = self._call(lambda client: client.get_children_async(path), deadline)
        except NoNodeError:
            return []
        return found

    # -- keys ---------------------------------------------------------------------------------------

    def read(self) -> Snapshot:
        """Asks for what has changed since it was read last; for the rest the watches are silent."""
        deadline = Deadline(CALL_SECONDS)
        self._call(lambda client: client.sync_async(self._root), deadline)
        self._hear_watches(deadline)
        names = [one for one in self._children("", deadline) if f"{one}/" not in (MEMBERS, HISTORY)]
        keys = [one for one in names if is_key(one)]
        keys += [f"{MEMBERS}{one}" for one in self._children(MEMBERS, deadline)]
        found = self._values(keys, deadline, watched=True)
        for gone in self._known.keys() - found.keys() - {"", MEMBERS}:
            del self._known[gone]
            self._stale.discard(gone)
        self._owners = {key: stat.ephemeralOwner for key, (_, stat) in found.items() if stat.ephemeralOwner}
        # Another's node is not read, which its ACL may forbid; nobody looks at its version.
        strange = {one: Versioned(b"", 1) for one in names if not is_key(one)}
        return strange | {key: Versioned(value, stat.version + 1) for key, (value, stat) in found.items()}

    def upkeep(self, *, cleans: bool) -> str:
        """It keeps no old versions, and raises no alarm."""
        return ""

    def history(self) -> Snapshot:
        deadline = Deadline(CALL_SECONDS)
        names = self._below(self._path(HISTORY[:-1]), deadline)
        found = self._values([f"{HISTORY}{one}" for one in sorted(names)], deadline)
        return {key: Versioned(value, stat.version + 1) for key, (value, stat) in found.items()}

    def _children(self, parent: str, deadline: Deadline) -> list[str]:
        """Of the root, or of a key that ends with a slash."""
        known = self._known.get(parent)
        if known is None or not self._is_fresh(parent, known[0]):
            path = f"{self._root}/{parent}".rstrip("/")
            generation = self._asks(parent)
            try:
                names = self._call(
                    lambda client: client.get_children_async(path, watch=self._noticed), deadline
                )
            except NoNodeError:  # somebody has deleted it
                self._known.pop(parent, None)
                self._make_paths(deadline)
                return []
            known = self._known[parent] = generation, sorted(names)
        names = known[1]
        return list(names)

    def _values(
        self, keys: Iterable[str], deadline: Deadline, *, watched: bool = False
    ) -> dict[str, tuple[bytes, ZnodeStat]]:
        """All are asked for at once; what is gone by now is left out."""
        client, found, asked = self._alive(), {}, {}
        for key in keys:
            known = self._known.get(key)
            if watched and known is not None and self._is_fresh(key, known[0]):
                found[key] = known[1]
            else:
                watch = self._noticed if watched else None
                asked[key] = self._asks(key), client.get_async(self._path(key), watch=watch)
        for key, (generation, answer) in asked.items():
            with contextlib.suppress(NoNodeError):
                found[key] = self._answer(answer, deadline)
                if watched:
                    self._known[key] = generation, found[key]
        return found

    # -- what is known, and whether a watch has told of it since --------------------------------------

    def _asks(self, key: str) -> int:
        """Before a key is asked for: a watch that tells after this tells of a change that the answer lacks."""
        self._stale.discard(key)
        return self._generation

    def _is_fresh(self, key: str, generation: int) -> bool:
        return generation == self._generation and key not in self._stale

    def _noticed(self, event: WatchedEvent) -> None:
        """In kazoo's thread: a node has changed, or all watches are gone with a connection."""
        if event.path is None:
            self._generation += 1
            return
        key = event.path[len(self._root) + 1 :]
        if event.type != EventType.CHILD:
            self._stale.add(key)
        if event.type != EventType.CHANGED:  # one that is deleted has no children either
            self._stale.add(f"{key}/" if key else "")

    def _hear_watches(self, deadline: Deadline) -> None:
        """Returns when kazoo has told of all changes that it had heard of before the answer to our last call."""
        heard = threading.Event()
        self._alive().handler.dispatch_callback(KazooCallback("watch", heard.set, ()))
        if not heard.wait(max(deadline.remaining, 0.001)):
            raise CoordinatorError(f"{self._place} does not answer: kazoo is busy")

    def commit(self, transaction: Transaction) -> bool:
        client = self._alive()
        asked = client.transaction()
        for key, version in transaction.expects.items():
            self._add(asked, key, version, transaction)
        results = self._answer(asked.commit_async(), Deadline(CALL_SECONDS))
        failed = [one for one in results if isinstance(one, Exception)]
        for one in failed:
            if isinstance(one, SessionExpiredError):
                raise SessionEnded(f"{self._place} has ended this broker's session")
        if any(isinstance(one, _NOT_AS_EXPECTED) for one in failed):
            return False
        if failed:
            refused = next((one for one in failed if isinstance(one, _REFUSALS)), failed[0])
            raise self._trouble(refused)
        return True

    def _add(self, asked: Any, key: str, version: int, transaction: Transaction) -> None:
        """What a key takes in a transaction; one that is bound to another session has to be made anew."""
        path, is_bound = self._path(key), key in transaction.bound
        value = transaction.puts.get(key)
        if key in transaction.deletes:
            asked.delete(path, version - 1)
        elif value is None and version == ABSENT:
            asked.create(path, b"")
            asked.delete(path)
        elif value is None:
            asked.check(path, version - 1)
        elif version == ABSENT:
            asked.create(path, value, ephemeral=is_bound)
        elif self._owners.get(key, 0) != (self._session if is_bound else 0):
            asked.delete(path, version - 1)
            asked.create(path, value, ephemeral=is_bound)
        else:
            asked.set_data(path, value, version - 1)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    # -- calls --------------------------------------------------------------------------------------

    def _alive(self) -> KazooClient:
        """Raises SessionEnded.  `client_id` tells nothing: it is None while the connection is lost."""
        client = self._client
        if client is None or client._session_id != self._session:
            raise SessionEnded(f"{self._place} has ended this broker's session")
        return client

    def _trouble(self, error: Exception) -> CoordinatorError:
        user = self._keys.user
        if isinstance(error, _REFUSALS):
            return CoordinatorRefusal(
                f"{self._place} refuses user {user!r}: {_text(error)}: haCoordinatorUser and haCoordinatorPassword have"
                f" to be those that the ACLs of {self._root} and of what lies above it let in"
            )
        return CoordinatorError(
            f"{self._place} does not answer: {_text(error)}; is it up, and does a firewall let this machine ask it?"
        )

    def _call(self, ask: Callable[[KazooClient], Any], deadline: Deadline | None = None) -> Any:
        client = self._alive()
        return self._answer(ask(client), deadline if deadline is not None else Deadline(CALL_SECONDS))

    def _answer(self, asked: Any, deadline: Deadline) -> Any:
        """Raises NoNodeError, or CoordinatorError."""
        try:
            answer = asked.get(timeout=max(deadline.remaining, 0.001))
        except NoNodeError:
            raise
        except SessionExpiredError:
            raise SessionEnded(f"{self._place} has ended this broker's session") from None
        except (KazooException, KazooTimeoutError, OSError) as error:
            self._alive()
            raise self._trouble(error) from None
        self._alive()
        return answer

    # -- the watch ----------------------------------------------------------------------------------

    def watch(
        self, keys: Collection[str], on_change: Callable[[], None], on_failure: OnFailure | None = None
    ) -> None:
        self._watched = (frozenset(keys), on_change)
        self._watch_anew()

    def _watch_anew(self) -> None:
        """After each connection; watches are gone with the last one, and something may have changed since."""
        keys, on_change = self._watched
        for key in keys:
            self._watch_one(key)
        on_change()

    def _watch_one(self, key: str) -> None:
        """A watch of ZooKeeper's tells of one change, so it is set anew each time.  Nobody waits for the answer."""
        client, on_change = self._client, self._watched[1]
        if client is None:
            return

        def told(event: WatchedEvent) -> None:
            if event.path is not None and self._client is client:
                self._watch_one(key)
                on_change()

        # What changed since the last one told, and before this one was set, nobody tells: so it is asked for then.
        client.exists_async(self._path(key), watch=told).rawlink(lambda _: on_change())

    def _state_is(self, client: KazooClient, state: str) -> None:
        """In kazoo's thread, which must not wait."""
        if state == KazooState.CONNECTED and self._client is client:
            self._watch_anew()


def _end(client: KazooClient) -> None:
    for step in (client.stop, client.close):
        try:
            step()
        except Exception as error:  # its session ends by itself
            logger.debug("a connection to ZooKeeper is not closed reason=%s", error)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
