"""What a nameserver tells monitoring: which broker names have a master, and how long each broker was silent.

The table belongs to the nameserver's loop, so each scrape takes a copy there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from haservice import __version__
from haservice.nameserver.route_table import RouteTable
from haservice.observability.exposition import Exposition, ProcessFacts
from haservice.observability.pages import HealthVerdict, Pages, answers
from haservice.observability.server import MonitoringServer
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.remoting.server import RemotingServer
from haservice.service import OnFailure

# How long a scrape waits for the loop.
LOOP_S = 4.0


class Presence(NamedTuple):
    """A broker in the routes, silent for so long."""

    cluster: str
    broker_name: str
    broker_id: int
    addr: str
    silent_s: float


class NameserverFacts(NamedTuple):
    """What a nameserver knows at one moment."""

    version: str
    brokers: list[Presence]
    topics: int
    connections: int
    http_refused: Mapping[str, int]


def presences(table: RouteTable) -> list[Presence]:
    """On the thread that owns the table."""
    silent_s = table.silent_s()
    return [
        Presence(data.cluster, name, broker_id, addr, silent_s.get(addr, 0.0))
        for name, data in table.cluster_info().broker_addr_table.items()
        for broker_id, addr in data.broker_addrs.items()
    ]


def exposition_of(facts: NameserverFacts) -> Exposition:
    out = Exposition()
    out.gauge("haservice_build_info", "Version of haservice.", 1, version=facts.version)
    masters = {(one.cluster, one.broker_name) for one in facts.brokers if one.broker_id == MASTER_ID}
    for cluster, broker in dict.fromkeys((one.cluster, one.broker_name) for one in facts.brokers):
        out.gauge(
            "haservice_namesrv_has_master",
            "1 if a master of this name is registered.",
            int((cluster, broker) in masters),
            cluster=cluster,
            broker=broker,
        )
    for one in facts.brokers:
        out.gauge(
            "haservice_namesrv_silence_seconds",
            "Time since the broker registered last; after 120 s it is dropped.",
            one.silent_s,
            cluster=one.cluster,
            broker=one.broker_name,
            broker_id=str(one.broker_id),
            addr=one.addr,
        )
    out.gauge("haservice_namesrv_brokers", "Brokers that are registered.", len(facts.brokers))
    out.gauge("haservice_namesrv_topics", "Topics that have a route.", facts.topics)
    out.gauge("haservice_client_connections", "Connections of brokers and clients.", facts.connections)
    for why, count in facts.http_refused.items():
        out.counter("haservice_http_refused_total", "Connections here that got no page.", count, why=why)
    return out


def open_monitoring(
    addr: str, table: RouteTable, server: RemotingServer, source: str, on_failure: OnFailure | None = None
) -> MonitoringServer:
    """Raises ConfigError for an address that cannot be had."""
    process = ProcessFacts()

    async def brokers() -> tuple[list[Presence], int]:
        return presences(table), len(table.topics())

    def collect() -> bytes:
        present, topics = asyncio.run_coroutine_threadsafe(brokers(), server.loop).result(LOOP_S)
        facts = NameserverFacts(__version__, present, topics, server.connections, refused())
        return exposition_of(facts).text() + process.text()

    async def healthy() -> HealthVerdict:
        await answers(server.loop)
        return HealthVerdict(True, "the nameserver answers")

    def refused() -> Mapping[str, int]:
        return opened.refused

    pages = Pages(collect, {"/healthz": healthy, "/readyz": healthy})
    opened = MonitoringServer(addr, pages.answer, source=source, on_failure=on_failure)
    return opened
