"""`mqbroker -c FILE`: runs one broker, or prints what it would run with."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from commitlog.errors import StoreUnreadable
from commitlog.kernel.native import NOTICE
from commitlog.keys import KeyTrait
from haservice import __version__, logs
from haservice.admin.commands.nodes.in_force import in_force
from haservice.admin.daemons import (
    allow_many_files,
    config_option,
    keep_files_private,
    logging_option,
    print_option,
    print_warnings,
    run,
    told_plainly,
    warn,
)
from haservice.binding import keys_of
from haservice.broker.lease.keeper import lease_of
from haservice.broker.majority.member import member_of
from haservice.broker.metadata import unfit_files
from haservice.broker.node import BrokerNode
from haservice.broker.send import native
from haservice.broker.store_owner import Accepted, check_owner
from haservice.configuration import config, examples
from haservice.configuration.settings import NodeConfig
from haservice.remoting.workers import end_without_hung_work
from haservice.supervisor import EXIT_CODE, Supervisor
from haservice.terminal.explain import of_store_path
from haservice.terminal.options import CONTEXT, addresses_callback, version_option

logger = logging.getLogger(__name__)


@click.command(context_settings=CONTEXT)
@config_option
@click.option(
    "-n",
    "--namesrvAddr",
    "namesrv",
    metavar="ADDR",
    callback=addresses_callback,
    help="Nameservers, instead of the file's.",
)
@print_option
@click.option(
    "-m", "--printImportantConfig", "print_important", is_flag=True, help="As -p, the important ones."
)
@click.option(
    "--example",
    type=click.Choice(list(examples.BROKERS)),
    help="Print a commented properties file to start from, with every key, and exit.",
)
@logging_option
@click.option(
    "--accept-empty",
    "accept_empty",
    metavar="NAME",
    multiple=True,
    type=click.Choice(unfit_files.NAMES),
    help="Start with an empty table where this file of config/ and its .bak cannot be read; kept as NAME.unfit.",
)
@click.option(
    "--accept-store",
    "accept_store",
    is_flag=True,
    help="The store of another brokerName or brokerClusterName becomes this broker's.",
)
@version_option
def mqbroker(
    config_file: Path | None,
    namesrv: tuple[str, ...],
    print_config: bool,
    print_important: bool,
    example: str | None,
    logging_file: Path | None,
    accept_empty: tuple[str, ...],
    accept_store: bool,
) -> None:
    """Runs one broker: a master, the slave of one, or a member of a group that elects its master.

    \b
    A pair on one machine:
      mqbroker --example master > broker-a.properties
      mqbroker --example slave > broker-a-s.properties
      mqnamesrv &
      mqbroker -c broker-a.properties &
      mqbroker -c broker-a-s.properties &
      mqadmin haStatus -n 127.0.0.1:9876

    brokerRole in the file says what it is: ASYNC_MASTER, SYNC_MASTER or SLAVE.  A slave learns its master's
    address from the nameserver.  --example dledger prints a file of one of three brokers that elect a master.

    mqshutdown broker, SIGTERM (kill PID), Ctrl-C or the end of its terminal stops it cleanly; it says so when
    it is done.  As a service, in a container or under nohup it has no terminal: SIGHUP opens its logs anew,
    and reads its file again; the log says which keys are in force.

    -p and -m print key=value lines: what the broker that runs on this store has, or what a start would take,
    a role given by command included.  Standard error says of a key why it is not as the file has it.
    """
    if example is not None:
        click.echo(examples.BROKERS[example].text(), nl=False)
        return
    if config_file is None:
        raise click.UsageError(
            "which broker?  Name its properties file: mqbroker -c FILE; mqbroker --example master prints one"
        )
    with told_plainly():
        node_config = with_nameservers(config_file, namesrv)
        if print_config or print_important:
            print_broker(node_config, important=not print_config)
            return
        keep_files_private()
        logs.configure(logging_file)
        warn(node_config.warnings)
        say_kernel()
        allow_many_files()
        accepted, supervisor = Accepted(accept_store, frozenset(accept_empty)), Supervisor()
        try:
            with store_key_named(node_config):
                if node_config.dledger.enabled:  # the member takes part in elections before the node looks
                    check_owner(node_config, accepted)
                with lease_of(node_config, supervisor) as lease, member_of(node_config) as member:
                    run(
                        BrokerNode(
                            node_config, lease=lease, member=member, accepted=accepted, supervisor=supervisor
                        ),
                        lambda: logs.configure(logging_file),
                    )
        finally:
            end_without_hung_work(EXIT_CODE if supervisor.fatal else 1)


def with_nameservers(path: Path, namesrv: tuple[str, ...]) -> NodeConfig:
    """The file's configuration; `-n`, if given, replaces its namesrvAddr."""
    if not namesrv:
        return config.load_broker(path)
    loaded = config.load_broker(path, {**os.environ, "NAMESRV_ADDR": ";".join(namesrv)})
    return replace(loaded, broker=replace(loaded.broker, namesrv_addrs=namesrv))


def print_broker(loaded: NodeConfig, *, important: bool) -> None:
    """Prints properties on standard output, in the form of a properties file; on standard error warnings,
    and what differs from the file.
    """
    print_warnings(loaded.warnings)
    found = in_force(loaded)
    shown = {
        key.name
        for key, _ in keys_of(*config.BROKER_CLASSES)
        if not important or KeyTrait.IMPORTANT in key.marks
    }
    for key, note in found.notes.items():
        if not key or key in shown:
            click.echo(f"note: {note}", err=True)
    for key, value in found.values.items():
        if key in shown:
            click.echo(f"{key}={value}")


def say_kernel() -> None:
    """Logs which build of the kernel this broker has; warns of the slow one if nobody asked for it."""
    logger.info("broker starts version=%s kernelBuild=%s", __version__, native.build())
    if lacking := native.lacking():
        logger.warning("the native kernel is not in force why=%s: %s", lacking, NOTICE)


@contextmanager
def store_key_named(node_config: NodeConfig) -> Iterator[None]:
    """Turns system errors at a path of the store into a ConfigError that names the path's key."""
    try:
        yield
    except (StoreUnreadable, OSError) as error:
        named = of_store_path(node_config, error)
        if named is None:
            raise
        raise named from named.__cause__
