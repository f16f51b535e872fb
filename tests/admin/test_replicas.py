"""The list of replicas: who on it is silent, what that means for a failover, and `mqadmin forget`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from commitlog.log.log import wall_clock_ms
from haservice.remoting.bodies.clients import HAConnectionRuntimeInfo, HARuntimeInfo
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import (
    EpochBody,
    ForgetHeader,
    MembersBody,
    PromoteHeader,
    ReplicaBody,
)
from tests.admin.asking import Serve, body, run
from tests.admin.fakes import NAME, A, B, C, Fake, Names, dead
from tests.admin.test_promotion import stock_broker

D = "d" * 32
SEEN_MS = 1_700_000_000_000


def listed(replicas: dict[str, str], needed: int = 1, **fields: Any) -> MembersBody:
    return MembersBody(
        **{"epoch": 3, "number": 1, "master": A, "needed": needed, "since": 0, **fields}, replicas=replicas
    )


class Three:
    """A has died; B, and perhaps C, who have one log; all on one list."""

    def __init__(self, serve: Serve, b_end: int = 500, c_end: int | None = None, needed: int = 1) -> None:
        self.gone, self.c_addr = dead(), dead()
        said: dict[str, Any] = {"master_end": 500, "master_addr": self.gone, "master_role": "SYNC_MASTER"}
        self.b = Fake(serve, B, "SLAVE", b_end, (3, 0, A), **said)
        self.c = None
        if c_end is not None:
            self.c = Fake(serve, C, "SLAVE", c_end, (3, 0, A), **said)
            self.c_addr = self.c.addr
        members = listed({A: self.gone, B: self.b.addr, C: self.c_addr}, needed)
        for one in self.there:
            one.say(members=members, replicas=(ReplicaBody(C, self.c_addr, 400, SEEN_MS),))
        self.names = Names(serve, *self.there)

    @property
    def there(self) -> list[Fake]:
        return [one for one in (self.b, self.c) if one is not None]

    def failover(self, *more: str, to: str = "") -> Any:
        return run(
            "failover",
            "-n",
            self.names.addr,
            "-b",
            NAME,
            "--to",
            to or self.b.addr,
            "--yes",
            "-f",
            "json",
            *more,
        )

    def forget(self, named: str, *more: str) -> Any:
        return run(
            "forget", "-n", self.names.addr, "-b", NAME, "--replica", named, "--yes", "-f", "json", *more
        )


def test_a_failover_while_a_slave_is_silent_that_may_hold_an_ok_alone_wants_force(serve: Serve) -> None:
    """C may have acknowledged alone what B has never heard of; no nameserver names it."""
    three = Three(serve)
    refused = three.failover()
    assert refused.exit_code == 1
    assert f"{three.c_addr} may have acknowledged messages that no other broker has" in refused.stderr
    assert f"start {three.c_addr}, and repeat the command" in refused.stderr
    assert f"mqadmin forget -b {NAME} --replica {three.c_addr}" in refused.stderr
    assert "--force does it all the same" in refused.stderr
    assert three.b.told == []
    shown = {row["brokerAddr"]: row for row in json.loads(refused.stdout)["before"]}
    assert shown[three.c_addr]["replicaId"] == C
    assert shown[three.c_addr]["lastSeenMs"] == SEEN_MS
    assert "last seen 2023-11-1" in shown[three.c_addr]["state"]

    done = three.failover("--force")
    assert done.exit_code == 0, done.output
    header = PromoteHeader.decode(three.b.ext(RequestCode.PROMOTE))
    assert header.force
    assert header.why == f"failover by command, forced while {three.c_addr} was silent"
    assert three.c_addr in json.loads(done.stdout)["unsafe"]


def test_who_is_silent_cannot_hold_an_ok_alone_where_two_slaves_have_to_hold_it(serve: Serve) -> None:
    three = Three(serve, needed=2)
    done = three.failover()
    assert done.exit_code == 0, done.output
    assert "1 of 2 slaves answers, and 1 is enough" in done.stderr
    assert not PromoteHeader.decode(three.b.ext(RequestCode.PROMOTE)).force
    assert json.loads(done.stdout)["unsafe"] is None


def test_the_dead_master_of_a_pair_is_no_slave_that_has_to_be_heard(serve: Serve) -> None:
    gone = dead()
    slave = Fake(serve, B, "SLAVE", 500, (3, 0, A), master_end=500, master_addr=gone)
    slave.say(members=listed({A: gone, B: slave.addr}))
    names = Names(serve, slave)
    done = run("failover", "-n", names.addr, "-b", NAME, "--to", slave.addr, "--yes", "-f", "json")
    assert done.exit_code == 0, done.output
    # It is shown, though no nameserver knows of it.
    assert gone in [row["brokerAddr"] for row in json.loads(done.stdout)["before"]]


def test_a_candidate_whose_log_is_behind_one_that_answers_is_refused_with_the_better_one(
    serve: Serve,
) -> None:
    three = Three(serve, b_end=400, c_end=500)
    refused = three.failover()
    assert refused.exit_code == 1
    assert f"{three.c_addr} has the log up to 500, {three.b.addr} up to 400" in refused.stderr
    assert f"--to {three.c_addr} would lose 0 B" in refused.stderr
    assert three.failover(to=three.c_addr).exit_code == 0


def test_all_slaves_that_speak_for_themselves_are_enough(serve: Serve) -> None:
    three = Three(serve, c_end=500)
    done = three.failover()
    assert done.exit_code == 0, done.output
    assert "2 of 2 slaves answer" in done.stderr


def test_whom_a_slave_was_told_to_forget_is_promoted_where_that_slave_lets_it_back(serve: Serve) -> None:
    """B was taken for lost, by C alone; no list without it was made since."""
    three = Three(serve, c_end=500)
    assert three.c is not None
    given = listed({A: three.gone, B: three.b.addr, C: three.c_addr})
    three.c.say(members=listed({A: three.gone, C: three.c_addr}), given=given)
    done = three.failover()
    assert done.exit_code == 0, done.output
    assert "2 of 2 slaves answer" in done.stderr
    assert not PromoteHeader.decode(three.b.ext(RequestCode.PROMOTE)).force


@pytest.mark.parametrize("number", [1, 2])
def test_what_a_slave_will_refuse_is_foreseen_with_its_reason_and_every_way_out(
    serve: Serve, number: int
) -> None:
    """C's list has no B, and C does not know that it ever had."""
    three = Three(serve, c_end=500)
    assert three.c is not None
    three.c.say(members=listed({A: three.gone, C: three.c_addr}, number=number))
    refused = three.failover()
    assert refused.exit_code == 1
    why = f"{three.c_addr} answers, but refuses: {three.b.addr} is not on the list of replicas"
    assert why in refused.stderr
    assert f"{three.c_addr} may have acknowledged" not in refused.stderr
    assert f"start {three.c_addr}" not in refused.stderr
    assert f"start {three.gone}, the last master, again: it has all that it accepted" in refused.stderr
    assert f"--to {three.c_addr} needs no --force" in refused.stderr
    assert "--force does it all the same, and loses no known message" in refused.stderr
    assert three.b.told == []
    assert three.failover(to=three.c_addr).exit_code == 0


