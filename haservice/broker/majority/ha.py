"""MajorityHA: what replication tells of itself when a majority agrees on the log.

There is no HA port and no link of ours: the members talk to each other.  What status, metrics and the console show is
a leader's view of each other member, in the terms of a master's slaves; lag is of entries, told in bytes.
"""

from __future__ import annotations

from commitlog.dledger.layout import NONE
from commitlog.errors import CommitLogError
from commitlog.log.log import CommitLog
from haservice.broker.majority.member import BrokerMember
from haservice.broker.majority.proof import MajorityProof
from haservice.broker.metrics.facts import MemberFacts
from haservice.configuration.settings import BrokerRole
from haservice.deadline import Deadline
from haservice.dledger.events import MemberRole
from haservice.dledger.member import PeerProgress
from haservice.replication.status import HAStatus, Lack, MasterLinkStatus, NotInSync, SlaveStatus
from haservice.replication.wire.protocol import MasterState, SlaveState

# So long a member may owe an acknowledgement, and count as level.
OWES_S_MAX = 5.0
# By then a leader has registered itself, whoever was registered before.
SETTLES_S = 10.0


class MajorityHA:
    """An HAService without threads."""

    def __init__(self, member: BrokerMember, role: BrokerRole, log: CommitLog, proof: MajorityProof) -> None:
        self.member = member
        self.proof = proof
        self._role = role
        self._log = log
        # Whom the group followed when the master's address was new, and that address.
        self._followed: tuple[str | None, str | None] = (None, None)
        # Nameservers may still name the leader of the term before this one.
        self._term, self._settles = -1, Deadline(0.0)

    def start(self) -> None:
        """The member has been started with the process."""

    def stop(self, deadline: Deadline) -> bool:
        return True

    def readable_end(self) -> int:
        """All that is committed may be read."""
        return self._log.end

    def follows_another(self, master_addr: str | None) -> bool:
        """Whether the group may follow another leader than when `master_addr` became the master's address.

        Said for a while after an election: two in a row may be over before nameservers know of the first.
        """
        status, (followed, known_addr) = self.member.status, self._followed
        if status.term != self._term:
            self._term, self._settles = status.term, Deadline(SETTLES_S)
        if master_addr != known_addr:
            self._followed = followed, _ = status.leader_id, master_addr
        return master_addr is None or status.leader_id != followed or not self._settles.expired

    def status(self) -> HAStatus:
        member = self.member
        status, end = member.status, self._log.end
        slaves: tuple[SlaveStatus, ...] = ()
        master: MasterLinkStatus | None = None
        if self._role.is_slave:
            master = self._link(status.leader_id)
        else:
            slaves = tuple(self._slave(one) for one in member.peers())
        return HAStatus(
            role=self._role.value,
            log_start=self._log.start,
            log_end=end,
            push2slave_max_offset=max((one.ack for one in slaves), default=0),
            in_sync_slaves=sum(one.in_sync for one in slaves),
            waiting_sends=len(self.proof),
            slaves=slaves,
            master=master,
            epoch=status.term,
        )

    def facts(self) -> MemberFacts:
        """For metrics."""
        member, status = self.member, self.member.status
        return MemberFacts(
            member.settings.group,
            member.settings.self_id,
            status.role is MemberRole.LEADER,
            status.committed_index,
            member.node.store.end_index,
            member.failure,
            not member.look.not_whole,
            bool(member.refuses_cut),
        )

    def _slave(self, one: PeerProgress) -> SlaveStatus:
        store = self.member.node.store
        end, reached = store.end, 0
        if one.match_index != NONE:
            try:
                reached = store.end_of(one.match_index)
            except CommitLogError:  # expired, or cut a moment ago
                reached = store.data.start
        lag = max(0, end - reached)
        return SlaveStatus(
            addr=one.address,
            state=(MasterState.TRANSFER if one.is_live else MasterState.CLOSED).value,
            position=reached,
            ack=reached,
            proven=reached,
            sent_from=reached,
            lag_bytes=lag,
            lag_seconds=0.0,
            bytes_per_second=0.0,
            lack=self._lack(one),
            replica_id=one.peer,
        )

    def _lack(self, one: PeerProgress) -> Lack | None:
        """Why it is not level, the gravest reason first."""
        settings = self.member.settings
        if one.refuses_cut:
            return Lack(NotInSync.REFUSES_CUT, (one.refuses_cut,))
        if one.trouble:
            return Lack(NotInSync.NOT_WHOLE, (one.trouble,))
        if not one.is_live:
            return Lack(NotInSync.SILENT, (settings.patience_s,))
        if one.lag >= settings.transfer_lag_max:
            return Lack(NotInSync.ENTRIES_BEHIND, (one.lag, settings.transfer_lag_max))
        if one.owes_s > OWES_S_MAX:
            return Lack(NotInSync.ACKNOWLEDGES_NOTHING, (one.owes_s,))
        return None

    def _link(self, leader_id: str | None) -> MasterLinkStatus:
        member = self.member
        follows = leader_id is not None and member.status.role is MemberRole.FOLLOWER
        return MasterLinkStatus(
            master_addr=member.settings.peers.get(leader_id or "", ""),
            state=(SlaveState.TRANSFER if follows else SlaveState.READY).value,
            offset=self._log.end,
            reported=member.node.store.end,
            last_read_timestamp_ms=0,
            last_write_timestamp_ms=0,
            seconds_since_read=-1.0,
            bytes_per_second=0.0,
            connects=0,
            last_error="" if follows else member.failure or "the group has no leader now",
        )
