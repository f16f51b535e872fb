"""Plain sends that go the short way: stored, answered and counted exactly as those that go the long one.

Real connections without sockets: what a peer sends is fed to them in pieces, what they write is kept.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.kernel.records import decode_properties, encode_host
from commitlog.log.log import CommitLog
from commitlog.options import LogOptions
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.send import native
from haservice.broker.send.admission import Admission, SendRules
from haservice.broker.send.durability import PutStatus, Wait
from haservice.broker.send.fast_sends import fast_sends
from haservice.broker.send.processor import SendLimits, SendProcessor, trace_of
from haservice.broker.stats.counters import Stats
from haservice.broker.stats.traffic import NO_GROUP, PUTS
from haservice.broker.topics.table import TopicTable, topic_config
from haservice.configuration.settings import BrokerConfig
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import TopicConfig
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand, decode
from haservice.remoting.connection import Connection
from haservice.remoting.dispatch import Dispatch
from haservice.remoting.frame import FrameReader
from tests.commitlog.dledger.opened import Opened
from tests.commitlog.dledger.stores import data_bytes
from tests.support.failing_files import FailingFiles
from tests.support.messages import STORE_HOST, Clock, log_options, records_of, whole_log
from tests.support.proofs import Proofs
from tests.support.remoting import frame
from tests.support.send_frames import odd, plain

pytestmark = pytest.mark.skipif(native.sends is None, reason="the native code is not there")

SEND_LIMITS = SendLimits(
    region_id='R"ü',
    trace_on=True,
    start_accept_timestamp_ms=0,
    page_cache_busy_s=1.0,
    max_pending_sends=1000,
    is_slave=False,
)
SEGMENT_BYTES, GROUPS_BYTES = 64 * 1024, 4 * 1024
ALONE, CROWD = -1.0, 3600.0


class Wire(asyncio.Transport):
    """A peer's end: keeps what is written to it."""

    def __init__(self, host: str = "10.1.2.3", port: int = 54321) -> None:
        super().__init__({"peername": (host, port)})
        self.written: list[bytes] = []
        self.closing = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def set_write_buffer_limits(self, high: Any = None, low: Any = None) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def answers(self) -> list[RemotingCommand]:
        """What came, decoded; the peer's frames are whole."""
        reader = FrameReader()
        answers = [decode(*each) for each in reader.feed(b"".join(self.written))]
        assert reader.pending_bytes == 0
        return answers


class Broker:
    """Its sends, from connection to log; `fast` says which way plain ones go."""

    def __init__(
        self,
        directory: Path,
        *,
        fast: bool = True,
        sync: bool = False,
        store_host: bytes = STORE_HOST,
        group: bool = False,
        **send_limits: Any,
    ) -> None:
        """`group`: its log is that of a DLedger group."""
        self.files = FailingFiles()
        options = _options(directory, GROUPS_BYTES if group else SEGMENT_BYTES)
        self.opened = (
            Opened(directory, None, options, store_host=store_host, clock_ms=Clock()) if group else None
        )
        self.log = (
            self.opened.log
            if self.opened is not None
            else CommitLog.open(options, store_host=store_host, clock_ms=Clock(), files=self.files)
        )
        self.topics = TopicTable(
            BrokerConfig(cluster_name="C", broker_name="broker-a"),
            PersistedFile(directory / "topics.json"),
            clock_ms=Clock(),
        )
        for name in ("T", "Other-Topic", "%app%T"):
            self.topics.update(topic_config(name, 4, 6))
        self.topics.update(TopicConfig("Tagged", 4, 4, 6, topic_filter_type="MULTI_TAG"))
        self.topics.update(topic_config("Ordered", 4, 6))
        self.topics.set_order_topics(["Ordered"])
        self.admission = Admission(SendRules("C", 6, 1000), self.topics, _find_group)
        self.stats = Stats()
        proofs = Proofs(sync=sync)
        self.slave, self.durability, self.ack = proofs.slave, proofs.durability, proofs.ack
        self.send_limits = SEND_LIMITS._replace(**send_limits)
        short = fast_sends(
            self.admission, self.log, self.stats, store_host=store_host, trace=trace_of(self.send_limits)
        )
        self.sends = SendProcessor(
            self.send_limits,
            self.admission,
            self.log,
            self.durability,
            self.stats,
            store_host=store_host,
            fast=short if fast else None,
        )
        self.dispatch = Dispatch(self.sends.handlers())
        self.taken = 0
        self._count_what_is_taken()

    def _count_what_is_taken(self) -> None:
        if self.dispatch.fast_path is not None:
            take = self.sends.take

            def counted(connection: Connection, data: bytes) -> int:
                taken = take(connection, data)
                self.taken += taken
                return taken

            self.sends.take = counted  # type: ignore[method-assign]

    def connect(self, host: str = "10.1.2.3", port: int = 54321) -> tuple[Connection, Wire]:
        connection, wire = Connection(self.dispatch, FrameReader()), Wire(host, port)
        connection.connection_made(wire)
        return connection, wire

    def counted(self) -> dict[str, Any]:
        stats = self.stats
        stats.sample()  # as once a second
        return {
            "puts": (stats.puts, stats.put_bytes, stats.puts_failed),
            "queues": {
                (topic, queue_id): (counter.count, counter.size, counter.times)
                for topic, groups in stats.traffic._trees[PUTS].items()
                for queue_id, counter in groups[NO_GROUP].items()
            },
        }


