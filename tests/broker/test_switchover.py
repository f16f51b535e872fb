"""A switchover whose answers get lost: nothing is taken until it is known who the master is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.retention import DISK_HOLDER
from haservice.broker import switchover
from haservice.broker.peers import Heard
from haservice.broker.role_parts import HOLDER
from haservice.broker.roles import role_in_force
from haservice.broker.switchover import Switchover
from haservice.errors import AnswerError, RemotingError, RemotingTimeout, RemotingUnreachable, RequestError
from haservice.remoting.command import RemotingCommand
from haservice.remoting.lineage_headers import EpochBody, LineageBody, PromoteHeader, SwitchoverHeader
from haservice.replication.lineage import Epoch, Lineage
from haservice.replication.lineage_file import HandingOver, LineageState
from haservice.replication.status import SlaveStatus
from haservice.settings import BrokerRole
from tests.broker.test_roles import ME, peer
from tests.support.brokers import node_config

TARGET = peer("s", (1, 0, ME), end=1000)
PROMOTED = dataclasses.replace(
    TARGET, role="SYNC_MASTER", broker_id=0, epochs=(EpochBody(1, 0, ME), EpochBody(2, 1000, "s"))
)
LOST = RemotingTimeout(TARGET.broker_addr, 40003, 1.0)


class Log:
    end = 1000

    def __init__(self) -> None:
        self.holds: dict[str, str] = {}

    @property
    def held(self) -> str | None:
        return self.holds.get(HOLDER)

    def hold_appends(self, reason: str | None, holder: str) -> None:
        self.holds = {who: why for who, why in self.holds.items() if who != holder}
        if reason is not None:
            self.holds[holder] = reason

    def writable_but_for(self, holder: str) -> str | None:
        return next((why for who, why in self.holds.items() if who != holder), None)

    def flush(self) -> int:
        return self.end


class File:
    """The master's lineage file; `full`: its disk takes nothing."""

    def __init__(self) -> None:
        self.state = LineageState(ME, lineage=Lineage((Epoch(1, 0, ME),)))
        self.full = False

    def update(self, **changes: Any) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.state = dataclasses.replace(self.state, **changes)


class Side:
    """What the master sees of its slave; it says in turn what the test wants."""

    def __init__(self, answer: LineageBody | RemotingError, *words: LineageBody | RemotingError) -> None:
        self.answer = answer
        self.words = list(words)
        self.promotions: list[PromoteHeader] = []
        self.tokens: list[str] = []
        self.written: list[HandingOver | None] = []
        self.handing_over: Callable[[], HandingOver | None] = lambda: None
        self.token: Callable[[], str] = lambda: ""

    def ask(self, also: Iterable[str] = ()) -> Heard:
        return Heard([TARGET], {1: TARGET.broker_addr})

    def call(self, addr: str, request: RemotingCommand, timeout_s: float) -> Any:
        self.promotions.append(PromoteHeader.decode(request.ext))
        self.written.append(self.handing_over())
        if isinstance(self.answer, RemotingError):
            raise self.answer
        return SimpleNamespace(body=self.answer.encode())

    def ask_one(self, addr: str) -> LineageBody:
        self.tokens.append(self.token())
        word = self.words.pop(0) if len(self.words) > 1 else self.words[0]
        if isinstance(word, RemotingError):
            raise word
        return word


class Master:
    """A master that switches over, with a slave that acknowledges all, or not."""

    def __init__(
        self, tmp_path: Path, side: Side, *, ack: int = 1000, also: tuple[SlaveStatus, ...] = ()
    ) -> None:
        self.log = Log()
        self.file = File()
        self.doubts: list[Callable[[], None]] = []
        config = node_config(tmp_path, role=BrokerRole.SYNC_MASTER, port=20011)
        slave = SlaveStatus(
            "s:1", "TRANSFER", ack, ack, ack, 0, 0, 0.0, 0.0, True, "", replica_id="s",
            broker_addr=TARGET.broker_addr,
        )  # fmt: skip
        parts: Any = SimpleNamespace(
            config=config,
            role=role_in_force(config, None),
            lineage=self.file,
            store=SimpleNamespace(log=self.log),
            ha=SimpleNamespace(status=lambda: SimpleNamespace(slaves=[slave, *also])),
            peers=side,
            keeper=lambda: SimpleNamespace(held="", doubt=lambda target, why, undo: self.doubts.append(undo)),
        )
        self.switchover = Switchover(parts)
        side.token = lambda: self.switchover.token
        side.handing_over = lambda: self.file.state.handing_over

    def run(self, millis: int = 1000, *, target: str = "", min_epoch: int = 0) -> Any:
        return self.switchover.run(SwitchoverHeader(target, millis, min_epoch))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchover, "DOUBT_SECONDS", 0.2)
    monkeypatch.setattr(switchover, "DOUBT_LOOK_SECONDS", 0.01)


def test_the_slave_is_told_where_the_log_ends_and_whom_to_ask(tmp_path: Path) -> None:
    side = Side(PROMOTED)
    master = Master(tmp_path, side)
    done = master.run()
    assert (done.newer.epoch, done.newer.broker_addr, done.newer.file_broker_id, done.end) == (
        2, TARGET.broker_addr, 1, 1000,
    )  # fmt: skip
    (told,) = side.promotions
    assert (told.role, told.expected_end, told.min_epoch) == ("SYNC_MASTER", 1000, 2)
    assert told.token == master.switchover.token != ""
    assert master.log.held is not None


