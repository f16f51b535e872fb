"""Small real file systems that fill up: queues and index, which grow by pieces, fail at a write and go on."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.index.files import IndexFiles
from commitlog.kernel import native
from commitlog.log.log import CommitLog
from commitlog.options import LogOptions
from commitlog.queues.consume_queue import ConsumeQueues
from commitlog.store import Store
from tests.chaos.power_disk import Disk, NoDisks
from tests.support.builds import native_core
from tests.support.left_open import close_files
from tests.support.messages import STORE_HOST, Clock, log_options, message, open_log

MEGABYTES = 8
DELAY_LEVELS = LogOptions().message_delay_levels


class SmallDisk:
    """A mounted file system; `fill` leaves no byte of it, and `make_room` ends that."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        self._ballast = mount / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for step in (1 << 20, 1 << 16, 4096, 4096):
                with pytest.raises(OSError, match="No space left"):
                    _write_on(file, step)
                # What was reserved for it and not needed is free again.
                os.fsync(file.fileno())

    def make_room(self) -> None:
        self._ballast.unlink()


def _write_on(file: io.FileIO, step: int) -> None:
    while True:
        file.write(bytes(step))


def _tmpfs(root: Path, closing: ExitStack) -> SmallDisk:
    root.mkdir()
    words = ("mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(root))
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs of our own: {done.stderr.strip()}")
    closing.callback(subprocess.run, ("umount", "-l", str(root)), check=True, timeout=30)
    return SmallDisk(root)


def _ext4(root: Path, closing: ExitStack) -> SmallDisk:
    try:
        disk = Disk(root, MEGABYTES)
    except NoDisks as error:
        pytest.skip(str(error))
    closing.callback(disk.close)
    return SmallDisk(disk.mount)


@pytest.fixture(params=[_tmpfs, _ext4], ids=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    make: Callable[[Path, ExitStack], SmallDisk] = request.param
    with ExitStack() as closing:
        yield make(tmp_path / "disk", closing)
        close_files(tmp_path / "disk")  # or it could not be unmounted


def bytes_on_disk(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*"))


def test_256_queues_with_a_message_each_take_a_few_pages_at_the_sizes_of_rocketmq(tmp_path: Path) -> None:
    default = LogOptions()
    options = log_options(
        tmp_path,
        segment_bytes=1 << 20,
        queue_file_bytes=default.queue_file_bytes,
        index_slots=default.index_slots,
        index_entries=default.index_entries,
    )
    store = Store.open(options, store_host=STORE_HOST)
    for queue_id in range(256):
        store.log.append(message(queue_id=queue_id, properties={"UNIQ_KEY": f"key-{queue_id}"}))
    assert store.close()
    queues = list((tmp_path / "consumequeue").rglob("0*0"))
    assert [path.stat().st_size for path in queues if path.is_file()] == [6_000_000] * 256
    assert bytes_on_disk(tmp_path / "consumequeue") <= 4 << 20
    (index,) = (tmp_path / "index").iterdir()
    assert index.stat().st_size == 420_000_040
    assert bytes_on_disk(tmp_path / "index") <= 22 << 20


class Queues:
    """Queues of a log, on the small disk."""

    def __init__(self, root: Path, log: CommitLog) -> None:
        self.root = root
        self.queues = ConsumeQueues(root / "consumequeue", 1_000_000, OSFiles())
        self.queues.load()
        self.dispatcher = Dispatcher(log, self.queues, None, delay_levels=DELAY_LEVELS)

    def contents(self) -> dict[str, bytes]:
        paths = [path for path in self.root.rglob("*") if path.is_file() and "consumequeue" in path.parts]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in paths}


def test_a_queue_that_finds_no_room_for_its_next_page_fails_at_the_write_and_goes_on_with_room(
    disk: SmallDisk, tmp_path: Path, build: str
) -> None:
    log = open_log(tmp_path / "log", segment_bytes=1 << 20)
    small, large = Queues(disk.mount, log), Queues(tmp_path / "large", log)
    for _ in range(2):
        for queue_id in range(8):
            log.append(message(queue_id=queue_id))
        assert small.dispatcher.step()
    disk.fill()
    for _ in range(250):  # which needs a second page of each
        for queue_id in range(8):
            log.append(message(queue_id=queue_id))
    position = small.dispatcher.position
    for _ in range(3):
        with pytest.raises(OSError, match="No space left") as caught:
            small.dispatcher.step()
        assert caught.value.errno == errno.ENOSPC
        assert str(caught.value.filename).startswith(str(disk.mount / "consumequeue" / "TopicTest"))
        assert small.dispatcher.position == position
    disk.make_room()
    for followers in (small, large):
        while followers.dispatcher.step():
            pass
    small.queues.flush()
    assert small.queues.durable_position == log.end
    assert [queue.max_offset for _, queue in small.queues.items()] == [252] * 8
    assert small.contents() == large.contents()


INDEX = """
import sys
from pathlib import Path
from commitlog.disk.files import OSFiles
from commitlog.kernel import native
from tests.commitlog.test_full_disk import SmallDisk, STORE_MS, open_index

root, disk = Path(sys.argv[2]), SmallDisk(Path(sys.argv[1]))
index = open_index(disk.mount / "index")
sound = open_index(root / "sound")
entered = 0

def put(target, count):
    for number in range(entered, entered + count):
        target.put("TopicTest", f"key-{number}", 100 * number, STORE_MS + number)

def write(target):
    try:
        target.write()
    except OSError as error:
        return error.errno
    return 0

put(index, 10)
print(write(index))
disk.fill()
for target in (index, sound):
    entered = 0 if target is sound else 10
    put(target, 90_000 - entered)
for _ in range(3):
    print(write(index))
disk.make_room()
print(write(index), write(sound), len(index.pending))
files = [next(iter(path.iterdir())).read_bytes() for path in (disk.mount / "index", root / "sound")]
print(files[0] == files[1])
"""
STORE_MS = Clock().now_ms


def open_index(root: Path) -> IndexFiles:
    """Of 4 MB."""
    index = IndexFiles(root, 1000, 200_000, OSFiles(), Clock())
    index.load(crashed=False, checkpoint_ms=0)
    return index


@pytest.mark.parametrize("pure", [False, True], ids=["native", "python"])
def test_an_index_that_finds_no_room_for_its_next_entries_is_an_error_and_no_signal(
    disk: SmallDisk, tmp_path: Path, pure: bool
) -> None:
    if not pure:
        native_core()
    environment = {name: value for name, value in os.environ.items() if name != native.PURE}
    done = subprocess.run(
        [sys.executable, "-c", INDEX, str(disk.mount), str(tmp_path)],
        env={**environment, **({native.PURE: "1"} if pure else {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != -signal.SIGBUS
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split() == ["0", *[str(errno.ENOSPC)] * 3, "0", "0", "0", "True"]


def test_no_index_is_begun_without_room_for_its_slots(disk: SmallDisk) -> None:
    index = open_index(disk.mount / "index")
    index.put("TopicTest", "key", 0, STORE_MS)
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        index.write()
    assert list((disk.mount / "index").iterdir()) == []
    disk.make_room()
    index.write()
    assert len(index.query("TopicTest", "key", 9, 0, 1 << 62)) == 1
