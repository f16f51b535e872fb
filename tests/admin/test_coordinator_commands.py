"""mqadmin's commands about a coordinator, with a real etcd and a real ZooKeeper.

Brokers are sessions that write what a broker writes: the lease, the voters, their members' keys.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from haservice.admin.commands.coordinator.by_request import sealing
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.cluster import (
    EPOCH,
    FAILOVER,
    MASTER,
    MEMBERS,
    REQUEST,
    SETTINGS,
    STATUS,
    SWITCHOVER,
    VOTERS,
    Cluster,
    HistoryEntry,
    Leaseholder,
    MasterRequest,
    MemberState,
    Settings,
    Status,
    decode,
)
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import HISTORY, Coordinator, Transaction
from haservice.coordination.desk import DeskRefusal, OperatorDesk
from haservice.coordination.history import KEPT, PRUNED_AT, prune
from haservice.coordination.voters import Voters
from haservice.remoting.bodies.clients import HAConnectionRuntimeInfo, HARuntimeInfo
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import MembersBody
from haservice.replication.lineage.epochs import Mark
from haservice.typed_json import encode
from tests.admin.asking import Serve, body, run
from tests.admin.fakes import A, B, C, Fake, Names, dead
from tests.support.coordinators import ETCD_MISSING, ZOOKEEPER_MISSING, Server, etcd, opened, zookeeper
from tests.support.waiting import wait_until

names = itertools.count(1)
TTL_S = 10.0
END = 1_000


@pytest.fixture(scope="module")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path_factory.mktemp("etcd")) as (server,):
        yield server


@pytest.fixture(scope="module")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if ZOOKEEPER_MISSING:
        pytest.skip(ZOOKEEPER_MISSING)
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as (server,):
        yield server


class Keyed:
    """The keys of one broker name, and who writes them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cluster = f"C{next(names)}"
        self.addrs: dict[str, str] = {A: "127.0.0.1:10911", B: "127.0.0.1:11911", C: "127.0.0.1:12911"}
        self.asked_in = -1
        """The epoch in which takes_over() found a request."""
        self._sessions: dict[str, Coordinator] = {}
        self._own = self._connected()

    def _connected(self) -> Coordinator:
        made = coordinator_at(place_of(self.url), self.cluster, "broker-a", Keys())
        wait_until(lambda: opened(made, TTL_S), "a session")
        return made

    def pair(self, **more: Any) -> Keyed:
        """A is the master of epoch 1000, B its slave, both voters."""
        self.put(EPOCH, encode(1000))
        self.put(VOTERS, encode(Voters(frozenset({A, B}), more.pop("needed", 1))))
        self.put(STATUS, encode(Status(A, 1000, END)))
        self.put(SETTINGS, encode(Settings(**more)))
        self.put(
            f"{HISTORY}1000",
            encode(HistoryEntry(A, 1000, self.addrs[A], 1_700_000_000_000, 0, "first master")),
        )
        self.joins(A)
        self.leads(A, 1000)
        self.joins(B)
        return self

    def joins(self, name: str, end: int = END, sealed: int = -1, **more: Any) -> None:
        state = MemberState(
            name, f"{name}.1", Mark(1000, end), 1000, 1000, 1000, sealed,
            broker_addr=self.addrs[name], ha_addr="", version="1.0", **more
        )  # fmt: skip
        if name not in self._sessions:
            self._sessions[name] = self._connected()
        session = self._sessions[name]
        key = f"{MEMBERS}{name}"
        expected = session.read()
        version = expected[key].version if key in expected else 0
        assert session.commit(Transaction({key: version}, {key: encode(state)}, frozenset({key})))

    def leads(self, name: str, epoch: int, then: dict[str, bytes] | None = None) -> None:
        session = self._sessions[name]
        now = decode(session.read())
        lease = Leaseholder(name, epoch, "1", self.addrs[name], "", 1_700_000_000_000)
        puts = {MASTER: encode(lease), EPOCH: encode(epoch), STATUS: encode(Status(name, epoch, END))}
        deletes = frozenset({REQUEST} if now.request is not None else ())
        expects = {**dict.fromkeys(then or (), 0), **now.expecting(MASTER, EPOCH, STATUS, REQUEST)}
        assert session.commit(Transaction(expects, {**puts, **(then or {})}, frozenset({MASTER}), deletes))

    def dies(self, name: str) -> None:
        self._sessions.pop(name).close()
        wait_until(lambda: f"{MEMBERS}{name}" not in self._own.read(), "its session is over")

    def put(self, key: str, value: bytes) -> None:
        found = self._own.read()
        version = found[key].version if key in found else 0
        assert self._own.commit(Transaction({key: version}, {key: value}))

    @property
    def now(self) -> Cluster:
        return decode(self._own.read())

    @property
    def history(self) -> list[str]:
        return sorted(self._own.history())

    def run(self, command: str, *arguments: str, stdin: str | None = None) -> Result:
        words = command.split()
        return run(
            *words, "-c", self.cluster, "-b", "broker-a", "--coordinator", self.url, *arguments, stdin=stdin
        )

    def process(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        words = [
            *command.split(),
            "-c",
            self.cluster,
            "-b",
            "broker-a",
            "--coordinator",
            self.url,
            *arguments,
        ]
        code = "from haservice.admin.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def desk(self) -> OperatorDesk:
        return OperatorDesk(place_of(self.url), self.cluster, "broker-a", Keys())

    def close(self) -> None:
        for one in (*self._sessions.values(), self._own):
            one.close()


@pytest.fixture(params=["etcd", "zookeeper"])
def keyed(request: pytest.FixtureRequest) -> Iterator[Keyed]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    made = Keyed(f"{request.param}://127.0.0.1:{server.port}")
    yield made
    made.close()


@pytest.fixture
def etcd_keyed(etcd_server: Server) -> Iterator[Keyed]:
    made = Keyed(f"etcd://127.0.0.1:{etcd_server.port}")
    yield made
    made.close()


def listed(keyed: Keyed) -> dict[str, Any]:
    result = keyed.run("haList", "-f", "json")
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def rows(keyed: Keyed) -> dict[str, dict[str, Any]]:
    return {row["replicaId"]: row for row in listed(keyed)["members"]}


# -- haList -----------------------------------------------------------------------------------------


def test_a_pair_is_listed_with_who_may_become_the_master(keyed: Keyed) -> None:
    keyed.pair()
    keyed.joins(B, END - 100)
    said = listed(keyed)
    assert (said["epoch"], said["master"], said["paused"], said["needed"]) == (
        1000,
        "127.0.0.1:10911",
        False,
        1,
    )
    a, b = said["members"]
    assert (a["replicaId"], a["role"], a["voter"], a["mayBeMaster"]) == (A, "master", True, "is it")
    assert (b["role"], b["logEnd"], b["lagBytes"], b["voter"], b["mayBeMaster"]) == (
        *("slave", END - 100, 100, True),
        "yes",
    )
    assert (
        re.fullmatch(r"\d+\.\d s", a["leaseLeft"])
        if keyed.url.startswith("etcd")
        else a["leaseLeft"] == "held"
    )
    shown = keyed.run("haList")
    assert shown.exit_code == 0
    assert f"broker-a of {keyed.cluster}, by {keyed.url}: epoch 1000" in shown.output
    assert "2 voters; an OK takes 1 slave: a failover loses nothing" in shown.output


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda k: k.put(SETTINGS, encode(Settings(paused=True))), "failover is paused: mqadmin resume"),
        (lambda k: k.joins(B, unfit="its disk is full"), "its disk is full"),
        (lambda k: k.put(VOTERS, encode(Voters(frozenset({A})))), "it is no voter"),
        (lambda k: k.joins(B, is_whole=False), "its machine went down"),
        (
            lambda k: k.put(VOTERS, encode(Voters(frozenset({A, B, C})))),
            "2 voters that have no more than this one have to be heard, and 1 are",
        ),
    ],
)
def test_it_is_said_why_a_slave_would_not_become_the_master(
    etcd_keyed: Keyed, change: Callable[[Keyed], None], why: str
) -> None:
    etcd_keyed.pair()
    assert rows(etcd_keyed)[B]["mayBeMaster"] == "yes"
    change(etcd_keyed)
    assert why in rows(etcd_keyed)[B]["mayBeMaster"]


