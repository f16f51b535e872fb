"""Groups of three with stock DLedger nodes: either kind leads, and nothing that was acknowledged is lost.

Stock clients append all the time, while leadership is handed over between the kinds, and while the leader is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.dledger.entries import LogEntry
from commitlog.dledger.store import EntryStore, EntryStoreOptions
from haservice.devtools.pair import free_port_block
from haservice.dledger.messages import MetadataRequest
from haservice.dledger.wire import read_answer, request_command
from haservice.errors import RemotingError
from haservice.remoting.client import BlockingClient
from tests.commitlog.dledger.stores import all_entries
from tests.interop.dledger import GROUP, LedgerNode, LedgerProcess, java, python
from tests.interop.stock import requires_stock
from tests.support.flips import flip
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.compat, pytest.mark.cluster, pytest.mark.interop, requires_stock, pytest.mark.timeout(180),
]  # fmt: skip

# Small files: each log has many, and blanks.
DATA_FILE_BYTES, INDEX_FILE_BYTES = 16384, 6400
HEARTBEAT_MS = 500
CLIENT_THREADS = 2
# Of the stock members that have lost their leader, of ours that had a stock one (6 s), and of the clients.
LEADS_S = 40.0


class Group:
    """n0, n1, n2; of the members in `stock` each is a stock node, and the others are ours."""

    def __init__(self, directory: Path, stock: tuple[str, ...]) -> None:
        first = free_port_block(3)
        self.directory = directory
        self.stock = stock
        self.peers = {f"n{number}": f"127.0.0.1:{first + number}" for number in range(3)}
        self.peers_text = ";".join(f"{name}-{address}" for name, address in self.peers.items())
        self.up: dict[str, LedgerNode] = {}
        self.calls = BlockingClient()
        scratch = directory / "clients"
        self.clients = LedgerProcess(java("LedgerClient", scratch, self.peers_text), scratch / "err")
        self.start(*self.peers)
        self.clients.wait_up()

    def start(self, *names: str) -> None:
        for name in names:
            scratch = self.directory / f"home-{name}"
            scratch.mkdir(exist_ok=True)
            numbers = map(str, (DATA_FILE_BYTES, INDEX_FILE_BYTES, HEARTBEAT_MS))
            arguments = (str(self.directory), name, self.peers_text, *numbers)
            command = java("Ledger", scratch, *arguments) if name in self.stock else python(*arguments)
            self.up[name] = LedgerNode(command, scratch / "err")
        for name in names:
            self.up[name].wait_up()

    def close(self) -> None:
        for process in (*self.up.values(), self.clients):
            process.kill()
        self.calls.close()

    # -- who leads ----------------------------------------------------------------------------------

    def _leader_of(self, name: str) -> str | None:
        request = MetadataRequest(group=GROUP, remote_id=name)
        try:
            return read_answer(request, self.calls.call(self.peers[name], request_command(request))).leader_id
        except RemotingError:
            return None

    def leader(self) -> str | None:
        """Whom all that are up follow."""
        said = {self._leader_of(name) for name in self.up}
        found = said.pop() if len(said) == 1 else None
        return found if found in self.up else None

    def wait_for_leader(self) -> str:
        wait_until(lambda: self.leader() is not None, f"{[*self.up]} have a leader", LEADS_S)
        found = self.leader()
        return found if found is not None else self.wait_for_leader()

    def lead(self, *names: str) -> str:
        """One of these leads, and acknowledges."""
        for _ in range(10):
            leader = self.wait_for_leader()
            if leader in names:
                self.wait_for_acks(50)
                return leader
            self.clients.ask("transfer", leader, names[0], str(self.up[leader].ends().term))
        raise AssertionError(f"none of {names} leads: {leader}")

    def kill_leader(self, *names: str, alone: bool = False) -> None:
        """It leads before, another one after; then it follows.

        If it is `alone` the others are killed before, and it has entries then that nobody else ever saw.
        """
        gone = self.lead(*names)
        others = [name for name in self.peers if name != gone] if alone else []
        for name in others:
            self.up.pop(name).kill()
        if alone:
            wait_until(lambda: self.up[gone].has_uncommitted, f"{gone} has what no other has")
        self.up.pop(gone).kill()
        self.start(*others)
        self.wait_for_leader()
        self.wait_for_acks(50)
        self.start(gone)
        leader = self.wait_for_leader()
        end_index = self.up[leader].ends().end_index
        wait_until(lambda: self.up[gone].ends().end_index >= end_index, f"{gone} has caught up", LEADS_S)

    # -- what it holds ------------------------------------------------------------------------------

    def wait_for_acks(self, more: int) -> None:
        wanted = int(self.clients.ask("acked")[0]) + more
        wait_until(lambda: int(self.clients.ask("acked")[0]) >= wanted, f"{more} more acks", LEADS_S)

    def halt(self) -> dict[int, bytes]:
        """What was acknowledged: body by index.  All members have the same log then, and all of it is committed."""
        pairs = [word.split("=") for word in self.clients.ask("halt")]
        leader = self.up[self.wait_for_leader()]
        index, _, _ = leader.append(b"last")
        for name, node in self.up.items():
            wait_until(lambda node=node: node.ends().committed_index == index, f"{name} level")  # type: ignore[misc]
        acked = {int(index): body.encode() for index, body in pairs}
        assert len(acked) == len(pairs), "two bodies were acknowledged at one index"
        return acked | {index: b"last"}

    def entries(self, name: str) -> list[LogEntry]:
        directory = self.directory / f"dledger-{name}"
        store = EntryStore(EntryStoreOptions(directory, (), DATA_FILE_BYTES, INDEX_FILE_BYTES))
        found = all_entries(store)
        store.close()
        return found


@pytest.fixture(params=[("n2",), ("n1", "n2")], ids=["one stock node", "two stock nodes"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path, request.param)
    yield made
    made.close()


def test_either_kind_leads_is_handed_over_to_and_is_killed_and_no_acknowledged_entry_is_lost(
    group: Group,
) -> None:
    stock = group.stock
    ours = tuple(name for name in group.peers if name not in stock)
    group.wait_for_leader()
    group.clients.ask("load", str(CLIENT_THREADS))
    group.lead(*stock)
    group.lead(*ours)
    group.kill_leader(*ours, alone=len(stock) == 1)
    group.kill_leader(*stock)
    acked = group.halt()
    for node in group.up.values():
        node.stop()
    logs = {name: group.entries(name) for name in group.peers}
    assert logs["n0"] == logs["n1"] == logs["n2"]
    assert {entry.index: entry.body for entry in logs["n0"] if entry.index in acked} == acked
    assert len(acked) > 200


def test_a_stock_leader_gives_a_damaged_entry_and_a_stock_follower_does_not(tmp_path: Path) -> None:
    """Then the operator hands over to it."""
    group = Group(tmp_path, ("n1", "n2"))
    try:
        group.wait_for_leader()
        group.clients.ask("load", str(CLIENT_THREADS))
        group.lead("n1", "n2")
        group.up.pop("n0").stop()
        entries = {entry.index: entry for entry in group.entries("n0")}
        for index in (5, 40):
            _flip_in_head(tmp_path, entries[index])
        group.start("n0")
        group.wait_for_leader()
        _mended(group, entries, 5, 40)
        group.lead("n0")
        _flip_in_head(tmp_path, entries[7])
        group.up["n0"].ask("damaged", "7")
        errors = tmp_path / "home-n0" / "err"
        wait_until(lambda: "only while it leads" in errors.read_text(), "the operator is told", LEADS_S)
        group.lead("n1", "n2")
        _mended(group, entries, 7)
        group.halt()
        for node in group.up.values():
            node.stop()
        assert group.entries("n0") == group.entries("n1") == group.entries("n2")
    finally:
        group.close()


def _flip_in_head(directory: Path, entry: LogEntry) -> None:
    """Stock nodes sum no bodies: what flips there nobody can tell."""
    start = entry.position // DATA_FILE_BYTES * DATA_FILE_BYTES
    flip(directory / "dledger-n0" / "data" / f"{start:020d}", entry.position - start + 31)


def _mended(group: Group, entries: dict[int, LogEntry], *indexes: int) -> None:
    node = group.up["n0"]
    node.ask("damaged", *map(str, indexes))

    def sound(index: int) -> bool:
        try:
            return node.get(index) == entries[index]
        except AssertionError:
            return False

    for index in indexes:
        wait_until(lambda index=index: sound(index), f"entry {index} is mended", LEADS_S)  # type: ignore[misc]
