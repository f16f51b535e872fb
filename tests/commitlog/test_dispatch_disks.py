"""Dispatch over disks that fail: at the n-th of many writes, amid a pass, and under the mapped index."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitlog.disk.files import NotAllWritten, OSFiles, Write
from commitlog.kernel import native
from commitlog.log.log import CommitLog
from tests.commitlog.test_dispatching import Followers
from tests.support.builds import native_core
from tests.support.failing_files import FailingFiles
from tests.support.messages import message, open_log

# -- disks that fail -------------------------------------------------------------------------------


@pytest.fixture
def full() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("failing", range(3))
def test_of_many_writes_those_before_the_one_that_fails_are_whole(
    tmp_path: Path, build: str, full: int, failing: int
) -> None:
    fds = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(3)]
    writes: list[Write] = [(fd, b"%d" % fd * 1000, 7) for fd in fds]
    whole = [b"%d" % fd * 1000 for fd in fds]
    OSFiles().pwrite_all(writes[:1])
    writes[failing] = (full, b"x", 0)
    with pytest.raises(NotAllWritten) as caught:
        OSFiles().pwrite_all(writes)
    assert (caught.value.written, caught.value.errno) == (failing, errno.ENOSPC)
    found = [os.pread(fd, 9999, 7) for fd in fds]
    assert found[:failing] == whole[:failing]
    assert not any(found[max(1, failing) :])
    for fd in fds:
        os.close(fd)


class FullAt(OSFiles):
    """The n-th write of each call finds the disk full."""

    def __init__(self, full: int) -> None:
        self.full = full
        self.at: int | None = None

    def pwrite_all(self, writes: list[Write]) -> None:
        if self.at is not None and self.at < len(writes):
            writes = writes.copy()
            writes[self.at] = (self.full, *writes[self.at][1:])
        super().pwrite_all(writes)


def eight_queues(root: Path, log: CommitLog, files: OSFiles) -> Followers:
    """Each with one message, and its file."""
    followers = Followers(root, log, files)
    for queue_id in range(8):
        log.append(message(queue_id=queue_id))
    assert followers.dispatcher.step()
    return followers


@pytest.mark.parametrize("failing", range(8))
def test_a_disk_that_is_full_at_one_queue_holds_up_the_pass_and_nothing_is_lost(
    tmp_path: Path, build: str, full: int, failing: int
) -> None:
    log, files = open_log(tmp_path), FullAt(full)
    followers = eight_queues(tmp_path, log, files)
    position = followers.dispatcher.position
    for queue_id in range(8):
        log.append(message(queue_id=queue_id))
    files.at = failing
    with pytest.raises(OSError, match="No space left") as caught:
        followers.dispatcher.step()
    assert caught.value.filename == str(tmp_path / f"consumequeue/TopicTest/{failing}/00000000000000000000")
    assert followers.dispatcher.position == position
    assert ends(followers) == [2] * failing + [1] * (8 - failing)
    files.at = 0
    with pytest.raises(OSError, match="No space left"):
        followers.dispatcher.step()
    files.at = None
    assert followers.dispatcher.step()
    assert ends(followers) == [2] * 8
    assert [arrival[2] for arrival in followers.arrivals[-1]] == [2] * 8
    followers.queues.flush()
    assert followers.queues.durable_position == log.end


def ends(followers: Followers) -> list[int]:
    return [queue.max_offset for _, queue in sorted(followers.queues.items())]


class Amid(FailingFiles):
    """Something happens amid the writes of a pass."""

    happens: Callable[[], object] | None = None

    def pwrite_all(self, writes: list[Write]) -> None:
        super().pwrite_all(writes)
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()


def test_a_queue_emptied_or_deleted_while_it_is_written_is_as_if_that_came_first(
    tmp_path: Path, build: str
) -> None:
    log, files = open_log(tmp_path), Amid()
    followers = eight_queues(tmp_path, log, files)
    queues = followers.queues
    for happens in (
        lambda: queues.empty_expired(log.end, lambda _topic, _queue_id: False),
        lambda: queues.delete_topic("TopicTest"),
    ):
        done = [log.append(message(queue_id=queue_id)) for queue_id in range(8)]
        files.happens = happens
        old = [queue for _, queue in sorted(queues.items())]
        assert followers.dispatcher.step()
        if queues.items():
            assert [queue.min_offset for queue in old] == [a.queue_offset for a in done]
            assert [queue.read(queue.min_offset, 9)[0].physical_offset for queue in old] == [
                appended.physical_offset for appended in done
            ]
        else:
            assert [queue.max_offset for queue in old] == [0] * 8
    log.append(message(queue_id=3))
    assert followers.dispatcher.step()
    assert [(queue.min_offset, queue.max_offset) for _, queue in queues.items()] == [(3, 4)]


def test_more_queues_are_touched_than_descriptors_are_kept(
    tmp_path: Path, build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.disk.descriptors.descriptors_max", lambda: 4)
    log, files = open_log(tmp_path, segment_bytes=1 << 20), OSFiles()
    followers = Followers(tmp_path, log, files)
    for number in range(3):
        for queue_id in range(50):
            log.append(message(queue_id=queue_id))
        assert followers.dispatcher.step()
        assert ends(followers) == [number + 1] * 50
        assert len(followers.queues._descriptors._open) <= 4


# -- a disk that fails under a mapping -------------------------------------------------------------

TRUNCATED = """
import faulthandler, mmap, os, sys
from pathlib import Path
from commitlog.disk.descriptors import Descriptors
from commitlog.disk.files import OSFiles
from commitlog.index.index_file import IndexFile, Puts

