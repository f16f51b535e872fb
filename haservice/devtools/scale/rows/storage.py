"""Rows of the store: the disk that queues take, starts of many queues, their flush, starts after a crash."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from haservice.devtools.scale.measure import disk_of, memory_mb, spent
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.stage import Stage
from haservice.devtools.scale.stores import (
    QUEUE_FILE_BYTES,
    QUEUES_A_TOPIC,
    CountingFiles,
    fill,
    opened,
    queue_name,
    store_at,
)

RESTART_QUEUES = 8
# Passes of the flush of queues in a minute, with the default keys; one of them is thorough.
PASSES = 60
LEAST_PAGES = 2


def queue_disk(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    for size in sizes:
        with stage.scratch() as root:
            with store_at(root, queue_file_bytes=6_000_000) as store:
                fill(store, range(size), size)
                store.close()
            files, disk_mb = disk_of(root / "consumequeue")
            _, index_mb = disk_of(root / "index")
        yield Point(size, files=files, disk_mb=disk_mb, more={"index MB": index_mb})


def start(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A broker's start after a clean stop, until it serves.  The reads are those of its store."""
    for size in sizes:
        with stage.pair(mappedFileSizeConsumeQueue=str(QUEUE_FILE_BYTES)) as pair:
            root = pair.store("broker-a")
            stage.say(f"{size:,} queues are filled")
            _fill_topics(root, size)
            with store_at(root) as store:
                fill(store, range(size), size)
                store.close()
            counted = opened(root, close=True)
            pair.start_nameserver()
            began_s = time.perf_counter()
            broker = pair.start_master()
            seconds = time.perf_counter() - began_s
            yield Point(
                size,
                cpu_s=spent(broker.pid),
                seconds=seconds,
                memory_mb=memory_mb(broker.pid),
                more={
                    "store's CPU s": counted["cpu_s"],
                    "reads a queue": counted["reads of consumequeue"] / size,
                },
            )


def _fill_topics(root: Path, queues: int) -> None:
    """As many topics as the queues have."""
    names = {queue_name(number)[0] for number in range(queues)}
    table = {
        name: {
            "order": False,
            "perm": 6,
            "readQueueNums": QUEUES_A_TOPIC,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": QUEUES_A_TOPIC,
        }
        for name in sorted(names)
    }
    (root / "config").mkdir(parents=True)
    content = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    (root / "config" / "topics.json").write_text(json.dumps(content))


def queue_flush(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """The passes of one minute.  The queues get their messages before the first; they have files already."""
    for size in sizes:
        with stage.scratch() as root, store_at(root, files := CountingFiles()) as store:
            fill(store, range(size), size)
            store.queue_flusher.flush(0, thorough=True)
            fill(store, range(size), size)
            files.calls.clear()
            used_s, began_s = time.process_time(), time.perf_counter()
            for number in range(1, PASSES + 1):
                thorough = number == PASSES
                store.queue_flusher.flush(0 if thorough else LEAST_PAGES, thorough=thorough)
            yield Point(
                size,
                cpu_s=time.process_time() - used_s,
                seconds=time.perf_counter() - began_s,
                more={name: files.calls[name] for name in ("fdatasync", "sync_directory")},
            )


def first_flush(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """The thorough pass that makes new queues durable, with their names."""
    for size in sizes:
        with stage.scratch() as root, store_at(root, files := CountingFiles()) as store:
            fill(store, range(size), size)
            files.calls.clear()
            used_s, began_s = time.process_time(), time.perf_counter()
            store.queue_flusher.flush(0, thorough=True)
            yield Point(
                size,
                cpu_s=time.process_time() - used_s,
                seconds=time.perf_counter() - began_s,
                more={name: files.calls[name] for name in ("fdatasync", "sync_directory")},
            )


def restart(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A store whose process died after a flush of everything, opened twice: so, and after a clean stop."""
    for size in sizes:
        with stage.scratch() as root:
            stage.say(f"{size:,} messages are stored")
            with store_at(root) as store:
                fill(store, range(size), RESTART_QUEUES)
                store.log.flush()
                store.checkpoint.positions.log = store.log.flushed
                store.queue_flusher.flush(0, thorough=True)
            crashed = opened(root, close=True)
            clean = opened(root, close=True)
        yield Point(
            size,
            cpu_s=crashed["cpu_s"],
            seconds=crashed["seconds"],
            more={
                "MB of log read": crashed.get("bytes of log", 0) / 1e6,
                "clean: CPU s": clean["cpu_s"],
                "clean: MB of log": clean.get("bytes of log", 0) / 1e6,
            },
        )


ROWS = (
    Row(
        "queue-disk",
        "n queues get one message each, with files of the default sizes",
        queue_disk,
        sizes=(16, 64, 256, 1_024),
    ),
    Row("start", "a broker with n queues starts after a clean stop", start),
    Row("queue-flush", "n queues get one message each in a minute; the flush of that minute", queue_flush),
    Row("new-queue-flush", "n new queues are flushed, with their names", first_flush),
    Row(
        "crash-restart",
        "n messages of 128 B, all flushed; the process dies, and another opens the store",
        restart,
        sizes=(100_000, 1_000_000, 10_000_000),
    ),
)
