"""What a broker is, when its epoch begins, and whom it gives way to: tables of cases."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from haservice.broker.roles.describe import members_body
from haservice.broker.roles.rules import (
    PROMOTION_STEP,
    NewerMaster,
    NoNumberLeft,
    StartOfMaster,
    as_in_file,
    command_for,
    command_that_counts,
    in_role,
    members_of,
    newer_masters,
    next_number,
    none_in_sync,
    reason_for_new_epoch,
    replicas_to_hear,
    rival,
    role_in_force,
    slave_id,
    takes_over,
    was_not_promoted,
    with_new_epoch,
)
from haservice.configuration.settings import BrokerRole, NodeConfig
from haservice.remoting.headers.lineage import EpochBody, LineageBody
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan, Mark
from haservice.replication.lineage.file import HandingOver, LineageState, Replica, RoleCommand
from haservice.replication.lineage.membership import ReplicaList
from tests.support.brokers import node_config

SYNC, ASYNC, SLAVE = BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE


def file_of(role: BrokerRole, tmp_path: Path, **replication: Any) -> NodeConfig:
    return node_config(tmp_path, role=role, port=20011, replication=replication)


def command(role: str, file_role: str, broker_id: int = 0, ha_master: str = "") -> RoleCommand:
    return RoleCommand(role, broker_id, file_role, 1, "told to", ha_master)


# ---- the role in force


@pytest.mark.parametrize(
    ("file_role", "told", "role", "broker_id", "source", "dropped"),
    [
        (SYNC, None, SYNC, 0, "file", False),
        (SLAVE, None, SLAVE, 1, "file", False),
        (SLAVE, command("SYNC_MASTER", "SLAVE"), SYNC, 0, "command", False),
        (SYNC, command("SLAVE", "SYNC_MASTER", 3), SLAVE, 3, "command", False),
        # The file was changed since: whatever it says now counts.
        (ASYNC, command("SLAVE", "SYNC_MASTER", 3), ASYNC, 0, "file", True),
        (SYNC, command("ASYNC_MASTER", "SLAVE"), SYNC, 0, "file", True),
        (SLAVE, command("KING", "SLAVE"), SLAVE, 1, "file", True),
    ],
)
def test_a_command_stands_until_the_file_says_something_else(
    tmp_path: Path,
    file_role: BrokerRole,
    told: RoleCommand | None,
    role: BrokerRole,
    broker_id: int,
    source: str,
    dropped: bool,
) -> None:
    found = role_in_force(file_of(file_role, tmp_path), told)
    assert (found.role, found.broker_id, found.source) == (role, broker_id, source)
    assert (found.dropped is not None) is dropped
    assert bool(found.said) is (told is not None)


def test_the_configuration_takes_the_role_on_and_off_again(tmp_path: Path) -> None:
    file = file_of(SYNC, tmp_path)
    slave = in_role(file, role_in_force(file, command("SLAVE", "SYNC_MASTER", 2, "10.0.0.2:10912")))
    assert (slave.broker.role, slave.broker.broker_id, slave.log.replica) == (SLAVE, 2, True)
    assert slave.replication.master_address == "10.0.0.2:10912"
    assert as_in_file(slave, file) == file
    assert in_role(file, role_in_force(file, None)) == file


def test_with_a_name_server_its_word_comes_before_an_address_of_yesterday(tmp_path: Path) -> None:
    file = file_of(SLAVE, tmp_path, master_address="10.0.0.1:10912")
    file = dataclasses.replace(file, broker=dataclasses.replace(file.broker, namesrv_addrs=("ns:9876",)))
    told = role_in_force(file, command("SLAVE", "SLAVE", 1, "10.0.0.2:10912"))
    assert in_role(file, told).replication.master_address is None
    assert in_role(file, role_in_force(file, None)).replication.master_address == "10.0.0.1:10912"


def test_a_command_that_gives_what_the_file_asks_for_counts_as_the_files(tmp_path: Path) -> None:
    """A slave that was the master for a while: the command stays for its master's address alone."""
    file = file_of(SLAVE, tmp_path)
    back = role_in_force(file, command("SLAVE", "SLAVE", file.broker.broker_id, "10.0.0.2:10912"))
    assert (back.told, back.said) == (("file", ""), "")
    other_id = role_in_force(file, command("SLAVE", "SLAVE", 7, "10.0.0.2:10912"))
    assert other_id.told == ("command", other_id.why)
    assert "by command" in other_id.said


