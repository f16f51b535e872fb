"""Stories for crash points: a store's life, a replica's, that of small files; what each may never lose.

A story plays on a disk.  Amid its play, at any operation of the disk, check() is handed a disk as a crash at
this very moment leaves it, starts on it what starts on it in earnest, and compares with what was promised by
then.  It raises AssertionError, or lets through what the start raised: both are findings.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from commitlog.errors import CommitLogError
from commitlog.kernel.keys import tags_code
from commitlog.kernel.layout import BLANK_MAGIC
from commitlog.kernel.records import NewMessage, check, decode_properties, parse_head
from commitlog.options import LogOptions
from commitlog.store import Store
from tests.chaos.disk import MemoryDisk
from tests.chaos.disk_states import Loss
from tests.support.failing_files import Crash
from tests.support.messages import STORE_HOST, STORE_MS, Clock, batch_body, message

ROOT = Path("/disk/store")
SEGMENT_BYTES = 16 * 1024
QUEUE_FILE_BYTES = 400
TOPICS = ("TopicTest", "Other%Topic-1")
# A start is killed this many times in a row at most, and somewhere among its first operations.
STARTS_KILLED_MAX = 4
START_OPERATIONS = 60
LOSSES = (Loss.NOTHING, Loss.ALL, Loss.SOME, Loss.TORN)

Key = tuple[str, int]
# Queue offset → (physical offset, size, tags code).
Entries = dict[int, tuple[int, int, int]]


class Story(Protocol):
    """What the driver wants of one.  `promise` tells apart moments at which different things are promised."""

    name: str
    disk: MemoryDisk

    @property
    def promise(self) -> object: ...

    def play(self) -> None: ...

    def check(self, disk: MemoryDisk) -> None: ...


def options(**fields: Any) -> LogOptions:
    """Everything small: a segment has four pages, a queue file one, an index file 59 entries."""
    small = {
        "segment_bytes": SEGMENT_BYTES,
        "queue_file_bytes": QUEUE_FILE_BYTES,
        "index_slots": 20,
        "index_entries": 60,
    }
    return LogOptions(root=ROOT, **{**small, **fields})


def open_store(disk: MemoryDisk, clock: Clock, **fields: Any) -> Store:
    return Store.open(options(**fields), store_host=STORE_HOST, clock_ms=clock, files=disk)


def some_message(chance: random.Random, number: int) -> NewMessage:
    """A message that says its number, of any size up to three pages."""
    size = chance.choice((0, 1, 90, 700, 1500, 4000, 12_000)) or 1
    body = b"%d:" % number
    body += bytes([33 + number % 90]) * chance.randint(0, size)
    properties = {"KEYS": f"k{number}", "TAGS": f"t{number % 5}"}
    # No CRC covers them, so they are to lie in pages of their own now and then.
    properties["pad"] = "p" * chance.choice((1, 1, 600, 3000))
    return message(body, chance.choice(TOPICS), chance.randrange(2), properties=properties)


# -- what a store holds ----------------------------------------------------------------------------


class Image:
    """A store's log, byte for byte, and what queues and index have to be of it."""

    def __init__(self, store: Store) -> None:
        log = store.log
        self.start, self.end = log.start, log.end
        parts = []
        offset = self.start
        while data := log.read(offset, log.segment_bytes):
            parts.append(data)
            offset += len(data)
        self.data = b"".join(parts)
        assert len(self.data) == self.end - self.start, "the log can be read from its start to its end"
        self.keys: dict[tuple[str, str], list[int]] = {}
        self.expected: dict[Key, Entries] = {}
        self._walk(log.segment_bytes)
        self.queues = {key: _entries(queue) for key, queue in store.queues.items()}
        self.next = dict(log.queue_offsets)

    def _walk(self, segment_bytes: int) -> None:
        """Whole records from the start to the end, and nothing else."""
        at, data = 0, self.data
        while at < len(data):
            offset = self.start + at
            room = segment_bytes - offset % segment_bytes
            head = parse_head(data, at, room)
            assert head is not None, f"the log ends at {self.end}, amid the record that begins at {offset}"
            if head.magic == BLANK_MAGIC:
                assert head.size == room
                at += room
                continue
            assert check(data, at) == head.size
            assert head.physical_offset == offset, f"the record at {offset} belongs at {head.physical_offset}"
            properties = decode_properties(head.properties)
            tags = tags_code(properties["TAGS"].encode()) if "TAGS" in properties else 0
            entries = self.expected.setdefault((head.topic, head.queue_id), {})
            assert head.queue_offset not in entries, f"{head.topic} has {head.queue_offset} twice"
            entries[head.queue_offset] = (offset, head.size, tags)
            if "KEYS" in properties:
                self.keys.setdefault((head.topic, properties["KEYS"]), []).append(offset)
            at += head.size

    def check_queues(self, *, started: bool = True) -> None:
        """Queues are what a rebuild from the log gives, number by number.

        Where they go on is known of a store that was just `started`; a replica does not count along.
        """
        for key in {*self.expected, *self.queues}:
            expected, found = self.expected.get(key, {}), self.queues.get(key, {})
            assert found == expected, f"queue {key} has {found}, the log {expected}"
            if expected:
                assert sorted(expected) == list(range(min(expected), max(expected) + 1))
                assert not started or self.next.get(key) == max(expected) + 1, (
                    f"{key} goes on at {self.next.get(key)}"
                )

    def check_index(self, store: Store) -> None:
        """Every key leads to each of its messages once, and to no others."""
        for (topic, key), places in self.keys.items():
            found = store.index.query(topic, key, 64, 0, 2**62)
            found = [offset for offset in reversed(found) if offset >= self.start]
            assert found == places, f"key {key} of {topic} leads to {found}, not to {places}"

    def same_as(self, other: Image) -> None:
        assert (self.start, self.end) == (other.start, other.end), (
            self.start,
            self.end,
            other.start,
            other.end,
        )
        assert self.data == other.data
        assert self.queues == other.queues
        assert self.next == other.next


