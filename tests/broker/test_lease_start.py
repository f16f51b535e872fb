"""In which role, and by which broker id, a broker with a coordinator starts."""

from __future__ import annotations

import pytest

from haservice.broker.lease.start import with_free_id
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import RoleInForce
from haservice.configuration.settings import BrokerRole
from haservice.replication.lineage.file import RoleCommand

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
