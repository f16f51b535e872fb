"""Where topics are: queues, brokers and their addresses; and when to ask the nameservers again.  Pure.

The client asks for a route every `interval_s`.  In between, a broker name may be in *doubt*: its master is
unreachable, lost the connection, does not answer, or says that it is no master; or the route lacks the name,
as while a broker restarts.  While a name is in doubt, or has no master, the client asks for one route with
that name every `poll_s`.  Doubt ends when the route shows another master, or the doubted one acknowledges
something.  So the first poll that sees a new master finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog.kernel.records import java_hash
from haservice.bounds import ORDERED_QUEUES_MAX, QUEUES_MAX
from haservice.client.errors import RouteUnknown
from haservice.errors import AnswerError, RemotingError, RemotingTimeout, RemotingUnreachable
from haservice.remoting.bodies.clients import MASTER_ID, BrokerData, ClusterInfo, MessageQueue, TopicRouteData
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand

PERM_READ = 4
PERM_WRITE = 2
# New topics are made after this one; its route says which brokers would make one.
TEMPLATE_TOPIC = "TBW102"
AUTO_CREATED_QUEUES = 4

# Whether a nameserver's answer says anything.
Knows = Callable[[RemotingCommand], bool]

# After a while a name without a master is asked for less often, by this factor.
PATIENCE_S = 60.0
PATIENT_FACTOR = 10


class Broker(NamedTuple):
    """One broker of a cluster, as the nameserver lists it."""

    cluster: str
    name: str
    broker_id: int
    addr: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


def readable_addr(data: BrokerData) -> str:
    """Which of a broker's addresses to read from: the master, or the first slave while there is none."""
    return data.broker_addrs[min(data.broker_addrs)]


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's queues, in the order of Java's clients: by broker name, then by number.

    `write_queues` includes those of brokers without a master now, so that an order key keeps its queue.  If the
    nameserver gives an order configuration, they are its queues in its order, whatever the brokers have; what those
    have themselves are the `own_queues`.
    With `template` the topic does not exist yet, and these are the queues that it would get.
    """

    topic: str
    brokers: Mapping[str, Mapping[int, str]]
    write_queues: tuple[MessageQueue, ...]
    own_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    order_conf: str | None = None
    template: bool = False

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, *, template: bool = False) -> TopicRoute:
        brokers = {one.broker_name: dict(one.broker_addrs) for one in data.broker_datas if one.broker_addrs}
        write: list[MessageQueue] = []
        read: list[MessageQueue] = []
        for found in sorted(data.queue_datas, key=lambda one: one.broker_name):
            if found.broker_name not in brokers:
                continue
            count = min(found.write_queue_nums, AUTO_CREATED_QUEUES) if template else found.write_queue_nums
            if found.perm & PERM_WRITE:
                write += [MessageQueue(topic, found.broker_name, number) for number in range(count)]
            if found.perm & PERM_READ and not template:
                read += [
                    MessageQueue(topic, found.broker_name, number) for number in range(found.read_queue_nums)
                ]
        own = tuple(write)
        ordered = _ordered_queues(topic, data.order_topic_conf)
        chosen = own if ordered is None else tuple(ordered)
        return cls(topic, brokers, chosen, own, tuple(read), data.order_topic_conf, template)

    def master(self, broker_name: str) -> str | None:
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def readable_addr(self, broker_name: str) -> str | None:
        """The master, or the slave with the lowest id while there is no master."""
        addrs = self.brokers.get(broker_name)
        return addrs[min(addrs)] if addrs else None

    def queue_for(self, order_key: str | int) -> MessageQueue:
        """The queue that Java's SelectMessageQueueByHash chooses.  Raises RouteUnknown if there is none."""
        if not self.write_queues:
            raise RouteUnknown(
                self.topic, "has no queue that may be written to; mqadmin topicRoute shows them"
            )
        number = java_hash(order_key) if isinstance(order_key, str) else _long_hash(order_key)
        return self.write_queues[abs(number) % len(self.write_queues)]


