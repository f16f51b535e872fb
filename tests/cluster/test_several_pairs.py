"""The walk of docs/operations.md through a cluster of three broker names, while messages flow all the time."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haservice.client import (
    ClientOptions,
    Message,
    Producer,
    PushConsumer,
    Received,
    TransactionState,
)
from haservice.devtools.pair import ScratchPair
from tests.admin.asking import run
from tests.cluster.support import SETTINGS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

NAMES = ("broker-a", "broker-b", "broker-c")
# The page's addresses, by the name whose master has it.
PAGE_ADDRS = dict(zip(("127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10931"), NAMES, strict=True))
PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
GROUP = "billing"
# Sends whose places tell that producers have left a name.
ENOUGH = 60


def page_commands() -> list[str]:
    """The commands of the page's section, in its order."""
    (section,) = re.findall(r"^## Several pairs in one cluster\n(.*?)^## ", PAGE, re.M | re.S)
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", section, re.M | re.S)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


class Cluster:
    """Three masters and a nameserver."""

    def __init__(self, pair: ScratchPair) -> None:
        self._pair = pair
        self.options = ClientOptions(pair.namesrv_addr, route_interval_s=0.2)

    def typed(self, line: str, *more: str) -> str:
        """What the command prints that the page has as `line`."""
        words = shlex.split(line)
        assert words.pop(0) == "mqadmin"
        words = [self._pair.addr(PAGE_ADDRS[word]) if word in PAGE_ADDRS else word for word in words]
        result = run(words[0], "-n", self._pair.namesrv_addr, *words[1:], *more)
        assert result.exit_code == 0, (words, result.output)
        return result.stdout

    def read(self, line: str) -> Any:
        return json.loads(self.typed(line, "-f", "json"))

    def stop(self, name: str) -> int:
        return self._pair.processes[name].stop()


class Flow:
    """Sends to both topics until it is stopped: most messages plainly, some delayed, some as transactions."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._last = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.sent: list[tuple[str, bytes]] = []  # broker name and body of each acknowledged message
        self.failed: list[Exception] = []
        self._ended = False

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._last.set()
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def end(self) -> set[bytes]:
        """Sends no more; the producer stays, for brokers ask it about its transactions.  Returns all bodies."""
        self._last.set()
        wait_until(lambda: self._ended, "the last send is answered")
        return {body for _, body in self.sent}

    def names_of_next(self, count: int) -> Counter[str]:
        """Which broker names the next `count` acknowledged messages went to."""
        first = len(self.sent)
        wait_until(lambda: len(self.sent) >= first + count, f"{count} more messages are sent")
        return Counter(name for name, _ in self.sent[first : first + count])

    def _send(self) -> None:
        with Producer("shop", self._options, listener=Commits()) as producer:
            for number in itertools.count():
                if self._last.wait(0.002):
                    break
                topic = "orders" if number % 3 else "prices"
                body = b"%s %d" % (topic.encode(), number)
                try:
                    if number % 20 == 19:
                        sent = producer.send_in_transaction(Message(topic, body)).sent
                    elif number % 20 == 9:
                        sent = producer.send(Message(topic, body, delay_level=1))
                    else:
                        sent = producer.send(Message(topic, body))
                except Exception as error:
                    self.failed.append(error)
                else:
                    assert sent.queue is not None
                    self.sent.append((sent.queue.broker_name, body))
            self._ended = True
            self._stop.wait()


class Commits:
    """Commits every transaction, most of them only when the broker asks."""

    def execute(self, message: Message, argument: Any) -> TransactionState:
        return TransactionState.COMMIT if message.body.endswith(b"39") else TransactionState.UNKNOWN

    def check(self, message: Received) -> TransactionState:
        return TransactionState.COMMIT


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = {**SETTINGS, "transactionTimeOut": "500", "transactionCheckInterval": "500"}
    with ScratchPair(tmp_path, "ASYNC_MASTER", settings, NAMES) as pair:
        pair.start_nameserver()
        for name in NAMES:
            pair.start_broker(name, brokerName=name, brokerRole="ASYNC_MASTER", brokerId="0")
        yield Cluster(pair)


@contextlib.contextmanager
def consuming(cluster: Cluster, group: str, bodies: set[bytes]) -> Iterator[None]:
    with PushConsumer(group, lambda message: bodies.add(message.body), cluster.options) as consumer:
        consumer.subscribe("orders")
        consumer.subscribe("prices")
        yield


def test_a_name_is_drained_and_closed_while_messages_flow(cluster: Cluster) -> None:
    lines = page_commands()
    (wipe,) = [at for at, line in enumerate(lines) if "wipeWritePerm" in line]
    bodies: set[bytes] = set()
    for line in lines[:4]:
        said = cluster.typed(line)
    assert "broker-a" in said
    assert "broker-b" in said
    with consuming(cluster, GROUP, bodies), Flow(cluster.options) as flow:
        wait_until(lambda: flow.names_of_next(ENOUGH).keys() == {"broker-a", "broker-b"}, "both are used")
        for line in lines[4:wipe]:
            cluster.typed(line)
        wait_until(lambda: flow.names_of_next(ENOUGH).keys() == set(NAMES), "all three are used")

        cluster.typed(lines[wipe])
        elsewhere = {"broker-a", "broker-c"}
        wait_until(lambda: flow.names_of_next(ENOUGH).keys() == elsewhere, "producers have left broker-b")
        assert flow.names_of_next(ENOUGH).keys() == elsewhere
        cluster.typed(lines[wipe + 1])
        with consuming(cluster, "auditing", set()):  # its retry topic makes broker-b register anew
            retries = "%RETRY%auditing"
            wait_until(lambda: retries in cluster.typed("mqadmin topicList"), "the new group has its topic")
            for _ in range(3):
                assert flow.names_of_next(ENOUGH).keys() == elsewhere

        progress, transactions, status = lines[wipe + 2 :]
        wait_until(lambda: diff_at(cluster.read(progress), "broker-b") == 0, "the group has consumed it")
        wait_until(lambda: diff_at(cluster.read(transactions), "broker-b") == 0, "no transaction is open")
        wait_until(lambda: nothing_is_delayed(cluster.read(status)), "nothing is delayed there")
        wait_until(lambda: diff_at(cluster.read(progress), "broker-b") == 0, "what was delayed is consumed")
        assert cluster.stop("broker-b") == 0
        assert "broker-b" not in cluster.typed("mqadmin topicRoute -t orders")

        assert flow.names_of_next(ENOUGH).keys() == elsewhere
        acknowledged = flow.end()
        wait_until(lambda: acknowledged <= bodies, "everything acknowledged is consumed")
    assert flow.failed == []
    assert {name for name, _ in flow.sent} == set(NAMES)


def diff_at(progress: Any, name: str) -> int:
    """The Diff of all queues at that name; they have to be there."""
    found = [row["diff"] for row in progress["queues"] if row["brokerName"] == name]
    assert found
    return sum(found)


def nothing_is_delayed(status: Any) -> bool:
    levels = [value.split(",") for name, value in status.items() if name.startswith("scheduleMessageOffset_")]
    assert levels
    return all(following == end for following, end in levels)
