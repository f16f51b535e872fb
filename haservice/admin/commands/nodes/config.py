"""`mqadmin getBrokerConfig`, `updateBrokerConfig`, and commands to nameservers: their configuration, their
KV tables, and a broker's write permission.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.fanout import addrs_of, ask_each, tell_each
from haservice.configuration.properties import parse
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import ConfigChangedHeader, KVConfigHeader, PutKVConfigHeader
from haservice.remoting.headers.clients import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    WipeWritePermResponseHeader,
)
from haservice.terminal.options import broker_option, cluster_option, command, format_option, namesrv_option
from haservice.terminal.output import echo, echo_line, shown_addr, to_json

_key_option = click.option("-k", "--key", required=True, help="The key, as in the properties file.")
_value_option = click.option("-v", "--value", required=True, help="Its value.")
_namespace_option = click.option("-s", "--namespace", required=True, help="The table.")
_name_option = click.option(
    "-b",
    "--brokerName",
    "name",
    metavar="NAME",
    required=True,
    help="The broker's name, as clusterList shows it.",
)


def properties_of(answer: RemotingCommand) -> dict[str, str]:
    """The lines of key=value in an answer to 26 or 319."""
    text = bytes(answer.body).decode(errors="replace")
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}


def _show_configs(configs: dict[str, dict[str, str]], output_format: str) -> None:
    if output_format == "json":
        echo(to_json(configs))
        return
    for title, config in configs.items():
        echo_line(f"============{title}============")
        for key, value in sorted(config.items()):
            echo_line(f"{key:<50}=  {value}")
        echo()


@command("getBrokerConfig")
@namesrv_option
@broker_option
@cluster_option
@format_option
def get_broker_config(
    namesrv: tuple[str, ...], broker: str | None, cluster: str | None, output_format: str
) -> None:
    """Shows what brokers run with.

    One broker (-b), or all of a cluster (-c): each with every key, as it is now.
    """
    with MQAdmin(namesrv) as admin:
        targets = admin.targets(broker, cluster, slaves=True)
        masters = {one.name: one.addr for one in targets if one.is_master}
        found, complete = ask_each(targets, lambda one: admin.broker_config(one.addr))
    names = {one.addr: _title(one, masters) for one, _ in found} if broker is None else {}
    if output_format == "json":
        names = {}
    _show_configs({names.get(one.addr, shown_addr(one.addr)): config for one, config in found}, output_format)
    if not complete:
        sys.exit(1)


def _title(broker: Broker, masters: dict[str, str]) -> str:
    addr = shown_addr(broker.addr)
    if broker.is_master:
        return f"Master: {addr}"
    return f"My Master: {shown_addr(masters.get(broker.name, 'none'))}=====Slave: {addr}"


@command("updateBrokerConfig")
@namesrv_option
@broker_option
@cluster_option
@_key_option
@_value_option
@format_option
def update_broker_config(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    key: str,
    value: str,
    output_format: str,
) -> None:
    """Changes a key of running brokers, and in their files.

    At one broker (-b), or at every master of a cluster (-c).  Each says whether the key is in force at once
    or counts from its next start on; a stock broker does not say.
    """
    body = property_line(key, value)
    with MQAdmin(namesrv) as admin:
        said = Said(lambda addr: admin.call(addr, RequestCode.UPDATE_BROKER_CONFIG, body=body))
        tell_each(
            addrs_of(admin.targets(broker, cluster)),
            said.change,
            "update broker config success, {addr}{result}",
            output_format,
            key=key,
            value=value,
            fromNextStart=said.from_next_start,
        )


@dataclass
class Said:
    """What nodes answered to `ask`, a change of their configuration, by address."""

    ask: Callable[[str], RemotingCommand]
    from_next_start: list[str] = field(default_factory=list)
    """The nodes that have stored the key and not yet put it in force."""

    def change(self, addr: str) -> str:
        """The node's own text, for a line below the command's.  Raises RemotingError."""
        answer = self.ask(addr)
        if ConfigChangedHeader.decode(answer.ext).from_next_start:
            self.from_next_start.append(addr)
        return f"\n  {answer.remark}" if answer.remark else ""


def property_line(key: str, value: str) -> bytes:
    """A line of a properties file that reads as this key and value, backslashes included.

    Raises click.BadParameter if no line does.
    """
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    line = f"{key}={escaped}"
    if {name: entry.value for name, entry in parse(line, "request").items()} != {key: value}:
        raise click.BadParameter(f"{key!r} and {value!r} make no line of a properties file")
    return line.encode()


@command("getNamesrvConfig")
@namesrv_option
@format_option
def get_namesrv_config(namesrv: tuple[str, ...], output_format: str) -> None:
    """Shows what nameservers run with."""
    with MQAdmin(namesrv) as admin:
        found, complete = ask_each(
            admin.nameservers, lambda addr: properties_of(admin.call(addr, RequestCode.GET_NAMESRV_CONFIG))
        )
    _show_configs({shown_addr(addr): config for addr, config in found}, output_format)
    if not complete:
        sys.exit(1)


@command("updateNamesrvConfig")
@namesrv_option
@_key_option
@_value_option
@format_option
def update_namesrv_config(namesrv: tuple[str, ...], key: str, value: str, output_format: str) -> None:
    """Changes a key of running nameservers, and in their files.

    Each says whether the key is in force at once or counts from its next start on; a stock one does not say.
    """
    body = property_line(key, value)
    with MQAdmin(namesrv) as admin:
        said = Said(lambda addr: admin.call(addr, RequestCode.UPDATE_NAMESRV_CONFIG, body=body))
        tell_each(
            admin.nameservers,
            said.change,
            f"update name server config success!{{addr}}\n{key} : {value}{{result}}",
            output_format,
            "namesrvAddrs",
            fromNextStart=said.from_next_start,
        )


@command("updateKvConfig")
@namesrv_option
@_namespace_option
@_key_option
@_value_option
@format_option
def update_kv_config(
    namesrv: tuple[str, ...], namespace: str, key: str, value: str, output_format: str
) -> None:
    """Puts a value into a table of the nameservers."""
    header = PutKVConfigHeader(namespace, key, value)
    with MQAdmin(namesrv) as admin:
        tell_each(
            admin.nameservers,
            lambda addr: admin.tell(addr, RequestCode.PUT_KV_CONFIG, header),
            "create or update kv config to namespace success. {addr}",
            output_format,
            "namesrvAddrs",
        )


@command("deleteKvConfig")
@namesrv_option
@_namespace_option
@_key_option
@format_option
def delete_kv_config(namesrv: tuple[str, ...], namespace: str, key: str, output_format: str) -> None:
    """Takes a value out of a table of the nameservers."""
    header = KVConfigHeader(namespace, key)
    with MQAdmin(namesrv) as admin:
        tell_each(
            admin.nameservers,
            lambda addr: admin.tell(addr, RequestCode.DELETE_KV_CONFIG, header),
            "delete kv config from namespace success. {addr}",
            output_format,
            "namesrvAddrs",
        )


@command("wipeWritePerm")
@namesrv_option
@_name_option
@format_option
def wipe_write_perm(namesrv: tuple[str, ...], name: str, output_format: str) -> None:
    """Keeps producers away from a broker.

    In the routes of every nameserver its topics lose the write permission, so that it can be emptied and
    stopped; consumers read on.  It holds until addWritePerm, or until the broker registers topics anew.
    """
    with MQAdmin(namesrv) as admin:
        tell_each(
            admin.nameservers,
            lambda addr: (
                WipeWritePermResponseHeader.decode(
                    admin.call(
                        addr, RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader(name).encode()
                    ).ext
                ).wipe_topic_count
            ),
            f"wipe write perm of broker[{name}] in name server[{{addr}}] OK, {{result}}",
            output_format,
            "namesrvAddrs",
            brokerName=name,
        )


@command("addWritePerm")
@namesrv_option
@_name_option
@format_option
def add_write_perm(namesrv: tuple[str, ...], name: str, output_format: str) -> None:
    """Lets producers come back to a broker."""
    with MQAdmin(namesrv) as admin:
        tell_each(
            admin.nameservers,
            lambda addr: (
                AddWritePermResponseHeader.decode(
                    admin.call(
                        addr, RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader(name).encode()
                    ).ext
                ).add_topic_count
            ),
            f"add write perm of broker[{name}] in name server[{{addr}}] OK, {{result}}",
            output_format,
            "namesrvAddrs",
            brokerName=name,
        )
