"""The route table by itself: no socket, and a clock that the test turns."""

import pytest

from haservice.dledger.election import FORCED_TERMS
from haservice.errors import RequestError
from haservice.nameserver.epochs import SETTLED_S, KnownEpoch
from haservice.nameserver.registration import BrokerAnnouncement, Master, Registered
from haservice.nameserver.route_table import RouteTable
from haservice.nameserver.topic_queues import QueuesOfTopic
from haservice.remoting.bodies.clients import DataVersion
from haservice.replication.lineage.epochs import PROMOTION_STEP

V1 = DataVersion(timestamp=1_700_000_000_000, counter=1)
V2 = DataVersion(timestamp=1_700_000_000_500, counter=2)
FOUR = QueuesOfTopic(read=4, write=4, perm=6, sys_flag=0)
EIGHT = QueuesOfTopic(read=8, write=8, perm=6, sys_flag=0)
MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> RouteTable:
    return RouteTable(clock)


def master(
    addr: str = MASTER,
    name: str = "broker-a",
    cluster: str = "C",
    version: DataVersion | None = V1,
    **topics: QueuesOfTopic,
) -> BrokerAnnouncement:
    ha = addr.replace(":10911", ":10912")
    return BrokerAnnouncement(cluster, name, 0, addr, ha, version, topics or {"T": FOUR})


def slave(
    addr: str = SLAVE, broker_id: int = 1, version: DataVersion | None = V1, **topics: QueuesOfTopic
) -> BrokerAnnouncement:
    ha = addr.replace(":10911", ":10912")
    return BrokerAnnouncement("C", "broker-a", broker_id, addr, ha, version, topics or {"T": FOUR})


def settle(table: RouteTable, clock: Clock, told: BrokerAnnouncement, channel: str) -> None:
    """The master of an epoch that stands for a minute, and that nobody speaks against."""
    table.register(told, channel)
    clock.now += SETTLED_S
    table.register(told, channel)


def addrs(table: RouteTable, topic: str = "T") -> dict[str, dict[int, str]]:
    route = table.route(topic)
    return {broker.broker_name: broker.broker_addrs for broker in route.broker_datas} if route else {}


def queue_names(table: RouteTable, topic: str = "T") -> list[str]:
    route = table.route(topic)
    return [queue.broker_name for queue in route.queue_datas] if route else []


# ---- registration


def test_a_master_brings_its_topics(table: RouteTable) -> None:
    assert table.register(master(T=FOUR, U=EIGHT), "m") == Registered(Master(), new=True)
    assert addrs(table) == {"broker-a": {0: MASTER}}
    route = table.route("U")
    assert route is not None
    (queues,) = route.queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (
        "broker-a",
        8,
        8,
        6,
    )
    assert table.topics() == ["T", "U"]
    assert table.route("V") is None


def test_a_slave_brings_no_topics_and_is_told_its_living_master(table: RouteTable) -> None:
    assert table.register(slave(), "s").master == Master()
    assert table.topics() == []
    table.register(master(), "m")
    assert table.register(slave(Z=FOUR, version=V2), "s").master == Master(MASTER, "10.0.0.1:10912")
    assert table.topics() == ["T"]
    assert addrs(table) == {"broker-a": {0: MASTER, 1: SLAVE}}
    assert table.register(master(), "m").master == Master()


def test_topics_are_updated_only_with_another_data_version(table: RouteTable) -> None:
    table.register(master(T=FOUR), "m")
    table.register(master(T=EIGHT, U=FOUR), "m")
    assert table.topics() == ["T"]
    table.register(master(T=EIGHT, U=FOUR, version=V2), "m")
    assert table.topics() == ["T", "U"]
    assert table.route("T").queue_datas[0].read_queue_nums == 8  # type: ignore[union-attr]


def test_a_topic_that_is_no_longer_named_stays(table: RouteTable) -> None:
    table.register(master(T=FOUR, U=FOUR), "m")
    table.register(master(U=FOUR, version=V2), "m")
    assert table.topics() == ["T", "U"]


