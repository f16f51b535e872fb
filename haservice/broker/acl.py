"""Access control: who may do what, decided for one request from the rules in force.  Pure.

    1  the address is in a global white list             allowed, nothing else is looked at
    2  no access key, or one that nobody knows           refused
    3  the address is in the account's own white list    allowed
    4  the signature is not the account's                refused
    5  a trace of messages (PUB on RMQ_SYS_TRACE_TOPIC)  allowed
    6  no client's request, and the account no admin     refused
    7  an admin without topicPerms and groupPerms        allowed
    8  each topic and group that the request needs: the account's own entry, else its default

The order and the remarks are RocketMQ 4.9's; a refusal is code 1.  A group is kept as its retry topic, so
that topics and groups share one table.  Where 4.9 leaves a door open we close it: a batch needs what each of
its messages would, a send to a retry topic needs SUB on that topic's group, a reply to another topic than the
clusters' needs what a send would, and whatever is no client's request takes an admin: there any account can
reset offsets, drop queues, read the configuration, or make itself an admin.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from haservice.broker.acl_addresses import NOWHERE, AddressPattern
from haservice.broker.redirect import retry_topic
from haservice.broker.topics import REPLY_SUFFIX, RETRY_PREFIX, TRACE_TOPIC
from haservice.errors import RequestError
from haservice.remoting.bodies import HeartbeatData
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import ACCESS_KEY, SIGNATURE, content, signature

DENY, PUB, SUB = 1, 4, 8

# What producers and consumers ask: a good signature, and the permissions of _NEEDS.  4.9's rules.
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
# All else that we know changes things, or tells of others: tools and other brokers ask it.  A number nobody
# knows is none of these, so that a newer client is told that it is not served.
ADMIN_CODES = frozenset(RequestCode) - CLIENT_CODES

# Addresses whose place in the global white lists is remembered.
ADDRESSES_MAX = 4096

# Logs and people's scripts know refusals by these names.
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
_PLACE = "org.apache.rocketmq.acl.plain.PlainPermissionManager"

# Resource (a topic, or a group's retry topic) and the permission that a request needs on it.
Need = tuple[str, int]


class AclRefused(RequestError):
    """A request that the rules refuse; `text` is the reason without the names that RocketMQ puts around."""

    def __init__(self, text: str, method: str = "validate") -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{_EXCEPTION}: {text}, {_PLACE}.{method}")
        self.text = text


@dataclass(frozen=True, slots=True)
class Account:
    """One account.  `perms` holds its own entries, topics and retry topics of groups alike."""

    access_key: str
    secret_key: str = field(repr=False)
    white: AddressPattern = NOWHERE
    admin: bool = False
    default_topic: int = DENY
    default_group: int = DENY
    perms: Mapping[str, int] = field(default_factory=dict)

    def allows(self, resource: str, needed: int) -> bool:
        owned = self.perms.get(resource)
        if owned is None:
            owned = self.default_group if resource.startswith(RETRY_PREFIX) else self.default_topic
        return not owned & DENY and bool(owned & needed)


class Rules:
    """All accounts and global white lists together; never changed, only replaced."""

    def __init__(self, white: Sequence[AddressPattern] = (), accounts: Mapping[str, Account] | None = None):
        self.accounts = dict(accounts or {})
        self._white = tuple(white)
        self._is_white: dict[str, bool] = {}

    @property
    def empty(self) -> bool:
        """Nobody would be let in."""
        return not self.accounts and not self._white

    def check(self, address: str, request: RemotingCommand) -> None:
        """Returns when `request` from `address` is allowed, else raises AclRefused.  Loop thread only."""
        white = self._is_white.get(address)
        if white is None:
            white = self._look_up(address)
        if white:
            return
        ext = request.ext
        access_key = ext.get(ACCESS_KEY)
        if access_key is None:
            raise AclRefused("No accessKey is configured")
        account = self.accounts.get(access_key)
        if account is None:
            raise AclRefused(f"No acl config for {access_key}")
        if account.white.matches(address):
            return
        expected = signature(account.secret_key, content(ext, request.body))
        if not hmac.compare_digest(expected.encode(), ext.get(SIGNATURE, "").encode()):
            raise AclRefused(f"Check signature failed for accessKey={access_key}")
        _check_permissions(account, request)

    def _look_up(self, address: str) -> bool:
        if len(self._is_white) >= ADDRESSES_MAX:
            self._is_white.clear()
        white = any(pattern.matches(address) for pattern in self._white)
        self._is_white[address] = white
        return white


def _check_permissions(account: Account, request: RemotingCommand) -> None:
    needs = needs_of(request)
    if (TRACE_TOPIC, PUB) in needs:
        return
    if request.code in ADMIN_CODES and not account.admin:
        text = f"Need admin permission for request code={int(request.code)}, but accessKey="
        raise AclRefused(f"{text}{account.access_key} is not", "checkPerm")
    if account.admin and not account.perms:
        return
    for resource, needed in needs:
        if not account.allows(resource, needed):
            is_group = resource.startswith(RETRY_PREFIX)
            shown = f"group:{resource.removeprefix(RETRY_PREFIX)}" if is_group else f"topic:{resource}"
            raise AclRefused(f"No default permission for {shown}", "checkPerm")


def needs_of(request: RemotingCommand) -> Sequence[Need]:
    """What a request needs beyond a good signature; raises AclRefused when a heartbeat cannot be read."""
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
    """Whoever was asked may answer; a reply to another topic is stored there as a send would be."""
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
