"""A real etcd that wants certificates: who has one is served, who has none or trusts another root is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import Coordinator, CoordinatorError, Transaction
from tests.support.certificates import certificates
from tests.support.coordinators import ETCD_MISSING, Server, etcd_with_tls
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd_with_tls(tmp_path_factory.mktemp("etcd")) as one:
        yield one


def at(server: Server, ca: Path | None, *mine: Path, scheme: str = "etcds") -> Coordinator:
    keys = Keys("", "", ca, *mine)
    return coordinator_at(place_of(f"{scheme}://127.0.0.1:{server.port}"), "test", "broker-a", keys)


def test_who_has_a_certificate_has_a_session_and_hears_of_changes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificates()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(made.stranger))
    one, other = (at(server, made.root, made.client, made.client_key) for _ in range(2))
    try:
        assert one.open_session(10.0) == 10.0
        heard: list[int] = []
        one.watch(("epoch",), lambda: heard.append(1))
        wait_until(lambda: bool(heard), "the watch has begun")
        before = len(heard)
        other.connect()
        assert other.commit(Transaction({"epoch": 0}, {"epoch": b"1"}))
        wait_until(lambda: len(heard) > before, "it tells of the change")
        one.renew()
        assert one.read()["epoch"].value == b"1"
    finally:
        one.close()
        other.close()


def test_who_has_none_or_trusts_another_root_or_speaks_plainly_is_told_so(server: Server) -> None:
    made = certificates()
    mine = (made.client, made.client_key)
    for one, why in (
        (at(server, made.root), "(?i)ssl"),
        (at(server, made.root, made.stranger, made.stranger_key), "(?i)ssl"),
        (at(server, made.stranger, *mine), "(?i)certificate.verify.failed"),
        (at(server, None, scheme="etcd"), "does it want TLS"),
    ):
        with pytest.raises(CoordinatorError, match=why):
            one.open_session(5.0)
        one.close()
