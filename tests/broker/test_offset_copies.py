"""Copies of the table of offsets: by change for our slaves, whole for stock ones, and they come to the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from haservice.broker.offsets import consumer_offsets
from haservice.broker.offsets import copies as copies_module
from haservice.broker.offsets.changes import OffsetChanges
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.offsets.copies import CopyAnswer, OffsetCopies
from haservice.broker.offsets.table import SLICE_QUEUES, ShardedTable
from haservice.errors import RequestError
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.remoting.bodies.offset_text import decode_changes, encode_changes
from haservice.remoting.fastjson import BodyUnreadable
from haservice.remoting.headers.copies import CopyOffsetsHeader


def made(path: Path, name: str = "o") -> ConsumerOffsets:
    return ConsumerOffsets(PersistedFile(path / f"{name}.json"))


def ask(copies: OffsetCopies, since: str = "", *, part: int = 0, copy: str = "") -> CopyAnswer:
    header = CopyOffsetsHeader(part, copy, since)
    return copies.quick(header) or copies.answer(header)


class Follower:
    """A slave, without its wire."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self.offsets = offsets
        self.version = ""
        self.wholes = 0

    def look(self, copies: OffsetCopies) -> None:
        answer = ask(copies, self.version if self.offsets.begin_look() else "")
        if answer.header.changes:
            self.offsets.merge_changes(decode_changes(answer.body) if answer.body else {})
        else:
            self.wholes += 1
            table = ShardedTable(ConsumerOffsetWrapper.decode(answer.body).offset_table)
            self.offsets.merge(table, continued=bool(self.version))
        assert answer.header.version is not None
        self.version = answer.header.version


@pytest.mark.parametrize("kept", [200_000, 12], ids=["all changes are known", "changes are forgotten"])
def test_looks_at_changes_come_to_the_same_as_looks_at_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(consumer_offsets, "OffsetChanges", lambda: OffsetChanges(batch_max=5, kept_max=kept))
    dice = random.Random(11)
    moves = wholes = looks = 0
    for _ in range(60):
        master, by_whole, by_change = (made(tmp_path, name) for name in ("m", "w", "c"))
        copies, follower, seen = OffsetCopies(master), Follower(by_change), False
        for _ in range(120):
            group, queue, offset = f"g{dice.randrange(3)}", dice.randrange(4), dice.randrange(8)
            match dice.randrange(12):
                case 0:
                    master.remove_group(group)
                case 1:
                    by_whole.remove_group(group)
                    by_change.remove_group(group)
                case 2 | 3:
                    by_whole.commit(group, "T", queue, offset)
                    by_change.commit(group, "T", queue, offset)
                case 4 | 5 | 6:
                    looks += 1
                    moves += by_whole.merge(ConsumerOffsetWrapper.decode(master.encode()), continued=seen)
                    follower.look(copies)
                    seen = True
                    assert by_change.table() == by_whole.table()
                case _:
                    master.commit(group, "T", queue, offset)
        wholes += follower.wholes
    assert moves > 1000
    assert wholes == 60 if kept > 12 else 60 < wholes < looks


def test_what_is_committed_here_while_the_master_answers_is_seen_by_the_next_look(tmp_path: Path) -> None:
    slave = made(tmp_path)
    slave.merge(ConsumerOffsetWrapper({"T@g": {0: 80}}))
    assert slave.begin_look()
    slave.merge_changes({})  # looks at what the first one moved
    assert slave.begin_look()
    slave.commit("g", "T", 0, 100)  # consumers came here for a moment
    slave.merge_changes({})
    assert slave.begin_look()
    slave.merge_changes({})
    assert slave.begin_look()
    slave.merge_changes({"T@g": {0: 85}})  # they are back, and go over messages again
    assert slave.table() == {"T@g": {0: 85}}


def test_nothing_changed_is_an_answer_without_a_body_and_what_changed_has_only_that(tmp_path: Path) -> None:
    master = made(tmp_path)
    for number in range(1000):
        master.commit("g", f"T{number}", 0, number)
    copies = OffsetCopies(master)
    first = ask(copies)
    version = first.header.version or ""
    assert len(ConsumerOffsetWrapper.decode(first.body).offset_table) == 1000
    for _ in range(3):
        again = ask(copies, version)
        assert (again.header.version, again.header.changes, again.body) == (version, True, b"")
    master.commit("g", "T7", 0, 7)  # what it was
    assert ask(copies, version).body == b""
    master.commit("g", "T7", 0, 8)
    master.remove_group("no-such")
    answer = ask(copies, version)
    assert decode_changes(answer.body) == {"T7@g": {0: 8}}
    assert answer.header.version != version
    assert ask(copies, answer.header.version or "").body == b""


