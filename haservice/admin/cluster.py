"""`mqadmin clusterList` and `brokerStatus`: which brokers there are, and how each is doing."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress

import click

from commitlog.log import wall_clock_ms
from haservice.admin.calls import Admin, Broker
from haservice.admin.ha_status import ha_status
from haservice.admin.options import broker_option, cluster_option, command, format_option, namesrv_option
from haservice.admin.output import Column, Table, human_bytes, number, show, show_pairs, shown_addr, to_json
from haservice.errors import RemotingError

MS_PER_HOUR = 3_600_000
# Stands in place of a broker's own entries, none of which is called so.
SILENT = "error"


def hours(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f}%"


def whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


CLUSTER_COLUMNS = (
    Column("#Cluster Name", "clusterName"),
    Column("#Broker Name", "brokerName"),
    Column("#BID", "brokerId", right=True),
    Column("#Addr", "brokerAddr", shown_addr),
    Column("#Version", "version"),
    Column("#InTPS", "inTps", number, right=True),
    Column("#OutTPS", "outTps", number, right=True),
    Column("#PCWait(ms)", "pageCacheLockTimeMs", whole, right=True),
    Column("#Log End", "commitLogMaxOffset", human_bytes, right=True),
    Column("#Hour", "hoursKept", hours, right=True),
    Column("#SPACE", "diskRatio", percent, right=True),
    Column("#Note", "note", lambda text: text or ""),
)


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
@format_option
def cluster_list(
    namesrv: tuple[str, ...], cluster: str | None, more: bool, interval_s: float | None, output_format: str
) -> None:
    """Lists clusters and their brokers.

    Version, messages a second, log end, hours kept, disk in use.  BID 0 is the master of its broker name,
    others are its slaves.  A broker that the nameserver still lists and that does not answer is shown
    with the reason.
    """
    table_of = more_table if more else cluster_table
    with Admin(namesrv) as admin, suppress(KeyboardInterrupt):  # how one ends a watch is no failure
        show(table_of(admin, cluster), output_format)
        while interval_s is not None:
            time.sleep(interval_s)
            show(table_of(admin, cluster), output_format)


def cluster_table(admin: Admin, cluster: str | None) -> Table:
    table = Table(CLUSTER_COLUMNS)
    for broker in admin.brokers(cluster):
        try:
            info, note = admin.runtime_info(broker.addr), None
        except RemotingError as error:
            info, note = {}, str(error)
        table.add(*cluster_row(broker, info, note, wall_clock_ms()))
    return table


def more_table(admin: Admin, cluster: str | None) -> Table:
    """Each master's messages from midnight to midnight, and since."""
    table = Table(MORE_COLUMNS)
    for broker in admin.brokers(cluster):
        if broker.is_master:
            info = _runtime_if_up(admin, broker)
            spans = (("TodayMorning", "YesterdayMorning"), ("TodayNow", "TodayMorning"))
            grown = [
                int(info.get(f"msg{way}Total{end}", 0)) - int(info.get(f"msg{way}Total{start}", 0))
                for end, start in spans
                for way in ("Put", "Get")
            ]
            table.add(broker.cluster, broker.name, *grown)
    return table


def cluster_row(
    broker: Broker, info: Mapping[str, str], note: str | None, now_ms: int
) -> tuple[str | float | int | None, ...]:
    """One line from a runtime table, any entry of which may be missing.  Pure."""
    end = first_number(info.get("commitLogMaxOffset"))
    earliest_ms = first_number(info.get("earliestMessageTimeStamp"))
    kept = (now_ms - earliest_ms) / MS_PER_HOUR if earliest_ms is not None and earliest_ms > 0 else None
    return (
        broker.cluster,
        broker.name,
        broker.broker_id,
        broker.addr,
        info.get("brokerVersionDesc"),
        first_number(info.get("putTps")),
        first_number(info.get("getTransferedTps")),
        first_number(info.get("pageCacheLockTimeMills")),
        None if end is None else int(end),
        kept,
        first_number(info.get("commitLogDiskRatio")),
        note,
    )


def first_number(text: str | None) -> float | None:
    """The first of blank-separated numbers: putTps holds those of 10 s, 60 s and 600 s."""
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
    with Admin(namesrv) as admin:
        if broker is not None:
            show_pairs(dict(sorted(admin.runtime_info(broker).items())), output_format)
            return
        found = {one.addr: _runtime_if_up(admin, one) for one in admin.brokers(cluster)}
    if output_format == "json":
        click.echo(to_json(found))
    else:
        for addr, info in found.items():
            click.echo(f"# {addr}")
            show_pairs(dict(sorted(info.items())), output_format)
    if any(SILENT in info for info in found.values()):
        sys.exit(1)


def _runtime_if_up(admin: Admin, broker: Broker) -> dict[str, str]:
    """The others are shown though one does not answer."""
    try:
        return admin.runtime_info(broker.addr)
    except RemotingError as error:
        return {SILENT: str(error)}


COMMANDS = (ha_status, cluster_list, broker_status)
