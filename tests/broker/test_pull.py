"""PULL_MESSAGE as a client sees it: checks in their order, messages, holding, slaves, cold reads."""

from __future__ import annotations

import dataclasses
import errno
import gc
import socket
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from commitlog.disk.files import OSFiles
from commitlog.kernel import native
from commitlog.kernel.layout import AT
from commitlog.kernel.records import NewMessage, decode, encode_properties
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.pull.offset_moved import OffsetMoved
from haservice.broker.pull.reader import PullReader, ReadLimits
from haservice.broker.topics.table import topic_config
from haservice.configuration.settings import BrokerRole
from haservice.deadline import Deadline
from haservice.remoting.command import RemotingCommand, encode
from haservice.service import Service
from tests.support.flips import flip
from tests.support.reading_broker import ReadingBroker, bodies, messages
from tests.support.waiting import wait_until

Make = Callable[..., ReadingBroker]

HOLD = 2 | 4
SQL = {"subscription": "TAGS = 'red'", "expressionType": "SQL92"}
SLAVE = BrokerRole.SLAVE


def header(answer: RemotingCommand) -> tuple[int, int, int, int]:
    """suggestWhichBrokerId, nextBeginOffset, minOffset, maxOffset: all four, always."""
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    assert set(answer.ext) == set(names)
    return tuple(int(answer.ext[name]) for name in names)  # type: ignore[return-value]


def test_messages_come_back_byte_for_byte(reading_broker: Make) -> None:
    broker = reading_broker()
    sent = [b"a", b"b" * 5000, b"", bytes(range(256)) * 40]
    places = [broker.put(body, tag="red", keys="k1 k2", unique=f"U{n}") for n, body in enumerate(sent)]
    broker.put(b"elsewhere", queue=1)
    broker.dispatch()
    answer = broker.caller().pull(0)
    assert (answer.code, answer.remark, header(answer)) == (0, "FOUND", (0, 4, 0, 4))
    assert bodies(answer) == sent
    assert bytes(answer.body) == b"".join(broker.log.read_record(place) for place in places)
    first = messages(answer)[0]
    assert (first.topic, first.queue_id, first.queue_offset) == ("T", 0, 0)
    assert first.properties == encode_properties({"TAGS": "red", "KEYS": "k1 k2", "UNIQ_KEY": "U0"})


def test_a_client_that_pulls_on_gets_every_message_once(reading_broker: Make) -> None:
    broker = reading_broker()
    for number in range(500):
        broker.put(b"%d" % number, queue=number % 4)
    broker.dispatch()
    caller = broker.caller()
    for queue in range(4):
        offset, got = 0, []
        while (answer := caller.pull(offset, queue=queue, maxMsgNums=13)).code == 0:
            got += [int(body) for body in bodies(answer)]
            offset = header(answer)[1]
        assert got == list(range(queue, 500, 4))
        assert (answer.code, offset) == (19, 125)


def test_messages_of_queues_that_interleave_over_segments(reading_broker: Make) -> None:
    broker = reading_broker()
    sent: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(60):
        body = b"%03d" % number + bytes(number * 977 % 60_000)
        sent[number % 2].append(body)
        broker.put(body, queue=number % 2)
    broker.dispatch()
    assert broker.log.end > 1 << 20
    caller = broker.caller()
    for queue, wanted in sent.items():
        got: list[bytes] = []
        while (answer := caller.pull(len(got), queue=queue)).code == 0:
            got += bodies(answer)
        assert got == wanted


def test_numbers_and_booleans_in_the_header_are_read_as_text(reading_broker: Make) -> None:
    """The old C++ client writes JSON numbers."""
    broker = reading_broker()
    broker.fill(3)
    ext: dict[str, Any] = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 6,
        "commitOffset": 0, "suspendTimeoutMillis": 20000, "subscription": "*", "subVersion": 0,
        "OnsChannel": "ALIYUN", "AccessKey": "",
    }  # fmt: skip
    answer = broker.caller().call(11, ext)
    assert (answer.code, len(bodies(answer))) == (0, 2)