def test_no_command_is_kept_for_what_the_file_says_anyway(tmp_path: Path) -> None:
    now = role_in_force(file_of(SLAVE, tmp_path), command("SYNC_MASTER", "SLAVE"))
    assert command_for(SLAVE, 1, now, "back", 5) is None
    assert command_for(SLAVE, 2, now, "back", 5) == RoleCommand("SLAVE", 2, "SLAVE", 5, "back")
    assert command_for(SLAVE, 1, now, "back", 5, "10.0.0.2:1") is not None


# ---- epochs

ME, OTHER = "me", "other"


def state(*epochs: Epoch, replicas: dict[str, Replica] | None = None) -> LineageState:
    return LineageState(ME, lineage=Lineage(epochs), replicas=replicas or {})


def start(end: int = 1000, **changes: Any) -> StartOfMaster:
    values: dict[str, Any] = {
        "stopped_cleanly": True, "booted_anew": False, "flushes_at_once": False, **changes,
    }  # fmt: skip
    return StartOfMaster(LogSpan(0, end), **values)


CRASHED = {"stopped_cleanly": False, "booted_anew": True}


@pytest.mark.parametrize(
    ("epochs", "began", "begins"),
    [
        ((), start(0), True),
        ((), start(1000), True),
        ((Epoch(0, 0, ""),), start(), True),
        ((Epoch(1, 0, ME),), start(), False),
        ((Epoch(1, 0, OTHER),), start(), True),
        ((Epoch(1, 0, OTHER), Epoch(2, 1000, ME)), start(), False),
        ((Epoch(1, 0, ME),), start(stopped_cleanly=False), False),
        ((Epoch(1, 0, ME),), start(booted_anew=True), False),
        ((Epoch(1, 0, ME),), start(**CRASHED), True),
        # Its slave may have been sent more than was flushed here.
        ((Epoch(1, 0, ME),), start(**CRASHED, flushes_at_once=True), True),
    ],
)
def test_when_an_epoch_begins(epochs: tuple[Epoch, ...], began: StartOfMaster, begins: bool) -> None:
    assert bool(reason_for_new_epoch(state(*epochs), began)) is begins


def test_a_log_older_than_its_lineage_gets_an_epoch_for_what_it_held() -> None:
    lineage = with_new_epoch(state(), LogSpan(4096, 9000), "first", 7, promoted=False)
    assert [(one.number, one.start, one.master) for one in lineage.epochs] == [(0, 4096, ""), (1, 9000, ME)]
    empty = with_new_epoch(state(), LogSpan(0, 0), "first", 7, promoted=False)
    assert [(one.number, one.start, one.master) for one in empty.epochs] == [(1, 0, ME)]


def test_an_epoch_counts_though_nothing_of_it_is_left() -> None:
    had = state(Epoch(1, 0, ME), Epoch(1000, 2000, OTHER))
    assert with_new_epoch(had, LogSpan(0, 1500), "again", 7, promoted=True).epochs == (
        Epoch(1, 0, ME),
        Epoch(2000, 1500, ME, 7, "again"),
    )


STEP = PROMOTION_STEP


@pytest.mark.parametrize(
    ("last", "heard", "restarted", "promoted"),
    [
        # last and heard, and what a restart and a promotion get
        (-1, -1, 1, STEP),
        (0, -1, 1, STEP),
        (1, -1, 2, STEP),
        (1, 1, 2, STEP),
        # Nobody but itself begins epochs between two promotions: it has forgotten one of its own.
        (1, 5, 6, STEP),
        (STEP - 2, -1, STEP - 1, STEP),
        (STEP - 1, -1, None, STEP),
        (1, STEP - 1, None, STEP),
        (STEP, -1, STEP + 1, 2 * STEP),
        # Somebody was promoted: a restart stays below.
        (1, STEP, 2, 2 * STEP),
        (7, 2 * STEP + 3, 8, 3 * STEP),
        (STEP + 7, 2 * STEP, STEP + 8, 3 * STEP),
        (STEP + 7, STEP, STEP + 8, 2 * STEP),
        # As a tool asks for it: at least heard + 1.
        (1, 2 * STEP - 1, 2, 2 * STEP),
    ],
)
def test_a_restart_never_outranks_a_promotion(
    last: int, heard: int, restarted: int | None, promoted: int
) -> None:
    assert next_number(last, heard, promoted=True) == promoted > max(last, heard)
    if restarted is None:
        with pytest.raises(NoNumberLeft, match="which is a promotion's"):
            next_number(last, heard, promoted=False)
    else:
        assert next_number(last, heard, promoted=False) == restarted < promoted


