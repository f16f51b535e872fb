"""Changes of roles by clicks in a real browser, on a real pair: what each would lose is read before it is done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from haservice.admin.calls import MQAdmin
from haservice.client import Message, Producer
from haservice.client.options import ClientOptions
from haservice.devtools.pair import ScratchPair
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.console.conftest import MakeConsole
from tests.console.support import SETTINGS, ConsoleProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Three processes and a browser start; on a busy machine that takes its time.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

TOPIC = "Clicks"
MESSAGES = 20


@pytest.fixture
def fresh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScratchPair]:
    """A pair of the test's own, with some messages on both; its master's role is the fixture's parameter."""
    kind = getattr(request, "param", "SYNC_MASTER")
    with ScratchPair(tmp_path, kind, SETTINGS) as made, MQAdmin([made.namesrv_addr]) as admin:
        made.start()
        wait_until(lambda: in_sync(admin, made.master_addr) == 1, "the slave is in sync")
        admin.update_topic(made.master_addr, CreateTopicHeader(TOPIC, "TBW102", 2, 2, 6))
        with Producer("clicks", ClientOptions(made.namesrv_addr)) as producer:
            for number in range(MESSAGES):
                assert producer.send(Message(TOPIC, b"%d" % number)).status.name == "SEND_OK"
        yield made


def in_sync(admin: MQAdmin, addr: str) -> int:
    status = admin.ha_status(addr)
    return 0 if status is None else status.in_sync_slave_nums


def role(pair: ScratchPair, name: str) -> str:
    with MQAdmin() as admin:
        return admin.runtime_info(pair.addr(name))["brokerRole"]


def test_after_a_death_a_slave_becomes_the_master_by_clicks(
    fresh: ScratchPair, make_console: MakeConsole, page: Page
) -> None:
    console = make_console(fresh.namesrv_addr, "--allow-changes")
    fresh.processes["broker-a"].kill()
    page.goto(console.url)
    page.locator("#pair-broker-a").get_by_text("NO MASTER").wait_for()
    page.get_by_role("link", name="broker-a").click()
    row = page.locator(f'[data-addr="{fresh.slave_addr}"]')
    row.get_by_role("link", name="Fail over to it").click()
    means = page.locator("#means")
    means.get_by_text("no known message would be lost").wait_for()
    assert "It has all that the last master, a SYNC_MASTER, acknowledged." in means.inner_text()
    page.get_by_role("button", name="Fail over", exact=True).click()
    page.locator("#change .outcome.done").wait_for()
    assert f"{fresh.slave_addr} is the master of broker-a, epoch " in page.locator(".steps").inner_text()
    assert role(fresh, "broker-a-s") == "SYNC_MASTER"
    # The old one comes back and follows; the page shows it without being loaded again.
    page.get_by_role("link", name="Back to broker-a").click()
    page.locator(f'[data-addr="{fresh.slave_addr}"]', has_text="SYNC_MASTER").wait_for()
    fresh.start_master()
    page.locator(f'[data-addr="{fresh.master_addr}"]', has_text="caught up").wait_for()
    assert page.locator(".timeline rect").count() == 2
    with MQAdmin([fresh.namesrv_addr]) as admin:
        ends = admin.topic_stats(fresh.slave_addr, TOPIC).offset_table
        assert sum(one.max_offset for one in ends.values()) == MESSAGES


def test_planned_changes_and_a_rebuild_by_clicks(
    fresh: ScratchPair, make_console: MakeConsole, page: Page
) -> None:
    console = make_console(fresh.namesrv_addr, "--allow-changes")
    pair_url = f"{console.url}/pairs/broker-a"
    page.goto(pair_url)
    page.locator(f'[data-addr="{fresh.master_addr}"]').get_by_role("link", name="Hand over").click()
    page.get_by_text("hands over to its nearest slave. Nothing is lost.").wait_for()
    page.get_by_role("button", name="Switch over").click()
    page.locator("#change .outcome.done").wait_for()
    assert role(fresh, "broker-a-s") == "SYNC_MASTER"
    # The old master is a slave now, and is built anew.
    page.goto(pair_url)
    row = page.locator(f'[data-addr="{fresh.master_addr}"]')
    row.get_by_role("link", name="Reinit").click()
    page.get_by_label("Remove what the slave has").check()
    page.get_by_role("button", name="Show again with this").click()
    page.get_by_text("(removed)").wait_for()
    page.get_by_label("Type the broker name").fill("broker-b")
    page.get_by_role("button", name="Rebuild the slave").click()
    page.get_by_text("Type the broker name, broker-a, to go on.").wait_for()
    page.get_by_label("Something may be lost for good").fill("broker-a")
    page.get_by_role("button", name="Rebuild the slave").click()
    page.locator("#change .outcome.done").wait_for()
    assert "has everything that its master has" in page.locator(".steps").inner_text()
    assert not (fresh.store("broker-a") / "cut").exists()


