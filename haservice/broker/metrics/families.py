"""The samples of a broker.  Pure: facts in, exposition out.

    haservice_…               ours
    rocketmq_brokeruntime_…   and other names and labels of rocketmq-exporter, where they mean the same here
    rocketmq_storage_…        and other names and labels of RocketMQ 5.x's brokers, likewise

Boards sum over brokers.  So what master and slave both know of a topic or a group, only the master tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from haservice.broker.metrics import rocketmq
from haservice.broker.metrics.facts import BrokerFacts, Histogram
from haservice.broker.metrics.health import link_is_up, slave_lag
from haservice.observability.exposition import Exposition
from haservice.replication.status import HAStatus, SlaveStatus

ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
# Of a histogram: from 2^5 µs to 2^24 µs, 17 s.
FIRST_CLASS, LAST_CLASS = 5, 24


def exposition_of(facts: BrokerFacts) -> Exposition:
    who = facts.who
    out = Exposition({"cluster": who.cluster, "broker": who.broker, "addr": who.addr})
    _identity(out, facts)
    _log(out, facts)
    if facts.status.master is None:
        _replicas(out, facts)
    else:
        _link(out, facts.status)
    _lease(out, facts)
    _member(out, facts)
    _trouble(out, facts)
    _load(out, facts)
    rocketmq.exporter(out, facts)
    rocketmq.broker_5x(out, facts)
    return out


def buckets(histogram: Histogram) -> list[tuple[float, int]]:
    """Upper bound in seconds → how many."""
    counts = histogram.counts or [0]
    below = sum(counts[: FIRST_CLASS + 1])
    inner = [(2.0**n / 1e6, sum(counts[n : n + 1])) for n in range(FIRST_CLASS + 1, LAST_CLASS + 1)]
    return [(2.0**FIRST_CLASS / 1e6, below), *inner, (float("inf"), sum(counts[LAST_CLASS + 1 :]))]


def _identity(out: Exposition, facts: BrokerFacts) -> None:
    who, status = facts.who, facts.status
    out.gauge(
        "haservice_build_info",
        "Version of haservice, and which build of its kernel is in use.",
        1,
        version=who.version,
        kernel=who.kernel,
    )
    for role in ROLES:
        out.gauge("haservice_role", "1 for the role in force.", int(status.role == role), role=role)
    out.gauge("haservice_is_master", "1 for a master.", int(status.master is None))
    out.gauge("haservice_broker_id", "brokerId in force.", who.broker_id)
    out.gauge("haservice_epoch", "Number of the log's last epoch; -1 if there is none.", status.epoch)
    out.gauge("haservice_boot_timestamp_seconds", "When this broker began to serve.", who.boot_ms / 1000)


def _log(out: Exposition, facts: BrokerFacts) -> None:
    status = facts.status
    out.gauge("haservice_log_start_bytes", "First offset of the log.", status.log_start)
    out.gauge("haservice_log_end_bytes", "End of the log.", status.log_end)
    out.gauge("haservice_log_flushed_bytes", "Up to where the log is on the disk.", facts.flushed)
    out.gauge("haservice_log_readable_bytes", "Up to where consumers may read.", facts.readable_end)
    out.gauge("haservice_dispatch_behind_bytes", "Log that is in no queue yet.", facts.dispatch_behind)
    out.histogram(
        "haservice_append_duration_seconds",
        "Time of the write that stored a message, by message.",
        buckets(facts.appends),
        facts.appends.total_s,
    )
    out.histogram(
        "haservice_flush_duration_seconds",
        "Time of each flush of the log.",
        buckets(facts.flushes),
        facts.flushes.total_s,
    )


def _replicas(out: Exposition, facts: BrokerFacts) -> None:
    status = facts.status
    out.gauge("haservice_in_sync_slaves", "Slaves that are in sync.", status.in_sync_slaves)
    out.gauge("haservice_needed_slaves", "Slaves that a SYNC_MASTER's send waits for.", facts.needed)
    out.gauge("haservice_waiting_sends", "Sends that wait for a slave.", status.waiting_sends)
    out.gauge(
        "haservice_push2slave_max_offset_bytes",
        "Furthest true ack of any slave.",
        status.push2slave_max_offset,
    )
    for slave in _latest(status.slaves):
        of = {"replica": _name(slave.broker_addr, slave.addr)}
        out.gauge("haservice_replica_connected", "1 for a slave that is connected.", 1, **of)
        out.gauge("haservice_replica_ack_bytes", "Offset that the slave reported last.", slave.ack, **of)
        out.gauge(
            "haservice_replica_lag_bytes", "Log that the slave has not acknowledged.", slave.lag_bytes, **of
        )
        out.gauge(
            "haservice_replica_lag_seconds", "For how long it has lacked something.", slave.lag_seconds, **of
        )
        out.gauge(
            "haservice_replica_bytes_per_second", "What goes to the slave.", slave.bytes_per_second, **of
        )
        out.gauge("haservice_replica_in_sync", "1 for a slave that is in sync.", int(slave.in_sync), **of)
        if slave.lack is not None:
            word = slave.lack.why.word
            out.gauge("haservice_replica_not_in_sync", "Why it is not in sync.", 1, reason=word, **of)
    here = {_name(slave.broker_addr, slave.addr) for slave in status.slaves}
    away = dict.fromkeys(_name("", absent.addr) for absent in status.absent)
    for name in (name for name in away if name not in here):
        out.gauge("haservice_replica_connected", "1 for a slave that is connected.", 0, replica=name)


def _latest(slaves: Sequence[SlaveStatus]) -> list[SlaveStatus]:
    """One of each slave: a connection that has just broken may be listed beside the one that took its place."""
    return list({_name(one.broker_addr, one.addr): one for one in slaves}.values())


def _name(broker_addr: str, peer: str) -> str:
    """What stays when it connects again: the address for clients of one of ours, the host of a stock slave."""
    return broker_addr or peer.rpartition(":")[0] or peer


def _link(out: Exposition, status: HAStatus) -> None:
    link = status.master
    assert link is not None, "only of a slave"
    out.gauge("haservice_link_up", "1 while the slave receives from its master.", int(link_is_up(link)))
    out.gauge(
        "haservice_link_lag_bytes",
        "Log that the master has told and the slave lacks; -1: unknown.",
        slave_lag(link),
    )
    out.gauge(
        "haservice_link_silence_seconds",
        "Time since the master's last byte; -1 if there was none.",
        link.seconds_since_read,
    )
    out.gauge("haservice_link_bytes_per_second", "What comes from the master.", link.bytes_per_second)
    out.counter("haservice_link_connects_total", "Connections to a master that were made.", link.connects)


def _member(out: Exposition, facts: BrokerFacts) -> None:
    """Of a DLedger group; nothing without one."""
    one = facts.member
    if one is None:
        return
    of = {"group": one.group, "member": one.member}
    out.gauge("haservice_dledger_leads", "1 for the member that leads its group.", int(one.leads), **of)
    out.gauge(
        "haservice_dledger_committed_index", "Last entry that a majority has.", one.committed_index, **of
    )
    out.gauge("haservice_dledger_end_index", "Last entry of this member's log.", one.end_index, **of)
    out.gauge(
        "haservice_dledger_ended", "1 for a member that takes no part any more.", int(bool(one.trouble)), **of
    )
    out.gauge(
        "haservice_dledger_whole",
        "0 for a member that lacks what it had acknowledged.",
        int(one.is_whole),
        **of,
    )
    out.gauge(
        "haservice_dledger_refuses_cut",
        "1 where a leader lacks what this member, or a follower of it, holds as committed.",
        int(one.refuses_cut),
        **of,
    )


def _lease(out: Exposition, facts: BrokerFacts) -> None:
    """Of failover by a coordinator; nothing without one."""
    lease = facts.lease
    if lease is None:
        return
    out.gauge(
        "haservice_lease_seconds_left", "How long a master may take messages yet; 0 if not.", lease.left_s
    )
    out.gauge(
        "haservice_lease_round_seconds", "What the last round with the coordinator took.", lease.round_s
    )
    out.gauge(
        "haservice_lease_voters", "Voters that the coordinator has; 0 if it was never read.", lease.voters
    )
    out.gauge(
        "haservice_lease_trouble",
        "1 while it cannot read or write the coordinator, or that has an alarm; brokerStatus has the text.",
        int(lease.has_trouble),
    )
    if lease.could_take_over is not None:
        out.gauge(
            "haservice_lease_could_take_over",
            "1 for a slave that would take over if its master died now, as far as the coordinator has a say.",
            int(lease.could_take_over),
        )
    out.counter(
        "haservice_lease_promotions_total", "Times that this process became the master.", lease.promotions
    )
    out.counter(
        "haservice_lease_blocked_seconds_total",
        "How long it was a master and took no messages.",
        lease.blocked_s,
    )
    out.counter(
        "haservice_lease_failed_rounds_total",
        "Rounds that did not reach the coordinator.",
        lease.failed_rounds,
    )


def _trouble(out: Exposition, facts: BrokerFacts) -> None:
    for cause, reason in (
        ("role", facts.refusals.role),
        ("log", facts.refusals.log),
        ("health", facts.refusals.health),
    ):
        out.gauge(
            "haservice_writes_refused",
            "1 while a master refuses writes: for its role, its log (disk, fence), or a failed thread.",
            int(bool(reason)),
            cause=cause,
        )
    for reason, count in facts.traffic.refused.items():
        out.counter("haservice_sends_refused_total", "Sends answered with an error.", count, reason=reason)
    for status, count in facts.traffic.unproven.items():
        out.counter(
            "haservice_sends_unproven_total",
            "Sends that are stored here, and answered with the proof that they lack.",
            count,
            status=status,
        )
    out.gauge(
        "haservice_damaged_ranges", "Damaged ranges of the log that are not repaired.", len(facts.damaged)
    )
    out.gauge("haservice_damaged_bytes", "Bytes in them.", sum(end - begin for begin, end in facts.damaged))
    out.gauge(
        "haservice_acknowledged_cut_bytes",
        "What was cut here though a slave had acknowledged it, until it is removed from cut/.",
        facts.acknowledged_cut,
    )
    out.gauge(
        "haservice_failed_threads", "Threads that have failed, and do not run now.", len(facts.failed_threads)
    )
    out.gauge(
        "haservice_restarted_threads",
        "Threads that failed in the last ten minutes, and run again.",
        facts.restarted_threads,
    )
    for thread, count in facts.thread_failures.items():
        out.counter("haservice_thread_failures_total", "How often it failed.", count, thread=thread)
    for name, text in (
        ("next_segment_not_made", facts.next_segment_not_made),
        ("not_registered", facts.not_registered),
        ("metadata_not_copied", facts.metadata_not_copied),
        ("offsets_not_kept", facts.offsets_not_kept),
        ("files_not_in_force", facts.files_not_in_force),
    ):
        out.gauge(
            "haservice_trouble", "1 while it lasts; brokerStatus has the text.", int(bool(text)), what=name
        )
    for key, days in facts.certificate_days.items():
        out.gauge(
            "haservice_certificate_days_left", "How long the certificate in force is valid.", days, key=key
        )
    for disk in facts.disks:
        out.gauge("haservice_disk_size_bytes", "The file system's size.", disk.size, of=disk.name)
        out.gauge("haservice_disk_free_bytes", "What is free on it.", disk.free, of=disk.name)
        out.gauge(
            "haservice_disk_used_ratio", "What is used of it, as df says.", disk.used_ratio, of=disk.name
        )
    if facts.sample_age_s is not None:
        out.gauge("haservice_sample_age_seconds", "Age of the newest line in hasamples/.", facts.sample_age_s)


def _load(out: Exposition, facts: BrokerFacts) -> None:
    out.gauge("haservice_pending_sends", "Sends that wait for disk or slave.", facts.pending_sends)
    out.gauge("haservice_held_pulls", "Pulls that wait for a message.", facts.held_pulls)
    out.gauge("haservice_client_connections", "Connections of clients.", facts.connections)
    out.gauge("haservice_consumer_offsets", "Consumer offsets that are kept.", facts.offsets)
    for why, count in facts.http_refused.items():
        out.counter("haservice_http_refused_total", "Connections here that got no page.", count, why=why)
