"""The second HA door: TLS with certificates on both sides, for masters and slaves of ours.

    haSecurePort=10914           a master takes slaves there; it shows its certificate and checks theirs
    haSecureMaster=true          a slave connects so, and in no other way
    haPlainPort=false            the door for stock slaves stays shut

Whoever shows a certificate from a root of haSecureTrustCertPath counts as a broker of the cluster, master or
slave.  Host names are not compared, because brokers are known by addresses that move.  So these roots must
sign brokers and nobody else.  TLS 1.3 only: both ends are ours.  Certificates are read again when their files
change; present links go on with what they agreed on.
"""

from __future__ import annotations

import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from haservice.certificates import CertificateFile, RenewedCertificates, load_chain, load_roots, reason
from haservice.configuration.settings import NodeConfig, ReplicationConfig
from haservice.errors import ConfigError
from haservice.replication.wire.transport import PlainTransport, TlsTransport, Transport

logger = logging.getLogger(__name__)

CERT, KEY, TRUST = "haSecureCertPath", "haSecureKeyPath", "haSecureTrustCertPath"
# OpenSSL's numbers for a certificate that is not valid yet, or no longer.
_OUT_OF_TIME = frozenset({9, 10})


@dataclass(frozen=True, slots=True)
class _Contexts:
    accepting: ssl.SSLContext
    connecting: ssl.SSLContext


class HACertificates:
    """What a broker shows and trusts on secure links.  One thread may call poll(), any thread the rest."""

    def __init__(self, cert: Path, key: Path, trust: Path, source: str = "") -> None:
        """Raises ConfigError naming the key and the path of what cannot be used."""
        self._cert, self._key, self._trust = cert, key, trust
        self._source = source
        files = [CertificateFile(CERT, cert), CertificateFile(TRUST, trust, roots=True)]
        self.renewed = RenewedCertificates("certificate for replication", files, key, self._build, source)
        self.poll = self.renewed.poll

    def accepted(self, connection: socket.socket) -> TlsTransport:
        """The link of a connection that came to our port."""
        return TlsTransport(connection, self.renewed.made.accepting, server_side=True)

    def connected(self, connection: socket.socket) -> TlsTransport:
        """The link of a connection of ours to a master."""
        return TlsTransport(connection, self.renewed.made.connecting, server_side=False)

    def _build(self) -> _Contexts:
        made = _Contexts(
            self._context(ssl.PROTOCOL_TLS_SERVER, ssl.Purpose.CLIENT_AUTH),
            self._context(ssl.PROTOCOL_TLS_CLIENT, ssl.Purpose.SERVER_AUTH),
        )
        self._check_own(made)
        return made

    def _context(self, protocol: int, purpose: ssl.Purpose) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # no session is resumed: each link shows its certificate
        load_chain(context, (CERT, KEY), self._cert, self._key, None, self._source)
        load_roots(context, purpose, TRUST, self._trust, self._source)
        return context

    def _check_own(self, made: _Contexts) -> None:
        """Shakes hands with ourselves: a certificate that we would not trust, no broker with our roots will.

        Of one that is not valid now RenewedCertificates tells; the broker starts all the same: it serves clients.
        """
        try:
            _shake_hands(made)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in _OUT_OF_TIME:
                return
            why = f"not from a root of {TRUST}={self._trust}, or not for both ends: {error.verify_message}"
            raise ConfigError(self._source, 0, CERT, why, str(self._cert)) from None
        except ssl.SSLError as error:
            raise ConfigError(
                self._source, 0, CERT, f"no use for TLS: {reason(error)}", str(self._cert)
            ) from None


class SecureDoors:
    """Which HA doors a broker has, and how its slave side connects; ready-made for either HA service."""

    def __init__(
        self, config: ReplicationConfig, certificates: HACertificates | None = None, guarded: bool = False
    ) -> None:
        """`guarded`: requests need credentials (aclEnable), so a stranger must not get by here what they
        would refuse him.
        """
        self._config = config
        self._certificates = certificates
        self._guarded = guarded

    @property
    def port(self) -> int:
        """The secure door's port; 0 if there is none."""
        return self._config.secure_port

    @property
    def plain(self) -> bool:
        """Whether the plain door is open."""
        return self._config.plain_port

    @property
    def certificates(self) -> HACertificates | None:
        """What is shown and trusted, with files to watch; None without a secure door."""
        return self._certificates

    def believes(self, secured: bool) -> bool:
        """Whether a certificate or a list vouches for the peer, or nothing asks for that."""
        return secured or not self._guarded or bool(self._config.allowed_slaves)

    def accepted(self, connection: socket.socket) -> Transport:
        """The link of a connection that came to the secure door."""
        assert self._certificates is not None
        return self._certificates.accepted(connection)

    def connected(self, connection: socket.socket) -> Transport:
        """The link of a slave's connection to its master; never plain when haSecureMaster is set."""
        if not self._config.secure_master:
            return PlainTransport(connection)
        assert self._certificates is not None
        return self._certificates.connected(connection)

    def address(self, address: str) -> str:
        """Where a slave connects to a master that is said to be at `address`."""
        if not self._config.secure_master or address == self._config.master_address:
            return address
        host = address.rpartition(":")[0]
        return f"{host}:{self._config.secure_port}"


def secure_doors(config: NodeConfig) -> SecureDoors:
    """Raises ConfigError naming the key that is missing, contradicts another, or cannot be used."""
    replication, source = config.replication, config.source
    port, own = replication.secure_port, config.remoting.listen_port

    def refuse(key: str, why: str, value: object = None) -> ConfigError:
        return ConfigError(source, 0, key, why, None if value is None else str(value))

    if port and port in (own, config.remoting.vip_port, replication.listen_port):
        raise refuse("haSecurePort", "the port is already listenPort, listenPort - 2 or haListenPort", port)
    if not replication.plain_port and not port:
        raise refuse("haPlainPort", "without haSecurePort no slave could ever come", "false")
    if replication.secure_master and not port and replication.master_address is None:
        raise refuse("haSecureMaster", "where? set haSecurePort, or haMasterAddress", "true")
    guarded = config.acl.enabled
    if guarded and replication.plain_port and not replication.allowed_slaves:
        logger.warning(
            "aclEnable=true, and haListenPort serves everybody: set haAllowedSlaves or haPlainPort"
        )
    if not port and not replication.secure_master:
        return SecureDoors(replication, guarded=guarded)
    paths = {CERT: replication.secure_cert, KEY: replication.secure_key, TRUST: replication.secure_trust}
    for key, path in paths.items():
        if path is None:
            asks = "haSecurePort" if port else "haSecureMaster"
            raise refuse(key, f"not set, and {asks} needs all of {', '.join(paths)}")
    cert, key_path, trust = (path for path in paths.values() if path is not None)
    return SecureDoors(replication, HACertificates(cert, key_path, trust, source), guarded)


def _shake_hands(made: _Contexts) -> None:
    """Runs both ends in memory.  Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        made.connecting.wrap_bio(to_client, to_server),
        made.accepting.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):  # more turns than a handshake takes
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
