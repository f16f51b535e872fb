"""Fuzz targets of bits that flip: in queues, index and small files of a store whose log is sound.

What may not happen: a message that is skipped, another one in its place, a number given twice, a range of the
log that is fenced, a key that finds another message; and after a pass of the audit, anything that differs
from what a store without the flip has.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from commitlog.kernel.keys import has_key
from commitlog.kernel.records import decode
from commitlog.queues.queue_files import UNIT_BYTES
from commitlog.store import Store
from haservice.persisted_file import PersistedFile
from tests.chaos.crash_stories import ROOT, open_store
from tests.chaos.disk import MemoryDisk, in_memory
from tests.chaos.fuzz import Target
from tests.support.messages import STORE_MS, Clock, message

SEGMENT_BYTES = 4096
MESSAGES = 16
QUEUES = 2
TOPIC = "TopicTest"
TABLE = ROOT / "config" / "consumerOffset.json"
_CONTENTS = (b'{"offsetTable":{"T@g":{0:16,1:9}}}', b'{"offsetTable":{"T@g":{0:17,1:9}}}')
# Of a file that is longer than what is used of it, flips in the rest are all alike.
_USED_BYTES_MAX = 700

Files = tuple[tuple[str, bytes], ...]


def _open(disk: MemoryDisk) -> Store:
    fields: dict[str, Any] = {"index_slots": 10, "index_entries": 40, "scrub_bytes_per_s": 1 << 40}
    return open_store(disk, Clock(STORE_MS + 60_000), segment_bytes=SEGMENT_BYTES, **fields)


@lru_cache
def _stores() -> tuple[Files, Files]:
    """The files of a store that was closed, and of one that was killed with everything flushed."""
    return _made(clean=True), _made(clean=False)


def _made(*, clean: bool) -> Files:
    disk = MemoryDisk()
    with in_memory():
        store = _open(disk)
        for number in range(MESSAGES):
            keys = {"KEYS": f"k{number} all", "TAGS": f"t{number % 3}"}
            body = b"%d" % number * (number * 61 % 1100) or b"-"
            store.log.append(message(body, queue_id=number % QUEUES, properties=keys))
        while store.dispatcher.step():
            pass
        store.log.flush()
        store.flusher.step()
        store.queue_flusher.flush(0, thorough=True)
        store.close(clean)
    return tuple(sorted(disk.files(ROOT).items()))


def victims(files: Files) -> list[int]:
    """All but the log, and what is empty."""
    return [
        number
        for number, (name, content) in enumerate(files)
        if content and not name.startswith(str(ROOT / "commitlog"))
    ]


def flipped(content: bytes, place: int) -> bytes:
    """With one bit of what is used of it the other way round."""
    changed = bytearray(content)
    at, bit = divmod(place % (8 * min(len(content), _USED_BYTES_MAX)), 8)
    changed[at] ^= 1 << bit
    return bytes(changed)


def flips_of_ends(which: int) -> Iterator[bytes]:
    """An input for each bit of the first and last entry of the first queue in store `which` (0: closed, 1: killed)."""
    files = _stores()[which]
    for number, victim in enumerate(victims(files)):
        name, _ = files[victim]
        if f"/consumequeue/{TOPIC}/0/" in name:
            last = MESSAGES // QUEUES - 1
            for entry in (0, last):
                for place in range(8 * entry * UNIT_BYTES, 8 * (entry + 1) * UNIT_BYTES):
                    yield bytes((which, number)) + place.to_bytes(2, "big")


def _built(data: bytes) -> object:
    """First byte: which store; second: which file of it; the next two: which bit."""
    if len(data) != 4:
        return None
    files = _stores()[data[0] & 1]
    numbers = victims(files)
    name, content = files[numbers[data[1] % len(numbers)]]
    disk, sound = MemoryDisk(), MemoryDisk()
    for other, kept in files:
        place = int.from_bytes(data[2:], "big")
        disk.put(Path(other), flipped(content, place) if other == name else kept)
        sound.put(Path(other), kept)
    with in_memory():
        expected = _seen(sound)
        found = _seen(disk)
    for what in expected:
        assert found[what] == expected[what], f"{name}: {what}"
    return Path(name).parent.name, data[0] & 1


def _seen(disk: MemoryDisk) -> dict[str, object]:
    """What a start, readers, and then an audit come to."""
    store = _open(disk)
    seen: dict[str, object] = {"log": store.log.end, "next numbers": dict(store.log.queue_offsets)}
    seen["messages"] = {queue_id: _bodies(store, queue_id) for queue_id in range(QUEUES)}
    early = [_keys(store, number) for number in range(MESSAGES)]
    assert all(found <= 1 for found in early)
    for _ in range(2):
        store.index_mender.look()
        store.scrub.also_look_over(threading.Event())
    store.index_mender.look()
    seen["keys"] = [_keys(store, number) for number in range(MESSAGES)]
    seen["queues"] = {
        name: content for name, content in disk.files(ROOT / "consumequeue").items() if any(content)
    }
    seen["fences"] = store.log.damaged
    placed = store.log.append(message(b"after it all", queue_id=0))
    seen["appended"] = placed.queue_offset, placed.physical_offset
    store.dispatcher.step()
    assert store.close()
    return seen


def _bodies(store: Store, queue_id: int) -> list[bytes]:
    queue = store.queues.get(TOPIC, queue_id)
    assert queue is not None
    records = [store.mender.read(queue, number) for number in range(queue.min_offset, queue.max_offset)]
    return [decode(record).body for record in records if record is not None]


def _keys(store: Store, number: int) -> int:
    """How many messages a query by a key gives, as a broker answers it; each is the one that is meant."""
    found = 0
    for offset in store.index.query(TOPIC, f"k{number}", 10, 0, 1 << 62):
        there = store.log.start <= offset < store.log.end and store.log.begins_record(offset)
        if there and has_key(decode(store.log.read_record(offset)).properties, b"k%d" % number):
            found += 1
        else:
            store.index_mender.suspect(TOPIC, f"k{number}", offset)
    return found


def _built_seeds() -> list[bytes]:
    """Every file, and of the first two entries of each queue, and its last, some bits."""
    seeds = []
    for which, files in enumerate(_stores()):
        for number, _ in enumerate(victims(files)):
            seeds += [bytes((which, number)) + place.to_bytes(2, "big") for place in range(3, 1300, 37)]
    return seeds


def _table(data: bytes) -> object:
    """First byte: the file, its backup or its checksums; the rest: which bit."""
    if len(data) != 3:
        return None
    disk = MemoryDisk()
    file = PersistedFile(TABLE, disk)
    for content in _CONTENTS:
        file.save(lambda content=content: content)  # type: ignore[misc]
    path = TABLE.with_name(TABLE.name + ("", ".bak", ".crc")[data[0] % 3])
    disk.put(path, flipped(disk.content(path) or b"", int.from_bytes(data[1:], "big")))
    assert PersistedFile(TABLE, disk).load(bytes) == _CONTENTS[1], "what flipped is believed"
    return data[0] % 3


def _table_seeds() -> list[bytes]:
    return [bytes((number,)) + place.to_bytes(2, "big") for number in range(3) for place in range(280)]


TARGETS = [
    Target("flipped_store", _built, _built_seeds, weight=0.01),
    Target("flipped_table", _table, _table_seeds, weight=0.02),
]
