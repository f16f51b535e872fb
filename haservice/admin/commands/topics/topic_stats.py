"""`mqadmin statsAll`: every topic's traffic, and what its consumers have left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import click

from haservice.admin.asked_apart import TOPIC_PUT_NUMS
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.topics.topic_list import say_what_is_missing, users_topics
from haservice.admin.overview import TopicFound
from haservice.errors import RemotingError
from haservice.remoting.bodies.admin import BrokerStatsData
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.admin import BrokerStatsHeader
from haservice.terminal.options import command, format_option, namesrv_option
from haservice.terminal.output import Column, Table, number, show

__all__ = ["TOPIC_PUT_NUMS", "stats_all", "traffic"]

# In a table, for what a broker has no counter for; in JSON it is null.
UNKNOWN = "-"


def rate(tps: Any) -> str:
    return tps if isinstance(tps, str) else number(tps)


COLUMNS = (
    Column("#Topic", "topic"),
    Column("#Consumer Group", "group", lambda group: group or ""),
    Column("#Accumulation", "accumulation", right=True),
    Column("#InTPS", "inTps", rate, right=True),
    Column("#OutTPS", "outTps", lambda tps: "" if tps is None else rate(tps), right=True),
    Column("#InMsg24Hour", "inMsg24Hour", right=True),
    Column(
        "#OutMsg24Hour", "outMsg24Hour", lambda sum: "NO_CONSUMER" if sum is None else str(sum), right=True
    ),
)


class TopicTraffic(NamedTuple):
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
    with MQAdmin(namesrv) as admin:
        found = users_topics(admin, topic)
    unknown = None if output_format == "json" else UNKNOWN
    for name, one in sorted(found.topics.items()):
        for row in topic_rows(name, one, unknown):
            if not active or row[-2] or row[-1]:
                table.add(*row)
    show(table, output_format)
    if not say_what_is_missing(found):
        sys.exit(1)


def topic_rows(name: str, topic: TopicFound, unknown: str | None) -> Iterator[tuple[Any, ...]]:
    """A line for each group that consumes the topic, or one with None for groups."""
    puts = (topic.puts.tps, topic.puts.messages) if topic.puts.counted else (unknown, unknown)
    if not topic.groups:
        yield name, None, 0, puts[0], None, puts[1], None
    for group, one in sorted(topic.groups.items()):
        gets = (one.gets.tps, one.gets.messages) if one.gets.counted else (unknown, unknown)
        yield name, group, max(0, one.behind), puts[0], gets[0], puts[1], gets[1]


def traffic(admin: MQAdmin, addrs: list[str], name: str, key: str) -> TopicTraffic:
    """The traffic of all brokers; one that counted nothing, or is unreachable, adds nothing."""
    total = TopicTraffic()
    header = BrokerStatsHeader(name, key)
    for addr in addrs:
        with suppress(RemotingError):
            data = admin.ask(addr, RequestCode.VIEW_BROKER_STATS_DATA, header, into=BrokerStatsData)
            messages = data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum
            total = TopicTraffic(total.tps + data.stats_minute.tps, total.messages + messages)
    return total
