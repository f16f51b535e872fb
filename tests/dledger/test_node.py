"""DLedgerNode: groups on real sockets and files."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from commitlog.dledger.store import EntryStore, EntryStoreOptions
from commitlog.errors import StoreLocked
from haservice.devtools.pair import free_port_block
from haservice.dledger.codes import DLedgerRequestCode, DLedgerResponseCode
from haservice.dledger.events import CommittedTo, MemberAction, MemberEvent, MemberRole, RoleIs
from haservice.dledger.member import DLedgerMember
from haservice.dledger.messages import (
    AppendEntryRequest,
    AppendEntryResponse,
    GetEntriesRequest,
    GetEntriesResponse,
)
from haservice.dledger.node import flusher, shell
from haservice.dledger.node.node import DLedgerNode
from haservice.dledger.node.shell import Placed
from haservice.dledger.settings import MemberSettings
from haservice.dledger.wire import read_answer, request_command
from haservice.errors import ConfigError
from haservice.remoting.client import BlockingClient
from haservice.remoting.command import RemotingCommand
from haservice.remoting.server import RemotingServer
from haservice.terminal.explain import explain
from tests.commitlog.dledger.stores import all_entries
from tests.support.failing_files import FailingFiles
from tests.support.waiting import wait_until

T = TypeVar("T")

OK = DLedgerResponseCode.SUCCESS
ANSWER_S = 20.0
FILE_BYTES = 16384


class Group:
    """Three members, each up or not."""

    def __init__(self, directory: Path) -> None:
        first = free_port_block(3)
        self.directory = directory
        self.peers = {f"n{number}": f"127.0.0.1:{first + number}" for number in range(3)}
        self.files = {name: FailingFiles() for name in self.peers}
        self.up: dict[str, DLedgerNode] = {}
        self.failures: list[tuple[str, BaseException]] = []

    def options(self, name: str) -> EntryStoreOptions:
        return EntryStoreOptions(self.directory / f"dledger-{name}", (), FILE_BYTES, 3200)

    def boot(self, *names: str) -> None:
        for name in names:
            node = DLedgerNode(
                MemberSettings("group", name, self.peers, wait_ack_max_s=60.0),
                self.options(name),
                files=self.files[name],
                on_failure=lambda thread, error: self.failures.append((thread, error)),
            )
            self.up[name] = node
            node.start()

    def stop(self, *names: str) -> None:
        for name in names:
            assert self.up.pop(name).stop()

    def leader(self) -> DLedgerNode:
        """Of the newest term, once the others that are up follow it."""

        def found() -> list[DLedgerNode]:
            leading = [node for node in self.up.values() if node.status.role is MemberRole.LEADER]
            terms = {(node.status.term, node.status.leader_id) for node in self.up.values()}
            return leading if len(terms) == 1 else []

        wait_until(found, "a leader that all follow")
        return found()[0]

    def name(self, node: DLedgerNode) -> str:
        return next(name for name, one in self.up.items() if one is node)

    def level(self) -> None:
        """Waits until all that are up have, and know to be committed, what their leader has."""
        end = self.leader().store.end_index
        for name, node in self.up.items():
            wait_until(lambda node=node: node.status.committed_index == end, f"{name} level")  # type: ignore[misc]

    def stores(self) -> list[list[object]]:
        """What the files hold, of members that are down."""
        found: list[list[object]] = []
        for name in self.peers:
            store = EntryStore(self.options(name))
            found.append([*all_entries(store)])
            store.close()
        return found


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    made.stop(*made.up)


def placed(futures: list[Future[Placed]]) -> list[Placed]:
    return [future.result(ANSWER_S) for future in futures]


def test_what_a_majority_acknowledges_is_in_all_three_files_and_survives_every_restart(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    answers = placed([leader.append([b"body %d" % number, b"second"]) for number in range(200)])
    assert {answer.code for answer in answers} == {OK}
    assert [answer.last_index for answer in answers] == list(range(1, 400, 2))
    group.level()
    group.stop("n0", "n1", "n2")
    stores = group.stores()
    assert stores[0] == stores[1] == stores[2]
    assert len(stores[0]) == 400
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    assert leader.store.end_index == 399
    assert leader.append([b"more"]).result(ANSWER_S).last_index == 400
    assert leader.status.committed_index == 400


def test_an_append_is_answered_when_it_is_flushed_and_no_timer_helps(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that is alone waits for its own disk only."""
    monkeypatch.setattr(shell, "TURN_S_MAX", 600.0)
    monkeypatch.setattr(flusher, "CHECKPOINT_INTERVAL_S", 600.0)
    group.peers = {"n0": group.peers["n0"]}
    group.boot("n0")
    leader = group.leader()
    for index in range(3):
        placed = leader.append([b"alone"]).result(ANSWER_S)
        assert (placed.code, placed.last_index, placed.positions) == (OK, index, (53 * index,))


