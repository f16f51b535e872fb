"""ShardedTable: `topic@group` → queue id → offset, for any number of them.

Python stops every thread while it makes a dict larger, or copies one: a table with a million keys in one dict
would stop the loop for 50 ms now and then.  In 256 dicts each such stop is 256 times shorter.

Pure: it has no lock.  `slices` takes the owner's lock for one slice at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import orjson

SHARDS = 256
# The most of one slice, in keys and in queues: about a millisecond of work.
SLICE_KEYS = 500
SLICE_QUEUES = 2000
# The most that a queue takes in the text: `2147483647:-9223372036854775808,`; or a key besides its name.
QUEUE_BYTES = 32
_KEY_BYTES = 8

Queues = dict[int, int]


class ShardedTable:
    """`count` queues; their text takes at most `text_bytes`."""

    __slots__ = ("_shards", "count", "text_bytes")

    def __init__(self, table: Mapping[str, Mapping[int, int]] | None = None) -> None:
        self._shards: list[dict[str, Queues]] = [{} for _ in range(SHARDS)]
        self.count = 0
        self.text_bytes = 0
        if table:
            self.put_all(table.items())

    def get(self, key: str) -> Queues | None:
        """The queues of `key` themselves.  New ones come by `put`, and go by `drop`; an offset may be set."""
        return self._shards[hash(key) % SHARDS].get(key)

    def put(self, key: str, queue_id: int, offset: int) -> None:
        shard = self._shards[hash(key) % SHARDS]
        queues = shard.get(key)
        if queues is None:
            queues = shard[key] = {}
            self.text_bytes += key_bytes(key)
        if queue_id not in queues:
            self.count += 1
            self.text_bytes += QUEUE_BYTES
        queues[queue_id] = offset

    def put_all(self, members: Iterable[tuple[str, Mapping[int, int]]]) -> None:
        for key, queues in members:
            shard = self._shards[hash(key) % SHARDS]
            if queues and key not in shard:
                shard[key] = dict(queues)
                self.count += len(queues)
                self.text_bytes += key_bytes(key) + QUEUE_BYTES * len(queues)
                continue
            for queue_id, offset in queues.items():
                self.put(key, queue_id, offset)

    def drop(self, key: str, queue_ids: Iterable[int]) -> None:
        """Removes those of these queues that are there, and the key if no queue is left."""
        shard = self._shards[hash(key) % SHARDS]
        queues = shard.get(key)
        if queues is None:
            return
        for queue_id in queue_ids:
            if queues.pop(queue_id, None) is not None:
                self.count -= 1
                self.text_bytes -= QUEUE_BYTES
        if not queues:
            del shard[key]
            self.text_bytes -= key_bytes(key)

    def names(self) -> Iterator[str]:
        """All keys; others may change the table meanwhile."""
        for shard in self._shards:
            yield from list(shard)

    def items(self) -> Iterator[tuple[str, Queues]]:
        """The members of a table that nobody changes."""
        for shard in self._shards:
            yield from shard.items()

    def slices(self, lock: threading.Lock) -> Iterator[list[tuple[str, Queues]]]:
        """Copies of all members, each true for the moment when its slice was made."""
        keys = self.names()
        while some := list(islice(keys, SLICE_KEYS)):
            position = 0
            while position < len(some):
                part: list[tuple[str, Queues]] = []
                left = SLICE_QUEUES
                with lock:
                    while position < len(some) and left > 0:
                        key = some[position]
                        queues = self.get(key)
                        if queues is not None:
                            part.append((key, queues.copy()))
                            left -= len(queues)
                        position += 1
                yield part


def key_bytes(key: str) -> int:
    """How many bytes a key takes in the text, without its queues."""
    return len(orjson.dumps(key)) + _KEY_BYTES
