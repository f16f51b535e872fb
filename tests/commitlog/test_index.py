"""The index: RocketMQ's bytes, chains, rolling, crashes, queries, expiry, and disks that fail."""

from __future__ import annotations

import errno
import mmap
import random
import shutil
import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.files import OSFiles
from commitlog.errors import SegmentSizeMismatch
from commitlog.index import index_file
from commitlog.index.files import IndexFiles, index_name
from commitlog.index.index_file import ENTRY, HEADER, SLOT, file_bytes
from commitlog.kernel import native
from commitlog.kernel.keys import KeyHasher, index_hash, last_value, tags_code
from commitlog.kernel.records import encode_properties, java_hash
from tests.support.failing_files import FailingFiles
from tests.support.flips import flip
from tests.support.messages import STORE_MS, Clock

UNIQUE = "0A010203000018B4AAC20000000A0000"
FOREVER = 1 << 62


def open_index(root: Path, files: OSFiles | None = None, slots: int = 10, entries: int = 40) -> IndexFiles:
    index = IndexFiles(root, slots, entries, files or OSFiles(), Clock())
    index.load(crashed=False, checkpoint_ms=0)
    return index


def put(index: IndexFiles, key: str, offset: int, at_ms: int = STORE_MS, topic: str = "TopicTest") -> None:
    index.put(topic, key, offset, at_ms)
    index.write()


def contents(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(root.iterdir())]


def entries_of(content: bytes, slots: int) -> list[tuple[int, ...]]:
    """All counted entries, number 0 with them."""
    count = max(1, HEADER.unpack_from(content)[-1])
    return [ENTRY.unpack_from(content, 40 + 4 * slots + 20 * number) for number in range(count)]


def test_the_reference_entries(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    for offset, at_ms in ((0, 0x1A1FBA6B5F6), (0xB0, 0x1A1FBA6B61B)):
        for key in (UNIQUE, "k1", "k2"):
            put(index, key, offset, at_ms)
    (content,) = contents(tmp_path)
    assert len(content) == 40 + 4 * 10 + 20 * 40
    entries_at = 40 + 40
    assert content[entries_at : entries_at + 20] == bytes(20)
    assert content[entries_at + 20 : entries_at + 40].hex() == "7791fc8e" + "00" * 16
    assert content[entries_at + 80 : entries_at + 100].hex() == "7791fc8e00000000000000b00000000000000001"
    assert HEADER.unpack_from(content) == (0x1A1FBA6B5F6, 0x1A1FBA6B61B, 0, 0xB0, 3, 7)
    slot = 2006056078 % 10
    assert SLOT.unpack_from(content, 40 + 4 * slot) == (4,)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("TopicTest#k1", 2746024),
        (f"TopicTest#{UNIQUE}", 2006056078),
        ("polygenelubricants", 0),
        ("", 0),
    ],
)
def test_the_hash_of_a_key(key: str, expected: int) -> None:
    assert index_hash(java_hash(key)) == expected


def test_a_default_file_has_rocketmqs_size() -> None:
    assert file_bytes(5_000_000, 20_000_000) == 420_000_040


def test_names_are_local_time_and_rise_though_the_clock_goes_back(tmp_path: Path) -> None:
    assert len(index_name(STORE_MS)) == 17
    assert index_name(STORE_MS).endswith("206")
    clock = Clock()
    index = IndexFiles(tmp_path, 3, 3, OSFiles(), clock)
    for number in range(6):
        put(index, "k", number)
        clock.now_ms -= 3_600_000
    first = int(index_name(STORE_MS))
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"{first + n:017d}" for n in range(3)]
    assert index.paths == sorted(tmp_path.iterdir())
    assert index.query("TopicTest", "k", 9, 0, FOREVER) == [5, 4, 3, 2, 1, 0]


