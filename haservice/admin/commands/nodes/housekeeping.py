"""`mqadmin cleanExpiredCQ`, `cleanUnusedTopic`, `deleteExpiredCommitLog`: what brokers delete."""

from __future__ import annotations

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.fanout import addrs_of, tell_each
from haservice.remoting.codes import RequestCode
from haservice.terminal.options import Command, broker_option, command, format_option, namesrv_option


def _command(name: str, code: RequestCode, what: str) -> Command:
    """A command that sends a request without fields to one broker, a cluster's masters, or all masters."""

    def clean(namesrv: tuple[str, ...], broker: str | None, cluster: str | None, output_format: str) -> None:
        with MQAdmin(namesrv) as admin:
            if broker is None and cluster is None:
                targets = [one for one in admin.brokers() if one.is_master]
            else:
                targets = admin.targets(broker, cluster)
            tell_each(
                addrs_of(targets), lambda addr: admin.tell(addr, code), "{addr}: success", output_format
            )

    clean.__doc__ = f"""{what}

    At one broker (-b), at every master of a cluster (-c), or of all clusters.
    """
    cluster_option = click.option(
        "-c", "--cluster", "--clusterName", "cluster", metavar="NAME", help="A cluster's brokers."
    )
    return command(name)(namesrv_option(broker_option(cluster_option(format_option(clean)))))


clean_expired_cq = _command(
    "cleanExpiredCQ", RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "Deletes queue files whose messages are gone."
)
clean_unused_topic = _command(
    "cleanUnusedTopic", RequestCode.CLEAN_UNUSED_TOPIC, "Deletes queues whose topic is gone."
)
delete_expired_commit_log = _command(
    "deleteExpiredCommitLog",
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    "Deletes log files past fileReservedTime now.",
)
