"""The monitoring port of a broker: what its pages are made from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from haservice.broker.assembly import BrokerParts
from haservice.broker.health import Health
from haservice.broker.metrics.collect import BrokerCollector
from haservice.broker.metrics.health import CHECKS, HealthFacts
from haservice.observability.exposition import ProcessFacts
from haservice.observability.pages import Ask, HealthVerdict, Pages, SharedCall, answers
from haservice.observability.server import MonitoringServer


def open_monitoring(parts: BrokerParts, health: Health) -> MonitoringServer | None:
    """None without metricsListenAddr.  Raises ConfigError for an address that cannot be had."""
    addr = parts.config.remoting.metrics_addr
    if addr is None:
        return None

    def refused() -> Mapping[str, int]:
        return server.refused

    collector = BrokerCollector(parts, health, refused, ProcessFacts())
    facts = SharedCall(collector.health_facts)
    pages = Pages(
        collector.text,
        {path: _asked(check, facts, lambda: parts.server.loop) for path, check in CHECKS.items()},
    )
    server = MonitoringServer(
        addr, pages.answer, source=parts.config.source, on_failure=health.supervisor.never
    )
    return server


def _asked(
    check: Callable[[HealthFacts], HealthVerdict],
    facts: SharedCall[HealthFacts],
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> Ask:
    """The check, once the clients' loop has answered: a broker whose loop hangs serves nobody."""

    async def ask() -> HealthVerdict:
        await answers(loop())
        return check(await facts())

    return ask
