"""Settings of one member: who is in its group, intervals, bounds.  Times are seconds.

Names in the right column are stock DLedger's; where a default differs from stock's, the comment has stock's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from haservice.errors import ConfigError

# What a stock leader beats by, who does not say it.
STOCK_HEARTBEAT_S = 2.0
# The longest interval that a leader is believed: a follower waits several of them before it looks for another leader.
HEARTBEAT_S_MAX = 30.0
# Of a member; it is written to the file `currterm`.
_ID = re.compile(r"[^\s=:\\#!-]+")


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """One member's."""

    group: str
    self_id: str
    peers: Mapping[str, str] = field(default_factory=dict)
    """Id → address of all members, this one too."""
    heartbeat_interval_s: float = 0.5  # heartBeatTimeIntervalMs, 2000
    heartbeat_leak: int = 3  # maxHeartBeatLeak
    vote_interval_min_s: float = 0.1  # minVoteIntervalMs, 300
    vote_interval_max_s: float = 0.4  # maxVoteIntervalMs, 1000
    vote_wait_s: float = 0.5
    """How long a round of votes waits for answers (2000 and more)."""
    lease_share: float = 0.9
    """Of a follower's patience: so long after its last word with a majority a leader steps down."""
    rpc_timeout_s: float = 3.0
    pending_appends_max: int = 10_000  # maxPendingRequestsNum
    wait_ack_max_s: float = 2.5  # maxWaitAckTimeMs
    push_timeout_s: float = 1.0  # maxPushTimeOutMs
    """After so long without an ack a leader pushes again."""
    in_flight_max: int = 1000
    """Pushed and not acknowledged, per follower: entries."""
    in_flight_bytes_max: int = 8 * 1024 * 1024
    batch_push_bytes_max: int = 256 * 1024  # maxBatchPushSize, 4096, and only with isEnableBatchPush
    commit_push_interval_s: float = 0.1
    """The shortest time from a push to one that says nothing but what is committed (1000)."""
    commit_repeat_s: float = 1.0
    """So often an idle follower hears that again: if it was started again, it has to be compared."""
    push_pause_s: float = 0.2
    """After an error a follower is left alone so long (500)."""
    throttle_behind_bytes: int = 300 * 1024 * 1024  # peerPushThrottlePoint
    throttle_bytes_per_s: int = 20 * 1024 * 1024  # peerPushQuota
    waiting_pushes_max: int = 1024
    """At a follower: pushes that came before the one they follow."""
    fast_forward_s: float = 0.5
    """So long they wait for it (1000)."""
    mend_again_s: float = 5.0
    """So long after all were asked in vain for a damaged entry, twice as long each time, up to a minute."""
    damaged_max: int = 1000
    """Damaged entries that are known at a time; others are found again."""
    preferred_leaders: tuple[str, ...] = ()  # preferredLeaderIds
    preferred_check_s: float = 1.0
    preferred_pause_max_s: float = 30.0
    """With each hand-over that fails, the time to the next look doubles, up to this."""
    transfer_lag_max: int = 1000  # maxLeadershipTransferWaitIndex
    transfer_wait_s: float = 1.0  # leadershipTransferWaitTimeout
    first_entry_body: bytes | None = None
    """What a new leader appends at once, so that what came before is committed with it.

    A stock broker looks for a message in every entry, so in a group with stock members it has to be one.  Without it
    the entries of earlier terms are committed with the leader's first append.
    """

    serves_appends: bool = True
    """Whether clients of DLedger may append.  Not in a broker: their entries have no place in a queue."""

    def __post_init__(self) -> None:
        if self.self_id not in self.peers:
            raise ConfigError(
                "", 0, "dLegerSelfId", f"is none of the peers {', '.join(self.peers)}", self.self_id
            )
        for name in self.peers:
            if not _ID.fullmatch(name):
                raise ConfigError(
                    "", 0, "dLegerPeers", "an id has no white space, and none of = : \\ # ! -", name
                )
        if not 0 < self.vote_interval_min_s < self.vote_interval_max_s:
            raise ConfigError("", 0, "minVoteIntervalMs", "is above 0 and below maxVoteIntervalMs")
        if not 0 < self.heartbeat_interval_s <= HEARTBEAT_S_MAX or self.heartbeat_leak < 2:
            raise ConfigError(
                "",
                0,
                "heartBeatTimeIntervalMs",
                f"is above 0 and at most {HEARTBEAT_S_MAX:g} s; maxHeartBeatLeak is 2 or more",
            )

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.peers if name != self.self_id)

    @property
    def quorum(self) -> int:
        return len(self.peers) // 2 + 1

    @property
    def patience_s(self) -> float:
        """How long a follower waits for word of its leader, at least."""
        return self.heartbeat_interval_s * self.heartbeat_leak
