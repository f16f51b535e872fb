"""`mqadmin updateTopic`, `updateTopicPerm`, `deleteTopic`, `updateOrderConf`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.fanout import addrs_of, ask_each, say_failures, tell_each
from haservice.client.routes import order_counts
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.admin import KVConfigHeader, KVValueResponseHeader, PutKVConfigHeader
from haservice.remoting.headers.clients import CreateTopicHeader, DeleteTopicInNamesrvHeader, TopicHeader
from haservice.terminal.options import (
    broker_option,
    cluster_option,
    command,
    format_option,
    namesrv_option,
    topic_option,
    truth_option,
)
from haservice.terminal.output import and_text, echo, perm_text, show_pairs, shown_addr

TEMPLATE_TOPIC = "TBW102"
# In the nameservers' tables: an order topic's brokers and queues, "broker-a:4;broker-b:4".
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
SYS_FLAG_UNIT = 1
SYS_FLAG_UNIT_SUB = 2


def _perm_option(*, required: bool) -> Callable[[Any], Any]:
    return click.option(
        "-p",
        "--perm",
        type=click.Choice(["2", "4", "6"]),
        default=None if required else "6",
        required=required,
        show_default=not required,
        help="2 may be written, 4 may be read, 6 both.",
    )


@command("updateTopic")
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
@_perm_option(required=False)
@truth_option("-o", "--order", default=False, help="An ordered topic.")
@truth_option("-u", "--unit", default=False, help="A unit topic.")
@truth_option("-s", "--hasUnitSub", "unit_sub", default=False, help="A topic with subscriptions by unit.")
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
    unit: bool,
    unit_sub: bool,
    output_format: str,
) -> None:
    """Creates or changes a topic.

    At one broker (-b), or at every master of a cluster (-c).  An ordered topic's brokers and queues are
    also told to the nameservers, so that they stand in its route even while a broker is down.  Brokers that
    stand there already stay; updateOrderConf -m put takes one away.
    """
    header = CreateTopicHeader(
        topic=topic,
        default_topic=TEMPLATE_TOPIC,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=int(perm),
        topic_sys_flag=SYS_FLAG_UNIT * unit | SYS_FLAG_UNIT_SUB * unit_sub,
        order=order,
    )
    with MQAdmin(namesrv) as admin:
        targets = admin.targets(broker, cluster)
        ordered = _ordered_at(admin, topic, targets, write_queues) if order else None
        tell_each(
            addrs_of(targets),
            lambda addr: admin.update_topic(addr, header),
            "create topic to {addr} success.",
            output_format,
            topic=topic,
            readQueueNums=read_queues,
            writeQueueNums=write_queues,
            perm=int(perm),
            order=order,
        )
        if ordered is not None:
            put_order_conf(admin, topic, ordered)
    if output_format == "table":
        if ordered is not None:
            echo(f"{topic}: ordered at {ordered}")
        echo(f"{topic}: {read_queues} read queues, {write_queues} write queues, perm {perm_text(int(perm))}")


def _ordered_at(admin: MQAdmin, topic: str, targets: Sequence[Broker], queues: int) -> str:
    """The order configuration with these brokers.  Those that it has now stay: they may be down for a minute.

    Raises click.ClickException, before anything is changed.
    """
    names = [target.name or _name_of(admin, target.addr) for target in targets]
    stored = get_order_conf(admin, topic)
    try:
        counts = order_counts(stored or "") | dict.fromkeys(names, queues)
        text = conf_text(dict(sorted(counts.items())))
        order_counts(text)
    except ValueError as error:
        raise click.ClickException(
            f"the order configuration of topic {topic}: {error}; nothing was changed\n"
            f"  mqadmin updateOrderConf -m put -t {topic} -v '{names[0]}:{queues};...' stores one anew"
        ) from None
    return text


def _name_of(admin: MQAdmin, addr: str) -> str:
    name = next((one.name for one in admin.brokers() if one.addr == addr), None)
    if name is None:
        raise click.ClickException(
            f"the nameserver knows no broker {shown_addr(addr)}, which must be told whose queues are ordered"
        )
    return name


@command("updateTopicPerm")
@namesrv_option
@broker_option
@cluster_option
@topic_option
@_perm_option(required=True)
@format_option
def update_topic_perm(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    topic: str,
    perm: str,
    output_format: str,
) -> None:
    """Changes who may write and read a topic.

    At one broker (-b), or at every master of a cluster (-c).  Each keeps its numbers of queues.
    """
    with MQAdmin(namesrv) as admin:
        route = admin.route(topic)
        queues = {data.broker_name: data for data in route.queue_datas}
        masters = {
            data.broker_addrs[MASTER_ID]: queues[data.broker_name]
            for data in route.broker_datas
            if MASTER_ID in data.broker_addrs and data.broker_name in queues
        }
        addrs = [addr for addr in addrs_of(admin.targets(broker, cluster)) if addr in masters]
        if not addrs:
            raise click.ClickException(
                f"topic {topic} is at no master there\n  mqadmin topicRoute -t {topic} shows where it is"
            )

        def change(addr: str) -> str:
            data = masters[addr]
            header = CreateTopicHeader(
                topic=topic,
                default_topic=TEMPLATE_TOPIC,
                read_queue_nums=data.read_queue_nums,
                write_queue_nums=data.write_queue_nums,
                perm=int(perm),
                topic_sys_flag=data.topic_sys_flag,
            )
            admin.update_topic(addr, header)
            return str(data.perm)

        said = f"update topic perm from {{result}} to {perm} in {{addr}} success."
        tell_each(addrs, change, said, output_format, topic=topic, perm=int(perm))


@command("deleteTopic")
@namesrv_option
@cluster_option
@topic_option
@format_option
def delete_topic(namesrv: tuple[str, ...], cluster: str | None, topic: str, output_format: str) -> None:
    """Deletes a topic, with its queues.

    At every master of a cluster (-c), and from the routes of the nameservers.  There is no way back: its
    messages lie in the logs until retention takes them, but nobody can read them.

    A broker name without a master now keeps the topic.  It is named, and the exit code is 1: run this again once
    its master is back.
    """
    if cluster is None:
        raise click.UsageError("of which cluster?  Say -c CLUSTER; mqadmin clusterList shows them")
    with MQAdmin(namesrv) as admin:
        left = delete_topic_everywhere(admin, cluster, topic, quiet=output_format == "json")
    if output_format == "json":
        kept = {"noMasterAt": left} if left else {}
        show_pairs({"topic": topic, "clusterName": cluster, **kept}, output_format)
    if left:
        sys.exit(1)


def delete_topic_everywhere(admin: MQAdmin, cluster: str, topic: str, *, quiet: bool) -> list[str]:
    """Deletes at a cluster's masters (215), then nameservers (216): a route deleted first would come back.

    Returns the broker names that have no master now, which RocketMQ's tool passes over: standard error says
    that they keep the topic.  Raises RemotingError of a master that could not; all others are told, and the
    nameservers are not.
    """
    masters = admin.masters(cluster)
    failures = [error for one in masters if (error := _delete_at(admin, one.addr, topic)) is not None]
    if failures:
        say_failures(failures[1:])
        raise failures[0]
    echo(f"delete topic [{topic}] from cluster [{cluster}] success.", err=quiet)
    header = DeleteTopicInNamesrvHeader(topic, cluster)
    ask_each(admin.nameservers, lambda addr: admin.tell(addr, RequestCode.DELETE_TOPIC_IN_NAMESRV, header))
    echo(f"delete topic [{topic}] from NameServer success.", err=quiet)
    return _say_without_master(admin, cluster, topic)


def _delete_at(admin: MQAdmin, addr: str, topic: str) -> RemotingError | None:
    try:
        admin.tell(addr, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
    except RemotingError as error:
        return error
    return None


def _say_without_master(admin: MQAdmin, cluster: str, topic: str) -> list[str]:
    """Names them and their slaves on standard error."""
    slaves: dict[str, list[str]] = {}
    brokers = admin.brokers(cluster)
    with_master = {one.name for one in brokers if one.is_master}
    for one in brokers:
        if one.name not in with_master:
            slaves.setdefault(one.name, []).append(shown_addr(one.addr))
    for name, addrs in slaves.items():
        echo(
            f"NOT deleted at {name}: it has no master now, its slave is {and_text(addrs)}.  If it has the topic"
            f" [{topic}], the topic comes back with its master: run this again then.",
            err=True,
        )
    return list(slaves)


@command("updateOrderConf")
@namesrv_option
@topic_option
@click.option("-m", "--method", type=click.Choice(["put", "get", "delete"]), required=True)
@click.option("-v", "--orderConf", "conf", metavar="CONF", help="For put: brokerName1:num;brokerName2:num")
@format_option
def update_order_conf(
    namesrv: tuple[str, ...], topic: str, method: str, conf: str | None, output_format: str
) -> None:
    """Shows or changes an order topic's brokers and queues.

    They stand at the nameservers and in the topic's route: a producer counts on them, up or down.
    """
    with MQAdmin(namesrv) as admin:
        if method == "get":
            conf = get_order_conf(admin, topic)
            if conf is None:
                raise click.ClickException(f"topic {topic} has no order configuration; -m put makes one")
        elif method == "put":
            counts = order_conf(conf or "")
            if not any(counts.values()):
                raise click.UsageError("which brokers' queues?  Say -v brokerName1:num;brokerName2:num")
            _check_names(admin, topic, counts)
            conf = conf_text(counts)
            put_order_conf(admin, topic, conf)
        else:
            header = KVConfigHeader(ORDER_NAMESPACE, topic)
            ask_each(admin.nameservers, lambda addr: admin.tell(addr, RequestCode.DELETE_KV_CONFIG, header))
            conf = None
    if output_format == "json":
        show_pairs({"topic": topic, "orderConf": conf}, output_format)
        return
    said = {"get": "get", "put": "update", "delete": "delete"}[method]
    shown = "" if conf is None else f", orderConf=[{conf}]"
    echo(f"{said} orderConf success. topic=[{topic}]{shown}")


def _check_names(admin: MQAdmin, topic: str, counts: Mapping[str, int]) -> None:
    """Raises click.ClickException for a broker that is neither known now nor in the present configuration."""
    known = sorted({one.name for one in admin.brokers()})
    if all(name in known for name in counts):
        return
    present = {part.partition(":")[0].strip() for part in (get_order_conf(admin, topic) or "").split(";")}
    if unknown := [name for name in counts if name not in known and name not in present]:
        raise click.ClickException(
            f"no broker has the name {', '.join(unknown)}; the nameserver knows {and_text(known)}"
        )


def get_order_conf(admin: MQAdmin, topic: str) -> str | None:
    try:
        answer = admin.call_namesrv(RequestCode.GET_KV_CONFIG, KVConfigHeader(ORDER_NAMESPACE, topic))
    except AnswerError as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return None
    return KVValueResponseHeader.decode(answer.ext).value


def put_order_conf(admin: MQAdmin, topic: str, conf: str) -> None:
    """Puts it at every nameserver: they do not tell each other."""
    header = PutKVConfigHeader(ORDER_NAMESPACE, topic, conf)
    _, complete = ask_each(
        admin.nameservers, lambda addr: admin.tell(addr, RequestCode.PUT_KV_CONFIG, header)
    )
    if not complete:
        sys.exit(1)


def order_conf(text: str) -> dict[str, int]:
    """Broker name → queues.  Raises click.BadParameter."""
    try:
        return order_counts(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-v") from None


def conf_text(counts: Mapping[str, int]) -> str:
    return ";".join(f"{name}:{count}" for name, count in counts.items())
