"""Looking up single messages, for people and their tools.

    33 VIEW_MESSAGE_BY_ID    the record at a physical offset, which an offset message id names
    12 QUERY_MESSAGE         records by key, newest first, from the index

The index has only hashes, and may be damaged: a record with another key is left out, and the index checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from commitlog.errors import CommitLogError
from commitlog.kernel.keys import KeyHasher, Put, has_key
from commitlog.kernel.records import parse_head
from haservice.broker.acl.message_rights import Caller, MessageRights
from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.clients import (
    QueryMessageHeader,
    QueryMessageResponseHeader,
    ViewMessageHeader,
)
from haservice.remoting.owed import Make

# The most that a tool gets; the answer has to fit a frame.
QUERY_MESSAGES_MAX = 64
QUERY_BYTES_MAX = 8 * 1024 * 1024
MENDING = "the index is damaged and being built again from the log: messages may be missing, ask again soon"
# Other keys of the same hash are looked at, too, and count for nothing: so many messages at most.
CANDIDATES_MAX = 8192
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class QueriedLog(Protocol):
    """What is read of a CommitLog."""

    def read_sound_record(self, offset: int) -> bytes: ...


class Index(Protocol):
    """What is asked of the index files."""

    def query(self, topic: str, key: str, count: int, begin_ms: int, end_ms: int, /) -> list[int]: ...


class QueryProcessor:
    """`make` has work threads do everything: only people ask, and old messages lie on the disk."""

    def __init__(
        self,
        log: QueriedLog,
        index: Index | None,
        make: Make,
        rights: MessageRights,
        default_query_max_num: int = 32,
        suspect: Callable[[str, str, int], None] = lambda topic, key, offset: None,
        mending: Callable[[], bool] = lambda: False,
        floor_of: Callable[[str], int] = lambda topic: 0,
    ) -> None:
        """`suspect` is called with a topic, a key, and an offset where the index wrongly names a message with
        this key.  `mending`: whether the index is known to be damaged, and will be mended.  `floor_of`: a topic's
        messages below it in the log were deleted with the topic; the index has them still.
        """
        self._suspect = suspect
        self._mending = mending
        self._floor_of = floor_of
        self._log = log
        self._index = index
        self._make = make
        self._rights = rights
        self._default_query_max_num = default_query_max_num

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.VIEW_MESSAGE_BY_ID: self.view, RequestCode.QUERY_MESSAGE: self.query}

    def configure(self, default_query_max_num: int) -> None:
        """Another bound, from the next query on."""
        self._default_query_max_num = default_query_max_num

    def view(self, connection: Connection, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        header = ViewMessageHeader.decode(command.ext)
        caller = self._rights.caller(connection, command)
        return asyncio.ensure_future(self._view(connection, command, header.offset, caller))

    async def _view(
        self, connection: Connection, command: RemotingCommand, offset: int, caller: Caller
    ) -> RemotingCommand:
        body: bytes | None = await self._make(connection, record_at, self._log, offset)
        if body is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"there is no message at offset {offset}, or a damaged one"
            )
        message = parse_head(body)
        assert message is not None, "it was found sound"
        self._rights.check_read(caller, message)
        if offset < self._floor_of(message.topic):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the message at offset {offset} is of topic {message.topic}, which was deleted",
            )
        return command.answer(body=body)

    def query(self, connection: Connection, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        header = QueryMessageHeader.decode(command.ext)
        unique = command.ext.get(UNIQUE_KEY_QUERY) == "true"
        count = self._default_query_max_num if unique else header.max_num
        count = max(0, min(count, QUERY_MESSAGES_MAX))
        return asyncio.ensure_future(self._query(connection, command, header, count))

    async def _query(
        self, connection: Connection, command: RemotingCommand, header: QueryMessageHeader, count: int
    ) -> RemotingCommand:
        offsets, body = await self._make(connection, self._find, header, count, size=QUERY_BYTES_MAX)
        mending = self._index is not None and self._mending()
        ext = QueryMessageResponseHeader(0, offsets[0] if offsets else 0, mending or None).encode()
        if not body:
            remark = f"no message of topic {header.topic} with this key in the given time"
            remark += f"; {MENDING}" if mending else ""
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark, ext)
        return command.answer(ResponseCode.SUCCESS, MENDING if mending else None, ext=ext, body=body)

    def _find(self, header: QueryMessageHeader, count: int) -> tuple[list[int], bytes]:
        if self._index is None or count == 0:
            return [], b""
        seen: list[int] = []
        records: list[bytes] = []
        size_bytes = 0
        for offset in self._candidates(header, count):
            seen.append(offset)
            record = record_at(self._log, offset)
            if record is None or not self._is_meant(record, header.topic, header.key, offset):
                if record is None:
                    self._suspect(header.topic, header.key, offset)
                continue
            size_bytes += len(record)
            if records and size_bytes > QUERY_BYTES_MAX:
                break
            records.append(record)
            if len(records) == count:
                break
        return seen, b"".join(records)

    def _candidates(self, header: QueryMessageHeader, count: int) -> Iterator[int]:
        """What the index names, newest first and each once.  Asks it for more while more are wanted."""
        assert self._index is not None
        seen: set[int] = set()
        floor = self._floor_of(header.topic)
        begin_ms, end_ms = header.begin_timestamp, header.end_timestamp
        while True:
            found = self._index.query(header.topic, header.key, count, begin_ms, end_ms)
            yield from (offset for offset in found if offset >= floor and offset not in seen)
            if len(found) < count or count == CANDIDATES_MAX:
                return
            seen.update(found)
            count = min(8 * count, CANDIDATES_MAX)

    def _is_meant(self, record: bytes, topic: str, key: str, offset: int) -> bool:
        """Whether the record has the key.  Without even a key of the same hash, the index is suspected."""
        head = parse_head(record)
        assert head is not None, "it was found sound"
        if head.topic == topic and has_key(head.properties, key.encode()):
            return True
        puts: list[Put] = []
        KeyHasher(head.topic).put(puts, b"\x02" + head.properties, offset, 0)
        if KeyHasher(topic).hash(key.encode()) not in {key_hash for key_hash, _, _ in puts}:
            self._suspect(topic, key, offset)
        return False


def record_at(log: QueriedLog, offset: int) -> bytes | None:
    """The record that begins at `offset`; None if none begins there, or a damaged one.

    A record states where it begins, so bytes in the middle of one never pass for a record.
    """
    if offset < 0:
        return None
    try:
        return log.read_sound_record(offset)
    except CommitLogError:
        return None
