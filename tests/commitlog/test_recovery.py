"""What a start makes of a log that ended badly: whole records stay, the torn tail goes aside."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.disk.files import Buffer, OSFiles
from commitlog.errors import LogNotWritable, StoreUnreadable
from commitlog.log.log import CommitLog
from commitlog.log.segments import Segments
from commitlog.recovery.recovery import RecoveryReport, recover
from tests.support.failing_files import Crash, FailingFiles
from tests.support.messages import (
    SEGMENT_BYTES,
    STORE_HOST,
    STORE_MS,
    Clock,
    log_options,
    message,
    open_log,
    records_of,
    whole_log,
)


def written(root: Path, bodies: list[bytes], clock: Clock | None = None) -> list[int]:
    """A log with these bodies; the ends of its records.  The clock ticks once for each."""
    clock = clock or Clock()
    log = open_log(root, clock_ms=clock)
    ends = []
    for body in bodies:
        ends.append(log.append(message(body)).end)
        clock.now_ms += 1
    log.segments.close()
    return ends


def recovered(
    root: Path, files: FailingFiles | None = None, *, segment_bytes: int = SEGMENT_BYTES, **how: object
) -> tuple[RecoveryReport, CommitLog]:
    options = log_options(root, segment_bytes=segment_bytes, replica=how.get("replica", False))
    disk = files or OSFiles()
    segments = Segments(disk, options.log_path, options.segment_bytes)
    segments.load()
    report = recover(segments, cut_directory=root / "cut", files=disk, **how)  # type: ignore[arg-type]
    return report, CommitLog(
        options,
        segments,
        report.end,
        store_host=STORE_HOST,
        clock_ms=Clock(),
        files=disk,
        flushed=report.durable,
    )


def segment_path(root: Path, number: int = 0) -> Path:
    return root / "commitlog" / f"{number * SEGMENT_BYTES:020d}"


def poke(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def bodies_of(log: CommitLog) -> list[bytes]:
    return [record.body for record in records_of(log)]


def test_an_empty_store_recovers_to_nothing(tmp_path: Path) -> None:
    report, log = recovered(tmp_path)
    assert (report.start, report.end, report.records) == (0, 0, 0)
    assert log.append(message()).physical_offset == 0


@pytest.mark.parametrize("clean", [True, False])
def test_whole_records_stay(tmp_path: Path, clean: bool) -> None:
    bodies = [bytes([n]) * (n * 61 % 1500) for n in range(40)]
    ends = written(tmp_path, bodies)
    report, log = recovered(tmp_path, clean=clean)
    assert report.end == ends[-1]
    assert (report.cut_bytes, report.cut_file) == (0, None)
    assert report.last_timestamp_ms == STORE_MS + 39
    assert bodies_of(log) == bodies
    assert not (tmp_path / "cut").exists()


def test_the_last_record_cut_at_every_byte_is_cut_off_and_kept_aside(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second", b"third"])
    whole = segment_path(tmp_path).read_bytes()
    for at in range(ends[1], ends[2]):
        segment_path(tmp_path).write_bytes(whole[:at].ljust(SEGMENT_BYTES, b"\0"))
        report, log = recovered(tmp_path, clean=False)
        assert report.end == ends[1]
        assert bodies_of(log) == [b"first", b"second"]
        tail = whole[ends[1] : at].rstrip(b"\0")
        assert report.cut_bytes == len(tail)
        if tail:
            assert report.cut_file is not None
            assert report.cut_file.read_bytes() == tail
            assert report.cut_file.name.startswith(f"{ends[1]:020d}-")
        assert segment_path(tmp_path).read_bytes() == whole[: ends[1]].ljust(SEGMENT_BYTES, b"\0")
        log.close()


def test_no_flipped_bit_of_the_last_body_passes(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second"])
    whole = segment_path(tmp_path).read_bytes()
    body_at = whole.index(b"second")
    for at in range(body_at, body_at + 6):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            segment_path(tmp_path).write_bytes(flipped)
            report, log = recovered(tmp_path, clean=False)
            assert report.end == ends[0]
            assert bodies_of(log) == [b"first"]
            log.close()


def test_recovering_twice_is_as_recovering_once(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second"])
    poke(segment_path(tmp_path), ends[0] + 90, b"\xff")
    first, _ = recovered(tmp_path, clean=False)
    second, log = recovered(tmp_path, clean=False)
    assert (first.end, second.end) == (ends[0], ends[0])
    assert second.cut_bytes == 0
    assert log.append(message(b"again")).physical_offset == ends[0]
    assert len(list((tmp_path / "cut").iterdir())) == 1


def test_what_is_cut_twice_at_one_offset_is_kept_twice(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second"])
    for number in (1, 2):
        poke(segment_path(tmp_path), ends[0], b"torn")
        report, log = recovered(tmp_path, clean=False)
        log.close()
        assert report.cut_file == tmp_path / "cut" / f"{ends[0]:020d}-{number}"


def test_a_cut_off_record_does_not_come_back(tmp_path: Path) -> None:
    # The story of RocketMQ's zombie records: A B C, B damaged, cut; a new B of the same size; C is back.
    ends = written(tmp_path, [b"aaaa", b"bbbb", b"cccc"])
    poke(segment_path(tmp_path), ends[0] + 88, b"\xff")
    _, log = recovered(tmp_path, clean=False)
    log.append(message(b"BBBB"))
    log.segments.close()
    _, log = recovered(tmp_path, clean=False)
    assert bodies_of(log) == [b"aaaa", b"BBBB"]


# -- damage below the tail -------------------------------------------------------------------------


def test_after_a_clean_stop_damage_before_sound_records_is_fenced_and_nothing_changed(
    tmp_path: Path,
) -> None:
    ends = written(tmp_path, [b"first", b"second", b"third"])
    poke(segment_path(tmp_path), ends[0] + 90, b"\xff")
    before = segment_path(tmp_path).read_bytes()
    report, log = recovered(tmp_path)
    assert report.fences == ((ends[0], ends[1], "its body does not match its CRC"),)
    assert (report.end, log.end, report.cut_bytes) == (ends[2], ends[2], 0)
    assert segment_path(tmp_path).read_bytes() == before
    assert not (tmp_path / "cut").exists()


def test_damage_before_later_segments_is_fenced(tmp_path: Path) -> None:
    ends = written(tmp_path, [bytes([n]) * 1000 for n in range(9)])
    poke(segment_path(tmp_path, 1), ends[5] - SEGMENT_BYTES - 500, b"\xff")
    for how in ({"clean": True}, {"clean": False, "durable_before_ms": STORE_MS + 9}):
        report, log = recovered(tmp_path, **how)
        # The segment's last record: its blank, which nothing but the record before leads to, is fenced, too.
        assert [fence[:2] for fence in report.fences] == [(ends[4], 2 * SEGMENT_BYTES)]
        assert report.end == ends[8]
        log.close()
    assert len(list((tmp_path / "commitlog").iterdir())) == 3


def test_after_a_crash_records_behind_a_hole_that_were_never_flushed_are_torn_tail(tmp_path: Path) -> None:
    # A power cut keeps any subset of the unflushed pages.
    ends = written(tmp_path, [bytes([n]) * 1000 for n in range(9)])
    whole = b"".join(segment_path(tmp_path, n).read_bytes() for n in range(3))
    poke(segment_path(tmp_path, 1), ends[4] - SEGMENT_BYTES, bytes(100))
    kept = bytearray(whole[ends[4] : ends[8]])
    kept[:100] = bytes(100)
    report, log = recovered(tmp_path, clean=False, durable_before_ms=STORE_MS + 5)
    assert report.end == ends[4]
    assert bodies_of(log) == [bytes([n]) * 1000 for n in range(5)]
    assert report.cut_file is not None
    assert report.cut_file.read_bytes() == kept
    assert not segment_path(tmp_path, 2).exists()


def test_after_a_crash_damage_before_a_flushed_record_is_fenced(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second", b"third"])
    poke(segment_path(tmp_path), ends[0] + 90, b"\xff")
    report, _ = recovered(tmp_path, clean=False, durable_before_ms=STORE_MS + 3)
    assert [fence[:2] for fence in report.fences] == [(ends[0], ends[1])]
    assert report.end == ends[2]


def test_damage_that_covers_a_whole_segment_is_fenced_segment_by_segment(tmp_path: Path) -> None:
    ends = written(tmp_path, [bytes([n]) * 1000 for n in range(9)])
    poke(segment_path(tmp_path), ends[1], b"\xff" * 100)
    poke(segment_path(tmp_path, 1), 0, b"\xff" * SEGMENT_BYTES)
    poke(segment_path(tmp_path, 2), 500, b"\xff")
    report, _ = recovered(tmp_path)
    assert [fence[:2] for fence in report.fences] == [
        (ends[1], SEGMENT_BYTES),
        (SEGMENT_BYTES, 2 * SEGMENT_BYTES),
        (2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES + 1109),
    ]
    assert report.end == ends[8]


def test_more_damage_than_can_be_fenced_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.recovery.recovery.FENCES_MAX", 2)
    ends = written(tmp_path, [b"x" * 100] * 10)
    for number in (1, 3, 5):
        poke(segment_path(tmp_path), ends[number] + 90, b"\xff")
    before = segment_path(tmp_path).read_bytes()
    with pytest.raises(
        StoreUnreadable, match=rf"more than 2 damaged places from {ends[1]} on.*mqadmin reinit"
    ):
        recovered(tmp_path)
    assert segment_path(tmp_path).read_bytes() == before


def test_after_a_clean_stop_the_queues_prove_a_damaged_last_record(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second"])
    poke(segment_path(tmp_path), ends[0] + 90, b"\xff")
    report, _ = recovered(tmp_path, proven_end=ends[1])
    assert ([fence[:2] for fence in report.fences], report.end) == ([(ends[0], ends[1])], ends[1])
    report, _ = recovered(tmp_path, clean=False, proven_end=ends[1])
    assert (report.fences, report.end) == ((), ends[0]), "of an unflushed tail they prove nothing"


def test_a_replicas_segment_whose_beginning_is_lost_costs_nothing_behind(tmp_path: Path) -> None:
    ends = written(tmp_path, [bytes([n]) * 1000 for n in range(9)])
    poke(segment_path(tmp_path, 1), 0, bytes(100))
    report, _ = recovered(tmp_path, replica=True)
    assert [fence[:2] for fence in report.fences] == [(SEGMENT_BYTES, SEGMENT_BYTES + 1109)]
    assert report.end == ends[8]


def test_what_this_process_left_clean_is_not_looked_at_again(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second"])
    poke(segment_path(tmp_path), 90, b"\xff")
    report, log = recovered(tmp_path, trusted_end=ends[1])
    assert (report.records, report.scanned_from, report.end, report.fences) == (0, ends[1], ends[1], ())
    log.close()
    for wrong in (ends[0], SEGMENT_BYTES + 1, 0):
        report, log = recovered(tmp_path, trusted_end=wrong)
        assert (report.scanned_from, report.end, len(report.fences)) == (0, ends[1], 1)
        log.close()
    report, log = recovered(tmp_path, trusted_end=ends[1], clean=False)
    assert report.scanned_from == 0


def test_records_that_a_stock_broker_cut_off_and_left_in_its_file_are_no_evidence(tmp_path: Path) -> None:
    clock = Clock()
    ends = written(tmp_path, [b"first", b"second", b"third"], clock)
    # Stock truncates to the end of "first" without erasing, then writes something longer over "second".
    poke(segment_path(tmp_path), ends[0], bytes(SEGMENT_BYTES - ends[0]))
    third = written(tmp_path / "other", [b"first", b"second", b"third"], Clock(STORE_MS))
    old = segment_path(tmp_path / "other").read_bytes()
    clock.now_ms += 1000
    log = open_log(tmp_path, clock_ms=clock)
    end = log.append(message(b"new one")).end
    log.segments.close()
    poke(segment_path(tmp_path), end, old[end : third[2]])
    report, log = recovered(tmp_path)
    assert bodies_of(log) == [b"first", b"new one"]
    assert report.cut_bytes > 0


def test_a_body_that_holds_a_record_is_no_record(tmp_path: Path) -> None:
    written(tmp_path / "inner", [b"inner"])
    inner = segment_path(tmp_path / "inner").read_bytes()[:200]
    ends = written(tmp_path, [b"first", b"x" * 10 + inner])
    poke(segment_path(tmp_path), ends[0] + 88, b"\xff")
    report, log = recovered(tmp_path)
    assert report.end == ends[0]
    assert bodies_of(log) == [b"first"]


# -- segments --------------------------------------------------------------------------------------


def test_empty_segments_ahead_are_removed_and_one_that_begins_at_the_end_stays(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"x" * 1000] * 3)
    for number in (1, 2):
        segment_path(tmp_path, number).write_bytes(bytes(SEGMENT_BYTES))
    report, log = recovered(tmp_path, clean=False)
    assert report.end == ends[-1]
    assert not segment_path(tmp_path, 1).exists()
    log.segments.close()
    (tmp_path / "two").mkdir()
    log = open_log(tmp_path / "two")
    for _ in range(3):
        log.append(message(b"x" * 1000))
    log.append(message(b"x" * 1000))
    log.segments.close()
    poke(segment_path(tmp_path / "two", 1), 0, bytes(SEGMENT_BYTES))
    for _ in range(2):
        report, log = recovered(tmp_path / "two", clean=False)
        assert report.end == SEGMENT_BYTES
        assert segment_path(tmp_path / "two", 1).exists()
        log.segments.close()


def test_a_log_ends_before_a_blank_that_nothing_follows(tmp_path: Path) -> None:
    master = open_log(tmp_path / "m")
    for _ in range(4):
        master.append(message(b"x" * 1000))
    replica = open_log(tmp_path / "s", replica=True)
    replica.append_replica(0, [master.read(0, SEGMENT_BYTES)])
    assert replica.end == SEGMENT_BYTES
    replica.close()
    report, log = recovered(tmp_path / "s", clean=False)
    assert report.end == 3 * 1109
    assert (report.cut_bytes, report.cut_file) == (0, None)
    assert bodies_of(log) == [b"x" * 1000] * 3


@pytest.mark.parametrize("there", [8, 9, 700])
@pytest.mark.parametrize("clean", [True, False])
def test_a_replica_that_died_amid_a_blank_takes_no_zeros_of_its_next_file_for_the_rest(
    tmp_path: Path, there: int, clean: bool
) -> None:
    written(tmp_path / "m", [b"x" * 1000] * 4)
    # A stock master may have anything behind a blank's head.
    poke(segment_path(tmp_path / "m"), 3 * 1109 + 8, b"anything" * 80)
    first, second = (segment_path(tmp_path / "m", number).read_bytes() for number in range(2))
    replica = open_log(tmp_path / "s", replica=True)
    replica.append_replica(0, [first[: 3 * 1109 + there]])
    replica.segments.prepare()
    names = segment_path(tmp_path / "s").parent
    assert len(list(names.iterdir())) == 2
    replica.segments._spare = None  # a killed process does not remove it
    report, log = recovered(tmp_path / "s", clean=clean, replica=True)
    assert (report.end, len(list(names.iterdir()))) == (3 * 1109, 1)
    log.append_replica(report.end, [first[report.end :]])
    log.append_replica(SEGMENT_BYTES, [second[:1109]])
    log.segments.close()
    report, _ = recovered(tmp_path / "s", clean=clean, replica=True)
    assert report.end == SEGMENT_BYTES + 1109
    assert segment_path(tmp_path / "s").read_bytes() == first


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_holds_nothing_keeps_the_offset_it_begins_at(tmp_path: Path, clean: bool) -> None:
    (tmp_path / "commitlog").mkdir()
    segment_path(tmp_path, 7).write_bytes(bytes(SEGMENT_BYTES))
    report, log = recovered(tmp_path, clean=clean)
    assert report.end == 7 * SEGMENT_BYTES
    assert log.append(message()).physical_offset == 7 * SEGMENT_BYTES


def test_a_clean_start_looks_at_three_segments(tmp_path: Path) -> None:
    written(tmp_path, [b"x" * 1000] * 15)
    report, _ = recovered(tmp_path)
    assert report.scanned_from == 2 * SEGMENT_BYTES
    assert report.records == 9


@pytest.mark.parametrize(
    ("safe_before_ms", "first"),
    [
        (0, 0),
        (STORE_MS, 0),
        (STORE_MS + 3, 1),
        (STORE_MS + 8, 2),
        (STORE_MS + 9, 3),
        (STORE_MS + 10**9, 3),
    ],
)
def test_a_start_after_a_crash_goes_back_to_where_the_checkpoint_is_sure(
    tmp_path: Path, safe_before_ms: int, first: int
) -> None:
    written(tmp_path, [b"x" * 1000] * 15)  # five segments of three; the clock ticks once a record
    report, log = recovered(tmp_path, clean=False, safe_before_ms=safe_before_ms)
    assert report.scanned_from == first * SEGMENT_BYTES
    assert len(records_of(log)) == 15


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_never_written_is_not_read(tmp_path: Path, clean: bool) -> None:
    """Linux would read ahead of it, and it would count as data at the next start: 1 GiB of zeros, read three times."""

    class Reads(OSFiles):
        read_to = 0

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            data = super().pread(fd, size, offset)
            self.read_to = max(self.read_to, offset + len(data))
            return data

    log = open_log(tmp_path, segment_bytes=8 << 20)
    end = log.append(message(b"x" * 5000)).end
    log.segments.close()
    segments = Segments(files := Reads(), tmp_path / "commitlog", 8 << 20)
    segments.load()
    report = recover(segments, cut_directory=tmp_path / "cut", files=files, clean=clean)
    assert (report.end, report.records, report.cut_bytes) == (end, 1, 0)
    # The file system knows whole pages, or a few at once.
    assert files.read_to <= 256 << 10
    segments.close()


def test_crc_is_looked_at_only_if_wanted(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second"])
    poke(segment_path(tmp_path), ends[0] + 90, b"\xff")
    report, _ = recovered(tmp_path, clean=False, crc=False)
    assert report.end == ends[1]


class ForgetfulKernel(FailingFiles):
    """A failed fdatasync leaves its pages clean, and the disk without them, as on Linux.  Of one file."""

    def __init__(self) -> None:
        super().__init__()
        self.dirty: set[int] = set()
        self.on_disk: set[int] = set()

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        super().pwrite(fd, data, offset)
        self.dirty.update(range(offset, offset + len(data)))

    def fdatasync(self, fd: int) -> None:
        pages, self.dirty = self.dirty, set()
        super().fdatasync(fd)
        self.on_disk |= pages


def test_what_a_failed_flush_left_off_the_disk_is_there_after_a_restart(tmp_path: Path) -> None:
    kernel, clock = ForgetfulKernel(), Clock()
    log = open_log(tmp_path, files=kernel, clock_ms=clock)
    proven = log.append(message(b"flushed")).end
    log.flush()
    clock.now_ms += 10
    log.append(message(b"never"))
    log.append(message(b"flushed"))
    kernel.fail("fdatasync", errno.EIO, times=1)
    with pytest.raises(LogNotWritable):
        log.flush()
    log.close()
    assert kernel.on_disk == set(range(proven))
    assert not kernel.dirty
    report, log = recovered(tmp_path, kernel, clean=False, durable_before_ms=STORE_MS + 5)
    assert report.records == 3
    assert log.flushed <= proven
    assert log.flush() == log.end
    assert kernel.on_disk == set(range(log.end))


def test_what_the_checkpoint_covers_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.recovery.recovery._CHUNK_BYTES", 1000)
    monkeypatch.setattr("commitlog.log.writable_log._AGAIN_BYTES", 1000)
    ends = written(tmp_path, [b"x" * 300] * 9)  # one segment; the clock ticks once a record
    _, log = recovered(tmp_path, kernel := ForgetfulKernel(), clean=False, durable_before_ms=STORE_MS + 5)
    log.flush()
    assert ends[1] < min(kernel.on_disk) <= ends[4]
    assert max(kernel.on_disk) == ends[-1] - 1
    for clean in (True, False):
        _, log = recovered(tmp_path, kernel := ForgetfulKernel(), clean=clean, durable_before_ms=STORE_MS + 9)
        log.flush()
        assert kernel.on_disk == set()


def test_a_report_says_what_was_done(tmp_path: Path) -> None:
    ends = written(tmp_path, [b"first", b"second"])
    poke(segment_path(tmp_path), ends[0] + 90, b"\xff")
    report, _ = recovered(tmp_path, clean=False)
    for part in ("stop=unclean", f"end={ends[0]}", f"cut_bytes={ends[1] - ends[0]}", "CRC", "cut/0000"):
        assert part in str(report)


# -- power cuts and pieces -------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 6000)), min_size=2, max_size=14),
    st.integers(0, 13),
    st.sets(st.integers(0, 31)),
)
@settings(max_examples=60)
def test_whatever_pages_a_power_cut_takes_flushed_records_stay_and_no_torn_one_passes(
    sizes: list[tuple[int, int]], flushed: int, lost: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root, clock = Path(directory), Clock()
        log = open_log(root, clock_ms=clock, segment_bytes=32768)
        ends = []
        for number, (body, properties) in enumerate(sizes):
            text = f"A\x01{number}{'p' * properties}".encode()
            ends.append(log.append(message(bytes([number + 1]) * body, properties=text)).end)
            clock.now_ms += 1
        whole = records_of(log)
        log.segments.close()
        flushed = min(flushed, len(sizes) - 1)
        safe = ends[flushed]
        for page in lost:
            start = page * 4096
            if start >= safe and start < 32768 * -(-ends[-1] // 32768):
                path = root / "commitlog" / f"{start - start % 32768:020d}"
                poke(path, start % 32768, bytes(4096))
        report, log = recovered(
            root, segment_bytes=32768, clean=False, durable_before_ms=STORE_MS + flushed + 1
        )
        found = records_of(log)
        assert found == whole[: len(found)]
        assert len(found) > flushed
        log.segments.close()
        again, log = recovered(root, segment_bytes=32768, clean=False)
        assert (again.end, again.cut_bytes) == (report.end, 0)
        log.segments.close()


@pytest.mark.parametrize("piece", [1, 100, 1000, 1109, 4095])
def test_a_scan_in_small_pieces_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr("commitlog.recovery.recovery._CHUNK_BYTES", piece)
    monkeypatch.setattr("commitlog.log.segment._BLOCK_BYTES", max(piece, 8))
    bodies = [bytes([n + 1]) * (n * 61 % 1500) for n in range(30)]
    ends = written(tmp_path, bodies)
    report, log = recovered(tmp_path, clean=False)
    assert (report.end, report.records) == (ends[-1], 30)
    assert bodies_of(log) == bodies
    log.segments.close()
    poke(segment_path(tmp_path), 0, b"\xff")
    report, log = recovered(tmp_path, clean=False, durable_before_ms=STORE_MS + 30)
    assert [fence[:2] for fence in report.fences] == [(0, ends[0])]
    assert report.end == ends[-1]


# -- crashes ---------------------------------------------------------------------------------------


def test_a_crash_at_any_operation_of_a_recovery_loses_no_whole_record(tmp_path: Path) -> None:
    bodies = [bytes([n]) * 1000 for n in range(9)]
    written(tmp_path / "origin", bodies)
    original = {path.name: path.read_bytes() for path in (tmp_path / "origin" / "commitlog").iterdir()}
    for change in range(100):
        root = tmp_path / str(change)
        (root / "commitlog").mkdir(parents=True)
        for name, content in original.items():
            (root / "commitlog" / name).write_bytes(content)
        poke(segment_path(root, 1), 1200, b"\xff")
        files = FailingFiles()
        files.crash_at(change)
        try:
            recovered(root, files, clean=False)
            crashed = False
        except Crash:
            crashed = True
        _, log = recovered(root, clean=False)
        assert bodies_of(log) == bodies[:4]
        assert any(path.stat().st_size > 1000 for path in (root / "cut").iterdir())
        log.append(message(b"new"))
        log.segments.close()
        _, log = recovered(root, clean=False)
        assert bodies_of(log) == [*bodies[:4], b"new"]
        if not crashed:
            return
    raise AssertionError("a recovery of more than 100 operations")


def test_a_crash_at_any_operation_of_an_append_keeps_every_acknowledged_message(tmp_path: Path) -> None:
    bodies = [bytes([n]) * (300 + 150 * n) for n in range(8)]
    for change in range(100):
        root = tmp_path / str(change)
        files = FailingFiles()
        log = open_log(root, files)
        files.crash_at(change)
        acknowledged = []
        try:
            for body in bodies:
                log.append(message(body))
                acknowledged.append(body)
                if len(body) % 4 == 0:
                    log.flush()
                log.prepare_next_segment()
        except Crash:
            pass
        _, again = recovered(root, clean=False)
        assert bodies_of(again) == acknowledged
        appended = again.append(message(b"after"))
        assert again.read_record(appended.physical_offset)
        assert whole_log(again).count(b"after") == 1
        again.segments.close()
        if acknowledged == bodies:
            return
    raise AssertionError("more than 100 operations for eight appends")
