"""A nameserver, a master and a slave, each of either kind, and what tests of such a pair ask of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from haservice.admin.calls import MQAdmin
from haservice.errors import AnswerError, HAServiceError
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.interop import our_client
from tests.interop.stock import Broker, Kind, Nameserver, broker, logs_equal, nameserver, servers
from tests.support.waiting import wait_until

# A stock slave dials every 5 s, registers 10 s after its start, and copies topics every 10 s.
PATIENCE_S = 40.0


class MixedPair:
    """Not started; `start` is that of `servers`, which end what was started."""

    def __init__(
        self,
        directory: Path,
        start: Callable[..., None],
        admin: Callable[[str], MQAdmin],
        *,
        kinds: tuple[Kind, Kind, Kind],
        role: str = "SYNC_MASTER",
        **properties: object,
    ) -> None:
        of_nameserver, of_master, of_slave = kinds
        self.start = start
        self.namesrv: Nameserver = nameserver(of_nameserver, directory)
        self.master: Broker = broker(of_master, directory, role=role, namesrv=self.namesrv, **properties)
        self.slave: Broker = broker(
            of_slave, directory, broker_id=1, role="SLAVE", namesrv=self.namesrv, **properties
        )
        self.admin = admin(self.namesrv.addr)

    def start_with_topic(self, topic: str, queues: int) -> None:
        """All three; the topic is there before the slave, which copies topics soon after its start."""
        self.start(self.namesrv)
        self.start(self.master)
        self.create_topic(topic, queues)
        self.start(self.slave)
        wait_until(self.is_caught_up, "the slave is level with its master", PATIENCE_S)
        wait_until(lambda: self.has_topic(self.slave, topic), "the slave has the topic", PATIENCE_S)

    def create_topic(self, topic: str, queues: int) -> None:
        self.admin.update_topic(self.master.addr, CreateTopicHeader(topic, "TBW102", queues, queues, 6))

    def has_topic(self, at: Broker, topic: str) -> bool:
        """By its own table: a stock broker answers 202 for a topic that it has in its log only."""
        try:
            return bool(self.admin.topic_stats(at.addr, topic).offset_table)
        except HAServiceError:
            return False

    def end(self, at: Broker) -> int:
        """Of its log.  A stock broker in its first second has no numbers yet, and answers 1."""
        told: list[str] = []

        def is_told() -> bool:
            with contextlib.suppress(AnswerError):
                told.append(self.admin.runtime_info(at.addr)["commitLogMaxOffset"])
            return bool(told)

        wait_until(is_told, f"{at.name} tells the end of its log")
        return int(told[0])

    def is_caught_up(self) -> bool:
        """The slave holds, and has dispatched, all that the master holds, and reports so."""
        try:
            return (
                self.end(self.slave) == self.end(self.master)
                and self.admin.runtime_info(self.slave.addr)["dispatchBehindBytes"] == "0"
            )
        except HAServiceError:
            return False

    def route(self, topic: str) -> dict[int, str]:
        """Broker id → address, as the nameserver has it."""
        try:
            (data,) = self.admin.route(topic).broker_datas
        except (HAServiceError, ValueError):
            return {}
        return dict(data.broker_addrs)

    def wait_route(self, topic: str, *brokers: Broker) -> None:
        wanted = {one.broker_id: one.addr for one in brokers}
        wait_until(lambda: self.route(topic) == wanted, f"the route is {wanted}", PATIENCE_S)

    def wait_proven(self, topic: str) -> int:
        """Sends until one is answered SEND_OK: the slave takes part again.  Returns how many it took."""
        sent = 0

        def is_proven() -> bool:
            nonlocal sent
            sent += 1
            return our_client.send(self.master.addr, topic, 1, [b"probe"])["SEND_OK"] == 1

        wait_until(is_proven, "a SYNC_MASTER answers SEND_OK", PATIENCE_S)
        return sent

    def assert_equal_logs(self) -> None:
        wait_until(self.is_caught_up, "the slave is level with its master", PATIENCE_S)
        end = self.end(self.master)
        assert end > 0
        assert logs_equal(self.master.root, self.slave.root, end)


@contextlib.contextmanager
def mixed_pairs(directory: Path) -> Iterator[Callable[..., MixedPair]]:
    """`make(kinds=…, role=…)` builds a pair below `directory`; at the end all its processes are gone."""
    with contextlib.ExitStack() as stack:
        start = stack.enter_context(servers())

        def admin(namesrv: str) -> MQAdmin:
            return stack.enter_context(MQAdmin([namesrv]))

        yield lambda **arguments: MixedPair(directory, start, admin, **arguments)
