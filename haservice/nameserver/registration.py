"""What a broker tells of itself when it registers, what it is told, and what is kept of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.nameserver.epochs import KnownEpoch
from haservice.nameserver.topic_queues import QueuesOfTopic
from haservice.remoting.bodies.clients import DataVersion


class BrokerAnnouncement(NamedTuple):
    """What a broker says of itself.  `topics` is None when the request carried no table."""

    cluster: str
    broker_name: str
    broker_id: int
    addr: str
    ha_server_addr: str
    data_version: DataVersion | None
    topics: Mapping[str, QueuesOfTopic] | None
    filter_servers: Sequence[str] | None = None
    epoch: int | None = None
    """The last epoch in its log; None for a stock broker."""
    base: str | None = None
    """Ours: the version of the table that `topics` and `deleted` change, as DataVersion.text; None: no such table."""
    deleted: Sequence[str] = ()
    whole: bool = False
    """Ours: the broker has no other topics than `topics`."""


class Master(NamedTuple):
    """Where a slave finds its master; both None while there is none."""

    addr: str | None = None
    ha_server_addr: str | None = None


class Registered(NamedTuple):
    """The outcome of a registration: what to answer, and what to log.

    `newer` is an epoch newer than the broker's own; a master was then refused, and nothing changed.
    `learns`: its topics are wanted, and its data version counts once they are learned.  `other_clusters` have brokers
    of the same name.
    """

    master: Master
    new: bool
    replaced_addr: str | None = None
    newer: KnownEpoch | None = None
    learns: bool = False
    other_clusters: Sequence[str] = ()


@dataclass(slots=True)
class NamedBroker:
    """The brokers of one name, in the table."""

    cluster: str
    addrs: dict[int, str] = field(default_factory=dict)
    displaced: dict[str, str] = field(default_factory=dict)
    """Live masters whose id another one has taken: address → cluster."""

    def clusters_beside(self, told: BrokerAnnouncement) -> Sequence[str]:
        """Other clusters whose brokers have this name now; 106 lists the name with each of them."""
        others = [addr for addr in (*self.addrs.values(), *self.displaced) if addr != told.addr]
        return tuple(sorted({self.cluster, *self.displaced.values()} - {told.cluster})) if others else ()
