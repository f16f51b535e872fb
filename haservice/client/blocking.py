"""The base of the clients for threads: it runs an asyncio client on a loop thread of its own.

The thread is called `client-loop`.  An `async def` callback runs on the loop and must not block.  A plain
function runs in a work thread (`client-work_N`) and may block.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from haservice.client.errors import CallOnLoop, ClientClosed, ClientForked
from haservice.deadline import Deadline
from haservice.remoting.loop_thread import LoopClosed, LoopForked, LoopThread

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_S = 10.0


class AsyncClient(Protocol):
    """What a BlockingFace needs of the client that it wraps."""

    async def start(self) -> object: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=AsyncClient)


class BlockingFace(Generic[C]):
    """An asyncio client for threads: `_call` runs one of its coroutines to the end.

    Any number of threads may use one.  `with` starts and closes it.
    """

    close_s = CLOSE_S

    def __init__(self, make: Callable[[], C]) -> None:
        """`make` is called on the loop; its exceptions are raised here."""
        self._thread = LoopThread("client-loop", outlives_exits=True)
        self._closing = False
        self._close_lock = threading.RLock()
        try:
            self._inner = self._thread.call(_made(make))
        except BaseException:
            self._thread.close(Deadline(CLOSE_S))
            raise

    def start(self) -> Self:
        """Connects; may be called again."""
        self._call(self._inner.start())
        return self

    def close(self) -> None:
        """Ends running calls, the connections and the thread.  A second call waits for the first one.

        It takes at most `close_s`.  If its time is over, that is logged, and the rest ends in the background.
        In a fork it does nothing: all is the other process's.
        """
        self._check_thread()
        if self._thread.forked:
            return
        deadline = Deadline(self.close_s)
        self._closing = True
        if not self._close_lock.acquire(timeout=self.close_s):
            self._late("another thread's close still runs")
            return
        try:
            try:
                closed = self._thread.try_call(self._inner.close(), deadline)
            finally:
                ended = self._thread.close(deadline)
            if not (closed and ended):
                self._late("it is not closed yet")
        finally:
            self._close_lock.release()

    def _late(self, what: str) -> None:
        logger.warning("close took longer than %g s client=%s: %s", self.close_s, type(self).__name__, what)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_thread(self) -> None:
        if threading.current_thread().name == "client-loop":
            raise CallOnLoop(type(self).__name__)

    def _call(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None) -> T:
        """An exception from outside, as of a signal's handler, cancels it, and undoes what came too late."""
        try:
            self._check_thread()
            return self._thread.call(coroutine, undo)
        except CallOnLoop:
            coroutine.close()
            raise
        except LoopForked:
            raise ClientForked(type(self).__name__) from None
        except (LoopClosed, concurrent.futures.CancelledError):
            raise ClientClosed(f"this {type(self).__name__}") from None

    def _run(self, function: Callable[..., T], *args: Any, **kw: Any) -> T:
        """Runs a plain function of the client on its loop."""

        async def call() -> T:
            return function(*args, **kw)

        return self._call(call())

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            return self._thread.submit(self._told_of_close(coroutine))
        except LoopForked:
            coroutine.close()
            raise ClientForked(type(self).__name__) from None
        except LoopClosed:
            coroutine.close()
            raise ClientClosed(f"this {type(self).__name__}") from None

    async def _told_of_close(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the end of the loop cancels fails with ClientClosed."""
        try:
            return await coroutine
        except asyncio.CancelledError:
            if self._closing:
                raise ClientClosed(f"this {type(self).__name__}") from None
            raise


async def _made(make: Callable[[], C]) -> C:
    return make()
