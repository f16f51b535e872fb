"""Consumer groups: the table, its file, its bound, and what tools and clients see of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from haservice.broker.groups.subscription_groups import SYSTEM_GROUPS, GroupConfig, Groups
from haservice.configuration.settings import BrokerRole
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import DataVersion, SubscriptionGroupWrapper
from tests.support.reading_broker import Caller, ReadingBroker
from tests.support.waiting import wait_until

Make = Callable[..., ReadingBroker]

# As a stock 4.9.8 broker writes it.
STOCK_FILE = """{
\t"dataVersion":{
\t\t"counter":2,
\t\t"timestamp":1763726000123
\t},
\t"subscriptionGroupTable":{
\t\t"g":{
\t\t\t"brokerId":0,
\t\t\t"consumeBroadcastEnable":false,
\t\t\t"consumeEnable":true,
\t\t\t"consumeFromMinEnable":false,
\t\t\t"groupName":"g",
\t\t\t"notifyConsumerIdsChangedEnable":true,
\t\t\t"retryMaxTimes":3,
\t\t\t"retryQueueNums":2,
\t\t\t"whichBrokerWhenConsumeSlowly":1
\t\t}
\t}
}"""


class Table:
    def __init__(self, path: Path, *, auto_create: bool = True, groups_max: int = 100) -> None:
        self.changes = 0
        self.groups = Groups(
            auto_create,
            PersistedFile(path / "config" / "subscriptionGroup.json"),
            groups_max=groups_max,
            clock_ms=lambda: 7,
            on_change=self.count,
        )
        self.groups.load()

    def count(self) -> None:
        self.changes += 1


# The table and its file


def test_a_group_is_made_once_and_is_there_after_a_restart(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert table.groups.find("g") == GroupConfig("g")
    assert table.groups.find("g") is table.groups.get("g")
    assert table.changes == 1
    assert table.groups.data_version == DataVersion(1, 7)
    assert table.groups.persist()
    assert not table.groups.persist()
    again = Table(tmp_path).groups
    assert again.get("g") == GroupConfig("g")
    assert again.data_version == DataVersion(1, 7)


@pytest.mark.parametrize("name", ["", " ", "a b", "ä", "a/b", "g" * 256, "a@b"])
def test_what_is_no_name_makes_no_group(tmp_path: Path, name: str) -> None:
    table = Table(tmp_path)
    assert table.groups.find(name) is None
    with pytest.raises(ValueError, match="group"):
        table.groups.update(GroupConfig(name))
    assert table.changes == 0


def test_without_auto_creation_only_rocketmqs_own_groups_are_made(tmp_path: Path) -> None:
    groups = Table(tmp_path, auto_create=False).groups
    assert groups.find("g") is None
    assert groups.find("TOOLS_CONSUMER") is not None
    assert groups.find("CID_RMQ_SYS_TRANS") is not None
    groups.update(GroupConfig("g"))
    assert groups.find("g") is not None


def test_made_up_names_are_served_and_not_kept_beyond_the_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(tmp_path, groups_max=len(SYSTEM_GROUPS) + 2)
    for number in range(50):
        assert table.groups.find(f"g{number}") == GroupConfig(f"g{number}")
    assert set(table.groups.table()) == {*SYSTEM_GROUPS, "g0", "g1"}
    assert len([record for record in caplog.records if "not kept" in record.getMessage()]) == 1
    with pytest.raises(ValueError, match="9 groups already"):
        table.groups.update(GroupConfig("one more"[:3]))
    table.groups.update(GroupConfig("g0", consume_enable=False))
    table.groups.delete("g1")
    table.groups.update(GroupConfig("one"))


def test_a_stock_file_is_read_and_written_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir()
    path.write_text(STOCK_FILE)
    groups = Table(tmp_path).groups
    assert groups.get("g") == GroupConfig(
        "g",
        consume_broadcast_enable=False,
        consume_from_min_enable=False,
        retry_max_times=3,
        retry_queue_nums=2,
    )
    for name in SYSTEM_GROUPS:
        groups.delete(name)
    groups.persist()
    assert '"retryQueueNums":2' in path.read_text()
    written = orjson.loads(path.read_bytes())
    assert written["subscriptionGroupTable"] == orjson.loads(STOCK_FILE)["subscriptionGroupTable"]
    assert sorted(written) == ["dataVersion", "subscriptionGroupTable"]


def test_members_of_later_versions_are_read_over_and_damage_falls_back(tmp_path: Path) -> None:
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir()
    later = STOCK_FILE.replace('"brokerId":0,', '"brokerId":0,"attributes":{"a":"b"},"groupSysFlag":0,')
    path.with_name(path.name + ".bak").write_text(later)
    path.write_text(later[:100])
    groups = Table(tmp_path).groups
    config = groups.get("g")
    assert config is not None
    assert config.retry_max_times == 3
    assert groups.data_version == DataVersion(2, 1763726000123)


def test_numbers_that_java_cannot_hold_are_refused(tmp_path: Path) -> None:
    groups = Table(tmp_path).groups
    for config in (
        GroupConfig("g", retry_max_times=2**31),
        GroupConfig("g", retry_queue_nums=-(2**31) - 1),
        GroupConfig("g", retry_queue_nums=100_000),
    ):
        with pytest.raises(ValueError, match="retry"):
            groups.update(config)
    with pytest.raises(ValueError, match="retry_max_times"):
        groups.replace_all(
            SubscriptionGroupWrapper(DataVersion(1, 1), {"g": GroupConfig("g", retry_max_times=2**40)})
        )
    assert groups.get("g") is None


def test_the_masters_table_is_taken_whole_when_its_version_is_another(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.groups.find("mine")
    theirs = SubscriptionGroupWrapper(DataVersion(5, 6), {"g": GroupConfig("g", consume_enable=False)})
    assert table.groups.replace_all(theirs)
    assert table.groups.table() == theirs.subscription_group_table
    assert not table.groups.replace_all(theirs)
    assert table.groups.wrapper() == theirs


# As clients and tools see it


def groups_of(caller: Caller) -> SubscriptionGroupWrapper:
    answer = caller.call(201)
    assert answer.code == 0
    return SubscriptionGroupWrapper.decode(answer.body)


def test_heartbeats_and_pulls_make_groups_and_slaves_see_a_new_version(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    before = groups_of(caller)
    assert set(before.subscription_group_table) == set(SYSTEM_GROUPS)
    assert groups_of(caller) == before
    caller.heartbeat("c1", {"G": {"T": "*"}, "not a name": {"T": "*"}})
    caller.pull(0, consumerGroup="puller", sysFlag=4)
    after = groups_of(caller)
    assert after.data_version != before.data_version
    assert set(after.subscription_group_table) == {*SYSTEM_GROUPS, "G", "puller"}
    assert groups_of(caller) == after


def test_a_group_is_administered(reading_broker: Make) -> None:
    broker = reading_broker()
    broker.fill(1)
    caller = broker.caller()
    assert caller.pull(0).code == 0
    config = {"groupName": "G", "consumeEnable": False, "retryQueueNums": "3"}
    assert caller.call(200, body=orjson.dumps(config)).code == 0
    assert groups_of(caller).subscription_group_table["G"] == GroupConfig(
        "G", consume_enable=False, retry_queue_nums=3
    )
    assert caller.pull(0).code == 16
    assert caller.call(207, {"groupName": "G"}).code == 0
    assert "G" not in groups_of(caller).subscription_group_table
    assert caller.pull(0).code == 0


def test_the_retry_topic_has_the_groups_number_of_queues_and_says_that_it_works_in_units(
    reading_broker: Make,
) -> None:
    broker = reading_broker()
    caller = broker.caller()
    caller.call(200, body=orjson.dumps({"groupName": "G", "retryQueueNums": 3}))
    caller.heartbeat("c1", {"G": {"T": "*"}})
    caller.heartbeat("c1", {"U": {"T": "*"}}, unitMode=True)
    found = {name: broker.topics.get(name) for name in ("%RETRY%G", "%RETRY%U")}
    assert {
        name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
        for name, topic in found.items()
        if topic is not None
    } == {"%RETRY%G": (3, 3, 6, 0), "%RETRY%U": (1, 1, 6, 2)}


def test_a_deleted_groups_offsets_go_only_if_asked_for(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    for group in ("G", "H"):
        caller.call(15, {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "5"})
    caller.call(207, {"groupName": "G"})
    caller.call(207, {"groupName": "H", "removeOffset": "true"})
    assert broker.offsets.table() == {"T@G": {0: 5}}


def test_a_slave_changes_no_groups(reading_broker: Make) -> None:
    broker = reading_broker(role=BrokerRole.SLAVE)
    caller = broker.caller()
    for answer in (
        caller.call(200, body=b'{"groupName":"G"}'),
        caller.call(207, {"groupName": "TOOLS_CONSUMER"}),
    ):
        assert answer.code == 1
        assert answer.remark == (
            "Can't modify topic or subscription group from slave broker,"
            " please execute it from master broker."
        )
    assert set(broker.groups.table()) == set(SYSTEM_GROUPS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"groupName":"a b"}',
        b'{"groupName":"G","retryMaxTimes":1e30}',
        b'{"groupName":"G","retryMaxTimes":4294967296}',
        b'{"groupName":"G","consumeEnable":[]}',
        b"[" * 100_000,
    ],
)
def test_grants_that_are_none_are_refused(reading_broker: Make, body: bytes) -> None:
    broker = reading_broker()
    caller = broker.caller()
    answer = caller.call(200, body=body)
    assert answer.code == 1
    assert answer.remark
    assert set(groups_of(caller).subscription_group_table) == set(SYSTEM_GROUPS)


def test_without_auto_creation_a_consumer_is_a_member_whose_pulls_are_refused(reading_broker: Make) -> None:
    broker = reading_broker(auto_create_subscription_group=False)
    caller = broker.caller()
    assert caller.heartbeat("c1", {"G": {"T": "*"}}).code == 0
    assert orjson.loads(bytes(caller.call(38, {"consumerGroup": "G"}).body)) == {"consumerIdList": ["c1"]}
    assert caller.pull(0).code == 26
    assert broker.topics.get("%RETRY%G") is None


@pytest.mark.parametrize(
    ("config", "grants"),
    [
        ({"notify_consumer_ids_changed_enable": False}, {}),
        ({}, {"notifyConsumerIdsChangedEnable": False}),
    ],
)
def test_broker_and_group_may_forbid_the_notice_of_a_change(
    reading_broker: Make, config: dict[str, bool], grants: dict[str, bool]
) -> None:
    broker = reading_broker(**config)
    one, two = broker.caller(), broker.caller()
    two.call(200, body=orjson.dumps({"groupName": "G", **grants}))
    two.call(200, body=orjson.dumps({"groupName": "Other"}))
    told: list[str] = []
    one.on_request(40, lambda command: told.append(command.ext["consumerGroup"]))
    one.heartbeat("c1", {"G": {"T": "*"}})
    two.heartbeat("c2", {"G": {"T": "*"}})
    one.heartbeat("c1", {"Other": {"T": "*"}})
    one.call(38, {"consumerGroup": "G"})
    if grants:
        wait_until(lambda: told, "told of the other group")
    assert told == (["Other"] if grants else [])


# Who is connected


def test_a_consumer_groups_members_and_subscriptions_are_listed(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    answer = caller.call(203, {"consumerGroup": "G"})
    assert (answer.code, answer.remark) == (206, "the consumer group[G] not online")
    caller.heartbeat("c1", {"G": {"T": "red || blue"}})
    listed = orjson.loads(bytes(caller.call(203, {"consumerGroup": "G"}).body))
    (member,) = listed["connectionSet"]
    assert member.pop("clientAddr").startswith("127.0.0.1:")
    assert member.pop("version") > 300
    assert member == {"clientId": "c1", "language": "PYTHON"}
    assert listed["consumeType"] == "CONSUME_PASSIVELY"
    assert listed["messageModel"] == "CLUSTERING"
    assert listed["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert listed["subscriptionTable"] == {
        "T": {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "red || blue",
            "subVersion": 1,
            "tagsSet": [],
            "topic": "T",
        }
    }


def test_producers_are_listed_by_group_and_all_together(reading_broker: Make) -> None:
    broker = reading_broker()
    caller = broker.caller()
    answer = caller.call(204, {"producerGroup": "P"})
    assert (answer.code, answer.remark) == (1, "the producer group[P] not exist")
    caller.call(34, body=b'{"clientID":"p1","producerDataSet":[{"groupName":"P"},{"groupName":"Q"}]}')
    (member,) = orjson.loads(bytes(caller.call(204, {"producerGroup": "P"}).body))["connectionSet"]
    assert member["clientId"] == "p1"
    broker.now_s += 5
    data = orjson.loads(bytes(caller.call(328).body))["data"]
    assert sorted(data) == ["P", "Q"]
    (info,) = data["P"]
    assert sorted(info) == ["clientId", "language", "lastUpdateTimestamp", "remoteIP", "version"]
    assert info["remoteIP"] == f"/{member['clientAddr']}"
