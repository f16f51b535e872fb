"""Transactions of stock Java producers: at our brokers, and on stores that change hands half-way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from haservice.admin.cli import main
from tests.interop.driver import JavaDriver, JavaError, TransactionProducer
from tests.interop.stock import KINDS, Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(300)]

Start = Callable[..., None]

# Nobody's message is discarded while brokers change.
QUICK_CHECKS = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000, "transactionCheckMax": 1000}
LIMITED_CHECKS = {**QUICK_CHECKS, "transactionCheckMax": 3}
NO_CHECKS = {"transactionCheckInterval": 3_600_000}


@pytest.fixture(scope="module")
def start(stock_jars: Path) -> Iterator[Start]:
    with servers() as starter:
        yield starter


@pytest.fixture(scope="module")
def namesrv(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Nameserver:
    made = nameserver("ours", tmp_path_factory.mktemp("transactions"))
    start(made)
    return made


@pytest.fixture(scope="module")
def ours(start: Start, namesrv: Nameserver) -> Broker:
    """A broker of ours that asks every second."""
    made = broker("ours", namesrv.directory.parent, name="broker-t", namesrv=namesrv, **LIMITED_CHECKS)
    start(made)
    return made


def make_topic(java: JavaDriver, at: Broker, topic: str) -> None:
    """At this broker only, for brokers of other tests are in the nameserver, too."""
    assert "success" in java.mqadmin(at.namesrv, "updateTopic", "-b", at.addr, "-t", topic)


def send(producer: TransactionProducer, topic: str, *keys: str) -> None:
    """A message for each key of the producer's script, whose body is the key."""
    for key in keys:
        assert producer.send_transaction(topic, key, keys=key)["status"] == "SEND_OK"


def test_what_becomes_of_a_message_is_its_producers_decision(
    ours: Broker, namesrv: Nameserver, java: JavaDriver
) -> None:
    script = {
        "committed": ["COMMIT"],
        "rolled-back": ["ROLLBACK"],
        "committed-by-check": ["UNKNOW", "UNKNOW", "COMMIT"],
        "rolled-back-by-check": ["UNKNOW", "ROLLBACK"],
        "never": ["UNKNOW"],
        "fails": ["THROW", "COMMIT"],
    }
    producer = java.transaction_producer(namesrv, "transactions", script)
    send(producer, "Decided", *script)
    # A local transaction that throws is one whose outcome its producer does not know.
    wanted = [b"committed", b"committed-by-check", b"fails"]
    consumer = java.push(namesrv, "decided-group", "Decided")
    wait_until(lambda: len(consumer.bodies()) >= len(wanted), "what was committed is consumed")

    discarded = java.push(namesrv, "given-up-group", "TRANS_CHECK_MAX_TIME_TOPIC")
    wait_until(lambda: discarded.bodies() == [b"never"], "what nobody decides is discarded")
    assert discarded.received()[0].properties["REAL_TOPIC"] == "Decided"
    assert sorted(consumer.bodies()) == wanted, "each once, and nothing else"

    checks = [(one.body, one.answer) for one in producer.checks()]
    assert [answer for body, answer in checks if body == b"committed-by-check"] == ["UNKNOW", "COMMIT"]
    assert [answer for body, answer in checks if body == b"rolled-back-by-check"] == ["ROLLBACK"]
    assert [answer for body, answer in checks if body == b"never"] == ["UNKNOW"] * 3
    assert {one.topic for one in producer.checks()} == {"Decided"}
    assert not {b"committed", b"rolled-back"} & {body for body, _ in checks}


def test_open_transactions_outlive_our_broker(
    start: Start, namesrv: Nameserver, tmp_path: Path, java: JavaDriver
) -> None:
    master = broker("ours", tmp_path, name="broker-u", namesrv=namesrv, **NO_CHECKS)
    start(master)
    make_topic(java, master, "Outliving")
    producer = java.transaction_producer(namesrv, "outliving", {"*": ["UNKNOW", "COMMIT"], "now": ["COMMIT"]})
    send(producer, "Outliving", "before-the-stop", "now")
    master.stop()
    start(master)
    wait_until(lambda: _sent(producer, "Outliving", "before-the-kill"), "the producer is back")
    master.kill()
    master.properties.update(QUICK_CHECKS)
    start(master)
    consumer = java.push(namesrv, "outliving-group", "Outliving")
    wanted = [b"before-the-kill", b"before-the-stop", b"now"]
    wait_until(lambda: sorted(consumer.bodies()) == wanted, "all are delivered, each once", 90)
    assert sorted(one.body for one in producer.checks()) == wanted[:2]


