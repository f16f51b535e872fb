"""`mqadmin haStatus`: who replicates from whom, how far behind, and why one does not count.

First comes a verdict for each broker name.  Below it each link is one line: a master lists each connected
slave as the master sees it (its view decides SYNC_MASTER's answers), and a slave lists its master.  A stock
4.9 broker has no status request (907); the ends of both logs (28) still give the lag.  Every replica on the
replica list has a line, registered or not.
Notes below the lines say what differs from the properties file, why a master refuses writes, and why a
failover is not safe.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import click

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.lease_text import lease_notes, lease_of, seconds_left
from haservice.admin.commands.ha.findings import NameVerdict, Severity, show_verdicts, worst
from haservice.admin.commands.ha.ha_questions import UNKNOWN_ID, Seen, lists_of, take
from haservice.admin.commands.ha.topology import SHORT_ID, damage_text, seen_text
from haservice.admin.commands.ha.verdict import verdicts_of
from haservice.admin.fanout import say_failures, say_none_registered
from haservice.broker.roles.rules import last_heard
from haservice.errors import RemotingError
from haservice.remoting.bodies.clients import (
    HAAbsentInfo,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
)
from haservice.remoting.headers.lineage import LineageBody
from haservice.terminal.options import (
    cluster_option,
    command,
    format_option,
    is_address,
    name_or_address_option,
    namesrv_option,
    wide_option,
)
from haservice.terminal.output import (
    Column,
    Table,
    and_text,
    echo,
    human_bytes,
    human_rate,
    human_seconds,
    show,
    shown_addr,
)

# Only where a broker has haCoordinator.
LEASE_COLUMN = Column("#Lease", "lease", spare=1)
COLUMNS = (
    Column("#Broker Name", "brokerName"),
    Column("#Role", "role"),
    Column("#Addr", "brokerAddr"),
    Column("#Epoch", "epoch", right=True, spare=5),
    Column("#Log End", "logEnd", right=True, spare=4),
    Column("#Peer", "peer", spare=9),
    Column("#Peer Broker", "peerBrokerAddr", spare=1),
    Column("#Replica", "peerReplicaId", lambda value: "-" if value is None else value[:SHORT_ID], spare=8),
    Column("#Peer Version", "peerVersion", spare=11),
    Column("#Ack Offset", "ackOffset", right=True, spare=6),
    Column("#Lag", "lagBytes", human_bytes, right=True),
    Column("#Lag Time", "lagSeconds", human_seconds, right=True, spare=3),
    Column("#Rate", "bytesPerSecond", human_rate, right=True, spare=7),
    Column("#In Sync", "inSync", spare=2),
    Column("#Lineage", "lineage", lambda value: "-" if value is None else shown_lineage(value), spare=10),
    LEASE_COLUMN,
    Column("#State", "state"),
    Column("", "roleFrom", json_only=True),
    Column("", "roleWhy", json_only=True),
    Column("", "held", json_only=True),
    Column("", "metadataNotCopied", json_only=True),
    Column("", "failedThreads", json_only=True),
    Column("", "acknowledgedCut", json_only=True),
    Column("", "notRegistered", json_only=True),
    Column("", "nextSegmentNotMade", json_only=True),
    Column("", "replicaId", json_only=True),
    Column("", "unproven", json_only=True),
    Column("", "pledged", json_only=True),
    Column("", "pledgedTo", json_only=True),
    Column("", "replicas", json_only=True),
    Column("", "verdict", json_only=True),
    Column("", "verdictText", json_only=True),
    Column("", "leaseMaster", json_only=True),
    Column("", "leaseSecondsLeft", json_only=True),
    Column("", "leaseWhyNot", json_only=True),
)
STOCK_PEER = "stock peer"
SAME_LOG = "one log"

NO_SLAVE = "no slave is connected"
# A slave says so while its link stands.
LINKED = "TRANSFER"
STOCK = "no HA status in RocketMQ 4.9; the lag is the difference of both logs' ends"


@dataclass(frozen=True, slots=True)
class Link:
    """The right half of a line."""

    peer: str | None = None
    ack_offset: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    bytes_per_second: int | None = None
    in_sync: bool | None = None
    state: str = ""
    peer_broker_addr: str | None = None
    peer_replica_id: str | None = None
    lineage: str | None = None
    peer_version: str | None = None

    def cells(self) -> tuple[Any, ...]:
        return (
            self.peer,
            self.peer_broker_addr,
            self.peer_replica_id,
            self.peer_version,
            self.ack_offset,
            self.lag_bytes,
            self.lag_seconds,
            self.bytes_per_second,
            self.in_sync,
            self.lineage,
            self.state,
        )


def shown_lineage(said: str) -> str:
    """A short form: the column State says why a greeting was refused."""
    return next((short for short in (SAME_LOG, "refused") if said.startswith(short)), said)


def table_of(seen: Sequence[Seen], now_ms: int, verdicts: Sequence[NameVerdict] = ()) -> Table:
    """Every link of these brokers, and notes on each broker.  Pure."""
    is_leased = any(one.info.get("leaseCoordinator") for one in seen)
    unleased = replace(LEASE_COLUMN, json_only=True)
    table = Table([unleased if one is LEASE_COLUMN and not is_leased else one for one in COLUMNS])
    judged = {one.name: (one.state.name, one.text) for one in verdicts}
    ends = {one.broker.name: one.log_end for one in seen if not one.is_slave and one.log_end is not None}
    for one in seen:
        for link in links_of(one, seen, ends.get(one.broker.name), now_ms):
            table.add(
                one.broker.name,
                one.role,
                one.broker.addr,
                one.epoch,
                one.log_end,
                *link.cells()[:-1],
                lease_of(one),
                link.state,
                *role_of(one),
                one.failed_threads or None,
                one.info.get("acknowledgedCut") or None,
                one.not_registered or None,
                one.next_segment_not_made or None,
                *place_of(one),
                *judged.get(one.broker.name, (None, None)),
                one.info.get("leaseMaster") or None,
                seconds_left(one),
                one.info.get("leaseWhyNot") or None,
            )
    notes = (note for one in seen for note in notes_of(one))
    table.notes = [*lease_notes(seen), *notes, *shared_id_notes(seen)]
    return table


def role_of(one: Seen) -> tuple[str | None, ...]:
    """The source of its role and why, why it refuses writes, why it does not copy topics and offsets."""
    said = one.lineage
    if said is None:
        return None, None, None, None
    return said.role_from, said.role_why or None, said.held or None, said.not_copied or None


def place_of(one: Seen) -> tuple[Any, ...]:
    """Its id, who tells it of a newer epoch without proof, its pledge and to whom, its replica list."""
    said = one.lineage
    if said is None:
        return None, None, None, None, None
    pledged = said.pledged if said.pledged >= 0 else None
    return said.replica_id, said.unproven or None, pledged, said.pledged_to or None, replicas_of(said)


def replicas_of(said: LineageBody) -> list[dict[str, Any]]:
    """Its replica list: who may hold an acknowledged message."""
    if said.members is None:
        return []
    seen = last_heard(said)
    return [
        {
            "replicaId": replica_id,
            "brokerAddr": addr or None,
            "isMaster": replica_id == said.members.master,
            "lastSeenMs": seen.get(replica_id) or None,
        }
        for replica_id, addr in said.members.replicas.items()
    ]


def notes_of(one: Seen) -> list[str]:
    """Notes on the broker itself, a line each."""
    who = f"{one.broker.name} at {shown_addr(one.broker.addr)}"
    notes = []
    wanted = max(1, one.in_sync_replicas - 1)
    if one.role == "SYNC_MASTER" and one.status and one.in_sync_replicas > 2:
        there = one.status.in_sync_slave_nums
        if there < wanted:
            notes.append(
                f"{who} answers SLAVE_NOT_AVAILABLE: inSyncReplicas={one.in_sync_replicas} asks for {wanted}"
                f" slaves in sync, {there} of them {'is' if there == 1 else 'are'}."
            )
    if one.damaged:
        notes.append(damage_text(who, one.damaged))
    if cut := one.info.get("acknowledgedCut"):
        notes.append(f"{who} has lost acknowledged messages: {cut}")
    if one.failed_threads:
        notes.append(f"{who} lacks a thread that has failed: {one.failed_threads}.")
    if one.info.get("restartedThreads"):
        notes.append(f"{who} has started a thread again that had failed: {one.info['restartedThreads']}.")
    if one.not_registered:
        notes.append(f"{who} is not registered, clients and slaves do not find it: {one.not_registered}")
    if one.next_segment_not_made:
        notes.append(
            f"{who} has no room for the next log file, and refuses writes once the last one is full: "
            f"{one.next_segment_not_made}"
        )
    if one.lineage is None:
        return notes
    if one.lineage.role_from == "command":
        why = f" ({one.lineage.role_why})" if one.lineage.role_why else ""
        notes.append(
            f"{who} is {one.role} by command{why}; its file counts again once its brokerRole is changed."
        )
    if one.lineage.changing:
        notes.append(f"{who} is changing its role.")
    if one.lineage.held:
        notes.append(f"{who} refuses writes: {one.lineage.held}")
    if one.lineage.unproven:
        notes.append(f"{who} ignores a newer epoch that is claimed without proof: {one.lineage.unproven}")
    if one.lineage.pledged > one.lineage.epoch:
        to = f"{shown_addr(one.lineage.pledged_to)}, " if one.lineage.pledged_to else ""
        notes.append(
            f"{who} has pledged to {to}the next master, for epoch {one.lineage.pledged}: it follows no master of an"
            " older epoch."
        )
    if one.lineage.not_copied:
        notes.append(f"{who} does not copy its master's topics, groups and offsets: {one.lineage.not_copied}")
    return notes


def shared_id_notes(seen: Sequence[Seen]) -> list[str]:
    """A line for each brokerId that slaves of a name share: a nameserver keeps one address of an id."""
    at: dict[tuple[str, int], list[str]] = {}
    for one in seen:
        broker_id = one.lineage.broker_id if one.lineage is not None else one.broker.broker_id
        if one.failure is None and one.is_slave and 0 < broker_id < UNKNOWN_ID:
            at.setdefault((one.broker.name, broker_id), []).append(one.broker.addr)
    return [
        f"{name}: {and_text(sorted(map(shown_addr, addrs)))} have the same brokerId={broker_id}: nameservers list"
        " one of them at a time, and clients do not find the others.  Give each its own brokerId, and start it again."
        for (name, broker_id), addrs in at.items()
        if len(addrs) > 1
    ]


def silent_notes(seen: Sequence[Seen]) -> list[str]:
    """A line for each slave on a list that does not answer and is not connected to its master."""
    answering = {one.lineage.replica_id for one in seen if one.lineage is not None}
    connected = {link.replica_id for one in seen if one.status for link in one.status.ha_connection_info}
    asked = {one.broker.addr for one in seen}
    notes = []
    for name, listed in lists_of(seen).items():
        has_master = any(one.broker.name == name and one.status and one.status.master for one in seen)
        for replica_id in sorted(listed.slaves - answering - connected):
            addr = listed.replicas[replica_id]
            if addr in asked or has_master:
                said = seen_text(_seen_ms(seen, replica_id), told=has_master)
                notes.append(_silent_note(name, replica_id, addr, said))
    return notes


def _silent_note(name: str, replica_id: str, addr: str, seen: str) -> str:
    who = f"{shown_addr(addr)} ({replica_id[:SHORT_ID]})" if addr else f"replica {replica_id[:SHORT_ID]}"
    return (
        f"{name}: {who} is on the list of replicas and unreachable{seen}: it may have acknowledged messages that"
        " no other broker has, unless a failover has said that none are missing.  Start it; if it is lost for good:"
        f" mqadmin forget -b {name} --replica {shown_addr(addr) or replica_id}"
    )


def _seen_ms(seen: Iterable[Seen], replica_id: str) -> int:
    known = (last_heard(one.lineage) for one in seen if one.lineage is not None)
    return max((heard.get(replica_id, 0) for heard in known), default=0)


def links_of(one: Seen, seen: Iterable[Seen], master_end: int | None, now_ms: int) -> list[Link]:
    if one.failure is not None:
        return [Link(state=str(one.failure))]
    if one.is_slave:
        client = one.status.ha_client_runtime_info if one.status else None
        return [_link_to_master(one, client, master_end, now_ms)]
    if one.status is None:
        return _links_of_stock_master(one, seen)
    slaves = [_link_to_slave(connection, one, seen) for connection in one.status.ha_connection_info]
    slaves += [_absent(slave, now_ms) for slave in one.status.absent_slaves]
    return slaves or [Link(in_sync=False, state=NO_SLAVE)]


def _link_to_slave(connection: HAConnectionRuntimeInfo, one: Seen, seen: Iterable[Seen]) -> Link:
    """The leader of a DLedger group knows a member's id, and not where its clients reach it, nor since when it lags."""
    elected = one.lineage is not None and one.lineage.is_in_group
    addrs = (
        other.broker.addr
        for other in seen
        if other.broker.name == one.broker.name
        and other.lineage is not None
        and other.lineage.replica_id == connection.replica_id
    )
    return Link(
        peer=connection.addr,
        ack_offset=connection.slave_ack_offset,
        lag_bytes=connection.diff,
        lag_seconds=None if elected else connection.lag_seconds,
        bytes_per_second=connection.transferred_byte_in_second,
        in_sync=connection.in_sync,
        state=connection.reason or ("caught up" if connection.diff == 0 else "replicating"),
        peer_broker_addr=connection.broker_addr or (next(addrs, None) if elected else None),
        peer_replica_id=connection.replica_id or None,
        peer_version=connection.haservice_version,
        lineage=SAME_LOG if connection.replica_id else STOCK_PEER,
    )


