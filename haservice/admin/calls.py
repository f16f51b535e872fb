"""The client library's Admin for mqadmin's commands: with the keys, TLS and advice of tools."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from haservice.admin.many import Call, call_many
from haservice.client import admin
from haservice.client.admin import TIMEOUT_S
from haservice.client.message import PulledRecords
from haservice.client.options import ClientOptions
from haservice.client.routes import Broker, readable_addr
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.clients import MASTER_ID, TopicRouteData
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import RouteHeader
from haservice.terminal.access import Access, access

__all__ = ["Broker", "MQAdmin", "PulledRecords", "readable_addr"]

T = TypeVar("T")


class MQAdmin(admin.Admin):
    """For the command that runs now."""

    def __init__(self, namesrv: Sequence[str] = (), way: Access | None = None) -> None:
        """`way` replaces the keys and TLS that the command line and the environment give."""
        found = way or access()
        super().__init__(ClientOptions(";".join(namesrv), tls=found["tls"]), sign=found["sign"])
        self._namesrv = tuple(namesrv)

    @property
    def nameservers(self) -> tuple[str, ...]:
        """All nameservers; raises UsageError if none is known."""
        if not self._namesrv:
            raise click.UsageError("which nameserver?  Say -n host:port, or set NAMESRV_ADDR")
        return self._namesrv

    def targets(self, broker: str | None, cluster: str | None, *, slaves: bool = False) -> list[Broker]:
        """One broker by its address, or a cluster's masters, with their slaves if `slaves`."""
        if broker is not None:
            return [Broker("", "", MASTER_ID, broker)]
        if cluster is None:
            raise click.UsageError("where?  Say -b host:port, or -c CLUSTER with -n")
        return self.brokers(cluster) if slaves else self.masters(cluster)

    def call_many(self, calls: Sequence[Call], timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Makes these calls, some at a time: of each the answer's body, or the RemotingError."""
        return self._client.use(partial(call_many, calls=calls, timeout_s=timeout_s))

    def use(self, work: Callable[[RemotingClient], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` with these connections, and returns its result: for what no other method does."""
        return self._client.use(work)

    def routes(self, topics: Iterable[str]) -> dict[str, TopicRouteData]:
        """The routes of the topics that have one."""
        found: dict[str, TopicRouteData] = {}
        left, failure = list(topics), None
        for addr in self.nameservers:
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            headers = [RouteHeader(topic, accept_standard_json_only=True) for topic in left]
            results = self.call_many([Call(addr, code, header, TopicRouteData) for header in headers])
            answered = dict(zip(left, results, strict=True))
            found.update({topic: one for topic, one in answered.items() if isinstance(one, TopicRouteData)})
            left = [
                topic
                for topic, one in answered.items()
                if isinstance(one, RemotingError) and not isinstance(one, AnswerError)
            ]
            if not left:
                return found
            failure = answered[left[0]]
        if failure is not None:
            raise failure
        return found