def test_voters_that_are_away_are_listed_and_without_a_master_the_exit_code_says_so(keyed: Keyed) -> None:
    keyed.pair()
    keyed.dies(A)
    result = keyed.run("haList")
    assert result.exit_code == 1
    assert "Nobody is the master; the last epoch is 1000." in result.output
    assert f"Not connected: {A[:8]}, a voter.  Start it." in result.output
    assert "mqadmin forget" not in result.output, "no broker was asked whether it hears that one"
    found = rows(keyed)
    assert found[A]["state"] == "not connected"
    assert "its log is not sealed against the master of epoch 1000 yet" in found[B]["mayBeMaster"]


def test_a_slave_of_an_async_master_may_lack_so_much(etcd_keyed: Keyed) -> None:
    etcd_keyed.pair(needed=0, max_loss_bytes=50)
    etcd_keyed.joins(B, END - 51)
    assert "51 bytes behind the end that the last master told" in rows(etcd_keyed)[B]["mayBeMaster"]
    etcd_keyed.joins(B, END - 50)
    assert rows(etcd_keyed)[B]["mayBeMaster"] == "yes"


# -- settings ---------------------------------------------------------------------------------------


def test_failover_is_paused_and_resumed(keyed: Keyed) -> None:
    keyed.pair()
    result = keyed.run("pause")
    assert result.exit_code == 0
    assert "Failover of broker-a is paused: nobody becomes the master" in result.output
    assert keyed.now.settings == Settings(paused=True)
    assert "is paused already" in keyed.run("pause").output
    assert "Failover is PAUSED" in keyed.run("haList").output
    assert "Failover of broker-a is on: a slave replaces a master that dies." in keyed.run("resume").output
    assert keyed.now.settings == Settings()


