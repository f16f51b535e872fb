"""Queues and index whose bits flip: put right from the log, at a start and while the store is open; what the
log has is neither skipped nor fenced for it.
"""

from __future__ import annotations

import random
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from commitlog.errors import CommitLogError
from commitlog.index.index_file import ENTRY, HEADER_BYTES, SLOT
from commitlog.kernel.records import decode, encode_properties
from commitlog.queues.queue_files import UNIT_BYTES
from commitlog.store import Store
from tests.commitlog.test_damage import rot
from tests.commitlog.test_store import open_store, placed, queued
from tests.commitlog.test_truncation import dispatched, edges
from tests.support.flips import contents, flip
from tests.support.messages import Clock, message

MESSAGES = 60
QUEUES = 3
EVER = (0, 1 << 60)


def properties(number: int) -> dict[str, str]:
    return {"KEYS": f"k{number} all", "TAGS": f"t{number % 4}", "UNIQ_KEY": f"U{number:031d}"}


def fill(store: Store, first: int = 0, count: int = MESSAGES) -> None:
    """Messages of many sizes, some of which are alike, in some queues."""
    dice = random.Random(first)
    for number in range(first, first + count):
        body = bytes([number]) * dice.choice((100, 356, 800, dice.randrange(1, 1500)))
        store.log.append(message(body, queue_id=number % QUEUES, properties=properties(number)))


def opened(root: Path, **fields: object) -> Store:
    return open_store(root, clock_ms=Clock(), index_slots=50, index_entries=100, **fields)


def filled(root: Path) -> Store:
    store = opened(root)
    fill(store)
    return dispatched(store)


def queue_file(store: Store, queue_id: int = 0, number: int = 0) -> Path:
    return sorted((store.options.root / "consumequeue" / "TopicTest" / str(queue_id)).iterdir())[number]


def served(store: Store) -> dict[tuple[str, int], list[int]]:
    """Where the messages of each queue lie, as who reads them one by one comes to know."""
    found = {}
    for key, queue in store.queues.items():
        records = [store.mender.read(queue, number) for number in range(queue.min_offset, queue.max_offset)]
        found[key] = [decode(record).physical_offset for record in records if record is not None]
    return found


def asked(store: Store, number: int) -> list[int]:
    """By a key of one message: where it lies, without what is not it, of which the index is told."""
    found = []
    for offset in store.index.query("TopicTest", f"k{number}", 10, *EVER):
        with suppress(CommitLogError):
            record = decode(store.log.read_sound_record(offset))
            if record.properties == encode_properties(properties(number)):
                found.append(offset)
                continue
        store.index_mender.suspect("TopicTest", f"k{number}", offset)
    return found


