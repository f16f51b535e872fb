"""What tests with real processes do to a pair, and how they look at it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable

from haservice.admin.calls import MQAdmin
from haservice.client.raw_sends import RawMessage, SendQueue, Sent, send_all
from haservice.client.reading import from_queue
from haservice.devtools.pair import ScratchPair
from haservice.errors import RemotingError
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.support.waiting import PATIENCE_S, wait_until

# What the fixtures of conftest.py give: a pair of which the test starts what it wants, and who asks it.
MakePair = Callable[..., ScratchPair]
Ask = Callable[[ScratchPair], MQAdmin]

TOPIC = "Walks"
QUEUES = 2
SEGMENT_BYTES = 1024 * 1024

SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "maxMessageSize": "65536",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "haSendHeartbeatInterval": "500",
}


def start_with_topic(pair: ScratchPair, admin: MQAdmin) -> None:
    """The whole pair; the topic is there before the slave, which copies topics when it starts."""
    start_master_with_topic(pair, admin)
    pair.start_slave()
    wait_caught_up(pair, admin)
    wait_until(lambda: knows_topic(admin, pair.slave_addr), "the slave knows the topic")


def start_master_with_topic(pair: ScratchPair, admin: MQAdmin, **settings: str) -> None:
    """A nameserver and a master; no slave yet."""
    pair.start_nameserver()
    pair.start_master(**settings)
    admin.update_topic(pair.master_addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))


def knows_topic(admin: MQAdmin, addr: str) -> bool:
    try:
        return bool(admin.topic_stats(addr, TOPIC).offset_table)
    except RemotingError:
        return False


def log_end(admin: MQAdmin, addr: str) -> int:
    return int(admin.runtime_info(addr)["commitLogMaxOffset"])


def is_caught_up(pair: ScratchPair, admin: MQAdmin) -> bool:
    """One slave is in sync and holds, dispatched, all that the master holds."""
    status = admin.ha_status(pair.master_addr)
    assert status is not None
    end = log_end(admin, pair.slave_addr)
    return (
        any(slave.in_sync for slave in status.ha_connection_info)
        and end == log_end(admin, pair.master_addr)
        and admin.runtime_info(pair.slave_addr)["dispatchBehindBytes"] == "0"
    )


def wait_caught_up(pair: ScratchPair, admin: MQAdmin, seconds: float = PATIENCE_S) -> None:
    wait_until(lambda: is_caught_up(pair, admin), "the slave is level with its master", seconds)


def follows(admin: MQAdmin, master: str, slave: str) -> bool:
    """Whether the slave of that address is in sync, and has dispatched all that the master has."""
    try:
        status = admin.ha_status(master)
        return (
            status is not None
            and any(one.in_sync and one.broker_addr == slave for one in status.ha_connection_info)
            and log_end(admin, master) == log_end(admin, slave)
            and admin.runtime_info(slave)["dispatchBehindBytes"] == "0"
            and knows_topic(admin, slave)
        )
    except RemotingError:
        return False


def wait_follows(admin: MQAdmin, master: str, slave: str) -> None:
    wait_until(lambda: follows(admin, master, slave), f"{slave} has all of {master}")


async def _outgoing(bodies: Iterable[bytes]) -> AsyncIterator[RawMessage]:
    for body in bodies:
        yield RawMessage(body, {"KEYS": body[:20].decode(errors="replace")})


def send(addr: str, bodies: Iterable[bytes], in_flight: int = 32) -> list[Sent]:
    """What became of each message, in the order of the answers."""
    queues = [SendQueue("broker-a", addr, number) for number in range(QUEUES)]
    sent: list[Sent] = []
    asyncio.run(send_all(TOPIC, queues, _outgoing(bodies), sent.append, in_flight))
    return sent


def send_ok(addr: str, bodies: list[bytes]) -> None:
    statuses = Counter(one.status for one in send(addr, bodies))
    assert statuses == {"SEND_OK": len(bodies)}


def read(admin: MQAdmin, addr: str) -> list[bytes]:
    """Every body on this broker, sorted; checks that each queue's offsets have no gap."""
    bodies = []
    for number in range(QUEUES):
        messages = list(from_queue(admin, TOPIC, SendQueue("broker-a", addr, number), "WALKERS"))
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        bodies += [message.body for message in messages]
    return sorted(bodies)


def numbered(first: int, last: int) -> list[bytes]:
    """Bodies of different lengths that sort by their number."""
    return [b"%06d " % number + b"x" * (number * 37 % 900) for number in range(first, last)]


def log_bytes(pair: ScratchPair, name: str, end: int) -> bytes:
    """The commit log of `broker-a` or `broker-a-s` on disk, from 0 to `end`."""
    segments = sorted((pair.store(name) / "commitlog").iterdir())
    return b"".join(segment.read_bytes() for segment in segments)[:end]


def assert_equal_logs(pair: ScratchPair, admin: MQAdmin, addr: str) -> None:
    end = log_end(admin, addr)
    assert end > 0
    assert log_bytes(pair, "broker-a", end) == log_bytes(pair, "broker-a-s", end)
