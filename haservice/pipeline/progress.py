"""A progress bar for Spark jobs: tasks done, tasks known so far, and a rate.

    with progress(spark, "comparing", size=total_bytes):
        frame.collect()

It draws on standard error if that is a terminal, and costs nothing if not.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from haservice.deadline import Deadline
from haservice.service import Service
from haservice.terminal.output import human_rate

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOOK_S = 0.2
STOP_SECONDS = 5.0


class Tasks(NamedTuple):
    """Tasks of all jobs of a group, as far as Spark has planned them."""

    done: int
    known: int


@contextmanager
def progress(spark: SparkSession, title: str, *, size: int | None = None) -> Iterator[None]:
    """Draws while this thread's jobs inside run.  `size`: bytes of their input, for a rate in bytes."""
    context = spark.sparkContext
    group = str(uuid.uuid4())
    context.setJobGroup(group, title)
    try:
        if not sys.stderr.isatty():
            yield
            return
        service = Service("pipeline-progress", _Watch(context, group, title, size))
        service.start()
        try:
            yield
        finally:
            service.stop(Deadline(STOP_SECONDS))
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def tasks_of(context: SparkContext, group: str) -> Tasks:
    """What Spark's status tracker knows of a job group."""
    tracker = context.statusTracker()
    done = known = 0
    for job in tracker.getJobIdsForGroup(group):
        found = tracker.getJobInfo(job)
        for stage in found.stageIds if found is not None else ():
            about = tracker.getStageInfo(stage)
            if about is not None:
                done, known = done + about.numCompletedTasks, known + about.numTasks
    return Tasks(done, known)


def rate_text(tasks: Tasks, seconds: float, size: int | None) -> str:
    """Tasks a second, or the bytes a second that these tasks stand for."""
    seconds = max(seconds, 0.001)
    if size is None or tasks.known == 0:
        return f"{tasks.done / seconds:,.1f} tasks/s"
    return human_rate(int(size * tasks.done / tasks.known / seconds))


class _Watch:
    """The task of `pipeline-progress`."""

    def __init__(self, context: SparkContext, group: str, title: str, size: int | None) -> None:
        self._context = context
        self._group = group
        self._title = title
        self._size = size

    def run(self, stop: threading.Event) -> None:
        started = time.monotonic()
        with click.progressbar(
            length=1,
            label=self._title,
            file=sys.stderr,
            show_pos=True,
            item_show_func=lambda text: text or "",
        ) as bar:
            last = False
            while not last:
                last = stop.wait(LOOK_S)
                try:
                    tasks = tasks_of(self._context, self._group)
                except Exception:
                    return  # Java has ended; whoever waits for the job gets the error
                bar.length = max(tasks.known, 1)
                bar.finished = False  # all planned tasks are done; Spark may plan more
                bar.update(tasks.done - bar.pos, rate_text(tasks, time.monotonic() - started, self._size))

    def wake(self) -> None:
        """Does nothing: the watch waits for `stop` itself."""
