"""HA samples: how replication stood, second by second, in a small rolling file.

    <storePathRootDir>/hasamples/ha.jsonl      the newest lines; .1 to .7 beside it are older, 4 MiB each

`mqpipeline lag-report` draws them, and the pipeline's sources read in the newest line how far a running
broker's log is confirmed.  A line is one JSON object:

    ts          when, ms of the wall clock
    boot        which machine's kernel, since it started: a reader on that machine can ask the store's lock
    role epoch  ASYNC_MASTER, SYNC_MASTER or SLAVE; number of the log's last epoch, -1 if none is kept
    start end   the log's bounds;  flushed: up to where it is on the disk
    confirmed   the read mark: up to where consumers may read, always the end of a whole record
    push2slave  the furthest true ack of any slave;  inSync: how many slaves are in sync
    slaves      of a master: addr id ack lagBytes lagSeconds rate inSync of each that is connected
    master      of a slave: addr state offset masterEnd lagBytes rate of its link, else null
    crc         CRC-32 of the line without this field: a line that rotted is passed over

`id` is a slave's replica id, or its host if it is a stock broker; `ack`, `masterEnd` and `lagBytes` are -1
while they are not known; rates are bytes a second.  While nothing changes there is a line every 10 s.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Protocol

import orjson

from commitlog.disk.seal import sealed_line
from commitlog.disk.store_lock import boot_id
from commitlog.log.log import wall_clock_ms
from haservice.log_throttle import LogThrottle
from haservice.replication.status import HAStatus, MasterLinkStatus, SlaveStatus

logger = logging.getLogger(__name__)

DIRECTORY = "hasamples"
FILE = "ha.jsonl"
FILES = 8
FILE_BYTES_MAX = 4 * 1024 * 1024
# How often a line comes while nothing changes: if the newest one is much older, the broker has stopped.
STILL_S = 10.0

Sample = dict[str, Any]


class Log(Protocol):
    @property
    def flushed(self) -> int: ...


class SampledDispatch(Protocol):
    @property
    def position(self) -> int: ...


class Replication(Protocol):
    def status(self) -> HAStatus: ...

    def readable_end(self) -> int: ...


class HASamples:
    """Task of the thread `ha-samples`: looks every interval, and writes what has changed.

    If it cannot write the file it logs that, and tries again with the next line.
    """

    def __init__(
        self,
        root: Path,
        log: Log,
        dispatcher: SampledDispatch,
        replication: Replication,
        interval_s: float,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = root / DIRECTORY / FILE
        self._log = log
        self._dispatcher = dispatcher
        self._replication = replication
        self._interval_s = interval_s
        self._clock_ms = clock_ms
        self._clock_s = clock_s
        self._boot = boot_id()
        self._woken = threading.Event()
        self._file: RotatingFileHandler | None = None
        self._last: Sample = {}
        self._written_s = float("-inf")
        self._throttle = LogThrottle()

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self.look()
                self._woken.wait(self._interval_s)
        finally:
            self.close()

    def wake(self) -> None:
        self._woken.set()

    @property
    def age_s(self) -> float:
        """How old the newest line is; infinite before the first."""
        return self._clock_s() - self._written_s

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def look(self) -> None:
        """Takes one sample, and writes it if it has something new, or the last one is old."""
        # Only whole records are dispatched, and consumers see none before.
        confirmed = min(self._replication.readable_end(), self._dispatcher.position)
        flushed = self._log.flushed
        found = sample(self._replication.status(), flushed=flushed, confirmed=confirmed)
        now_s = self._clock_s()
        if found == self._last and now_s - self._written_s < STILL_S:
            return
        line = sealed_line(orjson.dumps({"ts": self._clock_ms(), "boot": self._boot, **found})).decode()
        try:
            self._append(line)
        except OSError as error:
            if self._throttle.ready():
                logger.error("HA sample not written, trying on path=%s reason=%s", self._path, error)
            return
        self._last, self._written_s = found, now_s

    def _append(self, line: str) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            torn = not _ends_with_a_line(self._path)
            self._file = _RollingFile(
                self._path, maxBytes=FILE_BYTES_MAX, backupCount=FILES - 1, encoding="utf-8"
            )
            line = f"\n{line}" if torn else line
        self._file.emit(logging.makeLogRecord({"msg": line}))


def _ends_with_a_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read() in (b"", b"\n")
    except FileNotFoundError:
        return True


class _RollingFile(RotatingFileHandler):
    """Raises errors that logging would only print."""

    def _raise(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        assert error is not None
        raise error

    handleError = _raise  # noqa: N815 - logging's own name


def sample(status: HAStatus, *, flushed: int, confirmed: int) -> Sample:
    """A whole line except its time.  Pure."""
    return {
        "role": status.role,
        "epoch": status.epoch,
        "start": status.log_start,
        "end": status.log_end,
        "flushed": flushed,
        "confirmed": confirmed,
        "push2slave": status.push2slave_max_offset,
        "inSync": status.in_sync_slaves,
        "slaves": [_slave(one) for one in status.slaves],
        "master": None if status.master is None else _master(status.master),
    }


def _slave(slave: SlaveStatus) -> Sample:
    return {
        "addr": slave.broker_addr or slave.addr,
        "id": slave.replica_id or slave.addr.rpartition(":")[0],
        "ack": slave.ack,
        "lagBytes": slave.lag_bytes if slave.ack >= 0 else -1,
        "lagSeconds": round(slave.lag_seconds, 3),
        "rate": round(slave.bytes_per_second),
        "inSync": slave.in_sync,
    }


def _master(link: MasterLinkStatus) -> Sample:
    return {
        "addr": link.master_addr,
        "state": link.state,
        "offset": link.offset,
        "masterEnd": link.master_end,
        "lagBytes": max(0, link.master_end - link.offset) if link.master_end >= 0 else -1,
        "rate": round(link.bytes_per_second),
    }
