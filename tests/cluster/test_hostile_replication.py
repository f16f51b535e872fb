"""Fake slaves at our master, fake masters at our slave: neither gets more than a closed connection.

A stranger's acks are no proof that anybody holds a message, so a SYNC_MASTER without a real slave goes on
saying SLAVE_NOT_AVAILABLE; a stranger's frames do not move the slave's log, or any file outside its store.
What the secure door does is in test_secure_replication.py.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from commitlog.kernel.records import NewMessage, encode, encode_host, stamp
from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from haservice.replication.wire.protocol import REPORT
from tests.cluster.support import (
    QUEUES,
    TOPIC,
    Ask,
    MakePair,
    log_end,
    numbered,
    read,
    send,
    send_ok,
    start_master_with_topic,
    start_with_topic,
    wait_caught_up,
)
from tests.support.replication import MasterEnd, ScriptedMaster, ScriptedSlave
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.cluster


HTTP = b"GET / HTTP/1.1\r\nHost: broker-a\r\n\r\n"
SEGMENT_BYTES = 1024 * 1024
STORE_HOST = encode_host("127.0.0.1", 10911)


def statuses(pair: ScratchPair, first: int, last: int) -> set[str]:
    return {one.status for one in send(pair.master_addr, numbered(first, last))}


def is_alone(pair: ScratchPair, admin: MQAdmin) -> bool:
    """The master counts no slave."""
    status = admin.ha_status(pair.master_addr)
    assert status is not None
    return not status.in_sync_slave_nums and not status.ha_connection_info


def start_lonely(pair: ScratchPair, admin: MQAdmin) -> int:
    """A master without a slave that has 20 messages; where its log ends."""
    start_master_with_topic(pair, admin)
    assert statuses(pair, 0, 20) == {"SLAVE_NOT_AVAILABLE"}
    return log_end(admin, pair.master_addr)


def test_acks_that_cannot_be_true_prove_nothing(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER", slaveTimeout="300")
    ask = admin(pair)
    end = start_lonely(pair, ask)
    first_reports = [end + 1, 2**48, 2**56 - 1, -2, -(2**56), -1 << 40]
    for number, report in enumerate(first_reports, 1):
        with ScriptedSlave(pair.ha_port()) as fake:
            fake.report(report)
            fake.ends()
        wait_until(lambda: is_alone(pair, ask), f"first report {report}: nobody is left")
        assert statuses(pair, number * 20, number * 20 + 20) == {"SLAVE_NOT_AVAILABLE"}, report


@pytest.mark.parametrize("beyond", [1, 4096, 2**40])
def test_a_slave_that_acks_what_it_was_not_sent_is_sent_away(
    make_pair: MakePair, admin: Ask, beyond: int
) -> None:
    pair = make_pair("SYNC_MASTER", slaveTimeout="300")
    ask = admin(pair)
    end = start_lonely(pair, ask)
    with ScriptedSlave(pair.ha_port()) as fake:
        fake.report(0)
        fake.frames_to(end)
        fake.report(end + beyond)
        fake.ends()
    wait_until(lambda: is_alone(pair, ask), "nobody is left")
    assert statuses(pair, 20, 40) == {"SLAVE_NOT_AVAILABLE"}


def test_a_slave_that_acks_nothing_keeps_no_send_from_its_answer(make_pair: MakePair, admin: Ask) -> None:
    """It takes the log up to here and acks nothing more: sends wait for it, in vain, and say so."""
    pair = make_pair("SYNC_MASTER", slaveTimeout="300")
    ask = admin(pair)
    end = start_lonely(pair, ask)
    with ScriptedSlave(pair.ha_port()) as fake, ScriptedSlave(pair.ha_port()) as stranger:
        fake.report(0)
        fake.frames_to(end)
        fake.report(end)
        stranger.send(HTTP)
        stranger.ends()
        wait_until(lambda: not is_alone(pair, ask), "it is taken for a slave")
        assert statuses(pair, 20, 40) == {"FLUSH_SLAVE_TIMEOUT"}
    wait_until(lambda: is_alone(pair, ask), "nobody is left")
    # For a moment it is waited for, as a slave that was merely cut off.
    wait_until(lambda: statuses(pair, 40, 60) == {"SLAVE_NOT_AVAILABLE"}, "it is given up")
    # A real slave is welcome as ever.
    pair.start_slave()
    wait_caught_up(pair, ask)
    send_ok(pair.master_addr, numbered(60, 80))


def test_a_slave_from_outside_the_allow_list_gets_nothing(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER", slaveTimeout="300", haAllowedSlaves="127.0.0.2/32,10.0.0.0/8")
    ask = admin(pair)
    start_lonely(pair, ask)
    for _ in range(100):
        with ScriptedSlave(pair.ha_port()) as fake:
            with contextlib.suppress(OSError):
                fake.report(0)
            assert fake.closed()
    assert statuses(pair, 20, 40) == {"SLAVE_NOT_AVAILABLE"}
    said = [line for line in pair.processes["broker-a"].output().splitlines() if "haAllowedSlaves" in line]
    assert len(said) < 10, "it is told, and not a hundred times"
    assert "127.0.0.1 is in no network of haAllowedSlaves" in said[0]


def test_ten_thousand_hostile_reports_make_no_send_ok(make_pair: MakePair, admin: Ask) -> None:
    """While sends go on: by no report that cannot be true is anybody told that a slave has it."""
    pair = make_pair("SYNC_MASTER", slaveTimeout="300")
    ask = admin(pair)
    end = start_lonely(pair, ask)
    # Above all that will ever be there, or no offset at all; as the first word, or after an honest one.
    choose = random.Random(4)
    words = [choose.choice((end + 2**30, 2**40, 2**55, -2, -3, -(2**40), -(2**56))) for _ in range(10_000)]
    found: set[str] = set()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(
            lambda: [found.update(statuses(pair, at, at + 20)) for at in range(20, 400, 20)]
        )
        for number in range(0, len(words), 4):
            with ScriptedSlave(pair.ha_port()) as fake, contextlib.suppress(OSError):
                if number % 3 == 0:
                    fake.report(0, words[number])
                fake.report(*words[number : number + 4])
                if number % 5 == 0:
                    fake.ends()
        sending.result(5 * PATIENCE_S)
    assert "SEND_OK" not in found
    wait_until(lambda: is_alone(pair, ask), "nobody is left")
    wait_until(lambda: statuses(pair, 400, 420) == {"SLAVE_NOT_AVAILABLE"}, "sends say so")


def test_a_conversation_that_is_played_back_proves_nothing(make_pair: MakePair, admin: Ask) -> None:
    """All that a real slave said, said again by a stranger once the slave is gone: no send is OK by it."""
    pair = make_pair("SYNC_MASTER", slaveTimeout="300")
    ask = admin(pair)
    start_master_with_topic(pair, ask)
    with Recorder(pair.ha_port()) as recorder:
        pair.start_slave(haMasterAddress=f"127.0.0.1:{recorder.port}")
        wait_caught_up(pair, ask)
        send_ok(pair.master_addr, numbered(0, 60))
        wait_caught_up(pair, ask)
        pair.processes["broker-a-s"].kill()
        said = recorder.said
    assert len(said) > 24, "it has greeted, and reported"
    wait_until(lambda: is_alone(pair, ask), "the slave is gone")
    wait_until(lambda: statuses(pair, 60, 61) == {"SLAVE_NOT_AVAILABLE"}, "it is given up")
    for _ in range(3):
        with ScriptedSlave(pair.ha_port()) as replay:
            with contextlib.suppress(OSError):
                replay.send(said)
            assert "SEND_OK" not in statuses(pair, 61, 81)


class Recorder:
    """Stands between a slave and its master, and keeps what the slave says on its first connection."""

    def __init__(self, master_port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._master_port = master_port
        self._links: list[socket.socket] = []
        self._pool = ThreadPoolExecutor(16)
        self.port: int = self._listener.getsockname()[1]
        self.said = b""

    def __enter__(self) -> Recorder:
        self._pool.submit(self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._links):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._pool.shutdown()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                slave, _ = self._listener.accept()
                master = socket.create_connection(("127.0.0.1", self._master_port))
                first = not self._links
                self._links += [slave, master]
                self._pool.submit(self._carry, slave, master, first)
                self._pool.submit(self._carry, master, slave, False)

    def _carry(self, source: socket.socket, target: socket.socket, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if keep:
                    self.said += data
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


HALF_HELLO = REPORT.pack(-1) + REPORT.pack(-2) + REPORT.pack(200_000) + b'{"version":1,"replicaId":"'


@pytest.mark.parametrize("words", [b"", REPORT.pack(-1), HALF_HELLO], ids=["silent", "calls", "half hellos"])
def test_a_thousand_strangers_do_not_touch_the_slave_at_work(
    make_pair: MakePair, admin: Ask, words: bytes
) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    master = pair.processes["broker-a"]
    slave_link = link_of(pair, ask)
    before = census(master.pid)
    crowd: list[socket.socket] = []
    try:
        for number in range(1000):
            crowd.append(socket.create_connection(("127.0.0.1", pair.ha_port())))
            with contextlib.suppress(OSError):
                crowd[-1].sendall(words)
            if number % 100 == 0:
                first = number // 5
                send_ok(pair.master_addr, numbered(first, first + 20))
        threads, _ = census(master.pid)
        assert threads <= before[0] + 2 * 2 * 8, "as many as one address has places, and not a thousand"
    finally:
        for one in crowd:
            one.close()
    send_ok(pair.master_addr, numbered(200, 300))
    wait_caught_up(pair, ask)
    assert link_of(pair, ask) == slave_link, "the same connection, all the time"
    wait_until(lambda: census(master.pid) == before, "threads and descriptors are back")


def census(pid: int) -> tuple[int, int]:
    """Threads and sockets of the process."""
    sockets = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets += "socket:" in str(descriptor.readlink())
    return len(list(Path(f"/proc/{pid}/task").iterdir())), sockets


def link_of(pair: ScratchPair, admin: MQAdmin) -> str:
    """The address of the slave's connection at its master, in sync."""
    status = admin.ha_status(pair.master_addr)
    assert status is not None
    (slave,) = [one for one in status.ha_connection_info if one.in_sync]
    return slave.addr


