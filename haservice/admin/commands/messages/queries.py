"""`mqadmin queryMsgById`, `queryMsgByKey`, `queryMsgByUniqueKey`, `queryMsgByOffset`: look up one message.

Below a message they show which consumer groups have it, if they can ask a nameserver.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from commitlog.kernel import records
from commitlog.kernel.records import StoredMessage
from haservice.admin.calls import MQAdmin, readable_addr
from haservice.admin.commands.messages.reading import message_fields
from haservice.admin.commands.messages.send_and_consume import resend
from haservice.admin.commands.messages.tracking import tracks
from haservice.admin.fanout import ask_each
from haservice.client.admin import TOOLS_GROUP
from haservice.client.message import decode_all
from haservice.client.reading import body_of
from haservice.errors import RemotingError
from haservice.printable import escaped
from haservice.remoting.bodies.admin import ConsumeDirectlyResult
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.admin import ConsumeDirectlyHeader, ResumeHalfMessageHeader
from haservice.remoting.headers.clients import QueryMessageHeader
from haservice.terminal.explain import said_by_system
from haservice.terminal.options import (
    command,
    format_option,
    group_option,
    namesrv_option,
    one_broker_option,
    topic_option,
    truth_option,
)
from haservice.terminal.output import (
    Column,
    Table,
    echo,
    echo_line,
    java_map,
    local_time,
    preview,
    show,
    show_pairs,
    shown_addr,
    to_json,
)

# As stock mqadmin asks; a broker gives at most 32 for a unique key.
MATCHES_MAX = 64
UNIQUE_MATCHES_MAX = 32
UNIQUE_KEY_EXT = "_UNIQUE_KEY_QUERY"
FOREVER_MS = 2**63 - 1
QUERY_TIMEOUT_S = 18.0
CLIENT_TIMEOUT_S = 15.0
PORT_MAX = 65535
# The code of RocketMQ's clients for a message that no index has.
NO_MESSAGE = 208
MENDING = "its index is damaged and is built again from the log: messages may be missing here, ask again soon"
# Where stock mqadmin saves the bodies of the messages that it shows.
BODIES = Path("/tmp/rocketmq/msgbodys")

KEY_COLUMNS = (
    Column("#Message ID", "msgId"),
    Column("#QID", "queueId", right=True),
    Column("#Offset", "queueOffset", right=True),
    Column("#OffsetID", "offsetMsgId"),
)

_consumer_option = group_option(
    "--consumerGroup", required=False, help="With -d: let this group's member consume the message now."
)
_client_option = click.option(
    "-d", "--clientId", "client_id", metavar="ID", help="The member, as consumerConnection shows it."
)


@command("queryMsgById")
@namesrv_option
@click.option(
    "-i",
    "--msgId",
    "message_ids",
    metavar="ID",
    required=True,
    help="The offset message id, or some, parted by commas.",
)
@one_broker_option("--brokerAddr", help="Ask this broker, such as a slave, instead of the one in the id.")
@_consumer_option
@_client_option
@truth_option("-s", "--sendMessage", "send_again", default=False, help="Send the message once more.")
@click.option("-u", "--unitName", "unit", help="Taken, as stock users type it; it changes nothing here.")
@format_option
def query_message_by_id(
    namesrv: tuple[str, ...],
    message_ids: str,
    broker: str | None,
    group: str | None,
    client_id: str | None,
    send_again: bool,
    unit: str | None,
    output_format: str,
) -> None:
    """Shows a message by its offset message id.

    The id is what a send answers, 32 hex digits or 56 with IPv6: the broker's address, and where in its
    log the message lies.  After a failover the slave has it at the same place: -b asks it.  The body is
    saved whole to the file that is named, as RocketMQ's tools do, and its start is shown.
    """
    del unit
    with MQAdmin(namesrv) as admin:
        for message_id in (part.strip() for part in message_ids.split(",")):
            addr, physical_offset = _place(message_id)
            if group is not None and client_id is not None:
                consume_directly(admin, broker or addr, group, client_id, message_id, output_format)
                continue
            message = records.decode(admin.view(broker or addr, physical_offset))
            if send_again:
                resend(admin, message, output_format)
            else:
                show_message(admin, message, output_format, asks=bool(namesrv))


def _place(message_id: str) -> tuple[str, int]:
    """The broker's address and the physical offset."""
    try:
        host, port, physical_offset = records.parse_message_id(message_id)
    except ValueError:
        raise click.ClickException(
            f"{message_id!r} is no offset message id: 32 or 56 hexadecimal digits, as sendMessage shows"
        ) from None
    if not 0 < port <= PORT_MAX or physical_offset < 0:
        raise click.ClickException(
            f"{message_id} holds no broker address: it may be a client's unique key (UNIQ_KEY)\n"
            f"  mqadmin queryMsgByUniqueKey -t TOPIC -i {message_id} looks for those"
        )
    return f"{host}:{port}", physical_offset