def _entries(queue: Any) -> Entries:
    """The entries of a queue from its first message on; blanks stand for none."""
    first, count = queue.min_offset, queue.max_offset - queue.min_offset
    return {
        first + number: (entry.physical_offset, entry.size, entry.tags_code)
        for number, entry in enumerate(queue.read(first, count))
        if not entry.blank
    }


def same_but_for_a_blank(image: Image, second: Store, last_edge: int) -> None:
    """A replica's next start finds the same; but it cuts before a blank that nothing follows any more."""
    if image.end % SEGMENT_BYTES or second.log.end != last_edge:
        Image(second).same_as(image)


def starts(
    disk: MemoryDisk, chance: random.Random, begin: Callable[[MemoryDisk], Store]
) -> tuple[MemoryDisk, Store]:
    """Starts on the disk, killed up to a few times on the way, each with a loss of its own."""
    for _ in range(chance.choice((0, 0, 1, STARTS_KILLED_MAX))):
        disk.crash_at(chance.randrange(START_OPERATIONS))
        try:
            store = begin(disk)
        except Crash:
            disk = disk.after_crash(chance.choice(LOSSES), chance)
        else:
            disk.crash_at(-1)
            return disk, store
    return disk, begin(disk)


# -- a master's store ------------------------------------------------------------------------------


