"""Where a topic's messages go, and where they are read: queues of its route, or of a named broker."""

from __future__ import annotations

import click

from haservice.admin.calls import MQAdmin
from haservice.client import raw_sends
from haservice.client.raw_sends import SendQueue
from haservice.errors import RemotingTimeout, RemotingUnreachable
from haservice.remoting.bodies.clients import BrokerData
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import QueueHeader
from haservice.terminal.options import address, is_address
from haservice.terminal.output import echo_line

BROKER_CHOOSES = -1


def writable_queues(admin: MQAdmin, topic: str, broker: str | None, queue_id: int | None) -> list[SendQueue]:
    """Where messages may go: at the masters of the route, or at the broker that the user named."""
    if is_address(broker):
        return [SendQueue(broker, address(broker), BROKER_CHOOSES if queue_id is None else queue_id)]
    return raw_sends.writable_queues(admin, topic, broker, queue_id)


def readable_queues(admin: MQAdmin, topic: str, broker: str | None, queue_id: int | None) -> list[SendQueue]:
    """The topic's queues, each with the broker to read from: a master, or its slave if it is unreachable."""
    if is_address(broker):
        addr = address(broker)
        found = [
            SendQueue(q.broker_name, addr, q.queue_id) for q in admin.topic_stats(addr, topic).offset_table
        ]
    else:
        route = admin.route(topic)
        addrs = {
            data.broker_name: _reachable_addr(admin, topic, data)
            for data in route.broker_datas
            if data.broker_addrs and broker in (None, data.broker_name)
        }
        found = [
            SendQueue(data.broker_name, addrs[data.broker_name], number)
            for data in route.queue_datas
            if data.broker_name in addrs
            for number in range(data.read_queue_nums)
        ]
    found = sorted(queue for queue in found if queue_id in (None, queue.queue_id))
    if not found:
        wanted = f"queue {queue_id}" if queue_id is not None else "queues"
        where = f" on {broker}" if broker else ""
        raise click.ClickException(
            f"topic {topic} has no {wanted}{where}\n  mqadmin topicRoute -t {topic} shows where it is"
        )
    return found


def _reachable_addr(admin: MQAdmin, topic: str, data: BrokerData) -> str:
    """The master if it answers; else the first slave that does, and says so.

    If nobody answers, raises RemotingUnreachable or RemotingTimeout of the first that was asked.
    """
    failures: list[RemotingUnreachable | RemotingTimeout] = []
    for broker_id, addr in sorted(data.broker_addrs.items()):
        try:
            admin.offset(addr, RequestCode.GET_MIN_OFFSET, QueueHeader(topic, 0))
        except (RemotingUnreachable, RemotingTimeout) as error:
            failures.append(error)
            continue
        if failures:
            echo_line(f"{failures[0]}: reading {data.broker_name} {broker_id} at {addr} instead", err=True)
        return addr
    raise failures[0]