def _absent(slave: HAAbsentInfo, now_ms: int) -> Link:
    """A slave that is not connected, with the master's reason."""
    ago = human_seconds(max(0, now_ms - slave.timestamp) / 1000)
    return Link(
        peer=slave.addr,
        ack_offset=slave.reported if slave.reported >= 0 else None,
        in_sync=False,
        state=f"{slave.reason} ({ago} ago)",
    )


def _link_to_master(
    one: Seen, client: HAClientRuntimeInfo | None, master_end: int | None, now_ms: int
) -> Link:
    """The slave's side.  Only its master decides whether it is in sync, so this does not say it.

    Where a master ended that the slave has lost says nothing of its lag.
    """
    if master_end is None and client is not None and (client.state or LINKED).startswith(LINKED):
        master_end = client.master_end if client.master_flush_offset <= 0 else client.master_flush_offset
    lag = None if master_end is None or one.log_end is None else master_end - one.log_end
    ahead = f", {human_bytes(-lag)} ahead of its master" if lag is not None and lag < 0 else ""
    lag = None if ahead else lag
    if client is None:
        return Link(ack_offset=one.log_end, lag_bytes=lag, state=STOCK)
    state = client.state or "connected"
    if client.last_read_timestamp > 0:
        heard_s = max(0, now_ms - client.last_read_timestamp) / 1000
        state += f", last contact with the master {human_seconds(heard_s)} ago"
    state += ahead
    if client.last_error:
        # Not what is the matter now where the link stands again and the master was not heard yet.
        state += f"; before: {client.last_error}" if state.startswith(LINKED) else f"; {client.last_error}"
    return Link(
        peer=client.master_addr or None,
        ack_offset=one.log_end,
        lag_bytes=lag,
        bytes_per_second=client.transferred_byte_in_second,
        state=state,
        peer_broker_addr=one.lineage.master_addr or None if one.lineage is not None else None,
        lineage=client.lineage or None,
    )