@pytest.mark.parametrize(
    ("offset", "code", "remark", "next_offset"),
    [
        (-5, 21, "OFFSET_TOO_SMALL", 0),
        (5, 19, "OFFSET_OVERFLOW_ONE", 5),
        (6, 21, "OFFSET_OVERFLOW_BADLY", 5),
        (2**62, 21, "OFFSET_OVERFLOW_BADLY", 5),
    ],
)
def test_an_offset_outside_of_the_queue_is_corrected(
    reading_broker: Make, offset: int, code: int, remark: str, next_offset: int
) -> None:
    broker = reading_broker()
    broker.fill(5)
    answer = broker.caller().pull(offset)
    assert (answer.code, answer.remark, header(answer)) == (code, remark, (0, next_offset, 0, 5))
    assert len(answer.body) == 0
    if code == 21:
        assert broker.moved == [OffsetMoved("G", "T", 0, offset, next_offset)]


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (3, 21)])
def test_a_queue_without_messages(reading_broker: Make, offset: int, code: int) -> None:
    answer = reading_broker().caller().pull(offset)
    assert (answer.code, answer.remark) == (code, "NO_MATCHED_LOGIC_QUEUE")
    assert header(answer) == (0, 0, 0, 0)


@pytest.mark.parametrize("offset", [-5, 6, 2**62])
def test_a_slave_never_moves_a_consumer(reading_broker: Make, offset: int) -> None:
    broker = reading_broker(role=SLAVE)
    broker.fill(5)
    answer = broker.caller().pull(offset)
    assert (answer.code, header(answer)) == (20, (0, offset, 0, 5))
    assert broker.moved == []
    assert broker.caller().pull(7, queue=3).code == 20
    assert broker.caller().pull(0, queue=3).code == 19


def test_a_slave_that_checks_offsets_answers_as_a_master(reading_broker: Make) -> None:
    broker = reading_broker(role=SLAVE, offset_check_in_slave=True)
    broker.fill(5)
    answer = broker.caller().pull(9)
    assert (answer.code, header(answer)[1]) == (21, 5)


def test_a_slave_serves_messages_and_stores_no_commits_of_pulls(reading_broker: Make) -> None:
    broker = reading_broker(role=SLAVE)
    broker.fill(5)
    answer = broker.caller().pull(0, sysFlag=5, commitOffset=3)
    assert (answer.code, len(bodies(answer))) == (0, 5)
    assert broker.offsets.query("G", "T", 0) is None


def test_a_pull_on_a_master_commits_when_it_says_so(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(5)
    caller = broker.caller()
    caller.pull(0, commitOffset=2)
    assert broker.offsets.query("G", "T", 0) is None
    caller.pull(0, sysFlag=5, commitOffset=2)
    assert broker.offsets.query("G", "T", 0) == 2


# The checks, in their order


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Nowhere"}, 17),
        ({"topic": "../../x"}, 17),
        ({"topic": ""}, 17),
        ({"queue": 4}, 1),
        ({"queue": -1}, 1),
        ({"consumerGroup": ""}, 26),
        ({"consumerGroup": "no such group!"}, 26),
        ({"consumerGroup": "g" * 256}, 1),
        ({"subscription": "||"}, 23),
        ({"subscription": " || "}, 23),
        ({"subscription": "x" * 9000}, 23),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, 1),
        ({"expressionType": "SQL92", "subscription": ""}, 23),
        ({"expressionType": "REGEX"}, 1),
        ({"sysFlag": 0}, 24),
        ({"queueOffset": "abc"}, 1),
        ({"queueOffset": None}, 1),
        ({"queueOffset": 2**70}, 1),
        ({"consumerGroup": None}, 1),
    ],
)
def test_what_may_not_be_served_is_refused_with_its_code(
    reading_broker: Make, fields: dict[str, Any], code: int
) -> None:
    broker = reading_broker()
    broker.fill(1)
    caller = broker.caller()
    answer = caller.pull(0, **fields)
    assert (answer.code, bool(answer.remark), len(answer.body)) == (code, True, 0)
    assert caller.pull(0).code == 0  # the connection lives


