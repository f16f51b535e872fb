"""What a broker answers to load balancers: 200 or 503, and why.  Pure.

/healthz    its threads run and its loop answers
/readyz     healthy, and of use in its role: as /master of a master, as /slave of a slave
/master     a master that accepts writes
/slave      a slave whose link to its master is up
/in-sync    a master with as many slaves in sync as a SYNC_MASTER needs; a slave that is near its master's end
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from haservice.broker.metrics.facts import NO_REFUSALS, Refusals
from haservice.observability.pages import HealthVerdict
from haservice.replication.status import HAStatus, MasterLinkStatus


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """`near_bytes`: haSlaveFallbehindMax."""

    name: str
    status: HAStatus
    needed: int
    near_bytes: int
    refusals: Refusals = NO_REFUSALS
    failures: Mapping[str, str] = field(default_factory=dict)


def healthz(facts: HealthFacts) -> HealthVerdict:
    if facts.failures:
        failed = "; ".join(f"thread {name} has failed: {why}" for name, why in facts.failures.items())
        return HealthVerdict(False, failed)
    return HealthVerdict(True, f"{facts.name} runs as {facts.status.role}")


def readyz(facts: HealthFacts) -> HealthVerdict:
    found = healthz(facts)
    if not found.ok:
        return found
    return master(facts) if facts.status.master is None else slave(facts)


def master(facts: HealthFacts) -> HealthVerdict:
    status = facts.status
    if status.master is not None:
        return HealthVerdict(False, f"a slave of {status.master.master_addr or 'no known master'}")
    if reason := facts.refusals.first:
        return HealthVerdict(False, f"a master that refuses writes: {reason}")
    return HealthVerdict(True, f"{status.role} of epoch {status.epoch}, accepts writes")


def slave(facts: HealthFacts) -> HealthVerdict:
    link = facts.status.master
    if link is None:
        return HealthVerdict(False, f"a master: {facts.status.role}")
    if not link_is_up(link):
        reason = f": {link.last_error}" if link.last_error else ""
        return HealthVerdict(
            False, f"not connected to its master {link.master_addr or '(none is known)'}{reason}"
        )
    return HealthVerdict(True, f"a slave of {link.master_addr}, {_behind_text(link)}")


def in_sync(facts: HealthFacts) -> HealthVerdict:
    status = facts.status
    if status.master is not None:
        found, behind = slave(facts), slave_lag(status.master)
        if found.ok and behind >= facts.near_bytes:
            return HealthVerdict(False, f"{behind} bytes behind, haSlaveFallbehindMax is {facts.near_bytes}")
        return found
    said = f"slaves in sync: {status.in_sync_slaves}, needed: {facts.needed}"
    lacks = [f"{one.broker_addr or one.addr}: {one.reason}" for one in status.slaves if not one.in_sync]
    lacks += [f"{one.addr}: gone, {one.reason}" for one in status.absent]
    ok = status.in_sync_slaves >= facts.needed
    return HealthVerdict(ok, said if ok else "; ".join([said, *lacks]))


CHECKS: Mapping[str, Callable[[HealthFacts], HealthVerdict]] = {
    "/healthz": healthz,
    "/readyz": readyz,
    "/master": master,
    "/slave": slave,
    "/in-sync": in_sync,
}


def link_is_up(link: MasterLinkStatus) -> bool:
    return link.state == "TRANSFER"


def slave_lag(link: MasterLinkStatus) -> int:
    """Bytes that the slave knows its master to have, and lacks; -1 if it does not know."""
    return max(0, link.master_end - link.offset) if link.master_end >= 0 else -1


def _behind_text(link: MasterLinkStatus) -> str:
    lag = slave_lag(link)
    return f"{lag} bytes behind" if lag >= 0 else "which has not told its end yet"
