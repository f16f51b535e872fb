"""Greetings over real sockets: two of ours, and each of ours against scripted peers of either kind."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.log.log import CommitLog
from haservice import __version__
from haservice.bounds import OFFSET_MAX
from haservice.broker.lease.office import Office
from haservice.deadline import Deadline
from haservice.devtools.pair import free_port_block
from haservice.devtools.relay import Relay
from haservice.replication import rates_and_backoff
from haservice.replication.lineage.acked_cuts import AckedCut, bytes_cut, cuts_text, with_cut
from haservice.replication.lineage.epochs import PROMOTION_STEP, Epoch, Lineage, LogSpan, Mark
from haservice.replication.lineage.file import LineageFile, Replica
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.lineage.own_record import with_forgotten
from haservice.replication.master import recorder
from haservice.replication.master.greeter import Greets
from haservice.replication.master.service import MasterHAService
from haservice.replication.slave import client as client_module
from haservice.replication.slave import session as slave_session
from haservice.replication.slave.dial import dial
from haservice.replication.slave.rejoin import Rejoin
from haservice.replication.slave.service import SlaveHAService
from haservice.replication.status import MasterLinkStatus, NotInSync
from haservice.replication.wire.greeting import Facts, GreetingOutcome, MasterGreeting, SlaveGreeting
from haservice.replication.wire.hello import (
    HELLO_BYTES_MAX,
    HELLO_OFFSET,
    VERDICT_OFFSET,
    MasterHello,
    SlaveHello,
    Verdict,
)
from haservice.replication.wire.protocol import REPORT, TRANSFER_HEADER, greeting_bytes
from tests.support.replication import (
    CONFIG,
    SEGMENT_BYTES,
    Acked,
    AnyBytes,
    LogStore,
    MasterEnd,
    ScriptedMaster,
    ScriptedSlave,
    fill_raw,
    message,
    open_log,
    pattern,
)
from tests.support.replication import master as any_master
from tests.support.replication import slave as any_slave
from tests.support.waiting import wait_until


class Broker:
    """A log with its lineage, and what it says of itself."""

    def __init__(
        self, root: Path, name: str, *, replica: bool = False, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.root = root / name
        self.log: CommitLog = open_log(self.root, replica=replica, segment_bytes=segment_bytes)
        self.lineage = LineageFile(self.root)
        self.store = LogStore(self.log, root / f"{name}-cut")
        self.facts = Facts("Cluster", "broker-a", f"{name}:10911")
        self.ahead: list[SlaveHello] = []
        self.heard: list[GreetingOutcome] = []
        self.slave_lost = threading.Event()

    @property
    def id(self) -> str:
        return self.lineage.state.replica_id

    def begin(self, number: int | None = None, start: int | None = None) -> None:
        lineage = self.lineage.state.lineage
        self.lineage.begin(
            Epoch(
                lineage.next_number if number is None else number,
                self.log.end if start is None else start,
                self.id,
            )
        )

    def write(self, *sizes: int) -> int:
        for size in sizes:
            self.log.append(message(size))
        return self.log.end

    def bytes(self, start: int = 0) -> bytes:
        data, position = [], max(start, self.log.start)
        while position < self.log.end:
            data.append(self.log.read(position, self.log.end - position))
            position += len(data[-1])
        return b"".join(data)

    @contextmanager
    def leads(self, **changes: Any) -> Iterator[MasterHAService[Any]]:
        heartbeat_ms = changes.get("heartbeat_interval_ms", CONFIG.heartbeat_interval_ms)
        greets = Greets(
            self.lineage,
            replace(self.facts, heartbeat_ms=heartbeat_ms),
            self.ahead.append,
            lambda _, outcome: self.heard.append(outcome),
        )
        options = {"greets": greets, "on_lost": self.slave_lost.set}
        with any_master(self.log, Acked(), options=options, **changes) as service:
            yield service

    @contextmanager
    def follows(self, port: int | None, **options: Any) -> Iterator[SlaveHAService]:
        config = options.get("config", CONFIG)
        facts = replace(self.facts, heartbeat_ms=config.heartbeat_interval_ms)
        rejoin = Rejoin(facts, self.lineage, self.log, self.store)
        with any_slave(self.log, port, rejoin=rejoin, **options) as service:
            yield service


@pytest.fixture
def a(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path, "a")
    broker.begin()
    return broker


@pytest.fixture
def b(tmp_path: Path) -> Broker:
    return Broker(tmp_path, "b", replica=True)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: nobody is taken for a stock peer."""
    monkeypatch.setattr(slave_session, "STRANGER_S", 60.0)


patient = pytest.mark.usefixtures("_patient")


def link(service: SlaveHAService) -> MasterLinkStatus:
    status = service.status().master
    assert status is not None
    return status


def level(one: Broker, other: Broker) -> None:
    wait_until(lambda: one.log.end == other.log.end, "both logs are level")
    assert one.bytes(other.log.start) == other.bytes(one.log.start)


def raw(broker: Broker, end: int, start: int | None = None) -> None:
    fill_raw(broker.log, end, start)


# -- two of ours ------------------------------------------------------------------------------------


def test_each_knows_the_version_of_the_other(a: Broker, b: Broker) -> None:
    a.facts, b.facts = replace(a.facts, software="0.6.0"), replace(b.facts, software="0.5.0")
    a.write(100)
    with a.leads() as ha, b.follows(ha.port) as replica:
        level(a, b)
        wait_until(lambda: [one.software for one in ha.status().slaves] == ["0.5.0"])
        assert link(replica).software == "0.6.0"
    assert Facts("C", "b", "b:1").software == __version__