def test_permissions_come_before_everything_else(reading_broker: Make) -> None:
    assert reading_broker(permission=2).caller().pull(0, topic="Nowhere").code == 16
    broker = reading_broker()
    broker.topics.update(topic_config("W", 4, 2))
    assert broker.caller().pull(0, topic="W", queue=99).code == 16


def test_without_automatic_groups_only_those_of_the_system_exist(reading_broker: Make) -> None:
    broker = reading_broker(auto_create_subscription_group=False)
    broker.fill(1)
    caller = broker.caller()
    assert caller.pull(0).code == 26
    assert caller.pull(0, consumerGroup="TOOLS_CONSUMER").code == 0
    assert caller.pull(0, consumerGroup="CID_RMQ_SYS_X").code == 0


def test_a_group_that_may_not_consume(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(1)
    broker.groups.find = lambda name: dataclasses.replace(GroupConfig("G"), consume_enable=False)  # type: ignore[method-assign]
    assert broker.caller().pull(0).code == 16


def test_the_subscription_of_the_group_is_what_a_heartbeat_said(reading_broker: Make) -> None:
    broker = reading_broker()
    for tag in ("red", "blue", "red"):
        broker.put(tag.encode(), tag=tag)
    broker.dispatch()
    caller = broker.caller()
    assert caller.pull(0, sysFlag=0).code == 24
    caller.heartbeat("c1", {"G": {"Other": "*"}}, version=7)
    assert caller.pull(0, sysFlag=0).code == 24
    caller.heartbeat("c1", {"G": {"T": "red"}}, version=7)
    assert bodies(caller.pull(0, sysFlag=0, subVersion=7)) == [b"red", b"red"]
    assert caller.pull(0, sysFlag=0, subVersion=8).code == 25


def test_a_broadcasting_group_may_be_refused(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(1)
    caller = broker.caller()
    caller.heartbeat("c1", {"G": {"T": "*"}}, messageModel="BROADCASTING")
    assert caller.pull(0, sysFlag=0).code == 0
    refusing = dataclasses.replace(GroupConfig("G"), consume_broadcast_enable=False)
    broker.groups.find = lambda name: refusing  # type: ignore[method-assign]
    assert caller.pull(0, sysFlag=0).code == 16


# Filters


@pytest.mark.parametrize("everything", ["*", "", None])
def test_all_messages_pass_without_tags(reading_broker: Make, everything: str | None) -> None:
    broker = reading_broker()
    broker.put(b"1", tag="red")
    broker.put(b"2")
    broker.dispatch()
    assert bodies(broker.caller().pull(0, subscription=everything)) == [b"1", b"2"]


def test_tags_filter_on_the_broker(reading_broker: Make) -> None:
    broker = reading_broker()
    for number, tag in enumerate(["red", "", "grün", "blue", "grün", "red"]):
        broker.put(b"%d" % number, tag=tag)
    broker.dispatch()
    caller = broker.caller()
    answer = caller.pull(0, subscription=" red ||  grün||")
    assert (bodies(answer), header(answer)[1]) == ([b"0", b"2", b"4", b"5"], 6)
    answer = caller.pull(0, subscription="violet")
    assert (answer.code, answer.remark, header(answer)) == (20, "NO_MATCHED_MESSAGE", (0, 6, 0, 6))


# Holding


def test_a_held_pull_is_answered_when_a_message_arrives(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(3)
    caller = broker.caller()
    pull = caller.begin_pull(3, sysFlag=HOLD)
    wait_until(broker.held, "pull is held")
    broker.put(b"new")
    assert not pull.done()
    broker.dispatch()
    answer = pull.result(10)
    assert (answer.code, bodies(answer), header(answer)) == (0, [b"new"], (0, 4, 0, 4))
    assert broker.held() == 0


@pytest.mark.parametrize("role", [BrokerRole.SYNC_MASTER, SLAVE])
def test_a_queue_that_does_not_exist_yet_is_waited_for(reading_broker: Make, role: BrokerRole) -> None:
    broker = reading_broker(role=role)
    pull = broker.caller().begin_pull(0, queue=2, sysFlag=HOLD)
    wait_until(broker.held, "pull is held")
    broker.put(b"first", queue=2)
    broker.dispatch()
    assert bodies(pull.result(10)) == [b"first"]


def test_a_held_pull_waits_for_its_tag(reading_broker: Make) -> None:
    broker = reading_broker()
    pull = broker.caller().begin_pull(0, sysFlag=HOLD, subscription="red")
    wait_until(broker.held, "pull is held")
    broker.put(b"1", tag="blue")
    broker.dispatch()
    broker.put(b"2", tag="red")
    broker.dispatch()
    answer = pull.result(10)
    assert (bodies(answer), header(answer)[1]) == ([b"2"], 2)


def test_a_pull_whose_time_is_up_is_told_that_there_is_nothing(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(3)
    answer = broker.caller().pull(3, sysFlag=HOLD, suspendTimeoutMillis=1)
    assert (answer.code, answer.remark, header(answer)) == (19, "OFFSET_OVERFLOW_ONE", (0, 3, 0, 3))


def test_a_held_pull_is_a_miss_at_once_and_then_what_its_answer_is(reading_broker: Make) -> None:
    """As RocketMQ counts: getMissTps, getFoundTps."""
    broker = reading_broker()
    pull = broker.caller().begin_pull(0, sysFlag=HOLD)
    wait_until(broker.held, "pull is held")
    wait_until(lambda: broker.stats.gets_missed == 1, "it is a miss")
    broker.put(b"1")
    broker.dispatch()
    assert pull.result(10).code == 0
    assert (broker.stats.gets_missed, broker.stats.gets_found) == (1, 1)
    assert broker.caller().pull(1, sysFlag=HOLD, suspendTimeoutMillis=1).code == 19
    assert (broker.stats.gets_missed, broker.stats.gets_found) == (3, 1)
    assert broker.caller().pull(1).code == 19  # not held
    assert (broker.stats.gets_missed, broker.stats.gets_found) == (4, 1)


def test_without_long_polling_a_hold_is_short(reading_broker: Make) -> None:
    broker = reading_broker(long_polling_enable=False, short_polling_ms=1)
    answer = broker.caller().pull(0, sysFlag=HOLD, suspendTimeoutMillis=60_000)
    assert answer.code == 19


def test_a_pull_outside_of_the_queue_is_not_held(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(3)
    assert broker.caller().pull(9, sysFlag=HOLD).code == 21


def test_other_requests_of_the_connection_go_on_while_a_pull_is_held(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(2, queue=1)
    caller = broker.caller()
    held = caller.begin_pull(0, sysFlag=HOLD)
    wait_until(broker.held, "pull is held")
    assert len(bodies(caller.pull(0, queue=1))) == 2
    broker.put(b"x")
    broker.dispatch()
    assert bodies(held.result(10)) == [b"x"]


def test_above_the_bound_pulls_are_answered_at_once(reading_broker: Make) -> None:
    broker = reading_broker(held_max=2)
    caller = broker.caller()
    for queue in range(2):
        caller.begin_pull(0, queue=queue, sysFlag=HOLD)
    wait_until(lambda: broker.held() == 2, "two pulls are held")
    assert caller.pull(0, queue=2, sysFlag=HOLD).code == 19


def test_a_client_that_goes_leaves_no_pull_behind(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    caller.begin_pull(0, sysFlag=HOLD)
    wait_until(broker.held, "pull is held")
    caller.close()
    wait_until(lambda: not broker.held(), "pull is dropped")
    broker.put(b"x")
    broker.dispatch()
    assert bodies(broker.caller().pull(0)) == [b"x"]


def test_a_held_pull_whose_topic_is_deleted_answers_that_when_it_wakes(reading_broker: Make) -> None:
    broker = reading_broker()
    pull = broker.caller().begin_pull(0, sysFlag=HOLD)
    wait_until(broker.held, "pull is held")
    broker.topics.delete("T")
    broker.put(b"x")
    broker.dispatch()
    assert pull.result(10).code == 17


def test_many_consumers_of_one_queue_wake_together(reading_broker: Make) -> None:
    broker = reading_broker()
    callers = [broker.caller() for _ in range(5)]
    pulls = [
        caller.begin_pull(0, sysFlag=HOLD, consumerGroup=f"G{n}")
        for n, caller in enumerate(callers)
        for _ in range(4)
    ]
    wait_until(lambda: broker.held() == 20, "all are held")
    broker.put(b"x")
    broker.dispatch()
    assert [bodies(pull.result(10)) for pull in pulls] == [[b"x"]] * 20


def test_a_consumer_that_follows_a_producer_misses_nothing(reading_broker: Make) -> None:
    """All threads run: appends, dispatch, the loop, and a client that always waits for the next message."""
    broker = reading_broker()
    dispatching = Service("log-dispatch", broker.store.dispatcher)
    dispatching.start()
    count = 1500

    def produce() -> None:
        for number in range(count):
            broker.put(b"%d" % number, tag="even" if number % 2 == 0 else "odd")

    producer = threading.Thread(target=produce)
    try:
        caller = broker.caller()
        producer.start()
        for expression, wanted in (("*", range(count)), ("odd", range(1, count, 2))):
            got: list[int] = []
            offset = 0
            while len(got) < len(wanted):
                answer = caller.pull(offset, sysFlag=HOLD, subscription=expression, maxMsgNums=7)
                assert answer.code in (0, 20)
                got += [int(body) for body in bodies(answer)]
                offset = header(answer)[1]
            assert got == list(wanted)
    finally:
        producer.join()
        assert dispatching.stop(Deadline(10))


class RawClient:
    """A connection, and nothing else: it makes no garbage of its own."""

    def __init__(self, broker: ReadingBroker) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.server.ports[0]))
        self.answers = self.socket.makefile("rb")

    def pull(self, offset: int, **fields: str) -> None:
        ext = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(HOLD),
            "suspendTimeoutMillis": "20000",
            "subscription": "*",
            **fields,
        }
        self.socket.sendall(encode(RemotingCommand.request(11, ext)))

    def code(self) -> int:
        """Of the next answer."""
        data = self.answers.read(int.from_bytes(self.answers.read(4), "big"))
        return int(orjson.loads(data[4 : 4 + int.from_bytes(data[1:4], "big")])["code"])

    def close(self) -> None:
        self.answers.close()
        self.socket.close()


def end_by_arrival(broker: ReadingBroker, client: RawClient) -> None:
    end = broker.store.queues.find_or_create("T", 0).max_offset
    client.pull(end)
    wait_until(broker.held, "pull is held")
    broker.put(b"x")
    broker.dispatch()
    assert client.code() == 0


def end_by_time(broker: ReadingBroker, client: RawClient) -> None:
    client.pull(0, queueId="1", suspendTimeoutMillis="1")
    assert client.code() == 19


def end_by_refusal(broker: ReadingBroker, client: RawClient) -> None:
    client.pull(0, queueId="1")
    wait_until(broker.held, "pull is held")
    broker.on_loop(broker.polling.stop)
    broker.polling._stopped = False
    assert client.code() == 14


def end_by_an_error(broker: ReadingBroker, client: RawClient) -> None:
    client.pull(0, topic="gone")
    wait_until(broker.held, "pull is held")
    broker.topics.delete("gone")
    broker.put(b"x", topic="gone")
    broker.dispatch()
    assert client.code() == 17
    broker.topics.find_or_create("gone", 4)
    broker.store.queues.delete_topic("gone")


def end_by_a_read(broker: ReadingBroker, client: RawClient) -> None:
    """A work thread reads the message."""
    before = broker.offloaded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PullReader, "load_here", lambda self, scan: None)
        end_by_arrival(broker, client)
    assert broker.offloaded == before + 1


def end_by_a_closed_connection(broker: ReadingBroker, client: RawClient) -> None:
    other = RawClient(broker)
    other.pull(0, queueId="3")
    wait_until(broker.held, "pull is held")
    other.close()
    wait_until(lambda: not broker.held() and len(broker.connections()) == 1, "connection is gone")


@pytest.mark.parametrize(
    "end",
    [
        end_by_arrival,
        end_by_time,
        end_by_refusal,
        end_by_an_error,
        end_by_a_read,
        end_by_a_closed_connection,
    ],
)
def test_a_held_pull_leaves_nothing_to_the_garbage_collector(
    reading_broker: Make, end: Callable[[ReadingBroker, RawClient], None]
) -> None:
    broker = reading_broker(enable_property_filter=True)
    broker.topics.find_or_create("gone", 4)
    client = RawClient(broker)
    try:
        for _ in range(2):  # what is made once is made now
            end(broker, client)
        gc.collect()
        gc.disable()
        for _ in range(5):
            end(broker, client)
        assert gc.collect() == 0
    finally:
        gc.enable()
        client.close()


# The high-water mark


def test_a_message_above_the_mark_is_served_when_the_mark_passes_it(reading_broker: Make) -> None:
    mark = [0]
    broker = reading_broker(readable_end=lambda: mark[0])
    pull = broker.caller().begin_pull(0, sysFlag=HOLD)
    wait_until(broker.held, "pull is held")
    second = broker.put(b"1") or broker.put(b"2")
    broker.dispatch()
    assert broker.held() == 1
    mark[0] = second
    broker.on_loop(broker.polling.on_mark)
    answer = pull.result(10)
    assert (bodies(answer), header(answer)) == ([b"1"], (0, 1, 0, 2))

    late = broker.caller().begin_pull(1, sysFlag=HOLD)
    wait_until(broker.held, "the next pull is held below the mark")
    mark[0] = broker.log.end
    broker.polling.on_mark()
    assert bodies(late.result(10)) == [b"2"]
    assert broker.caller().pull(2).code == 19


def test_without_holding_a_message_above_the_mark_is_not_there(reading_broker: Make) -> None:
    broker = reading_broker(readable_end=lambda: 0)
    broker.fill(3)
    for offset in (0, 2):
        answer = broker.caller().pull(offset)
        assert (answer.code, header(answer)[1]) == (19, offset)


# Cold reads, and which broker to ask


@pytest.fixture(params=[errno.EAGAIN, errno.EOPNOTSUPP, 0])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What the file system says of every record: on the disk; perhaps (so do all without the native build); 0
    for what it says by itself: these records were just written."""
    gather, said = OSFiles.gather, int(request.param)

    def gather_from_disk(
        self: OSFiles, fd: int, base: int, units: bytes, waits: bool = True, next_units: bytes = b""
    ) -> bytes | None:
        if said and not waits:
            raise BlockingIOError(said, "the disk")
        return gather(self, fd, base, units, waits, next_units)

    monkeypatch.setattr(OSFiles, "gather", gather_from_disk)
    if said == errno.EAGAIN and native.core is None:
        pytest.skip("without the native build nobody asks")
    return errno.EOPNOTSUPP if native.core is None else said


def test_the_loop_reads_no_disk(reading_broker: Make, disk: int) -> None:
    """A work thread reads it.  Who cannot know takes what lies far behind the log's end for cold."""
    broker = reading_broker(memory_bytes=2000)
    broker.fill(40)
    caller = broker.caller()
    answer = caller.pull(0)
    assert (answer.code, len(bodies(answer)), header(answer)) == (0, 8, (0, 8, 0, 40))
    assert broker.offloaded == (1 if disk else 0)
    assert len(bodies(caller.pull(35))) == 5
    assert broker.offloaded == {errno.EAGAIN: 2, errno.EOPNOTSUPP: 1, 0: 0}[disk]


def test_a_held_pull_that_wakes_reads_the_disk_in_a_work_thread(reading_broker: Make, disk: int) -> None:
    broker = reading_broker(memory_bytes=2000)
    pull = broker.caller().begin_pull(0, sysFlag=HOLD)
    wait_until(broker.held, "pull is held")
    broker.fill(40)
    assert len(bodies(pull.result(10))) == 8
    assert broker.offloaded == (1 if disk else 0)


@pytest.mark.parametrize(
    ("role", "reads_slaves", "offset", "suggested"),
    [
        (BrokerRole.ASYNC_MASTER, False, 0, 0),
        (BrokerRole.ASYNC_MASTER, True, 0, 1),
        (BrokerRole.ASYNC_MASTER, True, 35, 0),
        (SLAVE, False, 0, 0),
        (SLAVE, True, 0, 1),
        (SLAVE, True, 35, 0),
    ],
)
def test_who_lags_is_sent_to_the_slave_if_that_is_wanted(
    reading_broker: Make, role: BrokerRole, reads_slaves: bool, offset: int, suggested: int
) -> None:
    broker = reading_broker(role=role, slave_read_enable=reads_slaves, memory_bytes=2000)
    broker.fill(40)
    assert header(broker.caller().pull(offset))[0] == suggested


def test_pulls_are_counted(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(5)
    caller = broker.caller()
    size = len(caller.pull(0).body)
    caller.pull(5)
    stats = broker.stats
    assert (stats.gets_found, stats.gets_missed) == (1, 1)
    assert (stats.transferred, stats.transferred_bytes) == (5, size)


def rot(broker: ReadingBroker, offset: int) -> None:
    """Flips a bit of the log."""
    segment_bytes = broker.options.segment_bytes
    with (broker.options.log_path / f"{offset - offset % segment_bytes:020d}").open("r+b") as file:
        file.seek(offset % segment_bytes)
        byte = file.read(1)[0]
        file.seek(offset % segment_bytes)
        file.write(bytes((byte ^ 0x10,)))


@pytest.mark.parametrize("how", ["hot", "cold", "by expression"])
def test_a_body_that_rotted_is_never_served_and_what_comes_before_it_is(
    reading_broker: Make, how: str
) -> None:
    broker = reading_broker(memory_bytes=0 if how == "cold" else 1 << 50, enable_property_filter=True)
    sent = [b"%d" % number * 500 for number in range(5)]
    places = [broker.put(body, tag="red") for body in sent]
    broker.dispatch()
    record = broker.log.read_record(places[2])
    rot(broker, places[2] + record.index(sent[2]) + 7)
    fields: dict[str, Any] = SQL if how == "by expression" else {}
    caller = broker.caller()
    for _ in range(2):
        first = caller.pull(0, **fields)
        assert (first.code, bodies(first), header(first)[1]) == (0, sent[:2], 2)
        damaged = caller.pull(2, **fields)
        assert (damaged.code, len(damaged.body)) == (1, 0)
        assert str(places[2]) in (damaged.remark or "")
        broker.store.scrub.look_at_suspects()
        assert broker.log.damaged == ((places[2], places[3]),)
    assert bodies(caller.pull(3, **fields)) == sent[3:]
    broker.log.repair(places[2], record)
    assert bodies(caller.pull(0, **fields)) == sent


@pytest.mark.parametrize("field", ["the size of its properties", "the CRC of no body"])
def test_a_record_whose_fields_rotted_is_never_served_and_is_fenced(reading_broker: Make, field: str) -> None:
    broker = reading_broker()
    sent = [b"first", b"", b"last"]
    places = [broker.put(body, tag="red") for body in sent]
    broker.dispatch()
    record = broker.log.read_record(places[1])
    properties = decode(record).properties
    rot(broker, places[1] + (AT["body_crc"] if "CRC" in field else len(record) - len(properties) - 1))
    caller = broker.caller()
    assert bodies(caller.pull(0)) == sent[:1]
    assert caller.pull(1).code == 1
    broker.store.scrub.look_at_suspects()
    assert broker.log.damaged == ((places[1], places[2]),)
    broker.log.repair(places[1], record)
    assert bodies(caller.pull(0)) == sent


@pytest.mark.parametrize("expression", [False, True])
def test_consumers_pass_over_damage_when_they_are_told_to(
    reading_broker: Make, caplog: pytest.LogCaptureFixture, expression: bool
) -> None:
    broker = reading_broker(enable_property_filter=True)
    sent = [b"%d" % number * 50 for number in range(5)]
    places = [*(broker.put(body, tag="red") for body in sent), broker.log.end]
    broker.dispatch()
    broker.log.fence_range(places[2], places[3], "rot")
    fields: dict[str, Any] = SQL if expression else {}
    caller = broker.caller()
    assert caller.pull(2, **fields).code == 1
    broker.reader.configure(ReadLimits(1 << 50, passes_damage=True))
    offset, got = 0, []
    while (answer := caller.pull(offset, **fields)).code == 0:
        got += bodies(answer)
        offset = header(answer)[1]
    assert (got, offset) == ([*sent[:2], *sent[3:]], 5)
    assert "damaged messages passed over" in caplog.text
    assert bodies(caller.pull(2, **fields)) == sent[3:]
    broker.log.fence_range(places[4], places[5], "rot")
    last = caller.pull(4, **fields)
    assert (last.code, header(last)[1]) == (20, 5)


@pytest.mark.parametrize("how", ["hot", "cold", "by tag", "by expression"])
@pytest.mark.parametrize("bit", [0, 12, 50, 62, 64, 66, 88, 95])
def test_a_pull_that_meets_a_flipped_entry_is_answered_with_its_messages(
    reading_broker: Make, how: str, bit: int
) -> None:
    broker = reading_broker(memory_bytes=0 if how == "cold" else 1 << 50, enable_property_filter=True)
    sent = [b"%d" % number * 500 for number in range(5)]
    for body in sent:
        broker.put(body, tag="red")
    broker.dispatch()
    (path,) = (broker.options.root / "consumequeue" / "T" / "0").iterdir()
    before = path.read_bytes()
    flip(path, 2 * 20 + bit // 8, bit % 8)
    fields: dict[str, Any] = {"by expression": SQL, "by tag": {"subscription": "red"}}.get(how, {})
    caller = broker.caller()
    first = caller.pull(0, **fields)
    assert first.code == 0
    found = bodies(first)
    if len(found) < 5:
        found += bodies(caller.pull(len(found), **fields))
    assert found == sent
    assert path.read_bytes() == before
    assert broker.log.damaged == ()


def test_an_entry_of_which_the_log_has_no_message_is_a_gap(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(3)
    queue = broker.store.queues.get("T", 0)
    assert queue is not None
    broker.log.append(NewMessage("U", 0, bytes(500)))
    queue.append(broker.log.end - 300, 200, 0, 3)
    queue.write()
    caller = broker.caller()
    answer = caller.pull(3)
    assert (answer.code, header(answer)[1], len(answer.body)) == (20, 4, 0)
    assert broker.log.damaged == ()
    assert caller.pull(0, maxMsgNums=3).code == 0
