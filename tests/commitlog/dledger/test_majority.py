"""MajorityLog and MajorityStore: a broker's log over entries; the member below is one that agrees at once, or later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from commitlog.dledger.entries import LogEntry
from commitlog.dledger.layout import HEAD_BYTES
from commitlog.dledger.log import FIRST_TOPIC, first_body, stamp_place
from commitlog.errors import CommitLogError, LogNotWritable, MessageBeyondLimits, OffsetNotFound
from commitlog.kernel.layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_PREPARED
from commitlog.kernel.records import NewMessage, decode
from commitlog.log.log import Appended
from commitlog.store import Store
from tests.commitlog.dledger.opened import FILE_BYTES, HOST, Opened, options_of
from tests.commitlog.dledger.stores import follow
from tests.support.messages import batch_body


def message(body: bytes, topic: str = "T", **fields: int) -> NewMessage:
    return NewMessage(topic, 0, body, b"KEYS\x01k%s\x02" % body[:4], **fields)


def placed(outcomes: Sequence[Appended | CommitLogError]) -> list[Appended]:
    assert all(isinstance(one, Appended) for one in outcomes)
    return [one for one in outcomes if isinstance(one, Appended)]


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%04d " % number + b"x" * (number * 37 % 300) for number in range(first, last)]


def test_a_message_is_an_entry_and_states_the_place_behind_its_head(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    some = placed(opened.log.append_many([message(body) for body in bodies(0, 40)]))
    assert [one.queue_offset for one in some] == list(range(40))
    for index, one in enumerate(some):
        entry = opened.entries.read(index)
        record = decode(entry.body)
        assert entry.position + HEAD_BYTES == record.physical_offset == one.physical_offset
        assert (record.queue_offset, record.body) == (index, bodies(index, index + 1)[0])
        assert one.end == one.physical_offset + len(entry.body)
    assert len(opened.entries.data.segments.items) > 1
    opened.close()


def test_queues_and_index_have_what_is_committed_and_no_more(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.log.append_many([message(body) for body in bodies(0, 30)])
    assert opened.log.end == 0
    assert opened.queue() == []
    opened.commit(9)
    assert opened.queue() == bodies(0, 10)
    opened.commit(28)
    opened.commit()
    assert opened.queue() == bodies(0, 30)
    assert opened.store.dispatcher.behind == 0
    (found,) = opened.store.index.query("T", "k0017", 10, 0, 1 << 62)
    assert decode(opened.log.read_record(found)).body == bodies(17, 18)[0]
    opened.close()


def test_entries_without_a_message_are_passed_over(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    for number, body in enumerate(bodies(0, 12)):
        opened.entries.append(
            1, [b"", first_body(HOST), b"no record of any kind"][number % 3 :][:1], stamp_place
        )
        opened.log.append(message(body))
    opened.commit()
    assert opened.queue() == bodies(0, 12)
    assert opened.store.queues.get(FIRST_TOPIC, 0) is None
    opened.close()


def test_the_first_entry_says_when_it_was_stored_and_where(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.entries.append(1, [first_body(HOST)], stamp_place)
    record = decode(opened.entries.read(0).body)
    assert (record.topic, record.physical_offset) == (FIRST_TOPIC, HEAD_BYTES)
    assert record.store_timestamp_ms > 0
    opened.close()


def test_a_batch_takes_an_entry_for_each_message_and_halves_take_no_place_in_a_queue(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.log.append(message(b"before"))
    batch = opened.log.append_batch(NewMessage("T", 0, batch_body([b"one", b"two", b"three"])))
    assert (batch.queue_offset, batch.count) == (1, 3)
    half = opened.log.append(message(b"half", sys_flag=SYS_TRANSACTION_PREPARED))
    whole = opened.log.append(message(b"whole", sys_flag=SYS_TRANSACTION_COMMIT))
    assert (half.queue_offset, whole.queue_offset) == (0, 4)
    opened.commit()
    assert opened.queue() == [b"before", b"one", b"two", b"three", b"whole"]
    assert [decode(opened.log.read_record(at)).body for at in batch.offsets] == [b"one", b"two", b"three"]
    opened.close()


def test_what_is_refused_takes_no_place(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    large, small = opened.log.append_many([message(b"x" * 2001), message(b"small")])
    assert isinstance(large, MessageBeyondLimits)
    assert isinstance(small, Appended)
    opened.member.refused = "another member leads"
    (refused,) = opened.log.append_many([message(b"late")])
    assert isinstance(refused, LogNotWritable)
    assert opened.log.writable == "another member leads"
    opened.member.refused = None
    opened.log.hold_appends("the disk is nearly full", "disk")
    assert opened.member.kept_back == "the disk is nearly full"
    with pytest.raises(LogNotWritable, match="nearly full"):
        opened.log.append(message(b"late"))
    opened.log.hold_appends(None, "disk")
    assert opened.member.kept_back is None
    assert opened.log.append(message(b"last")).queue_offset == 1
    opened.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_serves_what_is_known_to_be_committed(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Opened(tmp_path)
    opened.log.append_many([message(body) for body in bodies(0, 50)])
    opened.commit(19)
    opened.store.queue_flusher.flush(0, thorough=True)
    opened.commit(39)
    opened.close(clean=clean)
    again = Opened(tmp_path, committed_index=29)
    assert again.queue() == bodies(0, 30)
    again.commit()
    assert again.queue() == bodies(0, 50)
    assert again.store.recovery.scanned_from > 0 or not clean
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
    again.close()


def test_a_new_leader_goes_on_with_the_numbers_of_its_queues(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.log.append_many([message(body) for body in bodies(0, 20)])
    opened.commit()
    opened.close()
    again = Opened(tmp_path)
    assert again.log.append(message(b"next")).queue_offset == 20
    again.close()


def test_a_classic_log_stays_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    classic = Store.open(options_of(tmp_path), store_host=HOST)
    classic.log.append_many([message(body) for body in bodies(0, 25)])
    end = classic.log.end
    classic.close()
    opened = Opened(tmp_path)
    assert f" records_end={end} " in caplog.text
    assert opened.entries.data.start % FILE_BYTES == 0
    assert opened.entries.data.end == len(list((tmp_path / "commitlog").iterdir())) * FILE_BYTES
    opened.log.append_many([message(body) for body in bodies(25, 50)])
    opened.commit()
    assert opened.queue() == bodies(0, 50)
    opened.close()
    again = Opened(tmp_path)
    assert again.queue() == bodies(0, 50)
    while (gone := again.log.segments.drop_oldest()) is not None:
        assert gone.end == again.log.start
    again.entries.expire(again.log.start)
    assert not list((tmp_path / "commitlog").iterdir())
    assert again.log.start == again.entries.data.start
    again.close()
    assert len(Opened(tmp_path).queue()) < 50


def test_a_classic_log_that_is_empty_leaves_nothing_behind(tmp_path: Path) -> None:
    Store.open(options_of(tmp_path), store_host=HOST).close()
    opened = Opened(tmp_path)
    assert opened.log.append(message(b"first")).physical_offset == opened.entries.data.start + HEAD_BYTES
    opened.close()


def test_a_log_that_began_anew_further_behind_hides_the_classic_one(tmp_path: Path) -> None:
    """As a follower's does that lacks what its leader has dropped."""
    classic = Store.open(options_of(tmp_path), store_host=HOST)
    classic.log.append_many([message(body) for body in bodies(0, 25)])
    classic.close()
    opened = Opened(tmp_path)
    opened.entries.reset(7, 8 * FILE_BYTES)
    record = bytearray(first_body(HOST))
    stamp_place(record, 8 * FILE_BYTES + HEAD_BYTES)
    follow(opened.entries, LogEntry(7, 3, 8 * FILE_BYTES, bytes(record)))
    opened.commit()
    assert opened.log.start == 8 * FILE_BYTES
    assert decode(opened.log.read_record(8 * FILE_BYTES + HEAD_BYTES)).topic == FIRST_TOPIC
    with pytest.raises(OffsetNotFound):
        opened.log.read_record(0)
    opened.close()


def test_topics_are_deleted_no_further_than_the_entries_reach(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.log.append_many([message(body) for body in bodies(0, 30)])
    opened.commit()
    end = opened.entries.data.end
    opened.store.queues.forget_topics({"T": 1 << 40, "U": end}, 0)
    opened.close()
    # The group has yet to say that all of it is committed.
    opened = Opened(tmp_path, committed_index=9)
    assert opened.store.queues.floors.table() == {"T": end, "U": end}
    opened.commit()
    assert opened.queue() == []
    opened.log.append_many([message(body) for body in bodies(30, 40)])
    opened.commit()
    assert opened.queue() == bodies(30, 40)
    opened.close()
