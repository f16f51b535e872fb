"""How jobs reach brokers: the nameservers and keys that options say, the same on driver and workers.

What a nameserver or broker is asked for, haservice.client asks already; here is only with whose keys, and
what of its refusals a Spark job says.
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
    """What tools say to a person: no queue to write to, nobody to read from."""


def name_servers(text: str) -> tuple[str, ...]:
    """Of an option: host:port;host:port.  Raises ValueError."""
    try:
        return addresses(text)
    except click.BadParameter as error:
        raise ValueError(error.message) from None


def way_to(credentials_file: str | None) -> Access:
    """Signed with the keys of this file, which is the same on every worker; else as tools are, access.py.

    Raises ConfigError.
    """
    found = access()
    return (
        found if credentials_file is None else Access(tls=found["tls"], sign=signing(Path(credentials_file)))
    )


def admin_of(servers: tuple[str, ...], credentials_file: str | None) -> Admin:
    way = way_to(credentials_file)
    return Admin(ClientOptions(";".join(servers), tls=way["tls"]), sign=way["sign"])
