"""A deleted topic stays deleted: floors, queues that begin there, starts that dispatch the log again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from commitlog.kernel.records import decode
from commitlog.queues.consume_queue import ConsumeQueues
from commitlog.queues.topic_floors import (
    FILE,
    FLOORS_MAX,
    TopicFloors,
    decode_floors,
    encode_floors,
    lowered,
    merged,
)
from commitlog.store import Store
from tests.support.messages import STORE_HOST, Clock, log_options, message


def open_store(root: Path, **fields: object) -> Store:
    return Store.open(log_options(root, **fields), store_host=STORE_HOST, clock_ms=Clock())


def dispatch(store: Store) -> None:
    while store.dispatcher.step():
        pass


def delete(store: Store, topic: str = "TopicTest") -> int:
    dispatch(store)
    floor = store.log.end
    with store.dispatcher.at_work:
        store.queues.forget_topics({topic: floor}, store.log.start)
    return floor


def bodies(store: Store, topic: str = "TopicTest") -> list[bytes]:
    """What a new group finds in the topic's queue."""
    dispatch(store)
    queue = store.queues.get(topic, 3)
    if queue is None:
        return []
    entries = queue.read(queue.min_offset, 1000)
    return [body_of(store, entry.physical_offset) for entry in entries if not entry.blank]


def body_of(store: Store, offset: int) -> bytes:
    return decode(store.log.read_record(offset)).body


def put(store: Store, *texts: bytes, topic: str = "TopicTest") -> None:
    for text in texts:
        store.log.append(message(text, topic=topic))
    dispatch(store)


def put_as_replica(store: Store, master: Path, *texts: bytes) -> None:
    source = open_store(master)
    put(source, *texts)
    store.log.append_replica(store.log.end, [source.log.read(store.log.end, 1 << 20)])
    dispatch(store)
    source.close()


def test_floors_are_merged_lowered_and_bounded() -> None:
    assert merged({"A": 5, "B": 9}, {"A": 7, "B": 8, "C": 3}, 3) == {"A": 7, "B": 9}
    assert lowered({"A": 5, "B": 9}, 7) == {"A": 5, "B": 7}
    many = {f"t{number}": number for number in range(1, FLOORS_MAX + 3)}
    kept = merged({}, many, 0)
    assert len(kept) == FLOORS_MAX
    assert min(kept.values()) == 3


def test_the_file_is_read_as_it_was_written_and_damage_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = {"%RETRY%g": 1 << 61, "T": 7}
    assert decode_floors(encode_floors(table)) == table
    floors = TopicFloors(tmp_path / FILE, OSFiles())
    assert floors.merge(table, 0) == ["T", "%RETRY%g"]
    assert floors.merge({"T": 6}, 0) == []
    again = TopicFloors(tmp_path / FILE, OSFiles())
    again.load()
    assert again.table() == table
    (tmp_path / FILE).write_bytes(b"no floor\n")
    again.load()
    assert "list of deleted topics not read" in caplog.text


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_start_does_not_bring_back_a_deleted_topic_that_was_the_last_of_the_log(
    tmp_path: Path, clean: bool
) -> None:
    store = open_store(tmp_path)
    put(store, b"other", topic="Other")
    put(store, *[b"old%d" % number for number in range(20)])
    delete(store)
    store.close(clean=clean)
    store = open_store(tmp_path)
    assert bodies(store) == []
    queue = store.queues.get("TopicTest", 3)
    assert queue is None or queue.is_deleted
    assert bodies(store, "Other") == [b"other"]
    assert list((tmp_path / "consumequeue" / "TopicTest" / "3").glob("*")) == []
    store.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_topic_made_again_has_its_new_messages_only(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    put(store, *[b"old%d" % number for number in range(20)])
    delete(store)
    put(store, b"new")
    assert bodies(store) == [b"new"]
    store.close(clean=clean)
    store = open_store(tmp_path)
    assert bodies(store) == [b"new"]
    # The scrub looks over queues, and completes them from the log: not with these.
    store.scrub.also_look_over(threading.Event())
    put(store, b"newer")
    assert bodies(store) == [b"new", b"newer"]
    store.close()


def test_the_scrub_walks_the_log_for_no_entry_of_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, scrub_bytes_per_s=1 << 40)
    put(store, *[b"old%d" % number for number in range(20)])
    floor = store.log.end
    put(store, b"new")
    with store.dispatcher.at_work:
        store.queues.forget_topics({"TopicTest": floor}, 0)
    walks: list[int] = []
    monkeypatch.setattr(store.mender, "mend", lambda topic, queue_id, number: walks.append(number))
    store.scrub.also_look_over(threading.Event())
    assert walks == []
    assert bodies(store) == [b"new"]
    store.close()


