"""`mqadmin switchover`, `failover`, `reinit`, `history`: who is there, what it costs, who is told what."""

from __future__ import annotations

import itertools
import json
import socket
import socketserver
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.log.log import CommitLog
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.ha import ask_brokers, failover, role_steps, switchover
from haservice.admin.commands.ha.ask_brokers import count
from haservice.admin.commands.ha.topology import KnownMaster, Member, Topology
from haservice.admin.commands.ha.topology_text import bound_text, loss_text, table_of
from haservice.errors import RemotingTimeout
from haservice.remoting.bodies.clients import BrokerData, ClusterInfo, KVTable
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import ViewMessageHeader
from haservice.remoting.headers.lineage import (
    EpochBody,
    FollowHeader,
    PromoteHeader,
    ReinitHeader,
    ReplicaBody,
    SwitchoverBody,
    SwitchoverHeader,
)
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan
from tests.admin.asking import Serve, body, run, run_answering
from tests.admin.fakes import NAME, A, B, C, Fake, Names, dead
from tests.support.messages import SEGMENT_BYTES, message, open_log


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for who does not follow: a fake stays what it is."""
    monkeypatch.setattr(role_steps, "FOLLOW_S", 0.2)


# -- what would be lost, without a network ---------------------------------------------------------


def lineage(*epochs: tuple[int, int, str]) -> Lineage:
    return Lineage(tuple(Epoch(*epoch) for epoch in epochs))


def member(addr: str, replica_id: str, end: int, *epochs: tuple[int, int, str], **fields: Any) -> Member:
    fields = {"name": NAME, "role": "SLAVE", "segment_bytes": SEGMENT_BYTES, "broker_addr": addr, **fields}
    log = LogSpan(fields.pop("start", 0), end)
    return Member(addr, 1, replica_id=replica_id, log=log, lineage=lineage(*epochs), **fields)


def silent(addr: str) -> Member:
    return Member(addr, 0, trouble="Connection refused")


def topology(*members: Member) -> Topology:
    return Topology(NAME, members)


ONE_EPOCH = ((1, 0, A),)


def test_a_level_slave_of_a_dead_master_loses_nothing_that_is_known_of() -> None:
    seen = topology(silent("a:1"), member("b:1", B, 500, *ONE_EPOCH, master_end=500))
    assert seen.loss("b:1").size == 0


def test_what_the_dead_master_was_heard_to_have_beyond_is_lost_and_nobody_can_count_it() -> None:
    seen = topology(silent("a:1"), member("b:1", B, 500, *ONE_EPOCH, master_end=720))
    loss = seen.loss("b:1")
    assert (loss.begin, loss.end, loss.size, loss.holder) == (500, 720, 220, None)
    assert count(lambda *_: pytest.fail("nobody is asked"), loss).messages is None


def test_of_two_slaves_the_shorter_one_loses_what_the_other_holds() -> None:
    longer = member("c:1", C, 700, *ONE_EPOCH, master_end=700)
    seen = topology(silent("a:1"), member("b:1", B, 500, *ONE_EPOCH, master_end=600), longer)
    assert seen.furthest is longer
    loss = seen.loss("b:1")
    assert (loss.begin, loss.end, loss.holder) == (500, 700, longer)
    assert seen.loss("c:1").size == 0


def test_a_newer_epoch_is_ahead_of_a_longer_log() -> None:
    old = member("a:1", A, 900, (1, 0, A), role="SYNC_MASTER")
    new = member("b:1", B, 600, (1, 0, A), (2, 500, B), role="SYNC_MASTER")
    seen = topology(old, new)
    assert seen.furthest is new
    loss = seen.loss("a:1")
    assert (loss.begin, loss.end, loss.holder) == (500, 600, new)
    assert seen.loss("b:1").size == 0


def test_an_epoch_of_which_a_slave_has_only_heard_counts_too() -> None:
    """It adopted epoch 2 in the handshake, and its log had not come to where that begins."""
    old = member("a:1", A, 1000, (1, 0, A))
    seen = topology(old, member("c:1", C, 900, (1, 0, A), (2, 1000, B), master_end=1200), silent("b:1"))
    assert seen.loss("a:1").size == 200


def test_without_anybody_who_heard_the_last_master_the_loss_is_not_known() -> None:
    seen = topology(silent("a:1"), member("b:1", B, 500, *ONE_EPOCH))
    loss = seen.loss("b:1")
    assert loss.size is None
    assert "a:1" in loss.unknown
    assert "not known" in loss_text(loss, count(lambda *_: b"", loss))


def test_a_held_master_may_have_lost_what_a_silent_replica_holds() -> None:
    held = member("a:1", A, 500, *ONE_EPOCH, role="SYNC_MASTER", held="b has more", named={B: "b:1"})
    assert topology(held, silent("b:1")).loss("a:1").size is None
    back = member("b:1", B, 700, *ONE_EPOCH)
    loss = topology(held, back).loss("a:1")
    assert (loss.size, loss.holder) == (200, back)


def test_logs_without_a_common_epoch_have_nothing_in_common() -> None:
    seen = topology(member("a:1", A, 900, (1, 100, A), start=100), member("b:1", B, 600, (2, 0, B)))
    assert seen.loss("a:1").size == 600


def test_an_epoch_of_which_only_the_nameserver_has_heard_makes_the_loss_unknown() -> None:
    alone = member("b:1", B, 500, *ONE_EPOCH, master_end=500)
    for said in (KnownMaster(2, "c:1"), KnownMaster(7, "a:1")):
        seen = Topology(NAME, (silent("a:1"), alone), said)
        loss = seen.loss("b:1")
        assert loss.size is None
        assert f"epoch {said.epoch}, of {said.addr}" in loss.unknown
        assert seen.last_epoch == said.epoch
    for said in (KnownMaster(1, "a:1"), KnownMaster()):
        assert Topology(NAME, (silent("a:1"), alone), said).loss("b:1").size == 0


def test_one_number_of_two_masters_is_not_one_epoch() -> None:
    """The nameserver's is the first one's, who is gone; the other began it because nobody answered."""
    blank = member("c:1", C, 0, (1, 0, C), role="SYNC_MASTER")
    assert Topology(NAME, (blank,), KnownMaster(1, "a:1")).loss("c:1").size is None
    assert Topology(NAME, (blank,), KnownMaster(1, "c:1")).loss("c:1").size == 0
    slave = member("b:1", B, 500, (1, 0, A), master_end=500)
    seen = Topology(NAME, (blank, slave), KnownMaster(1, "a:1"))
    assert (seen.loss("b:1").size, seen.loss("c:1").size) == (0, 500)


@pytest.mark.parametrize("epochs", [(), ((0, 0, ""),), ((1, 0, A),), ((4, 0, A),)])
def test_an_empty_broker_that_began_an_epoch_by_itself_is_ahead_of_nobody(
    epochs: tuple[tuple[int, int, str], ...],
) -> None:
    blank = member("c:1", C, 0, (1, 0, C), role="SYNC_MASTER")
    slave = member("b:1", B, 500, *epochs, master_end=700)
    seen = topology(blank, slave)
    assert seen.furthest is slave
    loss = seen.loss("c:1")
    assert (loss.begin, loss.end, loss.holder) == (0, 700, slave)
    assert seen.loss("b:1").size == 200
    # Without anybody who knows better it is the only one.
    assert topology(blank).loss("c:1").size == 0


def test_of_two_masters_with_one_number_neither_has_what_the_other_took() -> None:
    one = member("a:1", A, 900, (1, 0, A), (2, 500, A), role="SYNC_MASTER")
    other = member("b:1", B, 700, (1, 0, A), (2, 600, B), role="SYNC_MASTER")
    seen = topology(one, other)
    assert (seen.loss("a:1").begin, seen.loss("a:1").end) == (500, 700)
    assert (seen.loss("b:1").begin, seen.loss("b:1").end) == (500, 900)


def test_of_two_masters_promoted_beside_each_other_neither_has_what_the_other_took() -> None:
    """One of them lost power, and began an epoch by itself; its slave has not heard of that one yet."""
    one = member("a:1", A, 900, (1, 0, A), (2000, 500, A), (2001, 800, A), role="SYNC_MASTER")
    slave = member("c:1", C, 850, (1, 0, A), (2000, 500, A))
    other = member("b:1", B, 700, (1, 0, A), (2000, 600, B), role="SYNC_MASTER")
    seen = topology(one, slave, other)
    assert (seen.loss("a:1").begin, seen.loss("a:1").end) == (500, 700)
    assert (seen.loss("b:1").begin, seen.loss("b:1").end) == (500, 900)
    assert seen.needs_further_epoch(one)
    assert seen.needs_further_epoch(other)
    assert not seen.gives_way(other)
    # The nameserver's word: of a rival who is gone nobody knows what he took.
    assert "epoch 2000, of z:1" in Topology(NAME, (one, slave), KnownMaster(2000, "z:1")).loss("a:1").unknown


def test_what_was_heard_before_a_restart_is_the_least_that_a_sync_master_had() -> None:
    kept = {"master_end": 720, "master_end_kept": True, "master_heard_ms": 1_700_000_000_000}
    slave = member("b:1", B, 500, *ONE_EPOCH, master_role="SYNC_MASTER", **kept)
    loss = topology(silent("a:1"), slave).loss("b:1")
    assert (loss.size, loss.heard_by) == (220, slave)
    assert "before it was started again" in bound_text(loss)
    # An ASYNC_MASTER told its clients OK whoever followed.
    slave = replace(slave, master_role="ASYNC_MASTER")
    loss = topology(silent("a:1"), slave).loss("b:1")
    assert loss.size is None
    assert "720" in loss.unknown
    # Another one was there to the end.
    there = member("c:1", C, 720, *ONE_EPOCH, master_role="ASYNC_MASTER", master_end=720)
    loss = topology(silent("a:1"), slave, there).loss("b:1")
    assert (loss.size, loss.heard_by) == (220, there)
    assert "before" not in bound_text(loss)


def test_of_stock_brokers_nothing_can_be_told() -> None:
    stock = Member("s:1", 0, name=NAME, role="SYNC_MASTER", log=LogSpan(0, 800))
    seen = topology(stock, member("b:1", B, 500, master_end=500))
    assert seen.loss("s:1").size is None
    assert seen.loss("b:1").size == 300
    assert "stock" in table_of(seen).text()


# -- with brokers made of answers ------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """Ten messages over two segments."""
    log = open_log(tmp_path)
    for number in range(10):
        log.append(message(bytes([number]) * 400))
    return log


def test_what_an_async_master_acknowledged_last_takes_force(serve: Serve) -> None:
    gone = dead()
    told = {"master_end": 500, "master_addr": gone, "master_role": "ASYNC_MASTER"}
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), **told)
    names = Names(serve, slave, listed={0: gone})
    command = ("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "-f", "json")
    refused = run(*command)
    assert (refused.exit_code, slave.codes) == (1, [])
    assert "refused: the last master was an ASYNC_MASTER" in refused.stderr
    assert run(*command, "--force").exit_code == 0
    assert PromoteHeader.decode(slave.ext(RequestCode.PROMOTE)).force


def test_failover_promotes_a_level_slave_and_tells_the_others_whom_to_follow(serve: Serve) -> None:
    gone = dead()
    slave = Fake(
        serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=gone, master_role="SYNC_MASTER"
    )
    other = Fake(serve, C, "SLAVE", 400, (3, 0, A), master_end=500, master_addr=gone)
    names = Names(serve, slave, other, listed={0: gone})
    result = run(
        "failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "-f", "json", "--timeout", "10"
    )
    assert result.exit_code == 0, result.output
    promote = PromoteHeader.decode(slave.ext(RequestCode.PROMOTE))
    assert (promote.expected_end, promote.min_epoch, promote.role) == (-1, 4, "")
    follow = FollowHeader.decode(other.ext(RequestCode.FOLLOW))
    assert (follow.master_addr, follow.ha_addr, follow.epoch) == (slave.addr, slave.said.ha_addr, 4)
    assert slave.codes == [RequestCode.PROMOTE]
    shown = json.loads(result.stdout)
    assert (shown["newMaster"], shown["epoch"], shown["lostBytes"], shown["lostMessages"]) == (
        slave.addr,
        4,
        0,
        0,
    )
    before = {row["brokerAddr"]: row for row in shown["before"]}
    after = {row["brokerAddr"]: row for row in shown["after"]}
    assert before[other.addr]["lostIfMasterBytes"] == 100
    assert before[gone]["state"].startswith("no answer")
    assert (after[slave.addr]["role"], after[slave.addr]["epoch"]) == ("SYNC_MASTER", 4)


@pytest.mark.parametrize("command", ["failover", "switchover"])
def test_a_change_of_roles_names_a_frozen_broker_that_it_waits_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(ask_brokers, "ASK_S", 0.3)
    monkeypatch.setattr(ask_brokers, "SAY_AFTER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # takes connections, and says nothing
        addr = f"127.0.0.1:{frozen.getsockname()[1]}"
        master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A)) if command == "switchover" else None
        gone = dead() if master is None else master.addr
        slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=gone)
        names = Names(serve, *(one for one in (master, slave) if one is not None), listed={7: addr})
        result = run(command, "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "--timeout", "0.1")
    lines = result.stderr.splitlines()
    # Those who look, and the brokers themselves in the steps of the change.
    assert any(addr in line and line.endswith("not answer: waits 0.3 s at most") for line in lines), lines
    assert f"  … {addr} does not answer: the brokers wait 1 to 2 s for it at each step" in lines


def followers(serve: Serve, count: int = 1) -> tuple[Names, Fake, list[Fake]]:
    """A master has died; a slave that is to be the next, and others that follow it, but take its epoch later."""
    gone = dead()
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=gone)
    others = [
        Fake(serve, f"{number}" * 32, "SLAVE", 400, (3, 0, A), master_end=500, master_addr=gone)
        for number in range(count)
    ]
    for one in others:
        one.takes_epochs = False
    return Names(serve, slave, *others, listed={0: gone}), slave, others


def test_the_table_after_a_failover_waits_for_the_epochs_of_those_who_follow(serve: Serve) -> None:
    names, slave, (other,) = followers(serve)
    asked = itertools.count(1)

    def take(fake: Fake) -> None:
        if fake.told and next(asked) == 6:
            fake.say(epochs=(EpochBody(3, 0, A), EpochBody(4, 400, B)))

    other.on_asked = take
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "-f", "json")
    assert result.exit_code == 0, result.output
    after = {row["brokerAddr"]: row["epoch"] for row in json.loads(result.stdout)["after"]}
    assert after[other.addr] == 4
    assert "Not in epoch" not in result.stderr


def test_who_follows_and_has_not_taken_the_epoch_in_time_is_named(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_steps, "FOLLOW_S", 0.2)
    names, slave, others = followers(serve, 3)
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes")
    assert result.exit_code == 0, result.output
    first, second, third = sorted(one.addr for one in others)
    assert f"{first}, {second} and {third} follow {slave.addr}." in result.output
    for addr in (first, second, third):
        assert f"Not in epoch 4 yet: {addr} has epoch 3, and its log ends at 400" in result.output


def test_failover_that_loses_messages_says_how_many_and_wants_force(serve: Serve, log: CommitLog) -> None:
    gone = dead()
    # Amid the sixth message: what a slave was sent follows no edges, and the sixth is lost as a whole.
    end = log.append(message(b"x")).physical_offset
    begin = 4 * 512 + 700
    slave = Fake(serve, B, "SLAVE", begin, (3, 0, A), master_end=begin, master_addr=gone)
    holder = Fake(serve, C, "SLAVE", end, (3, 0, A), master_end=end, master_addr=gone)
    holder.log = log
    lost = sum(1 for offset in offsets(log, end) if offset[1] > begin)
    names = Names(serve, slave, holder, listed={0: gone})
    arguments = ("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "-f", "json")
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert "--force" in refused.output
    assert f"{lost} messages" in refused.output
    assert holder.addr in refused.output
    assert slave.told == holder.told == []
    done = run(*arguments, "--force")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert (shown["lostBytes"], shown["lostMessages"], shown["lostMessagesExact"]) == (
        end - begin,
        lost,
        True,
    )
    assert f"{end - begin} bytes" in PromoteHeader.decode(slave.ext(RequestCode.PROMOTE)).why
    assert holder.codes == [RequestCode.FOLLOW]


def offsets(log: CommitLog, end: int) -> list[tuple[int, int]]:
    """Begin and end of each message below `end`."""
    found, offset = [], log.start
    while offset < end:
        size = int.from_bytes(log.read(offset, 4), "big")
        if log.read(offset + 4, 4) != b"\xcb\xd4\x31\x94":
            found.append((offset, offset + size))
        offset += size
    return found


def test_failover_wants_force_when_nobody_heard_how_far_the_master_was(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A))
    names = Names(serve, slave, listed={0: dead()})
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes")
    assert result.exit_code == 1
    assert "not known" in result.output
    assert "--force" in result.output
    assert slave.told == []


def test_failover_begins_an_epoch_above_the_nameservers_and_wants_force_if_nobody_knows_that_one(
    serve: Serve,
) -> None:
    gone = dead()
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=gone)
    names = Names(serve, slave, listed={0: gone}, epoch=(6, gone))
    arguments = ("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes")
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert f"epoch 6, of {gone}" in refused.output
    assert "--force" in refused.output
    assert slave.told == []
    assert run(*arguments, "--force").exit_code == 0
    assert PromoteHeader.decode(slave.ext(RequestCode.PROMOTE)).min_epoch == 7


def test_failover_counts_on_from_no_number_beyond_belief(serve: Serve) -> None:
    """A stranger's registration at a nameserver would leave none for the next promotions."""
    gone = dead()
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=gone)
    names = Names(serve, slave, listed={0: gone}, epoch=(10**12, "10.6.6.6:10911"))
    assert (
        run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "--force").exit_code == 0
    )
    assert PromoteHeader.decode(slave.ext(RequestCode.PROMOTE)).min_epoch == 4


