"""`mqadmin consumerProgress`, `brokerConsumeStats`, `startMonitoring`: the progress of groups."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from haservice.admin.asked_apart import add_groups
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.groups.group_calls import consume_stats, queue_owners
from haservice.admin.fanout import say_failures
from haservice.admin.overview import NotAllOurs, Overview, groups_of_brokers
from haservice.broker.topics.table import RETRY_PREFIX
from haservice.errors import RemotingError
from haservice.remoting.bodies.admin import ConsumeStats, ConsumeStatsList, QueueProgress
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.admin import BrokerConsumeStatsHeader
from haservice.remoting.headers.overview import GroupOverview
from haservice.terminal.options import (
    command,
    format_option,
    group_option,
    namesrv_option,
    one_broker_option,
    truth_option,
)
from haservice.terminal.output import Column, Table, echo, local_second, number, show, version_text

BROKER_STATS_TIMEOUT_MS = 50_000
MONITOR_INTERVAL_S = 60.0

QUEUE_COLUMNS = (
    Column("#Topic", "topic"),
    Column("#Broker Name", "brokerName"),
    Column("#QID", "queueId", right=True),
    Column("#Broker Offset", "brokerOffset", right=True),
    Column("#Consumer Offset", "consumerOffset", right=True),
)
DIFF_COLUMNS = (
    Column("#Diff", "diff", right=True),
    Column("#LastTime", "lastTimestamp", local_second),
)
PROGRESS_COLUMNS = QUEUE_COLUMNS + DIFF_COLUMNS
OWNED_COLUMNS = (*QUEUE_COLUMNS, Column("#Client IP", "clientIP", lambda host: host or "N/A"), *DIFF_COLUMNS)
BROKER_COLUMNS = (PROGRESS_COLUMNS[0], Column("#Group", "group"), *PROGRESS_COLUMNS[1:])
GROUP_COLUMNS = (
    Column("#Group", "group"),
    Column("#Count", "count", right=True),
    Column("#Version", "version", lambda version: "OFFLINE" if version is None else version_text(version)),
    Column("#Type", "consumeType", lambda kind: kind or ""),
    Column("#Model", "messageModel", lambda model: model or ""),
    Column("#TPS", "consumeTps", number, right=True),
    Column("#Diff Total", "diffTotal", right=True),
)


@command("consumerProgress")
@namesrv_option
@group_option(
    "--groupName", required=False, help="This group, queue by queue; else all groups in a line each."
)
@truth_option(
    "-s", "--showClientIP", "show_owners", default=False, help="With -g: which member has each queue."
)
@format_option
def consumer_progress(
    namesrv: tuple[str, ...], group: str | None, show_owners: bool, output_format: str
) -> None:
    """Shows how far consumers have come.

    Diff is what the brokers hold beyond the group's offset: messages not yet consumed.  LastTime is when
    the last message consumed was stored.
    """
    with MQAdmin(namesrv) as admin:
        if group is None:
            found = all_groups(admin)
            show(groups_table(found), output_format)
            say_failures(list(found.failures.values()), "Not shown")
            if found.failures:
                sys.exit(1)
            return
        stats, complete = consume_stats(admin, group)
        owners = queue_owners(admin, group) if show_owners else None
    show(progress_table(stats, owners), output_format)
    if complete and not stats.offset_table:
        echo(
            f"no broker has an offset of group {group!r}: it has consumed nothing, or its name is another\n"
            "  mqadmin consumerProgress lists the groups",
            err=True,
        )
    if not complete or not stats.offset_table:
        sys.exit(1)


def progress_table(stats: ConsumeStats, owners: dict[tuple[str, str, int], str] | None = None) -> Table:
    """Queue by queue.  Pure."""
    table = Table(PROGRESS_COLUMNS if owners is None else OWNED_COLUMNS, name="queues")
    for queue, progress in sorted(stats.offset_table.items(), key=lambda item: item[0]):
        row = _progress_row(queue, progress)
        if owners is not None:
            owner = owners.get((queue.topic, queue.broker_name, queue.queue_id))
            row = (*row[: len(QUEUE_COLUMNS)], owner, *row[len(QUEUE_COLUMNS) :])
        table.add(*row)
    total = sum(progress.lag for progress in stats.offset_table.values())
    table.facts = {"consumeTps": stats.consume_tps, "diffTotal": total}
    table.notes = [f"Consume TPS: {stats.consume_tps:.2f}", f"Diff Total: {total}"]
    return table


def _progress_row(queue: MessageQueue, progress: QueueProgress) -> tuple[Any, ...]:
    return (
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        progress.broker_offset,
        progress.consumer_offset,
        progress.lag,
        progress.last_timestamp,
    )


def all_groups(admin: MQAdmin) -> Overview:
    """Every group with a retry topic: every group in clustering mode has one."""
    return overview_of(admin, group_names(admin))


def group_names(admin: MQAdmin) -> list[str]:
    """Those with a retry topic, in order."""
    return [topic.removeprefix(RETRY_PREFIX) for topic in admin.topics() if topic.startswith(RETRY_PREFIX)]


def overview_of(admin: MQAdmin, names: Sequence[str]) -> Overview:
    """These groups, which are in order."""
    try:
        found = groups_of_brokers(admin, names)
    except NotAllOurs:
        found = Overview()
        add_groups(admin, names, found)
    found.groups = {name: found.groups.get(name) or GroupOverview(name) for name in names}
    return found


def kind_of(group: GroupOverview) -> tuple[str | None, str | None]:
    """PUSH or PULL, and the model of those that push; None while nobody is online.  Pure."""
    if not group.members:
        return None, None
    return ("PUSH", group.message_model) if group.consume_type == "CONSUME_PASSIVELY" else ("PULL", None)


def groups_table(found: Overview) -> Table:
    """One line for each group; unknown values stay blank.  Pure."""
    table = Table(GROUP_COLUMNS)
    for name, group in found.groups.items():
        kind, model = kind_of(group)
        table.add(
            name,
            group.members,
            group.version if group.members else None,
            kind,
            model,
            group.tps,
            group.behind,
        )
    return table


@command("brokerConsumeStats")
@namesrv_option
@one_broker_option("--brokerAddr", required=True)
@click.option("-l", "--level", default=0, show_default=True, help="Only queues with at least this Diff.")
@truth_option("-o", "--order", default=False, help="Only order topics.")
@click.option(
    "-t",
    "--timeoutMillis",
    "timeout_ms",
    type=click.IntRange(1),
    default=BROKER_STATS_TIMEOUT_MS,
    show_default=True,
)
@format_option
def broker_consume_stats(
    namesrv: tuple[str, ...], broker: str, level: int, order: bool, timeout_ms: int, output_format: str
) -> None:
    """Shows the progress of all groups at a broker."""
    with MQAdmin(namesrv) as admin:
        found = admin.ask(
            broker,
            RequestCode.GET_BROKER_CONSUME_STATS,
            BrokerConsumeStatsHeader(order),
            into=ConsumeStatsList,
            timeout_s=timeout_ms / 1000,
        )
    total = max(0, found.total_diff)
    table = Table(BROKER_COLUMNS, name="queues", facts={"totalDiff": total})
    for groups in found.consume_stats_list:
        for group, all_stats in sorted(groups.items()):
            for stats in all_stats:
                for queue, progress in sorted(stats.offset_table.items(), key=lambda item: item[0]):
                    if progress.lag >= level and progress.last_timestamp > 0:
                        topic, *rest = _progress_row(queue, progress)
                        table.add(topic, group, *rest)
    table.notes = [f"Diff Total: {total}"]
    show(table, output_format)


@command("startMonitoring")
@namesrv_option
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=MONITOR_INTERVAL_S,
    show_default=True,
    help="Seconds from one look to the next.",
)
@format_option
def start_monitoring(namesrv: tuple[str, ...], interval_s: float, output_format: str) -> None:
    """Shows all groups again and again, until Ctrl-C.

    A line for each group as consumerProgress shows it, after the time of the look.
    """
    with MQAdmin(namesrv) as admin, suppress(KeyboardInterrupt):  # Ctrl-C ends a watch: no failure
        while True:
            echo(f"# {time.strftime('%Y-%m-%d %H:%M:%S')}", err=output_format == "json")
            try:
                found = all_groups(admin)
                show(groups_table(found), output_format)
                say_failures(list(found.failures.values()), "Not shown")
            except RemotingError as error:
                echo(str(error), err=True)
            time.sleep(interval_s)
