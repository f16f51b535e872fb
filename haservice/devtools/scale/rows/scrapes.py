"""The rows of monitoring: what a scrape of /metrics costs a broker, and what it costs those who send meanwhile."""

from __future__ import annotations

import http.client
import math
import statistics
import time
from collections.abc import Iterator, Sequence

from haservice.devtools.pair import free_port_block
from haservice.devtools.scale.measure import Watch
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.rows.tools import filled
from haservice.devtools.scale.sender import SteadySender
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError

SIZES = (10, 100, 1_000, 10_000)
SCRAPES = 20
# Scrapes within a second share what was collected.
PAUSE_S = 1.1
TIMEOUT_S = 20.0
# As Prometheus scrapes by conf/observability.
EVERY_S = 15.0
TRIPLES = 60
SENDS_IN_FLIGHT = 64


def scrapes(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """Scrapes every 1.1 s.  Measures as long without scrapes, and shows the difference."""
    for size in sizes:
        port = free_port_block(1)
        with (
            filled(stage, size, metricsListenAddr=f"127.0.0.1:{port}") as pair,
            SteadySender(pair.master_addr) as sender,
        ):
            pid = pair.processes["broker-a"].pid
            _scrape(port)
            with Watch(pid) as alone:
                time.sleep(SCRAPES * PAUSE_S)
            with Watch(pid, sender=sender) as watch:
                kilobytes = _scrape_often(port)
            cpu_ms = 1000 * max(0.0, watch.cpu_s - alone.cpu_s * watch.seconds / alone.seconds) / SCRAPES
            share = cpu_ms / 1000 / EVERY_S * 100
            more = {
                "CPU ms a scrape": cpu_ms,
                f"% of a core at {EVERY_S:g} s": share,
                "KB a scrape": kilobytes,
            }
            yield watch.point(size, cpu_s=None, seconds=None, more=more)


def sends_beside(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """Scrapes in the middle second of three, and again.  What that second has fewer than its neighbours is what a
    scrape costs: rates of longer rounds differ by more than that.
    """
    for size in sizes:
        port = free_port_block(1)
        with (
            filled(stage, size, metricsListenAddr=f"127.0.0.1:{port}") as pair,
            SteadySender(pair.master_addr, pause_s=0.0, in_flight=SENDS_IN_FLIGHT) as sender,
        ):
            pid = pair.processes["broker-a"].pid
            alone: list[float] = []
            lost: list[float] = []
            _second(pid, sender, port, is_scraped=True)  # the first one warms up
            for number in range(1, TRIPLES + 1):
                before, during, after = (
                    _second(pid, sender, port, is_scraped=one) for one in (False, True, False)
                )
                alone += [before, after]
                lost.append((before + after) / 2 - during)
                if number % 10 == 0:
                    stage.say(f"{number} of {TRIPLES}: a scrape costs {statistics.fmean(lost):,.0f} sends")
            per_cent = 100 / (statistics.fmean(alone) * EVERY_S)
            more = {
                "sends/s": statistics.fmean(alone),
                "sends a scrape": statistics.fmean(lost),
                f"% at {EVERY_S:g} s": statistics.fmean(lost) * per_cent,
                "standard error %": statistics.stdev(lost) / math.sqrt(TRIPLES) * per_cent,
            }
            yield Point(size, more=more)


def _second(pid: int, sender: SteadySender, port: int, *, is_scraped: bool) -> float:
    """Sends per second, in one that begins with a scrape or has none."""
    with Watch(pid, sender=sender) as watch:
        until_s = time.monotonic() + 1
        if is_scraped:
            _scrape(port)
        time.sleep(max(0.0, until_s - time.monotonic()))
    assert watch.sends is not None
    if watch.sends.not_ok:
        raise HAServiceError(f"{watch.sends.not_ok} sends were not OK")
    return watch.sends.number / watch.seconds


def _scrape_often(port: int) -> float:
    """How long the last answer was, in KB."""
    size = 0
    for _ in range(SCRAPES):
        size = _scrape(port)
        time.sleep(PAUSE_S)
    return size / 1000


def _scrape(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise HAServiceError(f"/metrics answers {answer.status}: {body.decode(errors='replace')}")
    return len(body)


ROWS = (
    Row("scrapes", "a master with n topics, each with two groups, is scraped 20 times", scrapes, sizes=SIZES),
    Row(
        "scrapes-and-sends",
        "sends of 64 in flight, what a scrape takes from them; and that of 15 s",
        sends_beside,
        sizes=(100, 1_000),
    ),
)
