"""BrokerCollector: gathers what is to know of a broker, when it is asked.

It reads counters that the parts keep anyway, in a work thread of the monitoring port: nothing is counted for it, and
the clients' loop does nothing.  Topics and groups are looked at up to a bound, for each costs a few µs of Python.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from haservice import __version__
from haservice.broker.assembly import BrokerParts
from haservice.broker.health import Health
from haservice.broker.majority.ha import MajorityHA
from haservice.broker.metadata.store_queues import StoreQueues
from haservice.broker.metrics.facts import (
    BrokerFacts,
    BrokerIdentity,
    Disk,
    GroupFacts,
    Histogram,
    Refusals,
    TopicFacts,
    TrafficFacts,
)
from haservice.broker.metrics.families import exposition_of
from haservice.broker.metrics.health import HealthFacts
from haservice.broker.send import native
from haservice.observability.exposition import ProcessFacts
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.replication.master.progress import slaves_needed

# Topics, and pairs of group and topic, that have samples; queues that are looked at for them.
TOPICS_MAX = 500
GROUPS_MAX = 500
QUEUES_MAX = 10_000
SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)

_CODES = {code.value: code.name.lower() for code in ResponseCode}


class _Budget:
    """Queues that may still be looked at."""

    def __init__(self, queues: int) -> None:
        self._left = queues

    def takes(self, queues: int) -> bool:
        self._left -= queues
        return self._left >= 0


@dataclass(frozen=True, slots=True)
class BrokerCollector:
    """`http_refused` counts what the monitoring port itself refused."""

    parts: BrokerParts
    health: Health
    http_refused: Callable[[], Mapping[str, int]]
    process: ProcessFacts
    topics_max: int = TOPICS_MAX
    groups_max: int = GROUPS_MAX
    queues_max: int = QUEUES_MAX

    def text(self) -> bytes:
        """A scrape."""
        return exposition_of(self.facts()).text() + self.process.text()

    def health_facts(self) -> HealthFacts:
        config = self.parts.config
        return HealthFacts(
            f"{config.broker.broker_name} ({config.broker_addr})",
            self.parts.ha.status(),
            slaves_needed(config.replication.in_sync_replicas),
            config.replication.fallbehind_max_bytes,
            self._refusals(),
            self.health.failures,
        )

    def facts(self) -> BrokerFacts:
        parts, store = self.parts, self.parts.store
        config, stats, log = parts.config, parts.stats, store.log
        held_since = log.lock_held_since
        topics, topics_left_out = self._topics()
        groups, groups_left_out = self._groups()
        return BrokerFacts(
            who=self._identity(),
            status=parts.ha.status(),
            needed=slaves_needed(config.replication.in_sync_replicas),
            flushed=log.flushed,
            readable_end=min(parts.ha.readable_end(), store.dispatcher.position),
            refusals=self._refusals(),
            traffic=self._traffic(),
            appends=Histogram(*stats.put_times),
            flushes=Histogram(list(store.flusher.durations.counts), store.flusher.durations.total_s),
            dispatch_behind=store.dispatcher.behind,
            damaged=log.damaged,
            acknowledged_cut=parts.standing.acknowledged_cut_bytes(),
            next_segment_not_made=store.flusher.next_segment_trouble,
            failed_threads=list(self.health.failures),
            restarted_threads=len(self.health.supervisor.restarted),
            thread_failures=self.health.supervisor.counts,
            not_registered=parts.registration.trouble,
            metadata_not_copied=parts.slave_sync.refused,
            offsets_not_kept=parts.tables.offsets.full,
            files_not_in_force=parts.security.trouble,
            certificate_days={
                key: (one.until - time.time()) / 86_400 for key, one in parts.security.validities().items()
            },
            offsets=len(parts.tables.offsets),
            pending_sends=parts.sends.pending,
            max_pending_sends=parts.live.config.broker.max_pending_sends,
            held_pulls=len(parts.long_polling),
            connections=parts.server.connections,
            permission=parts.live.config.broker.permission,
            lock_held_ms=int((time.monotonic() - held_since) * 1000) if held_since else 0,
            sample_age_s=None if parts.ha_samples is None else parts.ha_samples.age_s,
            disks=self._disks(),
            topics=topics,
            topics_left_out=topics_left_out,
            groups=groups,
            groups_left_out=groups_left_out,
            http_refused=self.http_refused(),
            lease=parts.lease.shown() if parts.lease is not None else None,
            member=parts.ha.facts() if isinstance(parts.ha, MajorityHA) else None,
        )

    def _identity(self) -> BrokerIdentity:
        broker = self.parts.config.broker
        return BrokerIdentity(
            broker.cluster_name,
            broker.broker_name,
            self.parts.config.broker_addr,
            broker.broker_id,
            __version__,
            native.build(),
            self.parts.stats.boot_timestamp_ms,
        )

    def _refusals(self) -> Refusals:
        parts = self.parts
        if parts.is_slave:
            return Refusals()
        role = parts.standing.state.held
        log = parts.store.log.writable or ""
        return Refusals(role, "" if role else log, parts.sends.refuse_all or "")

    def _traffic(self) -> TrafficFacts:
        stats = self.parts.stats
        put_max_s, get_max_s = stats.time_max_s
        return TrafficFacts(
            puts=stats.puts,
            put_bytes=stats.put_bytes,
            gets_found=stats.gets_found,
            gets_missed=stats.gets_missed,
            transferred=stats.transferred,
            transferred_bytes=stats.transferred_bytes,
            put_time_max_s=put_max_s,
            get_time_max_s=get_max_s,
            put_p99_ms=stats.put_latency_ms(0.99),
            put_p999_ms=stats.put_latency_ms(0.999),
            rates={
                "puts": stats.rates("puts"),
                "found": stats.rates("found"),
                "missed": stats.rates("missed"),
                "total": stats.rates("found", "missed"),
                "transferred": stats.rates("transferred"),
            },
            put_classes=stats.put_classes,
            refused=_by_name(self._refused_sends()),
            unproven=_by_name(stats.unproven),
        )

    def _refused_sends(self) -> Mapping[int, int]:
        """By response code; what access control refuses comes to no processor, and is counted by its guard."""
        guard, found = self.parts.security.guard, Counter(dict(self.parts.stats.refused))
        for (request, answer), count in dict(guard.refused if guard is not None else {}).items():
            if request in SENDS:
                found[answer] += count
        return found

    def _disks(self) -> list[Disk]:
        options = self.parts.config.log
        found = []
        for name, path in (("log", options.log_path), ("queues", options.root)):
            usage = shutil.disk_usage(path)
            found.append(Disk(name, usage.total, usage.free, usage.used / max(1, usage.used + usage.free)))
        return found

    # Topics and groups

    def _topics(self) -> tuple[list[TopicFacts], int]:
        """A slave's are its master's: it tells none."""
        table, traffic = self.parts.tables.topics, self.parts.stats.traffic
        if self.parts.is_slave:
            return [], 0
        view, budget = StoreQueues(self.parts.store.queues, self.parts.store.log), _Budget(self.queues_max)
        found = []
        for config in islice(table, self.topics_max):
            if not budget.takes(config.read_queue_nums):
                break
            name, rate = config.topic_name, traffic.rate(config.topic_name)
            messages, size = traffic.totals(name) or (0, 0)
            end = sum(view.end(name, queue_id) for queue_id in range(config.read_queue_nums))
            per_second = rate.per_second if rate is not None else 0.0
            found.append(TopicFacts(name, per_second, traffic.bytes_per_second(name), messages, size, end))
        return found, len(table) - len(found)

    def _groups(self) -> tuple[list[GroupFacts], int]:
        """Pairs of group and topic.  Of what lies behind the bound, only how many groups there are is known."""
        if self.parts.is_slave:
            return [], 0
        offsets = self.parts.tables.offsets
        view, budget = StoreQueues(self.parts.store.queues, self.parts.store.log), _Budget(self.queues_max)
        names, groups_count = offsets.some_groups(self.groups_max)
        found: list[GroupFacts] = []
        for at, group in enumerate(names):
            for topic in offsets.topics_of(group):
                config = self.parts.tables.topics.get(topic)
                if config is None:
                    continue
                if len(found) >= self.groups_max or not budget.takes(config.read_queue_nums):
                    return found, groups_count - at
                found.append(self._group(group, topic, config.read_queue_nums, view))
        return found, groups_count - len(names)

    def _group(self, group: str, topic: str, queues: int, view: StoreQueues) -> GroupFacts:
        traffic, online = self.parts.stats.traffic, self.parts.clients.group(group)
        consumed = self.parts.tables.offsets.queues_of(group, topic)
        messages, size = traffic.totals(topic, group) or (0, 0)
        return GroupFacts(
            group=group,
            topic=topic,
            online=len(online.members) if online is not None else 0,
            is_broadcasting=online is not None and online.is_broadcasting,
            per_second=traffic.consumed_per_second(topic, group),
            bytes_per_second=traffic.bytes_per_second(topic, group),
            messages=messages,
            size=size,
            sent_back_per_second=traffic.sent_back_per_second(topic, group),
            consumed=sum(max(0, offset) for offset in consumed.values()),
            end=sum(ends := [view.end(topic, queue_id) for queue_id in range(queues)]),
            # By queue: one with less than was consumed of it hides nothing of the others.
            lag=sum(max(0, end - max(0, consumed.get(queue_id, 0))) for queue_id, end in enumerate(ends)),
        )


def _by_name(counts: Mapping[int, int]) -> dict[str, int]:
    """Response codes by their names, which are few."""
    return {_CODES.get(code, "other"): count for code, count in dict(counts).items()}
