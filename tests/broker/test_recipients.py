"""What a broker sends by itself goes to accounts that may have it, by the rules at that time."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from commitlog.kernel.records import StoredMessage, encode_properties, offset_message_id
from haservice.access.rules import Requester
from haservice.broker.acl.recipients import Recipients
from haservice.broker.node import BrokerNode
from haservice.configuration.security_settings import AclConfig
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader
from haservice.remoting.signature import sign
from tests.support.brokers import node_config, send_request
from tests.support.half_messages import UNKNOWN, Sent, TransactionPeer, let_halves_age, place_of
from tests.support.waiting import wait_until

OWNER, STRANGER, SECOND = "owners-key", "strangers-key", "second-key"
READER, ADMIN, SECRET = "readers-key", "admins-key", "secret-key"
RULES = f"""\
accounts:
  - {{accessKey: {ADMIN}, secretKey: {SECRET}, admin: true}}
  - {{accessKey: {OWNER}, secretKey: {SECRET}, topicPerms: [T=PUB]}}
  - {{accessKey: {STRANGER}, secretKey: {SECRET}, topicPerms: [U=SUB]}}
  - {{accessKey: {SECOND}, secretKey: {SECRET}, topicPerms: [T=PUB]}}
  - {{accessKey: {READER}, secretKey: {SECRET}, topicPerms: [R=SUB], groupPerms: [readers=SUB]}}
