"""A real etcd, and a real ZooKeeper, that want to know who asks: who says so is served, also once that is forgotten."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import (
    Coordinator,
    CoordinatorError,
    CoordinatorRefusal,
    SessionEnded,
    Transaction,
)
from haservice.coordination.zookeeper import ZooKeeperCoordinator
from tests.support.coordinators import (
    ETCD_MISSING,
    ZOOKEEPER_MISSING,
    Server,
    ask_etcd,
    etcd,
    opened,
    token_options,
    wants_a_login,
    zookeeper,
)
from tests.support.waiting import wait_until


@pytest.fixture(params=["simple", "jwt"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path, more=token_options(request.param)) as (one,):
        wants_a_login(one)
        yield one


def of(server: Server, user: str, password: str) -> Coordinator:
    place = place_of(f"etcd://127.0.0.1:{server.port}")
    return coordinator_at(place, "test", "broker-a", Keys(user, password))


def test_who_logs_in_is_served_and_logs_in_again_when_the_server_has_forgotten_him(server: Server) -> None:
    one = of(server, "root", "secret")
    try:
        wait_until(lambda: opened(one, 60.0), "a session")
        heard: list[int] = []
        one.watch(("epoch",), lambda: heard.append(1))
        assert one.commit(Transaction({"epoch": 0}, {"epoch": b"1"}))
        server.stop()
        server.start()
        server.answers()

        def reads() -> bool:
            try:
                return one.read()["epoch"].value == b"1"
            except CoordinatorError:
                return False

        wait_until(reads, "it is served again")
        one.renew()
        before = len(heard)
        assert one.commit(Transaction({"epoch": one.read()["epoch"].version}, {"epoch": b"2"}))
        wait_until(lambda: len(heard) > before, "the watch tells")
    finally:
        one.close()


def test_who_is_logged_in_is_served_after_users_were_changed(server: Server) -> None:
    """A token of kind jwt is older then than the store of users: reads, transactions and watches are refused."""
    one = of(server, "root", "secret")
    try:
        wait_until(lambda: opened(one, 60.0), "a session")
        heard: list[int] = []
        one.watch(("epoch",), lambda: heard.append(1))
        assert one.commit(Transaction({"epoch": 0}, {"epoch": b"1"}))
        version = one.read()["epoch"].version
        ask_etcd(server, "auth/user/add", {"name": "carl", "password": "secret"}, "root")
        assert one.commit(Transaction({"epoch": version}, {"epoch": b"2"})), (
            "a commit that is refused is asked again"
        )
        ask_etcd(server, "auth/user/add", {"name": "dora", "password": "secret"}, "root")
        assert one.read()["epoch"].value == b"2"
        one.renew()
        ask_etcd(server, "auth/user/add", {"name": "emil", "password": "secret"}, "root")
        assert opened(one, 60.0)
    finally:
        one.close()


def test_a_watch_that_is_refused_is_opened_again(server: Server) -> None:
    one = of(server, "root", "secret")
    try:
        wait_until(lambda: opened(one, 60.0), "a session")
        ask_etcd(server, "auth/user/add", {"name": "carl", "password": "secret"}, "root")
        heard: list[int] = []
        one.watch(("epoch",), lambda: heard.append(1))  # with the old token
        assert one.commit(Transaction({"epoch": 0}, {"epoch": b"1"}))
        wait_until(lambda: bool(heard), "it is open")

        def hears() -> bool:
            # It tells once when it is opened, and this asks more often than it can be opened.
            assert one.commit(Transaction({"epoch": one.read()["epoch"].version}, {"epoch": b"2"}))
            return len(heard) > 20

        wait_until(hears, "the watch tells of changes, and not only that it was opened")
    finally:
        one.close()


def test_a_user_without_rights_is_told_which_are_missing(server: Server) -> None:
    root, one = of(server, "root", "secret"), of(server, "carl", "secret")
    wait_until(lambda: opened(root, 60.0), "a session")
    ask_etcd(server, "auth/user/add", {"name": "carl", "password": "secret"}, "root")
    with pytest.raises(CoordinatorRefusal) as told:
        one.read()
    assert "role grant-permission ROLE --prefix=true readwrite /haservice/test/broker-a/" in str(told.value)
    for path, what in (
        ("role/add", {"name": "pair"}),
        ("role/grant", {"name": "pair", "perm": prefix("/haservice/test/broker-a/")}),
        ("user/grant", {"user": "carl", "role": "pair"}),
    ):
        ask_etcd(server, f"auth/{path}", what, "root")
    assert one.read() == {}, "the advice is enough"
    assert opened(one, 60.0)
    assert one.commit(Transaction({"members/a": 0}, {"members/a": b"1"}, frozenset({"members/a"})))
    one.close()
    root.close()


def prefix(begin: str) -> dict[str, str]:
    """Rights, as etcdctl role grant-permission --prefix=true writes them."""
    key, end = begin.encode(), begin[:-1].encode() + bytes((ord(begin[-1]) + 1,))
    return {"permType": "READWRITE", "key": b64encode(key).decode(), "range_end": b64encode(end).decode()}


@pytest.mark.parametrize(
    ("user", "password", "why"),
    [
        ("root", "wrong", "authentication failed"),
        ("nobody", "secret", "authentication failed"),
        ("", "", "user name is empty"),
    ],
)
def test_who_does_not_is_told_so(server: Server, user: str, password: str, why: str) -> None:
    """A busy machine may take a while to hash a password."""
    one = of(server, user, password)

    def is_told() -> bool:
        with pytest.raises(CoordinatorError) as told:
            one.read()
        return why in str(told.value)

    wait_until(is_told, why)
    one.close()


# -- ZooKeeper --------------------------------------------------------------------------------------


@pytest.fixture
def zookeeper_server(tmp_path: Path) -> Iterator[Server]:
    if ZOOKEEPER_MISSING:
        pytest.skip(ZOOKEEPER_MISSING)
    with zookeeper(tmp_path) as (one,):
        yield one


def at_zookeeper(server: Server, path: str, user: str, password: str) -> Coordinator:
    place = place_of(f"zookeeper://127.0.0.1:{server.port}{path}")
    return coordinator_at(place, "test", "broker-a", Keys(user, password))


def test_a_session_that_ends_for_a_refused_login_is_followed_by_another_one(zookeeper_server: Server) -> None:
    """A server that is asked for a kind of login that it does not know ends the session so: AUTH_FAILED."""
    one = at_zookeeper(zookeeper_server, "", "pair", "secret")
    assert isinstance(one, ZooKeeperCoordinator)
    try:
        wait_until(lambda: opened(one, 10.0), "a session")
        client = one._client
        assert client is not None
        client.add_auth_async("no such kind", "secret")

        def has_ended() -> bool:
            try:
                one.renew()
            except SessionEnded:
                return True
            return False

        wait_until(has_ended, "it is told as the end of the session, and not as silence")
        wait_until(lambda: opened(one, 10.0), "another one")
        assert one.commit(Transaction({"epoch": 0}, {"epoch": b"1"}))
    finally:
        one.close()


def test_who_is_not_let_in_by_an_acl_is_told_what_helps(zookeeper_server: Server) -> None:
    root = KazooClient(hosts=f"127.0.0.1:{zookeeper_server.port}")
    root.start(timeout=40)
    root.create("/secured", acl=[make_digest_acl("pair", "secret", all=True)])
    root.stop()
    root.close()
    for user, password in (("pair", "wrong"), ("", "")):
        one = at_zookeeper(zookeeper_server, "/secured", user, password)
        with pytest.raises(CoordinatorRefusal, match=r"haCoordinatorUser and haCoordinatorPassword .* ACLs"):
            one.open_session(10.0)
        one.close()
    one = at_zookeeper(zookeeper_server, "/secured", "pair", "secret")
    wait_until(lambda: opened(one, 10.0), "who is let in")
    assert one.commit(Transaction({"epoch": 0}, {"epoch": b"1"}))
    one.close()
