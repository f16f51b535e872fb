"""One round: traffic, faults, peace, and the judgement.

    a level cluster ── traffic ── faults ── healed ── OK again ── no more sends ── level ── logs ── checker

A cluster may serve many rounds, each of which begins where the last one ended: offsets of a round's history
count from there.  What lies below must not have changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from haservice.errors import HAServiceError, RemotingError
from tests.chaos.checker import Findings, Timeline, Verdict, Violation, check, timeline
from tests.chaos.history import (
    UNKNOWN,
    Answered,
    Event,
    FinalLog,
    FinalRecord,
    Invoked,
    Promised,
    ReadLog,
    Sampled,
    Settled,
    final_log,
    messages,
)
from tests.chaos.proc_clients import Base, History, Traffic
from tests.chaos.proc_cluster import SEGMENT_BYTES, TOPIC, Cluster, Node, NotSoInTime
from tests.chaos.proc_faults import (
    LINK_FAULTS,
    PROCESS_FAULTS,
    ROLE_FAULTS,
    Fault,
    Scene,
    heal_all,
)
from tests.chaos.proc_packets import HOST_FAULTS
from tests.support.waiting import slowness

SETTLED_S = 30.0
# A stock consumer waits 33 s for the answer to a pull whose connection has ended.
OWED_S = 60.0
# A broker registers every 10 s here.
AGREED_S = 60.0
CALM_S = 0.25
SAMPLE_S = 0.1
FAULTS = (2, 3)
FAULT_S = (0.1, 1.5)
GAP_S = (0.05, 0.4)
AT_ONCE = 0.25


class Clients(Protocol):
    """Further clients of one round, beside its Traffic, with a topic of their own."""

    async def start(self) -> None: ...
    async def stop_producing(self) -> None: ...
    async def settled(self) -> bool:
        """Whether all that has to come to a consumer has come."""

    async def stop(self) -> None:
        """May be called twice, and without stop_producing()."""


MakeClients = Callable[[Cluster, History, random.Random], Clients]


@dataclass
class Outcome:
    """What one round was."""

    findings: Findings
    events: list[Event]
    timeline: Timeline
    level_s: float = 0.0
    """From the last fault's end until OK, and until every broker was level."""
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings.verdicts


def schedule(rng: random.Random, links: str) -> list[tuple[str, ...]]:
    """Names of faults, one after the other; those of one tuple at once."""
    kinds = {**PROCESS_FAULTS, **(LINK_FAULTS if links == "proxy" else HOST_FAULTS)}
    paths = list(LINK_FAULTS if links == "proxy" else HOST_FAULTS)
    steps: list[tuple[str, ...]] = []
    for _ in range(rng.randint(*FAULTS)):
        kind = rng.choice([PROCESS_FAULTS, kinds, ROLE_FAULTS, dict.fromkeys(paths)])
        name = rng.choice(list(kind))
        if name in PROCESS_FAULTS and rng.random() < AT_ONCE:
            steps.append((name, rng.choice(paths)))
        else:
            steps.append((name,))
    return steps


ALL_FAULTS: dict[str, Fault] = {**PROCESS_FAULTS, **LINK_FAULTS, **HOST_FAULTS, **ROLE_FAULTS}