def test_a_registration_without_a_table_changes_no_topics(table: RouteTable) -> None:
    table.register(master(T=FOUR), "m")
    table.register(master(version=V2)._replace(topics=None), "m")
    assert table.topics() == ["T"]


def test_a_slave_that_became_the_master_keeps_one_id(table: RouteTable) -> None:
    table.register(master(), "m")
    table.register(slave(), "s")
    table.channel_closed("m")
    table.register(master(addr=SLAVE), "s")
    assert addrs(table) == {"broker-a": {0: SLAVE}}


def test_a_master_that_moves_is_noticed_and_brings_its_topics(table: RouteTable) -> None:
    table.register(master(), "m")
    registered = table.register(master(addr=SLAVE, T=FOUR, U=FOUR), "s")
    assert registered.replaced_addr == MASTER
    assert not registered.new
    assert table.topics() == ["T", "U"]
    table.channel_closed("m")
    assert addrs(table) == {"broker-a": {0: SLAVE}}


def test_a_broker_that_was_renamed_leaves_its_old_name(table: RouteTable) -> None:
    table.register(master(), "m")
    table.register(master(name="broker-b"), "m")
    assert addrs(table) == {"broker-b": {0: MASTER}}
    assert table.clusters() == {"C": ["broker-b"]}


def test_a_name_moves_to_its_masters_cluster(table: RouteTable) -> None:
    table.register(master(cluster="C"), "m")
    table.register(master(cluster="D"), "m")
    assert table.clusters() == {"D": ["broker-a"]}


def test_one_name_in_two_clusters_is_told_and_listed_with_both(table: RouteTable, clock: Clock) -> None:
    assert table.register(master(), "m").other_clusters == ()
    assert table.register(master(SLAVE, cluster="D"), "n").other_clusters == ("C",)
    assert table.clusters() == {"C": ["broker-a"], "D": ["broker-a"]}
    assert table.register(master(), "m").other_clusters == ("D",)
    clock.now += 60
    table.register(master(), "m")
    clock.now += 100  # the other has stopped
    table.expire()
    assert table.register(master(), "m").other_clusters == ()
    assert table.clusters() == {"C": ["broker-a"]}


def test_two_names_share_a_topic(table: RouteTable) -> None:
    table.register(master(), "a")
    table.register(master(addr="10.0.0.9:10911", name="broker-b"), "b")
    assert queue_names(table) == ["broker-a", "broker-b"]
    table.channel_closed("a")
    assert queue_names(table) == ["broker-b"]


def test_filter_servers_are_kept_until_an_empty_list_removes_them(table: RouteTable) -> None:
    table.register(master()._replace(filter_servers=["10.0.0.1:1"]), "m")
    table.register(master(), "m")
    assert table.route("T").filter_server_table == {MASTER: ["10.0.0.1:1"]}  # type: ignore[union-attr]
    table.register(master()._replace(filter_servers=[]), "m")
    assert table.route("T").filter_server_table == {}  # type: ignore[union-attr]


# ---- going


def test_unregistering_takes_the_last_id_and_with_it_the_queues(table: RouteTable) -> None:
    table.register(master(), "m")
    table.register(slave(), "s")
    assert table.unregister("broker-a", MASTER, 0)
    assert addrs(table) == {"broker-a": {1: SLAVE}}
    assert table.register(slave(), "s").master == Master()
    assert table.unregister("broker-a", SLAVE, 1)
    assert table.topics() == []
    assert table.clusters() == {}
    assert not table.unregister("broker-a", SLAVE, 1)


def test_an_old_masters_farewell_does_not_remove_the_new_one(table: RouteTable) -> None:
    table.register(master(), "m")
    table.register(master(addr=SLAVE), "s")
    table.unregister("broker-a", MASTER, 0)
    assert addrs(table) == {"broker-a": {0: SLAVE}}


@pytest.mark.parametrize(("name", "broker_id"), [("broker-a", 1), ("broker-b", 0)])
def test_a_farewell_with_another_id_leaves_no_ghost_in_the_routes(
    table: RouteTable, clock: Clock, name: str, broker_id: int
) -> None:
    table.register(master(), "m")
    assert not table.unregister(name, MASTER, broker_id)
    assert addrs(table) == {"broker-a": {0: MASTER}}
    clock.now += 121
    assert table.expire() == [(MASTER, "m")]
    assert addrs(table) == {}


