"""Whoever judges a record judges it alike: recovery, scrub, a slave, a pull, a pull-back, a reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.errors import CorruptRecord
from commitlog.kernel import scan
from commitlog.kernel.entries import Places
from commitlog.kernel.records import check, parse_head
from commitlog.log.salvage import records_behind, whole_records
from commitlog.queues.readable_queue import Entry
from haservice.broker.pull.sound_read import read_sound
from haservice.broker.roles.peer_repair import whole_records as pulled_records
from haservice.errors import ProtocolError
from haservice.replication.slave.record_check import BadRecord, RecordCheck
from tests.commitlog.kernel.recipes import (
    QUEUE,
    QUEUE_OFFSET,
    TOPIC,
    odd_records,
    of_version_2,
    sound_records,
    stored,
)
from tests.support.messages import open_log

pytestmark = pytest.mark.usefixtures("build")

SEGMENT = 1 << 17
OFFSET = 3 * SEGMENT
RECORDS = {**sound_records(OFFSET), **odd_records(OFFSET)}
SOUND = frozenset(sound_records(OFFSET))


def by_check(record: bytes, _: bytes) -> bool:
    try:
        head = parse_head(record)
        return check(record) == len(record) and head is not None and head.physical_offset == OFFSET
    except CorruptRecord:
        return False


def by_walk(record: bytes, following: bytes) -> bool:
    return scan.scan_records(record + following, 0, OFFSET, SEGMENT).position >= len(record)


def by_walk_of_what_may_be_torn(record: bytes, following: bytes) -> bool:
    return scan.scan_records(record + following, 0, OFFSET, SEGMENT, torn_from_ms=0).position >= len(record)


def by_slave(frame_bytes: int) -> Callable[[bytes, bytes], bool]:
    def judge(record: bytes, following: bytes) -> bool:
        data, checked = memoryview(record + following), RecordCheck(SEGMENT, OFFSET)
        try:
            for at in range(0, len(data), frame_bytes):
                checked.feed(OFFSET + at, [data[at : at + frame_bytes]])
        except BadRecord:
            return False
        return checked.whole >= OFFSET + len(record)

    return judge


class _Log:
    """Bytes of a log from OFFSET on."""

    start = OFFSET

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.suspects: list[int] = []
        self.suspect = self.suspects.append

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset - OFFSET : offset - OFFSET + size]


def by_pull(places: Places | None) -> Callable[[bytes, bytes], bool]:
    def judge(record: bytes, following: bytes) -> bool:
        log = _Log(record + following)
        run = [Entry(OFFSET, len(record), 0)]
        try:
            read_sound(log, OFFSET, len(record), run, places)
        except CorruptRecord:
            return False
        return True

    return judge


def by_pull_back(record: bytes, following: bytes) -> bool:
    log = _Log(record + following)
    runs = pulled_records(lambda _, *place: log.read(*place), "peer", OFFSET, OFFSET + len(record), SEGMENT)
    try:
        return sum(run.records for run in runs) == 1
    except ProtocolError:
        return False


JUDGES: dict[str, Callable[[bytes, bytes], bool]] = {
    "check": by_check,
    "walk": by_walk,
    "walk after a crash": by_walk_of_what_may_be_torn,
    "slave": by_slave(SEGMENT),
    "slave, frame by frame": by_slave(33),
    "slave, byte by byte": by_slave(1),
    "pull": by_pull(None),
    "pull of a queue": by_pull(Places(TOPIC, QUEUE, (QUEUE_OFFSET,))),
    "pull-back": by_pull_back,
}


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_judged_alike_by_all(judge: str, name: str) -> None:
    record = bytes(RECORDS[name])
    following = bytes(stored(offset=OFFSET + len(record)))
    assert JUDGES[judge](record, following) == (name in SOUND)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_a_log_is_judged_alike(name: str, tmp_path: Path) -> None:
    """By who reads it, by who looks for records behind damage, and by who puts back what was repaired."""
    log = open_log(tmp_path, segment_bytes=SEGMENT, replica=True)
    log.append_replica(OFFSET, [bytes(RECORDS[name])])
    (segment,) = log.segments.items
    try:
        log.read_sound_record(OFFSET)
        read = True
    except CorruptRecord:
        read = False
    found = [offset for offset, _ in records_behind([segment], OFFSET)]
    put_back = whole_records(RECORDS[name], OFFSET, segment)
    log.close()
    assert [read, found == [OFFSET], put_back is None] == [name in SOUND] * 3


def test_a_later_version_may_have_a_topic_of_255_bytes() -> None:
    record = bytes(of_version_2(b"t" * 255, OFFSET))
    assert all(judge(record, b"") for name, judge in JUDGES.items() if name != "pull of a queue")
