"""Consumer offsets and queue offsets: the table, its file, and what clients are answered."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from haservice.broker.offsets import consumer_offsets
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.configuration.settings import BrokerRole
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.remoting.bodies.offset_text import SLICE_BYTES, SLICE_KEYS
from tests.support.failing_files import FailingFiles
from tests.support.reading_broker import Caller, ReadingBroker, messages
from tests.support.waiting import wait_until

Make = Callable[..., ReadingBroker]


def table(path: Path) -> ConsumerOffsets:
    offsets = ConsumerOffsets(PersistedFile(path / "config" / "consumerOffset.json"))
    offsets.load()
    return offsets


# The table and its file


def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    offsets.commit("G", "T", 0, 10)
    offsets.commit("G", "T", 1, 2**40)
    offsets.commit("G", "T", 0, 4)  # going back is allowed
    offsets.commit("G2", "%RETRY%G2", 0, 1)
    assert offsets.persist()
    assert not offsets.persist()
    again = table(tmp_path)
    assert again.table() == {"T@G": {0: 4, 1: 2**40}, "%RETRY%G2@G2": {0: 1}}
    assert again.query("G", "T", 1) == 2**40
    assert again.query("G", "T", 2) is None
    assert again.query("nobody", "T", 0) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{"T@G":{0:250,1:250}}}',
        '{\n\t"offsetTable":{\n\t\t"T@G":{0:250,1:250\n\t\t}\n\t}\n}',
        '{"dataVersion":{"counter":1},"offsetTable":{"T@G":{"0":250,"1":"250"}}}',
    ],
)
def test_files_of_a_stock_broker_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text(text)
    assert table(tmp_path).table() == {"T@G": {0: 250, 1: 250}}


def test_the_file_is_written_as_a_stock_broker_reads_it(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    offsets.commit("G", "T", 0, 250)
    offsets.persist()
    text = (tmp_path / "config" / "consumerOffset.json").read_text()
    assert "".join(text.split()) == '{"offsetTable":{"T@G":{0:250}}}'


def test_a_broken_file_gives_way_to_its_backup(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"T@G":{0:2')
    path.with_name(path.name + ".bak").write_text('{"offsetTable":{"T@G":{0:1}}}')
    assert table(tmp_path).table() == {"T@G": {0: 1}}
    path.with_name(path.name + ".bak").unlink()
    assert table(tmp_path).table() == {}


def test_topics_of_a_group_and_groups_of_a_topic_are_found_by_name(tmp_path: Path) -> None:
    """Whichever way offsets come and go: commits, a file, a master's table, a group that is removed."""
    offsets = table(tmp_path)
    for group, topic in (("G", "T"), ("G", "U"), ("H", "T"), ("H@odd", "T")):
        offsets.commit(group, topic, 0, 1)
        offsets.commit(group, topic, 1, 1)
    assert offsets.groups_of("T") == ["G", "H", "H@odd"]
    assert offsets.topics_of("G") == ["T", "U"]
    assert offsets.groups() == ["G", "H", "H@odd"]
    offsets.persist()
    offsets.remove_group("G")
    assert offsets.groups_of("T") == ["H", "H@odd"]
    assert offsets.groups_of("U") == offsets.topics_of("G") == []
    offsets.load()
    assert offsets.groups_of("U") == ["G"]
    offsets.merge(ConsumerOffsetWrapper({"T@G": {0: 1}, "V@N": {0: 1}, "U@G": {0: 1}}))
    offsets.merge(ConsumerOffsetWrapper({"T@G": {0: 1}, "V@N": {0: 1}}), continued=True)
    assert offsets.topics_of("N") == ["V"]
    assert offsets.topics_of("G") == ["T", "U"]  # queue 1, which the master never had, stays
    for key in offsets.table():
        topic, _, group = key.partition("@")
        assert group in offsets.groups_of(topic)
        assert topic in offsets.topics_of(group)


@pytest.mark.parametrize("keys", [["T", "T@"], ["T@", "T"]])
def test_keys_that_mean_the_same_names_do_no_harm(tmp_path: Path, keys: list[str]) -> None:
    (tmp_path / "config").mkdir()
    members = ",".join(f'"{key}":{{0:1}}' for key in keys)
    (tmp_path / "config" / "consumerOffset.json").write_text(f'{{"offsetTable":{{{members}}}}}')
    offsets = table(tmp_path)
    assert "" in offsets.groups_of("T")
    offsets.remove_group("")
    assert "T@" not in offsets.table()


