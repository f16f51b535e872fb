"""Takes a running store back: cuts its log at an earlier record, or empties the store, which begins anew.

    cut          bytes kept aside ─▶ `rewinding` ─▶ queues, checkpoint, index ─▶ the log ─▶ no `rewinding`
    begin anew                       `emptying` ─▶ all files go, or move ─▶ one empty segment ─▶ no `emptying`

The decision is the small file (intent_log.py).  A crash or error before it leaves everything as it was.
After it there is no way back: an error fences the log, and the next start does the rest before anything is
read.  When the call returns everything is durable, so no power cut brings a byte back.  The log's zeros are
synced.  So are the queues, whose old entries would otherwise pass for those of later messages.  The
checkpoint claims nothing for messages that are stored from now on.

The caller makes sure that the store's tasks rest, and that nobody transfers from the log.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.files import Files
from commitlog.disk.small_file import remove_tree
from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.errors import CorruptRecord, LogNotWritable, OffsetNotFound, StoreUnreadable
from commitlog.index.files import IndexFiles
from commitlog.log.log import CommitLog
from commitlog.log.salvage import Held, keep_aside, walk_towards
from commitlog.log.segments import Segments
from commitlog.options import LogOptions
from commitlog.queues.consume_queue import ConsumeQueues
from commitlog.queues.topic_floors import FILE
from commitlog.recovery.checkpoint import Checkpoint
from commitlog.recovery.intent_log import Emptying, IntentLog, Rewinding

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of an open store."""

    options: LogOptions
    files: Files
    log: CommitLog
    queues: ConsumeQueues
    index: IndexFiles
    checkpoint: Checkpoint
    dispatcher: Dispatcher
    unfinished: IntentLog


# -- the log is cut --------------------------------------------------------------------------------


def rewind(parts: StoreParts, offset: int) -> Path | None:
    """Cuts log, queues and index at `offset`, a record's edge; returns the file that keeps what was cut.

    Raises, with nothing changed, OffsetNotFound or CorruptRecord if the log cannot end there, StoreUnreadable
    if the disk does not take what is to be kept.  Raises LogNotWritable if the cut could not be finished.
    """
    log, files = parts.log, parts.files
    _check_open(log)
    if not log.start <= offset <= log.end:
        raise OffsetNotFound(offset, log.start, log.end)
    if offset == log.end:
        return None
    if not _is_edge(parts, offset):
        raise CorruptRecord(offset, "none begins or ends there, so the log cannot be cut")
    cut = parts.options.root / "cut"
    try:
        kept = keep_aside(log.segments.items, offset, cut, files)
    except OSError as error:
        raise StoreUnreadable(cut, f"what is to be cut is not kept: {error.strerror or error}") from error
    what = Rewinding(offset, log.end)
    _decide(parts, what)
    cut_bytes = log.end - offset
    try:
        parts.queues.rewind(offset)
        # Before the log's bytes go: the last message's time is read there.
        last_ms = _lower(parts, offset)
        parts.index.rewind(offset, last_ms)
    except OSError as error:
        _fail(log, f"cut at {offset}", error)
        with suppress(LogNotWritable):
            log.truncate(offset)
        raise _not_finished(log, error) from error
    log.truncate(offset)
    _settle(parts, what, offset)
    logger.warning("log cut offset=%d bytes=%d kept=%s", offset, cut_bytes, kept)
    return kept


def _is_edge(parts: StoreParts, offset: int) -> bool:
    """Whether a record ends, or begins, at `offset`."""
    log = parts.log
    if offset % log.segment_bytes == 0 or offset == parts.dispatcher.position:
        return True
    fence = log.fence_at(offset)
    if fence is not None:
        return fence.begin == offset
    if log.begins_record(offset):
        return True
    segment = log.segments.find(offset)
    if segment is None:
        return False
    with Held(segment):  # the record that begins there may be damaged itself
        return walk_towards(segment, offset, log.fence_at) == offset


def _lower(parts: StoreParts, offset: int) -> int:
    """Makes queues and checkpoint claim nothing behind `offset`; when the last message below was stored."""
    last_ms = parts.queues.last_stored_ms(parts.log)
    parts.queues.lower(last_ms, offset)
    parts.checkpoint.lower(last_ms, offset)
    return last_ms


# -- the store begins anew -------------------------------------------------------------------------


