"""mqconsole beside stock brokers: what they do not tell is unknown, and their accounts log in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.support import Answer, ConsoleProcess
from tests.interop.stock import broker, nameserver, requires_stock, servers
from tests.interop.test_security import ADMIN, USER, guarded_master
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(120)]

PATIENCE_S = 40.0


@pytest.fixture
def console_of(tmp_path: Path) -> Iterator[list[ConsoleProcess]]:
    made: list[ConsoleProcess] = []
    yield made
    for one in made:
        one.kill()


def cells(text: str, addr: str) -> list[str]:
    """Of the broker's row on a pair's page."""
    row = re.search(rf'data-addr="{re.escape(addr)}".*?</tr>', text, re.DOTALL)
    assert row is not None, text
    plain = (re.sub(r"<[^>]*>", " ", cell) for cell in re.findall(r"<td.*?</td>", row[0], re.DOTALL))
    return [" ".join(cell.split()) for cell in plain]


def test_a_stock_pair_is_shown_and_not_changed(
    stock_jars: Path, tmp_path: Path, console_of: list[ConsoleProcess]
) -> None:
    with servers() as start:
        namesrv = nameserver("stock", tmp_path)
        start(namesrv)
        master = broker("stock", tmp_path, role="SYNC_MASTER", namesrv=namesrv)
        slave = broker("stock", tmp_path, broker_id=1, role="SLAVE", namesrv=namesrv)
        start(master, slave)
        console = ConsoleProcess(tmp_path, namesrv.addr, "--allow-changes")
        console_of.append(console)
        console.wait_booted()
        name = re.findall(r'id="pair-([^"]+)"', console.get("/").text)[0]
        path = f"/pairs/{name}"
        # In its first second a stock broker has no numbers, and answers 28 with an error.
        wait_until(lambda: console.get(path).text.count("keeps no epochs") == 2, "both answer", PATIENCE_S)
        text = console.get(path).text
        shown = cells(text, slave.addr)
        assert shown[:4] == [slave.addr, "1", "SLAVE", "unknown"]
        assert shown[6:9] == ["unknown"] * 3
        assert "keeps no epochs" in shown[9]
        assert "No broker that answers keeps epochs." in text
        assert cells(text, master.addr)[2:4] == ["SYNC_MASTER", "unknown"]
        plan = console.get(f"{path}/switchover").text
        assert "is a stock broker, which knows no switchover" in plan
        assert 'id="begin"' not in plan


def test_accounts_of_a_stock_broker_log_in(
    stock_jars: Path, tmp_path: Path, console_of: list[ConsoleProcess]
) -> None:
    """For 28 RocketMQ wants a good signature of any account, not an admin's."""
    with servers() as start:
        namesrv = nameserver("stock", tmp_path)
        start(namesrv)
        master, _ = guarded_master("stock", tmp_path, namesrv)
        start(master)
        console = ConsoleProcess(tmp_path, namesrv.addr)
        console_of.append(console)
        console.wait_booted()

        def asks_for_login() -> bool:
            return console.get("/login").status == 200

        wait_until(asks_for_login, "the broker is registered, and wants an account", PATIENCE_S)
        for keys in (ADMIN, USER):
            fields = {"access_key": keys["accessKey"], "secret_key": keys["secretKey"]}
            assert console.post("/login", {**fields, "secret_key": "wrong-secret"}).status == 403
            answers: list[Answer] = []

            def logs_in(fields: dict[str, str] = fields, answers: list[Answer] = answers) -> bool:
                """In its first second a stock broker has no numbers, and answers 28 with an error."""
                answers.append(console.post("/login", fields))
                return answers[-1].status == 303

            wait_until(logs_in, "logged in", PATIENCE_S)
            answer = answers[-1]
            assert master.addr in console.get("/", Cookie=answer.cookie).text
