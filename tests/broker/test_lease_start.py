"""In which role, and by which broker id, a broker with a coordinator starts."""

from __future__ import annotations

import pytest

from haservice.broker.lease.start import why_not_first, with_free_id
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import RoleInForce
from haservice.configuration.settings import BrokerRole
from haservice.remoting.headers.lineage import EpochBody, LineageBody
from haservice.replication.lineage.epochs import Epoch, Lineage
from haservice.replication.lineage.file import LineageState, RoleCommand

OWN, OTHER = "10.0.0.1:10911", "10.0.0.2:10911"
MASTER, SLAVE = BrokerRole.SYNC_MASTER, BrokerRole.SLAVE
# Once it was promoted: its file still says slave, and it starts as one until the coordinator has spoken.
BY_COMMAND = RoleCommand(
    SLAVE.value, 1, MASTER.value, 7, "the coordinator says who is the master", "10.0.0.2:10912"
)


@pytest.mark.parametrize("command", [BY_COMMAND, None], ids=["by command", "by its file"])
def test_a_slave_whose_broker_id_is_taken_gets_a_free_one_and_keeps_its_role(
    command: RoleCommand | None,
) -> None:
    role = RoleInForce(SLAVE, 1, MASTER if command else SLAVE, 0 if command else 1, command)
    assert with_free_id(role, OWN, Heard()) == role
    assert with_free_id(role, OWN, Heard(taken_ids={0: OTHER, 1: OWN})) == role
    freed = with_free_id(role, OWN, Heard(taken_ids={0: "10.0.0.3:10911", 1: OTHER}))
    assert (freed.role, freed.broker_id) == (SLAVE, 2)
    if command is not None:
        assert freed.command is not None
        assert (freed.command.why, freed.command.ha_master) == (command.why, command.ha_master)


def peer(end: int, *numbers: int, role: str = "SLAVE") -> LineageBody:
    epochs = [EpochBody(number, number, "m") for number in numbers]
    return LineageBody(
        "DefaultCluster", "broker-a", OTHER, "", 1, 1, role, "other", 1024, 0, end, end, epochs
    )


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (peer(90, 1, 2), ""),
        (peer(100, 1, 2), ""),
        (peer(101, 1, 2), "10.0.0.2:10911 has more: its log ends at 101, this one at 100"),
        (peer(60, 1, 2, 3), "has more"),  # promoted by command while this one was down
        (peer(0), ""),
        (peer(90, 1, 2, role="SYNC_MASTER"), "10.0.0.2:10911 is a master"),
    ],
)
def test_a_master_by_its_file_is_not_the_first_beside_one_that_has_more(other: LineageBody, why: str) -> None:
    kept = LineageState("own", lineage=Lineage((Epoch(1, 1, "m"), Epoch(2, 2, "m"))))
    said = why_not_first(kept, 100, OWN, Heard([other]))
    assert why in said
    assert bool(said) is bool(why)
