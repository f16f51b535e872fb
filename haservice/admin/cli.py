"""`mqadmin`: the group of all its commands.

A command lives in the module of its subject, which is loaded when the user asks for the command: one starts in two
thirds of the time that all of them take.  This module has only what all share: the order in the help, and errors that
become one line and exit code 1.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from commitlog.errors import CommitLogError
from haservice import printable
from haservice.errors import HAServiceError
from haservice.terminal.explain import explain
from haservice.terminal.options import CONTEXT, did_you_mean, version_option
from haservice.terminal.output import echo

# The commands as the help lists them: by section, and by the module that has them.
SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Clusters and brokers": {
        "ha.check": ("check",),
        "ha.ha_status": ("haStatus",),
        "nodes.cluster": ("clusterList", "brokerStatus"),
        "nodes.config": ("getBrokerConfig", "updateBrokerConfig"),
        "nodes.housekeeping": ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"),
        "nodes.cut": ("listCut", "removeCut"),
        "messages.probes": ("checkMsgSendRT", "sendMsgStatus", "clusterRT"),
    },
    "Roles and failover": {
        "coordinator.ha_list": ("haList",),
        "coordinator.settings": ("pause", "resume", "haConfig"),
        "ha.switchover": ("switchover",),
        "ha.failover": ("failover",),
        "ha.reinit": ("reinit",),
        "ha.forget": ("forget",),
        "ha.history": ("history",),
    },
    "Topics": {
        "topics.topic_list": ("topicList", "topicRoute", "topicStatus", "topicClusterList", "allocateMQ"),
        "topics.topic_stats": ("statsAll",),
        "topics.topic_changes": ("updateTopic", "updateTopicPerm", "deleteTopic", "updateOrderConf"),
    },
    "Messages": {
        "messages.send_and_consume": ("sendMessage", "consumeMessage"),
        "messages.queries": (
            "queryMsgById",
            "queryMsgByKey",
            "queryMsgByUniqueKey",
            "queryMsgByOffset",
            "resumeCheckHalfMessage",
        ),
        "messages.trace": ("queryMsgTraceById",),
        "messages.printing": ("printMsg", "printMsgByQueue"),
        "messages.queues": ("queryCq",),
        "messages.log_dump": ("dumpLog",),
    },
    "Consumers and producers": {
        "groups.consumers": ("consumerProgress", "brokerConsumeStats", "startMonitoring"),
        "groups.consumer_status": ("consumerStatus",),
        "groups.connections": ("consumerConnection", "producerConnection", "producer"),
        "groups.consumer_groups": ("updateSubGroup", "deleteSubGroup", "getConsumerConfig"),
        "groups.offsets": ("resetOffsetByTime", "skipAccumulatedMessage", "cloneGroupOffset"),
    },
    "Nameservers": {
        "nodes.config": (
            "getNamesrvConfig",
            "updateNamesrvConfig",
            "updateKvConfig",
            "deleteKvConfig",
            "wipeWritePerm",
            "addWritePerm",
        ),
    },
    "Access control": {
        "nodes.acl": (
            "updateAclConfig",
            "deleteAclConfig",
            "updateGlobalWhiteAddr",
            "clusterAclConfigVersion",
        ),
    },
    "Exports": {
        "nodes.exports": ("exportMetadata", "exportConfigs", "exportMetrics"),
    },
}
MODULES = {
    name: f"haservice.admin.commands.{module}"
    for modules in SECTIONS.values()
    for module, names in modules.items()
    for name in names
}


class Commands(click.Group):
    """A group whose commands may raise the errors of the layers below."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*MODULES, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        return commands_of(MODULES[cmd_name])[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args[0] not in names and (hint := did_you_mean(args[0], names)):
            ctx.fail(f"there is no command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, modules in SECTIONS.items():
            found = [self.get_command(ctx, name) for names in modules.values() for name in names]
            with formatter.section(title):
                formatter.write_dl([(one.name or "", one.get_short_help_str(100)) for one in found if one])

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


def commands_of(module: str) -> dict[str, click.Command]:
    return {
        one.name or "": one
        for one in vars(importlib.import_module(module)).values()
        if isinstance(one, click.Command)
    }


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
