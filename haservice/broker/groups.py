"""Consumer groups: what a broker grants one.

For now a group is its name: with autoCreateSubscriptionGroup every well-formed one has the default
grants, without it only RocketMQ's own do.  Nothing is kept, so a peer that makes up names costs
nothing.  `subscriptionGroup.json` and its administration take this class's place behind `find`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GROUP_LENGTH_MAX = 255
SYSTEM_PREFIX = "CID_RMQ_SYS_"
# The groups that every broker has from the start (broker-flows §6).
SYSTEM_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """RocketMQ's SubscriptionGroupConfig, with its defaults."""

    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    notify_consumer_ids_changed_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    # Where a consumer should read: normally, and when it is far behind.
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1


_DEFAULT = GroupConfig()


class Groups:
    """Group name → its grants."""

    def __init__(self, auto_create: bool) -> None:
        self._auto_create = auto_create

    def find(self, group: str) -> GroupConfig | None:
        """The grants of `group`; None when it does not exist and may not be made up on the spot."""
        if len(group) > GROUP_LENGTH_MAX or _NAME.fullmatch(group) is None:
            return None
        if self._auto_create or group in SYSTEM_GROUPS or group.startswith(SYSTEM_PREFIX):
            return _DEFAULT
        return None
