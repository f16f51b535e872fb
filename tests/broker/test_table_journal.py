"""The journal of consumer offsets: what a crash at any moment leaves, and what a bit that flips does."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from haservice.broker.offsets import consumer_offsets, stored
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.table_journal import TableJournal, entry, read_entries
from tests.support.failing_files import Crash, FailingFiles

SMALL_BYTES = stored.SMALL_BYTES


@pytest.fixture(autouse=True)
def every_table_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "SMALL_BYTES", 0)


def opened(path: Path, files: FailingFiles | None = None) -> ConsumerOffsets:
    offsets = ConsumerOffsets(
        PersistedFile(path / "o.json", files), journal=TableJournal(path / "o.journal", files)
    )
    offsets.load()
    return offsets


def begun(path: Path, files: FailingFiles | None = None) -> ConsumerOffsets:
    """A table whose file is written, so that what comes next goes into the journal."""
    offsets = opened(path, files)
    offsets.commit("g", "T", 0, 1)
    assert offsets.persist()
    return offsets


def whole(path: Path) -> dict[str, dict[int, int]]:
    """What a stock broker finds."""
    table = ConsumerOffsetWrapper.decode((path / "o.json").read_bytes()).offset_table
    return {key: dict(queues) for key, queues in table.items()}


def test_what_changed_is_in_the_journal_and_there_after_a_crash(tmp_path: Path) -> None:
    offsets = begun(tmp_path)
    offsets.commit("g", "T", 0, 2)
    offsets.commit("h", "U", 3, 2**62)
    assert offsets.persist()
    assert not offsets.persist()
    assert whole(tmp_path) == {"T@g": {0: 1}}
    offsets.commit("g", "T", 0, 3)
    offsets.remove_group("h")
    assert offsets.persist()
    again = opened(tmp_path)
    assert again.table() == offsets.table() == {"T@g": {0: 3}}
    assert len(again) == 1


def test_as_much_is_written_as_changed(tmp_path: Path) -> None:
    offsets = begun(tmp_path)
    for number in range(20_000):
        offsets.commit("g", f"T{number}", 0, 1)
    offsets.persist_whole()
    files = FailingFiles()
    offsets = opened(tmp_path, files)
    offsets.commit("g", "T7", 0, 2)
    offsets.persist()
    begun_bytes = (tmp_path / "o.journal").stat().st_size
    offsets.commit("g", "T8", 0, 2)
    before = files.calls.copy()
    assert offsets.persist()
    assert (tmp_path / "o.journal").stat().st_size - begun_bytes < 64
    assert files.calls - before == {"open": 1, "pwrite": 1, "fdatasync": 1, "close": 1} or (
        sum((files.calls - before).values()) <= 4
    )
    assert opened(tmp_path).table() == offsets.table()


def test_a_clean_stop_leaves_the_file_whole_and_no_journal(tmp_path: Path) -> None:
    offsets = begun(tmp_path)
    offsets.commit("g", "T", 0, 2)
    offsets.persist()
    assert (tmp_path / "o.journal").exists()
    assert offsets.persist_whole()
    assert whole(tmp_path) == {"T@g": {0: 2}}
    assert not (tmp_path / "o.journal").exists()
    assert not offsets.persist_whole()


def test_a_small_table_is_written_whole_as_a_stock_broker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "SMALL_BYTES", SMALL_BYTES)
    offsets = begun(tmp_path)
    offsets.commit("g", "T", 0, 2)
    assert offsets.persist()
    assert whole(tmp_path) == {"T@g": {0: 2}}
    assert not (tmp_path / "o.journal").exists()


def test_a_journal_as_large_as_its_table_gives_way_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "JOURNAL_BYTES_MIN", 500)
    offsets = begun(tmp_path)
    sizes = []
    for number in range(100):
        offsets.commit("g", "T", 0, 10 + number)
        assert offsets.persist()
        sizes.append((tmp_path / "o.journal").stat().st_size if (tmp_path / "o.journal").exists() else 0)
    assert 500 < max(sizes) < 700
    assert sizes.count(0) >= 5
    assert opened(tmp_path).table() == {"T@g": {0: 109}}


def test_the_file_is_written_whole_once_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = begun(tmp_path)
    offsets.commit("g", "T", 0, 2)
    offsets.persist()
    monkeypatch.setattr(stored, "WHOLE_EVERY_S", 0.0)
    assert offsets.persist()
    assert whole(tmp_path) == {"T@g": {0: 2}}
    assert not offsets.persist()


def test_a_journal_of_another_table_is_left_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stock broker ran on the store after a crash of ours, and went on from the file alone."""
    offsets = begun(tmp_path)
    offsets.commit("g", "T", 0, 7)
    offsets.persist()
    (tmp_path / "o.json").write_text('{"offsetTable":{"T@g":{0:5}}}')
    again = opened(tmp_path)
    assert again.table() == {"T@g": {0: 5}}
    assert "another table was written since" in caplog.text
    again.commit("g", "T", 0, 6)
    again.persist()
    assert opened(tmp_path).table() == {"T@g": {0: 6}}