def test_a_master_that_starts_again_and_again_alone_gives_way_to_its_successor() -> None:
    """Cut off, and power cut each time: its successor was promoted after its first epoch."""
    lineage = Lineage((Epoch(1, 0, ME),))
    successor = with_new_epoch(
        LineageState(OTHER, lineage=lineage), LogSpan(0, 500), "failover", 7, promoted=True
    )
    for end in range(600, 660):
        alone = LineageState(ME, lineage=lineage)
        lineage = with_new_epoch(alone, LogSpan(0, end), "the machine went down", 7, promoted=False)
    number = successor.epochs[-1].number
    running = peer(OTHER, (1, 0, ME), (number, 500, OTHER), role="SYNC_MASTER")
    found = newer_master(ME, lineage, [running])
    assert found is not None
    assert found.epoch == number
    assert newer_master(OTHER, successor, [peer(ME, *(one.identity for one in lineage.epochs))]) is None


@pytest.mark.parametrize(
    ("epochs", "promoted"),
    [
        ((), False),
        ((Epoch(1, 0, ME),), False),
        ((Epoch(1, 0, ME), Epoch(1000, 500, OTHER)), True),
        # A stock slave's store.
        ((Epoch(0, 0, ""),), True),
    ],
)
def test_a_file_that_makes_a_slave_the_master_is_a_promotion(
    epochs: tuple[Epoch, ...], promoted: bool
) -> None:
    assert takes_over(state(*epochs)) is promoted


MINE_LAST = (Epoch(1, 0, OTHER), Epoch(1000, 500, ME))
HIS_LAST = (*MINE_LAST, Epoch(2000, 700, OTHER))


@pytest.mark.parametrize(
    ("file_role", "told", "epochs", "role", "dropped"),
    [
        (SLAVE, command("SYNC_MASTER", "SLAVE"), MINE_LAST, SYNC, False),
        # It has followed since, and its role could not be written.
        (SLAVE, command("SYNC_MASTER", "SLAVE"), HIS_LAST, SLAVE, False),
        (SLAVE, command("SYNC_MASTER", "SLAVE"), (), SLAVE, False),
        (ASYNC, command("SYNC_MASTER", "ASYNC_MASTER"), HIS_LAST, SLAVE, False),
        (SYNC, command("SLAVE", "SYNC_MASTER", 3), HIS_LAST, SLAVE, False),
        (SYNC, command("SLAVE", "SYNC_MASTER", 3), MINE_LAST, SLAVE, False),
        # The file was changed since: an operator's word, and newer than any epoch.
        (ASYNC, command("SYNC_MASTER", "SLAVE"), HIS_LAST, ASYNC, True),
        (SYNC, None, HIS_LAST, SYNC, False),
    ],
)
def test_a_command_to_be_the_master_is_over_with_its_epoch(
    tmp_path: Path,
    file_role: BrokerRole,
    told: RoleCommand | None,
    epochs: tuple[Epoch, ...],
    role: BrokerRole,
    dropped: bool,
) -> None:
    counts = command_that_counts(file_role, dataclasses.replace(state(*epochs), command=told), 7)
    found = role_in_force(file_of(file_role, tmp_path), counts)
    assert (found.role, found.dropped is not None) == (role, dropped)
    assert found.broker_id == (0 if role is not SLAVE else max(1, told.broker_id if told else 1))


def test_a_master_that_lost_its_end_waits_for_those_that_were_in_sync() -> None:
    replicas = {"a": Replica("a:1", 900, 1, True), "b": Replica("b:1", 10, 1, False)}
    mine, his = Epoch(1, 0, ME), Epoch(2, 500, OTHER)
    assert replicas_to_hear(state(mine, replicas=replicas), start(**CRASHED)) == ("a",)
    assert replicas_to_hear(state(mine, replicas=replicas), start()) == ()
    # What its consumers have read from a slave meanwhile, this broker may not have flushed.
    flushed = start(**CRASHED, flushes_at_once=True)
    assert replicas_to_hear(state(mine, replicas=replicas), flushed) == ("a",)
    flushed = start(**CRASHED, flushes_at_once=True, sync_master=False)
    assert replicas_to_hear(state(mine, replicas=replicas), flushed) == ()
    # What somebody else wrote last this broker lost as a slave: it begins an epoch, and waits for nobody.
    assert replicas_to_hear(state(mine, his, replicas=replicas), start(**CRASHED)) == ()


