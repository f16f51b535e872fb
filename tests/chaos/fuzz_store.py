"""Fuzz targets of everything that lies on disk: each file of a store, alone and in its place.

What may not happen: an error that is no CommitLogError, a file outside of the store, a second start that
finds something else than the first, or a refused start that has changed the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.errors import CommitLogError, CorruptRecord, StoreUnreadable
from commitlog.index.files import IndexFiles
from commitlog.index.index_file import file_bytes
from commitlog.kernel.records import check
from commitlog.log.log import CommitLog
from commitlog.log.segment import segment_name
from commitlog.log.segments import Segments
from commitlog.queues.consume_queue import ConsumeQueues
from commitlog.queues.queue_files import UNIT, UNIT_BYTES, valid_units
from commitlog.recovery.checkpoint import Checkpoint
from commitlog.recovery.recovery import recover
from commitlog.store import Store
from haservice.broker.groups import subscription_groups as groups
from haservice.errors import ConfigError
from haservice.nameserver import kv_config
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper, DelayOffsetWrapper, TopicConfigWrapper
from haservice.remoting.bodies.filters import ConsumerFilterWrapper
from haservice.replication.lineage.epochs import Epoch, Lineage
from haservice.replication.lineage.file import (
    LineageState,
    Replica,
    RoleCommand,
    decode_state,
    encode_state,
)
from tests.chaos.crash_stories import ROOT, options
from tests.chaos.disk import MemoryDisk, in_memory
from tests.chaos.fuzz import Target
from tests.chaos.fuzz_wire import log_bytes
from tests.support.messages import STORE_HOST, STORE_MS, Clock, log_options, message

SEGMENT_BYTES = 4096
LOG = ROOT / "commitlog"
QUEUES = ROOT / "consumequeue"
INDEX = ROOT / "index"
_SLOTS, _ENTRIES = 10, 40
_INDEX_BYTES = file_bytes(_SLOTS, _ENTRIES)
_SEGMENTS_MAX = 3
_STEPS_MAX = 100


def _disk_with_log(data: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    for start in range(0, min(max(len(data), 1), _SEGMENTS_MAX * SEGMENT_BYTES), SEGMENT_BYTES):
        piece = data[start : start + SEGMENT_BYTES]
        disk.put(LOG / segment_name(start), piece.ljust(SEGMENT_BYTES, b"\0"))
    return disk


# -- segments --------------------------------------------------------------------------------------


def _recovery(data: bytes) -> object:
    """First byte: a clean stop, CRCs, a replica, what the checkpoint covers; the rest is the log."""
    if not data:
        return None
    flags = data[0]
    how: dict[str, Any] = {
        "clean": bool(flags & 1),
        "crc": not flags & 2,
        "replica": bool(flags & 4),
        "durable_before_ms": STORE_MS + 3 if flags & 8 else 0,
        "safe_before_ms": STORE_MS + 3 if flags & 16 else 0,
    }
    disk = _disk_with_log(data[1:])
    before = disk.files(LOG)
    try:
        report = _recovered(disk, how)
    except StoreUnreadable:
        assert disk.files(LOG) == before, "a start that was refused has changed the log"
        return "refused", flags & 31
    assert 0 <= report.end <= _SEGMENTS_MAX * SEGMENT_BYTES
    after = b"".join(disk.files(LOG)[name] for name in sorted(before) if name in disk.files(LOG))
    whole = b"".join(before[name] for name in sorted(before))
    assert after[: report.end] == whole[: report.end], "what was kept is not what was there"
    assert not any(after[report.end :]), "there is something behind the end"
    again = _recovered(disk, how)
    assert again.cut_bytes == 0, "a second start cuts more"
    # A replica's next start cuts before a blank that nothing follows any more.
    if not (how["replica"] and report.end % SEGMENT_BYTES == 0):
        assert again.end == report.end, f"a second start ends at {again.end}, the first did at {report.end}"
    return flags & 31, min(report.records, 6), report.cut_bytes > 0, report.end // SEGMENT_BYTES


def _recovered(disk: MemoryDisk, how: dict[str, Any]) -> Any:
    segments = Segments(disk, LOG, SEGMENT_BYTES)
    segments.load()
    try:
        return recover(segments, cut_directory=ROOT / "cut", files=disk, **how)
    finally:
        segments.close()


def _recovery_seeds() -> list[bytes]:
    log = log_bytes(16)
    seeds = [bytes((flags,)) + log[:size] for flags in (0, 1, 4, 8, 16) for size in (len(log), 3000)]
    return [*seeds, b"\5" + log[:4090], b"\0"]


def _dispatch(data: bytes) -> object:
    """Replicated bytes, as a lying master may send them, into queues and index."""
    disk = MemoryDisk()
    log = CommitLog.open(log_options(ROOT, replica=True), store_host=STORE_HOST, clock_ms=Clock(), files=disk)
    data = data[: _SEGMENTS_MAX * SEGMENT_BYTES]
    for start in range(0, len(data), SEGMENT_BYTES):
        log.append_replica(start, [data[start : start + SEGMENT_BYTES]])
    queues = ConsumeQueues(QUEUES, 400, disk)
    queues.load()
    index = IndexFiles(INDEX, _SLOTS, _ENTRIES, disk, Clock())
    dispatcher = Dispatcher(log, queues, index, delay_levels="1s 5s")
    refused = False
    with in_memory():
        for _ in range(_STEPS_MAX):
            before = dispatcher.position
            try:
                if not dispatcher.step():
                    break
            except CorruptRecord:
                refused = True
                if dispatcher.position == before:
                    break
        else:
            raise AssertionError(f"{_STEPS_MAX} passes over {len(data)} bytes")
    assert dispatcher.position <= log.end
    _check_names(disk)
    for _, queue in queues.items():
        assert 0 <= queue.min_offset <= queue.max_offset
        for entry in queue.read(queue.min_offset, 1000):
            assert entry.blank or 0 <= entry.physical_offset < log.end
    return refused, min(len(queues.items()), 4), dispatcher.position // 500


def _check_names(disk: MemoryDisk) -> None:
    for name in disk.files():
        path = Path(name)
        assert path.is_relative_to(ROOT), f"{name} lies outside of the store"
        assert not {"..", "."} & set(path.parts), name
        assert "\0" not in name


def _dispatch_seeds() -> list[bytes]:
    log = log_bytes(14)
    return [log, log[:4000], log_bytes(5)[:-3], log_bytes(2)]


# -- queues, index, checkpoint ---------------------------------------------------------------------


def _queue_file(data: bytes) -> object:
    """First byte: how long files are; the rest is a queue's files, one behind the other."""
    if not data:
        return None
    size = (400, 100, 20, 2000)[data[0] % 4]
    disk = MemoryDisk()
    content = data[1:] if data[0] & 4 else data[1:].ljust(-(-max(1, len(data) - 1) // size) * size, b"\0")
    for start in range(0, min(len(content), 8 * size), size):
        disk.put(QUEUES / "T" / "0" / f"{start:020d}", content[start : start + size])
    queues = ConsumeQueues(QUEUES, size, disk)
    queues.load()
    queue = queues.find_or_create("T", 0)
    assert 0 <= queue.min_offset <= queue.max_offset
    entries = queue.read(queue.min_offset, 1 << 20)
    assert len(entries) == queue.max_offset - queue.min_offset
    few = len(content) <= 3 * size  # of more files, the first ones are trusted unseen
    assert not few or all(entry.size > 0 and entry.physical_offset >= 0 for entry in entries)
    end = queue.max_physical_offset
    queue.truncate(end // 2)
    assert queue.max_offset >= queue.min_offset
    queue.correct_min_offset(end // 3)
    queue.expire(end // 3)
    last, free = queue.max_offset, queue.known_physical_offset
    if free >= 1 << 62:
        return "no log is so long"
    assert queue.append(free, 100, 5, last)
    queue.write()
    assert queue.max_offset == last + 1
    assert queue.read(last, 1)[0][:2] == (free, 100)
    again = ConsumeQueues(QUEUES, size, disk)
    again.load()
    assert not few or again.find_or_create("T", 0).max_offset == last + 1
    return size, min(len(entries), 5), min(last, 5)


def _queue_seeds() -> list[bytes]:
    units = b"".join(UNIT.pack(number * 100, 100, number) for number in range(60))
    blanks = UNIT.pack(0, 0x7FFFFFFF, 0) * 7 + units[:400]
    return [b"\0" + units, b"\1" + units[:300], b"\2" + units[:100], b"\3" + blanks, b"\4" + units[:150]]


def _valid_units(data: bytes) -> object:
    count = valid_units(data)
    plain = 0
    for offset, size, _ in UNIT.iter_unpack(data[: len(data) - len(data) % UNIT_BYTES]):
        if offset < 0 or size <= 0:
            break
        plain += 1
    assert count == plain
    return min(count, 4)


def _index_file(data: bytes) -> object:
    """First byte: after a crash or not, what the checkpoint says; the rest is the file."""
    if not data:
        return None
    disk = MemoryDisk()
    content = data[1:] if data[0] & 4 else data[1 : 1 + _INDEX_BYTES].ljust(_INDEX_BYTES, b"\0")
    disk.put(INDEX / "20240101000000000", content)
    with in_memory():
        index = IndexFiles(INDEX, _SLOTS, _ENTRIES, disk, Clock())
        index.load(crashed=bool(data[0] & 1), checkpoint_ms=STORE_MS if data[0] & 2 else 0)
        kept = len(index.paths)
        index.truncate(5000)
        for number in range(3):
            index.query("T", f"k{number}", 64, 0, 2**62)
        for number in range(_ENTRIES + 3):
            index.put("T", f"new{number}", 100_000 + number, STORE_MS + number)
        index.write()
        for number in (0, 7, _ENTRIES + 2):
            found = index.query("T", f"new{number}", 100, 0, 2**62)
            assert len(found) <= 100
        assert index.query("T", f"new{_ENTRIES + 2}", 64, 0, 2**62), "the last key that was put leads nowhere"
        index.flush()
        index.expire(1 << 40)
    return kept, data[0] & 7, len(index.paths)


@lru_cache
def _index_content() -> bytes:
    disk = MemoryDisk()
    with in_memory():
        index = IndexFiles(INDEX, _SLOTS, _ENTRIES, disk, Clock())
        for number in range(25):
            index.put("T", f"k{number % 9}", number * 100, STORE_MS + number * 500)
        index.write()
    (content,) = disk.files(INDEX).values()
    return content


def _index_seeds() -> list[bytes]:
    content = _index_content()
    return [
        b"\0" + content,
        b"\3" + content,
        b"\1" + content,
        b"\4" + content[:500],
        b"\0" + bytes(_INDEX_BYTES),
    ]


def _checkpoint(data: bytes) -> object:
    disk = MemoryDisk()
    path = ROOT / "checkpoint"
    disk.put(path, data if len(data) % 3 else data[:4096].ljust(4096, b"\0"))
    checkpoint = Checkpoint(path, disk)
    assert checkpoint.min_timestamp_ms >= 0
    safe = checkpoint.min_timestamp_index_ms <= checkpoint.min_timestamp_ms
    assert safe
    checkpoint.physic_timestamp_ms = checkpoint.logics_timestamp_ms = STORE_MS
    checkpoint.save(sync=True)
    again = Checkpoint(path, disk)
    assert again.physic_timestamp_ms == STORE_MS
    return len(data) % 3 == 0, checkpoint.min_timestamp_ms > 0


def _checkpoint_seeds() -> list[bytes]:
    return [STORE_MS.to_bytes(8, "big") * 3, b"abc", bytes(24), b"\xff" * 24]


# -- a whole store ---------------------------------------------------------------------------------


@lru_cache
def _stores() -> tuple[tuple[tuple[str, bytes], ...], ...]:
    """The files of a store that was closed, and of one that was killed."""
    stores = []
    for clean in (True, False):
        disk = MemoryDisk()
        with in_memory():
            store = _open(disk)
            for number in range(14):
                keys = {"KEYS": f"k{number}", "TAGS": "t"}
                body = b"%d" % number * (number * 61 % 1100)
                store.log.append(message(body or b"-", queue_id=number % 2, properties=keys))
            while store.dispatcher.step():
                pass
            store.flusher.step()
            store.queue_flusher.flush(0, thorough=True)
            if clean:
                store.close()
        stores.append(tuple(sorted(disk.files(ROOT).items())))
    return tuple(stores)


def _open(disk: MemoryDisk) -> Store:
    chosen = options(segment_bytes=SEGMENT_BYTES, index_slots=_SLOTS, index_entries=_ENTRIES)
    return Store.open(chosen, store_host=STORE_HOST, clock_ms=Clock(STORE_MS + 60_000), files=disk)


def _store(data: bytes) -> object:
    """First byte: which store, which of its files has the rest as its content."""
    if not data:
        return None
    files = _stores()[data[0] & 1]
    victim = files[(data[0] >> 1) % len(files)][0]
    disk = MemoryDisk()
    for name, content in files:
        disk.put(Path(name), data[1:] if name == victim else content)
    kind = Path(victim).parent.name if Path(victim).parent != ROOT else Path(victim).name
    with in_memory():
        try:
            store = _open(disk)
        except CommitLogError as error:
            _check_names(disk)
            return kind, type(error)
        if store.log.damaged:
            return kind, "damaged"
        _check_scanned(store)
        placed = store.log.append(message(b"after it all"))
        store.dispatcher.step()
        assert store.log.read_record(placed.physical_offset)
        closed = store.close()
        again = _open(disk)
        assert again.log.end == placed.end, "what was appended after the start is there after the next one"
        assert again.recovery.clean == closed
        again.close(clean=False)
    return kind, closed


def _check_scanned(store: Store) -> None:
    """What the start looked at is whole records and blanks, up to the log's end."""
    log, at = store.log, store.recovery.scanned_from
    while at < log.end:
        room = SEGMENT_BYTES - at % SEGMENT_BYTES
        size = check(log.read(at, room))
        assert size > 0 or -size == room
        at += abs(size)
    assert at == log.end


def _store_seeds() -> list[bytes]:
    seeds = []
    for which, files in enumerate(_stores()):
        for number, (_, content) in enumerate(files):
            seeds.append(bytes((which | number << 1,)) + content)
    return seeds


# -- tables and lineage ----------------------------------------------------------------------------

_UNFIT = (ValueError, TypeError, KeyError)
_TABLES: tuple[tuple[Callable[[bytes], Any], bytes], ...] = (
    (
        TopicConfigWrapper.decode,
        b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"T":{"topicName":"T"}}}',
    ),
    (
        groups._decoded,
        b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":16}},"dataVersion":{}}',
    ),
    (ConsumerOffsetWrapper.decode, b'{"offsetTable":{"T@g":{0:5,1:7}}}'),
    (DelayOffsetWrapper.decode, b'{"offsetTable":{3:2202,4:1}}'),
    (
        ConsumerFilterWrapper.decode,
        b'{"filterDataByTopic":{"T":{"topic":"T","groupFilterData":{"g":{"expression":"a"}}}}}',
    ),
    (lambda content: kv_config._parse(content, "kvConfig.json"), b'{"configTable":{"n":{"k":"v"}}}'),
)


def _tables(data: bytes) -> object:
    """First byte: which table; what PersistedFile.load takes as unfit may be raised."""
    if not data:
        return None
    parse, _ = _TABLES[data[0] % len(_TABLES)]
    return data[0] % len(_TABLES), bool(parse(data[1:]))


def _table_seeds() -> list[bytes]:
    return [bytes((number,)) + content for number, (_, content) in enumerate(_TABLES)]


def _lineage_state(data: bytes) -> object:
    """First byte: as it is, or with the checksum that it should have."""
    if not data:
        return None
    content = data[1:]
    if data[0] & 1:
        body = content.partition(b"\n")[2].removesuffix(b"\n")
        content = b'{"crc32":%d}\n' % zlib.crc32(body) + body + b"\n"
    state = decode_state(content)
    again = decode_state(encode_state(state))
    assert again == state
    return data[0] & 1, len(state.lineage.epochs), len(state.replicas), state.command is None


def _state_seeds() -> list[bytes]:
    state = LineageState(
        "a" * 32,
        "boot",
        Lineage((Epoch(0, 0, ""), Epoch(1, 500, "a" * 32, 7, "why"))),
        "SYNC_MASTER",
        {"b" * 32: Replica("10.0.0.2:10911", 500, 9, True)},
        RoleCommand("SYNC_MASTER", 0, "SLAVE", 5, "told so"),
    )
    content = encode_state(state)
    return [b"\0" + content, b"\1" + content, b"\1" + encode_state(LineageState("c" * 32))]


_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94", b"../", b"\0")
_JSON = (b'"', b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"-1", b"1e400", b"{0:")

TARGETS = [
    Target("recovery", _recovery, _recovery_seeds, allowed=(StoreUnreadable,), tokens=_MAGICS, weight=0.15),
    Target("dispatch", _dispatch, _dispatch_seeds, allowed=(CorruptRecord,), tokens=_MAGICS, weight=0.1),
    Target("queue_file", _queue_file, _queue_seeds, allowed=(StoreUnreadable,), weight=0.15),
    Target("valid_units", _valid_units, _queue_seeds, weight=0.5),
    Target("index_file", _index_file, _index_seeds, allowed=(StoreUnreadable,), weight=0.15),
    Target("checkpoint", _checkpoint, _checkpoint_seeds, weight=0.3),
    Target("store", _store, _store_seeds, tokens=_MAGICS, weight=0.05),
    Target("tables", _tables, _table_seeds, allowed=(*_UNFIT, ConfigError), tokens=_JSON, weight=1.0),
    Target(
        "lineage_state",
        _lineage_state,
        _state_seeds,
        allowed=_UNFIT,
        tokens=(*_JSON, b'"epochs"'),
        weight=1.0,
    ),
]