def test_settings_are_shown_and_set(keyed: Keyed) -> None:
    keyed.pair(ttl_s=6.0)
    shown = json.loads(keyed.run("haConfig show", "-f", "json").stdout)
    assert shown == {
        "haLeaseTtl": 6, "haLoopWait": 1, "haMaxLossBytes": 1 << 20, "haFailsafe": True, "paused": False
    }  # fmt: skip
    result = keyed.run("haConfig set", "haLeaseTtl=9", "haFailsafe=false", "haMaxLossBytes=0")
    assert result.exit_code == 0, result.output
    assert keyed.now.settings == Settings(9.0, 1.0, 0, failsafe=False)
    assert "haLeaseTtl     : 9 s" in keyed.run("haConfig show").output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("haLeaseTtl=1", "a whole number of s from 2 to 300 is expected"),
        ("haLeaseTtl=5s", "a whole number of s from 2 to 300 is expected"),
        ("haFailsafe=maybe", "true or false is expected"),
        ("haTtl=5", "KEY one of haLeaseTtl, haLoopWait"),
        ("paused=true", "mqadmin pause and resume do that"),
        ("haLoopWait=4", "haLeaseTtl=5 is less than twice haLoopWait=4"),
    ],
)
def test_settings_that_do_not_fit_are_refused(etcd_keyed: Keyed, change: str, said: str) -> None:
    etcd_keyed.pair()
    result = etcd_keyed.run("haConfig set", change)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
    assert etcd_keyed.now.settings == Settings()


def test_two_commands_at_once_both_have_their_way(keyed: Keyed) -> None:
    keyed.pair()
    racing = [keyed.process("pause"), keyed.process("haConfig set", "haLeaseTtl=7")]
    for one in racing:
        said, _ = one.communicate(timeout=60)
        assert one.returncode == 0, said
    assert keyed.now.settings == Settings(ttl_s=7.0, paused=True)


def test_who_loses_a_race_decides_again_by_what_is_there_now(keyed: Keyed) -> None:
    keyed.pair()
    with keyed.desk() as desk, keyed.desk() as other:

        def change(now: Settings) -> Settings:
            if now.ttl_s == 5.0:
                other.change_settings(lambda now: replace(now, ttl_s=8.0))
            return replace(now, failsafe=False)

        assert desk.change_settings(change) == Settings(ttl_s=8.0, failsafe=False)


def test_who_always_loses_gives_up(etcd_keyed: Keyed) -> None:
    etcd_keyed.pair()
    with etcd_keyed.desk() as desk, etcd_keyed.desk() as other:

        def change(now: Settings) -> Settings:
            other.change_settings(lambda now: replace(now, max_loss_bytes=now.max_loss_bytes + 1))
            return replace(now, paused=True)

        with pytest.raises(DeskRefusal, match="nothing was changed in 10 tries"):
            desk.change_settings(change)
    assert not etcd_keyed.now.settings.paused


