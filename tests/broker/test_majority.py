"""A broker on a DLedger group: which role it has, what its sends wait for, a group of one in this process."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import LogNotWritable, StoreUnreadable
from commitlog.kernel.records import NewMessage, decode, parse_message_id
from haservice.broker.majority import startup
from haservice.broker.majority.ha import MajorityHA
from haservice.broker.majority.keeper import why_turn
from haservice.broker.majority.member import BrokerMember
from haservice.broker.majority.proof import TOLD_MAX, MajorityProof
from haservice.broker.metrics.collect import BrokerCollector
from haservice.broker.metrics.families import exposition_of
from haservice.broker.node import BrokerNode
from haservice.broker.send.durability import Durability, PutStatus
from haservice.configuration.dledger_settings import DLedgerConfig
from haservice.configuration.settings import BrokerRole, NodeConfig
from haservice.deadline import Deadline
from haservice.devtools.pair import free_port_block
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import MemberRole
from haservice.dledger.member import PeerProgress
from haservice.dledger.node.shell import NodeStatus
from haservice.errors import RequestError
from haservice.observability.exposition import ProcessFacts
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import ExtHeader, TopicHeader
from haservice.remoting.headers.lineage import PromoteHeader, SwitchoverHeader
from haservice.remoting.headers.retry import SendBackHeader
from haservice.remoting.headers.transactions import EndTransactionHeader
from haservice.replication.lineage.epochs import Epoch
from haservice.replication.lineage.file import LineageFile
from tests.support.brokers import addr_of, node_config, send
from tests.support.proofs import Told
from tests.support.waiting import wait_until

# -- which role -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("office", "leads", "is_leader", "epoch", "turns"),
    [
        (None, None, False, 3, False),  # a slave that follows
        (None, None, True, 3, False),  # elected, and nothing of its own is committed yet
        (None, 3, True, 3, True),  # elected and ready
        (3, 3, True, 3, False),  # the master
        (3, None, False, 3, True),  # it has stepped down
        (3, None, False, 4, True),  # another one leads
        (3, 4, True, 4, True),  # it leads again: the numbers of its queues may be others
    ],
)
def test_a_broker_turns_when_its_office_is_another(
    office: int | None, leads: int | None, is_leader: bool, epoch: int, turns: bool
) -> None:
    assert bool(why_turn(office, leads, is_leader, epoch)) is turns


def test_a_slave_looks_for_its_master_after_each_election_and_then_rests() -> None:
    """Two elections in a row: the nameservers' first answer names a leader that is none any more."""
    status = NodeStatus(MemberRole.FOLLOWER, 1, "n1", -1)
    member = types.SimpleNamespace(status=status)
    ha = MajorityHA(member, BrokerRole.SLAVE, None, None)  # type: ignore[arg-type]
    ha.follows_another("addr of n1")
    member.status = status._replace(term=3, leader_id="n2")
    assert ha.follows_another("addr of n0")
    assert ha.follows_another("addr of n0"), "n0 led term 2"
    ha._settles = Deadline(0.0)
    assert not ha.follows_another("addr of n2")
    member.status = status._replace(term=4, leader_id="n0")
    ha.follows_another("addr of n2")
    ha._settles = Deadline(0.0)
    assert ha.follows_another("addr of n2"), "n0 has not registered yet"


# -- what sends wait for ------------------------------------------------------------------------------


class Loop:
    """A server's loop that runs what it is told when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.later: list[tuple[float, Callable[..., Any]]] = []
        self.loop = self

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        self.calls.append((call, args))

    def is_here(self) -> bool:
        return False

    def call_later(self, seconds: float, call: Callable[..., Any]) -> None:
        self.later.append((seconds, call))

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call, args in calls:
            call(*args)

    def let_time_pass(self) -> None:
        later, self.later = self.later, []
        for _, call in later:
            call()


class Proving:
    """Durability over a MajorityProof."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self.loop = Loop()
        self.proof = MajorityProof(self.loop)  # type: ignore[arg-type]
        self.durability = Durability(
            flush=None,
            replica=self.proof,
            flush_timeout_s=60.0,
            replica_timeout_s=timeout_s,
            call_soon=self.loop.call_soon,
            on_loop=lambda: True,
            lacking=PutStatus.NOT_AGREED,
        )
        self.proof.on_done = self.durability.replicated

    def wait(self, end: int) -> list[PutStatus]:
        """What the sends that end there are told."""
        told: list[PutStatus] = []
        assert self.durability.put_status(end, Told(told.append)) is None
        return told


