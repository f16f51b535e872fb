"""Bits that flip in a log of entries: nobody gets an altered entry, and what is put back is what was there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from commitlog.dledger.entries import LogEntry
from commitlog.dledger.layout import HEAD_BYTES, UNIT_BYTES
from commitlog.dledger.store import EntryStore
from commitlog.errors import CorruptEntry, CorruptRecord
from commitlog.kernel.records import NewMessage, body_crc
from tests.commitlog.dledger.opened import FILE_BYTES as BROKER_FILE_BYTES
from tests.commitlog.dledger.opened import Opened, options_of
from tests.commitlog.dledger.stores import FILE_BYTES, INDEX_FILE_BYTES, data_bytes, fill, open_entries
from tests.support.flips import flip

COUNT = 25
BODY_BYTES = 150


def file_of(directory: Path, part: str, offset: int, file_bytes: int) -> tuple[Path, int]:
    return directory / part / f"{offset // file_bytes * file_bytes:020d}", offset % file_bytes


def flip_at(directory: Path, part: str, offset: int, file_bytes: int, bit: int = 0) -> None:
    path, at = file_of(directory, part, offset, file_bytes)
    flip(path, at, bit)


@pytest.fixture
def filled(tmp_path: Path) -> tuple[EntryStore, list[LogEntry]]:
    store = open_entries(tmp_path)
    made = fill(store, 10, term=1, size=BODY_BYTES) + fill(store, COUNT - 10, term=4, size=BODY_BYTES)
    store.flush()
    return store, made


# -- entries and their index ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 9, 10, 14, COUNT - 1], ids="index {}".format)
def test_a_flipped_bit_of_an_entry_is_never_read_and_the_entry_is_put_back(
    tmp_path: Path, filled: tuple[EntryStore, list[LogEntry]], number: int
) -> None:
    """Of the first one of a file and the last, of the first of a term and the last of all."""
    store, made = filled
    entry, before = made[number], (data_bytes(tmp_path), data_bytes(tmp_path, "index"))
    for at in (*range(HEAD_BYTES), HEAD_BYTES + 1, entry.size - 1):
        for bit in (0, 5):
            flip_at(tmp_path, "data", entry.position + at, FILE_BYTES, bit)
            try:
                found = store.read(number)
            except CorruptEntry:
                # Of a flipped term that could be right, too, only a committed entry says which it was.
                assert store.mend(entry) or 16 <= at < 24, f"byte {at}, bit {bit}"
                assert store.mend(entry, committed=True), f"byte {at}, bit {bit}"
            else:
                # No checksum covers these two, which nobody sets: the scrub finds them.
                assert 32 <= at < 40, f"byte {at}, bit {bit}: {found}"
                assert store.mend(entry)
            assert store.read(number) == entry
            assert (data_bytes(tmp_path), data_bytes(tmp_path, "index")) == before, f"byte {at}, bit {bit}"
    store.close()


@pytest.mark.parametrize("number", [0, 9, 10, COUNT - 1], ids="index {}".format)
def test_a_flipped_bit_of_a_unit_costs_no_entry_and_is_put_right(
    tmp_path: Path, filled: tuple[EntryStore, list[LogEntry]], number: int
) -> None:
    """If the unit and the head differ in the term, and both could be, the entry is fetched, and settles it."""
    store, made = filled
    before = data_bytes(tmp_path, "index")
    for at in range(UNIT_BYTES):
        for bit in (0, 5):
            flip_at(tmp_path, "index", number * UNIT_BYTES + at, INDEX_FILE_BYTES, bit)
            try:
                assert store.read(number) == made[number]
            except CorruptEntry:
                assert at < 4 or at >= 24, f"byte {at}, bit {bit}: neither the magic nor the term"
                assert store.mend(made[number], committed=True), f"byte {at}, bit {bit}"
            assert data_bytes(tmp_path, "index") == before, f"byte {at}, bit {bit}"
    store.close()


def test_head_and_unit_of_one_entry_are_both_put_back_where_its_neighbours_leave_no_other(
    tmp_path: Path, filled: tuple[EntryStore, list[LogEntry]]
) -> None:
    store, made = filled
    before = (data_bytes(tmp_path), data_bytes(tmp_path, "index"))
    flip_at(tmp_path, "data", made[13].position + 20, FILE_BYTES, 3)
    flip_at(tmp_path, "index", 13 * UNIT_BYTES + 15, INDEX_FILE_BYTES, 3)
    with pytest.raises(CorruptEntry):
        store.read(13)
    assert store.mend(made[13])
    assert (data_bytes(tmp_path), data_bytes(tmp_path, "index")) == before
    store.close()


def other_body(entry: LogEntry) -> LogEntry:
    body = b"altered".ljust(len(entry.body))
    return entry._replace(body=body, body_crc=body_crc(body))


@pytest.mark.parametrize(
    "other",
    [
        lambda one: one._replace(term=one.term + 1),
        lambda one: one._replace(term=one.term - 1),
        lambda one: one._replace(index=one.index + 1),
        lambda one: one._replace(position=one.position + 8),
        lambda one: one._replace(body=one.body[:-1], body_crc=body_crc(one.body[:-1])),
        lambda one: one._replace(body=b"altered".ljust(len(one.body))),
        other_body,
        lambda one: one._replace(magic=2),
        lambda one: one._replace(index=1000),
    ],
    ids=[
        "newer term",
        "older term",
        "another index",
        "another place",
        "shorter",
        "crc",
        "body",
        "magic",
        "beyond",
    ],
)
def test_another_entry_is_not_put_back(
    tmp_path: Path, filled: tuple[EntryStore, list[LogEntry]], other: object
) -> None:
    store, made = filled
    flip_at(tmp_path, "data", made[12].position + 70, FILE_BYTES)
    before = data_bytes(tmp_path), data_bytes(tmp_path, "index")
    assert callable(other)
    assert not store.mend(other(made[12]))
    assert (data_bytes(tmp_path), data_bytes(tmp_path, "index")) == before
    with pytest.raises(CorruptEntry):
        store.read(12)
    store.close()


def test_a_term_that_nobody_can_tell_is_not_guessed(tmp_path: Path) -> None:
    """Unit and head differ, and their neighbours allow both."""
    store = open_entries(tmp_path)
    made = fill(store, 3, term=1) + fill(store, 1, term=4) + fill(store, 3, term=9)
    flip_at(tmp_path, "data", made[3].position + 23, FILE_BYTES, 0)  # term 5
    with pytest.raises(CorruptEntry):
        store.read(3)
    assert not store.mend(made[3])
    assert not store.mend(made[3]._replace(term=5))
    assert not store.mend(made[3]._replace(term=10), committed=True)
    assert store.mend(made[3], committed=True)
    store.close()


@pytest.mark.parametrize("at", [0, 30, 100])
def test_a_store_whose_last_durable_entry_or_first_one_is_damaged_opens(tmp_path: Path, at: int) -> None:
    store = open_entries(tmp_path)
    made = fill(store, COUNT)
    store.flush()
    store.save_checkpoint(3)
    made += fill(store, 3)
    store.close(clean=False)
    for number in (0, COUNT - 1):
        flip_at(tmp_path, "data", made[number].position + at, FILE_BYTES)
    store = open_entries(tmp_path)
    assert (store.begin_index, store.end_index) == (0, COUNT + 2)
    for number in (0, COUNT - 1):
        with pytest.raises(CorruptEntry):
            store.read(number)
        assert store.mend(made[number])
    assert [store.read(number) for number in range(COUNT + 3)] == made
    store.close()


def test_an_entry_finds_itself_by_any_of_its_bytes(filled: tuple[EntryStore, list[LogEntry]]) -> None:
    store, made = filled
    for entry in made:
        for offset in (entry.position, entry.position + HEAD_BYTES, entry.end - 1):
            unit = store.find(offset)
            assert unit is not None
            assert unit.index == entry.index
    assert store.find(made[-1].end) is None
    assert store.find(made[4].end) is None, "a blank"
    store.close()


@pytest.mark.parametrize("at", [3, 10, 22, 30, 45, HEAD_BYTES + 20])
def test_a_run_has_no_damaged_entry(
    tmp_path: Path, filled: tuple[EntryStore, list[LogEntry]], at: int
) -> None:
    """Not a flipped term either, that is between those of its neighbours: the index says another one."""
    store, made = filled
    for number in (7, 9):
        flip_at(tmp_path, "data", made[number].position + at, FILE_BYTES, 1)
        found: list[LogEntry] = []
        while len(found) < number - 5:
            run = [*store.read_run(5 + len(found), 20, 1 << 20)]
            assert 1 <= len(run) <= 5
            found += run
        assert found == made[5:number]
        with pytest.raises(CorruptEntry):
            store.read_run(number, 20, 1 << 20)
        assert store.mend(made[number], committed=True)
        assert [*store.read_run(number, 1, 1 << 20)] == [made[number]]
    store.fenced = {made[7].position: "said so"}
    assert [*store.read_run(6, 20, 1 << 20)] == [made[6]]
    store.close()


def test_an_entry_is_found_though_units_lead_astray(
    tmp_path: Path, filled: tuple[EntryStore, list[LogEntry]]
) -> None:
    store, made = filled
    for number in (12, 3, 18):
        flip_at(tmp_path, "index", number * UNIT_BYTES + 8, INDEX_FILE_BYTES, 4)
    flip_at(tmp_path, "data", made[14].position + 1, FILE_BYTES)
    for entry in made:
        unit = store.find(entry.position + 60)
        assert unit is not None
        assert unit.index == entry.index
    assert store.find(made[14].end) is None, "a blank"
    store.close()


# -- a broker's log ---------------------------------------------------------------------------------


def bodies(count: int) -> list[bytes]:
    return [b"%04d " % number + b"x" * (number * 37 % 300) for number in range(count)]


class Damaged:
    """A broker's store with 40 messages, all committed; the entries as they were written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened = Opened(root)
        self.opened.log.append_many(
            [NewMessage("T", 0, body, b"KEYS\x01k%s\x02" % body[:4]) for body in bodies(40)]
        )
        self.opened.entries.flush()
        self.entries = [self.opened.entries.read(index) for index in range(40)]
        self.bytes = data_bytes(root / "dledger-n0")

    def flip(self, number: int, at: int = HEAD_BYTES + 100) -> None:
        flip_at(self.root / "dledger-n0", "data", self.entries[number].position + at, BROKER_FILE_BYTES)

    def mend(self, number: int) -> None:
        """As the member does, with the entry of another one."""
        assert self.opened.entries.mend(self.entries[number])
        self.opened.store.mended(self.entries[number].position)
        self.opened.store.scrub.also_look()

    def fenced(self, *numbers: int) -> bool:
        wanted = tuple((self.entries[number].position, self.entries[number].end) for number in numbers)
        return self.opened.log.damaged == wanted

    def is_whole(self) -> bool:
        return data_bytes(self.root / "dledger-n0") == self.bytes and not self.opened.log.damaged

    def close(self) -> None:
        self.opened.close()


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path)