@patient
def test_an_empty_slave_gets_the_log_from_its_first_byte(a: Broker, b: Broker) -> None:
    a.write(*[5000] * 40)
    assert a.log.end > 2 * SEGMENT_BYTES
    with a.leads() as ha, b.follows(ha.port) as replica:
        level(a, b)
        assert b.log.start == 0
        wait_until(lambda: ha.push2slave_max_offset == a.log.end)
        a.write(100)
        level(a, b)
        (status,) = ha.status().slaves
        assert (status.replica_id, status.broker_addr) == (b.id, "b:10911")
        assert ha.status().epoch == 1
        assert replica.status().epoch == 1
        assert link(replica).master_end == a.log.end
        assert link(replica).lineage == "one log with epoch 1 up to 0"
    assert b.lineage.state.lineage == a.lineage.state.lineage
    assert b.lineage.state.master_role == "SYNC_MASTER"


@patient
def test_a_slave_does_not_forget_how_far_its_master_was(a: Broker, b: Broker) -> None:
    a.write(100, 200)
    with a.leads() as ha:
        with b.follows(ha.port) as replica:
            wait_until(lambda: link(replica).lineage.startswith("one log"), "it was greeted")
            assert b.lineage.state.master_end == a.log.end
            a.write(300)
            level(a, b)
        # A clean stop, and what came since the greeting.
        state = LineageFile(b.root).state
        assert (state.master_end, state.master_heard_ms > 0) == (a.log.end, True)
    with b.follows(free_port_block(1)) as replica:
        wait_until(lambda: link(replica).last_error, "nobody is there")
        assert link(replica).master_end == -1
    assert LineageFile(b.root).state.master_end == a.log.end


@patient
def test_while_a_slave_follows_it_is_written_down_how_far_its_master_is(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "WRITE_MS", 10)
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)
        a.write(300)
        level(a, b)
        wait_until(lambda: LineageFile(b.root).state.master_end == a.log.end, "it is written down")


@patient
def test_a_slave_writes_down_that_its_emptied_log_is_whole_again(a: Broker, b: Broker) -> None:
    b.lineage.update(whole_from=OFFSET_MAX)
    a.write(100, 200)
    with a.leads() as ha, b.follows(ha.port):
        wait_until(lambda: LineageFile(b.root).state.lost_power, "it is written down")
        assert b.lineage.state.whole_from == a.log.end


@patient
def test_a_slave_that_cannot_be_written_down_does_not_count(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a master that comes back with its end lost would not know whom to wait for."""
    a.write(100)
    full, asked = True, threading.Event()
    write_down = a.lineage.saw_all

    def saw_all(replicas: Mapping[str, Replica]) -> None:
        asked.set()
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_down(replicas)

    monkeypatch.setattr(a.lineage, "saw_all", saw_all)
    with a.leads() as ha, b.follows(ha.port) as replica:
        wait_until(lambda: asked.is_set() and link(replica).last_error, "it is refused")
        assert (ha.status().in_sync_slaves, b.log.end) == (0, 0)
        assert sum("not written down" in record.getMessage() for record in caplog.records) == 1
        full = False
        level(a, b)
        assert b.id in LineageFile(a.root).state.replicas


@patient
def test_a_slave_that_is_level_and_does_not_count_yet_is_written_down_as_one_to_be_heard(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a master that comes back after a power cut, with less than this slave has, takes itself for an old copy."""
    monkeypatch.setattr(recorder, "WRITE_MS", 0)
    monkeypatch.setattr(recorder, "LOOK_S", 0.01)
    with_x = ReplicaList().in_epoch(1, Mark(-1, 0), a.id, "a:10911", 1).joined(1, Mark(-1, 0), "x", "x:1")
    a.lineage.update(members=with_x.taken_effect())
    with a.leads() as ha, b.follows(ha.port):
        for _ in range(2):
            a.write(300)
            level(a, b)
            wait_until(lambda: a.lineage.state.replicas[b.id].offset == a.log.end, "it is written down")
            assert [one.lack.why for one in ha.status().slaves if one.lack] == [NotInSync.NOT_COUNTED]
            assert a.lineage.state.replicas[b.id].in_sync


@patient
def test_the_first_report_of_a_slave_that_was_compared_is_an_ack(a: Broker, b: Broker) -> None:
    """A master that has just started cannot know it of a stock slave."""
    a.write(100, 200)
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)
    a.begin()
    with a.leads() as ha, b.follows(ha.port):
        wait_until(lambda: ha.push2slave_max_offset == a.log.end)
        assert ha.status().slaves[0].proven == a.log.end
    assert b.lineage.state.lineage == a.lineage.state.lineage


@patient
def test_an_old_master_goes_back_to_where_the_logs_part_and_keeps_what_it_cut(
    tmp_path: Path, a: Broker
) -> None:
    common = a.write(100, 200)
    b = Broker(tmp_path, "b", replica=True)
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)
    a.write(700)
    mine = a.bytes(common)
    b.log.close()
    promoted = Broker(tmp_path, "b")
    assert promoted.id == b.id
    promoted.begin()
    promoted.write(300, 400)
    a.log.close()
    back = Broker(tmp_path, "a", replica=True)
    with promoted.leads() as ha, back.follows(ha.port):
        level(promoted, back)
        wait_until(lambda: ha.push2slave_max_offset == promoted.log.end)
    assert back.store.calls == [("rewind", common)]
    assert back.store.kept.read_bytes() == mine
    assert back.lineage.state.lineage == promoted.lineage.state.lineage


