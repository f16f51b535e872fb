"""Pulls by SQL92: which messages come, what is refused, and how a held one is woken."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from commitlog.queues.readable_queue import Entry
from commitlog.queues.writable_queue import ConsumeQueue
from haservice.broker.pull import consumer_filters, judging, message_filter
from haservice.broker.pull.consumer_filters import Expressions
from haservice.broker.pull.native import Expression, compile_expression
from haservice.configuration.settings import BrokerRole
from haservice.errors import RequestError
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand
from tests.support.reading_broker import Caller, ReadingBroker, bodies
from tests.support.waiting import wait_until

Make = Callable[..., ReadingBroker]
SQL = {"expressionType": "SQL92", "subscription": "a > 5"}
RETRIES = "%RETRY%G"


@pytest.fixture
def broker(reading_broker: Make) -> ReadingBroker:
    return reading_broker(enable_property_filter=True)


def put(broker: ReadingBroker, *numbers: int, **message: Any) -> None:
    """A message `aN` with the property a=N for each."""
    for number in numbers:
        broker.put(b"a%d" % number, a=str(number), **message)
    broker.dispatch()


def subscribe(caller: Caller, expression: str, *, version: int = 1, topics: tuple[str, ...] = ("T",)) -> None:
    data = [
        {"topic": topic, "subString": expression, "expressionType": "SQL92", "subVersion": version}
        for topic in topics
    ]
    caller.heartbeat("c1", {"G": {}}, subscriptionDataSet=data)


def held(broker: ReadingBroker, caller: Caller, offset: int, **fields: Any) -> Future[RemotingCommand]:
    """A pull that waits at the broker."""
    before = broker.held()
    future = caller.begin_pull(offset, sysFlag=6, **fields)
    wait_until(lambda: broker.held() == before + 1, "the pull is held")
    return future


def test_a_pull_brings_the_messages_that_its_expression_takes(broker: ReadingBroker) -> None:
    put(broker, 1, 6, 2, 7, 3)
    broker.put(b"without")
    broker.dispatch()
    caller = broker.caller()
    answer = caller.pull(0, **SQL)
    assert (answer.code, bodies(answer), answer.ext["nextBeginOffset"]) == (0, [b"a6", b"a7"], "6")
    answer = caller.pull(0, maxMsgNums=1, **SQL)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"a6"], "2")
    answer = caller.pull(4, **SQL)
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "6")
    for offset, code in ((6, 19), (7, 21)):
        assert caller.pull(offset, **SQL).code == code


def test_tags_are_a_property_like_others(broker: ReadingBroker) -> None:
    broker.put(b"one", tag="A")
    broker.put(b"two", tag="B", keys="k1")
    broker.dispatch()
    caller = broker.caller()
    for expression in ("TAGS = 'B'", "TAGS IN ('B', 'C') AND KEYS IS NOT NULL", "NOT (TAGS = 'A')"):
        assert bodies(caller.pull(0, expressionType="SQL92", subscription=expression)) == [b"two"]


def test_a_look_ends_after_as_many_messages_as_one_by_tags(broker: ReadingBroker) -> None:
    put(broker, *([1] * 900), 9)
    caller = broker.caller()
    answer = caller.pull(0, **SQL)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "800")
    assert bodies(caller.pull(800, **SQL)) == [b"a9"]


def test_messages_are_looked_at_off_the_loop(broker: ReadingBroker) -> None:
    put(broker, 1, 6)
    caller = broker.caller()
    before = broker.offloaded
    caller.pull(0, **SQL)
    assert broker.offloaded == before + 1
    caller.pull(0, subscription="*")
    caller.pull(2, **SQL)
    assert broker.offloaded == before + 1


def test_batches_keep_their_limits(reading_broker: Make) -> None:
    broker = reading_broker(enable_property_filter=True)
    put(broker, *range(100))
    answer = broker.caller().pull(0, maxMsgNums=64, **SQL)
    assert bodies(answer) == [b"a%d" % number for number in range(6, 38)]
    assert answer.ext["nextBeginOffset"] == "38"


def test_a_record_that_is_not_what_the_index_says_is_an_error(
    broker: ReadingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, 6)
    read = ConsumeQueue.read

    def shorter(queue: ConsumeQueue, queue_offset: int, count: int) -> list[Entry]:
        return [entry._replace(size=entry.size - 1) for entry in read(queue, queue_offset, count)]

    monkeypatch.setattr(ConsumeQueue, "read", shorter)
    answer = broker.caller().pull(0, **SQL)
    assert (answer.code, "queue says" in (answer.remark or "")) == (1, True)


# Held


def test_a_held_pull_wakes_for_what_it_wants_and_sleeps_on_for_the_rest(broker: ReadingBroker) -> None:
    put(broker, 6)
    caller = broker.caller()
    future = held(broker, caller, 1, **SQL)
    put(broker, 1, 2)
    put(broker, 3)
    assert broker.held() == 1
    put(broker, 8)
    answer = future.result(10)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"a8"], "5")
    assert broker.held() == 0


def test_a_held_pull_that_saw_nothing_it_wants_goes_on_behind_that(broker: ReadingBroker) -> None:
    put(broker, 6)
    caller = broker.caller()
    future = held(broker, caller, 1, suspendTimeoutMillis=700, **SQL)
    put(broker, 1, 2)
    answer = future.result(10)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "3")


@pytest.mark.parametrize("bound", ["MESSAGES_MAX", "TRIES_MAX"])
def test_a_held_pull_passes_over_many_that_come_at_once(
    broker: ReadingBroker, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(judging, bound, 7)
    put(broker, 6)
    caller = broker.caller()
    future = held(broker, caller, 1, **SQL)
    put(broker, *([1] * 100), 7)
    answer = future.result(10)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"a7"], "102")


def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(expression, thread) of each message that is tried from now on."""
    seen: list[tuple[str, str]] = []

    def watched(expression: str) -> Expression:
        compiled = compile_expression(expression)

        def selects(properties: bytes) -> bool:
            seen.append((expression, threading.current_thread().name))
            return compiled.selects(properties)

        return compiled._replace(selects=selects)

    monkeypatch.setattr(consumer_filters, "compile_expression", watched)
    monkeypatch.setattr(consumer_filters, "expressions", Expressions())
    monkeypatch.setattr(message_filter, "expressions", consumer_filters.expressions)
    return seen


