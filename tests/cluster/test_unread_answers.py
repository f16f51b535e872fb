"""Who asks for much and reads nothing costs a running broker a few answers, and nobody else is kept waiting.

What is measured is the most memory that the broker's process had at once, while strangers ask.  Each sends
some hundred kilobytes, for answers of gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.client.raw_sends import RawMessage, send_command
from haservice.devtools.pair import ScratchPair
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageResponseHeader
from tests.cluster.support import TOPIC, send_ok, start_master_with_topic
from tests.support.remoting import Peer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

MIB = 1 << 20
LARGE_BYTES = 4 * MIB - 64 * 1024
CONFIGURATION = {
    "enablePropertyFilter": "true",
    "maxMessageSize": str(4 * MIB),
    "mappedFileSizeCommitLog": str(64 * MIB),
    "maxUnreadAnswerBytes": str(64 * MIB),
}
# What may wait and be made for one connection; and what is added by copies on the way, and by the allocator, which
# keeps a large block or two for each thread that read such a message.
ONE_BYTES_MAX = 16 * MIB
ALL_BYTES_MAX = 2 * int(CONFIGURATION["maxUnreadAnswerBytes"])
SLACK_BYTES = 40 * MIB


class Broker:
    """A master in a process of its own, and what it costs."""

    def __init__(self, pair: ScratchPair) -> None:
        self.pair = pair
        self.addr = pair.master_addr
        self.port = int(self.addr.rpartition(":")[2])
        self._proc = Path(f"/proc/{pair.processes['broker-a'].pid}")

    def forget_peak(self) -> int:
        """Bytes in memory now; the peak begins anew."""
        (self._proc / "clear_refs").write_text("5")
        return self._status("VmRSS")

    @property
    def peak(self) -> int:
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))

    def put_large(self, client: BlockingClient, **properties: str) -> int:
        """A message of the largest kind; returns its place in the log."""
        message = RawMessage(bytes(LARGE_BYTES), properties)
        answer = client.call(self.addr, send_command(TOPIC, 0, message))
        assert answer.code == 0, answer.remark
        offset_id = SendMessageResponseHeader.decode(answer.ext).msg_id
        return struct.unpack(">q", bytes.fromhex(offset_id)[-8:])[0]  # type: ignore[no-any-return]

    def answers_others(self) -> None:
        send_ok(self.addr, [b"%d" % number for number in range(20)])


@pytest.fixture
def broker(
    make_pair: Callable[..., ScratchPair], admin: Callable[[ScratchPair], MQAdmin]
) -> Iterator[Broker]:
    pair = make_pair("ASYNC_MASTER", **CONFIGURATION)
    start_master_with_topic(pair, admin(pair))
    made = Broker(pair)
    made.answers_others()
    return made


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as made:
        yield made


def view(offset: int, count: int) -> list[RemotingCommand]:
    ext = {"offset": str(offset)}
    return [RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext, opaque=number) for number in range(count)]


def pulls(offset: int, count: int, flags: int = 4, **fields: str) -> list[RemotingCommand]:
    ext = {
        "consumerGroup": "strangers", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(flags), "commitOffset": "0", "suspendTimeoutMillis": "60000",
        "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return [
        RemotingCommand(RequestCode.PULL_MESSAGE, {**ext, **fields}, opaque=number) for number in range(count)
    ]


SQL = {"expressionType": "SQL92", "subscription": "wanted IS NOT NULL"}


def assert_bounded(broker: Broker, client: BlockingClient, offset: int, before: int, bytes_max: int) -> None:
    """Others are answered, by the loop and by work threads; what the strangers asked for is not in memory."""
    broker.answers_others()
    for _ in range(20):
        answer = client.call(broker.addr, view(offset, 1)[0])
        assert (answer.code, len(answer.body) > LARGE_BYTES) == (0, True)
    grown = broker.peak - before
    assert grown < bytes_max + SLACK_BYTES, f"{grown >> 20} MiB"


def test_one_that_looks_up_large_messages_and_reads_none(broker: Broker, client: BlockingClient) -> None:
    offset = broker.put_large(client)
    assert_bounded(broker, client, offset, broker.forget_peak(), ONE_BYTES_MAX)
    with Peer(broker.port) as stranger:
        before = broker.forget_peak()
        stranger.send(*view(offset, 3000))
        assert_bounded(broker, client, offset, before, ONE_BYTES_MAX)
        # It is answered after all, as it reads.
        assert {stranger.receive().opaque for _ in range(40)} >= set(range(38))


@pytest.mark.parametrize("subscription", [{}, SQL], ids=["any", "sql92"])
def test_one_whose_pulls_wait_for_a_large_message(
    broker: Broker,
    client: BlockingClient,
    admin: Callable[[ScratchPair], MQAdmin],
    subscription: dict[str, str],
) -> None:
    offset = broker.put_large(client, wanted="yes")
    tool, count = admin(broker.pair), 6000
    end = tool.topic_stats(broker.addr, TOPIC).offset_table
    next_offset = max(one.max_offset for queue, one in end.items() if queue.queue_id == 0)
    with Peer(broker.port) as stranger:
        stranger.send(*pulls(next_offset, count, 2 | 4, **subscription))
        wait_until(lambda: int(tool.runtime_info(broker.addr)["heldPulls"]) == count, "all pulls are held")
        before = broker.forget_peak()
        broker.put_large(client, wanted="yes")
        assert_bounded(broker, client, offset, before, ONE_BYTES_MAX)
        for _ in range(5):
            assert len(stranger.receive().body) > LARGE_BYTES


def test_one_that_pulls_by_an_expression_and_reads_nothing(broker: Broker, client: BlockingClient) -> None:
    offset = broker.put_large(client, wanted="yes")
    assert_bounded(broker, client, offset, broker.forget_peak(), ONE_BYTES_MAX)
    with Peer(broker.port) as stranger:
        before = broker.forget_peak()
        stranger.send(*pulls(0, 3000, **SQL))
        assert_bounded(broker, client, offset, before, ONE_BYTES_MAX)


def test_strangers_together_are_bounded_and_those_who_read_stay(
    broker: Broker, client: BlockingClient
) -> None:
    """Those that have read nothing for longest are disconnected; one that reads is not."""
    offset = broker.put_large(client)
    with ExitStack() as stack:
        reader = stack.enter_context(Peer(broker.port))
        before = broker.forget_peak()
        strangers = []
        for _ in range(40):
            strangers.append(stack.enter_context(Peer(broker.port)))
            strangers[-1].send(*view(offset, 100))
            reader.send(*view(offset, 1))
            assert len(reader.receive().body) > LARGE_BYTES
        assert_bounded(broker, client, offset, before, ALL_BYTES_MAX)
        log = broker.pair.processes["broker-a"].log
        wait_until(lambda: "closing a peer that does not read" in log.read_text(), "strangers are ended")
        reader.send(*view(offset, 1))
        assert len(reader.receive().body) > LARGE_BYTES