def _links_of_stock_master(one: Seen, seen: Iterable[Seen]) -> list[Link]:
    """Links to the slaves that were asked, too; a slave's own log end is the best estimate of its ack."""
    slaves = [other for other in seen if other.is_slave and other.broker.name == one.broker.name]
    links = [
        Link(
            peer=slave.broker.addr,
            ack_offset=slave.log_end,
            lag_bytes=max(0, one.log_end - slave.log_end),
            state=STOCK,
        )
        for slave in slaves
        if one.log_end is not None and slave.log_end is not None
    ]
    return links or [Link(state=STOCK)]


def show_seen(seen: Sequence[Seen], output_format: str, *, alone: bool = False, wide: bool = True) -> bool:
    """Whether nothing is wrong, and all answer that were asked or are on a replica list.

    Standard error says why one does not.
    """
    now_ms = wall_clock_ms()
    verdicts = verdicts_of(seen, now_ms, alone=alone)
    table, silent = table_of(seen, now_ms, verdicts), silent_notes(seen)
    table.notes = [*table.notes, *silent]
    if output_format == "table":
        show_verdicts(verdicts)
    show(table, output_format, wide=wide)
    failures = [one.failure for one in seen if one.failure is not None]
    say_failures(failures)
    return not failures and not silent and worst(one.state for one in verdicts) is not Severity.CRITICAL


