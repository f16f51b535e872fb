"""The journal of an archive: what a commit has to say, and what is told of one that does not."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest

from haservice.pipeline.jobs.archive_journal import COMMITS, ArchiveUnreadable, Commit, Journal


class Listed(NamedTuple):
    path: str


class Place:
    """A directory in memory that holds one commit, whose staging directory is gone: it was carried out."""

    root, local = "archive", None

    def __init__(self, text: str) -> None:
        self.text = text

    def files(self, path: str) -> list[Listed]:
        return [Listed(f"{COMMITS}/0000000003.json")] if path == COMMITS else []

    def read_text(self, path: str) -> str:
        return self.text

    def full(self, path: str) -> str:
        return f"{self.root}/{path}"

    def exists(self, path: str) -> bool:
        return False

    def directories(self, path: str) -> list[str]:
        return []


COMMIT: dict[str, Any] = {
    "version": 1,
    "number": 3,
    "staging": "_archive/staging/a",
    "kind": "archive",
    "through": {"broker-a": 500},
    "seams": {"broker-a": [480, 20, "digest"]},
    "moves": [["_archive/staging/a/x", "topic=T/x"]],
    "removals": [],
    "rows": 7,
    "corrupt": 0,
    "made_ms": 5,
}


def journal(said: Any) -> Journal:
    return Journal(Place(json.dumps(said)))  # type: ignore[arg-type]


def test_a_commit_of_an_earlier_run_is_read() -> None:
    last = journal(COMMIT).last
    assert isinstance(last, Commit)
    assert (last.number, last.through, last.seams) == (
        3,
        {"broker-a": 500},
        {"broker-a": (480, 20, "digest")},
    )
    assert list(last.moves) == [("_archive/staging/a/x", "topic=T/x")]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (COMMIT | {"version": 2}, "of another version"),
        ({"version": 1}, "is no commit of an archive (Object missing required field `number`)"),
        ([1], "is no commit of an archive (Expected `object`, got `array`)"),
        (COMMIT | {"number": "3"}, "(Expected `int`, got `str` - at `$.number`)"),
        (COMMIT | {"moves": [["a", "b"], ["a", 5]]}, "(Expected `str`, got `int` - at `$.moves[1][1]`)"),
        (COMMIT | {"seams": {"a": [1, 2]}}, "(Expected `array` of length 3 - at `$.seams[...]`)"),
    ],
)
def test_what_is_no_commit_is_refused_with_its_place(said: Any, why: str) -> None:
    with pytest.raises(ArchiveUnreadable, match=f"^archive/{COMMITS}/0000000003.json: .*{re.escape(why)}"):
        journal(said)
