"""currterm and checkpoint: what a node must not forget, and what it may."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commitlog.dledger.small import CheckpointFile, LogCheckpoint, TermAndVote, TermFile, parse_term
from commitlog.errors import StoreUnreadable
from tests.commitlog.dledger.stores import unpack_stock
from tests.commitlog.power import PowerFiles
from tests.support.failing_files import Crash, FailingFiles


def open_term(directory: Path, end_term: int = -1) -> TermFile:
    return TermFile(FailingFiles(), directory / "currterm", end_term)


def test_a_stock_nodes_small_files_are_read_and_written_as_it_writes_them(tmp_path: Path) -> None:
    directory = unpack_stock(tmp_path)
    term = open_term(directory)
    assert term.now == TermAndVote(0, "n0")
    assert term.now.encode() == (directory / "currterm").read_bytes()
    checkpoint = CheckpointFile(FailingFiles(), directory / "checkpoint")
    assert checkpoint.known == LogCheckpoint(5, 5)
    assert checkpoint.known.encode() == (directory / "checkpoint").read_bytes()


def test_a_new_node_has_term_0_and_no_vote(tmp_path: Path) -> None:
    assert open_term(tmp_path).now == TermAndVote(0, None)
    assert open_term(tmp_path, end_term=0).now == TermAndVote(0, None)


@pytest.mark.parametrize(("term", "vote"), [(0, "n1"), (7, None), (7, "n0"), (2**62, "broker.a_1")])
def test_term_and_vote_are_there_after_a_restart(tmp_path: Path, term: int, vote: str | None) -> None:
    open_term(tmp_path).save(term, vote)
    assert open_term(tmp_path).now == TermAndVote(term, vote)


def test_a_vote_that_was_given_survives_kill_and_power_cut_at_every_change(tmp_path: Path) -> None:
    """The file is the old one or the new one, and the new one when save() has returned."""
    for change in range(100):
        for power in (False, True):
            directory = tmp_path / f"{change}-{power}"
            directory.mkdir()
            open_term(directory).save(3, "n1")
            files = PowerFiles(directory)
            term = TermFile(files, directory / "currterm", -1)
            files.crash_at(change)
            returned = None
            try:
                for number in (4, 5):
                    term.save(number, None)
                    returned = TermAndVote(number, None)
                    term.save(number, "n2")
                    returned = TermAndVote(number, "n2")
            except Crash:
                pass
            files.heal()
            if power:
                files.power_cut()
            found = open_term(directory).now
            order = [TermAndVote(3, "n1")] + [
                TermAndVote(number, vote) for number in (4, 5) for vote in (None, "n2")
            ]
            at_least = order.index(returned) if returned is not None else 0
            assert found in order[at_least : at_least + 2]
        if returned == order[-1]:
            return
    raise AssertionError("more than 100 changes")


def test_a_save_that_fails_leaves_what_was_saved_before(tmp_path: Path) -> None:
    files = FailingFiles()
    term = TermFile(files, tmp_path / "currterm", -1)
    term.save(3, "n1")
    files.fail("fdatasync", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        term.save(4, "n2")
    assert term.now == TermAndVote(3, "n1") == open_term(tmp_path).now
    term.save(4, "n0")
    assert open_term(tmp_path).now == TermAndVote(4, "n0")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no whole currTerm in its 0 bytes"),
        (b"voteLeader=n0\n", "no whole currTerm in its 14 bytes"),
        (b"voteLeader=n0\ncurrTerm=1", "no whole currTerm in its 24 bytes"),
        (b"currTerm=x\n", "currTerm='x' is no number"),
        (b"currTerm=-1\n", "currTerm=-1 is negative"),
        (b"voteLeader=n 0\ncurrTerm=1\n", "voteLeader='n 0' is no id of a node"),
        (b"currTerm\n", "line 'currTerm' has no ="),
        (b"\xff\xfe=\ncurrTerm=1\n", "decode"),
    ],
)
def test_a_damaged_term_file_is_an_error_and_no_new_term(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "currterm").write_bytes(content)
    with pytest.raises(StoreUnreadable, match=said) as error:
        open_term(tmp_path)
    assert error.value.path.name == "currterm"
    assert "copy it from a backup" in str(error.value)


@pytest.mark.parametrize("content", [None, b"voteLeader=n0\ncurrTerm=4\n"])
def test_a_term_that_is_older_than_the_logs_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "currterm").write_bytes(content)
    with pytest.raises(StoreUnreadable, match="the log has an entry of term 5"):
        open_term(tmp_path, end_term=5)


def test_a_stock_node_that_died_between_remove_and_rename_has_not_forgotten_its_vote(tmp_path: Path) -> None:
    (tmp_path / "currterm.bak").write_bytes(b"voteLeader=\ncurrTerm=6\n")
    with pytest.raises(StoreUnreadable, match="is missing, and it was there before"):
        open_term(tmp_path)
    (tmp_path / "currterm.tmp").write_bytes(b"voteLeader=n2\ncurrTerm=6\n")
    assert open_term(tmp_path, end_term=6).now == TermAndVote(6, "n2")
    (tmp_path / "currterm.tmp").write_bytes(b"voteLeader=n2\ncurrTe")
    with pytest.raises(StoreUnreadable, match="is missing, and it was there before"):
        open_term(tmp_path)


def test_lines_may_come_in_any_order_and_with_spaces() -> None:
    assert parse_term(b" currTerm = 12 \nvoteLeader=n1\nother=1\n") == TermAndVote(12, "n1")


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("durableIndex=7\n", LogCheckpoint(3, 9)),
        ("durableIndex=7\ndurableTerm=2\n", LogCheckpoint(3, 9, 7, 2, is_ours=True)),
        ("durableIndex=-1\ndurableTerm=-1\n", LogCheckpoint(3, 9, is_ours=True)),
        ("durableIndex=7\ndurableTerm=2", LogCheckpoint(3, 9)),
    ],
)
def test_what_was_synced_is_said_by_index_and_term_or_not_at_all(
    tmp_path: Path, said: str, known: LogCheckpoint
) -> None:
    path = tmp_path / "checkpoint"
    path.write_text("committedIndex=3\nendIndex=9\n" + said)
    found = CheckpointFile(FailingFiles(), path).known
    assert found == known
    if known.is_ours:
        assert found.encode() == path.read_bytes()
