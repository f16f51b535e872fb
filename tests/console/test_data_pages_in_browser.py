"""A walk through the pages of data in a real browser: clicks lead on, and no script or policy complains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from haservice.devtools.pair import ScratchPair
from tests.console.conftest import MakeConsole
from tests.console.filled import DEAD, GROUP, QUEUES, TOPIC, WAITING, fill

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Three processes and a browser start; on a busy machine that takes its time.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_a_walk_from_a_topic_to_its_dead_letters(
    pair: ScratchPair, make_console: MakeConsole, page: Page
) -> None:
    fill(pair.namesrv_addr, pair.master_addr)
    console = make_console(pair.namesrv_addr, "--allow-changes")
    page.goto(console.url)
    go(page, "Topics")
    page.locator("#topics").get_by_role("link", name=TOPIC, exact=True).click()
    queues = page.locator("#queues tbody tr")
    queues.nth(QUEUES - 1).wait_for()
    assert queues.count() == QUEUES
    page.locator("#consumers").get_by_role("link", name=GROUP).click()
    page.locator("main").get_by_text(f"Behind by {WAITING} messages").wait_for()

    page.locator("#reset").get_by_label("Topic").fill(TOPIC)
    page.locator("#reset").get_by_label("Time").fill("now")
    page.get_by_role("button", name="Show what would move").click()
    page.locator("#means").get_by_text(f"{WAITING} messages would be skipped").wait_for()
    page.get_by_label("Messages would be skipped for good").fill(GROUP)
    page.get_by_role("button", name="Reset the offsets").click()
    page.locator("#done").wait_for()
    page.get_by_role("link", name=f"Back to {GROUP}").click()
    page.locator("main").get_by_text("Behind by 0 messages").wait_for()

    go(page, "Messages")
    page.locator("#by-key").get_by_label("Topic").fill(TOPIC)
    page.locator("#by-key").get_by_label("Key").fill("order-json")
    page.locator("#by-key").get_by_role("button").click()
    page.locator("td.id a").first.click()
    page.locator("#body").wait_for()
    assert '"order": 7,' in page.locator("#body").inner_text()
    assert "<b>&amp;</b>" in page.locator("#body").inner_text(), "a body is text, never part of the page"

    go(page, "Dead letters")
    page.locator("#groups").get_by_role("link", name=GROUP).click()
    boxes = page.locator("#choose input[type=checkbox]")
    boxes.nth(len(DEAD) - 1).wait_for()
    assert boxes.count() == len(DEAD)
    boxes.first.check()
    page.get_by_role("button", name="Show what would be sent").click()
    page.locator("#means").get_by_text("1 of 1 messages would be sent again").wait_for()
    page.get_by_role("button", name="Send 1 again").dblclick()
    page.locator("h1").get_by_text("Sent again").or_(page.get_by_text("These were sent already")).wait_for()
    page.goto(f"{console.url}/topics/%25RETRY%25{GROUP}")
    page.locator("main").get_by_text("1 message in").wait_for()  # a double click sends it once

    go(page, "Delayed, transactions")
    page.locator("#levels").get_by_text("2h").wait_for()
    go(page, "Connections")
    page.get_by_role("link", name="Consumers").click()
    page.locator("#consumers").get_by_text(GROUP).wait_for()
    go(page, "Accounts")
    page.get_by_text("Access control is off").wait_for()
    go(page, "Configuration")
    page.get_by_role("link", name="broker-a").first.click()
    page.locator("#keys").get_by_text("storePathRootDir", exact=True).wait_for()


def go(page: Page, section: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=section).click()
    page.locator('nav a[aria-current="page"]').get_by_text(section).wait_for()