@patient
@pytest.mark.parametrize("acked", [False, True])
def test_an_old_master_that_cuts_what_a_slave_had_acknowledged_says_so(
    tmp_path: Path, a: Broker, caplog: pytest.LogCaptureFixture, acked: bool
) -> None:
    """The slave's store was put back from an older copy, and made the master: nobody knew better."""
    common = a.write(100, 200)
    b = Broker(tmp_path, "b", replica=True)
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)
    end = a.write(700)
    a.lineage.saw_all({b.id: Replica("b:1", end if acked else common, 0, in_sync=True)})
    b.log.close()
    promoted = Broker(tmp_path, "b")
    promoted.begin()
    a.log.close()
    back = Broker(tmp_path, "a", replica=True)
    with promoted.leads() as ha, back.follows(ha.port):
        level(promoted, back)
    assert back.store.calls == [("rewind", common)]
    said = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert any(f"from={common} to={end} " in one for one in said) == acked
    known = LineageFile(back.root).state.acked_cuts
    assert [(one.start, one.end) for one in known] == ([(common, end)] if acked else [])
    if not acked:
        return
    assert not cuts_text(back.root, known)  # nothing lies in cut/, so nothing was cut yet, or it is removed
    kept = back.root / "cut" / f"{known[0].kept}1"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(b"")
    assert f"from {common} to {end}" in cuts_text(back.root, known)
    assert f"mqadmin removeCut {back.root} {kept.name}, " in cuts_text(back.root, known)
    assert bytes_cut(back.root, known) == end - common


@patient
@pytest.mark.parametrize("parted", [False, True])
def test_a_slave_behind_retention_begins_anew_and_keeps_only_what_the_master_has_not(
    tmp_path: Path, parted: bool
) -> None:
    a, b = Broker(tmp_path, "a", replica=True), Broker(tmp_path, "b", replica=True)
    raw(a, 5 * SEGMENT_BYTES, 3 * SEGMENT_BYTES)
    raw(b, SEGMENT_BYTES)
    first = Epoch(1, 0, a.id)
    b.lineage.update(lineage=Lineage((first,)))
    second = Epoch(PROMOTION_STEP, SEGMENT_BYTES - 100 if parted else SEGMENT_BYTES + 5, a.id)
    a.lineage.update(lineage=Lineage((first, second)))
    with a.leads() as ha, b.follows(ha.port, check=AnyBytes()):
        level(a, b)
        assert b.log.start == 3 * SEGMENT_BYTES
        wait_until(lambda: ha.push2slave_max_offset == a.log.end)
    assert b.store.calls == [("restart_at", 3 * SEGMENT_BYTES, parted)]
    if parted:
        assert b.store.kept.read_bytes() == pattern(0, SEGMENT_BYTES)


@patient
def test_what_is_told_of_an_acknowledged_cut_is_where_it_lies_after_a_try_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Broker(tmp_path, "a", replica=True), Broker(tmp_path, "b", replica=True)
    raw(a, 5 * SEGMENT_BYTES, 3 * SEGMENT_BYTES)
    raw(b, SEGMENT_BYTES)
    first, parted = Epoch(1, 0, b.id), SEGMENT_BYTES - 100
    more = {a.id: Replica("a:10911", SEGMENT_BYTES + 50, 0, in_sync=True)}  # than is there now
    b.lineage.update(lineage=Lineage((first,)), replicas=more)
    a.lineage.update(lineage=Lineage((first, Epoch(2, parted, a.id))))
    restart_at, tries = b.store.restart_at, list[Path]()

    def restart(offset: int, keep: Path | None = None) -> None:
        assert keep is not None
        tries.append(keep)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        keep.mkdir(parents=True)
        restart_at(offset, keep)

    monkeypatch.setattr(b.store, "restart_at", restart)
    with a.leads() as ha, b.follows(ha.port, check=AnyBytes()):
        level(a, b)
    known = LineageFile(b.root).state.acked_cuts
    assert [(one.start, one.end, one.kept) for one in known] == [(parted, SEGMENT_BYTES, tries[-1].name)]
    assert f"from {parted} to {SEGMENT_BYTES}" in cuts_text(b.root, known)
    assert sum("had acknowledged" in one.getMessage() for one in caplog.records) == 1

    kept = known[0]
    again = with_cut(b.root, known, AckedCut(kept.start, kept.end, "parted-later", 0))
    assert [one.kept for one in again] == [kept.kept, "parted-later"], "the first one still lies there"
    assert with_cut(b.root, known, kept) == known


