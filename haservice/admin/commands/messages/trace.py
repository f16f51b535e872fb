"""`mqadmin queryMsgTraceById`: who sent and consumed a message, as their clients recorded it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from commitlog.kernel.records import StoredMessage
from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.messages.queries import MATCHES_MAX, query
from haservice.admin.commands.messages.trace_entries import TraceEntry, entries_of
from haservice.broker.topics.table import TRACE_TOPIC
from haservice.client.message import host_text
from haservice.client.reading import body_of
from haservice.terminal.options import command, format_option, namesrv_option
from haservice.terminal.output import Column, Table, local_second, show

COLUMNS = (
    Column("#Type", "type"),
    Column("#Group", "group"),
    Column("#ClientHost", "clientHost"),
    Column("#Time", "timestamp", local_second),
    Column("#CostTimes", "costTime", lambda ms: f"{ms}ms", right=True),
    Column("#Status", "status"),
)


@command("queryMsgTraceById")
@namesrv_option
@click.option("-i", "--msgId", "message_id", required=True, help="The message's unique key (UNIQ_KEY).")
@click.option(
    "-t", "--traceTopic", "topic", default=TRACE_TOPIC, show_default=True, help="Where clients write traces."
)
@format_option
def query_msg_trace_by_id(namesrv: tuple[str, ...], message_id: str, topic: str, output_format: str) -> None:
    """Shows who sent and who consumed a message.

    As clients with msgTraceEnable wrote it down: when, how long it took, and how it went.
    """
    with MQAdmin(namesrv) as admin:
        messages = query(admin, topic, message_id, MATCHES_MAX, end_ms=wall_clock_ms())
    found = {entry for message in messages for entry in _entries(message, message_id)}
    table = Table(COLUMNS)
    for entry in sorted(found, key=lambda one: (one.kind, one.timestamp_ms or 0)):
        table.add(*entry)
    show(table, output_format)


def _entries(message: StoredMessage, message_id: str) -> Iterator[TraceEntry]:
    host = host_text(message.born_host).rpartition(":")[0]
    return entries_of(body_of(message).decode(errors="replace"), message_id, host)