def test_a_broker_goes_with_the_connection_of_its_latest_registration(table: RouteTable) -> None:
    table.register(master(), "old")
    table.register(master(), "new")
    assert table.channel_closed("old") == []
    assert addrs(table) == {"broker-a": {0: MASTER}}
    assert table.channel_closed("new") == [MASTER]
    assert table.route("T") is None
    assert table.channel_closed("new") == []


def test_while_the_master_is_gone_the_slave_keeps_the_queues_with_their_permission(table: RouteTable) -> None:
    table.register(master(), "m")
    table.register(slave(), "s")
    table.channel_closed("m")
    assert addrs(table) == {"broker-a": {1: SLAVE}}
    assert table.route("T").queue_datas[0].perm == 6  # type: ignore[union-attr]


def test_a_silent_broker_expires_after_120_seconds(table: RouteTable, clock: Clock) -> None:
    table.register(master(), "m")
    table.register(slave(), "s")
    clock.now += 100
    table.register(slave(), "s")
    clock.now += 20
    assert table.expire() == []
    clock.now += 0.1
    assert table.expire() == [(MASTER, "m")]
    assert addrs(table) == {"broker-a": {1: SLAVE}}
    assert table.expire() == []
    assert table.channel_closed("m") == []


def test_an_unchanged_data_version_is_a_sign_of_life_and_a_changed_one_is_not(
    table: RouteTable, clock: Clock
) -> None:
    assert table.data_version(MASTER, V1) == (True, None)
    table.register(master(), "m")
    clock.now += 100
    assert table.data_version(MASTER, V2) == (True, V1)
    assert table.data_version(MASTER, V1) == (False, V1)
    clock.now += 100
    assert table.expire() == []
    assert table.data_version(MASTER, V2) == (True, V1)
    clock.now += 21
    assert table.expire() == [(MASTER, "m")]


# ---- questions and changes


