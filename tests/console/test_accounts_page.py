"""The page of accounts: what brokers have in force, and never a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from haservice.devtools.pair import ScratchPair
from tests.console.conftest import MakeConsole
from tests.console.filled import rows_of, text_of
from tests.console.support import SETTINGS

pytestmark = pytest.mark.cluster

ADMIN, SECRET = "operators", "a secret of operators"
ACL = f"""
globalWhiteRemoteAddresses: [10.1.2-5.*]
accounts:
- {{accessKey: {ADMIN}, secretKey: {SECRET}, admin: true}}
- accessKey: application
  secretKey: a secret of the application
  whiteRemoteAddress: 192.168.0.{{3,4}}
  defaultTopicPerm: PUB|SUB
  topicPerms: [Orders=PUB]
  groupPerms: [billing=SUB]
"""


def test_accounts_are_listed_without_their_secrets(tmp_path: Path, make_console: MakeConsole) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACL)
    settings = {**SETTINGS, "aclEnable": "true", "aclFile": str(file)}
    with ScratchPair(tmp_path, "ASYNC_MASTER", settings) as guarded:
        guarded.start_nameserver()
        guarded.start_master()
        console = make_console(guarded.namesrv_addr)
        cookie = console.post("/login", {"access_key": ADMIN, "secret_key": SECRET}).cookie
        assert console.get("/accounts").status == 303, "a page without a login"
        page = console.get("/accounts", Cookie=cookie).text
    assert rows_of(page, "accounts") == [
        [
            "application",
            "",
            "PUB|SUB",
            "DENY",
            "Orders=PUB",
            "billing=SUB",
            "192.168.0.3,192.168.0.4",
            "broker-a 0",
        ],
        [ADMIN, "yes", "DENY", "DENY", "", "", "", "broker-a 0"],
    ]
    assert rows_of(page, "white") == [["broker-a 0", "10.1.2-5.*"]]
    assert "a secret" not in text_of(page)