@pytest.mark.parametrize("first", KINDS)
def test_a_store_changes_hands_in_the_middle_of_transactions(
    first: str, start: Start, namesrv: Nameserver, tmp_path: Path, java: JavaDriver
) -> None:
    """Half messages, ends and progress of one kind of broker are gone on with by the other."""
    second = KINDS[1 - KINDS.index(first)]
    topic, name = f"Hands-{first}", f"broker-{first}"
    producer = java.transaction_producer(
        namesrv, f"hands-{first}",
        {"*": ["COMMIT"], "open": ["UNKNOW", "COMMIT"], "asked": ["UNKNOW", "UNKNOW", "COMMIT"],
         "no": ["ROLLBACK"]},
    )  # fmt: skip
    before = broker(first, tmp_path, name=name, namesrv=namesrv, **QUICK_CHECKS)
    start(before)
    make_topic(java, before, topic)
    send(producer, topic, "asked")
    wait_until(lambda: len(producer.checks()) == 1, "it is asked about once")
    send(producer, topic, "yes", "no", "open")
    before.stop()

    after = broker(second, tmp_path, name=name, namesrv=namesrv, port=before.port, **QUICK_CHECKS)
    start(after)
    consumer = java.push(namesrv, f"hands-group-{first}", topic)
    wait_until(lambda: set(consumer.bodies()) == {b"yes", b"open", b"asked"}, "all are delivered", 90)
    assert {one.body for one in producer.checks()} == {b"open", b"asked"}
    assert len(consumer.bodies()) == 3, "each once"
    wait_until(lambda: _sent(producer, topic, "later"), "it goes on")
    wait_until(lambda: b"later" in consumer.bodies(), "and is consumed")


@pytest.mark.parametrize("kind", KINDS)
def test_a_slave_that_becomes_the_master_asks_about_what_it_copied(
    kind: str, start: Start, namesrv: Nameserver, tmp_path: Path, java: JavaDriver
) -> None:
    """A slave of one kind under a master of the other, which dies and does not come back."""
    topic, name = f"Promoted-{kind}", f"broker-p-{kind}"
    other = KINDS[1 - KINDS.index(kind)]
    master = broker(other, tmp_path, name=name, role="SYNC_MASTER", namesrv=namesrv, **NO_CHECKS)
    slave = broker(kind, tmp_path, name=name, broker_id=1, role="SLAVE", namesrv=namesrv, **QUICK_CHECKS)
    start(master, slave)
    make_topic(java, master, topic)
    producer = java.transaction_producer(
        namesrv, f"promoted-{kind}", {"*": ["COMMIT"], "open": ["UNKNOW", "COMMIT"]}
    )
    # Until the slave is there the client rolls back what the master cannot prove.
    keys = (f"committed-{number}" for number in itertools.count())
    wait_until(lambda: _state(producer, topic, next(keys)) == "COMMIT_MESSAGE", "the slave keeps up", 30)
    assert _state(producer, topic, "open") == "UNKNOW"
    master.kill()
    slave.stop()
    slave.broker_id, slave.role = 0, "ASYNC_MASTER"
    start(slave)
    if kind == "ours":  # its file alone makes no master of a slave
        command = ["failover", "-n", namesrv.addr, "-b", name, "--to", slave.addr, "--force", "--yes"]
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
    consumer = java.push(namesrv, f"promoted-group-{kind}", topic)
    wait_until(lambda: b"open" in consumer.bodies(), "it is asked about, and delivered", 90)
    # The end of another may not have come to the slave: a producer does not wait for an answer to it.
    assert [one.body for one in producer.checks()].count(b"open") == 1
    assert consumer.bodies().count(b"open") == 1


def _state(producer: TransactionProducer, topic: str, key: str) -> str:
    """What became of a transaction's message; empty when it could not be sent."""
    try:
        answer = producer.send_transaction(topic, key, keys=key)
    except JavaError:
        return ""
    return str(answer["state"])


def _sent(producer: TransactionProducer, topic: str, key: str) -> bool:
    """Whether it could be sent now; the broker may have come back a moment ago."""
    try:
        return bool(producer.send_transaction(topic, key, keys=key)["status"] == "SEND_OK")
    except JavaError:
        return False
