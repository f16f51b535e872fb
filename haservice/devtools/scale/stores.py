"""Stores for the rows about them: filled without a broker, and opened in a process of their own.

python -m haservice.devtools.scale.stores ROOT    opens the store, prints one line of JSON, dies or closes it
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from commitlog.disk.files import OSFiles
from commitlog.kernel.records import NewMessage, encode_host, encode_properties
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.terminal.output import echo_line

STORE_HOST = encode_host("127.0.0.1", 10911)
# Small files, so that a build that allocates them in full has room for 50,000.
QUEUE_FILE_BYTES = 20_000
QUEUES_A_TOPIC = 8
GROUP = 512
_OPEN_S = 600.0


class CountingFiles(OSFiles):
    """The disk; counts the calls of each operation, and of reads those of queue files and the log's bytes."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._rooms: dict[int, str] = {}

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._rooms[fd] = "log" if path.parent.name == "commitlog" else path.parents[2].name
        return fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        room = self._rooms.get(fd, "")
        self.calls[f"reads of {room}"] += 1
        self.calls[f"bytes of {room}"] += len(data)
        return data

    def fdatasync(self, fd: int) -> None:
        self.calls["fdatasync"] += 1
        super().fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        self.calls["sync_directory"] += 1
        super().sync_directory(path)


def queue_name(number: int) -> tuple[str, int]:
    """Topic and queue id of the n-th queue."""
    return f"topic-{number // QUEUES_A_TOPIC}", number % QUEUES_A_TOPIC


def options_of(root: Path, queue_file_bytes: int = QUEUE_FILE_BYTES) -> LogOptions:
    return LogOptions(root=root, queue_file_bytes=queue_file_bytes)


def fill(store: Store, numbers: Iterable[int], queues: int, body: bytes = b"x" * 128) -> None:
    """Appends a message for each number, to the queues by turns, and dispatches all."""
    some: list[NewMessage] = []
    for number in numbers:
        topic, queue_id = queue_name(number % queues)
        properties = encode_properties({"UNIQ_KEY": f"7F0000010A5B18B4AAC2{number:012X}", "TAGS": "TagA"})
        some.append(NewMessage(topic, queue_id, body, properties, born_host=STORE_HOST))
        if len(some) == GROUP:
            store.log.append_many(some)
            some.clear()
    if some:
        store.log.append_many(some)
    while store.dispatcher.step():
        pass


@contextmanager
def store_at(root: Path, files: OSFiles | None = None, **sizes: int) -> Any:
    """An open store, whose process dies at the end of the block unless it was closed."""
    store = Store.open(options_of(root, **sizes), store_host=STORE_HOST, files=files)
    try:
        yield store
    finally:
        store.close(clean=False)


def opened(root: Path, *, close: bool = False) -> dict[str, float]:
    """What it costs a process to open the store, which it then closes cleanly, or leaves as if it had died."""
    words = [sys.executable, "-m", __name__, str(root), *(["--close"] if close else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_OPEN_S, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@click.command()
@click.argument("root", type=click.Path(path_type=Path))
@click.option("--close", is_flag=True, help="Closes the store cleanly.")
def main(root: Path, close: bool) -> None:
    """Opens the store at ROOT."""
    files = CountingFiles()
    used_s, began_s = time.process_time(), time.perf_counter()
    store = Store.open(options_of(root), store_host=STORE_HOST, files=files)
    found = {"cpu_s": time.process_time() - used_s, "seconds": time.perf_counter() - began_s, **files.calls}
    store.close(clean=close)
    echo_line(json.dumps(found))


if __name__ == "__main__":
    main()
