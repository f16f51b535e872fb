"""EntryFlusher: what is durable when, and what a checkpoint may say."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from haservice.deadline import Deadline
from haservice.dledger.node.flusher import EntryFlusher
from haservice.service import Service
from tests.commitlog.dledger.stores import fill, open_entries
from tests.support.failing_files import FailingFiles
from tests.support.waiting import wait_until


def test_with_sync_an_append_is_flushed_at_once_and_without_after_the_interval(tmp_path: Path) -> None:
    for sync in (True, False):
        store = open_entries(tmp_path / str(sync))
        told: list[int] = []
        flusher = EntryFlusher(
            store, lambda: -1, lambda: told.append(store.flushed_index), sync=sync, interval_s=0.01  # noqa: B023
        )  # fmt: skip
        service = Service("flusher", flusher)
        service.start()
        fill(store, 3)
        flusher.appended()
        wait_until(lambda: told and told[-1] == 2, "flushed")  # noqa: B023
        assert service.stop(Deadline(5.0))
        store.close()


def test_one_flush_serves_all_that_was_appended_meanwhile(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    flusher = EntryFlusher(store, lambda: -1, lambda: None, sync=True, interval_s=9.0)
    fill(store, 3)
    before = files.calls["fdatasync"]
    assert flusher.once()
    one = files.calls["fdatasync"] - before
    assert flusher.once()
    assert files.calls["fdatasync"] - before == one == 2, "of the data and of the index"
    store.close()


@pytest.mark.parametrize("sync", [True, False])
def test_a_checkpoint_says_nothing_of_what_is_not_flushed(tmp_path: Path, *, sync: bool) -> None:
    """A power cut may take it, and other entries would stand there."""
    store = open_entries(tmp_path)
    flusher = EntryFlusher(store, lambda: store.end_index, lambda: None, sync=sync, interval_s=9.0)
    fill(store, 3)
    store.flush()
    fill(store, 2)
    flusher.save_checkpoint()
    assert store.committed_index == 2
    store.flush()
    flusher.save_checkpoint()
    assert store.committed_index == 4
    store.close()


def test_a_flush_that_fails_is_told_and_flushes_nothing_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    told: list[str | None] = []
    flusher = EntryFlusher(store, lambda: -1, lambda: told.append(store.writable), sync=True, interval_s=9.0)
    fill(store, 3)
    files.fail("fdatasync", errno.EIO)
    assert not flusher.once()
    files.heal()
    assert not flusher.once()
    assert store.flushed_index == -1
    assert all(told)
    assert len([record for record in caplog.records if "not flushed" in record.message]) == 1
    store.close()


def test_a_next_file_that_cannot_be_made_stops_no_flush_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    flusher = EntryFlusher(store, lambda: -1, lambda: None, sync=True, interval_s=9.0)
    fill(store, 4)
    files.fail("create", errno.ENOSPC)
    for _ in range(3):
        assert flusher.once()
    assert store.flushed_index == 3
    assert len([record for record in caplog.records if "cannot be made" in record.message]) == 1
    files.heal()
    store.close()