def test_each_expression_is_tried_once_a_message_however_many_pulls_wait_for_it(
    broker: ReadingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tried(monkeypatch)
    put(broker, 6)
    callers = [broker.caller() for _ in range(3)]
    pulls = [caller.begin_pull(1, sysFlag=6, **SQL) for caller in callers for _ in range(20)]
    other = callers[0].begin_pull(1, sysFlag=6, expressionType="SQL92", subscription="a > 7")
    wait_until(lambda: broker.held() == 61, "all pulls are held")
    assert seen == []
    for number in range(1, 6):
        put(broker, number)
        wait_until(lambda number=number: len(seen) == 2 * number, "both expressions were tried")  # type: ignore[misc]
    assert {expression for expression, _ in seen} == {"a > 5", "a > 7"}
    assert {thread for _, thread in seen} == {"remoting-aside_0"}
    assert broker.held() == 61
    put(broker, 7)
    assert [bodies(pull.result(30)) for pull in pulls] == [[b"a7"]] * 60
    assert broker.held() == 1
    put(broker, 8)
    answer = other.result(30)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"a8"], "8")


def test_one_job_of_a_queue_is_under_way_at_a_time(broker: ReadingBroker) -> None:
    caller = broker.caller()
    put(broker, 6)
    first = held(broker, caller, 1, **SQL)
    other = held(broker, caller, 0, queue=1, **SQL)
    busy = threading.Event()
    broker.on_loop(lambda: broker.server.offload_aside(busy.wait, 40))
    before = broker.judged
    for number in (1, 2, 3, 4):
        put(broker, number)
        put(broker, number, queue=1)
    wait_until(lambda: broker.judged == before + 2, "a job for each queue")
    assert broker.on_loop(lambda: broker.judged) == before + 2
    busy.set()
    put(broker, 7)
    put(broker, 8, queue=1)
    assert (bodies(first.result(30)), bodies(other.result(30))) == ([b"a7"], [b"a8"])


