"""After 100,000 mixed messages and a slave that came late and was killed twice, both stores are one.

The commit logs are equal byte for byte; consume queues and indexes, deleted and built again from either log,
are what the brokers had built while it grew.
"""

from __future__ import annotations

import filecmp
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commitlog.kernel.layout import BLANK_MAGIC
from commitlog.kernel.records import decode, encode_host
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.admin.calls import MQAdmin
from haservice.configuration.config import load_broker
from haservice.devtools.pair import ScratchPair
from haservice.errors import RemotingError
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.cluster.mixed import BODY_BYTES_MAX, QUEUES, TOPICS, Mark, Mixture, Outcome, Request, send
from tests.cluster.support import is_caught_up, log_end
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

COUNT = 100_000
SEED = 20_261_121
SEGMENT_BYTES = 32 * 1024 * 1024

SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "20000",
    "maxIndexNum": "80000",
    "haSendHeartbeatInterval": "500",
    # Sends that were in flight when the slave died are answered after this.
    "slaveTimeout": "500",
}


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Some 500 MB, which are not kept."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.timeout(180)
def test_both_stores_are_equal_after_everything(scratch: Path) -> None:
    with ScratchPair(scratch, "SYNC_MASTER", SETTINGS) as pair, MQAdmin([pair.namesrv_addr]) as admin:
        outcome = send_all_with_a_troubled_slave(pair, admin)
        assert outcome.statuses.total() == outcome.stored.total() == COUNT
        assert outcome.statuses["SEND_OK"] > COUNT // 4
        assert outcome.statuses["SLAVE_NOT_AVAILABLE"] > 5_000
        wait_until(lambda: is_caught_up(pair, admin), "the slave is level with its master")
        end = log_end(admin, pair.master_addr)
        assert end > 5 * SEGMENT_BYTES
        for name in ("broker-a-s", "broker-a"):
            assert pair.processes[name].stop() == 0

    master, slave = pair.store("broker-a"), pair.store("broker-a-s")
    assert_equal_folders(master / "commitlog", slave / "commitlog")
    assert_equal_folders(master / "consumequeue", slave / "consumequeue")
    found = messages_of(load_broker(pair.root / "broker-a-s.properties").log, end)
    assert (outcome.stored - found, found - outcome.stored) == (Counter(), Counter())
    for name in ("broker-a", "broker-a-s"):
        assert_rebuilt_equal(load_broker(pair.root / f"{name}.properties").log)


def send_all_with_a_troubled_slave(pair: ScratchPair, admin: MQAdmin) -> Outcome:
    """The story: nobody, a late slave, its death, its return, another death amid catching up."""
    pair.start_nameserver()
    pair.start_master()
    for topic in TOPICS:
        admin.update_topic(pair.master_addr, CreateTopicHeader(topic, "TBW102", QUEUES, QUEUES, 6))
    mixture, outcome = Mixture(SEED), Outcome()

    def go_on(messages: int, meanwhile: Callable[[], object] | None = None) -> None:
        """Sends; `meanwhile` begins with the first of them, in a thread of its own."""
        with ThreadPoolExecutor(1) as aside:
            done = aside.submit(meanwhile) if meanwhile else None
            send(pair.master_addr, mixture.take(messages), outcome)
            if done:
                done.result()

    def kill_slave(requests: Iterator[Request], after: int) -> Iterator[Request]:
        for number, request in enumerate(requests):
            if number == after:
                pair.processes["broker-a-s"].kill()
            yield request

    go_on(5_000)
    assert outcome.statuses == {"SLAVE_NOT_AVAILABLE": 5_000}
    # A new slave gets the last segment of its master, so it comes while there is but one.
    pair.start_slave()
    wait_until(lambda: in_transfer(pair, admin), "the slave is being served")
    assert log_end(admin, pair.master_addr) < SEGMENT_BYTES
    go_on(30_000)
    send(pair.master_addr, kill_slave(mixture.take(10_000), after=2_000), outcome)
    go_on(15_000, meanwhile=pair.start_slave)
    send(pair.master_addr, kill_slave(mixture.take(10_000), after=500), outcome)
    go_on(30_000, meanwhile=pair.start_slave)
    return outcome


def in_transfer(pair: ScratchPair, admin: MQAdmin) -> bool:
    try:
        status = admin.ha_status(pair.master_addr)
    except RemotingError:
        return False
    return status is not None and bool(status.ha_connection_info)


def assert_equal_folders(one: Path, other: Path) -> None:
    """The same files with the same bytes."""
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(other)) for path in other.rglob("*") if path.is_file())
    assert names
    _, different, unreadable = filecmp.cmpfiles(one, other, names, shallow=False)
    assert (different, unreadable) == ([], [])


def messages_of(options: LogOptions, end: int) -> Counter[Mark]:
    """What lies in a log, found record by record, each body checked against its sum."""
    found: Counter[Mark] = Counter()
    largest = 0
    for path in sorted(options.log_path.iterdir()):
        segment = memoryview(path.read_bytes())
        start, at = int(path.name), 0
        while start + at < end and at < len(segment):
            size, magic = (int.from_bytes(segment[at + n : at + n + 4], "big", signed=True) for n in (0, 4))
            if magic != BLANK_MAGIC:
                message = decode(segment, at)
                assert message.crc_ok
                assert message.physical_offset == start + at
                found[Mark(message.topic, message.queue_id, len(message.body), message.body_crc)] += 1
                largest = max(largest, len(message.body))
            at += size
    assert largest == BODY_BYTES_MAX
    return found


def assert_rebuilt_equal(options: LogOptions) -> None:
    """Queues and index deleted and built again from the log alone: the same bytes."""
    root = options.root
    before = root.parent / f"{root.name}-before"
    for folder in ("consumequeue", "index"):
        (root / folder).rename(before.with_suffix(f".{folder}"))
    store = Store.open(options, store_host=encode_host("127.0.0.1", 10911))
    assert store.recovery.cut_bytes == 0
    assert store.close(clean=True)
    assert_equal_folders(before.with_suffix(".consumequeue"), root / "consumequeue")
    # Index files are named for when they were made.
    old, new = (sorted(folder.iterdir()) for folder in (before.with_suffix(".index"), root / "index"))
    assert len(old) == len(new)
    assert len(old) > 2
    assert all(filecmp.cmp(one, other, shallow=False) for one, other in zip(old, new, strict=True))
