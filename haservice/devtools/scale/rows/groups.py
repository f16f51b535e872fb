"""Rows of consumer groups: what members cost that come, die, or say that they are still there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from haservice.devtools.scale.measure import Watch, memory_mb
from haservice.devtools.scale.members import Members
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.sender import SteadySender
from haservice.devtools.scale.stage import Stage

# Each connection takes a descriptor here and one of the broker's.
SIZES = (100, 300, 1_000, 3_000)
BEATS = 5


def group_joins(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    for size in sizes:
        with stage.pair() as pair:
            pair.start_nameserver()
            broker = pair.start_master()
            with SteadySender(pair.master_addr) as sender:
                watch = Watch(broker.pid, sender=sender)
                members = asyncio.run(_join_and_die(pair.master_addr, size, watch))
            yield watch.point(size, more={"notices": members.notices, "lists": members.lists})


async def _join_and_die(addr: str, count: int, watch: Watch) -> Members:
    members = Members(addr)
    await members.connect(count)
    with watch:
        await members.beat()
        await members.settled()
        members.end(count // 2)
        await members.settled()
    members.end(len(members.all))
    return members


def heartbeats(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    for size in sizes:
        with stage.pair(notifyConsumerIdsChangedEnable="false") as pair:
            pair.start_nameserver()
            broker = pair.start_master()
            before = memory_mb(broker.pid)
            with SteadySender(pair.master_addr) as sender:
                watch = Watch(broker.pid, sender=sender)
                memory = asyncio.run(_beat(pair.master_addr, size, watch, broker.pid))
            cost_us = watch.cpu_s * 1e6 / (BEATS * size)
            yield watch.point(size, memory_mb=memory - before, more={"µs a heartbeat": cost_us})


async def _beat(addr: str, count: int, watch: Watch, pid: int) -> float:
    members = Members(addr)
    await members.connect(count)
    await members.beat()
    with watch:
        for _ in range(BEATS):
            await members.beat()
    memory = memory_mb(pid)
    members.end(count)
    return memory


ROWS = (
    Row(
        "group-joins",
        "n members join one group at once, half of them die at once; each asks for the list when it is told",
        group_joins,
        SIZES,
    ),
    Row("heartbeats", f"n clients say {BEATS} times what they said before", heartbeats, SIZES),
)
