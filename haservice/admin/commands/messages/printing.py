"""`mqadmin printMsg`, `printMsgByQueue`: one line for each message, as stock mqadmin prints it."""

from __future__ import annotations

import codecs
import sys
from collections import Counter

import click

from commitlog.kernel.records import StoredMessage
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.messages.reading import as_far_as_sound, message_fields
from haservice.admin.commands.topics.routing import readable_queues
from haservice.client.admin import TOOLS_GROUP
from haservice.client.raw_sends import SendQueue
from haservice.client.reading import body_of, from_queue, tag_of
from haservice.terminal.options import (
    command,
    format_option,
    long_format_option,
    namesrv_option,
    time_option,
    topic_option,
    truth_option,
)
from haservice.terminal.output import Column, Table, echo_line, plain, show, to_json_line

TAG_COLUMNS = (Column("#Tag", "tag"), Column("#Count", "count", right=True))


def charset(_: click.Context, __: click.Parameter, name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise click.BadParameter(f"{name!r} is no character set; UTF-8 and GBK are some") from None


_begin_option = time_option(
    "-b",
    "--beginTimestamp",
    "begin_ms",
    help="Only from this time on: now, milliseconds since 1970, yyyy-MM-dd or yyyy-MM-dd#HH:mm:ss:SSS.",
)
_end_option = time_option("-e", "--endTimestamp", "end_ms", help="Only before this time.")
_charset_option = click.option(
    "-c",
    "--charsetName",
    "charset",
    default="UTF-8",
    show_default=True,
    callback=charset,
    help="Of the bodies.",
)
_expression_option = click.option(
    "-s", "--subExpression", "expression", default="*", show_default=True, help="Tags: TagA || TagB."
)


def line_of(message: StoredMessage, charset: str, with_body: bool, output_format: str) -> str:
    fields = message_fields(message)
    if output_format == "json":
        return to_json_line(
            {**fields, "body": body_of(message).decode(charset, "replace")} if with_body else fields
        )
    body = body_of(message).decode(charset, "replace") if with_body else "NOT PRINT BODY"
    listed = ", ".join(
        f"{name}={plain(value)}" for name, value in fields.items() if not name.startswith("body")
    )
    return f"MSGID: {fields['properties'].get('UNIQ_KEY', fields['msgId'])} [{listed}] BODY: {body}"


@command("printMsg")
@namesrv_option
@topic_option
@_begin_option
@_end_option
@_charset_option
@_expression_option
@truth_option("-d", "--printBody", "with_body", default=True, help="With the bodies.")
@format_option
def print_msg(
    namesrv: tuple[str, ...],
    topic: str,
    begin_ms: int | None,
    end_ms: int | None,
    charset: str,
    expression: str,
    with_body: bool,
    output_format: str,
) -> None:
    """Prints a topic's messages, queue by queue.

    Each queue from its first message, or -b, to where it ended when reading began, or -e.  No consumer
    group's offset is moved.  A queue ends before a message that is damaged at its broker; the exit code is
    then 1.
    """
    damaged: list[SendQueue] = []
    with MQAdmin(namesrv) as admin:
        for queue in readable_queues(admin, topic, None, None):
            if output_format == "table":
                echo_line(f"-------- {queue.broker_name} at {queue.addr}, queue {queue.queue_id} --------")
            with as_far_as_sound(queue, damaged):
                for message in from_queue(
                    admin, topic, queue, TOOLS_GROUP, None, begin_ms, end_ms, expression
                ):
                    echo_line(line_of(message, charset, with_body, output_format))
    if damaged:
        sys.exit(1)


@command("printMsgByQueue")
@namesrv_option
@topic_option
@click.option("-a", "--brokerName", "name", metavar="NAME", required=True, help="The broker's name.")
@click.option(
    "-i", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="The queue's number."
)
@_begin_option
@_end_option
@_charset_option
@_expression_option
@truth_option("-p", "--print", "prints", default=False, help="Print the messages.")
@truth_option("-d", "--printBody", "with_body", default=False, help="With the bodies.")
@truth_option("-f", "--calculate", "counts", default=False, help="Count the messages of each tag.")
@long_format_option
def print_msg_by_queue(
    namesrv: tuple[str, ...],
    topic: str,
    name: str,
    queue_id: int,
    begin_ms: int | None,
    end_ms: int | None,
    charset: str,
    expression: str,
    prints: bool,
    with_body: bool,
    counts: bool,
    output_format: str,
) -> None:
    """Prints a queue's messages, or counts them.

    -p prints them, with their bodies by -d, and -f counts them by tag; without any of these nothing is
    shown.
    """
    tags: Counter[str] = Counter()
    with MQAdmin(namesrv) as admin:
        for queue in readable_queues(admin, topic, name, queue_id):
            for message in from_queue(admin, topic, queue, TOOLS_GROUP, None, begin_ms, end_ms, expression):
                tags[tag_of(message) or ""] += 1
                if prints:
                    echo_line(line_of(message, charset, with_body, output_format))
    if counts:
        show(Table(TAG_COLUMNS, list(tags.most_common())), output_format)
