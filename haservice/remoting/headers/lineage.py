"""Our own requests about lineage and roles: ext fields of 40001 to 40008 and 40013, and the bodies of their answers.

    40001 GET_LINEAGE   –                                            → LineageBody
          at a nameserver: brokerName                               → NewestEpochBody
    40002 READ_LOG      offset, size                                 → raw bytes of the log, logEnd
    40003 PROMOTE       role, expectedEnd, minEpoch, why             → LineageBody, as it will be
    40004 FOLLOW        masterAddr, haAddr, epoch, why               → LineageBody, as it will be
    40005 SWITCHOVER    target, timeoutMillis, minEpoch              → SwitchoverBody
    40006 REINIT        keep                                         → –
    40007 PLEDGE        epoch, replicaId, brokerAddr                 → LineageBody
    40008 FORGET        replicaId                                    → LineageBody
    40013 LEAVE_LEASE   epoch, ttlMillis                             → –

No stock broker has these numbers, and no stock client asks for them.  Offsets are bytes of the log, times ms
since 1970.  Decoding checks numbers against haservice.bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haservice.bounds import BrokerId, EpochNumber, EpochOrNone, FileBytes, Offset, OffsetOrNone, ShortText
from haservice.remoting.headers.clients import I32, I64, ExtHeader
from haservice.remoting.json_body import JSONBody

# Where the role of a member of a DLedger group comes from.
OF_GROUP = "dledger"
# What one READ_LOG gives at most.
READ_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadLogHeader(ExtHeader):
    """40002: bytes of the log from `offset` on, `size` of them at most."""

    offset: Offset
    size: I32


@dataclass(frozen=True, slots=True)
class ReadLogResponseHeader(ExtHeader):
    """40002's answer: where the log ends."""

    log_end: Offset


@dataclass(frozen=True, slots=True)
class PromoteHeader(ExtHeader):
    """40003.  `role` is the brokerRole to take, "" for that of the master it followed last; `expected_end` -1
    allows any end of the log; the new epoch's number is at least `min_epoch`.

    In a switchover the slave first asks the broker at `confirm_addr`, which has to answer `token`.  Otherwise
    it asks enough others for their pledges; without them the promotion is refused, unless `force`.
    """

    role: str = ""
    expected_end: OffsetOrNone = -1
    min_epoch: EpochNumber = 0
    why: str = ""
    confirm_addr: str = ""
    token: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class PledgeHeader(ExtHeader):
    """40007: the slave `replica_id`, which clients reach at `broker_addr`, wants to be the master of `epoch`.

    A broker that answers promises to follow and to acknowledge no master of an older epoch; its answer says
    how far its log goes.
    """

    epoch: EpochNumber
    replica_id: ShortText
    broker_addr: ShortText


@dataclass(frozen=True, slots=True)
class ForgetHeader(ExtHeader):
    """40008: the replica to remove from the replica list."""

    replica_id: ShortText


@dataclass(frozen=True, slots=True)
class FollowHeader(ExtHeader):
    """40004: the master of `epoch`, where clients and where slaves reach it."""

    master_addr: ShortText
    ha_addr: ShortText
    epoch: EpochNumber
    why: str = ""


@dataclass(frozen=True, slots=True)
class SwitchoverHeader(ExtHeader):
    """40005.  `target` is a slave's address for clients, "" for the slave with the longest log; the new
    epoch's number is at least `min_epoch`.  Of a DLedger group `target` is a member's id, and its epochs are its own.
    """

    target: str = ""
    timeout_millis: I64 = 10_000
    min_epoch: EpochNumber = 0


@dataclass(frozen=True, slots=True)
class LeaveLeaseHeader(ExtHeader):
    """40013: the master of `epoch` asks its slave to take no lease of the coordinator's for so long."""

    epoch: EpochNumber
    ttl_millis: I64


@dataclass(frozen=True, slots=True)
class ReinitHeader(ExtHeader):
    """40006: whether the slave keeps its old files aside."""

    keep: bool = True


@dataclass(frozen=True, slots=True)
class NewerMasterHeader(ExtHeader):
    """In a nameserver's answer to 103, if it knows a newer master of that name."""

    newer_epoch: EpochNumber | None = None
    newer_master: str | None = None


@dataclass(frozen=True, slots=True)
class ToldTopicsHeader(ExtHeader):
    """In 103: the version of the table that the body's topics change, or that the broker has no other topics.

    Versions are as DataVersion.text gives them.
    """

    topics_base: str | None = None
    topics_whole: bool | None = None


@dataclass(frozen=True, slots=True)
class KnownTopicsHeader(ExtHeader):
    """In the answer to such a 103: the version of the broker's topics that the nameserver has; "" if it does not
    have them whole.
    """

    topics_version: str | None = None