@command("haStatus")
@namesrv_option
@name_or_address_option
@cluster_option
@click.option(
    "-w", "--watch", "interval_s", type=click.FloatRange(min=0.1), metavar="N", help="Look again every N s."
)
@wide_option
@format_option
def ha_status(
    namesrv: tuple[str, ...],
    where: str | None,
    cluster: str | None,
    interval_s: float | None,
    wide: bool,
    output_format: str,
) -> None:
    """Shows who is in sync, and why not.

    First a verdict for each broker name, as mqadmin check gives it.  Then each master's slaves and each
    slave's master: offsets, lag in bytes and seconds, rate, state.

    \b
      mqadmin haStatus -n 127.0.0.1:9876              all brokers that the nameserver knows
      mqadmin haStatus -n 127.0.0.1:9876 -w 2         again every 2 seconds, until Ctrl-C
      mqadmin haStatus -n 127.0.0.1:9876 -b broker-a  the brokers of one name
      mqadmin haStatus -b 127.0.0.1:10911             one broker, without a nameserver

    Lag Time is how long ago the master had no more than this slave has now.  A SYNC_MASTER answers SEND_OK
    while a slave is in sync; State says why one is not.  Epoch is the number of the last master's time in
    office, see mqadmin history.  Lineage says whether the two compared theirs, which stock peers cannot.
    Replicas on the list are shown, registered or not, until mqadmin forget removes them.  If a verdict is
    CRITICAL, or a broker or a replica on the list is unreachable, the exit code is 1.
    """
    alone = is_address(where)
    with MQAdmin(namesrv) as admin:

        def show_it(seen: Sequence[Seen]) -> bool:
            return _show(admin, seen, output_format, alone=alone, wide=wide)

        if interval_s is None:
            if not show_it(take(admin, where, cluster)):
                sys.exit(1)
            return
        with suppress(KeyboardInterrupt):  # Ctrl-C ends a watch: no failure
            while True:
                _show_again(lambda: take(admin, where, cluster), show_it, output_format)
                time.sleep(interval_s)


def _show_again(
    look: Callable[[], list[Seen]], show_it: Callable[[Sequence[Seen]], bool], output_format: str
) -> None:
    """Shows a watch once more; it goes on when nobody answers: then people need it most."""
    try:
        seen = look()
    except RemotingError as error:
        echo(f"{time.strftime('%H:%M:%S')}  {error}", err=True)
        return
    if output_format == "table":
        click.clear()
        echo(time.strftime("%H:%M:%S"))
    show_it(seen)


def _show(admin: MQAdmin, seen: Sequence[Seen], output_format: str, *, alone: bool, wide: bool) -> bool:
    complete = show_seen(seen, output_format, alone=alone, wide=wide)
    if not seen:
        say_none_registered(admin, output_format)
    return complete