def test_a_full_file_is_followed_by_one_that_begins_with_its_end(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=4)
    for number in range(5):
        put(index, "k", number * 100, STORE_MS + number * 2500)
    first, second = contents(tmp_path)
    assert HEADER.unpack_from(first) == (STORE_MS, STORE_MS + 5000, 0, 200, 1, 4)
    assert HEADER.unpack_from(second) == (STORE_MS + 7500, STORE_MS + 10_000, 300, 400, 1, 3)
    # The first entry's seconds count from the predecessor's end, the next from the file's own begin.
    hashed = index_hash(java_hash("TopicTest#k"))
    assert entries_of(second, 10)[1:] == [(hashed, 300, 2, 0), (hashed, 400, 2, 1)]
    assert entries_of(first, 10)[1:] == [(hashed, 0, 0, 0), (hashed, 100, 2, 1), (hashed, 200, 5, 2)]


def test_seconds_are_held_in_their_field(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    for at_ms in (1000, 500, 1000 + (1 << 31) * 1000 + 5000):
        put(index, "k", 1, at_ms)
    assert [fields[2] for fields in entries_of(contents(tmp_path)[0], 10)[1:]] == [0, 0, 0x7FFFFFFF]


def test_a_query_finds_newest_first_and_only_its_time(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=8)
    for number in range(30):
        put(index, f"k{number % 3}", number, STORE_MS + number * 1000)
    assert index.query("TopicTest", "k1", 99, 0, FOREVER) == list(range(28, 0, -3))
    assert index.query("TopicTest", "k1", 4, 0, FOREVER) == [28, 25, 22, 19]
    assert index.query("TopicTest", "k1", 99, STORE_MS + 10_000, STORE_MS + 20_000) == [19, 16, 13, 10]
    assert index.query("TopicTest", "nothing", 99, 0, FOREVER) == []
    assert index.query("Other", "k1", 99, 0, FOREVER) == []
    assert index.query("TopicTest", "k1", 0, 0, FOREVER) == []
    assert open_index(tmp_path, entries=8).query("TopicTest", "k1", 2, 0, FOREVER) == [28, 25]


def test_what_is_entered_twice_is_found_once_and_takes_no_others_place(tmp_path: Path) -> None:
    """As of a message that has a key twice."""
    index = open_index(tmp_path, entries=9)
    for number in range(8):
        put(index, "k", number)
        put(index, "k", number)
    assert len(index.paths) == 2
    for count in range(10):
        assert index.query("TopicTest", "k", count, 0, FOREVER) == list(range(7, -1, -1))[:count]


def test_a_query_finds_what_waits_to_be_entered_and_each_once(tmp_path: Path) -> None:
    """Whose message is in its queue may be asked for by its key."""
    index = open_index(tmp_path, entries=4)
    put(index, "k", 0)
    for number in range(1, 5):
        index.put("TopicTest", "k", number, STORE_MS + number * 1000)
        index.put("TopicTest", "other", number, STORE_MS + number * 1000)
    for _ in range(2):
        assert index.query("TopicTest", "k", 99, 0, FOREVER) == [4, 3, 2, 1, 0]
        assert index.query("TopicTest", "k", 2, 0, FOREVER) == [4, 3]
        assert index.query("TopicTest", "k", 99, STORE_MS + 2000, STORE_MS + 3000) == [3, 2]
        index.write()


def test_all_keys_are_found_again_after_a_restart(tmp_path: Path) -> None:
    chance = random.Random(1)
    keys = [f"order-{chance.randrange(200)}" for _ in range(1000)]
    index = open_index(tmp_path, slots=50, entries=120)
    for number, key in enumerate(keys):
        if number % 130 == 0:
            index.close()
            index = open_index(tmp_path, slots=50, entries=120)
        put(index, key, number)
    for key in set(keys):
        wanted = [number for number, other in enumerate(keys) if other == key]
        found = index.query("TopicTest", key, 1000, 0, FOREVER)
        assert found == sorted(found, reverse=True)
        assert set(wanted) <= set(found)
    assert all(len(content) == file_bytes(50, 120) for content in contents(tmp_path))


def after_a_crash(root: Path, position: int, slots: int = 10, entries: int = 40) -> IndexFiles:
    """Opened by a start that knows all below `position` in the log to be durable."""
    index = IndexFiles(root, slots, entries, OSFiles(), Clock())
    index.load(crashed=True, checkpoint_ms=0, position=position)
    assert index.durable_position == position
    return index


@pytest.mark.parametrize("lost", ["header", "slots", "entries", "header and entries"])
def test_a_power_cut_takes_no_entry_that_was_durable(tmp_path: Path, lost: str) -> None:
    index = open_index(tmp_path)
    for number in range(5):
        put(index, "k", number)
    (path,) = tmp_path.iterdir()
    durable = path.read_bytes()
    for number in range(5, 9):
        put(index, "k", number)
    index.close()
    torn = bytearray(path.read_bytes())
    for name, begin, end in (("header", 0, 40), ("slots", 40, 80), ("entries", 80, len(torn))):
        if name in lost:
            torn[begin:end] = durable[begin:end]
    path.write_bytes(torn)
    index = after_a_crash(tmp_path, 5)
    assert path.read_bytes() == durable
    assert index.query("TopicTest", "k", 99, 0, FOREVER) == [4, 3, 2, 1, 0]
    for number in range(5, 9):
        put(index, "k", number)
    assert index.query("TopicTest", "k", 99, 0, FOREVER) == list(range(8, -1, -1))


def test_after_a_crash_files_that_follow_the_cut_go_and_the_one_it_is_in_has_room_again(
    tmp_path: Path,
) -> None:
    index = open_index(tmp_path, entries=4)
    for number in range(8):
        put(index, "k", number)
    index.close()
    assert len(contents(tmp_path)) == 3
    index = after_a_crash(tmp_path, 5, entries=4)
    assert len(contents(tmp_path)) == 2
    assert index.query("TopicTest", "k", 99, 0, FOREVER) == [4, 3, 2, 1, 0]
    for number in range(5, 8):
        put(index, "k", number)
    assert index.query("TopicTest", "k", 99, 0, FOREVER) == list(range(7, -1, -1))
    index.close()
    assert after_a_crash(tmp_path, 0, entries=4).paths == []
    assert contents(tmp_path) == []


def test_an_index_of_which_a_crash_leaves_nothing_is_deleted_without_being_written_first(
    tmp_path: Path,
) -> None:
    index = open_index(tmp_path)
    for number in range(5):
        put(index, "k", 100 + number)
    index.close()
    again = IndexFiles(tmp_path, 10, 40, files := FailingFiles(), Clock())
    again.load(crashed=True, checkpoint_ms=STORE_MS, position=100)
    assert (again.paths, list(tmp_path.iterdir())) == ([], [])
    assert (again.entered_position, files.calls["pwrite"], files.calls["unlink"]) == (0, 0, 1)


def test_what_was_cut_is_flushed_before_more_is_claimed(tmp_path: Path) -> None:
    put(open_index(tmp_path), "k", 1)
    files = FailingFiles()
    index = IndexFiles(tmp_path, 10, 40, files, Clock())
    index.load(crashed=True, checkpoint_ms=0, position=5)
    index.written_position = 9
    index.flush()
    assert files.calls["fdatasync"] == 1
    assert index.durable_position == 9


def test_a_chain_that_loops_or_leads_outside_ends(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    for number in range(3):
        put(index, "k", number)
    index.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    older_at = 40 + 40 + 20 * 2 + 16
    for older in (2, 3, 39, 1_000_000, -1):
        path.write_bytes(whole[:older_at] + SLOT.pack(older) + whole[older_at + 4 :])
        assert open_index(tmp_path).query("TopicTest", "k", 99, 0, FOREVER) == [2, 1]
    slot_at = 40 + 4 * (index_hash(java_hash("TopicTest#k")) % 10)
    for newest in (-5, 1_000_000):
        path.write_bytes(whole[:slot_at] + SLOT.pack(newest) + whole[slot_at + 4 :])
        damaged = open_index(tmp_path)
        assert damaged.query("TopicTest", "k", 99, 0, FOREVER) == []
        put(damaged, "k", 9)
        assert damaged.query("TopicTest", "k", 99, 0, FOREVER) == [9]


def test_after_a_crash_what_the_checkpoint_does_not_cover_is_deleted(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=4)
    for number in range(7):
        put(index, "k", number, STORE_MS + number)
    index.close()
    assert len(contents(tmp_path)) == 3
    survivor = IndexFiles(tmp_path, 10, 4, OSFiles(), Clock())
    survivor.load(crashed=True, checkpoint_ms=STORE_MS + 2)
    assert len(contents(tmp_path)) == 1
    assert survivor.query("TopicTest", "k", 99, 0, FOREVER) == [2, 1, 0]
    assert survivor.durable_ms == STORE_MS + 2
    put(survivor, "k", 3, STORE_MS + 3)
    assert survivor.query("TopicTest", "k", 99, 0, FOREVER) == [3, 2, 1, 0]


def test_files_of_another_size_and_foreign_names(tmp_path: Path) -> None:
    put(open_index(tmp_path), "k", 1)
    (tmp_path / "note.txt").write_text("x")
    (tmp_path / "20261121091103193").write_bytes(bytes(17))
    assert len(open_index(tmp_path).paths) == 1
    assert not (tmp_path / "20261121091103193").exists()
    with pytest.raises(SegmentSizeMismatch, match="is 880 bytes long, configured are 900"):
        open_index(tmp_path, entries=41)


@pytest.mark.parametrize("entries", [3, 40])
def test_of_a_log_that_is_cut_the_index_keeps_what_is_left(tmp_path: Path, entries: int) -> None:
    index = open_index(tmp_path, entries=entries)
    for number in range(5):
        put(index, "k", number * 100, STORE_MS + number * 2500)
        put(index, f"k{number}", number * 100, STORE_MS + number * 2500)
    before = contents(tmp_path)
    index.truncate(401)
    assert contents(tmp_path) == before
    index.truncate(250)
    assert index.query("TopicTest", "k", 99, 0, FOREVER) == [200, 100, 0]
    assert index.query("TopicTest", "k3", 99, 0, FOREVER) == []
    assert index.query("TopicTest", "k", 99, STORE_MS + 5000, FOREVER) == [200]
    put(index, "k", 250, STORE_MS + 9000)
    index.close()
    again = open_index(tmp_path, entries=entries)
    assert again.query("TopicTest", "k", 99, 0, FOREVER) == [250, 200, 100, 0]


def test_a_full_disk_loses_nothing_when_it_is_written_again(tmp_path: Path) -> None:
    files = FailingFiles()
    index = open_index(tmp_path, files, entries=4)
    put(index, "k", 0)
    files.fail("create", errno.ENOSPC)
    for number in range(1, 9):
        index.put("TopicTest", "k", number, STORE_MS)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            index.write()
        assert [put[1] for put in index.pending] == list(range(3, 9))
        assert index.query("TopicTest", "k", 99, 0, FOREVER) == list(range(8, -1, -1))
    files.heal()
    index.write()
    assert len(index.pending) == 0
    assert index.query("TopicTest", "k", 99, 0, FOREVER) == list(range(8, -1, -1))


def test_flush_moves_what_a_checkpoint_may_claim(tmp_path: Path) -> None:
    files = FailingFiles()
    index = open_index(tmp_path, files, entries=4)
    for number in range(4):
        put(index, "k", number, STORE_MS + number)
    assert index.durable_ms == 0
    index.flush()
    assert index.durable_ms == STORE_MS + 2, "what comes next may bear the same millisecond"
    assert files.calls["fdatasync"] == 2
    index.flush()
    assert files.calls["fdatasync"] == 2
    put(index, "k", 9, STORE_MS + 9)
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        index.flush()
    files.heal()
    with pytest.raises(OSError, match="Input/output"):
        index.flush()
    assert index.durable_ms == STORE_MS + 2, "what comes next may bear the same millisecond"


def test_a_flush_that_lacks_a_descriptor_is_tried_again(tmp_path: Path) -> None:
    index = open_index(tmp_path, files := FailingFiles())
    put(index, "k", 1, STORE_MS)
    files.fail("sync_directory", errno.EMFILE, times=1)
    with pytest.raises(OSError, match="open files"):
        index.flush()
    assert index.durable_ms == 0
    index.flush()
    assert index.durable_ms == STORE_MS - 1


def test_files_below_the_start_of_the_log_expire_but_never_the_last(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=4)
    for number in range(8):
        put(index, "k", number * 100)
    assert index.expire(200) == 0
    assert index.expire(201) == 1
    assert index.query("TopicTest", "k", 99, 0, FOREVER) == [700, 600, 500, 400, 300]
    assert index.expire(9_999_999) == 1
    assert len(contents(tmp_path)) == 1
    index.flush()


def test_resting_gives_memory_back_and_loses_nothing(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    index.rest()
    put(index, "k", 1)
    index.rest()
    put(index, "k", 2)
    assert index.query("TopicTest", "k", 99, 0, FOREVER) == [2, 1]


def test_an_empty_index_makes_no_file(tmp_path: Path) -> None:
    index = open_index(tmp_path / "index")
    index.write()
    assert index.query("T", "k", 9, 0, FOREVER) == []
    assert contents(tmp_path / "index") == []


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"TAGS\x01a", b"a"),
        (b"TAGS\x01a\x02", b"a"),
        (b"x\x01y\x02TAGS\x01a b\x02z\x01w", b"a b"),
        (b"MYTAGS\x01a", b""),
        (b"MYTAGS\x01a\x02TAGS\x01b", b"b"),
        (b"x\x01TAGS\x01a", b""),
        (b"TAGS\x01a\x02TAGS\x01b", b"b"),
        (b"TAGS\x01a\x02TAGS\x01\x02x\x01y", b"a"),
        (b"TAGS\x01\x02TAGS\x01", b""),
        (b"TAGS\x01a\x01b", b"a\x01b"),
        (b"TAGS", b""),
        (b"", b""),
    ],
)
def test_a_property_is_found_where_its_name_begins(properties: bytes, expected: bytes) -> None:
    assert last_value(b"\x02" + properties, b"\x02TAGS\x01") == expected


