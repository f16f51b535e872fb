"""Groups: the consumer groups of this broker, their grants, and `config/subscriptionGroup.json`.

A group is created when somebody consumes under its name (with autoCreateSubscriptionGroup; those named
`CID_RMQ_SYS_…` always), or by request 200.  Reads need no lock: a group is looked up in a dict whose values
never change in place.  The loop, the work threads and the slave's sync thread make changes under one lock.
Every change raises the data version, which slaves compare for equality only.

Bound: `GROUPS_MAX` groups.  A peer that makes up more names is served with the default grants, but its groups
are not kept: no list shows them, no file grows, and they get no retry topic.  Then request 200 is refused.

Fields of the file that 4.9.8 does not have are ignored, as 4.9.8 does.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping

from commitlog.kernel.layout import NAME_LETTERS
from commitlog.log.log import wall_clock_ms
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper

logger = logging.getLogger(__name__)

GROUP_LENGTH_MAX = 255
# Several times as many as any real broker has; the file then has 2.5 MB, and takes 50 ms to make.
GROUPS_MAX = 10_000
# Each queue is a directory with a file of its own, once a message is sent back.
RETRY_QUEUE_NUMS_MAX = 1024
SYSTEM_PREFIX = "CID_RMQ_SYS_"
# The groups that every broker has from the start: those of RocketMQ's SubscriptionGroupManager.
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)

_NAME = re.compile(NAME_LETTERS + "+")
_I32_MAX = 2**31 - 1

# A group's grants: the body of request 200 and the file's entry are the same thing.
GroupConfig = SubscriptionGroupConfig


def group_fault(name: str) -> str | None:
    """Why `name` is not a group's name; None if it is one."""
    if not name or name.isspace():
        return "The specified group is blank."
    if len(name) > GROUP_LENGTH_MAX:
        return f"The specified group is longer than {GROUP_LENGTH_MAX}, it has {len(name)}."
    if _NAME.fullmatch(name) is None:
        return "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


