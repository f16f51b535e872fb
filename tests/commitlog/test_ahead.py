"""What a start's look gathers for its dispatch: the same files as from the log, and the log is not read again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from commitlog.dispatch.ahead import Ahead
from commitlog.kernel.layout import INDEX_PUT
from commitlog.kernel.records import encode, stamp
from commitlog.kernel.scan import scan_records
from tests.commitlog.test_dispatching import SEGMENT_BYTES, Followers, RandomLog, files_of, take_in
from tests.support.messages import STORE_HOST, STORE_MS, message, open_log


def looked_over(data: bytes, piece_bytes: int, begin: int = 0, *, keys: bool = True) -> Ahead:
    """As a start goes over the records of a log."""
    ahead, at = Ahead(keys=keys), begin
    needed = 0
    while at < len(data):
        room = SEGMENT_BYTES - at % SEGMENT_BYTES
        view = memoryview(data)[at : at + min(room, max(piece_bytes, needed))]
        done = scan_records(view, 0, at, room)
        assert done.reason is None
        if done.records:
            ahead.passed(view, at, done.position)
        at, needed = at + done.position + done.blank, done.needed
    return ahead


def ordinary_log(count: int = 300) -> bytes:
    """Of three queues; a record of each that begins in its place."""
    data = bytearray()
    for number in range(count):
        properties = {"TAGS": "TagA", "UNIQ_KEY": f"u{number}"}
        record = encode(message(bytes(100), "T", number % 3, properties=properties), STORE_HOST)
        stamp(record, number // 3, len(data), STORE_MS + number)
        data += record
    assert len(data) > SEGMENT_BYTES
    return bytes(data)


def started(root: Path, seed: int, *, with_ahead: bool) -> tuple[dict[str, bytes], dict[Any, int], int]:
    """The files and the last arrivals of a start that goes over part of the log again, and what its dispatch read."""
    made, chance = RandomLog(seed), random.Random(seed)
    for _ in range(chance.randint(50, 400)):
        made.add()
    dispatched_to = chance.randrange(len(made.bytes))
    log = open_log(root, segment_bytes=SEGMENT_BYTES, replica=True)
    take_in(log, made.bytes[:dispatched_to])
    followers = Followers(root, log)
    while followers.dispatcher.step():
        pass
    known = followers.dispatcher.position
    followers.close()
    take_in(log, made.bytes)
    followers = Followers(root, log, position=chance.choice((0, 0, known)))
    ahead = looked_over(bytes(made.bytes), chance.choice((3000, 20_000)), chance.choice((0, 0, known)))
    seen = Reads(log)
    followers.dispatcher.catch_up(ahead if with_ahead else None)
    assert followers.dispatcher.position == log.end == len(made.bytes)
    followers.close()
    log.close()
    last = {(one[0], one[1], one[3]): one[2] for arrivals in followers.arrivals for one in arrivals}
    return files_of(root), last, seen.bytes


class Reads:
    """Counts what is read of a log from now on."""

    def __init__(self, log: Any) -> None:
        self.bytes = 0
        self._read = log.read
        log.read = self.read

    def read(self, offset: int, size: int) -> bytes:
        data: bytes = self._read(offset, size)
        self.bytes += len(data)
        return data


@pytest.mark.parametrize("seed", range(1, 25))
def test_a_start_with_what_was_gathered_ahead_has_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("commitlog.dispatch.dispatcher._PIECE_BYTES", 9000)
    monkeypatch.setattr("commitlog.dispatch.dispatcher._CATCH_UP_BYTES", chance.choice((9000, 60_000)))
    monkeypatch.setattr("commitlog.dispatch.ahead._PARTS_MAX", chance.choice((3, 1000)))
    monkeypatch.setattr("commitlog.dispatch.ahead._LANES_MAX", chance.choice((5, 1000, 1000)))
    files, arrivals, read = started(tmp_path / "ahead", seed, with_ahead=True)
    expected, expected_arrivals, expected_read = started(tmp_path / "read", seed, with_ahead=False)
    assert files.keys() == expected.keys()
    assert [name for name, content in files.items() if content != expected[name]] == []
    assert arrivals == expected_arrivals
    assert read <= expected_read


def test_a_log_of_ordinary_records_is_not_read_again(tmp_path: Path, build: str) -> None:
    data = ordinary_log()[: SEGMENT_BYTES - 40]
    data = data[: scan_records(data, 0, 0, SEGMENT_BYTES).position]
    log = open_log(tmp_path, segment_bytes=SEGMENT_BYTES, replica=True)
    log.append_replica(0, [data])
    followers = Followers(tmp_path, log)
    reads = Reads(log)
    followers.dispatcher.catch_up(looked_over(data, 3000))
    assert followers.dispatcher.position == log.end == len(data)
    assert reads.bytes == 0
    queue = followers.queues.get("T", 1)
    assert queue is not None
    assert queue.max_offset > 50
    assert followers.index.query("T", "u7", 9, 0, 1 << 62) == [queue.read(2, 1)[0].physical_offset]
    followers.close()
    log.close()


def test_what_a_cut_took_from_the_log_is_not_taken_from_memory(tmp_path: Path, build: str) -> None:
    data = ordinary_log()[:20_000]
    data = data[: scan_records(data, 0, 0, SEGMENT_BYTES).position]
    log = open_log(tmp_path, segment_bytes=SEGMENT_BYTES, replica=True)
    shorter = scan_records(data[:9000], 0, 0, SEGMENT_BYTES).position
    log.append_replica(0, [data[:shorter]])
    followers = Followers(tmp_path, log)
    followers.dispatcher.catch_up(looked_over(data, 1 << 20))
    assert followers.dispatcher.position == shorter
    assert followers.queues.max_physical_offset == shorter
    followers.close()
    log.close()


def test_parts_follow_each_other_and_end_where_no_more_fits(build: str) -> None:
    data = bytearray()
    for number in range(12):  # each with more than 16,000 keys
        record = encode(message(b"", "T", 0, properties={"KEYS": "k " * 16_300}), STORE_HOST)
        stamp(record, number, len(data), STORE_MS)
        data += record
    ahead = Ahead(keys=True)
    ahead.passed(bytes(data), 0, len(data))
    position, puts, parts = 0, 0, 0
    while (part := ahead.take(position)) is not None:
        assert ahead.begin >= part.end
        position, parts = part.end, parts + 1
        puts += len(part.take()[1]) // INDEX_PUT.size
    assert (position, puts, parts) == (len(data), 12 * 16_300, 3)


def test_no_keys_are_gathered_that_no_index_wants(build: str) -> None:
    data = ordinary_log()
    data = data[: scan_records(data, 0, 0, SEGMENT_BYTES).position]
    part = looked_over(data, 3000, keys=False).take(0)
    assert part is not None
    runs, puts = part.take()
    assert len(runs) == 3
    assert puts == b""


def test_more_than_is_kept_is_read_from_the_log(monkeypatch: pytest.MonkeyPatch, build: str) -> None:
    monkeypatch.setattr("commitlog.dispatch.ahead._PARTS_MAX", 2)
    data = ordinary_log()
    ahead = Ahead(keys=True)
    for begin in (0, 10_000, 20_000, 30_000):  # what lies between was odd
        at = scan_records(data[:begin], 0, 0, 1 << 30).position
        ahead.passed(data[at:], at, scan_records(data[at : at + 5000], 0, at, 1 << 30).position)
    first = ahead.take(0)
    assert first is not None
    assert first.end < ahead.begin <= 10_000
    assert ahead.take(ahead.begin) is not None
    assert ahead.take(0) is None
    assert ahead.begin > len(data)
