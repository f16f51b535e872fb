"""Configuration: RocketMQ's properties files read into the dataclasses of haservice.configuration.settings.

Values that do not parse, or contradict another, raise one ConfigError: for each a line with file, line and
key.  Lesser trouble is a warning on the result.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from commitlog.options import QUEUE_ENTRY_BYTES, LogOptions
from haservice.binding import Binder, keys_of
from haservice.configuration import rocketmq_keys
from haservice.configuration.coordinator_settings import CoordinatorConfig
from haservice.configuration.dledger_settings import DLedgerConfig, parse_peers
from haservice.configuration.properties import Properties, PropertyEntry, parse
from haservice.configuration.security_settings import (
    TLS_CONFIG_FILE,
    AclConfig,
    NameserverAclConfig,
    TlsConfig,
)
from haservice.configuration.settings import (
    BrokerConfig,
    BrokerRole,
    NameserverConfig,
    NodeConfig,
    RemotingConfig,
    ReplicationConfig,
)
from haservice.configuration.texts import expanded, told_address
from haservice.errors import ConfigError

# No configuration is larger than this.
FILE_BYTES_MAX = 1024 * 1024
# Addresses to listen on; nobody can connect to them from another host.
EVERY_ADDRESS = ("0.0.0.0", "::")

# In the order in which files show their keys.
BROKER_CLASSES: tuple[type[Any], ...] = (
    RemotingConfig,
    BrokerConfig,
    ReplicationConfig,
    CoordinatorConfig,
    DLedgerConfig,
    LogOptions,
    AclConfig,
    TlsConfig,
)
NAMESERVER_CLASSES: tuple[type[Any], ...] = (NameserverConfig, NameserverAclConfig, TlsConfig)


def load_broker(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> NodeConfig:
    """The configuration of one broker from its properties file; all defaults without one."""
    return broker_from(_read(path) if path is not None else Properties({}, "defaults"), environ)


def broker_from(properties: Properties, environ: Mapping[str, str] = os.environ) -> NodeConfig:
    """As load_broker, from properties already read."""
    binder = Binder(properties)
    broker = binder.values(BrokerConfig)
    log = binder.values(LogOptions)
    replication = binder.values(ReplicationConfig)
    remoting = RemotingConfig(**binder.values(RemotingConfig))
    acl = binder.values(AclConfig)
    tls = _tls(binder)
    coordinator = CoordinatorConfig(**binder.values(CoordinatorConfig))
    dledger = DLedgerConfig(**binder.values(DLedgerConfig))

    _settle_addresses(broker, remoting, binder)
    _settle_name_servers(broker, environ, binder)
    if not dledger.enabled:
        _settle_role(broker, binder)
    else:
        _check_dledger(dledger, coordinator, remoting, binder)
        broker["role"], broker["broker_id"] = BrokerRole.SLAVE, dledger.slave_id if dledger.self_id else 1
    role: BrokerRole = broker.get("role", BrokerRole.ASYNC_MASTER)
    replication["listen_port"] = replication.get("listen_port") or remoting.listen_port + 1
    _check_ports(remoting, replication["listen_port"], binder)
    _check_intervals(replication, binder)
    _check_lease(coordinator, binder)
    _settle_log(log, binder)
    _settle_acl(acl, environ, binder)
    log["replica"] = role.is_slave and not dledger.enabled
    if role.is_slave and not dledger.enabled and not broker.get("namesrv_addrs") and not coordinator.is_set:
        _warn_of_no_name_server(binder, replication.get("master_address"))
    binder.check_names(names_of(*BROKER_CLASSES), rocketmq_keys.BROKER)
    binder.finish()
    return NodeConfig(
        broker=BrokerConfig(**broker),
        log=LogOptions(**log),
        replication=ReplicationConfig(**replication),
        remoting=remoting,
        acl=AclConfig(**acl),
        tls=tls,
        coordinator=coordinator,
        dledger=dledger,
        source=properties.source,
        warnings=tuple(binder.warnings),
    )


def load_tls(path: str | Path | None = None) -> TlsConfig:
    """The TLS settings from a file of their own; by default from RocketMQ's path, if the file exists."""
    binder = Binder(_read(path) if path is not None else Properties({}, "defaults"))
    tls = _tls(binder)
    binder.finish()
    return tls


def load_coordinator(path: str | Path) -> CoordinatorConfig:
    """The coordinator's keys from a properties file: a file of their own, or a broker's."""
    binder = Binder(_read(path))
    coordinator = CoordinatorConfig(**binder.values(CoordinatorConfig))
    binder.finish()
    return coordinator


def load_nameserver(path: str | Path | None = None) -> NameserverConfig:
    """The configuration of a nameserver; all defaults without a file."""
    return nameserver_from(_read(path) if path is not None else Properties({}, "defaults"))


