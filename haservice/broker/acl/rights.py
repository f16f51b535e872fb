"""Access control of a broker: what one request needs, checked against its sender.  Pure.

    an address that opens all doors, or no good signature    haservice.access.rules decides
    a trace of messages (PUB on RMQ_SYS_TRACE_TOPIC)         allowed
    no client's request, and the account no admin            refused
    an admin without topicPerms and groupPerms               allowed
    each topic and group that the request needs              the account's own entry, else its default

The order and the remarks are RocketMQ 4.9's; a refusal is code 1.  We close doors that 4.9 leaves open: a
batch needs what each of its messages would, a send to a retry topic needs SUB on that topic's group, a reply
to a topic other than the clusters' needs what a send would, and a request that is no client's needs an admin.
In 4.9 any account can reset offsets, drop queues, read the configuration, or make itself an admin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from haservice.access.rules import PUB, SUB, AccessRules, Account, AclRefused
from haservice.broker.send.retries import retry_topic
from haservice.broker.topics.table import REPLY_SUFFIX, RETRY_PREFIX, TRACE_TOPIC
from haservice.remoting.bodies.clients import HeartbeatData
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand

# Requests of producers and consumers need a good signature, and the permissions of _NEEDS.  4.9's rules.
CLIENT_CODES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    }
)
# All other requests that we know change things, or tell of others: tools and other brokers send them.  An
# unknown number is not among these, so that a newer client learns that the request is not served.
ADMIN_CODES = frozenset(RequestCode) - CLIENT_CODES

# Resource (a topic, or a group's retry topic) and the permission that a request needs on it.
Need = tuple[str, int]


def check(rules: AccessRules, address: str, request: RemotingCommand) -> None:
    """Returns if `request` from `address` is allowed, else raises AclRefused.  Loop thread only."""
    account = rules.who(address, request)
    if account is None:
        return
    needs = needs_of(request)
    if (TRACE_TOPIC, PUB) in needs:
        return
    if request.code in ADMIN_CODES:
        account.check_admin(int(request.code))
    check_needs(account, needs)


def check_needs(account: Account, needs: Sequence[Need]) -> None:
    """Raises AclRefused for the first need that the account may not have."""
    if account.admin and not account.perms:
        return
    for resource, needed in needs:
        if not account.allows(resource, needed):
            is_group = resource.startswith(RETRY_PREFIX)
            shown = f"group:{resource.removeprefix(RETRY_PREFIX)}" if is_group else f"topic:{resource}"
            raise AclRefused(f"No default permission for {shown}", "checkPerm")


def needs_of(request: RemotingCommand) -> Sequence[Need]:
    """What a request needs besides a good signature; raises AclRefused if a heartbeat cannot be read."""
    needs = _NEEDS.get(request.code)
    return needs(request) if needs is not None else ()


def _send(field_name: str) -> Callable[[RemotingCommand], Sequence[Need]]:
    def needs(request: RemotingCommand) -> Sequence[Need]:
        topic = request.ext.get(field_name)
        if topic is None:
            return ()
        return ((topic, SUB if topic.startswith(RETRY_PREFIX) else PUB),)

    return needs


def _reply(field_name: str) -> Callable[[RemotingCommand], Sequence[Need]]:
    """Whoever was asked may reply; a reply to another topic is stored there like a send."""
    as_a_send = _send(field_name)
    return lambda request: (
        () if request.ext.get(field_name, "").endswith(REPLY_SUFFIX) else as_a_send(request)
    )


def _read(topic_field: str = "", group_field: str = "") -> Callable[[RemotingCommand], Sequence[Need]]:
    def needs(request: RemotingCommand) -> Sequence[Need]:
        topic, group = request.ext.get(topic_field), request.ext.get(group_field)
        needed = [] if topic is None else [(topic, SUB)]
        if group is not None:
            needed.append((retry_topic(group), SUB))
        return needed

    return needs


def _heartbeat(request: RemotingCommand) -> Sequence[Need]:
    try:
        data = HeartbeatData.decode(request.body)
    except ValueError as error:
        raise AclRefused(f"heartbeat cannot be read: {error}") from None
    needed = set()
    for consumer in data.consumer_data_set:
        needed.add((retry_topic(consumer.group_name), SUB))
        needed.update((subscription.topic, SUB) for subscription in consumer.subscription_data_set)
    return sorted(needed)


_NEEDS: Mapping[int, Callable[[RemotingCommand], Sequence[Need]]] = {
    RequestCode.SEND_MESSAGE: _send("topic"),
    RequestCode.SEND_MESSAGE_V2: _send("b"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b"),
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _read(group_field="group"),
    RequestCode.PULL_MESSAGE: _read("topic", "consumerGroup"),
    RequestCode.QUERY_MESSAGE: _read("topic"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _read(group_field="consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _read(group_field="consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _read("topic", "consumerGroup"),
}
