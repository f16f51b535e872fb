"""`mqadmin check`: one verdict a broker name, with Nagios's exit codes.

It asks all nameservers and all brokers at once, so that it ends in time for whoever runs it, whatever is down.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import click

from commitlog.errors import CommitLogError
from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.commands.ha.findings import (
    COLOURS,
    CheckLimits,
    Finding,
    NameFigures,
    NameVerdict,
    Severity,
    nagios_lines,
    result_object,
    worst,
)
from haservice.admin.commands.ha.ha_questions import UNKNOWN_ID, Failure, Seen, look, take_all
from haservice.admin.commands.ha.verdict import verdicts_of
from haservice.errors import HAServiceError, ProtocolError, RemotingError
from haservice.remoting.bodies.clients import MASTER_ID, ClusterInfo
from haservice.remoting.codes import RequestCode
from haservice.terminal.explain import explain
from haservice.terminal.options import (
    CONTEXT,
    Command,
    address,
    cluster_option,
    format_option,
    is_address,
    namesrv_option,
)
from haservice.terminal.output import and_text, echo, echo_coloured, shown_addr, to_json

# Nagios gives a check 10 s by default when it runs on another machine.
TIMEOUT_S = 2.0


class CheckCommand(Command):
    """Whatever keeps it from a verdict, a wrong command line included, is UNKNOWN: 1 and 2 are verdicts."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.ClickException as error:
            vars(error).update(exit_code=int(Severity.UNKNOWN))
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            said = error.format_message()
        except (HAServiceError, CommitLogError, OSError) as error:
            said = explain(error)
        # Nagios shows the first line of standard output.
        echo(f"{Severity.UNKNOWN.name} - {said}".replace("|", "/"))
        sys.exit(Severity.UNKNOWN)


@click.command("check", cls=CheckCommand, context_settings=CONTEXT)
@namesrv_option
@click.option(
    "-b",
    "--brokerName",
    "where",
    metavar="NAME",
    help="One broker name, or the address of one of its brokers.",
)
@cluster_option
@click.option(
    "--lag-warning",
    "lag_warning_s",
    type=click.FloatRange(min=0),
    metavar="N",
    default=CheckLimits().lag_warning_s,
    show_default=True,
    help="WARNING for a slave that is N seconds behind.",
)
@click.option(
    "--lag-critical",
    "lag_critical_s",
    type=click.FloatRange(min=0),
    metavar="N",
    default=CheckLimits().lag_critical_s,
    show_default=True,
    help="CRITICAL for a slave that is N seconds behind.",
)
@click.option(
    "--slaves",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="WARNING with fewer slaves in sync, for a master that does not wait for any.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    metavar="N",
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for each answer.",
)
@format_option
def check(
    namesrv: tuple[str, ...],
    where: str | None,
    cluster: str | None,
    lag_warning_s: float,
    lag_critical_s: float,
    slaves: int,
    timeout_s: float,
    output_format: str,
) -> None:
    """Says in a line for each broker name whether all is well, for Nagios, Icinga and cron.

    \b
      mqadmin check -n 127.0.0.1:9876                  every broker name
      mqadmin check -n 127.0.0.1:9876 -b broker-a      one, which has to be there
      mqadmin check -b 10.0.0.1:10911                  without a nameserver

    Exit codes, and the word at the beginning of the line:

    \b
      0 OK        sends succeed, and every known slave is in sync
      1 WARNING   sends succeed, but something is missing that the next fault will need
      2 CRITICAL  sends fail or get no SEND_OK; or the log is damaged, or a slave too far behind
      3 UNKNOWN   nobody could be asked, or the command line is wrong

    The worst line comes first and decides the exit code.  Behind its | are the figures for graphs.
    """
    limits = CheckLimits(lag_warning_s, lag_critical_s, slaves)
    with MQAdmin(namesrv) as admin:
        verdicts = judge(admin, namesrv, where, cluster, limits, timeout_s)
    if output_format == "json":
        echo(to_json(result_object(verdicts)))
    else:
        for verdict, line in zip(verdicts, nagios_lines(verdicts, limits), strict=True):
            echo_coloured(line, COLOURS[verdict.state])
    sys.exit(worst(one.state for one in verdicts))


