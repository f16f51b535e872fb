"""What `failover` foresees is what the brokers then decide, in a small world of replicas that run their rules."""

from __future__ import annotations

import logging
import os
import random
from collections import Counter

from haservice.admin.commands.ha.ask_brokers import member_of
from haservice.admin.commands.ha.replicas import unsafe, with_listed
from haservice.admin.commands.ha.topology import Topology
from haservice.remoting.headers.lineage import PromoteHeader
from tests.support.replica_model import KINDS, World, story


def test_what_is_foreseen_of_a_promotion_is_what_the_broker_decides() -> None:
    """Some are silent, and some were told to forget others; none that answers is a master."""
    found: Counter[bool] = Counter()
    logging.disable(logging.WARNING)
    try:
        for seed in range(int(os.environ.get("ROLE_STORIES", "700"))):
            chance = random.Random(seed)
            slaves = chance.randint(2, 4)
            needed, names = chance.randint(1, slaves), "mabcd"[: slaves + 1]
            events = [f"level {one} m" for one in names[1:]]
            events += [event for one in names[1:] * 2 for event in (f"cut {one}", f"level {one} m")]
            events += story(chance, slaves, chance.randint(0, 60), KINDS)
            events += [
                f"writeoff {one} {chance.choice(names)}"
                for one in chance.choices(names, k=chance.randint(0, 3))
            ]
            events += [f"tick {one}" for one in names]
            world = World(slaves, needed).run(events)
            there = [one for one in world.replicas.values() if one.is_slave and not one.state.changing]
            there = chance.sample(there, chance.randint(min(1, len(there)), len(there)))
            if not there:
                continue
            candidate = there[0]
            members = tuple(member_of(one.addr, None, one.body()) for one in there)
            topology = with_listed(Topology("broker-a", members))
            if not topology.replicas.replicas:
                continue  # then only the broker refuses
            foreseen = unsafe(topology, topology.members[0])
            candidate.ask(PromoteHeader("SYNC_MASTER", min_epoch=topology.last_epoch + 1))
            assert candidate.gathering is not None
            for one in there[1:]:
                world._pledge(one.name, candidate.name)
            world._decide(candidate.name)
            found[not foreseen] += 1
            assert candidate.is_slave is bool(foreseen), (
                f"seed {seed}: {candidate.name}: {foreseen or 'is safe'}"
            )
    finally:
        logging.disable(logging.NOTSET)
    assert found[True] > 50, found
    assert found[False] > 50, found