"""


class Producer(TransactionPeer):
    """A producer with an account."""

    def __init__(self, node: BrokerNode, access_key: str, client_id: str = "") -> None:
        self.access_key = access_key
        super().__init__(node, client_id=client_id or access_key)

    def ask_command(self, command: RemotingCommand) -> RemotingCommand:
        sign(command, self.access_key, SECRET)
        return super().ask_command(command)

    def heard(self) -> list[int]:
        """The codes of all requests that the broker has sent until now."""
        self.request(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": "0"})
        return [int(command.code) for command in self.asked]


Join = Callable[..., Producer]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerNode]:
    (tmp_path / "plain_acl.yml").write_text(RULES)
    acl = AclConfig(enabled=True, file=tmp_path / "plain_acl.yml")
    made = BrokerNode(dataclasses.replace(node_config(tmp_path / "store"), acl=acl))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def join(node: BrokerNode) -> Iterator[Join]:
    made: list[Producer] = []

    def make(*args: str) -> Producer:
        made.append(Producer(node, *args))
        return made[-1]

    yield make
    for one in made:
        one.close()


def check(node: BrokerNode, times: int = 1) -> None:
    let_halves_age(node)
    for _ in range(times):
        assert node.transaction_check.round(threading.Event()) is False


def delete(node: BrokerNode, admin: Producer, access_key: str) -> None:
    assert admin.request(RequestCode.DELETE_ACL_CONFIG, {"accessKey": access_key}).code == 0


def test_a_half_message_is_shown_only_to_who_may_send_to_its_topic(node: BrokerNode, join: Join) -> None:
    strangers = [join(STRANGER) for _ in range(3)]
    owner = join(OWNER)
    owner.send_half()
    check(node, 4)
    assert [stranger.heard() for stranger in strangers] == [[], [], []]
    assert owner.heard() == [RequestCode.CHECK_TRANSACTION_STATE] * 4


def test_a_deleted_account_is_shown_no_more_half_messages(
    node: BrokerNode, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    owner, admin = join(OWNER), join(ADMIN)
    owner.send_half()
    admin.request(RequestCode.UNREGISTER_CLIENT, {"clientID": ADMIN, "producerGroup": "P"})
    delete(node, admin, OWNER)
    check(node)
    owner.asked.clear()
    assert owner.heard() == []
    assert "topic=T reason=1 online may not send to it" in caplog.text


def test_an_account_with_another_secret_signs_in_again_first(node: BrokerNode, join: Join) -> None:
    owner, admin = join(OWNER), join(ADMIN)
    owner.send_half()
    admin.request(RequestCode.UNREGISTER_CLIENT, {"clientID": ADMIN, "producerGroup": "P"})
    fields = {"accessKey": OWNER, "secretKey": "another-secret", "admin": "false", "topicPerms": "T=PUB"}
    assert admin.request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields).code == 0
    check(node)
    assert owner.heard() == []


def test_a_member_that_never_answers_does_not_eat_the_questions(node: BrokerNode, join: Join) -> None:
    silent = [join(SECOND, f"silent-{number}") for number in range(3)]
    owner = join(OWNER)
    owner.send_half()
    for _ in range(12):
        check(node)
        owner.heard()
        while owner.asked:
            header, _ = owner.question()
            owner.send(unknown(owner, place_of(header)))
        owner.heard()  # what was sent before is carried out
    counts = [len(one.heard()) for one in silent]
    assert max(counts) <= 1, counts


def unknown(owner: Producer, half: Sent) -> RemotingCommand:
    """The answer "not known yet", oneway as clients send it."""
    ext = owner.end_request(half, UNKNOWN, from_transaction_check=True)
    command = RemotingCommand.request(RequestCode.END_TRANSACTION, ext, oneway=True)
    sign(command, owner.access_key, SECRET)
    return command


# Replies


def reply(sender: Producer, to: str) -> RemotingCommand:
    """The request; it is answered when the asker has answered."""
    header = SendMessageHeader(
        producer_group="Q", topic="C_REPLY_TOPIC", default_topic="TBW102", default_topic_queue_nums=4,
        queue_id=0, sys_flag=0, born_timestamp_ms=5, flag=0,
        properties=encode_properties({"CORRELATION_ID": "1", "REPLY_TO_CLIENT": to}).decode(),
    )  # fmt: skip
    command = RemotingCommand.request(
        RequestCode.SEND_REPLY_MESSAGE_V2, header.encode(RequestCode.SEND_MESSAGE_V2), b"reply"
    )
    sign(command, sender.access_key, SECRET)
    return command


def test_a_reply_goes_to_the_account_that_named_the_client_first(
    node: BrokerNode, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    owner, second = join(OWNER, "asker"), join(SECOND, "asker")
    sender = join(ADMIN)
    request = reply(sender, "asker")
    sender.send(request)
    push = owner.receive()
    assert (push.code, bytes(push.body)) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"reply")
    owner.send(push.answer())
    assert sender.receive().code == 0
    assert second.heard() == []
    assert f"replies go to the first client=asker accessKey={OWNER}" in caplog.text


def test_an_account_that_may_send_nothing_gets_no_reply(node: BrokerNode, join: Join) -> None:
    stranger, sender = join(STRANGER, "asker"), join(ADMIN)
    sender.send(reply(sender, "asker"))
    answer = sender.receive()
    assert (answer.code, "channel of <asker> not found" in str(answer.remark)) == (1, True)
    assert stranger.heard() == []


def test_a_deleted_account_gets_no_reply(node: BrokerNode, join: Join) -> None:
    owner, sender = join(OWNER, "asker"), join(ADMIN)
    delete(node, sender, OWNER)
    sender.send(reply(sender, "asker"))
    assert "channel of <asker> not found" in str(sender.receive().remark)
    owner.access_key = ADMIN
    assert owner.heard() == []


# A tool's message for a consumer


def test_a_tool_gives_no_message_to_an_account_that_may_not_read_it(node: BrokerNode, join: Join) -> None:
    admin, reader = join(ADMIN), join(READER)
    said = {
        "clientID": READER, "producerDataSet": [],
        "consumerDataSet": [{"groupName": "readers", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}],
    }  # fmt: skip
    heartbeat = RemotingCommand(RequestCode.HEART_BEAT, {}, orjson.dumps(said), version=409)
    assert reader.ask_command(heartbeat).code == 0
    half = admin.send_half()
    ext = {
        "consumerGroup": "readers",
        "clientId": READER,
        "msgId": offset_message_id(b"0" * 8, half.physical_offset),
    }
    answer = admin.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    assert (answer.code, "may not read the message's topic" in str(answer.remark)) == (1, True)
    assert RequestCode.CONSUME_MESSAGE_DIRECTLY not in reader.heard()


def test_a_group_may_have_its_own_dead_letters_and_no_other_groups(node: BrokerNode) -> None:
    recipients = Recipients(node.parts.security.acl)
    reader = Requester("10.0.0.9", READER, SECRET)

    def may(topic: str) -> bool:
        message = StoredMessage(0, 0, 0, 0, 0, 0, 0, 0, 0, b"", 0, b"", 0, 0, b"", topic, b"")
        return recipients.may_consume(reader, message, "readers")

    assert may("R")
    assert may("%DLQ%readers")
    assert not may("%DLQ%others")
    assert not may("T")


def test_a_new_producer_shares_the_questions_with_those_that_were_never_credited(
    node: BrokerNode, join: Join
) -> None:
    """As those that answer over another of their connections."""
    first, second = join(SECOND, "first"), join(SECOND, "second")
    owner = join(OWNER)
    for _ in range(3):
        owner.send_half()
    owner.request(RequestCode.UNREGISTER_CLIENT, {"clientID": OWNER, "producerGroup": "P"})
    check(node, 7)
    late = join(SECOND, "late")
    check(node, 7)
    counts = [len(one.heard()) for one in (first, second, late)]
    assert sum(counts) == 42
    assert counts[2] <= 10, counts


# Pulls that wait


def test_a_held_pull_of_a_deleted_account_gets_no_message(node: BrokerNode, join: Join) -> None:
    admin, reader = join(ADMIN), join(READER)
    said = {
        "clientID": READER,
        "producerDataSet": [],
        "consumerDataSet": [{
            "groupName": "readers", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{"topic": "R", "subString": "*", "subVersion": 1}],
        }],
    }  # fmt: skip
    assert reader.request(RequestCode.HEART_BEAT, body=orjson.dumps(said)).code == 0
    send = send_request("R", b"first")
    assert admin.request(int(send.code), send.ext, bytes(send.body)).code == 0
    wait_until(lambda: node.store.dispatcher.behind == 0, "it is in its queue")
    ext = {
        "consumerGroup": "readers", "topic": "R", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32",
        "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "30000", "subVersion": "1",
    }  # fmt: skip
    pull = RemotingCommand.request(RequestCode.PULL_MESSAGE, ext)
    pull.opaque = 7
    sign(pull, READER, SECRET)
    reader.send(pull)
    wait_until(lambda: len(node.parts.long_polling) == 1, "the pull waits")
    delete(node, admin, READER)
    assert admin.request(int(send.code), send.ext, b"second").code == 0
    while (answer := reader.receive()).opaque != pull.opaque or not answer.flag & 1:
        continue
    assert (answer.code, "No acl config for readers-key" in str(answer.remark)) == (1, True)
    assert bytes(answer.body) == b""
