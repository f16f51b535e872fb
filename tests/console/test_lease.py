"""A pair with a coordinator in a real browser: its lease, its voters, failover paused and resumed by clicks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from haservice.admin.calls import MQAdmin
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.cluster import Cluster
from haservice.coordination.desk import OperatorDesk
from haservice.devtools.pair import ScratchPair
from tests.console.conftest import MakeConsole
from tests.console.support import SETTINGS
from tests.support.coordinators import ETCD_MISSING, Server, etcd
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Four processes and a browser start; on a busy machine that takes its time.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path) as (one,):
        yield one


@pytest.fixture
def coordinated(tmp_path: Path, server: Server) -> Iterator[ScratchPair]:
    """A pair that names etcd, its slave a voter."""
    settings = {**SETTINGS, "haCoordinator": f"etcd://127.0.0.1:{server.port}", "haLeaseTtl": "3"}
    with ScratchPair(tmp_path, "SYNC_MASTER", settings) as made:
        made.start()
        wait_until(lambda: len(seen(server).voters.ids) == 2, "the slave is a voter")
        yield made


def seen(server: Server) -> Cluster:
    place = place_of(f"etcd://127.0.0.1:{server.port}")
    with OperatorDesk(place, "DefaultCluster", "broker-a", Keys()) as desk:
        return desk.see()


def test_the_lease_is_shown_and_failover_is_paused_and_a_switchover_done_by_clicks(
    coordinated: ScratchPair, server: Server, make_console: MakeConsole, page: Page
) -> None:
    console = make_console(coordinated.namesrv_addr, "--allow-changes")
    page.goto(f"{console.url}/pairs/broker-a")
    lease = page.locator("#lease")
    lease.get_by_text("Failover is on.").wait_for()
    rows = lease.locator("tbody tr")
    assert rows.count() == 2
    assert "is it" in rows.filter(has_text=coordinated.master_addr).inner_text()
    rows.filter(has_text=coordinated.slave_addr).get_by_text("yes", exact=True).first.wait_for()
    lease.get_by_text("an OK takes 1 slave: a failover loses nothing that was answered with OK.").wait_for()

    lease.get_by_role("link", name="Pause").click()
    page.get_by_text("Nobody becomes the master of broker-a by himself any more").wait_for()
    assert not seen(server).settings.paused
    page.get_by_role("button", name="Pause failover").click()
    page.locator("#change .outcome.done").wait_for()
    assert seen(server).settings.paused
    page.goto(f"{console.url}/pairs/broker-a")
    lease.get_by_text("Failover is paused.").wait_for()
    rows.filter(has_text=coordinated.slave_addr).get_by_text("failover is paused").wait_for()

    lease.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume failover").click()
    page.locator("#change .outcome.done").wait_for()
    assert not seen(server).settings.paused

    page.goto(f"{console.url}/pairs/broker-a")
    page.locator(f'#replicas [data-addr="{coordinated.slave_addr}"]').get_by_role(
        "link", name="Switch over"
    ).click()
    page.get_by_text("Nothing is lost.").first.wait_for()
    page.get_by_role("button", name="Switch over").click()
    page.locator("#change .outcome.done").wait_for(timeout=60_000)
    with MQAdmin() as admin:
        assert admin.runtime_info(coordinated.slave_addr)["brokerRole"] == "SYNC_MASTER"
    now = seen(server)
    assert now.master is not None
    assert now.master.broker_addr == coordinated.slave_addr


def test_a_coordinator_that_is_gone_is_said_on_the_page_and_the_rest_is_shown(
    coordinated: ScratchPair, server: Server, make_console: MakeConsole
) -> None:
    console = make_console(coordinated.namesrv_addr)
    wait_until(lambda: "Failover is on" in console.get("/pairs/broker-a").text, "the lease is shown")
    server.stop()
    wait_until(lambda: "etcd does not answer" in console.get("/pairs/broker-a").text, "it is said")
    answer = console.get("/pairs/broker-a")
    assert answer.status == 200
    assert 'id="replicas"' in answer.text
    plan = console.get("/pairs/broker-a/pause")
    assert "etcd does not answer" in plan.text
    assert "Pause failover</button>" not in plan.text