def nameserver_from(properties: Properties, environ: Mapping[str, str] = os.environ) -> NameserverConfig:
    """As load_nameserver, from properties already read."""
    binder = Binder(properties)
    values = binder.values(NameserverConfig)
    acl = binder.values(NameserverAclConfig)
    _settle_acl(acl, environ, binder)
    tls = _tls(binder)
    binder.check_names(names_of(*NAMESERVER_CLASSES), rocketmq_keys.NAMESERVER)
    binder.finish()
    return NameserverConfig(
        **values,
        acl=NameserverAclConfig(**acl),
        tls=tls,
        source=binder.properties.source,
        warnings=tuple(binder.warnings),
    )


def names_of(*classes: type[Any]) -> set[str]:
    return {key.name for key, _ in keys_of(*classes)}


def in_force(config: NodeConfig | NameserverConfig) -> list[tuple[str, str]]:
    """Every key that is served and its value in force, sorted: what `mqbroker -p` prints."""
    parts: tuple[Any, ...] = (config, config.acl, config.tls)
    if isinstance(config, NodeConfig):
        log = dataclasses.replace(config.log, commit_log_path=config.log.log_path)
        parts = (config.broker, log, config.replication, config.remoting, config.acl, config.tls)
        parts = (*parts, config.coordinator, config.dledger)
    return sorted(
        (key.name, key.shown(getattr(part, field.name)))
        for part in parts
        for key, field in keys_of(type(part))
    )


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file, as plain Python values.  Raises ConfigError."""
    text = read_text(path)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(str(path), line, "", problem) from None


def _settle_addresses(broker: dict[str, Any], remoting: RemotingConfig, binder: Binder) -> None:
    told = (("brokerIP1", "broker_ip1", "clients"), ("brokerIP2", "broker_ip2", "slaves"))
    for key, name, whom in told:
        if broker.get(name) in EVERY_ADDRESS:
            binder.warn(key, f"no address to connect to: {whom} on other hosts cannot use it")
        if name in broker or remoting.bind_address in EVERY_ADDRESS:
            continue
        try:
            broker[name] = told_address(remoting.bind_address)
        except ValueError as error:
            binder.refuse("bindAddress", f"{error}: set {key}")
            return


def _settle_name_servers(broker: dict[str, Any], environ: Mapping[str, str], binder: Binder) -> None:
    if "namesrv_addrs" not in broker and binder.sound("namesrvAddr") and environ.get("NAMESRV_ADDR"):
        given = {"namesrvAddr": PropertyEntry(environ["NAMESRV_ADDR"], 0)}
        of_environment = Binder(Properties(given, "environment variable NAMESRV_ADDR"))
        broker.update(of_environment.values(BrokerConfig))
        binder.errors += of_environment.errors


def _settle_role(broker: dict[str, Any], binder: Binder) -> None:
    if not binder.sound("brokerRole", "brokerId"):
        return
    role = broker.get("role", BrokerRole.ASYNC_MASTER)
    broker_id = broker.get("broker_id", 0)
    if role is BrokerRole.SLAVE:
        if broker_id <= 0:
            binder.refuse(
                "brokerId" if "broker_id" in broker else "brokerRole",
                f"a SLAVE has a brokerId above 0, this one has {broker_id}",
            )
    elif broker_id != 0:
        binder.warn("brokerId", f"{role.name} is always brokerId 0: 0 is in force")
        broker["broker_id"] = 0


def _warn_of_no_name_server(binder: Binder, master_address: str | None) -> None:
    if not binder.sound("namesrvAddr", "haMasterAddress"):
        return
    if not master_address:
        binder.warn("brokerRole", "without namesrvAddr and haMasterAddress a slave never finds its master")
    else:
        binder.warn(
            "haMasterAddress",
            "without namesrvAddr a slave copies the log alone, and neither topics nor consumer offsets",
        )


def _check_ports(remoting: RemotingConfig, ha_port: int, binder: Binder) -> None:
    if not binder.sound("listenPort", "haListenPort"):
        return
    port = remoting.listen_port
    if remoting.vip_port < 1:
        binder.refuse("listenPort", f"listenPort - 2 is opened too, and is {remoting.vip_port}")
    if ha_port > 65535:
        binder.refuse("listenPort", f"haListenPort, listenPort + 1, would be {ha_port}")
    if ha_port in (port, remoting.vip_port):
        name = "listenPort" if ha_port == port else "listenPort - 2"
        binder.refuse("haListenPort", f"port {ha_port} is already {name} (listenPort={port})")


def _check_intervals(replication: dict[str, Any], binder: Binder) -> None:
    """A side whose patience is shorter than the other's period hangs up on every quiet connection."""
    found = ReplicationConfig(**replication)
    heartbeat, housekeeping = found.heartbeat_interval_ms, found.housekeeping_interval_ms
    if housekeeping > heartbeat or not binder.sound("haSendHeartbeatInterval", "haHousekeepingInterval"):
        return
    if "housekeeping_interval_ms" in replication:
        key, rule = "haHousekeepingInterval", f"above haSendHeartbeatInterval={heartbeat}"
    else:
        key, rule = "haSendHeartbeatInterval", f"below haHousekeepingInterval={housekeeping}"
    binder.refuse(key, f"has to be {rule}, or every quiet slave is hung up on")


