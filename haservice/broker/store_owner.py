"""Whose store it is: cluster, broker name and id, in `lineage/owner.json`.

A broker of another name, or of another cluster, does not open the store without a word: its clients would not find
the old name's messages, and would get those under the new one.  A store without the file, a stock broker's or an
older one of ours, is taken as this broker's, and that is written down.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commitlog.errors import StoreUnreadable
from haservice import typed_json
from haservice.configuration.settings import NodeConfig
from haservice.persisted_file import PersistedFile

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What an operator accepts of a store at this start."""

    store: bool = False
    """The store of another broker name or cluster becomes this broker's."""
    empty: frozenset[str] = frozenset()
    """Names of files of config/ that cannot be read: their tables begin empty."""


REFUSES_ALL = Accepted()


@dataclass(frozen=True, slots=True)
class Owner:
    """The file; `broker_id` is that of the properties file."""

    cluster_name: str
    broker_name: str
    broker_id: int

    def __str__(self) -> str:
        return f"{self.broker_name} in {self.cluster_name}"


class ForeignStore(StoreUnreadable):
    """The store belongs to a broker of another name or cluster."""

    def __init__(self, root: Path, was: Owner, now: Owner) -> None:
        super().__init__(
            root,
            f"is the store of brokerName={was.broker_name} in brokerClusterName={was.cluster_name}, and not of"
            f" {now}: is this the right storePathRootDir, and the right disk? If the broker is meant to have"
            " another name from now on, start it once with mqbroker -c FILE --accept-store, its slaves too: clients"
            f" then find the messages of {was.broker_name} at {now.broker_name}",
        )
        self.was = was


def check_owner(config: NodeConfig, accepted: Accepted) -> Owner | None:
    """Whose store it is by its file; None if it has none.

    Raises ForeignStore unless the store is this broker's, or nobody's, or is accepted; StoreUnreadable for a file that
    says nothing, unless the store is accepted; or OSError.

    Where a file stands in the place of a directory there is no store; to open it says so.
    """
    was, now, stored = None, _owner(config), _file(config)
    with suppress(NotADirectoryError):
        was = stored.load(_decode)
    if was is None and stored.unfit is not None and not accepted.store:
        raise StoreUnreadable(
            stored.path,
            f"does not say whose store this is: {stored.unfit}.  If it is that of {now}, start it once with"
            " mqbroker -c FILE --accept-store, which writes the file anew",
        )
    if was is None:
        return None
    if (was.cluster_name, was.broker_name) != (now.cluster_name, now.broker_name):
        if not accepted.store:
            raise ForeignStore(config.log.root, was, now)
        logger.warning("the store of another broker is taken, as --accept-store says was=%s now=%s", was, now)
    elif was.broker_id != now.broker_id and was.broker_id > 0 and now.broker_id > 0:
        logger.warning(
            "the store was that of brokerId=%d, and is that of brokerId=%d from now on path=%s; two brokers that run"
            " on each other's stores should be stopped, and their storePathRootDir exchanged",
            *(was.broker_id, now.broker_id, config.log.root),
        )
    return was


def note_owner(config: NodeConfig, was: Owner | None) -> None:
    """Writes down whose store it is, if check_owner() found another.  The store is locked.  Raises OSError."""
    now = _owner(config)
    if was != now:
        _file(config).save(lambda: typed_json.encode_pretty(now))


def _file(config: NodeConfig) -> PersistedFile:
    return PersistedFile(config.log.root / "lineage" / "owner.json")


def _decode(content: bytes) -> Owner:
    return typed_json.decode(Owner, content)


def _owner(config: NodeConfig) -> Owner:
    broker = config.broker
    return Owner(broker.cluster_name, broker.broker_name, broker.broker_id)