def test_a_read_of_a_damaged_record_fences_its_entry_until_it_is_mended(damaged: Damaged) -> None:
    log = damaged.opened.log
    damaged.opened.commit()
    damaged.flip(17)
    offset = damaged.entries[17].position + HEAD_BYTES
    with pytest.raises(CorruptRecord):
        log.read_sound_record(offset)
    damaged.opened.store.scrub.look_at_suspects()
    assert damaged.fenced(17)
    with pytest.raises(CorruptRecord, match="damaged from"):
        log.read(offset, 10)
    with pytest.raises(CorruptEntry):
        damaged.opened.entries.read(17)
    assert damaged.opened.store.damaged_entries == (damaged.entries[17].position,)
    damaged.mend(17)
    assert damaged.is_whole()
    assert damaged.opened.queue() == bodies(40)
    damaged.close()


@pytest.mark.parametrize("at", [2, 12, 20, 30, 34, 38, 41, 46, HEAD_BYTES + 90])
def test_a_pass_of_the_scrub_finds_a_flip_anywhere_in_an_entry(damaged: Damaged, at: int) -> None:
    """In its head, of which no checksum speaks, too."""
    damaged.opened.commit()
    damaged.flip(3, at)
    damaged.flip(9)
    damaged.opened.store.scrub.run_pass(threading.Event())
    assert damaged.fenced(3, 9)
    damaged.mend(9)
    damaged.mend(3)
    assert damaged.is_whole()
    damaged.close()


