"""What a broker does not forget: over restarts, damage, and a disk that does not take it."""

from __future__ import annotations

import json
import re
import threading
import zlib
from pathlib import Path

import pytest

from commitlog.errors import StoreUnreadable
from haservice.bounds import OFFSET_MAX
from haservice.replication.lineage import file as lineage_file
from haservice.replication.lineage.epochs import Epoch, Lineage
from haservice.replication.lineage.file import (
    FORGET_MS,
    REPLICAS_MAX,
    HandingOver,
    LineageFile,
    LineageState,
    Replica,
    RoleCommand,
    decode_state,
    encode_state,
    without_its_log,
    without_power,
)
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.master.recorder import ReplicaRecorder
from haservice.replication.slave.recorder import MasterRecorder
from haservice.replication.status import MasterHeard

FULL = LineageState(
    "id",
    "boot",
    Lineage((Epoch(0, 0, "", 0, "before"), Epoch(3, 700, "id", 5, "first start"))),
    "SYNC_MASTER",
    {"other": Replica("10.0.0.2:10911", 690, 1234, True)},
    RoleCommand("SLAVE", 1, "SYNC_MASTER", 99, "switchover", "10.0.0.2:10912"),
    handing_over=HandingOver("10.0.0.2:10911", "other"),
    master_end=690,
    master_heard_ms=1234,
    members=ReplicaList(3, 1, "id", replicas={"id": "10.0.0.1:10911"}),
    given=ReplicaList(3, 1, "id", replicas={"id": "10.0.0.1:10911", "other": "10.0.0.2:10911"}),
)


def path(root: Path) -> Path:
    return root / "lineage" / "state.json"


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    assert decode_state(encode_state(FULL)) == FULL
    assert decode_state(encode_state(LineageState("x"))) == LineageState("x")


def test_a_broker_stays_who_it_is(tmp_path: Path) -> None:
    first = LineageFile(tmp_path)
    assert first.is_new
    assert len(first.state.replica_id) == 32
    second = LineageFile(tmp_path)
    assert not second.is_new
    assert second.state == first.state
    assert LineageFile(tmp_path / "other").state.replica_id != first.state.replica_id


def test_what_was_heard_of_a_master_is_of_one_lineage(tmp_path: Path) -> None:
    file = LineageFile(tmp_path)
    first, second = Lineage((Epoch(1, 0, "m"),)), Lineage((Epoch(1, 0, "m"), Epoch(2, 500, "n")))
    file.update(lineage=first, master_end=400, master_heard_ms=5)
    file.heard_master(first, 450, 6)
    assert (file.state.master_end, file.state.master_heard_ms) == (450, 6)
    file.update(lineage=second)
    assert file.state.master_end == -1
    file.heard_master(first, 480, 7)
    assert file.state.master_end == -1
    file.heard_master(second, 520, 8)
    assert LineageFile(tmp_path).state.master_end == 520


def test_every_change_is_there_at_the_next_start(tmp_path: Path) -> None:
    file = LineageFile(tmp_path)
    file.begin(Epoch(1, 0, file.state.replica_id, 5, "first start"))
    file.update(master_role="ASYNC_MASTER", command=FULL.command)
    file.saw("other", FULL.replicas["other"])
    again = LineageFile(tmp_path).state
    assert again == file.state
    assert again.lineage.epochs == (Epoch(1, 0, file.state.replica_id, 5, "first start"),)
    assert (again.master_role, again.command, dict(again.replicas)) == (
        "ASYNC_MASTER",
        FULL.command,
        dict(FULL.replicas),
    )


def test_an_epoch_that_is_no_newer_changes_nothing(tmp_path: Path) -> None:
    file = LineageFile(tmp_path)
    file.begin(Epoch(2, 100, "a"))
    with pytest.raises(ValueError, match="no newer"):
        file.begin(Epoch(2, 200, "b"))
    assert LineageFile(tmp_path).state.lineage.epochs == (Epoch(2, 100, "a"),)


def test_whether_the_machine_was_started_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_file, "storage_id", lambda _: "monday")
    LineageFile(tmp_path).started()
    assert not LineageFile(tmp_path).booted_anew
    monkeypatch.setattr(lineage_file, "storage_id", lambda _: "tuesday")
    file = LineageFile(tmp_path)
    assert file.booted_anew
    assert LineageFile(tmp_path).booted_anew  # until a start says that it took note
    file.started()
    assert not LineageFile(tmp_path).booted_anew


def test_without_a_boot_id_every_start_counts_as_another_boot_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage_file, "storage_id", lambda _: "")
    LineageFile(tmp_path).started()
    caplog.clear()
    assert LineageFile(tmp_path).booted_anew
    assert [one.levelname for one in caplog.records] == ["ERROR"]
    assert "tells no boot id" in caplog.text


