"""TLS on the remoting ports: which connections are taken, and the certificates to show and to trust.

    mode         plain connections   TLS
    disabled     served              closed
    permissive   served              served, when there is a certificate
    enforcing    closed              served

The first byte tells a connection's kind: it is 0x16 of every TLS connection, and never of a plain one within
its limits.  RocketMQ falls back to a certificate that nobody can check; we do so only with
`tls.test.mode.enable`.  As in RocketMQ, host names are not checked: brokers are known by their addresses.
"""

from __future__ import annotations

import logging
import ssl
import subprocess
import tempfile
from pathlib import Path

from haservice.certificates import RenewedCertificates, check_pair, files_of, load_chain, load_roots
from haservice.configuration.security_settings import ClientAuth, TlsConfig, TlsMode
from haservice.errors import ConfigError

logger = logging.getLogger(__name__)

# The first byte of a TLS record with a handshake in it.
HANDSHAKE = b"\x16"

# How long a handshake may take, as in RocketMQ's Netty.
HANDSHAKE_SECONDS = 10.0
# How long the end of a TLS connection waits for the peer's own.
SHUTDOWN_SECONDS = 5.0

# A test certificate is for an afternoon; it exists as long as its process.
SELF_SIGNED_DAYS = "365"
SELF_SIGNED_SECONDS = 30.0


class ServerTls:
    """What a server needs for TLS.  `poll` replaces `context` when the certificate's files change."""

    def __init__(self, config: TlsConfig, source: str = "") -> None:
        """Raises ConfigError, which names the key of a file that cannot be used."""
        self.enforcing = config.mode is TlsMode.enforcing
        self._config = config
        self._source = source
        self._asks_clients = config.client_auth is not ClientAuth.none and config.auth_client
        trust = config.server_trust if self._asks_clients else None
        files = files_of(("tls.server.certPath", config.server_cert), ("tls.server.trustCertPath", trust))
        self.renewed = RenewedCertificates("certificate", files, config.server_key, self._build, source)
        self.poll = self.renewed.poll

    @property
    def context(self) -> ssl.SSLContext:
        return self.renewed.made

    def _build(self) -> ssl.SSLContext:
        config = self._config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if config.server_cert is None or config.server_key is None:
            with tempfile.TemporaryDirectory(prefix="haservice-tls-") as directory:
                cert, key = self_signed(Path(directory))
                made = ("tls.test.mode.enable", "tls.test.mode.enable")
                load_chain(context, made, cert, key, None, self._source)
            return context
        key = config.server_key
        names = ("tls.server.certPath", "tls.server.keyPath")
        load_chain(context, names, config.server_cert, key, config.server_key_password, self._source)
        if self._asks_clients:
            required = config.client_auth is ClientAuth.require
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
            purpose, roots = ssl.Purpose.CLIENT_AUTH, config.server_trust
            load_roots(context, purpose, "tls.server.trustCertPath", roots, self._source)
        return context


def server_tls(config: TlsConfig, source: str = "") -> ServerTls | None:
    """None when the ports take plain connections only.  Raises ConfigError naming the key."""
    if config.mode is TlsMode.disabled:
        return None
    check_pair(("tls.server.certPath", "tls.server.keyPath"), config.server_cert, config.server_key, source)
    if config.server_cert is None and not config.test_mode:
        if config.mode is TlsMode.enforcing:
            raise ConfigError(
                source,
                0,
                "tls.server.certPath",
                "tls.server.mode=enforcing needs a certificate (or tls.test.mode.enable=true, for a try)",
            )
        logger.info("no TLS on this port: there is no tls.server.certPath (tls.server.mode=permissive)")
        return None
    if config.client_auth is ClientAuth.require and not config.auth_client:
        raise ConfigError(
            source,
            0,
            "tls.server.need.client.auth",
            "require without tls.server.authClient=true would take any certificate at all",
        )
    if config.server_cert is None:
        logger.warning("TLS with a certificate of our own making: nobody can tell us from another")
    return ServerTls(config, source)


class ClientTls:
    """TLS of outgoing calls.  `poll` replaces `context`, for new connections, when its files change."""

    def __init__(self, config: TlsConfig, source: str = "") -> None:
        """Raises ConfigError, which names the key at fault."""
        trust = config.client_trust if config.auth_server else None
        files = files_of(("tls.client.trustCertPath", trust), ("tls.client.certPath", config.client_cert))
        self.renewed = RenewedCertificates(
            "certificate of calls", files, config.client_key, lambda: _client_context(config, source), source
        )
        self.poll = self.renewed.poll

    @property
    def context(self) -> ssl.SSLContext:
        return self.renewed.made


def renewed_client_tls(config: TlsConfig, source: str = "") -> ClientTls | None:
    """As `client_tls`, for a process that runs for long."""
    return ClientTls(config, source) if _calls(config) else None


def client_tls(config: TlsConfig, source: str = "") -> ssl.SSLContext | None:
    """For outgoing calls; None if they are plain.  Raises ConfigError, which names the key at fault."""
    return _client_context(config, source) if _calls(config) else None


def _calls(config: TlsConfig) -> bool:
    return config.calls or config.mode is TlsMode.enforcing


def _client_context(config: TlsConfig, source: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if config.auth_server:
        load_roots(context, ssl.Purpose.SERVER_AUTH, "tls.client.trustCertPath", config.client_trust, source)
    else:
        context.verify_mode = ssl.CERT_NONE
    check_pair(("tls.client.certPath", "tls.client.keyPath"), config.client_cert, config.client_key, source)
    if config.client_cert is not None and config.client_key is not None:
        load_chain(
            context,
            ("tls.client.certPath", "tls.client.keyPath"),
            config.client_cert,
            config.client_key,
            config.client_key_password,
            source,
        )
    return context


def self_signed(directory: Path) -> tuple[Path, Path]:
    """Makes a certificate and its key in `directory` with the openssl command.  Raises ConfigError."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-subj", "/CN=haservice", "-days", SELF_SIGNED_DAYS, "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=SELF_SIGNED_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        reason = said.decode(errors="replace").strip().rpartition("\n")[2] or str(error)
        raise ConfigError("openssl", 0, "tls.test.mode.enable", f"no certificate made: {reason}") from None
    return cert, key
