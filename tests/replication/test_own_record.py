"""What a broker's own small files say of its log, as cases of one table."""

from __future__ import annotations

import pytest

from haservice.bounds import OFFSET_MAX
from haservice.mastership.whole import LOST_POWER, why_not_whole
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan
from haservice.replication.lineage.file import LineageState, Replica
from haservice.replication.lineage.own_record import own_evidence

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