def test_held_pulls_of_a_group_that_may_not_consume_any_more_are_told(broker: ReadingBroker) -> None:
    put(broker, 6)
    caller = broker.caller()
    subscribe(caller, "a > 5")
    future = caller.begin_pull(1, sysFlag=2, subVersion=1)
    wait_until(lambda: broker.held() == 1, "the pull is held")
    broker.message_filters.configure(dataclasses.replace(broker.config, enable_property_filter=False))
    put(broker, 1)
    assert future.result(30).code == 1


def test_a_held_pull_whose_group_goes_over_to_tags_waits_on_and_gets_them(reading_broker: Make) -> None:
    mark = 0
    broker = reading_broker(enable_property_filter=True, readable_end=lambda: mark)
    put(broker, 6)
    caller = broker.caller()
    subscribe(caller, "a > 5")
    future = caller.begin_pull(0, sysFlag=2, subVersion=1)
    wait_until(lambda: broker.held() == 1, "the pull is held")
    caller.heartbeat("c1", {"G": {"T": "*"}}, version=2)
    put(broker, 1)
    assert broker.held() == 1
    mark = broker.log.end
    broker.polling.on_mark()
    assert bodies(future.result(30)) == [b"a6", b"a1"]


def test_a_held_pull_that_ends_leaves_no_watch(broker: ReadingBroker) -> None:
    put(broker, 6)
    caller = broker.caller()
    held(broker, caller, 1, **SQL)
    watches = broker.polling.judging._watched  # type: ignore[union-attr]
    assert broker.on_loop(lambda: len(watches)) == 1
    caller.close()
    wait_until(lambda: broker.held() == 0, "it is let go")
    assert broker.on_loop(lambda: len(watches)) == 0


def test_a_held_pull_is_judged_by_the_subscription_of_its_group_as_it_is_when_it_wakes(
    broker: ReadingBroker,
) -> None:
    put(broker, 6)
    caller = broker.caller()
    subscribe(caller, "a > 5")
    future = caller.begin_pull(1, sysFlag=2, subVersion=1)
    wait_until(lambda: broker.held() == 1, "the pull is held")
    subscribe(caller, "a < 5", version=2)
    put(broker, 9)
    put(broker, 3)
    assert bodies(future.result(10)) == [b"a3"]


# Below the mark


def test_what_is_not_readable_yet_is_waited_for(reading_broker: Make) -> None:
    mark = 0
    broker = reading_broker(enable_property_filter=True, readable_end=lambda: mark)
    put(broker, 6)
    caller = broker.caller()
    future = held(broker, caller, 0, **SQL)
    mark = broker.log.end
    broker.polling.on_mark()
    assert bodies(future.result(10)) == [b"a6"]


# Refused


def test_what_follows_a_whole_expression_is_refused_unless_a_key_has_it_ignored(
    broker: ReadingBroker,
) -> None:
    put(broker, 1, 6)
    caller = broker.caller()
    tail = {"expressionType": "SQL92", "subscription": "a > 5 LIKE 'x%'"}
    refused = caller.pull(0, **tail)
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "propertyFilterIgnoresTail=true" in (refused.remark or "")
    subscribe(caller, tail["subscription"])
    assert caller.pull(0, sysFlag=0, subVersion=1).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    with pytest.raises(RequestError, match="follows a whole expression"):
        broker.message_filters.check("SQL92", tail["subscription"])
    lax = dataclasses.replace(broker.config, property_filter_ignores_tail=True, enable_property_filter=True)
    broker.message_filters.configure(lax)
    broker.message_filters.check("SQL92", tail["subscription"])
    assert bodies(caller.pull(0, **tail)) == [b"a6"]
    assert bodies(caller.pull(0, sysFlag=0, subVersion=1)) == [b"a6"]


