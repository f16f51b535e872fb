"""The settings of access control and TLS: frozen dataclasses, as those of haservice.configuration.settings."""
# ruff: noqa: RUF009 - paths and an enum's members are as immutable as they come

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from commitlog.options import option

# RocketMQ reads its TLS keys from here when nothing else is said.
TLS_CONFIG_FILE = Path("/etc/rocketmq/tls.properties")


@dataclass(frozen=True, slots=True)
class AclConfig:
    """Who may do what on the clients' ports of a broker."""

    enabled: bool = option(
        "aclEnable", False, "", "Requests are checked against the accounts of plain_acl.yml."
    )
    file: Path | None = option(
        "aclFile",
        None,
        "path",
        "OURS, not RocketMQ's: where plain_acl.yml is; the files of acl/ beside it count, too. Not set: "
        "$ROCKETMQ_HOME/conf/plain_acl.yml, without ROCKETMQ_HOME plain_acl.yml beside this file.",
    )
    credentials_file: Path | None = option(
        "aclCredentialsFile",
        None,
        "path",
        "OURS, not RocketMQ's: a YAML file with accessKey and secretKey, as tools.yml, for requests to name "
        "servers and other brokers. Not set: they are not signed, and those white-list this broker.",
    )
    follows_message: bool = option(
        "aclFollowsMessage",
        True,
        "",
        "OURS, not RocketMQ's: a message is shown by its id, given back, and its transaction ended, only by "
        "who may read or send its topic. false: any account may, as with RocketMQ's brokers.",
    )


@dataclass(frozen=True, slots=True)
class NameserverAclConfig:
    """Who may change what a name server knows.  Routes are readable to all in any case."""

    enabled: bool = option(
        "aclEnable",
        False,
        "",
        "OURS, not RocketMQ's: changes (registrations of brokers, values, permissions, topics, settings) "
        "are taken from admin accounts and white-listed addresses of plain_acl.yml only.",
    )
    file: Path | None = option(
        "aclFile",
        None,
        "path",
        "OURS, not RocketMQ's: where plain_acl.yml is; the files of acl/ beside it count, too. Not set: "
        "$ROCKETMQ_HOME/conf/plain_acl.yml, without ROCKETMQ_HOME plain_acl.yml beside this file.",
    )
    allowed: tuple[str, ...] = option(
        "changesAllowedFrom",
        (),
        "address;…",
        "OURS, not RocketMQ's: addresses, ranges and networks that may change things without a signature, "
        "which stock brokers cannot give. Set, without aclEnable: nobody else may.",
    )


class TlsMode(Enum):
    """Which connections a port takes."""

    disabled = "disabled"
    permissive = "permissive"
    enforcing = "enforcing"


class ClientAuth(Enum):
    """Whether a client shows a certificate."""

    none = "none"
    optional = "optional"
    require = "require"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS on the clients' ports, and on calls out.  In RocketMQ these are system properties of Java."""

    mode: TlsMode = option(
        "tls.server.mode",
        TlsMode.permissive,
        "",
        "disabled takes plain connections, enforcing only TLS, permissive both; plain without a certificate.",
    )
    server_key: Path | None = option("tls.server.keyPath", None, "path", "The private key, in PEM.")
    server_key_password: str | None = option(
        "tls.server.keyPassword", None, "", "What the key is locked with."
    )
    server_cert: Path | None = option(
        "tls.server.certPath", None, "path", "The certificate, and those between it and its root, in PEM."
    )
    client_auth: ClientAuth = option(
        "tls.server.need.client.auth", ClientAuth.none, "", "none, optional, require: clients' certificates."
    )
    auth_client: bool = option(
        "tls.server.authClient", False, "", "Clients' certificates, where they are asked for, are checked."
    )
    server_trust: Path | None = option(
        "tls.server.trustCertPath", None, "path", "Roots of clients' certificates. Not set: the system's."
    )
    calls: bool = option(
        "tls.enable", False, "", "Calls to name servers and to the master use TLS, as in mode enforcing."
    )
    client_key: Path | None = option(
        "tls.client.keyPath", None, "path", "The private key to show a server that asks for a certificate."
    )
    client_key_password: str | None = option(
        "tls.client.keyPassword", None, "", "What that key is locked with."
    )
    client_cert: Path | None = option("tls.client.certPath", None, "path", "The certificate of that key.")
    auth_server: bool = option(
        "tls.client.authServer", False, "", "Servers' certificates are checked, the host name in them is not."
    )
    client_trust: Path | None = option(
        "tls.client.trustCertPath", None, "path", "Roots of servers' certificates. Not set: the system's."
    )
    test_mode: bool = option(
        "tls.test.mode.enable",
        False,
        "",
        "Without a certificate one is made at the start, signed by itself. RocketMQ's default is true.",
    )
    config_file: Path = option(
        "tls.config.file",
        TLS_CONFIG_FILE,
        "path",
        "A properties file with these keys, read if it is there; what this file says comes first.",
    )