# -- requests ---------------------------------------------------------------------------------------


def test_of_two_requests_the_first_stands(keyed: Keyed) -> None:
    keyed.pair()
    barrier = threading.Barrier(2)

    def ask(number: int) -> str:
        with keyed.desk() as desk:
            barrier.wait()
            try:
                desk.ask(MasterRequest(B, f"number {number}", number), 1000)
            except DeskRefusal as error:
                return str(error)
            return ""

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(ask, (1, 2)))
    assert sorted(map(bool, said)) == [False, True]
    assert f"a switchover to replica {B[:8]} is asked for already" in "".join(said)
    kept = keyed.now.request
    assert kept is not None
    assert said[kept.since_ms - 1] == ""
    assert "A switchover to 127.0.0.1:11911 is asked for: number" in keyed.run("haList").output


def test_to_begin_anew_is_asked_for_again_though_who_asked_first_is_gone(keyed: Keyed) -> None:
    keyed.pair()
    keyed.dies(A)
    keyed.put(EPOCH, encode(500))
    first = MasterRequest(B, "killed meanwhile", 1, FAILOVER, among=frozenset({B}))
    again = replace(first, since_ms=2)
    with keyed.desk() as desk:
        desk.ask(first, 500)
        with pytest.raises(DeskRefusal, match="is asked for already"):
            desk.ask(MasterRequest(B, "a switchover", 3), 500)
        desk.ask(again, 500)
        assert keyed.now.request == again


def test_a_request_of_an_epoch_that_is_over_is_not_written_and_only_its_own_is_withdrawn(
    keyed: Keyed,
) -> None:
    keyed.pair()
    mine, other = MasterRequest(B, "mine", 1), MasterRequest(B, "another", 2)
    with keyed.desk() as desk:
        with pytest.raises(DeskRefusal, match="epoch 1000 has begun meanwhile"):
            desk.ask(mine, 0)
        assert keyed.now.request is None
        desk.ask(mine, 1000)
        desk.ask(mine, 1000)
        assert not desk.withdraw(other)
        assert keyed.now.request == mine
        assert desk.withdraw(mine)
        assert keyed.now.request is None


# -- switchover and failover, by brokers that say where their coordinator is -------------------------


def brokers(
    serve: Serve, keyed: Keyed, link: HAConnectionRuntimeInfo | None = None
) -> tuple[Fake, Fake, Names]:
    """A is the master, B its slave; both say where their coordinator is.  `link` is a connection that A has."""
    config = body(f"brokerName=broker-a\nhaCoordinator={keyed.url}\n".encode())
    more = {RequestCode.GET_BROKER_CONFIG: config}
    links = (
        {RequestCode.GET_BROKER_HA_STATUS: body(HARuntimeInfo(True, END, 1, (link,)).encode())}
        if link
        else {}
    )
    a = Fake(serve, A, "SYNC_MASTER", END, (1000, 0, A), more={**more, **links}, cluster_name=keyed.cluster)
    b = Fake(
        serve, B, "SLAVE", END, (1000, 0, A), more=more, cluster_name=keyed.cluster, master_addr=a.addr,
        master_end=END, master_role="SYNC_MASTER",
    )  # fmt: skip
    keyed.addrs |= {A: a.addr, B: b.addr}
    return a, b, Names(serve, a, b)


