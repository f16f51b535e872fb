"""A producer with a ledger and a consumer group, which go on whatever is done to their brokers meanwhile.

with Traffic(namesrv, topic) as traffic:
    ...                         what is done to the brokers
    traffic.flows()             sends are acknowledged, and what they stored is consumed
    traffic.finish()            no more sends; all that is stored is consumed
    traffic.check(admin, addr)  what is at that broker against the ledger and the deliveries
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple, Self

from haservice.client import (
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    Message,
    Producer,
    ProducerLimits,
    PushConsumer,
    Received,
    SendFailed,
)
from haservice.client.admin import Admin
from haservice.client.raw_sends import SendQueue
from haservice.client.reading import from_queue
from haservice.errors import AnswerError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import QueryConsumerOffsetHeader, QueueHeader
from tests.support.waiting import wait_until

GROUP, ASLEEP = "traffic-readers", "traffic-asleep"
QUEUES = 2
# Far beyond what a restart of a master takes: a send ends because it is answered.
SEND_TIMEOUT_S = 60.0
# A few hundred sends a second are under way at any moment, and leave the brokers their time.
PACE_S = 0.002
FLOW_S = 60.0
# Members look every 5 s who the master is, and commit every 5 s.
ROUTE_S = 5.0
COMMITTED_S = 30.0
FLOW_MESSAGES = 100


class Acknowledged(NamedTuple):
    """A send that a broker answered."""

    queue_id: int
    queue_offset: int
    status: str


class Traffic:
    """`ledger` has what was answered, by body; `tries` how often a body went out."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.topic = topic
        self.ledger: dict[bytes, Acknowledged] = {}
        self.tries: Counter[bytes] = Counter()
        self.delivered: list[tuple[int, int, bytes]] = []
        self._namesrv = namesrv
        self._asleep: list[int] = []
        self._error: BaseException | None = None
        self._stop = threading.Event()
        options = ClientOptions(namesrv, send_timeout_s=SEND_TIMEOUT_S)
        self._producer = Producer("traffic-writers", options, limits=ProducerLimits(retries=0))
        self._consumer = self._member(GROUP, self._take)
        self._thread = threading.Thread(target=self._send_all, name="traffic", daemon=True)

    def __enter__(self) -> Self:
        self._consumer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(SEND_TIMEOUT_S)
        self._consumer.close()
        self._producer.close()

    def let_a_group_sleep(self, admin: Admin, addr: str) -> None:
        """A second group consumes what is there, and ends: its offsets are only the brokers' from now on."""
        seen: list[int] = []
        with self._member(ASLEEP, lambda message: seen.append(message.queue.queue_id)):
            wait_until(lambda: set(seen) == set(range(QUEUES)), "the other group has some of each queue")
        self._asleep = offsets(admin, addr, ASLEEP, self.topic)
        assert min(self._asleep) > 0

    def flows(self) -> None:
        """Returns once more sends were answered, SEND_OK among them, and were consumed."""
        delivered, proven = len(self.delivered), self._proven()

        def are() -> bool:
            if self._error is not None:
                raise self._error
            wanted = delivered + FLOW_MESSAGES, proven + FLOW_MESSAGES
            return len(self.delivered) >= wanted[0] and self._proven() >= wanted[1]

        try:
            wait_until(are, f"{FLOW_MESSAGES} more sends are proven, and as many are consumed", FLOW_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; {len(self.delivered)} consumed; {self.statuses()}") from None

    def statuses(self) -> Counter[str]:
        return Counter(one.status for one in list(self.ledger.values()))

    def finish(self, admin: Admin, addr: str) -> None:
        """No more sends; returns when the group has consumed, and committed, what the broker has."""
        self._stop.set()
        self._thread.join(SEND_TIMEOUT_S)
        assert self._error is None
        there = stored(admin, addr, self.topic)
        wait_until(lambda: len({one[:2] for one in list(self.delivered)}) >= len(there), "all is consumed")
        # A member that has not heard yet who the master is now commits to the one that was it.
        wait_until(lambda: not self.uncommitted(admin, addr), "all is committed", COMMITTED_S)
        self._consumer.close()

    def check(self, admin: Admin, addr: str) -> None:
        """Nothing that was answered is missing, or elsewhere; what is stored twice went out twice; the group was
        given all of it, and its offsets are at the end; the group that sleeps is where it was.
        """
        there = stored(admin, addr, self.topic)
        missing = {
            body: one
            for body, one in self.ledger.items()
            if there.get((one.queue_id, one.queue_offset)) != body
        }
        assert not missing, f"{len(missing)} of {len(self.ledger)} answered sends are missing: {missing}"[
            :500
        ]
        copies = Counter(there.values())
        too_often = {body: count for body, count in copies.items() if count > self.tries[body]}
        assert not too_often, f"stored more often than sent: {too_often}"[:500]
        delivered = set(self.delivered)
        skipped = {place for place, body in there.items() if (*place, body) not in delivered}
        assert not skipped, f"not consumed: {skipped}"[:500]
        assert not (late := self.uncommitted(admin, addr)), late
        asleep = offsets(admin, addr, ASLEEP, self.topic)
        assert asleep == self._asleep, f"{asleep}, and it was at {self._asleep}"

    def uncommitted(self, admin: Admin, addr: str) -> dict[int, tuple[int, int]]:
        """Queue → where that broker has the group, and the end of the queue, where the two differ."""
        at = offsets(admin, addr, GROUP, self.topic)
        ends = [
            admin.offset(addr, RequestCode.GET_MAX_OFFSET, QueueHeader(self.topic, queue_id))
            for queue_id in range(QUEUES)
        ]
        return {n: both for n, both in enumerate(zip(at, ends, strict=True)) if both[0] != both[1]}

    def summary(self) -> str:
        again = len(self.delivered) - len({one[:2] for one in self.delivered})
        resent = sum(count - 1 for count in self.tries.values())
        return f"{dict(self.statuses())}; sent again {resent}; consumed again {again}"

    def _proven(self) -> int:
        return self.statuses()["SEND_OK"]

    def _take(self, message: Received) -> None:
        self.delivered.append((message.queue.queue_id, message.queue_offset, message.body))

    def _member(self, group: str, take: object) -> PushConsumer:
        consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
        options = ClientOptions(self._namesrv, route_interval_s=ROUTE_S)
        member = PushConsumer(group, take, options, consuming=consuming)  # type: ignore[arg-type]
        return member.subscribe(self.topic)

    def _send_all(self) -> None:
        number = 0
        try:
            while not self._stop.wait(PACE_S):
                self._send(b"%06d " % number + b"x" * (number * 37 % 900))
                number += 1
        except BaseException as error:
            self._error = error

    def _send(self, body: bytes) -> None:
        """Until it is answered, or nobody wants to know any more."""
        while not self._stop.is_set():
            self.tries[body] += 1
            try:
                answer = self._producer.send(Message(self.topic, body, keys=body[:6].decode()))
            except SendFailed:
                continue
            self.ledger[body] = Acknowledged(answer.queue.queue_id, answer.queue_offset, answer.status.name)
            return


def stored(admin: Admin, addr: str, topic: str) -> dict[tuple[int, int], bytes]:
    """Every message of a broker by queue and offset; no queue has a gap."""
    found: dict[tuple[int, int], bytes] = {}
    for queue_id in range(QUEUES):
        queue = SendQueue("broker-a", addr, queue_id)
        bodies = [(one.queue_offset, one.body) for one in from_queue(admin, topic, queue, "TRAFFIC-CHECK")]
        gaps = [(at, offset) for at, (offset, _) in enumerate(bodies) if at != offset]
        assert not gaps, (
            f"{addr} queue {queue_id}: the message number {gaps[0][0]} has the offset {gaps[0][1]}"
        )
        found |= {(queue_id, offset): bytes(body) for offset, body in bodies}
    return found


def offsets(admin: Admin, addr: str, group: str, topic: str) -> list[int]:
    """The group's, by queue; -1 where it has none."""
    found = []
    for queue_id in range(QUEUES):
        header = QueryConsumerOffsetHeader(group, topic, queue_id)
        try:
            found.append(admin.offset(addr, RequestCode.QUERY_CONSUMER_OFFSET, header))
        except AnswerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            found.append(-1)
    return found
