"""scripts/bench_append: what the log costs on this machine, each row beside a baseline of the same run.

    append, one by one       against  os.pwrite of the same bytes into a preallocated fresh file
    append, 32 at a time     against  the same baseline
    SYNC_FLUSH, 64 waiting   against  os.pwrite and os.fdatasync of every record
    dispatch                 messages a second into consume queue and index, beside the append rate
    restart                  seconds to open a store of the given size: after a clean stop, after a death with all
                             or nothing of it flushed; of 1 and of 1,024 queues

Every file is fresh in every round; a row shows the median of the rounds.  Absolute figures drift
with the machine; the ratios count.
"""

from __future__ import annotations

import enum
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from commitlog.kernel.records import NewMessage, encode, encode_host, encode_properties
from commitlog.options import FlushDiskType, LogOptions
from commitlog.store import Store
from haservice.terminal.options import CONTEXT, version_option

STORE_HOST = encode_host("127.0.0.1", 10911)
GROUP = 32
WAITING = 64
FLUSH_DEADLINE_S = 30.0


@click.command(context_settings=CONTEXT)
@version_option
@click.option("--mib", default=256, show_default=True, help="Megabytes of log to write in each row.")
@click.option("--body", "body_bytes", default=1024, show_default=True, help="Bytes of body in each message.")
@click.option("--rounds", default=3, show_default=True, help="Rounds; a row shows the median.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where the files go (default: the temporary directory).",
)
def main(mib: int, body_bytes: int, rounds: int, directory: Path | None) -> None:
    """Measures append, flush, dispatch and restart of the commit log against bare system calls."""
    bench = AppendBench(mib, body_bytes, directory)
    click.echo(f"{mib} MiB of {body_bytes} B messages, {rounds} rounds, files fresh in every round\n")
    click.echo(f"{'what':<28}{'baseline':>16}{'ours':>16}{'ours/baseline':>15}")
    base = median(bench.bare_pwrite, rounds)
    one = median(bench.append_one, rounds)
    many = median(bench.append_many, rounds)
    row("append, one by one", base, one)
    row(f"append, {GROUP} at a time", base, many)
    row("dispatch", many, median(bench.dispatch, rounds))
    row(
        f"SYNC_FLUSH, {WAITING} waiting",
        median(bench.bare_fdatasync, rounds),
        median(bench.sync_flush, rounds),
    )
    click.echo()
    for queues in (1, 1024):
        for end in StoreEnd:
            wall_s, cpu_s = zip(*(bench.restart(end, queues) for _ in range(rounds)), strict=True)
            name = f"restart, {queues} queues, {end.value}"
            click.echo(
                f"{name:<42}{statistics.median(wall_s):>8.3f} s, of CPU {statistics.median(cpu_s):.3f} s"
                f"   for {mib} MiB"
            )


class StoreEnd(enum.Enum):
    """How a store ended before it is opened again."""

    CLEAN = "clean"
    FLUSHED = "killed, all flushed"
    UNFLUSHED = "killed, nothing flushed"


def median(measure: Callable[[], float], rounds: int) -> float:
    return statistics.median(measure() for _ in range(rounds))


def row(name: str, baseline: float, ours: float) -> None:
    click.echo(f"{name:<28}{baseline:>12,.0f}/s {ours:>13,.0f}/s {ours / baseline:>13.2f}")


