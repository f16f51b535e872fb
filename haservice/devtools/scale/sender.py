"""SteadySender: a process that sends one small message after the other, and says how long the worst send took.

It is a process of its own, so that what a row does in Python does not count as time of the broker.

    parent ── "look\n" ──▶ child          child ── one line of JSON ──▶ parent: sends since the last look
    the child ends when its stdin does
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from haservice.errors import HAServiceError
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader

TOPIC = "beside"
PAUSE_SECONDS = 0.002
SEND_TIMEOUT_S = 60.0
END_SECONDS = 5.0


class Sends(NamedTuple):
    """What was sent between two looks; `worst_ms` counts a send that had no answer yet."""

    number: int
    not_ok: int
    p50_ms: float
    p99_ms: float
    worst_ms: float


class SteadySender:
    """Sends to the broker at `addr` from entering to leaving, `in_flight` at a time; ask it with `look`."""

    def __init__(
        self, addr: str, *, topic: str = TOPIC, pause_s: float = PAUSE_SECONDS, in_flight: int = 1
    ) -> None:
        program = [sys.executable, "-m", "haservice.devtools.scale.sender"]
        self._words = [*program, addr, topic, str(pause_s), str(in_flight)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        deadline = time.monotonic() + SEND_TIMEOUT_S
        while not self.look().number:  # the first send makes the topic
            if time.monotonic() > deadline:
                raise HAServiceError(f"no send was answered within {SEND_TIMEOUT_S:g} s")
            time.sleep(PAUSE_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def look(self) -> Sends:
        """The sends since the last look, or since the first send."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("look\n")
        line = process.stdout.readline()
        if not line:
            raise HAServiceError(f"the sender beside it ended with {process.wait()}")
        return Sends(*json.loads(line))


def send_command(
    topic: str, body: bytes, properties: str = "", *, queue_id: int = 0, sys_flag: int = 0
) -> RemotingCommand:
    """A send; the broker makes the topic with its first message."""
    header = SendMessageHeader(
        producer_group="bench",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_timestamp_ms=time.time_ns() // 1_000_000,
        flag=0,
        properties=properties,
    )
    return RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2, header.encode(RequestCode.SEND_MESSAGE_V2), body
    )


# -- the child -------------------------------------------------------------------------------------


class _Child:
    def __init__(self, addr: str, topic: str, pause_s: float, in_flight: int) -> None:
        self._addr = addr
        self._topic = topic
        self._pause_s = pause_s
        self._in_flight = in_flight
        self._times_ms: list[float] = []
        self._not_ok = 0
        self._began_s: dict[int, float] = {}
        """When each send that has no answer yet began."""

    async def run(self) -> None:
        client = RemotingClient()
        sending = asyncio.gather(*(self._send(client, number) for number in range(self._in_flight)))
        try:
            lines = asyncio.StreamReader()
            await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
            )
            while await lines.readline():
                sys.stdout.write(json.dumps(self._look()) + "\n")
                sys.stdout.flush()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await client.close()

    async def _send(self, client: RemotingClient, number: int) -> None:
        while True:
            began_s = self._began_s[number] = time.perf_counter()
            try:
                answer = await client.invoke(self._addr, send_command(self._topic, b"beside"), SEND_TIMEOUT_S)
                self._not_ok += answer.code != 0
            except HAServiceError:
                self._not_ok += 1
            self._times_ms.append((time.perf_counter() - began_s) * 1000)
            del self._began_s[number]
            await asyncio.sleep(self._pause_s)

    def _look(self) -> Sends:
        times = sorted(self._times_ms)
        running = (time.perf_counter() - min(self._began_s.values())) * 1000 if self._began_s else 0.0
        sends = Sends(
            len(times),
            self._not_ok,
            _quantile(times, 0.5),
            _quantile(times, 0.99),
            max([*times[-1:], running]),
        )
        self._times_ms, self._not_ok = [], 0
        return sends


def _quantile(times: Sequence[float], share: float) -> float:
    return times[min(int(len(times) * share), len(times) - 1)] if times else 0.0


if __name__ == "__main__":
    asyncio.run(_Child(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])).run())
