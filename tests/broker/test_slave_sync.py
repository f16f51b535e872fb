from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from haservice.broker.groups.subscription_groups import GroupConfig, Groups
from haservice.broker.metadata import slave_sync
from haservice.broker.metadata.slave_sync import SlaveSync
from haservice.broker.metadata.table_copies import TableCopies
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.offsets.copies import OffsetCopies
from haservice.broker.topics.table import TopicTable, topic_config
from haservice.configuration.settings import BrokerConfig
from haservice.deadline import Deadline
from haservice.devtools.pair import free_port_block
from haservice.errors import RequestError
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import (
    ConsumerOffsetWrapper,
    DataVersion,
    DelayOffsetWrapper,
    SubscriptionGroupWrapper,
    TopicConfigWrapper,
)
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.copies import CopyOffsetsHeader
from haservice.remoting.server import Listener, RemotingServer
from haservice.supervisor import Supervisor
from tests.support.remoting import serving
from tests.support.waiting import PATIENCE_S, wait_until

OWN = "127.0.0.1:1"


class Master:
    """What a master answers to 21, 43, 45 and 201."""

    def __init__(self) -> None:
        self.topics = TopicConfigWrapper(DataVersion(7, 8), {"T": topic_config("T", 4, 6)})
        self.offsets: Mapping[str, Mapping[int, int]] = {"T@g": {0: 10, 1: 20}}
        self.delays: Mapping[int, int] = {3: 7}
        self.groups = SubscriptionGroupWrapper(DataVersion(3, 4), {"g": GroupConfig("g", retry_max_times=3)})
        self.topics_body: bytes | None = None
        self.asked = 0

    def handlers(self) -> dict[int, Any]:
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.all_delays,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
        }

    def all_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.asked += 1
        return request.answer(body=self.topics.encode() if self.topics_body is None else self.topics_body)

    def all_offsets(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=ConsumerOffsetWrapper(self.offsets).encode())

    def all_delays(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=DelayOffsetWrapper(self.delays).encode())

    def all_groups(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=self.groups.encode())


class Delays:
    """What a slave keeps of the delay levels."""

    def __init__(self) -> None:
        self.table: Mapping[int, int] = {}

    def replace(self, body: DelayOffsetWrapper) -> None:
        self.table = body.offset_table


