"""Fake slaves at our master, fake masters at our slave: neither gets more than a closed connection.

A stranger's acks are no proof that anybody holds a message, so a SYNC_MASTER without a real slave goes on
saying SLAVE_NOT_AVAILABLE; a stranger's frames do not move the slave's log, or any file outside its store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.record import Message, encode, encode_host, stamp
from haservice.admin.calls import Admin
from haservice.admin.pair import ScratchPair
from haservice.remoting.headers import CreateTopicHeader
from tests.cluster.support import (
    QUEUES,
    TOPIC,
    log_end,
    numbered,
    read,
    send,
    send_ok,
    start_with_topic,
    wait_level,
)
from tests.support.replication import MasterEnd, ScriptedMaster, ScriptedSlave
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

MakePair = Callable[..., ScratchPair]
Ask = Callable[[ScratchPair], Admin]

HTTP = b"GET / HTTP/1.1\r\nHost: broker-a\r\n\r\n"
SEGMENT_BYTES = 1024 * 1024
STORE_HOST = encode_host("127.0.0.1", 10911)


def statuses(pair: ScratchPair, first: int, last: int) -> set[str]:
    return {one.status for one in send(pair.master_addr, numbered(first, last))}


def is_alone(pair: ScratchPair, admin: Admin) -> bool:
    """The master counts no slave."""
    status = admin.ha_status(pair.master_addr)
    assert status is not None
    return not status.in_sync_slave_nums and not status.ha_connection_info


def start_lonely(pair: ScratchPair, admin: Admin) -> int:
    """A master without a slave that has 20 messages; where its log ends."""
    pair.start_nameserver()
    pair.start_master()
    admin.update_topic(pair.master_addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
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
    wait_level(pair, ask)
    send_ok(pair.master_addr, numbered(60, 80))


class FakeMaster:
    """Sends the slave one good record on each connection, and then what is no frame."""

    def __init__(self, listener: ScriptedMaster, queue_offset: int) -> None:
        self._listener = listener
        self._queue_offset = queue_offset
        self.bodies: list[bytes] = []
        self.end = 0

    def record(self, topic: str, body: bytes) -> bytes:
        record = encode(Message(topic, 0, body, b""), STORE_HOST)
        stamp(record, self._queue_offset, self.end, 1_800_000_000_000)
        return bytes(record)

    def converse(self, bad: Callable[[MasterEnd, int], None]) -> None:
        with self._listener.accept() as slave:
            reported = slave.report()
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
    "half a header": lambda slave, _: (slave.send(b"\0\0\0\0"), slave.socket.shutdown(1)),
}


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

        # A frame that is one, with a record that would be a path: it is in the log, and in no queue.
        fake.converse(lambda slave, end: poison(fake, slave, end))
        wait_until(lambda: log_end(ask, pair.slave_addr) > fake.end, "the record has come")
        wait_until(lambda: "dispatch stopped" in pair.processes["broker-a-s"].output(), "it is found out")
        assert read(ask, pair.slave_addr) == sorted(before + fake.bodies)
    assert files_around(pair) == on_disk
    queues = pair.store("broker-a-s") / "consumequeue"
    assert [path.name for path in queues.iterdir()] == [TOPIC]
    assert "Traceback" not in pair.processes["broker-a-s"].output()


def poison(fake: FakeMaster, slave: MasterEnd, end: int) -> None:
    record = fake.record("../../x", b"poison")
    slave.frame(end, record)
    slave.reports_to(end + len(record))
    slave.socket.shutdown(1)
