"""The high-water mark: what consumers see while slaves come, fall behind and go."""

from __future__ import annotations

import pytest

from haservice.replication.read_mark import HighWaterMark
from haservice.settings import ReadMark

MAX_BEHIND = 1000


def test_consumers_read_what_an_in_sync_slave_has() -> None:
    mark = HighWaterMark(ReadMark.IN_SYNC, MAX_BEHIND, 0)
    assert mark.readable_end(500, 700) == 500
    assert mark.readable_end(700, 700) == 700


@pytest.mark.parametrize(("mode", "readable"), [(ReadMark.IN_SYNC, 900), (ReadMark.STRICT, 500)])
def test_without_a_slave_the_mode_decides(mode: ReadMark, readable: int) -> None:
    mark = HighWaterMark(mode, MAX_BEHIND, 0)
    assert mark.readable_end(500, 700) == 500
    assert mark.readable_end(-1, 900) == readable


def test_a_slave_too_far_behind_holds_nothing_back() -> None:
    mark = HighWaterMark(ReadMark.IN_SYNC, MAX_BEHIND, 0)
    assert mark.readable_end(100, 100 + MAX_BEHIND) == 100 + MAX_BEHIND
    assert mark.readable_end(101, 100 + MAX_BEHIND) == 100 + MAX_BEHIND, "what was readable stays so"


def test_what_was_readable_stays_so_when_a_new_slave_begins_below() -> None:
    mark = HighWaterMark(ReadMark.IN_SYNC, MAX_BEHIND, 0)
    assert mark.readable_end(-1, 800) == 800
    assert mark.readable_end(0, 850) == 800


def test_off_is_as_in_rocketmq() -> None:
    mark = HighWaterMark(ReadMark.OFF, MAX_BEHIND, 0)
    assert mark.readable_end(500, 700) == 700


def test_a_strict_mark_begins_with_what_the_log_held() -> None:
    mark = HighWaterMark(ReadMark.STRICT, MAX_BEHIND, 600)
    assert mark.readable_end(-1, 600) == 600
    assert mark.readable_end(-1, 700) == 600
    assert mark.readable_end(700, 700) == 700
