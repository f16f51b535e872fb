"""Stories for crash points: a replica that goes back and begins anew, and small files that are replaced."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import haservice.replication.lineage.file as lineage_module
from commitlog.kernel.layout import BLANK, BLANK_BYTES, BLANK_MAGIC
from commitlog.kernel.records import encode, stamp
from commitlog.store import Store
from haservice.persisted_file import PersistedFile
from haservice.replication.lineage.epochs import Epoch
from haservice.replication.lineage.file import LineageFile, LineageState, Replica
from tests.chaos.crash_stories import (
    LOSSES,
    ROOT,
    SEGMENT_BYTES,
    Image,
    Key,
    open_store,
    same_but_for_a_blank,
    some_message,
    starts,
)
from tests.chaos.disk import MemoryDisk
from tests.chaos.disk_states import Loss
from tests.support.messages import STORE_HOST, STORE_MS, Clock

TABLE = ROOT / "config" / "topics.json"
KEPT = ROOT / "cut" / "parted"


class MastersLog:
    """The bytes that a master has, record by record; another epoch of it may go on from anywhere."""

    def __init__(self, chance: random.Random) -> None:
        self.start = 0
        self.data = bytearray()
        self.edges: list[int] = [0]
        """Where records end; the first is where the log begins."""
        self._numbers: list[tuple[int, Key]] = []
        self._chance = chance
        self._count = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def grow(self) -> None:
        """One more record, behind a blank if need be."""
        self._count += 1
        message = some_message(self._chance, self._count)
        record = encode(message, STORE_HOST)
        room = SEGMENT_BYTES - self.end % SEGMENT_BYTES
        if len(record) + BLANK_BYTES > room:
            self.data += BLANK.pack(room, BLANK_MAGIC).ljust(room, b"\0")
        key = message.topic, message.queue_id
        number = sum(other == key for _, other in self._numbers)
        stamp(record, number, self.end, STORE_MS + self._count)
        self.data += record
        self.edges.append(self.end)
        self._numbers.append((self.end, key))

    def cut(self, offset: int) -> None:
        """Another epoch begins there."""
        del self.data[offset - self.start :]
        self.edges = [edge for edge in self.edges if edge <= offset]
        self._numbers = [one for one in self._numbers if one[0] <= offset]

    def begin_at(self, offset: int) -> None:
        """All before is gone, numbers and all."""
        self.start = offset
        self.data.clear()
        self.edges = [offset]
        self._numbers.clear()

    def bytes(self, begin: int, end: int) -> bytes:
        return bytes(self.data[begin - self.start : end - self.start])


class RejoinStory:
    """A slave whose master changes: it goes back to where the logs part, or begins anew, and goes on."""

    name = "rejoin"

    def __init__(self, seed: int, steps: int = 40) -> None:
        self.disk = MemoryDisk()
        self.chance = random.Random(seed)
        self.log = MastersLog(self.chance)
        self.reported = 0
        self.fed = 0
        """Up to here the slave has been given bytes; beyond it can have none."""
        self._going_to: int | None = None
        """The offset of a rewind or a beginning anew that has not returned."""
        self._anew = False
        self._check_chance = random.Random(seed ^ 0x5EED)
        self._steps = steps

    @property
    def promise(self) -> object:
        return self.reported, self.fed, self._going_to, self._anew, self.log.start

    def _open(self, disk: MemoryDisk) -> Store:
        return open_store(disk, Clock(), replica=True)

    def play(self) -> None:
        store = self._open(self.disk)
        for _ in range(self._steps):
            roll = self.chance.random()
            if roll < 0.55:
                self._receive(store, self.chance.choice((1, 500, 3000, SEGMENT_BYTES)))
            elif roll < 0.7:
                self.reported = max(self.reported, store.log.flush())
            elif roll < 0.8:
                while store.dispatcher.step():
                    pass
                if not store.dispatcher.behind:
                    image = Image(store)
                    image.check_queues(started=False)
                    image.check_index(store)
            elif roll < 0.87:
                store.queue_flusher.flush(0, thorough=True)
            elif roll < 0.95:
                self._rewind(store)
            elif roll < 0.98:
                self._begin_anew(store)
            else:
                store = self._killed()

    def _receive(self, store: Store, size: int) -> None:
        end = store.log.end
        while self.log.end < end + size:
            self.log.grow()
        size = min(size, SEGMENT_BYTES - end % SEGMENT_BYTES)
        self.fed = end + size
        store.log.append_replica(end, [self.log.bytes(end, end + size)])

    def _rewind(self, store: Store) -> None:
        """To the end of some record that it holds whole, or to where its log begins."""
        least = store.log.start
        offset = self.chance.choice([edge for edge in self.log.edges if least <= edge <= store.log.end])
        self._going_to = offset
        store.rewind(offset)
        self._going_to = None
        assert store.log.end == offset
        self.log.cut(offset)
        self.fed, self.reported = offset, min(self.reported, offset)

    def _begin_anew(self, store: Store) -> None:
        offset = self.chance.randrange(0, 6) * SEGMENT_BYTES
        self._going_to, self._anew = offset, True
        store.restart_at(
            offset, KEPT / str(self.chance.randrange(1 << 30)) if self.chance.random() < 0.5 else None
        )
        self._going_to, self._anew = None, False
        assert (store.log.start, store.log.end) == (offset, offset)
        self.log.begin_at(offset)
        self.fed = self.reported = offset

    def _killed(self) -> Store:
        other = self.disk.after_crash(Loss.NOTHING, self.chance)
        other.watch, self.disk.watch = self.disk.watch, None
        self.disk = other
        store = self._open(other)
        self.reported = store.log.end
        return store

    def check(self, disk: MemoryDisk) -> None:
        chance = self._check_chance
        disk, store = starts(disk, chance, self._open)
        image = Image(store)
        self._compare(image)
        image.check_queues()
        image.check_index(store)
        store.log.flush()
        again = disk.after_crash(chance.choice(LOSSES), chance)
        edges = [edge for edge in self.log.edges if edge < image.end]
        same_but_for_a_blank(image, self._open(again), max(edges, default=-1))

    def _compare(self, image: Image) -> None:
        if self._anew and image.start == image.end == self._going_to:
            return
        log = self.log
        assert image.start == log.start, f"begins at {image.start}, not at {log.start}"
        assert image.data == log.bytes(image.start, image.end), "other bytes than its master's"
        least = max(edge for edge in log.edges if edge <= max(self.reported, log.start))
        if self._going_to is not None and not self._anew:
            least = min(least, self._going_to)
        assert least <= image.end <= self.fed, f"ends at {image.end}, not between {least} and {self.fed}"


# -- small files -----------------------------------------------------------------------------------


class SmallFilesStory:
    """A table that is saved again and again, and the lineage of the log: old or new, but whole."""

    name = "small files"

    def __init__(self, seed: int, steps: int = 14) -> None:
        self.disk = MemoryDisk()
        self.chance = random.Random(seed)
        self._steps = steps
        self._saved: int | None = None
        self._saving: int | None = None
        self._states: list[LineageState | None] = [None]
        """What the lineage file may hold: what was written last, and what is being written."""

    @property
    def promise(self) -> object:
        return self._saved, self._saving, str(self._states)

    def play(self) -> None:
        table = PersistedFile(TABLE, files=self.disk)
        lineage = LineageFile(ROOT, self.disk)
        self._states = [lineage.state]
        for number in range(self._steps):
            if self.chance.random() < 0.5:
                self._saving = number
                table.save(partial(_table, number, self.chance.choice((10, 5000, 20_000))))
                self._saved, self._saving = number, None
            else:
                self._change(lineage, number)

    def _change(self, lineage: LineageFile, number: int) -> None:
        before = lineage.state
        what = self.chance.randrange(3)
        self._states = [before, None]
        if what == 0:
            epoch = Epoch(number + 1, number * 100, "a" * 32, number, "why")
            self._writes(lineage, lambda: lineage.begin(epoch))
        elif what == 1:
            replica = Replica("10.0.0.2:10911", number, number, True)
            self._writes(lineage, lambda: lineage.saw(f"{number % 3}" * 32, replica))
        else:
            role = self.chance.choice(("SYNC_MASTER", "ASYNC_MASTER", ""))
            self._writes(lineage, lambda: lineage.update(master_role=role))
        self._states = [lineage.state]

    def _writes(self, lineage: LineageFile, write: Callable[[], Any]) -> None:
        """While it writes, the new state is known to nobody but the file."""
        encoded = lineage_module.encode_state

        def note(state: LineageState) -> bytes:
            self._states[1] = state
            return encoded(state)

        lineage_module.encode_state = note
        try:
            write()
        finally:
            lineage_module.encode_state = encoded

    def check(self, disk: MemoryDisk) -> None:
        table = PersistedFile(TABLE, files=disk)
        found = table.load(_version)
        allowed = {self._saved, self._saving} if self._saving is not None else {self._saved}
        assert found in allowed, f"version {found}, wanted is one of {allowed}"
        lineage = LineageFile(ROOT, disk)
        if self._states != [None]:
            assert lineage.state in self._states, f"{lineage.state}, wanted is one of {self._states}"
        chance = random.Random(found)
        table.save(partial(_table, 999, 10))
        again = disk.after_crash(Loss.ALL, chance)
        assert PersistedFile(TABLE, files=again).load(_version) == 999
        # Even what a process that died had not made durable is, once a start has read it.
        assert LineageFile(ROOT, again).state == lineage.state


def _table(version: int, size: int) -> bytes:
    return json.dumps({"pad": "x" * size, "version": version}).encode()


def _version(content: bytes) -> int:
    version = json.loads(content)["version"]
    assert isinstance(version, int)
    return version
