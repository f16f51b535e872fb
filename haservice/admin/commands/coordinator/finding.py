"""Where the coordinator of a broker name is, and what lets us in.

    --coordinator URL           where it is
    --coordinatorConfig FILE    where it is, user, password, TLS files: a broker's properties file, or only these keys
    neither                     as a broker of that name runs with: its haCoordinator, asked by getBrokerConfig

A broker tells no password.  Its TLS files are taken where they are on this machine, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.dledger.group import check_no_group
from haservice.admin.commands.ha.ask_brokers import ASK_S, gather
from haservice.admin.commands.ha.topology import Member, Topology
from haservice.configuration.config import load_coordinator
from haservice.configuration.coordinator_settings import NONE
from haservice.coordination.addresses import CoordinatorPlace, Keys, place_of
from haservice.coordination.desk import OperatorDesk
from haservice.errors import ProtocolError, RemotingError
from haservice.terminal.output import and_text, shown_addr

FILE_ENV = "MQADMIN_COORDINATOR_CONFIG"
HOW = "--coordinator etcd://HOST:2379 says where it is"
_FILES = ("haCoordinatorTrustCertPath", "haCoordinatorCertPath", "haCoordinatorKeyPath")


@dataclass(frozen=True, slots=True)
class CoordinatorSaid:
    """What the command line says of it."""

    url: str | None = None
    config: Path | None = None
    cluster: str | None = None


def _place(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            place_of(value)
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is {error}") from None
    return value


def coordinator_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--coordinator, --coordinatorConfig, --clusterName: the function gets `said`, a CoordinatorSaid."""

    def asked(*, url: str | None, config: Path | None, cluster: str | None, **others: Any) -> Any:
        return function(said=CoordinatorSaid(url, config, cluster), **others)

    asked.__doc__, asked.__name__ = function.__doc__, function.__name__
    asked.__click_params__ = list(getattr(function, "__click_params__", ()))  # type: ignore[attr-defined]
    options = (
        click.option(
            "--coordinator",
            "url",
            metavar="URL",
            callback=_place,
            help="Where it is, etcd://h1:2379,h2:2379 or zookeeper://…; else a broker's haCoordinator.",
        ),
        click.option(
            "--coordinatorConfig",
            "config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            envvar=FILE_ENV,
            show_envvar=True,
            help="A properties file with haCoordinator keys: user, password, TLS files.",
        ),
        click.option(
            "-c", "--clusterName", "cluster", metavar="NAME", help="The brokers' cluster, if none answers."
        ),
    )
    for option in reversed(options):
        asked = option(asked)
    return asked


def desk_at(admin: MQAdmin, namesrv: Sequence[str], where: str, said: CoordinatorSaid) -> OperatorDesk:
    """The desk of a broker name, or of the name of the broker at an address; not open yet.

    Raises click.ClickException with what is missing.
    """
    config = load_coordinator(said.config) if said.config is not None else None
    url = said.url or (config.address if config is not None and config.is_set else None)
    if url is not None and said.cluster is not None and ":" not in where:
        return _desk(place_of(url), said.cluster, where, _keys(said, {}))
    try:
        topology = gather(admin, where, namesrv)
    except click.UsageError as error:
        raise click.UsageError(
            f"{error.format_message()}; or, without any broker, -c CLUSTER and {HOW}"
        ) from None
    except RemotingError as error:
        raise click.ClickException(
            f"{error}\n  without a nameserver: -b the address of a broker; without any broker: -c CLUSTER and {HOW}"
        ) from None
    check_no_group(
        topology,
        "it has no coordinator, and elections cannot be paused; how patient its members are is"
        " dLegerHeartBeatInterval in their properties files",
    )
    found = desk_of(admin, topology, said)
    if found is None:
        asked = [one for one in topology.ours if one.answers]
        if not asked:
            raise click.ClickException(
                f"no broker of {topology.name} answers that could say where its coordinator is\n"
                f"  -c CLUSTER and {HOW}"
            )
        told = and_text([shown_addr(one.addr) for one in asked])
        raise click.ClickException(
            f"{topology.name} has no coordinator: {told} {'runs' if len(asked) == 1 else 'run'} without haCoordinator\n"
            f"  set haCoordinator in the brokers' properties files and start them again; {HOW} if they have one"
        )
    return found


def desk_of(admin: MQAdmin, topology: Topology, said: CoordinatorSaid | None = None) -> OperatorDesk | None:
    """The desk of these brokers; None if nobody says that they have a coordinator."""
    said = said or CoordinatorSaid(config=of_environment())
    config = load_coordinator(said.config) if said.config is not None else None
    url = said.url or (config.address if config is not None and config.is_set else None)
    told = told_by(admin, topology.ours)
    urls = {one["haCoordinator"] for one in told.values()}
    if url is None and len(urls) > 1:
        each = "; ".join(
            f"{shown_addr(addr)} has {one['haCoordinator']}" for addr, one in sorted(told.items())
        )
        raise click.ClickException(
            f"the brokers of {topology.name} name different coordinators: {each}\n"
            "  give all their properties files the same haCoordinator; meanwhile --coordinator says which one"
        )
    if url is None:
        url = next(iter(urls), None)
    if url is None:
        return None
    cluster = said.cluster or next((one.cluster for one in topology.members if one.cluster), None)
    if cluster is None:
        raise click.UsageError(f"no broker of {topology.name} says of which cluster it is: say -c CLUSTER")
    return _desk(place_of(url), cluster, topology.name, _keys(said, next(iter(told.values()), {})))


def of_environment() -> Path | None:
    """The file that the environment names; for who has no command line of ours."""
    named = os.environ.get(FILE_ENV)
    return Path(named) if named else None


def told_by(admin: MQAdmin, members: Iterable[Member]) -> dict[str, Mapping[str, str]]:
    """Address → configuration of those that have a coordinator."""
    found: dict[str, Mapping[str, str]] = {}
    for one in members:
        if one.answers:
            with suppress(RemotingError, ProtocolError):  # it wants an account for that, or is just gone
                config = admin.broker_config(one.addr, ASK_S)
                if config.get("haCoordinator", NONE) not in ("", NONE):
                    found[one.addr] = config
    return found


def _desk(place: CoordinatorPlace, cluster: str, name: str, keys: Keys) -> OperatorDesk:
    return OperatorDesk(place, cluster, name, keys)


def _keys(said: CoordinatorSaid, told: Mapping[str, str]) -> Keys:
    if said.config is not None:
        config = load_coordinator(said.config)
        return Keys(config.user, config.password or "", config.trust, config.certificate, config.key)
    files = [Path(told[name]) if told.get(name) and Path(told[name]).is_file() else None for name in _FILES]
    return Keys(ca=files[0], certificate=files[1], key=files[2])
