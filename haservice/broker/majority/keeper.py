"""MajorityKeeper: the role of a broker whose log a majority agrees on, and when it has to turn.

    the member              the broker runs as          then
    leads, and is ready     slave                       it starts again as the master
    leads the same term     master                      all is well
    anything else           master                      it takes no send from that moment on, and starts as a slave
    follows, or stands      slave                       all is well

Who is the master, the group elects.  A switchover hands the leadership over to another member; all other commands
that make or unmake a pair's master are refused here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from commitlog.store import Store
from haservice.broker.majority.member import BrokerMember
from haservice.broker.roles.peers import Peers
from haservice.broker.roles.rules import RoleInForce
from haservice.broker.roles.state import Order, RoleState, refused
from haservice.configuration.settings import NodeConfig
from haservice.deadline import Deadline
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import MemberRole
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import (
    OF_GROUP,
    LineageBody,
    PromoteHeader,
    SwitchoverBody,
    SwitchoverHeader,
)
from haservice.remoting.json_body import JSONBody

# How often it looks, whatever the member says.
_LOOK_S = 1.0
# So long a member that leads by force has to be elected, and to commit an entry.
_FORCE_S = 8.0
# Why a member was not handed the leadership, where the code's name does not say it.
_WHY_NOT = {
    DLedgerResponseCode.FALL_BEHIND_TOO_MUCH: "it does not answer, or has too many entries to fetch: see "
    "dLegerEntriesBehind in mqadmin brokerStatus",
    DLedgerResponseCode.TAKE_LEADERSHIP_FAILED: "it did not come level in time, or no majority voted for it",
    DLedgerResponseCode.TIMEOUT: "it did not come level and win its votes in time",
    DLedgerResponseCode.NETWORK_ERROR: "it cannot be reached",
    DLedgerResponseCode.EXPIRED_TERM: "another member stood meanwhile",
}


@dataclass(frozen=True, slots=True)
class OpenedMember:
    """A role that may be served, and the member behind it.  `office`: the term that it leads; None for a slave."""

    config: NodeConfig
    role: RoleInForce
    store: Store
    member: BrokerMember
    office: int | None
    state: RoleState


def why_turn(office: int | None, leads: int | None, is_leader: bool, term: int) -> str:
    """Why a broker that runs for `office` has to start again; "" if it goes on.  Pure.

    `leads` is the term in which its member may serve now, None if it may not.
    """
    if office is None:
        return "" if leads is None else f"leads its group from term {leads} on"
    if is_leader and term == office:
        return ""
    return f"led its group in term {office}, and does not in term {term}"


class MajorityKeeper:
    """The task of the thread role-keeper, and what commands are told."""

    def __init__(
        self,
        opened: OpenedMember,
        *,
        peers: Peers,
        turn: Callable[[str], None],
        master_addr: Callable[[], str | None],
    ) -> None:
        """`peers` are the brokers of the other members."""
        self.role = opened.role
        self.peers = peers
        self._opened = opened
        self._member = opened.member
        self._turn = turn
        self._master_addr = master_addr
        self._turning = ""
        # Held while a switchover is under way: the broker turns once its answer is given.
        self._handing_over = threading.Lock()

    # -- the thread ---------------------------------------------------------------------------------

    @property
    def executor(self) -> MajorityKeeper:
        return self

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.step()
            self._member.changed.take(_LOOK_S)

    def step(self) -> None:
        member, status = self._member, self._member.status
        is_leader = status.role is MemberRole.LEADER
        why = why_turn(self._opened.office, member.office, is_leader, status.term)
        if why and not self._turning and not self._handing_over.locked():
            self._turn(why)
            self._turning = why

    def wake(self) -> None:
        self._member.changed.give()

    # -- for others ---------------------------------------------------------------------------------

    @property
    def office(self) -> int | None:
        """The term that this broker leads; None for a slave."""
        return self._opened.office

    @property
    def state(self) -> RoleState:
        return self._opened.state

    def gauges(self) -> Mapping[str, str]:
        """Entries for request 28."""
        member, status = self._member, self._member.status
        settings = member.settings
        behind = {one.peer: one.lag for one in member.peers()}
        look = member.look
        return {
            "brokerRole": self.role.role.value,
            "roleFrom": OF_GROUP,
            "roleWhy": self._why(),
            "dLegerGroup": settings.group,
            "dLegerSelfId": settings.self_id,
            "dLegerMembers": " ".join(settings.peers),
            "dLegerRole": status.role.value,
            "dLegerTerm": str(status.term),
            "dLegerLeaderId": status.leader_id or "",
            "dLegerCommittedIndex": str(status.committed_index),
            "dLegerEndIndex": str(member.node.store.end_index),
            "dLegerEntriesBehind": " ".join(f"{peer}:{lag}" for peer, lag in behind.items()),
            "dLegerTrouble": member.failure
            or member.node.resting
            or (look.disk if status.leader_id is None else ""),
            "dLegerPatienceMillis": str(round(1000 * look.patience_s)),
            "dLegerNotWhole": look.not_whole,
            "dLegerRefusesCut": member.refuses_cut,
            "dLegerLedAlone": look.alone if status.role is MemberRole.LEADER else "",
            "dLegerDamagedEntries": " ".join(map(str, member.damaged)),
        }

    def acknowledged_cut_bytes(self) -> int:
        """None: a member refuses to cut what it holds committed, see `dLegerRefusesCut`."""
        return 0

    def _why(self) -> str:
        status = self._member.status
        leader = f"{status.leader_id} leads" if status.leader_id else "nobody leads"
        return f"{leader} {self._member.settings.group} in term {status.term}"

    def ask(self, header: ExtHeader | Order) -> JSONBody:
        """Hands the leadership over.  Raises RequestError if that fails, and for all that a group does itself."""
        forces = isinstance(header, PromoteHeader) and header.force
        if forces or isinstance(header, SwitchoverHeader):
            if not self._handing_over.acquire(blocking=False):
                raise refused("another switchover is under way")
            try:
                return self._hand_over(header) if isinstance(header, SwitchoverHeader) else self._force()
            finally:
                self._handing_over.release()
                self.wake()
        settings = self._member.settings
        raise refused(
            f"this broker's log is that of the DLedger group {settings.group} ({', '.join(settings.peers)}), which "
            f"elects its master: after a death another member takes over by itself; {self._why()}"
        )

    def _force(self) -> LineageBody:
        """Leads without the members that are silent.  What only they acknowledged is lost."""
        member = self._member
        if member.status.leader_id is not None:
            raise refused(f"nobody is led by force while there is a leader: {self._why()}")
        code = member.lead_by_force(Deadline(_FORCE_S))
        if code is not DLedgerResponseCode.SUCCESS:
            answers = member.look.answers
            raise refused(
                f"{member.settings.self_id} is not elected by force either, {code.name}: a majority has to run, and to "
                f"have no more entries: {answers or self._why()}"
            )
        return self.describe()

    def _hand_over(self, header: SwitchoverHeader) -> SwitchoverBody:
        member, settings = self._member, self._member.settings
        if self.office is None or not member.is_leader:
            raise refused(f"only the leader hands over, and this broker is not it: {self._why()}")
        chosen = [header.target] if header.target else member.nearest()
        if not chosen:
            raise refused(f"no other member of {settings.group} answers that could lead: {self._why()}")
        if chosen[0] not in settings.others:
            raise refused(f"{chosen[0]} is none of the others: {', '.join(settings.others)}")
        preferred = settings.preferred_leaders
        able = [one for one in chosen if not preferred or one in preferred]
        if not able:
            raise refused(
                f"preferredLeaderId={';'.join(preferred)} leads whenever it is there and level, so "
                f"{chosen[0]} would hand over to it at once: change the key in all members' files, and start them again"
            )
        end, deadline = self._opened.store.log.end, Deadline(header.timeout_millis / 1000)
        to, code = member.hand_over_to(able, deadline)
        handed = code is DLedgerResponseCode.SUCCESS
        # Slow disks make elections slow: whoever has been told to stand may still win, or somebody else.
        while member.status.leader_id is None or (handed and member.is_leader):
            if deadline.expired:
                break
            member.changed.take(min(_LOOK_S, deadline.remaining))
        if member.status.leader_id != to:
            raise refused(f"{to} does not take over: {_WHY_NOT.get(code, code.name)}; {self._why()}")
        return SwitchoverBody(to, member.status.term, end)

    def describe(self, role: RoleInForce | None = None) -> LineageBody:
        """Who we are and what our log is.  A group's terms are not a pair's epochs: only the present one is told."""
        opened, role = self._opened, role or self.role
        config, log = opened.config, opened.store.log
        return LineageBody(
            cluster_name=config.broker.cluster_name,
            broker_name=config.broker.broker_name,
            broker_addr=config.broker_addr,
            ha_addr=config.ha_server_addr,
            broker_id=role.broker_id,
            file_broker_id=role.file_broker_id,
            role=role.role.value,
            replica_id=self._member.settings.self_id,
            segment_bytes=config.log.segment_bytes,
            log_start=log.start,
            log_end=log.end,
            flushed=log.flushed,
            role_from=OF_GROUP,
            role_why=self._why(),
            held="" if role.role.is_slave else log.writable or "",
            master_addr=self._master_addr() or "" if role.role.is_slave else "",
            changing=bool(self._turning) or self._handing_over.locked(),
            group_epoch=self._member.status.term,
            promise=f"flushDiskType={config.log.flush_disk_type.value}, majority of {len(self._member.settings.peers)}",
        )
