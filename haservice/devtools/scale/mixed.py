"""MixedLoad: everything that clients do, at a modest rate, for as long as one likes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from haservice.client import (
    Admin,
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
    TransactionState,
)
from haservice.errors import HAServiceError

TOPIC = "soak"
QUEUES = 8
PASSING_TOPIC = "soak-passing-{}"
PAUSE_S = 0.002
ADMIN_PAUSE_S = 0.5
JOIN_S = 30.0


class Transacting:
    """Decides a third of the transactions at once, a third when the broker asks, and rolls a third back."""

    def execute(self, message: Message, argument: int) -> TransactionState:
        return (TransactionState.COMMIT, TransactionState.UNKNOWN, TransactionState.ROLLBACK)[argument % 3]

    def check(self, message: Received) -> TransactionState:
        return TransactionState.COMMIT


class MixedLoad:
    """From entering to leaving: sends, delayed messages, transactions, pulls, members that come and go, admin calls.

    Counts are written by one thread each, and may be read by any.
    """

    def __init__(self, namesrv_addr: str) -> None:
        self._options = ClientOptions(namesrv_addr)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._told, args=(work,), daemon=True)
            for work in (self._send, self._pull, self._come_and_go, self._ask)
        ]
        self.sent = 0
        self.refused = 0
        self.consumed = 0
        self.asked = 0
        self.failed: BaseException | None = None

    def __enter__(self) -> Self:
        with Admin(self._options) as admin:
            admin.create_topic(TOPIC, QUEUES)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_S)

    def check(self) -> None:
        """Raises what one of the threads died of."""
        if self.failed is not None:
            raise self.failed

    def _told(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failed = error

    def _send(self) -> None:
        with Producer("soak", self._options, listener=Transacting()) as producer:
            for number in itertools.count():
                if self._stop.wait(PAUSE_S):
                    return
                try:
                    self._send_one(producer, number)
                except HAServiceError:
                    self.refused += 1
                else:
                    self.sent += 1

    @staticmethod
    def _send_one(producer: Producer, number: int) -> None:
        body = b"%d " % number + b"x" * (number * 37 % 2000)
        if number % 50 == 0:
            producer.send_in_transaction(Message(TOPIC, body), number // 50)
        elif number % 20 == 1:
            producer.send_batch([Message(TOPIC, body, keys=f"order-{number}") for _ in range(8)])
        else:
            level = 1 + number % 3 if number % 10 == 2 else 0
            producer.send(Message(TOPIC, body, keys=f"order-{number}", delay_level=level))

    def _pull(self) -> None:
        consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
        with PullConsumer("soak-pulling", self._options, consuming=consuming) as consumer:
            consumer.subscribe(TOPIC)
            while not self._stop.is_set():
                self.consumed += len(consumer.poll(1.0))

    def _come_and_go(self) -> None:
        """A push consumer that is always there, and one that joins and leaves beside it."""

        def handle(message: Received) -> None:
            if message.queue_offset % 500 == 499 and message.reconsume_times == 0:
                raise ValueError("it comes again")

        with PushConsumer("soak-pushed", handle, self._options) as staying:
            staying.subscribe(TOPIC)
            while not self._stop.is_set():
                with PushConsumer("soak-pushed", handle, self._options) as guest:
                    guest.subscribe(TOPIC)
                    self._stop.wait(10.0)
                self._stop.wait(5.0)

    def _ask(self) -> None:
        with Admin(self._options) as admin:
            for number in itertools.count():
                if self._stop.wait(ADMIN_PAUSE_S):
                    return
                began_s = time.monotonic()
                try:
                    self._ask_one(admin, number)
                    self.asked += 1
                except HAServiceError:
                    self._stop.wait(max(0.0, ADMIN_PAUSE_S - (time.monotonic() - began_s)))

    @staticmethod
    def _ask_one(admin: Admin, number: int) -> None:
        for broker in admin.brokers():
            admin.runtime_info(broker.addr)
        admin.progress("soak-pulling", TOPIC)
        admin.find(TOPIC, f"order-{number}")
        if number % 20 == 0:
            admin.create_topic(PASSING_TOPIC.format(number % 100), 4)
        if number % 20 == 10:
            admin.delete_topic(PASSING_TOPIC.format((number - 10) % 100))
