"""What the command line of mqconsole says.  Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from haservice.admin.commands.ha.findings import CheckLimits
from haservice.remoting.tls import ClientTls


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
    def is_secure(self) -> bool:
        """Whether browsers come over TLS."""
        return self.cert is not None or self.public_url.startswith("https:")

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Pure: a name other than localhost may be anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
