"""What a master does about its role by itself, with peers that say what the test wants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from haservice.broker.peers import Heard
from haservice.broker.refill import PulledBack
from haservice.broker.role_keeper import RoleKeeper
from haservice.broker.roles import NewerMaster
from haservice.deadline import Deadline
from haservice.errors import RequestError
from haservice.remoting.lineage_headers import LineageBody
from haservice.replication.hello import SlaveHello
from haservice.replication.lineage import Epoch, Lineage, LogSpan
from haservice.replication.lineage_file import HandingOver, LineageState, Replica
from haservice.service import Service
from tests.broker.test_roles import ME, OTHER, peer
from tests.support.waiting import wait_until


class Log:
    start = 0

    def __init__(self, end: int = 1000) -> None:
        self.end = end
        self.held: str | None = None

    def hold_appends(self, reason: str | None, holder: str) -> None:
        assert holder == "role-keeper"
        self.held = reason


class World:
    """A keeper, its peers, and what it did."""

    def __init__(self, *epochs: Epoch, hold: dict[str, Replica] | None = None, **options: Any) -> None:
        self.state = LineageState(ME, lineage=Lineage(epochs or (Epoch(1, 0, ME),)))
        self.log = Log()
        self.peers: list[LineageBody] = []
        self.asked: list[set[str]] = []
        self.stepped: list[tuple[NewerMaster, str]] = []
        self.terms: list[str] = []
        self.pulls: list[tuple[str, int, int]] = []
        self.pull_failure = ""
        self.record_at: dict[int, bytes] = {}
        self.following: list[str] = []
        self.term_refused = ""
        self.keeper = RoleKeeper(
            self, lambda: self.state, self.log, self, self._pull, hold=hold or {},
            followers=lambda: self.following, **options,
        )  # fmt: skip

    def ask(self, also: Iterable[str] = ()) -> Heard:
        self.asked.append(set(also))
        return Heard(self.peers, {})

    def read_log(self, addr: str, offset: int, size: int) -> bytes:
        return self.record_at[offset][:size]

    def step_down(self, newer: NewerMaster, heard: Heard, why: str) -> None:
        self.stepped.append((newer, why))

    def begin_term(self, why: str) -> None:
        if self.term_refused:
            raise RequestError(1, self.term_refused)
        self.terms.append(why)
        self.keeper.release()

    def _pull(self, addr: str, begin: int, end: int, peer_start: int) -> PulledBack:
        self.pulls.append((addr, begin, end))
        self.log.end = begin if self.pull_failure else end
        return PulledBack(self.log.end, 1, self.pull_failure)


SLAVE_IN_SYNC = {"s": Replica("s:10911", 1500, 1, True)}


def test_nothing_happens_while_peers_follow() -> None:
    world = World()
    world.peers = [peer("s", (1, 0, ME), end=900)]
    world.keeper.look()
    assert (world.stepped, world.terms, world.pulls, world.log.held) == ([], [], [], None)


def test_a_newer_master_is_given_way_to() -> None:
    world = World()
    world.peers = [peer(OTHER, (1, 0, ME), (2, 800, OTHER), role="SYNC_MASTER")]
    world.keeper.look()
    ((newer, why),) = world.stepped
    assert (newer.epoch, newer.broker_addr) == (2, f"{OTHER}:10911")
    assert "term 2" in why
    assert world.keeper.heard == 2


def test_a_name_servers_word_is_enough_when_the_newer_master_is_silent() -> None:
    world = World()
    world.keeper.told_of(3, "there:10911")
    world.keeper.look()
    assert world.asked == [{"there:10911", ""}]
    assert [newer for newer, _ in world.stepped] == [NewerMaster(3, "there:10911", "")]


def test_the_word_of_yesterday_is_forgotten_in_a_newer_term_of_our_own() -> None:
    world = World(Epoch(1, 0, ME), Epoch(4, 500, ME))
    world.keeper.told_of(3, "there:10911")
    world.keeper.look()
    assert world.stepped == []


def test_a_role_that_cannot_be_written_is_tried_again_at_its_time() -> None:
    """Who fails to step down leaves word of the newer master; that is not news, and the thread rests."""

    class FullDisk(World):
        def step_down(self, newer: NewerMaster, heard: Heard, why: str) -> None:
            super().step_down(newer, heard, why)
            self.keeper.told_of(newer.epoch, newer.broker_addr)

    world = FullDisk()
    world.peers = [peer(OTHER, (1, 0, ME), (1000, 800, OTHER), role="SYNC_MASTER")]
    world.keeper.look()
    world.peers = []
    world.keeper.look()
    assert [newer.epoch for newer, _ in world.stepped] == [1000, 1000]


def test_the_word_of_a_name_server_wakes_the_thread() -> None:
    world = World(period_s=3600.0)
    service = Service("role-keeper", world.keeper)
    service.start()
    try:
        wait_until(lambda: world.asked, "the keeper has looked once")
        world.keeper.told_of(3, "there:10911")
        wait_until(lambda: world.stepped, "the keeper gives way")
    finally:
        assert service.stop(Deadline(10))
    assert service.failed is None


def test_a_held_master_takes_back_what_a_replica_has_and_then_begins_its_term() -> None:
    world = World(hold=SLAVE_IN_SYNC)
    world.keeper.begin_hold()
    assert world.log.held is not None
    assert "s:10911" in world.log.held
    world.keeper.look()
    assert (world.terms, world.keeper.waits) == ([], True)
    world.peers = [peer("s", (1, 0, ME), end=1500)]
    world.keeper.look()
    assert world.pulls == [("s:10911", 1000, 1500)]
    assert len(world.terms) == 1
    assert (world.keeper.waits, world.log.held, world.keeper.held) == (False, None, "")


def test_a_held_master_goes_on_when_its_replica_has_nothing_more() -> None:
    world = World(hold=SLAVE_IN_SYNC)
    world.peers = [peer("s", (1, 0, ME), end=1000)]
    world.keeper.look()
    assert (world.pulls, len(world.terms)) == ([], 1)


def test_a_replica_that_follows_has_been_heard() -> None:
    world = World(hold=SLAVE_IN_SYNC)
    world.following = ["s"]
    world.keeper.look()
    assert len(world.terms) == 1


def test_every_replica_that_was_in_sync_is_waited_for() -> None:
    world = World(hold={**SLAVE_IN_SYNC, "t": Replica("t:10911", 1400, 1, True)})
    world.peers = [peer("s", (1, 0, ME), end=1000)]
    world.keeper.look()
    assert world.terms == []
    assert "t:10911" in world.keeper.held
    assert "start it" in world.keeper.held
    assert "mqadmin failover" in world.keeper.held
    assert "s:10911" not in world.keeper.held


def test_a_pull_that_fails_leaves_the_master_held_and_says_why() -> None:
    world = World(hold=SLAVE_IN_SYNC)
    world.peers = [peer("s", (1, 0, ME), end=1500)]
    world.pull_failure = "other bytes than we"
    world.record_at = {1000: (100).to_bytes(4, "big")}
    world.keeper.look()
    assert world.terms == []
    assert "other bytes than we" in (world.log.held or "")


def test_the_beginning_of_a_record_at_a_replicas_end_is_not_waited_for() -> None:
    world = World(hold=SLAVE_IN_SYNC)
    world.peers = [peer("s", (1, 0, ME), end=1500)]
    world.pull_failure = "the record at 1000 does not end by 1500"
    world.record_at = {1000: (501).to_bytes(4, "big")}
    world.keeper.look()
    assert len(world.terms) == 1


def test_a_term_that_cannot_begin_is_tried_again_and_nothing_is_taken_meanwhile() -> None:
    world = World(hold=SLAVE_IN_SYNC)
    world.following = ["s"]
    world.term_refused = "no space left"
    world.keeper.look()
    assert world.keeper.waits
    assert "no space left" in (world.log.held or "")
    # The slave has told all it has; it may go.
    world.following = []
    world.term_refused = ""
    world.keeper.look()
    assert (len(world.terms), world.keeper.waits, world.log.held) == (1, False, None)


def test_a_held_master_gives_way_like_any_other() -> None:
    world = World(hold=SLAVE_IN_SYNC)
    world.peers = [peer("s", (1, 0, ME), (2, 900, "s"), role="SYNC_MASTER")]
    world.keeper.look()
    assert len(world.stepped) == 1
    assert world.terms == []


def hello(replica_id: str, end: int) -> SlaveHello:
    return SlaveHello(
        replica_id, "broker-a", f"{replica_id}:10911", 4096, LogSpan(0, end), end, 0, "", False, Lineage()
    )


def test_a_slave_ahead_of_a_master_that_lost_nothing_it_knows_of_is_pulled_from_too() -> None:
    world = World()
    world.peers = [peer("s", (1, 0, ME), end=1200)]
    world.keeper.on_ahead(hello("s", 1200))
    world.keeper.look()
    assert world.pulls == [("s:10911", 1000, 1200)]
    assert (world.log.held, world.terms) == (None, [])


SLAVE_IN_DOUBT = HandingOver("s:10911", "s")


def test_a_doubt_ends_with_the_slaves_own_word() -> None:
    world = World()
    undone: list[bool] = []
    world.keeper.doubt(SLAVE_IN_DOUBT, "it is not known", lambda: undone.append(True))
    assert world.keeper.held == "it is not known"
    world.keeper.look()
    assert undone == []
    world.peers = [peer("s", (1, 0, ME), end=1000, changing=True)]
    world.keeper.look()
    assert undone == []
    world.peers = [peer("s", (1, 0, ME), end=1000)]
    world.keeper.look()
    assert (undone, world.keeper.held) == ([True], "")


def test_another_broker_at_the_slaves_address_does_not_end_a_doubt() -> None:
    world = World()
    undone: list[bool] = []
    world.keeper.doubt(SLAVE_IN_DOUBT, "it is not known", lambda: undone.append(True))
    world.peers = [peer("new", (1, 0, ME), end=1000, broker_addr="s:10911")]
    world.keeper.look()
    assert (undone, world.keeper.held) == ([], "it is not known")
    # An operator can: a further term of ours is above whatever that one had.
    world.keeper.release()
    assert world.keeper.held == ""


def test_no_term_begins_in_doubt_whether_another_one_is_the_master() -> None:
    world = World(hold=SLAVE_IN_SYNC)
    world.following = ["s"]
    world.keeper.doubt(HandingOver("t:10911", "t"), "it is not known", lambda: None)
    world.keeper.look()
    assert (world.terms, world.keeper.held) == ([], "it is not known")
    world.peers = [peer("t", (1, 0, ME), end=1000)]
    world.keeper.look()
    assert len(world.terms) == 1


def test_a_master_without_a_number_for_its_term_waits_for_an_operator() -> None:
    world = World(undecided="no number is left")
    world.keeper.begin_hold()
    assert (world.log.held, world.keeper.waits) == ("no number is left", True)
    world.peers = [peer("s", (1, 0, ME), end=1000)]
    world.keeper.look()
    assert (world.terms, world.keeper.held) == ([], "no number is left")
    world.keeper.release()
    assert (world.log.held, world.keeper.waits, world.keeper.held) == (None, False, "")


def test_a_doubt_ends_when_the_slave_is_the_master() -> None:
    world = World()
    undone: list[bool] = []
    world.keeper.doubt(SLAVE_IN_DOUBT, "it is not known", lambda: undone.append(True))
    world.peers = [peer("s", (1, 0, ME), (2, 1000, "s"), role="SYNC_MASTER")]
    world.keeper.look()
    assert len(world.stepped) == 1
    assert undone == []
