"""`mqadmin exportMetadata`, `exportConfigs`, `exportMetrics`: a cluster's state as JSON files.

The files and their members are stock mqadmin's, so that programs that read those read ours.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.commands.groups.group_calls import consumer_connection
from haservice.admin.commands.topics.topic_stats import TOPIC_PUT_NUMS, traffic
from haservice.broker.send.retries import DLQ_PREFIX
from haservice.broker.topics.table import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from haservice.errors import RemotingError
from haservice.remoting.bodies.clients import SubscriptionGroupWrapper, TopicConfigWrapper, TopicList
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import VERSION
from haservice.terminal.options import (
    broker_option,
    cluster_option,
    command,
    long_format_option,
    namesrv_option,
)
from haservice.terminal.output import echo, show_pairs, to_json, version_text

DEFAULT_DIRECTORY = "/tmp/rocketmq/export"

# Groups that every stock broker has; they belong to no user.
SYSTEM_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_P_GROUP",
        "CLIENT_INNER_PRODUCER",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_RMQ_SYS_TRANS",
    }
)
CONFIG_KEYS = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)

_path_option = click.option(
    "-f",
    "--filePath",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="The directory, which is made if need be.",
)


def _write(directory: Path, name: str, tree: dict[str, Any], output_format: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(to_json(tree) + "\n")
    if output_format == "json":
        show_pairs({"file": str(path)}, output_format)
    else:
        echo(f"export {path} success")


def user_topics(admin: MQAdmin, addr: str, special: bool) -> dict[str, dict[str, Any]]:
    """The topics of users, by name; with `special` retry topics and dead letters, too."""
    system = set(admin.ask(addr, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, into=TopicList).topic_list)
    table = admin.ask(addr, RequestCode.GET_ALL_TOPIC_CONFIG, into=TopicConfigWrapper).topic_config_table
    return {
        name: topic.tree()
        for name, topic in sorted(table.items())
        if name not in system and (special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    }


def user_groups(admin: MQAdmin, addr: str) -> dict[str, dict[str, Any]]:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    table = admin.ask(addr, code, into=SubscriptionGroupWrapper).subscription_group_table
    return {name: group.tree() for name, group in sorted(table.items()) if name not in SYSTEM_GROUPS}


def merged(tables: list[dict[str, dict[str, Any]]], *summed: str) -> dict[str, dict[str, Any]]:
    """Merges the tables of several brokers; adds the members `summed` of entries in more than one."""
    total: dict[str, dict[str, Any]] = {}
    for table in tables:
        for name, entry in table.items():
            known = total.get(name)
            total[name] = {**entry, **{key: entry[key] + known[key] for key in summed}} if known else entry
    return total


@command("exportMetadata")
@namesrv_option
@broker_option
@cluster_option
@_path_option
@click.option("-t", "--topic", "topics_only", is_flag=True, help="Topics only: topic.json.")
@click.option(
    "-g", "--subscriptionGroup", "groups_only", is_flag=True, help="Groups only: subscriptionGroup.json."
)
@click.option("-s", "--specialTopic", "special", is_flag=True, help="Retry topics and dead letters, too.")
@long_format_option
def export_metadata(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    directory: Path,
    topics_only: bool,
    groups_only: bool,
    special: bool,
    output_format: str,
) -> None:
    """Writes topics and groups to a file.

    Of one broker (-b), or of all masters of a cluster (-c): there the queues of a topic at several brokers
    are added up.
    """
    tree: dict[str, Any] = {}
    with MQAdmin(namesrv) as admin:
        addrs = [one.addr for one in admin.targets(broker, cluster)]
        if topics_only or not groups_only:
            tables = [user_topics(admin, addr, special) for addr in addrs]
            tree["topicConfigTable"] = merged(tables, "readQueueNums", "writeQueueNums")
        if groups_only or not topics_only:
            tables = [user_groups(admin, addr) for addr in addrs]
            tree["subscriptionGroupTable"] = merged(tables, "retryQueueNums")
    tree["exportTime"] = wall_clock_ms()
    name = (
        "topic"
        if topics_only and not groups_only
        else "subscriptionGroup"
        if groups_only and not topics_only
        else "metadata"
    )
    _write(directory, f"{name}.json", tree, output_format)


@command("exportConfigs")
@namesrv_option
@cluster_option
@_path_option
@long_format_option
def export_configs(
    namesrv: tuple[str, ...], cluster: str | None, directory: Path, output_format: str
) -> None:
    """Writes brokers' configuration to a file: configs.json."""
    with MQAdmin(namesrv) as admin:
        brokers = admin.targets(None, cluster, slaves=True)
        masters = [one for one in brokers if one.is_master]
        configs = {one.name: admin.broker_config(one.addr) for one in masters}
        nameservers = len(admin.nameservers)
    tree = {
        "brokerConfigs": {
            name: {key: config[key] for key in CONFIG_KEYS if key in config}
            for name, config in configs.items()
        },
        "clusterScale": {
            "masterBrokerSize": len(masters),
            "namesrvSize": nameservers,
            "slaveBrokerSize": len(brokers) - len(masters),
        },
    }
    _write(directory, "configs.json", tree, output_format)