def test_a_loop_that_ends_by_itself_is_told(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()

    def fails() -> None:
        raise SystemExit("a mistake of ours")

    leader._server.loop.call_soon_threadsafe(fails)
    wait_until(lambda: group.failures, "its end is told")
    assert [(thread, str(error)) for thread, error in group.failures] == [
        ("dledger-loop", "a mistake of ours")
    ]


def test_another_member_leads_when_the_leader_ends_and_the_old_one_gets_what_it_missed(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    term, gone = leader.status.term, group.name(leader)
    assert leader.append([b"before"]).result(ANSWER_S).code is OK
    group.stop(gone)
    leader = group.leader()
    assert leader.status.term > term
    assert leader.append([b"without it"]).result(ANSWER_S).code is OK
    group.boot(gone)
    group.level()
    group.stop(*group.peers)
    stores = group.stores()
    assert stores[0] == stores[1] == stores[2]
    assert len(stores[0]) == 2


def test_the_broker_lends_its_loop_for_pushes_and_takes_it_back_amid_appends(group: Group) -> None:
    """Also a loop that ends with nobody told: what was on its way there is pushed again."""
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    answers: list[Future[Placed]] = []
    for number in range(4):
        server = RemotingServer((), thread_name="broker-loop")
        server.start()
        leader.lend(server.loop)
        for index in range(200):
            if index == 100:
                if number % 2:
                    leader.take_back()
                assert server.stop()
                leader.take_back()
            answers.append(leader.append([b"body %d %d" % (number, index)]))
    assert {answer.code for answer in placed(answers)} == {OK}
    group.level()
    group.stop(*group.peers)
    stores = group.stores()
    assert stores[0] == stores[1] == stores[2]
    assert len(stores[0]) == 800
    assert group.failures == []


def test_what_is_placed_on_the_broker_s_loop_is_pushed_and_acknowledged_there(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    server = RemotingServer((), thread_name="broker-loop")
    server.start()
    leader.lend(server.loop)
    made = server_answer(server, lambda: leader.place([b"one", b"two"], leader.status.term))
    assert [entry.pos for entry in made.entries] == [0, 51]
    wait_until(lambda: leader.status.committed_index == 1, "committed")
    assert server_answer(server, lambda: leader.place([b"x"], leader.status.term + 1)).code is not OK
    assert server.stop()
    leader.take_back()


def server_answer(server: RemotingServer, ask: Callable[[], T]) -> T:
    """What it says on the server's loop."""
    future: Future[T] = Future()
    server.call_soon(lambda: future.set_result(ask()))
    return future.result(ANSWER_S)


def test_leadership_is_handed_over(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    assert leader.append([b"one"]).result(ANSWER_S).code is OK
    to = next(name for name in group.peers if group.up[name] is not leader)
    assert leader.hand_over(to).result(ANSWER_S) is OK
    assert group.leader() is group.up[to]
    assert leader.append([b"two"]).result(ANSWER_S) == Placed(DLedgerResponseCode.NOT_LEADER)
    assert leader.hand_over(to).result(ANSWER_S) is not OK


def test_a_client_appends_and_reads_over_the_wire(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.name(group.leader())
    with BlockingClient() as client:
        append = AppendEntryRequest(group="group", remote_id=leader, body=b"by wire")
        answer = read_answer(append, client.call(group.peers[leader], request_command(append)))
        assert isinstance(answer, AppendEntryResponse)
        assert (answer.result, answer.index, answer.pos) == (OK, 0, 0)
        get = GetEntriesRequest(group="group", remote_id=leader, begin_index=0)
        entries = read_answer(get, client.call(group.peers[leader], request_command(get)))
        assert isinstance(entries, GetEntriesResponse)
        assert [entry.body for entry in entries.entries] == [b"by wire"]
        for wrong, code in (
            ({"group": "other", "remote_id": leader}, DLedgerResponseCode.UNKNOWN_GROUP),
            ({"group": "group", "remote_id": "n9"}, DLedgerResponseCode.UNKNOWN_MEMBER),
        ):
            append = AppendEntryRequest(**wrong, body=b"x")
            answer = read_answer(append, client.call(group.peers[leader], request_command(append)))
            assert answer.result is code
        append = AppendEntryRequest(group="group", remote_id=leader, body=bytes(FILE_BYTES))
        answer = read_answer(append, client.call(group.peers[leader], request_command(append)))
        assert answer.result is DLedgerResponseCode.UNEXPECTED_ARGUMENT
        unread = client.call(
            group.peers[leader], RemotingCommand.request(DLedgerRequestCode.APPEND, body=b"no")
        )
        assert unread.code == 1
        assert unread.remark
        assert client.call(group.peers[leader], request_command(get)).code == OK


def test_who_waits_when_a_node_stops_is_told_and_what_came_of_it_is_open(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    group.stop(*(name for name in list(group.up) if group.up[name] is not leader))
    waiting = leader.append([b"for a majority"])
    group.stop(*group.up)
    assert waiting.result(0).code is DLedgerResponseCode.TERM_CHANGED
    assert leader.append([b"afterwards"]).result(0).code is DLedgerResponseCode.TERM_CHANGED
    assert leader.hand_over("n0").result(0) is DLedgerResponseCode.TERM_CHANGED
    assert leader.stop()


def test_a_vote_that_cannot_be_saved_is_never_given_and_the_member_rests(group: Group) -> None:
    """n2 would decide the election, and its disk keeps no vote."""
    group.boot("n0", "n1", "n2")
    group.leader()
    group.stop("n0", "n1", "n2")
    group.boot("n2")
    group.files["n2"].fail("rename", errno.EIO)
    group.boot("n0")
    wait_until(lambda: group.up["n2"].resting, "n2 rests")
    assert group.failures == []
    assert group.up["n2"].append([b"x"]).result(ANSWER_S).code is DLedgerResponseCode.TERM_CHANGED
    answer = AppendEntryRequest(group="group", remote_id="n2", body=b"x")
    with BlockingClient() as client:
        refused = client.call(group.peers["n2"], request_command(answer))
    assert refused.code == 1
    assert "takes no part" in str(refused.remark)
    assert group.up["n0"].status.role is not MemberRole.LEADER
    group.files["n2"].heal()
    assert group.leader().append([b"more"]).result(ANSWER_S).code is OK


def test_a_leader_whose_disk_keeps_nothing_acknowledges_nothing_and_another_leads(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    name = group.name(leader)
    assert leader.append([b"kept"]).result(ANSWER_S).code is OK
    group.files[name].fail("fdatasync", errno.EIO)
    answer = leader.append([b"lost here"]).result(ANSWER_S)
    assert answer.code in (OK, DLedgerResponseCode.TERM_CHANGED)
    wait_until(lambda: leader.status.role is not MemberRole.LEADER, "it steps down")
    others = [node for node in group.up.values() if node is not leader]
    wait_until(lambda: any(node.status.role is MemberRole.LEADER for node in others), "another leads")
    assert leader.store.flushed_index == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
def test_a_leader_that_cannot_read_what_it_has_to_push_rests_and_another_leads(
    group: Group, code: int
) -> None:
    """Stock's 87: its dispatcher tried again and again, and led on."""
    group.boot("n0", "n1", "n2")
    assert group.leader().append([b"kept"]).result(ANSWER_S).code is OK
    group.level()
    group.stop("n0", "n1", "n2")
    group.boot("n0", "n1")
    leader = group.leader()
    name = group.name(leader)
    group.files[name].fail("pread", code)
    group.boot("n2")
    wait_until(lambda: leader.resting, "it rests")
    assert os.strerror(code) in leader.resting
    others = {one: node for one, node in group.up.items() if one != name}
    wait_until(
        lambda: [one for one in others.values() if one.status.role is MemberRole.LEADER], "another leads"
    )
    group.files[name].heal()
    assert group.leader().append([b"more"]).result(ANSWER_S).last_index == 1
    group.level()
    assert not leader.resting
    assert group.failures == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_a_member_whose_vote_is_not_saved_rests_and_comes_back(group: Group, code: int) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    assert leader.append([b"kept"]).result(ANSWER_S).code is OK
    group.level()
    names = [name for name, node in group.up.items() if node is not leader]
    for name in names:
        group.files[name].fail("rename", code, times=1)
    group.stop(group.name(leader))
    wait_until(
        lambda: any(group.files[name].calls["rename"] for name in names) and group.leader(), "one leads"
    )
    assert group.leader().append([b"more"]).result(ANSWER_S).code is OK
    assert group.failures == []


def test_a_member_that_cannot_begin_again_rests_on(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shell forgot it, after one error in the log."""
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    name, node = next((name, node) for name, node in group.up.items() if node is not leader)
    made: list[int] = []
    make = node._shell._make_member

    def make_member(committed_index: int, asked: int) -> DLedgerMember:
        made.append(asked)
        if len(made) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return make(committed_index, asked)

    monkeypatch.setattr(node._shell, "_make_member", make_member)
    monkeypatch.setattr(shell, "REST_S", 0.1)
    group.files[name].fail("rename", errno.ENOSPC, times=1)
    other = next(one for one in group.up if group.up[one] not in (leader, node))
    group.stop(group.name(leader))
    wait_until(lambda: len(made) > 1 or group.up[other].status.role is MemberRole.LEADER, "a vote")
    if not made:  # the other was elected without a vote of this one's own
        group.boot(next(one for one in group.peers if one not in group.up))
        node._shell._calls.call(lambda: _rest(node))
    wait_until(lambda: len(made) > 1 and not node.resting, "it takes part again")
    group.level()
    assert group.failures == []


def _rest(node: DLedgerNode) -> None:
    with node._shell._lock:
        node._shell._rest("for the test")


def test_a_disk_that_stands_still_at_a_vote_holds_up_nobody_who_asks(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    assert leader.append([b"kept"]).result(ANSWER_S).code is OK
    group.level()
    term = leader.status.term
    leader.peers()
    leader.look()
    saves, goes_on = threading.Event(), threading.Event()
    save = leader._term_file.save

    def slow(term: int, vote: str | None) -> None:
        saves.set()
        assert goes_on.wait(60)
        save(term, vote)

    monkeypatch.setattr(leader._term_file, "save", slow)
    other = next(name for name, node in group.up.items() if node is not leader)
    assert leader.hand_over(other)
    assert saves.wait(60), "it hears of a newer term"
    done = threading.Event()

    def ask() -> None:
        assert not leader.place([b"late"], term).entries
        assert leader.peers()
        assert leader.look() is not None
        done.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert done.wait(30), "whoever asks is answered while the disk stands still"
    goes_on.set()
    asking.join()
    assert group.leader().append([b"more"]).result(ANSWER_S).code is OK


def test_a_member_that_takes_connections_and_says_nothing_delays_nobody(group: Group) -> None:
    """Stock before 2020-02 waited for its votes and heartbeats one after the other."""
    group.boot("n0", "n1", "n2")
    group.leader()
    group.stop("n0", "n1", "n2")
    host, _, port = group.peers["n2"].rpartition(":")
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind((host, int(port)))
        silent.listen()
        group.boot("n0", "n1")
        assert group.leader().append([b"x"]).result(ANSWER_S).code is OK


def test_a_member_whose_vote_finds_no_room_rests_and_takes_part_again_once_there_is_some(
    group: Group,
) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    assert leader.append([b"kept"]).result(ANSWER_S).code is OK
    group.level()
    names = [name for name, node in group.up.items() if node is not leader]
    for name in names:
        group.files[name].fail("rename", errno.ENOSPC)
    group.stop(group.name(leader))
    full = [group.up[name] for name in names]
    wait_until(lambda: any(node.resting for node in full), "the vote of one is not saved")
    reasons = {node.resting for node in full} - {""}
    assert all("No space left" in one for one in reasons)
    for name in names:
        group.files[name].heal()
    again = group.leader()
    assert again.append([b"more"]).result(ANSWER_S).code is OK
    assert not any(node.resting for node in full)
    assert group.failures == []


def test_an_address_of_another_machine_is_told_with_the_keys_that_name_it(group: Group) -> None:
    port = int(group.peers["n0"].rpartition(":")[2])
    group.peers["n0"] = f"192.0.2.1:{port}"  # of documentation: no machine has it
    with pytest.raises(ConfigError) as refused:
        group.boot("n0")
    said = explain(refused.value)
    assert f"192.0.2.1:{port}: dLegerPeers: cannot listen there: Cannot assign requested address" in said
    assert "does dLegerSelfId name this broker, and dLegerPeers its address?" in said
    group.stop("n0")


def test_a_port_that_is_taken_is_told_by_its_key_and_the_store_is_free_again(group: Group) -> None:
    port = int(group.peers["n0"].rpartition(":")[2])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(ConfigError, match="dLegerPeers"):
            group.boot("n0")
        with pytest.raises(StoreLocked):
            EntryStore(group.options("n0"))
        group.stop("n0")
    group.boot("n0")


def test_the_owner_hears_that_leadership_is_lost_before_it_hears_what_another_leader_commits() -> None:
    """Both may come of one step, when a member that stood still goes on."""
    heard: list[object] = []
    made = shell.NodeShell(
        MemberSettings("group", "n0", {"n0": "127.0.0.1:1"}),
        lambda index, asked: OneStep([RoleIs(MemberRole.FOLLOWER, 4, "n1"), CommittedTo(7)]),  # type: ignore[arg-type, return-value]
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        committed_index=3,
        appended=lambda: None,
        on_status=lambda status: heard.append((status.role, status.term, status.committed_index)),
        on_failure=heard.append,
        on_committed=heard.append,
    )

    async def one_step() -> None:
        await made.begin()
        await asyncio.sleep(0)
        await made.close()

    asyncio.run(one_step())
    assert heard == [(MemberRole.FOLLOWER, 4, 3), 7]


class OneStep:
    """A member that led, and answers its first step with these actions."""

    role, term, leader_id, committed_index = MemberRole.LEADER, 3, "n0", 3
    next_due_s = float("inf")

    def __init__(self, actions: list[MemberAction]) -> None:
        self._actions = actions

    def steps(self, events: list[MemberEvent], now_s: float) -> list[MemberAction]:
        actions, self._actions = self._actions, []
        return actions
