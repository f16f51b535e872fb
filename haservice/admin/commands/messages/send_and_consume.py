"""`mqadmin sendMessage`, `consumeMessage`: messages in, and messages out."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from commitlog.kernel import layout, records
from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.messages.lines import lines_of
from haservice.admin.commands.messages.reading import as_far_as_sound, message_fields
from haservice.admin.commands.messages.trace_entries import sent_entry
from haservice.admin.commands.topics.routing import readable_queues, writable_queues
from haservice.broker.topics.table import TRACE_TOPIC
from haservice.client.admin import TOOLS_GROUP
from haservice.client.raw_sends import (
    IN_FLIGHT,
    NO_ANSWER,
    SEND_OK,
    STORED,
    UNREACHABLE,
    RawMessage,
    SendQueue,
    Sent,
    Tally,
    send_all,
    unique_key,
)
from haservice.client.reading import body_of, from_queue
from haservice.errors import AnswerError, RemotingUnreachable
from haservice.ledger import ConsumedLedger, LedgerError, SentLedger
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.terminal.access import access
from haservice.terminal.explain import ACL_REFUSAL, advise
from haservice.terminal.interrupt import run
from haservice.terminal.options import (
    F,
    command,
    format_option,
    namesrv_option,
    time_option,
    topic_option,
    truth_option,
)
from haservice.terminal.output import counted, echo, echo_line, human_bytes, local_time, preview, to_json_line

INTERRUPTED = 130  # the shell's exit code for SIGINT

# The bar is drawn so many times; for a pipe, whose length is unknown, once per so many bytes.
BAR_STEPS = 200
BAR_STEP_BYTES = 64 * 1024

SENT_LINE = "{:<24} {:>5}  {:<20} {:>10}  {}"
READ_LINE = "{:<20} {:>4} {:>10}  {:<32}  {:<23}  {:<12} {:<16} {}"

broker_or_name_option = click.option(
    "-b",
    "--broker",
    "--brokerName",
    "broker",
    metavar="NAME|ADDR",
    help="One broker: its name (with -n), or host:port.",
)


def ledger_option(words: str) -> Callable[[F], F]:
    return click.option(
        "--ledger", "ledger_path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help=words
    )


# -- sendMessage ---------------------------------------------------------------------------------------


@command("sendMessage")
@click.argument("file", required=False, type=click.Path(allow_dash=True, dir_okay=False, path_type=Path))
@namesrv_option
@broker_or_name_option
@click.option("-i", "--qid", "queue_id", type=click.IntRange(0), help="One queue; else all in turn.")
@topic_option
@click.option("-p", "--body", help="The body of one message, as UTF-8.")
@click.option("-k", "--key", "keys", help="Keys, separated by blanks.")
@click.option("-c", "--tags", help="The tag.")
@truth_option("-m", "--msgTraceEnable", "traced", default=False, help="Write a trace of the message of -p.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 4096),
    default=IN_FLIGHT,
    show_default=True,
    help="Unanswered at most.",
)
@ledger_option("Note each message and its answer in this file, for mqpipeline audit-loss.")
@format_option
def send_message(
    file: Path | None,
    namesrv: tuple[str, ...],
    broker: str | None,
    queue_id: int | None,
    topic: str,
    body: str | None,
    keys: str | None,
    tags: str | None,
    traced: bool,
    in_flight: int,
    ledger_path: Path | None,
    output_format: str,
) -> None:
    """Sends a message, or each line of a file.

    -p BODY is one message; each line of FILE is one, or of standard input with `-`.

    \b
      mqadmin sendMessage -n 127.0.0.1:9876 -t Greetings -p "hello"
      mqadmin sendMessage -n 127.0.0.1:9876 -t Lines README.md
      seq 100000 | mqadmin sendMessage -n 127.0.0.1:9876 -t Numbers -

    Empty lines are skipped.  Answers are counted by status.  If any is not SEND_OK, the exit code is 1.
    FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE mean: the message is stored on the
    master, and the rest of what the broker's mode promises is not proven.  A lost connection, no answer, or
    a broker that takes no messages ends the run: it says up to which line the input was sent.

    Ctrl-C ends a FILE with the same counts, counts what was in flight as NO_ANSWER, and exits with code 130.

    --ledger adds to its file what docs/pipeline.md says, before each message is sent and after its answer.  A
    ledger that can no longer be written (a full disk) ends the run with exit code 1.
    """
    if (body is None) == (file is None):
        raise click.UsageError("what to send?  One of -p BODY and FILE")
    if body == "":
        raise click.UsageError("an empty body is no message")
    properties = {name: value for name, value in (("KEYS", keys), ("TAGS", tags)) if value}
    with MQAdmin(namesrv) as admin:
        queues = writable_queues(admin, topic, broker, queue_id)
        trace_queues = writable_queues(admin, TRACE_TOPIC, None, None) if traced and body else []
    with nullcontext() if ledger_path is None else closing(SentLedger(ledger_path)) as ledger:
        if body is not None:
            message = RawMessage(body.encode(), properties)
            tally = _send_body(topic, queues, message, output_format, trace_queues, ledger)
        else:
            assert file is not None
            tally = _send_lines(topic, queues, file, properties, in_flight, output_format, ledger)
    if tally.interrupted:
        sys.exit(INTERRUPTED)
    if not tally.all_ok:
        sys.exit(1)


async def _one(message: RawMessage) -> AsyncIterator[RawMessage]:
    yield message


def _send_body(
    topic: str,
    queues: list[SendQueue],
    message: RawMessage,
    output_format: str,
    trace_queues: Sequence[SendQueue] = (),
    ledger: SentLedger | None = None,
) -> Tally:
    sent: list[Sent] = []
    message.properties.setdefault("UNIQ_KEY", unique_key(wall_clock_ms()))
    sending = send_all(topic, queues, _one(message), sent.append, in_flight=1, ledger=ledger, **access())
    tally = run(sending)
    (one,) = sent
    if trace_queues:
        key = message.properties["UNIQ_KEY"]
        trace = RawMessage(sent_entry(topic, message, one, tally.seconds).encode(), {"KEYS": key})
        run(send_all(TRACE_TOPIC, trace_queues, _one(trace), lambda _: None, in_flight=1, **access()))
    if output_format == "json":
        echo(to_json_line(_sent_object(one)))
    else:
        echo(SENT_LINE.format("#Broker Name", "#QID", "#Send Result", "#Offset", "#MsgId"))
        echo_line(
            SENT_LINE.format(
                one.queue.broker_name,
                one.queue_id if one.queue_id is not None else "-",
                one.status,
                "-" if one.queue_offset is None else one.queue_offset,
                one.message_id or one.remark or "-",
            )
        )
    if one.status != SEND_OK and one.remark:
        echo_line(f"{one.status}: {one.remark}", err=True)
    say_advice(tally, queues)
    return tally


def say_advice(tally: Tally, queues: Sequence[SendQueue]) -> None:
    """Says what to do if no message can be sent (broker unreachable, only TLS, or missing keys), and what
    an answer other than SEND_OK means.
    """
    addr = queues[0].addr
    for status, remark in tally.remarks.items():
        advice = None
        if status == UNREACHABLE:
            advice = advise(RemotingUnreachable(addr, remark or ""))
        elif ACL_REFUSAL in (remark or ""):
            advice = advise(AnswerError(addr, ResponseCode.SYSTEM_ERROR, remark))
        elif status in STORED:
            advice = advise(AnswerError(addr, ResponseCode[status], remark, RequestCode.SEND_MESSAGE_V2))
        if advice:
            echo(f"  {advice}", err=True)
    if tally.stopped:
        lost = tally.statuses[NO_ANSWER] + tally.statuses[UNREACHABLE]
        doubt = f"; {counted(lost, 'message')} without an answer may be stored" if lost else ""
        echo(f"  mqadmin check says what is wrong with the brokers{doubt}", err=True)


def _sent_object(one: Sent) -> dict[str, Any]:
    return {
        "brokerName": one.queue.broker_name,
        "queueId": one.queue_id,
        "sendStatus": one.status,
        "remark": one.remark,
        "queueOffset": one.queue_offset,
        "msgId": one.message_id,
    }


def _send_lines(
    topic: str,
    queues: list[SendQueue],
    file: Path,
    properties: dict[str, str],
    in_flight: int,
    output_format: str,
    ledger: SentLedger | None,
) -> Tally:
    """Sends each line as a message, with a progress bar: of the file's bytes, or endless for a pipe.

    Raises LedgerError after the counts are shown.
    """
    tally, read = Tally(), LinesRead()
    try:
        if str(file) == "-":
            _send_stream(topic, queues, sys.stdin.buffer, None, properties, in_flight, ledger, tally, read)
        else:
            with file.open("rb") as source:
                size = file.stat().st_size
                _send_stream(topic, queues, source, size, properties, in_flight, ledger, tally, read)
    except LedgerError:
        report(tally, output_format, read.line)
        raise
    report(tally, output_format, read.line)
    say_advice(tally, queues)
    return tally


@dataclass(slots=True)
class LinesRead:
    """The number of the last line of the input that was sent."""

    line: int = 0


def _send_stream(
    topic: str,
    queues: list[SendQueue],
    source: BinaryIO,
    size: int | None,
    properties: dict[str, str],
    in_flight: int,
    ledger: SentLedger | None,
    tally: Tally,
    read: LinesRead,
) -> None:
    async def messages() -> AsyncIterator[RawMessage]:
        async for line in lines_of(source):
            read.line += 1
            if line:
                yield RawMessage(line, properties)

    sent = itertools.count(1)
    started = time.monotonic()
    with click.progressbar(
        itertools.repeat(0),
        length=size or None,
        label=f"sending to {topic}" if sys.stderr.isatty() else "",
        file=sys.stderr,
        item_show_func=lambda count: _rate(count, started),
        update_min_steps=(size or BAR_STEPS * BAR_STEP_BYTES) // BAR_STEPS,
    ) as bar:
        sending = send_all(
            topic,
            queues,
            messages(),
            lambda one: bar.update(len(one.body) + 1, next(sent)),
            in_flight=in_flight,
            tally=tally,
            ledger=ledger,
            **access(),
        )
        try:
            run(sending)
        except KeyboardInterrupt:
            tally.interrupted = True


def _rate(count: int | None, started: float) -> str:
    return f"{(count or 0) / max(0.001, time.monotonic() - started):,.0f} messages/s"


def report(tally: Tally, output_format: str, last_line: int) -> None:
    """Shows the result of a run: counts by status, and the rate; and what was not sent."""
    rate = tally.sent / tally.seconds if tally.seconds > 0 else 0.0
    if output_format == "json":
        echo(
            to_json_line(
                {
                    "sent": tally.sent,
                    "bodyBytes": tally.body_bytes,
                    "seconds": round(tally.seconds, 3),
                    "messagesPerSecond": round(rate, 1),
                    "statuses": dict(tally.statuses),
                    "remarks": tally.remarks,
                    "stopped": tally.stopped,
                    "lastLine": last_line,
                }
            )
        )
        return
    for status, count in tally.statuses.most_common():
        remark = tally.remarks.get(status)
        echo_line(f"{status:<24} {count:>10}" + (f"  {remark}" if remark else ""))
    stored = sum(tally.statuses[status] for status in STORED)
    echo(
        f"{stored} of {counted(tally.sent, 'message')} stored, {human_bytes(tally.body_bytes)} of bodies, "
        f"in {tally.seconds:.2f} s: {rate:,.0f} messages/s"
    )
    if tally.stopped:
        echo(
            f"Stopped at the first failure that does not mend by itself.  Sent: the input up to line {last_line}; of"
            f" it {counted(tally.sent - stored, 'message')} without SEND_OK or its like.\n"
            f"NOT sent: what follows line {last_line}."
        )


# -- consumeMessage ------------------------------------------------------------------------------------


@command("consumeMessage")
@namesrv_option
@broker_or_name_option
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="One queue; else all, one by one.")
@topic_option
@click.option("-o", "--offset", type=click.IntRange(0), help="First queue offset; else the queue's first.")
@time_option(
    "-s",
    "--beginTimestamp",
    "begin_ms",
    help="Only from this time on: now, milliseconds since 1970, yyyy-MM-dd or yyyy-MM-dd#HH:mm:ss:SSS.",
)
@time_option("-e", "--endTimestamp", "end_ms", help="Only before this time.")
@click.option("-c", "--MessageNumber", "count", type=click.IntRange(1), help="This many messages at most.")
@click.option("-g", "--consumerGroup", "group", default=TOOLS_GROUP, show_default=True)
@ledger_option("Note each message in this file, for mqpipeline audit-loss --consumed.")
@format_option
def consume_message(
    namesrv: tuple[str, ...],
    broker: str | None,
    queue_id: int | None,
    topic: str,
    offset: int | None,
    begin_ms: int | None,
    end_ms: int | None,
    count: int | None,
    group: str,
    ledger_path: Path | None,
    output_format: str,
) -> None:
    """Reads messages, from master or slave.

    \b
      mqadmin consumeMessage -n 127.0.0.1:9876 -t Greetings
      mqadmin consumeMessage -b 127.0.0.1:10921 -t Greetings      from this broker, be it a slave

    Reads each queue from its first message, or from -o or -s, to where it ended when reading began.  If a
    master is unreachable, or does not answer within 5 s, the queues are read from a slave of the same name;
    standard error says from which.  A queue with a damaged message ends before it, and the exit code is 1.
    No consumer group's offset is moved.  -f json writes one object a line.
    """
    shown = 0
    damaged: list[SendQueue] = []
    if output_format == "table":
        echo(
            READ_LINE.format(
                "#Broker Name", "#QID", "#Offset", "#MsgId", "#StoreTime", "#Tags", "#Keys", "#Body"
            )
        )
    ledger = nullcontext() if ledger_path is None else closing(ConsumedLedger(ledger_path, group))
    with MQAdmin(namesrv) as admin, ledger as consumed:
        queues = readable_queues(admin, topic, broker, queue_id)
        for queue in queues:
            if shown == count:
                break
            with as_far_as_sound(queue, damaged):
                for message in from_queue(admin, topic, queue, group, offset, begin_ms, end_ms):
                    echo_line(_read_line(queue, message, output_format))
                    if consumed is not None:
                        consumed.consumed([_ledger_entry(message)])
                    shown += 1
                    if shown == count:
                        break
    if output_format == "table":
        echo(f"{counted(shown, 'message')} from {', '.join(_places(queues))}")
    if damaged:
        sys.exit(1)


def _ledger_entry(message: records.StoredMessage) -> tuple[str, str, tuple[int, int]]:
    key = records.decode_properties(message.properties).get("UNIQ_KEY", message.message_id)
    return message.topic, key, (message.queue_id, message.queue_offset)


def _places(queues: list[SendQueue]) -> list[str]:
    """The brokers that these are read from, each once: broker-a at 127.0.0.1:10911."""
    return sorted({f"{queue.broker_name} at {queue.addr}" for queue in queues})


def _read_line(queue: SendQueue, message: records.StoredMessage, output_format: str) -> str:
    if output_format == "json":
        return to_json_line({"brokerName": queue.broker_name, **message_fields(message)})
    properties = records.decode_properties(message.properties)
    return READ_LINE.format(
        queue.broker_name,
        message.queue_id,
        message.queue_offset,
        message.message_id,
        local_time(message.store_timestamp_ms),
        properties.get("TAGS", "-"),
        properties.get("KEYS", "-"),
        preview(body_of(message)),
    )


# -- once more -----------------------------------------------------------------------------------------


def resend(admin: MQAdmin, message: records.StoredMessage, output_format: str) -> None:
    """Sends a stored message again, to any queue of its topic, with its properties and so its unique key."""
    body = body_of(message)
    if message.sys_flag & layout.SYS_COMPRESSED and body == message.body:
        raise click.ClickException(f"{message.message_id} is compressed in a way that cannot be undone here")
    queues = writable_queues(admin, message.topic, None, None)
    _send_body(
        message.topic, queues, RawMessage(body, records.decode_properties(message.properties)), output_format
    )
