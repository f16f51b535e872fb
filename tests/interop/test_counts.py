"""What is counted: the same requests to a stock broker and to ours give the same numbers."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.kernel.records import decode
from haservice.errors import AnswerError
from haservice.remoting.bodies.admin import BrokerStatsData
from haservice.remoting.bodies.clients import KVTable
from haservice.remoting.client import BlockingClient, RemotingClient, expect
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import BrokerStatsHeader
from haservice.remoting.headers.clients import (
    CreateTopicHeader,
    ExtHeader,
    OffsetResponseHeader,
    PullMessageHeader,
    QueueHeader,
    SendMessageHeader,
)
from haservice.remoting.headers.retry import SendBackHeader
from tests.interop.stock import KINDS, Broker, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(180)]

TOPIC, GROUP, CLUSTER = "Counted", "counters", "DefaultCluster"
SCHEDULE, HALF = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"
PLAIN, DELAYED, IN_BATCH, HALVES = 5, 4, 3, 2
TIMED_OUT, ANSWERED = 6, 2
RETRIED = 2
HOLD_MS = 1000
# Stock looks for held pulls whose time is up every 5 s.
ANSWER_SECONDS = 15.0
# Of getMissTps and its like: the first of three windows.
WINDOW_S = 10
SUSPEND, WITH_SUBSCRIPTION, PREPARED, COMMIT = 2, 4, 4, 8

STATISTICS = [
    *((name, key) for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE") for key in (TOPIC, SCHEDULE, HALF)),
    ("TOPIC_PUT_NUMS", f"%RETRY%{GROUP}"),
    ("TOPIC_PUT_NUMS", f"%DLQ%{GROUP}"),
    ("QUEUE_PUT_NUMS", f"{SCHEDULE}@0"),
    ("QUEUE_PUT_SIZE", f"{SCHEDULE}@0"),
    ("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"),
    ("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}"),
    ("GROUP_GET_NUMS", f"{SCHEDULE}@SCHEDULE_CONSUMER"),
    ("GROUP_GET_SIZE", f"{SCHEDULE}@SCHEDULE_CONSUMER"),
    ("QUEUE_GET_NUMS", f"{SCHEDULE}@0@SCHEDULE_CONSUMER"),
    ("QUEUE_GET_SIZE", f"{SCHEDULE}@0@SCHEDULE_CONSUMER"),
    ("SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"),
    ("BROKER_PUT_NUMS", CLUSTER),
    ("BROKER_GET_NUMS", CLUSTER),
]


class Feeder:
    """Plain requests to one broker."""

    def __init__(self, client: BlockingClient, addr: str) -> None:
        self.client = client
        self.addr = addr

    def ask(self, code: int, header: ExtHeader | None = None, body: bytes = b"") -> RemotingCommand:
        return self.client.call(
            self.addr, RemotingCommand.request(code, None if header is None else header.encode(), body), 10
        )

    def ok(self, code: int, header: ExtHeader, body: bytes = b"") -> RemotingCommand:
        return expect(self.addr, self.ask(code, header, body), request=code)

    def send(
        self, queue_id: int, body: bytes, *, properties: str = "", sys_flag: int = 0, batch: bool = False
    ) -> Any:
        header = SendMessageHeader(
            producer_group="feeders",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=int(time.time() * 1000),
            flag=0,
            properties=f"UNIQ_KEY\x01{queue_id:032d}\x02{properties}",
            batch=batch,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        answer = self.client.call(self.addr, RemotingCommand.request(code, header.encode(code), body), 10)
        return expect(self.addr, answer, request=code)

    def end(self, topic: str, queue_id: int) -> int:
        answer = self.ok(RequestCode.GET_MAX_OFFSET, QueueHeader(topic, queue_id))
        return OffsetResponseHeader.decode(answer.ext).offset

    def pull(self, queue_id: int, offset: int, flag: int = WITH_SUBSCRIPTION) -> RemotingCommand:
        header = PullMessageHeader(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=flag,
            suspend_timeout_millis=HOLD_MS,
            subscription="*",
            expression_type="TAG",
        )
        return RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())

    def statistic(self, name: str, key: str) -> int | None:
        """Its sum in the last minute; None if there is none."""
        try:
            answer = self.ok(RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(name, key))
        except AnswerError:
            return None
        return BrokerStatsData.decode(answer.body).stats_minute.sum

    def runtime(self) -> dict[str, str]:
        return dict(KVTable.decode(self.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table)

    def of_window(self, name: str) -> int | None:
        """How many there were in the last ten seconds, from getMissTps and its like."""
        first = self.runtime()[name].split(" ")[0]
        return round(float(first) * WINDOW_S) if first else None


@pytest.fixture(scope="module")
def feeders(stock_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Feeder]]:
    """Both kinds, after the same feed."""
    directory = tmp_path_factory.mktemp("counts")
    with servers() as start, BlockingClient() as client:
        found: dict[str, Feeder] = {}
        for kind in KINDS:
            namesrv = nameserver(kind, directory / kind)
            start(namesrv)
            # No look at half messages while we count: it pulls, too.
            master: Broker = broker(
                kind,
                directory / kind,
                namesrv=namesrv,
                transactionCheckInterval=600_000,
                transactionTimeOut=600_000,
            )
            start(master)
            found[kind] = Feeder(client, master.addr)
        for feeder in found.values():
            feed(feeder)
        yield found


def feed(feeder: Feeder) -> None:
    feeder.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(TOPIC, "TBW102", 4, 4, 6))
    for _ in range(PLAIN):
        feeder.send(0, b"x" * 100)
    for _ in range(DELAYED):
        feeder.send(1, b"y" * 50, properties="DELAY\x011\x02")
    feeder.send(2, b"".join(element(b"z" * 10) for _ in range(IN_BATCH)), batch=True)
    for _ in range(HALVES):
        feeder.send(3, b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01feeders\x02", sys_flag=PREPARED)
    wait_until(lambda: feeder.end(TOPIC, 1) == DELAYED, "the delayed messages are there", 20)
    pulled = feeder.client.call(feeder.addr, feeder.pull(0, 0), 10)
    assert pulled.code == ResponseCode.SUCCESS, pulled.remark
    give_back(feeder, bytes(pulled.body))
    wait_until(lambda: feeder.end(f"%RETRY%{GROUP}", 0) == RETRIED, "sent back messages wait no more", 20)


def give_back(feeder: Feeder, records: bytes) -> None:
    """Two are retried, after a second; one is a dead letter."""
    position = 0
    for level in (1, 1, -1):
        (size,) = struct.unpack_from(">i", records, position)
        stored = decode(records[position : position + size])
        position += size
        header = SendBackHeader(
            offset=stored.physical_offset,
            group=GROUP,
            delay_level=level,
            origin_msg_id=stored.message_id,
            origin_topic=TOPIC,
        )
        feeder.ok(RequestCode.CONSUMER_SEND_MSG_BACK, header)


def element(body: bytes) -> bytes:
    """A message of a batch: total size, magic, crc, flag, body, properties."""
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2
    return struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", 0)


def test_statistics_of_topics_groups_and_queues_are_the_same(feeders: dict[str, Feeder]) -> None:
    """Stock samples every ten seconds; until then its numbers of the last minute are smaller."""

    def read(kind: str) -> dict[str, int | None]:
        return {f"{name} {key}": feeders[kind].statistic(name, key) for name, key in STATISTICS}

    ours = read("ours")
    assert ours[f"TOPIC_PUT_NUMS {TOPIC}"] == PLAIN + DELAYED + IN_BATCH
    assert ours[f"TOPIC_PUT_NUMS {SCHEDULE}"] == DELAYED + RETRIED
    assert ours[f"GROUP_GET_NUMS {SCHEDULE}@SCHEDULE_CONSUMER"] == DELAYED + RETRIED
    assert ours[f"TOPIC_PUT_NUMS %DLQ%{GROUP}"] is None
    wait_until(lambda: None not in read("stock").values() or read("stock") == ours, "stock has sampled", 25)
    stock = read("stock")
    assert stock == ours


def test_totals_of_what_was_stored_are_the_same(feeders: dict[str, Feeder]) -> None:
    names = ("putMessageTimesTotal", "putMessageSizeTotal", "msgPutTotalTodayNow", "msgGetTotalTodayNow")
    ours, stock = ({name: feeders[kind].runtime()[name] for name in names} for kind in ("ours", "stock"))
    assert ours == stock
    # Delayed and retried messages are stored twice; the third that was sent back is a dead letter.
    stored = PLAIN + 2 * DELAYED + IN_BATCH + HALVES + 2 * RETRIED + 1
    assert int(ours["putMessageTimesTotal"]) == stored


@pytest.mark.parametrize("kind", KINDS)
def test_a_held_pull_is_a_miss_and_then_what_its_answer_is(feeders: dict[str, Feeder], kind: str) -> None:
    feeder = feeders[kind]
    wait_until(lambda: feeder.of_window("getMissTps") == 0 == feeder.of_window("getFoundTps"), "quiet", 30)
    feeder.client.use(lambda client: hold_and_answer(client, feeder))
    wait_until(
        lambda: feeder.of_window("getMissTps") == 2 * TIMED_OUT + ANSWERED,
        f"misses of {TIMED_OUT} pulls that timed out and {ANSWERED} that were answered",
        9,
    )
    assert feeder.of_window("getFoundTps") == ANSWERED


async def hold_and_answer(client: RemotingClient, feeder: Feeder) -> None:
    """Some pulls find nothing in time, one queue gets a message."""
    pulls = [feeder.pull(3, 0, WITH_SUBSCRIPTION | SUSPEND) for _ in range(TIMED_OUT)]
    pulls += [feeder.pull(2, IN_BATCH, WITH_SUBSCRIPTION | SUSPEND) for _ in range(ANSWERED)]
    waiting = [asyncio.ensure_future(client.invoke(feeder.addr, pull, ANSWER_SECONDS)) for pull in pulls]
    header = QueueHeader(TOPIC, 0)
    for _ in range(2):  # the pulls were read before this is answered
        await client.invoke(
            feeder.addr, RemotingCommand.request(RequestCode.GET_MIN_OFFSET, header.encode()), 5
        )
    await asyncio.to_thread(feeder.send, 2, b"wake up")
    codes = [answer.code for answer in await asyncio.gather(*waiting)]
    assert codes == [ResponseCode.PULL_NOT_FOUND] * TIMED_OUT + [ResponseCode.SUCCESS] * ANSWERED
