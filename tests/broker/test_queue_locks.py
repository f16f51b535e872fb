"""Who has a queue for itself: the rules, and requests 41 and 42."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from haservice.broker.groups.queue_locks import LOCK_SECONDS, QueueLocks
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.fastjson import loads
from tests.support.brokers import addr_of

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", number) for number in range(3))


class Locks(QueueLocks):
    def __init__(self, locks_max: int = 100, bytes_max: int = 1 << 20) -> None:
        self.now_s = 1000.0
        super().__init__(clock_s=lambda: self.now_s, locks_max=locks_max, bytes_max=bytes_max)


@pytest.fixture
def locks() -> Locks:
    return Locks()


def test_a_queue_has_one_owner(locks: Locks) -> None:
    assert locks.lock("G", "a", [Q0, Q1]) == [Q0, Q1]
    assert locks.lock("G", "b", [Q1, Q2]) == [Q2]
    assert [locks.owner("G", queue) for queue in (Q0, Q1, Q2)] == ["a", "a", "b"]


def test_groups_do_not_see_each_other(locks: Locks) -> None:
    assert locks.lock("G", "a", [Q0]) == [Q0]
    assert locks.lock("H", "b", [Q0]) == [Q0]


def test_a_queue_named_twice_is_granted_once(locks: Locks) -> None:
    assert locks.lock("G", "a", [Q0, Q0]) == [Q0]


def test_a_lock_lasts_sixty_seconds_from_its_last_renewal(locks: Locks) -> None:
    locks.lock("G", "a", [Q0])
    locks.now_s += 40
    assert locks.lock("G", "a", [Q0]) == [Q0]
    locks.now_s += LOCK_SECONDS
    assert locks.lock("G", "b", [Q0]) == []
    locks.now_s += 0.001
    assert locks.owner("G", Q0) is None
    assert locks.lock("G", "b", [Q0]) == [Q0]
    assert locks.lock("G", "a", [Q0]) == []


def test_an_expired_lock_is_still_its_owners_to_renew(locks: Locks) -> None:
    locks.lock("G", "a", [Q0])
    locks.now_s += 2 * LOCK_SECONDS
    assert locks.lock("G", "a", [Q0]) == [Q0]
    assert locks.lock("G", "b", [Q0]) == []


def test_only_the_owner_unlocks(locks: Locks) -> None:
    locks.lock("G", "a", [Q0])
    locks.unlock("G", "b", [Q0, Q1])
    locks.unlock("H", "a", [Q0])
    assert locks.lock("G", "b", [Q0]) == []
    locks.unlock("G", "a", [Q0])
    assert locks.lock("G", "b", [Q0]) == [Q0]


def test_long_names_are_bounded_by_their_bytes() -> None:
    locks = Locks(bytes_max=20_000)
    queues = [MessageQueue("T" * 127, "b" * 255, number) for number in range(100)]
    granted = locks.lock("G", "c" * 255, queues)
    assert 10 < len(granted) == len(locks) < 25
    locks.unlock("G", "c" * 255, granted)
    assert locks._bytes == 0
    assert len(locks.lock("G", "c" * 255, queues)) == len(granted)


def test_locks_are_bounded_and_expired_ones_make_room() -> None:
    locks = Locks(locks_max=2)
    assert locks.lock("G", "a", [Q0, Q1, Q2]) == [Q0, Q1]
    locks.now_s += LOCK_SECONDS / 2
    assert locks.lock("G", "a", [Q1, Q2]) == [Q1]
    locks.now_s += LOCK_SECONDS / 2 + 1
    assert locks.lock("G", "b", [Q2]) == [Q2], "the first lock has expired"
    assert len(locks) == 2


def ask(client: BlockingClient, node: BrokerNode, code: int, body: bytes) -> RemotingCommand:
    return client.call(addr_of(node), RemotingCommand.request(code, {}, body), timeout_s=10)


def body_of(client_id: str, *queue_ids: int) -> bytes:
    queues = [{"brokerName": "broker-a", "queueId": number, "topic": "T"} for number in queue_ids]
    return orjson.dumps({"clientId": client_id, "consumerGroup": "G", "mqSet": queues})


def granted(answer: RemotingCommand) -> list[int]:
    assert answer.code == 0
    return [queue["queueId"] for queue in loads(answer.body)["lockOKMQSet"]]


@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE])
def test_masters_and_slaves_answer(
    role: BrokerRole, start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start(role=role)
    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    assert granted(ask(client, node, lock, body_of("a", 0, 1))) == [0, 1]
    assert granted(ask(client, node, lock, body_of("b", 1, 2))) == [2]
    assert granted(ask(client, node, lock, body_of("b", 1))) == []
    assert ask(client, node, unlock, body_of("a", 1)).code == 0
    assert granted(ask(client, node, lock, body_of("b", 1))) == [1]


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
def test_a_body_that_cannot_be_read_is_said_so(
    code: RequestCode, start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    answer = ask(client, start(), code, b'{"clientId":"a","mqSet":[{"topic":"T"}]}')
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "body cannot be read" in (answer.remark or "")
