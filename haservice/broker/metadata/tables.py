"""Tables: what a broker keeps besides its log, each in a file of `config/` below the store.

    topics.json   consumerOffset.json   subscriptionGroup.json   delayOffset.json   consumerFilter.json
    topics.journal: what a large topics.json does not say yet

Names and contents are RocketMQ's; beside the second is a journal of ours (`consumerOffset.journal`).  A slave has
its master's tables, except the filters of its own consumers.  What is there and cannot be read is unfit_files.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from commitlog.store import Store
from haservice.broker.delay.offsets import DelayOffsets, level_bounds
from haservice.broker.groups.subscription_groups import Groups
from haservice.broker.metadata import unfit_files
from haservice.broker.metadata.persistence import Persistence, by_version
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.pull.consumer_filters import FILE_BYTES_MAX, ConsumerFilters
from haservice.broker.topics.readable import unlisted_topics
from haservice.broker.topics.table import PERM_READ, PERM_WRITE, TopicsFull, TopicTable
from haservice.configuration.settings import NodeConfig
from haservice.errors import RequestError
from haservice.persisted_file import PersistedFile, replace_file
from haservice.table_journal import TableJournal

logger = logging.getLogger(__name__)


class Tables:
    """All tables, loaded.  `persistence` writes them, at its interval and when it is told to."""

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        *,
        epoch_begins: bool = False,
        accept_empty: Collection[str] = (),
    ) -> None:
        """`epoch_begins`: this master begins an epoch at the log's end.  `accept_empty`: names of unfit files for
        which an empty table is taken.  Raises UnfitFile, OSError.
        """
        self._store = store
        broker, log = config.broker, config.log
        self._is_slave = is_slave = broker.role.is_slave
        self._directory = directory = log.root / "config"
        files = {name: PersistedFile(directory / name) for name in unfit_files.NAMES}
        self.topics = TopicTable(
            broker,
            files[unfit_files.TOPICS],
            delay_levels=len(log.message_delay_levels.split()),
        )
        self.topics.load()
        if not is_slave:
            self._list_topics()
        self.offsets = ConsumerOffsets(
            files[unfit_files.OFFSETS],
            journal=TableJournal(directory / "consumerOffset.journal"),
            text_bytes_max=broker.max_consumer_offset_bytes,
        )
        self.offsets.load()
        self.groups = Groups(broker.auto_create_subscription_group, files[unfit_files.GROUPS])
        self.groups.load()
        self.delays = DelayOffsets(files[unfit_files.DELAYS])
        self.delays.load(None if is_slave else level_bounds(store.queues.get))
        self.filters = ConsumerFilters(
            PersistedFile(directory / "consumerFilter.json", bytes_max=FILE_BYTES_MAX)
        )
        self.filters.load()
        self.awaited = unfit_files.settle(files, is_slave=is_slave, accepted=accept_empty)
        guarded = self.awaited.guarded
        groups = by_version(self.groups.persist, lambda: self.groups.data_version)
        self.persistence = Persistence(
            {
                "topics": guarded(unfit_files.TOPICS, self.topics.persist),
                "consumer offsets": guarded(unfit_files.OFFSETS, self.offsets.persist),
                "groups": guarded(unfit_files.GROUPS, groups),
                "consumer filters": self.filters.persist,
                "delay offsets": guarded(unfit_files.DELAYS, self.delays.persist),
            },
            broker.flush_consumer_offset_interval_ms / 1000,
        )
        if epoch_begins:
            self.end_offsets()
        elif not is_slave:
            self.offsets.warn_of_ends_passed(self.queue_end)

    def close(self) -> None:
        """The last pass, once the tables are at rest, so that a stock broker finds everything in RocketMQ's files."""
        self.persistence.persist()
        for name, write in (
            (unfit_files.OFFSETS, self.offsets.persist_whole),
            (unfit_files.TOPICS, self.topics.close),
        ):
            try:
                self.awaited.guarded(name, write)()
            except OSError as error:
                logger.error("%s not written, its journal has the changes reason=%s", name, error)

    def keep(self, name: str, content: bytes) -> str:
        """Keeps a table beside its file in config/, as NAME.before; returns the path.  Raises OSError."""
        path = self._directory / f"{name}.before"
        replace_file(path, content, mode=0o666)
        return str(path)

    def queue_end(self, topic: str, queue_id: int) -> int | None:
        """The queue's max offset; None for a deleted topic, whose groups' offsets stay."""
        queue = self._store.queues.get(topic, queue_id)
        if queue is not None:
            return queue.max_offset
        return None if self.topics.get(topic) is None else 0

    def end_offsets(self) -> None:
        """What is lost is known: the log was cut, or an epoch begins on it.  Groups that had consumed more get what
        takes the lost messages' numbers."""
        if self._is_slave and self._store.dispatcher.behind:
            return  # its queues have not all that the log has
        queue_offsets = self._store.log.queue_offsets

        def end_of(topic: str, queue_id: int) -> int | None:
            end, appended = self.queue_end(topic, queue_id), queue_offsets.get((topic, queue_id), 0)
            return None if end is None else max(end, appended)

        if self.offsets.end_at_queues(end_of):
            self.persistence.soon()

    def _list_topics(self) -> None:
        """Adds the topics of our queues that the table lacks, after a promotion or a lost file."""
        queues = (
            key
            for key, queue in self._store.queues.items()
            if queue.max_offset
            and not queue.is_deleted  # without a floor a directory is all that tells of a topic
        )
        for name, topic in unlisted_topics(self.topics, queues, PERM_READ | PERM_WRITE).items():
            if not self.topics.is_system(name):
                try:
                    self.topics.find_or_create(name, topic.read_queue_nums)
                except TopicsFull as error:
                    logger.error("topics have messages but no configuration, and get none: %s", error)
                    break
                except RequestError as error:
                    logger.error("queues of what cannot be a topic, passed over topic=%s: %s", name, error)
                    continue
                logger.warning(
                    "topic has messages but no configuration, given one topic=%s queues=%d",
                    name,
                    topic.read_queue_nums,
                )
