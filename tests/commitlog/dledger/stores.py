"""Stores for tests: small files, bodies that differ."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commitlog.disk.files import Files
from commitlog.dledger.entries import LogEntry
from commitlog.dledger.run import EntryRun
from commitlog.dledger.store import EntryStore, EntryStoreOptions, Stamp

# Written by DLedger 0.3.1.2: tests/compat/data/README.md.
STOCK = Path(__file__).parents[2] / "compat" / "data" / "dledger-0.3.1.2.tar.xz"
STOCK_BODIES = [b"first", b"", bytes(range(256)), b"x" * 700, b"last of file " * 20, b"end"]
STOCK_POSITIONS = [0, 53, 101, 1024, 2048, 2356]
FILE_BYTES = 1024
INDEX_FILE_BYTES = 320


def unpack_stock(directory: Path) -> Path:
    """The stock node's store; returns its directory."""
    with tarfile.open(STOCK) as archive:
        archive.extractall(directory, filter="data")
    return directory / "dledger-n0"


def open_entries(directory: Path, files: Files | None = None, **fields: Any) -> EntryStore:
    sizes = {"data_file_bytes": FILE_BYTES, "index_file_bytes": INDEX_FILE_BYTES, **fields}
    return EntryStore(EntryStoreOptions(directory, **sizes), files)


def body(number: int, size: int = 150) -> bytes:
    return (b"body %d " % number).ljust(size, bytes([1 + number % 250]))


def append(
    store: EntryStore, term: int, bodies: Sequence[bytes], stamp: Stamp | None = None
) -> list[LogEntry]:
    """As the leader of `term`."""
    return [entry for run in store.append(term, bodies, stamp) for entry in run]


def follow(store: EntryStore, *entries: LogEntry) -> None:
    """As a follower."""
    store.append_run(EntryRun.of(entries))


def fill(store: EntryStore, count: int, term: int = 1, size: int = 150) -> list[LogEntry]:
    """Appends so many entries, whose bodies name their index."""
    made: list[LogEntry] = []
    for _ in range(count):
        made += append(store, term, [body(store.end_index + 1, size)])
    return made


def all_entries(store: EntryStore) -> list[LogEntry]:
    """Every entry that the store has."""
    if store.end_index < 0:
        return []
    return [store.read(index) for index in range(store.begin_index, store.end_index + 1)]


def data_bytes(directory: Path, part: str = "data") -> bytes:
    """All files of data or index, one behind the other."""
    return b"".join(path.read_bytes() for path in sorted((directory / part).iterdir()))
