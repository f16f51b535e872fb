"""The producer and the admin calls at a real broker of ours: what is sent is there, as it was meant."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from haservice.admin.cli import main
from haservice.client import (
    END,
    Admin,
    AsyncAdmin,
    AsyncProducer,
    ClientError,
    ClientOptions,
    GroupUnknown,
    Message,
    MessageIllegal,
    Producer,
    Received,
    ReplyTimeout,
    RouteUnknown,
    SendFailed,
    TransactionState,
)
from haservice.client.transactions import Transactions
from haservice.devtools.pair import ScratchPair
from haservice.errors import AnswerError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import UpdateConsumerOffsetHeader
from haservice.remoting.headers.transactions import EndTransactionHeader
from tests.client.reading import bodies_in, messages_in
from tests.client.reading import found as found_in
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.cluster

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture
def admin(options: ClientOptions) -> Iterator[Admin]:
    with Admin(options) as admin:
        yield admin


@pytest.fixture
def producer(options: ClientOptions) -> Iterator[Producer]:
    with Producer("senders", options) as producer:
        yield producer


def test_a_message_is_stored_with_all_that_it_has(producer: Producer, admin: Admin) -> None:
    sent = Message("Whole", b"y" * 9000, "TagA", ["k1", "k2"], {"price": "7"}, flag=3)
    result = producer.send(sent)
    (found,) = found_in(admin, "Whole")
    assert (found.body, found.tags, found.keys, found.flag) == (sent.body, "TagA", ("k1", "k2"), 3)
    assert found.properties["price"] == "7"
    assert (found.msg_id, found.offset_msg_id) == (result.msg_id, result.offset_msg_id)
    assert (found.queue, found.queue_offset) == (result.queue, result.queue_offset)
    assert admin.message("Whole", result.offset_msg_id) == found
    wait_until(lambda: admin.find("Whole", "k2") == [found], "the key is in the index")
    assert admin.find("Whole", result.msg_id) == [found]
    assert admin.find("Whole", "k3") == []


def test_a_batch_lies_side_by_side(producer: Producer, admin: Admin) -> None:
    result = producer.send_batch(
        [Message("Batches", b"%d" % number, keys=f"b{number}") for number in range(5)]
    )
    found = found_in(admin, "Batches", 5)
    assert [one.body for one in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [one.msg_id for one in found] == result.msg_id.split(",")
    assert [one.offset_msg_id for one in found] == result.offset_msg_id.split(",")
    assert [one.keys for one in found] == [(f"b{number}",) for number in range(5)]


def test_messages_of_one_order_key_keep_their_order(producer: Producer, admin: Admin) -> None:
    for number in range(20):
        producer.send(Message("Ordered", b"%02d" % number, order_key="customer-7"))
    found = found_in(admin, "Ordered", 20)
    assert [one.body for one in found] == [b"%02d" % number for number in range(20)]
    assert len({one.queue for one in found}) == 1


def test_a_delayed_message_comes_later(producer: Producer, admin: Admin) -> None:
    assert producer.send(Message("Delayed", b"in a second", delay_level=1)).ok
    assert bodies_in(admin, "Delayed") == []
    wait_until(lambda: bodies_in(admin, "Delayed") == [b"in a second"], "it is delivered")
    (found,) = messages_in(admin, "Delayed")
    assert found.store_timestamp_ms - found.born_timestamp_ms >= 900


def test_oneway_arrives(producer: Producer, admin: Admin) -> None:
    producer.send_oneway(Message("Oneway", b"x"))
    wait_until(lambda: bodies_in(admin, "Oneway") == [b"x"], "it is stored")


def test_asyncio_sends_side_by_side(options: ClientOptions, admin: Admin) -> None:
    async def scenario() -> None:
        async with AsyncProducer("senders", options) as producer:
            sends = (producer.send(Message("Together", b"%03d" % number)) for number in range(200))
            assert all(result.ok for result in await asyncio.gather(*sends))

    asyncio.run(scenario())
    assert sorted(one.body for one in found_in(admin, "Together", 200)) == [
        b"%03d" % number for number in range(200)
    ]


# -- transactions ----------------------------------------------------------------------------------


class Script:
    """A listener that does as the message's body says; `checked` are the bodies that were asked for."""

    def __init__(self, *checks: TransactionState) -> None:
        self.checks = list(checks)
        self.checked: list[bytes] = []
        self.threads: set[str] = set()

    def execute(self, message: Message, argument: Any) -> TransactionState:
        self.threads.add(threading.current_thread().name)
        if argument == "raise":
            raise ArithmeticError("a bug of the application's")
        return TransactionState[argument]

    def check(self, message: Received) -> TransactionState:
        self.checked.append(message.body)
        return self.checks.pop(0)


