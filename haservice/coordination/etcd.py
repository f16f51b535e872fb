"""etcd, by its JSON gateway: a session is a lease, a version the revision of a key's last change.

    grant, keepalive, revoke     a session
    txn with compares            read and commit
    watch                        a stream that one thread reads; it is opened again whenever it ends

urllib3 speaks HTTP: through a client library of etcd's, which has requests between, a call costs more CPU, and calls
are nearly all that a round of an idle broker costs.

A call ends within CALL_SECONDS.  If a server cannot be reached, or does not answer, the next call goes to the next
one.  A call that only asks is tried at the others at once; a commit is not, for it may have happened.

What etcd refuses has not happened.  So a call that is refused for its token is asked again with a new one, a commit,
too: the server has forgotten the token, or users and roles were changed since it was given.

etcd keeps each revision until somebody compacts it, and takes no write once its quota is full.  `upkeep` asks for its
alarms, and compacts what is older than KEPT_SECONDS.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as HTTPTimeout

from haservice import typed_json
from haservice.coordination.addresses import CoordinatorPlace, Keys
from haservice.coordination.cluster import MASTER
from haservice.coordination.coordinator import (
    HISTORY,
    CoordinatorError,
    CoordinatorRefusal,
    SessionEnded,
    Snapshot,
    Transaction,
)
from haservice.coordination.etcd_answers import (
    Anything,
    Granted,
    KeptAlive,
    KeyRange,
    Login,
    ServerStatus,
    TimeToLive,
    Transacted,
    changed,
    names,
    refusal,
    snapshot,
)
from haservice.deadline import Deadline
from haservice.log_throttle import LogThrottle
from haservice.service import OnFailure, Service
from haservice.typed_json import decode_lax as decode

logger = logging.getLogger(__name__)
T = TypeVar("T")

CALL_SECONDS = 1.0
# A watch that hears nothing for so long is opened again: the server may be gone without a word.
WATCH_SECONDS = 10.0
WATCH_PAUSE_SECONDS = 1.0
STOP_SECONDS = 2.0
# Of the history so many entries are read.
HISTORY_MAX = 1000
# And so many keys, for the broker names that have some.
NAMES_MAX = 10_000
# Revisions that are older are compacted, by whoever is the master.  So far back may other programs watch.
KEPT_SECONDS = 3600.0
# And so often.
COMPACT_SECONDS = 300.0
_API = "/v3/"
_JSON = {"Content-Type": "application/json"}


class _Code(IntEnum):
    """gRPC's codes of refusals that another server would repeat."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    OUT_OF_RANGE = 11
    UNAUTHENTICATED = 16


_FINAL = frozenset(_Code)
# A token that etcd has forgotten, and one that is older than the last change of users and roles.
_ASKS_FOR_A_LOGIN = (_Code.UNAUTHENTICATED, _Code.INVALID_ARGUMENT)
_FULL = "database space exceeded"
_NO_SPACE_ALARM = "NOSPACE"


