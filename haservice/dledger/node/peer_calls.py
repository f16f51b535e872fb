"""PeerCalls: a member's questions to its peers and its answers to them, on one loop.

    steps, in any thread ─ put ─▶ box ─ deliver ─▶ calls and answers, in the loop's thread
    answers of peers ─▶ post ─▶ events of one turn of the loop ─▶ one step

A node has one on its own loop.  The broker above may lend its loop for another one, which then makes the pushes: a send
is appended there, pushed, acknowledged and answered without one thread waking another.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import AnswerAsked, AskPeer, MemberEvent, PeerAnswered
from haservice.dledger.messages import MemberMessage
from haservice.dledger.settings import MemberSettings
from haservice.dledger.wire import answer_command, read_answer, request_command
from haservice.errors import ProtocolError, RemotingError, RequestError
from haservice.remoting.client import OnEnd, RemotingClient, expect
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection

logger = logging.getLogger(__name__)

_FLAG_ONEWAY = 2


class PeerCalls:
    """From begin() to close().  put() is for whoever has the shell's lock, deliver() for all, the rest for the loop."""

    def __init__(
        self,
        settings: MemberSettings,
        step: Callable[[list[MemberEvent]], None],
        heir: PeerCalls | None = None,
    ) -> None:
        """`step` takes a step with all events of a turn; `heir` gets what still comes after close()."""
        self._settings = settings
        self._step = step
        self._heir = heir
        self._client: RemotingClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._box: deque[AskPeer | AnswerAsked] = deque()
        self._awakened = False  # _send() is certain to follow
        self._events: list[MemberEvent] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._closed = False

    async def begin(self) -> None:
        """On the loop, whose thread makes all calls from now on."""
        self._client = RemotingClient()
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()

    async def close(self) -> None:
        """Ends its calls, and the connections."""
        self._closed = True
        for task in list(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def end(self, seconds: float) -> None:
        """As close(), from another thread, within so many seconds; nothing happens once the loop has ended."""
        assert self._loop is not None
        closing = self.close()
        try:
            asyncio.run_coroutine_threadsafe(closing, self._loop).result(seconds)
        except TimeoutError:
            logger.error("calls did not end in time seconds=%g", seconds)
        except RuntimeError:
            closing.close()

    # -- in -----------------------------------------------------------------------------------------

    def post(self, event: MemberEvent) -> None:
        """It is part of the next step, in the loop's next turn."""
        if self._closed:
            if self._heir is not None:
                self._heir.post_from_afar(event)
            return
        if not self._events:
            asyncio.get_running_loop().call_soon(self._turn)
        self._events.append(event)

    def post_from_afar(self, event: MemberEvent) -> None:
        """As post(), from any thread; nothing happens once the loop has ended."""
        self._soon(self.post, event)

    def forget(self) -> None:
        """What was posted, and is no part of a step yet, is none of any."""
        self._events = []

    def _turn(self) -> None:
        events, self._events = self._events, []
        self._step(events)

    # -- out ----------------------------------------------------------------------------------------

    def put(self, action: AskPeer | AnswerAsked) -> None:
        self._box.append(action)

    def deliver(self) -> None:
        """Lets the loop send what was put: at once in its own thread."""
        if threading.get_ident() == self._thread_id:
            self._send()
        elif self._box and not self._awakened:
            self._awakened = True
            self._soon(self._send)

    def call(self, function: Callable[[], None]) -> None:
        """In the loop's thread: at once if this is it."""
        if threading.get_ident() == self._thread_id:
            function()
        else:
            self._soon(function)

    def _soon(self, function: Callable[..., None], *arguments: MemberEvent) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                logger.debug("call after the loop ended function=%s", function)

    def _send(self) -> None:
        # Cleared first: what is put from here on is sent below, or wakes the loop again.
        self._awakened = False
        box = self._box
        while box:
            match box.popleft():
                case AskPeer(call, peer, request):
                    self._ask(call, peer, request)
                case AnswerAsked((Connection() as connection, RemotingCommand() as command), answer):
                    if not command.flag & _FLAG_ONEWAY:
                        connection.send(answer_command(command, answer))
                case action:
                    raise AssertionError(f"nobody asked: {action}")

    def _ask(self, call: int, peer: str, request: MemberMessage) -> None:
        client, command, timeout_s = self._client, request_command(request), self._settings.rpc_timeout_s
        address = self._settings.peers[peer]
        assert client is not None

        def ended(outcome: RemotingCommand | BaseException) -> None:
            self.post(PeerAnswered(call, _read(address, request, outcome)))

        if not client.ask(address, command, timeout_s, ended):
            task = asyncio.get_running_loop().create_task(self._connect_and_ask(address, command, ended))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _connect_and_ask(self, address: str, command: RemotingCommand, ended: OnEnd) -> None:
        assert self._client is not None
        try:
            outcome: RemotingCommand | BaseException = await self._client.invoke(
                address, command, self._settings.rpc_timeout_s
            )
        except Exception as error:  # whatever it is, the member waits for an end
            outcome = error
        ended(outcome)


def _read(
    address: str, request: MemberMessage, outcome: RemotingCommand | BaseException
) -> MemberMessage | None:
    """What a peer answered; None if it did not, or cannot be understood."""
    try:
        if isinstance(outcome, BaseException):
            raise outcome
        expect(address, outcome, int(DLedgerResponseCode.SUCCESS))
        return read_answer(request, outcome)
    except (RemotingError, ProtocolError, RequestError) as error:
        logger.debug("no answer peer=%s request=%s: %s", address, type(request).__name__, error)
        return None
    except Exception:
        logger.exception("answer not understood peer=%s request=%s", address, type(request).__name__)
        return None
