"""`mqadmin consumerConnection`, `producerConnection`, `producer`: who is connected."""

from __future__ import annotations

import sys

import click

from haservice.admin.calls import MQAdmin, readable_addr
from haservice.admin.commands.groups.group_calls import consumer_connection
from haservice.admin.fanout import ask_each
from haservice.remoting.bodies.admin import ClientConnection, ProducerConnection, ProducerTableInfo
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.admin import ProducerGroupHeader
from haservice.terminal.options import (
    broker_option,
    command,
    format_option,
    group_option,
    namesrv_option,
    one_broker_option,
    topic_option,
)
from haservice.terminal.output import Column, Table, echo, echo_line, local_time, show, to_json, version_text

MEMBER_COLUMNS = (
    Column("#ClientId", "clientId"),
    Column("#ClientAddr", "clientAddr"),
    Column("#Language", "language"),
    Column("#Version", "version", version_text),
)
SUBSCRIPTION_COLUMNS = (
    Column("#Topic", "topic"),
    Column("#SubExpression", "subString"),
    Column("#Type", "expressionType"),
)
PRODUCER_COLUMNS = (
    Column("#Group", "group"),
    Column("#ClientId", "clientId"),
    Column("#RemoteIP", "remoteIP", lambda addr: addr.lstrip("/")),
    Column("#Language", "language"),
    Column("#Version", "version", version_text),
    Column("#Last Updated", "lastUpdateTimestamp", local_time),
)


def _row(member: ClientConnection) -> tuple[str, str, str, int]:
    return member.client_id, member.client_addr, member.language, member.version


@command("consumerConnection")
@namesrv_option
@broker_option
@group_option("--consumerGroup")
@format_option
def consumer_connections(
    namesrv: tuple[str, ...], broker: str | None, group: str, output_format: str
) -> None:
    """Shows a consumer group's members and subscriptions."""
    with MQAdmin(namesrv) as admin:
        connection = consumer_connection(admin, group, broker)
    members = Table(MEMBER_COLUMNS, [_row(member) for member in connection.connection_set])
    subscriptions = Table(SUBSCRIPTION_COLUMNS)
    for _, data in sorted(connection.subscription_table.items()):
        subscriptions.add(data.topic, data.sub_string, data.expression_type)
    how = {
        "consumeType": connection.consume_type,
        "messageModel": connection.message_model,
        "consumeFromWhere": connection.consume_from_where,
    }
    if output_format == "json":
        tables = {"connections": members.objects(), "subscriptions": subscriptions.objects()}
        echo(to_json({**how, **tables}))
        return
    echo(f"{members.text()}\n\nBelow is subscription:\n{subscriptions.text()}\n")
    for name, value in how.items():
        echo_line(f"{name[0].upper()}{name[1:]}: {value}")


@command("producerConnection")
@namesrv_option
@click.option("-g", "--producerGroup", "group", metavar="GROUP", required=True, help="The producer group.")
@topic_option
@format_option
def producer_connections(namesrv: tuple[str, ...], group: str, topic: str, output_format: str) -> None:
    """Shows a producer group's members.

    Of the brokers that hold the topic; a producer is known for as long as it sends heartbeats.
    """
    with MQAdmin(namesrv) as admin:
        addrs = [readable_addr(data) for data in admin.route(topic).broker_datas if data.broker_addrs]
        found, complete = ask_each(
            addrs,
            lambda addr: admin.ask(
                addr,
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                ProducerGroupHeader(group),
                into=ProducerConnection,
            ),
        )
    members = {member.client_id: member for _, body in found for member in body.connection_set}
    show(Table(MEMBER_COLUMNS, [_row(members[client_id]) for client_id in sorted(members)]), output_format)
    if not complete:
        sys.exit(1)


@command("producer")
@namesrv_option
@one_broker_option("--broker", "--brokerAddr", required=True)
@format_option
def producer(namesrv: tuple[str, ...], broker: str, output_format: str) -> None:
    """Shows every producer that a broker knows."""
    with MQAdmin(namesrv) as admin:
        found = admin.ask(broker, RequestCode.GET_ALL_PRODUCER_INFO, into=ProducerTableInfo)
    table = Table(PRODUCER_COLUMNS)
    for group, members in sorted(found.data.items()):
        for member in sorted(members, key=lambda one: one.client_id):
            table.add(
                group,
                member.client_id,
                member.remote_ip,
                member.language,
                member.version,
                member.last_update_timestamp,
            )
    show(table, output_format)