def first_that_knows(
    nameservers: Iterable[str],
    ask: Callable[[str], RemotingCommand],
    knows: Knows = lambda answer: True,
) -> tuple[str, RemotingCommand]:
    """The first nameserver that answers and knows, and its answer: one that is down or knows nothing hides no other.

    Else an answer of one that knows nothing, or `unknown_to` of all that answer, or what the first one raised.
    """
    empty: list[tuple[str, RemotingCommand]] = []
    unknown: list[AnswerError] = []
    failures: list[RemotingError] = []
    for addr in nameservers:
        try:
            answer = ask(addr)
        except (RemotingUnreachable, RemotingTimeout) as error:
            failures.append(error)
        except AnswerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            unknown.append(error)
        else:
            if knows(answer):
                return addr, answer
            empty.append((addr, answer))
    if empty:
        return empty[0]
    raise unknown_to(unknown) if unknown else failures[0]


def unknown_to(answers: Sequence[AnswerError]) -> AnswerError:
    """The first answer, with the addresses of all that gave one."""
    first = answers[0]
    return AnswerError(";".join(one.addr for one in answers), first.code, first.remark, first.request)


def names_brokers(answer: RemotingCommand) -> bool:
    """Whether the answer to GET_BROKER_CLUSTER_INFO has any."""
    return bool(ClusterInfo.decode(answer.body).broker_addr_table)


def order_counts(conf: str) -> dict[str, int]:
    """`broker-a:4;broker-b:0` → how many queues of each broker have the order keys.  Raises ValueError."""
    counts: dict[str, int] = {}
    for part in filter(None, conf.split(";")):
        name, _, text = part.strip().partition(":")
        count = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
        if not name or not 0 <= count <= QUEUES_MAX:
            raise ValueError(f"{part[:255]!r} is not brokerName:num with 0 to {QUEUES_MAX} queues")
        if name in counts:
            raise ValueError(f"{name} is named twice")
        counts[name] = count
    if (total := sum(counts.values())) > ORDERED_QUEUES_MAX:
        raise ValueError(f"it names {total} queues, more than {ORDERED_QUEUES_MAX}")
    return counts


def _ordered_queues(topic: str, conf: str | None) -> list[MessageQueue] | None:
    """The queues that an order configuration names, as Java's clients choose from; None without a sound one."""
    try:
        counts = order_counts(conf or "")
    except ValueError:  # a stock tool stores anything
        return None
    return [
        MessageQueue(topic, name, number) for name, count in counts.items() for number in range(count)
    ] or None


def _long_hash(number: int) -> int:
    """Java's hashCode of an Integer, or of a Long if the number needs one."""
    if -(1 << 31) <= number < 1 << 31:
        return number
    bits = number & 0xFFFFFFFFFFFFFFFF
    folded = (bits ^ bits >> 32) & 0xFFFFFFFF
    return folded - (1 << 32) if folded >= 1 << 31 else folded


@dataclass(slots=True)
class _Known:
    """A topic's route, and when it was last asked for."""

    route: TopicRoute
    asked_s: float


@dataclass(slots=True)
class _Doubt:
    """A broker name whose master `addr` is in doubt ("" if it has none), and since when; the route of `topic`
    watches the name.
    """

    addr: str
    since_s: float
    topic: str


# Before any clock's time: a route last asked for then is due at once.
_NEVER_S = float("-inf")


