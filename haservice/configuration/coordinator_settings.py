"""The settings of failover by a coordinator; what `haCoordinator` may say, as a value.  Pure.

etcd://h1:2379,h2:2379,h3:2379          etcds:// with TLS
zookeeper://h1:2181,h2:2181/chroot      zookeepers:// with TLS; the path is put before all keys
"""
# ruff: noqa: RUF009 - no field's default changes

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commitlog.keys import ANY, BY_HAND, OURS, Section, Values
from haservice.configuration.texts import PORT_MAX, check_address

FAILOVER = Section("Failover by a coordinator")

# Scheme → its port if none is named.
SCHEMES = {"etcd": 2379, "etcds": 2379, "zookeeper": 2181, "zookeepers": 2181}


@dataclass(frozen=True, slots=True)
class CoordinatorPlace:
    """Where a coordinator is; `prefix` is put before `/haservice`."""

    scheme: str
    servers: tuple[tuple[str, int], ...]
    prefix: str = ""

    @property
    def is_etcd(self) -> bool:
        return self.scheme.startswith("etcd")

    @property
    def is_tls(self) -> bool:
        return self.scheme.endswith("s")

    def __str__(self) -> str:
        servers = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )
        return f"{self.scheme}://{servers}{self.prefix}"


def place_of(text: str) -> CoordinatorPlace:
    """Raises ValueError with what is wrong."""
    scheme, found, rest = text.strip().partition("://")
    if not found or scheme not in SCHEMES:
        raise ValueError(
            f"not an address such as etcd://h1:2379,h2:2379,h3:2379; it begins with {_one_of(SCHEMES)}"
        )
    hosts, slash, path = rest.partition("/")
    servers = tuple(_server(one.strip(), SCHEMES[scheme]) for one in hosts.split(","))
    if len(set(servers)) < len(servers):
        raise ValueError("one server is named twice")
    return CoordinatorPlace(scheme, servers, f"/{path.strip('/')}" if slash and path.strip("/") else "")


def _server(text: str, port: int) -> tuple[str, int]:
    host, bracket, after = text.removeprefix("[").partition("]") if text.startswith("[") else (text, "", "")
    if not bracket:
        if text.count(":") > 1 and ";" not in text:
            raise ValueError(f"{text!r} has several colons: an IPv6 address stands in brackets, [::1]:{port}")
        host, colon, number = text.partition(":")
        after = f"{colon}{number}"
    if after:
        if not after.startswith(":") or not after[1:].isdigit() or not 0 < int(after[1:]) <= PORT_MAX:
            raise ValueError(f"{text!r} has no port: host:{port} is expected")
        port = int(after[1:])
    if not bracket:
        try:
            check_address(f"{host}:{port}")
        except ValueError as error:
            raise ValueError(f"{text!r} is no host:port: {error}") from None
    return host, port


def _one_of(names: dict[str, int]) -> str:
    *most, last = (f"{one}://" for one in names)
    return f"{', '.join(most)} or {last}"


# What haCoordinator says where there was a coordinator, and is none any more.
NONE = "none"


def _checked(text: str) -> str:
    return NONE if text.strip() == NONE else str(place_of(text))


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Whether, and how, the brokers of a name fail over by themselves."""

    address: str | None = FAILOVER.key("haCoordinator", None, Values(check=_checked), OURS, BY_HAND)(
        "The etcd cluster or ZooKeeper ensemble that says who is the master: etcd://h1:2379,h2:2379,h3:2379, or "
        "zookeeper://h1:2181,h2:2181,h3:2181; with TLS etcds:// or zookeepers://. The same for all brokers of a "
        "name. brokerRole then says who is the first master, and of which kind. Not set: commands change roles. A "
        "store that has had a coordinator does not start without one, unless this is none, for all brokers at once."
    )
    lease_ttl_s: int = FAILOVER.key("haLeaseTtl", 5, Values("s", low=2, high=300), OURS, BY_HAND)(
        "A dead master is replaced after so long. As the three below, the first master's value is written to the "
        "coordinator, and holds for all brokers of the name from then on."
    )
    loop_wait_s: int = FAILOVER.key("haLoopWait", 1, Values("s", high=60), OURS, BY_HAND)(
        "How often the lease is renewed. haLeaseTtl is twice that, or more."
    )
    max_loss_bytes: int = FAILOVER.key(
        "haMaxLossBytes", 1024 * 1024, Values("bytes", low=0, high=2**62), OURS, BY_HAND
    )(
        "Of an ASYNC_MASTER: the slave that replaces it may lack so much of its log. 0: it is replaced only after "
        "a clean stop. A SYNC_MASTER's slave lacks nothing that was answered with OK."
    )
    failsafe: bool = FAILOVER.key("haFailsafe", True, ANY, OURS, BY_HAND)(
        "While nobody reaches the coordinator, a master goes on if all its voters promise to leave it the lease."
    )
    user: str = FAILOVER.key("haCoordinatorUser", "", ANY, OURS, BY_HAND)(
        "The user of etcd, or of ZooKeeper's digest scheme. Not set: nobody logs in."
    )
    password: str | None = FAILOVER.key("haCoordinatorPassword", None, Values(secret=True), OURS, BY_HAND)(
        "That user's password."
    )
    trust: Path | None = FAILOVER.key("haCoordinatorTrustCertPath", None, ANY, OURS, BY_HAND)(
        "With TLS: the roots of the coordinator's certificates, in PEM."
    )
    certificate: Path | None = FAILOVER.key("haCoordinatorCertPath", None, ANY, OURS, BY_HAND)(
        "With TLS: the certificate to show a coordinator that asks for one, in PEM."
    )
    key: Path | None = FAILOVER.key("haCoordinatorKeyPath", None, ANY, OURS, BY_HAND)(
        "The private key of that certificate, not locked."
    )

    @property
    def is_set(self) -> bool:
        return self.address not in (None, NONE)

    @property
    def is_given_up(self) -> bool:
        return self.address == NONE