def test_a_transaction_is_seen_once_it_is_committed(options: ClientOptions, admin: Admin) -> None:
    listener = Script()
    with Producer("transactions", options, listener=listener) as producer:
        done = producer.send_in_transaction(Message("Done", b"committed", "TagA"), "COMMIT")
        assert (done.state, done.told, done.sent.ok) == (COMMIT, True, True)
        undone = producer.send_in_transaction(Message("Done", b"rolled back"), "ROLLBACK")
        assert (undone.state, undone.told) == (ROLLBACK, True)
        wait_until(lambda: bodies_in(admin, "Done") == [b"committed"], "what was committed is there")
        (found,) = messages_in(admin, "Done")
        assert (found.msg_id, found.tags) == (done.sent.msg_id, "TagA")
        with pytest.raises(MessageIllegal, match="no delay_level"):
            producer.send_in_transaction(Message("Done", b"x", delay_level=1), "COMMIT")
    assert {name.rpartition("_")[0] for name in listener.threads} == {"client-work"}


def test_what_the_producer_does_not_know_the_broker_asks_for(options: ClientOptions, admin: Admin) -> None:
    listener = Script(UNKNOWN, COMMIT)
    with Producer("asked", options, listener=listener) as producer:
        result = producer.send_in_transaction(Message("Asked", b"later"), "UNKNOWN")
        assert (result.state, result.told) == (UNKNOWN, True)
        wait_until(lambda: bodies_in(admin, "Asked") == [b"later"], "a check has committed it")
    assert listener.checked == [b"later", b"later"]


