"""RouteTable: which brokers there are, which topics they have, and how long that is believed.

    topic       → broker name → Queues
    broker name → cluster, id → address
    cluster     → broker names
    address     → last word (time, data version), the connection it came by, HA address, filter servers

Brokers register; the table asks nobody.  It forgets a broker that unregisters, whose latest registration's
connection ends, or that is silent for 120 s.  When it forgets the last id of a name, it drops the name's
queues.  It learns topics from id 0 only, and keeps them while their broker lives.  The rules are those of
RocketMQ 4.9's RouteInfoManager; our own are marked "Ours".  epochs.py decides which epoch counts.

A broker of ours tells only what changed in its table (`base`), and that a table is whole (`whole`).  It is asked for
the whole table when its changes build on another version than the known one, and by the next change after somebody
else has changed its topics here (205, 216, 327): as with RocketMQ, what they did lasts until then.

Pure: the clock is handed in, a channel is any hashable object.  One thread owns a table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass

from haservice.bounds import EPOCH_JUMP_MAX, QUEUES_MAX
from haservice.errors import RequestError
from haservice.nameserver.epochs import KnownEpoch, KnownEpochs
from haservice.nameserver.registration import BrokerAnnouncement, Master, NamedBroker, Registered
from haservice.nameserver.topic_queues import QueuesOfTopic, TopicQueues, name_fault
from haservice.remoting.bodies.clients import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicRouteData,
)
from haservice.remoting.codes import ResponseCode

PERM_READ = 4
PERM_WRITE = 2

# Far above any real cluster; a broker that exceeds them is broken or hostile.
BROKERS_MAX = 10_000
QUEUE_ENTRIES_MAX = 500_000  # topics × broker names
FILTER_SERVERS_MAX = 100


@dataclass(slots=True)
class _Live:
    broker_name: str
    channel: Hashable
    last_word_s: float
    data_version: DataVersion | None
    ha_server_addr: str
    filter_servers: tuple[str, ...] = ()
    epoch: int | None = None
    altered: bool = False
    """Whether somebody else changed its topics here since it told its table."""


class RouteTable:
    """The tables and their rules.  Times are seconds of `clock`, which never goes back."""

    def __init__(
        self,
        clock: Callable[[], float],
        expire_seconds: float = 120.0,
        *,
        brokers_max: int = BROKERS_MAX,
        queue_entries_max: int = QUEUE_ENTRIES_MAX,
    ) -> None:
        self._clock = clock
        self._expire_seconds = expire_seconds
        self._brokers_max = brokers_max
        self._queue_entries_max = queue_entries_max
        self._queues = TopicQueues()
        self._brokers: dict[str, NamedBroker] = {}
        self._live: dict[str, _Live] = {}
        self._channels: dict[Hashable, set[str]] = {}
        # In the order of the last word.
        self._epochs: dict[str, KnownEpochs] = {}
        # Called with the name and address of a master that gets its place in the route back.
        self.on_restored: Callable[[str, str], None] = lambda _, __: None

    # What brokers tell

    def register(self, told: BrokerAnnouncement, channel: Hashable) -> Registered:
        """103 in one step.  Raises RequestError, with nothing changed, for impossible values and for a full table.

        Ours: a master whose epoch is over does not get its route back, however often it asks.
        """
        self.check(told)
        if told.topics is not None and told.broker_id == MASTER_ID:
            left_out = self.unfit(told.broker_name, told.topics)
            told = told._replace(topics={n: one for n, one in told.topics.items() if n not in left_out})
            self.check_room(told.broker_name, self.new_topics(told.broker_name, told.topics or ()))
        registered = self.enlist(told, channel)
        if registered.learns:
            if told.topics is not None:
                self.learn(told, channel, told.topics)
            self.learned(told, channel, told.topics or ())
        return registered._replace(learns=False)

    def wants_topics(self, told: BrokerAnnouncement) -> bool:
        """Whether to read the topics of this registration."""
        before, broker = self._live.get(told.addr), self._brokers.get(told.broker_name)
        moved = broker is None or broker.addrs.get(told.broker_id) != told.addr
        if told.broker_id != MASTER_ID or (before is not None and before.broker_name != told.broker_name):
            return told.broker_id == MASTER_ID
        if told.base is not None:
            return self._continues(told, before, moved=moved)
        return moved or before is None or before.data_version != told.data_version

    def enlist(self, told: BrokerAnnouncement, channel: Hashable) -> Registered:
        """103 without its topics: those of `told` are not looked at.  For a table that is learned in steps.

        If it `learns`: `learn` them, as often as need be, then `learned`.
        """
        epochs = self._epochs.get(told.broker_name, KnownEpochs())
        newer = self._newer_epoch(epochs, told)
        if newer is not None:
            epochs.opposed(told.addr, self._clock())
        if newer is not None and told.broker_id == MASTER_ID:
            return Registered(Master(), new=False, newer=newer)
        before = self._live.get(told.addr)
        if before is not None and before.broker_name != told.broker_name:
            # Ours: a renamed broker leaves its old name; RocketMQ would keep that until a restart.
            self._remove(told.addr)
            before = None
        broker = self._brokers.setdefault(told.broker_name, NamedBroker(told.cluster))
        for other_id in [key for key, addr in broker.addrs.items() if addr == told.addr]:
            if other_id != told.broker_id:  # a slave that became the master keeps one id only
                del broker.addrs[other_id]
        replaced = broker.addrs.get(told.broker_id)
        broker.displaced.pop(told.addr, None)
        others = broker.clusters_beside(told)
        if told.broker_id == MASTER_ID:
            if replaced is not None and replaced != told.addr and replaced in self._live:
                broker.displaced[replaced] = broker.cluster
            broker.cluster = told.cluster
        broker.addrs[told.broker_id] = told.addr
        # Ours: an id that moves to another address brings its topics, as a new id does.
        moved = replaced != told.addr
        learns = told.broker_id == MASTER_ID and told.topics is not None
        if told.base is not None:
            learns = learns and self._continues(told, before, moved=moved)
        else:
            learns = learns and (moved or before is None or before.data_version != told.data_version)
        self._hear(told, channel, before, learns=learns)
        self._remember(epochs, told, elsewhere=before is not None and before.channel != channel)
        self._claim_ends(told.broker_name, broker)
        return Registered(
            self._master_for(told, broker),
            replaced is None,
            replaced if moved else None,
            newer,
            learns,
            others,
        )

    def learn(self, told: BrokerAnnouncement, channel: Hashable, topics: Mapping[str, QueuesOfTopic]) -> bool:
        """Creates and updates topics.  False, with nothing changed, once another registration has come."""
        if not self._is_current(told, channel):
            return False
        self._queues.put(told.broker_name, topics)
        return True

    def learned(self, told: BrokerAnnouncement, channel: Hashable, topics: Collection[str]) -> None:
        """All are learned: drops those that the broker has no more, and its data version counts.

        A topic that a stock broker no longer names stays, as in RocketMQ: it may have told only what changed.
        """
        if not self._is_current(told, channel):
            return
        if told.whole and len(self._queues.of_name(told.broker_name)) > len(topics):
            gone = [topic for topic in self._queues.of_name(told.broker_name) if topic not in topics]
            self._queues.drop(told.broker_name, gone)
        self._queues.drop(told.broker_name, told.deleted)
        self._live[told.addr].data_version = told.data_version

    def topics_version(self, addr: str) -> DataVersion | None:
        """The version of the topics that are known of this broker; None if they are not known whole."""
        live = self._live.get(addr)
        return None if live is None else live.data_version

    def unregister(self, broker_name: str, addr: str, broker_id: int) -> bool:
        """104.  False when nothing was removed.

        Ours: removes only an id that still belongs to this address, so that an old master that unregisters
        does not take the new master out of the routes.  With another id nothing happens at all: without its
        live entry an address would stay in the routes for ever.
        """
        broker = self._brokers.get(broker_name)
        if broker is not None and broker_id == MASTER_ID:
            broker.displaced.pop(addr, None)
        if broker is None or broker.addrs.get(broker_id) != addr:
            return False
        self._forget(addr)
        self._drop_id(broker_name, broker, broker_id)
        return True

    def data_version(self, addr: str, version: DataVersion) -> tuple[bool, DataVersion | None]:
        """322: (whether `version` is not the known one, the known one); an equal one is a sign of life."""
        live = self._live.get(addr)
        if live is None:
            return True, None
        if live.data_version != version:
            return True, live.data_version
        live.last_word_s = self._clock()
        return False, live.data_version

    # What ends a broker

    def channel_closed(self, channel: Hashable) -> list[str]:
        """The addresses removed with `channel`; one that has registered by another channel stays."""
        gone = sorted(self._channels.get(channel, ()))
        for addr in gone:
            self._remove(addr)
        return gone

    def expire(self) -> list[tuple[str, Hashable]]:
        """Removes brokers that were silent for too long; gives (address, channel to close) of each."""
        latest = self._clock() - self._expire_seconds
        gone = [(addr, live.channel) for addr, live in self._live.items() if live.last_word_s < latest]
        for addr, _ in gone:
            self._remove(addr)
        return gone

    # What is asked

    def route(self, topic: str) -> TopicRouteData | None:
        """105: None unless the topic has queues on at least one name that has addresses."""
        queues = self._queues.of(topic)
        brokers = {name: self._brokers[name] for name in queues if name in self._brokers}
        if not brokers:
            return None
        filters = {
            addr: list(self._live[addr].filter_servers)
            for broker in brokers.values()
            for addr in broker.addrs.values()
            if addr in self._live and self._live[addr].filter_servers
        }
        return TopicRouteData(
            broker_datas=[_broker_data(name, broker) for name, broker in brokers.items()],
            queue_datas=[
                QueueData(name, there.read, there.write, there.perm, there.sys_flag)
                for name, there in queues.items()
            ],
            filter_server_table=filters,
        )

    def cluster_info(self) -> ClusterInfo:
        """106: every broker name with its addresses, and every cluster with its names."""
        return ClusterInfo(
            broker_addr_table={name: _broker_data(name, broker) for name, broker in self._brokers.items()},
            cluster_addr_table=self.clusters(),
        )

    def silent_s(self) -> dict[str, float]:
        """Address → time since the last word, of every broker."""
        return {addr: self._clock() - live.last_word_s for addr, live in self._live.items()}

    def newest_epoch(self, broker_name: str) -> KnownEpoch | None:
        """40001: the highest epoch number that counts, and who told it."""
        return self._epochs.get(broker_name, KnownEpochs()).newest

    def clusters(self) -> dict[str, list[str]]:
        clusters: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            for cluster in {broker.cluster, *broker.displaced.values()}:
                clusters.setdefault(cluster, []).append(name)
        return clusters

    def topics(self) -> list[str]:
        """206."""
        return self._queues.topics()

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """224: empty for a cluster that nobody knows."""
        return self._queues.topics_of(
            [name for name, broker in self._brokers.items() if broker.cluster == cluster]
        )

    def topics_with(self, is_wanted: Callable[[int], bool]) -> list[str]:
        """311, 312, 313: topics with a wanted sys flag on some broker."""
        return self._queues.topics_with(lambda queues: is_wanted(queues.sys_flag))

    def some_addr(self) -> str | None:
        """The address of some live broker, a master if there is one."""
        brokers = self._brokers.values()
        masters = (broker.addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.addrs)
        return next(masters, None) or next((min(broker.addrs.items())[1] for broker in brokers), None)

    # What admins change

    def wipe_write_perm(self, broker_name: str) -> int:
        """205: takes W from every topic of that name until its data version changes; gives their number."""
        self._alter(broker_name)
        return self._queues.set_perms(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """327: undoes 205; every topic becomes readable and writable."""
        self._alter(broker_name)
        return self._queues.set_perms(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """216: everywhere, or on the names of one cluster only."""
        in_cluster = self.clusters().get(cluster, []) if cluster else None
        for name in self._queues.names_of(topic):
            if in_cluster is None or name in in_cluster:
                self._queues.drop(name, [topic])
                self._alter(name)

    # Inside

    def check(self, told: BrokerAnnouncement) -> None:
        """Raises RequestError for impossible values in a registration, its topics aside."""
        for what, name in (("clusterName", told.cluster), ("brokerName", told.broker_name)):
            _check_name(what, name)
        if not 0 <= told.broker_id < 2**63:
            raise _refused(f"brokerId {told.broker_id} is not within 0 ... 2^63 - 1")
        if told.filter_servers is not None and len(told.filter_servers) > FILTER_SERVERS_MAX:
            raise _refused(
                f"{len(told.filter_servers)} filter servers; at most {FILTER_SERVERS_MAX} are kept"
            )
        if told.addr not in self._live and len(self._live) >= self._brokers_max:
            raise _refused(
                f"the nameserver is full: it knows {len(self._live)} brokers, {told.addr} is refused"
            )
        if told.broker_id != MASTER_ID:
            return
        known = self._epochs.get(told.broker_name, KnownEpochs()).last
        if known is not None and (told.epoch or 0) > known.epoch + EPOCH_JUMP_MAX:
            raise _refused(
                f"epoch {told.epoch} of {told.addr} is not plausible: the last one that {told.broker_name} "
                f"told of is {known.epoch}, of {known.addr}, and {EPOCH_JUMP_MAX} more are accepted at most"
            )

    def unfit(self, broker_name: str, topics: Mapping[str, QueuesOfTopic]) -> dict[str, str]:
        """The topics whose names cannot be taken, with the reasons; raises RequestError for impossible numbers."""
        known, unfit = self._queues.of_name(broker_name), {}
        for topic, queues in topics.items():
            if topic not in known and (fault := name_fault(topic)) is not None:
                unfit[topic] = fault
            if min(queues) < 0:
                raise _refused(f"topic {topic!r} has a negative number of queues, or permission: {queues}")
            if queues.read > QUEUES_MAX or queues.write > QUEUES_MAX:
                raise _refused(f"topic {topic!r} has more than {QUEUES_MAX} queues: {queues}")
        return unfit

    def new_topics(self, broker_name: str, topics: Collection[str]) -> int:
        """How many of these are new to that name."""
        return len(set(topics).difference(self._queues.of_name(broker_name)))

    def check_room(self, broker_name: str, new: int) -> None:
        """Raises RequestError if there is no room for so many new topics of that name."""
        entries = self._queues.entries
        if entries + new > self._queue_entries_max:
            raise _refused(
                f"the nameserver is full: it knows {entries} topics of brokers, "
                f"{new} more of {broker_name} are refused, the limit is {self._queue_entries_max}"
            )

    def _newer_epoch(self, epochs: KnownEpochs, told: BrokerAnnouncement) -> KnownEpoch | None:
        """The epoch that makes the broker's own an old one."""
        if told.epoch is None:
            return None
        leader = self._leader(told.broker_name)
        return epochs.newer_than(told.addr, told.epoch, is_master=told.broker_id == MASTER_ID, leader=leader)

    def _leader(self, broker_name: str) -> str | None:
        """The address of the live master in the route."""
        broker = self._brokers.get(broker_name)
        addr = broker.addrs.get(MASTER_ID) if broker is not None else None
        return addr if addr in self._live else None

    def _remember(self, epochs: KnownEpochs, told: BrokerAnnouncement, *, elsewhere: bool) -> None:
        self._epochs.pop(told.broker_name, None)
        self._epochs[told.broker_name] = epochs
        if len(self._epochs) > self._brokers_max:
            del self._epochs[next(iter(self._epochs))]
        if told.broker_id == MASTER_ID:
            epochs.master_told(told.addr, told.epoch, self._clock(), elsewhere=elsewhere)
        else:
            epochs.slave_told(told.addr, told.epoch)

    def _claim_ends(self, broker_name: str, broker: NamedBroker) -> None:
        """Ends a claim that no registered broker tells of; a master that it kept out gets its place back.

        Ours: RocketMQ's gets it with its next registration, which brings its topics here, too.
        """
        epochs = self._epochs.get(broker_name)
        if epochs is None or epochs.claim is None:
            return
        claim = epochs.claim
        live = [one for addr in broker.addrs.values() if (one := self._live.get(addr)) is not None]
        stays = self._leader(broker_name) == claim.addr
        told = stays or (claim.epoch is not None and any(one.epoch == claim.epoch for one in live))
        if not told:
            epochs.ended()
        if told or MASTER_ID in broker.addrs:
            return
        waiting = [(self._live[addr], addr) for addr in broker.displaced if addr in self._live]
        for one, addr in sorted(waiting, key=lambda pair: pair[0].epoch or 0, reverse=True):
            if one.epoch is None or epochs.newer_than(addr, one.epoch, is_master=True, leader=None) is None:
                broker.addrs[MASTER_ID], broker.cluster = addr, broker.displaced.pop(addr)
                one.data_version = None
                epochs.master_told(addr, one.epoch, self._clock(), elsewhere=False)
                self.on_restored(broker_name, addr)
                return

    def _continues(self, told: BrokerAnnouncement, before: _Live | None, *, moved: bool) -> bool:
        """Whether the changes that `told` has lead from the known table to the broker's."""
        if moved or before is None or before.data_version is None or before.data_version.text != told.base:
            return False
        return not before.altered or before.data_version == told.data_version

    def _is_current(self, told: BrokerAnnouncement, channel: Hashable) -> bool:
        """Whether this is still the latest word of the master of that name."""
        live = self._live.get(told.addr)
        return live is not None and live.channel == channel and self._leader(told.broker_name) == told.addr

    def _hear(
        self, told: BrokerAnnouncement, channel: Hashable, before: _Live | None, *, learns: bool
    ) -> None:
        """Replaces the live entry: time, version, channel.  The version of topics to be learned counts later."""
        filters = before.filter_servers if before is not None else ()
        if told.filter_servers is not None:
            filters = tuple(told.filter_servers)
        version = None if learns else told.data_version
        altered = before is not None and before.altered and before.data_version == told.data_version
        if told.base is not None and told.broker_id == MASTER_ID and not learns:
            version = None
        self._forget(told.addr)
        self._live[told.addr] = _Live(
            told.broker_name,
            channel,
            self._clock(),
            version,
            told.ha_server_addr,
            filters,
            told.epoch,
            altered,
        )
        self._channels.setdefault(channel, set()).add(told.addr)

    def _alter(self, broker_name: str) -> None:
        live = self._live.get(self._leader(broker_name) or "")
        if live is not None:
            live.altered = True

    def _master_for(self, told: BrokerAnnouncement, broker: NamedBroker) -> Master:
        """Told to slaves only, and only while the master lives."""
        addr = broker.addrs.get(MASTER_ID)
        if told.broker_id == MASTER_ID or addr is None or addr not in self._live:
            return Master()
        return Master(addr, self._live[addr].ha_server_addr)

    def _forget(self, addr: str) -> _Live | None:
        """Takes out the live entry only."""
        live = self._live.pop(addr, None)
        if live is not None:
            there = self._channels[live.channel]
            there.discard(addr)
            if not there:
                del self._channels[live.channel]
        return live

    def _remove(self, addr: str) -> None:
        """Takes out a live entry, the ids with its address, and what depends on them."""
        live = self._forget(addr)
        broker = self._brokers.get(live.broker_name) if live is not None else None
        if live is None or broker is None:
            return
        broker.displaced.pop(addr, None)
        for broker_id in [key for key, value in broker.addrs.items() if value == addr]:
            self._drop_id(live.broker_name, broker, broker_id)

    def _drop_id(self, broker_name: str, broker: NamedBroker, broker_id: int) -> None:
        del broker.addrs[broker_id]
        self._claim_ends(broker_name, broker)
        if broker.addrs:
            return
        del self._brokers[broker_name]
        self._queues.drop_name(broker_name)


def _broker_data(name: str, broker: NamedBroker) -> BrokerData:
    return BrokerData(cluster=broker.cluster, broker_name=name, broker_addrs=dict(broker.addrs))


def _check_name(what: str, name: str) -> None:
    if (fault := name_fault(name)) is not None:
        raise _refused(f"{what} {name[:64]!r} {fault}")


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