def test_a_broker_that_refuses_though_nothing_spoke_against_it_is_shown_with_every_way_out(
    serve: Serve,
) -> None:
    three = Three(serve, c_end=500)
    three.b.refuses[RequestCode.PROMOTE] = "one of them does not agree; --force does it all the same"
    refused = three.failover()
    assert refused.exit_code == 1
    assert "one of them does not agree; --force does it all the same" in refused.stderr
    assert f"start {three.gone}, the last master, again" in refused.stderr
    assert f"--to {three.c_addr} needs no --force" in refused.stderr
    assert "by what was known before, no known message would be lost" in refused.stderr


def test_a_silent_broker_whose_epoch_a_nameserver_knows_is_to_be_started_by_one_line(serve: Serve) -> None:
    three = Three(serve)
    three.names = Names(serve, three.b, epoch=(5, three.c_addr))
    refused = three.failover()
    assert refused.exit_code == 1
    assert f"the nameserver knows of epoch 5, of {three.c_addr}" in refused.stderr
    assert refused.stderr.count(f"start {three.c_addr}") == 1
    assert "or, if it is a stranger or lost for good: --force begins an epoch above 5" in refused.stderr


def test_the_new_epoch_is_above_what_anybody_has_pledged_or_ever_began(serve: Serve) -> None:
    for said in ({"pledged": 4000, "pledged_to": "c:1"}, {"past": (EpochBody(4000, 500, C),)}):
        three = Three(serve, c_end=500)
        assert three.c is not None
        three.c.say(**said)
        three.failover()
        assert PromoteHeader.decode(three.b.ext(RequestCode.PROMOTE)).min_epoch == 4001


