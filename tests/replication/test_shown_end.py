"""What a slave with haReadMark=STRICT shows: what its masters told to be acknowledged, over real sockets too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haservice.bounds import OFFSET_MAX
from haservice.configuration.settings import BrokerRole, ReadMark
from haservice.errors import ProtocolError
from haservice.replication.master import outgoing
from haservice.replication.master.greeter import Greets
from haservice.replication.slave import session as slave_session
from haservice.replication.slave.rejoin import Rejoin
from haservice.replication.slave.service import SlaveHAService
from haservice.replication.slave.shown_end import NOT_TOLD, ShownEnd
from haservice.replication.wire.greeting import MasterGreeting
from haservice.replication.wire.protocol import MARK_OFFSET, TRANSFER_HEADER, TransferReader, mark_bytes
from tests.replication.test_greeted_pair import Broker
from tests.replication.test_protocol import Slave, frames
from tests.support.replication import CONFIG, AnyBytes, ScriptedMaster, ScriptedSlave, master, pattern, slave
from tests.support.waiting import wait_until

STRICT = replace(CONFIG, read_mark=ReadMark.STRICT)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: nobody is taken for a stock peer.  Marks come as often as may be."""
    monkeypatch.setattr(slave_session, "STRANGER_S", 60.0)
    monkeypatch.setattr(outgoing, "MARK_S", 0.02)


@contextmanager
def follows(one: Broker, port: int | None, **options: Any) -> Iterator[SlaveHAService]:
    rejoin = Rejoin(one.facts, one.lineage, one.log, one.store, takes_marks=True)
    with slave(one.log, port, config=STRICT, rejoin=rejoin, **options) as service:
        yield service


# -- the rule ---------------------------------------------------------------------------------------


def test_a_slave_shows_what_was_told_and_nothing_else() -> None:
    rises: list[int] = []
    shown = ShownEnd(100, lambda: rises.append(shown.end))
    assert shown.end == 100
    shown.told(300)
    shown.told(250)
    assert shown.end == 300, "between cuts it never falls"
    assert rises == [300]


def test_what_parts_from_the_master_is_shown_no_longer() -> None:
    shown = ShownEnd(800)
    shown.rejoined(500, 0)
    assert (shown.end, shown.acknowledged) == (500, 500), "behind 500 other bytes come"
    shown.rejoined(900, 700)
    assert shown.end == 700


def test_a_master_that_does_not_tell_hides_nothing_as_always() -> None:
    shown = ShownEnd(100)
    shown.rejoined(500, NOT_TOLD)
    assert (shown.end, shown.acknowledged) == (OFFSET_MAX, 100)
    shown.rejoined(900, 700)
    assert shown.end == 700, "and one that tells counts again"
    shown.untold()
    assert shown.end == OFFSET_MAX


# -- the wire ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("slice_bytes", [1, 7, 12, 19, 20, 21, 4096])
def test_marks_between_frames_in_any_slices(slice_bytes: int, build: str) -> None:
    marks: list[int] = []
    one = Slave()
    one.reader.on_mark = marks.append
    stream = (
        frames(10, 400) + mark_bytes(10) + frames(1000, 1200, start=400) + mark_bytes(400) + mark_bytes(1200)
    )
    stream += frames(1500, start=1200)
    for start in range(0, len(stream), slice_bytes):
        one.feed(stream[start : start + slice_bytes])
    assert marks == [10, 400, 1200]
    assert one.data == pattern(0, 1500)


def test_a_mark_that_nobody_asked_for_ends_the_stream(build: str) -> None:
    one = Slave()
    one.reader.on_mark = print
    one.reader.reset()
    with pytest.raises(ProtocolError, match=f"transfer at {MARK_OFFSET}"):
        one.feed(frames(10) + mark_bytes(10))


@pytest.mark.parametrize("bad", [TRANSFER_HEADER.pack(MARK_OFFSET, 9) + bytes(9), mark_bytes(-1)])
def test_a_mark_that_cannot_be_ends_the_stream(bad: bytes, build: str) -> None:
    marks: list[int] = []
    reader = TransferReader(1000, 4096)
    reader.on_mark = marks.append
    reader.space()[: len(bad)] = bad
    reader.received(len(bad))
    with pytest.raises(ProtocolError, match="a mark of"):
        reader.runs(0)
    assert marks == []


# -- two of ours ------------------------------------------------------------------------------------


@pytest.fixture
def a(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path, "a")
    broker.begin()
    return broker


@pytest.fixture
def b(tmp_path: Path) -> Broker:
    return Broker(tmp_path, "b", replica=True)


