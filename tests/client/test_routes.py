"""Routes: queues in the order of Java's clients, and when the nameservers are asked again."""

from __future__ import annotations

import dataclasses

import pytest

from haservice.client import MessageQueue, RouteUnknown
from haservice.client.routes import ClientRoutes, TopicRoute, order_counts
from haservice.remoting.bodies.clients import BrokerData, QueueData, TopicRouteData
from tests.client.fakes import route

X, Y, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
INTERVAL_S, POLL_S = 30.0, 0.1


def of(queues: int, topic: str = "T", **addrs: dict[int, str]) -> TopicRoute:
    return TopicRoute.of(topic, route(queues, **addrs))


def test_queues_stand_by_broker_name_and_number() -> None:
    found = of(2, b={0: Y}, a={0: X})
    assert [(queue.broker_name, queue.queue_id) for queue in found.write_queues] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]
    assert found.read_queues == found.write_queues


def test_permissions_and_brokers_without_addresses_take_queues_away() -> None:
    data = TopicRouteData(
        [QueueData("a", 3, 2, 4), QueueData("b", 3, 2, 2), QueueData("gone", 3, 3, 6)],
        [BrokerData("a", "C", {0: X}), BrokerData("b", "C", {0: Y})],
    )
    found = TopicRoute.of("T", data)
    assert {queue.broker_name for queue in found.write_queues} == {"b"}
    assert len(found.write_queues) == 2
    assert {queue.broker_name for queue in found.read_queues} == {"a"}
    assert len(found.read_queues) == 3


def test_a_topic_that_is_not_there_yet_has_four_of_the_templates_queues_and_none_to_read() -> None:
    found = TopicRoute.of("New", route(8, a={0: X}), template=True)
    assert found.write_queues == tuple(MessageQueue("New", "a", number) for number in range(4))
    assert found.read_queues == ()


@pytest.mark.parametrize(
    ("key", "number"),
    [
        # abs(hashCode % 4) of Java: "".hashCode() 0, "a" 97, "order-17" -1207123763, Long 5000000000 705032705.
        ("", 0),
        ("a", 1),
        (7, 3),
        (-7, 3),
        (5_000_000_000, 1),
    ],
)
def test_an_order_key_has_the_queue_that_javas_clients_choose(key: str | int, number: int) -> None:
    assert of(4, a={0: X}).queue_for(key).queue_id == number


def test_an_order_key_keeps_its_queue_while_a_master_is_away() -> None:
    both = of(2, a={0: X}, b={0: Y})
    without = of(2, a={0: X}, b={1: SLAVE})
    assert [both.queue_for(key) for key in range(8)] == [without.queue_for(key) for key in range(8)]


def test_an_order_configuration_says_which_queues_have_the_order_keys() -> None:
    """As Java's clients: its brokers in its order, whatever queues they have."""
    data = dataclasses.replace(route(8, a={0: X}, b={0: Y}), order_topic_conf="b:1;a:1")
    found = TopicRoute.of("T", data)
    assert [(queue.broker_name, queue.queue_id) for queue in found.write_queues] == [("b", 0), ("a", 0)]
    assert {found.queue_for(f"order-{number}") for number in range(40)} == set(found.write_queues)
    assert len(found.read_queues) == 16
    assert found.own_queues == TopicRoute.of("T", route(8, a={0: X}, b={0: Y})).write_queues


@pytest.mark.parametrize(
    "conf",
    [
        "",
        ";",
        "b",
        "b:",
        "b:x",
        "b:-1",
        "b:0",
        ":2",
        "b:1;b:2",
        "b:65537",
        "b:1e9",
        "b:²",
        "b:1" + "0" * 99,
        "b:000000001" + "0" * 4300,
        ";".join(f"{name}:65536" for name in "bcdef"),
    ],
)
def test_a_malformed_order_configuration_counts_for_nothing(conf: str) -> None:
    data = dataclasses.replace(route(4, b={0: Y}), order_topic_conf=conf)
    assert len(TopicRoute.of("T", data).write_queues) == 4


