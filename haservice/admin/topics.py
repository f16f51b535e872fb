"""`mqadmin topicList`, `topicRoute`, `topicStatus`, `updateTopic`."""

from __future__ import annotations

import click

from haservice.admin.calls import Admin, Broker, readable_addr
from haservice.admin.options import CONTEXT, broker_option, cluster_option, format_option, namesrv_option
from haservice.admin.output import Column, Table, local_time, show, shown_addr, to_json
from haservice.remoting.headers import CreateTopicHeader

topic_option = click.option("-t", "--topic", required=True, help="The topic.")

LIST_COLUMNS = (Column("#Topic", "topic"),)

ROUTE_COLUMNS = (
    Column("#Cluster Name", "clusterName"),
    Column("#Broker Name", "brokerName"),
    Column("#BID", "brokerId", right=True),
    Column("#Addr", "brokerAddr", shown_addr),
    Column("#Read Queues", "readQueueNums", right=True),
    Column("#Write Queues", "writeQueueNums", right=True),
    Column("#Perm", "perm"),
)

STATUS_COLUMNS = (
    Column("#Broker Name", "brokerName"),
    Column("#QID", "queueId", right=True),
    Column("#Min Offset", "minOffset", right=True),
    Column("#Max Offset", "maxOffset", right=True),
    Column("#Last Updated", "lastUpdateTimestamp", local_time),
)


def perm_text(perm: int) -> str:
    """6 → "RW-", as RocketMQ prints permissions."""
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")


@click.command("topicList", context_settings=CONTEXT)
@namesrv_option
@cluster_option
@format_option
def topic_list(namesrv: tuple[str, ...], cluster: str | None, output_format: str) -> None:
    """Lists topics; those of one cluster with -c."""
    table = Table(LIST_COLUMNS)
    with Admin(namesrv) as admin:
        if cluster is not None:
            admin.brokers(cluster)  # says so when there is no such cluster
        for topic in admin.topics(cluster):
            table.add(topic)
    show(table, output_format)


@click.command("topicRoute", context_settings=CONTEXT)
@namesrv_option
@topic_option
@format_option
def topic_route(namesrv: tuple[str, ...], topic: str, output_format: str) -> None:
    """Shows which brokers hold a topic.

    It is what a client is told: addresses, numbers of queues, permission.
    """
    table = Table(ROUTE_COLUMNS)
    with Admin(namesrv) as admin:
        route = admin.route(topic)
    queues = {data.broker_name: data for data in route.queue_datas}
    for data in sorted(route.broker_datas, key=lambda data: data.broker_name):
        of_broker = queues.get(data.broker_name)
        if of_broker is None:
            continue
        for broker_id, addr in sorted(data.broker_addrs.items()):
            table.add(
                data.cluster,
                data.broker_name,
                broker_id,
                addr,
                of_broker.read_queue_nums,
                of_broker.write_queue_nums,
                perm_text(of_broker.perm),
            )
    show(table, output_format)


@click.command("topicStatus", context_settings=CONTEXT)
@namesrv_option
@broker_option
@topic_option
@format_option
def topic_status(namesrv: tuple[str, ...], broker: str | None, topic: str, output_format: str) -> None:
    """Shows each queue's offsets and last write.

    At the topic's masters, or at one broker with -b: with a slave's address it shows how far the slave's
    own queues reach.
    """
    table = Table(STATUS_COLUMNS)
    with Admin(namesrv) as admin:
        if broker is not None:
            addrs = [broker]
        else:
            addrs = [readable_addr(data) for data in admin.route(topic).broker_datas if data.broker_addrs]
        offsets = [item for addr in addrs for item in admin.topic_stats(addr, topic).offset_table.items()]
    for queue, offset in sorted(offsets):
        table.add(
            queue.broker_name,
            queue.queue_id,
            offset.min_offset,
            offset.max_offset,
            offset.last_update_timestamp,
        )
    show(table, output_format)


@click.command("updateTopic", context_settings=CONTEXT)
@namesrv_option
@broker_option
@cluster_option
@topic_option
@click.option(
    "-r", "--readQueueNums", "read_queues", type=click.IntRange(1, 65536), default=8, show_default=True
)
@click.option(
    "-w", "--writeQueueNums", "write_queues", type=click.IntRange(1, 65536), default=8, show_default=True
)
@click.option(
    "-p",
    "--perm",
    type=click.Choice(["2", "4", "6"]),
    default="6",
    show_default=True,
    help="2 may be written, 4 may be read, 6 both.",
)
@click.option("-o", "--order", is_flag=True, help="An ordered topic.")
@format_option
def update_topic(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    topic: str,
    read_queues: int,
    write_queues: int,
    perm: str,
    order: bool,
    output_format: str,
) -> None:
    """Creates or changes a topic.

    At one broker (-b), or at every master of a cluster (-c).
    """
    if broker is None and cluster is None:
        raise click.UsageError("where?  Say -b host:port, or -c CLUSTER with -n")
    header = CreateTopicHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=int(perm),
        order=order,
    )
    with Admin(namesrv) as admin:
        targets = [Broker("", "", 0, broker)] if broker is not None else admin.masters(cluster or "")
        for target in targets:
            admin.update_topic(target.addr, header)
            click.echo(f"create topic to {target.addr} success.", err=output_format == "json")
    if output_format == "json":
        click.echo(
            to_json(
                {
                    "topic": topic,
                    "brokerAddrs": [target.addr for target in targets],
                    "readQueueNums": read_queues,
                    "writeQueueNums": write_queues,
                    "perm": int(perm),
                    "order": order,
                }
            )
        )
        return
    click.echo(
        f"{topic}: {read_queues} read queues, {write_queues} write queues, perm {perm_text(int(perm))}"
    )


COMMANDS = (topic_list, topic_route, topic_status, update_topic)
