"""CHECK_CLIENT_CONFIG: whether a subscription would be served; clients ask if it is not by tags.

46    0, or the refusal that the first pull would get: 1 without enablePropertyFilter, 23 for an expression
      that cannot be read
"""

from __future__ import annotations

from collections.abc import Awaitable

from haservice.broker.pull.consumer_filters import compile_all, expressions
from haservice.broker.pull.message_filter import MessageFilters
from haservice.errors import RequestError
from haservice.remoting.bodies.clients import CheckClientRequestBody, SubscriptionData
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.owed import Make


class ClientConfigProcessor:
    """Answers from the filters that a pull would get."""

    def __init__(self, filters: MessageFilters, make: Make) -> None:
        self._filters = filters
        self._make = make

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.CHECK_CLIENT_CONFIG: self.check}

    def check(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        try:
            asked = CheckClientRequestBody.decode(command.body)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"body cannot be read: {error}") from None
        subscription = asked.subscription_data
        if subscription is None:
            return command.answer()
        slow = self._filters.slow(subscription.expression_type, subscription.sub_string)
        if slow:
            return self._checked_later(connection, command, subscription, slow)
        return self._checked(command, subscription)

    async def _checked_later(
        self,
        connection: Connection,
        command: RemotingCommand,
        subscription: SubscriptionData,
        slow: list[str],
    ) -> RemotingCommand:
        """Once a work thread has compiled the expression."""
        expressions.keep(await self._make(connection, compile_all, slow))
        return self._checked(command, subscription)

    def _checked(self, command: RemotingCommand, subscription: SubscriptionData) -> RemotingCommand:
        self._filters.check(subscription.expression_type, subscription.sub_string or "")
        return command.answer()