def test_dispatch_waits_before_a_damaged_entry_and_goes_on_behind_it(damaged: Damaged) -> None:
    store = damaged.opened.store
    damaged.flip(17, 3)
    damaged.opened.log.committed_to(damaged.opened.entries.end)
    with pytest.raises(CorruptRecord) as stopped:
        store.dispatcher.catch_up()
    store.dispatcher.fail(stopped.value)
    store.dispatcher.on_damage(store.dispatcher.position)
    store.scrub.also_look()
    assert damaged.fenced(17)
    assert damaged.opened.queue() == bodies(17)
    damaged.mend(17)
    assert store.dispatcher.failed is None
    store.dispatcher.catch_up()
    assert damaged.opened.queue() == bodies(40)
    assert damaged.is_whole()
    damaged.close()


def test_a_store_opens_with_a_damaged_entry_and_takes_nothing_before_it_is_mended(damaged: Damaged) -> None:
    damaged.opened.close()
    damaged.flip(17, 3)
    damaged.opened = opened = Opened(damaged.root)
    assert opened.queue() == bodies(17)
    assert damaged.fenced(17)
    assert "queues are not complete" in (opened.log.held or "")
    assert opened.member.kept_back == opened.log.held
    damaged.mend(17)
    opened.store.dispatcher.catch_up()
    opened.store.dispatcher._tell_expecting()
    assert opened.log.held is None
    assert opened.queue() == bodies(40)
    assert opened.log.append(NewMessage("T", 0, b"next")).queue_offset == 40
    opened.close()