def test_a_master_waits_for_no_store_whose_address_another_one_took() -> None:
    """The slave was wiped, and has copied everything since: its old store comes back to nobody."""
    replicas = {"old": Replica("a:1", 900, 1, True), "new": Replica("a:1", 900, 2, True)}
    kept = state(Epoch(1, 0, ME), replicas=replicas)
    was = ReplicaList(1, 1, ME, replicas={ME: "me:1", "old": "a:1"})
    joined = was.joined(1, Mark(1, 900), "new", "a:1")
    assert set(joined.replicas) == {ME, "new"}
    hears = [
        replicas_to_hear(dataclasses.replace(kept, members=members), start(**CRASHED))
        for members in (ReplicaList(), joined, joined.taken_effect())
    ]
    # Until the list without it is in effect, an OK may have counted it.
    assert hears == [("old", "new"), ("old", "new"), ("new",)]


# ---- peers


def peer(
    replica_id: str, *epochs: tuple[int, int, str], role: str = "SLAVE", end: int = 5000, **changes: Any
) -> LineageBody:
    values: dict[str, Any] = {
        "cluster_name": "C", "broker_name": "broker-a", "broker_addr": f"{replica_id}:10911",
        "ha_addr": f"{replica_id}:10912", "broker_id": 0 if role != "SLAVE" else 1, "file_broker_id": 1,
        "role": role, "replica_id": replica_id, "segment_bytes": 4096, "log_start": 0, "log_end": end,
        "flushed": end, "epochs": tuple(EpochBody(*one) for one in epochs), **changes,
    }  # fmt: skip
    return LineageBody(**values)


def newer_master(
    own_id: str, own: Lineage, peers: list[LineageBody], *, starting: bool = False
) -> NewerMaster | None:
    """Whom a master gives way to first, if it can prove it."""
    found = newer_masters(own_id, own, peers, starting=starting)
    return found[0][0] if found else None


MINE = Lineage((Epoch(1, 0, OTHER), Epoch(2, 500, ME)))


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        ([], None),
        ([peer("s", (1, 0, OTHER), (2, 500, ME))], None),
        ([peer(OTHER, (1, 0, OTHER), (3, 700, OTHER), role="SYNC_MASTER")], (3, f"{OTHER}:10911")),
        # A slave knows it, and where its master is.
        ([peer("s", (3, 700, OTHER), master_addr="there:1")], (3, "there:1")),
        # Of those who know it, the master itself is asked.
        (
            [peer("s", (3, 700, OTHER)), peer(OTHER, (3, 700, OTHER), role="SYNC_MASTER")],
            (3, f"{OTHER}:10911"),
        ),
        ([peer(OTHER, (1, 0, OTHER), role="SYNC_MASTER")], None),
        # One number, two masters: neither is the newer one.
        ([peer(OTHER, (1, 0, OTHER), (2, 600, OTHER), role="SYNC_MASTER")], None),
        # An epoch of ours that we forgot is no other master's.
        ([peer("s", (5, 700, ME))], None),
        # A slave gave its own epoch up, and left nothing in it.
        ([peer("s", (1, 0, OTHER), (7, 5000, "s"))], None),
        ([peer("s", (1, 0, OTHER), (7, 4000, "s"))], (7, "")),
        # Just promoted, and nothing written yet.
        ([peer("s", (1, 0, OTHER), (7, 5000, "s"), role="ASYNC_MASTER")], (7, "s:10911")),
    ],
)
def test_whom_a_master_gives_way_to(peers: list[LineageBody], expected: tuple[int, str] | None) -> None:
    found = newer_master(ME, MINE, peers)
    assert (found and (found.epoch, found.broker_addr)) == expected