def test_failover_is_refused_while_the_master_is_well(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, master, slave)
    for to in (slave, master):
        result = run("failover", "-n", names.addr, "-b", NAME, "--to", to.addr, "--yes", "--force")
        assert result.exit_code == 1
    assert "already" in result.output
    assert (
        "mqadmin switchover"
        in run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "--force").output
    )
    assert master.told == slave.told == []


DENIED = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=tools"


def denying(serve: Serve) -> str:
    """A master with access control, and other keys than ours."""
    return serve({RequestCode.GET_LINEAGE: lambda request: request.answer(1, DENIED)})


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_failover_deposes_no_master_that_answers_with_an_error(serve: Serve, force: tuple[str, ...]) -> None:
    master = denying(serve)
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=master)
    names = Names(serve, slave, listed={0: master})
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", *force)
    assert result.exit_code == 1
    assert f"{master}: lives, but answered code 1: {DENIED}" in result.stderr
    assert "tools.yml" in result.stderr
    assert slave.told == []


def test_a_stock_master_that_does_not_let_us_ask_it_lives(serve: Serve) -> None:
    master = serve({RequestCode.GET_BROKER_RUNTIME_INFO: lambda request: request.answer(1, DENIED)})
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=master)
    names = Names(serve, slave, listed={0: master})
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "--force")
    assert (result.exit_code, slave.told) == (1, [])


