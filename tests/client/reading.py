"""What lies in a topic, read without a consumer."""

from __future__ import annotations

from haservice.client import Admin, Received
from haservice.client.admin import TOOLS_GROUP
from haservice.client.raw_sends import SendQueue
from haservice.client.reading import from_queue
from haservice.errors import AnswerError
from haservice.remoting.bodies.clients import MASTER_ID
from tests.support.waiting import wait_until


def found(admin: Admin, topic: str, count: int = 1) -> list[Received]:
    """Waits for so many; a topic that a send has made is not known everywhere at once."""
    wait_until(lambda: len(messages_in(admin, topic)) >= count, f"{count} messages in {topic}")
    return messages_in(admin, topic)


def messages_in(admin: Admin, topic: str) -> list[Received]:
    """All there are, by queue and offset; none of a topic that is not there."""
    try:
        route = admin.route(topic)
    except AnswerError:
        return []
    addrs = {data.broker_name: data.broker_addrs[MASTER_ID] for data in route.broker_datas}
    return [
        Received.of(record, queue.broker_name)
        for queue in admin.queues(topic)
        for record in from_queue(
            admin, topic, SendQueue(queue.broker_name, addrs[queue.broker_name], queue.queue_id), TOOLS_GROUP
        )
    ]


def bodies_in(admin: Admin, topic: str) -> list[bytes]:
    return [message.body for message in messages_in(admin, topic)]
