"""Whether sends to a broker name succeed, and whether a copy of its messages is kept.  Pure.

    Seen of all its brokers, tables of nameservers ─▶ judge ─▶ NameVerdict: a state, findings, figures

What decides the state is what clients notice:

    CRITICAL   sends fail or do not get the OK that was asked for; or the log is damaged, the lag too large
    WARNING    sends succeed, but something is missing that the next fault will need
    UNKNOWN    brokers are alive, but do not say what they are
    OK         none of these

Stock brokers say less: their role, the ends of their logs, their disk.  They are judged by these alone, and
what they do not say counts as good.  Of a DLedger group a leader lists all other members, whoever runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from haservice.admin.commands.coordinator import lease_verdict
from haservice.admin.commands.dledger.judging import (
    differing,
    followers,
    good_leader,
    member_name,
    no_leader,
    troubles_of,
)
from haservice.admin.commands.ha import settings_verdict
from haservice.admin.commands.ha.findings import (
    DISK_CRITICAL,
    DISK_WARNING,
    CheckLimits,
    Finding,
    NameFigures,
    NameVerdict,
    Severity,
)
from haservice.admin.commands.ha.ha_questions import Seen, lists_of, where
from haservice.broker.roles.rules import last_heard
from haservice.remoting.bodies.clients import HAConnectionRuntimeInfo
from haservice.replication.lineage.epochs import of_one_promotion
from haservice.terminal.output import and_text, counted, human_bytes, human_seconds, local_second, shown_addr

# A slave that heard its master so recently has one: 2 of its heartbeats.
HEARD_MS = 10_000
# Of slaves whose lag in seconds nobody knows: haSlaveFallbehindMax, and a quarter of it.
LAG_WARNING_BYTES = 64 * 1024 * 1024
LAG_CRITICAL_BYTES = 256 * 1024 * 1024


def verdicts_of(
    seen: Sequence[Seen],
    now_ms: int,
    limits: CheckLimits | None = None,
    *,
    listed: Mapping[str, frozenset[str]] | None = None,
    alone: bool = False,
) -> list[NameVerdict]:
    """A verdict for each broker name, the worst first, then by name.

    `listed` is what each nameserver that answers lists, None if they were not asked one by one.  `alone`:
    only one broker was asked, so that nothing is known of the others.
    """
    names: dict[str, list[Seen]] = {}
    for one in seen:
        names.setdefault(one.broker.name, []).append(one)
    found = [
        _Judge(members, now_ms, limits or CheckLimits(), listed, alone).verdict()
        for members in names.values()
    ]
    return sorted(found, key=lambda one: (-one.state.rank, one.cluster, one.name))


def _why_shut(one: Seen) -> str:
    """Why a master with a coordinator takes no messages now; "" if it does, or has none."""
    is_shut = one.info.get("leaseSecondsLeft") == "0.0"
    return one.info.get("leaseState", "") if is_shut else ""


class _Lag(NamedTuple):
    """How far one slave is behind."""

    who: str
    size: int | None
    seconds: float | None = None


class _Judge:
    """Judges one broker name."""

    def __init__(
        self,
        seen: Sequence[Seen],
        now_ms: int,
        limits: CheckLimits,
        listed: Mapping[str, frozenset[str]] | None,
        alone: bool,
    ) -> None:
        self.seen = seen
        self.now_ms = now_ms
        self.limits = limits
        self.listed = listed
        self.alone = alone
        told = [one for one in seen if one.failure is None]
        self.group = [one for one in told if one.lineage is not None and one.lineage.is_in_group]
        self.masters = [one for one in told if not one.is_slave]
        self.slaves = [one for one in told if one.is_slave]
        self.silent = [one for one in seen if one.failure is not None]

    def verdict(self) -> NameVerdict:
        broker = self.seen[0].broker
        figures = NameFigures(disk_used=max(filter(None, map(_disk_of, self.seen)), default=None))
        if len(self.masters) == 1:
            found = list(self._of_master(self.masters[0]))
            figures = figures._replace(**self._replication_figures(self.masters[0]))
            found += settings_verdict.differing_promises(self.masters[0], self.seen)
            good = self._good(self.masters[0], figures)
        elif self.masters:
            found, good = [self._two_masters()], ""
        elif self.alone and self.slaves:
            found, good = list(self._link_of(self.slaves[0])), f"{where(self.slaves[0])} {self._follows()}"
            found += lease_verdict.of_slave(self.slaves[0])
        else:
            found, good = [self._no_master()], ""
        # Where nobody leads, it is said already who is not whole.
        said = {"MEMBER NOT WHOLE"} if any(one.head == "NOBODY LEADS" for one in found) else set()
        troubles = [trouble for one in self.slaves for trouble in self._troubles(one)]
        found += [one for one in troubles if one.head not in said]
        found += [*differing(self.seen), *settings_verdict.differing_security(self.seen)]
        found.sort(key=lambda one: -one.state.rank)
        if not found:
            found = [Finding(Severity.OK, "OK", good)]
        return NameVerdict(broker.cluster, broker.name, tuple(found), figures)

    # -- no master, or too many --------------------------------------------------------------------

    def _no_master(self) -> Finding:
        told_nothing = [one for one in self.silent if one.is_alive]
        if told_nothing:
            said = and_text([f"{where(one)}: {one.why_silent}" for one in told_nothing])
            return Finding(Severity.UNKNOWN, "DOES NOT SAY ITS ROLE", f"and may be the master: {said}")
        gone = and_text([f"{where(one)}: {one.why_silent}" for one in self.silent])
        if self.group:
            return no_leader(self.group, gone)
        if not self.slaves:
            return Finding(Severity.CRITICAL, "NO BROKER ANSWERS", f"sends fail, nobody can read; {gone}")
        if any(one.lineage is not None and one.lineage.changing for one in self.slaves):
            return Finding(Severity.WARNING, "ROLES CHANGE", "sends fail until that is done")
        linked = [one for one in self.slaves if self._hears_its_master(one)]
        if linked and self.silent:
            text = f"but {where(linked[0])} hears it; is there a firewall in between?  {gone}"
            return Finding(Severity.UNKNOWN, "MASTER DOES NOT ANSWER HERE", text)
        heard_ms = max(
            (one.lineage.master_heard_ms for one in self.slaves if one.lineage is not None), default=0
        )
        since = f" since {local_second(heard_ms)} ({self._ago(heard_ms)})" if heard_ms else ""
        reads = f"{and_text([where(one) for one in self.slaves])} can be read"
        missing = f"; {gone}" if gone else "; no other broker of this name is known"
        waits = "".join(
            f"; {where(one)} does not take the lease: {why}"
            for one in self.slaves
            if (why := one.info.get("leaseWhyNot"))
        )
        ways = self._ways_to_a_master()
        return Finding(Severity.CRITICAL, "NO MASTER", f"sends fail{since}; {reads}{missing}{waits}{ways}")

    def _ways_to_a_master(self) -> str:
        """What makes sends succeed again, to end a sentence; stock slaves take no command."""
        ours = [one for one in self.slaves if one.lineage is not None]
        if not ours:
            return ""
        name = ours[0].broker.name
        if any("leaseCoordinator" in one.info for one in ours):
            starts = [f"start {where(one)} again" for one in self.silent]
            return "; " + ", ".join([*starts, f"mqadmin haList -b {name} says who may become it"])
        listed = lists_of(ours)[name]
        last = listed.replicas.get(listed.master, "")
        # A slave that was put back may name itself, or one before: then a broker that is away was the last.
        gone = (
            [f"{shown_addr(last)}, the last master,"]
            if self._is_silent(last)
            else list(map(where, self.silent))
        )
        again = f"start {and_text(gone)} again, or " if gone else ""
        return f"; {again}{_failover_to(_furthest(ours))} makes {where(_furthest(ours))} the master"

    def _is_silent(self, addr: str) -> bool:
        return any(one.broker.addr == addr for one in self.silent)

    def _hears_its_master(self, slave: Seen) -> bool:
        client = slave.status.ha_client_runtime_info if slave.status is not None else None
        return (
            client is not None
            and (client.state or "").startswith("TRANSFER")
            and self.now_ms - client.last_read_timestamp <= HEARD_MS
        )

    def _two_masters(self) -> Finding:
        named = and_text(
            [f"{where(one)} (epoch {'-' if one.epoch is None else one.epoch})" for one in self.masters]
        )
        epochs = sorted(one.epoch for one in self.masters if one.epoch is not None)
        rivals = len(epochs) < len(self.masters) or any(
            of_one_promotion(one, epochs[-1]) for one in epochs[:-1]
        )
        fate = (
            f"choose one: {_failover_to(_furthest(self.masters))} takes the one whose log goes further"
            if rivals and not self.group
            else "stop the one whose log is not to stay, move its store aside, and start it again: the logs differ"
            if any(one.lineage is not None and one.lineage.unproven for one in self.masters)
            else "the older one gives way once it hears of the other"
        )
        return Finding(Severity.CRITICAL, "TWO MASTERS", f"{named}: {fate}")

    # -- the master itself -------------------------------------------------------------------------

    def _of_master(self, master: Seen) -> Iterator[Finding]:
        refuses = (master.lineage.held if master.lineage is not None else "") or master.info.get(
            "refusesSends", ""
        )
        if refuses := refuses or _why_shut(master):
            yield Finding(Severity.CRITICAL, "REFUSES WRITES", f"{where(master)}: {refuses}")
        if master.lineage is not None and master.lineage.changing:
            yield Finding(
                Severity.WARNING, "ROLES CHANGE", f"{where(master)} refuses sends until that is done"
            )
        if master.lineage is not None and master.lineage.unproven:
            yield Finding(Severity.WARNING, "EPOCH WITHOUT PROOF", master.lineage.unproven)
        if alarm := master.info.get("leaseAlarm"):
            yield Finding(Severity.WARNING, "MASTER AFTER A POWER CUT", f"{where(master)}: {alarm}")
        yield from self._registration(master)
        if master not in self.group:
            yield from settings_verdict.unlike_file(master, self.slaves)
        yield from self._troubles(master)
        yield from lease_verdict.of_master(master, self.slaves)
        yield from self._replication(master)

    def _registration(self, master: Seen) -> Iterator[Finding]:
        """Whether clients find it."""
        missing = [ns for ns, addrs in (self.listed or {}).items() if master.broker.addr not in addrs]
        if self.listed and len(missing) == len(self.listed):
            why = f": {master.not_registered}" if master.not_registered else ""
            yield Finding(
                Severity.CRITICAL, "NOT REGISTERED", f"clients do not find the master, {where(master)}{why}"
            )
        elif missing or master.not_registered:
            at = master.not_registered or f"not at {and_text(list(map(shown_addr, missing)))}"
            yield Finding(Severity.WARNING, "NOT REGISTERED EVERYWHERE", f"{where(master)}: {at}")

    def _troubles(self, one: Seen) -> Iterator[Finding]:
        """What is wrong with a broker whatever its role.  It stops sends only at a master."""
        grave = Severity.WARNING if one.is_slave else Severity.CRITICAL
        if one.damaged:
            yield Finding(grave, "LOG DAMAGED", f"{where(one)}: from {one.damaged}")
        if cut := one.info.get("acknowledgedCut"):
            yield Finding(Severity.CRITICAL, "ACKNOWLEDGED MESSAGES WERE CUT", f"{where(one)}: {cut}")
        if one.failed_threads:
            yield Finding(grave, "THREAD FAILED", f"{where(one)} lacks {one.failed_threads}")
        if one.info.get("restartedThreads"):
            yield Finding(
                Severity.WARNING,
                "THREAD RESTARTED",
                f"{where(one)}: {one.info['restartedThreads']}; its log has more",
            )
        yield from troubles_of(one)
        yield from settings_verdict.unfit_files(one, self.now_ms)
        if one.next_segment_not_made:
            yield Finding(
                Severity.WARNING,
                "NO ROOM FOR THE NEXT LOG FILE",
                f"{where(one)}: {one.next_segment_not_made}",
            )
        if one.is_slave and one.lineage is not None and one.lineage.not_copied:
            yield Finding(
                Severity.WARNING, "TOPICS AND OFFSETS NOT COPIED", f"{where(one)}: {one.lineage.not_copied}"
            )
        if one.is_slave and one.not_registered:
            yield Finding(Severity.WARNING, "SLAVE NOT REGISTERED", f"{where(one)}: {one.not_registered}")
        used = _disk_of(one)
        if used is not None and used >= DISK_WARNING and not one.info.get("refusesSends"):
            full = grave if used >= DISK_CRITICAL else Severity.WARNING
            yield Finding(full, "DISK NEARLY FULL", f"{where(one)}: {used:.0%} used, no writes above 90 %")

    # -- its slaves --------------------------------------------------------------------------------

    def _replication(self, master: Seen) -> Iterator[Finding]:
        if self._says_nothing_of_slaves(master):
            return
        if master in self.group:
            yield from followers(master, None if self.alone else self.seen)
            yield from (late for lag in self._lags(master) for late in self._lagging(lag))
            return
        troubles = list(self._away(master))
        in_sync, required = self._in_sync(master), _required(master)
        if required and in_sync < required:
            why = (
                f": {'; '.join(troubles)}"
                if troubles
                else ": none is known, start one"
                if self._known(master) == 0
                else ""
            )
            head = "NO SLAVE IN SYNC" if not in_sync else f"{in_sync} OF {required} SLAVES IN SYNC"
            # A stock master counts a slave that stands still, and then it is FLUSH_SLAVE_TIMEOUT.
            answer = "SLAVE_NOT_AVAILABLE" if master.status is not None else "no SEND_OK"
            yield Finding(Severity.CRITICAL, head, f"sends get {answer}{why}")
        else:
            if in_sync < self.limits.slaves:
                head = f"{in_sync} OF {counted(self.limits.slaves, 'SLAVE').upper()} IN SYNC"
                yield Finding(Severity.WARNING, head, f"--slaves {self.limits.slaves} wants more")
            for trouble in troubles:
                yield Finding(Severity.WARNING, "SLAVE NOT IN SYNC", trouble)
        for lag in self._lags(master):
            yield from self._lagging(lag)
        for one in self._silent_followers(master):
            text = f"{where(one)} follows, and does not answer: {one.why_silent}"
            yield Finding(Severity.WARNING, "SLAVE DOES NOT ANSWER", text)

    def _says_nothing_of_slaves(self, master: Seen) -> bool:
        """Of a stock master that was asked alone nobody knows whether it has slaves."""
        return self.alone and master.status is None

    def _silent_followers(self, master: Seen) -> list[Seen]:
        links = master.status.ha_connection_info if master.status is not None else ()
        connected = {link.broker_addr for link in links}
        return [one for one in self.silent if one.broker.addr in connected]

    def _lagging(self, lag: _Lag) -> Iterator[Finding]:
        if lag.seconds is not None:
            late = (lag.seconds >= self.limits.lag_warning_s) + (lag.seconds >= self.limits.lag_critical_s)
            text = f"{lag.who} is {human_seconds(lag.seconds)} and {human_bytes(lag.size)} behind"
        else:
            late = ((lag.size or 0) >= LAG_WARNING_BYTES) + ((lag.size or 0) >= LAG_CRITICAL_BYTES)
            text = f"{lag.who} is {human_bytes(lag.size)} behind"
        if late:
            yield Finding(Severity.CRITICAL if late == 2 else Severity.WARNING, "SLAVE LAGS", text)

    def _lags(self, master: Seen) -> list[_Lag]:
        if master.status is not None:
            return [
                _Lag(
                    member_name(one) if master in self.group else _slave_name(one),
                    one.diff,
                    None if master in self.group else one.lag_seconds,
                )
                for one in master.status.ha_connection_info
            ]
        return [
            _Lag(where(one), max(0, master.log_end - one.log_end))
            for one in self.slaves
            if master.log_end is not None and one.log_end is not None
        ]

    def _in_sync(self, master: Seen) -> int:
        if master.status is not None:
            return master.status.in_sync_slave_nums
        return sum((lag.size or 0) < LAG_CRITICAL_BYTES for lag in self._lags(master))

    def _known(self, master: Seen) -> int:
        """How many slaves it has or had: on its list, connected, or registered."""
        links = master.status.ha_connection_info if master.status is not None else ()
        listed = lists_of(self.seen).get(master.broker.name)
        on_list = len(listed.slaves) if listed is not None else 0
        return max(on_list, len(links), sum(one.is_slave for one in self.seen))

    def _away(self, master: Seen) -> Iterator[str]:
        """Why each slave that is known does not count, a sentence each."""
        links = master.status.ha_connection_info if master.status is not None else ()
        for link in links:
            if not link.in_sync:
                yield f"{_slave_name(link)}: {link.reason or 'is not in sync'}"
        told = {one.lineage.replica_id: one for one in self.slaves if one.lineage is not None}
        connected = {link.replica_id for link in links if link.replica_id}
        listed = lists_of(self.seen).get(master.broker.name)
        replicas = dict(listed.replicas) if listed is not None else {}
        slaves = listed.slaves if listed is not None else frozenset[str]()
        # Of two lists that were made in one epoch the other one may have this master for a slave.
        away = (slaves | set(told)) - connected - {master.replica_id}
        for replica_id in sorted(away) if master.status is not None else ():
            yield self._why_away(master, replica_id, replicas.get(replica_id, ""), told.get(replica_id))
        on_list = {replicas[one] for one in slaves if replicas.get(one)}
        others = [one for one in self.seen if one.is_slave and one.broker.addr not in on_list]
        for one in others:
            if one.failure is not None and master.status is None:
                yield f"{where(one)} is registered and does not answer: {one.why_silent}"
        if master.status is not None:
            strangers = sum(not link.replica_id for link in links)
            stock = [one for one in others if one.lineage is None]
            if len(stock) > strangers:
                reasons = [absent.reason for absent in master.status.absent_slaves]
                because = f": {'; '.join(reasons)}" if reasons else ""
                named = and_text([where(one) for one in stock])
                yield f"{named} {'is' if len(stock) == 1 else 'are'} registered and not connected{because}"

    def _why_away(self, master: Seen, replica_id: str, addr: str, told: Seen | None) -> str:
        """Of a slave on the list that is not connected to its master."""
        who = (
            shown_addr(addr or told.broker.addr if told is not None else addr) or f"replica {replica_id[:8]}"
        )
        if told is not None:
            client = told.status.ha_client_runtime_info if told.status is not None else None
            why = (client and client.last_error) or "it is not connected"
            help = f"; {_failover_to(master)} begins one that it follows" if _are_rivals(master, told) else ""
            return f"{who} runs and does not follow: {why}{help}"
        heard = (last_heard(one.lineage).get(replica_id, 0) for one in self.seen if one.lineage is not None)
        seen_ms = max(heard, default=0)
        last = f", last seen {local_second(seen_ms)}" if seen_ms else ""
        silent = next((one for one in self.silent if one.broker.addr == addr), None)
        why = f" ({silent.why_silent})" if silent is not None else ""
        help = f"; start {shown_addr(addr)}" if addr else ""
        if not (master.lineage is not None and master.lineage.held):  # else it may have what the master lacks
            forget = f"mqadmin forget -b {master.broker.name} --replica {shown_addr(addr) or replica_id}"
            help += f"{', or' if help else ';'} {forget} if it is lost for good"
        return f"{who} is away{last}{why}{help}"

    # -- good, and figures -------------------------------------------------------------------------

    def _replication_figures(self, master: Seen) -> dict[str, Any]:
        if self._says_nothing_of_slaves(master):
            return {}
        lags = self._lags(master)
        seconds = [lag.seconds for lag in lags if lag.seconds is not None]
        return {
            "slaves_in_sync": self._in_sync(master),
            "slaves_known": self._known(master),
            "lag_bytes": max((lag.size for lag in lags if lag.size is not None), default=None),
            "lag_seconds": max(seconds, default=None),
        }

    def _good(self, master: Seen, figures: NameFigures) -> str:
        if figures.slaves_in_sync is None:
            return f"{where(master)} answers as {master.role}"
        count = figures.slaves_in_sync
        behind = f", {human_bytes(figures.lag_bytes)} behind" if figures.lag_bytes is not None else ""
        if master in self.group:
            return good_leader(master, count, behind)
        slaves = f"{counted(count, 'slave')} in sync" if count else "it has no slave"
        return f"{where(master)} accepts writes, {slaves}{behind}"

    def _link_of(self, slave: Seen) -> Iterator[Finding]:
        """Of a slave that was asked alone."""
        client = slave.status.ha_client_runtime_info if slave.status is not None else None
        if client is not None and not (client.state or "").startswith("TRANSFER"):
            why = client.last_error or "it is not connected to its master"
            yield Finding(Severity.WARNING, "FOLLOWS NOBODY", f"{where(slave)}: {why}")
        elif client is not None and client.master_end is not None and slave.log_end is not None:
            yield from self._lagging(_Lag(where(slave), max(0, client.master_end - slave.log_end)))

    def _follows(self) -> str:
        status = self.slaves[0].status
        client = status.ha_client_runtime_info if status is not None else None
        if client is None:
            return "answers"
        named = self.slaves[0].lineage.master_addr if self.group and self.slaves[0].lineage else ""
        return f"follows {shown_addr(named or client.master_addr)}"

    def _ago(self, at_ms: int) -> str:
        return human_seconds(max(0, self.now_ms - at_ms) / 1000)


def _are_rivals(master: Seen, slave: Seen) -> bool:
    """Whether two masters began one number, the slave has the epoch of the other one, and a further epoch helps.

    It helps a slave that has an epoch of the master's log; else their logs do not go together at all.
    """
    ours, its = (one.lineage.epochs if one.lineage is not None else () for one in (master, slave))
    known = {(one.epoch, one.start, one.master) for one in ours}
    return (
        bool(ours and its)
        and of_one_promotion(ours[-1].epoch, its[-1].epoch)
        and ours[-1].master != its[-1].master
        and any((one.epoch, one.start, one.master) in known for one in its)
    )


def _furthest(some: Sequence[Seen]) -> Seen:
    return max(some, key=lambda one: (one.epoch or 0, one.log_end or 0))


def _failover_to(one: Seen) -> str:
    return f"mqadmin failover -b {one.broker.name} --to {where(one)}"


def _slave_name(link: HAConnectionRuntimeInfo) -> str:
    return shown_addr(link.broker_addr or link.addr)


def _required(master: Seen) -> int:
    """How many slaves in sync a send waits for."""
    return max(1, master.in_sync_replicas - 1) if master.role == "SYNC_MASTER" else 0


def _disk_of(one: Seen) -> float | None:
    """The share of its log's disk that is used."""
    try:
        return float(one.info["commitLogDiskRatio"])
    except (KeyError, ValueError):
        return None