class FakeMaster:
    """Sends the slave one good record on each connection, and then what is no frame."""

    def __init__(self, listener: ScriptedMaster, queue_offset: int) -> None:
        self._listener = listener
        self._queue_offset = queue_offset
        self.bodies: list[bytes] = []
        self.end = 0

    def record(self, topic: str, body: bytes) -> bytes:
        record = encode(NewMessage(topic, 0, body, b""), STORE_HOST)
        stamp(record, self._queue_offset, self.end, 1_800_000_000_000)
        return bytes(record)

    def converse(self, bad: Callable[[MasterEnd, int], None]) -> None:
        with self._listener.accept() as slave:
            reported = slave.first_position()
            assert self.end in (0, reported)
            self.end = reported
            body = b"good record %06d" % len(self.bodies)
            record = self.record(TOPIC, body)
            slave.frame(self.end, record)
            self._queue_offset += 1
            self.end += len(record)
            self.bodies.append(body)
            slave.reports_to(self.end)
            bad(slave, self.end)
            slave.ends()


def frame(
    offset: int | None = None, size: int | None = None, body: bytes = b"x" * 100, ahead: int = 0
) -> Callable[[MasterEnd, int], None]:
    """Sends one frame; where nothing is said, what it says is true."""

    def send_it(slave: MasterEnd, end: int) -> None:
        slave.frame(end + ahead if offset is None else offset, body, size)

    return send_it


