"""`whole`, `recalls` and `members` in a member's directory: what it has to remember beside term, vote and log.

    whole     its record, see wholeness.py, and how the log was acknowledged since the start
    recalls   of each other member: what that one had acknowledged to this one, and when it voted for it
    members   the ids of the group that it was started with; majorities of another group need have no common member

All are JSON, and a stock node knows none of them.  A store with entries or a `currterm` and without the file `whole` is
that of a stock node, or of an earlier version, and counts as whole.  One with nothing at all is new, or was emptied.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from commitlog.disk.files import Files
from commitlog.disk.small_file import read_file, replace_file
from commitlog.errors import StoreUnreadable
from haservice import typed_json
from haservice.dledger.events import WholeRecord
from haservice.dledger.messages import Recall
from haservice.dledger.node.stored_log import NO_ROOM
from haservice.mastership.whole import LOST_POWER, Refill

logger = logging.getLogger(__name__)

NEW = "its store is new, or was emptied"
UNFIT = "its file `whole` is unfit"
# What a member acknowledges that runs with ASYNC_FLUSH: more than its disk has.
WRITTEN = "written"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The file `whole`."""

    why: str | None = None
    awaited: list[str] | None = None
    newest: int = -1
    target: tuple[int, int] | None = None
    since: int = -1
    alone: str = ""
    acknowledges: str = ""
    boot: str = ""


@dataclass(frozen=True, slots=True)
class _Recalled:
    term: int
    index: int
    vote: int


class _Runs(NamedTuple):
    """How the member acknowledges that runs, and in which boot; nothing to note with SYNC_FLUSH."""

    acknowledges: str = ""
    boot: str = ""


_Before = tuple[WholeRecord, _Runs] | None


class WholeFile:
    """Its owner calls from one thread at a time."""

    def __init__(
        self, files: Files, directory: Path, *, others: frozenset[str], is_new: bool, sync: bool, boot: str
    ) -> None:
        """Reads the file.  `is_new`: the store has no entries and no term.

        With ASYNC_FLUSH it is noted that more is acknowledged from now on than the disk has, until stopped(), and in
        which boot of the machine; an empty id of one equals none.  Raises StoreUnreadable, OSError.
        """
        self._path = directory / "whole"
        self._files = files
        self._runs = _Runs() if sync else _Runs(WRITTEN, boot)
        self.record, before = self._found(others, is_new, boot)
        self.has_room = True
        """Whether it is noted; if not, only what is flushed may be acknowledged."""
        try:
            if (self.record, self._runs) != before:
                self._save()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logger.error("no room for a note, so only what is flushed is acknowledged path=%s", self._path)
            self.has_room = False

    def _found(self, others: frozenset[str], is_new: bool, boot: str) -> tuple[WholeRecord, _Before]:
        """The record that counts, and what the file has."""
        try:
            content = read_file(self._files, self._path)
        except OSError as error:
            raise StoreUnreadable(self._path, error.strerror or str(error)) from error
        if content is None:
            return WholeRecord(NEW, Refill(others)) if is_new else WholeRecord(), (WholeRecord(), _Runs())
        try:
            written = typed_json.decode(_Written, content)
        except ValueError as error:
            logger.error("file is unfit, the member asks all others path=%s reason=%s", self._path, error)
            return WholeRecord(UNFIT, Refill(others)), None
        record, runs = _record(written), _Runs(written.acknowledges, written.boot)
        lost_power = runs.acknowledges == WRITTEN and (not boot or runs.boot != boot)
        if record.is_whole and lost_power:
            # Its votes are durable whatever the mode, so a leader is all that it needs.
            return WholeRecord(LOST_POWER, Refill(frozenset()), record.since, record.alone), (record, runs)
        return record, (record, runs)

    def save(self, record: WholeRecord) -> None:
        """Durable when it returns.  Raises OSError; what was saved before counts then."""
        before, self.record = self.record, record
        try:
            self._save()
        except OSError:
            self.record = before
            raise

    def stopped(self) -> None:
        """All that was acknowledged is durable, and nothing more will be.  Raises OSError."""
        if self._runs != _Runs():
            self._runs = _Runs()
            self._save()

    def _save(self) -> None:
        record, filling = self.record, self.record.filling
        written = _Written(
            why=record.why,
            awaited=sorted(filling.awaited) if filling is not None else None,
            newest=filling.newest if filling is not None else -1,
            target=filling.target if filling is not None else None,
            since=record.since,
            alone=record.alone,
            acknowledges=self._runs.acknowledges,
            boot=self._runs.boot,
        )
        replace_file(self._files, self._path, typed_json.encode_pretty(written) + b"\n")


def _record(written: _Written) -> WholeRecord:
    filling = None
    if written.why is not None:
        filling = Refill(frozenset(written.awaited or ()), written.newest, written.target)
    return WholeRecord(written.why, filling, written.since, written.alone)


def check_members(files: Files, directory: Path, ids: Collection[str]) -> None:
    """Notes who is in the group.  Raises StoreUnreadable if the store was that of a group of others, or if nobody
    can say whose it was; OSError.
    """
    path = directory / "members"
    try:
        content = read_file(files, path)
        known = typed_json.decode(list[str], content) if content is not None else None
    except OSError as error:
        raise StoreUnreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise StoreUnreadable(
            path,
            f"does not say what members the group had: {error}.  If dLegerPeers names the members of before, "
            f"{', '.join(sorted(ids))}, remove this file and start again; if not, write the old ids back first",
        ) from error
    if known is None:
        try:
            replace_file(files, path, typed_json.encode(sorted(ids)) + b"\n")
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logger.error("no room to note who is in the group path=%s", path)
    elif set(known) != set(ids):
        raise StoreUnreadable(
            path,
            f"says that the group has the members {', '.join(known)}, and dLegerPeers names {', '.join(sorted(ids))}: "
            "majorities of the two need have no member in common.  Write the old ids back; or stop all members, and if "
            "they were level remove this file at each of them before any is started",
        )


class RecallsFile:
    """A hint, and never more than that: what is not known of a member is not told to it."""

    def __init__(self, files: Files, directory: Path) -> None:
        """Reads the file; an unfit one says nothing.  Raises StoreUnreadable."""
        self._path = directory / "recalls"
        self._files = files
        self.known = self._read()

    def _read(self) -> dict[str, Recall]:
        try:
            content = read_file(self._files, self._path)
            found = typed_json.decode(dict[str, _Recalled], content or b"{}")
        except OSError as error:
            raise StoreUnreadable(self._path, error.strerror or str(error)) from error
        except ValueError as error:
            logger.warning("file is unfit and says nothing path=%s reason=%s", self._path, error)
            return {}
        return {name: Recall(term=one.term, index=one.index, vote=one.vote) for name, one in found.items()}

    def save(self, recalls: Mapping[str, Recall]) -> None:
        """Durable when it returns.  Raises OSError."""
        if recalls == self.known:
            return
        written = {name: _Recalled(one.term, one.index, one.vote) for name, one in recalls.items()}
        replace_file(self._files, self._path, typed_json.encode_pretty(written) + b"\n")
        self.known = dict(recalls)
