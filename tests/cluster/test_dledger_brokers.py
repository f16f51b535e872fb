"""Three brokers whose log a majority agrees on, as real processes: sends, elections, restarts.

Nothing is timed.  The seconds from a death to the first OK are printed: pytest -s shows them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.client.message import Message
from haservice.client.options import ClientOptions
from haservice.client.producer import Producer
from haservice.client.raw_sends import SendQueue
from haservice.client.reading import from_queue
from haservice.devtools.group import ScratchGroup
from haservice.errors import HAServiceError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import CreateTopicHeader, TopicHeader
from tests.cluster.support import QUEUES, SETTINGS, TOPIC, knows_topic, numbered, read, send, send_ok
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ScratchGroup]:
    with ScratchGroup(tmp_path, SETTINGS) as made:
        made.start_nameserver()
        yield made


@pytest.fixture
def admin() -> Iterator[MQAdmin]:
    with MQAdmin() as made:
        yield made


def led(group: ScratchGroup, admin: MQAdmin) -> str:
    """The leader's name, once it has the topic."""
    leader = group.leader(admin)
    admin.update_topic(group.addr(leader), CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    return leader


def level(group: ScratchGroup, admin: MQAdmin, *names: str) -> None:
    """Waits until these brokers have committed, and dispatched, the same."""

    def ends() -> set[tuple[str, str]]:
        infos = [admin.runtime_info(group.addr(name)) for name in names]
        return {(info["commitLogMaxOffset"], info["dispatchBehindBytes"]) for info in infos}

    def equal() -> bool:
        try:
            found = ends()
        except HAServiceError:
            return False
        return len(found) == 1 and next(iter(found))[1] == "0"

    wait_until(equal, "all are level")


def becomes_slave(group: ScratchGroup, admin: MQAdmin, name: str) -> None:
    """Waits for it.  A broker that turns has no ports for a moment."""

    def is_slave() -> bool:
        with contextlib.suppress(HAServiceError):
            return admin.runtime_info(group.addr(name))["brokerRole"] == "SLAVE"
        return False

    wait_until(is_slave, f"{name} serves as a slave")


class Sender:
    """Sends one numbered message after the other through the nameserver; what was answered with OK is in `acked`."""

    def __init__(self, group: ScratchGroup) -> None:
        self.acked: list[tuple[float, bytes]] = []
        self._options = ClientOptions(group.namesrv_addr)
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sender:
        self._thread.start()
        wait_until(lambda: len(self.acked) > 20, "sends are answered")
        return self

    def __exit__(self, *_: object) -> None:
        self._halt.set()
        self._thread.join(30)

    def _run(self) -> None:
        with Producer("walkers", self._options) as producer:
            number = 0
            while not self._halt.is_set():
                body = b"%06d " % number
                try:
                    producer.send(Message(TOPIC, body))
                except (HAServiceError, TimeoutError):
                    continue  # it may be stored, or not: the next send says the same again
                self.acked.append((time.monotonic(), body))
                number += 1

    def goes_on(self) -> None:
        count = len(self.acked)
        wait_until(lambda: len(self.acked) > count + 20, "sends are answered again")

    def first_after(self, when_s: float) -> float:
        return next(at_s for at_s, _ in self.acked if at_s > when_s) - when_s

    def assert_all_read(self, admin: MQAdmin, addr: str) -> None:
        found = [
            message.body
            for number in range(QUEUES)
            for message in from_queue(admin, TOPIC, SendQueue("broker-a", addr, number), "WALKERS")
        ]
        missing = {body for _, body in self.acked} - set(found)
        assert not missing, f"{len(missing)} acknowledged messages are missing of {len(self.acked)}"


def test_what_is_acknowledged_is_read_after_leaders_died_stopped_and_stood_still(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    group.start_members()
    leader = led(group, admin)
    with Sender(group) as sender:
        died_s = time.monotonic()
        group.processes[leader].kill()
        second = group.leader(admin)
        assert second != leader
        sender.goes_on()
        print(f"from the death of the leader to the next OK: {sender.first_after(died_s):.2f} s")
        group.start_members(leader)
        stopped_s = time.monotonic()
        assert group.processes[second].stop() == 0
        sender.goes_on()
        print(f"from the stop of the leader to the next OK: {sender.first_after(stopped_s):.2f} s")
        group.start_members(second)
        third = group.leader(admin)
        with frozen(group.processes[third].popen):
            assert group.leader(admin, but=third) != third
            sender.goes_on()
        becomes_slave(group, admin, third)
        assert {one.status for one in send(group.addr(third), [b"late"])} == {"SERVICE_NOT_AVAILABLE"}
        sender.goes_on()
    level(group, admin, *group.names)
    for name in group.names:
        sender.assert_all_read(admin, group.addr(name))


def test_a_topic_that_was_deleted_a_moment_before_its_leader_died_stays_deleted(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    def stored(addr: str, body: bytes) -> bool:
        return {one.status for one in send(addr, [body])} == {"SEND_OK"}

    group.start_members()
    leader = led(group, admin)
    wait_until(lambda: stored(group.addr(leader), b"old"), "a message is stored")
    level(group, admin, *group.names)
    admin.tell(group.addr(leader), RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(TOPIC))
    group.processes[leader].kill()
    second = group.addr(group.leader(admin))
    assert not knows_topic(admin, second)
    admin.update_topic(second, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    wait_until(lambda: stored(second, b"new"), "a message is stored in the new topic")
    wait_until(lambda: set(read(admin, second)) == {b"new"}, "it has its new messages only")


def test_without_a_majority_nothing_is_acknowledged_and_a_group_that_died_comes_back_with_everything(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    group.start_members(flushDiskType="SYNC_FLUSH")
    leader = led(group, admin)
    others = sorted(set(group.names) - {leader})
    bodies = numbered(0, 200)
    send_ok(group.addr(leader), bodies)
    level(group, admin, *group.names)
    for name in others:
        group.processes[name].kill()
    statuses = {one.status for one in send(group.addr(leader), [b"lonely"])}
    assert statuses <= {"SYSTEM_ERROR", "SERVICE_NOT_AVAILABLE"}
    becomes_slave(group, admin, leader)
    assert read(admin, group.addr(leader)) == bodies
    group.processes[leader].kill()
    group.start_members(flushDiskType="SYNC_FLUSH")
    second = group.leader(admin)
    send_ok(group.addr(second), numbered(200, 300))
    found = set(read(admin, group.addr(second)))
    assert found - {b"lonely"} == set(numbered(0, 300))
    assert group.processes[second].stop() == 0
    with pytest.raises(HAServiceError, match="enableDLegerCommitLog"):
        group.start_broker(second, brokerRole="SYNC_MASTER")


def test_entries_over_two_disks_survive_restarts_and_one_disk_is_emptied(
    group: ScratchGroup, admin: MQAdmin, tmp_path: Path
) -> None:
    disks = [tmp_path / "disk1", tmp_path / "disk2"]
    spread = {"storePathDLedgerCommitLog": ",".join(map(str, disks))}
    first, *others = group.names
    group.start_members(*others)
    group.start_members(first, **spread)
    leader = led(group, admin)
    bodies = [body.ljust(30_000, b"x") for body in numbered(0, 120)]
    send_ok(group.addr(leader), bodies)
    level(group, admin, *group.names)

    def places() -> list[Path]:
        files = {path.name: path.parent for disk in disks for path in disk.iterdir()}
        return [files[name] for name in sorted(files)]

    assert places()[:4] == [disks[0], disks[1]] * 2
    assert group.processes[first].stop() == 0
    with pytest.raises(HAServiceError, match="were synced"):
        group.start_members(first)
    count = len(places())
    group.start_members(first, **spread, readOnlyCommitLogStorePaths=str(disks[1]))
    more = [body.ljust(30_000, b"x") for body in numbered(120, 240)]
    send_ok(group.addr(group.leader(admin)), more)
    level(group, admin, *group.names)
    assert read(admin, group.addr(first)) == sorted(bodies + more)
    assert set(places()[count:]) == {disks[0]}
    assert group.processes[first].stop() == 0
    with pytest.raises(HAServiceError, match="enableDLegerCommitLog"):
        group.start_broker(first, brokerRole="SYNC_MASTER")


def test_a_member_whose_offsets_cannot_be_read_leads_only_once_it_has_another_members(
    group: ScratchGroup, admin: MQAdmin
) -> None:
    group.start_members()
    leader = led(group, admin)
    send_ok(group.addr(leader), numbered(0, 20))
    spoilt = next(name for name in group.names if name != leader)
    group.processes[spoilt].stop()
    topics = group.store(spoilt) / "config" / "topics.json"
    for path in (topics, topics.with_name("topics.json.bak")):
        path.write_bytes(b"{")
    group.start_members(spoilt)
    wait_until(topics.with_name("topics.json.unfit").exists, "it has the leader's table")
    level(group, admin, *group.names)
    others = [name for name in group.names if name not in (spoilt, leader)]
    for name in (leader, *others):
        group.processes[name].kill()
    group.begin_member(others[0])
    first = group.leader(admin, seconds=60)
    assert read(admin, group.addr(first)) == numbered(0, 20)
