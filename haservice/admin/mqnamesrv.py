"""`mqnamesrv`: runs the nameserver, or prints what it would run with."""

from __future__ import annotations

from pathlib import Path

import click

from haservice import logs
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
from haservice.configuration import config, examples
from haservice.nameserver.node import NameserverNode
from haservice.remoting.workers import end_without_hung_work
from haservice.supervisor import EXIT_CODE
from haservice.terminal.options import CONTEXT, version_option


@click.command(context_settings=CONTEXT)
@config_option
@print_option
@click.option(
    "--example",
    is_flag=True,
    help="Print a commented properties file to start from, with every key, and exit.",
)
@logging_option
@version_option
def mqnamesrv(config_file: Path | None, print_config: bool, example: bool, logging_file: Path | None) -> None:
    """Runs the nameserver, on port 9876 unless the file says otherwise.

    Brokers register with it every 30 seconds; clients ask it where a topic's queues are.  It keeps nothing
    that brokers would not tell it again.  mqshutdown namesrv, SIGTERM (kill PID), Ctrl-C or the end of its
    terminal stops it cleanly.  As a service, in a container or under nohup it has no terminal: SIGHUP opens
    its logs anew, and reads its file again.
    """
    if example:
        click.echo(examples.NAMESERVER.text(), nl=False)
        return
    with told_plainly():
        node_config = config.load_nameserver(config_file)
        if print_config:
            print_warnings(node_config.warnings)
            for key, value in config.in_force(node_config):
                click.echo(f"{key}={value}")
            return
        keep_files_private()
        logs.configure(logging_file)
        warn(node_config.warnings)
        allow_many_files()
        node = NameserverNode(node_config)
        try:
            run(node, lambda: logs.configure(logging_file))
        finally:
            end_without_hung_work(EXIT_CODE if node.failed else 1)