class MasterStory:
    """Appends, rolls, flushes, checkpoints, retention, stops and kills of one store."""

    name = "master"

    def __init__(self, seed: int, steps: int = 30) -> None:
        self.disk = MemoryDisk()
        self.clock = Clock()
        self.chance = random.Random(seed)
        self.truth = bytearray()
        """Every byte of the log that an append has returned for, from offset 0 on."""
        self.flushed = 0
        """What a flush that returned has covered."""
        self._appending = False
        self._steps = steps
        self._tick_ms = self.chance.choice((0, 1, 400, 5000))
        self._check_chance = random.Random(seed ^ 0x5EED)
        self._fields = {"index_safe": self.chance.random() < 0.3}

    @property
    def promise(self) -> object:
        return self.flushed, len(self.truth), self._appending

    def _open(self, disk: MemoryDisk) -> Store:
        return open_store(disk, self.clock, **self._fields)

    def play(self) -> None:
        store = self._open(self.disk)
        acts = [self._append] * 8 + [self._append_batch, self._append_many] * 2
        acts += [self._dispatch] * 3 + [self._flush] * 3 + [self._flush_queues] * 2 + [self._expire]
        for number in range(self._steps):
            self.clock.now_ms += self._tick_ms
            if self.chance.random() < 0.06:
                store = self._restart(store)
            self.chance.choice(acts)(store, number)
        store.close()
        self.flushed = len(self.truth)

    def _restart(self, store: Store) -> Store:
        if self.chance.random() < 0.5:
            closed = store.close()
            assert closed
            self.flushed = len(self.truth)
        else:
            self.disk = self._killed(self.disk)
        store = self._open(self.disk)
        assert store.log.end == len(self.truth)
        self.flushed = max(self.flushed, store.log.flushed)
        return store

    def _killed(self, disk: MemoryDisk) -> MemoryDisk:
        other = disk.after_crash(Loss.NOTHING, self.chance)
        other.watch, disk.watch = disk.watch, None
        return other

    # -- steps -------------------------------------------------------------------------------------

    def _append(self, store: Store, number: int) -> None:
        self._appends(store, lambda: store.log.append(some_message(self.chance, number)))

    def _append_many(self, store: Store, number: int) -> None:
        several = [some_message(self.chance, number * 100 + n) for n in range(self.chance.randint(1, 6))]
        self._appends(store, lambda: store.log.append_many(several))

    def _append_batch(self, store: Store, number: int) -> None:
        bodies = [b"%d.%d" % (number, n) * self.chance.randint(1, 200) for n in range(3)]
        batch = message(batch_body(bodies), TOPICS[0], self.chance.randrange(2), properties={"TAGS": "b"})
        self._appends(store, lambda: store.log.append_batch(batch))

    def _appends(self, store: Store, append: Callable[[], object]) -> None:
        self._appending = True
        append()
        self._appending = False
        log, known = store.log, len(self.truth)
        while known < log.end:
            data = log.read(known, log.end - known)
            self.truth += data
            known += len(data)

    def _dispatch(self, store: Store, _number: int) -> None:
        while store.dispatcher.step():
            pass

    def _flush(self, store: Store, _number: int) -> None:
        if self.chance.random() < 0.5:
            store.flusher.step()
        else:
            store.log.flush()
        self.flushed = max(self.flushed, store.log.flushed)

    def _flush_queues(self, store: Store, _number: int) -> None:
        store.queue_flusher.flush(self.chance.choice((0, 1)), thorough=self.chance.random() < 0.6)

    def _expire(self, store: Store, number: int) -> None:
        """A pass of retention on a disk that is fuller than allowed, long after the last one."""
        self._flush(store, number)
        self._dispatch(store, number)
        store.queue_flusher.flush(0, thorough=True)
        self.disk.now_s += 80 * 3600.0
        self.disk.used_ratio = 0.8
        store.retention.check_disk()
        store.retention._drop(self.chance.randint(0, 1), _never())
        store.retention._expire()
        self.disk.used_ratio = 0.1

    # -- the check ---------------------------------------------------------------------------------

    def check(self, disk: MemoryDisk) -> None:
        chance = self._check_chance
        disk, store = starts(disk, chance, self._open)
        image = Image(store)
        self._compare(image)
        image.check_index(store)
        if chance.random() < 0.5:
            disk, store, image = self._another_crash(disk, store, chance)
        # What a start kept is flushed as all else is; then a further start changes nothing.
        store.log.flush()
        again = disk.after_crash(chance.choice(LOSSES), chance)
        second = self._open(again)
        assert not second.recovery.cut_bytes, second.recovery
        Image(second).same_as(image)
        if chance.random() < 0.3:
            assert second.close()
            third = self._open(again)
            assert third.recovery.clean
            Image(third).same_as(image)
            self._goes_on(third)

    def _compare(self, image: Image) -> None:
        assert image.end >= self.flushed, f"flushed up to {self.flushed}, found up to {image.end}"
        known = min(image.end, len(self.truth)) - image.start
        assert image.data[:known] == self.truth[image.start : image.start + known], "other bytes"
        assert image.end <= len(self.truth) or self._appending, "bytes that nobody appended"
        image.check_queues()

    def _another_crash(
        self, disk: MemoryDisk, store: Store, chance: random.Random
    ) -> tuple[MemoryDisk, Store, Image]:
        """Other messages come to where some were lost, and another crash."""
        for number in range(chance.randint(1, 4)):
            store.log.append(some_message(chance, 9000 + number))
        if chance.random() < 0.6:
            self._dispatch(store, 0)
        flushed = store.log.flush() if chance.random() < 0.7 else 0
        if chance.random() < 0.4:
            store.queue_flusher.flush(0, thorough=chance.random() < 0.8)
        before = Image(store)
        disk = disk.after_crash(chance.choice(LOSSES), chance)
        store = self._open(disk)
        image = Image(store)
        assert image.end >= flushed, f"flushed up to {flushed}, found up to {image.end}"
        assert image.start == before.start
        assert image.data == before.data[: len(image.data)], "other bytes"
        image.check_queues()
        image.check_index(store)
        return disk, store, image

    def _goes_on(self, store: Store) -> None:
        before = store.log.end
        placed = store.log.append(message(b"after it all", TOPICS[0], 0))
        assert placed.physical_offset >= before
        self._dispatch(store, 0)
        image = Image(store)
        image.check_queues()
        image.check_index(store)


