"""Transactions from outside: half messages, their ends, the questions, and what survives."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.errors import LogNotWritable
from commitlog.kernel.records import NewMessage, decode_properties
from commitlog.store import Store
from haservice.broker.delay.redirect import CHECK_TIMES
from haservice.broker.node import BrokerNode
from haservice.broker.topics.table import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from haservice.broker.transactions.check import Question, TransactionCheck, question_of
from haservice.broker.transactions.check_round import Limits, TransactionRules
from haservice.broker.transactions.half_messages import GROUP, Ends
from haservice.configuration.settings import BrokerRole
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import PromoteHeader
from haservice.remoting.headers.transactions import ResumeCheckHalfMessageHeader
from tests.support.brokers import LOOPBACK, addr_of, send
from tests.support.half_messages import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Sent,
    TransactionPeer,
    ended_of,
    halves_of,
    let_halves_age,
    messages_of,
    place_of,
)
from tests.support.waiting import wait_until

Starter = Callable[..., BrokerNode]


def check(node: BrokerNode) -> None:
    """One round of the check, in which everything that is stored now is old enough to be looked at."""
    wait_until(lambda: node.store.dispatcher.behind == 0, "all is dispatched")
    now_ms = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > now_ms, "the next millisecond")
    assert node.transaction_check.round(threading.Event()) is False
    node.store.log.flush()
    node.transaction_check.settle()


def write_again(node: BrokerNode) -> None:
    """From the first round on, each open message is written again, as if there were no room for any in place."""
    node.transaction_check._limits = Limits(open_max=0)


def bodies(node: BrokerNode, topic: str = "T", queue_id: int = 1) -> list[bytes]:
    return [message.body for message in messages_of(node, topic, queue_id)]


# Ends


def test_a_commit_delivers_what_the_half_message_was(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half(body=b"b", TAGS="tag", KEYS="k")
        assert bodies(node) == []
        assert peer.end(half, COMMIT).code == 0
    (stored,) = halves_of(node)
    (final,) = messages_of(node, "T", 1)
    assert (final.body, final.flag, final.born_timestamp_ms) == (b"b", stored.flag, stored.born_timestamp_ms)
    assert (final.born_host, final.sys_flag & 0xC) == (stored.born_host, 8)
    assert final.prepared_transaction_offset == half.physical_offset
    assert decode_properties(final.properties) == decode_properties(stored.properties)
    assert decode_properties(final.properties)["TAGS"] == "tag"
    assert ended_of(node) == [b"0"]


def test_a_commit_goes_where_consumers_read_though_the_topic_has_fewer_queues_by_now(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half(body=b"b")
        topic = node.topics.get("T")
        assert topic is not None
        node.topics.update(dataclasses.replace(topic, read_queue_nums=1, write_queue_nums=1))
        assert peer.end(half, COMMIT).code == 0
    assert (bodies(node), bodies(node, queue_id=0)) == ([], [b"b"])


def test_a_rollback_delivers_nothing(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        peer.send_half(body=b"stays open")
        half = peer.send_half(body=b"b")
        assert peer.end(half, ROLLBACK).code == 0
    assert bodies(node) == []
    assert ended_of(node) == [b"1"]


def test_unknown_is_not_even_answered(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half()
        peer.send(
            RemotingCommand(RequestCode.END_TRANSACTION, peer.end_request(half, UNKNOWN), opaque=7),
            RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=8),
        )
        assert peer.receive().opaque == 8
    assert ended_of(node) == []


def test_a_oneway_end_is_carried_out_and_not_answered(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half()
        ext = peer.end_request(half, COMMIT)
        peer.send(RemotingCommand.request(RequestCode.END_TRANSACTION, ext, oneway=True))
        wait_until(lambda: ended_of(node) == [b"0"], "it is carried out")
        assert peer.request(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
    assert bodies(node) == [b"half"]


@pytest.mark.parametrize(
    ("decision", "place", "fields", "remark"),
    [
        (COMMIT, None, {"producer_group": "Q"}, "another producer group"),
        (ROLLBACK, None, {"tran_state_table_offset": 7}, "queue offset 0, not 7"),
        (COMMIT, Sent(0, 1 << 40), {}, "no half message at offset 1099511627776"),
        (COMMIT, Sent(0, 8), {}, "no half message at offset 8"),
        (COMMIT, Sent(0, -1), {}, "no half message at offset -1"),
        (5, None, {}, "neither 0 nor 8 nor 12"),
    ],
)
def test_an_end_that_fits_no_half_message_is_refused(
    start: Starter, decision: int, place: Sent | None, fields: dict[str, Any], remark: str
) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half()
        answer = peer.end(place or half, decision, **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")
    assert (bodies(node), ended_of(node)) == ([], [])


def test_a_delivered_message_is_no_half_message(start: Starter) -> None:
    """RocketMQ takes its place for a half message's, and delivers it again."""
    node = start()
    with TransactionPeer(node) as peer:
        peer.end(peer.send_half(), COMMIT)
        (final,) = messages_of(node, "T", 1)
        answer = peer.end(Sent(final.queue_offset, final.physical_offset), COMMIT)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert bodies(node) == [b"half"]


