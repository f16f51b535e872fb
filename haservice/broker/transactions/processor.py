"""Ending transactions: 37 from producers, 39 to them, and 323 for messages that were discarded.

    37 commit     half message ─▶ final record in the real topic ─▶ op record
    37 rollback   half message ─────────────────────────────────▶ op record
    37 unknown    no change and no answer: the check asks again
    39            asks one live producer of the group, in turn, whose account may send to the topic
    323           a message of TRANS_CHECK_MAX_TIME_TOPIC ─▶ half queue, with no checks counted

A commit whose final record cannot be stored leaves the half message open, and the check asks again.  A
repeated 37 is carried out once as long as the first is remembered; RocketMQ delivers twice.

On a SYNC_MASTER, or with SYNC_FLUSH, an answer waits for the proof that a send would have waited for.
Without the proof it is success, too, for the records are stored.  Java's producers send 37 oneway.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from commitlog.errors import CommitLogError, LogNotWritable, MessageBeyondLimits
from commitlog.kernel.records import NewMessage, StoredMessage, decode, decode_properties, parse_message_id
from commitlog.log.log import Appended, wall_clock_ms
from haservice.access.rules import PUB
from haservice.broker.acl.message_rights import Caller, MessageRights
from haservice.broker.acl.recipients import Recipients
from haservice.broker.delay.redirect import QueueToDeliver, as_sent
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.pull.query import record_at
from haservice.broker.send.durability import Durability
from haservice.broker.topics.table import HALF_TOPIC
from haservice.broker.transactions.check import Question
from haservice.broker.transactions.half_messages import (
    PRODUCER_GROUP,
    QUEUE_ID,
    Decision,
    Ends,
    committed,
    op_message,
    original_of,
    resumed,
)
from haservice.errors import RequestError
from haservice.log_throttle import LogThrottle
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.transactions import EndTransactionHeader, ResumeCheckHalfMessageHeader
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

UNKNOWN = 0
# From so many questions without an answer on, a producer is as silent as any.
SILENT_AT = 2


class Log(Protocol):
    """The parts of the commit log that ends of transactions use."""

    def append(self, message: NewMessage) -> Appended: ...

    def read_record(self, offset: int) -> bytes: ...


class TransactionProcessor:
    """37 and 323.  Reads half messages in a work thread; all else runs on the loop."""

    def __init__(
        self,
        log: Log,
        durability: Durability,
        ends: Ends,
        offload: Offload,
        rights: MessageRights,
        *,
        store_host: bytes,
        is_slave: bool,
        unwritable: Callable[[], str | None] = lambda: None,
        queue_to_deliver: QueueToDeliver = as_sent,
        on_answer: Callable[[Connection, str], None] = lambda _, __: None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`unwritable` says why nothing can be stored now, besides what the log itself says.

        `on_answer` is told of each answer to a 39, and its group.
        """
        self._log = log
        self._durability = durability
        self._ends = ends
        self._offload = offload
        self._rights = rights
        self._store_host = store_host
        self._is_slave = is_slave
        self._unwritable = unwritable
        self._queue_to_deliver = queue_to_deliver
        self._on_answer = on_answer
        self._clock_ms = clock_ms

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    # 37

    def end(self, connection: Connection, command: RemotingCommand) -> asyncio.Future[RemotingCommand] | None:
        if self._is_slave:
            raise RequestError(
                ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave; its master ends transactions"
            )
        header = EndTransactionHeader.decode(command.ext)
        if header.from_transaction_check:
            self._on_answer(connection, header.producer_group)
        if header.commit_or_rollback == UNKNOWN:
            return None
        try:
            decision = Decision(header.commit_or_rollback)
        except ValueError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {header.commit_or_rollback}, neither 0 nor 8 nor 12",
            ) from None
        caller = self._rights.caller(connection, command)
        return asyncio.ensure_future(self._end(command, header, decision, caller))

    async def _end(
        self, command: RemotingCommand, header: EndTransactionHeader, decision: Decision, caller: Caller
    ) -> RemotingCommand:
        record: bytes | None = await self._offload(record_at, self._log, header.commit_log_offset)
        half, properties = _checked(record, header)
        self._rights.check_end(caller, half, properties)
        self._check_writable()
        # From here to the records nothing waits, so that two requests for one message do not overtake.
        end = self._settle(half, properties, decision)
        if end is not None and not command.is_oneway and self._durability.waits:
            await self._durability.proof(end)
        return command.answer()

    def _check_writable(self) -> None:
        reason = self._unwritable()
        if reason is not None:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {reason}")

    def _settle(self, half: StoredMessage, properties: dict[str, str], decision: Decision) -> int | None:
        """Stores what the decision asks for; returns its end in the log, None if there was nothing to do."""
        ends, offset, original = self._ends, half.queue_offset, original_of(half, properties)
        known = original in ends or offset in ends
        if known:
            first = ends.decision(original) or ends.decision(offset)
            if first is not None and first is not decision:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the transaction has ended already, with {first.name.lower()}",
                )
            if offset in ends:
                return None
        end = None
        if decision is Decision.COMMIT and not known:
            end = self._append_final(half)
        ends.add(original, decision)
        try:
            end = self._log.append(op_message(offset, self._store_host, self._clock_ms())).end
        except CommitLogError as error:
            # While this process remembers the end, the walk passes the message.
            logger.error("end of a transaction not recorded half_offset=%d reason=%s", offset, error)
        ends.add(offset, decision)
        return end

    def _append_final(self, half: StoredMessage) -> int:
        try:
            return self._log.append(committed(half, self._queue_to_deliver)).end
        except MessageBeyondLimits as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from None
        except LogNotWritable as error:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}"
            ) from None
        except (CommitLogError, ValueError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"message not stored: {error}") from None

    # 323

    def resume(self, connection: Connection, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        header = ResumeCheckHalfMessageHeader.decode(command.ext)
        try:
            _, _, offset = parse_message_id(header.msg_id)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return asyncio.ensure_future(self._resume(command, offset))

    async def _resume(self, command: RemotingCommand, offset: int) -> RemotingCommand:
        record: bytes | None = await self._offload(record_at, self._log, offset)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"there is no message at offset {offset}")
        self._check_writable()
        try:
            self._log.append(resumed(decode(record)))
        except CommitLogError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the message was not put back to {HALF_TOPIC}: {error}"
            ) from None
        return command.answer()


