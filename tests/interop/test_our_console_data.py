"""mqconsole's pages of topics, groups, messages and their like, all from a stock nameserver and a stock broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from haservice.client import Admin
from haservice.client.options import ClientOptions
from tests.console.filled import (
    DEAD,
    GROUP,
    JSON,
    QUEUES,
    TOPIC,
    WAITING,
    Filled,
    fill,
    path,
    rows_of,
    text_of,
)
from tests.console.support import ConsoleProcess, agreed
from tests.interop.stock import broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(180)]

MESSAGES = 3 + len(DEAD) + WAITING


class Stage(NamedTuple):
    """A stock broker with messages, and a console that may change it."""

    console: ConsoleProcess
    filled: Filled

    def get(self, page: str, status: int = 200, **query: Any) -> str:
        answer = self.console.get(path(page, query))
        assert answer.status == status, text_of(answer.text)
        return answer.text


@pytest.fixture(scope="module")
def stage(stock_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("stock")
    with servers() as start:
        namesrv = nameserver("stock", root)
        start(namesrv)
        master = broker("stock", root, namesrv=namesrv)
        start(master)
        with Admin(ClientOptions(namesrv.addr)) as admin:
            wait_until(lambda: any(one.is_master for one in admin.brokers()), "the broker is registered", 40)
        filled = fill(namesrv.addr, master.addr)
        console = ConsoleProcess(root, namesrv.addr, "--allow-changes")
        try:
            console.wait_booted()
            yield Stage(console, filled)
        finally:
            console.kill()


def test_topics_and_groups_of_a_stock_broker(stage: Stage) -> None:
    topics = {row[0]: row for row in rows_of(stage.get("/topics"), "topics")}
    assert topics[TOPIC][3:5] == [str(QUEUES), str(QUEUES)]
    assert "SCHEDULE_TOPIC_XXXX" not in topics
    topic = stage.get(f"/topics/{TOPIC}")
    assert rows_of(topic, "consumers")[0][:2] == [GROUP, str(WAITING)]
    assert sum(int(row[4]) for row in rows_of(topic, "queues")) == MESSAGES
    groups = {row[0]: row for row in rows_of(stage.get("/groups"), "groups")}
    assert groups[GROUP][-1] == str(WAITING)
    assert "No member is online." in text_of(stage.get(f"/groups/{GROUP}"))


def test_messages_of_a_stock_broker(stage: Stage) -> None:
    sent = stage.filled.sent["json"]
    place: dict[str, Any] = {"topic": TOPIC, "broker": "broker-a", "queue": sent.queue.queue_id}
    message = stage.get("/messages/at", **place, offset=sent.queue_offset)
    assert "&#34;order&#34;: 7" in message
    assert f"JSON, {len(JSON)} B" in text_of(message)
    assert [GROUP, "NOT_ONLINE"] in [row[:2] for row in rows_of(message, "tracks")]
    located = stage.console.get(path("/messages/id", {"id": sent.offset_msg_id}))
    assert located.status == 303
    assert sent.msg_id in stage.get(located.headers["location"])
    assert "begins at offset 1 " in text_of(stage.get("/messages/stored", 404, broker="broker-a", at=1))
    assert stage.get("/messages/time", topic=TOPIC).count('class="id"') == MESSAGES
    assert sent.msg_id in stage.get("/messages/key", topic=TOPIC, key="order-json")


def test_what_a_stock_broker_holds_back(stage: Stage) -> None:
    waiting = stage.get("/waiting")
    assert {row[0]: row for row in rows_of(waiting, "levels")}["18"][1:3] == ["2h", "1"]
    assert [row[2:4] for row in rows_of(waiting, "transactions")] == [[TOPIC, "payments"]]


def test_what_a_stock_broker_does_not_tell_is_said(stage: Stage) -> None:
    assert rows_of(stage.get("/connections"), "producers") == [["none"]]
    assert "no member online" in stage.get("/connections/consumers")
    assert "Access control is off" in text_of(stage.get("/accounts"))
    configuration = stage.get("/configuration/broker-a/0")
    assert "a stock broker does not tell it" in text_of(configuration)
    assert dict(rows_of(configuration, "keys"))["brokerName"] == "broker-a"


def test_a_stock_brokers_dead_letters_are_sent_again_and_its_offsets_reset(stage: Stage) -> None:
    assert rows_of(stage.get("/dead-letters"), "groups")[0][:2] == [GROUP, str(len(DEAD))]
    fields = {"to": "original", "once": "a secret of its own", "m0": "broker-a:0:1"}
    again = stage.console.post(f"/dead-letters/{GROUP}/send", fields).text
    assert [row[1:3] for row in rows_of(again, "outcomes")] == [[TOPIC, "SEND_OK"]]
    plan = stage.get(f"/groups/{GROUP}/reset", topic=TOPIC, time="now")
    assert f"{WAITING + 1} messages would be skipped" in text_of(plan)
    fields = agreed(plan, typed_name=GROUP)
    assert "are reset" in text_of(stage.console.post(f"/groups/{GROUP}/reset", fields).text)
    assert rows_of(stage.get(f"/topics/{TOPIC}"), "consumers")[0][1] == "0"
