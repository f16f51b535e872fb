"""`mqadmin topicList`, `topicRoute`, `topicStatus`, `topicClusterList`, `allocateMQ`: where topics are."""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress
from dataclasses import replace

import click

from haservice.admin.asked_apart import add_topics
from haservice.admin.calls import MQAdmin, readable_addr
from haservice.admin.fanout import ask_each, say_failures, say_none_registered
from haservice.admin.overview import NotAllOurs, Overview, topics_of_brokers
from haservice.broker.send.retries import DLQ_PREFIX
from haservice.broker.topics.table import PERM_READ, RETRY_PREFIX
from haservice.errors import RemotingError
from haservice.remoting.bodies.admin import GroupList
from haservice.remoting.bodies.clients import MessageQueue, TopicRouteData
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import TopicHeader
from haservice.terminal.options import broker_option, command, format_option, namesrv_option, topic_option
from haservice.terminal.output import (
    Column,
    Table,
    echo,
    echo_line,
    java_map,
    local_time,
    show,
    shown_addr,
    to_json,
)

# What -c without a name stands for.
ALL_CLUSTERS = "*"

CLUSTER_COLUMNS = (
    Column("#Cluster Name", "clusterName"),
    Column("#Topic", "topic"),
    Column("#Consumer Group", "group", lambda group: group or ""),
)

# As stock mqadmin prints it, and with its heads; these have no blanks here.
ROUTE_LINE = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"
ROUTE_HEADS = ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")

STATUS_COLUMNS = (
    Column("#Broker Name", "brokerName"),
    Column("#QID", "queueId", right=True),
    Column("#Min Offset", "minOffset", right=True),
    Column("#Max Offset", "maxOffset", right=True),
    Column("#Last Updated", "lastUpdateTimestamp", local_time),
)

ALLOCATION_COLUMNS = (
    Column("#Member", "member"),
    Column("#Broker Name", "brokerName"),
    Column("#QID", "queueId", right=True),
)


@command("topicList")
@namesrv_option
@click.option(
    "-c",
    "--clusterModel",
    "--clusterName",
    "cluster",
    is_flag=False,
    flag_value=ALL_CLUSTERS,
    metavar="[NAME]",
    help="With each topic's cluster and consumer groups; with a NAME, that cluster's topics alone.",
)
@format_option
def topic_list(namesrv: tuple[str, ...], cluster: str | None, output_format: str) -> None:
    """Lists topics, a name in each line."""
    with MQAdmin(namesrv) as admin:
        if cluster == ALL_CLUSTERS:
            found = users_topics(admin, traffic=False)
            table = cluster_table(found)
            show(table, output_format)
            if not table.rows and not admin.brokers():
                say_none_registered(admin, output_format)
            if not say_what_is_missing(found):
                sys.exit(1)
            return
        if cluster is not None:
            admin.brokers(cluster)  # says so when there is no such cluster
        names = admin.topics(cluster)
        if not names and not admin.brokers():
            say_none_registered(admin, output_format)
    if output_format == "json":
        echo(to_json([{"topic": name} for name in names]))
        return
    for name in names:
        echo_line(name)


def users_topics(admin: MQAdmin, only: str | None = None, *, traffic: bool = True) -> Overview:
    """The topics of users, or that one alone, with the groups that consume them; with `traffic` what went
    through them.
    """
    wanted = {
        topic
        for topic in admin.topics()
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and only in (None, topic)
    }
    try:
        found = topics_of_brokers(admin, only)
    except NotAllOurs:
        found = Overview()
    add_topics(admin, sorted(wanted - found.topics.keys()), found, traffic=traffic)
    found.topics = {name: topic for name, topic in found.topics.items() if name in wanted}
    return found


def say_what_is_missing(found: Overview) -> bool:
    """Says on standard error who did not answer, and what is not counted; False if somebody did not answer."""
    for addr, left_out in found.left_out.items():
        echo(f"Not all is counted at {shown_addr(addr)}: {left_out}", err=True)
    say_failures(list(found.failures.values()), "Not shown")
    return not found.failures


def cluster_table(found: Overview) -> Table:
    """Every topic with its cluster and the groups that consume it; a topic in two clusters twice.  Pure."""
    table = Table(CLUSTER_COLUMNS)
    for name, topic in sorted(found.topics.items()):
        for cluster in sorted(topic.clusters):
            for group in sorted(topic.groups) or (None,):
                table.add(cluster, name, group)
    return table


def clusters_of(route: TopicRouteData) -> list[str]:
    return sorted({data.cluster for data in route.broker_datas})


def topic_groups(admin: MQAdmin, topic: str, route: TopicRouteData) -> list[str]:
    """The groups that consume a topic, from all of its brokers that answer."""
    groups: set[str] = set()
    for data in route.broker_datas:
        with suppress(RemotingError):
            code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
            found = admin.ask(readable_addr(data), code, TopicHeader(topic), into=GroupList)
            groups.update(found.group_list)
    return sorted(groups)


