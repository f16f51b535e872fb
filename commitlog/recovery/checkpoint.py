"""The checkpoint: up to which store time log, queues and index are durable.

    physic 8 | logics 8 | index 8 | rest of 4096 bytes: zero, or what a later version keeps there

Timestamps are ms of the broker's clock, as records carry them.  They may lag behind the disk; if they ran
ahead of it, a restart would scan too little.  If a clock is set back they do run ahead, as in RocketMQ.  So
we go by the positions beside them (durable_marks.py), which are written first.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path

from commitlog.disk.files import Files
from commitlog.errors import StoreUnreadable
from commitlog.recovery.durable_marks import DurableMarks

logger = logging.getLogger(__name__)

CHECKPOINT_BYTES = 4096
# Below the directory of the checkpoint.
POSITIONS = Path("lineage", "durable")
# A restart goes back this much further than the timestamps say, as RocketMQ does.
SAFETY_MS = 3000
_LAYOUT = struct.Struct(">qqq")


class Checkpoint:
    """The file and what it says.  The flusher owns it; others set one timestamp, which is atomic.

    `positions` are the same claims in offsets.
    """

    def __init__(self, path: Path, files: Files) -> None:
        """Opens or creates the file; one of a wrong size counts as empty.  Raises StoreUnreadable."""
        self.path = path
        self._files = files
        self._written = (0, 0, 0)
        self.positions = DurableMarks(path.parent / POSITIONS, files)
        try:
            self._fd = self._open()
            data = files.pread(self._fd, CHECKPOINT_BYTES, 0)
        except OSError as error:
            self.positions.close()
            raise StoreUnreadable(path, error.strerror or str(error)) from error
        if len(data) == CHECKPOINT_BYTES:
            self._written = _LAYOUT.unpack_from(data)
        self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms = self._written

    def _open(self) -> int:
        if self._files.exists(self.path):
            fd = self._files.open(self.path)
            if self._files.size(fd) == CHECKPOINT_BYTES:
                return fd
            self._files.close(fd)
            self._files.unlink(self.path)
        return self._files.create(self.path, CHECKPOINT_BYTES)

    @property
    def min_timestamp_ms(self) -> int:
        """Records older than this are durable in log and queues."""
        return max(0, min(self.physic_timestamp_ms, self.logics_timestamp_ms) - SAFETY_MS)

    @property
    def min_timestamp_index_ms(self) -> int:
        """Records older than this are durable in log, queues and index."""
        return min(self.min_timestamp_ms, self.index_timestamp_ms)

    def forget_future(self, now_ms: int) -> None:
        """Drops times in the future: a clock was set back, or a bit flipped.  save() writes the result."""
        said = self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms
        believed = tuple(ms if 0 <= ms <= now_ms else 0 for ms in said)
        if believed != said:
            logger.warning("checkpoint claims times that have not been path=%s times=%s", self.path, said)
        self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms = believed

    def lower(self, stored_ms: int, offset: int) -> None:
        """Claims nothing for records stored after `stored_ms`, or from `offset` on, durably.

        May raise OSError.
        """
        self.positions.take(self.positions.now.within(offset))
        self.physic_timestamp_ms = min(self.physic_timestamp_ms, stored_ms)
        self.logics_timestamp_ms = min(self.logics_timestamp_ms, stored_ms)
        self.index_timestamp_ms = min(self.index_timestamp_ms, stored_ms)
        self.save(sync=True)

    def save(self, *, sync: bool) -> None:
        """Writes what changed; with `sync` it survives a power cut.  May raise OSError."""
        self.positions.save(sync=sync)
        timestamps = (self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms)
        if timestamps != self._written:
            self._files.pwrite(self._fd, _LAYOUT.pack(*timestamps), 0)
            self._written = timestamps
        if sync:
            self._files.fdatasync(self._fd)

    def close(self) -> None:
        self.positions.close()
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
