"""The floor of the benchmarks does what it says: every send is on both of its processes, and in SYNC before its OK."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.support import TOPIC, numbered, send
from tests.interop.bare import BarePair, compiled
from tests.support.c_compiler import NoCompiler
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("mode", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_send_is_on_both_sides(mode: str, tmp_path: Path) -> None:
    try:
        program = compiled(tmp_path)
    except NoCompiler as why:
        pytest.skip(str(why))
    with BarePair(program, mode, tmp_path, TOPIC, 4) as pair:
        pair.register()
        log, copy = (pair.broker.directory / name for name in ("log", "log.slave"))
        for first in range(0, 500, 50):
            bodies = numbered(first, first + 50)
            assert {one.status for one in send(pair.broker.addr, bodies)} == {"SEND_OK"}
            if mode == "ASYNC_MASTER":
                wait_until(lambda: copy.read_bytes() == log.read_bytes(), "the slave is level")
            assert all(body in copy.read_bytes() for body in bodies)