def test_the_journal_goes_on_from_the_backup_of_a_file_that_rotted(tmp_path: Path) -> None:
    offsets = begun(tmp_path)
    offsets.commit("h", "T", 0, 1)
    offsets.persist_whole()
    offsets.commit("g", "T", 0, 7)
    offsets.persist()
    (tmp_path / "o.json").write_text("{rot")
    assert opened(tmp_path).table() == {"T@g": {0: 7}}


def test_after_a_start_that_found_a_journal_the_file_is_written_whole(tmp_path: Path) -> None:
    offsets = begun(tmp_path)
    offsets.commit("g", "T", 0, 7)
    offsets.persist()
    again = opened(tmp_path)
    assert again.persist()
    assert whole(tmp_path) == {"T@g": {0: 7}}


@pytest.mark.parametrize("junk", [b"", b"\0" * 4096, b"x", b"rubbish" * 100, b"\0\0\0\x05\1\2\3\4{}"])
def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path, junk: bytes) -> None:
    offsets = begun(tmp_path)
    states = [offsets.table()]
    ends = [0]
    for number in range(2, 6):
        offsets.commit("g", "T", number % 2, number)
        offsets.persist()
        states.append(offsets.table())
        ends.append((tmp_path / "o.journal").stat().st_size)
    data = (tmp_path / "o.journal").read_bytes()
    for cut in range(len(data)):
        (tmp_path / "o.journal").write_bytes(data[:cut] + junk)
        whole_entries = sum(end <= cut for end in ends) - 1
        assert opened(tmp_path).table() == states[whole_entries], cut


def test_any_bit_of_the_journal_is_turned_back(tmp_path: Path) -> None:
    offsets = begun(tmp_path)
    for number in range(2, 5):
        offsets.commit("g", "T", number % 2, number)
        offsets.persist()
    data = bytearray((tmp_path / "o.journal").read_bytes())
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            (tmp_path / "o.journal").write_bytes(data)
            assert opened(tmp_path).table() == offsets.table(), (at, bit)
            data[at] ^= 1 << bit


def test_what_an_overwritten_entry_left_is_no_entry() -> None:
    head, crc = entry(b"{}", 0)
    first, then = entry(b"first", crc)
    second, _ = entry(b"second", then)
    other, _ = entry(b"other", crc)
    assert read_entries(head + first + second).texts == [b"{}", b"first", b"second"]
    assert read_entries(head + other + second).texts == [b"{}", b"other"]


def test_a_damaged_entry_costs_its_own_changes_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = begun(tmp_path)
    ends = []
    for number in range(2, 7):
        offsets.commit("g", "T", number, number)
        offsets.persist()
        ends.append((tmp_path / "o.journal").stat().st_size)
    data = bytearray((tmp_path / "o.journal").read_bytes())
    for lost in range(2, 6):  # the last one cannot be told from one that a crash tore
        damaged = data.copy()
        damaged[ends[lost - 2] - 3] ^= 0xFF
        (tmp_path / "o.journal").write_bytes(damaged)
        caplog.clear()
        kept = {0: 1, **{number: number for number in range(2, 7) if number != lost}}
        assert opened(tmp_path).table() == {"T@g": kept}
        assert "journal is damaged" in caplog.text
        assert "entries_damaged=1" in caplog.text
        assert (tmp_path / "o.journal.damaged").read_bytes() == damaged


def test_damage_over_several_entries_leaves_those_behind_it(tmp_path: Path) -> None:
    offsets = begun(tmp_path)
    ends = []
    for number in range(2, 7):
        offsets.commit("g", "T", number, number)
        offsets.persist()
        ends.append((tmp_path / "o.journal").stat().st_size)
    data = bytearray((tmp_path / "o.journal").read_bytes())
    for end in ends[1:3]:
        data[end - 3] ^= 0xFF
    (tmp_path / "o.journal").write_bytes(data)
    assert opened(tmp_path).table() == {"T@g": {0: 1, 2: 2, 5: 5, 6: 6}}