def restart_at(parts: StoreParts, offset: int, keep: Path | None) -> None:
    """Empties the store, which then begins at `offset`, a segment's start.  Its files go,
    or move below `keep`.

    Raises, with nothing changed, LogNotWritable for a log that is no replica or is fenced, OffsetNotFound for
    an offset amid a segment, StoreUnreadable for a `keep` that cannot take the files.  Raises LogNotWritable
    if it could not be finished.
    """
    log, options = parts.log, parts.options
    _check_open(log)
    if not options.replica:
        raise LogNotWritable("only a replica is emptied: its master has everything")
    if offset < 0 or offset % log.segment_bytes:
        raise OffsetNotFound(offset, log.start, log.end)
    if keep is not None:
        _check_keep(parts, keep)
    what = Emptying(offset, keep)
    _decide(parts, what)
    start, end = log.start, log.end

    def remove_files() -> None:
        # Nobody may find an old entry in a queue while the new log grows.
        parts.queues.let_go()
        parts.index.let_go()
        empty(options, parts.files, keep)
        parts.checkpoint.lower(0, 0)

    log.begin_anew(offset, remove_files)
    _settle(parts, what, offset)
    logger.warning("store emptied held_from=%d held_to=%d begins_at=%d kept=%s", start, end, offset, keep)


def finish_emptying(options: LogOptions, files: Files, what: Emptying) -> None:
    """Does the rest of it at a start, before anything is read.  Raises OSError."""
    empty(options, files, what.keep)
    checkpoint = Checkpoint(options.root / "checkpoint", files)
    try:
        checkpoint.lower(0, 0)
    finally:
        checkpoint.close()
    segments = Segments(files, options.log_path, options.segment_bytes)
    segments.load()
    try:
        segments.add(what.offset)
        segments.sync_entries()
    finally:
        segments.close()
    logger.warning(
        "store emptied, as was begun before the start begins_at=%d kept=%s", what.offset, what.keep
    )


def empty(options: LogOptions, files: Files, keep: Path | None) -> None:
    """Removes all files of log, queues and index, or moves them below `keep`, durably.  Raises OSError.

    May be called again after a crash amid the call.
    """
    _let_floors_go(options.root, files, keep)
    for directory, name in _directories(options):
        if not files.exists(directory):
            continue
        target = None if keep is None else keep / name
        if target is not None:
            files.make_directory(target)
        for entry in files.listdir(directory):
            # If it was moved before, what is here now was made since, and holds nothing.
            if target is None or files.exists(target / entry):
                remove_tree(files, directory / entry)
            else:
                files.rename(directory / entry, target / entry)
        if target is not None:
            files.sync_directory(target)
        files.sync_directory(directory)


def _let_floors_go(root: Path, files: Files, keep: Path | None) -> None:
    """They are places in the log that goes."""
    path = root / FILE
    if keep is not None and files.exists(path) and not files.exists(keep / FILE):
        target = keep / FILE
        files.make_directory(target.parent)
        files.rename(path, target)
        files.sync_directory(target.parent)
    remove_tree(files, path)
    if files.exists(path.parent):
        files.sync_directory(path.parent)


def _directories(options: LogOptions) -> list[tuple[Path, str]]:
    root = options.root
    return [
        (options.log_path, "commitlog"),
        (root / "consumequeue", "consumequeue"),
        (root / "index", "index"),
    ]


def _check_keep(parts: StoreParts, keep: Path) -> None:
    """Makes the directory `keep`.  It has to be empty, and on the same file system as the files."""
    files = parts.files
    try:
        files.make_directory(keep)
        if files.listdir(keep):
            raise StoreUnreadable(keep, "is not empty, so nothing is moved there")
        for directory, _ in _directories(parts.options):
            if files.device(directory) != files.device(keep):
                files.remove_directory(keep)
                raise OSError(errno.EXDEV, f"{directory} is on another file system", str(keep))
    except OSError as error:
        raise StoreUnreadable(keep, error.strerror or str(error)) from error


# -- both ------------------------------------------------------------------------------------------


def _check_open(log: CommitLog) -> None:
    if log.fenced:
        raise LogNotWritable(log.writable or "shut down")


def _decide(parts: StoreParts, what: Rewinding | Emptying) -> None:
    try:
        parts.unfinished.begin(what)
    except OSError as error:
        try:
            begun = parts.unfinished.is_begun(what)
        except OSError:
            begun = True
        if begun:
            _fail(parts.log, f"going back to {what.offset}", error)
            raise _not_finished(parts.log, error) from error
        raise StoreUnreadable(parts.options.root, f"not cut: {error.strerror or error}") from error


def _settle(parts: StoreParts, what: Rewinding | Emptying, offset: int) -> None:
    """Everything is on the disk: removes the intent, and has the dispatcher go on from there."""
    log, queues, dispatcher = parts.log, parts.queues, parts.dispatcher
    try:
        parts.unfinished.done(what)
    except OSError as error:
        _fail(log, f"going back to {offset}", error)
        raise _not_finished(log, error) from error
    log.set_queue_offsets({key: queue.max_offset for key, queue in queues.items()})
    dispatcher.go_back(min(dispatcher.position, offset) if isinstance(what, Rewinding) else offset)


def _fail(log: CommitLog, what: str, error: OSError) -> None:
    log.fence(f"{what} is not finished, a restart is needed: {error}")


def _not_finished(log: CommitLog, error: OSError) -> LogNotWritable:
    return LogNotWritable(log.writable or "fenced", errno=error.errno)