@command("topicRoute")
@namesrv_option
@topic_option
@click.option("-l", "--list", "as_list", is_flag=True, help="As a list, a line for each broker name.")
@format_option
def topic_route(namesrv: tuple[str, ...], topic: str, as_list: bool, output_format: str) -> None:
    """Shows which brokers hold a topic.

    It is what a client is told: addresses, numbers of queues, permission (4 to read, 2 to write).  As JSON,
    in the form of RocketMQ's tools, whose broker ids have no quotes; with -f json they have.
    """
    with MQAdmin(namesrv) as admin:
        route = masters_first(admin.route(topic))
    if as_list and output_format == "table":
        echo(route_list(route))
    else:
        echo(route.encode(pretty=True, standard=output_format == "json").decode())


def masters_first(route: TopicRouteData) -> TopicRouteData:
    """The route with each broker's addresses in order of id, as Java's maps print them; a nameserver
    gives them in order of registration.  Pure.
    """
    datas = [
        replace(data, broker_addrs=dict(sorted(data.broker_addrs.items()))) for data in route.broker_datas
    ]
    return replace(route, broker_datas=datas)


def route_list(route: TopicRouteData) -> str:
    """The lines of stock mqadmin's topicRoute -l: broker names, and their totals.  Pure."""
    queues = {data.broker_name: data for data in route.queue_datas}
    lines = [ROUTE_LINE.format(*ROUTE_HEADS)]
    for data in sorted(route.broker_datas, key=lambda data: data.broker_name):
        of_broker = queues.get(data.broker_name)
        if of_broker is None:
            continue
        addrs = java_map(dict(sorted(data.broker_addrs.items())))
        counts = (of_broker.read_queue_nums, of_broker.write_queue_nums, of_broker.perm)
        lines.append(ROUTE_LINE.format(data.cluster, data.broker_name, addrs, *counts))
    lines.append("-" * len(lines[0]))
    totals = (
        sum(data.read_queue_nums for data in queues.values()),
        sum(data.write_queue_nums for data in queues.values()),
    )
    lines.append(ROUTE_LINE.format("Total:", len(queues), "", *totals, ""))
    return "\n".join(line.rstrip() for line in lines)


@command("topicStatus")
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
    with MQAdmin(namesrv) as admin:
        if broker is not None:
            addrs = [broker]
        else:
            addrs = [readable_addr(data) for data in admin.route(topic).broker_datas if data.broker_addrs]
        found, complete = ask_each(addrs, lambda addr: admin.topic_stats(addr, topic).offset_table)
    for queue, offset in sorted(item for _, offsets in found for item in offsets.items()):
        table.add(
            queue.broker_name,
            queue.queue_id,
            offset.min_offset,
            offset.max_offset,
            offset.last_update_timestamp,
        )
    show(table, output_format)
    if not complete:
        sys.exit(1)


@command("topicClusterList")
@namesrv_option
@topic_option
@format_option
def topic_cluster_list(namesrv: tuple[str, ...], topic: str, output_format: str) -> None:
    """Lists the clusters that hold a topic."""
    with MQAdmin(namesrv) as admin:
        clusters = clusters_of(admin.route(topic))
    echo(to_json(clusters) if output_format == "json" else "\n".join(clusters))


@command("allocateMQ")
@namesrv_option
@topic_option
@click.option(
    "-i", "--ipList", "members", metavar="LIST", required=True, help="Members, separated by commas."
)
@format_option
def allocate_mq(namesrv: tuple[str, ...], topic: str, members: str, output_format: str) -> None:
    """Shows who would consume which queues.

    As consumers divide a topic among them by default: evenly, in order.
    """
    with MQAdmin(namesrv) as admin:
        route = admin.route(topic)
    queues = sorted(
        MessageQueue(topic, data.broker_name, number)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for number in range(data.read_queue_nums)
    )
    names = [name.strip() for name in members.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("names nobody", param_hint="-i")
    shares = dict(zip(names, shared_evenly(queues, len(names)), strict=True))
    if output_format == "json":
        echo(to_json({"result": {name: [queue.tree() for queue in of] for name, of in shares.items()}}))
        return
    table = Table(ALLOCATION_COLUMNS)
    for name, of in shares.items():
        for queue in of:
            table.add(name, queue.broker_name, queue.queue_id)
    show(table, output_format)


def shared_evenly(queues: list[MessageQueue], members: int) -> list[list[MessageQueue]]:
    """Contiguous shares; if they are not even, the first members get one queue more."""
    size, more = divmod(len(queues), members)
    starts = [index * size + min(index, more) for index in range(members + 1)]
    return [queues[start:end] for start, end in itertools.pairwise(starts)]
