"""Tables and verdicts on a terminal, and where there is none."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence

import pytest

from haservice.admin.commands.ha.ha_status import COLUMNS
from haservice.admin.commands.nodes.cluster import CLUSTER_COLUMNS
from haservice.remoting.bodies.clients import BrokerData, ClusterInfo, HARuntimeInfo, KVTable
from haservice.remoting.codes import RequestCode
from haservice.terminal.output import Column, Table
from tests.admin.asking import Serve, body

ADDR = "192.168.100.101:10911"
STATE = "TRANSFER, last contact with the master 0.4 s ago; before: Connection refused"


def status_table() -> Table:
    table = Table(COLUMNS)
    shown = [
        "broker-a",
        "SYNC_MASTER",
        ADDR,
        1000,
        5 << 30,
        ADDR,
        ADDR,
        "a" * 32,
        "0.5.0",
        5 << 30,
        1 << 20,
        75.0,
        1 << 20,
    ]
    table.add(*shown, True, "one log", "4.9 s left", STATE, *([None] * (len(COLUMNS) - 17)))
    return table


def cluster_table() -> Table:
    table = Table(CLUSTER_COLUMNS)
    load = (10000.0, "10", "30")
    table.add("DefaultCluster", "broker-a", 0, ADDR, "V4_9_8", load, load, 0.0, 72.5, 0.75, 5 << 30, "0.5.0")
    return table


@pytest.mark.parametrize("table", [status_table(), cluster_table()])
@pytest.mark.parametrize("width", [80, 120, 240])
def test_a_table_fits_the_terminal_and_says_nothing_twice(table: Table, width: int) -> None:
    lines = table.text(width).splitlines()
    assert max(map(len, lines)) <= width
    heads = lines[0].split("  ")
    assert ADDR in lines[1]
    if table.columns is COLUMNS:
        # What cannot be left out stands below, whole.
        assert STATE in " ".join(" ".join(lines[1:]).split())
        assert {"#Role", "#Lag"} <= {head.strip() for head in heads}
    assert table.leaves_out(width) == (width < 240)
    assert len(table.text(width).splitlines()[0]) >= len(table.text(80).splitlines()[0])


def test_a_column_that_may_not_be_left_out_stays_however_narrow_it_is() -> None:
    table = Table((Column("#A", "a"), Column("#B", "b", spare=1), Column("#C", "c")))
    table.add("a" * 20, "b" * 20, "c")
    assert table.text(10).splitlines() == ["#A                    #C", "a" * 20, "    c"]
    assert table.text() == f"{'#A':20}  {'#B':20}  #C\n{'a' * 20}  {'b' * 20}  c"


def on_terminal(arguments: Sequence[str], columns: int, **env: str) -> str:
    """What the command writes to a terminal of that width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run = "from haservice.admin.cli import main; main()"
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", run, *arguments],
        stdin=its,
        stdout=its,
        stderr=subprocess.DEVNULL,
        env={**environment, **env},
    )
    os.close(its)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:  # so a terminal says that nobody writes to it any more
        pass
    finally:
        os.close(ours)
        process.wait(20)
    return written.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_its_width_and_a_pipe_all_there_is(serve: Serve) -> None:
    table = KVTable({"brokerRole": "SYNC_MASTER", "commitLogMaxOffset": "77"})
    broker = serve(
        {
            RequestCode.GET_BROKER_RUNTIME_INFO: body(table.encode()),
            RequestCode.GET_BROKER_HA_STATUS: body(HARuntimeInfo(True, 77).encode()),
        }
    )
    info = ClusterInfo({"broker-a": BrokerData("broker-a", "C", {0: broker})}, {"C": ("broker-a",)})
    command = ("clusterList", "-n", serve({RequestCode.GET_BROKER_CLUSTER_INFO: body(info.encode())}))
    red = "\x1b[31mbroker-a: NO SLAVE IN SYNC, sends get SLAVE_NOT_AVAILABLE: none is known, start one\x1b[0m"
    narrow = on_terminal(command, 80).splitlines()
    assert narrow[0] == red
    assert "#Version" not in narrow[1]
    assert narrow[-1] == "--wide shows all columns."
    assert max(map(len, narrow[1:])) <= 80
    wide = on_terminal((*command, "--wide"), 80, NO_COLOR="1")
    assert "\x1b" not in wide
    piped = subprocess.run(
        [sys.executable, "-c", "from haservice.admin.cli import main; main()", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=20,
        check=False,
    )
    assert piped.stdout.decode() == wide
    assert piped.returncode == 1
