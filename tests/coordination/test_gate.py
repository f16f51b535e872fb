"""The gate: open until a moment, by a clock that is looked at when somebody asks."""

from __future__ import annotations

import math
import time

from haservice.coordination.gate import Gate, clock_s


def test_a_gate_is_shut_until_it_is_opened_and_when_its_moment_has_come() -> None:
    now = [100.0]
    gate = Gate(lambda: now[0])
    assert not gate.is_open
    assert gate.why_shut == "the coordinator was not asked yet"
    gate.open_until(105.0)
    assert (gate.is_open, gate.why_shut) == (True, "")
    now[0] = 104.999
    assert gate.is_open
    now[0] = 107.0
    assert not gate.is_open
    assert gate.why_shut == "its lease ended 2.0 s ago, by the clock of this host"
    gate.open_until(math.inf)
    assert gate.is_open
    gate.block("another one is the master")
    assert (gate.is_open, gate.why_shut) == (False, "another one is the master")


def test_its_clock_goes_on_while_the_host_is_suspended() -> None:
    before_s = time.monotonic()
    assert clock_s() >= before_s
