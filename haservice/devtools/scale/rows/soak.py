"""The soak: mixed load on a pair for minutes or hours; what grows all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from haservice.devtools.pair import ScratchPair
from haservice.devtools.scale.measure import descriptors, memory_mb, threads
from haservice.devtools.scale.mixed import MixedLoad
from haservice.devtools.scale.point import Point, Row, slopes
from haservice.devtools.scale.stage import Stage

POINTS = 24
# The slave is restarted so often during a run.
RESTARTS = 4
SETTINGS = {
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "5000",
    # Files come and go within minutes, as on a broker that runs for months.
    "mappedFileSizeCommitLog": str(16 << 20),
    "messageDelayLevel": "1s 5s 10s",
}


def soak(stage: Stage, _sizes: Sequence[int]) -> Iterator[Point]:
    """A size is the time since the load began, in seconds.  The slave's columns begin anew with each restart.

    Memory is what the process itself holds.  Pages of files are not in it: those of the mapped index add up.
    """
    seconds = stage.minutes * 60
    with stage.pair("SYNC_MASTER", **SETTINGS) as pair:
        pair.start()
        with MixedLoad(pair.namesrv_addr) as load:
            began_s = time.monotonic()
            for number in range(1, POINTS + 1):
                until_s = began_s + seconds * number / POINTS
                time.sleep(max(0.0, until_s - time.monotonic()))
                load.check()
                yield _point(pair, load, time.monotonic() - began_s)
                if number % (POINTS // RESTARTS) == POINTS // RESTARTS // 2:
                    stage.say("the slave is restarted")
                    pair.processes["broker-a-s"].stop()
                    pair.start_slave()


def _point(pair: ScratchPair, load: MixedLoad, elapsed_s: float) -> Point:
    more: dict[str, float] = {}
    for head, name in (("master", "broker-a"), ("slave", "broker-a-s"), ("namesrv", "namesrv")):
        pid = pair.processes[name].pid
        more[f"{head} MB"] = memory_mb(pid)
        more[f"{head} threads"] = threads(pid)
        more[f"{head} fds"] = descriptors(pid)
    counts = {"sent": load.sent, "not sent": load.refused, "pulled": load.consumed, "asked": load.asked}
    return Point(max(1, round(elapsed_s)), more={**more, **counts})


ROWS = (
    Row(
        "soak",
        "mixed load for --minutes; a size is seconds, the last line what is added in an hour",
        soak,
        by_default=False,
        growth=slopes,
    ),
)
