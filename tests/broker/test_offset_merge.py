"""The newest offset wins: every case of the rule, and whole tables as a slave meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.offsets.merge import OffsetPair, handed_back, settled
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper


@pytest.mark.parametrize(
    ("ours", "theirs", "last", "kept", "story"),
    [
        (None, 5, None, 5, "new here"),
        (None, 5, OffsetPair(3, 3), 5, "new here, though it was known"),
        (5, 9, None, 9, "further"),
        (5, 9, OffsetPair(5, 5), 9, "consumed at the master"),
        (7, 9, OffsetPair(5, 5), 9, "consumed at both, the master is further"),
        (5, 5, None, 5, "the same"),
        (9, 5, None, 9, "a master that returns with what it knew before"),
        (9, 5, OffsetPair(5, 9), 9, "it still says so, clients committed here meanwhile"),
        (9, 5, OffsetPair(9, 9), 5, "a reset at the master"),
        (9, 7, OffsetPair(5, 9), 7, "consumers are back at the master and go over messages again"),
        (9, 5, OffsetPair(7, 8), 9, "both changed: the larger"),
        (9, 5, OffsetPair(5, 7), 9, "only here"),
        (3, 5, OffsetPair(5, 5), 5, "a client that lags commits here, the master is further"),
        (9, 0, OffsetPair(9, 9), 0, "a reset to the start"),
        (-1, 0, None, 0, "something silly here"),
        (9, None, None, 9, "the master knows nothing of it"),
        (9, None, OffsetPair(9, 9), None, "deleted at the master"),
        (9, None, OffsetPair(5, 9), None, "deleted at the master after we kept ours"),
        (9, None, OffsetPair(5, 5), 9, "deleted at the master, committed here since"),
        (None, None, OffsetPair(5, 5), None, "nowhere"),
    ],
)
def test_the_rule(
    ours: int | None, theirs: int | None, last: OffsetPair | None, kept: int | None, story: str
) -> None:
    assert settled(ours, theirs, last) == kept, story


def offsets(path: Path) -> ConsumerOffsets:
    return ConsumerOffsets(PersistedFile(path / "o.json"))


def body(**queues: int) -> ConsumerOffsetWrapper:
    return ConsumerOffsetWrapper({"T@g": {int(name[1:]): offset for name, offset in queues.items()}})


def test_a_failover_and_the_return_of_a_master_that_knows_less(tmp_path: Path) -> None:
    slave = offsets(tmp_path)
    slave.merge(body(q0=80, q1=50))
    slave.commit("g", "T", 0, 100)  # the master is away
    assert slave.merge(body(q0=80, q1=50)) == 0
    assert slave.table() == {"T@g": {0: 100, 1: 50}}
    assert slave.merge(body(q0=80, q1=50), continued=True) == 0
    assert slave.merge(body(q0=101, q1=51), continued=True) == 2
    assert slave.merge(body(q0=20, q1=51), continued=True) == 1
    assert slave.table() == {"T@g": {0: 20, 1: 51}}


def test_what_was_seen_of_another_run_of_the_master_does_not_count(tmp_path: Path) -> None:
    slave = offsets(tmp_path)
    slave.merge(body(q0=80))
    slave.merge(body(q0=70))
    slave.merge(ConsumerOffsetWrapper({}))
    assert slave.table() == {"T@g": {0: 80}}


def test_a_deleted_group_goes_and_what_was_committed_here_since_stays(tmp_path: Path) -> None:
    slave = offsets(tmp_path)
    slave.merge(ConsumerOffsetWrapper({"T@g": {0: 1, 1: 2}, "T@h": {0: 3}, "U@h": {0: 4}}))
    slave.commit("g", "T", 1, 7)
    assert slave.merge(ConsumerOffsetWrapper({"U@h": {0: 4}}), continued=True) == 2
    assert slave.table() == {"T@g": {1: 7}, "U@h": {0: 4}}


def test_a_master_takes_only_what_is_further(tmp_path: Path) -> None:
    master = offsets(tmp_path)
    master.commit("g", "T", 0, 10)
    master.commit("g", "T", 1, 10)
    assert master.take_further({"T@g": {0: 9, 1: 11, 2: 0}, "U@g": {0: 5}, "V@g": {}}) == 3
    assert master.table() == {"T@g": {0: 10, 1: 11, 2: 0}, "U@g": {0: 5}}


def test_a_slave_hands_back_what_lies_in_the_queues_of_groups_that_exist() -> None:
    ends = {("T", 0): 100, ("T", 1): 100, ("Gone", 0): None}
    taken = handed_back(
        {"T@g": {0: 90, 1: 120}, "Gone@g": {0: 7}, "T@deleted": {0: 5}, "odd": {0: 1}}.items(),
        lambda group: group == "g",
        lambda topic, queue: ends[topic, queue],
    )
    assert taken == {"T@g": {0: 90, 1: 100}}


def test_the_topics_of_a_group_and_the_groups_of_a_topic(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    for topic, group in (("T", "g"), ("U", "g"), ("T", "h"), ("%RETRY%g", "g")):
        table.commit(group, topic, 0, 1)
    assert table.topics_of("g") == ["%RETRY%g", "T", "U"]
    assert table.groups_of("T") == ["g", "h"]
    assert table.remove_group("g") == 3
    assert table.remove_group("g") == 0
    assert table.table() == {"T@h": {0: 1}}
