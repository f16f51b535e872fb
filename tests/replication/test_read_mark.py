"""The high-water mark: what consumers see while slaves come, fall behind and go, and before a flush."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from haservice.configuration.settings import BrokerRole, ReadMark
from haservice.replication.master.read_mark import HighWaterMark
from haservice.replication.master.service import MasterHAService
from haservice.replication.service import HAService
from haservice.replication.slave.service import SlaveHAService
from tests.support.replication import CONFIG, Acked, ScriptedSlave, master, message, open_log
from tests.support.waiting import wait_until

MAX_BEHIND = 1000


def test_consumers_read_what_an_in_sync_slave_has() -> None:
    mark = HighWaterMark(ReadMark.IN_SYNC, MAX_BEHIND)
    assert mark.readable_end(500, 700) == 500
    assert mark.readable_end(700, 700) == 700


@pytest.mark.parametrize(("mode", "readable"), [(ReadMark.IN_SYNC, 900), (ReadMark.STRICT, 500)])
def test_without_a_slave_the_mode_decides(mode: ReadMark, readable: int) -> None:
    mark = HighWaterMark(mode, MAX_BEHIND)
    assert mark.readable_end(500, 700) == 500
    assert mark.readable_end(-1, 900) == readable


def test_a_slave_too_far_behind_holds_nothing_back() -> None:
    mark = HighWaterMark(ReadMark.IN_SYNC, MAX_BEHIND)
    assert mark.readable_end(100, 100 + MAX_BEHIND) == 100 + MAX_BEHIND
    assert mark.readable_end(101, 100 + MAX_BEHIND) == 100 + MAX_BEHIND, "what was readable stays so"


def test_what_was_readable_stays_so_when_a_new_slave_begins_below() -> None:
    mark = HighWaterMark(ReadMark.IN_SYNC, MAX_BEHIND)
    assert mark.readable_end(-1, 800) == 800
    assert mark.readable_end(0, 850) == 800


def test_off_is_as_in_rocketmq() -> None:
    mark = HighWaterMark(ReadMark.OFF, MAX_BEHIND)
    assert mark.readable_end(500, 700) == 700


def test_a_strict_mark_shows_nothing_of_which_no_slave_has_told_since_the_start() -> None:
    mark = HighWaterMark(ReadMark.STRICT, MAX_BEHIND)
    assert mark.readable_end(-1, 600) == 0
    assert mark.readable_end(500, 600) == 500
    assert mark.readable_end(-1, 700) == 500
    assert mark.readable_end(700, 700) == 700


@pytest.mark.parametrize(
    ("role", "mode", "sync_flush", "readable"),
    [
        (BrokerRole.ASYNC_MASTER, ReadMark.IN_SYNC, False, "all"),
        (BrokerRole.ASYNC_MASTER, ReadMark.IN_SYNC, True, "flushed"),
        (BrokerRole.ASYNC_MASTER, ReadMark.STRICT, True, "flushed"),
        (BrokerRole.ASYNC_MASTER, ReadMark.OFF, True, "all"),
        (BrokerRole.SYNC_MASTER, ReadMark.IN_SYNC, False, "all"),
        (BrokerRole.SYNC_MASTER, ReadMark.IN_SYNC, True, "flushed"),
        (BrokerRole.SYNC_MASTER, ReadMark.STRICT, False, "nothing"),
        (BrokerRole.SYNC_MASTER, ReadMark.STRICT, True, "nothing"),
        (BrokerRole.SYNC_MASTER, ReadMark.OFF, True, "all"),
        (BrokerRole.SLAVE, ReadMark.IN_SYNC, False, "all"),
        (BrokerRole.SLAVE, ReadMark.IN_SYNC, True, "flushed"),
    ],
)
def test_a_broker_that_flushes_at_once_shows_what_is_flushed(
    tmp_path: Path, role: BrokerRole, mode: ReadMark, sync_flush: bool, readable: str
) -> None:
    log = open_log(tmp_path)
    flushed = log.append(message()).end
    log.flush()
    end = log.append(message()).end
    config = replace(CONFIG, read_mark=mode)
    service: HAService
    if role is BrokerRole.SLAVE:
        service = SlaveHAService(config, log, flush=log.flush if sync_flush else None)
    else:
        service = MasterHAService(
            config, log, role=role, bind_address="127.0.0.1", on_acked=Acked(), flushes=sync_flush
        )
    assert service.readable_end() == {"all": end, "flushed": flushed, "nothing": 0}[readable]
    log.flush()
    assert service.readable_end() == (0 if readable == "nothing" else end)


def test_a_slave_that_is_ahead_of_the_flush_shows_nothing_before_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with (
        master(log, options={"flushes": True}) as service,
        ScriptedSlave(service.port) as slave,
    ):
        slave.report(0)
        end = log.append(message()).end
        slave.frames_to(end)
        slave.report(end)
        wait_until(lambda: service.push2slave_max_offset == end, "the slave has it")
        assert service.readable_end() == 0
        log.flush()
        assert service.readable_end() == end
