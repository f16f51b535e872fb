"""The row of delayed messages: many are due in the same moment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from commitlog.kernel.records import NewMessage, encode_host, encode_properties
from commitlog.log.log import wall_clock_ms
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.client import Admin, ClientOptions
from haservice.devtools.scale.measure import Watch, memory_mb
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.sender import SteadySender
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import QueueHeader

TOPIC = "delayed"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
STORE_HOST = encode_host("127.0.0.1", 10911)
BODY = b"x" * 256
GROUP = 512
# The only delay level; the store is filled, and the broker and its sender are up, before the time has come.
LEVEL = 1
DUE_SECONDS_PER_MILLION = 60.0
DUE_SECONDS_LEAST = 10.0
PATIENCE_S = 300.0
LOOK_SECONDS = 0.02


def due_at_once(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """The log is written without a broker, as if all messages had been stored in one millisecond."""
    for size in sizes:
        delay_s = int(DUE_SECONDS_LEAST + DUE_SECONDS_PER_MILLION * size / 1e6)
        with stage.pair(messageDelayLevel=f"{delay_s}s") as pair:
            stage.say(f"a log with {size:,} delayed messages is written")
            due_ms = _fill(pair.store("broker-a"), size, delay_s)
            pair.start_nameserver()
            broker = pair.start_master()
            with (
                SteadySender(pair.master_addr) as sender,
                Admin(ClientOptions(namesrv_addr=pair.namesrv_addr)) as admin,
            ):
                before = memory_mb(broker.pid)
                late_s = wall_clock_ms() / 1000 - due_ms / 1000
                if late_s > 0:
                    raise HAServiceError(f"the broker came up {late_s:.1f} s after the messages were due")
                time.sleep(-late_s)
                most = before
                with Watch(broker.pid, sender=sender) as watch:
                    deadline = time.monotonic() + PATIENCE_S
                    while (there := _delivered(admin, pair.master_addr)) < size:
                        most = max(most, memory_mb(broker.pid))
                        if time.monotonic() > deadline:
                            raise HAServiceError(f"{there:,} of {size:,} came within {PATIENCE_S:g} s")
                        time.sleep(LOOK_SECONDS)
            more = {"delivered/s": size / watch.seconds}
            if watch.sends is not None:
                more["p99 send ms"] = watch.sends.p99_ms
            yield watch.point(size, memory_mb=most - before, more=more)


def _fill(root: Path, size: int, delay_s: int) -> int:
    """Returns when they are due, as the wall clock's milliseconds."""
    now_ms = wall_clock_ms()
    options = LogOptions(root=root, message_delay_levels=f"{delay_s}s")
    store = Store.open(options, store_host=STORE_HOST, clock_ms=lambda: now_ms)
    for begin in range(0, size, GROUP):
        store.log.append_many([_message(number) for number in range(begin, min(begin + GROUP, size))])
    while store.dispatcher.step():
        pass
    store.close(clean=True)
    return now_ms + delay_s * 1000


def _message(number: int) -> NewMessage:
    texts = {"DELAY": str(LEVEL), "REAL_TOPIC": TOPIC, "REAL_QID": "0", "UNIQ_KEY": f"{number:032X}"}
    return NewMessage(SCHEDULE_TOPIC, LEVEL - 1, BODY, encode_properties(texts), born_host=STORE_HOST)


def _delivered(admin: Admin, addr: str) -> int:
    return admin.offset(addr, RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))


ROWS = (
    Row(
        "delayed-due",
        "n delayed messages are due in the same millisecond; until all are in their queue",
        due_at_once,
        sizes=(1_000, 10_000, 100_000, 1_000_000),
    ),
)