def takes_over(keyed: Keyed, b: Fake) -> threading.Thread:
    """B becomes the master once it is asked to, as the brokers do it."""

    def wait() -> None:
        wait_until(lambda: keyed.now.request is not None, "there is a request")
        asked = keyed.now.request
        assert asked is not None
        assert asked.to == B
        keyed.asked_in = keyed.now.epoch
        if MASTER in keyed.now.versions:
            keyed.dies(A)
        keyed.leads(B, 2000, {f"{HISTORY}2000": encode(HistoryEntry(B, 2000, b.addr, 1, END, asked.why))})
        b.say(
            role="SYNC_MASTER",
            epochs=(*b.said.epochs, replace(b.said.epochs[0], epoch=2000, start=END, master=B)),
        )

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_switchover_goes_through_the_coordinator_that_the_brokers_name(serve: Serve, keyed: Keyed) -> None:
    a, b, nameserver = brokers(serve, keyed)
    keyed.pair()
    thread = takes_over(keyed, b)
    a.on_asked = lambda fake: fake.say(role="SLAVE", master_addr=b.addr) if keyed.now.epoch == 2000 else None
    result = run("switchover", "-n", nameserver.addr, "-b", "broker-a", "--yes", "-f", "json")
    thread.join()
    said = json.loads(result.stdout)
    assert (result.exit_code, said["newMaster"], said["epoch"], said["complete"]) == (
        0,
        b.addr,
        2000,
        True,
    ), said
    assert RequestCode.SWITCHOVER not in a.codes
    assert f"hands over to {b.addr}, by {keyed.url}.  Nothing is lost." in result.stderr
    found = run("history", "-n", nameserver.addr, "-b", "broker-a")
    assert "Leases, as the coordinator has them:" in found.output
    assert "first master" in found.output


def test_a_switchover_that_nobody_does_is_withdrawn(serve: Serve, etcd_keyed: Keyed) -> None:
    _, b, nameserver = brokers(serve, etcd_keyed)
    etcd_keyed.pair()
    result = run("switchover", "-n", nameserver.addr, "-b", "broker-a", "--yes", "--timeout", "0.5")
    assert result.exit_code == 1
    assert "the switchover was not done within 0.5 s, it is withdrawn" in result.output
    assert f"goes on as the master; {b.addr}:" in result.output
    assert etcd_keyed.now.request is None


def test_a_switchover_asks_before_it_is_written(serve: Serve, etcd_keyed: Keyed) -> None:
    _, _, nameserver = brokers(serve, etcd_keyed)
    etcd_keyed.pair()
    result = run("switchover", "-n", nameserver.addr, "-b", "broker-a", stdin="n\n")
    assert result.exit_code == 1
    assert "nothing was changed" in result.output
    assert etcd_keyed.now.request is None


def test_a_switchover_for_later_is_written_is_shown_and_can_be_withdrawn(
    serve: Serve, etcd_keyed: Keyed
) -> None:
    _, b, nameserver = brokers(serve, etcd_keyed)
    etcd_keyed.pair()
    where = ("-n", nameserver.addr, "-b", "broker-a", "--yes")
    result = run("switchover", *where, "--at", "2099-01-02#03:04")
    assert result.exit_code == 0, result.output
    assert f"hands over to {b.addr}, by {etcd_keyed.url}, not before 2099-01-02 03:04:00." in result.output
    asked = etcd_keyed.now.request
    assert asked is not None
    assert (asked.to, asked.kind) == (B, SWITCHOVER)
    assert asked.not_before_ms == datetime(2099, 1, 2, 3, 4).timestamp() * 1000
    listed = etcd_keyed.run("haList").output
    assert (
        f"A switchover to {b.addr} is asked for, not before 2099-01-02 03:04:00: asked for by mqadmin."
        in listed
    )
    assert "no: a switchover" not in listed
    result = run("switchover", *where, "--withdraw", "-f", "json")
    assert json.loads(result.stdout)["withdrawn"] is True
    assert etcd_keyed.now.request is None
    result = run("switchover", *where, "--withdraw")
    assert (result.exit_code, "nothing is asked for of broker-a" in result.output) == (1, True)


def test_a_switchover_for_a_time_that_is_over_or_without_a_coordinator_is_refused(
    serve: Serve, etcd_keyed: Keyed
) -> None:
    _, _, nameserver = brokers(serve, etcd_keyed)
    etcd_keyed.pair()
    result = run("switchover", "-n", nameserver.addr, "-b", "broker-a", "--yes", "--at", "2026-01-02")
    assert result.exit_code == 1
    assert "2026-01-02 00:00:00 is over by this machine's clock: nothing was changed" in result.output
    assert etcd_keyed.now.request is None
    alone = Fake(serve, A, "SYNC_MASTER", END, (1000, 0, A)), Fake(serve, B, "SLAVE", END, (1000, 0, A))
    nameserver = Names(serve, *alone)
    for option in (("--at", "2099-01-02"), ("--withdraw",)):
        result = run("switchover", "-n", nameserver.addr, "-b", "broker-a", "--yes", *option)
        assert result.exit_code == 1
        assert f"broker-a has no coordinator, in which a switchover could wait for its time: {option[0]}" in (
            result.output
        )


