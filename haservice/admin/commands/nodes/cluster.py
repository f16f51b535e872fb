"""`mqadmin clusterList` and `brokerStatus`: which brokers there are, and how each is doing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import click

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.commands.ha.findings import Severity, show_verdicts, worst
from haservice.admin.commands.ha.ha_questions import UNKNOWN_ID, Seen, take
from haservice.admin.commands.ha.verdict import verdicts_of
from haservice.admin.fanout import say_failures, say_none_registered
from haservice.errors import RemotingError
from haservice.terminal.options import (
    broker_option,
    cluster_option,
    command,
    format_option,
    namesrv_option,
    wide_option,
)
from haservice.terminal.output import (
    Column,
    Table,
    echo,
    echo_line,
    human_bytes,
    show,
    show_pairs,
    shown_addr,
    to_json,
)

MS_PER_HOUR = 3_600_000
# Replaces a broker's own entries; none of them has this name.
SILENT = "error"


def hours(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def load(told: tuple[float | None, str | None, str | None]) -> str:
    """Messages a second; how many requests wait for a thread, and since when the first one."""
    tps, waiting, waits_ms = told
    behind = "" if waiting is None or waits_ms is None else f"({waiting},{waits_ms}ms)"
    return "-" if tps is None else f"{tps:.2f}{behind}"


# Stock mqadmin's columns, in its order and forms; the last one is ours.
CLUSTER_COLUMNS = (
    Column("#Cluster Name", "clusterName"),
    Column("#Broker Name", "brokerName"),
    Column("#BID", "brokerId", right=True),
    Column("#Addr", "brokerAddr", shown_addr),
    Column("#Version", "version", spare=5),
    Column("#InTPS(LOAD)", "inTps", load, right=True, spare=1),
    Column("#OutTPS(LOAD)", "outTps", load, right=True, spare=2),
    Column("#PCWait(ms)", "pageCacheLockTimeMs", whole, right=True, spare=6),
    Column("#Hour", "hoursKept", hours, right=True, spare=4),
    Column("#SPACE", "diskRatio", ratio, right=True),
    Column("#Log End", "commitLogMaxOffset", human_bytes, right=True, spare=3),
    Column("#haservice", "haservice", spare=7),
)
# How requests wait, by direction.
LOADS = {
    "inTps": ("sendThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills"),
    "outTps": ("pullThreadPoolQueueSize", "pullThreadPoolQueueHeadWaitTimeMills"),
}


MORE_COLUMNS = (
    Column("#Cluster Name", "clusterName"),
    Column("#Broker Name", "brokerName"),
    Column("#InTotalYest", "inTotalYesterday", right=True),
    Column("#OutTotalYest", "outTotalYesterday", right=True),
    Column("#InTotalToday", "inTotalToday", right=True),
    Column("#OutTotalToday", "outTotalToday", right=True),
)


@command("clusterList")
@namesrv_option
@cluster_option
@click.option("-m", "--moreStats", "more", is_flag=True, help="Messages of yesterday and today instead.")
@click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    metavar="N",
    help="Look again every N s.",
)
@wide_option
@format_option
def cluster_list(
    namesrv: tuple[str, ...],
    cluster: str | None,
    more: bool,
    interval_s: float | None,
    wide: bool,
    output_format: str,
) -> None:
    """Lists clusters and their brokers.

    First a verdict for each broker name, as mqadmin check gives it.  Then of each broker: version, messages
    a second (and of the requests that wait how many, and how long), hours kept, share of the disk in use,
    log end.  #Version is RocketMQ's, which clients go by; #haservice is ours, and empty for RocketMQ's.  BID 0
    is the master of its broker name, others are its slaves; a replica that is known and not registered has
    none.  If one does not answer, standard error gives the reason; then, and if a verdict is
    CRITICAL, the exit code is 1.
    """
    show_once: Callable[[MQAdmin, str | None, str, bool], bool] = show_more if more else show_cluster
    complete = True
    with MQAdmin(namesrv) as admin, suppress(KeyboardInterrupt):  # Ctrl-C ends a watch: no failure
        complete = show_once(admin, cluster, output_format, wide)
        while interval_s is not None:
            time.sleep(interval_s)
            show_once(admin, cluster, output_format, wide)
    if not complete:
        sys.exit(1)


def show_cluster(admin: MQAdmin, cluster: str | None, output_format: str, wide: bool) -> bool:
    """Shows the cluster; returns whether nothing is wrong, and all brokers answered."""
    seen, now_ms = take(admin, None, cluster), wall_clock_ms()
    verdicts = verdicts_of(seen, now_ms)
    judged = {one.name: {"verdict": one.state.name, "verdictText": one.text} for one in verdicts}
    rows = [cluster_row(one, now_ms) | judged[one.broker.name] for one in seen]
    if output_format == "json":
        echo(to_json(rows))
    else:
        show_verdicts(verdicts)
        show(cluster_table(rows), output_format, wide=wide)
    if not seen:
        say_none_registered(admin, output_format)
    failures = [one.failure for one in seen if one.failure is not None]
    say_failures(failures)
    return not failures and worst(one.state for one in verdicts) is not Severity.CRITICAL


def cluster_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The rows for a person.  Pure."""
    table = Table(CLUSTER_COLUMNS)
    for row in rows:
        told = {key: (row[key], *(row[name] for name in names)) for key, names in LOADS.items()}
        table.add(*(told.get(column.key, row[column.key]) for column in CLUSTER_COLUMNS))
    return table