def test_a_journal_whose_head_is_damaged_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody knows which table it continues."""
    offsets = begun(tmp_path)
    offsets.commit("g", "T", 0, 2)
    offsets.persist()
    data = bytearray((tmp_path / "o.journal").read_bytes())
    data[8] ^= 0xFF
    (tmp_path / "o.journal").write_bytes(data)
    assert opened(tmp_path).table() == {"T@g": {0: 1}}
    assert "entries_damaged=all" in caplog.text
    assert (tmp_path / "o.journal.damaged").read_bytes() == data


def test_what_a_failed_write_left_is_never_taken_behind_a_damaged_entry(tmp_path: Path) -> None:
    files = FailingFiles()
    journal = TableJournal(tmp_path / "o.journal", files)
    journal.begin(1, None)
    files.fail("pwrite", errno.ENOSPC, after=2)
    with pytest.raises(OSError, match="No space"):
        journal.append([b"old-1", b"old-2", b"old-3"])
    files.heal()
    journal.append([b"new-1"])
    assert TableJournal(tmp_path / "o.journal").load(1, from_backup=False) == [b"new-1"]


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path: Path) -> None:
    files = FailingFiles()
    offsets = begun(tmp_path, files)
    offsets.commit("g", "T", 0, 2)
    offsets.persist()
    files.fail("pwrite", errno.ENOSPC)
    for number in range(3, 6):
        offsets.commit("g", "T", number, number)
        with pytest.raises(OSError, match="No space"):
            offsets.persist()
    assert opened(tmp_path).table() == {"T@g": {0: 2}}
    files.heal()
    files.calls.clear()
    assert offsets.persist()
    assert files.calls["rename"] == 0
    assert opened(tmp_path).table() == offsets.table() == {"T@g": {0: 2, 3: 3, 4: 4, 5: 5}}


def test_after_a_failed_sync_the_file_is_written_whole(tmp_path: Path) -> None:
    files = FailingFiles()
    offsets = begun(tmp_path, files)
    offsets.commit("g", "T", 0, 2)
    offsets.persist()
    files.fail("fdatasync", errno.EIO, times=1)
    offsets.commit("g", "T", 0, 3)
    with pytest.raises(OSError, match="Input/output"):
        offsets.persist()
    assert offsets.persist()
    assert whole(tmp_path) == {"T@g": {0: 3}}


def test_a_crash_at_any_change_of_the_disk_loses_only_what_was_not_persisted(tmp_path: Path) -> None:
    """Commits, journals, whole writes and starts in any order; at each step the process may die."""
    dice = random.Random(7)
    crashes = 0
    for round_ in range(150):
        path = tmp_path / str(round_)
        path.mkdir()
        files = FailingFiles()
        offsets = opened(path, files)
        durable: dict[str, dict[int, int]] = {}
        files.crash_at(dice.randrange(1, 60))
        try:
            for number in range(40):
                before = offsets.table()
                match dice.randrange(10):
                    case 0:
                        offsets.remove_group(f"g{dice.randrange(3)}")
                    case 1:
                        offsets.persist_whole()
                        durable = before
                    case 2 | 3 | 4:
                        offsets.persist()
                        durable = before
                    case _:
                        offsets.commit(f"g{dice.randrange(3)}", "T", dice.randrange(3), number)
        except Crash:
            crashes += 1
        # A persist that died may have come as far as its last step.
        assert opened(path).table() in (durable, offsets.table()), round_
    assert crashes > 100


def test_very_many_changes_are_written_by_writing_the_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offsets, "MANY", 50)
    offsets = begun(tmp_path)
    for number in range(300):
        offsets.commit("g", "T", number, 5)
    assert offsets.persist()
    assert whole(tmp_path) == offsets.table()
    for number in range(60):  # many, but not a quarter
        offsets.commit("g", "T", number, 6)
    assert offsets.persist()
    assert whole(tmp_path) != offsets.table()
    assert opened(tmp_path).table() == offsets.table()


def test_changes_beyond_what_is_kept_make_the_file_be_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        consumer_offsets, "OffsetChanges", lambda: consumer_offsets_changes(batch_max=10, kept_max=50)
    )
    offsets = begun(tmp_path)
    for number in range(100):
        offsets.commit("g", "T", number, number)
    offsets.persist()
    assert whole(tmp_path) == offsets.table()


consumer_offsets_changes = consumer_offsets.OffsetChanges
