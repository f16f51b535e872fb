"""The lines of `mqadmin haStatus`, from what brokers answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haservice.admin.calls import Broker
from haservice.admin.commands.ha.ha_questions import Seen, unregistered
from haservice.admin.commands.ha.ha_status import (
    NO_SLAVE,
    SAME_LOG,
    STOCK,
    STOCK_PEER,
    show_seen,
    silent_notes,
    table_of,
)
from haservice.errors import RemotingUnreachable
from haservice.remoting.bodies.clients import (
    HAAbsentInfo,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from haservice.remoting.headers.lineage import EpochBody, LineageBody, MembersBody, ReplicaBody

NOW_MS = 1_700_000_000_000
MASTER = Broker("C", "broker-a", 0, "10.0.0.1:10911")
SLAVE = Broker("C", "broker-a", 1, "10.0.0.2:10911")


def master(*slaves: HAConnectionRuntimeInfo, log_end: int = 5000) -> Seen:
    return Seen(MASTER, "SYNC_MASTER", log_end, HARuntimeInfo(True, log_end, 0, slaves))


def slave(log_end: int = 4000, **client: object) -> Seen:
    info = HAClientRuntimeInfo(master_addr="10.0.0.1:10912", **client)  # type: ignore[arg-type]
    return Seen(SLAVE, "SLAVE", log_end, HARuntimeInfo(False, 0, 0, (), info))


def rows(*seen: Seen) -> list[dict[str, object]]:
    return table_of(seen, NOW_MS).objects()


def test_a_master_shows_each_slave_as_it_sees_it() -> None:
    connection = HAConnectionRuntimeInfo("10.0.0.2:51000", 4000, 1000, True, 2048, 4000, 0.25)
    (row,) = rows(master(connection))
    assert row == {
        "brokerName": "broker-a",
        "role": "SYNC_MASTER",
        "brokerAddr": "10.0.0.1:10911",
        "epoch": None,
        "logEnd": 5000,
        "peer": "10.0.0.2:51000",
        "peerBrokerAddr": None,
        "peerReplicaId": None,
        "peerVersion": None,
        "ackOffset": 4000,
        "lagBytes": 1000,
        "lagSeconds": 0.25,
        "bytesPerSecond": 2048,
        "inSync": True,
        "lineage": STOCK_PEER,
        "lease": None,
        "state": "replicating",
        "roleFrom": None,
        "roleWhy": None,
        "held": None,
        "metadataNotCopied": None,
        "failedThreads": None,
        "acknowledgedCut": None,
        "notRegistered": None,
        "nextSegmentNotMade": None,
        "replicaId": None,
        "unproven": None,
        "pledged": None,
        "pledgedTo": None,
        "replicas": None,
        "verdict": None,
        "verdictText": None,
        "leaseMaster": None,
        "leaseSecondsLeft": None,
        "leaseWhyNot": None,
    }


def lineage_of(role: str, **said: object) -> LineageBody:
    return LineageBody(
        cluster_name="C",
        broker_name="broker-a",
        broker_addr=MASTER.addr,
        ha_addr="10.0.0.1:10912",
        broker_id=0,
        file_broker_id=0,
        role=role,
        replica_id="a" * 32,
        segment_bytes=1 << 30,
        log_start=0,
        log_end=5000,
        flushed=5000,
        epochs=(EpochBody(3, 0, "a" * 32),),
        **said,  # type: ignore[arg-type]
    )


def test_a_slave_that_greeted_shows_who_it_is_and_that_the_logs_are_one() -> None:
    greeted = HAConnectionRuntimeInfo(
        "10.0.0.2:51000",
        5000,
        0,
        True,
        replica_id="b" * 32,
        broker_addr=SLAVE.addr,
        haservice_version="0.5.1",
    )
    status = HARuntimeInfo(True, 5000, 1, (greeted,), epoch=3)
    (row,) = rows(Seen(MASTER, "SYNC_MASTER", 5000, status))
    assert (row["peerReplicaId"], row["peerBrokerAddr"]) == ("b" * 32, SLAVE.addr)
    assert (row["lineage"], row["epoch"], row["peerVersion"]) == (SAME_LOG, 3, "0.5.1")
    shown = table_of([Seen(MASTER, "SYNC_MASTER", 5000, status)], NOW_MS).text()
    assert "b" * 8 in shown
    assert "b" * 9 not in shown


def test_a_role_by_command_and_a_hold_are_told_below_the_lines() -> None:
    said = lineage_of("SYNC_MASTER", role_from="command", role_why="switchover", held="b has more than we")
    table = table_of([Seen(MASTER, "SYNC_MASTER", 5000, HARuntimeInfo(True, 5000, 0), lineage=said)], NOW_MS)
    (row,) = table.objects()
    assert (row["roleFrom"], row["roleWhy"], row["held"]) == ("command", "switchover", "b has more than we")
    assert row["epoch"] == 3
    assert [("by command (switchover)" in note, "b has more" in note) for note in table.notes] == [
        (True, False),
        (False, True),
    ]


def test_a_slave_that_is_refused_topics_and_offsets_is_told_below_the_lines() -> None:
    said = lineage_of("SLAVE", not_copied="10.0.0.1:10911 answered code 16: no account")
    table = table_of([replace(slave(), lineage=said)], NOW_MS)
    (row,) = table.objects()
    assert row["metadataNotCopied"] == said.not_copied
    (note,) = table.notes
    assert "does not copy its master's topics, groups and offsets: 10.0.0.1:10911 answered" in note


def test_what_a_master_lacks_is_told_below_the_lines() -> None:
    one = HAConnectionRuntimeInfo("10.0.0.2:51000", 5000, 0, True)
    seen = replace(
        master(one),
        status=HARuntimeInfo(True, 5000, 1, (one,)),
        in_sync_replicas=3,
        damaged="100 to 200",
    )
    short, damaged = table_of([seen], NOW_MS).notes
    assert "SLAVE_NOT_AVAILABLE: inSyncReplicas=3 asks for 2 slaves in sync, 1 of them is" in short
    assert "damaged from 100 to 200" in damaged
    assert table_of([replace(seen, in_sync_replicas=2, damaged="")], NOW_MS).notes == []


def test_where_a_broker_is_not_registered_and_that_its_log_cannot_go_on_is_told_below_the_lines() -> None:
    refused = "10.0.0.9:9876: answered code 1: the nameserver is full"
    no_room = "No space left on device; 4096 bytes of room are left in the last one"
    seen = replace(master(), not_registered=refused, next_segment_not_made=no_room)
    table = table_of([seen], NOW_MS)
    (row,) = table.objects()
    assert (row["notRegistered"], row["nextSegmentNotMade"]) == (refused, no_room)
    first, second = table.notes
    assert "not registered" in first
    assert refused in first
    assert "refuses writes once the last one is full" in second
    assert no_room in second


def test_a_slave_says_how_its_log_was_found_to_be_its_masters() -> None:
    _, row = rows(master(), slave(lineage="one log with epoch 3@0 up to 4000", master_end=4800))
    assert row["lineage"] == "one log with epoch 3@0 up to 4000"
    refused = slave(lineage="refused: another log", last_error="another log, whatever one does")
    for one, short in ((refused, "refused"), (slave(lineage="one log with epoch 3 up to 4000"), "one log")):
        shown = table_of([one], NOW_MS).text()
        assert short in shown
        assert shown.count("another log") == (1 if one is refused else 0)
    (alone,) = rows(slave(master_end=4800))
    assert alone["lagBytes"] == 800


def test_a_slave_that_does_not_count_comes_with_the_reason() -> None:
    far = HAConnectionRuntimeInfo("10.0.0.2:51000", 0, 5000, False, 0, 0, None, "further behind than 256 MiB")
    (row,) = rows(master(far))
    assert row["inSync"] is False
    assert row["state"] == "further behind than 256 MiB"


def test_a_master_without_slaves_says_so() -> None:
    (row,) = rows(master())
    assert (row["peer"], row["inSync"], row["state"]) == (None, False, NO_SLAVE)


def test_a_slave_shows_its_master_and_its_lag_behind_the_masters_log() -> None:
    _, row = rows(master(), slave(state="TRANSFER", last_read_timestamp=NOW_MS - 400))
    assert row["peer"] == "10.0.0.1:10912"
    assert row["lagBytes"] == 1000
    assert row["state"] == "TRANSFER, last contact with the master 0.4 s ago"


def test_what_was_the_matter_before_is_not_told_as_the_state_of_a_link_that_stands() -> None:
    _, row = rows(master(), slave(state="TRANSFER", last_error="Connection refused"))
    assert str(row["state"]).endswith("; before: Connection refused")
    _, row = rows(master(), slave(state="READY", last_error="Connection refused"))
    assert str(row["state"]).endswith("READY; Connection refused")


def test_a_slave_asked_alone_takes_the_masters_end_from_its_own_link() -> None:
    (row,) = rows(slave(master_flush_offset=4500))
    assert row["lagBytes"] == 500
    (unknown,) = rows(slave())
    assert unknown["lagBytes"] is None


def test_a_slave_ahead_of_its_master_says_so_and_a_lag_is_never_negative() -> None:
    _, row = rows(master(log_end=3000), slave(log_end=4024, state="READY"))
    assert row["lagBytes"] is None
    assert row["state"] == "READY, 1.0 KiB ahead of its master"


def test_a_master_names_the_slaves_that_are_not_there_and_why() -> None:
    absent = HAAbsentInfo("10.0.0.2:51000", "reports 4024, but our log ends at 3000", 4024, NOW_MS - 2000)
    seen = Seen(MASTER, "SYNC_MASTER", 3000, HARuntimeInfo(True, 3000, 0, absent_slaves=(absent,)))
    (row,) = rows(seen)
    assert (row["peer"], row["ackOffset"], row["inSync"]) == ("10.0.0.2:51000", 4024, False)
    assert row["state"] == "reports 4024, but our log ends at 3000 (2.0 s ago)"


def test_a_broker_that_does_not_answer_is_a_line_of_its_own() -> None:
    dead = Seen(MASTER, "MASTER", failure=RemotingUnreachable("10.0.0.1:10911", "Connection refused"))
    first, second = rows(dead, slave())
    assert first["state"] == "10.0.0.1:10911: Connection refused"
    assert second["ackOffset"] == 4000


def test_stock_brokers_are_compared_by_their_logs_ends() -> None:
    stock_master = Seen(MASTER, "SYNC_MASTER", 5000, None)
    stock_slave = Seen(SLAVE, "SLAVE", 4000, None)
    first, second = rows(stock_master, stock_slave)
    assert (first["peer"], first["lagBytes"], first["inSync"], first["state"]) == (
        "10.0.0.2:10911",
        1000,
        None,
        STOCK,
    )
    assert (second["lagBytes"], second["state"]) == (1000, STOCK)


def test_a_thread_that_has_failed_is_told_below_the_lines() -> None:
    table = table_of([replace(slave(), failed_threads="ha-client: ValueError: none")], NOW_MS)
    (row,) = table.objects()
    assert row["failedThreads"] == "ha-client: ValueError: none"
    (note,) = table.notes
    assert "lacks a thread that has failed" in note
    assert "ha-client: ValueError: none" in note


def test_two_slaves_with_one_broker_id_are_both_named_with_what_to_do() -> None:
    """A nameserver keeps the last one that registered: the other is asked as it is on the list of replicas."""

    def has_id(one: Seen, addr: str, broker_id: int) -> Seen:
        said = replace(lineage_of(one.role), broker_id=broker_id, replica_id=addr)
        return replace(one, lineage=said, broker=one.broker._replace(addr=addr))

    there = [master(), has_id(slave(), "10.0.0.2:10911", 1)]
    (note,) = table_of([*there, has_id(slave(), "10.0.0.3:10911", 1)], NOW_MS).notes
    assert "broker-a: 10.0.0.2:10911 and 10.0.0.3:10911 have the same brokerId=1" in note
    assert "Give each its own brokerId, and start it again" in note
    assert table_of([*there, has_id(slave(), "10.0.0.3:10911", 2)], NOW_MS).notes == []
    # A stock slave has the id that it is registered with.
    stock = Seen(SLAVE._replace(addr="10.0.0.4:10911"), "SLAVE", 4000)
    assert "10.0.0.4:10911" in table_of([*there, stock], NOW_MS).notes[0]


# -- the list of replicas --------------------------------------------------------------------------

A, B, C = "a" * 32, "b" * 32, "c" * 32
LOST = "10.0.0.3:10911"
LISTED = MembersBody(3, 2, A, 1, 0, {A: MASTER.addr, B: SLAVE.addr, C: LOST})


def with_list(one: Seen, replica_id: str, **said: object) -> Seen:
    seen = (ReplicaBody(C, LOST, 400, NOW_MS),)
    body = lineage_of(one.role, members=LISTED, replicas=seen, **said)
    return replace(one, lineage=replace(body, replica_id=replica_id))


def greeted(replica_id: str) -> HAConnectionRuntimeInfo:
    return HAConnectionRuntimeInfo("10.0.0.2:51000", 5000, 0, True, replica_id=replica_id)


def test_who_is_on_the_list_is_asked_whoever_is_registered() -> None:
    seen = [with_list(master(greeted(B)), A), with_list(slave(), B)]
    (broker,) = unregistered(seen)
    assert (broker.name, broker.addr, broker.is_master) == ("broker-a", LOST, False)
    alone = replace(slave(), lineage=with_list(slave(), B).lineage)
    assert [one.is_master for one in unregistered([alone])] == [True, False]


def test_where_no_master_answers_nobody_knows_when_a_slave_was_seen_last() -> None:
    alone = with_list(slave(), B)
    assert alone.lineage is not None
    alone = replace(alone, lineage=replace(alone.lineage, replicas=()))
    gone = Seen(Broker("C", "broker-a", 1 << 31, LOST), "SLAVE", failure=RemotingUnreachable(LOST, "refused"))
    (note,) = (one for one in silent_notes([alone, gone]) if LOST in one)
    assert "unreachable, last seen: only its master knows: it may have" in note


def test_who_is_on_the_list_and_not_there_is_told_until_it_is_forgotten() -> None:
    there = [with_list(master(greeted(B)), A), with_list(slave(), B)]
    gone = Seen(Broker("C", "broker-a", 1 << 31, LOST), "SLAVE", failure=RemotingUnreachable(LOST, "refused"))
    for seen in ([*there, gone], there[:1]):  # all of a cluster, or the master alone
        (note,) = silent_notes(seen)
        assert f"{LOST} ({C[:8]}) is on the list of replicas and unreachable, last seen 2023-11-1" in note
        assert f"mqadmin forget -b broker-a --replica {LOST}" in note
        row = rows(*seen)[0]
        assert row["replicaId"] == A
        assert [(one["replicaId"], one["isMaster"], one["lastSeenMs"]) for one in row["replicas"]] == [
            (A, True, None),
            (B, False, None),
            (C, False, NOW_MS),
        ]
    assert silent_notes([with_list(master(greeted(B), greeted(C)), A)]) == []
    # A slave that is asked alone does not know who is there.
    assert silent_notes(there[1:]) == []


def test_who_is_missing_is_told_once_below_what_the_brokers_say_and_not_all_are_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = replace(with_list(master(greeted(B)), A), failed_threads="ha-client: ValueError: none")
    assert not show_seen([asked], "table")
    below = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert [("lacks a thread that has failed" in line, "unreachable" in line) for line in below] == [
        (True, False),
        (False, True),
    ]
    there = HARuntimeInfo(True, 5000, 2, (greeted(B), greeted(C)))
    assert not show_seen([replace(asked, status=there)], "table")
    assert show_seen([replace(asked, status=there, failed_threads="")], "table")


def test_an_epoch_that_is_not_proven_and_a_pledge_are_told_below_the_lines() -> None:
    doubt = "10.0.0.9:10911 claims epoch 5000 without proof: it has no byte of ours"
    seen = replace(master(), lineage=lineage_of("SYNC_MASTER", unproven=doubt))
    table = table_of([seen], NOW_MS)
    assert table.objects()[0]["unproven"] == doubt
    (note,) = table.notes
    assert note.endswith(doubt)
    seen = replace(slave(), lineage=lineage_of("SLAVE", pledged=4000, pledged_to=LOST))
    table = table_of([seen], NOW_MS)
    assert [table.objects()[0][key] for key in ("pledged", "pledgedTo")] == [4000, LOST]
    (note,) = table.notes
    assert f"has pledged to {LOST}, the next master, for epoch 4000" in note
    seen = replace(slave(), lineage=lineage_of("SLAVE", pledged=4000, pledged_to=""))
    assert "has pledged to the next master, for epoch 4000" in table_of([seen], NOW_MS).notes[0]
    seen = replace(slave(), lineage=lineage_of("SLAVE", pledged=3, pledged_to=LOST))
    assert table_of([seen], NOW_MS).notes == []


def leased(one: Seen, **said: str) -> Seen:
    return replace(one, info={"leaseCoordinator": "etcd://10.0.0.9:2379", "leaseSecondsLeft": "0.0", **said})


def test_who_holds_the_lease_and_for_how_long_is_in_the_table_of_a_pair_with_a_coordinator() -> None:
    holds = {"leaseMaster": "10.0.0.1:10911 epoch 1000"}
    follows = {**holds, "leaseWhyNot": "replica aaaaaaaa is the master of epoch 1000"}
    table = table_of([leased(master(), leaseSecondsLeft="4.3", **holds), leased(slave(), **follows)], NOW_MS)
    assert [(one["lease"], one["leaseSecondsLeft"]) for one in table.objects()] == [
        ("4.3 s left", 4.3),
        ("-", None),
    ]
    assert "#Lease" in [one.head for one in table.columns if not one.json_only]
    assert table.notes == ["broker-a: 10.0.0.1:10911 epoch 1000 holds the lease, by etcd://10.0.0.9:2379."]
    without = table_of([master(), slave()], NOW_MS)
    assert "#Lease" not in [one.head for one in without.columns if not one.json_only]


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ("2.4", "held the lease when that was last read, and takes messages for 2.4 s yet"),
        ("0.0", "held the lease when that was last read, and takes no messages now"),
    ],
)
def test_a_master_that_does_not_reach_the_coordinator_does_not_hold_the_lease_and_is_master_at_once(
    left: str, said: str
) -> None:
    holds = {"leaseMaster": "10.0.0.1:10911 epoch 1000"}
    why = {"leaseWhyNot": "the coordinator cannot be reached"}
    table = table_of(
        [leased(master(), leaseSecondsLeft=left, **holds, **why), leased(slave(), **holds, **why)], NOW_MS
    )
    assert table.notes == [
        f"broker-a: 10.0.0.1:10911 epoch 1000 {said}, by etcd://10.0.0.9:2379: the coordinator cannot be reached"
    ]


def test_a_master_without_the_lease_is_told_as_one_that_serves() -> None:
    """In a pause, or by promises."""
    serves = leased(master(), leaseSecondsLeft="3.0", leaseWhyNot="failover is paused")
    table = table_of([serves, leased(slave(), leaseWhyNot="failover is paused")], NOW_MS)
    assert table.notes == [
        "broker-a: nobody holds the lease, by etcd://10.0.0.9:2379.",
        "broker-a at 10.0.0.1:10911 serves without a lease: failover is paused",
        "broker-a at 10.0.0.2:10911 is not the master: failover is paused",
    ]


def test_why_nobody_takes_the_lease_is_told_below_the_lines() -> None:
    shut = leased(master(), leaseWhyNot="the coordinator cannot be reached")
    table = table_of([shut, leased(slave(), leaseWhyNot="failover is paused: mqadmin resume")], NOW_MS)
    assert [one["lease"] for one in table.objects()] == ["shut", "-"]
    assert table.notes == [
        "broker-a: nobody holds the lease, by etcd://10.0.0.9:2379.",
        "broker-a at 10.0.0.1:10911 is not the master: the coordinator cannot be reached",
        "broker-a at 10.0.0.2:10911 is not the master: failover is paused: mqadmin resume",
    ]


def test_who_holds_the_lease_is_told_by_who_reads_it_and_nobody_holds_it_and_is_no_master() -> None:
    """A master that is cut off knows what it read last; its slave reads that it is over, or that it is not."""
    holds = {"leaseMaster": "10.0.0.1:10911 epoch 1000"}
    cut_off = {
        **holds,
        "leaseIsRead": "false",
        "leaseWhyNot": "the coordinator cannot be reached: no answer",
        "leaseTrouble": "no answer",
    }
    reads = {"leaseIsRead": "true", "leaseWhyNot": "a slave"}

    def notes(of_master: dict[str, str], of_slave: dict[str, str]) -> list[str]:
        return table_of([leased(master(), **of_master), leased(slave(), **of_slave)], NOW_MS).notes

    by = "by etcd://10.0.0.9:2379"
    failsafe = {**cut_off, "leaseServesBy": "failsafe", "leaseSecondsLeft": "3.1"}
    assert notes(failsafe, {**reads, **cut_off}) == [
        "broker-a: no broker that answers can read etcd://10.0.0.9:2379, so nobody can take the lease now.",
        "broker-a at 10.0.0.1:10911 serves by failsafe, for its slaves promise to take no lease: no answer",
        "broker-a at 10.0.0.2:10911 is not the master: the coordinator cannot be reached: no answer",
    ]
    assert notes(cut_off, {**reads, **holds}) == [
        "broker-a: 10.0.0.1:10911 epoch 1000 held the lease when that was last read, and takes no messages now,"
        f" {by}: the coordinator cannot be reached: no answer"
    ]
    assert notes(cut_off, reads)[:2] == [
        f"broker-a: nobody holds the lease, {by}.",
        "broker-a at 10.0.0.1:10911 is not the master: the coordinator cannot be reached: no answer",
    ]
    full = {**holds, "leaseIsRead": "true", "leaseTrouble": "it is full", "leaseSecondsLeft": "4.0"}
    assert notes(full, {**reads, **holds}) == [
        f"broker-a: 10.0.0.1:10911 epoch 1000 holds the lease, {by}.",
        "broker-a at 10.0.0.1:10911 cannot use the coordinator: it is full",
    ]
