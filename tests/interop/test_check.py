"""`mqadmin check` beside a stock pair: its verdict and its exit code, healthy and through deaths."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.admin.asking import run
from tests.interop.our_client import send
from tests.interop.pairs import PATIENCE_S, MixedPair, mixed_pairs
from tests.interop.stock import Broker, requires_stock
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.compat, pytest.mark.cluster, pytest.mark.interop, requires_stock, pytest.mark.timeout(180),
]  # fmt: skip

TOPIC = "Checked"
EXIT = {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}
SETTINGS = {"mappedFileSizeCommitLog": 1024 * 1024, "maxMessageSize": 65536, "slaveTimeout": 1000}

MakePair = Callable[..., MixedPair]


@pytest.fixture
def make_pair(stock_jars: Path, tmp_path: Path) -> Iterator[MakePair]:
    with mixed_pairs(tmp_path) as make:
        yield make


def wait_says(pair: MixedPair, state: str, text: str, *arguments: str) -> str:
    """Its first line, once it is of that state and has the text; the exit code always fits the state."""
    lines = [""]

    def says() -> bool:
        result = run("check", "-n", pair.namesrv.addr, *arguments)
        lines.append(result.stdout.splitlines()[0])
        assert result.exit_code == EXIT[lines[-1].partition(" - ")[0]], result.output
        return lines[-1].startswith(f"{state} - broker-a: ") and text in lines[-1]

    try:
        wait_until(says, f"{state}: {text}", PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; last: {lines[-1:]}") from None
    return lines[-1]


def process(one: Broker) -> subprocess.Popen[bytes]:
    assert one.popen is not None
    return one.popen


def at(addr: str) -> tuple[int, str]:
    """The exit code and the line, asked without a nameserver."""
    result = run("check", "-b", addr)
    return result.exit_code, result.stdout


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_a_stock_pair_is_judged_by_what_it_says(make_pair: MakePair, role: str) -> None:
    pair = make_pair(kinds=("stock", "stock", "stock"), role=role, **SETTINGS)
    pair.start_with_topic(TOPIC, 2)
    send(pair.master.addr, TOPIC, 2, [b"x" * 500] * 100)
    master, slave = pair.master.addr, pair.slave.addr
    good = wait_says(pair, "OK", f"{master} accepts writes, 1 slave in sync, 0 B behind", "--slaves", "1")
    assert "| broker-a.slaves_in_sync=1;;;0;1 broker-a.lag_bytes=0B;;;0 " in good
    assert at(master)[0] == 0
    assert f"OK - broker-a: OK, {master} answers as {role} |" in at(master)[1]
    assert (at(slave)[0], f"OK - broker-a: OK, {slave} answers |" in at(slave)[1]) == (0, True)

    with frozen(process(pair.slave)):
        text = f"{slave} is registered and does not answer"
        said = wait_says(pair, "CRITICAL" if role == "SYNC_MASTER" else "WARNING", text)
        assert ("sends get no SEND_OK" in said) == (role == "SYNC_MASTER")
        assert ("SEND_OK" in send(pair.master.addr, TOPIC, 2, [b"x"])) == (role == "ASYNC_MASTER")
    wait_says(pair, "OK", "1 slave in sync")

    pair.slave.kill()
    pair.wait_route(TOPIC, pair.master)
    (status,) = send(pair.master.addr, TOPIC, 2, [b"x" * 500] * 4)
    if role == "SYNC_MASTER":
        wait_says(pair, "CRITICAL", "NO SLAVE IN SYNC, sends get no SEND_OK: none is known")
        assert status == "SLAVE_NOT_AVAILABLE"
    else:
        # Nobody remembers it; who wants one says so.
        wait_says(pair, "OK", "it has no slave")
        assert status == "SEND_OK"
    wait_says(pair, "CRITICAL" if role == "SYNC_MASTER" else "WARNING", " SLAVE", "--slaves", "1")

    pair.start(pair.slave)
    wait_says(pair, "OK", "1 slave in sync")
    pair.master.kill()
    wait_says(pair, "CRITICAL", f"NO MASTER, sends fail; {slave} can be read; ")
    assert at(master)[0] == 3
    pair.slave.kill()
    gone = wait_says(
        pair, "CRITICAL", "NOT REGISTERED, no broker name broker-a is registered", "-b", "broker-a"
    )
    assert "slaves_in_sync" not in gone