def test_a_master_that_starts_does_not_overrule_the_one_whose_epoch_its_log_is_in() -> None:
    followed = Lineage((Epoch(1, 0, ME), Epoch(2, 500, OTHER)))
    running = peer(OTHER, (1, 0, ME), (2, 500, OTHER), role="SYNC_MASTER")
    stopped = peer(OTHER, (1, 0, ME), (2, 500, OTHER))
    found = newer_master(ME, followed, [running], starting=True)
    assert found is not None
    assert (found.epoch, found.broker_addr, found.file_broker_id) == (2, f"{OTHER}:10911", 1)
    assert newer_master(ME, followed, [running]) is None
    assert newer_master(ME, followed, [stopped], starting=True) is None


def test_a_master_that_starts_follows_one_that_runs_in_an_epoch_of_its_number() -> None:
    """It was promoted by somebody who did not know of ours."""
    running = peer(OTHER, (1, 0, OTHER), (2, 600, OTHER), role="SYNC_MASTER")
    found = newer_master(ME, MINE, [running], starting=True)
    assert found is not None
    assert (found.epoch, found.broker_addr) == (2, f"{OTHER}:10911")


@pytest.mark.parametrize(
    ("said", "settled"),
    [
        (peer("s", (1, 0, ME)), True),
        (peer("s", (1, 0, ME), changing=True), False),
        (peer("s", (1, 0, ME), (1000, 900, "s"), role="SYNC_MASTER"), False),
        # Another machine in its place does not know.
        (peer("t", (1, 0, ME), broker_addr="s:10911"), False),
    ],
)
def test_when_it_is_known_that_a_slave_was_not_promoted(said: LineageBody, settled: bool) -> None:
    assert was_not_promoted(HandingOver("s:10911", "s"), said) is settled


def test_nobody_has_anything_of_an_epoch_that_begins() -> None:
    had = state(Epoch(1, 0, ME), replicas={"a": Replica("a:1", 900, 1, True)})
    assert none_in_sync(had, 900) == {"a": Replica("a:1", 900, 1, False)}


def test_an_empty_master_does_not_overrule_the_slaves_of_the_one_it_replaces() -> None:
    found = newer_master(ME, Lineage(), [peer("s", (1, 0, OTHER))], starting=True)
    assert found is not None
    assert found.broker_addr == ""


def test_two_masters_of_one_number_are_rivals() -> None:
    other = peer(OTHER, (1, 0, OTHER), (2, 600, OTHER), role="SYNC_MASTER")
    assert rival(ME, MINE, [peer("s", (2, 500, ME)), other]) is other
    assert rival(ME, MINE, [peer(OTHER, (1, 0, OTHER), role="SYNC_MASTER")]) is None


@pytest.mark.parametrize(
    ("own_file_id", "master_id", "taken", "expected"),
    [
        (0, 1, set(), 1),
        (0, 1, {2}, 1),
        (3, 1, {1}, 3),
        (3, 2, {3}, 2),
        (0, 0, {1, 2}, 3),
        (0, 1, {1}, 2),
        (0, 0, set(), 1),
    ],
)
def test_the_broker_id_of_a_master_that_steps_down(
    own_file_id: int, master_id: int, taken: set[int], expected: int
) -> None:
    assert slave_id(own_file_id, master_id, taken) == expected


@pytest.mark.parametrize(
    ("own_file_id", "taken", "rank", "expected"),
    [
        (0, set(), 0, 3),  # 1 and 2 are those of the others' files
        (0, set(), 1, 4),
        (0, {3}, 1, 5),
        (0, {1, 2, 4}, 0, 3),
        (1, set(), 1, 1),
        (1, {1}, 0, 3),
        (1, {1}, 1, 4),
    ],
)
def test_of_three_brokers_those_that_step_down_take_ids_that_no_other_can_take(
    own_file_id: int, taken: set[int], rank: int, expected: int
) -> None:
    assert slave_id(own_file_id, 2, taken, replicas=3, rank=rank) == expected


def test_a_list_of_replicas_and_those_that_it_stands_over_are_told_whole() -> None:
    before = ReplicaList(1, 0, ME, 2, Mark(-1, 0), {ME: "me:1", "a": "a:1"})
    listed = before.joined(1, Mark(1, 700), "b", "b:1")
    body = peer(ME, (1, 0, ME), members=members_body(listed))
    assert members_of(LineageBody.decode(body.encode())) == listed
    assert members_of(peer(ME, (1, 0, ME))) == ReplicaList()