@pytest.mark.parametrize("fresh", ["ASYNC_MASTER"], indirect=True)
def test_what_may_lose_messages_is_forced_by_name_only(
    fresh: ScratchPair, make_console: MakeConsole, page: Page
) -> None:
    """The slave was away while the master took more; then the master dies, and is lost for good."""
    console = make_console(fresh.namesrv_addr, "--allow-changes")
    fresh.processes["broker-a-s"].kill()
    with MQAdmin() as admin:
        wait_until(lambda: in_sync(admin, fresh.master_addr) == 0, "the master knows that it is gone")
    with Producer("clicks", ClientOptions(fresh.namesrv_addr)) as producer:
        assert producer.send(Message(TOPIC, b"for the master only")).status.name == "SEND_OK"
    fresh.processes["broker-a"].kill()
    fresh.start_slave()
    wait_until(lambda: fresh.slave_addr in console.get("/pairs/broker-a").text, "the slave is known")
    page.goto(f"{console.url}/pairs/broker-a/failover?target={fresh.slave_addr}")
    page.get_by_text("refused: ").wait_for()
    assert page.get_by_role("button", name="Fail over", exact=True).count() == 0
    page.get_by_label("Do it all the same").check()
    page.get_by_role("button", name="Show again with this").click()
    page.get_by_label("Something may be lost for good").fill("broker-a")
    page.get_by_role("button", name="Fail over", exact=True).click()
    page.locator("#change .outcome.done").wait_for()
    assert role(fresh, "broker-a-s") == "ASYNC_MASTER"
    page.goto(f"{console.url}/pairs/broker-a")
    gone = page.locator(f'[data-addr="{fresh.master_addr}"]')
    gone.get_by_role("link", name="Forget").click()
    page.get_by_text("what only it has is lost, acknowledged or not").wait_for()
    page.get_by_label("Something may be lost for good").fill("broker-a")
    page.get_by_role("button", name="Forget the replica").click()
    page.locator("#change .outcome.done").wait_for()
    page.goto(f"{console.url}/pairs/broker-a")
    page.locator(f'[data-addr="{fresh.slave_addr}"]').wait_for()
    gone.wait_for(state="detached")  # with the next look


def test_a_plan_that_has_changed_is_not_carried_out(fresh: ScratchPair, make_console: MakeConsole) -> None:
    console = make_console(fresh.namesrv_addr, "--allow-changes")
    path = f"/pairs/broker-a/failover?target={fresh.slave_addr}"
    fresh.processes["broker-a"].kill()
    agreed = facts_of(console, path)
    # It comes back, and takes one more message, before the button is pressed.
    fresh.start_master()
    with MQAdmin([fresh.namesrv_addr]) as admin:
        wait_until(lambda: in_sync(admin, fresh.master_addr) == 1, "the slave is in sync")
    with Producer("clicks", ClientOptions(fresh.namesrv_addr)) as producer:
        assert producer.send(Message(TOPIC, b"one more")).status.name == "SEND_OK"
    fresh.processes["broker-a"].kill()
    fields = {"target": fresh.slave_addr, "facts": agreed}
    answer = console.post("/pairs/broker-a/failover", fields)
    wait_until(lambda: "not done" in console.get(answer.headers["location"]).text, "the change is over")
    assert "what was shown has changed since" in console.get(answer.headers["location"]).text
    assert role(fresh, "broker-a-s") == "SLAVE"
    # Nor one that nobody was shown, nor one without what it is about.
    for facts in ("", "0" * 64):
        answer = console.post("/pairs/broker-a/failover", {**fields, "facts": facts})
        assert answer.status in (303, 409)
    assert role(fresh, "broker-a-s") == "SLAVE"


def facts_of(console: ConsoleProcess, path: str) -> str:
    """What a plan's form holds of the facts that it was made of."""
    found = re.search(r'name="facts" value="(\w+)"', console.get(path).text)
    assert found is not None
    return found[1]
