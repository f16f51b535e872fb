"""IndexMender: builds an index file that does not fit the log again from the log, and replaces it.

    suspected   an entry led a query to another message than it wants, or a chain left its slot
    first       the log is checked, from the edge of a record; if it is damaged, it is fenced, and that is all
    built       beside the index, in lineage/, from the end of the file before it; then renamed, in one step

A file with others behind it has to be full: copies of its last entry stand in for what has expired.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.dispatch.expected import Expected
from commitlog.dispatch.gathering import Gatherer, MakeGatherer
from commitlog.errors import CommitLogError, CorruptRecord
from commitlog.index.files import IndexFiles
from commitlog.index.index_file import IndexFile, Puts
from commitlog.kernel.keys import Put
from commitlog.log.readable_log import ReadableLog
from commitlog.log.salvage import Held

logger = logging.getLogger(__name__)

_SUSPECTS_MAX = 100


class IndexMender:
    """Any thread may call suspect(); one thread of the background calls look()."""

    def __init__(
        self,
        log: ReadableLog,
        index: IndexFiles,
        dispatcher: Dispatcher,
        delay_levels: str,
        beside: Path,
        look_at: Callable[[int], None],
        wake: Callable[[], None],
        gatherer: MakeGatherer = Gatherer,
    ) -> None:
        """`beside`: where files are built.  `look_at(offset)` fences damage of the log.  `wake` has look()
        called.  `gatherer` is the dispatcher's.
        """
        self.at_work = threading.Lock()
        """Held while a piece of the log is walked, or a file is replaced."""
        self._log = log
        self._index = index
        self._dispatcher = dispatcher
        self._delay_levels = delay_levels
        self._beside = beside
        self._look_at = look_at
        self._wake = wake
        self._gatherer = gatherer
        self._suspects: set[tuple[str, str, int]] = set()
        self._busy = False

    def suspect(self, topic: str, key: str, physical_offset: int) -> None:
        """The index says that a message with this key lies there, but it does not.  Any thread."""
        if len(self._suspects) < _SUSPECTS_MAX:
            self._suspects.add((topic, key, physical_offset))
            self._wake()

    @property
    def busy(self) -> bool:
        """Whether a file is suspected or being rebuilt; so long, keys may be missing.  Any thread.  Wakes
        look() if a query has just found something.
        """
        if any(file.doubtful for file in self._index.files):
            self._wake()
            return True
        return self._busy or bool(self._suspects)

    def look(self) -> None:
        """Checks what is suspected, and rebuilds files that are damaged."""
        self._busy = bool(self._suspects) or any(file.doubtful for file in self._index.files)
        try:
            while self._suspects:
                self._look_at_suspect(*self._suspects.pop())
            for file in self._index.files:
                if file.doubtful:
                    self.build_again(file)
        except (CommitLogError, OSError) as error:
            logger.error("index not mended reason=%s", error)
        finally:
            self._busy = False

    def _look_at_suspect(self, topic: str, key: str, physical_offset: int) -> None:
        if self._log.start <= physical_offset < self._log.end:
            self._look_at(physical_offset)
            if self._log.fence_at(physical_offset) is not None:
                return  # the log is damaged, not the index
        file = self._index.find(topic, key, physical_offset)
        if file is not None and physical_offset >= self._log.start:
            file.doubtful = True

    def build_again(self, file: IndexFile) -> None:
        """Rebuilds the file.  Raises OSError or CommitLogError, with the file as before."""
        file.doubtful = False  # one try: a file that cannot be mended is not tried for ever
        files, cuts = self._index.files, self._log.cuts
        if file not in files:  # retention was quicker
            return
        number = files.index(file)
        before = files[number - 1] if number else None
        behind = files[number + 1].begin_physical_offset if number + 1 < len(files) else None
        new = self._index.make_beside(self._beside, before)
        try:
            walk = self._walk(file, before)
            final = self._fill(new, walk, _count_at_end(before), behind)
            with self.at_work, self._dispatcher.at_work:
                if behind is None:
                    self._catch_up(walk, new)
                elif final is not None:
                    while not new.full:
                        new.put(Puts([final] * 10_000))
                busy = behind is None and self._index.pending
                if file in self._index.files and not new.empty and not busy and cuts == self._log.cuts:
                    new.flush()
                    self._index.replace(file, new)
                    logger.error("index file did not fit the log, built again from it path=%s", file.path)
                    return
        except (CommitLogError, OSError):
            new.delete()
            raise
        new.delete()

    def _fill(
        self, new: IndexFile, walk: Expected, skipped: tuple[int, int], behind: int | None
    ) -> Put | None:
        """Adds the keys up to the next file's begin, or to what is dispatched; returns the last one."""
        final = None
        while walk.position < self._dispatcher.position and (behind is None or walk.position <= behind):
            with self.at_work:
                moved = walk.step_over(self._look_at)
            puts = [put for put in walk.take_puts() if behind is None or put[1] <= behind]
            skipped, puts = _without(skipped, puts)
            taken = new.put(Puts(puts))
            final = puts[taken - 1] if taken else final
            if taken < len(puts):
                logger.warning(
                    "index file is full, keys are left out path=%s from=%d", new.path, puts[taken][1]
                )
            if not moved or new.full:
                break
        return final

    def _walk(self, file: IndexFile, before: IndexFile | None) -> Expected:
        """Walks from the last message of the file before, or its own first one; else over all the log."""
        offset = before.end_physical_offset if before is not None else file.place_of(1)
        begin = self._log.form_at(offset).place_of(offset)
        if not self._is_edge(begin):
            begin = self._log.start
        return Expected(
            *(self._log, self._delay_levels, begin, lambda topic, queue_id: False),
            keys=True,
            gatherer=self._gatherer,
        )

    def _is_edge(self, offset: int) -> bool:
        segment = self._log.segments.find(offset) if self._log.start <= offset < self._log.end else None
        if segment is None:
            return False
        with Held(segment):
            return self._log.form_at(offset).walk_towards(segment, offset, self._log.fence_at) == offset

    def _catch_up(self, walk: Expected, new: IndexFile) -> None:
        """Adds what was dispatched meanwhile, while the dispatcher rests."""
        while walk.position < self._dispatcher.position:
            try:
                moved = walk.step()
            except CorruptRecord:
                break
            new.put(Puts(walk.take_puts()))
            if not moved:
                break


def _count_at_end(before: IndexFile | None) -> tuple[int, int]:
    """The last message of the file before, and how many of its keys that file has."""
    if before is None:
        return -1, 0
    place, count = before.end_physical_offset, 0
    while before.next_entry - 1 - count > 0 and before.place_of(before.next_entry - 1 - count) == place:
        count += 1
    return place, count


def _without(skipped: tuple[int, int], puts: list[Put]) -> tuple[tuple[int, int], list[Put]]:
    """Drops the keys that the file before has; returns what is left to drop, and the other keys."""
    place, count = skipped
    kept = []
    for put in puts:
        if put[1] < place:
            continue
        if put[1] == place and count:
            count -= 1
            continue
        kept.append(put)
    return (place, count), kept
