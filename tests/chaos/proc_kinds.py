"""Kinds of rounds of real processes: what a cluster is, and what goes wrong in it.

Each kind has faults of its own, of which every round has one at least, and others among them.  A run takes
the kinds in turn, as MIX says, a cluster for each; `scripts/chaos processes --only KIND` takes one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.chaos.proc_cluster import Cluster, Shape
from tests.chaos.proc_commands import COMMAND_FAULTS
from tests.chaos.proc_disks import DISK_FAULTS, FLUSH_FAULTS
from tests.chaos.proc_faults import LINK_FAULTS, PROCESS_FAULTS, ROLE_FAULTS, Fault
from tests.chaos.proc_flips import FLIP_FAULTS
from tests.chaos.proc_java import JAVA, JavaSide
from tests.chaos.proc_later import DELAYED, SETTINGS, TRANSACTIONS, DelayedClients, TransactionClients
from tests.chaos.proc_names import NAME_FAULTS
from tests.chaos.proc_packets import HOST_FAULTS, ONE_WAY_FAULTS, island
from tests.chaos.proc_round import FAULTS, MakeClients, schedule

OWN = 0.65

ALL_FAULTS: dict[str, Fault] = {
    **PROCESS_FAULTS,
    **LINK_FAULTS,
    **HOST_FAULTS,
    **ONE_WAY_FAULTS,
    "island": island,
    **ROLE_FAULTS,
    **NAME_FAULTS,
    **DISK_FAULTS,
    **FLUSH_FAULTS,
    **FLIP_FAULTS,
    **COMMAND_FAULTS,
}


class Kind(NamedTuple):
    """One kind of rounds."""

    help: str
    shape: Callable[[random.Random], Shape]
    faults: tuple[str, ...] = ()
    """Its own; none for what proc_round.schedule() takes."""
    among: tuple[str, ...] = ()
    """Others between them."""


def _flush(rng: random.Random) -> str:
    return rng.choice(["SYNC_FLUSH", "ASYNC_FLUSH"])


def _classic(rng: random.Random) -> Shape:
    links = "netns" if rng.random() < 0.25 else "proxy"
    return Shape(_flush(rng), links, 3 if rng.random() < 0.3 else 2)


def _one_way(rng: random.Random) -> Shape:
    return Shape(_flush(rng), "netns", rng.choice([2, 3]), offices=True, nameservers=rng.choice([1, 2]))


def _one_end(rng: random.Random) -> Shape:
    return Shape(_flush(rng), "proxy", rng.choice([2, 2, 3]))


def _names(rng: random.Random) -> Shape:
    return Shape(_flush(rng), "proxy", rng.choice([2, 3]), nameservers=rng.choice([2, 3]))


def _disks(rng: random.Random) -> Shape:
    return Shape(_flush(rng), disks=True)


def _flushes(rng: random.Random) -> Shape:
    return Shape("SYNC_FLUSH" if rng.random() < 0.8 else "ASYNC_FLUSH", shim=True)


def _flips(rng: random.Random) -> Shape:
    return Shape(_flush(rng))


def _later(rng: random.Random) -> Shape:
    settings = tuple(SETTINGS.items())
    return Shape(_flush(rng), brokers=rng.choice([2, 3]), settings=settings, clients=(DELAYED, TRANSACTIONS))


def _java(rng: random.Random) -> Shape:
    """Java consumers cannot be told that what an isolated master showed them is gone: so it shows nothing."""
    settings = (("haReadMark", "STRICT"),)
    return Shape(_flush(rng), brokers=rng.choice([2, 3]), settings=settings, clients=(JAVA,))


def _replicas(rng: random.Random) -> Shape:
    return Shape(_flush(rng), "netns", 3, in_sync=rng.choice([2, 3]), offices=True)


_KILLS = ("kill master", "kill slave", "kill all", "kill starting", "freeze master", "restart master")
_ROLES = ("switchover", "failover", "failover of a frozen master")

KINDS: dict[str, Kind] = {
    "classic": Kind("Kills, freezes, links by a proxy or partitions, roles.", _classic),
    "one-way": Kind(
        "Packets lost one way, between any two hosts, wholly or in bursts.",
        _one_way,
        tuple(ONE_WAY_FAULTS),
        ("switchover", "failover", "freeze slave", "restart master", "unplugged", "host slow"),
    ),
    "one-end": Kind(
        "Connections of which one end only is cut, or one way is silent.",
        _one_end,
        ("link's end cut", "link silent"),
        ("switchover", "failover", "freeze slave", "restart master", "link delayed"),
    ),
    "name-servers": Kind(
        "Nameservers that are deaf, stale, empty or gone while roles change.",
        _names,
        tuple(NAME_FAULTS),
        (*_ROLES, "restart slave", "kill master"),
    ),
    "disks": Kind(
        "Stores on file systems of their own that become read-only, full, or hang.",
        _disks,
        tuple(DISK_FAULTS),
        ("switchover", "failover", "kill slave", "restart master", "link cut"),
    ),
    "flushes": Kind(
        "fsync and fdatasync give EIO for a while.",
        _flushes,
        tuple(FLUSH_FAULTS),
        ("switchover", "failover", "kill all", "link cut"),
    ),
    "flips": Kind(
        "Bits flip in queues, indexes and small files.",
        _flips,
        tuple(FLIP_FAULTS),
        ("restart master", "restart slave", "switchover", "kill all"),
    ),
    "later": Kind(
        "Delayed messages and transactions while brokers die and roles change.",
        _later,
        (*_KILLS, *_ROLES),
        ("link cut", "link silent"),
    ),
    "java": Kind("RocketMQ's own Java clients beside ours.", _java, (*_KILLS, *_ROLES), tuple(LINK_FAULTS)),
    "replicas": Kind(
        "Three brokers, inSyncReplicas 2 and 3, an operator's commands, islands.",
        _replicas,
        (*COMMAND_FAULTS, "island"),
        (*_KILLS, "partition", "one way lost anywhere", "unplugged"),
    ),
}

# Their rounds wait for what comes later.
SLOW = {"name-servers", "later", "java"}
# A run of thirty clusters has every kind, and this one most often.
MIX = (
    *("replicas", "classic", "one-way", "later", "replicas", "disks", "name-servers"),
    *("replicas", "flips", "flushes", "java", "replicas", "one-end"),
)


def clients_of(cluster: Cluster, closers: list[Callable[[], None]]) -> list[MakeClients]:
    """Those that the shape names, one for each topic; `closers` end what they have.  Raises NoJava."""
    makers: list[MakeClients] = []
    for topic in cluster.shape.clients:
        if topic == JAVA:
            side = JavaSide(cluster)
            closers.append(side.close)
            makers.append(side.make)
        else:
            makers.append({DELAYED: DelayedClients, TRANSACTIONS: TransactionClients}[topic])
    return makers


def kind_of(group: int, only: Sequence[str] = ()) -> str:
    """The kind of a group of rounds that have one cluster."""
    mix = [name for name in MIX if not only or name in only] or list(only)
    return mix[group % len(mix)]


def steps_of(name: str, seed: int, shape: Shape) -> list[tuple[str, ...]]:
    """What goes wrong in the round of this seed, one after the other."""
    rng, kind = random.Random(f"{name} {seed}"), KINDS[name]
    if not kind.faults:
        return schedule(rng, shape.links)
    count = rng.randint(*FAULTS)
    sure = rng.randrange(count)
    return [
        (rng.choice(kind.faults if number == sure or rng.random() < OWN else kind.among),)
        for number in range(count)
    ]