def test_a_stock_slave_is_on_no_list_and_may_hold_acknowledged_messages_as_well(serve: Serve) -> None:
    three = Three(serve, c_end=500)
    three.names.listed = {7: stock_broker(serve, "SLAVE", 500)}
    done = three.failover()
    assert done.exit_code == 0, done.output
    assert "is a stock broker and on no list of replicas" in done.stderr
    three = Three(serve, c_end=500)
    stock = stock_broker(serve, "SLAVE", 600)
    three.names.listed = {7: stock}
    refused = three.failover()
    assert refused.exit_code == 1
    assert f"{stock}, a stock broker, has the log up to 600, {three.b.addr} up to 500" in refused.stderr
    three = Three(serve, c_end=500)
    silent = dead()
    three.names.listed = {7: silent}
    assert f"NOTE: {silent} is registered, silent, and on no list" in three.failover().stderr


def test_where_enough_are_heard_nobody_is_told_to_start_the_silent_one(serve: Serve) -> None:
    three = Three(serve, b_end=400, c_end=500, needed=2)
    lost = dead()
    for one in three.there:
        one.say(members=listed({A: three.gone, B: three.b.addr, C: three.c_addr, D: lost}, 2))
    refused = three.failover()
    assert refused.exit_code == 1
    assert f"{three.c_addr} has the log up to 500" in refused.stderr
    assert f"start {lost}" not in refused.stderr


def test_a_dead_master_was_seen_when_its_slaves_heard_it_last(serve: Serve) -> None:
    """It was put on their lists of replicas long before, when it was a slave itself."""
    three = Three(serve)
    three.b.say(master_heard_ms=SEEN_MS + 5000, replicas=(ReplicaBody(A, three.gone, 400, SEEN_MS),))
    for result in (three.failover(), three.forget(three.c_addr)):
        shown = {row["brokerAddr"]: row for row in json.loads(result.stdout)["before"]}
        assert shown[three.gone]["lastSeenMs"] == SEEN_MS + 5000
        assert shown[three.c_addr]["lastSeenMs"] is None
        # Of a slave no other slave knows it.
        assert shown[three.c_addr]["state"].endswith("last seen: only its master knows")


def test_the_list_shows_who_answers_as_seen_and_says_of_whom_nobody_knows(serve: Serve) -> None:
    three = Three(serve)
    three.b.say(replicas=())
    result = run("forget", "-n", three.names.addr, "-b", NAME, "--replica", three.c_addr, stdin="n\n")
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.startswith("127.")}
    assert "  not known  " in lines[three.gone]
    assert f"{three.c_addr}  {C[:8]}  slave   only its master knows  " in result.stdout
    assert "knows" not in lines[three.b.addr]


def told(result: Any) -> str:
    assert result.exit_code == 0, result.output
    return str(result.stderr)


def test_what_a_sync_master_acknowledged_is_said_to_be_there_where_it_is(serve: Serve) -> None:
    there = "It has all that the last master, a SYNC_MASTER, acknowledged.\n"
    three = Three(serve, c_end=500)
    said = told(three.failover())
    heard = " last heard from that master"
    assert there + three.b.addr + heard in said or there + three.c_addr + heard in said
    assert "what came later, without an OK, is not known." in said
    assert "More may be lost" not in said


def test_a_slave_that_was_started_since_says_so_of_its_own_records(serve: Serve) -> None:
    """Its store may have been put back: then they are as old as the copy, and nobody knows better."""
    three = Three(serve, c_end=None)
    three.b.say(members=listed({A: three.gone, B: three.b.addr}), replicas=(), master_end_kept=True)
    refused = three.failover()
    assert refused.exit_code == 1
    assert "refused: " in refused.stderr
    assert f"\n  start {three.gone}, the last master, again: it has all that it accepted\n" in refused.stderr
    said = told(three.failover("--force"))
    assert "\nBy its own records it has all that the last master, a SYNC_MASTER, acknowledged.\n" in said
    assert "It has all" not in said
    assert "if its store was put back from an older copy" in said


def test_another_slave_that_heard_the_master_until_its_end_knows_enough_of_one_that_was_started_since(
    serve: Serve,
) -> None:
    three = Three(serve, c_end=500)
    three.b.say(master_end_kept=True)
    assert "put back" not in told(three.failover())


def test_where_a_restart_leaves_unknown_what_an_async_master_took_last_its_start_is_advised(
    serve: Serve,
) -> None:
    three = Three(serve)
    members = listed({A: three.gone, B: three.b.addr})
    three.b.say(members=members, replicas=(), master_end_kept=True, master_role="ASYNC_MASTER")
    refused = three.failover()
    assert refused.exit_code == 1
    assert "was restarted since it heard" in refused.stderr
    assert f"\n  start {three.gone}, the last master, again: it has all that it accepted\n" in refused.stderr
    assert "--force does it all the same" in refused.stderr


