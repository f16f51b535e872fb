"""How a slave's consumer offsets and its master's become one: per queue, the newest wins.

An offset alone does not say when it was committed, but a change does.  So the slave compares a look at the
master's table with the look before, if both were at the same run of the same master:

    the master says           since the last look              then
    further than ours         –                                its offset
    less than ours            it changed, ours did not         its offset: a reset, or consumers that go
                                                               over messages again
    less than ours            ours changed, or neither did     ours
    less than ours            there was no look before         ours: a master that returns, or a slave
    nothing                   it had one, ours is unchanged    none: the group was deleted there
    nothing                   else                             ours

Pure: no clock, no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.broker.offsets.table import ShardedTable

SEPARATOR = "@"

OffsetTable = dict[str, dict[int, int]]


class OffsetPair(NamedTuple):
    """One queue after a look: the master's offset, and the one kept here."""

    theirs: int
    ours: int


@dataclass(frozen=True, slots=True)
class Looks:
    """A whole look: the master's table, and the offsets kept here where they differ."""

    theirs: ShardedTable = field(default_factory=ShardedTable)
    kept: dict[tuple[str, int], int] = field(default_factory=dict)

    def get(self, key: str, queue_id: int) -> OffsetPair | None:
        """None for a queue that the master did not have."""
        queues = self.theirs.get(key)
        theirs = None if queues is None else queues.get(queue_id)
        return None if theirs is None else OffsetPair(theirs, self.kept.get((key, queue_id), theirs))

    def note(self, key: str, queue_id: int, theirs: int | None, kept: int | None) -> None:
        """One queue of this look: the master's offset, None if it has none, and the one kept here."""
        if theirs is None:
            self.theirs.drop(key, (queue_id,))
        else:
            self.theirs.put(key, queue_id, theirs)
        if theirs is None or kept is None or kept == theirs:
            self.kept.pop((key, queue_id), None)
        else:
            self.kept[key, queue_id] = kept


def settled(ours: int | None, theirs: int | None, last: OffsetPair | None) -> int | None:
    """The new offset of a queue; None if it is removed, or there was none."""
    if theirs is None:
        return None if last is not None and ours == last.ours else ours
    if ours is None or theirs >= ours:
        return theirs
    if last is not None and theirs != last.theirs and ours == last.ours:
        return theirs
    return ours


def handed_back(
    slaves: Iterable[tuple[str, Mapping[int, int]]],
    is_group: Callable[[str], bool],
    end_of: Callable[[str, int], int | None],
) -> OffsetTable:
    """Which of a slave's offsets a master may take when it returns.

    Only those of groups that `is_group` knows: a stock slave keeps offsets of deleted groups for ever.  And
    no further than the queues' ends here, which `end_of` (topic, queue id) gives (None: no such topic): this
    master numbers anew what it has lost, and a group that was further would skip it.
    """
    taken: OffsetTable = {}
    for key, queues in slaves:
        topic, _, group = key.partition(SEPARATOR)
        if is_group(group):
            here = {
                queue_id: min(offset, end)
                for queue_id, offset in queues.items()
                if (end := end_of(topic, queue_id)) is not None
            }
            if here:
                taken[key] = here
    return taken
