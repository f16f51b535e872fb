"""`mqadmin`: the group of all its commands.

A command lives in the module of its subject.  This module has only what all share: the order in the help,
and errors that become one line and exit code 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from commitlog.errors import CommitLogError
from haservice import printable
from haservice.admin.commands.groups import connections, consumer_status, consumers, offsets
from haservice.admin.commands.groups import consumer_groups as groups
from haservice.admin.commands.ha import check, failover, forget, history, reinit
from haservice.admin.commands.messages import log_dump, printing, probes, queries, queues, trace
from haservice.admin.commands.messages import send_and_consume as messages
from haservice.admin.commands.nodes import acl as acl_commands
from haservice.admin.commands.nodes import cluster, cut, exports, housekeeping
from haservice.admin.commands.nodes import config as config_commands
from haservice.admin.commands.topics import topic_changes, topic_stats
from haservice.admin.commands.topics import topic_list as topics
from haservice.errors import HAServiceError
from haservice.terminal.explain import explain
from haservice.terminal.options import CONTEXT, version_option
from haservice.terminal.output import echo

# As the help lists them.
SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Clusters and brokers": (
        *check.COMMANDS,
        *cluster.COMMANDS,
        *config_commands.BROKER_COMMANDS,
        *housekeeping.COMMANDS,
        *cut.COMMANDS,
        *probes.COMMANDS,
    ),
    "Roles and failover": (*failover.COMMANDS, *reinit.COMMANDS, *forget.COMMANDS, *history.COMMANDS),
    "Topics": (*topics.COMMANDS, *topic_stats.COMMANDS, *topic_changes.COMMANDS),
    "Messages": (
        *messages.COMMANDS,
        *queries.COMMANDS,
        *trace.COMMANDS,
        *printing.COMMANDS,
        *queues.COMMANDS,
        log_dump.dump_log,
    ),
    "Consumers and producers": (
        *consumers.COMMANDS,
        *consumer_status.COMMANDS,
        *connections.COMMANDS,
        *groups.COMMANDS,
        *offsets.COMMANDS,
    ),
    "Nameservers": config_commands.NAMESERVER_COMMANDS,
    "Access control": acl_commands.COMMANDS,
    "Exports": exports.COMMANDS,
}


class Commands(click.Group):
    """A group whose commands may raise the errors of the layers below."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(one.name or "", one.get_short_help_str(100)) for one in commands])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output went away: click ends quietly
        except click.ClickException as error:
            vars(error).update(message=printable.lines(error.message))  # it may hold what others said
            raise
        except (HAServiceError, CommitLogError, OSError) as error:
            raise click.ClickException(printable.lines(explain(error))) from None


@click.group(cls=Commands, context_settings=CONTEXT)
@version_option
@click.option("--tls", is_flag=True, help="Calls use TLS, as with tls.enable=true.")
@click.option(
    "--tls-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="MQADMIN_TLS_CONFIG",
    show_envvar=True,
    help="A properties file with tls. keys.",
)
def main(tls: bool, tls_config: Path | None) -> None:
    """Asks a running pair, and tells it what to do.

    \b
    Where to ask is said as RocketMQ's users type it:
      -n ADDR   a nameserver, or the environment variable NAMESRV_ADDR
      -b ADDR   one broker
      -c NAME   every broker of a cluster (needs a nameserver)
    To brokers with access control requests are signed with the keys of $ROCKETMQ_HOME/conf/tools.yml.

    \b
    First steps:
      mqadmin check -n 127.0.0.1:9876
      mqadmin clusterList -n 127.0.0.1:9876
      mqadmin haStatus -n 127.0.0.1:9876 -w 2
      mqadmin sendMessage -n 127.0.0.1:9876 -t Greetings -p "hello"
      mqadmin consumeMessage -n 127.0.0.1:9876 -t Greetings

    `mqadmin COMMAND --help` explains a command; -f json, or --format json, is for programs.
    """
    del tls, tls_config  # haservice.terminal.access takes them from the context


@main.command("help")
@click.argument("command", required=False)
@click.pass_context
def help_command(ctx: click.Context, command: str | None) -> None:
    """Explains a command, as `mqadmin help COMMAND`."""
    if command is None:
        echo(main.get_help(ctx.parent or ctx))
        return
    found = main.get_command(ctx, command)
    if found is None:
        raise click.UsageError(f"there is no command {command!r}; mqadmin help lists them")
    with click.Context(found, info_name=command, parent=ctx.parent) as asked:
        echo(found.get_help(asked))


for _commands in SECTIONS.values():
    for _command in _commands:
        main.add_command(_command)
