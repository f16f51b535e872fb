"""A broker's security, built from its configuration before anything else is opened.

    guard         before every request of both ports, when aclEnable=true
    tls           which connections these ports take
    make_client   the client for nameservers and the pair's other brokers; takes a callback for its end
    doors         how slaves connect to us, and how we connect to a master

An error here ends the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from haservice.access.credentials import signing
from haservice.access.files import AclFiles, rules_files
from haservice.access.guard import AclGuard
from haservice.broker.acl.rights import check
from haservice.configuration.settings import NodeConfig
from haservice.remoting.client import BlockingClient
from haservice.remoting.tls import ServerTls, client_tls, server_tls
from haservice.replication.wire.secure import SecureDoors, secure_doors
from haservice.service import OnFailure


@dataclass(frozen=True, slots=True)
class Security:
    """A field that is None is off."""

    acl: AclFiles | None
    guard: AclGuard | None
    tls: ServerTls | None
    make_client: Callable[[OnFailure], BlockingClient]
    doors: SecureDoors

    def poll(self, offload_quietly: Callable[[Callable[[], object]], None]) -> None:
        """Looks for changed files about once a second, each kind by itself: one that fails hides no other."""
        for part in (self.acl, self.tls, self.doors if self.doors.watched else None):
            if part is not None:
                offload_quietly(part.poll)


def security_of(config: NodeConfig) -> Security:
    """Raises ConfigError for a file that cannot be used, naming it."""
    files = rules_files(config.acl, config.source)
    return Security(
        files,
        None if files is None else AclGuard(lambda address, request: check(files.rules, address, request)),
        server_tls(config.tls, config.source),
        _client_maker(config),
        secure_doors(config),
    )


def _client_maker(config: NodeConfig) -> Callable[[OnFailure], BlockingClient]:
    tls = client_tls(config.tls, config.source)
    credentials = config.acl.credentials_file
    keys = None if credentials is None else signing(credentials)
    return lambda on_failure: BlockingClient(on_failure=on_failure, tls=tls, sign=keys)
