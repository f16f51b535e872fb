"""Queue locks for orderly consumers: 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ.

Masters and slaves serve them, each with its own locks; clients ask masters only.
"""

from __future__ import annotations

from haservice.broker.groups.queue_locks import QueueLocks
from haservice.errors import RequestError
from haservice.remoting.bodies.locks import LockBatchAnswer, LockBatchRequest
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor


class LockProcessor:
    """On the loop: a request is a few look-ups in memory."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        asked = _asked(command)
        granted = self._locks.lock(asked.consumer_group, asked.client_id, asked.mq_set)
        return command.answer(body=LockBatchAnswer(granted).encode())

    def unlock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        asked = _asked(command)
        self._locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return command.answer()


def _asked(command: RemotingCommand) -> LockBatchRequest:
    try:
        return LockBatchRequest.decode(command.body)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"body cannot be read: {error}") from None
