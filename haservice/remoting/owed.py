"""What peers are owed, in bytes: answers that work threads make, and answers that wait to be written.

    AnswerTurns   make(connection, function) ─▶ its connection's line ─▶ a work thread ─▶ a future
    Unread        the bytes that all connections of a server wait to write, together
    Taken         how much of what was written a peer has taken, when it last took some, and what is kept for it
    Unanswered    a connection's requests whose answers come later, and the bytes that they keep

A work thread makes the next answer of a connection while the peer takes what we write, and while that and the
answers that are being made for it fit ANSWERS_BYTES_MAX.  So a peer that asks much and reads nothing costs what is
written for it and a few answers.  Connections take turns: many questions of one delay no other for long.
What is written counts whole until the peer's socket has all of it: the memory of an answer is in one piece.

If all connections together hold too much, those that have read nothing for longest are ended.  Everything
here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from haservice.errors import RequestError
from haservice.remoting.acceptor import has_sent_all
from haservice.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from haservice.remoting.command import RemotingCommand
    from haservice.remoting.connection import Connection
    from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What an answer counts while it is made: the largest message that a broker takes by default.
ANSWER_BYTES = 4 * 1024 * 1024
# Being made for one connection at once, with what waits to be written for it; while nothing else is being made, one
# answer always may.  Each is copied once more when it is written: two of the largest would be above 16 MiB together.
ANSWERS_BYTES_MAX = ANSWER_BYTES * 3 // 2
# Being made at once for all connections: more would only wait for the same work threads.
MAKING_MAX = 4
# Questions that wait for their turn, of all connections, and one more of each; those of one end its reading
# (AWAITED_MAX).
WAITING_MAX = 10_000
# An answer that was made is gathered by its connection within so many turns of the loop.
TURNS_TO_GATHER = 3

# Of all connections.  The process takes up to twice that: answers being made are copied once or twice, connections
# end a moment later, and the allocator keeps gaps between large answers.
UNREAD_BYTES_MAX = 128 * 1024 * 1024
# A write of this size is remembered until the socket has taken all of it; of so many at most, for beyond a few the
# connection is congested.
REMEMBERED_BYTES, REMEMBERED_MAX = 16 * 1024, 64
# With TLS the library's buffer of what waits grows in steps, and is there beside what the transport has of it.
SEALED_COPIES = 2


# Bytes of requests of one connection whose answers come later: beyond, nothing more is read from it.
REQUEST_BYTES_MAX = 2 * 1024 * 1024
# So long until it is looked whether they are fewer now.
REQUESTS_LOOK_S = 0.05


class Make(Protocol):
    """Runs a function that makes a large answer for a connection; RemotingServer.make.  On the loop only."""

    def __call__(
        self, connection: Connection, function: Callable[..., T], /, *args: Any, size: int = ANSWER_BYTES
    ) -> asyncio.Future[T]: ...


class Unanswered:
    """A connection's requests whose answers come later.

    `bytes` is never below what they keep: a pull that is held lets go of its bytes, and is counted again when there
    are too many.
    """

    __slots__ = ("_look", "_requests", "bytes")

    def __init__(self) -> None:
        self._look: asyncio.TimerHandle | None = None
        self._requests: dict[asyncio.Future[RemotingCommand], tuple[RemotingCommand, int]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, future: asyncio.Future[RemotingCommand]) -> bool:
        return future in self._requests

    @property
    def too_large(self) -> bool:
        """One alone never is: who does not read does not see that a connection ended, either."""
        if self.bytes > REQUEST_BYTES_MAX and len(self._requests) > 1:
            self._recount()
        return self.bytes > REQUEST_BYTES_MAX and len(self._requests) > 1

    def add(self, future: asyncio.Future[RemotingCommand], request: RemotingCommand, size: int) -> None:
        self._requests[future] = request, size
        self.bytes += size

    def pop(self, future: asyncio.Future[RemotingCommand]) -> RemotingCommand | None:
        request, size = self._requests.pop(future, (None, 0))
        self.bytes -= size
        return request

    def clear(self) -> None:
        self._requests = {}
        self.bytes = 0

    def look_later(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when they may have become smaller, if they are too large now."""
        if self._look is None and self.too_large:
            self._look = asyncio.get_running_loop().call_later(REQUESTS_LOOK_S, self._looked, callback)

    def _looked(self, callback: Callable[[], object]) -> None:
        self._look = None
        callback()

    def _recount(self) -> None:
        for future, (request, size) in self._requests.items():
            if size and not request.ext and not len(request.body):
                self._requests[future] = request, 0
                self.bytes -= size