@command("queryMsgByKey")
@namesrv_option
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="One of the message's keys.")
@format_option
def query_message_by_key(namesrv: tuple[str, ...], topic: str, key: str, output_format: str) -> None:
    """Lists messages with a key.

    At most 64 of each broker, the newest; queryMsgById shows one.
    """
    with MQAdmin(namesrv) as admin:
        messages = query(admin, topic, key, MATCHES_MAX)
    if not messages:
        raise not_found(topic, f"message with key {key}")
    table = Table(KEY_COLUMNS)
    for message in messages:
        table.add(
            unique_key(message) or message.message_id,
            message.queue_id,
            message.queue_offset,
            message.message_id,
        )
    show(table, output_format)


@command("queryMsgByUniqueKey")
@namesrv_option
@topic_option
@click.option("-i", "--msgId", "message_id", metavar="ID", required=True, help="The client's id (UNIQ_KEY).")
@_consumer_option
@_client_option
@click.option("-a", "--showAll", "show_all", is_flag=True, help="All of that id, 32 at most.")
@format_option
def query_message_by_unique_key(
    namesrv: tuple[str, ...],
    topic: str,
    message_id: str,
    group: str | None,
    client_id: str | None,
    show_all: bool,
    output_format: str,
) -> None:
    """Shows a message by the id its client gave it.

    What a producer's SendResult calls msgId.  A message that was retried is stored more than once.
    """
    with MQAdmin(namesrv) as admin:
        found = query(admin, topic, message_id, UNIQUE_MATCHES_MAX, unique=True)
        if not found:
            raise not_found(topic, f"message {message_id}")
        for message in found if show_all else found[:1]:
            if group is not None and client_id is not None:
                addr, _ = _place(message.message_id)
                consume_directly(admin, addr, group, client_id, message.message_id, output_format)
            else:
                show_message(admin, message, output_format, asks=True)


@command("queryMsgByOffset")
@namesrv_option
@topic_option
@click.option("-b", "--brokerName", "name", metavar="NAME", required=True, help="The broker's name.")
@click.option(
    "-i", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="The queue's number."
)
@click.option("-o", "--offset", type=click.IntRange(0), required=True, help="The queue offset.")
@format_option
def query_message_by_offset(
    namesrv: tuple[str, ...], topic: str, name: str, queue_id: int, offset: int, output_format: str
) -> None:
    """Shows a message by its place in a queue."""
    with MQAdmin(namesrv) as admin:
        datas = [
            data for data in admin.route(topic).broker_datas if data.broker_name == name and data.broker_addrs
        ]
        if not datas:
            raise click.ClickException(
                f"topic {topic} is not at a broker {name}\n  mqadmin topicRoute -t {topic} shows where it is"
            )
        pulled = admin.pull(readable_addr(datas[0]), topic, queue_id, offset, 1, TOOLS_GROUP)
        message = next(decode_all(pulled.records), None) if pulled.code == ResponseCode.SUCCESS else None
        if message is None or message.queue_offset != offset:
            raise click.ClickException(
                f"queue {queue_id} of {topic} on {name} has no message {offset}\n"
                f"  mqadmin topicStatus -t {topic} shows its bounds"
            )
        show_message(admin, message, output_format, asks=True)


def query(
    admin: MQAdmin, topic: str, key: str, count: int, *, unique: bool = False, end_ms: int = FOREVER_MS
) -> list[StoredMessage]:
    """12 to every broker of the topic, without the index's false hits; the oldest first."""
    return [found for _, found in query_each(admin, topic, key, count, unique=unique, end_ms=end_ms)]


def query_each(
    admin: MQAdmin, topic: str, key: str, count: int, *, unique: bool = False, end_ms: int = FOREVER_MS
) -> list[tuple[str, StoredMessage]]:
    """As `query`, each message with the address of the broker that gave it."""
    ext = QueryMessageHeader(topic, key, count, 0, end_ms).encode() | {UNIQUE_KEY_EXT: str(unique).lower()}
    addrs = [readable_addr(data) for data in admin.route(topic).broker_datas if data.broker_addrs]
    expected = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
    found, _ = ask_each(
        addrs,
        lambda addr: admin.call(addr, RequestCode.QUERY_MESSAGE, ext, expected, timeout_s=QUERY_TIMEOUT_S),
    )
    for addr, answer in found:
        if answer.ext.get("indexMending") == "true":
            echo(f"NOTE: {shown_addr(addr)}: {MENDING}", err=True)
    messages = [(addr, message) for addr, answer in found for message in decode_all(answer.body)]
    matching = [one for one in messages if one[1].topic == topic and has_key(one[1], key, unique)]
    return sorted(matching, key=lambda one: one[1].store_timestamp_ms)