@patient
@pytest.mark.parametrize("story", ["other address", "another slave first", "its list as it was"])
def test_a_master_that_was_put_back_to_before_its_slave_came_has_nothing_cut(
    tmp_path: Path, a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch, story: str
) -> None:
    monkeypatch.setattr(slave_session, "AGAIN_PAUSE_S", 0.01)
    older = a.write(100)
    a.write(700)
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)
    end = b.log.end
    state, since = a.lineage.state, a.lineage.state.lineage.mark(older)
    a.log.truncate(older)
    a.begin()  # by the older copy nobody was in sync
    a.write(200)
    if story != "its list as it was":
        alone = ReplicaList().in_epoch(1, Mark(-1, 0), a.id, "a:10911", 1)
        addr = "a:20911" if story == "other address" else "a:10911"
        a.lineage.update(members=alone.in_epoch(2, since, a.id, addr, 1), replicas={})
    if story == "another slave first":
        with a.leads() as ha, (c := Broker(tmp_path, "c", replica=True)).follows(ha.port):
            level(a, c)
        assert a.lineage.state.members.version > state.members.version
    with a.leads() as ha, b.follows(ha.port) as replica:
        wait_until(lambda: a.heard.count(GreetingOutcome.OLDER_COPY) > 1, "it is refused, and asks again")
        wait_until(lambda: f"had acknowledged up to {end}" in link(replica).last_error, "and says why")
        a.lineage.update(members=replace(a.lineage.state.members, replicas={a.id: "a:10911"}))
        assert b.log.end == end
    # Once it is forgotten, and knows no later list, what it has more is given up.
    a.lineage.update(
        members=replace(a.lineage.state.members, number=9),
        forgotten=with_forgotten(a.lineage.state, b.id, (2, 9)),
    )
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)


@patient
def test_a_slave_that_learns_behind_its_greeting_that_its_store_is_older_is_whole_again_soon(
    a: Broker, b: Broker
) -> None:
    a.write(100, 200)
    with a.leads() as ha, b.follows(ha.port) as replica:
        level(a, b)
        broker = SimpleNamespace(store=SimpleNamespace(log=b.log), lineage=b.lineage, ha=replica)
        assert Office(broker).doubt(1) == ""  # type: ignore[arg-type]
        wait_until(lambda: b.lineage.state.whole_from <= b.log.end, "it is whole again")
        a.write(300)
        level(a, b)
        assert b.log.end >= b.lineage.state.whole_from


@patient
def test_a_master_that_lost_its_tail_hears_of_it_before_a_byte_flows(
    a: Broker, b: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_session, "AGAIN_PAUSE_S", 0.01)
    lost_at = a.write(100)
    a.write(700)
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)
    a.log.truncate(lost_at)
    with a.leads() as ha:
        with b.follows(ha.port) as replica:
            wait_until(lambda: a.ahead)
            wait_until(lambda: "master wrote and has lost" in link(replica).last_error)
            assert (a.ahead[0].replica_id, a.ahead[0].position) == (b.id, b.log.end)
            wait_until(lambda: len(a.ahead) > 2, "it asks again")
            assert "greeting: this slave has" in ha.status().absent[0].reason
            assert not ha.status().in_sync_slaves
        assert b.log.end > a.log.end
    told = [record.levelname for record in caplog.records if "do not go together" in record.getMessage()]
    assert told == ["WARNING"] * 2  # each side, once; the master mends it by itself


@patient
def test_bytes_that_differ_are_refused_loudly_and_once_and_nothing_flows(
    a: Broker, b: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_session, "REFUSED_PAUSE_S", 0.01)
    a.write(100, 200)
    raw(b, a.log.end - 50)
    b.lineage.update(lineage=a.lineage.state.lineage)
    before = b.bytes()
    with a.leads() as ha, b.follows(ha.port, check=AnyBytes()) as replica:
        wait_until(lambda: "not the same in both logs" in link(replica).last_error)
        wait_until(lambda: link(replica).connects > 3)
        assert link(replica).lineage.startswith("refused: ")
        assert not ha.push2slave_max_offset
    assert b.bytes() == before
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 2
    assert b.lineage.state.lineage == a.lineage.state.lineage


@patient
def test_segment_sizes_that_differ_are_refused_with_the_way_out(tmp_path: Path, a: Broker) -> None:
    small = Broker(tmp_path, "b", replica=True, segment_bytes=SEGMENT_BYTES // 2)
    a.write(100)
    with a.leads() as ha, small.follows(ha.port) as replica:
        wait_until(lambda: f"mappedFileSizeCommitLog is {SEGMENT_BYTES // 2}" in link(replica).last_error)
        assert str(SEGMENT_BYTES) in link(replica).last_error
    assert small.log.end == 0


@patient
def test_a_slave_that_knows_a_newer_epoch_does_not_follow_and_the_master_hears_it(
    a: Broker, b: Broker
) -> None:
    a.write(100)
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)
    b.lineage.begin(Epoch(5, a.log.end, "another"))
    a.write(100)
    with a.leads() as ha, b.follows(ha.port) as replica:
        wait_until(lambda: GreetingOutcome.OLD_MASTER in a.heard)
        wait_until(lambda: "epoch 5" in link(replica).last_error)
        assert not ha.status().in_sync_slaves
    assert b.log.end < a.log.end


@patient
def test_a_new_epoch_on_a_running_master_reaches_its_slaves(a: Broker, b: Broker) -> None:
    a.write(100)
    with a.leads() as ha, b.follows(ha.port):
        level(a, b)
        a.begin()
        ha.regreet()
        wait_until(lambda: b.lineage.state.lineage == a.lineage.state.lineage)
        a.write(100)
        level(a, b)


def test_a_new_epoch_ends_greetings_that_are_under_way(a: Broker, b: Broker) -> None:
    a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        call(slave)
        a.begin()
        ha.regreet()
        slave.ends()


