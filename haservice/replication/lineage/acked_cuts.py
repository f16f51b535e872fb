"""Acknowledged messages that a broker had to cut, because a newer master lacks them, until they are removed.

A slave had acknowledged them to this broker while it was the master, so clients may have got an OK.  Where they were
is kept in `lineage/state.json`; their bytes lie in cut/.  An operator reads them there (mqadmin dumpLog), sends them
again or not, and removes them (mqadmin removeCut): with the last of them the finding is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

# Beyond it, the oldest go first; what they cut is still listed by mqadmin listCut.
CUTS_MAX = 16


class AckedCut(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes from `start` to `end` of the log; `kept` is how the names in cut/ begin that hold them."""

    start: int
    end: int
    kept: str
    at_ms: int


def bytes_cut(root: Path, cuts: Sequence[AckedCut]) -> int:
    """How many acknowledged bytes lie in cut/ that nobody has dealt with."""
    return sum(one.end - one.start for one in not_removed(root, cuts))


def with_cut(root: Path, cuts: Sequence[AckedCut], one: AckedCut) -> tuple[AckedCut, ...]:
    """With that one, instead of those of the same bytes of which nothing is kept: the cut failed, and is tried anew."""
    there = [
        each for each in cuts if not _is_same(each, one) or (each.kept != one.kept and kept_of(root, each))
    ]
    return (*there, one)[-CUTS_MAX:]


def is_known(cuts: Sequence[AckedCut], one: AckedCut) -> bool:
    """Whether a cut of the same bytes was written down before."""
    return any(_is_same(each, one) for each in cuts)


def _is_same(one: AckedCut, other: AckedCut) -> bool:
    return (one.start, one.end) == (other.start, other.end)


def kept_of(root: Path, one: AckedCut) -> list[Path]:
    """What holds these bytes below the store's root; none once an operator has removed it."""
    return sorted((root / "cut").glob(f"{one.kept}*"))


def not_removed(root: Path, cuts: Sequence[AckedCut]) -> list[AckedCut]:
    """Those that no operator has dealt with yet."""
    return [one for one in cuts if kept_of(root, one)]


def cuts_text(root: Path, cuts: Sequence[AckedCut]) -> str:
    """For people: what was cut and what to do, "" if nothing was or all of it is removed."""
    if not (standing := not_removed(root, cuts)):
        return ""
    what = ", ".join(f"from {one.start} to {one.end}" for one in standing)
    paths = list(dict.fromkeys(path for one in standing for path in kept_of(root, one)))
    first = min(paths[0].glob("commitlog/*"), default=paths[0])  # a whole log, or the end of one
    return (
        f"it cut {what}, which a slave had acknowledged, so clients may have got an OK; mqadmin dumpLog"
        f" {first} shows the messages; mqadmin removeCut {root} {' '.join(one.name for one in paths)}, once you have"
        " what you need of them, ends this"
    )
