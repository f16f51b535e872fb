"""The settings of access control and TLS: frozen dataclasses, as those of haservice.configuration.settings."""
# ruff: noqa: RUF009 - paths and an enum's members are as immutable as they come

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from commitlog.keys import ANY, BY_HAND, IMPORTANT, OURS, Section, Values

# RocketMQ reads its TLS keys from here when nothing else is said.
TLS_CONFIG_FILE = Path("/etc/rocketmq/tls.properties")

ACCESS = Section("Access control")
TLS = Section("TLS")
REPLICATION_TLS = Section("Replication over TLS")

_PLAIN_ACL = (
    "Where plain_acl.yml is; the files of acl/ beside it count, too. Not set: $ROCKETMQ_HOME/conf/plain_acl.yml, "
    "without ROCKETMQ_HOME plain_acl.yml beside this file."
)
_SECRET = Values(secret=True)
# RocketMQ takes these words in any case.
_WORD = Values(any_case=True)


@dataclass(frozen=True, slots=True)
class AclConfig:
    """Who may do what on the clients' ports of a broker."""

    enabled: bool = ACCESS.key("aclEnable", False, ANY, IMPORTANT, BY_HAND)(
        "Requests are checked against the accounts of plain_acl.yml."
    )
    file: Path | None = ACCESS.key("aclFile", None, ANY, OURS, BY_HAND)(_PLAIN_ACL)
    credentials_file: Path | None = ACCESS.key("aclCredentialsFile", None, ANY, OURS, BY_HAND)(
        "A YAML file with accessKey and secretKey, as tools.yml, which sign requests to nameservers and "
        "other brokers. Not set: they are not signed, and those white-list this broker."
    )
    follows_message: bool = ACCESS.key("aclFollowsMessage", True, ANY, OURS, BY_HAND)(
        "A message is shown by its id, sent back, and its transaction ended, only by who may read or send "
        "its topic. false: any account may, as with RocketMQ's brokers."
    )


@dataclass(frozen=True, slots=True)
class NameserverAclConfig:
    """Who may change what a nameserver knows.  Routes are readable to all in any case."""

    enabled: bool = ACCESS.key("aclEnable", False, ANY, OURS, BY_HAND)(
        "Changes (registrations of brokers, values, permissions, topics, settings) are taken from admin "
        "accounts and white-listed addresses of plain_acl.yml only."
    )
    file: Path | None = ACCESS.key("aclFile", None, ANY, OURS, BY_HAND)(_PLAIN_ACL)
    allowed: tuple[str, ...] = ACCESS.key(
        "changesAllowedFrom", (), Values("address;…", separator=";"), OURS, BY_HAND
    )(
        "Addresses, ranges and networks that may change things without a signature, which stock brokers "
        "cannot give. Set, without aclEnable: nobody else may."
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
    """TLS on the clients' ports and for outgoing calls.  In RocketMQ these are system properties of Java."""

    mode: TlsMode = TLS.key("tls.server.mode", TlsMode.permissive, _WORD, BY_HAND)(
        "disabled takes plain connections, enforcing only TLS, permissive both; plain without a certificate."
    )
    server_key: Path | None = TLS.key("tls.server.keyPath", None, ANY, BY_HAND)("The private key, in PEM.")
    server_key_password: str | None = TLS.key("tls.server.keyPassword", None, _SECRET, BY_HAND)(
        "The password of that key."
    )
    server_cert: Path | None = TLS.key("tls.server.certPath", None, ANY, BY_HAND)(
        "The certificate, and those between it and its root, in PEM."
    )
    client_auth: ClientAuth = TLS.key("tls.server.need.client.auth", ClientAuth.none, _WORD, BY_HAND)(
        "Whether clients are asked for a certificate."
    )
    auth_client: bool = TLS.key("tls.server.authClient", False, ANY, BY_HAND)(
        "Clients' certificates, where they are asked for, are checked."
    )
    server_trust: Path | None = TLS.key("tls.server.trustCertPath", None, ANY, BY_HAND)(
        "The roots of clients' certificates. Not set: the system's."
    )
    calls: bool = TLS.key("tls.enable", False, ANY, BY_HAND)(
        "Calls to nameservers and to the master use TLS, as in mode enforcing."
    )
    client_key: Path | None = TLS.key("tls.client.keyPath", None, ANY, BY_HAND)(
        "The private key to show a server that asks for a certificate."
    )
    client_key_password: str | None = TLS.key("tls.client.keyPassword", None, _SECRET, BY_HAND)(
        "The password of that key."
    )
    client_cert: Path | None = TLS.key("tls.client.certPath", None, ANY, BY_HAND)(
        "The certificate of that key."
    )
    auth_server: bool = TLS.key("tls.client.authServer", False, ANY, BY_HAND)(
        "Servers' certificates are checked, the host name in them is not."
    )
    client_trust: Path | None = TLS.key("tls.client.trustCertPath", None, ANY, BY_HAND)(
        "The roots of servers' certificates. Not set: the system's."
    )
    test_mode: bool = TLS.key("tls.test.mode.enable", False, ANY, BY_HAND)(
        "Without a certificate one is made at the start, signed by itself. RocketMQ's default is true."
    )
    config_file: Path = TLS.key("tls.config.file", TLS_CONFIG_FILE, ANY, BY_HAND)(
        "A properties file with these keys, read if it is there; what this file says comes first."
    )
