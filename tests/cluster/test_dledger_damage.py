"""Bits that flip in logs of a group's members, as real processes: found by a read, told, and mended by the others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.kernel.records import NewMessage, encode_host
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.admin.calls import MQAdmin
from haservice.devtools.group import ScratchGroup
from haservice.errors import HAServiceError
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.admin.asking import run
from tests.cluster.support import QUEUES, SEGMENT_BYTES, SETTINGS, TOPIC, numbered, read, send_ok
from tests.support.flips import flip
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

BODIES = [body.ljust(3000, b".") for body in numbered(0, 80)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ScratchGroup]:
    with ScratchGroup(tmp_path, {**SETTINGS, "flushDiskType": "SYNC_FLUSH"}) as made:
        made.start_nameserver()
        yield made


@pytest.fixture
def admin() -> Iterator[MQAdmin]:
    with MQAdmin() as made:
        yield made


def filled(group: ScratchGroup, admin: MQAdmin) -> str:
    """Starts all, sends BODIES, and waits until all have them; the leader's name."""
    group.start_members()
    leader = group.leader(admin)
    admin.update_topic(group.addr(leader), CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    send_ok(group.addr(leader), BODIES)
    wait_until(lambda: len(ends(group, admin)) == 1, "all are level")
    return leader


def ends(group: ScratchGroup, admin: MQAdmin) -> set[str]:
    return {
        info["commitLogMaxOffset"] if info["dispatchBehindBytes"] == "0" else "behind"
        for info in (admin.runtime_info(group.addr(name)) for name in group.names)
    }


def data_files(group: ScratchGroup, name: str) -> list[Path]:
    return sorted((group.store(name) / f"dledger-{name}" / "data").iterdir())


def rot(files: list[Path], body: bytes) -> None:
    """A bit flips in this body."""
    for path in files:
        at = path.read_bytes().find(body)
        if at >= 0:
            flip(path, at + 5)
            return
    raise AssertionError(f"{body[:20]!r} is not there")


def reads_all(group: ScratchGroup, admin: MQAdmin, name: str) -> bool:
    try:
        return sorted(read(admin, group.addr(name))) == sorted(BODIES)
    except HAServiceError:
        return False


def logs_are_equal(group: ScratchGroup) -> bool:
    logs = [
        b"".join(path.read_bytes() for path in data_files(group, name)).rstrip(b"\0") for name in group.names
    ]
    return all(log == logs[0] for log in logs)


def damaged(group: ScratchGroup, admin: MQAdmin, name: str) -> tuple[str, str]:
    info = admin.runtime_info(group.addr(name))
    return info["damagedRanges"], info["dLegerDamagedEntries"]


def is_whole_again(group: ScratchGroup, admin: MQAdmin, name: str) -> None:
    wait_until(lambda: reads_all(group, admin, name), f"{name} serves everything again")
    wait_until(lambda: damaged(group, admin, name) == ("", ""), f"{name} knows of no damage any more")
    wait_until(lambda: logs_are_equal(group), "all logs are equal")
    assert "damaged entry mended" in group.processes[name].log.read_text()


def test_flipped_bits_are_mended_from_the_others_while_all_run(group: ScratchGroup, admin: MQAdmin) -> None:
    """Of a follower by its leader, of the leader by a follower."""
    leader = filled(group, admin)
    follower = next(name for name in group.names if name != leader)
    for name in (follower, leader):
        rot(data_files(group, name), BODIES[17])
        rot(data_files(group, name), BODIES[40])
        rot(data_files(group, name), BODIES[78])
        assert not logs_are_equal(group)
        is_whole_again(group, admin, name)
    assert group.leader(admin) == leader
    send_ok(group.addr(leader), [b"goes on"])


def test_what_flips_while_a_member_is_down_is_mended_when_it_is_back(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    leader = filled(group, admin)
    follower = next(name for name in group.names if name != leader)
    for name in (follower, leader):
        assert group.processes[name].stop() == 0
        rot(data_files(group, name), BODIES[3])
        rot(data_files(group, name), BODIES[79])
        group.start_members(name)
        group.leader(admin)
        is_whole_again(group, admin, name)


def test_damage_that_nobody_can_mend_is_told_until_somebody_can(group: ScratchGroup, admin: MQAdmin) -> None:
    leader = filled(group, admin)
    follower, *others = [*(name for name in group.names if name != leader), leader]
    for name in others:
        assert group.processes[name].stop() == 0
    rot(data_files(group, follower), BODIES[17])

    def is_told() -> bool:
        reads_all(group, admin, follower)
        try:
            return all(damaged(group, admin, follower))
        except HAServiceError:
            return False

    wait_until(is_told, "the damage is told")
    # The last one may lead for a moment, and its broker then starts again as a slave.
    wait_until(lambda: "LOG DAMAGED" in run("check", "-n", group.namesrv_addr).stdout, "and by check")
    with pytest.raises(HAServiceError, match="damaged from"):
        read(admin, group.addr(follower))
    group.start_members(others[0])
    group.leader(admin)
    wait_until(lambda: reads_all(group, admin, follower), "it serves everything again")
    wait_until(lambda: damaged(group, admin, follower) == ("", ""), "no damage is told any more")


def test_the_classic_files_of_a_group_are_mended_too(group: ScratchGroup, admin: MQAdmin) -> None:
    first, *others = group.names
    options = LogOptions(root=group.store(first), segment_bytes=SEGMENT_BYTES, queue_file_bytes=20000)
    store = Store.open(options, store_host=encode_host("127.0.0.1", 10911))
    for number, body in enumerate(BODIES):
        store.log.append(NewMessage(TOPIC, number % QUEUES, body))
    store.close()
    for name in others:
        shutil.copytree(group.store(first), group.store(name))
    group.start_members()
    leader = group.leader(admin)
    admin.update_topic(group.addr(leader), CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    for name in group.names:
        wait_until(lambda name=name: reads_all(group, admin, name), f"{name} serves the old messages")  # type: ignore[misc]
    (path,) = (group.store(others[0]) / "commitlog").iterdir()
    (sound,) = (group.store(first) / "commitlog").iterdir()
    rot([path], BODIES[17])
    assert path.read_bytes() != sound.read_bytes()
    wait_until(lambda: reads_all(group, admin, others[0]), "it serves everything again")
    assert path.read_bytes() == sound.read_bytes()
