"""GroupCalls: requests of a consumer group's member to brokers; each answer becomes a value.

Requests that both a master and its slave answer go to the master, and to a slave while there is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from haservice.client.consumer.subscription import Subscription
from haservice.client.message import Received, decode_all
from haservice.client.session import Session
from haservice.errors import HAServiceError, RemotingTimeout, RemotingUnreachable
from haservice.remoting.bodies.clients import (
    MASTER_ID,
    CheckClientRequestBody,
    ConsumerIdList,
    MessageQueue,
)
from haservice.remoting.bodies.locks import LockBatchAnswer, LockBatchRequest
from haservice.remoting.client import expect
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import (
    ConsumerGroupHeader,
    ExtHeader,
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendMessageHeader,
    UpdateConsumerOffsetHeader,
)
from haservice.remoting.headers.retry import SendBackHeader

# sysFlag of a pull.
COMMIT, SUSPEND, SUBSCRIPTION = 0x1, 0x2, 0x4

CALL_S = 5.0
LOCK_S = 3.0
# How long others are asked instead of an address that did not answer.
AWAY_S = 3.0


class PullOutcome(Enum):
    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MSG"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MSG"
    OFFSET_MOVED = "OFFSET_ILLEGAL"


_STATUSES = {
    int(ResponseCode.SUCCESS): PullOutcome.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullOutcome.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullOutcome.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullOutcome.OFFSET_MOVED,
}


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """The answer to a pull.  `messages` are those of the broker's that the subscription wants."""

    status: PullOutcome
    messages: Sequence[Received]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_id: int


@dataclass(frozen=True, slots=True)
class PullLimits:
    """`suspend_s`: how long a broker may hold a pull without messages; 0 asks for an answer now.

    Every pull has the tags, so that a broker that has heard no heartbeat yet knows what is wanted.  A broker
    compiles SQL92 once, from the heartbeat; `sql_in_pulls` is for clients without heartbeats.
    """

    count: int = 32
    suspend_s: float = 15.0
    timeout_s: float = 25.0
    sql_in_pulls: bool = False