class OurMaster(Master):
    """As a master of ours answers; `sent` has the size of each answer's body, by request code."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.table = TopicTable(BrokerConfig(broker_name="a"), PersistedFile(directory / "mt.json"))
        self.our_groups = Groups(True, PersistedFile(directory / "mg.json"))
        self.our_offsets = ConsumerOffsets(PersistedFile(directory / "mo.json"))
        self.sent: list[tuple[int, int]] = []
        self._copies = OffsetCopies(self.our_offsets)
        self._topics = TableCopies(self.table, self.offload)
        self._groups = TableCopies(self.our_groups, self.offload)

    def offload(self, function: Callable[..., Any], /, *args: Any) -> asyncio.Future[Any]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(function(*args))
        return done

    async def _noted(self, request: RemotingCommand, answer: Any) -> RemotingCommand:
        command: RemotingCommand = answer if isinstance(answer, RemotingCommand) else await answer
        self.sent.append((request.code, len(command.body)))
        return command

    def all_topics(self, connection: Connection, request: RemotingCommand) -> Any:
        return asyncio.ensure_future(self._noted(request, self._topics.answer(request)))

    def all_groups(self, connection: Connection, request: RemotingCommand) -> Any:
        return asyncio.ensure_future(self._noted(request, self._groups.answer(request)))

    def all_offsets(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = CopyOffsetsHeader.decode(request.ext)
        made = self._copies.quick(header) or self._copies.answer(header)
        self.sent.append((request.code, len(made.body)))
        return request.answer(ext=made.header.encode(), body=memoryview(made.body))


class Slave:
    def __init__(self, directory: Path) -> None:
        self.topics = TopicTable(BrokerConfig(broker_name="a"), PersistedFile(directory / "t.json"))
        self.offsets = ConsumerOffsets(PersistedFile(directory / "o.json"))
        self.groups = Groups(True, PersistedFile(directory / "g.json"))
        self.delays = Delays()
        self.synced = 0
        self.sync = SlaveSync(
            OWN,
            self.topics,
            self.offsets,
            self.groups,
            delays=self.delays,
            on_synced=self.count,
            overdue=lambda: self.delayed_are_due,
            keep=self.keep,
            retry_s=0.05,
        )
        self.kept: dict[str, bytes] = {}
        self.delayed_are_due = False
        self.client, self.supervisor = BlockingClient(), Supervisor()
        self.task = self.client.task("slave-sync", self.sync.run, self.supervisor.never)

    def count(self) -> None:
        self.synced += 1

    def keep(self, name: str, content: bytes) -> str:
        self.kept[name] = content
        return f"config/{name}.before"

    def sync_again(self) -> None:
        """One more pass, begun after this call."""
        before = self.synced
        self.sync.wake()
        wait_until(lambda: self.synced > before, "another pass")


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Slave]:
    made = Slave(tmp_path)
    made.task.start()
    yield made
    assert made.task.stop(Deadline(10))
    assert made.supervisor.fatal is None
    made.client.close()


@contextlib.contextmanager
def master_at() -> Iterator[tuple[Master, str]]:
    master = Master()
    with serving(master.handlers()) as server:
        yield master, f"127.0.0.1:{server.ports[0]}"


@contextlib.contextmanager
def serving_at(port: int, master: Master) -> Iterator[None]:
    server = RemotingServer([Listener("127.0.0.1", port, master.handlers())])
    server.start()
    try:
        yield
    finally:
        assert server.stop(10)


class Link:
    """The link by which the log comes."""

    def __init__(self, *, is_refused: bool = False) -> None:
        self.stands = False
        self.is_refused = is_refused
        self.why_apart = ""
        self.looks = 0

    @property
    def follows(self) -> bool:
        self.looks += 1
        return self.stands

    def wait_looked_at(self) -> None:
        before = self.looks
        wait_until(lambda: self.looks >= before + 4, "several tries")


def test_nothing_is_copied_of_a_master_whose_log_does_not_come(slave: Slave) -> None:
    """Its store may have been put back from an older copy, and its tables with it."""
    slave.sync.link = link = Link()
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        slave.delayed_are_due = True
        link.wait_looked_at()
        assert (master.asked, slave.synced, slave.delays.table) == (0, 0, {})
        assert slave.sync.refused == ""
        link.why_apart = "refused: AHEAD"
        link.wait_looked_at()
        assert "log does not come: refused: AHEAD" in slave.sync.refused
        link.stands = True
        slave.sync.greeted(addr)
        wait_until(lambda: slave.delays.table == {3: 7} and slave.synced, "one pass")
        wait_until(lambda: slave.sync.refused == "", "all is copied")
        link.stands = False
        asked, slave.delays.table = master.asked, {}
        slave.sync.wake()
        link.wait_looked_at()
        assert (master.asked, slave.delays.table) == (asked, {})


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_last_copy_of_a_slave_that_becomes_the_master_is_of_a_master_with_its_log(
    slave: Slave, is_refused: bool
) -> None:
    slave.sync.link = Link(is_refused=is_refused)
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        assert slave.sync.copy_now(10) is not is_refused
        assert master.asked == (0 if is_refused else 1)


def test_everything_is_copied_as_soon_as_there_is_a_master(slave: Slave) -> None:
    with master_at() as (_, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced, "one pass")
    assert [topic.topic_name for topic in slave.topics] == ["T"]
    assert slave.topics.data_version == DataVersion(7, 8)
    assert slave.offsets.table() == {"T@g": {0: 10, 1: 20}}
    assert slave.delays.table == {3: 7}
    assert slave.groups.table() == {"g": GroupConfig("g", retry_max_times=3)}
    assert slave.groups.data_version == DataVersion(3, 4)


def test_a_reset_on_the_master_and_a_deleted_group_reach_the_slave(slave: Slave) -> None:
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced, "one pass")
        master.offsets = {"T@g": {0: 4}}
        slave.sync_again()
        assert slave.offsets.table() == {"T@g": {0: 4}}
        master.offsets = {}
        slave.sync_again()
        assert slave.offsets.table() == {}


def test_what_a_stock_master_sends_again_is_not_read_again_and_what_changed_here_still_counts(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def watched(kind: Any) -> Any:
        decode = kind.decode

        def noted(body: Any) -> Any:
            read.append(kind.__name__)
            return decode(body)

        return noted

    for kind in (TopicConfigWrapper, SubscriptionGroupWrapper):
        monkeypatch.setattr(kind, "decode", watched(kind))
    merges: list[int] = []
    merge = slave.offsets.merge
    monkeypatch.setattr(slave.offsets, "merge", lambda *args, **more: merges.append(merge(*args, **more)))
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced, "one pass")
        slave.offsets.commit("g", "T", 0, 50)
        for _ in range(3):
            slave.sync_again()
        assert (len(merges), len(read)) == (1, 2)
        assert slave.offsets.table() == {"T@g": {0: 50, 1: 20}}
        master.offsets = {"T@g": {0: 12, 1: 20}}  # consumers are back at the master
        master.topics = TopicConfigWrapper(DataVersion(8, 8), {"U": topic_config("U", 4, 6)})
        slave.sync_again()
        assert (len(merges), len(read)) == (2, 3)
        assert slave.offsets.table() == {"T@g": {0: 12, 1: 20}}
        assert [topic.topic_name for topic in slave.topics] == ["U"]


def test_a_master_of_ours_sends_what_changed_and_nothing_while_nothing_does(
    slave: Slave, tmp_path: Path
) -> None:
    master = OurMaster(tmp_path)
    for number in range(500):
        master.our_offsets.commit("g", f"T{number}", 0, 100)
    with serving(master.handlers()) as server:
        slave.sync.set_master_addr(f"127.0.0.1:{server.ports[0]}")
        wait_until(lambda: slave.synced, "one pass")
        assert len(slave.offsets) == 500
        assert slave.topics.data_version == master.table.data_version
        slave.sync_again()
        assert sorted(master.sent[3:]) == [(21, 0), (43, 0), (201, 0)]
        master.our_offsets.commit("g", "T7", 0, 4)  # a reset
        master.our_offsets.commit("new", "T7", 0, 1)
        slave.offsets.commit("g", "T8", 0, 200)
        slave.offsets.commit("mine", "T8", 0, 3)
        slave.sync_again()
        sizes = dict(master.sent[6:])
        assert 0 < sizes[43] < 80
        assert slave.offsets.query("g", "T7", 0) == 4
        assert slave.offsets.query("new", "T7", 0) == 1
        assert slave.offsets.query("g", "T8", 0) == 200
        assert slave.offsets.query("mine", "T8", 0) == 3
        slave.offsets.commit("g", "T9", 0, 200)
        master.our_offsets.remove_group("g")
        master.table.update(topic_config("New", 1, 6))
        master.our_groups.find("newcomer")
        slave.sync_again()
        assert slave.offsets.table() == {"T9@g": {0: 200}, "T7@new": {0: 1}, "T8@mine": {0: 3}}
        assert slave.topics.get("New") is not None
        assert slave.groups.get("newcomer") is not None


def test_another_run_of_a_master_of_ours_sends_all_and_lowers_nothing(slave: Slave, tmp_path: Path) -> None:
    port = free_port_block(1)
    for run, offset in enumerate((10, 4)):
        master = OurMaster(tmp_path / str(run))
        master.our_offsets.commit("g", "T", 0, offset)
        with serving_at(port, master):
            slave.sync.set_master_addr(f"127.0.0.1:{port}")
            slave.sync_again()
            wait_until(
                lambda sent=master.sent: [size for code, size in sent if code == 43], "offsets asked for"
            )
            assert slave.offsets.table() == {"T@g": {0: 10}}
            slave.sync_again()
            assert [size for code, size in master.sent if code == 43][1:2] == [0]
            if run:
                master.our_offsets.commit("g", "T", 0, 5)
                slave.sync_again()
                assert slave.offsets.table() == {"T@g": {0: 5}}


def test_a_master_that_returns_with_older_offsets_lowers_none(slave: Slave) -> None:
    port = free_port_block(1)
    master = Master()
    with serving_at(port, master):
        slave.sync.set_master_addr(f"127.0.0.1:{port}")
        wait_until(lambda: slave.synced, "one pass")
    master.offsets = {"T@g": {0: 4}}
    with serving_at(port, master):
        slave.sync_again()
        assert slave.offsets.table() == {"T@g": {0: 10, 1: 20}}
        # From here on it is followed again.
        master.offsets = {"T@g": {0: 5}}
        slave.sync_again()
        assert slave.offsets.table() == {"T@g": {0: 5, 1: 20}}


def test_what_clients_committed_here_is_never_lowered(slave: Slave) -> None:
    slave.offsets.commit("g", "T", 0, 15)
    slave.offsets.commit("mine", "T", 0, 3)
    with master_at() as (_, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced, "one pass")
    assert slave.offsets.table() == {"T@g": {0: 15, 1: 20}, "T@mine": {0: 3}}


def test_one_bad_body_does_not_keep_the_other_from_being_copied(
    slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "haservice.broker.metadata.slave_sync")
    with master_at() as (master, addr):
        master.topics_body = b'{"dataVersion":'
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced, "one pass")
        assert slave.offsets.query("g", "T", 1) == 20
        assert slave.topics.get("BenchmarkTest") is not None
        assert "not copied" in caplog.text
        # It tries again soon, not after the whole period.
        master.topics_body = None
        wait_until(lambda: slave.topics.get("T") is not None, "topics copied")


def test_a_master_that_is_down_is_told_once_and_its_successor_used_at_once(
    slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "haservice.broker.metadata.slave_sync")
    slave.sync.set_master_addr(f"127.0.0.1:{free_port_block(1)}")
    wait_until(lambda: slave.synced >= 2, "two passes")
    assert len([record for record in caplog.records if "not copied" in record.getMessage()]) == 1
    with master_at() as (_, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.topics.get("T") is not None, "topics copied")


def test_a_refusal_by_access_control_names_what_lets_the_slave_in(
    slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: No accessKey"
        )

    caplog.set_level(logging.WARNING, "haservice.broker.metadata.slave_sync")
    with serving(dict.fromkeys(Master().handlers(), refuse)) as server:
        slave.sync.set_master_addr(f"127.0.0.1:{server.ports[0]}")
        wait_until(lambda: "not copied" in caplog.text, "a refusal")
    assert "set aclCredentialsFile here" in caplog.text
    assert "set aclCredentialsFile here" in slave.sync.refused
    with master_at() as (_, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.sync.refused == "", "all is copied")


def test_no_master_and_oneself_are_not_asked(slave: Slave) -> None:
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced, "one pass")
        slave.sync.set_master_addr(None)
        slave.sync.set_master_addr(OWN)
        slave.sync.wake()
        assert master.asked == 1


def test_a_topic_that_is_new_here_is_fetched_when_its_first_message_arrives(slave: Slave) -> None:
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.topics.get("T") is not None)
        master.topics = TopicConfigWrapper(
            DataVersion(7, 9), {**master.topics.topic_config_table, "New": topic_config("New", 4, 6)}
        )
        slave.sync.on_arrival([("T", 0, 5, 0), ("New", 0, 1, 0)])
        wait_until(lambda: slave.topics.get("New") is not None, "the new topic, long before the next period")


def test_a_topic_that_the_master_does_not_know_is_asked_for_once(slave: Slave) -> None:
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced == 1)
        slave.sync.on_arrival([("Gone", 0, 1, 0)])
        wait_until(lambda: slave.synced == 2)
        for offset in range(2, 50):
            slave.sync.on_arrival([("Gone", 0, offset, 0)])
        slave.sync.on_arrival([("Gone, too", 0, 1, 0)])
        wait_until(lambda: slave.synced == 3)
        assert master.asked == 3


@pytest.fixture
def _no_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_sync, "PERIOD_S", 3600.0)


@pytest.mark.usefixtures("_no_period")
def test_all_is_asked_for_when_a_master_greets(slave: Slave) -> None:
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced == 1)
        master.offsets, master.delays = {"T@g": {0: 11, 1: 20}}, {3: 8}
        slave.sync.greeted(addr)
        wait_until(lambda: slave.offsets.table() == {"T@g": {0: 11, 1: 20}}, "it asked again")
        wait_until(lambda: slave.delays.table == {3: 8})


@pytest.mark.usefixtures("_no_period")
def test_a_master_that_greets_is_asked_whatever_a_nameserver_said(slave: Slave) -> None:
    with master_at() as (_, addr):
        slave.sync.greeted(addr)
        wait_until(lambda: slave.synced == 1)
        assert slave.sync.master_addr == addr


@pytest.mark.usefixtures("_no_period")
@pytest.mark.parametrize("when", ["amid a pass", "between two"])
def test_after_a_greeting_a_connection_that_a_cut_has_left_silent_is_given_up(
    slave: Slave, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """TCP waits for as long as the cut has lasted before it sends again, and calls wait with it."""
    monkeypatch.setattr(slave_sync, "OFFSETS_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(slave_sync, "TIMEOUT_S", 3600.0)
    master, silent, met = Master(), set[Connection](), threading.Event()

    def cut_off(answer: Any) -> Any:
        def answers(connection: Connection, request: RemotingCommand) -> Any:
            if connection in silent:
                met.set()
                return asyncio.get_running_loop().create_future()
            latest.append(connection)
            return answer(connection, request)

        return answers

    latest: list[Connection] = []
    with serving({code: cut_off(answer) for code, answer in master.handlers().items()}) as server:
        slave.sync.set_master_addr(addr := f"127.0.0.1:{server.ports[0]}")
        wait_until(lambda: slave.synced == 1)
        silent.add(latest[-1])
        master.offsets = {"T@g": {0: 11, 1: 20}}
        if when == "amid a pass":
            slave.sync.wake()
            assert met.wait(PATIENCE_S)
        slave.sync.greeted(addr)
        wait_until(lambda: slave.offsets.table() == master.offsets, "it asked by another connection")


@pytest.mark.usefixtures("_no_period")
def test_delay_offsets_are_followed_while_delayed_messages_are_delivered(slave: Slave) -> None:
    with master_at() as (master, addr):
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced == 1)
        slave.delayed_are_due = True
        for offset in range(8, 12):
            master.delays = {3: offset}
            wait_until(lambda offset=offset: slave.delays.table == {3: offset}, "soon")  # type: ignore[misc]
        assert (slave.synced, master.asked) == (1, 1), "and nothing else is asked for"


@pytest.mark.usefixtures("_no_period")
@pytest.mark.parametrize("what", [RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_DELAY_OFFSET])
def test_between_two_passes_a_dead_master_is_left_at_once_for_its_successor(
    slave: Slave, monkeypatch: pytest.MonkeyPatch, what: RequestCode
) -> None:
    monkeypatch.setattr(slave_sync, "TIMEOUT_S", 3600.0)
    old, new = Master(), Master()
    table = {"Old": topic_config("Old", 4, 6)}
    old.topics = TopicConfigWrapper(DataVersion(1, 2), table, floors={})  # as a master of ours says it
    held: list[tuple[RemotingCommand, asyncio.Future[RemotingCommand]]] = []

    def hold(_: Connection, request: RemotingCommand) -> Any:
        if slave.synced == 0:
            return old.handlers()[what](_, request)
        future = asyncio.get_running_loop().create_future()
        held.append((request, future))
        return future

    with serving({**old.handlers(), what: hold}) as server, serving(new.handlers()) as other:
        slave.sync.set_master_addr(f"127.0.0.1:{server.ports[0]}")
        wait_until(lambda: slave.synced == 1)
        slave.delayed_are_due = what == RequestCode.GET_ALL_DELAY_OFFSET
        wait_until(lambda: held, "it asks between two passes")
        slave.delayed_are_due = False
        slave.sync.set_master_addr(f"127.0.0.1:{other.ports[0]}")
        wait_until(lambda: slave.synced == 2, "all of the new master is copied")
        (request, future), *_ = held
        server.call_soon(lambda: future.set_result(request.answer(body=DelayOffsetWrapper({3: 1}).encode())))
        slave.sync_again()
        assert slave.delays.table == new.delays
        assert [topic.topic_name for topic in slave.topics] == ["T"]


def test_a_table_that_loses_most_of_its_entries_is_kept(
    slave: Slave, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that began without its files lacks all; one whose topics were deleted one by one does not."""
    with master_at() as (master, addr):
        names = [f"T{number}" for number in range(8)]

        def have(count: int, version: int) -> None:
            topics = {name: topic_config(name, 4, 6) for name in names[:count]}
            master.topics = TopicConfigWrapper(DataVersion(version, 1), topics)
            groups = {name: GroupConfig(name, retry_max_times=7) for name in names[:count]}
            master.groups = SubscriptionGroupWrapper(DataVersion(version, 1), groups)

        have(8, 1)
        slave.sync.set_master_addr(addr)
        wait_until(lambda: slave.synced)
        have(4, 2)
        slave.sync_again()
        assert slave.kept == {}, "four of eight are no more than half"
        have(1, 3)
        slave.sync_again()
        wait_until(lambda: [topic.topic_name for topic in slave.topics] == ["T0"])
    (tmp_path / "again.json").write_bytes(slave.kept["topics.json"])
    again = TopicTable(BrokerConfig(broker_name="a"), PersistedFile(tmp_path / "again.json"))
    again.load()
    assert {topic.topic_name for topic in again} >= set(names[:4]), "a broker starts with it"
    groups = SubscriptionGroupWrapper.decode(slave.kept["subscriptionGroup.json"])
    assert set(names[:4]) <= set(groups.subscription_group_table)
    texts = [text for text in caplog.messages if "lacks most" in text]
    assert [text.partition("name=")[2] for text in texts] == [
        "topics.json ours=4 lost=3 kept=config/topics.json.before",
        "subscriptionGroup.json ours=4 lost=3 kept=config/subscriptionGroup.json.before",
    ]


async def _some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_stop_ends_a_pass_that_an_arrival_has_woken_before(tmp_path: Path) -> None:
    """A broker that did not stop in time recovers its log at the next start."""
    slave, asked = Slave(tmp_path), threading.Event()

    def never(_: Connection, __: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        asked.set()
        return asyncio.get_running_loop().create_future()

    with serving(dict.fromkeys(Master().handlers(), never)) as server, slave.client:
        slave.sync.set_master_addr(f"127.0.0.1:{server.ports[0]}")
        slave.task.start()
        assert asked.wait(10)
        slave.sync.wake()
        slave.client.thread.submit(_some_turns()).result(10)
        assert slave.task.stop(Deadline(5))


def test_a_large_table_of_offsets_keeps_nobody_from_the_loop(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    merging, release = threading.Event(), threading.Event()

    def merge(*_: object, **__: object) -> None:
        merging.set()
        assert release.wait(10)

    monkeypatch.setattr(slave.offsets, "merge", merge)
    with master_at() as (_, addr):
        slave.sync.set_master_addr(addr)
        assert merging.wait(10)
        answer = slave.client.call(addr, RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
        assert answer.code == ResponseCode.SUCCESS
        release.set()
        wait_until(lambda: slave.synced, "one pass")