@pytest.mark.parametrize("since", ["", "x", "x.1", ".", "{run}.", "{run}.-1", "{run}.99", "{run}.١"])
def test_a_version_that_is_not_known_is_answered_with_the_whole_table(tmp_path: Path, since: str) -> None:
    master = made(tmp_path)
    master.commit("g", "T", 0, 1)
    answer = ask(OffsetCopies(master), since.replace("{run}", master.run))
    assert not answer.header.changes
    assert ConsumerOffsetWrapper.decode(answer.body).offset_table == {"T@g": {0: 1}}


def test_changes_are_kept_until_they_are_written_and_no_slave_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = made(tmp_path)
    copies = OffsetCopies(master)
    versions = []
    for number in range(4):
        versions.append(ask(copies).header.version or "")
        master.commit("g", "T", number, 1)
        master.persist()
    assert ask(copies, versions[0]).header.changes
    monkeypatch.setattr(consumer_offsets, "KEPT_S", -1.0)
    master.persist()
    master.commit("g", "T", 9, 1)
    assert not ask(copies, versions[0]).header.changes
    last = ask(copies).header.version or ""
    assert ask(copies, last).header.changes
    assert master.persist()
    assert made(tmp_path).table() == {}
    again = made(tmp_path)
    again.load()
    assert again.table() == master.table()


def test_a_large_table_comes_in_parts_that_are_of_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_module, "PART_BYTES", 10_000)
    master = made(tmp_path)
    for number in range(5000):
        master.commit("g", f"T{number}", 0, number)
    copies = OffsetCopies(master)
    first, other = ask(copies), ask(copies)  # two slaves
    version, copy = first.header.version or "", first.header.copy
    assert other.header.copy != copy
    table = dict(ConsumerOffsetWrapper.decode(first.body).offset_table)
    parts, answer = 1, first
    while answer.header.more:
        if parts == 2:
            master.commit("g", "T0", 0, 77)  # comes with the changes after this version
            assert ask(copies, part=1, copy=other.header.copy).header.more
        answer = ask(copies, part=parts, copy=copy)
        parts += 1
        assert answer.header.version == version
        table.update(ConsumerOffsetWrapper.decode(answer.body).offset_table)
    assert len(table) == 5000
    assert parts > 5
    assert decode_changes(ask(copies, version).body) == {"T0@g": {0: 77}}
    for wrong, of in ((1, copy), (1, other.header.copy), (9, other.header.copy), (1, "x")):
        with pytest.raises(RequestError, match="begin with 0"):
            ask(copies, part=wrong, copy=of)
    for _ in range(copies_module.COPIES_MAX):
        ask(copies)
    with pytest.raises(RequestError, match="begin with 0"):
        ask(copies, part=2, copy=other.header.copy)


def test_the_whole_table_is_made_once_for_all_stock_slaves(tmp_path: Path) -> None:
    master = made(tmp_path)
    master.commit("g", "T", 0, 1)
    copies = OffsetCopies(master)
    body = copies.whole()
    assert copies.whole() is body
    master.commit("g", "T", 0, 1)
    assert copies.whole() is body
    master.commit("g", "T", 0, 2)
    assert copies.whole() == b'{"offsetTable":{"T@g":{0:2}}}'


def test_a_slice_is_small_whatever_the_keys_hold(tmp_path: Path) -> None:
    offsets = made(tmp_path)
    for topic in range(20):
        for queue in range(SLICE_QUEUES // 3):
            offsets.commit("g", f"T{topic}", queue, 1)
    sizes = [sum(len(queues) for _, queues in part) for part in offsets.slices()]
    assert sum(sizes) == len(offsets) == 20 * (SLICE_QUEUES // 3)
    assert max(sizes) < 2 * SLICE_QUEUES


def test_what_changed_is_written_and_read() -> None:
    changes = {'T"@g': {0: 1, 7: None}, "U@h": {2: -(2**63)}}
    assert decode_changes(bytes(encode_changes(changes.items()))) == changes
    assert decode_changes(bytes(encode_changes([]))) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"offsetTable":{"T@g":{0:1.5}}}',
        b'{"offsetTable":{"T@g":{0:9223372036854775808}}}',
        b'{"offsetTable":{"T@g":{0:"1"}}}',
        b'{"offsetTable":{"T@g":5}}',
        b'{"offsetTable":{"T@g":{"x":1}}}',
        b'{"offsetTable":{"T@g":{0:99999999999999999999}}}',
        b"",
        b"{",
    ],
)
def test_what_says_no_change_is_refused(text: bytes) -> None:
    with pytest.raises(BodyUnreadable):
        decode_changes(text)
