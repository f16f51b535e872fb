"""A producer's ledger: a line before each send, and one that says what became of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haservice.client import (
    AsyncProducer,
    LedgerError,
    Message,
    Producer,
    ProducerLimits,
    Received,
    SendFailed,
    TransactionState,
)
from haservice.client.raw_sends import RawMessage, SendQueue, Sent, send_all
from haservice.remoting.codes import ResponseCode
from tests.client.fakes import (
    Behaviour,
    FakeBroker,
    FakeCluster,
    answers,
    fake_broker,
    fake_cluster,
    hangs_up,
    route,
)
from tests.pipeline.brokers import Cluster, properties_of, stored

HELLO = Message("T", b"hello")
LIMITED = """
import resource
from haservice.admin.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_001, 100_001))
main()
"""


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


@pytest.fixture
def broker(cluster: FakeCluster) -> Iterator[FakeBroker]:
    with fake_broker("a") as broker:
        cluster.routes["T"] = route(1, a={0: broker.addr})
        yield broker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sent.jsonl"


def said(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def statuses(path: Path) -> list[tuple[str, str]]:
    return [(one["msgId"], one["status"]) for one in said(path)]


def test_a_send_is_noted_before_it_goes_out_and_its_answer_before_it_returns(
    cluster: FakeCluster, broker: FakeBroker, path: Path
) -> None:
    seen: list[list[tuple[str, str]]] = []
    broker.behaviours.append(lambda *_: seen.append(statuses(path)))  # no answer, but a look
    with Producer("g", cluster.options, ledger=path) as producer:
        with pytest.raises(SendFailed):
            producer.send(HELLO, timeout_s=0.3)
        result = producer.send(HELLO)
        (lost,) = seen[0]
        assert lost[1] == "SENDING"
        assert statuses(path)[1:] == [
            (lost[0], "NO_ANSWER"),
            (result.msg_id, "SENDING"),
            (result.msg_id, "SEND_OK"),
        ]
        place = {"topic": "T", "queueId": 0, "queueOffset": 7}
        assert place.items() <= said(path)[-1].items()
        assert "ackedMs" not in said(path)[1]


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        (answers(ResponseCode.FLUSH_SLAVE_TIMEOUT), "FLUSH_SLAVE_TIMEOUT"),
        (answers(ResponseCode.MESSAGE_ILLEGAL), "NOT_STORED"),
        (hangs_up, "NO_ANSWER"),
    ],
)
def test_what_is_no_promise_has_its_own_word(
    cluster: FakeCluster, broker: FakeBroker, path: Path, behaviour: Behaviour, status: str
) -> None:
    broker.behaviours.append(behaviour)
    with Producer("g", cluster.options, ledger=path, limits=ProducerLimits(retries=0)) as producer:
        try:
            producer.send(HELLO)
        except SendFailed:
            assert status != "FLUSH_SLAVE_TIMEOUT"
    assert [one for _, one in statuses(path)] == ["SENDING", status]


def test_batches_delays_and_oneway_sends(cluster: FakeCluster, broker: FakeBroker, path: Path) -> None:
    with Producer("g", cluster.options, ledger=str(path)) as producer:
        batch = producer.send_batch([HELLO, HELLO])
        later = producer.send_async(Message("T", b"later", delay_level=1)).result()
        producer.send_oneway(HELLO)
    first, second = batch.msg_id.split(",")
    found = said(path)
    places = [(one["msgId"], one["status"], one.get("queueOffset")) for one in found]
    assert places[:-1] == [
        (first, "SENDING", None),
        (second, "SENDING", None),
        (first, "SEND_OK", 7),
        (second, "SEND_OK", 8),
        (later.msg_id, "SENDING", None),
        (later.msg_id, "SEND_OK", None),  # its place is that of the delay level
    ]
    assert found[-1]["status"] == "ONEWAY"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (TransactionState.COMMIT, "COMMITTED"),
        (TransactionState.ROLLBACK, "ROLLED_BACK"),
        (TransactionState.UNKNOWN, "UNDECIDED"),
    ],
)
def test_a_half_message_is_no_promise(
    cluster: FakeCluster, broker: FakeBroker, path: Path, state: TransactionState, word: str
) -> None:
    class Listener:
        def execute(self, message: Message, argument: object) -> TransactionState:
            return state

        def check(self, message: Received) -> TransactionState:
            return state

    with Producer("g", cluster.options, listener=Listener(), ledger=path) as producer:
        producer.send_in_transaction(HELLO)
    assert [one for _, one in statuses(path)] == ["SENDING", word]


def test_a_message_that_cannot_be_noted_is_not_sent(
    cluster: FakeCluster, broker: FakeBroker, path: Path
) -> None:
    with Producer("g", cluster.options, ledger=path) as producer:
        producer.send(HELLO)
        path.unlink()
        with pytest.raises(LedgerError, match="the message was not sent"):
            producer.send(HELLO)
        with pytest.raises(LedgerError, match="the message was not sent"):
            producer.send_oneway(HELLO)
    assert len(broker.sends) == 1


def test_a_ledger_that_cannot_be_opened_is_said_at_the_start(cluster: FakeCluster, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="Is a directory"), Producer("g", cluster.options, ledger=tmp_path):
        pytest.fail("it started")

    async def main() -> None:
        producer = AsyncProducer("g", cluster.options, ledger=tmp_path)
        with pytest.raises(LedgerError):
            await producer.send(HELLO)
        await producer.close()

    asyncio.run(main())


def test_raw_sends_are_noted_and_end_where_the_ledger_ends(
    cluster: FakeCluster, broker: FakeBroker, path: Path
) -> None:
    from haservice.ledger import SentLedger

    broker.behaviours += [answers(ResponseCode.SYSTEM_ERROR)]
    answered: list[Sent] = []

    async def messages() -> Any:
        for number in range(4):
            if number == 3:
                path.unlink()
            yield RawMessage(b"x", {"DELAY": "1"} if number == 1 else {})

    async def main() -> None:
        ledger = SentLedger(path)
        queues = [SendQueue("a", broker.addr, 0)]
        try:
            with pytest.raises(LedgerError, match="the message was not sent"):
                await send_all("T", queues, messages(), note, in_flight=1, ledger=ledger)
        finally:
            ledger.close()

    lines: list[dict[str, Any]] = []

    def note(sent: Sent) -> None:
        answered.append(sent)
        lines[:] = said(path)

    asyncio.run(main())
    assert len(broker.sends) == len(answered) == 3
    assert [one["status"] for one in lines] == [
        *("SENDING", "SYSTEM_ERROR", "SENDING", "SEND_OK", "SENDING", "SEND_OK")
    ]
    assert [one.get("queueOffset") for one in lines] == [None, None, None, None, None, 7]


def test_mqadmin_ends_where_its_ledger_cannot_grow_and_no_stored_message_lacks_a_line(tmp_path: Path) -> None:
    """The system's limit of a file's size stands for a full disk: a write is cut short, the next one fails."""
    path, source = tmp_path / "sent.jsonl", tmp_path / "lines"
    source.write_text("".join(f"{number}\n" for number in range(2_000)))
    made = Cluster(tmp_path)
    try:
        node = made.start()
        arguments = ["sendMessage", "-n", made.namesrv, "-t", "Orders", "--ledger", str(path), str(source)]
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stderr
        assert f"Error: ledger {path}: File too large: begin a new one" in done.stderr
        assert "SEND_OK" in done.stdout
        assert path.read_bytes().endswith(b"}\n")
        lines = said(path)
        there = {properties_of(one)["UNIQ_KEY"] for one in stored(node, "Orders")}
        assert 100 < len(there) < 2_000
        assert there <= {one["msgId"] for one in lines}
        assert {one["msgId"] for one in lines if one["status"] == "SEND_OK"} <= there
    finally:
        made.close()
