"""The body of a registration (103): the topics of a broker, plain or compressed, read and written in parts.

A table may have a hundred thousand topics.  Nobody reads or writes it in one step: that would stop a loop for as
long as it takes.  A part is about 64 KiB of text, half a millisecond of work.

    plain        JSON; a part is cut where one topic ends and the next begins, and parsed by itself
    compressed   zlib of length-prefixed parts: version, number of topics, a line per topic, filter servers

`order` and `topicSysFlag` are not in the compressed form.  Bounds: a frame, and for what a compressed body unfolds to
INFLATED_BYTES_MAX.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import orjson

from haservice.remoting.bodies.clients import NO_TOPICS, DataVersion, TopicConfig, TopicConfigWrapper
from haservice.remoting.fastjson import BodyUnreadable, dumps, loads
from haservice.remoting.json_body import JSONBody, named

INFLATED_BYTES_MAX = 64 * 1024 * 1024
# A plain body that cannot be cut into parts is parsed whole; each topic takes 512 bytes of a tree.
REGISTER_TREE_BYTES_MAX = 32 * 1024 * 1024
PART_BYTES = 64 * 1024
PART_TOPICS = 500

# Where the table begins, if within the first bytes, as all writers have it; and where a topic may end.
_TABLE = re.compile(rb'"topicConfigTable"\s*:\s*\{')
_HEAD_BYTES_MAX = 64 * 1024
_NEXT = re.compile(rb'\}\s*,\s*"')
# Put where the table begins, to see whether it is the one that is meant.  No topic is called so.
_MARKED = "\0"
_MARK = b'"\\u0000":null,'
# Places to try for one cut.  An object within a topic ends like a topic.
_TRIES = 32
_INPUT_BYTES = 16 * 1024

_INT32 = struct.Struct(">i")

Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody(JSONBody):
    """103, plain or compressed, in one piece."""

    TREE_BYTES_MAX: ClassVar[int] = REGISTER_TREE_BYTES_MAX

    topics: TopicConfigWrapper = field(default=NO_TOPICS, metadata=named("topicConfigSerializeWrapper"))
    filter_servers: Sequence[str] = field(default=(), metadata=named("filterServerList"))

    def encode_compressed(self, level: int = 9) -> bytes:
        deflater = zlib.compressobj(level)
        parts = [deflater.compress(part) for part in compressible_parts(self.topics, self.filter_servers)]
        return b"".join((*parts, deflater.flush()))

    @classmethod
    def decode_compressed(cls, data: bytes | memoryview) -> RegisterBrokerBody:
        reader = CompressedRegistration(data)
        table: dict[str, TopicConfig] = {}
        for part in reader.parts():
            table.update((name, TopicConfig.from_tree(tree)) for name, tree in part.items())
        return cls(TopicConfigWrapper(reader.version, table), reader.filter_servers)


def body_crc32(data: bytes | memoryview) -> int:
    """The checksum in a register request: CRC-32 of the body as sent, without Java's sign bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


# Writing


def plain_parts(topics: TopicConfigWrapper, perm: int | None = None) -> Iterator[bytes]:
    """The JSON of a RegisterBrokerBody without filter servers; with `perm`, of the topics' permissions only those."""
    mask = -1 if perm is None else perm
    empty = TopicConfigWrapper(topics.data_version, deleted_topics=topics.deleted_topics)
    # Names are quoted, so the first place of this text is the table's.
    before, _, after = RegisterBrokerBody(empty).encode().partition(b'"topicConfigTable":{}')
    yield before + b'"topicConfigTable":{'
    separator = b""
    for part in _batches(topics.topic_config_table):
        yield (
            separator
            + orjson.dumps({name: topic.tree() | {"perm": topic.perm & mask} for name, topic in part})[1:-1]
        )
        separator = b","
    yield b"}" + after


