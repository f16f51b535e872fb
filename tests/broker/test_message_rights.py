"""Permissions follow the message: by its id, sent back, or as the end of its transaction; from outside."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from commitlog.kernel.records import decode, encode_properties
from haservice.broker.acl import message_rights
from haservice.broker.node import BrokerNode
from haservice.configuration.security_settings import AclConfig
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.retry import SendBackHeader
from haservice.remoting.headers.transactions import EndTransactionHeader
from haservice.remoting.signature import sign
from tests.support.brokers import addr_of, node_config, send_request
from tests.support.half_messages import COMMIT, ROLLBACK, Sent, ended_of, messages_of
from tests.support.waiting import wait_until

SECRET = "secret-key"
RULES = f"""\
accounts:
  - {{accessKey: admins-key, secretKey: {SECRET}, admin: true}}
  - {{accessKey: owners-key, secretKey: {SECRET}, topicPerms: [T=PUB|SUB], groupPerms: [readers=SUB]}}
  - {{accessKey: others-key, secretKey: {SECRET}, topicPerms: [U=PUB|SUB], groupPerms: [readers=SUB, g2=SUB]}}
  - {{accessKey: second-key, secretKey: {SECRET}, topicPerms: [T=PUB]}}
"""
OWNER, OTHER, SECOND, ADMIN = "owners-key", "others-key", "second-key", "admins-key"


class Account:
    """A client with one account, on a connection of its own."""

    def __init__(self, node: BrokerNode, access_key: str) -> None:
        self.node, self.access_key = node, access_key
        self.client = BlockingClient()

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        request = RemotingCommand.request(code, dict(ext or {}), body)
        sign(request, self.access_key, SECRET)
        return self.client.call(addr_of(self.node), request)

    def send(self, topic: str = "T", body: bytes = b"body", **properties: str) -> Sent:
        request = send_request(
            topic, body, encode_properties(properties).decode(), producer_group=properties.get("PGROUP", "g"),
            born_timestamp_ms=time.time_ns() // 1_000_000,
            sys_flag=4 if "TRAN_MSG" in properties else 0,
        )  # fmt: skip
        answer = self.ask(int(request.code), request.ext, bytes(request.body))
        assert answer.code == 0, answer
        return Sent(int(answer.ext["queueOffset"]), int(answer.ext["msgId"][16:], 16))

    def half(self, group: str = "P") -> Sent:
        return self.send(TRAN_MSG="true", PGROUP=group)

    def view(self, place: Sent) -> RemotingCommand:
        return self.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place.physical_offset)})

    def send_back(self, place: Sent, group: str = "readers") -> RemotingCommand:
        header = SendBackHeader(offset=place.physical_offset, group=group, delay_level=0)
        return self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())

    def end(self, half: Sent, decision: int = COMMIT, group: str = "P") -> RemotingCommand:
        header = EndTransactionHeader(group, half.queue_offset, half.physical_offset, decision)
        return self.ask(RequestCode.END_TRANSACTION, header.encode())

    def heartbeat(self, group: str = "P") -> None:
        said = {"clientID": self.access_key, "producerDataSet": [{"groupName": group}]}
        assert self.ask(RequestCode.HEART_BEAT, body=orjson.dumps(said)).code == 0


Open = Callable[[str], Account]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerNode]]:
    nodes: list[BrokerNode] = []

    def make(**acl: bool) -> BrokerNode:
        rules = tmp_path / "plain_acl.yml"
        rules.write_text(RULES)
        config = node_config(tmp_path / "store", log={"message_delay_levels": "2h"})
        nodes.append(BrokerNode(dataclasses.replace(config, acl=AclConfig(enabled=True, file=rules, **acl))))
        nodes[-1].start()
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


@pytest.fixture
def node(start: Callable[..., BrokerNode]) -> BrokerNode:
    return start()


@pytest.fixture
def connect() -> Iterator[Callable[[BrokerNode, str], Account]]:
    made: list[Account] = []

    def make(node: BrokerNode, access_key: str) -> Account:
        made.append(Account(node, access_key))
        return made[-1]

    yield make
    for one in made:
        one.client.close()


@pytest.fixture
def account(node: BrokerNode, connect: Callable[[BrokerNode, str], Account]) -> Open:
    return lambda access_key: connect(node, access_key)


def test_a_message_is_shown_by_its_id_to_who_may_read_its_topic(account: Open) -> None:
    place = account(OWNER).send()
    for reader in (OWNER, ADMIN):
        assert decode(bytes(account(reader).view(place).body)).body == b"body"
    for stranger in (OTHER, SECOND):  # SECOND may send to T, and not read it
        answer = account(stranger).view(place)
        assert (answer.code, "No default permission for topic:T" in str(answer.remark)) == (1, True)
        assert len(answer.body) == 0


@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TRAN_MSG": "true", "PGROUP": "P"}])
def test_a_message_that_waits_elsewhere_belongs_to_its_topic(
    account: Open, properties: dict[str, str]
) -> None:
    place = account(OWNER).send(**properties)
    assert account(OWNER).view(place).code == 0
    assert "topic:T" in str(account(OTHER).view(place).remark)


def test_only_messages_of_topics_that_may_be_read_are_given_back(account: Open, node: BrokerNode) -> None:
    owner, other = account(OWNER), account(OTHER)
    place, others_place = owner.send("T"), other.send("U")
    answer = other.send_back(place)
    assert (answer.code, "No default permission for topic:T" in str(answer.remark)) == (1, True)
    assert "topic:U" in str(owner.send_back(others_place).remark)
    assert messages_of(node, "SCHEDULE_TOPIC_XXXX") == []
    assert owner.send_back(place).code == other.send_back(others_place).code == 0
    waiting = messages_of(node, "SCHEDULE_TOPIC_XXXX")
    assert len(waiting) == 2
    # It waits as one of the group's, and belongs to the group from then on.
    again = Sent(0, waiting[0].physical_offset)
    assert account(OTHER).view(again).code == 0
    assert "group:readers" in str(account(SECOND).view(again).remark)


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_only_who_may_send_to_its_topic_ends_a_transaction(
    account: Open, node: BrokerNode, decision: int
) -> None:
    half = account(OWNER).half()
    stranger = account(OTHER)
    stranger.heartbeat("P")
    answer = stranger.end(half, decision)
    assert (answer.code, "No default permission for topic:T" in str(answer.remark)) == (1, True)
    assert (messages_of(node, "T"), ended_of(node)) == ([], [])
    assert account(OWNER).end(half, decision).code == 0


def test_a_transaction_is_ended_by_its_own_producer_group(account: Open, node: BrokerNode) -> None:
    half = account(OWNER).half()
    second = account(SECOND)
    answer = second.end(half, ROLLBACK)
    assert (answer.code, "No producer of group:P is known" in str(answer.remark)) == (1, True)
    assert ended_of(node) == []
    # Another member of the group, with another account, answers the broker's question.
    second.heartbeat("P")
    assert second.end(half, ROLLBACK).code == 0


def test_who_sent_a_half_message_ends_it_from_any_connection_before_its_first_heartbeat(
    account: Open,
) -> None:
    half = account(OWNER).half()
    assert account(OWNER).end(half).code == 0


def test_after_a_restart_a_heartbeat_is_what_tells_the_group(
    start: Callable[..., BrokerNode], connect: Callable[[BrokerNode, str], Account]
) -> None:
    first = start()
    half = connect(first, OWNER).half()
    first.stop()
    owner = connect(start(), OWNER)
    assert "No producer of group:P" in str(owner.end(half).remark)
    owner.heartbeat("P")
    assert owner.end(half).code == 0


def test_senders_are_remembered_up_to_a_bound(account: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_rights, "SENDERS_MAX", 2)
    owner = account(OWNER)
    halves = [owner.half() for _ in range(3)]
    assert [account(OWNER).end(half).code for half in halves] == [1, 0, 0]


def test_with_the_key_off_the_rules_are_rocketmqs(
    start: Callable[..., BrokerNode], connect: Callable[[BrokerNode, str], Account]
) -> None:
    node = start(follows_message=False)
    owner, other = connect(node, OWNER), connect(node, OTHER)
    place, half = owner.send(), owner.half()
    assert other.view(place).code == 0
    assert other.send_back(place).code == 0
    assert other.end(half).code == 0


def test_a_query_by_key_gives_no_message_of_another_topic(account: Open, node: BrokerNode) -> None:
    """The index keeps hashes: those of TAa#k and TBB#k are one."""
    admin = account(ADMIN)
    admin.send("TAa", b"mine", KEYS="k")
    admin.send("TBB", b"another's", KEYS="k")
    ext = {"topic": "TAa", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    wait_until(lambda: node.store.dispatcher.behind == 0, "the index has them")
    answer = admin.ask(RequestCode.QUERY_MESSAGE, ext)
    assert answer.code == 0
    assert decode(bytes(answer.body)).body == b"mine"
    assert b"another's" not in bytes(answer.body)
