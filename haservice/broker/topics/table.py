"""TopicTable: the topics of this broker, their queues and permissions, and `config/topics.json`.

Reads need no lock: a topic is looked up in a dict whose values never change in place.  The loop, the work
threads (admin requests) and the slave's sync thread make changes under one lock.  Every change raises the
data version, which nameservers and slaves compare for equality only.  Whoever has the table needs only what changed
since: TopicChanges.

Names and limits: RocketMQ 4.9's `TopicValidator` (127 characters of `%|a-zA-Z0-9_-`).

Bound: maxTopics.  The table refuses one more, whoever asks for it; it always takes the broker's own few
topics.  It loads a file with more whole, and then adds none; it does not take a master's table with more.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from commitlog.kernel.layout import NAME_LETTERS, TOPIC_BYTES_MAX
from commitlog.log.log import wall_clock_ms
from haservice.broker.topics.changes import TopicChanges
from haservice.broker.topics.file import TopicsFile
from haservice.configuration.settings import BrokerConfig
from haservice.errors import RequestError
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import DataVersion, TopicConfig, TopicConfigWrapper
from haservice.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4

TOPIC_LENGTH_MAX = TOPIC_BYTES_MAX
# The flag of a topic created by a send with `unitMode`, and of a retry topic of consumers with it.
SYS_FLAG_UNIT = 1
SYS_FLAG_UNIT_SUB = 2
DEFAULT_TOPIC = "TBW102"
RETRY_PREFIX = "%RETRY%"
# A cluster's name and this are the topic for replies to requests.
REPLY_SUFFIX = "_REPLY_TOPIC"
MULTI_TAG = "MULTI_TAG"

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"

# Topics that only the broker itself writes to.
FORBIDDEN_TO_SEND = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
SYSTEM_TOPICS = FORBIDDEN_TO_SEND | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
SYSTEM_PREFIX = "rmq_sys_"

_NAME = re.compile(NAME_LETTERS + "+")


def name_fault(topic: str) -> str | None:
    """Why `topic` is not a topic name, in RocketMQ's words; None if it is one."""
    if not topic or topic.isspace():
        return "The specified topic is blank."
    if _NAME.fullmatch(topic) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return length_fault(topic)


def length_fault(topic: str) -> str | None:
    """Why no record can have this topic, in RocketMQ's words: a table of a stock broker may name longer ones."""
    size = len(topic.encode("utf-8", "surrogatepass"))
    if size > TOPIC_LENGTH_MAX:
        return f"The specified topic is longer than topic max length {TOPIC_LENGTH_MAX}, it has {size}."
    return None


class TopicsFull(RequestError):
    """One topic too many; it is also the answer to a request for one."""

    def __init__(self, topic: str, count: int, topics_max: int) -> None:
        super().__init__(
            ResponseCode.SYSTEM_ERROR,
            f"topic[{topic}] is not created: there are {count} topics, maxTopics={topics_max}",
        )


class TableAt(NamedTuple):
    """A table, or what changed in it, up to the change `mark`."""

    mark: int
    wrapper: TopicConfigWrapper