def test_merging_keeps_the_larger_offset(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    offsets.commit("G", "T", 0, 10)
    offsets.commit("G", "T", 1, 10)
    offsets.commit("mine", "T", 0, 3)
    moved = offsets.merge(ConsumerOffsetWrapper({"T@G": {0: 5, 1: 15, 2: 1}, "U@H": {0: 0}}))
    assert moved == 3
    assert offsets.table() == {"T@G": {0: 10, 1: 15, 2: 1}, "T@mine": {0: 3}, "U@H": {0: 0}}


def test_offsets_made_on_another_store_are_told_of_once_with_the_worst(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = table(tmp_path)
    ends = {("Old", 0): 5, ("New", 0): 10}
    for topic, queue_id, offset in (("Old", 0, 5), ("New", 0, 9), ("Deleted", 0, 100)):
        offsets.commit("G", topic, queue_id, offset)
    offsets.warn_of_ends_passed(lambda *queue: ends.get(queue))
    assert not caplog.records
    offsets.commit("G", "Old", 0, 8)
    offsets.commit("H", "New", 0, 11)
    offsets.warn_of_ends_passed(lambda *queue: ends.get(queue))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.endswith("count=2 largest: topic@group=Old@G queue=0 offset=8 queue_end=5")


def test_offsets_of_lost_messages_are_set_to_their_queues_ends_and_told_by_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = table(tmp_path)
    ends = {("A", 0): 5, ("A", 1): 10, ("B", 0): 3}
    for group, topic, queue_id, offset in (
        ("G", "A", 0, 9),
        ("G", "B", 0, 4),
        ("G", "Deleted", 0, 100),
        ("H", "A", 1, 12),
        ("H", "A", 0, 5),
    ):
        offsets.commit(group, topic, queue_id, offset)
    before = offsets.close_changes()
    assert offsets.end_at_queues(lambda *queue: ends.get(queue)) == 3
    wanted = {"A@G": {0: 5}, "B@G": {0: 3}, "Deleted@G": {0: 100}, "A@H": {0: 5, 1: 10}}
    assert offsets.table() == wanted
    texts = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    ours = "group=G queues=2 messages=5 largest: topic=A queue=0 offset=9 queue_end=5"
    assert [text.partition("queues ")[2] for text in texts] == [
        ours,
        "group=H queues=1 messages=2 largest: topic=A queue=1 offset=12 queue_end=10",
    ]
    batches = offsets.changes_after(before)
    assert batches is not None
    assert sum(batch.queues for batch in batches) == 3, "slaves and the file hear of it"
    assert offsets.end_at_queues(lambda *queue: ends.get(queue)) == 0

    monkeypatch.setattr(consumer_offsets, "GROUPS_TOLD_MAX", 1)
    caplog.clear()
    offsets.end_at_queues(lambda *_: 1)
    assert caplog.messages[-1] == "further groups whose offsets were set back groups=1"


def test_offsets_are_bounded_and_known_queues_move_on(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(PersistedFile(tmp_path / "c.json"), text_bytes_max=100)
    assert offsets.commit("g", "T", 0, 1)
    assert offsets.commit("g", "T", 1, 1)
    assert not offsets.commit("g", "T", 2, 1)
    assert not offsets.commit("h", "T", 0, 1)
    assert offsets.commit("g", "T", 1, 5)
    assert offsets.table() == {"T@g": {0: 1, 1: 5}}
    assert offsets.full == (
        "no more offsets are kept, the 2 there are take 77 of maxConsumerOffsetBytes=100; "
        "commits refused so far: 2"
    )
    reason = str(offsets.refusal("h", "T", 0))
    assert "group h in queue 0 of topic T is not kept" in reason
    assert "maxConsumerOffsetBytes=100" in reason
    offsets.remove_group("g")
    assert offsets.full == ""
    assert offsets.commit("h", "T", 0, 1)
    assert offsets.commit("h", "T", 1, 1)
    assert not offsets.commit("h", "T", 2, 1)
    offsets.configure(1000)
    assert offsets.full == ""
    assert offsets.commit("h", "T", 2, 1)


def test_a_bound_below_what_is_kept_is_warned_of_at_once_and_at_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = ConsumerOffsets(PersistedFile(tmp_path / "c.json"))
    offsets.commit("g", "T", 0, 1)
    offsets.persist()
    assert not caplog.records
    offsets.configure(10)
    assert "more than maxConsumerOffsetBytes=10: commits to further queues are refused" in caplog.text
    caplog.clear()
    ConsumerOffsets(PersistedFile(tmp_path / "c.json"), text_bytes_max=10).load()
    assert "more than maxConsumerOffsetBytes=10" in caplog.text


class SlicedLock:
    """Counts how often it is taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()


LARGE = 40 * SLICE_KEYS


def large_table(path: Path) -> ConsumerOffsets:
    offsets = ConsumerOffsets(PersistedFile(path))
    offsets.merge(ConsumerOffsetWrapper({f"T{number}@G": {0: number} for number in range(LARGE)}))
    return offsets


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda offsets, _: offsets.encode(), id="for a slave"),
        pytest.param(lambda offsets, _: offsets.persist(), id="to its file"),
        pytest.param(lambda offsets, _: offsets.table(), id="copied"),
        pytest.param(lambda offsets, other: offsets.merge(other), id="merged"),
        pytest.param(lambda offsets, other: offsets.take_further(other.offset_table), id="handed back"),
    ],
)
def test_commits_come_in_between_while_a_large_table_is_gone_through(
    tmp_path: Path, act: Callable[[ConsumerOffsets, ConsumerOffsetWrapper], object]
) -> None:
    """500,000 offsets took most of a second, and every send stood behind the commit that waited for it."""
    offsets = large_table(tmp_path / "c.json")
    other = ConsumerOffsetWrapper({key: {0: 2**20} for key in offsets.table()})
    lock = SlicedLock()
    offsets._lock = lock  # type: ignore[assignment]
    act(offsets, other)
    assert lock.taken >= LARGE / SLICE_KEYS


def test_a_large_table_is_never_written_or_read_in_one_call_of_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a call holds the interpreter, and with it the loop and the replication, until it is done."""
    offsets = large_table(tmp_path / "c.json")
    sizes: list[int] = []

    def loads(text: bytes) -> Any:
        sizes.append(len(text))
        return orjson.loads(text)

    def dumps(value: Any, **options: Any) -> bytes:
        sizes.append(len(str(value)))
        return orjson.dumps(value, **options)

    class Counted:
        JSONDecodeError = orjson.JSONDecodeError

    Counted.loads, Counted.dumps = staticmethod(loads), staticmethod(dumps)  # type: ignore[attr-defined]
    monkeypatch.setattr("haservice.remoting.fastjson.orjson", Counted)
    monkeypatch.setattr("haservice.remoting.bodies.offset_text.orjson", Counted)
    text = offsets.encode()
    assert len(text) > 4 * SLICE_BYTES
    assert ConsumerOffsetWrapper.decode(text).offset_table == offsets.table()
    assert max(sizes) <= 2 * SLICE_BYTES


def test_as_many_offsets_as_are_kept_are_read_again_by_a_restart_and_by_a_slave(tmp_path: Path) -> None:
    """500,000 of as many groups would have taken more memory than any answer may, and a restart lost them."""
    count = 250_000
    offsets = ConsumerOffsets(PersistedFile(tmp_path / "c.json"))
    for number in range(count):
        offsets.commit(f"G{number}", "T", 0, number)
    assert offsets.persist()
    again = ConsumerOffsets(PersistedFile(tmp_path / "c.json"))
    again.load()
    assert len(again) == count
    assert again.table() == offsets.table()
    assert len(ConsumerOffsetWrapper.decode(offsets.encode()).offset_table) == count


def test_what_did_not_change_is_not_encoded_again_and_what_was_not_written_is_tried_again(
    tmp_path: Path,
) -> None:
    files = FailingFiles()
    offsets = ConsumerOffsets(PersistedFile(tmp_path / "c.json", files))
    offsets.commit("G", "T", 0, 1)
    files.fail("fdatasync", errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        offsets.persist()
    assert offsets.persist()
    reads = files.calls["pread"]
    assert not offsets.persist()
    assert files.calls["pread"] == reads


def test_names_as_long_as_there_are_bound_the_table_by_the_bytes_of_its_text(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(PersistedFile(tmp_path / "c.json"), text_bytes_max=100_000)
    kept = [offsets.commit(f"{number:0255}", "T" * 127, 0, 2**63 - 1) for number in range(400)]
    assert 200 < kept.count(True) < 300
    assert len(offsets.encode()) <= 100_000
    assert offsets.commit("CID_RMQ_SYS_TRANS", "T", 0, 1, in_any_case=True)
    offsets.remove_group(f"{0:0255}")
    offsets.remove_group(f"{1:0255}")
    assert offsets.commit(f"{0:0255}", "T" * 127, 0, 1)


def test_copies_are_whole_while_others_commit(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    stop = threading.Event()

    def commit() -> None:
        number = 0
        while not stop.is_set():
            offsets.commit(f"G{number % 500}", "T", number % 7, number)
            number += 1

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        for _ in range(200):
            offsets.table()
            offsets.encode()
    finally:
        stop.set()
        thread.join()


# As clients ask for them


def query(caller: Caller, group: str = "G", topic: str = "T", queue: Any = "0") -> int | None:
    answer = caller.call(14, {"consumerGroup": group, "topic": topic, "queueId": queue})
    assert answer.code in (0, 22)
    return int(answer.ext["offset"]) if answer.code == 0 else None


def update(caller: Caller, offset: Any, group: str = "G", topic: str = "T", queue: Any = "0") -> int:
    ext = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": offset}
    return caller.call(15, ext).code


@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE])
def test_an_updated_offset_is_what_a_query_gives(reading_broker: Make, role: BrokerRole) -> None:
    broker = reading_broker(role=role)
    caller = broker.caller()
    assert update(caller, "7") == 0
    assert query(caller) == 7
    assert update(caller, 5, queue=1) == 0  # numbers, as the C++ client sends them
    assert query(caller, queue=1) == 5
    assert update(caller, str(2**63 - 1), topic="Unknown", group="Unknown") == 0
    assert query(caller, topic="Unknown", group="Unknown") == 2**63 - 1


def test_a_oneway_update_counts_and_is_not_answered(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "9"}
    caller.oneway(15, ext)
    wait_until(lambda: broker.offsets.query("G", "T", 0) == 9, "offset is stored")
    assert query(caller) == 9


def test_a_new_group_may_start_at_0_while_all_of_the_queue_is_near(reading_broker: Make) -> None:
    broker = reading_broker(memory_bytes=3000)
    caller = broker.caller()
    assert query(caller, topic="Unknown") == 0
    assert query(caller) == 0
    broker.fill(3)
    assert query(caller) == 0
    broker.fill(50)
    assert query(caller) is None
    broker.fill(1, queue=1)
    assert query(caller, queue=1) == 0


def test_a_group_whose_queue_has_lost_its_beginning_chooses_itself(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(3)
    queue = broker.store.queues.get("T", 0)
    assert queue is not None
    queue.min_offset = 1
    assert query(broker.caller()) is None


def test_a_negative_offset_is_stored_but_no_answer(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    assert update(caller, "-1") == 0
    assert broker.offsets.query("G", "T", 0) == -1
    assert query(caller) == 0


@pytest.mark.parametrize(
    ("topic", "group"), [("", "G"), ("a@b", "G"), ("t" * 128, "G"), ("T", ""), ("T", "g" * 256)]
)
def test_names_that_cannot_be_kept_are_refused(reading_broker: Make, topic: str, group: str) -> None:
    assert update(reading_broker().caller(), "1", group, topic) == 1


def test_the_whole_table_goes_to_slaves(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    update(caller, "7")
    update(caller, "8", queue="3")
    answer = caller.call(43)
    assert (answer.code, bytes(answer.body)) == (0, b'{"offsetTable":{"T@G":{0:7,3:8}}}')
    assert ConsumerOffsetWrapper.decode(answer.body).offset_table == {"T@G": {0: 7, 3: 8}}


# Queues


def offset(caller: Caller, code: int, topic: str = "T", queue: int = 0, **ext: Any) -> int:
    answer = caller.call(code, {"topic": topic, "queueId": str(queue), **ext})
    assert answer.code == 0
    return int(answer.ext["timestamp" if code == 32 else "offset"])


def test_the_ends_of_a_queue(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    assert [offset(caller, code) for code in (30, 31)] == [0, 0]
    assert [offset(caller, code, topic="Unknown", queue=-7) for code in (30, 31)] == [0, 0]
    broker.fill(12)
    queue = broker.store.queues.get("T", 0)
    assert queue is not None
    queue.min_offset = 5
    assert [offset(caller, code) for code in (30, 31)] == [12, 5]


def test_the_oldest_message_says_when_it_was_stored(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    assert offset(caller, 32) == -1
    assert offset(caller, 32, topic="Unknown") == -1
    broker.fill(3)
    stored = messages(caller.pull(0))
    assert offset(caller, 32) == stored[0].store_timestamp_ms


def test_a_time_finds_the_nearest_message(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    assert offset(caller, 29, timestamp="0") == 0
    broker.fill(20)
    stored = [message.store_timestamp_ms for message in messages(caller.pull(0))]
    assert offset(caller, 29, timestamp="0") == 0
    assert offset(caller, 29, timestamp="-1") == 0
    assert offset(caller, 29, timestamp=str(2**62)) == 19
    found = offset(caller, 29, timestamp=str(stored[7]))
    assert stored[found] == stored[7]


@pytest.mark.parametrize("code", [14, 15, 29, 30, 31, 32])
def test_a_field_that_is_missing_or_no_number_is_named(reading_broker: Make, code: int) -> None:
    caller = reading_broker().caller()
    whole = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1", "timestamp": "1"}
    without = {name: value for name, value in whole.items() if name != "topic"}
    answer = caller.call(code, without)
    assert answer.code == 1
    assert "topic" in (answer.remark or "")
    answer = caller.call(code, {**whole, "queueId": "zero"})
    assert answer.code == 1
    assert "queueId" in (answer.remark or "")
    assert caller.call(code, whole).code in (0, 22)