@pytest.mark.parametrize(
    ("tag", "code"), [("TagA", 2598919), ("tb", 3694), ("", 0), ("polygenelubricants", -(1 << 31))]
)
def test_tags_codes(tag: str, code: int) -> None:
    assert tags_code(tag.encode()) == code


def test_keys_hash_as_java_hashes_them() -> None:
    chance = random.Random(7)
    alphabet = "abcXYZ019_-# %é漢😀"
    for topic in ("T", "TopicTest", "%RETRY%group"):
        hasher = KeyHasher(topic)
        for _ in range(2000):
            size = chance.choice([1, 2, 5, 31, 32, 33, 63, 64, 65, 200])
            letters = chance.choice([alphabet[:12], alphabet[:12], alphabet])
            key = "".join(chance.choices(letters, k=size))
            assert hasher.hash(key.encode()) == index_hash(java_hash(f"{topic}#{key}")), (topic, key)
        for number in range(3000):
            key = f"0A0102030000{number:08X}AAC2{number:08X}"
            assert hasher.hash(key.encode()) == index_hash(java_hash(f"{topic}#{key}"))


def test_a_message_gives_its_unique_key_and_then_its_keys() -> None:
    properties = encode_properties({"KEYS": " k1  k2 ", "UNIQ_KEY": UNIQUE, "XKEYS": "no"})
    puts: list[tuple[int, int, int]] = []
    KeyHasher("T").put(puts, b"\x02" + properties, 5, 6)
    assert puts == [(index_hash(java_hash(f"T#{key}")), 5, 6) for key in (UNIQUE, "k1", "k2")]