def test_an_end_that_comes_twice_is_carried_out_once(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half()
        assert [peer.end(half, COMMIT).code for _ in range(3)] == [0, 0, 0]
        answer = peer.end(half, ROLLBACK)
        assert (answer.code, answer.remark) == (1, "the transaction has ended already, with commit")
        other = peer.send_half(body=b"other")
        assert [peer.end(other, ROLLBACK).code, peer.end(other, COMMIT).code] == [0, 1]
    assert (bodies(node), ended_of(node)) == ([b"half"], [b"0", b"1"])


def test_an_end_that_comes_again_after_a_restart_is_carried_out_once(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half()
        assert peer.end(half, COMMIT).code == 0
    node.stop()
    node = start(port=node.config.remoting.listen_port)
    with TransactionPeer(node) as peer:
        assert peer.end(half, COMMIT).code == 0
    assert bodies(node) == [b"half"]


def test_a_commit_that_cannot_be_stored_leaves_the_message_open(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    append = node.store.log.append

    def full(message: NewMessage) -> Any:
        if message.topic == "T":
            raise LogNotWritable("the disk is full")
        return append(message)

    with TransactionPeer(node) as peer:
        half = peer.send_half()
        monkeypatch.setattr(node.store.log, "append", full)
        answer = peer.end(half, COMMIT)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert ended_of(node) == []
        monkeypatch.undo()
        check(node)
        header, _ = peer.question()
        assert peer.end(place_of(header), COMMIT).code == 0
    assert bodies(node) == [b"half"]


def test_a_stopping_broker_takes_no_ends(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half()
        node.sends.refuse_all = "the broker is shutting down"
        assert peer.end(half, COMMIT).code == ResponseCode.SERVICE_NOT_AVAILABLE
        node.sends.refuse_all = None
    assert bodies(node) == []


# Questions


def test_a_message_without_room_for_the_marks_of_the_check_stops_no_other(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    """Its properties are within a few bytes of the limit; each round ended there."""
    node = start()
    with TransactionPeer(node) as peer:
        peer.send_half(body=b"small")
        (small,) = halves_of(node)
        peer.send_half(body=b"large", FILL="x" * (32767 - len(small.properties) - len("FILL") - 2))
        peer.send_half(body=b"behind")
        assert len(halves_of(node)[1].properties) == 32767
        for _ in range(2):
            check(node)
            asked = [peer.question() for _ in range(3)]
            assert [message.body for _, message in asked] == [b"small", b"large", b"behind"]
        assert peer.end(place_of(asked[1][0]), COMMIT).code == 0
        assert peer.end(place_of(asked[2][0]), COMMIT).code == 0
    assert bodies(node) == [b"large", b"behind"]
    assert "transaction check stopped" not in caplog.text


def test_an_error_at_one_half_message_stops_no_other(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = start()

    def broken(step: Any, place: Any) -> Question:
        if step.half.body == b"bad":
            raise KeyError("whatever is wrong with it")
        return question_of(step, place)

    monkeypatch.setattr("haservice.broker.transactions.check.question_of", broken)
    with TransactionPeer(node) as peer:
        for body in (b"bad", b"good"):
            peer.send_half(body=body)
        check(node)
        assert peer.question()[1].body == b"good"
    assert "half message passed over in this round half_offset=0" in caplog.text
    assert node.transaction_check._walk is not None
    assert node.transaction_check._walk.open_count == 2  # it is asked about again, and discarded by the rules


def test_the_producer_is_asked_and_its_answer_carried_out(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half(body=b"b", KEYS="k")
        check(node)
        header, message = peer.question()
        assert (message.topic, message.queue_id, message.body) == ("T", 1, b"b")
        assert (header.msg_id, header.transaction_id) == ("b", "b")
        assert header.offset_msg_id == message.message_id
        properties = decode_properties(message.properties)
        assert (properties["KEYS"], properties[CHECK_TIMES]) == ("k", "1")
        assert (message.queue_offset, message.physical_offset) == place_of(header) == half
        assert peer.end(half, COMMIT, from_transaction_check=True).code == 0
        for _ in range(3):
            check(node)
        assert peer.asked == []
    assert bodies(node) == [b"b"]
    assert node.offsets.query(GROUP, HALF_TOPIC, 0) == 1
    assert node.offsets.query(GROUP, OP_HALF_TOPIC, 0) == 1


def test_what_is_written_again_is_asked_about_where_it_is_then(start: Starter) -> None:
    node = start()
    write_again(node)
    with TransactionPeer(node) as peer:
        half = peer.send_half(body=b"b")
        check(node)
        header, message = peer.question()
        copy = place_of(header)
        assert (message.queue_offset, message.physical_offset) == copy
        assert copy != half
        assert peer.end(copy, COMMIT, from_transaction_check=True).code == 0
        for _ in range(3):
            check(node)
        assert peer.asked == []
    assert bodies(node) == [b"b"]
    assert node.offsets.query(GROUP, HALF_TOPIC, 0) == 2
    assert node.offsets.query(GROUP, OP_HALF_TOPIC, 0) == 1


def test_a_round_writes_nothing_for_what_stays_open(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        for number in range(30):
            peer.send_half(body=b"%d" % number)
        check(node)
        end = node.store.log.end
        for asked_before in (1, 2):
            check(node)
            assert node.store.log.end == end
            assert node.offsets.query(GROUP, HALF_TOPIC, 0) == 0, "whoever goes on begins with the oldest"
            times = [decode_properties(peer.question()[1].properties)[CHECK_TIMES] for _ in range(30)]
            assert times == [str(asked_before)] * 30


def test_a_young_message_is_not_asked_about(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        peer.send_half(age_ms=0)
        peer.send_half(body=b"immune", age_ms=7000, CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        check(node)
        assert peer.request(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
        assert peer.asked == []


def test_the_first_commit_still_counts_after_a_question(start: Starter) -> None:
    """It was on its way when the broker asked.  RocketMQ delivers such a message twice."""
    node = start()
    with TransactionPeer(node) as peer:
        half = peer.send_half()
        check(node)
        header, _ = peer.question()
        assert peer.end(half, COMMIT).code == 0
        assert peer.end(place_of(header), COMMIT).code == 0
        check(node)
        check(node)
        assert peer.request(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
        assert peer.asked == []
    assert bodies(node) == [b"half"]


def test_a_commit_under_immunity_counts_for_the_copy(start: Starter) -> None:
    """RocketMQ forgets it, asks once the immunity is over, and delivers a second time."""
    node = start()
    write_again(node)
    with TransactionPeer(node) as peer:
        half = peer.send_half(CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        check(node)
        assert len(halves_of(node)) == 2
        assert peer.end(half, COMMIT).code == 0
    node.stop()
    node = start(port=node.config.remoting.listen_port)
    write_again(node)
    check(node)
    assert len(halves_of(node)) == 2, "it is not put back again"
    assert node.offsets.query(GROUP, HALF_TOPIC, 0) == 2
    assert bodies(node) == [b"half"]


def test_producers_of_a_group_are_asked_in_turn(start: Starter) -> None:
    node = start()
    with TransactionPeer(node, client_id="a") as one, TransactionPeer(node, client_id="b") as other:
        for number in range(10):
            one.send_half(body=b"%d" % number)
        check(node)
        for peer in (one, other):
            for _ in range(5):
                peer.question()


def test_many_messages_are_asked_about_in_one_round(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        count = 200
        for number in range(count):
            peer.send_half(body=b"%d" % number)
        check(node)
        seen = [peer.question() for _ in range(count)]
        assert [message.body for _, message in seen] == [b"%d" % number for number in range(count)]
        for header, _ in seen:
            assert peer.end(place_of(header), COMMIT).code == 0
    assert len(bodies(node)) == count


def test_who_comes_later_is_asked_later(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        peer.send_half()
    wait_until(lambda: not node.clients.producers, "the producer has gone")
    check(node)
    with TransactionPeer(node) as peer:
        check(node)
        _, message = peer.question()
        assert decode_properties(message.properties)[CHECK_TIMES] == "2"


def test_what_was_asked_too_often_is_discarded_and_can_be_resumed(start: Starter) -> None:
    node = start(broker={"transaction_check_max": 2})
    with TransactionPeer(node) as peer:
        peer.send_half(body=b"b")
        check(node)
        check(node)
        assert messages_of(node, CHECK_MAX_TIME_TOPIC) == []
        check(node)
        for _ in range(2):
            peer.question()
        (discarded,) = messages_of(node, CHECK_MAX_TIME_TOPIC)
        assert discarded.body == b"b"
        assert node.topics.get(CHECK_MAX_TIME_TOPIC) is not None
        check(node)
        assert peer.request(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
        assert peer.asked == []
        resume = ResumeCheckHalfMessageHeader(discarded.message_id).encode()
        assert peer.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume).code == 0
        check(node)
        header, message = peer.question()
        assert decode_properties(message.properties)[CHECK_TIMES] == "1"
        assert peer.end(place_of(header), COMMIT).code == 0
    assert bodies(node) == [b"b"]


@pytest.mark.parametrize(
    ("message_id", "remark"), [("nonsense", "hex"), ("7F00000100002A9F00000000000000FF", "no message")]
)
def test_only_what_there_is_can_be_resumed(start: Starter, message_id: str, remark: str) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        resume = ResumeCheckHalfMessageHeader(message_id).encode()
        answer = peer.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")


def test_a_copy_that_cannot_be_stored_is_tried_again(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    node = start()
    write_again(node)

    def full(message: NewMessage) -> Any:
        raise LogNotWritable("the disk is full")

    with TransactionPeer(node) as peer:
        peer.send_half()
        monkeypatch.setattr(node.store.log, "append", full)
        check(node)
        assert not node.offsets.query(GROUP, HALF_TOPIC, 0)
        monkeypatch.undo()
        check(node)
        peer.question()


def test_the_thread_asks_by_itself_as_often_as_the_configuration_says_now(start: Starter) -> None:
    node = start()
    node.server.call_soon(node.live.apply, node.live.change("transactionCheckInterval=20"))
    with TransactionPeer(node) as peer:
        peer.send_half()
        header, _ = peer.question()
        assert peer.end(place_of(header), COMMIT).code == 0
    wait_until(lambda: bodies(node) == [b"half"], "it is delivered")


# What survives


def test_open_transactions_survive_a_restart(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        ended = peer.send_half(body=b"ended")
        peer.end(ended, COMMIT)
        half = peer.send_half(body=b"open")
        peer.send_half(body=b"asked")
    node.stop()
    node = start(port=node.config.remoting.listen_port)
    with TransactionPeer(node) as peer:
        assert peer.end(half, COMMIT).code == 0
        check(node)
        _, message = peer.question()
        assert message.body == b"asked"
    assert bodies(node) == [b"ended", b"open"]


def test_a_promoted_slave_goes_on_with_them(start: Starter) -> None:
    master = start("a", role=BrokerRole.SYNC_MASTER)
    slave = start(
        "a-s", role=BrokerRole.SLAVE, replication={"master_address": f"{LOOPBACK}:{master.ha.port}"}
    )
    wait_until(lambda: master.ha.is_slave_ok(0), "the slave is there")
    with TransactionPeer(master) as peer:
        half = peer.send_half(body=b"open")
        peer.send_half(body=b"asked")
        check(master)
        for _ in range(2):
            peer.question()
        end = master.store.log.end
    wait_until(lambda: slave.store.log.end == end, "the slave has it")
    master.stop()
    slave.stop()
    promoted = start("a-s", port=slave.config.remoting.listen_port)
    promoted.standing.ask(
        PromoteHeader(force=True, min_epoch=1000)
    )  # its file alone makes no master of a slave
    with TransactionPeer(promoted) as peer:
        assert peer.end(half, COMMIT).code == 0
        check(promoted)
        asked = [peer.question()[1].body for _ in range(1)]
    assert asked == [b"asked"]
    assert bodies(promoted) == [b"open"]


def test_nothing_counts_as_open_while_queues_lack_what_a_crash_left_in_the_log(start: Starter) -> None:
    node = start()
    with TransactionPeer(node) as peer:
        peer.send_half()
    assert len(halves_of(node)) == 1
    behind = SimpleNamespace(
        log=node.store.log,
        queues=node.store.queues,
        mender=node.store.mender,
        dispatcher=SimpleNamespace(position=0),
    )
    asked: list[Question] = []

    def hand_over(questions: Sequence[Question], taken: Callable[[], None]) -> None:
        asked.extend(questions)
        taken()

    transactions = TransactionCheck(
        cast(Store, behind),
        node.offsets,
        node.topics,
        TransactionRules.of(node.config),
        ends=Ends(),
        interval_s=60,
        hand_over=hand_over,
    )
    let_halves_age(node)
    transactions.round(threading.Event())
    assert (asked, len(halves_of(node))) == ([], 1)
    behind.dispatcher.position = node.store.log.end
    transactions.round(threading.Event())
    assert (len(asked), len(halves_of(node))) == (1, 1)


def test_progress_is_kept_once_the_log_is_on_the_disk_and_with_the_slave(start: Starter) -> None:
    node = start(log={"flush_interval_ms": 3_600_000, "flush_thorough_interval_ms": 3_600_000})
    write_again(node)
    slaves = [-1]
    node.transaction_check._slaves_have = lambda: slaves[0]
    with TransactionPeer(node) as peer:
        peer.send_half()
    let_halves_age(node)
    assert node.transaction_check.round(threading.Event()) is False
    assert len(halves_of(node)) == 2
    settle = node.transaction_check.settle
    settle()
    assert node.offsets.query(GROUP, HALF_TOPIC, 0) is None, "the copy is not on the disk"
    node.store.log.flush()
    slaves[0] = node.store.log.end - 1
    settle()
    assert node.offsets.query(GROUP, HALF_TOPIC, 0) is None, "the slave does not have it"
    slaves[0] += 1
    settle()
    assert node.offsets.query(GROUP, HALF_TOPIC, 0) == 1


def test_a_clean_stop_keeps_progress(start: Starter) -> None:
    node = start(broker={"transaction_check_interval_ms": 20}, log={"flush_interval_ms": 3_600_000})
    with TransactionPeer(node) as peer:
        peer.send_half()
        header, _ = peer.question()
        peer.end(place_of(header), ROLLBACK)
        wait_until(lambda: node.transaction_check._reached == (1, 1), "a round has passed it")
    assert not node.offsets.query(GROUP, HALF_TOPIC, 0)
    node.stop()
    assert node.offsets.query(GROUP, HALF_TOPIC, 0) == 1


def test_a_slave_ends_nothing(start: Starter, client: BlockingClient) -> None:
    node = start(role=BrokerRole.SLAVE)
    with TransactionPeer(node) as peer:
        answer = peer.end(Sent(0, 0), COMMIT)
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert "transaction-check" not in {thread.name for thread in threading.enumerate()}


def test_an_end_waits_for_the_slave_but_is_no_failure_without_it(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(role=BrokerRole.SYNC_MASTER, replication={"slave_timeout_ms": 3_600_000})
    with TransactionPeer(node) as peer:
        half, other = peer.send_half(), peer.send_half(body=b"other")
        assert peer.end(half, COMMIT).code == 0, "there is no slave to wait for"
        node.durability.configure(flush_timeout_s=0.3, replica_timeout_s=0.3)
        monkeypatch.setattr(node.ha, "is_slave_ok", lambda end: True)
        began = time.monotonic()
        assert peer.end(other, COMMIT).code == 0
        assert time.monotonic() - began >= 0.25


def test_a_message_that_belongs_nowhere_is_discarded(start: Starter, client: BlockingClient) -> None:
    """No sender can do that; a damaged property can."""
    node = start()
    node.store.log.append(NewMessage(HALF_TOPIC, 0, b"b", b"PGROUP\x01P", born_timestamp_ms=1))
    with TransactionPeer(node) as peer:
        answer = peer.end(Sent(0, 0), COMMIT)
        assert answer.code == ResponseCode.SYSTEM_ERROR
    check(node)
    assert [message.body for message in messages_of(node, CHECK_MAX_TIME_TOPIC)] == [b"b"]
    assert send(client, addr_of(node)).code == 0
