"""What `mqadmin check` makes of what the brokers of a DLedger group answered."""

from __future__ import annotations

from typing import Any

import pytest

from haservice.admin.calls import Broker
from haservice.admin.commands.ha.findings import NameVerdict, Severity
from haservice.admin.commands.ha.ha_questions import Seen
from haservice.admin.commands.ha.verdict import verdicts_of
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


def judged(*seen: Seen) -> NameVerdict:
    (found,) = verdicts_of(seen, 0)
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
            {"dLegerPeers": "n1-10.0.0.2:40911;n2-10.0.0.3:40911"},
            f"dLegerPeers is {PEERS} at n0 (10.0.0.1:10911) and n1 (10.0.0.2:10911), "
            "n1-10.0.0.2:40911;n2-10.0.0.3:40911 at n2 (10.0.0.3:10911): ",
        ),
    ],
)
def test_members_with_different_keys_are_named_with_their_values(of_n2: dict[str, str], said: str) -> None:
    found = judged(member("n0", link("n1"), link("n2")), member("n1"), member("n2", **of_n2))
    assert found.state is Severity.WARNING
    assert f"MEMBERS DIFFER, {said}" in found.text


def test_peers_in_another_order_are_the_same() -> None:
    turned = "n2-10.0.0.3:40911;n1-10.0.0.2:40911; n0-10.0.0.1:40911;"
    found = judged(member("n0", link("n1"), link("n2")), member("n1"), member("n2", dLegerPeers=turned))
    assert found.state is Severity.OK