class AppendBench:
    """The rows.  Each method makes its own directory, measures messages a second, and removes it."""

    def __init__(self, mib: int, body_bytes: int, directory: Path | None) -> None:
        self._directory = directory
        properties = encode_properties(
            {"UNIQ_KEY": "7F0000010A5B18B4AAC20000000A0000", "TAGS": "TagA", "WAIT": "true"}
        )
        self._message = NewMessage("bench", 0, os.urandom(body_bytes), properties, born_host=STORE_HOST)
        self._record = bytes(encode(self._message, STORE_HOST))
        self._count = (mib << 20) // len(self._record)

    def bare_pwrite(self) -> float:
        with self._file() as fd:
            size, record = len(self._record), self._record
            started = time.perf_counter()
            for position in range(0, self._count * size, size):
                os.pwrite(fd, record, position)
            return self._count / (time.perf_counter() - started)

    def bare_fdatasync(self) -> float:
        count = min(self._count, 300)
        with self._file() as fd:
            size, record = len(self._record), self._record
            started = time.perf_counter()
            for position in range(0, count * size, size):
                os.pwrite(fd, record, position)
                os.fdatasync(fd)
            return count / (time.perf_counter() - started)

    def append_one(self) -> float:
        with self._store() as store:
            append, message = store.log.append, self._message
            started = time.perf_counter()
            for _ in range(self._count):
                append(message)
            return self._count / (time.perf_counter() - started)

    def append_many(self) -> float:
        with self._store() as store:
            return self._fill(store)

    def dispatch(self) -> float:
        with self._store() as store:
            self._fill(store)
            started = time.perf_counter()
            while store.dispatcher.step():
                pass
            return self._count / (time.perf_counter() - started)

    def sync_flush(self) -> float:
        """WAITING appends wait for one flush, as that many blocked producers would, again and again."""
        count = min(self._count, 20_000)
        flushed = threading.Semaphore(0)
        with self._store(flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
            store.flusher.on_done = lambda waiters, _ok: flushed.release(len(waiters))
            stop = threading.Event()
            thread = threading.Thread(target=store.flusher.run, args=(stop,), name="log-flush")
            thread.start()
            started = time.perf_counter()
            for _ in range(count // WAITING):
                for result in store.log.append_many([self._message] * WAITING):
                    if isinstance(result, Exception):
                        raise result
                    if store.flusher.submit(result.end, time.monotonic() + FLUSH_DEADLINE_S, object()):
                        flushed.release()
                for _ in range(WAITING):
                    flushed.acquire(timeout=FLUSH_DEADLINE_S)
            rate = count / (time.perf_counter() - started)
            stop.set()
            store.flusher.wake()
            thread.join()
            return rate

    def restart(self, end: StoreEnd, queues: int) -> tuple[float, float]:
        """Seconds to open a store again, and seconds of CPU."""
        with self._scratch() as root:
            store = self._open(root)
            self._fill(store, queues)
            while store.dispatcher.step():
                pass
            if end is StoreEnd.FLUSHED:
                store.log.flush()
                store.flusher.step()
                store.queue_flusher.flush(0, thorough=True)
            store.close(clean=end is StoreEnd.CLEAN)
            started, computed = time.perf_counter(), time.process_time()
            again = self._open(root)
            seconds = time.perf_counter() - started, time.process_time() - computed
            again.close(clean=False)
            return seconds

    def _fill(self, store: Store, queues: int = 1) -> float:
        append_many = store.log.append_many
        groups = [
            [replace(self._message, queue_id=queue_id) for queue_id in range(first, first + GROUP)]
            for first in range(0, queues - queues % GROUP, GROUP)
        ] or [[self._message] * GROUP]
        started = time.perf_counter()
        for number in range(self._count // GROUP):
            append_many(groups[number % len(groups)])
        return self._count / (time.perf_counter() - started)

    def _open(self, root: Path, **options: object) -> Store:
        return Store.open(LogOptions(root=root, **options), store_host=STORE_HOST)  # type: ignore[arg-type]

    @contextmanager
    def _store(self, **options: object) -> Iterator[Store]:
        with self._scratch() as root:
            store = self._open(root, **options)
            try:
                yield store
            finally:
                store.close(clean=False)

    @contextmanager
    def _file(self) -> Iterator[int]:
        with self._scratch() as root:
            fd = os.open(root / "bare", os.O_RDWR | os.O_CREAT)
            try:
                os.posix_fallocate(fd, 0, self._count * len(self._record))
                yield fd
            finally:
                os.close(fd)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        root = Path(tempfile.mkdtemp(prefix="bench-append-", dir=self._directory))
        try:
            yield root
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
