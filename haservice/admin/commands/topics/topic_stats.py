"""`mqadmin statsAll`: every topic's traffic, and what its consumers have left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import click

from haservice.admin.calls import Admin
from haservice.admin.commands.groups.group_calls import consume_stats
from haservice.admin.commands.topics.topic_list import topic_groups
from haservice.broker.metadata.topics import RETRY_PREFIX
from haservice.broker.send.retries import DLQ_PREFIX
from haservice.errors import RemotingError
from haservice.remoting.bodies.admin import BrokerStatsData
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.admin import BrokerStatsHeader
from haservice.terminal.options import command, format_option, namesrv_option
from haservice.terminal.output import Column, Table, number, show

# Statistics by topic, and by topic@group.
TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"

COLUMNS = (
    Column("#Topic", "topic"),
    Column("#Consumer Group", "group", lambda group: group or ""),
    Column("#Accumulation", "accumulation", right=True),
    Column("#InTPS", "inTps", number, right=True),
    Column("#OutTPS", "outTps", lambda tps: "" if tps is None else number(tps), right=True),
    Column("#InMsg24Hour", "inMsg24Hour", right=True),
    Column(
        "#OutMsg24Hour", "outMsg24Hour", lambda sum: "NO_CONSUMER" if sum is None else str(sum), right=True
    ),
)


class Traffic(NamedTuple):
    """Messages per second in the last minute, and in the longest span that the broker counts, up to a day."""

    tps: float = 0.0
    messages: int = 0


@command("statsAll")
@namesrv_option
@click.option("-a", "--activeTopic", "active", is_flag=True, help="Only topics with messages in or out.")
@click.option("-t", "--topic", help="This topic alone.")
@format_option
def stats_all(namesrv: tuple[str, ...], active: bool, topic: str | None, output_format: str) -> None:
    """Shows the traffic of topics and their consumers."""
    table = Table(COLUMNS)
    with Admin(namesrv) as admin:
        for name in admin.topics():
            if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and topic in (None, name):
                with suppress(RemotingError):  # deleted since, or its brokers are unreachable
                    for row in topic_rows(admin, name):
                        if not active or row[-2] or row[-1]:
                            table.add(*row)
    show(table, output_format)


def topic_rows(admin: Admin, topic: str) -> Iterator[tuple[Any, ...]]:
    """A line for each group that consumes the topic, or one with None for groups."""
    route = admin.route(topic)
    masters = [data.broker_addrs[MASTER_ID] for data in route.broker_datas if MASTER_ID in data.broker_addrs]
    sent = traffic(admin, masters, TOPIC_PUT_NUMS, topic)
    groups = topic_groups(admin, topic, route)
    if not groups:
        yield topic, None, 0, sent.tps, None, sent.messages, None
    for group in groups:
        taken = traffic(admin, masters, GROUP_GET_NUMS, f"{topic}@{group}")
        left = 0
        with suppress(RemotingError):
            table = consume_stats(admin, group, topic)[0].offset_table
            left = max(0, sum(progress.lag for progress in table.values()))
        yield topic, group, left, sent.tps, taken.tps, sent.messages, taken.messages


def traffic(admin: Admin, addrs: list[str], name: str, key: str) -> Traffic:
    """The traffic of all brokers; one that counted nothing, or is unreachable, adds nothing."""
    total = Traffic()
    header = BrokerStatsHeader(name, key)
    for addr in addrs:
        with suppress(RemotingError):
            data = admin.ask(addr, RequestCode.VIEW_BROKER_STATS_DATA, header, into=BrokerStatsData)
            messages = data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum
            total = Traffic(total.tps + data.stats_minute.tps, total.messages + messages)
    return total


COMMANDS = (stats_all,)
