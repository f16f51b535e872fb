"""The slave's session as a dialogue: events in, actions out, no socket, thread or clock.

The table of states in docs/replication.md is drawn from the code; HASERVICE_REWRITE=1 draws it anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gaierror
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.errors import LogNotWritable
from commitlog.log.log import CommitLog
from haservice.configuration.settings import ReplicationConfig
from haservice.errors import ProtocolError
from haservice.replication.lineage.epochs import Epoch, Lineage
from haservice.replication.rates_and_backoff import Backoff
from haservice.replication.slave import session as slave_session
from haservice.replication.slave.actions import (
    Action,
    Break,
    Close,
    Cut,
    Dial,
    EndAt,
    FlushLog,
    ForgetEpochs,
    LogLine,
    RejoinMaster,
    Send,
    StoreRuns,
)
from haservice.replication.slave.dial import AGAIN_S
from haservice.replication.slave.record_check import BadRecord, RecordCheck
from haservice.replication.slave.session import TURN_S, SlaveSession
from haservice.replication.slave.states import LINKED, SHOWN, TRANSITIONS, Event, State
from haservice.replication.wire.greeting import Facts, GreetingRefused, MasterGreeting, SlaveGreeting
from haservice.replication.wire.hello import MasterHello
from haservice.replication.wire.protocol import REPORT, ReportReader
from tests.support.replication import (
    SEGMENT_BYTES,
    AnyBytes,
    fill_raw,
    frame_bytes,
    message,
    open_log,
    pattern,
)

DOCS = Path(__file__).parents[2] / "docs" / "replication.md"
ADDR = "10.0.0.1:10912"
HEARTBEAT_S, HOUSEKEEPING_S = 5.0, 20.0
CONFIG = ReplicationConfig(
    heartbeat_interval_ms=int(HEARTBEAT_S * 1000), housekeeping_interval_ms=int(HOUSEKEEPING_S * 1000)
)
EPOCHS = Lineage((Epoch(1, 0, "a"),))
MASTER, SLAVE = Facts("Cluster", "broker-a", "a:10911"), Facts("Cluster", "broker-a", "b:10911")


@dataclass
class Talk:
    """A session, what it had done, and the log that it did it to."""

    log: CommitLog
    session: SlaveSession
    now_s: float = 100.0

    def connect(self) -> list[Action]:
        """Told of the master, and connected to it; what follows."""
        assert list(self.session.told(ADDR)) == [Dial(ADDR)]
        return self.reach()

    def reach(self) -> list[Action]:
        self.session.reached()
        return self.do(self.session.connected(self.now_s))

    def hears(self, data: bytes) -> list[Action]:
        space = self.session.space()
        space[: len(data)] = data
        return self.do(self.session.received(len(data), self.now_s))

    def passes(self, seconds: float) -> list[Action]:
        self.now_s += seconds
        return self.do(self.session.tick(self.now_s))

    def do(self, actions: Sequence[Action]) -> list[Action]:
        """Does to the log what is wanted, and answers; all the actions that came of it."""
        done: list[Action] = []
        for action in actions:
            done.append(action)
            if isinstance(action, StoreRuns):
                for run in action.runs:
                    self.log.append_replica(run.offset, run.bodies)
                done += self.do(self.session.stored(self.now_s))
            elif isinstance(action, Cut | EndAt) and action.offset < self.log.end:
                self.log.truncate(action.offset)
            elif isinstance(action, RejoinMaster):
                done += self.do(self.session.rejoined(self.now_s))
            elif isinstance(action, FlushLog):
                done += self.do(self.session.flushed(self.now_s))
        return done

    def reports(self, actions: Sequence[Action]) -> list[int]:
        return [int(REPORT.unpack(one.data)[0]) for one in actions if isinstance(one, Send)]


@pytest.fixture
def talk(tmp_path: Path) -> Callable[..., Talk]:
    def make(end: int = 0, greets: bool = False, **options: Any) -> Talk:
        log = open_log(tmp_path / "b", replica=True)
        fill_raw(log, end)
        options.setdefault("backoff", Backoff(10.0, 1000.0))
        if greets:
            options["greet"] = lambda: SlaveGreeting(SLAVE, "b", log, Lineage())
        check = options.pop("check", None) or AnyBytes()
        return Talk(log, SlaveSession(CONFIG, log, check, boundary=lambda: 0, **options))

    return make


def master_of(path: Path, end: int) -> MasterGreeting:
    log = open_log(path / "a", replica=True)
    fill_raw(log, end)
    return MasterGreeting(replace(MASTER, heartbeat_ms=1000), "a", "SYNC_MASTER", log, lambda: EPOCHS)


def verdict_on(master: MasterGreeting, answer: Action) -> bytes:
    assert isinstance(answer, Send)
    reader = ReportReader()
    reader.expect_hello()
    reader.feed(answer.data)
    assert reader.hello is not None
    return master.answer(reader.hello).encoded


# -- the table --------------------------------------------------------------------------------------


# Events that have a column of their own; the others stand together.
COLUMNS = (Event.LOST, Event.TOLD, Event.STOP)


def drawn() -> str:
    """The table of states, as docs/replication.md has it."""
    heads = ["state", "waits for", "status shows", "then", *(event.value for event in COLUMNS)]
    rows = [heads, ["---"] * len(heads)]
    for state, moves in TRANSITIONS.items():
        then = [f"{event.value} → {target.name}" for event, target in moves.items() if event not in COLUMNS]
        ends = [moves[event].name if event in moves else "" for event in COLUMNS]
        rows.append([state.name, state.value, SHOWN[state].value, "; ".join(then), *ends])
    return "".join(f"| {' | '.join(row)} |\n".replace("  ", " ") for row in rows)


def test_the_docs_show_the_table_that_the_code_has() -> None:
    text = DOCS.read_text()
    before, rest = text.split("<!-- slave/states.py -->\n")
    shown, after = rest.split("<!-- end -->\n")
    if os.environ.get("HASERVICE_REWRITE"):
        DOCS.write_text(f"{before}<!-- slave/states.py -->\n{drawn()}<!-- end -->\n{after}")
    else:
        assert shown == drawn()


def test_the_table_names_every_state_and_event_and_each_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(State) == set(SHOWN)
    assert {event for moves in TRANSITIONS.values() for event in moves} == set(Event)
    reached = {State.IDLE}
    while new := {target for state in reached for target in TRANSITIONS[state].values()} - reached:
        reached |= new
    assert reached == set(State)
    assert {state for state in State if Event.LOST in TRANSITIONS[state]} == {State.DIALLING, *LINKED}
    assert {state for state in State if Event.STOP not in TRANSITIONS[state]} == {State.SHUTDOWN}


# -- stories ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_from_the_call_to_the_first_bytes_with_a_master_of_ours(
    talk: Callable[..., Talk], tmp_path: Path, piece: int
) -> None:
    slave, master = talk(greets=True), master_of(tmp_path, 0)

    def hears(data: bytes) -> list[Action]:
        done = []
        for at in range(0, len(data), piece):
            done += slave.hears(data[at : at + piece])
        return done

    states = [slave.session.state]
    assert slave.reports(slave.connect()) == [-1]
    states.append(slave.session.state)
    (answer,) = hears(master.hello())
    states.append(slave.session.state)
    rejoin, report = hears(verdict_on(master, answer))
    states.append(slave.session.state)
    assert states == [State.IDLE, State.GREETING, State.VERDICT, State.TRANSFER]
    assert isinstance(rejoin, RejoinMaster)
    assert slave.reports([report]) == [0]
    assert slave.session.lineage == "one log with epoch 1 up to 0"
    done = hears(frame_bytes(0, pattern(0, 100)))
    assert [type(one) for one in done] == [StoreRuns, Send]
    assert slave.reports(done) == [100]
    assert (slave.session.master_end, slave.session.followed_end) == (100, 100)


def test_a_master_that_stays_silent_is_a_stock_one_once_its_time_is_over(talk: Callable[..., Talk]) -> None:
    slave = talk(700, greets=True)
    assert slave.reports(slave.connect()) == [-1]
    assert slave.session.wake_s == slave.now_s + slave_session.STRANGER_S
    assert slave.passes(slave_session.STRANGER_S / 2) == []
    assert slave.reports(slave.passes(slave_session.STRANGER_S)) == [700]
    assert slave.session.lineage == slave_session.STOCK_MASTER
    done = slave.hears(frame_bytes(700, pattern(700, 800)))
    assert [type(one) for one in done] == [ForgetEpochs, StoreRuns, Send]
    assert slave.session.followed_end == -1


def test_a_master_that_greets_and_gives_no_verdict_is_left(talk: Callable[..., Talk], tmp_path: Path) -> None:
    slave = talk(greets=True)
    slave.connect()
    slave.hears(master_of(tmp_path, 0).hello())
    assert slave.session.wake_s == slave.now_s + slave_session.VERDICT_S
    with pytest.raises(TimeoutError, match="no verdict"):
        slave.passes(slave_session.VERDICT_S)


def test_a_report_is_due_with_every_heartbeat_and_a_silent_master_is_left(talk: Callable[..., Talk]) -> None:
    slave = talk(700)
    assert slave.reports(slave.connect()) == [700]
    for _ in range(3):
        assert slave.session.wake_s == slave.now_s + HEARTBEAT_S
        assert slave.passes(HEARTBEAT_S / 2) == []
        assert slave.reports(slave.passes(HEARTBEAT_S / 2)) == [700]
    with pytest.raises(TimeoutError, match=r"said nothing for 20\.0 s"):
        slave.passes(HEARTBEAT_S)


def test_whoever_is_woken_when_the_session_wants_it_finds_something_due(talk: Callable[..., Talk]) -> None:
    """Else a thread would spin, and a simulation never end: sums of times are not exact."""
    slave = talk(700)
    slave.now_s = 1000.3
    slave.connect()
    for _ in range(1000):
        slave.now_s = wake_s = slave.session.wake_s or 0.0
        slave.session.last_read_s = slave.now_s
        assert slave.reports(slave.do(slave.session.tick(wake_s))) == [700]


def test_a_pause_is_not_over_before_its_time_whatever_wakes_the_thread(talk: Callable[..., Talk]) -> None:
    slave = talk()
    slave.connect()
    actions = slave.session.closed(slave.now_s)
    assert isinstance(actions[-1], Close)
    assert slave.session.state is State.PAUSE
    assert slave.session.wake_s is not None
    assert slave.passes(slave.session.wake_s - slave.now_s - 0.1) == []
    assert slave.passes(0.2) == [Dial(ADDR)]


@pytest.mark.parametrize(
    ("error", "soon"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (TimeoutError(110, "no connection within 5 s"), True),
        (gaierror(-2, "Name or service not known"), False),
    ],
)
def test_a_master_that_is_not_there_is_asked_on_and_on(
    talk: Callable[..., Talk], error: OSError, soon: bool
) -> None:
    """A name that nobody knows costs more than a packet."""
    slave = talk()
    slave.session.told(ADDR)
    slave.session.lost(error, slave.now_s)
    assert slave.session.wake_s is not None
    assert (slave.session.wake_s == slave.now_s + AGAIN_S) is soon


def test_a_master_that_ends_its_link_and_turns_is_no_trouble_until_it_stays_away(
    talk: Callable[..., Talk],
) -> None:
    """So it is in every planned change of roles; dead, it is told of as ever."""
    slave, refused = talk(), ConnectionRefusedError(111, "Connection refused")
    slave.connect()
    slave.hears(frame_bytes(0, b""))

    def told(actions: Sequence[Action]) -> list[tuple[int, object]]:
        return [(one.level, one.values[-1]) for one in actions if isinstance(one, LogLine)]

    assert told(slave.session.closed(slave.now_s)) == [(logging.INFO, "closed by the master")]
    for seconds, said in ((0.1, []), (TURN_S - 0.2, []), (0.2, [(logging.WARNING, "Connection refused")])):
        slave.passes(seconds)
        slave.session.told(ADDR)
        assert told(slave.session.lost(refused, slave.now_s)) == said


def test_a_master_that_ends_each_connection_without_a_word_is_told_of_once(talk: Callable[..., Talk]) -> None:
    """A stock master does so to a slave that is ahead of it, which dials again every few seconds."""
    slave = talk(700)
    levels = []
    for _ in range(6):
        slave.passes(11.0)
        slave.session.told(ADDR)
        slave.reach()
        said = slave.session.closed(slave.now_s)
        levels.append([one.level for one in said if isinstance(one, LogLine)])
    assert levels == [[logging.WARNING], [logging.ERROR], [], [], [], []]
    assert "ahead of its end" in slave.session.last_error, "haStatus goes on saying it"


def test_a_master_that_is_not_up_yet_is_no_trouble_until_it_stays_away(talk: Callable[..., Talk]) -> None:
    """Who has just turned into a slave calls a master that has just turned, too."""
    slave, refused = talk(), ConnectionRefusedError(111, "Connection refused")
    for seconds, told in ((0.0, 0), (TURN_S - 0.1, 0), (0.2, 1)):
        slave.passes(seconds)
        slave.session.told(ADDR)
        said = slave.session.lost(refused, slave.now_s)
        assert sum(isinstance(one, LogLine) for one in said) == told


def bring(slave: Talk, state: State, tmp_path: Path) -> None:
    """Into that state."""
    session = slave.session
    if state is State.IDLE:
        return
    session.told(ADDR)
    if state is State.PAUSE:
        session.lost(OSError("away"), slave.now_s)
    if state in (State.DIALLING, State.PAUSE):
        return
    session.reached()
    if state is State.HANDSHAKE:
        return
    session.connected(slave.now_s)
    master = master_of(tmp_path, 0)
    if state in (State.VERDICT, State.REJOINING, State.TRANSFER):
        (answer,) = slave.hears(master.hello())
    if state in (State.REJOINING, State.TRANSFER):
        verdict = verdict_on(master, answer)
        session.space()[: len(verdict)] = verdict
        session.received(len(verdict), slave.now_s)
    if state is State.TRANSFER:
        session.rejoined(slave.now_s)


LIVING = [state for state in State if state is not State.SHUTDOWN]


@pytest.mark.parametrize("state", LIVING, ids=lambda state: state.name)
def test_another_master_and_a_stop_are_heeded_in_every_state(
    talk: Callable[..., Talk], tmp_path: Path, state: State
) -> None:
    slave = talk(greets=True)
    bring(slave, state, tmp_path)
    assert slave.session.state is state
    actions = slave.session.told("10.0.0.2:10912")
    left = [Close()] if state in LINKED else []
    assert [one for one in actions if not isinstance(one, LogLine)] == [*left, Dial("10.0.0.2:10912")]
    assert slave.session.state is State.DIALLING
    assert slave.session.stop() == ()
    assert slave.session.state is State.SHUTDOWN


@pytest.mark.parametrize("state", sorted(LINKED, key=str), ids=lambda state: state.name)
def test_a_link_that_is_cut_in_any_state_is_made_again(
    talk: Callable[..., Talk], tmp_path: Path, state: State
) -> None:
    slave = talk(greets=True)
    bring(slave, state, tmp_path)
    assert slave.session.closed(slave.now_s)[-1] == Close()
    assert slave.session.wake_s is not None
    assert slave.passes(slave.session.wake_s - slave.now_s) == [Dial(ADDR)]
    assert slave.reports(slave.reach()) == [-1]


# -- what may be said -------------------------------------------------------------------------------


def test_a_report_waits_for_the_flush_of_what_it_speaks_of(talk: Callable[..., Talk]) -> None:
    slave = talk(700, flushes=True)
    assert [type(one) for one in slave.connect()] == [FlushLog, Send]
    space = slave.session.space()
    frame = frame_bytes(700, pattern(700, 800))
    space[: len(frame)] = frame
    (store,) = slave.session.received(len(frame), slave.now_s)
    assert isinstance(store, StoreRuns)
    slave.log.append_replica(700, store.runs[0].bodies)
    assert slave.session.stored(slave.now_s) == (FlushLog(),)
    assert slave.reports(slave.session.flushed(slave.now_s)) == [800]


def test_a_bad_record_ends_the_connection_once_what_is_sound_before_it_is_stored(
    talk: Callable[..., Talk], tmp_path: Path
) -> None:
    source = open_log(tmp_path / "a")
    first, second = (source.append(message(size)).end for size in (100, 200))
    data = bytearray(source.read(0, second))
    data[first + 120] ^= 1
    slave = talk(check=RecordCheck(SEGMENT_BYTES))
    slave.connect()
    store, end_at, broken = slave.hears(frame_bytes(0, bytes(data)))
    assert store == StoreRuns([])
    assert isinstance(end_at, EndAt)
    assert (end_at.offset, end_at.run.offset) == (first, 0)
    assert isinstance(broken, Break)
    assert isinstance(broken.error, BadRecord)


def test_a_store_that_fails_is_reported_by_nobody(talk: Callable[..., Talk]) -> None:
    """What was checked and not stored is checked again from what the log holds."""
    slave = talk(700)
    slave.connect()
    frame = frame_bytes(700, pattern(700, 800))
    slave.session.space()[: len(frame)] = frame
    slave.session.received(len(frame), slave.now_s)
    slave.session.lost(LogNotWritable("No space left on device", errno=28), slave.now_s)
    assert slave.session.last_error == "No space left on device"
    assert slave.session.wake_s is not None
    assert slave.passes(slave.session.wake_s - slave.now_s) == [Dial(ADDR)]
    assert slave.reports(slave.reach()) == [700]


class Pledge:
    """Objects to a master from some moment on."""

    def __init__(self) -> None:
        self.reason = ""
        self.asked: list[MasterHello | None] = []

    def __call__(self, hello: MasterHello | None) -> str:
        self.asked.append(hello)
        return self.reason


def test_a_master_that_may_not_be_followed_is_told_our_hello_and_no_more(
    talk: Callable[..., Talk], tmp_path: Path
) -> None:
    pledge = Pledge()
    slave, master = talk(greets=True, objection=pledge), master_of(tmp_path, 500)
    pledge.reason = "we are pledged to epoch 2"
    slave.connect()
    (answer,) = slave.hears(master.hello())
    with pytest.raises(GreetingRefused, match="pledged to epoch 2") as refused:
        slave.hears(verdict_on(master, answer))
    actions = slave.session.lost(refused.value, slave.now_s)
    assert actions[-1] == Close()
    assert [one.level for one in actions if isinstance(one, LogLine)] == [logging.WARNING], (
        "it may pass by itself"
    )
    assert slave.session.lineage == "refused: we are pledged to epoch 2"
    assert slave.session.wake_s == slave.now_s + slave_session.AGAIN_PAUSE_S
    assert slave.log.end == 0
    assert pledge.asked == [master.said]


@pytest.mark.parametrize("flushes", [False, True])
def test_what_was_stored_before_an_objection_is_not_acknowledged_after_it(
    talk: Callable[..., Talk], flushes: bool
) -> None:
    """Whoever pledges and then reads the log's end has to know of all that is ever acknowledged."""
    pledge = Pledge()
    slave = talk(700, flushes=flushes, objection=pledge)
    slave.connect()
    frame = frame_bytes(700, pattern(700, 800))
    slave.session.space()[: len(frame)] = frame
    (store,) = slave.session.received(len(frame), slave.now_s)
    assert isinstance(store, StoreRuns)
    if flushes:
        assert slave.session.stored(slave.now_s) == (FlushLog(),)
    pledge.reason = "pledged"
    next_event = slave.session.flushed if flushes else slave.session.stored
    with pytest.raises(GreetingRefused):
        next_event(slave.now_s)
    assert slave.session.reported == 700


