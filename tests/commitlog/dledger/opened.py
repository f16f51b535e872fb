"""A broker's store over the entries of one member, which agrees with itself at once, or when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from commitlog.dledger.changing_over import change_over
from commitlog.dledger.log import stamp_place
from commitlog.dledger.majority import MajorityStore
from commitlog.dledger.store import EntryStore, EntryStoreOptions
from commitlog.kernel.records import decode, encode_host
from commitlog.log.writable_log import wall_clock_ms
from commitlog.options import LogOptions
from tests.commitlog.dledger.stores import append

HOST = encode_host("127.0.0.1", 10911)
FILE_BYTES = 4096


class OneMember:
    """An EntryAppender that is the whole group.  It commits when it is told to."""

    def __init__(self, store: EntryStore) -> None:
        self.store = store
        self.refused: str | None = None
        self.kept_back: str | None = None

    def place(self, bodies: Sequence[bytes]) -> Sequence[int]:
        return [entry.position for entry in append(self.store, 1, bodies, stamp_place)]

    @property
    def end(self) -> int:
        return self.store.end

    def place_of(self, entry_bytes: int) -> tuple[int, int]:
        return self.store.place_of(entry_bytes)

    def place_spaced(self, data: memoryview, position: int) -> None:
        self.store.append_spaced(1, data, position)

    def refuse(self, reason: str | None) -> None:
        self.kept_back = reason


class Opened:
    """A broker's store over the entries of one member, below `root`."""

    def __init__(
        self,
        root: Path,
        committed_index: int | None = None,
        options: LogOptions | None = None,
        *,
        store_host: bytes = HOST,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.options = options if options is not None else options_of(root)
        start = change_over(self.options, [root / "dledger-n0" / "data"], store_host=store_host)
        self.entries = EntryStore(
            EntryStoreOptions(
                root / "dledger-n0", (), self.options.segment_bytes, 3200, start=start, records=True
            )
        )
        self.member = OneMember(self.entries)
        committed = self.entries.end_index if committed_index is None else committed_index
        self.store = MajorityStore(
            self.options, self.entries, self.member, committed, store_host=store_host, clock_ms=clock_ms
        )
        self.log = self.store.log

    def commit(self, index: int | None = None) -> None:
        self.log.committed_to(self.entries.end_of(self.entries.end_index if index is None else index))
        self.store.dispatcher.catch_up()

    def queue(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """The bodies of a queue, by its entries."""
        queue = self.store.queues.get(topic, queue_id)
        if queue is None:
            return []
        entries = queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
        return [decode(self.log.read_record(entry.physical_offset)).body for entry in entries]

    def close(self, *, clean: bool = True) -> None:
        self.store.close(clean)
        self.entries.close(clean=clean)


def options_of(root: Path) -> LogOptions:
    return LogOptions(
        root=root,
        segment_bytes=FILE_BYTES,
        queue_file_bytes=2000,
        index_slots=100,
        index_entries=400,
        max_message_bytes=2000,
    )
