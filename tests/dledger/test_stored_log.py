"""StoredLog: the files of a stock node behind what a member needs of its log."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.log.entry_log import EntryLogError, EntryLogFull, EntryMisplaced, EntryRefused
from haservice.dledger.messages import LedgerEntry
from haservice.dledger.node.stored_log import FULL_FOR_S, StoredLog
from tests.commitlog.dledger.stores import FILE_BYTES, all_entries, body, open_entries
from tests.support.failing_files import FailingFiles


def bodies(count: int) -> list[bytes]:
    return [body(number) for number in range(count)]


def test_what_a_leader_appends_a_follower_has_at_the_same_places_byte_for_byte(tmp_path: Path) -> None:
    """Over several files: their blanks too."""
    stores = [open_entries(tmp_path / name) for name in ("leader", "follower")]
    leader, follower = (StoredLog(store, sync=True) for store in stores)
    made = [*leader.append_as_leader(1, bodies(4)), *leader.append_as_leader(3, bodies(9))]
    assert made[-1].pos > FILE_BYTES
    for entry in made:
        follower.append_as_follower([LedgerEntry.decode(entry.encode())])
    assert all_entries(stores[0]) == all_entries(stores[1])
    assert follower.end_pos == leader.end_pos
    assert [follower.read(index) for index in range(13)] == made
    assert [follower.term_at(index) for index in (-1, 0, 3, 4, 12)] == [-1, 1, 1, 3, 3]
    for store in stores:
        store.close()


def test_durable_is_what_is_flushed_with_sync_and_what_is_written_without(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    synced, written = StoredLog(store, sync=True), StoredLog(store, sync=False)
    synced.append_as_leader(0, bodies(3))
    assert (synced.durable_index, written.durable_index) == (-1, 2)
    store.flush()
    assert (synced.durable_index, written.durable_index) == (2, 2)
    synced.truncate_from(1)
    assert (synced.durable_index, written.durable_index, synced.end_index) == (0, 0, 0)
    store.close()


def test_a_log_begins_at_a_leaders_entry_and_goes_on_behind_it(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    log = StoredLog(store, sync=True)
    log.append_as_leader(0, bodies(3))
    first = LedgerEntry.of(40, 2, 5 * FILE_BYTES, b"the leader's first")
    log.begin_at(first)
    log.append_as_follower([LedgerEntry.of(41, 2, first.pos + first.size, b"next")])
    assert (log.begin_index, log.end_index, log.read(40), log.durable_index) == (40, 41, first, -1)
    store.close()


def test_a_leader_without_the_classic_log_is_refused(tmp_path: Path) -> None:
    store = open_entries(tmp_path, start=FILE_BYTES)
    log = StoredLog(store, sync=True)
    with pytest.raises(EntryRefused, match="entry 0 lies at 0, and this member has a classic log up to"):
        log.begin_at(LedgerEntry.of(0, 1, 0, b"the leader's first"))
    assert log.end_pos == FILE_BYTES
    store.close()


def test_an_entry_amid_a_file_begins_no_log_and_what_was_there_stays(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    log = StoredLog(store, sync=True)
    made = [*log.append_as_leader(0, bodies(3))]
    with pytest.raises(EntryMisplaced):
        log.begin_at(LedgerEntry.of(40, 2, 5 * FILE_BYTES + 8, b"amid"))
    with pytest.raises(EntryMisplaced):
        log.append_as_follower([LedgerEntry.of(3, 2, log.end_pos + 8, b"elsewhere")])
    assert [log.read(index) for index in range(3)] == made
    store.close()


@pytest.mark.parametrize(
    "entry",
    [
        LedgerEntry(0, 0, 0, b"x", 49, magic=7),
        LedgerEntry(0, 0, 0, b"x", 49, channel=1 << 31),
        LedgerEntry(0, 0, 0, b"x", 49, body_crc=-(1 << 31) - 1),
        LedgerEntry(0, 0, 0, b"x", 49, body_crc=12345),
        LedgerEntry(0, 0, 0, bytes(FILE_BYTES), 48 + FILE_BYTES),
    ],
    ids=["magic", "channel", "crc too large", "crc of another body", "too large for a file"],
)
def test_what_is_no_entry_of_a_log_is_refused_and_the_log_goes_on(tmp_path: Path, entry: LedgerEntry) -> None:
    store = open_entries(tmp_path)
    log = StoredLog(store, sync=True)
    with pytest.raises(EntryRefused) as refused:
        log.append_as_follower([entry])
    assert refused.value.code is DLedgerResponseCode.UNEXPECTED_ARGUMENT
    log.append_as_follower([LedgerEntry.of(0, 0, 0, b"x")])
    assert log.end_index == 0
    store.close()


def test_a_full_disk_is_told_and_is_tried_again_later(tmp_path: Path) -> None:
    files, now_s = FailingFiles(), 100.0
    store = open_entries(tmp_path, files)
    log = StoredLog(store, sync=True, now=lambda: now_s)
    log.append_as_leader(0, bodies(1))
    for operation in ("pwrite", "create", "allocate"):
        files.fail(operation, errno.ENOSPC)
    with pytest.raises(EntryLogFull):
        log.append_as_leader(0, bodies(9))
    assert log.unwritable
    assert log.end_index == 0
    now_s += FULL_FOR_S
    assert not log.unwritable
    files.heal()
    log.append_as_leader(0, bodies(9))
    assert log.end_index == 9
    store.close()


def test_after_an_error_of_the_disk_nothing_is_written_any_more(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    log = StoredLog(store, sync=True)
    files.fail("pwrite", errno.EIO)
    with pytest.raises(EntryLogError) as failed:
        log.append_as_leader(0, bodies(1))
    assert failed.value.code is DLedgerResponseCode.DISK_ERROR
    files.heal()
    assert log.unwritable
    with pytest.raises(EntryLogError):
        log.append_as_leader(0, bodies(1))
    with pytest.raises(EntryLogError):
        log.begin_at(LedgerEntry.of(4, 1, 0, b"x"))
    store.close()


def test_a_log_whose_first_entry_was_not_written_takes_no_other(tmp_path: Path) -> None:
    """It was begun anew, and is empty: another leader's entries must not go there as if nothing had been."""
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    log = StoredLog(store, sync=True)
    log.append_as_leader(0, bodies(2))
    files.fail("pwrite", errno.ENOSPC)
    with pytest.raises(EntryLogFull):
        log.begin_at(LedgerEntry.of(40, 2, 5 * FILE_BYTES, b"first"))
    files.heal()
    with pytest.raises(EntryLogError):
        log.append_as_follower([LedgerEntry.of(40, 2, 5 * FILE_BYTES, b"first")])
    store.close()
