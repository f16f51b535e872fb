"""What every coordinator promises: etcd and ZooKeeper as they are, and the one of the simulator."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from kazoo.security import make_digest_acl

from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.cluster import decode
from haservice.coordination.connect import CoordinatorMissing, coordinator_at
from haservice.coordination.coordinator import (
    ABSENT,
    Coordinator,
    CoordinatorError,
    SessionEnded,
    Transaction,
    Versioned,
)
from haservice.coordination.etcd import EtcdCoordinator
from haservice.coordination.zookeeper import ZooKeeperCoordinator
from haservice.devtools.relay import Relay
from tests.support.coordinators import (
    ETCD_MISSING,
    ZOOKEEPER_MISSING,
    Server,
    ask_etcd,
    etcd,
    opened,
    zookeeper,
)
from tests.support.memory_coordinator import MemoryCoordinator, MemoryServer
from tests.support.waiting import wait_until

TTL_S = 3.0
names = itertools.count(1)


class Kind:
    """Makes coordinators of one kind; each test has keys of its own."""

    def __init__(self, make: Callable[[str, int], Coordinator], servers: list[Server]) -> None:
        self.servers = servers
        self._make = make
        self._name = f"broker-{next(names)}"
        self._made: list[Coordinator] = []

    def connected(self, ttl_s: float = TTL_S, port: int = 0) -> Coordinator:
        """One with a session; through another port than the server's, if one is named."""
        made = self._make(self._name, port or (self.servers[0].port if self.servers else 0))
        self._made.append(made)
        wait_until(lambda: opened(made, ttl_s), "a session", 40.0)
        return made

    def close(self) -> None:
        for one in self._made:
            one.close()


@pytest.fixture(scope="module")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers


@pytest.fixture(scope="module")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    if ZOOKEEPER_MISSING:
        pytest.skip(ZOOKEEPER_MISSING)
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as servers:
        yield servers


def real(scheme: str, name: str, port: int) -> Coordinator:
    return coordinator_at(place_of(f"{scheme}://127.0.0.1:{port}"), "test", name, Keys())


