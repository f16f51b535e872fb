"""The first page in a real browser: verdicts, and what it shows while a broker, a nameserver or the console is gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from haservice.admin.calls import MQAdmin
from haservice.console.watch import ANSWER_S
from haservice.devtools.pair import ScratchPair, free_port_block
from haservice.remoting.bodies.clients import BrokerData, ClusterInfo
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from tests.console.conftest import MakeConsole
from tests.console.support import SETTINGS
from tests.support.remoting import serving
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Three processes and a browser start; on a busy machine that takes its time.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_the_first_page_has_the_verdict_of_each_pair(
    pair: ScratchPair, make_console: MakeConsole, page: Page
) -> None:
    console = make_console(pair.namesrv_addr)
    page.goto(console.url)
    row = page.locator("#pair-broker-a")
    row.get_by_text("1 slave in sync").wait_for()
    assert row.locator(".state").inner_text() == "OK"
    assert page.get_by_text("answers").count() == 1


def test_a_read_only_console_shows_plans_and_changes_nothing(
    pair: ScratchPair, make_console: MakeConsole, page: Page
) -> None:
    console = make_console(pair.namesrv_addr)
    page.goto(f"{console.url}/pairs/broker-a/switchover")
    button = page.get_by_role("button", name="Switch over")
    assert button.is_disabled()
    page.get_by_text("started without --allow-changes").wait_for()
    answer = console.post("/pairs/broker-a/switchover", {"target": "", "facts": "0"})
    assert answer.status == 403
    assert "without --allow-changes" in answer.text
    with MQAdmin() as admin:
        assert admin.runtime_info(pair.master_addr)["brokerRole"] == "SYNC_MASTER"


def test_what_is_gone_is_said_and_hangs_nothing(
    tmp_path: Path, make_console: MakeConsole, page: Page
) -> None:
    """First the nameserver dies, then the master; at last the console itself."""
    with ScratchPair(tmp_path, "ASYNC_MASTER", SETTINGS) as made:
        made.start_nameserver()
        made.start_master()
        console = make_console(made.namesrv_addr)
        page.goto(console.url)
        row = page.locator("#pair-broker-a")
        row.get_by_text("accepts writes").wait_for()
        made.processes["namesrv"].kill()
        page.get_by_text(f"{made.namesrv_addr}: Connection refused").wait_for()
        # The brokers that were known are asked on.
        assert "accepts writes" in row.inner_text()
        made.processes["broker-a"].kill()
        row.get_by_text("NO BROKER ANSWERS").wait_for()
        assert row.locator(".state").inner_text() == "CRITICAL"
        page.goto(f"{console.url}/pairs/broker-a")
        page.get_by_text("does not answer: ").wait_for()
        console.kill()
        page.get_by_text("The console does not answer: what you see is of").wait_for()


def test_a_console_that_finds_nobody_says_so(make_console: MakeConsole) -> None:
    nobody = f"127.0.0.1:{free_port_block(1)}"
    console = make_console(nobody)
    answer = console.get("/")
    assert answer.status == 200
    assert f"{nobody}: Connection refused" in answer.text
    assert "No broker is known." in answer.text
    assert console.get("/pairs/broker-a").status == 404


def test_a_broker_that_is_frozen_makes_no_page_wait(pair: ScratchPair, make_console: MakeConsole) -> None:
    console = make_console(pair.namesrv_addr)
    assert "1 slave in sync" in console.get("/").text
    with frozen(pair.processes["broker-a"].popen):
        wait_until(lambda: "no answer to request" in console.get("/").text, "the page says that it is silent")
        # Pages show the last look; while the next one waits for its deadline, they do not.
        before = time.monotonic()
        for _ in range(20):
            assert console.get("/live/pairs/broker-a").status == 200
        assert time.monotonic() - before < 20 * ANSWER_S
    wait_until(lambda: "1 slave in sync" in console.get("/").text, "all is well again")


def test_a_name_that_is_no_longer_listed_is_not_lost_from_sight(make_console: MakeConsole) -> None:
    """A nameserver drops brokers that died two minutes ago; their name has no line there any more."""
    dead = f"127.0.0.1:{free_port_block(1)}"
    names = {"broker-x": BrokerData("broker-x", "C", {0: dead})}

    def table(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=ClusterInfo(names, {"C": list(names)}).encode())

    with serving({RequestCode.GET_BROKER_CLUSTER_INFO: table}) as server:
        console = make_console(f"127.0.0.1:{server.ports[0]}")
        assert "broker-x" in console.get("/").text
        names.clear()
        wait_until(lambda: '<td class="right">0</td>' in console.get("/").text, "no broker is listed")
        assert "NO BROKER ANSWERS" in console.get("/").text
        assert dead in console.get("/pairs/broker-x").text
