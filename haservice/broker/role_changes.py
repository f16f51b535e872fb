"""RoleChanges: what turns a slave into a master and a master into a slave, one change at a time.

    promote       slave    last copy of side state, link down, a new term and the role durable, turn
    follow        master   there is a newer term: a slave from now on, durable, turn
    switch over   master   appends held, the slave level, the slave promoted, a slave itself, turn
    step down     master   as follow, found out by itself
    begin a term  master   that was held: goes on in a new term; its slaves come back to take it over
    empty         slave    log and queues away, turn

To turn is to stop and to start again in the same process with what is written by then; who asked is answered
before.  Whatever fails before something is written leaves all as it was; a master that has to give way and
cannot write it takes nothing, and tries again.

All of it blocks: in a work thread, or the keeper's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from commitlog.errors import CommitLogError
from commitlog.log import wall_clock_ms
from commitlog.store_lock import boot_id
from haservice.broker.peers import Heard
from haservice.broker.refill import SIZE_BYTES, is_unfinished
from haservice.broker.role_parts import HOLDER, RoleParts, refused
from haservice.broker.roles import (
    NewerMaster,
    RoleInForce,
    command_for,
    none_in_sync,
    role_in_force,
    slave_id,
    with_new_term,
)
from haservice.broker.switchover import Switchover
from haservice.deadline import Deadline
from haservice.errors import RemotingError, RequestError
from haservice.remoting.lineage_headers import (
    FollowHeader,
    LineageBody,
    PromoteHeader,
    SwitchoverBody,
    SwitchoverHeader,
)
from haservice.replication.lineage import Lineage, LogSpan
from haservice.replication.lineage_file import HandingOver, RoleCommand
from haservice.settings import BrokerRole

logger = logging.getLogger(__name__)

# A master that lives hands over what it keeps beside the log within a moment; one that is gone must not keep
# its successor from starting.
COPY_SECONDS = 2.0
COPY_FROM_LOST_SECONDS = 0.5
LINK_STOP_SECONDS = 2.0
# What is not dispatched yet has to be, to know where the last whole record ends.
DISPATCH_SECONDS = 30.0
DISPATCH_LOOK_SECONDS = 0.05
CONFIRM_SECONDS = 2.0


class RoleChanges:
    """Every change of this broker's role, and what it says of its lineage."""

    def __init__(self, parts: RoleParts) -> None:
        self._parts = parts
        self._switchover = Switchover(parts)
        self._lock = threading.Lock()  # held by the one change that is under way
        # Why the broker is about to turn; "" while it is not.  Never taken back.
        self.turning = ""
        # Changes that were asked for and are not answered yet; of the remoting loop.
        self.asked = 0

    # -- what is said -------------------------------------------------------------------------------

    @property
    def changing(self) -> bool:
        return self.asked > 0 or bool(self.turning) or self._lock.locked()

    def describe(self, role: RoleInForce | None = None) -> LineageBody:
        """Who we are and what our log is; in `role`, if that is what we are about to be."""
        return self._parts.describe(role, changing=self.changing, handing_over=self._switchover.token)

    # -- a slave becomes the master -----------------------------------------------------------------

    def promote(self, header: PromoteHeader) -> LineageBody:
        """40003.  Raises RequestError, and nothing has changed but that the link may be made anew."""
        with self._one_change():
            if not self._parts.role.role.is_slave:
                return self._further_term(header)
            role = self._role_wanted(header.role)
            end = self._parts.store.log.end
            if header.expected_end not in (-1, end):
                raise refused(f"the log ends at {end}, and not at {header.expected_end}")
            planned = header.expected_end >= 0
            if not self._parts.copy_side_state(COPY_SECONDS if planned else COPY_FROM_LOST_SECONDS):
                logger.warning("promoted without a last copy of what the master keeps beside its log")
            self._parts.ha.stop(Deadline(LINK_STOP_SECONDS))
            try:
                command = self._commit_promotion(header, role)
            except BaseException:
                self._turn_soon("not promoted, the link to the master is made anew")
                raise
            self._turn_soon(f"promoted to {role.value}: {header.why or 'no reason given'}")
            return self.describe(role_in_force(self._parts.file_config, command))

    def _role_wanted(self, name: str) -> BrokerRole:
        """The one that was asked for; else the last master's, or the file's, or the one that is safest."""
        if name:
            if name not in BrokerRole.__members__ or BrokerRole[name].is_slave:
                raise refused(f"role {name[:32]!r} is neither ASYNC_MASTER nor SYNC_MASTER")
            return BrokerRole[name]
        remembered = self._parts.lineage.state.master_role
        if remembered in (BrokerRole.ASYNC_MASTER.value, BrokerRole.SYNC_MASTER.value):
            return BrokerRole[remembered]
        file_role = self._parts.role.file_role
        return BrokerRole.SYNC_MASTER if file_role.is_slave else file_role

    def _commit_promotion(self, header: PromoteHeader, role: BrokerRole) -> RoleCommand | None:
        """The link is down, and the log does not grow any more."""
        parts, log = self._parts, self._parts.store.log
        end = self._whole_end()
        if header.expected_end not in (-1, end):
            raise refused(f"the log ends at {end}, and not at {header.expected_end}")
        why = header.why or "promoted"
        command = command_for(role, 0, parts.role, why, wall_clock_ms())
        heard = max(header.min_epoch - 1, parts.keeper().heard)
        try:
            log.flush()
            if header.confirm_addr:
                self._confirm(header)
            span = LogSpan(log.start, end)
            state = parts.lineage.state
            lineage = with_new_term(state, span, why, wall_clock_ms(), promoted=True, heard=heard)
            parts.lineage.update(
                lineage=lineage, replicas=none_in_sync(state), command=command, boot_id=boot_id()
            )
        except (CommitLogError, OSError, ValueError) as error:
            raise refused(f"the new term cannot be written: {error}") from error
        logger.warning(
            "promoted role=%s epoch=%d start=%d why=%s", role.value, lineage.epochs[-1].number, end, why
        )
        return command

    def _confirm(self, header: PromoteHeader) -> None:
        """The master that hands over may have given up meanwhile, and takes messages again."""
        try:
            master = self._parts.peers.ask_one(header.confirm_addr, CONFIRM_SECONDS)
        except (RemotingError, ValueError) as error:
            raise refused(f"the master does not say that it still hands over: {error}") from error
        if not header.token or master.handing_over != header.token:
            raise refused("the master does not hand over any more")

    def _whole_end(self) -> int:
        """Where the last whole record ends: the start of another one, which its master never finished, is
        cut when the store is closed.
        """
        log, dispatcher = self._parts.store.log, self._parts.store.dispatcher
        deadline = Deadline(DISPATCH_SECONDS)
        arrived = threading.Event()
        dispatcher.when_at(log.end, arrived.set)
        while not arrived.wait(DISPATCH_LOOK_SECONDS):
            position, end = dispatcher.position, log.end
            if dispatcher.failed is not None:
                raise refused(f"the log is damaged: {dispatcher.failed}")
            if is_unfinished(log.read(position, SIZE_BYTES), end - position):
                return position
            if deadline.expired:
                raise refused(f"{end - position} bytes of the log are not dispatched yet; try again")
        return log.end

    def _further_term(self, header: PromoteHeader) -> LineageBody:
        """A master that is told to go on, without those that it waits for, or in the other master's role."""
        parts = self._parts
        last = parts.lineage.state.lineage.last
        number = last.number if last is not None else -1
        if header.min_epoch <= number:
            raise refused(f"this broker is the master already, its term is {number}")
        if header.expected_end not in (-1, parts.store.log.end):
            raise refused(f"the log ends at {parts.store.log.end}, and not at {header.expected_end}")
        why = header.why or "an operator's choice"
        role = self._role_wanted(header.role) if header.role else parts.role.role
        if role is parts.role.role:
            self._commit_term(why, header.min_epoch - 1, promoted=True)
            return self.describe()
        command = command_for(role, 0, parts.role, why, wall_clock_ms())
        self._commit_term(why, header.min_epoch - 1, promoted=True, command=command)
        self._turn_soon(f"the role is {role.value} from now on: {why}")
        return self.describe(role_in_force(parts.file_config, command))

    def begin_term(self, why: str) -> None:
        """The keeper has heard all that this master was held for.  Raises RequestError: it is still held."""
        with self._one_change():
            self._commit_term(why, -1, promoted=False)

    def _commit_term(self, why: str, heard: int, *, promoted: bool, **changes: Any) -> None:
        """Begins a term at the log's end, which stands still meanwhile, and releases a hold."""
        parts, log = self._parts, self._parts.store.log
        log.hold_appends("a new term begins", HOLDER)
        try:
            log.flush()
            span = LogSpan(log.start, log.end)
            heard = max(heard, self._parts.keeper().heard)
            state = parts.lineage.state
            lineage = with_new_term(state, span, why, wall_clock_ms(), promoted=promoted, heard=heard)
            parts.lineage.update(
                lineage=lineage,
                replicas=none_in_sync(state),
                boot_id=boot_id(),
                handing_over=None,
                **changes,
            )
        except (CommitLogError, OSError, ValueError) as error:
            log.hold_appends(None, HOLDER)
            raise refused(f"the new term cannot be written: {error}") from error
        logger.warning("a term begins epoch=%d start=%d why=%s", lineage.epochs[-1].number, span.end, why)
        self._parts.keeper().release()
        parts.ha.regreet()
        log.hold_appends(None, HOLDER)

    # -- a master becomes a slave -------------------------------------------------------------------

    def follow(self, header: FollowHeader) -> LineageBody:
        """40004."""
        parts = self._parts
        if parts.role.role.is_slave:
            with self._one_change():
                self._note_master(header)
                return self.describe()
        last = parts.lineage.state.lineage.last
        if last is not None and header.epoch <= last.number:
            raise refused(
                f"this broker is the master of term {last.number}, and {header.epoch} is no newer one"
            )
        heard = parts.peers.ask([header.master_addr])
        named = next((one for one in heard.peers if one.broker_addr == header.master_addr), None)
        newer = NewerMaster(
            header.epoch, header.master_addr, header.ha_addr, named.file_broker_id if named is not None else 0
        )
        with self._one_change():
            command = self._commit_slave(newer, heard, header.why or "told to follow")
            return self.describe(role_in_force(parts.file_config, command))

    def _note_master(self, header: FollowHeader) -> None:
        parts = self._parts
        parts.set_master(header.master_addr, header.ha_addr)
        command = parts.lineage.state.command
        if command is not None and header.ha_addr:
            parts.lineage.update(
                command=RoleCommand(
                    command.role,
                    command.broker_id,
                    command.file_role,
                    wall_clock_ms(),
                    command.why,
                    header.ha_addr,
                )
            )

    def step_down(self, newer: NewerMaster, heard: Heard, why: str) -> None:
        """A newer master was found."""
        try:
            with self._one_change():
                self._commit_slave(newer, heard, f"stepped down: {why}")
        except RequestError as error:
            logger.info("not stepped down now reason=%s", error)
            return
        self.turn()

    def _commit_slave(self, newer: NewerMaster, heard: Heard, why: str) -> RoleCommand | None:
        """Raises RequestError when it cannot be written: the keeper tries it again, for there is a newer term
        whatever we write.
        """
        parts = self._parts
        parts.store.log.hold_appends("this broker becomes a slave", HOLDER)
        broker_id = free_slave_id(parts.role, newer, heard)
        command = command_for(BrokerRole.SLAVE, broker_id, parts.role, why, wall_clock_ms(), newer.ha_addr)
        try:
            parts.lineage.update(command=command, handing_over=None)
        except OSError as error:
            trouble = (
                f"{newer.broker_addr} is the master, and that this broker follows cannot be written: {error}"
            )
            logger.error("nothing is taken reason=%s", trouble)
            parts.store.log.hold_appends(trouble, HOLDER)
            parts.keeper().told_of(newer.epoch, newer.broker_addr)
            raise refused(f"{trouble}; nothing is taken, and it is tried again") from error
        logger.warning(
            "becomes a slave id=%d of=%s epoch=%d why=%s", broker_id, newer.broker_addr, newer.epoch, why
        )
        self._turn_soon(why)
        return command

    # -- both, as planned ---------------------------------------------------------------------------

    def switch_over(self, header: SwitchoverHeader) -> SwitchoverBody:
        """40005.  Raises RequestError, and messages are taken as before, unless the text says otherwise."""
        if self._parts.role.role.is_slave:
            raise refused("this broker is a slave; ask its master")
        with self._one_change():
            newer, heard, end = self._switchover.run(header)
            self._commit_slave(newer, heard, f"switched over to {newer.broker_addr}")
            return SwitchoverBody(newer.broker_addr, newer.epoch, end)

    def ask_after(self, target: HandingOver) -> None:
        """A switchover that was under way when this broker went down: nothing is taken until `target` has
        said that it was not promoted.
        """
        why = (
            f"it is not known whether {target.broker_addr} became the master: it was told to, and we started"
        )
        logger.error("nothing is taken reason=%s", why)
        self._parts.store.log.hold_appends(why, HOLDER)
        self._parts.keeper().doubt(target, why, self._switchover.take_again)

    # -- a slave begins anew ------------------------------------------------------------------------

    def check_reinit(self) -> None:
        """Raises RequestError when this broker is not to be emptied."""
        if not self._parts.role.role.is_slave:
            raise refused("this broker is the master: it would lose what nobody else may have")
        if self.changing:
            raise refused("its role is being changed")

    def empty(self, keep: bool) -> None:
        """Empties the slave's log and queues, and turns, so that it takes everything anew."""
        parts = self._parts
        with self._one_change():
            kept = parts.config.log.root / "cut" / f"reinit-{wall_clock_ms()}" if keep else None
            logger.warning("the store is emptied end=%d kept=%s", parts.store.log.end, kept)
            parts.ha.stop(Deadline(LINK_STOP_SECONDS))
            try:
                parts.store.restart_at(0, kept)
                parts.lineage.update(lineage=Lineage())
            except (CommitLogError, OSError) as error:
                logger.error("the store was not emptied reason=%s", error)
            self._turn_soon("everything is taken anew")
        self.turn()

    # -- turning ------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Once who asked has been answered; nothing happens if nothing has changed."""
        if self.turning:
            self._parts.turn(self.turning)

    def _turn_soon(self, why: str) -> None:
        self.turning = why

    @contextlib.contextmanager
    def _one_change(self) -> Iterator[None]:
        if self.turning:
            raise refused(f"this broker is turning: {self.turning}")
        if not self._lock.acquire(blocking=False):
            raise refused("another change of its role is under way")
        try:
            if self.turning:
                raise refused(f"this broker is turning: {self.turning}")
            yield
        finally:
            self._lock.release()


def free_slave_id(role: RoleInForce, newer: NewerMaster, heard: Heard) -> int:
    """The broker id that a master takes when it follows `newer`."""
    taken = {number for number, addr in heard.taken_ids.items() if addr != newer.broker_addr}
    taken |= {one.broker_id for one in heard.peers if one.broker_addr != newer.broker_addr}
    return slave_id(role.file_broker_id, newer.file_broker_id, taken)