@pytest.fixture(params=["memory", "etcd", "zookeeper"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    if request.param == "memory":
        server = MemoryServer(time.monotonic)
        found = Kind(lambda _, __: MemoryCoordinator(server), [])
    else:
        servers = request.getfixturevalue(f"{request.param}_server")
        found = Kind(partial(real, request.param), servers)
    yield found
    found.close()


def put(key: str, value: bytes, expected: int = ABSENT, *, bound: bool = False) -> Transaction:
    return Transaction({key: expected}, {key: value}, frozenset({key} if bound else ()))


def values(coordinator: Coordinator) -> dict[str, bytes]:
    return {key: entry.value for key, entry in coordinator.read().items()}


def ended(one: Coordinator) -> bool:
    try:
        one.renew()
    except SessionEnded:
        return True
    return False


def test_what_was_written_is_read_by_all(kind: Kind) -> None:
    one, other = kind.connected(), kind.connected()
    assert one.read() == {}
    assert one.commit(put("epoch", b"1000"))
    assert one.commit(put("members/b", b"{}"))
    assert values(other) == {"epoch": b"1000", "members/b": b"{}"}


def test_a_key_that_is_not_as_expected_stops_the_whole_transaction(kind: Kind) -> None:
    one = kind.connected()
    assert one.commit(put("epoch", b"1"))
    assert not one.commit(put("epoch", b"2"))
    version = one.read()["epoch"].version
    both = Transaction({"epoch": version, "master": 99}, {"epoch": b"2", "master": b"a"})
    assert not one.commit(both)
    assert values(one) == {"epoch": b"1"}
    assert one.commit(Transaction({"epoch": version, "master": ABSENT}, {"epoch": b"2", "master": b"a"}))
    assert values(one) == {"epoch": b"2", "master": b"a"}


def test_every_write_changes_the_version(kind: Kind) -> None:
    one = kind.connected()
    assert one.commit(put("epoch", b"1"))
    first = one.read()["epoch"].version
    assert first > ABSENT
    assert one.commit(put("epoch", b"1", first))
    assert one.read()["epoch"].version != first
    assert not one.commit(put("epoch", b"3", first))


def test_of_two_that_expect_the_same_one_wins(kind: Kind) -> None:
    one, other = kind.connected(), kind.connected()
    assert one.commit(put("epoch", b"1"))
    version = other.read()["epoch"].version
    took = [
        who.commit(Transaction({"epoch": version, "master": ABSENT}, {"epoch": b"2", "master": name}))
        for who, name in ((one, b"a"), (other, b"b"))
    ]
    assert took == [True, False]
    assert values(one)["master"] == b"a"


def test_a_key_that_is_only_expected_is_not_written(kind: Kind) -> None:
    one = kind.connected()
    assert one.commit(put("epoch", b"1"))
    found = one.read()
    assert one.commit(
        Transaction({"epoch": found["epoch"].version, "master": ABSENT, "status": ABSENT}, {"status": b"x"})
    )
    after = one.read()
    assert after["epoch"] == found["epoch"]
    assert "master" not in after
    assert not one.commit(Transaction({"epoch": ABSENT, "voters": ABSENT}, {"voters": b"x"}))


def test_a_key_is_deleted_as_expected_only(kind: Kind) -> None:
    one = kind.connected()
    assert one.commit(put("master", b"a"))
    version = one.read()["master"].version
    assert not one.commit(Transaction({"master": version + 1}, deletes=frozenset({"master"})))
    assert one.commit(Transaction({"master": version}, deletes=frozenset({"master"})))
    assert one.read() == {}


def test_what_is_bound_goes_with_its_session_and_nothing_else_does(kind: Kind) -> None:
    one, other = kind.connected(), kind.connected(10.0)
    both = Transaction(
        {"master": ABSENT, "epoch": ABSENT}, {"master": b"a", "epoch": b"1"}, frozenset({"master"})
    )
    assert one.commit(both)
    assert set(values(other)) == {"master", "epoch"}
    one.close()
    wait_until(lambda: set(values(other)) == {"epoch"})


def test_a_session_that_is_not_renewed_ends_and_one_that_is_lives_on(kind: Kind) -> None:
    """kazoo renews by itself, so the way to ZooKeeper is cut."""
    with contextlib.ExitStack() as way:
        port = way.enter_context(Relay(kind.servers[0].port)).port if kind.servers else 0
        one, other = kind.connected(port=port), kind.connected()
        assert one.commit(put("members/a", b"a", bound=True))
        assert other.commit(put("members/b", b"b", bound=True))
        began_s = time.monotonic()
        if isinstance(one, ZooKeeperCoordinator):
            way.close()

        def gone() -> bool:
            other.renew()
            return set(values(other)) == {"members/b"}

        wait_until(gone)
        # Of ZooKeeper a quarter counts as lost.
        assert time.monotonic() - began_s > TTL_S * 0.7
        assert isinstance(one, ZooKeeperCoordinator) or ended(one)
        assert not ended(other)


def test_a_session_that_is_over_binds_nothing(kind: Kind) -> None:
    one, other = kind.connected(), kind.connected(10.0)
    one.close()
    with pytest.raises(CoordinatorError):
        one.commit(put("master", b"a", bound=True))
    assert other.read() == {}


def test_a_new_session_takes_over_a_key_of_an_old_one(kind: Kind) -> None:
    one, other = kind.connected(), kind.connected(10.0)
    assert one.commit(put("members/a", b"1", bound=True))
    assert other.commit(put("members/a", b"2", other.read()["members/a"].version, bound=True))
    one.close()
    assert values(other) == {"members/a": b"2"}
    assert other.commit(put("members/a", b"3", other.read()["members/a"].version, bound=True))
    assert values(other) == {"members/a": b"3"}


def test_a_bound_key_that_is_written_unbound_stays(kind: Kind) -> None:
    one, other = kind.connected(), kind.connected(10.0)
    assert one.commit(put("request", b"1", bound=True))
    assert other.commit(put("request", b"2", other.read()["request"].version))
    one.close()
    assert values(other) == {"request": b"2"}


def test_the_history_is_read_apart(kind: Kind) -> None:
    one = kind.connected()
    assert one.commit(
        Transaction({"epoch": ABSENT, "history/1000": ABSENT}, {"epoch": b"1", "history/1000": b"h"})
    )
    assert set(one.read()) == {"epoch"}
    assert {key: entry.value for key, entry in one.history().items()} == {"history/1000": b"h"}


def test_a_watch_tells_of_its_keys(kind: Kind) -> None:
    one, other = kind.connected(10.0), kind.connected(10.0)
    heard: list[int] = []
    one.watch(("master", "settings"), lambda: heard.append(1))
    if kind.servers:
        wait_until(lambda: heard, "a watch tells without cause when it begins")
    before = len(heard)
    assert other.commit(put("epoch", b"1"))
    assert other.commit(put("master", b"a", bound=True))
    wait_until(lambda: len(heard) > before)
    seen = len(heard)
    other.close()
    wait_until(lambda: len(heard) > seen)


def test_names_and_values_of_any_kind_come_back(kind: Kind) -> None:
    one = kind.connected()
    value = "größer \x00 \n 漢字".encode() + bytes(range(256))
    assert one.commit(put("members/0123456789abcdef-ü", value))
    (found,) = one.read().items()
    assert found == ("members/0123456789abcdef-ü", Versioned(value, found[1].version))


def test_broker_names_do_not_see_each_other(kind: Kind) -> None:
    if not kind.servers:
        pytest.skip("the one in memory is of one broker name")
    one = kind.connected()
    assert one.commit(put("epoch", b"1"))
    kind._name += "-s"
    assert kind.connected().read() == {}


def test_an_operator_reads_and_writes_without_a_session_and_makes_no_key_by_that(kind: Kind) -> None:
    operator = kind._make(kind._name, kind.servers[0].port if kind.servers else 0)
    operator.connect()
    try:
        assert f"test/{kind._name}" not in operator.names()
        one = kind.connected()
        assert one.commit(put("master", b"a", bound=True))
        assert not kind.servers or f"test/{kind._name}" in operator.names()
        assert values(operator) == {"master": b"a"}
        assert operator.commit(put("settings", b"s"))
        assert values(one) == {"master": b"a", "settings": b"s"}
        left_s = operator.lease_left_s()
        assert left_s is None or 0 < left_s <= TTL_S
    finally:
        operator.close()
    assert set(values(one)) == {"master", "settings"}


def test_who_has_closed_comes_again(kind: Kind) -> None:
    one, other = kind.connected(), kind.connected(10.0)
    assert one.commit(put("members/a", b"1", bound=True))
    for number in (b"2", b"3"):
        one.close()
        assert values(other) == {}
        one.open_session(TTL_S)
        assert one.commit(put("members/a", number, bound=True))
        assert values(other) == {"members/a": number}
    one.close()
    one.connect()
    assert values(one) == {}


def test_a_key_that_is_none_of_ours_stops_nobody(kind: Kind) -> None:
    one = kind.connected()
    assert one.commit(put("epoch", b"1"))
    if isinstance(one, ZooKeeperCoordinator):
        stranger = f"{one._root}/stranger"
        assert one._client is not None
        one._client.create(stranger, b"\xff\xfe", acl=[make_digest_acl("somebody", "secret", all=True)])
        name = "stranger"
    elif isinstance(one, EtcdCoordinator):
        key = b64encode(one._root.encode() + b"\xff\xfe").decode()
        ask_etcd(kind.servers[0], "kv/put", {"key": key, "value": "/w=="})
        name = r"\xff\xfe"
        assert f"test/{kind._name}" in one.names()
    else:
        assert one.commit(put("stranger", b"\xff\xfe"))
        name = "stranger"
    found = decode(one.read())
    assert (found.epoch, found.strange) == (1, (name,))
    assert one.commit(put("epoch", b"2", found.version("epoch")))


def test_a_server_that_is_not_there_is_an_error_in_time() -> None:
    for scheme in ("etcd", "zookeeper"):
        coordinator = real(scheme, "nobody", 1)
        with pytest.raises(CoordinatorError, match=re.escape("127.0.0.1:1")):
            coordinator.open_session(TTL_S)
        with pytest.raises(CoordinatorError):
            coordinator.read()
        coordinator.close()
        coordinator.close()


def test_of_zookeeper_deleted_paths_come_back(zookeeper_server: list[Server]) -> None:
    kind = Kind(partial(real, "zookeeper"), zookeeper_server)
    one, other = kind.connected(10.0), kind.connected(10.0)
    assert isinstance(one, ZooKeeperCoordinator)
    assert one._client is not None
    heard: list[int] = []
    one.watch(("master",), lambda: heard.append(1))
    for path in ("", "/members", "/history"):
        assert one.commit(put("epoch", b"1"))
        assert other.commit(put("members/a", b"1", bound=True))
        assert values(one) == {"epoch": b"1", "members/a": b"1"} == values(other)
        one._client.delete(f"{one._root}{path}", recursive=True)
        assert other.history() == {}
        for who in (one, other):
            who.renew()
            assert values(who) == (
                {} if not path else {"epoch": b"1"} | ({"members/a": b"1"} if "his" in path else {})
            )
        assert other.commit(put("members/b", b"2", bound=True))
        assert one.read()["members/b"].value == b"2"
        before = len(heard)
        assert other.commit(put("master", b"2", bound=True))
        wait_until(lambda before=before: len(heard) > before)
        one._client.delete(one._root, recursive=True)
        assert values(one) == {}
    kind.close()


def test_of_zookeeper_a_lost_connection_ends_no_session(zookeeper_server: list[Server]) -> None:
    kind = Kind(partial(real, "zookeeper"), zookeeper_server)
    with Relay(zookeeper_server[0].port) as way:
        one = kind.connected(20.0, port=way.port)
        assert one.commit(put("members/a", b"a", bound=True))
        heard: list[int] = []
        one.watch(("master",), lambda: heard.append(1))

        def is_renewed() -> bool:
            try:
                one.renew()
            except SessionEnded as error:
                raise AssertionError(f"the session lives: {error}") from None
            except CoordinatorError:
                return False
            return True

        for number in range(5):
            way.cut()
            wait_until(is_renewed, "renewed", 40.0)
            before = len(heard)
            other = kind.connected()
            assert other.commit(put("master", b"%d" % number, bound=True))
            wait_until(lambda before=before: len(heard) > before)
            other.close()
        assert one.commit(put("members/a", b"b", one.read()["members/a"].version, bound=True))
        kind.close()


def test_zookeeper_is_asked_only_for_what_has_changed(
    zookeeper_server: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Kind(partial(real, "zookeeper"), zookeeper_server)
    one, other = kind.connected(10.0), kind.connected(10.0)
    assert isinstance(one, ZooKeeperCoordinator)
    assert other.commit(put("epoch", b"1"))
    assert other.commit(put("members/a", b"a", bound=True))
    asked: list[str] = []
    assert one._client is not None
    for name in ("get_async", "get_children_async"):
        ask = getattr(one._client, name)
        monkeypatch.setattr(
            one._client, name, lambda path, watch=None, ask=ask: asked.append(path) or ask(path, watch)
        )
    assert values(one) == {"epoch": b"1", "members/a": b"a"}
    asked.clear()
    assert values(one) == {"epoch": b"1", "members/a": b"a"}
    assert asked == []
    assert other.commit(put("epoch", b"2", other.read()["epoch"].version))
    assert values(one)["epoch"] == b"2"
    assert [path.rpartition("/")[2] for path in asked] == ["epoch"]
    other.close()
    wait_until(lambda: values(one) == {"epoch": b"2"})
    kind.close()


def test_a_library_that_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    monkeypatch.delitem(sys.modules, "haservice.coordination.zookeeper")
    with pytest.raises(CoordinatorMissing, match=re.escape("pip install 'haservice[zookeeper]'")):
        real("zookeeper", "nobody", 1)