def test_an_ok_goes_out_once_the_group_has_committed_up_to_the_message() -> None:
    proving = Proving()
    first, second = proving.wait(100), proving.wait(200)
    proving.proof.committed(150)
    assert first == []
    proving.loop.run()
    assert (first, second) == ([PutStatus.PUT_OK], [])
    proving.proof.committed(200)
    proving.loop.run()
    assert second == [PutStatus.PUT_OK]
    assert proving.durability.put_status(180, Told(print)) is PutStatus.PUT_OK


def test_a_lost_office_ends_all_waits_before_another_leader_s_entries_count() -> None:
    proving = Proving()
    told = proving.wait(100)
    proving.proof.lost()
    proving.proof.committed(300)
    proving.loop.run()
    assert told == [PutStatus.NOT_AGREED]
    assert PutStatus.NOT_AGREED == ResponseCode.SYSTEM_ERROR
    assert "majority" in (PutStatus.NOT_AGREED.remark or "")


def test_what_was_committed_before_the_office_was_lost_is_ok() -> None:
    proving = Proving()
    told = proving.wait(100)
    proving.proof.committed(100)
    proving.proof.lost()
    proving.loop.run()
    assert told == [PutStatus.PUT_OK]


def test_the_loop_is_woken_only_where_somebody_waits_or_much_was_told() -> None:
    proving = Proving()
    proving.proof.committed(50)
    assert proving.loop.calls == []
    told = proving.wait(40)
    proving.loop.run()
    assert told == [PutStatus.PUT_OK], "what was told before is heard with the first that waits"
    for end in range(TOLD_MAX - 1):
        proving.proof.committed(100 + end)
    assert proving.loop.calls == []
    proving.proof.committed(1000)
    proving.loop.run()
    assert proving.durability.put_status(1000, Told(print)) is PutStatus.PUT_OK


def test_what_is_committed_behind_a_lost_office_proves_nothing_to_who_waits_later() -> None:
    proving = Proving()
    proving.proof.lost()
    proving.proof.committed(300)
    told = proving.wait(200)
    proving.loop.run()
    assert told == [PutStatus.NOT_AGREED]


def test_a_majority_that_does_not_come_in_time_is_no_ok() -> None:
    proving = Proving(timeout_s=0.0)
    told = proving.wait(100)
    proving.loop.let_time_pass()
    assert told == [PutStatus.NOT_AGREED]
    assert len(proving.proof) == 0


# -- a group of one -----------------------------------------------------------------------------------


def config_of(root: Path, port: int) -> NodeConfig:
    """A member of a group of one."""
    made = node_config(root, role=BrokerRole.SLAVE, port=port, log={"replica": False})
    return dataclasses.replace(
        made, dledger=DLedgerConfig(enabled=True, peers=f"n0-127.0.0.1:{port + 2}", self_id="n0")
    )


@pytest.fixture
def member(tmp_path: Path) -> Iterator[BrokerMember]:
    made = BrokerMember(config_of(tmp_path, free_port_block(6) + 2))
    made.start()
    yield made

    made.close(Deadline(10.0))


@pytest.fixture
def node(member: BrokerMember, tmp_path: Path) -> Iterator[BrokerNode]:
    port = int(member.settings.peers["n0"].rpartition(":")[2]) - 2
    made = BrokerNode(config_of(tmp_path, port), member=member)
    made.start()
    yield made
    made.stop()


def test_a_group_of_one_serves_as_the_master(node: BrokerNode) -> None:
    assert node.config.broker.role is BrokerRole.SYNC_MASTER
    with BlockingClient() as client:
        answers = [send(client, addr_of(node), "T", b"message %d" % number) for number in range(20)]
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    queue = node.store.queues
    facts = BrokerCollector(node.parts, node.health, dict, ProcessFacts()).facts()
    assert facts.member is not None
    assert facts.member[:3] == ("broker-a", "n0", True)
    assert "haservice_dledger_leads{" in exposition_of(facts).text().decode()
    wait_until(lambda: sum(one.max_offset for _, one in queue.items()) == 20, "all is dispatched")


