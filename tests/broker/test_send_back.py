"""Retries and delays through whole brokers: what consumers send back, and where it comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitlog.kernel.records import StoredMessage, decode, decode_properties
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole
from haservice.remoting.bodies.clients import (
    DataVersion,
    DelayOffsetWrapper,
    KVTable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigWrapper,
)
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.retry import SendBackHeader
from tests.support.brokers import LOOPBACK, addr_of, send
from tests.support.waiting import wait_until

SLAVE = BrokerRole.SLAVE
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
GROUP = "readers"


def send_back(
    client: BlockingClient, node: BrokerNode, offset: int, *, version: int | None = None, **fields: Any
) -> RemotingCommand:
    header = SendBackHeader(**{"offset": offset, "group": GROUP, "delay_level": 0, **fields})
    command = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
    if version is not None:
        command.version = version
    return client.call(addr_of(node), command, timeout_s=10.0)


def sent(client: BlockingClient, node: BrokerNode, **fields: Any) -> int:
    """The physical offset of a message that was sent."""
    answer = send(client, addr_of(node), "T", b"body", "TAGS\x01t\x02UNIQ_KEY\x01U", flag=7, **fields)
    assert answer.code == 0
    return int(answer.ext["msgId"][16:], 16)


def stored(node: BrokerNode, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    while node.store.dispatcher.behind:
        pass
    queue = node.store.queues.get(topic, queue_id)
    entries = queue.read(queue.min_offset, 1000) if queue is not None else []
    return [decode(node.store.log.read_record(one.physical_offset)) for one in entries]


def delay_offsets(client: BlockingClient, node: BrokerNode) -> dict[int, int]:
    answer = client.call(addr_of(node), RemotingCommand.request(RequestCode.GET_ALL_DELAY_OFFSET))
    return dict(DelayOffsetWrapper.decode(answer.body).offset_table)


def test_a_delayed_message_goes_round_and_its_progress_is_told(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start(log={"message_delay_levels": "1s 2h"})
    for level in (1, 2):
        send(client, addr_of(node), "T", b"%d" % level, f"DELAY\x01{level}", queue_id=1)
    wait_until(lambda: stored(node, "T", 1), "it is delivered")
    (waiting,) = stored(node, SCHEDULE, 0)
    (delivered,) = stored(node, "T", 1)
    assert delivered.body == b"1"
    assert delivered.store_timestamp_ms >= waiting.store_timestamp_ms + 1000

    def told() -> str | None:
        answer = client.call(addr_of(node), RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        return KVTable.decode(answer.body).table.get("scheduleMessageOffset_1")

    wait_until(lambda: told() == "1,1", "the progress is told")
    path = node.config.log.root / "config" / "delayOffset.json"
    wait_until(
        lambda: path.exists() and DelayOffsetWrapper.decode(path.read_bytes()).offset_table == {1: 1},
        "the progress is written soon",
    )


def test_a_slave_delivers_nothing_and_knows_how_far_its_master_is(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    master = start(log={"message_delay_levels": "1s"})
    slave = start(
        "a-s",
        role=SLAVE,
        log={"message_delay_levels": "1s"},
        replication={"master_address": f"{LOOPBACK}:{master.ha.port}"},
    )
    wait_until(lambda: slave.ha.connected, "the slave is there")
    send(client, addr_of(master), "T", b"x", "DELAY\x011")
    wait_until(lambda: stored(slave, "T", 0), "the slave has what the master delivered")
    wait_until(lambda: delay_offsets(client, master) == {1: 1}, "slaves may rely on it")
    slave.slave_sync.set_master_addr(addr_of(master))
    path = slave.config.log.root / "config" / "delayOffset.json"
    wait_until(path.exists, "the slave writes it")
    wait_until(lambda: delay_offsets(client, slave) == {1: 1}, "and tells it")
    assert "delay-delivery" not in slave._running.names
    assert len(stored(master, "T", 0)) == 1


def test_progress_that_no_slave_can_rely_on_is_not_told(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start(log={"message_delay_levels": "1s"})
    send(client, addr_of(node), "T", b"x", "DELAY\x011")
    wait_until(lambda: node.delays.table() == {1: 1}, "it is delivered")
    assert delay_offsets(client, node) == {}


# Giving back


def test_what_comes_back_waits_for_its_next_try(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    offset = sent(client, node, queue_id=2, sys_flag=0x301)
    assert send_back(client, node, offset).code == ResponseCode.SUCCESS
    (waiting,) = stored(node, SCHEDULE, 2)
    first = decode(node.store.log.read_record(offset))
    assert (waiting.body, waiting.flag, waiting.sys_flag) == (b"body", 7, 0x301)
    assert (waiting.born_timestamp_ms, waiting.born_host) == (first.born_timestamp_ms, first.born_host)
    assert waiting.reconsume_times == 1
    assert decode_properties(waiting.properties) == {
        "TAGS": "t",
        "UNIQ_KEY": "U",
        "CLUSTER": "C",
        "DELAY": "3",
        "WAIT": "false",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": first.message_id,
        "REAL_TOPIC": f"%RETRY%{GROUP}",
        "REAL_QID": "0",
    }
    # The second time: a level more, and still the same origin.
    assert send_back(client, node, waiting.physical_offset).code == ResponseCode.SUCCESS
    (again,) = stored(node, SCHEDULE, 3)
    properties = decode_properties(again.properties)
    assert again.reconsume_times == 2
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T", first.message_id)


@pytest.mark.parametrize(("level", "queue"), [(1, 0), (18, 17), (99, 17)])
def test_a_consumer_may_say_how_long(
    start: Callable[..., BrokerNode], client: BlockingClient, level: int, queue: int
) -> None:
    node = start()
    assert send_back(client, node, sent(client, node), delay_level=level).code == 0
    assert decode_properties(stored(node, SCHEDULE, queue)[0].properties)["DELAY"] == str(queue + 1)


@pytest.mark.parametrize(
    ("fields", "times", "dead"),
    [
        ({"delay_level": -1}, 0, True),
        ({}, 15, False),
        ({}, 16, True),
        ({"max_reconsume_times": 2}, 1, False),
        ({"max_reconsume_times": 2}, 2, True),
        ({"max_reconsume_times": 2, "version": 120}, 2, False),
        ({"max_reconsume_times": 99}, 16, False),
    ],
)
def test_after_its_last_try_a_message_is_a_dead_letter(
    start: Callable[..., BrokerNode], client: BlockingClient, fields: dict[str, Any], times: int, dead: bool
) -> None:
    node = start()
    offset = sent(client, node, reconsume_times=times)
    assert send_back(client, node, offset, **fields).code == ResponseCode.SUCCESS
    letters = stored(node, f"%DLQ%{GROUP}")
    assert len(letters) == (1 if dead else 0)
    if dead:
        assert letters[0].reconsume_times == times + 1
        assert decode_properties(letters[0].properties)["DELAY"] == "0"
        topic = node.topics.get(f"%DLQ%{GROUP}")
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    else:
        assert stored(node, SCHEDULE, min(3 + times, 18) - 1)


def test_the_retry_topic_has_as_many_queues_as_the_group_wants(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    node.groups.update(SubscriptionGroupConfig(GROUP, retry_queue_nums=3, retry_max_times=1))
    offset = sent(client, node)
    for _ in range(20):
        assert send_back(client, node, offset, unit_mode=True).code == 0
    topic = node.topics.get(f"%RETRY%{GROUP}")
    assert topic is not None
    assert (topic.write_queue_nums, topic.perm, topic.topic_sys_flag) == (3, 6, 2)
    queues = {decode_properties(one.properties)["REAL_QID"] for one in stored(node, SCHEDULE, 2)}
    assert queues <= {"0", "1", "2"}
    assert len(queues) > 1


def test_a_group_without_retry_queues_drops_what_it_gives_back(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    node.groups.update(SubscriptionGroupConfig(GROUP, retry_queue_nums=0))
    offset = sent(client, node)
    end = node.store.log.end
    assert send_back(client, node, offset).code == ResponseCode.SUCCESS
    assert node.store.log.end == end


@pytest.mark.parametrize(
    ("offset", "said"), [(1, "look message by offset failed, 1"), (10**9, "failed"), (-1, "failed")]
)
def test_what_is_no_message_cannot_come_back(
    start: Callable[..., BrokerNode], client: BlockingClient, offset: int, said: str
) -> None:
    node = start()
    sent(client, node)
    answer = send_back(client, node, offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert said in (answer.remark or "")


def test_who_may_not_send_back_is_told_why(start: Callable[..., BrokerNode], client: BlockingClient) -> None:
    node = start(broker={"auto_create_subscription_group": False})
    offset = sent(client, node)
    assert send_back(client, node, offset).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    node.groups.update(SubscriptionGroupConfig(GROUP))
    node.topics.update(TopicConfig(f"%RETRY%{GROUP}", 1, 1, 4))
    answer = send_back(client, node, offset)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert f"%RETRY%{GROUP}" in (answer.remark or "")
    node.topics.update(TopicConfig(f"%RETRY%{GROUP}", 1, 1, 6))
    node.sends.refuse_all = "the disk is full"
    answer = send_back(client, node, offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("SERVICE_NOT_AVAILABLE")


def test_a_broker_that_is_not_writable_takes_nothing_back(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start(broker={"permission": 4})
    assert send_back(client, node, sent(client, node)).code == ResponseCode.NO_PERMISSION


def test_a_slave_takes_nothing_back(start: Callable[..., BrokerNode], client: BlockingClient) -> None:
    slave = start(role=SLAVE)
    answer = send_back(client, slave, 0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("SERVICE_NOT_AVAILABLE")


def test_a_sync_master_answers_when_its_slave_has_what_came_back(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(role=BrokerRole.SYNC_MASTER, replication={"slave_timeout_ms": 200})
    answer = send(client, addr_of(node), "T", b"body", "WAIT\x01false")
    offset = int(answer.ext["msgId"][16:], 16)
    # No slave: success, for the message is stored.
    assert send_back(client, node, offset).code == ResponseCode.SUCCESS
    asked: list[int] = []
    submit = node.ha.submit

    def noting(end: int, deadline_s: float, waiter: Any) -> bool:
        asked.append(end)
        return submit(end, deadline_s, waiter)

    monkeypatch.setattr(node.ha, "is_slave_ok", lambda end: True)
    monkeypatch.setattr(node.ha, "submit", noting)
    # A slave that never acknowledges: waited for, and then success as well.
    assert send_back(client, node, offset).code == ResponseCode.SUCCESS
    assert asked == [node.store.log.end]


def test_who_gave_back_is_counted(start: Callable[..., BrokerNode], client: BlockingClient) -> None:
    node = start()
    assert send_back(client, node, sent(client, node)).code == 0
    ext = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": f"T@{GROUP}"}
    answer = client.call(
        addr_of(node), RemotingCommand.request(RequestCode.VIEW_BROKER_STATS_DATA, ext), timeout_s=10.0
    )
    assert answer.code == ResponseCode.SUCCESS


LONG_GROUP = "g" * 121


def given_topic(node: BrokerNode, name: str) -> None:
    """A topic whose name is too long for a record, as the table of a stock broker may have it."""
    topics = {one.topic_name: one for one in node.topics}
    topics[name] = TopicConfig(name, read_queue_nums=4, write_queue_nums=4, perm=6)
    node.topics.replace_all(TopicConfigWrapper(DataVersion(99, 1), topics))


@pytest.mark.parametrize("known", [False, True], ids=["new", "in a stock broker's table"])
@pytest.mark.parametrize("group", [LONG_GROUP, "g" * 249, "g" * 255])
def test_a_group_whose_retry_topic_fits_no_record_keeps_its_message(
    start: Callable[..., BrokerNode], client: BlockingClient, group: str, known: bool
) -> None:
    """It was accepted, and never came to anybody."""
    node = start()
    if known:
        given_topic(node, f"%RETRY%{group}")
    answer = send_back(client, node, sent(client, node), group=group)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"longer than topic max length 127, it has {len(group) + 7}" in (answer.remark or "")
    assert stored(node, SCHEDULE, 2) == []
    assert (node.topics.get(f"%RETRY%{group}") is not None) is known


@pytest.mark.parametrize("properties", ["DELAY\x013", "TRAN_MSG\x01true\x02PGROUP\x01P"])
def test_what_is_accepted_for_later_has_a_topic_that_can_be_stored(
    start: Callable[..., BrokerNode], client: BlockingClient, properties: str
) -> None:
    node = start()
    given_topic(node, f"%RETRY%{LONG_GROUP}")
    answer = send(client, addr_of(node), f"%RETRY%{LONG_GROUP}", b"later", properties)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "longer than topic max length 127, it has 128" in (answer.remark or "")
    assert stored(node, SCHEDULE, 2) == stored(node, "RMQ_SYS_TRANS_HALF_TOPIC") == []


def filled(text: str, size: int) -> str:
    """`text` with a property that makes it so long, when the broker has added the cluster's name."""
    return f"{text}\x02FILL\x01" + "x" * (size - len(f"{text}\x02FILL\x01\x02CLUSTER\x01C"))


