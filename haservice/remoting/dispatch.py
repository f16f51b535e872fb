"""Dispatch: gives each request of a listener to its processor, behind the guard, or to the fast path.

    code → processor        one request at a time
         → batch processor  all consecutive requests of one read that are its own
    FastPath                whole frames, as bytes, before they are decoded; it takes ordinary requests only

A guard has to see every request as a command, so a listener with a guard has no fast path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from haservice.errors import ProtocolError, RequestError
from haservice.log_throttle import LogThrottle
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from haservice.remoting.connection import Connection, Outcome, Processor

logger = logging.getLogger(__name__)

# At most one log line per kind of failure in this time, so that one bad client cannot fill the disk.
COMPLAINT_INTERVAL_S = 5.0


class FastPath(Protocol):
    """Takes requests as the bytes of their frames, and answers with `Connection.send_encoded`."""

    def take(self, connection: Connection, data: bytes) -> int:
        """Returns how many bytes of `data`, which begins with a frame, it took: whole frames, maybe none.

        The connection decodes and processes the rest after that, in order.  It raises nothing.
        """
        ...


@runtime_checkable
class HasFastPath(Protocol):
    """A processor with a fast path for some of its requests."""

    @property
    def fast_path(self) -> FastPath | None: ...


@runtime_checkable
class BatchProcessor(Protocol):
    """Takes all consecutive requests of one read that are registered to it: one append, one write."""

    def process_batch(self, connection: Connection, requests: list[RemotingCommand]) -> Sequence[Outcome]:
        """One outcome per request, in their order.  If it raises a RequestError, that answers all of them."""
        ...


# Called before every request that has a processor: returns, or raises RequestError, which is the answer.
Guard = Callable[["Connection", RemotingCommand], None]


class GuardedBatch:
    """A batch processor behind a guard: it gets the requests that the guard lets pass."""

    def __init__(self, owner: BatchProcessor, guard: Guard) -> None:
        self._owner = owner
        self._guard = guard

    def process_batch(self, connection: Connection, requests: list[RemotingCommand]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        passed: list[RemotingCommand] = []
        places: list[int] = []
        for place, request in enumerate(requests):
            try:
                self._guard(connection, request)
            except RequestError as refused:
                outcomes.append(request.answer(int(refused.code), refused.remark))
            else:
                outcomes.append(None)
                passed.append(request)
                places.append(place)
        if len(passed) == len(requests):
            return self._owner.process_batch(connection, requests)
        if passed:
            for place, outcome in zip(places, self._owner.process_batch(connection, passed), strict=True):
                outcomes[place] = outcome
        return outcomes


def _guarded(processor: Processor, guard: Guard) -> Processor:
    def process(connection: Connection, request: RemotingCommand) -> Outcome:
        guard(connection, request)
        return processor(connection, request)

    return process


class Dispatch:
    """Code → processor, shared by one listener's connections; each behind the guard, if there is one."""

    __slots__ = ("_throttle", "batches", "fast_path", "singles")

    def __init__(
        self, processors: Mapping[int, Processor | BatchProcessor], guard: Guard | None = None
    ) -> None:
        self.singles: dict[int, Processor] = {}
        self.batches: dict[int, BatchProcessor] = {}
        self.fast_path: FastPath | None = None
        self._throttle = LogThrottle(COMPLAINT_INTERVAL_S)
        # One wrapper per owner: requests of several codes go to it in one batch.
        wrapped: dict[int, GuardedBatch] = {}
        for code, processor in processors.items():
            if guard is None and isinstance(processor, HasFastPath):
                self.fast_path = processor.fast_path
            if isinstance(processor, BatchProcessor):
                batch = processor
                if guard is not None:
                    batch = wrapped.setdefault(id(processor), GuardedBatch(processor, guard))
                self.batches[int(code)] = batch
            else:
                self.singles[int(code)] = processor if guard is None else _guarded(processor, guard)

    def failure(self, peer: str, request: RemotingCommand, error: BaseException) -> RemotingCommand:
        """The answer to a request whose processor raised `error`; logs our own bugs with their traceback."""
        if isinstance(error, RequestError):
            return request.answer(int(error.code), error.remark)
        if isinstance(error, ProtocolError):
            # The frame was whole, so the stream is still in step: only this request suffers.
            return request.answer(int(ResponseCode.SYSTEM_ERROR), str(error))
        if self.may_log(request.code, error):
            logger.error("processor failed peer=%s code=%s", peer, request.code, exc_info=error)
        return request.answer(int(ResponseCode.SYSTEM_ERROR), f"{type(error).__name__}: {error}")

    def may_log(self, cause: object, error: BaseException) -> bool:
        """Whether to log this kind of failure now: not again within COMPLAINT_INTERVAL_S."""
        return self._throttle.ready((cause, type(error)))