class _Refused(Exception):
    """etcd has answered, and has not done it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _LoginRefused(_Refused):
    """The user and the password of the properties file do not let us in."""


class EtcdCoordinator:
    """Implements Coordinator."""

    def __init__(self, place: CoordinatorPlace, root: str, keys: Keys | None = None) -> None:
        self._root = f"{root}/"
        self._place = place
        self._keys = keys if keys is not None else Keys()
        self._servers = _servers(place, self._keys)
        self._at = 0
        self._token = ""
        self._lease = 0
        self._watch: Service | None = None
        self._revision = 0
        """etcd's, when it was read last."""
        self._old: deque[tuple[float, int]] = deque()
        """Its revisions, and when each was the newest, as far as they are not compacted."""
        self._compacted = 0

    # -- the session --------------------------------------------------------------------------------

    def open_session(self, ttl_s: float) -> float:
        answer = self._ask(Granted, "lease/grant", {"TTL": max(1, round(ttl_s)), "ID": 0})
        self._lease = answer.ID
        return float(answer.TTL)

    def renew(self) -> None:
        if not self._lease:
            raise SessionEnded("no lease of etcd's is open")
        if self._ask(KeptAlive, "lease/keepalive", {"ID": self._lease}).result.TTL <= 0:
            raise SessionEnded("etcd has ended this broker's lease: it was not renewed in time")

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop(Deadline(STOP_SECONDS))
            self._watch = None
        if self._lease:
            with contextlib.suppress(CoordinatorError):
                self._ask(Anything, "lease/revoke", {"ID": self._lease})
            self._lease = 0
        for one in self._servers:
            one.close()
        self._servers, self._token = _servers(self._place, self._keys), ""

    # -- for operators ------------------------------------------------------------------------------

    def connect(self) -> None:
        self._ask(KeyRange, "kv/range", {"key": self._key("epoch"), "keys_only": True})

    def names(self) -> list[str]:
        above = f"{self._root.rpartition('/haservice/')[0]}/haservice/".encode()
        end = above[:-1] + bytes((above[-1] + 1,))
        asked = {"key": _encoded(above), "range_end": _encoded(end), "keys_only": True, "limit": NAMES_MAX}
        return names(self._ask(KeyRange, "kv/range", asked).kvs, above)

    def lease_left_s(self) -> float | None:
        found = self._ask(KeyRange, "kv/range", {"key": self._key(MASTER)}).kvs
        lease = found[0].lease if found else 0
        if not lease:
            return None
        left = self._ask(TimeToLive, "lease/timetolive", {"ID": lease}).TTL
        return float(left) if left > 0 else None

    # -- keys ---------------------------------------------------------------------------------------

    def read(self) -> Snapshot:
        before, after = self._key(HISTORY), self._end_of(HISTORY)
        ranges = [(self._key(""), before), (after, self._end_of(""))]
        found = self._ranges(ranges)
        return {key: entry for key, entry in found.items() if not key.startswith(HISTORY)}

    def upkeep(self, *, cleans: bool) -> str:
        try:
            said = self._answer(ServerStatus, "maintenance/status", {})
        except _Refused:
            return ""  # some versions want to be asked by root
        if any(_NO_SPACE_ALARM in one for one in said.errors):
            return self._full()
        if cleans:
            self._compact(time.monotonic())
        return ""

    def _compact(self, now_s: float) -> None:
        """Compacts up to the newest revision that is old enough."""
        if not self._old or now_s >= self._old[-1][0] + COMPACT_SECONDS:
            self._old.append((now_s, self._revision))
        revision = self._compacted
        while self._old and self._old[0][0] <= now_s - KEPT_SECONDS:
            revision = self._old.popleft()[1]
        if revision > self._compacted:
            self._compacted = revision
            with contextlib.suppress(_Refused):  # somebody else has, or this user may not
                self._answer(Anything, "kv/compaction", {"revision": revision})

    def _full(self) -> str:
        return (
            f"{self._place} is full, and takes no write (alarm NOSPACE): compact and defragment it, then"
            " `etcdctl alarm disarm`; docs/failover.md says how it stays small"
        )

    def history(self) -> Snapshot:
        return self._ranges([(self._key(HISTORY), self._end_of(HISTORY))], limit=HISTORY_MAX)

    def _ranges(self, ranges: Sequence[tuple[str, str]], limit: int = 0) -> Snapshot:
        asked = [{"request_range": {"key": key, "range_end": end, "limit": limit}} for key, end in ranges]
        answer = self._ask(Transacted, "kv/txn", {"compare": [], "success": asked, "failure": []})
        self._revision = answer.header.revision
        try:
            return snapshot(answer, self._root, len(ranges))
        except ValueError as error:
            raise CoordinatorError(f"{self._place} does not answer as it should: {error}") from None

    def commit(self, transaction: Transaction) -> bool:
        if transaction.bound and not self._lease:
            raise SessionEnded("no lease of etcd's is open")  # 0 would be no lease, and the key for ever
        compares = [
            {"key": self._key(key), "result": "EQUAL", "target": "MOD", "mod_revision": version}
            for key, version in transaction.expects.items()
        ]
        writes: list[dict[str, Any]] = [
            {"request_delete_range": {"key": self._key(key)}} for key in sorted(transaction.deletes)
        ]
        for key, value in transaction.puts.items():
            put: dict[str, Any] = {"key": self._key(key), "value": _encoded(value)}
            if key in transaction.bound:
                put["lease"] = self._lease
            writes.append({"request_put": put})
        what = {"compare": compares, "success": writes, "failure": []}
        return self._ask(Transacted, "kv/txn", what, again=False).succeeded

    def _key(self, key: str) -> str:
        return _encoded(f"{self._root}{key}".encode())

    def _end_of(self, prefix: str) -> str:
        """The first key behind all that begin with it; a prefix of ours ends with a slash."""
        whole = f"{self._root}{prefix}".encode()
        return _encoded(whole[:-1] + bytes((whole[-1] + 1,)))

    # -- calls --------------------------------------------------------------------------------------

    def _ask(self, kind: type[T], path: str, what: dict[str, Any], *, again: bool = True) -> T:
        """One call.  Raises CoordinatorError."""
        try:
            return self._answer(kind, path, what, again=again)
        except _Refused as error:
            raise self._refusal(error) from None

    def _refusal(self, error: _Refused) -> CoordinatorError:
        if error.code == _Code.NOT_FOUND:
            return SessionEnded("etcd has ended this broker's lease: it was not renewed in time")
        if _FULL in str(error):
            return CoordinatorError(self._full())
        if error.code == _Code.PERMISSION_DENIED:
            return CoordinatorRefusal(
                f"{self._place} refuses user {self._keys.user!r}: {error}: etcdctl role grant-permission ROLE"
                f" --prefix=true readwrite {self._root}"
            )
        if isinstance(error, _LoginRefused) or error.code in _ASKS_FOR_A_LOGIN:
            return CoordinatorRefusal(
                f"{self._place} does not let user {self._keys.user!r} in: {error}: haCoordinatorUser and"
                " haCoordinatorPassword have to be those of a user of etcd"
            )
        return CoordinatorError(f"{self._place} refuses a call: {error}")

    def _answer(self, kind: type[T], path: str, what: dict[str, Any], *, again: bool = True) -> T:
        """Raises _Refused, CoordinatorError."""
        deadline, trouble = Deadline(CALL_SECONDS), "no time was left"
        for _ in self._servers if again else self._servers[:1]:
            server = self._servers[self._at]
            try:
                return decode(kind, self._asked_by_user(server, path, what, deadline))
            except (_Refused, HTTPError, ValueError, OSError) as error:
                if isinstance(error, _Refused) and error.code in _FINAL:
                    raise
                trouble = f"{server.host}:{server.port}: {error}"
            self._at = (self._at + 1) % len(self._servers)
            if deadline.expired:
                break
        tls = "" if self._place.is_tls else " does it want TLS (etcds://),"
        raise CoordinatorError(
            f"etcd does not answer as it should: {trouble}; is it up,{tls} and does a firewall let this machine"
            " ask it?"
        )

    def _asked_by_user(
        self, server: urllib3.HTTPConnectionPool, path: str, what: dict[str, Any], deadline: Deadline
    ) -> bytes:
        """Logs in, if that is wanted, and again if the token is no good any more."""
        if not self._keys.user:
            return self._asked(server, path, what, deadline)
        is_new = not self._token
        if is_new:
            self._log_in(server, deadline)
        try:
            return self._asked(server, path, what, deadline)
        except _Refused as error:
            if error.code not in _ASKS_FOR_A_LOGIN:
                raise
            self._show("")
            if is_new:
                raise
        self._log_in(server, deadline)
        return self._asked(server, path, what, deadline)

    def _log_in(self, server: urllib3.HTTPConnectionPool, deadline: Deadline) -> None:
        login = {"name": self._keys.user, "password": self._keys.password}
        try:
            self._show(decode(Login, self._asked(server, "auth/authenticate", login, deadline)).token)
        except _Refused as error:
            raise _LoginRefused(error.code, str(error)) from None

    def _show(self, token: str) -> None:
        """Each call from now on has it; the watch, too, once it is opened again."""
        self._token = token
        for one in self._servers:
            one.headers = {**_JSON, "Authorization": token} if token else _JSON

    @staticmethod
    def _asked(
        server: urllib3.HTTPConnectionPool, path: str, what: dict[str, Any], deadline: Deadline
    ) -> bytes:
        """Raises _Refused, HTTPError."""
        timeout = urllib3.Timeout(total=max(deadline.remaining, 0.01))
        body = typed_json.encode(what)
        answer = server.urlopen("POST", f"{_API}{path}", body, timeout=timeout, retries=False)
        if answer.status != 200:
            raise _Refused(*refusal(answer.data))
        if answer.data.startswith(b'{"error"'):  # of a stream such as keepalive's
            raise _Refused(*refusal(answer.data))
        return answer.data

    # -- the watch ----------------------------------------------------------------------------------

    def watch(
        self, keys: Collection[str], on_change: Callable[[], None], on_failure: OnFailure | None = None
    ) -> None:
        assert self._watch is None, "one watch is enough"
        wanted = frozenset(f"{self._root}{key}" for key in keys)
        task = _Watch(self._servers, self._key(""), self._end_of(""), wanted, on_change)
        self._watch = Service("coordinator-watch", task, on_failure)
        self._watch.start()


