"""A master dies, freezes or hands over: who sends goes on at the new one, with the first answer that names it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from haservice.admin.calls import MQAdmin
from haservice.client import ClientOptions, Message, Producer, SendResult
from haservice.devtools.pair import ScratchPair
from haservice.errors import AnswerError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader, SwitchoverBody, SwitchoverHeader
from tests.cluster.support import QUEUES, TOPIC, read, start_with_topic
from tests.support.standing_still import frozen
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.cluster

MakePair = Callable[..., ScratchPair]
Ask = Callable[[ScratchPair], MQAdmin]

# Far beyond what a failover takes: what ends a send in these tests is the new master.
SEND_TIMEOUT_S = PATIENCE_S


class Sender:
    """Sends one message after another in a thread, and keeps what was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self.acknowledged: list[tuple[bytes, SendResult, int]] = []
        self.error: BaseException | None = None
        self._producer = producer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stop.is_set():
                body = b"%06d" % number
                result = self._producer.send(Message(TOPIC, body))
                self.acknowledged.append((body, result, self._producer._inner.session.route_polls))
                number += 1
        except BaseException as error:
            self.error = error

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        wait_until(lambda: self.error or len(self.acknowledged) >= wanted, f"{more} more are acknowledged")
        if self.error:
            raise self.error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert self.error is None


@pytest.fixture
def pair(make_pair: MakePair) -> ScratchPair:
    return make_pair("ASYNC_MASTER")


@pytest.fixture
def sender(pair: ScratchPair, admin: Ask) -> Iterator[Sender]:
    start_with_topic(pair, admin(pair))
    with Producer("g", ClientOptions(pair.namesrv_addr, send_timeout_s=SEND_TIMEOUT_S)) as producer:
        sender = Sender(producer)
        sender.wait_for(50)
        yield sender
        sender.stop()


def promote(ask: MQAdmin, addr: str) -> None:
    header = PromoteHeader(why="failover", force=True)
    assert (
        ask.ask(addr, RequestCode.PROMOTE, header, into=LineageBody, timeout_s=PATIENCE_S).role
        == "ASYNC_MASTER"
    )


def in_route(ask: MQAdmin, addr: str) -> bool:
    try:
        return any(data.broker_addrs.get(0) == addr for data in ask.route(TOPIC).broker_datas)
    except AnswerError:  # for a moment nobody has the topic
        return False


def found_by_the_next_poll(pair: ScratchPair, sender: Sender, ask: MQAdmin) -> None:
    """Once the nameserver names the new master, at most the question under way and the next one pass."""
    wait_until(lambda: in_route(ask, pair.slave_addr), "the route leads to the new master")
    polls = sender._producer._inner.session.route_polls
    sender.wait_for(50)
    slave_port = int(pair.slave_addr.rpartition(":")[2]).to_bytes(4, "big").hex().upper()
    at_the_new = [
        polled for _, result, polled in sender.acknowledged if result.offset_msg_id[8:16] == slave_port
    ]
    assert at_the_new
    assert at_the_new[0] <= polls + 2


def test_a_killed_masters_sends_go_on_at_the_promoted_slave(
    pair: ScratchPair, sender: Sender, admin: Ask
) -> None:
    ask = admin(pair)
    pair.processes["broker-a"].kill()
    promote(ask, pair.slave_addr)
    found_by_the_next_poll(pair, sender, ask)
    sender.stop()
    after = [body for body, result, _ in sender.acknowledged[-50:]]
    assert set(after) <= set(read(ask, pair.slave_addr))


def test_a_frozen_masters_sends_do_not_wait_for_their_timeout(
    pair: ScratchPair, sender: Sender, admin: Ask
) -> None:
    ask = admin(pair)
    with frozen(pair.processes["broker-a"].popen):
        promote(ask, pair.slave_addr)
        wait_until(lambda: in_route(ask, pair.slave_addr), "the route leads to the new master")
        sender.wait_for(50)
        sender.stop()


def test_a_switchover_fails_no_send(pair: ScratchPair, sender: Sender, admin: Ask) -> None:
    ask = admin(pair)
    ask.ask(
        pair.master_addr,
        RequestCode.SWITCHOVER,
        SwitchoverHeader(),
        into=SwitchoverBody,
        timeout_s=PATIENCE_S,
    )
    found_by_the_next_poll(pair, sender, ask)
    sender.stop()
    assert sorted({body for body, _, _ in sender.acknowledged}) == sorted(set(read(ask, pair.slave_addr)))


def test_a_producer_finds_a_master_that_was_not_there_at_the_start(pair: ScratchPair, admin: Ask) -> None:
    ask = admin(pair)
    start_with_topic(pair, ask)
    with Producer("g", ClientOptions(pair.namesrv_addr, send_timeout_s=SEND_TIMEOUT_S)) as producer:
        assert len(producer.queues(TOPIC)) == QUEUES
        pair.processes["broker-a"].kill()
        under_way = producer.send_async(Message(TOPIC, b"waits"))
        pair.start_master()
        assert under_way.result(PATIENCE_S).ok
