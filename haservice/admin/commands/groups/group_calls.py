"""What all brokers together know of a consumer group."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from haservice.admin.calls import MQAdmin, readable_addr
from haservice.admin.fanout import ask_each
from haservice.broker.send.retries import retry_topic
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.admin import ConsumerConnection, ConsumerRunningInfo, ConsumeStats
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.admin import ConsumerRunningInfoHeader, ConsumeStatsHeader
from haservice.remoting.headers.clients import ConsumerGroupHeader

# Stock mqadmin waits as long: a broker goes through every queue, a client writes its stacks.
STATS_TIMEOUT_S = 15.0
CLIENT_TIMEOUT_S = 15.0


def group_addrs(admin: MQAdmin, group: str) -> list[str]:
    """The brokers to ask about a group: those that hold its retry topic, else all masters.

    A group that only broadcasts, or pulls, has no retry topic.
    """
    try:
        datas = admin.route(retry_topic(group)).broker_datas
        addrs = [readable_addr(data) for data in datas if data.broker_addrs]
    except AnswerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        addrs = []
    return addrs or [broker.addr for broker in admin.brokers() if broker.broker_id == MASTER_ID]


def consume_stats(admin: MQAdmin, group: str, topic: str | None = None) -> tuple[ConsumeStats, bool]:
    """208 from every broker, merged, and whether all answered."""
    header = ConsumeStatsHeader(group, topic)
    found, complete = ask_each(
        group_addrs(admin, group),
        lambda addr: admin.ask(
            addr, RequestCode.GET_CONSUME_STATS, header, into=ConsumeStats, timeout_s=STATS_TIMEOUT_S
        ),
    )
    tables = [stats.offset_table for _, stats in found]
    merged = {queue: progress for table in tables for queue, progress in table.items()}
    return ConsumeStats(sum(stats.consume_tps for _, stats in found), merged), complete


def consumer_connection(admin: MQAdmin, group: str, broker: str | None = None) -> ConsumerConnection:
    """203: the members that any broker knows.  Raises AnswerError 206 if none is online."""
    ask = partial(
        admin.ask,
        code=RequestCode.GET_CONSUMER_CONNECTION_LIST,
        header=ConsumerGroupHeader(group),
        into=ConsumerConnection,
    )
    if broker is not None:
        return ask(broker)
    found: list[ConsumerConnection] = []
    failures: list[RemotingError] = []
    for addr in group_addrs(admin, group):
        try:
            found.append(ask(addr))
        except RemotingError as error:
            failures.append(error)
    if not found:
        raise _gravest(failures, group)
    members = {one.client_id: one for connection in found for one in connection.connection_set}
    return replace(found[0], connection_set=tuple(members[client_id] for client_id in sorted(members)))


def _gravest(failures: list[RemotingError], group: str) -> RemotingError:
    """The failure to report: an unreachable broker rather than one where no member is online."""
    for error in failures:
        if not isinstance(error, AnswerError) or error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            return error
    if failures:
        return failures[0]
    return AnswerError(
        "the nameserver", ResponseCode.CONSUMER_NOT_ONLINE, f"no broker that could know group {group}"
    )


def running_info(
    admin: MQAdmin, group: str, client_id: str, addrs: list[str], jstack: bool = False
) -> ConsumerRunningInfo:
    """307, from the first broker that the client is connected to."""
    header = ConsumerRunningInfoHeader(group, client_id, jstack)
    failure: RemotingError | None = None
    for addr in addrs:
        try:
            return admin.ask(
                addr,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                header,
                into=ConsumerRunningInfo,
                timeout_s=CLIENT_TIMEOUT_S,
            )
        except RemotingError as error:
            failure = failure or error
    assert failure is not None, "a group has at least one broker"
    raise failure


def queue_owners(admin: MQAdmin, group: str) -> dict[tuple[str, str, int], str]:
    """(topic, broker name, queue id) → the host of the member that has the queue now.

    A member that does not answer is left out: its queues then have no owner here.
    """
    owners: dict[tuple[str, str, int], str] = {}
    with suppress(RemotingError):
        addrs = group_addrs(admin, group)
        for member in consumer_connection(admin, group).connection_set:
            with suppress(RemotingError):
                info = running_info(admin, group, member.client_id, addrs)
                for queue in info.mq_table:
                    owners[queue.topic, queue.broker_name, queue.queue_id] = member.client_id.partition("@")[
                        0
                    ]
    return owners
