"""Members of a DLedger group that lost what they had, with real processes: wiped, new, without power, forced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.group import ScratchGroup
from tests.cluster.support import SETTINGS, numbered, read, send_ok
from tests.cluster.test_dledger_commands import check, refused, serving, typed
from tests.support.standing_still import freeze, thaw
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ScratchGroup]:
    with ScratchGroup(tmp_path, SETTINGS) as made:
        made.start_nameserver()
        yield made


@pytest.fixture
def admin(group: ScratchGroup) -> Iterator[MQAdmin]:
    with MQAdmin([group.namesrv_addr]) as made:
        yield made


def store(group: ScratchGroup, name: str) -> Path:
    return group.store(name) / f"dledger-{name}"


def wipe(group: ScratchGroup, name: str) -> None:
    group.processes[name].kill()
    shutil.rmtree(store(group, name))


def boot(group: ScratchGroup, *names: str, **settings: str) -> None:
    for process in [group.begin_member(name, **settings) for name in names]:
        process.wait_booted(60.0)


def check_says(group: ScratchGroup, *texts: str) -> None:
    wait_until(lambda: all(text in check(group)[1] for text in texts), f"check says {texts}")


def others(group: ScratchGroup, leader: str) -> tuple[str, str]:
    one, other = sorted(set(group.names) - {leader})
    return one, other


def test_a_wiped_member_elects_nobody_and_nothing_is_lost_when_the_other_one_is_back(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    """400 of 500 acknowledged messages were lost: the wiped member voted for the one that stood still."""
    group.start_members(flushDiskType="SYNC_FLUSH")
    keeper = serving(group, admin)
    asleep, wiped = others(group, keeper)
    send_ok(group.addr(keeper), numbered(0, 100))
    freeze(group.processes[asleep].popen)
    send_ok(group.addr(keeper), numbered(100, 500))
    wipe(group, wiped)
    group.begin_member(wiped, flushDiskType="SYNC_FLUSH")
    group.processes[keeper].kill()
    thaw(group.processes[asleep].popen)
    check_says(group, "NOBODY LEADS", f"{wiped} (", f"waits for an answer of {keeper}")
    assert "mqadmin failover -b broker-a --to ADDR" in check(group)[1]
    boot(group, keeper, flushDiskType="SYNC_FLUSH")
    leader = group.leader(admin)
    assert read(admin, group.addr(leader)) == numbered(0, 500)
    check_says(group, "3 of 3 members are level")
    assert json.loads((store(group, wiped) / "whole").read_text())["why"] is None


def test_a_member_that_was_put_back_from_an_older_copy_elects_nobody_and_nothing_is_lost(
    group: ScratchGroup, admin: MQAdmin, tmp_path: Path
) -> None:
    """Its copy agrees with itself; the leader remembers how far it had acknowledged."""
    group.start_members(flushDiskType="SYNC_FLUSH")
    keeper = serving(group, admin)
    asleep, restored = others(group, keeper)
    send_ok(group.addr(keeper), numbered(0, 100))
    assert group.processes[restored].stop() == 0
    shutil.copytree(group.store(restored), tmp_path / "snapshot")
    group.start_members(restored, flushDiskType="SYNC_FLUSH")
    check_says(group, "3 of 3 members are level")
    freeze(group.processes[asleep].popen)
    send_ok(group.addr(keeper), numbered(100, 500))
    group.processes[restored].kill()
    shutil.rmtree(group.store(restored))
    shutil.copytree(tmp_path / "snapshot", group.store(restored))
    group.begin_member(restored, flushDiskType="SYNC_FLUSH")
    check_says(
        group, f"by what {keeper} remembers it had acknowledged up to", f"waits for an answer of {asleep}"
    )
    group.processes[keeper].kill()
    thaw(group.processes[asleep].popen)
    start = f"start {group.member_addr(keeper)}"
    check_says(group, "NOBODY LEADS", f"by what {keeper} remembers", "waits for a leader of term", start)
    boot(group, keeper, flushDiskType="SYNC_FLUSH")
    leader = group.leader(admin)
    assert read(admin, group.addr(leader)) == numbered(0, 500)
    check_says(group, "3 of 3 members are level")


def test_a_new_group_waits_for_a_member_that_is_missing_and_begins_without_it_by_command(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    boot(group, "n0", "n1")
    check_says(group, "NOBODY LEADS", "2 of 3 members answer", "waits for an answer of n2")
    to = group.addr("n0")
    said = refused(group, "failover", "-b", "broker-a", "--to", to, "--yes")
    assert "n2 does not answer: what was acknowledged by n2" in said
    assert "--force goes on without them" in said
    done = typed(group, "failover", "-b", "broker-a", "--to", to, "--force", "--yes")
    assert (done["newMaster"], done["newLeaderId"], done["complete"]) == (to, "n0", True)
    check_says(group, "LED WITHOUT A MAJORITY", "by an operator's --force without n2")
    assert "switchover hands over" in refused(
        group, "failover", "-b", "broker-a", "--to", to, "--force", "--yes"
    )
    boot(group, "n2")
    check_says(group, "n0 leads term")
    wait_until(lambda: "MEMBER NOT" not in check(group)[1], "all three are whole and level")
    assert typed(group, "switchover", "-b", "broker-a", "--yes")["complete"]
    check_says(group, "3 of 3 members are level")


def test_all_lost_their_power_with_async_flush_and_the_longest_log_leads_once_all_are_there(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    group.start_members(flushDiskType="ASYNC_FLUSH")
    leader = serving(group, admin)
    send_ok(group.addr(leader), numbered(0, 50))
    for name in group.names:
        group.processes[name].kill()
        note = store(group, name) / "whole"
        written = json.loads(note.read_text())
        assert written["acknowledges"] == "written"
        note.write_text(json.dumps(written | {"boot": "another boot"}))
    boot(group, "n0", "n1", flushDiskType="ASYNC_FLUSH")
    check_says(group, "NOBODY LEADS", "its machine went down before its log was flushed")
    boot(group, "n2", flushDiskType="ASYNC_FLUSH")
    leader = group.leader(admin)
    assert read(admin, group.addr(leader)) == numbered(0, 50)
    check_says(group, "LED WITHOUT A MAJORITY", "by the longest log")
    wait_until(lambda: "MEMBER NOT" not in check(group)[1], "all three are whole and level")


def test_a_member_that_holds_what_its_leader_lacks_makes_check_critical(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    """Two of three wiped, forced, and the third comes back with what was acknowledged: it said OK before."""
    group.start_members(flushDiskType="SYNC_FLUSH")
    keeper = serving(group, admin)
    send_ok(group.addr(keeper), numbered(0, 50))
    check_says(group, "3 of 3 members are level")
    one, other = others(group, keeper)
    assert group.processes[keeper].stop() == 0
    for name in (one, other):
        wipe(group, name)
    boot(group, one, other, flushDiskType="SYNC_FLUSH")
    check_says(group, "NOBODY LEADS", f"waits for an answer of {keeper}")
    to = group.addr(one)
    assert typed(group, "failover", "-b", "broker-a", "--to", to, "--force", "--yes")["complete"]
    boot(group, keeper, flushDiskType="SYNC_FLUSH")
    check_says(group, "ACKNOWLEDGED ENTRIES ARE LOST", "nothing is cut")
    assert check(group)[0] == 2
    verdicts = {row["verdict"] for row in typed(group, "haStatus", exit_code=1)}
    assert verdicts == {"CRITICAL"}