def test_a_file_holds_one_entry_less_than_its_number(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=40)
    for number in range(39):
        put(index, f"k{number}", number)
    assert HEADER.unpack_from(contents(tmp_path)[0])[-1] == 40
    assert len(index.paths) == 1
    put(index, "k", 39)
    assert len(index.paths) == 2


def test_chains_are_checked_slot_by_slot_and_in_every_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_PIECE_SLOTS", 3)
    index = open_index(tmp_path)
    for number in range(30):
        put(index, f"k{number}", number)
    index.flush()
    (path,) = index.paths
    assert index.files[0].chains_fit()
    for slot in range(10):
        flip(path, 40 + 4 * slot + 3, 0)
        assert not index.files[0].chains_fit(), slot
        flip(path, 40 + 4 * slot, 3)  # beyond every entry
        assert not index.files[0].chains_fit(), slot
        flip(path, 40 + 4 * slot, 3)
        flip(path, 40 + 4 * slot + 3, 0)
    for number in range(1, 31):
        flip(path, 40 + 4 * 10 + 20 * number + 19, 1)
        assert not index.files[0].chains_fit(), number
        flip(path, 40 + 4 * 10 + 20 * number + 19, 1)
    assert index.files[0].chains_fit()


def test_chains_fit_although_keys_are_put_while_they_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(OSFiles):
        """Before each piece of the slots that is read, another key is put."""

        at = 100
        busy = False

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if self.busy and 40 <= offset < 40 + 4 * 10:
                self.busy = False  # a put may read slots, too
                put(index, f"k{self.at}", self.at)
                self.at, self.busy = self.at + 1, True
            return super().pread(fd, size, offset)

    monkeypatch.setattr(index_file, "_PIECE_SLOTS", 3)
    files = Busy()
    index = open_index(tmp_path, files)
    for number in range(10):
        put(index, f"k{number}", number)
    files.busy = True
    assert index.files[0].chains_fit()
    assert files.at == 104