def made(name):
    files = OSFiles()
    file = IndexFile(Path(name), 100, 400, files, Descriptors(files))
    file.create(None)
    return file

puts = [(number * 7919 % 1000, 100 + number, 10_000 * number) for number in range(390)]
file, sound = made("file"), made("sound")
sound.put(Puts(puts))
file.put(Puts(puts[:10]))
size = os.path.getsize("file")
os.truncate("file", 4096)
for handler in (lambda: None, faulthandler.enable, faulthandler.disable):
    handler()
    try:
        file.put(Puts(puts[file.next_entry - 1 :]))
    except OSError as error:
        assert error.filename == "file", error
        print(error.errno, file.next_entry)
os.truncate("file", size)
file.put(Puts(puts[file.next_entry - 1 :]))
print(Path("file").read_bytes() == Path("sound").read_bytes())
"""


def run(script: str, cwd: Path, pure: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != native.PURE}
    if pure:
        environment[native.PURE] = "1"
    else:
        native_core()
    return subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_a_disk_that_fails_under_the_index_is_an_error_and_costs_no_key(tmp_path: Path) -> None:
    done = run(TRUNCATED, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    # Entries begin at 440: number 182 ends behind the page.
    assert done.stdout.splitlines() == [f"{errno.EIO} 182"] * 3 + ["True"]


def test_without_the_kernel_it_is_an_error_too(tmp_path: Path) -> None:
    """Nothing is mapped then.  Slots end at 440: that of number 11 is at 400."""
    done = run(TRUNCATED.replace('"file", 4096', '"file", 400'), tmp_path, pure=True)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines()[:3] == [f"{errno.EIO} 11"] * 3


@pytest.mark.parametrize("handler", ["", "faulthandler.enable()"])
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("how", ["mapped[8000]", "os.kill(os.getpid(), signal.SIGBUS)"])
def test_any_other_sigbus_goes_where_it_went_before(
    tmp_path: Path, handler: str, order: str, how: str
) -> None:
    guarded = TRUNCATED[: TRUNCATED.index("for handler")] + "file.next_entry\n"
    script = "\n".join(
        (
            "import faulthandler, os, signal",
            handler if order == "before" else "",
            guarded,
            handler if order == "after" else "",
            "mapped = mmap.mmap(os.open('sound', os.O_RDWR), 0)",
            "os.truncate('sound', 100)",
            how,
        )
    )
    done = run(script, tmp_path)
    assert done.returncode == -signal.SIGBUS, done.stderr
    assert ("Fatal Python error: Bus error" in done.stderr) == bool(handler)
