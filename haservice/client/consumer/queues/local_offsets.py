"""LocalOffsets: a broadcasting consumer's offsets, in a file on its own machine.

It is the file that Java's clients use, ~/.rocketmq_offsets/CLIENT_ID/GROUP/offsets.json; the previous one is
kept as offsets.json.bak.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from pathlib import Path

from haservice.client.consumer.calls import GroupCalls
from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.queues.offsets import BrokerOffsets, KnownOffsets, Offsets
from haservice.client.errors import OffsetsUnreadable
from haservice.client.session import Session
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.admin import ResetOffsetBody
from haservice.remoting.bodies.clients import MessageQueue

# The instance name of Java's broadcasting consumers: it lets their offsets outlive the process.
INSTANCE = "DEFAULT"


def default_directory() -> Path:
    """As Java's; an environment variable stands for its property rocketmq.client.localOffsetStoreDir."""
    return Path(os.environ.get("ROCKETMQ_OFFSETS_DIR") or Path.home() / ".rocketmq_offsets")


class LocalOffsets(KnownOffsets):
    """The offsets of one group, in a file.  A thread of the loop's executor writes the file."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        super().__init__()
        self.path = directory / client_id / group / "offsets.json"
        # Java knows no checksum file; one would be wrong after a Java client has written the offsets.
        self._file = PersistedFile(self.path, keeps_sums=False)
        self._writing = asyncio.Lock()  # each table is made from the one before
        self._stored: dict[MessageQueue, int] = {}

    async def load(self) -> None:
        """Raises OSError, or OffsetsUnreadable."""
        found = await asyncio.to_thread(self._file.load, ResetOffsetBody.decode)
        if self._file.unfit is not None:
            raise OffsetsUnreadable(self.path, self._file.unfit)
        self._stored = dict(found.offset_table) if found is not None else {}

    async def stored(self, queue: MessageQueue) -> int | None:
        return self._stored.get(queue)

    async def commit(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Writes the offsets of `queues`; None: of all.  Raises OSError."""
        async with self._writing:
            table = self._stored | {
                queue: offset for queue, offset in self._offsets.items() if queues is None or queue in queues
            }
            if table != self._stored:
                content = ResetOffsetBody(table).encode(pretty=True)
                await asyncio.to_thread(self._file.save, lambda: content)
                self._stored = table


def offsets_of(session: Session, calls: GroupCalls, consuming: ConsumerOptions) -> Offsets:
    """Offsets at the brokers; for a broadcasting consumer, in a file that is found again after a restart."""
    if not consuming.broadcasting:
        return BrokerOffsets(calls)
    instance = session.options.instance_name or INSTANCE
    directory = consuming.offsets_directory or default_directory()
    return LocalOffsets(directory, f"{session.ip}@{instance}", calls.group)
