"""A store of DLedger's entries goes from a stock node to ours and back, entry for entry.

And a stock broker with enableDLegerCommitLog: its log is read, also one that began as a classic one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from commitlog.dledger.entries import LogEntry
from commitlog.dledger.layout import HEAD_BYTES, NONE
from commitlog.dledger.reading import read_records
from commitlog.dledger.small import TermAndVote, TermFile
from commitlog.dledger.store import EntryStore, EntryStoreOptions
from commitlog.kernel.records import decode, offset_message_id, stamp
from haservice.devtools.pair import free_port_block
from tests.commitlog.dledger.stores import all_entries, append, follow
from tests.interop.dledger import ID, StockNode
from tests.interop.driver import JavaDriver, JavaError, Producer
from tests.interop.stock import broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.compat, pytest.mark.cluster, pytest.mark.interop, requires_stock, pytest.mark.timeout(180),
]  # fmt: skip

DATA_FILE_BYTES, INDEX_FILE_BYTES = 8192, 640
# Of a stock broker, which has no key for it.
INDEX_OF_STOCK = 32 * 5 * 1024 * 1024
SETTINGS = {
    "mappedFileSizeCommitLog": 128 * 1024,
    "mappedFileSizeConsumeQueue": 2000,
    "maxMessageSize": 65536,
}
TOPIC = "ChangesOver"


Directories = tuple[tuple[Path, ...], tuple[Path, ...]]
"""Those of entries, and those of them that are read only; none: the usual one."""


def stock_node(tmp_path: Path, directories: Directories = ((), ())) -> StockNode:
    return StockNode(
        tmp_path / "store",
        tmp_path / "home",
        data_file_bytes=DATA_FILE_BYTES,
        index_file_bytes=INDEX_FILE_BYTES,
        paths=[",".join(map(str, some)) for some in directories if some],
    )


def our_store(tmp_path: Path, directories: Directories = ((), ())) -> EntryStore:
    directory, (data, read_only) = tmp_path / "store" / f"dledger-{ID}", directories
    return EntryStore(
        EntryStoreOptions(directory, data, DATA_FILE_BYTES, INDEX_FILE_BYTES, read_only=read_only)
    )


def bodies(chance: random.Random, count: int) -> list[bytes]:
    return [chance.randbytes(chance.choice((0, 1, 40, 700, 3000))) for _ in range(count)]


def test_a_store_goes_from_a_stock_node_to_ours_and_back_and_both_append(tmp_path: Path) -> None:
    """After a kill of the stock node first, after its clean stop then."""
    chance = random.Random(5)
    made: list[LogEntry] = []
    for kill in (True, False):
        with stock_node(tmp_path) as node:
            ends = node.ends()
            assert (ends.begin_index, ends.end_index) == (0 if made else -1, len(made) - 1)
            assert [node.get(entry.index) for entry in made] == made
            for body in bodies(chance, 40):
                index, term, position = node.append(body)
                made.append(LogEntry(index, term, position, body))
            assert node.get(len(made) - 1) == made[-1]
            ends = node.ends()
            if not kill:
                node.stop()
        store = our_store(tmp_path)
        assert all_entries(store) == made
        currterm = TermFile(OSFiles(), tmp_path / "store" / f"dledger-{ID}" / "currterm", store.end_term)
        assert currterm.now == TermAndVote(ends.term, ID)
        currterm.save(currterm.now.term + 3, ID)
        made += append(store, currterm.now.term, bodies(chance, 45))
        store.truncate(len(made) - 5)
        del made[-5:]
        made += append(store, currterm.now.term, bodies(chance, 7))
        store.save_checkpoint(len(made) - 1)
        store.close(clean=not kill)
    with stock_node(tmp_path) as node:
        ends = node.ends()
        assert ends.end_index == len(made) - 1
        assert ends.term >= 6
        assert [node.get(entry.index) for entry in made] == made
        index, _, position = node.append(b"goes on")
        assert index == len(made)
        assert position >= made[-1].end


def test_files_that_are_spread_over_directories_go_from_ours_to_a_stock_node_and_back(tmp_path: Path) -> None:
    """Each makes the next file in the same directory; then one is read only, and one is added."""
    chance = random.Random(6)
    one, two, three, four = (tmp_path / f"disk{number}" for number in range(1, 5))
    made: list[LogEntry] = []
    turns: list[Directories] = [
        ((three, one, two), ()),
        ((one, two, three), ()),
        ((one, two, four), (two, three)),
    ]
    for directories in turns:
        store = our_store(tmp_path, directories)
        assert all_entries(store) == made
        for run in store.append(store.end_term if made else 0, bodies(chance, 45)):
            made += run
        store.save_checkpoint(len(made) - 1)
        store.close()
        with stock_node(tmp_path, directories) as node:
            assert [node.get(entry.index) for entry in made] == made
            for body in bodies(chance, 40):
                index, term, position = node.append(body)
                made.append(LogEntry(index, term, position, body))
            node.stop()
    store = our_store(tmp_path, turns[-1])
    assert all_entries(store) == made
    places = {
        int(path.name) // DATA_FILE_BYTES: path.parent
        for disk in (one, two, three, four)
        for path in disk.iterdir()
    }
    assert sorted(places) == list(range(len(places)))
    spread = [disk for number, disk in sorted(places.items())]
    first = spread.index(four)
    assert [places[number] for number in range(6)] == [one, two, three] * 2
    assert set(spread[first:]) == {one, four}
    store.close()


def test_a_stock_broker_that_changes_over_to_dledger_has_one_log_and_all_of_it_is_read(
    tmp_path: Path, java: JavaDriver
) -> None:
    """And what ours appends to its entries, the stock broker serves."""
    with servers() as start:
        namesrv = nameserver("ours", tmp_path)
        start(namesrv)
        sent: dict[int, bytes] = {}
        classic = broker("stock", tmp_path, namesrv=namesrv, **SETTINGS)
        start(classic)
        send(java.producer(namesrv.addr, "changes-over"), "classic", sent)
        java.close_clients()
        classic.stop()

        keys = {"enableDLegerCommitLog": "true", "dLegerGroup": "broker-a", "dLegerSelfId": ID}
        peers = f"{ID}-127.0.0.1:{free_port_block(1)}"
        changed = broker(
            "stock", tmp_path, namesrv=namesrv, port=classic.port, **SETTINGS, **keys, dLegerPeers=peers
        )
        start(changed)
        producer = java.producer(namesrv.addr, "changed-over")
        wait_until(lambda: is_sent(producer, "first"), "it leads", 40.0)
        send(producer, "entries", sent)
        java.close_clients()
        changed.stop()

        found = {one.offset: decode(bytes(one.record)).body for one in read_records(changed.root)}
        assert sent.items() <= found.items()
        data = changed.root / f"dledger-{ID}" / "data"
        divided = min(int(path.name) for path in data.iterdir())
        assert len([offset for offset in sent if offset < divided]) == len(sent) // 2
        assert list(found) == sorted(found)

        store = EntryStore(
            EntryStoreOptions(
                data.parent, (), SETTINGS["mappedFileSizeCommitLog"], INDEX_OF_STOCK, records=True
            )
        )
        entries = all_entries(store)
        assert {
            entry.position + HEAD_BYTES: decode(entry.body).body for entry in entries
        }.items() <= found.items()
        last = next(entry for entry in reversed(entries) if decode(entry.body).topic == TOPIC)
        again = decode(last.body)
        made = bytearray(last.body)
        stored_at: list[int] = []

        def place(record: bytearray, offset: int) -> None:
            stamp(record, again.queue_offset + 1, offset, again.store_timestamp_ms + 1)
            stored_at.append(offset)

        store.append(store.end_term, [made], place)
        store.close()

        start(changed)
        producer = java.producer(namesrv.addr, "asks")
        message_id = offset_message_id(again.store_host, stored_at[0])
        wait_until(lambda: is_seen(producer, message_id, again.body), "it serves what ours appended", 40.0)
        wait_until(lambda: is_sent(producer, "goes on"), "it goes on", 40.0)


def send(producer: Producer, name: str, sent: dict[int, bytes]) -> None:
    """Messages of several sizes; `sent` gets their physical offsets and bodies."""
    for number in range(60):
        text = f"{name} {number} " + "x" * (number * 211 % 3900)
        answer = producer.send(TOPIC, text, keys=f"{name}-{number}")
        assert answer["status"] == "SEND_OK"
        sent[int(str(answer["offsetMsgId"])[-16:], 16)] = text.encode()


def is_sent(producer: Producer, body: str) -> bool:
    try:
        return bool(producer.send(TOPIC, body)["status"] == "SEND_OK")
    except JavaError:
        return False


def is_seen(producer: Producer, message_id: str, body: bytes) -> bool:
    try:
        return producer.view(TOPIC, message_id).body == body
    except JavaError:
        return False


def test_a_log_that_began_late_opens_in_a_stock_node(tmp_path: Path) -> None:
    """Old files are gone, then all of them: it was begun anew where its leader's begins."""
    chance = random.Random(6)
    with stock_node(tmp_path) as node:
        for body in bodies(chance, 30):
            node.append(body)
    store = our_store(tmp_path)
    assert store.drop_oldest_file()
    kept = all_entries(store)
    store.close()
    with stock_node(tmp_path) as node:
        assert node.ends().begin_index == kept[0].index > 0
        assert [node.get(entry.index) for entry in kept] == kept
    store = our_store(tmp_path)
    assert all_entries(store) == kept
    store.reset(5000, 40 * DATA_FILE_BYTES)
    follow(store, LogEntry(5000, 3, 40 * DATA_FILE_BYTES, b"first"))
    TermFile(OSFiles(), tmp_path / "store" / f"dledger-{ID}" / "currterm", NONE).save(3, None)
    kept = [store.read(5000), *append(store, 3, bodies(chance, 30))]
    store.close()
    with stock_node(tmp_path) as node:
        assert (node.ends().begin_index, node.ends().end_index) == (5000, 5030)
        assert [node.get(entry.index) for entry in kept] == kept
        assert node.append(b"goes on")[0] == 5031
