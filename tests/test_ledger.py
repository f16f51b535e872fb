"""A ledger's file: each line is the system's before its send goes on, and nothing else's file is touched."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haservice.ledger import ConsumedLedger, LedgerError, SentLedger


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sent.jsonl"


class FullDisk:
    """os.write with `room` bytes left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        wrote = self._write(fd, bytes(data)[: self.room])
        self.room -= wrote
        return wrote


def test_a_line_is_in_the_file_before_the_call_returns(path: Path) -> None:
    ledger = SentLedger(path)
    sent_ms = ledger.sending("T", ["A"])
    before = {"topic": "T", "msgId": "A", "status": "SENDING", "sentMs": sent_ms}
    assert lines_in(path) == [before]
    ledger.answered("T", ["A"], "SEND_OK", sent_ms, (3, 17))
    said = lines_in(path)[1]
    assert list(said) == ["topic", "queueId", "queueOffset", "msgId", "status", "sentMs", "ackedMs"]
    assert (said["queueId"], said["queueOffset"], said["sentMs"]) == (3, 17, sent_ms)
    assert said["ackedMs"] >= sent_ms
    ledger.close()
    ledger.close()


def test_a_batch_has_a_line_for_each_message_and_its_own_place(path: Path) -> None:
    ledger = SentLedger(path)
    ledger.answered("T", ["A", "B"], "SEND_OK", ledger.sending("T", ["A", "B"]), (1, 5))
    ledger.close()
    said = [(one["msgId"], one["status"], one.get("queueOffset")) for one in lines_in(path)]
    assert said == [("A", "SENDING", None), ("B", "SENDING", None), ("A", "SEND_OK", 5), ("B", "SEND_OK", 6)]


@pytest.mark.parametrize("cut", range(1, 70))
def test_a_torn_last_line_is_cut_off_and_said(path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    line = b'{"topic":"T","msgId":"A","status":"SENDING","sentMs":1700000000123}\n'
    path.write_bytes(line + line[: min(cut, len(line) - 2)])
    with caplog.at_level(logging.WARNING):
        ledger = SentLedger(path)
    assert path.read_bytes() == line
    assert "its last line was torn" in caplog.text
    ledger.sending("T", ["B"])
    ledger.close()
    assert [one["msgId"] for one in lines_in(path)] == ["A", "B"]


def test_a_whole_last_line_without_its_end_is_kept(path: Path) -> None:
    path.write_text('{"topic":"T","msgId":"A","status":"SEND_OK"}')
    ledger = SentLedger(path)
    ledger.sending("T", ["B"])
    ledger.close()
    assert [one["msgId"] for one in lines_in(path)] == ["A", "B"]


@pytest.mark.parametrize(
    "text",
    ["# a page\n", "a word", '{"topic":"T","msgId":"A"}\nnot a line', "[1]\n", '{"a": 1}\n', "x" * 99999],
)
def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(
        LedgerError, match=r"sent.jsonl: is no ledger, a line of it is .*: choose another file"
    ):
        SentLedger(path)
    assert path.read_text() == text


def test_a_directory_a_missing_one_and_a_device_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="Is a directory"):
        SentLedger(tmp_path)
    with pytest.raises(LedgerError, match="No such file or directory: choose a file that can be written"):
        SentLedger(tmp_path / "none" / "sent.jsonl")
    with pytest.raises(LedgerError, match="/dev/null: is no regular file"):
        SentLedger("/dev/null")


def test_one_process_at_a_time_has_it(path: Path) -> None:
    ledger = SentLedger(path)
    script = f"from haservice.ledger import SentLedger; SentLedger({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "another producer or consumer writes it now" in done.stderr
    ledger.close()
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_full_disk_tears_no_line_and_says_whether_the_message_was_sent(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = SentLedger(path)
    sent_ms = ledger.sending("T", ["A"])
    whole = path.read_bytes()
    disk = FullDisk(monkeypatch, room=20)
    with pytest.raises(
        LedgerError, match="No space left on device: make room on its disk; message A is SEND_OK"
    ):
        ledger.answered("T", ["A"], "SEND_OK", sent_ms, (0, 0))
    assert path.read_bytes() == whole
    with pytest.raises(LedgerError, match=r"No space left on device.*the message was not sent"):
        ledger.sending("T", ["B"])
    disk.room = 10_000
    ledger.sending("T", ["C"])
    ledger.close()
    assert [one["msgId"] for one in lines_in(path)] == ["A", "C"]


def test_a_file_that_was_deleted_is_not_written_any_more(path: Path) -> None:
    ledger = SentLedger(path)
    path.unlink()
    with pytest.raises(LedgerError, match=r"was deleted while it is written.*the message was not sent"):
        ledger.sending("T", ["A"])
    ledger.close()


def test_consumed_messages_wait_while_the_disk_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ConsumedLedger(path, "shop")
    disk = FullDisk(monkeypatch, room=0)
    with pytest.raises(LedgerError, match="1 consumed messages wait"):
        ledger.consumed([("T", "A", (0, 1))])
    with pytest.raises(LedgerError, match="2 consumed messages wait"):
        ledger.consumed([("T", "B", None)])
    assert path.read_bytes() == b""
    disk.room = 10_000
    ledger.flush()
    ledger.close()
    said = [(one["msgId"], one["group"], one.get("queueOffset")) for one in lines_in(path)]
    assert said == [("A", "shop", 1), ("B", "shop", None)]


def test_a_ledger_that_cannot_be_written_to_the_end_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ConsumedLedger(path, "shop")
    FullDisk(monkeypatch, room=0)
    with pytest.raises(LedgerError):
        ledger.consumed([("T", "A", (0, 1))])
    with pytest.raises(LedgerError, match="1 consumed messages wait"):
        ledger.close()
