"""A master's list of replicas: durable before it is given out, and before anybody counts by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan
from haservice.replication.lineage.file import LineageFile
from haservice.replication.lineage.member_list import MemberList
from haservice.replication.lineage.membership import REPLICAS_MAX, ReplicaList
from haservice.replication.wire.hello import SlaveHello


class Counted:
    """What the table of acknowledgements was told last."""

    counting: frozenset[str] = frozenset()
    needed = 0

    def count_only(self, counting: frozenset[str], needed: int) -> None:
        self.counting, self.needed = counting, needed


class Master:
    """The list of a master in epoch 1, with slaves that are on it and in effect."""

    def __init__(self, root: Path, *slaves: str, needed: int = 1) -> None:
        self.lineage = LineageFile(root)
        me = self.lineage.state.replica_id
        replicas = {one: f"{one}:1" for one in (me, *slaves)}
        members = ReplicaList(1, 0, me, needed, replicas=replicas)
        self.lineage.update(lineage=Lineage((Epoch(1, 0, me),)), members=members)
        self.counted = Counted()
        self.list = MemberList(self.lineage, self.counted, lambda: 700)  # type: ignore[arg-type]
        self.list.take()

    def joins(self, name: str, *, keeps_list: bool = True) -> ReplicaList:
        return self.list.with_slave(
            SlaveHello(
                name, "b", f"{name}:1", 4096, LogSpan(0, 0), 0, 0, "", True, Lineage(), keeps_list=keeps_list
            )
        )


def test_a_slave_that_joins_counts_once_enough_of_the_others_know_of_it(tmp_path: Path) -> None:
    master = Master(tmp_path, "a", "b", "c", needed=2)
    given = master.joins("d")
    assert LineageFile(tmp_path).state.members == given
    master.list.known_to("d", given.version)
    master.list.known_to("a", given.version)
    assert (master.counted.counting, master.list.missing) == ({"a", "b", "c"}, ("b", "c"))
    master.list.known_to("b", given.version)
    assert (master.counted.counting, master.list.missing) == ({"a", "b", "c", "d"}, ())
    assert LineageFile(tmp_path).state.members == given.taken_effect()


def test_nobody_is_accepted_whom_no_file_knows_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(tmp_path, "a")

    def no_room(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(master.lineage, "update", no_room)
    with pytest.raises(OSError, match="No space left"):
        master.joins("b")
    assert master.counted.counting == {"a"}


def test_a_list_that_cannot_be_written_as_in_effect_is_not_counted_by_nor_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(tmp_path, "a")
    given = master.joins("b")
    real = master.lineage.update

    def no_room(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(master.lineage, "update", no_room)
    master.list.known_to("a", given.version)
    assert master.counted.counting == {"a"}
    assert master.joins("b") == given
    monkeypatch.setattr(master.lineage, "update", real)
    master.list.known_to("a", given.version)
    assert master.counted.counting == {"a", "b"}


def test_a_slave_of_an_older_version_counts_as_it_did_there(tmp_path: Path) -> None:
    master = Master(tmp_path, "a")
    master.joins("a", keeps_list=False)
    master.joins("b", keeps_list=False)
    assert master.counted.counting == {"a"}
    master.joins("a", keeps_list=False)
    assert master.counted.counting == {"a", "b"}


def test_after_a_forgotten_replica_the_others_are_told_twice(tmp_path: Path) -> None:
    """The list, and that it is in effect: until then a promotion still asks for the one that is gone."""
    master = Master(tmp_path, "a", "b")
    state = master.lineage.state
    before = state.members.version
    listed = state.members.forgotten(1, state.lineage.mark(700), "b")
    master.lineage.update(members=listed)
    master.list.take([("a", before)])
    assert master.list.has_to_hear("a", before)
    master.list.known_to("a", listed.version)
    assert master.counted.counting == {"a"}
    assert master.list.has_to_hear("a", listed.version)
    assert not master.list.has_to_hear("a", master.lineage.state.members.version)


def test_a_slave_that_joins_is_told_once(tmp_path: Path) -> None:
    master = Master(tmp_path, "a")
    given = master.joins("b")
    assert master.list.has_to_hear("a", (1, 0))
    master.list.known_to("a", given.version)
    assert not master.list.has_to_hear("a", given.version)


def test_a_slave_that_joined_is_told_once_more_when_the_list_is_in_effect(tmp_path: Path) -> None:
    """What it was given first stands over a list that it is not on: by that it could never be promoted."""
    master = Master(tmp_path, "a")
    given = master.joins("b")
    master.list.known_to("a", given.version)
    assert master.list.has_to_hear("b", given.version)
    settled = master.list._lineage.state.members
    assert (settled.over, master.list.has_to_hear("b", settled.version)) == ((), False)


def test_a_list_that_is_full_takes_nobody(tmp_path: Path) -> None:
    master = Master(tmp_path, *(f"s{number}" for number in range(REPLICAS_MAX - 1)))
    assert "one" not in master.joins("one").replicas


def test_a_master_whose_epoch_has_not_begun_takes_nobody_off_the_list_of_the_last_one(tmp_path: Path) -> None:
    """Two stores were exchanged: the last master is at the address that this broker, the slave, had."""
    lineage = LineageFile(tmp_path)
    me = lineage.state.replica_id
    members = ReplicaList(1, 3, "other", 1, replicas={"other": "other:1", me: "me:1"})
    lineage.update(lineage=Lineage((Epoch(1, 0, "other"),)), members=members)
    listed = MemberList(lineage, Counted(), lambda: 700)  # type: ignore[arg-type]
    listed.take()

    def joins(name: str) -> ReplicaList:
        return listed.with_slave(
            SlaveHello(name, "b", "me:1", 4096, LogSpan(0, 0), 0, 0, "", True, Lineage(), keeps_list=True)
        )

    assert joins("other") == members
    assert joins("new").replicas == {**members.replicas, "new": ""}
    # Its epoch begins.
    state = lineage.state
    lineage.update(members=state.members.in_epoch(1000, state.lineage.mark(700), me, "other:1", 1))
    listed.take()
    assert joins("other").replicas == {me: "other:1", "new": "", "other": "me:1"}