def test_a_failover_while_a_master_holds_the_lease_is_refused(serve: Serve, keyed: Keyed) -> None:
    a, b, nameserver = brokers(serve, keyed)
    keyed.pair()
    a.say(held="the coordinator cannot be reached")
    result = run("failover", "-n", nameserver.addr, "-b", "broker-a", "--to", b.addr, "--yes")
    assert result.exit_code == 1
    assert f"{a.addr} holds the lease of broker-a" in result.output
    assert keyed.now.request is None


def test_a_failover_is_asked_for_and_forced_only_by_who_says_so(serve: Serve, keyed: Keyed) -> None:
    a, b, nameserver = brokers(serve, keyed)
    keyed.pair(paused=True)
    keyed.put(VOTERS, encode(Voters(frozenset({A, B, C}))))
    keyed.dies(A)
    a.say(held="its lease has ended")
    words = ("failover", "-n", nameserver.addr, "-b", "broker-a", "--to", b.addr, "--yes")
    result = run(*words)
    assert result.exit_code == 1
    assert "2 voters that have no more than this one have to be heard, and 1 are" in result.output
    assert keyed.now.request is None
    thread = takes_over(keyed, b)
    a.on_asked = lambda fake: fake.say(role="SLAVE", master_addr=b.addr) if keyed.now.epoch == 2000 else None
    result = run(*words, "--force")
    thread.join()
    assert result.exit_code == 0, result.output
    assert f"{b.addr} is the master of broker-a, epoch 2000" in result.output
    assert RequestCode.PROMOTE not in b.codes


def test_with_a_restored_coordinator_one_command_begins_anew_with_the_longest_log(
    serve: Serve, etcd_keyed: Keyed
) -> None:
    keyed = etcd_keyed
    a, b, nameserver = brokers(serve, keyed)
    keyed.pair()
    keyed.dies(A)
    keyed.put(EPOCH, encode(500))
    a.say(held="the coordinator was restored")
    said = keyed.run("haList").output
    assert "No broker believes this coordinator: the coordinator's epoch is 500" in said
    assert "mqadmin failover -b broker-a begins anew" in said
    a.say(master_role="SYNC_MASTER")
    thread = takes_over(keyed, b)
    a.on_asked = lambda fake: fake.say(role="SLAVE", master_addr=b.addr) if keyed.now.epoch == 2000 else None
    result = run("failover", "-n", nameserver.addr, "-b", "broker-a", "--yes")
    thread.join()
    assert result.exit_code == 0, result.output
    assert (keyed.asked_in, keyed.now.epoch) == (500, 2000), (
        "the epoch is not raised before the lease is taken"
    )
    assert "knows of epoch 1000: it was restored from a backup, or emptied" in result.output
    again = run("failover", "-n", nameserver.addr, "-b", "broker-a", "--yes")
    assert again.exit_code == 1
    assert f"{b.addr} is the master of broker-a already" in again.output
    assert keyed.now.request is None


# -- forget -----------------------------------------------------------------------------------------


def test_a_voter_that_is_lost_is_forgotten_once_there_is_no_master(serve: Serve, keyed: Keyed) -> None:
    a, _, nameserver = brokers(serve, keyed)
    keyed.pair()
    keyed.put(VOTERS, encode(Voters(frozenset({A, B, C}))))
    keyed.dies(A)
    a.say(held="its lease has ended")
    words = ("forget", "-n", nameserver.addr, "-b", "broker-a", C[:6])
    refused = run(*words, stdin="n\n")
    assert (refused.exit_code, keyed.now.voters.ids) == (1, {A, B, C})
    assert "had to be heard before one became the master; then it is 1 of 2." in refused.output
    result = run(*words, "--yes")
    assert result.exit_code == 0, result.output
    assert keyed.now.voters == Voters(frozenset({A, B}))
    again = run(*words, "--yes")
    assert again.exit_code == 1
    assert f"no voter is {C[:6]}" in again.output


