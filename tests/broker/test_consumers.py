"""Groups and their members: heartbeats, leaving, expiry, and who is told."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commitlog.kernel.records import java_hash
from haservice.broker.groups.consumers import ClientTable, GroupSubscription, subscription_of
from haservice.broker.pull.consumer_filters import ConsumerFilters
from haservice.configuration.settings import BrokerRole
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from haservice.remoting.command import RemotingCommand
from tests.support.reading_broker import Caller, ReadingBroker
from tests.support.waiting import wait_until

Make = Callable[..., ReadingBroker]


class Peer:
    def __init__(self) -> None:
        self.peer = "127.0.0.1:1"
        self.closed = False
        self.on_close: list[Callable[[Any], None]] = []

    def close(self, reason: str) -> None:
        self.closed = True
        for callback in self.on_close:
            callback(self)


class Told:
    """A ClientTable, and the groups that were told of a change."""

    def __init__(self, filters: Path | None = None) -> None:
        self.told: list[tuple[str, int]] = []
        self.filters = ConsumerFilters(PersistedFile(filters), lambda: 1) if filters else None
        self.table = ClientTable(
            lambda group: self.told.append((group.name, len(group.members))), self.filters
        )

    def state(self, peers: dict[int, list[Peer]], side: int) -> list[Any]:
        """All that the table knows; `peers` on that side stand for their numbers."""
        number_of = {both[side]: number for number, both in peers.items()}
        groups = [
            (
                group.name,
                (group.consume_type, group.message_model, group.consume_from_where),
                {number_of[peer]: client for peer, client in group.members.items()},
                group.subscriptions,
                group.id_list(),
            )
            for group in self.table.consumers.values()
        ]
        producers = {
            name: {number_of[peer]: client for peer, client in members.items()}
            for name, members in self.table.producers.items()
        }
        assert self.filters is not None
        return [groups, producers, {(one.group, one.topic): one for one in self.filters._all()}]

    def news(self) -> list[tuple[str, int]]:
        told, self.told = self.told, []
        return told


def heartbeat(
    client_id: str, topics: dict[str, str] | None = None, *, group: str = "G", version: int = 1
) -> HeartbeatData:
    subscriptions = [
        SubscriptionData(topic=topic, sub_string=tags, sub_version=version)
        for topic, tags in (topics or {"T": "*"}).items()
    ]
    consumer = ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=subscriptions,
    )
    return HeartbeatData(client_id=client_id, consumer_data_set=[consumer], producer_data_set=[])


def test_joining_is_news_and_staying_is_not() -> None:
    told = Told()
    first, second = Peer(), Peer()
    told.table.heartbeat(first, heartbeat("c1"), 0)
    assert told.news() == [("G", 1)]
    told.table.heartbeat(first, heartbeat("c1"), 10)
    assert told.news() == []
    told.table.heartbeat(second, heartbeat("c2"), 10)
    assert told.news() == [("G", 2)]
    assert told.table.consumer_ids("G") == ["c1", "c2"]


def test_the_groups_of_a_topic_are_put_together_once_until_a_subscription_changes() -> None:
    table = Told().table
    first, second = Peer(), Peer()
    table.heartbeat(first, heartbeat("c1", {"T": "*", "U": "*"}), 0)
    table.heartbeat(second, heartbeat("c2", group="H"), 0)
    assert table.subscribers("T") == ["G", "H"]
    assert table.subscribers("U") == ["G"]
    known = table.by_topic()
    table.heartbeat(second, heartbeat("c2", group="H"), 1)
    table.heartbeat(Peer(), heartbeat("c3", group="H"), 1)
    assert table.by_topic() is known
    table.heartbeat(first, heartbeat("c1", {"T": "*", "V": "*"}), 2)
    assert (table.subscribers("U"), table.subscribers("V")) == ([], ["G"])
    first.close("gone")
    assert table.subscribers("T") == ["H"]


def test_leaving_is_news_to_who_stays() -> None:
    told = Told()
    first, second = Peer(), Peer()
    told.table.heartbeat(first, heartbeat("c1"), 0)
    told.table.heartbeat(second, heartbeat("c2"), 0)
    told.news()
    told.table.unregister(first, None, "G")
    assert told.news() == [("G", 1)]
    told.table.unregister(first, "unknown", "unknown")
    second.close("gone")
    assert told.news() == []
    assert told.table.group("G") is None
    assert told.table.consumer_ids("G") == []


def test_a_client_on_two_connections_is_listed_once() -> None:
    told = Told()
    told.table.heartbeat(Peer(), heartbeat("c1"), 0)
    told.table.heartbeat(Peer(), heartbeat("c1"), 0)
    assert told.table.consumer_ids("G") == ["c1"]


def test_topics_that_a_heartbeat_leaves_out_are_dropped_and_new_ones_are_news() -> None:
    told = Told()
    peer = Peer()
    told.table.heartbeat(peer, heartbeat("c1", {"A": "*", "B": "x"}), 0)
    told.news()
    told.table.heartbeat(peer, heartbeat("c1", {"B": "x", "C": "*"}, version=2), 1)
    assert told.news() == [("G", 1)]
    group = told.table.group("G")
    assert group is not None
    assert set(group.subscriptions) == {"B", "C"}


def test_only_a_newer_subscription_replaces_one() -> None:
    told = Told()
    peer = Peer()
    group = None
    for version, tags, wanted in (
        (5, "red", "red"),
        (4, "old", "red"),
        (5, "same", "red"),
        (6, "new", "new"),
    ):
        told.table.heartbeat(peer, heartbeat("c1", {"T": tags}, version=version), 0)
        group = told.table.group("G")
        assert group is not None
        assert group.subscriptions["T"].expression == wanted
    assert told.news() == [("G", 1)]


def test_the_silent_are_dropped_after_120_seconds_and_others_stay() -> None:
    told = Told()
    silent, speaking = Peer(), Peer()
    told.table.heartbeat(silent, heartbeat("c1"), 0)
    told.table.heartbeat(speaking, heartbeat("c2"), 0)
    told.table.heartbeat(speaking, heartbeat("c2"), 100)
    assert told.table.expire(120) == 0
    assert told.table.expire(121) == 1
    assert silent.closed
    assert not speaking.closed
    assert told.table.consumer_ids("G") == ["c2"]
    assert told.table.expire(1000) == 1
    assert told.table.consumers == {}


def test_a_consumer_that_ended_without_a_word_does_not_end_its_neighbours() -> None:
    """Go clients share a connection between the consumers of a process, and never unregister."""
    told = Told()
    peer = Peer()
    told.table.heartbeat(peer, heartbeat("c1", group="ended"), 0)
    told.table.heartbeat(peer, heartbeat("c1", group="alive"), 0)
    told.table.heartbeat(peer, heartbeat("c1", group="alive"), 100)
    assert told.table.expire(130) == 1
    assert not peer.closed
    assert set(told.table.consumers) == {"alive"}


def test_producers_are_known_until_they_leave() -> None:
    told = Told()
    peer = Peer()
    data = HeartbeatData(
        client_id="p1", consumer_data_set=[], producer_data_set=[ProducerData("P"), ProducerData("Q")]
    )
    told.table.heartbeat(peer, data, 0)
    assert set(told.table.producers) == {"P", "Q"}
    told.table.unregister(peer, "P", None)
    assert set(told.table.producers) == {"Q"}
    peer.close("gone")
    assert told.table.producers == {}
    assert told.news() == []


def test_many_heartbeats_of_one_connection_add_one_callback() -> None:
    told = Told()
    peer = Peer()
    for now in range(50):
        told.table.heartbeat(peer, heartbeat("c1"), now)
    assert len(peer.on_close) == 1


@pytest.mark.parametrize(
    ("tags", "codes", "wanted"),
    [
        ("*", [], None),
        ("", [], None),
        ("red || blue", [], {java_hash("red"), java_hash("blue")}),
        ("red", [5], {java_hash("red"), 5}),
        ("||", [7], {7}),
    ],
)
def test_codes_of_a_subscription(tags: str, codes: list[int], wanted: set[int] | None) -> None:
    data = SubscriptionData(topic="T", sub_string=tags, sub_version=3, code_set=codes)
    made = subscription_of(data)
    assert made == GroupSubscription(
        "T", tags or "*", "TAG", 3, None if wanted is None else frozenset(wanted)
    )


# Heartbeats that say what the one before said

SAID = (
    ({"A": "*"}, 1, "TAG"),
    ({"A": "red"}, 2, "TAG"),
    ({"A": "*", "B": "*"}, 1, "TAG"),
    ({"A": "a > 1"}, 3, "SQL92"),
    ({"A": "a > "}, 4, "SQL92"),
)


def said(client: int, group: str, what: int, model: str, producing: bool) -> HeartbeatData:
    topics, version, kind = SAID[what]
    subscriptions = [
        SubscriptionData(topic, expression, kind, version) for topic, expression in topics.items()
    ]
    consumer = ConsumerData(group, message_model=model, subscription_data_set=subscriptions)
    return HeartbeatData(f"c{client}", [ProducerData("P")] if producing else [], [consumer])


heartbeats = st.tuples(
    st.just("heartbeat"),
    st.integers(0, 2),
    st.builds(
        said,
        st.integers(0, 1),
        st.sampled_from("GH"),
        st.integers(0, len(SAID) - 1),
        st.sampled_from(["CLUSTERING", "BROADCASTING"]),
        st.booleans(),
    ),
)
steps = st.one_of(
    heartbeats,
    heartbeats,
    heartbeats,
    st.tuples(st.just("leave"), st.integers(0, 2), st.sampled_from("GH")),
    st.tuples(st.just("close"), st.integers(0, 2), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([10, 70]), st.none()),
)


def both_say(*what: int) -> list[Any]:
    """Two clients say one of SAID in turn."""
    return [
        ("heartbeat", number % 2, said(number % 2, "G", one, "CLUSTERING", False))
        for number, one in enumerate(what)
    ]


@given(st.lists(steps, max_size=30))
@example(both_say(3, 4, 3, 4, 3))  # the filter of one is dropped by the other, whose expression is none
@example(both_say(0, 2, 0, 2))
def test_a_repeated_heartbeat_does_what_reading_it_again_would(story: list[Any]) -> None:
    """Two tables live the same story; one of them reads every heartbeat."""
    with tempfile.TemporaryDirectory() as directory:
        tables = [Told(Path(directory) / name) for name in ("repeats", "reads")]
        peers: dict[int, list[Peer]] = {}
        now = 0.0
        for what, number, detail in story:
            now += number if what == "wait" else 1
            both = peers.setdefault(number, [Peer(), Peer()])
            for repeats, told, peer in zip((True, False), tables, both, strict=True):
                table = told.table
                if what == "leave":
                    table.unregister(peer, "P", detail)
                elif what == "close":
                    peer.close("gone")
                elif what == "wait":
                    table.expire(now)
                elif not (repeats and table.repeat(peer, detail.encode(), now, lambda group: True)):
                    table.heartbeat(peer, detail, now, digest=detail.encode())
            assert all(one.closed == other.closed for one, other in peers.values())
            peers = {at: pair for at, pair in peers.items() if not pair[0].closed}
            repeating, reading = tables
            assert repeating.state(peers, 0) == reading.state(peers, 1)
            assert repeating.news() == reading.news()


def test_a_repeated_heartbeat_is_not_read(reading_broker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = reading_broker()
    caller, other = broker.caller(), broker.caller()
    read = []
    decode = HeartbeatData.decode

    def count(body: bytes) -> HeartbeatData:
        read.append(bytes(body))
        return decode(body)

    monkeypatch.setattr(HeartbeatData, "decode", count)

    def reads(beating: Caller = caller, client: str = "c1", **topics: str) -> int:
        read.clear()
        assert beating.heartbeat(client, {"G": topics or {"T": "*"}}).code == 0
        return len(read)

    assert [reads(), reads(), reads()] == [1, 0, 0]
    broker.now_s += 110
    assert reads() == 0
    broker.now_s += 110
    broker.on_loop(lambda: broker.clients.expire(broker.now_s))
    assert consumer_ids(caller) == ["c1"], "it was heard 110 s ago"
    assert [reads(other, "c2"), reads(other, "c2"), reads()] == [1, 0, 0], "who joins changes nothing for it"
    assert [reads(client="c3"), reads()] == [1, 1], "another client on its connection"
    assert [reads(other, "c2", T="*", U="*"), reads()] == [1, 1], "another one has changed the group's topics"
    caller.call(35, {"clientID": "c1", "consumerGroup": "G"})
    assert [reads(), reads()] == [1, 0], "it had left"
    broker.topics.delete("%RETRY%G")
    assert [reads(), reads()] == [1, 0], "its retry topic was deleted"
    assert broker.topics.get("%RETRY%G") is not None
    broker.groups.delete("G")
    assert [reads(), reads()] == [1, 0], "its group was deleted"
    assert broker.groups.get("G") is not None
    other.close()
    wait_until(lambda: consumer_ids(caller) == ["c1"], "the other has gone")
    assert reads() == 0


# As clients see it


def consumer_ids(caller: Caller, group: str = "G") -> list[str]:
    answer = caller.call(38, {"consumerGroup": group})
    if answer.code == 1:
        return []
    return list(orjson.loads(bytes(answer.body))["consumerIdList"])


def test_members_are_listed_until_they_leave_or_disconnect(reading_broker: Make) -> None:
    broker = reading_broker()
    one, two = broker.caller(), broker.caller()
    assert consumer_ids(one) == []
    answer = one.heartbeat("c1", {"G": {"T": "*"}})
    assert answer.code == 0
    assert answer.version >= 232
    two.heartbeat("c2", {"G": {"T": "*"}})
    assert sorted(consumer_ids(one)) == ["c1", "c2"]
    assert one.call(35, {"clientID": "c1", "consumerGroup": "G"}).code == 0
    assert consumer_ids(one) == ["c2"]
    two.close()
    wait_until(lambda: not consumer_ids(one), "the group is empty")


def test_a_client_of_an_unknown_language_is_welcome(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    body = orjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": "P"}]})
    command = RemotingCommand.request(34, body=body)
    command.language = 77
    command.serialize_type = 1
    assert caller.send(command).code == 0
    (client,) = broker.clients.producers["P"].values()
    assert client.language == "OTHER"


def test_the_list_of_members_is_made_once_for_all_that_ask(
    reading_broker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = reading_broker()
    callers = [broker.caller() for _ in range(3)]
    made = []
    encode = ConsumerIdList.encode

    def count(self: ConsumerIdList) -> bytes:
        made.append(list(self.consumer_id_list))
        return encode(self)

    monkeypatch.setattr(ConsumerIdList, "encode", count)
    for number, caller in enumerate(callers):
        caller.heartbeat(f"c{number}", {"G": {"T": "*"}})
    assert [consumer_ids(caller) for caller in callers * 3] == [["c0", "c1", "c2"]] * 9
    assert len(made) == 1
    callers[2].heartbeat("renamed", {"G": {"T": "*"}})
    assert consumer_ids(callers[0]) == ["c0", "c1", "renamed"]
    callers[1].call(35, {"clientID": "c1", "consumerGroup": "G"})
    assert consumer_ids(callers[0]) == ["c0", "renamed"]


def test_every_member_is_told_when_another_joins_or_leaves(reading_broker: Make) -> None:
    broker = reading_broker()
    one, two = broker.caller(), broker.caller()
    told: list[str] = []
    one.on_request(40, lambda command: told.append(command.ext["consumerGroup"]))
    one.heartbeat("c1", {"G": {"T": "*"}})
    wait_until(lambda: told == ["G"], "told of itself")
    two.heartbeat("c2", {"G": {"T": "*"}})
    wait_until(lambda: told == ["G", "G"], "told of the second")
    two.close()
    wait_until(lambda: told == ["G", "G", "G"], "told of its end")


def test_a_consumer_gets_a_retry_topic_from_a_master_only(reading_broker: Make) -> None:
    for role, made in ((BrokerRole.ASYNC_MASTER, True), (BrokerRole.SLAVE, False)):
        broker = reading_broker(role=role)
        broker.caller().heartbeat("c1", {"G": {"T": "*"}, "bad name": {}, "g" * 200: {}})
        topic = broker.topics.get("%RETRY%G")
        assert (topic is not None) == made
        if topic is not None:
            assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
        assert broker.topics.get("%RETRY%bad name") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'{"clientID":"c","consumerDataSet":[7]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":{"a":1}}]}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"clientID":"c","producerDataSet":[' + b'{"groupName":"P"},' * 2000 + b'{"groupName":"P"}]}',
        b'{"clientID":"c","producerDataSet":[{"groupName":"' + b"P" * 256 + b'"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"' + b"P" * 256 + b'"}]}',
    ],
)
def test_a_heartbeat_that_is_none_is_refused_and_the_connection_lives(
    reading_broker: Make, body: bytes
) -> None:
    broker = reading_broker()
    caller = broker.caller()
    assert caller.call(34, body=body).code == 1
    assert broker.clients.producers == {}
    assert caller.heartbeat("c1", {"G": {"T": "*"}}).code == 0


def test_a_connection_that_names_ever_new_groups_is_refused_at_last(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    codes = []
    for turn in range(5):
        named = [{"groupName": f"P{turn}-{number}"} for number in range(1024)]
        codes.append(caller.call(34, body=orjson.dumps({"clientID": "c", "producerDataSet": named})).code)
    assert codes == [0, 0, 0, 0, 1]
    assert len(broker.clients.producers) == 4096


def test_sql_is_refused_before_a_consumer_starts_and_when_it_pulls(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(1)
    caller = broker.caller()

    def check(expression_type: str) -> int:
        subscription = {"topic": "T", "subString": "a > 1", "expressionType": expression_type}
        body = {"clientId": "c1", "group": "G", "subscriptionData": subscription}
        return caller.call(46, body=orjson.dumps(body)).code

    assert (check("SQL92"), check("TAG"), check("REGEX")) == (1, 0, 1)
    data = [{"topic": "T", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 1}]
    caller.heartbeat("c1", {"G": {}}, subscriptionDataSet=data)
    assert caller.pull(0, sysFlag=0).code == 1


def test_a_hundred_thousand_producer_groups_that_come_and_go_leave_nothing() -> None:
    """Applications that make up a group for each run: some leave, some are cut off, some fall silent."""
    told = Told()
    table = told.table
    for number in range(100_000):
        peer = Peer()
        table.heartbeat(
            peer, HeartbeatData(f"c{number}", [ProducerData(f"g{number}")], []), now_s=number / 100
        )
        if number % 3 == 0:
            table.unregister(peer, f"g{number}", None)
        elif number % 3 == 1:
            peer.close("the application ended")
        if number % 20_000 == 0:
            table.expire(number / 100)
    table.expire(2000.0)
    assert not table.producers
    assert not table.consumers
    table.expire(4000.0)
    assert told.told == []
    assert not [peer for peer, seen in table._connected.items() if seen.producing or seen.consuming]