def test_a_slave_that_is_not_who_it_says_is_passed_over(tmp_path: Path) -> None:
    """It is nearer, and nobody answers as that replica where it says that clients reach it."""
    side = Side(PROMOTED, dataclasses.replace(TARGET, replica_id="y"))
    stranger = SlaveStatus(
        "x:1", "TRANSFER", 1001, 1001, 1001, 0, 0, 0.0, 0.0, True, "", replica_id="x", broker_addr="x:10911"
    )
    master = Master(tmp_path, side, also=(stranger,))
    assert master.run(min_epoch=9).newer.broker_addr == TARGET.broker_addr
    assert side.promotions[0].min_epoch == 9
    with pytest.raises(RequestError, match="x:10911 does not answer there"):
        Master(tmp_path / "named", side, also=(stranger,)).run(target="x:10911")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (AnswerError("x:10911", 1, "AclException: No accessKey is configured"), "aclCredentialsFile"),
        (AnswerError("x:10911", 1, "AclException: No accessKey is configured"), "No accessKey is configured"),
        (RemotingTimeout("x:10911", 40001, 1.0), "does not answer there.*: it is silent"),
        (RemotingUnreachable("x:10911", "Connection refused"), "does not answer there.*: Connection refused"),
    ],
)
def test_why_a_slave_cannot_be_asked_is_said(tmp_path: Path, word: RemotingError, said: str) -> None:
    slave = SlaveStatus(
        "x:1", "TRANSFER", 1001, 1001, 1001, 0, 0, 0.0, 0.0, True, "", replica_id="x", broker_addr="x:10911"
    )
    master = Master(tmp_path, Side(PROMOTED, word), also=(slave,))
    with pytest.raises(RequestError, match=said):
        master.run(target="x:10911")
    assert master.log.held is None


def test_a_full_disk_is_no_obstacle_and_the_term_begins_on_the_other_side_alone(tmp_path: Path) -> None:
    side = Side(PROMOTED)
    master = Master(tmp_path, side)
    master.log.hold_appends("disk is 100.0% used", DISK_HOLDER)
    before = master.file.state.lineage
    assert master.run().newer.epoch == 2
    assert master.file.state.lineage == before
    assert master.log.holds[DISK_HOLDER] == "disk is 100.0% used"


def test_what_else_holds_appends_is_an_obstacle(tmp_path: Path) -> None:
    side = Side(PROMOTED)
    master = Master(tmp_path, side)
    master.log.hold_appends("disk is 100.0% used", DISK_HOLDER)
    master.log.hold_appends("queues are not complete yet", "store")
    with pytest.raises(RequestError, match="queues are not complete yet"):
        master.run()
    assert side.promotions == []


def test_a_slave_that_does_not_get_level_is_not_promoted(tmp_path: Path) -> None:
    side = Side(PROMOTED)
    master = Master(tmp_path, side, ack=999)
    with pytest.raises(RequestError, match="has acknowledged 999 of 1000"):
        master.run(50)
    assert (side.promotions, master.log.held, master.switchover.token) == ([], None, "")


def test_a_slave_that_says_no_leaves_all_as_it_was(tmp_path: Path) -> None:
    master = Master(tmp_path, Side(AnswerError(TARGET.broker_addr, 1, "the log ends at 7")))
    with pytest.raises(RequestError, match="was not promoted: the log ends at 7"):
        master.run()
    assert (master.log.held, master.switchover.token) == (None, "")
    assert master.file.state.handing_over is None


def test_a_lost_answer_of_a_slave_that_was_promoted_is_found_out(tmp_path: Path) -> None:
    """It is away while it turns, and says it then."""
    changing = dataclasses.replace(TARGET, changing=True)
    side = Side(LOST, LOST, changing, LOST, PROMOTED)
    done = Master(tmp_path, side).run()
    assert done.newer.epoch == 2


def test_a_lost_answer_of_a_slave_that_was_not_promoted_undoes_it(tmp_path: Path) -> None:
    side = Side(LOST, LOST, TARGET)
    master = Master(tmp_path, side)
    with pytest.raises(RequestError, match="was not promoted"):
        master.run()
    assert master.log.held is None
    # Whatever of the request is still on its way comes to nothing, since before the slave was asked.
    assert side.tokens == ["", ""]


def test_a_slave_that_stays_silent_leaves_a_doubt_and_nothing_is_taken(tmp_path: Path) -> None:
    side = Side(LOST, LOST)
    master = Master(tmp_path, side)
    with pytest.raises(RequestError, match="nothing is taken until it is"):
        master.run()
    assert master.log.held is not None
    assert master.file.state.handing_over == HandingOver(TARGET.broker_addr, "s")
    (undo,) = master.doubts
    undo()
    assert (master.log.held, master.file.state.handing_over) == (None, None)


def test_whom_it_is_handed_over_to_is_written_before_the_slave_is_told(tmp_path: Path) -> None:
    side = Side(PROMOTED)
    master = Master(tmp_path, side)
    master.run()
    assert side.written == [HandingOver(TARGET.broker_addr, "s")]


def test_a_switchover_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    side = Side(PROMOTED)
    master = Master(tmp_path, side)
    master.file.full = True
    with pytest.raises(RequestError, match="cannot be written"):
        master.run()
    assert (side.promotions, master.log.held, master.switchover.token) == ([], None, "")