def test_a_slave_is_told_what_is_acknowledged_and_keeps_that_over_a_restart(a: Broker, b: Broker) -> None:
    a.write(100, 200)
    with a.leads(in_sync_replicas=3) as ha:
        with follows(b, ha.port) as replica:
            wait_until(lambda: b.log.end == a.log.end and replica.connected)
            wait_until(lambda: ha.push2slave_max_offset == a.log.end, "this slave has acknowledged all")
            assert replica.readable_end() == 0, "but an OK takes another one"
            with ScriptedSlave(ha.port) as other:
                other.report(0)
                other.frames_to(a.log.end)
                other.report(a.log.end)
                rises = a.log.end
                wait_until(lambda: replica.readable_end() == rises, "the slave is told")
            a.write(100)
            wait_until(lambda: b.log.end == a.log.end)
            assert replica.readable_end() == rises
        with follows(b, None) as alone:
            assert alone.readable_end() == rises, "it was written down"


def test_whoever_waits_below_the_mark_is_woken(a: Broker, b: Broker) -> None:
    woken: list[int] = []
    with (
        a.leads() as ha,
        follows(b, ha.port, on_mark=lambda: woken.append(replica.readable_end())) as replica,
    ):
        wait_until(lambda: replica.connected)
        a.write(100)
        wait_until(lambda: replica.readable_end() == a.log.end > 0, "the slave is told")
        wait_until(lambda: woken[-1:] == [a.log.end])


def test_an_ex_master_never_shows_the_tail_that_nobody_else_has(tmp_path: Path, a: Broker, b: Broker) -> None:
    """From its first moment as a slave on; nor what the next master writes, before that is acknowledged."""
    common = a.write(100, 200)
    with a.leads() as ha, follows(b, ha.port):
        wait_until(lambda: ha.push2slave_max_offset == common)
    tail = a.write(700)
    a.log.close()
    b.log.close()
    promoted, back = Broker(tmp_path, "b"), Broker(tmp_path, "a", replica=True)
    promoted.begin()
    # As a start writes it for inSyncReplicas=3: how many acks an OK takes is part of the list of replicas.
    promoted.lineage.update(members=replace(promoted.lineage.state.members, needed=2))
    unproven = promoted.write(300, 400)
    assert back.log.end == tail
    with promoted.leads(in_sync_replicas=3) as ha, follows(back, None) as replica:
        assert replica.readable_end() <= common
        replica.set_master_address(f"127.0.0.1:{ha.port}")
        wait_until(
            lambda: ha.push2slave_max_offset == unproven == back.log.end, "the tail is cut, the rest copied"
        )
        assert replica.readable_end() <= common
        with ScriptedSlave(ha.port) as other:
            other.report(0)
            other.frames_to(unproven)
            other.report(unproven)
            wait_until(lambda: replica.readable_end() == unproven, "it has as many as an OK takes")


def test_an_async_master_tells_all_that_it_shows(a: Broker, b: Broker) -> None:
    a.write(100, 200)
    options = {"greets": Greets(a.lineage, a.facts), "role": BrokerRole.ASYNC_MASTER}
    with master(a.log, options=options) as ha, follows(b, ha.port) as replica:
        wait_until(lambda: b.log.end == a.log.end)
        wait_until(lambda: replica.readable_end() == a.log.end)


def test_an_older_master_of_ours_hides_nothing(a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    said = MasterGreeting.hello

    def older(greeting: MasterGreeting) -> bytes:
        greeting._acknowledged = None
        return said(greeting)

    monkeypatch.setattr(MasterGreeting, "hello", older)
    a.write(100, 200)
    with a.leads(in_sync_replicas=3) as ha, follows(b, ha.port) as replica:
        wait_until(lambda: replica.readable_end() == a.log.end > 0, "all that is there is shown")


def test_a_slave_that_did_not_ask_gets_no_marks(a: Broker, b: Broker) -> None:
    a.write(100)
    with a.leads() as ha, b.follows(ha.port) as replica:
        wait_until(lambda: ha.push2slave_max_offset == a.log.end)
        (connection,) = ha._accept.connections
        assert connection.outgoing.acknowledged is None
        assert replica.readable_end() == a.log.end


def test_a_master_whose_log_lost_its_end_forgets_what_it_was_told_there(a: Broker) -> None:
    """Other bytes take that place; if it becomes a slave again, they must not count as acknowledged."""
    end = a.write(100)
    a.lineage.update(acknowledged=end + 500)
    with a.leads():
        assert a.lineage.state.acknowledged == end


def test_a_stock_master_hides_nothing(b: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_session, "STRANGER_S", 600.0)
    with (
        ScriptedMaster() as master,
        follows(b, master.port, check=AnyBytes()) as replica,
        master.accept() as end,
    ):
        assert end.report() == -1
        assert replica.readable_end() == 0
        end.frame(0, b"")
        assert end.report() == 0
        end.frame(0, pattern(0, 100))
        end.reports_to(100)
        assert replica.readable_end() == 100
