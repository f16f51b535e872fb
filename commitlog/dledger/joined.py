"""JoinedSegments: the files of a broker's log on DLedger as one log, for readers; the classic ones come first.

    <root>/commitlog/…            classic, ends with a blank      00000000000000000000
    <root>/dledger-<id>/data/…    entries                          00000000001073741824 and on

Entries are written through their EntryStore.  So nothing is added here: follow() looks what the store has.
"""

from __future__ import annotations

from commitlog.disk.files import Files
from commitlog.log.segment import Segment
from commitlog.log.segments import Segments


class JoinedSegments(Segments):
    """The segments of `classic`, then those of `entries`."""

    def __init__(self, files: Files, classic: Segments, entries: Segments) -> None:
        super().__init__(files, entries.directory, entries.segment_bytes)
        self._classic = classic
        self._entries = entries
        self._seen: tuple[tuple[Segment, ...], tuple[Segment, ...]] = ((), ())
        self.follow()

    @property
    def entries_begin(self) -> int:
        """Below it lies the classic log; 0 without one."""
        items = self._classic.items
        return items[-1].end if items else 0

    def follow(self) -> None:
        """Takes over what has changed.  Any thread; `items` is replaced as a whole."""
        classic, entries = self._classic.items, self._entries.items
        if classic is not self._seen[0] or entries is not self._seen[1]:
            self._seen = classic, entries
            # A log that began anew further behind does not continue the classic one any more.
            goes_on = not classic or not entries or classic[-1].end == entries[0].start
            self.items = classic + entries if goes_on else entries

    def drop_oldest(self) -> Segment | None:
        """The oldest classic file, the last one too if entries follow it; without any, the oldest of entries."""
        classic = self._classic
        if classic.items and self._entries.items:
            gone = classic.drop_oldest() or classic.drop_last()
        else:
            gone = self._entries.drop_oldest()
        self.follow()
        return gone

    def close(self) -> None:
        """Closes the classic files; the others belong to their store."""
        self._classic.close()
        self.items = ()
