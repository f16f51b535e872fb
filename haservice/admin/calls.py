"""The client library's Admin for mqadmin's commands: with the keys, TLS and advice of tools."""

from __future__ import annotations

from collections.abc import Sequence

import click

from haservice.client import admin
from haservice.client.admin import Broker, Pulled, readable_addr
from haservice.client.options import ClientOptions
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.terminal.access import Access, access

__all__ = ["Admin", "Broker", "Pulled", "readable_addr"]


class Admin(admin.Admin):
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
