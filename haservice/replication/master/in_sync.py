"""InSync: which slaves of a master are in sync, why the others are not, and how far behind each is.

Any thread may ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from commitlog.errors import CommitLogError
from commitlog.kernel.layout import STORED_BYTES
from commitlog.kernel.records import stored_at
from haservice.configuration.settings import ReplicationConfig
from haservice.replication.lineage.member_list import MemberList
from haservice.replication.master.connection import HAConnection
from haservice.replication.master.outgoing import SourceLog
from haservice.replication.master.progress import AckTable
from haservice.replication.rates_and_backoff import Growth
from haservice.replication.status import Lack, NotInSync, SlaveStatus
from haservice.replication.wire.greeting import GreetedLog
from haservice.replication.wire.protocol import MasterState


class Log(SourceLog, GreetedLog, Protocol):
    """The log as a master uses it."""

    flushed: int


class InSync:
    """`listed` is the list of replicas, if there is one; a slave on it may not count until others know it."""

    def __init__(
        self,
        config: ReplicationConfig,
        log: Log,
        table: AckTable,
        growth: Growth,
        listed: MemberList | None,
        clock_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._table = table
        self._growth = growth
        self._list = listed
        self._clock_ms = clock_ms
        self._fallbehind_max_bytes = config.fallbehind_max_bytes
        self._slave_timeout_ms = config.slave_timeout_ms

    def lack(self, connection: HAConnection, end: int, now_s: float) -> Lack | None:
        """Why the slave is not in sync; None if it is."""
        progress = connection.progress
        if progress.state is not MasterState.TRANSFER:
            return Lack(NotInSync.NO_REPORT)
        lag_bytes = end - progress.reported
        if lag_bytes >= self._fallbehind_max_bytes:
            return Lack(NotInSync.BYTES_BEHIND, (lag_bytes, self._fallbehind_max_bytes))
        if not self._table.counts(progress):
            return Lack(NotInSync.NOT_COUNTED, (self._waited_for(),))
        return self._late(connection, end, now_s)

    def _late(self, connection: HAConnection, end: int, now_s: float) -> Lack | None:
        behind_s = self._lag_s(connection.progress.reported, end, now_s)
        if behind_s * 1000 > self._slave_timeout_ms:
            return Lack(NotInSync.SECONDS_BEHIND, (behind_s, self._slave_timeout_ms))
        return None

    def may_have_all(self, connection: HAConnection, end: int, now_s: float) -> bool:
        """Whether the slave is in sync, or lacks only that it counts: after a power cut it may be the one that has
        what was not flushed here, and has to be heard.
        """
        lack = self.lack(connection, end, now_s)
        if lack is not None and lack.why is NotInSync.NOT_COUNTED:
            lack = self._late(connection, end, now_s)
        return lack is None

    def near(self, offset: int) -> bool:
        """Whether a slave whose log ends at `offset` would be in sync, judged by bytes."""
        return self._log.end - offset < self._fallbehind_max_bytes

    def heard_ms(self, connection: HAConnection) -> int:
        return self._clock_ms() - int((time.monotonic() - connection.heard_s) * 1000)

    def status(self, connections: Iterable[HAConnection], end: int) -> tuple[int, tuple[SlaveStatus, ...]]:
        """How many slaves are in sync (each counts once, whatever its connections); and each one's status."""
        now_s = time.monotonic()
        lacks = {connection: self.lack(connection, end, now_s) for connection in connections}
        in_sync = {one.progress.identity for one, lack in lacks.items() if lack is None}
        return len(in_sync), tuple(self._slave(one, end, now_s, lack) for one, lack in lacks.items())

    def _slave(self, connection: HAConnection, end: int, now_s: float, lack: Lack | None) -> SlaveStatus:
        progress, slave = connection.progress, connection.slave
        known = progress.state is MasterState.TRANSFER
        return SlaveStatus(
            addr=connection.peer,
            state=progress.state.value,
            position=progress.sent if known else -1,
            ack=progress.reported,
            proven=progress.acked if progress.acked is not None else -1,
            sent_from=progress.sent_from if known else -1,
            lag_bytes=max(0, end - max(progress.reported, 0)),
            lag_seconds=self._lag_s(progress.reported, end, now_s) if known else 0.0,
            bytes_per_second=connection.rate.rate(now_s),
            lack=lack,
            replica_id=slave.replica_id if slave is not None else "",
            broker_addr=slave.broker_addr if slave is not None else "",
            software=slave.software if slave is not None else "",
            heard_ms=self.heard_ms(connection),
        )

    def _lag_s(self, position: int, end: int, now_s: float) -> float:
        """For how long the slave has lacked something: as watched, and at least by the first record that it lacks.

        That one was stored before we watched, perhaps by another's clock, or by ours before somebody set it.
        """
        watched_s = self._growth.behind_s(position, end, now_s)
        if position < end and not self._growth.covers(position):
            stored_ms = _stored_ms(self._log, max(position, self._log.start))
            if stored_ms is not None:
                return max(watched_s, (self._clock_ms() - stored_ms) / 1000)
        return watched_s

    def _waited_for(self) -> str:
        """Which slaves have to learn the present list of replicas before those that it adds count."""
        if self._list is not None and self._list.is_overruled:
            return "the coordinator does not have it among the voters yet"
        if self._list is not None and not self._list.is_own:
            return "this master has not begun an epoch yet"
        if self._list is None or not self._list.missing:
            return "the list of replicas is just being written"
        named = ", ".join(map(self._list.name_of, self._list.missing))
        return f"{named} may have acknowledged messages and does not know this slave: start {named}, or forget it"


def _stored_ms(log: Log, position: int) -> int | None:
    """When the record at `position` was stored, by the wall clock; None if no record begins there."""
    try:
        return stored_at(log.read(position, STORED_BYTES), position)
    except CommitLogError:
        return None
