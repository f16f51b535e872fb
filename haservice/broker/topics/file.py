"""TopicsFile: `config/topics.json`, and the journal beside it: which of the two is written when.

    config/topics.json      the whole table, as RocketMQ writes it
    config/topics.journal   what changed since, in the form of the journal of consumer offsets

A small table is written whole each time.  Of a large one the journal gets what changed, and the file is written whole

    at a clean stop;
    once the journal is as large as the table;
    once the file is WHOLE_EVERY_S old, for a stock broker that opens the store after a crash;
    after a start that found a journal, and after a failed sync of it.

Both are durable when a write returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from zlib import crc32

import orjson

from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import TopicConfig, TopicConfigWrapper
from haservice.table_journal import TableJournal

# Tables with fewer topics are written whole: it takes a few milliseconds.
SMALL_TOPICS = 1000
WHOLE_EVERY_S = 60.0
# About what a topic takes in topics.json.
TOPIC_BYTES = 200
_BATCH = 500


class TopicsFile:
    """One thread at a time."""

    def __init__(self, file: PersistedFile, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._journal = TableJournal(file.path.with_suffix(".journal"))
        self._clock_s = clock_s
        self._whole_s = clock_s()
        # The CRC-32 of the file, and of the one before it; None: not written or read yet.
        self._base: int | None = None
        self._before: int | None = None
        # Whether the file must be written whole next.
        self._due = True

    def load(self) -> list[TopicConfigWrapper]:
        """The table, then what changed in it, oldest first; nothing if there is no file.  Raises OSError."""
        loaded = self._file.load(lambda content: (TopicConfigWrapper.decode(content), crc32(content)))
        if loaded is None:
            return []
        table, self._base = loaded
        texts = self._journal.load(self._base, from_backup=self._file.from_backup)
        self._due = bool(texts) or self._file.from_backup
        return [table, *map(TopicConfigWrapper.decode, texts)]

    @property
    def journaled(self) -> bool:
        """Whether the journal says what the file does not."""
        return self._journal.size > 0

    def whole_is_due(self, topics: int) -> bool:
        """Whether a table of so many topics is to be written whole."""
        if self._due or topics <= SMALL_TOPICS:
            return True
        return self.journaled and (
            self._journal.size >= topics * TOPIC_BYTES or self._clock_s() - self._whole_s >= WHOLE_EVERY_S
        )

    def write_whole(self, table: TopicConfigWrapper) -> bool:
        """False if the file holds that already.  Raises OSError."""
        content = b"".join(pretty_parts(table))
        self._due = True
        written = self._file.save(lambda: content)
        base = crc32(content)
        if base != self._base:
            self._before, self._base = self._base, base
        self._journal.remove()
        self._due = False
        self._whole_s = self._clock_s()
        return written

    def add(self, changes: TopicConfigWrapper) -> None:
        """Adds what changed to the journal.  Raises OSError."""
        assert self._base is not None
        try:
            if not self._journal.size:
                self._journal.begin(self._base, self._before)
            self._journal.append([changes.encode()])
        finally:
            self._due = not self._journal.size


def pretty_parts(table: TopicConfigWrapper) -> Iterator[bytes]:
    """The text of topics.json, as `encode(pretty=True)` gives it, in a twentieth of its time."""
    empty = TopicConfigWrapper(table.data_version).encode(pretty=True)
    if not table.topic_config_table:
        yield empty
        return
    before, _, after = empty.partition(b'"topicConfigTable":{}')
    separator = before + b'"topicConfigTable":{'
    topics = iter(table.topic_config_table.items())
    while batch := list(islice(topics, _BATCH)):
        yield separator + ",".join([_pretty(name, topic) for name, topic in batch]).encode()
        separator = b","
    yield b"\n\t}" + after


def _pretty(key: str, topic: TopicConfig) -> str:
    return (
        f"\n\t\t{_quoted(key)}:{{"
        f'\n\t\t\t"order":{"true" if topic.order else "false"},'
        f'\n\t\t\t"perm":{topic.perm},'
        f'\n\t\t\t"readQueueNums":{topic.read_queue_nums},'
        f'\n\t\t\t"topicFilterType":{_quoted(topic.topic_filter_type)},'
        f'\n\t\t\t"topicName":{_quoted(topic.topic_name)},'
        f'\n\t\t\t"topicSysFlag":{topic.topic_sys_flag},'
        f'\n\t\t\t"writeQueueNums":{topic.write_queue_nums}'
        "\n\t\t}"
    )


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