def test_without_enable_property_filter_all_is_refused(reading_broker: Make) -> None:
    broker = reading_broker()
    put(broker, 6)
    caller = broker.caller()
    answer = caller.pull(0, **SQL)
    assert (answer.code, answer.remark) == (
        1,
        "this broker does not filter messages by SQL92 (enablePropertyFilter=false)",
    )
    subscribe(caller, "a > 5")
    assert caller.pull(0, sysFlag=0, subVersion=1).code == 1


def test_it_may_be_enabled_while_consumers_ask(reading_broker: Make) -> None:
    broker = reading_broker()
    put(broker, 1, 6)
    caller = broker.caller()
    subscribe(caller, "a > 5")
    assert caller.pull(0, sysFlag=0, subVersion=1).code == 1
    broker.message_filters.configure(dataclasses.replace(broker.config, enable_property_filter=True))
    assert bodies(caller.pull(0, sysFlag=0, subVersion=1)) == [b"a6"]


def check(caller: Caller, expression: str, expression_type: str = "SQL92") -> RemotingCommand:
    data = {"topic": "T", "subString": expression, "expressionType": expression_type}
    return caller.call(46, body=orjson.dumps({"clientId": "c", "group": "G", "subscriptionData": data}))


def test_a_bad_expression_is_told_before_a_consumer_starts_and_when_it_pulls(broker: ReadingBroker) -> None:
    put(broker, 6)
    caller = broker.caller()
    assert [check(caller, text).code for text in ("a > 5", "a >", "")] == [0, 23, 23]
    assert "expected a value" in (check(caller, "a >").remark or "")
    assert [check(caller, "x", kind).code for kind in ("TAG", "", "REGEX")] == [0, 0, 23]
    assert caller.pull(0, expressionType="SQL92", subscription="a >").code == 23
    assert caller.pull(0, expressionType="REGEX", subscription="a").code == 23
    subscribe(caller, "a >")
    answer = caller.pull(0, sysFlag=0, subVersion=1)
    assert (answer.code, "may be wrong: a >" in (answer.remark or "")) == (
        ResponseCode.FILTER_DATA_NOT_EXIST,
        True,
    )


def test_a_filter_older_than_the_pull_is_refused(broker: ReadingBroker) -> None:
    put(broker, 6)
    caller = broker.caller()
    subscribe(caller, "a > 5")
    assert bodies(caller.pull(0, sysFlag=0, subVersion=1)) == [b"a6"]
    assert caller.pull(0, sysFlag=0, subVersion=2).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    # The group's subscription is newer than what is known of its filter: it does not compile.
    subscribe(caller, "a > 6", version=2)
    subscribe(caller, "a >", version=3)
    assert caller.pull(0, sysFlag=0, subVersion=3).code == ResponseCode.FILTER_DATA_NOT_EXIST


# Retries


@pytest.mark.parametrize("supports", [False, True])
def test_a_message_that_was_sent_back_is_judged_by_its_old_topic_only_if_so_configured(
    reading_broker: Make, supports: bool
) -> None:
    broker = reading_broker(enable_property_filter=True, filter_support_retry=supports)
    caller = broker.caller()
    subscribe(caller, "a > 5", topics=("T", "U"))
    put(broker, 1, 6, topic=RETRIES, RETRY_TOPIC="T")
    put(broker, 2, topic=RETRIES, RETRY_TOPIC="Elsewhere")
    wanted = [b"a6", b"a2"] if supports else [b"a1", b"a6", b"a2"]
    assert bodies(caller.pull(0, topic=RETRIES)) == wanted
    # Tags go on counting.
    assert caller.pull(0, topic=RETRIES, subscription="none").code == 20


