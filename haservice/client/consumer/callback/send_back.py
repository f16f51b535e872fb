"""SendBack: sends a message that was not consumed back to the brokers.

    36 to the master the message came from      it comes again from the retry topic, later each time
    ├─ the master is unreachable or refuses: a copy is sent to the retry topic, of any master
    └─ that fails, too: the message stays where it is, and is consumed again here

From `max_reconsume_times` retries on it is a dead letter instead, in %DLQ%GROUP.
"""

from __future__ import annotations

import logging

from commitlog.log.log import wall_clock_ms
from haservice.client.consumer.calls import GroupCalls
from haservice.client.consumer.subscription import retry_topic
from haservice.client.errors import MessageIllegal
from haservice.client.message import Received, encode_properties
from haservice.errors import HAServiceError
from haservice.remoting.headers.clients import SendMessageHeader

logger = logging.getLogger(__name__)

# For a group that sets nothing: as in RocketMQ's concurrent consumers.
MAX_RECONSUME_TIMES = 16
# The first retry comes after level 3, each further one a level later.
FIRST_DELAY_LEVEL = 3


class SendBack:
    """Gives messages back for one consumer."""

    def __init__(self, calls: GroupCalls, max_reconsume_times: int = MAX_RECONSUME_TIMES) -> None:
        self._calls = calls
        self._max = max_reconsume_times

    async def again(self, message: Received, delay_level: int) -> bool:
        """Has the message come again; False if no broker took it."""
        try:
            await self._calls.send_back(message, delay_level, self._max)
        except HAServiceError as error:
            logger.warning(
                "message not sent back, a copy is sent instead group=%s message=%s reason=%s",
                self._calls.group,
                message.msg_id,
                error,
            )
            return await self.copy(message, delay_level or FIRST_DELAY_LEVEL + message.reconsume_times)
        return True

    async def copy(self, message: Received, delay_level: int) -> bool:
        """Sends a copy to the retry topic; a broker that counts enough tries makes it a dead letter."""
        properties = {
            **message.properties,
            "RETRY_TOPIC": message.topic,
            "ORIGIN_MESSAGE_ID": message.properties.get("ORIGIN_MESSAGE_ID") or message.offset_msg_id,
        }
        properties.pop("TRAN_MSG", None)
        tries = message.reconsume_times + 1
        if delay_level > 0:
            properties["DELAY"] = str(delay_level)
        else:
            tries = max(tries, self._max)
        try:
            text = encode_properties(properties)
        except MessageIllegal as error:
            logger.warning(
                "copy not sent group=%s message=%s reason=%s", self._calls.group, message.msg_id, error
            )
            return False
        header = SendMessageHeader(
            producer_group=self._calls.group,
            topic=retry_topic(self._calls.group),
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=-1,
            sys_flag=0,
            born_timestamp_ms=wall_clock_ms(),
            flag=message.flag,
            properties=text,
            reconsume_times=tries,
            max_reconsume_times=self._max,
        )
        for broker_name in self._calls.masters(message.queue.broker_name):
            try:
                await self._calls.send_to_retry(broker_name, header, message.body)
            except HAServiceError as error:
                logger.warning(
                    "copy not sent group=%s message=%s broker=%s reason=%s",
                    self._calls.group,
                    message.msg_id,
                    broker_name,
                    error,
                )
            else:
                return True
        return False