def _options(directory: Path, segment_bytes: int) -> LogOptions:
    return log_options(directory, segment_bytes=segment_bytes, max_message_bytes=1000)


def _find_group(group: str) -> GroupConfig | None:
    return GroupConfig(group, retry_max_times=5, retry_queue_nums=2) if group == "known" else None


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    brokers: list[Broker] = []

    def maker(**options: Any) -> Broker:
        brokers.append(Broker(tmp_path / str(len(brokers)), **options))
        return brokers[-1]

    yield maker
    for broker in brokers:
        broker.log.close()
        if broker.opened is not None:
            broker.opened.close()


@pytest.fixture(params=[ALONE, CROWD], ids=["alone", "crowd"])
def crowd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Whether connections that send one after the other count as sending at the same time."""
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", request.param)
    return float(request.param)


def send(
    opaque: int = 1, topic: str = "T", body: bytes = b"hello", oneway: bool = False, **fields: str
) -> bytes:
    ext = {
        "a": "g",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "5",
        "h": "0",
        "i": "",
        **fields,
    }
    entries = ",".join(f'"{name}":"{value}"' for name, value in ext.items())
    header = f'{{"code":310,"extFields":{{{entries}}},"flag":{2 * oneway},"opaque":{opaque}}}'
    return frame(header.encode(), body)


def wait_false(opaque: int) -> bytes:
    return send(opaque, i="WAIT\\u0001false")


def facts(answer: RemotingCommand) -> tuple[Any, ...]:
    return (
        answer.opaque,
        int(answer.code),
        answer.remark,
        answer.ext,
        answer.flag,
        answer.language,
        answer.version,
        answer.serialize_type,
        bytes(answer.body),
    )


# -- both ways give the same -----------------------------------------------------------------------------

Step = tuple[int, bytes]  # who sends, and what of his stream


def scenario(seed: int, odd_share: float, peers: int) -> list[list[Step]]:
    """Turns of the loop: each peer's frames, cut anywhere."""
    rng = random.Random(seed)
    opaque = 0
    streams = []
    for _ in range(peers):
        stream = b""
        for _ in range(rng.randrange(1, 30)):
            opaque += 1
            stream += odd(rng, opaque) if rng.random() < odd_share else plain(rng, opaque)
        streams.append(stream)
    turns: list[list[Step]] = []
    while any(streams):
        turn = []
        for peer in range(peers):
            if streams[peer] and rng.random() < 0.7:
                size = rng.choice((1, 3, 7, 50, 400, 2000, 10000, 100000))
                turn.append((peer, streams[peer][:size]))
                streams[peer] = streams[peer][size:]
        turns.append(turn)
    return turns


