"""LocalOffsets: a broadcasting consumer's offsets, in a file of its own machine.

The file is Java's, in its place and form: ~/.rocketmq_offsets/CLIENT_ID/GROUP/offsets.json, with the one
before it as offsets.json.bak.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from pathlib import Path

from haservice.client.consumer.calls import GroupCalls
from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.queues.offsets import BrokerOffsets, Offsets
from haservice.client.session import Session
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.admin import ResetOffsetBody
from haservice.remoting.bodies.clients import MessageQueue

# The instance that Java's broadcasting consumers have: their offsets outlive the process.
INSTANCE = "DEFAULT"


def default_directory() -> Path:
    """As Java's, whose property rocketmq.client.localOffsetStoreDir is an environment variable here."""
    return Path(os.environ.get("ROCKETMQ_OFFSETS_DIR") or Path.home() / ".rocketmq_offsets")


class LocalOffsets:
    """One group's.  On one loop; the file is written in a thread of the loop's executor."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path = directory / client_id / group / "offsets.json"
        # Java knows no checksum beside it; one that a Java client's write leaves behind would be wrong.
        self._file = PersistedFile(self.path, keeps_sums=False)
        self._writing = asyncio.Lock()  # one table is made out of the one before
        self._offsets: dict[MessageQueue, int] = {}
        self._stored: dict[MessageQueue, int] = {}

    async def load(self) -> None:
        """Raises OSError."""
        found = await asyncio.to_thread(self._file.load, ResetOffsetBody.decode)
        self._stored = dict(found.offset_table) if found is not None else {}

    async def stored(self, queue: MessageQueue) -> int | None:
        return self._stored.get(queue)

    def current(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)

    async def commit(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Writes the offsets of `queues`, of all without them.  Raises OSError."""
        async with self._writing:
            table = self._stored | {
                queue: offset for queue, offset in self._offsets.items() if queues is None or queue in queues
            }
            if table != self._stored:
                content = ResetOffsetBody(table).encode(pretty=True)
                await asyncio.to_thread(self._file.save, lambda: content)
                self._stored = table


def offsets_of(session: Session, calls: GroupCalls, consuming: ConsumerOptions) -> Offsets:
    """At the brokers, or of a broadcasting consumer in a file that is found again after a restart."""
    if not consuming.broadcasting:
        return BrokerOffsets(calls)
    instance = session.options.instance_name or INSTANCE
    directory = consuming.offsets_directory or default_directory()
    return LocalOffsets(directory, f"{session.ip}@{instance}", calls.group)