def _check_lease(coordinator: CoordinatorConfig, binder: Binder) -> None:
    ttl_s, loop_s = coordinator.lease_ttl_s, coordinator.loop_wait_s
    if ttl_s < 2 * loop_s and binder.sound("haLeaseTtl", "haLoopWait"):
        binder.refuse(
            "haLeaseTtl", f"has to be twice haLoopWait={loop_s} or more, or one late renewal ends the lease"
        )


def _check_dledger(
    dledger: DLedgerConfig, coordinator: CoordinatorConfig, remoting: RemotingConfig, binder: Binder
) -> None:
    if not binder.sound("enableDLegerCommitLog", "dLegerPeers", "dLegerSelfId"):
        return
    if dledger.peers is None or dledger.self_id is None:
        key = "dLegerPeers" if dledger.peers is None else "dLegerSelfId"
        binder.refuse("enableDLegerCommitLog", f"{key} has to say who is in the group")
        return
    peers = parse_peers(dledger.peers)
    own = peers.get(dledger.self_id)
    if own is None:
        binder.refuse("dLegerSelfId", f"is none of the peers {', '.join(peers)}")
    elif int(own.rpartition(":")[2]) in (remoting.listen_port, remoting.vip_port):
        binder.refuse(
            "dLegerPeers", f"{own} is this broker's listenPort or the one 2 below: a member has its own"
        )
    if strangers := [one for one in dledger.preferred_leaders if one not in peers]:
        said = f"{', '.join(strangers)}: none of the peers {', '.join(peers)}, so nobody gets the leadership for it"
        binder.warn("preferredLeaderId", said)
    if len(peers) % 2 == 0:
        binder.warn(
            "dLegerPeers",
            f"of {len(peers)} members {(len(peers) - 1) // 2} may be away, as of {len(peers) - 1}: an odd number is as "
            "safe with one broker less",
        )
    if dledger.data_paths and not set(dledger.data_paths) - set(dledger.read_only_paths):
        binder.refuse(
            "readOnlyCommitLogStorePaths", "storePathDLedgerCommitLog has to name another one, to write to"
        )
    if coordinator.is_set:
        binder.refuse(
            "haCoordinator", "with enableDLegerCommitLog a group elects its master itself: remove one of them"
        )


def _settle_log(log: dict[str, Any], binder: Binder) -> None:
    defaults = LogOptions()
    if log.get("queue_file_bytes", 0) % QUEUE_ENTRY_BYTES:
        log["queue_file_bytes"] += QUEUE_ENTRY_BYTES - log["queue_file_bytes"] % QUEUE_ENTRY_BYTES
        binder.warn(
            "mappedFileSizeConsumeQueue",
            f"rounded up to whole {QUEUE_ENTRY_BYTES}-byte entries: {log['queue_file_bytes']} is in force",
        )
    segment = log.get("segment_bytes", defaults.segment_bytes)
    message = log.get("max_message_bytes", defaults.max_message_bytes)
    if segment < message:
        key = "mappedFileSizeCommitLog" if "segment_bytes" in log else "maxMessageSize"
        binder.warn(key, f"a message of maxMessageSize={message} cannot fit a log file of {segment} bytes")


def _settle_acl(acl: dict[str, Any], environ: Mapping[str, str], binder: Binder) -> None:
    """Settles where the rules are: where RocketMQ looks for them, or beside the broker's own file."""
    if not acl.get("enabled") or "file" in acl or not binder.sound("aclFile"):
        return
    home, source = environ.get("ROCKETMQ_HOME"), Path(binder.properties.source)
    if home:
        acl["file"] = Path(home, "conf", "plain_acl.yml")
    elif binder.properties.line_of("aclEnable"):
        acl["file"] = source.parent / "plain_acl.yml"


def _tls(binder: Binder) -> TlsConfig:
    """The TLS keys of this file, and of the separate TLS file."""
    values = binder.values(TlsConfig)
    path: Path = values.get("config_file", TLS_CONFIG_FILE)
    if path != TLS_CONFIG_FILE or (path.is_file() and os.access(path, os.R_OK)):
        try:
            of_file = Binder(_read(path))
        except ConfigError as error:
            binder.errors.append(error)
        else:
            values = of_file.values(TlsConfig) | values
            binder.errors += of_file.errors
            binder.warnings += of_file.warnings
    return TlsConfig(**values)


def _read(path: str | Path) -> Properties:
    return parse(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    """Reads UTF-8, or else Latin-1, as Java reads such files.  Raises ConfigError."""
    try:
        with expanded(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except ValueError as error:
        raise ConfigError(str(path), 0, "", f"cannot be read: {error}") from None
    except OSError as error:
        raise ConfigError(str(path), 0, "", f"cannot be read: {error.strerror or error}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(str(path), 0, "", f"larger than {FILE_BYTES_MAX} bytes: not a configuration file")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise ConfigError(str(path), line, "", "a NUL byte: not a configuration file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")
