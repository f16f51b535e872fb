"""SlaveHAService: replication of a slave.

ha-client      follows the master
ha-recorder    writes down how far the master's log was; only with a lineage file
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from commitlog.log.log import wall_clock_ms
from haservice.configuration.settings import BrokerRole, ReadMark, ReplicationConfig
from haservice.deadline import Deadline
from haservice.replication.service import HAThreads
from haservice.replication.slave.client import HAClient
from haservice.replication.slave.recorder import MasterRecorder
from haservice.replication.slave.rejoin import IncomingCheck, Rejoin, ReplicaLog
from haservice.replication.slave.shown_end import ShownEnd
from haservice.replication.status import HAStatus, MasterHeard
from haservice.replication.wire.secure import SecureDoors
from haservice.service import Service
from haservice.supervisor import Supervisor

logger = logging.getLogger(__name__)


class Log(ReplicaLog, Protocol):
    """The log as a slave uses it."""

    flushed: int


class SlaveHAService:
    """`damage`, `flush`, `boundary`, `rejoin`, `check`, `on_lost` and `on_greeted` are HAClient's.

    With `flush`, that is with SYNC_FLUSH, acks speak of flushed bytes, and consumers see only flushed bytes.
    `on_mark` is called when STRICT shows more: the master has told that more is acknowledged.
    `doors` says how it connects.  `supervisor` starts a thread that died again.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        log: Log,
        *,
        damage: Callable[[], str | None] = lambda: None,
        flush: Callable[[], object] | None = None,
        boundary: Callable[[], int] | None = None,
        supervisor: Supervisor | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        rejoin: Rejoin | None = None,
        doors: SecureDoors | None = None,
        check: IncomingCheck | None = None,
        on_lost: Callable[[], None] = lambda: None,
        on_mark: Callable[[], None] = lambda: None,
        on_greeted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._log = log
        self._lineage = rejoin.lineage if rejoin is not None else None
        self._shown = None
        if config.read_mark is ReadMark.STRICT and self._lineage is not None:
            self._shown = ShownEnd(min(self._lineage.state.acknowledged, log.end), on_mark)
        self._shows_flushed = flush is not None and config.read_mark is not ReadMark.OFF
        self._client = client = HAClient(
            config,
            log,
            damage=damage,
            flush=flush,
            boundary=boundary,
            clock_ms=clock_ms,
            rejoin=rejoin,
            doors=doors,
            check=check,
            objection=rejoin.objection if rejoin is not None else lambda _: "",
            on_lost=on_lost,
            on_greeted=on_greeted,
            shown=self._shown,
        )
        self._recorder: MasterRecorder | None = None
        if self._lineage is not None:
            self._recorder = MasterRecorder(
                self._lineage, lambda: client.heard, self._acknowledged, lambda: log.end
            )
        self._threads = HAThreads()
        self._supervisor = supervisor or Supervisor()
        client.set_master_address(config.master_address)

    def start(self) -> None:
        if self._recorder is not None:
            self._threads.start(Service("ha-recorder", self._recorder, self._supervisor.again))
        self._threads.start(Service("ha-client", self._client, self._supervisor.again))

    def stop(self, deadline: Deadline) -> bool:
        """Ends every thread.  May be called twice.  False if one is left."""
        return self._threads.stop(deadline)

    @property
    def connected(self) -> bool:  # whether the link to the master is up
        return self._client.connected

    @property
    def follows(self) -> bool:  # whether the master's log comes, or would if ours took it
        return self._client.follows

    @property
    def why_apart(self) -> str:  # why it does not come, if that is not the network's affair
        return self._client.why_apart

    @property
    def is_refused(self) -> bool:  # whether this slave's log and its master's do not go together
        return self._client.is_refused

    @property
    def heard(self) -> MasterHeard:  # of the master whose log is, or was, one with this slave's
        return self._client.heard

    @property
    def greeted_by(self) -> str:  # the master of ours to which the link is up, "" if it is not
        return self._client.greeted_by

    def set_master_address(self, address: str | None) -> None:
        """Sets the master to follow.  None, or text that is no address, changes nothing."""
        try:
            self._client.set_master_address(address)
        except ValueError as error:
            logger.warning("master address ignored reason=%s", error)

    def leave_master(self) -> None:
        """Leaves the link and dials again: the slave may have promised something meanwhile."""
        self._client.regreet()

    def readable_end(self) -> int:
        """The stored end; with SYNC_FLUSH, the flushed end; with STRICT, no more than is acknowledged."""
        end = self._log.flushed if self._shows_flushed else self._log.end
        return end if self._shown is None else min(end, self._shown.end)

    def _acknowledged(self) -> int | None:
        return None if self._shown is None else self._shown.acknowledged

    def status(self) -> HAStatus:
        end = self._log.end
        last = self._lineage.state.lineage.up_to(end).last if self._lineage is not None else None
        return HAStatus(
            role=BrokerRole.SLAVE.value,
            log_start=self._log.start,
            log_end=end,
            master=self._client.status(),
            epoch=last.number if last is not None else -1,
        )