def play(broker: Broker, turns: list[list[Step]], acks: int = 0) -> dict[int, tuple[Connection, Wire]]:
    """Feeds it all; with SYNC_MASTER the slave acknowledges after every so many turns."""
    peers: dict[int, tuple[Connection, Wire]] = {}

    async def run() -> None:
        random.seed(5)  # for queues that the broker chooses
        for number, turn in enumerate(turns):
            for peer, data in turn:
                if peer not in peers:
                    peers[peer] = broker.connect("::1" if peer % 3 == 2 else "10.1.2.3", 50000 + peer)
                if not peers[peer][1].closing:
                    peers[peer][0].data_received(data)
            for _ in range(3):
                await asyncio.sleep(0)
            if acks and number % acks == 0:
                broker.ack(ok=number % 3 != 0)
                await asyncio.sleep(0)
        broker.ack()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert broker.sends.pending == 0
    return peers


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("store_host", [STORE_HOST, encode_host("fd00::1", 10911)], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("seed", range(12))
def test_a_sender_alone_finds_the_same_log_and_hears_the_same(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, seed: int, sync: bool, store_host: bytes
) -> None:
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", ALONE)
    turns = scenario(seed, odd_share=0.3, peers=4)
    long, short = (make(fast=fast, sync=sync, store_host=store_host) for fast in (False, True))
    expected, got = play(long, turns, acks=2), play(short, turns, acks=2)
    assert short.taken > 0
    assert whole_log(short.log) == whole_log(long.log)
    assert short.log.queue_offsets == long.log.queue_offsets
    assert short.counted() == long.counted()
    for peer in expected:
        assert got[peer][1].closing == expected[peer][1].closing
        assert sorted(map(facts, got[peer][1].answers()), key=repr) == sorted(
            map(facts, expected[peer][1].answers()), key=repr
        )


@pytest.mark.parametrize("crowded", [ALONE, CROWD], ids=["alone", "crowd"])
@pytest.mark.parametrize("store_host", [STORE_HOST, encode_host("fd00::1", 10911)], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("seed", range(4))
def test_a_groups_leader_appends_the_same_entries_either_way(
    make: Callable[..., Broker],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seed: int,
    crowded: float,
    store_host: bytes,
) -> None:
    """Over several files, byte for byte, and every sender hears the same."""
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", crowded)
    turns = scenario(seed, odd_share=0.0 if crowded == CROWD else 0.3, peers=4)
    long, short = (make(fast=fast, store_host=store_host, group=True) for fast in (False, True))
    expected, got = play(long, turns), play(short, turns)
    assert short.taken > 0
    first, second = (data_bytes(tmp_path / str(number) / "dledger-n0") for number in range(2))
    assert first == second
    assert len(first) > 2 * GROUPS_BYTES
    assert data_bytes(tmp_path / "0" / "dledger-n0", "index") == data_bytes(
        tmp_path / "1" / "dledger-n0", "index"
    )
    assert short.log.queue_offsets == long.log.queue_offsets
    assert short.counted() == long.counted()
    for peer in expected:
        assert sorted(map(facts, got[peer][1].answers()), key=repr) == sorted(
            map(facts, expected[peer][1].answers()), key=repr
        )


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("seed", range(8))
def test_a_crowd_of_plain_senders_finds_the_same_log_and_hears_the_same(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, seed: int, sync: bool
) -> None:
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", CROWD)
    turns = scenario(seed, odd_share=0.0, peers=6)
    long, short = make(fast=False, sync=sync), make(sync=sync)
    expected, got = play(long, turns, acks=2), play(short, turns, acks=2)
    assert short.taken == sum(len(data) for turn in turns for _, data in turn)
    assert whole_log(short.log) == whole_log(long.log)
    assert short.counted() == long.counted()
    for peer in expected:
        assert b"".join(got[peer][1].written) == b"".join(expected[peer][1].written)


@pytest.mark.parametrize("seed", range(12))
def test_a_crowd_of_all_kinds_finds_each_senders_order_kept(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whose sends stand first is for nobody to tell; the sends of one stand as they came."""
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", CROWD)
    turns = scenario(seed, odd_share=0.3, peers=6)
    long, short = make(fast=False), make()
    expected, got = play(long, turns), play(short, turns)
    assert short.taken > 0
    assert short.log.queue_offsets == long.log.queue_offsets
    assert short.counted() == long.counted()
    for peer in expected:
        ours, theirs = _told(got[peer][1]), _told(expected[peer][1])
        assert ours.keys() == theirs.keys()
        assert {opaque: told[0] for opaque, told in ours.items()} == {
            opaque: told[0] for opaque, told in theirs.items()
        }
        assert _by_place(ours) == _by_place(theirs)
    assert _contents(short) == _contents(long)


def _told(wire: Wire) -> dict[int, tuple[Any, str]]:
    """By opaque: code, remark and queue; and the place in the log."""
    return {
        answer.opaque: (
            (int(answer.code), answer.remark, answer.ext.get("queueId")),
            answer.ext.get("msgId", ""),
        )
        for answer in wire.answers()
    }


def _by_place(told: dict[int, tuple[Any, str]]) -> list[int]:
    return sorted(
        (opaque for opaque, (_, place) in told.items() if place), key=lambda opaque: told[opaque][1]
    )


def _contents(broker: Broker) -> list[tuple[Any, ...]]:
    return sorted(
        (
            record.topic,
            record.queue_id,
            record.body,
            record.properties,
            record.flag,
            record.born_host,
            record.sys_flag,
        )
        for record in records_of(broker.log)
    )


# -- one story at a time ---------------------------------------------------------------------------------


async def turn(*sent: tuple[tuple[Connection, Wire], bytes]) -> None:
    """What these peers send within one turn of the loop."""
    for (connection, _), data in sent:
        connection.data_received(data)
    for _ in range(3):
        await asyncio.sleep(0)


def story(told: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, on a loop of its own."""

    @functools.wraps(told)
    def test(*args: Any, **kwargs: Any) -> None:
        asyncio.run(told(*args, **kwargs))

    return test


def codes(peer: tuple[Connection, Wire]) -> list[tuple[int, int]]:
    return [(answer.opaque, int(answer.code)) for answer in peer[1].answers()]


def bodies(broker: Broker) -> list[bytes]:
    return [record.body for record in records_of(broker.log)]


@story
async def test_sends_of_one_connection_stand_in_their_order_whichever_way_they_went(
    make: Callable[..., Broker], crowd: float
) -> None:
    """An odd send behind plain ones, and plain ones behind that, in one read and in the next of the turn."""
    broker = make()
    peer, other = broker.connect(), broker.connect(port=9)
    delayed = send(2, body=b"2", i="DELAY\\u00011")
    await turn(
        (other, send(90, body=b"90")),
        (peer, send(1, body=b"1") + delayed + send(3, body=b"3")),
        (other, send(91, body=b"91")),
        (peer, send(4, body=b"4")),
        (peer, send(5, body=b"5", i="DELAY\\u00011") + send(6, body=b"6")),
    )
    assert [body for body in bodies(broker) if body < b"9"] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert [body for body in bodies(broker) if body > b"9"] == [b"90", b"91"]
    assert sorted(codes(peer)) == [(number, 0) for number in range(1, 7)]
    assert broker.taken > 0


@story
async def test_a_frame_that_comes_byte_by_byte_goes_the_short_way_when_it_is_whole(
    make: Callable[..., Broker], crowd: float
) -> None:
    broker = make()
    peer = broker.connect()
    sent = send(1) + send(2, body=b"")
    for at in range(len(sent)):
        await turn((peer, sent[at : at + 1]))
    assert codes(peer) == [(1, 0), (2, 0)]
    assert bodies(broker) == [b"hello", b""]
    assert broker.taken == len(sent)


@pytest.mark.parametrize(("code", "fenced"), [(errno.ENOSPC, False), (errno.EIO, True)])
@story
async def test_a_disk_that_fails_amid_a_run_leaves_what_was_written_before(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, code: int, fenced: bool
) -> None:
    """The run goes over a segment's end: its first part is in the log, and answered so; the rest is not."""
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", CROWD)
    broker = make()
    peers = [broker.connect(port=1 + number) for number in range(3)]
    await turn((peers[0], send(1, body=b"x" * 900)))
    sent = b"".join(send(number, body=b"%02d" % number * 400) for number in range(10, 96))
    broker.files.fail("pwrite", code, times=1, after=2)  # the run's first part, the blank, then its second
    await turn((peers[1], sent), (peers[2], send(99, oneway=True)))
    told = dict(codes(peers[1]))
    stored = [number for number in told if told[number] == 0]
    lost = [number for number in told if told[number] == ResponseCode.SERVICE_NOT_AVAILABLE]
    assert stored == list(range(10, 10 + len(stored)))
    assert lost == list(range(10 + len(stored), 96))
    assert stored
    assert lost
    assert bodies(broker)[1:] == [b"%02d" % number * 400 for number in stored]
    assert broker.log.queue_offsets["T", 0] == 1 + len(stored)
    assert broker.stats.puts == 1 + len(stored)
    assert broker.stats.puts_failed == len(lost) + 1
    refused = peers[1][1].answers()[-1]
    assert refused.ext == trace_of(broker.send_limits)
    assert "write at" in (refused.remark or "")
    assert peers[2][1].written == []
    broker.files.heal()
    await turn((peers[0], send(100, body=b"next")))
    assert codes(peers[0])[-1] == (100, ResponseCode.SERVICE_NOT_AVAILABLE if fenced else 0)
    if not fenced:
        assert peers[0][1].answers()[-1].ext["queueOffset"] == str(1 + len(stored))
        assert bodies(broker)[-1] == b"next"


@story
async def test_a_segment_that_cannot_be_made_refuses_what_does_not_fit(make: Callable[..., Broker]) -> None:
    broker = make()
    peer = broker.connect()
    await turn((peer, send(0)))
    broker.files.fail("create", errno.ENOSPC)
    await turn((peer, b"".join(send(number, body=b"x" * 900) for number in range(1, 100))))
    told = codes(peer)
    stored = [opaque for opaque, code in told if code == 0]
    assert stored == list(range(len(bodies(broker))))
    assert 0 < len(stored) < 100
    assert {code for _, code in told[len(stored) :]} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert broker.log.queue_offsets["T", 0] == len(stored)


@pytest.mark.parametrize("why", ["held", "refused"])
@story
async def test_a_hold_that_comes_between_the_read_and_the_append_refuses_what_was_gathered(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", CROWD)
    broker = make()
    first, second = broker.connect(port=1), broker.connect(port=2)
    await turn((first, send(1)))
    second[0].data_received(send(2) + send(3, oneway=True))
    assert broker.taken > len(send(1))
    if why == "held":
        broker.log.hold_appends("its peers are asked", "roles")
    else:
        broker.sends.refuse_all = "its peers are asked"
    await turn()
    (answer,) = second[1].answers()
    assert (answer.opaque, answer.code) == (2, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert answer.remark == "service not available now: its peers are asked"
    assert answer.ext == trace_of(broker.send_limits)
    assert len(bodies(broker)) == 1
    assert broker.stats.puts_failed == 0
    broker.log.hold_appends(None, "roles")
    broker.sends.refuse_all = None
    await turn((second, send(4)))
    assert codes(second) == [(2, ResponseCode.SERVICE_NOT_AVAILABLE), (4, 0)]


@pytest.mark.parametrize("gate", ["slave", "refuses", "held", "hangs", "too early", "too many"])
@story
async def test_a_gate_that_is_shut_takes_nothing(
    make: Callable[..., Broker], gate: str, crowd: float
) -> None:
    """The long way answers then, in its words."""
    send_limits: dict[str, Any] = {
        "slave": {"is_slave": True},
        "too early": {"start_accept_timestamp_ms": 2**60},
        "too many": {"max_pending_sends": 0},
    }.get(gate, {})
    broker = make(**send_limits)
    if gate == "refuses":
        broker.sends.refuse_all = "thread log-dispatch has failed"
    elif gate == "held":
        broker.log.hold_appends("a nearly full disk")
    elif gate == "hangs":
        broker.log.lock_held_since = 1e-9
    peer = broker.connect()
    await turn((peer, send(1)), (peer, send(2)))
    assert broker.taken == 0
    assert [code != 0 for _, code in codes(peer)] == [True, True]
    assert bodies(broker) == []


@story
async def test_no_more_are_taken_than_may_wait_for_proofs(make: Callable[..., Broker], crowd: float) -> None:
    broker = make(sync=True, max_pending_sends=3)
    peer = broker.connect()
    await turn((peer, send(1) + send(2)))
    await turn((peer, send(3) + send(4) + send(5)))
    assert broker.sends.pending == 3
    assert sorted(codes(peer)) == [(4, ResponseCode.SYSTEM_BUSY), (5, ResponseCode.SYSTEM_BUSY)]
    broker.ack()
    await turn()
    assert sorted(codes(peer))[:3] == [(1, 0), (2, 0), (3, 0)]


@story
async def test_sends_wait_for_the_slave_unless_they_say_that_they_do_not(
    make: Callable[..., Broker], crowd: float
) -> None:
    broker = make(sync=True)
    peer = broker.connect()
    await turn((peer, send(1) + wait_false(2) + send(3) + wait_false(4) + send(5, oneway=True)))
    assert codes(peer) == [(2, 0), (4, 0)]
    assert broker.sends.pending == 2
    third = records_of(broker.log)[2]
    assert broker.slave.ends == [third.physical_offset + third.size]
    broker.ack(ok=False)
    await turn()
    assert codes(peer)[2:] == [(1, ResponseCode.FLUSH_SLAVE_TIMEOUT), (3, ResponseCode.FLUSH_SLAVE_TIMEOUT)]
    assert broker.sends.pending == 0
    broker.slave.ok = False
    await turn((peer, send(6) + wait_false(7)))
    assert codes(peer)[4:] == [(6, ResponseCode.SLAVE_NOT_AVAILABLE), (7, 0)]


@story
async def test_who_waits_in_vain_hears_why(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that went the short way, whose answers have no words else."""
    broker, waits = make(sync=True), list[Wait]()
    monkeypatch.setattr(broker.durability, "put_status", lambda end, wait: waits.append(wait))
    connection, wire = broker.connect()
    connection.data_received(send(41) + send(42))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for wait in waits:
        wait.settled(PutStatus.NOT_AGREED)
    await asyncio.sleep(0)
    assert broker.taken > 0
    assert [(answer.opaque, answer.code) for answer in wire.answers()] == [(41, 1), (42, 1)]
    assert {answer.remark for answer in wire.answers()} == {PutStatus.NOT_AGREED.remark}
    assert broker.sends.pending == 0


@story
async def test_a_peer_that_has_gone_costs_the_others_nothing(
    make: Callable[..., Broker], crowd: float
) -> None:
    broker = make(sync=True)
    gone, here = broker.connect(port=1), broker.connect(port=2)
    await turn((gone, send(1)), (here, send(2)))
    gone[0].connection_lost(None)
    broker.ack()
    await turn()
    assert codes(here) == [(2, 0)]
    assert gone[1].written == []
    assert broker.sends.pending == 0


@story
async def test_a_topic_that_changes_is_looked_at_again(make: Callable[..., Broker], crowd: float) -> None:
    broker = make()
    peer = broker.connect()
    await turn((peer, send(1, e="3")))
    broker.topics.update(topic_config("T", 2, 6))
    await turn((peer, send(2, e="3")))
    broker.topics.update(topic_config("T", 8, 6))
    await turn((peer, send(3, e="7")))
    broker.topics.delete("T")
    await turn((peer, send(4, e="3", c="none")))
    assert codes(peer) == [
        (1, 0),
        (2, ResponseCode.SYSTEM_ERROR),
        (3, 0),
        (4, ResponseCode.TOPIC_NOT_EXIST),
    ]
    broker.admission.configure(SendRules("C", 6, 4))
    broker.topics.update(topic_config("T", 4, 6))
    await turn((peer, send(5)))
    assert codes(peer)[-1] == (5, ResponseCode.MESSAGE_ILLEGAL)


@story
async def test_a_topic_that_changes_amid_a_turn_gives_no_place_twice(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haservice.broker.send.processor.CROWD_S", CROWD)
    broker = make()
    peers = [broker.connect(port=1 + number) for number in range(3)]
    await turn((peers[0], send(1)), (peers[1], send(2)))
    peers[1][0].data_received(send(3))
    broker.topics.update(topic_config("T", 8, 6))
    await turn((peers[2], send(4)), (peers[0], send(5)))
    assert [record.queue_offset for record in records_of(broker.log)] == [0, 1, 2, 3, 4]
    assert broker.taken == 5 * len(send(1))


@story
async def test_more_queues_than_are_remembered_go_the_short_way_all_the_same(
    make: Callable[..., Broker], crowd: float
) -> None:
    broker = make()
    for number in range(6):
        broker.topics.update(topic_config(f"W{number}", 30_000, 6))
    broker.topics.update(topic_config("Wide", 1_000_000, 6))
    peer, other = broker.connect(port=1), broker.connect(port=2)
    await turn((other, send(100)), (peer, send(101)))
    sent = b"".join(send(number, f"W{number % 6}") for number in range(18))
    await turn((peer, sent))
    await turn((peer, send(20, "Wide", e="999999")))
    assert broker.taken == len(send(100)) + len(send(101)) + len(sent)
    assert sorted(codes(peer)) == [*((number, 0) for number in range(18)), (20, 0), (101, 0)]
    for number in range(6):
        assert broker.log.queue_offsets[f"W{number}", 0] == 3


@story
async def test_topics_that_are_not_there_are_not_remembered(make: Callable[..., Broker]) -> None:
    """Their names come from whoever sends."""
    broker = make()
    peer = broker.connect()
    for number in range(50):
        await turn((peer, send(number, f"none-{number}", c="none")))
    assert broker.taken == 0
    await turn((peer, send(1, "none-1", e="1") + send(2, "none-1", e="1")))  # made by the first
    assert codes(peer)[-2:] == [(1, 0), (2, 0)]
    await turn((peer, send(3, "none-1", e="1")))
    assert broker.taken == len(send(3, "none-1", e="1"))


@story
async def test_more_than_a_run_holds_is_stored_in_several(make: Callable[..., Broker], crowd: float) -> None:
    broker = make(max_pending_sends=100_000)
    peer, other = broker.connect(port=1), broker.connect(port=2)
    await turn((other, send(1)), (peer, send(2)))
    many = b"".join(send(number, body=b"") for number in range(10, 9010))
    await turn((peer, many))
    assert broker.taken == len(many) + len(send(1)) + len(send(2))
    assert codes(peer)[1:] == [(number, 0) for number in range(10, 9010)]
    assert broker.log.queue_offsets["T", 0] == 9002


@story
async def test_other_gates_are_told_in_the_next_answers(make: Callable[..., Broker], crowd: float) -> None:
    broker = make()
    peer = broker.connect()
    await turn((peer, send(1)))
    broker.sends.configure(broker.send_limits._replace(region_id="Mars", trace_on=False))
    await turn((peer, send(2)))
    first, second = peer[1].answers()
    assert (first.ext["MSG_REGION"], first.ext["TRACE_ON"]) == ('R"ü', "true")
    assert (second.ext["MSG_REGION"], second.ext["TRACE_ON"]) == ("Mars", "false")


@story
async def test_a_log_that_fails_as_it_must_not_answers_every_send(
    make: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, crowd: float
) -> None:
    broker = make()

    def broken(run: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broker.log, "append_run", broken)
    peer = broker.connect()
    await turn((peer, send(1) + send(2)))
    assert codes(peer) == [(1, ResponseCode.SYSTEM_ERROR), (2, ResponseCode.SYSTEM_ERROR)]
    assert peer[1].answers()[0].remark == "RuntimeError: a bug"
    monkeypatch.undo()
    await turn((peer, send(3)))
    assert codes(peer)[-1] == (3, 0)
    assert len(bodies(broker)) == 1


@story
async def test_properties_are_stored_as_they_were_meant(make: Callable[..., Broker], crowd: float) -> None:
    broker = make()
    peer = broker.connect()
    await turn((peer, send(1, i="A\\u0001\\u00fc\\u20ac\\ud83d\\ude00ü\\n\\u0002WAIT\\u0001false\\u0002")))
    assert broker.taken
    (record,) = records_of(broker.log)
    assert decode_properties(record.properties) == {"A": "ü€😀ü\n", "CLUSTER": "C"}


def test_a_guard_sees_every_send(make: Callable[..., Broker]) -> None:
    broker = make()
    assert Dispatch(broker.sends.handlers()).fast_path is not None
    assert Dispatch(broker.sends.handlers(), guard=lambda connection, request: None).fast_path is None


@story
async def test_a_region_that_looks_like_a_part_of_answers_is_only_a_region(
    make: Callable[..., Broker],
) -> None:
    region = f'1900000001 0123456789abcdef queue-0123456789 1900000002 "opaque":1 {STORE_HOST.hex().upper()}'
    broker = make(region_id=region)
    peer = broker.connect()
    await turn((peer, send(1)))
    (answer,) = peer[1].answers()
    assert (answer.opaque, answer.code, answer.ext["MSG_REGION"]) == (1, 0, region)
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
    assert broker.taken
