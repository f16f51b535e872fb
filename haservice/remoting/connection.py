"""One peer on the loop: frames in, answers out, in one write per read.

    data_received → FrameReader → decode ─┬ request → its processor → answer ──────────────┐
                                          │                           awaitable … later ───┤→ one write
                                          └ response → the call that waits for its opaque  │
    send(command), call(command) ──────────────────────────────────────────────────────────┘

Bytes that the dispatch's fast path takes never become frames.  Answers gathered while a read is handled go
out when all its frames are handled; others go out once per turn of the loop.
Bounds: the connection stops reading from a peer that does not read (`WRITE_BUFFER_BYTES_MAX`), or whose
unanswered requests are too many (`UNANSWERED_MAX`) or too large, as those that wait for a work thread (`AWAITED_MAX`).
owed.py bounds what is made for it, and all connections together.  All of this runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from haservice.errors import ProtocolError, RemotingClosed, RequestError
from haservice.remoting.acceptor import half_close, name_peer
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import PendingCall, RemotingCommand, decode, encode_head
from haservice.remoting.dispatch import BatchProcessor, Dispatch
from haservice.remoting.frame import COUNTED_BYTES, DeafReader, Frame, FrameReader, UnfinishedFrames
from haservice.remoting.owed import Taken, Unanswered, Unread

logger = logging.getLogger(__name__)

# Reading from a peer stops while more bytes than this wait, and goes on when its socket has taken them: the system's
# buffer keeps the peer busy, and a large answer is kept whole until all of it is taken.
WRITE_BUFFER_BYTES_MAX = 512 * 1024
WRITE_BUFFER_BYTES_RESUME = 0
# Larger writes are not joined: a copy into memory never touched before takes 3 ms per megabyte.
JOINED_BYTES_MAX = 256 * 1024
# Nor are pieces that average at least this size: a pull's messages.
JOINED_PIECE_BYTES_MAX = 4096
# Unanswered requests of one connection.  RocketMQ clients have at most 65535 asynchronous calls in flight.
UNANSWERED_MAX = 65536
# Of these, so many at most wait for a work thread to make their answers (owed.py).
AWAITED_MAX = 512
OVERLOADED_AT = 64  # With so many, no held pull is answered: it would only wait as one more.
LAST_ANSWERS_S = 0.5  # After bytes that are no frame: how long answers before them still go out.

# What a processor returns: the answer, or an awaitable of it.  None is for a request without an answer, and for one
# that it answers itself: sends of many connections in one turn, with one write for each; a future costs more.
Outcome = RemotingCommand | Awaitable[RemotingCommand] | None

Processor = Callable[["Connection", RemotingCommand], Outcome]


class Connection(asyncio.Protocol):
    """One peer.  A server or a client makes it; processors keep it to send later, and to hear of its end.

    `peer`        "ip:port"
    `peer_host`   the same as ip 4 or 16 bytes + port 4 bytes, the form in which records keep hosts
    `last_active` loop time of the last byte in either direction
    `awaited`     requests whose answers wait for a work thread to make them (owed.py)
    `unfinished`  counts the frame that has begun, a server's with those of its other connections
    """

    def __init__(
        self,
        dispatch: Dispatch,
        reader: FrameReader,
        on_open: Callable[[Connection], None] | None = None,
        unread: Unread | None = None,
    ) -> None:
        """`unread` counts what waits to be written, with all connections of its server."""
        self.peer = "?"
        self.peer_host = b""
        self.closed = False
        self.close_reason = ""
        self.on_close: list[Callable[[Connection], None]] = []
        self.last_active = 0.0
        self.awaited = 0
        self._dispatch = dispatch
        self._reader = reader
        self._on_open = on_open
        self.unfinished = UnfinishedFrames()
        self._counted = 0  # of the frame that has begun and of requests without an answer
        self._transport: asyncio.Transport | None = None
        self._half_closed: asyncio.Transport | None = None  # nothing is written to it any more
        self._loop = asyncio.get_running_loop()
        self._taken = Taken(unread or Unread(), self._loop.time())
        self._calls: dict[int, PendingCall] = {}
        self._unanswered = Unanswered()
        self._out: list[bytes | memoryview] = []  # gathered, not yet written
        self._out_bytes = 0
        self._gathering = False  # a flush is certain to follow: scheduled, or at the end of the read
        self._write_blocked = False  # the transport holds more than the bound
        self._held = False  # reading is paused
        self._backlog: list[Frame] = []  # frames of the last read that a bound kept from being handled
        self._drained: list[Callable[[], object]] = []

    def send(self, command: RemotingCommand) -> None:
        """Writes `command` with all else that goes out in this turn of the loop; dropped if the peer has gone."""
        if self.closed:
            return
        self._gather(command)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._flush)

    def send_encoded(self, answers: bytes) -> None:
        """Writes whole frames at once, after what is gathered; dropped if the peer has gone."""
        if self.closed:
            return
        if self._gathering:
            self._out.append(answers)
            self._out_bytes += len(answers)
        elif self._transport is not None and not self._transport.is_closing():
            self.last_active = self._loop.time()
            self._transport.write(answers)
            self._taken.wrote(len(answers))

    def call(self, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """Sends a request whose opaque is unique on this connection.  The future fails with
        RemotingClosed if the connection ends first; `forget` gives the call up.
        """
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        if self.closed:
            future.set_exception(RemotingClosed(self.peer, self.close_reason or "connection closed"))
            return future
        self._calls[command.opaque] = future
        self.send(command)
        return future

    def call_now(self, command: RemotingCommand, call: PendingCall) -> None:
        """As call(), for a `call` of the caller's own, and written in this turn of the loop, not at its end.

        The connection is open.
        """
        self._calls[command.opaque] = call
        self._gather(command)
        if not self._gathering:
            self._flush()

    def forget(self, opaque: int) -> None:
        """Nobody waits for this answer any more: drops it when it comes."""
        self._calls.pop(opaque, None)

    @property
    def calls(self) -> int:
        """Calls of ours that wait for their answers."""
        return len(self._calls)

    @property
    def congested(self) -> bool:
        """Whether the peer does not take what we write: produce nothing large for it now."""
        return self._write_blocked or self._out_bytes > WRITE_BUFFER_BYTES_MAX

    @property
    def _writing(self) -> asyncio.Transport | None:
        return self._transport or self._half_closed

    @property
    def unsent_bytes(self) -> int:
        return self._out_bytes + (transport.get_write_buffer_size() if (transport := self._writing) else 0)

    @property
    def kept_bytes(self) -> int:  # what the peer has taken in part counts whole: so it is kept
        return self._out_bytes + (self._taken.kept_by(transport) if (transport := self._writing) else 0)

    def unread_since(self) -> float:
        """Loop time when the peer was last seen to take some of what we write."""
        return self._taken.since(self.unsent_bytes - self._out_bytes, self._loop.time())

    def when_writable(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once, on the loop: a congested or overloaded peer may have room again, or has ended."""
        self._drained.append(callback)

    @property
    def overloaded(self) -> bool:
        """Congested, or so many answers are being made that one more would only wait."""
        return self.congested or self.awaited >= OVERLOADED_AT

    def deliver(self, future: asyncio.Future[RemotingCommand]) -> None:
        """Gathers a later answer that is there now, not when the loop calls back: so `congested` is true at once."""
        if future in self._unanswered:
            self._on_future_done(future)

    def go_on_soon(self) -> None:
        """Fewer requests are `awaited`; goes on if that was why something waits."""
        if self._drained and self.awaited == OVERLOADED_AT // 2 and not self.congested:
            self._wake_writers()
        if self._held and self.awaited == AWAITED_MAX // 2:
            self._loop.call_soon(self._go_on)

    def close(self, reason: str) -> None:
        """Writes what was gathered, then ends the connection; may be called twice."""
        if not self.close_reason:
            self.close_reason = reason
        self._backlog = []
        if self._transport is not None and not self._transport.is_closing():
            self._flush()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Ends the connection at once; bytes not written are lost."""
        if not self.close_reason:
            self.close_reason = reason
        self._backlog = []
        if self._writing is not None:
            self._writing.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX, WRITE_BUFFER_BYTES_RESUME)
        self.peer, self.peer_host = name_peer(transport.get_extra_info("peername"))
        self.last_active = self._loop.time()
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._loop.time()
        fast_path = self._dispatch.fast_path
        taken = 0
        if fast_path is not None and not self._backlog:
            whole = self._reader.from_edge(data)
            if whole is not None:
                taken = fast_path.take(self, whole)
                if taken == len(whole):
                    if self._counted:
                        self._count()
                    return
                data = whole[taken:] if taken else whole
        try:
            frames = self._reader.feed(data)
        except ProtocolError as error:
            self._on_protocol_error(error, LAST_ANSWERS_S if taken or self._unanswered else 0.0)
            return
        if self._backlog:
            self._backlog += frames
        elif frames:
            self._handle(frames)
        self._count()

    def _count(self) -> None:
        """Counts what is kept of the peer's bytes, with that of all connections."""
        kept = self._reader.pending_bytes + self._unanswered.bytes
        if kept >= COUNTED_BYTES or self._counted:
            self._counted = self.unfinished.hold(self, kept)

    def pause_writing(self) -> None:
        self._write_blocked = True
        self._loop.call_soon(self.unread_since)  # when the socket has taken what fits it
        self._hold()

    def resume_writing(self) -> None:
        self._write_blocked = False
        self.unread_since()
        self.last_active = self._loop.time()
        self._wake_writers()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.close_reason:
            self.close_reason = str(exc) if exc else "closed by the peer"
        logger.debug("connection closed peer=%s reason=%s", self.peer, self.close_reason)
        self._backlog, self._out, self._out_bytes = [], [], 0
        self._unanswered.clear()
        self.unfinished.hold(self, 0)
        self._wake_writers()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(RemotingClosed(self.peer, self.close_reason))
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:
                logger.exception("close callback failed peer=%s", self.peer)
        self.on_close = []

    # In

    def _handle(self, frames: list[Frame]) -> None:
        """Handles frames in order, with one write; leaves those beyond a bound in the backlog."""
        self._gathering = True
        batches = self._dispatch.batches
        run: list[RemotingCommand] = []
        owner: BatchProcessor | None = None
        done = 0
        try:
            for serialize_type, header, body in frames:
                done += 1
                command = decode(serialize_type, header, body)
                if command.flag & 1:
                    self._on_response(command)
                    continue
                batch = batches.get(command.code)
                if batch is not owner and owner is not None:
                    self._process_run(owner, run)
                    run = []
                    owner = None
                if batch is not None:
                    owner = batch
                    run.append(command)
                    continue
                self._process(command, len(header) + len(body))
                if self._out_bytes > WRITE_BUFFER_BYTES_MAX or self._asks_too_much:
                    break
        except ProtocolError as error:
            done = len(frames)
            self._reader.error = error
        if owner is not None:
            self._process_run(owner, run)
        if done < len(frames) and not self.close_reason:
            self._backlog = frames[done:]
        self._flush()
        if self._reader.error is not None and not self._backlog:
            self._on_protocol_error(self._reader.error, LAST_ANSWERS_S)
        elif self._backlog or self._asks_too_much:
            self._hold()
            self._loop.call_soon(self._go_on)

    def _process(self, request: RemotingCommand, size: int) -> None:
        processor = self._dispatch.singles.get(request.code)
        outcome: Outcome
        if processor is None:
            outcome = request.answer(
                int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), f" request type {request.code} not supported"
            )
        else:
            try:
                outcome = processor(self, request)
            except Exception as error:
                outcome = self._dispatch.failure(self.peer, request, error)
        if outcome is not None:
            self._settle(request, outcome, size)

    def _process_run(self, owner: BatchProcessor, run: list[RemotingCommand]) -> None:
        try:
            outcomes = owner.process_batch(self, run)
            if len(outcomes) != len(run):
                raise AssertionError(f"{len(outcomes)} outcomes for {len(run)} requests")
        except Exception as error:
            outcomes = [self._dispatch.failure(self.peer, request, error) for request in run]
        for request, outcome in zip(run, outcomes, strict=True):
            if outcome is not None:
                self._settle(request, outcome)

    def _settle(
        self, request: RemotingCommand, outcome: RemotingCommand | Awaitable[RemotingCommand], size: int = 0
    ) -> None:
        if isinstance(outcome, RemotingCommand):
            if not request.flag & 2:
                self._answer(request, outcome)
            return
        future = asyncio.ensure_future(outcome)
        self._unanswered.add(future, request, size)
        if future.done():
            self._on_future_done(future)
        else:
            future.add_done_callback(self._on_future_done)

    def _on_future_done(self, future: asyncio.Future[RemotingCommand]) -> None:
        """A later answer is there."""
        request = self._unanswered.pop(future)
        if self._counted:
            self._count()
        if future.cancelled():
            error: BaseException | None = RequestError(ResponseCode.SYSTEM_ERROR, "the request was given up")
        else:
            error = future.exception()
        if request is None:  # the connection ended first, or this answer was delivered
            return
        if not request.flag & 2:
            if error is None:
                self._answer(request, future.result())
            else:
                self._answer(request, self._dispatch.failure(self.peer, request, error))
        if self._held and len(self._unanswered) == UNANSWERED_MAX // 2:
            self._go_on()

    def _answer(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        try:
            self.send(answer)
        except Exception as error:  # an answer that cannot be written is our own bug
            try:
                self.send(self._dispatch.failure(self.peer, request, error))
            except Exception as worse:
                # If we hang up, the peer asks again; without an answer it would wait for its timeout.
                if self._dispatch.may_log(("unanswered", request.code), worse):
                    where = self.peer, request.code
                    logger.exception("no answer can be written, closing peer=%s code=%s", *where)
                self.abort(f"no answer can be written: {worse}")

    def _on_response(self, command: RemotingCommand) -> None:
        call = self._calls.pop(command.opaque, None)
        if call is None:
            logger.debug("answer to an unknown request dropped peer=%s opaque=%s", self.peer, command.opaque)
        elif not call.done():
            call.set_result(command)

    def _on_protocol_error(self, error: ProtocolError, answers_s: float) -> None:
        if not self.close_reason:
            # Logs one line for a scanner's address now and then; each of its connections at DEBUG.
            news = self._dispatch.may_log(self.peer.rpartition(":")[0], error)
            logger.log(logging.WARNING if news else logging.DEBUG, "closing peer=%s: %s", self.peer, error)
            if self._calls:
                self.abort(str(error))  # they fail now, not when the peer has taken what was written
            else:
                self._close_after_answers(str(error), answers_s)

    def _close_after_answers(self, reason: str, answers_s: float) -> None:
        """As close(), after `answers_s`.  What the peer sends on is read and dropped: bytes that nobody reads
        make the system reset the connection, and the peer's system then drops the answers.
        """
        self.close_reason = reason
        self._backlog = []
        self._reader = DeafReader()
        self._flush()
        if self._held and self._transport is not None and not self._write_blocked:
            self._held = False
            self._transport.resume_reading()
        if answers_s > 0:
            self._loop.call_later(answers_s, self._half_close)
        else:
            self._half_close()

    def _half_close(self) -> None:
        self._half_closed, self._transport = self._transport, None
        if self._half_closed is not None:
            half_close(self._loop, self._half_closed)

    def give_way(self, why: str) -> None:
        """The peer has begun a frame, and the bytes are wanted: see UnfinishedFrames."""
        self._reader, self._counted = DeafReader(), 0
        if self._dispatch.may_log(self.peer.rpartition(":")[0], ProtocolError(why)):
            logger.warning("closing peer=%s: %s", self.peer, why)
        self.abort(why)

    # Out, and the bounds

    @property
    def _asks_too_much(self) -> bool:
        many = len(self._unanswered) >= UNANSWERED_MAX or self.awaited >= AWAITED_MAX
        return many or self._unanswered.too_large

    def _gather(self, command: RemotingCommand) -> None:
        head = encode_head(command)
        body = command.body
        self._out.append(head)
        self._out_bytes += len(head)
        if body:
            self._out.append(body)
            self._out_bytes += len(body)

    def _flush(self) -> None:
        self._gathering = False
        if not self._out:
            return
        out = self._out
        size, self._out_bytes = self._out_bytes, 0
        self._out = []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.last_active = self._loop.time()
        if len(out) == 1:
            transport.write(out[0])
        elif size > JOINED_BYTES_MAX or size > JOINED_PIECE_BYTES_MAX * len(out):
            transport.writelines(out)
        else:
            transport.write(b"".join(out))
        self._taken.wrote(size)
        if self._drained and not self._write_blocked:
            # What was gathered counted as congestion, but the socket took it.
            self._wake_writers()

    def _hold(self) -> None:
        if not self._held and self._transport is not None and not self._transport.is_closing():
            self._held = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Handles the frames in the backlog, and reads again, as soon as every bound allows it."""
        if not self._held or self.close_reason or self._transport is None:
            return
        if self._write_blocked or self._asks_too_much:
            self._unanswered.look_later(self._go_on)
            return
        self._held = False
        backlog, self._backlog = self._backlog, []
        if backlog:
            self._handle(backlog)
        if not self._held and not self._transport.is_closing():
            self._transport.resume_reading()

    def _wake_writers(self) -> None:
        waiters, self._drained = self._drained, []
        for waiter in waiters:
            self._loop.call_soon(waiter)
