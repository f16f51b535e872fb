"""The one signal of an append: who is handed what was appended, who is woken, and that no appender forgets."""

from __future__ import annotations

import errno
import inspect
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from commitlog.disk.files import Buffer
from commitlog.kernel import native
from commitlog.kernel.records import NewMessage
from commitlog.log.log import CommitLog
from tests.support.failing_files import FailingFiles
from tests.support.messages import SEGMENT_BYTES, batch_body, message, open_log
from tests.support.runs import MessageRun
from tests.support.waiting import PATIENCE_S, wait_until

# With body b"x" * BODY a record is 1000 bytes, so four fit into a segment of 4096 with room for a blank.
BODY = 1000 - 91 - len("TopicTest") - len("TAGS_TagA")


def full() -> NewMessage:
    return message(b"x" * BODY)


class Handed:
    """What a taker was given, as bytes."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, bytes]] = []

    def __call__(self, begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        self.calls.append((begin, end, b"".join(buffers)))


def replica_append(log: CommitLog) -> None:
    log.append_replica(log.end, [b"abc", memoryview(b"defgh")])


def pulled_append(log: CommitLog) -> None:
    log.hold_appends("it takes back what it lost", "test")
    log.append_pulled(log.end, [b"abc", b"defgh"], "test", {})
    log.hold_appends(None, "test")


class EightBytes:
    """Arrivals that write what no check looks at."""

    def write(self, fd: int, start: int, whole: int, end: int, room: int) -> tuple[int, int, int]:
        return end + os.pwrite(fd, b"abcdefgh", end - start), 0, 0


def arrivals_append(log: CommitLog) -> None:
    replica_append(log)  # the segment is there
    log.append_arrivals(EightBytes(), log.end)


# Every way to append.  A new one gets its line here.
APPENDERS: dict[str, Callable[[CommitLog], object]] = {
    "append": lambda log: log.append(message(b"one")),
    "append_batch": lambda log: log.append_batch(message(batch_body([b"one", b"two"]))),
    "append_many": lambda log: log.append_many([message(b"one"), message(b"two")]),
    "append_run": lambda log: log.append_run(MessageRun([message(b"one"), message(b"two")])),
    "append_replica": replica_append,
    "append_pulled": pulled_append,
}
# A slave's, whose log hands nothing on: native code has the bytes.
ARRIVALS = {"append_arrivals": arrivals_append}


def test_every_way_to_append_is_in_this_file() -> None:
    ways = {name for name, _ in inspect.getmembers(CommitLog, callable) if name.startswith("append")}
    assert ways == APPENDERS.keys() | ARRIVALS.keys()


def log_for(way: str, root: Path) -> CommitLog:
    return open_log(root, replica=way in ("append_replica", "append_arrivals"))


@pytest.mark.parametrize("way", APPENDERS)
def test_every_append_hands_on_what_it_appended(way: str, tmp_path: Path) -> None:
    log, handed = log_for(way, tmp_path), Handed()
    log.hand_to(handed)
    for _ in range(2):
        begin = log.end
        APPENDERS[way](log)
        assert log.end > begin
        assert handed.calls.pop() == (begin, log.end, log.read(begin, log.end - begin))
        assert not handed.calls
    log.hand_no_more(handed)
    APPENDERS[way](log)
    assert not handed.calls


@pytest.mark.parametrize("way", APPENDERS)
def test_every_append_wakes_who_follows(way: str, tmp_path: Path) -> None:
    log = log_for(way, tmp_path)
    ends: list[int] = []
    thread = threading.Thread(target=lambda: ends.append(log.wait_beyond(0, float("inf"))))
    thread.start()
    wait_until(lambda: log._followers.waiting)
    APPENDERS[way](log)
    thread.join(PATIENCE_S)
    assert ends == [log.end]


@pytest.mark.skipif(native.core is None, reason="native code receives")
def test_arrivals_wake_who_follows(tmp_path: Path) -> None:
    log = log_for("append_arrivals", tmp_path)
    ends: list[int] = []
    thread = threading.Thread(target=lambda: ends.append(log.wait_beyond(8, float("inf"))))
    thread.start()
    wait_until(lambda: log._followers.waiting)
    arrivals_append(log)
    thread.join(PATIENCE_S)
    assert ends == [16]


def test_a_follower_that_was_handed_all_sleeps_on_and_one_that_was_not_wakes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    has = [0]
    ends: list[int] = []
    thread = threading.Thread(target=lambda: ends.append(log.follow(lambda: has[0], float("inf"))))
    thread.start()
    wait_until(lambda: log._followers.waiting)
    (waiting,) = log._followers.waiting

    def take(begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        if begin == has[0] and end < 500:
            has[0] = end

    log.hand_to(take)
    while log.end < 400:
        log.append(message(b"one"))
        assert list(log._followers.waiting) == [waiting]
    assert not ends
    end = log.append(full()).end
    thread.join(PATIENCE_S)
    assert ends == [end]


def test_a_position_that_went_back_wakes_its_follower_with_the_next_append(tmp_path: Path) -> None:
    """Who was to get the bytes at hand could take only some of them."""
    log = open_log(tmp_path)
    has = [0]

    def take(begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        has[0] = end
        wait_until(lambda: log._followers.waiting)
        has[0] = end - 1

    log.hand_to(take)
    has[0] = 10**9
    ends: list[int] = []
    thread = threading.Thread(target=lambda: ends.append(log.follow(lambda: has[0], float("inf"))))
    thread.start()
    end = log.append(message(b"one")).end
    thread.join(PATIENCE_S)
    assert ends == [end]


def test_a_taker_that_fails_hides_no_append_from_who_follows(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    ends: list[int] = []
    thread = threading.Thread(target=lambda: ends.append(log.wait_beyond(0, float("inf"))))
    thread.start()
    wait_until(lambda: log._followers.waiting)

    def take(begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        raise AssertionError("a bug")

    log.hand_to(take)
    with pytest.raises(AssertionError, match="a bug"):
        log.append(message(b"one"))
    thread.join(PATIENCE_S)
    assert ends == [log.end]


@pytest.mark.parametrize("many", ["", "many", "run"])
def test_bytes_that_went_into_two_segments_are_to_be_read_from_the_log(many: str, tmp_path: Path) -> None:
    log, handed = open_log(tmp_path), Handed()
    for _ in range(3):
        log.append(full())
    log.hand_to(handed)
    if many:
        if many == "run":
            log.append_run(MessageRun([full(), full()]))
        else:
            log.append_many([full(), full()])
        assert handed.calls == [(3000, SEGMENT_BYTES + 1000, b"")]
    else:
        log.append(full())
        log.append(full())
        assert handed.calls[1] == (4000, SEGMENT_BYTES + 1000, b"")


def test_what_was_written_before_the_disk_was_full_is_handed_on(tmp_path: Path) -> None:
    files, handed = FailingFiles(), Handed()
    log = open_log(tmp_path, files=files)
    for _ in range(3):
        log.append(full())
    log.hand_to(handed)
    files.fail("allocate", errno.ENOSPC)
    log.append_many([full(), full()])
    assert handed.calls == [(3000, 4000, b"")]
    handed.calls.clear()
    log.append_many([full()])
    log.append_many([])
    assert not handed.calls


def test_nothing_is_at_hand_of_a_log_that_is_damaged(tmp_path: Path) -> None:
    log, handed = open_log(tmp_path), Handed()
    end = log.append(full()).end
    log.fence_range(0, end, "a test")
    log.hand_to(handed)
    log.append(full())
    assert handed.calls == [(1000, 2000, b"")]


def test_the_signal_costs_no_lock(tmp_path: Path) -> None:
    """A taker may look at the log, and even append."""
    log, handed = open_log(tmp_path), Handed()

    def take(begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        if begin == 0:
            log.append(message(b"another"))

    log.hand_to(take)
    log.hand_to(handed)
    log.append(message(b"one"))
    assert sorted(handed.calls)[0][0] == 0
    assert len(handed.calls) == 2
