"""Several calls at once, and why some of them had no good answer.

A page shows what there is, and a sentence for each broker that did not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from haservice.admin.calls import Broker, MQAdmin, readable_addr
from haservice.admin.many import Call
from haservice.client.admin import TIMEOUT_S
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.clients import TopicRouteData
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.terminal.output import heard_by, shown_addr

# Longer lists of sentences tell nothing more.
SAID_MAX = 20


@dataclass(slots=True)
class Notes:
    """Sentences below what is shown, each once; `unheard` are the addresses that gave no good answer."""

    said: list[str] = field(default_factory=list)
    unheard: set[str] = field(default_factory=set)

    def add(self, text: str) -> None:
        if text not in self.said and len(self.said) < SAID_MAX:
            self.said.append(text)

    def failed(self, error: RemotingError, addr: str = "") -> None:
        self.add(sentence(error))
        self.unheard.add(addr or str(getattr(error, "addr", "")))

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Takes what functions of mqadmin would say on the terminal."""
        with heard_by(self.add):
            yield


def sentence(error: RemotingError) -> str:
    """Why there was no good answer, for a person.  Pure."""
    if isinstance(error, AnswerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return (
            f"{shown_addr(error.addr)} does not know request {_named(error.request)}: a stock broker of that"
            " version does not tell this"
        )
    return str(error)


def _named(code: int) -> str:
    try:
        return f"{code} ({RequestCode(code).name})"
    except ValueError:
        return str(code)


def ask_many(
    admin: MQAdmin,
    calls: Sequence[Call],
    notes: Notes,
    timeout_s: float = TIMEOUT_S,
    fine: Sequence[int] = (),
) -> list[Any]:
    """The answers, side by side; None where there is none, and a note says why, unless the code is `fine`."""
    found: list[Any] = []
    for call, answer in zip(calls, admin.call_many(calls, timeout_s), strict=True):
        failed = isinstance(answer, RemotingError)
        if failed and not (isinstance(answer, AnswerError) and answer.code in fine):
            notes.failed(answer, call.addr)
        found.append(None if failed else answer)
    return found


def readable(route: TopicRouteData) -> dict[str, str]:
    """Broker name → the address to read from."""
    return {data.broker_name: readable_addr(data) for data in route.broker_datas if data.broker_addrs}


def first_of_each_name(brokers: Sequence[Broker], wanted: Callable[[Broker], bool]) -> dict[str, Broker]:
    """Broker name → the master if it is wanted, else the first slave that is."""
    found: dict[str, Broker] = {}
    for one in sorted(brokers, key=lambda one: (one.name, one.broker_id)):
        if wanted(one):
            found.setdefault(one.name, one)
    return found
