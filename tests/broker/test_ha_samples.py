"""HA samples: what stands in the file, when a line is written, and that trouble with it is nobody else's."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.store_lock import boot_id
from haservice.broker.node import BrokerNode
from haservice.broker.stats import ha_samples
from haservice.broker.stats.ha_samples import HASamples, sample
from haservice.configuration.settings import BrokerRole
from haservice.remoting.client import BlockingClient
from haservice.replication.status import HAStatus, Lack, MasterLinkStatus, NotInSync, SlaveStatus
from tests.support.brokers import LOOPBACK, addr_of, send
from tests.support.waiting import wait_until

SLAVE = SlaveStatus(
    addr="10.0.0.7:51234",
    state="transfer",
    position=900,
    ack=800,
    proven=800,
    sent_from=0,
    lag_bytes=200,
    lag_seconds=0.12345,
    bytes_per_second=1023.6,
    lack=None,
    replica_id="r1",
    broker_addr="10.0.0.7:10911",
)
MASTER = HAStatus(
    role="SYNC_MASTER",
    log_start=100,
    log_end=1000,
    push2slave_max_offset=800,
    in_sync_slaves=1,
    waiting_sends=0,
    slaves=(SLAVE,),
    absent=(),
    master=None,
    epoch=3,
)
LINK = MasterLinkStatus(
    master_addr="10.0.0.1:10912",
    state="TRANSFER",
    offset=800,
    reported=800,
    last_read_timestamp_ms=0,
    last_write_timestamp_ms=0,
    seconds_since_read=0.0,
    bytes_per_second=5.0,
    connects=1,
    last_error="",
    master_end=1000,
)


class Broker:
    """What the samples look at, as a test sets it."""

    def __init__(self, root: Path) -> None:
        self.now_s = 1000.0
        self.flushed = 700
        self.position = 990
        self.readable = 950
        self.told = MASTER
        self.path = root / "hasamples" / "ha.jsonl"
        self.samples = HASamples(
            root, self, self, self, 1.0, clock_ms=lambda: int(self.now_s * 1000), clock_s=lambda: self.now_s
        )

    def status(self) -> HAStatus:
        return self.told

    def readable_end(self) -> int:
        return self.readable

    def look(self) -> int:
        """Looks once; how many lines there are."""
        self.samples.look()
        return len(self.lines()) if self.path.exists() else 0

    def lines(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [{name: value for name, value in line.items() if name != "crc"} for line in lines]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.samples.close()


def test_a_masters_line_says_how_its_slaves_stand(broker: Broker) -> None:
    broker.look()
    assert broker.lines() == [
        {
            "ts": 1_000_000,
            "boot": boot_id(),
            "role": "SYNC_MASTER",
            "epoch": 3,
            "start": 100,
            "end": 1000,
            "flushed": 700,
            "confirmed": 950,
            "push2slave": 800,
            "inSync": 1,
            "slaves": [
                {
                    "addr": "10.0.0.7:10911",
                    "id": "r1",
                    "ack": 800,
                    "lagBytes": 200,
                    "lagSeconds": 0.123,
                    "rate": 1024,
                    "inSync": True,
                }
            ],
            "master": None,
        }
    ]


def test_a_stock_slave_goes_by_its_host_and_has_no_lag_before_it_reports() -> None:
    stock = replace(
        SLAVE, replica_id="", broker_addr="", ack=-1, lag_bytes=1000, lack=Lack(NotInSync.NO_REPORT)
    )
    (line,) = sample(replace(MASTER, slaves=(stock,)), flushed=0, confirmed=0)["slaves"]
    assert (line["addr"], line["id"]) == ("10.0.0.7:51234", "10.0.0.7")
    assert (line["ack"], line["lagBytes"], line["inSync"]) == (-1, -1, False)


def test_a_slaves_line_says_how_far_it_is_behind_its_master() -> None:
    status = replace(MASTER, role="SLAVE", slaves=(), master=LINK)
    assert sample(status, flushed=0, confirmed=0)["master"] == {
        "addr": "10.0.0.1:10912",
        "state": "TRANSFER",
        "offset": 800,
        "masterEnd": 1000,
        "lagBytes": 200,
        "rate": 5,
    }
    unknown = replace(status, master=replace(LINK, master_end=-1))
    assert sample(unknown, flushed=0, confirmed=0)["master"]["lagBytes"] == -1


def test_confirmed_is_the_end_of_a_whole_record_even_where_the_log_goes_on(broker: Broker) -> None:
    broker.readable, broker.position = 1000, 940  # a slave's frame may end inside of a record
    broker.look()
    assert broker.lines()[0]["confirmed"] == 940


def test_a_line_is_written_when_something_changed_and_every_ten_seconds_else(broker: Broker) -> None:
    assert broker.look() == 1
    broker.now_s += 9.9
    assert broker.look() == 1
    broker.flushed += 1
    assert broker.look() == 2
    broker.now_s += 9.9
    assert broker.look() == 2
    broker.now_s += 0.1
    assert broker.look() == 3


def test_the_file_rolls_and_only_the_newest_eight_are_kept(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_samples, "FILE_BYTES_MAX", 1000)
    for _ in range(100):
        broker.flushed += 1
        broker.look()
    names = sorted(path.name for path in broker.path.parent.iterdir())
    assert names == ["ha.jsonl", *(f"ha.jsonl.{number}" for number in range(1, 8))]
    assert all(path.stat().st_size <= 1000 for path in broker.path.parent.iterdir())
    assert broker.lines()[-1]["flushed"] == 800


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.path.parent.write_text("a file stands where the directory is to be")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            broker.samples.look()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert str(broker.path) in caplog.text
    broker.path.parent.unlink()
    assert broker.look() == 1


def test_a_disk_that_fills_up_costs_no_line_that_follows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker.look()

    def full(handler: logging.Handler, record: logging.LogRecord) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            handler.handleError(record)

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(logging.FileHandler, "emit", full)
        broker.flushed += 1
        broker.samples.look()
    assert "No space left on device" in caplog.text
    assert broker.look() == 2
    assert broker.lines()[-1]["flushed"] == broker.flushed


# ---- whole brokers


def last_line(root: Path) -> dict[str, Any]:
    path = root / "hasamples" / "ha.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1]) if lines else {}


def test_both_brokers_of_a_pair_write_what_they_know_of_each_other(
    start: Callable[..., BrokerNode], client: BlockingClient, tmp_path: Path
) -> None:
    often = {"sample_interval_ms": 20}
    master = start("a", role=BrokerRole.SYNC_MASTER, replication=often)
    slave = start(
        "a-s",
        role=BrokerRole.SLAVE,
        replication={"master_address": f"{LOOPBACK}:{master.ha.port}", **often},
    )
    wait_until(lambda: master.ha.is_slave_ok(0), "the slave counts")
    send(client, addr_of(master), "T", b"one")
    end = master.store.log.end

    def level() -> bool:
        ours, theirs = last_line(tmp_path / "a"), last_line(tmp_path / "a-s")
        return bool(
            ours.get("confirmed") == end
            and [one["ack"] for one in ours["slaves"]] == [end]
            and theirs.get("confirmed") == end
            and theirs["master"]["lagBytes"] == 0
        )

    wait_until(level, "both say that the slave is level")
    ours, theirs = last_line(tmp_path / "a"), last_line(tmp_path / "a-s")
    assert (ours["role"], ours["inSync"], theirs["role"]) == ("SYNC_MASTER", 1, "SLAVE")
    assert ours["slaves"][0]["addr"] == addr_of(slave)
    assert theirs["master"]["addr"] == f"{LOOPBACK}:{master.ha.port}"


def test_a_broker_with_the_interval_0_writes_none(start: Callable[..., BrokerNode], tmp_path: Path) -> None:
    node = start("a", replication={"sample_interval_ms": 0})
    assert node.ha_samples is None
    node.stop()
    assert not (tmp_path / "a" / "hasamples").exists()


def test_a_line_that_a_power_cut_tore_spoils_no_other(tmp_path: Path) -> None:
    torn = tmp_path / "hasamples" / "ha.jsonl"
    torn.parent.mkdir()
    torn.write_text('{"ts":1,"role":"SYNC_MA')
    broker = Broker(tmp_path)
    broker.samples.look()
    broker.samples.close()
    first, second = torn.read_text().splitlines()
    assert first == '{"ts":1,"role":"SYNC_MA'
    assert json.loads(second)["ts"] == 1_000_000