def test_a_file_of_an_older_version_is_not_taken_for_another_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those have the boot alone, and nothing of the mount."""
    LineageFile(tmp_path).update(boot_id="monday")
    monkeypatch.setattr(lineage_file, "storage_id", lambda _: "monday@7:0/ext4:5")
    file = LineageFile(tmp_path)
    assert not file.booted_anew
    file.started()
    monkeypatch.setattr(lineage_file, "storage_id", lambda _: "monday@7:0/ext4:6")
    assert LineageFile(tmp_path).booted_anew


def test_who_was_seen_longest_ago_is_forgotten_first(tmp_path: Path) -> None:
    file = LineageFile(tmp_path)
    for number in range(REPLICAS_MAX + 3):
        file.saw(f"r{number}", Replica("addr", number, 1000 + number, True))
    file.saw("r3", Replica("addr", 50, 5000, False))
    assert set(LineageFile(tmp_path).state.replicas) == {f"r{one}" for one in range(3, REPLICAS_MAX + 3)}


def test_a_replica_that_was_not_in_sync_and_away_for_a_week_is_forgotten(tmp_path: Path) -> None:
    file = LineageFile(tmp_path)
    for name, in_sync in (("gone", False), ("gone in sync", True)):
        file.saw(name, Replica("addr", 1, 1000, in_sync))
    file.saw("here", Replica("addr", 2, FORGET_MS + 999, True))
    assert set(file.state.replicas) == {"gone", "gone in sync", "here"}
    file.saw("here", Replica("addr", 2, FORGET_MS + 1000, True))
    assert set(LineageFile(tmp_path).state.replicas) == {"gone in sync", "here"}


def test_a_clock_that_is_set_ahead_forgets_nobody(tmp_path: Path) -> None:
    now_ms = 10**12
    file = LineageFile(tmp_path)
    file._clock_s = lambda: now_ms / 1000
    file.saw("away", Replica("addr", 1, now_ms - 1000, False))
    file.saw("here", Replica("addr", 2, now_ms + FORGET_MS + 1000, True))
    assert set(file.state.replicas) == {"away", "here"}


@pytest.mark.parametrize("at_ms", [10**12 - FORGET_MS, 10**12 + FORGET_MS])
def test_a_clock_that_is_set_back_or_ahead_keeps_nothing_from_being_written(
    tmp_path: Path, at_ms: int
) -> None:
    """What a replica had when the clock was set back was told for as long as the clock had gone back."""
    file = LineageFile(tmp_path)
    file.saw("a", Replica("addr", 1, 10**12, True))
    recorder = ReplicaRecorder(file, lambda: {"a": Replica("addr", 9, at_ms, True)})
    recorder._record()
    assert file.state.replicas["a"].offset == 9
    file.heard_master(file.state.lineage, 5, 10**12)
    MasterRecorder(file, lambda: MasterHeard(5, at_ms))._record(at_end=False)
    assert file.state.master_heard_ms == at_ms


def test_replicas_that_are_noted_at_once_are_all_there(tmp_path: Path) -> None:
    file = LineageFile(tmp_path)
    threads = [
        threading.Thread(target=file.saw, args=(f"r{number}", Replica("", number, number, True)))
        for number in range(REPLICAS_MAX)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(LineageFile(tmp_path).state.replicas) == REPLICAS_MAX


def test_damage_is_told_and_the_backup_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = LineageFile(tmp_path)
    file.update(master_role="ASYNC_MASTER")
    file.update(master_role="SYNC_MASTER")
    content = path(tmp_path).read_bytes()
    path(tmp_path).write_bytes(content.replace(b"SYNC_MASTER", b"SYNC_NASTER"))
    again = LineageFile(tmp_path)
    assert (again.state.replica_id, again.state.master_role) == (file.state.replica_id, "ASYNC_MASTER")
    assert any("state.json" in record.getMessage() for record in caplog.records)
    assert "begins as a new one" not in caplog.text
    for copy in (path(tmp_path), path(tmp_path).with_name("state.json.bak")):
        copy.write_bytes(b"{}")
    assert LineageFile(tmp_path).state.replica_id != file.state.replica_id
    assert "begins as a new one" in caplog.text


@pytest.mark.parametrize("at", range(0, 400, 13))
def test_a_flipped_bit_is_found(at: int) -> None:
    content = bytearray(encode_state(FULL))
    content[at % len(content)] ^= 4
    try:
        state = decode_state(bytes(content))
    except ValueError:
        return
    assert state == FULL  # in white space


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"[]\n{}", b'{"crc32": 0}\n', b"null\nnull", b'{"crc32":558161692}\n[]\n']
)
def test_what_is_no_state(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        decode_state(content)


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        (b'"bootId": "boot",', b"", "Object missing required field `bootId`"),
        (b'"offset": 690', b'"offset": "690"', "Expected `int`, got `str` - at `$.replicas[...].offset`"),
        (b'"seenMs": 1234', b'"seenMs": true', "Expected `int`, got `bool` - at `$.replicas[...].seenMs`"),
        (b'"brokerId": 1', b'"brokerId": null', "Expected `int`, got `null` - at `$.command.brokerId`"),
        (b'"start": 700', b'"start": -1', "start is '-1'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(was: bytes, now: bytes, why: str) -> None:
    body = encode_state(FULL).partition(b"\n")[2].removesuffix(b"\n")
    assert was in body
    body = body.replace(was, now)
    with pytest.raises(ValueError, match=f"^{re.escape(why)}"):
        decode_state(b'{"crc32":%d}\n%b\n' % (zlib.crc32(body), body))


def test_a_disk_that_does_not_take_it_leaves_all_as_it_was(tmp_path: Path) -> None:
    file = LineageFile(tmp_path)
    before = file.state
    path(tmp_path).parent.rename(tmp_path / "aside")
    (tmp_path / "lineage").write_text("no directory")
    with pytest.raises(OSError, match="lineage"):
        file.update(master_role="SYNC_MASTER")
    assert file.state is before


def test_when_a_master_was_heard_last_outlives_its_epoch(tmp_path: Path) -> None:
    """It was a slave once, was seen as one then, and was the master for long."""
    file = LineageFile(tmp_path)
    first, own = Lineage((Epoch(1, 0, "m"),)), Epoch(2, 500, file.state.replica_id)
    file.update(lineage=first, replicas={"m": Replica("m:1", 300, 5, True)})
    file.heard_master(first, 500, 9000)
    file.begin(own)
    assert dict(LineageFile(tmp_path).state.replicas) == {"m": Replica("m:1", 300, 9000, True)}
    other = Lineage((*first.epochs, own, Epoch(3, 600, "n")))
    file.followed(other, end=600, master_end=600, master_heard_ms=9500)
    file.followed(other.begun(Epoch(4, 700, "o")), end=700, master_end=700, master_heard_ms=9900)
    assert {name: one.seen_ms for name, one in file.state.replicas.items()} == {"m": 9000, "n": 9500}


@pytest.mark.parametrize(
    ("start", "cut", "unwritten"), [(500, False, True), (500, True, False), (600, False, None)]
)
def test_a_master_that_wrote_nothing_in_its_epoch_remembers_that(
    tmp_path: Path, start: int, cut: bool, unwritten: bool | None
) -> None:
    file = LineageFile(tmp_path)
    first = Lineage((Epoch(1, 0, "m"),))
    file.update(lineage=first)
    file.begin(Epoch(2, 500, file.state.replica_id))
    file.followed(file.state.lineage.begun(Epoch(3, start, "m")), end=start, cut=cut, master_end=start)
    past = LineageFile(tmp_path).state.past
    assert [one.unwritten for one in past] == ([] if unwritten is None else [unwritten])


def test_a_machine_that_went_down_may_have_taken_what_was_written(tmp_path: Path) -> None:
    file = LineageFile(tmp_path)
    file.begin(Epoch(2, 500, file.state.replica_id))
    file.update(boot_id="another boot")
    file = LineageFile(tmp_path)
    file.followed(file.state.lineage.begun(Epoch(3, 500, "m")), end=500, master_end=500)
    assert [one.unwritten for one in file.state.past] == [False]


def test_an_emptied_log_is_whole_at_the_masters_end_and_stays_so_when_it_connects_again(
    tmp_path: Path,
) -> None:
    file, lineage = LineageFile(tmp_path), Lineage((Epoch(1, 0, "m"),))
    file.update(whole_from=OFFSET_MAX)

    def connects(end: int, master_end: int) -> int:
        return file.followed(lineage, end=end, master_end=master_end).whole_from

    assert connects(0, 100) == 100
    assert connects(99, 200) == 200, "it has not caught up yet"
    assert connects(200, 300) == 200
    assert connects(250, 400) == 200
    assert connects(150, 500) == 500, "the machine went down, and took what had come"
    file.update(whole_from=0)
    assert connects(0, 600) == 0, "it never lost anything"


def test_a_log_that_was_whole_again_lacks_only_what_a_power_cut_took(tmp_path: Path) -> None:
    file, lineage = LineageFile(tmp_path), Lineage((Epoch(1, 0, "m"),))
    file.reached(100)
    assert not file.state.lost_power, "it never lost anything"
    for end in (99, 100):
        file.update(**without_its_log(file.state))
        file.followed(lineage, end=0, master_end=100)
        file.reached(end)
        file.update(**without_power(LineageFile(tmp_path).state, 50))
        assert file.state.lost_power == (end == 100)
    file.update(**without_its_log(file.state))
    assert not file.state.lost_power, "its store was emptied once more"


def test_a_file_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    LineageFile(tmp_path)
    path = tmp_path / "lineage" / "state.json"
    body = path.read_bytes().partition(b"\n")[2].removesuffix(b"\n")
    assert json.loads(body)["format"] == 1
    newer = body.replace(b'"format": 1', b'"format": 2')
    path.write_bytes(b'{"crc32":%d}\n%b\n' % (zlib.crc32(newer), newer))
    before = path.read_bytes()
    with pytest.raises(StoreUnreadable, match=r"state.json: its format is 2, and this version knows 1"):
        LineageFile(tmp_path)
    assert path.read_bytes() == before
    older = body.replace(b'"format": 1,', b"")
    path.write_bytes(b'{"crc32":%d}\n%b\n' % (zlib.crc32(older), older))
    LineageFile(tmp_path)