def test_who_is_denied_is_told_of_the_keys(serve: Serve) -> None:
    master, slave = denying(serve), denying(serve)
    names = serve(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(
                ClusterInfo({NAME: BrokerData(NAME, "C", {0: master, 1: slave})}, {"C": [NAME]}).encode()
            )
        }
    )
    for command in (
        ("switchover", "-b", NAME, "--yes"),
        ("failover", "-b", NAME, "--to", slave, "--yes"),
        ("history", "-b", NAME),
        ("reinit", "-b", slave, "--yes", "--unread"),
        ("history", "-b", slave),
    ):
        result = run(command[0], "-n", names, *command[1:])
        assert result.exit_code == 1
        assert result.stderr.count("tools.yml") == 1
        assert "mqadmin failover" not in result.stderr
        assert f"{slave}: {slave}" not in result.output


def test_a_master_that_comes_back_while_the_question_is_open_is_not_deposed(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, slave, listed={0: dead()})

    def back() -> str:
        names.fakes = (master, slave)
        return "y\n"

    arguments = ("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr)
    result = run_answering(arguments, back)
    assert result.exit_code == 1
    assert f"{master.addr} is the master of {NAME}, alive and well" in result.stderr
    assert master.told == slave.told == []


class _HangsUp(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1)


def test_a_broker_that_hangs_up_is_said_to_take_only_tls_perhaps(serve: Serve) -> None:
    """A proxy before a dead broker does so too: a failover goes on, and wants --force for what is unknown."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _HangsUp) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            one = f"127.0.0.1:{server.server_address[1]}"
            slave = Fake(serve, B, "SLAVE", 500, (3, 0, A))
            slave.say(replicas=(ReplicaBody(A, one, 500),), master_addr=one)
            result = run("failover", "-b", slave.addr, "--to", slave.addr, "--yes")
        finally:
            server.shutdown()
    assert result.exit_code == 1
    assert f"{one} (closed by the peer: something listens there and hangs up; --tls if" in result.stdout
    assert "--force" in result.stderr


def test_failover_asks_again_when_the_cost_has_changed_meanwhile(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    other = Fake(serve, C, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, slave, other, listed={0: dead()})

    def more() -> str:
        slave.say(log_end=520, master_end=520)
        return "y\n"

    arguments = ("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr)
    result = run_answering(arguments, more, lambda: "n\n")
    assert result.exit_code == 1
    assert result.output.count("Go on? [y/N]") == 2
    assert "Meanwhile" in result.output
    assert "the longest log ends at 520" in result.output
    assert slave.told == []


def test_nobody_is_asked_again_who_said_yes_before(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, slave, listed={0: dead()})
    looks = iter(range(100))
    names.on_asked = lambda: slave.say(log_end=500 + next(looks))
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes")
    assert result.exit_code == 1
    assert "nothing was changed" in result.stderr
    assert slave.told == []


def test_a_change_that_is_under_way_is_waited_for_and_no_reason_to_fail_over(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    held = f"switching over to {slave.addr}"
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), held=held, changing=True)
    names = Names(serve, master, slave)
    for command in (("switchover",), ("failover", "--to", slave.addr, "--force")):
        result = run(command[0], "-n", names.addr, "-b", NAME, "--yes", *command[1:])
        assert result.exit_code == 1
        assert "under way" in result.stderr
        assert held in result.stderr
        assert "mqadmin failover" not in result.stderr
    assert master.told == slave.told == []


def test_whether_a_held_master_can_hand_over_is_its_own_word(serve: Serve) -> None:
    """A full disk is no obstacle, and what is one its broker knows."""
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), held="disk is 100.0% used")
    master.refuses[RequestCode.SWITCHOVER] = "this master refuses writes itself: b has more"
    result = run("switchover", "-n", Names(serve, master, slave).addr, "-b", NAME, "--yes")
    assert master.codes == [RequestCode.SWITCHOVER]
    assert "b has more" in result.stderr
    assert f"nothing was changed, {master.addr} goes on as before" in result.stderr


def test_a_lost_answer_is_not_taken_for_a_refusal(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    lost = RemotingTimeout(master.addr, RequestCode.SWITCHOVER, 15)
    ask = MQAdmin.ask

    def asked(admin: MQAdmin, addr: str, code: RequestCode, *rest: Any, **more: Any) -> Any:
        if code == RequestCode.SWITCHOVER:
            raise lost
        return ask(admin, addr, code, *rest, **more)

    monkeypatch.setattr(MQAdmin, "ask", asked)
    result = run("switchover", "-n", Names(serve, master, slave).addr, "-b", NAME, "--yes")
    assert result.exit_code == 1
    assert "nothing was changed" not in result.stderr
    assert f"{master.addr}: accepts writes" in result.stderr
    assert f"mqadmin history -b {NAME}" in result.stderr


def test_a_refusal_is_in_the_object_that_programs_read(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, master, slave)
    for command in (("failover", "-b", NAME, "--to", slave.addr), ("reinit", "-b", master.addr)):
        result = run(command[0], "-n", names.addr, *command[1:], "--yes", "-f", "json")
        assert result.exit_code == 1
        shown = json.loads(result.stdout)
        assert "mqadmin switchover" in shown["error"]
        assert f"Error: {shown['error']}" in result.stderr
    assert "before" in json.loads(
        run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "-f", "json").stdout
    )


def interrupt() -> str:
    raise KeyboardInterrupt


def test_who_interrupts_is_told_what_came_of_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, slave, listed={0: dead()})
    arguments = ("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr)
    result = run_answering(arguments, interrupt)
    assert result.exit_code == 130
    assert "nothing was changed" in result.stderr
    assert slave.told == []
    monkeypatch.setattr(failover, "wait_for_master", lambda *_: interrupt())
    result = run(*arguments, "--yes")
    assert result.exit_code == 130
    assert f"{slave.addr} was told" in result.stderr
    assert slave.codes == [RequestCode.PROMOTE]


def test_a_slave_waits_for_a_master_that_does_not_answer(serve: Serve) -> None:
    gone, uncopied = dead(), "topics, groups and offsets not copied: No accessKey"
    slave = Fake(
        serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=gone, not_copied="No accessKey"
    )
    shown = table_of(topology(silent(gone), member("b:1", B, 500, *ONE_EPOCH, master_addr=gone))).text()
    assert f"waits for {gone}" in shown
    assert "follows" not in shown
    names = Names(serve, slave, listed={0: gone})
    told = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, stdin="n\n").output
    assert f"waits for {gone}; {uncopied}" in told


def test_an_old_master_that_does_not_step_down_is_no_success(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_steps, "FOLLOW_S", 0.2)
    old = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), held="b has more")
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, slave, listed={7: old.addr})
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "-f", "json")
    assert result.exit_code == 1
    assert f"Not following yet: {old.addr}" in result.stderr
    assert json.loads(result.stdout)["complete"] is False


def test_reinit_of_a_broker_that_is_away_does_not_ask_for_its_name() -> None:
    result = run("reinit", "-b", dead(), "--yes")
    assert result.exit_code == 1
    assert "start it" in result.stderr
    assert "-b NAME" not in result.stderr


@pytest.mark.usefixtures("soon")
def test_a_master_whose_epoch_is_over_keeps_nobody_from_being_promoted(serve: Serve) -> None:
    """It has not heard yet that there was another one, which died."""
    old = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, C, "SLAVE", 620, (3, 0, A), (4, 500, B), master_end=620)
    names = Names(serve, slave, listed={0: old.addr})
    result = run(
        "failover",
        "-n",
        names.addr,
        "-b",
        NAME,
        "--to",
        slave.addr,
        "--yes",
        "-f",
        "json",
        "--timeout",
        "0.2",
    )
    assert PromoteHeader.decode(slave.ext(RequestCode.PROMOTE)).min_epoch == 5
    assert FollowHeader.decode(old.ext(RequestCode.FOLLOW)).epoch == 5
    assert json.loads(result.stdout)["lostBytes"] == 0


def test_a_master_that_no_nameserver_takes_can_be_chosen_by_force(serve: Serve) -> None:
    """A nameserver knows of a newer epoch than its own; nobody proves that one, so it does not step down."""
    gone = dead()
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    names = Names(serve, master, epoch=(1000, gone))
    arguments = ("failover", "-n", names.addr, "-b", NAME, "--to", master.addr, "--yes")
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert f"the nameserver knows of epoch 1000, of {gone}" in refused.stderr
    assert f"start {gone} if it is a broker of {NAME}" in refused.stderr
    assert "--force begins an epoch above 1000; of what the answering brokers have, that loses nothing" in (
        refused.stderr
    )
    assert master.told == []
    assert run(*arguments, "--force").exit_code == 0
    told = PromoteHeader.decode(master.ext(RequestCode.PROMOTE))
    assert told.min_epoch == 1001
    assert told.why == (
        f"failover by command, forced above epoch 1000 of {gone}, of which only a nameserver had heard"
    )
    # Its slave is not promoted over it for a nameserver's word, or for a pledge that came to nothing.
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, pledged=1000, pledged_to=gone)
    master.say(epochs=(EpochBody(3, 0, A),))
    names.fakes = (master, slave)
    refused = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "--force")
    assert (refused.exit_code, slave.told) == (1, [])


def test_a_switchover_below_an_epoch_of_which_only_a_nameserver_has_heard_names_what_helps(
    serve: Serve,
) -> None:
    """The master would refuse, and name a failover that is refused without --force."""
    gone = dead()
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, master, slave, epoch=(1000, gone))
    refused = run("switchover", "-n", names.addr, "-b", NAME, "--yes")
    assert refused.exit_code == 1
    assert f"refused: the nameserver knows of epoch 1000, of {gone}" in refused.stderr
    assert f"mqadmin failover -b {NAME} --to {master.addr} --force begins an epoch above 1000" in (
        refused.stderr
    )
    assert "Nothing is lost" not in refused.output
    assert master.told == slave.told == []
    # A lower one is no obstacle; but what whoever began it may have taken, the table says is unknown.
    names = Names(serve, master, slave, epoch=(999, gone))
    asked = run("switchover", "-n", names.addr, "-b", NAME)
    assert "unknown" in asked.output
    assert f"Nothing is lost that {master.addr} has; what it lacks itself is not known." in asked.output


@pytest.mark.usefixtures("soon")
def test_of_two_masters_of_one_epoch_the_chosen_one_begins_a_further_one(serve: Serve) -> None:
    """They began it on the two sides of a cut network: neither gives way to the other by itself."""
    one = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), (1000, 400, A))
    other = Fake(serve, B, "SYNC_MASTER", 400, (3, 0, A), (1000, 400, B))
    names = Names(serve, one, other)
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", one.addr, "--yes", "--timeout", "0.2")
    assert one.codes == [RequestCode.PROMOTE], result.output
    assert PromoteHeader.decode(one.ext(RequestCode.PROMOTE)).min_epoch == 1001
    assert FollowHeader.decode(other.ext(RequestCode.FOLLOW)).epoch == 1001


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("epochs", "pledge"),
    [
        # It has followed another master of that epoch, who is a slave by now.
        (((3, 0, A), (1000, 400, C)), {}),
        # It has promised somebody to follow nobody below 2000, or in epoch 1000 nobody but him.
        (((3, 0, A),), {"pledged": 2000, "pledged_to": "c:1"}),
        (((3, 0, A),), {"pledged": 1000, "pledged_to": "c:1"}),
    ],
)
def test_a_master_whom_a_slave_follows_in_a_further_epoch_only_can_begin_that(
    serve: Serve, epochs: tuple[tuple[int, int, str], ...], pledge: dict[str, Any]
) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), (1000, 400, A))
    slave = Fake(serve, B, "SLAVE", 400, *epochs, master_addr=master.addr, **pledge)
    names = Names(serve, master, slave)
    arguments = ("failover", "-n", names.addr, "-b", NAME, "--yes", "--to")
    refused = run(*arguments, slave.addr, "--force")
    assert (refused.exit_code, "alive and well" in refused.output) == (1, True)
    if not pledge:  # nobody says how far the other master wrote
        wants_force = run(*arguments, master.addr)
        assert (wants_force.exit_code, "--force does it" in wants_force.output) == (1, True)
    run(*arguments, master.addr, *(() if pledge else ("--force",)))
    assert master.codes == [RequestCode.PROMOTE]
    assert (
        PromoteHeader.decode(master.ext(RequestCode.PROMOTE)).min_epoch == max(1000, slave.said.pledged) + 1
    )


def test_a_held_master_can_be_chosen_and_begins_a_further_epoch(serve: Serve) -> None:
    gone = dead()
    held = Fake(
        serve,
        A,
        "SYNC_MASTER",
        500,
        (3, 0, A),
        held="b has more",
        replicas=(ReplicaBody(B, gone, 600, 0, True),),
    )
    names = Names(serve, held)
    arguments = ("failover", "-n", names.addr, "-b", NAME, "--to", held.addr, "--yes")
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert gone in refused.output
    assert held.told == []
    assert run(*arguments, "--force", "--role", "ASYNC_MASTER").exit_code == 0
    promote = PromoteHeader.decode(held.ext(RequestCode.PROMOTE))
    assert (promote.min_epoch, promote.role) == (4, "ASYNC_MASTER")


def test_a_no_changes_nothing(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, slave, listed={0: dead()})
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, stdin="n\n")
    assert result.exit_code == 1
    assert "Go on? [y/N]" in result.output
    assert "nothing was changed" in result.output
    assert slave.told == []
    assert run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, stdin="y\n").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [("switchover", "-b", NAME), ("failover", "-b", NAME, "--to", "h:1"), ("reinit", "-b", "h:1")],
)
def test_a_program_cannot_be_asked_and_has_to_say_yes(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "-f", "json")
    assert result.exit_code == 2
    assert "--yes" in result.output


def test_failover_to_a_broker_of_another_name_or_a_stock_one_is_refused(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    stranger = Fake(serve, C, "SLAVE", 900, (3, 0, C), broker_name="broker-b")
    stock = stock_broker(serve, "SLAVE", 500)
    names = Names(serve, slave)
    for to, said in ((stranger.addr, "broker-b"), (stock, "stock"), (dead(), "cannot become")):
        result = run("failover", "-n", names.addr, "-b", NAME, "--to", to, "--yes", "--force")
        assert result.exit_code == 1
        assert said in result.output
    assert stranger.told == []


def stock_broker(serve: Serve, role: str, end: int) -> str:
    settings = f"brokerName={NAME}\nbrokerRole={role}\nbrokerClusterName=C\n"
    return serve(
        {
            RequestCode.GET_BROKER_RUNTIME_INFO: body(KVTable({"commitLogMaxOffset": str(end)}).encode()),
            RequestCode.GET_BROKER_CONFIG: body(settings.encode()),
        }
    )


def test_a_promotion_that_the_broker_refuses_is_told_in_its_words(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    other = Fake(serve, C, "SLAVE", 500, (3, 0, A), master_end=500)
    slave.refuses[RequestCode.PROMOTE] = "the log ends at 512, expected was 500"
    names = Names(serve, slave, other)
    result = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes")
    assert result.exit_code == 1
    assert "512" in result.output
    assert other.told == []


def test_a_new_master_that_does_not_get_into_the_route_in_time_is_an_error_that_says_so(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    elsewhere = serve(
        {
            RequestCode.GET_BROKER_CLUSTER_INFO: body(
                ClusterInfo({NAME: BrokerData(NAME, "C", {1: slave.addr})}, {"C": [NAME]}).encode()
            )
        }
    )
    result = run(
        "failover", "-n", elsewhere, "-b", NAME, "--to", slave.addr, "--yes", "--timeout", "0.2", "-f", "json"
    )
    assert result.exit_code == 1
    assert json.loads(result.stdout)["complete"] is False
    assert "names no master" in result.stderr


@pytest.mark.parametrize("others", [False, True])
def test_a_failover_to_the_only_copy_which_is_damaged_wants_force(serve: Serve, others: bool) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, damaged="100 to 200")
    third = Fake(serve, C, "SLAVE", 500, (3, 0, A), master_end=500)
    names = Names(serve, slave, *([third] if others else []), listed={0: dead()})
    command = ("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "--timeout", "0.2")
    result = run(*command)
    assert f"NOTE: {slave.addr} is damaged from 100 to 200" in result.stdout
    assert "; damaged" in result.stdout
    assert ("refused" in result.stderr) is not others
    assert (RequestCode.PROMOTE in slave.codes) is others
    if not others:
        assert "no other broker of" in result.stderr
        forced = run(*command, "--force", "-f", "json")
        assert RequestCode.PROMOTE in slave.codes
        shown = json.loads(forced.stdout)
        assert (shown["damaged"], shown["lostMessagesExact"]) == ("100 to 200", False)


def test_a_question_that_nobody_can_answer_names_the_flag(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    result = run("switchover", "-n", Names(serve, master, slave).addr, "-b", NAME)
    assert result.exit_code == 1
    assert "nothing was changed" in result.stderr
    assert "--yes does not ask" in result.stderr
    assert master.told == slave.told == []


@pytest.mark.usefixtures("soon")
def test_switchover_hands_over_to_the_slave_that_is_named(serve: Serve) -> None:
    strict, lax = "flushDiskType=SYNC_FLUSH, inSyncReplicas=2", "flushDiskType=ASYNC_FLUSH, inSyncReplicas=1"
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), promise=strict)
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, promise=lax)
    names = Names(serve, master, slave, epoch=(8, master.addr))

    def turn(fake: Fake, request: RemotingCommand) -> None:
        master.say(role="SLAVE", master_addr=slave.addr)
        slave.say(role="SYNC_MASTER", epochs=(EpochBody(3, 0, A), EpochBody(4, 500, B)))
        master.switched = SwitchoverBody(slave.addr, 4, 500)

    master.on_told = turn
    result = run(
        "switchover",
        "-n",
        names.addr,
        "-b",
        NAME,
        "--to",
        slave.addr,
        "--yes",
        "-f",
        "json",
        "--timeout",
        "7",
    )
    assert result.exit_code == 0, result.output
    header = SwitchoverHeader.decode(master.ext(RequestCode.SWITCHOVER))
    assert (header.target, header.timeout_millis, header.min_epoch) == (slave.addr, 7000, 9)
    shown = json.loads(result.stdout)
    assert (shown["newMaster"], shown["epoch"], shown["loggedEnd"]) == (slave.addr, 4, 500)
    assert [row["role"] for row in shown["before"]] == ["SYNC_MASTER", "SLAVE"]
    assert shown["after"][0]["brokerAddr"] == slave.addr
    assert slave.told == []
    assert f"NOTE: {slave.addr} has {lax}, and {master.addr} {strict}" in result.stderr


@pytest.mark.parametrize(
    "promise",
    [
        "flushDiskType=SYNC_FLUSH, inSyncReplicas=2",
        "flushDiskType=SYNC_FLUSH, inSyncReplicas=2, haReadMark=STRICT",
        "",
    ],
)
def test_no_note_where_send_ok_goes_on_to_mean_the_same_or_nobody_says(promise: str) -> None:
    same = "flushDiskType=SYNC_FLUSH, inSyncReplicas=2"
    master = member("a:1", A, 500, *ONE_EPOCH, role="SYNC_MASTER", promise=same)
    slave = member("b:1", B, 500, *ONE_EPOCH, promise=promise)
    assert switchover.other_promises([slave], master) == []


def test_a_switchover_says_before_it_asks_whose_accounts_differ(serve: Serve) -> None:
    def says(digest: str) -> dict[int, Any]:
        return {RequestCode.GET_BROKER_RUNTIME_INFO: body(KVTable({"accountsDigest": digest}).encode())}

    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), more=says("11"))
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), more=says("22"))
    alike = Fake(serve, B, "SLAVE", 500, (3, 0, A), more=says("11"))
    told = "NOTE: accounts and rules of access control are not the same at "
    assert told in run("switchover", "-n", Names(serve, master, slave).addr, "-b", NAME).stdout
    assert slave.told == master.told == []
    assert told not in run("switchover", "-n", Names(serve, master, alike).addr, "-b", NAME).stdout


@pytest.mark.parametrize("command", ["failover", "switchover"])
def test_a_candidate_whose_log_begins_later_is_named_with_what_it_lacks(serve: Serve, command: str) -> None:
    """As a stock slave's, which came when its master's first segment was full."""
    kept = "SYNC_MASTER" if command == "switchover" else "SLAVE"
    full = Fake(serve, A, kept, 3 * 1024**2, (3, 0, A), master_end=3 * 1024**2)
    late = Fake(serve, B, "SLAVE", 3 * 1024**2, (3, 0, A), master_end=3 * 1024**2, log_start=1024**2)
    names = Names(serve, full, late, listed={} if command == "switchover" else {0: dead()})
    lacks = (
        f"{late.addr} has no message before offset 1048576 of the log, and {full.addr} has 1.0 MiB of them"
    )
    result = run(command, "-n", names.addr, "-b", NAME, "--to", late.addr)
    assert lacks in result.stdout
    assert ("reinit" in result.stdout) is (command == "switchover")
    full.say(log_start=1024**2)
    assert "has no message before" not in run(command, "-n", names.addr, "-b", NAME, "--to", late.addr).stdout


def test_a_switchover_that_was_undone_is_told_in_the_masters_words(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 300, (3, 0, A), master_end=500)
    master.refuses[RequestCode.SWITCHOVER] = f"{slave.addr} was 200 bytes behind after 10 s; undone"
    names = Names(serve, master, slave)
    result = run("switchover", "-n", names.addr, "-b", NAME, "--yes")
    assert result.exit_code == 1
    assert "200 bytes behind" in result.output
    assert SwitchoverHeader.decode(master.ext(RequestCode.SWITCHOVER)).target == ""


def test_switchover_without_a_master_or_without_a_slave_names_what_helps(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500)
    orphan = Names(serve, slave, listed={0: dead()})
    result = run("switchover", "-n", orphan.addr, "-b", NAME, "--yes")
    assert result.exit_code == 1
    assert "mqadmin failover" in result.output
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    result = run("switchover", "-n", Names(serve, master).addr, "-b", NAME, "--yes")
    assert result.exit_code == 1
    assert "no slave" in result.output
    stock = stock_broker(serve, "SYNC_MASTER", 500)
    result = run("switchover", "-n", Names(serve, slave, listed={0: stock}).addr, "-b", NAME, "--yes")
    assert result.exit_code == 1
    assert "stock broker" in result.output


def test_a_switchover_between_the_two_steps_of_another_waits_for_its_master(serve: Serve) -> None:
    """Nobody is dead, so nobody is told to fail over."""
    old = Fake(serve, A, "SLAVE", 500, (3, 0, A))
    new = Fake(serve, B, "SLAVE", 500, (3, 0, A))
    names = Names(serve, old, new)
    asked = itertools.count(1)

    def turn() -> None:
        if next(asked) == 3:
            new.say(role="SYNC_MASTER", epochs=(EpochBody(3, 0, A), EpochBody(4, 500, B)))

    names.on_asked = turn
    new.refuses[RequestCode.SWITCHOVER] = "one change is enough"
    result = run("switchover", "-n", names.addr, "-b", NAME, "--yes")
    assert result.exit_code == 1
    assert "one change is enough" in result.stderr
    assert "failover" not in result.stderr


def test_brokers_of_a_name_can_be_asked_for_by_the_address_of_one(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=master.addr)
    result = run("history", "-b", slave.addr, "-f", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[0]["masterAddr"] == master.addr
    result = run("history", "-b", dead())
    assert result.exit_code == 1
    assert "-n" in result.output


def test_a_name_that_nobody_knows_is_an_error_with_those_that_are_known(serve: Serve) -> None:
    names = Names(serve, Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A)))
    result = run("history", "-n", names.addr, "-b", "broker-z")
    assert result.exit_code == 1
    assert NAME in result.output


def test_history_tells_each_epoch_once_and_who_has_it(serve: Serve) -> None:
    master = Fake(serve, B, "SYNC_MASTER", 900, (1, 0, A), (2, 500, B))
    behind = Fake(serve, C, "SLAVE", 400, (1, 0, A), (2, 500, B), master_end=900)
    parted = Fake(serve, A, "SLAVE", 700, (1, 0, A))
    names = Names(serve, master, behind, parted)
    result = run("history", "-n", names.addr, "-b", NAME, "-f", "json")
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)
    assert (first["epoch"], first["start"], first["end"], first["masterAddr"]) == (1, 0, 700, parted.addr)
    assert sorted(first["heldBy"]) == sorted([master.addr, behind.addr, parted.addr])
    assert (second["epoch"], second["start"], second["heldBy"]) == (2, 500, [master.addr])
    alone = json.loads(run("history", "-n", names.addr, "-b", parted.addr, "-f", "json").stdout)
    assert [row["epoch"] for row in alone] == [1]


def test_history_goes_on_without_one_that_is_silent_and_says_so(serve: Serve) -> None:
    gone = dead()
    names = Names(serve, Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A)), listed={7: gone})
    result = run("history", "-n", names.addr, "-b", NAME)
    assert result.exit_code == 1
    assert "#Epoch" in result.stdout
    assert gone in result.stderr


def test_reinit_tells_the_slave_and_waits_until_it_holds_what_its_master_has(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 480, (2, 0, B), master_addr=master.addr)

    slave.on_told = lambda fake, request: slave.say(log_end=0, epochs=())
    result = run(
        "reinit", "-b", slave.addr, "--yes", "--lose", "480", "--unread", "-f", "json", "--timeout", "0.3"
    )
    assert ReinitHeader.decode(slave.ext(RequestCode.REINIT)).keep is True
    assert result.exit_code == 1
    assert json.loads(result.stdout)["complete"] is False
    slave.say(log_end=480)
    slave.on_told = lambda fake, request: slave.say(log_end=500, log_start=4096, epochs=(EpochBody(3, 0, A),))
    done = run("reinit", "-b", slave.addr, "--discard", "--lose", "480", "--unread", "--yes", "-f", "json")
    assert done.exit_code == 0, done.output
    assert slave.told[-1][1]["keep"] == "false"
    assert "its master has not 480 bytes" in done.stderr
    assert json.loads(done.stdout)["masterAddr"] == master.addr


def test_reinit_that_nobody_is_asked_about_names_the_bytes_that_only_the_slave_has(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    slave = Fake(serve, B, "SLAVE", 480, (2, 0, B), master_addr=master.addr)
    for lose in ((), ("--lose", "479")):
        refused = run("reinit", "-b", slave.addr, "--discard", "--yes", "--unread", *lose)
        assert refused.exit_code == 1
        assert "480" in refused.stderr
    assert RequestCode.REINIT not in [code for code, _ in slave.told]


def test_reinit_of_a_stock_masters_slave_reads_nothing_through(serve: Serve) -> None:
    slave = Fake(serve, B, "SLAVE", 480, (2, 0, B), master_addr=stock_broker(serve, "SYNC_MASTER", 500))
    result = run("reinit", "-b", slave.addr, "--yes", "--timeout", "0.3")
    assert "has not caught up" in result.stdout
    assert slave.codes == [RequestCode.REINIT]


def test_reinit_does_not_take_the_old_end_for_the_new_one(serve: Serve) -> None:
    """Told, a slave still says what it holds until it has emptied its store."""
    slave = Fake(serve, B, "SLAVE", 700, (1, 0, A))
    master = Fake(serve, A, "SYNC_MASTER", 700, (1, 0, A))
    slave.say(master_addr=master.addr)
    slave.on_told = lambda fake, _: fake.say(changing=True)
    result = run("reinit", "-b", slave.addr, "--yes", "--unread", "-f", "json", "--timeout", "0.3")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["complete"] is False


def test_reinit_reads_the_masters_log_before_the_slave_gives_its_own_up(serve: Serve, tmp_path: Path) -> None:
    """A record that has rotted unseen may be sound on the slave only."""
    log = open_log(tmp_path)
    places = []
    while log.end <= 2 * SEGMENT_BYTES:
        places.append(log.end)
        log.append(message(bytes(800)))
    looked_at: list[int] = []

    def view(request: RemotingCommand) -> RemotingCommand:
        looked_at.append(ViewMessageHeader.decode(request.ext).offset)
        return request.answer(ResponseCode.SYSTEM_ERROR, "rotten")

    master = Fake(serve, A, "SYNC_MASTER", log.end, (3, 0, A), more={RequestCode.VIEW_MESSAGE_BY_ID: view})
    master.log = log
    slave = Fake(serve, B, "SLAVE", log.end, (3, 0, A), master_addr=master.addr)
    told = run("reinit", "-b", slave.addr, "--yes", "-f", "json", "--timeout", "0.3")
    assert "is damaged" not in told.stderr
    assert slave.codes == [RequestCode.REINIT]
    segment = log.segments.find(places[3])
    with segment.path.open("r+b") as file:
        file.seek(places[3] + 200)
        file.write(b"x")
    told = run("reinit", "-b", slave.addr, "--yes")
    assert told.exit_code == 1
    assert f"is damaged at {places[3]}: " in told.stderr
    assert "let both run" in told.stderr
    assert (looked_at, slave.codes) == ([places[3]], [RequestCode.REINIT])
    log.close()


def test_reinit_is_refused_for_a_master_and_where_the_master_is_away(serve: Serve) -> None:
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A))
    orphan = Fake(serve, B, "SLAVE", 480, (3, 0, A), master_addr=dead())
    held = Fake(serve, A, "SYNC_MASTER", 400, (3, 0, A), held="b has more")
    ahead = Fake(serve, B, "SLAVE", 480, (3, 0, A), master_addr=held.addr)
    rotten = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), damaged="100 to 200")
    sound = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_addr=rotten.addr)
    for broker, said in (
        (master, "switchover"),
        (orphan, "may be all there is"),
        (ahead, "b has more"),
        (sound, "damaged from 100 to 200"),
    ):
        result = run("reinit", "-b", broker.addr, "--yes")
        assert result.exit_code == 1
        assert said in result.output
        assert broker.told == []


@pytest.mark.parametrize("name", ["switchover", "failover", "reinit", "history"])
def test_each_teaches_with_an_example(name: str) -> None:
    text = run("help", name).output
    assert f"mqadmin {name} -" in text
    assert name in run("help").output