@patient
def test_a_slave_is_itself_wherever_it_connects_from(tmp_path: Path, a: Broker) -> None:
    b, c = (Broker(tmp_path, name, replica=True) for name in "bc")
    a.write(100)
    with a.leads() as ha, Relay(ha.port) as relay, b.follows(relay.port), c.follows(ha.port):
        wait_until(lambda: ha.status().in_sync_slaves == 2, "two slaves on one host count twice")
        # A list of replicas that takes effect has them dial again.
        wait_until(lambda: {one.replica_id for one in ha.status().slaves} == {b.id, c.id}, "each is itself")


@patient
def test_who_wants_to_know_hears_of_a_link_that_broke_and_not_of_a_dial_that_failed(
    a: Broker, b: Broker
) -> None:
    lost: list[str] = []
    with a.leads() as ha, b.follows(ha.port, on_lost=lambda: lost.append("lost")) as replica:
        wait_until(lambda: replica.connected, "it follows")
        ha.stop(Deadline(10))
        wait_until(lambda: lost == ["lost"], "it hears of it")
        wait_until(lambda: "refused" in link(replica).last_error.lower(), "a dial has failed")
    assert lost == ["lost"]


@patient
def test_whoever_keeps_what_is_beside_the_log_hears_of_each_greeting(a: Broker, b: Broker) -> None:
    greeted: list[str] = []
    a.write(100)
    with a.leads() as ha, b.follows(ha.port, on_greeted=greeted.append):
        wait_until(lambda: greeted == ["a:10911"], "it is greeted")
        ha.regreet()
        wait_until(lambda: greeted == ["a:10911"] * 2, "and greeted again")


def test_a_master_that_wants_to_know_hears_of_a_slave_that_is_gone_and_not_of_a_stranger(
    a: Broker, b: Broker
) -> None:
    with a.leads() as ha:
        with socket.create_connection(("127.0.0.1", ha.port)):
            wait_until(lambda: ha.status().slaves, "a stranger is there")
        wait_until(lambda: not ha.status().slaves, "it is gone")
        assert not a.slave_lost.is_set()
        with b.follows(ha.port) as replica:
            wait_until(lambda: replica.connected, "it follows")
        wait_until(a.slave_lost.is_set, "it hears of it")


@patient
def test_links_that_are_cut_again_and_again_greet_each_time(a: Broker, b: Broker) -> None:
    with a.leads() as ha, Relay(ha.port) as relay, b.follows(relay.port) as replica:
        for _ in range(10):
            wait_until(lambda: relay.live and replica.connected)
            end = a.write(3000)
            wait_until(lambda end=end: ha.push2slave_max_offset == end)  # type: ignore[misc]
            relay.cut()
        level(a, b)
    assert len(a.heard) >= 10
    assert set(a.heard) == {GreetingOutcome.ACCEPTED}


@patient
@pytest.mark.parametrize("slice_bytes", [1, 7])
def test_a_greeting_in_slices(a: Broker, b: Broker, slice_bytes: int) -> None:
    a.write(3000)
    with a.leads() as ha, Relay(ha.port) as relay:
        relay.slice_bytes = lambda: slice_bytes
        with b.follows(relay.port):
            level(a, b)
    assert a.heard == [GreetingOutcome.ACCEPTED]


# -- what the master writes down --------------------------------------------------------------------


@patient
def test_who_follows_is_written_down_before_it_may_acknowledge(a: Broker, b: Broker) -> None:
    end = a.write(100)
    with a.leads() as ha:
        with b.follows(ha.port):
            level(a, b)
            known = LineageFile(a.root).state.replicas[b.id]
            assert (known.broker_addr, known.in_sync) == ("b:10911", True)
        wait_until(lambda: not ha.status().slaves)
        wait_until(lambda: LineageFile(a.root).state.replicas[b.id].offset == end)
    assert LineageFile(a.root).state.replicas[b.id].in_sync


@patient
def test_a_slave_too_far_behind_is_not_in_sync_until_it_is(tmp_path: Path) -> None:
    a, b = Broker(tmp_path, "a", replica=True), Broker(tmp_path, "b", replica=True)
    raw(a, 60_000)
    a.begin(start=0)
    noted: list[bool] = []
    saw_all = a.lineage.saw_all

    def note(replicas: dict[str, Replica]) -> None:
        noted.extend(one.in_sync for one in replicas.values())
        saw_all(replicas)

    a.lineage.saw_all = note  # type: ignore[method-assign,assignment]
    with a.leads(fallbehind_max_bytes=1000) as ha, b.follows(ha.port, check=AnyBytes()):
        level(a, b)
        wait_until(lambda: a.lineage.state.replicas[b.id].in_sync)
    from_here = noted.index(True)
    assert from_here > 0
    assert all(noted[from_here:])


# -- our slave, and masters of other kinds ----------------------------------------------------------


def hello_of(a: Broker, log: LogSpan | None = None, **changes: Any) -> bytes:
    said = MasterHello(
        a.id,
        "Cluster",
        "broker-a",
        "a:10911",
        "ASYNC_MASTER",
        SEGMENT_BYTES,
        log or LogSpan(a.log.start, a.log.end),
        a.lineage.state.lineage,
    )
    return greeting_bytes(HELLO_OFFSET, replace(said, **changes).encode())


def slave_hello(end: MasterEnd) -> SlaveHello:
    mark, size = REPORT.unpack(end.read(8))[0], REPORT.unpack(end.read(8))[0]
    assert mark == -2
    return SlaveHello.decode(end.read(size))


