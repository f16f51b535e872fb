"""A producer of transactions on one socket, which also hears what the broker asks by itself."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import orjson

from commitlog.kernel.records import StoredMessage, decode, encode_properties, parse_message_id
from commitlog.log.log import wall_clock_ms
from haservice.broker.node import BrokerNode
from haservice.broker.topics.table import HALF_TOPIC, OP_HALF_TOPIC
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.transactions import CheckTransactionStateHeader, EndTransactionHeader
from tests.support.brokers import send_request
from tests.support.remoting import Peer
from tests.support.waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Sent(NamedTuple):
    """Where a half message is."""

    queue_offset: int
    physical_offset: int


class TransactionPeer(Peer):
    """`asked` are the broker's questions (39) that were received while waiting for something else."""

    def __init__(self, node: BrokerNode, group: str = "P", client_id: str = "c1") -> None:
        super().__init__(node.config.remoting.listen_port)
        self.group = group
        self.asked: list[RemotingCommand] = []
        self._opaque = 100
        heartbeat = {
            "clientID": client_id, "producerDataSet": [{"groupName": group}], "consumerDataSet": [],
        }  # fmt: skip
        assert self.request(RequestCode.HEART_BEAT, body=orjson.dumps(heartbeat)).code == 0

    def request(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        """The answer to it, whatever else comes before."""
        return self.ask_command(RemotingCommand(code, ext, body))

    def ask_command(self, command: RemotingCommand) -> RemotingCommand:
        self._opaque += 1
        command.opaque = self._opaque
        self.send(command)
        while True:
            answer = self.receive()
            if answer.flag & 1:
                assert answer.opaque == command.opaque
                return answer
            self.asked.append(answer)

    def question(self) -> tuple[CheckTransactionStateHeader, StoredMessage]:
        """The next question of the broker; waits for it."""
        command = self.asked.pop(0) if self.asked else self.receive()
        assert command.code == RequestCode.CHECK_TRANSACTION_STATE
        return CheckTransactionStateHeader.decode(command.ext), decode(command.body)

    def send_half(
        self, topic: str = "T", body: bytes = b"half", *, age_ms: int = 60_000, **properties: str
    ) -> Sent:
        """A message born `age_ms` ago, so that the broker asks about it at once."""
        texts = {"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": body.decode(), **properties}
        answer = self.ask_command(
            send_request(
                topic, body, encode_properties(texts).decode(), producer_group=self.group, sys_flag=4,
                queue_id=1, born_timestamp_ms=time.time_ns() // 1_000_000 - age_ms,
            )
        )  # fmt: skip
        assert answer.code in (0, 11), answer.remark
        _, _, physical_offset = parse_message_id(answer.ext["msgId"])
        return Sent(int(answer.ext["queueOffset"]), physical_offset)

    def end_request(self, half: Sent, decision: int, **fields: Any) -> dict[str, str]:
        values: dict[str, Any] = {
            "producer_group": self.group,
            "tran_state_table_offset": half.queue_offset,
            "commit_log_offset": half.physical_offset,
            "commit_or_rollback": decision,
            **fields,
        }
        return EndTransactionHeader(**values).encode()

    def end(self, half: Sent, decision: int, **fields: Any) -> RemotingCommand:
        return self.request(RequestCode.END_TRANSACTION, self.end_request(half, decision, **fields))


def place_of(header: CheckTransactionStateHeader) -> Sent:
    """What the answer to a question has to name."""
    return Sent(header.tran_state_table_offset, header.commit_log_offset)


def messages_of(node: BrokerNode, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """What a consumer of the queue would find, once all that is stored is dispatched."""
    wait_until(lambda: node.store.dispatcher.behind == 0, "all is dispatched")
    queue = node.store.queues.get(topic, queue_id)
    if queue is None:
        return []
    entries = queue.read(queue.min_offset, 10_000)
    return [decode(node.store.log.read_record(entry.physical_offset)) for entry in entries]


def halves_of(node: BrokerNode) -> list[StoredMessage]:
    return messages_of(node, HALF_TOPIC)


def let_halves_age(node: BrokerNode) -> None:
    """Until a millisecond has passed since the last one: a round leaves alone what is as young as itself."""
    last_ms = halves_of(node)[-1].store_timestamp_ms
    wait_until(lambda: wall_clock_ms() > last_ms, "a millisecond has passed")


def ended_of(node: BrokerNode) -> list[bytes]:
    return [op.body for op in messages_of(node, OP_HALF_TOPIC)]
