"""What goes to a slave, and who sends it: pushes by whoever appends, all else by the writer."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.disk.files import Buffer
from commitlog.log.log import CommitLog
from haservice.replication.master.outgoing import PUSH_BYTES_MAX, Outgoing, rest_of, transfers_of
from haservice.replication.master.progress import SlaveProgress
from haservice.replication.rates_and_backoff import Growth
from haservice.replication.wire.protocol import HEADER_BYTES, TRANSFER_HEADER
from haservice.replication.wire.transport import PlainTransport, send_each_frame
from tests.support.replication import fill_raw, message, open_log, pattern
from tests.support.waiting import PATIENCE_S, wait_until

# -- frames, and what is left of them ---------------------------------------------------------------


def bodies(wire: bytes) -> list[tuple[int, bytes]]:
    """The frames of a stream."""
    frames = []
    while wire:
        offset, size = TRANSFER_HEADER.unpack_from(wire)
        frames.append((offset, wire[HEADER_BYTES : HEADER_BYTES + size]))
        wire = wire[HEADER_BYTES + size :]
    return frames


def test_what_fits_is_one_frame() -> None:
    pieces, ends = transfers_of(100, [b"abc", bytearray(b"de")], 5)
    assert bodies(b"".join(pieces)) == [(100, b"abcde")]
    assert ends == [105]


def test_a_frame_ends_between_records_where_it_can() -> None:
    pieces, ends = transfers_of(100, [b"aaaa", b"bb", b"ccccc", b"dddddddddddd", b"e"], 8)
    assert bodies(b"".join(pieces)) == [
        (100, b"aaaabb"),
        (106, b"ccccc"),
        (111, b"dddddddd"),
        (119, b"dddde"),
    ]
    assert ends == [106, 111, 119, 124]


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1), st.integers(1, 40), st.data())
def test_frames_cut_anywhere_and_their_rest_are_the_frames(
    buffers: list[bytes], batch: int, data: st.DataObject
) -> None:
    begin, body = 2**33, b"".join(buffers)
    pieces, ends = transfers_of(begin, buffers, batch)
    wire = b"".join(pieces)
    frames = bodies(wire)
    assert b"".join(part for _, part in frames) == body
    assert [offset + len(part) for offset, part in frames] == ends
    assert all(0 < len(part) <= batch for _, part in frames)
    sent = data.draw(st.integers(0, len(wire)))
    rest = rest_of(begin, ends, sent)
    if rest is None:
        assert sent == len(wire)
        return
    assert rest.begin < rest.end
    assert wire[:sent] + rest.header + body[rest.begin - begin : rest.end - begin] == b"".join(
        TRANSFER_HEADER.pack(offset, len(part)) + part
        for offset, part in frames
        if offset + len(part) <= rest.end
    )


# -- a slave that takes what it is told to take -------------------------------------------------------


class Link:
    """A link that keeps what it is given.  `room` is how much a push finds at once; None: all of it."""

    secured = False
    peer_name = "slave"

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.wire = bytearray()
        self.threads: list[str] = []
        self.broken: OSError | None = None
        self.ended = False
        self.on_push: Callable[[], None] = lambda: None

    @property
    def prompt(self) -> Link:
        return self

    def _take(self, data: bytes) -> int:
        self.threads.append(threading.current_thread().name)
        self.wire += data
        return len(data)

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        self.on_push()
        if self.broken is not None:
            raise self.broken
        return self._take(b"".join(buffers)[: self.room])

    def send_frame_now(self, offset: int, body: Buffer) -> int:
        return self.send_now((TRANSFER_HEADER.pack(offset, len(body)), body))

    def send(self, data: bytes, flags: int = 0) -> int:
        return self._take(data)

    def send_file(self, fd: int, position: int, count: int) -> int:
        return self._take(os.pread(fd, count, position))

    def send_frames(self, fd: int, position: int, offset: int, count: int, most: int) -> None:
        send_each_frame(self, fd, position, offset, count, most)

    def shut_down(self) -> None:
        self.ended = True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not for who sends")


class Bench:
    """A slave's sending half over a log of the pattern's bytes, in which it is level at 1000."""

    def __init__(self, root: Path, room: int | None = None, **options: Any) -> None:
        self.log = open_log(root, replica=True)
        fill_raw(self.log, 1000)
        self.link = Link(room)
        self.progress = SlaveProgress("slave", "slave")
        self.progress.sent = self.progress.sent_from = self.progress.reported = 1000
        self.outgoing = Outgoing(
            self.link,  # type: ignore[arg-type]  # as much of it as is used
            self.log,
            self.progress,
            Growth(),
            **{"batch_bytes": 500, "heartbeat_s": 600.0, **options},
        )

    def grow(self, size: int) -> None:
        fill_raw(self.log, self.log.end + size)

    def write(self) -> None:
        """The writer's turn, until nothing is due."""
        with self.outgoing._turn:
            while self.outgoing.send_some():
                pass

    def complete(self) -> bool:
        """Whether the wire holds frames of just what the log got."""
        position = 1000
        for offset, body in bodies(bytes(self.link.wire)):
            assert offset == position
            assert body == pattern(offset, offset + len(body))
            position += len(body)
        return position == self.log.end == self.progress.sent


