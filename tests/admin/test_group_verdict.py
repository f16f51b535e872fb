"""What `mqadmin check` makes of what the brokers of a DLedger group answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from haservice.admin.calls import Broker
from haservice.admin.commands.ha.findings import NameVerdict, Severity
from haservice.admin.commands.ha.ha_questions import Failure, Seen
from haservice.admin.commands.ha.verdict import verdicts_of
from haservice.errors import AnswerError, RemotingUnreachable
from haservice.remoting.bodies.clients import HAConnectionRuntimeInfo, HARuntimeInfo
from haservice.remoting.headers.lineage import OF_GROUP, LineageBody

PEERS = "n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911"
KEYS = {"enableDLegerCommitLog": "true", "dLegerPeers": PEERS}


def addr_of(name: str) -> str:
    return f"10.0.0.{int(name[1:]) + 1}:10911"


def link(name: str, **said: Any) -> HAConnectionRuntimeInfo:
    """How the leader sees a member."""
    whole = {"in_sync": True, "replica_id": name} | said
    return HAConnectionRuntimeInfo(f"10.0.0.{int(name[1:]) + 1}:40911", **whole)


def member(name: str, *links: HAConnectionRuntimeInfo, **settings: str) -> Seen:
    """The leader if there are links.  `settings` stand in its file beside KEYS."""
    broker = Broker("C", "broker-a", 0 if links else int(name[1:]) + 1, addr_of(name))
    role = "SYNC_MASTER" if links else "SLAVE"
    lineage = LineageBody(
        cluster_name="C",
        broker_name="broker-a",
        broker_addr=broker.addr,
        ha_addr="",
        broker_id=broker.broker_id,
        file_broker_id=broker.broker_id,
        role=role,
        replica_id=name,
        segment_bytes=1 << 30,
        log_start=0,
        log_end=5000,
        flushed=5000,
        role_from=OF_GROUP,
    )
    status = HARuntimeInfo(bool(links), 5000, sum(one.in_sync for one in links), links)
    info = {"dLegerGroup": "broker-a", "dLegerMembers": "n0 n1 n2"}
    return Seen(
        broker,
        role,
        5000,
        status,
        lineage=lineage,
        info=info,
        settings={**KEYS, "dLegerSelfId": name, **settings},
    )


def dead(name: str, error: Failure | None = None) -> Seen:
    addr = addr_of(name)
    failure = error or RemotingUnreachable(addr, "Connection refused")
    return Seen(Broker("C", "broker-a", int(name[1:]) + 1, addr), "SLAVE", failure=failure)


def judged(*seen: Seen, alone: bool = False) -> NameVerdict:
    (found,) = verdicts_of(seen, 0, alone=alone)
    return found


def test_a_whole_group_is_good() -> None:
    found = judged(member("n0", link("n1"), link("n2")), member("n1"), member("n2"))
    assert found.state is Severity.OK
    assert "10.0.0.1:10911 leads and accepts writes, 3 of 3 members are level" in found.text


@pytest.mark.parametrize(
    ("of_n2", "said"),
    [
        (
            {"preferredLeaderId": "n1"},
            "preferredLeaderId is not set at n0 (10.0.0.1:10911) and n1 (10.0.0.2:10911), n1 at n2 (10.0.0.3:10911): ",
        ),
        (
            {"dLegerPeers": PEERS.replace("10.0.0.3", "10.0.0.4")},
            f"dLegerPeers is {PEERS} at n0 (10.0.0.1:10911) and n1 (10.0.0.2:10911), "
            "n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.4:40911 at n2 (10.0.0.3:10911): ",
        ),
        (
            {"flushDiskType": "SYNC_FLUSH"},
            "flushDiskType is not set at n0 (10.0.0.1:10911) and n1 (10.0.0.2:10911), SYNC_FLUSH at n2 ",
        ),
    ],
)
def test_members_with_different_keys_are_named_with_their_values(of_n2: dict[str, str], said: str) -> None:
    found = judged(member("n0", link("n1"), link("n2")), member("n1"), member("n2", **of_n2))
    assert found.state is Severity.WARNING
    assert f"MEMBERS DIFFER, {said}" in found.text
    assert "start these members again one by one" in found.text


def test_files_that_name_other_members_are_never_rolled_out_one_by_one() -> None:
    """Two majorities without a common member: the text led into it."""
    more = f"{PEERS};n3-10.0.0.4:40911;n4-10.0.0.5:40911"
    found = judged(member("n0", link("n1"), link("n2")), member("n1"), member("n2", dLegerPeers=more))
    assert found.state is Severity.CRITICAL
    assert "they name other members" in found.text
    assert "one by one" not in found.text
    assert "only while all of them are stopped, and were level" in found.text


def says(one: Seen, **info: str) -> Seen:
    return replace(one, info={**one.info, **info})


def test_a_member_that_refuses_a_cut_is_the_proof_of_a_loss() -> None:
    refused = "n0 wants entry 7 cut, and up to 9 all is committed: nothing is cut"
    away = link("n2", in_sync=False, reason=f"refuses to follow: {refused}")
    found = judged(member("n0", link("n1"), away), member("n1"), says(member("n2"), dLegerRefusesCut=refused))
    assert found.state is Severity.CRITICAL
    assert f"ACKNOWLEDGED ENTRIES ARE LOST, 10.0.0.3:10911: {refused}" in found.text
    assert "2 of 3 members are level" in found.text or "MEMBER NOT LEVEL" in found.text


def test_a_member_that_is_not_whole_is_named_with_what_it_waits_for() -> None:
    text = "is not whole: its store is new, or was emptied, and waits for an answer of n0"
    waits = [says(member(name), dLegerNotWhole=text) for name in ("n1", "n2")]
    found = judged(*waits, dead("n0"))
    assert found.state is Severity.CRITICAL
    assert f"NOBODY LEADS, sends fail; 2 of 3 members answer; n1 (10.0.0.2:10911) {text}" in found.text
    assert "mqadmin failover -b broker-a --to ADDR says what is lost with them" in found.text
    assert (found.text.count("is not whole"), found.text.count("start ")) == (
        2,
        1,
    )  # each reason, each advice once
    led = judged(member("n0", link("n1"), link("n2")), waits[0], member("n2"))
    assert led.state is Severity.WARNING
    assert f"MEMBER NOT WHOLE, 10.0.0.2:10911 {text}" in led.text


def test_a_disk_without_room_for_the_first_index_file_is_said() -> None:
    """Such a group stood for election for ever, and only its logs said why."""
    text = "the first entry of term 9 was not appended: No space left on device"
    found = judged(*(says(member(name), dLegerTrouble=text) for name in ("n0", "n1", "n2")))
    assert found.state is Severity.CRITICAL
    assert f"MEMBER TAKES NO PART, 10.0.0.1:10911: {text}" in found.text


def test_a_group_that_was_led_without_a_majority_says_so_while_that_leader_leads() -> None:
    text = "n0 leads term 7 by the longest log, for too few members are whole"
    found = judged(
        says(member("n0", link("n1"), link("n2")), dLegerLedAlone=text), member("n1"), member("n2")
    )
    assert found.state is Severity.WARNING
    assert f"LED WITHOUT A MAJORITY, 10.0.0.1:10911: {text}" in found.text


def test_peers_in_another_order_are_the_same() -> None:
    turned = "n2-10.0.0.3:40911;n1-10.0.0.2:40911; n0-10.0.0.1:40911;"
    found = judged(member("n0", link("n1"), link("n2")), member("n1"), member("n2", dLegerPeers=turned))
    assert found.state is Severity.OK


AWAY = link("n2", in_sync=False, reason="has not answered for 1.5 s")


@pytest.mark.parametrize(
    ("of_n2", "said"),
    [
        (
            (link("n2"), [dead("n2")]),
            "BROKER DOES NOT ANSWER, n2 at 10.0.0.3:40911 is level, and no client reaches it; "
            "its broker at 10.0.0.3:10911 does not: Connection refused",
        ),
        (
            (link("n2"), []),
            "BROKER DOES NOT ANSWER, n2 at 10.0.0.3:40911 is level, and no client reaches it; "
            "its broker is not registered",
        ),
        (
            (AWAY, [member("n2")]),
            "MEMBER NOT LEVEL, n2 at 10.0.0.3:40911: has not answered for 1.5 s; its broker at 10.0.0.3:10911 answers",
        ),
        (
            (AWAY, [dead("n2")]),
            "MEMBER NOT LEVEL, n2 at 10.0.0.3:40911: has not answered for 1.5 s; "
            "its broker at 10.0.0.3:10911 does not: Connection refused; start 10.0.0.3:40911",
        ),
    ],
)
def test_a_member_and_its_broker_are_judged_apart(
    of_n2: tuple[HAConnectionRuntimeInfo, list[Seen]], said: str
) -> None:
    seen_by_leader, broker = of_n2
    found = judged(member("n0", link("n1"), seen_by_leader), member("n1"), *broker)
    assert found.state is Severity.WARNING
    assert [str(one) for one in found.findings] == [said]


def test_a_broker_that_wants_an_account_answers() -> None:
    refused = dead("n2", AnswerError(addr_of("n2"), 1, "no account"))
    assert judged(member("n0", link("n1"), link("n2")), member("n1"), refused).state is Severity.OK


def test_a_leader_that_was_asked_alone_says_nothing_of_the_others_brokers() -> None:
    assert judged(member("n0", link("n1"), link("n2")), alone=True).state is Severity.OK


def test_a_member_that_takes_no_part_says_why() -> None:
    resting = member("n2")
    resting = replace(resting, info={**resting.info, "dLegerTrouble": "no room for its vote"})
    found = judged(member("n0", link("n1"), link("n2")), member("n1"), resting)
    assert found.state is Severity.WARNING
    assert "MEMBER TAKES NO PART, 10.0.0.3:10911: no room for its vote" in found.text


def following(name: str, leader: str) -> Seen:
    one = member(name)
    return replace(one, info={**one.info, "dLegerLeaderId": leader})


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (
            [following("n0", "")],
            "NOBODY LEADS, sends fail; 1 of 3 members answer, and 2 of them elect one; start 10.0.0.2:40911 (n1) and"
            " 10.0.0.3:40911 (n2)",
        ),
        (
            [following("n0", ""), following("n1", "n2")],
            "NOBODY LEADS, sends fail; 2 of 3 members answer: they elect one, or do not reach each other, see their",
        ),
        (
            [following("n0", "n2"), following("n1", "n2")],
            "LEADER IS NOT THERE, sends fail; n2 leads by the word of 2 of 3 members, and its broker is not registered "
            "as the master: see its log",
        ),
        (
            [following("n0", "n2"), following("n1", "n2"), dead("n2")],
            "and its broker does not answer: 10.0.0.3:10911: Connection refused",
        ),
    ],
)
def test_without_a_master_the_members_say_whether_they_have_a_leader(seen: list[Seen], said: str) -> None:
    found = judged(*seen)
    assert found.state is Severity.CRITICAL
    assert said in found.text
