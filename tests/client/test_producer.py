"""What a producer does with each answer, and with none: brokers here answer as the test wishes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import pytest

from haservice.client import (
    Admin,
    AsyncProducer,
    ClientClosed,
    ClientError,
    ClientOptions,
    Credentials,
    Message,
    MessageIllegal,
    MessageQueue,
    NameserverUnknown,
    Producer,
    ProducerLimits,
    PullConsumer,
    PushConsumer,
    Received,
    RouteUnknown,
    SendFailed,
    SendResult,
    SendStatus,
    TransactionState,
)
from haservice.client.identity import UniqueKeys
from haservice.errors import AnswerError, RemotingTimeout, RemotingUnreachable
from haservice.remoting.bodies.clients import HeartbeatData
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.clients import SendMessageHeader
from haservice.remoting.signature import content, signature
from tests.client.fakes import (
    Behaviour,
    FakeBroker,
    FakeCluster,
    answers,
    fake_broker,
    fake_cluster,
    hangs_up,
    route,
    says_nothing,
)
from tests.support.waiting import PATIENCE_S, wait_until

HELLO = Message("T", b"hello")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


@pytest.fixture
def brokers(cluster: FakeCluster) -> Iterator[Callable[..., list[FakeBroker]]]:
    """`brokers([…], […])`: one broker name for each list of behaviours, two queues of topic T on each."""
    with ExitStack() as stack:

        def start(*behaviours: list[Behaviour]) -> list[FakeBroker]:
            made = [
                stack.enter_context(fake_broker(name, *some))
                for name, some in zip("abc", behaviours, strict=False)
            ]
            cluster.routes["T"] = route(2, **{one.name: {0: one.addr} for one in made})
            return made

        yield start


def run(
    options: ClientOptions,
    scenario: Callable[[AsyncProducer], Awaitable[None]],
    limits: ProducerLimits | None = None,
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            AsyncProducer("g", options, limits=limits or ProducerLimits()) as one,
        ):
            await scenario(one)

    asyncio.run(main())


def test_a_send_goes_out_as_javas_do(cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]) -> None:
    (broker,) = brokers([])

    async def scenario(producer: AsyncProducer) -> None:
        result = await producer.send(Message("T", b"x" * 5000, "TagA", "k1", flag=9))
        assert result.ok
        assert (result.status, result.queue_offset) == (SendStatus.SEND_OK, 7)
        assert result.queue.broker_name == "a"
        header = SendMessageHeader.decode(broker.sends[0].code, broker.sends[0].ext)
        assert header.producer_group == "g"
        assert (header.topic, header.sys_flag, header.flag) == ("T", 0x301, 9)
        assert f"UNIQ_KEY\x01{result.msg_id}" in header.properties
        assert header.queue_id == result.queue.queue_id

    run(cluster.options, scenario)


@pytest.mark.parametrize(
    "code",
    [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE],
)
def test_stored_with_less_is_a_status_and_no_error(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]], code: ResponseCode
) -> None:
    brokers([answers(code)])

    async def scenario(producer: AsyncProducer) -> None:
        result = await producer.send(HELLO)
        assert result.status is SendStatus[code.name]
        assert not result.ok

    run(cluster.options, scenario)


def test_less_than_ok_is_tried_elsewhere_where_that_is_wished(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    less = answers(ResponseCode.SLAVE_NOT_AVAILABLE)
    first, second = brokers([less], [less])

    async def scenario(producer: AsyncProducer) -> None:
        assert (await producer.send(HELLO)).ok
        assert len(first.sends) + len(second.sends) == 3  # both once, and then the first again

    run(cluster.options, scenario, ProducerLimits(retry_when_not_stored_ok=True))


@pytest.mark.parametrize(
    "code", [ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST]
)
def test_a_refusal_that_another_broker_may_not_have_is_tried_there(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]], code: ResponseCode
) -> None:
    refuses = [answers(code)] * 9
    first, second = brokers(list(refuses), [])

    async def scenario(producer: AsyncProducer) -> None:
        results = [await producer.send(HELLO) for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"b"}
        assert len(first.sends) < len(second.sends)

    run(cluster.options, scenario)


def test_tries_are_counted_and_told(cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]) -> None:
    (broker,) = brokers([answers(ResponseCode.SYSTEM_ERROR)] * 9)

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(SendFailed, match="is not stored after 3 tries") as failed:
            await producer.send(HELLO)
        assert failed.value.code == ResponseCode.SYSTEM_ERROR
        assert not failed.value.maybe_stored
        assert len(broker.sends) == len(failed.value.tries) == 3
        keys = {SendMessageHeader.decode(310, sent.ext).properties for sent in broker.sends}
        assert len(keys) == 1  # the UNIQ_KEY is the message's, not the try's

    run(cluster.options, scenario)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL])
def test_other_refusals_are_final(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]], code: ResponseCode
) -> None:
    first, second = brokers([answers(code)] * 9, [answers(code)] * 9)

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(SendFailed, match=code.name):
            await producer.send(HELLO)
        assert len(first.sends) + len(second.sends) == 1

    run(cluster.options, scenario)


def test_a_connection_that_breaks_may_have_stored_it(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    (broker,) = brokers([hangs_up] * 9)

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(SendFailed, match="may be stored after 3 tries") as failed:
            await producer.send(HELLO)
        assert failed.value.maybe_stored
        assert failed.value.code is None
        assert len(broker.sends) == 3

    run(cluster.options, scenario)


def test_silence_is_waited_for_until_the_timeout_and_may_have_stored_it(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    (broker,) = brokers([says_nothing])

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(SendFailed, match="may be stored after 1 tries") as failed:
            await producer.send(HELLO, timeout_s=0.05)
        assert isinstance(failed.value.tries[0].error, RemotingTimeout)
        assert len(broker.sends) == 1
        assert (await producer.send(HELLO)).ok

    run(cluster.options, scenario)


def test_a_master_that_is_gone_is_replaced_by_the_first_answer_that_knows_another(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    """The send that found out waits for it: no send fails, and the nameserver is asked until it knows."""
    (new,) = brokers([])
    gone = "127.0.0.1:1"
    cluster.routes["T"] = route(2, a={0: gone})
    asked_before = 0

    def promoted_at_the_fifth_question(topic: str) -> None:
        asked = len(cluster.asked) - asked_before
        cluster.routes["T"] = route(
            2, a={0: gone} if asked < 3 else {1: new.addr} if asked < 5 else {0: new.addr}
        )

    cluster.on_route = promoted_at_the_fifth_question

    async def scenario(producer: AsyncProducer) -> None:
        result = await producer.send(HELLO)
        assert result.ok
        assert len(new.sends) == 1
        assert len(cluster.asked) == 5
        assert not producer.session.routes.doubted("a")

    run(cluster.options, scenario)


def test_a_route_that_makes_our_own_mistake_ends_no_look_at_the_others(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = brokers([])
    cluster.routes["T"] = route(2, a={0: broker.addr})
    asked = threading.Event()

    def mistakes(*_: object, **__: object) -> None:
        raise KeyError("a mistake of ours")

    async def scenario(producer: AsyncProducer) -> None:
        assert (await producer.send(HELLO)).ok
        with monkeypatch.context() as broken:
            broken.setattr("haservice.client.session.TopicRouteData.decode", mistakes)
            before = len(cluster.asked)
            cluster.on_route = lambda topic: asked.set() if len(cluster.asked) > before + 1 else None
            assert await asyncio.to_thread(asked.wait, PATIENCE_S)
        asked.clear()
        before = len(cluster.asked)
        assert await asyncio.to_thread(asked.wait, PATIENCE_S)
        assert (await producer.send(HELLO)).ok

    run(replace(cluster.options, route_interval_s=0.05), scenario)


def test_a_slave_that_says_so_is_one_and_the_send_waits_for_the_master(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    old, new = brokers([answers(ResponseCode.SERVICE_NOT_AVAILABLE)] * 99, [])

    def promoted(topic: str) -> None:
        cluster.routes["T"] = route(2, a={0: new.addr if old.sends else old.addr})

    cluster.on_route = promoted

    async def scenario(producer: AsyncProducer) -> None:
        assert (await producer.send(HELLO)).ok
        assert (len(old.sends), len(new.sends)) == (1, 1)

    run(cluster.options, scenario)


def test_while_nobody_is_master_a_send_fails_at_its_timeout_and_says_why(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    cluster.routes["T"] = route(2, a={1: "127.0.0.1:1"})

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(SendFailed, match="is not stored after 0 tries: broker a has no master now"):
            await producer.send(HELLO, timeout_s=0.1)
        with pytest.raises(RouteUnknown, match="broker a has no master now"):
            await producer.send_oneway(HELLO)

    run(cluster.options, scenario)


def test_messages_go_to_a_broker_that_is_up_while_another_is_down(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    (up,) = brokers([])
    cluster.routes["T"] = route(2, a={0: up.addr}, b={0: "127.0.0.1:1"})

    async def scenario(producer: AsyncProducer) -> None:
        for _ in range(20):
            assert (await producer.send(HELLO)).queue.broker_name == "a"

    run(cluster.options, scenario)


def test_queues_take_turns_and_a_named_one_or_an_order_key_stays(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    brokers([], [])

    async def scenario(producer: AsyncProducer) -> None:
        queues = await producer.queues("T")
        assert [(queue.broker_name, queue.queue_id) for queue in queues] == [
            ("a", 0),
            ("a", 1),
            ("b", 0),
            ("b", 1),
        ]
        found = [(await producer.send(HELLO)).queue for _ in range(8)]
        assert sorted(found[:4]) == sorted(found[4:]) == list(queues)
        named = MessageQueue("T", "b", 1)
        assert {(await producer.send(HELLO, queue=named)).queue for _ in range(3)} == {named}
        keyed = {(await producer.send(replace(HELLO, order_key="o1"))).queue for _ in range(3)}
        assert len(keyed) == 1

    run(cluster.options, scenario)


def test_an_unknown_topic_is_sent_to_the_brokers_that_would_make_it(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    (broker,) = brokers([])

    async def scenario(producer: AsyncProducer) -> None:
        with pytest.raises(
            RouteUnknown,
            match=r"topic New is unknown to nameserver .*: no broker that has it is registered; mqadmin check",
        ):
            await producer.send(Message("New", b"x"))
        cluster.routes["TBW102"] = route(8, a={0: broker.addr})
        assert (await producer.send(Message("New", b"x"))).queue.queue_id < 4

    run(cluster.options, scenario)


def test_oneway_is_not_waited_for(cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]) -> None:
    (broker,) = brokers([says_nothing])

    async def scenario(producer: AsyncProducer) -> None:
        await producer.send_oneway(HELLO)
        await asyncio.to_thread(wait_until, lambda: broker.sends)
        assert broker.sends[0].is_oneway

    run(cluster.options, scenario)


def test_brokers_hear_of_the_group_and_of_its_end(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    (broker,) = brokers([])

    async def scenario(producer: AsyncProducer) -> None:
        await producer.send(HELLO)
        await asyncio.to_thread(wait_until, lambda: broker.heartbeats)
        heard = HeartbeatData.decode(broker.heartbeats[0])
        assert heard.client_id == producer.session.client_id
        assert [data.group_name for data in heard.producer_data_set] == ["g"]

    run(cluster.options, scenario)
    assert broker.unregistered[0]["producerGroup"] == "g"


def test_requests_are_signed(cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]) -> None:
    (broker,) = brokers([])
    options = replace(cluster.options, credentials=Credentials("somebody", "a secret"))

    async def scenario(producer: AsyncProducer) -> None:
        await producer.send(HELLO)
        (sent,) = broker.sends
        assert sent.ext["AccessKey"] == "somebody"
        assert sent.ext["Signature"] == signature("a secret", content(sent.ext, sent.body))

    run(options, scenario)
    assert "secret" not in repr(options.credentials)


def test_the_next_nameserver_is_asked_where_one_is_down(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    brokers([])
    options = replace(cluster.options, namesrv_addr=f"127.0.0.1:1; {cluster.options.namesrv_addr}")

    async def scenario(producer: AsyncProducer) -> None:
        assert (await producer.send(HELLO)).ok

    run(options, scenario)


def test_nameservers_come_from_the_options_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(NameserverUnknown, match="NAMESRV_ADDR"):
        Producer("g")
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert ClientOptions().nameservers == ("a:1", "b:2")
    assert ClientOptions("c:3").nameservers == ("c:3",)


def test_threads_share_a_producer_which_leaves_none_behind(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    (broker,) = brokers([])
    with Producer("g", cluster.options) as producer:
        assert producer.send(HELLO).ok
        assert all(
            future.result(PATIENCE_S).ok for future in [producer.send_async(HELLO) for _ in range(100)]
        )
        assert producer.send_batch([HELLO] * 3).msg_id.count(",") == 2
        producer.send_oneway(HELLO)
        with pytest.raises(MessageIllegal):
            producer.send(Message("T", b""))
    assert broker.sends[101].code == RequestCode.SEND_BATCH_MESSAGE
    with pytest.raises(ClientClosed, match="this Producer was closed"):
        producer.send(HELLO)
    producer.close()


def test_closing_ends_a_send_that_waits(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    (broker,) = brokers([says_nothing])
    producer = Producer("g", cluster.options)
    waits = producer.send_async(HELLO, timeout_s=PATIENCE_S)
    wait_until(lambda: broker.sends, "the broker has the message")
    producer.close()
    with pytest.raises(ClientClosed, match="producer g was closed"):
        waits.result(PATIENCE_S)


def test_closing_ends_a_send_that_looks_for_a_master(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    cluster.routes["T"] = route(2, a={1: "127.0.0.1:1"})
    producer = Producer("g", cluster.options)
    waits = producer.send_async(HELLO, timeout_s=PATIENCE_S)
    wait_until(lambda: len(cluster.asked) > 2, "it is looked for")
    producer.close()
    with pytest.raises(ClientClosed, match="producer g was closed"):
        waits.result(PATIENCE_S)


def test_where_no_nameserver_answers_the_error_says_which_was_asked() -> None:
    with (
        Producer("g", ClientOptions("127.0.0.1:1")) as producer,
        pytest.raises(RemotingUnreachable, match=r"127\.0\.0\.1:1: .*: does a nameserver run there\?"),
    ):
        producer.send(HELLO)


def test_an_illegal_message_is_refused_by_every_call_and_hurts_no_other(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    brokers([])
    text: Any = "text"
    wrong = Message("T", text)

    async def scenario(producer: AsyncProducer) -> None:
        sends = [producer.send(one) for one in (HELLO, wrong, HELLO)]
        first, refused, last = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(refused, MessageIllegal)
        assert isinstance(first, SendResult)
        assert isinstance(last, SendResult)
        for call in (producer.send_oneway, producer.request):
            with pytest.raises(MessageIllegal, match="of type str"):
                await call(wrong)
            with pytest.raises(TypeError, match="send Message"):
                await call(text)
        with pytest.raises(MessageIllegal, match="of type str"):
            await producer.send_batch([HELLO, wrong])
        with pytest.raises(TypeError, match="a str is no Message"):
            await producer.send(text)
        with pytest.raises(TypeError, match="a str is no Message"):
            await producer.send_batch(text)
        listener: Any = object()
        async with AsyncProducer("t", cluster.options, listener=listener) as transactions:
            with pytest.raises(MessageIllegal, match="of type str"):
                await transactions.send_in_transaction(wrong)
            with pytest.raises(TypeError, match="a str is no Message"):
                await transactions.send_in_transaction(text)
        several: Any = [HELLO]
        with pytest.raises(TypeError, match=r"a list is no Message: .* send_batch"):
            await producer.send(several)

    run(cluster.options, scenario)


@pytest.mark.parametrize("refuses", [True, False])
def test_a_refused_end_of_a_transaction_is_told_from_a_silent_one(
    cluster: FakeCluster,
    brokers: Callable[..., list[FakeBroker]],
    caplog: pytest.LogCaptureFixture,
    refuses: bool,
) -> None:
    def refuse(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ResponseCode.SYSTEM_ERROR, "it has ended already, with rollback")

    class Listener:
        def execute(self, message: Message, argument: object) -> TransactionState:
            return TransactionState.COMMIT

        def check(self, message: Received) -> TransactionState:
            raise AssertionError

    (broker,) = brokers([])
    broker.other = refuse if refuses else hangs_up
    with Producer("t", cluster.options, listener=Listener()) as producer:
        done = producer.send_in_transaction(HELLO)
    assert (done.state, done.told, done.refused is not None) == (TransactionState.COMMIT, False, refuses)
    assert ("was refused group=t" in caplog.text) is refuses
    if refuses:
        assert "it has ended already" in str(done.refused)


def test_a_queue_of_another_topic_is_refused(
    cluster: FakeCluster, brokers: Callable[..., list[FakeBroker]]
) -> None:
    brokers([])
    other = MessageQueue("Other", "a", 0)
    says = "to topic T cannot go to a queue of topic Other"

    async def scenario(producer: AsyncProducer) -> None:
        for call in (producer.send, producer.send_oneway, producer.request):
            with pytest.raises(MessageIllegal, match=says):
                await call(HELLO, queue=other)
        with pytest.raises(MessageIllegal, match=says):
            await producer.send_batch([HELLO], queue=other)

    run(cluster.options, scenario)


def test_closing_ends_sends_that_have_no_route_yet(cluster: FakeCluster) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def on_route(topic: str) -> None:
        asked.set()
        go_on.wait(PATIENCE_S)

    cluster.on_route = on_route
    try:
        with Producer("g", cluster.options) as producer:
            sends = [producer.send_async(HELLO, timeout_s=PATIENCE_S) for _ in range(50)]
            assert asked.wait(PATIENCE_S)
        for one in sends:
            with pytest.raises(ClientClosed):
                one.result(PATIENCE_S)
    finally:
        go_on.set()


@pytest.mark.parametrize("group", ["", "a b", "a.b", "g" * 256])
def test_a_group_name_that_rocketmq_refuses_is_refused(group: str, cluster: FakeCluster) -> None:
    with pytest.raises(ValueError, match="a name has 1 to 255 of the letters"):
        Producer(group, cluster.options)
    for consumer in (lambda: PushConsumer(group, print, cluster.options), lambda: PullConsumer(group)):
        with pytest.raises(ValueError, match="a name has 1 to 255 of the letters"):
            consumer()


@pytest.mark.parametrize("value", ["3", 0, -1, None, True, float("nan")])
@pytest.mark.parametrize(
    "name",
    [one.name for one in fields(ClientOptions) if one.name.endswith("_s")],
)
def test_a_time_that_is_no_number_above_zero_is_refused(name: str, value: Any) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name}=.* seconds above 0"):
        ClientOptions(**wrong)


def test_admin_calls_say_what_is_wrong(cluster: FakeCluster) -> None:
    with Admin(cluster.options) as admin:
        for call in (lambda: admin.route("None"), lambda: admin.lag("g", "None")):
            with pytest.raises(RouteUnknown, match="topic None is unknown to nameserver") as caught:
                call()
            assert isinstance(caught.value, AnswerError)
            assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
        unique_keys = [UniqueKeys(ip).make(1_700_000_000_000) for ip in ("127.0.0.1", "::1")]
        for name in (*unique_keys, "order-7"):
            with pytest.raises(
                ClientError, match=f"'{name}' is no offset_msg_id.* UNIQ_KEY is found by `find`"
            ):
                admin.message("T", name)
    with pytest.raises(ClientClosed, match="this Admin was closed"):
        admin.topics()


def test_a_nameserver_that_knows_nothing_hides_no_other() -> None:
    with fake_cluster() as empty, fake_cluster() as full, fake_broker() as broker:
        full.routes["T"] = route(1, a={0: broker.addr})
        both = ClientOptions(f"{empty.options.namesrv_addr};{full.options.namesrv_addr}")
        with Producer("g", both) as producer, Admin(both) as admin:
            assert producer.send(Message("T", b"x")).ok
            assert [one.broker_name for one in admin.queues("T")] == ["a"]
            with pytest.raises(RouteUnknown) as unknown:
                producer.send(Message("Other", b"x"))
            for addr in both.nameservers:
                assert addr in str(unknown.value)


def test_only_nameservers_that_answered_are_said_not_to_know() -> None:
    with fake_cluster() as empty:
        answers_not = "127.0.0.1:1"
        options = ClientOptions(f"{answers_not};{empty.options.namesrv_addr}")
        with Producer("g", options) as producer, pytest.raises(RouteUnknown) as unknown:
            producer.send(Message("T", b"x"))
        assert answers_not not in str(unknown.value)