class Unread:
    """`counted` is never below what waits: what waited at the last count, and all that was written since.

    So a write costs one addition, and the connections are counted once in an eighth of the bound.
    """

    __slots__ = ("bytes_max", "connections", "counted", "reserved")

    def __init__(self, bytes_max: int = sys.maxsize) -> None:
        self.bytes_max = bytes_max
        self.connections: set[Connection] = set()
        self.counted = 0
        self.reserved = 0
        """For answers that are being made; part of `counted`."""

    def add(self, size: int) -> None:
        """So much was written, or will be."""
        self.counted += size
        if self.counted > self.bytes_max:
            self.count()

    def reserve(self, size: int) -> None:
        """So much is being made; a negative `size` gives back."""
        self.reserved += size
        self.add(size)

    def count(self) -> None:
        """Counts what waits now, and ends connections while that is more than seven eighths of the bound."""
        waiting = [(one.unread_since(), -size, one) for one in self.connections if (size := one.kept_bytes)]
        total, most = self.reserved - sum(size for _, size, _ in waiting), self.bytes_max // 8 * 7
        if total > most:
            waiting.sort(key=lambda one: one[:2])
            for _, size, connection in waiting:
                self.connections.discard(connection)
                logger.warning(
                    "closing a peer that does not read peer=%s unread=%d of_all=%d maxUnreadAnswerBytes=%d",
                    *(connection.peer, -size, total, self.bytes_max),
                )
                connection.abort(f"{-size} bytes not read, while all connections hold {total}")
                total += size
                if total <= most:
                    break
        self.counted = total


class Taken:
    """What was written to a peer: how much the peer has taken, when it last took some, and what is kept for it."""

    __slots__ = ("_bytes", "_large", "_since", "_unread", "_written")

    def __init__(self, unread: Unread, now_s: float) -> None:
        self._unread = unread
        self._written = self._bytes = 0
        self._since = now_s
        # Where large writes began and ended, oldest first; some of them are taken.
        self._large: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_MAX)

    def wrote(self, size: int) -> None:
        if size >= REMEMBERED_BYTES:
            self._large.append((self._written, self._written + size))
        self._written += size
        self._unread.add(size)

    def since(self, waiting: int, now_s: float) -> float:
        """When it was last seen to take some; `waiting` bytes of what was written are still here."""
        taken = self._written - waiting
        if taken > self._bytes:
            self._bytes, self._since = taken, now_s
        return self._since

    def kept_by(self, transport: asyncio.Transport) -> int:
        """Bytes of what was written that `transport` keeps."""
        waiting = transport.get_write_buffer_size()
        if transport.get_extra_info("sslcontext") is None:
            return self.kept(waiting)
        return SEALED_COPIES * self.kept_sealed(waiting, has_sent_all(transport))

    def kept(self, waiting: int) -> int:
        """Bytes that are kept while `waiting` are still here: a write is kept whole until the last of it is taken."""
        taken = self._written - waiting
        while self._large and self._large[0][1] <= taken:
            self._large.popleft()
        begun = self._large[0][0] if self._large else taken
        return waiting + max(0, taken - begun)

    def kept_sealed(self, waiting: int, has_taken_all: bool) -> int:
        """As kept(), of a connection with TLS, which does not tell what its socket has not taken: the last large
        write before the `waiting` bytes is kept until `has_taken_all`.
        """
        if has_taken_all and not waiting:
            self._large.clear()
        taken = self._written - waiting
        while len(self._large) > 1 and self._large[1][1] <= taken:
            self._large.popleft()
        if not self._large or self._large[0][1] > taken:
            return waiting
        begun, ended = self._large[0]
        return waiting + ended - begun