# -- queues ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 7, 19])
def test_any_bit_of_an_entry_is_put_right_from_the_log(tmp_path: Path, number: int) -> None:
    store = filled(tmp_path)
    before = contents(tmp_path / "consumequeue")
    for bit in range(8 * UNIT_BYTES):
        flip(queue_file(store), number * UNIT_BYTES + bit // 8, bit % 8)
        assert store.mender.mend("TopicTest", 0, number)
        assert contents(tmp_path / "consumequeue") == before
    assert store.log.damaged == ()
    store.close()


def test_a_whole_page_of_another_file_is_put_right(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before = contents(tmp_path / "consumequeue")
    with queue_file(store).open("r+b") as file:
        file.seek(3 * UNIT_BYTES)
        file.write(random.Random(3).randbytes(9 * UNIT_BYTES))
    assert served(store) == placed(store)
    assert contents(tmp_path / "consumequeue") == before
    assert store.log.damaged == ()
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_start_with_a_flipped_queue_loses_no_message_and_gives_no_number_twice(
    tmp_path: Path, seed: int, clean: bool
) -> None:
    dice = random.Random(seed)
    store = filled(tmp_path)
    store.log.flush()
    store.queue_flusher.flush(0, thorough=True)
    store.flusher.step()
    before, places, path = (
        contents(tmp_path / "consumequeue"),
        placed(store),
        queue_file(store, seed % QUEUES),
    )
    store.close(clean)
    entries = MESSAGES // QUEUES
    # The last entry more often than others: a queue's end is read there.
    number = entries - 1 if seed % 2 else dice.randrange(entries)
    for bit in dice.sample(range(96), 12) if seed % 4 else (7, 0, 64 + 7, 33):
        flip(path, number * UNIT_BYTES + bit // 8, bit % 8)
        store = opened(tmp_path)
        assert {key: queue.max_offset for key, queue in store.queues.items()} == dict.fromkeys(
            places, entries
        )
        assert served(store) == places
        assert queued(store) == places
        assert store.log.damaged == ()
        assert store.log.queue_offsets == dict.fromkeys(places, entries)
        store.close(clean)
        assert contents(tmp_path / "consumequeue") == before


def test_an_entry_that_names_another_message_of_the_queue_is_seen(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before = contents(tmp_path / "consumequeue")
    content = bytearray(queue_file(store).read_bytes())
    content[4 * UNIT_BYTES : 5 * UNIT_BYTES] = content[5 * UNIT_BYTES : 6 * UNIT_BYTES]
    queue_file(store).write_bytes(content)
    assert served(store) == placed(store)
    assert contents(tmp_path / "consumequeue") == before
    store.close()


def test_where_it_is_the_log_that_rotted_the_queue_stays_and_the_log_is_fenced(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before, starts = contents(tmp_path / "consumequeue"), edges(store)
    for place in (8, 100):  # its CRC; its body
        number = 9 + place
        rot(tmp_path, starts[number % MESSAGES] + place)
        assert not store.mender.mend("TopicTest", number % MESSAGES % QUEUES, number % MESSAGES // QUEUES)
        assert starts[number % MESSAGES] in [begin for begin, _ in store.log.damaged]
    assert len(store.log.damaged) == 2
    assert contents(tmp_path / "consumequeue") == before
    store.close(clean=False)


@pytest.mark.parametrize("place", [20 + 7, 12 + 3])
def test_a_number_that_rotted_in_the_log_fences_the_record_and_leaves_the_queue(
    tmp_path: Path, place: int
) -> None:
    store = filled(tmp_path)
    before, starts = contents(tmp_path / "consumequeue"), edges(store)
    rot(tmp_path, starts[30] + place)
    assert not store.mender.mend("TopicTest", 0, 10)
    assert [begin for begin, _ in store.log.damaged] == [starts[30]]
    assert contents(tmp_path / "consumequeue") == before
    store.close(clean=False)


def test_a_suspect_that_is_the_edge_of_no_record_fences_nothing(tmp_path: Path) -> None:
    """A body may hold what looks like a damaged record, and a reader may be led there."""
    store = opened(tmp_path)
    fill(store, count=5)
    inner = bytearray(store.log.read_record(0))
    begin = store.log.end
    inner[28:36] = (begin + 88 + 50).to_bytes(8, "big")
    inner[8] ^= 1  # its CRC is another one
    store.log.append(message(bytes(50) + bytes(inner), properties={}))
    fill(store, 5, 5)
    dispatched(store)
    store.scrub.suspect(begin + 88 + 50)
    store.scrub.look_at_suspects()
    assert store.log.damaged == ()
    store.close()


def test_a_queue_that_begins_later_is_not_moved_by_a_flip_when_the_log_expires(tmp_path: Path) -> None:
    store = filled(tmp_path)
    queue, start = store.queues.get("TopicTest", 0), edges(store)[20]
    assert queue is not None
    for number in range(20):
        flip(queue_file(store), number * UNIT_BYTES + 5, 7)  # 8 MiB further
        queue.min_offset = 0
        queue.correct_min_offset(start)
        # Of the last one before, only the log could tell: it is given as the gap that it is.
        assert queue.min_offset == (6 if number == 6 else 7)
        flip(queue_file(store), number * UNIT_BYTES + 5, 7)
    store.close()


# -- what no reader sees ---------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [96, 120, 150, 159])
def test_a_tags_code_that_flipped_is_found_after_a_pass_of_the_scrub(tmp_path: Path, bit: int) -> None:
    store = opened(tmp_path, scrub_bytes_per_s=1 << 40)
    fill(store)
    dispatched(store)
    before = contents(tmp_path / "consumequeue")
    flip(queue_file(store, 1), 11 * UNIT_BYTES + bit // 8, bit % 8)
    assert served(store) == placed(store)
    assert contents(tmp_path / "consumequeue") != before
    store.scrub.also_look_over(threading.Event())
    assert contents(tmp_path / "consumequeue") == before
    assert store.log.damaged == ()
    store.close()


def test_a_comparison_of_queues_and_index_takes_no_more_memory_for_more_messages(tmp_path: Path) -> None:
    """It is at most that of a piece of the log and of what is expected of it: 1 MiB, 2,400 messages."""
    store = open_store(tmp_path, segment_bytes=4 << 20, clock_ms=Clock(), scrub_bytes_per_s=1 << 40)
    peaks = []
    for _ in range(3):
        for number in range(8_000):
            store.log.append(message(bytes(200), queue_id=number % QUEUES, properties=properties(number)))
        dispatched(store)
        tracemalloc.start()
        try:
            store.scrub.also_look_over(threading.Event())
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert store.log.end > 8 << 20, store.log.end
    assert max(peaks) < 3_000_000, peaks
    assert not any(file.doubtful for file in store.index.files)
    store.close()


# -- the index -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_a_bit_of_an_index_file_gives_no_wrong_message_and_is_put_right(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = opened(tmp_path, scrub_bytes_per_s=1 << 40)
    fill(store)
    dispatched(store)
    before, starts = contents(tmp_path / "index"), edges(store)
    paths = store.index.paths
    assert len(paths) == 2
    path = paths[seed % 2]
    entries_at = HEADER_BYTES + SLOT.size * 50
    filled_to = entries_at + ENTRY.size * (100 if seed % 2 == 0 else 80)
    byte = (
        dice.randrange(HEADER_BYTES, entries_at)
        if seed % 3 == 0
        else dice.randrange(entries_at + 20, filled_to)
    )
    flip(path, byte, dice.randrange(8))
    for number in range(MESSAGES):
        assert asked(store, number) in ([starts[number]], [])
    store.index_mender.look()
    store.scrub.also_look_over(threading.Event())
    store.index_mender.look()
    assert [asked(store, number) for number in range(MESSAGES)] == [[start] for start in starts]
    assert contents(tmp_path / "index") == before
    assert store.log.damaged == ()
    fill(store, MESSAGES, 10)
    dispatched(store)
    assert asked(store, MESSAGES + 9) == edges(store)[-1:]
    assert store.close()
    store = opened(tmp_path)
    assert len(store.index.paths) == 3
    store.close()


@pytest.mark.parametrize("byte", range(0, HEADER_BYTES, 3))
@pytest.mark.parametrize("which", [0, 1])
def test_a_bit_of_an_index_files_header_is_put_right_by_a_start(
    tmp_path: Path, byte: int, which: int
) -> None:
    store = filled(tmp_path)
    starts, path = edges(store), store.index.paths[which]
    assert store.close()
    flip(path, byte, byte % 8)
    for _ in range(2):
        store = opened(tmp_path)
        assert [asked(store, number) for number in range(MESSAGES)] == [[start] for start in starts]
        assert store.close()
    store = opened(tmp_path)
    fill(store, MESSAGES, 3)
    dispatched(store)
    assert asked(store, MESSAGES + 2) == edges(store)[-1:]
    store.close()


def test_an_index_is_not_suspected_for_what_rotted_in_the_log(tmp_path: Path) -> None:
    store = filled(tmp_path)
    starts, inode = edges(store), store.index.paths[0].stat().st_ino
    rot(tmp_path, starts[12] + 4)
    store.index_mender.suspect("TopicTest", "k12", starts[12])
    store.index_mender.look()
    assert [begin for begin, _ in store.log.damaged] == [starts[12]]
    assert store.index.paths[0].stat().st_ino == inode
    store.close(clean=False)
