"""A pair, a console beside it, and Debian's Chromium, each made once for a file of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from haservice.devtools.pair import ScratchPair
from tests.console.support import CHROMIUM, SETTINGS, ConsoleProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MakeConsole = Callable[..., ConsoleProcess]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScratchPair]:
    """A nameserver, a SYNC_MASTER and a slave that run."""
    with ScratchPair(tmp_path_factory.mktemp("pair"), "SYNC_MASTER", SETTINGS) as made:
        yield made.start()


@pytest.fixture(scope="module")
def make_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeConsole]:
    """`make_console(namesrv, "--allow-changes")` starts one and waits until it is open."""
    made: list[ConsoleProcess] = []

    def make(namesrv: str, *arguments: str, host: str = "127.0.0.1") -> ConsoleProcess:
        made.append(ConsoleProcess(tmp_path_factory.mktemp("console"), namesrv, *arguments, host=host))
        made[-1].wait_booted()
        return made[-1]

    yield make
    for one in made:
        if one.popen.poll() is None:
            one.kill()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Within a file of tests that use it no asyncio.run: Playwright has a loop in this thread."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the PATH: apt install chromium")
    sync_playwright = pytest.importorskip("playwright.sync_api", reason="no playwright").sync_playwright
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    """A window of its own; an error of the page's scripts or its policy fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)
    opened.set_default_timeout(20_000)
    yield opened
    context.close()
    assert errors == []