class Groups:
    """Group name → its grants.  `on_change` is called after a change, by the thread that made it."""

    def __init__(
        self,
        auto_create: bool,
        stored: PersistedFile,
        *,
        groups_max: int = GROUPS_MAX,
        clock_ms: Callable[[], int] = wall_clock_ms,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._auto_create = auto_create
        self._stored = stored
        self._groups_max = groups_max
        self._clock_ms = clock_ms
        self.on_change = on_change
        # Guards every change of the fields below, so that a version always belongs to its table.
        self._lock = threading.Lock()
        self._table = {name: GroupConfig(name) for name in SYSTEM_GROUPS}
        self._data_version = DataVersion(counter=0, timestamp=clock_ms())
        self._told_full = False

    def configure(self, auto_create: bool) -> None:
        """Sets whether unknown groups are created on the spot from now on."""
        self._auto_create = auto_create

    # Reading

    def get(self, group: str) -> GroupConfig | None:
        """The grants of `group`; None if it does not exist."""
        return self._table.get(group)

    def table(self) -> dict[str, GroupConfig]:
        """A copy of everything."""
        with self._lock:
            return dict(self._table)

    @property
    def data_version(self) -> DataVersion:
        return self._data_version

    def wrapper(self) -> SubscriptionGroupWrapper:
        """The whole table with its version: the body of 201, and the file."""
        with self._lock:
            return SubscriptionGroupWrapper(self._data_version, dict(self._table))

    # Changing

    def find(self, group: str) -> GroupConfig | None:
        """The grants of `group`, which is created if it is missing; None if that is not allowed."""
        known = self._table.get(group)
        if known is not None:
            return known
        if not self._auto_create and not group.startswith(SYSTEM_PREFIX):
            return None
        return None if group_fault(group) is not None else self._create(group)

    def _create(self, group: str) -> GroupConfig:
        made = GroupConfig(group)
        with self._lock:
            known = self._table.get(group)
            if known is not None:
                return known
            if len(self._table) >= self._groups_max:
                news, self._told_full = not self._told_full, True
                if news:
                    logger.warning(
                        "group not kept, there are %d already; it has the default grants group=%s",
                        len(self._table),
                        group,
                    )
                return made
            self._put(made)
        logger.info("group created group=%s", group)
        self.on_change()
        return made

    def update(self, config: GroupConfig) -> None:
        """Creates or replaces a group, as request 200 asks; always makes a new version, as RocketMQ does.

        Raises ValueError for a bad name, numbers too large for Java's types, or one group too many.
        """
        fault = group_fault(config.group_name) or _misfit(config)
        if fault is None and config.retry_queue_nums > RETRY_QUEUE_NUMS_MAX:
            fault = f"retryQueueNums {config.retry_queue_nums} is more than {RETRY_QUEUE_NUMS_MAX}"
        if fault is not None:
            raise ValueError(fault)
        with self._lock:
            known = self._table.get(config.group_name)
            if known is None and len(self._table) >= self._groups_max:
                raise ValueError(f"there are {len(self._table)} groups already, no more are kept")
            self._put(config)
        logger.info("group %s %s", "updated" if known else "created", config)
        self.on_change()

    def delete(self, group: str) -> bool:
        """Removes `group`; False if it did not exist.  The caller looks after its offsets."""
        with self._lock:
            if group not in self._table:
                return False
            table = dict(self._table)
            del table[group]
            self._table = table
            self._told_full = False
            self._raise_version()
        logger.info("group deleted group=%s", group)
        self.on_change()
        return True

    def replace_all(self, wrapper: SubscriptionGroupWrapper) -> bool:
        """Takes the master's whole table and version; False if we have this version.

        Raises ValueError if it has numbers too large for Java's types.
        """
        with self._lock:
            if wrapper.data_version == self._data_version:
                return False
            self._table = _checked(wrapper.subscription_group_table)
            self._data_version = wrapper.data_version
        logger.info("groups replaced count=%d version=%s", len(self._table), wrapper.data_version)
        self.on_change()
        return True

    # Storing

    def load(self) -> None:
        """Reads the file, if there is one; its groups replace the start values."""
        wrapper = self._stored.load(_decoded)
        if wrapper is None:
            return
        with self._lock:
            self._table = {**self._table, **wrapper.subscription_group_table}
            self._data_version = wrapper.data_version
        logger.info("groups loaded count=%d", len(wrapper.subscription_group_table))

    def persist(self) -> bool:
        """Writes the file if it differs; False if there was nothing to write.  Blocks: not for the loop."""
        return self._stored.save(lambda: self.wrapper().encode(pretty=True))

    def _put(self, config: GroupConfig) -> None:
        assert self._lock.locked()
        self._table[config.group_name] = config
        self._raise_version()

    def _raise_version(self) -> None:
        assert self._lock.locked()
        self._data_version = DataVersion(counter=self._data_version.counter + 1, timestamp=self._clock_ms())


def _misfit(config: GroupConfig) -> str | None:
    """Which number of `config` does not fit Java's type: no slave could take such a table."""
    for name in ("retry_queue_nums", "retry_max_times"):
        value = getattr(config, name)
        if not -_I32_MAX - 1 <= value <= _I32_MAX:
            return f"group {config.group_name[:GROUP_LENGTH_MAX]}: {name} {value} does not fit"
    return None


def _checked(table: Mapping[str, GroupConfig]) -> dict[str, GroupConfig]:
    for config in table.values():
        fault = _misfit(config)
        if fault is not None:
            raise ValueError(fault)
    return dict(table)


def _decoded(content: bytes) -> SubscriptionGroupWrapper:
    wrapper = SubscriptionGroupWrapper.decode(content)
    _checked(wrapper.subscription_group_table)
    return wrapper
