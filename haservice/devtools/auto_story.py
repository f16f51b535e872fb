"""scripts/quickstart --auto: a pair that fails over by itself, with etcd on loopback as its judge.

    1  starts etcd, a nameserver, broker-a (SYNC_MASTER) and broker-a-s (SLAVE), both with haCoordinator
    2  messages flow
    3  kills broker-a with SIGKILL, and touches nothing else: broker-a-s takes over by itself
    4  starts broker-a again: it follows, and the flow is answered with OK again
    5  reads from the new master everything that was answered with OK

The times of all this are printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator import ha_list
from haservice.client import AsyncProducer, Message
from haservice.client.options import ClientOptions
from haservice.client.raw_sends import SEND_OK, SendQueue
from haservice.client.reading import from_queue
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.coordinator import CoordinatorError
from haservice.coordination.desk import OperatorDesk
from haservice.deadline import Deadline
from haservice.devtools.pair import ScratchPair, free_port_block
from haservice.errors import HAServiceError
from haservice.remoting.headers.clients import CreateTopicHeader

ETCD = "etcd"
MISSING = (
    "there is no etcd on this machine: apt-get install etcd-server, or put the program etcd of"
    " https://github.com/etcd-io/etcd/releases on the PATH"
)
TOPIC = "Quickstart"
QUEUES = 4
READ_GROUP = "QUICKSTART"
TTL_S = 5
FLOW_S = 3.0
PATIENCE_S = 30.0
LOOK_S = 0.05
# Between two messages; and after one that was not taken.
PAUSE_S, AGAIN_S = 0.002, 0.02
SENDS_MAX = 100_000


class AutoStoryFailed(HAServiceError):
    """It did not end as it should; the text says where."""


@contextlib.contextmanager
def etcd_running(root: Path) -> Iterator[str]:
    """One node on loopback; gives haCoordinator.  Raises AutoStoryFailed if there is none, or it does not start."""
    program = shutil.which(ETCD)
    if program is None:
        raise AutoStoryFailed(MISSING)
    port = free_port_block(2)
    client, peer = (f"http://127.0.0.1:{one}" for one in (port, port + 1))
    words = [program, "--data-dir", str(root / "etcd"), "--log-level", "error"]
    words += ["--listen-client-urls", client, "--advertise-client-urls", client]
    words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    words += ["--initial-cluster", f"default={peer}"]
    with (root / "etcd.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = Deadline(PATIENCE_S)
        while not _answers(port):
            if process.poll() is not None or deadline.expired:
                said = (root / "etcd.log").read_text(errors="replace")[-2000:]
                raise AutoStoryFailed(f"etcd does not answer at {client}:\n{said}")
            time.sleep(LOOK_S)
        yield f"etcd://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as one:
        one.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        return b"true" in one.recv(1000)
    return False


@dataclass(slots=True)
class Flow:
    """Messages, one after the other, and what they were answered with."""

    answered: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Number → status, and when."""
    is_over: bool = False

    async def run(self, namesrv: str) -> None:
        async with AsyncProducer("quickstart", ClientOptions(namesrv)) as producer:
            for number in range(SENDS_MAX):
                if self.is_over:
                    return
                try:
                    status = (await producer.send(Message(TOPIC, b"%d" % number))).status.name
                except HAServiceError as error:
                    status = type(error).__name__
                self.answered[number] = status, time.monotonic()
                await asyncio.sleep(PAUSE_S if status == SEND_OK else AGAIN_S)

    @property
    def acknowledged(self) -> set[int]:
        return {number for number, (status, _) in self.answered.items() if status == SEND_OK}

    def first(self, statuses: tuple[str, ...], after_s: float) -> float | None:
        """When the first such answer came, after that moment."""
        return next(
            (at for status, at in self.answered.values() if at > after_s and status in statuses), None
        )

    def counts(self) -> str:
        found = Counter(status for status, _ in self.answered.values())
        return ", ".join(f"{count} {status}" for status, count in found.most_common())


STORED = (SEND_OK, "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")


