"""Many consumer offsets in a real broker that is killed, that stops, and that goes on as a slave's master."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from haservice.devtools.pair import ScratchPair
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.remoting.client import BlockingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import UpdateConsumerOffsetHeader
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

# More than are written whole each time.
OFFSETS = 20_000


@pytest.fixture
def pair(make_pair: Callable[..., ScratchPair]) -> ScratchPair:
    made = make_pair("ASYNC_MASTER", flushConsumerOffsetInterval="100")
    config = made.store("broker-a") / "config"
    config.mkdir(parents=True)
    table = ConsumerOffsetWrapper({f"T{number}@group": {0: 7} for number in range(OFFSETS)})
    (config / "consumerOffset.json").write_bytes(table.encode())
    made.start_nameserver()
    made.start_master()
    return made


def commit(client: BlockingClient, addr: str, topic: str, offset: int) -> None:
    header = UpdateConsumerOffsetHeader("group", topic, 0, offset)
    request = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
    expect(addr, client.call(addr, request))


def offset_at(client: BlockingClient, addr: str, topic: str) -> int | None:
    """What a stock slave would learn."""
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET), 10.0)
    return ConsumerOffsetWrapper.decode(expect(addr, answer).body).offset_table[f"{topic}@group"].get(0)


def in_file(path: Path, topic: str) -> int | None:
    return ConsumerOffsetWrapper.decode(path.read_bytes()).offset_table[f"{topic}@group"].get(0)


def test_a_killed_broker_goes_on_from_its_journal_and_a_stopped_one_leaves_the_file_whole(
    pair: ScratchPair,
) -> None:
    file = pair.store("broker-a") / "config" / "consumerOffset.json"
    journal = file.with_name("consumerOffset.journal")
    with BlockingClient() as client:
        commit(client, pair.master_addr, "T5", 100)
        wait_until(lambda: journal.exists() and b"T5@group" in journal.read_bytes(), "the commit is written")
        assert in_file(file, "T5") == 7
        pair.processes["broker-a"].kill()
        with journal.open("ab") as torn:
            torn.write(b"\0\0\0\x40half an entry")
        pair.start_master()
        assert offset_at(client, pair.master_addr, "T5") == 100
        wait_until(lambda: in_file(file, "T5") == 100, "the file is written whole")
        commit(client, pair.master_addr, "T6", 200)
        assert pair.processes["broker-a"].stop() == 0
    assert in_file(file, "T6") == 200
    assert not journal.exists()


def test_a_slave_that_copied_by_change_is_promoted_with_all_of_them(pair: ScratchPair) -> None:
    pair.start_slave()
    with BlockingClient() as client:
        wait_until(lambda: known(client, pair.slave_addr) == OFFSETS, "the slave has its copy")
        commit(client, pair.master_addr, "T5", 100)
        commit(client, pair.master_addr, "T6", 3)  # a reset
        wait_until(lambda: offset_at(client, pair.slave_addr, "T5") == 100, "the slave has what changed")
        assert offset_at(client, pair.slave_addr, "T6") == 3
        pair.processes["broker-a-s"].stop()
        pair.start_broker("broker-a-s", brokerRole="ASYNC_MASTER", brokerId="0")
        assert offset_at(client, pair.slave_addr, "T5") == 100
        assert offset_at(client, pair.slave_addr, "T6") == 3
        assert known(client, pair.slave_addr) == OFFSETS


def known(client: BlockingClient, addr: str) -> int:
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET), 10.0)
    return len(ConsumerOffsetWrapper.decode(expect(addr, answer).body).offset_table)
