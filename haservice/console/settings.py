"""What the command line of mqconsole says.  Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from haservice.admin.commands.ha.findings import CheckLimits
from haservice.remoting.tls import ClientTls

HTTPS_PORT = 443


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """All of it; `tls` is for calls to brokers and nameservers."""

    namesrv: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8080
    allow_changes: bool = False
    without_login: bool = False
    """Let anybody in where the brokers have no access control, also from other machines."""
    cert: Path | None = None
    key: Path | None = None
    public_url: str = ""
    """Where a proxy shows this console: https://console.example."""
    tls: ClientTls | None = None
    limits: CheckLimits = field(default_factory=CheckLimits)

    @property
    def public_name(self) -> str:
        return urlsplit(self.public_url).hostname or ""

    def is_secure(self, host: str) -> bool:
        """Whether a browser that sends this header Host came over TLS: ours, or the proxy's."""
        return self.cert is not None or (self._is_public_https and name_of(host) == self.public_name)

    def wants_tls_only(self, host: str) -> bool:
        """Whether such a browser is to come by TLS only from now on, to all ports of that name.

        Not with a port of the console's own, beside which others of that name may be plain, and never on localhost.
        """
        is_usual_port = urlsplit(self.public_url).port in (None, HTTPS_PORT)
        return self._is_public_https and is_usual_port and name_of(host) == self.public_name != "localhost"

    @property
    def _is_public_https(self) -> bool:
        return urlsplit(self.public_url).scheme == "https"

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach it."""
        return is_loopback(self.host)


def name_of(host: str) -> str:
    """The header Host without its port; "" if it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Pure: a name other than localhost may be anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
