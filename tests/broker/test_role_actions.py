"""What the machine of roles decides, carried out: a lost answer that is asked after, and what a view leaves out."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from commitlog.store import Store
from commitlog.upkeep.retention import DISK_HOLDER
from haservice.broker.roles import hands as role_hands
from haservice.broker.roles.actions import (
    Ask,
    Failed,
    FindOut,
    GatherPledges,
    LookAtSlaves,
    Lost,
    Prove,
    Pull,
    Pulled,
    Result,
    SendPromote,
    Slaves,
    TakeList,
    TellFollow,
    Votes,
    WithResult,
)
from haservice.broker.roles.hands import DOUBT_LOOK_SECONDS, DOUBT_SECONDS, RoleHands
from haservice.broker.roles.peers import PATIENCE_S, Heard, Peers, ReadLog
from haservice.errors import RemotingTimeout, RemotingUnreachable
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import (
    EpochBody,
    FollowHeader,
    LineageBody,
    PledgeHeader,
    PromoteHeader,
)
from haservice.replication.lineage.file import LineageFile
from tests.broker.test_roles import ME, OTHER, peer
from tests.support.brokers import node_config
from tests.support.messages import STORE_HOST

SLAVE = peer("s", (1, 0, ME))
CHANGING = dataclasses.replace(SLAVE, changing=True)
PROMOTED = peer("s", (1, 0, ME), (1000, 5000, "s"), role="SYNC_MASTER")
SILENT = RemotingTimeout("s:10911", 40001, PATIENCE_S)
DOWN = RemotingUnreachable("s:10911", "Connection refused")
EPOCHS_FALL = ValueError("epochs do not rise")


class Words(Peers):
    """What one peer says, a word at each asking; a deadline, too: time is up once all is said."""

    def __init__(self, *words: LineageBody | Exception) -> None:
        self.words = list(words)
        self.asked: list[str] = []

    def ask_one(self, addr: str, timeout_s: float = PATIENCE_S) -> LineageBody:
        self.asked.append(addr)
        word = self.words.pop(0)
        if isinstance(word, Exception):
            raise word
        return word

    @property
    def expired(self) -> bool:
        return not self.words


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[Peers], RoleHands]]:
    """Hands of a broker of which only the files are there."""
    config = node_config(tmp_path, port=20011)
    store = Store.open(config.log, store_host=STORE_HOST)

    def make(peers: Peers) -> RoleHands:
        return RoleHands(
            config,
            LineageFile(config.log.root),
            store,
            peers,
            copy_side_state=lambda _: False,
            set_master=lambda _, __: None,
            turn=lambda _: None,
            announce=lambda: None,
            describe=lambda _: SLAVE,
        )

    yield make
    store.close()


# -- a new epoch of a master that runs ----------------------------------------------------------------


def test_slaves_and_name_servers_are_told_of_a_new_epoch_at_once(made: Callable[[Peers], RoleHands]) -> None:
    """Who takes over if this master dies now numbers its epoch above all that nameservers have heard of."""
    told: list[str] = []
    ha = SimpleNamespace(take_list=lambda: told.append("list"), regreet=lambda: told.append("slaves"))
    hands = dataclasses.replace(
        made(Words()),
        master=ha,  # type: ignore[arg-type]  # as much of it as is used
        announce=lambda: told.append("nameservers"),
    )
    hands.act(TakeList(regreet=False))
    assert told == ["list"]
    hands.act(TakeList(regreet=True))
    assert told[1:] == ["list", "slaves", "nameservers"]


# -- what became of a slave whose answer is lost ----------------------------------------------------


@pytest.fixture
def find_out(
    made: Callable[[Peers], RoleHands], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Words], Result]:
    """Asks after an epoch from 1000 on, of the replica s; checks how patiently."""

    def find_out(words: Words) -> Result:
        given: list[float] = []
        pauses: list[float] = []
        monkeypatch.setattr(role_hands, "Deadline", lambda seconds: given.append(seconds) or words)
        monkeypatch.setattr(role_hands, "time", SimpleNamespace(sleep=pauses.append))
        found = made(words).perform(FindOut("s:10911", "s", 1000))
        assert given == [DOUBT_SECONDS]
        # It is let alone between two looks, and after the last one that told nothing.
        looks = len(words.asked) - (not isinstance(found, Lost))
        assert pauses == [DOUBT_LOOK_SECONDS] * looks
        return found

    return find_out


def test_a_slave_is_asked_until_it_says_that_it_was_promoted(find_out: Callable[[Words], Result]) -> None:
    words = Words(SILENT, DOWN, EPOCHS_FALL, CHANGING, PROMOTED, SLAVE)
    assert find_out(words) is PROMOTED
    assert words.asked == ["s:10911"] * 5


@pytest.mark.parametrize(
    "word",
    [
        SLAVE,
        # An epoch of its own, but an older one than it was told to begin.
        dataclasses.replace(PROMOTED, epochs=(EpochBody(1, 0, ME), EpochBody(999, 5000, "s"))),
        # It follows another one by now.
        dataclasses.replace(SLAVE, epochs=(EpochBody(1, 0, ME), EpochBody(1000, 5000, OTHER))),
    ],
)
def test_a_slave_that_changes_nothing_and_has_no_such_epoch_says_no(
    find_out: Callable[[Words], Result], word: LineageBody
) -> None:
    words = Words(DOWN, CHANGING, word, PROMOTED)
    assert find_out(words) == Failed("it says that it was not", answered=True)
    assert len(words.asked) == 3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([SILENT, DOWN, SILENT], "it does not answer"),
        ([SILENT, CHANGING, SILENT], "it is changing its role"),
    ],
)
def test_what_is_not_known_when_time_is_up_stays_unknown(
    find_out: Callable[[Words], Result], words: list[LineageBody | Exception], why: str
) -> None:
    assert find_out(Words(*words)) == Lost(why)


def test_what_another_replica_says_at_its_address_is_not_its_word(
    find_out: Callable[[Words], Result],
) -> None:
    stranger = dataclasses.replace(SLAVE, replica_id="x")
    assert isinstance(find_out(Words(stranger, stranger)), Lost)
    assert find_out(Words(stranger, PROMOTED)) is PROMOTED


# -- what is so -------------------------------------------------------------------------------------


def test_a_full_disk_and_roles_themselves_do_not_make_a_broker_unwritable(
    made: Callable[[Peers], RoleHands],
) -> None:
    """A master whose disk is full can hand over: the epoch begins in the slave's log."""
    hands = made(Words())
    assert hands.view().unwritable == ""
    hands.store.log.hold_appends("disk is 96.0% used", DISK_HOLDER)
    hands.hold("switching over")
    assert hands.store.log.writable == "disk is 96.0% used"
    assert hands.view().unwritable == ""
    hands.store.log.hold_appends("queues are not complete yet")
    assert hands.view().unwritable == "queues are not complete yet"


