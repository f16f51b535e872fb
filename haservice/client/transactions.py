"""Transactions: a half message that nobody sees until its producer commits it.

    producer                          broker
      half message ─────────────────▶ stored aside
      listener.execute(message)         │
      commit or rollback (37) ───────▶ delivered, or dropped
                                       after a while without either:
      listener.check(message) ◀─────── 39 to a producer of the group, any that is connected
      commit or rollback (37) ───────▶

So `check` must know what `execute` did, in this process or another of the group.  While `execute` runs here,
the broker's question is answered with UNKNOWN, and `check` is not called.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from commitlog.errors import CommitLogError
from commitlog.kernel import layout
from commitlog.kernel.records import parse_message_id
from haservice.client.message import UNIQUE_KEY, Message, Received, decode_all
from haservice.client.sends import SendResult
from haservice.client.session import Session
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.transactions import CheckTransactionStateHeader, EndTransactionHeader

logger = logging.getLogger(__name__)

PRODUCER_GROUP = "PGROUP"
HALF_MESSAGE = "TRAN_MSG"


class TransactionState(Enum):
    """The outcome of a producer's own part; with UNKNOWN the broker asks again later."""

    COMMIT = layout.SYS_TRANSACTION_COMMIT
    ROLLBACK = layout.SYS_TRANSACTION_ROLLBACK
    UNKNOWN = 0


class TransactionListener(Protocol):
    """An application's side.  Both may be `async def`; plain ones run in a work thread of the client.

    `check` gives ROLLBACK only if the local part can never succeed any more: while another process of the group
    is still in `execute`, the broker may ask this one.
    """

    def execute(self, message: Message, argument: Any) -> TransactionState | Awaitable[TransactionState]:
        """Does the local part; the half message is already stored."""
        ...

    def check(self, message: Received) -> TransactionState | Awaitable[TransactionState]:
        """The outcome of the local part of `message`, which any producer of the group may have sent."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The half message's result, how the transaction ended, and whether the broker heard of it.

    If `told` is False, the broker did not answer; it will ask `check`.  Or it refused the outcome, and `refused`
    says why: such as that the transaction has ended already, by a `check` that gave the other state.
    """

    sent: SendResult
    state: TransactionState
    told: bool
    refused: AnswerError | None = None


class Transactions:
    """The transactions of one producer group on a session."""

    def __init__(self, session: Session, group: str, listener: TransactionListener) -> None:
        self._session = session
        self._group = group
        self._listener = listener
        self._running: set[str] = set()  # the UNIQ_KEYs of what is between its half message and its end
        session.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)

    def close(self) -> None:
        self._session.off_request(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)

    @contextmanager
    def running(self, unique_key: str) -> Iterator[None]:
        """Around a half message's send and `finish`: until then the broker's question has no answer."""
        self._running.add(unique_key)
        try:
            yield
        finally:
            self._running.discard(unique_key)

    async def finish(self, message: Message, sent: SendResult, argument: Any) -> TransactionResult:
        """Has the listener do its part after the half message is stored, and tells the broker the outcome.

        A half message that is not SEND_OK is rolled back.  If the listener raises, this tells the broker
        UNKNOWN and raises the same.
        """
        state = TransactionState.UNKNOWN
        try:
            state = (
                await self._said(self._listener.execute, message, argument)
                if sent.ok
                else TransactionState.ROLLBACK
            )
        finally:
            result = await self._end(sent, state)
        return result

    async def _said(self, function: Callable[..., object], *args: object) -> TransactionState:
        """What the listener says.  Raises what it raises, and TypeError for what is no state."""
        said = await self._session.call_back(function, *args)
        while inspect.isawaitable(said):  # a plain function around a coroutine function
            said = await said
        if not isinstance(said, TransactionState):
            raise TypeError(f"a TransactionListener gives a TransactionState, not {said!r}")
        return said

    async def _end(self, sent: SendResult, state: TransactionState) -> TransactionResult:
        addr = self._session.routes.master(sent.queue.broker_name)
        if addr is None:
            return TransactionResult(sent, state, False)
        header = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=parse_message_id(sent.offset_msg_id)[2],
            commit_or_rollback=state.value,
            msg_id=sent.msg_id,
            transaction_id=sent.msg_id,
        )
        error = await self._tell(addr, header)
        return TransactionResult(
            sent, state, error is None, error if isinstance(error, AnswerError) else None
        )

    async def _tell(self, addr: str, header: EndTransactionHeader) -> RemotingError | None:
        """None if the broker took the outcome.  A broker does not answer UNKNOWN, so that is sent oneway."""
        try:
            if header.commit_or_rollback == TransactionState.UNKNOWN.value:
                await self._session.tell(addr, RequestCode.END_TRANSACTION, header)
            else:
                await self._session.ask(addr, RequestCode.END_TRANSACTION, header)
        except AnswerError as error:
            logger.error(
                "a transaction's end was refused group=%s msg_id=%s: %s", self._group, header.msg_id, error
            )
            return error
        except RemotingError as error:
            logger.warning("a transaction's end did not arrive, the broker will ask: %s", error)
            return error
        return None

    async def _on_check(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Request 39.  May be meant for another producer of this session."""
        header = CheckTransactionStateHeader.decode(request.ext)
        try:
            record = next(decode_all(request.body))
        except (CommitLogError, StopIteration) as error:
            logger.warning(
                "a transaction check without a readable message from %s: %s", connection.peer, error
            )
            return None
        message = Received.of(record, self._broker_name(connection.peer))
        if message.properties.get(PRODUCER_GROUP) == self._group:
            self._session.spawn(self._check(connection.peer, header, message))
        return None

    async def _check(self, addr: str, header: CheckTransactionStateHeader, message: Received) -> None:
        key = message.properties.get(UNIQUE_KEY, header.msg_id)
        try:
            state = (
                TransactionState.UNKNOWN
                if key in self._running
                else await self._said(self._listener.check, message)
            )
        except Exception:
            logger.exception("the listener's check failed group=%s msg_id=%s", self._group, message.msg_id)
            state = TransactionState.UNKNOWN
        answer = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=key,
            transaction_id=header.transaction_id,
        )
        await self._tell(addr, answer)

    def _broker_name(self, addr: str) -> str:
        for name, addrs in self._session.routes.addrs().items():
            if addr in addrs.values():
                return name
        return ""
