"""PageAdmin: an MQAdmin for pages, which do not wait for a broker that is silent.

    0 s    a request
    1 s    no answer: its broker is asked something that takes it no time
    3 s    no answer to that either: the request fails, and for 5 s all others to that address fail at once

A broker that is slow with one request answers the small one.  The request then has all the time of its own timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from haservice.admin.calls import MQAdmin
from haservice.admin.many import Call, call_many
from haservice.client.admin import TIMEOUT_S
from haservice.errors import RemotingTimeout, RemotingUnreachable
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.terminal.access import Access

QUIET_S = 1.0
PROBE_S = 2.0
REMEMBERED_S = 5.0


class PeerSilent(RemotingTimeout):
    """`addr` has answered nothing, not even what takes it no time."""

    def __init__(self, addr: str, code: int) -> None:
        super().__init__(addr, code, QUIET_S + PROBE_S)
        self.args = (f"{addr} does not answer: it was silent for {self.seconds:g} s",)


class PageAdmin(MQAdmin):
    """For any number of pages."""

    def __init__(self, namesrv: Sequence[str], way: Access) -> None:
        super().__init__(namesrv, way)
        self._silences = _Silences(frozenset(namesrv))

    def call_many(self, calls: Sequence[Call], timeout_s: float = TIMEOUT_S) -> list[Any]:
        return self.use(lambda client: call_many(_Listening(client, self._silences), calls, timeout_s))

    def _invoke(self, addr: str, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        return self.use(lambda client: _Listening(client, self._silences).invoke(addr, command, timeout_s))


class _Silences:
    """Who was silent, and who is asked for a sign of life.  Only on the client's loop."""

    def __init__(self, namesrv: frozenset[str]) -> None:
        self._namesrv = namesrv
        self._until: dict[str, float] = {}
        self._probes: dict[str, asyncio.Task[bool]] = {}

    def check(self, addr: str, code: int) -> None:
        """Raises PeerSilent."""
        now = asyncio.get_running_loop().time()
        for old in [one for one, until in self._until.items() if until <= now]:
            del self._until[old]
        if addr in self._until:
            raise PeerSilent(addr, code)

    def probe(self, client: RemotingClient, addr: str) -> asyncio.Task[bool]:
        """Whether it gives a sign of life; all requests that wait for it share one question."""
        if addr not in self._probes:
            task = self._probes[addr] = asyncio.ensure_future(self._is_alive(client, addr))
            task.add_done_callback(lambda _: self._probes.pop(addr, None))
        return self._probes[addr]

    async def _is_alive(self, client: RemotingClient, addr: str) -> bool:
        is_namesrv = addr in self._namesrv
        code = RequestCode.GET_BROKER_CLUSTER_INFO if is_namesrv else RequestCode.GET_BROKER_RUNTIME_INFO
        try:
            await client.invoke(addr, RemotingCommand.request(code), PROBE_S)
        except RemotingTimeout:
            self._until[addr] = asyncio.get_running_loop().time() + REMEMBERED_S
            return False
        except RemotingUnreachable:
            pass  # the request itself meets the same, and says so
        return True


class _Listening:
    """A client whose requests fail early if their peer is silent."""

    def __init__(self, client: RemotingClient, silences: _Silences) -> None:
        self._client = client
        self._silences = silences

    async def invoke(self, addr: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """As RemotingClient.invoke; also raises PeerSilent."""
        self._silences.check(addr, int(command.code))
        asked = asyncio.ensure_future(self._client.invoke(addr, command, timeout_s))
        try:
            await asyncio.wait([asked], timeout=QUIET_S)
            if not asked.done():
                probe = self._silences.probe(self._client, addr)
                await asyncio.wait([asked, probe], return_when=asyncio.FIRST_COMPLETED)
                if not asked.done() and not probe.result():
                    raise PeerSilent(addr, int(command.code))
            return await asked
        finally:
            asked.cancel()