def test_cluster_information(table: RouteTable) -> None:
    table.register(slave(), "s")
    table.register(master(), "m")
    table.register(master(addr="10.0.0.9:10911", name="broker-b", cluster="D", U=FOUR), "b")
    info = table.cluster_info()
    assert info.cluster_addr_table == {"C": ["broker-a"], "D": ["broker-b"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: MASTER, 1: SLAVE}
    assert table.topics_of_cluster("D") == ["U"]
    assert table.topics_of_cluster("nowhere") == []
    assert table.some_addr() == MASTER


def test_write_permission_is_wiped_and_given_back(table: RouteTable) -> None:
    table.register(master(T=FOUR, U=FOUR), "m")
    assert table.wipe_write_perm("broker-a") == 2
    assert table.route("T").queue_datas[0].perm == 4  # type: ignore[union-attr]
    table.register(master(T=FOUR, U=FOUR), "m")
    assert table.route("T").queue_datas[0].perm == 4  # type: ignore[union-attr]
    assert table.add_write_perm("broker-a") == 2
    assert table.route("T").queue_datas[0].perm == 6  # type: ignore[union-attr]
    table.wipe_write_perm("broker-a")
    table.register(master(T=FOUR, U=FOUR, version=V2), "m")
    assert table.route("T").queue_datas[0].perm == 6  # type: ignore[union-attr]
    assert table.wipe_write_perm("nobody") == 0


def test_a_topic_is_deleted_everywhere_or_on_one_cluster(table: RouteTable) -> None:
    table.register(master(), "a")
    table.register(master(addr="10.0.0.9:10911", name="broker-b", cluster="D"), "b")
    table.delete_topic("T", "D")
    assert queue_names(table) == ["broker-a"]
    table.delete_topic("T", "nowhere")
    assert queue_names(table) == ["broker-a"]
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.route("T") is None


# ---- bounds


def test_a_hostile_registrar_is_bounded(clock: Clock) -> None:
    table = RouteTable(clock, brokers_max=2, queue_entries_max=3)
    table.register(master(T=FOUR, U=FOUR), "m")
    with pytest.raises(RequestError, match="it knows 2 topics of brokers, 2 more of broker-b are refused"):
        table.register(master(addr="10.0.0.9:1", name="broker-b", T=FOUR, U=FOUR), "x")
    assert addrs(table) == {"broker-a": {0: MASTER}}
    table.register(slave(), "s")
    with pytest.raises(RequestError, match="it knows 2 brokers"):
        table.register(slave(addr="10.0.0.9:1", broker_id=2), "x")
    table.register(master(T=EIGHT, U=EIGHT, V=EIGHT, version=V2), "m")
    table.channel_closed("m")
    table.channel_closed("s")
    table.register(master(addr="10.0.0.9:1", name="broker-b", A=FOUR, B=FOUR, C=FOUR), "x")
    assert table.topics() == ["A", "B", "C"]


@pytest.mark.parametrize(
    "told",
    [
        master(name=""),
        master(name="a\nb"),
        master(cluster="x" * 256),
        master()._replace(broker_id=-1),
        master()._replace(broker_id=2**63),
        master(T=FOUR._replace(read=-1)),
        master(T=QueuesOfTopic(2**31 - 1, 4, 6, 0)),
        master()._replace(filter_servers=["f"] * 101),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(table: RouteTable, told: BrokerAnnouncement) -> None:
    with pytest.raises(RequestError):
        table.register(told, "x")
    assert table.clusters() == {}
    assert table.topics() == []


# ---- epochs: which of two masters is the newer one

NEW_MASTER = SLAVE


def test_an_old_master_does_not_get_its_route_back(table: RouteTable) -> None:
    table.register(master()._replace(epoch=1), "a")
    table.register(master(addr=NEW_MASTER)._replace(epoch=2), "b")
    refused = table.register(master()._replace(epoch=1), "a")
    assert refused.newer == KnownEpoch(2, NEW_MASTER)
    assert addrs(table) == {"broker-a": {0: NEW_MASTER}}
    # As a slave it is welcome, and finds the newer one.
    welcome = table.register(slave(addr=MASTER)._replace(epoch=2), "a")
    assert (welcome.newer, welcome.master.addr) == (None, NEW_MASTER)
    assert addrs(table) == {"broker-a": {0: NEW_MASTER, 1: MASTER}}


def test_a_newer_master_that_is_gone_is_remembered(table: RouteTable) -> None:
    """It was promoted: it had registered as a slave before, and is away for a restart."""
    table.register(slave(), "s")
    table.channel_closed("s")
    table.register(master(addr=NEW_MASTER)._replace(epoch=2), "b")
    table.channel_closed("b")
    assert table.register(master()._replace(epoch=1), "a").newer == KnownEpoch(2, NEW_MASTER)
    assert addrs(table) == {}
    # The next epoch is newer than what is remembered.
    assert table.register(master()._replace(epoch=3), "a").newer is None
    assert addrs(table) == {"broker-a": {0: MASTER}}


def test_of_two_masters_with_one_number_the_first_keeps_the_route_while_it_lives(table: RouteTable) -> None:
    table.register(master()._replace(epoch=2), "a")
    assert table.register(master(addr=NEW_MASTER)._replace(epoch=2), "b").newer == KnownEpoch(2, MASTER)
    assert addrs(table) == {"broker-a": {0: MASTER}}
    table.channel_closed("a")
    assert table.register(master(addr=NEW_MASTER)._replace(epoch=2), "b").newer is None
    assert addrs(table) == {"broker-a": {0: NEW_MASTER}}


@pytest.mark.parametrize(("first", "second"), [(2000, 2001), (2001, 2000)])
def test_of_two_masters_promoted_beside_each_other_the_first_keeps_the_route_while_it_lives(
    table: RouteTable, first: int, second: int
) -> None:
    """A restart in between makes neither the newer one."""
    table.register(master()._replace(epoch=first), "a")
    assert table.register(master(addr=NEW_MASTER)._replace(epoch=second), "b").newer == KnownEpoch(
        first, MASTER
    )
    assert addrs(table) == {"broker-a": {0: MASTER}}
    table.channel_closed("a")
    assert table.register(master(addr=NEW_MASTER)._replace(epoch=second), "b").newer is None
    assert addrs(table) == {"broker-a": {0: NEW_MASTER}}
    assert table.register(master()._replace(epoch=3000), "a").newer is None
    assert addrs(table) == {"broker-a": {0: MASTER}}


def test_the_newest_master_may_come_back_with_another_store(table: RouteTable) -> None:
    table.register(master()._replace(epoch=5), "a")
    assert table.register(master()._replace(epoch=1), "a").newer is None
    assert addrs(table) == {"broker-a": {0: MASTER}}


def test_stock_brokers_know_no_epochs_and_are_treated_as_ever(table: RouteTable) -> None:
    table.register(master(), "a")
    assert table.register(master(addr=NEW_MASTER), "b") == Registered(
        Master(), new=False, replaced_addr=MASTER
    )
    table.register(master()._replace(epoch=2), "a")
    # A stock broker that takes over does so, and what was known of epochs is of another time.
    assert table.register(master(addr=NEW_MASTER), "b").newer is None
    assert addrs(table) == {"broker-a": {0: NEW_MASTER}}
    assert table.register(master()._replace(epoch=1), "a").newer is None


def test_a_slave_is_told_of_the_newest_epoch_that_was_heard_of(table: RouteTable) -> None:
    table.register(master()._replace(epoch=4), "a")
    told = table.register(slave()._replace(epoch=3), "s")
    assert (told.newer, told.master.addr) == (KnownEpoch(4, MASTER), MASTER)
    assert addrs(table) == {"broker-a": {0: MASTER, 1: SLAVE}}


def test_the_newest_epoch_is_told_whoever_has_taken_its_place(table: RouteTable, clock: Clock) -> None:
    assert table.newest_epoch("broker-a") is None
    settle(table, clock, master()._replace(epoch=5), "a")
    table.channel_closed("a")
    assert table.newest_epoch("broker-a") == KnownEpoch(5, MASTER)
    # With an empty store, or because it could ask nobody.
    table.register(master()._replace(epoch=1), "a")
    assert table.newest_epoch("broker-a") == KnownEpoch(5, MASTER)
    table.channel_closed("a")
    table.register(master(addr=NEW_MASTER)._replace(epoch=5), "b")
    assert table.newest_epoch("broker-a") == KnownEpoch(5, MASTER)
    table.register(master(addr=NEW_MASTER)._replace(epoch=6), "b")
    assert table.newest_epoch("broker-a") == KnownEpoch(6, NEW_MASTER)
    settle(table, clock, master(), "a")  # a stock broker
    assert table.newest_epoch("broker-a") is None


def test_a_number_beyond_belief_takes_no_route_from_a_master(table: RouteTable, clock: Clock) -> None:
    settle(table, clock, master()._replace(epoch=3), "a")
    for lives in (True, False):
        with pytest.raises(
            RequestError, match=r"epoch 10000000 .* not plausible: .* is 3, of 10.0.0.1:10911"
        ):
            table.register(master(addr=NEW_MASTER)._replace(epoch=10**7), "b")
        assert addrs(table) == ({"broker-a": {0: MASTER}} if lives else {})
        table.channel_closed("a")
    # A thousand promotions that the nameserver missed are believed.
    assert table.register(master(addr=NEW_MASTER)._replace(epoch=10**6), "b").newer is None


@pytest.mark.parametrize(
    "bad",
    ["", "a\nb", "t" * 256],
    ids=["empty", "not printable", "too long"],
)
def test_a_topic_whose_name_cannot_be_is_left_out_and_its_broker_is_known(
    table: RouteTable, bad: str
) -> None:
    table.register(master(T=FOUR, **{bad: FOUR}), "a")
    assert addrs(table) == {"broker-a": {0: MASTER}}
    assert table.topics() == ["T"]


def test_a_member_that_leads_its_group_by_force_has_a_route(table: RouteTable, clock: Clock) -> None:
    """Its term is far above the last leader's, and there were elections between that nobody registered from."""
    settle(table, clock, master()._replace(epoch=5 * PROMOTION_STEP), "a")
    table.channel_closed("a")
    forced = (5 + 400 + FORCED_TERMS) * PROMOTION_STEP
    assert table.register(master(addr=NEW_MASTER)._replace(epoch=forced), "b").newer is None
    assert addrs(table) == {"broker-a": {0: NEW_MASTER}}


def test_a_number_beyond_belief_is_forgotten_with_the_stranger_who_came_first(table: RouteTable) -> None:
    table.register(master(addr=NEW_MASTER)._replace(epoch=10**12), "b")
    assert table.register(master()._replace(epoch=3), "a").newer == KnownEpoch(10**12, NEW_MASTER)
    table.channel_closed("b")
    assert table.register(master()._replace(epoch=3), "a").newer is None
    assert table.newest_epoch("broker-a") == KnownEpoch(3, MASTER)


def test_epochs_are_remembered_of_a_bounded_number_of_names(clock: Clock) -> None:
    table = RouteTable(clock, brokers_max=2)
    for number in range(4):
        settle(table, clock, master(addr=f"10.0.0.{number}:1", name=f"b{number}")._replace(epoch=9), "x")
        table.channel_closed("x")
    assert table.newest_epoch("b0") is None
    assert table.newest_epoch("b3") == KnownEpoch(9, "10.0.0.3:1")
    assert table.register(master(addr="10.0.9.9:1", name="b0")._replace(epoch=1), "y").newer is None
    table.channel_closed("y")
    assert table.register(master(addr="10.0.9.9:1", name="b3")._replace(epoch=1), "y").newer is not None


# ---- strangers: whose number outlives his registration

STRANGER = "10.6.6.6:1"


def a_stranger(epoch: int | None = 2000, addr: str = STRANGER) -> BrokerAnnouncement:
    return master(addr)._replace(epoch=epoch, cluster="X")


@pytest.mark.parametrize("epoch", [2000, None])
def test_a_stranger_who_leaves_gives_the_route_back_at_once(table: RouteTable, epoch: int | None) -> None:
    restored: list[tuple[str, str]] = []
    table.on_restored = lambda name, addr: restored.append((name, addr))
    table.register(master()._replace(epoch=1000), "a")
    table.register(slave()._replace(epoch=1000), "s")
    table.register(a_stranger(epoch), "x")
    assert addrs(table) == {"broker-a": {0: STRANGER, 1: SLAVE}}
    table.channel_closed("x")
    assert addrs(table) == {"broker-a": {0: MASTER, 1: SLAVE}}
    assert restored == [("broker-a", MASTER)]
    assert table.clusters() == {"C": ["broker-a"]}
    assert table.newest_epoch("broker-a") == KnownEpoch(1000, MASTER)
    assert table.register(slave()._replace(epoch=1000), "s") == Registered(
        Master(MASTER, "10.0.0.1:10912"), new=False
    )
    # Its topics are taken again, for the stranger may have told others.
    assert table.data_version(MASTER, V1)[0] is True


@pytest.mark.parametrize("end", ["unregistered", "silent", "as a slave"])
def test_a_strangers_number_goes_however_his_registration_ends(
    table: RouteTable, clock: Clock, end: str
) -> None:
    table.register(a_stranger(), "x")
    for _ in range(20):  # the real one speaks against him all the time
        assert table.register(master()._replace(epoch=1000), "a").newer == KnownEpoch(2000, STRANGER)
        clock.now += 5
        table.register(a_stranger(), "x")
    if end == "unregistered":
        assert table.unregister("broker-a", STRANGER, 0)
    elif end == "silent":
        clock.now += 121
        table.expire()
    else:
        table.register(slave(STRANGER, 7)._replace(epoch=1999), "x")
    assert table.newest_epoch("broker-a") is None
    assert table.register(master()._replace(epoch=1000), "a").newer is None
    assert addrs(table)["broker-a"][0] == MASTER


def test_a_stranger_who_comes_again_with_more_is_one_still(table: RouteTable) -> None:
    table.register(master()._replace(epoch=1000), "a")
    for epoch in (2000, 3000, 4000):
        table.register(a_stranger(epoch), "x")
        table.channel_closed("x")
    assert addrs(table) == {"broker-a": {0: MASTER}}


def test_a_slave_of_the_strangers_upholds_his_number_only_while_it_is_there(
    table: RouteTable, clock: Clock
) -> None:
    """Another pair of the same name has the wrong nameserver."""
    settle(table, clock, master()._replace(epoch=1000), "a")
    table.register(a_stranger(), "x")
    theirs = slave("10.6.6.7:1", 7)._replace(epoch=2000)
    table.register(theirs, "y")
    table.channel_closed("x")
    assert table.register(master()._replace(epoch=1000), "a").newer == KnownEpoch(2000, STRANGER)
    table.channel_closed("y")
    assert addrs(table) == {"broker-a": {0: MASTER}}
    # Nor is it known by that: promoted over there, it leaves no trace either.
    table.register(a_stranger(3000, "10.6.6.7:1"), "y")
    table.channel_closed("y")
    assert addrs(table) == {"broker-a": {0: MASTER}}


@pytest.mark.parametrize("taken", [MASTER, SLAVE])
def test_who_registers_by_the_address_of_another_is_a_stranger(
    table: RouteTable, clock: Clock, taken: str
) -> None:
    settle(table, clock, master()._replace(epoch=1000), "a")
    table.register(slave()._replace(epoch=1000), "s")
    for _ in range(3):
        table.register(a_stranger(addr=taken), "x")
    table.channel_closed("x")
    assert table.newest_epoch("broker-a") != KnownEpoch(2000, taken)
    assert table.register(master()._replace(epoch=1000), "a").newer is None
    assert addrs(table)["broker-a"][0] == MASTER


def test_a_deposed_master_stays_out_while_a_stranger_comes_and_goes(table: RouteTable) -> None:
    table.register(slave()._replace(epoch=1000), "s")
    table.channel_closed("s")
    table.register(master()._replace(epoch=1000), "a")
    # It is cut off from its successor, and does not hear of it.
    table.register(master(addr=NEW_MASTER)._replace(epoch=2000), "b")
    for epoch in (3000, None):
        table.register(a_stranger(epoch), "x")
        table.channel_closed("x")
        assert addrs(table) == {"broker-a": {0: NEW_MASTER}}
    table.channel_closed("b")
    assert addrs(table) == {}
    for told in (a_stranger(3000), a_stranger(None), a_stranger(1, NEW_MASTER), a_stranger(None, NEW_MASTER)):
        table.register(told, "x")
        table.channel_closed("x")
        assert table.register(master()._replace(epoch=1000), "a").newer == KnownEpoch(2000, NEW_MASTER)
    assert table.register(master(addr=NEW_MASTER)._replace(epoch=2000), "b").newer is None


def test_a_nameserver_that_was_started_later_remembers_who_stood_for_a_minute(
    table: RouteTable, clock: Clock
) -> None:
    settle(table, clock, master(addr=NEW_MASTER)._replace(epoch=2000), "b")
    table.channel_closed("b")
    assert table.register(master()._replace(epoch=1000), "a").newer == KnownEpoch(2000, NEW_MASTER)


def test_an_epoch_counts_while_a_slave_tells_of_it(table: RouteTable) -> None:
    table.register(master(addr=NEW_MASTER)._replace(epoch=2000), "b")
    table.register(slave("10.0.0.3:10911")._replace(epoch=2000), "c")
    table.channel_closed("b")
    assert table.register(master()._replace(epoch=1000), "a").newer == KnownEpoch(2000, NEW_MASTER)
    table.channel_closed("c")
    assert table.register(master()._replace(epoch=1000), "a").newer is None


def test_a_master_that_says_goodbye_while_a_stranger_has_its_place_is_not_put_back(table: RouteTable) -> None:
    table.register(master()._replace(epoch=1000), "a")
    table.register(a_stranger(), "x")
    assert not table.unregister("broker-a", MASTER, 0)
    table.channel_closed("x")
    assert addrs(table) == {}
