"""Why a slave would not take over if its master died now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haservice.coordination.cluster import Cluster, Leaseholder, Settings
from haservice.coordination.facts import LeaseFacts, Own
from haservice.coordination.successor import why_no_successor
from tests.coordination.test_decision import candidate, cluster, member

LED = cluster(master=Leaseholder("a", 1000, "a.1/1"))


def slave(seen: Cluster | None = LED, own: Own | None = None) -> LeaseFacts:
    return replace(candidate(cluster(), own), seen=seen)


def test_one_that_reads_its_coordinator_and_is_a_voter_would() -> None:
    assert why_no_successor(slave()) == ""
    assert why_no_successor(slave(own=Own(member("b", end=1)))) == "", (
        "how far it is behind is told elsewhere"
    )


@pytest.mark.parametrize(
    ("facts", "trouble", "why"),
    [
        (slave(), "etcd does not answer", "etcd does not answer"),
        (slave(None), "", "it has not read the coordinator yet"),
        (slave(replace(LED, settings=Settings(paused=True))), "", "failover is paused: mqadmin resume"),
        (slave(own=Own(member("c"))), "", "it is no voter yet"),
        (slave(own=Own(member("b", is_whole=False))), "", "it has not caught up since"),
        (slave(own=Own(member("b", unfit="its log is damaged"))), "", "its log is damaged"),
        (slave(replace(LED, epoch=3)), "", "it was restored from a backup, or emptied"),
        (slave(replace(LED, members={"b": replace(member("b"), life="b.2")})), "", "stop one of them"),
        (
            slave(Cluster(), Own(replace(member("b", epoch=0, sealed=-1), joined=-1))),
            "",
            "knows no master of this name",
        ),
    ],
)
def test_another_one_says_why_it_would_not(facts: LeaseFacts, trouble: str, why: str) -> None:
    assert why in why_no_successor(facts, trouble)
