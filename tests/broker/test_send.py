"""The send processor over a real log, without sockets: what is refused, what is stored, what is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import LogNotWritable
from commitlog.kernel.layout import SYS_BORN_HOST_V6, SYS_MULTI_TAGS, SYS_TRANSACTION_PREPARED
from commitlog.kernel.records import StoredMessage, decode, decode_properties, encode_host, parse_message_id
from commitlog.log.log import CommitLog
from commitlog.options import LogOptions
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.send.admission import Admission, SendRules
from haservice.broker.send.processor import CROWD_TURNS, SendLimits, SendProcessor
from haservice.broker.stats.counters import Stats
from haservice.broker.topics.table import TopicTable, topic_config
from haservice.configuration.settings import BrokerConfig
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import TopicConfig
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import VERSION, RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader
from tests.support.messages import batch_body
from tests.support.proofs import Proofs

STORE_HOST = encode_host("10.0.0.1", 10911)
BORN_HOST = encode_host("10.1.2.3", 54321)
LIMITS = SendRules(cluster_name="C", permission=6, max_message_bytes=1000)
SEND_LIMITS = SendLimits(
    region_id="R",
    trace_on=True,
    start_accept_timestamp_ms=0,
    page_cache_busy_s=1.0,
    max_pending_sends=100,
    is_slave=False,
)


def find_group(group: str) -> GroupConfig | None:
    return GroupConfig(group, retry_max_times=5, retry_queue_nums=2) if group == "known" else None


class Peer:
    """A connection that keeps what is sent later."""

    def __init__(self, host: bytes = BORN_HOST) -> None:
        self.peer_host = host
        self.sent: list[RemotingCommand] = []

    def send(self, command: RemotingCommand) -> None:
        self.sent.append(command)


class Bench:
    def __init__(
        self,
        directory: Path,
        *,
        sync: bool = False,
        permission: int = 6,
        delay_level_max: int = 18,
        reject_transactions: bool = False,
        **send_limits: Any,
    ) -> None:
        options = LogOptions(root=directory, segment_bytes=64 * 1024, max_message_bytes=1000)
        self.log = CommitLog.open(options, store_host=STORE_HOST)
        config = BrokerConfig(cluster_name="C", broker_name="broker-a")
        self.topics = TopicTable(config, PersistedFile(directory / "topics.json"))
        self.topics.update(topic_config("T", 4, 6))
        proofs = Proofs(sync=sync)
        self.slave, self.durability, self.ack = proofs.slave, proofs.durability, proofs.ack
        self.sends = SendProcessor(
            SEND_LIMITS._replace(**send_limits),
            Admission(
                LIMITS._replace(
                    permission=permission,
                    delay_level_max=delay_level_max,
                    reject_transactions=reject_transactions,
                ),
                self.topics,
                find_group,
            ),
            self.log,
            self.durability,
            Stats(),
            store_host=STORE_HOST,
        )
        self.peer = Peer()

    def send(self, *requests: RemotingCommand) -> list[RemotingCommand | None]:
        return self.sends.process_batch(self.peer, list(requests))  # type: ignore[arg-type]

    def send_one(self, request: RemotingCommand) -> RemotingCommand:
        (answer,) = self.send(request)
        assert answer is not None
        return answer

    def stored(self) -> list[StoredMessage]:
        messages = []
        offset = 0
        while offset < self.log.end:
            messages.append(decode(self.log.read_record(offset)))
            offset += messages[-1].size
        return messages


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def maker(**options: Any) -> Bench:
        benches.append(Bench(tmp_path / str(len(benches)), **options))
        return benches[-1]

    yield maker
    for bench in benches:
        bench.log.close()


def request(
    topic: str = "T", body: bytes = b"hello", *, code: int = RequestCode.SEND_MESSAGE_V2, **fields: Any
) -> RemotingCommand:
    header = SendMessageHeader(
        producer_group="g",
        topic=topic,
        default_topic=fields.pop("default_topic", "TBW102"),
        default_topic_queue_nums=fields.pop("queue_nums", 4),
        queue_id=fields.pop("queue_id", 0),
        sys_flag=fields.pop("sys_flag", 0),
        born_timestamp_ms=1234,
        flag=fields.pop("flag", 0),
        properties=fields.pop("properties", ""),
        reconsume_times=fields.pop("reconsume_times", 0),
        max_reconsume_times=fields.pop("max_reconsume_times", None),
        batch=fields.pop("batch", False),
    )
    oneway = fields.pop("oneway", False)
    version = fields.pop("version", VERSION)
    assert not fields
    command = RemotingCommand.request(code, header.encode(code), body, oneway=oneway)
    command.version = version
    return command


def properties(**values: str) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in values.items())


def batch_of(**values: str) -> RemotingCommand:
    body = batch_body([b"one", b"two"], properties(**values).encode())
    return request(body=body, batch=True, code=RequestCode.SEND_BATCH_MESSAGE)


# What is stored and answered


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_message_is_stored_as_it_was_sent_and_answered_with_its_place(
    make: Callable[..., Bench], code: int
) -> None:
    bench = make()
    answer = bench.send_one(
        request(code=code, queue_id=2, flag=7, reconsume_times=3, properties=properties(KEYS="k", TAGS="t"))
    )
    (message,) = bench.stored()
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext == {
        "MSG_REGION": "R",
        "TRACE_ON": "true",
        "msgId": message.message_id,
        "queueId": "2",
        "queueOffset": "0",
    }
    assert parse_message_id(answer.ext["msgId"]) == ("10.0.0.1", 10911, 0)
    assert message.topic == "T"
    assert message.body == b"hello"
    assert message.crc_ok
    assert (message.queue_id, message.flag, message.reconsume_times) == (2, 7, 3)
    assert (message.born_timestamp_ms, message.born_host) == (1234, BORN_HOST)
    assert message.store_host == STORE_HOST
    assert decode_properties(message.properties) == {"KEYS": "k", "TAGS": "t", "CLUSTER": "C"}


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("", {"CLUSTER": "C"}),
        (properties(WAIT="true"), {"CLUSTER": "C"}),
        (properties(WAIT="true", A="1"), {"A": "1", "CLUSTER": "C"}),
        (properties(A="1", WAIT="false", B="2"), {"A": "1", "B": "2", "CLUSTER": "C"}),
        (properties(A="1", WAIT="true"), {"A": "1", "CLUSTER": "C"}),
        (properties(A="1") + "\x02", {"A": "1", "CLUSTER": "C"}),
        (properties(XWAIT="no", A="1"), {"XWAIT": "no", "A": "1", "CLUSTER": "C"}),
        (properties(CLUSTER="other", A="1"), {"A": "1", "CLUSTER": "C"}),
        (properties(DELAY="0", WAIT="true", A="1"), {"DELAY": "0", "A": "1", "CLUSTER": "C"}),
        (properties(TRAN_MSG="false"), {"TRAN_MSG": "false", "CLUSTER": "C"}),
        (properties(A="ü€😀"), {"A": "ü€😀", "CLUSTER": "C"}),
    ],
)
def test_cluster_is_added_and_wait_taken_out(
    make: Callable[..., Bench], sent: str, stored: dict[str, str]
) -> None:
    bench = make()
    assert bench.send_one(request(properties=sent)).code == 0
    text = bench.stored()[0].properties
    assert decode_properties(text) == stored
    assert b"\x02\x02" not in text
    assert not text.startswith(b"\x02")
    assert not text.endswith(b"\x02")


def test_queue_offsets_count_per_queue(make: Callable[..., Bench]) -> None:
    bench = make()
    answers = bench.send(*(request(queue_id=queue) for queue in (0, 1, 0, 0, 1)))
    assert [answer.ext["queueOffset"] for answer in answers if answer] == ["0", "0", "1", "2", "1"]
    assert [message.queue_offset for message in bench.stored()] == [0, 0, 1, 2, 1]


def test_a_negative_queue_is_the_brokers_choice(make: Callable[..., Bench]) -> None:
    bench = make()
    for _ in range(20):
        answer = bench.send_one(request(queue_id=-1))
        assert 0 <= int(answer.ext["queueId"]) < 4


def test_flags_of_hosts_and_tags_are_the_brokers(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.topics.update(TopicConfig("M", 1, 1, 6, topic_filter_type="MULTI_TAG"))
    bench.peer = Peer(encode_host("::1", 5))
    bench.send_one(request("M", sys_flag=0x301))
    (message,) = bench.stored()
    assert message.sys_flag == 0x301 | SYS_MULTI_TAGS | SYS_BORN_HOST_V6
    assert message.born_host == encode_host("::1", 5)


def test_a_batch_is_stored_as_single_messages_with_one_answer(make: Callable[..., Bench]) -> None:
    bench = make()
    body = batch_body([b"one", b"two"], properties(KEYS="1").encode())
    answers = bench.send(
        request(),
        request(
            body=body, batch=True, properties=properties(WAIT="true"), code=RequestCode.SEND_BATCH_MESSAGE
        ),
        request(),
    )
    assert [answer.ext["queueOffset"] for answer in answers if answer] == ["0", "1", "3"]
    messages = bench.stored()
    assert [message.body for message in messages] == [b"hello", b"one", b"two", b"hello"]
    assert answers[1] is not None
    assert answers[1].ext["msgId"] == f"{messages[1].message_id},{messages[2].message_id}"
    assert decode_properties(messages[1].properties) == {"KEYS": "1", "WAIT": "true", "CLUSTER": "C"}
    assert [message.flag for message in messages] == [0, 5, 5, 0]


def test_a_topic_is_created_on_the_first_send(make: Callable[..., Bench]) -> None:
    bench = make()
    assert bench.send_one(request("New", queue_id=3)).code == 0
    topic = bench.topics.get("New")
    assert topic is not None
    assert topic.write_queue_nums == 4


def test_oneway_sends_are_stored_and_not_answered(make: Callable[..., Bench]) -> None:
    bench = make(sync=True)
    assert bench.send(request(oneway=True)) == [None]
    assert bench.slave.waits == []
    assert len(bench.stored()) == 1


# What goes elsewhere first


@pytest.mark.parametrize(
    ("level", "capped"), [("1", 1), ("18", 18), ("19", 18), ("+2", 2), ("2147483647", 18)]
)
def test_a_delayed_message_goes_to_the_queue_of_its_level(
    make: Callable[..., Bench], level: str, capped: int
) -> None:
    bench = make()
    sent = properties(TAGS="t", DELAY=level, WAIT="true")
    answers = bench.send(*(request(queue_id=2, flag=7, properties=sent, reconsume_times=3) for _ in range(2)))
    first, second = bench.stored()
    assert (first.topic, first.queue_id) == ("SCHEDULE_TOPIC_XXXX", capped - 1)
    assert decode_properties(first.properties) == {
        "TAGS": "t",
        "DELAY": str(capped),
        "WAIT": "true",
        "CLUSTER": "C",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }
    assert (first.flag, first.reconsume_times, first.born_host) == (7, 3, BORN_HOST)
    # The sender is told the queue that it asked for, and where the message is now.
    assert [answer.ext["queueId"] for answer in answers if answer] == ["2", "2"]
    assert [answer.ext["queueOffset"] for answer in answers if answer] == ["0", "1"]
    assert [answer.ext["msgId"] for answer in answers if answer] == [first.message_id, second.message_id]


def test_a_delayed_message_waits_for_its_proof_unless_its_sender_does_not(make: Callable[..., Bench]) -> None:
    bench = make(sync=True)
    answers = bench.send(
        request(properties=properties(DELAY="1")), request(properties=properties(DELAY="1", WAIT="false"))
    )
    assert [answer is None for answer in answers] == [True, False]
    bench.ack()
    assert [answer.code for answer in bench.peer.sent] == [0]


def test_a_delay_of_nothing_is_none(make: Callable[..., Bench]) -> None:
    bench = make()
    assert bench.send_one(request(properties=properties(DELAY="-1"))).code == 0
    assert bench.stored()[0].topic == "T"


def test_without_delay_levels_a_delay_is_refused(make: Callable[..., Bench]) -> None:
    bench = make(delay_level_max=0)
    answer = bench.send_one(request(properties=properties(DELAY="1")))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "no delay levels" in (answer.remark or "")


def test_a_transactional_message_is_half_until_its_transaction_has_ended(make: Callable[..., Bench]) -> None:
    bench = make()
    answer = bench.send_one(
        request(
            queue_id=3,
            sys_flag=SYS_TRANSACTION_PREPARED | 0x301,
            properties=properties(
                TRAN_MSG="true",
                PGROUP="g",
                WAIT="true",
                DELAY="2",
                TRANSACTION_CHECK_TIMES="15",
                TRAN_PREPARED_QUEUE_OFFSET="7",
            ),
        )
    )
    (half,) = bench.stored()
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "3", "0")
    assert (half.topic, half.queue_id, half.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0x301)
    assert decode_properties(half.properties) == {
        "TRAN_MSG": "true",
        "PGROUP": "g",
        "WAIT": "true",
        "CLUSTER": "C",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }


def test_transactions_can_be_refused(make: Callable[..., Bench]) -> None:
    bench = make(reject_transactions=True)
    answer = bench.send_one(request(properties=properties(TRAN_MSG="true")))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "rejectTransactionMessage" in (answer.remark or "")
    assert bench.send_one(request(properties=properties(TRAN_MSG="false"))).code == 0


@pytest.mark.parametrize(
    ("times", "said_max", "version", "dead"),
    [
        (4, None, VERSION, False),
        (5, None, VERSION, True),
        (1, 2, VERSION, False),
        (2, 2, VERSION, True),
        (4, 2, 120, False),  # an old client's word does not count, the group's does
        (5, 9, 120, True),
        (5, 9, VERSION, False),
    ],
)
def test_what_was_tried_too_often_is_a_dead_letter(
    make: Callable[..., Bench], times: int, said_max: int | None, version: int, dead: bool
) -> None:
    bench = make()
    answer = bench.send_one(
        request(
            "%RETRY%known",
            properties=properties(DELAY="4", WAIT="true", RETRY_TOPIC="T"),
            reconsume_times=times,
            max_reconsume_times=said_max,
            version=version,
        )
    )
    (stored,) = bench.stored()
    assert (answer.code, answer.ext["queueId"]) == (0, "0")
    assert stored.reconsume_times == times
    if dead:
        assert (stored.topic, stored.queue_id) == ("%DLQ%known", 0)
        assert decode_properties(stored.properties)["DELAY"] == "0"
        topic = bench.topics.get("%DLQ%known")
        assert topic is not None
        assert (topic.write_queue_nums, topic.perm) == (1, 6)
    else:
        assert (stored.topic, stored.queue_id) == ("SCHEDULE_TOPIC_XXXX", 3)
        assert bench.topics.get("%DLQ%known") is None


# What is refused: every row's code, and a word of its remark


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        (request("../../x"), ResponseCode.SYSTEM_ERROR, "illegal characters"),
        (request(""), ResponseCode.SYSTEM_ERROR, "blank"),
        (request("x" * 128), ResponseCode.SYSTEM_ERROR, "longer than topic max length"),
        (request("SCHEDULE_TOPIC_XXXX"), ResponseCode.NO_PERMISSION, "forbidden"),
        (request("SELF_TEST_TOPIC"), ResponseCode.NO_PERMISSION, "forbidden"),
        (request("New", default_topic="none"), ResponseCode.TOPIC_NOT_EXIST, "topic[New] not exist"),
        (request(queue_id=4), ResponseCode.SYSTEM_ERROR, "queueId[4] is illegal"),
        (request("New", queue_nums=0), ResponseCode.SYSTEM_ERROR, "queueId[0] is illegal"),
        (request("%RETRY%stranger"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "stranger"),
        (request(properties=properties(A="1", DELAY="x")), ResponseCode.SYSTEM_ERROR, "delay level 'x'"),
        (request(properties=properties(DELAY="2147483648")), ResponseCode.SYSTEM_ERROR, "not a whole number"),
        (request(properties=properties(DELAY="3"), batch=True), ResponseCode.MESSAGE_ILLEGAL, "no delay"),
        (request(properties=properties(TRAN_MSG="true"), batch=True), ResponseCode.MESSAGE_ILLEGAL, "batch"),
        (batch_of(DELAY="1"), ResponseCode.MESSAGE_ILLEGAL, "cannot be delayed"),
        (batch_of(TRAN_MSG="TRUE"), ResponseCode.MESSAGE_ILLEGAL, "cannot be part of a transaction"),
        (request(sys_flag=SYS_TRANSACTION_PREPARED), ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG does not"),
        (request(body=b"x" * 1001), ResponseCode.MESSAGE_ILLEGAL, "body is 1001 bytes, allowed are 1000"),
        (request(properties=properties(A="x" * 32768)), ResponseCode.MESSAGE_ILLEGAL, "properties are"),
        (request(properties=properties(A="ü" * 16384)), ResponseCode.MESSAGE_ILLEGAL, "properties are"),
        (request(batch=True, body=b""), ResponseCode.MESSAGE_ILLEGAL, "batch without messages"),
        (request(batch=True, body=b"x" * 50), ResponseCode.MESSAGE_ILLEGAL, "batch element at 0"),
        (request(queue_id=2**31), ResponseCode.SYSTEM_ERROR, "queueId"),
        (request(flag=-(2**31) - 1), ResponseCode.SYSTEM_ERROR, "flag"),
        (RemotingCommand.request(310, {"b": "T"}), ResponseCode.SYSTEM_ERROR, "missing"),
        (RemotingCommand.request(10, {}), ResponseCode.SYSTEM_ERROR, "producerGroup"),
    ],
)
def test_what_is_refused_stores_nothing_and_hurts_no_neighbour(
    make: Callable[..., Bench], sent: RemotingCommand, code: ResponseCode, said: str
) -> None:
    bench = make()
    before, answer, after = bench.send(request(body=b"1"), sent, request(body=b"2"))
    assert before is not None
    assert answer is not None
    assert after is not None
    assert (before.code, after.code) == (0, 0)
    assert answer.code == code
    assert said in (answer.remark or "")
    assert answer.ext == {"MSG_REGION": "R", "TRACE_ON": "true"}
    assert [message.body for message in bench.stored()] == [b"1", b"2"]


def test_the_retry_topic_of_a_known_group_takes_messages(make: Callable[..., Bench]) -> None:
    bench = make()
    assert bench.send_one(request("%RETRY%known", default_topic="none")).code == 0
    assert bench.topics.get("%RETRY%known").write_queue_nums == 2  # type: ignore[union-attr]
    answer = bench.send_one(request("%RETRY%stranger", default_topic="none"))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.topics.get("%RETRY%stranger") is None


def test_a_slave_refuses_and_creates_no_topic(make: Callable[..., Bench]) -> None:
    bench = make(is_slave=True)
    answer = bench.send_one(request("New"))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave" in (answer.remark or "")
    assert bench.topics.get("New") is None
    assert bench.send_one(request("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_log_that_is_fenced_or_shut_down_refuses(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.log.fence("flush failed: Input/output error")
    answer = bench.send_one(request("New"))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "Input/output error" in (answer.remark or "")
    assert bench.topics.get("New") is None


def test_a_full_disk_answers_each_message(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    refusal = LogNotWritable("no space left on device")
    monkeypatch.setattr(bench.log, "append_many", lambda messages: [refusal] * len(messages))

    def append_batch(message: object) -> None:
        raise refusal

    monkeypatch.setattr(bench.log, "append_batch", append_batch)
    batch = request(batch=True, body=batch_body([b"one"]))
    for answer in bench.send(request(), request(), batch):
        assert answer is not None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no space left" in (answer.remark or "")


def test_a_part_that_failed_refuses_all(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.sends.refuse_all = "thread log-dispatch has failed: OSError"
    answer = bench.send_one(request())
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "log-dispatch" in (answer.remark or "")


def test_an_append_that_hangs_makes_the_broker_busy(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.log.lock_held_since = time.monotonic() - 2
    answer = bench.send_one(request())
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (answer.remark or "").startswith("[REJECTREQUEST]system busy")
    bench.log.lock_held_since = time.monotonic()
    assert bench.send_one(request()).code == 0


def test_sends_before_the_configured_time_are_refused(make: Callable[..., Bench]) -> None:
    bench = make(start_accept_timestamp_ms=2**60)
    answer = bench.send_one(request())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(2**60) in (answer.remark or "")


def test_an_order_topic_of_a_broker_that_may_not_be_written_is_refused(make: Callable[..., Bench]) -> None:
    bench = make(permission=4)
    assert bench.send_one(request()).code == 0
    bench.topics.replace_all(
        type(bench.topics.wrapper())(topic_config_table={"O": TopicConfig("O", 1, 1, 6, order=True)})
    )
    assert bench.send_one(request("O")).code == ResponseCode.NO_PERMISSION


# Waiting for a slave


def test_the_sends_of_one_read_share_one_wait_and_are_answered_together(make: Callable[..., Bench]) -> None:
    bench = make(sync=True)
    refused = request("../x")
    impatient = request(properties=properties(WAIT="false"))
    answers = bench.send(
        request(), refused, impatient, request(), request(properties=properties(WAIT="FALSE"))
    )
    assert [answer is None for answer in answers] == [True, False, False, True, False]
    assert len(bench.slave.waits) == 1
    assert bench.slave.ends[0] == bench.stored()[2].physical_offset + bench.stored()[2].size
    assert bench.sends.pending == 2
    bench.ack()
    assert [(answer.code, answer.ext["queueOffset"]) for answer in bench.peer.sent] == [(0, "0"), (0, "2")]
    assert bench.sends.pending == 0


def test_a_slave_that_does_not_answer_in_time(make: Callable[..., Bench]) -> None:
    bench = make(sync=True)
    bench.send(request())
    bench.ack(ok=False)
    (answer,) = bench.peer.sent
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert answer.ext["msgId"] == bench.stored()[0].message_id


def test_no_slave_at_all_is_said_at_once_and_the_message_is_stored(make: Callable[..., Bench]) -> None:
    bench = make(sync=True)
    bench.slave.ok = False
    answer = bench.send_one(request())
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert answer.ext["msgId"] == bench.stored()[0].message_id
    batch = bench.send_one(request(batch=True, body=batch_body([b"one"])))
    assert batch.code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_too_many_pending_sends_make_the_broker_busy(make: Callable[..., Bench]) -> None:
    bench = make(sync=True, max_pending_sends=3)
    assert bench.send(request(), request()) == [None, None]
    answers = bench.send(request(), request())
    assert [answer.code for answer in answers if answer] == [ResponseCode.SYSTEM_BUSY] * 2
    assert all((answer.remark or "").startswith("[OVERLOAD]") for answer in answers if answer)
    assert len(bench.stored()) == 2
    bench.ack()
    assert bench.send(request(), request()) == [None, None]


def test_a_stop_answers_every_pending_send_once(make: Callable[..., Bench]) -> None:
    bench = make(sync=True)
    bench.send(request(), request())
    bench.send(request())
    bench.durability.settle_all()
    bench.ack()
    assert [answer.code for answer in bench.peer.sent] == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3


# Several connections


def test_the_sends_of_several_connections_in_one_turn_share_one_append_and_one_wait(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(sync=True)
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", 3600.0)
    peers = [Peer() for _ in range(4)]

    async def turn() -> None:
        for peer in peers:
            impatient = request(properties=properties(WAIT="false"))
            answers = bench.sends.process_batch(peer, [request(), request("../x"), impatient])  # type: ignore[arg-type]
            if peer is not peers[0]:
                assert answers == [None, None, None]
        await asyncio.sleep(0)

    asyncio.run(turn())
    # The first did not know that others would come.
    assert len(bench.slave.waits) == 2
    assert len(bench.stored()) == 8
    for peer in peers[1:]:
        assert [answer.code for answer in peer.sent] == [ResponseCode.SYSTEM_ERROR, 0]
    bench.ack()
    for place, peer in enumerate(peers):
        assert peer.sent[-1].ext["queueOffset"] == str(2 * place)
    assert bench.sends.pending == 0


def test_one_that_is_alone_again_is_handled_at_once_after_some_turns(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", 3600.0)
    bench.send(request())
    other = bench.peer = Peer()
    later = []

    async def turns() -> None:
        while True:
            (answer,) = bench.send(request())
            if answer is not None:
                return
            later.append(answer)
            await asyncio.sleep(0)

    asyncio.run(turns())
    assert len(later) == CROWD_TURNS
    assert len(other.sent) == CROWD_TURNS


def test_a_mistake_of_ours_still_answers_every_gathered_send(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", 3600.0)
    bench.send(request())
    bench.peer = Peer()
    monkeypatch.setattr(bench.log, "append_many", lambda messages: 1 / 0)

    async def turn() -> None:
        bench.send(request(), request(oneway=True), request())
        await asyncio.sleep(0)

    asyncio.run(turn())
    assert [answer.code for answer in bench.peer.sent] == [ResponseCode.SYSTEM_ERROR] * 2
    assert "ZeroDivisionError" in (bench.peer.sent[0].remark or "")


def test_a_mistake_of_ours_in_the_short_way_costs_no_other_send_its_answer(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", 3600.0)
    bench.send(request())
    bench.peer = Peer()
    monkeypatch.setattr(bench.sends, "_append_run", lambda: 1 / 0)

    async def turn() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
        bench.send(request(), request())
        await asyncio.sleep(0)

    asyncio.run(turn())
    assert [answer.code for answer in bench.peer.sent] == [ResponseCode.SUCCESS] * 2