class _never:  # noqa: N801 - stands for an event
    """A stop that does not come and is not waited for."""

    def wait(self, _timeout_s: float) -> bool:
        return False

    def is_set(self) -> bool:
        return False


# -- recovery itself -------------------------------------------------------------------------------


class RecoveryStory(MasterStory):
    """A store that lost power somewhere; the story is its start, then that of the next one."""

    name = "recovery"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.disk.crash_at(self.chance.randint(20, 150))
        with suppress(Crash):
            super().play()
        self.disk = self.disk.after_crash(
            self.chance.choice((Loss.SOME, Loss.TORN, Loss.NOTHING)), self.chance
        )

    def play(self) -> None:
        self._open(self.disk)


# -- a replica's store -----------------------------------------------------------------------------


class ReplicaStory:
    """A slave's store, fed in pieces of any size; what it flushed it has reported to its master."""

    name = "replica"

    def __init__(self, seed: int, steps: int = 40) -> None:
        self.disk = MemoryDisk()
        self.clock = Clock()
        self.chance = random.Random(seed)
        self.reported = 0
        self.truth, self.edges = _masters_log(seed)
        self._check_chance = random.Random(seed ^ 0x5EED)
        self._steps = steps

    @property
    def promise(self) -> object:
        return self.reported

    def _open(self, disk: MemoryDisk) -> Store:
        return open_store(disk, self.clock, replica=True)

    def play(self) -> None:
        store = self._open(self.disk)
        for _ in range(self._steps):
            roll = self.chance.random()
            if roll < 0.6:
                self._receive(store, self.chance.choice((1, 100, 1000, 5000, SEGMENT_BYTES)))
            elif roll < 0.8:
                self.reported = max(self.reported, store.log.flush())
            elif roll < 0.9:
                while store.dispatcher.step():
                    pass
            elif roll < 0.97:
                store.queue_flusher.flush(0, thorough=True)
            elif self.chance.random() < 0.5:
                assert store.close()
                self.reported = 0  # an unfinished record at the end is cut at a stop, and comes again
                store = self._open(self.disk)
                self.reported = store.log.end
            else:
                other = self.disk.after_crash(Loss.NOTHING, self.chance)
                other.watch, self.disk.watch = self.disk.watch, None
                self.disk = other
                store = self._open(self.disk)
                self.reported = store.log.end

    def _receive(self, store: Store, size: int) -> None:
        end = store.log.end
        room = SEGMENT_BYTES - end % SEGMENT_BYTES
        size = min(size, room, len(self.truth) - end)
        half = size // 2
        pieces = [memoryview(self.truth)[end : end + half], memoryview(self.truth)[end + half : end + size]]
        store.log.append_replica(end, pieces)

    def check(self, disk: MemoryDisk) -> None:
        chance = self._check_chance
        disk, store = starts(disk, chance, self._open)
        image = Image(store)
        least = max(self._edges_below(self.reported))
        assert image.end >= least, (
            f"reported {self.reported}, of it {least} in whole records; has {image.end}"
        )
        assert image.data == self.truth[image.start : image.end], "other bytes than its master's"
        image.check_queues()
        image.check_index(store)
        store.log.flush()
        again = disk.after_crash(chance.choice(LOSSES), chance)
        second = self._open(again)
        same_but_for_a_blank(image, second, max(self._edges_below(image.end - 1)))
        if chance.random() < 0.2:
            while second.log.end < len(self.truth):
                self._receive(second, SEGMENT_BYTES)
            while second.dispatcher.step():
                pass
            whole = Image(second)
            assert whole.data == self.truth
            whole.check_queues(started=False)
            whole.check_index(second)

    def _edges_below(self, offset: int) -> list[int]:
        """Where records end, up to there."""
        return [0, *(edge for edge in self.edges if edge <= offset)]


def _masters_log(seed: int, records: int = 30) -> tuple[bytes, list[int]]:
    """A log's bytes up to a record's end, and where its records end."""
    chance = random.Random(seed)
    store = open_store(MemoryDisk(), Clock(), index_enabled=False)
    ends = [store.log.append(some_message(chance, number)).end for number in range(records)]
    parts = []
    offset = 0
    while data := store.log.read(offset, SEGMENT_BYTES):
        parts.append(data)
        offset += len(data)
    return b"".join(parts), ends


# -- refusing is no finding when nothing was promised ----------------------------------------------

Refusal = CommitLogError
START_MS = STORE_MS
