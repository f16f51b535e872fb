"""Consumer groups as administrators and slaves see them.

200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP    one group's grants, replaced whole
201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG       the table with its version; slaves ask every 10 s
207 DELETE_SUBSCRIPTIONGROUP               and, with `removeOffset`, its consumer offsets

A slave, whose groups are its master's, refuses 200 and 207 in RocketMQ's words.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from haservice.broker.groups.subscription_groups import GroupConfig, Groups
from haservice.broker.metadata.table_copies import TableCopies
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.topics.admin import SLAVE_REMARK
from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.admin import DeleteSubscriptionGroupHeader
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)


class GroupsProcessor:
    def __init__(
        self,
        groups: Groups,
        offsets: ConsumerOffsets,
        offload: Offload,
        *,
        is_slave: bool,
        on_deleted: Callable[[str], None] = lambda group: None,
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._offload = offload
        self._copies = TableCopies(groups, offload)
        self._is_slave = is_slave
        self._on_deleted = on_deleted

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
        }

    def update(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._refuse_on_slave()
        try:
            config = GroupConfig.decode(command.body)
            self._groups.update(config)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return command.answer()

    def all_groups(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        return self._copies.answer(command)

    def delete(self, connection: Connection, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """A group that does not exist is no error, as in RocketMQ: there may still be offsets of it."""
        self._refuse_on_slave()
        return asyncio.ensure_future(self._delete(connection, command))

    async def _delete(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = DeleteSubscriptionGroupHeader.decode(command.ext)
        known = self._groups.delete(header.group_name)
        self._on_deleted(header.group_name)
        topics = 0
        if header.remove_offset:
            topics = await self._offload(self._offsets.remove_group, header.group_name)
        logger.info(
            "group deletion asked for peer=%s group=%s known=%s offsets_of_topics=%d",
            connection.peer,
            header.group_name,
            known,
            topics,
        )
        return command.answer()

    def _refuse_on_slave(self) -> None:
        if self._is_slave:
            raise RequestError(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