def test_a_slave_filters_alike(reading_broker: Make) -> None:
    broker = reading_broker(role=BrokerRole.SLAVE, enable_property_filter=True)
    put(broker, 1, 6)
    assert bodies(broker.caller().pull(0, **SQL)) == [b"a6"]


def long_expression(number: int = 0) -> str:
    """One that takes a while to compile, and takes `a > 5` messages."""
    return f"a > 5 AND b{number} IS NULL AND (" + " OR ".join(f"c{part} IS NULL" for part in range(500)) + ")"


def counting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(expression, thread) of each that is compiled from now on."""
    compiled: list[tuple[str, str]] = []

    def compile_it(expression: str) -> Expression:
        compiled.append((expression, threading.current_thread().name))
        return compile_expression(expression)

    monkeypatch.setattr(consumer_filters, "compile_expression", compile_it)
    return compiled


def test_nothing_is_compiled_while_filters_are_off(
    reading_broker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = counting(monkeypatch)
    broker = reading_broker()
    put(broker, 1, 6)
    caller = broker.caller()
    subscribe(caller, "a > 5 AND off IS NULL")
    assert (caller.pull(0, sysFlag=0, subVersion=1).code, compiled) == (1, [])


def test_the_last_subscription_of_a_topic_is_compiled_and_no_other(
    broker: ReadingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = counting(monkeypatch)
    subscriptions = [
        {
            "topic": "T",
            "subString": f"a > {number} AND last IS NULL",
            "expressionType": "SQL92",
            "subVersion": number,
        }
        for number in range(1, 5)
    ]
    broker.caller().heartbeat("c1", {"G": {}}, subscriptionDataSet=subscriptions)
    assert [expression for expression, _ in compiled] == ["a > 4 AND last IS NULL"]


def test_a_long_expression_is_compiled_by_a_work_thread(
    broker: ReadingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = counting(monkeypatch)
    put(broker, 1, 6)
    caller = broker.caller()
    subscribe(caller, long_expression(1))
    assert bodies(caller.pull(0, sysFlag=0, subVersion=1)) == [b"a6"]
    assert bodies(caller.pull(0, expressionType="SQL92", subscription=long_expression(2))) == [b"a6"]
    assert check(caller, long_expression(3)).code == 0
    assert [thread.startswith("remoting-work") for _, thread in compiled] == [True] * 3
    subscribe(broker.caller(), long_expression(1), version=2)
    assert len(compiled) == 3


def test_who_leaves_while_its_expression_is_compiled_has_left(
    broker: ReadingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def compile_it(expression: str) -> Expression:
        begun.set()
        assert may_end.wait(60)
        return compile_expression(expression)

    monkeypatch.setattr(consumer_filters, "compile_expression", compile_it)
    caller = broker.caller()
    with ThreadPoolExecutor(1) as pool:
        joins = pool.submit(subscribe, caller, long_expression(5))
        assert begun.wait(60)
        assert caller.call(35, {"clientID": "c1", "producerGroup": "", "consumerGroup": "G"}).code == 0
        may_end.set()
        joins.result(60)
    assert "no consumer for this group" in (caller.call(38, {"consumerGroup": "G"}).remark or "")


def test_a_connection_may_bring_so_much_to_be_compiled(broker: ReadingBroker) -> None:
    caller = broker.caller()
    for number in range(200):
        answer = caller.heartbeat("c1", {f"G{number}": {}}, subscriptionDataSet=[
            {"topic": "T", "subString": long_expression(number + 10), "expressionType": "SQL92", "subVersion": 1}
        ])  # fmt: skip
        if answer.code:
            break
    assert 20 < number < 199
    assert "a connection may bring 262144, and 4096 more each second" in (answer.remark or "")
    broker.now_s += 60
    assert not broker.caller().heartbeat("c2", {"G": {}}).code
    assert not caller.heartbeat("c1", {"Again": {}}, subscriptionDataSet=[
        {"topic": "T", "subString": long_expression(999), "expressionType": "SQL92", "subVersion": 1}
    ]).code  # fmt: skip
