"""Retention: which segments may go, and when; and whether the disk is too full for appends.

    used space    over 90 %              appends are refused until it is less; old segments go at once
                  over 85 %              old segments go at once, of any age, if cleanFileForciblyEnable
                  over diskMaxUsedSpaceRatio, or unknown, or ordered by a person
                                         a pass runs at any hour, not only in those of deleteWhen
    a pass        from the oldest segment on, those last written fileReservedTime ago; it ends at the first
                  that stays, after ten, and before the last one
    thereafter    queues and index begin where the log begins

Of the file systems of log and queues the fuller one counts, in whole percent rounded up; of those over which a log is
spread, the emptiest.  Rules and numbers are those of RocketMQ 4.9.8's CleanCommitLogService.  choose() decides and
touches nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from commitlog.disk.files import Files
from commitlog.log.segment import Segment
from commitlog.log.waiters import Signal
from commitlog.options import LogOptions
from commitlog.upkeep.unstepped_clock import UnsteppedClock

logger = logging.getLogger(__name__)

DISK_FULL_RATIO = 0.90
CLEAN_AT_ONCE_RATIO = 0.85
SEGMENTS_PER_PASS_MAX = 10
# How many passes one order is worth, as in RocketMQ: each deletes a bounded number of files.
ORDERED_PASSES = 20
# A pause between segments: to unlink gigabytes at once may stall a file system.
_PAUSE_S = 0.1
# The holder of appends while the disk is full.
DISK_HOLDER = "disk"
# A broker that has just started has more urgent work.
_FIRST_PASS_S = 60.0


class SegmentList(Protocol):
    """The part of Segments that retention needs."""

    @property
    def items(self) -> tuple[Segment, ...]: ...

    def drop_oldest(self) -> Segment | None: ...


class Log(Protocol):
    """The part of CommitLog that retention needs."""

    @property
    def segments(self) -> SegmentList: ...

    @property
    def start(self) -> int: ...

    def hold_appends(self, reason: str | None, holder: str) -> None: ...


class Expiring(Protocol):
    """Queues or index: they forget what the log no longer has, and return how many files went."""

    def expire(self, physical_offset: int) -> int: ...


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """What the configuration says about deleting."""

    hours: frozenset[int]
    reserved_s: float
    max_used_ratio: float
    clean_forcibly: bool

    @classmethod
    def of(cls, options: LogOptions) -> RetentionRules:
        """Raises ValueError for a deleteWhen that names no hours."""
        return cls(
            hours=parse_hours(options.delete_when),
            reserved_s=options.file_reserved_hours * 3600.0,
            max_used_ratio=min(max(options.disk_max_used_ratio, 10), 95) / 100,
            clean_forcibly=options.clean_forcibly,
        )


@dataclass(frozen=True, slots=True)
class RetentionFacts:
    """What a pass decides by.  `modified_s`: when each segment was last written, from the oldest segment to
    the one that is written now.  `used_ratio`: None if the disk does not say.
    """

    now_s: float
    local_hour: int
    used_ratio: float | None
    modified_s: Sequence[float]
    ordered: bool = False
    """Whether a person ordered a pass."""


def parse_hours(text: str) -> frozenset[int]:
    """The hours of `04;16`.  Raises ValueError for a part that is no hour."""
    hours = set()
    for hour in text.split(";"):
        if not hour.strip():
            continue
        if not hour.strip().isdecimal() or int(hour) > 23:
            raise ValueError(f"{hour!r} is no hour from 0 to 23")
        hours.add(int(hour))
    return frozenset(hours)


def disk_full(used_ratio: float) -> bool:
    return _percent(used_ratio) > round(DISK_FULL_RATIO * 100)


def choose(facts: RetentionFacts, rules: RetentionRules) -> int:
    """How many of the oldest segments go in this pass."""
    used = None if facts.used_ratio is None else _percent(facts.used_ratio)
    short = used is None or used > round(rules.max_used_ratio * 100)
    if not short and not facts.ordered and facts.local_hour not in rules.hours:
        return 0
    at_once = rules.clean_forcibly and used is not None and used > round(CLEAN_AT_ONCE_RATIO * 100)
    count = 0
    for modified_s in facts.modified_s[:-1][:SEGMENTS_PER_PASS_MAX]:
        if not at_once and facts.now_s < modified_s + rules.reserved_s:
            break
        count += 1
    return count


def _percent(ratio: float) -> int:
    """Whole percent, rounded up; errors of arithmetic behind the sixth digit do not count."""
    return math.ceil(round(ratio * 100, 6))


class Retention:
    """Task of thread log-retention.  `used_ratio`: as last measured.  `full`: appends are held."""

    def __init__(
        self,
        options: LogOptions,
        log: Log,
        followers: Sequence[Expiring],
        files: Files,
        *,
        clock_s: Callable[[], float] | None = None,
        local_hour: Callable[[float], int] = lambda now_s: time.localtime(now_s).tm_hour,
        pause_s: float = _PAUSE_S,
        spread: Sequence[Path] = (),
    ) -> None:
        """`spread`: over which directories the log is spread.  `clock_s`: None for an UnsteppedClock."""
        self.used_ratio: float | None = None
        self.full = False
        self.at_work = threading.Lock()
        """Held while files are deleted.  Take it to keep the next pass from starting."""
        self._rules = RetentionRules.of(options)
        self._interval_s = options.clean_interval_ms / 1000
        self._paths = (options.log_path, options.root)
        self._spread = spread
        self._log = log
        self._followers = followers
        self._files = files
        self._clock_s = UnsteppedClock() if clock_s is None else clock_s
        self._local_hour = local_hour
        self._pause_s = pause_s
        self._signal = Signal()
        self._expired_to = -1
        self._trouble: str | None = None
        # How many ordered passes are still to come.
        self._ordered = 0

    def run(self, stop: threading.Event) -> None:
        first_pass_s = time.monotonic() + _FIRST_PASS_S
        while not stop.is_set():
            self.check_disk()
            if time.monotonic() >= first_pass_s or self._ordered:
                self.clean(stop)
            if not stop.is_set():
                self._signal.take(self._interval_s)

    def wake(self) -> None:
        self._signal.give()

    def order_passes(self, count: int = ORDERED_PASSES) -> None:
        """Lets the next `count` passes run at any hour, the first at once.  Any thread."""
        self._ordered = count
        self.wake()

    def configure(self, options: LogOptions) -> None:
        """Changes the rules, from the next pass on.  Raises ValueError.  Any thread."""
        self._rules = RetentionRules.of(options)

    def check_disk(self) -> None:
        """Measures the disk; holds appends while it is full."""
        self.used_ratio = self._measure()
        if self.used_ratio is None:
            return
        full = disk_full(self.used_ratio)
        if full and not self.full:
            reason = f"disk is {self.used_ratio:.1%} used, appends end at {DISK_FULL_RATIO:.0%}"
            logger.error("disk is full, appends are refused used=%.4f", self.used_ratio)
            self._log.hold_appends(reason, DISK_HOLDER)
        elif self.full and not full:
            logger.info("disk has space again used=%.4f", self.used_ratio)
            self._log.hold_appends(None, DISK_HOLDER)
        self.full = full

    def _measure(self) -> float | None:
        try:
            used = [self._files.disk_usage(path).used_ratio for path in self._paths]
            if self._spread:
                used.append(min(self._files.disk_usage(path).used_ratio for path in self._spread))
            return max(used)
        except OSError as error:
            self._tell(f"disk usage unknown: {error}")
            return None

    def clean(self, stop: threading.Event) -> int:
        """Makes one pass; returns how many segments went."""
        try:
            with self.at_work:
                gone = self._drop(choose(self._facts(), self._rules), stop)
                self._ordered = max(0, self._ordered - 1)
                self._expire()
        except OSError as error:
            self._tell(f"deletion failed: {error}")
            return 0
        except Exception:  # the next pass may do better, and appends that a full disk holds have to be let go
            logger.exception("a pass of retention failed")
            return 0
        self._trouble = None
        return gone

    def _facts(self) -> RetentionFacts:
        now_s = self._clock_s()
        modified_s = [
            segment.modified_s() for segment in self._log.segments.items[: SEGMENTS_PER_PASS_MAX + 1]
        ]
        return RetentionFacts(now_s, self._local_hour(now_s), self.used_ratio, modified_s, self._ordered > 0)

    def _drop(self, count: int, stop: threading.Event) -> int:
        for gone in range(count):
            if gone and stop.wait(self._pause_s):
                return gone
            segment = self._log.segments.drop_oldest()
            if segment is None:
                return gone
            self._log_drop(segment.path, segment.end)
        return count

    def _log_drop(self, path: Path, start: int) -> None:
        used = "unknown" if self.used_ratio is None else f"{self.used_ratio:.4f}"
        logger.info("segment deleted path=%s start=%d used=%s", path, start, used)

    def _expire(self) -> None:
        start = self._log.start
        if start == self._expired_to:
            return
        gone = sum([follower.expire(start) for follower in self._followers])
        self._expired_to = start
        if gone:
            logger.info("queue and index files deleted count=%d start=%d", gone, start)

    def _tell(self, trouble: str) -> None:
        """Logs a warning once for each cause, not for each pass."""
        if trouble != self._trouble:
            logger.warning("retention: %s", trouble)
        self._trouble = trouble
