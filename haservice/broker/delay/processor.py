"""45 GET_ALL_DELAY_OFFSET: how far delayed messages are delivered, for slaves."""

from __future__ import annotations

from collections.abc import Callable

from haservice.broker.delay.offsets import DelayOffsets
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.replication.status import HAStatus


def replicated_end(status: HAStatus) -> int:
    """Up to where all connected slaves have the log; -1 without a slave."""
    return min((slave.ack for slave in status.slaves if slave.ack >= 0), default=-1)


class DelayOffsetsProcessor:
    """Answers offsets that every connected slave can rely on; all have the log up to `replicated_end`."""

    def __init__(self, offsets: DelayOffsets, replicated_end: Callable[[], int]) -> None:
        self._offsets = offsets
        self._replicated_end = replicated_end

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.GET_ALL_DELAY_OFFSET: self.all_offsets}

    def all_offsets(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.answer(body=self._offsets.encode(self._replicated_end()))