def _checked(record: bytes | None, header: EndTransactionHeader) -> tuple[StoredMessage, dict[str, str]]:
    """The half message that a 37 means; raises RequestError if another one is there, or none."""
    half = decode(record) if record is not None else None
    if half is None or half.topic != HALF_TOPIC or half.queue_id != QUEUE_ID:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"there is no half message at offset {header.commit_log_offset}"
        )
    properties = decode_properties(half.properties)
    if properties.get(PRODUCER_GROUP) != header.producer_group:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the half message is of another producer group")
    if half.queue_offset != header.tran_state_table_offset:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the half message has queue offset {half.queue_offset}, not {header.tran_state_table_offset}",
        )
    return half, properties


class ProducerQuestions:
    """39.  The loop's thread only."""

    def __init__(self, clients: ClientTable, recipients: Recipients) -> None:
        self._clients = clients
        self._recipients = recipients
        self._turns = itertools.count()
        self._throttle = LogThrottle()

    def ask(self, questions: Sequence[Question], asked: Callable[[], None]) -> None:
        """Sends each to one producer of its group; if there is none, the next round asks again."""
        try:
            for question in questions:
                producer = self._producer(question.group, question.topic)
                if producer is None:
                    continue
                producer.send(
                    RemotingCommand.request(
                        RequestCode.CHECK_TRANSACTION_STATE,
                        question.header.encode(),
                        question.body,
                        oneway=True,
                    )
                )
        finally:
            asked()

    def _producer(self, group: str, topic: str) -> Connection | None:
        """Of those that may send to the topic and whose connection takes writes, the next in turn that has
        left the fewest questions without an answer: one that never answers is asked no more than it must be.

        From SILENT_AT on they count as equal: a client may answer over another of its connections, and is
        then taken for silent; it shares the questions with the others, however long it has been here.
        """
        members = [
            (peer, client)
            for peer, client in self._clients.producers.get(group, {}).items()
            if isinstance(peer, Connection)
        ]
        allowed = [one for one in members if self._recipients.may(one[1].requester, (topic, PUB))]
        if not allowed and self._throttle.ready(group):
            why = f"{len(members)} online may not send to it" if members else "none is online"
            logger.warning(
                "no producer can be asked about its transactions group=%s topic=%s reason=%s",
                group,
                topic,
                why,
            )
        first = next(self._turns) % max(1, len(allowed))
        in_turn = allowed[first:] + allowed[:first]
        ready = [(peer, client) for peer, client in in_turn if not peer.closed and not peer.congested]
        if not ready:
            return None
        peer, client = min(ready, key=lambda one: min(one[1].unanswered, SILENT_AT))
        client.unanswered += 1
        return peer
