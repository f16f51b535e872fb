"""What the coordinator's rounds order of the machine of roles: to begin an epoch, to seal the log.  Pure.

To follow another master is an order that commands give, too: FollowHeader.  None of these comes from the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from haservice.broker.roles.actions import (
    Answer,
    Failed,
    LeaveMaster,
    LogLevel,
    Refuse,
    Result,
    Say,
    Write,
)
from haservice.broker.roles.new_epoch import NewEpoch
from haservice.broker.roles.promotion import Promotion
from haservice.broker.roles.rules import role_wanted
from haservice.broker.roles.state import BeginEpoch, Change, RoleState, SealLog, Step, View
from haservice.remoting.headers.lineage import PromoteHeader


def begin_epoch(state: RoleState, ticket: int, order: BeginEpoch, view: View) -> Step:
    """The epoch that came with the lease: a slave becomes the master, a master goes on in it."""
    if why := order.why_late(view.boottime_s):
        return state, (Refuse(ticket, why),)
    last = view.kept.lineage.last
    if last is not None and last.number >= order.epoch:
        return state, (Refuse(ticket, f"epoch {last.number} has begun here"),)
    if not state.who.is_slave:
        return NewEpoch(order.why, True, order.epoch, ticket, until_s=order.until_s).begin(state, view)
    wanted = role_wanted("", view.kept, state.who.role)
    if isinstance(wanted, str):
        return state, (Refuse(ticket, wanted),)
    header = PromoteHeader(min_epoch=order.epoch, why=order.why)
    return Promotion(ticket, header, wanted, order=order).begin(state)


@dataclass(frozen=True, slots=True)
class Sealing(Change):
    """The seal is written: from here on nothing is acknowledged to a master of that epoch or an older one."""

    ticket: int
    epoch: int

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        state = state.but(change=None)
        if isinstance(result, Failed):
            return state, (Refuse(self.ticket, f"the seal cannot be written: {result.reason}"),)
        said = Say(LogLevel.WARNING, f"the log is sealed epoch={self.epoch} end={view.log.end}")
        leave = (LeaveMaster(),) if state.who.is_slave else ()
        return state, (said, *leave, Answer(self.ticket))


def seal(state: RoleState, ticket: int, order: SealLog, view: View) -> Step:
    if view.kept.sealed >= order.epoch:
        return state, (Answer(ticket),)
    change = Sealing(ticket, order.epoch)
    return state.but(change=change), (Write({"sealed": order.epoch}),)