@command("exportMetrics")
@namesrv_option
@cluster_option
@_path_option
@long_format_option
def export_metrics(
    namesrv: tuple[str, ...], cluster: str | None, directory: Path, output_format: str
) -> None:
    """Writes brokers' traffic and load to a file: metrics.json."""
    with MQAdmin(namesrv) as admin:
        report = {one.name: broker_report(admin, one) for one in admin.targets(None, cluster)}
    tps: Counter[str] = Counter()
    day: Counter[str] = Counter()
    for entry in report.values():
        quota = entry["runtimeQuota"]
        tps.update({f"total{name[0].upper()}{name[1:]}": value for name, value in quota["tps"].items()})
        day.update({f"total{name[0].upper()}{name[1:]}": value for name, value in quota["oneDayNum"].items()})
    tree = {"evaluateReport": report, "totalData": {"totalOneDayNum": dict(day), "totalTps": dict(tps)}}
    _write(directory, "metrics.json", tree, output_format)


def broker_report(admin: MQAdmin, broker: Broker) -> dict[str, dict[str, Any]]:
    info = admin.runtime_info(broker.addr)
    groups = user_groups(admin, broker.addr)
    half = traffic(admin, [broker.addr], TOPIC_PUT_NUMS, HALF_TOPIC)
    delayed = traffic(admin, [broker.addr], TOPIC_PUT_NUMS, SCHEDULE_TOPIC)

    def grown(name: str) -> int:
        """The growth between the midnights of yesterday and today."""
        return int(info.get(f"{name}TodayMorning", 0)) - int(info.get(f"{name}YesterdayMorning", 0))

    return {
        "runtimeEnv": {
            "cpuNum": admin.broker_config(broker.addr).get("clientCallbackExecutorThreads"),
            "totalMemKBytes": info.get("totalMemKBytes"),
        },
        "runtimeQuota": {
            "diskRatio": {name: info.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
            "groupSize": len(groups),
            "messageAverageSize": info.get("putMessageAverageSize"),
            "oneDayNum": {
                "normalOneDayInNum": grown("msgPutTotal"),
                "normalOneDayOutNum": grown("msgGetTotal"),
                "scheduleOneDayInNum": delayed.messages,
                "transOneDayInNum": half.messages,
            },
            "topicSize": len(user_topics(admin, broker.addr, special=False)),
            "tps": {
                "normalInTps": _first(info.get("putTps")),
                "normalOutTps": _first(info.get("getTransferedTps")),
                "scheduleInTps": delayed.tps,
                "transInTps": half.tps,
            },
        },
        "runtimeVersion": {
            "clientInfo": _clients(admin, list(groups)),
            "rocketmqVersion": version_text(VERSION),
        },
    }


def _first(text: str | None) -> float:
    """The first number of "10s 60s 600s"."""
    words = (text or "0").split()
    return float(words[0]) if words else 0.0


def _clients(admin: MQAdmin, groups: list[str]) -> list[str]:
    """JAVA%V4_9_8 for each kind of client that is online."""
    found: set[str] = set()
    for group in groups:
        with suppress(RemotingError):
            members = consumer_connection(admin, group).connection_set
            found.update(f"{member.language}%{version_text(member.version)}" for member in members)
    return sorted(found)