def test_a_deleted_topic_stays_deleted_in_a_group(member: BrokerMember, tmp_path: Path) -> None:
    port = int(member.settings.peers["n0"].rpartition(":")[2]) - 2
    config = config_of(tmp_path, port)

    def started() -> BrokerNode:
        made = BrokerNode(config, member=member)
        made.start()
        return made

    def ends(node: BrokerNode) -> dict[str, int]:
        wait_until(lambda: node.store.dispatcher.behind == 0, "all is dispatched")
        items = node.store.queues.items()
        return {topic: queue.max_offset - queue.min_offset for (topic, _), queue in items if queue.max_offset}

    node = started()
    header = TopicHeader("T").encode()
    with BlockingClient() as client:
        for number in range(3):
            send(client, addr_of(node), "T", b"old%d" % number)
        assert ends(node) == {"T": 3}
        delete = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        assert client.call(addr_of(node), delete, 30.0).code == ResponseCode.SUCCESS
        for _ in range(2):
            assert (node.topics.get("T"), ends(node)) == (None, {})
            node.stop()
            node = started()
        assert send(client, addr_of(node), "T", b"new").code == ResponseCode.SUCCESS
    assert ends(node) == {"T": 1}
    node.stop()


def test_a_topic_stays_if_no_majority_confirms_what_was_stored_before_its_deletion(
    node: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def proof(end: int) -> PutStatus:
        return PutStatus.NOT_AGREED

    request = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T").encode())
    with BlockingClient() as client:
        send(client, addr_of(node), "T", b"kept")
        with monkeypatch.context() as patched:
            patched.setattr(node.parts.durability, "proof", proof)
            answer = client.call(addr_of(node), request, 30.0)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no majority" in (answer.remark or "")
        assert node.topics.get("T") is not None
        assert node.store.queues.floors.of("T") == 0
        assert client.call(addr_of(node), request, 30.0).code == ResponseCode.SUCCESS
    assert node.store.queues.floors.of("T") == node.store.log.end


def test_a_group_that_was_a_pair_begins_above_the_pair_s_epochs(tmp_path: Path) -> None:
    """Nameservers go on believing the newest epoch."""
    LineageFile(tmp_path).begin(Epoch(3005, 0, "replica"))
    made = BrokerMember(config_of(tmp_path, free_port_block(6) + 2))
    made.start()
    try:
        wait_until(lambda: made.is_leader, "it leads")
        assert (made.status.term, made.epoch) == (4, 4000)
    finally:
        made.close(Deadline(10.0))


def test_a_store_of_another_member_is_refused_with_both_ids(tmp_path: Path) -> None:
    config = config_of(tmp_path, free_port_block(6) + 2)
    BrokerMember(config).close(Deadline(10.0))
    peers = f"{config.dledger.peers};n1-127.0.0.1:1"
    renamed = dataclasses.replace(
        config, dledger=dataclasses.replace(config.dledger, peers=peers, self_id="n1")
    )
    with pytest.raises(StoreUnreadable) as refused:
        BrokerMember(renamed)
    said = str(refused.value)
    assert said.startswith(f"{tmp_path / 'dledger-n0'}: is the log of member n0, and this broker is n1 by")
    assert "set dLegerSelfId=n0" in said
    assert "move dledger-n0 out of the store" in said
    assert not (tmp_path / "dledger-n1").exists()
    # Nobody's log by its name: a copy that somebody keeps.
    (tmp_path / "dledger-n0").rename(tmp_path / "dledger-n0.old")
    BrokerMember(renamed).close(Deadline(10.0))
    assert (tmp_path / "dledger-n1").is_dir()


def test_commands_are_refused_by_who_does_not_lead_or_has_nobody_to_hand_over_to(node: BrokerNode) -> None:
    for header, why in (
        (SwitchoverHeader(), "no other member of broker-a answers that could lead"),
        (SwitchoverHeader("n7"), "n7 is none of the others"),
        (PromoteHeader(), "elects its master"),
    ):
        with pytest.raises(RequestError, match=why):
            node.standing.ask(header)


def test_the_next_member_is_asked_to_lead_if_the_nearest_cannot(
    node: BrokerNode, member: BrokerMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {"n1": DLedgerResponseCode.NETWORK_ERROR, "n2": DLedgerResponseCode.SUCCESS}
    asked = []

    def hand_over(to: str) -> Future[DLedgerResponseCode]:
        asked.append(to)
        answer: Future[DLedgerResponseCode] = Future()
        answer.set_result(results[to])
        return answer

    peers = [
        PeerProgress("n2", "", 0, 7, True),
        PeerProgress("n1", "", 0, 0, True),
        PeerProgress("n3", "", 0, 0, False),
    ]
    monkeypatch.setattr(member.node, "peers", lambda: peers)
    monkeypatch.setattr(member.node, "hand_over", hand_over)
    member.hand_over(Deadline(10.0))
    assert asked == ["n1", "n2"]
    results["n1"] = DLedgerResponseCode.SUCCESS
    member.hand_over(Deadline(10.0))
    assert asked == ["n1", "n2", "n1"]


def test_a_leader_that_should_not_lead_refuses_sends_and_turns(
    node: BrokerNode, member: BrokerMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "SETTLE_S", 0.1)
    with BlockingClient() as client:
        assert send(client, addr_of(node), "T", b"one").code == ResponseCode.SUCCESS
        node.store.log.hold_appends("the disk is nearly full", "disk")
        assert send(client, addr_of(node), "T", b"two").code == ResponseCode.SERVICE_NOT_AVAILABLE
    wait_until(lambda: node.restart is not None, "it turns")
    assert member.office is None
    node.stop()
    following = node.successor()
    assert following is not None
    following.start()
    assert following.config.broker.role is BrokerRole.SLAVE
    with pytest.raises(LogNotWritable, match="does not lead"):
        following.store.log.append(NewMessage("T", 0, b"three"))
    following.stop()


def test_a_leader_whose_queues_find_no_room_leaves_office_while_the_log_has_some(
    node: BrokerNode, member: BrokerMember, tmp_path: Path
) -> None:
    """A file stands for a full disk: the log is written to a file that was made before."""
    blocked = tmp_path / "consumequeue" / "T"
    blocked.write_bytes(b"")
    with BlockingClient() as client:
        send(client, addr_of(node), "T", b"one")
    wait_until(lambda: node.restart is not None, "it turns")
    assert member.office is None
    assert not member.is_leader
    blocked.unlink()


def test_delayed_sent_back_and_transactional_messages_go_through_the_group(node: BrokerNode) -> None:
    addr = addr_of(node)

    def bodies(topic: str) -> list[bytes]:
        """Of all queues of the topic."""
        return [
            decode(node.store.log.read_record(entry.physical_offset)).body
            for (name, _), queue in node.store.queues.items()
            for entry in queue.read(queue.min_offset, queue.max_offset)
            if name == topic
        ]

    with BlockingClient() as client:

        def ask(code: RequestCode, header: ExtHeader) -> RemotingCommand:
            return client.call(addr, RemotingCommand.request(code, header.encode()), 10.0)

        late = send(client, addr, "T", b"late", properties="DELAY\x011\x02")
        half = send(
            client, addr, "T", b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01u\x02"
        )
        first = send(client, addr, "T", b"first")
        assert {late.code, half.code, first.code} == {ResponseCode.SUCCESS}
        _, _, offset = parse_message_id(half.ext["msgId"])
        end = EndTransactionHeader("g", int(half.ext["queueOffset"]), offset, 8, msg_id="u")
        assert ask(RequestCode.END_TRANSACTION, end).code == ResponseCode.SUCCESS
        wait_until(lambda: set(bodies("T")) == {b"first", b"half", b"late"}, "all of it is in the topic")
        _, _, offset = parse_message_id(first.ext["msgId"])
        back = SendBackHeader(offset, "readers", 1, first.ext["msgId"], "T", max_reconsume_times=16)
        assert ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.SUCCESS
        wait_until(lambda: bodies("%RETRY%readers") == [b"first"], "what was sent back comes again")