def test_a_stock_master_stays_silent_and_gets_nothing_but_reports(b: Broker) -> None:
    raw(b, 1000)
    b.lineage.update(lineage=Lineage((Epoch(1, 0, "x"), Epoch(2, 5000, "y"))))
    with ScriptedMaster() as master, b.follows(master.port, check=AnyBytes()) as replica:
        with master.accept() as end:
            assert [end.report(), end.report()] == [-1, 1000]
            assert "stock" in link(replica).lineage
            end.frame(1000, pattern(1000, 1100))
            assert end.report() == 1100
        with master.accept() as end:
            assert [end.report(), end.report()] == [-1, 1100]
    assert b.lineage.state.lineage == Lineage((Epoch(1, 0, "x"),))


def test_without_a_lineage_nobody_is_called(b: Broker) -> None:
    with ScriptedMaster() as master, any_slave(b.log, master.port), master.accept() as end:
        assert end.report() == 0


def test_a_stock_master_that_speaks_first_is_one_at_once(b: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_session, "STRANGER_S", 600.0)
    with ScriptedMaster() as master, b.follows(master.port, check=AnyBytes()), master.accept() as end:
        assert end.report() == -1
        end.frame(0, b"")
        assert end.report() == 0
        end.frame(0, pattern(0, 100))
        assert end.report() == 100


def test_a_hello_that_comes_late_ends_the_connection_and_is_waited_for_from_then_on(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_session, "STRANGER_S", 0.001)
    monkeypatch.setattr(slave_session, "KNOWN_S", 600.0)
    with ScriptedMaster() as master, b.follows(master.port):
        with master.accept() as end:
            assert [end.report(), end.report()] == [-1, 0]
            end.send(hello_of(a))
            assert end.closed()
        with master.accept() as end:
            assert end.report() == -1
            for byte in hello_of(a):
                end.send(bytes([byte]))
            assert slave_hello(end).position == 0
            end.send(greeting_bytes(VERDICT_OFFSET, Verdict(True).encode()))
            assert end.report() == 0
    assert b.lineage.state.lineage == a.lineage.state.lineage
    assert b.lineage.state.master_role == "ASYNC_MASTER"


def test_a_late_hello_takes_back_nothing_that_is_there(a: Broker, b: Broker) -> None:
    with ScriptedMaster() as master, b.follows(master.port, check=AnyBytes()):
        with master.accept() as end:
            assert [end.report(), end.report()] == [-1, 0]
            end.frame(0, pattern(0, 100))
            assert end.report() == 100
            end.send(hello_of(a))
            assert end.closed()
        with master.accept() as end:
            assert end.report() == -1
            end.send(hello_of(a, LogSpan(0, 100), lineage=Lineage((Epoch(0, 0, ""), Epoch(1, 100, a.id)))))
            hello = slave_hello(end)
            assert (hello.position, hello.digest_bytes) == (100, 100)
            assert hello.lineage.epochs[0].number == 0


def test_an_address_that_was_ours_and_is_silent_is_a_stock_masters_again(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_session, "KNOWN_S", 0.001)
    with ScriptedMaster() as master, b.follows(master.port):
        with master.accept() as end:
            assert end.report() == -1
            end.send(hello_of(a))
            slave_hello(end)
        for _ in range(2):
            with master.accept() as end:
                assert [end.report(), end.report()] == [-1, 0]


