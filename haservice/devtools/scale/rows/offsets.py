"""Rows of consumer offsets: what a broker pays to write them, and a slave to copy them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from haservice.devtools.scale.load import call_all
from haservice.devtools.scale.measure import Watch, disk_of, memory_mb
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.sender import SteadySender
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import UpdateConsumerOffsetHeader

SIZES = (1_000, 10_000, 100_000, 500_000)
GROUPS = 10  # of a topic, which has one queue: the most keys
COMMITS = 100  # a second
WRITING_SECONDS = 16
IDLE_SECONDS = 25
BESIDE_SECONDS = 15
COPIED_SECONDS = 120


def written(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A master with n offsets, of which COMMITS move each second."""
    for size in sizes:
        with stage.pair(flushConsumerOffsetInterval="5000") as pair:
            _seed(pair.store("broker-a"), size)
            pair.start_nameserver()
            broker = pair.start_master()
            with SteadySender(pair.master_addr) as sender:
                time.sleep(IDLE_SECONDS / 2)  # the passes of the start are over
                with Watch(broker.pid, sender=sender) as watch:
                    for second in range(WRITING_SECONDS):
                        call_all(pair.master_addr, _commits(size, second))
                        time.sleep(1)
                assert watch.sends is not None
                p99 = watch.sends.p99_ms
            memory = memory_mb(broker.pid)
            disk = disk_of(pair.store("broker-a") / "config")[1]
            begun = time.perf_counter()
            broker.stop()
            stop = time.perf_counter() - begun
            more = {"p99 send ms": p99, "stop s": stop}
            yield watch.point(size, memory_mb=memory, disk_mb=disk, more=more)


def copied(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A pair whose n offsets stay as they are."""
    for size in sizes:
        with stage.pair() as pair:
            _seed(pair.store("broker-a"), size)
            pair.start_nameserver()
            master, slave = pair.start_master(), pair.start_slave()
            begun = time.perf_counter()
            _await_copy(pair.store("broker-a-s"), size)
            first = time.perf_counter() - begun
            time.sleep(IDLE_SECONDS)  # it looks at the whole table once more, 10 s after the first copy
            with Watch(master.pid) as masters, Watch(slave.pid) as slaves:
                time.sleep(IDLE_SECONDS)
            with SteadySender(pair.master_addr) as sender, Watch(master.pid, sender=sender) as beside:
                time.sleep(BESIDE_SECONDS)
            assert beside.sends is not None
            more = {
                "master %": 100 * masters.cpu_s / masters.seconds,
                "slave %": 100 * slaves.cpu_s / slaves.seconds,
                "p99 send ms": beside.sends.p99_ms,
                "first copy s": first,
            }
            yield beside.point(size, cpu_s=None, seconds=None, memory_mb=memory_mb(slave.pid), more=more)


def _seed(store: Path, size: int) -> None:
    """A store whose consumerOffset.json has `size` offsets, as a broker left it."""
    (store / "config").mkdir(parents=True)
    with (store / "config" / "consumerOffset.json").open("w") as file:
        file.write('{"offsetTable":{')
        for number in range(size):
            topic, group = _names(number)
            file.write(f'{"," if number else ""}"{topic}@{group}":{{0:{10_000 + number}}}')
        file.write("}}")


def _names(number: int) -> tuple[str, str]:
    """Of the topic and the group of an offset."""
    return f"orders-of-shop-{number // GROUPS:06}", f"a-group-that-consumes-{number % GROUPS}"


def _commits(size: int, second: int) -> Iterator[RemotingCommand]:
    for commit in range(COMMITS):
        number = (second * COMMITS + commit) * 7919 % size
        topic, group = _names(number)
        header = UpdateConsumerOffsetHeader(group, topic, 0, 1_000_000 + second)
        yield RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())


def _await_copy(store: Path, size: int) -> None:
    """Until the slave has written all of them, to the file or, if that was there without them, to its journal."""
    files = [store / "config" / name for name in ("consumerOffset.json", "consumerOffset.journal")]
    deadline = time.monotonic() + COPIED_SECONDS
    while sum(file.stat().st_size for file in files if file.exists()) < size * 40:
        if time.monotonic() > deadline:
            raise HAServiceError(f"the slave had no copy of {size} offsets after {COPIED_SECONDS} s")
        time.sleep(0.1)


ROWS = (
    Row(
        "offsets-written",
        f"a master keeps n consumer offsets, {COMMITS} of them move each second for {WRITING_SECONDS} s",
        written,
        SIZES,
    ),
    Row("offsets-copied", "a slave keeps a copy of n consumer offsets, none of which moves", copied, SIZES),
)