# -- errors of any kind ---------------------------------------------------------------------------------

PLEDGE = PledgeHeader(epoch=1000, replica_id="s", broker_addr="s:10911")
PROMOTE = PromoteHeader(min_epoch=1000)
PROMISED: list[tuple[WithResult, type]] = [
    (Ask(), Heard),
    (GatherPledges(("a:1", "b:1"), PLEDGE), Votes),
    (Pull(SLAVE, 4096, 8192), Pulled),
    (LookAtSlaves(), Slaves),
    (SendPromote("s:10911", PROMOTE, 1.0), Lost),
    (FindOut("s:10911", "s", 1000), Lost),
    (Prove(SLAVE), Failed),
]


class Breaks(Peers):
    """Every question to others ends with this error, as if its connections could not be closed."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def use(self, work: object) -> NoReturn:
        raise self.error

    def call(self, addr: str, request: RemotingCommand, timeout_s: float) -> NoReturn:
        raise self.error

    @contextlib.contextmanager
    def reading(self) -> Iterator[ReadLog]:
        raise self.error
        yield


@pytest.mark.parametrize("error", [TimeoutError(), OSError(errno.EMFILE, "Too many open files")], ids=repr)
@pytest.mark.parametrize(("action", "promised"), PROMISED, ids=lambda value: type(value).__name__)
def test_an_action_that_an_error_ends_gives_the_result_that_it_promises(
    made: Callable[[Peers], RoleHands],
    monkeypatch: pytest.MonkeyPatch,
    action: WithResult,
    promised: type,
    error: OSError,
) -> None:
    """A machine that stood still for the seconds of a close took the thread role-keeper with it."""
    monkeypatch.setattr(role_hands, "DOUBT_SECONDS", 0.0)
    status = SimpleNamespace(status=lambda: Breaks(error).use(None))
    hands = dataclasses.replace(made(Breaks(error)), master=status)  # type: ignore[arg-type]
    result = hands.perform(action)
    assert isinstance(result, promised)
    if isinstance(result, Lost | Failed) and not isinstance(action, FindOut):
        assert result.reason


def test_a_slave_that_cannot_be_told_whom_to_follow_harms_nobody(made: Callable[[Peers], RoleHands]) -> None:
    made(Breaks(TimeoutError())).act(TellFollow("s:10911", FollowHeader("m:10911", "m:10912", 1000)))