@patient
def test_what_a_master_said_is_not_forgotten_when_it_stands_still(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its system takes connections, and nothing comes.  Whether a failover is safe rests on what it said before."""
    monkeypatch.setattr(slave_session, "KNOWN_S", 0.001)
    with ScriptedMaster() as master, b.follows(master.port) as replica:
        with master.accept() as end:
            assert end.report() == -1
            end.send(hello_of(a, LogSpan(0, 400)))
            slave_hello(end)
        with master.accept() as end:
            assert [end.report(), end.report()] == [-1, 0]
            assert link(replica).master_end == 400


@pytest.mark.parametrize(
    "garbage",
    [
        TRANSFER_HEADER.pack(HELLO_OFFSET, HELLO_BYTES_MAX + 1),
        TRANSFER_HEADER.pack(HELLO_OFFSET, -1),
        TRANSFER_HEADER.pack(HELLO_OFFSET, 0),
        greeting_bytes(HELLO_OFFSET, b"no json"),
        greeting_bytes(HELLO_OFFSET, b"{}"),
        greeting_bytes(HELLO_OFFSET, b"[" * HELLO_BYTES_MAX),
        greeting_bytes(VERDICT_OFFSET, Verdict(True).encode()),
    ],
)
@patient
def test_a_master_that_greets_with_garbage_is_left(b: Broker, garbage: bytes) -> None:
    with ScriptedMaster() as master, b.follows(master.port) as replica:
        for _ in range(2):
            with master.accept() as end:
                assert end.report() == -1
                end.send(garbage)
                end.ends()
        wait_until(lambda: link(replica).last_error)
    assert b.log.end == 0
    assert b.lineage.state.lineage == Lineage()


@patient
@pytest.mark.parametrize("verdict", [b"", b"x", Verdict(False, "parted").encode(), b'{"accepted": 1}'])
def test_without_a_good_verdict_nothing_is_cut_and_nothing_adopted(
    a: Broker, b: Broker, verdict: bytes
) -> None:
    raw(b, 1000)
    first, second = Epoch(1, 0, a.id), Epoch(2, 400, a.id)
    b.lineage.update(lineage=Lineage((first,)))
    with ScriptedMaster() as master, b.follows(master.port, check=AnyBytes()) as replica:
        with master.accept() as end:
            assert end.report() == -1
            end.send(hello_of(a, LogSpan(0, 2000), lineage=Lineage((first, second))))
            hello = slave_hello(end)
            assert (hello.position, hello.log) == (400, LogSpan(0, 1000))
            if verdict:
                end.send(greeting_bytes(VERDICT_OFFSET, verdict))
                end.ends()
        wait_until(lambda: link(replica).last_error)
    assert b.bytes() == pattern(0, 1000)
    assert b.lineage.state.lineage == Lineage((first,))
    assert not b.store.calls


@patient
def test_a_slave_without_a_store_cuts_nothing(a: Broker, b: Broker) -> None:
    raw(b, 1000)
    first = Epoch(1, 0, a.id)
    b.lineage.update(lineage=Lineage((first,)))
    with (
        ScriptedMaster() as master,
        any_slave(
            b.log, master.port, rejoin=Rejoin(b.facts, b.lineage, b.log, None), check=AnyBytes()
        ) as replica,
        master.accept() as end,
    ):
        assert end.report() == -1
        end.send(hello_of(a, LogSpan(0, 400), lineage=Lineage((first, Epoch(2, 400, a.id)))))
        slave_hello(end)
        end.send(greeting_bytes(VERDICT_OFFSET, Verdict(True).encode()))
        end.ends()
        wait_until(lambda: "no store" in link(replica).last_error)
    assert b.log.end == 1000


@patient
def test_a_master_that_said_how_often_it_speaks_is_left_when_it_does_not(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_and_backoff, "SILENCE_S_MIN", 0.001)
    with ScriptedMaster() as master, b.follows(master.port) as replica, master.accept() as end:
        assert end.report() == -1
        end.send(hello_of(a, heartbeat_ms=20))
        assert slave_hello(end).heartbeat_ms == CONFIG.heartbeat_interval_ms
        end.send(greeting_bytes(VERDICT_OFFSET, Verdict(True).encode()))
        assert end.report() == 0
        end.ends()
        wait_until(lambda: "the master said nothing" in link(replica).last_error)


@patient
def test_a_master_that_ends_without_a_word_is_asked_again_soon_once_it_is_known(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy takes connections while the master behind it is away."""
    monkeypatch.setattr(slave_session, "RETRY_FIRST_S", 600.0)
    monkeypatch.setattr(slave_session, "RETRY_MAX_S", 600.0)
    with ScriptedMaster() as master, b.follows(master.port):
        with master.accept() as end:
            assert end.report() == -1
            end.send(hello_of(a))
            slave_hello(end)
        for _ in range(20):
            master.accept().close()
        with master.accept() as end:
            assert end.report() == -1


def test_a_master_that_cannot_be_reached_is_asked_again_soon(
    b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_session, "RETRY_FIRST_S", 600.0)
    monkeypatch.setattr(slave_session, "RETRY_MAX_S", 600.0)
    causes = iter((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT))

    def dialled(*arguments: Any) -> object:
        for cause in causes:
            raise OSError(cause, "no way there")
        return dial(*arguments)

    monkeypatch.setattr(client_module, "dial", dialled)
    with ScriptedMaster() as master, b.follows(master.port), master.accept() as end:
        assert end.report() == -1


@patient
def test_a_stop_ends_every_wait_of_a_greeting(a: Broker, b: Broker) -> None:
    for stage in range(2):
        with ScriptedMaster() as master, b.follows(master.port), master.accept() as end:
            assert end.report() == -1
            if stage:
                end.send(hello_of(a))
                slave_hello(end)


# -- our master, and slaves of other kinds ----------------------------------------------------------


def call(slave: ScriptedSlave) -> MasterHello:
    slave.report(-1)
    mark, body = slave.frame()
    assert mark == HELLO_OFFSET
    return MasterHello.decode(body)


def block_of(b: Broker, hello: MasterHello) -> bytes:
    greeting = SlaveGreeting(b.facts, b.id, b.log, b.lineage.state.lineage)
    return greeting.on_hello(hello.encode())


def verdict_of(slave: ScriptedSlave) -> Verdict:
    mark, body = slave.frame()
    assert mark == VERDICT_OFFSET
    return Verdict.decode(body)


def test_a_stock_slave_is_never_greeted(a: Broker) -> None:
    end = a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        slave.report(0)
        assert slave.frame() == (0, a.bytes())
        slave.report(end)
        wait_until(lambda: ha.push2slave_max_offset == end)
        assert ha.status().slaves[0].replica_id == ""
    assert not a.heard
    assert not a.lineage.state.replicas


def test_a_slave_that_calls_and_then_reports_is_a_classic_one(a: Broker) -> None:
    """One of ours that took this master for a stock one: it learns better by the hello."""
    a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        slave.report(-1, 1)
        assert slave.frame()[0] == HELLO_OFFSET
        assert slave.frame()[0] == 1


def test_the_hello_of_a_slave_byte_by_byte(a: Broker, b: Broker) -> None:
    end = a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        for byte in block_of(b, call(slave)):
            slave.send(bytes([byte]))
        assert verdict_of(slave).accepted
        slave.report(0)
        assert slave.frame() == (0, a.bytes())
        slave.report(end)
        wait_until(lambda: ha.push2slave_max_offset == end)


def test_a_flood_of_calls_gets_one_hello(a: Broker) -> None:
    end = a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        slave.report(*[-1] * 5000)
        slave.report(*[-1] * 5000)
        assert slave.frame()[0] == HELLO_OFFSET
        slave.report(end)
        a.write(200)
        assert slave.frame()[0] == end
        slave.report(-1)
        slave.ends()


def test_two_connections_of_one_slave_count_once_and_the_older_one_ends(a: Broker, b: Broker) -> None:
    end = a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as one, ScriptedSlave(ha.port) as two:
        for slave in (one, two):
            slave.send(block_of(b, call(slave)))
            assert verdict_of(slave).accepted
        one.report(0)
        one.frames_to(end)
        one.report(end)
        wait_until(lambda: ha.status().in_sync_slaves == 1)
        two.report(0)
        two.frames_to(end)
        two.report(end)
        one.send(REPORT.pack(end))
        one.ends()
        wait_until(lambda: len(ha.status().slaves) == 1)
        assert ha.status().in_sync_slaves == 1


def test_a_replica_id_is_not_taken_from_the_slave_that_works_with_it(a: Broker, b: Broker) -> None:
    """It stands in every table of epochs, so a stranger may know it; from 127.0.0.2 he is another host."""
    a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave, ScriptedSlave(ha.port, "127.0.0.2") as thief:
        slave.send(block_of(b, call(slave)))
        assert verdict_of(slave).accepted
        slave.report(0)
        slave.frames_to(a.log.end)
        thief.send(block_of(b, call(thief)))
        verdict = verdict_of(thief)
        assert (verdict.accepted, verdict.again) == (False, True)
        assert "is connected from 127.0.0.1" in verdict.reason
        slave.report(a.log.end)
        wait_until(lambda: ha.push2slave_max_offset == a.log.end)
        slave.close()
        wait_until(lambda: not ha.status().slaves)
        with ScriptedSlave(ha.port, "127.0.0.2") as moved:
            moved.send(block_of(b, call(moved)))
            assert verdict_of(moved).accepted


def test_a_first_report_beyond_what_was_compared_is_refused(a: Broker, b: Broker) -> None:
    end = a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        slave.send(block_of(b, call(slave)))
        assert verdict_of(slave).accepted
        slave.report(end)
        slave.ends()
        wait_until(lambda: ha.status().absent)
        assert "was to go on at 0" in ha.status().absent[0].reason
        assert not ha.push2slave_max_offset


@pytest.mark.parametrize(
    "garbage",
    [
        REPORT.pack(-2) + REPORT.pack(HELLO_BYTES_MAX + 1),
        REPORT.pack(-2) + REPORT.pack(0),
        REPORT.pack(-2) + REPORT.pack(-5),
        REPORT.pack(-2) + REPORT.pack(7) + b"no json",
        REPORT.pack(-2) + REPORT.pack(2) + b"{}",
        REPORT.pack(-3),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_a_slave_that_greets_with_garbage_is_closed(a: Broker, garbage: bytes) -> None:
    a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        call(slave)
        slave.send(garbage)
        slave.ends()
        wait_until(lambda: not ha.status().slaves)
        assert not ha.is_slave_ok(a.log.end)
    assert not a.heard
    assert not a.lineage.state.replicas


def test_a_slave_that_is_refused_is_told_why_and_closed(a: Broker, b: Broker) -> None:
    a.write(100)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        hello = call(slave)
        strange = replace(b.facts, broker_name="broker-b")
        block = SlaveGreeting(strange, b.id, b.log, Lineage()).on_hello(
            replace(hello, broker_name="broker-b").encode()
        )
        slave.send(block)
        verdict = verdict_of(slave)
        assert (verdict.accepted, verdict.again) == (False, False)
        assert "brokerName is broker-b" in verdict.reason
        assert slave.closed()
        wait_until(lambda: ha.status().absent)
        assert "brokerName is broker-b" in ha.status().absent[0].reason


def test_a_slave_that_said_how_often_it_speaks_is_closed_when_it_does_not(
    a: Broker, b: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_and_backoff, "SILENCE_S_MIN", 0.001)
    end = a.write(100)
    b.facts = replace(b.facts, heartbeat_ms=20)
    with a.leads() as ha, ScriptedSlave(ha.port) as slave:
        slave.send(block_of(b, call(slave)))
        assert verdict_of(slave).accepted
        slave.report(0)
        slave.frames_to(end)
        slave.ends()
        wait_until(lambda: not ha.status().slaves)
        assert "said nothing" in ha.status().absent[0].reason


def test_a_slave_that_falls_silent_amid_its_hello_is_closed(a: Broker, b: Broker) -> None:
    a.write(100)
    with a.leads(housekeeping_interval_ms=50) as ha, ScriptedSlave(ha.port) as slave:
        block = block_of(b, call(slave))
        slave.send(block[:-1])
        slave.ends()
        wait_until(lambda: not ha.status().slaves)


def test_a_master_that_is_no_longer_the_one_that_was_greeted(a: Broker) -> None:
    """The greeting speaks of one moment: what the master writes meanwhile is no part of it."""
    log = a.write(100)
    greeting = MasterGreeting(a.facts, a.id, "SYNC_MASTER", a.log, lambda: a.lineage.state.lineage)
    greeting.hello()
    a.write(100)
    assert greeting.said is not None
    assert greeting.said.log.end == log
