"""The options of every client: where the nameservers are, which account it uses, how long it waits."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from haservice.certificates import load_chain, load_roots
from haservice.client.errors import ClientError, NameserverUnknown
from haservice.configuration.texts import nameservers
from haservice.remoting.client import Sign, Tls
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import sign

NAMESRV_ENV = "NAMESRV_ADDR"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account of plain_acl.yml; requests are signed with it."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def signer(self) -> Sign:
        """A function that adds the signature to a request."""

        def add(request: RemotingCommand) -> None:
            sign(request, self.access_key, self.secret_key, self.security_token)

        return add


_TIMES = (
    "send_timeout_s",
    "request_timeout_s",
    "connect_timeout_s",
    "heartbeat_interval_s",
    "route_interval_s",
    "master_poll_s",
)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Everything has a default but the nameserver, which the environment (NAMESRV_ADDR) may name as well.

    `namesrv_addr`         host:port or http://host:port, several separated by `;`
    `credentials`          the account to sign requests with; None: requests are not signed
    `tls`                  see `tls_context`; None: plain connections
    `instance_name`        the second half of the client id; if empty, a unique one is made up
    `trace`                whether sends and consumption are written to `trace_topic`
    `send_timeout_s`       for a send, its retries included
    `request_timeout_s`    for a question to a nameserver or broker
    `connect_timeout_s`    for a new connection
    `heartbeat_interval_s` brokers forget a client after 120 s without a heartbeat
    `route_interval_s`     how often to ask for routes while all is well
    `master_poll_s`        how often to ask while a broker name has no master that answers
    """

    namesrv_addr: str = ""
    credentials: Credentials | None = None
    tls: Tls | None = None
    instance_name: str = ""
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    send_timeout_s: float = 3.0
    request_timeout_s: float = 3.0
    connect_timeout_s: float = 3.0
    heartbeat_interval_s: float = 30.0
    route_interval_s: float = 30.0
    master_poll_s: float = 0.1

    def __post_init__(self) -> None:
        """Raises ValueError for a time that is no number above 0."""
        for name in _TIMES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"ClientOptions: {name}={value!r}: a number of seconds above 0")

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses.  Raises NameserverUnknown if there is none, ClientError if one is malformed."""
        try:
            found = nameservers(self.namesrv_addr or os.environ.get(NAMESRV_ENV, ""))
        except ValueError as error:
            where = "ClientOptions.namesrv_addr" if self.namesrv_addr else NAMESRV_ENV
            raise ClientError(f"{where}: {error}") from None
        if not found:
            raise NameserverUnknown
        return found


def tls_context(
    *,
    roots: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    key_password: str | None = None,
    check_server: bool = True,
) -> ssl.SSLContext:
    """TLS for `ClientOptions.tls`.  All files are PEM; raises ConfigError for one that cannot be used.

    `roots` check the servers' certificates; None: the system's roots.  Host names are not checked, for
    brokers are known by their addresses.  `check_server=False` accepts any certificate.  `certificate` and
    `key` are shown to a server that asks for them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if check_server:
        load_roots(context, ssl.Purpose.SERVER_AUTH, "roots", roots, "tls_context")
    else:
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None and key is not None:
        load_chain(context, ("certificate", "key"), certificate, key, key_password, "tls_context")
    return context
