"""MemberList: how a master's list of replicas is written down, given to slaves, and counted by.

membership.py decides.  Here is the order in which that becomes true: a list with a new slave is durable
before that slave is accepted, and a list is durably in effect before an acknowledgement counts by it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from haservice.log_throttle import LogThrottle
from haservice.replication.lineage.epochs import UNKNOWN_EPOCH
from haservice.replication.lineage.file import LineageFile
from haservice.replication.lineage.membership import REPLICAS_MAX, Membership, ReplicaList
from haservice.replication.master.group_transfer import GroupTransferService
from haservice.replication.wire.hello import SlaveHello

logger = logging.getLogger(__name__)


class MemberList:
    """Any thread may call it.  `log_end` gives where the log ends now."""

    def __init__(
        self, lineage: LineageFile, group: GroupTransferService[Any], log_end: Callable[[], int]
    ) -> None:
        self._lineage = lineage
        self._group = group
        self._log_end = log_end
        self._lock = threading.Lock()  # guards _membership, and writing what it decides
        self._membership = Membership("", ReplicaList())
        self._wanted = (-1, 0)
        """A slave with a list below this version cannot be promoted by it, but by the present one it may."""
        self._newcomers: frozenset[str] = frozenset()
        """Slaves that are on no list before the one settled last.  The first list that they were given stands
        over those lists: none of these slaves can be promoted by it."""
        self._settled = (-1, 0)
        self._throttle = LogThrottle()

    def take(self, known: Iterable[tuple[str, tuple[int, int]]] = ()) -> None:
        """Another list is in the file: an epoch began, or a replica was forgotten.

        `known` are the slaves that follow now, and the version that each was given.
        """
        with self._lock:
            state = self._lineage.state
            self._membership = Membership(state.replica_id, state.members)
            for replica_id, version in known:
                self._membership.known_to(replica_id, version)
            self._count()

    def with_slave(self, slave: SlaveHello) -> ReplicaList:
        """The list with this slave on it, durably written; without it if there is no room.

        Raises OSError if it cannot be written: a slave that no other replica would know of is not accepted.
        """
        with self._lock:
            membership, last = self._membership, self._lineage.state.lineage.last
            epoch = last.number if last is not None else UNKNOWN_EPOCH
            since = self._lineage.state.lineage.mark(self._log_end())
            listed = membership.listed
            if self.is_own:
                listed = listed.joined(epoch, since, slave.replica_id, slave.broker_addr)
            elif slave.replica_id not in listed.replicas:
                listed = listed.joined(epoch, since, slave.replica_id, "")
            if listed != membership.listed and len(listed.replicas) <= REPLICAS_MAX:
                self._lineage.update(members=listed, listed=membership.listed)
                membership.list_anew(listed)
            if not slave.keeps_list:  # an older version: it counts as it did there
                membership.known_to(slave.replica_id, membership.listed.version)
            self._count()
            return membership.listed

    def known_to(self, replica_id: str, version: tuple[int, int]) -> None:
        """A slave has written down the list that it was given."""
        with self._lock:
            self._membership.known_to(replica_id, version)
            self._count()

    def has_to_hear(self, replica_id: str, version: tuple[int, int]) -> bool:
        """Whether a slave that was given that version has to be given the present list soon."""
        is_new = replica_id in self._newcomers and version < self._settled
        return version < self._wanted or is_new or replica_id in self.missing

    @property
    def is_overruled(self) -> bool:
        """Whether a coordinator's voters count, and not this list."""
        return self._group.by_voters

    @property
    def is_own(self) -> bool:
        """Whether the list is this master's.  If not, its epoch has not begun yet: nobody is taken off for an address
        then, for stores may have been exchanged, and this broker itself be at the address that the slave has now.
        """
        state = self._lineage.state
        return state.members.master in ("", state.replica_id)

    @property
    def missing(self) -> tuple[str, ...]:
        """Slaves that do not know the present list.  Until they do, the slaves that it adds do not count."""
        return self._membership.missing

    def name_of(self, replica_id: str) -> str:
        return self._membership.listed.replicas.get(replica_id) or f"replica {replica_id[:8]}"

    def _count(self) -> None:
        assert self._lock.locked()
        membership = self._membership
        settled = membership.settled
        try:
            if settled is not None:
                self._lineage.update(members=settled, listed=membership.listed)
                self._newcomers, self._settled = membership.newcomers, settled.version
                self._wanted = settled.version if membership.asks_too_much else self._wanted
                membership.list_anew(settled)
        except OSError as error:
            if self._throttle.ready():
                logger.error("new slaves do not count yet, for the list cannot be written reason=%s", error)
        self._group.count_only(membership.counting, membership.needed)