@pytest.mark.parametrize("why_not", ["ASYNC_MASTER", "one is silent", "no list", "behind", "stock slave"])
def test_more_may_be_lost_where_what_was_acknowledged_is_perhaps_not_there(
    serve: Serve, why_not: str
) -> None:
    three = Three(
        serve, b_end=400 if why_not == "behind" else 500, c_end=None if "silent" in why_not else 500
    )
    if why_not == "ASYNC_MASTER":
        three.b.say(master_role=why_not)
    if why_not == "no list":
        for one in three.there:
            one.say(members=None)
    if why_not == "stock slave":
        three.names.listed = {7: stock_broker(serve, "SLAVE", 500)}
    said = told(three.failover("--force"))
    assert "acknowledged is there" not in said
    assert "More may be lost than is known: " in said


@pytest.mark.parametrize("known", [True, False])
def test_a_failover_of_a_name_that_nobody_has_says_which_there_are(serve: Serve, known: bool) -> None:
    three = Three(serve)
    to = three.b.addr if known else dead()
    result = run("failover", "-n", three.names.addr, "-b", "nosuch", "--to", to, "--yes")
    assert result.exit_code == 1
    assert f"no broker 'nosuch' at {three.names.addr}; known there: {NAME}\n" in result.stderr
    assert f"{to}: {f'is of {NAME}' if known else 'no answer'}" in result.stderr
    assert result.stdout == ""


def test_a_name_that_the_nameserver_has_dropped_can_still_fail_over(serve: Serve) -> None:
    three = Three(serve, needed=2)
    three.names.fakes = ()
    three.b.on_told = lambda fake, request: setattr(three.names, "fakes", (fake,))
    assert three.failover().exit_code == 0


# -- forget ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_id", [False, True])
def test_forgotten_it_keeps_no_failover_waiting(serve: Serve, by_id: bool) -> None:
    """No master answers: every broker that does is told."""
    three = Three(serve)
    done = three.forget(C[:6] if by_id else three.c_addr, "--force")
    assert done.exit_code == 0, done.output
    assert ForgetHeader.decode(three.b.ext(RequestCode.FORGET)).replica_id == C
    shown = json.loads(done.stdout)
    assert (shown["replicaId"], shown["brokerAddr"], shown["told"]) == (C, three.c_addr, [three.b.addr])
    assert [row["replicaId"] for row in shown["before"]] == sorted(
        [A, B, C], key=lambda one: {A: three.gone, B: three.b.addr, C: three.c_addr}[one]
    )
    assert C not in [row["replicaId"] for row in shown["after"]]
    assert "what only it has is lost" in done.stderr
    assert three.failover().exit_code == 0


def test_to_forget_who_may_hold_acknowledged_messages_alone_says_so_and_what_helps(serve: Serve) -> None:
    three = Three(serve)
    done = three.forget(three.c_addr)
    assert done.exit_code == 1, done.output
    assert (
        f"NOTE: {three.c_addr} (replica cccccccc) may have acknowledged messages that no other" in done.stderr
    )
    assert "SEND_OK takes 1 of 2 slaves, so 2 of them must answer, and 1 does." in done.stderr
    assert "wants no --force for want of it" in done.stderr
    assert f"Or start {three.gone}, the last master, again" in done.stderr
    assert f"  start {three.c_addr}, unless it is lost for good\n  --force forgets it" in done.stderr
    assert three.b.told == []


def test_to_forget_who_holds_nothing_alone_says_nothing_of_it(serve: Serve) -> None:
    three = Three(serve, needed=2)
    done = three.forget(three.c_addr)
    assert (done.exit_code, "NOTE" in done.stderr) == (0, False)


def test_a_broker_that_does_not_know_the_replica_is_not_told_to_forget_it(serve: Serve) -> None:
    """Its list is an older one."""
    three = Three(serve, c_end=500)
    lost = dead()
    three.b.say(members=listed({A: three.gone, B: three.b.addr, C: three.c_addr, D: lost}, number=2))
    done = three.forget(D, "--force")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["told"] == [three.b.addr]
    assert three.c is not None
    assert three.c.told == []


def test_where_there_is_a_master_only_that_is_told(serve: Serve) -> None:
    lost = dead()
    master, slave = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A)), Fake(serve, B, "SLAVE", 500, (3, 0, A))
    slave.say(master_addr=master.addr)
    for one in (master, slave):
        one.say(members=listed({A: master.addr, B: slave.addr, C: lost}))
    names = Names(serve, master, slave)
    arguments = ("forget", "-n", names.addr, "-b", NAME, "--replica")
    for alive in (slave.addr, B, master.addr):
        refused = run(*arguments, alive, "--yes")
        assert refused.exit_code == 1
        assert "stop it first" in refused.stderr
    assert run(*arguments, lost, stdin="n\n").exit_code == 1
    assert master.told == slave.told == []
    master.on_told = lambda fake, _: slave.say(members=fake.said.members)
    assert run(*arguments, lost, "--yes").exit_code == 0
    assert (master.codes, slave.codes) == ([RequestCode.FORGET], [])


