"""`mqadmin resetOffsetByTime`, `skipAccumulatedMessage`, `cloneGroupOffset`: move a group's offsets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import click

from haservice.admin.calls import MQAdmin, readable_addr
from haservice.admin.commands.groups.group_calls import STATS_TIMEOUT_S, consume_stats
from haservice.errors import AnswerError
from haservice.remoting.bodies.admin import ConsumeStats, GroupList, QueueProgress, ResetOffsetBody
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.codes import LanguageCode, RequestCode, ResponseCode
from haservice.remoting.headers.admin import ConsumeStatsHeader, ResetOffsetHeader
from haservice.remoting.headers.clients import (
    QueueHeader,
    SearchOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from haservice.terminal.options import (
    command,
    format_option,
    group_option,
    long_format_option,
    namesrv_option,
    timestamp_ms,
    topic_option,
    truth_option,
)
from haservice.terminal.output import Column, Table, echo, show

# Stands for the end of a queue.
END = -1

RESET_COLUMNS = (
    Column("#brokerName", "brokerName"),
    Column("#queueId", "queueId", right=True),
    Column("#brokerOffset", "brokerOffset", right=True),
    Column("#consumerOffset", "consumerOffset", right=True),
    Column("#offset", "offset", right=True),
    Column("#members", "online", lambda online: "told" if online else "offline"),
)
CLONE_COLUMNS = (RESET_COLUMNS[0], RESET_COLUMNS[1], RESET_COLUMNS[4])

_force_option = truth_option(
    "-f", "--force", default=True, help="false: groups are only sent back, never forward."
)


def reset_time(_: click.Context, __: click.Parameter, text: str) -> int:
    return END if text == "now" else timestamp_ms(text)


@command("resetOffsetByTime")
@namesrv_option
@group_option("--group")
@topic_option
@click.option(
    "-s",
    "--timestamp",
    "when_ms",
    metavar="TIME",
    required=True,
    callback=reset_time,
    help="now, milliseconds since 1970, yyyy-MM-dd or yyyy-MM-dd#HH:mm:ss:SSS.",
)
@_force_option
@click.option("-c", "--cplus", "cplus", is_flag=True, help="The consumers are C++ clients.")
@long_format_option
def reset_offset_by_time(
    namesrv: tuple[str, ...],
    group: str,
    topic: str,
    when_ms: int,
    force: bool,
    cplus: bool,
    output_format: str,
) -> None:
    """Sends a consumer group back, or forward, to a time.

    Its members need not be restarted: the brokers tell those that are online.  Of a group that is offline
    the offsets are changed at the brokers, queue by queue.  Messages stored from TIME on are consumed
    (again); `now` is the end of the queues.
    """
    if output_format == "table":
        echo(
            f"rollback consumer offset by specified group[{group}], topic[{topic}], "
            f"force[{str(force).lower()}], timestamp(long)[{when_ms}]"
        )
    with MQAdmin(namesrv) as admin:
        show(reset(admin, group, topic, when_ms, force, cplus), output_format)


@command("skipAccumulatedMessage")
@namesrv_option
@group_option("--group")
@topic_option
@_force_option
@long_format_option
def skip_accumulated_message(
    namesrv: tuple[str, ...], group: str, topic: str, force: bool, output_format: str
) -> None:
    """Skips what a consumer group has not consumed yet.

    As resetOffsetByTime -s now: the group goes on with messages that are stored from here on.
    """
    with MQAdmin(namesrv) as admin:
        show(reset(admin, group, topic, END, force), output_format)


def reset(admin: MQAdmin, group: str, topic: str, when_ms: int, force: bool, cplus: bool = False) -> Table:
    """Broker by broker: a broker with members online tells them (222); else queue by queue."""
    table = Table(RESET_COLUMNS)
    ext = ResetOffsetHeader(topic, group, when_ms, force).encode()
    for data in admin.route(topic).broker_datas:
        if not data.broker_addrs:
            continue
        addr = readable_addr(data)
        try:
            answer = admin.call(
                addr,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                ext,
                timeout_s=STATS_TIMEOUT_S,
                language=LanguageCode.CPP if cplus else None,
            )
        except AnswerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            for row in reset_offline(admin, addr, group, topic, when_ms, force):
                table.add(*row, False)
            continue
        if answer.body:
            for queue, offset in sorted(ResetOffsetBody.decode(answer.body).offset_table.items()):
                table.add(queue.broker_name, queue.queue_id, None, None, offset, True)
    return table


class OffsetMove(NamedTuple):
    """Where a group stands in one queue, and where a reset sends it; `is_first`: it has no offset at the broker yet."""

    queue: MessageQueue
    progress: QueueProgress
    offset: int
    is_first: bool

    def moves(self, force: bool) -> bool:
        """Groups are only sent back unless the reset is forced."""
        return force or self.offset <= self.progress.consumer_offset


def reset_offline(
    admin: MQAdmin, addr: str, group: str, topic: str, when_ms: int, force: bool
) -> list[tuple[str, int, int, int, int]]:
    """Moves the offsets at one broker; rows are its name, queue, the queue's end, old and new offset."""
    done = []
    for move in moves_at(admin, addr, group, topic, when_ms):
        queue, progress, offset, _ = move
        if move.moves(force):
            update_offset(admin, addr, group, queue, offset)
        else:
            offset = progress.consumer_offset
        done.append(
            (queue.broker_name, queue.queue_id, progress.broker_offset, progress.consumer_offset, offset)
        )
    return done


