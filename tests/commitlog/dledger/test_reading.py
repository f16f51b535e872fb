"""A log on DLedger read from outside, with the classic log before it, and nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.dledger.layout import HEAD_BYTES
from commitlog.dledger.reading import LoggedRecord, begins_entry, committed_end, read_entries, read_records
from commitlog.dledger.store import EntryStore, EntryStoreOptions
from commitlog.errors import CorruptEntry, CorruptRecord, SegmentMissing, StoreUnreadable
from commitlog.kernel.records import encode, stamp
from tests.commitlog.dledger.stores import STOCK_BODIES, STOCK_POSITIONS, append, unpack_stock
from tests.support.messages import SEGMENT_BYTES, STORE_HOST, STORE_MS, message, open_log, records_of


def entry_store(root: Path, start: int = 0) -> EntryStore:
    return EntryStore(EntryStoreOptions(root / "dledger-n0", (), SEGMENT_BYTES, 3200, start, records=True))


def append_message(store: EntryStore, body: bytes) -> bytes:
    """Appends a message as a broker's leader does; returns its record."""
    index = store.end_index + 1
    record = encode(message(body), STORE_HOST)
    (entry,) = append(store, 2, [record], lambda made, offset: stamp(made, index, offset, STORE_MS))
    return entry.body


def kept(found: LoggedRecord) -> tuple[int, bytes, int, int]:
    return found.offset, bytes(found.record), found.index, found.term


def test_a_stock_nodes_entries_are_read(tmp_path: Path) -> None:
    directory = unpack_stock(tmp_path)
    found = [(one.head.index, one.head.position, bytes(one.body)) for one in read_entries(directory / "data")]
    assert found == list(zip(range(6), STOCK_POSITIONS, STOCK_BODIES, strict=True))


def test_a_classic_log_and_the_entries_behind_it_are_one_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(40):
        log.append(message(b"classic %d" % number * 10))
    classic = [(record.physical_offset, record.body) for record in records_of(log)]
    divided = log.segments.items[-1].end
    log.close()
    store = entry_store(tmp_path, start=divided)
    made = [append_message(store, b"new %d" % number * 20) for number in range(40)]
    store.append(2, [b""])
    places = [store.read(index).position + HEAD_BYTES for index in range(40)]
    store.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    found = [kept(one) for one in read_records(tmp_path)]
    assert [offset for offset, *_ in found[:40]] == [offset for offset, _ in classic]
    assert all(body in record for (_, record, *_), (_, body) in zip(found, classic, strict=False))
    assert {(index, term) for _, _, index, term in found[:40]} == {(-1, -1)}
    assert found[40:] == list(zip(places, made, range(40), [2] * 40, strict=True))
    assert places[0] == divided + HEAD_BYTES
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_logs_that_do_not_meet_are_an_error_that_names_the_missing_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(message())
    log.close()
    store = entry_store(tmp_path, start=3 * SEGMENT_BYTES)
    append_message(store, b"new")
    store.close()
    with pytest.raises(SegmentMissing, match=f"{SEGMENT_BYTES:020d}"):
        list(read_records(tmp_path))


def test_a_root_of_several_nodes_is_not_guessed_at(tmp_path: Path) -> None:
    for name in ("dledger-n0", "dledger-n1"):
        (tmp_path / name / "data").mkdir(parents=True)
    with pytest.raises(StoreUnreadable, match="has 2 nodes"):
        list(read_records(tmp_path))


def test_damage_is_an_error_with_the_place_and_the_file(tmp_path: Path) -> None:
    store = entry_store(tmp_path)
    for number in range(30):
        append_message(store, b"new %d" % number * 20)
    place = store.read(20).position
    store.close()
    path = tmp_path / "dledger-n0" / "data" / f"{place - place % SEGMENT_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(place % SEGMENT_BYTES + 150)
        file.write(b"damaged")
    seen: list[int] = []
    with pytest.raises(CorruptEntry, match=f"entry at {place}: body crc .* in {path}"):
        seen.extend(one.head.index for one in read_entries(path.parent))
    assert seen == list(range(20))


def test_damage_in_the_classic_part_is_named_too(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    places = [log.append(message(b"classic %d" % number)).physical_offset for number in range(5)]
    log.close()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(places[3] + 90)
        file.write(b"damaged")
    seen: list[int] = []
    with pytest.raises(CorruptRecord, match=f"record at {places[3]}: .*commitlog"):
        seen.extend(one.offset for one in read_records(tmp_path))
    assert seen == places[:3]


def test_a_file_of_entries_is_told_from_one_of_a_classic_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(message())
    log.close()
    store = entry_store(tmp_path, start=SEGMENT_BYTES)
    append_message(store, b"new")
    store.close()
    assert not begins_entry((tmp_path / "commitlog" / f"{0:020d}").read_bytes())
    assert begins_entry((tmp_path / "dledger-n0" / "data" / f"{SEGMENT_BYTES:020d}").read_bytes())
    assert not begins_entry(bytes(8))
    assert not begins_entry(b"")


def test_what_a_checkpoint_calls_committed_ends_where_index_and_entry_say(tmp_path: Path) -> None:
    store = entry_store(tmp_path)
    for number in range(8):
        append_message(store, b"%d" % number)
    store.save_checkpoint(5)
    expected = store.end_of(5)
    store.close()
    node = tmp_path / "dledger-n0"
    assert committed_end(node) == expected
    index = next((node / "index").iterdir())
    whole = index.read_bytes()
    index.write_bytes(whole[: 5 * 32] + whole[4 * 32 : 5 * 32] + whole[6 * 32 :])
    assert committed_end(node) is None, "the index leads to another entry"
    index.write_bytes(whole[: 5 * 32])
    assert committed_end(node) is None, "the index ends before"
    index.write_bytes(whole)
    data = next((node / "data").iterdir())
    held = bytearray(data.read_bytes())
    held[expected - 1] ^= 1
    data.write_bytes(held)
    assert committed_end(node) is None, "the entry is damaged"
    (node / "checkpoint").write_text("committedIndex=?\n")
    assert committed_end(node) is None
    assert committed_end(tmp_path / "nothing") is None
