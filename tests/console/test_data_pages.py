"""Topics, groups, messages, dead letters, what waits and who is connected, over HTTP from a real pair."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.groups.offsets import update_offset
from haservice.client import Admin, Message, Producer, PushConsumer
from haservice.console.pages.groups import SHOWN_MAX_S
from haservice.devtools.pair import ScratchPair
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.console.conftest import MakeConsole
from tests.console.filled import (
    BINARY,
    DEAD,
    GROUP,
    PRODUCERS,
    QUEUES,
    TOPIC,
    WAITING,
    Filled,
    consume,
    fill,
    path,
    rows_of,
    text_of,
)
from tests.console.support import SETTINGS, Answer, ConsoleProcess, agreed
from tests.support.standing_still import freeze
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

MESSAGES = 3 + len(DEAD) + WAITING
PAGES = (
    *("/", "/topics", "/groups", "/messages", "/dead-letters", "/waiting"),
    *("/connections", "/connections/consumers", "/accounts", "/configuration"),
)


@pytest.fixture(scope="module")
def filled(pair: ScratchPair) -> Filled:
    return fill(pair.namesrv_addr, pair.master_addr)


@pytest.fixture(scope="module")
def console(filled: Filled, make_console: MakeConsole) -> ConsoleProcess:
    return make_console(filled.namesrv)


@pytest.fixture(scope="module")
def changing(filled: Filled, make_console: MakeConsole) -> ConsoleProcess:
    return make_console(filled.namesrv, "--allow-changes")


def get(console: ConsoleProcess, page: str, status: int = 200, **query: Any) -> str:
    answer = console.get(path(page, query))
    assert answer.status == status, text_of(answer.text)
    return answer.text


# -- topics ----------------------------------------------------------------------------------------


def test_topics_are_listed_without_those_of_the_system(console: ConsoleProcess) -> None:
    rows = rows_of(get(console, "/topics"), "topics")
    assert [TOPIC, "topics", "broker-a", str(QUEUES), str(QUEUES), ""] in rows
    names = {row[0] for row in rows}
    assert not names & {"SCHEDULE_TOPIC_XXXX", "TBW102", "DefaultCluster", "broker-a", f"%RETRY%{GROUP}"}
    every = {row[0] for row in rows_of(get(console, "/topics", kind="all"), "topics")}
    assert {TOPIC, "SCHEDULE_TOPIC_XXXX", "TBW102", f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"} <= every
    assert [row[0] for row in rows_of(get(console, "/topics", kind="dead letters"), "topics")] == [
        f"%DLQ%{GROUP}"
    ]
    assert [row[0] for row in rows_of(get(console, "/topics", q="rDe"), "topics")] == [TOPIC]
    assert "No topic of that kind has “nothing” in its name" in text_of(get(console, "/topics", q="nothing"))


def test_a_topic_shows_its_route_queues_and_consumers(console: ConsoleProcess, pair: ScratchPair) -> None:
    page = get(console, f"/topics/{TOPIC}")
    (route,) = rows_of(page, "route")
    assert route[0] == "broker-a"
    assert route[2] == f"0 at {pair.master_addr}, 1 at {pair.slave_addr}"
    assert route[5] == "RW-"
    (consumer,) = rows_of(page, "consumers")
    assert consumer[:2] == [GROUP, str(WAITING)]
    queues = rows_of(page, "queues")
    assert [row[:2] for row in queues] == [["broker-a", "0"], ["broker-a", "1"]]
    assert sum(int(row[4]) for row in queues) == MESSAGES
    assert "unknown to nameserver" in text_of(get(console, "/topics/NoSuchTopic", 404))


# -- groups ----------------------------------------------------------------------------------------


def test_groups_are_listed_with_what_they_are_behind(console: ConsoleProcess) -> None:
    rows = {row[0]: row for row in rows_of(get(console, "/groups"), "groups")}
    assert rows[GROUP][1:3] == ["0", "OFFLINE"]
    assert rows[GROUP][-1] == str(WAITING)
    page = get(console, f"/groups/{GROUP}")
    assert f"Behind by {WAITING} messages" in text_of(page)
    assert "No member is online." in text_of(page)
    orders = [row for row in rows_of(page, "queues") if row[0] == TOPIC]
    assert sum(int(row[5]) for row in orders) == WAITING


@pytest.mark.parametrize("name", ["nobody", "%00", "%2e%2e"])
def test_a_group_that_nobody_knows_is_not_there(console: ConsoleProcess, filled: Filled, name: str) -> None:
    for page in (f"/groups/{name}", f"/dead-letters/{name}"):
        assert "No broker knows a group " in text_of(get(console, page, 404))


def test_a_group_is_there_by_whatever_a_broker_has_of_it(
    console: ConsoleProcess, filled: Filled, pair: ScratchPair
) -> None:
    with MQAdmin([filled.namesrv]) as admin:
        for topic in ("%RETRY%by-retries", "%DLQ%by-dead-letters"):
            admin.update_topic(pair.master_addr, CreateTopicHeader(topic, "TBW102", 1, 1, 6))
        update_offset(admin, pair.master_addr, "by-offsets", MessageQueue(TOPIC, "broker-a", 0), 1)
        wait_until(
            lambda: {"%RETRY%by-retries", "%DLQ%by-dead-letters"} <= set(admin.topics()), "they are known"
        )
    with Admin(filled.options) as client:
        client.create_group("by-subscription")
    for name in ("by-retries", "by-dead-letters", "by-offsets", "by-subscription"):
        assert "No member is online." in text_of(get(console, f"/groups/{name}"))
        get(console, f"/dead-letters/{name}")
    assert "This group has no dead letters." in text_of(get(console, "/dead-letters/by-offsets"))


def test_members_are_shown_while_they_are_online(console: ConsoleProcess, filled: Filled) -> None:
    with (
        PushConsumer("watchers", lambda message: None, filled.options) as consumer,
        Producer("writers", filled.options) as producer,
    ):
        consumer.subscribe(TOPIC)
        producer.queues(TOPIC)
        wait_until(lambda: 'id="members"' in console.get("/groups/watchers").text, "the member is known")
        page = get(console, "/groups/watchers")
        (member,) = rows_of(page, "members")
        assert member[2] == "PYTHON"
        assert rows_of(page, "subscriptions")[-1][:2] == [TOPIC, "*"]
        host = member[0].partition("@")[0]
        wait_until(lambda: owners(console) == {host}, "the member has all queues")
        (online,) = rows_of(get(console, "/connections/consumers", q="watch"), "consumers")
        assert online[:2] == ["watchers", member[0]]
        assert online[3] == "PYTHON"
        assert online[5] == "broker-a"
        wait_until(lambda: "writers" in get(console, "/connections"), "the producer is known")
        (writer,) = rows_of(get(console, "/connections", q="writers"), "producers")
        assert writer[0] == "writers"
        assert writer[6] == "broker-a"


def owners(console: ConsoleProcess) -> set[str]:
    rows = rows_of(get(console, "/groups/watchers", owners="1"), "queues")
    return {row[7] for row in rows if row[0] == TOPIC}


def test_a_reset_is_shown_first_and_then_done_as_shown(
    console: ConsoleProcess, changing: ConsoleProcess, filled: Filled
) -> None:
    group = "rewinding"
    consume(filled, MESSAGES, group)
    page = f"/groups/{group}/reset"
    begin = (datetime.now() - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M")
    dry = get(console, page, topic=TOPIC, time=begin)
    assert f"{MESSAGES} messages would be consumed again." in text_of(dry)
    assert "read-only" in text_of(dry)
    with Admin(filled.options) as admin:
        assert admin.lag(group, TOPIC) == 0, "the dry run has moved nothing"
        back = agreed(get(changing, page, topic=TOPIC, time=begin))
        assert console.post(page, back).status == 403
        assert admin.lag(group, TOPIC) == 0, "a console that is read-only has moved something"
        assert "are reset" in text_of(changing.post(page, back).text)
        assert admin.lag(group, TOPIC) == MESSAGES
        only_back = get(changing, page, topic=TOPIC, time="now", backonly="1")
        assert "Nothing would move." in text_of(only_back)
        assert "Reset the offsets" not in text_of(only_back)
        skip = get(changing, page, topic=TOPIC, time="now")
        assert f"{MESSAGES} messages would be skipped" in text_of(skip)
        for typed in ({}, {"typed_name": "another"}):
            refused = changing.post(page, agreed(skip, **typed))
            assert refused.status == 409
            assert f"Nothing was done. Type the group's name, {group}," in text_of(refused.text)
        assert admin.lag(group, TOPIC) == MESSAGES, "messages are skipped without the name"
        changing.post(page, agreed(skip, typed_name=group))
        assert admin.lag(group, TOPIC) == 0
    wrong = get(console, page, 400, topic=TOPIC, time="yesterday")
    assert "'yesterday' is no time. Give one of: now;" in text_of(wrong)


def test_a_reset_of_a_stale_tab_shows_the_new_dry_run(
    changing: ConsoleProcess, filled: Filled, pair: ScratchPair
) -> None:
    group = "overtaken"
    consume(filled, MESSAGES, group)
    page = f"/groups/{group}/reset"
    begin = (datetime.now() - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M")
    with Admin(filled.options) as admin, MQAdmin([filled.namesrv]) as mqadmin:
        first = admin.progress(group, TOPIC)
        stale = agreed(get(changing, page, topic=TOPIC, time=begin))
        queue = MessageQueue(TOPIC, "broker-a", 0)
        update_offset(mqadmin, pair.master_addr, group, queue, first[queue].consumer_offset - 1)
        for fields in (stale, {name: value for name, value in stale.items() if name != "facts"}):
            answer = changing.post(page, fields)
            assert answer.status == 409, text_of(answer.text)
            assert "have changed since this was shown" in text_of(answer.text)
            assert f"{MESSAGES - 1} messages would be consumed again" in text_of(answer.text)
        old = agreed(answer.text)
        shown = str(int(old["shown"]) - 1000 * SHOWN_MAX_S - 60_000)
        assert "seconds old" in text_of(changing.post(page, {**old, "shown": shown}).text)
        assert admin.lag(group, TOPIC) == 1, "a stale form has moved the group"
        assert changing.post(page, old).status == 200
        assert admin.lag(group, TOPIC) == MESSAGES


def test_a_group_without_offsets_cannot_be_reset(changing: ConsoleProcess, filled: Filled) -> None:
    with Admin(filled.options) as client:
        client.create_group("beginner")
    begin = (datetime.now() - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M")
    dry = get(changing, "/groups/beginner/reset", topic=TOPIC, time=begin)
    assert "At broker-a the group has no offset in this topic" in text_of(dry)
    assert "Nothing would move." not in text_of(dry)
    assert "Reset the offsets" not in text_of(dry)
    assert {tuple(row[3:]) for row in rows_of(dry, "moves")} == {("none", "none", "")}


# -- messages --------------------------------------------------------------------------------------


def test_a_message_is_found_by_its_ids_and_shown_with_its_body(
    console: ConsoleProcess, filled: Filled
) -> None:
    sent = filled.sent["json"]
    page = follow(console, console.get(path("/messages/id", {"id": sent.offset_msg_id})))
    assert "{\n  &#34;order&#34;: 7,\n" in page
    assert "1.50" in page
    assert "&lt;b&gt;&amp;amp;&lt;/b&gt;" in page
    facts = dict(row for row in rows_of(page, "facts"))
    assert facts["Where it is"].startswith(
        f"queue {sent.queue.queue_id} of broker-a, offset {sent.queue_offset} ;"
    )
    assert facts["Client's id"] == sent.msg_id
    assert [GROUP, "NOT_ONLINE"] in [row[:2] for row in rows_of(page, "tracks")]
    by_key = rows_of_messages(get(console, "/messages/id", id=sent.msg_id, topic=TOPIC))
    assert [row[1] for row in by_key] == [sent.msg_id]
    asked = get(console, "/messages/id", 400, id=sent.msg_id)
    assert "give the topic, too" in text_of(asked)


def follow(console: ConsoleProcess, answer: Answer) -> str:
    assert answer.status == 303
    return get(console, answer.headers["location"])


def rows_of_messages(page: str) -> list[list[str]]:
    """Of a list of messages, which has no id of its own."""
    return rows_of(page.replace("<table>", '<table id="messages">', 1), "messages")


def test_an_id_with_a_strangers_address_is_not_asked_there(console: ConsoleProcess, filled: Filled) -> None:
    sent = filled.sent["json"]
    strange = "7F000001" + "00000001" + sent.offset_msg_id[16:]
    page = get(console, "/messages/id", 404, id=strange)
    assert "no nameserver knows a broker there now" in text_of(page)
    at = int(sent.offset_msg_id[16:], 16)
    assert sent.msg_id in get(console, "/messages/stored", broker="broker-a", at=at)
    assert "begins at offset 1 " in text_of(get(console, "/messages/stored", 404, broker="broker-a", at=1))


def test_bodies_are_shown_as_what_they_are(console: ConsoleProcess, filled: Filled) -> None:
    def shown(name: str) -> str:
        sent = filled.sent[name]
        place: dict[str, Any] = {
            "topic": TOPIC,
            "broker": "broker-a",
            "queue": sent.queue.queue_id,
            "offset": sent.queue_offset,
        }
        return get(console, "/messages/at", **place)

    assert f"00000010 {BINARY[16:32].hex(' ')}" in text_of(shown("binary"))
    long = text_of(shown("long"))
    assert "zlib-compressed" in long
    assert "The first 64.0 KiB of it." in long
    assert long.count("a line of text") == 64 * 1024 // 32


def test_messages_are_found_by_key_and_by_time(console: ConsoleProcess, filled: Filled) -> None:
    page = get(console, "/messages/key", topic=TOPIC, key="every")
    keys = sorted(row[6] for row in rows_of_messages(page))
    assert keys == [f"order-{name} every" for name in ("binary", "json", "long")]
    assert "0 messages with nothing" in text_of(get(console, "/messages/key", topic=TOPIC, key="nothing"))
    rows = rows_of_messages(get(console, "/messages/time", topic=TOPIC))
    assert len(rows) == MESSAGES
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    first, last = rows[0][0], rows[-1][0]
    assert len(rows_of_messages(get(console, "/messages/time", topic=TOPIC, begin=first))) == MESSAGES
    before = rows_of_messages(get(console, "/messages/time", topic=TOPIC, begin=first, end=last))
    assert [row[0] for row in before] == [row[0] for row in rows if first <= row[0] < last]
    one = rows_of_messages(get(console, "/messages/time", topic=TOPIC, broker="broker-a", queue="1"))
    assert {row[3] for row in one} == {"1"}
    assert "No broker has the name 127.0.0.1:1" in text_of(
        get(console, "/messages/time", 404, topic=TOPIC, broker="127.0.0.1:1")
    )


def test_a_long_range_comes_in_pages_that_hold_each_message_once(
    console: ConsoleProcess, filled: Filled
) -> None:
    topic, count = "ManyOrders", 250
    with Admin(filled.options) as admin:
        admin.create_topic(topic, QUEUES)
        wait_until(lambda: topic in admin.topics(), "the topic is known")
    with Producer(PRODUCERS, filled.options) as producer:
        for result in [producer.send_async(Message(topic, b"%d" % number)) for number in range(count)]:
            assert result.result(10).ok
    found: list[str] = []
    page = get(console, "/messages/time", topic=topic)
    assert f"about {count} messages in {QUEUES} queues" in text_of(page)
    for _ in range(2):
        found += [row[1] for row in rows_of_messages(page)]
        page = get(console, "/messages/time" + next_of(page))
    found += [row[1] for row in rows_of_messages(page)]
    assert len(found) == len(set(found)) == count
    assert 'rel="next"' not in page


def next_of(page: str) -> str:
    return page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")


@pytest.mark.parametrize("wrong", ["abc", "-5", "12.5", "\u0661", "9" * 20, ""])
def test_what_is_no_number_is_refused_and_not_taken_for_another(
    console: ConsoleProcess, filled: Filled, wrong: str
) -> None:
    def refused(page: str, **query: Any) -> str:
        return text_of(get(console, page, 400, **query))

    place: dict[str, Any] = {"topic": TOPIC, "broker": "broker-a", "queue": 0, "offset": 0}
    get(console, "/messages/at", **place)
    said = "give a whole number from 0 to"
    offset = refused("/messages/at", **{**place, "offset": wrong})
    assert (f"'{wrong}' is no offset: {said}" if wrong.isascii() and wrong else said) in offset
    assert said in refused("/messages/at", **{**place, "queue": wrong})
    assert said in refused("/messages/stored", broker="broker-a", at=wrong)
    if not wrong:
        return
    assert said in refused("/messages/time", topic=TOPIC, queue=wrong)
    assert said in refused("/messages/time", **{"topic": TOPIC, "fromq": 0, "from": wrong})
    assert said in refused(f"/dead-letters/{GROUP}", broker="broker-a", queue=wrong)
    assert said in refused(f"/dead-letters/{GROUP}", broker="broker-a", queue=0, before=wrong)


def test_a_queue_has_a_smaller_number_than_an_offset(console: ConsoleProcess, filled: Filled) -> None:
    large = 99999999999
    place: dict[str, Any] = {"topic": TOPIC, "broker": "broker-a", "queue": 0, "offset": large}
    assert f"has no message {large}" in text_of(get(console, "/messages/at", 404, **place))
    page = get(console, "/messages/at", 400, **{**place, "queue": large})
    assert f"'{large}' is no queue: give a whole number from 0 to 2147483647." in text_of(page)


# -- dead letters ----------------------------------------------------------------------------------


def test_dead_letters_are_sent_again_once_and_only_those_chosen(
    console: ConsoleProcess, changing: ConsoleProcess, filled: Filled
) -> None:
    (group,) = rows_of(get(console, "/dead-letters", q=GROUP), "groups")
    assert group[:2] == [GROUP, str(len(DEAD))]
    page = get(console, f"/dead-letters/{GROUP}")
    marks = [text.partition('"')[0] for text in page.split('name="m" value="')[1:]]
    assert len(marks) == len(DEAD)
    chosen = marks[:2]
    query = "&".join(["to=retry", *(f"m={mark}" for mark in chosen)])
    plan = get(console, f"/dead-letters/{GROUP}/send?{query}")
    assert "2 of 2 messages would be sent again, to the retry topic of billing" in text_of(plan)
    fields = {
        "to": "retry",
        "once": "a secret of its own",
        **{f"m{at}": mark for at, mark in enumerate(chosen)},
    }
    assert console.post(f"/dead-letters/{GROUP}/send", fields).status == 403
    retry = f"%RETRY%{GROUP}"
    with Admin(filled.options) as admin:
        before = sum(admin.max_offset(queue) for queue in admin.queues(retry))
        sent = changing.post(f"/dead-letters/{GROUP}/send", fields)
        assert "2 of 2 messages are stored again." in text_of(sent.text)
        again = changing.post(f"/dead-letters/{GROUP}/send", fields)
        assert again.status == 409
        assert sum(admin.max_offset(queue) for queue in admin.queues(retry)) == before + 2
    seen = consume(filled, WAITING + 2)
    back = [message for message in seen if message.body in DEAD]
    assert sorted(message.topic for message in back) == [TOPIC, TOPIC]
    assert {message.reconsume_times for message in back} == {0}
    assert {message.keys[0] for message in back} == {row[3] for row in rows_of(plan, "letters")}
    assert rows_of(get(console, "/dead-letters", q=GROUP), "groups")[0][1] == str(len(DEAD))


def test_dead_letters_go_to_their_original_topic_where_asked(
    changing: ConsoleProcess, filled: Filled
) -> None:
    with Admin(filled.options) as admin:
        before = sum(admin.max_offset(queue) for queue in admin.queues(TOPIC))
        fields = {"to": "original", "once": "another secret", "m1": "broker-a:0:0"}
        sent = changing.post(f"/dead-letters/{GROUP}/send", fields)
        assert [row[1:3] for row in rows_of(sent.text, "outcomes")] == [[TOPIC, "SEND_OK"]]
        assert sum(admin.max_offset(queue) for queue in admin.queues(TOPIC)) == before + 1
        newest = max(admin.find(TOPIC, "dead-0"), key=lambda one: one.store_timestamp_ms)
    assert newest.body == DEAD[0]
    assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY"} & newest.properties.keys()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("to=retry", "None was chosen"),
        ("to=nowhere&m=broker-a:0:0", "Where to?"),
        ("to=retry&m=broker-a:0:99", "has no message 99"),
        ("to=retry&m=nonsense", "names no message"),
        ("to=retry&" + "&".join(f"m=broker-a:0:{at}" for at in range(51)), "At most 50"),
    ],
)
def test_what_cannot_be_sent_again_is_said(console: ConsoleProcess, query: str, said: str) -> None:
    answer = console.get(f"/dead-letters/{GROUP}/send?{query}")
    assert answer.status in (400, 404)
    assert said in text_of(answer.text)


# -- what waits ------------------------------------------------------------------------------------


def test_delayed_messages_and_open_transactions_are_counted(console: ConsoleProcess, filled: Filled) -> None:
    page = get(console, "/waiting")
    levels = {row[0]: row for row in rows_of(page, "levels")}
    assert levels["18"][1:4] == ["2h", "1", "1"]
    assert levels["1"][1:3] == ["1s", "0"]
    (undecided,) = rows_of(page, "transactions")
    assert undecided[2:4] == [TOPIC, "payments"]
    assert undecided[5] == "undecided"
    assert "No broker nobody is registered." in text_of(get(console, "/waiting/nobody", 404))
    assert "No broker nobody is registered." in text_of(get(console, "/waiting", 404, broker="nobody"))
    assert rows_of(get(console, "/waiting", broker="broker-a"), "transactions")


# -- a broker that is gone ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frozen(
    tmp_path_factory: pytest.TempPathFactory, make_console: MakeConsole
) -> Iterator[tuple[ConsoleProcess, str]]:
    """A console beside the only broker, a master that stands still, and its address."""
    with ScratchPair(tmp_path_factory.mktemp("silent"), "ASYNC_MASTER", SETTINGS) as lonely:
        lonely.start_nameserver()
        master = lonely.start_master()
        fill(lonely.namesrv_addr, lonely.master_addr)
        console = make_console(lonely.namesrv_addr)
        get(console, "/waiting")
        freeze(master.popen)
        yield console, lonely.master_addr


@pytest.mark.parametrize(
    ("page", "status", "shown"),
    [
        (f"/topics/{TOPIC}", 200, "How many messages it has is unknown"),
        ("/groups", 200, f"{GROUP} unknown unknown unknown unknown"),
        (f"/groups/{GROUP}", 200, "How far it is behind is unknown"),
        (f"/groups/{GROUP}", 200, "Whether members are online is unknown."),
        (f"/messages/time?topic={TOPIC}", 502, ""),
        (f"/messages/key?topic={TOPIC}&key=every", 502, ""),
        ("/dead-letters", 200, f"{GROUP} unknown"),
        (f"/dead-letters/{GROUP}", 200, "Last unknown"),
        ("/waiting", 200, "How many wait is unknown"),
        ("/connections", 200, "Brokers unknown"),
        ("/connections/consumers", 200, f"{GROUP} unknown"),
    ],
)
def test_a_page_says_who_does_not_answer_and_shows_no_zero(
    frozen: tuple[ConsoleProcess, str], page: str, status: int, shown: str
) -> None:
    console, addr = frozen
    text = text_of(get(console, page, status))
    assert f"{addr} does not answer: it was silent for 3 s" in text
    assert shown in text
    assert not re.search(r"(?<![\d.])0(?![\d.]| at )", text), text


# -- no broker at all -------------------------------------------------------------------------------


def test_pages_with_nothing_to_list_say_so(
    tmp_path_factory: pytest.TempPathFactory, make_console: MakeConsole
) -> None:
    with ScratchPair(tmp_path_factory.mktemp("empty"), "ASYNC_MASTER", SETTINGS) as empty:
        empty.start_nameserver()
        lonely = make_console(empty.namesrv_addr)
        assert "No group has a retry topic yet." in text_of(get(lonely, "/groups"))
        assert "No group has “x” in its name." in text_of(get(lonely, "/groups", q="x"))
        for one in PAGES:
            get(lonely, one)


def test_pages_that_are_no_visit_say_whether_changes_are_allowed(
    console: ConsoleProcess, changing: ConsoleProcess
) -> None:
    assert "changes allowed" in text_of(get(changing, "/no-such-page", 404))
    assert "read-only" in text_of(get(console, "/no-such-page", 404))


# -- what brokers run with -------------------------------------------------------------------------


def test_what_the_file_says_otherwise_is_shown_beside_what_is_in_force(
    console: ConsoleProcess, pair: ScratchPair
) -> None:
    assert [row[0] for row in rows_of(get(console, "/configuration"), "brokers")] == ["broker-a", "broker-a"]
    file = pair.root / "broker-a-s.properties"
    before = file.read_text()
    assert "Nothing waits for a restart." in text_of(get(console, "/configuration/broker-a/1"))
    file.write_text(before + "longPollingEnable=false\nsendThreadPoolQueueCapacity=77\nfileReservedTime=5\n")
    page = get(console, "/configuration/broker-a/1")
    differing = {row[0]: row[1:] for row in rows_of(page, "differing")}
    assert differing["longPollingEnable"][:2] == ["true", "false"]
    assert "fileReservedTime" in differing
    assert {row[2] for row in differing.values()} <= {
        "from the next start on",
        "once the broker reads its file again (SIGHUP)",
    }
    keys = dict(rows_of(get(console, "/configuration/broker-a/1", q="LONGPOLLING"), "keys"))
    assert keys["longPollingEnable"] == "true"
    file.write_text(before + "fileReservedTime=soon\n")
    assert "Its next start would fail" in text_of(get(console, "/configuration/broker-a/1"))
    file.write_text(before)
    assert "No broker broker-a with id 7" in text_of(get(console, "/configuration/broker-a/7", 404))


def test_without_access_control_the_page_of_accounts_says_so(console: ConsoleProcess) -> None:
    assert "Access control is off (aclEnable=false) at broker-a 0, broker-a 1" in text_of(
        get(console, "/accounts")
    )
