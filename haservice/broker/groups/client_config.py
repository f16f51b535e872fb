"""CHECK_CLIENT_CONFIG: whether a subscription would be served; clients ask if it is not by tags.

46    0, or the refusal that the first pull would get: 1 without enablePropertyFilter, 23 for an expression
      that cannot be read
"""

from __future__ import annotations

from haservice.broker.pull.message_filter import MessageFilters
from haservice.errors import RequestError
from haservice.remoting.bodies.clients import CheckClientRequestBody
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor


class ClientConfigProcessor:
    """Answers from the filters that a pull would get."""

    def __init__(self, filters: MessageFilters) -> None:
        self._filters = filters

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.CHECK_CLIENT_CONFIG: self.check}

    def check(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            asked = CheckClientRequestBody.decode(command.body)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"body cannot be read: {error}") from None
        subscription = asked.subscription_data
        if subscription is not None:
            self._filters.check(subscription.expression_type, subscription.sub_string or "")
        return command.answer()
