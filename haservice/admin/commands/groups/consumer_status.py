"""`mqadmin consumerStatus`: what each member of a group tells of itself, and what is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.groups.group_calls import consumer_connection, group_addrs, running_info
from haservice.admin.fanout import ask_each
from haservice.printable import escaped
from haservice.remoting.bodies.admin import ConsumerRunningInfo
from haservice.terminal.options import broker_option, command, format_option, group_option, namesrv_option
from haservice.terminal.output import Column, Table, echo, number, to_json, version_text

# Properties of a member.
CONSUME_TYPE = "PROP_CONSUME_TYPE"
CONSUME_ORDERLY = "PROP_CONSUMEORDERLY"
START_TIMESTAMP = "PROP_CONSUMER_START_TIMESTAMP"
PUSH = "CONSUME_PASSIVELY"

# For so long the members of one group may differ: a new version is being rolled out.
SETTLED_MS = 120_000
# A member that has messages and consumes none for so long is stuck.
STUCK_MS = 60_000

MEMBER_COLUMNS = (
    Column("#Index", "index", right=True),
    Column("#ClientId", "clientId"),
    Column("#Version", "version", version_text),
    Column("#ConsumerRunningInfoFile", "file"),
)
SUBSCRIPTION_COLUMNS = (
    Column("#Topic", "topic"),
    Column("#ClassFilter", "classFilterMode"),
    Column("#SubExpression", "subString"),
)
QUEUE_COLUMNS = (
    Column("#Topic", "topic"),
    Column("#Broker Name", "brokerName"),
    Column("#QID", "queueId", right=True),
    Column("#Consumer Offset", "commitOffset", right=True),
    Column("#Cached", "cachedMsgCount", right=True),
    Column("#MiB", "cachedMsgSizeInMiB", right=True),
    Column("#Locked", "locked"),
    Column("#Dropped", "droped"),
)
RATE_COLUMNS = (
    Column("#Topic", "topic"),
    Column("#Pull RT", "pullRT", number, right=True),
    Column("#Pull TPS", "pullTPS", number, right=True),
    Column("#Consume RT", "consumeRT", number, right=True),
    Column("#ConsumeOK TPS", "consumeOKTPS", number, right=True),
    Column("#ConsumeFailed TPS", "consumeFailedTPS", number, right=True),
    Column("#ConsumeFailedMsgsInHour", "consumeFailedMsgs", right=True),
)


@command("consumerStatus")
@namesrv_option
@broker_option
@group_option("--consumerGroup")
@click.option("-i", "--clientId", "client_id", metavar="ID", help="This member alone, in full.")
@click.option("-s", "--jstack", is_flag=True, help="With the stacks of the member's threads.")
@format_option
def consumer_status(
    namesrv: tuple[str, ...],
    broker: str | None,
    group: str,
    client_id: str | None,
    jstack: bool,
    output_format: str,
) -> None:
    """Shows what a consumer group's members are doing.

    Asks each member through a broker.  Each one's account goes to a file, ./TIME/CLIENTID; what is wrong
    is said here: subscriptions that differ, queues that are not locked, members that are stuck.
    """
    with MQAdmin(namesrv) as admin:
        addrs = [broker] if broker is not None else group_addrs(admin, group)
        if client_id is not None:
            info = running_info(admin, group, client_id, addrs, jstack)
            echo(to_json(info_tree(info)) if output_format == "json" else info_text(info))
            return
        members = consumer_connection(admin, group, broker).connection_set
        found, complete = ask_each(
            members, lambda member: running_info(admin, group, member.client_id, addrs, jstack)
        )
    infos = {member.client_id: info for member, info in found}
    findings = [*wrong_subscriptions(infos, wall_clock_ms()), *wrong_queues(infos, wall_clock_ms())]
    if output_format == "json":
        echo(
            to_json(
                {"members": {name: info_tree(info) for name, info in infos.items()}, "findings": findings}
            )
        )
    else:
        table = Table(MEMBER_COLUMNS)
        directory = Path(str(wall_clock_ms()))
        directory.mkdir()
        for index, (member, info) in enumerate(found, 1):
            file = directory / escaped(member.client_id.replace("/", "_"))
            file.write_text(info_text(info))
            table.add(index, member.client_id, member.version, str(file))
        echo(table.text() + "\n")
        echo(
            "\n".join(map(escaped, findings))
            or "Same subscription in the same group of consumer\n\nRebalance OK"
        )
    if not complete:
        sys.exit(1)


def info_tree(info: ConsumerRunningInfo) -> dict[str, object]:
    """A tree with a list in place of the table whose keys are queues."""
    queues = [{**queue.tree(), **process.tree()} for queue, process in info.mq_table.items()]
    return {**info.tree(), "mqTable": queues}


def info_text(info: ConsumerRunningInfo) -> str:
    """A text with the parts and titles of stock mqadmin."""
    subscriptions, queues, rates = Table(SUBSCRIPTION_COLUMNS), Table(QUEUE_COLUMNS), Table(RATE_COLUMNS)
    for data in sorted(info.subscription_set, key=lambda data: data.topic):
        subscriptions.add(data.topic, data.class_filter_mode, data.sub_string)
    for queue, process in sorted(info.mq_table.items(), key=lambda item: item[0]):
        queues.add(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            process.commit_offset,
            process.cached_msg_count,
            process.cached_msg_size_in_mib,
            process.locked,
            process.droped,
        )
    for topic, status in sorted(info.status_table.items()):
        tree = status.tree()
        rates.add(topic, *(tree[column.key] for column in RATE_COLUMNS[1:]))
    properties = "\n".join(f"{name:<40}: {value}" for name, value in sorted(info.properties.items()))
    parts = {
        "Consumer Properties": properties,
        "Consumer Subscription": subscriptions.text(),
        "Consumer Offset and MQ Detail": queues.text(),
        "Consumer RT&TPS": rates.text(),
    }
    if info.jstack is not None:
        parts["Consumer jstack"] = info.jstack
    return "\n\n\n".join(f"#{title}#\n{text}" for title, text in parts.items())


def wrong_subscriptions(infos: Mapping[str, ConsumerRunningInfo], now_ms: int) -> Iterator[str]:
    """Finds members of one push group with different subscriptions: they lose messages.  Pure."""
    settled = {
        name: info
        for name, info in infos.items()
        if info.properties.get(CONSUME_TYPE) == PUSH and now_ms - started_ms(info) > SETTLED_MS
    }
    seen = {
        frozenset((data.topic, data.sub_string) for data in info.subscription_set)
        for info in settled.values()
    }
    if len(seen) > 1:
        yield "WARN: Different subscription in the same group of consumer!!!"
    if frozenset() in seen:
        yield "WARN: a consumer subscribes to nothing"


def started_ms(info: ConsumerRunningInfo) -> int:
    text = info.properties.get(START_TIMESTAMP, "")
    return int(text) if text.isdecimal() else 0


def wrong_queues(infos: Mapping[str, ConsumerRunningInfo], now_ms: int) -> Iterator[str]:
    """Finds queues that wait for their lock, or whose messages nobody consumes.  Pure."""
    for name, info in infos.items():
        if info.properties.get(CONSUME_TYPE) != PUSH:
            continue
        orderly = info.properties.get(CONSUME_ORDERLY, "").lower() == "true"
        for queue, process in sorted(info.mq_table.items(), key=lambda item: item[0]):
            place = f"{name} {queue.topic} {queue.broker_name} {queue.queue_id}"
            idle_ms = now_ms - process.last_consume_timestamp
            if orderly and not process.locked:
                waiting_ms = now_ms - process.last_lock_timestamp
                yield f"{place} can't lock for a while, {waiting_ms}ms"
            elif orderly and process.droped and process.try_unlock_times > 0:
                yield f"{place} unlock {process.try_unlock_times} times, still failed"
            elif not orderly and idle_ms > STUCK_MS and process.cached_msg_count > 0:
                yield f"{place} can't consume for a while, maybe blocked, {idle_ms}ms"