@dataclass(slots=True)
class _Job:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    size: int
    future: asyncio.Future[Any]


@dataclass(slots=True, eq=False)
class _Line:
    """The questions of one connection that wait for their turn, and the bytes that are being made for it."""

    connection: Connection
    jobs: deque[_Job] = field(default_factory=deque)
    reserved: int = 0
    is_ready: bool = False
    """It stands among those whose turn comes."""

    @property
    def may_begin(self) -> bool:
        if not self.jobs:
            return False
        owed = self.reserved + self.jobs[0].size
        return self.reserved == 0 or owed + self.connection.kept_bytes <= ANSWERS_BYTES_MAX


class AnswerTurns:
    """The answers that work threads make for the connections of a server."""

    def __init__(self, offload: Offload, unread: Unread) -> None:
        self._offload = offload
        self._unread = unread
        self._lines: dict[Connection, _Line] = {}
        self._ready: deque[_Line] = deque()
        self._making = 0
        self._waiting = 0

    def make(
        self, connection: Connection, function: Callable[..., T], /, *args: Any, size: int = ANSWER_BYTES
    ) -> asyncio.Future[T]:
        """A future of `function(*args)`, an answer of at most some `size` bytes.

        It is cancelled if the connection ends first.  Raises RequestError(SYSTEM_BUSY) when too many wait, unless it
        is the only one of its connection: those who read nothing keep nobody else from an answer.
        """
        line = self._lines.get(connection)
        if self._waiting >= WAITING_MAX and line is not None and line.jobs:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while"
            )
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if connection.closed:
            future.cancel()
            return future
        if line is None:
            line = self._lines[connection] = _Line(connection)
            connection.on_close.append(self._on_close)
        line.jobs.append(_Job(function, args, size, future))
        self._waiting += 1
        connection.awaited += 1
        self._offer(line)
        self._begin()
        return future

    def _offer(self, line: _Line) -> None:
        """Puts the line among those whose turn comes, unless the peer has to read first."""
        if line.is_ready or not line.may_begin:
            return
        line.is_ready = True
        if line.connection.congested:
            line.connection.when_writable(partial(self._on_writable, line))
        else:
            self._ready.append(line)

    def _on_writable(self, line: _Line) -> None:
        line.is_ready = False
        self._offer(line)
        self._begin()

    def _begin(self) -> None:
        while self._ready and self._making < MAKING_MAX:
            line = self._ready.popleft()
            line.is_ready = False
            if line.may_begin and not line.connection.congested:
                self._run(line, self._next(line))
            self._offer(line)

    def _next(self, line: _Line) -> _Job:
        job = line.jobs.popleft()
        self._waiting -= 1
        line.connection.awaited -= 1
        line.connection.go_on_soon()
        return job

    def _run(self, line: _Line, job: _Job) -> None:
        if job.future.done():  # nobody waits for it any more
            return
        try:
            made = self._offload(job.function, *job.args)
        except RequestError as busy:
            job.future.set_exception(busy)
            return
        self._making += 1
        line.reserved += job.size
        self._unread.reserve(job.size)
        made.add_done_callback(partial(self._made, line, job))

    def _made(self, line: _Line, job: _Job, made: asyncio.Future[Any]) -> None:
        self._making -= 1
        pass_on(job.future, made)
        self._gathered(line, job.size, TURNS_TO_GATHER)
        self._begin()

    def _gathered(self, line: _Line, size: int, turns: int) -> None:
        """The answer counts as being made until its connection counts it as one to be written."""
        if turns:
            asyncio.get_running_loop().call_soon(self._gathered, line, size, turns - 1)
            return
        line.reserved -= size
        self._unread.reserve(-size)
        self._offer(line)
        self._begin()

    def _on_close(self, connection: Connection) -> None:
        jobs = self._lines.pop(connection).jobs
        self._waiting -= len(jobs)
        while jobs:
            jobs.popleft().future.cancel()


def pass_on(future: asyncio.Future[T], done: asyncio.Future[T]) -> None:
    """Ends `future` as `done` has ended, unless somebody gave it up."""
    if future.done():
        return
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
