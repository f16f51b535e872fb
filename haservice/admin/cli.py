"""`mqadmin`: the group of all its commands.

A command lives in the module of what it asks about: cluster, topics, messages, log_dump.  Here is only
what they have in common: an error becomes one line and exit code 1.
"""

from __future__ import annotations

from typing import Any

import click

from commitlog.errors import CommitLogError
from haservice.admin import cluster, log_dump, messages, topics
from haservice.admin.explain import explain
from haservice.admin.options import CONTEXT
from haservice.errors import HAServiceError


class Commands(click.Group):
    """A group whose commands may raise what the layers below raise."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output went away: click ends quietly
        except (HAServiceError, CommitLogError, OSError) as error:
            raise click.ClickException(explain(error)) from None


@click.group(cls=Commands, context_settings=CONTEXT)
def main() -> None:
    """Asks a running pair, and tells it what to do.

    \b
    Where to ask is said as RocketMQ's users type it:
      -n ADDR   a nameserver, or the environment variable NAMESRV_ADDR
      -b ADDR   one broker
      -c NAME   every broker of a cluster (needs a nameserver)
    \b
    First steps:
      mqadmin clusterList -n 127.0.0.1:9876
      mqadmin haStatus -n 127.0.0.1:9876 -w 2
      mqadmin sendMessage -n 127.0.0.1:9876 -t Greetings -p "hello"
      mqadmin consumeMessage -n 127.0.0.1:9876 -t Greetings

    `mqadmin COMMAND --help` explains a command.
    """


@main.command("help")
@click.argument("command", required=False)
@click.pass_context
def help_command(ctx: click.Context, command: str | None) -> None:
    """Explains a command, as `mqadmin help COMMAND`."""
    if command is None:
        click.echo(main.get_help(ctx.parent or ctx))
        return
    found = main.get_command(ctx, command)
    if found is None:
        raise click.UsageError(f"there is no command {command!r}; mqadmin help lists them")
    with click.Context(found, info_name=command, parent=ctx.parent) as asked:
        click.echo(found.get_help(asked))


for _command in (*cluster.COMMANDS, *topics.COMMANDS, *messages.COMMANDS, log_dump.dump_log):
    main.add_command(_command)
