"""The client over TLS: what it sends and receives, and a server that it does not trust."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from haservice.client import (
    Admin,
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    tls_context,
)
from haservice.devtools.pair import ScratchPair
from haservice.errors import HAServiceError
from tests.support.certificates import certificates
from tests.support.waiting import wait_until

BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientOptions]:
    """A nameserver and a master that take nothing but TLS; options for their clients."""
    made = certificates()
    tls = {
        "tls.enable": "true",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(made.server),
        "tls.server.keyPath": str(made.server_key),
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(made.root),
    }
    with ScratchPair(tmp_path_factory.mktemp("tls"), "ASYNC_MASTER", tls) as pair:
        pair.start_nameserver(**tls)
        pair.start_master()
        yield ClientOptions(pair.namesrv_addr, tls=tls_context(roots=made.root))


def test_all_clients_go_over_tls(secured: ClientOptions) -> None:
    with Admin(secured) as admin:
        wait_until(admin.masters, "the master has registered")
        admin.create_topic("Secured", queues=2)
    with Producer("over-tls", secured) as producer:
        assert all(producer.send(Message("Secured", body)).ok for body in BODIES)
    first = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
    pushed: list[bytes] = []
    with PushConsumer(
        "pushed", lambda message: pushed.append(message.body), secured, consuming=first
    ).subscribe("Secured"):
        wait_until(lambda: sorted(pushed) == sorted(BODIES), "all were pushed")
    polled: list[bytes] = []
    with PullConsumer("pulled", secured, consuming=first).subscribe("Secured") as consumer:
        wait_until(
            lambda: polled.extend(one.body for one in consumer.poll(1.0)) or sorted(polled) == sorted(BODIES),  # type: ignore[func-returns-value]
            "all were polled",
        )


@pytest.mark.parametrize("roots", ["stranger", None])
def test_a_server_that_is_not_trusted_gets_no_message(secured: ClientOptions, roots: str | None) -> None:
    """Of another authority, or asked without TLS."""
    path: Path | None = None if roots is None else getattr(certificates(), roots)
    options = replace(secured, tls=None if path is None else tls_context(roots=path))
    with Producer("strangers", options) as producer, pytest.raises(HAServiceError) as refused:
        producer.send(Message("Secured", b"a secret"))
    if path is not None:
        assert "no TLS: the peer's certificate is not trusted: " in str(refused.value)
