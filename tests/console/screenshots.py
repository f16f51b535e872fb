"""Makes the pictures of docs/console.md: `.venv/bin/python -m tests.console.screenshots`.

A pair of its own on loopback gets some load, and loses its master; Debian's Chromium takes the pictures.
"""

from __future__ import annotations

import io
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from playwright.sync_api import sync_playwright

from haservice.admin.calls import MQAdmin
from haservice.client import Message, Producer
from haservice.client.options import ClientOptions
from haservice.devtools.pair import ScratchPair
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.console.filled import GROUP, TOPIC, fill
from tests.console.support import CHROMIUM, SETTINGS, ConsoleProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page

DOCS = Path(__file__).parents[2] / "docs"
SIZE = {"width": 1240, "height": 640}
LOAD_S = 60.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="screenshots-") as directory:
        root = Path(directory)
        with ScratchPair(root, "SYNC_MASTER", SETTINGS) as pair:
            pair.start()
            console = ConsoleProcess(root, pair.namesrv_addr, "--allow-changes")
            try:
                console.wait_booted()
                shoot(pair, console)
            finally:
                console.kill()


def shoot(pair: ScratchPair, console: ConsoleProcess) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        data(pair, console, page)
        page.goto(f"{console.url}/pairs/broker-a/switchover")
        page.get_by_role("button", name="Switch over").click()
        page.locator("#change .outcome.done").wait_for()
        page.goto(f"{console.url}/pairs/broker-a")
        load(pair, LOAD_S)
        take(page, "console-pair.png")
        page.goto(console.url)
        page.locator("#pair-broker-a .state.ok").wait_for()
        pair.processes["broker-a-s"].kill()
        page.get_by_text("NO MASTER").wait_for()
        take(page, "console-pairs.png")
        page.goto(f"{console.url}/pairs/broker-a/failover?target={pair.master_addr}")
        take(page, "console-failover.png")
        browser.close()


def data(pair: ScratchPair, console: ConsoleProcess, page: Page) -> None:
    """A message, and what a reset would do."""
    filled = fill(pair.namesrv_addr, pair.master_addr)
    page.goto(f"{console.url}/messages/id?id={filled.sent['json'].offset_msg_id}")
    take(page, "console-message.png")
    page.goto(f"{console.url}/groups/{GROUP}/reset?topic={TOPIC}&time=now")
    take(page, "console-reset.png")


def load(pair: ScratchPair, seconds: float) -> None:
    """Sends for a while, now faster and now slower."""
    with MQAdmin([pair.namesrv_addr]) as admin:
        admin.update_topic(pair.slave_addr, CreateTopicHeader("orders", "TBW102", 2, 2, 6))
    until = time.monotonic() + seconds
    wait = threading.Event()
    with Producer("screenshots", ClientOptions(pair.namesrv_addr)) as producer:
        while (left := until - time.monotonic()) > 0:
            producer.send(Message("orders", b"x" * 900))
            wait.wait(0.002 if int(left / 7) % 2 else 0.006)


def take(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    picture.quantize(48).save(DOCS / name, optimize=True)
    print(f"{DOCS / name}: {(DOCS / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