def test_a_frozen_replica_is_not_forgotten_while_its_connection_stands(serve: Serve) -> None:
    """Nobody answers there, but its process comes back with the next signal."""
    frozen = dead()
    link = HAConnectionRuntimeInfo("127.0.0.1:40000", 500, 0, True, replica_id=C, broker_addr=frozen)
    status = body(HARuntimeInfo(True, 500, 1, (link,)).encode())
    more = {RequestCode.GET_BROKER_HA_STATUS: status}
    master = Fake(serve, A, "SYNC_MASTER", 500, (3, 0, A), more=more)
    heard_ms = wall_clock_ms() - 4500
    master.say(members=listed({A: master.addr, C: frozen}), replicas=(ReplicaBody(C, frozen, 500, heard_ms),))
    names = Names(serve, master)
    refused = run("forget", "-n", names.addr, "-b", NAME, "--replica", frozen, "--yes")
    assert refused.exit_code == 1
    assert re.search(
        rf"does not answer, but still holds a connection to {master.addr}, and was heard \d+\.\d s ago\n",
        refused.stderr,
    )
    assert "stop it first, then forget it" in refused.stderr
    assert master.told == []


def test_who_is_to_be_forgotten_has_to_be_one_and_on_the_list(serve: Serve) -> None:
    three = Three(serve)
    members = listed({A: three.gone, B: three.b.addr, "cc0" + C[3:]: "c:1", "cc1" + C[3:]: ""})
    three.b.say(members=members)
    unknown = three.forget("127.0.0.1:1")
    assert "no replica 127.0.0.1:1 is on the list" in unknown.stderr
    assert three.b.addr in unknown.stderr
    both = three.forget("cc")
    assert "cc may be any of 2 replicas" in both.stderr
    assert "an unknown address" in both.stderr
    master = three.forget(A)
    assert f"mqadmin failover -b {NAME}" in master.stderr
    for result in (unknown, both, master):
        assert result.exit_code == 1
    assert three.b.told == []


def test_a_replica_without_a_known_address_is_shown_and_waited_for_too(serve: Serve) -> None:
    three = Three(serve)
    three.b.say(members=listed({A: three.gone, B: three.b.addr, D: ""}), replicas=())
    refused = three.failover()
    assert refused.exit_code == 1
    assert f"--replica {D}" in refused.stderr
    assert "nobody knows its address" in refused.stderr
    assert three.forget(D, "--force").exit_code == 0


# -- history ---------------------------------------------------------------------------------------


def test_history_tells_epochs_that_left_no_byte_and_marks_them(serve: Serve) -> None:
    three = Three(serve, c_end=500)
    assert three.c is not None
    past = EpochBody(2, 400, C, why="switchover from b")
    three.b.say(past=(past,))
    three.c.say(past=(EpochBody(1, 300, B), past))
    result = run("history", "-n", three.names.addr, "-b", NAME, "-f", "json")
    rows = json.loads(result.stdout)
    assert [(row["epoch"], row["empty"], row["bytes"]) for row in rows] == [
        (1, True, 0),
        (2, True, 0),
        (3, False, 500),
    ]
    assert rows[1]["why"] == "switchover from b; no byte of it is left"
    assert rows[1]["masterAddr"] == three.c_addr
    # The dead master stays until it is forgotten, and so does the exit code.
    assert result.exit_code == 1
    assert f"Not shown: {three.gone}" in result.stderr
    # Its own master knows that nothing was written in it.
    three.b.say(past=(past, EpochBody(1, 300, B, unwritten=True)))
    rows = json.loads(run("history", "-n", three.names.addr, "-b", NAME, "-f", "json").stdout)
    assert [row["why"] for row in rows[:2]] == [
        "nothing was written in it",
        "switchover from b; no byte of it is left",
    ]
    # What one broker has bytes of is no empty epoch because another one cut it.
    three.b.say(past=(EpochBody(3, 0, A),))
    rows = json.loads(run("history", "-n", three.names.addr, "-b", NAME, "-f", "json").stdout)
    assert [(row["epoch"], row["empty"]) for row in rows] == [(1, True), (2, True), (3, False)]


def test_forget_teaches_with_an_example() -> None:
    text = run("help", "forget").output
    assert "mqadmin forget -" in text
    assert "forget" in run("help").output
