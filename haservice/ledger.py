"""Ledgers: what a producer was answered, and what a consumer consumed, for the job `audit-loss`.

    producer   {"topic", "msgId", "status": "SENDING", "sentMs"}                       before a send
               {"topic", "queueId", "queueOffset", "msgId", "status", "sentMs", "ackedMs"}   after its answer
    consumer   {"topic", "queueId", "queueOffset", "msgId", "group", "consumedMs"}

A ledger is JSON, a line each.  Nothing is buffered: lines are handed to the system in one write, before the
send goes on or returns.  So a process that is killed leaves at most a torn last line, and each message that
may be stored has a line.  A power cut of the machine may take what the system had not written to the disk;
`close` waits for the disk.

The lines of a delayed message, and of one that came by a retry topic, have no queueId and queueOffset: those
that a broker says are of another topic.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from commitlog.log.log import wall_clock_ms
from haservice.errors import HAServiceError

logger = logging.getLogger(__name__)

# Statuses besides those of brokers' answers.  None is a promise.
SENDING = "SENDING"  # handed to a connection next; what became of it is said by a later line, if by any
ONEWAY = "ONEWAY"
NOT_STORED, NO_ANSWER = "NOT_STORED", "NO_ANSWER"
COMMITTED, ROLLED_BACK, UNDECIDED = "COMMITTED", "ROLLED_BACK", "UNDECIDED"

# A line has some 200 bytes.  What has no line end for so long is no ledger.
LINE_BYTES_MAX = 64 * 1024

Line = Mapping[str, Any]


class LedgerError(HAServiceError):
    """A ledger that cannot be opened, or written; the text says why, and what to do."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"ledger {path}: {reason}")
        self.path = path
        self.reason = reason


def ledger_line(line: Line) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


class LedgerFile:
    """A file that lines are added to; one process at a time has it.  Used by one thread at a time."""

    def __init__(self, path: Path | str) -> None:
        """Opens the file, or makes it.  A torn last line, which a killed process left, is cut off.

        Raises LedgerError if it cannot be written, is no ledger, or another process writes it.
        """
        self.path = Path(path)
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LedgerError(self.path, f"{error.strerror}: choose a file that can be written") from None
        self._open = True
        try:
            self._end = self._claimed()
        except BaseException:
            self.close()
            raise

    def _claimed(self) -> int:
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise LedgerError(self.path, "is no regular file: choose another")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise LedgerError(self.path, f"cannot be locked: {error.strerror}") from None
            raise LedgerError(
                self.path, "another producer or consumer writes it now: each needs a file of its own"
            ) from None
        return self._end_of_lines(os.fstat(self._fd).st_size)

    def _end_of_lines(self, size: int) -> int:
        """The size, after a torn last line was cut off.  Raises LedgerError for a file that is no ledger."""
        first = os.pread(self._fd, LINE_BYTES_MAX, 0).partition(b"\n")
        if first[1] and not _is_line(first[0]):
            raise self._foreign(first[0])
        tail = os.pread(self._fd, LINE_BYTES_MAX, max(0, size - LINE_BYTES_MAX)).rpartition(b"\n")[2]
        if not tail:
            return size
        if _is_line(tail):  # whole, and another program left out the line's end
            os.write(self._fd, b"\n")
            return size + 1
        if len(tail) == LINE_BYTES_MAX or not (tail.startswith(b'{"') or b'{"'.startswith(tail)):
            raise self._foreign(tail)
        os.ftruncate(self._fd, size - len(tail))
        logger.warning(
            "ledger %s: its last line was torn and is cut off bytes=%d line=%r", self.path, len(tail), tail
        )
        return size - len(tail)

    def _foreign(self, line: bytes) -> LedgerError:
        return LedgerError(self.path, f"is no ledger, a line of it is {line[:60]!r}: choose another file")

    def add(self, lines: bytes) -> None:
        """Hands whole lines to the system.  Raises LedgerError, and then none of them is in the file."""
        wrote = 0
        try:
            if not os.fstat(self._fd).st_nlink:
                raise LedgerError(self.path, "was deleted while it is written: begin a new one")
            while wrote < len(lines):
                wrote += os.write(self._fd, memoryview(lines)[wrote:])
        except OSError as error:
            if wrote:
                with suppress(OSError):
                    os.ftruncate(self._fd, self._end)
            raise LedgerError(self.path, f"{error.strerror}{_what_to_do(error)}") from None
        self._end += wrote

    def close(self) -> None:
        """Waits until the disk has all lines.  May be called twice.  Raises LedgerError."""
        if not self._open:
            return
        self._open = False
        try:
            os.fsync(self._fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EROFS):  # nothing that could be synced
                raise LedgerError(self.path, f"its last lines may be lost: {error.strerror}") from None
        finally:
            os.close(self._fd)


