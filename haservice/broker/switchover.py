"""Switchover: a master hands over to a slave that has all it has, and nothing is lost on the way.

    master                                    slave
    appends held, all flushed
    until the slave has acknowledged the end
    ──── PROMOTE: end, token ───────────────▶ last copy of side state, link down
    ◀─── GET_LINEAGE ──────────────────────── is it still handing over, by this token?
    ──── yes ───────────────────────────────▶ new term and role, durable
    ◀─── promoted ───────────────────────────
    a slave from now on

A full disk is no obstacle: the master has nothing to append, and the term begins in the slave's log.

Whatever fails before the slave has asked back undoes it: the token is void, and a PROMOTE that was under way
somewhere comes to nothing.  When the answer is lost the slave's word decides, however long that takes; until
then nothing is taken, and as to whom it is handed over is in the lineage file, by no start of ours either.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from commitlog.errors import CommitLogError
from commitlog.retention import DISK_HOLDER
from haservice.broker.peers import Heard
from haservice.broker.role_parts import HOLDER, RoleParts, refused
from haservice.broker.roles import NewerMaster
from haservice.deadline import Deadline
from haservice.errors import AnswerError, RemotingError, RemotingTimeout, RequestError
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.lineage_headers import LineageBody, PromoteHeader, SwitchoverHeader
from haservice.replication.lineage_file import HandingOver
from haservice.replication.status import SlaveStatus

logger = logging.getLogger(__name__)

PROMOTE_SECONDS_MIN = 2.0
SECONDS_MAX = 120.0
# How long a lost answer is asked after before the master stays without taking anything.
DOUBT_SECONDS = 5.0
DOUBT_LOOK_SECONDS = 0.1
LOOK_SECONDS = 0.002


class HandedOver(NamedTuple):
    """The slave is the master: whom to follow, and where our log ended."""

    newer: NewerMaster
    heard: Heard
    end: int


class Switchover:
    """A master's; one at a time, which is the caller's matter."""

    def __init__(self, parts: RoleParts) -> None:
        self._parts = parts
        # Names the one that is under way; "" while none is, or it must not succeed any more.
        self.token = ""

    def run(self, header: SwitchoverHeader) -> HandedOver:
        """Blocks.  Raises RequestError: undone, unless the text says that nothing is taken."""
        parts = self._parts
        deadline = Deadline(min(max(header.timeout_millis, 0) / 1000, SECONDS_MAX))
        if held := parts.keeper().held or parts.store.log.writable_but_for(DISK_HOLDER):
            raise refused(f"this master takes nothing itself: {held}")
        slaves = self._ready(header.target)
        heard = parts.peers.ask([one.broker_addr for one in slaves])
        slave, target = self._first_that_answers(slaves, heard)
        self.token = uuid.uuid4().hex
        parts.store.log.hold_appends(f"switching over to {slave.broker_addr}", HOLDER)
        try:
            end = self._level(slave, deadline)
        except BaseException:
            self.take_again()
            raise
        promoted = self._promote(target, end, deadline, header.min_epoch)
        # The id that it has now is free from its next registration on.
        newer = NewerMaster(
            promoted.epoch,
            promoted.broker_addr,
            promoted.ha_addr,
            target.broker_id or target.file_broker_id,
        )
        return HandedOver(newer, heard, end)

    def take_again(self) -> None:
        """It is known that nobody was promoted."""
        self.token = ""
        try:
            self._parts.lineage.update(handing_over=None)
        except OSError as error:  # the next start asks the slave once more
            logger.warning("that the switchover is over cannot be written reason=%s", error)
        self._parts.store.log.hold_appends(None, HOLDER)

    def _ready(self, wanted: str) -> list[SlaveStatus]:
        """Who may become the master, the nearest first; or the one that is wanted."""
        ours = [one for one in self._parts.ha.status().slaves if one.broker_addr and one.replica_id]
        if not ours:
            raise refused(
                "no slave is connected that could be the master; mqadmin haStatus shows who is there"
            )
        if wanted:
            found = next((one for one in ours if one.broker_addr == wanted), None)
            if found is None:
                there = ", ".join(sorted(one.broker_addr for one in ours))
                raise refused(f"no slave at {wanted} is connected; connected are: {there}")
            ours = [found]
        ours.sort(key=lambda one: (one.in_sync, one.ack), reverse=True)
        if not ours[0].in_sync:
            raise refused(f"the slave at {ours[0].broker_addr} is not ready: {ours[0].reason}")
        return [one for one in ours if one.in_sync]

    def _first_that_answers(
        self, slaves: Sequence[SlaveStatus], heard: Heard
    ) -> tuple[SlaveStatus, LineageBody]:
        """The first that says, where clients reach it, that it is the replica that it is at the HA port.

        Raises RequestError with what is wrong with each.
        """
        troubles = []
        for slave in slaves:
            try:
                return slave, self._checked(slave, heard)
            except RequestError as error:
                troubles.append(str(error.remark))
        raise refused("; ".join(troubles))

    def _checked(self, slave: SlaveStatus, heard: Heard) -> LineageBody:
        """The target's own word; a slave that cannot be asked cannot be promoted either."""
        for one in heard.peers:
            if one.replica_id == slave.replica_id:
                if one.changing or one.is_master:
                    raise refused(f"{one.broker_addr} is changing its role, or has: it is {one.role}")
                return one
        addr, trouble = slave.broker_addr, "another broker does"
        try:
            self._parts.peers.ask_one(addr)
        except AnswerError as error:
            raise refused(
                f"the slave at {addr} refuses what this broker asks of it: {error.remark}; where access "
                "control is on, brokers sign with the keys of the file that aclCredentialsFile names"
            ) from error
        except RemotingTimeout:
            trouble = "it is silent"
        except (RemotingError, ValueError) as error:
            trouble = str(error).removeprefix(f"{addr}: ")
        raise refused(f"the slave at {addr} does not answer there, which it would as a master: {trouble}")

    def _level(self, slave: SlaveStatus, deadline: Deadline) -> int:
        """Appends are held: waits until all is durable here and acknowledged there.  Gives the log's end."""
        log = self._parts.store.log
        try:
            log.flush()
        except CommitLogError as error:
            raise refused(f"the log cannot be flushed: {error}") from error
        end = log.end
        while True:
            now = [one for one in self._parts.ha.status().slaves if one.replica_id == slave.replica_id]
            if any(one.ack >= end for one in now):
                return end
            if deadline.expired or not now:
                acked = max((one.ack for one in now), default=-1)
                why = "in time" if now else "before its connection ended"
                raise refused(f"{slave.broker_addr} has acknowledged {acked} of {end} {why}")
            time.sleep(LOOK_SECONDS)

    def _promote(self, target: LineageBody, end: int, deadline: Deadline, min_epoch: int) -> LineageBody:
        """Appends are held; they are taken again if the target is known to be no master."""
        addr = target.broker_addr
        last = self._parts.lineage.state.lineage.last
        header = PromoteHeader(
            role=self._parts.role.role.value,
            expected_end=end,
            min_epoch=max((last.number if last is not None else 0) + 1, min_epoch),
            why=f"switchover from {self._parts.config.broker_addr}",
            confirm_addr=self._parts.config.broker_addr,
            token=self.token,
        )
        request = RemotingCommand.request(RequestCode.PROMOTE, header.encode())
        try:
            self._parts.lineage.update(handing_over=HandingOver(addr, target.replica_id))
        except OSError as error:
            self.take_again()
            raise refused(f"that it is handed over cannot be written: {error}") from error
        try:
            answer = self._parts.peers.call(addr, request, max(deadline.remaining, PROMOTE_SECONDS_MIN))
            return LineageBody.decode(answer.body)
        except AnswerError as error:
            self.take_again()
            raise refused(f"{addr} was not promoted: {error.remark}") from error
        except (RemotingError, ValueError) as error:
            logger.warning(
                "the answer of the slave that was to be promoted is lost addr=%s reason=%s", addr, error
            )
            return self._found_out(target, header.min_epoch, error)

    def _found_out(self, target: LineageBody, epoch: int, error: Exception) -> LineageBody:
        """Whether the target was promoted, though its answer did not come.

        From here on it gets no confirmation.  So once it says that it is no master, and changes nothing, it
        will not become one by what we sent.
        """
        self.token = ""
        addr = target.broker_addr
        patience = Deadline(DOUBT_SECONDS)
        while not patience.expired:
            with contextlib.suppress(RemotingError, ValueError):
                now = self._parts.peers.ask_one(addr)
                if now.epoch >= epoch and now.epoch_master == target.replica_id:
                    return now
                if not now.changing:
                    self.take_again()
                    raise refused(f"{addr} was not promoted: {error}")
            time.sleep(DOUBT_LOOK_SECONDS)
        why = f"it is not known whether {addr} became the master: it does not answer since it was told to"
        logger.error("nothing is taken reason=%s", why)
        self._parts.keeper().doubt(HandingOver(addr, target.replica_id), why, self.take_again)
        raise refused(f"{why}; nothing is taken until it is")