def show_more(admin: MQAdmin, cluster: str | None, output_format: str, wide: bool) -> bool:
    """Shows each master's messages of yesterday, and since midnight; returns whether all answered."""
    table = Table(MORE_COLUMNS)
    brokers = admin.brokers(cluster)
    found, failures = runtime_infos(admin, [one for one in brokers if one.is_master])
    for broker, info in found.items():
        spans = (("TodayMorning", "YesterdayMorning"), ("TodayNow", "TodayMorning"))
        grown = [
            int(info.get(f"msg{way}Total{end}", 0)) - int(info.get(f"msg{way}Total{start}", 0))
            for end, start in spans
            for way in ("Put", "Get")
        ]
        table.add(broker.cluster, broker.name, *grown)
    show(table, output_format, wide=wide)
    if not brokers:
        say_none_registered(admin, output_format)
    say_failures(list(failures.values()))
    return not failures


def cluster_row(one: Seen, now_ms: int) -> dict[str, Any]:
    """One line from a runtime table; any entry of the table may be missing.  Pure.

    A replica that is on a list and not registered has no id.
    """
    broker, info = one.broker, one.info
    end = first_number(info.get("commitLogMaxOffset"))
    earliest_ms = first_number(info.get("earliestMessageTimeStamp"))
    kept = (now_ms - earliest_ms) / MS_PER_HOUR if earliest_ms is not None and earliest_ms > 0 else None
    return {
        "clusterName": broker.cluster,
        "brokerName": broker.name,
        "brokerId": None if broker.broker_id == UNKNOWN_ID else broker.broker_id,
        "brokerAddr": broker.addr,
        "version": info.get("brokerVersionDesc"),
        "inTps": first_number(info.get("putTps")),
        "outTps": first_number(info.get("getTransferedTps")),
        **{name: info.get(name) for names in LOADS.values() for name in names},
        "pageCacheLockTimeMs": first_number(info.get("pageCacheLockTimeMills")),
        "commitLogMaxOffset": None if end is None else int(end),
        "hoursKept": kept,
        "haservice": info.get("haserviceVersion"),
        "diskRatio": first_number(info.get("commitLogDiskRatio")),
        "note": None if one.failure is None else str(one.failure),
    }


def first_number(text: str | None) -> float | None:
    """The first of several numbers with blanks between: putTps has those of 10 s, 60 s and 600 s."""
    words = (text or "").split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


@command("brokerStatus")
@namesrv_option
@broker_option
@cluster_option
@format_option
def broker_status(
    namesrv: tuple[str, ...], broker: str | None, cluster: str | None, output_format: str
) -> None:
    """Shows all that a broker says of itself.

    Of one broker with -b, else of each that the nameserver knows, or of a cluster's with -c.  One that does
    not answer is shown with the reason, and makes the exit code 1.
    """
    with MQAdmin(namesrv) as admin:
        if broker is not None:
            show_pairs(dict(sorted(admin.runtime_info(broker).items())), output_format)
            return
        answers, failures = runtime_infos(admin, admin.brokers(cluster))
    found = {
        one.addr: {SILENT: str(failures[one])} if one in failures else info for one, info in answers.items()
    }
    if output_format == "json":
        echo(to_json(found))
    else:
        for addr, info in found.items():
            echo_line(f"# {addr}")
            show_pairs(dict(sorted(info.items())), output_format)
    say_failures(list(failures.values()))
    if failures:
        sys.exit(1)


def runtime_infos(
    admin: MQAdmin, brokers: Iterable[Broker]
) -> tuple[dict[Broker, dict[str, str]], dict[Broker, RemotingError]]:
    """The runtime tables of those that answer, and the errors of those that do not."""
    found: dict[Broker, dict[str, str]] = {}
    failures: dict[Broker, RemotingError] = {}
    for broker in brokers:
        try:
            found[broker] = admin.runtime_info(broker.addr)
        except RemotingError as error:
            found[broker], failures[broker] = {}, error
    return found, failures