@pytest.mark.parametrize("how", ["it answers", "a broker has its connection", "a master serves"])
def test_a_voter_that_is_heard_is_not_forgotten_though_the_coordinator_has_lost_it(
    serve: Serve, etcd_keyed: Keyed, how: str
) -> None:
    """The master answers by failsafe, or hangs; the voter follows it, and its acks make OKs."""
    gone = dead()
    link = HAConnectionRuntimeInfo("127.0.0.1:40000", END, 0, True, replica_id=C, broker_addr=gone)
    a, b, nameserver = brokers(serve, etcd_keyed, link if how == "a broker has its connection" else None)
    etcd_keyed.pair()
    if how != "it answers":
        etcd_keyed.put(VOTERS, encode(Voters(frozenset({A, B, C}))))
        a.say(members=MembersBody(3, 1, A, 1, 0, replicas={A: a.addr, B: b.addr, C: gone}))
    etcd_keyed.dies(A)
    etcd_keyed.dies(B)
    who = B if how == "it answers" else C
    if how == "a broker has its connection":
        a.say(held="its lease has ended")
    before = etcd_keyed.now.voters
    words = ("forget", "-n", nameserver.addr, "-b", "broker-a", "--replica", who[:8], "--yes")
    result = run(*words)
    assert result.exit_code == 1
    said = {
        "it answers": f"{b.addr} (replica {B[:8]}) is alive",
        "a broker has its connection": f"does not answer, but still holds a connection to {a.addr}",
        "a master serves": f"{a.addr} takes messages as the master of broker-a, without a lease",
    }
    assert said[how] in result.output
    assert etcd_keyed.now.voters == before
    listed = run("haList", "-n", nameserver.addr, "-b", "broker-a").output
    assert "mqadmin forget" not in listed.partition(f"Not connected: {who[:8]}")[2].partition("\n")[0]
    if how != "a broker has its connection":
        assert f"{a.addr} takes messages as the master without a lease: by failsafe." in listed


def test_who_may_go_on_without_a_lease_is_not_forgotten(etcd_keyed: Keyed) -> None:
    etcd_keyed.pair(paused=True)
    etcd_keyed.dies(A)
    etcd_keyed.put(STATUS, encode(Status(A, 1000, END, goes_on=True)))
    with etcd_keyed.desk() as desk, pytest.raises(DeskRefusal, match="it may answer OK now"):
        desk.forget(A)
    said = etcd_keyed.run("haList").output
    assert "once it is dead for certain: mqadmin failover -b broker-a --force" in said


@pytest.mark.parametrize("gone", [A, B, C])
def test_a_voter_is_not_forgotten_while_it_lives_or_a_master_sees_to_it(etcd_keyed: Keyed, gone: str) -> None:
    etcd_keyed.pair()
    with etcd_keyed.desk() as desk, pytest.raises(DeskRefusal) as refused:
        desk.forget(gone)
    said = {A: "is connected to the coordinator", B: "is connected to the coordinator", C: "is no voter"}
    assert said[gone] in str(refused.value)
    etcd_keyed.dies(B)
    with etcd_keyed.desk() as desk, pytest.raises(DeskRefusal, match="takes a silent voter out by itself"):
        desk.forget(B)
    assert etcd_keyed.now.voters.ids == {A, B}


# -- the history ------------------------------------------------------------------------------------


def test_the_history_is_pruned_to_the_last_hundred_once_there_are_more(keyed: Keyed) -> None:
    numbers = [1000 * one for one in range(1, PRUNED_AT)]
    for number in numbers:
        keyed.put(f"{HISTORY}{number}", encode(HistoryEntry(A, number)))
    prune(keyed._own)
    assert len(keyed.history) == PRUNED_AT - 1
    last = 1000 * PRUNED_AT
    keyed.put(f"{HISTORY}{last}", encode(HistoryEntry(A, last)))
    prune(keyed._own)
    kept = sorted(int(one.removeprefix(HISTORY)) for one in keyed.history)
    assert kept == [*numbers, last][-KEPT:]


# -- what is wrong ----------------------------------------------------------------------------------


def test_a_name_that_nobody_knows_is_told_with_those_that_are_known(keyed: Keyed) -> None:
    keyed.pair()
    for words in (("-c", keyed.cluster, "-b", "broker-z"), ("-c", "Other", "-b", "broker-a")):
        result = run("haList", *words, "--coordinator", keyed.url)
        assert result.exit_code == 1
        assert f"knows no broker {words[3]} of cluster {words[1]}; it knows" in result.output
        assert f"{keyed.cluster}/broker-a" in result.output
    found = run("pause", "-c", "Other", "-b", "broker-a", "--coordinator", keyed.url)
    assert found.exit_code == 1
    with keyed.desk() as desk:
        assert "Other/broker-a" not in desk._coordinator.names()


