"""What the coordinator's rounds order of the machine of roles."""

from __future__ import annotations

import math

import pytest

from haservice.broker.lease.start import with_free_id
from haservice.broker.roles.actions import (
    Answer,
    End,
    Failed,
    GatherPledges,
    LeaveMaster,
    Refuse,
    StopLink,
    Write,
)
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import RoleInForce
from haservice.broker.roles.state import BeginEpoch, SealLog
from haservice.configuration.settings import BrokerRole
from haservice.replication.lineage.epochs import Epoch
from haservice.replication.lineage.file import RoleCommand
from tests.support.role_driver import Driver, master, slave

OTHERS = Epoch(1000, 0, "other")


def test_a_seal_is_written_before_the_slave_leaves_its_master_and_says_so() -> None:
    driver = Driver(slave(), OTHERS)
    assert isinstance(driver.ask(SealLog(1000)), Answer)
    kinds = [type(action) for action, _ in driver.done]
    assert kinds.index(Write) < kinds.index(LeaveMaster)
    assert driver.wrote == [{"sealed": 1000}]


def test_a_log_that_is_sealed_is_not_sealed_again() -> None:
    driver = Driver(slave(), OTHERS).keep(sealed=2000)
    assert isinstance(driver.ask(SealLog(1000)), Answer)
    assert driver.wrote == []


def test_a_seal_that_cannot_be_written_is_none() -> None:
    driver = Driver(slave(), OTHERS, **{"Write": Failed("no room")})
    answer = driver.ask(SealLog(1000))
    assert isinstance(answer, Refuse)
    assert "no room" in answer.reason
    assert driver.did(LeaveMaster) == []


def test_a_slave_begins_the_epoch_of_its_lease_and_asks_nobody() -> None:
    driver = Driver(slave(), OTHERS)
    assert isinstance(driver.ask(BeginEpoch(2000, math.inf, "the lease")), Answer)
    assert driver.did(GatherPledges) == []
    assert driver.wrote[-1]["lineage"].last.number == 2000
    assert driver.turned


def test_no_epoch_begins_once_the_lease_is_over() -> None:
    for state in (slave(), master()):
        driver = Driver(state, OTHERS)
        answer = driver.ask(BeginEpoch(2000, 0.0, "the lease"))
        assert isinstance(answer, Refuse)
        assert "the lease is over" in answer.reason
        assert driver.wrote == []


def test_nor_if_it_ends_while_the_link_goes_down() -> None:
    def late(_: StopLink) -> End:
        driver.boottime_s = 20.0
        return End(driver.end)

    driver = Driver(slave(), OTHERS, StopLink=late)
    driver.boottime_s = 10.0
    answer = driver.ask(BeginEpoch(2000, 15.0, "the lease"))
    assert isinstance(answer, Refuse)
    assert driver.wrote == []


def test_an_epoch_with_another_number_than_the_lease_has_does_not_begin() -> None:
    for state in (slave(heard=2500), master(heard=2500)):
        driver = Driver(state, OTHERS)
        answer = driver.ask(BeginEpoch(2000, 100.0, "the lease"))
        assert isinstance(answer, Refuse)
        assert "the lease is for 2000" in answer.reason
        assert driver.wrote == []


@pytest.mark.parametrize("command", [None, RoleCommand("SLAVE", 1, "SLAVE", 5, "why", "10.0.0.9:10912")])
def test_a_slave_whose_broker_id_is_taken_gets_another_and_keeps_what_was_commanded(
    command: RoleCommand | None,
) -> None:
    role = RoleInForce(BrokerRole.SLAVE, 1, BrokerRole.SLAVE, 1, command)
    heard = Heard(taken_ids={0: "10.0.0.8:10911", 1: "10.0.0.9:10911"})
    free = with_free_id(role, "10.0.0.7:10911", heard)
    assert free.broker_id == 2
    assert free.command is not None
    assert command is None or free.command.ha_master == command.ha_master
    assert with_free_id(role, "10.0.0.9:10911", heard) == role
