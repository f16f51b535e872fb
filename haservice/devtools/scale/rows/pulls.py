"""Rows of pulls: what a broker pays for pulls that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from haservice.devtools.scale.load import call_all
from haservice.devtools.scale.measure import Watch, memory_mb
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.sender import Sender, send_command
from haservice.devtools.scale.stage import Stage
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import PullMessageHeader

TOPIC = "held"
HELD_SECONDS = 5
SUSPEND = 2  # sysFlag of a pull: hold it if there is nothing
SUBSCRIBED = 4


def held_pulls(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A fresh master for each size: memory that was free before does not hide what pulls take."""
    for size in sizes:
        with stage.pair() as pair:
            pair.start_nameserver()
            broker = pair.start_master()
            call_all(pair.master_addr, [send_command(TOPIC, b"first")])
            before = memory_mb(broker.pid)
            with Sender(pair.master_addr) as sender, Watch(broker.pid, sender=sender) as watch:
                memory = asyncio.run(_hold(pair.master_addr, size, broker.pid))
            yield watch.point(size, memory_mb=memory - before)


async def _hold(addr: str, count: int, pid: int) -> float:
    """Makes `count` pulls that are held and then answered; returns the memory meanwhile."""
    client = RemotingClient()
    try:
        pulls = [asyncio.ensure_future(client.invoke(addr, _pull(), 120.0)) for _ in range(count)]
        await asyncio.sleep(HELD_SECONDS / 2)
        held = memory_mb(pid)
        await asyncio.gather(*pulls)
        return held
    finally:
        await client.close()


def _pull() -> RemotingCommand:
    header = PullMessageHeader(
        consumer_group="held",
        topic=TOPIC,
        queue_id=0,
        queue_offset=1,
        max_msg_nums=32,
        sys_flag=SUSPEND | SUBSCRIBED,
        suspend_timeout_millis=HELD_SECONDS * 1000,
        subscription="*",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())


ROWS = (Row("held-pulls", f"n pulls of one queue are held for {HELD_SECONDS} s, then answered", held_pulls),)
