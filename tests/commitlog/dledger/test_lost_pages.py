"""Power cuts that leave any subset of what was not synced, on a disk in memory: pages, sectors, names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import commitlog.dledger.store
from commitlog.dledger.entries import LogEntry
from commitlog.dledger.layout import BLANK_BYTES, HEAD_BYTES
from commitlog.dledger.store import EntryStore, EntryStoreOptions
from commitlog.kernel.records import body_crc, encode, stamp
from tests.chaos.disk import MemoryDisk
from tests.chaos.disk_states import Loss
from tests.commitlog.dledger.stores import all_entries, follow
from tests.support.failing_files import Crash
from tests.support.messages import STORE_HOST, STORE_MS, message

NODE = Path("/node")
FILE_BYTES = 16384
SEEDS = 150


class NoLock:
    """Stands for the lock file, which belongs to the operating system."""

    def __init__(self, root: Path) -> None:
        pass

    def release(self) -> None:
        """Nothing was locked."""


@pytest.fixture(autouse=True)
def _no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog.dledger.store, "StoreLock", NoLock)


def open_on(disk: MemoryDisk) -> EntryStore:
    return EntryStore(EntryStoreOptions(NODE, (), FILE_BYTES, 1600, records=True), disk)


class Node:
    """A node that does random work, and knows what its log may be after a crash.

    `log`: the entries as they are, or would be after the call that is under way.  `proven`: how many of them
    were synced.  `before`: the log before a cut that has not returned; else None.
    """

    def __init__(self, chance: random.Random, disk: MemoryDisk, log: list[LogEntry], proven: int) -> None:
        self.chance = chance
        self.log = log
        self.proven = proven
        self.before: list[LogEntry] | None = None
        self.store = open_on(disk)

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.chance.choice((self.append, self.append, self.append, self.flush, self.cut, self.save))()

    def append(self) -> None:
        """As a follower of a stock leader, which computes no CRC, or as a leader."""
        store, chance = self.store, self.chance
        index = len(self.log)
        term = max(index // 7, self.log[-1].term if self.log else 0)
        record = encode(
            message(
                chance.randbytes(chance.randrange(3000)), properties={"KEYS": "k" * chance.randrange(900)}
            ),
            STORE_HOST,
        )
        size = HEAD_BYTES + len(record)
        end = self.log[-1].end if self.log else 0
        room = FILE_BYTES - end % FILE_BYTES
        position = end if size + BLANK_BYTES <= room else end + room
        stamp(record, index, position + HEAD_BYTES, STORE_MS + index)
        entry = LogEntry(index, term, position, bytes(record))
        if chance.random() < 0.5:
            self.log = [*self.log, entry]
            follow(store, entry)
        else:
            self.log = [*self.log, entry._replace(body_crc=body_crc(entry.body))]
            store.append(term, [record])

    def flush(self) -> None:
        self.store.flush()
        self.proven = len(self.log)

    def save(self) -> None:
        self.store.save_checkpoint()
        self.store.prepare_next_file()

    def cut(self) -> None:
        index = self.chance.randrange(max(0, len(self.log) - 5), len(self.log) + 1)
        self.before = self.log
        self.log = self.log[:index]
        self.proven = min(self.proven, index)
        self.store.truncate(index)
        # What is not cut may still be lost by a power cut, unless it was synced.
        self.before = None


@pytest.mark.parametrize("loss", list(Loss))
def test_nothing_synced_is_lost_and_nothing_torn_is_shown(loss: Loss) -> None:
    for seed in range(SEEDS):
        chance = random.Random(seed)
        disk, log, proven = MemoryDisk(), list[LogEntry](), 0
        for life in range(3):
            disk.crash_at(chance.randrange(1, 60))
            node = None
            try:
                node = Node(chance, disk, log, proven)
                node.work(40)
            except Crash:
                pass
            if node is not None:
                log, proven, before = node.log, node.proven, node.before
            else:
                before = None
            disk = disk.after_crash(loss, chance)
            store = open_on(disk)
            found = all_entries(store)
            # What a start found is what it syncs if nobody knew what was; else it is as durable as before.
            synced = store.flushed_index + 1
            store.close(clean=False)
            assert found == log[: len(found)] or (before is not None and found == before[: len(found)]), (
                seed,
                life,
            )
            assert len(found) >= proven, (seed, life, loss)
            log = found
            proven = max(proven, synced)