def not_found(topic: str, what: str) -> click.ClickException:
    return click.ClickException(
        f"CODE: {NO_MESSAGE}  topic {topic} has no {what}, or it is not indexed (any more)"
    )


def has_key(message: StoredMessage, key: str, unique: bool) -> bool:
    """Whether the message has this key: the index has only hashes, so a broker may give other messages."""
    properties = records.decode_properties(message.properties)
    return properties.get("UNIQ_KEY") == key or (not unique and key in properties.get("KEYS", "").split(" "))


def unique_key(message: StoredMessage) -> str | None:
    return records.decode_properties(message.properties).get("UNIQ_KEY")


def show_message(admin: MQAdmin, message: StoredMessage, output_format: str, *, asks: bool) -> None:
    """Shows the message; if it `asks`, also the groups that have consumed it, by a nameserver."""
    known = []
    failure = None
    if asks:
        try:
            known = tracks(admin, message)
        except RemotingError as error:
            failure = str(error)
    if output_format == "json":
        listed = [
            {"consumerGroup": one.group, "trackType": one.kind, "exceptionDesc": one.failure} for one in known
        ]
        show_pairs(message_fields(message) | ({"messageTracks": listed} if asks else {}), "json")
        return
    for name, value in _message_lines(message).items():
        echo_line(f"{name + ':':<20} {value}")
    if asks:
        told = [str(one) for one in known] or [f"WARN: {failure or 'No Consumer'}"]
        echo("\n\n" + "\n".join(map(escaped, told)))


def save_body(message: StoredMessage) -> str:
    """Saves the whole body; says where, or why not: the message is shown in any case.

    Others can open the directory, and bodies are not for them: the file is always a new one of our own.
    """
    path = BODIES / message.message_id
    try:
        BODIES.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(body_of(message))
    except OSError as error:
        return f"- (not saved: {said_by_system(error)})"
    return str(path)


def _message_lines(message: StoredMessage) -> dict[str, Any]:
    """The lines of stock mqadmin's queryMsgById, in its order; the last two are ours."""
    fields = message_fields(message)
    properties = fields["properties"]
    return {
        "OffsetID": fields["msgId"],
        "Topic": message.topic,
        "Tags": f"[{properties.get('TAGS', 'null')}]",
        "Keys": f"[{properties.get('KEYS', 'null')}]",
        "Queue ID": message.queue_id,
        "Queue Offset": message.queue_offset,
        "CommitLog Offset": message.physical_offset,
        "Reconsume Times": message.reconsume_times,
        "Born Timestamp": local_time(message.born_timestamp_ms),
        "Store Timestamp": local_time(message.store_timestamp_ms),
        "Born Host": fields["bornHost"],
        "Store Host": fields["storeHost"],
        "System Flag": message.sys_flag,
        "Properties": java_map(properties),
        "Message Body Path": save_body(message),
        "Body Size": len(body_of(message)),
        "Body": preview(body_of(message), limit=2000),
    }


def consume_directly(
    admin: MQAdmin, addr: str, group: str, client_id: str, message_id: str, output_format: str
) -> None:
    """309: the broker hands the message to the member at once, whatever the member's offsets are."""
    result = admin.ask(
        addr,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ConsumeDirectlyHeader(group, client_id, message_id),
        into=ConsumeDirectlyResult,
        timeout_s=CLIENT_TIMEOUT_S,
    )
    if output_format == "json":
        echo(to_json({"msgId": message_id, **result.tree()}))
        return
    echo_line(
        f"ConsumeMessageDirectlyResult [order={str(result.order).lower()}, "
        f"autoCommit={str(result.auto_commit).lower()}, consumeResult={result.consume_result}, "
        f"remark={result.remark or 'null'}, spentTimeMills={result.spent_time_mills}]"
    )


@command("resumeCheckHalfMessage")
@namesrv_option
@click.option("-i", "--msgId", "message_id", metavar="ID", required=True, help="The offset message id.")
@format_option
def resume_check_half_message(namesrv: tuple[str, ...], message_id: str, output_format: str) -> None:
    """Puts an undecided transaction back, to be checked again.

    A half message that nobody decided lies in TRANS_CHECK_MAX_TIME_TOPIC; its broker puts it back, as if it
    had never been asked about.
    """
    addr, _ = _place(message_id)
    with MQAdmin(namesrv) as admin:
        admin.tell(addr, RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeHalfMessageHeader(message_id))
    if output_format == "json":
        show_pairs({"msgId": message_id, "brokerAddr": addr}, output_format)
    else:
        echo(f"resume check half message [{message_id}] at {addr} success.")
