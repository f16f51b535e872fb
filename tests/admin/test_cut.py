"""`mqadmin listCut` and `removeCut` on stores made of real cuts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.store_lock import StoreLock
from haservice.admin.commands.nodes import cut
from tests.admin.asking import run, stored

TAIL, AGAIN = f"{4096:020d}-1", f"{4096:020d}-2"
REINIT, PARTED = "reinit-1700000000000", "parted-1700000001000"


def at(data: bytes, offset: int) -> bytes:
    """The record, as it lies at that offset of the log."""
    return data[:28] + offset.to_bytes(8, "big") + data[36:]


def records(offset: int, count: int) -> bytes:
    found = b""
    for number in range(count):
        found += at(stored(number, b"body %d" % number), offset + len(found))
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """With two cuts of the log's end, one of them torn, and two logs of slaves."""
    (tmp_path / "commitlog").mkdir()
    kept = tmp_path / "cut"
    for name in (REINIT, PARTED):
        (kept / name / "commitlog").mkdir(parents=True)
        (kept / name / "commitlog" / f"{0:020d}").write_bytes(records(0, 5) + bytes(1000))
        (kept / name / "checkpoint").write_bytes(bytes(range(1, 200)))
    (kept / TAIL).write_bytes(records(4096, 3))
    (kept / AGAIN).write_bytes(b"torn" * 100)
    (kept / "notes.txt").write_text("somebody's own")
    return tmp_path


def listed(store: Path) -> dict[str, dict[str, Any]]:
    result = run("listCut", str(store), "-f", "json")
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)}


def there(store: Path) -> set[str]:
    return {path.name for path in (store / "cut").iterdir()}


def test_what_is_kept_is_listed_with_the_messages_in_it(store: Path) -> None:
    rows = listed(store)
    assert rows.keys() == {TAIL, AGAIN, REINIT, PARTED}
    assert {name: row["messages"] for name, row in rows.items()} == {TAIL: 3, AGAIN: 0, REINIT: 5, PARTED: 5}
    assert [rows[name]["offset"] for name in (TAIL, REINIT)] == [4096, 0]
    assert rows[REINIT]["keptMs"] == 1_700_000_000_000
    assert rows[TAIL]["firstStoredMs"] == 1_700_000_000_000
    assert rows[AGAIN]["firstStoredMs"] is None
    assert all(row["diskBytes"] >= 400 and row["messagesExact"] for row in rows.values())
    shown = run("listCut", str(store)).stdout.splitlines()
    assert shown[0].startswith("#Name ")
    assert len(shown) == 5


def test_a_list_reads_so_much_and_no_more(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "MESSAGES_MAX", 2)
    rows = listed(store)
    assert (rows[TAIL]["messages"], rows[TAIL]["messagesExact"]) == (2, False)
    assert f"there may be more messages: {REINIT}, {PARTED}, {TAIL}" in run("listCut", str(store)).stdout


def test_only_what_is_named_is_removed_and_only_after_a_yes(store: Path) -> None:
    before = there(store)
    refused = run("removeCut", str(store), TAIL, REINIT + "/", stdin="n\n")
    assert refused.exit_code == 1
    assert TAIL in refused.stdout
    assert "cannot be undone" in refused.stdout
    assert there(store) == before
    silent = run("removeCut", str(store), TAIL)
    assert (silent.exit_code, "--yes does not ask" in silent.output) == (1, True)
    assert there(store) == before
    done = run("removeCut", str(store), TAIL, REINIT + "/", stdin="y\n")
    assert done.exit_code == 0, done.output
    assert there(store) == before - {TAIL, REINIT}


def test_what_is_old_or_all_of_it_is_removed_and_never_what_others_put_there(store: Path) -> None:
    done = run("removeCut", str(store), "--older-than", "30", "--yes", "-f", "json")
    assert [row["name"] for row in json.loads(done.stdout)["entries"]] == [REINIT, PARTED]
    assert there(store) == {TAIL, AGAIN, "notes.txt"}
    assert run("removeCut", str(store), "--all", "--yes").exit_code == 0
    assert there(store) == {"notes.txt"}
    again = run("removeCut", str(store), "--all", "--yes")
    assert (again.exit_code, "Nothing to remove" in again.stdout) == (0, True)


def test_what_is_not_there_or_not_said_is_refused(store: Path, tmp_path: Path) -> None:
    before = there(store)
    for arguments, code, said in (
        ((), 2, "which?"),
        (("--all", TAIL), 2, "which?"),
        (("../commitlog", "--yes"), 1, "has no '../commitlog'"),
        (("notes.txt", "--yes"), 1, "mqadmin listCut"),
    ):
        result = run("removeCut", str(store), *arguments)
        assert (result.exit_code, said in result.output) == (code, True), result.output
    assert there(store) == before
    assert (store / "commitlog").is_dir()
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    assert "is no store" in run("listCut", str(empty)).output
    (empty / "commitlog").mkdir()
    assert "nothing is kept in" in run("listCut", str(empty)).stderr


def test_a_cut_that_is_not_finished_keeps_what_it_needs(store: Path) -> None:
    (store / "lineage").mkdir()
    (store / "lineage" / "emptying").write_bytes(b"")
    refused = run("removeCut", str(store), "--all", "--yes")
    assert (refused.exit_code, "a cut is not finished" in refused.output) == (1, True)
    (store / "lineage" / "emptying").unlink()
    (store / "abort").write_bytes(b"")
    refused = run("removeCut", str(store), "--all", "--yes")
    assert (refused.exit_code, "did not stop cleanly: start it" in refused.output) == (1, True)
    assert TAIL in there(store)
    lock = StoreLock(store)  # a broker runs, which has such a file as well
    try:
        assert run("removeCut", str(store), "--all", "--yes").exit_code == 0
    finally:
        lock.release()
