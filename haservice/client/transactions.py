"""Transactions: a half message that nobody sees until its producer commits it.

    producer                          broker
      half message ─────────────────▶ stored aside
      listener.execute(message)         │
      commit or rollback (37) ───────▶ delivered, or dropped
                                       after a while without either:
      listener.check(message) ◀─────── 39 to a producer of the group, any that is connected
      commit or rollback (37) ───────▶

So `check` must know what `execute` did, in this process or another of the group.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from commitlog.errors import CommitLogError
from commitlog.kernel import layout
from commitlog.kernel.records import parse_message_id
from haservice.client.message import UNIQUE_KEY, Message, Received, decode_all
from haservice.client.sends import SendResult
from haservice.client.session import Session
from haservice.errors import RemotingError
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
    """An application's side.  Both may be `async def`; plain ones run in a work thread of the client."""

    def execute(self, message: Message, argument: Any) -> TransactionState | Awaitable[TransactionState]:
        """Does the local part; the half message is already stored."""
        ...

    def check(self, message: Received) -> TransactionState | Awaitable[TransactionState]:
        """The outcome of the local part of `message`, which any producer of the group may have sent."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The half message's result, how the transaction ended, and whether the broker heard of it.

    If `told` is False, the broker did not answer; it will ask `check`.
    """

    sent: SendResult
    state: TransactionState
    told: bool


class Transactions:
    """The transactions of one producer group on a session."""

    def __init__(self, session: Session, group: str, listener: TransactionListener) -> None:
        self._session = session
        self._group = group
        self._listener = listener
        session.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)

    def close(self) -> None:
        self._session.off_request(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)

    async def finish(self, message: Message, sent: SendResult, argument: Any) -> TransactionResult:
        """Has the listener do its part after the half message is stored, and tells the broker the outcome.

        A half message that is not SEND_OK is rolled back.  If the listener raises, this tells the broker
        UNKNOWN and raises the same.
        """
        state = TransactionState.UNKNOWN
        told = False
        try:
            state = (
                _as_state(await self._session.call_back(self._listener.execute, message, argument))
                if sent.ok
                else TransactionState.ROLLBACK
            )
        finally:
            told = await self._end(sent, state)
        return TransactionResult(sent, state, told)

    async def _end(self, sent: SendResult, state: TransactionState) -> bool:
        addr = self._session.routes.master(sent.queue.broker_name)
        if addr is None:
            return False
        header = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=parse_message_id(sent.offset_msg_id)[2],
            commit_or_rollback=state.value,
            msg_id=sent.msg_id,
            transaction_id=sent.msg_id,
        )
        return await self._tell(addr, header)

    async def _tell(self, addr: str, header: EndTransactionHeader) -> bool:
        """Whether the broker heard of it.  A broker does not answer UNKNOWN, so that is sent oneway."""
        try:
            if header.commit_or_rollback == TransactionState.UNKNOWN.value:
                await self._session.tell(addr, RequestCode.END_TRANSACTION, header)
            else:
                await self._session.ask(addr, RequestCode.END_TRANSACTION, header)
        except RemotingError as error:
            logger.warning("a transaction's end did not arrive, the broker will ask: %s", error)
            return False
        return True

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
        try:
            state = _as_state(await self._session.call_back(self._listener.check, message))
        except Exception:
            logger.exception("the listener's check failed group=%s msg_id=%s", self._group, message.msg_id)
            state = TransactionState.UNKNOWN
        answer = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=message.properties.get(UNIQUE_KEY, header.msg_id),
            transaction_id=header.transaction_id,
        )
        await self._tell(addr, answer)

    def _broker_name(self, addr: str) -> str:
        for name, addrs in self._session.routes.addrs().items():
            if addr in addrs.values():
                return name
        return ""


def _as_state(said: object) -> TransactionState:
    """Raises TypeError if the listener returned no state."""
    if not isinstance(said, TransactionState):
        raise TypeError(f"a TransactionListener gives a TransactionState, not {said!r}")
    return said
