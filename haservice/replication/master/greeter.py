"""Greeter: a master's part in the greetings of all its slaves, and what follows from each greeting.

    a slave calls       nobody else may be at work under its replica id; it is given the list of replicas,
                        with itself on it
    it was answered     it is written down, or a log line says why the two logs do not match; the roles hear
                        of both
    it has joined       it has the list: the slaves that the list adds may count
    it is gone          its last offset is written down

Any thread may call it; mostly the connections' threads do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from haservice.configuration.settings import BrokerRole
from haservice.log_throttle import LogThrottle
from haservice.replication.lineage.file import LineageFile, Replica
from haservice.replication.lineage.member_list import MemberList
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.lineage.own_record import why_older_copy
from haservice.replication.master.connection import HAConnection
from haservice.replication.master.in_sync import InSync, Log
from haservice.replication.master.recorder import ReplicaRecorder
from haservice.replication.wire.greeting import Facts, GreetingAnswer, GreetingOutcome, MasterGreeting
from haservice.replication.wire.hello import SlaveHello
from haservice.replication.wire.protocol import MasterState
from haservice.replication.wire.secure import SecureDoors
from haservice.replication.wire.transport import Transport

logger = logging.getLogger(__name__)

# A greeting that ends the same way as before is told again after so long.
REFUSED_AGAIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Greets:
    """What a master needs to greet slaves of ours.

    `on_ahead(hello)` is told of a slave that holds what this master lost, up to hello.position.
    `on_heard(hello, outcome)` is told of every greeting.  The slave's thread calls both, before it answers.
    """

    lineage: LineageFile
    facts: Facts
    on_ahead: Callable[[SlaveHello], None] = lambda _: None
    on_heard: Callable[[SlaveHello, GreetingOutcome], None] = lambda _, __: None


class Greeter:
    """`connections` gives the present connections, oldest first; `acknowledged` is MasterGreeting's."""

    def __init__(
        self,
        greets: Greets,
        role: str,
        log: Log,
        listed: MemberList,
        in_sync: InSync,
        connections: Callable[[], Sequence[HAConnection]],
        doors: SecureDoors | None,
        acknowledged: Callable[[], int],
    ) -> None:
        self._acknowledged = acknowledged
        self._greets = greets
        self._role = role
        self._log = log
        self._list = listed
        self._in_sync = in_sync
        self._connections = connections
        self._doors = doors
        self._refusals = LogThrottle(REFUSED_AGAIN_S)
        self.recorder = ReplicaRecorder(greets.lineage, self._replicas)
        """The task of ha-recorder."""

    # -- one slave ----------------------------------------------------------------------------------

    def greeting(self, transport: Transport, peer: str) -> MasterGreeting:
        """The greeting for a new connection."""
        lineage = self._greets.lineage
        return MasterGreeting(
            self._greets.facts,
            lineage.state.replica_id,
            self._role,
            self._log,
            lambda: lineage.state.lineage,
            objection=lambda slave: self._why_taken(slave, peer),
            members=lambda slave: self._list_with(self._believed(transport.secured, slave)),
            acked=self._acked,
            is_appointed=lineage.state.joined >= 0,
            acknowledged=self._acknowledged,
            older=lambda slave: self._why_older(self._believed(transport.secured, slave)),
        )

    def _why_older(self, slave: SlaveHello) -> str:
        """With a coordinator it remembers how far this log went; an ASYNC_MASTER's OK is its own affair."""
        state = self._greets.lineage.state
        if self._role != BrokerRole.SYNC_MASTER.value or state.joined >= 0:
            return ""
        who, listed = (slave.replica_id, slave.broker_addr), slave.members
        return why_older_copy(state, *who, listed, slave.lineage, slave.log.end)

    def _acked(self, slave: SlaveHello) -> int:
        known = self._greets.lineage.state.replicas.get(slave.replica_id)
        return known.offset if known is not None else -1

    def greeted(self, connection: HAConnection, answer: GreetingAnswer) -> None:
        """Called before the slave is answered."""
        slave = self._believed(connection.secured, answer.slave)
        if answer.outcome is GreetingOutcome.ACCEPTED:
            heard_ms = self._in_sync.heard_ms(connection)
            self.recorder.greeted(slave.replica_id, self._replica(slave, slave.position, heard_ms))
            for outcome in GreetingOutcome:
                self._refusals.ended((slave.replica_id, outcome))
        elif self._refusals.ready((slave.replica_id, answer.outcome)):
            # A master that lost its end in a power cut takes it back from the slave by itself.
            mends_itself = answer.verdict.again or answer.outcome is GreetingOutcome.AHEAD
            logger.log(
                logging.WARNING if mends_itself else logging.ERROR,
                "a slave's log and ours do not go together peer=%s broker=%s outcome=%s reason=%s",
                connection.peer,
                slave.broker_addr,
                answer.outcome.name,
                answer.verdict.reason,
            )
        if answer.outcome is GreetingOutcome.AHEAD:
            self._greets.on_ahead(slave)
        self._greets.on_heard(slave, answer.outcome)

    def joined(self, connection: HAConnection) -> None:
        """The slave has written down the list that it was given."""
        if connection.slave is not None:
            self._list.known_to(connection.slave.replica_id, connection.listed.version)
            self._call_back()

    def left(self, connection: HAConnection) -> None:
        """The slave's connection has ended."""
        if connection.slave is not None:
            reported = connection.progress.reported
            offset = reported if reported >= 0 else connection.slave.position
            self.recorder.left(connection.slave.replica_id, offset, self._in_sync.heard_ms(connection))

    def forget_lost_acks(self) -> None:
        """Call it at the start: of what this broker was told as a slave, its log may have lost the end, and other
        bytes take that place now.  Raises OSError."""
        lineage, end = self._greets.lineage, self._log.end
        if lineage.state.acknowledged > end:
            lineage.update(acknowledged=end)

    # -- the list of replicas -----------------------------------------------------------------------

    def take_list(self) -> None:
        """Another list of replicas is in the file: an epoch began, or a replica was forgotten."""
        self._list.take(
            (one.slave.replica_id, one.listed.version)
            for one in self._connections()
            if one.slave is not None and one.progress.state is MasterState.TRANSFER
        )
        self._call_back()

    def _list_with(self, slave: SlaveHello) -> ReplicaList:
        """The list of replicas that the slave is given."""
        listed = self._list.with_slave(slave)
        self._call_back()
        return listed

    def _call_back(self) -> None:
        """Makes slaves that have to be given the present list dial again within a moment."""
        for one in self._connections():
            if one.slave is not None and self._list.has_to_hear(one.slave.replica_id, one.listed.version):
                one.shut_down()

    # -- who it is ----------------------------------------------------------------------------------

    def _believed(self, secured: bool, slave: SlaveHello) -> SlaveHello:
        """What we act upon: we neither go to, nor write down, an address that a stranger names."""
        if self._doors is None or self._doors.believes(secured):
            return slave
        return replace(slave, broker_addr="")

    def _why_taken(self, slave: SlaveHello, peer: str) -> str:
        """A replica id is no secret: at work from one address, it is refused to anybody at another."""
        host = peer.rpartition(":")[0]
        for other in self._connections():
            taken = other.slave is not None and other.slave.replica_id == slave.replica_id
            if (
                taken
                and other.progress.state is MasterState.TRANSFER
                and other.peer.rpartition(":")[0] != host
            ):
                return f"replica {slave.replica_id} is connected from {other.peer}"
        return ""

    def _replica(self, slave: SlaveHello, offset: int, heard_ms: int) -> Replica:
        return Replica(slave.broker_addr, offset, heard_ms, self._in_sync.near(offset))

    def _replicas(self) -> dict[str, Replica]:
        """Replicas of ours that follow now."""
        now_s, end = time.monotonic(), self._log.end
        replicas = {}
        for connection in self._connections():
            slave, progress = connection.slave, connection.progress
            if slave is None:
                continue
            slave, heard_ms = (
                self._believed(connection.secured, slave),
                self._in_sync.heard_ms(connection),
            )
            if progress.state is MasterState.TRANSFER:
                may_have_all = self._in_sync.may_have_all(connection, end, now_s)
                one = msgspec.structs.replace(
                    self._replica(slave, progress.reported, heard_ms), in_sync=may_have_all
                )
            else:
                one = self._replica(slave, slave.position, heard_ms)
            replicas[slave.replica_id] = one
        return replicas