class Play:
    """The rounds of one cluster."""

    make_traffic: type[Traffic] = Traffic
    make_history: type[History] = History
    read_log: ReadLog = staticmethod(messages)
    fault_s = FAULT_S
    """How long a fault lasts, from and to."""

    def __init__(
        self,
        cluster: Cluster,
        faults: Mapping[str, Fault] = ALL_FAULTS,
        calm_s: float = CALM_S,
        clients: Sequence[MakeClients] = (),
    ) -> None:
        """`faults` by name; before the first one and after the last all is well for `calm_s`."""
        self.cluster = cluster
        self._clients = clients
        self._faults = faults
        self._calm_s = calm_s
        self._base = Base()
        self._below: Mapping[int, str] = {}
        self._late: list[Invoked] = []

    async def round(self, seed: int, steps: Sequence[tuple[str, ...]] | None = None) -> Outcome:
        """Plays `steps`, or those of the seed.  What goes wrong is in the outcome's findings."""
        rng = random.Random(seed)
        cluster = self.cluster
        steps = schedule(rng, cluster.shape.links) if steps is None else list(steps)
        history = self.make_history(cluster, self._base)
        flushed = 2 if cluster.shape.flush == "SYNC_FLUSH" else 0
        history.add(Promised(0.0, cluster.shape.copies, flushed))
        self._carry_over(history)
        traffic = self.make_traffic(cluster, history, rng)
        further = [make(cluster, history, rng) for make in self._clients]
        sampling = asyncio.create_task(_sample(cluster, history))
        settled, level_s = Settled(0.0, True), 0.0
        try:
            await traffic.start()
            for one in further:
                await one.start()
            try:
                await asyncio.sleep(self._calm_s)
                for step in steps:
                    await self._break(Scene(cluster, history, rng, rng.uniform(*self.fault_s)), step)
                    await asyncio.sleep(rng.uniform(*GAP_S))
                level_s = await self._calm(history, traffic, further)
            except (NotSoInTime, HAServiceError) as error:
                settled = Settled(history.now_s, False, str(error))
            sampling.cancel()
            for one in further:
                await one.stop()
            await traffic.stop()
            if settled.ok:
                await self._look(history, traffic)
            history.add(replace(settled, at_s=history.now_s) if settled.ok else settled)
        except (NotSoInTime, HAServiceError) as error:
            history.add(Settled(history.now_s, False, str(error)))
        finally:
            sampling.cancel()
            for one in further:
                await one.stop()
            await traffic.stop()
        return self._judged(history, level_s, steps)

    async def _break(self, scene: Scene, names: tuple[str, ...]) -> None:
        """Faults at once; an answer that does not come is part of it."""
        results = await asyncio.gather(*(self._faults[name](scene) for name in names), return_exceptions=True)
        for result in results:
            if isinstance(result, RemotingError) and len(names) > 1:
                continue
            if isinstance(result, BaseException):
                raise result

    async def _calm(self, history: History, traffic: Traffic, further: Sequence[Clients]) -> float:
        """All healed, OK again, everyone level; the seconds that it took."""
        cluster = self.cluster
        await heal_all(cluster)
        healed_s = history.now_s
        history.answered.clear()
        patience_s = SETTLED_S * slowness()
        try:
            async with asyncio.timeout(patience_s):
                await history.answered.wait()
        except TimeoutError:
            raise NotSoInTime(f"no OK within {patience_s:g} s of peace\n{await cluster.describe()}") from None
        await asyncio.sleep(self._calm_s)
        await asyncio.gather(traffic.stop_producing(), *(one.stop_producing() for one in further))
        await cluster.until(cluster.is_caught_up, "every broker is level", SETTLED_S)
        level_s = history.now_s - healed_s
        for one in further:
            with contextlib.suppress(NotSoInTime):  # the checker says what did not come
                await cluster.until(one.settled, "all that is owed has come", OWED_S)
        await cluster.until(cluster.namesrvs_agree, "the nameservers agree", AGREED_S)
        await cluster.until(cluster.is_caught_up, "every broker is level again", SETTLED_S)
        return level_s

    # -- the end --------------------------------------------------------------------------------------

    async def _look(self, history: History, traffic: Traffic) -> None:
        """The logs of all, and what a slave serves of the round."""
        cluster, base = self.cluster, self._base
        master = await cluster.the_master()
        body = await cluster.lineage(master)
        assert body is not None
        logs = [
            _log(cluster, node, base, body.log_end, self.read_log, node is master, history.now_s)
            for node in cluster.nodes
        ]
        counts = [0] * len(base.queues)
        for record in next(log for log in logs if log.surviving).records:
            counts[record.queue] += 1
        ends = [begin + count for begin, count in zip(base.queues, counts, strict=True)]
        for node in cluster.nodes:
            await traffic.read_all(node.addr, lambda queue: ends[queue])
        for node, log in zip(cluster.nodes, logs, strict=True):
            changed = not _same(_digests(cluster, node, base.offset), self._below)
            damage = f"what lies below the round, {base.offset} bytes, has changed" if changed else log.damage
            history.add(replace(log, at_s=history.now_s, damage=damage))
        self._below = _digests(cluster, master, body.log_end)
        self._base = Base(body.log_end, tuple(ends))

    def _carry_over(self, history: History) -> None:
        """A send that nobody answered may still be stored in a later round."""
        for one in self._late:
            history.add(replace(one, at_s=0.0, deadline_s=0.0))

    def _judged(self, history: History, level_s: float, steps: Sequence[tuple[str, ...]]) -> Outcome:
        events = history.events
        findings = check(events)
        unknown = {one.send for one in events if isinstance(one, Answered) and one.status == UNKNOWN}
        self._late = [one for one in events if isinstance(one, Invoked) and one.send in unknown]
        if not any(isinstance(one, FinalLog) for one in events) and not findings.verdicts:
            findings.verdicts.append(
                Verdict(Violation.NOT_SETTLED, "no log was seen in the end", history.now_s)
            )
        return Outcome(
            findings, events, timeline(events, SAMPLE_S), level_s, [name for names in steps for name in names]
        )


def _log(
    cluster: Cluster, node: Node, base: Base, end: int, read: ReadLog, surviving: bool, at_s: float
) -> FinalLog:
    """A broker's log from where the round began, with offsets from there."""
    data = cluster.log_bytes(node, end, base.offset)
    log = final_log(node.name, data, base.offset, SEGMENT_BYTES, read, at_s=at_s, surviving=surviving)
    records = tuple(_moved(one, base) for one in log.records if one.topic == TOPIC)
    digests = {offset - base.offset: digest for offset, digest in log.digests.items()}
    return replace(log, start=0, end=end - base.offset, records=records, digests=digests)


def _moved(record: FinalRecord, base: Base) -> FinalRecord:
    return record._replace(
        queue_offset=record.queue_offset - base.queues[record.queue], offset=record.offset - base.offset
    )


def _digests(cluster: Cluster, node: Node, end: int) -> dict[int, str]:
    """Of each segment up to `end`, by its base: retention may have deleted the first ones, on a full disk, say."""
    bases = [base for base in cluster.segments(node) if base < end]
    data = cluster.log_bytes(node, end, bases[0]) if bases else b""
    parts = (data[base - bases[0] :][:SEGMENT_BYTES] for base in bases)
    return {
        base: hashlib.blake2b(one, digest_size=16).hexdigest() for base, one in zip(bases, parts, strict=True)
    }


def _same(found: Mapping[int, str], known: Mapping[int, str]) -> bool:
    """Whether all segments that both have, and the last one, are the same."""
    if not known:
        return True
    return max(known) in found and all(known.get(base, digest) == digest for base, digest in found.items())


async def _sample(cluster: Cluster, history: History) -> None:
    """How far each slave is behind, ten times a second."""
    while True:
        said = [body for body in (await cluster.lineages()).values() if body is not None]
        end = max((body.log_end for body in said if body.is_master), default=-1)
        for body in said:
            node = cluster.node_at(body.broker_addr)
            if not body.is_master and end >= 0 and node is not None:
                history.add(Sampled(history.now_s, node.name, max(0, end - body.log_end)))
        await asyncio.sleep(SAMPLE_S)
