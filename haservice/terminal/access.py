"""How the tools connect to nameservers and brokers: with which keys, and over TLS or plain.

Keys come from `conf/tools.yml` below ROCKETMQ_HOME, as for RocketMQ's own tools (accessKey and secretKey,
a line each); MQADMIN_TOOLS_YML names another file.  Without a file requests are unsigned.  TLS is switched on
by `mqadmin --tls`, or by tls.enable=true in the file of --tls-config or /etc/rocketmq/tls.properties.
"""

from __future__ import annotations

import dataclasses
import os
import ssl
from pathlib import Path
from typing import TypedDict

import click

from haservice.access.credentials import signing
from haservice.configuration.config import load_tls
from haservice.remoting.client import Sign, Tls
from haservice.remoting.tls import client_tls

FILE_ENV = "MQADMIN_TOOLS_YML"
HOME_ENV = "ROCKETMQ_HOME"
TOOLS_FILE = Path("conf", "tools.yml")
_TLS = f"{__name__}.tls"


class Access(TypedDict):
    """Arguments for a client."""

    tls: Tls | None
    sign: Sign | None


def access() -> Access:
    """The access of the command that runs now.  Raises ConfigError for a file that cannot be used."""
    context = click.get_current_context(silent=True)
    path = tools_file()
    return Access(
        tls=_tls(False, None) if context is None else _tls_of(context.find_root()),
        sign=None if path is None else signing(path),
    )


def tools_file() -> Path | None:
    """The file that holds the keys, None if there is none; a named file must exist."""
    named = os.environ.get(FILE_ENV)
    if named:
        return Path(named)
    home = os.environ.get(HOME_ENV)
    path = Path(home) / TOOLS_FILE if home else None
    return path if path is not None and path.is_file() else None


def _tls_of(command: click.Context) -> ssl.SSLContext | None:
    """Read once a command: a process may run many, and its files may be renewed between two of them."""
    if _TLS not in command.meta:
        command.meta[_TLS] = _tls(bool(command.params.get("tls")), command.params.get("tls_config"))
    tls: ssl.SSLContext | None = command.meta[_TLS]
    return tls


def _tls(asked: bool, path: Path | None) -> ssl.SSLContext | None:
    config = load_tls(path)
    return client_tls(
        dataclasses.replace(config, calls=True) if asked else config, "" if path is None else str(path)
    )