@pytest.mark.parametrize("room", [0, 1, 60, 200, 400])
def test_a_message_with_the_largest_properties_leaves_its_queue(
    start: Callable[..., BrokerNode], client: BlockingClient, room: int
) -> None:
    """As a dead letter, if a retry has no room for what it adds; it was refused for ever."""
    node = start()
    text = filled("TAGS\x01t\x02UNIQ_KEY\x01U", 32767 - room)
    answer = send(client, addr_of(node), "T", b"body", text)
    assert answer.code == 0
    offset = int(answer.ext["msgId"][16:], 16)
    (before,) = stored(node, "T")
    assert len(before.properties) == 32767 - room
    assert send_back(client, node, offset).code == 0
    came = stored(node, f"%DLQ%{GROUP}") + stored(node, SCHEDULE, 2)
    assert [one.body for one in came] == [b"body"]
    kept = decode_properties(came[0].properties)
    of_the_sender = decode_properties(before.properties)
    assert [kept[name] for name in ("TAGS", "FILL")] == [of_the_sender[name] for name in ("TAGS", "FILL")]
    # What comes out of the delay can come back again.
    assert (came[0].topic == f"%DLQ%{GROUP}") is (room < 400)


def test_a_consumer_that_sends_its_last_try_itself_needs_no_room_either(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    text = "\x02".join(
        [filled("TAGS\x01t", 32740), "RETRY_TOPIC\x01T", "MAX_RECONSUME_TIMES\x0116", "RECONSUME_TIME\x0116"]
    )
    answer = send(client, addr_of(node), f"%RETRY%{GROUP}", b"body", text, reconsume_times=16)
    assert answer.code == 0
    (letter,) = stored(node, f"%DLQ%{GROUP}")
    assert len(decode_properties(letter.properties)["FILL"]) > 32_000
    assert decode_properties(letter.properties)["RETRY_TOPIC"] == "T"


def test_a_message_that_was_tried_as_often_as_a_number_says_comes_back(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    offset = sent(client, node, reconsume_times=2**31 - 1)
    assert send_back(client, node, offset).code == 0
    assert [one.reconsume_times for one in stored(node, f"%DLQ%{GROUP}")] == [2**31 - 1]


@pytest.mark.parametrize("room", [0, 1, 60, 150, 400])
def test_a_consumer_that_sends_a_retry_itself_needs_no_room_either(
    start: Callable[..., BrokerNode], client: BlockingClient, room: int
) -> None:
    """What its delay adds has to fit, too; the log refused it for ever."""
    node = start()
    text = filled("TAGS\x01t\x02RETRY_TOPIC\x01T\x02DELAY\x013", 32767 - room)
    assert send(client, addr_of(node), f"%RETRY%{GROUP}", b"body", text, reconsume_times=1).code == 0
    letters, waiting = stored(node, f"%DLQ%{GROUP}"), stored(node, SCHEDULE, 2)
    assert [one.body for one in letters + waiting] == [b"body"]
    assert bool(letters) is (room < 400)