def test_an_order_configuration_may_leave_a_broker_out_by_its_number() -> None:
    data = dataclasses.replace(route(8, a={0: X}, b={0: Y}), order_topic_conf="a:0;b:3")
    found = TopicRoute.of("T", data)
    assert found.write_queues == tuple(MessageQueue("T", "b", number) for number in range(3))
    assert order_counts("a:0;b:65536") == {"a": 0, "b": 65536}


def test_a_topic_without_queues_to_write_to() -> None:
    with pytest.raises(RouteUnknown, match="has no queue that may be written to"):
        TopicRoute.of("T", TopicRouteData()).queue_for("key")


@pytest.fixture
def table() -> ClientRoutes:
    return ClientRoutes(INTERVAL_S, POLL_S)


def test_a_route_is_asked_for_once_in_an_interval(table: ClientRoutes) -> None:
    assert table.next_s() is None
    table.put(of(1, a={0: X}), 100.0)
    assert table.next_s() == 130.0
    assert table.due(129.9) == []
    assert table.due(130.0) == ["T"]
    table.asked("T", 130.0)
    assert table.next_s() == 160.0


def test_a_doubted_master_is_asked_for_at_once_and_then_often_until_there_is_another(
    table: ClientRoutes,
) -> None:
    table.put(of(1, a={0: X}), 100.0)
    assert table.doubt("a", X, 105.0)
    assert not table.doubt("a", X, 105.0)  # known already
    assert table.due(105.0) == ["T"]
    table.put(of(1, a={0: X}), 105.0)  # the nameserver has not heard of it
    assert table.next_s() == pytest.approx(105.0 + POLL_S)
    table.put(of(1, a={1: SLAVE}), 105.1)  # now it has, and there is no other yet
    assert table.next_s() == pytest.approx(105.1 + POLL_S)
    table.put(of(1, a={0: SLAVE}), 105.2)
    assert not table.doubted("a")
    assert table.next_s() == 135.2


def test_a_doubted_master_that_acknowledges_is_trusted_again(table: ClientRoutes) -> None:
    table.put(of(1, a={0: X}), 100.0)
    table.doubt("a", X, 105.0)
    table.trust("a", Y)
    assert table.doubted("a")
    table.trust("a", X)
    assert not table.doubted("a")


def test_a_name_without_a_master_is_watched_though_nobody_doubts_it(table: ClientRoutes) -> None:
    table.put(of(1, a={1: SLAVE}), 100.0)
    assert table.next_s() == pytest.approx(100.0 + POLL_S)


def test_a_doubt_that_the_route_has_answered_already_is_none(table: ClientRoutes) -> None:
    table.put(of(1, a={0: Y}), 100.0)
    assert not table.doubt("a", X, 105.0)
    assert table.next_s() == 130.0


def test_of_many_topics_one_is_watched_and_its_master_is_the_others_too(table: ClientRoutes) -> None:
    for number in range(50):
        table.put(of(1, f"T{number}", a={0: X}), 100.0)
    table.doubt("a", X, 101.0)
    (watched,) = table.due(101.0)
    table.put(of(1, watched, a={0: Y}), 101.0)
    assert table.master("a") == Y
    assert table.due(102.0) == []


def test_a_name_that_stays_without_a_master_is_asked_for_ever_more_seldom(table: ClientRoutes) -> None:
    table.put(of(1, a={1: SLAVE}), 100.0)
    table.put(of(1, a={1: SLAVE}), 200.0)
    assert table.next_s() == pytest.approx(200.0 + 10 * POLL_S)


def test_a_name_that_goes_from_a_route_is_watched_until_it_is_back_or_gone_for_good(
    table: ClientRoutes,
) -> None:
    table.put(of(1, a={0: X}, b={0: Y}), 100.0)
    table.put(of(1, b={0: Y}), 101.0)
    assert table.next_s() == pytest.approx(101.0 + POLL_S)
    table.put(of(1, a={0: X}, b={0: Y}), 102.0)
    assert table.next_s() == 132.0
    table.put(of(1, b={0: Y}), 103.0)
    table.put(of(1, b={0: Y}), 170.0)
    assert table.next_s() == 200.0
