"""A broker's security, built from its configuration before anything else is opened.

    guard         before every request of both ports, when aclEnable=true
    tls           which connections these ports take
    calls_tls     TLS of the calls that it makes
    make_client   the client for nameservers and the pair's other brokers; takes a callback for its end
    keys          what the broker signs its calls with: aclCredentialsFile
    doors         how slaves connect to us, and how we connect to a master
    coordinator   the files of TLS to etcd or ZooKeeper; their libraries read them at each new connection

An error here ends the start.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from haservice.access.credentials import OwnKeys
from haservice.access.files import AclFiles, rules_files
from haservice.access.guard import AclGuard
from haservice.broker.acl.rights import check
from haservice.certificates import (
    RenewedCertificates,
    Validity,
    check_pair,
    files_of,
    load_chain,
    load_roots,
)
from haservice.configuration.coordinator_settings import CoordinatorConfig, place_of
from haservice.configuration.settings import NodeConfig
from haservice.remoting.client import BlockingClient
from haservice.remoting.tls import ClientTls, ServerTls, renewed_client_tls, server_tls
from haservice.replication.wire.secure import SecureDoors, secure_doors
from haservice.service import OnFailure


@dataclass(frozen=True, slots=True)
class Security:
    """A field that is None is off."""

    acl: AclFiles | None
    guard: AclGuard | None
    tls: ServerTls | None
    calls_tls: ClientTls | None
    keys: OwnKeys | None
    doors: SecureDoors
    coordinator: RenewedCertificates[ssl.SSLContext] | None

    def make_client(self, on_failure: OnFailure) -> BlockingClient:
        sign = None if self.keys is None else self.keys.sign
        return BlockingClient(on_failure=on_failure, tls=self.calls_tls, sign=sign)

    def certificates(self) -> list[RenewedCertificates[Any]]:
        parts = (self.tls, self.calls_tls, self.doors.certificates)
        found = [part.renewed for part in parts if part is not None]
        return found if self.coordinator is None else [*found, self.coordinator]

    def watched(self) -> list[AclFiles | OwnKeys | RenewedCertificates[Any]]:
        """All that is read again when its files change."""
        return [*(part for part in (self.acl, self.keys) if part is not None), *self.certificates()]

    def poll(self, offload_quietly: Callable[[Callable[[], object]], None]) -> None:
        """Looks for changed files about once a second, each kind by itself: one that fails hides no other."""
        for part in self.watched():
            offload_quietly(part.poll)

    @property
    def trouble(self) -> str:
        """Which files are not in force as they are, and why; "" if all are."""
        return "; ".join(part.trouble for part in self.watched() if part.trouble)

    def gauges(self) -> dict[str, str]:
        """Entries of request 28."""
        certificates, dates = self.certificates(), self.validities()
        roots = {key: digest for one in certificates for key, digest in one.root_digests.items()}
        return {
            "filesNotInForce": self.trouble,
            "certificateBegins": _listed({key: f"{one.since:.0f}" for key, one in dates.items()}),
            "certificateEnds": _listed({key: f"{one.until:.0f}" for key, one in dates.items()}),
            "accountsDigest": "off" if self.acl is None else self.acl.digest,
            "rootDigests": _listed(roots),
        }

    def validities(self) -> dict[str, Validity]:
        """When each certificate in force is valid, by its file's key."""
        return {key: validity for one in self.certificates() for key, validity in one.validities.items()}


def security_of(config: NodeConfig) -> Security:
    """Raises ConfigError for a file that cannot be used, naming it."""
    files = rules_files(config.acl, config.source)
    credentials = config.acl.credentials_file
    return Security(
        files,
        None if files is None else AclGuard(lambda address, request: check(files.rules, address, request)),
        server_tls(config.tls, config.source),
        renewed_client_tls(config.tls, config.source),
        None if credentials is None else OwnKeys(credentials),
        secure_doors(config),
        _coordinator_certificates(config.coordinator, config.source),
    )


def _coordinator_certificates(
    config: CoordinatorConfig, source: str
) -> RenewedCertificates[ssl.SSLContext] | None:
    """None without files, or without TLS to the coordinator."""
    trust, certificate, key = config.trust, config.certificate, config.key
    if not config.is_set or not place_of(str(config.address)).is_tls:
        return None
    names = ("haCoordinatorTrustCertPath", "haCoordinatorCertPath", "haCoordinatorKeyPath")
    check_pair(names[1:], certificate, key, source)
    files = files_of((names[0], trust), (names[1], certificate))

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if trust is not None:
            load_roots(context, ssl.Purpose.SERVER_AUTH, names[0], trust, source)
        if certificate is not None and key is not None:
            load_chain(context, names[1:], certificate, key, None, source)
        return context

    return RenewedCertificates("certificate for the coordinator", files, key, make, source) if files else None


def _listed(pairs: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items()))
