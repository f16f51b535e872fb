"""`mqadmin updateSubGroup`, `deleteSubGroup`, `getConsumerConfig`: what brokers allow consumer groups."""

from __future__ import annotations

import sys
from typing import Any

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.topics.topic_changes import delete_topic_everywhere
from haservice.admin.fanout import addrs_of, ask_each, tell_each
from haservice.broker.send.retries import dead_letter_topic, retry_topic
from haservice.remoting.bodies.clients import SubscriptionGroupConfig, SubscriptionGroupWrapper
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.admin import DeleteSubscriptionGroupHeader
from haservice.terminal.options import (
    broker_option,
    cluster_option,
    command,
    format_option,
    group_option,
    namesrv_option,
    truth_option,
)
from haservice.terminal.output import echo, echo_line, plain, to_json


@command("updateSubGroup")
@namesrv_option
@broker_option
@cluster_option
@group_option("--groupName")
@truth_option("-s", "--consumeEnable", "consume_enable", default=True, help="The group may consume at all.")
@truth_option(
    "-m",
    "--consumeFromMinEnable",
    "consume_from_min_enable",
    default=False,
    help="It may start at the minimum.",
)
@truth_option(
    "-d", "--consumeBroadcastEnable", "consume_broadcast_enable", default=False, help="It may broadcast."
)
@click.option("-q", "--retryQueueNums", "retry_queue_nums", default=1, show_default=True)
@click.option(
    "-r",
    "--retryMaxTimes",
    "retry_max_times",
    default=16,
    show_default=True,
    help="Failures until a message goes to the dead letters.",
)
@click.option("-i", "--brokerId", "broker_id", default=0, show_default=True, help="Whom to consume from.")
@click.option(
    "-w",
    "--whichBrokerWhenConsumeSlowly",
    "which_broker_when_consume_slowly",
    default=1,
    show_default=True,
    help="The broker id that readers far behind are sent to.",
)
@truth_option(
    "-a",
    "--notifyConsumerIdsChanged",
    "notify_consumer_ids_changed_enable",
    default=True,
    help="Members are told at once when others come and go.",
)
@format_option
def update_sub_group(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    group: str,
    output_format: str,
    **settings: Any,
) -> None:
    """Creates or changes a consumer group.

    At one broker (-b), or at every master of a cluster (-c).  What is not said gets its default: a group is
    replaced, not amended; getConsumerConfig shows what it has.
    """
    config = SubscriptionGroupConfig(group, **settings)
    with MQAdmin(namesrv) as admin:
        tell_each(
            addrs_of(admin.targets(broker, cluster)),
            lambda addr: admin.tell(addr, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config),
            "create subscription group to {addr} success.",
            output_format,
            group=config.tree(),
        )
    if output_format == "table":
        _show_config(config)


@command("deleteSubGroup")
@namesrv_option
@broker_option
@cluster_option
@group_option("--groupName")
@truth_option("-r", "--removeOffset", "remove_offset", default=False, help="Its offsets go, too.")
@format_option
def delete_sub_group(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    group: str,
    remove_offset: bool,
    output_format: str,
) -> None:
    """Deletes a consumer group.

    At one broker (-b), or at every master of a cluster (-c); of a cluster the group's retry and dead letter
    topics are deleted, too.  Without -r its offsets stay, and a group of that name goes on from them.
    """
    header = DeleteSubscriptionGroupHeader(group, remove_offset)
    with MQAdmin(namesrv) as admin:
        targets = admin.targets(broker, cluster)
        topics = [retry_topic(group), dead_letter_topic(group)] if broker is None else []
        tell_each(
            addrs_of(targets),
            lambda addr: admin.tell(addr, RequestCode.DELETE_SUBSCRIPTIONGROUP, header),
            f"delete subscription group [{group}] from broker [{{addr}}] success.",
            output_format,
            group=group,
            topics=topics,
        )
        left: set[str] = set()
        for topic in topics:
            left.update(delete_topic_everywhere(admin, cluster or "", topic, quiet=output_format == "json"))
    if left:
        sys.exit(1)


@command("getConsumerConfig")
@namesrv_option
@group_option("--groupName")
@format_option
def get_consumer_config(namesrv: tuple[str, ...], group: str, output_format: str) -> None:
    """Shows what each broker allows a consumer group."""
    with MQAdmin(namesrv) as admin:
        found, complete = ask_each(
            [broker for broker in admin.brokers() if broker.is_master],
            lambda broker: admin.ask(
                broker.addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, into=SubscriptionGroupWrapper
            ).subscription_group_table.get(group),
        )
    known = [(broker, config) for broker, config in found if config is not None]
    if not known:
        raise click.ClickException(
            f"no broker has a group {group!r}\n"
            f"  a consumer's first heartbeat makes one, or mqadmin updateSubGroup -g {group}"
        )
    if output_format == "json":
        echo(
            to_json(
                [
                    {"clusterName": broker.cluster, "brokerName": broker.name, **config.tree()}
                    for broker, config in known
                ]
            )
        )
    else:
        for broker, config in known:
            echo_line(
                f"============================={broker.cluster}:{broker.name}============================="
            )
            _show_config(config)
    if not complete:
        sys.exit(1)


def _show_config(config: SubscriptionGroupConfig) -> None:
    for name, value in config.tree().items():
        echo_line(f"{name:<40}=  {str(value).lower() if isinstance(value, bool) else plain(value)}")
