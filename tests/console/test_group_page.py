"""The page of a DLedger group: its members, the one change that there is, and that change done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.group import ScratchGroup
from tests.console.conftest import MakeConsole
from tests.console.support import SETTINGS, agreed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ScratchGroup]:
    with ScratchGroup(tmp_path, SETTINGS) as made:
        made.start_nameserver()
        made.start_members()
        yield made


def test_a_group_has_its_members_and_is_handed_over_and_nothing_of_a_pair(
    group: ScratchGroup, make_console: MakeConsole
) -> None:
    console = make_console(group.namesrv_addr, "--allow-changes")
    with MQAdmin([group.namesrv_addr]) as admin:
        leader = group.leader(admin)
        wait_until(
            lambda: console.get("/pairs/broker-a").text.count("Switch over to it") == 2, "both can take over"
        )
        page = console.get("/pairs/broker-a").text
        assert f"{leader} leads broker-a in term " in page
        assert all(group.member_addr(name) in page for name in group.names if name != leader)
        assert page.count("Hand over") == 1
        assert not [
            word for word in ("Reinit", "Forget", "Fail over to it", "<h2>Epochs</h2>") if word in page
        ]
        to = next(name for name in group.names if name != leader)
        way = f"/pairs/broker-a/switchover?target={group.addr(to)}"
        plan = console.get(way).text
        assert f"hands its leadership over to {group.addr(to)}.  Nothing is lost." in plan
        begun = console.post("/pairs/broker-a/switchover", agreed(plan, target=group.addr(to)))
        assert begun.status == 303
        wait_until(lambda: "done" in console.get(begun.headers["location"]).text, "the change is done")
        assert group.leader(admin) == to
        group.processes[leader].kill()
        wait_until(
            lambda: "no: has not answered" in console.get("/pairs/broker-a").text, "who is away is named"
        )