def test_fences_are_known_after_a_restart(damaged: Damaged) -> None:
    damaged.opened.commit()
    damaged.flip(17)
    damaged.opened.store.scrub.look_at(damaged.entries[17].position)
    damaged.opened.close()
    damaged.opened = Opened(damaged.root)
    assert damaged.fenced(17)
    assert list(damaged.opened.entries.fenced) == [damaged.entries[17].position]
    damaged.mend(17)
    damaged.close()
    assert (
        not (damaged.root / "lineage" / "damaged").read_text().startswith(str(damaged.entries[17].position))
    )


def test_a_queue_and_an_index_that_do_not_fit_the_entries_are_mended_from_them(damaged: Damaged) -> None:
    store = damaged.opened.store
    damaged.opened.commit()
    store.queue_flusher.flush(0, thorough=True)
    (queue_path,) = (damaged.root / "consumequeue" / "T" / "0").iterdir()
    flip(queue_path, 12 * 20 + 6)
    flip(queue_path, 20 * 20 + 15)
    store.scrub.also_look_over(threading.Event())
    assert damaged.opened.queue() == bodies(40)
    (index_path,) = (damaged.root / "index").iterdir()
    flip(index_path, 40 + 4 * options_of(damaged.root).index_slots + 20 * 7 + 3)
    store.scrub.also_look_over(threading.Event())
    store.scrub.also_look()
    for number in range(40):
        assert len(store.index.query("T", f"k{number:04d}", 10, 0, 1 << 62)) == 1
    assert not damaged.opened.log.damaged
    damaged.close()


def test_a_damaged_blank_is_written_again(damaged: Damaged) -> None:
    damaged.opened.commit()
    last = max(
        (one for one in damaged.entries if one.position < BROKER_FILE_BYTES), key=lambda one: one.position
    )
    flip_at(damaged.root / "dledger-n0", "data", last.end + 1, BROKER_FILE_BYTES)
    assert damaged.bytes != data_bytes(damaged.root / "dledger-n0")
    damaged.opened.store.scrub.run_pass(threading.Event())
    damaged.opened.store.scrub.also_look()
    assert damaged.is_whole()
    assert not damaged.opened.entries.mend_blank(last.position)
    damaged.close()
