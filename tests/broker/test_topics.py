from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haservice.broker.topics.changes import TopicChanges
from haservice.broker.topics.file import SMALL_TOPICS, WHOLE_EVERY_S, TopicsFile
from haservice.broker.topics.table import (
    DEFAULT_TOPIC,
    PERM_INHERIT,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    TopicsFull,
    TopicTable,
    name_fault,
    topic_config,
)
from haservice.configuration.settings import BrokerConfig
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import DataVersion, TopicConfig, TopicConfigWrapper


def table(directory: Path, changes: list[int] | None = None, **broker: Any) -> TopicTable:
    config = BrokerConfig(broker_name="broker-a", **broker)
    made = TopicTable(config, PersistedFile(directory / "topics.json"), clock_ms=lambda: 1000)
    if changes is not None:
        made.on_change = lambda: changes.append(1)
    return made


def test_a_new_broker_has_rocketmqs_topics(tmp_path: Path) -> None:
    topics = {topic.topic_name: topic for topic in table(tmp_path)}
    assert topics[DEFAULT_TOPIC].write_queue_nums == 8
    assert topics[DEFAULT_TOPIC].perm == 7
    assert topics["BenchmarkTest"].read_queue_nums == 1024
    assert topics["DefaultCluster"].write_queue_nums == 16
    assert topics["broker-a"].perm == 7
    assert topics[SCHEDULE_TOPIC].write_queue_nums == 18
    assert topics["DefaultCluster_REPLY_TOPIC"].perm == 6
    assert TRACE_TOPIC not in topics
    assert {"SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "RMQ_SYS_TRANS_HALF_TOPIC"} <= topics.keys()


def test_keys_switch_topics_of_the_start_off(tmp_path: Path) -> None:
    topics = table(
        tmp_path,
        auto_create_topic_enable=False,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        trace_topic_enable=True,
    )
    assert topics.get(DEFAULT_TOPIC) is None
    assert topics.get("DefaultCluster").perm == PERM_INHERIT  # type: ignore[union-attr]
    assert topics.get("broker-a").perm == PERM_INHERIT  # type: ignore[union-attr]
    assert topics.get(TRACE_TOPIC) is not None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("../../x", "illegal characters"),
        ("a/b", "illegal characters"),
        ("a.b", "illegal characters"),
        ("ä", "illegal characters"),
        ("a\n", "illegal characters"),
        ("a\0", "illegal characters"),
        ("٣", "illegal characters"),
        ("x" * 128, "longer than topic max length 127"),
    ],
)
def test_bad_names_are_refused_in_rocketmqs_words(name: str, said: str) -> None:
    assert said in (name_fault(name) or "")


@pytest.mark.parametrize("name", ["a", "%RETRY%g", "inst%name", "a|b_c-D9", "x" * 127])
def test_good_names_pass(name: str) -> None:
    assert name_fault(name) is None


