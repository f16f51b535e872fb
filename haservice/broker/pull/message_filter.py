"""Which messages a pull gets: by its subscription's tags, or by its SQL92 expression if that is allowed.

    flag 4    the request brings its subscription
    else      the subscription of the group's heartbeats, no older than the version that the client names

A filter has two parts: the tag codes that an index entry must have (None: any), and a selector that judges
the message's properties (None: no selector).  With filterSupportRetry, a message of a retry topic is judged
by the group's expression for the topic that it came from.  Rules and codes are
those of RocketMQ's PullMessageProcessor and ExpressionForRetryMessageFilter.
"""

from __future__ import annotations

from haservice.broker.groups.consumers import ClientTable, GroupSubscription
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.pull.consumer_filters import ConsumerFilters, expressions
from haservice.broker.pull.native import Expression, decoded
from haservice.broker.pull.reader import Selector
from haservice.broker.pull.sql_filter import SqlFault
from haservice.broker.pull.tag_filter import SQL92, TAG, ExpressionFault, TagCodes, tag_codes
from haservice.broker.send.retries import RETRY_TOPIC
from haservice.broker.topics.table import RETRY_PREFIX
from haservice.configuration.settings import BrokerConfig
from haservice.errors import RequestError
from haservice.remoting.codes import ResponseCode
from haservice.remoting.headers.clients import PullMessageHeader

FLAG_SUBSCRIPTION = 0x4

MessageFilter = tuple[TagCodes, Selector | None]


class MessageFilters:
    """Finds the filter of a pull; raises RequestError with the code that says why it has none."""

    def __init__(self, config: BrokerConfig, clients: ClientTable, filters: ConsumerFilters) -> None:
        self._clients = clients
        self._filters = filters
        filters.enabled = config.enable_property_filter
        self._ignores_tail = config.property_filter_ignores_tail
        self._retries = config.filter_support_retry

    def configure(self, config: BrokerConfig) -> None:
        """Takes the keys that may change while the broker runs."""
        self._filters.enabled = config.enable_property_filter
        self._ignores_tail = config.property_filter_ignores_tail
        self._retries = config.filter_support_retry

    @property
    def enabled(self) -> bool:
        return self._filters.enabled

    def depends(self) -> object:
        """What of() depends on beside the request and the group's settings: it finds the same while this is equal."""
        settings = self._filters.enabled, self._ignores_tail, self._retries
        return settings, self._filters.changes, self._clients.changes

    def judged_by(self, selector: Selector | None, header: PullMessageHeader) -> tuple[str, str] | None:
        """Equal for pulls of one queue whose selectors judge messages alike; None without a selector."""
        if selector is None:
            return None
        if header.sys_flag & FLAG_SUBSCRIPTION and not header.topic.startswith(RETRY_PREFIX):
            return header.subscription or "", ""
        return "", header.consumer_group

    def slow(self, expression_type: str | None, expression: str | None) -> list[str]:
        """The expression that a request brings, if a work thread has to compile it first."""
        return expressions.slow([expression or ""]) if self.enabled and expression_type == SQL92 else []

    def of(self, header: PullMessageHeader, group: GroupConfig) -> MessageFilter:
        if header.sys_flag & FLAG_SUBSCRIPTION:
            found = self._of_request(header)
        else:
            found = self._of_group(header, group)
        if self._retries and header.topic.startswith(RETRY_PREFIX):
            return found[0], self._retried(header.topic.removeprefix(RETRY_PREFIX))
        return found

    def check(self, expression_type: str | None, expression: str) -> None:
        """Raises RequestError if such a subscription would be refused; for CHECK_CLIENT_CONFIG."""
        if expression_type not in (None, "", TAG):
            self._check_enabled(expression_type)
            self._sound(_compiled(expression_type, expression))

    def _sound(self, taken: Expression) -> Expression:
        """Raises RequestError for an expression that is meant to go on behind its end."""
        if taken.unread and not self._ignores_tail:
            raise _unreadable(
                f"{taken.unread[:100]!r} follows a whole expression and would decide nothing;"
                " propertyFilterIgnoresTail=true takes it as RocketMQ does"
            )
        return taken

    def _of_request(self, header: PullMessageHeader) -> MessageFilter:
        expression, expression_type = header.subscription or "", header.expression_type or TAG
        if expression_type != TAG:
            if not expression:
                raise _unreadable("it is empty")
            self._check_enabled(expression_type)
            # RocketMQ delivers everything if this expression does not compile.
            return None, self._sound(_compiled(expression_type, expression)).selects
        try:
            return tag_codes(expression), None
        except ExpressionFault as fault:
            raise _unreadable(str(fault)) from None

    def _of_group(self, header: PullMessageHeader, config: GroupConfig) -> MessageFilter:
        name = header.consumer_group
        group = self._clients.group(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"no member of consumer group {name} is online"
            )
        if group.is_broadcasting and not config.consume_broadcast_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"consumer group {name} may not consume by broadcasting"
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"consumer group {name} does not subscribe topic {header.topic}",
            )
        if subscription.version < header.sub_version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"subscription {subscription.version} of group {name} is older than"
                f" the pull's {header.sub_version}; the next heartbeat brings it",
            )
        if subscription.expression_type != TAG:
            return self._subscribed(header, subscription)
        return subscription.codes, None

    def _subscribed(self, header: PullMessageHeader, subscription: GroupSubscription) -> MessageFilter:
        self._check_enabled(subscription.expression_type)
        found = self._filters.of(header.consumer_group, header.topic, subscription.data)
        if found is None:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"no filter of group {header.consumer_group} for topic {header.topic} is known here;"
                f" its expression may be wrong: {subscription.expression}",
            )
        if found.version < header.sub_version:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                f"filter {found.version} of group {header.consumer_group} is older than"
                f" the pull's {header.sub_version}; the next heartbeat brings it",
            )
        return None, None if found.compiled is None else self._sound(found.compiled).selects

    def _retried(self, group: str) -> Selector:
        find = self._filters.find

        def selects(properties: bytes) -> bool:
            found = find(decoded(properties).get(RETRY_TOPIC, ""), group)
            return found is None or found.compiled is None or found.compiled.selects(properties)

        return selects

    def _check_enabled(self, expression_type: str | None) -> None:
        if not self.enabled:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"this broker does not filter messages by {expression_type} (enablePropertyFilter=false)",
            )


def _compiled(expression_type: str | None, expression: str) -> Expression:
    if expression_type != SQL92:
        raise _unreadable(f"its type {expression_type!r} is not known, {TAG} and {SQL92} are")
    try:
        return expressions.compiled(expression)
    except SqlFault as fault:
        raise _unreadable(str(fault)) from None


def _unreadable(reason: str) -> RequestError:
    return RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"subscription cannot be read: {reason}")
