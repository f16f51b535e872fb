"""A page does not wait for a broker that is silent, and does wait for one that is slow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from haservice.admin.many import Call
from haservice.console.questions import page_admin
from haservice.console.questions.page_admin import PageAdmin, PeerSilent
from haservice.remoting.bodies.clients import KVTable
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.terminal.access import Access
from tests.support.remoting import serving

SLOW, PROBE = RequestCode.GET_CONSUME_STATS, RequestCode.GET_BROKER_RUNTIME_INFO


class Broker:
    """Answers what is slow once it was asked for a sign of life, or nothing at all."""

    def __init__(self, *, is_silent: bool) -> None:
        self.asked: Counter[int] = Counter()
        self._is_silent = is_silent
        self._probed: asyncio.Event | None = None

    async def answer(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.asked[request.code] += 1
        self._probed = self._probed or asyncio.Event()
        if self._is_silent:
            await asyncio.Event().wait()
        if request.code == PROBE:
            self._probed.set()
        else:
            await self._probed.wait()
        return request.answer(body=KVTable({}).encode())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_admin, "QUIET_S", 0.05)
    monkeypatch.setattr(page_admin, "PROBE_S", 0.2)
    monkeypatch.setattr(page_admin, "REMEMBERED_S", 60.0)


@pytest.fixture
def admin() -> Iterator[PageAdmin]:
    with PageAdmin([], Access(tls=None, sign=None)) as made:
        yield made


def test_a_silent_broker_is_asked_once_for_a_sign_of_life_and_then_no_more(admin: PageAdmin) -> None:
    broker = Broker(is_silent=True)
    with serving(dict.fromkeys((SLOW, PROBE), broker.answer)) as server:
        addr = f"127.0.0.1:{server.ports[0]}"
        answers = admin.call_many([Call(addr, SLOW)] * 5, timeout_s=60)
        assert [type(one) for one in answers] == [PeerSilent] * 5
        assert str(answers[0]) == f"{addr} does not answer: it was silent for 0.25 s"
        assert broker.asked == {SLOW: 5, PROBE: 1}
        with pytest.raises(PeerSilent):
            admin.call(addr, SLOW, timeout_s=60)
        assert broker.asked == {SLOW: 5, PROBE: 1}


def test_a_slow_answer_is_waited_for(admin: PageAdmin) -> None:
    broker = Broker(is_silent=False)
    with serving(dict.fromkeys((SLOW, PROBE), broker.answer)) as server:
        addr = f"127.0.0.1:{server.ports[0]}"
        assert admin.ask(addr, SLOW, into=KVTable, timeout_s=60) == KVTable({})
        assert broker.asked == {SLOW: 1, PROBE: 1}
