"""The small files of a DLedger node: `currterm`, who has its vote; `checkpoint`, what was committed.

    currterm      voteLeader=<id of a node, or nothing> | currTerm=<number>
    checkpoint    committedIndex=<number> | endIndex=<number> | durableIndex=<number> | durableTerm=<number>

Each line is `key=value`, as Java's Properties read it.  durableIndex and durableTerm are ours: up to that entry
the log was synced, -1 is none.  A stock node does not know them and leaves them out when it writes the file, so
they never speak of a log that a stock node has changed since.

A stock node removes the file before it renames the new one, and syncs neither: a power cut may leave no
currterm, and the node votes twice in a term.  Ours is replaced in one step, synced.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.files import Files
from commitlog.disk.small_file import read_file, replace_file
from commitlog.dledger.layout import NONE
from commitlog.errors import StoreUnreadable

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_NODE = re.compile(r"[^\s=:\\#!-]+")


@dataclass(frozen=True, slots=True)
class TermAndVote:
    """The current term of a node, and to whom it gave its vote in it; None: to nobody yet."""

    term: int = 0
    vote: str | None = None

    def encode(self) -> bytes:
        return f"voteLeader={self.vote or ''}\ncurrTerm={self.term}\n".encode()


class TermFile:
    """`currterm`: what a node must not forget before it answers.  Its owner calls from one thread."""

    def __init__(self, files: Files, path: Path, end_term: int) -> None:
        """Reads the file.  `end_term` is the term of the log's last entry, or NONE.

        Raises StoreUnreadable if the file is damaged, or missing where the log shows that there was one: a
        node that forgot its vote could give it again.
        """
        self.path = path
        self._files = files
        self.now = self._read(end_term)

    def _read(self, end_term: int) -> TermAndVote:
        content = self._content(self.path)
        if content is not None:
            try:
                found = parse_term(content)
            except ValueError as error:
                raise StoreUnreadable(self.path, f"{error}; {_ADVICE}") from None
        else:
            found = self._left_behind()
        if found.term < end_term:
            what = "is missing" if content is None else f"says term {found.term}"
            raise StoreUnreadable(
                self.path, f"{what}, but the log has an entry of term {end_term}; {_ADVICE}"
            )
        return found

    def _left_behind(self) -> TermAndVote:
        """What a stock node was about to write when it died amid the replacement; else term 0."""
        pending, before = (self.path.with_name(self.path.name + suffix) for suffix in (".tmp", ".bak"))
        content = self._content(pending)
        try:
            found = parse_term(content or b"")
        except ValueError:
            if content is None and not self._files.exists(before):
                return TermAndVote()
            raise StoreUnreadable(self.path, f"is missing, and it was there before; {_ADVICE}") from None
        logger.warning("term file is missing, taken from path=%s term=%d", pending, found.term)
        return found

    def _content(self, path: Path) -> bytes | None:
        try:
            return read_file(self._files, path)
        except OSError as error:
            raise StoreUnreadable(path, error.strerror or str(error)) from error

    def save(self, term: int, vote: str | None) -> None:
        """Durable when it returns.  Raises OSError; what was saved before counts then."""
        assert term >= self.now.term
        assert vote is None or _NODE.fullmatch(vote)
        new = TermAndVote(term, vote)
        if new != self.now:
            replace_file(self._files, self.path, new.encode())
            self.now = new


_ADVICE = "copy it from a backup, or remove the node's directory, so that it is filled by its leader"


def parse_term(content: bytes) -> TermAndVote:
    """Raises ValueError for what no node writes."""
    values = _values(content)
    if "currTerm" not in values or not content.endswith(b"\n"):
        raise ValueError(f"no whole currTerm in its {len(content)} bytes")
    term = _number(values["currTerm"], "currTerm")
    if term < 0:
        raise ValueError(f"currTerm={term} is negative")
    vote = values.get("voteLeader", "")
    if vote and not _NODE.fullmatch(vote):
        raise ValueError(f"voteLeader={vote!r} is no id of a node")
    return TermAndVote(term, vote or None)


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """What the file says of a log; NONE where it says nothing.

    `is_ours`: whether it says what was synced, be it NONE.  A stock node's does not.
    """

    committed_index: int = NONE
    end_index: int = NONE
    durable_index: int = NONE
    durable_term: int = NONE
    is_ours: bool = False

    def encode(self) -> bytes:
        lines = [f"committedIndex={self.committed_index}", f"endIndex={self.end_index}"]
        if self.is_ours:
            lines += [f"durableIndex={self.durable_index}", f"durableTerm={self.durable_term}"]
        return ("\n".join(lines) + "\n").encode()


class CheckpointFile:
    """`checkpoint`: a hint, and never more than that.  Its owner calls under the store's lock."""

    def __init__(self, files: Files, path: Path) -> None:
        """Reads the file; a damaged one says nothing.  Raises StoreUnreadable."""
        self.path = path
        self._files = files
        self.known = self._read()

    def _read(self) -> LogCheckpoint:
        try:
            content = read_file(self._files, self.path)
        except OSError as error:
            raise StoreUnreadable(self.path, error.strerror or str(error)) from error
        if content is None:
            return LogCheckpoint()
        try:
            values = _values(content)
            committed, end, durable, term = (
                _number(values.get(name, str(NONE)), name)
                for name in ("committedIndex", "endIndex", "durableIndex", "durableTerm")
            )
        except ValueError as error:
            logger.warning("checkpoint is damaged and says nothing path=%s reason=%s", self.path, error)
            return LogCheckpoint()
        is_ours = values.keys() >= {"durableIndex", "durableTerm"} and content.endswith(b"\n")
        if not is_ours or min(durable, term) < 0:
            durable, term = NONE, NONE
        return LogCheckpoint(committed, end, durable, term, is_ours)

    def save(self, new: LogCheckpoint) -> None:
        """Durable when it returns.  Raises OSError; what was saved before counts then."""
        if new != self.known:
            replace_file(self._files, self.path, new.encode())
            self.known = new


def _values(content: bytes) -> dict[str, str]:
    """Key and value of each line.  Raises ValueError."""
    values = {}
    for line in content.decode().splitlines():
        key, equals, value = line.partition("=")
        if line.strip() and not equals:
            raise ValueError(f"line {line!r} has no =")
        values[key.strip()] = value.strip()
    return values


def _number(text: str, name: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{name}={text!r} is no number")
    return int(text)
