"""The history of masters in the coordinator: one key for each epoch, the oldest ones removed."""

from __future__ import annotations

from collections.abc import Iterable

from haservice.bounds import EPOCH_MAX
from haservice.coordination.coordinator import HISTORY, Coordinator, Transaction

# So many are kept.  They are pruned only once there are PRUNED_AT.
KEPT = 100
PRUNED_AT = 120
# In one transaction: etcd takes 128 operations, and each key is one that is expected and one that is deleted.
AT_ONCE = 50


def is_epoch(text: str) -> bool:
    """Whether a key below `history` may be one of ours: Python reads no number of thousands of digits."""
    return text.isdecimal() and len(text) <= len(str(EPOCH_MAX))


def prune(coordinator: Coordinator) -> None:
    """Raises CoordinatorError."""
    found = coordinator.history()
    gone = surplus(found)
    for at in range(0, len(gone), AT_ONCE):
        some = gone[at : at + AT_ONCE]
        coordinator.commit(Transaction({key: found[key].version for key in some}, deletes=frozenset(some)))


def surplus(keys: Iterable[str]) -> list[str]:
    """Which of these keys go: the oldest; none while there are few."""
    numbered = sorted((int(number), key) for key in keys if is_epoch(number := key.removeprefix(HISTORY)))
    return [key for _, key in numbered[:-KEPT]] if len(numbered) >= PRUNED_AT else []
