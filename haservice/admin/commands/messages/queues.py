"""`mqadmin queryCq`: the entries of a consume queue."""

from __future__ import annotations

import click

from haservice.admin.calls import MQAdmin, readable_addr
from haservice.remoting.bodies.admin import ConsumeQueueBody
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.admin import ConsumeQueueHeader
from haservice.terminal.options import command, format_option, namesrv_option, one_broker_option, topic_option
from haservice.terminal.output import Column, Table, show

COLUMNS = (
    Column("#idx", "index", right=True),
    Column("#physicOffset", "physicOffset", right=True),
    Column("#physicSize", "physicSize", right=True),
    Column("#tagsCode", "tagsCode", right=True),
    Column("#eval", "eval", lambda found: "-" if found is None else str(found).lower()),
    Column("#msg", "msg", lambda text: text or ""),
)


@command("queryCq")
@namesrv_option
@one_broker_option(
    "--broker", "--brokerAddr", help="One broker, host:port; else the first of the topic's route."
)
@topic_option
@click.option("-q", "--queue", "queue_id", type=click.IntRange(0), required=True, help="The queue's number.")
@click.option("-i", "--index", type=click.IntRange(0), required=True, help="First queue offset.")
@click.option("-c", "--count", type=click.IntRange(1), default=10, show_default=True, help="How many.")
@click.option("-g", "--consumer", "group", metavar="GROUP", help="Would this group's filter let it through?")
@format_option
def query_cq(
    namesrv: tuple[str, ...],
    broker: str | None,
    topic: str,
    queue_id: int,
    index: int,
    count: int,
    group: str | None,
    output_format: str,
) -> None:
    """Shows entries of a consume queue.

    Each stands for one message: where it lies in the log, how long it is, and its tag's hash.
    """
    with MQAdmin(namesrv) as admin:
        addr = broker
        if addr is None:
            datas = admin.route(topic).broker_datas
            addr = next((readable_addr(data) for data in datas if data.broker_addrs), None)
        if addr is None:
            raise click.ClickException(f"no broker of topic {topic} is up")
        header = ConsumeQueueHeader(topic, queue_id, index, count, group)
        answer = admin.call(addr, RequestCode.QUERY_CONSUME_QUEUE, header.encode())
    if not answer.body:
        raise click.ClickException(
            f"queue {queue_id} of {topic} has no entry {index}: {answer.remark or 'no remark'}"
        )
    body = ConsumeQueueBody.decode(answer.body)
    bounds = {"maxQueueIndex": body.max_queue_index, "minQueueIndex": body.min_queue_index}
    table = Table(COLUMNS, name="queueData", facts=bounds)
    for number, entry in enumerate(body.queue_data, index):
        passes = entry.eval if body.subscription_data is not None else None
        table.add(number, entry.physic_offset, entry.physic_size, entry.tags_code, passes, entry.msg)
    table.notes = [f"max: {body.max_queue_index}, min: {body.min_queue_index}"]
    if body.subscription_data is not None:
        table.notes += [f"subscription: {body.subscription_data.sub_string}"]
    show(table, output_format)