@contextmanager
def writer(outgoing: Outgoing, log: CommitLog) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=outgoing.run, args=(stop,), name="writer")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        log.wake()
        thread.join(PATIENCE_S)


def test_an_append_to_a_level_slave_is_sent_by_whoever_appended(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.outgoing.open()
    with writer(bench.outgoing, bench.log):
        wait_until(lambda: bench.log._followers.waiting, "the writer waits")
        (waiting,) = bench.log._followers.waiting
        for _ in range(3):
            bench.grow(400)
        assert list(bench.log._followers.waiting) == [waiting]  # it has slept on
        assert bench.complete()
    assert set(bench.link.threads) == {threading.current_thread().name}


def test_what_a_push_cannot_send_the_writer_is_woken_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, room=0)
    bench.outgoing.open()
    with writer(bench.outgoing, bench.log):
        for _ in range(3):
            wait_until(lambda: bench.log._followers.waiting, "the writer waits")
            bench.grow(400)
            wait_until(lambda: len(bench.link.wire) == (HEADER_BYTES + 400) * (bench.log.end - 1000) // 400)
    assert bench.complete()


@pytest.mark.parametrize("room", range(0, 3 * (HEADER_BYTES + 500) + 1, 31))
def test_a_push_that_stops_anywhere_is_finished_before_anything_else(tmp_path: Path, room: int) -> None:
    bench = Bench(tmp_path, room)
    bench.outgoing.open()
    bench.grow(1500)
    whole = room >= 3 * (HEADER_BYTES + 500)
    assert (bench.outgoing.position() == bench.log.end) is whole
    bench.link.room = None
    bench.grow(100)  # not past the rest
    bench.write()
    assert bench.complete()


def test_a_heartbeat_does_not_cut_a_frame_that_a_push_began(tmp_path: Path) -> None:
    bench = Bench(tmp_path, room=20, heartbeat_s=0.0)
    bench.outgoing.open()
    bench.grow(100)
    with bench.outgoing._turn:
        bench.outgoing.send_some()
        bench.outgoing.send_some()
    assert bodies(bytes(bench.link.wire)) == [(1000, pattern(1000, 1100)), (1100, b"")]


def test_a_slave_that_is_behind_gets_all_from_the_writer(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.grow(100)
    bench.outgoing.open()
    bench.grow(100)
    assert not bench.link.wire
    bench.write()
    assert bench.complete()


def test_nothing_is_pushed_before_the_first_report_or_after_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.outgoing.push(1000, 1100, [bytes(100)])
    bench.outgoing.open()
    bench.outgoing.close()
    bench.grow(100)
    bench.outgoing.push(1000, 1100, [bytes(100)])
    assert not bench.link.wire
    assert bench.progress.sent == 1000


@pytest.mark.parametrize(
    "case", ["too large", "not at hand", "damage", "lingering", "turn taken", "too many"]
)
def test_what_is_not_pushed_waits_for_the_writer(tmp_path: Path, case: str) -> None:
    options = {"lingering": {"linger_s": 0.001}, "too many": {"batch_bytes": 1}}.get(case, {})
    bench = Bench(tmp_path, **options)
    bench.outgoing.open()
    size = {"too large": PUSH_BYTES_MAX + 1}.get(case, 600)
    if case == "damage":
        bench.log.fence_range(100, 200, "a test")
    if case == "not at hand":
        bench.outgoing.push(1000, 1100, ())
        bench.log.hand_no_more(bench.outgoing.push)
    with bench.outgoing._turn if case == "turn taken" else threading.Lock():
        if case == "too large":
            bench.outgoing.push(1000, 1000 + size, [bytes(size)])
        else:
            bench.grow(size)
    assert not bench.link.wire
    assert bench.outgoing.position() == 1000
    bench.write()
    assert bench.complete()


class Pauses(threading.Event):
    """Stands for the writer's stop: at each pause the log grows by the next of `sizes`, and after the last the
    writer is stopped."""

    def __init__(self, bench: Bench, sizes: Sequence[int]) -> None:
        super().__init__()
        self.bench = bench
        self.left = list(sizes)
        self.sent: list[int] = []
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert not self.bench.log._followers.waiting, "an append that comes now wakes nobody"
        self.sent.append(self.bench.progress.sent)
        self.pauses.append(timeout)
        if self.left:
            self.bench.grow(self.left.pop(0))
        else:
            self.set()
        return self.is_set()


def test_what_comes_to_a_resting_link_goes_at_once_and_what_follows_gathers(tmp_path: Path) -> None:
    bench = Bench(tmp_path, linger_s=0.25)
    bench.outgoing.open()
    bench.grow(100)
    pauses = Pauses(bench, [50, 60])
    bench.outgoing.run(pauses)
    assert pauses.sent == [1100, 1150, 1210]
    assert pauses.pauses == [0.25] * 3
    assert bench.complete()


def test_a_slave_that_is_far_behind_is_sent_all_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haservice.replication.master.outgoing.GATHER_BYTES", 1000)
    monkeypatch.setattr("haservice.replication.master.outgoing.TRANSFERS_PER_WINDOW", 1)
    bench = Bench(tmp_path, linger_s=0.25)
    bench.outgoing.open()
    bench.grow(3000)  # in frames of 500
    pauses = Pauses(bench, [])
    bench.outgoing.run(pauses)
    assert pauses.sent == [1000 + 2500]


def test_a_link_that_rests_is_woken_by_the_first_append(tmp_path: Path) -> None:
    bench = Bench(tmp_path, linger_s=0.001)
    bench.outgoing.open()
    with writer(bench.outgoing, bench.log):
        for size in (100, 200, 300):
            wait_until(lambda: bench.log._followers.waiting, "the writer waits")
            bench.grow(size)
            wait_until(bench.complete)
    assert [len(body) for _, body in bodies(bytes(bench.link.wire))] == [100, 200, 300]


def test_bytes_that_were_cut_off_again_are_not_pushed(tmp_path: Path) -> None:
    """The appender's thread comes late: the log is shorter by then."""
    bench = Bench(tmp_path)
    bench.outgoing.open()
    bench.outgoing.push(1000, 1100, [bytes(100)])
    assert not bench.link.wire
    assert bench.progress.sent == 1000


def test_an_ack_may_come_before_the_push_returns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    seen = []
    bench.link.on_push = lambda: seen.append(bench.progress.sent)
    bench.outgoing.open()
    bench.grow(100)
    assert seen == [1100]


def test_a_link_that_breaks_under_a_push_is_ended_and_the_append_is_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.outgoing.open()
    bench.link.broken = ConnectionResetError(104, "reset")
    bench.grow(100)
    assert bench.link.ended
    assert bench.outgoing.failed is bench.link.broken
    bench.link.broken = None
    bench.grow(100)
    assert not bench.link.wire


def test_two_slaves_one_level_one_behind(tmp_path: Path) -> None:
    level = Bench(tmp_path)
    behind = Link()
    progress = SlaveProgress("other", "other")
    progress.sent = 900
    other = Outgoing(
        behind,  # type: ignore[arg-type]
        level.log,
        progress,
        Growth(),
        batch_bytes=500,
        heartbeat_s=600.0,
    )
    level.outgoing.open()
    other.open()
    level.grow(100)
    assert level.complete()
    assert not behind.wire
    with other._turn:
        other.send_some()
    assert bodies(bytes(behind.wire)) == [(900, pattern(900, 1100))]
    level.grow(100)
    assert bodies(bytes(behind.wire))[1:] == [(1100, pattern(1100, 1200))]


def test_appenders_pushes_and_writer_make_one_stream(tmp_path: Path) -> None:
    """Two threads that append, a socket that is often full, a writer: the slave sees the log, in its order."""
    log = open_log(tmp_path, segment_bytes=1 << 20)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    progress = SlaveProgress("slave", "slave")
    outgoing = Outgoing(PlainTransport(ours), log, progress, Growth(), batch_bytes=700, heartbeat_s=0.0005)
    received = bytearray()
    done = threading.Event()

    def append(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(200):
            log.append_many([message(source.randrange(1500)) for _ in range(source.randrange(1, 4))])

    def receive() -> None:
        source, position = random.Random(0), 0
        while data := theirs.recv(1 + source.randrange(3000)):
            received.extend(data)
            while len(received) - position >= HEADER_BYTES:
                position += HEADER_BYTES + TRANSFER_HEADER.unpack_from(received, position)[1]
            if position == len(received) and progress.sent == log.end and appended.is_set():
                done.set()

    appended = threading.Event()
    outgoing.open()
    threads = [threading.Thread(target=append, args=(seed,)) for seed in range(2)]
    slave = threading.Thread(target=receive)
    with writer(outgoing, log):
        slave.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        appended.set()
        assert done.wait(PATIENCE_S)  # a heartbeat makes it look
    outgoing.close()
    ours.close()
    slave.join(PATIENCE_S)
    theirs.close()
    position = 0
    for offset, body in bodies(bytes(received)):
        assert offset == position
        assert body == log.read(offset, len(body))
        position += len(body)
    assert position == log.end
