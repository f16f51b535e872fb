"""Stats: the broker's counters, cheap enough for the path of every message.

The counters belong to the remoting loop, which also calls `sample` once a second.  A reader in another thread
may see one counter a message ahead of another, which does no harm.  `table` gives RocketMQ's texts for
request 28 (its StoreStatsService): always three numbers, of 10, 60 and 600 seconds, because `clusterList`
parses the first.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from commitlog.log.log import wall_clock_ms
from haservice.broker.stats.traffic import Traffic

TPS_WINDOWS_S = (10, 60, 600)

# RocketMQ's classes of put times: upper bounds in ms, and their labels.
PUT_BOUNDS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)
PUT_LABELS = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
assert len(PUT_LABELS) == len(PUT_BOUNDS_MS) + 1

# One bucket per power of two of microseconds, up to more than an hour.
LATENCY_BUCKETS = 33


class Sample(NamedTuple):
    """The counters at one moment of the monotonic clock."""

    at_s: float
    puts: int
    found: int
    missed: int
    transferred: int


class Stats:
    """Counts puts and gets of one broker since its start; `traffic` counts by topic, queue and group.

    As in RocketMQ a put is whatever the broker stores: a delayed message is one when it is stored, and another
    one when it is delivered.  A pull that is held is a miss at once, and a get once it has its answer.
    """

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.boot_timestamp_ms = clock_ms()
        self.traffic = Traffic(monotonic=monotonic)
        self.puts = 0
        self.put_bytes = 0
        self.puts_failed = 0
        # Sends that were answered with an error, and sends that are stored without the proofs of their mode: how many
        # by response code.
        self.refused: dict[int, int] = {}
        self.unproven: dict[int, int] = {}
        self.gets_found = 0
        self.gets_missed = 0
        self.transferred = 0
        self.transferred_bytes = 0
        # enableScheduleMessageStats: whether delayed messages count for their topics.
        self.counts_delivered = True
        self._clock_ms = clock_ms
        self._monotonic = monotonic
        self._started_s = monotonic()
        self._put_time_max_s = 0.0
        self._get_time_max_s = 0.0
        self._put_classes = [0] * len(PUT_LABELS)
        self._put_latencies = [0] * LATENCY_BUCKETS
        self._put_seconds = 0.0
        # Filled by the thread that delivers delayed messages: messages, bytes, seconds.
        self._delivered: deque[tuple[int, int, float]] = deque()
        self._samples: deque[Sample] = deque(maxlen=TPS_WINDOWS_S[-1] + 2)
        # Midnights: (puts, transferred) at the start of yesterday and of today.
        self._yesterday = self._today = (0, 0)
        self._day = time.localtime(self.boot_timestamp_ms / 1000).tm_yday
        self.sample()

    # For every message

    def put(self, messages: int, size_bytes: int, seconds: float) -> None:
        """One write that took `seconds` appended `messages` of `size_bytes` in all."""
        self.puts += messages
        self.put_bytes += size_bytes
        self._put_time_max_s = max(self._put_time_max_s, seconds)
        slow = bisect_left(PUT_BOUNDS_MS, int(seconds * 1000)) if seconds >= 0.001 else 0
        self._put_classes[slow] += messages
        bucket = int(seconds * 1e6).bit_length()
        self._put_latencies[bucket if bucket < LATENCY_BUCKETS else LATENCY_BUCKETS - 1] += messages
        self._put_seconds += seconds * messages

    def delivered(self, queue_id: int, topics: Mapping[str, tuple[int, int]], seconds: float) -> None:
        """One write that took `seconds` brought delayed messages of this queue to their topics: how many to each,
        and their size.  Any thread.
        """
        count = sum(count for count, _ in topics.values())
        self._delivered.append((count, sum(size for _, size in topics.values()), seconds))
        if self.counts_delivered:
            self.traffic.delivered(queue_id, topics)

    def _settle(self) -> None:
        while self._delivered:
            self.put(*self._delivered.popleft())

    def refuse(self, code: int) -> None:
        """A send was answered with this error."""
        self.refused[code] = self.refused.get(code, 0) + 1

    def lack_proof(self, code: int, sends: int) -> None:
        """So many sends are stored, and answered with this code for the proof that they lack."""
        self.unproven[code] = self.unproven.get(code, 0) + sends

    def get(self, messages: int, size_bytes: int, seconds: float = 0.0) -> None:
        """A pull got so many messages; 0 is a miss."""
        if messages:
            self.gets_found += 1
            self.transferred += messages
            self.transferred_bytes += size_bytes
        else:
            self.gets_missed += 1
        self._get_time_max_s = max(self._get_time_max_s, seconds)

    # Once a second

    def sample(self) -> None:
        """Remembers the counters for the rates, and their values at midnight."""
        self._settle()
        self.traffic.turn()
        self._samples.append(
            Sample(self._monotonic(), self.puts, self.gets_found, self.gets_missed, self.transferred)
        )
        day = time.localtime(self._clock_ms() / 1000).tm_yday
        if day != self._day:
            self._day = day
            self._yesterday, self._today = self._today, (self.puts, self.transferred)

    # For request 28

    def table(self) -> dict[str, str]:
        """The counters under RocketMQ's keys, and what has no counters.  On the loop."""
        self._settle()
        return {
            "bootTimestamp": str(self.boot_timestamp_ms),
            "runtime": _runtime_text(int(self._monotonic() - self._started_s)),
            "putMessageEntireTimeMax": str(int(self._put_time_max_s * 1000)),
            "getMessageEntireTimeMax": str(int(self._get_time_max_s * 1000)),
            "putMessageTimesTotal": str(max(1, self.puts)),
            "putMessageFailedTimes": str(self.puts_failed),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(self.put_bytes / max(1, self.puts)),
            "putMessageDistributeTime": "".join(
                f"{label}:{count} " for label, count in zip(PUT_LABELS, self._put_classes, strict=True)
            ),
            "putTps": _three(self.rates("puts")),
            "getFoundTps": _three(self.rates("found")),
            "getMissTps": _three(self.rates("missed")),
            "getTotalTps": _three(self.rates("found", "missed")),
            "getTransferedTps": _three(self.rates("transferred")),
            "putLatency99": f"{self.put_latency_ms(0.99):.2f}",
            "putLatency999": f"{self.put_latency_ms(0.999):.2f}",
            "msgPutTotalYesterdayMorning": str(self._yesterday[0]),
            "msgPutTotalTodayMorning": str(self._today[0]),
            "msgPutTotalTodayNow": str(self.puts),
            "msgGetTotalYesterdayMorning": str(self._yesterday[1]),
            "msgGetTotalTodayMorning": str(self._today[1]),
            "msgGetTotalTodayNow": str(self.transferred),
            "statisticsLeftOut": self.traffic.left_out,
        }

    def put_latency_ms(self, share: float) -> float:
        """The time within which that share of the puts was written, rounded up to a power of two of µs."""
        wanted = share * self.puts
        seen = 0
        for exponent, count in enumerate(self._put_latencies):
            seen += count
            if count and seen >= wanted:
                return (1 << exponent) / 1000
        return 0.0

    @property
    def put_times(self) -> tuple[list[int], float]:
        """How many messages were written within each power of two of µs, and the seconds of all.  Any thread."""
        return list(self._put_latencies), self._put_seconds

    @property
    def put_classes(self) -> list[int]:
        """As putMessageDistributeTime.  Any thread."""
        return list(self._put_classes)

    @property
    def time_max_s(self) -> tuple[float, float]:
        """The longest put, and the longest get.  Any thread."""
        return self._put_time_max_s, self._get_time_max_s

    def rates(self, *counters: str) -> list[float]:
        """Per second, within each of TPS_WINDOWS_S.  Any thread."""
        now = Sample(self._monotonic(), self.puts, self.gets_found, self.gets_missed, self.transferred)
        rates = []
        for window_s in TPS_WINDOWS_S:
            then = self._before(now.at_s - window_s)
            grown = sum(getattr(now, counter) - getattr(then, counter) for counter in counters)
            rates.append(grown / max(1.0, now.at_s - then.at_s))
        return rates

    def _before(self, at_s: float) -> Sample:
        """The newest sample at least as old as `at_s`, or else the oldest one."""
        samples = list(self._samples)
        found = samples[0]
        for sample in reversed(samples):
            if sample.at_s <= at_s:
                return sample
        return found


def _three(rates: list[float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)


def _runtime_text(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