@dataclass(slots=True)
class ClientRoutes:
    """The routes of one client.  Times are those of its loop's clock."""

    interval_s: float = 30.0
    poll_s: float = 0.1
    _known: dict[str, _Known] = field(default_factory=dict)
    _doubts: dict[str, _Doubt] = field(default_factory=dict)
    _masters: dict[str, str | None] = field(default_factory=dict)

    def get(self, topic: str) -> TopicRoute | None:
        known = self._known.get(topic)
        return None if known is None else known.route

    def topics(self) -> list[str]:
        return list(self._known)

    def put(self, route: TopicRoute, now_s: float) -> bool:
        """Takes a nameserver's answer; True if it differs from what was known."""
        before = self.get(route.topic)
        self._known[route.topic] = _Known(route, now_s)
        for name in route.brokers:
            self._see(name, route, now_s)
        if before is not None:
            for name in before.brokers.keys() - route.brokers.keys():
                self._miss(name, route, now_s)
        self._give_up(now_s)
        return before != route

    def _see(self, name: str, route: TopicRoute, now_s: float) -> None:
        """Takes what a route says of a broker name; a new master counts for the other topics, too."""
        master = self._masters[name] = route.master(name)
        doubt = self._doubts.get(name)
        if master is None:
            if doubt is None:
                self._doubts[name] = _Doubt("", now_s, route.topic)
        elif doubt is not None and doubt.addr != master:
            del self._doubts[name]

    def _miss(self, name: str, route: TopicRoute, now_s: float) -> None:
        """A route lacks a broker name: the broker may be away for a moment, or no longer have the topic."""
        other = next(self._with(name), None)
        if other is None:
            self._masters[name] = None
        watched = route if other is None else other.route
        self._doubts.setdefault(name, _Doubt("", now_s, watched.topic))

    def _give_up(self, now_s: float) -> None:
        """Drops a name for good that no route has had for a while."""
        for name, doubt in list(self._doubts.items()):
            if now_s - doubt.since_s > PATIENCE_S and not any(self._with(name)):
                del self._doubts[name]
                self._masters.pop(name, None)

    def asked(self, topic: str, now_s: float) -> None:
        """The nameservers were asked and gave no route: what was known stays."""
        known = self._known.get(topic)
        if known is not None:
            known.asked_s = now_s

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    def doubt(self, broker_name: str, addr: str, now_s: float) -> bool:
        """`addr` did not behave as the master of `broker_name`; True if that is new."""
        if broker_name in self._doubts or self.master(broker_name) not in (addr, None):
            return False
        witness = next(self._with(broker_name), None)
        if witness is None:
            return False
        self._doubts[broker_name] = _Doubt(addr, now_s, witness.route.topic)
        witness.asked_s = _NEVER_S
        return True

    def trust(self, broker_name: str, addr: str) -> None:
        """`addr` has just done what only a master does."""
        doubt = self._doubts.get(broker_name)
        if doubt is not None and doubt.addr == addr:
            del self._doubts[broker_name]

    def doubted(self, broker_name: str) -> bool:
        return broker_name in self._doubts

    def master(self, broker_name: str) -> str | None:
        """The master's address in the newest route that names the broker."""
        return self._masters.get(broker_name)

    def addrs_of(self, broker_name: str) -> Mapping[int, str]:
        """The broker's addresses by id, from the newest route that names it."""
        newest = max(self._with(broker_name), key=lambda known: known.asked_s, default=None)
        return {} if newest is None else newest.route.brokers[broker_name]

    def addrs(self) -> dict[str, dict[int, str]]:
        """Every broker that a route names, with all its addresses."""
        found: dict[str, dict[int, str]] = {}
        for known in sorted(self._known.values(), key=lambda known: known.asked_s):
            found |= {name: dict(addrs) for name, addrs in known.route.brokers.items()}
        return found

    def next_s(self) -> float | None:
        """When to ask again; None while no route is known."""
        doubts = self._polled()
        return min((self._due_s(known, doubts) for known in self._known.values()), default=None)

    def due(self, now_s: float) -> list[str]:
        """The topics whose routes to ask for now."""
        doubts = self._polled()
        return [topic for topic, known in self._known.items() if self._due_s(known, doubts) <= now_s]

    def _due_s(self, known: _Known, polled: Mapping[str, float]) -> float:
        return known.asked_s + min(polled.get(known.route.topic, self.interval_s), self.interval_s)

    def _polled(self) -> dict[str, float]:
        """The topics whose routes watch names in doubt, one for each name, and the pauses between polls."""
        pauses: dict[str, float] = {}
        for name, doubt in self._doubts.items():
            watched = self._known.get(doubt.topic) or next(self._with(name), None)
            if watched is not None:
                patient = watched.asked_s - doubt.since_s > PATIENCE_S
                pause = self.poll_s * PATIENT_FACTOR if patient else self.poll_s
                topic = watched.route.topic
                pauses[topic] = min(pause, pauses.get(topic, pause))
        return pauses

    def _with(self, broker_name: str) -> Iterator[_Known]:
        return (known for known in self._known.values() if broker_name in known.route.brokers)
