"""What a broker's own small files say of its log, as cases of one table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haservice.bounds import OFFSET_MAX
from haservice.mastership.whole import LOST_POWER, why_not_whole
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan
from haservice.replication.lineage.file import LineageState, Replica
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.lineage.own_record import own_evidence, why_older_copy

ME, OTHER = "me", "other"
OWN = (Epoch(1, 0, ME), Epoch(2, 500, ME))


def why(
    end: int, *, epochs: tuple[Epoch, ...] = OWN, had_end: int = 0, lost_power: bool = False, **kept: int
) -> str:
    acked = kept.pop("acked", -1)
    replicas = {"s": Replica("s:1", acked, 1, in_sync=True)} if acked >= 0 else {}
    state = LineageState(ME, lineage=Lineage(epochs), replicas=replicas, **kept)
    return why_not_whole(own_evidence(state, LogSpan(0, end), had_end, lost_power=lost_power)) or ""


@pytest.mark.parametrize(
    ("end", "known", "words"),
    [
        (1000, {}, ""),
        (1000, {"acked": 1000}, ""),
        (1000, {"had_end": 1400}, "lineage/durable"),
        (1000, {"had_end": 1400, "lost_power": True}, "lineage/durable"),
        (1000, {"acked": 1300}, "its list of slaves"),
        (1000, {"acked": 1300, "lost_power": True}, ""),  # it was perhaps never flushed here
        (1000, {"whole_from": 1200}, "lineage/state.json"),
        (400, {}, "its list of epochs"),
        (0, {}, "its list of epochs"),
        (1000, {"whole_from": OFFSET_MAX}, LOST_POWER),
        (1200, {"whole_from": 1200}, ""),
    ],
)
def test_a_log_is_whole_if_it_reaches_what_its_own_files_remember(
    end: int, known: dict[str, int], words: str
) -> None:
    found = why(end, **known)  # type: ignore[arg-type]
    assert bool(found) is bool(words)
    assert words in found


def test_acks_to_another_master_say_nothing_of_what_slaves_have_of_ours() -> None:
    assert not why(1000, epochs=(Epoch(1, 0, ME), Epoch(1000, 800, OTHER)), acked=1300)


def test_the_furthest_of_what_they_remember_is_named() -> None:
    assert "1400 of epoch 2" in why(1000, had_end=1400, acked=1300)


@pytest.mark.parametrize(
    ("ours", "theirs", "end", "is_older"),
    [
        (OWN, OWN[:1], 700, True),
        (OWN, OWN[:1], 500, False),  # it has all of that epoch, and nothing more
        (OWN, OWN, 900, False),  # it has more of our last epoch, which is taken back
        (OWN, (OWN[0], Epoch(2, 600, ME)), 900, True),  # a restart that our file does not know
        (OWN, (OWN[0], Epoch(2, 600, OTHER)), 900, False),  # what it has more is another master's
        ((OWN[0], Epoch(1000, 500, ME)), OWN[:1], 700, False),  # we were promoted since
        ((*OWN, Epoch(1000, 900, ME)), OWN[:1], 700, False),
        ((OWN[0], Epoch(2, 500, OTHER)), OWN[:1], 700, False),
        ((Epoch(1000, 0, ME), Epoch(1001, 500, ME), Epoch(1002, 800, ME)), (Epoch(1000, 0, ME),), 700, True),
        (OWN, (Epoch(1, 0, OTHER),), 700, False),  # the two logs have nothing in common
        (OWN, (), 0, False),
    ],
)
def test_a_replica_that_has_more_than_we_had_at_a_restart_shows_that_our_store_is_an_older_copy(
    ours: tuple[Epoch, ...], theirs: tuple[Epoch, ...], end: int, is_older: bool
) -> None:
    listed = ReplicaList(1, 0, ME, replicas={ME: "me:1", "s": "s:1"})
    state = LineageState(ME, lineage=Lineage(ours), members=listed)
    found = why_older_copy(state, "s:1", ReplicaList(), Lineage(theirs), end)
    assert bool(found) is is_older
    assert not is_older or f"by what s:1 remembers it had acknowledged up to {end}" in found

    def unlisted(list_: ReplicaList) -> bool:
        return bool(why_older_copy(state, "x:1", list_, Lineage(theirs), end))

    assert not unlisted(listed), "it was forgotten, and what it has was given up"
    assert not unlisted(replace(listed, number=1, master=OTHER))
    assert unlisted(replace(listed, number=1)) is is_older, "it was let back since"
