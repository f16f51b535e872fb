"""The least that a pair of any kind has to do for a send, compiled from bare_broker.c: a benchmark's floor."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import psutil

from haservice.devtools.pair import free_port_block
from haservice.remoting.bodies.clients import TopicConfig, TopicConfigWrapper
from haservice.remoting.bodies.registration import RegisterBrokerBody, body_crc32
from haservice.remoting.client import BlockingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import RegisterBrokerHeader
from tests.interop.stock import OurNameserver, Server
from tests.support.c_compiler import compile_c

COMPILE_S = 60.0


def compiled(directory: Path) -> Path:
    """The program.  Raises NoCompiler."""
    program = directory / "bare_broker"
    source = Path(__file__).with_name("bare_broker.c")
    compile_c(("gcc", "clang", "cc"), ["-O2", "-Wall", "-Wextra", "-o", str(program), str(source)], COMPILE_S)
    return program


class BareBroker(Server):
    """Master and slave, which are two processes."""

    boot_line = "slave "

    def __init__(self, directory: Path, program: Path, mode: str) -> None:
        super().__init__(directory, "bare", free_port_block(1))
        self._program = program
        self._sync = ["SYNC"] if mode == "SYNC_MASTER" else []

    def command(self) -> list[str]:
        return [str(self._program), str(self.port), str(self.directory / "log"), *self._sync]


class BarePair:
    """With a nameserver of ours that knows the topic; `with` starts and ends all of it."""

    def __init__(self, program: Path, mode: str, directory: Path, topic: str, queues: int) -> None:
        self.nameserver = OurNameserver(directory)
        self.broker = BareBroker(directory, program, mode)
        self._topic = TopicConfig(topic, queues, queues)

    def __enter__(self) -> BarePair:
        self.nameserver.start()
        self.broker.start()
        self._client = BlockingClient()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self.broker.kill()
        self.nameserver.kill()

    def register(self) -> None:
        """A registration counts for as long as its connection; both end when nothing is said for two minutes."""
        topics = TopicConfigWrapper(topic_config_table={self._topic.topic_name: self._topic})
        body = RegisterBrokerBody(topics=topics).encode()
        addr = self.broker.addr
        header = RegisterBrokerHeader("bare", addr, "DefaultCluster", addr, 0, body_crc32=body_crc32(body))
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header.encode(), body)
        expect(self.nameserver.addr, self._client.call(self.nameserver.addr, request, 20.0))

    def cpu_s(self) -> float:
        master = psutil.Process(self.broker.pid)
        times = [one.cpu_times() for one in (master, *master.children())]
        return sum(one.user + one.system for one in times)
