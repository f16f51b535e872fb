"""The store of a DLedger node: what goes in comes out, also after a restart, a cut, a full disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commitlog.dledger.entries import LogEntry, encode
from commitlog.dledger.layout import ENTRY_BYTES_MAX, HEAD_BYTES, UNIT_BYTES
from commitlog.errors import (
    CorruptEntry,
    EntryBeyondLimits,
    EntryGap,
    EntryNotFound,
    ForeignFile,
    LogNotWritable,
    SegmentMissing,
    SegmentSizeMismatch,
    StoreLocked,
    StoreUnreadable,
)
from commitlog.kernel.layout import AT
from tests.commitlog.dledger.stores import (
    FILE_BYTES,
    STOCK_BODIES,
    STOCK_POSITIONS,
    all_entries,
    append,
    body,
    data_bytes,
    fill,
    follow,
    open_entries,
    unpack_stock,
)
from tests.support.failing_files import FailingFiles


def test_a_stock_nodes_store_opens_entry_for_entry_and_is_left_as_it_is(tmp_path: Path) -> None:
    directory = unpack_stock(tmp_path)
    before = {path: path.read_bytes() for path in directory.rglob("0*")}
    store = open_entries(directory)
    assert all_entries(store) == [
        LogEntry(index, 0, position, content)
        for index, (position, content) in enumerate(zip(STOCK_POSITIONS, STOCK_BODIES, strict=True))
    ]
    assert (store.begin_index, store.end_index, store.end_term, store.committed_index) == (0, 5, 0, 5)
    assert store.end == STOCK_POSITIONS[-1] + HEAD_BYTES + len(STOCK_BODIES[-1])
    store.close()
    assert {path: path.read_bytes() for path in directory.rglob("0*")} == before


def test_a_follower_of_a_stock_node_has_its_files_byte_for_byte(tmp_path: Path) -> None:
    stock = unpack_stock(tmp_path)
    leader, follower = open_entries(stock), open_entries(tmp_path / "follower")
    for entry in all_entries(leader):
        follow(follower, entry)
    for one in (leader, follower):
        one.close()
    for part in ("data", "index"):
        assert data_bytes(tmp_path / "follower", part) == data_bytes(stock, part)


def test_what_is_appended_is_read_back_after_restarts(tmp_path: Path) -> None:
    made: list[LogEntry] = []
    for life, clean in enumerate((True, False, True)):
        store = open_entries(tmp_path)
        assert all_entries(store) == made
        made += fill(store, 12, term=life)
        assert all_entries(store) == made
        assert [store.term_at(entry.index) for entry in made] == [entry.term for entry in made]
        store.close(clean=clean)
    assert [entry.index for entry in made] == list(range(36))
    assert [entry.body for entry in made] == [body(number) for number in range(36)]


def test_entries_fill_their_file_up_to_a_blank_and_go_on_in_the_next(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    # 1008 and the 8 of a blank fill a file; then one byte more does not fit behind 8 bytes.
    store.append(0, [bytes(FILE_BYTES - HEAD_BYTES - 8)])
    store.append(0, [b"a" * 400])
    store.append(0, [b"b" * 521])
    assert [entry.position for entry in all_entries(store)] == [0, 1024, 2048]
    store.close()
    data = data_bytes(tmp_path)
    assert data[1016:1024] == b"\xff\xff\xff\xff\0\0\0\x08"
    assert data[1472:1480] == b"\xff\xff\xff\xff" + (2048 - 1472).to_bytes(4, "big")
    store = open_entries(tmp_path)
    assert store.end == 2048 + HEAD_BYTES + 521
    store.close()


def test_a_stamp_gets_the_place_of_the_body_and_its_bytes_are_what_is_stored(tmp_path: Path) -> None:
    store = open_entries(tmp_path)

    def stamp(record: bytearray, offset: int) -> None:
        record[AT["physical_offset"] : AT["physical_offset"] + 8] = offset.to_bytes(8, "big")

    first, second = append(store, 3, [bytes(200), bytes(200)], stamp)
    for entry in (first, second):
        assert store.read(entry.index) == entry
        at = entry.position + HEAD_BYTES
        assert entry.body == bytes(28) + at.to_bytes(8, "big") + bytes(164)
        assert entry.body_crc
    store.close()


def test_an_entry_that_does_not_continue_the_log_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    *_, last = fill(store, 3, term=5)
    before = data_bytes(tmp_path), data_bytes(tmp_path, "index")
    good = LogEntry(3, 5, last.end, b"good")
    for wrong in (
        good._replace(index=4),
        good._replace(index=2),
        good._replace(term=4),
        good._replace(position=last.end + 1),
        good._replace(position=2 * FILE_BYTES),
    ):
        with pytest.raises(EntryGap, match=f"index {wrong.index} and term {wrong.term}"):
            follow(store, wrong)
    with pytest.raises(CorruptEntry, match="stated is 0x0000004d"):
        follow(store, good._replace(body_crc=77))
    assert (data_bytes(tmp_path), data_bytes(tmp_path, "index")) == before
    follow(store, good)
    assert store.read(3) == good
    store.close()


def test_a_follower_goes_to_the_next_file_where_its_leader_did(tmp_path: Path) -> None:
    """A leader that found a blank at its end when it started leaves room that an entry would fit into."""
    store = open_entries(tmp_path)
    fill(store, 1)
    entry = LogEntry(1, 1, FILE_BYTES, b"small")
    follow(store, entry)
    store.close(clean=False)
    store = open_entries(tmp_path)
    assert store.read(1) == entry
    store.close()


@pytest.mark.parametrize("index", [0, 1, 4, 5, 11, 12, 19, 20, 25])
@pytest.mark.parametrize("restart", [False, True])
def test_a_cut_removes_the_entries_from_an_index_on_and_others_take_their_places(
    tmp_path: Path, index: int, restart: bool
) -> None:
    store = open_entries(tmp_path)
    made = [*fill(store, 10), *fill(store, 10, term=2)]
    store.flush()
    store.save_checkpoint(committed_index=15)
    store.truncate(index)
    if restart:
        store.close(clean=False)
        store = open_entries(tmp_path)
    assert all_entries(store) == made[:index]
    assert store.end_index == min(index, 20) - 1
    assert store.committed_index == min(index - 1, 15)
    assert store.end_term == (made[min(index, 20) - 1].term if index else -1)
    if index < 20:
        assert not any(data_bytes(tmp_path, "index")[max(index, 0) * UNIT_BYTES :])
        with pytest.raises(EntryNotFound):
            store.read(index)
        behind = data_bytes(tmp_path)[store.end :]
        assert not any(behind)
    made = made[:index] + fill(store, 7, term=3)
    store.close()
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    store.close()


def test_a_log_that_is_begun_anew_takes_an_entry_of_any_index_where_a_file_begins(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    fill(store, 20)
    store.close()
    store = open_entries(tmp_path)
    with pytest.raises(EntryGap):
        store.reset(100, 5 * FILE_BYTES + 1)
    assert store.end_index == 19
    store.reset(1000, 50 * FILE_BYTES)
    assert (store.begin_index, store.end_index) == (-1, -1)
    first = LogEntry(1000, 7, 50 * FILE_BYTES, b"first")
    follow(store, first)
    made = [first, *fill(store, 20, term=7)]
    assert all_entries(store) == made
    store.close()
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    assert (store.begin_index, store.data.start) == (1000, 50 * FILE_BYTES)
    assert min(path.name for path in (tmp_path / "index").iterdir()) == f"{1000 * 32:020d}"
    store.close()


def test_old_files_go_and_the_log_begins_behind_them(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 60)
    gone = 0
    while store.drop_oldest_file():
        gone += 1
        assert all_entries(store) == made[store.begin_index :]
        assert store.read(store.begin_index).position == gone * FILE_BYTES
        with pytest.raises(EntryNotFound):
            store.read(store.begin_index - 1)
        if gone == 7:
            store.close()
            store = open_entries(tmp_path)
            assert all_entries(store) == made[store.begin_index :]
    assert len(list((tmp_path / "data").iterdir())) == 1
    first_unit = min(int(path.name) for path in (tmp_path / "index").iterdir())
    assert first_unit <= store.begin_index * UNIT_BYTES < first_unit + 320
    made += fill(store, 20)
    store.close()
    store = open_entries(tmp_path)
    assert all_entries(store) == made[store.begin_index :]
    store.close()


def test_a_new_log_may_begin_behind_a_classic_one(tmp_path: Path) -> None:
    store = open_entries(tmp_path, start=7 * FILE_BYTES)
    (first,) = fill(store, 1)
    assert (first.index, first.position) == (0, 7 * FILE_BYTES)
    store.close()
    store = open_entries(tmp_path)
    assert all_entries(store) == [first]
    store.close()


def test_no_log_begins_anew_within_the_classic_one(tmp_path: Path) -> None:
    store = open_entries(tmp_path, start=7 * FILE_BYTES)
    (first,) = fill(store, 1)
    with pytest.raises(
        EntryBeyondLimits, match=f"this member has a classic log up to {7 * FILE_BYTES}: all members"
    ):
        store.reset(0, 6 * FILE_BYTES)
    assert all_entries(store) == [first]
    store.reset(40, 7 * FILE_BYTES)
    assert (store.begin_index, store.end_index, store.end) == (-1, -1, 7 * FILE_BYTES)
    store.close()


@pytest.mark.parametrize("part", ["data", "index"])
def test_a_full_disk_is_an_error_of_the_write_and_the_next_one_goes_on(tmp_path: Path, part: str) -> None:
    files = FailingFiles()
    # Either the sixth entry, or the tenth unit, needs a new file.
    store = open_entries(tmp_path, files, data_file_bytes=1024 if part == "data" else 1 << 20)
    made = fill(store, 5 if part == "data" else 10)
    files.fail("create", errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(LogNotWritable, match=f"/{part}.*not made: No space left") as full:
            fill(store, 1)
        assert full.value.errno == errno.ENOSPC
        assert all_entries(store) == made
    made += fill(store, 8)
    store.flush()
    store.close(clean=False)
    store = open_entries(tmp_path, data_file_bytes=1024 if part == "data" else 1 << 20)
    assert all_entries(store) == made
    store.close()


def test_what_is_appended_together_is_there_altogether_or_not_at_all(tmp_path: Path) -> None:
    """Seven entries need four new files and a second one of units; there is no room for one of these five."""
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    made = fill(store, 4)
    together = [body(4 + number, 400) for number in range(7)]
    for after in (*range(5), *range(5)):
        before = files.calls["create"]
        files.fail("create", errno.ENOSPC, times=1, after=after)
        if len(list((tmp_path / "data").iterdir())) > 1:
            store.close(clean=False)
            store = open_entries(tmp_path, files)
            assert all_entries(store) == made
        with pytest.raises(LogNotWritable, match="not made: No space left"):
            store.append(1, together)
        assert files.calls["create"] - before == after + 1
        assert all_entries(store) == made
        files.heal()
    made += append(store, 1, together)
    assert [entry.body for entry in made[4:]] == together
    assert all_entries(store) == made
    store.close()
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    store.close()


def test_entries_that_are_appended_together_take_one_write_for_each_file(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_entries(tmp_path, files, data_file_bytes=1 << 16, index_file_bytes=3200)
    fill(store, 1)
    before = files.calls["pwrite"]
    store.append(1, [body(number) for number in range(50)])
    assert files.calls["pwrite"] - before == 2
    assert store.end_index == 50
    store.close()


@pytest.mark.parametrize("after", [0, 1])
def test_a_write_that_fails_for_want_of_space_leaves_nothing_behind(tmp_path: Path, after: int) -> None:
    """`after`: the entry is written, and its index unit is not."""
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    made = fill(store, 2)
    files.fail("pwrite", errno.ENOSPC, times=1, after=after)
    with pytest.raises(LogNotWritable, match="failed: No space left"):
        fill(store, 1, size=400)
    assert all_entries(store) == made
    store.close(clean=False)
    again = open_entries(tmp_path)
    whole = all_entries(again)
    assert whole[:2] == made
    again.close()

    files = FailingFiles()
    store = open_entries(tmp_path, files)
    made = all_entries(store)
    files.fail("pwrite", errno.ENOSPC, times=1, after=after)
    with pytest.raises(LogNotWritable):
        fill(store, 1, size=300)
    made += fill(store, 1, size=20)
    store.close(clean=False)
    again = open_entries(tmp_path)
    assert all_entries(again) == made
    again.close()


def test_an_entry_that_failed_is_not_found_by_a_start_inside_the_next_one(tmp_path: Path) -> None:
    """Its body has the bytes of an entry that would follow the next one, in their place."""
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    (first,) = fill(store, 1)
    trap = encode(LogEntry(2, 1, first.end + HEAD_BYTES + 20, b"never appended"))
    files.fail("pwrite", errno.ENOSPC, times=1)
    with pytest.raises(LogNotWritable):
        store.append(1, [bytes(20) + trap])
    made = [first, *append(store, 1, [b"x" * 20])]
    store.close(clean=False)
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    store.close()


def test_what_a_dead_process_left_is_written_again_before_it_is_synced(tmp_path: Path) -> None:
    """If its own sync had failed, Linux would call pages clean that the disk never got."""
    store = open_entries(tmp_path)
    made = fill(store, 3)
    store.flush()
    store.save_checkpoint()
    made += fill(store, 3)
    store.close(clean=False)
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    before = files.calls["pwrite"]
    assert (store.flushed_index, store.flush()) == (2, 5)
    # Two data files, one file of units.
    assert files.calls["pwrite"] - before == 3
    store.close()


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_after_an_error_of_the_disk_nothing_is_taken_until_a_restart(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    fill(store, 3)
    store.flush()
    files.fail(operation, errno.EIO, times=1)
    if operation == "fdatasync":
        fill(store, 1)
    for _ in range(2):
        with pytest.raises(LogNotWritable, match="Input/output error"):
            store.flush() if operation == "fdatasync" else fill(store, 1)
    with pytest.raises(LogNotWritable, match="Input/output error"):
        fill(store, 1)
    assert store.flushed_index == 2
    assert store.writable is not None
    store.close()
    store = open_entries(tmp_path)
    assert [entry.body for entry in all_entries(store)][:3] == [body(0), body(1), body(2)]
    store.close()


def test_appends_are_held_back_for_a_reason_and_go_on(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    store.hold_appends("disk is 91 % full", "disk")
    for call in (lambda: fill(store, 1), lambda: follow(store, LogEntry(0, 0, 0, b""))):
        with pytest.raises(LogNotWritable, match="disk is 91 % full"):
            call()
    store.hold_appends(None, "disk")
    fill(store, 1)
    store.close()


def test_entries_that_are_too_large_are_refused_and_say_by_how_much(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    with pytest.raises(EntryBeyondLimits, match="entry of 1017 bytes does not fit into a file of 1024"):
        store.append(0, [b"fine", bytes(1017 - HEAD_BYTES)])
    with pytest.raises(EntryBeyondLimits, match=f"allowed are {ENTRY_BYTES_MAX}"):
        store.append(0, [bytes(ENTRY_BYTES_MAX)])
    assert store.end_index == -1
    store.close()


def test_nothing_counts_as_durable_before_it_is_synced(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_entries(tmp_path, files)
    fill(store, 8)
    assert store.flushed_index == -1
    before = files.calls["fdatasync"]
    assert store.flush() == 7
    # Two data files, one file of units.
    assert files.calls["fdatasync"] - before == 3
    assert store.flush() == 7
    assert files.calls["fdatasync"] - before == 3
    store.save_checkpoint(committed_index=3)
    store.close(clean=False)
    assert (
        tmp_path / "checkpoint"
    ).read_text() == "committedIndex=3\nendIndex=7\ndurableIndex=7\ndurableTerm=1\n"


def test_entries_are_read_in_runs_of_one_file_and_of_bounded_size(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 25, size=52)
    for first in range(25):
        for most in (1, 2, 7, 100):
            for max_bytes in (1, 100, 399, 10_000):
                run = store.read_run(first, most, max_bytes)
                assert list(run) == made[first : first + run.count]
                assert run.count == 1 or (run.count <= most and len(run.data) <= max_bytes)
                assert run.position // FILE_BYTES == (run.end - 1) // FILE_BYTES
    assert store.read_run(0, 3, 300).count == 3
    with pytest.raises(EntryNotFound):
        store.read_run(25, 1, 1)
    store.close()


def test_a_run_ends_before_a_flipped_bit(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 4, size=52)
    with (tmp_path / "data" / f"{0:020d}").open("r+b") as file:
        file.seek(made[2].position + HEAD_BYTES + 7)
        file.write(b"!")
    assert list(store.read_run(0, 2, 1000)) == made[:2]
    assert list(store.read_run(0, 4, 1000)) == made[:1], "the next read takes the next one"
    with pytest.raises(CorruptEntry, match=f"entry at {made[2].position}: body crc"):
        store.read_run(2, 2, 1000)
    store.close()


def test_records_with_room_for_heads_go_where_they_are_stamped_for_or_nowhere(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 2, size=52)
    position, room = store.place_of(HEAD_BYTES + 30)
    assert (position, room) == (made[-1].end, FILE_BYTES - made[-1].end - 8)
    record = (20).to_bytes(4, "big") + b"r" * 16
    spaced = bytearray(HEAD_BYTES) + record + bytes(HEAD_BYTES) + record
    for wrong in (position + 1, position - 1, 2 * FILE_BYTES):
        with pytest.raises(EntryGap):
            store.append_spaced(3, spaced, wrong)
    with pytest.raises(CorruptEntry, match="not filled by records"):
        store.append_spaced(3, spaced[:-1], position)
    run = store.append_spaced(3, spaced, position)
    assert [(entry.index, entry.term, entry.body) for entry in run] == [(2, 3, record), (3, 3, record)]
    assert all_entries(store) == [*made, *run]
    position, room = store.place_of(room)
    assert (position, room) == (FILE_BYTES, FILE_BYTES - 8), "what does not fit begins the next file"
    store.append_spaced(3, bytearray(HEAD_BYTES) + record, FILE_BYTES)
    store.close()
    store = open_entries(tmp_path)
    assert store.end_index == 4
    store.close()


def test_a_store_is_opened_once(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    with pytest.raises(StoreLocked):
        open_entries(tmp_path)
    store.close()
    store.close()
    open_entries(tmp_path).close()


def test_files_that_do_not_belong_there_are_named(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    fill(store, 20)
    store.close()
    (tmp_path / "data" / "notes.txt").write_text("x")
    with pytest.raises(ForeignFile, match=r"notes\.txt"):
        open_entries(tmp_path)
    (tmp_path / "data" / "notes.txt").unlink()
    with pytest.raises(SegmentSizeMismatch):
        open_entries(tmp_path, data_file_bytes=2048)
    middle = tmp_path / "data" / f"{FILE_BYTES:020d}"
    kept = middle.read_bytes()
    middle.unlink()
    with pytest.raises(SegmentMissing):
        open_entries(tmp_path)
    middle.write_bytes(kept)
    open_entries(tmp_path).close()


# -- the index -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["all", "last", "first"])
@pytest.mark.parametrize("clean", [True, False])
def test_an_index_that_is_lost_is_made_anew_from_the_entries(tmp_path: Path, gone: str, clean: bool) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 25)
    store.close(clean=clean)
    before = data_bytes(tmp_path, "index")
    paths = sorted((tmp_path / "index").iterdir())
    for path in {"all": paths, "last": paths[-1:], "first": paths[:1]}[gone]:
        path.unlink()
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    store.close()
    assert data_bytes(tmp_path, "index") == before


@pytest.mark.parametrize("number", [0, 5, 11, 24])
def test_an_index_unit_that_is_damaged_is_put_right_from_the_entries(tmp_path: Path, number: int) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 25)
    (_, path), *_ = [
        (int(path.name), path)
        for path in sorted((tmp_path / "index").iterdir())
        if int(path.name) <= number * 32 < int(path.name) + 320
    ]
    before = data_bytes(tmp_path, "index")
    with path.open("r+b") as file:
        file.seek(number * 32 % 320 + 4)
        file.write(b"\x01\x02\x03")
    assert all_entries(store) == made
    assert data_bytes(tmp_path, "index") == before
    store.close()


# -- the tail --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", range(0, 198, 11))
def test_an_entry_that_is_torn_at_the_end_is_cut_and_nothing_before_it(tmp_path: Path, kept: int) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 8)
    store.close(clean=False)
    last = made[-1]
    tear(tmp_path, last.position + kept, last.end)
    store = open_entries(tmp_path)
    assert all_entries(store) == made[:-1]
    made[-1:] = fill(store, 3)
    store.close()
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    store.close()


def test_what_lay_behind_a_torn_entry_never_comes_back(tmp_path: Path) -> None:
    """A power cut took pages amid the tail; those behind are whole, and in their place again later."""
    store = open_entries(tmp_path)
    made = fill(store, 2)
    store.flush()
    store.save_checkpoint()
    fill(store, 6)
    store.close(clean=False)
    tear(tmp_path, made[-1].end, made[-1].end + 198)
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    made += fill(store, 1)
    store.close(clean=False)
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    store.close()


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("damaged", [14, 18])
def test_damage_amid_the_log_is_named_and_nothing_is_cut(tmp_path: Path, saved: bool, damaged: int) -> None:
    """14 lies in another file than the last entries, 18 right before them.  The torn tail is beyond."""
    store = open_entries(tmp_path)
    made = fill(store, 20)
    if saved:
        store.flush()
        store.save_checkpoint()
    store.close(clean=False)
    (tmp_path / "index").rename(tmp_path / "lost")  # so that the start goes over the entries
    if not saved:
        (tmp_path / "checkpoint").write_text("committedIndex=0\nendIndex=19\n")  # as a stock node does
    with (tmp_path / "data" / f"{made[damaged].position // 1024 * 1024:020d}").open("r+b") as file:
        file.seek(made[damaged].position % 1024 + 100)
        file.write(b"damaged")
    before = data_bytes(tmp_path)
    with pytest.raises(StoreUnreadable, match=r"body crc.*copy the files from another node"):
        open_entries(tmp_path)
    assert data_bytes(tmp_path) == before


def test_a_log_that_lost_what_was_synced_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 9)
    store.close()
    tear(tmp_path, made[-2].position, made[-1].end)
    with pytest.raises(StoreUnreadable, match="up to index 8 were synced, only those up to 6 are whole"):
        open_entries(tmp_path)


def test_a_checkpoint_that_a_stock_node_wrote_since_claims_nothing(tmp_path: Path) -> None:
    """It has cut the log meanwhile, and leaves out what it does not know."""
    store = open_entries(tmp_path)
    made = fill(store, 9)
    store.close()
    tear(tmp_path, made[-2].position, made[-1].end)
    (tmp_path / "checkpoint").write_text("committedIndex=8\nendIndex=6\n")
    store = open_entries(tmp_path)
    assert all_entries(store) == made[:-2]
    assert store.committed_index == 6
    store.close()


@pytest.mark.parametrize(
    "said",
    ["", "committedIndex=x\n", "nonsense", "committedIndex=-5\ndurableIndex=3\n", "durableIndex=99999\n"],
)
def test_a_checkpoint_is_a_hint_and_never_more(tmp_path: Path, said: str) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 9)
    store.close()
    (tmp_path / "checkpoint").write_text(said)
    store = open_entries(tmp_path)
    assert all_entries(store) == made
    assert store.committed_index == -1
    store.close()


def tear(directory: Path, begin: int, end: int) -> None:
    """Zeroes these bytes of the log, as lost pages leave them."""
    for at in range(begin, end):
        with (directory / "data" / f"{at - at % FILE_BYTES:020d}").open("r+b") as file:
            file.seek(at % FILE_BYTES)
            file.write(b"\0")


def test_what_is_encoded_is_what_is_stored(tmp_path: Path) -> None:
    store = open_entries(tmp_path)
    made = fill(store, 3)
    store.close()
    assert data_bytes(tmp_path).startswith(b"".join(encode(entry) for entry in made))