class GroupCalls:
    """The calls of one group, over one session."""

    def __init__(self, session: Session, group: str) -> None:
        self.group = group
        self.on_away: Callable[[str], None] = lambda addr: None  # told of an address that does not answer
        self._session = session
        self._away: dict[str, float] = {}  # addresses that did not answer, and until when others are asked

    # Whom to ask

    def master(self, broker_name: str) -> str:
        """The master's address.  Raises RemotingUnreachable while there is none."""
        addr = self._session.routes.master(broker_name)
        if addr is None:
            raise RemotingUnreachable(broker_name, "no master is known now")
        return addr

    def master_now(self, broker_name: str) -> str | None:
        """The master's address; None while there is none.  For any thread."""
        return self._session.routes.master(broker_name)

    def any_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """The broker with that id, else the master, else a slave; first those that answered the last time.

        Raises RemotingUnreachable if no route names any.
        """
        addrs = self._session.routes.addrs_of(broker_name)
        if not addrs:
            raise RemotingUnreachable(broker_name, "no route names it now")
        now = time.monotonic()
        ids = sorted(addrs, key=lambda one: (self._away.get(addrs[one], 0.0) > now, one != broker_id, one))
        return addrs[ids[0]]

    def masters(self, first: str) -> Iterator[str]:
        """The names of all brokers that have a master now, `first` before the others."""
        names = [name for name, addrs in self._session.routes.addrs().items() if MASTER_ID in addrs]
        return iter(sorted(names, key=lambda name: name != first))

    async def _invoke(
        self, broker_name: str, addr: str, request: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """The answer, whatever its code.  Who does not answer is in doubt, and asked last for a while."""
        try:
            answer = await self._session.remoting.invoke(addr, request, timeout_s)
        except (RemotingUnreachable, RemotingTimeout):
            known = self._away.get(addr, 0.0) > time.monotonic()
            self._away[addr] = time.monotonic() + AWAY_S
            self._session.doubt(broker_name, addr)
            if not known:
                self.on_away(addr)
            raise
        if self._away and self._away.pop(addr, None) is not None:
            self._session.routes.trust(broker_name, addr)
        return answer

    # Messages

    async def pull(
        self,
        addr: str,
        queue: MessageQueue,
        offset: int,
        subscription: Subscription,
        limits: PullLimits,
        *,
        commit: int | None = None,
    ) -> PullAnswer:
        """Request 11.  The broker also stores the offset `commit`.  Raises RemotingError."""
        in_pull = limits.sql_in_pulls or not subscription.sql
        sys_flag = (SUSPEND if limits.suspend_s > 0 else 0) | (SUBSCRIPTION if in_pull else 0)
        # A slave does not store the offset in a pull.
        commits = commit is not None and addr == self._session.routes.master(queue.broker_name)
        header = PullMessageHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=limits.count,
            sys_flag=sys_flag | COMMIT if commits else sys_flag,
            commit_offset=commit if commits and commit is not None else 0,
            suspend_timeout_millis=int(limits.suspend_s * 1000),
            sub_version=subscription.version,
            subscription=subscription.expression if in_pull else None,
            expression_type=subscription.kind,
        )
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())
        answer = await self._invoke(queue.broker_name, addr, request, limits.timeout_s)
        expect(addr, answer, *_STATUSES, request=RequestCode.PULL_MESSAGE)
        fields = PullMessageResponseHeader.decode(answer.ext)
        status = _STATUSES[answer.code]
        messages: list[Received] = []
        if status is PullOutcome.FOUND:
            tags = subscription.tags
            found = (Received.of(record, queue.broker_name) for record in decode_all(answer.body))
            # The broker compares hashes, which two tags may share.
            messages = [message for message in found if not tags or message.tags in tags]
        return PullAnswer(
            status,
            messages,
            fields.next_begin_offset,
            fields.min_offset,
            fields.max_offset,
            fields.suggest_which_broker_id,
        )

    async def send_back(self, message: Received, delay_level: int, max_reconsume_times: int) -> None:
        """Request 36: the broker puts the message into the group's retry topic, or among its dead letters."""
        header = SendBackHeader(
            offset=message.physical_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=max_reconsume_times,
        )
        name = message.queue.broker_name
        await self._call(name, RequestCode.CONSUMER_SEND_MSG_BACK, header, addr=self.master(name))

    async def send_to_retry(self, broker_name: str, header: SendMessageHeader, body: bytes) -> None:
        """Request 310, for a message that cannot be sent back by 36."""
        code = RequestCode.SEND_MESSAGE_V2
        addr = self.master(broker_name)
        request = RemotingCommand.request(code, header.encode(code), body)
        answer = await self._invoke(broker_name, addr, request, CALL_S)
        expect(
            addr,
            answer,
            ResponseCode.SUCCESS,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            request=code,
        )

    # Offsets

    async def stored_offset(self, queue: MessageQueue) -> int | None:
        """Request 14: the offset that the broker has stored for the group."""
        header = QueryConsumerOffsetHeader(self.group, queue.topic, queue.queue_id)
        answer = await self._call(
            queue.broker_name,
            RequestCode.QUERY_CONSUMER_OFFSET,
            header,
            ResponseCode.QUERY_NOT_FOUND,
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return OffsetResponseHeader.decode(answer.ext).offset

    async def store_offset(self, queue: MessageQueue, offset: int) -> None:
        """Request 15: stores the group's offset."""
        header = UpdateConsumerOffsetHeader(self.group, queue.topic, queue.queue_id, offset)
        await self._call(queue.broker_name, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The master's: a slave's may be behind, and who begins there gets messages of before."""
        addr = self.master(queue.broker_name)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, addr)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Request 29: the offset of the first message stored at that time or later, or the queue's end."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms, SearchOffsetHeader.LOWER)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await self._call(queue.broker_name, code, header)
        return OffsetResponseHeader.decode(answer.ext).offset

    async def _offset(self, queue: MessageQueue, code: RequestCode, addr: str | None = None) -> int:
        header = QueueHeader(queue.topic, queue.queue_id)
        answer = await self._call(queue.broker_name, code, header, addr=addr)
        return OffsetResponseHeader.decode(answer.ext).offset

    # The group

    async def members(self, broker_name: str) -> Sequence[str]:
        """Request 38: the client ids of the group, as one broker knows them."""
        header = ConsumerGroupHeader(self.group)
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        answer = await self._call(broker_name, code, header, ResponseCode.SYSTEM_ERROR)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return ()  # the broker knows no member yet
        return ConsumerIdList.decode(answer.body).consumer_id_list

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Request 41 to the masters of the queues; returns those that are this client's for the next 60 s.

        A broker that does not answer gives none.
        """
        by_name = _by_broker(queues)
        answers = await asyncio.gather(
            *(self._lock_at(name, some) for name, some in by_name.items()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, HAServiceError):
                raise answer
        return {queue for answer in answers if not isinstance(answer, BaseException) for queue in answer}

    async def _lock_at(self, broker_name: str, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        body = LockBatchRequest(self._session.client_id, self.group, queues).encode()
        request = RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, {}, body)
        addr = self.master(broker_name)
        answer = expect(addr, await self._invoke(broker_name, addr, request, LOCK_S), request=request.code)
        return LockBatchAnswer.decode(answer.body).lock_ok_mq_set

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Request 42.  A broker that does not hear it drops the lock 60 s after the last request for it."""
        for name, some in _by_broker(queues).items():
            body = LockBatchRequest(self._session.client_id, self.group, some).encode()
            await self._call(name, RequestCode.UNLOCK_BATCH_MQ, None, body=body, addr=self.master(name))

    async def check(self, broker_name: str, subscription: Subscription) -> None:
        """Request 46: whether the broker can filter by the subscription; AnswerError says why not."""
        body = CheckClientRequestBody(self._session.client_id, self.group, subscription.data()).encode()
        await self._call(broker_name, RequestCode.CHECK_CLIENT_CONFIG, None, body=body)

    async def _call(
        self,
        broker_name: str,
        code: RequestCode,
        header: ExtHeader | None,
        *codes: ResponseCode,
        body: bytes = b"",
        addr: str | None = None,
    ) -> RemotingCommand:
        """Calls any broker of the name, if no address is given."""
        addr = addr or self.any_of(broker_name)
        request = RemotingCommand.request(code, header.encode() if header is not None else {}, body)
        answer = await self._invoke(broker_name, addr, request, CALL_S)
        return expect(addr, answer, ResponseCode.SUCCESS, *codes, request=code)


def _by_broker(queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
