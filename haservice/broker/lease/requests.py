"""Requests about roles at a broker that has a coordinator: who is the master is not theirs to say.

40003 PROMOTE                 with a role, at a master: it becomes another kind of master, and keeps its lease
40003 PROMOTE, 40007 PLEDGE   else refused: the coordinator gives the lease
40004 FOLLOW                  a slave notes it; a master is told by the coordinator only
40005 SWITCHOVER              asked of the coordinator, and answered once the other one has the lease
40013 LEAVE_LEASE             failsafe: a master that cannot reach the coordinator asks its slaves
"""

from __future__ import annotations

import asyncio

from haservice.broker.lease.keeper import LeaseKeeper
from haservice.broker.roles.processor import Roles
from haservice.broker.roles.state import Order, TakeRole, refused
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import (
    FollowHeader,
    LeaveLeaseHeader,
    LineageBody,
    PledgeHeader,
    PromoteHeader,
    SwitchoverHeader,
)
from haservice.remoting.json_body import JSONBody
from haservice.remoting.workers import Offload


class CoordinatedRoles:
    """As `roles`, as far as a coordinator leaves it to them."""

    def __init__(self, roles: Roles, lease: LeaseKeeper, *, is_slave: bool) -> None:
        self._roles = roles
        self._lease = lease
        self._is_slave = is_slave

    def describe(self) -> LineageBody:
        return self._roles.describe()

    def ask(self, header: ExtHeader | Order) -> JSONBody:
        if isinstance(header, SwitchoverHeader):
            return self._lease.switch_over(header)
        if isinstance(header, PromoteHeader) and header.role and not self._is_slave:
            return self._roles.ask(TakeRole(header.role, header.why or "an operator's choice"))
        if isinstance(header, PromoteHeader | PledgeHeader) or (
            isinstance(header, FollowHeader) and not self._is_slave
        ):
            raise refused(
                f"{self._lease.where} says who is the master (haCoordinator), and no command: after a death a slave"
                f" takes over by itself; mqadmin haList -b {self.describe().broker_addr} says why nobody is the master"
            )
        return self._roles.ask(header)


class LeaveLeaseProcessor:
    """It may wait for a round, so it runs in a work thread."""

    def __init__(self, lease: LeaseKeeper, offload: Offload) -> None:
        self._lease = lease
        self._offload = offload

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.LEAVE_LEASE: self.promise}

    def promise(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        return self._offload(self._promise, request, LeaveLeaseHeader.decode(request.ext))

    def _promise(self, request: RemotingCommand, header: LeaveLeaseHeader) -> RemotingCommand:
        if why := self._lease.promise(header.epoch, header.ttl_millis / 1000):
            raise refused(why)
        return request.answer()
