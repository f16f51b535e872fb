"""How jobs reach brokers: nameservers and keys come from options, the same on driver and workers.

haservice.client already asks nameservers and brokers.  This module adds whose keys sign the requests, and
how a Spark job words refusals.
"""

from __future__ import annotations

from pathlib import Path

import click

from haservice.access.credentials import signing
from haservice.client.admin import Admin
from haservice.client.options import ClientOptions
from haservice.errors import HAServiceError
from haservice.terminal.access import Access, access
from haservice.terminal.options import addresses


class BrokerRefused(HAServiceError):
    """A refusal as tools word it for a person: no queue to write to, nobody to read from."""


def name_servers(text: str) -> tuple[str, ...]:
    """Parses an option: host:port;host:port.  Raises ValueError."""
    try:
        return addresses(text)
    except click.BadParameter as error:
        raise ValueError(error.message) from None


def way_to(credentials_file: str | None) -> Access:
    """Access with the keys of this file, which is the same on every worker; else as tools have it, access.py.

    Raises ConfigError.
    """
    found = access()
    return (
        found if credentials_file is None else Access(tls=found["tls"], sign=signing(Path(credentials_file)))
    )


def admin_of(servers: tuple[str, ...], credentials_file: str | None) -> Admin:
    way = way_to(credentials_file)
    return Admin(ClientOptions(";".join(servers), tls=way["tls"]), sign=way["sign"])