def hello(body: bytes, size: int | None = None) -> Callable[[MasterEnd, int], None]:
    """Says hello as a master of ours would, but amid transfers, or with such a body."""
    return lambda slave, _: slave.frame(-1, body, size)


def record_of(topic: str, offset: int, wrong_byte: bool = False) -> bytes:
    """A whole record for this offset; one of its body's bytes may be another one than its CRC says."""
    record = encode(NewMessage(topic, 0, b"y" * 200, b""), STORE_HOST)
    stamp(record, 1000, offset, 1_800_000_000_000)
    record[record.index(b"y" * 200) + 100] ^= 0xFF if wrong_byte else 0
    return bytes(record)


BAD_FRAMES = {
    "a negative size": frame(size=-1),
    "the most negative size": frame(size=-(2**31)),
    "a giant size": frame(size=2**31 - 1),
    "more than a slave's buffer": frame(size=4 * 1024 * 1024),
    "beyond the segment": frame(body=b"", size=SEGMENT_BYTES),
    "a gap": frame(ahead=1),
    "an overlap": frame(ahead=-1),
    "a negative offset": frame(offset=-1),
    "a far offset": frame(offset=2**62),
    "an HTTP answer": lambda slave, _: slave.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "a record with a wrong byte": lambda slave, end: slave.frame(end, record_of(TOPIC, end, True)),
    "bytes that are no record": frame(body=b"\xda\xa3\x20\xa7" * 50),
    "a topic that would be a path": lambda slave, end: slave.frame(end, record_of("../../x", end)),
    "a hello that is larger than any": hello(b"", size=2**30),
    "half a header": lambda slave, _: (slave.send(b"\0\0\0\0"), slave.socket.shutdown(1)),
    # Last: it makes the slave wait for a hello when it comes back.
    "a hello that is a bomb, amid transfers": hello(b"[" * 200_000),
}


