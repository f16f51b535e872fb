"""Dialling a master that does not answer, or not at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from haservice.replication.slave import dial as dial_module
from haservice.replication.slave.dial import CALLS_MAX, dial
from haservice.replication.wire.wakeup import Wakeup
from tests.support.waiting import PATIENCE_S, wait_until


class Deaf:
    """A port whose calls are lost until hears() makes room for one more."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.listener.settimeout(PATIENCE_S)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._first = socket.create_connection(self.listener.getsockname())

    def hears(self) -> None:
        self.listener.accept()[0].close()

    def close(self) -> None:
        self._first.close()
        self.listener.close()


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    port = Deaf()
    yield port
    port.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Every call that is made."""
    made: list[socket.socket] = []
    call = dial_module._call

    def noted(where: tuple[object, ...]) -> socket.socket:
        made.append(call(where))
        return made[-1]

    monkeypatch.setattr(dial_module, "_call", noted)
    monkeypatch.setattr(dial_module, "CONNECT_SECONDS", 600.0)
    return made


def test_a_call_that_was_lost_is_made_again_and_the_master_sees_one(
    deaf: Deaf, calls: list[socket.socket]
) -> None:
    answers: list[socket.socket | None] = []
    thread = threading.Thread(target=lambda: answers.append(dial(deaf.address, Wakeup(), lambda: False)))
    thread.start()
    wait_until(lambda: len(calls) > CALLS_MAX + 2, "it calls on and on")
    assert calls[0].fileno() != -1, "the first one waits"
    assert calls[1].fileno() == -1
    deaf.hears()
    thread.join(PATIENCE_S)
    assert answers[0] is not None
    with answers[0] as link, deaf.listener.accept()[0] as end:
        assert link.getblocking()
        end.sendall(b"here")
        assert link.recv(4) == b"here"
        assert sum(call.fileno() != -1 for call in calls) == 1
    deaf.listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        deaf.listener.accept()


def test_a_wake_up_that_makes_nothing_moot_makes_no_further_call(
    calls: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come late, of an address that is dialled by now: the master saw a second connection, closed at once."""
    monkeypatch.setattr(dial_module, "AGAIN_S", 600.0)
    wakeups, wakeup = iter(range(3)), Wakeup()

    def wakes() -> bool:
        if next(wakeups, None) is not None:
            wakeup.set()
        return False

    with socket.create_server(("127.0.0.1", 0)) as master:
        link = dial(f"127.0.0.1:{master.getsockname()[1]}", wakeup, wakes)
        assert link is not None
        link.close()
        assert next(wakeups, None) is None
    assert len(calls) == 1


def test_a_dial_that_has_become_moot_leaves_no_call(deaf: Deaf, calls: list[socket.socket]) -> None:
    wakeup, moot = Wakeup(), threading.Event()
    answers: list[socket.socket | None] = []
    thread = threading.Thread(target=lambda: answers.append(dial(deaf.address, wakeup, moot.is_set)))
    thread.start()
    wait_until(lambda: len(calls) > 2)
    moot.set()
    wakeup.set()
    thread.join(PATIENCE_S)
    assert answers == [None]
    assert all(call.fileno() == -1 for call in calls)


def test_nobody_answers_in_time(
    deaf: Deaf, calls: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial_module, "CONNECT_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"no connection within 0\.01 s"):
        dial(deaf.address, Wakeup(), lambda: False)
    assert all(call.fileno() == -1 for call in calls)


def test_a_refusal_is_told_at_once(calls: list[socket.socket]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        dial(f"127.0.0.1:{port}", Wakeup(), lambda: False)
    assert all(call.fileno() == -1 for call in calls)


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_name_that_cannot_be_looked_up_is_an_error_of_the_connection(
    calls: list[socket.socket], host: str
) -> None:
    """It came from a nameserver or a command; as a UnicodeError it ended the slave's thread for good."""
    with pytest.raises(OSError, match="is no host name"):
        dial(f"{host}:10912", Wakeup(), lambda: False)
    assert not calls