@pytest.mark.parametrize("key", [EPOCH, SETTINGS, MASTER, VOTERS])
def test_keys_of_another_program_are_named(keyed: Keyed, key: str) -> None:
    keyed.pair()
    if key == MASTER:
        keyed.dies(A)
    keyed.put(key, b"not ours")
    for command in ("haList", "pause"):
        result = keyed.run(command)
        assert result.exit_code == 1
        assert f"key {key} is not what we write" in result.output
        assert "give one of them another path, or another cluster name" in result.output


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_a_coordinator_that_does_not_answer_is_told_with_where_it_was_looked_for(scheme: str) -> None:
    url = f"{scheme}://{dead()}"
    result = run("haList", "-c", "C", "-b", "broker-a", "--coordinator", url)
    assert result.exit_code == 1
    assert f"is it {url}?" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:2379", "etcd://", "etcd://h:0", "zookeeper://a,a", "127.0.0.1:2379"]
)
def test_a_wrong_address_is_refused(url: str) -> None:
    result = run("haList", "-c", "C", "-b", "broker-a", "--coordinator", url)
    assert result.exit_code == 2
    assert "--coordinator" in result.output
    assert repr(url) in result.output


def test_a_library_that_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    monkeypatch.delitem(sys.modules, "haservice.coordination.etcd", raising=False)
    result = run("haList", "-c", "C", "-b", "broker-a", "--coordinator", "etcd://127.0.0.1:2379")
    assert result.exit_code == 1
    assert "pip install 'haservice[etcd]'" in result.output


def test_brokers_without_a_coordinator_and_those_with_two_are_told(serve: Serve) -> None:
    def one(replica_id: str, role: str, config: bytes) -> Fake:
        more = {RequestCode.GET_BROKER_CONFIG: body(config)}
        return Fake(serve, replica_id, role, END, (1000, 0, A), more=more)

    a, b = one(A, "SYNC_MASTER", b"brokerName=broker-a\n"), one(B, "SLAVE", b"brokerName=broker-a\n")
    result = run("haList", "-n", Names(serve, a, b).addr, "-b", "broker-a")
    assert result.exit_code == 1
    assert "broker-a has no coordinator" in result.output
    assert "set haCoordinator in the brokers' properties files" in result.output
    a = one(A, "SYNC_MASTER", b"haCoordinator=etcd://h1:2379\n")
    b = one(B, "SLAVE", b"haCoordinator=etcd://h2:2379\n")
    result = run("pause", "-n", Names(serve, a, b).addr, "-b", "broker-a")
    assert result.exit_code == 1
    assert "name different coordinators" in result.output


def test_without_any_broker_it_is_said_what_to_add(etcd_keyed: Keyed) -> None:
    etcd_keyed.pair()
    result = run("haList", "-n", dead(), "-b", "broker-a", "--coordinator", etcd_keyed.url)
    assert result.exit_code == 1
    assert "-c CLUSTER and --coordinator" in result.output


def test_user_password_and_files_come_from_a_properties_file(etcd_keyed: Keyed, tmp_path: Path) -> None:
    etcd_keyed.pair()
    file = tmp_path / "broker-a.properties"
    file.write_text(f"brokerName=broker-a\nhaCoordinator={etcd_keyed.url}\n")
    words = ("-c", etcd_keyed.cluster, "-b", "broker-a", "--coordinatorConfig", str(file))
    assert run("haList", *words).exit_code == 0
    file.write_text(f"haCoordinator={etcd_keyed.url}\nhaCoordinatorUser=ops\nhaCoordinatorPassword=secret\n")
    result = run("haList", *words)  # this etcd has no users
    assert result.exit_code == 1
    assert "haCoordinatorUser and the TLS files of --coordinatorConfig let you in" in result.output
    assert "secret" not in result.output
    file.write_text("haCoordinator=etcd:/wrong\n")
    result = run("haList", *words)
    assert result.exit_code == 1
    assert f"{file}" in result.output


def test_one_broker_alone_seals_its_log() -> None:
    assert sealing(1) == "The one connected broker seals its log"
    assert sealing(3) == "All 3 connected brokers seal their logs"
