"""The Go client rocketmq-client-go v2 at our nameserver and broker: it sends all kinds, and consumes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from haservice.remoting.client import BlockingClient
from haservice.remoting.command import RemotingCommand
from tests.interop.go_client import GoClient, GoError, NoGo, program
from tests.interop.stock import Nameserver, broker, nameserver, servers
from tests.support.waiting import wait_until

# Building it takes a minute or two, once.
pytestmark = [pytest.mark.compat, pytest.mark.cluster, pytest.mark.timeout(300)]

# Its consumers share queues out every 20 s, and the first time when a route is known.
SHARE_SECONDS = 40.0


@pytest.fixture(scope="module")
def go(namesrv: Nameserver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoClient]:
    with GoClient(namesrv.addr, tmp_path_factory.mktemp("go-client")) as client:
        yield client


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nameserver]:
    """With a broker."""
    try:
        program()
    except NoGo as why:
        pytest.skip(str(why))
    directory = tmp_path_factory.mktemp("go")
    with servers() as start:
        made = nameserver("ours", directory)
        start(made)
        start(broker("ours", directory, namesrv=made, enablePropertyFilter=True))
        yield made


def test_it_sends_all_kinds_and_consumes_them(go: GoClient, namesrv: Nameserver) -> None:
    topic = "Go"
    wait_until(lambda: sends(go, topic), "it sends", 30)
    answers = [
        go.call("send", topic=topic, body="plain", tag="A", keys="k1", properties={"price": "5"}),
        go.call("send", topic=topic, body="late", tag="A", delay=1),
        go.call("batch", topic=topic, bodies=["one", "two"], tag="B", properties={"price": "15"}),
        *(
            go.call("transaction", topic=topic, body=answer, answer=answer, tag="A")
            for answer in ("commit", "rollback")
        ),
    ]
    assert [one["status"] for one in answers] == [0] * 5
    go.call("oneway", topic=topic, body="oneway", tag="C")

    wait_until(lambda: has_route(namesrv, topic), "the topic has a route")
    go.call("push", group="go-all", topic=topic, expression="*")
    go.call("push", group="go-tags", topic=topic, expression="B || C")
    go.call("push", group="go-sql", topic=topic, expression="price > 10", sql=True)
    wanted = ["commit", "late", "one", "oneway", "plain", "two", "warm"]
    wait_until(
        lambda: sorted(set(go.bodies("go-all"))) == wanted, "all that is committed comes", SHARE_SECONDS
    )
    wait_until(lambda: go.bodies("go-tags") == ["one", "oneway", "two"], "and what tags say", SHARE_SECONDS)
    wait_until(lambda: go.bodies("go-sql") == ["one", "two"], "and what SQL92 says", SHARE_SECONDS)
    plain = next(one for one in go.call("received", group="go-all") if one["body"] == "plain")
    assert (plain["tags"], plain["properties"]["KEYS"].strip(), plain["properties"]["price"]) == (
        "A",
        "k1",
        "5",
    )
    # Held pulls are woken.
    go.call("send", topic=topic, body="woken", tag="B")
    wait_until(lambda: "woken" in go.bodies("go-tags"), "a waiting consumer is woken")


def sends(go: GoClient, topic: str) -> bool:
    """Until the first route is there, the client says that it found none."""
    try:
        return bool(go.call("send", topic=topic, body="warm", tag="W")["status"] == 0)
    except GoError:
        return False


def has_route(namesrv: Nameserver, topic: str) -> bool:
    with contextlib.closing(BlockingClient()) as client:
        return (
            client.call(namesrv.addr, RemotingCommand.request(105, {"topic": topic}), timeout_s=5.0).code == 0
        )