class _Watch:
    """The task of `coordinator-watch`: reads one stream of changes after the other."""

    def __init__(
        self,
        servers: Sequence[urllib3.HTTPConnectionPool],
        begin: str,
        end: str,
        wanted: frozenset[str],
        on_change: Callable[[], None],
    ) -> None:
        self._servers = servers
        self._what = typed_json.encode({"create_request": {"key": begin, "range_end": end}})
        self._wanted = wanted
        self._on_change = on_change
        self._response: urllib3.BaseHTTPResponse | None = None
        self._stopped = threading.Event()
        self._throttle = LogThrottle()

    def wake(self) -> None:
        self._stopped.set()
        response = self._response
        if response is not None:
            with contextlib.suppress(Exception):  # it may just be over
                response.shutdown()

    def run(self, stop: threading.Event) -> None:
        at = 0
        while not stop.is_set():
            began_s = time.monotonic()
            try:
                self._follow(self._servers[at], stop)
            except (HTTPError, ValueError, OSError) as error:
                if not isinstance(error, HTTPTimeout) and self._throttle.ready() and not stop.is_set():
                    logger.info("etcd's changes are not heard of at once reason=%s", error)
                at = (at + 1) % len(self._servers)
            if time.monotonic() - began_s < WATCH_PAUSE_SECONDS:
                self._stopped.wait(WATCH_PAUSE_SECONDS)

    def _follow(self, server: urllib3.HTTPConnectionPool, stop: threading.Event) -> None:
        """One stream, until it ends, or is silent for too long."""
        timeout = urllib3.Timeout(connect=CALL_SECONDS, read=WATCH_SECONDS)
        with server.urlopen(
            "POST", f"{_API}watch", self._what, timeout=timeout, retries=False, preload_content=False
        ) as response:
            self._response = response
            try:
                self._on_change()  # something may have changed before
                for line in response:
                    if stop.is_set():
                        return
                    if any(key in self._wanted for key in changed(line)):
                        self._on_change()
            finally:
                self._response = None


def _servers(place: CoordinatorPlace, keys: Keys) -> list[urllib3.HTTPConnectionPool]:
    """Their connections, none of which is open yet.  No proxy of the environment is asked."""
    return [_server(place, keys, host, port) for host, port in place.servers]


def _server(place: CoordinatorPlace, keys: Keys, host: str, port: int) -> urllib3.HTTPConnectionPool:
    """At most two connections are kept: one for calls, one for the watch."""
    if not place.is_tls:
        return urllib3.HTTPConnectionPool(host, port, maxsize=2, headers=_JSON)
    return urllib3.HTTPSConnectionPool(
        host,
        port,
        maxsize=2,
        headers=_JSON,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(keys.ca) if keys.ca is not None else None,
        cert_file=str(keys.certificate) if keys.certificate is not None else None,
        key_file=str(keys.key) if keys.key is not None else None,
    )


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