def test_the_check_of_a_large_index_file_takes_memory_for_a_piece_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is a mapping, which tracemalloc does not count; it has the size of the slots, and is closed."""
    tables = []

    def mapping(*args: Any, **flags: int) -> mmap.mmap:
        tables.append(made := real(*args, **flags))
        return made

    slots = 3_000_000
    index = open_index(tmp_path, slots=slots, entries=1000)
    for number in range(500):
        put(index, f"k{number}", number)
    real = mmap.mmap
    monkeypatch.setattr(mmap, "mmap", mapping)
    tracemalloc.start()
    try:
        assert index.files[0].chains_fit()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < slots * SLOT.size / 3, peak
    assert [table.closed for table in tables] == [True]


@pytest.mark.skipif(native.core is None, reason="there is no native build")
@pytest.mark.parametrize("number", [-1, -(2**31), 2**31 - 1])
def test_entries_whose_numbers_do_not_fit_are_not_entered(number: int) -> None:
    slots = array("i", bytes(8))
    entries = ENTRY.pack(1, 100, 0, 0) * 2
    assert native.core.index_enter(entries, number, slots, 1000, 0, 0, 0) == (0, 0, 0, 0)
    assert list(slots) == [0, 0]


@pytest.mark.skipif(native.core is None, reason="there is no native build to compare with")
@pytest.mark.parametrize("seed", range(40))
def test_both_builds_cut_an_index_alike_whatever_its_entries_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    choose = random.Random(seed)
    index = open_index(tmp_path / "native", entries=400)
    for number in range(choose.randrange(1, 390)):
        put(index, f"k{choose.randrange(60)}", number * 50, STORE_MS + number * choose.randrange(500))
    index.close()
    (path,) = (tmp_path / "native").iterdir()
    with path.open("r+b") as file:
        for _ in range(choose.choice((0, 0, 1, 3))):  # entries that rotted, or that the disk never got
            file.seek(40 + 4 * 10 + 20 * choose.randrange(1, 400) + choose.randrange(20))
            file.write(choose.randbytes(choose.choice((1, 1, 20))) if choose.random() < 0.7 else bytes(20))
    shutil.copytree(tmp_path / "native", tmp_path / "python")
    position = choose.choice((0, choose.randrange(20_000), 1 << 62))
    doubtful = []
    for build in ("native", "python"):
        if build == "python":
            monkeypatch.setattr(native, "core", None)
        index = IndexFiles(tmp_path / build, 10, 400, OSFiles(), Clock())
        index.load(crashed=True, checkpoint_ms=0, position=position)
        doubtful.append([file.doubtful for file in index.files])
        index.close()
    assert contents(tmp_path / "native") == contents(tmp_path / "python")
    assert doubtful[0] == doubtful[1]
