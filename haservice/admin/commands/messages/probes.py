"""`mqadmin checkMsgSendRT`, `sendMsgStatus`, `clusterRT`: measure how long a send takes."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.topics.routing import writable_queues
from haservice.client.raw_sends import SEND_OK, RawMessage, SendQueue, Sent, send_one
from haservice.errors import RemotingError
from haservice.remoting.client import RemotingClient
from haservice.terminal.access import access
from haservice.terminal.interrupt import run
from haservice.terminal.options import command, format_option, namesrv_option, topic_option, truth_option
from haservice.terminal.output import Column, Table, echo, echo_line, number, show, shown_addr, to_json_line

PROBES = 100
STATUS_PROBES = 50
BODY_BYTES = 128
# sendMsgStatus sends one message before it counts, so that it does not measure connecting.
FIRST_BODY_BYTES = 16
CLUSTER_INTERVAL_S = 10.0

PROBE_COLUMNS = (
    Column("#Broker Name", "brokerName"),
    Column("#QID", "queueId", right=True),
    Column("#Send Result", "sendStatus"),
    Column("#RT", "rtMs", number, right=True),
)
CLUSTER_COLUMNS = (
    Column("#Cluster Name", "clusterName"),
    Column("#Broker Name", "brokerName"),
    Column("#RT", "rtMs", number, right=True),
    Column("#successCount", "successCount", right=True),
    Column("#failCount", "failCount", right=True),
)

_amount_option = click.option(
    "-a", "--amount", type=click.IntRange(1), default=PROBES, show_default=True, help="Messages."
)
_size_option = click.option(
    "-s", "--size", type=click.IntRange(1), default=BODY_BYTES, show_default=True, help="Bytes of each body."
)


async def probe(
    topic: str, queues: Sequence[SendQueue], sizes: Sequence[int]
) -> AsyncIterator[tuple[Sent, float]]:
    """Sends one message after the other, over the queues in turn; gives results, and ms until the answer."""
    client = RemotingClient(**access())
    try:
        for queue, size in zip(itertools.cycle(queues), sizes, strict=False):
            started = time.monotonic()
            sent = await send_one(client, topic, queue, RawMessage(b"a" * size, {}))
            yield sent, (time.monotonic() - started) * 1000
    finally:
        await client.close()


async def _all(topic: str, queues: Sequence[SendQueue], sizes: Sequence[int]) -> list[tuple[Sent, float]]:
    return [one async for one in probe(topic, queues, sizes)]


def mean_ms(results: Sequence[tuple[Sent, float]]) -> float:
    """The mean without the first send, which connects; 0 if there is no other."""
    times = [ms for _, ms in results[1:]]
    return sum(times) / len(times) if times else 0.0


@command("checkMsgSendRT")
@namesrv_option
@topic_option
@_amount_option
@_size_option
@format_option
def check_msg_send_rt(
    namesrv: tuple[str, ...], topic: str, amount: int, size: int, output_format: str
) -> None:
    """Measures how long sends to a topic take.

    One message after the other, over all its queues; they are real messages, and stay.  If any is not SEND_OK, the
    exit code is 1, and standard error has the reasons.
    """
    with MQAdmin(namesrv) as admin:
        queues = writable_queues(admin, topic, None, None)
    results = run(_all(topic, queues, [size] * amount))
    table = Table(PROBE_COLUMNS, name="sends", facts={"averageMs": mean_ms(results)})
    for sent, ms in results:
        table.add(sent.queue.broker_name, sent.queue.queue_id, sent.status, ms)
    table.notes = [f"Avg RT: {mean_ms(results):.2f}"]
    show(table, output_format)
    _end_if_failed(results)


def _end_if_failed(results: Sequence[tuple[Sent, float]]) -> None:
    """Exit code 1 unless all are SEND_OK; each reason once, on standard error."""
    failed = [sent for sent, _ in results if sent.status != SEND_OK]
    for status, remark, addr in sorted({(one.status, one.remark or "", one.queue.addr) for one in failed}):
        echo(f"{shown_addr(addr)}: {status}{': ' if remark else ''}{remark}", err=True)
    if failed:
        sys.exit(1)


@command("sendMsgStatus")
@namesrv_option
@click.option("-b", "--brokerName", "name", metavar="NAME", required=True, help="The broker's name.")
@click.option(
    "-s",
    "--messageSize",
    "size",
    type=click.IntRange(1),
    default=BODY_BYTES,
    show_default=True,
    help="Bytes.",
)
@click.option(
    "-c", "--count", type=click.IntRange(1), default=STATUS_PROBES, show_default=True, help="Messages."
)
@format_option
def send_msg_status(namesrv: tuple[str, ...], name: str, size: int, count: int, output_format: str) -> None:
    """Sends messages to a broker, and shows each answer.

    To the topic of the broker's own name, which every broker has.  If any is not SEND_OK, the exit code is 1, and
    standard error has the reasons.
    """
    with MQAdmin(namesrv) as admin:
        queues = writable_queues(admin, name, name, None)
    results = run(_all(name, queues, [FIRST_BODY_BYTES] + [size] * count))
    for sent, ms in results[1:]:
        if output_format == "json":
            fields = {"rtMs": ms, "sendStatus": sent.status, "msgId": sent.message_id}
            echo(to_json_line(fields if sent.remark is None else {**fields, "remark": sent.remark}))
        else:
            echo_line(
                f"rt={ms:.2f}ms, SendResult=SendResult [sendStatus={sent.status}, "
                f"offsetMsgId={sent.message_id}, queueId={sent.queue_id}, queueOffset={sent.queue_offset}]"
            )
    _end_if_failed(results)


@command("clusterRT")
@namesrv_option
@click.option("-c", "--cluster", metavar="NAME", help="A cluster; else all of them.")
@_amount_option
@_size_option
@click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=CLUSTER_INTERVAL_S,
    show_default=True,
    help="Seconds from one round to the next.",
)
@click.option(
    "-m", "--machineRoom", "room", default="noname", show_default=True, help="Stands in the lines of -p."
)
@truth_option(
    "-p", "--printLog", "as_log", default=False, help="Lines for a log: time|room|cluster|broker|ms."
)
@click.option("--rounds", type=click.IntRange(1), help="So many rounds; else until Ctrl-C.")
@format_option
def cluster_rt(
    namesrv: tuple[str, ...],
    cluster: str | None,
    amount: int,
    size: int,
    interval_s: float,
    room: str,
    as_log: bool,
    rounds: int | None,
    output_format: str,
) -> None:
    """Measures sends to each broker, again and again.

    To the topics of the brokers' own names, until Ctrl-C.
    """
    with MQAdmin(namesrv) as admin, suppress(KeyboardInterrupt):
        for turn in itertools.count(1):
            table = Table(CLUSTER_COLUMNS)
            for broker in admin.brokers(cluster):
                if not broker.is_master:
                    continue
                mean, good, bad = _probed(admin, broker.name, amount, size)
                if as_log:
                    now = time.strftime("%Y-%m-%d %H:%M:%S")
                    echo_line(f"{now}|{room}|{broker.cluster}|{broker.name}|{round(mean)}")
                table.add(broker.cluster, broker.name, mean, good, bad)
            if not as_log:
                show(table, output_format)
            if turn == rounds:
                return
            time.sleep(interval_s)


def _probed(admin: MQAdmin, name: str, amount: int, size: int) -> tuple[float, int, int]:
    """Mean ms, sends stored, sends not stored; a broker without its topic fails all."""
    try:
        queues = writable_queues(admin, name, name, None)
    except (RemotingError, click.ClickException):
        return 0.0, 0, amount
    results = run(_all(name, queues, [size] * amount))
    good = sum(sent.status == SEND_OK for sent, _ in results)
    return mean_ms(results), good, amount - good