def compressible_parts(
    topics: TopicConfigWrapper, filter_servers: Sequence[str] = (), perm: int | None = None
) -> Iterator[bytes]:
    """What zlib compresses; `perm` as for plain_parts."""
    version = topics.data_version.encode()
    mask = -1 if perm is None else perm
    yield _INT32.pack(len(version)) + version + _INT32.pack(len(topics.topic_config_table))
    for part in _batches(topics.topic_config_table):
        yield b"".join([_line_of(topic, topic.perm & mask) for _, topic in part])
    filters = dumps(list(filter_servers))
    yield _INT32.pack(len(filters)) + filters


def _batches(table: Mapping[str, TopicConfig]) -> Iterator[list[tuple[str, TopicConfig]]]:
    items = iter(table.items())
    while part := list(islice(items, PART_TOPICS)):
        yield part


def _line_of(topic: TopicConfig, perm: int) -> bytes:
    line = (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {perm}"
        f" {topic.topic_filter_type}"
    ).encode()
    return _INT32.pack(len(line)) + line


# Reading


class PlainRegistration:
    """A plain body.  Making one reads all but the topics; raises BodyUnreadable.  `bare`: only the wrapper."""

    def __init__(self, data: bytes | memoryview, *, bare: bool = False) -> None:
        self._view = memoryview(data)
        self._bare = bare
        # What lies between: whole members of the table.
        self._begin = self._end = 0
        tree, self._last = self._edges()
        body = RegisterBrokerBody.from_tree({"topicConfigSerializeWrapper": tree} if bare else tree)
        self.version: DataVersion = body.topics.data_version
        self.deleted: Sequence[str] = body.topics.deleted_topics or ()
        self.filter_servers: Sequence[str] = body.filter_servers

    def parts(self) -> Iterator[Tree]:
        """The topics' trees by name, part by part; the last one of a name counts.  Raises BodyUnreadable."""
        try:
            yield from self._cut_parts()
        except BodyUnreadable:  # no topics where they seemed to be
            _, self._last = self._whole()
        yield from _tree_parts(self._last)

    def _cut_parts(self) -> Iterator[Tree]:
        begin = self._begin
        while begin < self._end:
            tree, begin = self._part(begin)
            yield tree

    def _part(self, begin: int) -> tuple[Tree, int]:
        """The part that begins there, and where the next one does."""
        cuts = [(self._end, self._end)]
        if self._end - begin > 2 * PART_BYTES:
            places = _NEXT.finditer(self._view, begin + PART_BYTES, self._end)
            cuts = [(match.start() + 1, match.end() - 1) for match in islice(places, _TRIES)]
        for end, following in cuts:
            text = b"".join((b"{", self._view[begin:end], b"}"))
            if b'"$ref"' in text:  # to somewhere in the whole text
                break
            try:
                return loads(text, dialect=False), following
            except BodyUnreadable:
                continue
        raise BodyUnreadable(f"no topic ends behind byte {begin}")

    def _edges(self) -> tuple[Tree, dict[str, Any]]:
        """The tree of the text without its table, and the last topics of that; the others lie between."""
        view = self._view
        table = _TABLE.search(view, 0, _HEAD_BYTES_MAX) if len(view) > 2 * PART_BYTES else None
        if table is None:
            return self._whole()
        head = view[: table.end()]
        for match in islice(_NEXT.finditer(view, max(table.end(), len(view) - PART_BYTES)), _TRIES):
            try:
                tree = _object(loads(b"".join((head, _MARK, view[match.end() - 1 :])), dialect=False))
                last = self._table_of(tree)
            except BodyUnreadable:
                continue
            if last.pop(_MARKED, _MARKED) is None:  # that was the table, and not one of its like
                self._begin, self._end = table.end(), match.start() + 1
                return tree, last
        return self._whole()

    def _whole(self) -> tuple[Tree, dict[str, Any]]:
        tree = _object(loads(self._view, dialect=False, tree_bytes_max=REGISTER_TREE_BYTES_MAX))
        return tree, self._table_of(tree)

    def _table_of(self, tree: Tree) -> dict[str, Any]:
        """Takes the table out of the tree."""
        wrapper = tree if self._bare else tree.get("topicConfigSerializeWrapper")
        if type(wrapper) is not dict:
            return {}
        table = wrapper.pop("topicConfigTable", None)
        return {} if table is None else _object(table)