def test_what_a_listener_raises_is_raised_and_asked_for(options: ClientOptions, admin: Admin) -> None:
    listener = Script(COMMIT)
    with Producer("raises", options, listener=listener) as producer:
        with pytest.raises(ArithmeticError, match="application"):
            producer.send_in_transaction(Message("Raised", b"half"), "raise")
        wait_until(lambda: bodies_in(admin, "Raised") == [b"half"], "a check has committed it")


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "a plain function around coroutines"])
def test_what_is_executed_is_not_checked_meanwhile(
    options: ClientOptions, admin: Admin, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    asked, topic = threading.Event(), f"Long{int(wrapped)}"
    real_tell = Transactions._tell

    async def tell(self: Transactions, addr: str, header: EndTransactionHeader) -> object:
        if header.from_transaction_check:
            asked.set()
        return await real_tell(self, addr, header)

    class Listener:
        checks = 0

        def execute(self, message: Message, argument: Any) -> Any:
            return self._execute() if wrapped else self._answer(asked.wait(PATIENCE_S))

        async def _execute(self) -> TransactionState:
            return self._answer(await asyncio.to_thread(asked.wait, PATIENCE_S))

        def _answer(self, was_asked: bool) -> TransactionState:
            return COMMIT if was_asked else ROLLBACK

        def check(self, message: Received) -> TransactionState:
            self.checks += 1
            return ROLLBACK

    monkeypatch.setattr(Transactions, "_tell", tell)
    listener = Listener()
    with Producer("long", options, listener=listener) as producer:
        done = producer.send_in_transaction(Message(topic, b"paid"))
        assert (done.state, done.told, done.refused, listener.checks) == (COMMIT, True, None, 0)
        wait_until(lambda: bodies_in(admin, topic) == [b"paid"], "it is committed")


def test_a_listener_of_coroutines_runs_on_the_loop(options: ClientOptions, admin: Admin) -> None:
    class Listener:
        async def execute(self, message: Message, argument: Any) -> TransactionState:
            await asyncio.sleep(0)
            return UNKNOWN

        async def check(self, message: Received) -> TransactionState:
            return COMMIT

    async def scenario() -> None:
        async with AsyncProducer("coroutines", options, listener=Listener()) as producer:
            await producer.send_in_transaction(Message("Coroutines", b"half"))
            await asyncio.to_thread(wait_until, lambda: bodies_in(admin, "Coroutines") == [b"half"])

    asyncio.run(scenario())


def test_transactions_want_a_listener(producer: Producer) -> None:
    with pytest.raises(ClientError, match="has no listener"):
        producer.send_in_transaction(Message("T", b"x"))


# -- request and reply -----------------------------------------------------------------------------


@pytest.fixture
def answering(options: ClientOptions, admin: Admin) -> Iterator[Callable[[str], None]]:
    """`answering(topic)`: whoever asks there gets his body back, in capitals."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(topic: str) -> None:
        admin.create_topic(topic, 1)

        def answer() -> None:
            seen = 0
            with Producer("answering", options) as producer, Admin(options) as reading:
                while not stop.wait(0.01):
                    new = messages_in(reading, topic)[seen:]
                    for request in new:
                        seen += 1
                        producer.reply(request, request.body.upper())

        threads.append(threading.Thread(target=answer))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)


def test_a_request_gets_its_reply(producer: Producer, answering: Callable[[str], None]) -> None:
    answering("Questions")
    replies = [
        producer.request(Message("Questions", b"q%d" % number), timeout_s=PATIENCE_S) for number in range(3)
    ]
    assert [reply.body for reply in replies] == [b"Q0", b"Q1", b"Q2"]
    long = producer.request(Message("Questions", b"x" * 6000), timeout_s=PATIENCE_S)
    assert long.body == b"X" * 6000


def test_a_request_that_nobody_answers_ends_at_its_timeout(producer: Producer, admin: Admin) -> None:
    admin.create_topic("Silence", 1)
    with pytest.raises(ReplyTimeout, match=r"no reply to request .* on topic Silence within 0.3 s"):
        producer.request(Message("Silence", b"?"), timeout_s=0.3)
    (asked,) = messages_in(admin, "Silence")
    with Producer("late", producer._inner.session.options) as late:
        assert late.reply(asked, b"too late").ok  # the asker is there, and has given up
    producer.close()
    with Producer("later", producer._inner.session.options) as late, pytest.raises(SendFailed, match="reply"):
        late.reply(asked, b"even later")


def test_only_a_request_can_be_replied_to(producer: Producer, admin: Admin) -> None:
    producer.send(Message("Plain", b"x"))
    (plain,) = found_in(admin, "Plain")
    with pytest.raises(MessageIllegal, match="is no request: it lacks"):
        producer.reply(plain, b"y")


# -- traces ----------------------------------------------------------------------------------------


def test_a_traced_send_is_found_by_mqadmin(options: ClientOptions, server: ScratchPair) -> None:
    with Producer("traced", replace(options, trace=True)) as producer:
        result = producer.send(Message("Traced", b"x", "TagA", "order-7"))
    command = ["queryMsgTraceById", "-n", server.namesrv_addr, "-i", result.msg_id]

    def shown() -> str:
        return CliRunner().invoke(main, command).output

    wait_until(lambda: "Pub" in shown(), "the trace is found")
    line = next(line for line in shown().splitlines() if line.startswith("Pub"))
    assert line.split()[1] == "traced"
    assert line.split()[-1] == "success"


# -- admin calls -----------------------------------------------------------------------------------


def test_topics_are_made_changed_and_taken_away(admin: Admin) -> None:
    admin.create_topic("Made", 3)
    wait_until(lambda: "Made" in admin.topics(), "the nameserver knows the topic")
    assert len(admin.queues("Made")) == 3
    admin.create_topic("Made", 5)
    wait_until(lambda: len(admin.queues("Made")) == 5, "the topic has more queues")
    admin.delete_topic("Made")
    with pytest.raises(AnswerError) as error:
        admin.queues("Made")
    assert error.value.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("queues", [0, -1])
def test_a_topic_without_a_queue_is_not_made(admin: Admin, queues: int) -> None:
    with pytest.raises(ValueError, match=f"topic Queueless: queues={queues}, but a topic has at least 1"):
        admin.create_topic("Queueless", queues)
    assert "Queueless" not in admin.topics()


def test_names_that_nobody_knows_are_refused_and_nothing_is_made_of_them(
    admin: Admin, producer: Producer, server: ScratchPair
) -> None:
    admin.create_topic("Known", 1)
    producer.send(Message("Known", b"x"))
    wait_until(lambda: "Known" in admin.topics(), "the nameserver knows the topic")
    with pytest.raises(RouteUnknown, match="topic Unknown is unknown to nameserver"):
        admin.delete_topic("Unknown")
    with pytest.raises(GroupUnknown, match=f"group unknown is unknown to {server.master_addr}") as error:
        admin.delete_group("unknown")
    assert (error.value.group, error.value.addrs) == ("unknown", (server.master_addr,))
    with pytest.raises(RouteUnknown, match="topic Unknown is unknown to nameserver"):
        admin.reset_offsets("counting", "Unknown")
    with pytest.raises(GroupUnknown, match="first heartbeat makes a group, or `create_group`"):
        admin.reset_offsets("unknown", "Known")
    assert admin.lag("unknown", "Known") == 1


def test_a_topic_is_deleted_as_soon_as_it_is_made_and_again_is_an_error(admin: Admin) -> None:
    admin.create_topic("Brief")
    admin.delete_topic("Brief")
    with pytest.raises(RouteUnknown, match="topic Brief is unknown"):
        admin.delete_topic("Brief")
    admin.create_group("brief")
    admin.delete_group("brief")
    with pytest.raises(GroupUnknown):
        admin.delete_group("brief")


def test_offsets_lag_and_resets(admin: Admin, producer: Producer, server: ScratchPair) -> None:
    admin.create_topic("Counted", 1)
    results = [producer.send(Message("Counted", b"%d" % number)) for number in range(6)]
    (queue,) = admin.queues("Counted")
    assert (admin.min_offset(queue), admin.max_offset(queue)) == (0, 6)
    third = admin.message("Counted", results[3].offset_msg_id)
    assert admin.search_offset(queue, third.store_timestamp_ms + 3_600_000) == 6
    assert admin.search_offset(queue, 0) == 0
    admin.create_group("counting")
    header = UpdateConsumerOffsetHeader("counting", "Counted", 0, 2)
    admin.tell(server.master_addr, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert admin.lag("counting", "Counted") == 4
    assert admin.progress("counting", "Counted")[queue].consumer_offset == 2
    admin.reset_offsets("counting", "Counted", END)
    assert admin.lag("counting", "Counted") == 0
    admin.reset_offsets("counting", "Counted", 0)
    assert admin.lag("counting", "Counted") == 6
    admin.delete_group("counting")


def test_brokers_are_listed(admin: Admin, server: ScratchPair) -> None:
    (broker,) = admin.brokers()
    assert (broker.name, broker.addr, broker.is_master) == ("broker-a", server.master_addr, True)
    with pytest.raises(ClientError, match="no cluster 'Other'"):
        admin.masters("Other")
    with pytest.raises(ClientError, match="UNIQ_KEY is found by `find`"):
        admin.message("T", "no id")


def test_asyncio_has_the_same_calls(options: ClientOptions) -> None:
    async def scenario() -> None:
        async with AsyncAdmin(options) as admin, AsyncProducer("g", options) as producer:
            await admin.create_topic("Aside", 2)
            result = await producer.send(Message("Aside", b"x"))
            assert await admin.max_offset(result.queue) == 1
            assert (await admin.message("Aside", result.offset_msg_id)).body == b"x"

    asyncio.run(scenario())