class TopicTable:
    """Topic name → TopicConfig.  `on_change` is called after a change, by the thread that made it."""

    def __init__(
        self,
        config: BrokerConfig,
        stored: PersistedFile,
        *,
        delay_levels: int = 18,
        clock_ms: Callable[[], int] = wall_clock_ms,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._file = TopicsFile(stored)
        # Held while the file or its journal is written; the first of two writers writes for both.
        self._file_lock = threading.Lock()
        # The last change that is stored.
        self._stored = -1
        self._clock_ms = clock_ms
        self.on_change = on_change
        self._topics_max = config.max_topics
        self._told_full = False
        # Guards every change of the fields below, so that a version always belongs to its table.
        self._lock = threading.Lock()
        self._table: dict[str, TopicConfig] = {
            topic.topic_name: topic for topic in _start_topics(config, delay_levels)
        }
        self.data_version = DataVersion(counter=0, timestamp=clock_ms())
        self._changes = TopicChanges()
        # The order topics that were set last, and the change behind which that was.
        self._ordered: frozenset[str] = frozenset()
        self._ordered_at = -1
        names = {config.cluster_name, config.broker_name, config.cluster_name + REPLY_SUFFIX}
        self._system = SYSTEM_TOPICS | names

    # Reading

    def get(self, topic: str) -> TopicConfig | None:
        return self._table.get(topic)

    def queue_to_deliver(self, topic: str, queue_id: int) -> int:
        """Where consumers find a message whose queue was chosen when it was sent, which may be long ago.

        It is another queue if the topic has fewer to read by now: RocketMQ writes to a queue that nobody reads.
        """
        known = self._table.get(topic)
        if known is None or known.read_queue_nums <= 0 or queue_id < known.read_queue_nums:
            return queue_id
        return queue_id % known.read_queue_nums

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[TopicConfig]:
        """All present topics."""
        return iter(list(self._table.values()))

    def wrapper(self) -> TopicConfigWrapper:
        """The whole table with its version: the body of 21 and 103, and the file."""
        return self.whole().wrapper

    def whole(self) -> TableAt:
        """The whole table as it is now."""
        with self._lock:
            return TableAt(self._changes.number, TopicConfigWrapper(self.data_version, dict(self._table)))

    def changes_after(self, mark: int) -> TableAt | None:
        """What changed behind `mark`, with the present version; None if only the whole table tells it."""
        with self._lock:
            changed = self._changes.after(mark)
            if changed is None:
                return None
            found = [(topic, self._table.get(topic)) for topic in changed]
            return TableAt(
                self._changes.number,
                TopicConfigWrapper(
                    self.data_version,
                    {name: topic for name, topic in found if topic is not None},
                    [name for name, topic in found if topic is None] or None,
                ),
            )

    @property
    def system_topics(self) -> frozenset[str]:
        """The topics that RocketMQ calls its own, whether this broker has them or not."""
        return self._system

    def is_system(self, topic: str) -> bool:
        return topic in self._system or topic.startswith(SYSTEM_PREFIX)

    # Changing

    def create_on_send(
        self, topic: str, default_topic: str, queue_nums: int, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """The topic, created from the template `default_topic` if it is missing; None if that is not allowed.
        Raises TopicsFull.

        The template must exist and have the inherit bit.  The new topic has the smaller of the
        sender's and the template's number of queues, and the template's permissions without that bit.
        """
        with self._lock:
            known = self._table.get(topic)
            if known is not None:
                return known
            template = self._table.get(default_topic)
            if template is None or not template.perm & PERM_INHERIT:
                return None
            queues = max(0, min(queue_nums, template.write_queue_nums))
            created = dataclasses.replace(
                template,
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=template.perm & ~PERM_INHERIT,
                topic_sys_flag=topic_sys_flag,
                order=False,
            )
            self._add(created)
        logger.info("topic created topic=%s queues=%d template=%s", topic, queues, default_topic)
        self.on_change()
        return created

    def find_or_create(
        self, topic: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE, topic_sys_flag: int = 0
    ) -> TopicConfig:
        """The topic, created with these numbers if it is missing; for the broker's own `%RETRY%` topics.

        Raises TopicsFull, and RequestError for a name that no record can have.
        """
        with self._lock:
            known = self._table.get(topic)
            if known is not None:
                return known
            if (fault := length_fault(topic)) is not None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
            created = topic_config(topic, queue_nums, perm)
            if topic_sys_flag:
                created = dataclasses.replace(created, topic_sys_flag=topic_sys_flag)
            self._add(created)
        logger.info("topic created topic=%s queues=%d", topic, queue_nums)
        self.on_change()
        return created

    def update(self, topic: TopicConfig) -> None:
        """Creates or replaces `topic`, as request 17 asks; always makes a new version, as RocketMQ does.

        Raises TopicsFull.
        """
        with self._lock:
            known = self._table.get(topic.topic_name)
            # A 4.9.8 broker ignores the request's `order`, which comes from the nameserver's KV table.
            if known is None:
                self._add(dataclasses.replace(topic, order=False))
            else:
                self._put(dataclasses.replace(topic, order=known.order))
        logger.info(
            "topic %s topic=%s read=%d write=%d perm=%d",
            "updated" if known else "created",
            topic.topic_name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm,
        )
        self.on_change()

    def set_order_topics(self, ordered: Collection[str]) -> bool:
        """Marks these topics, a nameserver's order topics, as ordered, and no others; True if that changed
        anything.
        """
        with self._lock:
            changed = [
                topic for topic in self._to_order(ordered) if topic.order != (topic.topic_name in ordered)
            ]
            for topic in changed:
                self._table[topic.topic_name] = dataclasses.replace(topic, order=not topic.order)
            if changed:
                self._raise_version(*[topic.topic_name for topic in changed])
            self._ordered, self._ordered_at = frozenset(ordered), self._changes.number
        if not changed:
            return False
        for topic in changed:
            logger.info("topic is %s order topic topic=%s", "no" if topic.order else "an", topic.topic_name)
        self.on_change()
        return True

    def _to_order(self, ordered: Collection[str]) -> Iterable[TopicConfig]:
        """The topics whose mark may be wrong: with the same order topics as before, those that changed since."""
        names = self._changes.after(self._ordered_at) if self._ordered == ordered else None
        if names is None:
            return self._table.values()
        return [topic for name in names if (topic := self._table.get(name)) is not None]

    def delete(self, topic: str) -> bool:
        """Removes `topic`; False if it did not exist.  The caller looks after its consume queues."""
        with self._lock:
            if self._table.pop(topic, None) is None:
                return False
            self._told_full = False
            self._raise_version(topic)
        logger.info("topic deleted topic=%s", topic)
        self.on_change()
        return True

    def note_deleted(self, topic: str) -> None:
        """Its messages are deleted, too: a new version, so that slaves that have the present one ask again."""
        with self._lock:
            self._raise_version(topic)
        self.on_change()

    def replace_all(self, wrapper: TopicConfigWrapper) -> bool:
        """Takes the master's whole table and version; False if we have this version.

        Raises ValueError, with nothing changed, if it has more topics than are allowed here.
        """
        with self._lock:
            if wrapper.data_version == self.data_version:
                return False
            count = len(wrapper.topic_config_table)
            if count > self._topics_max:
                raise ValueError(f"the master has {count} topics, here maxTopics={self._topics_max}")
            self._table = dict(wrapper.topic_config_table)
            self.data_version = wrapper.data_version
            self._changes.note_all()
        logger.info("topics replaced count=%d version=%s", len(self._table), wrapper.data_version)
        self.on_change()
        return True

    def configure(self, topics_max: int) -> None:
        """Sets another bound from the next new topic on."""
        self._topics_max = topics_max
        self._told_full = False

    def allow_creation(self, allowed: bool) -> None:
        """Sets whether sends may create topics from now on: sets or clears the template's inherit bit."""
        with self._lock:
            known = self._table.get(DEFAULT_TOPIC)
            if known is None and not allowed:
                return
            template = known or topic_config(
                DEFAULT_TOPIC, self._config.default_topic_queue_nums, PERM_READ | PERM_WRITE
            )
            perm = template.perm | PERM_INHERIT if allowed else template.perm & ~PERM_INHERIT
            if known is not None and perm == known.perm:
                return
            self._put(dataclasses.replace(template, perm=perm))
        self.on_change()

    def renew_version(self) -> None:
        """Gives the same table a new version, so that nameservers learn it anew."""
        with self._lock:
            self._raise_version()
            self._changes.note_all()
        self.on_change()

    # Storing

    def load(self) -> None:
        """Reads the file, if there is one, and its journal; their topics replace the start values."""
        steps = self._file.load()
        if not steps:
            return
        with self._lock:
            table = dict(self._table)
            for step in steps:
                table.update(step.topic_config_table)
                for name in step.deleted_topics or ():
                    table.pop(name, None)
            template = table.get(DEFAULT_TOPIC)
            if template is not None and not self._config.auto_create_topic_enable:
                table[DEFAULT_TOPIC] = dataclasses.replace(template, perm=template.perm & ~PERM_INHERIT)
            self._table = table
            self.data_version = steps[-1].data_version
            self._changes.note_all()
        if len(table) > self._topics_max:
            logger.warning(
                "more topics are stored than may be, none is added count=%d maxTopics=%d",
                len(table),
                self._topics_max,
            )

    def persist(self) -> bool:
        """Stores what changed, in the file or its journal; False if there was nothing to write.

        Changes made while another thread writes are stored together with the next write.  Blocks: not for the loop.
        Raises OSError.
        """
        with self._file_lock:
            changes = self.changes_after(self._stored)
            if changes is not None and changes.mark == self._stored and not self._file.journaled:
                return False
            if changes is None or self._file.whole_is_due(len(self._table)):
                return self._persist_whole()
            if changes.mark == self._stored:
                return False
            self._file.add(changes.wrapper)
            self._stored = changes.mark
            return True

    def close(self) -> bool:
        """Writes the file whole, if its journal says what it does not.  Raises OSError."""
        with self._file_lock:
            is_behind = self._file.journaled or self._changes.number != self._stored
            return is_behind and self._persist_whole()

    def _persist_whole(self) -> bool:
        assert self._file_lock.locked()
        whole = self.whole()
        written = self._file.write_whole(whole.wrapper)
        self._stored = whole.mark
        return written

    def _add(self, topic: TopicConfig) -> None:
        """Adds a new topic.  Raises TopicsFull."""
        assert self._lock.locked()
        count = len(self._table)
        if count >= self._topics_max and topic.topic_name not in self._system:
            full = TopicsFull(topic.topic_name, count, self._topics_max)
            if not self._told_full:
                self._told_full = True
                logger.error("%s; nor are others from now on", full)
            raise full
        self._put(topic)

    def _put(self, topic: TopicConfig) -> None:
        assert self._lock.locked()
        self._table[topic.topic_name] = topic
        self._raise_version(topic.topic_name)

    def _raise_version(self, *changed: str) -> None:
        assert self._lock.locked()
        self._changes.note(changed)
        self.data_version = DataVersion(counter=self.data_version.counter + 1, timestamp=self._clock_ms())


def topic_config(topic: str, queues: int, perm: int) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def _start_topics(config: BrokerConfig, delay_levels: int) -> list[TopicConfig]:
    """The topics that a broker has from the start: those of RocketMQ's TopicConfigManager."""
    read_write = PERM_READ | PERM_WRITE
    every = read_write | PERM_INHERIT
    topics = [
        topic_config(SELF_TEST_TOPIC, 1, read_write),
        topic_config(BENCHMARK_TOPIC, 1024, read_write),
        topic_config(config.cluster_name, 16, every if config.cluster_topic_enable else PERM_INHERIT),
        topic_config(config.broker_name, 1, every if config.broker_topic_enable else PERM_INHERIT),
        topic_config(OFFSET_MOVED_TOPIC, 1, read_write),
        topic_config(SCHEDULE_TOPIC, delay_levels, read_write),
        topic_config(config.cluster_name + REPLY_SUFFIX, 1, read_write),
        topic_config(HALF_TOPIC, 1, read_write),
    ]
    if config.auto_create_topic_enable:
        topics.append(topic_config(DEFAULT_TOPIC, config.default_topic_queue_nums, every))
    if config.trace_topic_enable:
        topics.append(topic_config(TRACE_TOPIC, 1, read_write))
    return topics
