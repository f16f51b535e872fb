"""TLS on the remoting port: who is served in which mode, bad hands, and a port that stays alive."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from haservice.configuration.security_settings import ClientAuth, TlsConfig, TlsMode
from haservice.errors import ConfigError, RemotingUnreachable
from haservice.remoting import acceptor
from haservice.remoting.client import BlockingClient, Tls
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.server import Listener, RemotingServer
from haservice.remoting.tls import ServerTls, client_tls, renewed_client_tls, server_tls
from tests.support.certificates import PASSWORD, Certificates, certificates, signed
from tests.support.remoting import Peer
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")

ECHO = 1000


@pytest.fixture(scope="module")
def certs() -> Certificates:
    return certificates()


def config(certs: Certificates, mode: TlsMode = TlsMode.permissive, **fields: Any) -> TlsConfig:
    given = {"mode": mode, "server_cert": certs.server, "server_key": certs.server_key, **fields}
    return TlsConfig(**given)


@contextmanager
def serving(tls: ServerTls | None, **kw: Any) -> Iterator[RemotingServer]:
    def echo(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ext=request.ext, body=request.body)

    server = RemotingServer([Listener("127.0.0.1", 0, {ECHO: echo}, tls=tls)], **kw)
    server.start()
    try:
        yield server
    finally:
        assert server.stop(PATIENCE_S)


def addr(server: RemotingServer) -> str:
    return f"127.0.0.1:{server.ports[0]}"


def echoes(server: RemotingServer, tls: Tls | None, body: bytes = b"x") -> bool:
    with BlockingClient(tls=tls) as client:
        try:
            return client.call(addr(server), RemotingCommand.request(ECHO, {}, body), 5.0).body == body
        except RemotingUnreachable:
            return False


TRUSTING = TlsConfig(calls=True)


@pytest.mark.parametrize(
    ("mode", "plain", "over_tls"),
    [(TlsMode.disabled, True, False), (TlsMode.permissive, True, True), (TlsMode.enforcing, False, True)],
)
def test_each_mode_serves_its_connections(
    certs: Certificates, mode: TlsMode, plain: bool, over_tls: bool
) -> None:
    with serving(server_tls(config(certs, mode))) as server:
        assert echoes(server, None) is plain
        assert echoes(server, client_tls(TRUSTING)) is over_tls
        wait_until(lambda: server.connections == 0)


def test_permissive_without_a_certificate_serves_plain_connections_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    assert server_tls(TlsConfig()) is None
    assert "there is no tls.server.certPath" in caplog.text


def test_test_mode_makes_a_certificate_of_its_own() -> None:
    with serving(server_tls(TlsConfig(mode=TlsMode.enforcing, test_mode=True))) as server:
        assert echoes(server, client_tls(TRUSTING))


def test_a_large_body_goes_both_ways(certs: Certificates) -> None:
    with serving(server_tls(config(certs))) as server:
        assert echoes(server, client_tls(TRUSTING), b"0123456789" * 800_000)


def test_a_client_that_checks_knows_a_stranger(certs: Certificates) -> None:
    checking = client_tls(TlsConfig(calls=True, auth_server=True, client_trust=certs.root))
    strange = config(certs, server_cert=certs.stranger, server_key=certs.stranger_key)
    with serving(server_tls(config(certs))) as server:
        assert echoes(server, checking)
    with serving(server_tls(strange)) as server:
        assert not echoes(server, checking)
        assert echoes(server, client_tls(TRUSTING))


def test_clients_show_certificates_where_they_have_to(certs: Certificates) -> None:
    demanding = config(certs, client_auth=ClientAuth.require, auth_client=True, server_trust=certs.root)
    known = TlsConfig(calls=True, client_cert=certs.client, client_key=certs.client_key)
    strange = TlsConfig(calls=True, client_cert=certs.stranger, client_key=certs.stranger_key)
    with serving(server_tls(demanding)) as server:
        assert echoes(server, client_tls(known))
        assert not echoes(server, client_tls(strange))
        assert not echoes(server, client_tls(TRUSTING))
        assert echoes(server, None), "permissive still means that plain connections are served"


def test_a_locked_key_opens_with_its_password_only(certs: Certificates) -> None:
    server_tls(config(certs, server_key=certs.locked_key, server_key_password=PASSWORD))
    for password in (None, "wrong"):
        with pytest.raises(ConfigError, match=r"tls\.server\.certPath"):
            server_tls(config(certs, server_key=certs.locked_key, server_key_password=password))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"server_key": None}, r"tls\.server\.keyPath: certificate and key go together"),
        ({"server_cert": None}, r"tls\.server\.certPath: certificate and key go together"),
        (
            {"server_cert": Path("/nowhere/cert.pem")},
            r"tls\.server\.certPath=/nowhere/cert\.pem: cannot be read: No such file",
        ),
        (
            {"server_key": Path("/nowhere/key.pem")},
            r"tls\.server\.keyPath=/nowhere/key\.pem: cannot be read: No such file",
        ),
        ({"server_cert": Path(__file__)}, r"tls\.server\.certPath=.*no certificate with the key"),
        ({"client_auth": ClientAuth.require}, r"tls\.server\.need\.client\.auth"),
        (
            {
                "client_auth": ClientAuth.require,
                "auth_client": True,
                "server_trust": Path("/nowhere"),
            },
            r"tls\.server\.trustCertPath=/nowhere: cannot be read",
        ),
        (
            {"mode": TlsMode.enforcing, "server_cert": None, "server_key": None},
            r"tls\.server\.certPath: tls\.server\.mode=enforcing needs a certificate",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_key(
    certs: Certificates, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        server_tls(config(certs, **fields), "broker-a.properties")


def test_a_certificate_and_key_that_are_not_a_pair_are_refused(certs: Certificates) -> None:
    with pytest.raises(ConfigError, match="no certificate with the key"):
        server_tls(config(certs, server_key=certs.client_key))


def test_a_thousand_reloads_leave_no_file_open_and_no_context_behind(
    certs: Certificates, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    pairs = ((certs.server, certs.server_key), (certs.stranger, certs.stranger_key))
    shutil.copy(pairs[0][0], cert)
    shutil.copy(pairs[0][1], key)
    tls = server_tls(config(certs, server_cert=cert, server_key=key))
    assert tls is not None

    def counts() -> tuple[int, int]:
        gc.collect()
        contexts = sum(isinstance(one, ssl.SSLContext) for one in gc.get_objects())
        return len(list(Path("/proc/self/fd").iterdir())), contexts

    before = counts()
    for number in range(1, 1001):
        for source, target in zip(pairs[number % 2], (cert, key), strict=True):
            shutil.copy(source, target)
            os.utime(target, (number, number))
        tls.poll()
        tls.poll()
    files, contexts = counts()
    assert files <= before[0]
    assert contexts <= before[1] + 1
    with serving(tls) as server:
        assert echoes(server, client_tls(TRUSTING))


def test_a_renewed_certificate_is_shown_to_the_next_client(certs: Certificates, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(certs.stranger, cert)
    shutil.copy(certs.stranger_key, key)
    tls = server_tls(config(certs, server_cert=cert, server_key=key))
    assert tls is not None
    checking = client_tls(TlsConfig(calls=True, auth_server=True, client_trust=certs.root))
    with serving(tls) as server:
        assert not echoes(server, checking)
        cert.write_text("half a certif")
        tls.poll()
        tls.poll()
        assert echoes(server, client_tls(TRUSTING)), "the one before stays while the new one is no good"
        shutil.copy(certs.server, cert)
        shutil.copy(certs.server_key, key)
        tls.poll()
        tls.poll()
        assert echoes(server, checking)


def test_calls_trust_a_new_root_with_the_next_connection(certs: Certificates, tmp_path: Path) -> None:
    trust = tmp_path / "roots.pem"
    shutil.copy(certs.root, trust)
    tls = renewed_client_tls(
        TlsConfig(calls=True, auth_server=True, client_trust=trust), "broker-a.properties"
    )
    assert tls is not None
    strange = config(certs, server_cert=certs.stranger, server_key=certs.stranger_key)
    with serving(server_tls(strange)) as server, BlockingClient(tls=tls) as client:
        with pytest.raises(RemotingUnreachable):
            client.call(addr(server), RemotingCommand.request(ECHO, {}, b"x"))
        trust.write_text(certs.root.read_text() + certs.stranger.read_text())
        tls.poll()
        tls.poll()
        assert client.call(addr(server), RemotingCommand.request(ECHO, {}, b"x")).body == b"x"
        trust.write_text("half a certif")
        for _ in range(3):
            tls.poll()
        assert "tls.client.trustCertPath" in tls.renewed.trouble
        assert echoes(server, tls.context), "the roots before stay while the new ones are no good"


def test_calls_show_a_renewed_certificate(certs: Certificates, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(certs.stranger, cert)
    shutil.copy(certs.stranger_key, key)
    demanding = config(certs, client_auth=ClientAuth.require, auth_client=True, server_trust=certs.root)
    tls = renewed_client_tls(TlsConfig(calls=True, client_cert=cert, client_key=key))
    assert tls is not None
    with serving(server_tls(demanding)) as server:
        assert not echoes(server, tls)
        shutil.copy(certs.client, cert)
        shutil.copy(certs.client_key, key)
        tls.poll()
        tls.poll()
        assert echoes(server, tls)


# ---- bad hands


def test_a_plain_connection_to_an_enforcing_port_is_closed_with_a_line(
    certs: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(server_tls(config(certs, TlsMode.enforcing))) as server, Peer(server.ports[0]) as peer:
        peer.send(RemotingCommand.request(ECHO))
        assert peer.closed_by_server()
        wait_until(lambda: "tls.server.mode=enforcing refuses it" in caplog.text)
        assert peer.socket.getsockname()[1] == int(caplog.text.split("peer=127.0.0.1:")[1].split(":")[0])


@pytest.mark.parametrize(
    "data",
    [
        b"\x16" + b"\x00" * 100,
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x01\xff\xff" + b"\x01" * 70000,
        b"\x16\x03\x03\x00\x04\x01\xff\xff\xff",
        b"\x16",
    ],
    ids=["zeros", "no hello", "long", "lying", "one byte"],
)
def test_a_bad_handshake_ends_its_connection_and_nothing_else(
    certs: Certificates, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    with serving(server_tls(config(certs))) as server, BlockingClient(tls=client_tls(TRUSTING)) as client:
        assert client.call(addr(server), RemotingCommand.request(ECHO)).code == 0
        with Peer(server.ports[0]) as peer:
            peer.socket.sendall(data)
            peer.socket.shutdown(socket.SHUT_WR)
            while peer.socket.recv(1 << 16):
                pass  # an alert, perhaps, and then the end
        assert client.call(addr(server), RemotingCommand.request(ECHO)).code == 0
        assert server.connections == 1
        assert "Traceback" not in caplog.text
        assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_a_handshake_that_never_ends_is_ended(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", 0.2)
    with serving(server_tls(config(certs))) as server, Peer(server.ports[0]) as peer:
        peer.socket.sendall(b"\x16\x03\x01")
        assert peer.closed_by_server()
        wait_until(lambda: "no TLS handshake" in caplog.text)


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("stranger", "no root here has signed it"),
        ("expired", "its time is over"),
        ("purpose", "another purpose"),
    ],
)
def test_a_refused_certificate_is_told_with_its_address_and_the_reason(
    certs: Certificates, caplog: pytest.LogCaptureFixture, shown: str, why: str
) -> None:
    pairs = {"stranger": (certs.stranger, certs.stranger_key), "expired": signed("late", -1)}
    cert, key = pairs.get(shown) or signed("for-servers", usage="serverAuth")
    demanding = config(certs, client_auth=ClientAuth.require, auth_client=True, server_trust=certs.root)
    with serving(server_tls(demanding)) as server:
        assert not echoes(server, client_tls(TlsConfig(calls=True, client_cert=cert, client_key=key)))
        wait_until(lambda: "no TLS handshake" in caplog.text)
    (line,) = [one.getMessage() for one in caplog.records if "no TLS handshake" in one.getMessage()]
    assert line.startswith("closing peer=127.0.0.1:")
    assert "peer=127.0.0.1:0" not in line
    assert "the peer's certificate is not trusted: " in line
    assert why in line


def test_a_call_says_why_the_server_is_not_trusted(certs: Certificates) -> None:
    cert, key = signed("late-server", -1)
    checking = client_tls(TlsConfig(calls=True, auth_server=True, client_trust=certs.root))
    late = config(certs, server_cert=cert, server_key=key)
    with (
        serving(server_tls(late)) as server,
        BlockingClient(tls=checking) as client,
        pytest.raises(RemotingUnreachable) as refused,
    ):
        client.call(addr(server), RemotingCommand.request(ECHO))
    assert "certificate has expired (its time is over)" in str(refused.value)


def test_one_line_is_enough_for_one_address(certs: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    with serving(server_tls(config(certs))) as server:
        for _ in range(5):
            with Peer(server.ports[0]) as peer:
                peer.socket.sendall(b"\x16\x03\x01\x00\x05hello")
                peer.socket.shutdown(socket.SHUT_WR)
                while peer.socket.recv(1 << 16):
                    pass
        assert echoes(server, None)
    assert caplog.text.count("no TLS handshake") == 1


def test_a_connection_that_says_nothing_is_closed_after_its_idle_time(certs: Certificates) -> None:
    with serving(server_tls(config(certs)), idle_seconds=0.3) as server, Peer(server.ports[0]) as peer:
        began = time.monotonic()
        assert peer.closed_by_server()
        assert time.monotonic() - began >= 0.25
        assert server.connections == 0


def test_a_first_byte_that_comes_late_is_served(certs: Certificates) -> None:
    with (
        serving(server_tls(config(certs))) as server,
        Peer(server.ports[0]) as peer,
        Peer(server.ports[0]) as other,
    ):
        assert other.ask(ECHO).code == 0  # by now the first one has been accepted
        assert peer.ask(ECHO, body=b"late").body == b"late"


def test_silent_and_half_open_connections_do_not_keep_a_server_from_stopping(certs: Certificates) -> None:
    with serving(server_tls(config(certs))) as server:
        peers = [Peer(server.ports[0]) for _ in range(20)]
        for peer in peers[:10]:
            peer.socket.sendall(b"\x16\x03\x01")
        assert echoes(server, None)
    for peer in peers:
        assert peer.closed_by_server()
        peer.close()


def test_a_peer_that_hangs_up_before_its_first_byte_leaves_nothing(certs: Certificates) -> None:
    with serving(server_tls(config(certs))) as server:
        for _ in range(20):
            Peer(server.ports[0]).close()
        assert echoes(server, None)
        (taking,) = server._acceptors
        wait_until(lambda: not taking._silent)


def test_tls_clients_are_served_while_others_dawdle(certs: Certificates) -> None:
    with serving(server_tls(config(certs))) as server:
        dawdlers = [Peer(server.ports[0]) for _ in range(50)]
        for peer in dawdlers[::2]:
            peer.socket.sendall(b"\x16\x03\x01\x02\x00")
        served: list[bool] = []

        def call() -> None:
            served.append(echoes(server, client_tls(TRUSTING)))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert served == [True] * 4
        for peer in dawdlers:
            peer.close()


# ---- calls out


def test_a_tls_call_to_a_plain_server_says_what_is_wrong() -> None:
    with serving(None) as server, BlockingClient(tls=client_tls(TRUSTING)) as client:
        with pytest.raises(RemotingUnreachable) as unreachable:
            client.call(addr(server), RemotingCommand.request(ECHO), 5.0)
        assert addr(server) in str(unreachable.value)
        assert "TLS" in unreachable.value.reason


def test_calls_are_plain_unless_they_are_asked_to_be_otherwise(certs: Certificates) -> None:
    assert client_tls(TlsConfig()) is None
    assert client_tls(config(certs, TlsMode.permissive)) is None
    assert client_tls(TlsConfig(calls=True)) is not None
    assert client_tls(config(certs, TlsMode.enforcing)) is not None


def test_one_cause_hides_no_other_of_the_same_address(
    certs: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """A probe that speaks in the clear, and a client behind the same address whose certificate is not trusted."""
    shows = {"client_cert": certs.stranger, "client_key": certs.stranger_key}
    demanding = {"client_auth": ClientAuth.require, "auth_client": True, "server_trust": certs.root}
    with serving(server_tls(config(certs, mode=TlsMode.enforcing, **demanding))) as server:
        assert not echoes(server, None)
        assert not echoes(server, client_tls(TlsConfig(calls=True, **shows)))
        wait_until(lambda: "no TLS handshake" in caplog.text, "the certificate is told")
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [
        sum(text in line for line in told) for text in ("a plain connection", "no root here has signed it")
    ] == [1, 1]