async def auto_story(
    pair: ScratchPair, place: str, step: Callable[[str], None], say: Callable[[str], None]
) -> None:
    """Raises AutoStoryFailed, or the error of a step."""
    with MQAdmin([pair.namesrv_addr]) as admin:
        step(f"1  Starting a nameserver and a pair that names {place}, haLeaseTtl={TTL_S}")
        keys = {"haCoordinator": place, "haLeaseTtl": str(TTL_S)}
        await asyncio.to_thread(_start, admin, pair, keys)
        desk = OperatorDesk(place_of(place), "DefaultCluster", "broker-a", Keys())
        await _until(lambda: _voters(desk) == 2, "the slave is no voter")
        await asyncio.to_thread(_show, desk, say)
        step("2  Messages flow: OK means that both have it")
        flow = Flow()
        flowing = asyncio.create_task(flow.run(pair.namesrv_addr))
        try:
            await asyncio.sleep(FLOW_S)
            say(flow.counts())
            step(
                f"3  Killing broker-a (process {pair.processes['broker-a'].pid}) with SIGKILL, and doing nothing else"
            )
            killed_s = time.monotonic()
            await asyncio.to_thread(pair.processes["broker-a"].kill)
            await _until(lambda: flow.first(STORED, killed_s) is not None, "nobody takes messages")
            taken_s = flow.first(STORED, killed_s)
            assert taken_s is not None
            say(f"broker-a-s took over by itself: the first message after {taken_s - killed_s:.2f} s")
            say("until a slave is there, it stores messages and answers SLAVE_NOT_AVAILABLE")
            await asyncio.to_thread(_show, desk, say)
            step("4  Starting broker-a again")
            started_s = time.monotonic()
            await asyncio.to_thread(pair.start_master, **keys)
            await _until(
                lambda: flow.first((SEND_OK,), started_s) is not None, "no message is answered with OK"
            )
            ok_s = flow.first((SEND_OK,), started_s)
            assert ok_s is not None
            say(f"it follows broker-a-s: the first OK after {ok_s - started_s:.2f} s")
            await asyncio.sleep(FLOW_S)
            await asyncio.to_thread(_show, desk, say)
        finally:
            flow.is_over = True
            await flowing
        step("5  Reading from broker-a-s everything that was answered with OK")
        read = await asyncio.to_thread(_read, admin, pair.slave_addr)
    missing = sorted(flow.acknowledged - read)
    say(flow.counts())
    if missing:
        raise AutoStoryFailed(f"{len(missing)} acknowledged messages are missing, first {missing[:10]}")
    say(f"{len(flow.acknowledged)} messages were answered with OK, and all of them are there")


def _start(admin: MQAdmin, pair: ScratchPair, keys: dict[str, str]) -> None:
    pair.start_nameserver()
    pair.start_master(**keys)
    deadline = Deadline(PATIENCE_S)
    while not _is_master(admin, pair.master_addr):
        if deadline.expired:
            raise AutoStoryFailed(f"after {PATIENCE_S:g} s broker-a is not the master")
        time.sleep(LOOK_S)
    admin.update_topic(pair.master_addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    pair.start_slave(**keys)


def _is_master(admin: MQAdmin, addr: str) -> bool:
    with contextlib.suppress(HAServiceError):
        return admin.runtime_info(addr)["brokerRole"] == "SYNC_MASTER"
    return False


def _voters(desk: OperatorDesk) -> int:
    with contextlib.suppress(HAServiceError), desk:
        return len(desk.see().voters.ids)
    return 0


def _show(desk: OperatorDesk, say: Callable[[str], None]) -> None:
    """As `mqadmin haList`."""
    with contextlib.suppress(CoordinatorError), desk:
        say("\n" + ha_list.table_of(desk.name, desk.see(), desk.lease_left_s()).text() + "\n")


def _read(admin: MQAdmin, addr: str) -> set[int]:
    queues = [SendQueue("broker-a", addr, number) for number in range(QUEUES)]
    found = itertools.chain.from_iterable(from_queue(admin, TOPIC, one, READ_GROUP) for one in queues)
    return {int(bytes(message.body)) for message in found}


async def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = Deadline(PATIENCE_S)
    while not await asyncio.to_thread(condition):
        if deadline.expired:
            raise AutoStoryFailed(f"after {PATIENCE_S:g} s {otherwise}")
        await asyncio.sleep(LOOK_S)
