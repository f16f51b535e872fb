"""Messages and stores for tests: small, and the same in every run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from commitlog.disk.files import Files
from commitlog.kernel.records import NewMessage, StoredMessage, decode, encode_host, encode_properties
from commitlog.log.log import CommitLog
from commitlog.options import LogOptions

STORE_HOST = encode_host("192.168.1.9", 10911)
BORN_HOST = encode_host("10.1.2.3", 54321)
BORN_MS = 1_700_000_000_123
STORE_MS = 1_795_223_369_206
SEGMENT_BYTES = 4096


class Clock:
    """A wall clock in ms that moves when told to."""

    def __init__(self, now_ms: int = STORE_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def message(
    body: bytes = b"Hello RocketMQ", topic: str = "TopicTest", queue_id: int = 3, **fields: Any
) -> NewMessage:
    """A message; `properties` may be a dict."""
    properties = fields.pop("properties", {"TAGS": "TagA"})
    if isinstance(properties, dict):
        properties = encode_properties(properties)
    fields = {"flag": 7, "born_timestamp_ms": BORN_MS, "born_host": BORN_HOST, **fields}
    return NewMessage(topic, queue_id, body, properties, **fields)


def batch_body(bodies: Iterable[bytes], properties: bytes = b"", flag: int = 5) -> bytes:
    """What a client sends as the body of a batch."""
    elements = []
    for body in bodies:
        element = flag.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
        element += len(properties).to_bytes(2, "big") + properties
        elements.append((len(element) + 12).to_bytes(4, "big") + bytes(8) + element)
    return b"".join(elements)


def log_options(root: Path, **fields: Any) -> LogOptions:
    """Options with everything small."""
    small = {
        "segment_bytes": SEGMENT_BYTES,
        "queue_file_bytes": 2000,
        "index_slots": 100,
        "index_entries": 400,
    }
    return LogOptions(root=root, **{**small, **fields})


def open_log(
    root: Path, files: Files | None = None, clock_ms: Clock | None = None, **fields: Any
) -> CommitLog:
    """The log alone, as after a clean stop."""
    return CommitLog.open(
        log_options(root, **fields), store_host=STORE_HOST, clock_ms=clock_ms or Clock(), files=files
    )


def records_of(log: CommitLog) -> list[StoredMessage]:
    """Every message in the log, each with a sound body."""
    records = []
    offset = log.start
    while offset < log.end:
        head = log.read(offset, 8)
        if head[4:8] == b"\xcb\xd4\x31\x94":
            offset += int.from_bytes(head[:4], "big")
            continue
        record = decode(log.read_record(offset))
        assert record.crc_ok
        assert record.physical_offset == offset
        records.append(record)
        offset += record.size
    return records


def whole_log(log: CommitLog) -> bytes:
    """Every byte from start to end."""
    parts = []
    offset = log.start
    while data := log.read(offset, log.segment_bytes):
        parts.append(data)
        offset += len(data)
    return b"".join(parts)