def test_a_start_forgets_floors_of_which_the_log_has_nothing(tmp_path: Path) -> None:
    def opened() -> ConsumeQueues:
        return ConsumeQueues(tmp_path / "consumequeue", 2000, OSFiles())

    queues = opened()
    queues.floors.merge({"T": 100, "U": 200}, 0)
    for topic, place in (("T", 50), ("U", 250)):
        queue = queues.find_or_create(topic, 0)
        queue.append(place, 10, 0, 0)
        queue.write()
    queues.close()
    queues = opened()
    queues.load(150)
    # The queue of the one was left by a process that died; without its floor it would pass for a topic's.
    assert [key for key, _ in queues.items()] == [("U", 0)]
    assert queues.floors.table() == {"U": 200}
    queues.close()


def test_a_slave_removes_queues_and_says_of_no_topic_that_it_is_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path, replica=True)
    put_as_replica(store, tmp_path / "m", b"old")
    end = store.log.end
    with store.dispatcher.at_work:
        store.queues.drop_queues({"TopicTest": end - 1})
        assert store.queues.get("TopicTest", 3) is not None
        store.queues.drop_queues({"TopicTest": end})
    assert (store.queues.items(), store.queues.floors.table()) == ([], {})
    store.close()


def test_a_start_finishes_what_a_process_left_undone(tmp_path: Path) -> None:
    """It died behind the floor and before the queues."""
    store = open_store(tmp_path)
    put(store, b"old")
    store.queues.floors.merge({"TopicTest": store.log.end}, 0)
    store.close(clean=False)
    store = open_store(tmp_path)
    assert bodies(store) == []
    store.close()


def test_a_replica_that_hears_of_it_later_has_the_same(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s", replica=True)

    def copy() -> None:
        while slave.log.end < master.log.end:
            slave.log.append_replica(slave.log.end, [master.log.read(slave.log.end, 1 << 20)])
        dispatch(slave)

    put(master, b"old1", b"old2")
    copy()
    put(master, b"old3")
    floor = delete(master)
    put(master, b"new")
    # Before its log has all that was deleted, and with a message of the new topic behind it.
    with slave.dispatcher.at_work:
        slave.queues.forget_topics({"TopicTest": floor}, 0)
    assert bodies(slave) == []
    copy()
    assert bodies(slave) == bodies(master) == [b"new"]
    put(master, b"newer")
    copy()
    floor = delete(master)
    put(master, b"newest")
    copy()
    assert bodies(slave) == [b"new", b"newer", b"newest"]
    with slave.dispatcher.at_work:
        slave.queues.forget_topics({"TopicTest": floor}, 0)
    assert bodies(slave) == bodies(master) == [b"newest"]
    for store in (master, slave):
        store.close()
    assert bodies(open_store(tmp_path / "s", replica=True)) == [b"newest"]


def test_what_comes_behind_a_cut_is_not_what_was_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"kept", topic="Other")
    cut = store.log.end
    put(store, b"old", b"old", b"old")
    delete(store)
    store.rewind(cut)
    put(store, b"new")
    assert bodies(store) == [b"new"]
    store.close()
    store = open_store(tmp_path)
    assert bodies(store) == [b"new"]
    store.close()


def test_a_store_that_is_emptied_has_no_deleted_topics(tmp_path: Path) -> None:
    store = open_store(tmp_path, replica=True)
    floors = {"TopicTest": 1 << 40}
    store.queues.forget_topics(floors, 0)
    store.restart_at(0)
    assert store.queues.floors.table() == {}
    assert not (tmp_path / FILE).exists()
    store.close()


def test_without_a_floor_a_directory_is_a_topic(tmp_path: Path) -> None:
    """A store of RocketMQ, which writes down nothing of a deleted topic."""
    store = open_store(tmp_path)
    put(store, b"old")
    store.queues.delete_topic("TopicTest")
    store.close()
    store = open_store(tmp_path)
    assert bodies(store) == [b"old"]
    store.close()
