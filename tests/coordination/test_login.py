"""A real etcd that wants to know who asks: who says so is served, also once it has forgotten him."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import Coordinator, CoordinatorError, Transaction
from tests.support.coordinators import ETCD_MISSING, Server, etcd, opened
from tests.support.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path) as (one,):
        root = {"name": "root", "password": "secret"}
        for path, what in (
            ("user/add", root),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("enable", {}),
        ):
            ask(one, f"auth/{path}", what)
        yield one


def ask(server: Server, path: str, what: dict[str, Any]) -> None:
    url = f"http://127.0.0.1:{server.port}/v3/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(what).encode()), timeout=10):
        pass


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