def test_a_message_is_delivered_to_a_queue_that_is_read(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.update(TopicConfig("T", read_queue_nums=4, write_queue_nums=2))
    topics.update(TopicConfig("Shut", read_queue_nums=0, write_queue_nums=4))
    queues = [topics.queue_to_deliver("T", queue_id) for queue_id in (0, 3, 4, 7)]
    assert (queues, topics.queue_to_deliver("Shut", 7), topics.queue_to_deliver("Other", 7)) == (
        [0, 3, 0, 3],
        7,
        7,
    )


def test_a_send_creates_a_topic_from_its_template(tmp_path: Path) -> None:
    changes: list[int] = []
    topics = table(tmp_path, changes)
    version = topics.data_version
    created = topics.create_on_send("T", DEFAULT_TOPIC, 4)
    assert created is not None
    assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (4, 4, 6)
    assert topics.get("T") == created
    assert topics.data_version == DataVersion(counter=version.counter + 1, timestamp=1000)
    assert topics.create_on_send("T", DEFAULT_TOPIC, 2) == created
    assert changes == [1]


@pytest.mark.parametrize(("asked", "got"), [(100, 8), (0, 0), (-3, 0)])
def test_the_template_bounds_the_number_of_queues(tmp_path: Path, asked: int, got: int) -> None:
    created = table(tmp_path).create_on_send("T", DEFAULT_TOPIC, asked)
    assert created is not None
    assert created.write_queue_nums == got


@pytest.mark.parametrize("template", ["missing", "BenchmarkTest"])
def test_no_template_no_topic(tmp_path: Path, template: str) -> None:
    topics = table(tmp_path)
    assert topics.create_on_send("T", template, 4) is None
    assert topics.get("T") is None


def test_the_file_outlives_the_process(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.update(topic_config("T", 3, 6))
    assert topics.persist()
    assert not topics.persist()
    again = table(tmp_path)
    again.load()
    assert again.get("T") == topics.get("T")
    assert again.data_version == topics.data_version


def test_a_stock_brokers_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(
        '{\n\t"dataVersion":{\n\t\t"counter":7,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"topicConfigTable":{\n\t\t"T":{\n\t\t\t"attributes":{},\n\t\t\t"order":true,\n\t\t\t"perm":4,\n'
        '\t\t\t"readQueueNums":2,\n\t\t\t"topicFilterType":"MULTI_TAG",\n\t\t\t"topicName":"T",\n'
        '\t\t\t"topicSysFlag":1,\n\t\t\t"writeQueueNums":3\n\t\t}\n\t}\n}'
    )
    topics = table(tmp_path)
    topics.load()
    topic = topics.get("T")
    assert topic is not None
    assert (topic.order, topic.perm, topic.read_queue_nums, topic.write_queue_nums) == (True, 4, 2, 3)
    assert (topic.topic_filter_type, topic.topic_sys_flag) == ("MULTI_TAG", 1)
    assert topics.data_version == DataVersion(7, 1700000000000)
    assert topics.get("BenchmarkTest") is not None


def test_without_auto_creation_a_template_left_in_the_file_loses_its_power(tmp_path: Path) -> None:
    table(tmp_path).persist()
    topics = table(tmp_path, auto_create_topic_enable=False)
    topics.load()
    assert topics.create_on_send("T", DEFAULT_TOPIC, 4) is None


def test_a_slave_takes_the_masters_table_whole_when_versions_differ(tmp_path: Path) -> None:
    changes: list[int] = []
    topics = table(tmp_path, changes)
    topics.update(topic_config("Mine", 1, 6))
    master = TopicConfigWrapper(DataVersion(9, 5), {"T": topic_config("T", 4, 6)})
    assert topics.replace_all(master)
    assert topics.get("Mine") is None
    assert [topic.topic_name for topic in topics] == ["T"]
    assert topics.data_version == DataVersion(9, 5)
    changes.clear()
    assert not topics.replace_all(master)
    assert changes == []


def test_deleting_raises_the_version_only_if_there_was_something(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.update(topic_config("T", 1, 6))
    version = topics.data_version
    assert topics.delete("T")
    assert topics.data_version.counter == version.counter + 1
    assert not topics.delete("T")
    assert topics.data_version.counter == version.counter + 1


def bounded(tmp_path: Path, topics_max: int) -> TopicTable:
    config = BrokerConfig(cluster_name="C", broker_name="b", max_topics=topics_max)
    return TopicTable(config, PersistedFile(tmp_path / "config" / "topics.json"))


def test_a_topic_too_many_is_refused_whoever_makes_it_and_the_key_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = len(bounded(tmp_path, 100))
    topics = bounded(tmp_path, start + 1)
    topics.update(topic_config("T", 1, 6))
    version = topics.data_version
    for make in (
        lambda: topics.update(topic_config("U", 1, 6)),
        lambda: topics.create_on_send("U", "TBW102", 4),
        lambda: topics.find_or_create("%RETRY%G", 1),
    ):
        with pytest.raises(TopicsFull, match=f"there are {start + 1} topics, maxTopics={start + 1}"):
            make()
    assert (len(topics), topics.data_version) == (start + 1, version)
    assert len([one for one in caplog.records if "maxTopics" in one.getMessage()]) == 1
    topics.update(topic_config("T", 8, 6))  # what is there changes as ever
    topics.find_or_create("TRANS_CHECK_MAX_TIME_TOPIC", 1)  # the broker's own
    topics.configure(start + 3)
    topics.find_or_create("%RETRY%G", 1)
    with pytest.raises(TopicsFull):
        topics.find_or_create("%RETRY%H", 1)
    topics.delete("T")
    topics.find_or_create("%RETRY%H", 1)


def test_more_topics_than_may_be_are_loaded_all_and_taken_from_no_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = bounded(tmp_path, 100)
    for number in range(5):
        before.update(topic_config(f"T{number}", 1, 6))
    before.persist()
    again = bounded(tmp_path, len(before) - 2)
    again.load()
    assert len(again) == len(before)
    assert f"count={len(before)} maxTopics={len(before) - 2}" in caplog.text
    with pytest.raises(TopicsFull):
        again.update(topic_config("U", 1, 6))
    slave = bounded(tmp_path / "s", len(before) - 1)
    with pytest.raises(
        ValueError, match=f"the master has {len(before)} topics, here maxTopics={len(before) - 1}"
    ):
        slave.replace_all(before.wrapper())
    assert slave.get("T0") is None
    slave.configure(len(before))
    assert slave.replace_all(before.wrapper())


def test_system_topics(tmp_path: Path) -> None:
    topics = table(tmp_path)
    for name in ("TBW102", "DefaultCluster", "broker-a", "rmq_sys_x", "DefaultCluster_REPLY_TOPIC"):
        assert topics.is_system(name), name
    assert not topics.is_system("T")


# ---- the file of a large table, and its journal


def large(directory: Path, count: int = SMALL_TOPICS) -> TopicTable:
    """Stored, with enough topics that changes go into the journal."""
    topics = table(directory)
    topics.replace_all(
        TopicConfigWrapper(
            DataVersion(9, 5), {f"T{n}": topic_config(f"T{n}", 1, 6) for n in range(count + 1)}
        )
    )
    assert topics.persist()
    return topics


def stored(directory: Path) -> TopicTable:
    again = table(directory)
    again.load()
    return again


def test_changes_of_a_large_table_are_stored_without_writing_it_again(tmp_path: Path) -> None:
    topics = large(tmp_path)
    before = (tmp_path / "topics.json").read_bytes()
    for number in range(20):
        topics.update(topic_config(f"New{number}", 3, 6))
        assert topics.persist()
    topics.update(topic_config("T1", 7, 4))
    topics.delete("T2")
    topics.delete("New3")
    assert topics.persist()
    assert not topics.persist()
    assert (tmp_path / "topics.json").read_bytes() == before
    assert (tmp_path / "topics.journal").stat().st_size < 10_000
    # As after a crash: nothing was closed.
    again = stored(tmp_path)
    assert again.wrapper().topic_config_table.items() >= topics.wrapper().topic_config_table.items()
    assert again.data_version == topics.data_version
    assert again.get("T2") is None
    assert again.get("New3") is None


def test_a_clean_stop_leaves_all_topics_in_rocketmqs_file_and_no_journal(tmp_path: Path) -> None:
    topics = large(tmp_path)
    topics.update(topic_config("New", 3, 6))
    topics.persist()
    topics.close()
    assert not (tmp_path / "topics.journal").exists()
    assert b'"New":{' in (tmp_path / "topics.json").read_bytes()
    assert stored(tmp_path).data_version == topics.data_version


def test_after_a_crash_the_first_write_puts_the_journal_into_the_file(tmp_path: Path) -> None:
    topics = large(tmp_path)
    topics.update(topic_config("New", 3, 6))
    topics.persist()
    again = stored(tmp_path)
    assert again.persist()
    assert not (tmp_path / "topics.journal").exists()
    assert b'"New":{' in (tmp_path / "topics.json").read_bytes()


def test_a_journal_counts_only_beside_the_file_that_it_continues(tmp_path: Path) -> None:
    """A stock broker that ran on this store knows nothing of it, and changed the file."""
    topics = large(tmp_path)
    topics.update(topic_config("New", 3, 6))
    topics.persist()
    wrapper = TopicConfigWrapper(DataVersion(50, 5), {"Theirs": topic_config("Theirs", 1, 6)})
    (tmp_path / "topics.json").write_bytes(wrapper.encode(pretty=True))
    again = stored(tmp_path)
    assert again.get("New") is None
    assert again.get("Theirs") is not None
    assert again.data_version == DataVersion(50, 5)


def test_a_torn_journal_gives_what_was_whole(tmp_path: Path) -> None:
    topics = large(tmp_path)
    for name in ("A", "B"):
        topics.update(topic_config(name, 3, 6))
        topics.persist()
    journal = tmp_path / "topics.journal"
    journal.write_bytes(journal.read_bytes()[:-5])
    again = stored(tmp_path)
    assert again.get("A") is not None
    assert again.get("B") is None


def test_a_large_file_is_written_whole_once_it_is_old_or_its_journal_is_long(tmp_path: Path) -> None:
    now = [0.0]
    count = 2 * SMALL_TOPICS
    file = TopicsFile(PersistedFile(tmp_path / "topics.json"), clock_s=lambda: now[0])
    whole = TopicConfigWrapper(
        DataVersion(1, 1), {f"T{n}": topic_config(f"T{n}", 1, 6) for n in range(count)}
    )
    assert file.write_whole(whole)
    assert not file.whole_is_due(count)
    file.add(TopicConfigWrapper(DataVersion(2, 1), {"T": topic_config("T", 1, 6)}))
    assert not file.whole_is_due(count)
    now[0] = WHOLE_EVERY_S
    assert file.whole_is_due(count)
    file.write_whole(whole)
    now[0] = 2 * WHOLE_EVERY_S  # nothing has changed since
    assert not file.whole_is_due(count)
    file.add(whole)
    file.add(whole)
    now[0] = 2 * WHOLE_EVERY_S + 1
    file.write_whole(whole)
    file.add(whole)
    file.add(whole)
    assert file.whole_is_due(count)


def test_what_changed_is_told_behind_a_mark_until_too_much_has(tmp_path: Path) -> None:
    topics = table(tmp_path)
    mark = topics.whole().mark
    topics.update(topic_config("A", 1, 6))
    topics.update(topic_config("B", 1, 6))
    topics.delete("A")
    topics.update(topic_config("B", 2, 6))
    changes = topics.changes_after(mark)
    assert changes is not None
    assert changes.wrapper.topic_config_table == {"B": topics.get("B")}
    assert changes.wrapper.deleted_topics == ["A"]
    assert changes.wrapper.data_version == topics.data_version
    nothing = topics.changes_after(changes.mark)
    assert nothing is not None
    assert not nothing.wrapper.topic_config_table
    assert nothing.wrapper.deleted_topics is None
    topics.renew_version()
    assert topics.changes_after(changes.mark) is None


def test_no_more_changes_are_kept_than_their_bound() -> None:
    changes = TopicChanges(kept_max=3)
    for name in "ABCD":
        changes.note([name])
    assert changes.after(1) == ["B", "C", "D"]
    assert changes.after(0) is None
    changes.note(["B"])
    assert changes.after(1) == ["C", "D", "B"]


def test_order_topics_are_marked_among_topics_that_were_made_later(tmp_path: Path) -> None:
    topics = table(tmp_path)
    topics.update(topic_config("A", 1, 6))
    assert topics.set_order_topics({"A", "B"})
    assert not topics.set_order_topics({"A", "B"})
    topics.update(topic_config("B", 1, 6))
    topics.update(topic_config("C", 1, 6))
    assert topics.set_order_topics({"A", "B"})
    assert {topic.topic_name for topic in topics if topic.order} == {"A", "B"}
    assert topics.set_order_topics({"C"})
    assert {topic.topic_name for topic in topics if topic.order} == {"C"}