@pytest.mark.parametrize("first", ["hello", "frames"])
def test_a_first_frame_amid_a_segment_is_not_believed_by_an_empty_slave(
    make_pair: MakePair, admin: Ask, first: str
) -> None:
    """An empty log begins where a segment begins, or not at all."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    pair.start_nameserver()
    with ScriptedMaster() as listener:
        pair.start_slave(haMasterAddress=f"127.0.0.1:{listener.port}")
        for offset in (SEGMENT_BYTES + 12345, 1, 2**40 + 8):
            with listener.accept() as slave:
                if first == "hello":
                    slave.frame(-1, master_hello(start=offset, end=offset + 4096, epochs=epochs((1, offset))))
                    slave.frame(-2, b'{"accepted":true}')
                else:
                    assert slave.first_position() == 0
                with contextlib.suppress(OSError):
                    slave.frame(offset, record_of(TOPIC, offset))
                slave.ends()
        assert log_end(ask, pair.slave_addr) == 0


def master_hello(**changes: object) -> bytes:
    said: dict[str, object] = {
        "version": 1,
        "replicaId": "f" * 32,
        "clusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerAddr": "127.0.0.1:1",
        "role": "SYNC_MASTER",
        "segmentBytes": SEGMENT_BYTES,
        "epochs": epochs((1, 0)),
    }
    return orjson.dumps(said | changes)


def epochs(*rising: tuple[int, int]) -> list[dict[str, object]]:
    return [{"epoch": number, "start": start, "master": "f" * 32} for number, start in rising]


# What a stranger may say when our slave calls, and the slave's log and files stay as they are.
BAD_HELLOS: dict[str, dict[str, object]] = {
    "epochs that fall": {"epochs": epochs((2, 0), (1, 100))},
    "epochs that are a text": {"epochs": "1@0"},
    "a negative end": {"end": -1},
    "an end that is a text": {"end": "12"},
    "no id": {"replicaId": None},
    "another broker's name": {"brokerName": "broker-b"},
    "an epoch from the far future": {"epochs": epochs((2**62, 0))},
}


def test_hellos_of_a_fake_master_move_nothing(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    before = numbered(0, 50)
    send_ok(pair.master_addr, before)
    wait_caught_up(pair, ask)
    end = log_end(ask, pair.slave_addr)
    pair.processes["broker-a-s"].stop()
    pair.processes["broker-a"].kill()
    with ScriptedMaster() as listener:
        pair.start_slave(haMasterAddress=f"127.0.0.1:{listener.port}")
        for changes in BAD_HELLOS.values():
            with listener.accept() as slave:
                with contextlib.suppress(OSError):  # it may hang up at the first word
                    slave.frame(-1, master_hello(**{"start": 0, "end": end, **changes}))
                    slave.frame(-2, b'{"accepted":true}')
                slave.ends()
        assert log_end(ask, pair.slave_addr) == end
        assert read(ask, pair.slave_addr) == before
    assert not (pair.store("broker-a-s") / "cut").exists(), "nothing was cut off"
    assert "Traceback" not in pair.processes["broker-a-s"].output()


def files_around(pair: ScratchPair) -> list[Path]:
    return sorted([*pair.root.iterdir(), *pair.root.parent.iterdir()])


def test_frames_of_a_fake_master_move_nothing(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    before = numbered(0, 50)
    send_ok(pair.master_addr, before)
    pair.processes["broker-a-s"].stop()
    pair.processes["broker-a"].kill()
    on_disk = files_around(pair)

    with ScriptedMaster() as listener:
        pair.start_slave(haMasterAddress=f"127.0.0.1:{listener.port}")
        assert Counter(read(ask, pair.slave_addr)) == Counter(before)
        in_queue_0 = len(before) // QUEUES
        fake = FakeMaster(listener, in_queue_0)
        for bad in BAD_FRAMES.values():
            fake.converse(bad)
        wait_until(
            lambda: read(ask, pair.slave_addr) == sorted(before + fake.bodies),
            "the slave serves what was good, and nothing else",
        )
        assert log_end(ask, pair.slave_addr) == fake.end
    assert files_around(pair) == on_disk
    queues = pair.store("broker-a-s") / "consumequeue"
    assert [path.name for path in queues.iterdir()] == [TOPIC]
    assert "Traceback" not in pair.processes["broker-a-s"].output()
