"""Login with the brokers' accounts, and what a browser, a stranger's page or a guesser may send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from haservice.devtools.pair import ScratchPair
from tests.console.conftest import MakeConsole
from tests.console.support import SETTINGS, ConsoleProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Three processes and a browser start; on a busy machine that takes its time.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

ADMIN, SECRET = "operators", "a secret of operators"
PLAIN, PLAIN_SECRET = "application", "a secret of application"
WHITE = "let-in-by-address"
ACL = f"""
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: {PLAIN}
  secretKey: {PLAIN_SECRET}
  defaultTopicPerm: SUB
- accessKey: {WHITE}
  secretKey: a secret that nobody asks for
  whiteRemoteAddress: 127.0.0.1
  admin: true
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScratchPair]:
    """A nameserver, and a master with access control."""
    root = tmp_path_factory.mktemp("guarded")
    (root / "plain_acl.yml").write_text(ACL)
    settings = {**SETTINGS, "aclEnable": "true", "aclFile": str(root / "plain_acl.yml")}
    with ScratchPair(root, "ASYNC_MASTER", settings) as made:
        made.start_nameserver()
        made.start_master()
        yield made


@pytest.fixture(scope="module")
def console(guarded: ScratchPair, make_console: MakeConsole) -> ConsoleProcess:
    return make_console(guarded.namesrv_addr, "--allow-changes")


def log_in(console: ConsoleProcess, access_key: str, secret_key: str, **headers: str) -> tuple[int, str, str]:
    """Status, text and cookie of an attempt."""
    answer = console.post("/login", {"access_key": access_key, "secret_key": secret_key}, **headers)
    return answer.status, answer.text, answer.cookie


def test_a_person_logs_in_and_out(console: ConsoleProcess, page: Page) -> None:
    page.goto(f"{console.url}/pairs/broker-a")
    page.get_by_label("Access key").fill(ADMIN)
    page.get_by_label("Secret key").fill(SECRET)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="broker-a").wait_for()
    assert page.url == f"{console.url}/pairs/broker-a"
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
    assert SECRET not in page.content()
    assert SECRET not in cookie["value"]
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Access key").wait_for()
    assert page.context.cookies() == []
    # The secret that the cookie held is worth nothing any more.
    assert console.get("/", Cookie=f"{cookie['name']}={cookie['value']}").status == 303


def test_without_a_session_nothing_is_shown_or_done(console: ConsoleProcess) -> None:
    for path in ("/", "/pairs/broker-a", "/pairs/broker-a/switchover", "/changes/some"):
        answer = console.get(path)
        assert answer.status == 303
        assert answer.headers["location"].startswith("/login")
    part = console.get("/live/overview")
    assert (part.status, part.text) == (401, "")
    answer = console.post("/pairs/broker-a/switchover", {"facts": "0"})
    assert (answer.status, answer.headers["location"]) == (303, "/login")


def test_who_is_not_let_in_is_told_why(console: ConsoleProcess) -> None:
    said = [
        (ADMIN, "a wrong secret", "no broker knows this access key with this secret key"),
        ("nobody-at-all", "a secret", "no broker knows this access key with this secret key"),
        (PLAIN, PLAIN_SECRET, "this account is no admin"),
        (WHITE, "any secret will do", "let this account in by the address of the console, with any secret"),
    ]
    for access_key, secret_key, why in said:
        status, text, cookie = log_in(console, access_key, secret_key)
        assert (status, cookie) == (403, "")
        assert why in text
        assert secret_key not in text
    assert log_in(console, ADMIN, SECRET)[0] == 303
    log = console.output()
    assert f"accessKey={ADMIN}" in log
    assert SECRET not in log


def test_a_form_of_another_site_is_not_taken(console: ConsoleProcess) -> None:
    cookie = log_in(console, ADMIN, SECRET)[2]
    fields = {"target": "", "facts": "0"}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": f"http://localhost:{console.port}"},  # another origin to a browser
    ):
        answer = console.post("/pairs/broker-a/switchover", fields, Cookie=cookie, **headers)
        assert answer.status == 403
        assert "from the console's own pages only" in answer.text
    # From its own page it is looked at.
    assert console.post("/pairs/broker-a/switchover", fields, Cookie=cookie).status == 303


def test_a_name_that_leads_here_is_not_ours(console: ConsoleProcess) -> None:
    answer = console.get("/", Host=f"evil.example:{console.port}")
    assert answer.status == 403
    assert "--public-url" in answer.text
    assert console.get("/login", Host=f"localhost:{console.port}").status == 200


def test_answers_tell_browsers_to_run_and_keep_nothing(console: ConsoleProcess) -> None:
    for path in ("/login", "/nothing", "/live/overview"):
        headers = console.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["cache-control"] == "no-store"
        assert headers["x-frame-options"] == "DENY"


def test_a_login_leads_only_to_our_own_pages(console: ConsoleProcess) -> None:
    for path in ("//evil.example/", "https://evil.example/", "/\\evil.example"):
        answer = console.post(
            f"/login?next={path.replace(':', '%3A')}", {"access_key": ADMIN, "secret_key": SECRET}
        )
        assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "path", ["//evil.example/x", "/%5Cevil.example/x", "/%2F/evil.example/x", "/%5C%5Cevil.example"]
)
def test_a_page_that_is_not_there_links_to_no_other_host(console: ConsoleProcess, path: str) -> None:
    answer = console.get(path)
    assert answer.status == 404
    links = re.findall(r'href="([^"]+)"', answer.text)
    assert any("evil.example" in link for link in links)
    assert [link for link in links if re.match(r"[/\\\\]{2}|[a-z]+://", link)] == []


def test_who_guesses_has_to_wait(guarded: ScratchPair, make_console: MakeConsole) -> None:
    console = make_console(guarded.namesrv_addr)
    statuses = [log_in(console, ADMIN, f"guess {number}")[0] for number in range(7)]
    assert statuses == [403] * 6 + [429]
    # Also the right one, from this address.
    status, text, _ = log_in(console, ADMIN, SECRET)
    assert status == 429
    assert re.search(r"try again in \d+\.\d s", text)
    assert SECRET not in text


def test_with_access_control_others_may_reach_the_login(
    guarded: ScratchPair, make_console: MakeConsole
) -> None:
    console = make_console(guarded.namesrv_addr, host="0.0.0.0")
    assert console.get("/").headers["location"] == "/login"


def test_a_session_ends_with_its_account(
    tmp_path_factory: pytest.TempPathFactory, make_console: MakeConsole
) -> None:
    root = tmp_path_factory.mktemp("leaving")
    rules = root / "plain_acl.yml"
    rules.write_text(ACL)
    settings = {**SETTINGS, "aclEnable": "true", "aclFile": str(rules)}
    with ScratchPair(root, "ASYNC_MASTER", settings) as pair:
        pair.start_nameserver()
        pair.start_master()
        console = make_console(pair.namesrv_addr)
        status, _, cookie = log_in(console, ADMIN, SECRET)
        assert (status, console.get("/", Cookie=cookie).status) == (303, 200)
        rules.write_text(ACL.replace(ADMIN, "successors"))
        wait_until(lambda: console.get("/", Cookie=cookie).status == 303, "it has to log in again")