def judge(
    admin: MQAdmin,
    namesrv: Sequence[str],
    where: str | None,
    cluster: str | None,
    limits: CheckLimits,
    timeout_s: float,
) -> list[NameVerdict]:
    """The verdicts, the worst first; at least one.  Raises HAServiceError if nobody can be asked."""
    names = (
        NameTables.ask(admin, namesrv, timeout_s) if namesrv or not is_address(where) else NameTables({}, {})
    )
    if is_address(where):
        seen = _around(admin, address(where), names, timeout_s)
    else:
        brokers = [
            one for one in names.brokers() if where in (None, one.name) and cluster in (None, one.cluster)
        ]
        seen = take_all(admin, brokers, timeout_s)
    # A stock broker tells nothing of the others of its name, and without a nameserver nobody does.
    alone = not names.tables and len(seen) == 1
    found = verdicts_of(seen, wall_clock_ms(), limits, listed=names.addrs() or None, alone=alone)
    if not found:
        what = f"broker name {where}" if where else f"broker of cluster {cluster}" if cluster else "broker"
        text = f"no {what} is registered at {and_text(list(map(shown_addr, names.tables)))}"
        found = [
            _of_nobody(where or cluster or "brokers", Finding(Severity.CRITICAL, "NOT REGISTERED", text))
        ]
    found += [
        _of_nobody(name, Finding(Severity.CRITICAL, "TWO CLUSTERS", text))
        for name, text in names.of_two_clusters().items()
        if not found or name in {one.name for one in found}
    ]
    found.sort(key=lambda one: -one.state.rank)
    if names.silent:
        said = "; ".join(str(error) for error in names.silent.values())
        verdict = _of_nobody("nameservers", Finding(Severity.WARNING, "DOES NOT ANSWER", said))
        found = sorted([*found, verdict], key=lambda one: -one.state.rank)
    return found


def _of_nobody(name: str, finding: Finding) -> NameVerdict:
    return NameVerdict("", name, (finding,), NameFigures())


def _around(admin: MQAdmin, addr: str, names: NameTables, timeout_s: float) -> list[Seen]:
    """The broker at an address, and all of its name that it or the nameservers know."""
    first = look(admin, Broker("", "", MASTER_ID, addr), timeout_s)
    listed = [one for one in names.brokers() if one.name == first.broker.name]
    if all(one.addr != addr for one in listed):
        broker_id = UNKNOWN_ID if first.is_slave else MASTER_ID
        listed.append(first.broker._replace(broker_id=broker_id))
    return take_all(admin, listed, timeout_s)


class NameTables(NamedTuple):
    """What each nameserver lists, and why others do not answer."""

    tables: Mapping[str, ClusterInfo]
    silent: Mapping[str, Failure]

    @classmethod
    def ask(cls, admin: MQAdmin, namesrv: Sequence[str], timeout_s: float) -> NameTables:
        """Asks all at once.  Raises UsageError if there are none, and RemotingError if none answers."""
        places = namesrv or admin.nameservers
        tables: dict[str, ClusterInfo] = {}
        silent: dict[str, Failure] = {}

        def table_at(place: str) -> None:
            code = RequestCode.GET_BROKER_CLUSTER_INFO
            try:
                tables[place] = admin.ask(place, code, into=ClusterInfo, timeout_s=timeout_s)
            except (RemotingError, ProtocolError) as error:
                silent[place] = error

        with ThreadPoolExecutor(max_workers=len(places)) as pool:
            list(pool.map(table_at, places))
        if not tables:
            raise next(iter(silent.values()))
        return cls(tables, silent)

    def brokers(self) -> list[Broker]:
        """Every broker that any of them lists, once: by name, the master first."""
        listed = {
            Broker(data.cluster, data.broker_name, broker_id, addr)
            for table in self.tables.values()
            for data in table.broker_addr_table.values()
            for broker_id, addr in data.broker_addrs.items()
        }
        # Nameservers may differ for a moment while roles change.
        return sorted({one.addr: one for one in sorted(listed, reverse=True)}.values())

    def of_two_clusters(self) -> dict[str, str]:
        """What is wrong with each broker name that a nameserver lists in several clusters."""
        found: dict[str, str] = {}
        for place, table in self.tables.items():
            clusters: dict[str, list[str]] = {}
            for cluster, names in table.cluster_addr_table.items():
                for name in names:
                    clusters.setdefault(name, []).append(cluster)
            for name, several in clusters.items():
                if len(several) > 1:
                    found[name] = (
                        f"{shown_addr(place)} knows it in clusters {and_text(sorted(several))}: clients find only one"
                        " of these brokers; give one cluster's brokers another brokerName"
                    )
        return found

    def addrs(self) -> dict[str, frozenset[str]]:
        """By nameserver the addresses that it lists."""
        return {
            place: frozenset(
                addr for data in table.broker_addr_table.values() for addr in data.broker_addrs.values()
            )
            for place, table in self.tables.items()
        }
