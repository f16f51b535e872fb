"""Who is connected, as tools ask.

203 GET_CONSUMER_CONNECTION_LIST    a consumer group's members and subscriptions; 206 when offline
204 GET_PRODUCER_CONNECTION_LIST    a producer group's members; 1 when there is none
328 GET_ALL_PRODUCER_INFO           every producer of every group

The JSON is RocketMQ 4.9.8's.  The loop makes the answers, for its thread keeps the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from commitlog.log.log import wall_clock_ms
from haservice.broker.groups.consumers import Client, ClientTable, ConsumerGroup, Peer
from haservice.errors import RequestError
from haservice.remoting.bodies.admin import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.admin import ProducerGroupHeader
from haservice.remoting.headers.clients import ConsumerGroupHeader


class ConnectionsProcessor:
    """Reads `clients`, whose times are of `clock_s`."""

    def __init__(
        self,
        clients: ClientTable,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._clients = clients
        self._clock_s = clock_s
        self._clock_ms = clock_ms

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    def consumers(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = ConsumerGroupHeader.decode(command.ext).consumer_group
        group = self._clients.group(name)
        if group is None:
            raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        return command.answer(body=_consumer_connection(group).encode())

    def producers(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = ProducerGroupHeader.decode(command.ext).producer_group
        members = self._clients.producers.get(name)
        if members is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return command.answer(
            body=ProducerConnection([_connection(*member) for member in members.items()]).encode()
        )

    def all_producers(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        now_ms, now_s = self._clock_ms(), self._clock_s()
        data = {
            name: [
                ProducerInfo(
                    client_id=client.client_id,
                    remote_ip=f"/{peer.peer}",
                    language=client.language,
                    version=client.version,
                    last_update_timestamp=now_ms - round((now_s - client.last_heard_s) * 1000),
                )
                for peer, client in members.items()
            ]
            for name, members in self._clients.producers.items()
        }
        return command.answer(body=ProducerTableInfo(data).encode())


def _consumer_connection(group: ConsumerGroup) -> ConsumerConnection:
    return ConsumerConnection(
        connection_set=[_connection(*member) for member in group.members.items()],
        subscription_table={
            topic: one.data for topic, one in group.subscriptions.items() if one.data is not None
        },
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from_where,
    )


def _connection(peer: Peer, client: Client) -> ClientConnection:
    return ClientConnection(client.client_id, peer.peer, client.language, client.version)