class CompressedRegistration:
    """A compressed body.  Making one reads the version, `parts` the rest; both raise BodyUnreadable."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._unfolded = _Unfolded(data)
        self.version: DataVersion = DataVersion.decode(self._unfolded.take("data version"))
        self.deleted: Sequence[str] = ()
        # Known at the end of `parts`.
        self.filter_servers: Sequence[str] = ()

    def parts(self) -> Iterator[Tree]:
        """The topics' trees by name, part by part; the last one of a name counts."""
        left = self._unfolded.number("number of topics")
        while left:
            part = min(left, PART_TOPICS)
            left -= part
            yield dict(_topic_of_line(self._unfolded.take("topic")) for _ in range(part))
        filters = loads(self._unfolded.take("filter servers"), dialect=False)
        if type(filters) is not list or not all(type(server) is str for server in filters):
            raise BodyUnreadable("filter servers are no array of strings")
        self.filter_servers = tuple(filters)
        self._unfolded.finish()


def _object(tree: Any) -> dict[str, Any]:
    if type(tree) is not dict:
        raise BodyUnreadable(f"is a JSON {type(tree).__name__}, not an object")
    return tree


def _tree_parts(table: Tree) -> Iterator[Tree]:
    if len(table) <= PART_TOPICS:
        yield table
        return
    items = iter(table.items())
    while part := dict(islice(items, PART_TOPICS)):
        yield part


def _topic_of_line(line: bytes) -> tuple[str, dict[str, Any]]:
    words = line.decode(errors="replace").split(" ")
    if len(words) != 5:
        raise BodyUnreadable(f"a topic has {len(words)} words, not 5: {line[:80]!r}")
    try:
        read, write, perm = int(words[1]), int(words[2]), int(words[3])
    except ValueError:
        raise BodyUnreadable(f"a topic has numbers that are none: {line[:80]!r}") from None
    return words[0], {
        "perm": perm,
        "readQueueNums": read,
        "topicFilterType": words[4],
        "topicName": words[0],
        "writeQueueNums": write,
    }


class _Unfolded:
    """Length-prefixed parts of a compressed text, in order; as much is unfolded as is asked for."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._taken = 0
        self._inflater = zlib.decompressobj()
        self._buffer = b""
        self._position = 0
        self._total = 0

    def number(self, what: str) -> int:
        (number,) = _INT32.unpack(self._bytes(4, what))
        if not 0 <= number <= INFLATED_BYTES_MAX:
            raise BodyUnreadable(f"{what} announces {number}")
        return int(number)

    def take(self, what: str) -> bytes:
        return self._bytes(self.number(what), what)

    def finish(self) -> None:
        while self._more():
            pass

    def _bytes(self, size: int, what: str) -> bytes:
        if len(self._buffer) - self._position < size:
            pieces = [self._buffer[self._position :]]
            left = size - len(pieces[0])
            while left > 0:
                more = self._more()
                if not more:
                    raise BodyUnreadable(f"the body ends before the {what}, {left} bytes are missing")
                pieces.append(more)
                left -= len(more)
            self._buffer, self._position = b"".join(pieces), 0
        begin, self._position = self._position, self._position + size
        return self._buffer[begin : self._position]

    def _more(self) -> bytes:
        """The next bytes; b"" at the end."""
        inflater, more = self._inflater, b""
        while not more and not inflater.eof:
            some = inflater.unconsumed_tail or self._data[self._taken : self._taken + _INPUT_BYTES]
            if not inflater.unconsumed_tail:
                self._taken += len(some)
            try:
                more = inflater.decompress(some, PART_BYTES)
            except zlib.error as error:
                raise BodyUnreadable(f"{len(self._data)} bytes are not compressed: {error}") from None
            if not more and not len(some) and not inflater.eof:
                raise BodyUnreadable(f"the compressed body ends early, after {len(self._data)} bytes")
        self._total += len(more)
        if self._total > INFLATED_BYTES_MAX:
            raise BodyUnreadable(f"{len(self._data)} bytes unfold to more than {INFLATED_BYTES_MAX}")
        return more