def _is_line(text: bytes) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and "topic" in found


def _what_to_do(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ": make room on its disk"
    return ": begin a new one" if error.errno == errno.EFBIG else ""


class SentLedger(LedgerFile):
    """The ledger of one producer."""

    def sending(self, topic: str, msg_ids: Sequence[str], status: str = SENDING) -> int:
        """Before a send: one message, or those of a batch.  Returns the time, for `answered`."""
        now_ms = wall_clock_ms()
        lines = ({"topic": topic, "msgId": one, "status": status, "sentMs": now_ms} for one in msg_ids)
        try:
            self.add(b"".join(map(ledger_line, lines)))
        except LedgerError as error:
            raise LedgerError(self.path, f"{error.reason}; the message was not sent") from None
        return now_ms

    def answered(
        self,
        topic: str,
        msg_ids: Sequence[str],
        status: str,
        sent_ms: int,
        place: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """After a broker's answer.  `place`: queue id and queue offset of the first message."""
        self._ended(topic, msg_ids, status, sent_ms, place, wall_clock_ms())

    def failed(self, topic: str, msg_ids: Sequence[str], status: str, sent_ms: int) -> None:
        """After a send that got no answer that counts."""
        self._ended(topic, msg_ids, status, sent_ms, (None, None), None)

    def _ended(
        self,
        topic: str,
        msg_ids: Sequence[str],
        status: str,
        sent_ms: int,
        place: tuple[int | None, int | None],
        acked_ms: int | None,
    ) -> None:
        lines = []
        for number, msg_id in enumerate(msg_ids):
            line: dict[str, Any] = {"topic": topic}
            if place[0] is not None and place[1] is not None:
                line |= {"queueId": place[0], "queueOffset": place[1] + number}
            line |= {"msgId": msg_id, "status": status, "sentMs": sent_ms}
            lines.append(ledger_line(line if acked_ms is None else {**line, "ackedMs": acked_ms}))
        try:
            self.add(b"".join(lines))
        except LedgerError as error:
            said = f"{error.reason}; message {msg_ids[0]} is {status}, which the ledger does not say"
            raise LedgerError(self.path, said) from None


class ConsumedLedger(LedgerFile):
    """The ledger of one consumer.  Lines that could not be written wait, and are tried again."""

    def __init__(self, path: Path | str, group: str) -> None:
        super().__init__(path)
        self._group = group
        self._waiting: list[bytes] = []

    def consumed(self, messages: Iterable[tuple[str, str, tuple[int, int] | None]]) -> None:
        """Topic, id and place (queue id and queue offset) of each.  Raises LedgerError; see `flush`."""
        now_ms = wall_clock_ms()
        for topic, msg_id, place in messages:
            line: dict[str, Any] = {"topic": topic}
            if place is not None:
                line |= {"queueId": place[0], "queueOffset": place[1]}
            line |= {"msgId": msg_id, "group": self._group, "consumedMs": now_ms}
            self._waiting.append(ledger_line(line))
        self.flush()

    def flush(self) -> None:
        """Writes the lines that wait.  Raises LedgerError while they cannot be written."""
        if not self._waiting:
            return
        try:
            self.add(b"".join(self._waiting))
        except LedgerError as error:
            said = f"{error.reason}; {len(self._waiting)} consumed messages wait for it"
            raise LedgerError(self.path, said) from None
        self._waiting.clear()

    def close(self) -> None:
        try:
            if self._open:
                self.flush()
        finally:
            super().close()

    @classmethod
    def maybe(cls, path: Path | str | None, group: str) -> Self | None:
        """None without a path."""
        return None if path is None else cls(path, group)