def moves_at(admin: MQAdmin, addr: str, group: str, topic: str, when_ms: int) -> Iterator[OffsetMove]:
    """What a reset to this time would do at one broker, queue by queue.  Changes nothing."""
    queues, is_first = queue_progress(admin, addr, group, topic)
    for queue, progress in sorted(queues.items(), key=lambda item: item[0]):
        place = QueueHeader(topic, queue.queue_id)
        if when_ms == END:
            offset = admin.offset(addr, RequestCode.GET_MAX_OFFSET, place)
        else:
            search = SearchOffsetHeader(topic, queue.queue_id, when_ms, SearchOffsetHeader.LOWER)
            offset = admin.offset(addr, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
        yield OffsetMove(queue, progress, offset, is_first)


def queue_progress(
    admin: MQAdmin, addr: str, group: str, topic: str
) -> tuple[dict[MessageQueue, QueueProgress], bool]:
    """The group's queues at a broker; if it has none yet (True), the topic's queues from their first message."""
    found: dict[MessageQueue, QueueProgress] = {}
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    if group in admin.ask(addr, code, TopicHeader(topic), into=GroupList).group_list:
        # Of this topic alone: the group may have thousands.
        header = ConsumeStatsHeader(group, topic)
        code = RequestCode.GET_CONSUME_STATS
        stats = admin.ask(addr, code, header, into=ConsumeStats, timeout_s=STATS_TIMEOUT_S)
        found = {queue: one for queue, one in stats.offset_table.items() if queue.topic == topic}
    if found:
        return found, False
    return {
        queue: QueueProgress(offset.max_offset, offset.min_offset)
        for queue, offset in admin.topic_stats(addr, topic).offset_table.items()
    }, True


def update_offset(admin: MQAdmin, addr: str, group: str, queue: MessageQueue, offset: int) -> None:
    header = UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, offset)
    admin.tell(addr, RequestCode.UPDATE_CONSUMER_OFFSET, header)


@command("cloneGroupOffset")
@namesrv_option
@click.option("-s", "--srcGroup", "source", metavar="GROUP", required=True, help="Whose offsets to take.")
@click.option("-d", "--destGroup", "group", metavar="GROUP", required=True, help="Who gets them.")
@topic_option
@truth_option("-o", "--offline", default=False, help="Taken, as in stock, without effect.")
@format_option
def clone_group_offset(
    namesrv: tuple[str, ...], source: str, group: str, topic: str, offline: bool, output_format: str
) -> None:
    """Gives a consumer group another one's offsets.

    Of one topic.  The group that gets them should be offline: members that are online write their own
    offsets over these within 5 s.
    """
    del offline
    with MQAdmin(namesrv) as admin:
        addrs = {data.broker_name: readable_addr(data) for data in admin.route(topic).broker_datas}
        stats, complete = consume_stats(admin, source, topic)
        done = [
            (queue, progress.consumer_offset)
            for queue, progress in sorted(stats.offset_table.items(), key=lambda item: item[0])
            if progress.consumer_offset >= 0 and queue.topic == topic and queue.broker_name in addrs
        ]
        if not done:
            raise click.ClickException(
                f"group {source} has no offsets of topic {topic}\n"
                f"  mqadmin consumerProgress -g {source} shows them"
            )
        for queue, offset in done:
            update_offset(admin, addrs[queue.broker_name], group, queue, offset)
    table = Table(CLONE_COLUMNS, [(queue.broker_name, queue.queue_id, offset) for queue, offset in done])
    if output_format == "table":
        echo(f"clone group offset success. srcGroup[{source}], destGroup=[{group}], topic[{topic}]")
    show(table, output_format)
    if not complete:
        sys.exit(1)
