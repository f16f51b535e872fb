"""Rows of topics: what one more of them costs, and how soon clients find it."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.synchronize
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from haservice.devtools.pair import ScratchPair
from haservice.devtools.scale.load import IN_FLIGHT
from haservice.devtools.scale.measure import Watch, disk_of, memory_mb
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.sender import SteadySender, send_command
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError
from haservice.remoting.bodies.clients import DataVersion, TopicConfig, TopicConfigWrapper
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import CreateTopicHeader, RouteHeader

# Created one by one at each size: half by an admin, half by a send.
CREATED = 40
# Of `many_topics`, a second; ten thousand in a minute are 167.
RATE = 500
SETTLED_SECONDS = 3.0
FOUND_SECONDS = 60.0
TIMEOUT_S = 60.0
# Routes asked for one after the other.
ROUTE_PAUSE_S = 0.002
MAX_TOPICS = "125000"


def one_more_topic(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A pair for each size whose topics.json has that many topics; then CREATED more, one by one."""
    for size in sizes:
        with _Filled(stage, size) as pair:
            broker, namesrv = pair.processes["broker-a"].pid, pair.processes["namesrv"].pid
            before = _cpu_ms(broker), _cpu_ms(namesrv)
            asyncio.run(_create_some(pair, "alone", CREATED))
            spent = [(_cpu_ms(pid) - at) / CREATED for pid, at in zip((broker, namesrv), before, strict=True)]
            with (
                SteadySender(pair.master_addr) as sender,
                _Routes(pair.namesrv_addr) as routes,
                Watch(broker, sender=sender) as watch,
            ):
                found = asyncio.run(_create_some(pair, "beside", CREATED))
            yield watch.point(
                size,
                cpu_s=None,
                seconds=None,
                memory_mb=memory_mb(broker),
                disk_mb=disk_of(pair.store("broker-a") / "config")[1],
                more={
                    "broker ms": spent[0],
                    "namesrv ms": spent[1],
                    "namesrv MB": memory_mb(namesrv),
                    "found ms": sorted(found)[len(found) // 2],
                    "route p99 ms": _quantile(routes.times_ms, 0.99),
                    "route worst ms": max(routes.times_ms),
                },
            )


def many_topics(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A fresh pair for each size: that many topics are created by sends, RATE a second."""
    for size in sizes:
        with _Filled(stage, 0) as pair:
            broker, namesrv = pair.processes["broker-a"].pid, pair.processes["namesrv"].pid
            before = _cpu_ms(namesrv)
            with _Routes(pair.namesrv_addr) as routes, Watch(broker) as watch:
                asyncio.run(_create_all(pair, size))
            yield watch.point(
                size,
                memory_mb=memory_mb(broker),
                more={
                    "namesrv CPU s": (_cpu_ms(namesrv) - before) / 1000,
                    "route p99 ms": _quantile(routes.times_ms, 0.99),
                    "route worst ms": max(routes.times_ms),
                },
            )


class _Filled:
    """A running nameserver and master with so many topics, which the nameserver knows."""

    def __init__(self, stage: Stage, topics: int) -> None:
        self._pair = stage.pair(maxTopics=MAX_TOPICS)
        self._topics = topics

    def __enter__(self) -> ScratchPair:
        pair = self._pair.__enter__()
        if self._topics:
            _write_topics(pair.store("broker-a") / "config", self._topics)
        pair.start_nameserver()
        pair.start_master()
        if self._topics:
            asyncio.run(_await_route(pair, f"filled-{self._topics - 1}"))
        time.sleep(SETTLED_SECONDS)
        return pair

    def __exit__(self, *how: object) -> None:
        self._pair.__exit__(*how)  # type: ignore[arg-type]


def _write_topics(directory: Path, count: int) -> None:
    directory.mkdir(parents=True)
    names = [f"filled-{number}" for number in range(count)]
    table = {name: TopicConfig(name, 1, 1) for name in names}
    (directory / "topics.json").write_bytes(TopicConfigWrapper(DataVersion(count, 1), table).encode())


async def _create_some(pair: ScratchPair, prefix: str, count: int) -> list[float]:
    """Creates topics one by one; how long after each creation the nameserver had a route, in ms."""
    client, found = RemotingClient(), []
    try:
        for number in range(count):
            name = f"{prefix}-{number}"
            command = _create(name) if number % 2 else send_command(name, b"first")
            answer = await client.invoke(pair.master_addr, command, TIMEOUT_S)
            if answer.code != 0:
                raise HAServiceError(f"{name} was not created: {answer.remark}")
            began = time.perf_counter()
            while not await _has_route(client, pair, name):
                await asyncio.sleep(0.0005)
            found.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.2)
    finally:
        await client.close()
    return found


async def _create_all(pair: ScratchPair, count: int) -> None:
    client, numbers, began = RemotingClient(), iter(range(count)), time.monotonic()

    async def worker() -> None:
        for number in numbers:
            await asyncio.sleep(began + number / RATE - time.monotonic())
            answer = await client.invoke(
                pair.master_addr, send_command(f"many-{number}", b"first"), TIMEOUT_S
            )
            if answer.code != 0:
                raise HAServiceError(f"topic {number} was not created: {answer.remark}")

    try:
        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
        await _await_route(pair, f"many-{count - 1}")
    finally:
        await client.close()


async def _await_route(pair: ScratchPair, topic: str) -> None:
    client, deadline = RemotingClient(), time.monotonic() + FOUND_SECONDS
    try:
        while not await _has_route(client, pair, topic):
            if time.monotonic() > deadline:
                raise HAServiceError(f"no route of {topic} within {FOUND_SECONDS:g} s")
            await asyncio.sleep(0.01)
    finally:
        await client.close()


async def _has_route(client: RemotingClient, pair: ScratchPair, topic: str) -> bool:
    return (await client.invoke(pair.namesrv_addr, _route(topic), TIMEOUT_S)).code == 0


class _Routes:
    """Another process that asks the nameserver for a route, again and again; `times_ms` when it has ended."""

    def __init__(self, addr: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._stop = spawn.Event()
        self._times, child = spawn.Pipe(duplex=False)
        self._process = spawn.Process(target=_ask_routes, args=(addr, self._stop, child))
        self.times_ms: list[float] = []

    def __enter__(self) -> Self:
        self._process.start()
        self._times.recv()
        return self

    def __exit__(self, *how: object) -> None:
        self._stop.set()
        self.times_ms = self._times.recv()
        self._process.join()


def _ask_routes(addr: str, stop: multiprocessing.synchronize.Event, answers: Any) -> None:
    asyncio.run(_ask(addr, stop, answers))


async def _ask(addr: str, stop: multiprocessing.synchronize.Event, answers: Any) -> None:
    client, times = RemotingClient(), []
    try:
        await client.invoke(addr, _route("TBW102"), TIMEOUT_S)
        answers.send(None)
        while not stop.is_set():
            began = time.perf_counter()
            await client.invoke(addr, _route("TBW102"), TIMEOUT_S)
            times.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(ROUTE_PAUSE_S)
    finally:
        await client.close()
    answers.send(times)


def _create(name: str) -> RemotingCommand:
    header = CreateTopicHeader(name, "TBW102", 1, 1, 6)
    return RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())


def _route(topic: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic).encode())


def _cpu_ms(pid: int) -> float:
    """CPU of the process so far; /proc/PID/stat counts in ticks of 10 ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def _quantile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


ROWS = (
    Row("one-more-topic", f"a broker with n topics gets {CREATED} more, one by one", one_more_topic),
    Row("many-topics", f"n topics are created by sends, {RATE} a second", many_topics, (100, 1_000, 10_000)),
)