def test_nothing_more_is_stored_or_reported_to_a_master_that_is_objected_to(
    talk: Callable[..., Talk],
) -> None:
    pledge = Pledge()
    slave = talk(700, objection=pledge)
    slave.connect()
    pledge.reason = "pledged"
    with pytest.raises(GreetingRefused):
        slave.hears(frame_bytes(700, pattern(700, 800)))
    with pytest.raises(GreetingRefused):
        slave.passes(HEARTBEAT_S)
    assert slave.log.end == 700


def test_a_damaged_slave_says_nothing_of_its_log(talk: Callable[..., Talk]) -> None:
    damage: list[str] = []
    slave = talk(700, damage=lambda: damage[0] if damage else None)
    slave.connect()
    damage.append("record at 300 is none")
    for act in (lambda: slave.hears(frame_bytes(700, b"x")), lambda: slave.passes(HEARTBEAT_S)):
        with pytest.raises(ProtocolError, match="record at 300 is none"):
            act()


@pytest.mark.parametrize("asked", ["greeted_by", "master_software"])
def test_a_link_that_ends_while_another_thread_asks_who_greeted_it_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The lease-keeper asked: its second look found nobody."""
    looks = iter([SimpleNamespace(broker_addr="m:1", software="m:1"), None])
    monkeypatch.setattr(SlaveSession, "_master", property(lambda _: next(looks)))
    assert getattr(object.__new__(SlaveSession), asked) == "m:1"