@dataclass(frozen=True, slots=True)
class EpochBody(JSONBody):
    """One epoch of one master: it began where `start` is, `master` is a replica id, "" where it is unknown."""

    epoch: EpochNumber
    start: Offset
    master: str
    began_ms: int = 0
    why: str = ""
    unwritten: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaBody(JSONBody):
    """A replica that follows or followed a master: the end of its log when last heard, and when."""

    replica_id: str
    broker_addr: str = ""
    offset: OffsetOrNone = -1
    seen_ms: int = 0
    in_sync: bool = False


@dataclass(frozen=True, slots=True)
class ListBody(JSONBody):
    """A replica list of haservice.replication.lineage.membership: ids, and where clients reach them."""

    epoch: EpochOrNone
    number: Offset
    master: str
    needed: Offset
    since: Offset
    replicas: Mapping[str, str]
    since_term: EpochOrNone = -1


@dataclass(frozen=True, slots=True)
class MembersBody(ListBody):
    """The newest list that a broker knows, and those of which one may be in effect instead."""

    over: Sequence[ListBody] = ()


@dataclass(frozen=True, slots=True)
class LineageBody(JSONBody):
    """40001's answer, and that of 40003 and 40004: who a broker is, what it holds, who wrote it."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    ha_addr: str
    broker_id: BrokerId
    file_broker_id: BrokerId
    """The brokerId in its properties file; 0 in a master's."""
    role: str
    replica_id: str
    segment_bytes: FileBytes
    log_start: Offset
    log_end: Offset
    flushed: Offset
    epochs: Sequence[EpochBody] = ()
    role_from: str = "file"
    """`file`, `command`, or OF_GROUP."""
    role_why: str = ""
    held: str = ""
    """Why it refuses writes; empty when it does."""
    master_end: OffsetOrNone = -1
    """Of a slave: the highest end of its master's log that it heard of; -1 if unknown."""
    master_heard_ms: int = 0
    """When it last heard its master; 0 if unknown."""
    master_end_kept: bool = False
    """Whether it heard that before its last start, and has not heard its master since."""
    master_addr: str = ""
    master_role: str = ""
    replicas: Sequence[ReplicaBody] = ()
    changing: bool = False
    """Whether a change of its role is under way."""
    handing_over: str = ""
    """The token of a master's switchover under way; "" if there is none, or it was given up."""
    not_copied: str = ""
    """Of a slave: why its master gave it no topics, groups and offsets when it last asked; "" if it did."""
    promise: str = ""
    """Settings that decide, beside its role, what its SEND_OK means, as `key=value, key=value`."""
    damaged: str = ""
    """Ranges of its log that it knows to be damaged, as `begin to end, begin to end`."""
    members: MembersBody | None = None
    """Who may hold acknowledged messages, by the newest list that it knows; None if it knows none."""
    given: MembersBody | None = None
    """Of a slave: that list as its master gave it, if replicas were forgotten here since; else None."""
    whole_from: Offset = 0
    """Of a slave: it may have lost acknowledged bytes below this offset, until its log reaches it again."""
    pledged: EpochOrNone = -1
    """Of a slave: it follows no master of an epoch below this one; -1 if it has promised nothing."""
    pledged_to: str = ""
    """To whom it promised that: the address of a broker that was to become the master."""
    past: Sequence[EpochBody] = ()
    """Epochs that left no byte in its log, for its history."""
    unproven: str = ""
    """Of a master: who tells of a newer epoch without proof; "" while nobody does."""
    group_epoch: EpochOrNone = -1
    """Of a member of a DLedger group: which time in office of a leader it is in, as the group counts; else -1."""

    @property
    def is_in_group(self) -> bool:
        """Whether a DLedger group elects the master of its name."""
        return self.role_from == OF_GROUP

    @property
    def is_master(self) -> bool:
        return self.role != "SLAVE"

    @property
    def epoch(self) -> int:
        """The number of its last epoch; -1 without one."""
        return self.epochs[-1].epoch if self.epochs else -1

    @property
    def epoch_master(self) -> str:
        """Whose epoch that is."""
        return self.epochs[-1].master if self.epochs else ""


@dataclass(frozen=True, slots=True)
class NewestEpochBody(JSONBody):
    """A nameserver's answer to 40001: the newest epoch that a master of the name told it; -1 if none has
    since it was started.
    """

    broker_name: str
    epoch: EpochOrNone = -1
    master_addr: str = ""


@dataclass(frozen=True, slots=True)
class SwitchoverBody(JSONBody):
    """40005's answer.  `logged_end` is where the old master's log ended, and the new epoch begins.  Of a DLedger group
    `new_master` is a member's id.
    """

    new_master: str
    epoch: EpochNumber
    logged_end: Offset
