"""A store that a stock 4.9.8 broker wrote opens here, and what we rebuild from its log equals its files."""

from __future__ import annotations

import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.kernel.records import NewMessage, decode, decode_properties, encode_host
from commitlog.options import LogOptions
from commitlog.store import Store

pytestmark = pytest.mark.compat

DATA = Path(__file__).parent / "data"
STORE_HOST = encode_host("127.0.0.1", 21911)
SINGLE = {"killed": 400, "clean": 430}
BATCHED = {"killed": 100, "clean": 110}


@pytest.fixture(params=["killed", "clean"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path, kind: str) -> Path:
    with tarfile.open(DATA / f"stock-4.9.8-{kind}.tar.xz") as archive:
        archive.extractall(tmp_path / "store", filter="data")
    return tmp_path / "store"


def open_store(root: Path) -> Store:
    options = LogOptions(
        root=root, segment_bytes=65536, queue_file_bytes=2000, index_slots=100, index_entries=400
    )
    return Store.open(options, store_host=STORE_HOST)


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    opened = open_store(root)
    yield opened
    opened.close(clean=True)


def test_every_message_of_a_stock_store_is_there(store: Store, kind: str) -> None:
    counts: Counter[str] = Counter()
    for (topic, queue_id), queue in store.queues.items():
        for entry in queue.read(0, queue.max_offset):
            record = decode(store.log.read(entry.physical_offset, entry.size))
            assert (record.topic, record.queue_id) == (topic, queue_id)
            assert record.physical_offset == entry.physical_offset
            counts[topic] += 1
    assert sum(counts[f"T{n}"] for n in range(3)) == SINGLE[kind]
    assert counts["TB"] == BATCHED[kind]
    assert store.recovery.cut_bytes == 0


def test_keys_of_a_stock_store_are_found(store: Store) -> None:
    (offset,) = (
        offset
        for offset in store.index.query("T1", "k100", 32, 0, 2**62)
        if "k100" in decode_properties(decode(store.log.read_record(offset)).properties)["KEYS"].split()
    )
    assert decode(store.log.read_record(offset)).flag == 100


def test_queues_rebuilt_from_a_stock_log_equal_the_stock_queues(root: Path) -> None:
    stock = files_of(root / "consumequeue")
    assert len(stock) >= 13
    shutil.rmtree(root / "consumequeue")
    open_store(root).close(clean=True)
    assert files_of(root / "consumequeue") == stock


@pytest.mark.parametrize("kind", ["killed"], indirect=True)
def test_indexes_rebuilt_from_a_stock_log_equal_the_stock_indexes(root: Path) -> None:
    """Only for the store that ran once: a stock broker deletes its newest index after a crash."""
    stock = [content for _, content in sorted(files_of(root / "index").items())]
    assert len(stock) >= 4
    shutil.rmtree(root / "index")
    shutil.rmtree(root / "consumequeue")
    open_store(root).close(clean=True)
    ours = [content for _, content in sorted(files_of(root / "index").items())]
    assert ours == stock


def test_appending_goes_on_where_stock_left_off(store: Store) -> None:
    end, queue_offset = store.log.end, store.queues.get("T0", 0).max_offset
    appended = store.log.append(NewMessage("T0", 0, b"from here on", b"", born_host=STORE_HOST))
    assert appended.physical_offset == end
    assert appended.queue_offset == queue_offset
    while store.dispatcher.step():
        pass
    assert store.queues.get("T0", 0).max_offset == queue_offset + 1


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
