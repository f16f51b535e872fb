"""ToldTopics: what one nameserver knows of this broker's topics, and what to tell it next.

    to whom                    at first, and over   topics changed          nothing changed
                               a new connection
    a nameserver of ours      the whole table      the changes             no topics: their version is compared
    a stock nameserver        the whole table      the changed topics (1)  the whole table
    a slave, to any            no topics: nameservers take them from masters only

A nameserver of ours answers with the version that it has.  If that is not the one that the changes lead to, it is
told the whole table at once: after a lost change, after its restart, and when somebody else told it other topics.

(1) As stock brokers do for `mqadmin updateTopic`.  They are sent with a version of their own, which no table has, so
the next whole table is learned even if something went wrong.  They go only over the connection by which the whole
table went: a nameserver that was restarted, or has dropped this broker, closed that.  A stock nameserver keeps a
deleted topic until it is told by 216, as from a stock broker.

A table above a frame's size is compressed.  That form has no `topicSysFlag`; topics that have one are told again.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import NamedTuple

from haservice.broker.topics.table import PERM_READ, PERM_WRITE, TableAt, TopicTable
from haservice.errors import RemotingError
from haservice.remoting.bodies.clients import DataVersion, TopicConfigWrapper
from haservice.remoting.bodies.registration import compressible_parts, plain_parts
from haservice.remoting.frame import FRAME_BYTES_MAX

# A nameserver, a stock one too, closes the connection on a larger frame; the header needs some of it.
BODY_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
COMPRESSION_LEVEL = 3
# Topics with a flag that are told again at once.
FLAGGED_MAX = 5_000


class Telling(NamedTuple):
    """One registration: its body, and what the nameserver knows once it has taken it."""

    at: TableAt
    body: bytes
    compressed: bool = False
    base: str | None = None
    """The version that a nameserver of ours must have; None: the whole table, or to a stock one."""
    whole: bool = False


class ToldTopics:
    """Owned by the follower of one nameserver."""

    def __init__(
        self, addr: str, topics: TopicTable, permission: Callable[[], int], *, is_slave: bool
    ) -> None:
        self._addr = addr
        self._topics = topics
        self._permission = permission
        self._is_slave = is_slave
        self._connection: object = None
        # The last change that it knows, and the version with it; None: tell it the whole table.
        self._known: TableAt | None = None
        self._ours = False
        # Whether it last refused this broker for a newer epoch: it took no topics.
        self._refused = False
        # Topics with a flag that a compressed table did not carry.
        self._flagged: list[str] = []

    def forget(self) -> None:
        """Nobody knows what it knows."""
        self._connection = self._known = None
        self._refused = False
        self._flagged = []

    async def next(self, connection: object) -> Telling:
        """What to tell it over `connection`.  Raises RemotingError if no frame is large enough for the table."""
        if connection is not self._connection:
            self.forget()
            self._connection = connection
        if self._is_slave or self._refused:
            at = _without_topics(self._topics)
            return self._part(at, at.wrapper.data_version.text if self._refused else None)
        if self._flagged and self._known is not None:
            return self._flagged_part(self._known)
        known = self._known
        changes = None if known is None else self._topics.changes_after(known.mark)
        if known is None or changes is None:
            return await self._whole()
        if self._ours:
            return self._part(changes, known.wrapper.data_version.text)
        if changes.mark == known.mark:
            return await self._whole()
        return self._part(changes, None)

    def heard(self, telling: Telling, version: str | None, *, refused: bool) -> bool:
        """It has answered; `version` is of the topics that it has, None from a stock one.

        True if there is more to tell it at once.
        """
        self._ours = version is not None
        self._refused = refused and self._ours
        told = telling.at.wrapper.data_version.text
        if self._is_slave:
            return False
        if refused or (self._ours and version != told):
            self._known = None
            self._flagged = []
            return not refused and not telling.whole
        self._known = telling.at
        return bool(self._flagged)

    def _part(self, at: TableAt, base: str | None) -> Telling:
        wrapper = at.wrapper
        if base is None and not self._is_slave:
            wrapper = TopicConfigWrapper(_of_no_table(wrapper.data_version), wrapper.topic_config_table)
        body = b"".join(plain_parts(wrapper, self._perm()))
        return Telling(at, body, base=base)

    def _flagged_part(self, known: TableAt) -> Telling:
        names, self._flagged = self._flagged[:FLAGGED_MAX], self._flagged[FLAGGED_MAX:]
        topics = {name: topic for name in names if (topic := self._topics.get(name)) is not None}
        version = known.wrapper.data_version
        return self._part(
            TableAt(known.mark, TopicConfigWrapper(version, topics)), version.text if self._ours else None
        )

    async def _whole(self) -> Telling:
        """Encoded in parts, between which the loop serves others."""
        at, perm = self._topics.whole(), self._perm()
        self._flagged = []
        parts, size = [], 0
        for part in plain_parts(at.wrapper, perm):
            parts.append(part)
            size += len(part)
            if size > BODY_BYTES_MAX:
                return await self._compressed(at, perm)
            await asyncio.sleep(0)
        return Telling(_empty(at), b"".join(parts), whole=True)

    async def _compressed(self, at: TableAt, perm: int | None) -> Telling:
        deflater, parts = zlib.compressobj(COMPRESSION_LEVEL), []
        for part in compressible_parts(at.wrapper, perm=perm):
            parts.append(deflater.compress(part))
            await asyncio.sleep(0)
        parts.append(deflater.flush())
        size = sum(map(len, parts))
        if size > BODY_BYTES_MAX:
            raise RemotingError(
                f"{self._addr}: the registration of {len(at.wrapper.topic_config_table)} topics has {size} bytes"
                f" compressed, a nameserver takes {BODY_BYTES_MAX}: delete topics (maxTopics bounds them)"
            )
        self._flagged = [
            name for name, topic in at.wrapper.topic_config_table.items() if topic.topic_sys_flag
        ]
        return Telling(_empty(at), b"".join(parts), compressed=True, whole=True)

    def _perm(self) -> int | None:
        """brokerPermission, if it lacks R or W: then every topic is told without them."""
        both = PERM_READ | PERM_WRITE
        return None if self._permission() & both == both else self._permission()


def _without_topics(topics: TopicTable) -> TableAt:
    """The present version alone."""
    return TableAt(0, TopicConfigWrapper(topics.data_version))


def _empty(at: TableAt) -> TableAt:
    """Where a table ends: kept for each nameserver, without the table."""
    return TableAt(at.mark, TopicConfigWrapper(at.wrapper.data_version))


def _of_no_table(version: DataVersion) -> DataVersion:
    """A version that no table has, for the counter belongs to one time only."""
    return DataVersion(version.counter, version.timestamp - 1)
