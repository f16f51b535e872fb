"""What a broker's own small files say of its log, as cases of one table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haservice.bounds import OFFSET_MAX
from haservice.mastership.whole import LOST_POWER, why_not_whole
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan, Mark
from haservice.replication.lineage.file import LineageState, Replica, decode_state, encode_state
from haservice.replication.lineage.membership import REPLICAS_MAX, ReplicaList
from haservice.replication.lineage.own_record import own_evidence, why_older_copy, with_forgotten

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
    found = why_older_copy(state, "s", "s:1", ReplicaList(), Lineage(theirs), end)
    assert bool(found) is is_older
    assert not is_older or f"by what s:1 remembers it had acknowledged up to {end}" in found

    def unlisted(list_: ReplicaList, *forgotten: str, addr: str = "x:1") -> bool:
        kept = replace(state, forgotten=dict.fromkeys(forgotten, (1, 0)))
        return bool(why_older_copy(kept, "x", addr, list_, Lineage(theirs), end))

    assert not unlisted(listed, "x"), "it was forgotten, and what it has was given up"
    assert not unlisted(replace(listed, number=1, master=OTHER), "x")
    assert unlisted(replace(listed, number=1), "x") is is_older, "it was let back since"
    assert unlisted(listed, "x", addr="s:1") is is_older, "it was let back, and nobody told it"
    assert unlisted(listed) is is_older, "it came after the copy was made: nobody forgot it"


@pytest.mark.parametrize("story", ["the same", "other address", "more slaves wanted", "another slave first"])
def test_a_slave_that_came_after_the_copy_was_made_is_no_forgotten_one_by_whatever_list_came_since(
    story: str,
) -> None:
    """A lone master's volume was put back from before its slave came; it began an epoch, and made its list anew."""
    alone = ReplicaList().in_epoch(1, Mark(-1, 0), ME, "me:1", 1)
    with_s = alone.joined(1, Mark(1, 100), "s", "s:1").taken_effect()
    addr = "me:2" if story == "other address" else "me:1"
    again = alone.in_epoch(2, Mark(1, 500), ME, addr, 2 if story == "more slaves wanted" else 1)
    if story == "another slave first":
        again = again.joined(2, Mark(1, 500), "t", "t:1")
    assert story == "the same" or again.version > with_s.version

    state = LineageState(ME, lineage=Lineage(OWN), members=again)
    assert why_older_copy(state, "s", "s:1", with_s, Lineage(OWN[:1]), 700)


def test_the_newest_of_those_that_were_forgotten_are_remembered() -> None:
    state = LineageState(ME)
    for number in range(REPLICAS_MAX + 2):
        state = replace(state, forgotten=with_forgotten(state, f"r{number}", (1, number)))
    state = replace(state, forgotten=with_forgotten(state, "r5", (1, 99)))
    assert len(state.forgotten) == REPLICAS_MAX
    assert "r1" not in state.forgotten
    assert list(state.forgotten.items())[-1] == ("r5", (1, 99))
    assert decode_state(encode_state(state)).forgotten == state.forgotten
